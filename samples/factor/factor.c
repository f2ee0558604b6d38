/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Numbers from standard input, one a line, and their factors, as they are found.
 *
 * Two pools, and channels between them. Who reads and writes is in the default pool and
 * answers at once, however long the others compute: these have processors of their own.
 */
#include <fiber.h>
#include <stdio.h>
#include <stdlib.h>

enum { COMPUTE = 4, TEXT = 512 };

struct answer {
	char text[TEXT];
};

static fiber_chan_t *asked, *told;
static fiber_waitgroup_t busy = FIBER_WAITGROUP_INIT;

static struct answer factors(unsigned long long n)
{
	struct answer a;
	int at = snprintf(a.text, TEXT, "%llu:", n);

	for (unsigned long long d = 2; d <= n / d; d++)
		for (; n % d == 0; n /= d)
			at += snprintf(a.text + at, (size_t)(TEXT - at),
				       " %llu", d);
	if (n > 1)
		snprintf(a.text + at, (size_t)(TEXT - at), " %llu", n);
	return a;
}

/* In the pool, whose processors it may use for as long as it takes. */
static void *computes(void *arg)
{
	unsigned long long n;
	struct answer a;

	while (!fiber_chan_recv(asked, &n)) {
		a = factors(n);
		fiber_chan_send(told, &a);
	}
	fiber_waitgroup_done(&busy);
	return arg;
}

static void *writes(void *arg)
{
	struct answer a;

	while (!fiber_chan_recv(told, &a))
		puts(a.text);
	return arg;
}

/* A read that blocks holds up nobody: its processor goes to who writes. */
static void reads(void)
{
	unsigned long long n;
	char line[64];

	while (fgets(line, sizeof(line), stdin)) {
		n = strtoull(line, NULL, 10);
		if (n && fiber_chan_send(asked, &n))
			return;
	}
}

static int factor(void *arg)
{
	struct fiber_pool_attr pool = {
		.size = sizeof(pool), .name = "compute", .processors = 2,
	};
	struct fiber_attr attr = { .size = sizeof(attr), .name = "computes" };
	fiber_t *writer;

	(void)arg;
	if (fiber_chan_create(&asked, sizeof(unsigned long long), 16) ||
	    fiber_chan_create(&told, sizeof(struct answer), 16) ||
	    fiber_pool_create(&attr.pool, &pool) ||
	    fiber_spawn(&writer, writes, NULL))
		return 1;
	fiber_waitgroup_add(&busy, COMPUTE);
	for (int i = 0; i < COMPUTE; i++)
		if (fiber_spawn_attr(NULL, &attr, computes, NULL))
			return 1;
	reads();
	fiber_chan_close(asked);	/* what is in it is still received */
	fiber_waitgroup_wait(&busy);
	fiber_chan_close(told);
	return fiber_join(writer, NULL);	/* the pool ends with the runtime */
}

int main(void)
{
	return fiber_run(factor, NULL) ? 1 : 0;
}
