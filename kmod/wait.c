// SPDX-License-Identifier: GPL-2.0-only
/*
 * wait.c - threads that sleep in an ioctl of ours until they are needed
 *
 * Context: process. The order of a wait, each step under group->lock unless it
 * says otherwise:
 *
 *   begin   give the processor away if asked to; take one that is free; else
 *           go on the list of those that wait to continue, or of the spares
 *   sleep   no lock; the waker has taken us off the list and made us owner
 *   end     still on a list: a signal came; off it without a processor: the
 *           group is dead
 *
 *   wait_asleep                          dequeue, then wake
 *     state = INTERRUPTIBLE                wait = NOT (release)
 *     full barrier                         full barrier (wake_up_process)
 *     read wait; schedule if listed        state = RUNNING
 */
#include "compat.h"
#include "handoff.h"

static void enqueue_ready(struct fiber_carrier *c)
{
	struct fiber_group *g = c->group;
	struct fiber_processor *p;

	fiber_enqueue(c, FIBER_WAITS_READY, false);
	/* waiting++ before the look for KEEPING. Pairs with keep(). */
	smp_mb();
	if (fiber_first_ready(g) != c)
		return;
	p = fiber_find(g, c);
	if (p)
		fiber_grant(p, c, FIBER_EVENT_IDLE);	/* current: nobody to wake */
}

/* A processor that somebody should have taken over, but no spare was there. */
static void enqueue_spare(struct fiber_carrier *c)
{
	struct fiber_processor *p = fiber_find_wanted(c->group);

	if (p)
		fiber_own(p, c, FIBER_EVENT_IDLE);
	else
		fiber_enqueue(c, FIBER_WAITS_SPARE, false);
}

static bool any_takeover(struct fiber_group *g)
{
	u32 i;

	for (i = 0; i < g->nr_processors; i++)
		if (READ_ONCE(g->processor[i].page->takeover) & FIBER_TAKEOVER_READY)
			return true;
	return false;
}

/* The caller has nothing to run: its processor goes to who waits, or rests. */
static struct task_struct *give_idle(struct fiber_carrier *c, u32 flags)
{
	struct fiber_group *g = c->group;
	struct fiber_processor *p = c->processor;
	struct fiber_carrier *next = fiber_first_ready(g);

	if (next) {
		fiber_take(p, FIBER_EVENT_GIVEN, 0);
		return fiber_grant(p, next, FIBER_EVENT_GIVEN);
	}
	fiber_rest(p);
	/* avail++ before the look. Pairs with the publisher's barrier (uapi). */
	smp_mb();
	if (READ_ONCE(g->hint->work) ||
	    (!(flags & FIBER_WAIT_SURE) && any_takeover(g)))
		fiber_own(p, c, FIBER_EVENT_NONE);
	return NULL;
}

/*
 * The caller has a fiber to continue, and had its turn: it queues, then the
 * first one goes, or a spare if the library asks for one and it is its turn.
 */
static struct task_struct *give_turn(struct fiber_carrier *c, u32 flags)
{
	struct fiber_group *g = c->group;
	struct fiber_processor *p = c->processor, *other = NULL;
	struct fiber_carrier *next;
	struct task_struct *task;

	fiber_take(p, FIBER_EVENT_GIVEN, 0);
	fiber_enqueue(c, FIBER_WAITS_READY, true);
	next = fiber_first_ready(g);
	if ((flags & FIBER_WAIT_TO_SPARE) && fiber_queue_first(p, next))
		next = fiber_first_spare(g) ?: next;
	task = fiber_grant(p, next, FIBER_EVENT_GIVEN);
	/* waiting++ before the look for KEEPING. Pairs with keep(). */
	smp_mb();
	if (c->wait == FIBER_WAITS_READY)
		other = fiber_find_free(g);
	if (other)
		fiber_grant(other, c, FIBER_EVENT_IDLE);
	return task;
}

static struct task_struct *begin_wait(struct fiber_carrier *c, u32 flags)
{
	struct task_struct *task = NULL;

	c->event = FIBER_EVENT_NONE;
	if (c->processor && !(flags & FIBER_WAIT_GIVE))
		return NULL;
	if (c->processor)
		task = flags & FIBER_WAIT_READY ? give_turn(c, flags)
						: give_idle(c, flags);
	if (c->processor || c->wait != FIBER_WAITS_NOT)
		return task;
	if (flags & FIBER_WAIT_READY)
		enqueue_ready(c);
	else
		enqueue_spare(c);
	return task;
}

/* A spare's deadline has passed: now it wants a processor like any other. */
static void promote(struct fiber_carrier *c)
{
	struct fiber_group *g = c->group;
	struct task_struct *keeper = NULL;
	unsigned long flags;

	rcu_read_lock();
	flags = fiber_group_lock(g);
	if (c->wait == FIBER_WAITS_SPARE) {
		fiber_dequeue(c);
		enqueue_ready(c);
		keeper = fiber_miss_spare(g);
	}
	fiber_group_unlock(g, flags);
	fiber_wake(keeper);
	rcu_read_unlock();
}

