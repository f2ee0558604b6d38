// SPDX-License-Identifier: GPL-2.0-only
/*
 * Processes that end, one way or another, while fibers are blocked. Each case
 * runs in a child; the child says by its pipe when all is in place.
 */
#include "common.h"

enum { MANY = 600, FEW = 20 };

struct shared {
	atomic_int entered;
	atomic_ulong count;
};

static struct shared *shared;
static int never[2];		/* nobody ever writes to it */
static int nfibers;
static void (*ending)(void);	/* what a fiber does when all are blocked */

static void *reads(void *arg)
{
	char byte;

	atomic_fetch_add(&shared->entered, 1);
	(void)!read(never[0], &byte, 1);
	return NULL;
}

static void *ends(void *arg)
{
	while (atomic_load(&shared->entered) < nfibers)
		fiber_sleep(1 * MS);
	ending();
	return NULL;
}

static void *counts(void *arg)
{
	for (;;)
		atomic_fetch_add(&shared->count, 1);
	return NULL;
}

static int child_main(void *arg)
{
	fiber_t *f;

	for (int i = 0; i < nfibers; i++)
		if (fiber_spawn(NULL, reads, NULL))
			_exit(99);
	if (fiber_spawn(&f, ending ? ends : counts, NULL))
		_exit(98);
	fiber_join(f, NULL);
	return 97;
}

static void prepare(int n, void (*fn)(void))
{
	nfibers = n;
	ending = fn;
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE,
		      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	check(shared != MAP_FAILED);
	check_eq(0, pipe(never));
	clean_environment();
	setenv("FIBER_PROCESSORS", "2", 1);
}

static pid_t begin(int n, void (*fn)(void))
{
	pid_t pid;

	prepare(n, fn);
	pid = fork();
	if (!pid)
		exit(fiber_run(child_main, NULL));
	return pid;
}

static bool all_entered(pid_t pid)
{
	bool all = until(atomic_load(&shared->entered) == nfibers);

	block_ns(50 * MS);		/* most of them block by then */
	return all;
}

/* ---- killed ---- */

TEST(kill_with_600_blocked_fibers)
{
	pid_t pid = begin(MANY, NULL);
	char path[64];
	int status;
	uint64_t t;

	ASSERT_LT(0, pid);
	ASSERT_TRUE(all_entered(pid)) {
		kill(pid, SIGKILL);
	}
	snprintf(path, sizeof(path), "/proc/%d/status", pid);
	figure("kill: %ld threads\n", proc_number(path, "Threads:"));
	t = now_ns();
	ASSERT_EQ(0, kill(pid, SIGKILL));
	ASSERT_EQ(pid, waitpid(pid, &status, 0));
	t = now_ns() - t;
	figure("kill: gone after %.1f ms\n", (double)t / 1e6);
	EXPECT_TRUE(WIFSIGNALED(status));
	EXPECT_GT(PATIENCE * SEC, t);
	EXPECT_EQ(0, failures);
}

TEST(ended_by_sigterm)
{
	pid_t pid = begin(FEW, NULL);
	int status;

	ASSERT_TRUE(all_entered(pid));
	ASSERT_EQ(0, kill(pid, SIGTERM));
	ASSERT_EQ(pid, waitpid(pid, &status, 0));
	EXPECT_TRUE(WIFSIGNALED(status));
	EXPECT_EQ(SIGTERM, WTERMSIG(status));
	EXPECT_EQ(0, failures);
}

TEST(stopped_and_continued)
{
	pid_t pid = begin(FEW, NULL);
	unsigned long a, b;
	int status;

	ASSERT_TRUE(all_entered(pid));
	for (int i = 0; i < 10; i++) {
		ASSERT_EQ(0, kill(pid, SIGSTOP));
		ASSERT_EQ(pid, waitpid(pid, &status, WUNTRACED));
		ASSERT_TRUE(WIFSTOPPED(status));
		a = atomic_load(&shared->count);
		block_ns(20 * MS);
		b = atomic_load(&shared->count);
		EXPECT_EQ(a, b);
		ASSERT_EQ(0, kill(pid, SIGCONT));
		EXPECT_TRUE(until(atomic_load(&shared->count) != b));
	}
	ASSERT_EQ(0, kill(pid, SIGKILL));
	ASSERT_EQ(pid, waitpid(pid, &status, 0));
	EXPECT_EQ(0, failures);
}

/* ---- killed with many pools ---- */

enum { POOLS = 12, IN_EACH = 4 };
static fiber_chan_t *between;		/* of all pools */
static fiber_event_t shut = FIBER_EVENT_INIT;

static void *hogs(void *arg)
{
	atomic_fetch_add(&shared->entered, 1);
	return counts(arg);
}

static void *waits(void *arg)
{
	atomic_fetch_add(&shared->entered, 1);
	fiber_event_wait(&shut);
	return arg;
}

/* To whoever receives, of any pool; there are as many of each. */
static void *talks(void *arg)
{
	long v = 0;

	atomic_fetch_add(&shared->entered, 1);
	for (uintptr_t i = (uintptr_t)arg;; i++)
		if (i % 2 ? fiber_chan_send(between, &v) :
			    fiber_chan_recv(between, &v))
			return arg;
}

