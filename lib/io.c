// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * io.c - to read, write, accept and so on in a fiber
 *
 * A call tries what it is to do without waiting (rw.c, sock.c). Would that block,
 * it waits until the descriptor is ready, and tries again. So nothing is under way
 * in the kernel while a fiber waits: a buffer is touched in the call alone, by the
 * caller itself, and is the caller's again when the call returns, whatever ended
 * it. What waits is a node (wait.h) in the queue of its descriptor's number; a
 * deadline, a cancelled scope and fiber_close end its wait as they end any other.
 *
 * Who watches. One epoll set for all. A number is in it from its first wait on, for
 * what it was ever waited for (its mask), by edges: epoll tells of what comes, once.
 *
 *	waiting call, off its stack	who polls
 *	word = WAITING (wait.h)
 *	lock the number			epoll says: this number is ready
 *	queue the node			lock the number
 *	epoll_ctl			told++; take out and claim who waits for that
 *	unlock				others wait for it, too: epoll_ctl
 *					unlock, make ready
 *
 *   epoll_ctl makes the kernel look at the file, and tell of what is there: so what
 *   came between the try and the wait is not lost; and who is woken tries again, so an
 *   event too many does no harm. Of those that would take the same bytes one is woken:
 *   for the others the kernel looks again, and they are woken in turn if it leaves
 *   something. A receive of a number that is known well waits without epoll_ctl, and
 *   without asking how to wait: see known.c.
 *
 *   What nobody waits for, again and again, epoll is made to tell no more (UNHEEDED):
 *   the next wait needs an epoll_ctl then. A file that lives on under another number,
 *   or in another process, after close(2) of this one is told of all the same, by
 *   which nobody is woken for good; fiber_close takes it out.
 *
 * Waiting first. Who answers each message of a peer finds nothing each time it tries
 * to receive the next. When FB_IO_DRY tries in a row were such, and took no more meanwhile
 * than there was, a receive waits first, and then tries: that saves a system call.
 * Nothing depends on whether it was foreseen well: what is there when it is armed is
 * told at once (known.c: nothing is there). But
 *
 *   every PROBE-th call tries first, all the same, to see whether it still holds
 *   however its wait ended, one try is made: what is there is its result, as in a
 *	call that tries first; else that for which the wait ended
 *   only a socket that has waited before waits so: what does not receive at all (a
 *	listener) would never be ready. A program may have put that at the number
 *	behind our back: then arming finds that epoll knows no such file, and the wait
 *	is over (-ESTALE)
 *
 * Who polls, and when.
 *
 *   idle processors	sleep in epoll_wait, as long as a fiber of their group waits
 *			for I/O (of the default pool: or a plain thread). To the
 *			backend such a carrier is a fiber in a blocking call
 *			(in_fiber is 1): its processor is free for a carrier
 *			that comes back from a block. Events wake one of them.
 *   busy ones		in their slow look (sched.c), every so many passes and
 *			not more often than each LOOK_NS, and when a quantum
 *			ends, but only if no other sleeps in epoll_wait
 *
 *   While somebody waits and nobody sleeps there, p->watch says so to the backend,
 *   as for timers: a block of the fiber that runs hands the processor on, to one
 *   that polls. Other wake-ups (ready.c) go to a sleeper by an eventfd in the set,
 *   which stays readable until one that sleeps has read it:
 *
 *	publisher			idle carrier
 *	queue = work			pollers++
 *	full barrier			full barrier
 *	pollers is 0: no kick		work: pollers--, search. else epoll_wait
 *
 * The third way, plain: FIBER_IO=plain, plain threads (which need no processor to
 * wait), or what epoll cannot watch. The wait is a blocking poll(2), and the backend
 * gives the processor away. It looks at cancellation and close now and then.
 */
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>

#include "io.h"

#define FIRST_NS	2000000ULL	/* between looks, doubled up to */
#define LAST_NS		100000000ULL
#define PROBE		8		/* one of so many tries first */
#define VAIN_MOST	2
#define REST_NS		500000

/* ---- wait by epoll ---- */

struct set {
	struct fb_io_slot *slot;
	int n;
	int error;			/* of arm_all */
	struct fb_wait k;
};

