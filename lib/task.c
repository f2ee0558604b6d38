// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * task.c - stackless tasks
 *
 * A task is a waiter (wait.h) without a fiber. Up to one runner a processor, which
 * is a fiber, takes ready tasks from one queue and calls them.
 *
 *   state	found through		edge out
 *   READY	the queue		a runner takes it
 *   RUNNING	its runner		await, end
 *   WAITING	nodes, its timer	whoever claims it: fb_task_ready, time_out
 *
 * There is no stack to leave, so a wait begins inside the await: nodes are queued,
 * the word is set, the timer armed, the object unlocked. From the last of those on
 * the task may run elsewhere, or be gone: the await returns without a look at it.
 * A timer that fires before the unlock makes it run on another runner, which takes
 * the object's lock first (settle_wait).
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

#include "chan.h"
#include "scope.h"
#include "task.h"

#define TURNS	64			/* tasks, then other fibers */
#define RUNNERS	64

struct task {
	uint32_t line;
	int32_t result;
	int (*fn)(fiber_task_t *t);
	void (*done)(fiber_task_t *t);
	struct task *link;		/* tasks.lock */
	struct fb_waiter w;
	struct fb_node n;
	struct fb_timer timer;		/* .when FB_NEVER: not used */
	struct fiber_chan *ch;		/* where n is queued, or NULL */
};

_Static_assert(sizeof(struct task) <= sizeof(struct fiber_task) &&
	       offsetof(struct task, line) ==
	       offsetof(struct fiber_task, line) &&
	       offsetof(struct task, result) ==
	       offsetof(struct fiber_task, result) &&
	       sizeof(struct fiber_task) < 200, "fiber_task");

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

static struct task *task_of(struct fb_waiter *w)
{
	return (struct task *)((char *)w - offsetof(struct task, w));
}

/* ---- runners that have nothing to do ---- */

