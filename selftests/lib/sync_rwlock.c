// SPDX-License-Identifier: GPL-2.0-only
/* Readers and writers: exclusion, nobody starves, deadlines, misuse. */
#include "common.h"

static fiber_rwlock_t l = FIBER_RWLOCK_INIT;
static atomic_long readers, writers, most_readers, reads, writes;
static atomic_bool stop;
static long a, b;			/* l: always equal outside writers */

/* ---- exclusion ---- */

static void hold_for_reading(long i)
{
	long n = atomic_fetch_add(&readers, 1) + 1;

	check_eq(0, writers);
	check_eq(a, b);
	if (n > most_readers)
		most_readers = n;
	if (i % 16 == 1)
		fiber_self() ? fiber_yield() : (void)sched_yield();
	check_eq(a, b);
	atomic_fetch_sub(&readers, 1);
	reads++;
}

static void hold_for_writing(long i)
{
	check_eq(0, atomic_fetch_add(&writers, 1));
	check_eq(0, readers);
	a++;
	if (i % 16 == 0)
		fiber_self() ? fiber_yield() : (void)sched_yield();
	b++;
	atomic_fetch_sub(&writers, 1);
	writes++;
}

static int read_lock(long i)
{
	switch (i % 3) {
	case 0:
		return fiber_rwlock_rdlock(&l);
	case 1:
		return fiber_rwlock_try_rdlock(&l);
	default:
		return fiber_rwlock_rdlock_until(&l, fiber_now() +
						 (uint64_t)i * 31 % 4000);
	}
}

static int write_lock(long i)
{
	switch (i % 3) {
	case 0:
		return fiber_rwlock_wrlock(&l);
	case 1:
		return fiber_rwlock_try_wrlock(&l);
	default:
		return fiber_rwlock_wrlock_until(&l, fiber_now() +
						 (uint64_t)i * 31 % 4000);
	}
}

static void *reads_and_writes(void *arg)
{
	long seed = (long)arg;
	int r;

	for (long i = seed; i < seed + 2000; i++) {
		bool write = i % 8 == 0;

		r = write ? write_lock(i) : read_lock(i);
		check_eq(true, !r || r == (i % 3 == 1 ? -EAGAIN : -ETIMEDOUT));
		if (r)
			continue;
		if (write)
			hold_for_writing(i / 8);
		else
			hold_for_reading(i);
		check_eq(0, fiber_rwlock_unlock(&l));
	}
	return NULL;
}

FIXTURE(exclusion) {};
FIXTURE_SETUP(exclusion) {}
FIXTURE_TEARDOWN(exclusion) {}
FIXTURE_VARIANT(exclusion) {
	unsigned int processors, fibers, threads;
	uint64_t quantum;
};
FIXTURE_VARIANT_ADD(exclusion, one) { 1, 16, 0, 50 * US };
FIXTURE_VARIANT_ADD(exclusion, two) { 2, 16, 0, 200 * US };
FIXTURE_VARIANT_ADD(exclusion, three) { 3, 16, 0, 50 * US };
FIXTURE_VARIANT_ADD(exclusion, threads_alone) { 0, 0, 4, 0 };
FIXTURE_VARIANT_ADD(exclusion, one_with_threads) { 1, 8, 3, 200 * US };
FIXTURE_VARIANT_ADD(exclusion, two_with_threads) { 2, 8, 3, 200 * US };

static void crowd(unsigned int fibers, unsigned int threads)
{
	pthread_t t[16];
	fiber_t *f[16];

	for (long i = 0; i < fibers; i++)
		f[i] = spawn(reads_and_writes, (void *)i);
	for (long i = 0; i < threads; i++)
		check_eq(0, pthread_create(&t[i], NULL, reads_and_writes,
					   (void *)i));
	for (long i = 0; i < fibers; i++)
		join(f[i]);
	for (long i = 0; i < threads; i++)
		pthread_join(t[i], NULL);
	check_eq(writes, a);
	check_eq(a, b);
	check(reads && writes);
	check(!fibers || most_readers > 1);
	check_eq(0, fiber_rwlock_destroy(&l));
}

TEST_F(exclusion, holds)
{
	if (variant->processors)
		ASSERT_EQ(0, start(variant->processors, variant->quantum));
	crowd(variant->fibers, variant->threads);
	if (variant->processors)
		ASSERT_EQ(0, fiber_fini());
	EXPECT_EQ(0, failures);
}

/* ---- nobody starves ---- */

static void *reads_on_and_on(void *arg)
{
	while (!stop) {
		check_eq(0, fiber_rwlock_rdlock(&l));
		fiber_yield();		/* they overlap: never free */
		check_eq(0, fiber_rwlock_unlock(&l));
	}
	return arg;
}

static void *writes_on_and_on(void *arg)
{
	while (!stop) {
		check_eq(0, fiber_rwlock_wrlock(&l));
		fiber_yield();
		check_eq(0, fiber_rwlock_unlock(&l));
	}
	return arg;
}

static void *both_are_served(void *arg)
{
	fiber_t *f[8];

	stop = false;
	for (int i = 0; i < 8; i++)
		f[i] = spawn(i % 2 ? reads_on_and_on : writes_on_and_on, NULL);
	for (int i = 0; i < 200; i++) {
		check_eq(0, i % 2 ? fiber_rwlock_wrlock(&l) :
				    fiber_rwlock_rdlock(&l));
		check_eq(0, fiber_rwlock_unlock(&l));
	}
	stop = true;
	for (int i = 0; i < 8; i++)
		join(f[i]);
	return arg;
}

