// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * runq.c - the slow sides of the run queue: overflow and theft
 *
 * The protocol stands in runq.h.
 */
#include "fb.h"

uint32_t fb_runq_overflow(struct fb_runq *q, struct fiber **head,
			  struct fiber **tail)
{
	uint32_t n = FB_RUNQ_SIZE / 2, i, h;

	h = __atomic_load_n(&q->head, __ATOMIC_ACQUIRE);
	if (q->tail - h < n)	/* thieves were faster */
		return 0;
	for (i = 0; i < n; i++) {
		struct fiber *f = q->ring[(h + i) & FB_RUNQ_MASK];

		/* Ours only if the exchange below succeeds; relinked then. */
		if (i == 0)
			*head = f;
		*tail = f;
	}
	if (!__atomic_compare_exchange_n(&q->head, &h, h + n, false,
					 __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
		return 0;
	/* The slots stay intact until we push again. */
	for (i = 0; i + 1 < n; i++)
		q->ring[(h + i) & FB_RUNQ_MASK]->link =
			q->ring[(h + i + 1) & FB_RUNQ_MASK];
	(*tail)->link = NULL;
	return n;
}

/* One entry from the head of another processor's ring. */
static struct fiber *steal_one(struct fb_runq *from)
{
	uint32_t h = __atomic_load_n(&from->head, __ATOMIC_ACQUIRE), t;
	struct fiber *f;

	/* Pairs with the exchange in fb_runq_pop_newest: head before tail. */
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	t = __atomic_load_n(&from->tail, __ATOMIC_ACQUIRE);
	if ((int32_t)(t - h) <= 0)
		return NULL;
	f = __atomic_load_n(&from->ring[h & FB_RUNQ_MASK], __ATOMIC_RELAXED);
	if (!__atomic_compare_exchange_n(&from->head, &h, h + 1, false,
					 __ATOMIC_SEQ_CST, __ATOMIC_RELAXED))
		return NULL;
	return f;
}

static struct fiber *steal_next(struct fb_runq *from)
{
	if (!__atomic_load_n(&from->next, __ATOMIC_RELAXED))
		return NULL;
	return __atomic_exchange_n(&from->next, NULL, __ATOMIC_ACQ_REL);
}

struct fiber *fb_runq_steal(struct fb_runq *q, struct fb_runq *from, bool all)
{
	uint32_t n = __atomic_load_n(&from->tail, __ATOMIC_RELAXED) -
		     __atomic_load_n(&from->head, __ATOMIC_RELAXED);
	struct fiber *first, *f;

	if ((int32_t)n <= 0)
		return all ? steal_next(from) : NULL;
	first = steal_one(from);
	/* Half, rounded up, of what was there; ours is empty, so it fits. */
	for (n = (n + 1) / 2; first && n > 1; n--) {
		f = steal_one(from);
		if (!f)
			break;
		fb_runq_push(q, f);
	}
	return first;
}
