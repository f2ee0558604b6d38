// SPDX-License-Identifier: GPL-2.0-only
/*
 * fiber_set_processors: fewer and more processors while fibers run, and nothing is
 * lost.
 */
#include "common.h"

#define MOST	4

static atomic_int stop;

static void set(unsigned int n)
{
	check_eq(0, fiber_set_processors(n));
}

/* As many as are to be retired are, and not more. */
static bool settled(unsigned int n)
{
	return until(stats().retired == MOST - n);
}

/* ---- up and down under load ---- */

enum { WORKERS = 12, TRIPS = 8 };

static fiber_chan_t *chan;
static atomic_long sent, received, slept, spun;

static void *sends(void *arg)
{
	long v = 1;

	while (!atomic_load(&stop)) {
		check_eq(0, fiber_chan_send(chan, &v));
		atomic_fetch_add(&sent, v);
	}
	return arg;
}

static void *receives(void *arg)
{
	long v;

	while (!fiber_chan_recv(chan, &v))
		atomic_fetch_add(&received, v);
	return arg;
}

static void *sleeps(void *arg)
{
	while (!atomic_load(&stop)) {
		check_eq(0, fiber_sleep(100 * US));
		atomic_fetch_add(&slept, 1);
	}
	return arg;
}

/* It never yields: only preemption lets others run. */
static void *spins(void *arg)
{
	while (!atomic_load_explicit(&stop, memory_order_relaxed))
		atomic_fetch_add_explicit(&spun, 1, memory_order_relaxed);
	return arg;
}

static void *blocks(void *arg)
{
	while (!atomic_load(&stop))
		block_ns(100 * US);
	return arg;
}

static void *all_day(void *arg)
{
	static void *(*const work[])(void *) = {
		sends, receives, sleeps, spins, blocks, sends, receives, sleeps,
	};
	fiber_t *f[8];

	for (int i = 0; i < 8; i++)
		f[i] = spawn(work[i], NULL);
	for (int i = 0; i < 8; i++)
		if (work[i] != receives)
			join(f[i]);
	check_eq(0, fiber_chan_close(chan));
	for (int i = 0; i < 8; i++)
		if (work[i] == receives)
			join(f[i]);
	return arg;
}

/* Everybody gets on, with however many processors. */
static bool all_get_on(void)
{
	long a = received, b = slept, c = spun;

	return until(received > a && slept > b && spun > c);
}

static const unsigned int trips[TRIPS] = { 1, MOST, 2, 3, 1, 2, MOST, 1 };

/* It begins with one, and knows that there may be more. */
static int start_with_one(void)
{
	struct fiber_config cfg = {
		.size = sizeof(cfg),
		.processors = 1,
		.max_processors = MOST,
		.quantum_ns = 1 * MS,
	};

	clean_environment();
	return fiber_init(&cfg);
}

TEST(down_and_up_under_load)
{
	fiber_t *f;

	ASSERT_EQ(0, start_with_one());
	EXPECT_EQ(1, stats().processors);
	ASSERT_EQ(0, fiber_chan_create(&chan, sizeof(long), 2));
	f = spawn(all_day, NULL);
	for (int i = 0; i < TRIPS; i++) {
		set(trips[i]);
		EXPECT_TRUE(settled(trips[i]));
		EXPECT_EQ(trips[i], stats().processors);
		EXPECT_TRUE(all_get_on());
	}
	atomic_store(&stop, 1);
	join(f);
	EXPECT_EQ(sent, received);
	EXPECT_EQ(0, fiber_chan_destroy(chan));
	EXPECT_EQ(0, fini_soon());
	EXPECT_EQ(0, failures);
}

/* ---- nothing runs ---- */

enum { ROUNDS = 40 };

static atomic_int ran;

static void *runs(void *arg)
{
	atomic_fetch_add(&ran, 1);
	return arg;
}

TEST(idle_ones_are_retired)
{
	ASSERT_EQ(0, start(MOST, 0));
	for (unsigned int n = MOST; n; n--) {
		set(n);
		EXPECT_TRUE(settled(n));
	}
	/* Who is woken for a fiber may have one to hold, and run none. */
	for (int i = 0; i < ROUNDS; i++) {
		set(MOST);
		ASSERT_TRUE(settled(MOST));
		set(1);
		ASSERT_EQ(0, fiber_spawn(NULL, runs, NULL));
		ASSERT_TRUE(until(ran == i + 1));
		ASSERT_TRUE(settled(1));
	}
	set(MOST);
	EXPECT_TRUE(settled(MOST));
	EXPECT_EQ(0, fini_soon());
	EXPECT_EQ(0, failures);
}

