/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * regs.h - does a preemption leave every register as it was?
 *
 * regs_spin(seed, loops) fills all general registers, the arithmetic and
 * direction flags, xmm0-15 (their upper halves too where AVX is), x87 stack,
 * control words and the red zone with values made of seed, runs an empty loop
 * that changes none of them (lea and jrcxz leave the flags alone), and gives
 * what it then finds to regs_verify.
 */
#ifndef SELFTESTS_LIB_REGS_H
#define SELFTESTS_LIB_REGS_H

#include "common.h"

#define REGS_FLAGS	0xcd5U		/* CF PF AF ZF SF DF OF */

struct regs_found {
	uint64_t gpr[14];	/* all but rsp and rcx, in the order below */
	uint64_t red_zone[16];
	uint64_t flags;
	uint32_t mxcsr, cw;
	double st0, st1;
	uint64_t seed;
	uint64_t vec[16][4] __attribute__((aligned(32)));
};

unsigned int regs_spin(uint64_t seed, uint64_t loops);
unsigned int regs_verify(const struct regs_found *r);

/* Set before the first call: the CPU and the system have AVX. */
int regs_avx;

/*
 * rdi: seed, rsi: loops. The frame holds a struct regs_found; offsets are
 * proven below. The red zone lies under it: nothing is pushed in between.
 */
__asm__(
"	.pushsection .text\n"
"	.type regs_spin, @function\n"
"	.globl regs_spin\n"
"regs_spin:\n"
"	push %rbx; push %rbp; push %r12; push %r13; push %r14; push %r15\n"
"	mov %rsp, %rbp\n"
"	sub $1024, %rsp\n"
"	and $-64, %rsp\n"
"	mov %rbp, 960(%rsp)\n"
"	stmxcsr 968(%rsp)\n"
"	fnstcw 972(%rsp)\n"
/* control words: a rounding mode out of the seed */
"	mov %edi, %eax\n"
"	and $3, %eax\n"
"	mov %eax, %ecx\n"
"	shl $13, %eax\n"
"	or $0x1f80, %eax\n"
"	mov %eax, -8(%rsp)\n"
"	ldmxcsr -8(%rsp)\n"
"	shl $10, %ecx\n"
"	or $0x37f, %ecx\n"
"	mov %ecx, -8(%rsp)\n"
"	fldcw -8(%rsp)\n"
/* vectors: lane values seed + 100 + n, upper halves the same */
"	.irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15\n"
"	lea 100+\\n(%rdi), %rax\n"
"	movq %rax, %xmm\\n\n"
"	punpcklqdq %xmm\\n, %xmm\\n\n"
"	.endr\n"
"	cmpl $0, regs_avx(%rip)\n"
"	je 1f\n"
"	.irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15\n"
"	vinsertf128 $1, %xmm\\n, %ymm\\n, %ymm\\n\n"
"	.endr\n"
"1:	fldpi\n"
"	fld1\n"
/* red zone: seed + 200 + n */
"	.irp n, 1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16\n"
"	lea 200+\\n(%rdi), %rax\n"
"	mov %rax, -8*\\n(%rsp)\n"
"	.endr\n"
/* flags; the word goes through memory above the frame */
"	mov %edi, %eax\n"
"	and $0xcd5, %eax\n"
"	or $0x202, %eax\n"
"	mov %rsi, %rcx\n"
"	mov %rax, 976(%rsp)\n"
"	lea 976(%rsp), %rsp\n"
"	popfq\n"
"	lea -984(%rsp), %rsp\n"
/* general registers, without touching the flags */
"	lea 1(%rdi), %rax\n"
"	lea 2(%rdi), %rbx\n"
"	lea 3(%rdi), %rdx\n"
"	lea 4(%rdi), %rsi\n"
"	lea 6(%rdi), %rbp\n"
"	lea 7(%rdi), %r8\n"
"	lea 8(%rdi), %r9\n"
"	lea 9(%rdi), %r10\n"
"	lea 10(%rdi), %r11\n"
"	lea 11(%rdi), %r12\n"
"	lea 12(%rdi), %r13\n"
"	lea 13(%rdi), %r14\n"
"	lea 14(%rdi), %r15\n"
"	mov %rdi, 272(%rsp)\n"
"	lea 5(%rdi), %rdi\n"
"2:	lea -1(%rcx), %rcx\n"
"	jrcxz 3f\n"
"	jmp 2b\n"
"3:	mov %rax, 0(%rsp)\n"
"	mov %rbx, 8(%rsp)\n"
"	mov %rdx, 16(%rsp)\n"
"	mov %rsi, 24(%rsp)\n"
"	mov %rdi, 32(%rsp)\n"
"	mov %rbp, 40(%rsp)\n"
"	mov %r8, 48(%rsp)\n"
"	mov %r9, 56(%rsp)\n"
"	mov %r10, 64(%rsp)\n"
"	mov %r11, 72(%rsp)\n"
"	mov %r12, 80(%rsp)\n"
"	mov %r13, 88(%rsp)\n"
"	mov %r14, 96(%rsp)\n"
"	mov %r15, 104(%rsp)\n"
"	.irp n, 1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16\n"
"	mov -8*\\n(%rsp), %rax\n"
"	mov %rax, 112+8*(\\n-1)(%rsp)\n"
"	.endr\n"
"	pushfq\n"
"	cld\n"
"	popq 240(%rsp)\n"		/* with rsp as it is after the pop */
"	stmxcsr 248(%rsp)\n"
"	movl $0, 252(%rsp)\n"
"	fnstcw 252(%rsp)\n"
"	fstpl 256(%rsp)\n"
"	fstpl 264(%rsp)\n"
"	cmpl $0, regs_avx(%rip)\n"
"	je 4f\n"
"	.irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15\n"
"	vmovups %ymm\\n, 288+32*\\n(%rsp)\n"
"	.endr\n"
"	vzeroupper\n"
"	jmp 5f\n"
"4:	.irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15\n"
"	movups %xmm\\n, 288+32*\\n(%rsp)\n"
"	.endr\n"
"5:	ldmxcsr 968(%rsp)\n"
"	fldcw 972(%rsp)\n"
"	mov %rsp, %rdi\n"
"	mov 960(%rsp), %rbp\n"
"	call regs_verify\n"
"	mov %rbp, %rsp\n"
"	pop %r15; pop %r14; pop %r13; pop %r12; pop %rbp; pop %rbx\n"
"	ret\n"
"	.size regs_spin, .-regs_spin\n"
"	.popsection\n");

