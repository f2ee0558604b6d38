// SPDX-License-Identifier: GPL-2.0-only
/* What people do with coroutines, and what the rest of C does to them. */
#include <execinfo.h>
#include <immintrin.h>
#include <setjmp.h>

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

/* ---- generators ---- */

static int ended;

static void count_end(void *arg)
{
	ended++;
}

static int count_to(void *arg, void **value)
{
	fiber_coro_defer(count_end, NULL);
	for (long i = 0; i < (long)arg; i++)
		if (fiber_coro_yield(NUM(i), NULL))
			return 0;
	return -ENODATA;
}

static void leaves_early(void)
{
	fiber_coro_t *g FIBER_CORO_AUTO = fiber_coro_wrap(count_to, NUM(100));
	long want = 0;

	fiber_coro_for_each(long, i, g) {
		check_eq(want++, i);
		if (i == 3)
			continue;
		if (i == 10)
			break;
	}
	check_eq(11, want);
	check(g != NULL);
	fiber_coro_for_each(long, i, g) {	/* goes on behind the break */
		check_eq(want++, i);
		if (i == 20)
			return;
	}
}

TEST(generator_loops_end_at_any_place)
{
	fiber_coro_t *g = fiber_coro_wrap(count_to, NUM(5));
	long sum = 0;

	ended = 0;
	fiber_coro_for_each(long, i, g)
		sum += i;
	check_eq(10, sum);
	check_eq(NULL, g);		/* freed by the call that saw it end */
	check_eq(1, ended);
	check_eq(-ESRCH, fiber_coro_call(&g, NULL, NULL));
	leaves_early();
	check_eq(2, ended);
	g = fiber_coro_wrap(count_to, NUM(0));
	check_eq(-ENODATA, fiber_coro_call(&g, NULL, NULL));
	check_eq(NULL, g);
	check_eq(NULL, fiber_coro_wrap(NULL, NULL));
	EXPECT_EQ(0, failures);
}

struct perm {
	int a[7], n;
};

/* Lua's: each coroutine is one recursion deep in its own stack. */
static int permute(struct perm *p, int n)
{
	int r = 0, t;

	if (n <= 1)
		return fiber_coro_yield(p->a, NULL);
	for (int i = 0; i < n && !r; i++) {
		t = p->a[n - 1], p->a[n - 1] = p->a[i], p->a[i] = t;
		r = permute(p, n - 1);
		t = p->a[n - 1], p->a[n - 1] = p->a[i], p->a[i] = t;
	}
	return r;
}

static int permutations(void *arg, void **value)
{
	struct perm *p = arg;

	return permute(p, p->n);
}

TEST(generator_of_permutations)
{
	struct perm p = { { 0, 1, 2, 3, 4, 5, 6 }, 7 };
	fiber_coro_t *g = fiber_coro_wrap(permutations, &p);
	static bool seen[8 * 8 * 8 * 8 * 8 * 8 * 8];
	int n = 0;

	fiber_coro_for_each(int *, a, g) {
		unsigned int key = 0;

		for (int i = 0; i < 7; i++)
			key = key * 8 + (unsigned int)a[i];
		check(!seen[key]);
		seen[key] = true;
		n++;
	}
	check_eq(5040, n);
	EXPECT_EQ(0, failures);
}

struct filter {
	fiber_coro_t *from;
	long prime;
};

static int naturals(void *arg, void **value)
{
	for (long i = 2; !fiber_coro_yield(NUM(i), NULL); i++)
		;
	return 0;
}

static int not_divisible(void *arg, void **value)
{
	struct filter f = *(struct filter *)arg;
	void *n;

	while (fiber_coro_resume(f.from, NULL, &n) == YIELDED)
		if ((long)n % f.prime && fiber_coro_yield(n, NULL))
			break;
	return fiber_coro_destroy(f.from);
}

TEST(generator_prime_sieve)
{
	fiber_coro_t *top = create(naturals, NULL);
	static struct filter f[500];
	void *p = NULL;

	for (int i = 0; i < 500; i++) {
		check_eq(YIELDED, fiber_coro_resume(top, NULL, &p));
		f[i] = (struct filter) { top, (long)p };
		top = create(not_divisible, &f[i]);
	}
	check_eq(3571, (long)p);	/* the 500th */
	check_eq(YIELDED, fiber_coro_resume(top, NULL, &p));
	check_eq(3581, (long)p);
	check_eq(0, fiber_coro_destroy(top));	/* and each the one below */
	EXPECT_EQ(0, failures);
}

/* Resumes one more until `left` is 0; each yields what the deeper one did. */
static int nests(void *arg, void **value)
{
	int left = INT(arg), r;
	fiber_coro_t *co;
	void *out = NUM(1);

	if (!left)
		return fiber_coro_yield(NUM(1), NULL);
	r = fiber_coro_create(&co, nests, NUM(left - 1));
	if (r)
		return r;
	r = fiber_coro_resume(co, NULL, &out);
	if (r == YIELDED)
		r = fiber_coro_yield(NUM(INT(out) + 1), NULL);
	fiber_coro_destroy(co);
	return r;
}

