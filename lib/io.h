/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* io.h - what the rooms of I/O share; the protocol stands in io.c */
#ifndef FB_IO_H
#define FB_IO_H

#include <poll.h>

#include "wait.h"
#include "sys.h"

/* ---- fdtab.c: descriptors ---- */

#define FB_IO_DRY	2		/* in a row: the next waits first */

/* fb_fd.holds: calls under way, and */
#define FB_FD_CLOSING	0x80000000u

/* One descriptor number, whatever file it has; never freed. */
struct fb_fd {
	uint32_t holds;			/* atomic: calls under way, CLOSING */
	uint32_t gen;			/* lock: closes seen */
	fb_lock_t lock;			/* never held in a park */
	uint32_t told;			/* lock, read by all: events of it, so far */
	uint32_t dried;			/* atomic hint: told, when it was empty last */
	uint16_t mask;			/* lock: what epoll watches it for */
	bool known;			/* to epoll, the last time we looked */
	bool no_socket;			/* a hint */
	/* atomic, believed to hold for the file that epoll knows: see known.c */
	bool waits;			/* no O_NONBLOCK, no SO_RCVTIMEO */
	bool tcp;
	bool over;			/* epoll has told of an end, or the like */
	uint8_t dry;			/* atomic hint: tries in vain, to FB_IO_DRY */
	uint8_t foreseen;		/* a hint: how often */
	uint8_t connects;		/* atomic: odd while fiber_connect is at it */
	uint8_t unheeded;		/* lock: events in a row that woke nobody */
	bool listed;			/* lock: to be verified */
	int32_t fd;			/* lock: while listed */
	struct fb_waitq q;		/* lock: who waits for readiness */
	struct fb_fd *next;		/* the lock of known.c: in its list */
	fb_lock_t close_lock;		/* of closer */
	struct fb_waitq closer;		/* fiber_close, until holds is 0 */
	fiber_mutex_t turn[2];		/* poll and call as one: in, out */
} __attribute__((aligned(FB_LINE)));

/* NULL: beyond the table, or no memory for its part of it. */
struct fb_fd *fb_fd_get(int fd);
/* Any thread, in_fiber == 1. 0, or it is being closed, and stays so: as below. */
int fb_fd_hold(struct fb_fd *e, uint64_t deadline);
/* False: it is being closed; to be waited for without holding any. */
bool fb_fd_try_hold(struct fb_fd *e);
/* 0, -ETIMEDOUT or -ECANCELED. */
int fb_fd_wait_closed(struct fb_fd *e, uint64_t deadline);
void fb_fd_release(struct fb_fd *e);
/* What is known of its file is void, for it has another, or no set knows it. */
void fb_fd_void(struct fb_fd *e);
void fb_fd_void_all(void);
/* A new file has this number. */
void fb_fd_born(int fd);
/* In the child of a fork: its threads' calls are not here. */
void fb_fd_forget_all(void);

/* ---- io.c: a call ---- */

/* One call of fiber_read and the like; its own alone. */
struct fb_io {
	struct fb_fd *e;		/* held; or NULL */
	int fd;
	uint32_t events;		/* POLLIN or POLLOUT */
	uint64_t deadline;		/* the caller's; 0: do not wait */
	uint64_t timeo;			/* of SO_RCVTIMEO or SO_SNDTIMEO */
	bool looked;			/* timeo is known */
	bool known;			/* .. and was not asked for: see known.c */
	uint64_t since;			/* it waits by that; 0: it has not yet */
	uint32_t seen;			/* e->told, before the last try */
	bool waited;			/* before the next try */
	unsigned int vain;		/* waits since something was moved */
	struct fb_fd *also;		/* held; its close ends a wait too; or NULL */
};

/* In fiber code, or any thread. 0, or -ECANCELED, -ETIMEDOUT: it must not begin. */
int fb_io_begin(struct fb_io *k, int fd, uint32_t events, uint64_t deadline);
/*
 * Before the first try of a receive: 0; or it has been waited for, in vain, and the
 * call ends with that unless the one try left tells better.
 */
int fb_io_foresee(struct fb_io *k);
/* What the call did would block: 0: it may not any more, try again. */
int fb_io_wait(struct fb_io *k);
/* How the plain call would wait: k->timeo, or -EAGAIN: not at all. */
int fb_io_look(struct fb_io *k);
/*
 * Poll and call as one, for those that have no flag against waiting: nobody else
 * of this process does it in between. 0, or the call ends with that.
 */
int fb_io_turn(struct fb_io *k);
long fb_io_turn_end(struct fb_io *k, long r);
/* What a try to receive told, for the next call. full: there was room for no more. */
static inline void fb_io_tried(struct fb_io *k, long r, bool full)
{
	struct fb_fd *e = k->e;

	if (!e)
		return;
	if (!full && (r > 0 || r == -EAGAIN))
		FB_WRITE(e->dried, k->seen);
	if (k->waited && !full)
		return;
	if (r != -EAGAIN)
		FB_WRITE(e->dry, 0);
	else if (FB_READ(e->dry) < FB_IO_DRY)
		__atomic_fetch_add(&e->dry, 1, __ATOMIC_RELAXED);
}

