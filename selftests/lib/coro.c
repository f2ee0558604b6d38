// SPDX-License-Identifier: GPL-2.0-only
/*
 * Coroutines on plain threads, without a runtime: what Lua's coroutine.lua and
 * Python's test_generators ask, and what only C can do wrong.
 */
#include "common.h"

#define NUM(n)	((void *)(intptr_t)(n))
#define INT(p)	((int)(intptr_t)(p))

static fiber_coro_t *create(fiber_coro_fn fn, void *arg)
{
	fiber_coro_t *co = NULL;

	check_eq(0, fiber_coro_create(&co, fn, arg));
	check_eq(FIBER_CORO_SUSPENDED, fiber_coro_status(co));
	return co;
}

/* resume with a number: what came back must be this */
#define resumes(co, in, result, value) do { \
	void *out_ = NUM(-99); \
	check_eq(result, fiber_coro_resume(co, NUM(in), &out_)); \
	check_eq(value, INT(out_)); \
} while (0)
#define UNTOUCHED	(-99)
#define YIELDED		FIBER_CORO_YIELDED

/* ---- values ---- */

/* Yields what it is sent, plus one. */
static int echo(void *arg, void **value)
{
	void *in = *value;

	check_eq(7, INT(arg));
	while (INT(in) >= 0)
		check_eq(0, fiber_coro_yield(NUM(INT(in) + 1), &in));
	*value = NUM(1000);
	return 0;
}

TEST(coro_passes_values_both_ways)
{
	fiber_coro_t *co = create(echo, NUM(7));

	for (int i = 0; i < 1000; i += 3)
		resumes(co, i, YIELDED, i + 1);
	check_eq(FIBER_CORO_SUSPENDED, fiber_coro_status(co));
	check_eq(-EAGAIN, fiber_coro_result(co, NULL));
	resumes(co, -1, 0, 1000);
	check_eq(FIBER_CORO_DEAD, fiber_coro_status(co));
	check_eq(0, fiber_coro_destroy(co));
	EXPECT_EQ(0, failures);
}

static int returns(void *arg, void **value)
{
	*value = NUM(5);
	return INT(arg);
}

TEST(coro_hands_its_error_to_the_last_resume)
{
	static const int codes[][2] = {
		{ 0, 0 }, { -EIO, -EIO }, { -EBUSY, -EBUSY }, { 3, -EINVAL },
	};

	for (size_t i = 0; i < ARRAY_SIZE(codes); i++) {
		fiber_coro_t *co = create(returns, NUM(codes[i][0]));
		void *value = NULL;

		resumes(co, 0, codes[i][1], 5);
		check_eq(codes[i][1], fiber_coro_result(co, &value));
		check_eq(5, INT(value));
		resumes(co, 0, -ESRCH, UNTOUCHED);
		check_eq(-ESRCH, fiber_coro_throw(co, -EIO, NULL));
		check_eq(0, fiber_coro_close(co));
		check_eq(0, fiber_coro_destroy(co));
		/* Its memory is kept, so this mistake is still told. */
		check_eq(-ESRCH, fiber_coro_destroy(co));
		check_eq(-ESRCH, fiber_coro_resume(co, NULL, NULL));
	}
	EXPECT_EQ(0, failures);
}

/* ---- states, and misuse ---- */

struct pair {
	fiber_coro_t *outer, *inner;
};

static int looks_inside(void *arg, void **value)
{
	struct pair *p = arg;

	check(fiber_coro_self() == p->inner);
	check_eq(FIBER_CORO_NORMAL, fiber_coro_status(p->outer));
	check_eq(FIBER_CORO_RUNNING, fiber_coro_status(p->inner));
	check_eq(-EDEADLK, fiber_coro_resume(p->outer, NULL, NULL));
	check_eq(-EDEADLK, fiber_coro_resume(p->inner, NULL, NULL));
	check_eq(-EDEADLK, fiber_coro_throw(p->outer, -EIO, NULL));
	check_eq(-EDEADLK, fiber_coro_transfer(p->outer, NULL, NULL));
	check_eq(-EDEADLK, fiber_coro_transfer(p->inner, NULL, NULL));
	check_eq(-EDEADLK, fiber_coro_close(p->outer));
	check_eq(-EDEADLK, fiber_coro_destroy(p->inner));
	check_eq(0, fiber_coro_yield(NULL, NULL));
	check_eq(FIBER_CORO_NORMAL, fiber_coro_status(p->outer));
	return 0;
}

