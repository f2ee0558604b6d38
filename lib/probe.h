/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * probe.h - what happens to fibers, for perf, bpftrace and gdb: man 7 fiber_probes
 *
 * FB_PROBE(name, argument...) is the probe fiber:name (USDT): one nop, and a note
 * beside the code that says where the arguments are. They are lvalues, which the code
 * has anyway in a register or in a struct that one points to, so that a probe costs
 * that nop and nothing else.
 *
 * They stand in the library's own code, never in what a program's compiler inlines
 * from <fiber.h>: there are no switches there. lib/arch's are inlined in the library.
 */
#ifndef FB_PROBE_H
#define FB_PROBE_H

#ifdef FB_SDT
/*
 * No constants: perf takes all places of a probe for one event, and leaves them out.
 * And where it may be a register or memory, clang copies it to the stack.
 */
#ifdef __clang__
#define STAP_SDT_ARG_CONSTRAINT	m
#else
#define STAP_SDT_ARG_CONSTRAINT	or
#endif
#define SDT_USE_VARIADIC
#include <sys/sdt.h>
#define FB_PROBE(...)	STAP_PROBEV(fiber, __VA_ARGS__)
#else
static inline void fb_probe_nothing(int none, ...)
{
	(void)none;
}
#define FB_PROBE(name, ...)						\
	(0 ? fb_probe_nothing(0, __VA_ARGS__) : (void)0)
#endif

#endif
