// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * mark.c - how much of its stack a fiber uses
 *
 * New memory reads as zero, so the lowest word that is not zero is how deep a
 * stack has been used: by the fibers that had the block, the last one and those
 * before. With FIBER_STACK_MARKS=1 every block is cleaned when its fiber has
 * ended, so that it is this fiber's mark, and the deepest of each entry function
 * is kept. The fast paths know nothing of that: the processors' pools are kept
 * empty, but counted as full, so that each spawn and end takes the slow way.
 *
 * Words that only zero was written to do not count; the frame of a call does,
 * by its return address.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "stack.h"

#define ENTRIES		1024		/* a power of two */
#define PAGES		64		/* looked at by one mincore */

bool fb_mark_on;

static struct {
	fb_lock_t lock;
	size_t page;
	uint32_t count;
	struct fiber_stack_mark entry[ENTRIES];	/* under lock; open hashing */
} mk;

/* ---- the mark of one stack ---- */

FB_LOOKS static const char *first_used(const char *from, const char *end)
{
	const uint64_t *w = (const uint64_t *)from;

	while ((const char *)w < end && !*(volatile const uint64_t *)w)
		w++;
	return (const char *)w < end ? (const char *)w : end;
}

FB_LOOKS static void clean(char *from, char *end)
{
	for (volatile uint64_t *w = (uint64_t *)from; (char *)w < end; w++)
		*w = 0;
}

/* Pages that are absent are not read, or each would cost a fault. */
static const char *deepest(const char *low, const char *high)
{
	unsigned char there[PAGES];
	const char *at = low, *end, *p;
	size_t n;

	while (at < high) {
		char *page = (char *)((uintptr_t)at & ~(mk.page - 1));

		n = (size_t)(high - page + mk.page - 1) / mk.page;
		if (n > PAGES)
			n = PAGES;
		if (mincore(page, n * mk.page, there))
			memset(there, 1, n);
		for (size_t i = 0; i < n; i++, at = end) {
			end = page + (i + 1) * mk.page;
			if (end > high)
				end = high;
			if (!(there[i] & 1))
				continue;
			p = first_used(at, end);
			if (p < end)
				return p;
		}
	}
	return high;
}

static size_t mark_of(const struct fiber *f)
{
	int err = errno;
	const char *high = fb_stack_high(f);
	/* Words, as the program's own memory may begin anywhere. */
	size_t n = (size_t)(high - deepest(fb_stack_low(f), high));

	errno = err;
	return n;
}

/* ---- of each entry function ---- */

/* Under mk.lock; NULL: too many functions. */
static struct fiber_stack_mark *entry_of(void *(*fn)(void *))
{
	size_t h = ((uintptr_t)fn >> 4) * 0x9e3779b97f4a7c15ull >> 32;
	struct fiber_stack_mark *e;

	for (size_t i = 0; i < ENTRIES; i++) {
		e = &mk.entry[(h + i) & (ENTRIES - 1)];
		if (e->fn == fn)
			return e;
		if (e->fn || mk.count >= ENTRIES * 3 / 4)
			continue;
		e->fn = fn;
		mk.count++;
		return e;
	}
	return NULL;
}

void fb_mark_ended(struct fiber *f)
{
	struct fiber_stack_mark *e;
	size_t n;

	if (f->klass == FB_KLASS_OWN)	/* the program's again, and never clean */
		return;
	n = mark_of(f);
	clean(fb_stack_high(f) - n, fb_stack_high(f));
	fb_lock(&mk.lock);
	e = entry_of(f->fn);
	if (e) {
		e->ended++;
		e->stack_size = (size_t)(fb_stack_high(f) - fb_stack_low(f));
		if (n > e->deepest)
			e->deepest = n;
	}
	fb_unlock(&mk.lock);
}

FB_EXPORT int fiber_stack_marks(struct fiber_stack_mark *marks, int max)
{
	struct fb_carrier *c = fb_current();
	int n = 0;

	if (max < 0 || (max && !marks))
		return -EINVAL;
	/* Pairs with the release in fiber_init. */
	if (FB_ACQUIRE(fb_rt.state) != FB_ON)
		return -EPERM;
	if (!fb_mark_on)
		return -EOPNOTSUPP;
	if (c)
		fb_enter(c);
	fb_lock(&mk.lock);
	for (size_t i = 0; i < ENTRIES; i++) {
		if (!mk.entry[i].fn)
			continue;
		if (n < max)
			marks[n] = mk.entry[i];
		n++;
	}
	fb_unlock(&mk.lock);
	if (c)
		fb_leave(c);
	return n;
}

FB_EXPORT int fiber_stack_info(const fiber_t *f, struct fiber_stack *st)
{
	struct fb_carrier *c = fb_current();
	struct fiber_stack s = { 0 };
	const char *sp;

	if (!f || !st || st->size < sizeof(st->size))
		return -EINVAL;
	s.size = st->size < sizeof(s) ? st->size : sizeof(s);
	s.low = fb_stack_low(f);
	s.bytes = (size_t)(fb_stack_high(f) - (char *)s.low);
	sp = c && c->cur == f ? __builtin_frame_address(0) :
				FB_READ(f->ctx.sp);
	s.used = (size_t)(fb_stack_high(f) - sp);
	if (s.used > s.bytes)	/* never ran, or runs elsewhere just now */
		s.used = 0;
	s.deepest = mark_of(f);
	memcpy(st, &s, s.size);
	return 0;
}

int fb_mark_init(void)
{
	uint64_t on = 0;
	int r = fb_env_number("FIBER_STACK_MARKS", 0, 1, &on);

	if (r < 0)
		return r;
	memset(&mk, 0, sizeof(mk));
	mk.page = sysconf(_SC_PAGESIZE);
	fb_mark_on = on;
	for (uint32_t i = 0; fb_mark_on && i < fb_rt.nproc; i++)
		fb_rt.proc[i].pool_count = FB_POOL_MAX;
	return 0;
}
