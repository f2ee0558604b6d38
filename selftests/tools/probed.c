// SPDX-License-Identifier: GPL-2.0-only
/*
 * probed [steal] - a process in which each probe of the library is passed
 *
 * With one processor, in this order: a fiber that waits for an event, one that is
 * preempted, one that is blocked; with two, one that another processor takes. Prints
 * who is who: "NAME ID" a line. What another thread must bring about is tried until
 * it has.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <fiber.h>

static fiber_event_t gate = FIBER_EVENT_INIT;
static atomic_int go;
static int pipes[2];

static void say(const char *name)
{
	printf("%s %llu\n", name, (unsigned long long)fiber_id(fiber_self()));
	fflush(stdout);
}

void *waits(void *arg)
{
	say("waits");
	fiber_event_wait(&gate);
	return arg;
}

/* Who lets it go on is ready behind it: until its quantum ends, or it is stolen. */
void *spins(void *arg)
{
	say("spins");
	while (!atomic_load_explicit(&go, memory_order_relaxed))
		;
	return arg;
}

void *reads(void *arg)
{
	char byte;

	say("reads");
	fiber_blocking_begin();
	if (read(pipes[0], &byte, 1) != 1)
		arg = NULL;
	fiber_blocking_end();
	return arg;
}

static int beside_a_spinner(void)
{
	fiber_t *f;
	int r;

	atomic_store(&go, 0);
	r = fiber_spawn(&f, spins, NULL);
	atomic_store(&go, 1);
	return r ? r : fiber_join(f, NULL);
}

static struct fiber_stats stats(void)
{
	struct fiber_stats s = { .size = sizeof(s) };

	fiber_get_stats(&s);
	return s;
}

static int steal(void *arg)
{
	int r = 0;

	say("main");
	while (!r && !stats().steals)
		r = beside_a_spinner();
	return r;
}

static int one_after_the_other(void *arg)
{
	fiber_t *f;
	int r;

	say("main");
	r = fiber_spawn(&f, waits, NULL);
	fiber_event_set(&gate);
	if (!r)
		r = fiber_join(f, NULL);
	while (!r && !stats().preemptions)
		r = beside_a_spinner();
	if (!r)
		r = fiber_spawn(&f, reads, NULL);
	if (r || write(pipes[1], "x", 1) != 1)
		return 1;
	return fiber_join(f, NULL);
}

int main(int argc, char **argv)
{
	if (pipe(pipes))
		return 1;
	return fiber_run(argc > 1 && !strcmp(argv[1], "steal") ?
			 steal : one_after_the_other, NULL) ? 1 : 0;
}
