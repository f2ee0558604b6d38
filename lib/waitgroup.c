// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * waitgroup.c - wait groups
 *
 * Under the lock: somebody waits => the count is not 0. Who brings it to 0 lets
 * all go on; one whose deadline came at that moment goes on as well (sync.h).
 */
#include "sync.h"

struct fb_waitgroup {
	int64_t count;			/* lock */
	struct fb_sync s;		/* its lock is of all above, too */
} FB_OVERLAY;

FB_FITS(fb_waitgroup, fiber_waitgroup_t);

FB_EXPORT int fiber_waitgroup_add(fiber_waitgroup_t *group, int64_t n)
{
	struct fb_waitgroup *g = (struct fb_waitgroup *)group;
	struct fb_node *list = NULL;
	struct fb_caller me;
	int64_t count;
	int r = 0;

	fb_caller_enter_now(&me);
	fb_sync_lock(&me, &g->s);
	if (__builtin_add_overflow(g->count, n, &count))
		r = -EOVERFLOW;
	else if (count < 0)
		r = -EINVAL;
	else
		g->count = count;
	if (!r && !count)
		list = fb_sync_all(&g->s.q, 0);
	fb_sync_unlock(&me, &g->s);
	fb_wake_all(me.p, list);
	fb_caller_leave(&me);
	if (r)
		fb_misuse(r, &(struct fb_misuse){
			"fiber_waitgroup_add",
			"the counter would be below 0, or too large", g, 0,
			&g->s.q, &g->s.lock });
	return r;
}

FB_EXPORT int fiber_waitgroup_done(fiber_waitgroup_t *g)
{
	return fiber_waitgroup_add(g, -1);
}

static int wait(fiber_waitgroup_t *group, uint64_t deadline)
{
	struct fb_waitgroup *g = (struct fb_waitgroup *)group;
	struct fb_caller me;
	int r = 0;

	fb_caller_enter(&me);
	if (deadline && fb_cancelled(&me)) {
		r = -ECANCELED;
	} else {
		fb_sync_lock(&me, &g->s);
		if (g->count && deadline) {
			r = fb_sync_wait_all(&me, &g->s.lock, &g->s.q, deadline,
					     FB_WHY_GROUP);
		} else {
			r = g->count ? -EAGAIN : 0;
			fb_sync_unlock(&me, &g->s);
		}
	}
	fb_caller_leave(&me);
	return r;
}

FB_EXPORT int fiber_waitgroup_wait(fiber_waitgroup_t *g)
{
	return wait(g, FB_NEVER);
}

FB_EXPORT int fiber_waitgroup_wait_until(fiber_waitgroup_t *g,
					 uint64_t deadline)
{
	return fb_sync_over(wait(g, deadline), deadline);
}

FB_EXPORT int fiber_waitgroup_try_wait(fiber_waitgroup_t *g)
{
	return wait(g, 0);
}

FB_EXPORT int fiber_waitgroup_init(fiber_waitgroup_t *g)
{
	*g = (fiber_waitgroup_t)FIBER_WAITGROUP_INIT;
	return 0;
}

FB_EXPORT int fiber_waitgroup_destroy(fiber_waitgroup_t *group)
{
	struct fb_waitgroup *g = (struct fb_waitgroup *)group;

	return fb_sync_destroy("fiber_waitgroup_destroy", g, &g->s);
}
