// SPDX-License-Identifier: GPL-2.0-only
/* A process whose fibers all wait costs nothing. */
#include <limits.h>

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

/* Until it is cancelled. */
static int sleeps(void *arg)
{
	atomic_fetch_add(&entered, 1);
	check_eq(-ECANCELED, fiber_sleep_until(now_ns() + 3600 * SEC));
	return 0;
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

struct window {
	uint64_t cpu;
	long switches;
};

/* A second of doing nothing, once all have settled. */
static struct window look(void)
{
	struct window w;

	block_ns(300 * MS);
	w.switches = voluntary_switches();
	w.cpu = cpu_ns();
	block_ns(1 * SEC);
	w.cpu = cpu_ns() - w.cpu;
	w.switches = voluntary_switches() - w.switches;
	return w;
}

/*
 * When all has settled depends on the machine: the best of some looks counts.
 * Whoever ticks, does it all the time.
 */
static struct window best_look(uint64_t cpu_most, long switches_most)
{
	struct window w;

	(void)until(atomic_load(&entered) == FIBERS);
	for (int n = 0; n < 5; n++) {
		w = look();
		if (w.cpu < cpu_most && w.switches <= switches_most)
			break;
	}
	return w;
}

static void measure(struct __test_metadata *_metadata, const char *what)
{
	struct window w = best_look(5 * MS * allowance(), 20);

	figure("idle: %s: cpu_us=%lu switches=%ld threads=%ld\n", what,
	       w.cpu / US, w.switches, thread_count());
	EXPECT_EQ(FIBERS, entered);
	EXPECT_GT(5 * MS * allowance(), w.cpu);
	EXPECT_GE(20, w.switches);
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
	fiber_scope_t s;

	ASSERT_EQ(0, start(2, 0));
	ASSERT_EQ(0, fiber_scope_open(&s, NULL));
	for (int i = 0; i < FIBERS; i++)
		ASSERT_EQ(0, fiber_scope_spawn(&s, sleeps, NULL));
	measure(_metadata, "in fiber_sleep");
	EXPECT_GT(40, thread_count());		/* parked, not blocked */
	fiber_scope_cancel(&s, 0);
	EXPECT_EQ(-ECANCELED, fiber_scope_close(&s));
	ASSERT_EQ(0, fiber_fini());
	EXPECT_EQ(0, failures);
}

TEST(all_but_one_in_join)
{
	fiber_t *f[FIBERS];

	ASSERT_EQ(0, pipe(fds));
	ASSERT_EQ(0, start(2, 0));
	f[0] = spawn(reads, NULL);
	for (int i = 1; i < FIBERS; i++)
		f[i] = spawn(joins, f[i - 1]);
	measure(_metadata, "in fiber_join");
	ASSERT_EQ(1, write(fds[1], "x", 1));
	join(f[FIBERS - 1]);
	ASSERT_EQ(0, fiber_fini());
	EXPECT_EQ(0, failures);
}

/* Nobody said how many processors: their number is not asked for while all sleep. */
TEST(no_wakeup_to_follow_the_cpus)
{
	fiber_scope_t s;
	struct window w;

	setenv("FIBER_DEADLOCK", "off", 1);
	ASSERT_EQ(0, start(0, 0));
	ASSERT_EQ(0, fiber_scope_open(&s, NULL));
	for (int i = 0; i < FIBERS; i++)
		ASSERT_EQ(0, fiber_scope_spawn(&s, sleeps, NULL));
	w = best_look(5 * MS * allowance(), 1);
	EXPECT_GE(1, w.switches);	/* who looks */
	fiber_scope_cancel(&s, 0);
	EXPECT_EQ(-ECANCELED, fiber_scope_close(&s));
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
	struct window w;

	ASSERT_EQ(0, pipe(fds));
	ASSERT_EQ(0, start(2, 0));
	one = spawn(works_at_times, NULL);
	for (int i = 0; i < FIBERS; i++)
		f[i] = spawn(reads, NULL);
	w = best_look(20 * MS * allowance(), LONG_MAX);
	figure("idle: 20 ticks a second: cpu_us=%lu\n", w.cpu / US);
	EXPECT_EQ(FIBERS, entered);
	EXPECT_GT(20 * MS * allowance(), w.cpu);
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
