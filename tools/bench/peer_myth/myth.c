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
