// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * costack.c - blocks for coroutines: a stack with its descriptor at the top
 *
 *   base                                             base + size
 *   | guard | ......... stack, grows down | fiber_coro | colour |
 *
 * Apart from stack.c, because coroutines need no runtime and outlive it: these
 * slabs are never unmapped. A block of class k has 64 KiB << k. Guards and
 * colours are those of stack.c, with a share of vm.max_map_count of our own.
 *
 * One lock for all: it is held for a few instructions. Carriers hold it as a
 * lock of the runtime, with in_fiber == 0.
 *
 * The backend must know each slab, or the module does not preempt on it. A
 * runtime that starts is told of all that are there, and who maps one tells the
 * runtime that is on. Both may do so (-EEXIST then), never neither:
 *
 *	slab_map			fiber_init
 *	slab in the list		state = ON
 *	full barrier			full barrier
 *	fb_visit: state is ON		the list
 */
#include <fcntl.h>
#include <stdlib.h>
#include <linux/membarrier.h>
#include <sys/mman.h>
#include <unistd.h>

#include "coro.h"
#include "pool.h"

#define BLOCK		((size_t)65536)
#define CLASSES		16
#define SLAB_FIRST	16
#define SLAB_MAX	4096
#define COLOURS		8
#define COLOUR_SIZE	256
#define GUARD_INSTALL	102	/* MADV_GUARD_INSTALL, Linux 6.13 */

struct slab {
	struct slab *next;
	char *base;
	size_t size, count;
};

static struct {
	/* constant once set up */
	size_t page;
	bool madvise_works, membarrier_works;
	size_t guards_left;		/* atomic: mprotect ones allowed */
	bool unguarded;			/* atomic: some block has no guard */

	fb_lock_t lock;
	/* under lock */
	struct fiber_coro *pool[CLASSES];
	char *fresh, *fresh_end;	/* of class 0 */
	size_t slab_blocks;		/* of the next slab */
	struct slab *slabs;		/* atomic; grows in front */
} cs;

static struct fb_carrier *lock(void)
{
	struct fb_carrier *c = fb_current();

	if (c)
		fb_enter(c);
	fb_lock(&cs.lock);
	return c;
}

static void unlock(struct fb_carrier *c)
{
	fb_unlock(&cs.lock);
	if (c)
		fb_leave(c);
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

static void no_guard(void)
{
	FB_WRITE(cs.guards_left, 0);
	FB_WRITE(cs.unguarded, true);
	__atomic_fetch_and(&fb_rt.features, ~FIBER_FEATURE_GUARD,
			   __ATOMIC_RELAXED);
}

static void guard_block(char *base)
{
	if (cs.madvise_works) {
		if (madvise(base, cs.page, GUARD_INSTALL))
			no_guard();
	} else if (FB_READ(cs.guards_left)) {
		__atomic_fetch_sub(&cs.guards_left, 1, __ATOMIC_RELAXED);
		if (mprotect(base, cs.page, PROT_NONE))
			no_guard();
	} else {
		no_guard();
	}
}

/* ---- start, and fork ---- */

/* The holder of the lock is not here; each store under it leaves it sound. */
static void fork_child(void)
{
	cs.lock.held = 0;
}

static void set_up(void)
{
	char *probe;

	cs.page = sysconf(_SC_PAGESIZE);
	cs.slab_blocks = SLAB_FIRST;
	cs.guards_left = read_max_map_count() / 8;
	probe = mmap(NULL, cs.page, PROT_READ | PROT_WRITE,
		     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (probe != MAP_FAILED) {
		cs.madvise_works = !madvise(probe, cs.page, GUARD_INSTALL);
		munmap(probe, cs.page);
	}
	cs.membarrier_works =
		!fb_os_membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED);
	pthread_atfork(NULL, NULL, fork_child);
}

bool fb_costack_biased(void)
{
#ifdef FB_TSAN		/* it knows nothing of such barriers */
	return false;
#else
	return FB_READ(cs.membarrier_works);
#endif
}

void fb_costack_barrier(void)
{
	int err = errno;

	if (fb_os_membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED))
		fb_die("membarrier does not work any more");
	errno = err;
}

