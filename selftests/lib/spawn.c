// SPDX-License-Identifier: GPL-2.0-only
/* Fibers come and go: spawn, join, detach, exit, attributes, names, numbers. */
#include "common.h"

static void *returns_arg(void *arg)
{
	return arg;
}

static void *yields_then_returns(void *arg)
{
	for (int i = 0; i < 5; i++)
		fiber_yield();
	return arg;
}

static void *sleeps_then_returns(void *arg)
{
	check_eq(0, fiber_sleep(5 * MS));
	return arg;
}

static void *blocks_then_returns(void *arg)
{
	check_eq(0, block_ns(5 * MS));
	return arg;
}

static __attribute__((noinline)) void exit_below(void *result)
{
	fiber_exit(result);
}

static void *exits(void *arg)
{
	exit_below(arg);
	return NULL;
}

static void *(*const bodies[])(void *) = {
	returns_arg, yields_then_returns, sleeps_then_returns,
	blocks_then_returns, exits,
};

/* ---- join ---- */

static void *joins_in_all_orders(void *arg)
{
	fiber_t *f[ARRAY_SIZE(bodies)];

	for (size_t i = 0; i < ARRAY_SIZE(bodies); i++)	/* before the end */
		check(join(spawn(bodies[i], &f[i])) == &f[i]);
	for (size_t i = 0; i < ARRAY_SIZE(bodies); i++)	/* after the end */
		f[i] = spawn(bodies[i], &f[i]);
	check_eq(0, fiber_sleep(30 * MS));
	for (size_t i = ARRAY_SIZE(bodies); i-- > 0; )
		check(join(f[i]) == &f[i]);
	check_eq(0, fiber_join(spawn(exits, arg), NULL));
	return NULL;
}

TEST(join_from_a_fiber)
{
	ASSERT_EQ(0, with_runtime(1, 0, joins_in_all_orders, NULL));
	ASSERT_EQ(0, with_runtime(2, 0, joins_in_all_orders, NULL));
	EXPECT_EQ(0, failures);
}

TEST(join_from_a_plain_thread)
{
	fiber_t *f[ARRAY_SIZE(bodies)];

	ASSERT_EQ(0, start(2, 0));
	for (size_t i = 0; i < ARRAY_SIZE(bodies); i++)
		ASSERT_EQ(&f[i], join(spawn(bodies[i], &f[i])));
	for (size_t i = 0; i < ARRAY_SIZE(bodies); i++)
		f[i] = spawn(bodies[i], &f[i]);
	block_ns(30 * MS);
	for (size_t i = 0; i < ARRAY_SIZE(bodies); i++)
		ASSERT_EQ(&f[i], join(f[i]));
	ASSERT_EQ(0, fiber_fini());
	EXPECT_EQ(0, failures);
}

static void *joins_itself(void *arg)
{
	void *result = arg;

	check_eq(-EDEADLK, fiber_join(fiber_self(), &result));
	check(result == arg);
	return arg;
}

TEST(join_of_oneself_is_a_deadlock)
{
	int mark;

	ASSERT_EQ(0, start(1, 0));
	ASSERT_EQ(&mark, join(spawn(joins_itself, &mark)));
	ASSERT_EQ(0, fiber_fini());
	EXPECT_EQ(0, failures);
}

static void *joins_arg(void *arg)
{
	return join(arg);
}

/* A chain: each joins the one before, the first ends last. */
static void *chain(void *arg)
{
	fiber_t *f = spawn(sleeps_then_returns, arg);

	for (int i = 0; i < 100; i++)
		f = spawn(joins_arg, f);
	check(join(f) == arg);
	return NULL;
}

TEST(join_in_a_chain)
{
	int mark;

	ASSERT_EQ(0, with_runtime(1, 0, chain, &mark));
	ASSERT_EQ(0, with_runtime(3, 0, chain, &mark));
	EXPECT_EQ(0, failures);
}

/* ---- detach ---- */

static atomic_int ended;

static void *counts(void *arg)
{
	atomic_fetch_add(&ended, 1);
	return NULL;
}

static void *yields_and_counts(void *arg)
{
	yields_then_returns(arg);
	return counts(arg);
}

static void *sleeps_and_counts(void *arg)
{
	check_eq(0, fiber_sleep(2 * MS));
	return counts(arg);
}

