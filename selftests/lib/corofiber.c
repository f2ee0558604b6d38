// SPDX-License-Identifier: GPL-2.0-only
/* Coroutines and who runs them: threads, fibers, preemption, fork. */
#include "common.h"

#define NUM(n)	((void *)(intptr_t)(n))
#define INT(p)	((int)(intptr_t)(p))
#define YIELDED	FIBER_CORO_YIELDED

static fiber_coro_t *create(fiber_coro_fn fn, void *arg)
{
	fiber_coro_t *co = NULL;

	check_eq(0, fiber_coro_create(&co, fn, arg));
	return co;
}

/* Counts resumes; a second one inside would be seen. */
static int counts(void *arg, void **value)
{
	atomic_int inside = 0;

	for (long n = 1; ; n++) {
		check_eq(0, atomic_fetch_add(&inside, 1));
		for (int i = 0; i < INT(arg); i++)
			__asm__ volatile("" ::: "memory");
		atomic_fetch_sub(&inside, 1);
		if (fiber_coro_yield(NUM(n), NULL))
			return 0;
	}
}

/* ---- threads ---- */

struct contest {
	fiber_coro_t *co;
	long tries, won, last;
};

static void *contends(void *arg)
{
	struct contest *c = arg;
	void *out;
	int r;

	for (long i = 0; i < c->tries; i++) {
		r = fiber_coro_resume(c->co, NULL, &out);
		if (r == YIELDED) {
			check((long)out > c->last);
			c->last = (long)out;
			c->won++;
		} else {
			check_eq(-EBUSY, r);
		}
	}
	return NULL;
}

/* By turns at first, so that the bias has an owner to be taken from. */
TEST(coro_is_resumed_by_one_thread_at_a_time)
{
	int scale = in_vm() ? 20 : 1;

	for (int round = 0; round < 30; round++) {
		struct contest c[3] = { 0 };
		fiber_coro_t *co = create(counts, NUM(round % 3 * 20));
		pthread_t t[3];
		long won = 0;
		void *out;

		for (int i = 0; i < 3; i++)
			c[i] = (struct contest) { co, 20000 / scale, 0, 0 };
		c[0].tries = 200000 / scale;
		for (int i = 0; i < 3; i++)
			pthread_create(&t[i], NULL, contends, &c[i]);
		for (int i = 0; i < 3; i++) {
			pthread_join(t[i], NULL);
			won += c[i].won;
		}
		check_eq(YIELDED, fiber_coro_resume(co, NULL, &out));
		check_eq(won + 1, (long)out);
		check_eq(0, fiber_coro_destroy(co));
	}
	EXPECT_EQ(0, failures);
}

static void *resumes_once(void *arg)
{
	void *out = NULL;

	check_eq(YIELDED, fiber_coro_resume(arg, NULL, &out));
	return out;
}

static void *destroys(void *arg)
{
	return NUM(fiber_coro_destroy(arg));
}

TEST(coro_goes_from_thread_to_thread)
{
	fiber_coro_t *co = create(counts, NULL);
	pthread_t t;
	void *out;

	for (long i = 1; i < 100; i++) {
		pthread_create(&t, NULL, resumes_once, co);
		pthread_join(t, &out);
		check_eq(i, (long)out);
	}
	pthread_create(&t, NULL, destroys, co);
	pthread_join(t, &out);
	check_eq(0, INT(out));
	EXPECT_EQ(0, failures);
}

static atomic_int turn;

static int waits_for_turn(void *arg, void **value)
{
	atomic_store(&turn, 1);
	while (atomic_load(&turn) != 2)
		sched_yield();
	return fiber_coro_yield(NULL, NULL);
}

TEST(coro_that_another_thread_runs_is_busy)
{
	fiber_coro_t *co = create(waits_for_turn, NULL);
	pthread_t t;

	turn = 0;
	pthread_create(&t, NULL, resumes_once, co);
	while (atomic_load(&turn) != 1)
		sched_yield();
	check_eq(FIBER_CORO_RUNNING, fiber_coro_status(co));
	check_eq(-EBUSY, fiber_coro_resume(co, NULL, NULL));
	check_eq(-EBUSY, fiber_coro_throw(co, -EIO, NULL));
	check_eq(-EBUSY, fiber_coro_close(co));
	check_eq(-EBUSY, fiber_coro_destroy(co));
	atomic_store(&turn, 2);
	pthread_join(t, NULL);
	check_eq(FIBER_CORO_SUSPENDED, fiber_coro_status(co));
	check_eq(0, fiber_coro_destroy(co));
	EXPECT_EQ(0, failures);
}