static int arm_locked(struct fb_fd *e, int fd, struct fb_node *n)
{
	int r;

	if (!n->events)			/* for a close alone */
		return 0;
	if ((n->events & FB_IO_KNOWN) && fb_known_armed(e, n))
		return 0;
	r = fb_poller_arm(e, fd);
	if (r > 0)
		r = n->events & (FB_IO_FORESEEN | FB_IO_KNOWN) ? -ESTALE : 0;
	return r;
}

int fb_io_arm(struct fb_fd *e, int fd, struct fb_node *n,
	      const struct fb_wait *k)
{
	int r;

	fb_lock(&e->lock);
	/* Pairs with the or in fiber_close: see fdtab.c. */
	if (FB_ACQUIRE(e->holds) & FB_FD_CLOSING) {
		r = -EBADF;
	} else {
		n->w = k->w;
		n->claim = k->claim;
		fb_waitq_push(&e->q, n);
		e->unheeded = 0;
		r = arm_locked(e, fd, n);
		if (!r && n->events & FB_IO_KNOWN)
			fb_known_list(e, fd);
	}
	fb_unlock(&e->lock);
	return r;
}

static struct fb_group *group_of(const struct fb_processor *p)
{
	return p ? p->group : &fb_rt.group;
}

void fb_io_waits(struct fb_processor *p, int n)
{
	struct fb_group *g = group_of(p);

	__atomic_fetch_add(&g->waiting, (uint32_t)n, __ATOMIC_RELAXED);
}

/* p: NULL on a plain thread. */
void fb_io_somebody_looks(struct fb_processor *p)
{
	struct fb_group *g = group_of(p);

	if (FB_READ(g->pollers))
		return;
	if (p && !p->watch)
		fb_sched_watch(p);
	fb_sched_wake_group(g);
}

void fb_io_leave(struct fb_fd *e, struct fb_node *n)
{
	fb_lock(&e->lock);
	if (n->queued)
		fb_waitq_remove(&e->q, n);
	fb_unlock(&e->lock);
}

/* fb_wait.unlock: off the waiter's stack, which fb_wait leaves last. */
static void arm_all(struct fb_processor *p, void *object)
{
	struct set *t = object;
	struct fb_waiter *w = t->k.w;
	bool known = t->n && t->slot->node.events & FB_IO_KNOWN;	/* not yet queued */

	fb_io_waits(p, t->n);
	for (int i = 0; i < t->n && !t->error; i++)
		t->error = fb_io_arm(t->slot[i].e, t->slot[i].fd,
				     &t->slot[i].node, &t->k);
	if (t->error && fb_claim_word(w, t->k.claim, FB_W_OBJECT))
		fb_wake(p, w);
	if (known)
		fb_known_start(p);
	fb_io_somebody_looks(p);
}

/* What is queued still goes out. -EBADF if one is being closed. */
static int leave_all(struct fb_processor *p, struct set *t)
{
	int r = 0;

	for (int i = 0; i < t->n; i++) {
		struct fb_io_slot *s = &t->slot[i];

		fb_io_leave(s->e, &s->node);
		if (s->node.result)
			r = s->node.result;
	}
	fb_io_waits(p, -t->n);
	return r;
}

int fb_io_wait_slots(struct fb_io_slot *s, int n, uint64_t deadline)
{
	struct set t = { .slot = s, .n = n };
	struct fb_caller me;
	unsigned int state;
	int r;

	for (int i = 0; i < n; i++) {
		s[i].node.queued = false;
		s[i].node.result = 0;
	}
	fb_caller_enter(&me);
	fb_wait_begin(&me, &t.k, deadline, true);
	t.k.unlock = arm_all;
	t.k.object = &t;
	state = fb_wait(&me, &t.k, FB_WHY_IO);
	r = leave_all(me.p, &t);
	if (!r)
		r = t.error ? t.error : fb_wait_error(state);
	fb_caller_leave(&me);
	return r;
}

/* ---- wait plainly ---- */

static int poll_until(struct pollfd *fds, unsigned int n, uint64_t ns)
{
	struct timespec ts = {
		.tv_sec = (time_t)(ns / 1000000000),
		.tv_nsec = (long)(ns % 1000000000),
	};
	int r;

	fiber_blocking_begin();
	r = (int)fb_sys(SYS_ppoll, fds, n, &ts, NULL, 0);
	fiber_blocking_end();
	return r;
}

