// SPDX-License-Identifier: GPL-2.0-only
/* What belongs to a fiber: errno, float control words, its stack. */
#include <immintrin.h>

#include "common.h"

/* Not inlined: errno's address must be taken anew after each switch. */
static __attribute__((noinline)) int get_errno(void)
{
	__asm__ volatile("" ::: "memory");
	return errno;
}

static __attribute__((noinline)) void set_errno(int n)
{
	errno = n;
	__asm__ volatile("" ::: "memory");
}

static void busy(unsigned int n)
{
	for (volatile unsigned int i = 0; i < n; i++)
		;
}

/* ---- errno ---- */

/* SIGURG, which the user backend preempts by, can end it: README. */
static void sleep_in_kernel(uint64_t ns, int mine)
{
	if (!block_ns(ns))
		return;
	check_eq(EINTR, get_errno());
	check(!on_kernel());
	set_errno(mine);
}

static void *keeps_errno(void *arg)
{
	uint32_t seed = (uint32_t)(uintptr_t)arg;

	check_eq(0, get_errno());	/* a new fiber begins with none */
	for (int i = 1; i <= 500; i++) {
		int mine = (int)((uintptr_t)arg * 1000) + i;

		set_errno(mine);
		switch (next_random(&seed) % 8) {
		case 0: check_eq(0, fiber_sleep(seed % (100 * US))); break;
		case 1: sleep_in_kernel(seed % (100 * US), mine); break;
		case 2: busy(seed % 20000); break;
		case 3: check_eq(0, fiber_spawn(NULL, keeps_errno, NULL) < 0);
			break;
		default: fiber_yield();
		}
		check_eq(mine, get_errno());
		if (!arg)
			return NULL;
	}
	return NULL;
}

static void *errno_per_fiber(void *arg)
{
	fiber_t *f[8];

	for (uintptr_t i = 0; i < ARRAY_SIZE(f); i++)
		f[i] = spawn(keeps_errno, (void *)(i + 1));
	for (size_t i = 0; i < ARRAY_SIZE(f); i++)
		join(f[i]);
	return NULL;
}

TEST(errno_is_kept_per_fiber)
{
	for (unsigned int n = 1; n <= 3; n++) {
		ASSERT_EQ(0, start(n, 1 * MS));
		join(spawn(errno_per_fiber, NULL));
		ASSERT_EQ(0, fini_soon());
	}
	EXPECT_EQ(0, failures);
}

static void *returns_arg(void *arg)
{
	return arg;
}

static void *calls_everything(void *arg)
{
	struct fiber_attr attr = { .size = 1 };
	struct fiber_stats st = { .size = sizeof(st) };
	fiber_t *f;

	set_errno(77);
	check_eq(0, fiber_spawn(&f, returns_arg, NULL));
	check_eq(0, fiber_join(f, NULL));
	check_eq(-EINVAL, fiber_spawn_attr(&f, &attr, returns_arg, NULL));
	check_eq(-EBUSY, fiber_init(NULL));
	check_eq(-EBUSY, fiber_fini());
	check_eq(-EDEADLK, fiber_join(fiber_self(), NULL));
	check_eq(0, fiber_sleep(1 * MS));
	fiber_yield();
	fiber_blocking_begin();
	fiber_blocking_end();
	fiber_no_preempt_begin();
	fiber_no_preempt_end();
	fiber_set_name(fiber_self(), "n");
	fiber_preemptible((void *)calls_everything);
	fiber_preemptible(NULL);
	fiber_get_stats(&st);
	check_eq(77, get_errno());
	return NULL;
}

TEST(errno_is_never_touched)
{
	set_errno(78);
	ASSERT_EQ(0, start(1, 0));
	join(spawn(calls_everything, NULL));
	ASSERT_EQ(0, fiber_fini());
	ASSERT_EQ(78, get_errno());
	ASSERT_GT(0, fiber_fini());
	ASSERT_EQ(78, get_errno());
	EXPECT_EQ(0, failures);
}

/* ---- float control words ---- */

static unsigned short get_cw(void)
{
	unsigned short cw;

	__asm__ volatile("fnstcw %0" : "=m"(cw));
	return cw;
}

static void set_cw(unsigned short cw)
{
	__asm__ volatile("fldcw %0" : : "m"(cw));
}

#define MXCSR_MODE	0xffc0U		/* without the sticky flags */

static void *keeps_float_modes(void *arg)
{
	unsigned int rounding = (unsigned int)(uintptr_t)arg & 3;
	unsigned int mxcsr = 0x1f80 | rounding << 13;
	unsigned short cw = (unsigned short)(0x37f | rounding << 10);

	check_eq(0x1f80, _mm_getcsr() & MXCSR_MODE);
	check_eq(0x37f, get_cw());
	_mm_setcsr(mxcsr);
	set_cw(cw);
	for (int i = 0; i < 300; i++) {
		if (i % 50 == 7)
			check_eq(0, fiber_sleep(50 * US));
		else if (i % 50 == 9)
			check_eq(0, block_ns(50 * US));
		else if (i % 50 == 11)
			busy(100000);
		else
			fiber_yield();
		check_eq(mxcsr, _mm_getcsr() & MXCSR_MODE);
		check_eq(cw, get_cw());
	}
	return NULL;
}

static void *float_modes(void *arg)
{
	fiber_t *f[8];

	for (uintptr_t i = 0; i < ARRAY_SIZE(f); i++)
		f[i] = spawn(keeps_float_modes, (void *)i);
	for (size_t i = 0; i < ARRAY_SIZE(f); i++)
		join(f[i]);
	check_eq(0x1f80, _mm_getcsr() & MXCSR_MODE);
	check_eq(0x37f, get_cw());
	return NULL;
}

