// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * wheel.c - timers in order: a hierarchical timing wheel
 *
 * Time goes in ticks; a timer's tick is the first at which it is due, so it is
 * never early and late by a tick at most. Ticks are numbers of nine digits in
 * base 64. A timer that is not due yet lies in the level of the highest digit in
 * which its tick differs from `base`, in the slot that this digit names. So
 *
 *   - all of a level is earlier than all of the next, and of one level a lower
 *     slot is earlier: the lowest bit of the lowest level is what comes next;
 *   - no slot at or below base's own digit is used: nothing wraps;
 *   - UINT64_MAX has its slot as any other.
 *
 * To add and to delete are a few stores. When base comes to a slot of a higher
 * level, its timers are dealt out among the levels below: a timer moves at most
 * once for each level. That slot may hold very many (with a million timers in a
 * minute, 70,000), so they are dealt from the list `moving`, by the caller's
 * measure; base waits until it is empty. A slot of the lowest level is sorted by
 * (when, seq), and goes to the end of `due` as a whole: timers leave in the order
 * of their deadlines, then of their adding. One that is added when already due
 * comes after all that were due before.
 *
 * first[] lets an idle processor sleep until the earliest timer itself, not until
 * the slot begins. A deletion does not raise it (unless it empties the slot), so
 * it may be too early. To come then deals the slot out, and is so not repeated.
 *
 * Rejected: a heap (a million timers cost 20 cache misses each, 10,000 some 13);
 * levels by distance, as in Linux before 4.8 (earliest has to look at them all).
 */
#include <stddef.h>
#include <string.h>

#include "wheel.h"

#define BITS		FB_WHEEL_BITS
#define SLOTS		FB_WHEEL_SLOTS
#define DIGIT		(SLOTS - 1)
#define TICK		(1ULL << FB_WHEEL_SHIFT)
#define TICK_LAST	(UINT64_MAX >> FB_WHEEL_SHIFT)
#define BINS		40

_Static_assert(FB_WHEEL_LEVELS * BITS + FB_WHEEL_SHIFT >= 64, "all of time");

static uint64_t tick_of(const struct fb_timer *t)
{
	uint64_t tick = t->when >> FB_WHEEL_SHIFT;

	return tick + ((t->when & (TICK - 1)) && tick < TICK_LAST);
}

/* ---- lists ---- */

static void push(struct fb_timer **head, struct fb_timer *t)
{
	t->next = *head;
	t->pprev = head;
	if (t->next)
		t->next->pprev = &t->next;
	*head = t;
}

static void unlink_timer(struct fb_wheel *w, struct fb_timer *t)
{
	*t->pprev = t->next;
	if (t->next)
		t->next->pprev = t->pprev;
	else if (w->due_tail == &t->next)
		w->due_tail = t->pprev;
	t->pprev = NULL;
}

static void append_due(struct fb_wheel *w, struct fb_timer *list)
{
	for (; list; list = list->next) {
		*w->due_tail = list;
		list->pprev = w->due_tail;
		w->due_tail = &list->next;
	}
}

/* ---- sorting: by next alone ---- */

static bool before(const struct fb_timer *a, const struct fb_timer *b)
{
	return a->when != b->when ? a->when < b->when : a->seq < b->seq;
}

static struct fb_timer *merge(struct fb_timer *a, struct fb_timer *b)
{
	struct fb_timer *head, **tail = &head;

	while (a && b) {
		struct fb_timer **less = before(a, b) ? &a : &b;

		*tail = *less;
		tail = &(*less)->next;
		*less = *tail;
	}
	*tail = a ? a : b;
	return head;
}

/* Cut off what is in order already, or in reverse order: then turned round. */
static struct fb_timer *cut_run(struct fb_timer **list)
{
	struct fb_timer *head = *list, *t = head, *next = t->next;

	if (next && before(next, t)) {
		for (t->next = NULL; next && before(next, head); head = t) {
			t = next;
			next = t->next;
			t->next = head;
		}
	} else {
		for (; next && before(t, next); next = t->next)
			t = next;
		t->next = NULL;
	}
	*list = next;
	return head;
}

static struct fb_timer *sort(struct fb_timer *list)
{
	struct fb_timer *bin[BINS] = { NULL }, *run;
	int i;

