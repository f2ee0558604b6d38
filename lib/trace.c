// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * trace.c - record who ran where (FIBER_TRACE=file)
 *
 * Each processor has a ring of events, written by its owner alone, which keeps the
 * newest: ring[i] that of processor i of the default pool, ring[nproc] is for plain
 * threads, under a lock, and ring[i + 1] that of processor i of another pool, which has
 * its events mapped when there is the first. One that serves several pools, one after
 * the other, has the name of the last; each begins with an event. Nothing is read before
 * the runtime has ended (fb_trace_stop), the program exits, or it dies of what this
 * library reports; in the last two cases carriers may still run: they see `stopped`
 * and record no more, and an event that is torn all the same is one wrong slice.
 *
 * What it costs. Off, a hook is a branch where the slow way is gone anyway, or none:
 * recorded switches go through fb_sched_pick_slow, because look_at is 0, and ends
 * through end_slow, because pool_max is 0, while p->tracing is set; else both are as
 * ever. On, an event costs about as much as a switch. So switches are recorded in
 * windows of WINDOW events, and after each the next begins so much later that an
 * event comes no oftener than once in fb_tr.pace: 3% of a processor's time, or what
 * FIBER_TRACE_COST says. A program with few switches is recorded completely; what is
 * rare (blocks, handoffs, returns, preemptions, idle processors) always is.
 *
 *	window closed			open
 *	tracing 0			tracing 1, look_at 0, pool_max 0
 *	  a look (every 61 passes), or an arrival, after `resume`:  OPEN
 *	  left is 0:						    CLOSE
 *
 * Blocks. The kernel takes a processor from a carrier that sleeps: the library hears
 * of it when another carrier has got it. If the one that owned it before, ring->owner,
 * stands in its fiber and owns none, it blocked, and as it does not run before it owns
 * one, its cur is read safely. A carrier that comes back does so in upcall.S, which
 * notes the time in c->returned; who records next on that carrier records RETURN
 * first, with that time, so that a ring stays in order. One that finds an idle
 * processor as it wakes goes on without an upcall: its RETURN has the later time.
 *
 * The file is created at the start, so that an error is told then, and written at
 * the end under its full name: once, by whoever ends the runtime or the process first
 * (fb_os_report_begin), and no ring goes before that is done. The child of a fork has
 * another pid: it writes none.
 *
 * Another process can have it recorded too, and reads the rings: trace_outside.c.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "pass.h"
#include "trace.h"

#define EVENTS		65536
#define MIN_EVENTS	1024
#define MAX_EVENTS	(1 << 24)
#define WINDOW		1024
#define COST		3		/* % */
#define TRIES		64		/* a page of them, to see what one costs */
#define PAGES		4
#define BESIDE		5		/* times: caches, the slower ways */

struct fb_trace fb_tr;
uint32_t fb_upcall_trace;

/* ---- one event ---- */

/* name, of 16 bytes, is f's, or it is about nobody. */
static inline void put_named(struct fb_tring *r, unsigned int kind,
			     const struct fiber *f, const char *name,
			     uint64_t time, uint64_t other, int tid,
			     unsigned int why)
{
	struct fb_trace_event *e = &r->event[r->n & fb_tr.mask];

	e->time = time;
	e->id = f ? f->id : 0;
	e->other = other;
	e->fn = f ? (uintptr_t)f->fn : 0;
	if (name)
		memcpy(e->name, name, sizeof(e->name));
	else
		e->name[0] = 0;
	e->tid = (uint32_t)tid;
	e->kind = (uint8_t)kind;
	e->why = (uint8_t)why;
	if (fb_tr.stats)
		fb_stats_event(r, e);
	FB_RELEASE(r->n, r->n + 1);	/* Pairs with lane in trace_file.c. */
}

static void put(struct fb_tring *r, unsigned int kind, const struct fiber *f,
		uint64_t time, uint64_t other, int tid, unsigned int why)
{
	put_named(r, kind, f, f ? f->name : NULL, time, other, tid, why);
}

static inline uint64_t id_of(const struct fiber *f)
{
	return f ? f->id : 0;
}

/* Who owned p before stands in its fiber, without a processor: it blocked. */
FB_LOOKS static struct fiber *blocked_on(struct fb_processor *p, int *tid)
{
	struct fb_carrier *from = p->trace->owner;
	struct fb_cpage *page = from ? FB_READ(from->page) : NULL;

	if (!page || !FB_READ(page->in_fiber) ||
	    FB_READ(page->processor) != FB_NO_PROCESSOR)
		return NULL;
	*tid = from->tid;
	return FB_SEE(from->cur);
}

