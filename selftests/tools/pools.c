// SPDX-License-Identifier: GPL-2.0-only
/*
 * pools - a process with fibers in three pools, until standard input ends
 *
 * In "cpu" one computes and yields, and one waits for ever; in a pool without a name
 * one sleeps and sends; in the default pool one receives that, and one waits for
 * ever. Prints its pid when all have begun.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

#include <fiber.h>

static fiber_chan_t *channel;
static fiber_event_t never = FIBER_EVENT_INIT;
static atomic_int there;

static void *computes(void *arg)
{
	atomic_fetch_add(&there, 1);
	for (;;) {
		for (volatile int i = 0; i < 1000000; i++)
			;
		fiber_yield();
	}
	return arg;
}

static void *waits(void *arg)
{
	atomic_fetch_add(&there, 1);
	fiber_event_wait(&never);
	return arg;
}

static void *sends(void *arg)
{
	atomic_fetch_add(&there, 1);
	for (long i = 0;; i++) {
		fiber_sleep(1000000);
		fiber_chan_send(channel, &i);
	}
	return arg;
}

static void *receives(void *arg)
{
	long v;

	atomic_fetch_add(&there, 1);
	while (!fiber_chan_recv(channel, &v))
		;
	return arg;
}

static int begin(const char *name, fiber_pool_t *pool, void *(*fn)(void *))
{
	struct fiber_attr a = { .size = sizeof(a), .name = name, .pool = pool };

	return fiber_spawn_attr(NULL, &a, fn, NULL);
}

int main(void)
{
	struct fiber_pool_attr a = { .size = sizeof(a), .name = "cpu" };
	fiber_pool_t *cpu, *other;
	char byte;

	if (fiber_init(NULL) || fiber_pool_create(&cpu, &a) ||
	    fiber_pool_create(&other, NULL) ||
	    fiber_chan_create(&channel, sizeof(long), 0) ||
	    begin("computes", cpu, computes) || begin("waits there", cpu, waits) ||
	    begin("sends", other, sends) ||
	    begin("receives", FIBER_POOL_DEFAULT, receives) ||
	    begin("waits here", FIBER_POOL_DEFAULT, waits))
		return 1;
	while (atomic_load(&there) < 5)
		usleep(1000);
	printf("%d\n", (int)getpid());
	fflush(stdout);
	while (read(STDIN_FILENO, &byte, 1) > 0)
		;
	_exit(0);
}