/*
 * Its owner sleeps in the library, and no fiber of it runs: it has nothing to end.
 * So are processors kept that a program uses no more, for long. A hint: it may wake
 * up meanwhile. Context: group->lock held, under which an owner is alive.
 */
static bool rests(struct fiber_carrier *owner)
{
	if (READ_ONCE(owner->waiting))
		return true;
	if (READ_ONCE(owner->page->in_fiber))
		return false;
	/* data_race: the scheduler writes its state without a lock of ours */
	return data_race(fiber_compat_blocked(owner->task));
}

/*
 * The processor whose owner should end its quantum early. For a spare: one that
 * runs a preempted carrier only because no spare was there. For a carrier that
 * is back from a block, or from a deadline: the one whose fiber has run longest.
 */
static struct fiber_processor *find_hurry(struct fiber_carrier *c)
{
	struct fiber_group *g = c->group;
	struct fiber_processor *p, *oldest = NULL;
	u64 since, first = 0;
	u32 i;

	for (i = 0; i < g->nr_processors; i++) {
		p = &g->processor[i];
		if (p->state != FIBER_OWNED || rests(p->owner))
			continue;
		if (c->wait == FIBER_WAITS_SPARE && !p->short_of_spares)
			continue;
		/* Its owner may begin anew meanwhile: then it is not the best. */
		since = READ_ONCE(p->owner->run_since);
		if (!oldest || since < first) {
			oldest = p;
			first = since;
		}
	}
	return oldest;
}

/*
 * The owner's CPU decides, at once by a call (fiber_quantum_hurry), or, if
 * another task (perhaps this one) has pushed it aside, when it is back. Not on
 * behalf of a carrier that gave its processor away: hogs would cut each other's
 * quanta short.
 */
static void hurry(struct fiber_carrier *c)
{
	struct fiber_group *g = c->group;
	struct fiber_processor *p = NULL;
	unsigned long flags = fiber_group_lock(g);
	int cpu = -1;

	if (c->wait != FIBER_WAITS_NOT && !c->turned)
		p = find_hurry(c);
	if (p) {
		p->short_of_spares = false;
		g->count[FIBER_COUNT_HURRIES]++;
		cpu = task_cpu(p->owner->task);
		WRITE_ONCE(p->owner->early, true);
	}
	fiber_group_unlock(g, flags);
	if (p)
		fiber_quantum_hurry(p, cpu);
}

static void wait_asleep(struct fiber_carrier *c, u64 deadline)
{
	ktime_t until = ns_to_ktime(deadline);

	hurry(c);
	for (;;) {
		set_current_state(TASK_INTERRUPTIBLE | TASK_FREEZABLE);
		/* Pairs with the release in fiber_dequeue(); the waker follows it. */
		if (smp_load_acquire(&c->wait) == FIBER_WAITS_NOT ||
		    signal_pending(current))
			break;
		if (!deadline) {
			schedule();
		} else if (!schedule_hrtimeout_range(&until, 0, HRTIMER_MODE_ABS)) {
			deadline = 0;
			promote(c);
			hurry(c);
		}
	}
	__set_current_state(TASK_RUNNING);
}

/* Woken, or interrupted: c is on no list any more. 0: it owns a processor. */
static int end_wait(struct fiber_carrier *c)
{
	struct fiber_group *g = c->group;
	struct task_struct *keeper = NULL;
	unsigned long flags;
	int err = 0;

	rcu_read_lock();
	flags = fiber_group_lock(g);
	if (c->wait != FIBER_WAITS_NOT) {
		fiber_dequeue(c);
		keeper = fiber_miss_spare(g);
		err = -EINTR;
	} else if (!c->processor) {
		err = -ESHUTDOWN;
	}
	fiber_group_unlock(g, flags);
	fiber_wake(keeper);
	rcu_read_unlock();
	return err;
}

/* Returns -ESHUTDOWN, or 0: c owns a processor or is on a list. */
static int start_wait(struct fiber_carrier *c, u32 flags)
{
	struct fiber_group *g = c->group;
	struct task_struct *task = NULL, *keeper = NULL;
	unsigned long irq;
	bool dead;

	rcu_read_lock();
	irq = fiber_group_lock(g);
	dead = g->dead;
	if (!dead)
		task = begin_wait(c, flags);
	if (!dead && (flags & FIBER_WAIT_TO_SPARE))
		keeper = fiber_miss_spare(g);
	fiber_group_unlock(g, irq);
	if (task != current)
		fiber_wake(task);
	fiber_wake(keeper);
	rcu_read_unlock();
	return dead ? -ESHUTDOWN : 0;
}

