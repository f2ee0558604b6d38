// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * cond.c - condition variables
 *
 *	waiter				signal
 *	owns the mutex			lock
 *	lock, queue			take the first out, claim it
 *	off its stack:			to the mutex's queue, or, if that is
 *	  release the mutex		  free, woken to compete for it
 *	  unlock			unlock
 *	... woken: owner of the mutex,	wake
 *	or on its way to compete
 *
 * Whoever gets the mutex after the waiter and then signals waits for the lock
 * until the node is there: no signal is lost. The claim decides between signal
 * and deadline: a signal is used up by the waiter whose call returns 0, or goes
 * to the next.
 *
 * Signalled waiters do not run to find the mutex taken, they go over to its
 * queue, and whoever unlocks it wakes them one by one: a broadcast to 10,000
 * wakes one. Lock order: condition, mutex.
 */
#include "sync.h"

struct fb_cond {
	struct fb_mutex *mutex;		/* of those in q; else the last one */
	struct fb_sync s;		/* node.value: fb_self_id */
} FB_OVERLAY;

FB_FITS(fb_cond, fiber_cond_t);

struct both {
	struct fb_cond *cond;
	struct fb_mutex *mutex;
};

/* Off the waiter's stack: both are ours until they are given back. */
static void release_both(struct fb_processor *p, void *object)
{
	struct both *b = object;
	struct fb_cond *c = b->cond;
	struct fb_node *n = fb_mutex_release(b->mutex, p && p->solo);

	fb_obj_unlock(p, &c->s.lock);	/* *b may be gone */
	if (n)
		fb_wake(p, n->w);
}

/* c is locked, m owned: 0, -ETIMEDOUT or -ECANCELED, m owned again. */
static int wait_locked(struct fb_caller *me, struct fb_cond *c,
		       struct fb_mutex *m, uint64_t deadline)
{
	struct both b = { c, m };
	struct fb_wait k;
	struct fb_node n = { .result = FB_MUTEX_WOKEN };
	uint32_t depth = fb_mutex_flatten(m);
	unsigned int state;

	fb_wait_begin(me, &k, deadline, false);
	k.unlock = release_both;
	k.object = &b;
	n.w = k.w;
	n.claim = k.claim;
	n.value = (void *)(uintptr_t)fb_self_id(me->c);
	c->mutex = m;
	fb_waitq_push(&c->s.q, &n);
	state = fb_wait(me, &k, FB_WHY_COND);
	if (state != FB_W_OBJECT) {
		fb_sync_lock(me, &c->s);
		fb_sync_leave(&c->s.q, &n);
		fb_sync_unlock(me, &c->s);
	}
	if (state != FB_W_OBJECT || n.result != FB_MUTEX_HANDED)
		fb_mutex_relock(me, m, state == FB_W_OBJECT);
	else
		fb_mutex_noted(me, m);
	fb_mutex_deepen(m, depth);
	return fb_wait_error(state);
}

static int wait_entered(struct fb_caller *me, struct fb_cond *c,
			struct fb_mutex *m, uint64_t deadline)
{
	if (fb_cancelled(me))
		return -ECANCELED;
	if (!fb_mutex_owned(m, fb_self_id(me->c)))
		return -EPERM;
	fb_sync_lock(me, &c->s);
	if (c->s.q.head && c->mutex != m) {
		fb_sync_unlock(me, &c->s);
		return -EINVAL;
	}
	return wait_locked(me, c, m, deadline);
}

static int wait(fiber_cond_t *cond, fiber_mutex_t *mutex, uint64_t deadline)
{
	struct fb_cond *c = (struct fb_cond *)cond;
	struct fb_mutex *m = (struct fb_mutex *)mutex;
	struct fb_misuse misuse = { .call = "fiber_cond_wait", .object = c,
				    .q = &c->s.q, .lock = &c->s.lock };
	struct fb_caller me;
	int r;

	fb_caller_enter_now(&me);
	r = wait_entered(&me, c, m, deadline);
	fb_caller_leave(&me);
	if (r == -EPERM)
		misuse.what = "the caller does not own the mutex";
	else if (r == -EINVAL)
		misuse.what = "others wait with another mutex";
	else
		return r;
	return fb_misuse(r, &misuse);
}

FB_EXPORT int fiber_cond_wait(fiber_cond_t *c, fiber_mutex_t *m)
{
	return wait(c, m, FB_NEVER);
}

FB_EXPORT int fiber_cond_wait_until(fiber_cond_t *c, fiber_mutex_t *m,
				    uint64_t deadline)
{
	/* Over: others may have the mutex meanwhile, as after any wait. */
	return wait(c, m, deadline ? deadline : 1);
}

/* ---- signal ---- */

/* c is locked: claim one, or all. A list. */
static struct fb_node *claim(struct fb_cond *c, bool all)
{
	struct fb_node *list = NULL, **end = &list, *n;

	while ((all || !list) && (n = fb_waitq_take(&c->s.q))) {
		n->next = NULL;
		*end = n;
		end = &n->next;
	}
	return list;
}

static int wake(fiber_cond_t *cond, bool all)
{
	struct fb_cond *c = (struct fb_cond *)cond;
	struct fb_node *list, *n = NULL;
	struct fb_caller me;

	fb_caller_enter_now(&me);
	fb_sync_lock(&me, &c->s);
	list = claim(c, all);
	/* In the child of a fork nobody queues at a mutex. */
	if (list && !fb_is_forked()) {
		n = fb_mutex_requeue(c->mutex, list, me.p && me.p->solo);
		list = NULL;
	}
	fb_sync_unlock(&me, &c->s);
	if (n)
		fb_wake(me.p, n->w);
	fb_wake_all(me.p, list);
	fb_caller_leave(&me);
	return 0;
}

FB_EXPORT int fiber_cond_signal(fiber_cond_t *c)
{
	return wake(c, false);
}

FB_EXPORT int fiber_cond_broadcast(fiber_cond_t *c)
{
	return wake(c, true);
}

/* ---- the rest ---- */

FB_EXPORT int fiber_cond_init(fiber_cond_t *c)
{
	*c = (fiber_cond_t)FIBER_COND_INIT;
	return 0;
}

FB_EXPORT int fiber_cond_destroy(fiber_cond_t *cond)
{
	struct fb_cond *c = (struct fb_cond *)cond;

	return fb_sync_destroy("fiber_cond_destroy", c, &c->s);
}
