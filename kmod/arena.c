// SPDX-License-Identifier: GPL-2.0-only
/*
 * arena.c - the stacks that user space has registered
 *
 * Context: the user edge (irqs off) asks, one thread at a time under
 * group->setup adds; nothing is taken back before the group is freed.
 *
 * A group may have FIBER_MAX_ARENAS of them and the edge must not be long, so
 * they form a tree, and one that can be read while it changes: a latch tree is
 * two trees, of which a reader uses the one that is not being changed. It
 * begins again if that changed meanwhile: once an insertion at most, each of
 * which is longer than a search, and a search is at most 24 steps of 4096.
 *
 * Arenas do not overlap, so "below", "above" and "overlaps" order them. An
 * address is looked for as the range of one byte below it: stacks grow down, a
 * stack pointer at the end of an arena is on its last stack.
 */
#include <linux/sizes.h>
#include <linux/slab.h>

#include "fault.h"
#include "internal.h"

struct span {
	unsigned long start, end;
};

static struct fiber_arena *arena_of(struct latch_tree_node *n)
{
	return container_of(n, struct fiber_arena, node);
}

static __always_inline bool
less(struct latch_tree_node *a, struct latch_tree_node *b)
{
	return arena_of(a)->base < arena_of(b)->base;
}

static __always_inline int compare(void *key, struct latch_tree_node *n)
{
	const struct fiber_arena *a = arena_of(n);
	const struct span *r = key;

	if (r->end <= a->base)
		return -1;
	return r->start >= a->end;
}

static const struct latch_tree_ops order = { .less = less, .comp = compare };

/* The one that has memory in common with the range; NULL: none has. */
static struct fiber_arena *find(struct fiber_group *g, struct span r)
{
	struct latch_tree_node *n = latch_tree_find(&r, &g->arenas, &order);

	return n ? arena_of(n) : NULL;
}

static struct fiber_arena *find_stack(struct fiber_group *g, unsigned long sp)
{
	return find(g, (struct span){ sp - 1, sp });
}

/**
 * fiber_arena_add - register an arena
 * @g: set up, setup mutex held
 * @new: its numbers, checked; copied
 *
 * Returns 0, -EEXIST (it overlaps one), -ENOSPC or -ENOMEM.
 */
int fiber_arena_add(struct fiber_group *g, const struct fiber_arena *new)
{
	struct fiber_arena *a;

	if (find(g, (struct span){ new->base, new->end }))
		return -EEXIST;
	if (g->nr_arenas == FIBER_MAX_ARENAS)
		return -ENOSPC;
	a = fiber_may_fail(kzalloc(sizeof(*a), GFP_KERNEL_ACCOUNT), NULL);
	if (!a)
		return -ENOMEM;
	*a = *new;
	a->next = g->last_arena;
	g->last_arena = a;
	latch_tree_insert(&a->node, &g->arenas, &order);
	WRITE_ONCE(g->nr_arenas, g->nr_arenas + 1);
	return 0;
}

/**
 * fiber_arena_free - free all of them
 * @g: no carrier is attached
 */
void fiber_arena_free(struct fiber_group *g)
{
	struct fiber_arena *a, *next;

	for (a = g->last_arena; a; a = next) {
		next = a->next;
		kfree(a);
	}
}

/**
 * fiber_stack_ok - is there room for the PREEMPT trampoline?
 * @g: set up
 * @sp: user stack pointer
 *
 * Without registered arenas every stack is trusted.
 */
bool fiber_stack_ok(struct fiber_group *g, unsigned long sp)
{
	const struct fiber_arena *a = find_stack(g, sp);

	if (!a)
		return !READ_ONCE(g->nr_arenas);
	return (sp - 1 - a->base) % a->stride >= a->guard + FIBER_PREEMPT_STACK;
}

/**
 * fiber_stack_same - are two user addresses on one stack?
 * @g: set up
 * @a: user stack pointer
 * @b: another, below it
 *
 * Without registered arenas: if they are less than a megabyte apart.
 */
bool fiber_stack_same(struct fiber_group *g, unsigned long a, unsigned long b)
{
	const struct fiber_arena *arena = find_stack(g, a);

	if (!arena)
		return !READ_ONCE(g->nr_arenas) && a - b < SZ_1M;
	return b > arena->base && b <= arena->end &&
	       (a - 1 - arena->base) / arena->stride ==
	       (b - 1 - arena->base) / arena->stride;
}
