// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * taskwait.c - what tasks wait for
 *
 * There is no stack to leave, so a wait begins inside the await: nodes are queued,
 * the word is set, the timer armed, the object unlocked. From the last of those on
 * the task may run elsewhere, or be gone: the await returns without a look at it.
 * A timer that fires before the unlock makes it run on another runner, which takes
 * the object's lock first (fb_task_woken).
 */
#include "chan.h"
#include "task.h"

/* ---- woken ---- */

void fb_task_ready(struct fb_processor *p, struct fb_waiter *w)
{
	fb_task_put(p, (struct task *)
		       ((char *)w - offsetof(struct task, w)));
}

/* The lock: whoever claimed the wait may not be through with it. */
static void leave(struct fb_caller *me, struct task *t)
{
	fb_obj_lock(me->p, t->lock);
	if (t->n.queued)
		fb_waitq_remove(t->q, &t->n);
	fb_obj_unlock(me->p, t->lock);
}

void fb_task_woken(struct task *t)
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
	else if (t->q)
		leave(&me, t);
	fb_caller_leave(&me);
	t->result = late ? t->q || t->n.value ? -ETIMEDOUT : 0 : t->n.result;
}

/* ---- wait ---- */

/* Under the timer's lock. */
static struct fiber *time_out(struct fb_timer *timer)
{
	struct task *t = (struct task *)
		((char *)timer - offsetof(struct task, timer));

	return fb_claim_word(&t->w, t->n.claim, FB_W_TIMEOUT) ?
	       fb_task_fired(t) : NULL;
}

/* The node, if there is an object, is to be queued by the caller. */
static void wait_begin(struct task *t, fb_lock_t *lock, struct fb_waitq *q,
		       void *value, uint64_t deadline)
{
	uint64_t ticket = (t->w.word & ~(uint64_t)(FB_W_ONE - 1)) + FB_W_ONE;

	t->lock = lock;
	t->q = q;
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
	wait_begin(t, NULL, NULL, sleeps ? NULL : t, deadline);
	if (deadline != FB_NEVER && fb_timer_add(me.p, &t->timer))
		fb_sched_watch(me.p);
	fb_caller_leave(&me);
	return 1;
}

int fb_task_wait(struct fb_caller *me, struct task *t, fb_lock_t *lock,
		 struct fb_waitq *q, void *value, uint64_t deadline)
{
	bool watch = false;

	wait_begin(t, lock, q, value, deadline);
	fb_waitq_push(q, &t->n);
	if (deadline != FB_NEVER)
		watch = fb_timer_add(me->p, &t->timer);
	fb_obj_unlock(me->p, lock);	/* the last touch of t */
	if (watch)
		fb_sched_watch(me->p);
	return 1;
}

/* ---- channels ---- */

static int use_chan(fiber_task_t *task, struct fiber_chan *ch, bool sends,
		    void *value, uint64_t deadline)
{
	struct task *t = fb_task_of(task);
	struct fb_caller me;
	struct fb_node *n;
	int r;

	if (!ch)
		return wait_time(t, deadline, false);
	fb_caller_enter(&me);
	fb_obj_lock(me.p, &ch->lock);
	r = fb_chan_now(ch, sends, value, &n);
	if (r == -EAGAIN && deadline) {
		r = fb_task_wait(&me, t, &ch->lock, fb_chan_queue(ch, sends),
				 value, deadline);
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

/* ---- time ---- */

FB_EXPORT int fiber_task_sleep_until(fiber_task_t *t, uint64_t deadline)
{
	return wait_time(fb_task_of(t), deadline, true);
}

FB_EXPORT int fiber_task_sleep(fiber_task_t *t, uint64_t ns)
{
	uint64_t now = fiber_now();

	return fiber_task_sleep_until(t, now + ns < now ? FB_NEVER : now + ns);
}

FB_EXPORT int fiber_task_yield(fiber_task_t *task)
{
	struct task *t = fb_task_of(task);
	struct fb_caller me;

	fb_caller_enter(&me);
	wait_begin(t, NULL, NULL, NULL, FB_NEVER);
	t->n.result = 0;
	fb_task_put(me.p, t);
	fb_caller_leave(&me);
	return 1;
}
