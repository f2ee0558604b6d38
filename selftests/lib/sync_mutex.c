// SPDX-License-Identifier: GPL-2.0-only
/* Mutexes: exclusion, fairness, deadlines, recursion, misuse. */
#include "common.h"

/* ---- exclusion ---- */

enum { SIDES = 12, EACH = 4000 };

static struct {
	fiber_mutex_t m;
	long inside, count;		/* m; plain on purpose */
	unsigned int kind;		/* of traffic: see one_round */
} box;

static void enter_and_leave(long i, bool fiber)
{
	long before = box.count;

	check_eq(0, box.inside);
	box.inside = 1;
	if (fiber && i % 64 == 0)
		fiber_yield();
	else if (i % 701 == 0)
		sched_yield();
	box.inside = 0;
	box.count = before + 1;
}

/* By lock, try or deadline, as the turn comes. */
static void lock_somehow(long i)
{
	int r;

	switch (box.kind ? i % 4 : 0) {
	case 0:
	case 1:
		check_eq(0, fiber_mutex_lock(&box.m));
		return;
	case 2:
		while ((r = fiber_mutex_try_lock(&box.m)) == -EAGAIN)
			fiber_self() ? fiber_yield() : (void)sched_yield();
		check_eq(0, r);
		return;
	default:
		while ((r = fiber_mutex_lock_until(&box.m, fiber_now() +
				(uint64_t)i * 37 % 5000)) == -ETIMEDOUT)
			;
		check_eq(0, r);
	}
}

static void *locks(void *arg)
{
	bool fiber = fiber_self();

	for (long i = 0; i < EACH; i++) {
		lock_somehow(i + (long)arg);
		enter_and_leave(i, fiber);
		check_eq(0, fiber_mutex_unlock(&box.m));
	}
	return NULL;
}

FIXTURE(exclusion) {};
FIXTURE_SETUP(exclusion) {}
FIXTURE_TEARDOWN(exclusion) {}
FIXTURE_VARIANT(exclusion) {
	unsigned int processors, fibers, threads, kind;
	uint64_t quantum;
};
FIXTURE_VARIANT_ADD(exclusion, one) { 1, SIDES, 0, 0, 200 * US };
FIXTURE_VARIANT_ADD(exclusion, one_mixed_calls) { 1, SIDES, 0, 1, 50 * US };
FIXTURE_VARIANT_ADD(exclusion, two) { 2, SIDES, 0, 0, 50 * US };
FIXTURE_VARIANT_ADD(exclusion, two_mixed_calls) { 2, SIDES, 0, 1, 200 * US };
FIXTURE_VARIANT_ADD(exclusion, three_mixed_calls) { 3, SIDES, 0, 1, 100 * US };
FIXTURE_VARIANT_ADD(exclusion, threads_alone) { 0, 0, 4, 1, 0 };
FIXTURE_VARIANT_ADD(exclusion, one_with_threads) { 1, 6, 3, 1, 200 * US };
FIXTURE_VARIANT_ADD(exclusion, two_with_threads) { 2, 6, 3, 1, 200 * US };

static void crowd(unsigned int fibers, unsigned int threads)
{
	pthread_t t[SIDES];
	fiber_t *f[SIDES];

	for (long i = 0; i < fibers; i++)
		f[i] = spawn(locks, (void *)i);
	for (long i = 0; i < threads; i++)
		check_eq(0, pthread_create(&t[i], NULL, locks, (void *)i));
	for (long i = 0; i < fibers; i++)
		join(f[i]);
	for (long i = 0; i < threads; i++)
		pthread_join(t[i], NULL);
	check_eq((fibers + threads) * EACH, box.count);
	check_eq(0, fiber_mutex_destroy(&box.m));
}

TEST_F(exclusion, holds)
{
	box.kind = variant->kind;
	if (variant->processors)
		ASSERT_EQ(0, start(variant->processors, variant->quantum));
	crowd(variant->fibers, variant->threads);
	if (variant->processors)
		ASSERT_EQ(0, fiber_fini());
	EXPECT_EQ(0, failures);
}

/* ---- fairness ---- */

static atomic_bool hog_ends;
static atomic_long turns;
static fiber_mutex_t wanted = FIBER_MUTEX_INIT;

/* Holds it nearly all the time, and parks inside. */
static void *hogs_with_yield(void *arg)
{
	while (!hog_ends) {
		check_eq(0, fiber_mutex_lock(&wanted));
		atomic_fetch_add(&turns, 1);
		fiber_yield();
		check_eq(0, fiber_mutex_unlock(&wanted));
	}
	return arg;
}

