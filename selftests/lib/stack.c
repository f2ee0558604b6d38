// SPDX-License-Identifier: GPL-2.0-only
/*
 * Stacks: guards and what is said about an overflow, classes, the program's own
 * memory, marks, memory that goes back after a burst.
 *
 * Overflows happen in a child process, whose stderr is read.
 */
#include <alloca.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <ucontext.h>

#include "common.h"

#define KIB	1024UL

/* ---- a child process that overflows ---- */

struct ending {
	int status;
	char said[4096];
};

/* Run fn(arg) as a fiber of a new process; what became of it. */
static void run_child(struct ending *e, void *(*fn)(void *), void *arg)
{
	size_t n = 0;
	ssize_t got;
	int p[2];
	pid_t pid;

	memset(e, 0, sizeof(*e));
	check_eq(0, pipe(p));
	pid = fork();
	if (!pid) {
		struct rlimit none = { 0, 0 };

		setrlimit(RLIMIT_CORE, &none);
		dup2(p[1], STDERR_FILENO);
		_exit(with_runtime(1, 0, fn, arg) ? 2 : failures ? 3 : 0);
	}
	close(p[1]);
	while (n < sizeof(e->said) - 1 &&
	       (got = read(p[0], e->said + n, sizeof(e->said) - 1 - n)) > 0)
		n += (size_t)got;
	close(p[0]);
	check_eq(pid, waitpid(pid, &e->status, 0));
}

static void check_died(const struct ending *e, int sig)
{
	check(WIFSIGNALED(e->status));
	check_eq(sig, WTERMSIG(e->status));
}

static void check_said(const struct ending *e, const char *words)
{
	if (!strstr(e->said, words))
		failed(__FILE__, __LINE__, "no \"%s\" in: %s", words, e->said);
}

/* Recursion that the compiler cannot turn into a loop, nor call endless. */
static volatile size_t depth_wanted = SIZE_MAX;

static __attribute__((noinline)) size_t recurse_for_ever(size_t n)
{
	volatile char frame[256];

	frame[n % sizeof(frame)] = (char)n;
	if (n == depth_wanted)
		return n;
	return recurse_for_ever(n + 1) + (size_t)frame[n % sizeof(frame)];
}

static void *overflows(void *arg)
{
	fiber_set_name(fiber_self(), "deep one");
	return (void *)recurse_for_ever(0);
}

static void *overflows_on(void *arg)
{
	struct fiber_attr attr = {
		.size = sizeof(attr), .name = "deep one",
		.stack_size = (size_t)arg,
	};
	fiber_t *f;

	check_eq(0, fiber_spawn_attr(&f, &attr, overflows, NULL));
	return join(f);
}

TEST(overflow_is_reported)
{
	struct ending e;

	run_child(&e, overflows, NULL);
	check_died(&e, SIGSEGV);
	check_said(&e, "stack overflow in fiber 2 \"deep one\": ");
	check_said(&e, " bytes of stack, depth ");
	check_said(&e, "raise fiber_attr.stack_size\n");
	check_said(&e, "the overflow is in recurse_for_ever");
	EXPECT_EQ(0, failures);
}

TEST(overflow_is_reported_for_each_guarded_class)
{
	struct ending e;

	for (size_t size = 10 * KIB; size < 4096 * KIB; size *= 3) {
		run_child(&e, overflows_on, (void *)size);
		check_died(&e, SIGSEGV);
		check_said(&e, "stack overflow in fiber 1 \"deep one\": ");
	}
	EXPECT_EQ(0, failures);
}

/* A frame larger than guard and stack together, touched at its low end. */
__attribute__((noinline, optimize("stack-clash-protection")))
static int large_probed(size_t n)
{
	volatile char *p = alloca(n);

	p[0] = 1;
	return p[0];
}

static void *allocates_probed(void *arg)
{
	return (void *)(long)large_probed(1024 * KIB);
}

TEST(overflow_by_alloca_with_probes)
{
	struct ending e;

	run_child(&e, allocates_probed, NULL);
	check_died(&e, SIGSEGV);
	check_said(&e, "stack overflow in fiber 2");
	EXPECT_EQ(0, failures);
}

/*
 * Without probes the frame jumps the guard. Into the page below the stack, a
 * guard of nobody's knowledge, it still is a fault and no silence, as long as
 * nothing lies there: here the block below is given back first.
 */
