// SPDX-License-Identifier: GPL-2.0-only
/*
 * quality.c - how good a handoff is: no wake-up more than it needs, on the CPU
 * that has just gone idle, and a carrier that comes back among hogs runs soon
 */
#include <sched.h>
#include <signal.h>

#include "figures.h"
#include "harness.h"

static unsigned int stop, running;
static int pipe_fd[2];

static void run_on(int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	sched_setaffinity(0, sizeof(set), &set);
}

/* --- wake-ups ---------------------------------------------------------------- */

enum { BLOCKS = 100 };

static unsigned int seen_on[2];

/* Finds nothing to do, whenever it is asked. */
static void *spare(void *arg)
{
	uint32_t flags = FIBER_WAIT_SPARE;

	if (raw_attach())
		return NULL;
	while (!LOAD(stop) && !raw_wait(flags, 0, NULL)) {
		raw_takeover(0);
		ADD(seen_on[sched_getcpu() & 1], 1);
		flags = FIBER_WAIT_SPARE | FIBER_WAIT_GIVE | FIBER_WAIT_SURE;
	}
	return NULL;
}

static void block_often(unsigned int us)
{
	int i;

	for (i = 0; i < BLOCKS; i++) {
		raw_takeover(FIBER_TAKEOVER_READY);
		raw_enter();
		raw_sleep(us);
		raw_exclude();
		raw_leave();
	}
	raw_takeover(0);
}

/* Two spares wait, one must: each block wakes one, and never the keeper too. */
TEST(one_wakeup_a_block)
{
	pthread_t t[2];
	struct raw_stats s;
	uint64_t to_spare;
	int i;

	START(.min_spares = 1);
	ASSERT_EQ(0, raw_attach());
	ASSERT_EQ(0, raw_own(FIBER_WAIT_READY));
	for (i = 0; i < 2; i++)
		t[i] = raw_thread(spare, NULL);
	ASSERT_TRUE(RAW_UNTIL(raw_info->spares == 2));
	block_often(5000);
	ASSERT_EQ(0, raw_stats(&s));
	to_spare = raw_stat("to-spare");
	TH_LOG("%lu blocks, %lu handoffs, %lu to a spare, %lu keeper calls",
	       s.blocks, s.handoffs, to_spare, raw_stat("keeper-calls"));
	EXPECT_LE(BLOCKS / 2, to_spare);
	EXPECT_GE(s.handoffs, to_spare);
	EXPECT_EQ(0, raw_stat("keeper-calls"));
	EXPECT_EQ(0, s.wakes);
	EXPECT_EXCLUSIVE();
	STORE(stop, 1);
	close(raw_fd);
	for (i = 0; i < 2; i++)
		pthread_join(t[i], NULL);
}

/* Back within the grace time: nobody was woken for it. */
TEST(no_wakeup_in_grace)
{
	struct raw_stats s;
	uint64_t back, to_spare;
	pthread_t t;

	START(.grace_ns = 10000000);
	ASSERT_EQ(0, raw_attach());
	ASSERT_EQ(0, raw_own(FIBER_WAIT_READY));
	t = raw_thread(spare, NULL);
	ASSERT_TRUE(RAW_UNTIL(raw_info->spares == 1));
	block_often(100);
	ASSERT_EQ(0, raw_stats(&s));
	to_spare = raw_stat("to-spare");
	back = s.grace_returns + s.edge_returns;
	TH_LOG("%lu handoffs, %lu back in time, %lu to a spare", s.handoffs,
	       back, to_spare);
	/* One that a spare had may come back at the edge as well. */
	EXPECT_GE(s.handoffs, s.grace_returns + to_spare);
	EXPECT_LE(1, s.grace_returns);
	EXPECT_EQ(0, raw_stat("keeper-calls"));
	STORE(stop, 1);
	close(raw_fd);
	pthread_join(t, NULL);
}

static void *plain_hog(void *cpu)
{
	run_on((long)cpu);
	ADD(running, 1);
	while (!LOAD(stop))
		asm volatile("pause");
	return NULL;
}

/* The other CPU has enough to do. */
TEST(spare_runs_where_the_owner_left)
{
	pthread_t t, hog;
	unsigned int here, all;

	if (sysconf(_SC_NPROCESSORS_ONLN) < 2)
		SKIP(return, "needs two CPUs");
	START(0);
	t = raw_thread(spare, NULL);
	ASSERT_TRUE(RAW_UNTIL(raw_info->spares == 1));
	hog = raw_thread(plain_hog, (void *)1L);
	ASSERT_TRUE(RAW_UNTIL(LOAD(running) == 1));
	run_on(0);
	ASSERT_EQ(0, raw_attach());
	ASSERT_EQ(0, raw_own(FIBER_WAIT_READY));
	block_often(5000);
	here = LOAD(seen_on[0]);
	all = here + LOAD(seen_on[1]);
	TH_LOG("%u of %u on the CPU that went idle", here, all);
	EXPECT_LE(BLOCKS / 2, all);
	/* A debug kernel's own threads run there, too: 73% was seen. */
	EXPECT_LE(all * (FIBER_SLOW > 1 ? 6 : 8), here * 10);
	STORE(stop, 1);
	close(raw_fd);
	pthread_join(t, NULL);
	pthread_join(hog, NULL);
}

/* --- among hogs ---------------------------------------------------------------- */

enum { RETURNS = 41, QUANTUM_MS = 400 };

static bool fibers;			/* the threads are carriers */
static uint64_t late[RETURNS];

