// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * sched.c - who runs next
 *
 * A carrier that owns a processor goes from fiber to fiber: the one that
 * parks, yields or ends picks the next one and switches straight to it. The
 * carrier's own stack ("root") runs only when nothing is ready: it searches,
 * then sleeps in backend->wait.
 *
 * One pass, fb_pick(): the run-next slot, then the oldest of the ring. Every
 * 61st pass (more often while there are timers: fb_sched_look), and whenever a
 * carrier waits to continue, the slow look: timers, I/O, the global queue, and
 * whether the waiting ones should have the processor now. They get it after
 * GIVE_NS: less would make it spend its time on being handed around.
 *
 * Wake-ups: see ready.c.
 */
#include <time.h>
#include <unistd.h>

#include "cold.h"
#include "contention.h"
#include "held.h"
#include "pass.h"
#include "poller.h"
#include "trace.h"
#include "user.h"

#define LOOK_PASSES	61
#define LOOK_TIMERS	16
#define LOOK_NS		50000
#define GIVE_NS		250000
#define CROWD_NS	80000
#define POLL_NS		1000000		/* without a set to sleep in */

/* ---- watching timers ---- */

void fb_sched_watch(struct fb_processor *p)
{
	/* The timer is in timer_next; pairs with the exchange in fb_sched_unwatch. */
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	/* READY too: WATCH alone preempts nobody, see timer.c. */
	FB_WRITE(p->watch, fb_timer_earliest(p->group) <
			   FB_READ(p->group->watched) ||
			   fb_poller_missing(p->group) ?
			   FB_TAKEOVER_WATCH | FB_TAKEOVER_READY :
			   p->hurry ? FB_TAKEOVER_READY : 0);
	fb_sched_publish(p);
	if (p->look_next > p->pass + p->look_every)
		fb_sched_look_at(p, p->pass + p->look_every);
	if (FB_READ(p->info->avail) & FB_AVAIL_MONITOR)
		fb_user_kick(p->group);
}

/* Is this moment ours to wake at, or does another, as early? FB_NEVER: it does. */
static uint64_t watch_at(uint64_t *watched, uint64_t mine)
{
	uint64_t seen = FB_READ(*watched);

	do {
		if (mine == FB_NEVER || seen <= mine)
			return FB_NEVER;
		/* Pairs with the fence in fb_sched_watch. */
	} while (!__atomic_compare_exchange_n(watched, &seen, mine, false,
					      __ATOMIC_SEQ_CST,
					      __ATOMIC_RELAXED));
	return mine;
}

/* Unless another took over with an earlier one, nobody watches. */
static void unwatch(uint64_t *watched, uint64_t mine)
{
	/* Pairs with the fence in fb_sched_watch: arrive() looks after this. */
	if (mine != FB_NEVER)
		__atomic_compare_exchange_n(watched, &mine, FB_NEVER, false,
					    __ATOMIC_SEQ_CST, __ATOMIC_RELAXED);
}

/*
 * Going to sleep: the deadline to watch, 0 if another does. Timers are watched by
 * their group, what looks for deadlocks by one of all.
 */
uint64_t fb_sched_watching(struct fb_carrier *c)
{
	struct fb_group *g = c->group;

	c->watches = watch_at(&g->watched, fb_unlikely(fb_rt.seeded) ?
			      fb_seed_wake_at() : fb_timer_earliest(g));
	c->looks = watch_at(&fb_rt.looks, fb_deadlock_at());
	if (c->looks < c->watches)
		return c->looks;
	return c->watches == FB_NEVER ? 0 : c->watches;
}

/* Awake again. */
void fb_sched_unwatch(struct fb_carrier *c)
{
	unwatch(&c->group->watched, c->watches);
	unwatch(&fb_rt.looks, c->looks);
}

/* The kernel's tick counts: a quarter of what the exact clock costs. */
__attribute__((noinline)) void fb_sched_clock(struct fb_processor *p)
{
	struct timespec ts;
	uint64_t now;

	clock_gettime(CLOCK_MONOTONIC_COARSE, &ts);
	now = (uint64_t)ts.tv_sec * 1000000000 + (uint64_t)ts.tv_nsec;
	if (now > fb_rt.started)
		p->clock = (uint32_t)((now - fb_rt.started) >> FB_CLOCK_SHIFT) << 2;
	if (fb_unlikely(FB_READ(fb_cold.asleep)))
		fb_cold_wake();
}

__attribute__((noinline)) void fb_sched_rest(struct fb_carrier *c,
					    struct fb_processor *p)
{
	const uint64_t root = 0;

