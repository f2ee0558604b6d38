// SPDX-License-Identifier: GPL-2.0-only
/*
 * group.c - one open of /dev/fiber by one process
 *
 * Context: process. A file is empty until SETUP, which binds it to the caller's
 * mm; from then on a process with another mm (a child after fork, a receiver of
 * the fd) gets -EPERM. ->ready_to_use is the release/acquire flag for all that
 * SETUP wrote.
 *
 * Closing any descriptor of the file by the process that set it up kills the
 * group: sleepers in an ioctl hold the file, so release() would never come.
 *
 * "The process" is its table of descriptors, as it was at SETUP: ->files, which
 * nobody pins (a table that is pinned is never closed) and nobody follows. That
 * its address may be used again does no harm: a table is freed when its last
 * task is gone, and before that each file in it is flushed, ours too, so that
 * the group is dead by then. It is in there: SETUP looks after it has set
 * ready_to_use, and kills the group if the descriptor is gone.
 *
 *   SETUP                              close, in another thread
 *     ready_to_use = true                out of the table (under file_lock)
 *     is it in the table?                flush: ready_to_use?
 *       (under file_lock)
 */
#include <linux/fs.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/sched/mm.h>
#include <linux/seq_file.h>
#include <linux/slab.h>

#include "compat.h"
#include "fault.h"
#include "internal.h"

static void free_group(struct kref *ref)
{
	struct fiber_group *g = container_of(ref, struct fiber_group, ref);
	u32 i;

	/* No carrier, no file: only what an owner left on its way may run. */
	for (i = 0; g->processor && i < g->nr_processors; i++) {
		if (!g->processor[i].group)
			break;
		irq_work_sync(&g->processor[i].settle);
		fiber_quantum_hurry_sync(&g->processor[i]);
		hrtimer_cancel(&g->processor[i].grace);
	}
	if (g->ready_to_use) {
		fiber_carrier_hooks_put();
		fiber_limit_untimers(g->nr_processors);
	}
	fiber_limit_close(g);
	fiber_page_free(g);
	fiber_arena_free(g);
	kvfree(g->text);
	ida_destroy(&g->ids);
	if (g->mm)
		mmdrop(g->mm);
	kfree(g);
}

/**
 * fiber_group_put - drop a reference
 * @g: the group. Context: process.
 */
void fiber_group_put(struct fiber_group *g)
{
	kref_put(&g->ref, free_group);
}

static int group_open(struct inode *inode, struct file *file)
{
	struct fiber_group *g;
	int err;

	g = fiber_may_fail(kzalloc(sizeof(*g), GFP_KERNEL_ACCOUNT), NULL);
	if (!g)
		return -ENOMEM;
	err = fiber_limit_open(g);
	if (err) {
		kfree(g);
		return err;
	}
	kref_init(&g->ref);
	mutex_init(&g->setup);
	mutex_init(&g->members);
	raw_spin_lock_init(&g->lock);
	INIT_LIST_HEAD(&g->carriers);
	INIT_LIST_HEAD(&g->ready);
	INIT_LIST_HEAD(&g->turned);
	INIT_LIST_HEAD(&g->spares);
	INIT_LIST_HEAD(&g->idle);
	INIT_LIST_HEAD(&g->flight);
	ida_init(&g->ids);
	seqcount_latch_init(&g->arenas.seq);
	file->private_data = g;
	return 0;
}

static int group_flush(struct file *file, fl_owner_t id)
{
	struct fiber_group *g = file->private_data;
	struct fiber_carrier *c = fiber_carrier_current(g);

	/* Pairs with the release in group_setup(), ioctl.c: see the head comment. */
	if (!smp_load_acquire(&g->ready_to_use))
		return 0;
	if (c && current->mm != g->mm)		/* exec closes it */
		fiber_carrier_detach(c);
	if (id == g->files)
		fiber_handoff_kill(g);
	return 0;
}

static int group_release(struct inode *inode, struct file *file)
{
	struct fiber_group *g = file->private_data;

	/* Pairs with the release in group_setup(), ioctl.c. */
	if (smp_load_acquire(&g->ready_to_use))
		fiber_handoff_kill(g);
	fiber_group_put(g);
	return 0;
}

static int group_mmap(struct file *file, struct vm_area_struct *vma)
{
	struct fiber_group *g = file->private_data;

	/* Pairs with the release in group_setup(), ioctl.c. */
	if (!smp_load_acquire(&g->ready_to_use))
		return -ENXIO;
	if (g->mm != current->mm)
		return -EPERM;
	return fiber_page_mmap(g, vma);
}