/* ---- the last one blocks ---- */

static int asks[2], answers[2];
static atomic_int reader;

/* It holds the only processor, and is not to be looked after by others. */
static void *blocks_in_read(void *arg)
{
	char byte;

	atomic_store(&reader, (int)syscall(SYS_gettid));
	check_eq(1, read(answers[0], &byte, 1));
	return arg;
}

static void *answers_after_sleep(void *arg)
{
	check_eq(0, fiber_sleep(20 * MS));
	check_eq(1, write(answers[1], "s", 1));
	return arg;
}

static void *answers_after_io(void *arg)
{
	char byte;

	check_eq(1, fiber_read(asks[0], &byte, 1));
	check_eq(1, write(answers[1], "i", 1));
	return arg;
}

/* The fiber blocks; what it waits for comes by a timer, or by a descriptor. */
static void last_one_blocks(void *(*other)(void *))
{
	fiber_t *a, *b;

	atomic_store(&reader, 0);
	b = spawn(other, NULL);
	a = spawn(blocks_in_read, NULL);
	check(until(reader && thread_state(reader) == 'S'));
	if (other == answers_after_io)
		check_eq(1, write(asks[1], "q", 1));
	join(a);
	join(b);
}

TEST(others_watch_while_the_last_blocks)
{
	ASSERT_EQ(0, pipe2(asks, O_CLOEXEC));
	ASSERT_EQ(0, pipe2(answers, O_CLOEXEC));
	ASSERT_EQ(0, start(MOST, 1 * MS));
	for (int i = 0; i < 3; i++) {
		set(1);
		EXPECT_TRUE(settled(1));
		last_one_blocks(answers_after_sleep);
		last_one_blocks(answers_after_io);
		set(MOST);
		last_one_blocks(answers_after_io);
	}
	EXPECT_EQ(0, fini_soon());
	EXPECT_EQ(0, failures);
}

/* ---- no more than said run at once ---- */

enum { SPINNERS = 6, TURNS = 300 };

static atomic_int running, most;
static atomic_long turns;

static void take_a_turn(void)
{
	int now, seen = atomic_load(&most);

	fiber_no_preempt_begin();
	now = atomic_fetch_add(&running, 1) + 1;
	while (now > seen && !atomic_compare_exchange_weak(&most, &seen, now))
		;
	for (volatile int i = 0; i < 200; i++)
		;
	atomic_fetch_sub(&running, 1);
	fiber_no_preempt_end();
	atomic_fetch_add(&turns, 1);
}

static void *takes_turns(void *arg)
{
	while (!atomic_load(&stop)) {
		take_a_turn();
		fiber_yield();
	}
	return arg;
}

TEST(no_more_than_said_run_at_once)
{
	fiber_t *f[SPINNERS];
	long from;

	ASSERT_EQ(0, start(MOST, 1 * MS));
	if (!on_kernel())	/* who lost a processor runs on for a while */
		SKIP(goto out, "the user backend does not promise that");
	for (int i = 0; i < SPINNERS; i++)
		f[i] = spawn(takes_turns, NULL);
	for (unsigned int n = MOST; n; n--) {
		set(n);
		EXPECT_TRUE(settled(n));
		atomic_store(&most, 0);
		from = turns;
		EXPECT_TRUE(until(turns >= from + TURNS));
		EXPECT_GE(n, atomic_load(&most));
	}
	atomic_store(&stop, 1);
	for (int i = 0; i < SPINNERS; i++)
		join(f[i]);
out:
	EXPECT_EQ(0, fini_soon());
	EXPECT_EQ(0, failures);
}

/* ---- one that cannot be retired ---- */

enum { HOGS = 2, TRIES = 8, AGAIN = 20 };

static atomic_int hogs, end_hog[HOGS], made;

/* Its processor cannot be had. */
static void *keeps_one(void *arg)
{
	atomic_int *end = arg;

	fiber_no_preempt_begin();
	atomic_fetch_add(&hogs, 1);
	while (!atomic_load(end))
		;
	fiber_no_preempt_end();
	return NULL;
}

