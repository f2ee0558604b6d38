// SPDX-License-Identifier: GPL-2.0-only
/*
 * lost.c - what must not get lost on the way: a tick of a carrier that moves
 * between CPUs, the news that a spare has left, a processor that nobody uses;
 * and what must come to an end: a carrier that never asks for its processor
 */
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>

#include "harness.h"

static unsigned int stop, ready;
static int pipe_fd[2];

static void own_in_main(struct __test_metadata *_metadata)
{
	ASSERT_EQ(0, raw_attach());
	ASSERT_EQ(0, raw_own(FIBER_WAIT_READY));
}

/* --- ticks ------------------------------------------------------------------- */

enum { MOVES = 20, BURSTS = 300 };

static pid_t hog_tid;

RAW_TEXT static void spin(volatile unsigned int *end)
{
	while (!*end)
		asm volatile("");
}

static void *hog(void *arg)
{
	hog_tid = syscall(SYS_gettid);
	if (raw_attach() || raw_own(FIBER_WAIT_READY))
		return NULL;
	raw_takeover(FIBER_TAKEOVER_READY);
	STORE(ready, raw_index + 1);
	raw_enter();
	spin(&stop);
	raw_leave();
	return NULL;
}

static void run_on(pid_t tid, int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	sched_setaffinity(tid, sizeof(set), &set);
}

/*
 * Its timer may expire on the CPU that it has just left. The main thread stays
 * on CPU 0, so that nothing switches the hog on CPU 1 out and in again, which
 * would start a timer that was lost.
 */
TEST(tick_of_a_carrier_that_moves)
{
	volatile struct fiber_carrier_page *page;
	int burst, move, lost = 0;
	uint64_t before;
	pthread_t t;

	if (sysconf(_SC_NPROCESSORS_ONLN) < 2)
		SKIP(return, "needs two CPUs");
	START(.quantum_ns = 50000, .preempt = true);
	run_on(0, 0);
	t = raw_thread(hog, NULL);
	ASSERT_TRUE(RAW_UNTIL(LOAD(ready)));
	page = raw_carrier(ready - 1);
	for (burst = 0; burst < BURSTS && !lost; burst++) {
		for (move = 0; move < MOVES; move++)
			run_on(hog_tid, move & 1);
		before = page->preempts;
		lost = !RAW_UNTIL(page->preempts > before);
	}
	EXPECT_EQ(0, lost) TH_LOG("no tick after %d bursts", burst);
	STORE(stop, 1);
	pthread_join(t, NULL);
	EXPECT_EXCLUSIVE();
}

/* --- spares ------------------------------------------------------------------ */

static int missing;
static pid_t spare_tid;

static void *keeper(void *arg)
{
	STORE(missing, raw_ioctl(raw_fd, FIBER_IOC_KEEP, NULL));
	return NULL;
}

/* A spare that leaves by its deadline or by a signal, and does not come back. */
static void *spare(void *arg)
{
	uint64_t patience = (uintptr_t)arg;

	STORE(spare_tid, (pid_t)syscall(SYS_gettid));
	if (!raw_attach())
		raw_wait(FIBER_WAIT_SPARE, patience ? raw_now() + patience : 0,
			 NULL);
	while (!LOAD(stop))
		raw_sleep(1000);
	raw_detach();
	return NULL;
}

static void on_signal(int sig)
{
}

static void keeper_hears(struct __test_metadata *_metadata, uint64_t patience)
{
	struct sigaction sa = { .sa_handler = on_signal };
	pthread_t s, k;

	START(.min_spares = 1);
	own_in_main(_metadata);
	sigaction(SIGUSR1, &sa, NULL);
	s = raw_thread(spare, (void *)(uintptr_t)patience);
	ASSERT_TRUE(RAW_UNTIL(raw_info->spares == 1));
	k = raw_thread(keeper, NULL);
	raw_sleep(100000);
	if (!patience) {
		EXPECT_EQ(0, LOAD(missing));
		syscall(SYS_tgkill, getpid(), LOAD(spare_tid), SIGUSR1);
	}
	EXPECT_TRUE(RAW_UNTIL(LOAD(missing)));
	EXPECT_EQ(1, LOAD(missing));
	EXPECT_EQ(0, raw_info->spares);
	STORE(stop, 1);
	raw_detach();			/* who was promoted gets it */
	pthread_join(s, NULL);
	close(raw_fd);
	pthread_join(k, NULL);
}

TEST(spare_left_by_its_deadline)
{
	keeper_hears(_metadata, 2000000000);
}

