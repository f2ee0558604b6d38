// SPDX-License-Identifier: GPL-2.0-only
/*
 * handoff.c - who gets a processor, in which order, and why
 */
#include <sys/syscall.h>

#include "harness.h"
#include "mix.h"

/* What carriers report, in the order in which they got the processor. */
static struct {
	unsigned int begun, n;
	char who[32];
	uint32_t event[32];
} seen;

/* What it says is there when .n counts it. */
static void report(char who, uint32_t event)
{
	unsigned int i = ADD(seen.begun, 1) - 1;

	if (i < 32) {
		seen.event[i] = event;
		seen.who[i] = who;
	}
	ADD(seen.n, 1);
}

struct waiter {
	char name;
	uint32_t flags;
	uint64_t patience;		/* ns; 0: no deadline */
	int err;
};

/* Waits once, reports, gives the processor away for good. */
static void *wait_once(void *arg)
{
	struct waiter *w = arg;
	uint32_t event = 0;

	w->err = raw_attach();
	if (!w->err)
		w->err = raw_wait(w->flags,
				  w->patience ? raw_now() + w->patience : 0,
				  &event);
	if (!w->err)
		report(w->name, event);
	raw_detach();
	return NULL;
}

static void own_in_main(struct __test_metadata *_metadata)
{
	ASSERT_EQ(0, raw_attach());
	ASSERT_EQ(0, raw_own(FIBER_WAIT_READY));
}

TEST(ready_first_come_first_served)
{
	struct waiter w[6];
	unsigned int i;

	START(0);
	own_in_main(_metadata);
	for (i = 0; i < 6; i++) {
		w[i] = (struct waiter){ 'a' + i, FIBER_WAIT_READY };
		raw_thread(wait_once, &w[i]);
		ASSERT_TRUE(RAW_UNTIL(raw_info->waiting == i + 1));
	}
	EXPECT_EQ(0, LOAD(seen.n));
	ASSERT_EQ(0, raw_own(FIBER_WAIT_READY | FIBER_WAIT_GIVE));
	ASSERT_EQ(6, LOAD(seen.n));
	EXPECT_STREQ("abcdef", seen.who);
	EXPECT_EQ(FIBER_EVENT_GIVEN, seen.event[0]);
	EXPECT_EQ(FIBER_EVENT_EXIT, seen.event[1]);
	EXPECT_EQ(0, raw_info->waiting);
	EXPECT_EQ(0, raw_page->processor);
	EXPECT_EXCLUSIVE();
}

TEST(give_to_ready_before_spare)
{
	struct waiter r = { 'r', FIBER_WAIT_READY }, s = { 's', FIBER_WAIT_SPARE };

	START(0);
	own_in_main(_metadata);
	raw_thread(wait_once, &s);
	ASSERT_TRUE(RAW_UNTIL(raw_info->spares == 1));
	raw_thread(wait_once, &r);
	ASSERT_TRUE(RAW_UNTIL(raw_info->waiting == 1));
	ASSERT_EQ(0, raw_own(FIBER_WAIT_READY | FIBER_WAIT_GIVE));
	EXPECT_EQ(1, LOAD(seen.n));
	EXPECT_EQ('r', seen.who[0]);
	EXPECT_EQ(1, raw_info->spares);
	EXPECT_EXCLUSIVE();
}

/* Had a turn, gave it away, waits again; then as wait_once. */
static void *turn_once(void *arg)
{
	struct waiter *w = arg;
	uint32_t event = 0;

	w->err = raw_attach() ?: raw_own(FIBER_WAIT_READY);
	if (!w->err && RAW_UNTIL(raw_info->waiting == 1))
		w->err = raw_wait(FIBER_WAIT_READY | FIBER_WAIT_GIVE, 0, &event);
	if (!w->err)
		report(w->name, event);
	raw_detach();
	return NULL;
}

