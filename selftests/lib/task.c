// SPDX-License-Identifier: GPL-2.0-only
/* Stackless tasks: with each other, with fibers and threads, and very many. */
#include "common.h"

static fiber_chan_t *chan(size_t elem, size_t cap)
{
	fiber_chan_t *ch = NULL;

	check_eq(0, fiber_chan_create(&ch, elem, cap));
	return ch;
}

static atomic_long ended;
static fiber_chan_t *all_ended;

static void count_end(fiber_task_t *t)
{
	check_eq(0, t->result);
	if (atomic_fetch_sub(&ended, 1) == 1)
		check_eq(0, fiber_chan_send(all_ended, NULL));
}

/* ---- values through tasks ---- */

struct relay {
	fiber_task_t task;
	fiber_chan_t *in, *out;
	uint64_t v, n;
};

static int relays(fiber_task_t *t)
{
	struct relay *r = (struct relay *)t;

	FIBER_TASK_BEGIN(t);
	for (;;) {
		FIBER_TASK_AWAIT(t, fiber_task_recv(t, r->in, &r->v));
		if (t->result)
			break;
		r->n++;
		FIBER_TASK_AWAIT(t, fiber_task_send(t, r->out, &r->v));
		check_eq(0, t->result);
	}
	check_eq(-EPIPE, t->result);
	check_eq(0, fiber_chan_close(r->out));
	FIBER_TASK_END(t);
}

enum { CHAIN = 50, VALUES = 300 };

static void *feeds(void *arg)
{
	for (uint64_t i = 0; i < VALUES; i++)
		check_eq(0, fiber_chan_send(arg, &i));
	check_eq(0, fiber_chan_close(arg));
	return NULL;
}

static void *chain(void *arg)
{
	static struct relay r[CHAIN];
	fiber_chan_t *ch[CHAIN + 1];
	uint64_t v;
	fiber_t *f;

	memset(r, 0, sizeof(r));
	all_ended = chan(0, 1);
	ended = CHAIN;
	for (int i = 0; i <= CHAIN; i++)
		ch[i] = chan(8, i % 3);
	for (int i = 0; i < CHAIN; i++) {
		r[i].in = ch[i];
		r[i].out = ch[i + 1];
		check_eq(0, fiber_task_start(&r[i].task, relays, count_end));
	}
	f = spawn(feeds, ch[0]);
	for (uint64_t i = 0; i < VALUES; i++) {
		check_eq(0, fiber_chan_recv(ch[CHAIN], &v));
		check_eq(i, v);
	}
	check_eq(-EPIPE, fiber_chan_recv(ch[CHAIN], &v));
	join(f);
	check_eq(0, fiber_chan_recv(all_ended, NULL));
	for (int i = 0; i <= CHAIN; i++)
		check_eq(0, fiber_chan_destroy(ch[i]));
	for (int i = 0; i < CHAIN; i++)
		check_eq(VALUES, r[i].n);
	check_eq(0, fiber_chan_destroy(all_ended));
	return arg;
}

TEST(chain_of_fifty)
{
	ASSERT_EQ(0, with_runtime(1, 0, chain, NULL));
	ASSERT_EQ(0, with_runtime(3, 200 * US, chain, NULL));
	EXPECT_EQ(0, failures);
}

/* ---- deadlines ---- */

struct hurried {
	fiber_task_t task;
	fiber_chan_t *ch;
	uint64_t v, deadline;
	uint32_t seed;
	int n, done, late;
	bool sends;
};

static uint64_t soon(struct hurried *h)
{
	return fiber_now() + next_random(&h->seed) % (20 * US);
}

static int hurries(fiber_task_t *t)
{
	struct hurried *h = (struct hurried *)t;

	FIBER_TASK_BEGIN(t);
	for (; h->n < 1000; h->n++) {
		if (h->sends)
			FIBER_TASK_AWAIT(t, fiber_task_send_until(t, h->ch,
							&h->n, soon(h)));
		else
			FIBER_TASK_AWAIT(t, fiber_task_recv_until(t, h->ch,
							&h->v, soon(h)));
		if (!t->result) {
			h->done++;
		} else {
			check_eq(-ETIMEDOUT, t->result);
			h->late++;
		}
	}
	FIBER_TASK_END(t);
}

