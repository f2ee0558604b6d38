/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * compat.h - all that differs between kernel versions, and nothing else
 *
 * Each entry: what changed, introduced in / removed in.
 */
#ifndef FIBER_COMPAT_H
#define FIBER_COMPAT_H

#include <linux/hrtimer.h>
#include <linux/mm.h>
#include <linux/rseq.h>
#include <linux/sched.h>
#include <linux/version.h>

#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 1, 0)
#error "fiber needs Linux 6.1 or later (TASK_FREEZABLE)"
#endif

/* vm_flags_set/clear: introduced 6.3 (vm_flags became read-only) */
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 3, 0)
static inline void vm_flags_mod(struct vm_area_struct *vma, vm_flags_t set,
				vm_flags_t clear)
{
	vma->vm_flags = (vma->vm_flags | set) & ~clear;
}
#endif

/*
 * Did the current task, seen from its sched_out notifier, go to sleep? (Of another
 * task: a moment ago, perhaps.)
 * task_is_runnable: introduced 6.12 with delayed dequeue, which leaves on_rq
 * set for sleepers. Before, on_rq is cleared by the deactivation. __state is
 * wrong in both: a task preempted while about to sleep has it set.
 */
static inline bool fiber_compat_blocked(struct task_struct *t)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 12, 0)
	return !task_is_runnable(t);
#else
	return !READ_ONCE(t->on_rq);
#endif
}

/* hrtimer_setup: introduced 6.13; hrtimer_init: removed 6.15 */
static inline void fiber_compat_timer(struct hrtimer *timer,
				      enum hrtimer_restart (*fn)(struct hrtimer *),
				      enum hrtimer_mode mode)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 13, 0)
	hrtimer_setup(timer, fn, CLOCK_MONOTONIC, mode);
#else
	hrtimer_init(timer, CLOCK_MONOTONIC, mode);
	timer->function = fn;
#endif
}

/* task_struct.rseq: a user pointer; since 6.19 a struct with .usrptr */
static inline struct rseq __user *fiber_compat_rseq(struct task_struct *t)
{
#ifndef CONFIG_RSEQ
	return NULL;
#elif LINUX_VERSION_CODE >= KERNEL_VERSION(6, 19, 0)
	return t->rseq.usrptr;
#else
	return t->rseq;
#endif
}

#endif
