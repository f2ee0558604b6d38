// SPDX-License-Identifier: GPL-2.0-only
/* Condition variables: no signal lost or doubled, deadlines, the mutex. */
#include "common.h"

static fiber_mutex_t m = FIBER_MUTEX_INIT;
static fiber_cond_t c = FIBER_COND_INIT, c2 = FIBER_COND_INIT;
static atomic_long waiting;

/* ---- a queue of two ends ---- */

enum { SLOTS = 3, SIDES = 8, EACH = 2000 };

static struct {
	fiber_cond_t not_full, not_empty;
	long slot[SLOTS], first, count, sum, got;
} ring;

static void *produces(void *arg)
{
	for (long i = 0; i < EACH; i++) {
		check_eq(0, fiber_mutex_lock(&m));
		while (ring.count == SLOTS)
			check_eq(0, fiber_cond_wait(&ring.not_full, &m));
		ring.slot[(ring.first + ring.count++) % SLOTS] =
			(long)arg * EACH + i;
		check_eq(0, fiber_cond_signal(&ring.not_empty));
		check_eq(0, fiber_mutex_unlock(&m));
	}
	return NULL;
}

static void *consumes(void *arg)
{
	for (long i = 0; i < EACH; i++) {
		check_eq(0, fiber_mutex_lock(&m));
		while (!ring.count)
			check_eq(0, fiber_cond_wait(&ring.not_empty, &m));
		ring.sum += ring.slot[ring.first];
		ring.first = (ring.first + 1) % SLOTS;
		ring.count--;
		ring.got++;
		check_eq(0, fiber_mutex_unlock(&m));
		check_eq(0, fiber_cond_signal(&ring.not_full));
	}
	return arg;
}

FIXTURE(queue) {};
FIXTURE_SETUP(queue) {}
FIXTURE_TEARDOWN(queue) {}
FIXTURE_VARIANT(queue) { unsigned int processors, threads; uint64_t quantum; };
FIXTURE_VARIANT_ADD(queue, one) { 1, 0, 100 * US };
FIXTURE_VARIANT_ADD(queue, two) { 2, 0, 50 * US };
FIXTURE_VARIANT_ADD(queue, three) { 3, 0, 200 * US };
FIXTURE_VARIANT_ADD(queue, one_with_threads) { 1, 4, 200 * US };
FIXTURE_VARIANT_ADD(queue, two_with_threads) { 2, 4, 200 * US };
FIXTURE_VARIANT_ADD(queue, threads_alone) { 0, SIDES, 0 };

/* The first `threads` of each side are plain threads. */
static void crowd(long threads)
{
	long n = SIDES * EACH;
	pthread_t t[2 * SIDES];
	fiber_t *f[2 * SIDES];

	for (long i = 0; i < 2 * SIDES; i++) {
		void *(*fn)(void *) = i % 2 ? consumes : produces;
		void *arg = (void *)(i / 2);

		if (i / 2 < threads)
			check_eq(0, pthread_create(&t[i], NULL, fn, arg));
		else
			f[i] = spawn(fn, arg);
	}
	for (long i = 0; i < 2 * SIDES; i++) {
		if (i / 2 < threads)
			pthread_join(t[i], NULL);
		else
			join(f[i]);
	}
	check_eq(n, ring.got);
	check_eq(n * (n - 1) / 2, ring.sum);
	check_eq(0, fiber_cond_destroy(&ring.not_full));
	check_eq(0, fiber_cond_destroy(&ring.not_empty));
	check_eq(0, fiber_mutex_destroy(&m));
}

TEST_F(queue, each_value_once)
{
	if (variant->processors)
		ASSERT_EQ(0, start(variant->processors, variant->quantum));
	crowd(variant->threads);
	if (variant->processors)
		ASSERT_EQ(0, fiber_fini());
	EXPECT_EQ(0, failures);
}

/* ---- signal against deadline ---- */

enum { RACES = 3000 };

static struct {
	uint64_t deadline;
	int hurried, patient;		/* m: what they got, 1: not yet */
} race;

static void *hurries(void *arg)
{
	int r;

	check_eq(0, fiber_mutex_lock(&m));
	waiting++;
	r = fiber_cond_wait_until(&c, &m, race.deadline);
	check(r == 0 || r == -ETIMEDOUT);
	race.hurried = r;
	check_eq(0, fiber_mutex_unlock(&m));
	return arg;
}

static void *is_patient(void *arg)
{
	check_eq(0, fiber_mutex_lock(&m));
	waiting++;
	race.patient = fiber_cond_wait(&c, &m);
	check_eq(0, fiber_mutex_unlock(&m));
	return arg;
}

