// SPDX-License-Identifier: GPL-2.0-only
/*
 * Pools: fibers with processors of their own. Each runs its own fibers only, as many
 * at once as it has processors; hogs and blocked fibers of one hold up no other; and
 * all else goes across as if there were none.
 */
#include <dirent.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "common.h"

static atomic_int stop;

static fiber_pool_t *make(unsigned int processors)
{
	struct fiber_pool_attr a = {
		.size = sizeof(a), .processors = processors, .name = "apart",
	};
	fiber_pool_t *pool = NULL;

	check_eq(0, fiber_pool_create(&pool, &a));
	return pool;
}

static fiber_t *spawn_in(fiber_pool_t *pool, void *(*fn)(void *), void *arg)
{
	struct fiber_attr a = { .size = sizeof(a), .pool = pool };
	fiber_t *f = NULL;

	check_eq(0, fiber_spawn_attr(&f, &a, fn, arg));
	return f;
}

/* It may have one fiber that has been joined and is not counted as ended yet. */
static void end(fiber_pool_t *pool)
{
	int r = 0;

	check(until((r = fiber_pool_destroy(pool)) != -EBUSY));
	check_eq(0, r);
}

/* It never yields: only preemption lets others run. */
static void *hogs(void *arg)
{
	while (!atomic_load_explicit(&stop, memory_order_relaxed))
		;
	return arg;
}

/* ThreadSanitizer has some of its own, now and then. */
static bool threads_are(long n)
{
#ifdef FB_TSAN
	return thread_count() >= n;
#else
	return thread_count() == n;
#endif
}

/* No thread but this one, the carriers, a keeper, and maybe a monitor. */
static bool all_accounted_for(void)
{
	return threads_are((long)stats().carriers + 2 + !on_kernel());
}

/* ---- who runs where ---- */

static atomic_int runs_now, most_at_once;

/* As the only code that counts: nobody else of the pool is inside meanwhile. */
static void inside(void)
{
	int n = atomic_fetch_add(&runs_now, 1) + 1, most = most_at_once;

	while (n > most && !atomic_compare_exchange_weak(&most_at_once, &most, n))
		;
	for (int i = 0; i < 2000; i++)
		__asm__ volatile("pause");
	atomic_fetch_sub(&runs_now, 1);
}

/* Critical, so that a preempted fiber is not counted as one that runs. */
static void *counts(void *arg)
{
	for (int i = 0; i < 200; i++) {
		fiber_no_preempt_begin();
		inside();
		fiber_no_preempt_end();
		check(fiber_pool_self() == (fiber_pool_t *)arg);
		fiber_yield();
	}
	return arg;
}

static void *spawns_more(void *arg)
{
	fiber_t *f[4];

	check(fiber_pool_self() == (fiber_pool_t *)arg);
	for (int i = 0; i < 4; i++)
		f[i] = spawn(counts, arg);
	for (int i = 0; i < 4; i++)
		join(f[i]);
	return arg;
}

TEST(no_more_at_once_than_processors)
{
	fiber_pool_t *pool;
	fiber_t *f[4];

	ASSERT_EQ(0, start(3, 1 * MS));
	EXPECT_EQ(3, stats().processors);
	pool = make(1);
	EXPECT_EQ(4, stats().processors);
	for (int i = 0; i < 4; i++)
		f[i] = spawn_in(pool, i % 2 ? counts : spawns_more, pool);
	for (int i = 0; i < 4; i++)
		join(f[i]);
	EXPECT_EQ(1, most_at_once);
	EXPECT_EQ(0, runs_now);
	end(pool);
	EXPECT_EQ(3, stats().processors);
	EXPECT_EQ(0, fini_soon());
	EXPECT_EQ(0, failures);
}

/* ---- hogs, and blocked fibers, on one side ---- */

FIXTURE(apart) {
	fiber_pool_t *pool, *ours, *others;
	fiber_t *hog[8];
};

/* Who is measured, in which of the two, and what fills the other. */
FIXTURE_VARIANT(apart) {
	bool in_pool;
	bool blocks;
};

FIXTURE_VARIANT_ADD(apart, pool_beside_hogs) { .in_pool = true };
FIXTURE_VARIANT_ADD(apart, default_beside_hogs) { .in_pool = false };
FIXTURE_VARIANT_ADD(apart, pool_beside_blocked) { .in_pool = true, .blocks = true };
FIXTURE_VARIANT_ADD(apart, default_beside_blocked) { .blocks = true };

static int never[2];			/* a pipe that says nothing, till the end */

static void *blocks(void *arg)
{
	char c;

	check_eq(0, read(never[0], &c, 1));
	return arg;
}

FIXTURE_SETUP(apart)
{
	ASSERT_EQ(0, pipe2(never, O_CLOEXEC));
	/* A quantum that would be seen, if one had to wait for it. */
	ASSERT_EQ(0, start(1, 200 * MS));
	self->pool = make(1);
	self->ours = variant->in_pool ? self->pool : FIBER_POOL_DEFAULT;
	self->others = variant->in_pool ? FIBER_POOL_DEFAULT : self->pool;
	for (int i = 0; i < 8; i++)
		self->hog[i] = spawn_in(self->others,
					variant->blocks ? blocks : hogs, NULL);
}

