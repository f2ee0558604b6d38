/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * upcall.S - where the kernel enters the library, and where contexts begin
 *
 * The module redirects a carrier here instead of to its user ip, which it left
 * in page->slot[depth - 1]. Nothing of the interrupted code may change: not
 * its red zone, its flags, its registers. Each entry makes a hole below the red
 * zone that becomes the return address, so that `ret $128` goes back and drops
 * the red zone, and a debugger unwinds through.
 *
 * Offsets of struct fb_carrier, fb_cpage and fiber: proven in carrier.c.
 */
#include "../../san.h"

#define C_PAGE		0
#define C_ROOT_SP	8
#define C_XSAVE		(32 + FB_SAN_SIZE)
#define C_CUR		(40 + FB_SAN_SIZE)
#define C_ERRNO_LOC	(56 + FB_SAN_SIZE)
#define C_RETURNED	(120 + FB_SAN_SIZE)
#define C_RETURNED_AS	(136 + FB_SAN_SIZE)
#define C_FD		(184 + FB_SAN_SIZE)
#define F_FN		(40 + FB_SAN_SIZE)
#define F_ARG		(48 + FB_SAN_SIZE)
#define P_IN_FIBER	0
#define P_DEPTH		16
#define P_SLOT		64
#define RED_ZONE	128

	.macro cfi_push reg
	pushq	%\reg
	.cfi_adjust_cfa_offset 8
	.cfi_rel_offset %\reg, 0
	.endm
	.macro cfi_pop reg
	popq	%\reg
	.cfi_adjust_cfa_offset -8
	.cfi_restore %\reg
	.endm

	/* Below the red zone, with a hole for the ip. Flags stay. */
	.macro make_hole
	leaq	-RED_ZONE(%rsp), %rsp
	.cfi_adjust_cfa_offset RED_ZONE
	leaq	-8(%rsp), %rsp
	.cfi_adjust_cfa_offset 8
	.cfi_offset %rip, -(RED_ZONE + 8)
	.endm

	/*
	 * ip from the newest slot into the hole at \off(%rsp); the slot is free
	 * then. The carrier into \self. Uses rax, rcx, rdx. Flags stay.
	 */
	.macro take_ip off, self
	movq	fb_self@gottpoff(%rip), %rax
	movq	%fs:(%rax), %\self
	movq	C_PAGE(%\self), %rax
	movl	P_DEPTH(%rax), %ecx
	leal	-1(%rcx), %ecx
	movq	P_SLOT(%rax, %rcx, 8), %rdx
	movq	%rdx, \off(%rsp)
	movl	%ecx, P_DEPTH(%rax)
	.endm

	.section .text, "ax", @progbits

/*
 * A fiber's first instructions: rdi = carrier, rdx = the fiber, the stack is
 * empty. errno = 0, in_fiber = 1, result = fn(arg). Then a jump, no call:
 * nothing returns from there, and a call left over in the CPU's return stack
 * would make the parent's next return mispredict.
 */
	.globl	fb_arch_start
	.hidden	fb_arch_start
	.type	fb_arch_start, @function
fb_arch_start:
	.cfi_startproc
	.cfi_undefined %rip
	xorl	%ebp, %ebp
#ifdef FB_SAN
	cfi_push rdi
	cfi_push rdx
	movq	%rdi, %rsi
	movq	%rdx, %rdi
	callq	fb_san_begin
	cfi_pop	rdx
	cfi_pop	rdi
#endif
	movq	C_ERRNO_LOC(%rdi), %rcx
	movq	C_PAGE(%rdi), %rax
	movq	F_ARG(%rdx), %rdi
	movl	%ebp, (%rcx)
	movl	$1, P_IN_FIBER(%rax)
	callq	*F_FN(%rdx)
	movq	%rax, %rdi
	pushq	%rbp				/* where a return address would be */
	.cfi_adjust_cfa_offset 8
	jmp	fb_fiber_end
	.cfi_endproc
	.size	fb_arch_start, . - fb_arch_start

/*
 * RETURN: the carrier lost its processor while it was blocked. It gets one by
 * FIBER_IOC_ACQUIRE, which restarts by itself after signals: the module never
 * redirects an ip between the entry and fb_upcall_return_end. A system call
 * keeps all registers but rax, rcx, r11; vectors and flags are not touched.
 */
	.globl	fb_upcall_return, fb_upcall_return_end
	.hidden	fb_upcall_return, fb_upcall_return_end
	.type	fb_upcall_return, @function
	.balign	64
fb_upcall_return:
	.cfi_startproc
	.cfi_signal_frame
	.cfi_def_cfa %rsp, 0
	.cfi_undefined %rip
	make_hole
	cfi_push rax
	cfi_push rcx
	cfi_push rdx
	cfi_push rsi
	cfi_push rdi
	cfi_push r11
	take_ip	48, rdi
	movl	$16, %eax			/* SYS_ioctl */
	movl	C_FD(%rdi), %edi
	movl	fb_upcall_acquire(%rip), %esi
	movl	$0, %edx
	syscall
fb_upcall_return_end:
	movq	%rax, %rcx
	jrcxz	1f
	jmp	fb_upcall_failed
