// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* parked.c - very many fibers that wait on one channel until it is closed */
#include <stdio.h>
#include <stdlib.h>

#include "bench.h"
#include "fiber.h"
#include "fiber/chan.h"

static long waiting, ended;		/* atomic */

void bench_ours_parked(struct bench_parked *b);

static void *waits(void *arg)
{
	char c;

	__atomic_add_fetch(&waiting, 1, __ATOMIC_RELAXED);
	fiber_chan_recv(arg, &c);	/* -EPIPE: it is closed */
	__atomic_add_fetch(&ended, 1, __ATOMIC_RELAXED);
	return NULL;
}

static void until(long *count, long n)
{
	while (__atomic_load_n(count, __ATOMIC_RELAXED) < n)
		fiber_yield();
}

void bench_ours_parked(struct bench_parked *b)
{
	struct fiber_attr attr = {
		.size = sizeof(attr), .stack_size = b->small ? 2048 : 0,
	};
	long long before = bench_memory(), t = bench_now();
	fiber_chan_t *ch;
	fiber_t *first;
	int r;

	/* On a large stack: the dynamic linker binds what is called here. */
	r = fiber_chan_create(&ch, 1, 0);
	if (!r)
		r = fiber_spawn(&first, waits, ch);
	for (long i = 0; !r && i < b->fibers; i++)
		r = fiber_spawn_attr(NULL, &attr, waits, ch);
	if (r) {
		fprintf(stderr, "fiber_spawn_attr: %d\n", r);
		exit(1);
	}
	until(&waiting, b->fibers + 1);
	b->create = bench_now() - t;
	b->bytes = (long)((bench_memory() - before) / b->fibers);
	t = bench_now();
	fiber_chan_close(ch);
	until(&ended, b->fibers + 1);
	b->wake = bench_now() - t;
	fiber_join(first, NULL);
	fiber_chan_destroy(ch);
}
