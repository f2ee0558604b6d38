// SPDX-License-Identifier: GPL-2.0-only
/*
 * Timers of the program: each deadline is called once or stopped once, in order,
 * never early, whatever the processors do.
 */
#include "common.h"

#define LONG_QUANTUM	SEC

static fiber_timer_t *make(void (*fn)(void *arg, uint64_t ticks), void *arg)
{
	fiber_timer_t *t = NULL;

	check_eq(0, fiber_timer_create(&t, fn, arg));
	return t;
}

/* ---- answers ---- */

static atomic_int calls;
static atomic_ulong ticked;

static void counts(void *arg, uint64_t ticks)
{
	check(fiber_self());
	atomic_fetch_add(&ticked, ticks);
	atomic_fetch_add(&calls, 1);
}

static void *answers(void *arg)
{
	fiber_timer_t *t = make(counts, NULL);

	check_eq(0, fiber_timer_stop(t));
	check_eq(0, fiber_timer_stop_wait(t));
	check_eq(0, fiber_timer_start(t, fiber_now() + 100 * SEC, 0));
	check_eq(-EBUSY, fiber_timer_start(t, 1, 0));
	check_eq(1, fiber_timer_stop(t));
	check_eq(0, fiber_timer_stop(t));
	check_eq(0, fiber_timer_reset(t, fiber_now() + 100 * SEC, 0));
	check_eq(1, fiber_timer_reset(t, fiber_now() + 1 * MS, 0));
	come_to(&calls, 1);
	check_eq(0, fiber_timer_stop_wait(t));
	check_eq(0, fiber_timer_start(t, 0, 0));	/* long over */
	come_to(&calls, 2);
	check_eq(0, fiber_timer_start(t, fiber_now() + 100 * SEC, 0));
	check_eq(0, fiber_timer_destroy(t));
	check_eq(0, fiber_timer_destroy(NULL));
	check_eq(2, ticked);
	check_eq(-EINVAL, fiber_timer_create(NULL, counts, NULL));
	check_eq(-EINVAL, fiber_timer_create(&t, NULL, NULL));
	check_eq(-EINVAL, fiber_timer_start(NULL, 0, 0));
	check_eq(-EINVAL, fiber_timer_stop(NULL));
	return NULL;
}

TEST(answers_in_a_fiber)
{
	ASSERT_EQ(0, with_runtime(1, 0, answers, NULL));
	EXPECT_EQ(2, calls);
	EXPECT_EQ(0, failures);
}

/* The same from a plain thread: fiber_sleep sleeps in the kernel then. */
TEST(answers_on_a_plain_thread)
{
	ASSERT_EQ(0, start(2, 0));
	answers(NULL);
	EXPECT_EQ(2, calls);
	ASSERT_EQ(0, fiber_fini());
	EXPECT_EQ(0, failures);
}

TEST(without_a_runtime)
{
	fiber_timer_t *t = make(counts, NULL), *u = make(counts, NULL);

	EXPECT_EQ(-EPERM, fiber_timer_start(t, 0, 0));
	EXPECT_EQ(-EPERM, fiber_timer_stop(t));
	EXPECT_EQ(0, fiber_timer_destroy(u));
	ASSERT_EQ(0, start(1, 0));
	EXPECT_EQ(0, fiber_timer_start(t, now_ns() + 100 * SEC, 1));
	ASSERT_EQ(0, fiber_fini());		/* disarms it */
	EXPECT_EQ(-EPERM, fiber_timer_stop(t));
	ASSERT_EQ(0, start(3, 0));
	EXPECT_EQ(0, fiber_timer_stop(t));
	EXPECT_EQ(0, fiber_timer_start(t, 0, 0));
	while (!atomic_load(&calls))
		block_ns(1 * MS);
	EXPECT_EQ(0, fiber_timer_destroy(t));
	ASSERT_EQ(0, fiber_fini());
	EXPECT_EQ(1, calls);
	EXPECT_EQ(0, failures);
}

/* ---- order ---- */

enum { ORDERED = 500 };

static uint64_t base;
static int order[ORDERED], logged;
static bool disturbed;

/* Some apart, some in one tick of the wheel, some the very same. */
static uint64_t deadline_of(int i)
{
	return base + (uint64_t)(i * 7 % ORDERED) / 3 * 5 * US;
}

