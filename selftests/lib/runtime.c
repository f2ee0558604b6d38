// SPDX-License-Identifier: GPL-2.0-only
/* Starting and stopping the runtime: run, init, fini, environment, fork. */
#include <sys/mount.h>

#include "common.h"

/* ---- fiber_run ---- */

static int main_returns(void *arg)
{
	check(fiber_self() != NULL);
	check(fiber_id(fiber_self()) >= 1);
	return *(int *)arg;
}

TEST(run_returns_what_main_returned)
{
	int want[] = { 0, 42, 127, -5 };

	clean_environment();
	ASSERT_EQ(NULL, fiber_self());
	for (size_t i = 0; i < ARRAY_SIZE(want); i++)
		ASSERT_EQ(want[i], fiber_run(main_returns, &want[i]));
	ASSERT_EQ(NULL, fiber_self());
	EXPECT_EQ(0, failures);
}

static int main_nested(void *arg)
{
	int n = 0;

	check_eq(-EBUSY, fiber_run(main_returns, &n));
	check_eq(-EBUSY, fiber_init(NULL));
	return 3;
}

TEST(run_in_a_fiber_is_busy)
{
	clean_environment();
	ASSERT_EQ(3, fiber_run(main_nested, NULL));
	EXPECT_EQ(0, failures);
}

static void *sleeps_for_ever(void *arg)
{
	fiber_sleep(1000 * SEC);
	return NULL;
}

static void *reads_for_ever(void *arg)
{
	char byte;

	check_eq(1, read(*(int *)arg, &byte, 1));
	return NULL;
}

static int main_abandons(void *arg)
{
	for (int i = 0; i < 20; i++) {
		check_eq(0, fiber_spawn(NULL, sleeps_for_ever, NULL));
		check_eq(0, fiber_spawn(NULL, reads_for_ever, arg));
	}
	return 9;
}

TEST(run_abandons_living_fibers)
{
	uint64_t t = now_ns();
	int fds[2];

	clean_environment();
	ASSERT_EQ(0, pipe(fds));
	ASSERT_EQ(9, fiber_run(main_abandons, &fds[0]));
	EXPECT_LT(now_ns() - t, PATIENCE * SEC);	/* they sleep for 1000 s */
	EXPECT_EQ(-EBUSY, fiber_run(main_abandons, &fds[0]));
	EXPECT_EQ(0, failures);
}

static void *plain_run(void *arg)
{
	int n = 0;

	check_eq(-EBUSY, fiber_run(main_returns, &n));
	return NULL;
}

static int main_lets_thread_run(void *arg)
{
	pthread_t thread;

	check_eq(0, pthread_create(&thread, NULL, plain_run, NULL));
	check_eq(0, pthread_join(thread, NULL));
	return 1;
}

TEST(run_from_another_thread_is_busy)
{
	clean_environment();
	ASSERT_EQ(1, fiber_run(main_lets_thread_run, NULL));
	EXPECT_EQ(0, failures);
}

/* ---- the embedding form ---- */

static void *returns_arg(void *arg)
{
	return arg;
}

static void *waits_for_flag(void *arg)
{
	while (!atomic_load((atomic_int *)arg))
		fiber_yield();
	return NULL;
}

TEST(init_and_fini)
{
	static atomic_int go;
	fiber_t *f;

	ASSERT_GT(0, fiber_fini());
	ASSERT_EQ(0, start(2, 0));
	ASSERT_EQ(-EBUSY, fiber_init(NULL));
	ASSERT_EQ(0, fiber_spawn(&f, waits_for_flag, &go));
	ASSERT_EQ(-EBUSY, fiber_fini());
	atomic_store(&go, 1);
	ASSERT_EQ(0, fiber_join(f, NULL));
	ASSERT_EQ(0, fiber_fini());
	ASSERT_GT(0, fiber_fini());
	ASSERT_EQ(-EPERM, fiber_spawn(&f, returns_arg, NULL));
}

TEST(init_and_fini_again_and_again)
{
	long before = thread_count();
	int rounds = in_vm() ? 10 : 50;
	void *result;
	fiber_t *f;

	for (int i = 1; i <= rounds; i++) {
		ASSERT_EQ(0, start(1 + i % 4, 0));
		ASSERT_EQ(0, fiber_spawn(&f, returns_arg, &before));
		ASSERT_EQ(0, fiber_join(f, &result));
		ASSERT_EQ(&before, result);
		ASSERT_EQ(0, fiber_fini());
		ASSERT_TRUE(thread_count_becomes(before));
	}
}