__attribute__((noinline, optimize("no-stack-clash-protection")))
static int large_unprobed(volatile char *low, size_t below)
{
	char here;
	volatile char *p = alloca((size_t)(&here - (char *)low) + below);

	p[0] = 1;
	return p[0];
}

static void *allocates_unprobed(void *arg)
{
	struct fiber_stack s = { .size = sizeof(s) };

	check_eq(0, fiber_stack_info(fiber_self(), &s));
	return (void *)(long)large_unprobed(s.low, 2048);
}

TEST(overflow_by_alloca_into_the_guard)
{
	struct ending e;

	run_child(&e, allocates_unprobed, NULL);
	check_died(&e, SIGSEGV);
	check_said(&e, "stack overflow in fiber 2");
	EXPECT_EQ(0, failures);
}

/* ---- faults that are no overflow ---- */

static void *writes_to_null(void *arg)
{
	*(volatile int *)arg = 1;
	return NULL;
}

TEST(other_faults_are_not_called_overflow)
{
	struct ending e;

	run_child(&e, writes_to_null, NULL);
	check_died(&e, SIGSEGV);
	check(!strstr(e.said, "overflow"));
	EXPECT_EQ(0, failures);
}

static void *sends_segv(void *arg)
{
	raise(SIGSEGV);
	return NULL;
}

TEST(a_sent_signal_has_its_default_action)
{
	struct ending e;

	run_child(&e, sends_segv, NULL);
	check_died(&e, SIGSEGV);
	check(!strstr(e.said, "overflow"));
	EXPECT_EQ(0, failures);
}

static void exits_42(int sig)
{
	_exit(42);
}

TEST(the_programs_handler_gets_what_is_not_ours)
{
	struct ending e;

	signal(SIGSEGV, exits_42);
	run_child(&e, writes_to_null, NULL);
	check(WIFEXITED(e.status));
	check_eq(42, WEXITSTATUS(e.status));
	run_child(&e, overflows, NULL);
	check_died(&e, SIGSEGV);
	check_said(&e, "stack overflow in fiber 2");
	signal(SIGSEGV, SIG_DFL);
	EXPECT_EQ(0, failures);
}

TEST(the_handler_goes_with_the_runtime)
{
	struct sigaction sa;

	signal(SIGSEGV, exits_42);
	ASSERT_EQ(0, start(1, 0));
	ASSERT_EQ(0, sigaction(SIGSEGV, NULL, &sa));
	ASSERT_NE((void *)exits_42, (void *)sa.sa_handler);
	ASSERT_EQ(0, fiber_fini());
	ASSERT_EQ(0, sigaction(SIGSEGV, NULL, &sa));
	ASSERT_EQ((void *)exits_42, (void *)sa.sa_handler);
}

/* ---- canaries ---- */

/* Writes over what lies at the end of its stack, and comes back. */
static void *oversteps(void *arg)
{
	struct fiber_stack s = { .size = sizeof(s) };

	check_eq(0, fiber_stack_info(fiber_self(), &s));
	memset((char *)s.low - 16, 0x55, 16);
	if (arg)
		fiber_yield();
	return NULL;
}

static void *oversteps_small(void *arg)
{
	struct fiber_attr attr = { .size = sizeof(attr), .stack_size = 2 * KIB,
				   .name = "small one" };
	fiber_t *f;

	check_eq(0, fiber_spawn_attr(&f, &attr, oversteps, arg));
	return join(f);
}

TEST(canary_of_a_small_stack)
{
	struct ending e;

	for (long yields = 0; yields < 2; yields++) {
		run_child(&e, oversteps_small, (void *)yields);
		check_died(&e, SIGABRT);
		check_said(&e, "stack overflow in fiber 1 \"small one\": 2048 bytes");
		check_said(&e, "raise fiber_attr.stack_size");
		check_said(&e, "entry function");
	}
	EXPECT_EQ(0, failures);
}

TEST(canary_forced)
{
	struct ending e;

	setenv("FIBER_STACK_GUARD", "canary", 1);
	for (long yields = 0; yields < 2; yields++) {
		run_child(&e, oversteps, (void *)yields);
		check_died(&e, SIGABRT);
		check(!strstr(e.said, "no more guard pages"));
		check_said(&e, "stack overflow in fiber 2 ");
	}
	unsetenv("FIBER_STACK_GUARD");
	EXPECT_EQ(0, failures);
}

/*
 * Jumps over the end of its stack, writes nothing there, and is there when it parks.
 * `below`: from the end to where it is.
 */
