// SPDX-License-Identifier: GPL-2.0-only
/* Channels: order, copies, close, deadlines; fibers and plain threads. */
#include <linux/filter.h>
#include <linux/membarrier.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "common.h"

static fiber_chan_t *chan(size_t elem, size_t cap)
{
	fiber_chan_t *ch = NULL;

	check_eq(0, fiber_chan_create(&ch, elem, cap));
	return ch;
}

/* ---- order and copies ---- */

struct flow {
	fiber_chan_t *ch;
	uint64_t n;
};

static void *sends(void *arg)
{
	struct flow *w = arg;

	for (uint64_t i = 0; i < w->n; i++)
		check_eq(0, fiber_chan_send(w->ch, &i));
	return NULL;
}

static void *receives(void *arg)
{
	struct flow *w = arg;
	uint64_t v;

	for (uint64_t i = 0; i < w->n; i++) {
		v = ~0ULL;
		check_eq(0, fiber_chan_recv(w->ch, &v));
		check_eq(i, v);
	}
	return NULL;
}

static void *in_order(void *arg)
{
	struct flow w = { chan(8, (size_t)arg), 20000 };
	fiber_t *a = spawn(receives, &w), *b = spawn(sends, &w);

	join(a);
	join(b);
	check_eq(0, fiber_chan_len(w.ch));
	check_eq((size_t)arg, fiber_chan_cap(w.ch));
	check_eq(0, fiber_chan_destroy(w.ch));
	return NULL;
}

FIXTURE(order) {};
FIXTURE_SETUP(order) {}
FIXTURE_TEARDOWN(order) {}
FIXTURE_VARIANT(order) { unsigned int processors; size_t cap; };
FIXTURE_VARIANT_ADD(order, one_unbuffered) { 1, 0 };
FIXTURE_VARIANT_ADD(order, one_of_1) { 1, 1 };
FIXTURE_VARIANT_ADD(order, one_of_7) { 1, 7 };
FIXTURE_VARIANT_ADD(order, two_unbuffered) { 2, 0 };
FIXTURE_VARIANT_ADD(order, two_of_1) { 2, 1 };
FIXTURE_VARIANT_ADD(order, two_of_128) { 2, 128 };

TEST_F(order, first_in_first_out)
{
	ASSERT_EQ(0, with_runtime(variant->processors, 0, in_order,
				  (void *)variant->cap));
	EXPECT_EQ(0, failures);
}

enum { LARGE = 5000 };

static void fill(unsigned char *v, size_t size, unsigned int seed)
{
	for (size_t i = 0; i < size; i++)
		v[i] = (unsigned char)(seed + i * 7);
}

static void *sends_large(void *arg)
{
	unsigned char v[LARGE];
	struct flow *w = arg;

	for (unsigned int i = 0; i < 50; i++) {
		fill(v, w->n, i);
		check_eq(0, fiber_chan_send(w->ch, v));
		memset(v, 0xee, sizeof(v));	/* it was copied */
	}
	check_eq(0, fiber_chan_close(w->ch));
	return NULL;
}

static void *sizes(void *arg)
{
	static const size_t size[] = { 0, 1, 3, 8, 16, 24, 63, LARGE };
	unsigned char got[LARGE + 1], want[LARGE + 1];

	for (size_t i = 0; i < sizeof(size) / sizeof(*size); i++) {
		struct flow w = { chan(size[i], (size_t)arg), size[i] };
		struct fiber_attr attr = { .size = sizeof(attr),
					   .stack_size = 32768 };
		fiber_t *f;

		check_eq(0, fiber_spawn_attr(&f, &attr, sends_large, &w));
		for (unsigned int k = 0; k < 50; k++) {
			memset(got, 0x55, sizeof(got));
			memset(want, 0x55, sizeof(want));
			fill(want, size[i], k);
			check_eq(0, fiber_chan_recv(w.ch, got));
			check(!memcmp(got, want, sizeof(got)));
		}
		memset(got, 0x55, sizeof(got));
		check_eq(-EPIPE, fiber_chan_recv(w.ch, got));
		check_eq(0x55, got[0]);
		join(f);
		check_eq(0, fiber_chan_destroy(w.ch));
	}
	return NULL;
}

