// SPDX-License-Identifier: GPL-2.0-only
/* Select: exactly one case, fairly, nothing lost and nothing twice. */
#include "common.h"

static fiber_chan_t *chan(size_t elem, size_t cap)
{
	fiber_chan_t *ch = NULL;

	check_eq(0, fiber_chan_create(&ch, elem, cap));
	return ch;
}

/* ---- one case ---- */

static void *chooses(void *arg)
{
	fiber_chan_t *a = chan(8, 1), *b = chan(8, 1);
	uint64_t v = 11, x = 0, y = 0;
	struct fiber_case c[] = { FIBER_RECV(a, &x), FIBER_RECV(b, &y) };

	(void)arg;
	check_eq(-EAGAIN, fiber_try_select(c, 2));
	check_eq(0, fiber_chan_send(b, &v));
	c[1].result = 99;
	check_eq(1, fiber_try_select(c, 2));
	check_eq(0, c[1].result);
	check_eq(11, y);
	check_eq(0, x);
	/* A full and an empty one: only the send to the empty can be done. */
	check_eq(0, fiber_chan_send(a, &v));
	c[0] = FIBER_SEND(a, &v);
	c[1] = FIBER_SEND(b, &v);
	check_eq(1, fiber_select(c, 2, FIBER_NEVER));
	check_eq(-EAGAIN, fiber_try_select(c, 2));
	/* Closed is ready, and says so. */
	check_eq(0, fiber_chan_close(b));
	check_eq(1, fiber_select(c, 2, FIBER_NEVER));
	check_eq(-EPIPE, c[1].result);
	check_eq(0, fiber_chan_destroy(a));
	check_eq(0, fiber_chan_destroy(b));
	return NULL;
}

TEST(does_what_can_be_done)
{
	ASSERT_EQ(0, with_runtime(1, 0, chooses, NULL));
	ASSERT_EQ(0, with_runtime(2, 0, chooses, NULL));
	chooses(NULL);				/* a plain thread */
	EXPECT_EQ(0, failures);
}

static void *never_ready(void *arg)
{
	struct fiber_case c[3] = { FIBER_RECV(NULL, NULL), FIBER_SEND(NULL, NULL) };
	uint64_t t = fiber_now() + 2 * MS;
	fiber_chan_t *ch = chan(8, 0);

	(void)arg;
	check_eq(-ETIMEDOUT, fiber_select(c, 3, t));
	check(fiber_now() >= t);
	check_eq(-ETIMEDOUT, fiber_select(NULL, 0, fiber_now() + MS));
	check_eq(-ETIMEDOUT, fiber_select(c, 3, 0));
	check_eq(-EAGAIN, fiber_try_select(c, 3));
	check_eq(-EAGAIN, fiber_try_select(NULL, 0));
	c[2].op = 77;
	check_eq(-EINVAL, fiber_select(c, 3, FIBER_NEVER));
	check_eq(-EINVAL, fiber_select(NULL, 1, FIBER_NEVER));
	check_eq(-EINVAL, fiber_select(c, 65537, FIBER_NEVER));
	/* Both ends of one channel are no pair. */
	c[0] = FIBER_SEND(ch, &t);
	c[1] = FIBER_RECV(ch, &t);
	check_eq(-EAGAIN, fiber_try_select(c, 2));
	t = fiber_now() + 2 * MS;
	check_eq(-ETIMEDOUT, fiber_select(c, 2, t));
	check_eq(0, fiber_chan_destroy(ch));
	return NULL;
}

TEST(null_and_own_channels_are_never_ready)
{
	ASSERT_EQ(0, with_runtime(1, 0, never_ready, NULL));
	ASSERT_EQ(0, with_runtime(2, 0, never_ready, NULL));
	never_ready(NULL);
	EXPECT_EQ(0, failures);
}

enum { CHANNELS = 100, DRAWS = 20000 };

static void *draws(void *arg)
{
	static int count[CHANNELS];
	struct fiber_case c[CHANNELS];
	fiber_chan_t *ch[CHANNELS];
	int r, least = DRAWS, most = 0, ready = 0;

	memset(count, 0, sizeof(count));
	for (int i = 0; i < CHANNELS; i++) {
		ch[i] = chan(0, 1);
		c[i] = FIBER_RECV(ch[i], NULL);
		if (i % 4 == 1)
			check_eq(0, fiber_chan_send(ch[i], NULL));
	}
	for (int i = 0; i < DRAWS; i++) {
		r = fiber_select(c, CHANNELS, FIBER_NEVER);
		if (r < 0 || r % 4 != 1) {
			failed(__FILE__, __LINE__, "chose %d", r);
			break;
		}
		count[r]++;
		check_eq(0, fiber_chan_send(ch[r], NULL));
	}
	for (int i = 1; i < CHANNELS; i += 4, ready++) {
		least = count[i] < least ? count[i] : least;
		most = count[i] > most ? count[i] : most;
	}
	figure("%d of %d ready, chosen %d to %d times of %d\n", ready, CHANNELS,
	       least, most, DRAWS);
	/* 800 each is expected, with a deviation of 28. */
	check(least > 600 && most < 1000);
	for (int i = 0; i < CHANNELS; i++)
		check_eq(0, fiber_chan_destroy(ch[i]));
	return arg;
}

