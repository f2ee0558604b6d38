/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * san.h - what sanitizers must hear about stacks and switches
 *
 * Empty in a normal build: struct fb_ctx keeps its three words, and every
 * hook is nothing. `make SAN=address|thread` defines FB_ASAN or FB_TSAN.
 *
 *   fb_san_init     a context that has never run, its stack [bottom, + size)
 *   fb_san_last     the switch that follows is the last one away from ctx
 *   fb_san_leave    on the old stack, last thing before the switch
 *   fb_san_arrive   on the new stack, first thing after the switch; ctx is
 *                   the one that goes on
 *   fb_san_release  the switch is going to publish by a store to addr, which
 *                   assembly makes and the sanitizer does not see
 *   fb_san_acquire  the processor at addr is ours: what its owners did before,
 *                   up to their fb_san_release, is done. The backend proves it
 *                   by membarrier or by the order in the kernel
 *   fb_san_stack    [bottom, + size) holds no frame of anybody: forget what
 *                   those that never returned (fiber_exit) left in the shadow
 *   fb_san_until    a sleep that ThreadSanitizer does not see ends then, at the
 *                   latest; the caller looks again. It puts handlers off while
 *                   it believes that the thread runs
 *   fb_san_slept    such a sleep is over: handlers that were put off are called
 *
 * The switches of switch.h call leave, arrive and release themselves, and
 * fb_arch_start calls begin, which is arrive and more: who makes contexts has to call init before the
 * first switch to one, and last before the last switch away from it. Contexts
 * that a running stack (a thread's, a fiber's) is suspended in need no init.
 *
 * Between leave and arrive the sanitizer stands with one foot on each side:
 * AddressSanitizer makes no fake frames then and knows both stacks, and
 * ThreadSanitizer counts fn of fb_switch_call to the context that goes on.
 */
#ifndef FB_SAN_H
#define FB_SAN_H

#if defined(__has_feature)
#if __has_feature(address_sanitizer) && !defined(FB_ASAN)
#error "AddressSanitizer: build with make SAN=address"
#endif
#if __has_feature(thread_sanitizer) && !defined(FB_TSAN)
#error "ThreadSanitizer: build with make SAN=thread"
#endif
#elif (defined(__SANITIZE_ADDRESS__) && !defined(FB_ASAN)) || \
      (defined(__SANITIZE_THREAD__) && !defined(FB_TSAN))
#error "sanitizers: build with make SAN=address or SAN=thread"
#endif

#if defined(FB_ASAN) || defined(FB_TSAN)
#define FB_SAN
#define FB_SAN_SIZE	40	/* of struct fb_san; upcall.S counts with it */
#else
#define FB_SAN_SIZE	0
#endif

#ifndef __ASSEMBLER__
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fb_ctx;
struct fb_carrier;

#ifdef FB_SAN
#define FB_HIDDEN	__attribute__((visibility("hidden")))

struct fb_san {
	void *fake;		/* ASan's frames for locals, while suspended */
	const void *bottom;
	size_t size;
	void *fiber;		/* TSan's */
	bool last;
};
#define FB_SAN_MEMBER	struct fb_san san;

/* san.c, which is compiled without a sanitizer. */
FB_HIDDEN void fb_san_init(struct fb_ctx *ctx, void *bottom, size_t size);
FB_HIDDEN void fb_san_last(struct fb_ctx *ctx);
FB_HIDDEN void fb_san_leave(struct fb_ctx *from, struct fb_ctx *to);
FB_HIDDEN void fb_san_arrive(struct fb_ctx *ctx);
FB_HIDDEN void fb_san_begin(struct fb_ctx *ctx, struct fb_carrier *c);
FB_HIDDEN void fb_san_release(void *addr);
FB_HIDDEN void fb_san_acquire(void *addr);
FB_HIDDEN void fb_san_stack(void *bottom, size_t size);
FB_HIDDEN uint64_t fb_san_until(uint64_t deadline);
FB_HIDDEN void fb_san_slept(void);
#else
#define FB_SAN_MEMBER
#define fb_san_init(ctx, bottom, size)	((void)0)
#define fb_san_last(ctx)		((void)0)
#define fb_san_leave(from, to)		((void)0)
#define fb_san_arrive(ctx)		((void)0)
#define fb_san_release(addr)		((void)0)
#define fb_san_acquire(addr)		((void)0)
#define fb_san_stack(bottom, size)	((void)0)
#define fb_san_until(deadline)	(deadline)
#define fb_san_slept()		((void)0)
#endif

#endif /* __ASSEMBLER__ */
#endif