/* TO_SPARE: ready fibers before preempted carriers. */
TEST(give_to_spare_before_preempted)
{
	struct waiter r = { 'r' }, s = { 's', FIBER_WAIT_SPARE };

	START(.quantum_ns = 1000000000);
	raw_thread(wait_once, &s);
	ASSERT_TRUE(RAW_UNTIL(raw_info->spares == 1));
	raw_thread(turn_once, &r);
	ASSERT_TRUE(RAW_UNTIL(raw_info->idle == 0));
	own_in_main(_metadata);
	EXPECT_EQ(1, raw_info->waiting);
	EXPECT_EQ(0, LOAD(seen.n));
	raw_takeover(FIBER_TAKEOVER_READY);
	ASSERT_EQ(0, raw_own(FIBER_WAIT_READY | FIBER_WAIT_GIVE |
			     FIBER_WAIT_TO_SPARE));
	EXPECT_EQ(2, LOAD(seen.n));
	EXPECT_STREQ("sr", seen.who);
	EXPECT_EQ(FIBER_EVENT_GIVEN, seen.event[0]);
	EXPECT_EXCLUSIVE();
}

/* Who is back from a block goes before both. */
TEST(give_to_spare_after_returned)
{
	struct waiter r = { 'r', FIBER_WAIT_READY }, s = { 's', FIBER_WAIT_SPARE };

	START(.quantum_ns = 1000000000);
	own_in_main(_metadata);
	raw_thread(wait_once, &s);
	ASSERT_TRUE(RAW_UNTIL(raw_info->spares == 1));
	raw_thread(wait_once, &r);
	ASSERT_TRUE(RAW_UNTIL(raw_info->waiting == 1));
	raw_takeover(FIBER_TAKEOVER_READY);
	ASSERT_EQ(0, raw_own(FIBER_WAIT_READY | FIBER_WAIT_GIVE |
			     FIBER_WAIT_TO_SPARE));
	EXPECT_LE(1, LOAD(seen.n));
	EXPECT_EQ('r', seen.who[0]);
	EXPECT_EXCLUSIVE();
}

static unsigned int let_go;

static void *wait_and_hold(void *arg)
{
	struct waiter *w = arg;
	uint32_t event = 0;

	w->err = raw_attach() ?: raw_wait(w->flags, 0, &event);
	report(w->name, event);
	while (!LOAD(let_go))
		raw_sleep(1000);
	raw_detach();
	return NULL;
}

/* A spare takes this processor over; another is idle, so nobody waits. */
TEST(give_to_spare_and_take_idle)
{
	struct waiter s = { 's', FIBER_WAIT_SPARE };
	uint32_t event;

	START(.processors = 2);
	own_in_main(_metadata);
	raw_thread(wait_and_hold, &s);
	ASSERT_TRUE(RAW_UNTIL(raw_info->spares == 1));
	ASSERT_EQ(1, raw_info->idle);
	raw_takeover(FIBER_TAKEOVER_READY);
	ASSERT_EQ(0, raw_wait(FIBER_WAIT_READY | FIBER_WAIT_GIVE |
			      FIBER_WAIT_TO_SPARE, 0, &event));
	EXPECT_EQ(FIBER_EVENT_IDLE, event);
	EXPECT_EQ(0, raw_info->waiting);
	EXPECT_EQ(0, raw_info->idle);
	EXPECT_TRUE(RAW_UNTIL(LOAD(seen.n) == 1));
	EXPECT_EQ(FIBER_EVENT_GIVEN, seen.event[0]);
	STORE(let_go, 1);
	EXPECT_EXCLUSIVE();
}

TEST(give_to_nobody)
{
	uint32_t event;

	START(0);
	own_in_main(_metadata);
	ASSERT_EQ(0, raw_wait(FIBER_WAIT_READY | FIBER_WAIT_GIVE, 0, &event));
	EXPECT_EQ(FIBER_EVENT_GIVEN, event);
	ASSERT_EQ(0, raw_wait(FIBER_WAIT_READY | FIBER_WAIT_GIVE |
			      FIBER_WAIT_TO_SPARE, 0, &event));
	EXPECT_EQ(0, raw_page->processor);
	EXPECT_EQ(raw_index, raw_processor(0)->owner);
	EXPECT_EXCLUSIVE();
}