static void *detaches_in_all_orders(void *arg)
{
	fiber_t *f;

	check_eq(0, fiber_detach(spawn(counts, NULL)));		/* after */
	check_eq(0, fiber_detach(spawn(yields_and_counts, NULL)));
	check_eq(0, fiber_detach(spawn(sleeps_and_counts, NULL)));
	check_eq(0, fiber_spawn(NULL, counts, NULL));
	check_eq(0, fiber_spawn(NULL, sleeps_and_counts, NULL));
	f = spawn(sleeps_and_counts, NULL);
	fiber_yield();
	check_eq(0, fiber_detach(f));
	while (atomic_load(&ended) < 6)
		check_eq(0, fiber_sleep(1 * MS));
	return NULL;
}

TEST(detach)
{
	for (unsigned int n = 1; n <= 3; n++) {
		atomic_store(&ended, 0);
		ASSERT_EQ(0, start(n, 0));
		join(spawn(detaches_in_all_orders, NULL));
		ASSERT_EQ(0, fini_soon());
	}
	EXPECT_EQ(0, failures);
}

TEST(detach_from_a_plain_thread)
{
	atomic_store(&ended, 0);
	ASSERT_EQ(0, start(2, 0));
	for (int i = 0; i < 100; i++) {
		check_eq(0, fiber_detach(spawn(sleeps_and_counts, NULL)));
		check_eq(0, fiber_detach(spawn(counts, NULL)));
		check_eq(0, fiber_spawn(NULL, yields_and_counts, NULL));
	}
	while (atomic_load(&ended) < 300)
		block_ns(1 * MS);
	ASSERT_EQ(0, fini_soon());
	EXPECT_EQ(0, failures);
}

/* ---- many ---- */

static void *fib(void *arg)
{
	long n = (long)arg;
	fiber_t *f;

	if (n < 2)
		return (void *)n;
	f = spawn(fib, (void *)(n - 1));
	n = (long)fib((void *)(n - 2));
	return (void *)(n + (long)join(f));
}

static void run_fib(struct __test_metadata *_metadata, unsigned int processors)
{
	struct fiber_stats st;
	long n = in_vm() ? 18 : 22, want = in_vm() ? 2584 : 17711;
	uint64_t t;

	ASSERT_EQ(0, start(processors, 0));
	t = now_ns();
	ASSERT_EQ(want, (long)join(spawn(fib, (void *)n)));
	t = now_ns() - t;
	st = stats();
	EXPECT_EQ(st.spawned, st.ended);
	figure("fib(%ld) on %u: %.1f ms, %lu spawned, %lu steals\n", n,
	       processors, (double)t / 1e6, st.spawned, st.steals);
	ASSERT_EQ(0, fiber_fini());
	EXPECT_EQ(0, failures);
}

TEST(fib_on_one_processor) { run_fib(_metadata, 1); }
TEST(fib_on_two_processors) { run_fib(_metadata, 2); }
TEST(fib_on_four_processors) { run_fib(_metadata, 4); }

static atomic_ulong sum;

static void *adds(void *arg)
{
	fiber_yield();
	atomic_fetch_add(&sum, (unsigned long)arg);
	return arg;
}

/* 100,000 fibers, 2,000 at a time: their stacks must be used again. */
static void *waves(void *arg)
{
	static fiber_t *f[2000];
	size_t n = ARRAY_SIZE(f);

	for (unsigned long wave = 0; wave < 50; wave++) {
		for (size_t i = 0; i < n; i++)
			f[i] = spawn(adds, (void *)(wave * n + i));
		for (size_t i = 0; i < n; i++)
			check_eq(wave * n + i, (unsigned long)join(f[i]));
	}
	return NULL;
}

TEST(many_in_waves_with_little_memory)
{
	atomic_store(&sum, 0);
	cap_memory(RLIMIT_DATA, 400UL << 20);
	ASSERT_EQ(0, with_runtime(2, 0, waves, NULL));
	ASSERT_EQ(100000UL * 99999 / 2, sum);
	EXPECT_EQ(0, failures);
}

static void *parks(void *arg)
{
	while (!atomic_load((atomic_int *)arg))
		check_eq(0, fiber_sleep(20 * MS));
	return NULL;
}