static int resumes_inner(void *arg, void **value)
{
	struct pair *p = arg;

	check(fiber_coro_self() == p->outer);
	check_eq(FIBER_CORO_RUNNING, fiber_coro_status(p->outer));
	resumes(p->inner, 0, YIELDED, 0);
	check(fiber_coro_self() == p->outer);
	check_eq(FIBER_CORO_RUNNING, fiber_coro_status(p->outer));
	check_eq(FIBER_CORO_SUSPENDED, fiber_coro_status(p->inner));
	check_eq(0, fiber_coro_yield(NULL, NULL));
	resumes(p->inner, 0, 0, 0);
	return 0;
}

TEST(coro_knows_its_state_and_refuses_misuse)
{
	struct pair p;

	p.outer = create(resumes_inner, &p);
	p.inner = create(looks_inside, &p);
	ASSERT_EQ(NULL, fiber_coro_self());
	resumes(p.outer, 0, YIELDED, 0);
	ASSERT_EQ(NULL, fiber_coro_self());
	resumes(p.outer, 0, 0, 0);
	check_eq(FIBER_CORO_DEAD, fiber_coro_status(p.inner));
	check_eq(0, fiber_coro_destroy(p.outer));
	check_eq(0, fiber_coro_destroy(p.inner));

	check_eq(-EPERM, fiber_coro_yield(NULL, NULL));
	check_eq(-EPERM, fiber_coro_defer(free, NULL));
	check_eq(-EPERM, fiber_coro_undefer(1));
	p.inner = create(looks_inside, &p);
	check_eq(-EPERM, fiber_coro_transfer(p.inner, NULL, NULL));
	check_eq(-EINVAL, fiber_coro_throw(p.inner, 0, NULL));
	check_eq(-EINVAL, fiber_coro_throw(p.inner, 1, NULL));
	check_eq(FIBER_CORO_SUSPENDED, fiber_coro_status(p.inner));
	check_eq(0, fiber_coro_destroy(p.inner));
	check_eq(0, fiber_coro_destroy(NULL));
	EXPECT_EQ(0, failures);
}

TEST(coro_checks_its_attributes)
{
	struct { struct fiber_coro_attr a; long more; } a = {
		.a = { .size = sizeof(a) },
	};
	static char memory[8192];
	fiber_coro_t *co = NULL;

	check_eq(-EINVAL, fiber_coro_create(NULL, returns, NULL));
	check_eq(-EINVAL, fiber_coro_create(&co, NULL, NULL));
	check_eq(0, fiber_coro_create_attr(&co, &a.a, returns, NULL));
	check_eq(0, fiber_coro_destroy(co));
	a.more = 1;
	check_eq(-EINVAL, fiber_coro_create_attr(&co, &a.a, returns, NULL));
	a.a.size = 1;
	check_eq(-EINVAL, fiber_coro_create_attr(&co, &a.a, returns, NULL));
	a.a = (struct fiber_coro_attr) {
		.size = sizeof(a.a), .stack = memory, .stack_size = 4095,
	};
	check_eq(-EINVAL, fiber_coro_create_attr(&co, &a.a, returns, NULL));
	a.a.stack = NULL;
	a.a.stack_size = SIZE_MAX;
	check_eq(-ENOMEM, fiber_coro_create_attr(&co, &a.a, returns, NULL));
	EXPECT_EQ(0, failures);
}

/* ---- throw and close ---- */

/* Catches -EIO, yields 55 then; lets any other error through. */
static int catches(void *arg, void **value)
{
	int r = 0, n = 0;

	do {
		r = fiber_coro_yield(NUM(r == -EIO ? 55 : n), NULL);
		n++;
	} while (!r || r == -EIO);
	*value = NUM(n);
	return r;
}

