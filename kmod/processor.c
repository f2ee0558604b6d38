// SPDX-License-Identifier: GPL-2.0-only
/*
 * processor.c - where each processor is, and the queues of who waits for one
 *
 * Context: any, group->lock held, irqs off; a runqueue lock may be held as
 * well. So nothing here wakes, allocates, arms a timer or touches user memory:
 * who must be woken is returned to the caller.
 *
 * Transitions of a processor, each made by one function:
 *
 *   IDLE, FLIGHT, OWNED -> OWNED   fiber_own()
 *   OWNED -> FLIGHT                fiber_take()    its owner blocked, died or detached
 *   OWNED, FLIGHT -> IDLE          fiber_rest()
 *
 * Which of them, when and why is handoff.c's and wait.c's business.
 */
#include "compat.h"
#include "handoff.h"
#include "trace.h"

/* Debug: owners + idle + in flight = N, and owner <-> processor agree. */
static void check(struct fiber_group *g)
{
	u32 n[FIBER_STATES] = {}, i;
	bool bad = false;

	for (i = 0; i < g->nr_processors; i++) {
		struct fiber_processor *p = &g->processor[i];

		n[p->state]++;
		bad |= (p->state == FIBER_OWNED) != !!p->owner;
		bad |= p->owner && p->owner->processor != p;
	}
	for (i = 0; i < FIBER_STATES; i++)
		bad |= n[i] != g->nr[i];
	/* Counted, not printed: the runqueue lock may be held. See fdinfo. */
	g->count[FIBER_COUNT_VIOLATIONS] += bad;
}

unsigned long fiber_group_lock(struct fiber_group *g)
	__acquires(&g->lock)
{
	unsigned long flags;

	raw_spin_lock_irqsave(&g->lock, flags);
	return flags;
}

void fiber_group_unlock(struct fiber_group *g, unsigned long flags)
	__releases(&g->lock)
{
	if (unlikely(READ_ONCE(fiber_check)))
		check(g);
	raw_spin_unlock_irqrestore(&g->lock, flags);
}

static void set_state(struct fiber_processor *p, enum fiber_processor_state to)
{
	struct fiber_group *g = p->group;

	if (p->state == FIBER_IDLE)
		atomic_dec(fiber_avail(g));
	if (p->state != FIBER_OWNED)
		list_del(&p->node);
	g->nr[p->state]--;
	g->nr[to]++;
	p->state = to;
	if (to == FIBER_IDLE)
		atomic_inc(fiber_avail(g));
	WRITE_ONCE(g->info->idle, g->nr[FIBER_IDLE]);
}

/*
 * Does the quantum of the fiber before go on? If each of two fibers that wake
 * each other began a new one, those in the run queue would never have a turn.
 */
static bool same_quantum(struct fiber_processor *p, struct fiber_carrier *c)
{
	return p->state == FIBER_FLIGHT && p->why == FIBER_EVENT_BLOCK &&
	       c->wait != FIBER_WAITS_SPARE && !c->turned;
}

void fiber_own(struct fiber_processor *p, struct fiber_carrier *c, u32 event)
{
	u64 now = ktime_get_mono_fast_ns();

	lockdep_assert_held(&p->group->lock);
	if (!same_quantum(p, c)) {
		p->seq = READ_ONCE(p->page->seq);
		p->fiber_since = now;
	}
	set_state(p, FIBER_OWNED);
	p->owner = c;
	c->event = event;
	WRITE_ONCE(c->run_since, now);
	c->early = false;
	WRITE_ONCE(c->processor, p);
	WRITE_ONCE(c->page->processor, p->index);
	WRITE_ONCE(p->page->owner, c->index);
}

static void disown(struct fiber_processor *p)
{
	struct fiber_carrier *c = p->owner;

	p->owner = NULL;
	WRITE_ONCE(c->processor, NULL);
	WRITE_ONCE(c->page->processor, FIBER_NO_PROCESSOR);
	WRITE_ONCE(p->page->owner, FIBER_NO_CARRIER);
}

void fiber_take(struct fiber_processor *p, u32 why, u64 since)
{
	lockdep_assert_held(&p->group->lock);
	p->last = p->owner;
	disown(p);
	set_state(p, FIBER_FLIGHT);
	list_add_tail(&p->node, &p->group->flight);
	p->why = why;
	p->since = since;
}

void fiber_rest(struct fiber_processor *p)
{
	lockdep_assert_held(&p->group->lock);
	if (p->state == FIBER_OWNED)
		disown(p);
	set_state(p, FIBER_IDLE);
	list_add(&p->node, &p->group->idle);
}

/* The owner is not running, and holds p as @from: take it, if it is not back. */
static bool take_held(struct fiber_processor *p, int from)
{
	struct fiber_carrier *c = p->owner;

	if (p->state != FIBER_OWNED ||
	    atomic_cmpxchg(&c->hold, from, FIBER_LOST) != from)
		return false;
	if (from == FIBER_KEEPING)
		atomic_dec(fiber_avail(p->group));
	WRITE_ONCE(c->page->handoffs, fiber_count(c, FIBER_STAT_HANDOFFS));
	fiber_take(p, FIBER_EVENT_BLOCK, 0);
	return true;
}

