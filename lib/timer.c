// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * timer.c - timers of a processor
 *
 * Each processor has a wheel (wheel.c) of timers that live with whoever waits
 * for them, mostly in frames of fibers: no memory is needed (malloc is forbidden
 * here, see fb.h). timer_lock guards it, since every carrier may fire the due
 * timers of every processor, and take any timer out. timer_next repeats when the
 * wheel has something to do, for readers without the lock; it is written when it
 * changes only, for they are many.
 *
 * A timer is armed from fb_timer_add until it is taken out, to be fired or by
 * fb_timer_del, and fire() runs under the lock: so of both exactly one takes it,
 * and who found it taken knows that fire() has returned.
 *
 * When very many come due at once, or are to be moved in the wheel, a pass does a
 * part of it only: fibers that are ready run in between.
 *
 * Who looks, so that a timer fires although its processor's carrier
 *   runs fibers that switch      every schedule pass or few (sched.c)
 *   runs one fiber on and on     takeover READY: fb_preempted looks
 *   is blocked in the kernel     takeover WATCH: the processor is handed on
 *   is idle                      it sleeps with the deadline of them all and
 *                                says so in fb_group.watched
 * Both words are set while a timer is earlier than fb_group.watched. To a backend
 * WATCH is a reason to hand off but none to preempt, and the fiber that runs
 * may never block: so the timer counts as a ready fiber. An idle carrier that
 * comes for it finds nothing, sleeps with its deadline, and so watches it.
 */
#include <time.h>

#include "fb.h"

#define FIRE_PASS	8	/* holdings of a lock in one pass */
#define FIRE_SOME	32	/* timers fired in each, */
#define MOVE_STEPS	128	/* or moved */
#define TIME_MAX	((uint64_t)INT64_MAX)

uint64_t fb_clock(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000 + (uint64_t)ts.tv_nsec;
}

FB_EXPORT uint64_t fiber_now(void)
{
	return fb_unlikely(fb_rt.seeded) ? fb_seed_now() : fb_clock();
}

/* True: it is earlier than it was. */
static bool publish_next(struct fb_processor *p)
{
	uint64_t next = fb_wheel_next(&p->wheel), old = FB_READ(p->timer_next);

	if (next > TIME_MAX)	/* no clock comes there */
		next = FB_NEVER;
	if (next != old)
		FB_WRITE(p->timer_next, next);
	return next < old;
}

/* ---- for whoever waits with a deadline ---- */

void fb_timer_init(struct fb_processor *p)
{
	fb_wheel_init(&p->wheel, fb_timer_now());
	p->timer_next = FB_NEVER;
}

bool fb_timer_add(struct fb_processor *p, struct fb_timer *t)
{
	bool earlier;

	fb_lock(&p->timer_lock);
	t->proc = p;
	/* Before it is in a wheel. Pairs with the acquire in fb_timer_take. */
	__atomic_thread_fence(__ATOMIC_RELEASE);
	fb_wheel_add(&p->wheel, t);
	earlier = publish_next(p);
	fb_unlock(&p->timer_lock);
	return earlier;
}

bool fb_timer_take(struct fb_processor *p, struct fb_timer *t)
{
	bool holds;

	fb_lock(&p->timer_lock);
	/* Pairs with the fence in fb_timer_add: who sees it in a wheel sees whose. */
	holds = FB_ACQUIRE(t->pprev) && FB_READ(t->proc) == p;
	if (holds) {
		fb_wheel_del(&p->wheel, t);
		publish_next(p);
	}
	fb_unlock(&p->timer_lock);
	return holds;
}

bool fb_timer_del(struct fb_timer *t)
{
	return fb_timer_take(t->proc, t);
}

/* ---- for the scheduler ---- */

/* What was fired, linked. */
struct fired {
	struct fiber *ready;
	struct fb_timer *calls;
};

/* Fire some of what is due of `of`. */
static struct fired fire_some(struct fb_processor *of, uint64_t now)
{
	struct fired d = { NULL, NULL };
	struct fiber **ready = &d.ready, *f;
	struct fb_timer **calls = &d.calls, *t;
	int work = MOVE_STEPS;

	fb_lock(&of->timer_lock);
	for (int n = 0; n < FIRE_SOME; n++) {
		t = fb_wheel_take(&of->wheel, now, &work);
		if (!t)
			break;
		f = t->fire(t);		/* *t may be gone */
		if (f == FB_TIMER_CALLS) {
			*calls = t;
			calls = &t->next;
		} else if (f) {
			*ready = f;
			ready = &f->link;
		}
	}
	*ready = NULL;
	*calls = NULL;
	publish_next(of);
	fb_unlock(&of->timer_lock);
	return d;
}

/* The first runs next, the others after all that is ready. How many. */
static unsigned int make_ready(struct fb_processor *to, struct fiber *f,
			       bool first)
{
	unsigned int n = 0;
	struct fiber *next;

	for (; f; f = next, n++) {
		next = f->link;		/* a ready fiber may be gone */
		if (first && !n)
			fb_sched_ready(to, f);
		else
			fb_sched_ready_last(to, f);
	}
	return n;
}

static unsigned int make_calls(struct fb_processor *to, struct fb_timer *t)
{
	unsigned int n = 0;
	struct fb_timer *next;

	for (; t; t = next) {
		next = t->next;
		n += fb_callback_due(to, t);
	}
	return n;
}

/*
 * Fire the timers that are due, our own first, and make their fibers ready here.
 * Owner of `to`. How many fibers.
 */
unsigned int fb_timer_fire(struct fb_processor *to, uint64_t now)
{
	unsigned int n = 0, holdings = 0;
	const struct fb_group *g = to->group;
	struct fb_processor *of = to;
	struct fired d;

	for (uint32_t i = 0; i < g->nproc; i++) {

		while (FB_READ(of->timer_next) <= now &&
		       (holdings++ < FIRE_PASS || fb_sched_empty(to))) {
			d = fire_some(of, now);
			n += make_ready(to, d.ready, !n);
			n += make_calls(to, d.calls);
		}
		of = of + 1 < g->proc + g->nproc ? of + 1 : g->proc;
	}
	to->fired += n;
	return n;
}

uint64_t fb_timer_earliest(const struct fb_group *g)
{
	uint64_t next = FB_NEVER, t;

	for (uint32_t i = 0; i < g->nproc; i++) {
		t = FB_READ(g->proc[i].timer_next);
		if (t < next)
			next = t;
	}
	return next;
}
