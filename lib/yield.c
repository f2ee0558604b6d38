// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * yield.c - the calling fiber lets the others run
 *
 * One pass of sched.c, and the caller becomes the newest of the ring. Nearly always
 * nothing is to be heeded: fiber_yield looks at all that might be, writes nothing
 * until it knows, and else leaves the call to yield_any. So it calls nothing that
 * returns, and needs no frame: only what a switch costs.
 *
 *   what may be			where it is seen
 *   another processor, or none,	fb_calm: one load
 *   a preemption that was put off
 *   carriers that wait to continue,	fb_info.either, pollers
 *   or that could be woken
 *   timers, I/O, traces, pins ...	p->look_at
 *   a fiber made ready just now	q.next
 *   float units, exceptions, canary	fb_thread_changed, self->flags
 *   nothing is ready; very many are	tail - head
 *   the ring seems full		q.limit
 */
#include "pass.h"
#include "trace.h"

/* ---- whatever may be ---- */

/* Nothing to switch to, or someone else should have the processor. */
static __attribute__((noinline)) void yield_slow(struct fb_carrier *c,
						 struct fb_processor *p)
{
	bool pending = FB_READ(c->page->pending);

	p->idle_passes++;
	fb_sched_heed(c);
	if (c->locked) {
		fb_pin_yield(c, p);
	} else if (fb_sched_retired(p)) {
		fb_sched_give(c, p, true);
	} else if (FB_READ(p->info->waiting) &&
		   (pending || fb_sched_give_due(p))) {
		if (pending && fb_unlikely(p->trace != NULL))
			fb_trace_preempt(p, c->cur);
		fb_sched_give(c, p, false);
	}
	fb_leave(c);
}

static inline __attribute__((always_inline)) void
yield(struct fb_carrier *c, struct fb_processor *p, uint32_t pending)
{
	struct fiber *f = fb_pick(p);

	if (fb_unlikely(!f)) {
		f = FB_READ(p->info->waiting) || c->locked ||
		    fb_sched_retired(p) ? NULL : fb_sched_global_get(p);
		if (!f) {
			yield_slow(c, p);
			return;
		}
		if (fb_unlikely(p->tracing))
			fb_trace_switch(p, f);
	}
	fb_yield_into(c, p, f, pending);
}

/* A preemption was put off; or there is a seed. */
static void yield_pending(struct fb_carrier *c, struct fb_processor *p)
{
	if (fb_rt.seeded)
		fb_seed_yields();
	else
		fb_sched_look_at(p, 0);
	yield(c, p, fb_rt.seeded);
}

/* The caller is entered, in_fiber == 0, whatever else may be. */
static __attribute__((noinline)) void yield_any(struct fb_carrier *c)
{
	struct fb_processor *p = fb_enter(c);

	if (fb_unlikely(FB_READ(c->page->pending)))
		yield_pending(c, p);
	else
		yield(c, p, 0);
}

/* ---- nothing but a switch ---- */

/* Does a pass, or what is to be done with it, need more than a look at the ring? */
static inline __attribute__((always_inline)) bool
rare(const struct fb_carrier *c, const struct fb_processor *p,
     const struct fiber *self)
{
	return fb_unlikely(p->pass + 1 >= p->look_at ||
			   FB_READ(p->info->either) |
			   FB_READ(fb_rt.pollers) || FB_GLANCE(p->q.next) ||
			   self->flags & FB_F_STOPS || fb_thread_changed(c));
}

/*
 * Is the oldest of the ring, of tail t, *f now, as by fb_runq_pop, and is there room
 * for another? It may be empty, too, or so long that a prefetch pays.
 */
static inline __attribute__((always_inline)) bool
pop(struct fb_runq *q, uint32_t t, struct fiber **f)
{
	/* Pairs with the head compare-exchange of thieves. */
	uint32_t h = FB_ACQUIRE(q->head);

	if (fb_unlikely(t - h - 1 >= FB_RUNQ_FAR || t == q->limit))
		return false;
	*f = *fb_runq_slot(q, h);
	if (fb_likely(!q->shared)) {
		q->head = h + 1;
		return true;
	}
	/* Pairs with the same in steal_one(). */
	return __atomic_compare_exchange_n(&q->head, &h, h + 1, false,
					   __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
}

/* With something of its own to put back. */
static __attribute__((noinline)) void resume_any(struct fb_carrier *c,
						 struct fiber *self)
{
	fb_sched_resume(c, self);
}

/* The caller is the newest of p's ring, of tail t so far, and f goes on. */
static inline __attribute__((always_inline)) void
go_on_as(struct fb_carrier *c, struct fb_processor *p, struct fiber *f,
	 uint32_t t)
{
	struct fiber *self = c->cur;
	struct fb_ctx *me = &self->ctx;

	p->pass++;
	fb_sched_turn(p);
	self->err = *c->errno_loc;
	FB_PROBE(switch, self->id, f->id, p->index);
	fb_runq_publish_to(&p->q, t + 1);
	c->cur = f;
	c = fb_switch_push(c, &me, &f->ctx, fb_sched_push_at(p, t));
	self = (struct fiber *)me;
	if (fb_unlikely(self->flags & FB_F_RESUMES))
		resume_any(c, self);
	else
		fb_sched_resume_plain(c, self);
}

FB_EXPORT void fiber_yield(void)
{
	struct fb_carrier *c = fb_current();
	struct fb_cpage *page;
	struct fb_processor *p;
	struct fiber *f;
	uint32_t t;

	if (fb_unlikely(!c))
		return;
	page = c->page;
	FB_WRITE(page->in_fiber, 0);
	fb_barrier();		/* Pairs with the backend: see fb_cpage. */
	if (fb_calm(c, page)) {
		p = c->proc;
		fb_san_acquire(p);
		t = p->q.tail;
		if (!rare(c, p, c->cur) && pop(&p->q, t, &f)) {
			go_on_as(c, p, f, t);
			return;
		}
	}
	yield_any(c);
}
