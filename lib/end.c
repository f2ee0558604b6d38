// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * end.c - how a fiber ends
 *
 * The common end needs no atomic: if the newest entry of our ring is a fiber
 * that is inside fiber_spawn of this child (its .child says so), and the child
 * never asked for its own handle (FB_F_SHARED), then nobody in the world has
 * the handle yet: fiber_spawn writes *out when its caller goes on. Plain
 * stores do then, even from the stack that is given up: whoever takes the
 * block from our pool needs this carrier to switch first.
 *
 * .child is the child's id, not its address: a detached child may end elsewhere
 * while the caller is still in a queue, and its block be used for another fiber,
 * which would be taken for the child, and its end hidden from who joins it.
 */
#include "held.h"
#include "pass.h"
#include "pool.h"
#include "scope.h"
#include "trace.h"

/* In .looks: any flag but that, or a class. */
#define NOT_PLAIN	((UINT16_MAX & ~(uint32_t)FB_F_POOL) | 0xffu << 24)
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ &&
	       offsetof(struct fiber, klass) == offsetof(struct fiber, looks) + 3 &&
	       offsetof(struct fiber, flags) == offsetof(struct fiber, looks), "looks");

/* The fiber inside fiber_spawn of f, if it is our newest ready one; taken. */
static inline __attribute__((always_inline)) struct fiber *
take_parent(struct fb_processor *p, struct fiber *f, bool *left)
{
	struct fb_runq *q = &p->q;
	struct fiber *parent;

	if (fb_unlikely(FB_READ(q->head) == q->tail))
		return NULL;
	/* May be stolen, even dead by now, but blocks stay mapped. */
	parent = *fb_runq_slot(q, q->tail - 1);
	if (fb_unlikely(FB_READ(parent->child) != f->id ||
			f->looks & NOT_PLAIN))
		return NULL;
	return fb_likely(fb_runq_pop_newest(q, left)) ? parent : NULL;
}

/* f goes, its parent, taken by take_parent, goes on; the pool is not full. */
static inline __attribute__((always_inline, noreturn)) void
end_into(struct fb_carrier *c, struct fb_processor *p, struct fiber *f,
	 struct fiber *parent, uint32_t takeover)
{
	FB_PROBE(exit, f->id);
	FB_PROBE(switch, f->id, parent->id, p->index);
	FB_COUNT(p->ended);
	if (f->join == FB_JOIN_DETACHED)
		fb_stack_put_fast(p, f);
	/*
	 * DONE, or GONE of DETACHED: debug.c sees who is alive by it.
	 * Pairs with the acquires of the word in fiber_join.
	 */
	FB_RELEASE(f->join, f->join | FB_JOIN_DONE);
	c->cur = parent;
	FB_WRITE(p->page->takeover, takeover | p->watch);
	fb_switch_last(c, &f->ctx, &parent->ctx);
}

/* Whatever the straight way is not for. */
static __attribute__((noinline, noreturn)) void end_slow(void *result)
{
	struct fb_carrier *c = fb_current();
	struct fb_processor *p;
	struct fiber *f, *parent = NULL;
	bool left;

	if (!c)
		fb_die("a fiber ended in the child of a fork");
	f = c->cur;
	if (f->flags & FB_F_CHECKS)
		fb_held_ends(c);
	if (f->flags & FB_F_LOCAL) {
		fb_enter(c);	/* fb_fiber_end may have, half: they are fiber code */
		fb_leave(c);
		fb_local_end();
	}
	if (f->flags & FB_F_CHECKS)
		fb_held_end(fb_current());
	if (f->flags & FB_F_ENDS)
		fb_scope_end(f, result);
	c = fb_current();
	if (f->flags & FB_F_LOCKED)
		fb_pin_end(c);
	p = fb_enter(c);
	f = c->cur;
	f->result = result;
	if (f->flags & FB_F_TIMES)
		fb_times_end(f);
	if (f->canary)
		fb_guard_check(f);
	fb_sched_suspend(c, NULL);
	if (fb_unlikely(p->tracing))
		fb_trace_end(p, f);
	if (!FB_READ(c->page->pending) &&
	    p->pool_count < FB_POOL_MAX &&
	    !(FB_READ(p->info->waiting) && fb_sched_give_due(p)))
		parent = take_parent(p, f, &left);
	if (parent && fb_unlikely(p->tracing))
		fb_trace_switch(p, parent);
	if (parent)
		end_into(c, p, f, parent,
			 fb_runq_empty(&p->q) ? 0 : FB_TAKEOVER_READY);
	FB_PROBE(exit, f->id);
	if (!(f->flags & FB_F_OURS))
		FB_COUNT(p->ended);
	if (fb_unlikely(fb_rt.seeded) && f->flags & FB_F_POOL)
		fb_pool_left(fb_group_of(f));
	fb_sched_quit(c, p, fb_join_bury, f);
}

/*
 * No value lives across a call here, so nothing needs to be pushed. Exceptions:
 * a function that returns has left its handlers.
 */
_Noreturn void fb_fiber_end(void *result)
{
	struct fb_carrier *c = fb_current();
	struct fb_cpage *page;
	struct fb_processor *p;
	struct fiber *f, *parent;
	bool left;

	if (fb_unlikely(!c))
		end_slow(result);
	page = c->page;
	FB_WRITE(page->in_fiber, 0);
	fb_barrier();		/* Pairs with the backend: see fb_cpage. */
	p = c->proc;
	if (fb_unlikely(!fb_calm(c, page) ||
			FB_READ(p->info->waiting) || fb_fpu_changed()))
		end_slow(result);
	f = c->cur;
	f->result = result;
	if (fb_unlikely(p->pool_count >= p->pool_max))
		end_slow(f->result);
	parent = take_parent(p, f, &left);
	if (fb_unlikely(!parent))
		end_slow(c->cur->result);
	end_into(c, p, f, parent, left ? FB_TAKEOVER_READY : 0);
}

FB_EXPORT _Noreturn void fiber_exit(void *result)
{
	struct fb_carrier *c = fb_current();

	if (!c)
		fb_die("fiber_exit outside a fiber");
	if (fb_unlikely(c->cur->coro != NULL)) {
		c->cur->flags |= FB_F_SHARED;	/* fb_join_bury() must see it */
		fb_coro_fiber_exit(c->cur->coro);
		c = fb_current();
	}
	if (c->cur->once)
		fb_once_exit(c->cur);
	end_slow(result);
}
