// SPDX-License-Identifier: GPL-2.0-only
/*
 * carrier.c - threads that may own a processor: from attach to the last free
 *
 * A carrier ends in one of two ways, both in its own thread, both once:
 *
 *   detach (an ioctl, exec, the group's death)   notifier unregistered first
 *   its last sched_out, __state == TASK_DEAD     the notifier dies with the task
 *
 * Then: gone = true (1), its processor goes to FLIGHT (2), an irq_work (3) queues
 * the reaper (4). Who may still hold the carrier after (2)?
 *   - a waker that chose it under group->lock: none can any more, it waits on no
 *     list and owns nothing; wakers keep the task, not the carrier;
 *   - its own irq_work: the reaper calls irq_work_sync;
 *   - its timer, on whatever CPU: the reaper calls hrtimer_cancel;
 *   - hurry(), which follows processor->owner under group->lock: see (2);
 *   - this CPU's user return list: disarmed in sched_out or detach.
 * So the reaper may take it off group->carriers and free it. It drops the
 * references to the group and to the module; module exit destroys the work
 * queue, which waits until the reaper's last instruction.
 */
#include <linux/module.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>

#include "compat.h"
#include "fault.h"
#include "internal.h"
#include "trace.h"

static struct workqueue_struct *reapers;

/*
 * The static key of preempt notifiers: off, a context switch costs nothing more
 * than without the module. It is on while groups are set up, and for a while
 * after the last one is gone: flipping it patches the scheduler's code on all
 * CPUs, which a user who opens and closes in a loop must not cause each time.
 */
#define HOOKS_LINGER	(10 * HZ)

static DEFINE_MUTEX(hooks);		/* the two below */
static bool hooks_on;
static unsigned int hook_users;

/* Process context, no lock held. */
static void reap(struct work_struct *work)
{
	struct fiber_carrier *c = container_of(work, struct fiber_carrier, reap);
	struct fiber_group *g = c->group;
	int i;

	irq_work_sync(&c->end);
	hrtimer_cancel(&c->quantum);
	mutex_lock(&g->members);
	list_del(&c->all);
	for (i = 0; i < FIBER_STATS; i++)
		g->gone_stat[i] += c->stat[i];
	mutex_unlock(&g->members);
	raw_spin_lock_irq(&g->lock);
	WRITE_ONCE(g->info->carriers, g->info->carriers - 1);
	raw_spin_unlock_irq(&g->lock);
	ida_free(&g->ids, c->index);
	fiber_limit_detach(g);
	put_task_struct(c->task);
	kfree_rcu(c, rcu);
	fiber_group_put(g);
	module_put(THIS_MODULE);
}

/* Hard irq. */
static void end_work(struct irq_work *work)
{
	struct fiber_carrier *c = container_of(work, struct fiber_carrier, end);

	queue_work(reapers, &c->reap);
}

/**
 * fiber_carrier_end - the carrier is no more
 * @c: current; its notifier fires no more
 *
 * Context: up to sched_out of a dying task (rq lock held, irqs off).
 */
void fiber_carrier_end(struct fiber_carrier *c)
{
	if (c->gone)
		return;
	WRITE_ONCE(c->gone, true);
	trace_exit(c, READ_ONCE(current->__state) == TASK_DEAD);
	fiber_handoff_leave(c, FIBER_EVENT_EXIT);
	irq_work_queue(&c->end);
}

/**
 * fiber_carrier_detach - the calling thread is no carrier any more
 * @c: current. Context: own thread, process or user edge.
 *
 * One section without interrupts: a quantum that ended in between would arm the
 * edge of a carrier whose sched_out disarms it no more.
 */
void fiber_carrier_detach(struct fiber_carrier *c)
{
	unsigned long flags;

	local_irq_save(flags);
	fiber_upcall_disarm(c);
	preempt_notifier_unregister(&c->sched);
	fiber_carrier_end(c);
	local_irq_restore(flags);
}

/**
 * fiber_carrier_stray - it was told to ask for a processor, and never does
 * @c: current. Context: user edge.
 */
void fiber_carrier_stray(struct fiber_carrier *c)
{
	struct fiber_group *g = c->group;
	unsigned long flags;

	raw_spin_lock_irqsave(&g->lock, flags);
	g->count[FIBER_COUNT_STRAYS]++;
	raw_spin_unlock_irqrestore(&g->lock, flags);
	fiber_carrier_detach(c);
}

/* The carrier that the calling thread is, of whatever group. */
static struct fiber_carrier *find_current(void)
{
	struct preempt_notifier *n;

	/* Only its own thread changes this list. */
	hlist_for_each_entry(n, &current->preempt_notifiers, link)
		if (fiber_hook_is(n))
			return container_of(n, struct fiber_carrier, sched);
	return NULL;
}