TEST(float_modes_are_kept_per_fiber)
{
	for (unsigned int n = 1; n <= 3; n++)
		ASSERT_EQ(0, with_runtime(n, 1 * MS, float_modes, NULL));
	EXPECT_EQ(0, failures);
}

/* ---- stacks ---- */

static void *looks_at_alignment(void *arg)
{
	char text[64];

	check_eq(0, (uintptr_t)__builtin_frame_address(0) % 16);
	if (arg)		/* a stack too small for printf */
		return NULL;
	snprintf(text, sizeof(text), "%.3f %Lf", 1.5, 2.25L);
	check(!strcmp(text, "1.500 2.250000"));
	return NULL;
}

static void *aligned(void *arg)
{
	struct fiber_attr attr = { .size = sizeof(attr) };
	fiber_t *f;

	looks_at_alignment(NULL);
	for (size_t size = 1; size < 300000; size += 9973) {
		attr.stack_size = size;
		check_eq(0, fiber_spawn_attr(&f, &attr, looks_at_alignment,
					     size < 8192 ? &attr : NULL));
		join(f);
	}
	return NULL;
}

TEST(stack_is_aligned_at_entry)
{
	ASSERT_EQ(0, with_runtime(1, 0, aligned, NULL));
	EXPECT_EQ(0, failures);
}

/* Fills about bytes of stack and looks whether all of it is still there. */
static __attribute__((noinline)) unsigned int recurse(size_t bytes,
						      unsigned char mark)
{
	volatile unsigned char frame[1024];
	unsigned int bad = 0;

	for (size_t i = 0; i < sizeof(frame); i++)
		frame[i] = mark;
	if (bytes > 1200)
		bad = recurse(bytes - 1100, (unsigned char)(mark + 1));
	else
		fiber_yield();
	for (size_t i = 0; i < sizeof(frame); i++)
		bad += frame[i] != mark;
	return bad;
}

static void *recurses(void *arg)
{
	for (int i = 0; i < 20; i++)
		check_eq(0, recurse((size_t)arg, (unsigned char)i));
	return NULL;
}

static void *deep(void *arg)
{
	size_t sizes[] = { 32 << 10, 64 << 10, 256 << 10, 1 << 20, 8 << 20 };
	struct fiber_attr attr = { .size = sizeof(attr) };
	fiber_t *f[ARRAY_SIZE(sizes)], *g[10];

	for (int i = 0; i < 10; i++)	/* the default: 64 KiB */
		g[i] = spawn(recurses, (void *)(48UL << 10));
	for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
		attr.stack_size = sizes[i];
		check_eq(0, fiber_spawn_attr(&f[i], &attr, recurses,
					     (void *)(sizes[i] - (8 << 10))));
	}
	for (size_t i = 0; i < ARRAY_SIZE(sizes); i++)
		join(f[i]);
	for (int i = 0; i < 10; i++)
		join(g[i]);
	return NULL;
}

TEST(deep_recursion_within_the_stack)
{
	ASSERT_EQ(0, with_runtime(1, 1 * MS, deep, NULL));
	ASSERT_EQ(0, with_runtime(2, 1 * MS, deep, NULL));
	EXPECT_EQ(0, failures);
}

TEST(default_stack_size_is_configurable)
{
	struct fiber_config cfg = {
		.size = sizeof(cfg), .processors = 1, .stack_size = 512 << 10,
	};

	clean_environment();
	ASSERT_EQ(0, fiber_init(&cfg));
	join(spawn(recurses, (void *)(500UL << 10)));
	ASSERT_EQ(0, fiber_fini());
	EXPECT_EQ(0, failures);
}

static void *overflows(void *arg)
{
	recurse(64UL << 20, 1);
	return NULL;
}

static int overflow_main(void *arg)
{
	fiber_t *f[3];

	if (!(fiber_features() & FIBER_FEATURE_GUARD))
		_exit(KSFT_SKIP);
	for (int i = 0; i < 3; i++)
		f[i] = spawn(i == 1 ? overflows : returns_arg, NULL);
	for (int i = 0; i < 3; i++)
		join(f[i]);
	return 0;
}

TEST(overflow_hits_the_guard)
{
	int status;
	pid_t pid;

	clean_environment();
	pid = fork();
	if (!pid)
		_exit(fiber_run(overflow_main, NULL));
	ASSERT_EQ(pid, waitpid(pid, &status, 0));
	if (WIFEXITED(status) && WEXITSTATUS(status) == KSFT_SKIP)
		SKIP(return, "no guard pages here");
	ASSERT_TRUE(WIFSIGNALED(status));
	ASSERT_EQ(SIGSEGV, WTERMSIG(status));
}

/* ---- signal mask ---- */

static void *looks_at_mask(void *arg)
{
	sigset_t set;

	check_eq(0, pthread_sigmask(SIG_SETMASK, NULL, &set));
	check_eq(1, sigismember(&set, SIGUSR2));
	check_eq(0, sigismember(&set, SIGUSR1));
	check_eq(0, sigismember(&set, SIGTERM));
	check_eq(0, block_ns(2 * MS));
	return NULL;
}

TEST(carriers_have_the_mask_of_their_creator)
{
	sigset_t set;
	fiber_t *f[10];

	sigemptyset(&set);
	sigaddset(&set, SIGUSR2);
	ASSERT_EQ(0, pthread_sigmask(SIG_BLOCK, &set, NULL));
	ASSERT_EQ(0, start(2, 0));
	for (int i = 0; i < 10; i++)
		f[i] = spawn(looks_at_mask, NULL);
	for (int i = 0; i < 10; i++)
		join(f[i]);
	ASSERT_EQ(0, fiber_fini());
	EXPECT_EQ(0, failures);
}

TEST_HARNESS_MAIN