__attribute__((noinline, optimize("no-stack-clash-protection")))
static void jump(const volatile char *low, size_t below)
{
	char here;
	volatile char *p = alloca((size_t)(&here - (char *)low) + below);

	__asm__ volatile("" : : "r"(p) : "memory");
	fiber_sleep(MS);
}

static void *jumps(void *arg)
{
	struct fiber_stack s = { .size = sizeof(s) };

	check_eq(0, fiber_stack_info(fiber_self(), &s));
	jump(s.low, (size_t)arg);
	return NULL;
}

static void *sleeps(void *arg)
{
	fiber_sleep(SEC);
	return arg;
}

/* Into what is another's stack, or was. */
static void jump_among(size_t size, size_t below)
{
	struct fiber_attr attr = { .size = sizeof(attr), .stack_size = size };
	fiber_t *f[4];

	for (int i = 0; i < 4; i++)
		check_eq(0, fiber_spawn_attr(&f[i], &attr, i < 3 ? sleeps : jumps,
					     (void *)below));
	for (int i = 0; i < 4; i++)
		join(f[i]);
}

static void *jumps_default(void *arg)
{
	jump_among(0, (size_t)arg);
	return NULL;
}

static void *jumps_small(void *arg)
{
	jump_among(2 * KIB, (size_t)arg);
	return NULL;
}

/* The canary is as it was: 64 bytes below the stack, and jumped over. */
TEST(canary_that_is_jumped_over)
{
	struct ending e;

	setenv("FIBER_STACK_GUARD", "canary", 1);
	for (size_t below = 128; below <= 1024; below *= 2) {
		run_child(&e, jumps_default, (void *)below);
		check_died(&e, SIGABRT);
		check_said(&e, "stack overflow in fiber ");
		run_child(&e, jumps_small, (void *)below);
		check_died(&e, SIGABRT);
		check_said(&e, "stack overflow in fiber ");
	}
	unsetenv("FIBER_STACK_GUARD");
	EXPECT_EQ(0, failures);
}

static int parks_in_a_coroutine(void *arg, void **value)
{
	(void)arg, (void)value;
	check_eq(0, fiber_sleep(MS));
	return 0;
}

static void parks_elsewhere(void)
{
	check_eq(0, fiber_sleep(MS));
}

/* Below all blocks, as static memory is. */
static void *goes_elsewhere(void *arg)
{
	static char stack[64 * KIB];
	static ucontext_t back, there;
	fiber_coro_t *co;

	check_eq(0, fiber_coro_create(&co, parks_in_a_coroutine, NULL));
	check_eq(0, fiber_coro_resume(co, NULL, NULL));
	check_eq(0, fiber_coro_destroy(co));
	check_eq(0, getcontext(&there));
	there.uc_stack.ss_sp = stack;
	there.uc_stack.ss_size = sizeof(stack);
	there.uc_link = &back;
	makecontext(&there, parks_elsewhere, 0);
	check_eq(0, swapcontext(&back, &there));
	return arg;
}

TEST(canary_lets_other_stacks_be)
{
	setenv("FIBER_STACK_GUARD", "canary", 1);
	ASSERT_EQ(0, with_runtime(1, 0, goes_elsewhere, NULL));
	unsetenv("FIBER_STACK_GUARD");
	EXPECT_EQ(0, failures);
}

static void *checks_features(void *arg)
{
	uint64_t both = FIBER_FEATURE_GUARD | FIBER_FEATURE_CANARY;

	check_eq((uint64_t)(uintptr_t)arg, fiber_features() & both);
	return NULL;
}

TEST(features_say_which_guard)
{
	ASSERT_EQ(0, with_runtime(1, 0, checks_features,
				  (void *)FIBER_FEATURE_GUARD));
	setenv("FIBER_STACK_GUARD", "mprotect", 1);
	ASSERT_EQ(0, with_runtime(1, 0, checks_features,
				  (void *)FIBER_FEATURE_GUARD));
	setenv("FIBER_STACK_GUARD", "canary", 1);
	ASSERT_EQ(0, with_runtime(1, 0, checks_features,
				  (void *)FIBER_FEATURE_CANARY));
	unsetenv("FIBER_STACK_GUARD");
	EXPECT_EQ(0, failures);
}

/* ---- very many ---- */

static atomic_ulong woken;
static atomic_bool go_on;

static void *waits(void *arg)
{
	while (!atomic_load(&go_on))
		fiber_yield();
	atomic_fetch_add(&woken, 1);
	return arg;
}