TEST(calls_without_a_runtime)
{
	struct fiber_stats st = { .size = sizeof(st) };
	uint64_t t = now_ns();
	fiber_t *f;

	ASSERT_EQ(-EPERM, fiber_spawn(&f, returns_arg, NULL));
	ASSERT_EQ(-EPERM, fiber_spawn(NULL, returns_arg, NULL));
	ASSERT_EQ(0, fiber_features());
	ASSERT_EQ(-EPERM, fiber_preemptible((void *)returns_arg));
	ASSERT_GE(0, fiber_get_stats(&st));
	ASSERT_NE(NULL, fiber_backend());
	fiber_yield();
	fiber_no_preempt_begin();
	fiber_no_preempt_end();
	fiber_blocking_begin();
	fiber_blocking_end();
	ASSERT_EQ(0, fiber_sleep(2 * MS));
	ASSERT_EQ(0, fiber_sleep_until(now_ns() + 2 * MS));
	ASSERT_LE(4 * MS, now_ns() - t);
	ASSERT_LE(t, fiber_now());
}

TEST(config_of_wrong_size)
{
	struct fiber_config cfg = { .size = 1 };

	clean_environment();
	ASSERT_EQ(-EINVAL, fiber_init(&cfg));
	cfg.size = 0;
	ASSERT_EQ(-EINVAL, fiber_init(&cfg));
	cfg.size = sizeof(cfg);
	cfg.stack_size = 1ul << 40;
	ASSERT_EQ(-EINVAL, fiber_init(&cfg));
	cfg.stack_size = 0;
	ASSERT_EQ(0, fiber_init(&cfg));
	ASSERT_EQ(0, fiber_fini());
}

TEST(features_and_backend_agree)
{
	const char *line;

	ASSERT_EQ(0, start(1, 0));
	line = fiber_backend();
	ASSERT_NE(NULL, line);
	figure("%s\n", line);
	if (on_kernel()) {
		ASSERT_NE(NULL, strstr(line, "kernel"));
		ASSERT_EQ(FIBER_FEATURE_EXACT | FIBER_FEATURE_NO_SIGNAL |
			  FIBER_FEATURE_HANDOFF | FIBER_FEATURE_PREEMPT,
			  fiber_features() &
			  (FIBER_FEATURE_EXACT | FIBER_FEATURE_NO_SIGNAL |
			   FIBER_FEATURE_HANDOFF | FIBER_FEATURE_PREEMPT));
	} else {
		ASSERT_NE(NULL, strstr(line, "user"));
		ASSERT_EQ(0, fiber_features() & (FIBER_FEATURE_EXACT |
						 FIBER_FEATURE_NO_SIGNAL));
	}
	if (getenv("FIBER_BACKEND")) {
		ASSERT_EQ(!strcmp(getenv("FIBER_BACKEND"), "kernel"),
			  on_kernel());
	}
	ASSERT_EQ(0, fiber_fini());
}

/* ---- environment ---- */

TEST(bad_environment_is_an_error)
{
	const char *bad[] = { "abc", "0", "-1", "1x", "99999999999" };
	int n = 0;

	clean_environment();
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		setenv("FIBER_PROCESSORS", bad[i], 1);
		EXPECT_GT(0, fiber_init(NULL))
			TH_LOG("FIBER_PROCESSORS='%s'", bad[i]);
		EXPECT_GT(0, fiber_run(main_returns, &n))
			TH_LOG("FIBER_PROCESSORS='%s'", bad[i]);
	}
	unsetenv("FIBER_PROCESSORS");
	setenv("FIBER_BACKEND", "nonsense", 1);
	EXPECT_GT(0, fiber_init(NULL));
}

TEST(environment_sets_processors)
{
	struct fiber_config cfg = { .size = sizeof(cfg), .processors = 1 };

	clean_environment();
	setenv("FIBER_PROCESSORS", "3", 1);
	ASSERT_EQ(0, fiber_init(&cfg));
	ASSERT_EQ(3, stats().processors);
	ASSERT_EQ(0, fiber_fini());
	unsetenv("FIBER_PROCESSORS");
	ASSERT_EQ(0, fiber_init(&cfg));
	ASSERT_EQ(1, stats().processors);
	ASSERT_EQ(0, fiber_fini());
	EXPECT_EQ(0, failures);
}

/* False: /dev/fiber cannot be hidden from this process. */
static bool hide_device(void)
{
	if (access("/dev/fiber", F_OK))
		return true;
	return !unshare(CLONE_NEWNS) &&
	       !mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) &&
	       !mount("none", "/dev", "tmpfs", 0, NULL);
}

