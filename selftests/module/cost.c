// SPDX-License-Identifier: GPL-2.0-only
/*
 * cost.c - what blocks and the end of a quantum cost, in guest instructions
 *
 * Exact only where the time stamp counter counts instructions:
 *	selftests/vm/run.sh -icount -e FIBER_ICOUNT=1 6.1 .../cost
 * Elsewhere: SKIP. For the end of a quantum a loop reads the counter and keeps
 * the gaps in which something happened: a bare timer tick, a PREEMPT upcall
 * whose trampoline saves all registers and goes back, a signal with an empty
 * handler. The most frequent gap counts. For blocks, two threads send a byte to and fro; the least of
 * some batches counts.
 */
#include <signal.h>
#include <sys/syscall.h>
#include <x86intrin.h>

#include "figures.h"
#include "harness.h"

#define UPCALL_MOST	600	/* instructions beyond the bare tick */
#define ARENA_MOST	400	/* to find one of 4096 */
#define GAP		300	/* shorter ones are the loop itself */
#define TICKS		200

/* As the library's, without the scheduler: save, go back. */
__asm__(
"	.pushsection .text\n"
"	.globl	cost_preempt\n"
"cost_preempt:\n"
"	leaq	-128(%rsp), %rsp\n"
"	pushq	%rax\n"			/* a hole for the ip */
"	pushq	%rax\n"
"	pushfq\n"
"	cld\n"
"	pushq %rcx; pushq %rdx; pushq %rbx; pushq %rbp; pushq %rsi; pushq %rdi\n"
"	pushq %r8; pushq %r9; pushq %r10; pushq %r11\n"
"	pushq %r12; pushq %r13; pushq %r14; pushq %r15\n"
"	movq	%fs:raw_page@tpoff, %rbx\n"
"	movl	16(%rbx), %ecx\n"		/* depth */
"	movq	64-8(%rbx,%rcx,8), %rdx\n"	/* slot */
"	movq	%rdx, 128(%rsp)\n"
"	leal	-1(%rcx), %ecx\n"
"	movl	%ecx, 16(%rbx)\n"
"	popq %r15; popq %r14; popq %r13; popq %r12\n"
"	popq %r11; popq %r10; popq %r9; popq %r8\n"
"	popq %rdi; popq %rsi; popq %rbp; popq %rbx; popq %rdx; popq %rcx\n"
"	popfq\n"
"	popq	%rax\n"
"	ret	$128\n"
"	.popsection\n");
extern char cost_preempt[];

static volatile uint64_t signals;

/* The kernel has work of its own after boot; idle time costs nothing here. */
static bool exact(void)
{
	if (!getenv("FIBER_ICOUNT"))
		return false;
	raw_sleep(3000000);
	return true;
}

/* The usual gap in which *count moved (NULL: any gap), of TICKS such. */
RAW_TEXT static uint64_t usual(const volatile uint64_t *count)
{
	static const volatile uint64_t still;
	static uint64_t gap[TICKS];
	const volatile uint64_t *watch = count ? count : &still;
	uint64_t last = *watch, t = __rdtsc(), now;
	unsigned int seen = 0;

	while (seen < TICKS) {
		now = __rdtsc();
		if (now - t > GAP && (!count || *watch != last))
			gap[seen++] = now - t;
		last = *watch;
		t = __rdtsc();
	}
	return most_frequent(gap, TICKS);
}

TEST(cost_of_preemption)
{
	uint64_t tick, upcall;

	if (!exact())
		SKIP(return, "needs exact counts: FIBER_ICOUNT=1, -icount");
	START(.quantum_ns = 500000, .preempt = true,
	      .preempt_entry = cost_preempt);
	ASSERT_EQ(0, raw_attach());
	ASSERT_EQ(0, raw_own(FIBER_WAIT_READY));
	raw_enter();
	raw_takeover(0);
	tick = usual(NULL);
	raw_takeover(FIBER_TAKEOVER_READY);
	upcall = usual((const volatile uint64_t *)&raw_page->preempts);
	raw_takeover(0);
	raw_leave();
	printf("# cost tick %lu, with PREEMPT upcall %lu, beyond the tick %ld\n",
	       tick, upcall, (long)(upcall - tick));
	EXPECT_GE(UPCALL_MOST, (long)(upcall - tick));
	EXPECT_EQ(0, raw_detach());
}

enum { ARENAS = 4096, SPAN = 1 << 24 };

/* One around this stack, the highest: found last. The others in order. */
static int add_arena(int i)
{
	char here;
	struct fiber_stacks_args a = {
		.base = (1UL << 20) + i * 16384UL, .stride = 8192, .count = 1,
	};

	if (i == ARENAS - 1) {
		a.base = (uintptr_t)&here - SPAN / 2;
		a.stride = SPAN;
	}
	return raw_ioctl(raw_fd, FIBER_IOC_STACKS, &a);
}

/* In irqs-off time, how far is it to the stack of a thread that is preempted? */
TEST(cost_of_many_arenas)
{
	const volatile uint64_t *preempts;
	uint64_t none, most;
	int i, err = 0;

	if (!exact())
		SKIP(return, "needs exact counts: FIBER_ICOUNT=1, -icount");
	START(.quantum_ns = 500000, .preempt = true,
	      .preempt_entry = cost_preempt);
	ASSERT_EQ(0, raw_attach());
	ASSERT_EQ(0, raw_own(FIBER_WAIT_READY));
	preempts = (const volatile uint64_t *)&raw_page->preempts;
	raw_takeover(FIBER_TAKEOVER_READY);
	raw_enter();
	none = usual(preempts);
	raw_leave();
	for (i = 0; i < ARENAS && !err; i++)
		err = add_arena(i);
	ASSERT_EQ(0, err);
	raw_enter();
	most = usual(preempts);
	raw_leave();
	raw_takeover(0);
	printf("# cost PREEMPT upcall: no arena %lu, the last of %d %lu, beyond %ld\n",
	       none, ARENAS, most, (long)(most - none));
	EXPECT_GE(ARENA_MOST, (long)(most - none));
	EXPECT_EQ(0, raw_detach());
}

