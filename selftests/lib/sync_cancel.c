// SPDX-License-Identifier: GPL-2.0-only
/*
 * A cancelled waiter neither loses nor doubles what is handed over at that
 * moment: a permit, a lock, a signal, a set. And which calls are cancellation
 * points.
 */
#include "common.h"

enum { SIDE = 8, ROUNDS = 150 };

static fiber_mutex_t m = FIBER_MUTEX_INIT;
static fiber_cond_t c = FIBER_COND_INIT;
static fiber_rwlock_t rw = FIBER_RWLOCK_INIT;
static fiber_sem_t sem;
static fiber_event_t bell = FIBER_EVENT_AUTO_INIT;
static fiber_barrier_t barrier;
static fiber_latch_t latch = FIBER_LATCH_INIT(1);
static fiber_waitgroup_t group = FIBER_WAITGROUP_INIT;
static fiber_future_t future = FIBER_FUTURE_INIT;
static fiber_once_t once = FIBER_ONCE_INIT;
static atomic_long got;
static long inside;			/* m */

/* ---- cancelled amid traffic ---- */

static int loop_sem(void *arg)
{
	int r;

	while (!(r = fiber_sem_wait(&sem))) {
		atomic_fetch_add(&got, 1);
		check_eq(0, fiber_sem_post(&sem));
		fiber_yield();
	}
	check_eq(-ECANCELED, r);
	return 0;
}

static int loop_mutex(void *arg)
{
	int r;

	while (!(r = (long)arg % 2 ? fiber_mutex_lock(&m) :
		     fiber_mutex_lock_until(&m, fiber_now() + 3600 * SEC))) {
		check_eq(0, inside++);
		fiber_yield();
		inside--;
		got++;
		check_eq(0, fiber_mutex_unlock(&m));
	}
	check_eq(-ECANCELED, r);
	return 0;
}

static int loop_rwlock(void *arg)
{
	bool write = (long)arg % 3 == 0;
	int r;

	while (!(r = write ? fiber_rwlock_wrlock(&rw) :
		     fiber_rwlock_rdlock(&rw))) {
		if (write)
			check_eq(0, inside++);
		fiber_yield();
		if (write)
			inside--;
		got++;
		check_eq(0, fiber_rwlock_unlock(&rw));
	}
	check_eq(-ECANCELED, r);
	return 0;
}

/* The mutex is ours again, cancelled or not. */
static int loop_cond(void *arg)
{
	int r;

	fiber_shield_begin();
	check_eq(0, fiber_mutex_lock(&m));
	fiber_shield_end();
	while (!(r = fiber_cond_wait(&c, &m))) {
		check_eq(0, inside++);
		got++;
		check_eq(0, fiber_cond_signal(&c));	/* hand it on */
		inside--;
	}
	check_eq(-ECANCELED, r);
	check_eq(0, inside++);
	inside--;
	check_eq(0, fiber_mutex_unlock(&m));
	return 0;
}

static int loop_event(void *arg)
{
	int r;

	while (!(r = fiber_event_wait(&bell))) {
		got++;
		check_eq(0, fiber_event_set(&bell));
		fiber_yield();
	}
	check_eq(-ECANCELED, r);
	return 0;
}

/* Never enough of them: none goes on, and those that left are not counted. */
static int loop_barrier(void *arg)
{
	int r = fiber_barrier_wait(&barrier);

	if (r == -ECANCELED)
		return 0;
	check(r == 0 || r == 1);
	got++;
	return 0;
}

typedef int body(void *);

/*
 * Two scopes on the same object, the first is cancelled amid the traffic, the
 * other must go on: then nothing was lost. `after` is called when both have
 * ended.
 */
static void cancel_one_of_two(body *fn, void (*begin)(void),
			      void (*after)(void))
{
	uint32_t seed = 12345;
	fiber_scope_t a, b;
	long before;

	for (int i = 0; i < ROUNDS; i++) {
		begin();
		check_eq(0, fiber_scope_open(&b, NULL));
		check_eq(0, fiber_scope_open(&a, NULL));
		for (long k = 0; k < SIDE; k++)
			check_eq(0, fiber_scope_spawn(k % 2 ? &a : &b, fn,
						      (void *)k));
		for (uint32_t k = next_random(&seed) % 20; k; k--)
			fiber_yield();
		fiber_scope_cancel(&a, 0);
		check_eq(-ECANCELED, fiber_scope_close(&a));
		for (before = got; got < before + 20; )
			fiber_yield();		/* for ever, if it was lost */
		fiber_scope_cancel(&b, 0);
		check_eq(-ECANCELED, fiber_scope_close(&b));
		after();
	}
}