/* c owns p now: BLOCK, if it was taken from a blocked one. */
static void take_over(struct fb_carrier *c, struct fb_processor *p,
		      uint64_t time, bool blocked)
{
	int tid = 0;
	const struct fiber *f = blocked_on(p, &tid);

	if (f || blocked)
		put(p->trace, FB_TRACE_BLOCK, f, time, (uint64_t)c->tid, tid, 0);
	p->trace->owner = c;
}

/* c is back: upcall.S noted when, or it found p idle, and nobody saw it. */
static void note_return(struct fb_carrier *c, struct fb_processor *p)
{
	uint64_t at = (uint64_t)c->returned.tv_sec * 1000000000 +
		      (uint64_t)c->returned.tv_nsec;
	const struct fiber *f;

	if (at < FB_READ(fb_tr.began))	/* or it is of an earlier recording */
		at = 0;
	f = at ? c->returned_as : c->cur;
	if (!at)
		at = fb_clock();
	c->returned.tv_sec = 0;
	take_over(c, p, at, false);
	put(p->trace, FB_TRACE_RETURN, f, at, 0, c->tid, 0);
}

static void record(struct fb_carrier *c, struct fb_processor *p,
		   unsigned int kind, const struct fiber *f, uint64_t other,
		   unsigned int why)
{
	if (FB_READ(fb_tr.stopped))
		return;
	if (fb_unlikely(c->returned.tv_sec || p->trace->owner != c))
		note_return(c, p);
	put(p->trace, kind, f, fb_clock(), other, c->tid, why);
}

/* ---- windows ---- */

static void window_open(struct fb_carrier *c, struct fb_processor *p,
			uint64_t now)
{
	p->trace->opened = now;
	p->trace->left = WINDOW;
	p->tracing = 1;
	p->pool_max = 0;
	fb_sched_look_at(p, p->look_next);
	record(c, p, FB_TRACE_OPEN, c->cur, 0, 0);
}

static void window_close(struct fb_carrier *c, struct fb_processor *p)
{
	struct fb_tring *r = p->trace;
	uint64_t now = fb_clock();

	r->resume = r->opened + WINDOW * fb_tr.pace;
	if (r->resume <= now) {
		r->opened = now;
		r->left = WINDOW;
		return;
	}
	p->tracing = 0;
	p->pool_max = FB_POOL_MAX;
	fb_sched_look_at(p, p->look_next);
	record(c, p, FB_TRACE_CLOSE, NULL, 0, 0);
}

void fb_trace_look(struct fb_processor *p)
{
	uint64_t now;

	if (fb_unlikely(FB_READ(fb_tr.asked) || FB_READ(fb_tr.outside) ||
			!FB_READ(fb_tr.on)))
		fb_outside_look(p);
	/* It runs on by itself; to read another at each look would show. */
	if (!p->trace || p->tracing || p->clock == p->trace->clock)
		return;
	p->trace->clock = p->clock;
	now = fb_clock();
	if (now >= p->trace->resume)
		window_open(fb_current(), p, now);
}

/* ---- in a window ---- */

static void record_some(struct fb_carrier *c, struct fb_processor *p,
			unsigned int kind, const struct fiber *f, uint64_t other,
			unsigned int why)
{
	record(c, p, kind, f, other, why);
	if (!--p->trace->left)
		window_close(c, p);
}

void fb_trace_switch(struct fb_processor *p, struct fiber *f)
{
	struct fb_carrier *c = fb_current();
	const struct fiber *self = c->cur;
	unsigned int why = self ? self->why : 0;

	if (f)
		record_some(c, p, FB_TRACE_SWITCH, f, id_of(self), why);
	else
		record_some(c, p, FB_TRACE_REST, self, 0, why);
}

void fb_trace_spawn(struct fb_processor *p, struct fiber *f)
{
	struct fb_carrier *c = fb_current();

	record_some(c, p, FB_TRACE_SPAWN, f, id_of(c->cur), 0);
}

void fb_trace_end(struct fb_processor *p, struct fiber *f)
{
	record_some(fb_current(), p, FB_TRACE_END, f, 0, 0);
}

void fb_trace_ready(struct fb_processor *p, struct fiber *f)
{
	struct fb_carrier *c = fb_current();

	record_some(c, p, FB_TRACE_READY, f, id_of(c->cur), 0);
}

void fb_trace_steal(struct fb_processor *p, struct fiber *f, uint64_t from)
{
	record_some(fb_current(), p, FB_TRACE_STEAL, f, from, 0);
}

/* ---- always ---- */

