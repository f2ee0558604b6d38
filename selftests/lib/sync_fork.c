// SPDX-License-Identifier: GPL-2.0-only
/*
 * Objects in the child of a fork: its threads use them, whatever the parent's threads
 * were doing with them just then, and whoever waits there. A mutex and a rwlock: see
 * check.c.
 */
#include <pthread.h>
#include <sys/wait.h>

#include "common.h"

static fiber_sem_t sem;
static fiber_event_t event;
static fiber_waitgroup_t group;
static fiber_latch_t latch;
static fiber_future_t future;
static fiber_once_t once;
static fiber_barrier_t barrier;
static fiber_cond_t cond;
static fiber_mutex_t mutex;
static fiber_rwlock_t rwlock;
static fiber_chan_t *chan;

static atomic_int over, ready;

static void make_all(void)
{
	check_eq(0, fiber_sem_init(&sem, 0));
	check_eq(0, fiber_event_init(&event, FIBER_RESET_AUTO));
	check_eq(0, fiber_waitgroup_init(&group));
	check_eq(0, fiber_waitgroup_add(&group, 1));
	check_eq(0, fiber_latch_init(&latch, 1));
	check_eq(0, fiber_future_init(&future));
	once = (fiber_once_t)FIBER_ONCE_INIT;
	check_eq(0, fiber_barrier_init(&barrier, 2));
	check_eq(0, fiber_cond_init(&cond));
	check_eq(0, fiber_mutex_init(&mutex, 0));
	check_eq(0, fiber_rwlock_init(&rwlock));
	check_eq(0, fiber_chan_create(&chan, sizeof(int), 2));
}

static uint64_t soon(void)
{
	return fiber_now() + 10 * SEC;
}

/* ---- what the child does ---- */

static int done_once;

static int does(void *arg)
{
	(void)arg;
	done_once++;
	return 0;
}

static void use_counts(void)
{
	check_eq(0, fiber_sem_post(&sem));
	check_eq(0, fiber_sem_wait_until(&sem, soon()));
	while (!fiber_sem_try_wait(&sem))
		;
	check_eq(-ETIMEDOUT, fiber_sem_wait_until(&sem, fiber_now() + MS));
	check_eq(0, fiber_waitgroup_add(&group, 1));
	while (fiber_waitgroup_try_wait(&group))
		check_eq(0, fiber_waitgroup_done(&group));
	check_eq(0, fiber_waitgroup_wait(&group));
	while (fiber_latch_count(&latch))
		check_eq(0, fiber_latch_count_down(&latch, 1));
	check_eq(0, fiber_latch_wait_until(&latch, soon()));
}

static void use_states(void)
{
	int x;
	void *p = NULL;

	check_eq(0, fiber_event_set(&event));
	check_eq(0, fiber_event_wait_until(&event, soon()));
	check_eq(-EAGAIN, fiber_event_try_wait(&event));
	check_eq(-ETIMEDOUT, fiber_event_wait_until(&event, fiber_now() + MS));
	check_eq(-ETIMEDOUT, fiber_future_wait_until(&future, fiber_now() + MS));
	check_eq(0, fiber_future_set(&future, &x));
	check_eq(0, fiber_future_get_until(&future, &p, soon()));
	check(p == &x);
	check_eq(0, fiber_once_until(&once, does, NULL, soon()));
	check_eq(0, fiber_once(&once, does, NULL));
	check_eq(1, done_once);
}

static void use_chan(void)
{
	struct fiber_case c = { .op = FIBER_CASE_RECV, .chan = chan };
	int x = 1;

	check_eq(-EPERM, fiber_chan_try_send(chan, &x));
	check_eq(-EPERM, fiber_chan_send(chan, &x));
	check_eq(-EPERM, fiber_chan_recv_until(chan, &x, soon()));
	check_eq(-EPERM, fiber_select(&c, 1, soon()));
	check_eq(-EPERM, fiber_try_select(&c, 1));
	check_eq(-EPERM, fiber_chan_close(chan));
	check_eq(0, fiber_chan_destroy(chan));
}

/* It waits in earnest, and is woken. */
static void *other_thread(void *arg)
{
	int r = fiber_barrier_wait_until(&barrier, soon());

	check(r == 0 || r == 1);
	check_eq(0, fiber_mutex_lock_until(&mutex, soon()));
	ready++;
	check_eq(0, fiber_cond_wait_until(&cond, &mutex, soon()));
	check_eq(0, fiber_mutex_unlock(&mutex));
	check_eq(0, fiber_sem_wait_until(&sem, soon()));
	return arg;
}

static void use_with_another(void)
{
	pthread_t t;
	int r;

	ready = 0;
	check_eq(-EAGAIN, fiber_barrier_try_wait(&barrier));
	check_eq(0, fiber_cond_signal(&cond));
	check_eq(0, pthread_create(&t, NULL, other_thread, NULL));
	r = fiber_barrier_wait_until(&barrier, soon());
	check(r == 0 || r == 1);
	do {
		check_eq(0, fiber_mutex_lock_until(&mutex, soon()));
		r = ready;
		check_eq(0, fiber_mutex_unlock(&mutex));
	} while (!r);
	check_eq(0, fiber_cond_broadcast(&cond));
	check_eq(0, fiber_sem_post(&sem));
	pthread_join(t, NULL);
}

static void destroy_all(void)
{
	int r;

	check_eq(0, fiber_sem_destroy(&sem));
	check_eq(0, fiber_event_destroy(&event));
	check_eq(0, fiber_waitgroup_destroy(&group));
	check_eq(0, fiber_latch_destroy(&latch));
	check_eq(0, fiber_future_destroy(&future));
	check_eq(0, fiber_barrier_destroy(&barrier));
	check_eq(0, fiber_cond_destroy(&cond));
	r = fiber_rwlock_destroy(&rwlock);	/* or a reader of the parent has it */
	check(r == 0 || r == -EBUSY);
}