/**
 * fiber_carrier_current - the calling thread as a carrier of this group
 * @g: the group
 *
 * Returns NULL if it is none.
 */
struct fiber_carrier *fiber_carrier_current(struct fiber_group *g)
{
	struct fiber_carrier *c = find_current();

	return c && c->group == g ? c : NULL;
}

static struct fiber_carrier *new_carrier(struct fiber_group *g, u32 index)
{
	struct fiber_carrier *c;

	c = fiber_may_fail(kzalloc(sizeof(*c), GFP_KERNEL_ACCOUNT), NULL);
	if (!c)
		return NULL;
	c->page = fiber_page_carrier(g, index);
	if (!c->page) {
		kfree(c);
		return NULL;
	}
	c->page->processor = FIBER_NO_PROCESSOR;
	c->index = index;
	c->group = g;
	c->task = get_task_struct(current);
	atomic_set(&c->hold, FIBER_RUNNING);
	c->end = IRQ_WORK_INIT_HARD(end_work);
	INIT_WORK(&c->reap, reap);
	fiber_hook_init(c);
	fiber_upcall_init(c);
	fiber_quantum_init(c);
	return c;
}

/* Of its page: 0 ... max_carriers - 1, -ENOSPC or -ENOMEM. */
static int new_index(struct fiber_group *g)
{
	return fiber_may_fail(ida_alloc_max(&g->ids, g->max_carriers - 1,
					    GFP_KERNEL_ACCOUNT), -ENOMEM);
}

/* It fires from here on: everything else must be in place. */
static void join_group(struct fiber_carrier *c)
{
	struct fiber_group *g = c->group;

	kref_get(&g->ref);
	__module_get(THIS_MODULE);
	mutex_lock(&g->members);
	list_add_tail(&c->all, &g->carriers);
	mutex_unlock(&g->members);
	raw_spin_lock_irq(&g->lock);
	WRITE_ONCE(g->info->carriers, g->info->carriers + 1);
	raw_spin_unlock_irq(&g->lock);
	preempt_disable();
	preempt_notifier_register(&c->sched);
	preempt_enable();
}

/**
 * fiber_carrier_attach - the calling thread becomes a carrier
 * @g: set up, setup mutex held
 * @index: receives the number of its page
 *
 * Returns 0, -EBUSY (it is one), -EAGAIN, -ENOSPC or -ENOMEM.
 */
int fiber_carrier_attach(struct fiber_group *g, u32 *index)
{
	struct fiber_carrier *c = find_current();
	int err;

	if (c && c->group->mm != current->mm) {	/* left over from before exec */
		fiber_carrier_detach(c);
		c = NULL;
	}
	if (c)
		return -EBUSY;
	err = fiber_limit_attach(g);
	if (err)
		return err;
	err = new_index(g);
	if (err < 0)
		goto err_detach;
	*index = err;
	c = new_carrier(g, *index);
	if (!c) {
		err = -ENOMEM;
		goto err_index;
	}
	join_group(c);
	trace_attach(c);
	return 0;

err_index:
	ida_free(&g->ids, *index);
err_detach:
	fiber_limit_detach(g);
	return err;
}

static void hooks_off(struct work_struct *work)
{
	mutex_lock(&hooks);
	if (hooks_on && !hook_users) {
		hooks_on = false;
		preempt_notifier_dec();
	}
	mutex_unlock(&hooks);
}

static DECLARE_DELAYED_WORK(hooks_off_work, hooks_off);

/**
 * fiber_carrier_hooks_get - a group is set up: its carriers need the hooks
 *
 * Context: process.
 */
void fiber_carrier_hooks_get(void)
{
	mutex_lock(&hooks);
	hook_users++;
	if (!hooks_on) {
		hooks_on = true;
		preempt_notifier_inc();
	}
	mutex_unlock(&hooks);
}

/**
 * fiber_carrier_hooks_put - a group is no more
 *
 * Context: process.
 */
void fiber_carrier_hooks_put(void)
{
	mutex_lock(&hooks);
	if (!--hook_users)
		mod_delayed_work(reapers, &hooks_off_work, HOOKS_LINGER);
	mutex_unlock(&hooks);
}

/**
 * fiber_carrier_start - module load
 */
int fiber_carrier_start(void)
{
	reapers = fiber_may_fail(alloc_workqueue("fiber", WQ_UNBOUND, 0), NULL);
	if (!reapers)
		return -ENOMEM;
	if (fiber_hooks)
		fiber_carrier_hooks_get();
	return 0;
}

/**
 * fiber_carrier_stop - module unload: no carrier is attached any more
 *
 * The last reapers may still run; kfree_rcu needs nothing of ours.
 */
void fiber_carrier_stop(void)
{
	cancel_delayed_work_sync(&hooks_off_work);
	destroy_workqueue(reapers);
	if (hooks_on)
		preempt_notifier_dec();
}
