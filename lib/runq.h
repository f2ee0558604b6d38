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
 *	full barrier			full barrier
 *	h = load(head)			t' = load_acquire(tail)
 *	h < t:  take slot t		if h == t': empty
 *	h == t: CAS(head, t, t + 1)	x = slot h
 *					CAS(head, h, h + 1)
 *
 * If the thief takes slot t, it saw head == t, later than the owner saw head
 * < t; by then tail = t was visible (the barrier), so it saw empty instead.
 * Therefore thieves take one entry per compare-exchange: a batch would reach
 * over entries that the owner pops without looking. Only the owner moves a
 * batch (overflow), since it cannot pop newest meanwhile.
 *
 * Growth. The owner alone changes the array: it copies [head, tail) to the
 * same indexes of one twice as large, then store_release(ring), then pushes on.
 * A thief may read slot h in an array that is not the newest any more:
 *
 *	owner				thief
 *	new slots = old slots		h = load_acquire(head)
 *	store_release(ring, new)	t' = load_acquire(tail)
 *	new slot t = x			r = load_acquire(ring)
 *	store_release(tail, t + 1)	x = slot h of r; CAS(head, h, h + 1)
 *
 *   Its CAS succeeds, so head was h all the time from its first line on, and
 *   the entry of index h, once pushed, was neither popped (the table above) nor
 *   its slot used again (tail - head never exceeds the size of any array in
 *   use). If it was pushed before the growth, both arrays have it. If it was
 *   pushed after, t' > h came from that push or a later store to tail, so the
 *   thief's load of ring, being later, gives the new array or a newer one.
 *
 * Old arrays stay until fini: a thief may be reading one. Together they are no
 * larger than the newest. Rings do not shrink: a burst costs address space, and
 * of its cost in cache misses the next burst is the reason.
 *
 * `limit` is where the owner last knew the ring to be full: head as seen then,
 * plus the size. Head only grows, so it is safe to be late, and a push need not
 * read head's cache line.
 *
 * Without a fence. With few processors, and membarrier(2), the owner's barrier
 * in the table above is the compiler's only, and the thief has
 *
 *	h = load_acquire(head); membarrier; t' = load_acquire(tail)
 *
 * which makes every running thread of the process pass a full barrier between
 * its two loads (a thread that does not run passes one when it is scheduled).
 * If that falls before the owner's tail = t, the owner's load of head comes
 * after the thief saw head == t, so it is not < t: the owner does not take t
 * without a CAS. If it falls after, the thief sees tail = t: empty.
 *
 * That costs microseconds, on other processors too. So the thief does it for
 * the last few entries only: [head, split) is `public`, free to take by the
 * table above with `split` in place of tail, by fences on both sides:
 *
 *	owner, before it pops newest t < split	thief
 *	split = s <= t				h = load_acquire(head)
 *	full barrier				full barrier
 *	tail = t; h = load(head)		s' = load_acquire(split)
 *	h < t: take slot t			t' = load_acquire(tail)
 *						h < s', h < t': CAS(head, h, h + 1)
 *
 *   By the same argument a thief that takes t saw split <= t, or a value of
 *   split stored after the owner popped t. Then index t was pushed anew: as the
 *   thief's load of tail follows that of split, t' is no older than the pop,
 *   and t' > t means that the new entry is there.
 *
 * The owner raises split as it pushes: over all, the new entry too, in a yield
 * or for a fiber made ready; but a spawn keeps the newest FB_RUNQ_KEEP out, for
 * their children are likely to end soon. It lowers it by half as many, so that
 * a tree of spawns needs a fence now and then, not at each end.
 *
 * Rejected: a barrier in each theft (a batch would take one for every entry).
 *
 * With one processor there are no thieves, and no locked instruction.
 *
 * selftests/model/steal.pml checks this, with a store buffer.
 */
#ifndef FB_RUNQ_H
#define FB_RUNQ_H

#include <stdbool.h>
#include <stdint.h>

#define FB_RUNQ_FIRST	256u		/* entries of the first array */
#define FB_RUNQ_LAST	(1u << 22)	/* and of the last: 32 MiB */
#define FB_RUNQ_BATCH	128u		/* most that one theft or overflow moves */
#define FB_RUNQ_FAR	2048u		/* more fibers than the caches hold */
#define FB_RUNQ_KEEP	8u		/* entries that need a membarrier */