TEST(coro_resumes_nest_deeply)
{
	int depth = in_vm() ? 2000 : 20000;
	fiber_coro_t *co = create(nests, NUM(depth));
	void *out = NULL;

	check_eq(YIELDED, fiber_coro_resume(co, NULL, &out));
	check_eq(depth + 1, INT(out));
	check_eq(0, fiber_coro_close(co));
	check_eq(0, fiber_coro_destroy(co));
	EXPECT_EQ(0, failures);
}

/* ---- across the C library ---- */

static int compares;

static int yielding_compare(const void *a, const void *b)
{
	compares++;
	if (fiber_coro_yield(NUM(compares), NULL))
		fiber_coro_exit(-ECANCELED);
	return *(const int *)a - *(const int *)b;
}

static int sorts(void *arg, void **value)
{
	qsort(arg, 100, sizeof(int), yielding_compare);
	return 0;
}

TEST(coro_yields_out_of_qsort)
{
	uint32_t seed = 1;
	fiber_coro_t *co[2];
	int v[2][100], n = 0;
	void *out;

	for (int i = 0; i < 200; i++)
		v[i / 100][i % 100] = (int)(next_random(&seed) % 1000);
	co[0] = create(sorts, v[0]);
	co[1] = create(sorts, v[1]);
	compares = 0;
	while (fiber_coro_resume(co[0], NULL, &out) == YIELDED) {
		check_eq(++n, INT(out));
		if (fiber_coro_resume(co[1], NULL, &out) == YIELDED)
			check_eq(++n, INT(out));
	}
	check(n > 300);
	for (int i = 1; i < 100; i++)
		check(v[0][i - 1] <= v[0][i]);
	check_eq(0, fiber_coro_destroy(co[0]));
	check_eq(0, fiber_coro_destroy(co[1]));
	EXPECT_EQ(0, failures);
}

static int jumps(void *arg, void **value)
{
	jmp_buf env;
	volatile int n = 0;

	if (setjmp(env) < 10) {
		n++;
		check_eq(0, fiber_coro_yield(NUM(n), NULL));
		longjmp(env, n);
	}
	return n == 10 ? 0 : -EINVAL;
}

TEST(coro_may_use_longjmp_inside)
{
	fiber_coro_t *a = create(jumps, NULL), *b = create(jumps, NULL);
	void *out;

	for (int i = 1; i <= 10; i++) {
		check_eq(YIELDED, fiber_coro_resume(a, NULL, &out));
		check_eq(i, INT(out));
		check_eq(YIELDED, fiber_coro_resume(b, NULL, &out));
		check_eq(i, INT(out));
	}
	check_eq(0, fiber_coro_resume(a, NULL, NULL));
	check_eq(0, fiber_coro_resume(b, NULL, NULL));
	fiber_coro_destroy(a);
	fiber_coro_destroy(b);
	EXPECT_EQ(0, failures);
}

static jmp_buf outside;

static int jumps_out(void *arg, void **value)
{
	longjmp(outside, 1);
}

/* It must not be done; it is told, not run into. */
TEST(coro_left_by_longjmp_cannot_yield)
{
	fiber_coro_t *co = create(jumps_out, NULL);

	if (!setjmp(outside))
		fiber_coro_resume(co, NULL, NULL);
	check_eq(-EPERM, fiber_coro_yield(NULL, NULL));
	check_eq(-EDEADLK, fiber_coro_destroy(co));
	EXPECT_EQ(0, failures);
}

/* Debuggers and unwinders come to an end at its beginning. */
static int looks_back(void *arg, void **value)
{
	void *frames[50];

	*value = NUM(backtrace(frames, 50));
	return 0;
}

TEST(coro_backtrace_ends_at_its_entry)
{
	fiber_coro_t *co = create(looks_back, NULL);
	void *out = NULL;

	check_eq(0, fiber_coro_resume(co, NULL, &out));
	check(INT(out) >= 2 && INT(out) <= 4);
	fiber_coro_destroy(co);
	EXPECT_EQ(0, failures);
}

/* ---- what a call keeps ---- */

static unsigned short get_cw(void)
{
	unsigned short cw;

	__asm__ volatile("fnstcw %0" : "=m"(cw));
	return cw;
}

static void set_modes(unsigned int rounding)
{
	unsigned short cw = (unsigned short)(0x37f | rounding << 10);

	_mm_setcsr(0x1f80 | rounding << 13);
	__asm__ volatile("fldcw %0" : : "m"(cw));
}

static unsigned int get_modes(void)
{
	check_eq(_mm_getcsr() >> 13 & 3, get_cw() >> 10 & 3);
	return _mm_getcsr() >> 13 & 3;
}

static int keeps(void *arg, void **value)
{
	int n = INT(arg);

	check_eq(0, errno);
	check_eq(2, get_modes());	/* its creator's then */
	set_modes((unsigned int)n & 3);
	for (int i = 0; i < 20; i++) {
		errno = n * 100 + i;
		check_eq(0, fiber_coro_yield(NULL, NULL));
		check_eq(n * 100 + i, errno);
		check_eq(n & 3, get_modes());
	}
	return 0;
}

