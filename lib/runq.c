// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * runq.c - the slow sides of the run queue: growth, overflow and theft
 *
 * The protocol stands in runq.h.
 */
#include <linux/membarrier.h>
#include <sys/mman.h>

#include "fb.h"

#define FENCELESS_MAX	16

_Static_assert(offsetof(struct fb_runq, first_slot) ==
	       offsetof(struct fb_runq, first) + sizeof(struct fb_ring), "first");

static size_t ring_bytes(uint32_t size)
{
	return sizeof(struct fb_ring) + size * sizeof(struct fiber *);
}

void fb_runq_init(struct fb_runq *q, uint32_t processors)
{
	q->head = q->tail = q->split = 0;
	q->next = NULL;
	q->shared = processors > 1;
	/* With many a membarrier disturbs many. Registered for the process. */
	q->fenceless = q->shared && processors <= FENCELESS_MAX &&
		!fb_os_membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED);
	q->first.mask = q->mask = FB_RUNQ_FIRST - 1;
	q->first.older = NULL;
	q->limit = FB_RUNQ_FIRST;
	q->ring = &q->first;
}

/* No thread looks at q any more. */
void fb_runq_fini(struct fb_runq *q)
{
	struct fb_ring *r = q->ring, *older;

	for (; r && r != &q->first; r = older) {
		older = r->older;
		munmap(r, ring_bytes(r->mask + 1));
	}
	q->ring = NULL;
}

/* ---- growth ---- */

/* Runtime code: mmap waits for no lock that a fiber could hold. */
static bool grow(struct fb_runq *q, uint32_t h)
{
	struct fb_ring *old = q->ring, *r;
	uint32_t size = 2 * (old->mask + 1), i;
	int err = errno;

	r = mmap(NULL, ring_bytes(size), PROT_READ | PROT_WRITE,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	errno = err;
	if (r == MAP_FAILED)
		return false;
	r->mask = size - 1;
	r->older = old;
	for (i = h; i != q->tail; i++)	/* thieves may take some meanwhile */
		*fb_ring_slot(r, i) = *fb_ring_slot(old, i);
	q->mask = r->mask;
	/* Pairs with the ring load in steal_one(): see "Growth". */
	__atomic_store_n(&q->ring, r, __ATOMIC_RELEASE);
	return true;
}

bool fb_runq_room(struct fb_runq *q)
{
	/* Pairs with the head compare-exchange of thieves: the slot is free. */
	uint32_t h = __atomic_load_n(&q->head, __ATOMIC_ACQUIRE);

	/* Half full already: to come back here for every few pushes is slow. */
	if (q->tail - h > q->mask / 2 && q->mask + 1 < FB_RUNQ_LAST)
		grow(q, h);
	q->limit = h + q->mask + 1;
	return q->tail != q->limit;
}

uint32_t fb_runq_overflow(struct fb_runq *q, struct fiber **head,
			  struct fiber **tail)
{
	uint32_t n = FB_RUNQ_BATCH, i, h;

	/* Pairs with the head compare-exchange of thieves. */
	h = __atomic_load_n(&q->head, __ATOMIC_ACQUIRE);
	if (q->tail - h < n)	/* thieves were faster */
		return 0;
	*head = *fb_runq_slot(q, h);
	*tail = *fb_runq_slot(q, h + n - 1);
	/* Ours only if it succeeds. Pairs with the same in steal_one(). */
	if (!__atomic_compare_exchange_n(&q->head, &h, h + n, false,
					 __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
		return 0;
	/* The slots stay intact until we push again. */
	for (i = 0; i + 1 < n; i++)
		(*fb_runq_slot(q, h + i))->link = *fb_runq_slot(q, h + i + 1);
	(*tail)->link = NULL;
	return n;
}

/* ---- theft ---- */

/*
 * One entry from the head of another processor's ring; `last`: even one that
 * needs a membarrier.
 */
static struct fiber *steal_one(struct fb_runq *from, bool last)
{
	/* Pairs with the head exchanges of the owner and of other thieves. */
	uint32_t h = __atomic_load_n(&from->head, __ATOMIC_ACQUIRE), t;
	struct fb_ring *r;
	struct fiber *f;

	/* Pairs with the exchanges in fb_runq_pop_newest: head before the rest. */
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	/* Pairs with the release in fb_runq_publish; before tail. */
	if (from->fenceless &&
	    (int32_t)(__atomic_load_n(&from->split, __ATOMIC_ACQUIRE) - h) <= 0 &&
	    (!last || fb_os_membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED)))
		return NULL;
	/* Pairs with the release in fb_runq_push and fb_switch_push. */
	t = __atomic_load_n(&from->tail, __ATOMIC_ACQUIRE);
	if ((int32_t)(t - h) <= 0)
		return NULL;
	/* Pairs with the release in grow(); after the load of tail. */
	r = __atomic_load_n(&from->ring, __ATOMIC_ACQUIRE);
	f = __atomic_load_n(fb_ring_slot(r, h), __ATOMIC_RELAXED);
	if (!__atomic_compare_exchange_n(&from->head, &h, h + 1, false,
					 __ATOMIC_SEQ_CST, __ATOMIC_RELAXED))
		return NULL;
	return f;
}

static struct fiber *steal_next(struct fb_runq *from)
{
	if (!__atomic_load_n(&from->next, __ATOMIC_RELAXED))
		return NULL;
	/* Pairs with the exchange in fb_runq_swap_next. */
	return __atomic_exchange_n(&from->next, NULL, __ATOMIC_ACQ_REL);
}

struct fiber *fb_runq_steal_oldest(struct fb_runq *from)
{
	return fb_runq_empty(from) ? NULL : steal_one(from, true);
}

struct fiber *fb_runq_steal(struct fb_runq *q, struct fb_runq *from, bool all)
{
	uint32_t n = __atomic_load_n(&from->tail, __ATOMIC_RELAXED) -
		     __atomic_load_n(&from->head, __ATOMIC_RELAXED);
	struct fiber *first, *f;

	if ((int32_t)n <= 0)
		return all ? steal_next(from) : NULL;
	first = steal_one(from, true);
	/* Half, rounded up, of what was there; ours is empty, so it fits. */
	n = (n + 1) / 2;
	if (n > FB_RUNQ_BATCH)
		n = FB_RUNQ_BATCH;
	for (; first && n > 1; n--) {
		if (fb_runq_full(q) && !fb_runq_room(q))
			break;
		f = steal_one(from, false);
		if (!f)
			break;
		fb_runq_push(q, f);
	}
	return first;
}
