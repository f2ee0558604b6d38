// SPDX-License-Identifier: GPL-2.0-only
/*
 * signals.c - handlers, restarts and jumps around handoffs
 *
 * One processor. The carrier under test blocks in fiber; main is the spare that
 * takes the processor over, and sees that no handler runs before it is given back.
 */
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/syscall.h>

#include "harness.h"
#include "mix.h"

static int p[2];
static unsigned int inside, done, handled, nested, off_stack;
static long result;
static int a_err, said_errno;
static uint32_t depth_after, processor_after;

/* The block is over, and its result noted. */
static void *leave_for_good(void)
{
	raw_exclude();
	raw_leave();
	depth_after = raw_page->depth;
	processor_after = raw_page->processor;
	raw_takeover(0);
	STORE(done, 1);
	raw_detach();
	return NULL;
}

static void *read_in_fiber(void *arg)
{
	char c = 0;

	a_err = raw_attach() ?: raw_own(FIBER_WAIT_READY);
	if (a_err) {
		STORE(done, 1);
		return NULL;
	}
	raw_takeover(FIBER_TAKEOVER_READY);
	raw_enter();
	STORE(inside, 1);
	errno = 0;
	result = read(p[0], &c, 1);
	said_errno = errno;
	if (result == 1)
		result = c;
	return leave_for_good();
}

static void on_signal(int signal)
{
	int saved = errno;

	if (raw_page && raw_page->in_fiber)
		raw_exclude();
	else
		ADD(raw_violations, 1);
	ADD(handled, 1);
	errno = saved;
}

static void catch(int signal, void (*fn)(int), int flags)
{
	struct sigaction a = { .sa_handler = fn, .sa_flags = flags };

	sigaction(signal, &a, NULL);
}

/* Main becomes the spare; t blocks; main owns the processor. */
static void take_over(struct __test_metadata *_metadata, pthread_t *t,
		      void *(*fn)(void *))
{
	uint32_t event;

	ASSERT_EQ(0, pipe(p));
	ASSERT_EQ(0, raw_attach());
	*t = raw_thread(fn, NULL);
	ASSERT_TRUE(RAW_UNTIL(LOAD(inside)));
	ASSERT_EQ(0, raw_wait(FIBER_WAIT_SPARE, 0, &event));
	ASSERT_EQ(0, raw_page->processor);
}

static int give_and_take(uint32_t *event)
{
	return raw_wait(FIBER_WAIT_SPARE | FIBER_WAIT_GIVE | FIBER_WAIT_SURE,
			0, event);
}

/* Give the processor back each time it comes, until the other is done. */
static void serve(void)
{
	while (!LOAD(done)) {
		raw_sleep(500);
		raw_wait(FIBER_WAIT_SPARE | FIBER_WAIT_GIVE | FIBER_WAIT_SURE,
			 raw_now() + 50000000, NULL);
	}
	raw_detach();
}

#define EXPECT_WAITS_UNHANDLED() do {					\
	ASSERT_TRUE(RAW_UNTIL(raw_info->waiting == 1));			\
	raw_sleep(10000);						\
	EXPECT_EQ(0, LOAD(handled));					\
	EXPECT_EQ(0, raw_page->processor);				\
} while (0)

#define EXPECT_DONE(t, want) do {					\
	pthread_join(t, NULL);						\
	EXPECT_EQ(0, a_err);						\
	EXPECT_EQ(want, result);					\
	EXPECT_EQ(0, depth_after);					\
	EXPECT_EQ(0, processor_after);					\
	EXPECT_EQ(0, raw_acquire_errors);				\
	EXPECT_EXCLUSIVE();						\
} while (0)