TEST(give_idle)
{
	struct waiter w = { 'i', FIBER_WAIT_SPARE | FIBER_WAIT_GIVE };
	uint32_t event;

	START(0);
	own_in_main(_metadata);
	ASSERT_EQ(0, raw_detach());
	ASSERT_TRUE(RAW_UNTIL(raw_info->idle == 1));
	raw_thread(wait_once, &w);		/* GIVE without a processor */
	ASSERT_TRUE(RAW_UNTIL(raw_info->spares == 1));
	EXPECT_EQ(1, raw_info->avail);
	EXPECT_EQ(FIBER_NO_CARRIER, raw_processor(0)->owner);
	EXPECT_EQ(1, raw_ioctl(raw_fd, FIBER_IOC_WAKE, NULL));
	ASSERT_TRUE(RAW_UNTIL(LOAD(seen.n) == 1));
	EXPECT_EQ(FIBER_EVENT_WAKE, seen.event[0]);

	/* The owner itself: its deadline makes it continue on the idle one. */
	ASSERT_EQ(0, raw_attach());
	ASSERT_EQ(0, raw_own(FIBER_WAIT_READY));
	ASSERT_EQ(0, raw_wait(FIBER_WAIT_SPARE | FIBER_WAIT_GIVE,
			      raw_now() + 20000000, &event));
	EXPECT_EQ(FIBER_EVENT_IDLE, event);
	EXPECT_EXCLUSIVE();
}

struct recheck {
	const char *what;
	uint32_t takeover, work, flags;
	bool keeps;
};

/* The last look after "idle": a publisher that saw no idle one is not lost. */
TEST(give_looks_again)
{
	static const struct recheck list[] = {
		{ "nothing", 0, 0, 0, false },
		{ "READY", FIBER_TAKEOVER_READY, 0, 0, true },
		{ "WATCH", FIBER_TAKEOVER_WATCH, 0, 0, false },
		{ "work", 0, 1, 0, true },
		{ "READY, SURE", FIBER_TAKEOVER_READY, 0, FIBER_WAIT_SURE, false },
		{ "work, SURE", 0, 1, FIBER_WAIT_SURE, true },
	};
	uint32_t event;
	size_t i;

	START(.processors = 2);
	own_in_main(_metadata);
	for (i = 0; i < ARRAY_SIZE(list); i++) {
		raw_processor(1)->takeover = list[i].takeover;
		raw_hint->work = list[i].work;
		event = 0xbad;
		ASSERT_EQ(0, raw_wait(FIBER_WAIT_SPARE | FIBER_WAIT_GIVE |
				      list[i].flags, raw_now() + 10000000,
				      &event));
		EXPECT_EQ(list[i].keeps ? FIBER_EVENT_NONE : FIBER_EVENT_IDLE,
			  event)
			TH_LOG("%s", list[i].what);
	}
	EXPECT_EXCLUSIVE();
}

TEST(spare_deadline_makes_it_ready)
{
	struct waiter s = { 's', FIBER_WAIT_SPARE, 100000000 };
	struct waiter r = { 'r', FIBER_WAIT_READY };

	START(0);
	own_in_main(_metadata);
	raw_thread(wait_once, &s);
	ASSERT_TRUE(RAW_UNTIL(raw_info->waiting == 1));
	EXPECT_EQ(0, raw_info->spares);
	EXPECT_EQ(0, LOAD(seen.n));
	raw_thread(wait_once, &r);
	ASSERT_TRUE(RAW_UNTIL(raw_info->waiting == 2));
	ASSERT_EQ(0, raw_own(FIBER_WAIT_READY | FIBER_WAIT_GIVE));
	EXPECT_STREQ("sr", seen.who);
	EXPECT_EQ(FIBER_EVENT_GIVEN, seen.event[0]);
	EXPECT_EXCLUSIVE();
}