static void logs(void *arg, uint64_t ticks)
{
	int i = (int)(intptr_t)arg;

	check_eq(1, ticks);
	check(fiber_now() >= deadline_of(i));
	order[logged++] = i;
}

static void *in_order(void *arg)
{
	static fiber_timer_t *t[ORDERED];

	logged = 0;
	base = fiber_now() + 20 * MS * allowance();
	for (intptr_t i = 0; i < ORDERED; i++) {
		t[i] = make(logs, (void *)i);
		check_eq(0, fiber_timer_start(t[i], deadline_of((int)i), 0));
	}
	/* Were some due before all were armed, they are not in order. */
	disturbed = fiber_now() >= base;
	while (logged < ORDERED)
		check_eq(0, fiber_sleep(1 * MS));
	for (int i = 0; i < ORDERED; i++)
		check_eq(0, fiber_timer_destroy(t[i]));
	disturbed |= stats().preemptions || stats().handoffs;
	return NULL;
}

/* One processor calls them strictly by deadline, the older first if equal. */
TEST(order_of_the_deadlines)
{
	for (int try = 0; try < 10; try++) {
		ASSERT_EQ(0, with_runtime(1, LONG_QUANTUM, in_order, NULL));
		if (!disturbed)
			break;
	}
	EXPECT_EQ(0, failures);
	if (disturbed)
		SKIP(return, "disturbed each time");
	for (int i = 1; i < ORDERED; i++) {
		uint64_t a = deadline_of(order[i - 1]), b = deadline_of(order[i]);

		EXPECT_TRUE(a < b || (a == b && order[i - 1] < order[i]));
	}
}

/* ---- far deadlines ---- */

static void *far_away(void *arg)
{
	static const uint64_t far[] = {
		UINT64_MAX, UINT64_MAX - 1, (uint64_t)INT64_MAX + 1, INT64_MAX,
		INT64_MAX - 1, 1ULL << 62, 1ULL << 60,
	};
	fiber_timer_t *t[ARRAY_SIZE(far)], *near;

	for (size_t i = 0; i < ARRAY_SIZE(far); i++) {
		t[i] = make(counts, NULL);
		check_eq(0, fiber_timer_start(t[i], far[i], i % 2));
	}
	near = make(counts, NULL);
	check_eq(0, fiber_timer_start(near, fiber_now() + 5 * MS, UINT64_MAX));
	check_eq(0, fiber_sleep(20 * MS));
	come_to(&calls, 1);
	for (size_t i = 0; i < ARRAY_SIZE(far); i++) {
		check_eq(1, fiber_timer_stop(t[i]));
		check_eq(0, fiber_timer_destroy(t[i]));
	}
	check_eq(1, fiber_timer_stop(near));	/* its next tick is never */
	check_eq(0, fiber_timer_destroy(near));
	return NULL;
}

TEST(far_deadlines)
{
	ASSERT_EQ(0, with_runtime(2, 0, far_away, NULL));
	EXPECT_EQ(1, calls);
	EXPECT_EQ(0, failures);
}

/* ---- periodic ---- */

static uint64_t period, first_tick, last_call;
static atomic_int none_lost;		/* the last call that saw that */

static void ticks_on(void *arg, uint64_t ticks)
{
	uint64_t now = fiber_now(), total, due = (now - first_tick) / period + 1;

	check(ticks > 0);
	total = atomic_fetch_add(&ticked, ticks) + ticks;
	/*
	 * None is told before it is due. Between the look at the clock that
	 * counted them and ours more may come due; but if it is the same number
	 * once, all are told until then, and a lost one would be missing ever after.
	 */
	check(total <= due);
	last_call = now;
	atomic_fetch_add(&calls, 1);
	if (total == due)
		atomic_store(&none_lost, calls);
	if (arg && calls % 8 == 0)
		fiber_sleep(5 * period);	/* parks: misses ticks */
}

