// SPDX-License-Identifier: GPL-2.0-only
/* Who runs when: yield, sleep, and nobody starves. */
#include "common.h"

#define LONG_QUANTUM	SEC

/*
 * Run fn on one processor, again if somebody's turn ended before he gave it up
 * (a host that stands still for a quantum): then the order says nothing.
 */
static void undisturbed(struct __test_metadata *_metadata, void *(*fn)(void *),
			void (*reset)(void))
{
	struct fiber_stats st;

	for (int try = 0; try < 10; try++) {
		reset();
		ASSERT_EQ(0, start(1, LONG_QUANTUM));
		join(spawn(fn, NULL));
		st = stats();
		ASSERT_EQ(0, fiber_fini());
		if (!st.preemptions && !st.handoffs)
			return;
		figure("disturbed: %lu preemptions, %lu handoffs\n",
		       st.preemptions, st.handoffs);
	}
	SKIP(return, "disturbed each time");
}

/* ---- yield ---- */

enum { YIELDERS = 5, YIELDS = 2000 };

static int turns[YIELDERS];
static int largest_gap;

static void reset_turns(void)
{
	memset(turns, 0, sizeof(turns));
	largest_gap = 0;
}

static void *yields(void *arg)
{
	int *mine = arg;

	for (int i = 0; i < YIELDS; i++) {
		++*mine;
		for (int k = 0; k < YIELDERS; k++)
			if (turns[k] && *mine - turns[k] > largest_gap)
				largest_gap = *mine - turns[k];
		fiber_yield();
	}
	return NULL;
}

static void *yield_in_turn(void *arg)
{
	fiber_t *f[YIELDERS];

	for (int i = 0; i < YIELDERS; i++)
		f[i] = spawn(yields, &turns[i]);
	for (int i = 0; i < YIELDERS; i++)
		join(f[i]);
	return NULL;
}

/*
 * First in, first out: while the five are being spawned (the spawner waits its
 * turn between them) the first may be a few turns ahead, never more.
 */
TEST(yield_goes_round)
{
	undisturbed(_metadata, yield_in_turn, reset_turns);
	for (int i = 0; i < YIELDERS; i++)
		EXPECT_EQ(YIELDS, turns[i]);
	figure("yield: largest gap %d turns\n", largest_gap);
	EXPECT_GE(2 * YIELDERS, largest_gap);
	EXPECT_EQ(0, failures);
}

static char log_text[32];
static int log_used;

static void *says(void *arg)
{
	for (const char *p = arg; *p; p++) {
		log_text[log_used++] = *p;
		fiber_yield();
	}
	return NULL;
}

static void *child_first(void *arg)
{
	fiber_t *a = spawn(says, "ab"), *b;

	log_text[log_used++] = '1';
	b = spawn(says, "cd");
	log_text[log_used++] = '2';
	join(a);
	join(b);
	return NULL;
}

static void reset_log(void)
{
	memset(log_text, 0, sizeof(log_text));
	log_used = 0;
}

TEST(spawn_runs_the_child_first)
{
	undisturbed(_metadata, child_first, reset_log);
	EXPECT_EQ('a', log_text[0]);
	EXPECT_EQ('1', log_text[1]);
	EXPECT_EQ(6, log_used);
	EXPECT_LT(strchr(log_text, 'a'), strchr(log_text, 'b'));
	EXPECT_LT(strchr(log_text, 'c'), strchr(log_text, 'd'));
	EXPECT_EQ(0, failures);
}

static void *yields_alone(void *arg)
{
	for (int i = 0; i < 100000; i++)
		fiber_yield();
	return NULL;
}

TEST(yield_with_nobody_ready)
{
	ASSERT_EQ(0, with_runtime(1, 0, yields_alone, NULL));
	ASSERT_EQ(0, with_runtime(2, 0, yields_alone, NULL));
	EXPECT_EQ(0, failures);
}

/* Two that hand each other the run-next slot must not starve a third. */
#ifdef FB_TSAN
#define TURNS	10	/* it takes a millisecond for each fiber: 41 turns in 40 s */
#else
#define TURNS	100
#endif
static atomic_int stop;
static atomic_ulong third_ran;

static void *spawns_and_joins(void *arg)
{
	while (!atomic_load(&stop))
		join(spawn(says, ""));
	return NULL;
}

static void *third(void *arg)
{
	while (!atomic_load(&stop)) {
		atomic_fetch_add(&third_ran, 1);
		fiber_yield();
	}
	return NULL;
}

TEST(spawn_and_join_in_a_loop_starve_nobody)
{
	fiber_t *f[3];

	ASSERT_EQ(0, start(1, 1 * MS));
	f[0] = spawn(spawns_and_joins, NULL);
	f[1] = spawn(spawns_and_joins, NULL);
	f[2] = spawn(third, NULL);
	EXPECT_TRUE(until(atomic_load(&third_ran) > TURNS));
	atomic_store(&stop, 1);
	for (int i = 0; i < 3; i++)
		join(f[i]);
	ASSERT_EQ(0, fiber_fini());
	EXPECT_EQ(0, failures);
}