void fb_trace_preempt(struct fb_processor *p, struct fiber *f)
{
	record(fb_current(), p, FB_TRACE_PREEMPT, f, 0, 0);
}

void fb_trace_leave(struct fb_carrier *c)
{
	if (c->proc->trace)
		record(c, c->proc, FB_TRACE_LEAVE, c->cur, 0, 0);
}

void fb_trace_arrive(struct fb_carrier *c, int event, bool back)
{
	struct fb_processor *p = c->proc;
	uint64_t now;

	if (!p->trace || FB_READ(fb_tr.stopped))
		return;
	c->returned.tv_sec = 0;		/* it has waited again since */
	now = fb_clock();
	take_over(c, p, now, event == FB_EVENT_BLOCK);
	record(c, p, back ? FB_TRACE_RETURN : FB_TRACE_ARRIVE, c->cur, 0,
	       (unsigned int)event);
	if (!p->tracing && now >= p->trace->resume)
		window_open(c, p, now);
}

void fb_trace_moved(struct fb_carrier *c)
{
	if (c->returned.tv_sec && c->proc->trace && !FB_READ(fb_tr.stopped))
		note_return(c, c->proc);
}

void fb_trace_ready_global(struct fiber *f)
{
	struct fb_tring *r;

	/* Pairs with the release in begin in trace_outside.c: the rings. */
	if (!FB_ACQUIRE(fb_tr.on) || FB_READ(fb_tr.stopped))
		return;
	r = &fb_tr.ring[fb_rt.group.nproc];
	fb_lock(&fb_tr.lock);
	put(r, FB_TRACE_READY, f, fb_clock(), 0, 0, 0);
	fb_unlock(&fb_tr.lock);
}

/* ---- the end ---- */

static void write_once(void)
{
	int r, err = errno;

	FB_WRITE(fb_tr.stopped, 1);
	if (!fb_os_report_begin(&fb_tr.report))
		return;
	fb_tr.ended = fb_clock();
	if (fb_tr.stats)
		fb_stats_print();
	r = fb_tr.path[0] ? fb_trace_write() : 0;
	if (r)
		fb_say("FIBER_TRACE: %s is not whole: %s", fb_tr.path,
		       strerror(-r));
	fb_os_report_end(&fb_tr.report);
	errno = err;
}

/* Carriers may run on: the rings stay. */
void fb_trace_fatal(void)
{
	if (FB_READ(fb_tr.on) && fb_tr.pid == getpid())
		write_once();
}

/* ---- rings ---- */

static size_t ring_bytes(void)
{
	return ((size_t)fb_tr.mask + 1) * sizeof(struct fb_trace_event);
}

static void *map(size_t bytes)
{
	void *m = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	return m == MAP_FAILED ? NULL : m;
}

/* With its events; NULL: no memory. Whoever may write it. */
static struct fb_tring *ring_at(uint32_t i)
{
	struct fb_tring *r = &fb_tr.ring[i];

	if (!r->event)
		FB_WRITE(r->event, map(ring_bytes()));
	return r->event ? r : NULL;
}

static void unmap_rings(void)
{
	struct fb_tring *ring = fb_tr.ring;

	FB_WRITE(fb_tr.ring, NULL);
	for (uint32_t i = 0; ring && i < fb_trace_lanes(); i++)
		if (ring[i].event)
			munmap(ring[i].event, ring_bytes());
	if (ring)
		munmap(ring, FB_TRACE_RINGS * sizeof(*ring));
}

static int map_rings(void)
{
	fb_tr.ring = map(FB_TRACE_RINGS * sizeof(*fb_tr.ring));
	if (!fb_tr.ring)
		return -ENOMEM;
	for (uint32_t i = 0; i <= fb_rt.group.nproc; i++)
		if (!ring_at(i)) {
			unmap_rings();
			return -ENOMEM;
		}
	return 0;
}

void fb_trace_forget(void)
{
	struct fb_trace_event *event;

	for (uint32_t i = 0; i < fb_trace_lanes(); i++) {
		event = FB_READ(fb_tr.ring[i].event);
		if (event)
			madvise(event, ring_bytes(), MADV_DONTNEED);
	}
}

/* ---- who takes part ---- */

/* r was another pool's: what it counted is of one that is no more. */
static void keep_counts(struct fb_tring *r)
{
	for (unsigned int h = 0; h < FB_HISTS; h++)
		for (unsigned int k = 0; k < FB_BUCKETS; k++)
			__atomic_fetch_add(&fb_tr.ended_hist[h][k], r->hist[h][k],
					   __ATOMIC_RELAXED);
	memset(r->hist, 0, sizeof(r->hist));
}

