// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * poller.c - the epoll set: arm, poll, sleep in it, be kicked
 *
 * The protocol stands in io.c. The set is made at the first wait, and lives until
 * the runtime stops.
 */
#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <time.h>

#include "io.h"
#include "poller.h"
#include "ring.h"

#define SOME		32		/* events at a time */
#define HIGH_FD		100		/* not among those a program counts on */
#define LOOK_NS		50000
#define LOOK_SOME	8		/* a fiber's stack may be too small for more */
#define KICK		UINT64_MAX	/* epoll_data of the eventfd */
#define COMMON		(UINT64_MAX - 1)	/* of the set within a pool's */
#define UNHEEDED	4

struct fb_poller fb_poller;

enum { OFF, MAKING, ON };

/* ---- the set ---- */

static int add(int set, int fd, uint32_t events, uint64_t data)
{
	struct epoll_event ev = { .events = events, .data.u64 = data };

	return (int)fb_sys(SYS_epoll_ctl, set, EPOLL_CTL_ADD, fd, &ev);
}

/* A set with its eventfd. */
static int make(int *fd, int *kick)
{
	int r;

	*fd = fb_os_high((int)fb_sys(SYS_epoll_create1, EPOLL_CLOEXEC));
	if (*fd < 0)
		return *fd;
	*kick = fb_os_high((int)fb_sys(SYS_eventfd2, 0,
				       EFD_CLOEXEC | EFD_NONBLOCK));
	r = *kick;
	if (r >= 0)
		r = add(*fd, *kick, EPOLLIN, KICK);
	if (r >= 0)
		return 0;
	if (*kick >= 0)
		fb_sys(SYS_close, *kick);
	fb_sys(SYS_close, *fd);
	return r;
}

int fb_poller_start(void)
{
	uint32_t off = OFF;
	int r;

	/* Pairs with the release below. */
	if (fb_likely(FB_ACQUIRE(fb_poller.on) == ON))
		return 0;
	while (!__atomic_compare_exchange_n(&fb_poller.on, &off, MAKING, false,
					    __ATOMIC_ACQUIRE,
					    __ATOMIC_ACQUIRE)) {
		if (off == ON)
			return 0;
		off = OFF;
		/* Who makes it may wait for this processor. */
		if (fb_current())
			fiber_yield();
		else
			sched_yield();
	}
	r = make(&fb_poller.fd, &fb_poller.kick);
	/* Pairs with the acquires above and in fb_poller_kick. */
	FB_RELEASE(fb_poller.on, r ? OFF : ON);
	return r;
}

/* No carrier runs any more. */
void fb_poller_stop(void)
{
	fb_known_reset();
	fb_fd_void_all();
	fb_ring_stop();
	if (fb_poller.on == ON) {
		fb_sys(SYS_close, fb_poller.kick);
		fb_sys(SYS_close, fb_poller.fd);
	}
	fb_poller.on = OFF;
}

/* The set is the parent's. */
void fb_poller_fork_child(void)
{
	fb_poller.on = OFF;
	fb_poller.wanted = 0;
	fb_ring_fork_child();
	fb_known_reset();
	fb_fd_forget_all();
}

/* One of the words, or nothing. */
static bool is_way(const char *want)
{
	return !*want || !strcmp(want, "uring") || !strcmp(want, "epoll") ||
	       !strcmp(want, "plain");
}

int fb_poller_init(void)
{
	const char *want = secure_getenv("FIBER_IO");

	if (!want)
		want = "";
	if (!is_way(want)) {
		fb_say("FIBER_IO=%s: uring, epoll or plain is wanted", want);
		return -EINVAL;
	}
	if (fb_rt.seeded)	/* a ring answers when it likes; plain stops all */
		want = "epoll";
	fb_poller.wanted = strcmp(want, "plain") != 0;
	fb_rt.pollers = 0;
	if (fb_poller.wanted)
		fb_rt.features |= FIBER_FEATURE_IO_EPOLL;
	/* Where there is none, files are as with epoll. */
	if (!strcmp(want, "uring") && !fb_ring_start())
		fb_rt.features |= FIBER_FEATURE_IO_URING;
	return 0;
}

