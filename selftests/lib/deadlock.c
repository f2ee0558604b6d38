// SPDX-License-Identifier: GPL-2.0-only
/*
 * All fibers are parked, and nothing can wake them: it is said, once, and only then.
 *
 * Each case is a child process, whose stderr is read. That a report does not come
 * is shown by what would have to be reported if the rule looked at fibers alone, for
 * as long as it takes to look.
 */
#include <sys/stat.h>
#include <sys/wait.h>

#include "common.h"

#define WORDS	"all fibers are parked: deadlock"

static fiber_mutex_t a = FIBER_MUTEX_INIT, b = FIBER_MUTEX_INIT;
static fiber_event_t never = FIBER_EVENT_INIT;
static atomic_int met;

/* ---- a child and what it says ---- */

static char said[65536];

static pid_t child(int (*body)(void), int *out)
{
	pid_t pid;
	int p[2];

	check_eq(0, pipe(p));
	pid = fork();
	if (!pid) {
		struct rlimit none = { 0, 0 };

		setrlimit(RLIMIT_CORE, &none);
		dup2(p[1], STDERR_FILENO);
		clean_environment();
		_exit(body());
	}
	close(p[1]);
	*out = p[0];
	return pid;
}

static int times_said(void)
{
	int n = 0;

	for (const char *s = said; (s = strstr(s, WORDS)); s++)
		n++;
	return n;
}

/* Reads until `words` are there, or the end. */
static bool hear(int fd, size_t *n, const char *words)
{
	ssize_t got;

	while (!strstr(said, words) && *n < sizeof(said) - 1 &&
	       (got = read(fd, said + *n, sizeof(said) - 1 - *n)) > 0) {
		*n += (size_t)got;
		said[*n] = 0;
	}
	return strstr(said, words);
}

static void end(pid_t pid, int *status)
{
	kill(pid, SIGKILL);
	check_eq(pid, waitpid(pid, status, 0));
}

/* body is stuck: it is said, with the fibers; what became of it. */
static int reported(int (*body)(void))
{
	size_t n = 0;
	int fd, status;
	pid_t pid = child(body, &fd);

	memset(said, 0, sizeof(said));
	check(hear(fd, &n, WORDS));
	check(hear(fd, &n, " backend, "));
	end(pid, &status);
	while (hear(fd, &n, "\1"))
		;
	close(fd);
	check_eq(1, times_said());
	return status;
}

/* body ends by itself, and reported nothing. */
static void not_reported(int (*body)(void))
{
	size_t n = 0;
	int fd, status;
	pid_t pid = child(body, &fd);

	memset(said, 0, sizeof(said));
	while (hear(fd, &n, "\1"))
		;
	close(fd);
	check_eq(pid, waitpid(pid, &status, 0));
	check_eq(0, status);
	if (times_said())
		failed(__FILE__, __LINE__, "false: %s", said);
}

/* ---- stuck ---- */

static void both(fiber_mutex_t *first, fiber_mutex_t *second, const char *name)
{
	fiber_set_name(fiber_self(), name);
	check_eq(0, fiber_mutex_lock(first));
	atomic_fetch_add(&met, 1);
	while (atomic_load(&met) < 2)
		fiber_yield();
	check_eq(0, fiber_mutex_lock(second));
}

static void *a_then_b(void *arg)
{
	both(&a, &b, "a then b");
	return NULL;
}

static void *b_then_a(void *arg)
{
	both(&b, &a, "b then a");
	return NULL;
}

/* Threads that the kernel has for a ring are no outsiders. */
static int deadlock(void *arg)
{
	fiber_t *f, *g;
	struct statx st;

	check_eq(0, fiber_statx(AT_FDCWD, "/", 0, STATX_MODE, &st));
	f = spawn(a_then_b, NULL);
	g = spawn(b_then_a, NULL);
	join(f);
	join(g);
	return 0;
}

static int two_mutexes(void)
{
	setenv("FIBER_IO", "uring", 1);
	return fiber_run(deadlock, NULL);
}

