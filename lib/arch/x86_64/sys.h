/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * sys.h - system calls that leave errno alone
 *
 * Not by the C library: its calls write errno of the thread they began on, and a
 * fiber's errno is not theirs to touch. The result is the kernel's: negative for
 * an error.
 */
#ifndef FB_SYS_H
#define FB_SYS_H

#include <sys/syscall.h>

static inline long fb_sys6(long nr, long a, long b, long c, long d, long e,
			   long f)
{
	register long r10 __asm__("r10") = d;
	register long r8 __asm__("r8") = e;
	register long r9 __asm__("r9") = f;

	__asm__ volatile("syscall"
			 : "+a"(nr), "+r"(r10), "+r"(r8), "+r"(r9)
			 : "D"(a), "S"(b), "d"(c)
			 : "rcx", "r11", "memory");
	return nr;
}

#define fb_sys_(nr, a, b, c, d, e, f, ...) \
	fb_sys6(nr, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), \
		(long)(f))
/* fb_sys(SYS_read, fd, buf, n): up to six arguments. */
#define fb_sys(nr, ...) fb_sys_(nr, __VA_ARGS__, 0, 0, 0, 0, 0, 0)

#endif