	while (list) {
		run = cut_run(&list);
		for (i = 0; bin[i]; i++) {
			run = merge(bin[i], run);
			bin[i] = NULL;
		}
		bin[i] = run;		/* of 2^i runs */
	}
	for (run = NULL, i = 0; i < BINS; i++)
		run = merge(bin[i], run);
	return run;
}

/* ---- slots ---- */

/* Its tick is not before base. */
static void place(struct fb_wheel *w, struct fb_timer *t)
{
	uint64_t tick = tick_of(t), differs = tick ^ w->base;
	unsigned int l = (63 - (unsigned int)__builtin_clzll(differs | 1)) / BITS;
	unsigned int s = (unsigned int)(tick >> l * BITS) & DIGIT;
	uint64_t bit = 1ULL << s;

	if (!(w->used[l] & bit) || tick < w->first[l][s])
		w->first[l][s] = tick;
	w->used[l] |= bit;
	w->levels |= 1U << l;
	push(&w->slot[l][s], t);
}

static void mark_empty(struct fb_wheel *w, unsigned int l, unsigned int s)
{
	w->used[l] &= ~(1ULL << s);
	if (!w->used[l])
		w->levels &= ~(1U << l);
}

/* The slot that comes next; there is one. */
static void next_slot(const struct fb_wheel *w, unsigned int *l, unsigned int *s)
{
	*l = (unsigned int)__builtin_ctz(w->levels);
	*s = (unsigned int)__builtin_ctzll(w->used[*l]);
}

/* Go to the next slot if it begins by `tick`; false: it does not. */
static bool enter_slot(struct fb_wheel *w, uint64_t tick)
{
	struct fb_timer *list;
	uint64_t begin;
	unsigned int l, s;

	if (!w->levels)
		return false;
	next_slot(w, &l, &s);
	/* Its higher digits are base's. */
	begin = (((w->base >> l * BITS) & ~(uint64_t)DIGIT) | s) << l * BITS;
	if (begin > tick)
		return false;
	w->base = begin;
	list = w->slot[l][s];
	w->slot[l][s] = NULL;
	mark_empty(w, l, s);
	if (l) {
		w->moving = list;
		list->pprev = &w->moving;
	} else {
		append_due(w, list->next ? sort(list) : list);
	}
	return true;
}

/* ---- operations ---- */

void fb_wheel_init(struct fb_wheel *w, uint64_t now)
{
	memset(w, 0, sizeof(*w));
	w->base = now >> FB_WHEEL_SHIFT;
	w->due_tail = &w->due;
}

void fb_wheel_add(struct fb_wheel *w, struct fb_timer *t)
{
	t->seq = w->seq++;
	if (tick_of(t) > w->base) {
		place(w, t);
	} else {
		t->next = NULL;
		append_due(w, t);
	}
}

void fb_wheel_del(struct fb_wheel *w, struct fb_timer *t)
{
	uintptr_t at = (uintptr_t)t->pprev - (uintptr_t)w->slot;

	unlink_timer(w, t);
	if (at >= sizeof(w->slot))
		return;
	/* It was the first of a slot. The last, too? */
	at /= sizeof(w->slot[0][0]);
	if (!w->slot[at / SLOTS][at % SLOTS])
		mark_empty(w, (unsigned int)(at / SLOTS), at % SLOTS);
}

struct fb_timer *fb_wheel_take(struct fb_wheel *w, uint64_t now, int *work)
{
	uint64_t tick = now >> FB_WHEEL_SHIFT;
	struct fb_timer *t;

	for (; *work > 0; --*work) {
		t = w->due;
		if (t) {
			unlink_timer(w, t);
			return t;
		}
		t = w->moving;
		if (t) {
			unlink_timer(w, t);
			place(w, t);
		} else if (!enter_slot(w, tick)) {
			if (tick > w->base)	/* nothing lies between */
				w->base = tick;
			return NULL;
		}
	}
	return NULL;
}

uint64_t fb_wheel_next(const struct fb_wheel *w)
{
	unsigned int l, s;

	if (w->due || w->moving)
		return w->base << FB_WHEEL_SHIFT | 1;
	if (!w->levels)
		return UINT64_MAX;
	next_slot(w, &l, &s);
	return w->first[l][s] << FB_WHEEL_SHIFT;
}