/* A hundred calls, and some more until none is lost. */
static bool tick_for_a_while(void *arg)
{
	fiber_timer_t *t = make(ticks_on, arg);
	unsigned long n;

	last_call = 0;
	atomic_store(&calls, 0);
	atomic_store(&none_lost, 0);
	atomic_store(&ticked, 0);
	first_tick = fiber_now() + period;
	check_eq(0, fiber_timer_start(t, first_tick, period));
	come_to(&calls, 100);
	while (atomic_load(&none_lost) < 100 && atomic_load(&calls) < 500)
		check_eq(0, fiber_sleep(200 * US));
	check_eq(1, fiber_timer_stop_wait(t));
	n = atomic_load(&ticked);
	figure("periodic: %d calls, %lu ticks in %lu periods\n",
	       atomic_load(&calls), n, (last_call - first_tick) / period + 1);
	if (arg)
		check(n > (unsigned long)atomic_load(&calls));
	check_eq(0, fiber_sleep(10 * MS));
	check_eq(n, ticked);
	check_eq(0, fiber_timer_destroy(t));
	return none_lost >= 100;
}

/* Where each call is later than a period there is no such moment: a longer one. */
static void *periodic(void *arg)
{
	period = 1 * MS;
	while (!tick_for_a_while(arg) && period < 200 * MS)
		period *= 6;
	check(none_lost >= 100);
	return NULL;
}

TEST(periodic_counts_and_does_not_drift)
{
	ASSERT_EQ(0, with_runtime(1, 0, periodic, NULL));
	ASSERT_EQ(0, with_runtime(2, 0, periodic, NULL));
	ASSERT_EQ(0, with_runtime(2, 0, periodic, "slow"));
	EXPECT_EQ(0, failures);
}

/* ---- what the function itself may do ---- */

static fiber_timer_t *own;
static atomic_int in_call, let_go;

static void restarts(void *arg, uint64_t ticks)
{
	fiber_timer_t *t = own;		/* another one after the last call */

	check_eq(1, ticks);
	check_eq(-EDEADLK, fiber_timer_stop_wait(t));
	if (atomic_fetch_add(&calls, 1) < 50)
		check_eq(0, fiber_timer_start(t, fiber_now() + 50 * US, 0));
	else
		check_eq(0, fiber_timer_destroy(t));
}

static void stays(void *arg, uint64_t ticks)
{
	atomic_fetch_add(&in_call, 1);
	while (!atomic_load(&let_go))
		fiber_sleep(100 * US);
	atomic_fetch_sub(&in_call, 1);
	/* What is started in here is stopped as well. */
	check_eq(0, fiber_timer_reset(own, fiber_now(), 0));
}

static void *stops_and_waits(void *arg)
{
	check_eq(1, fiber_timer_stop_wait(own));	/* what it started inside */
	check_eq(0, atomic_load(&in_call));
	check_eq(0, fiber_timer_stop(own));
	return NULL;
}

static void *inside(void *arg)
{
	own = make(restarts, NULL);
	check_eq(0, fiber_timer_start(own, 0, 0));
	come_to(&calls, 51);
	own = make(stays, NULL);
	check_eq(0, fiber_timer_start(own, 0, 0));
	come_to(&in_call, 1);
	return NULL;
}

TEST(inside_the_function)
{
	pthread_t thread;
	fiber_t *f;

	ASSERT_EQ(0, start(2, 0));
	join(spawn(inside, NULL));
	f = spawn(stops_and_waits, NULL);
	block_ns(20 * MS);
	EXPECT_EQ(1, in_call);
	atomic_store(&let_go, 1);
	join(f);
	/* And a plain thread waits as well. */
	atomic_store(&let_go, 0);
	ASSERT_EQ(0, fiber_timer_start(own, 0, 0));
	while (!atomic_load(&in_call))
		block_ns(1 * MS);
	ASSERT_EQ(0, pthread_create(&thread, NULL, stops_and_waits, NULL));
	block_ns(20 * MS);
	EXPECT_EQ(1, in_call);
	atomic_store(&let_go, 1);
	ASSERT_EQ(0, pthread_join(thread, NULL));
	EXPECT_EQ(0, fiber_timer_destroy(own));
	ASSERT_EQ(0, fiber_fini());
	EXPECT_EQ(51, calls);
	EXPECT_EQ(0, failures);
}

/* Calls that park hold up no other, however many are due at once. */
enum { TOGETHER = 500 };

