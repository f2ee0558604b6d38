// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * deadlock.c - say that all fibers are parked, and nothing can wake them
 *
 * Stuck is, for ever, who waits for one that waits too. All must hold at one
 * moment:
 *   - processors of all pools are idle, queues empty, no carrier holds a fiber (that runs, is
 *     blocked in the kernel, or was preempted)
 *   - no timer is armed, and no fiber waits for I/O
 *   - no channel waits for signals (signal.c)
 *   - every thread of the process is one of ours, or waits in this library, without
 *     a deadline, for what a fiber or another such thread would have to do. Any
 *     other could use an object at any time, even one that has not done so yet.
 *     FIBER_DEADLOCK=alone is the program's word that no other thread will.
 *
 * At one moment. Whatever could end it leaves a trace: `activity` counts switches,
 * ends and spawns. It is read, then all the above, then again. Who looks owns one
 * processor, and all others are idle, so nobody is between a queue and a fiber. A
 * plain thread is counted as waiting, under the lock of its object, before anybody
 * can find it there, until who wakes it does: so none counts that was woken.
 *
 * Who looks. The carrier that becomes idle notes when: FIRST_NS later. It, or
 * whoever sleeps as the one that watches timers, wakes then, and looks if nothing
 * has happened since. When it is not stuck it may become so without a carrier: an
 * outside thread ends, or begins to wait. So it looks again, after twice the time
 * each time, until something happens.
 *
 * Rejected: to look when the last processor becomes idle (two may do so at once,
 * and a plain thread may be the last); a thread for it.
 */
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "pool.h"
#include "ring.h"
#include "trace.h"
#include "wait.h"

#define FIRST_NS	1000000000ull
#define LAST_NS		60000000000ull
#define SEEDED_NS	1000000ull

enum { REPORT = 1, ABORT = 2, ALONE = 4 };

static struct {
	uint32_t mode;			/* 0: off; constant */
	int fd;				/* constant; a filter of the program's may */
					/* forbid to open it when we look */
	fb_lock_t lock;			/* of the rest; `at` is read by all */
	uint64_t at;			/* look then */
	uint64_t ns;			/* until the next time */
	uint64_t seen;			/* activity */
	bool said;
} dl;

FB_LOOKS static uint64_t activity(void)
{
	uint64_t n = FB_SEE(fb_rt.plain_spawned);

	for (uint32_t i = 0; i < fb_processors(); i++) {
		const struct fb_processor *p = &fb_rt.proc[i];

		n += FB_SEE(p->pass) + FB_SEE(p->ended) -
		     FB_SEE(p->idle_passes);
	}
	return n;
}

/* As fb_fiber_alive, while owners count. */
FB_LOOKS static bool some_alive(void)
{
	uint64_t n = FB_SEE(fb_rt.plain_spawned);

	for (uint32_t i = 0; i < fb_processors(); i++)
		n += fb_fiber_spawned(&fb_rt.proc[i]) -
		     FB_SEE(fb_rt.proc[i].ended);
	return n;
}

/* ---- is it stuck? ---- */

/* How many processors of g run something now, or could soon. */
FB_LOOKS static uint32_t not_idle(const struct fb_group *g)
{
	uint32_t n = g->nproc - FB_READ(g->info->idle) - FB_READ(g->pollers);

	if (FB_READ(g->info->waiting) || FB_READ(g->global_count) ||
	    fb_timer_earliest(g) != FB_NEVER)
		return g->nproc + 1;
	for (uint32_t i = 0; i < g->nproc; i++)
		if (!fb_sched_empty(&g->proc[i]))
			return g->nproc + 1;
	return n;
}

/* Owner of one processor: nothing runs, nothing will by itself, in any group. */
FB_LOOKS static bool all_quiet(void)
{
	uint32_t busy = 0;
	const struct fb_carrier *c;

	fb_pool_look();
	for (struct fb_group *g = fb_pool_next(NULL); g; g = fb_pool_next(g))
		if (g->runs == g)
			busy += not_idle(g);
	fb_pool_looked();
	if (busy != FB_READ(fb_rt.resting) + 1)
		return false;
	/* Pairs with carrier_make. */
	for (c = FB_ACQUIRE(fb_rt.carriers); c; c = c->next)
		if (FB_SEE(c->cur))
			return false;
	return true;
}

/* Each thread is ours or waits here. None is counted before it is there. */
static bool no_outside_thread(void)
{
	uint32_t ours = FB_READ(fb_rt.helpers) + FB_READ(fb_rt.plain_waits), live;
	const struct fb_carrier *c;

	if (fb_signal_wanted())
		return false;
	if (dl.mode & ALONE)
		return true;
	/* Pairs with carrier_make. */
	for (c = FB_ACQUIRE(fb_rt.carriers); c; c = c->next)
		ours += FB_READ(c->page) != NULL;	/* it came to attach */
	live = fb_os_threads(dl.fd);
	if (live > ours && fb_ring_on)
		ours += fb_os_uring_threads();
	return live && live <= ours;
}