static void *hogs(void *arg)
{
	while (!hog_ends) {
		check_eq(0, fiber_mutex_lock(&wanted));
		atomic_fetch_add(&turns, 1);
		for (volatile int i = 0; i < 2000; i++)
			;
		check_eq(0, fiber_mutex_unlock(&wanted));
	}
	return arg;
}

/* One processor: the hog gets it twice, at most, for each of ours. */
static void *is_served_in_turn(void *arg)
{
	uint64_t preempted;
	long before, most = 0;
	fiber_t *f;

	hog_ends = false;
	f = spawn(hogs_with_yield, NULL);
	for (int i = 0; i < 300; i++) {
		preempted = stats().preemptions;
		before = turns;
		check_eq(0, fiber_mutex_lock(&wanted));
		/* Who is preempted here, by a slow host, waits a quantum. */
		if (preempted == stats().preemptions && turns - before > most)
			most = turns - before;
		check_eq(0, fiber_mutex_unlock(&wanted));
		fiber_yield();
	}
	figure("the hog had at most %ld turns between\n", most);
	check(most <= 3);
	hog_ends = true;
	join(f);
	return arg;
}

TEST(hog_that_parks_inside_shares_one_processor)
{
	ASSERT_EQ(0, in_turn(is_served_in_turn, NULL));
	EXPECT_EQ(0, failures);
}

static void *is_served(void *arg)
{
	fiber_t *f = spawn(arg ? hogs_with_yield : hogs, NULL);

	for (int i = 0; i < 50; i++) {
		check_eq(0, fiber_mutex_lock(&wanted));
		check_eq(0, fiber_mutex_unlock(&wanted));
	}
	hog_ends = true;
	join(f);
	return NULL;
}

/* Else it never ends. */
TEST(hog_starves_nobody)
{
	ASSERT_EQ(0, with_runtime(1, 100 * US, is_served, NULL));
	hog_ends = false;
	ASSERT_EQ(0, with_runtime(2, 200 * US, is_served, NULL));
	hog_ends = false;
	ASSERT_EQ(0, with_runtime(2, 10 * MS, is_served, (void *)1));
	EXPECT_EQ(0, failures);
}

/* Fibers that wait get it in their order. */
static int order[64], ordered;

static void *takes_a_number(void *arg)
{
	check_eq(0, fiber_mutex_lock(&wanted));
	order[ordered++] = (int)(long)arg;
	check_eq(0, fiber_mutex_unlock(&wanted));
	return NULL;
}

static void *in_order(void *arg)
{
	fiber_t *f[64];

	ordered = 0;
	check_eq(0, fiber_mutex_lock(&wanted));
	for (long i = 0; i < 64; i++)
		f[i] = spawn(takes_a_number, (void *)i);
	check_eq(0, fiber_mutex_unlock(&wanted));
	for (long i = 0; i < 64; i++) {
		join(f[i]);
		check_eq(i, order[i]);
	}
	return arg;
}

TEST(waiters_get_it_in_order)
{
	ASSERT_EQ(0, in_turn(in_order, NULL));
	EXPECT_EQ(0, failures);
}

/* ---- very many ---- */

enum { MANY = VERY_MANY };

static fiber_t *many[MANY];
static long counted;			/* wanted */

static void *counts(void *arg)
{
	int r = 0;

	if ((long)arg % 3 == 2)		/* leaves early, or late enough */
		r = fiber_mutex_lock_until(&wanted, fiber_now() +
					   (uint64_t)(long)arg * US);
	else
		check_eq(0, fiber_mutex_lock(&wanted));
	if (r == -ETIMEDOUT)
		return NULL;
	check_eq(0, r);
	counted++;
	check_eq(0, fiber_mutex_unlock(&wanted));
	return (void *)1;
}

static void *ten_thousand(void *arg)
{
	long served = 0;

	counted = 0;
	check_eq(0, fiber_mutex_lock(&wanted));
	for (long i = 0; i < MANY; i++)
		many[i] = spawn(counts, (void *)i);
	check_eq(0, fiber_sleep(2 * MS));
	check_eq(0, fiber_mutex_unlock(&wanted));
	for (long i = 0; i < MANY; i++)
		served += (long)join(many[i]);
	check_eq(served, counted);
	check(served >= MANY / 3 * 2);
	check_eq(0, fiber_mutex_destroy(&wanted));
	return arg;
}