static struct fiber_processor *find_kept(struct fiber_group *g)
{
	u32 i;

	if (atomic_read(fiber_avail(g)) <= g->nr[FIBER_IDLE])
		return NULL;
	for (i = 0; i < g->nr_processors; i++)
		if (take_held(&g->processor[i], FIBER_KEEPING))
			return &g->processor[i];
	return NULL;
}

/* One that nobody uses: idle, or kept by a blocked owner (what ->avail counts). */
struct fiber_processor *fiber_find_free(struct fiber_group *g)
{
	struct fiber_processor *p;

	p = list_first_entry_or_null(&g->idle, struct fiber_processor, node);
	return p ?: find_kept(g);
}

/* One that nobody uses and somebody should. */
struct fiber_processor *fiber_find_wanted(struct fiber_group *g)
{
	struct fiber_processor *p;
	u32 i;

	list_for_each_entry(p, &g->idle, node)
		if (fiber_wanted(p))
			return p;
	if (atomic_read(fiber_avail(g)) <= g->nr[FIBER_IDLE])
		return NULL;
	for (i = 0; i < g->nr_processors; i++) {
		p = &g->processor[i];
		if (fiber_wanted(p) && take_held(p, FIBER_KEEPING))
			return p;
	}
	return NULL;
}

/*
 * One whose owner this CPU has pushed aside, most often to run the very carrier
 * that asks (it was woken). The owner cannot go on here before it leaves.
 */
static struct fiber_processor *find_aside(struct fiber_group *g)
{
	struct fiber_processor *p;
	u32 i;

	for (i = 0; i < g->nr_processors; i++) {
		p = &g->processor[i];
		if (p->state == FIBER_OWNED &&
		    atomic_read(&p->owner->hold) == FIBER_ASIDE &&
		    task_cpu(p->owner->task) == smp_processor_id() &&
		    take_held(p, FIBER_ASIDE))
			return p;
	}
	return NULL;
}

/* A processor that carrier c may have now: its own of late, if it can be. */
struct fiber_processor *fiber_find(struct fiber_group *g, struct fiber_carrier *c)
{
	struct fiber_processor *p;

	list_for_each_entry(p, &g->flight, node)
		if (p->last == c)
			return p;
	p = list_first_entry_or_null(&g->flight, struct fiber_processor, node);
	return p ?: fiber_find_free(g) ?: find_aside(g);
}

void fiber_enqueue(struct fiber_carrier *c, enum fiber_wait wait, bool turned)
{
	struct fiber_group *g = c->group;

	lockdep_assert_held(&g->lock);
	WRITE_ONCE(c->wait, wait);
	c->turned = turned;
	if (wait == FIBER_WAITS_READY) {
		c->rank = ktime_get_mono_fast_ns() + (turned ? g->quantum_ns : 0);
		list_add_tail(&c->node, turned ? &g->turned : &g->ready);
		WRITE_ONCE(g->info->waiting, g->info->waiting + 1);
		if (turned)
			WRITE_ONCE(g->info->turned, g->info->turned + 1);
	} else {
		list_add(&c->node, &g->spares);
		WRITE_ONCE(g->info->spares, g->info->spares + 1);
	}
}

void fiber_dequeue(struct fiber_carrier *c)
{
	struct fiber_group *g = c->group;

	lockdep_assert_held(&g->lock);
	list_del(&c->node);
	if (c->wait == FIBER_WAITS_SPARE)
		WRITE_ONCE(g->info->spares, g->info->spares - 1);
	else
		WRITE_ONCE(g->info->waiting, g->info->waiting - 1);
	if (c->wait == FIBER_WAITS_READY && c->turned)
		WRITE_ONCE(g->info->turned, g->info->turned - 1);
	c->turned = false;
	/* Pairs with the look at ->wait after set_current_state in wait_asleep. */
	smp_store_release(&c->wait, FIBER_WAITS_NOT);
}

/* Give p to a sleeper; returns its task, to be woken without the lock. */
struct task_struct *fiber_grant(struct fiber_processor *p, struct fiber_carrier *c,
				u32 event)
{
	bool queue = c->wait == FIBER_WAITS_SPARE;

	fiber_own(p, c, event);
	p->group->count[queue ? FIBER_COUNT_TO_SPARE : FIBER_COUNT_TO_READY]++;
	trace_handoff(c, event, queue);
	if (queue && !p->queue_turn)
		p->turn_since = c->run_since;
	if (queue || c->turned)		/* who is back from a block takes no turn */
		p->queue_turn = queue;
	fiber_dequeue(c);
	return c->task;
}

/*
 * Whoever sleeps in FIBER_IOC_KEEP makes spares. It has the second wake-up of a
 * placement, so it is asked only when there was nobody for the first.
 */
struct task_struct *fiber_call_keeper(struct fiber_group *g)
{
	struct task_struct *keeper = g->keeper;

	if (keeper)
		g->count[FIBER_COUNT_KEEPER]++;
	g->keeper = NULL;
	return keeper;
}
