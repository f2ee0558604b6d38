// SPDX-License-Identifier: GPL-2.0-only
/*
 * hazard_signals.c - what signals.c leaves open: calls with a timeout that a
 * handler interrupts while somebody else has the processor, jumps out of nested
 * handlers and of signal stacks, a storm
 */
#include <linux/futex.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/syscall.h>

#include "harness.h"
#include "mix.h"

static unsigned int handled, ready, over, taken;

static void on_signal(int signal)
{
	int saved = errno;

	if (raw_page->in_fiber)		/* not inside another raw_exclude() */
		raw_exclude();
	ADD(handled, 1);
	errno = saved;
}

static void catch(int signal, void (*fn)(int), int flags)
{
	struct sigaction a = { .sa_handler = fn, .sa_flags = flags };

	sigaction(signal, &a, NULL);
}

/* Takes over whenever the fiber blocks, and keeps the processor for a while. */
static void *spare(void *arg)
{
	uint32_t flags = FIBER_WAIT_SPARE;

	if (raw_attach())
		return NULL;
	while (!raw_wait(flags, 0, NULL)) {
		ADD(taken, 1);
		raw_sleep(1000);
		flags = FIBER_WAIT_SPARE | FIBER_WAIT_GIVE | FIBER_WAIT_SURE;
	}
	return NULL;
}

static void become_owner(struct __test_metadata *_metadata)
{
	raw_thread(spare, NULL);
	ASSERT_TRUE(RAW_UNTIL(raw_info->spares == 1));
	ASSERT_EQ(0, raw_attach());
	ASSERT_EQ(0, raw_own(FIBER_WAIT_READY));
	raw_takeover(FIBER_TAKEOVER_READY);
	raw_enter();
}

/* --- restart_block kinds ------------------------------------------------------ */

#define LONG_S	60	/* seconds: what nobody waits for to the end */

struct call {
	const char *name;
	/* 0 or the errno; *left: ns that remain, where the call tells */
	int (*fn)(uint64_t *left);
};

static uint64_t ns(const struct timespec *t)
{
	return t->tv_sec * 1000000000ULL + t->tv_nsec;
}

static int do_nanosleep(uint64_t *left)
{
	struct timespec t = { LONG_S, 0 }, rem = {};
	int err = nanosleep(&t, &rem) ? errno : 0;

	*left = ns(&rem);
	return err;
}

static int do_clock_nanosleep(uint64_t *left)
{
	struct timespec t = { LONG_S, 0 }, rem = {};
	int err = clock_nanosleep(CLOCK_REALTIME, 0, &t, &rem);

	*left = ns(&rem);
	return err;
}

static int do_poll(uint64_t *left)
{
	return poll(NULL, 0, LONG_S * 1000) ? errno : 0;
}

static int do_ppoll(uint64_t *left)
{
	struct timespec t = { LONG_S, 0 };
	int err = syscall(SYS_ppoll, NULL, 0, &t, NULL, 0) ? errno : 0;

	*left = ns(&t);
	return err;
}

static int do_futex(uint64_t *left)
{
	static uint32_t word = 1;
	struct timespec t = { LONG_S, 0 };

	return syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 1, &t) ? errno : 0;
}

static int do_epoll(uint64_t *left)
{
	struct epoll_event e;
	int fd = epoll_create1(EPOLL_CLOEXEC);
	int err = epoll_wait(fd, &e, 1, LONG_S * 1000) ? errno : 0;

	close(fd);
	return err;
}

static const struct call calls[] = {
	{ "nanosleep", do_nanosleep }, { "clock_nanosleep", do_clock_nanosleep },
	{ "poll", do_poll }, { "ppoll", do_ppoll }, { "futex", do_futex },
	{ "epoll_wait", do_epoll },
};

/* A signal to main each time it says it is about to block. */
static void *signaller(void *thread)
{
	while (!LOAD(over)) {
		if (LOAD(ready)) {
			raw_sleep(5000);
			pthread_kill(*(pthread_t *)thread, SIGUSR1);
		}
		raw_sleep(500);
	}
	return NULL;
}