	if (fb_unlikely(p->tracing))
		fb_trace_switch(p, NULL);
	FB_PROBE(switch, c->cur->id, root, p->index);
	c->cur = NULL;
	p->idle_passes++;
	fb_sched_clock(p);
}

/* ---- sleeping and waking carriers ---- */

/* The carrier owns a processor, maybe a new one: make it home. */
static struct fb_processor *arrive(struct fb_carrier *c)
{
	struct fb_group *g = c->group;
	struct fb_processor *p = c->proc;
	uint32_t woken = FB_SEARCH_WOKEN;

	p->given_at = fb_clock();
	p->fired = 0;
	fb_sched_clock(p);
	if (fb_trace_due(p))
		fb_trace_look(p);
	FB_WRITE(g->wake_asked, 0);
	if (fb_unlikely(c->locked))
		fb_pin_entered(c, p);
	/* Pairs with the token of fb_sched_wake_slow. */
	else if (FB_READ(g->search) == FB_SEARCH_WOKEN && !c->cur)
		c->searching = __atomic_compare_exchange_n(&g->search,
				&woken, FB_SEARCH_RUNS, false,
				__ATOMIC_SEQ_CST, __ATOMIC_RELAXED);
	fb_sched_turn(p);
	fb_sched_watch(p);
	if (fb_poller_missing(g))
		fb_sched_wake(p);
	return p;
}

/*
 * Until it owns a processor, c->proc; false: the group is closed. The word is
 * read once: see fb_enter.
 */
static bool wait_processor(struct fb_carrier *c, unsigned int flags,
			   uint64_t deadline)
{
	bool back = c->cur && !(flags & FB_WAIT_GIVE);
	uint64_t id;
	uint32_t i;
	int r;

	if (c->proc)
		fb_san_release(c->proc);
	if (fb_unlikely(FB_READ(fb_tr.on)) && flags & FB_WAIT_GIVE)
		fb_trace_leave(c);
	for (;;) {
		r = fb_rt.backend->wait(c, flags, deadline);
		c->kept = r == FB_EVENT_NONE;
		i = FB_READ(c->page->processor);
		if (i != FB_NO_PROCESSOR) {
			c->proc = &c->group->proc[i];
			c->proc_index = i;
			fb_san_acquire(c->proc);
			if (fb_unlikely(FB_READ(fb_tr.on)))
				fb_trace_arrive(c, r, back);
			id = c->cur ? c->cur->id : 0;
			FB_PROBE(handoff, id, c->proc->index, r);
			return true;
		}
		if (r == -ESHUTDOWN || fb_group_ends(c->group))
			return false;
		if (r < 0 && r != -EINTR)
			fb_die("cannot wait for a processor: error %d", -r);
		/* Given away already. */
		flags &= ~(FB_WAIT_GIVE | FB_WAIT_TO_SPARE);
	}
}

/* A stopped carrier of an abandoned runtime: its fiber never goes on. */
static _Noreturn void stop_here(struct fb_carrier *c)
{
	(void)c;
	for (;;)
		pause();
}

/*
 * fb_enter found i: another processor than last time (a fiber that blocked came
 * back with it), or none: the backend took it, and the fiber is back already.
 */
struct fb_processor *fb_sched_moved(struct fb_carrier *c, uint32_t i)
{
	int err = *c->errno_loc;

	if (i != FB_NO_PROCESSOR) {
		c->proc_index = i;
		c->proc = &c->group->proc[i];
		fb_san_acquire(c->proc);
		if (fb_unlikely(FB_READ(fb_tr.on)))
			fb_trace_moved(c);
		if (fb_unlikely(c->locked))
			fb_pin_entered(c, c->proc);
		return c->proc;
	}
	if (!wait_processor(c, FB_WAIT_READY, 0))
		stop_here(c);
	*c->errno_loc = err;
	return arrive(c);
}

void fb_sched_give(struct fb_carrier *c, struct fb_processor *p, bool to_spare)
{
	struct fiber *f = c->cur && c->cur->flags & FB_F_TIMES ? c->cur : NULL;
	uint64_t from = f ? fb_clock() : 0;
	int err = *c->errno_loc;

	if (fb_sched_retired(p))	/* it is for a spare: to hold it */
		FB_WRITE(p->watch, p->watch | FB_TAKEOVER_READY);
	fb_sched_publish(p);
	if (!wait_processor(c, FB_WAIT_READY | FB_WAIT_GIVE |
			    (to_spare ? FB_WAIT_TO_SPARE : 0), 0))
		stop_here(c);
	*c->errno_loc = err;
	if (f)
		fb_times_waited(f, fb_clock() - from);
	arrive(c);
}

