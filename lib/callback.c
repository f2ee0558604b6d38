// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * callback.c - timers of the program: call a function in a fiber
 *
 *			wheel	due	wanted	ticks	running
 *   not armed		-	-	-	0	-
 *   armed		x	-	x	0
 *   due		-	x	x
 *   to be called	(again)		(again)	> 0	x
 *   called		(again)		(again)	0	x	by the fiber
 *
 * `due`: the wheel let it go, and the processor that fired it is on its way to
 * fb_callback_due(). Its links are in that one's hands, so whoever arms the timer
 * meanwhile only says so (`again`), and nobody frees it. `running`: a fiber for the
 * calls exists; it ends when there is nothing to call, which it finds out under the
 * lock. A periodic timer goes back to the wheel before its fiber runs, and `ticks`
 * counts what comes while it does.
 *
 * Every answer is given under the lock: stop takes away `wanted` and `ticks`, the
 * fiber takes away `ticks` to call. So a tick is called or stopped, never both.
 *
 * Locks: t->lock, then a processor's timer_lock. fire() has the latter, so it takes
 * none; nobody holds t->lock and the lock of the queue at once.
 *
 * Our fibers do not keep fiber_fini from ending the runtime, but while a function of
 * the program runs they count as visitors (visit.c).
 *
 * A plain thread has no processor to watch a timer that is now the earliest: it
 * sends a fiber to do that, and waits for it. A fiber of a pool sends one, too: timers
 * are all in the wheels of the default pool, which is where the functions are called,
 * and which looks after these wheels.
 */
#include <stdlib.h>

#include "wait.h"

#define UNBORN_MAX	64
#define RETRY_NS	1000000

struct fiber_timer {
	struct fb_timer timer;		/* first */
	fb_lock_t lock;			/* of all below */
	bool due;			/* atomic: set under timer_lock */
	bool wanted, again, running;
	bool freed;			/* by its own function */
	uint32_t epoch;			/* of the runtime that it was armed in */
	uint64_t period, ticks;
	struct fiber *caller;		/* inside fn */
	struct fb_waitq waiters;	/* until neither due nor running */
	void (*fn)(void *arg, uint64_t ticks);	/* constant, as arg */
	void *arg;
};

/* ---- under the lock ---- */

static struct fiber *retry(struct fb_timer *timer)
{
	(void)timer;
	return FB_TIMER_CALLS;
}

static struct fiber *fire(struct fb_timer *timer)
{
	FB_WRITE(((struct fiber_timer *)timer)->due, true);
	return FB_TIMER_CALLS;
}

/* True: fb_sched_watch must follow. */
static bool arm(struct fb_processor *p, struct fiber_timer *t, uint64_t deadline)
{
	t->wanted = true;
	t->timer.when = deadline;
	t->again = FB_READ(t->due);
	return !t->again && fb_timer_add(p, &t->timer);
}

static bool disarm(struct fiber_timer *t)
{
	bool was = t->wanted || t->ticks;

	if (t->wanted)
		fb_timer_del(&t->timer);
	t->wanted = t->again = false;
	t->ticks = 0;
	return was;
}

/* The runtime that it knew is gone, and with it wheel and fibers. */
static void lock(struct fiber_timer *t)
{
	fb_lock(&t->lock);
	if (t->epoch == fb_rt.epoch)
		return;
	t->epoch = fb_rt.epoch;
	t->wanted = t->again = t->due = t->running = false;
	t->ticks = 0;
	t->caller = NULL;
}

/* Unlocks; *t may be gone then. */
static void unlock_idle(struct fb_processor *p, struct fiber_timer *t)
{
	struct fb_node *list = NULL, **end = &list, *n;

	while (!FB_READ(t->due) && !t->running &&
	       (n = fb_waitq_take(&t->waiters))) {
		n->next = NULL;
		*end = n;
		end = &n->next;
	}
	fb_unlock(&t->lock);
	fb_wake_all(p, list);
}

/* ---- to wait for the calls ---- */

/* Locked, in and out. How many starts it stopped. */
static int stop_wait(struct fb_caller *me, struct fiber_timer *t)
{
	int n = disarm(t);

	while (FB_READ(t->due) || t->running) {
		/* Woken when t is neither. */
		fb_wait_taken(me, &t->lock, &t->waiters, FB_WHY_TIMER);
		lock(t);
		n += disarm(t);
	}
	return n;
}

/* ---- the calls ---- */

/*
 * Due timers wait here for a fiber, without a stack. A fiber takes one after the
 * other, and ends when there is none; it is made for each timer, but not while
 * UNBORN_MAX of them have not begun. Since a call may park, a fiber that begins and
 * leaves timers behind sees to it that another one comes. All decided under the
 * lock, so no timer is left alone; without memory, `retry` looks again.
 */
static struct {
	fb_lock_t lock;
	struct fb_timer *head, **tail;
	unsigned int unborn;		/* fibers made that have not begun */
	bool retrying;
	struct fb_timer retry;		/* armed while retrying */
	uint32_t epoch;			/* as in fiber_timer */
} queue;