/* So many at once, of this stack size; then all end. */
static void many(size_t n, size_t stack_size)
{
	struct fiber_attr attr = { .size = sizeof(attr),
				   .stack_size = stack_size };
	fiber_t **f = calloc(n, sizeof(*f));

	atomic_store(&go_on, false);
	atomic_store(&woken, 0);
	for (size_t i = 0; i < n; i++)
		check_eq(0, fiber_spawn_attr(&f[i], &attr, waits, &f[i]));
	atomic_store(&go_on, true);
	for (size_t i = 0; i < n; i++)
		check(join(f[i]) == &f[i]);
	check_eq(n, atomic_load(&woken));
	free(f);
}

/*
 * Spawned by a plain thread, so that they run only when all are there: a
 * yield of each for each that is spawned would be quadratic.
 */
static void many_plain(unsigned int processors, size_t n, size_t stack_size)
{
	check_eq(0, start(processors, 0));
	many(n, stack_size);
	check_eq(0, fiber_fini());
}

static void *spawns_and_parks(void *arg);

struct chain {
	size_t left, stack_size;
	fiber_t *first;
	uint64_t wake;
};

/* Each starts the next and parks until all are there. */
static void *spawns_and_parks(void *arg)
{
	struct chain *c = arg;
	struct fiber_attr attr = { .size = sizeof(attr),
				   .stack_size = c->stack_size };

	if (!--c->left)
		c->wake = fiber_now();
	else
		check_eq(0, fiber_spawn_attr(NULL, &attr, spawns_and_parks, c));
	while (!c->wake)
		fiber_sleep(100 * MS);
	atomic_fetch_add(&woken, 1);
	return NULL;
}

/* 100,000; emulation has its own idea of many. */
static size_t how_many(void)
{
	return in_vm() ? 2000 : 100000;
}

static void *runs_chain(void *arg)
{
	struct chain c = { how_many(), (size_t)arg, NULL, 0 };

	atomic_store(&woken, 0);
	check_eq(0, fiber_spawn(NULL, spawns_and_parks, &c));
	while (atomic_load(&woken) < how_many())
		fiber_sleep(50 * MS);
	return NULL;
}

/* The default vm.max_map_count would not do for a mapping each. */
TEST(hundred_thousand_in_capped_memory)
{
	cap_memory(RLIMIT_AS, 10UL << 30);
	ASSERT_EQ(0, with_runtime(2, 0, runs_chain, NULL));
	EXPECT_EQ(0, failures);
}

TEST(hundred_thousand_small_in_capped_memory)
{
	cap_memory(RLIMIT_DATA, 600UL << 20);
	ASSERT_EQ(0, with_runtime(2, 0, runs_chain, (void *)(2 * KIB)));
	EXPECT_EQ(0, failures);
}

/* More than mprotect has mappings for: canaries then, and one line. */
static void *runs_chain_out_of_mappings(void *arg)
{
	runs_chain(arg);
	checks_features((void *)FIBER_FEATURE_CANARY);
	return NULL;
}

TEST(hundred_thousand_without_guard_install)
{
	struct ending e;

	if (in_vm())
		SKIP(return, "so many fibers take too long under emulation");
	setenv("FIBER_STACK_GUARD", "mprotect", 1);
	run_child(&e, runs_chain_out_of_mappings, NULL);
	check(WIFEXITED(e.status));
	check_eq(0, WEXITSTATUS(e.status));
	check_said(&e, "no more guard pages for stacks: half of vm.max_map_count");
	check(strchr(e.said, '\n') == strrchr(e.said, '\n'));
	unsetenv("FIBER_STACK_GUARD");
	EXPECT_EQ(0, failures);
}

/* ---- classes ---- */

static void *fills(void *arg)
{
	struct fiber_stack s = { .size = sizeof(s) };
	char *low;

	check_eq(0, fiber_stack_info(fiber_self(), &s));
	check(s.bytes >= (size_t)arg);
	check(s.used > 0 && s.used < s.bytes);
	low = s.low;
	/* All of it but the frames in use. */
	for (char *p = (char *)__builtin_frame_address(0) - 1024; p >= low; p--)
		*(volatile char *)p = 0x33;
	fiber_yield();
	check_eq(0x33, *(volatile char *)low);
	return arg;
}

static void *uses_all_classes(void *arg)
{
	struct fiber_attr attr = { .size = sizeof(attr) };
	fiber_t *f[4];

	for (size_t size = 1536; size <= 16384 * KIB; size += size / 3) {
		attr.stack_size = size;
		for (int i = 0; i < 4; i++)
			check_eq(0, fiber_spawn_attr(&f[i], &attr, fills,
						     (void *)size));
		for (int i = 0; i < 4; i++)
			check_eq(size, (size_t)join(f[i]));
	}
	return NULL;
}

