// SPDX-License-Identifier: GPL-2.0-only
/*
 * fiber_times. Every bound comes from clocks that the test reads itself around
 * what it measures: never too little, and in the sum never too much.
 */
#include "common.h"

static fiber_t *spawn_timed(void *(*fn)(void *), void *arg)
{
	struct fiber_attr attr = {
		.size = sizeof(attr), .flags = FIBER_ATTR_TIMES,
	};
	fiber_t *f = NULL;

	check_eq(0, fiber_spawn_attr(&f, &attr, fn, arg));
	return f;
}

static struct fiber_times times_of(const fiber_t *f)
{
	struct fiber_times t = { .size = sizeof(t) };

	check_eq(0, fiber_times(f, &t));
	return t;
}

static uint64_t sum(struct fiber_times t)
{
	return t.run_ns + t.ready_ns + t.parked_ns + t.blocked_ns;
}

/* Of the thread; between two of these no call may switch. */
static uint64_t thread_cpu(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (uint64_t)t.tv_sec * SEC + (uint64_t)t.tv_nsec;
}

/* Until this thread had so much of a CPU; how much. */
static uint64_t burn(uint64_t ns)
{
	uint64_t from = thread_cpu(), used;

	while ((used = thread_cpu() - from) < ns)
		;
	return used;
}

/* ---- each of the four ---- */

/* What it knows to be at least. */
static struct fiber_times least;
static uint64_t began, ended;
static fiber_sem_t gate;
static atomic_bool waits;

static void *does_all(void *arg)
{
	uint64_t cpu, from;

	began = from = now_ns();
	least.run_ns = burn(3 * MS);
	if (least.run_ns > now_ns() - from)	/* clocks differ */
		least.run_ns = now_ns() - from;
	cpu = thread_cpu();
	from = now_ns();
	check_eq(0, block_ns(10 * MS));
	least.blocked_ns = now_ns() - from;
	cpu = thread_cpu() - cpu;
	least.blocked_ns -= cpu < least.blocked_ns ? cpu : least.blocked_ns;
	waits = true;
	fiber_sem_wait(&gate);
	fiber_yield();
	ended = now_ns();
	return NULL;
}

static fiber_t *timed;

/* Parked: from when it is known to be so until it is let go. */
static void *lets_go(void *arg)
{
	uint64_t from;

	timed = spawn_timed(does_all, NULL);
	while (!waits)
		fiber_yield();
	while (!times_of(timed).parked_ns)
		fiber_yield();
	from = now_ns();
	while (now_ns() - from < 5 * MS)
		fiber_sleep(1 * MS);
	least.parked_ns = now_ns() - from;
	fiber_sem_post(&gate);
	return NULL;
}

static void all_on(struct __test_metadata *_metadata, unsigned int processors)
{
	uint64_t before = now_ns(), after;
	struct fiber_times t, again;

	waits = false;
	ASSERT_EQ(0, start(processors, 0));
	fiber_sem_init(&gate, 0);
	join(spawn(lets_go, NULL));
	/* It has ended, but is there still. */
	ASSERT_TRUE(until(stats().ended == stats().spawned));
	after = now_ns();
	t = times_of(timed);
	again = times_of(timed);
	EXPECT_EQ(0, memcmp(&t, &again, sizeof(t)));
	figure("times: run %lu ready %lu parked %lu blocked %lu us\n",
	       t.run_ns / 1000, t.ready_ns / 1000, t.parked_ns / 1000,
	       t.blocked_ns / 1000);
	EXPECT_LE(least.run_ns, t.run_ns);
	EXPECT_LE(least.parked_ns, t.parked_ns);
	/* Preempted there, it was ready for a part of it. */
	EXPECT_LE(least.blocked_ns, t.blocked_ns + t.ready_ns);
	EXPECT_LE(ended - began, sum(t));
	EXPECT_GE(after - before, sum(t));
	join(timed);
	ASSERT_EQ(0, fini_soon());
	EXPECT_EQ(0, failures);
}

TEST(times_add_up_on_one)
{
	all_on(_metadata, 1);
}

TEST(times_add_up_on_four)
{
	all_on(_metadata, 4);
}

/* ---- ready ---- */

static uint64_t hogged;
static bool hog_ended;

static void *hog(void *arg)
{
	uint64_t from = now_ns();

	burn(2 * MS);
	hogged = now_ns() - from;
	hog_ended = true;
	return NULL;
}

static void *stands_behind(void *arg)
{
	struct fiber_times t;
	fiber_t *h;

	for (int try = 0; try < 20; try++) {
		struct fiber_times before = times_of(fiber_self());

		hog_ended = false;
		h = spawn(hog, NULL);
		t = times_of(fiber_self());
		/* It ran all the time while we waited, in the spawn. */
		if (hog_ended)
			check(t.ready_ns - before.ready_ns >= hogged);
		join(h);
		if (hog_ended)
			return NULL;
	}
	return NULL;
}

