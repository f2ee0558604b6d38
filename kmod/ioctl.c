// SPDX-License-Identifier: GPL-2.0-only
/*
 * ioctl.c - arguments: copied once, checked, refused without a trace
 *
 * Context: process, except fiber_text_ok (user edge, irqs off). A command that
 * fails leaves everything as it was; one that reports through its struct undoes
 * what it did if the copy out fails.
 */
#include <linux/fdtable.h>
#include <linux/fs.h>
#include <linux/mm.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>
#include <linux/time_namespace.h>
#include <linux/uaccess.h>

#include "compat.h"
#include "fault.h"
#include "internal.h"

/**
 * fiber_text_ok - may code at ip be preempted?
 * @g: set up
 * @ip: user address
 */
bool fiber_text_ok(struct fiber_group *g, unsigned long ip)
{
	const struct fiber_text *t = g->text;
	/* Pairs with the release in add_text(). */
	unsigned int i, nr = smp_load_acquire(&g->nr_texts);

	for (i = 0; i < nr; i++)
		if (ip >= t[i].start && ip < t[i].end)
			return true;
	return false;
}

/*
 * Not zero: it could not be copied. Always inline: so the compiler knows the
 * size and the object, and nothing is left to be checked at run time.
 */
static __always_inline unsigned long
fetch(void *args, const void __user *uarg, size_t size)
{
	return fiber_may_fail(copy_from_user(args, uarg, size), size);
}

static __always_inline unsigned long
store(void __user *uarg, const void *args, size_t size)
{
	return fiber_may_fail(copy_to_user(uarg, args, size), size);
}

static u64 min_quantum(void)
{
	u64 asked = READ_ONCE(fiber_min_quantum_us) * (u64)NSEC_PER_USEC;

	return max_t(u64, asked, FIBER_MIN_QUANTUM);
}

static int query(void __user *uarg)
{
	struct fiber_query_args a;

	if (fetch(&a, uarg, sizeof(a)))
		return -EFAULT;
	if (memchr_inv(a.reserved, 0, sizeof(a.reserved)))
		return -EINVAL;
	a.api = FIBER_API_VERSION;
	a.page_size = PAGE_SIZE;
	a.features = FIBER_FEAT_HANDOFF | FIBER_FEAT_RETURN | FIBER_FEAT_PREEMPT |
		     FIBER_FEAT_STACKS;
	a.max_processors = FIBER_MAX_PROCESSORS;
	a.max_carriers = READ_ONCE(fiber_max_carriers);
	a.min_quantum_ns = min_quantum();
	return store(uarg, &a, sizeof(a)) ? -EFAULT : 0;
}

static bool user_text(u64 start, u64 end)
{
	return start && start < end && end < TASK_SIZE_MAX;
}

/* Fill in defaults; false: a field is out of range. */
static bool setup_args_ok(struct fiber_setup_args *a)
{
	u32 limit = READ_ONCE(fiber_max_carriers);

	a->quantum_ns = a->quantum_ns ?: FIBER_DEFAULT_QUANTUM;
	a->max_carriers = a->max_carriers ?: limit;
	return !a->flags && !memchr_inv(a->reserved, 0, sizeof(a->reserved)) &&
	       a->processors && a->processors <= FIBER_MAX_PROCESSORS &&
	       a->max_carriers && a->max_carriers <= limit &&
	       a->min_spares <= a->max_carriers &&
	       a->quantum_ns >= min_quantum() && a->quantum_ns <= NSEC_PER_SEC &&
	       a->grace_ns <= FIBER_MAX_GRACE_NS &&
	       user_text(a->return_ip, a->return_end) &&
	       a->return_end - a->return_ip <= PAGE_SIZE &&
	       a->preempt_ip < TASK_SIZE_MAX;
}

static void drop_memory(struct fiber_group *g)
{
	fiber_page_free(g);
	kvfree(g->text);
	g->text = NULL;
	fiber_limit_untimers(g->nr_processors);
}

static int setup_memory(struct fiber_group *g)
{
	int err = fiber_limit_timers(g->nr_processors);

	if (err)
		return err;
	err = fiber_page_setup(g);
	g->text = fiber_page_table(FIBER_MAX_TEXTS, sizeof(*g->text));
	if (!err && g->text)
		return 0;
	drop_memory(g);
	return -ENOMEM;
}

static int is_file(const void *file, struct file *f, unsigned int fd)
{
	return f == file;
}