/* Spawns until memory is gone; the runtime must go on when it came back. */
static void *spawns_until_enomem(void *arg)
{
	static fiber_t *f[20000];
	static atomic_int go;
	size_t n = 0;
	int r = 0;

	while (n < ARRAY_SIZE(f) && !(r = fiber_spawn(&f[n], parks, &go)))
		n++;
	check_eq(-ENOMEM, r);
	check(n > 100);
	atomic_store(&go, 1);
	while (n > 0)
		join(f[--n]);
	check(join(spawn(returns_arg, &n)) == &n);
	return NULL;
}

TEST(out_of_memory_is_an_error)
{
	cap_memory(RLIMIT_DATA, 256UL << 20);
	ASSERT_EQ(0, with_runtime(1, 0, spawns_until_enomem, NULL));
	EXPECT_EQ(0, failures);
}

static void *spawns_from_outside(void *arg)
{
	for (unsigned long i = 0; i < 1000; i++)
		check_eq(i, (unsigned long)join(spawn(adds, (void *)i)));
	return NULL;
}

TEST(spawn_from_four_plain_threads)
{
	pthread_t thread[4];
	struct fiber_stats st;

	ASSERT_EQ(0, start(2, 0));
	for (int i = 0; i < 4; i++)
		ASSERT_EQ(0, pthread_create(&thread[i], NULL,
					    spawns_from_outside, NULL));
	for (int i = 0; i < 4; i++)
		ASSERT_EQ(0, pthread_join(thread[i], NULL));
	st = stats();
	EXPECT_EQ(4000, st.spawned);
	EXPECT_EQ(4000, st.ended);
	ASSERT_EQ(0, fiber_fini());
	EXPECT_EQ(0, failures);
}

/* ---- attributes, names, numbers ---- */

TEST(attributes_are_checked)
{
	struct fiber_attr attr = { .size = 0, .name = "x" };
	fiber_t *f = NULL;

	ASSERT_EQ(0, start(1, 0));
	EXPECT_EQ(-EINVAL, fiber_spawn_attr(&f, &attr, returns_arg, NULL));
	attr.size = 1;
	EXPECT_EQ(-EINVAL, fiber_spawn_attr(&f, &attr, returns_arg, NULL));
	attr.size = sizeof(attr);
	attr.stack_size = SIZE_MAX / 2;
	EXPECT_GT(0, fiber_spawn_attr(&f, &attr, returns_arg, NULL));
	EXPECT_EQ(NULL, f);
	attr.stack_size = 1;
	ASSERT_EQ(0, fiber_spawn_attr(&f, &attr, returns_arg, &attr));
	ASSERT_EQ(&attr, join(f));
	ASSERT_EQ(0, fiber_spawn_attr(&f, NULL, returns_arg, &attr));
	ASSERT_EQ(&attr, join(f));
	EXPECT_EQ(-EINVAL, fiber_spawn(&f, NULL, NULL));
	ASSERT_EQ(0, fiber_fini());
	EXPECT_EQ(0, failures);
}

static atomic_int renamed;

static void *looks_at_its_name(void *arg)
{
	check(!strcmp(fiber_name(fiber_self()), arg));
	check_eq(0, fiber_set_name(fiber_self(), "a name that is too long"));
	check(!strcmp(fiber_name(fiber_self()), "a name that is "));
	atomic_store(&renamed, 1);
	while (atomic_load(&renamed) == 1)
		fiber_yield();
	return NULL;
}

/* Between any two of its steps another may have a turn. */
static void wait_until_renamed(void)
{
	while (!atomic_load(&renamed))
		fiber_yield();
}

static void *names(void *arg)
{
	struct fiber_attr attr = { .size = sizeof(attr), .name = "worker" };
	fiber_t *f, *g;

	check_eq(0, fiber_spawn_attr(&f, &attr, looks_at_its_name, "worker"));
	wait_until_renamed();
	check(!strcmp(fiber_name(f), "a name that is "));
	check_eq(0, fiber_set_name(f, "mine"));
	check(!strcmp(fiber_name(f), "mine"));
	atomic_store(&renamed, 0);
	join(f);
	attr.name = "0123456789abcdefgh";
	check_eq(0, fiber_spawn_attr(&g, &attr, looks_at_its_name,
				     "0123456789abcde"));
	wait_until_renamed();
	check(!strcmp(fiber_name(g), "a name that is "));
	atomic_store(&renamed, 0);
	join(g);
	f = spawn(looks_at_its_name, "");
	wait_until_renamed();
	atomic_store(&renamed, 0);
	join(f);
	return NULL;
}