struct count {
	uint64_t fibers, others;
};

static int count_one(const struct fiber_info *i, void *arg)
{
	struct count *n = arg;

	n->fibers++;
	n->others += i->state != FIBER_PARKED ||
		     i->why == fb_why_name(FB_WHY_IO);
	return 0;
}

/* How many fibers are stuck; 0: they are not. */
static uint64_t stuck(void)
{
	uint64_t before = activity();
	struct count n = { 0, 0 };
	uint32_t waits = FB_READ(fb_rt.plain_waits);

	/* Pairs with the order in which owners count and queue. */
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	if (!all_quiet() || !no_outside_thread() ||
	    fb_debug_walk(count_one, &n) || n.others)
		return 0;
	/* The same. */
	__atomic_thread_fence(__ATOMIC_SEQ_CST);	/* Pairs with it as well. */
	if (activity() != before || FB_READ(fb_rt.plain_waits) != waits ||
	    !all_quiet())
		return 0;
	return n.fibers;
}

static void tell(uint64_t n)
{
	uint32_t threads = FB_READ(fb_rt.plain_waits);

	fb_say("all fibers are parked: deadlock. %llu of them wait%s, and %u plain thread%s; nothing can wake them",
	       (unsigned long long)n, n == 1 ? "s" : "", threads,
	       threads == 1 ? "" : "s");
	while (fb_dump(STDERR_FILENO) == -EBUSY)	/* by a signal */
		sched_yield();
	fb_seed_say();
	if (dl.mode & ABORT) {
		fb_last_words();
		abort();
	}
}

/* ---- when to look ---- */

/* How many are stuck and to be told of. The lock is held. */
static uint64_t look(uint64_t now)
{
	uint64_t n = dl.said ? 0 : stuck();

	dl.said |= n != 0;
	dl.ns = dl.ns < LAST_NS / 2 ? dl.ns * 2 : LAST_NS;
	FB_WRITE(dl.at, dl.said ? FB_NEVER : now + dl.ns);
	return n;
}

/* Owner of a processor, about to sleep. */
void fb_deadlock_idle(void)
{
	uint64_t now, a, n = 0;

	if (!dl.mode)
		return;
	now = fb_clock();
	fb_lock(&dl.lock);
	a = activity();
	if (a != dl.seen) {
		dl.seen = a;
		dl.said = false;
		dl.ns = fb_rt.seeded ? SEEDED_NS : FIRST_NS;
		FB_WRITE(dl.at, some_alive() ? now + dl.ns : FB_NEVER);
	} else if (now >= dl.at) {
		n = look(now);
	}
	fb_unlock(&dl.lock);
	/* Unlocked: stderr may be a pipe that nobody reads. */
	if (n)
		tell(n);
}

uint64_t fb_deadlock_at(void)
{
	return FB_READ(dl.at);
}

/* ---- start ---- */

static int mode_word(const char *s, size_t n)
{
	static const struct { const char *word; int mode; } known[] = {
		{ "report", REPORT }, { "abort", REPORT | ABORT },
		{ "alone", REPORT | ALONE },
	};

	for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
		if (strlen(known[i].word) == n && !memcmp(known[i].word, s, n))
			return known[i].mode;
	return -1;
}

static int read_mode(void)
{
	const char *s = secure_getenv("FIBER_DEADLOCK"), *word = s;
	size_t n;
	int m;

	dl.mode = REPORT;
	if (!s || !*s)
		return 0;
	if (!strcmp(s, "off")) {
		dl.mode = 0;
		return 0;
	}
	for (;; word += n + 1) {
		n = strcspn(word, ",");
		m = mode_word(word, n);
		if (m < 0) {
			fb_say("FIBER_DEADLOCK=%s: off, or some of report, abort, alone with commas between are wanted",
			       s);
			return -EINVAL;
		}
		dl.mode |= (uint32_t)m;
		if (!word[n])
			return 0;
	}
}

int fb_deadlock_start(void)
{
	int r;

	memset(&dl, 0, sizeof(dl));
	dl.at = FB_NEVER;
	r = read_mode();
	dl.fd = !r && dl.mode && !(dl.mode & ALONE) ? fb_os_open_stat() : -1;
	return r;
}

void fb_deadlock_stop(void)
{
	if (dl.fd >= 0)
		close(dl.fd);
	dl.fd = -1;
}