TEST(each_ready_case_has_the_same_chance)
{
	ASSERT_EQ(0, with_runtime(1, 0, draws, NULL));
	ASSERT_EQ(0, with_runtime(2, 0, draws, NULL));
	EXPECT_EQ(0, failures);
}

/* ---- waiting ---- */

struct pair {
	fiber_chan_t *ch[CHANNELS];
	int n;
};

static void *wakes_each(void *arg)
{
	struct pair *w = arg;

	for (int i = 0; i < w->n; i++) {
		uint64_t v = 1000 + i;

		check_eq(0, fiber_chan_send(w->ch[i], &v));
	}
	check_eq(0, fiber_chan_close(w->ch[w->n / 2]));
	return NULL;
}

static void *waits_for_all(void *arg)
{
	struct fiber_case c[CHANNELS];
	uint64_t v[CHANNELS] = { 0 };
	struct pair w = { .n = (int)(uintptr_t)arg };
	fiber_t *f;
	int r;

	/* From the end: the order of the cases is not that of the locks. */
	for (int i = 0; i < w.n; i++)
		w.ch[i] = chan(8, 0);
	for (int i = 0; i < w.n; i++)
		c[i] = FIBER_RECV(w.ch[(w.n - 1 - i) * 7 % w.n], &v[i]);
	f = spawn(wakes_each, &w);
	for (int i = 0; i < w.n; i++) {
		r = fiber_select(c, w.n, FIBER_NEVER);
		check(r >= 0 && c[r].chan == w.ch[i]);
		check_eq(0, c[r].result);
		check_eq(1000 + i, v[r]);
	}
	r = fiber_select(c, w.n, FIBER_NEVER);
	check(r >= 0 && c[r].chan == w.ch[w.n / 2]);
	check_eq(-EPIPE, c[r].result);
	join(f);
	for (int i = 0; i < w.n; i++)
		check_eq(0, fiber_chan_destroy(w.ch[i]));
	return NULL;
}

TEST(woken_by_any_of_them)
{
	/* 7 has no common factor with them: each channel once */
	static const int n[] = { 1, 2, 13, 33, 100 };

	for (size_t i = 0; i < sizeof(n) / sizeof(*n); i++) {
		void *arg = (void *)(uintptr_t)n[i];

		ASSERT_EQ(0, with_runtime(1, 0, waits_for_all, arg));
		ASSERT_EQ(0, with_runtime(2, 0, waits_for_all, arg));
	}
	EXPECT_EQ(0, failures);
}

static void *same_twice(void *arg)
{
	fiber_chan_t *ch = chan(8, 0);
	uint64_t v[2] = { 0, 0 };
	struct fiber_case c[] = { FIBER_RECV(ch, &v[0]), FIBER_RECV(ch, &v[1]) };
	struct pair w = { .ch = { ch }, .n = 1 };
	fiber_t *f = NULL;
	int r;

	(void)arg;
	for (int i = 0; i < 2; i++) {
		if (!f)
			f = spawn(wakes_each, &w);
		r = fiber_select(c, 2, FIBER_NEVER);
		check(r == 0 || r == 1);
		check_eq(i ? -EPIPE : 0, c[r].result);
		check_eq(1000, v[0] + v[1]);
	}
	join(f);
	check_eq(0, fiber_chan_destroy(ch));
	return NULL;
}

TEST(one_channel_in_two_cases)
{
	ASSERT_EQ(0, with_runtime(1, 0, same_twice, NULL));
	ASSERT_EQ(0, with_runtime(2, 0, same_twice, NULL));
	EXPECT_EQ(0, failures);
}

/* ---- all against all ---- */

enum { PARTS = 12, ROADS = 5, EACH = 1500 };

static fiber_chan_t *road[ROADS];
static atomic_ulong sent, received, sent_sum, received_sum;
static atomic_int at_work;
static fiber_chan_t *done;

