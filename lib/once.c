// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * once.c - do something once
 *
 *   IDLE --> RUNS --> DONE
 *    ^         |  fn failed, or never returned: who waits first runs its own
 *    +---------+  fn, and the state stays RUNS; or nobody waits
 *
 * How fn may end, and who sees it:
 *   returns            run()
 *   an exception of    end_run(), as a clean-up: this file is compiled with
 *   C++, pthread_exit  -fexceptions
 *   fiber_exit         fb_once_exit(), by fiber.once, the list of the frames of
 *                      run() of this fiber, the innermost first
 */
#include "sync.h"

enum { IDLE, RUNS, DONE };

struct fb_once {
	uint32_t state;			/* lock; DONE is seen without */
	uint64_t owner;			/* fb_self_id, while RUNS */
	struct fb_sync s;		/* node.value: fb_self_id */
} FB_OVERLAY;

FB_FITS(fb_once, fiber_once_t);

enum { RUN_IT = 1 };			/* node.result; or 0: done */

struct fb_once_run {
	struct fb_once *once;
	struct fb_once_run *outer;
	bool done;
};

/* The caller ran fn: done, or the next does. */
static void finish(struct fb_once *o, bool done)
{
	struct fb_node *list;
	struct fb_caller me;

	fb_caller_enter_now(&me);
	fb_sync_lock(&me, &o->s);
	if (done) {
		/* Pairs with the acquire in once(). */
		FB_RELEASE(o->state, DONE);
		list = fb_sync_all(&o->s.q, 0);
	} else {
		list = fb_waitq_take(&o->s.q);
		if (list) {
			o->owner = (uintptr_t)list->value;
			list->result = RUN_IT;
			list->next = NULL;
		} else {
			FB_WRITE(o->state, IDLE);
		}
	}
	fb_sync_unlock(&me, &o->s);
	fb_wake_all(me.p, list);
	fb_caller_leave(&me);
}

static void end_run(struct fb_once_run *run)
{
	struct fb_carrier *c = fb_current();

	if (c)
		c->cur->once = run->outer;
	finish(run->once, run->done);
}

static __attribute__((noinline)) int run(struct fb_once *o, int (*fn)(void *),
					 void *arg)
{
	struct fb_once_run run __attribute__((cleanup(end_run))) = {
		o, NULL, false };
	struct fb_carrier *c = fb_current();
	int r;

	if (c) {
		run.outer = c->cur->once;
		c->cur->once = &run;
	}
	r = fn(arg);
	run.done = !r;
	return r;
}

void fb_once_exit(struct fiber *f)
{
	struct fb_once_run *run;

	while ((run = f->once)) {
		f->once = run->outer;
		finish(run->once, false);
	}
}

/* It is locked, and runs elsewhere: wait, unlock. */
static int wait_locked(struct fb_caller *me, struct fb_once *o, uint64_t self,
		       uint64_t deadline)
{
	struct fb_node n = { .value = (void *)(uintptr_t)self };
	unsigned int state;
	int r = 0;

	state = fb_sync_wait(me, &o->s.lock, &o->s.q, &n, deadline, FB_WHY_ONCE);
	if (state == FB_W_OBJECT)
		return n.result;
	fb_sync_leave(&o->s.q, &n);
	if (o->state != DONE)
		r = fb_wait_error(state);
	fb_sync_unlock(me, &o->s);
	return r;
}

/* In the child of a fork: who ran it is not here, unless it forked inside. */
static void abandon(struct fb_once *o)
{
	if (o->state == RUNS && o->owner != fb_forker)
		FB_WRITE(o->state, IDLE);
}

/* 0: it is done. RUN_IT: by us, now. */
static int begin(struct fb_caller *me, struct fb_once *o, uint64_t deadline)
{
	uint64_t self = fb_self_id(me->c);
	int r = 0;

	if (deadline && fb_cancelled(me))
		return -ECANCELED;
	if (fb_unlikely(fb_sync_lock(me, &o->s)))
		abandon(o);
	if (o->state == IDLE) {
		FB_WRITE(o->state, RUNS);
		o->owner = self;
		r = RUN_IT;
	} else if (o->state == RUNS) {
		if (o->owner == self)
			r = -EDEADLK;
		else if (deadline)
			return wait_locked(me, o, self, deadline);
		else
			r = -EAGAIN;
	}
	fb_sync_unlock(me, &o->s);
	return r;
}

static int once(fiber_once_t *once, int (*fn)(void *), void *arg,
		uint64_t deadline)
{
	struct fb_once *o = (struct fb_once *)once;
	struct fb_caller me;
	int r;

	/* Pairs with the release in finish(): what fn did is seen. */
	if (fb_likely(FB_ACQUIRE(o->state) == DONE))
		return 0;
	fb_caller_enter(&me);
	r = begin(&me, o, deadline);
	fb_caller_leave(&me);
	if (r == -EDEADLK)
		return fb_misuse(r, &(struct fb_misuse){
			"fiber_once", "called inside its function", o, 0,
			NULL, NULL });
	return r == RUN_IT ? run(o, fn, arg) : r;
}

FB_EXPORT int fiber_once(fiber_once_t *o, int (*fn)(void *), void *arg)
{
	return once(o, fn, arg, FB_NEVER);
}

FB_EXPORT int fiber_once_until(fiber_once_t *o, int (*fn)(void *), void *arg,
			       uint64_t deadline)
{
	return once(o, fn, arg, deadline ? deadline : 1);
}

FB_EXPORT int fiber_try_once(fiber_once_t *o, int (*fn)(void *), void *arg)
{
	return once(o, fn, arg, 0);
}
