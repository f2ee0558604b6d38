// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * stack.c - blocks: a stack with its fiber's descriptor at the top
 *
 *   base                                             base + size
 *   | guard | ......... stack, grows down | struct fiber | colour |
 *
 * A block of class k has size << k bytes, size being the default stack size.
 * The colour, different from block to block, keeps the descriptors and hot
 * frames of many fibers out of the same cache sets; descriptor and first
 * frames share the top page, the only one that a small fiber touches.
 *
 * Slabs of blocks are mapped without reserve and never unmapped while the
 * runtime is on: whoever still holds a stale fiber pointer may read it (see
 * fb_fiber_end). Blocks are carved one by one, so that a slab costs no memory.
 *
 *   processor: pool (LIFO, default class; owner only, no lock), and a range
 *              of blocks never used
 *   global:    one list a class, and the current slab, under stack_lock
 *
 * Guards: MADV_GUARD_INSTALL where the kernel has it (6.13); else mprotect,
 * which costs the process two mappings a block, so at most half of
 * vm.max_map_count goes there; beyond that FIBER_FEATURE_GUARD is cleared.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fb.h"

#define CLASSES		16
#define POOL_MOVE	128
#define FRESH_BATCH	16
#define SLAB_FIRST	64
#define SLAB_MAX	4096
#define COLOURS		8
#define COLOUR_SIZE	256
#define GUARD_INSTALL	102	/* MADV_GUARD_INSTALL, Linux 6.13 */

struct slab {
	struct slab *next;
	size_t bytes;
};

static struct {
	size_t page;
	size_t guards_left;	/* atomic: mprotect ones still allowed */
	bool madvise_works;

	fb_lock_t lock;
	/* under lock */
	struct fiber *pool[CLASSES];
	char *fresh, *fresh_end;	/* of the default class */
	size_t slab_blocks;		/* of the next slab */
	struct slab *slabs;
} st;

static size_t class_size(unsigned int k)
{
	return fb_rt.stack_size << k;
}

static struct fiber *block_fiber(char *base, size_t size)
{
	size_t colour = (uintptr_t)base / size % COLOURS;

	return (struct fiber *)(base + size - colour * COLOUR_SIZE) - 1;
}

/* ---- guards ---- */

static size_t read_max_map_count(void)
{
	char buf[24] = "";
	int fd = open("/proc/sys/vm/max_map_count", O_RDONLY | O_CLOEXEC);

	if (fd >= 0) {
		if (read(fd, buf, sizeof(buf) - 1) < 0)
			buf[0] = 0;
		close(fd);
	}
	return buf[0] ? strtoul(buf, NULL, 10) : 65530;
}

static void no_guards(void)
{
	FB_WRITE(st.guards_left, 0);
	__atomic_fetch_and(&fb_rt.features, ~FIBER_FEATURE_GUARD,
			   __ATOMIC_RELAXED);
}

static void guard_block(char *base)
{
	int err = errno;

	if (st.madvise_works) {
		if (madvise(base, st.page, GUARD_INSTALL))
			no_guards();
	} else if (FB_READ(st.guards_left)) {
		__atomic_fetch_sub(&st.guards_left, 1, __ATOMIC_RELAXED);
		if (mprotect(base, st.page, PROT_NONE))
			no_guards();
	} else if (FB_READ(fb_rt.features) & FIBER_FEATURE_GUARD) {
		no_guards();
	}
	errno = err;
}

/* ---- slabs ---- */

/* Map n blocks of `size` bytes, known to the backend; NULL: no memory. */
static char *slab_map(size_t size, size_t n)
{
	int err = errno;
	char *mem = mmap(NULL, size * n + st.page, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE |
			 MAP_STACK, -1, 0);
	struct slab *s;

	errno = err;
	if (mem == MAP_FAILED)
		return NULL;
	/* No huge pages: a fiber touches one page of its block. */
	madvise(mem, size * n, MADV_NOHUGEPAGE);
	s = (struct slab *)(mem + size * n);
	s->bytes = size * n + st.page;
	/* -ENOSPC: such stacks work, they are only not preempted by the module. */
	fb_rt.backend->stacks(mem, size, n, st.page);
	errno = err;
	fb_lock(&st.lock);
	s->next = st.slabs;
	st.slabs = s;
	fb_unlock(&st.lock);
	return mem;
}

static struct fiber *carve(char *base, unsigned int klass)
{
	struct fiber *f = block_fiber(base, class_size(klass));

	guard_block(base);
	f->base = base;
	f->klass = klass;
	return f;
}