/* ---- one pass ---- */

/* Should the carriers that wait to continue have this processor now? */
bool fb_sched_give_due(struct fb_processor *p)
{
	return FB_READ(p->info->waiting) &&
	       fb_clock() - p->given_at >= GIVE_NS;
}

/*
 * Now and then: timers, and how soon to look again. A pass takes 10 ns or
 * 10 ms: look about every LOOK_NS, but read the clock no oftener than it pays.
 */
__attribute__((noinline)) void fb_sched_look(struct fb_processor *p)
{
	uint64_t now, dt;

	if (p->pass < p->look_next || fb_rt.seeded)
		return;
	p->looks++;
	fb_sched_look_at(p, p->pass + LOOK_PASSES);
	fb_sched_clock(p);
	if (fb_trace_due(p))
		fb_trace_look(p);
	fb_follow(p);
	if (fb_timer_earliest(p->group) == FB_NEVER &&
	    !fb_poller_missing(p->group))
		return;
	now = fb_clock();
	dt = now - p->looked_at;
	p->looked_at = now;
	if (dt > LOOK_NS)
		p->look_every = p->look_every / 4 + 1;
	else if (dt < LOOK_NS / 4 && p->look_every < LOOK_TIMERS)
		p->look_every++;
	fb_sched_look_at(p, p->pass + p->look_every);
	if (fb_timer_fire(p, now))
		fb_sched_watch(p);
	fb_known_verify(p);
	if (fb_poller_missing(p->group))
		fb_poller_look(p, now);
}

/* The next of either ring; NULL: both are empty. */
static struct fiber *pick_any(struct fb_processor *p)
{
	struct fiber *f = p->hurry ? fb_latency_pick(p) : NULL;

	if (fb_unlikely(fb_rt.seeded))
		return fb_seed_pick(p);
	if (!f)
		f = fb_pick_fast(p);
	/* It was the turn of q, but a thief was faster. */
	return f || !p->hurry ? f : fb_latency_pick(p);
}

static inline __attribute__((always_inline)) struct fiber *
pick_slow(struct fb_processor *p)
{
	struct fiber *f;

	if (fb_unlikely(p->locked) && fb_pin_holds(p))
		return NULL;
	if (fb_unlikely(fb_rt.seeded))
		return fb_seed_pick(p);
	if (p->pass >= p->look_next) {
		fb_sched_look(p);
		if (fb_group_ends(p->group) || fb_sched_retired(p))
			return NULL;
		if (p->looks % 8 == 0 ||
		    p->look_next - p->pass >= LOOK_TIMERS) {
			f = fb_sched_global_get(p);
			if (!f) {	/* or run-next could go on for ever */
				fb_sched_turn(p);
				f = fb_runq_pop(&p->q);
			}
			if (f)
				return f;
		}
	}
	if (fb_sched_give_due(p))
		return NULL;
	return pick_any(p);
}

static __attribute__((noinline)) struct fiber *
pick_recorded(struct fb_processor *p)
{
	struct fiber *f;

	if (p->checking)
		fb_held_pass(fb_current());
	if (p->profiling)
		fb_contention_parks(fb_current());
	f = pick_slow(p);
	/* The root tells for itself. */
	if (p->tracing && f && fb_current()->cur)
		fb_trace_switch(p, f);
	return f;
}

__attribute__((noinline)) struct fiber *
fb_sched_pick_slow(struct fb_processor *p)
{
	return fb_unlikely(p->marks & FB_RECORDING) ? pick_recorded(p) :
						      pick_slow(p);
}

/* ---- what fibers do ---- */

void fb_sched_park(struct fb_carrier *c, struct fb_processor *p,
		   fb_switch_fn fn, void *arg)
{
	struct fiber *self = c->cur;
	struct fb_ctx *to;

	FB_PROBE(park, self->id, self->why);
	fb_sched_suspend(c, self);
	fb_sched_unpend(c);
	to = fb_dispatch(c, p, self, fb_pick(p));
	self->w.kind = p->clock;	/* and FB_FIBER */
	fb_sched_publish(p);
	c = fb_switch_call(c, &self->ctx, to, fn, arg);
	fb_sched_resume(c, self);
}

_Noreturn void fb_sched_quit(struct fb_carrier *c, struct fb_processor *p,
			     fb_switch_fn fn, void *arg)
{
	struct fiber *self = c->cur, *f;
	struct fb_ctx *to;

	fb_sched_unpend(c);
	f = fb_pick(p);
	to = fb_dispatch(c, p, self, f);
	if (f)
		p->idle_passes++;	/* p->ended counts this switch */
	fb_sched_publish(p);
	fb_san_last(&self->ctx);
	fb_switch_call(c, &self->ctx, to, fn, arg);
	__builtin_unreachable();
}