TEST(coro_throw_is_what_yield_returns)
{
	fiber_coro_t *co = create(catches, NULL);
	void *out = NULL;

	fiber_coro_resume(co, NULL, NULL);
	check_eq(YIELDED, fiber_coro_throw(co, -EIO, &out));
	check_eq(55, INT(out));
	resumes(co, 0, YIELDED, 2);
	check_eq(-EPIPE, fiber_coro_throw(co, -EPIPE, &out));
	check_eq(3, INT(out));
	check_eq(-EPIPE, fiber_coro_result(co, NULL));
	check_eq(0, fiber_coro_destroy(co));

	co = create(catches, NULL);
	out = NUM(1);
	check_eq(-EIO, fiber_coro_throw(co, -EIO, &out));
	check_eq(0, INT(out));
	check_eq(FIBER_CORO_DEAD, fiber_coro_status(co));
	check_eq(0, fiber_coro_destroy(co));
	EXPECT_EQ(0, failures);
}

struct closing {
	int result, ignore, cleaned, entered;
};

static int cleans_up(void *arg, void **value)
{
	struct closing *c = arg;
	int r = 0;

	c->entered++;
	while (!r || c->ignore-- > 0)
		r = fiber_coro_yield(NULL, NULL);
	check_eq(-ECANCELED, r);
	c->cleaned++;
	return c->result;
}

TEST(coro_close_lets_it_clean_up)
{
	static const int codes[][2] = {
		{ 0, 0 }, { -ECANCELED, 0 }, { -EIO, -EIO }, { 1, -EINVAL },
	};
	struct closing c = { 0 };
	fiber_coro_t *co = create(cleans_up, &c);

	check_eq(0, fiber_coro_close(co));	/* not begun */
	check_eq(FIBER_CORO_DEAD, fiber_coro_status(co));
	check_eq(0, c.entered);
	check_eq(0, fiber_coro_destroy(co));
	for (size_t i = 0; i < ARRAY_SIZE(codes); i++) {
		c = (struct closing) { .result = codes[i][0] };
		co = create(cleans_up, &c);
		resumes(co, 0, YIELDED, 0);
		check_eq(codes[i][1], fiber_coro_close(co));
		check_eq(FIBER_CORO_DEAD, fiber_coro_status(co));
		check_eq(1, c.cleaned);
		check_eq(0, fiber_coro_close(co));
		check_eq(0, fiber_coro_destroy(co));
	}
	EXPECT_EQ(0, failures);
}

TEST(coro_that_ignores_close_is_reported)
{
	struct closing c = { .ignore = 2 };
	fiber_coro_t *co = create(cleans_up, &c);

	resumes(co, 0, YIELDED, 0);
	check_eq(-EAGAIN, fiber_coro_close(co));
	check_eq(FIBER_CORO_SUSPENDED, fiber_coro_status(co));
	resumes(co, 0, YIELDED, 0);		/* it may go on */
	check_eq(-EAGAIN, fiber_coro_close(co));
	check_eq(0, fiber_coro_close(co));
	check_eq(1, c.cleaned);
	check_eq(0, fiber_coro_destroy(co));

	c = (struct closing) { .ignore = 100 };
	co = create(cleans_up, &c);
	resumes(co, 0, YIELDED, 0);
	check_eq(-EAGAIN, fiber_coro_destroy(co));	/* freed all the same */
	check_eq(-ESRCH, fiber_coro_resume(co, NULL, NULL));
	check_eq(0, c.cleaned);
	EXPECT_EQ(0, failures);
}

/* ---- handlers and exit ---- */

static int order[8], orders;
static fiber_coro_t *another;

static void note(void *arg)
{
	order[orders++] = INT(arg);
	check_eq(NULL, fiber_coro_self());
	check_eq(-EPERM, fiber_coro_yield(NULL, NULL));
	check_eq(-EPERM, fiber_coro_defer(note, NULL));
	if (another)
		check_eq(YIELDED, fiber_coro_resume(another, NULL, NULL));
}

static __attribute__((noinline)) int exits_below(int depth)
{
	volatile int here = depth;

	if (depth < 0)
		return 0;
	if (!depth)
		fiber_coro_exit(-EPIPE);
	return exits_below(depth - 1) + here;
}

static void free_it(void *arg)
{
	free(arg);
}

enum { RETURN, EXIT, SUSPEND };

static int defers(void *arg, void **value)
{
	check_eq(-EINVAL, fiber_coro_defer(NULL, NULL));
	check_eq(-ENOENT, fiber_coro_undefer(1));
	check_eq(0, fiber_coro_defer(note, NUM(1)));
	check_eq(0, fiber_coro_defer(free_it, malloc(100)));
	check_eq(0, fiber_coro_defer(note, NUM(99)));
	check_eq(0, fiber_coro_undefer(0));
	check_eq(0, fiber_coro_defer(note, NUM(2)));
	check_eq(0, fiber_coro_defer(note, NUM(3)));
	fiber_coro_yield(NULL, NULL);
	if (INT(arg) == EXIT)
		exits_below(50);
	while (INT(arg) == SUSPEND)
		fiber_coro_yield(NULL, NULL);
	return 0;
}