static void nothing(void)
{
}

static void three_permits(void)
{
	check_eq(0, fiber_sem_init(&sem, 3));
}

static void three_are_left(void)
{
	check_eq(3, fiber_sem_value(&sem));
	check_eq(0, fiber_sem_destroy(&sem));
}

static void none_holds(void)
{
	check_eq(0, fiber_mutex_try_lock(&m));
	check_eq(0, fiber_mutex_unlock(&m));
	check_eq(0, fiber_mutex_destroy(&m));
}

static void rw_is_free(void)
{
	check_eq(0, fiber_rwlock_try_wrlock(&rw));
	check_eq(0, fiber_rwlock_unlock(&rw));
	check_eq(0, fiber_rwlock_destroy(&rw));
}

static void set_bell(void)
{
	check_eq(0, fiber_event_init(&bell, FIBER_RESET_AUTO));
	check_eq(0, fiber_event_set(&bell));
}

static void bell_is_set(void)
{
	check_eq(0, fiber_event_try_wait(&bell));
	check_eq(-EAGAIN, fiber_event_try_wait(&bell));
}

static const struct {
	body *fn;
	void (*begin)(void), (*after)(void);
} object[] = {
	{ loop_sem, three_permits, three_are_left },
	{ loop_mutex, nothing, none_holds },
	{ loop_rwlock, nothing, rw_is_free },
	{ loop_event, set_bell, bell_is_set },
};

static void *amid_traffic(void *arg)
{
	long i = (long)arg;

	cancel_one_of_two(object[i].fn, object[i].begin, object[i].after);
	return NULL;
}

FIXTURE(amid) {};
FIXTURE_SETUP(amid) {}
FIXTURE_TEARDOWN(amid) {}
FIXTURE_VARIANT(amid) { long object; };
FIXTURE_VARIANT_ADD(amid, semaphore) { 0 };
FIXTURE_VARIANT_ADD(amid, mutex) { 1 };
FIXTURE_VARIANT_ADD(amid, rwlock) { 2 };
FIXTURE_VARIANT_ADD(amid, event) { 3 };

TEST_F(amid, nothing_is_lost_or_doubled)
{
	void *arg = (void *)variant->object;

	ASSERT_EQ(0, with_runtime(1, 100 * US, amid_traffic, arg));
	ASSERT_EQ(0, with_runtime(2, 100 * US, amid_traffic, arg));
	ASSERT_EQ(0, with_runtime(3, 50 * US, amid_traffic, arg));
	EXPECT_EQ(0, failures);
}

/*
 * One signal goes round among those that wait. It is lost only with one that
 * was cancelled after it was signalled: that one's call returned 0, and it
 * signals.
 */
static void *signals_go_round(void *arg)
{
	uint32_t seed = 99;
	fiber_scope_t a, b;
	long before;

	for (int i = 0; i < ROUNDS; i++) {
		check_eq(0, fiber_scope_open(&b, NULL));
		check_eq(0, fiber_scope_open(&a, NULL));
		for (long k = 0; k < SIDE; k++)
			check_eq(0, fiber_scope_spawn(k % 2 ? &a : &b,
						      loop_cond, NULL));
		/* Nobody may be there yet: until one was got. */
		for (before = got; got == before; fiber_yield())
			check_eq(0, fiber_cond_signal(&c));
		for (uint32_t k = next_random(&seed) % 20; k; k--)
			fiber_yield();
		fiber_scope_cancel(&a, 0);
		check_eq(-ECANCELED, fiber_scope_close(&a));
		for (before = got; got < before + 20; )
			fiber_yield();
		fiber_scope_cancel(&b, 0);
		check_eq(-ECANCELED, fiber_scope_close(&b));
		check_eq(0, fiber_cond_destroy(&c));
		none_holds();
	}
	return arg;
}

TEST(signal_goes_round_among_the_cancelled)
{
	ASSERT_EQ(0, with_runtime(1, 100 * US, signals_go_round, NULL));
	ASSERT_EQ(0, with_runtime(2, 100 * US, signals_go_round, NULL));
	ASSERT_EQ(0, with_runtime(3, 50 * US, signals_go_round, NULL));
	EXPECT_EQ(0, failures);
}