static void meets_all(void *arg, uint64_t ticks)
{
	atomic_fetch_add(&in_call, 1);
	come_to(&in_call, TOGETHER);
	atomic_fetch_add(&calls, 1);
}

static void *meet(void *arg)
{
	static fiber_timer_t *t[TOGETHER];
	uint64_t deadline = fiber_now() + 5 * MS;

	atomic_store(&in_call, 0);
	atomic_store(&calls, 0);
	for (int i = 0; i < TOGETHER; i++) {
		t[i] = make(meets_all, NULL);
		check_eq(0, fiber_timer_start(t[i], deadline, 0));
	}
	come_to(&calls, TOGETHER);
	for (int i = 0; i < TOGETHER; i++)
		check_eq(0, fiber_timer_destroy(t[i]));
	return NULL;
}

TEST(parked_calls_hold_up_nobody)
{
	ASSERT_EQ(0, with_runtime(1, 0, meet, NULL));
	ASSERT_EQ(0, with_runtime(2, 0, meet, NULL));
	EXPECT_EQ(0, failures);
}

/* Each call may block in the kernel, and the timers go on. */
static int fds[2];

static void writes(void *arg, uint64_t ticks)
{
	block_ns(1 * MS);
	check_eq(1, write(fds[1], "x", 1));
	check_eq(0, fiber_timer_start(*(fiber_timer_t **)arg,
				      fiber_now() + 1 * MS, 0));
}

static void *reads_many(void *arg)
{
	fiber_timer_t *t = make(writes, &t);
	char byte;

	check_eq(0, fiber_timer_start(t, 0, 0));
	for (int i = 0; i < 50; i++)	/* this fiber's carrier blocks */
		check_eq(1, read(fds[0], &byte, 1));
	check_eq(0, fiber_timer_destroy(t));
	return NULL;
}

TEST(processor_blocks_in_the_kernel)
{
	ASSERT_EQ(0, pipe(fds));
	ASSERT_EQ(0, with_runtime(1, 0, reads_many, NULL));
	ASSERT_EQ(0, with_runtime(2, 0, reads_many, NULL));
	EXPECT_EQ(0, failures);
}

/* ---- stop against fire ---- */

enum { RACERS = 64, ROUNDS = 300 };

static struct racer {
	fiber_timer_t *t;
	atomic_int started, ran, stopped;
	atomic_int running, gone;
} racer[RACERS];

static void runs(void *arg, uint64_t ticks)
{
	struct racer *r = arg;

	check_eq(1, ticks);
	check_eq(0, atomic_fetch_add(&r->running, 1));
	check(!atomic_load(&r->gone));
	if (atomic_fetch_add(&r->ran, 1) % 2)	/* it may fall due meanwhile */
		fiber_sleep(100 * US);
	atomic_fetch_sub(&r->running, 1);
}

/* Any of many callers, at any time; each knows only its own answer. */
static void race_one(uint32_t *seed)
{
	struct racer *r = &racer[next_random(seed) % RACERS];
	uint64_t deadline = fiber_now() + next_random(seed) % (200 * US);
	int answer;

	switch (next_random(seed) % 8) {
	case 0 ... 3:
		answer = fiber_timer_start(r->t, deadline, 0);
		check(answer == 0 || answer == -EBUSY);
		atomic_fetch_add(&r->started, answer == 0);
		return;
	case 4:
		answer = fiber_timer_reset(r->t, deadline, 0);
		atomic_fetch_add(&r->started, 1);
		break;
	case 5:
		answer = fiber_timer_stop_wait(r->t);
		break;
	default:
		answer = fiber_timer_stop(r->t);
	}
	check(answer >= 0);
	atomic_fetch_add(&r->stopped, answer);
}

static void *races(void *arg)
{
	uint32_t seed = (uint32_t)(uintptr_t)arg * 2654435761U + 1;

	for (int i = 0; i < ROUNDS * 10; i++) {
		race_one(&seed);
		if (next_random(&seed) % 4 == 0)
			fiber_sleep(next_random(&seed) % (100 * US));
		else if (next_random(&seed) % 4 == 0)
			fiber_yield();
	}
	return NULL;
}

