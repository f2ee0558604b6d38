// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * st.c - the rows for State Threads: one processor, children run later
 *
 * It has no yield: a sleep of no time goes through its idle thread and a system
 * call, some 600 ns. Its cheapest one is used: a mutex, which its unlock hands to the
 * one that waits longest, so that unlock and lock are a yield, in turn. Who yields so
 * holds `turn`; main keeps it until all wait for it.
 * Its run queue is first in, first out as well: fib(30) and skynet would need a
 * million stacks at once. So fib(24), as Boost, and no skynet.
 */
#include <st.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "../bench.h"

#define STACK	16384

static st_mutex_t turn;
static long ready;		/* wait for the turn, or had it */

static st_thread_t start(void *(*fn)(void *), void *arg)
{
	st_thread_t t = st_thread_create(fn, arg, 1, STACK);

	if (!t) {
		perror("st_thread_create");
		exit(1);
	}
	return t;
}

static void yield(void)
{
	st_mutex_unlock(turn);
	st_mutex_lock(turn);
}

static void take_turn(void)
{
	ready++;
	st_mutex_lock(turn);
}

/* Runs n of them, which take turns, and joins them. */
static void run_all(void *(*fn)(void *), void *arg, long n)
{
	st_thread_t *t = calloc((size_t)n, sizeof(*t));

	ready = 0;
	st_mutex_lock(turn);
	for (long i = 0; i < n; i++)
		t[i] = start(fn, arg);
	while (ready < n)
		st_usleep(0);
	st_mutex_unlock(turn);
	for (long i = 0; i < n; i++)
		st_thread_join(t[i], NULL);
	free(t);
}

static void *nothing(void *arg)
{
	return arg;
}

static void spawn(long n)
{
	while (n--)
		st_thread_join(start(nothing, NULL), NULL);
}

static void *yielder(void *arg)
{
	take_turn();
	bench_yielder(arg, yield);
	st_mutex_unlock(turn);
	return NULL;
}

static void yields(struct bench_yield *y)
{
	run_all(yielder, y, y->fibers);
}

static void *fib(void *arg)
{
	long n = (long)arg;
	st_thread_t x, y;
	void *a, *b;

	if (n < 2)
		return arg;
	x = start(fib, (void *)(n - 1));
	y = start(fib, (void *)(n - 2));
	st_thread_join(x, &a);
	st_thread_join(y, &b);
	return (void *)((long)a + (long)b);
}

static long run_fib(long n)
{
	return (long)fib((void *)n);
}

/* ---- channels: nobody else runs in between, so no mutex is needed ---- */

struct channel {
	st_cond_t not_full, not_empty;
	long n, slots, first, count;
	long slot[BENCH_SLOTS];
};

static void *receiver(void *arg)
{
	struct channel *c = arg;

	for (long i = 0; i < c->n; i++) {
		while (!c->count)
			st_cond_wait(c->not_empty);
		if (c->slot[c->first] != i)
			abort();
		c->first = (c->first + 1) % c->slots;
		c->count--;
		st_cond_signal(c->not_full);
	}
	return NULL;
}

static void flow(long n, long slots)
{
	struct channel c = { .n = n, .slots = slots };
	st_thread_t t;

	c.not_full = st_cond_new();
	c.not_empty = st_cond_new();
	t = start(receiver, &c);
	for (long i = 0; i < n; i++) {
		while (c.count == slots)
			st_cond_wait(c.not_full);
		c.slot[(c.first + c.count++) % slots] = i;
		st_cond_signal(c.not_empty);
	}
	st_thread_join(t, NULL);
	st_cond_destroy(c.not_full);
	st_cond_destroy(c.not_empty);
}

static void hop(long n)
{
	flow(n, 1);
}

static void buffered(long n)
{
	flow(n, BENCH_SLOTS);
}

/* ---- mutexes ---- */

static st_mutex_t mutex;

static void *locker(void *arg)
{
	struct bench_lock *b = arg;
	long n;

	take_turn();
	n = bench_lockers_ready(b, yield);
	st_mutex_unlock(turn);
	while (n--) {
		st_mutex_lock(mutex);
		b->count++;
		st_mutex_unlock(mutex);
	}
	return NULL;
}