static int waits_at_barrier(void *arg)
{
	int r = fiber_barrier_wait(&barrier);

	check(r == 0 || r == 1);
	got++;
	return 0;
}

static void *barrier_goes_on(void *arg)
{
	fiber_scope_t a, b;

	for (int i = 0; i < ROUNDS; i++) {
		got = 0;
		check_eq(0, fiber_barrier_init(&barrier, 4));
		check_eq(0, fiber_scope_open(&b, NULL));
		check_eq(0, fiber_scope_open(&a, NULL));
		for (long k = 0; k < 3; k++)
			check_eq(0, fiber_scope_spawn(&a, loop_barrier, NULL));
		fiber_scope_cancel(&a, 0);
		check_eq(-ECANCELED, fiber_scope_close(&a));
		check_eq(0, got);
		for (long k = 0; k < 4; k++)
			check_eq(0, fiber_scope_spawn(&b, waits_at_barrier,
						      NULL));
		check_eq(0, fiber_scope_close(&b));
		check_eq(4, got);
		check_eq(0, fiber_barrier_destroy(&barrier));
	}
	return arg;
}

TEST(barrier_does_not_count_the_cancelled)
{
	ASSERT_EQ(0, with_runtime(1, 100 * US, barrier_goes_on, NULL));
	ASSERT_EQ(0, with_runtime(2, 100 * US, barrier_goes_on, NULL));
	EXPECT_EQ(0, failures);
}

/* ---- which are cancellation points ---- */

static int done(void *arg)
{
	return 0;
}

/* All could be had at once; nothing of it is. */
static void points_refuse(void)
{
	fiber_future_t *list[1] = { &future };

	check_eq(-ECANCELED, fiber_mutex_lock(&m));
	check_eq(-ECANCELED, fiber_mutex_lock_until(&m, FIBER_NEVER));
	check_eq(-ECANCELED, fiber_rwlock_rdlock(&rw));
	check_eq(-ECANCELED, fiber_rwlock_rdlock_until(&rw, FIBER_NEVER));
	check_eq(-ECANCELED, fiber_rwlock_wrlock(&rw));
	check_eq(-ECANCELED, fiber_rwlock_wrlock_until(&rw, FIBER_NEVER));
	check_eq(-ECANCELED, fiber_sem_wait(&sem));
	check_eq(-ECANCELED, fiber_sem_wait_until(&sem, FIBER_NEVER));
	check_eq(-ECANCELED, fiber_waitgroup_wait(&group));
	check_eq(-ECANCELED, fiber_waitgroup_wait_until(&group, FIBER_NEVER));
	check_eq(-ECANCELED, fiber_barrier_wait(&barrier));
	check_eq(-ECANCELED, fiber_barrier_wait_until(&barrier, FIBER_NEVER));
	check_eq(-ECANCELED, fiber_event_wait(&bell));
	check_eq(-ECANCELED, fiber_event_wait_until(&bell, FIBER_NEVER));
	check_eq(-ECANCELED, fiber_latch_wait(&latch));
	check_eq(-ECANCELED, fiber_latch_wait_until(&latch, FIBER_NEVER));
	check_eq(-ECANCELED, fiber_future_wait(&future));
	check_eq(-ECANCELED, fiber_future_get(&future, NULL));
	check_eq(-ECANCELED, fiber_future_get_until(&future, NULL,
						    FIBER_NEVER));
	check_eq(-ECANCELED, fiber_future_wait_any(list, 1, FIBER_NEVER));
	check_eq(-ECANCELED, fiber_future_wait_all(list, 1, FIBER_NEVER));
	check_eq(-ECANCELED, fiber_once(&once, done, NULL));
	check_eq(-ECANCELED, fiber_once_until(&once, done, NULL, FIBER_NEVER));
}