/* ---- arm ---- */

static int control(int op, int fd, struct epoll_event *ev)
{
	return (int)fb_sys(SYS_epoll_ctl, fb_poller.fd, op, fd, ev);
}

/* What all in the queue wait for; who receives, for all that ends that, too. */
static uint32_t wanted(const struct fb_fd *e)
{
	uint32_t events = 0;

	for (struct fb_node *n = e->q.head; n; n = n->next)
		events |= n->events;
	return (events & EPOLLIN ? events | EPOLLRDHUP | EPOLLPRI : events) &
	       FB_IO_POLL;
}

/* e is locked: the kernel looks at the file, and tells of the mask from now on. */
static int watch(struct fb_fd *e, int fd, int op, uint32_t mask)
{
	struct epoll_event ev = {
		.events = mask | EPOLLET,
		.data.u64 = (uint64_t)e->gen << 32 | (uint32_t)fd,
	};
	int r = control(op, fd, &ev);

	if (!r)
		e->mask = (uint16_t)mask;
	return r;
}

int fb_poller_check(struct fb_fd *e, int fd)
{
	return watch(e, fd, EPOLL_CTL_MOD, e->mask);
}

int fb_poller_arm(struct fb_fd *e, int fd)
{
	uint32_t want = wanted(e);
	int r;

	if (FB_READ(e->known)) {
		r = watch(e, fd, EPOLL_CTL_MOD, want | e->mask);
		if (!r)
			return 0;
	}
	fb_fd_void(e);			/* what it told was of another file */
	FB_WRITE(e->over, false);
	r = watch(e, fd, EPOLL_CTL_ADD, want);
	if (r == -EEXIST)		/* added by a call that knew less */
		r = watch(e, fd, EPOLL_CTL_MOD, want);
	FB_WRITE(e->known, !r);
	return r ? r : 1;
}

void fb_poller_forget(struct fb_fd *e, int fd)
{
	struct epoll_event ev = { 0 };

	/* Pairs with the release in fb_poller_start. */
	if (FB_READ(e->known) && FB_ACQUIRE(fb_poller.on) == ON)
		control(EPOLL_CTL_DEL, fd, &ev);
}

/* ---- what epoll said ---- */

static void make_ready(struct fb_processor *p, struct fb_waiter *w)
{
	if ((w->kind & FB_KIND) == FB_FIBER)
		fb_sched_ready_quietly(p, fb_waiter_fiber(w));
	else
		fb_wake(p, w);
}

/* Claim who waits for the events; *left: some who do, and are not to be woken. */
static unsigned int wake_waiters(struct fb_processor *p, struct fb_fd *e,
				 uint32_t events, bool *left)
{
	uint32_t every = events & (EPOLLERR | EPOLLHUP), untaken = events;
	unsigned int woken = 0;
	struct fb_node *n, *next;
	struct fb_waiter *w;

	for (n = e->q.head; n; n = next) {
		next = n->next;
		if (!(n->events & untaken) && !every) {
			*left |= n->events & events;
			continue;
		}
		fb_waitq_remove(&e->q, n);
		w = n->w;
		if (!fb_claim(n))	/* *n is its waiter's again at unlock */
			continue;
		if (n->events & FB_IO_EXCLUSIVE)
			untaken &= ~n->events;
		make_ready(p, w);	/* *n may be gone */
		woken++;
	}
	return woken;
}

/* e is locked. Nobody heeds what epoll tells of it: less of that. */
static void hush(struct fb_fd *e, int fd)
{
	uint32_t want = wanted(e);

	if (e->unheeded < UNHEEDED) {
		e->unheeded++;
	} else if (e->mask != want && FB_READ(e->known)) {
		e->unheeded = 0;
		watch(e, fd, EPOLL_CTL_MOD, want);
	}
}

