// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* myth.c - the rows for MassiveThreads: child first, yields stay local */
#include <stdlib.h>
#include <myth/myth.h>

#include "../bench.h"

static void yield(void)
{
	myth_yield_ex(myth_yield_option_local_only);
}

static void *nothing(void *arg)
{
	return arg;
}

static void spawn(long n)
{
	while (n--)
		myth_join(myth_create(nothing, NULL), NULL);
}

static void *yielder(void *arg)
{
	bench_yielder(arg, yield);
	return NULL;
}

static void yields(struct bench_yield *y)
{
	myth_thread_t *t = calloc(y->fibers, sizeof(*t));
	long i;

	for (i = 0; i < y->fibers; i++)
		t[i] = myth_create(yielder, y);
	for (i = 0; i < y->fibers; i++)
		myth_join(t[i], NULL);
	free(t);
}

static void *fib(void *arg)
{
	long n = (long)arg;
	myth_thread_t x, y;
	void *a, *b;

	if (n < 2)
		return arg;
	x = myth_create(fib, (void *)(n - 1));
	y = myth_create(fib, (void *)(n - 2));
	myth_join(x, &a);
	myth_join(y, &b);
	return (void *)((long)a + (long)b);
}

static void *skynet(void *arg)
{
	struct bench_node *node = arg, child[10];
	myth_thread_t t[10];
	long sum = 0;
	void *part;
	int i;

	if (node->size == 1)
		return (void *)node->first;
	for (i = 0; i < 10; i++) {
		child[i].size = node->size / 10;
		child[i].first = node->first + i * child[i].size;
		t[i] = myth_create(skynet, &child[i]);
	}
	for (i = 0; i < 10; i++) {
		myth_join(t[i], &part);
		sum += (long)part;
	}
	return (void *)sum;
}

/* ---- mutexes; channels of a mutex and two conditions ---- */

struct channel {
	myth_mutex_t m;
	myth_cond_t not_full, not_empty;
	long n, slots, first, count;
	long slot[BENCH_SLOTS];
};

static void *receiver(void *arg)
{
	struct channel *c = arg;
	long i, v;

	for (i = 0; i < c->n; i++) {
		myth_mutex_lock(&c->m);
		while (!c->count)
			myth_cond_wait(&c->not_empty, &c->m);
		v = c->slot[c->first];
		c->first = (c->first + 1) % c->slots;
		c->count--;
		myth_cond_signal(&c->not_full);
		myth_mutex_unlock(&c->m);
		if (v != i)
			abort();
	}
	return NULL;
}

static void flow(long n, long slots)
{
	struct channel *c = calloc(1, sizeof(*c));
	myth_thread_t t;
	long i;

	c->n = n;
	c->slots = slots;
	myth_mutex_init(&c->m, NULL);
	myth_cond_init(&c->not_full, NULL);
	myth_cond_init(&c->not_empty, NULL);
	t = myth_create(receiver, c);
	for (i = 0; i < n; i++) {
		myth_mutex_lock(&c->m);
		while (c->count == slots)
			myth_cond_wait(&c->not_full, &c->m);
		c->slot[(c->first + c->count++) % slots] = i;
		myth_cond_signal(&c->not_empty);
		myth_mutex_unlock(&c->m);
	}
	myth_join(t, NULL);
	free(c);
}

static void hop(long n)
{
	flow(n, 1);
}

static void buffered(long n)
{
	flow(n, BENCH_SLOTS);
}

static myth_mutex_t mutex;

static void *locker(void *arg)
{
	struct bench_lock *b = arg;
	long n = bench_lockers_ready(b, yield);

	while (n--) {
		myth_mutex_lock(&mutex);
		b->count++;
		myth_mutex_unlock(&mutex);
	}
	return NULL;
}

static void *yielding_locker(void *arg)
{
	struct bench_lock *b = arg;
	long n = bench_lockers_ready(b, yield);

	while (n--) {
		myth_mutex_lock(&mutex);
		b->count++;
		yield();
		myth_mutex_unlock(&mutex);
	}
	return NULL;
}

static void lockers(long n, void *(*fn)(void *))
{
	struct bench_lock b = { .n = n };
	myth_thread_t t[BENCH_LOCKERS];
	int i;

	myth_mutex_init(&mutex, NULL);
	for (i = 0; i < BENCH_LOCKERS; i++)
		t[i] = myth_create(fn, &b);
	for (i = 0; i < BENCH_LOCKERS; i++)
		myth_join(t[i], NULL);
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

static long run_fib(long n)
{
	return (long)fib((void *)n);
}

static long run_skynet(long leaves)
{
	struct bench_node root = { .size = leaves };

	return (long)skynet(&root);
}

static const struct bench_ops ops = {
	.spawn = spawn,
	.yields = yields,
	.fib = run_fib,
	.skynet = run_skynet,
	.hop = hop,
	.buffered = buffered,
	.mutex = run_mutex,
	.mutex_yield = run_mutex_yield,
};

int main(int argc, char **argv)
{
	myth_globalattr_t attr;

	myth_globalattr_init(&attr);
	myth_globalattr_set_stacksize(&attr, 65536);	/* as ours */
	myth_globalattr_set_n_workers(&attr, bench_processors(argc, argv));
	myth_globalattr_set_bind_workers(&attr, 1);
	myth_init_ex(&attr);
	return bench_main(argc, argv, &ops);
}
