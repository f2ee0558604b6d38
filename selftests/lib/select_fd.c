// SPDX-License-Identifier: GPL-2.0-only
/* Selects over channels and descriptors: ready, woken, fair, closed, cancelled. */
#include "common.h"

#include <fcntl.h>
#include <poll.h>

FIXTURE(fd) {};
FIXTURE_VARIANT(fd) {
	const char *io;
	unsigned int processors;
	uint64_t quantum;
};
FIXTURE_SETUP(fd)
{
	setenv("FIBER_IO", variant->io, 1);
}
FIXTURE_TEARDOWN(fd) {}
FIXTURE_VARIANT_ADD(fd, one) { "epoll", 1, 0 };
FIXTURE_VARIANT_ADD(fd, two) { "epoll", 2, 100 * US };
FIXTURE_VARIANT_ADD(fd, plain) { "plain", 2, 0 };

#define RUN(fn, arg) \
	ASSERT_EQ(0, with_runtime(variant->processors, variant->quantum, fn, arg)); \
	EXPECT_EQ(0, failures)

static fiber_chan_t *chan(size_t size, size_t cap)
{
	fiber_chan_t *ch = NULL;

	check_eq(0, fiber_chan_create(&ch, size, cap));
	return ch;
}

/* ---- without a wait ---- */

static void *sees(void *arg)
{
	struct fiber_case c[4];
	int p[2], v = 7;
	fiber_chan_t *ch = chan(sizeof(int), 1);

	check_eq(0, pipe(p));
	c[0] = FIBER_FD(p[0], POLLIN);
	c[1] = FIBER_FD(-1, POLLIN);
	c[2] = FIBER_RECV(ch, &v);
	c[3] = FIBER_RECV(NULL, NULL);
	check_eq(-EAGAIN, fiber_try_select(c, 4));
	check_eq(-ETIMEDOUT, fiber_select(c, 4, fiber_now() + MS));
	check_eq(-ETIMEDOUT, fiber_select(c, 2, 1));
	check_eq(0, fiber_chan_send(ch, &v));
	check_eq(2, fiber_select(c, 4, FIBER_NEVER));
	check_eq(1, write(p[1], "x", 1));
	check_eq(0, fiber_select(c, 4, FIBER_NEVER));
	check_eq(POLLIN, c[0].result);
	c[1] = FIBER_FD(p[1], POLLIN | POLLOUT);
	check_eq(1, fiber_try_select(c + 1, 1) + 1);
	check_eq(POLLOUT, c[1].result);
	close(p[1]);
	check_eq(1, fiber_try_select(c + 1, 3) + 1);
	check_eq(POLLNVAL, c[1].result);
	c[3].op = FIBER_CASE_FD + 1;
	check_eq(-EINVAL, fiber_try_select(c, 4));
	close(p[0]);
	check_eq(0, fiber_chan_destroy(ch));
	return arg;
}

TEST_F(fd, what_is_ready_is_seen)
{
	RUN(sees, NULL);
}

static void *counts_choices(void *arg)
{
	struct fiber_case c[3];
	int p[2], n[3] = { 0 }, r;
	fiber_chan_t *ch = chan(0, 1);

	check_eq(0, pipe(p));
	check_eq(1, write(p[1], "x", 1));
	check_eq(0, fiber_chan_close(ch));
	c[0] = FIBER_RECV(ch, NULL);
	c[1] = FIBER_FD(p[0], POLLIN);
	c[2] = FIBER_FD(p[1], POLLOUT);
	for (int i = 0; i < 3000; i++) {
		r = fiber_select(c, 3, FIBER_NEVER);
		check(r >= 0 && r < 3);
		n[r]++;
	}
	/* Standard deviation 26: never by chance. */
	for (int i = 0; i < 3; i++)
		check(n[i] > 800 && n[i] < 1200);
	close(p[0]);
	close(p[1]);
	check_eq(0, fiber_chan_destroy(ch));
	return arg;
}

TEST_F(fd, each_has_the_same_chance)
{
	RUN(counts_choices, NULL);
}

/* ---- woken by either ---- */

enum { VALUES = 500, SELECTORS = 3 };

struct both {
	fiber_chan_t *ch, *quit;
	int fd;
	atomic_int values, bytes;
};

