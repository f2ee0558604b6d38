// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * sem.c - semaphores
 *
 * Under the lock: somebody waits => the value is 0. A post goes to the first
 * that can be claimed, or is added: the claim decides, so it is neither lost
 * nor doubled when a waiter's deadline comes or it is cancelled.
 */
#include "sync.h"

struct fb_sem {
	uint64_t value;			/* lock; read by all */
	struct fb_sync s;		/* its lock is of all above, too */
} FB_OVERLAY;

FB_FITS(fb_sem, fiber_sem_t);

/* It is locked, and 0: wait, unlock. */
static int wait_locked(struct fb_caller *me, struct fb_sem *s,
		       uint64_t deadline)
{
	struct fb_node n;
	unsigned int state;

	state = fb_sync_wait(me, &s->s.lock, &s->s.q, &n, deadline, FB_WHY_SEM);
	if (state == FB_W_OBJECT)
		return 0;
	fb_sync_leave(&s->s.q, &n);
	fb_sync_unlock(me, &s->s);
	return fb_wait_error(state);
}

static int wait(fiber_sem_t *sem, uint64_t deadline)
{
	struct fb_sem *s = (struct fb_sem *)sem;
	struct fb_caller me;
	int r = 0;

	fb_caller_enter(&me);
	if (deadline && fb_cancelled(&me)) {
		r = -ECANCELED;
	} else {
		fb_sync_lock(&me, &s->s);
		if (!s->value && deadline) {
			r = wait_locked(&me, s, deadline);
		} else {
			if (s->value)
				FB_WRITE(s->value, s->value - 1);
			else
				r = -EAGAIN;
			fb_sync_unlock(&me, &s->s);
		}
	}
	fb_caller_leave(&me);
	return r;
}

FB_EXPORT int fiber_sem_wait(fiber_sem_t *s)
{
	return wait(s, FB_NEVER);
}

FB_EXPORT int fiber_sem_wait_until(fiber_sem_t *s, uint64_t deadline)
{
	return fb_sync_over(wait(s, deadline), deadline);
}

FB_EXPORT int fiber_sem_try_wait(fiber_sem_t *s)
{
	return wait(s, 0);
}

FB_EXPORT int fiber_sem_post(fiber_sem_t *sem)
{
	struct fb_sem *s = (struct fb_sem *)sem;
	struct fb_caller me;
	struct fb_node *n;
	int r = 0;

	fb_caller_enter_now(&me);
	fb_sync_lock(&me, &s->s);
	n = fb_waitq_take(&s->s.q);
	if (!n && s->value == UINT64_MAX)
		r = -EOVERFLOW;
	else if (!n)
		FB_WRITE(s->value, s->value + 1);
	fb_sync_unlock(&me, &s->s);
	if (n)
		fb_wake(me.p, n->w);
	fb_caller_leave(&me);
	if (r)
		fb_misuse(r, &(struct fb_misuse){
			"fiber_sem_post", "there are 2^64 - 1", s, 0, NULL,
			NULL });
	return r;
}

FB_EXPORT uint64_t fiber_sem_value(fiber_sem_t *s)
{
	return FB_READ(s->value);
}

FB_EXPORT int fiber_sem_init(fiber_sem_t *s, uint64_t value)
{
	*s = (fiber_sem_t){ .value = value };
	return 0;
}

FB_EXPORT int fiber_sem_destroy(fiber_sem_t *sem)
{
	struct fb_sem *s = (struct fb_sem *)sem;

	return fb_sync_destroy("fiber_sem_destroy", s, &s->s);
}