TEST(kernel_backend_without_module_is_an_error)
{
	int n = 5;

	clean_environment();
	if (!hide_device())
		SKIP(return, "cannot hide /dev/fiber");
	setenv("FIBER_BACKEND", "kernel", 1);
	ASSERT_GT(0, fiber_init(NULL));
	ASSERT_GT(0, fiber_run(main_returns, &n));
	unsetenv("FIBER_BACKEND");
	ASSERT_EQ(5, fiber_run(main_returns, &n));
	ASSERT_EQ(0, fiber_init(NULL));
	ASSERT_FALSE(on_kernel());
	ASSERT_EQ(0, fiber_fini());
	EXPECT_EQ(0, failures);
}

/* ---- fork ---- */

/* In the child of a fork: 0 when every call knows that there is no runtime. */
static int child_calls(fiber_t *parent_fiber)
{
	struct fiber_stats st = { .size = sizeof(st) };
	fiber_t *f;
	int bad = 0;

	bad |= fiber_spawn(&f, returns_arg, NULL) != -EPERM ? 1 : 0;
	bad |= fiber_join(parent_fiber, NULL) != -EPERM ? 2 : 0;
	bad |= fiber_self() != NULL ? 4 : 0;
	bad |= fiber_sleep(1000) < -EPERM ? 8 : 0;
	bad |= fiber_get_stats(&st) > 0 ? 16 : 0;
	fiber_yield();
	free(malloc(100000));
	return bad;
}

TEST(wrong_words_of_the_environment)
{
	static const char * const wrong[][2] = {
		{ "FIBER_CHECK", "yes" }, { "FIBER_CHECK", "2" },
		{ "FIBER_STACK_MARKS", "x" }, { "FIBER_STACK_GUARD", "foo" },
		{ "FIBER_PROCESSORS", "0" },
	};

	for (unsigned int i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
		setenv(wrong[i][0], wrong[i][1], 1);
		EXPECT_EQ(-EINVAL, fiber_init(NULL));
		unsetenv(wrong[i][0]);
	}
	setenv("FIBER_STACK_GUARD", "", 1);	/* as if it were not there */
	EXPECT_EQ(0, start(1, 0));
	EXPECT_EQ(0, fiber_fini());
}

static int wait_status(pid_t pid)
{
	int status = -1;

	check_eq(pid, waitpid(pid, &status, 0));
	return status;
}

static void *forks_and_exits(void *arg)
{
	int n = 30;

	for (int i = 0; i < n; i++) {
		pid_t pid = fork();

		if (!pid)
			_exit(child_calls(arg));
		check(pid > 0);
		check_eq(0, wait_status(pid));
	}
	return NULL;
}

static void *forks_and_execs(void *arg)
{
	for (int i = 0; i < 10; i++) {
		pid_t pid = fork();

		if (!pid) {
			execl("/bin/sh", "sh", "-c", "exit 7", NULL);
			_exit(1);
		}
		check(pid > 0);
		check_eq(7, WEXITSTATUS(wait_status(pid)));
	}
	return NULL;
}

static void *churns(void *arg)
{
	while (!atomic_load((atomic_int *)arg)) {
		free(malloc(64));
		join(spawn(returns_arg, NULL));
	}
	return NULL;
}

static void fork_beside_others(struct __test_metadata *_metadata,
			       void *(*fn)(void *))
{
	static atomic_int stop;
	fiber_t *other[3], *f;

	ASSERT_EQ(0, start(2, 1 * MS));
	for (int i = 0; i < 3; i++)
		ASSERT_EQ(0, fiber_spawn(&other[i], churns, &stop));
	ASSERT_EQ(0, fiber_spawn(&f, fn, other[0]));
	ASSERT_EQ(0, fiber_join(f, NULL));
	atomic_store(&stop, 1);
	for (int i = 0; i < 3; i++)
		ASSERT_EQ(0, fiber_join(other[i], NULL));
	ASSERT_EQ(0, fiber_fini());
	EXPECT_EQ(0, failures);
}

TEST(fork_in_a_fiber)
{
	fork_beside_others(_metadata, forks_and_exits);
}

TEST(fork_and_exec_in_a_fiber)
{
	fork_beside_others(_metadata, forks_and_execs);
}

TEST(fork_in_a_plain_thread)
{
	static atomic_int stop;
	fiber_t *f;
	pid_t pid;

	ASSERT_EQ(0, start(2, 0));
	ASSERT_EQ(0, fiber_spawn(&f, churns, &stop));
	pid = fork();
	if (!pid)
		_exit(child_calls(f));
	ASSERT_LT(0, pid);
	EXPECT_EQ(0, wait_status(pid));
	atomic_store(&stop, 1);
	ASSERT_EQ(0, fiber_join(f, NULL));
	ASSERT_EQ(0, fiber_fini());
	EXPECT_EQ(0, failures);
}

TEST_HARNESS_MAIN