static int group_setup(struct fiber_group *g, struct file *file, void __user *uarg)
{
	struct fiber_setup_args a;
	int err;
	u32 i;

	if (fetch(&a, uarg, sizeof(a)))
		return -EFAULT;
	if (!setup_args_ok(&a))
		return -EINVAL;
	if (g->ready_to_use)
		return -EBUSY;
	a.off_info = FIBER_OFF_INFO << PAGE_SHIFT;
	a.off_hint = FIBER_OFF_HINT << PAGE_SHIFT;
	a.off_processors = FIBER_OFF_PROCESSORS << PAGE_SHIFT;
	a.off_carriers = FIBER_OFF_CARRIERS << PAGE_SHIFT;

	g->nr_processors = a.processors;
	g->max_carriers = a.max_carriers;
	g->min_spares = a.min_spares;
	g->quantum_ns = a.quantum_ns;
	g->grace_ns = a.grace_ns;
	g->return_ip = a.return_ip;
	g->return_end = a.return_end;
	g->preempt_ip = a.preempt_ip;
	err = setup_memory(g);
	if (err)
		return err;
	if (store(uarg, &a, sizeof(a))) {
		drop_memory(g);
		return -EFAULT;
	}
	for (i = 0; i < g->nr_processors; i++)
		fiber_handoff_init(g, &g->processor[i]);
	g->files = current->files;
	g->mm = current->mm;
	g->tgid = current->tgid;
	fiber_carrier_hooks_get();
	mmgrab(g->mm);
	/* Pairs with the acquires of ->ready_to_use. */
	smp_store_release(&g->ready_to_use, true);
	/* Closed meanwhile, when a flush did nothing yet: see group.c. */
	if (!iterate_fd(current->files, 0, is_file, file))
		fiber_handoff_kill(g);
	return 0;
}

static int attach(struct fiber_group *g, void __user *uarg)
{
	struct fiber_attach_args a;
	int err;

	if (fetch(&a, uarg, sizeof(a)))
		return -EFAULT;
	if (a.flags || memchr_inv(a.reserved, 0, sizeof(a.reserved)))
		return -EINVAL;
	if (READ_ONCE(g->dead))
		return -ESHUTDOWN;
	err = fiber_carrier_attach(g, &a.carrier);
	if (err)
		return err;
	if (!store(uarg, &a, sizeof(a)))
		return 0;
	fiber_carrier_detach(fiber_carrier_current(g));
	return -EFAULT;
}

static int add_stacks(struct fiber_group *g, void __user *uarg)
{
	struct fiber_stacks_args a;
	struct fiber_arena new;
	u64 size;

	if (fetch(&a, uarg, sizeof(a)))
		return -EFAULT;
	if (a.flags || memchr_inv(a.reserved, 0, sizeof(a.reserved)) ||
	    !a.stride || !a.count || a.guard >= a.stride ||
	    check_mul_overflow(a.stride, a.count, &size) ||
	    size > TASK_SIZE_MAX || !user_text(a.base, a.base + size) ||
	    (a.contexts && (!a.context_size || a.contexts >= TASK_SIZE_MAX)))
		return -EINVAL;
	new = (struct fiber_arena){ .base = a.base, .stride = a.stride,
		.guard = a.guard, .end = a.base + size };
	return fiber_arena_add(g, &new);
}

static int add_text(struct fiber_group *g, void __user *uarg)
{
	struct fiber_text_args a;

	if (fetch(&a, uarg, sizeof(a)))
		return -EFAULT;
	if (memchr_inv(a.reserved, 0, sizeof(a.reserved)) ||
	    !user_text(a.start, a.end))
		return -EINVAL;
	if (g->nr_texts == FIBER_MAX_TEXTS)
		return -ENOSPC;
	g->text[g->nr_texts] = (struct fiber_text){ a.start, a.end };
	/* The entry is complete. Pairs with the acquire in fiber_text_ok(). */
	smp_store_release(&g->nr_texts, g->nr_texts + 1);
	return 0;
}

/*
 * A signal has interrupted a wait for a processor. Its handler runs in the
 * fiber, so it needs one as well: the edge redirects the handler's first
 * instruction to the trampoline.
 */
static void need_at_edge(struct fiber_carrier *c)
{
	unsigned long flags;

	c->need = true;
	local_irq_save(flags);
	fiber_upcall_arm(c);
	local_irq_restore(flags);
}

static int acquire(struct fiber_carrier *c)
{
	int err = fiber_handoff_acquire(c);

	if (err != -EINTR)
		return err;
	need_at_edge(c);
	return -ERESTARTNOINTR;
}

static bool wait_flags_ok(u32 flags)
{
	u32 kind = flags & (FIBER_WAIT_READY | FIBER_WAIT_SPARE);

	if (flags & ~(FIBER_WAIT_READY | FIBER_WAIT_SPARE | FIBER_WAIT_GIVE |
		      FIBER_WAIT_TO_SPARE | FIBER_WAIT_SURE))
		return false;
	if (kind != FIBER_WAIT_READY && kind != FIBER_WAIT_SPARE)
		return false;
	if ((flags & FIBER_WAIT_TO_SPARE) &&
	    (flags & ~FIBER_WAIT_TO_SPARE) != (FIBER_WAIT_READY | FIBER_WAIT_GIVE))
		return false;
	return !(flags & FIBER_WAIT_SURE) || kind == FIBER_WAIT_SPARE;
}