FIXTURE_TEARDOWN(apart)
{
	atomic_store(&stop, 1);
	close(never[1]);
	for (int i = 0; i < 8; i++)
		join(self->hog[i]);
	end(self->pool);
	EXPECT_EQ(0, fini_soon());
	EXPECT_EQ(0, failures);
}

static fiber_chan_t *there, *back;
enum { TRIPS = 1000 };

static void *echoes(void *arg)
{
	long v;

	while (!fiber_chan_recv(there, &v))
		check_eq(0, fiber_chan_send(back, &v));
	return arg;
}

/* How long TRIPS round trips take. */
static void *asks(void *arg)
{
	fiber_t *f = spawn(echoes, NULL);
	uint64_t from = now_ns();
	long v;

	for (long i = 0; i < TRIPS; i++) {
		check_eq(0, fiber_chan_send(there, &i));
		check_eq(0, fiber_chan_recv(back, &v));
		check_eq(i, v);
	}
	*(uint64_t *)arg = now_ns() - from;
	check_eq(0, fiber_chan_close(there));
	join(f);
	return NULL;
}

TEST_F(apart, ping_pong_goes_on)
{
	uint64_t ns = 0;

	ASSERT_EQ(0, fiber_chan_create(&there, sizeof(long), 0));
	ASSERT_EQ(0, fiber_chan_create(&back, sizeof(long), 0));
	join(spawn_in(self->ours, asks, &ns));
	/* With one quantum of a hog in each trip it would be 200 s. */
	EXPECT_LT(ns, 4 * SEC * allowance());
	figure("pool %d trips: %lu us\n", TRIPS, ns / US);
	EXPECT_EQ(0, fiber_chan_destroy(there));
	EXPECT_EQ(0, fiber_chan_destroy(back));
}

static void *sleeps(void *arg)
{
	uint64_t from = now_ns(), *most = arg, ns;

	for (int i = 0; i < 20; i++) {
		from = now_ns();
		check_eq(0, fiber_sleep(1 * MS));
		ns = now_ns() - from;
		*most = ns > *most ? ns : *most;
	}
	return NULL;
}

static uint64_t bound(void)
{
	return 150 * MS * allowance();
}

/* The other pool's hogs run a quantum of 200 ms each, eight of them. */
TEST_F(apart, timers_are_in_time)
{
	uint64_t most = 0;

	join(spawn_in(self->ours, sleeps, &most));
	EXPECT_LT(most, bound());
	figure("pool latest timer of 20: %lu us\n", most / US);
}

static void *naps(void *arg)
{
	uint64_t from, *most = arg, ns;

	for (int i = 0; i < 20; i++) {
		from = now_ns();
		block_ns(5 * MS);
		ns = now_ns() - from;
		*most = ns > *most ? ns : *most;
	}
	return NULL;
}

static void *yields(void *arg)
{
	while (!atomic_load_explicit(&stop, memory_order_relaxed))
		fiber_yield();
	return arg;
}

/* It comes back from blocks, to a processor that others of its pool use meanwhile. */
TEST_F(apart, returner_gets_its_own)
{
	fiber_t *f = spawn_in(self->ours, yields, NULL);
	uint64_t most = 0;

	join(spawn_in(self->ours, naps, &most));
	EXPECT_LT(most, bound());
	figure("pool longest nap of 5 ms: %lu us\n", most / US);
	atomic_store(&stop, 1);
	join(f);
}


static int socks[2];

static void *receives(void *arg)
{
	uint64_t *most = arg, ns, sent;

	while (fiber_read(socks[0], &sent, sizeof(sent)) == sizeof(sent)) {
		ns = now_ns() - sent;
		*most = ns > *most ? ns : *most;
	}
	return NULL;
}

/* A plain thread sends; the pool sees it by its own look, not by one of the hogs. */
TEST_F(apart, io_is_in_time)
{
	uint64_t most = 0, now;
	fiber_t *f;

	ASSERT_EQ(0, socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, socks));
	f = spawn_in(self->ours, receives, &most);
	for (int i = 0; i < 20; i++) {
		block_ns(5 * MS);
		now = now_ns();
		ASSERT_EQ(sizeof(now), write(socks[1], &now, sizeof(now)));
	}
	close(socks[1]);
	join(f);
	close(socks[0]);
	EXPECT_LT(most, bound());
	figure("pool latest read of 20: %lu us\n", most / US);
}


/* ---- across ---- */

static fiber_pool_t *two[2];

/* In each direction: whoever waits, and whoever makes it ready, are in other pools. */
FIXTURE(across) {
	fiber_pool_t *here, *beyond;
};

FIXTURE_VARIANT(across) {
	int here, beyond;		/* of two[], or -1: the default pool */
	unsigned int processors;	/* of that one */
};