static void check_racer(struct racer *r)
{
	int n = fiber_timer_stop_wait(r->t);

	atomic_fetch_add(&r->stopped, n);
	check_eq(0, atomic_load(&r->running));
	check_eq(atomic_load(&r->started),
		 atomic_load(&r->ran) + atomic_load(&r->stopped));
	check_eq(0, fiber_timer_destroy(r->t));
}

static void race(struct __test_metadata *_metadata, unsigned int processors)
{
	int started = 0, ran = 0;
	pthread_t plain[2];
	fiber_t *f[8];

	ASSERT_EQ(0, start(processors, 0));
	memset(racer, 0, sizeof(racer));
	for (int i = 0; i < RACERS; i++)
		racer[i].t = make(runs, &racer[i]);
	for (uintptr_t i = 0; i < 8; i++)
		f[i] = spawn(races, (void *)i);
	for (uintptr_t i = 0; i < 2; i++)
		ASSERT_EQ(0, pthread_create(&plain[i], NULL, races,
					    (void *)(i + 10)));
	for (int i = 0; i < 8; i++)
		join(f[i]);
	for (int i = 0; i < 2; i++)
		ASSERT_EQ(0, pthread_join(plain[i], NULL));
	for (int i = 0; i < RACERS; i++) {
		check_racer(&racer[i]);
		started += racer[i].started;
		ran += racer[i].ran;
	}
	figure("race: %u processors: %d started, %d called, %d stopped\n",
	       processors, started, ran, started - ran);
	ASSERT_EQ(0, fiber_fini());
	EXPECT_LT(100, ran);
	EXPECT_LT(100, started - ran);
	EXPECT_EQ(0, failures);
}

TEST(stop_against_fire)
{
	race(_metadata, 1);
	race(_metadata, 2);
	race(_metadata, 4);
}

/* After destroy returned nothing is called, and nothing is touched. */
static void *destroys(void *arg)
{
	uint32_t seed = (uint32_t)(uintptr_t)arg + 1;

	for (int i = 0; i < ROUNDS; i++) {
		struct racer *r = calloc(1, sizeof(*r));

		r->t = make(runs, r);
		check_eq(0, fiber_timer_start(r->t, fiber_now() +
					      next_random(&seed) % (50 * US),
					      0));
		fiber_sleep(next_random(&seed) % (50 * US));
		check_eq(0, fiber_timer_destroy(r->t));
		atomic_store(&r->gone, 1);
		check_eq(0, atomic_load(&r->running));
		check(atomic_load(&r->ran) <= 1);
		free(r);
	}
	return NULL;
}

TEST(destroy_against_fire)
{
	pthread_t plain;
	fiber_t *f[6];

	ASSERT_EQ(0, start(3, 0));
	for (uintptr_t i = 0; i < 6; i++)
		f[i] = spawn(destroys, (void *)i);
	ASSERT_EQ(0, pthread_create(&plain, NULL, destroys, (void *)99));
	for (int i = 0; i < 6; i++)
		join(f[i]);
	ASSERT_EQ(0, pthread_join(plain, NULL));
	ASSERT_EQ(0, fiber_fini());
	EXPECT_EQ(0, failures);
}

/* ---- very many ---- */

static atomic_int many_ran;

static void many_run(void *arg, uint64_t ticks)
{
	atomic_fetch_add(&many_ran, 1);
}

static double per(uint64_t since, int n)
{
	return (double)(cpu_ns() - since) / n;
}

/* Arms n, stops every other one, and lets the rest run. */
static void *many(void *arg)
{
	int n = (int)(intptr_t)arg, stopped = 0;
	fiber_timer_t **t = calloc((size_t)n, sizeof(*t));
	uint64_t begin = fiber_now() + 100 * MS, cpu;
	uint32_t seed = 1;
	double arming, stopping;

	atomic_store(&many_ran, 0);
	for (int i = 0; i < n; i++)
		t[i] = make(many_run, NULL);
	cpu = cpu_ns();
	for (int i = 0; i < n; i++)
		check_eq(0, fiber_timer_start(t[i], begin + next_random(&seed) %
					      (2 * SEC), 0));
	arming = per(cpu, n);
	cpu = cpu_ns();
	for (int i = 0; i < n; i += 2)
		stopped += fiber_timer_stop(t[i]);
	stopping = per(cpu, n / 2);
	cpu = cpu_ns();
	while (atomic_load(&many_ran) + stopped < n)
		check_eq(0, fiber_sleep(5 * MS));
	figure("many: of %d: to arm %.0f ns, to stop %.0f ns, to call %.0f ns; %ld bytes each\n",
	       n, arming, stopping, per(cpu, n - stopped),
	       proc_number("/proc/self/status", "VmHWM:") * 1024 / n);
	check_eq(n, atomic_load(&many_ran) + stopped);
	for (int i = 0; i < n; i++)
		check_eq(0, fiber_timer_destroy(t[i]));
	free(t);
	return NULL;
}

