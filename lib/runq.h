/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * runq.h - the run queue of a processor
 *
 * A ring of ready fibers. `head` and `tail` count for ever, a slot is index
 * modulo size.
 *   owner   pushes at the tail; pops the newest from the tail (a child that
 *           ends goes on with its parent); pops the oldest from the head
 *   thief   pops from the head, one at a time, by compare-exchange
 * and a slot `next` for the fiber readied last, which runs before the ring and
 * inherits the quantum; thieves take it in their last round only.
 *
 * Newest against oldest (Chase-Lev). Both can want the last entry:
 *
 *	owner, newest			thief (or owner, oldest)
 *	tail = t			h = load_acquire(head)
 *	full barrier			t' = load_acquire(tail)
 *	h = load(head)			if h == t': empty
 *	h < t:  take slot t		x = slot h
 *	h == t: CAS(head, t, t + 1)	CAS(head, h, h + 1)
 *
 * If the thief takes slot t, it saw head == t, later than the owner saw head
 * < t; by then tail = t was visible (the barrier), so it saw empty instead.
 * Therefore thieves take one entry per compare-exchange: a batch would reach
 * over entries that the owner pops without looking. Only the owner moves a
 * batch (overflow), since it cannot pop newest meanwhile.
 *
 * With one processor there are no thieves, and no locked instruction.
 */
#ifndef FB_RUNQ_H
#define FB_RUNQ_H

#include <stdbool.h>
#include <stdint.h>

#define FB_RUNQ_SIZE	256u
#define FB_RUNQ_MASK	(FB_RUNQ_SIZE - 1)

struct fiber;

struct fb_runq {
	_Alignas(64) uint32_t head;	/* atomic; thieves and owner */
	_Alignas(64) uint32_t tail;	/* atomic; owner writes, thieves read */
	bool shared;			/* constant: there are thieves */
	struct fiber *next;		/* atomic; owner sets, all take */
	_Alignas(64) struct fiber *ring[FB_RUNQ_SIZE];	/* owner writes */
};

/* Owner only. */
static inline bool fb_runq_full(const struct fb_runq *q)
{
	/* Pairs with the head compare-exchange of thieves: the slot is free. */
	return q->tail - __atomic_load_n(&q->head, __ATOMIC_ACQUIRE) ==
		FB_RUNQ_SIZE;
}

/* Any thread; a hint, exact for the owner as to "not empty". */
static inline bool fb_runq_empty(const struct fb_runq *q)
{
	return __atomic_load_n(&q->head, __ATOMIC_RELAXED) ==
		       __atomic_load_n(&q->tail, __ATOMIC_RELAXED) &&
	       !__atomic_load_n(&q->next, __ATOMIC_RELAXED);
}

/* Owner only; not when full. */
static inline void fb_runq_push(struct fb_runq *q, struct fiber *f)
{
	uint32_t t = q->tail;

	__atomic_store_n(&q->ring[t & FB_RUNQ_MASK], f, __ATOMIC_RELAXED);
	/* Pairs with the tail load of fb_runq_pop and fb_runq_steal. */
	__atomic_store_n(&q->tail, t + 1, __ATOMIC_RELEASE);
}

/* Oldest entry of the ring. Owner only (thieves have fb_runq_steal). */
static inline struct fiber *fb_runq_pop(struct fb_runq *q)
{
	uint32_t h = __atomic_load_n(&q->head, __ATOMIC_ACQUIRE);
	struct fiber *f;

	for (;;) {
		if (h == q->tail)
			return NULL;
		f = q->ring[h & FB_RUNQ_MASK];
		if (!q->shared) {
			q->head = h + 1;
			return f;
		}
		/* Pairs with the same in fb_runq_steal. */
		if (__atomic_compare_exchange_n(&q->head, &h, h + 1, true,
						__ATOMIC_ACQ_REL,
						__ATOMIC_ACQUIRE))
			return f;
	}
}

/* Take back the newest entry; false if it is gone. Owner only, ring not empty. */
static inline bool fb_runq_pop_newest(struct fb_runq *q)
{
	uint32_t t = q->tail - 1, h;
	bool won = true;

	if (!q->shared) {
		q->tail = t;
		return true;
	}
	/* The full barrier of the table above: an exchange is cheaper. */
	(void)__atomic_exchange_n(&q->tail, t, __ATOMIC_SEQ_CST);
	h = __atomic_load_n(&q->head, __ATOMIC_RELAXED);
	if (__builtin_expect((int32_t)(t - h) > 0, 1))
		return true;
	if (h == t)	/* the last one: race the thieves for it */
		won = __atomic_compare_exchange_n(&q->head, &h, t + 1, false,
						  __ATOMIC_ACQ_REL,
						  __ATOMIC_RELAXED);
	else
		won = false;
	__atomic_store_n(&q->tail, t + 1, __ATOMIC_RELEASE);
	return won;
}

/* The run-next slot. Owner sets (returns what it held), anyone takes. */
static inline struct fiber *fb_runq_swap_next(struct fb_runq *q, struct fiber *f)
{
	struct fiber *old;

	if (q->shared)	/* Pairs with itself: take and set race. */
		return __atomic_exchange_n(&q->next, f, __ATOMIC_ACQ_REL);
	old = q->next;
	q->next = f;
	return old;
}

/* Move half of a full ring to a list; returns its length. Owner only. */
uint32_t fb_runq_overflow(struct fb_runq *q, struct fiber **head,
			  struct fiber **tail);
/*
 * Move up to half of `from` (its next slot only if `all`) to q and return one
 * of them, or NULL. Owner of q, which is empty.
 */
struct fiber *fb_runq_steal(struct fb_runq *q, struct fb_runq *from, bool all);

#endif