FIXTURE_VARIANT_ADD(across, out) { .here = -1, .beyond = 0, .processors = 1 };
FIXTURE_VARIANT_ADD(across, in) { .here = 0, .beyond = -1, .processors = 2 };
FIXTURE_VARIANT_ADD(across, between) { .here = 0, .beyond = 1, .processors = 1 };

static fiber_pool_t *which(int i)
{
	return i < 0 ? FIBER_POOL_DEFAULT : two[i];
}

FIXTURE_SETUP(across)
{
	ASSERT_EQ(0, start(variant->processors, 1 * MS));
	two[0] = make(2);
	two[1] = make(1);
	self->here = which(variant->here);
	self->beyond = which(variant->beyond);
}

FIXTURE_TEARDOWN(across)
{
	end(two[0]);
	end(two[1]);
	EXPECT_EQ(0, fini_soon());
	EXPECT_EQ(0, failures);
}

struct both {
	fiber_pool_t *here, *beyond;
	void *(*fn)(struct both *b);
};

static void *calls_it(void *arg)
{
	struct both *b = arg;

	check(fiber_pool_self() == b->here);
	b->fn(b);
	check(fiber_pool_self() == b->here);
	return NULL;
}

/* fn in a fiber of `here`. */
#define in_here(f) do { \
	struct both b_ = { self->here, self->beyond, f }; \
	join(spawn_in(self->here, calls_it, &b_)); \
} while (0)

static void *echoes_until(void *arg)
{
	long v;

	check(fiber_pool_self() == (fiber_pool_t *)arg);
	while (!fiber_chan_recv(there, &v))
		check_eq(0, fiber_chan_send(back, &v));
	return arg;
}

static void *hops(struct both *b)
{
	for (size_t cap = 0; cap < 3; cap++) {
		fiber_t *f;
		long v;

		check_eq(0, fiber_chan_create(&there, sizeof(long), cap));
		check_eq(0, fiber_chan_create(&back, sizeof(long), cap));
		f = spawn_in(b->beyond, echoes_until, b->beyond);
		for (long i = 0; i < 500; i++) {
			check_eq(0, fiber_chan_send(there, &i));
			check_eq(0, fiber_chan_recv(back, &v));
			check_eq(i, v);
		}
		check_eq(0, fiber_chan_close(there));
		check(join(f) == b->beyond);
		check_eq(0, fiber_chan_destroy(there));
		check_eq(0, fiber_chan_destroy(back));
	}
	return NULL;
}

TEST_F(across, channels)
{
	in_here(hops);
}

static fiber_mutex_t mutex = FIBER_MUTEX_INIT;
static long guarded;

static void *counts_up(void *arg)
{
	for (int i = 0; i < 2000; i++) {
		check_eq(0, fiber_mutex_lock(&mutex));
		guarded++;
		if (i % 64 == 0)
			fiber_yield();
		check_eq(0, fiber_mutex_unlock(&mutex));
	}
	return arg;
}

static void *shares_mutex(struct both *b)
{
	fiber_t *f[4];

	for (int i = 0; i < 4; i++)
		f[i] = spawn_in(i % 2 ? b->here : b->beyond, counts_up, NULL);
	counts_up(NULL);
	for (int i = 0; i < 4; i++)
		join(f[i]);
	check_eq(5 * 2000, guarded);
	return NULL;
}

TEST_F(across, mutex)
{
	in_here(shares_mutex);
}

/* With nobody spawned here: its parent goes on at once, the child beyond. */
static void *is_there(void *arg)
{
	check(fiber_pool_self() == (fiber_pool_t *)arg);
	return fiber_self();
}

static void *joins(struct both *b)
{
	uint64_t id[64];

	for (int i = 0; i < 64; i++) {
		fiber_t *f = spawn_in(i % 2 ? b->here : b->beyond, is_there,
				      i % 2 ? b->here : b->beyond);

		id[i] = fiber_id(f);
		for (int k = 0; k < i; k++)
			check(id[k] != id[i]);
		check(join(f) == f);
	}
	return NULL;
}

TEST_F(across, join_and_numbers)
{
	in_here(joins);
}

/* Who is elsewhere cannot be switched to: -EAGAIN, and both go on. */
static void *yields_to(struct both *b)
{
	fiber_t *f;
	long n = 0;

	check_eq(0, fiber_chan_create(&there, 0, 0));
	f = spawn_in(b->beyond, is_there, b->beyond);
	for (int i = 0; i < 100; i++)
		check_eq(-EAGAIN, fiber_yield_to(f));
	join(f);
	check_eq(0, fiber_chan_destroy(there));
	return (void *)n;
}

TEST_F(across, yield_to)
{
	in_here(yields_to);
}

static int waits_for_ever(void *arg)
{
	check(fiber_pool_self() == (fiber_pool_t *)arg);
	check_eq(-ECANCELED, fiber_sleep_until(UINT64_MAX));
	check_eq(-ECANCELED, fiber_chan_recv(NULL, NULL));
	return 0;
}

