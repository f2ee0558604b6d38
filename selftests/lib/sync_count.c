// SPDX-License-Identifier: GPL-2.0-only
/* What counts: semaphore, wait group, barrier, event, latch. */
#include "common.h"

static void late(int r, uint64_t deadline)
{
	check_eq(-ETIMEDOUT, r);
	check(fiber_now() >= deadline);
}

/* ---- fibers and plain threads doing the same ---- */

enum { MOST = 32 };

FIXTURE(crowd) {};
FIXTURE_SETUP(crowd) {}
FIXTURE_TEARDOWN(crowd) {}
FIXTURE_VARIANT(crowd) {
	unsigned int processors, fibers, threads;
	uint64_t quantum;
};
FIXTURE_VARIANT_ADD(crowd, one) { 1, 12, 0, 50 * US };
FIXTURE_VARIANT_ADD(crowd, two) { 2, 12, 0, 200 * US };
FIXTURE_VARIANT_ADD(crowd, three) { 3, 12, 0, 50 * US };
FIXTURE_VARIANT_ADD(crowd, threads_alone) { 0, 0, 4, 0 };
FIXTURE_VARIANT_ADD(crowd, one_with_threads) { 1, 6, 3, 200 * US };
FIXTURE_VARIANT_ADD(crowd, two_with_threads) { 2, 6, 3, 200 * US };

static unsigned int parties;

static int run_crowd(const struct _fixture_variant_crowd *v,
		     void *(*fn)(void *))
{
	pthread_t t[MOST];
	fiber_t *f[MOST];
	int r;

	parties = v->fibers + v->threads;
	if (v->processors && (r = start(v->processors, v->quantum)))
		return r;
	for (long i = 0; i < v->fibers; i++)
		f[i] = spawn(fn, (void *)i);
	for (long i = 0; i < v->threads; i++)
		check_eq(0, pthread_create(&t[i], NULL, fn,
					   (void *)(i + v->fibers)));
	for (long i = 0; i < v->fibers; i++)
		join(f[i]);
	for (long i = 0; i < v->threads; i++)
		pthread_join(t[i], NULL);
	return v->processors ? fiber_fini() : 0;
}

/* ---- semaphore ---- */

enum { PERMITS = 3 };

static fiber_sem_t sem = FIBER_SEM_INIT(PERMITS);
static atomic_long holders, most, gone_late;

static void *takes_permits(void *arg)
{
	long seed = (long)arg, n;
	int r;

	for (long i = seed; i < seed + 3000; i++) {
		r = i % 3 == 0 ? fiber_sem_wait(&sem) :
		    i % 3 == 1 ? fiber_sem_try_wait(&sem) :
		    fiber_sem_wait_until(&sem, fiber_now() +
					 (uint64_t)i * 37 % 5000);
		if (r) {
			check_eq(i % 3 == 1 ? -EAGAIN : -ETIMEDOUT, r);
			gone_late++;
			continue;
		}
		n = atomic_fetch_add(&holders, 1) + 1;
		check(n <= PERMITS);
		if (n > most)
			most = n;
		if (i % 8 == 0)
			fiber_self() ? fiber_yield() : (void)sched_yield();
		atomic_fetch_sub(&holders, 1);
		check_eq(0, fiber_sem_post(&sem));
	}
	return NULL;
}

TEST_F(crowd, no_permit_is_lost_or_doubled)
{
	ASSERT_EQ(0, run_crowd(variant, takes_permits));
	EXPECT_EQ(PERMITS, fiber_sem_value(&sem));
	EXPECT_EQ(0, fiber_sem_destroy(&sem));
	EXPECT_EQ(0, failures);
}

static int order[20], ordered;

static void *takes_a_number(void *arg)
{
	check_eq(0, fiber_sem_wait(&sem));
	order[ordered++] = (int)(long)arg;
	return arg;
}