TEST(values_of_any_size)
{
	ASSERT_EQ(0, with_runtime(2, 0, sizes, (void *)0));
	ASSERT_EQ(0, with_runtime(1, 0, sizes, (void *)3));
	EXPECT_EQ(0, failures);
}

/* ---- many senders and receivers ---- */

enum { SIDES = 16, EACH = 3000 };

static atomic_uchar seen[SIDES * EACH];
static atomic_int in_flight;

static struct {
	fiber_chan_t *ch;
	bool hurried;			/* short deadlines, tried again */
} crowd;

static void *one_sender(void *arg)
{
	uint64_t base = (uint64_t)arg * EACH, v;
	int r;

	for (uint64_t i = 0; i < EACH; i++) {
		v = base + i;
		do {
			r = crowd.hurried && i % 3 ?
			    fiber_chan_send_until(crowd.ch, &v, fiber_now() +
						  (i * 37) % 3000) :
			    fiber_chan_send(crowd.ch, &v);
		} while (r == -ETIMEDOUT);
		check_eq(0, r);
	}
	if (atomic_fetch_sub(&in_flight, 1) == 1)
		check_eq(0, fiber_chan_close(crowd.ch));
	return NULL;
}

static void *one_receiver(void *arg)
{
	uint64_t v, n = 0;
	int r;

	for (;;) {
		r = crowd.hurried && ++n % 2 ?
		    fiber_chan_recv_until(crowd.ch, &v, fiber_now() +
					  (n * 53) % 4000) :
		    fiber_chan_recv(crowd.ch, &v);
		if (r == -ETIMEDOUT)
			continue;
		if (r)
			break;
		if (v < SIDES * EACH)
			check_eq(0, atomic_fetch_add(&seen[v], 1));
		else
			check_eq(0, v);
	}
	check_eq(-EPIPE, r);
	return NULL;
}

static void each_once(void)
{
	for (size_t i = 0; i < SIDES * EACH; i++)
		check_eq(1, atomic_exchange(&seen[i], 0));
}

static void *crowded(void *arg)
{
	fiber_t *f[2 * SIDES];

	crowd.ch = chan(8, (size_t)arg);
	in_flight = SIDES;
	for (size_t i = 0; i < SIDES; i++) {
		f[2 * i] = spawn(one_sender, (void *)i);
		f[2 * i + 1] = spawn(one_receiver, NULL);
	}
	for (size_t i = 0; i < 2 * SIDES; i++)
		join(f[i]);
	each_once();
	check_eq(0, fiber_chan_destroy(crowd.ch));
	return NULL;
}

FIXTURE(many) {};
FIXTURE_SETUP(many) {}
FIXTURE_TEARDOWN(many) {}
FIXTURE_VARIANT(many) { unsigned int processors; size_t cap; bool hurried; };
FIXTURE_VARIANT_ADD(many, one_unbuffered) { 1, 0, false };
FIXTURE_VARIANT_ADD(many, two_unbuffered) { 2, 0, false };
FIXTURE_VARIANT_ADD(many, three_of_5) { 3, 5, false };
FIXTURE_VARIANT_ADD(many, one_hurried) { 1, 2, true };
FIXTURE_VARIANT_ADD(many, two_hurried) { 2, 0, true };
FIXTURE_VARIANT_ADD(many, three_hurried_of_5) { 3, 5, true };

TEST_F(many, each_value_arrives_once)
{
	crowd.hurried = variant->hurried;
	ASSERT_EQ(0, with_runtime(variant->processors, 200 * US, crowded,
				  (void *)variant->cap));
	EXPECT_EQ(0, failures);
}

/* ---- close ---- */

static void *waits_to_receive(void *arg)
{
	uint64_t v = 7;

	check_eq(-EPIPE, fiber_chan_recv(arg, &v));
	check_eq(7, v);
	return NULL;
}

static void *waits_to_send(void *arg)
{
	uint64_t v = 7;

	check_eq(-EPIPE, fiber_chan_send(arg, &v));
	return NULL;
}