static void *races(void *arg)
{
	static struct hurried h[8];
	int in = 0, out = 0, late = 0;
	fiber_chan_t *ch = chan(8, (size_t)arg);
	uint64_t v;

	memset(h, 0, sizeof(h));
	all_ended = chan(0, 1);
	ended = 8;
	for (int i = 0; i < 8; i++) {
		h[i].ch = ch;
		h[i].sends = i % 2;
		h[i].seed = i + 1;
		check_eq(0, fiber_task_start(&h[i].task, hurries, count_end));
	}
	check_eq(0, fiber_chan_recv(all_ended, NULL));
	for (int i = 0; i < 8; i++) {
		in += h[i].sends ? h[i].done : 0;
		out += h[i].sends ? 0 : h[i].done;
		late += h[i].late;
	}
	while (!fiber_chan_try_recv(ch, &v))
		out++;
	check_eq(in, out);
	figure("%d values passed, %d deadlines\n", in, late);
	check_eq(0, fiber_chan_destroy(ch));
	check_eq(0, fiber_chan_destroy(all_ended));
	return NULL;
}

TEST(value_or_deadline_never_both)
{
	ASSERT_EQ(0, with_runtime(1, 0, races, (void *)0));
	ASSERT_EQ(0, with_runtime(2, 0, races, (void *)0));
	ASSERT_EQ(0, with_runtime(3, 200 * US, races, (void *)3));
	EXPECT_EQ(0, failures);
}

static int sleeps(fiber_task_t *t)
{
	struct hurried *h = (struct hurried *)t;

	FIBER_TASK_BEGIN(t);
	for (; h->n < 5; h->n++) {
		h->deadline = fiber_now() + MS;
		FIBER_TASK_AWAIT(t, fiber_task_sleep_until(t, h->deadline));
		check_eq(0, t->result);
		check(fiber_now() >= h->deadline);
		FIBER_TASK_AWAIT(t, fiber_task_yield(t));
		check_eq(0, t->result);
		FIBER_TASK_AWAIT(t, fiber_task_sleep(t, 0));
		check_eq(0, t->result);
		h->deadline = fiber_now() + 100 * US;
		FIBER_TASK_AWAIT(t, fiber_task_recv_until(t, NULL, NULL,
							  h->deadline));
		check_eq(-ETIMEDOUT, t->result);
	}
	t->result = 0;
	FIBER_TASK_END(t);
}

static void *sleepers(void *arg)
{
	static struct hurried h[100];

	memset(h, 0, sizeof(h));
	all_ended = chan(0, 1);
	ended = 100;
	for (int i = 0; i < 100; i++)
		check_eq(0, fiber_task_start(&h[i].task, sleeps, count_end));
	check_eq(0, fiber_chan_recv(all_ended, NULL));
	check_eq(0, fiber_chan_destroy(all_ended));
	return arg;
}

TEST(tasks_sleep_and_yield)
{
	ASSERT_EQ(0, with_runtime(1, 0, sleepers, NULL));
	ASSERT_EQ(0, with_runtime(2, 0, sleepers, NULL));
	EXPECT_EQ(0, failures);
}

/* ---- futures ---- */

enum { PROMISES = 200, AWAITERS = 8 };

static fiber_future_t promised[PROMISES];

struct awaiter {
	fiber_task_t task;
	uint64_t sum;
	uint32_t seed;
	int i, late;
};

/* Every other one with deadlines, again and again until it has come. */
static int awaits(fiber_task_t *t)
{
	struct awaiter *a = (struct awaiter *)t;
	void *v;

	FIBER_TASK_BEGIN(t);
	for (; a->i < PROMISES; a->i++) {
		do {
			if (a->seed % 2)
				FIBER_TASK_AWAIT(t, fiber_task_future_wait(t,
						 &promised[a->i]));
			else
				FIBER_TASK_AWAIT(t, fiber_task_future_wait_until(t,
						 &promised[a->i], fiber_now() +
						 (a->seed += 1234) % 9000));
			a->late += t->result == -ETIMEDOUT;
		} while (t->result == -ETIMEDOUT);
		check_eq(0, t->result);
		check_eq(0, fiber_future_try_get(&promised[a->i], &v));
		a->sum += (uintptr_t)v;
	}
	FIBER_TASK_END(t);
}

static void *keeps_promises(void *arg)
{
	for (uintptr_t i = 0; i < PROMISES; i++) {
		if (fiber_self())
			fiber_yield();
		else
			usleep(10);
		check_eq(0, fiber_future_set(&promised[i], (void *)(i + 1)));
	}
	return arg;
}

