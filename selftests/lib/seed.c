// SPDX-License-Identifier: GPL-2.0-only
/*
 * A run with a seed: it can be had again, it finds what other runs do not, its time
 * jumps, and what goes wrong is told with the seed.
 *
 * To see that addresses and threads have no part in the order, `mixed` (seed_mixed.h)
 * is run in processes of their own (SEED_CHILD says what one does).
 */
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "seed_mixed.h"

#define SEEDS	200

/* Before anything else, in the tests' processes too. */
static __attribute__((constructor)) void no_environment(void)
{
	clean_environment();
	unsetenv("FIBER_SEED");
}

static int seeded(uint64_t seed, int (*body)(void *), void *arg)
{
	char text[24];
	int r;

	snprintf(text, sizeof(text), "%llu", (unsigned long long)seed);
	setenv("FIBER_SEED", text, 1);
	r = fiber_run(body, arg);
	unsetenv("FIBER_SEED");
	return r;
}

/* ---- processes of their own ---- */

static int stuck(void *arg)
{
	fiber_mutex_lock(&lock);
	fiber_sem_init(&sem, 0);
	return fiber_sem_wait(&sem);
}

static int misused(void *arg)
{
	setenv("FIBER_CHECK", "1", 1);
	return fiber_mutex_unlock(&lock);
}

static int nothing(void *arg)
{
	return 0;
}

static __attribute__((constructor)) void child_main(void)
{
	const char *what = getenv("SEED_CHILD"), *seed = getenv("SEED_SEED");
	struct rlimit none = { 0, 0 };

	if (!what)
		return;
	setrlimit(RLIMIT_CORE, &none);
	setenv("FIBER_SEED", seed, 1);
	putenv(getenv("SEED_ALSO"));
	if (!strcmp(what, "mixed")) {
		void *other = malloc(100 * (size_t)(1 + getpid() % 7));
		int r = fiber_run(mixed, NULL);

		printf("%016llx %s\n", (unsigned long long)trail, backend);
		free(other);
		exit(r);
	}
	if (!strcmp(what, "stuck"))
		fiber_run(stuck, NULL);
	if (!strcmp(what, "misused"))
		fiber_run(misused, NULL);
	exit(fiber_run(nothing, NULL) ? 9 : *what == 'b' ? 1 : 0);
}

static char said[65536], also[64] = "FIBER_NOTHING=";

static ssize_t hear(int fd, const char *last)
{
	size_t n = 0;
	ssize_t got;

	memset(said, 0, sizeof(said));
	while (!strstr(said, last) && n < sizeof(said) - 1 &&
	       (got = read(fd, said + n, sizeof(said) - 1 - n)) > 0)
		n += (size_t)got;
	return (ssize_t)n;
}

/* What it printed is in said[], up to `last` or its end; how it ended. */
static int run_child(const char *what, const char *seed, const char *last)
{
	char self[4096] = "";		/* valgrind answers, but executes itself */
	int p[2], status;
	pid_t pid;

	check_eq(0, pipe(p));
	check(readlink("/proc/self/exe", self, sizeof(self) - 1) > 0);
	pid = fork();
	if (!pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		dup2(p[1], STDOUT_FILENO);
		dup2(p[1], STDERR_FILENO);
		setenv("SEED_CHILD", what, 1);
		setenv("SEED_SEED", seed, 1);
		setenv("SEED_ALSO", also, 1);
		execl(self, "seed", (char *)NULL);
		_exit(127);
	}
	close(p[1]);
	hear(p[0], last);
	if (*last != '\1')
		kill(pid, SIGKILL);
	close(p[0]);
	check_eq(pid, waitpid(pid, &status, 0));
	return status;
}

static int times_said(const char *words)
{
	int n = 0;

	for (const char *s = said; (s = strstr(s, words)); s++)
		n++;
	return n;
}

/* ---- the same and others ---- */

TEST(same_seed_same_order_in_two_processes)
{
	char first[300];

	for (int i = 0; i < 3; i++) {
		ASSERT_EQ(0, run_child("mixed", "77", "\1"));
		if (i)
			EXPECT_STREQ(first, said);
		snprintf(first, sizeof(first), "%.299s", said);
		ASSERT_NE(NULL, strstr(said, "user backend"));
		ASSERT_NE(NULL, strstr(said, "seed 77"));
	}
	ASSERT_EQ(0, run_child("mixed", "78", "\1"));
	EXPECT_NE(0, strncmp(first, said, 16));
	EXPECT_EQ(0, failures);
}