static int two_mutexes_abort(void)
{
	setenv("FIBER_DEADLOCK", "abort", 1);
	return fiber_run(deadlock, NULL);
}

static void *waits(void *arg)
{
	check_eq(0, fiber_event_wait(&never));
	return NULL;
}

static void *thread_waits(void *arg)
{
	check_eq(0, fiber_event_wait(&never));
	return NULL;
}

/* Two plain threads wait too: one from the start, one after a while. */
static int with_threads(void)
{
	pthread_t t;
	fiber_t *f;

	check_eq(0, start(2, 0));
	f = spawn(waits, NULL);
	pthread_create(&t, NULL, thread_waits, NULL);
	block_ns(1300 * MS);		/* an outside thread until now */
	return fiber_join(f, NULL);
}

/* The main thread does something else, but has said that it does not matter. */
static int alone(void)
{
	setenv("FIBER_DEADLOCK", "abort,alone", 1);
	check_eq(0, start(1, 0));
	spawn(waits, NULL);
	for (;;)
		pause();
	return 0;
}

/* One keeps its thread to itself, and waits. */
static void *locked_waits(void *arg)
{
	check_eq(0, fiber_thread_lock());
	return waits(arg);
}

static int waits_for_locked(void *arg)
{
	join(spawn(locked_waits, NULL));
	return 0;
}

static int with_a_locked_fiber(void)
{
	return fiber_run(waits_for_locked, NULL);
}

/* A processor is held: fiber_set_processors. */
static void *fewer(void *arg)
{
	check_eq(0, fiber_set_processors(1));
	deadlock(arg);
	return arg;
}

static int on_fewer_processors(void)
{
	struct fiber_config k = { .size = sizeof(k), .processors = 2 };
	fiber_t *f;

	check_eq(0, fiber_init(&k));
	check_eq(0, fiber_spawn(&f, fewer, NULL));
	return fiber_join(f, NULL);
}

/* Each has its pool. */
static int crossing_pools(void *arg)
{
	struct fiber_attr at = { .size = sizeof(at) };
	fiber_t *f, *g;

	check_eq(0, fiber_pool_create(&at.pool, NULL));
	check_eq(0, fiber_spawn_attr(&f, &at, a_then_b, NULL));
	check_eq(0, fiber_pool_create(&at.pool, NULL));
	check_eq(0, fiber_spawn_attr(&g, &at, b_then_a, NULL));
	join(f);
	join(g);
	return 0;
}

static int in_pools(void)
{
	return fiber_run(crossing_pools, NULL);
}

static void check_said(const char *words)
{
	if (!strstr(said, words))
		failed(__FILE__, __LINE__, "no \"%s\" in: %s", words, said);
}

