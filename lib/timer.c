// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * timer.c - timers of a processor, and sleep
 *
 * Each processor has a pairing heap of timers that live in the frames of the
 * fibers that wait for them: adding is O(1) and needs no memory (malloc is
 * forbidden here, see fb.h). timer_lock guards the heap, since every carrier
 * may fire the due timers of every processor; timer_next repeats the earliest
 * deadline for readers without the lock.
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

static void publish_next(struct fb_processor *p)
{
	FB_WRITE(p->timer_next, p->timers ? p->timers->when : FB_NEVER);
}

/* ---- for the scheduler ---- */

/* Owner of p; t->f parks now (off its stack). */
void fb_timer_add(struct fb_processor *p, struct fb_timer *t)
{
	t->child = t->next = t->prev = NULL;
	fb_lock(&p->timer_lock);
	p->timers = heap_meld(p->timers, t);
	publish_next(p);
	fb_unlock(&p->timer_lock);
}

/* The earliest timer of `of` if it is due, taken out; its fiber, or NULL. */
static struct fiber *take_due(struct fb_processor *of, uint64_t now)
{
	struct fb_timer *t;
	struct fiber *f = NULL;

	if (FB_READ(of->timer_next) > now)
		return NULL;
	fb_lock(&of->timer_lock);
	t = of->timers;
	if (t && t->when <= now) {
		of->timers = heap_merge(t->child);
		publish_next(of);
		f = t->f;	/* *t is gone as soon as f is ready */
	}
	fb_unlock(&of->timer_lock);
	return f;
}

/*
 * Make every fiber ready whose timer is due, here: the first to run next, the
 * others after all that is ready. Owner of `to`. Returns how many.
 */
unsigned int fb_timer_fire(struct fb_processor *to, uint64_t now)
{
	unsigned int n = 0;
	struct fiber *f;

	for (uint32_t i = 0; i < fb_rt.nproc; i++) {
		while ((f = take_due(&fb_rt.proc[i], now))) {
			if (n++)
				fb_sched_ready_last(to, f);
			else
				fb_sched_ready(to, f);
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

/* Off the sleeper's stack; its timer may fire elsewhere at once. */
static void sleep_commit(struct fb_carrier *c, void *arg)
{
	fb_timer_add(c->proc, arg);
	fb_sched_watch(c->proc);
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
	struct fb_processor *p;
	struct fb_timer t;

	/* Beyond what the kernel's clock can say: as good as never. */
	if (deadline > INT64_MAX)
		deadline = INT64_MAX;
	if (!c)
		return sleep_plain(deadline);
	if (deadline <= fiber_now()) {
		fiber_yield();
		return 0;
	}
	p = fb_enter(c);
	t.when = deadline;
	t.f = c->cur;
	fb_sched_park(c, p, sleep_commit, &t);
	return 0;
}

FB_EXPORT int fiber_sleep(uint64_t ns)
{
	uint64_t now = fiber_now();

	return fiber_sleep_until(now + ns < now ? FB_NEVER : now + ns);
}