struct fiber;

/* Its slots follow it: atomic; owner writes. No array of no size: one is in a struct. */
struct fb_ring {
	uint32_t mask;			/* constant */
	struct fb_ring *older;		/* constant; for fini */
};

struct fb_runq {
	_Alignas(64) uint32_t head;	/* atomic; thieves and owner */
	_Alignas(64) uint32_t tail;	/* atomic; owner writes, thieves read */
	uint32_t limit;			/* owner */
	uint32_t mask;			/* owner: ring->mask */
	uint32_t split;			/* atomic; owner writes, thieves read */
	bool shared;			/* constant: there are thieves */
	bool fenceless;			/* constant: they use membarrier */
	struct fb_ring *ring;		/* atomic; owner writes, thieves read */
	struct fiber *next;		/* atomic; owner sets, all take */
	_Alignas(64) struct fb_ring first;
	struct fiber *first_slot[FB_RUNQ_FIRST];
};

#define FB_INLINE static inline __attribute__((always_inline))

void fb_runq_init(struct fb_runq *q, uint32_t processors);
void fb_runq_fini(struct fb_runq *q);
/*
 * Look at head again, grow if it is worth while: room for one more, or false
 * (no memory, or the largest already). Owner only.
 */
bool fb_runq_room(struct fb_runq *q);

/* Owner only; a hint: see fb_runq_room. */
FB_INLINE bool fb_runq_full(const struct fb_runq *q)
{
	return q->tail == q->limit;
}

/* Any thread; a hint, exact for the owner as to "not empty". */
FB_INLINE bool fb_runq_empty(const struct fb_runq *q)
{
	return __atomic_load_n(&q->head, __ATOMIC_RELAXED) ==
		       __atomic_load_n(&q->tail, __ATOMIC_RELAXED) &&
	       !__atomic_load_n(&q->next, __ATOMIC_RELAXED);
}

/* Any thread: the slot of index i, of a ring in use. */
FB_INLINE struct fiber **fb_ring_slot(struct fb_ring *r, uint32_t i)
{
	return (struct fiber **)(r + 1) + (i & r->mask);
}

/* Owner only: the slot of index i. */
FB_INLINE struct fiber **fb_runq_slot(struct fb_runq *q, uint32_t i)
{
	return (struct fiber **)(q->ring + 1) + (i & q->mask);
}

/* The entries below t are public. Owner only. */
FB_INLINE void fb_runq_publish_to(struct fb_runq *q, uint32_t t)
{
	/* Pairs with the split load of steal_one(). */
	__atomic_store_n(&q->split, t, __ATOMIC_RELEASE);
}

/* The entry pushed next, and all before, are public. Owner only. */
FB_INLINE void fb_runq_publish(struct fb_runq *q)
{
	fb_runq_publish_to(q, q->tail + 1);
}

/* The same, but for the newest. Owner only. */
FB_INLINE void fb_runq_publish_some(struct fb_runq *q)
{
	if ((int32_t)(q->tail - q->split) >= (int32_t)FB_RUNQ_KEEP)
		/* Pairs with the split load of steal_one(). */
		__atomic_store_n(&q->split, q->tail - FB_RUNQ_KEEP / 2,
				 __ATOMIC_RELEASE);
}

/* Owner only; not when full. */
FB_INLINE void fb_runq_push(struct fb_runq *q, struct fiber *f)
{
	uint32_t t = q->tail;

	fb_runq_publish(q);
	__atomic_store_n(fb_runq_slot(q, t), f, __ATOMIC_RELAXED);
	/* Pairs with the tail load of fb_runq_pop and fb_runq_steal. */
	__atomic_store_n(&q->tail, t + 1, __ATOMIC_RELEASE);
}

/*
 * With very many fibers each switch misses every cache, and the TLB first of
 * all: fetch ahead the descriptor and first frames (just below) of one whose
 * turn comes soon. Whatever the slot holds, a prefetch does no harm.
 */