static void *closes(void *arg)
{
	uint64_t v = 0;
	fiber_t *f[3];
	fiber_chan_t *ch;

	(void)arg;
	ch = chan(8, 0);
	for (int i = 0; i < 3; i++)
		f[i] = spawn(waits_to_receive, ch);
	check_eq(0, fiber_chan_close(ch));
	for (int i = 0; i < 3; i++)
		join(f[i]);
	check_eq(-EPIPE, fiber_chan_close(ch));
	check_eq(-EPIPE, fiber_chan_send(ch, &v));
	check_eq(-EPIPE, fiber_chan_try_send(ch, &v));
	check_eq(-EPIPE, fiber_chan_recv(ch, &v));
	check_eq(0, fiber_chan_destroy(ch));

	ch = chan(8, 2);
	for (uint64_t i = 1; i <= 2; i++)
		check_eq(0, fiber_chan_send(ch, &i));
	for (int i = 0; i < 3; i++)
		f[i] = spawn(waits_to_send, ch);
	check_eq(2, fiber_chan_len(ch));
	check_eq(0, fiber_chan_close(ch));
	for (int i = 0; i < 3; i++)
		join(f[i]);
	for (uint64_t i = 1; i <= 2; i++) {
		check_eq(0, fiber_chan_recv(ch, &v));
		check_eq(i, v);
	}
	check_eq(-EPIPE, fiber_chan_recv(ch, &v));
	check_eq(0, fiber_chan_destroy(ch));
	check_eq(-EINVAL, fiber_chan_close(NULL));
	return NULL;
}

TEST(close_wakes_both_sides_and_keeps_what_is_left)
{
	ASSERT_EQ(0, with_runtime(1, 0, closes, NULL));
	ASSERT_EQ(0, with_runtime(2, 0, closes, NULL));
	EXPECT_EQ(0, failures);
}

/* ---- deadlines, try, NULL ---- */

static void late(int r, uint64_t deadline)
{
	check_eq(-ETIMEDOUT, r);
	check(fiber_now() >= deadline);
}

static void waits_until(fiber_chan_t *full, fiber_chan_t *empty)
{
	uint64_t v = 1, t = fiber_now() + 3 * MS;

	late(fiber_chan_send_until(full, &v, t), t);
	t = fiber_now() + 3 * MS;
	late(fiber_chan_recv_until(empty, &v, t), t);
	late(fiber_chan_recv_until(empty, &v, 1), 1);
	late(fiber_chan_send_until(full, &v, 0), 0);
	check_eq(-EAGAIN, fiber_chan_try_send(full, &v));
	check_eq(-EAGAIN, fiber_chan_try_recv(empty, &v));
}

static void *deadlines(void *arg)
{
	fiber_chan_t *full = chan(8, 1), *empty = chan(8, 1), *none = chan(8, 0);
	uint64_t v = 5;

	(void)arg;
	check_eq(0, fiber_chan_send(full, &v));
	waits_until(full, empty);
	waits_until(none, none);
	waits_until(NULL, NULL);
	check_eq(0, fiber_chan_len(NULL));
	check_eq(0, fiber_chan_cap(NULL));
	/* What could not be sent was not sent. */
	check_eq(1, fiber_chan_len(full));
	check_eq(0, fiber_chan_try_recv(full, &v));
	check_eq(5, v);
	check_eq(-EAGAIN, fiber_chan_try_recv(full, &v));
	check_eq(0, fiber_chan_destroy(full));
	check_eq(0, fiber_chan_destroy(empty));
	check_eq(0, fiber_chan_destroy(none));
	check_eq(0, fiber_chan_destroy(NULL));
	return NULL;
}

TEST(deadline_passes)
{
	ASSERT_EQ(0, with_runtime(1, 0, deadlines, NULL));
	ASSERT_EQ(0, with_runtime(2, 0, deadlines, NULL));
	deadlines(NULL);			/* a plain thread, no runtime */
	EXPECT_EQ(0, failures);
}

TEST(arguments_are_checked)
{
	fiber_chan_t *ch = NULL;

	EXPECT_EQ(-EINVAL, fiber_chan_create(NULL, 8, 1));
	EXPECT_EQ(-EINVAL, fiber_chan_create(&ch, 16, SIZE_MAX / 8));
	EXPECT_EQ(-ENOMEM, fiber_chan_create(&ch, 16, SIZE_MAX / 64));
	EXPECT_EQ(NULL, ch);
}

