/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * handoff.h - moves of processors and carriers, for processor.c, handoff.c and
 * wait.c only
 *
 * Unless it says otherwise: group->lock is held.
 */
#ifndef FIBER_HANDOFF_H
#define FIBER_HANDOFF_H

#include <linux/atomic.h>

#include "internal.h"

/* How many FIBER_IOC_WAKE could hand out; changed without group->lock as well. */
static inline atomic_t *fiber_avail(struct fiber_group *g)
{
	BUILD_BUG_ON(sizeof(atomic_t) != sizeof(g->info->avail));
	return (atomic_t *)&g->info->avail;
}

/* processor.c */
unsigned long fiber_group_lock(struct fiber_group *g) __acquires(&g->lock);
void fiber_group_unlock(struct fiber_group *g, unsigned long flags)
	__releases(&g->lock);

/* The three transitions of a processor. */
void fiber_own(struct fiber_processor *p, struct fiber_carrier *c, u32 event);
void fiber_take(struct fiber_processor *p, u32 why, u64 since);
void fiber_rest(struct fiber_processor *p);

struct fiber_processor *fiber_find(struct fiber_group *g, struct fiber_carrier *c);
struct fiber_processor *fiber_find_free(struct fiber_group *g);
struct fiber_processor *fiber_find_wanted(struct fiber_group *g);
void fiber_enqueue(struct fiber_carrier *c, enum fiber_wait wait, bool turned);
void fiber_dequeue(struct fiber_carrier *c);
struct task_struct *fiber_grant(struct fiber_processor *p, struct fiber_carrier *c,
				u32 event);
struct task_struct *fiber_call_keeper(struct fiber_group *g);

/* handoff.c */
bool fiber_queue_first(struct fiber_processor *p, struct fiber_carrier *first);

/* The caller holds rcu_read_lock since it chose the task, and no other lock. */
static inline void fiber_wake(struct task_struct *task)
{
	if (task)
		wake_up_process(task);
}

/* The first of those that wait to continue, by rank. */
static inline struct fiber_carrier *fiber_first_ready(struct fiber_group *g)
{
	struct fiber_carrier *c, *t;

	c = list_first_entry_or_null(&g->ready, struct fiber_carrier, node);
	t = list_first_entry_or_null(&g->turned, struct fiber_carrier, node);
	if (!c || !t)
		return c ?: t;
	return c->rank <= t->rank ? c : t;
}

static inline struct fiber_carrier *fiber_first_spare(struct fiber_group *g)
{
	return list_first_entry_or_null(&g->spares, struct fiber_carrier, node);
}

static inline bool fiber_few_spares(struct fiber_group *g)
{
	return g->info->spares < g->min_spares;
}

/* A spare has left the list, for whatever reason: does somebody make another? */
static inline struct task_struct *fiber_miss_spare(struct fiber_group *g)
{
	return fiber_few_spares(g) ? fiber_call_keeper(g) : NULL;
}

#endif