/*
 * All of a receive: once() tries, without waiting, and says whether there was room for
 * no more. Inline, so that once() is no call through a pointer.
 */
static inline __attribute__((always_inline)) long
fb_io_receive(struct fb_io *k, long (*once)(struct fb_io *k, void *what, bool *full),
	      void *what)
{
	int ended = fb_io_foresee(k);
	bool full = false;
	long r;

	do {
		r = once(k, what, &full);
		fb_io_tried(k, r, full);
	} while (r == -EAGAIN && !(r = ended ? ended : fb_io_wait(k)));
	return r;
}

/* The end of a call that fb_io_begin allowed; returns r. */
long fb_io_end(struct fb_io *k, long r);

/* A place in a set to wait for; in the frame of the waiting call. */
struct fb_io_slot {
	struct fb_node node;		/* .events */
	struct fb_fd *e;		/* held */
	int fd;
};
/* In .events, beside those of poll(2): */
#define FB_IO_EXCLUSIVE	0x80000000u	/* one is woken, not all */
#define FB_IO_FORESEEN	0x40000000u	/* -ESTALE if it is another file by now */
#define FB_IO_KNOWN	0x20000000u	/* as FORESEEN; .value is a mark: known.c */
#define FB_IO_POLL	0x0000ffffu

/*
 * Off the waiter's stack, e held: n, whose .events say what for, is queued for k, and
 * e armed. On an error its wait is to be ended: it stays queued all the same, unless
 * that is -EBADF (e is being closed).
 */
int fb_io_arm(struct fb_fd *e, int fd, struct fb_node *n,
	      const struct fb_wait *k);
/*
 * n slots more wait: count them, before they are armed; then somebody must look.
 * Owner of p, of the group of who waits; NULL: a plain thread.
 */
void fb_io_waits(struct fb_processor *p, int n);
void fb_io_somebody_looks(struct fb_processor *p);
/* No more: n goes out if it is still queued. */
void fb_io_leave(struct fb_fd *e, struct fb_node *n);

/*
 * Until one of the slots is ready (0), or -ETIMEDOUT, -ECANCELED, -EBADF (it is
 * being closed), or another error: epoll cannot watch it.
 */
int fb_io_wait_slots(struct fb_io_slot *s, int n, uint64_t deadline);
/* The same in a blocking call, for whatever fds; revents are set, how many. */
int fb_io_wait_plainly(struct pollfd *fds, unsigned int n, struct fb_fd *e,
		       uint64_t deadline);
/* fiber_sleep_until, between two looks at what nothing tells of: see seed.c. */
int fb_io_nap(uint64_t until);
/* Whether it waits by epoll. */
bool fb_io_watches(void);

/* ---- ioask.c: what is there now ---- */

/* poll(2) without a wait; no signal ends it. */
int fb_io_poll_all(struct pollfd *p, unsigned int n);
/* Events now; < 0: an error. */
int fb_io_poll_now(int fd, uint32_t events);
/*
 * A call has moved something: what is next? An error that a try would take from the
 * socket is for the next call to tell, as the end is. Negative: there is nothing but
 * that; 0: nothing yet; else try.
 */
int fb_io_next(const struct fb_io *k);
/*
 * poll said POLLERR alone, and nothing was moved: the error, taken. 0: it was a notice
 * of the kernel, a try would find nothing. POLLERR: it is no socket.
 */
int fb_io_error(int fd);
/* ---- poller.c ---- */

struct fb_poller {
	int fd, kick;			/* epoll; eventfd. Once `on` is 2 */
	uint32_t on;			/* atomic */
	uint32_t wanted;		/* constant: FIBER_IO is not plain */
};
extern struct fb_poller fb_poller __attribute__((visibility("hidden")));

/* Make it, at the first wait. Any thread, in_fiber == 1. */
int fb_poller_start(void);
/* e is locked: tell epoll what its queue waits for. 1: of a file it knew not. */
int fb_poller_arm(struct fb_fd *e, int fd);
/* e is locked: does epoll know it still, as far as we know? 0, or an error. */
int fb_poller_check(struct fb_fd *e, int fd);
/* e is being closed. */
void fb_poller_forget(struct fb_fd *e, int fd);

/* ---- known.c: waits that rely on what was known ---- */

/* In fiber code: whether k may wait by what is known of its file. */
bool fb_known_holds(const struct fb_io *k);
/* The plain call would wait for ever, says the system: known from now on. */
void fb_known_learn(struct fb_io *k);
/* For .value: nothing to be had was there after epoll had told so often. */
void *fb_known_mark(uint32_t seen);
/* e is locked, n in its queue. True: what n waits for will be told, as it is. */
bool fb_known_armed(const struct fb_fd *e, const struct fb_node *n);
/* The same: verify it, by and by. Then, unlocked: somebody has to. Owner of p. */
void fb_known_list(struct fb_fd *e, int fd);
void fb_known_start(struct fb_processor *p);

#endif
