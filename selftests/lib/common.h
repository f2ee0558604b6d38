/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * common.h - what the library's tests share
 *
 * Each TEST runs in a process of its own and starts the runtime there. ASSERT_*
 * jumps, so it belongs to the test's own thread; fibers and other threads use
 * check(), and the test closes with EXPECT_EQ(0, failures).
 *
 * Environment: FIBER_ALLOWANCE multiplies every upper bound of a time; by
 * default 1, in the VM (FIBER_VM is set there) 20.
 */
#ifndef SELFTESTS_LIB_COMMON_H
#define SELFTESTS_LIB_COMMON_H

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>

#include "figures.h"
#include "kselftest_harness.h"
#ifndef FIBER_SLOW
#define FIBER_SLOW 1		/* by how much a debug kernel is slower: debug.sh */
#endif
#undef TEST_TIMEOUT_DEFAULT
#define TEST_TIMEOUT_DEFAULT (100 * FIBER_SLOW) /* seconds; emulation is slow */

#include <fiber.h>

/* EXPECT_EQ(0, an_unsigned) is what everybody writes. */
#pragma GCC diagnostic ignored "-Wsign-compare"

#define helper		static __attribute__((unused))
#define US		1000UL
#define MS		1000000UL
#define SEC		1000000000UL

#ifdef FB_TSAN
#define VERY_MANY	1000		/* fibers; it knows 8,128 at most */
#else
#define VERY_MANY	10000
#endif

/* ---- checks from any fiber or thread ---- */

static atomic_int failures;

helper __attribute__((format(printf, 3, 4), noinline)) void
failed(const char *file, int line, const char *fmt, ...)
{
	char text[256];
	va_list args;

	if (atomic_fetch_add(&failures, 1) >= 20)
		return;
	va_start(args, fmt);
	vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	dprintf(STDERR_FILENO, "# %s:%d: %s\n", file, line, text);
}

#define check(cond) \
	((cond) ? (void)0 : failed(__FILE__, __LINE__, "not true: %s", #cond))
#define check_eq(want, got) do { \
	long long want_ = (long long)(want), got_ = (long long)(got); \
	if (want_ != got_) \
		failed(__FILE__, __LINE__, "%s is %lld, not %lld", \
		       #got, got_, want_); \
} while (0)

/* A figure for people and scripts; never mixes with other lines. */
#define figure(...) dprintf(STDOUT_FILENO, "# " __VA_ARGS__)

/* ---- time ---- */

helper uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * SEC + (uint64_t)t.tv_nsec;
}

helper uint64_t cpu_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (uint64_t)t.tv_sec * SEC + (uint64_t)t.tv_nsec;
}

/*
 * The thread sleeps in the kernel, whatever runs on it. The user backend may
 * interrupt it: then it sleeps on.
 */
helper int block_ns(uint64_t ns)
{
	struct timespec t = { (time_t)(ns / SEC), (long)(ns % SEC) };
	int err = errno, r;

	while ((r = nanosleep(&t, &t)) && errno == EINTR &&
	       !(fiber_features() & FIBER_FEATURE_KERNEL))
		errno = err;
	return r;
}

/*
 * Wait until cond holds; false if it does not for PATIENCE seconds. For plain
 * threads. A test waits for what it is about, and never for a time in which it
 * should have happened: other work may have the CPUs meanwhile.
 */
#define PATIENCE	40
#define until(cond) ({							\
	uint64_t end_ = now_ns() + PATIENCE * SEC;			\
	bool met_;							\
									\
	while (!(met_ = (cond)) && now_ns() < end_)			\
		block_ns(1 * MS);					\
	met_;								\
})

helper bool in_vm(void)
{
	return getenv("FIBER_VM") != NULL;
}

helper uint64_t allowance(void)
{
	const char *s = getenv("FIBER_ALLOWANCE");

	if (s && atoi(s) > 0)
		return (uint64_t)atoi(s);
	return in_vm() ? 20 : 1;
}

helper uint32_t next_random(uint32_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 17;
	*state ^= *state << 5;
	return *state;
}

/* ---- the runtime ---- */

helper bool on_kernel(void)
{
	return fiber_features() & FIBER_FEATURE_KERNEL;
}

/* FIBER_BACKEND alone is for the caller of the program to say. */
helper void clean_environment(void)
{
	unsetenv("FIBER_PROCESSORS");
	unsetenv("FIBER_QUANTUM_US");
	unsetenv("FIBER_GRACE_US");
}

helper int start(unsigned int processors, uint64_t quantum_ns)
{
	struct fiber_config cfg = {
		.size = sizeof(cfg),
		.processors = processors,
		.quantum_ns = quantum_ns,
	};

	clean_environment();
	return fiber_init(&cfg);
}

