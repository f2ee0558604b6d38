// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * stack.c - blocks: a stack with its fiber's descriptor at the top
 *
 *   base                                             base + stride
 *   | guard | ......... stack, grows down | struct fiber | colour |
 *
 * The stride depends on the class (stack.h). The colour, different from block
 * to block, keeps the descriptors and hot frames of many fibers out of the same
 * cache sets; descriptor and first frames share the top page, the only one
 * that a small fiber touches. Small blocks are packed without regard to pages;
 * their stride is no power of two, which colours them.
 *
 * Slabs of blocks are mapped without reserve and never unmapped while the
 * runtime is on: whoever still holds a stale fiber pointer may read it (see
 * fb_fiber_end). Blocks are carved one by one, so that a slab costs no memory.
 * Small ones are wanted in huge pages: all of it will be touched, and a fault
 * costs more than the fiber. In the others a huge page would commit what no
 * fiber ever touches.
 *
 *   processor: a pool of each class (LIFO; owner only, no lock), and a range
 *              of blocks never used
 *   global:    for each class, under st.lock: the current slab and the depot
 *
 * What the pools cannot hold lies in the depot (depot.c).
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "pool.h"
#include "stack.h"
#if __has_include(<valgrind/valgrind.h>)
#include <valgrind/valgrind.h>
#else
#define VALGRIND_STACK_REGISTER(low, high) 0
#define VALGRIND_STACK_DEREGISTER(id) ((void)(id))
#endif

#define POOL_MOVE	(FB_POOL_MAX / 2)
#define FRESH_BATCH	16
#define SLAB_FIRST	(4u << 20)	/* bytes; small classes a 16th */
#define SLAB_MAX	(256u << 20)
#define SLAB_MAX_SMALL	(16u << 20)
#define HUGE_PAGE	(2u << 20)
#define COLOURS		8
#define LARGEST		((size_t)1 << 40)

struct fb_stacks fb_st;
#define st fb_st

/* ---- layout ---- */

static size_t block_at(unsigned int k)
{
	return k == FB_KLASS_OWN ? 0 :
	       st.k[k].stride - sizeof(struct fiber);
}

static struct fiber *block_fiber(char *base, unsigned int k)
{
	struct fb_slab s = {
		.stride = st.k[k].stride,
		.at = st.k[k].at,
		.colours = fb_klass_packed(k) ? 1 : COLOURS,
	};

	return fb_slab_fiber(&s, base);
}

/* OWN: the end of the program's memory, behind the descriptor. */
static void **own_high(const struct fiber *f)
{
	return (void **)(f + 1);
}

char *fb_stack_high(const struct fiber *f)
{
	return f->klass == FB_KLASS_OWN ? *own_high(f) : (char *)f;
}

char *fb_stack_low(const struct fiber *f)
{
	return (char *)f->base +
	       (f->canary ? FB_CANARY_SIZE : st.page);
}

static size_t usable(unsigned int k)
{
	size_t over = sizeof(struct fiber) +
		      (fb_klass_small(k) ? FB_CANARY_SIZE :
				     COLOURS * FB_COLOUR_SIZE + st.page);

	return st.k[k].stride > over ? st.k[k].stride - over : 0;
}

/* ---- slabs ---- */

/* The slab with a block there, and where it begins; or NULL. */
static struct fb_slab *slab_at(const char *at, char **base)
{
	struct fb_slab *s;

	/* Pairs with the release in slab_map. */
	for (s = FB_ACQUIRE(fb_st.slabs); s; s = s->next) {
		*base = (char *)(s + 1) - s->bytes;
		if (at >= *base && at < *base + FB_READ(s->used))
			return s;
	}
	return NULL;
}

bool fb_stack_is_block(const char *at)
{
	char *base;

	return slab_at(at, &base);
}

bool fb_stack_is_fiber(const struct fiber *f)
{
	char *base;
	struct fb_slab *s = slab_at((const char *)f, &base);
	size_t i;

	if (!s)
		return false;
	i = (size_t)((char *)f - base) / s->stride;
	return fb_slab_fiber(s, base + i * s->stride) == f;
}

void *fb_stack_map(size_t bytes, int flags)
{
	int err = errno;
	void *mem = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | flags,
			 -1, 0);

	errno = err;
	return mem == MAP_FAILED ? NULL : mem;
}