static void *sem_alone(void *arg)
{
	uint64_t t = fiber_now() + 2 * MS;
	fiber_t *f[20];

	ordered = 0;
	check_eq(0, fiber_sem_init(&sem, 0));
	check_eq(-EAGAIN, fiber_sem_try_wait(&sem));
	late(fiber_sem_wait_until(&sem, t), t);
	late(fiber_sem_wait_until(&sem, 0), 0);
	for (long i = 0; i < 20; i++)
		f[i] = spawn(takes_a_number, (void *)i);
	settle();
	check_eq(-EBUSY, fiber_sem_destroy(&sem));
	for (int i = 0; i < 20; i++) {
		check_eq(0, fiber_sem_post(&sem));
		while (ordered == i)		/* whoever it is, if overtaken */
			fiber_sleep(1);
		check_eq(i, order[i]);
	}
	for (int i = 0; i < 20; i++)
		join(f[i]);
	check_eq(0, fiber_sem_value(&sem));
	check_eq(0, fiber_sem_init(&sem, UINT64_MAX));
	check_eq(-EOVERFLOW, fiber_sem_post(&sem));
	check_eq(0, fiber_sem_wait_until(&sem, 0));
	check_eq(0, fiber_sem_post(&sem));
	return arg;
}

TEST(semaphore_serves_in_order)
{
	ASSERT_EQ(0, in_turn(sem_alone, NULL));
	EXPECT_EQ(0, failures);
}

/* ---- wait group: Go's tests ---- */

enum { MANY = VERY_MANY };

static fiber_waitgroup_t g1 = FIBER_WAITGROUP_INIT, g2 = FIBER_WAITGROUP_INIT;
static atomic_long exited;
static fiber_t *many[MANY];

static void *done_and_waits(void *arg)
{
	check_eq(0, fiber_waitgroup_done(&g1));
	check_eq(0, fiber_waitgroup_wait(&g2));
	atomic_fetch_add(&exited, 1);
	return arg;
}

static void *group_of_many(void *arg)
{
	for (int round = 0; round < 3; round++) {
		exited = 0;
		check_eq(0, fiber_waitgroup_add(&g1, MANY));
		check_eq(0, fiber_waitgroup_add(&g2, 1));
		for (long i = 0; i < MANY; i++)
			many[i] = spawn(done_and_waits, NULL);
		check_eq(0, fiber_waitgroup_wait(&g1));
		check_eq(0, exited);
		check_eq(-EAGAIN, fiber_waitgroup_try_wait(&g2));
		check_eq(0, fiber_waitgroup_done(&g2));
		for (long i = 0; i < MANY; i++)
			join(many[i]);
		check_eq(MANY, exited);
	}
	return arg;
}

static void *group_alone(void *arg)
{
	uint64_t t = fiber_now() + 2 * MS;

	check_eq(-EINVAL, fiber_waitgroup_done(&g1));
	check_eq(0, fiber_waitgroup_wait(&g1));
	check_eq(0, fiber_waitgroup_try_wait(&g1));
	check_eq(0, fiber_waitgroup_add(&g1, 2));
	check_eq(-EINVAL, fiber_waitgroup_add(&g1, -3));
	check_eq(-EOVERFLOW, fiber_waitgroup_add(&g1, INT64_MAX));
	late(fiber_waitgroup_wait_until(&g1, t), t);
	late(fiber_waitgroup_wait_until(&g1, 0), 0);
	check_eq(0, fiber_waitgroup_add(&g1, -2));
	check_eq(0, fiber_waitgroup_wait_until(&g1, 0));
	check_eq(0, fiber_waitgroup_destroy(&g1));
	return arg;
}

TEST(wait_group_of_ten_thousand)
{
	ASSERT_EQ(0, with_runtime(1, 0, group_of_many, NULL));
	ASSERT_EQ(0, with_runtime(2, 200 * US, group_of_many, NULL));
	EXPECT_EQ(0, failures);
}

TEST(wait_group_refuses_to_go_below_zero)
{
	group_alone(NULL);
	ASSERT_EQ(0, with_runtime(1, 0, group_alone, NULL));
	ASSERT_EQ(0, with_runtime(2, 0, group_alone, NULL));
	EXPECT_EQ(0, failures);
}

/* The waiter frees it at once, while the last done may be on its way out. */
static void *done(void *arg)
{
	check_eq(0, fiber_waitgroup_done(arg));
	return NULL;
}

static void *frees_at_once(void *arg)
{
	for (int i = 0; i < 3000; i++) {
		fiber_waitgroup_t *g = calloc(1, sizeof(*g));
		fiber_t *f[3];

		check_eq(0, fiber_waitgroup_add(g, 3));
		for (int k = 0; k < 3; k++)
			f[k] = spawn(done, g);
		check_eq(0, fiber_waitgroup_wait(g));
		memset(g, 0xee, sizeof(*g));
		free(g);
		for (int k = 0; k < 3; k++)
			join(f[k]);
	}
	return arg;
}

