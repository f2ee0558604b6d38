/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * raw.S - the two trampolines, and code that knows all its registers
 *
 * RETURN runs instead of fiber code that came back without a processor. Up to
 * its system call it changes no flag (mov, lea, push, jrcxz only). PREEMPT
 * clears in_fiber before it uses the carrier's one xsave area, so that a signal
 * handler can be preempted earlier and later, never meanwhile.
 */
#define PAGE_IN_FIBER	0
#define PAGE_DEPTH	16
#define PAGE_SLOT	64
#define RED_ZONE	128
#define IOC_ACQUIRE	0xfb04

	.text
	.globl raw_return, raw_return_end, raw_return_trapped, raw_preempt
	.type raw_return_trapped, @function
/* While raw_traps lasts, SIGTRAP comes between the upcall and its slot. */
raw_return_trapped:
	cmpl	$0, raw_traps(%rip)
	je	raw_return
	lock decl raw_traps(%rip)
	int3
	.size raw_return_trapped, .-raw_return_trapped

	.type raw_return, @function
raw_return:
	lea	-RED_ZONE(%rsp), %rsp
	push	%rax			/* becomes the ip */
	push	%rax
	push	%rcx
	push	%rdx
	push	%rsi
	push	%rdi
	push	%r11
	mov	%fs:raw_page@tpoff, %rcx
	mov	PAGE_DEPTH(%rcx), %eax
	lea	-1(%rax), %eax
	mov	PAGE_SLOT(%rcx,%rax,8), %rdx
	mov	%eax, PAGE_DEPTH(%rcx)
	mov	%rdx, 48(%rsp)
	mov	raw_fd(%rip), %edi
	mov	$IOC_ACQUIRE, %esi
	mov	$16, %eax		/* ioctl */
	syscall
raw_return_end:
	mov	%rax, %rcx
	jrcxz	1f
	pushfq
	mov	%eax, raw_acquire_error(%rip)
	lock incl raw_acquire_errors(%rip)
	popfq
1:	pop	%r11
	pop	%rdi
	pop	%rsi
	pop	%rdx
	pop	%rcx
	pop	%rax
	ret	$RED_ZONE
	.size raw_return, .-raw_return

	.type raw_preempt, @function
raw_preempt:
	lea	-RED_ZONE(%rsp), %rsp
	push	%rax			/* becomes the ip */
	pushfq
	push	%rax
	push	%rbx
	push	%rcx
	push	%rdx
	push	%rsi
	push	%rdi
	push	%rbp
	push	%r8
	push	%r9
	push	%r10
	push	%r11
	push	%r12
	push	%r13
	push	%r14
	push	%r15
	cld
	mov	%rsp, %rbp
	mov	%fs:raw_page@tpoff, %rbx
	mov	PAGE_DEPTH(%rbx), %eax
	sub	$1, %eax
	mov	PAGE_SLOT(%rbx,%rax,8), %rcx
	mov	%rcx, 16*8(%rbp)
	mov	%eax, PAGE_DEPTH(%rbx)
	movl	$0, PAGE_IN_FIBER(%rbx)
	mov	%fs:raw_xsave@tpoff, %r12
	mov	$-1, %eax
	mov	%eax, %edx
	xsave64	(%r12)
	and	$-64, %rsp
	call	raw_preempted
	mov	$-1, %eax
	mov	%eax, %edx
	xrstor64 (%r12)
	mov	%rbp, %rsp
	movl	$1, PAGE_IN_FIBER(%rbx)

	/* Flags without popf: DF, then OF by an addition, the rest by sahf. */
	mov	15*8(%rsp), %ecx
	test	$0x400, %ecx
	jz	1f
	std
1:	mov	%ecx, %eax
	shr	$11, %eax
	and	$1, %eax
	mov	%cl, %ah
	add	$0x7f, %al
	sahf
	pop	%r15
	pop	%r14
	pop	%r13
	pop	%r12
	pop	%r11
	pop	%r10
	pop	%r9
	pop	%r8
	pop	%rbp
	pop	%rdi
	pop	%rsi
	pop	%rdx
	pop	%rcx
	pop	%rbx
	pop	%rax
	lea	8(%rsp), %rsp
	ret	$RED_ZONE
	.size raw_preempt, .-raw_preempt

/* --- struct raw_regs ----------------------------------------------------- */
#define R_RAX	0
#define R_RBX	8
#define R_RCX	16
#define R_RDX	24
#define R_RSI	32
#define R_RDI	40
#define R_RBP	48
#define R_R8	56
#define R_FLAGS	120
#define R_MXCSR	128
#define R_CW	132
#define R_MOVED	136
#define R_ZONE	144
#define R_VEC	288