/* Detached fibers need a moment to be gone when their last word was heard. */
helper int fini_soon(void)
{
	int r = 0;

	(void)until((r = fiber_fini()) != -EBUSY);
	return r;
}

/*
 * Run fn(arg) as the first fiber of a new runtime and end the runtime. Every
 * fiber must have said its last word by then. 0, or what went wrong.
 */
helper int with_runtime(unsigned int processors, uint64_t quantum_ns,
			       void *(*fn)(void *), void *arg)
{
	fiber_t *f;
	int r = start(processors, quantum_ns);

	if (r)
		return r;
	r = fiber_spawn(&f, fn, arg);
	if (r)
		return r;
	r = fiber_join(f, NULL);
	if (r)
		return r;
	return fini_soon();
}

helper fiber_t *spawn(void *(*fn)(void *), void *arg)
{
	fiber_t *f = NULL;

	check_eq(0, fiber_spawn(&f, fn, arg));
	return f;
}

helper int is_under_way(const struct fiber_info *i, void *self)
{
	return !i->library && i->id != fiber_id(self) &&
	       i->state != FIBER_PARKED;
}

/*
 * One processor: all that were started come to wait. Turns alone do not do: one
 * that was preempted needs several, and one whose page fault took long has lost the
 * processor and is not in the queue at all.
 */
helper void settle(void)
{
	uint64_t end = fiber_now() + PATIENCE * SEC;

	for (int i = 0; i < 5; i++)
		fiber_yield();
	while (fiber_walk(is_under_way, fiber_self()) > 0 && fiber_now() < end)
		fiber_sleep(1 * MS);
}

helper void *join(fiber_t *f)
{
	void *result = NULL;

	check_eq(0, fiber_join(f, &result));
	return result;
}

helper struct fiber_stats stats(void)
{
	struct fiber_stats st = { .size = sizeof(st) };

	check_eq(0, fiber_get_stats(&st));
	return st;
}

/*
 * One processor, a long quantum: one fiber after the other, in order. But any may
 * block, in a page fault say, and others go on meanwhile; or have its turn cut short
 * by one that did. Then what was found says nothing: again. How often it was so in
 * the last run is in `overtaken`.
 */
struct in_turn {
	void *(*fn)(void *);
	void *arg;
};

static uint64_t overtaken;

static __attribute__((unused)) void *runs_in_turn(void *arg)
{
	struct in_turn *t = arg;
	struct fiber_stats st;

	t->fn(t->arg);
	st = stats();
	overtaken = st.handoffs + st.preemptions;
	return NULL;
}

helper int in_turn(void *(*fn)(void *), void *arg)
{
	struct in_turn t = { fn, arg };
	int before = failures, r;

	for (int try = 0; try < 10; try++) {
		failures = before;
		r = with_runtime(1, SEC, runs_in_turn, &t);
		if (r || !overtaken || failures == before)
			break;
		figure("overtaken %lu times: again\n", overtaken);
	}
	return r;
}

/* ---- threads of this process, as /proc shows them ---- */

/* 'R', 'S', 'D' ...; 0 when there is no such thread */
helper char thread_state(int tid)
{
	char path[64], text[512], *p;
	ssize_t n;
	int fd;

	snprintf(path, sizeof(path), "/proc/self/task/%d/stat", tid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return 0;
	n = read(fd, text, sizeof(text) - 1);
	close(fd);
	if (n <= 0)
		return 0;
	text[n] = 0;
	p = strrchr(text, ')');
	return p && p[1] ? p[2] : 0;
}

/* A number from /proc/PATH, such as "Threads:" of /proc/self/status; or -1 */
helper long proc_number(const char *path, const char *key)
{
	char line[256];
	FILE *file = fopen(path, "re");
	long n = -1;

	while (file && n < 0 && fgets(line, sizeof(line), file))
		if (!strncmp(line, key, strlen(key)))
			n = atol(line + strlen(key));
	if (file)
		fclose(file);
	return n;
}

helper long thread_count(void)
{
	return proc_number("/proc/self/status", "Threads:");
}

/* A joined thread may be on its way out of the kernel's lists still. */
helper bool thread_count_becomes(long n)
{
	return until(thread_count() == n);
}

/* Of a sanitizer, which takes terabytes of addresses, not those. */
helper void cap_memory(int resource, uint64_t bytes)
{
	struct rlimit limit = { bytes, bytes };

#if defined(FB_ASAN) || defined(FB_TSAN)
	if (resource == RLIMIT_AS)
		return;
#endif
	check_eq(0, setrlimit(resource, &limit));
}

/* ---- for fibers ---- */

helper void close_both(int s[2])
{
	check_eq(0, fiber_close(s[0]));
	check_eq(0, fiber_close(s[1]));
}

helper void come_to(atomic_int *word, int value)
{
	while (atomic_load(word) < value)
		check_eq(0, fiber_sleep(200 * US));
}

#endif