static void *selects(void *arg)
{
	struct both *b = arg;
	struct fiber_case c[3];
	char byte;
	int v, r;

	c[0] = FIBER_RECV(b->ch, &v);
	c[1] = FIBER_FD(b->fd, POLLIN);
	c[2] = FIBER_RECV(b->quit, NULL);
	while ((r = fiber_select(c, 3, FIBER_NEVER)) != 2) {
		if (r == 0)
			atomic_fetch_add(&b->values, 1);
		else if (read(b->fd, &byte, 1) == 1)
			atomic_fetch_add(&b->bytes, 1);
		check(r >= 0);
	}
	return NULL;
}

static void *sends_values(void *arg)
{
	struct both *b = arg;

	for (int i = 0; i < VALUES; i++) {
		check_eq(0, fiber_chan_send(b->ch, &i));
		if (i % 5 == 0)
			fiber_sleep(50 * US);
	}
	return NULL;
}

static void *sends_bytes(void *arg)
{
	for (int i = 0; i < VALUES; i++) {
		check_eq(1, write(*(int *)arg, "x", 1));
		if (i % 7 == 0)
			block_ns(50 * US);
	}
	return NULL;
}

/* arg: not NULL: another thread selects as well, and one sends bytes. */
static void *either(void *arg)
{
	struct both b = { .ch = chan(sizeof(int), 0), .quit = chan(0, 0) };
	fiber_t *f[SELECTORS], *g, *h = NULL;
	pthread_t t[2];
	int p[2];

	check_eq(0, pipe2(p, O_NONBLOCK));
	b.fd = p[0];
	if (arg) {
		pthread_create(&t[0], NULL, selects, &b);
		pthread_create(&t[1], NULL, sends_bytes, &p[1]);
	}
	for (int i = 0; i < SELECTORS; i++)
		f[i] = spawn(selects, &b);
	g = spawn(sends_values, &b);
	if (!arg)
		h = spawn(sends_bytes, &p[1]);
	join(g);
	if (h)
		join(h);
	while (atomic_load(&b.values) + atomic_load(&b.bytes) < 2 * VALUES)
		fiber_sleep(MS);
	check_eq(0, fiber_chan_close(b.quit));
	for (int i = 0; i < SELECTORS; i++)
		join(f[i]);
	for (int i = 0; arg && i < 2; i++)
		pthread_join(t[i], NULL);
	check_eq(VALUES, b.values);
	check_eq(VALUES, b.bytes);
	check_eq(0, fiber_close(p[0]));
	check_eq(0, fiber_close(p[1]));
	check_eq(0, fiber_chan_destroy(b.ch));
	check_eq(0, fiber_chan_destroy(b.quit));
	return NULL;
}

TEST_F(fd, fibers_are_woken_by_either)
{
	RUN(either, NULL);
}

TEST_F(fd, threads_are_woken_by_either)
{
	RUN(either, (void *)1);
}

/* Without a runtime a thread sees what is ready, and waits for channels alone. */
TEST(no_runtime)
{
	struct fiber_case c[2];
	fiber_chan_t *ch = chan(0, 0);
	int p[2];

	ASSERT_EQ(0, pipe(p));
	c[0] = FIBER_FD(p[0], POLLIN);
	c[1] = FIBER_RECV(ch, NULL);
	EXPECT_EQ(-EAGAIN, fiber_try_select(c, 2));
	EXPECT_EQ(-EPERM, fiber_select(c, 2, FIBER_NEVER));
	EXPECT_EQ(-ETIMEDOUT, fiber_select(c + 1, 1, fiber_now() + MS));
	EXPECT_EQ(1, write(p[1], "x", 1));
	EXPECT_EQ(0, fiber_select(c, 2, FIBER_NEVER));
	EXPECT_EQ(0, fiber_chan_destroy(ch));
	close(p[0]);
	close(p[1]);
}

/* ---- ended otherwise ---- */

static atomic_int parked;
static int closing[2];

static void *is_told(void *arg)
{
	struct fiber_case c[2] = { FIBER_FD(closing[0], POLLIN),
				   FIBER_RECV(NULL, NULL) };

	atomic_store(&parked, 1);
	check_eq(0, fiber_select(c, 2, FIBER_NEVER));
	check_eq(POLLNVAL, c[0].result);
	return arg;
}

