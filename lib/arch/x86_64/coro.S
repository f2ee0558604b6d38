/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * coro.S - the switches of coroutines: see coro.h
 *
 * The C part of each call gets the frame as its fourth argument and returns
 * struct fb_coro_go in rax and rdx. A fiber may be blocked or moved to another
 * thread inside it, never between it and the switch's end: there libfiber's
 * text is not preempted, and a block (a fault on the new stack) keeps thread
 * and stack.
 *
 * Offsets of struct fb_coro_frame and fiber_coro: proven in coro.c.
 */
#include "coro.h"

	.macro push_frame
	.cfi_startproc
	.irp reg, rbp, rbx, r12, r13, r14, r15
	pushq	%\reg
	.cfi_adjust_cfa_offset 8
	.cfi_rel_offset %\reg, 0
	.endr
	subq	$FB_CORO_FRAME_REGS, %rsp
	.cfi_adjust_cfa_offset FB_CORO_FRAME_REGS
	movq	%rsp, %rcx
	.endm

	.macro pop_regs
	addq	$FB_CORO_FRAME_REGS, %rsp
	.cfi_adjust_cfa_offset -FB_CORO_FRAME_REGS
	.irp reg, r15, r14, r13, r12, rbx, rbp
	popq	%\reg
	.cfi_adjust_cfa_offset -8
	.cfi_restore %\reg
	.endr
	.endm

	/* On the frame at rsp; eax is what its call returns. */
	.macro go_on
	pop_regs
	popq	%rcx
	.cfi_adjust_cfa_offset -8
	.cfi_register %rip, %rcx
	jmpq	*%rcx
	.endm

	/*
	 * A call whose C part is \fn. What the old stack still holds is the
	 * suspended side itself, findable for others once its state says so:
	 * \publish is 1 if it is a coroutine that others may now resume. (x86
	 * keeps the order of the stores: a release. Pairs with claim in
	 * coro.c.)
	 */
	.macro call_switch name, fn, publish
	.type	\name, @function
	.balign	32
\name:
	push_frame
	callq	\fn
	testq	%rax, %rax
	.cfi_remember_state
	jz	1f
	.if \publish
	san_release FB_CORO_FRAME_SELF(%rsp)
	.endif
	san_leave
	.if \publish
	movq	FB_CORO_FRAME_SELF(%rsp), %rcx
	.endif
	movq	%rax, %rsp
	.if \publish
	movl	$FB_CORO_ST_SUSPENDED, FB_CORO_STATE(%rcx)
	.endif
	san_arrive
	movl	%edx, %eax
	go_on
	.cfi_restore_state
1:	movl	%edx, %eax
	pop_regs
	ret
	.cfi_endproc
	.size	\name, . - \name
	.endm

	/*
	 * What sanitizers hear: see san.h. On frames, with rax and rdx as the C
	 * part returned them; what a call must keep is in the frame already.
	 */
	.macro san_call fn
	movq	%rax, %rbx
	movq	%rdx, %r12
	callq	\fn
	movq	%rbx, %rax
	movq	%r12, %rdx
	.endm
#ifdef FB_SAN
	.macro san_release self
	movq	\self, %rdi
	addq	$FB_CORO_STATE, %rdi
	san_call fb_san_release
	.endm
	.macro san_leave
	leaq	FB_CORO_FRAME_CTX(%rsp), %rdi
	leaq	FB_CORO_FRAME_CTX(%rax), %rsi
	san_call fb_san_leave
	.endm
	.macro san_arrive
	leaq	FB_CORO_FRAME_CTX(%rsp), %rdi
	san_call fb_san_arrive
	.endm
	/* The end of a coroutine, which makes room for its last frame. */
	.macro san_last
	subq	$FB_CORO_FRAME_REGS + 8, %rsp
	leaq	FB_CORO_FRAME_CTX(%rsp), %rdi
	movq	%rax, %r13
	movq	%rdx, %r12
	callq	fb_san_last
	leaq	FB_CORO_STATE(%rbx), %rdi
	callq	fb_san_release
	leaq	FB_CORO_FRAME_CTX(%rsp), %rdi
	leaq	FB_CORO_FRAME_CTX(%r13), %rsi
	callq	fb_san_leave
	movq	%r13, %rax
	movq	%r12, %rdx
	.endm
#else
	.macro san_release self
	.endm
	.macro san_leave
	.endm
	.macro san_arrive
	.endm
	.macro san_last
	.endm
#endif

	.section .text, "ax", @progbits

	.globl	fiber_coro_resume, fiber_coro_yield, fiber_coro_transfer
	.globl	fb_coro_kick
	.hidden	fb_coro_kick
	call_switch fiber_coro_resume, fb_coro_resume, 0
	call_switch fiber_coro_yield, fb_coro_yield, 1
	call_switch fiber_coro_transfer, fb_coro_transfer, 1
	call_switch fb_coro_kick, fb_coro_kicked, 0

/*
 * The first instructions, and the last: rbx = the coroutine, the stack is empty
 * and aligned. fb_coro_cut: it was suspended and goes no further. Once DEAD,
 * the coroutine and its stack may be gone.
 */
	.globl	fb_coro_begin, fb_coro_cut, fb_coro_end
	.hidden	fb_coro_begin, fb_coro_cut, fb_coro_end
	.type	fb_coro_begin, @function
	.balign	32
fb_coro_begin:
	.cfi_startproc
	.cfi_undefined %rip
	movq	%rbx, %rdi
	callq	fb_coro_main
fb_coro_cut:
	movq	%rbx, %rdi
	callq	fb_coro_finish
	san_last
	movq	%rax, %rsp
	movl	$FB_CORO_ST_DEAD, FB_CORO_STATE(%rbx)
	san_arrive
	movl	%edx, %eax
	addq	$FB_CORO_FRAME_REGS, %rsp
	popq	%r15
	popq	%r14
	popq	%r13
	popq	%r12
	popq	%rbx
	popq	%rbp
	popq	%rcx
	jmpq	*%rcx
fb_coro_end:
	andq	$-16, %rsp
	movq	%rdi, %rbx
	jmp	fb_coro_cut
	.cfi_endproc
	.size	fb_coro_begin, . - fb_coro_begin

	.section .note.GNU-stack, "", @progbits