_Static_assert(offsetof(struct regs_found, red_zone) == 112, "regs_spin");
_Static_assert(offsetof(struct regs_found, flags) == 240, "regs_spin");
_Static_assert(offsetof(struct regs_found, mxcsr) == 248, "regs_spin");
_Static_assert(offsetof(struct regs_found, st0) == 256, "regs_spin");
_Static_assert(offsetof(struct regs_found, seed) == 272, "regs_spin");
_Static_assert(offsetof(struct regs_found, vec) == 288, "regs_spin");
_Static_assert(sizeof(struct regs_found) <= 960, "regs_spin");

#define same(want, got, what, n) \
	((want) == (got) ? 0U : \
	 (failed(__FILE__, __LINE__, "seed %#lx: %s %d is %#lx, not %#lx", \
		 r->seed, what, n, (unsigned long)(got), \
		 (unsigned long)(want)), 1U))

unsigned int regs_verify(const struct regs_found *r)
{
	unsigned int bad = 0, mode = r->seed & 3;

	for (int i = 0; i < 14; i++)
		bad += same(r->seed + 1 + i, r->gpr[i], "register", i);
	for (int i = 0; i < 16; i++)
		bad += same(r->seed + 201 + i, r->red_zone[i], "red zone", i);
	for (int i = 0; i < 16; i++)
		for (int k = 0; k < (regs_avx ? 4 : 2); k++)
			bad += same(r->seed + 100 + i, r->vec[i][k], "vector",
				    4 * i + k);
	bad += same(r->seed & REGS_FLAGS, r->flags & REGS_FLAGS, "flags", 0);
	bad += same(0x1f80U | mode << 13, r->mxcsr, "MXCSR", 0);
	bad += same(0x37fU | mode << 10, r->cw, "x87 control", 0);
	bad += r->st0 != 1.0 || r->st1 < 3.14 || r->st1 > 3.15;
	return bad;
}

#endif