TEST(wait_group_may_be_freed_at_once)
{
	ASSERT_EQ(0, with_runtime(2, 50 * US, frees_at_once, NULL));
	ASSERT_EQ(0, with_runtime(3, 50 * US, frees_at_once, NULL));
	EXPECT_EQ(0, failures);
}

/* ---- barrier ---- */

enum { CYCLES = 500 };

static fiber_barrier_t barrier;
static atomic_long leaders, here[CYCLES];

static void *meets(void *arg)
{
	int r;

	for (int i = 0; i < CYCLES; i++) {
		atomic_fetch_add(&here[i], 1);
		do	/* some leave and come back */
			r = ((long)arg + i) % 3 ? fiber_barrier_wait(&barrier) :
			    fiber_barrier_wait_until(&barrier, fiber_now() +
						     (uint64_t)i * 7);
		while (r == -ETIMEDOUT && (long)arg % 3 == i % 3);
		if (r == -ETIMEDOUT)
			r = fiber_barrier_wait(&barrier);
		check(r == 0 || r == 1);
		check_eq(parties, here[i]);	/* nobody is missing */
		if (r == 1)
			atomic_fetch_add(&leaders, 1);
	}
	return NULL;
}

TEST_F(crowd, meets_at_a_barrier)
{
	ASSERT_EQ(0, fiber_barrier_init(&barrier, variant->fibers +
					variant->threads));
	ASSERT_EQ(0, run_crowd(variant, meets));
	EXPECT_EQ(CYCLES, leaders);
	EXPECT_EQ(0, fiber_barrier_destroy(&barrier));
	EXPECT_EQ(0, failures);
}

static void *waits_at_barrier(void *arg)
{
	check_eq(0, fiber_barrier_wait(&barrier));
	return arg;
}

static void *barrier_alone(void *arg)
{
	uint64_t t = fiber_now() + 2 * MS;
	fiber_t *f;

	check_eq(-EINVAL, fiber_barrier_init(&barrier, 0));
	check_eq(-EINVAL, fiber_barrier_init(&barrier, 1ull << 32));
	check_eq(0, fiber_barrier_init(&barrier, 1));
	check_eq(1, fiber_barrier_wait(&barrier));
	check_eq(1, fiber_barrier_try_wait(&barrier));
	check_eq(0, fiber_barrier_init(&barrier, 2));
	check_eq(-EAGAIN, fiber_barrier_try_wait(&barrier));
	late(fiber_barrier_wait_until(&barrier, t), t);
	late(fiber_barrier_wait_until(&barrier, 0), 0);
	f = spawn(waits_at_barrier, NULL);
	settle();
	check_eq(-EBUSY, fiber_barrier_destroy(&barrier));
	/* Who left was not counted. */
	check_eq(1, fiber_barrier_wait(&barrier));
	join(f);
	check_eq(0, fiber_barrier_destroy(&barrier));
	return arg;
}

TEST(barrier_does_not_count_who_left)
{
	ASSERT_EQ(0, in_turn(barrier_alone, NULL));
	EXPECT_EQ(0, failures);
}

/* ---- events ---- */

static fiber_event_t gate = FIBER_EVENT_INIT, bell = FIBER_EVENT_AUTO_INIT;
static fiber_event_t answer = FIBER_EVENT_AUTO_INIT;
static atomic_long passed;

static void *passes(void *arg)
{
	check_eq(0, fiber_event_wait(arg));
	atomic_fetch_add(&passed, 1);
	return NULL;
}

