// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * held.c - with FIBER_CHECK=1: which locks a fiber holds, and what it must not do
 *
 * Told are: a fiber that ends with a mutex, or a rwlock for writing, locked, and where;
 * and one that parks, yields, spawns or ends between fiber_no_preempt_begin and _end.
 *
 * Nothing of it costs anything without FIBER_CHECK=1. With it:
 *
 *   every pass	is a slow one (p->checking): the calling fiber and its no_preempt
 *		are looked at there
 *   FB_F_CHECKS	in the flags of every fiber of the program: it locks by the slow
 *		way, which makes a note, and ends by the slow way, which looks for notes
 *   CHECKED	in the word of a mutex that was noted: it is unlocked by the slow way,
 *		which drops the note. Set and cleared by its owner, as an owner it has
 *
 * Notes lie in a table of lists, by the fiber, under a lock that is taken with
 * in_fiber == 0. A full table notes nothing more, so what is told is always true. A
 * read lock may be given back by another fiber, and then nobody knows whose it was: it
 * is not noted. Memory that is made a mutex or rwlock anew has no owner, so a note of
 * it is dropped, whosever it is; that is looked for in all notes, as its old words may
 * be anything.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "held.h"
#include "stack.h"
#include "sync.h"

#define LISTS	1024
#define NOTES	16384
#define NONE	0			/* note[0] is none */

struct note {
	const struct fiber *f;		/* NULL: it is free */
	const void *object;
	void *ip;			/* where it was locked */
	const char *kind;
	uint32_t next;
};

struct table {
	uint32_t list[LISTS], free, used;
	struct note note[NOTES];
};

static struct table *table;		/* constant while the runtime is on */
static fb_lock_t table_lock;

static uint32_t *list_of(const struct fiber *f)
{
	return &table->list[((uintptr_t)f >> 6) * 0x9e3779b97f4a7c15ull >> 54];
}

_Static_assert(LISTS == 1 << (64 - 54), "list_of");

static uint32_t take_note(void)
{
	uint32_t i = table->free;

	if (i != NONE)
		table->free = table->note[i].next;
	else if (table->used + 1 < NOTES)
		i = ++table->used;
	return i;
}

bool fb_held_add(const struct fiber *f, const void *object, const char *kind,
		 void *ip)
{
	uint32_t i, *list;

	if (!table)
		return false;
	list = list_of(f);
	fb_lock(&table_lock);
	i = take_note();
	if (i != NONE) {
		table->note[i] = (struct note){ f, object, ip, kind, *list };
		*list = i;
	}
	fb_unlock(&table_lock);
	return i != NONE;
}

/* The lock is held. */
static void give_note(const struct fiber *f, const void *object)
{
	uint32_t *at, i;
	struct note *n;

	for (at = list_of(f); (i = *at) != NONE; at = &n->next) {
		n = &table->note[i];
		if (n->f != f || n->object != object)
			continue;
		*at = n->next;
		n->f = NULL;
		n->next = table->free;
		table->free = i;
		break;
	}
}

void fb_held_drop(const struct fiber *f, const void *object)
{
	if (!table)
		return;
	fb_lock(&table_lock);
	give_note(f, object);
	fb_unlock(&table_lock);
}

void fb_held_forget(const void *object)
{
	struct fb_caller me;

	/* The table stays while the caller is in. */
	if (fb_caller_visit(&me) && table) {
		fb_lock(&table_lock);
		for (uint32_t i = 1; i <= table->used; i++)
			if (table->note[i].f && table->note[i].object == object)
				give_note(table->note[i].f, object);
		fb_unlock(&table_lock);
	}
	fb_caller_leave(&me);
}

/* ---- what is told ---- */

/* Between fiber_no_preempt_begin and _end? With a seed it is one more always. */
static bool inside(const struct fb_carrier *c)
{
	return c->page->no_preempt > fb_rt.seeded;
}

/* Whoever goes on at this carrier would be inside, too. */
void fb_held_ends(struct fb_carrier *c)
{
	if (!inside(c))
		return;
	fb_leave(c);
	fb_misuse_inside(c->cur);
}

void fb_held_end(struct fb_carrier *c)
{
	struct fiber *f = c->cur;
	struct note n = { 0 };

	fb_held_ends(c);
	if (!table)
		return;
	fb_enter(c);
	fb_lock(&table_lock);
	for (uint32_t i = *list_of(f); i != NONE && !n.f; i = table->note[i].next)
		if (table->note[i].f == f)
			n = table->note[i];
	fb_unlock(&table_lock);
	fb_leave(c);
	if (n.f)
		fb_misuse_held(f, n.kind, n.object, n.ip);
}

void fb_held_pass(struct fb_carrier *c)
{
	struct fiber *f = c->cur;

	if (f && inside(c))
		fb_die_here("fiber %llu '%s' parks, yields or spawns inside fiber_no_preempt_begin",
			    (unsigned long long)f->id, f->name);
}

/* ---- start and stop ---- */

int fb_held_start(void)
{
	if (!fb_rt.checks)
		return 0;
	table = fb_stack_map(sizeof(*table), 0);
	if (!table)
		return -ENOMEM;
	for (uint32_t i = 0; i < fb_rt.nproc; i++) {
		fb_rt.proc[i].checking = 1;
		fb_rt.proc[i].look_at = 0;
	}
	return 0;
}

/* No fiber is alive. */
void fb_held_stop(void)
{
	if (table)
		munmap(table, sizeof(*table));
	table = NULL;
}