static const char * const stat_name[FIBER_STATS] = {
	[FIBER_STAT_BLOCKS] = "blocks",
	[FIBER_STAT_HANDOFFS] = "handoffs",
	[FIBER_STAT_GRACE] = "grace-returns",
	[FIBER_STAT_EDGE] = "edge-returns",
	[FIBER_STAT_RETURNS] = "returns",
	[FIBER_STAT_PREEMPTS] = "preempts",
	[FIBER_STAT_REFUSED] = "refused",
	[FIBER_STAT_REASON + FIBER_REFUSE_OUTSIDE] = "refused-outside",
	[FIBER_STAT_REASON + FIBER_REFUSE_NO_PREEMPT] = "refused-no-preempt",
	[FIBER_STAT_REASON + FIBER_REFUSE_NESTED] = "refused-nested",
	[FIBER_STAT_REASON + FIBER_REFUSE_STEPPED] = "refused-stepped",
	[FIBER_STAT_REASON + FIBER_REFUSE_TEXT] = "refused-text",
	[FIBER_STAT_REASON + FIBER_REFUSE_STACK] = "refused-stack",
	[FIBER_STAT_REASON + FIBER_REFUSE_RSEQ] = "refused-rseq",
};

static const char * const count_name[FIBER_COUNTS] = {
	[FIBER_COUNT_WAKES] = "wakes",
	[FIBER_COUNT_TO_SPARE] = "to-spare",
	[FIBER_COUNT_TO_READY] = "to-ready",
	[FIBER_COUNT_KEEPER] = "keeper-calls",
	[FIBER_COUNT_HURRIES] = "hurries",
	[FIBER_COUNT_STRAYS] = "strays",
	[FIBER_COUNT_VIOLATIONS] = "violations",
};

#ifdef CONFIG_PROC_FS
static void group_fdinfo(struct seq_file *m, struct file *file)
{
	struct fiber_group *g = file->private_data;
	u64 stat[FIBER_STATS], count[FIBER_COUNTS];
	u32 nr[FIBER_STATES], waiting, spares, carriers;
	struct fiber_carrier *c;
	int i;

	/* Pairs with the release in group_setup(), ioctl.c. */
	if (!smp_load_acquire(&g->ready_to_use))
		return;
	/* Not under ->lock, which the scheduler's hooks wait for. */
	mutex_lock(&g->members);
	memcpy(stat, g->gone_stat, sizeof(stat));
	list_for_each_entry(c, &g->carriers, all)
		for (i = 0; i < FIBER_STATS; i++)
			stat[i] += READ_ONCE(c->stat[i]);
	mutex_unlock(&g->members);
	raw_spin_lock_irq(&g->lock);
	memcpy(nr, g->nr, sizeof(nr));
	waiting = g->info->waiting;
	spares = g->info->spares;
	carriers = g->info->carriers;
	memcpy(count, g->count, sizeof(count));
	raw_spin_unlock_irq(&g->lock);

	seq_printf(m, "fiber-processors:\t%u\n", g->nr_processors);
	seq_printf(m, "fiber-owned:\t%u\nfiber-idle:\t%u\nfiber-flight:\t%u\n",
		   nr[FIBER_OWNED], nr[FIBER_IDLE], nr[FIBER_FLIGHT]);
	seq_printf(m, "fiber-carriers:\t%u\nfiber-waiting:\t%u\nfiber-spares:\t%u\n",
		   carriers, waiting, spares);
	for (i = 0; i < FIBER_STATS; i++)
		seq_printf(m, "fiber-%s:\t%llu\n", stat_name[i], stat[i]);
	for (i = 0; i < FIBER_COUNTS; i++)
		seq_printf(m, "fiber-%s:\t%llu\n", count_name[i], count[i]);
}
#endif

/* There is no trampoline for 32-bit code: what blocked could not be brought back. */
static long refuse_32_bit(struct file *file, unsigned int cmd, unsigned long arg)
{
	return -EOPNOTSUPP;
}

const struct file_operations fiber_group_fops = {
	.owner = THIS_MODULE,
	.open = group_open,
	.flush = group_flush,
	.release = group_release,
	.unlocked_ioctl = fiber_ioctl,
	.compat_ioctl = refuse_32_bit,
	.mmap = group_mmap,
#ifdef CONFIG_PROC_FS
	.show_fdinfo = group_fdinfo,
#endif
	.llseek = noop_llseek,
};