TEST(call_restarts)
{
	uint32_t event;
	pthread_t t;

	START(0);
	catch(SIGUSR1, on_signal, SA_RESTART);
	take_over(_metadata, &t, read_in_fiber);
	pthread_kill(t, SIGUSR1);
	EXPECT_WAITS_UNHANDLED();
	while (!LOAD(handled)) {		/* until it blocks again */
		ASSERT_EQ(0, give_and_take(&event));
	}
	EXPECT_EQ(1, LOAD(handled));
	EXPECT_EQ(0, LOAD(done));
	ASSERT_EQ(1, write(p[1], "z", 1));
	ASSERT_TRUE(RAW_UNTIL(raw_info->waiting == 1));
	EXPECT_EQ(0, LOAD(done));
	ASSERT_EQ(0, raw_detach());
	EXPECT_DONE(t, 'z');
	EXPECT_EQ(1, LOAD(handled));
}

TEST(call_interrupted)
{
	pthread_t t;

	START(0);
	catch(SIGUSR1, on_signal, 0);
	take_over(_metadata, &t, read_in_fiber);
	pthread_kill(t, SIGUSR1);
	EXPECT_WAITS_UNHANDLED();
	ASSERT_EQ(0, raw_detach());
	EXPECT_DONE(t, -1);
	EXPECT_EQ(EINTR, said_errno);
	EXPECT_EQ(1, LOAD(handled));
}

/* The signal comes when the call is over and the carrier waits in ACQUIRE. */
TEST(handler_while_returning)
{
	pthread_t t;
	int i;

	START(0);
	catch(SIGUSR1, on_signal, 0);
	take_over(_metadata, &t, read_in_fiber);
	ASSERT_EQ(1, write(p[1], "y", 1));
	ASSERT_TRUE(RAW_UNTIL(raw_info->waiting == 1));
	for (i = 0; i < 5; i++) {
		pthread_kill(t, SIGUSR1);
		EXPECT_WAITS_UNHANDLED();
	}
	ASSERT_EQ(0, raw_detach());
	EXPECT_DONE(t, 'y');
	EXPECT_LE(1, LOAD(handled));
}

static void inner(int signal)
{
	on_signal(signal);
	raw_sleep(3000);		/* blocks, in a handler, in fiber */
	raw_exclude();
	ADD(nested, 1);
}

static void outer(int signal)
{
	on_signal(signal);
	raise(SIGUSR2);
	raw_exclude();
	raw_sleep(3000);
	raw_exclude();
}

TEST(handlers_nest)
{
	pthread_t t;
	int i;

	START(0);
	catch(SIGUSR1, outer, SA_RESTART);
	catch(SIGUSR2, inner, SA_RESTART);
	take_over(_metadata, &t, read_in_fiber);
	for (i = 0; i < 10; i++) {
		pthread_kill(t, SIGUSR1);
		raw_sleep(1000);
		raw_wait(FIBER_WAIT_SPARE | FIBER_WAIT_GIVE | FIBER_WAIT_SURE,
			 raw_now() + 20000000, NULL);
	}
	ASSERT_EQ(1, write(p[1], "n", 1));
	serve();
	EXPECT_DONE(t, 'n');
	EXPECT_LE(1, LOAD(nested));
	TH_LOG("%u handlers, %u of them nested", LOAD(handled), LOAD(nested));
}

static __thread char alternate[32 << 10];

static void on_alternate(int signal)
{
	char here;

	if (&here < alternate || &here >= alternate + sizeof(alternate))
		ADD(off_stack, 1);
	on_signal(signal);
	raw_sleep(2000);
	raw_exclude();
}

static void *read_with_alternate(void *arg)
{
	stack_t s = { .ss_sp = alternate, .ss_size = sizeof(alternate) };

	sigaltstack(&s, NULL);
	return read_in_fiber(arg);
}

TEST(handler_on_alternate_stack)
{
	pthread_t t;
	int i;

	START(0);
	catch(SIGUSR1, on_alternate, SA_RESTART | SA_ONSTACK);
	take_over(_metadata, &t, read_with_alternate);
	for (i = 0; i < 5; i++) {
		pthread_kill(t, SIGUSR1);
		raw_sleep(1000);
		raw_wait(FIBER_WAIT_SPARE | FIBER_WAIT_GIVE | FIBER_WAIT_SURE,
			 raw_now() + 20000000, NULL);
	}
	ASSERT_EQ(1, write(p[1], "s", 1));
	serve();
	EXPECT_DONE(t, 's');
	EXPECT_EQ(0, LOAD(off_stack));
	EXPECT_LE(1, LOAD(handled));
}