TEST(spare_deadline_in_the_past)
{
	uint32_t event;

	START(0);
	ASSERT_EQ(0, raw_attach());
	ASSERT_EQ(0, raw_wait(FIBER_WAIT_SPARE, 1, &event));
	EXPECT_EQ(FIBER_EVENT_IDLE, event);
	EXPECT_EQ(0, raw_page->processor);
	EXPECT_EXCLUSIVE();
}

TEST(spares_last_in_first_out)
{
	struct waiter w[3];
	unsigned int i;

	START(0);
	for (i = 0; i < 3; i++) {
		w[i] = (struct waiter){ 'a' + i, FIBER_WAIT_SPARE };
		raw_thread(wait_once, &w[i]);
		ASSERT_TRUE(RAW_UNTIL(raw_info->spares == i + 1));
	}
	for (i = 0; i < 3; i++) {
		ASSERT_TRUE(RAW_UNTIL(raw_info->idle == 1));
		EXPECT_EQ(1, raw_ioctl(raw_fd, FIBER_IOC_WAKE, NULL));
		ASSERT_TRUE(RAW_UNTIL(LOAD(seen.n) == i + 1));
	}
	EXPECT_STREQ("cba", seen.who);
	EXPECT_TRUE(RAW_UNTIL(raw_info->idle == 1));
	EXPECT_EQ(0, raw_ioctl(raw_fd, FIBER_IOC_WAKE, NULL));
	EXPECT_EXCLUSIVE();
}

TEST(wake_busy)
{
	struct waiter s = { 's', FIBER_WAIT_SPARE };

	START(0);
	own_in_main(_metadata);
	EXPECT_EQ(0, raw_info->avail);
	EXPECT_EQ(0, raw_ioctl(raw_fd, FIBER_IOC_WAKE, NULL));
	raw_thread(wait_once, &s);
	ASSERT_TRUE(RAW_UNTIL(raw_info->spares == 1));
	EXPECT_EQ(0, raw_ioctl(raw_fd, FIBER_IOC_WAKE, NULL));
	EXPECT_EQ(1, raw_info->spares);
	EXPECT_EQ(0, LOAD(seen.n));
	EXPECT_EXCLUSIVE();
}

static unsigned int hold;
static int block_pipe[2];
static pid_t block_tid, keeper_tid;

/* Until somebody writes to block_pipe. */
static void *block_in_fiber(void *takeover)
{
	char c;

	if (raw_attach() || raw_own(FIBER_WAIT_READY))
		return NULL;
	raw_takeover((uintptr_t)takeover);
	raw_enter();
	STORE(block_tid, raw_tid());
	if (read(block_pipe[0], &c, 1) != 1)
		ADD(raw_violations, 1);
	raw_exclude();
	raw_leave();
	return NULL;
}

/* Blocked, wanted, no spare: the first that comes takes it at once. */
TEST(newcomer_takes_wanted_idle)
{
	struct waiter s = { 's', FIBER_WAIT_SPARE };
	pthread_t t;

	START(0);
	ASSERT_EQ(0, pipe(block_pipe));
	t = raw_thread(block_in_fiber, (void *)FIBER_TAKEOVER_READY);
	ASSERT_TRUE(RAW_UNTIL(raw_asleep_in(LOAD(block_tid), SYS_read) &&
			      raw_info->idle == 1));
	EXPECT_EQ(1, raw_info->avail);
	raw_thread(wait_once, &s);
	ASSERT_TRUE(RAW_UNTIL(LOAD(seen.n) == 1));
	EXPECT_EQ(FIBER_EVENT_IDLE, seen.event[0]);
	ASSERT_EQ(1, write(block_pipe[1], "x", 1));
	pthread_join(t, NULL);
	EXPECT_EXCLUSIVE();
}