/* Whole huge pages, from one on; MAP_STACK would forbid them. */
static char *map_huge(size_t bytes)
{
	char *mem = fb_stack_map(bytes + HUGE_PAGE, 0), *from;
	size_t before;

	if (!mem)
		return NULL;
	before = -(uintptr_t)mem & (HUGE_PAGE - 1);
	from = mem + before;
	if (before)
		munmap(mem, before);
	munmap(from + bytes, HUGE_PAGE - before);
	madvise(from, bytes, MADV_HUGEPAGE);
	return from;
}

/*
 * What the backend is told of s; false: nothing. If that fails (-ENOSPC), such stacks
 * work, they are only not preempted by the module.
 */
static bool arena_of(const struct fb_slab *s, struct fb_arena *a)
{
	a->base = (char *)(s + 1) - s->bytes;
	a->stride = s->stride;
	a->count = (s->bytes - sizeof(*s)) / s->stride;
	/* The packed ones have canaries; of the program's memory nothing is known. */
	a->guard = s->colours > 1 ? st.page : FB_CANARY_SIZE;
	return s->at != 0;
}

/* Room for blocks of class k, known to the backend; *bytes is what it got. */
static char *slab_map(unsigned int k, size_t *bytes)
{
	size_t stride = st.k[k].stride, tail = sizeof(struct fb_slab), n;
	int err = errno;
	struct fb_arena a;
	struct fb_slab *s;
	char *mem;

	if (fb_klass_packed(k) && *bytes >= HUGE_PAGE)
		mem = map_huge(*bytes);
	else
		mem = fb_stack_map(*bytes, MAP_STACK);
	if (!mem)
		return NULL;
	if (!fb_klass_packed(k))
		madvise(mem, *bytes, MADV_NOHUGEPAGE);
	s = (struct fb_slab *)(mem + *bytes - tail);
	s->bytes = *bytes;
	s->stride = stride;
	s->at = st.k[k].at;
	s->colours = fb_klass_packed(k) ? 1 : COLOURS;
	n = (*bytes - tail) / stride;
	*bytes = n * stride;
	errno = err;
	fb_san_stack(mem, *bytes);
	fb_lock(&st.lock);
	s->next = st.slabs;
	FB_RELEASE(st.slabs, s);	/* Pairs with the acquire in debug.c. */
	fb_unlock(&st.lock);
	/* Pairs with the fence in pool.c: a new group is told here or there. */
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	if (arena_of(s, &a))
		fb_pool_stacks(&a);
	errno = err;
	return mem;
}

void fb_stack_tell(struct fb_group *g)
{
	struct fb_arena a;

	/* Pairs with the release in slab_map. */
	for (struct fb_slab *s = FB_ACQUIRE(st.slabs); s; s = s->next)
		if (arena_of(s, &a))
			fb_rt.backend->stacks(g, &a);
}

/* A slab, smaller if it must be; at least one block. */
static char *slab_get(unsigned int k, size_t *bytes)
{
	size_t least = (st.k[k].stride + sizeof(struct fb_slab) + st.page - 1) &
		       ~(st.page - 1);
	char *mem = NULL;

	if (!fb_klass_packed(k))	/* the descriptor of the slab has its own page */
		*bytes += st.page;
	for (; *bytes > least; *bytes = (*bytes / 2 + st.page - 1) &
					~(st.page - 1)) {
		mem = slab_map(k, bytes);
		if (mem)
			return mem;
	}
	*bytes = least;
	return slab_map(k, bytes);
}

/* Under st.lock: [mem, end) of it is given out, to be carved. */
static void slab_use(struct fb_slab *s, const char *end)
{
	FB_WRITE(s->used, s->bytes - (size_t)((char *)(s + 1) - end));
}

/* Under st.lock; mem is from slab_get. */
static struct fb_slab *slab_of(const char *mem)
{
	struct fb_slab *s = st.slabs;

	while ((char *)(s + 1) - s->bytes != mem)
		s = s->next;
	return s;
}