static void *cancels(struct both *b)
{
	struct fiber_attr a = { .size = sizeof(a), .pool = b->beyond };
	fiber_scope_t s;

	check_eq(0, fiber_scope_open(&s, NULL));
	for (int i = 0; i < 8; i++)
		check_eq(0, fiber_scope_spawn_attr(&s, &a, waits_for_ever,
						   b->beyond));
	check_eq(0, fiber_sleep(2 * MS));
	fiber_scope_cancel(&s, 0);
	check_eq(-ECANCELED, fiber_scope_close(&s));
	return NULL;
}

TEST_F(across, scope_and_cancel)
{
	in_here(cancels);
}

static fiber_future_t future;

static void *sets(void *arg)
{
	fiber_sleep(1 * MS);
	check_eq(0, fiber_future_set(&future, arg));
	return arg;
}

static void *waits_future(struct both *b)
{
	void *value = NULL;
	fiber_t *f;

	fiber_future_init(&future);
	f = spawn_in(b->beyond, sets, b);
	check_eq(0, fiber_future_get(&future, &value));
	check(value == b);
	join(f);
	return NULL;
}

TEST_F(across, future)
{
	in_here(waits_future);
}

static void *sends_one(void *arg)
{
	long v = 7;

	fiber_sleep(1 * MS);
	check_eq(0, fiber_chan_send(arg, &v));
	return arg;
}

static void *selects(struct both *b)
{
	for (int i = 0; i < 20; i++) {
		fiber_chan_t *ch[2];
		long v = 0;
		fiber_t *f;

		for (int k = 0; k < 2; k++)
			check_eq(0, fiber_chan_create(&ch[k], sizeof(long), 0));
		struct fiber_case c[] = {
			FIBER_RECV(ch[0], &v), FIBER_RECV(ch[1], &v),
		};
		f = spawn_in(b->beyond, sends_one, ch[i % 2]);
		check_eq(i % 2, fiber_select(c, 2, now_ns() + 10 * SEC));
		check_eq(7, v);
		join(f);
		for (int k = 0; k < 2; k++)
			check_eq(0, fiber_chan_destroy(ch[k]));
	}
	return NULL;
}

TEST_F(across, select)
{
	in_here(selects);
}

static int pair[2];

static void *answers(void *arg)
{
	char c;

	while (fiber_read(pair[1], &c, 1) == 1)
		check_eq(1, fiber_write(pair[1], &c, 1));
	return arg;
}

static void *talks(struct both *b)
{
	fiber_t *f;
	char c = 'x';

	check_eq(0, socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair));
	f = spawn_in(b->beyond, answers, NULL);
	for (int i = 0; i < 300; i++) {
		check_eq(1, fiber_write(pair[0], &c, 1));
		check_eq(1, fiber_read(pair[0], &c, 1));
	}
	check_eq(0, shutdown(pair[0], SHUT_WR));
	join(f);
	close(pair[0]);
	close(pair[1]);
	return NULL;
}

TEST_F(across, io)
{
	in_here(talks);
}

static atomic_int ticked;

static void ticks(void *arg, uint64_t n)
{
	check(fiber_pool_self() == FIBER_POOL_DEFAULT);
	atomic_fetch_add(&ticked, (int)n);
	check_eq(0, fiber_chan_send(arg, NULL));
}

static void *has_timer(struct both *b)
{
	fiber_timer_t *t;

	check_eq(0, fiber_chan_create(&there, 0, 1));
	check_eq(0, fiber_timer_create(&t, ticks, there));
	for (int i = 0; i < 10; i++) {
		check_eq(0, fiber_timer_start(t, now_ns() + 1 * MS, 0));
		check_eq(0, fiber_chan_recv(there, NULL));
	}
	check_eq(0, fiber_timer_start(t, now_ns() + 1000 * SEC, 0));
	check_eq(0, fiber_timer_destroy(t));
	check_eq(10, ticked);
	check_eq(0, fiber_chan_destroy(there));
	return b;
}

TEST_F(across, timer)
{
	in_here(has_timer);
}

static int runs_as_task(fiber_task_t *t)
{
	check(fiber_pool_self() == FIBER_POOL_DEFAULT);
	atomic_fetch_add(&ticked, 1);
	return 0;
}

static void *has_task(struct both *b)
{
	fiber_task_t t;

	check_eq(0, fiber_task_start(&t, runs_as_task, NULL));
	while (!atomic_load(&ticked))
		fiber_sleep(100 * US);
	return b;
}

TEST_F(across, task)
{
	in_here(has_task);
}

/* A plain thread waits for, and wakes, fibers of pools. */
TEST_F(across, plain_thread)
{
	fiber_t *f;
	long v;

	ASSERT_EQ(0, fiber_chan_create(&there, sizeof(long), 0));
	ASSERT_EQ(0, fiber_chan_create(&back, sizeof(long), 0));
	EXPECT_EQ(NULL, fiber_pool_self());
	f = spawn_in(self->beyond, echoes_until, self->beyond);
	for (long i = 0; i < 200; i++) {
		ASSERT_EQ(0, fiber_chan_send(there, &i));
		ASSERT_EQ(0, fiber_chan_recv(back, &v));
		ASSERT_EQ(i, v);
	}
	ASSERT_EQ(0, fiber_chan_close(there));
	join(f);
}