TEST(very_many)
{
	intptr_t n = in_vm() ? 100000 : 1000000;

	ASSERT_EQ(0, with_runtime(2, 0, many, (void *)(n / 100)));
	ASSERT_EQ(0, with_runtime(2, 0, many, (void *)n));
	/* 250 bytes a timer, and what the called ones need at once */
	EXPECT_GT(64 * 1024 + n / 4, proc_number("/proc/self/status", "VmHWM:"));
	EXPECT_EQ(0, failures);
}

/* ---- how late ---- */

enum { SLEEPERS = 10000, SLEEPS = 5, TIMES = 100 };

static uint64_t late[SLEEPERS * SLEEPS];
static atomic_int late_count, stop;

static void note(uint64_t deadline)
{
	uint64_t now = fiber_now();

	check(now >= deadline);
	late[atomic_fetch_add(&late_count, 1)] = now - deadline;
}

static void *sleeps_on(void *arg)
{
	uint32_t seed = (uint32_t)(uintptr_t)arg * 2654435761U + 1;

	for (int i = 0; i < SLEEPS; i++) {
		uint64_t t = fiber_now() + 20 * MS +
			     next_random(&seed) % (200 * MS);

		check_eq(0, fiber_sleep_until(t));
		note(t);
	}
	return NULL;
}

static void *sleepers(void *arg)
{
	static fiber_t *f[SLEEPERS];
	int n = in_vm() ? SLEEPERS / 20 : SLEEPERS;

	for (int i = 0; i < n; i++)
		f[i] = spawn(sleeps_on, (void *)(intptr_t)i);
	for (int i = 0; i < n; i++)
		join(f[i]);
	return NULL;
}

static void say_late(const char *what)
{
	size_t n = (size_t)atomic_load(&late_count);

	figure("%s: late p50_us=%lu p99_us=%lu\n", what,
	       percentile(late, n, 50) / US, percentile(late, n, 99) / US);
}

TEST(many_sleepers)
{
	ASSERT_EQ(0, with_runtime(2, 0, sleepers, NULL));
	say_late("10,000 sleepers");
	EXPECT_EQ(0, failures);
}

/* All processors are busy with fibers that never call us. */
static void *hog(void *arg)
{
	while (!atomic_load_explicit(&stop, memory_order_relaxed))
		;
	return NULL;
}

static uint64_t due_at;

static void notes(void *arg, uint64_t ticks)
{
	note(due_at);
	atomic_fetch_add(&calls, 1);
}

/* From a plain thread, which has no processor to watch it. */
static void time_calls(struct __test_metadata *_metadata)
{
	fiber_timer_t *t = make(notes, NULL);

	for (int i = 0; i < TIMES; i++) {
		due_at = now_ns() + 3 * MS;
		ASSERT_EQ(0, fiber_timer_start(t, due_at, 0));
		while (atomic_load(&calls) <= i)
			block_ns(200 * US);
	}
	EXPECT_EQ(0, fiber_timer_destroy(t));
}

static void *time_sleeps(void *arg)
{
	for (int i = 0; i < TIMES; i++) {
		uint64_t t = fiber_now() + 3 * MS;

		check_eq(0, fiber_sleep_until(t));
		note(t);
	}
	return NULL;
}

