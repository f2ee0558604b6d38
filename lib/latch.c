// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* latch.c - latches: as wait groups, but they only count down, and once */
#include "sync.h"

struct fb_latch {
	uint64_t count;			/* lock; read by all */
	struct fb_sync s;		/* its lock is of all above, too */
} FB_OVERLAY;

FB_FITS(fb_latch, fiber_latch_t);

FB_EXPORT int fiber_latch_count_down(fiber_latch_t *latch, uint64_t n)
{
	struct fb_latch *l = (struct fb_latch *)latch;
	struct fb_node *list = NULL;
	struct fb_caller me;
	int r = 0;

	fb_caller_enter_now(&me);
	fb_sync_lock(&me, &l->s);
	if (n > l->count) {
		r = -EINVAL;
	} else {
		FB_WRITE(l->count, l->count - n);
		if (!l->count)
			list = fb_sync_all(&l->s.q, 0);
	}
	fb_sync_unlock(&me, &l->s);
	fb_wake_all(me.p, list);
	fb_caller_leave(&me);
	if (r)
		fb_misuse(r, &(struct fb_misuse){
			"fiber_latch_count_down", "the count is less", l, 0,
			&l->s.q, &l->s.lock });
	return r;
}

static int wait(fiber_latch_t *latch, uint64_t deadline)
{
	struct fb_latch *l = (struct fb_latch *)latch;
	struct fb_caller me;
	int r;

	fb_caller_enter(&me);
	if (deadline && fb_cancelled(&me)) {
		r = -ECANCELED;
	} else {
		fb_sync_lock(&me, &l->s);
		if (l->count && deadline) {
			r = fb_sync_wait_all(&me, &l->s.lock, &l->s.q, deadline,
					     FB_WHY_EVENT);
		} else {
			r = l->count ? -EAGAIN : 0;
			fb_sync_unlock(&me, &l->s);
		}
	}
	fb_caller_leave(&me);
	return r;
}

FB_EXPORT int fiber_latch_wait(fiber_latch_t *l)
{
	return wait(l, FB_NEVER);
}

FB_EXPORT int fiber_latch_wait_until(fiber_latch_t *l, uint64_t deadline)
{
	return fb_sync_over(wait(l, deadline), deadline);
}

FB_EXPORT int fiber_latch_try_wait(fiber_latch_t *l)
{
	return wait(l, 0);
}

FB_EXPORT uint64_t fiber_latch_count(fiber_latch_t *l)
{
	return FB_READ(l->count);
}

FB_EXPORT int fiber_latch_init(fiber_latch_t *l, uint64_t count)
{
	*l = (fiber_latch_t){ .count = count };
	return 0;
}

FB_EXPORT int fiber_latch_destroy(fiber_latch_t *latch)
{
	struct fb_latch *l = (struct fb_latch *)latch;

	return fb_sync_destroy("fiber_latch_destroy", l, &l->s);
}