static void *locks(void *arg)
{
	int tid;

	check_eq(0, fiber_thread_lock());
	tid = gettid();
	for (int i = 0; i < 20; i++) {
		fiber_sleep(100 * US);
		check_eq(tid, gettid());
	}
	check_eq(0, fiber_thread_unlock());
	return arg;
}

static void *latency(void *arg)
{
	check_eq(FIBER_NORMAL, fiber_set_class(FIBER_LATENCY));
	return echoes_until(arg);
}

static void *odd_ones(struct both *b)
{
	struct fiber_attr a = {
		.size = sizeof(a), .pool = b->beyond, .flags = FIBER_ATTR_TIMES,
	};
	struct fiber_times t = { .size = sizeof(t) };
	fiber_t *f[3];
	long v;

	check_eq(0, fiber_chan_create(&there, sizeof(long), 0));
	check_eq(0, fiber_chan_create(&back, sizeof(long), 0));
	f[0] = spawn_in(b->beyond, latency, b->beyond);
	f[1] = spawn_in(b->beyond, locks, NULL);
	check_eq(0, fiber_spawn_attr(&f[2], &a, echoes_until, b->beyond));
	for (long i = 0; i < 200; i++) {
		check_eq(0, fiber_chan_send(there, &i));
		check_eq(0, fiber_chan_recv(back, &v));
	}
	check_eq(0, fiber_chan_close(there));
	check_eq(0, fiber_times(f[2], &t));
	check(t.run_ns > 0);
	for (int i = 0; i < 3; i++)
		join(f[i]);
	check_eq(0, fiber_chan_destroy(there));
	check_eq(0, fiber_chan_destroy(back));
	return NULL;
}

TEST_F(across, locked_latency_and_times)
{
	in_here(odd_ones);
}

/* ---- come and go ---- */

static int descriptors(void)
{
	DIR *d = opendir("/proc/self/fd");
	int n = 0;

	while (d && readdir(d))
		n++;
	if (d)
		closedir(d);
	return n;
}

static void *nothing(void *arg)
{
	return arg;
}

static void *makes_and_ends(void *arg)
{
	fiber_pool_t *pool = make(1 + (uintptr_t)arg % 3);

	for (int i = 0; i < 4; i++)
		join(spawn_in(pool, nothing, NULL));
	end(pool);
	return arg;
}

TEST(create_and_destroy_leave_nothing)
{
	long fds;

	ASSERT_EQ(0, start(2, 0));
	join(spawn(makes_and_ends, NULL));
	makes_and_ends(NULL);
	fds = descriptors();
	EXPECT_TRUE(until(all_accounted_for()));
	for (uintptr_t i = 0; i < 30; i++)
		if (i % 2)
			join(spawn(makes_and_ends, (void *)i));
		else
			makes_and_ends((void *)i);
	EXPECT_EQ(fds, descriptors());
	EXPECT_TRUE(until(all_accounted_for()));
	EXPECT_EQ(2, stats().processors);
	EXPECT_EQ(0, fini_soon());
	EXPECT_TRUE(until(threads_are(1)));
	EXPECT_EQ(0, failures);
}

static void *waits(void *arg)
{
	check_eq(-EPIPE, fiber_chan_recv(there, NULL));
	return arg;
}

static void *ends_own(void *arg)
{
	check_eq(-EBUSY, fiber_pool_destroy(arg));
	return arg;
}

TEST(destroy_with_fibers_is_busy)
{
	fiber_pool_t *pool;
	fiber_t *f;

	ASSERT_EQ(0, start(1, 0));
	ASSERT_EQ(0, fiber_chan_create(&there, 0, 0));
	pool = make(1);
	f = spawn_in(pool, waits, NULL);
	for (int i = 0; i < 100; i++)
		EXPECT_EQ(-EBUSY, fiber_pool_destroy(pool));
	join(spawn_in(pool, ends_own, pool));
	EXPECT_EQ(0, fiber_chan_close(there));
	join(f);
	end(pool);
	EXPECT_EQ(-EINVAL, fiber_pool_destroy(pool));
	EXPECT_EQ(-EINVAL, fiber_pool_destroy(FIBER_POOL_DEFAULT));
	EXPECT_EQ(0, fiber_pool_destroy(NULL));
	EXPECT_EQ(0, fini_soon());
	EXPECT_EQ(0, failures);
}

