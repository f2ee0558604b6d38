// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* pthread.c - the rows for plain threads, with the smallest stacks */
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "../bench.h"

static pthread_attr_t attr;

static pthread_t start(void *(*fn)(void *), void *arg)
{
	pthread_t t;

	if (pthread_create(&t, &attr, fn, arg)) {
		perror("pthread_create");
		exit(1);
	}
	return t;
}

static void yield(void)
{
	sched_yield();
}

static void *nothing(void *arg)
{
	return arg;
}

static void spawn(long n)
{
	while (n--)
		pthread_join(start(nothing, NULL), NULL);
}

static void *yielder(void *arg)
{
	bench_yielder(arg, yield);
	return NULL;
}

static void yields(struct bench_yield *y)
{
	pthread_t *t = calloc(y->fibers, sizeof(*t));
	long i;

	for (i = 0; i < y->fibers; i++)
		t[i] = start(yielder, y);
	for (i = 0; i < y->fibers; i++)
		pthread_join(t[i], NULL);
	free(t);
}

static void *reader(void *arg)
{
	bench_read((long)arg);
	return NULL;
}

static void *spinner(void *arg)
{
	bench_spin();
	return NULL;
}

static void blocked(void)
{
	pthread_t t[2 + BENCH_READERS];
	long i;

	for (i = 0; i < 2; i++)
		t[i] = start(spinner, NULL);
	for (i = 0; i < BENCH_READERS; i++)
		t[2 + i] = start(reader, (void *)i);
	for (i = 0; i < 2 + BENCH_READERS; i++)
		pthread_join(t[i], NULL);
}

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static void *locker(void *arg)
{
	struct bench_lock *b = arg;
	long n = bench_lockers_ready(b, yield);

	while (n--) {
		pthread_mutex_lock(&mutex);
		b->count++;
		pthread_mutex_unlock(&mutex);
	}
	return NULL;
}

static void *yielding_locker(void *arg)
{
	struct bench_lock *b = arg;
	long n = bench_lockers_ready(b, yield);

	while (n--) {
		pthread_mutex_lock(&mutex);
		b->count++;
		sched_yield();
		pthread_mutex_unlock(&mutex);
	}
	return NULL;
}

static void lockers(long n, void *(*fn)(void *))
{
	struct bench_lock b = { .n = n };
	pthread_t t[BENCH_LOCKERS];
	int i;

	for (i = 0; i < BENCH_LOCKERS; i++)
		t[i] = start(fn, &b);
	for (i = 0; i < BENCH_LOCKERS; i++)
		pthread_join(t[i], NULL);
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

static void preads(long n)
{
	static char page[BENCH_PAGE];
	unsigned long seed = 1;
	long at;

	while (n--) {
		at = bench_offset(&seed);
		bench_page(page, at, pread(bench_file, page, sizeof(page), at));
	}
}

static const struct bench_ops ops = {
	.spawn = spawn,
	.yields = yields,
	.mutex = run_mutex,
	.mutex_yield = run_mutex_yield,
	.blocked = blocked,
	.preads = preads,
};

int main(int argc, char **argv)
{
	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, PTHREAD_STACK_MIN);
	return bench_main(argc, argv, &ops);
}
