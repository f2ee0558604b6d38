/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * fault.h - whatever can fail, failing on purpose
 *
 * Each allocation, copy and killable lock of the module stands in
 * fiber_may_fail(). In the module that users load the macro is its first
 * argument and nothing else. In the test module (make modules FAULT=1) the n-th
 * one that a thread comes to fails; selftests/module/inject.c walks n = 1, 2, ...
 * for every door.
 */
#ifndef FIBER_FAULT_H
#define FIBER_FAULT_H

#include <linux/types.h>

#ifdef FIBER_FAULT
bool fiber_fault(void);
#define fiber_may_fail(call, failure)	(fiber_fault() ? (failure) : (call))
#else
#define fiber_may_fail(call, failure)	(call)
#endif

#endif
