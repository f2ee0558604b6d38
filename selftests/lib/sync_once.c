// SPDX-License-Identifier: GPL-2.0-only
/* Once: one does it, all see it; and if it fails, exits, or is late. */
#include "common.h"

static fiber_once_t once = FIBER_ONCE_INIT, other = FIBER_ONCE_INIT;
static atomic_long calls, finished;
static long made;			/* by fn, plain on purpose */

static int makes(void *arg)
{
	calls++;
	for (int i = 0; arg && i < 3; i++)
		fiber_self() ? fiber_yield() : (void)sched_yield();
	made = 42;
	return 0;
}

static void *wants(void *arg)
{
	int r = (long)arg % 3 == 2 ? fiber_once_until(&once, makes, (void *)1,
						      fiber_now() + 1000) :
		fiber_once(&once, makes, (void *)1);

	if (r == -ETIMEDOUT && (long)arg % 3 == 2)
		r = fiber_once(&once, makes, (void *)1);
	check_eq(0, r);
	check_eq(42, made);
	return NULL;
}

enum { CROWD = 12 };

static void once_in_a_crowd(unsigned int fibers, unsigned int threads)
{
	pthread_t t[CROWD];
	fiber_t *f[CROWD];

	for (int round = 0; round < 100; round++) {
		once = (fiber_once_t)FIBER_ONCE_INIT;
		calls = made = 0;
		for (long i = 0; i < fibers; i++)
			f[i] = spawn(wants, (void *)i);
		for (long i = 0; i < threads; i++)
			check_eq(0, pthread_create(&t[i], NULL, wants,
						   (void *)i));
		for (long i = 0; i < fibers; i++)
			join(f[i]);
		for (long i = 0; i < threads; i++)
			pthread_join(t[i], NULL);
		check_eq(1, calls);
	}
}

FIXTURE(crowd) {};
FIXTURE_SETUP(crowd) {}
FIXTURE_TEARDOWN(crowd) {}
FIXTURE_VARIANT(crowd) { unsigned int processors, fibers, threads; };
FIXTURE_VARIANT_ADD(crowd, one) { 1, CROWD, 0 };
FIXTURE_VARIANT_ADD(crowd, two) { 2, CROWD, 0 };
FIXTURE_VARIANT_ADD(crowd, threads_alone) { 0, 0, 4 };
FIXTURE_VARIANT_ADD(crowd, one_with_threads) { 1, 6, 3 };
FIXTURE_VARIANT_ADD(crowd, two_with_threads) { 2, 6, 3 };

TEST_F(crowd, does_it_once)
{
	if (variant->processors)
		ASSERT_EQ(0, start(variant->processors, 100 * US));
	once_in_a_crowd(variant->fibers, variant->threads);
	if (variant->processors)
		ASSERT_EQ(0, fiber_fini());
	EXPECT_EQ(0, failures);
}

/* ---- it fails: the next that waits does it ---- */

enum { TRIES = 10 };

static int fails_at_first(void *arg)
{
	long n = ++calls;

	fiber_yield();
	if (n < TRIES) {
		if (arg)
			fiber_exit(NULL);
		return -EIO;
	}
	return 0;
}

static void *tries(void *arg)
{
	int r = fiber_once(&once, fails_at_first, arg);

	if (r)
		check_eq(-EIO, r);
	finished++;
	return (void *)(long)r;
}

/* With `exits` the first ones never return from it. */
static void *all_but_the_last_fail(void *exits)
{
	fiber_t *f[2 * TRIES];
	long bad = 0;

	once = (fiber_once_t)FIBER_ONCE_INIT;
	calls = finished = 0;
	for (int i = 0; i < 2 * TRIES; i++)
		f[i] = spawn(tries, exits);
	for (int i = 0; i < 2 * TRIES; i++)
		bad += join(f[i]) != NULL;
	check_eq(TRIES, calls);
	check_eq(exits ? 0 : TRIES - 1, bad);
	check_eq(exits ? TRIES + 1 : 2 * TRIES, finished);
	check_eq(0, fiber_try_once(&once, fails_at_first, exits));
	check_eq(TRIES, calls);
	return NULL;
}

