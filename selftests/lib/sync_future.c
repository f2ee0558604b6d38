// SPDX-License-Identifier: GPL-2.0-only
/* Futures: completed once, seen by all; any and all of many. */
#include <malloc.h>

#include "common.h"

/* ---- one ---- */

static fiber_future_t future = FIBER_FUTURE_INIT;
static atomic_long got, refused;

static void *gets(void *arg)
{
	void *v = NULL;
	int r;

	do
		r = (long)arg % 2 ? fiber_future_get(&future, &v) :
		    fiber_future_get_until(&future, &v, fiber_now() + 2000);
	while (r == -ETIMEDOUT);
	check_eq(0, r);
	check_eq(7, (long)v);
	got++;
	return NULL;
}

static void *sets(void *arg)
{
	int r = fiber_future_set(&future, (void *)7);

	if (r) {
		check_eq(-EALREADY, r);
		refused++;
	}
	return arg;
}

static void *many_want_one(void *arg)
{
	fiber_t *f[40];

	for (int round = 0; round < 200; round++) {
		got = refused = 0;
		check_eq(0, fiber_future_init(&future));
		for (long i = 0; i < 40; i++)
			f[i] = spawn(i % 10 == 5 ? sets : gets, (void *)i);
		for (long i = 0; i < 40; i++)
			join(f[i]);
		check_eq(36, got);
		check_eq(3, refused);
		check_eq(0, fiber_future_destroy(&future));
	}
	return arg;
}

TEST(all_get_what_is_set_once)
{
	ASSERT_EQ(0, with_runtime(1, 100 * US, many_want_one, NULL));
	ASSERT_EQ(0, with_runtime(2, 100 * US, many_want_one, NULL));
	EXPECT_EQ(0, failures);
}

static void *alone(void *arg)
{
	uint64_t t = fiber_now() + 2 * MS;
	fiber_future_t f = FIBER_FUTURE_INIT, g = FIBER_FUTURE_INIT;
	void *v = &f;

	check_eq(-EAGAIN, fiber_future_try_wait(&f));
	check_eq(-EAGAIN, fiber_future_try_get(&f, &v));
	check_eq(-ETIMEDOUT, fiber_future_wait_until(&f, t));
	check(fiber_now() >= t);
	check_eq(-ETIMEDOUT, fiber_future_get_until(&f, &v, 0));
	check_eq((long)&f, (long)v);
	check_eq(-EINVAL, fiber_future_fail(&f, 0));
	check_eq(-EINVAL, fiber_future_fail(&f, 5));
	check_eq(0, fiber_future_fail(&f, -EIO));
	check_eq(-EALREADY, fiber_future_fail(&f, -ENOENT));
	check_eq(-EALREADY, fiber_future_set(&f, NULL));
	check_eq(0, fiber_future_wait(&f));
	check_eq(0, fiber_future_wait_until(&f, 0));
	check_eq(-EIO, fiber_future_get(&f, &v));
	check_eq(-EIO, fiber_future_try_get(&f, NULL));
	check_eq((long)&f, (long)v);
	check_eq(0, fiber_future_set(&g, (void *)9));
	check_eq(0, fiber_future_get(&g, &v));
	check_eq(9, (long)v);
	check_eq(0, fiber_future_get(&g, NULL));
	check_eq(0, fiber_future_destroy(&f));
	return arg;
}

TEST(value_or_error)
{
	alone(NULL);
	ASSERT_EQ(0, with_runtime(1, 0, alone, NULL));
	ASSERT_EQ(0, with_runtime(2, 0, alone, NULL));
	EXPECT_EQ(0, failures);
}

static void *waits_for(void *arg)
{
	check_eq(0, fiber_future_wait(arg));
	return NULL;
}

static void *destroyed_early(void *arg)
{
	fiber_t *f;

	check_eq(0, fiber_future_init(&future));
	f = spawn(waits_for, &future);
	settle();
	check_eq(-EBUSY, fiber_future_destroy(&future));
	check_eq(0, fiber_future_set(&future, NULL));
	join(f);
	check_eq(0, fiber_future_destroy(&future));
	return arg;
}

TEST(destroy_of_a_busy_one_is_refused)
{
	ASSERT_EQ(0, in_turn(destroyed_early, NULL));
	EXPECT_EQ(0, failures);
}