/* Slices of fibers in that trace, which is removed; -1: some were left out. */
static int slices(const char *path)
{
	static char line[512];
	FILE *file = fopen(path, "r");
	int n = 0;

	unlink(path);
	while (file && n >= 0 && fgets(line, sizeof(line), file)) {
		n += !strncmp(line, "{\"ph\":\"X\"", 9);
		if (strstr(line, "not recorded"))
			n = -1;
	}
	if (file)
		fclose(file);
	return n;
}

/* No way of I/O and no tool has a part in the order; a trace has all of it. */
TEST(same_order_whatever_is_set)
{
	static const char *const set[] = { "FIBER_IO=epoll", "FIBER_IO=plain",
					   "FIBER_IO=uring", "FIBER_STATS=1",
					   "FIBER_CONTENTION=1",
					   "FIBER_TRACE=", "FIBER_TRACE=" };
	char first[17] = "", path[32];
	int n[7] = { 0 };

	snprintf(path, sizeof(path), "/tmp/fiber-seed.%d", (int)getpid());
	for (int i = 0; i < 7; i++) {
		snprintf(also, sizeof(also), "%s%s", set[i], i < 5 ? "" : path);
		ASSERT_EQ(0, run_child("mixed", "77", "\1"));
		if (!i)
			memcpy(first, said, 16);
		EXPECT_NE(NULL, strstr(said, first));
		EXPECT_NE(NULL, strstr(said, "I/O by epoll;"));
		if (i >= 5)
			n[i] = slices(path);
	}
	EXPECT_LT(500, n[5]);	/* switches */
	EXPECT_EQ(n[5], n[6]);
	EXPECT_EQ(0, failures);
}

TEST(seeds_differ)
{
	enum { MANY = 60 };
	uint64_t seen[MANY], again;
	int same = 0;

	for (int i = 0; i < MANY; i++) {
		ASSERT_EQ(0, seeded((uint64_t)i + 1, mixed, NULL));
		seen[i] = trail;
		for (int k = 0; k < i; k++)
			same += seen[k] == trail;
	}
	EXPECT_EQ(0, same);
	for (int i = 0; i < MANY; i += 10) {
		ASSERT_EQ(0, seeded((uint64_t)i + 1, mixed, NULL));
		again = trail;
		EXPECT_EQ(seen[i], again);
	}
	EXPECT_EQ(0, failures);
}

/* ---- planted bugs ---- */

/* An update that is lost if another comes between: no wait is in it. */
static int shared;

static void *adds(void *arg)
{
	for (int i = 0; i < 3; i++) {
		int was = shared;

		step(1 + (unsigned int)(uintptr_t)arg);
		fiber_sem_try_wait(&sem);
		shared = was + 1;
		fiber_sem_post(&sem);
	}
	return NULL;
}

/* 0: right. */
static int lost_update(void *arg)
{
	fiber_t *f[3];

	trail = 14695981039346656037ull;
	shared = 0;
	fiber_sem_init(&sem, 0);
	for (uintptr_t i = 0; i < 3; i++)
		f[i] = spawn(adds, (void *)i);
	for (int i = 0; i < 3; i++)
		join(f[i]);
	return shared != 9;
}

/*
 * A lock of the program's own: who finds it taken counts itself among those that
 * wait, but a call lies between, and an unlock in there wakes nobody.
 */
static struct {
	bool taken;
	int waiting;
} own;
static fiber_mutex_t statistics = FIBER_MUTEX_INIT;

static int own_lock(void)
{
	while (own.taken) {
		fiber_mutex_lock(&statistics);
		fiber_mutex_unlock(&statistics);
		own.waiting++;
		if (fiber_sem_wait_until(&sem, fiber_now() + HOUR))
			return 1;
	}
	own.taken = true;
	return 0;
}

static void own_unlock(void)
{
	own.taken = false;
	if (own.waiting) {
		own.waiting--;
		fiber_sem_post(&sem);
	}
}

static void *uses(void *arg)
{
	for (int i = 0; i < 2; i++) {
		if (own_lock())
			return arg;
		step(1 + (unsigned int)(uintptr_t)arg);
		fiber_mutex_lock(&statistics);
		fiber_mutex_unlock(&statistics);
		own_unlock();
	}
	return NULL;
}

