// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * task.c - stackless tasks; taskwait.c has what they wait for
 *
 * A task is a waiter (wait.h) without a fiber. Up to one runner a processor, which
 * is a fiber, takes ready tasks from one queue and calls them.
 *
 *   state	found through		edge out
 *   READY	the queue		a runner takes it
 *   RUNNING	its runner		await, end
 *   WAITING	nodes, its timer	whoever claims it: taskwait.c
 *
 * Timers fire inside a schedule pass, maybe that of a runner that goes to sleep with
 * an object locked, so they take no lock: they push to a list of their own, which
 * runners move to the queue. No runner misses a task:
 *
 *	who makes a task ready		runner, off its stack
 *	queue or list = task		slot.idle = 1
 *	full barrier			full barrier
 *	a slot is idle: CAS(idle, 1, 0)	queue or list not empty: CAS(idle, 1, 0)
 *	  won: make it ready		  won: make itself ready
 *
 * Runners end when no task is alive, and are owned by a scope of nobody, which
 * fiber_fini closes: so no runner keeps a runtime alive that has no tasks.
 */
#include <string.h>

#include "scope.h"
#include "task.h"

#define TURNS	64			/* tasks, then other fibers */
#define RUNNERS	64

struct runner {
	struct fiber *f;		/* NULL: no runner; tasks.lock */
	uint32_t idle;			/* atomic: f is parked, whoever clears wakes */
} __attribute__((aligned(FB_LINE)));

static struct {
	struct task *fired;		/* atomic: by timers, last first */
	fb_lock_t lock;			/* of all below */
	struct task *head, *tail;	/* ready ones; head is read by all */
	uint64_t live;			/* started and not ended; read by all */
	uint32_t runners;
	bool open;			/* scope is */
	fiber_scope_t scope;		/* of the runners; its own lock */
	struct runner runner[RUNNERS];
} tasks;

static fiber_task_t *public(struct task *t)
{
	return (fiber_task_t *)t;
}

/* ---- runners that have nothing to do ---- */

/* One a processor; they fill the first slots. */
static uint32_t max_runners(void)
{
	uint32_t n = fb_rt.group.nproc;

	return n < RUNNERS ? n : RUNNERS;
}