static void handler(int sig)
{
	signals++;
}

TEST(cost_of_a_signal)
{
	struct sigaction sa = { .sa_handler = handler, .sa_flags = SA_RESTART };
	struct itimerspec its = { .it_interval.tv_nsec = 500000,
				  .it_value.tv_nsec = 500000 };
	struct sigevent ev = { .sigev_notify = SIGEV_THREAD_ID,
			       .sigev_signo = SIGURG };
	uint64_t sig;
	timer_t timer;

	if (!exact())
		SKIP(return, "needs exact counts: FIBER_ICOUNT=1, -icount");
	ev._sigev_un._tid = syscall(SYS_gettid);
	ASSERT_EQ(0, sigaction(SIGURG, &sa, NULL));
	ASSERT_EQ(0, timer_create(CLOCK_MONOTONIC, &ev, &timer));
	ASSERT_EQ(0, timer_settime(timer, 0, &its, NULL));
	sig = usual(&signals);
	timer_delete(timer);
	printf("# cost timer with SIGURG, handler and sigreturn %lu\n", sig);
}

/* ---- a pipe round trip ---- */

enum { BATCHES = 20, ROUNDS = 100 };

static int there[2], back[2];
static bool carriers;			/* the two are carriers of processor 0 */
static volatile bool over;

static void become_carrier(void)
{
	if (!carriers)
		return;
	raw_attach();
	raw_own(FIBER_WAIT_READY);
	raw_enter();
}

static void no_carrier(void)
{
	if (!carriers)
		return;
	raw_leave();
	raw_detach();
}

static void *answer(void *arg)
{
	char byte;

	become_carrier();
	while (read(there[0], &byte, 1) == 1 && byte != 'q')
		if (write(back[1], &byte, 1) != 1)
			break;
	no_carrier();
	return NULL;
}

/* A spare that finds nothing to do, whenever it is asked. */
static void *spare(void *arg)
{
	raw_attach();
	while (!over)
		raw_wait(FIBER_WAIT_SPARE | FIBER_WAIT_GIVE | FIBER_WAIT_SURE,
			 0, NULL);
	raw_detach();
	return NULL;
}

static void *measure(void *arg)
{
	uint64_t *least = arg, t;
	pthread_t other;
	char byte = 'p';
	int i, j;

	*least = UINT64_MAX;
	become_carrier();
	other = raw_thread(answer, NULL);
	for (i = 0; i < BATCHES; i++) {
		t = __rdtsc();
		for (j = 0; j < ROUNDS; j++)
			if (write(there[1], &byte, 1) != 1 ||
			    read(back[0], &byte, 1) != 1)
				return NULL;
		t = (__rdtsc() - t) / ROUNDS;
		if (t < *least)
			*least = t;
	}
	byte = 'q';
	if (write(there[1], &byte, 1) != 1)
		return NULL;
	pthread_join(other, NULL);
	no_carrier();
	return NULL;
}

static uint64_t round_trip(bool as_carriers)
{
	uint64_t least;

	carriers = as_carriers;
	pthread_join(raw_thread(measure, &least), NULL);
	return least;
}

/* Two carriers of one processor, and what the library says meanwhile. */
static void hop(struct __test_metadata *_metadata, const char *name,
		uint64_t grace, uint32_t takeover, double most)
{
	uint64_t threads, fibers;
	struct raw_stats s;
	pthread_t idler;

	START(.processors = 1, .grace_ns = grace, .min_spares = 0);
	ASSERT_EQ(0, pipe(there));
	ASSERT_EQ(0, pipe(back));
	threads = round_trip(false);
	raw_processor(0)->takeover = takeover;
	idler = raw_thread(spare, NULL);
	raw_sleep(10000);
	fibers = round_trip(true);
	ASSERT_EQ(0, raw_stats(&s));
	printf("# cost hop, %s: threads %lu, carriers %lu, ratio %.3f; %lu handoffs, %lu in grace, %lu at the edge, %lu upcalls\n",
	       name, threads, fibers, (double)fibers / threads, s.handoffs,
	       s.grace_returns, s.edge_returns, s.returns);
	if (most > 0)
		EXPECT_GE(most, (double)fibers / threads);
	over = true;
	raw_processor(0)->takeover = 0;
	close(raw_fd);			/* the spare returns */
	pthread_join(idler, NULL);
}

TEST(hop_nobody_ready)
{
	if (!exact())
		SKIP(return, "needs exact counts: FIBER_ICOUNT=1, -icount");
	hop(_metadata, "nobody ready", 50000, 0, 1.35);
}

TEST(hop_another_ready)
{
	if (!exact())
		SKIP(return, "needs exact counts: FIBER_ICOUNT=1, -icount");
	hop(_metadata, "another ready, grace 50 us", 50000,
	    FIBER_TAKEOVER_READY, 1.6);
}

TEST(hop_another_ready_no_grace)
{
	if (!exact())
		SKIP(return, "needs exact counts: FIBER_ICOUNT=1, -icount");
	hop(_metadata, "another ready, no grace", 0, FIBER_TAKEOVER_READY, 0);
}

TEST_HARNESS_MAIN