/* Some blocks of class k, never used, into [*from, *end). */
static bool fresh_range(unsigned int k, char **from, char **end, size_t want)
{
	struct fb_klass *q = &st.k[k];
	size_t bytes;
	char *mem;

	fb_lock(&st.lock);
	while (q->fresh == q->fresh_end) {
		bytes = q->slab_bytes;
		fb_unlock(&st.lock);
		mem = slab_get(k, &bytes);
		if (!mem)
			return false;
		fb_lock(&st.lock);
		if (q->fresh != q->fresh_end) {
			/* Another came first: give this one to the caller. */
			slab_use(slab_of(mem), mem + bytes);
			fb_unlock(&st.lock);
			*from = mem;
			*end = mem + bytes;
			return true;
		}
		q->fresh = mem;
		q->fresh_end = mem + bytes;
		q->slab = slab_of(mem);
		if (q->slab_bytes < (fb_klass_packed(k) ? SLAB_MAX_SMALL : SLAB_MAX))
			q->slab_bytes *= 2;
	}
	bytes = want * q->stride;
	if (bytes > (size_t)(q->fresh_end - q->fresh))
		bytes = (size_t)(q->fresh_end - q->fresh);
	*from = q->fresh;
	*end = q->fresh += bytes;
	slab_use(q->slab, q->fresh);
	fb_unlock(&st.lock);
	return true;
}

/* ---- blocks ---- */

struct fiber *fb_stack_carve(char *base, unsigned int k, bool cold)
{
	struct fiber *f = block_fiber(base, k);

	f->klass = k;
	f->base = base;
	f->canary = 0;
	if (k == FB_KLASS_OWN)
		return f;
	if (fb_klass_small(k))
		fb_guard_canary(f, base);
	else if (!cold)
		fb_guard_block(f);
	if (!cold)
		f->valgrind = VALGRIND_STACK_REGISTER(fb_stack_low(f),
						      fb_stack_high(f));
	return f;
}

/* ---- get and put ---- */

/* A processor's share of class k. */
struct share {
	struct fiber **list;
	uint32_t *count;
	char **fresh, **fresh_end;
};

static struct share share(struct fb_processor *p, unsigned int k)
{
	struct fb_pool *o = &p->other[k];

	return (struct share) {
		.list = k ? &o->list : &p->pool,
		.count = k ? &o->count : &p->pool_count,
		.fresh = &o->fresh,
		.fresh_end = &o->fresh_end,
	};
}

static struct fiber *get_plain(unsigned int k)
{
	struct fiber *f = fb_depot_get(k);
	char *from, *end;

	if (f) {
		size_t n = 0;

		for (struct fiber *g = f->link; g; g = g->link)
			n++;
		if (n)
			fb_depot_put(k, f->link, n);
		return f;
	}
	f = fb_depot_get_cold(k);
	if (f)
		return f;
	return fresh_range(k, &from, &end, 1) ? fb_stack_carve(from, k, false) : NULL;
}

static struct fiber *pop(struct share s)
{
	struct fiber *f = *s.list;

	*s.list = f->link;
	--*s.count;
	return f;
}

static struct fiber *get(struct fb_processor *p, unsigned int k)
{
	struct share s = share(p, k);
	struct fiber *f;
	char *base;

	if (*s.list)
		return pop(s);
	f = fb_depot_get(k);
	if (f) {
		for (*s.list = f; f; f = f->link)
			++*s.count;
		return pop(s);
	}
	f = fb_depot_get_cold(k);
	if (f)
		return f;
	if (*s.fresh == *s.fresh_end &&
	    !fresh_range(k, s.fresh, s.fresh_end,
			 st.k[k].move < FRESH_BATCH ? 1 : FRESH_BATCH))
		return NULL;
	base = *s.fresh;
	*s.fresh += st.k[k].stride;
	return fb_stack_carve(base, k, false);
}

static int klass_for(size_t size)
{
	int k;

	for (k = FB_KLASS_SMALL; k < FB_KLASS_OWN; k++)
		if (st.k[k].stride && usable(k) >= size)
			return k;
	for (k = 0; k < FB_KLASS_SMALL && st.k[k].stride; k++)
		if (usable(k) >= size)
			return k;
	return -1;
}

struct fiber *fb_stack_get(struct fb_processor *p, size_t size)
{
	int k = 0;

	if (size > LARGEST)
		return NULL;
	if (size)
		k = klass_for(size * FB_STACK_SCALE);
	if (k < 0)
		return NULL;
	return p && !fb_mark_on ? get(p, k) : get_plain(k);
}