RAW_TEXT static void spin(volatile unsigned int *end)
{
	while (!*end)
		asm volatile("");
}

static bool begin_fiber(void)
{
	if (!fibers)
		return true;
	if (raw_attach() || raw_own(FIBER_WAIT_READY))
		return false;
	raw_takeover(FIBER_TAKEOVER_READY);
	raw_enter();
	return true;
}

static void *hog(void *arg)
{
	if (!begin_fiber())
		return NULL;
	ADD(running, 1);
	spin(&stop);
	if (fibers)
		raw_leave();
	return NULL;
}

static void *reader(void *arg)
{
	uint64_t sent;
	int i;

	if (!begin_fiber())
		return NULL;
	ADD(running, 1);
	for (i = 0; i < RETURNS; i++) {
		if (read(pipe_fd[0], &sent, sizeof(sent)) != sizeof(sent))
			break;
		late[i] = raw_now() - sent;
		ADD(running, 1);
	}
	if (fibers)
		raw_leave();
	return NULL;
}

/* Median of the time from a write until the reader runs, ns; 0: it never did. */
static uint64_t lateness(struct __test_metadata *_metadata, bool as_fibers,
			 unsigned int hogs)
{
	pthread_t t[8], r;
	uint64_t now;
	unsigned int i, n;

	fibers = as_fibers;
	STORE(stop, 0);
	STORE(running, 0);
	r = raw_thread(reader, NULL);
	EXPECT_TRUE(RAW_UNTIL(LOAD(running) == 1));
	for (i = 0; i < hogs; i++)
		t[i] = raw_thread(hog, NULL);
	EXPECT_TRUE(RAW_UNTIL(LOAD(running) == 1 + hogs));
	for (n = 0; n < RETURNS; n++) {
		raw_sleep(7000 + n * 100);	/* the minimum run is over */
		now = raw_now();
		if (write(pipe_fd[1], &now, sizeof(now)) != sizeof(now) ||
		    !RAW_UNTIL(LOAD(running) == 2 + hogs + n))
			break;
	}
	STORE(stop, 1);
	for (i = 0; i < hogs; i++)
		pthread_join(t[i], NULL);
	EXPECT_EQ(RETURNS, n);
	if (n < RETURNS)
		return 0;
	pthread_join(r, NULL);
	return percentile(late, RETURNS, 50);
}

/*
 * Hogs hold all processors, and their quantum is long: only cutting it short
 * lets the reader run in time. With a CPU for the reader a millisecond beyond
 * what a plain thread takes is the bar, where time is not the host's (exact
 * counts, or a real CPU). With hogs on all CPUs the scheduler decides when the
 * reader comes to the point where the module can do something for it: that
 * figure is printed.
 */
static void return_among(struct __test_metadata *_metadata, unsigned int hogs,
			 bool bar)
{
	uint64_t plain, fiber;

	START(.processors = hogs, .quantum_ns = QUANTUM_MS * 1000000ULL,
	      .preempt = true);
	ASSERT_EQ(0, pipe(pipe_fd));
	plain = lateness(_metadata, false, hogs);
	fiber = lateness(_metadata, true, hogs);
	printf("# cost return among %u hogs: median %lu us late, plain threads %lu us, ratio %.2f; %lu quanta cut short\n",
	       hogs, fiber / 1000, plain / 1000, (double)fiber / (plain ?: 1),
	       raw_stat("hurries"));
	EXPECT_LT(0, plain);
	EXPECT_LT(0, fiber);
	EXPECT_GT(QUANTUM_MS * 1000000ULL / 4, fiber);
	if (bar && !getenv("FIBER_VM_EMULATED"))
		EXPECT_GT(plain + 1000000, fiber);
	EXPECT_EXCLUSIVE();
}

TEST(return_among_hogs)
{
	return_among(_metadata, 1, true);
}

static int rest_fd[2];
static unsigned int resting;

/* It owns a processor for longest, and sleeps with it, not in fiber. */
static void *rests(void *arg)
{
	char byte;

	if (raw_attach() || raw_own(FIBER_WAIT_READY))
		return NULL;
	ADD(resting, 1);
	while (read(rest_fd[0], &byte, 1) == 1)
		;
	return NULL;
}

/* The quantum to cut short is the hog's. */
TEST(return_among_hogs_and_one_that_rests)
{
	pthread_t t;
	uint64_t fiber;

	if (sysconf(_SC_NPROCESSORS_ONLN) < 2)
		SKIP(return, "one CPU: who is back pushes the hog aside");
	START(.processors = 2, .quantum_ns = QUANTUM_MS * 1000000ULL,
	      .preempt = true);
	ASSERT_EQ(0, pipe(pipe_fd));
	ASSERT_EQ(0, pipe(rest_fd));
	t = raw_thread(rests, NULL);
	ASSERT_TRUE(RAW_UNTIL(LOAD(resting) == 1));
	fiber = lateness(_metadata, true, 1);
	printf("# return among 1 hog and one that rests: median %lu us late; %lu quanta cut short\n",
	       fiber / 1000, raw_stat("hurries"));
	EXPECT_LT(0, fiber);
	EXPECT_GT(QUANTUM_MS * 1000000ULL / 4, fiber);
	close(rest_fd[1]);
	pthread_join(t, NULL);
	EXPECT_EXCLUSIVE();
}

TEST(return_among_hogs_on_all_cpus)
{
	if (sysconf(_SC_NPROCESSORS_ONLN) < 2)
		SKIP(return, "one CPU: that is the other test");
	return_among(_metadata, 2, false);
}

TEST_HARNESS_MAIN