.macro vectors op128, op256, store
	cmpl	$0, raw_avx(%rip)
	je	7f
	.irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15
	.if \store
	\op256	%ymm\n, R_VEC+32*\n(%rax)
	.else
	\op256	R_VEC+32*\n(%rax), %ymm\n
	.endif
	.endr
	jmp	8f
7:	.irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15
	.if \store
	\op128	%xmm\n, R_VEC+32*\n(%rax)
	.else
	\op128	R_VEC+32*\n(%rax), %xmm\n
	.endif
	.endr
8:
.endm

/* rdi: in, rsi: out. Saves what C wants back, loads all of *in. */
.macro load_all
	push	%rbx
	push	%rbp
	push	%r12
	push	%r13
	push	%r14
	push	%r15
	push	%rsi			/* out */
	sub	$16, %rsp
	stmxcsr	(%rsp)
	fnstcw	4(%rsp)
	mov	%rsp, %fs:raw_rsp@tpoff
	mov	%rdi, %rax
	vectors	movdqu, vmovdqu, 0
	ldmxcsr	R_MXCSR(%rax)
	fldcw	R_CW(%rax)
	.irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15
	mov	R_ZONE+8*\n(%rax), %rbx
	mov	%rbx, -8*(\n+1)(%rsp)
	.endr
	mov	R_RBX(%rax), %rbx
	mov	R_RCX(%rax), %rcx
	mov	R_RDX(%rax), %rdx
	mov	R_RSI(%rax), %rsi
	mov	R_RDI(%rax), %rdi
	mov	R_RBP(%rax), %rbp
	mov	R_R8(%rax), %r8
	mov	R_R8+8(%rax), %r9
	mov	R_R8+16(%rax), %r10
	mov	R_R8+24(%rax), %r11
	mov	R_R8+32(%rax), %r12
	mov	R_R8+40(%rax), %r13
	mov	R_R8+48(%rax), %r14
	mov	R_R8+56(%rax), %r15
	/* The red zone is in use: the flags go below it. */
	lea	-RED_ZONE(%rsp), %rsp
	pushq	R_FLAGS(%rax)
	popfq
	lea	RED_ZONE(%rsp), %rsp
	mov	R_RAX(%rax), %rax
.endm

.macro store_all
	lea	-RED_ZONE(%rsp), %rsp
	push	%rax
	pushfq
	mov	RED_ZONE+16+16(%rsp), %rax	/* out */
	cld
	mov	%rbx, R_RBX(%rax)
	mov	%rcx, R_RCX(%rax)
	mov	%rdx, R_RDX(%rax)
	mov	%rsi, R_RSI(%rax)
	mov	%rdi, R_RDI(%rax)
	mov	%rbp, R_RBP(%rax)
	mov	%r8, R_R8(%rax)
	mov	%r9, R_R8+8(%rax)
	mov	%r10, R_R8+16(%rax)
	mov	%r11, R_R8+24(%rax)
	mov	%r12, R_R8+32(%rax)
	mov	%r13, R_R8+40(%rax)
	mov	%r14, R_R8+48(%rax)
	mov	%r15, R_R8+56(%rax)
	pop	%rbx
	mov	%rbx, R_FLAGS(%rax)
	pop	%rbx
	mov	%rbx, R_RAX(%rax)
	lea	RED_ZONE(%rsp), %rsp
	mov	%rsp, %rbx
	sub	%fs:raw_rsp@tpoff, %rbx
	mov	%rbx, R_MOVED(%rax)
	.irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15
	mov	-8*(\n+1)(%rsp), %rbx
	mov	%rbx, R_ZONE+8*\n(%rax)
	.endr
	stmxcsr	R_MXCSR(%rax)
	movl	$0, R_CW(%rax)
	fnstcw	R_CW(%rax)
	vectors	movdqu, vmovdqu, 1
	cmpl	$0, raw_avx(%rip)
	je	9f
	vzeroupper
9:	ldmxcsr	(%rsp)
	fldcw	4(%rsp)
	add	$24, %rsp
	pop	%r15
	pop	%r14
	pop	%r13
	pop	%r12
	pop	%rbp
	pop	%rbx
	ret
.endm

	.globl raw_regs_syscall, raw_regs_syscall_end
	.type raw_regs_syscall, @function
raw_regs_syscall:
	load_all
	syscall
raw_regs_syscall_end:
	store_all
	.size raw_regs_syscall, .-raw_regs_syscall

	.section raw_text, "ax", @progbits
	.globl raw_regs_spin
	.type raw_regs_spin, @function
raw_regs_spin:
	load_all
1:	lea	-1(%rcx), %rcx
	jrcxz	2f
	jmp	1b
2:	store_all
	.size raw_regs_spin, .-raw_regs_spin

	.section .tbss, "awT", @nobits
	.align 8
raw_rsp:
	.zero	8
	.section .note.GNU-stack, "", @progbits