/*
 * Each one sends on some roads and receives on the others in one select, with
 * deadlines at times: every pair of them may meet in select with select.
 */
static void *trades(void *arg)
{
	uint32_t me = (uint32_t)(uintptr_t)arg, seed = me * 7919 + 1;
	uint64_t value = 0, got[ROADS + 1];
	struct fiber_case c[ROADS + 1];
	int r, n = 0;

	while (n < EACH) {
		uint32_t x = next_random(&seed);

		value = ((uint64_t)me << 32) + n + 1;
		for (int i = 0; i < ROADS; i++)
			c[i] = x >> i & 1 ? FIBER_SEND(road[i], &value) :
					    FIBER_RECV(road[i], &got[i]);
		c[ROADS] = FIBER_RECV(done, NULL);
		r = fiber_select(c, ROADS + 1, x >> 8 & 3 ? FIBER_NEVER :
				 fiber_now() + (x >> 10) % 2000);
		if (r == -ETIMEDOUT)
			continue;
		if (r == ROADS)
			break;
		check(r >= 0);
		check_eq(0, c[r].result);
		n++;
		if (c[r].op == FIBER_CASE_SEND) {
			atomic_fetch_add(&sent, 1);
			atomic_fetch_add(&sent_sum, value);
		} else {
			atomic_fetch_add(&received, 1);
			atomic_fetch_add(&received_sum, got[r]);
		}
	}
	/* The others may have nobody to meet any more. */
	if (n == EACH && atomic_fetch_sub(&at_work, 1) == 1)
		fiber_chan_close(done);
	return NULL;
}

static void *drains(void *arg)
{
	struct fiber_case c[ROADS * 2 + 1];
	uint64_t got[ROADS], zero = 0;
	int r;

	for (;;) {
		for (int i = 0; i < ROADS; i++) {
			c[i] = FIBER_RECV(road[i], &got[i]);
			c[ROADS + i] = FIBER_SEND(road[i], &zero);
		}
		c[2 * ROADS] = FIBER_RECV(done, NULL);
		r = fiber_select(c, 2 * ROADS + 1, FIBER_NEVER);
		if (r == 2 * ROADS)
			return arg;
		check(r >= 0);
		if (r < ROADS) {
			atomic_fetch_add(&received, 1);
			atomic_fetch_add(&received_sum, got[r]);
		} else {
			atomic_fetch_add(&sent, 1);
		}
	}
}

static void trade(size_t cap, bool threads)
{
	fiber_t *f[PARTS + 1];
	pthread_t t[PARTS];
	uint64_t left;

	for (int i = 0; i < ROADS; i++)
		road[i] = chan(8, cap);
	done = chan(0, 0);
	at_work = PARTS;
	for (uintptr_t i = 0; i < PARTS; i++) {
		if (threads && i % 3 == 0)
			check_eq(0, pthread_create(&t[i], NULL, trades,
						   (void *)(i + 1)));
		else
			f[i] = spawn(trades, (void *)(i + 1));
	}
	f[PARTS] = spawn(drains, NULL);
	for (int i = 0; i < PARTS; i++) {
		if (threads && i % 3 == 0)
			pthread_join(t[i], NULL);
		else
			join(f[i]);
	}
	join(f[PARTS]);
	for (int i = 0; i < ROADS; i++) {
		while (!fiber_chan_try_recv(road[i], &left)) {
			received++;
			received_sum += left;
		}
		check_eq(0, fiber_chan_destroy(road[i]));
	}
	check_eq(0, fiber_chan_destroy(done));
	check_eq(sent, received);
	check_eq(sent_sum, received_sum);
}

FIXTURE(all) {};
FIXTURE_SETUP(all) {}
FIXTURE_TEARDOWN(all) {}
FIXTURE_VARIANT(all) { unsigned int processors; size_t cap; bool threads; };
FIXTURE_VARIANT_ADD(all, one) { 1, 0, false };
FIXTURE_VARIANT_ADD(all, two) { 2, 0, false };
FIXTURE_VARIANT_ADD(all, three_of_2) { 3, 2, false };
FIXTURE_VARIANT_ADD(all, one_with_threads) { 1, 0, true };
FIXTURE_VARIANT_ADD(all, two_of_1_with_threads) { 2, 1, true };

TEST_F(all, what_is_sent_is_received_once)
{
	ASSERT_EQ(0, start(variant->processors, 200 * US));
	trade(variant->cap, variant->threads);
	ASSERT_EQ(0, fiber_fini());
	EXPECT_EQ(0, failures);
}

TEST_HARNESS_MAIN