TEST(wrong_values)
{
	struct fiber_pool_attr a = { .size = sizeof(a), .processors = 1025 };
	struct fiber_attr in = { .size = sizeof(in) };
	fiber_pool_t *pool = NULL;
	fiber_t *f = NULL;
	long fds;

	EXPECT_EQ(-EPERM, fiber_pool_create(&pool, NULL));
	EXPECT_EQ(NULL, fiber_pool_self());
	ASSERT_EQ(0, start(2, 0));
	fds = descriptors();
	EXPECT_EQ(-EINVAL, fiber_pool_create(NULL, NULL));
	EXPECT_EQ(-EINVAL, fiber_pool_create(&pool, &a));
	a.processors = 1023;		/* and two of the default pool */
	EXPECT_EQ(-EAGAIN, fiber_pool_create(&pool, &a));
	a.size = 0;
	EXPECT_EQ(-EINVAL, fiber_pool_create(&pool, &a));
	EXPECT_EQ(NULL, pool);
	EXPECT_TRUE(until(all_accounted_for()));
	EXPECT_EQ(fds, descriptors());
	/* An older program's struct, without a pool. */
	ASSERT_EQ(0, fiber_pool_create(&pool, NULL));
	in.pool = pool;
	in.size = offsetof(struct fiber_attr, pool);
	ASSERT_EQ(0, fiber_spawn_attr(&f, &in, is_there, FIBER_POOL_DEFAULT));
	join(f);
	end(pool);
	in.size = sizeof(in);
	EXPECT_EQ(-EINVAL, fiber_spawn_attr(&f, &in, nothing, NULL));
	EXPECT_EQ(0, fini_soon());
	EXPECT_EQ(0, failures);
}

/* No thread can be had: all is as it was. */
TEST(create_without_threads)
{
	struct fiber_pool_attr a = { .size = sizeof(a), .processors = 4 };
	struct rlimit old, none = { 1, 1 };
	fiber_pool_t *pool = NULL;
	long fds;

	if (!geteuid())
		SKIP(return, "a limit of threads does not hold for root");
	ASSERT_EQ(0, start(1, 0));
	fds = descriptors();
	ASSERT_EQ(0, getrlimit(RLIMIT_NPROC, &old));
	none.rlim_max = old.rlim_max;
	ASSERT_EQ(0, setrlimit(RLIMIT_NPROC, &none));
	EXPECT_EQ(-EAGAIN, fiber_pool_create(&pool, &a));
	ASSERT_EQ(0, setrlimit(RLIMIT_NPROC, &old));
	EXPECT_EQ(NULL, pool);
	EXPECT_EQ(fds, descriptors());
	ASSERT_EQ(0, fiber_pool_create(&pool, &a));
	join(spawn_in(pool, is_there, pool));
	end(pool);
	EXPECT_EQ(0, fini_soon());
}

/* No descriptor, which the kernel backend needs: the same. */
TEST(create_without_descriptors)
{
	struct rlimit old, none;
	fiber_pool_t *pool = NULL;

	ASSERT_EQ(0, start(1, 0));
	if (!on_kernel())
		SKIP(return, "the user backend needs none");
	ASSERT_EQ(0, getrlimit(RLIMIT_NOFILE, &old));
	none = old;
	none.rlim_cur = 3;
	ASSERT_EQ(0, setrlimit(RLIMIT_NOFILE, &none));
	EXPECT_EQ(-EMFILE, fiber_pool_create(&pool, NULL));
	ASSERT_EQ(0, setrlimit(RLIMIT_NOFILE, &old));
	EXPECT_EQ(NULL, pool);
	EXPECT_TRUE(until(all_accounted_for()));
	ASSERT_EQ(0, fiber_pool_create(&pool, NULL));
	join(spawn_in(pool, is_there, pool));
	end(pool);
	EXPECT_EQ(0, fini_soon());
}

#ifdef FB_TSAN
#define MANY	20			/* it is slow with threads */
#else
#define MANY	255
#endif

TEST(as_many_as_there_can_be)
{
	struct fiber_pool_attr a = { .size = sizeof(a), .max_carriers = 2 };
	fiber_pool_t *pool[256];
	int n = 0;

	ASSERT_EQ(0, start(1, 0));
	while (n < MANY && !fiber_pool_create(&pool[n], &a))
		n++;
	EXPECT_EQ(MANY, n);
	EXPECT_EQ(MANY + 1, stats().processors);
	if (MANY == 255)
		EXPECT_EQ(-EAGAIN, fiber_pool_create(&pool[255], &a));
	for (int i = 0; i < n; i += 50)
		join(spawn_in(pool[i], is_there, pool[i]));
	end(pool[10]);
	ASSERT_EQ(0, fiber_pool_create(&pool[10], &a));
	join(spawn_in(pool[10], is_there, pool[10]));
	EXPECT_EQ(0, fini_soon());
	EXPECT_TRUE(until(threads_are(1)));
	EXPECT_EQ(0, failures);
}

/* Each block needs a thread of the pool's own: its cap holds for it alone. */
TEST(more_blocked_than_processors)
{
	struct fiber_pool_attr a = {
		.size = sizeof(a), .processors = 1, .max_carriers = 4,
	};
	fiber_t *blocked[8], *others[8];
	fiber_pool_t *pool;

	ASSERT_EQ(0, pipe2(never, O_CLOEXEC));
	ASSERT_EQ(0, start(1, 1 * MS));
	ASSERT_EQ(0, fiber_pool_create(&pool, &a));
	for (int i = 0; i < 8; i++)
		blocked[i] = spawn_in(pool, blocks, NULL);
	for (int i = 0; i < 8; i++)
		others[i] = spawn_in(FIBER_POOL_DEFAULT, blocks, NULL);
	/* All in the default pool get on; of the pool, as many as it has threads. */
	join(spawn(nothing, NULL));
	close(never[1]);
	for (int i = 0; i < 8; i++) {
		join(blocked[i]);
		join(others[i]);
	}
	end(pool);
	EXPECT_EQ(0, fini_soon());
	EXPECT_EQ(0, failures);
}