TEST(next_one_does_it_if_it_fails)
{
	ASSERT_EQ(0, with_runtime(1, 0, all_but_the_last_fail, NULL));
	ASSERT_EQ(0, with_runtime(2, 100 * US, all_but_the_last_fail, NULL));
	EXPECT_EQ(0, failures);
}

TEST(next_one_does_it_if_the_fiber_exits)
{
	ASSERT_EQ(0, with_runtime(1, 0, all_but_the_last_fail, (void *)1));
	ASSERT_EQ(0, with_runtime(2, 100 * US, all_but_the_last_fail,
				  (void *)1));
	EXPECT_EQ(0, failures);
}

static int exits_inside(void *arg)
{
	calls++;
	pthread_exit(arg);
}

static void *thread_exits(void *arg)
{
	fiber_once(&once, exits_inside, arg);
	check(!"it came back");
	return NULL;
}

static void *after_a_thread(void *arg)
{
	pthread_t t;

	check_eq(0, pthread_create(&t, NULL, thread_exits, arg));
	check_eq(0, pthread_join(t, NULL));
	check_eq(1, calls);
	check_eq(0, fiber_once(&once, makes, NULL));
	check_eq(2, calls);
	return arg;
}

TEST(next_one_does_it_if_the_thread_exits)
{
	ASSERT_EQ(0, with_runtime(1, 0, after_a_thread, NULL));
	EXPECT_EQ(0, failures);
}

/* ---- nested; both are given up at the exit ---- */

static int exits_deep(void *arg)
{
	check_eq(-EDEADLK, fiber_once(&once, makes, NULL));
	fiber_exit(arg);
	return 0;
}

static int goes_deeper(void *arg)
{
	return fiber_once(&other, exits_deep, arg);
}

static void *nests(void *arg)
{
	fiber_once(&once, goes_deeper, arg);
	check(!"it came back");
	return NULL;
}

static void *nested(void *arg)
{
	calls = 0;
	join(spawn(nests, NULL));
	check_eq(0, fiber_once(&other, makes, NULL));
	check_eq(0, fiber_once(&once, makes, NULL));
	check_eq(2, calls);
	/* A later fiber on the same stack is in none. */
	join(spawn(wants, NULL));
	return arg;
}

TEST(nested_ones_are_given_up_at_the_exit)
{
	ASSERT_EQ(0, with_runtime(1, 0, nested, NULL));
	EXPECT_EQ(0, failures);
}

/* ---- deadlines ---- */

static atomic_bool begun, go_on;

static int takes_long(void *arg)
{
	begun = true;
	while (!go_on)
		fiber_yield();
	calls++;
	return 0;
}

static void *does_it_slowly(void *arg)
{
	check_eq(0, fiber_once(&once, takes_long, NULL));
	return arg;
}

static void *deadlines(void *arg)
{
	fiber_t *f = spawn(does_it_slowly, NULL);
	uint64_t t;

	while (!begun)		/* a page fault may have stopped it before */
		fiber_yield();
	check_eq(-EAGAIN, fiber_try_once(&once, makes, NULL));
	t = fiber_now() + 2 * MS;
	check_eq(-ETIMEDOUT, fiber_once_until(&once, makes, NULL, t));
	check(fiber_now() >= t);
	check_eq(-ETIMEDOUT, fiber_once_until(&once, makes, NULL, 0));
	go_on = true;
	check_eq(0, fiber_once(&once, makes, NULL));
	check_eq(1, calls);
	check_eq(0, fiber_once_until(&once, makes, NULL, 0));
	join(f);
	return arg;
}

TEST(deadline_passes)
{
	ASSERT_EQ(0, with_runtime(1, SEC, deadlines, NULL));
	EXPECT_EQ(0, failures);
}

TEST_HARNESS_MAIN