static void others_work(void)
{
	check_eq(0, fiber_mutex_try_lock(&m));
	check_eq(-ECANCELED, fiber_cond_wait(&c, &m));
	check_eq(-ECANCELED, fiber_cond_wait_until(&c, &m, FIBER_NEVER));
	check_eq(0, fiber_cond_signal(&c));
	check_eq(0, fiber_cond_broadcast(&c));
	check_eq(0, fiber_mutex_unlock(&m));	/* it was ours all the time */
	check_eq(0, fiber_rwlock_try_rdlock(&rw));
	check_eq(0, fiber_rwlock_unlock(&rw));
	check_eq(0, fiber_rwlock_try_wrlock(&rw));
	check_eq(0, fiber_rwlock_unlock(&rw));
	check_eq(0, fiber_sem_try_wait(&sem));
	check_eq(0, fiber_sem_post(&sem));
	check_eq(0, fiber_waitgroup_add(&group, 1));
	check_eq(0, fiber_waitgroup_done(&group));
	check_eq(0, fiber_waitgroup_try_wait(&group));
	check_eq(1, fiber_barrier_try_wait(&barrier));
	check_eq(0, fiber_event_try_wait(&bell));
	check_eq(0, fiber_event_set(&bell));
	check_eq(0, fiber_event_reset(&bell));
	check_eq(0, fiber_event_set(&bell));
	check_eq(0, fiber_latch_try_wait(&latch));
	check_eq(0, fiber_future_try_wait(&future));
	check_eq(0, fiber_future_try_get(&future, NULL));
	check_eq(0, fiber_try_once(&once, done, NULL));
	check_eq(0, fiber_once(&once, done, NULL));	/* done: no point now */
}

static int is_cancelled(void *arg)
{
	fiber_event_t never = FIBER_EVENT_INIT;

	check_eq(-ECANCELED, fiber_event_wait(&never));	/* woken by it */
	points_refuse();
	others_work();
	fiber_shield_begin();
	check_eq(0, fiber_mutex_lock(&m));
	check_eq(-ETIMEDOUT, fiber_cond_wait_until(&c, &m, 1));
	check_eq(0, fiber_mutex_unlock(&m));
	check_eq(0, fiber_sem_wait(&sem));
	check_eq(0, fiber_sem_post(&sem));
	fiber_shield_end();
	check_eq(-ECANCELED, fiber_mutex_lock(&m));
	got = 1;
	return 0;
}

static void *points(void *arg)
{
	fiber_scope_t s;

	got = 0;
	check_eq(0, fiber_sem_init(&sem, 1));
	check_eq(0, fiber_barrier_init(&barrier, 1));
	check_eq(0, fiber_event_init(&bell, FIBER_RESET_AUTO));
	check_eq(0, fiber_event_set(&bell));
	check_eq(0, fiber_latch_init(&latch, 0));
	check_eq(0, fiber_future_init(&future));
	check_eq(0, fiber_future_set(&future, NULL));
	once = (fiber_once_t)FIBER_ONCE_INIT;
	check_eq(0, fiber_scope_open(&s, NULL));
	check_eq(0, fiber_scope_spawn(&s, is_cancelled, NULL));
	fiber_scope_cancel(&s, 0);
	check_eq(-ECANCELED, fiber_scope_close(&s));
	check_eq(1, got);
	none_holds();
	return arg;
}

TEST(waiting_calls_are_points_and_no_others)
{
	ASSERT_EQ(0, with_runtime(1, 0, points, NULL));
	ASSERT_EQ(0, with_runtime(2, 0, points, NULL));
	EXPECT_EQ(0, failures);
}

/* ---- an initialiser that is cancelled holds nobody up ---- */

static int sleeps(void *arg)
{
	got++;
	return arg ? 0 : fiber_sleep(3600 * SEC);
}

static int runs_it(void *arg)
{
	check_eq(arg ? 0 : -ECANCELED, fiber_once(&once, sleeps, arg));
	return 0;
}

static void *initialiser(void *arg)
{
	fiber_scope_t a, b;

	got = 0;
	once = (fiber_once_t)FIBER_ONCE_INIT;
	check_eq(0, fiber_scope_open(&b, NULL));
	check_eq(0, fiber_scope_open(&a, NULL));
	check_eq(0, fiber_scope_spawn(&a, runs_it, NULL));
	while (!got)
		fiber_yield();
	for (int i = 0; i < 5; i++)
		check_eq(0, fiber_scope_spawn(&b, runs_it, (void *)1));
	settle();
	check_eq(1, got);
	fiber_scope_cancel(&a, 0);
	check_eq(-ECANCELED, fiber_scope_close(&a));
	check_eq(0, fiber_scope_close(&b));
	check_eq(2, got);
	return arg;
}

TEST(cancelled_initialiser_holds_nobody_up)
{
	ASSERT_EQ(0, with_runtime(1, 0, initialiser, NULL));
	ASSERT_EQ(0, with_runtime(2, 100 * US, initialiser, NULL));
	EXPECT_EQ(0, failures);
}

TEST_HARNESS_MAIN
