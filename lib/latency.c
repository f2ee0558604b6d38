// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * latency.c - fibers that run before others
 *
 * A fiber of the latency class does not go to the ring q when it becomes ready,
 * but to a ring of its own, p->soon, by the same protocol (runq.h): its processor
 * takes the next from there, thieves look there first. When it yields, it waits
 * its turn in q like everybody. It preempts nobody.
 *
 * The bound. Of FB_HURRIED_MAX + 1 turns in a row on a processor, one at least
 * goes to q, if anybody is there; the slow look, at timers and at the global
 * queue, comes by number of passes as ever. The global queue has two lists with
 * the same bound. How long a turn is, the quantum says, as for all.
 *
 * For those who have none of them it costs nothing: while p->soon has entries,
 * p->hurry is set and p->look_at 0, so that every pass is a slow one. It is the
 * owner who sets and clears the two, and takes part of p->watch for it: whoever
 * composes the takeover word adds that, so it says READY all the while.
 *
 *	owner				thief
 *	push to soon (release)		takes the last of soon
 *	hurry = 1, look_at = 0		may leave takeover: hurry is still set
 *	watch, takeover |= READY
 *	next pass: soon is empty,
 *	  hurry = 0, watch as before
 *
 * So a thief's success leaves a stale READY until the owner's next pass: at
 * worst, a block before it gives the processor away to no avail.
 *
 * fiber_yield_to looks for one fiber in the queues of its processor and has those
 * before it in q moved to soon, in order: they were next, and stay so.
 */
#include "pass.h"
#include "trace.h"

#define SCAN_MAX	256

/* ---- the queue ---- */

bool fb_latency_push(struct fb_processor *p, struct fiber *f)
{
	if (fb_unlikely(fb_runq_full(&p->soon)) && !fb_runq_room(&p->soon))
		return false;
	fb_runq_push(&p->soon, f);
	p->hurry = 1;
	p->look_at = 0;
	FB_WRITE(p->watch, p->watch | FB_TAKEOVER_READY);
	return true;
}

/* soon is empty. */
static void calm(struct fb_processor *p)
{
	p->hurry = 0;
	fb_sched_look_at(p, p->look_next);
	if (!(p->watch & FB_TAKEOVER_WATCH))
		FB_WRITE(p->watch, 0);
}

struct fiber *fb_latency_pick(struct fb_processor *p)
{
	struct fiber *f;

	if (p->hurried >= FB_HURRIED_MAX && !fb_runq_empty(&p->q)) {
		p->hurried = 0;
		return NULL;
	}
	f = fb_runq_pop(&p->soon);
	if (fb_runq_empty(&p->soon))
		calm(p);
	if (f) {
		p->hurried++;
		fb_sched_turn(p);
	}
	return f;
}

/* ---- classes ---- */

FB_EXPORT int fiber_set_class(unsigned int sched_class)
{
	struct fb_carrier *c = fb_current();
	int old;

	if (!c)
		return -EPERM;
	if (sched_class > FIBER_LATENCY)
		return -EINVAL;
	old = c->cur->flags & FB_F_LATENCY ? FIBER_LATENCY : FIBER_NORMAL;
	if (sched_class == FIBER_LATENCY)
		c->cur->flags |= FB_F_LATENCY;
	else
		c->cur->flags &= (uint16_t)~FB_F_LATENCY;
	return old;
}

/* ---- to one fiber ---- */

/* How many stand before f in the ring; or -1. A hint: thieves take some. */
static int find_in(struct fb_runq *q, const struct fiber *f)
{
	uint32_t h = FB_READ(q->head);

	for (int i = 0; i < SCAN_MAX && h + i != q->tail; i++)
		if (*fb_runq_slot(q, h + i) == f)
			return i;
	return -1;
}

/* Take f out of q, those before it to soon. False: it is gone. */
static bool take_from(struct fb_processor *p, struct fb_runq *q,
		      const struct fiber *f)
{
	struct fiber *g;

	for (int n = find_in(q, f); n >= 0; n--) {
		g = fb_runq_pop(q);
		if (g == f)
			return true;
		if (!g)
			break;
		if (!fb_latency_push(p, g))
			fb_sched_ready_last(p, g);
	}
	return false;
}

/* f is taken out of p's queues; false: it is not there. */
static bool take(struct fb_processor *p, struct fiber *f)
{
	struct fiber *g;
	bool left;

	if (FB_READ(p->q.next) == f) {
		g = fb_runq_swap_next(&p->q, NULL);
		if (g == f)
			return true;
	}
	if (!fb_runq_empty(&p->q) && p->q.tail != FB_READ(p->q.head) &&
	    *fb_runq_slot(&p->q, p->q.tail - 1) == f)
		return fb_runq_pop_newest(&p->q, &left);
	return take_from(p, &p->q, f);
}

FB_EXPORT int fiber_yield_to(fiber_t *f)
{
	struct fb_carrier *c = fb_current();
	struct fb_processor *p;

	if (!c)
		return -EPERM;
	if (!f || f == c->cur)
		return -EINVAL;
	p = fb_enter(c);
	/* As for run-next: the others have their turn all the same. */
	if (++p->pass < (p->locked ? 0 : p->marks & FB_RECORDING ? p->look_next : p->look_at) &&
	    !FB_READ(c->page->pending) && !FB_READ(p->info->waiting) &&
	    take(p, f)) {
		if (fb_unlikely(p->tracing))
			fb_trace_switch(p, f);
		fb_yield_into(c, p, f, 0);
		return 0;
	}
	p->idle_passes++;
	fb_leave(c);
	fiber_yield();
	return -EAGAIN;
}
