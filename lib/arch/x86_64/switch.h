/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * switch.h - leave one stack, enter another (x86-64)
 *
 * Assembly inlined at each site with every register clobbered: the compiler
 * spills only what is live there, so a switch moves rsp, rbp and the address
 * to go on at. The way out is one `jmp *mem` per site, which predicts; `ret`
 * into another stack never does.
 *
 * The carrier travels in rdi, the context that goes on in rdx: it finds there
 * who runs it now and who it is, and needs no look at thread-local storage,
 * whose address may have changed, nor at its stack.
 *
 * What must happen when the old stack is out of use, but before the new
 * context goes on, is part of the switch:
 *   fb_switch_push   publishes the old context in a run queue, and then says so,
 *                    by three stores (x86 keeps their order: each is a
 *                    store_release)
 *   fb_switch_call   calls fn(c, arg) on the new context's stack, below its
 *                    red zone
 * The other way, to publish first and save later, would let a thief run a
 * context that still runs here.
 *
 * Sanitizers hear of every switch by the hooks of san.h, which are nothing in
 * a normal build. They are called here: who adds a way to switch calls
 * fb_san_leave before its assembly and fb_san_arrive behind it (for a context
 * that begins, as the first thing on its stack: fb_arch_start does), and who
 * makes and ends contexts calls fb_san_init and fb_san_last.
 */
#ifndef FB_ARCH_SWITCH_H
#define FB_ARCH_SWITCH_H

#include <stddef.h>
#include <stdint.h>

#include "../../san.h"

struct fb_carrier;

struct fb_ctx {
	void *sp, *bp, *ip;
	FB_SAN_MEMBER
};

typedef void (*fb_switch_fn)(struct fb_carrier *c, void *arg);

/* rsp and rbp are saved by hand; rdi is an operand of every switch. */
#define FB_SWITCH_CLOBBERS						\
	"r11", "r12", "r13", "r14", "r15",				\
	"xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7",	\
	"xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14",	\
	"xmm15", "memory", "cc"

#define FB_SAVE_SP							\
	"leaq 1f(%%rip), %%rax\n\t"					\
	"movq %%rsp, 0(%%rsi)\n\t"					\
	"movq %%rbp, 8(%%rsi)\n\t"
#define FB_SAVE_IP							\
	"movq %%rax, 16(%%rsi)\n\t"
#define FB_SAVE		FB_SAVE_SP FB_SAVE_IP
#define FB_LOAD								\
	"movq 0(%%rdx), %%rsp\n\t"					\
	"movq 8(%%rdx), %%rbp\n\t"
#define FB_GO								\
	"jmpq *16(%%rdx)\n"						\
	"1:\n\t"

/* Go on at `to`; returns, on whatever carrier, when someone goes on at `from`. */
static inline __attribute__((always_inline)) struct fb_carrier *
fb_switch(struct fb_carrier *c, struct fb_ctx *from, struct fb_ctx *to)
{
	fb_san_leave(from, to);
	__asm__ volatile(FB_SAVE FB_LOAD FB_GO
			 : "+D"(c), "+S"(from), "+d"(to)
			 :: "rax", "rbx", "rcx", "r8", "r9", "r10",
			    FB_SWITCH_CLOBBERS);
	fb_san_arrive(to);
	return c;
}

/* What a switch publishes: see fb_switch_push. */
struct fb_push {
	void *slot;
	uint32_t *tail, *word;
	uint32_t t, value;
};

/*
 * As fb_switch; then *slot = *self, store_release(p->tail, p->t), and last of
 * all *p->word = p->value. *self is the same afterwards, but in a register again.
 */
static inline __attribute__((always_inline)) struct fb_carrier *
fb_switch_push(struct fb_carrier *c, struct fb_ctx **self, struct fb_ctx *to,
	       struct fb_push push)
{
	struct fb_ctx *from = *self;

	fb_san_release(push.tail);
	fb_san_leave(from, to);

	register uint32_t *r8 __asm__("r8") = push.tail;
	register uint32_t r9 __asm__("r9") = push.t;
	register uint32_t r10 __asm__("r10") = push.value;

	__asm__ volatile(FB_SAVE FB_LOAD
			 "movq %%rsi, (%%rcx)\n\t"
			 "movl %%r9d, (%%r8)\n\t"
			 "movl %%r10d, (%%rbx)\n\t" FB_GO
			 : "+D"(c), "+S"(from), "+d"(to), "+c"(push.slot),
			   "+b"(push.word), "+r"(r8), "+r"(r9), "+r"(r10)
			 :: "rax", FB_SWITCH_CLOBBERS);
	fb_san_arrive(to);
	*self = to;		/* rdx: see above */
	return c;
}

/* Enter the new context at `top` and publish *self as fb_switch_push. */
static inline __attribute__((always_inline)) struct fb_carrier *
fb_switch_new(struct fb_carrier *c, struct fb_ctx **self, struct fb_ctx *top,
	      struct fb_push push)
{
	struct fb_ctx *from = *self;