static void queue_lock(void)
{
	fb_lock(&queue.lock);
	if (queue.epoch == fb_rt.epoch)
		return;
	queue.epoch = fb_rt.epoch;
	queue.unborn = 0;
	queue.retrying = false;
	queue.head = NULL;
	queue.tail = &queue.head;
}

/* It is due at `now`: count, and go on if it is periodic. */
static bool count(struct fb_processor *p, struct fiber_timer *t, uint64_t now)
{
	uint64_t n = 1, next;

	t->wanted = false;
	if (!t->period) {
		t->ticks = 1;
		return false;
	}
	if (now > t->timer.when)
		n += (now - t->timer.when) / t->period;
	t->ticks += n;
	if (__builtin_mul_overflow(n, t->period, &next) ||
	    __builtin_add_overflow(next, t->timer.when, &next))
		next = FB_NEVER;
	return arm(p, t, next);
}

/* Owner of p, out of the hands of who fired it. True: it is ours to call. */
static bool take(struct fb_processor *p, struct fiber_timer *t, uint64_t now)
{
	bool watch = false, ours;

	lock(t);
	FB_WRITE(t->due, false);
	if (t->again)
		watch = arm(p, t, t->timer.when);
	else if (t->wanted)
		watch = count(p, t, now);
	ours = t->ticks && !t->running;
	if (ours)
		t->running = true;
	unlock_idle(p, t);
	if (watch)
		fb_sched_watch(p);
	return ours;
}

/* The ticks to call for; 0: there are none any more, and *t may be gone. */
static uint64_t begin_call(struct fb_processor *p, struct fiber_timer *t,
			   struct fiber *self)
{
	uint64_t ticks;

	lock(t);
	ticks = t->ticks;
	t->ticks = 0;
	t->caller = ticks ? self : NULL;
	t->running = ticks != 0;
	if (ticks)
		fb_unlock(&t->lock);
	else
		unlock_idle(p, t);
	return ticks;
}

/* Destroyed in its own call, which is over: a tick may be on its way still. */
static void free_own(struct fiber_timer *t)
{
	struct fb_caller me;

	fb_caller_enter(&me);
	lock(t);
	t->running = false;
	stop_wait(&me, t);
	fb_unlock(&t->lock);
	fb_caller_leave(&me);
	free(t);
}

/* All calls of t, which take() gave us. */
static void call(struct fiber_timer *t)
{
	struct fb_carrier *c;
	uint64_t ticks;

	for (;;) {
		c = fb_current();
		ticks = begin_call(fb_enter(c), t, c->cur);
		fb_leave(c);
		if (!ticks || !fb_visit())	/* or fiber_fini was faster */
			return;
		t->fn(t->arg, ticks);
		fb_visit_end();
		if (t->freed) {		/* by this very fiber */
			free_own(t);
			return;
		}
	}
}

static void *calls(void *arg);

/* Owner of p. A fiber that was counted as unborn, made ready; how many. */
static unsigned int make_fiber(struct fb_processor *p)
{
	struct fiber *f = fb_fiber_new(p, calls, NULL);
	bool first;

	if (f) {
		fb_sched_ready_last(p, f);
		return 1;
	}
	queue_lock();
	queue.unborn--;
	first = !queue.retrying;
	queue.retrying = true;
	fb_unlock(&queue.lock);
	queue.retry.when = fiber_now() + RETRY_NS;
	queue.retry.fire = retry;
	if (first && fb_timer_add(p, &queue.retry))
		fb_sched_watch(p);
	return 0;
}

/* The lock is held. Is a fiber to be made, if fewer than max are on their way? */
static bool wants_fiber(unsigned int max)
{
	bool wants = queue.head && queue.unborn < max;

	queue.unborn += wants;
	return wants;
}

/* The next timer, or NULL: end. begun: the caller is one of `unborn` no more. */
static struct fiber_timer *next_timer(struct fb_processor *p, bool begun)
{
	struct fb_timer *t;
	bool more;

	queue_lock();
	queue.unborn -= begun;
	t = queue.head;
	if (t)
		queue.head = t->next;
	if (!queue.head)
		queue.tail = &queue.head;
	more = wants_fiber(1);
	fb_unlock(&queue.lock);
	if (more)
		make_fiber(p);
	return (struct fiber_timer *)t;
}

static void *calls(void *arg)
{
	struct fb_carrier *c = fb_current();
	struct fb_processor *p = fb_enter(c);
	struct fiber_timer *t;
	bool ours;

	for (t = next_timer(p, true); t; t = next_timer(p, false)) {
		ours = take(p, t, fiber_now());
		fb_leave(c);
		if (ours)
			call(t);
		c = fb_current();
		if (FB_READ(c->page->pending))
			c = fb_caller_pending(c);
		p = fb_enter(c);
	}
	fb_leave(c);
	return arg;
}

/*
 * Owner of `to`, no lock held, in_fiber == 0: fire() said FB_TIMER_CALLS. Returns
 * how many fibers were made ready.
 */