/* Several at once, while others spawn into what is there. */
static void *churns(void *arg)
{
	for (uintptr_t i = 0; i < 10; i++)
		makes_and_ends((void *)(i + (uintptr_t)arg));
	return arg;
}

TEST(several_make_and_end)
{
	pthread_t thread;
	fiber_t *f[3];

	ASSERT_EQ(0, start(2, 1 * MS));
	ASSERT_EQ(0, pthread_create(&thread, NULL, churns, NULL));
	for (uintptr_t i = 0; i < 3; i++)
		f[i] = spawn(churns, (void *)i);
	for (int i = 0; i < 3; i++)
		join(f[i]);
	ASSERT_EQ(0, pthread_join(thread, NULL));
	EXPECT_EQ(0, fini_soon());
	EXPECT_TRUE(until(threads_are(1)));
	EXPECT_EQ(0, failures);
}

/* ---- the end ---- */

TEST(fini_ends_pools)
{
	long fds = descriptors();

	for (int i = 0; i < 3; i++) {
		ASSERT_EQ(0, start(2, 0));
		two[0] = make(2);
		two[1] = make(1);
		join(spawn_in(two[0], is_there, two[0]));
		join(spawn_in(two[1], is_there, two[1]));
		EXPECT_EQ(0, fini_soon());
		EXPECT_TRUE(until(threads_are(1)));
		EXPECT_EQ(-EPERM, fiber_pool_destroy(two[0]));
	}
	EXPECT_EQ(fds, descriptors());
	EXPECT_EQ(0, failures);
}

static int main_in_pools(void *arg)
{
	check(fiber_pool_self() == FIBER_POOL_DEFAULT);
	two[0] = make(1);
	join(spawn_in(two[0], is_there, two[0]));
	return 3;
}

TEST(fiber_run_ends_pools)
{
	clean_environment();
	EXPECT_EQ(3, fiber_run(main_in_pools, NULL));
	EXPECT_TRUE(until(threads_are(1)));
	EXPECT_EQ(0, failures);
}

static void *forks(void *arg)
{
	int status;
	pid_t pid = fork();

	if (!pid)
		_exit(fiber_pool_create(&two[0], NULL) == -EPERM &&
		      fiber_pool_destroy(arg) == -EPERM &&
		      !fiber_pool_self() ? 0 : 1);
	check_eq(pid, waitpid(pid, &status, 0));
	check_eq(0, status);
	return arg;
}

TEST(child_of_fork)
{
	fiber_pool_t *pool;

	ASSERT_EQ(0, start(1, 0));
	pool = make(1);
	forks(pool);
	join(spawn_in(pool, forks, pool));
	join(spawn(forks, pool));
	end(pool);
	EXPECT_EQ(0, fini_soon());
	EXPECT_EQ(0, failures);
}

static void *exits(void *arg)
{
	exit(*(int *)arg);
}

/* The process ends while pools are busy. */
TEST(exit_in_a_pool)
{
	int status, code = 5;
	pid_t pid = fork();

	if (!pid) {
		if (start(1, 1 * MS))
			_exit(1);
		two[0] = make(2);
		for (int i = 0; i < 4; i++)
			spawn_in(i % 2 ? two[0] : FIBER_POOL_DEFAULT, hogs, NULL);
		join(spawn_in(two[0], exits, &code));
		_exit(2);
	}
	ASSERT_EQ(pid, waitpid(pid, &status, 0));
	EXPECT_EQ(5 << 8, status);
}

/* ---- seeded, checked ---- */

static void *deeper(void *arg)
{
	check(fiber_pool_self() == (fiber_pool_t *)arg);
	join(spawn(is_there, arg));
	join(spawn_in(FIBER_POOL_DEFAULT, is_there, FIBER_POOL_DEFAULT));
	return arg;
}

static void *in_seeded(void *arg)
{
	fiber_pool_t *pool = make(4);

	check_eq(1, stats().processors);
	for (int i = 0; i < 10; i++)
		join(spawn_in(pool, deeper, pool));
	check_eq(0, fiber_chan_create(&there, 0, 0));
	fiber_t *f = spawn_in(pool, waits, NULL);
	check_eq(-EBUSY, fiber_pool_destroy(pool));
	check_eq(0, fiber_chan_close(there));
	join(f);
	check_eq(0, fiber_pool_destroy(pool));
	return arg;
}

TEST(with_a_seed)
{
	struct fiber_config cfg = { .size = sizeof(cfg), .seed = 7 };

	clean_environment();
	ASSERT_EQ(0, fiber_init(&cfg));
	join(spawn(in_seeded, NULL));
	EXPECT_EQ(0, fini_soon());
	EXPECT_EQ(0, failures);
}

