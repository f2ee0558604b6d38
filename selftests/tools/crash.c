// SPDX-License-Identifier: GPL-2.0-only
/*
 * crash abort|overflow|stay - a process that leaves a core file, or goes on
 *
 * One fiber waits for an event, one is blocked in read(2), one runs for ever, and
 * when they do, one calls abort(), or calls itself until its stack is used up. Or
 * it prints its pid, and ends when standard input does.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <fiber.h>

#define KEPT	__attribute__((noinline, noclone))

static fiber_event_t never = FIBER_EVENT_INIT;
static atomic_int there;
static volatile int turns;
static int blocked_in[2];

KEPT void *waits(void *arg)
{
	fiber_event_wait(&never);
	return arg;
}

KEPT void *reads(void *arg)
{
	char byte;

	atomic_fetch_add(&there, 1);
	return read(blocked_in[0], &byte, 1) == 1 ? arg : NULL;
}

KEPT void *spins(void *arg)
{
	atomic_fetch_add(&there, 1);
	for (;;)
		turns++;
	return arg;
}

KEPT int deeper(volatile char *above)
{
	volatile char here[256];

	here[0] = *above;
	return deeper(here) + here[0];
}

KEPT void *overflows(void *arg)
{
	char top = 0;

	return (void *)(long)deeper(&top);
}

KEPT void *aborts(void *arg)
{
	abort();
	return arg;
}

static int count(const struct fiber_info *i, void *arg)
{
	*(int *)arg += i->state == FIBER_PARKED || i->state == FIBER_BLOCKED;
	return 0;
}

static int waiting(void)
{
	int n = 0;

	fiber_walk(count, &n);
	return n;
}

static int spawn(const char *name, void *(*fn)(void *))
{
	struct fiber_attr attr = { .size = sizeof(attr), .name = name };

	if (fn == spins)
		attr.flags = FIBER_ATTR_TIMES;
	return fiber_spawn_attr(NULL, &attr, fn, NULL);
}

static void stay(void)
{
	char byte;

	printf("%d\n", (int)getpid());
	fflush(stdout);
	while (read(STDIN_FILENO, &byte, 1) > 0)
		;
	_exit(0);
}

/* No quantum ends meanwhile: who spins does so to the end. */
int main(int argc, char **argv)
{
	const char *how = argc > 1 ? argv[1] : "";

	setenv("FIBER_PROCESSORS", "2", 1);
	setenv("FIBER_QUANTUM_US", "10000000", 1);
	if (pipe(blocked_in) || fiber_init(NULL) || spawn("waits", waits) ||
	    spawn("reads", reads))
		return 1;
	while (!atomic_load(&there) || waiting() < 2)
		usleep(1000);
	if (spawn("spins", spins))
		return 1;
	while (atomic_load(&there) < 2)
		usleep(1000);
	if (!strcmp(how, "stay"))
		stay();
	if (spawn("ends", !strcmp(how, "abort") ? aborts : overflows))
		return 1;
	for (;;)
		pause();
}