TEST(times_of_who_waits_his_turn)
{
	ASSERT_EQ(0, start(1, SEC));
	join(spawn_timed(stands_behind, NULL));
	ASSERT_EQ(0, fini_soon());
	EXPECT_EQ(0, failures);
}

/* ---- preempted ---- */

static atomic_int turning;

static void *turns(void *arg)
{
	turning++;
	while (turning < 3)
		;
	return NULL;
}

/* Three that never yield share one processor: each waited for the others. */
TEST(times_of_the_preempted)
{
	fiber_t *f[3];

	ASSERT_EQ(0, start(1, 1 * MS));
	if (!(fiber_features() & FIBER_FEATURE_PREEMPT))
		SKIP(return, "no preemption");
	for (int i = 0; i < 3; i++)
		f[i] = spawn_timed(turns, NULL);
	ASSERT_TRUE(until(stats().ended == 3));
	for (int i = 0; i < 3; i++) {
		EXPECT_LT(0, times_of(f[i]).ready_ns);
		EXPECT_EQ(0, times_of(f[i]).parked_ns);
		join(f[i]);
	}
	ASSERT_EQ(0, fini_soon());
	EXPECT_EQ(0, failures);
}

/* ---- looked at while it all happens ---- */

static atomic_bool looking;
static fiber_chan_t *between;

static void *sends(void *arg)
{
	for (long i = 0; i < 3000; i++)
		check_eq(0, fiber_chan_send(between, &i));
	return NULL;
}

static void *receives(void *arg)
{
	long value;

	for (long i = 0; i < 3000; i++)
		check_eq(0, fiber_chan_recv(between, &value));
	return NULL;
}

static fiber_t *watched[2];

/*
 * The sum never goes back, but for what two processors may read of a clock in
 * another order, nor runs ahead of the clock.
 */
static void *looks(void *arg)
{
	uint64_t last[2] = { 0 }, from = *(uint64_t *)arg, now;

	do {
		for (int i = 0; i < 2; i++) {
			now = sum(times_of(watched[i]));
			check(now + 100 * US >= last[i]);
			check(now <= now_ns() - from);
			last[i] = now > last[i] ? now : last[i];
		}
	} while (looking);
	return NULL;
}

TEST(times_are_whole)
{
	uint64_t from = now_ns();
	pthread_t thread;

	ASSERT_EQ(0, start(4, 0));
	ASSERT_EQ(0, fiber_chan_create(&between, sizeof(long), 0));
	watched[0] = spawn_timed(sends, NULL);
	watched[1] = spawn_timed(receives, NULL);
	looking = true;
	pthread_create(&thread, NULL, looks, &from);
	EXPECT_TRUE(until(stats().ended == 2));
	looking = false;
	pthread_join(thread, NULL);
	join(watched[0]);
	join(watched[1]);
	fiber_chan_destroy(between);
	ASSERT_EQ(0, fini_soon());
	EXPECT_EQ(0, failures);
}

/* ---- in scopes, with own stacks, of the latency class ---- */

static int in_scope(void *arg)
{
	struct fiber_times t = times_of(fiber_self());

	check(sum(t) > 0);
	fiber_yield();
	check(sum(times_of(fiber_self())) > sum(t));
	return 0;
}

static void *own_stack(void *arg)
{
	in_scope(arg);
	return NULL;
}

static void *kinds(void *arg)
{
	static char stack[32768] __attribute__((aligned(64)));
	struct fiber_attr attr = {
		.size = sizeof(attr), .flags = FIBER_ATTR_TIMES,
		.sched_class = FIBER_LATENCY, .name = "timed",
	};
	fiber_scope_t s;
	fiber_t *f;

	check_eq(0, fiber_scope_open(&s, NULL));
	for (int i = 0; i < 10; i++)
		check_eq(0, fiber_scope_spawn_attr(&s, &attr, in_scope, NULL));
	check_eq(0, fiber_scope_close(&s));
	attr.stack = stack;
	attr.stack_size = sizeof(stack);
	check_eq(0, fiber_spawn_attr(&f, &attr, own_stack, NULL));
	join(f);
	return NULL;
}

TEST(times_of_all_kinds)
{
	ASSERT_EQ(0, start(2, 0));
	join(spawn(kinds, NULL));
	ASSERT_EQ(0, fini_soon());
	EXPECT_EQ(0, failures);
}

/* ---- misuse ---- */

static void *untimed(void *arg)
{
	struct fiber_times t = { .size = sizeof(t) };

	check_eq(-EOPNOTSUPP, fiber_times(fiber_self(), &t));
	check_eq(-EINVAL, fiber_times(NULL, &t));
	check_eq(-EINVAL, fiber_times(fiber_self(), NULL));
	t.size = 1;
	check_eq(-EINVAL, fiber_times(fiber_self(), &t));
	return NULL;
}

TEST(times_only_of_the_timed)
{
	ASSERT_EQ(0, start(1, 0));
	join(spawn(untimed, NULL));
	ASSERT_EQ(0, fini_soon());
	EXPECT_EQ(0, failures);
}

TEST_HARNESS_MAIN