TEST(neither_side_starves)
{
	ASSERT_EQ(0, with_runtime(1, 0, both_are_served, NULL));
	ASSERT_EQ(0, with_runtime(2, 200 * US, both_are_served, NULL));
	EXPECT_EQ(0, failures);
}

/* ---- who goes on when ---- */

static char line[16];
static atomic_int at;

static void *writes_once(void *arg)
{
	check_eq(0, fiber_rwlock_wrlock(&l));
	line[at++] = 'W';
	check_eq(0, fiber_rwlock_unlock(&l));
	return arg;
}

static void *gives_up(void *arg)
{
	check_eq(-ETIMEDOUT, fiber_rwlock_wrlock_until(&l, fiber_now() +
						       20 * MS));
	return arg;
}

static void *reads_once(void *arg)
{
	check_eq(0, fiber_rwlock_rdlock(&l));
	line[at++] = 'R';
	check_eq(0, fiber_rwlock_unlock(&l));
	return arg;
}

static void lined_up(const char *want, int n, fiber_t **f)
{
	for (int i = 0; i < n; i++)
		join(f[i]);
	line[at] = 0;
	if (strcmp(want, line))
		failed(__FILE__, __LINE__, "%s, not %s", line, want);
	at = 0;
	check_eq(0, fiber_rwlock_destroy(&l));
}

static void *turns(void *arg)
{
	fiber_t *f[5];

	at = 0;
	/* A reader comes behind a writer that waits; then all readers. */
	check_eq(0, fiber_rwlock_rdlock(&l));
	f[0] = spawn(writes_once, NULL);
	f[1] = spawn(reads_once, NULL);
	f[2] = spawn(writes_once, NULL);
	f[3] = spawn(reads_once, NULL);
	settle();
	check_eq(-EAGAIN, fiber_rwlock_try_rdlock(&l));
	check_eq(-EAGAIN, fiber_rwlock_try_wrlock(&l));
	check_eq(-EBUSY, fiber_rwlock_destroy(&l));
	check_eq(0, at);
	check_eq(0, fiber_rwlock_unlock(&l));
	lined_up("WRRW", 4, f);

	/* The writer gives up: the readers behind it need not wait any more. */
	check_eq(0, fiber_rwlock_rdlock(&l));
	f[2] = spawn(gives_up, NULL);
	f[0] = spawn(reads_once, NULL);
	f[1] = spawn(reads_once, NULL);
	join(f[0]);
	join(f[1]);
	check_eq(0, fiber_rwlock_unlock(&l));
	lined_up("RR", 1, f + 2);
	return arg;
}

TEST(readers_and_writers_take_turns)
{
	ASSERT_EQ(0, in_turn(turns, NULL));
	EXPECT_EQ(0, failures);
}

/* ---- deadlines and misuse ---- */

static void *is_kept_out(void *arg)
{
	uint64_t t = fiber_now() + 2 * MS;

	check_eq(-EAGAIN, fiber_rwlock_try_rdlock(&l));
	check_eq(-EAGAIN, fiber_rwlock_try_wrlock(&l));
	check_eq(-ETIMEDOUT, fiber_rwlock_rdlock_until(&l, 0));
	check_eq(-ETIMEDOUT, fiber_rwlock_wrlock_until(&l, 0));
	check_eq(-ETIMEDOUT, fiber_rwlock_rdlock_until(&l, t));
	check_eq(-ETIMEDOUT, fiber_rwlock_wrlock_until(&l, t));
	check(fiber_now() >= t);
	check_eq(-EPERM, fiber_rwlock_unlock(&l));
	return arg;
}

static void *misuses(void *arg)
{
	check_eq(-EPERM, fiber_rwlock_unlock(&l));
	check_eq(0, fiber_rwlock_wrlock(&l));
	check_eq(-EDEADLK, fiber_rwlock_wrlock(&l));
	check_eq(-EDEADLK, fiber_rwlock_rdlock(&l));
	check_eq(-EAGAIN, fiber_rwlock_try_rdlock(&l));
	check_eq(-EBUSY, fiber_rwlock_destroy(&l));
	if (fiber_self())
		join(spawn(is_kept_out, NULL));
	check_eq(0, fiber_rwlock_unlock(&l));
	check_eq(-EPERM, fiber_rwlock_unlock(&l));
	check_eq(0, fiber_rwlock_rdlock(&l));
	check_eq(0, fiber_rwlock_try_rdlock(&l));
	check_eq(-EBUSY, fiber_rwlock_destroy(&l));
	check_eq(0, fiber_rwlock_unlock(&l));
	check_eq(0, fiber_rwlock_unlock(&l));
	check_eq(0, fiber_rwlock_destroy(&l));
	return arg;
}

TEST(misuse_is_answered)
{
	misuses(NULL);
	ASSERT_EQ(0, with_runtime(1, 0, misuses, NULL));
	ASSERT_EQ(0, with_runtime(2, 0, misuses, NULL));
	EXPECT_EQ(0, failures);
}

TEST_HARNESS_MAIN