	fb_san_release(push.tail);
	fb_san_leave(from, top);

	register uint32_t *r8 __asm__("r8") = push.tail;
	register uint32_t r9 __asm__("r9") = push.t;
	register uint32_t r10 __asm__("r10") = push.value;

	__asm__ volatile(FB_SAVE
			 "movq %%rdx, %%rsp\n\t"
			 "movq %%rsi, (%%rcx)\n\t"
			 "movl %%r9d, (%%r8)\n\t"
			 "movl %%r10d, (%%rbx)\n\t"
			 "jmp fb_arch_start\n"
			 "1:\n\t"
			 : "+D"(c), "+S"(from), "+d"(top), "+c"(push.slot),
			   "+b"(push.word), "+r"(r8), "+r"(r9), "+r"(r10)
			 :: "rax", FB_SWITCH_CLOBBERS);
	fb_san_arrive(top);
	*self = top;
	return c;
}

/*
 * As fb_switch, but fn(c, arg) runs between the two, on the stack of `to`.
 * fn must not sleep and needs little stack; `from` may be gone when it returns.
 */
static inline __attribute__((always_inline)) struct fb_carrier *
fb_switch_call(struct fb_carrier *c, struct fb_ctx *from, struct fb_ctx *to,
	       fb_switch_fn fn, void *arg)
{
	fb_san_leave(from, to);

	register void *r8 __asm__("r8") = arg;

	/*
	 * The last store stands between the two steps of rsp: valgrind takes
	 * them for one otherwise, and the new frame for forbidden memory.
	 */
	__asm__ volatile(FB_SAVE_SP
			 "movq %%rdi, %%rbx\n\t"
			 "movq %%rdx, %%r12\n\t"
			 "movq 0(%%rdx), %%rsp\n\t"
			 FB_SAVE_IP
			 "leaq -128(%%rsp), %%rsp\n\t"
			 "andq $-16, %%rsp\n\t"
			 "xorl %%ebp, %%ebp\n\t"
			 "movq %%r8, %%rsi\n\t"
			 "callq *%%rcx\n\t"
			 "movq %%rbx, %%rdi\n\t"
			 "movq %%r12, %%rdx\n\t" FB_LOAD FB_GO
			 : "+D"(c), "+S"(from), "+d"(to), "+c"(fn), "+r"(r8)
			 :: "rax", "rbx", "r9", "r10", FB_SWITCH_CLOBBERS);
	fb_san_arrive(to);
	return c;
}

/* Go on at `to` and never come back here, to `from`; nothing is saved. */
static inline __attribute__((always_inline, noreturn)) void
fb_switch_last(struct fb_carrier *c, struct fb_ctx *from, struct fb_ctx *to)
{
	fb_san_last(from);
	fb_san_leave(from, to);
	__asm__ volatile(FB_LOAD "jmpq *16(%%rdx)\n\t"
			 :: "D"(c), "d"(to) : "memory");
	__builtin_unreachable();
}

/* fb_self, read here and now: no address or value from before a switch. */
static inline __attribute__((always_inline)) struct fb_carrier *fb_current(void)
{
	struct fb_carrier *c;

	__asm__ volatile("movq fb_self@gottpoff(%%rip), %0\n\t"
			 "movq %%fs:(%0), %0" : "=r"(c) :: "memory");
	return c;
}

/*
 * Rounding, masks, flush-to-zero: a call must keep them, so a switch must. To
 * read and compare is nearly free; they are written only when they differ
 * from what the runtime began with.
 */
struct fb_fpu {
	uint32_t mxcsr;
	uint32_t cw;			/* of 16 bits, the others are 0 */
};
#define FB_MXCSR_STATUS	0x3fu		/* sticky exceptions: not control */

static inline __attribute__((always_inline)) struct fb_fpu fb_fpu_read(void)
{
	uint32_t mxcsr;
	uint16_t cw;

	__asm__ volatile("stmxcsr %0\n\tfnstcw %1" : "=m"(mxcsr), "=m"(cw));
	return (struct fb_fpu) { mxcsr & ~FB_MXCSR_STATUS, cw };
}

static inline void fb_fpu_write(struct fb_fpu v)
{
	__asm__ volatile("ldmxcsr %0\n\tfldcw %1" :: "m"(v.mxcsr), "m"(v.cw));
}

static inline void fb_cpu_relax(void)
{
	__asm__ volatile("pause" ::: "memory");
}

/*
 * New contexts begin here, with the carrier in rdi and, as ever, themselves in
 * rdx, on an empty stack: their descriptor, struct fiber, is its top.
 */
extern const char fb_arch_start[] __attribute__((visibility("hidden")));

static inline void fb_ctx_init(struct fb_ctx *x, void *stack_top)
{
	x->sp = stack_top;
	x->bp = NULL;
	x->ip = (void *)fb_arch_start;
}

#endif