static void *events_alone(void *arg)
{
	uint64_t t = fiber_now() + 2 * MS;
	fiber_t *f[100];

	passed = 0;
	check_eq(-EINVAL, fiber_event_init(&gate, 2));
	check_eq(0, fiber_event_init(&gate, FIBER_RESET_MANUAL));
	check_eq(0, fiber_event_init(&bell, FIBER_RESET_AUTO));
	check_eq(-EAGAIN, fiber_event_try_wait(&gate));
	late(fiber_event_wait_until(&gate, t), t);
	late(fiber_event_wait_until(&bell, t), t);
	late(fiber_event_wait_until(&bell, 0), 0);
	for (int i = 0; i < 100; i++)
		f[i] = spawn(passes, &gate);
	settle();
	check_eq(-EBUSY, fiber_event_destroy(&gate));
	check_eq(0, passed);
	check_eq(0, fiber_event_set(&gate));
	for (int i = 0; i < 100; i++)
		join(f[i]);
	check_eq(0, fiber_event_wait(&gate));		/* it stays */
	check_eq(0, fiber_event_reset(&gate));
	check_eq(-EAGAIN, fiber_event_try_wait(&gate));

	check_eq(0, fiber_event_set(&bell));
	check_eq(0, fiber_event_set(&bell));		/* as one */
	check_eq(0, fiber_event_wait(&bell));
	check_eq(-EAGAIN, fiber_event_try_wait(&bell));
	for (int i = 0; i < 100; i++)
		f[i] = spawn(passes, &bell);
	settle();
	for (int i = 0; i < 100; i++) {
		check_eq(100 + i, passed);
		check_eq(0, fiber_event_set(&bell));	/* each lets one pass */
		join(f[i]);
	}
	check_eq(-EAGAIN, fiber_event_try_wait(&bell));
	check_eq(0, fiber_event_destroy(&gate));
	check_eq(0, fiber_event_destroy(&bell));
	return arg;
}

TEST(events_reset_by_hand_or_alone)
{
	ASSERT_EQ(0, in_turn(events_alone, NULL));
	EXPECT_EQ(0, failures);
}

enum { RINGS = 2000 };

static void *answers(void *arg)
{
	for (int i = 0; i < RINGS; i++) {
		while (fiber_event_wait_until(&bell, fiber_now() + 3000))
			;
		check_eq(0, fiber_event_set(&answer));
	}
	return arg;
}

static void *rings(void *arg)
{
	if (arg)
		return answers(NULL);
	for (int i = 0; i < RINGS; i++) {
		check_eq(0, fiber_event_set(&bell));
		check_eq(0, fiber_event_wait(&answer));
	}
	return NULL;
}

/* A set that met a deadline is there for the next wait. */
TEST(no_set_is_lost_to_a_deadline)
{
	struct _fixture_variant_crowd two = { 2, 2, 0, 200 * US },
		mixed = { 1, 1, 1, 200 * US };

	ASSERT_EQ(0, run_crowd(&two, rings));
	ASSERT_EQ(0, run_crowd(&mixed, rings));
	EXPECT_EQ(0, failures);
}

/* ---- latch ---- */

static fiber_latch_t latch = FIBER_LATCH_INIT(0);
static atomic_long arrived;

static void *counts_down(void *arg)
{
	atomic_fetch_add(&arrived, 1);
	check_eq(0, fiber_latch_count_down(&latch, 1 + (uint64_t)arg % 3));
	check_eq(0, fiber_latch_wait(&latch));
	check_eq(parties, arrived);
	return NULL;
}

TEST_F(crowd, meets_at_a_latch)
{
	uint64_t n = 0;

	for (unsigned int i = 0; i < variant->fibers + variant->threads; i++)
		n += 1 + i % 3;
	ASSERT_EQ(0, fiber_latch_init(&latch, n));
	ASSERT_EQ(0, run_crowd(variant, counts_down));
	EXPECT_EQ(0, fiber_latch_count(&latch));
	EXPECT_EQ(0, failures);
}

static void *latch_alone(void *arg)
{
	uint64_t t = fiber_now() + 2 * MS;
	fiber_latch_t two = FIBER_LATCH_INIT(2);

	check_eq(2, fiber_latch_count(&two));
	check_eq(-EAGAIN, fiber_latch_try_wait(&two));
	late(fiber_latch_wait_until(&two, t), t);
	late(fiber_latch_wait_until(&two, 0), 0);
	check_eq(-EINVAL, fiber_latch_count_down(&two, 3));
	check_eq(0, fiber_latch_count_down(&two, 2));
	check_eq(0, fiber_latch_wait(&two));
	check_eq(0, fiber_latch_wait_until(&two, 0));
	check_eq(-EINVAL, fiber_latch_count_down(&two, 1));
	check_eq(0, fiber_latch_destroy(&two));
	return arg;
}

TEST(latch_counts_down_once)
{
	latch_alone(NULL);
	ASSERT_EQ(0, with_runtime(1, 0, latch_alone, NULL));
	EXPECT_EQ(0, failures);
}

TEST_HARNESS_MAIN
