// SPDX-License-Identifier: GPL-2.0-only
/*
 * Coroutines in C++: exceptions and destructors inside, and switches while they
 * are thrown or handled. TAP by hand: the harness is C.
 */
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <stdexcept>
#include <string>
#include <vector>

#include <fiber.h>

static std::atomic<int> failures;

#define check(cond) \
	((cond) ? (void)0 : (void)(failures++, \
	 printf("# %s:%d: not true: %s\n", __FILE__, __LINE__, #cond)))

static fiber_coro_t *create(fiber_coro_fn fn, void *arg)
{
	fiber_coro_t *co = nullptr;

	check(fiber_coro_create(&co, fn, arg) == 0);
	return co;
}

static std::atomic<int> alive;

struct guard {
	guard() { alive++; }
	~guard() { alive--; }
};

/* Its destructor yields: while an exception is thrown, too. */
struct yields_late {
	~yields_late()
	{
		check(std::uncaught_exceptions() == 1);
		fiber_coro_yield(nullptr, nullptr);
		fiber_yield();
		check(std::uncaught_exceptions() == 1);
	}
};

static void deeper(int n)
{
	guard g;

	if (n)
		deeper(n - 1);
	else if (fiber_coro_yield(nullptr, nullptr))
		throw std::runtime_error("closed");
	else
		throw std::runtime_error("thrown");
}

/* Switches in the try block, in destructors, and while one is handled. */
static int body(void *arg, void **value)
{
	std::string name = "number " + std::to_string((long)arg);

	for (int i = 0; i < 50; i++) {
		try {
			yields_late late;

			deeper(i % 10);
		} catch (const std::runtime_error &e) {
			fiber_coro_yield(nullptr, nullptr);
			fiber_yield();
			check(std::string(e.what()) == "thrown");
			try {
				throw name;
			} catch (const std::string &s) {
				fiber_coro_yield(nullptr, nullptr);
				check(s == name);
			}
			check(std::current_exception() != nullptr);
		}
		fiber_yield();
		check(std::current_exception() == nullptr);
		check(std::uncaught_exceptions() == 0);
	}
	return 0;
}

/* Out of step, so that what each handles would be mixed up. */
static void *interleave(void *)
{
	std::vector<fiber_coro_t *> co;
	int left = 10, turns = 0;

	for (long i = 0; i < left; i++)
		co.push_back(create(body, (void *)i));
	try {
		throw 4711;
	} catch (int n) {
		while (left) {
			auto c = co[(size_t)(turns++ * 7 % 10)];

			if (fiber_coro_status(c) == FIBER_CORO_DEAD)
				continue;
			if (fiber_coro_resume(c, nullptr, nullptr) == 0)
				left--;
			check(n == 4711);
			check(std::uncaught_exceptions() == 0);
			check(std::current_exception() != nullptr);
		}
	}
	check(std::current_exception() == nullptr);
	for (auto c : co)
		check(fiber_coro_destroy(c) == 0);
	return nullptr;
}

static int closes(void *, void **)
{
	guard g;
	try {
		for (;;)
			if (fiber_coro_yield(nullptr, nullptr))
				throw std::runtime_error("closed");
	} catch (const std::exception &) {
		return -ECANCELED;
	}
}

static void unwinds_when_closed()
{
	fiber_coro_t *co = create(closes, nullptr);

	fiber_coro_resume(co, nullptr, nullptr);
	check(alive == 1);
	check(fiber_coro_close(co) == 0);
	check(alive == 0);
	check(fiber_coro_destroy(co) == 0);
}

static int count_to(void *arg, void **)
{
	for (long i = 0; i < (long)arg; i++)
		if (fiber_coro_yield((void *)i, nullptr))
			return 0;
	return 0;
}

static void loops()
{
	long sum = 0;
	fiber_coro_t *g FIBER_CORO_AUTO =
		fiber_coro_wrap(count_to, (void *)10L);

	fiber_coro_for_each(long, i, g)
		sum += i;
	check(sum == 45);
}

static int in_fibers(void *)
{
	fiber_t *f[4];

	for (auto &i : f)
		check(fiber_spawn(&i, interleave, nullptr) == 0);
	for (auto &i : f)
		fiber_join(i, nullptr);
	return 0;
}

static int tests;

template <typename F> static void test(const char *name, F fn)
{
	int before = failures;

	fn();
	printf("%sok %d %s\n", failures == before ? "" : "not ", ++tests, name);
	fflush(stdout);
}

int main()
{
	printf("TAP version 13\n1..5\n");
	setenv("FIBER_QUANTUM_US", "200", 1);
	test("coroxx_keeps_exceptions_of_both_sides",
	     [] { interleave(nullptr); });
	test("coroxx_unwinds_when_closed", unwinds_when_closed);
	test("coroxx_loops", loops);
	setenv("FIBER_PROCESSORS", "1", 1);
	test("coroxx_in_fibers", [] { fiber_run(in_fibers, nullptr); });
	setenv("FIBER_PROCESSORS", "2", 1);
	test("coroxx_on_two", [] { fiber_run(in_fibers, nullptr); });
	return failures ? 1 : 0;
}