static int lost_wakeup(void *arg)
{
	fiber_t *f[3];
	int lost = 0;

	trail = 14695981039346656037ull;
	memset(&own, 0, sizeof(own));
	fiber_sem_init(&sem, 0);
	for (uintptr_t i = 0; i < 3; i++)
		f[i] = spawn(uses, (void *)(i + 1));
	for (int i = 0; i < 3; i++)
		lost += join(f[i]) != NULL;
	return lost;
}

/* Some of the seeds show it, not all, and each of them again. */
static int found_and_replayed(int (*body)(void *))
{
	uint64_t what;
	int found = 0, r;

	for (uint64_t seed = 1; seed <= SEEDS; seed++) {
		r = seeded(seed, body, NULL);
		check(r >= 0);
		if (!r || ++found > 2)
			continue;
		what = trail;
		for (int i = 0; i < 20; i++) {
			check_eq(r, seeded(seed, body, NULL));
			check(what == trail);
		}
	}
	return found;
}

TEST(finds_a_lost_update_and_replays_it)
{
	int found = found_and_replayed(lost_update);

	figure("lost update: %d of %d seeds\n", found, SEEDS);
	EXPECT_LT(0, found);
	EXPECT_GT(SEEDS, found);
	EXPECT_EQ(0, failures);
}

TEST(finds_a_lost_wakeup_and_replays_it)
{
	int found = found_and_replayed(lost_wakeup);

	figure("lost wake-up: %d of %d seeds\n", found, SEEDS);
	EXPECT_LT(0, found);
	EXPECT_GT(SEEDS, found);
	EXPECT_EQ(0, failures);
}

/* ---- time ---- */

static int order[3], ended;

static void *sleeps(void *arg)
{
	static const uint64_t hours[] = { 3, 1, 2 };
	uint64_t before = fiber_now(), ns = hours[(uintptr_t)arg] * HOUR;

	check_eq(0, fiber_sleep(ns));
	check(fiber_now() >= before + ns);
	order[ended++] = (int)(uintptr_t)arg;
	return NULL;
}

static int calls;

static void count_call(void *arg, uint64_t ticks)
{
	calls += (int)ticks;
}

static int long_day(void *arg)
{
	uint64_t begin = fiber_now();
	fiber_t *f[3];
	int v;

	ended = calls = 0;
	for (uintptr_t i = 0; i < 3; i++)
		f[i] = spawn(sleeps, (void *)i);
	for (int i = 0; i < 3; i++)
		join(f[i]);
	check(order[0] == 1 && order[1] == 2 && order[2] == 0);
	/* All at once but for the hours: a step takes a microsecond. */
	check(fiber_now() - begin < 3 * HOUR + SEC);
	check_eq(0, fiber_chan_create(&chan[0], sizeof(int), 0));
	check_eq(-ETIMEDOUT, fiber_chan_recv_until(chan[0], &v,
						   fiber_now() + HOUR));
	check_eq(0, fiber_chan_destroy(chan[0]));
	check_eq(0, fiber_timer_create(&timer, count_call, NULL));
	check_eq(0, fiber_timer_start(timer, fiber_now() + HOUR / 6, HOUR / 6));
	check_eq(0, fiber_sleep(HOUR + HOUR / 12));
	check_eq(1, fiber_timer_stop(timer));
	check_eq(0, fiber_timer_destroy(timer));
	check_eq(6, calls);
	check(fiber_now() - begin < 5 * HOUR + HOUR / 6);
	return 0;
}

TEST(time_jumps)
{
	ASSERT_EQ(0, seeded(5, long_day, NULL));
	EXPECT_EQ(0, failures);
}

static void *writes_later(void *arg)
{
	check_eq(0, fiber_sleep(20 * MS));
	check_eq(1, fiber_write(pipe_fd[1], "x", 1));
	return NULL;
}

/* Who waits for I/O may wait for somebody outside: then time is real. */
static int reads_beside_sleeper(void *arg)
{
	uint64_t before = now_ns();
	fiber_t *f;
	char c;

	check_eq(0, pipe(pipe_fd));
	f = spawn(writes_later, NULL);
	check_eq(1, fiber_read(pipe_fd[0], &c, 1));
	check(now_ns() - before >= 19 * MS);
	join(f);
	return 0;
}