TEST(newcomer_waits_if_unwanted)
{
	struct waiter s = { 's', FIBER_WAIT_SPARE };
	pthread_t t;

	START(0);
	ASSERT_EQ(0, pipe(block_pipe));
	t = raw_thread(block_in_fiber, NULL);
	ASSERT_TRUE(RAW_UNTIL(raw_asleep_in(LOAD(block_tid), SYS_read)));
	EXPECT_EQ(1, raw_info->avail);
	raw_thread(wait_once, &s);
	ASSERT_TRUE(RAW_UNTIL(raw_info->spares == 1));
	ASSERT_EQ(1, write(block_pipe[1], "x", 1));
	pthread_join(t, NULL);
	EXPECT_EQ(0, LOAD(seen.n));
	EXPECT_EXCLUSIVE();
}

/* Main sleeps in fiber until somebody took over (it may be late, and not sleep). */
static void sleep_until_seen(void)
{
	uint64_t end = raw_now() + RAW_PATIENCE * 1000000000ULL;

	raw_takeover(FIBER_TAKEOVER_READY);
	raw_enter();
	do
		raw_sleep(100000);
	while (!LOAD(seen.n) && raw_now() < end);
	raw_exclude();
	raw_leave();
}

/* A carrier that waits to continue goes before a spare. */
TEST(block_ready_before_spare)
{
	struct waiter r = { 'r', FIBER_WAIT_READY }, s = { 's', FIBER_WAIT_SPARE };

	START(0);
	own_in_main(_metadata);
	raw_thread(wait_once, &s);
	ASSERT_TRUE(RAW_UNTIL(raw_info->spares == 1));
	raw_thread(wait_once, &r);
	ASSERT_TRUE(RAW_UNTIL(raw_info->waiting == 1));
	sleep_until_seen();
	EXPECT_LE(1, LOAD(seen.n));
	EXPECT_EQ('r', seen.who[0]);
	EXPECT_EQ(FIBER_EVENT_BLOCK, seen.event[0]);
	EXPECT_EXCLUSIVE();
}

/* --- keeper ---------------------------------------------------------------- */

static int keep_said[8];
static unsigned int keep_n;

static void *keeper(void *arg)
{
	int r;

	STORE(keeper_tid, raw_tid());
	do {
		r = raw_ioctl(raw_fd, FIBER_IOC_KEEP, NULL);
		keep_said[keep_n % 8] = r;
		ADD(keep_n, 1);
		while (r >= 0 && !LOAD(hold))
			raw_sleep(1000);
		STORE(hold, 0);
	} while (r >= 0);
	return NULL;
}

#define EXPECT_KEEPER_SLEEPS()						\
	EXPECT_TRUE(RAW_UNTIL(raw_asleep_in(LOAD(keeper_tid), SYS_ioctl)))

TEST(keep_counts_missing)
{
	struct waiter w[4];
	pthread_t t;
	int i;

	START(.min_spares = 2);
	t = raw_thread(keeper, NULL);
	ASSERT_TRUE(RAW_UNTIL(LOAD(keep_n) == 1));
	EXPECT_EQ(2, keep_said[0]);
	for (i = 0; i < 2; i++) {
		w[i] = (struct waiter){ 'a' + i, FIBER_WAIT_SPARE };
		raw_thread(wait_once, &w[i]);
	}
	ASSERT_TRUE(RAW_UNTIL(raw_info->spares == 2));
	STORE(hold, 1);
	EXPECT_KEEPER_SLEEPS();
	EXPECT_EQ(1, LOAD(keep_n));		/* enough of them */
	EXPECT_EQ(-EBUSY, raw_ioctl(raw_fd, FIBER_IOC_KEEP, NULL));
	EXPECT_EQ(1, raw_ioctl(raw_fd, FIBER_IOC_WAKE, NULL));
	ASSERT_TRUE(RAW_UNTIL(LOAD(keep_n) == 2));
	EXPECT_EQ(1, keep_said[1]);
	w[2] = (struct waiter){ 'c', FIBER_WAIT_SPARE };
	raw_thread(wait_once, &w[2]);
	ASSERT_TRUE(RAW_UNTIL(raw_info->spares == 2));
	STORE(hold, 1);
	EXPECT_KEEPER_SLEEPS();
	close(raw_fd);
	pthread_join(t, NULL);
	EXPECT_EQ(-ESHUTDOWN, keep_said[2]);
}