/* A number is ready. How many were woken. */
static unsigned int number_ready(struct fb_processor *p, uint64_t data,
				 uint32_t events)
{
	int fd = (int)(uint32_t)data;
	struct fb_fd *e = fb_fd_get(fd);
	unsigned int woken = 0;
	bool left = false;

	if (!e)
		return 0;
	fb_lock(&e->lock);
	if (e->gen == data >> 32) {
		/* Before .told: who sees that sees this. */
		if (events & ~(uint32_t)(EPOLLIN | EPOLLOUT))
			FB_WRITE(e->over, true);
		/* What there was to tell is there. Pairs with the acquires of .told. */
		FB_RELEASE(e->told, e->told + 1);
		woken = wake_waiters(p, e, events, &left);
		if (woken)
			e->unheeded = 0;
		if (left)
			fb_poller_arm(e, fd);
		else if (!woken)
			hush(e, fd);
	}
	fb_unlock(&e->lock);
	return woken;
}

static bool take(struct fb_processor *p, const struct epoll_event *ev, int n)
{
	unsigned int woken = 0;
	bool kicked = false;

	for (int i = 0; i < n; i++) {
		if (ev[i].data.u64 == KICK)
			kicked = true;
		else if (ev[i].data.u64 != COMMON)
			woken += number_ready(p, ev[i].data.u64, ev[i].events);
	}
	if (woken > 1)			/* one is for us */
		fb_sched_wake(p);
	return kicked;
}

/* ---- busy processors ---- */

/* Whoever is ready now; how many events. */
static int look(struct fb_processor *p)
{
	struct epoll_event ev[LOOK_SOME];
	int n = (int)fb_sys(SYS_epoll_wait, fb_poller.fd, ev, LOOK_SOME, 0);

	take(p, ev, n);			/* kicks are for sleepers */
	return n;
}

/*
 * Owner of p, in_fiber == 0: whoever is ready now. True: somebody was. Not again
 * within LOOK_NS, unless now is FB_NEVER.
 */
bool fb_poller_look(struct fb_processor *p, uint64_t now)
{
	/* Pairs with the release in fb_poller_start. */
	if (FB_ACQUIRE(fb_poller.on) != ON)
		return false;
	if (now != FB_NEVER) {
		if (now - p->polled_at < LOOK_NS)
			return false;
		p->polled_at = now;
	}
	return look(p) > 0;
}

/* ---- idle processors ---- */

/* There is work, or, unless what they say is known to be stale, so it is said. */
static bool any_work(const struct fb_group *g, bool sure)
{
	if (FB_READ(g->hint->work) || fb_group_ends(g))
		return true;
	for (uint32_t i = 0; !sure && i < g->nproc; i++)
		if (FB_READ(g->proc[i].page->takeover))
			return true;
	return false;
}

/* ThreadSanitizer is to see that we sleep: else it calls no handler meanwhile. */
#ifdef FB_TSAN
static long pwait2(int fd, struct epoll_event *ev, const struct timespec *ts)
{
	int err = errno, r;
	long ms;

	ms = !ts ? -1 : ts->tv_sec > 60 ? 60000 :
	     ts->tv_sec * 1000 + (ts->tv_nsec + 999999) / 1000000;
	r = epoll_wait(fd, ev, SOME, (int)ms);
	errno = err;
	return r;
}
#else
static long pwait2(int fd, struct epoll_event *ev, const struct timespec *ts)
{
	return fb_sys(SYS_epoll_pwait2, fd, ev, SOME, ts, NULL, 0);
}
#endif

static int sleep_in_epoll(int fd, struct epoll_event *ev, uint64_t deadline)
{
	uint64_t now = deadline ? fb_clock() : 0;
	uint64_t ns = deadline > now ? deadline - now : 0;
	struct timespec ts = {
		.tv_sec = (time_t)(ns / 1000000000),
		.tv_nsec = (long)(ns % 1000000000),
	};
	long r;

	r = pwait2(fd, ev, deadline ? &ts : NULL);
	if (r == -ENOSYS) {
		ns = (ns + 999999) / 1000000;
		r = fb_sys(SYS_epoll_wait, fd, ev, SOME,
			   !deadline ? -1 : ns > 60000 ? 60000 : (int)ns);
	}
	return r > 0 ? (int)r : 0;
}

