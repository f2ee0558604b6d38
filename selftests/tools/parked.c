// SPDX-License-Identifier: GPL-2.0-only
/*
 * parked [N] - a process to look at from outside
 *
 * Two fibers that lock two mutexes crosswise, one that is blocked in read(2), and N
 * (3) that wait for an event, each with its number as a name and in a variable;
 * number 2 is locked to a thread, as is the one that reads.
 * Prints its pid when all are there; goes on until standard input ends, or aborts
 * if that says "abort".
 */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <fiber.h>

#define KEPT	__attribute__((noinline, noclone))

static fiber_mutex_t first = FIBER_MUTEX_INIT, second = FIBER_MUTEX_INIT;
static fiber_event_t never = FIBER_EVENT_INIT;
static atomic_int crossed, there;
static int blocked_in[2];

KEPT int waits_for_ever(volatile int number)
{
	atomic_fetch_add(&there, 1);
	return fiber_event_wait(&never) + number;
}

KEPT void *worker(void *arg)
{
	volatile int number = (int)(long)arg;
	char name[16];

	snprintf(name, sizeof(name), "worker %d", number);
	fiber_set_name(fiber_self(), name);
	if (number == 2)
		fiber_thread_lock();
	return (void *)(long)(waits_for_ever(number) + number);
}

KEPT void crosses(fiber_mutex_t *a, fiber_mutex_t *b)
{
	fiber_mutex_lock(a);
	atomic_fetch_add(&crossed, 1);
	while (atomic_load(&crossed) < 2)
		fiber_yield();
	atomic_fetch_add(&there, 1);
	fiber_mutex_lock(b);
	fiber_mutex_unlock(b);
}

KEPT void *first_second(void *arg)
{
	fiber_set_name(fiber_self(), "first, second");
	crosses(&first, &second);
	return arg;
}

KEPT void *second_first(void *arg)
{
	fiber_set_name(fiber_self(), "second, first");
	crosses(&second, &first);
	return arg;
}

KEPT void *reads(void *arg)
{
	char byte;

	fiber_set_name(fiber_self(), "reads");
	fiber_thread_lock();
	atomic_fetch_add(&there, 1);
	if (read(blocked_in[0], &byte, 1) != 1)
		return NULL;
	return arg;
}

static int count(const struct fiber_info *i, void *arg)
{
	*(int *)arg += i->state == FIBER_PARKED || i->state == FIBER_BLOCKED;
	return 0;
}

/* They wait a moment after they have said that they will. */
static int waiting(void)
{
	int n = 0;

	fiber_walk(count, &n);
	return n;
}

int main(int argc, char **argv)
{
	int n = argc > 1 ? atoi(argv[1]) : 3;
	char text[16] = "";
	fiber_t *f;

	if (pipe(blocked_in) || fiber_init(NULL))
		return 1;
	for (long i = 0; i < n; i++)
		if (fiber_spawn(NULL, worker, (void *)i))
			return 1;
	fiber_spawn(&f, first_second, NULL);
	fiber_spawn(&f, second_first, NULL);
	fiber_spawn(&f, reads, NULL);
	while (atomic_load(&there) < n + 3)
		usleep(1000);
	while (waiting() < n + 3)
		usleep(1000);
	printf("%d\n", (int)getpid());
	fflush(stdout);
	if (read(STDIN_FILENO, text, sizeof(text) - 1) > 0 &&
	    !strncmp(text, "abort", 5))
		abort();
	_exit(0);
}
