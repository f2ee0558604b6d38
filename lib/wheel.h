/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * wheel.h - timers in order: a hierarchical timing wheel
 *
 * A data structure alone: the caller locks. See wheel.c.
 */
#ifndef FB_WHEEL_H
#define FB_WHEEL_H

#include <stdbool.h>
#include <stdint.h>

struct fiber;
struct fb_processor;

/*
 * Lives with whoever waits, so in a frame of a fiber too. The caller of
 * fb_timer_add sets the first two.
 */
struct fb_timer {
	uint64_t when;			/* CLOCK_MONOTONIC, ns */
	/*
	 * Due, and taken out. Called with the timer lock of a processor held by
	 * the owner of any, in_fiber == 0: atomics only, no lock, no system
	 * call. *t is the caller's no more. Returns a fiber to be made ready,
	 * or NULL; or FB_TIMER_CALLS: *t stays, see callback.c.
	 */
	struct fiber *(*fire)(struct fb_timer *t);
	struct fb_processor *proc;	/* whose lock; constant while armed */
	/* proc->timer_lock */
	struct fb_timer *next, **pprev;	/* pprev NULL: not in a wheel */
	uint64_t seq;			/* of those with one deadline, the older */
};

#define FB_TIMER_CALLS	((struct fiber *)1)

#define FB_WHEEL_SHIFT	14		/* a tick is 2^14 ns, 16 us */
#define FB_WHEEL_NEAR	4096		/* ticks of a block: 67 ms */
#define FB_WHEEL_FAR	64		/* slots of a window of the levels above */
#define FB_WHEEL_LEVELS	7		/* 14 + 12 + 7 * 6 >= 64 */

struct fb_wheel {
	uint64_t base;			/* the tick it has come to */
	uint64_t seq;
	struct fb_timer *due, **due_tail;	/* ticks up to base, in order */
	/* Out of the far slot of level l that base is in, or that comes next. */
	struct fb_timer *moving[FB_WHEEL_LEVELS], *ahead[FB_WHEEL_LEVELS];
	uint64_t ahead_first[FB_WHEEL_LEVELS];	/* as first[], below */
	uint32_t moves, aheads;		/* bit l: the list of l may be not empty */
	uint32_t levels;		/* bit l: far_used[l] is not 0 */
	uint64_t near_words[2];		/* bit i: near_used[..][i] is not 0 */
	uint64_t far_used[FB_WHEEL_LEVELS][2];	/* bit s: the slot is not empty */
	uint64_t near_used[2][FB_WHEEL_NEAR / 64];
	/* Rings: [half] is the window of base, or the next one. */
	struct fb_timer *far[FB_WHEEL_LEVELS][2][FB_WHEEL_FAR];
	/* no timer of the slot has an earlier tick; undefined while it is empty */
	uint64_t first[FB_WHEEL_LEVELS][2][FB_WHEEL_FAR];
	struct fb_timer *near[2][FB_WHEEL_NEAR];
};

/* Something is due, or on its way from a slot that base is in. */
bool fb_wheel_busy(const struct fb_wheel *w);
bool fb_wheel_empty(const struct fb_wheel *w);

/* w is not moved afterwards. */
void fb_wheel_init(struct fb_wheel *w, uint64_t now);
void fb_wheel_add(struct fb_wheel *w, struct fb_timer *t);
/* t is in w. */
void fb_wheel_del(struct fb_wheel *w, struct fb_timer *t);
/*
 * Take out the earliest timer that is due. NULL: none is, or *work steps were
 * not enough to find it (*work is 0 then: go on later). `now` never goes back.
 */
struct fb_timer *fb_wheel_take(struct fb_wheel *w, uint64_t now, int *work);
/*
 * When fb_wheel_take has something to do; UINT64_MAX: never. Exact (to the tick)
 * unless timers were deleted: then maybe too early, but not for the same again.
 */
uint64_t fb_wheel_next(const struct fb_wheel *w);

static inline bool fb_wheel_holds(const struct fb_timer *t)
{
	return t->pprev;
}

#endif