static void beside_hogs(struct __test_metadata *_metadata, int hogs)
{
	fiber_t *f[8];

	atomic_store(&stop, 0);
	ASSERT_EQ(0, start(2, 5 * MS));
	if (!(fiber_features() & FIBER_FEATURE_PREEMPT))
		SKIP(return, "no preemption here");
	for (int i = 0; i < hogs; i++)
		f[i] = spawn(hog, NULL);
	block_ns(20 * MS);
	figure("%d hogs, 2 processors, quantum 5000 us\n", hogs);
	atomic_store(&late_count, 0);
	join(spawn(time_sleeps, NULL));
	say_late("  fiber_sleep");
	atomic_store(&late_count, 0);
	atomic_store(&calls, 0);
	time_calls(_metadata);
	say_late("  a timer's call");
	atomic_store(&stop, 1);
	for (int i = 0; i < hogs; i++)
		join(f[i]);
	ASSERT_EQ(0, fiber_fini());
	EXPECT_EQ(0, failures);
}

TEST(beside_two_hogs)
{
	beside_hogs(_metadata, 2);
}

TEST(beside_six_hogs)
{
	beside_hogs(_metadata, 6);
}

/* ---- nothing to do ---- */

static long voluntary_switches(void)
{
	struct rusage use;

	check_eq(0, getrusage(RUSAGE_SELF, &use));
	return use.ru_nvcsw;
}

/* A second of doing nothing but to wait for timers. */
static bool looks_idle(void)
{
	long switches = voluntary_switches();
	uint64_t cpu = cpu_ns();

	block_ns(1 * SEC);
	cpu = cpu_ns() - cpu;
	switches = voluntary_switches() - switches;
	figure("idle: 500 far timers: cpu_us=%lu switches=%ld\n", cpu / US,
	       switches);
	return cpu < 5 * MS * allowance() && switches <= 20;
}

/*
 * Timers that are far away, and nearer ones, due while we look, that were stopped.
 * False: some were due before, since we were held up.
 */
static bool arm_and_stop(fiber_timer_t **t, int n, uint64_t lead)
{
	uint64_t begin = now_ns() + lead;
	uint32_t seed = 7;
	int stopped = 0;

	for (int i = 0; i < n; i++)
		check_eq(0, fiber_timer_start(t[i], begin +
				(i % 2 ? next_random(&seed) % SEC :
					 (3600 + (uint64_t)i) * SEC), 0));
	for (int i = 1; i < n; i += 2)
		stopped += fiber_timer_stop(t[i]);
	if (now_ns() < begin) {
		check_eq(n / 2, stopped);
		block_ns(begin - now_ns());
		return true;
	}
	for (int i = 0; i < n; i++)
		fiber_timer_stop_wait(t[i]);
	return false;
}

/* The best of some looks counts: who wakes up without need does it in each. */
TEST(no_wake_up_without_need)
{
	enum { N = 1000 };
	fiber_timer_t *t[N];
	bool idle = false;

	ASSERT_EQ(0, start(2, 0));
	for (int i = 0; i < N; i++)
		t[i] = make(counts, NULL);
	for (int try = 0; try < 6 && !idle; try++) {
		atomic_store(&calls, 0);
		if (!arm_and_stop(t, N, 300 * MS << try))
			continue;
		idle = looks_idle();
		for (int i = 0; i < N; i += 2)
			EXPECT_EQ(1, fiber_timer_stop(t[i]));
		EXPECT_EQ(0, calls);
	}
	EXPECT_TRUE(idle);
	for (int i = 0; i < N; i++)
		EXPECT_EQ(0, fiber_timer_destroy(t[i]));
	ASSERT_EQ(0, fiber_fini());
	EXPECT_EQ(0, failures);
}

/* ---- tickers ---- */

