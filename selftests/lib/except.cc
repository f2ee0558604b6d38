// SPDX-License-Identifier: GPL-2.0-only
/*
 * C++ exceptions across switches of fibers: one is handled, or a destructor runs
 * because of one, while other fibers throw theirs, and the fiber goes on
 * elsewhere. TAP by hand: the harness is C.
 */
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <poll.h>
#include <string>
#include <unistd.h>

#include <fiber.h>

static std::atomic<int> failures;

#define check(cond) \
	((cond) ? (void)0 : (void)(failures++, \
	 printf("# %s:%d: not true: %s\n", __FILE__, __LINE__, #cond)))

#define FIBERS	24
#define ROUNDS	40
#define PATIENCE 20000000000UL

static fiber_t *spawn(void *(*fn)(void *), void *arg)
{
	fiber_t *f = nullptr;

	check(fiber_spawn(&f, fn, arg) == 0);
	return f;
}

/* As every fiber begins, and as it is between its exceptions. */
static void clean()
{
	check(std::uncaught_exceptions() == 0);
	check(std::current_exception() == nullptr);
}

static int current()
{
	try {
		if (std::current_exception())
			std::rethrow_exception(std::current_exception());
	} catch (int n) {
		return n;
	}
	return -1;
}

static std::atomic<long> moved;

/* Lets others run; counts when it goes on in another thread. */
static void elsewhere(long how)
{
	pid_t before = gettid();

	if (how % 3 == 0)
		fiber_sleep(1000);
	else
		fiber_yield();
	moved += gettid() != before;
}

/* ---- what a fiber does ---- */

struct yields {
	int uncaught, n;

	~yields()
	{
		check(std::uncaught_exceptions() == uncaught);
		elsewhere(n);
		check(std::uncaught_exceptions() == uncaught);
		if (uncaught == 3)
			return;
		try {		/* thrown while another is on its way */
			yields inner{uncaught + 1, n + 1};

			throw n;
		} catch (int i) {
			elsewhere(n);
			check(i == n);
			check(std::uncaught_exceptions() == uncaught);
		}
		check(std::uncaught_exceptions() == uncaught);
	}
};

static void in_handlers(int n)
{
	try {
		throw n;
	} catch (int i) {
		elsewhere(n);
		check(i == n && current() == n);
		try {
			throw std::to_string(n);
		} catch (const std::string &s) {
			elsewhere(n + 1);
			check(s == std::to_string(n));
		}
		elsewhere(n + 2);
		check(current() == n);
		throw;
	}
}

static void *child(void *)
{
	clean();
	elsewhere(1);
	clean();
	return nullptr;
}

static void *storm(void *arg)
{
	int n = (int)(long)arg;

	for (int i = n; i < n + ROUNDS; i++) {
		clean();
		try {
			yields unwound{1, i};

			in_handlers(i);
		} catch (int j) {
			check(i == j);
			fiber_join(spawn(child, nullptr), nullptr);
			check(current() == i);
		}
		clean();
		elsewhere(i);
		clean();
	}
	return nullptr;
}

static int storms(void *)
{
	fiber_t *f[FIBERS];

	for (long i = 0; i < FIBERS; i++)
		f[i] = spawn(storm, (void *)(i * 1000));
	for (auto &i : f)
		fiber_join(i, nullptr);
	clean();
	return 0;
}

/* ---- to another thread, surely ---- */

#define MIGRANTS 4
static std::atomic<bool> done;
static fiber_sem_t turns;

/*
 * One for each processor. Those it lets go on run on its thread when it yields,
 * and on another when it blocks: sooner or later each of them has had both.
 */
static void *blocks(void *arg)
{
	for (unsigned i = (unsigned)(long)arg; !done; i++) {
		for (int j = 0; j < MIGRANTS; j++)
			fiber_sem_post(&turns);
		if (i % 2)
			poll(nullptr, 0, 5 + (int)(i % 3) * 5);
		else
			fiber_yield();
	}
	return nullptr;
}

/* False: in vain. */
static bool migrate()
{
	pid_t before = gettid();
	uint64_t end = fiber_now() + PATIENCE;

	while (gettid() == before && fiber_now() < end)
		fiber_sem_wait(&turns);
	return gettid() != before;
}

struct migrates {
	~migrates()
	{
		check(std::uncaught_exceptions() == 1);
		check(migrate());
		check(std::uncaught_exceptions() == 1);
	}
};

static void *migrant(void *arg)
{
	int n = (int)(long)arg;

	try {
		try {
			migrates late;

			throw n;
		} catch (int i) {
			check(migrate());
			check(i == n && current() == n);
			throw;
		}
	} catch (int i) {
		check(i == n && current() == n);
	}
	clean();
	return nullptr;
}

static int migrations(void *)
{
	long n = atol(getenv("FIBER_PROCESSORS"));
	fiber_t *f[MIGRANTS], *b[4];

	done = false;
	check(fiber_sem_init(&turns, 0) == 0);
	for (long i = 0; i < n; i++)
		b[i] = spawn(blocks, (void *)i);
	for (long i = 0; i < MIGRANTS; i++)
		f[i] = spawn(migrant, (void *)(100 + i));
	for (auto &i : f)
		fiber_join(i, nullptr);
	done = true;
	for (long i = 0; i < n; i++)
		fiber_join(b[i], nullptr);
	fiber_sem_destroy(&turns);
	return 0;
}

/* ---- preempted ---- */

static std::atomic<int> turning;

/* Runs on while it handles one, until all do; nobody yields. */
static void *hog(void *arg)
{
	int n = (int)(long)arg;
	uint64_t end = fiber_now() + PATIENCE;

	try {
		throw n;
	} catch (int i) {
		turning++;
		while (turning < 4 && fiber_now() < end)
			;
		check(turning == 4);
		check(i == n && current() == n);
	}
	clean();
	return nullptr;
}

static int hogs(void *)
{
	fiber_t *f[4];

	if (!(fiber_features() & FIBER_FEATURE_PREEMPT))
		return 0;
	turning = 0;
	for (long i = 0; i < 4; i++)
		f[i] = spawn(hog, (void *)(200 + i));
	for (auto &i : f)
		fiber_join(i, nullptr);
	return 0;
}

/* ---- left in the middle ---- */

static std::exception_ptr kept[8];

static void *leaves(void *arg)
{
	clean();
	try {
		throw (int)(long)arg;
	} catch (...) {
		kept[(long)arg] = std::current_exception();	/* no leak */
		fiber_exit(arg);
	}
}

static int left(void *)
{
	for (long i = 0; i < 8; i++) {
		fiber_t *f = spawn(leaves, (void *)i);
		void *result = nullptr;

		check(fiber_join(f, &result) == 0);
		check(result == (void *)i);
		clean();
	}
	return 0;
}

/* ---- all of them ---- */

static int tests;

static void test(const char *name, int (*fn)(void *), const char *processors)
{
	int before = failures, r;

	setenv("FIBER_PROCESSORS", processors, 1);
	r = fiber_run(fn, nullptr);
	check(r == 0);
	printf("%sok %d %s_on_%s\n", failures == before ? "" : "not ", ++tests,
	       name, processors);
	fflush(stdout);
}

int main()
{
	printf("TAP version 13\n1..10\n");
	setenv("FIBER_QUANTUM_US", "1000", 1);
	for (const char *n : { "1", "2", "4" }) {
		test("except_storm", storms, n);
		test("except_migrates", migrations, n);
		test("except_preempted", hogs, n);
	}
	test("except_left_by_exit", left, "1");
	printf("# moved %ld times\n", moved.load());
	return failures ? 1 : 0;
}
