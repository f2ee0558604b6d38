// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * timer.c - timers of a processor, and sleep
 *
 * Each processor has a pairing heap of timers that live with whoever waits for
 * them, mostly in frames of fibers: adding is O(1) and needs no memory (malloc
 * is forbidden here, see fb.h). timer_lock guards the heap, since every carrier
 * may fire the due timers of every processor; timer_next repeats the earliest
 * deadline for readers without the lock.
 *
 * A timer is armed from fb_timer_add until it is taken out, to be fired or by
 * fb_timer_del, and fire() runs under the lock: so of both exactly one takes it,
 * and who found it taken knows that fire() has returned.
 *
 * Who looks, so that a timer fires although its processor's carrier
 *   runs fibers that switch      every schedule pass or few (sched.c)
 *   runs one fiber on and on     takeover READY: fb_preempted looks
 *   is blocked in the kernel     takeover WATCH: the processor is handed on
 *   is idle                      it sleeps with the deadline of them all and
 *                                says so in fb_rt.watched
 * Both words are set while a timer is earlier than fb_rt.watched. To a backend
 * WATCH is a reason to hand off but none to preempt, and the fiber that runs
 * may never block: so the timer counts as a ready fiber. An idle carrier that
 * comes for it finds nothing, sleeps with its deadline, and so watches it.
 */
#include <time.h>

#include "fb.h"

#define FIRE_MAX	64	/* in one holding of a lock */

FB_EXPORT uint64_t fiber_now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000 + (uint64_t)ts.tv_nsec;
}

/* ---- pairing heap: the root has no sibling; prev is the parent or left one ---- */

static struct fb_timer *heap_meld(struct fb_timer *a, struct fb_timer *b)
{
	struct fb_timer *t;

	if (!a || !b)
		return a ? a : b;
	if (b->when < a->when) {
		t = a;
		a = b;
		b = t;
	}
	b->next = a->child;
	if (b->next)
		b->next->prev = b;
	b->prev = a;
	a->child = b;
	return a;
}

/* Meld the list of a removed root's children, in pairs, then from the end. */
static struct fb_timer *heap_merge(struct fb_timer *list)
{
	struct fb_timer *pairs = NULL, *root = NULL, *a, *b;

	while (list) {
		a = list;
		b = a->next;
		list = b ? b->next : NULL;
		a->next = a->prev = NULL;
		if (b)
			b->next = b->prev = NULL;
		a = heap_meld(a, b);
		a->next = pairs;
		pairs = a;
	}
	while (pairs) {
		a = pairs;
		pairs = a->next;
		a->next = NULL;
		root = heap_meld(root, a);
	}
	return root;
}

/* The heap without t, any of its nodes. */
static struct fb_timer *heap_remove(struct fb_timer *root, struct fb_timer *t)
{
	struct fb_timer *rest = heap_merge(t->child);

	if (t == root)
		return rest;
	if (t->prev->child == t)
		t->prev->child = t->next;
	else
		t->prev->next = t->next;
	if (t->next)
		t->next->prev = t->prev;
	return heap_meld(root, rest);
}

static void publish_next(struct fb_processor *p)
{
	FB_WRITE(p->timer_next, p->timers ? p->timers->when : FB_NEVER);
}

/* ---- for whoever waits with a deadline ---- */

void fb_timer_add(struct fb_processor *p, struct fb_timer *t)
{
	t->child = t->next = t->prev = NULL;
	t->proc = p;
	fb_lock(&p->timer_lock);
	t->armed = true;
	p->timers = heap_meld(p->timers, t);
	publish_next(p);
	fb_unlock(&p->timer_lock);
}

bool fb_timer_del(struct fb_timer *t)
{
	struct fb_processor *p = t->proc;
	bool armed;

	fb_lock(&p->timer_lock);
	armed = t->armed;
	if (armed) {
		t->armed = false;
		p->timers = heap_remove(p->timers, t);
		publish_next(p);
	}
	fb_unlock(&p->timer_lock);
	return armed;
}

/* ---- for the scheduler ---- */

/* Fire what is due of `of`, some of it at once; the fibers it readies, linked. */
static struct fiber *take_due(struct fb_processor *of, uint64_t now)
{
	struct fiber *head = NULL, **tail = &head, *f;
	struct fb_timer *t;
	int n = 0;

	fb_lock(&of->timer_lock);
	while ((t = of->timers) && t->when <= now && n++ < FIRE_MAX) {
		of->timers = heap_remove(t, t);
		t->armed = false;
		f = t->fire(t);		/* *t may be gone */
		if (!f)
			continue;
		f->link = NULL;
		*tail = f;
		tail = &f->link;
	}
	publish_next(of);
	fb_unlock(&of->timer_lock);
	return head;
}

/*
 * Fire every timer that is due, and make the fibers ready here: the first to
 * run next, the others after all that is ready. Owner of `to`. How many fibers.
 */
unsigned int fb_timer_fire(struct fb_processor *to, uint64_t now)
{
	struct fb_processor *of;
	struct fiber *f, *next;
	unsigned int n = 0;

	for (uint32_t i = 0; i < fb_rt.nproc; i++) {
		of = &fb_rt.proc[i];
		while (FB_READ(of->timer_next) <= now) {
			for (f = take_due(of, now); f; f = next) {
				next = f->link;	/* a ready fiber may be gone */
				if (n++)
					fb_sched_ready_last(to, f);
				else
					fb_sched_ready(to, f);
			}
		}
	}
	return n;
}

uint64_t fb_timer_earliest(void)
{
	uint64_t next = FB_NEVER, t;

	for (uint32_t i = 0; i < fb_rt.nproc; i++) {
		t = FB_READ(fb_rt.proc[i].timer_next);
		if (t < next)
			next = t;
	}
	return next;
}

/* ---- sleep ---- */

struct sleeper {
	struct fb_timer timer;
	struct fiber *f;
};

static struct fiber *sleep_over(struct fb_timer *t)
{
	return ((struct sleeper *)t)->f;
}

/* Off the sleeper's stack; its timer may fire elsewhere at once. */
static void sleep_commit(struct fb_carrier *c, void *arg)
{
	fb_timer_add(c->proc, arg);
	fb_sched_watch(c->proc);
}

static void sleep_fiber(struct fb_carrier *c, uint64_t deadline)
{
	struct fb_processor *p = fb_enter(c);
	struct sleeper s = {
		.timer = { .when = deadline, .fire = sleep_over },
		.f = c->cur,
	};

	fb_sched_park(c, p, sleep_commit, &s.timer);
}

static int sleep_plain(uint64_t deadline)
{
	struct timespec ts = {
		.tv_sec = (time_t)(deadline / 1000000000),
		.tv_nsec = (long)(deadline % 1000000000),
	};

	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &ts, NULL) ==
	       EINTR)
		;
	return 0;
}

FB_EXPORT int fiber_sleep_until(uint64_t deadline)
{
	struct fb_carrier *c = fb_current();

	/* Beyond what the kernel's clock can say: as good as never. */
	if (deadline > INT64_MAX)
		deadline = INT64_MAX;
	if (!c)
		return sleep_plain(deadline);
	if (deadline <= fiber_now())
		fiber_yield();
	else
		sleep_fiber(c, deadline);
	return 0;
}

FB_EXPORT int fiber_sleep(uint64_t ns)
{
	uint64_t now = fiber_now();

	return fiber_sleep_until(now + ns < now ? FB_NEVER : now + ns);
}