unsigned int fb_callback_due(struct fb_processor *to, struct fb_timer *t)
{
	bool make;

	queue_lock();
	if (t == &queue.retry) {
		queue.retrying = false;
	} else {
		t->next = NULL;
		*queue.tail = t;
		queue.tail = &t->next;
	}
	make = wants_fiber(UNBORN_MAX);
	fb_unlock(&queue.lock);
	return make ? make_fiber(to) : 0;
}

/* ---- start ---- */

static void *watch(void *arg)
{
	struct fb_carrier *c = fb_current();

	fb_sched_watch(fb_enter(c));
	fb_leave(c);
	return NULL;
}

/* There is a runtime, and it is not that of a parent process. */
static int enter(struct fb_caller *me)
{
	fb_caller_enter(me);
	if (me->c || me->visiting)
		return 0;
	fb_caller_leave(me);
	return -EPERM;
}

static struct fb_processor *processor_for(const struct fiber_timer *t)
{
	return &fb_rt.proc[(uintptr_t)t / sizeof(*t) % fb_rt.group.nproc];
}

/* Always of the default pool, where the calls are made. NULL: the caller's is not. */
static struct fb_processor *own(const struct fb_caller *me)
{
	return me->p && !me->p->pooled ? me->p : NULL;
}

/* A fiber of a pool: one of the default pool is to watch. */
static int send_to_watch(struct fb_processor *p)
{
	struct fiber *f = fb_fiber_new(p, watch, NULL);

	if (f)
		fb_sched_ready_last(p, f);
	return f ? 0 : -ENOMEM;
}

/* Owner of me->p, or a plain thread. -ENOMEM: nobody would watch it. */
static int settle(struct fb_caller *me, struct fiber_timer *t)
{
	fiber_t *f;

	if (own(me)) {
		fb_sched_watch(me->p);
		return 0;
	}
	if (me->p && !send_to_watch(me->p))
		return 0;
	if (!me->p && !fiber_spawn(&f, watch, NULL))
		return fiber_join(f, NULL);
	lock(t);
	disarm(t);
	fb_unlock(&t->lock);
	return -ENOMEM;
}

static int start(struct fiber_timer *t, uint64_t deadline, uint64_t period,
		 bool anyway)
{
	struct fb_caller me;
	bool earlier;
	int r;

	if (!t)
		return -EINVAL;
	r = enter(&me);
	if (r)
		return r;
	lock(t);
	if (!anyway && (t->wanted || t->ticks)) {
		fb_unlock(&t->lock);
		r = -EBUSY;
	} else {
		r = disarm(t);
		t->period = period;
		earlier = arm(own(&me) ? me.p : processor_for(t), t, deadline);
		fb_unlock(&t->lock);
		if (earlier && settle(&me, t))
			r = -ENOMEM;
	}
	fb_caller_leave(&me);
	return r;
}

FB_EXPORT int fiber_timer_start(fiber_timer_t *t, uint64_t deadline,
				uint64_t period)
{
	return start(t, deadline, period, false);
}

FB_EXPORT int fiber_timer_reset(fiber_timer_t *t, uint64_t deadline,
				uint64_t period)
{
	return start(t, deadline, period, true);
}

/* ---- stop ---- */

static bool inside(const struct fb_caller *me, const struct fiber_timer *t)
{
	return me->c && t->caller == me->c->cur;
}

static int stop(struct fiber_timer *t, bool wait)
{
	struct fb_caller me;
	int r;

	if (!t)
		return -EINVAL;
	r = enter(&me);
	if (r)
		return r;
	lock(t);
	if (!wait)
		r = disarm(t);
	else
		r = inside(&me, t) ? -EDEADLK : stop_wait(&me, t);
	fb_unlock(&t->lock);
	fb_caller_leave(&me);
	return r;
}

FB_EXPORT int fiber_timer_stop(fiber_timer_t *t)
{
	return stop(t, false);
}

FB_EXPORT int fiber_timer_stop_wait(fiber_timer_t *t)
{
	return stop(t, true);
}

/* ---- create and destroy ---- */

FB_EXPORT int fiber_timer_create(fiber_timer_t **out,
				 void (*fn)(void *arg, uint64_t ticks),
				 void *arg)
{
	struct fiber_timer *t;

	if (!out || !fn)
		return -EINVAL;
	t = calloc(1, sizeof(*t));
	if (!t)
		return -ENOMEM;
	t->timer.fire = fire;
	t->fn = fn;
	t->arg = arg;
	*out = t;
	return 0;
}

FB_EXPORT int fiber_timer_destroy(fiber_timer_t *t)
{
	struct fb_caller me;
	bool own = false;
	int r = 0;

	if (!t)
		return 0;
	if (!enter(&me)) {
		lock(t);
		own = inside(&me, t);
		if (own)
			disarm(t);
		else
			stop_wait(&me, t);
		t->freed = own;
		fb_unlock(&t->lock);
		fb_caller_leave(&me);
	} else if (FB_READ(fb_rt.state) != FB_OFF) {
		r = -EPERM;
	}
	if (!own && !r)
		free(t);
	return r;
}
