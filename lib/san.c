// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * san.c - the hooks of san.h; an empty file in a normal build
 *
 * Compiled without the sanitizer (see the Makefile): a function of its own
 * kind that is entered as one of ThreadSanitizer's fibers and left as another
 * would upset the stack of calls that is kept for each.
 *
 * A context suspended in a running stack is not told its bounds: what runs on
 * this thread is known from the last switch, and before the first one it is
 * the thread's own stack.
 */
#include "fb.h"

#ifdef FB_SAN

_Static_assert(sizeof(struct fb_san) == FB_SAN_SIZE, "FB_SAN_SIZE");

#ifdef FB_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>

static __thread struct {
	const void *bottom;
	size_t size;
} here;

static void thread_bounds(void)
{
	pthread_attr_t attr;
	void *bottom;
	size_t size;

	if (pthread_getattr_np(pthread_self(), &attr))
		return;
	if (!pthread_attr_getstack(&attr, &bottom, &size)) {
		here.bottom = bottom;
		here.size = size;
	}
	pthread_attr_destroy(&attr);
}

void fb_san_init(struct fb_ctx *ctx, void *bottom, size_t size)
{
	ctx->san = (struct fb_san) { .bottom = bottom, .size = size };
	fb_san_stack(bottom, size);
}

void fb_san_leave(struct fb_ctx *from, struct fb_ctx *to)
{
	struct fb_san *s = &from->san;

	if (!here.size)
		thread_bounds();
	s->bottom = here.bottom;
	s->size = here.size;
	here.bottom = to->san.bottom;
	here.size = to->san.size;
	/* NULL: its fake frames are freed. */
	__sanitizer_start_switch_fiber(s->last ? NULL : &s->fake, here.bottom,
				       here.size);
}

void fb_san_arrive(struct fb_ctx *ctx)
{
	__sanitizer_finish_switch_fiber(ctx->san.fake, NULL, NULL);
}

void fb_san_release(void *addr)
{
	(void)addr;
}

void fb_san_acquire(void *addr)
{
	(void)addr;
}

void fb_san_stack(void *bottom, size_t size)
{
	__asan_unpoison_memory_region(bottom, size);
}

uint64_t fb_san_until(uint64_t deadline)
{
	return deadline;
}

void fb_san_slept(void)
{
}
#endif

#ifdef FB_TSAN
#include <errno.h>
#include <poll.h>
#include <sanitizer/tsan_interface.h>
#include <time.h>

#define NAP	50000000ULL	/* a signal may come just before the sleep */

void fb_san_init(struct fb_ctx *ctx, void *bottom, size_t size)
{
	(void)bottom;
	(void)size;
	ctx->san = (struct fb_san) { .fiber = __tsan_create_fiber(0) };
}

void fb_san_leave(struct fb_ctx *from, struct fb_ctx *to)
{
	struct fb_san *s = &from->san;
	bool last = s->last;
	void *old;

	old = s->fiber = __tsan_get_current_fiber();
	__tsan_switch_to_fiber(to->san.fiber, 0);
	if (last)
		__tsan_destroy_fiber(old);
}

void fb_san_arrive(struct fb_ctx *ctx)
{
	(void)ctx;
}

void fb_san_release(void *addr)
{
	__tsan_release(addr);
}

void fb_san_acquire(void *addr)
{
	__tsan_acquire(addr);
}

void fb_san_stack(void *bottom, size_t size)
{
	(void)bottom;
	(void)size;
}

uint64_t fb_san_until(uint64_t deadline)
{
	struct timespec ts;
	uint64_t soon;

	clock_gettime(CLOCK_MONOTONIC, &ts);	/* not that of a seeded run */
	soon = (uint64_t)ts.tv_sec * 1000000000 + (uint64_t)ts.tv_nsec + NAP;
	return deadline && deadline < soon ? deadline : soon;
}

/* One of the functions in which it calls them. */
void fb_san_slept(void)
{
	int err = errno;

	poll(NULL, 0, 0);
	errno = err;
}
#endif

/* A fiber's first step: its code may block, and lose the processor, at once. */
void fb_san_begin(struct fb_ctx *ctx, struct fb_carrier *c)
{
	fb_san_arrive(ctx);
	fb_san_release(c->proc);
}

void fb_san_last(struct fb_ctx *ctx)
{
	ctx->san.last = true;
}

#endif /* FB_SAN */