/* ---- fibers that park, block and move inside ---- */

/* The user backend's signal may end it early. */
static void blocks(uint64_t ns)
{
	check(!block_ns(ns) || (!on_kernel() && errno == EINTR));
}

/* Yields n, n - 1 ... 1, and lets the fiber do all sorts of things. */
static int restless(void *arg, void **value)
{
	uint32_t seed = (uint32_t)(uintptr_t)arg * 77 + 1;
	fiber_t *me = fiber_self();
	fiber_coro_t *self = fiber_coro_self();

	for (int n = INT(arg); n > 0; n--) {
		switch (next_random(&seed) % 5) {
		case 0: check_eq(0, fiber_sleep(seed % (50 * US))); break;
		case 1: blocks(seed % (50 * US)); break;
		case 2: check_eq(0, INT(join(spawn(resumes_once,
					create(counts, NULL)))) - 1); break;
		default: fiber_yield();
		}
		check(fiber_coro_self() == self);
		check(fiber_self() == me);
		if (fiber_coro_yield(NUM(n), NULL))
			return 0;
		me = fiber_self();
	}
	return 0;
}

/* Resumes `restless` of a smaller number below itself. */
static int restless_below(void *arg, void **value)
{
	fiber_coro_t *co = create(restless, arg);
	void *out;
	int r;

	while ((r = fiber_coro_resume(co, NULL, &out)) == YIELDED)
		if (fiber_coro_yield(out, NULL))
			break;
	fiber_coro_destroy(co);
	return r == YIELDED ? 0 : r;
}

static void *drives(void *arg)
{
	fiber_coro_t *co = create(restless_below, arg);
	int n = INT(arg);
	void *out;

	while (fiber_coro_resume(co, NULL, &out) == YIELDED) {
		check_eq(n--, INT(out));
		check(!fiber_coro_self());
		fiber_yield();
	}
	check_eq(0, n);
	check_eq(0, fiber_coro_destroy(co));
	return NULL;
}

static void *many_drive(void *arg)
{
	fiber_t *f[16];

	for (size_t i = 0; i < ARRAY_SIZE(f); i++)
		f[i] = spawn(drives, NUM(20 + i));
	for (size_t i = 0; i < ARRAY_SIZE(f); i++)
		join(f[i]);
	return NULL;
}

TEST(coro_parks_blocks_and_moves_with_its_fiber)
{
	for (unsigned int n = 1; n <= 3; n++)
		ASSERT_EQ(0, with_runtime(n, 1 * MS, many_drive, NULL));
	EXPECT_EQ(0, failures);
}

/* Every resume by a fiber of its own, on whatever thread. */
static void *relay(void *arg)
{
	fiber_coro_t *co = create(restless_below, NUM(200));

	for (int n = 200; n > 0; n--) {
		check_eq(n, INT(join(spawn(resumes_once, co))));
		if (n == 100)		/* a long way from its first fiber */
			fiber_sleep(1 * MS);
	}
	check_eq(0, fiber_coro_resume(co, NULL, NULL));
	check_eq(0, fiber_coro_destroy(co));
	return NULL;
}

TEST(coro_is_resumed_by_other_fibers)
{
	ASSERT_EQ(0, with_runtime(1, 1 * MS, relay, NULL));
	ASSERT_EQ(0, with_runtime(3, 1 * MS, relay, NULL));
	EXPECT_EQ(0, failures);
}

static void *goes_on(void *arg)
{
	check_eq(2, INT(resumes_once(arg)));
	return NULL;
}

TEST(coro_outlives_runtimes)
{
	fiber_coro_t *co = create(counts, NULL);

	check_eq(1, INT(resumes_once(co)));
	ASSERT_EQ(0, with_runtime(2, 1 * MS, goes_on, co));
	check_eq(3, INT(resumes_once(co)));
	ASSERT_EQ(0, with_runtime(2, 1 * MS, destroys, co));
	EXPECT_EQ(0, failures);
}

