// SPDX-License-Identifier: GPL-2.0-only
/*
 * stress.c - everything at once, FIBER_STRESS_SECONDS (60) long: blocks, page
 * faults, preemptions, signals, forks, threads that come and go, 3 processors
 */
#include "harness.h"
#include "mix.h"

#undef TEST_TIMEOUT_DEFAULT
#define TEST_TIMEOUT_DEFAULT	3600

TEST(mixed)
{
	const char *seconds = getenv("FIBER_STRESS_SECONDS");
	struct mix_options o = { .workers = 14, .signals = true, .forks = true };
	struct mix_result r = {};

	START(.processors = 3, .quantum_ns = 1000000, .grace_ns = 50000,
	      .preempt = true, .max_carriers = 512, .min_spares = 3);
	o.seconds = seconds ? atoi(seconds) : 60;
	ASSERT_EQ(0, mix_run(&o, &r));
	TH_LOG("%u s: %lu steps, %lu threads, %u spares, %lu signals",
	       o.seconds, r.steps, r.threads, r.spares, r.signals);
	TH_LOG("%lu blocks, %lu handoffs, %lu grace, %lu edge, %lu returns, %lu preempts, %lu refused, %lu wakes",
	       r.stats.blocks, r.stats.handoffs, r.stats.grace_returns,
	       r.stats.edge_returns, r.stats.returns, r.stats.preempts,
	       r.stats.refused, r.stats.wakes);
	EXPECT_FALSE(r.stuck);
	EXPECT_LT(o.seconds, r.steps);
	EXPECT_EQ(0, r.bad_sums) TH_LOG("of %lu samples", r.samples);
	EXPECT_EQ(0, r.lazy);
	EXPECT_EQ(0, r.stats.violations);
	EXPECT_EQ(0, LOAD(raw_violations)) TH_LOG("%s", raw_violation);
	EXPECT_EQ(3, r.stats.owned + r.stats.idle + r.stats.flight);
}

TEST_HARNESS_MAIN