/* --- a signal before the trampoline has its slot ------------------------------ */

#define SMALL	(12 << 10)
#ifndef SS_AUTODISARM
#define SS_AUTODISARM	(1U << 31)
#endif

static int alternate_flags;
static char *second_alternate;
static sigjmp_buf off;
static pid_t jumper;
static unsigned int again;

static int set_alternate(char *stack)
{
	stack_t s = { .ss_sp = stack, .ss_size = SMALL,
		      .ss_flags = alternate_flags };

	return sigaltstack(&s, NULL);
}

/* Both signal stacks are on the carrier's own, above where it blocks. */
static void *read_below_alternate(void *arg)
{
	char first[SMALL], second[SMALL];

	second_alternate = second;
	if (set_alternate(first))
		ADD(raw_violations, 1);
	read_in_fiber(arg);
	alternate_flags = SS_DISABLE;
	set_alternate(NULL);
	return NULL;
}

static void trapped(struct __test_metadata *_metadata, void (*handler)(int),
		    unsigned int traps)
{
	pthread_t t;

	START(.return_entry = raw_return_trapped, .return_end = raw_return_end);
	catch(SIGTRAP, handler, SA_ONSTACK | SA_NODEFER);
	take_over(_metadata, &t, read_below_alternate);
	raw_traps = traps;
	ASSERT_EQ(1, write(p[1], "t", 1));
	ASSERT_TRUE(RAW_UNTIL(raw_info->waiting == 1));
	EXPECT_EQ(0, LOAD(handled));
	serve();
	EXPECT_DONE(t, 't');
}

TEST(handler_on_own_alternate_stack)
{
	trapped(_metadata, on_signal, 1);
	EXPECT_EQ(1, LOAD(handled));
}

TEST(handler_on_own_disarmed_stack)
{
	alternate_flags = SS_AUTODISARM;
	trapped(_metadata, on_signal, 1);
	EXPECT_EQ(1, LOAD(handled));
}

/* As deep as there are slots: the others find no alternate stack. */
TEST(handlers_on_own_disarmed_stack)
{
	alternate_flags = SS_AUTODISARM;
	trapped(_metadata, on_signal, FIBER_SLOTS - 1);
	EXPECT_EQ(FIBER_SLOTS - 1, LOAD(handled));
}

/* The handler sets another one, and blocks on that. */
static void on_second(int signal)
{
	on_signal(signal);
	if (LOAD(handled) > 1) {
		raw_sleep(3000);
		raw_exclude();
		return;
	}
	if (set_alternate(second_alternate))
		ADD(raw_violations, 1);
	raise(signal);
	raw_exclude();
}

TEST(handler_sets_another_disarmed_stack)
{
	alternate_flags = SS_AUTODISARM;
	trapped(_metadata, on_second, 1);
	EXPECT_EQ(2, LOAD(handled));
}

static void jump_off(int signal)
{
	on_signal(signal);
	siglongjmp(off, 1);
}

/* It jumps away from the first call, arms the stack again, and makes another. */
static void *read_after_jump(void *arg)
{
	char first[SMALL], c = 0;

	jumper = raw_tid();
	if (!sigsetjmp(off, 1)) {
		set_alternate(first);
		return read_in_fiber(arg);
	}
	if (raw_page->depth != 1)		/* the slot it has left behind */
		ADD(raw_violations, 1);
	set_alternate(first);
	STORE(again, 1);
	if (read(p[0], &c, 1) == 1)
		result = c;
	return leave_for_good();
}