/* One a processor; they fill the first slots. */
static uint32_t max_runners(void)
{
	return fb_rt.nproc < RUNNERS ? fb_rt.nproc : RUNNERS;
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
static struct fiber *put_fired(struct task *t)
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
	/* Pairs with the release in put_fired. */
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

void fb_task_ready(struct fb_processor *p, struct fb_waiter *w)
{
	wake_runner(p, put(task_of(w)));
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

/* The lock: whoever claimed the wait may not be through with it. */
static void leave_chan(struct fb_caller *me, struct task *t)
{
	struct fiber_chan *ch = t->ch;

	fb_obj_lock(me->p, &ch->lock);
	if (t->n.queued)
		fb_waitq_remove(fb_chan_queue(ch, t->n.sends), &t->n);
	fb_obj_unlock(me->p, &ch->lock);
}

/* It was woken: what came of it. */
static void settle_wait(struct task *t)
{
	struct fb_caller me;
	bool late;

	if (t->timer.when == FB_NEVER) {
		t->result = t->n.result;
		return;
	}
	fb_caller_enter(&me);
	/* Pairs with fb_claim_word. */
	late = (FB_ACQUIRE(t->w.word) & FB_W_STATE) == FB_W_TIMEOUT;
	if (!late)
		fb_timer_del(&t->timer);
	else if (t->ch)
		leave_chan(&me, t);
	fb_caller_leave(&me);
	t->result = late ? t->ch || t->n.value ? -ETIMEDOUT : 0 : t->n.result;
}

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
		settle_wait(t);
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
	struct fiber_attr attr = { .size = sizeof(attr), .name = "tasks" };
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
	wake_runner(me.p, put(t));
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

/* ---- await ---- */

/* Under the timer's lock. */
static struct fiber *time_out(struct fb_timer *timer)
{
	struct task *t = (struct task *)
		((char *)timer - offsetof(struct task, timer));

	return fb_claim_word(&t->w, t->n.claim, FB_W_TIMEOUT) ?
	       put_fired(t) : NULL;
}

/* The node, if there is an object, is to be queued by the caller. */
static void wait_begin(struct task *t, struct fiber_chan *ch, void *value,
		       uint64_t deadline)
{
	uint64_t ticket = (t->w.word & ~(uint64_t)(FB_W_ONE - 1)) + FB_W_ONE;

	t->ch = ch;
	t->timer.when = deadline;
	t->timer.fire = time_out;
	t->n.w = &t->w;
	t->n.value = value;
	t->n.claim = deadline == FB_NEVER ? 0 : ticket | FB_W_WAITING;
	if (t->n.claim)		/* pairs with fb_claim_word */
		FB_RELEASE(t->w.word, t->n.claim);
}

static int wait_time(struct task *t, uint64_t deadline, bool sleeps)
{
	struct fb_caller me;

	fb_caller_enter(&me);
	wait_begin(t, NULL, sleeps ? NULL : t, deadline);
	if (deadline != FB_NEVER && fb_timer_add(me.p, &t->timer))
		fb_sched_watch(me.p);
	fb_caller_leave(&me);
	return 1;
}

static int wait_chan(struct fb_caller *me, struct task *t,
		     struct fiber_chan *ch, bool sends, void *value,
		     uint64_t deadline)
{
	bool watch = false;

	wait_begin(t, ch, value, deadline);
	t->n.sends = sends;
	fb_waitq_push(fb_chan_queue(ch, sends), &t->n);
	if (deadline != FB_NEVER)
		watch = fb_timer_add(me->p, &t->timer);
	fb_obj_unlock(me->p, &ch->lock);	/* the last touch of t */
	if (watch)
		fb_sched_watch(me->p);
	return 1;
}

static int use_chan(fiber_task_t *task, struct fiber_chan *ch, bool sends,
		    void *value, uint64_t deadline)
{
	struct task *t = (struct task *)task;
	struct fb_caller me;
	struct fb_node *n;
	int r;

	if (!ch)
		return wait_time(t, deadline, false);
	fb_caller_enter(&me);
	fb_obj_lock(me.p, &ch->lock);
	r = fb_chan_now(ch, sends, value, &n);
	if (r == -EAGAIN && deadline) {
		r = wait_chan(&me, t, ch, sends, value, deadline);
	} else {
		fb_obj_unlock(me.p, &ch->lock);
		if (n)
			fb_wake(me.p, n->w);
		t->result = r == -EAGAIN ? -ETIMEDOUT : r;
		r = 0;
	}
	fb_caller_leave(&me);
	return r;
}

FB_EXPORT int fiber_task_send(fiber_task_t *t, fiber_chan_t *ch,
			      const void *value)
{
	return use_chan(t, ch, true, (void *)value, FB_NEVER);
}

FB_EXPORT int fiber_task_send_until(fiber_task_t *t, fiber_chan_t *ch,
				    const void *value, uint64_t deadline)
{
	return use_chan(t, ch, true, (void *)value, deadline);
}

FB_EXPORT int fiber_task_recv(fiber_task_t *t, fiber_chan_t *ch, void *value)
{
	return use_chan(t, ch, false, value, FB_NEVER);
}

FB_EXPORT int fiber_task_recv_until(fiber_task_t *t, fiber_chan_t *ch,
				    void *value, uint64_t deadline)
{
	return use_chan(t, ch, false, value, deadline);
}

FB_EXPORT int fiber_task_sleep_until(fiber_task_t *t, uint64_t deadline)
{
	return wait_time((struct task *)t, deadline, true);
}

FB_EXPORT int fiber_task_sleep(fiber_task_t *t, uint64_t ns)
{
	uint64_t now = fiber_now();

	return fiber_task_sleep_until(t, now + ns < now ? FB_NEVER : now + ns);
}

FB_EXPORT int fiber_task_yield(fiber_task_t *task)
{
	struct task *t = (struct task *)task;
	struct fb_caller me;

	fb_caller_enter(&me);
	wait_begin(t, NULL, NULL, FB_NEVER);
	t->n.result = 0;
	wake_runner(me.p, put(t));
	fb_caller_leave(&me);
	return 1;
}