/* Nothing tells of any of several children: one looks at them again and again. */
static int waits_for_child_beside_sleeper(void *arg)
{
	uint64_t before = now_ns();
	pid_t pid;
	fiber_t *f;
	char c;

	check_eq(0, pipe(pipe_fd));
	pid = fork();
	if (!pid)
		_exit(read(pipe_fd[0], &c, 1) == 1 ? 0 : 1);
	f = spawn(writes_later, NULL);
	check_eq(pid, fiber_waitpid_until(-1, NULL, 0, fiber_now() + HOUR));
	check(now_ns() - before >= 19 * MS);
	join(f);
	return 0;
}

TEST(time_is_real_while_the_world_is_waited_for)
{
	ASSERT_EQ(0, seeded(5, reads_beside_sleeper, NULL));
	ASSERT_EQ(0, seeded(5, waits_for_child_beside_sleeper, NULL));
	EXPECT_EQ(0, failures);
}

/* ---- one at a time ---- */

static int turns;

static void *counts_turns(void *arg)
{
	while (!ended) {
		turns++;
		fiber_yield();
	}
	return NULL;
}

static void refuses_locks(void)
{
	struct fiber_attr attr = { .size = sizeof(attr),
				   .flags = FIBER_ATTR_LOCK };
	fiber_t *f = NULL;

	check_eq(-EOPNOTSUPP, fiber_thread_lock());
	check_eq(-EINVAL, fiber_thread_unlock());
	check_eq(-EPERM, fiber_thread_pin(-1));
	check_eq(-EOPNOTSUPP, fiber_spawn_attr(&f, &attr, leaf, NULL));
	attr.flags = FIBER_ATTR_CPU;
	check_eq(-EINVAL, fiber_spawn_attr(&f, &attr, leaf, NULL));
	check(!f);
}

/* Neither a call that blocks nor a long turn lets anybody else run. */
static void *alone(void *arg)
{
	fiber_t *f;
	uint64_t end;
	int before;

	ended = turns = 0;
	f = spawn(counts_turns, NULL);
	while (!turns)
		fiber_yield();
	before = turns;
	block_ns(20 * MS);
	check_eq(before, turns);
	end = cpu_ns() + 25 * MS;
	while (cpu_ns() < end)
		;
	check_eq(before, turns);
	fiber_no_preempt_begin();
	for (int i = 0; i < 50; i++)
		fiber_sem_try_wait(&sem);
	check_eq(before, turns);
	fiber_no_preempt_end();
	ended = 1;
	join(f);
	refuses_locks();
	return NULL;
}

TEST(nobody_else_runs_between_two_calls)
{
	struct fiber_config cfg = { .size = sizeof(cfg), .processors = 4,
				    .quantum_ns = MS, .seed = 3 };
	fiber_t *f;

	fiber_sem_init(&sem, 0);
	ASSERT_EQ(0, fiber_init(&cfg));
	EXPECT_EQ(1, stats().processors);
	EXPECT_EQ(FIBER_FEATURE_SEEDED, fiber_features() &
		  (FIBER_FEATURE_SEEDED | FIBER_FEATURE_PREEMPT |
		   FIBER_FEATURE_HANDOFF | FIBER_FEATURE_KERNEL));
	ASSERT_EQ(0, fiber_spawn(&f, alone, NULL));
	EXPECT_EQ(0, fiber_join(f, NULL));
	EXPECT_EQ(0, stats().preemptions);
	EXPECT_EQ(0, fini_soon());
	/* The next runtime is as ever. */
	ASSERT_EQ(0, start(2, 0));
	EXPECT_EQ(0, fiber_features() & FIBER_FEATURE_SEEDED);
	EXPECT_EQ(0, fini_soon());
	EXPECT_EQ(0, failures);
}

/* ---- what is said ---- */

#define WORDS	"FIBER_SEED=42 in the environment replays this run"

TEST(bad_end_is_told_with_the_seed)
{
	EXPECT_EQ(0, run_child("good", "42", "\1"));
	EXPECT_EQ(0, times_said("FIBER_SEED"));
	EXPECT_EQ(1 << 8, run_child("bad", "42", "\1"));
	EXPECT_EQ(1, times_said(WORDS));
	EXPECT_EQ(SIGABRT, run_child("misused", "42", "\1") & 0x7f);
	EXPECT_EQ(1, times_said(WORDS));
#ifndef FB_TSAN			/* its own thread could wake them */
	run_child("stuck", "42", WORDS);
	EXPECT_EQ(1, times_said("all fibers are parked"));
	EXPECT_EQ(1, times_said(WORDS));
#endif
	EXPECT_EQ(0, failures);
}

TEST_HARNESS_MAIN