static bool claim_idle(struct runner *r)
{
	uint32_t one = 1;

	/* Pairs with the exchange in go_idle. */
	return FB_READ(r->idle) &&
	       __atomic_compare_exchange_n(&r->idle, &one, 0, false,
					   __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
}

/* A task was made ready: a runner to be made ready for it, or NULL. */
static struct fiber *find_idle(void)
{
	/* Pairs with the exchange in go_idle. */
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	for (uint32_t i = 0; i < max_runners(); i++)
		if (claim_idle(&tasks.runner[i]))
			return tasks.runner[i].f;
	return NULL;
}

static bool nothing_to_do(void)
{
	return !FB_READ(tasks.head) && !FB_READ(tasks.fired) &&
	       FB_READ(tasks.live);
}

/* Off the runner's stack. */
static void go_idle(struct fb_processor *p, void *object)
{
	struct runner *r = object;
	struct fiber *f = r->f;

	/* Full barrier: pairs with the fence in find_idle, and in ended(). */
	__atomic_exchange_n(&r->idle, 1, __ATOMIC_SEQ_CST);
	if (!nothing_to_do() && claim_idle(r))
		fb_sched_ready(p, f);
}

/* ---- the queue ---- */

/* The lock is held. */
static void append(struct task *t)
{
	t->link = NULL;
	if (tasks.tail)
		tasks.tail->link = t;
	else
		FB_WRITE(tasks.head, t);
	tasks.tail = t;
}

/* t runs next but all others; a runner to be made ready for it, or NULL. */
static struct fiber *put(struct task *t)
{
	fb_lock(&tasks.lock);
	append(t);
	fb_unlock(&tasks.lock);		/* the last touch of t */
	return find_idle();
}

/* The same for timers: no lock. */
struct fiber *fb_task_fired(struct task *t)
{
	t->link = FB_READ(tasks.fired);
	/* Pairs with the exchange in take_fired. */
	while (!__atomic_compare_exchange_n(&tasks.fired, &t->link, t, true,
					    __ATOMIC_RELEASE, __ATOMIC_RELAXED))
		;
	return find_idle();
}

/* The lock is held. Oldest first. */
static void take_fired(void)
{
	struct task *t, *next, *turned = NULL;

	if (!FB_READ(tasks.fired))
		return;
	/* Pairs with the release in fb_task_fired. */
	t = __atomic_exchange_n(&tasks.fired, NULL, __ATOMIC_ACQUIRE);
	for (; t; t = next) {
		next = t->link;
		t->link = turned;
		turned = t;
	}
	for (t = turned; t; t = next) {
		next = t->link;
		append(t);
	}
}

static void wake_runner(struct fb_processor *p, struct fiber *f)
{
	if (f && p)
		fb_sched_ready_last(p, f);
	else if (f)
		fb_sched_ready_global(f);
}

void fb_task_put(struct fb_processor *p, struct task *t)
{
	wake_runner(p, put(t));
}

/* The next one; NULL: none is alive, and the runner is not counted any more. */
static struct task *take(struct fb_caller *me, struct runner *r)
{
	struct fb_wait k;
	struct task *t;

	for (;;) {
		fb_lock(&tasks.lock);
		take_fired();
		t = tasks.head;
		if (t || !tasks.live)
			break;
		fb_unlock(&tasks.lock);
		fb_wait_begin(me, &k, FB_NEVER, false);
		k.unlock = go_idle;
		k.object = r;
		fb_wait(me, &k, FB_WHY_TASK);
	}
	if (t) {
		FB_WRITE(tasks.head, t->link);
		if (!t->link)
			tasks.tail = NULL;
	} else {
		tasks.runners--;
		r->f = NULL;
	}
	fb_unlock(&tasks.lock);
	return t;
}

/* ---- run ---- */

static void ended(void)
{
	struct fb_caller me;
	bool last;

	fb_caller_enter(&me);
	fb_lock(&tasks.lock);
	last = tasks.live == 1;
	FB_WRITE(tasks.live, tasks.live - 1);
	fb_unlock(&tasks.lock);
	while (last) {		/* each of them ends */
		struct fiber *f = find_idle();

		wake_runner(me.p, f);
		last = f;
	}
	fb_caller_leave(&me);
}

static void run(struct task *t)
{
	void (*done)(fiber_task_t *t) = t->done;
	int r;

	if (t->line)
		fb_task_woken(t);
	r = t->fn(public(t));
	/* Without `done` *t may be gone, as it may if it waits. */
	if (r == FIBER_TASK_WAITS)
		return;
	if (done)
		t->result = r;
	/* Counted first: who hears of its end may stop the runtime. */
	ended();
	if (done)
		done(public(t));
}

/* The caller is counted already; there is a slot for each. */
static struct runner *enlist(struct fb_caller *me)
{
	struct runner *r = tasks.runner;

	fb_lock(&tasks.lock);
	while (r->f)
		r++;
	r->f = me->c->cur;
	fb_unlock(&tasks.lock);
	return r;
}

static int runs(void *arg)
{
	unsigned int turns = 0;
	struct fb_caller me;
	struct runner *r = NULL;
	struct task *t;

	(void)arg;
	fiber_shield_begin();
	for (;;) {
		fb_caller_enter(&me);
		if (!r)
			r = enlist(&me);
		t = take(&me, r);
		fb_caller_leave(&me);
		if (!t)
			return 0;
		run(t);
		if (++turns % TURNS == 0)
			fiber_yield();
	}
}

/* ---- start ---- */

/* One more is alive: is another runner wanted? */
static bool count_one(void)
{
	struct fb_caller me;
	bool more;

	fb_caller_enter(&me);
	fb_lock(&tasks.lock);
	FB_WRITE(tasks.live, tasks.live + 1);
	more = tasks.runners < max_runners();
	if (more)
		tasks.runners++;
	if (!tasks.open)
		fb_scope_init(&tasks.scope);
	tasks.open = true;
	fb_unlock(&tasks.lock);
	fb_caller_leave(&me);
	return more;
}

/* No runner could be made: 0 if there are others. */
static int no_runner(int r)
{
	struct fb_caller me;
	bool none;

	fb_caller_enter(&me);
	fb_lock(&tasks.lock);
	none = !--tasks.runners;
	fb_unlock(&tasks.lock);
	fb_caller_leave(&me);
	if (none)
		ended();
	return none ? r : 0;
}

FB_EXPORT int fiber_task_start(fiber_task_t *task, int (*fn)(fiber_task_t *t),
			       void (*done)(fiber_task_t *t))
{
	struct fiber_attr attr = { .size = sizeof(attr), .name = "tasks",
				   .pool = FIBER_POOL_DEFAULT };
	struct task *t = (struct task *)task;
	struct fb_caller me;
	int r = 0;

	if (!t || !fn)
		return -EINVAL;
	if (FB_ACQUIRE(fb_rt.state) != FB_ON)	/* pairs with fiber_init */
		return -EPERM;
	memset(t, 0, sizeof(*t));
	t->fn = fn;
	t->done = done;
	t->w.kind = FB_TASK;
	if (count_one())
		r = fiber_scope_spawn_attr(&tasks.scope, &attr, runs, NULL);
	if (r)
		r = no_runner(r);
	if (r)
		return r;
	fb_caller_enter(&me);
	fb_task_put(me.p, t);
	fb_caller_leave(&me);
	return 0;
}

void fb_task_settle(void)
{
	bool close;

	fb_lock(&tasks.lock);
	close = tasks.open && !tasks.live;
	fb_unlock(&tasks.lock);
	if (!close)
		return;
	fiber_scope_close(&tasks.scope);
	fb_lock(&tasks.lock);
	tasks.open = tasks.runners;
	fb_unlock(&tasks.lock);
}