static void *tells_when(void *arg)
{
	return (void *)atomic_load(&third_ran);
}

/*
 * A plain thread's spawn (global queue) gets its turn beside busy yielders, and
 * before they have had very many. Counted from after the spawn: the spawner may
 * itself have waited for a CPU meanwhile.
 */
TEST(global_queue_is_not_starved)
{
	fiber_t *f[3], *one;
	long turns, most = 0;

	ASSERT_EQ(0, start(1, 0));
	for (int i = 0; i < 3; i++)
		f[i] = spawn(third, NULL);
	EXPECT_TRUE(until(atomic_load(&third_ran) > 100));
	for (int i = 0; i < 20; i++) {
		one = spawn(tells_when, NULL);
		turns = -(long)atomic_load(&third_ran);
		turns += (long)join(one);
		if (turns > most)
			most = turns;
	}
	figure("global queue: after %ld turns of others at most\n", most);
	EXPECT_GE(1000, most);
	atomic_store(&stop, 1);
	for (int i = 0; i < 3; i++)
		join(f[i]);
	ASSERT_EQ(0, fiber_fini());
	EXPECT_EQ(0, failures);
}

/* ---- sleep ---- */

enum { SLEEPERS = 50 };

static uint64_t base;
static int order[SLEEPERS], woken;

static uint64_t deadline_of(int i)
{
	return base + (uint64_t)(i * 17 % SLEEPERS) * 2 * MS;
}

static void *sleeps_until(void *arg)
{
	int i = (int)(intptr_t)arg;

	check_eq(0, fiber_sleep_until(deadline_of(i)));
	check(now_ns() >= deadline_of(i));
	order[woken++] = i;
	return NULL;
}

static void *sleepers(void *arg)
{
	fiber_t *f[SLEEPERS];

	base = now_ns() + 20 * MS * allowance();
	for (int i = 0; i < SLEEPERS; i++)
		f[i] = spawn(sleeps_until, (void *)(intptr_t)i);
	for (int i = 0; i < SLEEPERS; i++)
		join(f[i]);
	return NULL;
}

static int overtakings(void)
{
	int n = 0;

	for (int i = 1; i < SLEEPERS; i++)
		n += deadline_of(order[i - 1]) > deadline_of(order[i]);
	return n;
}

/* A host that holds us up for long makes many due at once: try again then. */
TEST(sleepers_wake_in_order_of_their_deadlines)
{
	int n = -1;

	for (int try = 0; try < 5 && n; try++) {
		woken = 0;
		ASSERT_EQ(0, with_runtime(1, LONG_QUANTUM, sleepers, NULL));
		ASSERT_EQ(SLEEPERS, woken);
		n = overtakings();
		figure("sleep: %d of %d overtaken\n", n, SLEEPERS);
	}
	EXPECT_EQ(0, n);
	EXPECT_EQ(0, failures);
}

static void *sleep_bounds(void *arg)
{
	uint64_t ns[] = { 0, 1, 1 * US, 100 * US, 1 * MS, 10 * MS, 100 * MS };
	uint64_t t, late[ARRAY_SIZE(ns)];

	for (size_t i = 0; i < ARRAY_SIZE(ns); i++) {
		t = fiber_now();
		check_eq(0, fiber_sleep(ns[i]));
		late[i] = fiber_now() - t - ns[i];
		check(fiber_now() >= t + ns[i]);
	}
	t = fiber_now();
	check_eq(0, fiber_sleep_until(t - 5 * MS));
	check_eq(0, fiber_sleep_until(0));
	figure("sleep: late by %lu us (of 1 ms), %lu us (of 100 ms)\n",
	       late[4] / US, late[6] / US);
	return NULL;
}

TEST(sleep_is_never_too_short)
{
	ASSERT_EQ(0, with_runtime(1, 0, sleep_bounds, NULL));
	ASSERT_EQ(0, with_runtime(2, 0, sleep_bounds, NULL));
	EXPECT_EQ(0, failures);
}

static void *sleeps_randomly(void *arg)
{
	uint32_t seed = (uint32_t)(uintptr_t)arg + 1;
	uint64_t t, ns;

	for (int i = 0; i < 50; i++) {
		ns = next_random(&seed) % (2 * MS);
		t = fiber_now();
		check_eq(0, fiber_sleep(ns));
		check(fiber_now() >= t + ns);
	}
	return NULL;
}

static void *many_sleepers(void *arg)
{
	static fiber_t *f[300];

	for (uintptr_t i = 0; i < ARRAY_SIZE(f); i++)
		f[i] = spawn(sleeps_randomly, (void *)i);
	for (size_t i = 0; i < ARRAY_SIZE(f); i++)
		join(f[i]);
	return NULL;
}

TEST(many_random_sleepers)
{
	ASSERT_EQ(0, with_runtime(1, 0, many_sleepers, NULL));
	ASSERT_EQ(0, with_runtime(3, 0, many_sleepers, NULL));
	EXPECT_EQ(0, failures);
}

TEST_HARNESS_MAIN
