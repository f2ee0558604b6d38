// SPDX-License-Identifier: GPL-2.0-only
/*
 * code32.c - a 32-bit program without a C library; hazard_code.c carries it
 *
 * Without argument: ends with EXECUTED. With one: makes a group of its own, if
 * the module lets it, blocks in fiber, and ends with BLOCKED; or with REFUSED
 * when the module serves no 32-bit programs. Everything else is a fault.
 */
#include <linux/fiber.h>

#include "code32.h"

_Static_assert(sizeof(void *) == 4, "a 32-bit program");
/* The structs have no padding that depends on the word size. */
_Static_assert(sizeof(struct fiber_setup_args) == 120, "as in 64-bit code");
_Static_assert(sizeof(struct fiber_wait_args) == 40, "as in 64-bit code");

enum { NR_EXIT = 1, NR_OPEN = 5, NR_IOCTL = 54, NR_NANOSLEEP = 162,
       NR_MMAP2 = 192 };
enum { O_RDWR = 2, PROT_RW = 3, MAP_SHARED = 1, EOPNOTSUPP = 95, ENOTTY = 25 };

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

/* Six arguments: ebp by hand. */
static void *map(int fd, __u64 offset)
{
	static long page;		/* not on the stack, which moves below */
	long r;

	page = (long)(offset >> 12);
	__asm__ volatile("push %%ebp; mov %1, %%ebp; int $0x80; pop %%ebp"
			 : "=a"(r)
			 : "m"(page), "a"(NR_MMAP2), "b"(0), "c"(4096),
			   "d"(PROT_RW), "S"(MAP_SHARED), "D"(fd) : "memory");
	if (r < 0 && r > -4096)
		leave(20);
	return (void *)r;
}

static void must(long r, int code)
{
	if (r < 0)
		leave(code);
}

static void some_code(void)
{
}

static void use_fiber(void)
{
	static struct fiber_query_args query;
	static struct fiber_setup_args setup;
	static struct fiber_attach_args attach;
	static struct fiber_wait_args wait = { .flags = FIBER_WAIT_READY };
	volatile struct fiber_processor_page *processor;
	volatile struct fiber_carrier_page *carrier;
	long nap[2] = { 0, 2000000 }, r;
	long fd = call(NR_OPEN, (long)"/dev/fiber", O_RDWR, 0);

	must(fd, 10);
	must(call(NR_IOCTL, fd, FIBER_IOC_QUERY, (long)&query), 11);
	setup.processors = 1;
	setup.max_carriers = 4;
	setup.return_ip = (unsigned long)some_code;
	setup.return_end = setup.return_ip + 1;
	setup.preempt_ip = setup.return_ip;
	setup.quantum_ns = 1000000;
	r = call(NR_IOCTL, fd, FIBER_IOC_SETUP, (long)&setup);
	if (r == -EOPNOTSUPP || r == -ENOTTY)
		leave(CODE32_REFUSED);
	must(r, 12);
	must(call(NR_IOCTL, fd, FIBER_IOC_ATTACH, (long)&attach), 13);
	must(call(NR_IOCTL, fd, FIBER_IOC_WAIT, (long)&wait), 14);
	processor = map(fd, setup.off_processors);
	carrier = map(fd, setup.off_carriers);
	processor->takeover = FIBER_TAKEOVER_READY;
	carrier->in_fiber = 1;
	for (int i = 0; i < 5; i++)
		must(call(NR_NANOSLEEP, (long)nap, 0, 0), 15);
	carrier->in_fiber = 0;
	processor->takeover = 0;
	must(call(NR_IOCTL, fd, FIBER_IOC_WAIT, (long)&wait), 16);
	if (carrier->processor != 0)
		leave(17);
	must(call(NR_IOCTL, fd, FIBER_IOC_DETACH, 0), 18);
	leave(CODE32_BLOCKED);
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