/* It has got a processor and cannot be told: as if it had not. */
static void give_back(struct fiber_carrier *c)
{
	unsigned long flags;

	local_irq_save(flags);
	fiber_handoff_leave(c, FIBER_EVENT_GIVEN);
	local_irq_restore(flags);
}

/* From the clock of the caller's time namespace to the machine's; 0: none. */
static u64 host_deadline(u64 ns)
{
	struct timespec64 offset = {};
	s64 host;

	if (!ns)
		return 0;
	timens_add_monotonic(&offset);
	if (check_sub_overflow((s64)ns, timespec64_to_ns(&offset), &host))
		return KTIME_MAX;
	return max_t(s64, 1, host);
}

static int wait(struct fiber_carrier *c, void __user *uarg)
{
	bool had = READ_ONCE(c->processor);
	struct fiber_processor *p;
	struct fiber_wait_args a;
	int err;

	if (fetch(&a, uarg, sizeof(a)))
		return -EFAULT;
	if (!wait_flags_ok(a.flags) || a.reserved0 || a.deadline_ns > KTIME_MAX ||
	    (a.deadline_ns && !(a.flags & FIBER_WAIT_SPARE)) ||
	    memchr_inv(a.reserved, 0, sizeof(a.reserved)))
		return -EINVAL;
	err = fiber_handoff_wait(c, a.flags, host_deadline(a.deadline_ns));
	if (err == -EINTR && (a.flags & FIBER_WAIT_READY)) {
		need_at_edge(c);
		if (!(a.flags & FIBER_WAIT_GIVE))
			return -ERESTARTNOINTR;
	}
	if (err)
		return err;
	p = READ_ONCE(c->processor);	/* may be lost again, if in fiber */
	a.processor = p ? p->index : FIBER_NO_PROCESSOR;
	a.event = c->event;
	if (!store(uarg, &a, sizeof(a)))
		return 0;
	if (!had)
		give_back(c);
	return -EFAULT;
}

static int detach(struct fiber_carrier *c)
{
	fiber_carrier_detach(c);
	return 0;
}

/* Commands that change what a group is: one at a time. */
static int ioctl_setup(struct file *file, unsigned int cmd, void __user *uarg)
{
	struct fiber_group *g = file->private_data;

	switch (cmd) {
	case FIBER_IOC_SETUP:
		return group_setup(g, file, uarg);
	case FIBER_IOC_ATTACH:
		return attach(g, uarg);
	case FIBER_IOC_STACKS:
		return add_stacks(g, uarg);
	default:
		return add_text(g, uarg);
	}
}

static int ioctl_carrier(struct fiber_group *g, unsigned int cmd, void __user *uarg)
{
	struct fiber_carrier *c = fiber_carrier_current(g);

	if (!c)
		return -ESRCH;
	switch (cmd) {
	case FIBER_IOC_ACQUIRE:
		return acquire(c);
	case FIBER_IOC_WAIT:
		return wait(c, uarg);
	default:
		return detach(c);
	}
}

/**
 * fiber_ioctl - the door: arguments are checked here, and only here
 * @file: an open /dev/fiber
 * @cmd: FIBER_IOC_*
 * @arg: a user pointer, or nothing
 */
long fiber_ioctl(struct file *file, unsigned int cmd, unsigned long arg)
{
	struct fiber_group *g = file->private_data;
	void __user *uarg = (void __user *)arg;
	/* Pairs with the release in group_setup(). */
	bool usable = smp_load_acquire(&g->ready_to_use);
	int err;

	if (usable && g->mm != current->mm)
		return -EPERM;
	switch (cmd) {
	case FIBER_IOC_QUERY:
		return query(uarg);
	case FIBER_IOC_SETUP:
		break;
	case FIBER_IOC_ATTACH:
	case FIBER_IOC_STACKS:
	case FIBER_IOC_TEXT:
		if (!usable)
			return -ENXIO;
		break;
	case FIBER_IOC_ACQUIRE:
	case FIBER_IOC_WAIT:
	case FIBER_IOC_DETACH:
		return usable ? ioctl_carrier(g, cmd, uarg) : -ENXIO;
	case FIBER_IOC_WAKE:
		return usable ? fiber_handoff_wake(g) : -ENXIO;
	case FIBER_IOC_KEEP:
		if (usable && fiber_carrier_current(g))
			return -EBUSY;
		return usable ? fiber_handoff_keep(g) : -ENXIO;
	default:
		return -ENOTTY;
	}
	/* The holder may sleep in a page fault for as long as it likes. */
	if (fiber_may_fail(mutex_lock_killable(&g->setup), -EINTR))
		return -EINTR;
	err = ioctl_setup(file, cmd, uarg);
	mutex_unlock(&g->setup);
	return err;
}