FB_INLINE void fb_runq_prefetch(struct fb_runq *q, uint32_t h)
{
	const char *f = (const char *)*fb_runq_slot(q, h + 4);

	__builtin_prefetch(f + 128, 1);
	__builtin_prefetch(f + 64, 1);
	__builtin_prefetch(f, 1);
	__builtin_prefetch(f - 64, 1);
	__builtin_prefetch(f - 128, 1);
	__builtin_prefetch(f - 192, 1);
}

/* Oldest entry of the ring. Owner only (thieves have fb_runq_steal). */
FB_INLINE struct fiber *fb_runq_pop(struct fb_runq *q)
{
	/* Pairs with the head compare-exchange of thieves. */
	uint32_t h = __atomic_load_n(&q->head, __ATOMIC_ACQUIRE);
	struct fiber *f;

	for (;;) {
		if (h == q->tail)
			return NULL;
		f = *fb_runq_slot(q, h);
		if (__builtin_expect(q->tail - h > FB_RUNQ_FAR, 0))
			fb_runq_prefetch(q, h);
		if (!q->shared) {
			q->head = h + 1;
			return f;
		}
		/* Pairs with the same in steal_one(). */
		if (__atomic_compare_exchange_n(&q->head, &h, h + 1, true,
						__ATOMIC_ACQ_REL,
						__ATOMIC_ACQUIRE))
			return f;
	}
}

/*
 * Take back the newest entry; false if it is gone. *left: entries remain.
 * Owner only, ring not empty.
 */
FB_INLINE bool fb_runq_pop_newest(struct fb_runq *q, bool *left)
{
	uint32_t t = q->tail - 1, h;
	bool won = false;

	if (!q->shared) {
		q->tail = t;
		*left = t != q->head;
		return true;
	}
	if (__builtin_expect(q->fenceless, 1)) {
		if (__builtin_expect((int32_t)(t - q->split) < 0, 0))
			/* A full barrier; pairs with the fence in steal_one(). */
			(void)__atomic_exchange_n(&q->split,
						  t - FB_RUNQ_KEEP / 2,
						  __ATOMIC_SEQ_CST);
		__atomic_store_n(&q->tail, t, __ATOMIC_RELEASE);
		/* Pairs with the membarrier in steal_one(). */
		__atomic_signal_fence(__ATOMIC_SEQ_CST);
	} else {
		/*
		 * The full barrier of the table above: an exchange is cheaper.
		 * Pairs with the fence in steal_one().
		 */
		(void)__atomic_exchange_n(&q->tail, t, __ATOMIC_SEQ_CST);
	}
	h = __atomic_load_n(&q->head, __ATOMIC_RELAXED);
	*left = true;
	if (__builtin_expect((int32_t)(t - h) > 0, 1))
		return true;
	*left = false;
	/*
	 * The head pairs with its compare-exchange in steal_one(), the tail
	 * with its load there.
	 */
	if (h == t)	/* the last one: race the thieves for it */
		won = __atomic_compare_exchange_n(&q->head, &h, t + 1, false,
						  __ATOMIC_ACQ_REL,
						  __ATOMIC_RELAXED);
	__atomic_store_n(&q->tail, t + 1, __ATOMIC_RELEASE);
	return won;
}

/* The run-next slot. Owner sets (returns what it held), anyone takes. */
FB_INLINE struct fiber *fb_runq_swap_next(struct fb_runq *q, struct fiber *f)
{
	struct fiber *old;

	if (q->shared)	/* Pairs with itself: take and set race. */
		return __atomic_exchange_n(&q->next, f, __ATOMIC_ACQ_REL);
	old = q->next;
	q->next = f;
	return old;
}

/* Move a batch of a full ring to a list; returns its length. Owner only. */
uint32_t fb_runq_overflow(struct fb_runq *q, struct fiber **head,
			  struct fiber **tail);
/*
 * Move up to half of `from`, at most a batch (its next slot only if `all`), to
 * q and return one of them, or NULL. Owner of q, which is empty.
 */
struct fiber *fb_runq_steal(struct fb_runq *q, struct fb_runq *from, bool all);
/* The oldest of the ring alone, or NULL. Any thread but the owner. */
struct fiber *fb_runq_steal_oldest(struct fb_runq *from);

#endif