static void *closes_waited_for(void *arg)
{
	for (int i = 0; i < 50; i++) {
		fiber_t *f;

		check_eq(0, pipe(closing));
		atomic_store(&parked, 0);
		f = spawn(is_told, NULL);
		while (!atomic_load(&parked))
			fiber_yield();
		if (i % 2)
			fiber_sleep(100 * US);
		check_eq(0, fiber_close(closing[0]));
		join(f);
		check_eq(0, fiber_close(closing[1]));
	}
	return arg;
}

TEST_F(fd, close_ends_who_selects)
{
	RUN(closes_waited_for, NULL);
}

static int is_cancelled(void *arg)
{
	struct fiber_case c = FIBER_FD(*(int *)arg, POLLIN);

	atomic_fetch_add(&parked, 1);
	check_eq(-ECANCELED, fiber_select(&c, 1, FIBER_NEVER));
	check_eq(-ECANCELED, fiber_select(&c, 1, FIBER_NEVER));
	check_eq(-EAGAIN, fiber_try_select(&c, 1));
	return 0;
}

static void *cancels(void *arg)
{
	fiber_scope_t s;
	int p[2];

	check_eq(0, pipe(p));
	atomic_store(&parked, 0);
	check_eq(0, fiber_scope_open(&s, NULL));
	for (int i = 0; i < 20; i++)
		check_eq(0, fiber_scope_spawn(&s, is_cancelled, &p[0]));
	while (atomic_load(&parked) < 20)
		fiber_yield();
	fiber_scope_cancel(&s, 0);
	fiber_scope_close(&s);
	check_eq(0, fiber_close(p[0]));
	check_eq(0, fiber_close(p[1]));
	return arg;
}

TEST_F(fd, cancel_ends_who_selects)
{
	RUN(cancels, NULL);
}

/* ---- many numbers, and closes of them ---- */

enum { NUMBERS = 2, CLOSES = 300 };

static atomic_int number[NUMBERS];
static atomic_int over;

/* Neither order of two numbers may wait for the other's close. */
static void *waits_in_order(void *arg)
{
	int first = (long)arg & 1;
	struct pollfd p[NUMBERS];
	struct fiber_case c[NUMBERS];

	while (!atomic_load(&over)) {
		for (int i = 0; i < NUMBERS; i++) {
			p[i].fd = number[i ^ first];
			p[i].events = POLLIN;
			c[i] = FIBER_FD(number[i ^ first], POLLIN);
		}
		if ((long)arg & 2)
			fiber_poll_until(p, NUMBERS, fiber_now() + 20 * US);
		else
			fiber_select(c, NUMBERS, fiber_now() + 20 * US);
		fiber_yield();
	}
	return NULL;
}

static void *closes_again(void *arg)
{
	atomic_int *fd = arg;
	int p[2];

	for (int i = 0; i < CLOSES; i++) {
		check_eq(0, pipe(p));
		fiber_yield();
		check_eq(0, fiber_close(*fd));
		check_eq(0, fiber_close(p[1]));
		*fd = p[0];
	}
	return NULL;
}

static void *closes_and_waits(void *arg)
{
	fiber_t *w[4], *c[NUMBERS];
	int p[2];

	atomic_store(&over, 0);
	for (int i = 0; i < NUMBERS; i++) {
		check_eq(0, pipe(p));
		number[i] = p[0];
		close(p[1]);
	}
	for (long i = 0; i < 4; i++)
		w[i] = spawn(waits_in_order, (void *)i);
	for (int i = 0; i < NUMBERS; i++)
		c[i] = spawn(closes_again, &number[i]);
	for (int i = 0; i < NUMBERS; i++)
		join(c[i]);
	atomic_store(&over, 1);
	for (int i = 0; i < 4; i++)
		join(w[i]);
	for (int i = 0; i < NUMBERS; i++)
		check_eq(0, fiber_close(number[i]));
	return arg;
}

TEST_F(fd, closes_of_many_wait_for_none)
{
	RUN(closes_and_waits, NULL);
}

TEST_HARNESS_MAIN