/* Full barrier. Pairs with the publisher's: see io.c. */
static void count(struct fb_group *g, int n)
{
	/* The group's first: who sees the sum looks there. Pairs with ready.c. */
	__atomic_fetch_add(&g->pollers, (uint32_t)n, __ATOMIC_SEQ_CST);
	__atomic_fetch_add(&fb_rt.pollers, (uint32_t)n, __ATOMIC_SEQ_CST);
}

/*
 * Owner of a processor of g. A pool's set has the common one in it, so each pool is
 * woken for whatever comes there, and takes all that there is. By edges: a kick that is
 * left in the common one, which is for the default pool, would wake it for ever.
 */
bool fb_poller_ready(struct fb_group *g)
{
	uint32_t off = OFF;
	int r;

	/* Pairs with the release in fb_poller_start. */
	if (!g->index || FB_ACQUIRE(fb_poller.on) != ON)
		return true;
	/* Pairs with the release below. */
	if (fb_likely(FB_ACQUIRE(g->set.on) == ON))
		return true;
	/* Pairs with the same; another makes it: the next time. */
	if (!__atomic_compare_exchange_n(&g->set.on, &off, MAKING, false,
					 __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
		return false;
	r = make(&g->set.fd, &g->set.kick);
	if (!r) {
		r = add(g->set.fd, fb_poller.fd, EPOLLIN | EPOLLET, COMMON);
		if (r) {
			fb_sys(SYS_close, g->set.kick);
			fb_sys(SYS_close, g->set.fd);
		}
	}
	/* Pairs with the acquires above, and in fb_poller_kick. */
	FB_RELEASE(g->set.on, r ? OFF : ON);
	return !r;
}

void fb_poller_close(struct fb_group *g)
{
	if (g->set.on == ON) {
		fb_sys(SYS_close, g->set.kick);
		fb_sys(SYS_close, g->set.fd);
	}
	g->set.on = OFF;
}

/* What a pool's set told: there is more in the common one, to be taken to the end. */
static void take_common(struct fb_processor *p, const struct epoll_event *ev,
			int n)
{
	for (int i = 0; i < n; i++)
		if (ev[i].data.u64 == COMMON)
			while (look(p) == LOOK_SOME)
				;
}

/*
 * The carrier's root, owner of c->proc: until something is ready, the deadline (0:
 * none), a kick. Returns, owning a processor, what fb_enter says.
 */
struct fb_processor *fb_poller_sleep(struct fb_carrier *c, uint64_t deadline)
{
	struct fb_group *g = c->group;
	struct epoll_event ev[SOME];
	struct fb_processor *p;
	uint64_t told;
	int n = 0;

	/* Pairs with the releases in fb_poller_start, fb_poller_ready. */
	if (FB_ACQUIRE(*(g->index ? &g->set.on : &fb_poller.on)) != ON)
		return c->proc;
	count(g, 1);
	if (any_work(g, c->kept)) {
		c->kept = true;		/* a second time we are sure */
		count(g, -1);
		return c->proc;
	}
	FB_WRITE(c->page->blocking, FB_BLOCKING_IDLE);
	fb_leave(c);
	n = sleep_in_epoll(g->index ? g->set.fd : fb_poller.fd, ev, deadline);
	/* Pairs with fb_group_retake where there is no membarrier. */
	__atomic_store_n(&c->page->blocking, 0, __ATOMIC_SEQ_CST);
	/* Before arrive() looks for the token. Pairs with fb_sched_wake_slow. */
	count(g, -1);
	p = fb_enter(c);
	c->kept = false;
	if (take(p, ev, n))
		fb_sys(SYS_read, g->index ? g->set.kick : fb_poller.kick, &told,
		       sizeof(told));
	if (g->index)
		take_common(p, ev, n);
	return p;
}

void fb_poller_kick(struct fb_group *g)
{
	const uint64_t one = 1;
	uint32_t *on = g->index ? &g->set.on : &fb_poller.on;

	/* Pairs with the releases in fb_poller_start, fb_poller_ready. */
	if (FB_ACQUIRE(*on) == ON)
		fb_sys(SYS_write, g->index ? g->set.kick : fb_poller.kick, &one,
		       sizeof(one));
}
