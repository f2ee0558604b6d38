/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * crowd.h - many fibers, each inside a blocking call of some library, and one
 * that goes on meanwhile
 *
 * Only plain calls of that library: nothing here or there tells libfiber that
 * one of them may block.
 */
#ifndef SELFTESTS_LIBRARIES_CROWD_H
#define SELFTESTS_LIBRARIES_CROWD_H

#include <sys/wait.h>

#include "lib/common.h"

#define CROWD_MAX	100

/* Where processors are emulated, what serves them takes most of the time. */
helper int many(int n)
{
	return getenv("FIBER_VM_EMULATED") ? n / 4 : n;
}

helper uint64_t nap(uint64_t ns)
{
	return getenv("FIBER_VM_EMULATED") ? 4 * ns : ns;
}

/*
 * struct crowd - what they do, and what was seen
 * @work:       what each does, given its number
 * @n:          how many
 * @processors: for all of them
 * @nap:        how long each blocks, or 0: as long as it takes
 * @took:       from the first one that began to the end of the last, ns
 * @gathered:   all have come to crowd_gather()
 * @inside:     they are in their calls now; @peak: most at once
 * @turns:      of the one that goes on, while some were inside
 * @carriers:   most threads for fibers at once
 * @backend:    what fiber_backend() said
 */
struct crowd {
	void (*work)(int i);
	int n;
	unsigned int processors;
	uint64_t nap;
	_Atomic uint64_t begun;
	uint64_t took;
	fiber_latch_t gathered;
	atomic_int inside, peak, ended;
	unsigned long turns;
	unsigned int carriers;
	const char *backend;
};

static struct crowd crowd;
static int crowd_tid[CROWD_MAX];

/* Its work begins now. A fiber keeps its thread from here to crowd_leave(). */
helper void crowd_enter(int i)
{
	int now = atomic_fetch_add(&crowd.inside, 1) + 1;
	int peak = atomic_load(&crowd.peak);
	uint64_t none = 0;

	atomic_compare_exchange_strong(&crowd.begun, &none, now_ns());
	while (now > peak &&
	       !atomic_compare_exchange_weak(&crowd.peak, &peak, now))
		;
	crowd_tid[i] = gettid();
}

helper void crowd_leave(int i)
{
	check_eq(crowd_tid[i], gettid());
	atomic_fetch_sub(&crowd.inside, 1);
}

/* Until all have come so far. */
helper void crowd_gather(void)
{
	check_eq(0, fiber_latch_count_down(&crowd.gathered, 1));
	check_eq(0, fiber_latch_wait(&crowd.gathered));
}

static void *crowd_one(void *arg)
{
	crowd.work((int)(intptr_t)arg);
	atomic_fetch_add(&crowd.ended, 1);
	return NULL;
}

static void *crowd_other(void *arg)
{
	crowd.backend = fiber_backend();
	while (atomic_load(&crowd.ended) < crowd.n) {
		unsigned int carriers = stats().carriers;

		crowd.turns += atomic_load(&crowd.inside) > 0;
		if (carriers > crowd.carriers)
			crowd.carriers = carriers;
		fiber_sleep(1 * MS);
	}
	return NULL;
}

static void *crowd_all(void *arg)
{
	fiber_t *other = spawn(crowd_other, NULL), *f[CROWD_MAX];

	for (int i = 0; i < crowd.n; i++)
		f[i] = spawn(crowd_one, (void *)(intptr_t)i);
	for (int i = 0; i < crowd.n; i++)
		join(f[i]);
	crowd.took = now_ns() - atomic_load(&crowd.begun);
	join(other);
	return NULL;
}

helper void crowd_run_once(void)
{
	long threads = thread_count();

	atomic_store(&crowd.begun, 0);
	check_eq(0, fiber_latch_init(&crowd.gathered, (uint64_t)crowd.n));
	atomic_store(&crowd.peak, 0);
	atomic_store(&crowd.ended, 0);
	crowd.turns = 0;
	crowd.carriers = 0;
	check_eq(0, with_runtime(crowd.processors, 0, crowd_all, NULL));
	check(thread_count_becomes(threads));
	check_eq(0, atomic_load(&crowd.inside));
	check_eq(0, fiber_latch_destroy(&crowd.gathered));
}

static bool crowd_overlapped(void)
{
	return crowd.took < (uint64_t)crowd.n * crowd.nap / 2 &&
	       crowd.peak > crowd.n / 2 && crowd.turns;
}

/*
 * Each blocks for a nap: all together need less than half of what they would one
 * after the other, more than half were inside at once, on a thread each, and the
 * one that goes on did. On a busy host again, with more time for all of it.
 */
helper void crowd_run(const char *what)
{
	do {
		crowd_run_once();
		if (crowd_overlapped())
			break;
		crowd.nap *= 4;
	} while (crowd.nap < 10 * SEC);
	check(crowd.took < (uint64_t)crowd.n * crowd.nap / 2);
	check(crowd.peak > crowd.n / 2);
	check(crowd.turns > 0);
	figure("%s: %d x %lu ms on %u processors took %lu ms (%s); at once %d, threads %u, turns of another fiber %lu\n",
	       what, crowd.n, crowd.nap / MS, crowd.processors, crowd.took / MS,
	       crowd.backend, crowd.peak, crowd.carriers, crowd.turns);
}

#endif