/* Who waits for another mutex gives its turn away. */
static void lock_in_turn(st_mutex_t m)
{
	if (!st_mutex_trylock(m))
		return;
	st_mutex_unlock(turn);
	st_mutex_lock(m);
	st_mutex_lock(turn);
}

static void *yielding_locker(void *arg)
{
	struct bench_lock *b = arg;
	long n;

	take_turn();
	n = bench_lockers_ready(b, yield);
	while (n--) {
		lock_in_turn(mutex);
		b->count++;
		yield();
		st_mutex_unlock(mutex);
	}
	st_mutex_unlock(turn);
	return NULL;
}

static void lockers(long n, void *(*fn)(void *))
{
	struct bench_lock b = { .n = n };

	mutex = st_mutex_new();
	run_all(fn, &b, BENCH_LOCKERS);
	st_mutex_destroy(mutex);
	bench_lockers_end(&b);
}

static void run_mutex(long n)
{
	lockers(n, locker);
}

static void run_mutex_yield(long n)
{
	lockers(n, yielding_locker);
}

/* ---- sleepers, and very many that wait ---- */

/* It counts in microseconds, from a clock of its own. */
static void sleep_until(long long ns)
{
	long long left = ns - bench_monotonic();

	st_usleep(left > 0 ? (left + 999) / 1000 : 0);
}

static void *sleeper(void *arg)
{
	bench_sleeper((long)arg, sleep_until);
	return NULL;
}

static void sleepers(long n)
{
	st_thread_t *t = calloc(n, sizeof(*t));

	for (long i = 0; i < n; i++)
		t[i] = start(sleeper, (void *)i);
	for (long i = 0; i < n; i++)
		st_thread_join(t[i], NULL);
	free(t);
}

static long waiting, ended;
static st_cond_t gate, done;

static void *waits(void *arg)
{
	if (++waiting == (long)arg)
		st_cond_signal(done);
	st_cond_wait(gate);
	if (++ended == (long)arg)
		st_cond_signal(done);
	return NULL;
}

static void parked(struct bench_parked *b)
{
	long long before = bench_memory(), t = bench_now();

	gate = st_cond_new();
	done = st_cond_new();
	for (long i = 0; i < b->fibers; i++)
		if (!st_thread_create(waits, (void *)b->fibers, 0,
				      b->small ? 4096 : STACK)) {
			fprintf(stderr, "st_thread_create: no more than %ld\n", i);
			exit(1);
		}
	st_cond_wait(done);
	b->create = bench_now() - t;
	b->bytes = (long)((bench_memory() - before) / b->fibers);
	t = bench_now();
	st_cond_broadcast(gate);
	st_cond_wait(done);
	b->wake = bench_now() - t;
}

/* ---- echo ---- */

static void *echo_one(void *arg)
{
	char buf[BENCH_ECHO_BUFFER];
	ssize_t n;

	while ((n = st_read(arg, buf, sizeof(buf), ST_UTIME_NO_TIMEOUT)) > 0)
		if (st_write(arg, buf, (size_t)n, ST_UTIME_NO_TIMEOUT) != n)
			break;
	st_netfd_close(arg);
	return NULL;
}

static void echo(int fd)
{
	st_netfd_t listener = st_netfd_open_socket(fd), c;

	while ((c = st_accept(listener, NULL, NULL, ST_UTIME_NO_TIMEOUT)))
		if (!st_thread_create(echo_one, c, 0, 2 * STACK))
			break;
	perror("st: echo");
}

static const struct bench_ops ops = {
	.spawn = spawn,
	.yields = yields,
	.fib = run_fib,
	.fib_n = 24,
	.hop = hop,
	.buffered = buffered,
	.mutex = run_mutex,
	.mutex_yield = run_mutex_yield,
	.parked = parked,
	.sleepers = sleepers,
	.echo = echo,
};

int main(int argc, char **argv)
{
	if (bench_processors(argc, argv) != 1)
		return 77;
	st_set_eventsys(ST_EVENTSYS_ALT);		/* epoll */
	if (st_init() < 0) {
		perror("st_init");
		return 1;
	}
	turn = st_mutex_new();
	return bench_main(argc, argv, &ops);
}