/* ---- any and all: a crowd completes them, a crowd waits for them ---- */

enum { FUTURES = 40, ROUNDS = 60 };

static fiber_future_t lot[FUTURES];
static fiber_future_t *all[FUTURES];

static void *completes(void *arg)
{
	uint32_t seed = 1 + (uint32_t)(long)arg * 7919;

	for (long i = (long)arg; i < FUTURES; i += 4) {
		if (next_random(&seed) % 4 == 0)
			fiber_self() ? fiber_yield() : (void)sched_yield();
		check_eq(0, i % 5 ? fiber_future_set(&lot[i], (void *)i) :
				    fiber_future_fail(&lot[i], -EIO));
	}
	return NULL;
}

/* Each once, whoever they come from; with deadlines in between. */
static void *collects(void *arg)
{
	fiber_future_t *rest[FUTURES];
	uint32_t seed = 1 + (uint32_t)(long)arg;
	long left = FUTURES;
	void *v;
	int i;

	memcpy(rest, all, sizeof(rest));
	while (left) {
		i = fiber_future_wait_any(rest, FUTURES,
				next_random(&seed) % 2 ? FIBER_NEVER :
				fiber_now() + next_random(&seed) % 9000);
		if (i == -ETIMEDOUT)
			continue;
		check(i >= 0 && i < FUTURES && rest[i]);
		if (i < 0 || !rest[i])
			break;
		v = NULL;
		check_eq(i % 5 ? 0 : -EIO, fiber_future_try_get(rest[i], &v));
		check_eq(i % 5 ? i : 0, (long)v);
		rest[i] = NULL;
		left--;
	}
	return NULL;
}

static void *waits_for_all(void *arg)
{
	int r;

	while ((r = fiber_future_wait_all(all, FUTURES, arg ? FIBER_NEVER :
					  fiber_now() + 3000)) == -ETIMEDOUT)
		;
	check_eq(0, r);
	for (int i = 0; i < FUTURES; i++)
		check_eq(0, fiber_future_try_wait(&lot[i]));
	return NULL;
}

enum { ACTORS = 11 };

static void *(*const actor[ACTORS])(void *) = {
	collects, waits_for_all, completes, completes, collects, collects,
	waits_for_all, completes, collects, collects, completes,
};

/* The n-th completer has the number n. */
static void *number(int i)
{
	long n = 0;

	for (int k = 0; k < i; k++)
		n += actor[k] == actor[i];
	return (void *)n;
}

static void one_round(unsigned int fibers, unsigned int threads)
{
	pthread_t t[ACTORS];
	fiber_t *f[ACTORS];

	for (int i = 0; i < FUTURES; i++)
		check_eq(0, fiber_future_init(all[i] = &lot[i]));
	for (unsigned int i = 0; i < ACTORS; i++) {
		if (fibers && !(threads && i % 3 == 1))
			f[i] = spawn(actor[i], number(i));
		else
			check_eq(0, pthread_create(&t[i], NULL, actor[i],
						   number(i)));
	}
	for (unsigned int i = 0; i < ACTORS; i++) {
		if (fibers && !(threads && i % 3 == 1))
			join(f[i]);
		else
			pthread_join(t[i], NULL);
	}
	for (int i = 0; i < FUTURES; i++)
		check_eq(0, fiber_future_destroy(&lot[i]));
}

FIXTURE(lot) {};
FIXTURE_SETUP(lot) {}
FIXTURE_TEARDOWN(lot) {}
FIXTURE_VARIANT(lot) { unsigned int processors, threads; };
FIXTURE_VARIANT_ADD(lot, one) { 1, 0 };
FIXTURE_VARIANT_ADD(lot, two) { 2, 0 };
FIXTURE_VARIANT_ADD(lot, three) { 3, 0 };
FIXTURE_VARIANT_ADD(lot, threads_alone) { 0, 1 };
FIXTURE_VARIANT_ADD(lot, one_with_threads) { 1, 1 };
FIXTURE_VARIANT_ADD(lot, two_with_threads) { 2, 1 };