TEST(ten_thousand_wait)
{
	ASSERT_EQ(0, with_runtime(1, 0, ten_thousand, NULL));
	ASSERT_EQ(0, with_runtime(2, 200 * US, ten_thousand, NULL));
	EXPECT_EQ(0, failures);
}

/* ---- deadlines ---- */

static void *comes_too_late(void *arg)
{
	uint64_t t = fiber_now() + 2 * MS;

	check_eq(-EAGAIN, fiber_mutex_try_lock(&wanted));
	check_eq(-ETIMEDOUT, fiber_mutex_lock_until(&wanted, 0));
	check_eq(-ETIMEDOUT, fiber_mutex_lock_until(&wanted, 1));
	check_eq(-ETIMEDOUT, fiber_mutex_lock_until(&wanted, t));
	check(fiber_now() >= t);
	return arg;
}

static void *deadlines(void *arg)
{
	pthread_t t;

	check_eq(0, fiber_mutex_lock_until(&wanted, 0));	/* free */
	join(spawn(comes_too_late, NULL));
	check_eq(0, pthread_create(&t, NULL, comes_too_late, NULL));
	while (pthread_tryjoin_np(t, NULL))
		fiber_sleep(MS);
	check_eq(0, fiber_mutex_unlock(&wanted));
	check_eq(0, fiber_mutex_lock_until(&wanted, 1));
	check_eq(0, fiber_mutex_unlock(&wanted));
	check_eq(0, fiber_mutex_destroy(&wanted));
	return arg;
}

TEST(deadline_passes)
{
	ASSERT_EQ(0, with_runtime(1, 0, deadlines, NULL));
	ASSERT_EQ(0, with_runtime(2, 0, deadlines, NULL));
	EXPECT_EQ(0, failures);
}

/* ---- recursion ---- */

static fiber_mutex_t deep = FIBER_MUTEX_RECURSIVE_INIT;

static void *tries_in_vain(void *arg)
{
	check_eq(-EAGAIN, fiber_mutex_try_lock(&deep));
	return arg;
}

static void *recursion(void *arg)
{
	for (int i = 0; i < 5; i++)
		check_eq(0, i % 2 ? fiber_mutex_try_lock(&deep) :
				    fiber_mutex_lock(&deep));
	for (int i = 0; i < 5; i++) {
		join(spawn(tries_in_vain, NULL));
		check_eq(0, fiber_mutex_unlock(&deep));
	}
	check_eq(-EPERM, fiber_mutex_unlock(&deep));
	check_eq(0, fiber_mutex_destroy(&deep));
	return arg;
}

static void *deep_worker(void *arg)
{
	for (int i = 0; i < 1000; i++) {
		for (int k = 0; k < 3; k++)
			check_eq(0, fiber_mutex_lock(&deep));
		counted++;
		if (i % 50 == 0)
			fiber_yield();
		for (int k = 0; k < 3; k++)
			check_eq(0, fiber_mutex_unlock(&deep));
	}
	return arg;
}

static void *deep_crowd(void *arg)
{
	fiber_t *f[8];

	counted = 0;
	for (int i = 0; i < 8; i++)
		f[i] = spawn(deep_worker, NULL);
	for (int i = 0; i < 8; i++)
		join(f[i]);
	check_eq(8000, counted);
	check_eq(0, fiber_mutex_destroy(&deep));
	return arg;
}

TEST(recursive_one_counts)
{
	fiber_mutex_t m;

	ASSERT_EQ(0, with_runtime(1, 0, recursion, NULL));
	ASSERT_EQ(0, with_runtime(2, 100 * US, deep_crowd, NULL));
	EXPECT_EQ(-EINVAL, fiber_mutex_init(&m, 2));
	EXPECT_EQ(0, fiber_mutex_init(&m, FIBER_MUTEX_RECURSIVE));
	EXPECT_EQ(0, fiber_mutex_lock(&m));
	EXPECT_EQ(0, fiber_mutex_lock(&m));
	EXPECT_EQ(0, failures);
}

/* ---- misuse ---- */

static void *unlocks_anothers(void *arg)
{
	check_eq(-EPERM, fiber_mutex_unlock(&wanted));
	check_eq(-EBUSY, fiber_mutex_destroy(&wanted));
	return arg;
}

static void *misuses(void *arg)
{
	check_eq(-EPERM, fiber_mutex_unlock(&wanted));
	check_eq(0, fiber_mutex_lock(&wanted));
	check_eq(-EDEADLK, fiber_mutex_lock(&wanted));
	check_eq(-EDEADLK, fiber_mutex_lock_until(&wanted, fiber_now()));
	check_eq(-EAGAIN, fiber_mutex_try_lock(&wanted));
	if (fiber_self())
		join(spawn(unlocks_anothers, NULL));
	check_eq(0, fiber_mutex_unlock(&wanted));
	check_eq(0, fiber_mutex_destroy(&wanted));
	return arg;
}