TEST(spare_left_by_a_signal)
{
	keeper_hears(_metadata, 0);
}

/* --- processors -------------------------------------------------------------- */

static void *block_and_keep(void *arg)
{
	char byte;

	if (raw_attach() || raw_own(FIBER_WAIT_READY))
		return NULL;
	STORE(ready, 1);
	raw_enter();
	if (read(pipe_fd[0], &byte, 1) != 1)
		return NULL;
	raw_exclude();
	raw_leave();
	raw_detach();
	return NULL;
}

static void *hold(void *arg)
{
	if (!raw_attach() && !raw_own(FIBER_WAIT_SPARE))
		while (!LOAD(stop))
			raw_sleep(1000);
	raw_detach();
	return NULL;
}

/* One who gives its turn to a spare takes the processor that a blocked one keeps. */
TEST(turn_given_while_one_is_kept)
{
	uint32_t event = 0xbad;
	pthread_t blocked, holder;

	START(.processors = 2);
	ASSERT_EQ(0, pipe(pipe_fd));
	own_in_main(_metadata);
	blocked = raw_thread(block_and_keep, NULL);
	ASSERT_TRUE(RAW_UNTIL(LOAD(ready)));
	ASSERT_TRUE(RAW_UNTIL(raw_info->avail == 1));
	ASSERT_EQ(0, raw_info->idle);
	holder = raw_thread(hold, NULL);
	ASSERT_TRUE(RAW_UNTIL(raw_info->spares == 1));
	raw_takeover(FIBER_TAKEOVER_READY);
	alarm(RAW_PATIENCE);		/* it would wait for the holder, for ever */
	EXPECT_EQ(0, raw_wait(FIBER_WAIT_READY | FIBER_WAIT_GIVE |
			      FIBER_WAIT_TO_SPARE, 0, &event));
	alarm(0);
	EXPECT_EQ(FIBER_EVENT_IDLE, event);
	EXPECT_EQ(0, raw_info->waiting);
	EXPECT_EQ(0, raw_info->avail);
	EXPECT_EQ(1, write(pipe_fd[1], "x", 1));
	STORE(stop, 1);
	pthread_join(blocked, NULL);
	pthread_join(holder, NULL);
	EXPECT_EXCLUSIVE();
}

/* --- upcalls without end ----------------------------------------------------- */

/* A RETURN trampoline that asks the wrong file. */
asm(".pushsection .text\n"
    ".globl stray_return, stray_return_end\n"
    "stray_return:\n"
    "	mov	$-1, %edi\n"
    "	mov	$0xfb04, %esi\n"	/* FIBER_IOC_ACQUIRE */
    "	mov	$16, %eax\n"		/* ioctl */
    "	syscall\n"
    "stray_return_end:\n"
    "	lock incl stray_over(%rip)\n"
    "	mov	$60, %eax\n"		/* exit */
    "	xor	%edi, %edi\n"
    "	syscall\n"
    ".popsection\n");
extern char stray_return[], stray_return_end[];
unsigned int stray_over;

static void *block_and_stray(void *arg)
{
	char byte;

	if (raw_attach() || raw_own(FIBER_WAIT_READY))
		return NULL;
	raw_takeover(FIBER_TAKEOVER_READY);
	STORE(ready, raw_index + 1);
	raw_enter();
	while (read(pipe_fd[0], &byte, 1) == 1)
		;
	return NULL;
}

/* It would go from system call to upcall to system call for ever. */
TEST(acquire_of_the_wrong_file)
{
	pthread_t t;

	START(.return_entry = stray_return, .return_end = stray_return_end);
	ASSERT_EQ(0, pipe(pipe_fd));
	t = raw_thread(block_and_stray, NULL);
	ASSERT_TRUE(RAW_UNTIL(LOAD(ready)));
	own_in_main(_metadata);
	EXPECT_EQ(0, LOAD(stray_over));
	ASSERT_EQ(1, write(pipe_fd[1], "x", 1));
	ASSERT_TRUE(RAW_UNTIL(LOAD(stray_over)));
	pthread_join(t, NULL);
	EXPECT_EQ(1, LOAD(stray_over));
	EXPECT_TRUE(RAW_UNTIL(raw_info->carriers == 1));
	EXPECT_LE(64, raw_carrier(ready - 1)->returns);
	EXPECT_GE(1024, raw_carrier(ready - 1)->returns);
	EXPECT_EQ(0, raw_page->processor);
	EXPECT_EXCLUSIVE();
}

TEST_HARNESS_MAIN
