// SPDX-License-Identifier: GPL-2.0-only
/*
 * code32.c - a 32-bit program without a C library; hazard_code.c carries it
 *
 * Without argument: ends with EXECUTED. With one: calls the module, and ends with
 * REFUSED if it says that it serves no 32-bit programs. Everything else is a fault.
 */
#include <linux/fiber.h>

#include "code32.h"

_Static_assert(sizeof(void *) == 4, "a 32-bit program");
enum { NR_EXIT = 1, NR_OPEN = 5, NR_IOCTL = 54 };
enum { O_RDWR = 2, EOPNOTSUPP = 95 };

static long call(long n, long a, long b, long c)
{
	long r;

	__asm__ volatile("int $0x80" : "=a"(r)
			 : "a"(n), "b"(a), "c"(b), "d"(c) : "memory");
	return r;
}

static void leave(int code)
{
	for (;;)
		call(NR_EXIT, code, 0, 0);
}

static void must(long r, int code)
{
	if (r < 0)
		leave(code);
}

static void use_fiber(void)
{
	static struct fiber_query_args query;
	long fd = call(NR_OPEN, (long)"/dev/fiber", O_RDWR, 0);

	must(fd, 10);
	if (call(NR_IOCTL, fd, FIBER_IOC_QUERY, (long)&query) == -EOPNOTSUPP)
		leave(CODE32_REFUSED);
	leave(11);
}

/* The stack holds argc first. */
__attribute__((used)) static void begin(const long *stack)
{
	if (stack[0] > 1)
		use_fiber();
	leave(CODE32_EXECUTED);
}

__asm__(".globl _start\n"
	"_start: mov %esp, %eax\n"
	"	and $-16, %esp\n"
	"	sub $12, %esp\n"
	"	push %eax\n"
	"	call begin\n");