TEST(coro_keeps_errno_and_float_modes_of_both_sides)
{
	fiber_coro_t *co[8];

	set_modes(2);
	for (int i = 0; i < 8; i++)
		co[i] = create(keeps, NUM(i));
	set_modes(1);
	for (int round = 0; round < 21; round++)
		for (int i = 0; i < 8; i++) {
			errno = 7777;
			check_eq(round < 20,
				 fiber_coro_resume(co[i], NULL, NULL));
			check_eq(7777, errno);
			check_eq(1, get_modes());
		}
	errno = 78;
	for (int i = 0; i < 8; i++)
		check_eq(0, fiber_coro_destroy(co[i]));
	check_eq(-ESRCH, fiber_coro_resume(co[0], NULL, NULL));
	co[0] = create(keeps, NULL);
	check_eq(0, fiber_coro_destroy(co[0]));
	check_eq(78, errno);
	EXPECT_EQ(0, failures);
}

/* ---- memory ---- */

TEST(coro_stands_in_a_hundred_thousand)
{
	long n = in_vm() ? 20000 : 100000, before, grown;
	fiber_coro_t **co = calloc((size_t)n, sizeof(*co));
	void *out;

	cap_memory(RLIMIT_AS, 9UL << 30);
	before = proc_number("/proc/self/status", "VmRSS:");
	for (long i = 0; i < n; i++) {
		co[i] = create(count_to, NUM(2));
		check_eq(YIELDED, fiber_coro_resume(co[i], NULL, NULL));
	}
	grown = proc_number("/proc/self/status", "VmRSS:") - before;
	figure("%ld coroutines: %ld bytes each\n", n, grown * 1024 / n);
	check(grown < n * 7);		/* KiB: a page, and what is beside */
	ended = 0;
	for (long i = n - 1; i >= 0; i--) {
		check_eq(YIELDED, fiber_coro_resume(co[i], NULL, &out));
		check_eq(1, INT(out));
	}
	for (long i = 0; i < n; i++)
		check_eq(0, fiber_coro_destroy(co[i]));
	check_eq(n, ended);
	free(co);
	EXPECT_EQ(0, failures);
}

static __attribute__((noinline)) unsigned int recurse(size_t bytes)
{
	volatile unsigned char frame[1024];
	unsigned int bad = 0;

	for (size_t i = 0; i < sizeof(frame); i++)
		frame[i] = (unsigned char)bytes;
	if (bytes > 1200)
		bad = recurse(bytes - 1100);
	else
		fiber_coro_yield(NULL, NULL);
	for (size_t i = 0; i < sizeof(frame); i++)
		bad += frame[i] != (unsigned char)bytes;
	return bad;
}

static int deep(void *arg, void **value)
{
	check_eq(0, (uintptr_t)__builtin_frame_address(0) % 16);
	return recurse((size_t)arg) ? -EFAULT : 0;
}

TEST(coro_has_the_stack_it_asked_for)
{
	static const size_t sizes[] = { 0, 4096, 65536, 300000, 8 << 20 };
	struct fiber_coro_attr attr = { .size = sizeof(attr) };
	fiber_coro_t *co[2 * ARRAY_SIZE(sizes)];
	static char memory[65536];

	for (size_t i = 0; i < ARRAY_SIZE(co); i++) {
		size_t size = sizes[i / 2];

		attr.stack_size = size;
		check_eq(0, fiber_coro_create_attr(&co[i], &attr, deep,
				(void *)(size ? size - 1500 : 56 << 10)));
		check_eq(YIELDED, fiber_coro_resume(co[i], NULL, NULL));
	}
	for (size_t i = 0; i < ARRAY_SIZE(co); i++) {
		check_eq(0, fiber_coro_resume(co[i], NULL, NULL));
		check_eq(0, fiber_coro_destroy(co[i]));
	}
	attr.stack = memory + 3;
	attr.stack_size = sizeof(memory) - 7;
	for (int i = 0; i < 3; i++) {
		check_eq(0, fiber_coro_create_attr(&co[0], &attr, deep,
						   (void *)(60UL << 10)));
		check((char *)co[0] > memory + 60000);
		check((char *)co[0] < memory + sizeof(memory));
		check_eq(YIELDED, fiber_coro_resume(co[0], NULL, NULL));
		check_eq(0, fiber_coro_resume(co[0], NULL, NULL));
		check_eq(0, fiber_coro_destroy(co[0]));
	}
	EXPECT_EQ(0, failures);
}

TEST(coro_overflow_hits_the_guard)
{
	int status;
	pid_t pid = fork();

	if (!pid) {
		fiber_coro_t *co = create(deep, (void *)(64UL << 20));

		create(count_to, NULL);
		fiber_coro_resume(co, NULL, NULL);
		_exit(1);
	}
	ASSERT_EQ(pid, waitpid(pid, &status, 0));
	ASSERT_TRUE(WIFSIGNALED(status));
	ASSERT_EQ(SIGSEGV, WTERMSIG(status));
}

TEST_HARNESS_MAIN