/* A descriptor for [stack, + size), which stays the program's. */
struct fiber *fb_stack_own(struct fb_processor *p, void *stack, size_t size)
{
	uintptr_t low = ((uintptr_t)stack + 15) & ~(uintptr_t)15;
	uintptr_t high = ((uintptr_t)stack + size) & ~(uintptr_t)63;
	struct fiber *f = p ? get(p, FB_KLASS_OWN) : get_plain(FB_KLASS_OWN);

	if (!f)
		return NULL;
	f->base = (void *)low;
	*own_high(f) = (void *)high;
	fb_guard_canary(f, f->base);
	f->valgrind = VALGRIND_STACK_REGISTER(low + FB_CANARY_SIZE, high);
	return f;
}

/* Not the default class, no processor, or the processor has plenty. */
void fb_stack_put_slow(struct fb_processor *p, struct fiber *f)
{
	unsigned int k = f->klass;
	struct fiber *first, *last;
	struct share s;
	uint32_t n = 1;

	if (k == FB_KLASS_OWN)
		VALGRIND_STACK_DEREGISTER(f->valgrind);
	if (fb_mark_on)
		fb_mark_ended(f);
	if (!p || fb_mark_on) {
		f->link = NULL;
		fb_depot_put(k, f, 1);
		return;
	}
	s = share(p, k);
	if (*s.count >= 2 * st.k[k].move) {
		/* f itself stays here: it may be the stack we stand on. */
		first = last = *s.list;
		for (; n < st.k[k].move; n++)
			last = last->link;
		*s.list = last->link;
		*s.count -= n;
		last->link = NULL;
		fb_depot_put(k, first, n);
		fb_depot_trim(k, fb_clock());
	}
	f->link = *s.list;
	*s.list = f;
	++*s.count;
}

void fb_stack_flush(struct fb_group *g)
{
	fb_depot_forget(g);
	for (uint32_t i = 0; !fb_mark_on && i < g->nproc; i++)
		for (unsigned int k = 0; k < FB_KLASSES; k++) {
			struct share s = share(&g->proc[i], k);

			if (*s.list)
				fb_depot_put(k, *s.list, *s.count);
			*s.list = NULL;
			*s.count = 0;
		}
}

/* ---- start and end ---- */

static void klass_init(unsigned int k, size_t stride)
{
	struct fb_klass *q = &st.k[k];

	q->stride = stride;
	q->at = block_at(k);
	q->slab_bytes = fb_klass_packed(k) ? SLAB_FIRST / 16 : SLAB_FIRST;
	if (q->slab_bytes < stride)
		q->slab_bytes = stride;
	q->move = POOL_MOVE;
	while (q->move > 1 && q->move * stride > 8u << 20)
		q->move /= 2;
	if (!k)			/* the fast paths count to FB_POOL_MAX */
		q->move = POOL_MOVE;
}

static void klasses_init(void)
{
	size_t size = fb_rt.stack_size;
	unsigned int k;

	for (k = 0; k < FB_KLASS_SMALL && size <= LARGEST / 2; k++, size *= 2)
		klass_init(k, size);
	for (k = 0; k < 3; k++)
		klass_init(FB_KLASS_SMALL + k,
			   (2048 << k) * FB_STACK_SCALE +
			   sizeof(struct fiber) + FB_CANARY_SIZE);
	size = 16384 * FB_STACK_SCALE;
	for (k = FB_KLASS_MIDDLE; size < fb_rt.stack_size &&
	     k < FB_KLASS_OWN; k++, size *= 2)
		klass_init(k, size);
	klass_init(FB_KLASS_OWN, sizeof(struct fiber) + FB_LINE);
}

int fb_stack_init(void)
{
	int r;

	memset(&st, 0, sizeof(st));
	st.page = sysconf(_SC_PAGESIZE);
	klasses_init();
	r = fb_mark_init();
	return r ? r : fb_guard_init(st.page);
}

void fb_stack_fini(void)
{
	struct fb_slab *s = st.slabs, *next;

	for (; s; s = next) {
		char *end = (char *)(s + 1);
		size_t bytes = s->bytes;

		next = s->next;
		munmap(end - bytes, bytes);
	}
	for (unsigned int k = 0; k < FB_KLASSES; k++)
		if (st.k[k].cold)
			munmap(st.k[k].cold, st.k[k].cold_max * sizeof(char *));
	memset(&st, 0, sizeof(st));
}
