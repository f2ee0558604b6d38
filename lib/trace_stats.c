// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * trace_stats.c - how long the scheduler lets wait (FIBER_STATS=1)
 *
 * From the events that trace.c records, as they are recorded:
 *
 *   ready to run	a fiber becomes ready .. goes on
 *   wake		a spare is woken because there is work .. owns a processor
 *   handoff		a carrier gives its processor away .. another owns it
 *
 * Each ring counts for itself, by powers of two. When a fiber became ready stands in
 * a small table under its id; two that need one place make one sample lost. Whoever
 * takes an entry may run elsewhere than who wrote it:
 *
 *	who makes ready			who runs it
 *	time = now			id is ours (acquire): take the time
 *	id = ours (release)		id = 0; the same id cannot be ready again
 *					before
 *
 * Pools of one name are told together, and those that are no more.
 *
 * Where a block begins the kernel alone knows: its tracepoints tell how long that
 * handoff takes.
 */
#include <stdio.h>
#include <string.h>

#include "trace.h"

#define PLACES	1024			/* a power of two */

static struct {
	uint64_t id, time;
} ready[PLACES];

static const char *const what[FB_HISTS] = {
	[FB_HIST_READY] = "ready to run", [FB_HIST_WAKE] = "wake",
	[FB_HIST_HANDOFF] = "handoff",
};

/* ---- as it happens ---- */

static void add(struct fb_tring *r, unsigned int hist, uint64_t from, uint64_t to)
{
	unsigned int k = 0;

	if (!from || to < from)
		return;
	while (k < FB_BUCKETS - 1 && (to - from) >> (k + 1))
		k++;
	r->hist[hist][k]++;
}

static void runs(struct fb_tring *r, uint64_t id, uint64_t now)
{
	uint64_t *at = &ready[id & (PLACES - 1)].id;
	uint64_t time;

	if (FB_ACQUIRE(*at) != id)	/* Pairs with the release below. */
		return;
	time = FB_READ(ready[id & (PLACES - 1)].time);
	FB_WRITE(*at, 0);
	add(r, FB_HIST_READY, time, now);
}

static void arrives(struct fb_tring *r, unsigned int event, uint64_t now)
{
	if (event == FB_EVENT_WAKE)
		add(r, FB_HIST_WAKE,
		    __atomic_exchange_n(&fb_tr.wake_at[r->group], 0,
					__ATOMIC_RELAXED), now);
	else if (event == FB_EVENT_GIVEN)
		add(r, FB_HIST_HANDOFF, r->left_at, now);
	r->left_at = 0;
}

void fb_stats_event(struct fb_tring *r, const struct fb_trace_event *e)
{
	switch (e->kind) {
	case FB_TRACE_READY:
		FB_WRITE(ready[e->id & (PLACES - 1)].time, e->time);
		/* Pairs with the acquire in runs. */
		FB_RELEASE(ready[e->id & (PLACES - 1)].id, e->id);
		break;
	case FB_TRACE_SWITCH:
		runs(r, e->id, e->time);
		break;
	case FB_TRACE_LEAVE:
		r->left_at = e->time;
		break;
	case FB_TRACE_ARRIVE:
	case FB_TRACE_RETURN:
		arrives(r, e->why, e->time);
		break;
	}
}

void fb_stats_start(void)
{
	memset(ready, 0, sizeof(ready));
	memset(fb_tr.wake_at, 0, sizeof(fb_tr.wake_at));
	memset(fb_tr.ended_hist, 0, sizeof(fb_tr.ended_hist));
}

/* ---- at the end ---- */

static bool same(uint32_t i, const char *pool)
{
	return !strncmp(fb_tr.ring[i].pool, pool, sizeof(fb_tr.ring[i].pool));
}

/* pool NULL: of those that are no more. */
static uint64_t sum_up(unsigned int hist, const char *pool, uint64_t *sum)
{
	uint64_t n = 0;

	for (unsigned int k = 0; k < FB_BUCKETS; k++) {
		sum[k] = pool ? 0 : FB_READ(fb_tr.ended_hist[hist][k]);
		for (uint32_t i = 0; pool && i < fb_trace_lanes(); i++)
			if (same(i, pool))
				sum[k] += FB_READ(fb_tr.ring[i].hist[hist][k]);
		n += sum[k];
	}
	return n;
}

/* The end of the bucket below which so many parts of a hundred are. */
static uint64_t within(const uint64_t *sum, uint64_t n, unsigned int percent)
{
	uint64_t below = 0;
	unsigned int k = 0;

	for (; k < FB_BUCKETS - 1; k++) {
		below += sum[k];
		if (below * 100 >= n * percent)
			break;
	}
	return 2ull << k;
}

static void print_one(unsigned int hist, const char *pool)
{
	uint64_t sum[FB_BUCKETS], n = sum_up(hist, pool, sum);
	char whose[32] = "";

	if (!pool)
		snprintf(whose, sizeof(whose), "ended pools: ");
	else if (*pool)
		snprintf(whose, sizeof(whose), "pool %.16s: ", pool);
	if (!n) {
		fb_say("%s%s: not seen", whose, what[hist]);
		return;
	}
	fb_say("%s%s: %llu seen, half below %llu ns, 99%% below %llu ns",
	       whose, what[hist], (unsigned long long)n,
	       (unsigned long long)within(sum, n, 50),
	       (unsigned long long)within(sum, n, 99));
	for (unsigned int k = 0; k < FB_BUCKETS; k++)
		if (sum[k])
			fb_say("%14llu ns %10llu %.*s",
			       k ? 1ull << k : 0ull, (unsigned long long)sum[k],
			       (int)((sum[k] * 40 + n - 1) / n),
			       "****************************************");
}

static void print_all(const char *pool)
{
	for (unsigned int i = 0; i < FB_HISTS; i++)
		print_one(i, pool);
}

static bool any_ended(void)
{
	uint64_t sum[FB_BUCKETS], n = 0;

	for (unsigned int i = 0; i < FB_HISTS; i++)
		n += sum_up(i, NULL, sum);
	return n;
}

/* Each name once, with the first ring that has it: "" at first. */
void fb_stats_print(void)
{
	uint32_t k;

	for (uint32_t i = 0; i < fb_trace_lanes(); i++) {
		for (k = 0; k < i && !same(k, fb_tr.ring[i].pool); k++)
			;
		if (k == i)
			print_all(fb_tr.ring[i].pool);
	}
	if (any_ended())
		print_all(NULL);
}