/**
 * fiber_handoff_wait - sleep until the carrier owns a processor
 * @c: current
 * @flags: FIBER_WAIT_*, checked
 * @deadline: CLOCK_MONOTONIC ns for a spare, 0: none
 *
 * Context: process. Returns 0, -EINTR or -ESHUTDOWN. Between the first line and
 * the last nobody takes the processor away (->waiting), though the trampoline
 * calls with in_fiber set; after it the edge looks again.
 */
int fiber_handoff_wait(struct fiber_carrier *c, u32 flags, u64 deadline)
{
	int err;

	WRITE_ONCE(c->waiting, true);
	c->fruitless = 0;
	err = start_wait(c, flags);
	if (!err && READ_ONCE(c->wait) != FIBER_WAITS_NOT)
		wait_asleep(c, flags & FIBER_WAIT_SPARE ? deadline : 0);
	if (!err)
		err = end_wait(c);
	if (!err)
		WRITE_ONCE(c->need, false);
	/* In this order: from here on sched_in may set need. */
	WRITE_ONCE(c->waiting, false);
	if (!err)
		fiber_quantum_start(c);
	return err;
}

/**
 * fiber_handoff_acquire - the RETURN trampoline wants to go on
 * @c: current
 *
 * Context: process. A signal interrupts the wait; its handler must not run
 * without a processor either, so ->need stays and the caller arms the edge.
 */
int fiber_handoff_acquire(struct fiber_carrier *c)
{
	return fiber_handoff_wait(c, FIBER_WAIT_READY, 0);
}

/**
 * fiber_handoff_wake - there is work and a processor is available
 * @g: the group; any thread of its process
 *
 * Returns 1 if a spare got a processor, else 0.
 */
int fiber_handoff_wake(struct fiber_group *g)
{
	struct task_struct *task = NULL, *keeper = NULL;
	struct fiber_processor *p = NULL;
	struct fiber_carrier *c;
	unsigned long flags;

	rcu_read_lock();
	flags = fiber_group_lock(g);
	c = fiber_first_spare(g);
	if (c && !g->dead)
		p = fiber_find_free(g);
	if (p) {
		task = fiber_grant(p, c, FIBER_EVENT_WAKE);
		g->count[FIBER_COUNT_WAKES]++;
	}
	keeper = fiber_miss_spare(g);
	fiber_group_unlock(g, flags);
	fiber_wake(task);
	fiber_wake(keeper);
	rcu_read_unlock();
	return p ? 1 : 0;
}

/* Returns how many spares are missing, or 0 with ->keeper set to the caller. */
static int keep_look(struct fiber_group *g)
{
	unsigned long flags = fiber_group_lock(g);
	int missing = 0;

	if (g->dead)
		missing = -ESHUTDOWN;
	else if (fiber_few_spares(g))
		missing = g->min_spares - g->info->spares;
	else if (g->keeper && g->keeper != current)
		missing = -EBUSY;
	else
		g->keeper = current;
	fiber_group_unlock(g, flags);
	return missing;
}

/**
 * fiber_handoff_keep - sleep until spares are missing
 * @g: the group; one thread of its process, no carrier
 *
 * Returns how many, -ERESTARTSYS, -EBUSY or -ESHUTDOWN.
 */
int fiber_handoff_keep(struct fiber_group *g)
{
	unsigned long flags;
	int missing;

	for (;;) {
		set_current_state(TASK_INTERRUPTIBLE | TASK_FREEZABLE);
		missing = keep_look(g);
		if (missing)
			break;
		if (signal_pending(current)) {
			missing = -ERESTARTSYS;
			break;
		}
		schedule();
	}
	__set_current_state(TASK_RUNNING);

	flags = fiber_group_lock(g);
	if (g->keeper == current)
		g->keeper = NULL;
	fiber_group_unlock(g, flags);
	return missing;
}

/* One sleeper of a dead group, taken off its list. */
static struct task_struct *pull_sleeper(struct fiber_group *g)
{
	struct fiber_carrier *c = fiber_first_ready(g) ?: fiber_first_spare(g);

	if (!c)
		return fiber_call_keeper(g);
	fiber_dequeue(c);
	return c->task;
}

/**
 * fiber_handoff_kill - the file is closed: every waiter returns -ESHUTDOWN
 * @g: the group. Context: process.
 */
void fiber_handoff_kill(struct fiber_group *g)
{
	struct task_struct *task;
	unsigned long flags;

	do {
		rcu_read_lock();
		flags = fiber_group_lock(g);
		WRITE_ONCE(g->dead, true);	/* ATTACH looks without the lock */
		WRITE_ONCE(g->info->dead, 1);
		task = pull_sleeper(g);
		fiber_group_unlock(g, flags);
		fiber_wake(task);
		rcu_read_unlock();
	} while (task);
}
