// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * wheel.c - timers in order: a hierarchical timing wheel
 *
 * Time goes in ticks; a timer's tick is the first at which it is due, so it is
 * never early and late by a tick at most. A tick is a number of eight digits: the
 * lowest of 12 bits, the others of 6. The lowest level, `near`, has a slot for each
 * tick of the block of 4,096 that `base` is in, and of the next block; far level l has
 * one for each block, or what the 64 slots of a window of the level below are, of its
 * own window and the next. A timer lies in the lowest level that reaches so far. So
 *
 *   - within a level what comes next is the lowest bit of this window, or of the next;
 *   - no far slot that base is in, or that comes right after, holds any: these have
 *     been taken out, and are dealt among the levels below;
 *   - UINT64_MAX has its slot as any other.
 *
 * To add and to delete are a few stores. A timer moves at most once for each level.
 * What costs there is to touch it, for it lies on a stack that nobody has used for
 * long; hence the wide lowest level, so that few are moved more than once. A far slot
 * may hold very many (10,000 that sleep 0.1 s on average: 3,000; with a million in a
 * minute: 70,000), and who is due behind them must not wait until all are dealt. So
 * that is done ahead, a few whenever somebody looks what is due, during all of the
 * slot before:
 *
 *	slot of level l			list		dealt
 *	comes after base's		ahead[l]	AHEAD at a look
 *	base has come to it		moving[l]	before anything else, by the
 *							caller's measure
 *
 * A near slot is sorted by (when, seq), and goes to the end of `due` as a whole: timers
 * leave in the order of their deadlines, then of their adding. One that is added when
 * already due comes after all that were due before.
 *
 * first[] lets an idle processor sleep until the earliest timer itself, not until
 * the slot begins. A deletion does not raise it (unless it empties the slot), so
 * it may be too early. To come then deals the slot out, and is so not repeated.
 * So too ahead_first[].
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
#define AHEAD		16	/* 10,000 sleepers are looked at 1,000 times a block */

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

/* How many bits of a tick stand below the slot's number, at far level l. */
static unsigned int shift_of(unsigned int l)
{
	return NEAR_BITS + l * FAR_BITS;
}

/* The number of its slot at far level l: the window, half, of the level below. */
static uint64_t block(uint64_t tick, unsigned int l)
{
	return tick >> shift_of(l);
}

static void place_near(struct fb_wheel *w, struct fb_timer *t, uint64_t tick)
{
	unsigned int h = block(tick, 0) & 1, s = (unsigned int)tick % NEAR;

	w->near_used[h][s / 64] |= 1ULL << s % 64;
	w->near_words[h] |= 1ULL << s / 64;
	push(&w->near[h][s], t);
}

/* Its tick is not before base. */
static void place(struct fb_wheel *w, struct fb_timer *t)
{
	uint64_t tick = tick_of(t), bit;
	unsigned int l = 0, h, s;

	if (block(tick, 0) - block(w->base, 0) <= 1) {
		place_near(w, t, tick);
		return;
	}
	while (block(tick, l + 1) - block(w->base, l + 1) > 1)
		l++;
	h = block(tick, l + 1) & 1;
	s = (unsigned int)block(tick, l) % FAR;
	bit = 1ULL << s;
	if (!(w->far_used[l][h] & bit) || tick < w->first[l][h][s])
		w->first[l][h][s] = tick;
	w->far_used[l][h] |= bit;
	w->levels |= 1U << l;
	push(&w->far[l][h][s], t);
}

static void near_empty(struct fb_wheel *w, unsigned int h, unsigned int s)
{
	w->near_used[h][s / 64] &= ~(1ULL << s % 64);
	if (!w->near_used[h][s / 64])
		w->near_words[h] &= ~(1ULL << s / 64);
}

static void far_empty(struct fb_wheel *w, unsigned int l, unsigned int h,
		      unsigned int s)
{
	w->far_used[l][h] &= ~(1ULL << s);
	if (!(w->far_used[l][0] | w->far_used[l][1]))
		w->levels &= ~(1U << l);
}

/* The first slot of a half; there is one. */
static unsigned int first_near(const struct fb_wheel *w, unsigned int h)
{
	unsigned int i = (unsigned int)__builtin_ctzll(w->near_words[h]);

	return i * 64 + (unsigned int)__builtin_ctzll(w->near_used[h][i]);
}

/* The first slot of level l, which has one: its half, and block(). */
static uint64_t first_far(const struct fb_wheel *w, unsigned int l, unsigned int *h)
{
	uint64_t window = block(w->base, l + 1);

	*h = window & 1;
	if (!w->far_used[l][*h]) {
		window++;
		*h ^= 1;
	}
	return window * FAR + (unsigned int)__builtin_ctzll(w->far_used[l][*h]);
}

