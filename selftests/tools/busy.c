// SPDX-License-Identifier: GPL-2.0-only
/*
 * busy - a process that does all that a trace shows, until standard input ends
 *
 * Fibers that talk over a channel, one that spins for many quanta, one that blocks.
 * Prints its pid when it begins.
 */
#include <stdio.h>
#include <unistd.h>

#include <fiber.h>

static fiber_chan_t *channel;

static void *sends(void *arg)
{
	for (long i = 0;; i++)
		if (fiber_chan_send(channel, &i))
			return arg;
}

static void *receives(void *arg)
{
	long v;

	while (!fiber_chan_recv(channel, &v))
		if (v % 64 == 0)
			fiber_sleep(1000000);
	return arg;
}

/* On, for so long that it is preempted, and off again. */
static void *spins(void *arg)
{
	for (;;) {
		for (volatile long i = 0; i < 100000000; i++)
			;
		fiber_yield();
	}
	return arg;
}

static void *blocks(void *arg)
{
	for (;;) {
		fiber_blocking_begin();
		usleep(20000);
		fiber_blocking_end();
		fiber_yield();
	}
	return arg;
}

int main(void)
{
	char byte;

	if (fiber_init(NULL) ||
	    fiber_chan_create(&channel, sizeof(long), 4) ||
	    fiber_spawn(NULL, sends, NULL) ||
	    fiber_spawn(NULL, receives, NULL) ||
	    fiber_spawn(NULL, spins, NULL) || fiber_spawn(NULL, blocks, NULL))
		return 1;
	printf("%d\n", (int)getpid());
	fflush(stdout);
	while (read(STDIN_FILENO, &byte, 1) > 0)
		;
	_exit(0);
}