/* Some blocks of the default class, never used, into [*from, *end). */
static bool fresh_range(char **from, char **end, size_t want)
{
	size_t n;
	char *mem;

	fb_lock(&st.lock);
	while (st.fresh == st.fresh_end) {
		n = st.slab_blocks;
		fb_unlock(&st.lock);
		mem = slab_map(fb_rt.stack_size, n);
		while (!mem && n > 1)
			mem = slab_map(fb_rt.stack_size, n /= 2);
		if (!mem)
			return false;
		fb_lock(&st.lock);
		if (st.fresh != st.fresh_end) {
			/* Another came first: give this one to the caller. */
			fb_unlock(&st.lock);
			*from = mem;
			*end = mem + n * fb_rt.stack_size;
			return true;
		}
		st.fresh = mem;
		st.fresh_end = mem + n * fb_rt.stack_size;
		if (st.slab_blocks < SLAB_MAX)
			st.slab_blocks *= 2;
	}
	n = (size_t)(st.fresh_end - st.fresh) / fb_rt.stack_size;
	if (n > want)
		n = want;
	*from = st.fresh;
	*end = st.fresh += n * fb_rt.stack_size;
	fb_unlock(&st.lock);
	return true;
}

/* ---- get and put ---- */

static struct fiber *global_get(unsigned int klass)
{
	struct fiber *f;

	if (!FB_READ(st.pool[klass]))
		return NULL;
	fb_lock(&st.lock);
	f = st.pool[klass];
	if (f)
		FB_WRITE(st.pool[klass], f->link);
	fb_unlock(&st.lock);
	return f;
}

static void global_put(unsigned int klass, struct fiber *first,
		       struct fiber *last)
{
	fb_lock(&st.lock);
	last->link = st.pool[klass];
	FB_WRITE(st.pool[klass], first);
	fb_unlock(&st.lock);
}

/* A block of another class: one slab each time, pooled afterwards. */
static struct fiber *get_large(size_t size)
{
	unsigned int k = 1;
	struct fiber *f;
	char *mem;

	while (k < CLASSES && class_size(k) < size)
		k++;
	if (k == CLASSES)
		return NULL;
	f = global_get(k);
	if (f)
		return f;
	mem = slab_map(class_size(k), 1);
	return mem ? carve(mem, k) : NULL;
}

/* The default class when the processor's pool is empty. */
struct fiber *fb_stack_get_slow(struct fb_processor *p)
{
	struct fiber *f;
	char *from, *end;

	if (p && p->fresh != p->fresh_end) {
		from = p->fresh;
		p->fresh += fb_rt.stack_size;
		return carve(from, 0);
	}
	f = global_get(0);
	if (f) {
		/* Some more for the next ones, at the price of one. */
		for (int i = 1; p && i < FRESH_BATCH; i++) {
			struct fiber *g = global_get(0);

			if (!g)
				break;
			g->link = p->pool;
			p->pool = g;
			p->pool_count++;
		}
		return f;
	}
	if (!fresh_range(&from, &end, p ? FRESH_BATCH : 1))
		return NULL;
	if (p) {
		p->fresh = from + fb_rt.stack_size;
		p->fresh_end = end;
	}
	return carve(from, 0);
}

struct fiber *fb_stack_get(struct fb_processor *p, size_t usable)
{
	size_t over = sizeof(struct fiber) + COLOURS * COLOUR_SIZE + st.page;

	if (usable > SIZE_MAX / 4)
		return NULL;
	if (usable && usable + over > fb_rt.stack_size)
		return get_large(usable + over);
	return fb_stack_get_slow(p);
}

/* Not the default class, no processor, or the processor has plenty. */
void fb_stack_put_slow(struct fb_processor *p, struct fiber *f)
{
	struct fiber *last;

	if (!p || f->klass) {
		global_put(f->klass, f, f);
		return;
	}
	/* f itself stays here: it may be the stack we stand on. */
	last = p->pool;
	for (int i = 1; i < POOL_MOVE; i++)
		last = last->link;
	struct fiber *first = p->pool;

	p->pool = last->link;
	p->pool_count -= POOL_MOVE;
	global_put(0, first, last);
	f->link = p->pool;
	p->pool = f;
	p->pool_count++;
}

/* ---- start and end ---- */

int fb_stack_init(void)
{
	int err = errno;
	char *probe;

	memset(&st, 0, sizeof(st));
	st.page = sysconf(_SC_PAGESIZE);
	st.slab_blocks = SLAB_FIRST;
	st.guards_left = read_max_map_count() / 4;
	probe = mmap(NULL, st.page, PROT_READ | PROT_WRITE,
		     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (probe == MAP_FAILED)
		return -ENOMEM;
	st.madvise_works = !madvise(probe, st.page, GUARD_INSTALL);
	munmap(probe, st.page);
	errno = err;
	__atomic_fetch_or(&fb_rt.features, FIBER_FEATURE_GUARD,
			  __ATOMIC_RELAXED);
	return 0;
}

void fb_stack_fini(void)
{
	struct slab *s = st.slabs, *next;

	for (; s; s = next) {
		next = s->next;
		munmap((char *)s + st.page - s->bytes, s->bytes);
	}
	memset(&st, 0, sizeof(st));
}