/* ---- preemption ---- */

static atomic_int hogs, stop;

/* Never calls into the library: only preemption lets the other run. */
static int hog(void *arg, void **value)
{
	int *count = arg;

	for (;;) {
		atomic_fetch_add(&hogs, 1);
		while (!atomic_load(&stop))
			++*(volatile int *)count;
		if (fiber_coro_yield(NULL, NULL))
			return 0;
	}
}

static void *runs_hog(void *arg)
{
	fiber_coro_t *co = create(hog, arg);

	check_eq(YIELDED, fiber_coro_resume(co, NULL, NULL));
	check_eq(0, fiber_coro_destroy(co));
	return NULL;
}

/* Ready behind the hogs: it stops them when all have begun. */
static void *three_hogs(void *arg)
{
	fiber_t *f[3];
	int count[3] = { 0 };

	atomic_store(&hogs, 0);
	atomic_store(&stop, 0);
	for (int i = 0; i < 3; i++)
		f[i] = spawn(runs_hog, &count[i]);
	while (atomic_load(&hogs) < 3)
		fiber_yield();
	atomic_store(&stop, 1);
	for (int i = 0; i < 3; i++)
		join(f[i]);
	return NULL;
}

TEST(coro_hogs_are_preempted)
{
	static const uint64_t quanta[] = { 50 * US, 200 * US, 1 * MS };

	for (size_t i = 0; i < ARRAY_SIZE(quanta); i++)
		ASSERT_EQ(0, with_runtime(1, quanta[i], three_hogs, NULL));
	EXPECT_EQ(0, failures);
}

struct computing {
	uint32_t seed;
	long rounds, done;
};

/* Values in all registers over many preemptions and switches. */
static int computes(void *arg, void **value)
{
	struct computing *c = arg;
	double sum = 0;
	uint64_t want = c->seed, x = want;

	for (long i = 0; i < c->rounds; i++) {
		sum += (double)i * 0.5;
		x = x * 6364136223846793005ULL + 1;
		if (i % 4096 == 4095) {
			c->done = i;
			if (fiber_coro_yield(NULL, NULL))
				return 0;
		}
	}
	for (long i = 0; i < c->rounds; i++)
		want = want * 6364136223846793005ULL + 1;
	check_eq(want, x);
	check(sum == (double)c->rounds * (double)(c->rounds - 1) / 4);
	return 0;
}

static void *juggles(void *arg)
{
	struct computing c[4];
	fiber_coro_t *co[4];
	int left = 4;

	for (int i = 0; i < 4; i++) {
		c[i] = (struct computing) {
			(uint32_t)(uintptr_t)arg + (uint32_t)i, 200000, 0,
		};
		co[i] = create(computes, &c[i]);
	}
	while (left)
		for (int i = 0; i < 4; i++)
			left -= fiber_coro_resume(co[i], NULL, NULL) == 0;
	for (int i = 0; i < 4; i++)
		check_eq(0, fiber_coro_destroy(co[i]));
	return NULL;
}

static void *many_juggle(void *arg)
{
	fiber_t *f[4];

	for (int i = 0; i < 4; i++)
		f[i] = spawn(juggles, NUM(i * 10));
	for (int i = 0; i < 4; i++)
		join(f[i]);
	return NULL;
}

TEST(coro_keeps_all_registers_when_preempted)
{
	ASSERT_EQ(0, with_runtime(1, 50 * US, many_juggle, NULL));
	ASSERT_EQ(0, with_runtime(2, 100 * US, many_juggle, NULL));
	EXPECT_EQ(0, failures);
}

/* On memory that the module does not know, a resume is the moment. */
static int resumes_until_stopped(void *arg, void **value)
{
	fiber_coro_t *co = create(counts, NULL);

	atomic_fetch_add(&hogs, 1);
	while (!atomic_load(&stop))
		check_eq(YIELDED, fiber_coro_resume(co, NULL, NULL));
	return fiber_coro_destroy(co);
}

