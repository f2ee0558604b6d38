// SPDX-License-Identifier: GPL-2.0-only
/*
 * handoff.c - which carrier has which processor, and why
 *
 * Context: any, up to "runqueue lock held, irqs off" (fiber_handoff_block and
 * _leave, called by the scheduler hooks). So group->lock is raw, nothing is
 * woken, allocated or faulted under it, and the hooks only move a processor to
 * FLIGHT; an irq_work on the same CPU places it a moment later.
 *
 * Who gets one: first the carriers that wait to continue, in order of arrival;
 * then, if the library wants somebody to take over, a spare; else nobody. A
 * carrier that was preempted ("turned") ranks as if it arrived a quantum later,
 * so those that are back from a block go before it, but not for ever. Between
 * turned carriers and the library's ready fibers a processor takes turns: a
 * carrier has its quantum, then the ready fibers have one, spare after spare if
 * they block.
 *
 * Nobody wants it: the processor stays with its blocked owner (hold ==
 * KEEPING), which costs one atomic there and one at the return. It counts as
 * available, because a publisher of work may take it any time:
 *
 *   sched_out                        publisher, or a carrier that comes to wait
 *     hold = KEEPING, avail++          publish work / waiting++
 *     full barrier                     full barrier
 *     read work, waiting               read avail / look for KEEPING
 *     if any: try KEEPING -> RUNNING   if any: try KEEPING -> LOST
 *
 * so at least one of them sees the other, and the cmpxchg picks the winner.
 *
 * Somebody wants it: it is in flight for the grace time first, so that a short
 * block costs no wake-up of a spare. Its last owner, or any carrier that
 * arrives to continue, takes it out of flight at once. One timer a processor is
 * armed lazily: a flight that begins while it is armed does not touch it, the
 * expiry looks at ->since and re-arms. So a fast ping-pong pays for one
 * interrupt a grace time and not for one a block.
 *
 * A carrier that comes back from a block often runs because the kernel let it
 * preempt the very owner of the processor it needs (a wake-up). To make it wait
 * would mean two more switches; so it takes the processor, and the owner, when
 * it is switched in again, waits in its place (ASIDE).
 */
#include "compat.h"
#include "handoff.h"
#include "trace.h"

static u64 grace_left(struct fiber_processor *p)
{
	u64 past = ktime_get_mono_fast_ns() - p->since;

	return p->since && past < p->group->grace_ns ? p->group->grace_ns - past : 0;
}

/* Only preempted carriers wait, and none has waited for a quantum. */
static bool nobody_due(struct fiber_carrier *first)
{
	return !first || (first->turned && first->rank > ktime_get_mono_fast_ns());
}

/**
 * fiber_queue_first - do ready fibers go before the first carrier that waits?
 * @p: to be placed
 * @first: of group->ready
 */
bool fiber_queue_first(struct fiber_processor *p, struct fiber_carrier *first)
{
	if (!first->turned || !fiber_ready_work(p))
		return false;
	return !p->queue_turn ||
	       ktime_get_mono_fast_ns() - p->turn_since < p->group->quantum_ns;
}

/*
 * Find an owner for a processor in flight. Returns whom to wake, or nobody and
 * in *grace how long to wait first (0: not at all).
 */
static struct task_struct *place(struct fiber_processor *p, u64 *grace)
{
	struct fiber_group *g = p->group;
	struct fiber_carrier *c = fiber_first_ready(g);

	if (c && !g->dead && !fiber_queue_first(p, c))
		return fiber_grant(p, c, p->why);
	if (g->dead || (!c && !fiber_wanted(p))) {
		fiber_rest(p);
		p->since = 0;
		/* avail++ before the look. Pairs with the publisher's (uapi). */
		smp_mb();
		if (g->dead || !fiber_wanted(p))
			return NULL;
	}
	*grace = grace_left(p);
	if (*grace)
		return NULL;
	if (fiber_first_spare(g))
		return fiber_grant(p, fiber_first_spare(g), p->why);
	if (c) {
		p->short_of_spares = true;
		return fiber_grant(p, c, p->why);
	}
	if (p->state == FIBER_FLIGHT)
		fiber_rest(p);
	return fiber_call_keeper(g);
}