/* No spare where one was wanted: the keeper hears of it. */
TEST(keep_woken_by_block)
{
	struct waiter w[2] = { { 'a', FIBER_WAIT_SPARE }, { 'b', FIBER_WAIT_SPARE } };
	pthread_t t;

	START(.min_spares = 1);
	raw_thread(wait_once, &w[0]);
	ASSERT_TRUE(RAW_UNTIL(raw_info->spares == 1));
	t = raw_thread(keeper, NULL);
	EXPECT_KEEPER_SLEEPS();
	EXPECT_EQ(0, LOAD(keep_n));
	own_in_main(_metadata);
	sleep_until_seen();
	EXPECT_EQ(1, LOAD(seen.n));
	ASSERT_TRUE(RAW_UNTIL(LOAD(keep_n) == 1));
	EXPECT_EQ(1, keep_said[0]);
	EXPECT_EXCLUSIVE();
	close(raw_fd);
	STORE(hold, 1);
	pthread_join(t, NULL);
}

TEST(keep_needs_none)
{
	pthread_t t;

	START(.min_spares = 0);
	t = raw_thread(keeper, NULL);
	EXPECT_KEEPER_SLEEPS();
	EXPECT_EQ(0, LOAD(keep_n));
	close(raw_fd);
	pthread_join(t, NULL);
	EXPECT_EQ(-ESHUTDOWN, keep_said[0]);
}

/* --- a crowd ---------------------------------------------------------------- */

FIXTURE(crowd)
{
	int unused;
};

FIXTURE_VARIANT(crowd)
{
	unsigned int workers, grace_ns;
};

FIXTURE_VARIANT_ADD(crowd, many) { .workers = 10, .grace_ns = 50000 };
/* A processor each: blocked owners keep theirs, and lose them to wake-ups. */
FIXTURE_VARIANT_ADD(crowd, few) { .workers = 3, .grace_ns = 2000000 };

FIXTURE_SETUP(crowd)
{
	START(.processors = 3, .quantum_ns = 1000000,
	      .grace_ns = variant->grace_ns, .preempt = true,
	      .max_carriers = 256, .min_spares = 2);
}

FIXTURE_TEARDOWN(crowd)
{
}

TEST_F(crowd, keeps_the_rules)
{
	struct mix_options o = { .seconds = 5, .workers = variant->workers,
				 .steps = 51, .signals = true, .forks = true };
	struct mix_result r = {};

	ASSERT_EQ(0, mix_run(&o, &r));
	TH_LOG("%lu steps, %lu threads, %lu blocks, %lu handoffs, %lu grace, %lu edge, %lu returns, %lu preempts, %lu wakes, %lu signals, %lu samples",
	       r.steps, r.threads, r.stats.blocks, r.stats.handoffs,
	       r.stats.grace_returns, r.stats.edge_returns, r.stats.returns,
	       r.stats.preempts, r.stats.wakes, r.signals, r.samples);
	EXPECT_FALSE(r.stuck);
	EXPECT_LT(50, r.steps);
	EXPECT_LE(1, r.stats.handoffs);
	EXPECT_LT(10, r.samples);
	EXPECT_EQ(0, r.bad_sums);
	EXPECT_EQ(0, r.lazy);
	EXPECT_EQ(0, r.stats.violations);
	EXPECT_EQ(0, LOAD(raw_violations)) TH_LOG("%s", raw_violation);
	EXPECT_EQ(3, r.stats.owned + r.stats.idle + r.stats.flight);
}

TEST_HARNESS_MAIN
