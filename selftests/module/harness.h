/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * harness.h - the kselftest harness with a limit fit for emulation, and the
 * checks that every test of the module ends with
 */
#ifndef HARNESS_H
#define HARNESS_H

#include <fcntl.h>
#include <sys/stat.h>

#include "kselftest_harness.h"
#include "raw.h"

/* EXPECT_EQ(0, unsigned) is what the harness's users write. */
#pragma GCC diagnostic ignored "-Wsign-compare"

#undef TEST_TIMEOUT_DEFAULT
#define TEST_TIMEOUT_DEFAULT	(150 * FIBER_SLOW) /* seconds */

/* Nothing to test without the module. */
#define NEED_MODULE() do {						\
	if (access("/dev/fiber", R_OK | W_OK))				\
		SKIP(return, "no /dev/fiber: %s", strerror(errno));	\
} while (0)

/* A group of this process; field = value pairs of struct raw_options. */
#define START(...) do {							\
	struct raw_options start_ = { __VA_ARGS__ };			\
	NEED_MODULE();							\
	ASSERT_EQ(0, raw_start(&start_));				\
} while (0)

#define EXPECT_EXCLUSIVE() do {						\
	struct raw_stats last_ = { .violations = ~0ULL };		\
									\
	EXPECT_EQ(0, LOAD(raw_violations))				\
		TH_LOG("%s", raw_violation);				\
	EXPECT_EQ(0, raw_stats(&last_));				\
	EXPECT_EQ(0, last_.violations);					\
	EXPECT_EQ(raw_args.processors,					\
		  last_.owned + last_.idle + last_.flight);		\
} while (0)

#endif