TEST(jump_off_disarmed_stack)
{
	uint32_t event;
	pthread_t t;

	alternate_flags = SS_AUTODISARM;
	START(.return_entry = raw_return_trapped, .return_end = raw_return_end);
	catch(SIGTRAP, jump_off, SA_ONSTACK | SA_NODEFER);
	take_over(_metadata, &t, read_after_jump);
	raw_traps = 1;
	ASSERT_EQ(1, write(p[1], "t", 1));
	ASSERT_TRUE(RAW_UNTIL(raw_info->waiting == 1));
	do {		/* until it blocks in the second call, and we own */
		ASSERT_EQ(0, give_and_take(&event));
	} while (!RAW_UNTIL_FOR(1, LOAD(again) &&
				   raw_asleep_in(jumper, SYS_read)));
	ASSERT_EQ(1, write(p[1], "u", 1));
	ASSERT_TRUE(RAW_UNTIL(raw_info->waiting == 1));
	ASSERT_EQ(0, raw_detach());
	EXPECT_DONE(t, 'u');
	EXPECT_EQ(1, LOAD(handled));
}

/* --- jumps ---------------------------------------------------------------- */

#define JUMPS	40

static sigjmp_buf out;
static unsigned int jumps, in_read;
static uint32_t deepest;

static void jump_out(int signal)
{
	on_signal(signal);
	siglongjmp(out, 1);
}

/* Each round blocks, and leaves by a jump out of the handler. */
static void *jump_in_fiber(void *arg)
{
	uint64_t before;
	sigset_t late;
	char c;

	sigemptyset(&late);
	sigaddset(&late, SIGUSR1);
	a_err = raw_attach() ?: raw_own(FIBER_WAIT_READY);
	if (a_err) {
		STORE(done, 1);
		return NULL;
	}
	raw_takeover(FIBER_TAKEOVER_READY);
	raw_enter();
	STORE(inside, 1);
	while (LOAD(jumps) < JUMPS) {
		if (!sigsetjmp(out, 1)) {
			STORE(in_read, 1);
			(void)!read(p[0], &c, 1);
		}
		STORE(in_read, 0);
		ADD(jumps, 1);
		raw_exclude();
		if (raw_page->depth > deepest)
			deepest = raw_page->depth;
	}
	pthread_sigmask(SIG_BLOCK, &late, NULL);
	/* Preemption still works after all that. */
	before = raw_page->preempts;
	result = 0;
	while (raw_page->preempts == before && result < 100000) {
		mix_spin(10000);
		result++;
	}
	result = raw_page->preempts > before ? 'j' : 'n';
	return leave_for_good();
}

static void *pester(void *thread)
{
	unsigned int turn = 0;

	while (LOAD(jumps) < JUMPS) {
		if (LOAD(in_read)) {
			/* Every other time the call is over before. */
			if (turn++ & 1)
				(void)!write(p[1], "x", 1);
			pthread_kill(*(pthread_t *)thread, SIGUSR1);
		}
		raw_sleep(3000);
	}
	return NULL;
}

/*
 * A late SIGUSR1 may hit the thread behind the loop, where a jump would go back
 * in: it only counts as one more round. Before the fiber ends it is blocked.
 */
TEST(jump_out_of_handler)
{
	pthread_t t, k;

	START(.quantum_ns = 1000000, .preempt = true);
	catch(SIGUSR1, jump_out, SA_RESTART);
	take_over(_metadata, &t, jump_in_fiber);
	k = raw_thread(pester, &t);
	serve();
	pthread_join(k, NULL);
	EXPECT_DONE(t, 'j');
	EXPECT_LE(JUMPS, LOAD(jumps));
	TH_LOG("%u jumps, %u handlers, deepest slot %u", LOAD(jumps),
	       LOAD(handled), deepest);
}

/* --- no signal of ours ------------------------------------------------------ */

static unsigned int stop, interrupted, loops;
static uint64_t worker_preempts;

static void *hog(void *arg)
{
	if (raw_attach() || raw_own(FIBER_WAIT_READY))
		return NULL;
	raw_takeover(FIBER_TAKEOVER_READY);
	raw_enter();
	while (!LOAD(stop))
		mix_spin(100000);
	raw_leave();
	return NULL;
}

static void *feeder(void *arg)
{
	while (!LOAD(stop)) {
		(void)!write(p[1], "f", 1);
		raw_sleep(2000);
	}
	return NULL;
}