static void *ticker(void *arg)
{
	uint64_t begin = fiber_now() + 1 * MS, ticks, sum = 0;
	struct fiber_case c[2] = { { .op = FIBER_CASE_RECV } };
	fiber_ticker_t *t = NULL, *once = NULL;

	check_eq(0, fiber_ticker_create(&t, begin, 1 * MS));
	for (int i = 0; i < 30; i++) {
		if (i == 10)
			check_eq(0, fiber_sleep(10 * MS));	/* misses some */
		check_eq(0, fiber_chan_recv(fiber_ticker_chan(t), &ticks));
		sum += ticks;
		check(ticks && sum <= (fiber_now() - begin) / MS + 1);
	}
	check(sum >= 36);
	/* What it kept, if anything, and then no more. */
	check_eq(1, fiber_ticker_stop(t));
	fiber_chan_try_recv(fiber_ticker_chan(t), NULL);
	check_eq(-ETIMEDOUT, fiber_chan_recv_until(fiber_ticker_chan(t), &ticks,
						   fiber_now() + 5 * MS));
	check_eq(0, fiber_ticker_reset(t, FIBER_NEVER, 0));
	check_eq(0, fiber_after(&once, fiber_now() + 2 * MS));
	c[0].chan = fiber_ticker_chan(t);
	c[1] = (struct fiber_case){ .op = FIBER_CASE_RECV, .value = &ticks,
				    .chan = fiber_ticker_chan(once) };
	check_eq(1, fiber_select(c, 2, FIBER_NEVER));
	check_eq(1, ticks);
	check_eq(0, fiber_ticker_destroy(t));
	check_eq(0, fiber_ticker_destroy(once));
	check_eq(0, fiber_ticker_destroy(NULL));
	check_eq(-EINVAL, fiber_ticker_create(NULL, 0, 0));
	check_eq(-EINVAL, fiber_ticker_stop(NULL));
	check(!fiber_ticker_chan(NULL));
	return NULL;
}

TEST(tickers)
{
	ASSERT_EQ(0, with_runtime(1, 0, ticker, NULL));
	ASSERT_EQ(0, with_runtime(2, 0, ticker, NULL));
	ASSERT_EQ(0, start(2, 0));
	ticker(NULL);			/* a plain thread */
	ASSERT_EQ(0, fiber_fini());
	EXPECT_EQ(0, failures);
}

static void *receives(void *arg)
{
	check_eq(0, fiber_chan_recv(arg, NULL));
	return NULL;
}

static void *waited_on(void *arg)
{
	fiber_ticker_t *t = NULL;
	uint64_t one = 1;
	fiber_t *f;

	check_eq(0, fiber_ticker_create(&t, FIBER_NEVER, 0));
	f = spawn(receives, fiber_ticker_chan(t));
	settle();
	check_eq(-EBUSY, fiber_ticker_destroy(t));
	check_eq(-EBUSY, fiber_ticker_destroy(t));
	check_eq(0, fiber_chan_try_send(fiber_ticker_chan(t), &one));
	join(f);
	check_eq(0, fiber_ticker_destroy(t));
	return NULL;
}

TEST(ticker_that_is_waited_on)
{
	ASSERT_EQ(0, with_runtime(1, LONG_QUANTUM, waited_on, NULL));
	EXPECT_EQ(0, failures);
}

/* ---- the end of fiber_run ---- */

static int leaves_timers(void *arg)
{
	fiber_timer_t *t = make(arg ? stays : counts, NULL);

	own = t;
	check_eq(0, fiber_timer_start(t, fiber_now() + (arg ? 0 : 100 * SEC),
				      0));
	if (arg)
		come_to(&in_call, 1);
	return 7;
}

TEST(main_returns_first)
{
	clean_environment();
	EXPECT_EQ(7, fiber_run(leaves_timers, NULL));	/* armed */
	EXPECT_EQ(7, fiber_run(leaves_timers, NULL));
	EXPECT_EQ(0, calls);
	EXPECT_EQ(7, fiber_run(leaves_timers, "called"));
	EXPECT_EQ(1, in_call);
	EXPECT_EQ(-EBUSY, fiber_run(leaves_timers, NULL));	/* abandoned */
	EXPECT_EQ(0, failures);
}

/* ---- fork ---- */

TEST(child_of_a_fork)
{
	fiber_timer_t *t = make(counts, NULL);
	int status;
	pid_t pid;

	ASSERT_EQ(0, start(2, 0));
	ASSERT_EQ(0, fiber_timer_start(t, now_ns() + 100 * SEC, 0));
	pid = fork();
	ASSERT_LE(0, pid);
	if (!pid)
		_exit(fiber_timer_stop(t) != -EPERM ||
		      fiber_timer_reset(t, 0, 0) != -EPERM ||
		      fiber_timer_destroy(t) != -EPERM);
	ASSERT_EQ(pid, waitpid(pid, &status, 0));
	EXPECT_EQ(0, status);
	EXPECT_EQ(1, fiber_timer_stop(t));
	EXPECT_EQ(0, fiber_timer_destroy(t));
	ASSERT_EQ(0, fiber_fini());
}

TEST_HARNESS_MAIN