TEST_F(lot, each_is_seen_once_by_each)
{
	if (variant->processors)
		ASSERT_EQ(0, start(variant->processors, 100 * US));
	for (int i = 0; i < ROUNDS; i++)
		one_round(variant->processors, variant->threads);
	if (variant->processors)
		ASSERT_EQ(0, fiber_fini());
	EXPECT_EQ(0, failures);
}

/* ---- corners of any ---- */

static void *any_alone(void *arg)
{
	static fiber_future_t f[100];
	fiber_future_t *v[100], *same[3];
	uint64_t t = fiber_now() + 2 * MS;
	size_t used;

	for (int i = 0; i < 100; i++) {
		check_eq(0, fiber_future_init(&f[i]));
		v[i] = i % 7 ? &f[i] : NULL;
	}
	check_eq(-EINVAL, fiber_future_wait_any(NULL, 1, FIBER_NEVER));
	check_eq(-EINVAL, fiber_future_wait_any(v, (1 << 20) + 1, 1));
	check_eq(-EINVAL, fiber_future_wait_all(NULL, 1, FIBER_NEVER));
	check_eq(-ETIMEDOUT, fiber_future_wait_any(NULL, 0, 1));
	check_eq(0, fiber_future_wait_all(NULL, 0, 0));
	check_eq(-ETIMEDOUT, fiber_future_wait_any(v, 100, t));
	check(fiber_now() >= t);
	check_eq(-ETIMEDOUT, fiber_future_wait_any(v, 100, 0));
	used = mallinfo2().uordblks;
	for (int i = 0; i < 100; i++)
		check_eq(-ETIMEDOUT, fiber_future_wait_any(v, 100, 1));
	/* Each needs more than 5,000 bytes; a thread's cache may keep some. */
	check(mallinfo2().uordblks < used + 50000);
	for (int i = 0; i < 100; i++)	/* nothing of us is left there */
		check_eq(0, fiber_future_destroy(&f[i]));
	check_eq(0, fiber_future_set(&f[7], NULL));	/* not in v */
	check_eq(-ETIMEDOUT, fiber_future_wait_any(v, 100, 1));
	check_eq(0, fiber_future_set(&f[50], NULL));
	check_eq(50, fiber_future_wait_any(v, 100, FIBER_NEVER));
	check_eq(0, fiber_future_set(&f[20], NULL));
	check_eq(20, fiber_future_wait_any(v, 100, 0));
	check_eq(-ETIMEDOUT, fiber_future_wait_all(v, 100, 1));
	same[0] = same[1] = same[2] = &f[1];
	check_eq(-ETIMEDOUT, fiber_future_wait_any(same, 3, 1));
	check_eq(0, fiber_future_set(&f[1], NULL));
	check_eq(0, fiber_future_wait_any(same, 3, 1));
	check_eq(0, fiber_future_wait_all(same, 3, 0));
	return arg;
}

TEST(any_of_few_or_many)
{
	any_alone(NULL);
	ASSERT_EQ(0, in_turn(any_alone, NULL));
	EXPECT_EQ(0, failures);
}

/* Freed by the one who waited, while who completed it may be inside still. */
static void *sets_it(void *arg)
{
	check_eq(0, fiber_future_set(arg, NULL));
	return NULL;
}

static void *frees_at_once(void *arg)
{
	for (int i = 0; i < 3000; i++) {
		fiber_future_t *two[2] = { calloc(1, sizeof(future)),
					   calloc(1, sizeof(future)) };
		fiber_t *f[2] = { spawn(sets_it, two[0]),
				  spawn(sets_it, two[1]) };
		int k = fiber_future_wait_any(two, 2, FIBER_NEVER);

		check(k == 0 || k == 1);
		memset(two[k], 0xee, sizeof(future));
		free(two[k]);
		check_eq(0, fiber_future_wait(two[!k]));
		memset(two[!k], 0xee, sizeof(future));
		free(two[!k]);
		join(f[0]);
		join(f[1]);
	}
	return arg;
}

TEST(may_be_freed_at_once)
{
	ASSERT_EQ(0, with_runtime(2, 50 * US, frees_at_once, NULL));
	ASSERT_EQ(0, with_runtime(3, 50 * US, frees_at_once, NULL));
	EXPECT_EQ(0, failures);
}

TEST_HARNESS_MAIN