static void *receives_one(void *arg)
{
	uint64_t v = 0;

	check_eq(0, fiber_chan_recv(arg, &v));
	return (void *)v;
}

static void *destroys(void *arg)
{
	fiber_chan_t *ch = chan(8, 0);
	fiber_t *f = spawn(receives_one, ch);
	uint64_t v = 3;
	int r;

	(void)arg;
	/* It may have been preempted before it waits. */
	while ((r = fiber_chan_try_send(ch, &v)) == -EAGAIN)
		fiber_yield();
	check_eq(0, r);
	check_eq(3, (uint64_t)join(f));
	f = spawn(receives_one, ch);
	settle();
	while (fiber_chan_destroy(ch) != -EBUSY) {
		/* Freed while it had not come to use it: cannot be tested. */
		check(!"destroyed under a waiter");
		return NULL;
	}
	check_eq(0, fiber_chan_send(ch, &v));
	join(f);
	check_eq(0, fiber_chan_destroy(ch));
	return NULL;
}

TEST(destroy_of_a_busy_one_is_refused)
{
	ASSERT_EQ(0, with_runtime(1, SEC, destroys, NULL));
	EXPECT_EQ(0, failures);
}

/* ---- plain threads ---- */

static void *thread_sends(void *arg)
{
	return sends(arg);
}

static void threads_flow(size_t cap)
{
	struct flow w = { chan(8, cap), 2000 };
	pthread_t t;

	check_eq(0, pthread_create(&t, NULL, thread_sends, &w));
	receives(&w);
	pthread_join(t, NULL);
	check_eq(0, fiber_chan_destroy(w.ch));
}

TEST(plain_threads_need_no_runtime)
{
	threads_flow(0);
	threads_flow(4);
	EXPECT_EQ(0, failures);
}

FIXTURE(threads) {};
FIXTURE_SETUP(threads) {}
FIXTURE_TEARDOWN(threads) {}
FIXTURE_VARIANT(threads) { unsigned int processors; size_t cap; bool hurried; };
FIXTURE_VARIANT_ADD(threads, one_unbuffered) { 1, 0, false };
FIXTURE_VARIANT_ADD(threads, one_hurried_of_3) { 1, 3, true };
FIXTURE_VARIANT_ADD(threads, two_unbuffered_hurried) { 2, 0, true };
FIXTURE_VARIANT_ADD(threads, two_of_3) { 2, 3, false };

/* Half of each side are fibers, half plain threads. */
static void mixed_crowd(size_t cap)
{
	pthread_t t[SIDES];
	fiber_t *f[SIDES];

	crowd.ch = chan(8, cap);
	in_flight = SIDES;
	for (size_t i = 0; i < SIDES; i++)
		f[i] = spawn(i % 2 ? one_receiver : one_sender, (void *)i);
	for (size_t i = 0; i < SIDES; i++)
		check_eq(0, pthread_create(&t[i], NULL, i % 2 ? one_sender :
					   one_receiver, (void *)i));
	for (size_t i = 0; i < SIDES; i++)
		join(f[i]);
	for (size_t i = 0; i < SIDES; i++)
		pthread_join(t[i], NULL);
	each_once();
	check_eq(0, fiber_chan_destroy(crowd.ch));
}

TEST_F(threads, share_a_channel_with_fibers)
{
	crowd.hurried = variant->hurried;
	ASSERT_EQ(0, start(variant->processors, 0));
	mixed_crowd(variant->cap);
	ASSERT_EQ(0, fiber_fini());
	EXPECT_EQ(0, failures);
}

/*
 * On one processor fibers need no locks, until a plain thread comes: it must
 * find every section ended. It comes in the middle of their traffic, again and
 * again in new processes.
 */
static atomic_bool traffic;

static void *busy_channel(void *arg)
{
	fiber_chan_t *ch = arg;
	uint64_t v = 0, w;

	while (atomic_load(&traffic)) {
		check_eq(0, fiber_chan_send(ch, &v));
		check_eq(0, fiber_chan_recv(ch, &w));
		check_eq(v, w);
		v++;
	}
	return NULL;
}