TEST(misuse_is_answered)
{
	misuses(NULL);
	ASSERT_EQ(0, with_runtime(1, 0, misuses, NULL));
	ASSERT_EQ(0, with_runtime(2, 0, misuses, NULL));
	EXPECT_EQ(0, failures);
}

static void *waits_named(void *arg)
{
	fiber_set_name(fiber_self(), "the-waiter");
	check_eq(0, fiber_mutex_lock(&wanted));
	return arg;
}

/* As the compiler calls its own version of a function. */
__attribute__((noinline)) static int unlock_version(fiber_mutex_t *m)
	__asm__("unlock_version.constprop.0");

static int unlock_version(fiber_mutex_t *m)
{
	int r = fiber_mutex_unlock(m);	/* aborts */

	check_eq(0, r);		/* no tail call */
	return r;
}

static void *unlocks_named(void *arg)
{
	fiber_set_name(fiber_self(), "the-intruder");
	spawn(waits_named, NULL);
	fiber_sleep(MS);
	unlock_version(&wanted);
	return arg;
}

static void *owns_named(void *arg)
{
	fiber_set_name(fiber_self(), "the-owner");
	check_eq(0, fiber_mutex_lock(&wanted));
	join(spawn(unlocks_named, NULL));
	return arg;
}

TEST(misuse_is_told_with_names_and_stack)
{
	char text[8192];
	ssize_t n, got = 0;
	int p[2], status;
	pid_t pid;

	ASSERT_EQ(0, pipe(p));
	pid = fork();
	if (!pid) {
		struct rlimit none = { 0, 0 };

		setrlimit(RLIMIT_CORE, &none);
		dup2(p[1], STDERR_FILENO);
		setenv("FIBER_CHECK", "1", 1);
		with_runtime(1, 0, owns_named, NULL);
		_exit(0);
	}
	close(p[1]);
	while ((n = read(p[0], text + got, sizeof(text) - 1 - got)) > 0)
		got += n;
	text[got] = 0;
	ASSERT_EQ(pid, waitpid(pid, &status, 0));
	ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
	ASSERT_NE(NULL, strstr(text, "fiber_mutex_unlock"));
	ASSERT_NE(NULL, strstr(text, "caller: fiber"));
	ASSERT_NE(NULL, strstr(text, "'the-intruder'"));
	ASSERT_NE(NULL, strstr(text, "'the-owner'"));
	ASSERT_NE(NULL, strstr(text, "'the-waiter', waits: mutex"));
	ASSERT_NE(NULL, strstr(text, "    unlocks_named+0x"));	/* of .symtab */
	ASSERT_NE(NULL, strstr(text, "    unlock_version\n"));
}

/* ---- who finds itself the last may free it ---- */

struct shared {
	fiber_mutex_t m;
	int refs;
	char poison[64];
};

static void *drops(void *arg)
{
	struct shared *s = arg;
	bool last;

	check_eq(0, fiber_mutex_lock(&s->m));
	last = !--s->refs;
	check_eq(0, fiber_mutex_unlock(&s->m));
	if (last) {
		memset(s, 0xee, sizeof(*s));
		free(s);
	}
	return NULL;
}

static void *tries_to_drop(void *arg)
{
	struct shared *s = arg;

	while (fiber_mutex_lock_until(&s->m, fiber_now() + 500))
		;
	s->refs++;		/* so that drops() counts us once */
	check_eq(0, fiber_mutex_unlock(&s->m));
	drops(s);
	return drops(s);
}

static void *last_one_frees(void *arg)
{
	fiber_t *f[4];

	for (int i = 0; i < 3000; i++) {
		struct shared *s = calloc(1, sizeof(*s));

		s->refs = 4;
		for (int k = 0; k < 4; k++)
			f[k] = spawn(k % 2 ? tries_to_drop : drops, s);
		for (int k = 0; k < 4; k++)
			join(f[k]);
	}
	return arg;
}

TEST(last_one_frees_it)
{
	ASSERT_EQ(0, with_runtime(2, 50 * US, last_one_frees, NULL));
	ASSERT_EQ(0, with_runtime(3, 50 * US, last_one_frees, NULL));
	EXPECT_EQ(0, failures);
}

TEST_HARNESS_MAIN