TEST(names_are_kept)
{
	ASSERT_EQ(0, with_runtime(1, 0, names, NULL));
	EXPECT_EQ(0, failures);
}

static void *own_id(void *arg)
{
	return (void *)fiber_id(fiber_self());
}

static void *ids(void *arg)
{
	enum { n = 5000 };
	static uint64_t id[n];
	static fiber_t *f[10];

	for (int i = 0; i < n; i += 10) {
		for (int k = 0; k < 10; k++) {
			f[k] = spawn(own_id, NULL);
			id[i + k] = fiber_id(f[k]);
		}
		for (int k = 0; k < 10; k++)
			check_eq(id[i + k], (uint64_t)join(f[k]));
	}
	qsort(id, n, sizeof(id[0]), compare_u64);
	check(id[0] >= 1);
	for (int i = 1; i < n; i++)
		check(id[i] != id[i - 1]);
	check(fiber_id(fiber_self()) != id[0]);
	return NULL;
}

TEST(numbers_are_never_used_again)
{
	ASSERT_EQ(0, with_runtime(3, 0, ids, NULL));
	EXPECT_EQ(0, failures);
}

/* ---- mistakes that would cost another fiber its stack: fatal ---- */

static void *joins_twice(void *arg)
{
	fiber_t *f = spawn(returns_arg, arg);

	fiber_join(f, NULL);
	fiber_join(f, NULL);
	return arg;
}

static void *joins_then_detaches(void *arg)
{
	fiber_t *f = spawn(yields_then_returns, arg);

	fiber_join(f, NULL);
	fiber_detach(f);
	return arg;
}

static atomic_bool it_ended;

static void *says_when_it_ends(void *arg)
{
	fiber_yield();
	it_ended = true;
	return arg;
}

static void *joins_a_detached_one(void *arg)
{
	fiber_t *f = spawn(says_when_it_ends, arg);

	fiber_detach(f);
	while (!it_ended)
		fiber_yield();
	fiber_sleep(MS);
	fiber_join(f, NULL);
	return arg;
}

static void *ends_what_never_began(void *arg)
{
	fiber_no_preempt_end();
	return arg;
}

static void *does_nothing(void *arg)
{
	return arg;
}

/* The signal that ends a process which does this in its second run; 0: none. */
static int killed_by(void *(*fn)(void *))
{
	int status = 0;
	pid_t pid = fork();

	if (!pid) {
		with_runtime(1, 0, does_nothing, NULL);
		with_runtime(1, 0, fn, NULL);
		_exit(0);
	}
	waitpid(pid, &status, 0);
	return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

TEST(second_join_or_detach)
{
	EXPECT_EQ(SIGABRT, killed_by(joins_twice));
	EXPECT_EQ(SIGABRT, killed_by(joins_then_detaches));
	EXPECT_EQ(SIGABRT, killed_by(joins_a_detached_one));
}

TEST(no_preempt_end_without_begin)
{
	EXPECT_EQ(SIGABRT, killed_by(ends_what_never_began));
}

static void *exits_its_thread(void *arg)
{
	pthread_exit(arg);
}

/* Not a processor lost, and a joiner that waits for ever. */
TEST(pthread_exit_in_a_fiber)
{
	EXPECT_EQ(SIGABRT, killed_by(exits_its_thread));
}

TEST(no_fiber)
{
	EXPECT_EQ(0, fiber_id(NULL));
	EXPECT_STREQ("", fiber_name(NULL));
	EXPECT_EQ(-EINVAL, fiber_set_name(NULL, "x"));
	EXPECT_EQ(-EINVAL, fiber_join(NULL, NULL));
	EXPECT_EQ(-EINVAL, fiber_detach(NULL));
}

/* ---- statistics ---- */

TEST(statistics_count)
{
	struct fiber_stats st = { .size = 1 };

	ASSERT_EQ(0, start(2, 0));
	EXPECT_GT(0, fiber_get_stats(&st));
	for (int i = 0; i < 10; i++)
		join(spawn(yields_then_returns, NULL));
	st = stats();
	EXPECT_EQ(10, st.spawned);
	EXPECT_EQ(10, st.ended);
	EXPECT_EQ(2, st.processors);
	EXPECT_LE(1, st.carriers);
	EXPECT_LE(10, st.switches);
	ASSERT_EQ(0, fiber_fini());
	EXPECT_EQ(0, failures);
}

TEST_HARNESS_MAIN