void fb_trace_join(struct fb_processor *p, struct fb_carrier *owner)
{
	const struct fb_group *g = p->group;
	struct fb_tring *r = ring_at(p->index + (g->index != 0));

	if (!r)
		return;
	if (memcmp(r->pool, g->name, sizeof(r->pool)))
		keep_counts(r);
	memcpy(r->pool, g->name, sizeof(r->pool));
	r->group = g->index;
	r->owner = owner;
	r->left_at = r->resume = 0;
	r->clock = ~p->clock;		/* a window may begin now */
	p->trace = r;
}

void fb_trace_pool(struct fb_group *g)
{
	struct fb_processor *p = g->proc;

	/* Asked from outside they take part as all do, at a look. */
	if (!FB_READ(fb_tr.on) || FB_READ(fb_tr.outside) != FB_OUTSIDE_OFF)
		return;
	for (; p < g->proc + g->nproc; p++) {
		fb_trace_join(p, NULL);
		if (p->trace)
			put_named(p->trace, FB_TRACE_POOL, NULL, g->name,
				  fb_clock(), p->place, 0, 0);
	}
	if (!p[-1].trace)
		fb_say("FIBER_TRACE: no memory to record pool %s", g->name);
}

/* ---- start ---- */

/*
 * How long an event takes, on memory that is touched the first time: the best of some
 * pages of them, as the machine may be away meanwhile.
 */
static uint64_t event_ns(void)
{
	struct fb_tring *r = &fb_tr.ring[fb_rt.group.nproc];
	uint64_t best = FB_NEVER, from, ns;

	for (int i = 0; i < PAGES; i++) {
		from = fb_clock();
		for (int k = 0; k < TRIES; k++)
			put(r, 0, NULL, fb_clock(), 0, 0, 0);
		ns = fb_clock() - from;
		best = ns < best ? ns : best;
	}
	r->n = 0;
	return best / TRIES + 1;
}

int fb_trace_rings(uint64_t events, uint64_t cost)
{
	int r;

	while (events & (events - 1))
		events &= events - 1;
	fb_tr.mask = (uint32_t)events - 1;
	r = map_rings();
	if (r)
		return r;
	fb_tr.pace = event_ns() * BESIDE * 100 / cost;
	if (cost == 100 || fb_rt.seeded)	/* whose time is not the point */
		fb_tr.pace = 0;
	fb_tr.pid = getpid();
	FB_WRITE(fb_tr.report.by, 0);
	FB_WRITE(fb_tr.stopped, 0);
	FB_WRITE(fb_tr.began, fb_clock());
	return 0;
}

static void switch_on(void)
{
	for (uint32_t i = 0; i < fb_rt.group.nproc; i++)
		fb_trace_join(&fb_rt.proc[i], NULL);
	fb_stats_start();
	FB_WRITE(fb_tr.on, true);
	FB_WRITE(fb_upcall_trace, 1);
}

/* path NULL: nothing is to be kept, only counted. */
static int start(const char *path)
{
	uint64_t events = path ? EVENTS : MIN_EVENTS, cost = COST;
	static bool watched;
	int r;

	r = fb_env_number("FIBER_TRACE_EVENTS", MIN_EVENTS, MAX_EVENTS, &events);
	if (r >= 0)
		r = fb_env_number("FIBER_TRACE_COST", 1, 100, &cost);
	if (r < 0)
		return r;
	fb_tr.path[0] = 0;
	r = path ? fb_os_create(path, fb_tr.path) : 0;
	if (r) {
		fb_say("FIBER_TRACE=%s: cannot be written: %s", path,
		       strerror(-r));
		return r;
	}
	r = fb_trace_rings(events, cost);
	if (!r && !watched)
		r = -atexit(fb_trace_fatal);
	watched |= !r;
	if (!r)
		switch_on();
	return r;
}

int fb_trace_start(void)
{
	const char *path = secure_getenv("FIBER_TRACE");
	uint64_t stats = 0;
	int err = errno, r = fb_env_number("FIBER_STATS", 0, 1, &stats);

	fb_tr.stats = stats;
	if (path && !*path)
		path = NULL;
	if (r >= 0)
		r = path || stats ? start(path) : 0;
	errno = err;
	return r;
}

void fb_trace_stop(void)
{
	if (fb_tr.on)
		write_once();
	FB_WRITE(fb_tr.on, false);
	fb_tr.outside = FB_OUTSIDE_OFF;
	FB_WRITE(fb_tr.asked, 0);
	FB_WRITE(fb_upcall_trace, 0);
	for (uint32_t i = 0; i < fb_processors(); i++)
		fb_rt.proc[i].trace = NULL;
	unmap_rings();
}
