// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * future.c - futures
 *
 * Under the lock: completed => nobody waits, and nothing changes any more.
 *
 * Any of many. A completed future stays so, hence, unlike a select, nothing
 * must be decided in one step, and futures are locked one at a time. The caller
 * has in its frame an `any`, itself an object with a lock, a word and a queue,
 * and hangs a hook of it into each future's queue: a node without a waiter.
 *
 *	caller				who completes
 *	each: lock, done? or hook, unlock	lock the future
 *	lock any			take the hook out
 *	hit? else queue a node, wait	  lock any: hit; take the node, claim it
 *	...				  unlock any
 *	each: lock, hook out, unlock	unlock the future, wake
 *
 *   While the future is locked its hook is there, or was taken out, so the
 *   caller is still in its frame: it passes every lock before it leaves. After
 *   that only the one that was claimed is touched, and it runs only when it is
 *   woken. Lock order: future, any.
 */
#include <stdlib.h>

#include "sync.h"
#include "task.h"

#define MAX_ANY		(1u << 20)
#define FEW		16

struct fb_future {
	uint32_t done;			/* lock */
	int32_t error;			/* these two: constant once done */
	void *value;
	struct fb_sync s;		/* its lock is of all above, too */
} FB_OVERLAY;

FB_FITS(fb_future, fiber_future_t);

struct any {
	fb_lock_t lock;			/* of all */
	bool hit;
	struct fb_waitq q;		/* one, the caller */
};

/* ---- complete ---- */

/* The hook's future is locked, and done. Its caller, if it is to be woken. */
static struct fb_node *hit(struct fb_node *hook, bool alone)
{
	struct any *any = hook->value;
	struct fb_node *n;

	if (!alone)
		fb_lock(&any->lock);
	any->hit = true;
	n = fb_waitq_take(&any->q);
	if (!alone)
		fb_unlock(&any->lock);
	return n;
}

/* It is locked, and done: whom to wake, a list. */
static struct fb_node *take_all(struct fb_future *f, bool alone)
{
	struct fb_node *list = NULL, **end = &list, *n;

	while ((n = f->s.q.head)) {
		fb_waitq_remove(&f->s.q, n);
		n->result = 0;
		if (!n->w)
			n = hit(n, alone);
		else if (!fb_claim(n))
			n = NULL;	/* it finds itself taken out */
		if (n) {
			n->next = NULL;
			*end = n;
			end = &n->next;
		}
	}
	return list;
}

static int complete(fiber_future_t *future, void *value, int error)
{
	struct fb_future *f = (struct fb_future *)future;
	struct fb_node *list = NULL;
	struct fb_caller me;
	int r = -EALREADY;

	fb_caller_enter_now(&me);
	fb_sync_lock(&me, &f->s);
	if (!f->done) {
		f->value = value;
		f->error = error;
		f->done = 1;
		list = take_all(f, me.p && me.p->solo);
		r = 0;
	}
	fb_sync_unlock(&me, &f->s);
	fb_wake_all(me.p, list);
	fb_caller_leave(&me);
	return r;
}

FB_EXPORT int fiber_future_set(fiber_future_t *f, void *value)
{
	return complete(f, value, 0);
}

FB_EXPORT int fiber_future_fail(fiber_future_t *f, int error)
{
	return error < 0 ? complete(f, NULL, error) : -EINVAL;
}

/* ---- wait for one ---- */

static int wait_entered(struct fb_caller *me, struct fb_future *f,
			uint64_t deadline)
{
	int r = 0;

	if (deadline && fb_cancelled(me))
		return -ECANCELED;
	fb_sync_lock(me, &f->s);
	if (!f->done) {
		if (deadline)
			return fb_sync_wait_all(me, &f->s.lock, &f->s.q, deadline,
						FB_WHY_FUTURE);
		r = -EAGAIN;
	}
	fb_sync_unlock(me, &f->s);
	return r;
}

static int wait(struct fb_future *f, uint64_t deadline)
{
	struct fb_caller me;
	int r;

	fb_caller_enter(&me);
	r = wait_entered(&me, f, deadline);
	fb_caller_leave(&me);
	return r;
}

static int get(fiber_future_t *future, void **value, uint64_t deadline)
{
	struct fb_future *f = (struct fb_future *)future;
	int r = wait(f, deadline);

	if (r)
		return r;
	if (f->error)
		return f->error;
	if (value)
		*value = f->value;
	return 0;
}

FB_EXPORT int fiber_future_wait(fiber_future_t *f)
{
	return wait((struct fb_future *)f, FB_NEVER);
}

FB_EXPORT int fiber_future_wait_until(fiber_future_t *f, uint64_t deadline)
{
	return fb_sync_over(wait((struct fb_future *)f, deadline), deadline);
}

FB_EXPORT int fiber_future_try_wait(fiber_future_t *f)
{
	return wait((struct fb_future *)f, 0);
}