static uint64_t less(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/*
 * The earliest tick of all beyond base's block (or, with deletions, before it); or, if
 * `begin`, that where the first slot with any of them begins.
 */
static uint64_t beyond(const struct fb_wheel *w, bool begin)
{
	uint64_t at = block(w->base, 0) + 1, tick = UINT64_MAX;
	unsigned int h = at & 1, l;
	uint32_t m;

	if (w->near_words[h])
		tick = at * NEAR + (begin ? 0 : first_near(w, h));
	for (m = w->aheads; m; m &= m - 1) {
		l = (unsigned int)__builtin_ctz(m);
		if (w->ahead[l])
			tick = less(tick, !begin ? w->ahead_first[l] :
				    (block(w->base, l) + 1) << shift_of(l));
	}
	for (m = w->levels; m; m &= m - 1) {
		l = (unsigned int)__builtin_ctz(m);
		at = first_far(w, l, &h);
		tick = less(tick, !begin ? w->first[l][h][at % FAR] :
			    at << shift_of(l));
	}
	return tick;
}

/* ---- to go on ---- */

static struct fb_timer *take_list(struct fb_timer **from, struct fb_timer **to)
{
	*to = *from;
	if (*to)
		(*to)->pprev = to;
	*from = NULL;
	return *to;
}

/* All of slot `at` of far level l to *to, which is empty. False: there is none. */
static bool take_slot(struct fb_wheel *w, unsigned int l, uint64_t at,
		      struct fb_timer **to, uint64_t *first)
{
	unsigned int h = at / FAR & 1, s = at % FAR;

	if (!(w->far_used[l][h] >> s & 1))
		return false;
	*first = w->first[l][h][s];
	far_empty(w, l, h, s);
	return take_list(&w->far[l][h][s], to);
}

/* Nothing lies between base and tick, and nothing moves. */
static void set_base(struct fb_wheel *w, uint64_t tick)
{
	uint64_t old = w->base, at, first;

	w->base = tick;
	for (unsigned int l = 0; l < FB_WHEEL_LEVELS; l++) {
		at = block(tick, l);
		if (at == block(old, l))
			break;
		/* What was to be dealt ahead, or after a leap the slot itself. */
		if (take_list(&w->ahead[l], &w->moving[l]) ||
		    take_slot(w, l, at, &w->moving[l], &first))
			w->moves |= 1U << l;
		w->aheads &= ~(1U << l);
		if (take_slot(w, l, at + 1, &w->ahead[l], &w->ahead_first[l]))
			w->aheads |= 1U << l;
	}
}

/* The next near slot, if it is one up to `tick`. */
static bool enter_near(struct fb_wheel *w, uint64_t tick)
{
	unsigned int h = block(w->base, 0) & 1, s;
	struct fb_timer *list;
	uint64_t at;

	if (!w->near_words[h])
		return false;
	s = first_near(w, h);
	at = block(w->base, 0) * NEAR + s;
	if (at > tick)
		return false;
	w->base = at;
	list = w->near[h][s];
	w->near[h][s] = NULL;
	near_empty(w, h, s);
	append_due(w, sort(list));
	return true;
}

/* Go to the next slot if it begins by `tick`; false: it does not. */
static bool enter_slot(struct fb_wheel *w, uint64_t tick)
{
	uint64_t begin;

	if (enter_near(w, tick))
		return true;
	if (block(tick, 0) <= block(w->base, 0))
		return false;
	begin = beyond(w, true);
	if (begin > tick)
		return false;
	set_base(w, begin);
	return true;
}

/* Deal one out of the lists of `m`; false: they are empty. */
static bool deal(struct fb_wheel *w, struct fb_timer **list, uint32_t *m)
{
	struct fb_timer *t;

	for (; *m; *m &= *m - 1) {
		t = list[__builtin_ctz(*m)];
		if (t) {
			__builtin_prefetch(t->next);
			unlink_timer(w, t);
			place(w, t);
			return true;
		}
	}
	return false;
}

/* Nothing up to `tick` is due. */
static void rest(struct fb_wheel *w, uint64_t tick, int work)
{
	if (tick > w->base)
		set_base(w, tick);
	for (int n = work < AHEAD ? work : AHEAD; n; n--)
		if (!deal(w, w->ahead, &w->aheads))
			break;
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
	unsigned int h, s;

	unlink_timer(w, t);
	/* It was the first of a slot. The last, too? */
	if (near < sizeof(w->near)) {
		near /= sizeof(w->near[0][0]);
		h = (unsigned int)(near / NEAR);
		s = near % NEAR;
		if (!w->near[h][s])
			near_empty(w, h, s);
	} else if (far < sizeof(w->far)) {
		far /= sizeof(w->far[0][0][0]);
		h = far / FAR & 1;
		s = far % FAR;
		if (!w->far[far / FAR / 2][h][s])
			far_empty(w, (unsigned int)(far / FAR / 2), h, s);
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
		if (!deal(w, w->moving, &w->moves) && !enter_slot(w, tick)) {
			rest(w, tick, *work);
			return NULL;
		}
	}
	return NULL;
}

bool fb_wheel_busy(const struct fb_wheel *w)
{
	for (uint32_t m = w->moves; m; m &= m - 1)
		if (w->moving[__builtin_ctz(m)])
			return true;
	return w->due;
}

uint64_t fb_wheel_next(const struct fb_wheel *w)
{
	unsigned int h = block(w->base, 0) & 1;
	uint64_t tick;

	if (fb_wheel_busy(w))
		return w->base << FB_WHEEL_SHIFT | 1;
	if (w->near_words[h])
		tick = block(w->base, 0) * NEAR + first_near(w, h);
	else
		tick = beyond(w, false);
	return tick == UINT64_MAX ? tick : tick << FB_WHEEL_SHIFT;
}

bool fb_wheel_empty(const struct fb_wheel *w)
{
	return fb_wheel_next(w) == UINT64_MAX;
}
