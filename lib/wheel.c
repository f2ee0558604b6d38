// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * wheel.c - timers in order: a hierarchical timing wheel
 *
 * Time goes in ticks; a timer's tick is the first at which it is due, so it is
 * never early and late by a tick at most. A tick is a number of eight digits: the
 * lowest of 12 bits, the others of 6. A timer that is not due yet lies in the level
 * of the highest digit in which its tick differs from `base` (`near`, or far[] of
 * the level), in the slot that this digit names. So
 *
 *   - all of a level is earlier than all of the next, and of one level a lower
 *     slot is earlier: the lowest bit of the lowest level is what comes next;
 *   - no slot at or below base's own digit is used: nothing wraps;
 *   - UINT64_MAX has its slot as any other.
 *
 * To add and to delete are a few stores. When base comes to a far slot, its timers
 * are dealt out among the levels below: a timer moves at most once for each level.
 * What costs there is to touch a timer, for it lies on a stack that nobody has used
 * for long; hence the wide lowest level, so that few are moved more than once. A far
 * slot may hold very many (with a million timers in a minute, 70,000), so they are
 * dealt from the list `moving`, by the caller's measure; base waits until it is
 * empty. A near slot is sorted by (when, seq), and goes to the end of `due` as a
 * whole: timers leave in the order of their deadlines, then of their adding. One
 * that is added when already due comes after all that were due before.
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

#define NEAR		FB_WHEEL_NEAR
#define NEAR_BITS	12
#define FAR		FB_WHEEL_FAR
#define FAR_BITS	6
#define TICK		(1ULL << FB_WHEEL_SHIFT)
#define TICK_LAST	(UINT64_MAX >> FB_WHEEL_SHIFT)
#define BINS		40

_Static_assert(NEAR == 1 << NEAR_BITS && FAR == 1 << FAR_BITS, "digits");
_Static_assert(FB_WHEEL_SHIFT + NEAR_BITS + FB_WHEEL_LEVELS * FAR_BITS >= 64,
	       "all of time");

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

static struct fb_timer *sort_runs(struct fb_timer *run, struct fb_timer *list)
{
	struct fb_timer *bin[BINS] = { run };	/* [i]: of 2^i runs, or NULL */
	int i;

	while (list) {
		run = cut_run(&list);
		for (i = 0; bin[i]; i++) {
			run = merge(bin[i], run);
			bin[i] = NULL;
		}
		bin[i] = run;
	}
	for (run = NULL, i = 0; i < BINS; i++)
		run = merge(bin[i], run);
	return run;
}

static struct fb_timer *sort(struct fb_timer *list)
{
	struct fb_timer *run = cut_run(&list);

	return list ? sort_runs(run, list) : run;
}

/* ---- slots ---- */

/* Where the digit of far level l begins. */
static unsigned int shift_of(unsigned int l)
{
	return NEAR_BITS + l * FAR_BITS;
}

static void place_near(struct fb_wheel *w, struct fb_timer *t, uint64_t tick)
{
	unsigned int s = (unsigned int)tick % NEAR;

	w->near_used[s / 64] |= 1ULL << s % 64;
	w->near_words |= 1ULL << s / 64;
	push(&w->near[s], t);
}

/* Its tick is not before base. */
static void place(struct fb_wheel *w, struct fb_timer *t)
{
	uint64_t tick = tick_of(t), differs = tick ^ w->base, bit;
	unsigned int l, s;

	if (differs < NEAR) {
		place_near(w, t, tick);
		return;
	}
	l = (63 - (unsigned int)__builtin_clzll(differs) - NEAR_BITS) / FAR_BITS;
	s = (unsigned int)(tick >> shift_of(l)) % FAR;
	bit = 1ULL << s;
	if (!(w->far_used[l] & bit) || tick < w->first[l][s])
		w->first[l][s] = tick;
	w->far_used[l] |= bit;
	w->levels |= 1U << l;
	push(&w->far[l][s], t);
}

static void near_empty(struct fb_wheel *w, unsigned int s)
{
	w->near_used[s / 64] &= ~(1ULL << s % 64);
	if (!w->near_used[s / 64])
		w->near_words &= ~(1ULL << s / 64);
}

static void far_empty(struct fb_wheel *w, unsigned int l, unsigned int s)
{
	w->far_used[l] &= ~(1ULL << s);
	if (!w->far_used[l])
		w->levels &= ~(1U << l);
}

/* Their first slot; there is one. */
static unsigned int next_near(const struct fb_wheel *w)
{
	unsigned int i = (unsigned int)__builtin_ctzll(w->near_words);

	return i * 64 + (unsigned int)__builtin_ctzll(w->near_used[i]);
}

static void next_far(const struct fb_wheel *w, unsigned int *l, unsigned int *s)
{
	*l = (unsigned int)__builtin_ctz(w->levels);
	*s = (unsigned int)__builtin_ctzll(w->far_used[*l]);
}

/* Its tick: the higher digits are base's. */
static uint64_t near_tick(const struct fb_wheel *w, unsigned int s)
{
	return (w->base & ~(uint64_t)(NEAR - 1)) | s;
}

static bool enter_near(struct fb_wheel *w, uint64_t tick)
{
	unsigned int s = next_near(w);
	struct fb_timer *list = w->near[s];

	if (near_tick(w, s) > tick)
		return false;
	w->base = near_tick(w, s);
	w->near[s] = NULL;
	near_empty(w, s);
	append_due(w, sort(list));
	return true;
}

/* Go to the next slot if it begins by `tick`; false: it does not. */
static bool enter_slot(struct fb_wheel *w, uint64_t tick)
{
	uint64_t begin;
	unsigned int l, s;

	if (w->near_words)
		return enter_near(w, tick);
	if (!w->levels)
		return false;
	next_far(w, &l, &s);
	begin = (((w->base >> shift_of(l)) & ~(uint64_t)(FAR - 1)) | s)
		<< shift_of(l);
	if (begin > tick)
		return false;
	w->base = begin;
	w->moving = w->far[l][s];
	w->moving->pprev = &w->moving;
	w->far[l][s] = NULL;
	far_empty(w, l, s);
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
	uintptr_t near = (uintptr_t)t->pprev - (uintptr_t)w->near;
	uintptr_t far = (uintptr_t)t->pprev - (uintptr_t)w->far;

	unlink_timer(w, t);
	/* It was the first of a slot. The last, too? */
	if (near < sizeof(w->near)) {
		near /= sizeof(w->near[0]);
		if (!w->near[near])
			near_empty(w, (unsigned int)near);
	} else if (far < sizeof(w->far)) {
		far /= sizeof(w->far[0][0]);
		if (!w->far[far / FAR][far % FAR])
			far_empty(w, (unsigned int)(far / FAR), far % FAR);
	}
}

struct fb_timer *fb_wheel_take(struct fb_wheel *w, uint64_t now, int *work)
{
	uint64_t tick = now >> FB_WHEEL_SHIFT;
	struct fb_timer *t;

	for (; *work > 0; --*work) {
		t = w->due;
		if (t) {
			/* on its way while this one is fired */
			__builtin_prefetch(t->next);
			unlink_timer(w, t);
			return t;
		}
		t = w->moving;
		if (t) {
			__builtin_prefetch(t->next);
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
	if (w->near_words)
		return near_tick(w, next_near(w)) << FB_WHEEL_SHIFT;
	if (!w->levels)
		return UINT64_MAX;
	next_far(w, &l, &s);
	return w->first[l][s] << FB_WHEEL_SHIFT;
}