FB_EXPORT int fiber_future_get(fiber_future_t *f, void **value)
{
	return get(f, value, FB_NEVER);
}

FB_EXPORT int fiber_future_get_until(fiber_future_t *f, void **value,
				     uint64_t deadline)
{
	return get(f, value, deadline ? deadline : 1);
}

FB_EXPORT int fiber_future_try_get(fiber_future_t *f, void **value)
{
	return get(f, value, 0);
}

/* ---- wait for any ---- */

/* False: it is done. */
static bool hook_in(struct fb_caller *me, struct fb_future *f,
		    struct fb_node *hook, struct any *any)
{
	bool done;

	hook->w = NULL;
	hook->value = any;
	hook->queued = false;
	fb_sync_lock(me, &f->s);
	done = f->done;
	if (!done)
		fb_waitq_push(&f->s.q, hook);
	fb_sync_unlock(me, &f->s);
	return !done;
}

/* True: it is done. */
static bool hook_out(struct fb_caller *me, struct fb_future *f,
		     struct fb_node *hook)
{
	bool done;

	fb_sync_lock(me, &f->s);
	done = f->done;
	if (hook->queued)
		fb_waitq_remove(&f->s.q, hook);
	fb_sync_unlock(me, &f->s);
	return done;
}

static int wait_hit(struct fb_caller *me, struct any *any, uint64_t deadline)
{
	struct fb_node n;
	unsigned int state;
	int r = 0;

	if (!deadline)
		return -ETIMEDOUT;
	fb_obj_lock(me->p, &any->lock);
	if (!any->hit) {
		state = fb_sync_wait(me, &any->lock, &any->q, &n, deadline,
				     FB_WHY_FUTURE);
		if (state == FB_W_OBJECT)
			return 0;
		fb_sync_leave(&any->q, &n);
		r = fb_wait_error(state);
	}
	fb_obj_unlock(me->p, &any->lock);
	return r;
}

/*
 * The lowest index of those that are done, even if the deadline came first.
 * Each is locked once at least after it was done: see sync.h.
 */
static int wait_any(struct fb_caller *me, fiber_future_t *const *f, size_t n,
		    struct fb_node *hook, uint64_t deadline)
{
	struct any any = { .hit = false };
	size_t in = 0;
	int r;

	while (in < n && (!f[in] || hook_in(me, (struct fb_future *)f[in],
					    &hook[in], &any)))
		in++;
	r = in < n ? (int)in : wait_hit(me, &any, deadline);
	while (in--)
		if (f[in] && hook_out(me, (struct fb_future *)f[in], &hook[in]))
			r = (int)in;
	return r;
}

FB_EXPORT int fiber_future_wait_any(fiber_future_t *const *f, size_t n,
				    uint64_t deadline)
{
	struct fb_node few[FEW], *hook = few;
	struct fb_caller me;
	int r;

	if (n > MAX_ANY || (n && !f))
		return -EINVAL;
	if (n > FEW && !(hook = malloc(n * sizeof(*hook))))
		return -ENOMEM;
	fb_caller_enter(&me);
	r = fb_cancelled(&me) ? -ECANCELED :
	    wait_any(&me, f, n, hook, deadline);
	fb_caller_leave(&me);
	if (hook != few)
		free(hook);
	return r;
}

FB_EXPORT int fiber_future_wait_all(fiber_future_t *const *f, size_t n,
				    uint64_t deadline)
{
	int r = 0;

	if (n > MAX_ANY || (n && !f))
		return -EINVAL;
	for (size_t i = 0; i < n && !r; i++)
		if (f[i])
			r = fiber_future_wait_until(f[i], deadline);
	return r;
}

/* ---- tasks ---- */

FB_EXPORT int fiber_task_future_wait_until(fiber_task_t *t,
					   fiber_future_t *future,
					   uint64_t deadline)
{
	struct fb_future *f = (struct fb_future *)future;
	struct fb_caller me;
	int r = 0;

	fb_caller_enter(&me);
	fb_sync_lock(&me, &f->s);
	if (!f->done && deadline) {
		r = fb_task_wait(&me, fb_task_of(t), &f->s.lock, &f->s.q, NULL,
				 deadline);
	} else {
		t->result = f->done ? 0 : -ETIMEDOUT;
		fb_sync_unlock(&me, &f->s);
	}
	fb_caller_leave(&me);
	return r;
}

FB_EXPORT int fiber_task_future_wait(fiber_task_t *t, fiber_future_t *f)
{
	return fiber_task_future_wait_until(t, f, FB_NEVER);
}

/* ---- the rest ---- */

FB_EXPORT int fiber_future_init(fiber_future_t *f)
{
	*f = (fiber_future_t)FIBER_FUTURE_INIT;
	return 0;
}

FB_EXPORT int fiber_future_destroy(fiber_future_t *future)
{
	struct fb_future *f = (struct fb_future *)future;

	return fb_sync_destroy("fiber_future_destroy", f, &f->s);
}