TEST(coro_handlers_run_at_any_end_newest_first)
{
	static const int ends[] = { 0, -EPIPE, -EAGAIN };
	struct closing c = { 0 };

	for (int how = RETURN; how <= SUSPEND; how++) {
		fiber_coro_t *co = create(defers, NUM(how));

		another = how == EXIT ? create(cleans_up, &c) : NULL;
		orders = 0;
		resumes(co, 0, YIELDED, 0);
		check_eq(0, orders);
		if (how == SUSPEND) {
			check_eq(-EAGAIN, fiber_coro_destroy(co));
		} else {
			check_eq(ends[how], fiber_coro_resume(co, NULL, NULL));
			check_eq(0, fiber_coro_destroy(co));
		}
		check_eq(3, orders);
		for (int i = 0; i < 3; i++)
			check_eq(3 - i, order[i]);
		check_eq(0, fiber_coro_destroy(another));
	}
	EXPECT_EQ(0, failures);
}

TEST(coro_exit_outside_aborts)
{
	int status;
	pid_t pid = fork();

	if (!pid) {
		signal(SIGABRT, SIG_DFL);
		fiber_coro_exit(0);
	}
	ASSERT_EQ(pid, waitpid(pid, &status, 0));
	ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

/* ---- transfer ---- */

struct ring {
	fiber_coro_t *co[3];
	long passes;
	char *low, *high;
};

static int passes_on(void *arg, void **value)
{
	struct ring *r = arg;
	void *in = *value;
	char here;

	while (INT(in) > 0) {
		int next = INT(in) % 3;

		if (&here < r->low)
			r->low = &here;
		r->passes++;
		if (r->co[next] == fiber_coro_self())
			next = (next + 1) % 3;
		if (fiber_coro_transfer(r->co[next], NUM(INT(in) - 1), &in))
			return 0;	/* closed */
	}
	*value = NUM(4711);
	return -ENOTTY;
}

TEST(coro_transfers_without_growing_the_chain)
{
	struct ring r = { .low = (char *)UINTPTR_MAX };
	char *low;
	int dead = 0;

	for (int i = 0; i < 3; i++)
		r.co[i] = create(passes_on, &r);
	resumes(r.co[0], 10, -ENOTTY, 4711);
	low = r.low;
	check_eq(10, r.passes);
	for (int i = 0; i < 3; i++) {
		dead += fiber_coro_status(r.co[i]) == FIBER_CORO_DEAD;
		fiber_coro_destroy(r.co[i]);
	}
	check_eq(1, dead);
	r.passes = 0;
	for (int i = 0; i < 3; i++)	/* the same stacks again */
		r.co[2 - i] = create(passes_on, &r);
	resumes(r.co[0], 1000000, -ENOTTY, 4711);
	check_eq(1000000, r.passes);
	check(r.low == low);
	for (int i = 0; i < 3; i++)
		fiber_coro_destroy(r.co[i]);
	EXPECT_EQ(0, failures);
}

/* Closed, it goes over to another, which yields: it has not ended. */
static int transfers_at_the_end(void *arg, void **value)
{
	check_eq(-ECANCELED, fiber_coro_yield(NULL, NULL));
	fiber_coro_transfer(arg, NULL, NULL);
	return 0;
}

TEST(coro_that_transfers_in_close_is_reported)
{
	struct closing c = { 0 };
	fiber_coro_t *other = create(cleans_up, &c);
	fiber_coro_t *co = create(transfers_at_the_end, other);

	resumes(co, 0, YIELDED, 0);
	check_eq(-EAGAIN, fiber_coro_close(co));
	check_eq(FIBER_CORO_SUSPENDED, fiber_coro_status(co));
	check_eq(FIBER_CORO_SUSPENDED, fiber_coro_status(other));
	check_eq(0, fiber_coro_destroy(co));
	check_eq(0, fiber_coro_destroy(other));
	check_eq(1, c.cleaned);
	EXPECT_EQ(0, failures);
}

TEST_HARNESS_MAIN