static void mutexes_that_cross(void)
{
	int status = reported(two_mutexes);

	check(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	check_said("\"a then b\": parked (mutex)");
	check_said("\"b then a\": parked (mutex)");
	check_said("\"main\": parked (join) for ");
	check_said(" s of fiber ");
	check_said(" \"a then b\", stack ");	/* who holds the other's */
	check_said(" \"b then a\", stack ");
	check_said("3 of them wait, and 1 plain thread;");
}

static void mutexes_that_cross_on_fewer(void)
{
	reported(on_fewer_processors);
	check_said("\"a then b\": parked (mutex)");
}

static void mutexes_that_cross_pools(void)
{
	reported(in_pools);
	check_said("\"a then b\" in pool \"pool 1\": parked (mutex)");
	check_said("\"b then a\" in pool \"pool 2\": parked (mutex)");
	check_said("3 of them wait, and 1 plain thread;");
}

static void abort_if_asked(void)
{
	size_t n = 0;
	int fd, status;
	pid_t pid = child(two_mutexes_abort, &fd);

	memset(said, 0, sizeof(said));
	while (hear(fd, &n, "\1"))
		;
	close(fd);
	check_eq(pid, waitpid(pid, &status, 0));
	check(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
	check_eq(1, times_said());
}

static void plain_threads_that_wait(void)
{
	reported(with_threads);
	check_said("1 of them waits, and 2 plain threads");
}

static void outside_threads_that_do_not_matter(void)
{
	reported(alone);
	check_said("parked (event)");
}

static void fibers_that_keep_their_thread(void)
{
	reported(with_a_locked_fiber);
	check_said("2 of them wait, and 1 plain thread;");
	check_said(", locked to thread ");
}

typedef void (*case_fn)(void);

/* Each takes its time, in a process of its own. */
static void all_at_once(const case_fn *fn, size_t n)
{
	pid_t pid[16];
	int status;

	for (size_t i = 0; i < n; i++) {
		pid[i] = fork();
		if (!pid[i]) {
			fn[i]();
			_exit(failures);
		}
	}
	for (size_t i = 0; i < n; i++) {
		check_eq(pid[i], waitpid(pid[i], &status, 0));
		if (status)
			failed(__FILE__, __LINE__, "case %zu", i);
	}
}

/* ThreadSanitizer has a thread of its own, which counts as one from outside. */
TEST(never_missed)
{
	static const case_fn fn[] = {
		outside_threads_that_do_not_matter,
#ifndef FB_TSAN
		mutexes_that_cross, abort_if_asked, plain_threads_that_wait,
		fibers_that_keep_their_thread, mutexes_that_cross_on_fewer,
		mutexes_that_cross_pools,
#endif
	};

	(void)mutexes_that_cross, (void)abort_if_asked;
	(void)plain_threads_that_wait;
	(void)fibers_that_keep_their_thread;
	(void)mutexes_that_cross_on_fewer;
	(void)mutexes_that_cross_pools;
	all_at_once(fn, ARRAY_SIZE(fn));
	EXPECT_EQ(0, failures);
}

/* ---- not stuck ---- */

#define LONG	(1600 * MS)		/* a look or more */

static int sleeps(void *arg)
{
	return fiber_sleep(LONG);
}

static int in_a_sleep(void)
{
	return fiber_run(sleeps, NULL);
}

static int blocks(void *arg)
{
	return block_ns(LONG) ? errno != EINTR : 0;
}

static int blocked_in_the_kernel(void)
{
	return fiber_run(blocks, NULL);
}

static void *sets_late(void *arg)
{
	block_ns(LONG);
	check_eq(0, fiber_event_set(&never));
	return NULL;
}

static int waits_in_main(void *arg)
{
	return fiber_event_wait(&never);
}

/* A thread that has never used an object, and sets the event in the end. */
static int an_outside_thread(void)
{
	pthread_t t;

	int r;

	pthread_create(&t, NULL, sets_late, NULL);
	r = fiber_run(waits_in_main, NULL);
	pthread_join(t, NULL);
	return r || failures;
}

static void tick(void *arg, uint64_t ticks)
{
	check_eq(0, fiber_event_set(&never));
}

static int waits_for_tick(void *arg)
{
	fiber_timer_t *t;
	int r;

	check_eq(0, fiber_timer_create(&t, tick, NULL));
	check_eq(0, fiber_timer_start(t, fiber_now() + LONG, 0));
	r = fiber_event_wait(&never);
	check_eq(0, fiber_timer_destroy(t));
	return r;
}

static int a_timer(void)
{
	return fiber_run(waits_for_tick, NULL) || failures;
}

static int waits_until(void *arg)
{
	return fiber_event_wait_until(&never, fiber_now() + LONG) != -ETIMEDOUT;
}

/* It computes, in a pool, and all others wait for it. */
static void *sets_after_work(void *arg)
{
	uint64_t end = now_ns() + LONG;

	while (now_ns() < end)
		;
	check_eq(0, fiber_event_set(&never));
	return arg;
}

static int waits_for_pool(void *arg)
{
	struct fiber_attr at = { .size = sizeof(at) };
	fiber_t *f;

	check_eq(0, fiber_pool_create(&at.pool, NULL));
	check_eq(0, fiber_spawn_attr(&f, &at, sets_after_work, NULL));
	check_eq(0, fiber_event_wait(&never));
	join(f);
	return failures;
}

static int work_in_a_pool(void)
{
	return fiber_run(waits_for_pool, NULL);
}

/* The same, where it sleeps: a timer of the pool's is armed. */
static void *sets_after_sleep(void *arg)
{
	check_eq(0, fiber_sleep(LONG));
	check_eq(0, fiber_event_set(&never));
	return arg;
}

static int waits_for_sleeper(void *arg)
{
	struct fiber_attr at = { .size = sizeof(at) };
	fiber_t *f;

	check_eq(0, fiber_pool_create(&at.pool, NULL));
	check_eq(0, fiber_spawn_attr(&f, &at, sets_after_sleep, NULL));
	check_eq(0, fiber_event_wait(&never));
	join(f);
	return failures;
}

static int a_timer_of_a_pool(void)
{
	return fiber_run(waits_for_sleeper, NULL);
}

static int a_deadline(void)
{
	return fiber_run(waits_until, NULL);
}

/* A plain thread's deadline: it comes back and sets the event. */
static int a_threads_deadline(void)
{
	fiber_event_t other = FIBER_EVENT_INIT;
	fiber_t *f;

	check_eq(0, start(2, 0));
	f = spawn(waits, NULL);
	check_eq(-ETIMEDOUT, fiber_event_wait_until(&other, fiber_now() + LONG));
	check_eq(0, fiber_event_set(&never));
	join(f);
	return fiber_fini() || failures;
}

/* Others may write to it, whatever this process's threads do. */
static int selects_fd(void *arg)
{
	struct fiber_case c = FIBER_FD(*(int *)arg, POLLIN);

	return fiber_select(&c, 1, FIBER_NEVER);
}

static void *writes_late(void *arg)
{
	block_ns(LONG);
	check_eq(1, write(*(int *)arg, "x", 1));
	return NULL;
}

static int a_descriptor(void)
{
	pthread_t t;
	int p[2], r;

	setenv("FIBER_DEADLOCK", "report,alone", 1);
	check_eq(0, pipe(p));
	pthread_create(&t, NULL, writes_late, &p[1]);
	r = fiber_run(selects_fd, &p[0]);
	pthread_join(t, NULL);
	return r || failures;
}

static int off(void)
{
	fiber_t *f;

	setenv("FIBER_DEADLOCK", "off", 1);
	check_eq(0, start(1, 0));
	f = spawn(waits, NULL);
	check_eq(-ETIMEDOUT, fiber_join_until(f, NULL, fiber_now() + LONG));
	return failures;
}

#define CASE(body)	static void body##_case(void) { not_reported(body); }
CASE(in_a_sleep)
CASE(blocked_in_the_kernel)
CASE(an_outside_thread)
CASE(a_timer)
CASE(a_deadline)
CASE(a_threads_deadline)
CASE(a_descriptor)
CASE(work_in_a_pool)
CASE(a_timer_of_a_pool)
CASE(off)

TEST(never_false)
{
	static const case_fn fn[] = {
		in_a_sleep_case, blocked_in_the_kernel_case,
		an_outside_thread_case, a_timer_case, a_deadline_case,
		a_threads_deadline_case, a_descriptor_case, off_case,
		work_in_a_pool_case, a_timer_of_a_pool_case,
	};

	all_at_once(fn, ARRAY_SIZE(fn));
	EXPECT_EQ(0, failures);
}

TEST(not_a_mode)
{
	setenv("FIBER_DEADLOCK", "abort,often", 1);
	EXPECT_EQ(-EINVAL, start(1, 0));
	setenv("FIBER_DEADLOCK", "report,alone", 1);
	ASSERT_EQ(0, start(1, 0));
	EXPECT_EQ(0, fiber_fini());
}

TEST_HARNESS_MAIN
