// SPDX-License-Identifier: GPL-2.0-only
/*
 * hook.c - what the scheduler tells us of a carrier
 *
 * Context of sched_out: rq lock held, irqs off, only when another task follows.
 * Nothing is woken, no user memory is touched, no lock is taken under which
 * anybody wakes. Context of sched_in: the carrier, preemption off, irqs on, no
 * lock held.
 *
 * Whether sched_out means "blocked" is asked of the run queue, never of __state:
 * a task that was preempted while it was about to sleep has __state set and is
 * still runnable (it stays the owner and runs again soon).
 */
#include "compat.h"
#include "internal.h"

/*
 * Sleeps that are no reason to pass the processor on. STOPPED and TRACED: the
 * whole process is stopped or the carrier is being looked at; whoever took over
 * would run beside it. TASK_RTLOCK_WAIT (PREEMPT_RT): a spinlock, short.
 */
static bool keeps_anyway(unsigned int state)
{
	unsigned int except = __TASK_STOPPED | __TASK_TRACED;

#ifdef CONFIG_PREEMPT_RT
	except |= TASK_RTLOCK_WAIT;
#endif
	return state & except;
}

static bool may_lose(struct fiber_carrier *c)
{
	return c->processor && !c->waiting && READ_ONCE(c->page->in_fiber) &&
	       !READ_ONCE(c->page->no_preempt);
}

static __always_inline void leave(struct fiber_carrier *c)
{
	unsigned int state = READ_ONCE(current->__state);

	if (unlikely(state == TASK_DEAD)) {
		fiber_carrier_end(c);
		return;
	}
	if (!may_lose(c))
		return;
	if (!fiber_compat_blocked(current))
		fiber_handoff_aside(c);
	else if (!keeps_anyway(state))
		fiber_handoff_block(c);
}

/* Out of line, as come_armed: each block pays for what they save and restore. */
static noinline void leave_armed(struct fiber_carrier *c)
{
	fiber_upcall_disarm(c);
	leave(c);
}

static void sched_out(struct preempt_notifier *n, struct task_struct *next)
{
	struct fiber_carrier *c = container_of(n, struct fiber_carrier, sched);

	if (unlikely(c->armed))
		leave_armed(c);
	else
		leave(c);
}

static noinline void come_armed(struct fiber_carrier *c)
{
	unsigned long flags;

	local_irq_save(flags);
	fiber_upcall_arm(c);
	local_irq_restore(flags);
}

static void sched_in(struct preempt_notifier *n, int cpu)
{
	struct fiber_carrier *c = container_of(n, struct fiber_carrier, sched);

	if (atomic_read(&c->hold) != FIBER_RUNNING)
		fiber_handoff_unblock(c);
	if (unlikely(c->need || c->want_preempt ||
		     current->mm != c->group->mm))
		come_armed(c);
	if (c->processor && !fiber_quantum_ticks(c))
		fiber_quantum_resume(c);
}

static struct preempt_ops fiber_ops = {
	.sched_in = sched_in,
	.sched_out = sched_out,
};

/**
 * fiber_hook_init - prepare the scheduler hooks of a carrier
 * @c: new; the caller registers c->sched, in its own thread
 */
void fiber_hook_init(struct fiber_carrier *c)
{
	preempt_notifier_init(&c->sched, &fiber_ops);
}

/**
 * fiber_hook_is - is this preempt notifier one of ours (and not KVM's)?
 * @n: on the list of the current task
 */
bool fiber_hook_is(const struct preempt_notifier *n)
{
	return n->ops == &fiber_ops;
}
