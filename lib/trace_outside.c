// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * trace_outside.c - another process has this one record: fiberctl trace
 *
 * It writes one word here, fb_tr.asked, and reads the rings. Nobody is stopped, and no
 * thread of ours waits for it: owners of processors see the word at their looks, and
 * when they arrive. Who asks writes another number at least once a second, and 0 at
 * the end. If it dies instead, its number stays the same, and that ends it as well,
 * after FB_OUTSIDE_LEASE_MS: what we were made to do, we undo by ourselves.
 *
 *	who asks		owner of p, at a look
 *	asked = k		asked != seen: seen_at = p->clock, seen = asked
 *				OFF -> BUSY -> ON: the rings are there, on
 *				ON, no p->trace: take part, a window begins
 *	asked = 0, or dies	asked is 0, or seen_at is too long ago:
 *				ON -> BUSY -> OFF: off, asked = 0, memory back
 *				not ON, p->trace: p is as it was before
 *
 * The state is changed by compare-exchange, p by its owner alone: processors take part
 * one by one, and end so. The rings stay mapped until the runtime ends, as one may
 * be written by who has not looked yet; but the memory of their events goes back. They
 * count on, and who asks takes what comes after it asked.
 *
 * While FIBER_TRACE or FIBER_STATS record, nothing of this is done: who asks sees `on`
 * without ON, and reads what is recorded anyway.
 *
 * Off, all this costs a load at each look, which is at one pass of 61.
 */
#include "pass.h"
#include "trace.h"

#define EVENTS	65536
#define COST	3

/* Units of p->clock. */
#define LEASE	((FB_OUTSIDE_LEASE_MS * 1000000ull >> FB_CLOCK_SHIFT) << 2)

static bool wanted(struct fb_processor *p)
{
	uint32_t asked = FB_READ(fb_tr.asked);

	if (asked != FB_READ(fb_tr.seen)) {
		FB_WRITE(fb_tr.seen_at, p->clock);
		FB_WRITE(fb_tr.seen, asked);
	}
	/* Another owner's clock may be newer than ours. */
	return asked && (int32_t)(p->clock - FB_READ(fb_tr.seen_at)) <
			(int32_t)LEASE;
}

static bool change(uint32_t from, uint32_t to)
{
	/* Pairs with the releases below: who comes later sees what was done. */
	return __atomic_compare_exchange_n(&fb_tr.outside, &from, to, false,
					   __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
}

static void begin(void)
{
	int r = 0;

	if (FB_READ(fb_tr.on) || !change(FB_OUTSIDE_OFF, FB_OUTSIDE_BUSY))
		return;
	if (!fb_tr.ring)
		r = fb_trace_rings(EVENTS, COST);
	if (r) {
		FB_WRITE(fb_tr.asked, 0);	/* says no */
		/* Pairs with the exchange in change. */
		FB_RELEASE(fb_tr.outside, FB_OUTSIDE_OFF);
		return;
	}
	FB_WRITE(fb_tr.began, fb_clock());
	FB_WRITE(fb_tr.stopped, 0);
	FB_WRITE(fb_upcall_trace, 1);
	/* Pairs with the acquire in fb_trace_ready_global. */
	FB_RELEASE(fb_tr.on, true);
	/* Pairs with the acquires of the state. */
	FB_RELEASE(fb_tr.outside, FB_OUTSIDE_ON);
}

static void end(void)
{
	uint32_t seen = FB_READ(fb_tr.seen);

	if (!change(FB_OUTSIDE_ON, FB_OUTSIDE_BUSY))
		return;
	FB_WRITE(fb_upcall_trace, 0);
	FB_WRITE(fb_tr.on, false);
	FB_WRITE(fb_tr.stopped, 1);
	/* Unless somebody asks anew just now. */
	__atomic_compare_exchange_n(&fb_tr.asked, &seen, 0, false,
				    __ATOMIC_RELAXED, __ATOMIC_RELAXED);
	fb_trace_forget();
	/* Pairs with the exchange in change. */
	FB_RELEASE(fb_tr.outside, FB_OUTSIDE_OFF);
}

static void take_part(struct fb_processor *p)
{
	struct fb_carrier *c = fb_current();

	c->returned.tv_sec = 0;
	fb_trace_join(p, c);
}

static void be_as_before(struct fb_processor *p)
{
	p->tracing = 0;
	p->pool_max = FB_POOL_MAX;
	p->trace = NULL;
	fb_sched_look_at(p, p->look_next);
}

void fb_outside_look(struct fb_processor *p)
{
	if (wanted(p))
		begin();
	/* Pairs with the release in begin. */
	else if (FB_ACQUIRE(fb_tr.outside) == FB_OUTSIDE_ON)
		end();
	/* Pairs with the release in begin. */
	if (FB_ACQUIRE(fb_tr.outside) == FB_OUTSIDE_ON) {
		if (!p->trace)
			take_part(p);
	} else if (p->trace && !FB_READ(fb_tr.on)) {
		be_as_before(p);
	}
}
