// SPDX-License-Identifier: GPL-2.0-only
/* A process whose fibers all wait costs nothing. */
#include "common.h"

enum { FIBERS = 100 };

static int fds[2];
static atomic_int entered, stop;

static void *reads(void *arg)
{
	char byte;

	atomic_fetch_add(&entered, 1);
	check_eq(1, read(fds[0], &byte, 1));
	return NULL;
}

static void *sleeps(void *arg)
{
	atomic_fetch_add(&entered, 1);
	check_eq(0, fiber_sleep_until(*(uint64_t *)arg));
	return NULL;
}

static void *joins(void *arg)
{
	atomic_fetch_add(&entered, 1);
	join(arg);
	return NULL;
}

static long voluntary_switches(void)
{
	struct rusage use;

	check_eq(0, getrusage(RUSAGE_SELF, &use));
	return use.ru_nvcsw;
}

/* A second of doing nothing, once all have settled. */
static void measure(struct __test_metadata *_metadata, const char *what)
{
	long switches;
	uint64_t cpu;

	while (atomic_load(&entered) < FIBERS)
		block_ns(1 * MS);
	block_ns(300 * MS);
	switches = voluntary_switches();
	cpu = cpu_ns();
	block_ns(1 * SEC);
	cpu = cpu_ns() - cpu;
	switches = voluntary_switches() - switches;
	figure("idle: %s: cpu_us=%lu switches=%ld threads=%ld\n", what,
	       cpu / US, switches, thread_count());
	EXPECT_GT(5 * MS * allowance(), cpu);
	EXPECT_GE(20, switches);
}

TEST(all_blocked_in_read)
{
	fiber_t *f[FIBERS];

	ASSERT_EQ(0, pipe(fds));
	ASSERT_EQ(0, start(2, 0));
	for (int i = 0; i < FIBERS; i++)
		f[i] = spawn(reads, NULL);
	measure(_metadata, "blocked in read");
	for (int i = 0; i < FIBERS; i++)
		ASSERT_EQ(1, write(fds[1], "x", 1));
	for (int i = 0; i < FIBERS; i++)
		join(f[i]);
	ASSERT_EQ(0, fiber_fini());
	EXPECT_EQ(0, failures);
}

TEST(all_in_a_long_sleep)
{
	uint64_t deadline = now_ns() + 3 * SEC;
	fiber_t *f[FIBERS];

	ASSERT_EQ(0, start(2, 0));
	for (int i = 0; i < FIBERS; i++)
		f[i] = spawn(sleeps, &deadline);
	measure(_metadata, "in fiber_sleep");
	EXPECT_GT(40, thread_count());		/* parked, not blocked */
	for (int i = 0; i < FIBERS; i++)
		join(f[i]);
	EXPECT_LE(deadline, now_ns());
	ASSERT_EQ(0, fiber_fini());
	EXPECT_EQ(0, failures);
}

TEST(all_but_one_in_join)
{
	uint64_t deadline = now_ns() + 3 * SEC;
	fiber_t *f[FIBERS];

	ASSERT_EQ(0, start(2, 0));
	f[0] = spawn(sleeps, &deadline);
	for (int i = 1; i < FIBERS; i++)
		f[i] = spawn(joins, f[i - 1]);
	measure(_metadata, "in fiber_join");
	join(f[FIBERS - 1]);
	ASSERT_EQ(0, fiber_fini());
	EXPECT_EQ(0, failures);
}

TEST(nothing_was_ever_spawned)
{
	ASSERT_EQ(0, start(2, 0));
	atomic_store(&entered, FIBERS);
	measure(_metadata, "no fiber");
	ASSERT_EQ(0, fiber_fini());
	EXPECT_EQ(0, failures);
}

/* One works, the others are blocked: no more CPU time than the one needs. */
static void *works_at_times(void *arg)
{
	while (!atomic_load(&stop))
		check_eq(0, fiber_sleep(50 * MS));
	return NULL;
}

TEST(one_ticks_the_others_are_blocked)
{
	fiber_t *f[FIBERS], *one;
	uint64_t cpu;

	ASSERT_EQ(0, pipe(fds));
	ASSERT_EQ(0, start(2, 0));
	one = spawn(works_at_times, NULL);
	for (int i = 0; i < FIBERS; i++)
		f[i] = spawn(reads, NULL);
	while (atomic_load(&entered) < FIBERS)
		block_ns(1 * MS);
	block_ns(300 * MS);
	cpu = cpu_ns();
	block_ns(1 * SEC);
	cpu = cpu_ns() - cpu;
	figure("idle: 20 ticks a second: cpu_us=%lu\n", cpu / US);
	EXPECT_GT(20 * MS * allowance(), cpu);
	atomic_store(&stop, 1);
	join(one);
	for (int i = 0; i < FIBERS; i++)
		ASSERT_EQ(1, write(fds[1], "x", 1));
	for (int i = 0; i < FIBERS; i++)
		join(f[i]);
	ASSERT_EQ(0, fiber_fini());
	EXPECT_EQ(0, failures);
}

TEST_HARNESS_MAIN