1:	/* With FIBER_TRACE: note who is back, and when (trace.c). */
	movl	fb_upcall_trace(%rip), %ecx
	jrcxz	2f
	movq	fb_self@gottpoff(%rip), %rdi
	movq	%fs:(%rdi), %rdi
	movq	C_CUR(%rdi), %rdx
	movq	%rdx, C_RETURNED_AS(%rdi)
	leaq	C_RETURNED(%rdi), %rsi
	movl	$1, %edi			/* CLOCK_MONOTONIC */
	movl	$228, %eax			/* SYS_clock_gettime */
	syscall
2:	/* syscall left the flags of its own start in r11, and restored them */
	cfi_pop	r11
	cfi_pop	rdi
	cfi_pop	rsi
	cfi_pop	rdx
	cfi_pop	rcx
	cfi_pop	rax
	ret	$RED_ZONE
	.cfi_endproc
	.size	fb_upcall_return, . - fb_upcall_return

/* The group is closed under us: rcx = -errno. Nothing can go on. */
	.type	fb_upcall_failed, @function
fb_upcall_failed:
	.cfi_startproc
	.cfi_undefined %rip
	movq	%rcx, %rdi
	cld
	andq	$-16, %rsp
	callq	fb_upcall_abort
	ud2
	.cfi_endproc
	.size	fb_upcall_failed, . - fb_upcall_failed

/*
 * PREEMPT: the fiber's quantum is used up. All registers go to the fiber's
 * stack, the extended state to the carrier's buffer, and C runs on the
 * carrier's own stack, below its suspended root context. (A fiber that waits
 * there keeps its carrier, so both are ours until it goes on.)
 *
 * Flags come back by hand, not by popf: single-stepping over popf loses the
 * debugger's trap flag. sahf restores SF ZF AF PF CF; OF and DF by arithmetic.
 */
	.globl	fb_upcall_preempt
	.hidden	fb_upcall_preempt
	.type	fb_upcall_preempt, @function
	.balign	64
fb_upcall_preempt:
	.cfi_startproc
	.cfi_signal_frame
	.cfi_def_cfa %rsp, 0
	.cfi_undefined %rip
	make_hole
	cfi_push rax
	pushfq
	.cfi_adjust_cfa_offset 8
	cld
	cfi_push rcx
	cfi_push rdx
	cfi_push rbx
	cfi_push rbp
	cfi_push rsi
	cfi_push rdi
	cfi_push r8
	cfi_push r9
	cfi_push r10
	cfi_push r11
	cfi_push r12
	cfi_push r13
	cfi_push r14
	cfi_push r15
	take_ip	128, rbx		/* the carrier */

	movq	%rsp, %rbp
	.cfi_def_cfa_register %rbp

	movq	C_XSAVE(%rbx), %rdi
	xorl	%eax, %eax			/* XSTATE_BV, XCOMP_BV, reserved */
	movq	%rax, 512(%rdi)
	movq	%rax, 520(%rdi)
	movq	%rax, 528(%rdi)
	movq	%rax, 536(%rdi)
	movq	%rax, 544(%rdi)
	movq	%rax, 552(%rdi)
	movq	%rax, 560(%rdi)
	movq	%rax, 568(%rdi)
	movl	$-1, %eax
	movl	$-1, %edx
	cmpb	$1, fb_upcall_xsave(%rip)
	je	1f
	jb	2f
	fxsave64 (%rdi)
	jmp	3f
1:	xsavec64 (%rdi)
	jmp	3f
2:	xsave64	(%rdi)
3:
	movq	C_ROOT_SP(%rbx), %rsp
	leaq	-RED_ZONE(%rsp), %rsp
	andq	$-16, %rsp
	movq	%rbx, %rdi
	callq	fb_preempted
	movq	%rbp, %rsp
	.cfi_def_cfa_register %rsp

	movq	C_XSAVE(%rbx), %rdi
	movl	$-1, %eax
	movl	$-1, %edx
	cmpb	$2, fb_upcall_xsave(%rip)
	je	4f
	.cfi_remember_state
	xrstor64 (%rdi)
5:
	movq	C_PAGE(%rbx), %rax
	movl	$1, P_IN_FIBER(%rax)	/* from here on a block may hand off again */

	/* DF, OF, then the rest. The saved flags are at 112(%rsp). */
	movq	112(%rsp), %rax
	testl	$0x400, %eax
	je	3f
	std
3:	movl	%eax, %ecx
	shrl	$4, %ecx
	andl	$0x80, %ecx			/* OF (bit 11) as bit 7 */
	movb	%al, %ah
	addb	%cl, %cl			/* 0x80 + 0x80 overflows: OF = 1 */
	sahf					/* SF ZF AF PF CF; keeps OF */
	cfi_pop	r15
	cfi_pop	r14
	cfi_pop	r13
	cfi_pop	r12
	cfi_pop	r11
	cfi_pop	r10
	cfi_pop	r9
	cfi_pop	r8
	cfi_pop	rdi
	cfi_pop	rsi
	cfi_pop	rbp
	cfi_pop	rbx
	cfi_pop	rdx
	cfi_pop	rcx
	leaq	8(%rsp), %rsp			/* the saved flags */
	.cfi_adjust_cfa_offset -8
	cfi_pop	rax
	ret	$RED_ZONE
4:	/* With the frame as it is at the branch. */
	.cfi_restore_state
	fxrstor64 (%rdi)
	jmp	5b
	.cfi_endproc
	.size	fb_upcall_preempt, . - fb_upcall_preempt

	.section .note.GNU-stack, "", @progbits
