// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * depot.c - free blocks of all processors, and memory that goes back
 *
 * For each class, under st.lock, a list of batches and the cold blocks, whose
 * memory the kernel has again:
 *
 *	pool --- too many: a batch ---> newest | batches | oldest
 *	     <--- empty: newest first --		    |
 *	     <--- else: carved anew ---- cold <-- idle for COLD_NS
 *
 * Back to the kernel. A batch goes in as the newest and comes out as the
 * newest, so the oldest ones are those that a lull leaves over: untouched for
 * COLD_NS (the hysteresis) they lose their pages, a few blocks at a time, when a
 * carrier would go to sleep anyway, or when more blocks come in. A timer wakes
 * an idle carrier for it. Up to KEEP_BYTES stay.
 *
 * A free block's first words of ctx are its batch's (struct batch); of a stale
 * fiber only .child is ever read.
 */
#include <string.h>
#include <sys/mman.h>

#include "stack.h"

#define COLD_NS		1000000000ull
#define COLD_STEP	32		/* blocks at a time */
#define KEEP_BYTES	(16u << 20)	/* of a class, in use or not */

#define st fb_st

/* What the first block of a batch holds in its ctx. */
struct batch {
	struct fiber *newer, *older;
	uint64_t since;			/* when it came */
};

/* ---- batches ---- */

static struct batch *batch_of(struct fiber *f)
{
	_Static_assert(sizeof(struct batch) <= 3 * sizeof(void *),
		       "it lies in the words of ctx");
	return (struct batch *)&f->ctx;
}

/* Under st.lock. */
static void unlink_batch(struct fb_klass *q, struct fiber *f)
{
	struct batch *b = batch_of(f);

	if (b->newer)
		batch_of(b->newer)->older = b->older;
	else
		FB_WRITE(q->newest, b->older);
	if (b->older)
		batch_of(b->older)->newer = b->newer;
	else
		FB_WRITE(q->oldest, b->newer);
	for (; f; f = f->link)
		q->free--;
}

/* The newest batch, a list. */
struct fiber *fb_depot_get(unsigned int k)
{
	struct fb_klass *q = &st.k[k];
	struct fiber *f;

	if (!FB_READ(q->newest))
		return NULL;
	fb_lock(&st.lock);
	f = q->newest;
	if (f)
		unlink_batch(q, f);
	fb_unlock(&st.lock);
	return f;
}

void fb_depot_put(unsigned int k, struct fiber *first, size_t n)
{
	struct fb_klass *q = &st.k[k];
	struct batch *b = batch_of(first);

	b->since = fb_clock();
	b->newer = NULL;
	fb_lock(&st.lock);
	b->older = q->newest;
	if (b->older)
		batch_of(b->older)->newer = first;
	else
		FB_WRITE(q->oldest, first);
	FB_WRITE(q->newest, first);
	q->free += n;
	fb_unlock(&st.lock);
}

struct fiber *fb_depot_get_cold(unsigned int k)
{
	struct fb_klass *q = &st.k[k];
	char *base = NULL;

	if (!FB_READ(q->ncold))
		return NULL;
	fb_lock(&st.lock);
	if (q->ncold) {
		FB_WRITE(q->ncold, q->ncold - 1);
		base = q->cold[q->ncold];
	}
	fb_unlock(&st.lock);
	return base ? fb_stack_carve(base, k, true) : NULL;
}

/* ---- memory that goes back ---- */

static bool cold_room(struct fb_klass *q)
{
	size_t max = q->cold_max ? q->cold_max * 2 : st.page / sizeof(char *);
	char **new;

	if (q->ncold + COLD_STEP < q->cold_max)
		return true;
	new = fb_stack_map(max * sizeof(char *), 0);
	if (!new)
		return false;
	if (q->cold) {
		memcpy(new, q->cold, q->ncold * sizeof(char *));
		munmap(q->cold, q->cold_max * sizeof(char *));
	}
	q->cold = new;
	q->cold_max = max;
	return true;
}

/*
 * When the oldest batch of class k becomes cold; FB_NEVER: nothing to give
 * back. A block whose canary lies in the memory, and a packed one, stay.
 */