static void tell_backend(const struct slab *s)
{
	/* -ENOSPC, -EEXIST: see the head comment; such stacks work. */
	fb_pool_stacks(&(struct fb_arena){
		s->base, s->size, s->count, cs.page });
}

void fb_costack_tell(void)
{
	int err = errno;

	/* state is ON. Pairs with the fence in slab_map. */
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	if (!fb_visit())
		return;
	if (FB_READ(cs.unguarded))
		no_guard();
	/* Pairs with the release in slab_map. */
	for (struct slab *s = FB_ACQUIRE(cs.slabs); s; s = s->next)
		tell_backend(s);
	fb_visit_end();
	errno = err;
}

/* ---- slabs ---- */

static char *slab_map(size_t size, size_t n)
{
	struct fb_carrier *c;
	struct slab *s;
	char *mem = mmap(NULL, size * n + cs.page, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE |
			 MAP_STACK, -1, 0);

	if (mem == MAP_FAILED)
		return NULL;
	madvise(mem, size * n, MADV_NOHUGEPAGE);
	s = (struct slab *)(mem + size * n);
	*s = (struct slab) { .base = mem, .size = size, .count = n };
	c = lock();
	s->next = cs.slabs;
	FB_RELEASE(cs.slabs, s);	/* Pairs with fb_costack_tell. */
	unlock(c);
	/* Pairs with the fence in fb_costack_tell. */
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	if (fb_visit()) {
		tell_backend(s);
		fb_visit_end();
	}
	return mem;
}

static struct fiber_coro *carve(char *base, unsigned int klass)
{
	size_t size = BLOCK << klass;
	size_t colour = (uintptr_t)base / size % COLOURS;
	struct fiber_coro *co;

	co = (struct fiber_coro *)(base + size - colour * COLOUR_SIZE) - 1;
	guard_block(base);
	co->base = base;
	co->room = (size_t)((char *)co - base);
	co->klass = (uint8_t)klass;
	return co;
}

/* A new slab, as large as there is room for; others may find it too. */
static bool slab_more(void)
{
	size_t n = FB_READ(cs.slab_blocks);
	struct fb_carrier *c;
	char *mem = slab_map(BLOCK, n);

	while (!mem && n > 1)
		mem = slab_map(BLOCK, n /= 2);
	if (!mem)
		return false;
	c = lock();
	/* What is left of another thread's, if any, is given up: it is rare. */
	cs.fresh = mem;
	cs.fresh_end = mem + n * BLOCK;
	if (cs.slab_blocks < SLAB_MAX)
		FB_WRITE(cs.slab_blocks, cs.slab_blocks * 2);
	unlock(c);
	return true;
}

static struct fiber_coro *get_slow(void)
{
	struct fb_carrier *c;
	char *base;

	do {
		c = lock();
		base = cs.fresh;
		if (base != cs.fresh_end)
			cs.fresh += BLOCK;
		else
			base = NULL;
		unlock(c);
		if (base)
			return carve(base, 0);
	} while (slab_more());
	return NULL;
}

/* ---- get and put ---- */

static struct fiber_coro *pool_get(unsigned int k)
{
	struct fiber_coro *co;
	struct fb_carrier *c;

	if (!FB_READ(cs.pool[k]))
		return NULL;
	c = lock();
	co = cs.pool[k];
	if (co)
		FB_WRITE(cs.pool[k], co->link);
	unlock(c);
	return co;
}

struct fiber_coro *fb_costack_get(size_t usable)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	size_t over = sizeof(struct fiber_coro) + COLOURS * COLOUR_SIZE;
	struct fiber_coro *co;
	unsigned int k = 0;
	int err = errno;
	char *mem;

	pthread_once(&once, set_up);
	while (usable && k < CLASSES && (BLOCK << k) - cs.page - over < usable)
		k++;
	if (k == CLASSES)
		return NULL;
	co = pool_get(k);
	if (!co && !k)
		co = get_slow();
	if (!co && k) {
		mem = slab_map(BLOCK << k, 1);
		co = mem ? carve(mem, k) : NULL;
	}
	errno = err;
	return co;
}

void fb_costack_put(struct fiber_coro *co)
{
	struct fb_carrier *c = lock();

	co->link = cs.pool[co->klass];
	FB_WRITE(cs.pool[co->klass], co);
	unlock(c);
}