static void *on_own_memory(void *arg)
{
	struct fiber_coro_attr attr = {
		.size = sizeof(attr), .stack = arg, .stack_size = 32768,
	};
	fiber_coro_t *co;

	check_eq(0, fiber_coro_create_attr(&co, &attr, resumes_until_stopped,
					   NULL));
	check_eq(0, fiber_coro_resume(co, NULL, NULL));
	check_eq(0, fiber_coro_destroy(co));
	return NULL;
}

static void *two_on_own_memory(void *arg)
{
	static char memory[2][32768];
	fiber_t *f[2];

	atomic_store(&hogs, 0);
	atomic_store(&stop, 0);
	for (int i = 0; i < 2; i++)
		f[i] = spawn(on_own_memory, memory[i]);
	while (atomic_load(&hogs) < 2)
		fiber_yield();
	atomic_store(&stop, 1);
	for (int i = 0; i < 2; i++)
		join(f[i]);
	return NULL;
}

TEST(coro_resume_does_a_put_off_preemption)
{
	ASSERT_EQ(0, with_runtime(1, 200 * US, two_on_own_memory, NULL));
	EXPECT_EQ(0, failures);
}

/* ---- ends ---- */

static int handled;
static fiber_coro_t *left[2];

static void handles(void *arg)
{
	handled = handled * 10 + INT(arg);
	check_eq(-EPERM, fiber_coro_yield(NULL, NULL));
	fiber_yield();
}

static int exits_fiber(void *arg, void **value)
{
	fiber_coro_defer(handles, NUM(2));
	fiber_coro_yield(NULL, NULL);
	fiber_exit(NUM(42));
}

static int exits_below(void *arg, void **value)
{
	fiber_coro_defer(handles, NUM(1));
	left[1] = create(exits_fiber, NULL);
	fiber_coro_resume(left[1], NULL, NULL);
	return fiber_coro_resume(left[1], NULL, NULL);
}

static void *enters(void *arg)
{
	left[0] = create(exits_below, NULL);
	fiber_coro_resume(left[0], NULL, NULL);
	check(!"comes back");
	return NULL;
}

static void *fiber_exits_inside(void *arg)
{
	for (int i = 0; i < 100; i++) {
		handled = 0;
		check_eq(42, INT(join(spawn(enters, NULL))));
		check_eq(21, handled);
		for (int k = 0; k < 2; k++) {
			check_eq(FIBER_CORO_DEAD, fiber_coro_status(left[k]));
			check_eq(-ECANCELED, fiber_coro_result(left[k], NULL));
			check_eq(0, fiber_coro_destroy(left[k]));
		}
		/* The same block again, without a trace. */
		check(!join(spawn(destroys, NULL)));
	}
	return NULL;
}

TEST(coro_dies_with_the_fiber_that_exits_inside)
{
	ASSERT_EQ(0, with_runtime(1, 1 * MS, fiber_exits_inside, NULL));
	ASSERT_EQ(0, with_runtime(2, 1 * MS, fiber_exits_inside, NULL));
	EXPECT_EQ(0, failures);
}

/* The child goes on with it, as a plain thread, and comes out of it. */
static int forks(void *arg, void **value)
{
	int status = -1;
	pid_t pid = fork();

	if (pid)
		check_eq(pid, waitpid(pid, &status, 0));
	else
		*(int *)arg = 1;
	if (fiber_coro_yield(NUM(status), NULL))
		return 0;
	check(*(int *)arg);
	fiber_coro_yield(NUM(7), NULL);
	return 0;
}

static void *runs_forks(void *arg)
{
	int child = 0;
	fiber_coro_t *co = create(forks, &child);
	void *out = NULL;

	check_eq(YIELDED, fiber_coro_resume(co, NULL, &out));
	if (child) {
		check_eq(YIELDED, fiber_coro_resume(co, NULL, &out));
		check_eq(7, INT(out));
		check_eq(0, fiber_coro_destroy(co));
		_exit(failures ? 1 : 23);
	}
	check(WIFEXITED(INT(out)) && WEXITSTATUS(INT(out)) == 23);
	check_eq(0, fiber_coro_destroy(co));
	return NULL;
}

TEST(coro_goes_on_in_the_child_of_a_fork)
{
	runs_forks(NULL);
	ASSERT_EQ(0, with_runtime(2, 1 * MS, runs_forks, NULL));
	EXPECT_EQ(0, failures);
}

TEST_HARNESS_MAIN