static void interrupt_all(struct __test_metadata *_metadata, int flags)
{
	pthread_t self = pthread_self(), t;
	size_t i;

	START(0);
	catch(SIGUSR1, on_signal, flags);
	become_owner(_metadata);
	t = raw_thread(signaller, &self);
	for (i = 0; i < ARRAY_SIZE(calls); i++) {
		uint64_t left = 1;
		unsigned int before = LOAD(handled);
		int err;

		STORE(ready, 1);
		err = calls[i].fn(&left);
		STORE(ready, 0);
		raw_exclude();
		/* None of them goes on after a handler, SA_RESTART or not. */
		EXPECT_EQ(EINTR, err) TH_LOG("%s", calls[i].name);
		EXPECT_LT(before, LOAD(handled)) TH_LOG("%s", calls[i].name);
		EXPECT_TRUE(left && left <= LONG_S * 1000000000ULL)
			TH_LOG("%s: %lu ns left", calls[i].name, left);
	}
	raw_leave();
	STORE(over, 1);
	pthread_join(t, NULL);
	EXPECT_LE(1, LOAD(taken));
	EXPECT_EQ(0, raw_page->depth);
	EXPECT_EQ(0, raw_acquire_errors);
	EXPECT_EXCLUSIVE();
}

/* Their restart after a stop, without handler, is in stop.c (timed_calls). */
TEST(restart_block_and_handler)
{
	interrupt_all(_metadata, 0);
}

TEST(restart_block_and_restarting_handler)
{
	interrupt_all(_metadata, SA_RESTART);
}

/* --- jumps -------------------------------------------------------------------- */

#define JUMPS	30

static sigjmp_buf out;
static char other_stack[32 << 10];

static void jump_inner(int signal)
{
	on_signal(signal);
	raw_sleep(200);			/* blocks: a slot is used in here */
	siglongjmp(out, 1);
}

static void jump_outer(int signal)
{
	on_signal(signal);
	raise(SIGUSR2);
}

static void jump_and_block(struct __test_metadata *_metadata, int flags)
{
	stack_t s = { .ss_sp = other_stack, .ss_size = sizeof(other_stack) };
	static volatile unsigned int i;
	struct timespec t = { 0, 500000 };
	uint64_t preempts;

	START(.quantum_ns = 1000000, .preempt = true);
	ASSERT_EQ(0, sigaltstack(&s, NULL));
	catch(SIGUSR1, jump_outer, flags);
	catch(SIGUSR2, jump_inner, flags);
	become_owner(_metadata);
	for (i = 0; i < JUMPS; i++) {
		if (!sigsetjmp(out, 1)) {
			raise(SIGUSR1);
			nanosleep(&t, NULL);	/* not reached */
			raw_acquire_errors++;
		}
		raw_exclude();
		raw_sleep(200);
		raw_exclude();
		EXPECT_GE(FIBER_SLOTS, raw_page->depth);
	}
	/* Preemption works still: no slot was lost. */
	preempts = raw_page->preempts;
	for (i = 0; i < 100000 && raw_page->preempts == preempts; i++)
		mix_spin(10000);
	EXPECT_LT(preempts, raw_page->preempts);
	raw_exclude();
	raw_leave();
	EXPECT_EQ(2 * JUMPS, LOAD(handled));
	EXPECT_EQ(0, raw_page->depth);
	EXPECT_EQ(0, raw_acquire_errors);
	EXPECT_EXCLUSIVE();
}

TEST(siglongjmp_out_of_nested_handlers)
{
	jump_and_block(_metadata, 0);
}

TEST(siglongjmp_off_a_signal_stack)
{
	jump_and_block(_metadata, SA_ONSTACK);
}

/* --- storm ---------------------------------------------------------------------- */

static void *storm(void *thread)
{
	while (!LOAD(over)) {
		pthread_kill(*(pthread_t *)thread, SIGUSR1);
		raw_sleep(200);
	}
	return NULL;
}

/* One signal each 200 us, while the fiber blocks and is preempted. */
TEST(signal_storm)
{
	uint64_t end = raw_now() + 1500000000ULL;
	pthread_t self = pthread_self(), t;
	unsigned int rounds = 0;

	START(.quantum_ns = 1000000, .preempt = true);
	catch(SIGUSR1, on_signal, SA_RESTART);
	become_owner(_metadata);
	t = raw_thread(storm, &self);
	while (raw_now() < end || rounds < 20 || LOAD(handled) <= 20) {
		raw_sleep(300);
		raw_exclude();
		mix_spin(20000);
		raw_exclude();
		rounds++;
	}
	STORE(over, 1);
	pthread_join(t, NULL);
	raw_leave();
	TH_LOG("%u rounds, %u handlers, taken over %u times", rounds,
	       LOAD(handled), LOAD(taken));
	EXPECT_LT(20, LOAD(handled));
	EXPECT_EQ(0, raw_page->depth);
	EXPECT_EQ(0, raw_acquire_errors);
	EXPECT_EXCLUSIVE();
}

TEST_HARNESS_MAIN