static void one_solo_round(void)
{
	fiber_chan_t *ch = chan(8, 4), *other = chan(8, 1);
	uint64_t v = 1;
	fiber_t *f;

	traffic = true;
	check_eq(0, start(1, 0));
	f = spawn(busy_channel, ch);
	block_ns(MS);
	check_eq(0, fiber_chan_send(other, &v));	/* ends it */
	check(fiber_chan_len(ch) <= 1);
	traffic = false;
	join(f);
	check_eq(0, fiber_chan_len(ch));
	check_eq(0, fiber_fini());
}

TEST(first_plain_thread_comes_in_the_middle)
{
	for (int i = 0; i < 20; i++) {
		pid_t pid = fork();
		int status = -1;

		if (!pid) {
			one_solo_round();
			_exit(failures != 0);
		}
		ASSERT_EQ(pid, waitpid(pid, &status, 0));
		ASSERT_EQ(0, status);
	}
}

/*
 * That age ends by a membarrier of the plain thread. So a process whose main thread
 * is killed at the next one lives while it only starts and joins fibers, as in
 * fiber_run, and not when it uses a channel.
 */
static void die_of_membarrier(void)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS,
			 offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_membarrier, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog prog = { sizeof(code) / sizeof(*code), code };

	check_eq(0, prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
	check_eq(0, prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog));
}

static void *passes_one(void *arg)
{
	uint64_t v = 1;

	check_eq(0, fiber_chan_send(arg, &v));
	check_eq(0, fiber_chan_recv(arg, &v));
	return NULL;
}

static void join_alone(bool send)
{
	fiber_chan_t *ch = chan(8, 4);
	uint64_t v = 1;

	check_eq(0, start(1, 0));
	die_of_membarrier();
	join(spawn(passes_one, ch));
	if (send)
		fiber_chan_send(ch, &v);
	_exit(failures != 0);
}

static int status_of_join_alone(bool send)
{
	pid_t pid = fork();
	int status = -1;

	if (!pid)
		join_alone(send);
	check_eq(pid, waitpid(pid, &status, 0));
	return status;
}

TEST(join_by_a_plain_thread_ends_no_solo)
{
	long can = syscall(__NR_membarrier, MEMBARRIER_CMD_QUERY, 0, 0);

	if (can < 0 || !(can & MEMBARRIER_CMD_PRIVATE_EXPEDITED))
		SKIP(return, "without membarrier objects are always locked");
	EXPECT_EQ(0, status_of_join_alone(false));
	EXPECT_EQ(SIGSYS, WTERMSIG(status_of_join_alone(true)));
	EXPECT_EQ(0, failures);
}

/* ---- Go's sieve: a chain of filters ---- */

struct filter {
	fiber_chan_t *in, *out;
	uint64_t prime;
};

static void *generates(void *arg)
{
	struct filter *w = arg;

	for (uint64_t i = 2; fiber_chan_send(w->out, &i) == 0; i++)
		;
	return NULL;
}

static void *filters(void *arg)
{
	struct filter *w = arg;
	uint64_t v;

	while (fiber_chan_recv(w->in, &v) == 0)
		if (v % w->prime && fiber_chan_send(w->out, &v))
			break;
	fiber_chan_close(w->in);
	return NULL;
}

enum { PRIMES = 100 };

static void *sieve(void *arg)
{
	static struct filter w[PRIMES + 1];
	static fiber_t *f[PRIMES + 1];
	uint64_t prime = 0;

	(void)arg;
	w[0].out = chan(8, 0);
	f[0] = spawn(generates, &w[0]);
	for (int i = 1; i <= PRIMES; i++) {
		check_eq(0, fiber_chan_recv(w[i - 1].out, &prime));
		w[i].in = w[i - 1].out;
		w[i].out = chan(8, 0);
		w[i].prime = prime;
		f[i] = spawn(filters, &w[i]);
	}
	check_eq(541, prime);
	fiber_chan_close(w[PRIMES].out);
	for (int i = PRIMES; i >= 0; i--) {
		join(f[i]);
		check_eq(0, fiber_chan_destroy(w[i].out));
	}
	return NULL;
}

TEST(sieve_of_a_hundred_fibers)
{
	ASSERT_EQ(0, with_runtime(1, 0, sieve, NULL));
	ASSERT_EQ(0, with_runtime(2, 0, sieve, NULL));
	EXPECT_EQ(0, failures);
}

TEST_HARNESS_MAIN