/* Wait until both are in the queue: who has m then finds them there. */
static void until_both_wait(void)
{
	for (;;) {
		check_eq(0, fiber_mutex_lock(&m));
		if (waiting == 2)
			return;
		check_eq(0, fiber_mutex_unlock(&m));
		fiber_yield();
	}
}

/*
 * The one that waits first has a deadline at about the moment of the signal. If
 * it got the signal, the other waits on; if it did not, the other has it.
 */
static bool one_race(uint32_t *seed)
{
	fiber_t *first, *second;
	bool won;

	waiting = 0;
	race.hurried = race.patient = 1;
	race.deadline = fiber_now() + 10000 + next_random(seed) % 20000;
	first = spawn(hurries, NULL);
	second = spawn(is_patient, NULL);
	until_both_wait();
	check_eq(0, fiber_mutex_unlock(&m));
	while (fiber_now() + next_random(seed) % 2000 < race.deadline)
		fiber_yield();
	check_eq(0, fiber_cond_signal(&c));
	join(first);
	won = !race.hurried;
	if (won) {
		check_eq(0, fiber_mutex_lock(&m));
		check_eq(1, race.patient);
		check_eq(0, fiber_mutex_unlock(&m));
		check_eq(0, fiber_cond_signal(&c));
	}
	join(second);		/* never, if a signal was lost */
	check_eq(0, race.patient);
	return won;
}

static void *races(void *arg)
{
	uint32_t seed = 1 + (uint32_t)(long)arg;
	long won = 0;

	for (long i = 0; i < RACES; i++)
		won += one_race(&seed);
	figure("of %d signals %ld came before the deadline\n", RACES, won);
	check_eq(0, fiber_cond_destroy(&c));
	check_eq(0, fiber_mutex_destroy(&m));
	return NULL;
}

TEST(signal_goes_to_the_next_if_the_first_is_late)
{
	ASSERT_EQ(0, with_runtime(1, 0, races, (void *)1));
	ASSERT_EQ(0, with_runtime(2, 50 * US, races, (void *)2));
	ASSERT_EQ(0, with_runtime(3, 200 * US, races, (void *)3));
	EXPECT_EQ(0, failures);
}

/* ---- broadcast ---- */

enum { MANY = VERY_MANY };

static fiber_t *many[MANY];
static long epoch, woken;		/* m */

static void *waits_for_epochs(void *arg)
{
	long seen = 0;
	int r;

	check_eq(0, fiber_mutex_lock(&m));
	while (seen < 3) {
		waiting++;
		while (epoch == seen) {
			r = (long)arg % 50 ? fiber_cond_wait(&c, &m) :
			    fiber_cond_wait_until(&c, &m, fiber_now() + 5 * MS);
			if ((long)arg % 50)
				check_eq(0, r);
		}
		check_eq(seen + 1, epoch);
		seen++;
		woken++;
		if (woken % (long)MANY == 0)
			check_eq(0, fiber_cond_signal(&c2));
	}
	check_eq(0, fiber_mutex_unlock(&m));
	return NULL;
}

/* Nobody misses one, and no epoch begins before all have seen the last. */
static void *storms(void *arg)
{
	uint64_t before;

	epoch = 0;
	woken = 0;
	waiting = 0;
	for (long i = 0; i < MANY; i++)
		many[i] = spawn(waits_for_epochs, (void *)i);
	for (long k = 1; k <= 3; k++) {
		while (waiting < k * MANY)
			fiber_yield();
		check_eq(0, fiber_mutex_lock(&m));
		before = stats().switches;
		epoch = k;
		check_eq(0, fiber_cond_broadcast(&c));
		while (woken < k * MANY)
			check_eq(0, fiber_cond_wait(&c2, &m));
		check_eq(0, fiber_mutex_unlock(&m));
		figure("%.2f switches a waiter\n",
		       (double)(stats().switches - before) / MANY);
	}
	for (long i = 0; i < MANY; i++)
		join(many[i]);
	check_eq(0, fiber_cond_destroy(&c));
	return arg;
}

TEST(broadcast_to_ten_thousand)
{
	ASSERT_EQ(0, with_runtime(1, 0, storms, NULL));
	ASSERT_EQ(0, with_runtime(2, 200 * US, storms, NULL));
	EXPECT_EQ(0, failures);
}

/* ---- order, deadlines, the mutex ---- */

static int order[100], ordered;

static void *takes_a_number(void *arg)
{
	check_eq(0, fiber_mutex_lock(&m));
	check_eq(0, fiber_cond_wait(&c, &m));
	order[ordered++] = (int)(long)arg;
	check_eq(0, fiber_mutex_unlock(&m));
	return arg;
}