int fb_io_wait_plainly(struct pollfd *fds, unsigned int n, struct fb_fd *e,
		       uint64_t deadline)
{
	uint64_t now, ns, slice = FIRST_NS;
	int r;

	for (;; slice = slice < LAST_NS ? slice * 2 : LAST_NS) {
		now = fiber_now();
		ns = deadline <= now ? 0 : deadline - now;
		r = poll_until(fds, n, ns < slice ? ns : slice);
		if (fiber_cancelled())
			return -ECANCELED;
		/* Pairs with the or in fiber_close. */
		if (e && (FB_ACQUIRE(e->holds) & FB_FD_CLOSING))
			return -EBADF;
		if (r > 0 || (r < 0 && r != -EINTR))
			return r;
		if (!ns)
			return -ETIMEDOUT;
	}
}

int fb_io_nap(uint64_t until)
{
	bool counts = fb_rt.seeded && fb_current();
	int r;

	if (counts)
		fb_seed_outside(1);
	r = fiber_sleep_until(until);
	if (counts)
		fb_seed_outside(-1);
	return r;
}

/* ---- a call ---- */

bool fb_io_watches(void)
{
	return fb_current() && fb_poller.wanted && !fb_poller_start();
}

int fb_io_begin(struct fb_io *k, int fd, uint32_t events, uint64_t deadline)
{
	fb_caller_heed();
	if (deadline && fiber_cancelled())
		return -ECANCELED;
	k->e = fb_fd_get(fd);
	k->fd = fd;
	k->events = events;
	k->deadline = deadline;
	k->looked = k->waited = k->known = false;
	k->since = 0;
	k->vain = 0;
	k->also = NULL;
	if (!k->e)
		return 0;
	k->seen = FB_ACQUIRE(k->e->told);	/* pairs with number_ready */
	return fb_fd_hold(k->e, deadline);
}

long fb_io_end(struct fb_io *k, long r)
{
	if (k->e)
		fb_fd_release(k->e);
	return r;
}

int fb_io_turn(struct fb_io *k)
{
	fiber_mutex_t *turn;
	int r;

	if (!k->e)
		return 0;
	turn = &k->e->turn[k->events == POLLOUT];
	if (k->deadline)
		return fiber_mutex_lock_until(turn, k->deadline);
	r = fiber_mutex_try_lock(turn);
	return r ? -ETIMEDOUT : 0;
}

long fb_io_turn_end(struct fb_io *k, long r)
{
	if (k->e)
		fiber_mutex_unlock(&k->e->turn[k->events == POLLOUT]);
	/* Another process took it, the call blocked, and was cancelled. */
	return r != -EINTR ? r : fiber_cancelled() ? -ECANCELED : -EAGAIN;
}

int fb_io_look(struct fb_io *k)
{
	struct timeval tv;
	unsigned int size = sizeof(tv);
	long r;

	if (!k->since)
		k->since = fiber_now();
	k->looked = k->known = fb_known_holds(k);
	k->timeo = FB_NEVER;
	if (k->known)
		return 0;
	r = fb_sys(SYS_fcntl, k->fd, F_GETFL);
	if (r < 0)
		return (int)r;
	if (r & O_NONBLOCK)
		return -EAGAIN;
	k->looked = true;
	r = fb_sys(SYS_getsockopt, k->fd, SOL_SOCKET,
		   k->events & POLLIN ? SO_RCVTIMEO : SO_SNDTIMEO, &tv, &size);
	if (!r && (tv.tv_sec || tv.tv_usec))
		k->timeo = k->since + (uint64_t)tv.tv_sec * 1000000000 +
			   (uint64_t)tv.tv_usec * 1000;
	else
		fb_known_learn(k);
	return 0;
}

static int wait_plainly(struct fb_io *k, uint64_t until)
{
	struct pollfd p = { .fd = k->fd, .events = (short)k->events };
	uint64_t next;
	int r;

	do {
		next = k->also ? fiber_now() + LAST_NS : until;
		r = fb_io_wait_plainly(&p, 1, k->e, next < until ? next : until);
		/* Pairs with the or in fiber_close. */
		if (k->also && (FB_ACQUIRE(k->also->holds) & FB_FD_CLOSING))
			return -EBADF;
	} while (r == -ETIMEDOUT && next < until);
	return r > 0 ? 0 : r;
}