TEST(checked)
{
	setenv("FIBER_CHECK", "1", 1);
	ASSERT_EQ(0, start(1, 1 * MS));
	two[0] = make(1);
	struct both b = { FIBER_POOL_DEFAULT, two[0], NULL };
	join(spawn(nothing, NULL));
	shares_mutex(&b);
	hops(&b);
	end(two[0]);
	EXPECT_EQ(0, fini_soon());
	EXPECT_EQ(0, failures);
}

/* ---- seen ---- */

/* What programs were built with before pools stays where it was. */
struct old_info {
	size_t size;
	uint64_t id;
	char name[16];
	uint32_t library, state;
	const char *state_name, *why;
	uint64_t for_ns;
	size_t stack_used, stack_bytes;
	void *(*entry)(void *);
	void *sp, *bp, *ip;
	int tid, locked_tid;
	const void *object;
	uint64_t owner;
	char owner_name[16];
};
_Static_assert(offsetof(struct fiber_info, owner_name) ==
	       offsetof(struct old_info, owner_name), "old callers");
_Static_assert(offsetof(struct fiber_info, pool) == sizeof(struct old_info),
	       "new members are at the end");

static int sees(const struct fiber_info *i, void *arg)
{
	int *n = arg;

	check_eq((long)sizeof(*i), (long)i->size);
	n[0]++;
	n[1] += i->state == FIBER_PARKED && !strcmp(i->why, "receive");
	return 0;
}

/* Which pool each is said to be of: of the default one, two[0], two[1]. */
static int counts_pools(const struct fiber_info *i, void *arg)
{
	int *n = arg;

	if (i->pool == FIBER_POOL_DEFAULT && !i->pool_name[0])
		n[0]++;
	else if (i->pool == two[0] && !strcmp(i->pool_name, "fifteen bytes l"))
		n[1]++;
	else if (i->pool == two[1] && !strcmp(i->pool_name, "pool 2"))
		n[2]++;
	else
		n[3]++;
	return 0;
}

static char *dumped(void)
{
	static char text[8192];
	FILE *file = tmpfile();
	size_t n = 0;

	check(file != NULL);
	if (file && !fiber_dump(fileno(file))) {
		rewind(file);
		n = fread(text, 1, sizeof(text) - 1, file);
	}
	text[n] = 0;
	if (file)
		fclose(file);
	return text;
}

TEST(pools_have_names)
{
	struct fiber_pool_attr a = {
		.size = sizeof(a), .name = "fifteen bytes long",
	};
	int n[4] = { 0, 0, 0, 0 };
	fiber_t *f[6];
	char *text;

	ASSERT_EQ(0, start(1, 0));
	ASSERT_EQ(0, fiber_chan_create(&there, 0, 0));
	ASSERT_EQ(0, fiber_pool_create(&two[0], &a));
	/* An older program's struct: the name is not looked at. */
	a.size = offsetof(struct fiber_pool_attr, name);
	ASSERT_EQ(0, fiber_pool_create(&two[1], &a));
	for (int i = 0; i < 6; i++)
		f[i] = spawn_in(i == 0 ? FIBER_POOL_DEFAULT : two[i > 2], waits,
				NULL);
	EXPECT_EQ(0, fiber_walk(counts_pools, n));
	EXPECT_EQ(1, n[0]);
	EXPECT_EQ(2, n[1]);
	EXPECT_EQ(3, n[2]);
	EXPECT_EQ(0, n[3]);
	text = dumped();
	EXPECT_TRUE(strstr(text, " in pool \"fifteen bytes l\": ") != NULL);
	EXPECT_TRUE(strstr(text, " in pool \"pool 2\": ") != NULL);
	EXPECT_EQ(0, fiber_chan_close(there));
	for (int i = 0; i < 6; i++)
		join(f[i]);
	end(two[0]);
	end(two[1]);
	/* Nobody has one: nothing is said of any. */
	f[0] = spawn_in(FIBER_POOL_DEFAULT, waits, NULL);
	EXPECT_TRUE(strstr(dumped(), "pool") == NULL);
	join(f[0]);
	EXPECT_EQ(0, fini_soon());
	EXPECT_EQ(0, failures);
}

TEST(walk_sees_all)
{
	int n[2] = { 0, 0 };
	fiber_t *f[2];

	ASSERT_EQ(0, start(1, 0));
	two[0] = make(1);
	ASSERT_EQ(0, fiber_chan_create(&there, 0, 0));
	f[0] = spawn_in(two[0], waits, NULL);
	f[1] = spawn_in(FIBER_POOL_DEFAULT, waits, NULL);
	EXPECT_TRUE(until((n[0] = n[1] = 0, fiber_walk(sees, n), n[1] == 2)));
	EXPECT_EQ(2, n[0]);
	EXPECT_EQ(2, stats().spawned);
	EXPECT_EQ(0, fiber_chan_close(there));
	join(f[0]);
	join(f[1]);
	EXPECT_EQ(2, stats().ended);
	end(two[0]);
	EXPECT_EQ(2, stats().ended);
	EXPECT_EQ(0, fini_soon());
	EXPECT_EQ(0, failures);
}

TEST_HARNESS_MAIN