static int count_library(const struct fiber_info *i, void *n)
{
	*(int *)n += i->library;
	return 0;
}

static int resizers(void)
{
	int n = 0;

	fiber_walk(count_library, &n);
	return n;
}

static void *sets_again(void *arg)
{
	for (int i = 0; i < AGAIN; i++)
		set(1);
	atomic_store(&made, 1);
	return arg;
}

/*
 * Two of two are taken, then one is free again: by chance it is the one to be retired,
 * and nobody runs any more, or the one that stays, and a resizer tries on.
 */
static void set_beside_a_hog(int this)
{
	fiber_t *f[HOGS], *setter;

	atomic_store(&hogs, 0);
	for (int i = 0; i < HOGS; i++) {
		atomic_store(&end_hog[i], 0);
		f[i] = spawn(keeps_one, &end_hog[i]);
	}
	check(until(hogs == HOGS));
	atomic_store(&end_hog[this], 1);
	join(f[this]);
	atomic_store(&made, 0);
	setter = spawn(sets_again, NULL);
	check(until(stats().retired == 1 ||
		    (made && resizers() <= 1)));
	atomic_store(&end_hog[!this], 1);
	join(f[!this]);
	join(setter);
	check(until(stats().retired == 1));
	check(until(!resizers()));
	set(2);
	check(until(stats().retired == 0));
}

TEST(resizers_do_not_pile_up)
{
	ASSERT_EQ(0, start(HOGS, 1 * MS));
	for (int i = 0; i < TRIES && !failures; i++)
		set_beside_a_hog(i / 2 % HOGS);
	EXPECT_EQ(0, fini_soon());
	EXPECT_EQ(0, failures);
}

/* ---- callers ---- */

enum { CALLERS = 4, CALLS = 25 };

static void *calls(void *arg)
{
	uint32_t state = (uint32_t)(uintptr_t)arg;

	for (int i = 0; i < CALLS; i++) {
		set(1 + next_random(&state) % MOST);
		fiber_yield();
	}
	return arg;
}

TEST(callers_at_once)
{
	fiber_t *f[CALLERS], *locked;
	pthread_t t[CALLERS];
	struct fiber_attr attr = { .size = sizeof(attr), .flags = FIBER_ATTR_LOCK };

	ASSERT_EQ(0, start(MOST, 1 * MS));
	ASSERT_EQ(0, fiber_spawn_attr(&locked, &attr, calls, (void *)99));
	for (intptr_t i = 0; i < CALLERS; i++) {
		f[i] = spawn(calls, (void *)(i + 1));
		ASSERT_EQ(0, pthread_create(&t[i], NULL, calls,
					    (void *)(i + 50)));
	}
	for (int i = 0; i < CALLERS; i++) {
		join(f[i]);
		ASSERT_EQ(0, pthread_join(t[i], NULL));
	}
	join(locked);
	set(2);
	EXPECT_TRUE(settled(2));
	/* A thread's call is no fiber of the program's. */
	EXPECT_EQ(1 + CALLERS, stats().spawned);
	EXPECT_EQ(0, fini_soon());	/* with some given up */
	ASSERT_EQ(0, start(MOST, 0));
	EXPECT_EQ(MOST, stats().processors);
	EXPECT_EQ(0, stats().retired);
	EXPECT_EQ(0, fini_soon());
	EXPECT_EQ(0, failures);
}

static void *sets_wrong(void *arg)
{
	check_eq(-EINVAL, fiber_set_processors(MOST + 1));
	check_eq(-EINVAL, fiber_set_processors(UINT32_MAX));
	check_eq(MOST, stats().processors);
	check_eq(0, fiber_set_processors(MOST));
	return arg;
}

TEST(wrong_numbers_are_refused)
{
	EXPECT_EQ(-EPERM, fiber_set_processors(1));
	EXPECT_EQ(-EPERM, fiber_set_processors(0));
	ASSERT_EQ(0, start(MOST, 0));
	join(spawn(sets_wrong, NULL));
	sets_wrong(NULL);
	EXPECT_EQ(0, fini_soon());
	EXPECT_EQ(-EPERM, fiber_set_processors(1));
	EXPECT_EQ(0, failures);
}

TEST_HARNESS_MAIN