static void one_round(int epoll)
{
	struct timespec t = { 0, 300000 };
	struct epoll_event e;
	char c;

	interrupted += nanosleep(&t, NULL) && errno == EINTR;
	interrupted += epoll_wait(epoll, &e, 1, 1) < 0 && errno == EINTR;
	interrupted += read(p[0], &c, 1) < 0 && errno == EINTR;
	mix_spin(200000);
	raw_exclude();
	loops++;
}

static void *worker(void *arg)
{
	uint64_t end = raw_now() + 6000000000ULL;
	int epoll = epoll_create1(0);

	a_err = raw_attach() ?: raw_own(FIBER_WAIT_READY);
	if (a_err)
		return NULL;
	raw_takeover(FIBER_TAKEOVER_READY);
	raw_enter();
	while (loops < 300 && (loops < 20 || raw_now() < end))
		one_round(epoll);
	raw_leave();
	worker_preempts = raw_page->preempts;
	return NULL;
}

TEST(no_call_is_interrupted)
{
	struct raw_stats st;
	pthread_t t;

	START(.quantum_ns = 1000000, .preempt = true);
	ASSERT_EQ(0, pipe(p));
	raw_thread(hog, NULL);
	raw_thread(hog, NULL);
	raw_thread(feeder, NULL);
	t = raw_thread(worker, NULL);
	pthread_join(t, NULL);
	STORE(stop, 1);
	ASSERT_EQ(0, raw_stats(&st));
	TH_LOG("%u rounds of nanosleep, epoll_wait, read; %lu preemptions, %lu of the worker, %lu handoffs",
	       loops, st.preempts, worker_preempts, st.handoffs);
	EXPECT_EQ(0, a_err);
	EXPECT_LE(20, loops);
	EXPECT_EQ(0, interrupted);
	EXPECT_LE(1, st.preempts);
	EXPECT_EXCLUSIVE();
}

/* --- waits of ours and signals ---------------------------------------------- */

static int wait_said;
static uint32_t wait_flags, wait_event;

static void *wait_in_scheduler(void *arg)
{
	a_err = raw_attach();
	STORE(inside, 1);
	wait_said = raw_wait(wait_flags, 0, &wait_event);
	processor_after = raw_page->processor;
	STORE(done, 1);
	return NULL;
}

static void count_only(int signal)
{
	ADD(handled, 1);
}

/* SPARE: -EINTR, no processor. */
TEST(spare_interrupted)
{
	pthread_t t;

	START(0);
	catch(SIGUSR1, count_only, SA_RESTART);
	wait_flags = FIBER_WAIT_SPARE;
	t = raw_thread(wait_in_scheduler, NULL);
	ASSERT_TRUE(RAW_UNTIL(raw_info->spares == 1));
	pthread_kill(t, SIGUSR1);
	pthread_join(t, NULL);
	EXPECT_EQ(1, LOAD(handled));
	EXPECT_EQ(-EINTR, wait_said);
	EXPECT_EQ(FIBER_NO_PROCESSOR, processor_after);
	EXPECT_EQ(0, raw_info->spares);
	EXPECT_EXCLUSIVE();
}

/* READY: restarts, whatever SA_RESTART says; the handler waits as well. */
TEST(ready_restarts)
{
	pthread_t t;

	START(0);
	catch(SIGUSR1, count_only, 0);
	ASSERT_EQ(0, raw_attach());
	ASSERT_EQ(0, raw_own(FIBER_WAIT_READY));
	wait_flags = FIBER_WAIT_READY;
	t = raw_thread(wait_in_scheduler, NULL);
	ASSERT_TRUE(RAW_UNTIL(raw_info->waiting == 1));
	pthread_kill(t, SIGUSR1);
	EXPECT_WAITS_UNHANDLED();
	ASSERT_EQ(0, raw_detach());
	pthread_join(t, NULL);
	EXPECT_EQ(1, LOAD(handled));
	EXPECT_EQ(0, wait_said);
	EXPECT_EQ(0, processor_after);
	EXPECT_EXCLUSIVE();
}

TEST_HARNESS_MAIN
