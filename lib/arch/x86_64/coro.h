/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * coro.h - the stack of a suspended coroutine, or of who resumed it (x86-64)
 *
 * The calls that switch are in coro.S: they push the registers that a function
 * must keep and, below, what C keeps of a suspended side. C then says whose
 * frame goes on. Everything that must be right when it goes on, C puts right
 * before the switch; only "the other one is suspended now" comes after it.
 *
 * Not switch.h's inlined way: a resume returns into other code than the call
 * before it came from, where a `ret` never predicts. Here the last instruction
 * is the one indirect jump that a switch needs anyway.
 */
#ifndef FB_ARCH_CORO_H
#define FB_ARCH_CORO_H

#include "../../san.h"

#define FB_CORO_FRAME_SELF	8
#define FB_CORO_FRAME_CTX	40
#ifdef FB_SAN
#define FB_CORO_FRAME_REGS	(FB_CORO_FRAME_CTX + 24 + FB_SAN_SIZE)
#else
#define FB_CORO_FRAME_REGS	FB_CORO_FRAME_CTX
#endif
#define FB_CORO_STATE		8
#define FB_CORO_ST_SUSPENDED	0
#define FB_CORO_ST_DEAD		3

#ifndef __ASSEMBLER__
#include "switch.h"

struct fiber_coro;
struct fb_coro_thread;

struct fb_coro_frame {
	void **value;			/* where it wants what is handed over */
	struct fiber_coro *self;	/* who it is; NULL: not a coroutine */
	struct fb_fpu fpu;
	int err;			/* errno */
	uint32_t eh_uncaught;		/* C++: see coro.c */
	void *eh_caught;
#ifdef FB_SAN
	struct fb_ctx ctx;		/* for the hooks of san.h alone */
#endif
	/* popped by coro.S */
	void *r15, *r14, *r13, *r12, *rbx, *rbp, *ret;
};

/* What goes on, and what its call returns; to NULL: nothing does, return. */
struct fb_coro_go {
	struct fb_coro_frame *to;
	long result;
};

/*
 * A new coroutine's frame on the stack [bottom, top), as if it had called from
 * nowhere; and one that is suspended made to go on in fb_coro_finish.
 */
extern const char fb_coro_begin[] __attribute__((visibility("hidden")));
extern const char fb_coro_cut[] __attribute__((visibility("hidden")));

static inline struct fb_coro_frame *fb_coro_frame_new(struct fiber_coro *co,
						      void *bottom, void *top)
{
	struct fb_coro_frame *f;

	f = (struct fb_coro_frame *)((uintptr_t)top & ~(uintptr_t)15) - 1;
	f->self = co;
	f->rbx = co;
	f->rbp = NULL;
#ifdef FB_SAN
	fb_san_init(&f->ctx, bottom, (size_t)((char *)top - (char *)bottom));
#endif
	f->ret = (void *)fb_coro_begin;
	(void)bottom;
	return f;
}

static inline void fb_coro_frame_cut(struct fb_coro_frame *f)
{
	f->rbx = f->self;
	f->ret = (void *)fb_coro_cut;
}

/* fb_coro_here, read here and now: see fb_current. */
static inline __attribute__((always_inline)) struct fb_coro_thread *
fb_coro_thread(void)
{
	struct fb_coro_thread *t;

	__asm__ volatile("movq fb_coro_here@gottpoff(%%rip), %0\n\t"
			 "addq %%fs:0, %0" : "=r"(t) :: "memory", "cc");
	return t;
}

/* Goes on with a coroutine that the caller has claimed: see coro.c. */
int fb_coro_kick(struct fiber_coro *co, int error, void **out)
	__attribute__((visibility("hidden")));
/* fb_coro_finish on this stack, then whoever comes next. */
_Noreturn void fb_coro_end(struct fiber_coro *co)
	__attribute__((visibility("hidden")));

#endif
#endif