/* One that blocks, one that waits, one that talks, one that runs on, in each. */
static int child_with_pools(void *arg)
{
	static void *(*const fn[IN_EACH])(void *) = { reads, waits, talks, hogs };
	struct fiber_attr a = { .size = sizeof(a) };

	if (fiber_chan_create(&between, sizeof(long), 0))
		_exit(99);
	for (uintptr_t i = 0; i < POOLS; i++) {
		if (fiber_pool_create(&a.pool, NULL))
			_exit(98);
		for (int k = 0; k < IN_EACH; k++)
			if (fiber_spawn_attr(NULL, &a, fn[k], (void *)i))
				_exit(97);
	}
	fiber_event_wait(&shut);
	return 96;
}

/* Who uses the module; -1: it is not there. */
static long module_users(void)
{
	char number[24] = "";
	int fd = open("/sys/module/fiber/refcnt", O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return -1;
	check(read(fd, number, sizeof(number) - 1) > 0);
	close(fd);
	return atol(number);
}

TEST(kill_with_many_pools)
{
	const char *backend = getenv("FIBER_BACKEND");
	long users = module_users(), with;
	int status;
	pid_t pid;

	prepare(POOLS * IN_EACH, NULL);
	pid = fork();
	ASSERT_LE(0, pid);
	if (!pid)
		exit(fiber_run(child_with_pools, NULL));
	ASSERT_TRUE(all_entered(pid)) {
		kill(pid, SIGKILL);
	}
	with = module_users();
	figure("kill: %ld users of the module with %d pools\n", with - users,
	       POOLS);
	ASSERT_EQ(0, kill(pid, SIGKILL));
	ASSERT_EQ(pid, waitpid(pid, &status, 0));
	EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	/* Of a group, a carrier, a descriptor of it nothing is left there. */
	EXPECT_TRUE(until(module_users() == users));
	EXPECT_EQ(users, module_users());
	if (backend && !strcmp(backend, "kernel"))
		EXPECT_LE(POOLS + 1, with - users);
	EXPECT_EQ(0, failures);
}

/* ---- ends itself, out of a fiber ---- */

/* The wait status of a child that ended by fn; -1: it did not within 20 s. */
static int status_of(void (*fn)(void))
{
	pid_t pid = begin(FEW, fn);
	int status = -1;

	if (until(waitpid(pid, &status, WNOHANG) == pid))
		return status;
	kill(pid, SIGKILL);
	waitpid(pid, &status, 0);
	return -1;
}

static void end_exec(void)
{
	execl("/bin/sh", "sh", "-c", "exit 7", NULL);
	_exit(1);
}

static void end_exit(void)
{
	exit(8);
}

static void end_exit_group(void)
{
	_exit(9);
}

static void end_abort(void)
{
	struct rlimit none = { 0, 0 };

	setrlimit(RLIMIT_CORE, &none);
	abort();
}

static void end_fault(void)
{
	volatile uintptr_t nowhere = 8;
	struct rlimit none = { 0, 0 };

	setrlimit(RLIMIT_CORE, &none);
	*(volatile int *)nowhere = 1;
}

static void end_return(void)
{
}

TEST(exec_in_a_fiber)
{
	EXPECT_EQ(7 << 8, status_of(end_exec));
}

TEST(exit_in_a_fiber)
{
	EXPECT_EQ(8 << 8, status_of(end_exit));
}

TEST(exit_group_in_a_fiber)
{
	EXPECT_EQ(9 << 8, status_of(end_exit_group));
}

TEST(abort_in_a_fiber)
{
	EXPECT_EQ(SIGABRT, status_of(end_abort) & 0x7f);
}

TEST(fault_in_a_fiber)
{
	EXPECT_EQ(SIGSEGV, status_of(end_fault) & 0x7f);
}

TEST(main_returns_while_fibers_are_blocked)
{
	EXPECT_EQ(97 << 8, status_of(end_return));
}

/* A plain thread calls exec while fibers run and are blocked. */
static void *execs(void *arg)
{
	while (atomic_load(&shared->entered) < nfibers)
		block_ns(1 * MS);
	end_exec();
	return NULL;
}

TEST(exec_in_a_plain_thread)
{
	pthread_t thread;
	int status;
	pid_t pid;

	prepare(FEW, NULL);
	pid = fork();
	if (!pid) {
		pthread_create(&thread, NULL, execs, NULL);
		exit(fiber_run(child_main, NULL));
	}
	ASSERT_EQ(pid, waitpid(pid, &status, 0));
	EXPECT_EQ(7 << 8, status);
	EXPECT_EQ(0, failures);
}

/* ---- the threads made for many blocked fibers end with the runtime ---- */

TEST(threads_end_with_the_runtime)
{
	static fiber_t *f[MANY / 3];
	size_t n = ARRAY_SIZE(f);

	prepare((int)n, NULL);
	ASSERT_EQ(0, start(2, 0));
	for (size_t i = 0; i < n; i++)
		f[i] = spawn(reads, NULL);
	EXPECT_TRUE(until(atomic_load(&shared->entered) == (int)n));
	figure("kill: %ld threads for %zu blocked fibers\n", thread_count(), n);
	for (size_t i = 0; i < n; i++)
		ASSERT_EQ(1, write(never[1], "x", 1));
	for (size_t i = 0; i < n; i++)
		join(f[i]);
	ASSERT_EQ(0, fiber_fini());
	EXPECT_TRUE(thread_count_becomes(1));
	EXPECT_EQ(0, failures);
}

TEST_HARNESS_MAIN