TEST(classes_give_what_was_asked_for)
{
	ASSERT_EQ(0, with_runtime(1, 0, uses_all_classes, NULL));
	ASSERT_EQ(0, with_runtime(3, 0, uses_all_classes, NULL));
	EXPECT_EQ(0, failures);
}

TEST(classes_from_a_plain_thread)
{
	for (size_t size = 2 * KIB; size < 1024 * KIB; size *= 5)
		many_plain(2, 200, size);
	EXPECT_EQ(0, failures);
}

/* ---- the program's own memory ---- */

static char own[3][16 * KIB];

static void *is_on_own(void *arg)
{
	char *here = __builtin_frame_address(0), *mine = arg;

	for (int i = 0; i < 100; i++) {
		check(here >= mine && here < mine + sizeof(own[0]));
		fiber_yield();
		check(here == (char *)__builtin_frame_address(0));
	}
	check_eq(0, (uintptr_t)here % 16);
	return arg;
}

static void *uses_own_memory(void *arg)
{
	struct fiber_attr attr = { .size = sizeof(attr) };
	fiber_t *f[3];

	for (int round = 0; round < 10; round++) {
		for (int i = 0; i < 3; i++) {
			attr.stack = own[i] + round;
			attr.stack_size = sizeof(own[i]) - (size_t)round;
			check_eq(0, fiber_spawn_attr(&f[i], &attr, is_on_own,
						     own[i]));
		}
		for (int i = 0; i < 3; i++) {
			check(join(f[i]) == own[i]);
			memset(own[i], 0, sizeof(own[i]));
		}
	}
	return NULL;
}

TEST(own_memory)
{
	ASSERT_EQ(0, with_runtime(1, 0, uses_own_memory, NULL));
	ASSERT_EQ(0, with_runtime(2, 0, uses_own_memory, NULL));
	ASSERT_EQ(0, start(2, 0));
	uses_own_memory(NULL);
	ASSERT_EQ(0, fiber_fini());
	EXPECT_EQ(0, failures);
}

TEST(own_memory_is_checked)
{
	struct fiber_attr attr = { .size = sizeof(attr), .stack = own };
	fiber_t *f = NULL;

	ASSERT_EQ(0, start(1, 0));
	ASSERT_EQ(-EINVAL, fiber_spawn_attr(&f, &attr, is_on_own, own[0]));
	attr.stack_size = 100;
	ASSERT_EQ(-EINVAL, fiber_spawn_attr(&f, &attr, is_on_own, own[0]));
	attr.stack_size = SIZE_MAX - 4096;
	ASSERT_EQ(-EINVAL, fiber_spawn_attr(&f, &attr, is_on_own, own[0]));
	attr.stack_size = sizeof(own[0]);
	ASSERT_EQ(-EINVAL, fiber_spawn_attr(NULL, &attr, is_on_own, own[0]));
	ASSERT_EQ(NULL, f);
	ASSERT_EQ(-EINVAL, fiber_join(NULL, NULL));
	ASSERT_EQ(-EINVAL, fiber_detach(NULL));
	ASSERT_EQ(0, fiber_fini());
}

static void *joins_nobody(void *arg)
{
	check_eq(-EINVAL, fiber_join(NULL, NULL));
	check_eq(-EINVAL, fiber_detach(NULL));
	return NULL;
}

TEST(join_of_null_in_a_fiber)
{
	ASSERT_EQ(0, with_runtime(1, 0, joins_nobody, NULL));
	EXPECT_EQ(0, failures);
}

/* ---- marks ---- */

static __attribute__((noinline)) void goes_down(size_t bytes)
{
	volatile char *p = alloca(bytes);

	for (size_t i = 0; i < bytes; i += 512)
		p[i] = 1;
	fiber_yield();
	check_eq(1, p[0]);
}

static void *goes_10k(void *arg)
{
	struct fiber_stack s = { .size = sizeof(s) };

	goes_down(10 * KIB);
	check_eq(0, fiber_stack_info(fiber_self(), &s));
	check(s.deepest >= 10 * KIB);
	check(s.used < 4 * KIB);
	return NULL;
}

static void *goes_30k(void *arg)
{
	goes_down(30 * KIB);
	return NULL;
}

