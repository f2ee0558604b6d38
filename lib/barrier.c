// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * barrier.c - barriers
 *
 * Under the lock: `arrived` counts those that wait in the queue; it is below
 * `parties`. The last to come takes all out. One whose deadline came, but which
 * has not taken itself out yet, has arrived and not left: it goes on with the
 * others, and its call returns 0 (fb_sync_wait_all).
 */
#include "sync.h"

struct fb_barrier {
	uint64_t parties;		/* constant */
	uint32_t arrived;
	struct fb_sync s;		/* its lock is of all above, too */
} FB_OVERLAY;

FB_FITS(fb_barrier, fiber_barrier_t);

/* It is locked, and we are not the last: wait, unlock. */
static int wait_locked(struct fb_caller *me, struct fb_barrier *b,
		       uint64_t deadline)
{
	struct fb_node n;
	unsigned int state;
	int r = 0;

	b->arrived++;
	state = fb_sync_wait(me, &b->s.lock, &b->s.q, &n, deadline, FB_WHY_BARRIER);
	if (state == FB_W_OBJECT)
		return 0;
	if (fb_sync_leave(&b->s.q, &n)) {
		b->arrived--;
		r = fb_wait_error(state);
	}
	fb_sync_unlock(me, &b->s);
	return r;
}

static int wait_entered(struct fb_caller *me, struct fb_barrier *b,
			uint64_t deadline)
{
	struct fb_node *list;

	if (deadline && fb_cancelled(me))
		return -ECANCELED;
	if (fb_unlikely(fb_sync_lock(me, &b->s)))
		b->arrived = 0;
	if (b->arrived + 1ull < b->parties) {
		if (deadline)
			return wait_locked(me, b, deadline);
		fb_sync_unlock(me, &b->s);
		return -EAGAIN;
	}
	b->arrived = 0;
	list = fb_sync_all(&b->s.q, 0);
	fb_sync_unlock(me, &b->s);
	fb_wake_all(me->p, list);
	return 1;
}

static int wait(fiber_barrier_t *barrier, uint64_t deadline)
{
	struct fb_caller me;
	int r;

	fb_caller_enter(&me);
	r = wait_entered(&me, (struct fb_barrier *)barrier, deadline);
	fb_caller_leave(&me);
	return r;
}

FB_EXPORT int fiber_barrier_wait(fiber_barrier_t *b)
{
	return wait(b, FB_NEVER);
}

FB_EXPORT int fiber_barrier_wait_until(fiber_barrier_t *b, uint64_t deadline)
{
	return fb_sync_over(wait(b, deadline), deadline);
}

FB_EXPORT int fiber_barrier_try_wait(fiber_barrier_t *b)
{
	return wait(b, 0);
}

FB_EXPORT int fiber_barrier_init(fiber_barrier_t *b, uint64_t parties)
{
	if (!parties || parties > UINT32_MAX)
		return -EINVAL;
	*b = (fiber_barrier_t){ .parties = parties };
	return 0;
}

FB_EXPORT int fiber_barrier_destroy(fiber_barrier_t *barrier)
{
	struct fb_barrier *b = (struct fb_barrier *)barrier;

	return fb_sync_destroy("fiber_barrier_destroy", b, &b->s);
}