static void settle(struct fiber_processor *p)
{
	struct fiber_group *g = p->group;
	struct task_struct *task = NULL, *keeper = NULL;
	unsigned long flags;
	u64 grace = 0;

	rcu_read_lock();
	flags = fiber_group_lock(g);
	if (p->state == FIBER_FLIGHT)
		task = place(p, &grace);
	if (task)
		keeper = fiber_miss_spare(g);
	if (p->grace_armed)
		grace = 0;
	else
		p->grace_armed = grace;
	fiber_group_unlock(g, flags);
	if (grace)	/* only one context at a time sees grace_armed turn true */
		hrtimer_start(&p->grace, ns_to_ktime(grace),
			      HRTIMER_MODE_REL_PINNED_HARD);
	fiber_wake(task);
	fiber_wake(keeper);
	rcu_read_unlock();
}

/* Hard irq, the CPU where the owner blocked. */
static void settle_work(struct irq_work *work)
{
	settle(container_of(work, struct fiber_processor, settle));
}

/* Hard irq. */
static enum hrtimer_restart grace_over(struct hrtimer *timer)
{
	struct fiber_processor *p = container_of(timer, struct fiber_processor, grace);
	unsigned long flags = fiber_group_lock(p->group);

	p->grace_armed = false;
	fiber_group_unlock(p->group, flags);
	settle(p);
	return HRTIMER_NORESTART;
}

/**
 * fiber_handoff_init - a processor is born idle
 * @g: its group, not yet visible to others
 * @p: zeroed, with page and index
 */
void fiber_handoff_init(struct fiber_group *g, struct fiber_processor *p)
{
	p->group = g;
	p->state = FIBER_IDLE;
	list_add_tail(&p->node, &g->idle);
	g->nr[FIBER_IDLE]++;
	atomic_inc(fiber_avail(g));
	WRITE_ONCE(g->info->idle, g->nr[FIBER_IDLE]);
	WRITE_ONCE(p->page->owner, FIBER_NO_CARRIER);
	p->settle = IRQ_WORK_INIT_HARD(settle_work);
	fiber_quantum_hurry_init(p);
	fiber_compat_timer(&p->grace, grace_over, HRTIMER_MODE_REL_PINNED_HARD);
}

/* The owner leaves p behind. rq lock held, irqs off. */
static void fly(struct fiber_carrier *c, u32 why, u64 since)
{
	struct fiber_processor *p = c->processor;
	struct fiber_group *g = c->group;
	unsigned long flags = fiber_group_lock(g);
	bool now;

	fiber_take(p, why, since);
	now = !p->grace_armed || !since || fiber_first_ready(g);
	fiber_group_unlock(g, flags);
	if (now)
		irq_work_queue(&p->settle);
}

static bool wanted_by_any(struct fiber_processor *p)
{
	return fiber_wanted(p) || READ_ONCE(p->group->info->waiting);
}

/* KEEPING, unless somebody wants p meanwhile. True: c keeps it (or lost it). */
static bool keep(struct fiber_carrier *c, struct fiber_processor *p)
{
	atomic_set(&c->hold, FIBER_KEEPING);
	atomic_inc(fiber_avail(p->group));
	/* Pairs with the barrier in enqueue_ready and the publisher's (uapi). */
	smp_mb__after_atomic();
	if (!wanted_by_any(p))
		return true;
	if (atomic_cmpxchg(&c->hold, FIBER_KEEPING, FIBER_RUNNING) != FIBER_KEEPING)
		return true;
	atomic_dec(fiber_avail(p->group));
	return false;
}