/* ---- the root ---- */

static struct fiber *look_around(struct fb_carrier *c, struct fb_processor *p)
{
	struct fiber *f = fb_pick(p);

	if (!f && !fb_sched_give_due(p))
		f = fb_sched_global_get(p);
	if (!f && fb_unlikely(fb_rt.seeded))
		return fb_seed_idle(p);
	if (!f && fb_timer_fire(p, fb_clock())) {
		fb_sched_watch(p);
		f = pick_any(p);
	}
	if (fb_known_verify(p) && !f)
		f = pick_any(p);
	/* A single processor sleeps at once, and sees what is ready. */
	if (!f && fb_poller_wanted(p->group) && p->group->nproc > 1 &&
	    fb_poller_look(p, FB_NEVER))
		f = pick_any(p);
	if (!f && fb_sched_empty(p)) {
		if (FB_READ(p->info->waiting))
			c->kept = false;	/* as in find() */
		else
			f = fb_search(c, p);
	}
	return f;
}

/*
 * The next fiber without leaving the processor, or NULL. Either way without the
 * token: who slept with it would keep everybody else from being woken. Carriers
 * that wait may have kept us from looking, so what there is goes to others.
 */
static struct fiber *find(struct fb_carrier *c, struct fb_processor *p)
{
	struct fiber *f = NULL;

	if (fb_sched_retired(p)) {
		fb_retire(c, p);
		arrive(c);
	}
	if (fb_sched_give_due(p))
		c->kept = false;	/* we do not know that there is nothing */
	else
		f = look_around(c, p);
	if (!f)
		p->idle_passes++;
	if (c->searching) {
		fb_search_end(c);
		if (fb_sched_work(p))
			fb_sched_wake(p);
	}
	return f;
}

/*
 * With many timers an idle carrier would be woken for each, which costs 100 times what
 * a timer does. If more than one were due this time, it wakes for all that fall due
 * within CROWD_NS of its last wake-up.
 */
static uint64_t with_slack(const struct fb_processor *p, uint64_t deadline)
{
	uint64_t soonest = p->given_at + CROWD_NS;

	return deadline && deadline < soonest && p->fired > 1 ? soonest : deadline;
}

/* Until work comes, or the deadline. False: it is the end. */
static bool sleep_idle(struct fb_carrier *c, uint64_t deadline)
{
	struct fb_group *g = c->group;
	uint64_t soon;

	if (fb_poller_wanted(g)) {
		if (fb_likely(fb_poller_ready(g))) {
			fb_poller_sleep(c, deadline);
			return true;
		}
		soon = fb_clock() + POLL_NS;
		if (!deadline || soon < deadline)
			deadline = soon;
	}
	/* Told of work, searched, found none: a takeover word is stale. */
	return wait_processor(c, FB_WAIT_SPARE | FB_WAIT_GIVE |
			      (c->kept ? FB_WAIT_SURE : 0), deadline);
}

/* Give the processor away, if nobody has work for it; come back with one. */
static bool idle(struct fb_carrier *c, struct fb_processor *p)
{
	bool ok;

	if (fb_unlikely(fb_stack_idle(p)))
		return true;
	FB_WRITE(p->watch, p->hurry ? FB_TAKEOVER_READY : 0);
	fb_sched_publish(p);
	fb_deadlock_idle();
	ok = sleep_idle(c, with_slack(p, fb_sched_watching(c)));
	fb_sched_unwatch(c);
	if (ok)
		arrive(c);
	return ok;
}

void fb_sched_loop(struct fb_carrier *c)
{
	const uint64_t root = 0;
	struct fb_processor *p;
	struct fiber *f;

	if (!wait_processor(c, FB_WAIT_SPARE, 0))
		return;
	arrive(c);
	while (!fb_group_ends(c->group)) {
		f = c->locked ? fb_pin_wait(c) : find(c, c->proc);
		p = c->proc;
		if (!f) {
			if (!idle(c, p))
				return;
			continue;
		}
		fb_sched_heed(c);
		fb_sched_publish(p);
		if (fb_unlikely(p->tracing))
			fb_trace_switch(p, f);
		FB_PROBE(switch, root, f->id, p->index);
		c->cur = f;
		fb_follow(p);
		fb_switch(c, &c->root, &f->ctx);
		c->kept = false;	/* it may have waited meanwhile */
	}
}