/* Killed, if it hangs. A child of its own does the same. */
static void in_child(bool again)
{
	int status = 0;
	pid_t pid = fork();

	if (pid) {
		check_eq(pid, waitpid(pid, &status, 0));
		check_eq(0, status);
		return;
	}
	alarm(30);
	if (again)
		in_child(false);
	use_counts();
	use_states();
	use_chan();
	use_with_another();
	destroy_all();
	_exit(failures != 0);
}

/* ---- the parent's threads are inside of calls ---- */

static int fails(void *arg)
{
	(void)arg;
	return 1;
}

static void *uses_all(void *arg)
{
	int x = 0;

	while (!over) {
		fiber_sem_post(&sem);
		fiber_sem_try_wait(&sem);
		fiber_event_set(&event);
		fiber_event_reset(&event);
		fiber_waitgroup_add(&group, 1);
		fiber_waitgroup_done(&group);
		fiber_latch_count_down(&latch, 0);
		fiber_future_try_wait(&future);
		fiber_try_once(&once, fails, NULL);
		fiber_cond_signal(&cond);
		if (!fiber_rwlock_try_rdlock(&rwlock))
			fiber_rwlock_unlock(&rwlock);
		fiber_chan_try_send(chan, &x);
		fiber_chan_try_recv(chan, &x);
		ready++;
	}
	return arg;
}

static void *forks_beside_them(void *arg)
{
	pthread_t t[2];

	make_all();
	for (int i = 0; i < 2; i++)
		check_eq(0, pthread_create(&t[i], NULL, uses_all, NULL));
	for (int i = 0; i < (in_vm() ? 10 : 60) && !failures; i++) {
		ready = 0;
		while (ready < 10)
			fiber_yield();
		in_child(false);
	}
	over = 1;
	for (int i = 0; i < 2; i++)
		pthread_join(t[i], NULL);
	check_eq(0, fiber_chan_destroy(chan));
	return arg;
}

TEST(others_were_inside_of_calls)
{
	ASSERT_EQ(0, with_runtime(1, 0, forks_beside_them, NULL));
	EXPECT_EQ(0, failures);
}

/* ---- the parent's fibers wait ---- */

static int takes_long(void *arg)
{
	check_eq(0, fiber_event_wait(arg));
	return 0;
}

static fiber_event_t end_of_once;

static void *waits(void *arg)
{
	int x;

	switch ((int)(long)arg) {
	case 0: check_eq(0, fiber_sem_wait(&sem)); break;
	case 1: check_eq(0, fiber_event_wait(&event)); break;
	case 2: check_eq(0, fiber_waitgroup_wait(&group)); break;
	case 3: check_eq(0, fiber_latch_wait(&latch)); break;
	case 4: check_eq(0, fiber_future_wait(&future)); break;
	case 5: check_eq(0, fiber_once(&once, takes_long, &end_of_once)); break;
	case 6: check(fiber_barrier_wait(&barrier) >= 0); break;
	case 7: check_eq(0, fiber_chan_recv(chan, &x)); break;
	case 8: check_eq(0, fiber_mutex_lock(&mutex));
		check_eq(0, fiber_cond_wait(&cond, &mutex));
		check_eq(0, fiber_mutex_unlock(&mutex));
	}
	return NULL;
}

enum { WAITS = 9 };

static void *forks_while_they_wait(void *arg)
{
	fiber_t *f[WAITS];
	int x = 1;

	make_all();
	check_eq(0, fiber_event_init(&end_of_once, FIBER_RESET_MANUAL));
	for (long i = 0; i < WAITS; i++)
		f[i] = spawn(waits, (void *)i);
	check_eq(0, fiber_sleep(20 * MS));
	in_child(true);
	check_eq(0, fiber_sem_post(&sem));
	check_eq(0, fiber_event_set(&event));
	check_eq(0, fiber_waitgroup_done(&group));
	check_eq(0, fiber_latch_count_down(&latch, 1));
	check_eq(0, fiber_future_set(&future, NULL));
	check_eq(0, fiber_event_set(&end_of_once));
	check(fiber_barrier_wait(&barrier) >= 0);
	check_eq(0, fiber_chan_send(chan, &x));
	check_eq(0, fiber_cond_signal(&cond));
	for (int i = 0; i < WAITS; i++)
		join(f[i]);
	check_eq(0, fiber_chan_destroy(chan));
	return arg;
}

TEST(those_who_wait_are_the_parents)
{
	ASSERT_EQ(0, with_runtime(2, 0, forks_while_they_wait, NULL));
	EXPECT_EQ(0, failures);
}

/* ---- the fork is inside of fn ---- */

static int forks_inside(void *arg)
{
	int status = 0;
	pid_t pid = fork();

	(void)arg;
	if (!pid) {
		check_eq(-EDEADLK, fiber_once_until(&once, does, NULL, soon()));
		return 0;
	}
	check_eq(pid, waitpid(pid, &status, 0));
	check_eq(0, status);
	return 0;
}

static void *forks_in_once(void *arg)
{
	pid_t here = getpid();

	once = (fiber_once_t)FIBER_ONCE_INIT;
	check_eq(0, fiber_once(&once, forks_inside, NULL));
	check_eq(0, fiber_once(&once, does, NULL));
	check_eq(0, done_once);
	if (getpid() != here)
		_exit(failures != 0);
	return arg;
}

TEST(a_function_that_forks_is_done_in_both)
{
	ASSERT_EQ(0, with_runtime(1, 0, forks_in_once, NULL));
	EXPECT_EQ(0, failures);
}

TEST_HARNESS_MAIN