static uint64_t wait_ends_at(const struct fb_io *k)
{
	return k->deadline < k->timeo ? k->deadline : k->timeo;
}

/* The wait has failed for more than a reason to end it: not so, then. */
static bool is_refused(int r)
{
	return r && r != -ETIMEDOUT && r != -ECANCELED && r != -EBADF;
}

static int say_timeo(const struct fb_io *k, int r)
{
	return r == -ETIMEDOUT && k->timeo <= k->deadline ? -EAGAIN : r;
}

static int wait_in_set(struct fb_io *k, uint32_t how)
{
	struct fb_io_slot s[2] = { { .e = k->e, .fd = k->fd }, { .e = k->also } };
	bool known = k->known;
	int r;

	if (known)
		how |= FB_IO_KNOWN;
	s[0].node.events = k->events | FB_IO_EXCLUSIVE | how;
	s[0].node.value = fb_known_mark(how & FB_IO_FORESEEN ?
					FB_READ(k->e->dried) : k->seen);
	r = fb_io_wait_slots(s, k->also ? 2 : 1, wait_ends_at(k));
	if (known && !fb_known_holds(k))
		k->looked = false;
	k->seen = FB_ACQUIRE(k->e->told);	/* pairs with number_ready */
	return r;
}

/*
 * What ends every wait at once, while no try finds anything: a notice of the kernel in
 * a socket's error queue, or too little memory to send. Sleep between the looks then.
 */
static int rest(struct fb_io *k, uint64_t until)
{
	uint64_t now;

	if (k->vain++ < VAIN_MOST)
		return 0;
	if (fb_io_poll_now(k->fd, k->events) <= 0) {
		k->vain = 0;		/* it waits in earnest */
		return 0;
	}
	now = fiber_now();
	if (now >= until)
		return -ETIMEDOUT;
	return fb_io_nap(until - now < REST_NS ? until : now + REST_NS);
}

/* Epoll has told of it since then: try again. */
static bool told_since(struct fb_io *k, uint32_t seen)
{
	k->seen = FB_ACQUIRE(k->e->told);	/* pairs with number_ready */
	return k->seen != seen;
}

int fb_io_wait(struct fb_io *k)
{
	int r = k->looked ? 0 : fb_io_look(k);
	bool known;

	if (r)
		return r;
	if (!k->deadline)
		return -ETIMEDOUT;
	if (k->known && told_since(k, k->seen))
		return 0;
	r = rest(k, wait_ends_at(k));
	if (r)
		return say_timeo(k, r);
	known = k->known;
	r = k->e && fb_io_watches() ? wait_in_set(k, 0) : -ENOSYS;
	if (is_refused(r))		/* what was known is void, or as below */
		r = known ? 0 : wait_plainly(k, wait_ends_at(k));
	k->waited = true;
	return say_timeo(k, r);
}

/* ---- wait first ---- */

/* With a seed, no: what the process did before must not count. */
static bool is_dry(struct fb_io *k)
{
	struct fb_fd *e = k->e;

	if (!e || FB_READ(e->dry) < FB_IO_DRY || !k->deadline || fb_rt.seeded ||
	    !fb_io_watches())
		return false;
	FB_WRITE(e->foreseen, (uint8_t)(FB_READ(e->foreseen) + 1));
	return FB_READ(e->foreseen) % PROBE;
}

/* What there was has been received, and nothing was told of since. */
static bool is_empty(struct fb_io *k)
{
	return !told_since(k, FB_READ(k->e->dried)) && FB_READ(k->e->tcp) &&
	       !FB_READ(k->e->over);
}

int fb_io_foresee(struct fb_io *k)
{
	int r;

	k->waited = false;
	if (!is_dry(k))
		return 0;
	/* -EAGAIN: it is not to wait. */
	r = k->looked ? 0 : fb_io_look(k);
	if (!r && k->known && !is_empty(k))
		return 0;
	if (!r)
		r = wait_in_set(k, FB_IO_FORESEEN);
	k->waited = !is_refused(r);
	if (k->waited)
		return say_timeo(k, r);
	FB_WRITE(k->e->dry, 0);
	return 0;
}