static void *marks(void *arg)
{
	struct fiber_stack_mark m[8];
	int n, found = 0;

	for (int i = 0; i < 20; i++) {
		join(spawn(goes_30k, NULL));
		join(spawn(goes_10k, NULL));
	}
	n = fiber_stack_marks(m, 8);
	check(n >= 2 && n <= 8);
	for (int i = 0; i < n; i++) {
		bool ten = m[i].fn == goes_10k;

		if (!ten && m[i].fn != goes_30k)
			continue;
		found++;
		check_eq(20, m[i].ended);
		check(m[i].deepest >= (ten ? 10 : 30) * KIB);
		check(m[i].deepest < (ten ? 14 : 34) * KIB);
		check(m[i].stack_size > 48 * KIB);
	}
	check_eq(2, found);
	check_eq(n, fiber_stack_marks(NULL, 0));
	return NULL;
}

TEST(marks_of_entry_functions)
{
	setenv("FIBER_STACK_MARKS", "1", 1);
	/* No turn ends early: what that puts on the stack is no part of it. */
	ASSERT_EQ(0, with_runtime(1, SEC, marks, NULL));
	ASSERT_EQ(0, with_runtime(2, SEC, marks, NULL));
	unsetenv("FIBER_STACK_MARKS");
	ASSERT_EQ(0, start(1, 0));
	ASSERT_EQ(-EOPNOTSUPP, fiber_stack_marks(NULL, 0));
	ASSERT_EQ(0, fiber_fini());
	EXPECT_EQ(0, failures);
}

/* ---- memory goes back ---- */

static fiber_event_t all_there = FIBER_EVENT_INIT;

/* Parks deep down: none may end, and leave its stack to others, before all are. */
static void *touches(void *arg)
{
	volatile char *p = alloca(20 * KIB);

	for (size_t i = 0; i < 20 * KIB; i += 512)
		p[i] = 1;
	check_eq(0, fiber_event_wait(&all_there));
	check_eq(1, p[0]);
	return NULL;
}

static void spawn_all(fiber_t **f, int n)
{
	check_eq(0, fiber_event_reset(&all_there));
	for (int i = 0; i < n; i++)
		f[i] = spawn(touches, NULL);
	settle();
}

static void end_all(fiber_t **f, int n)
{
	check_eq(0, fiber_event_set(&all_there));
	for (int i = 0; i < n; i++)
		join(f[i]);
}

static long resident_kib(void)
{
	return proc_number("/proc/self/status", "VmRSS:");
}

static void *bursts(void *arg)
{
	const int N = in_vm() ? 1500 : 4000;
	fiber_t **f = calloc(N, sizeof(*f));
	long before = resident_kib(), peak, after = 0;

	spawn_all(f, N);
	peak = resident_kib();
	end_all(f, N);
	check(peak - before > N * 20);
	/* The keep of 16 MiB and a pool may stay. */
	for (int i = 0; i < 600; i++) {
		fiber_sleep(50 * MS);
		after = resident_kib();
		if (after - before < N * 10)
			break;
	}
	check(after - before < N * 10);
	figure("stack: burst: before=%ld peak=%ld after=%ld KiB\n", before, peak,
	       after);
	/* What went back serves again. */
	spawn_all(f, N);
	end_all(f, N);
	free(f);
	return NULL;
}

static void *parks(void *arg)
{
	check_eq(0, fiber_event_wait(&all_there));
	return NULL;
}

/* A page each, as with guard pages: the canary takes none. */
static void *parks_many(void *arg)
{
	const int N = in_vm() ? 1500 : 4000;
	fiber_t **f = calloc(N, sizeof(*f));
	long before = resident_kib(), after;

	check_eq(0, fiber_event_reset(&all_there));
	for (int i = 0; i < N; i++)
		f[i] = spawn(parks, NULL);
	settle();
	after = resident_kib();
	figure("stack: canary: %ld bytes each\n", (after - before) * 1024 / N);
	check(after - before < N * 6);
	end_all(f, N);
	free(f);
	return NULL;
}

TEST(canary_takes_no_page)
{
	setenv("FIBER_STACK_GUARD", "canary", 1);
	ASSERT_EQ(0, with_runtime(1, 0, parks_many, NULL));
	unsetenv("FIBER_STACK_GUARD");
	EXPECT_EQ(0, failures);
}

TEST(memory_goes_back_after_a_burst)
{
	ASSERT_EQ(0, with_runtime(1, 0, bursts, NULL));
	EXPECT_EQ(0, failures);
}

TEST_HARNESS_MAIN