static void *promises(void *arg)
{
	static struct awaiter a[AWAITERS];
	fiber_t *f = NULL;
	pthread_t t;
	int late = 0;

	memset(a, 0, sizeof(a));
	memset(promised, 0, sizeof(promised));
	all_ended = chan(0, 1);
	ended = AWAITERS;
	for (int i = 0; i < AWAITERS; i++) {
		a[i].seed = i;
		check_eq(0, fiber_task_start(&a[i].task, awaits, count_end));
	}
	if (arg)
		check_eq(0, pthread_create(&t, NULL, keeps_promises, NULL));
	else
		check_eq(0, fiber_spawn(&f, keeps_promises, NULL));
	check_eq(0, fiber_chan_recv(all_ended, NULL));
	check_eq(0, arg ? pthread_join(t, NULL) : fiber_join(f, NULL));
	for (int i = 0; i < AWAITERS; i++) {
		check_eq(PROMISES * (PROMISES + 1) / 2, (int)a[i].sum);
		late += a[i].late;
	}
	figure("%d deadlines came before a future\n", late);
	check_eq(0, fiber_chan_destroy(all_ended));
	return NULL;
}

TEST(tasks_await_futures)
{
	ASSERT_EQ(0, with_runtime(1, 0, promises, NULL));
	ASSERT_EQ(0, with_runtime(2, 0, promises, NULL));
	ASSERT_EQ(0, with_runtime(3, 200 * US, promises, (void *)1));
	EXPECT_EQ(0, failures);
}

/* ---- life ---- */

static int fails_at_once(fiber_task_t *t)
{
	(void)t;
	return -EIO;
}

static int restarts;

static void starts_anew(fiber_task_t *t)
{
	check_eq(-EIO, t->result);
	if (++restarts < 1000)
		check_eq(0, fiber_task_start(t, fails_at_once, starts_anew));
	else
		check_eq(0, fiber_chan_send(all_ended, NULL));
}

TEST(started_anew_by_its_end)
{
	fiber_task_t t;

	EXPECT_EQ(-EPERM, fiber_task_start(&t, fails_at_once, NULL));
	for (int i = 0; i < 3; i++) {
		ASSERT_EQ(0, start(2, 0));
		all_ended = chan(0, 1);
		restarts = 0;
		EXPECT_EQ(-EINVAL, fiber_task_start(NULL, fails_at_once, NULL));
		EXPECT_EQ(-EINVAL, fiber_task_start(&t, NULL, NULL));
		/* By a plain thread. */
		ASSERT_EQ(0, fiber_task_start(&t, fails_at_once, starts_anew));
		ASSERT_EQ(0, fiber_chan_recv(all_ended, NULL));
		ASSERT_EQ(1000, restarts);
		EXPECT_EQ(0, fiber_chan_destroy(all_ended));
		ASSERT_EQ(0, fiber_fini());
	}
	EXPECT_EQ(0, failures);
}

static fiber_chan_t *gate;

static int waits_at_the_gate(fiber_task_t *t)
{
	FIBER_TASK_BEGIN(t);
	FIBER_TASK_AWAIT(t, fiber_task_recv(t, gate, NULL));
	check_eq(-EPIPE, t->result);
	t->result = 0;
	FIBER_TASK_END(t);
}

static void *crowd(void *arg)
{
	size_t n = (size_t)arg;
	fiber_task_t *t = malloc(n * sizeof(*t));
	uint64_t t0, t1, t2;

	check(t != NULL);
	all_ended = chan(0, 1);
	gate = chan(0, 0);
	ended = (long)n;
	t0 = now_ns();
	for (size_t i = 0; i < n; i++)
		check_eq(0, fiber_task_start(&t[i], waits_at_the_gate,
					     count_end));
	t1 = now_ns();
	check_eq(0, fiber_chan_close(gate));
	check_eq(0, fiber_chan_recv(all_ended, NULL));
	t2 = now_ns();
	figure("%zu tasks of %zu bytes: started in %llu ms, all ended %llu ms later\n",
	       n, sizeof(*t), (unsigned long long)((t1 - t0) / MS),
	       (unsigned long long)((t2 - t1) / MS));
	check_eq(0, fiber_chan_destroy(gate));
	check_eq(0, fiber_chan_destroy(all_ended));
	free(t);
	return NULL;
}

TEST(a_million)
{
	size_t n = in_vm() ? 50000 : 1000000;

	ASSERT_EQ(0, with_runtime(2, 0, crowd, (void *)n));
	EXPECT_EQ(0, failures);
}

TEST(small)
{
	EXPECT_GT(200, sizeof(fiber_task_t));
}

TEST_HARNESS_MAIN