static void *in_order(void *arg)
{
	fiber_t *f[100];

	ordered = 0;
	for (long i = 0; i < 100; i++)
		f[i] = spawn(takes_a_number, (void *)i);
	for (long i = 0; i < 50; i++)
		check_eq(0, fiber_cond_signal(&c));
	check_eq(0, fiber_cond_broadcast(&c));
	for (long i = 0; i < 100; i++) {
		join(f[i]);
		check_eq(i, order[i]);
	}
	return arg;
}

static void *deadlines(void *arg)
{
	uint64_t t = fiber_now() + 2 * MS;

	check_eq(0, fiber_mutex_lock(&m));
	check_eq(-ETIMEDOUT, fiber_cond_wait_until(&c, &m, t));
	check(fiber_now() >= t);
	check_eq(-ETIMEDOUT, fiber_cond_wait_until(&c, &m, 0));
	check_eq(-ETIMEDOUT, fiber_cond_wait_until(&c, &m, 1));
	check_eq(0, fiber_mutex_unlock(&m));	/* so it was ours */
	check_eq(0, fiber_cond_signal(&c));	/* nobody there: forgotten */
	check_eq(0, fiber_cond_broadcast(&c));
	check_eq(0, fiber_mutex_lock(&m));
	check_eq(-ETIMEDOUT, fiber_cond_wait_until(&c, &m, 1));
	check_eq(0, fiber_mutex_unlock(&m));
	return arg;
}

static fiber_mutex_t deep = FIBER_MUTEX_RECURSIVE_INIT;

static void *waits_deeply(void *arg)
{
	for (int i = 0; i < 3; i++)
		check_eq(0, fiber_mutex_lock(&deep));
	waiting++;
	check_eq(0, fiber_cond_wait(&c, &deep));
	for (int i = 0; i < 3; i++)
		check_eq(0, fiber_mutex_unlock(&deep));
	check_eq(-EPERM, fiber_mutex_unlock(&deep));
	return arg;
}

static void *depth_is_kept(void *arg)
{
	fiber_t *f;

	waiting = 0;
	f = spawn(waits_deeply, NULL);
	while (!waiting)
		fiber_yield();
	check_eq(0, fiber_mutex_lock(&deep));	/* so it unlocked it whole */
	check_eq(0, fiber_cond_signal(&c));
	check_eq(0, fiber_mutex_unlock(&deep));
	join(f);
	return arg;
}

TEST(who_waits_longest_is_signalled_first)
{
	ASSERT_EQ(0, in_turn(in_order, NULL));
	EXPECT_EQ(0, failures);
}

TEST(deadline_passes_and_the_mutex_is_ours)
{
	ASSERT_EQ(0, with_runtime(1, 0, deadlines, NULL));
	ASSERT_EQ(0, with_runtime(2, 0, deadlines, NULL));
	deadlines(NULL);
	EXPECT_EQ(0, failures);
}

TEST(recursive_mutex_is_unlocked_whole)
{
	ASSERT_EQ(0, with_runtime(1, 0, depth_is_kept, NULL));
	ASSERT_EQ(0, with_runtime(2, 0, depth_is_kept, NULL));
	EXPECT_EQ(0, failures);
}

/* ---- misuse ---- */

static void *waits_once(void *arg)
{
	check_eq(0, fiber_mutex_lock(&m));
	waiting++;
	check_eq(0, fiber_cond_wait(&c, &m));
	check_eq(0, fiber_mutex_unlock(&m));
	return arg;
}

static void *misuses(void *arg)
{
	fiber_mutex_t other = FIBER_MUTEX_INIT;
	fiber_t *f;

	check_eq(-EPERM, fiber_cond_wait(&c, &m));
	check_eq(-EPERM, fiber_cond_wait_until(&c, &m, 1));
	waiting = 0;
	f = spawn(waits_once, NULL);
	while (!waiting)
		fiber_yield();
	check_eq(0, fiber_mutex_lock(&m));	/* it waits now */
	check_eq(0, fiber_mutex_lock(&other));
	check_eq(-EINVAL, fiber_cond_wait(&c, &other));
	check_eq(-EBUSY, fiber_cond_destroy(&c));
	check_eq(0, fiber_mutex_unlock(&other));
	check_eq(0, fiber_cond_signal(&c));
	check_eq(0, fiber_mutex_unlock(&m));
	join(f);
	/* Nobody waits: another is fine. */
	check_eq(0, fiber_mutex_lock(&other));
	check_eq(-ETIMEDOUT, fiber_cond_wait_until(&c, &other, 1));
	check_eq(0, fiber_mutex_unlock(&other));
	check_eq(0, fiber_cond_destroy(&c));
	return arg;
}

TEST(misuse_is_answered)
{
	ASSERT_EQ(0, with_runtime(1, 0, misuses, NULL));
	ASSERT_EQ(0, with_runtime(2, 0, misuses, NULL));
	EXPECT_EQ(0, failures);
}

TEST_HARNESS_MAIN