static uint64_t cold_at(unsigned int k)
{
	struct fb_klass *q = &st.k[k];
	uint64_t at = FB_NEVER;

	if (!q->stride || fb_klass_packed(k) || !FB_READ(q->oldest))
		return FB_NEVER;
	fb_lock(&st.lock);
	if (q->oldest && q->free * q->stride > KEEP_BYTES)
		at = batch_of(q->oldest)->since + COLD_NS;
	fb_unlock(&st.lock);
	return at;
}

/* Up to COLD_STEP blocks out of the oldest batch, still a list. */
static struct fiber *take_oldest(struct fb_klass *q)
{
	struct fiber *first, *last, *rest;
	struct batch b;
	int n = 1;

	fb_lock(&st.lock);
	first = q->oldest;
	if (!first) {
		fb_unlock(&st.lock);
		return NULL;
	}
	b = *batch_of(first);
	unlink_batch(q, first);
	for (last = first; last->link && n < COLD_STEP; n++)
		last = last->link;
	rest = last->link;
	last->link = NULL;
	if (rest) {		/* the oldest still */
		*batch_of(rest) = (struct batch) { q->oldest, NULL, b.since };
		if (q->oldest)
			batch_of(q->oldest)->older = rest;
		else
			FB_WRITE(q->newest, rest);
		FB_WRITE(q->oldest, rest);
		for (; rest; rest = rest->link)
			q->free++;
	}
	fb_unlock(&st.lock);
	return first;
}

/* The block loses its pages; canaries and descriptors are made anew. */
static void give_back(unsigned int k)
{
	struct fb_klass *q = &st.k[k];
	struct fiber *f = take_oldest(q), *next;
	char *base[COLD_STEP];
	int n = 0, err = errno;

	for (; f; f = next) {
		next = f->link;
		if (f->canary) {	/* no guard page: it keeps what it has */
			f->link = NULL;
			fb_depot_put(k, f, 1);
			continue;
		}
		base[n++] = f->base;
		madvise(f->base, q->stride, MADV_DONTNEED);
	}
	errno = err;
	fb_lock(&st.lock);
	if (cold_room(q)) {
		memcpy(q->cold + q->ncold, base, n * sizeof(*base));
		FB_WRITE(q->ncold, q->ncold + n);
		n = 0;
	}
	fb_unlock(&st.lock);
	while (n) {		/* no room to note it: a free block again */
		f = fb_stack_carve(base[--n], k, true);
		f->link = NULL;
		fb_depot_put(k, f, 1);
	}
}

bool fb_depot_trim(unsigned int k, uint64_t now)
{
	if (cold_at(k) > now)
		return false;
	give_back(k);
	return true;
}

static struct fiber *woke(struct fb_timer *t)
{
	(void)t;
	/*
	 * Whoever fired it is awake, and idle soon. Our last touch of the timer:
	 * pairs with the exchange in fb_stack_idle.
	 */
	FB_RELEASE(st.timed, 0);
	return NULL;
}

/*
 * The calling carrier has nothing to do: owner of p. True: something was
 * given back, and it should look for work again.
 */
bool fb_stack_idle(struct fb_processor *p)
{
	uint64_t now = 0, at, next = FB_NEVER;

	for (unsigned int k = 0; k < FB_KLASSES; k++) {
		at = cold_at(k);
		if (at == FB_NEVER)
			continue;
		if (!now)
			now = fb_clock();
		if (at <= now) {
			give_back(k);
			return true;
		}
		next = at < next ? at : next;
	}
	/* Ours from here on. Pairs with the release in woke(). */
	if (next != FB_NEVER &&
	    !__atomic_exchange_n(&st.timed, 1, __ATOMIC_ACQ_REL)) {
		st.timer.when = next;
		st.timer.fire = woke;
		fb_timer_add(p, &st.timer);
	}
	return false;
}

void fb_depot_forget(struct fb_group *g)
{
	for (uint32_t i = 0; FB_READ(st.timed) && i < g->nproc; i++)
		if (fb_timer_take(&g->proc[i], &st.timer))
			/* Pairs with the exchange above. */
			FB_RELEASE(st.timed, 0);
}
