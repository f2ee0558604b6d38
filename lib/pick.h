/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * pick.h - one pass of the scheduler, for who parks
 *
 * Inline, because a fiber comes back from a park to another return address than
 * the one that the processor predicts, on each level of calls: so those that
 * park most do it in their own frame. What a pass does is said in sched.c.
 */
#ifndef FB_PICK_H
#define FB_PICK_H

#include "fb.h"
#include "probe.h"

static inline __attribute__((always_inline)) struct fiber *
fb_pick_fast(struct fb_processor *p)
{
	struct fiber *f;

	if (fb_unlikely(FB_READ(p->q.next) != NULL)) {
		f = fb_runq_swap_next(&p->q, NULL);
		if (f)		/* inherits the quantum */
			return f;
	}
	f = fb_runq_pop(&p->q);
	fb_sched_turn(p);
	return f;
}

/* The slow look at timers, the global queue, who waits. sched.c */
struct fiber *fb_sched_pick_slow(struct fb_processor *p);

/* The next fiber of p, or NULL: the root has something to do. */
static inline __attribute__((always_inline)) struct fiber *
fb_pick(struct fb_processor *p)
{
	if (fb_unlikely(++p->pass >= p->look_at ||
			FB_READ(p->info->waiting)))
		return fb_sched_pick_slow(p);
	return fb_pick_fast(p);
}

/* Bookkeeping before a switch from self to f (NULL: to the root). */
static inline __attribute__((always_inline)) struct fb_ctx *
fb_dispatch(struct fb_carrier *c, struct fb_processor *p, struct fiber *self,
	    struct fiber *f)
{
	if (fb_unlikely(!f)) {
		fb_sched_rest(c, p);
		return &c->root;
	}
	FB_PROBE(switch, self->id, f->id, p->index);
	c->cur = f;
	return &f->ctx;
}

/*
 * The calling fiber becomes the newest of the ring, f goes on. pending: what
 * page->pending is to be then: 0, or fb_rt.seeded.
 */
static inline __attribute__((always_inline)) void
fb_yield_into(struct fb_carrier *c, struct fb_processor *p, struct fiber *f,
	      uint32_t pending)
{
	struct fiber *self = c->cur;
	struct fb_ctx *me = &self->ctx;

	/* Here it moves no other instruction: seen by counting. */
	FB_PROBE(switch, self->id, f->id, p->index);
	fb_sched_suspend(c, self);
	FB_WRITE(c->page->pending, pending);
	if (fb_unlikely(fb_runq_full(&p->q)))
		fb_sched_make_room(p);
	fb_sched_wake(p);
	fb_runq_publish(&p->q);
	c->cur = f;
	c = fb_switch_push(c, &me, &f->ctx, fb_sched_push(p));
	fb_sched_resume(c, (struct fiber *)me);
}

/* A switch function: give a lock back. wait.c */
void fb_unlock_off_stack(struct fb_carrier *c, void *lock);

/*
 * Park the calling fiber, which holds the lock of the one object that can end
 * its wait (its node is sole). Returns with in_fiber == 1, on whatever carrier.
 *
 * In a solo section the lock is given back before the switch: a plain thread
 * may then find the fiber and make it ready, but only this processor could run
 * it, and it does not look for one before it is off this stack.
 */
static inline __attribute__((always_inline)) void
fb_park_sole(struct fb_carrier *c, struct fb_processor *p, fb_lock_t *lock,
	     unsigned int why)
{
	struct fiber *self = c->cur;
	struct fb_ctx *to;

	FB_WRITE(self->why, (uint8_t)why);
	FB_PROBE(park, self->id, self->why);
	fb_sched_suspend(c, self);
	fb_sched_unpend(c);
	to = fb_dispatch(c, p, self, fb_pick(p));
	self->w.kind = p->clock;	/* and FB_FIBER */
	fb_sched_publish(p);
	if (fb_likely(p->solo)) {
		FB_RELEASE(p->solo, 0);	/* Pairs with the wait in solo_end(). */
		c = fb_switch(c, &self->ctx, to);
	} else {
		c = fb_switch_call(c, &self->ctx, to, fb_unlock_off_stack,
				   lock);
	}
	fb_sched_resume(c, self);
}

#endif