/* Out of line, as unblock_lost: a processor that is kept must cost next to nothing. */
static noinline void block_away(struct fiber_carrier *c)
{
	u64 grace = c->group->grace_ns;

	trace_block(c, false);
	c->need = true;
	WRITE_ONCE(c->page->handoffs, fiber_count(c, FIBER_STAT_HANDOFFS));
	fly(c, FIBER_EVENT_BLOCK, grace ? ktime_get_mono_fast_ns() : 0);
}

/**
 * fiber_handoff_block - a carrier that owns a processor went to sleep in fiber
 * @c: current
 *
 * Context: sched_out, rq lock held, irqs off.
 */
void fiber_handoff_block(struct fiber_carrier *c)
{
	struct fiber_processor *p = c->processor;

	WRITE_ONCE(c->page->blocks, fiber_count(c, FIBER_STAT_BLOCKS));
	/* The usual reason first; keep() looks at all of them. */
	if (!READ_ONCE(p->page->takeover) && keep(c, p))
		trace_block(c, true);
	else
		block_away(c);
}

/**
 * fiber_handoff_aside - another task runs in place of a carrier in fiber
 * @c: current, runnable, owns a processor
 *
 * Context: sched_out, rq lock held, irqs off. The processor stays, and is not
 * available; but a carrier that comes to wait on this CPU takes it.
 */
void fiber_handoff_aside(struct fiber_carrier *c)
{
	atomic_set(&c->hold, FIBER_ASIDE);
}

static noinline void unblock_lost(struct fiber_carrier *c)
{
	/* Taken under the lock: once we held it, the taker has finished. */
	unsigned long flags = fiber_group_lock(c->group);

	atomic_set(&c->hold, FIBER_RUNNING);
	fiber_group_unlock(c->group, flags);
	c->need = true;
}

/**
 * fiber_handoff_unblock - a carrier that kept its processor runs again
 * @c: current
 *
 * Context: sched_in, preemption off.
 */
void fiber_handoff_unblock(struct fiber_carrier *c)
{
	int hold = atomic_read(&c->hold);

	/* Others change it to LOST only. */
	if (hold == FIBER_LOST ||
	    atomic_cmpxchg(&c->hold, hold, FIBER_RUNNING) != hold)
		unblock_lost(c);
	else if (hold == FIBER_KEEPING)
		atomic_dec(fiber_avail(c->group));
}

/**
 * fiber_handoff_leave - a carrier has no use for its processor, if it owns one
 * @c: current, not waiting
 * @why: FIBER_EVENT_* for the next owner
 *
 * Context: irqs off (so that nobody else takes it meanwhile), up to sched_out of
 * a dying task.
 */
void fiber_handoff_leave(struct fiber_carrier *c, u32 why)
{
	if (c->processor)
		fly(c, why, 0);
}

/**
 * fiber_handoff_edge - a processor for a carrier about to enter user mode
 * @c: current, lost its processor
 *
 * Context: irqs off. Returns true if it may go on: it owns one, or the group
 * is dead. False: it must queue (others are before it, or none is free).
 */
bool fiber_handoff_edge(struct fiber_carrier *c)
{
	struct fiber_group *g = c->group;
	struct fiber_processor *p = NULL;
	struct fiber_carrier *first;
	unsigned long flags = fiber_group_lock(g);
	bool go = g->dead || c->processor, own;

	first = fiber_first_ready(g);
	if (!go && nobody_due(first))
		p = fiber_find(g, c);
	if (p) {
		own = p->state == FIBER_FLIGHT && p->last == c;
		fiber_count(c, own ? FIBER_STAT_GRACE : FIBER_STAT_EDGE);
		fiber_own(p, c, FIBER_EVENT_IDLE);
		trace_return(c, own ? FIBER_BACK_GRACE : FIBER_BACK_EDGE);
		go = true;
	}
	fiber_group_unlock(g, flags);
	return go;
}
