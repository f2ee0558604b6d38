// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * event.c - events
 *
 * Under the lock: somebody waits => it is not set. A set that resets itself
 * goes to the first that can be claimed, or stays.
 */
#include "sync.h"

struct fb_event {
	uint32_t reset;			/* constant: FIBER_RESET_* */
	uint32_t set;			/* lock */
	struct fb_sync s;		/* its lock is of all above, too */
} FB_OVERLAY;

FB_FITS(fb_event, fiber_event_t);

FB_EXPORT int fiber_event_set(fiber_event_t *event)
{
	struct fb_event *e = (struct fb_event *)event;
	struct fb_node *list = NULL;
	struct fb_caller me;

	fb_caller_enter_now(&me);
	fb_sync_lock(&me, &e->s);
	if (e->reset == FIBER_RESET_AUTO) {
		list = fb_waitq_take(&e->s.q);
		if (list) {
			list->result = 0;
			list->next = NULL;
		}
	} else {
		list = fb_sync_all(&e->s.q, 0);
	}
	e->set |= e->reset == FIBER_RESET_MANUAL || !list;
	fb_sync_unlock(&me, &e->s);
	fb_wake_all(me.p, list);
	fb_caller_leave(&me);
	return 0;
}

FB_EXPORT int fiber_event_reset(fiber_event_t *event)
{
	struct fb_event *e = (struct fb_event *)event;
	struct fb_caller me;

	fb_caller_enter_now(&me);
	fb_sync_lock(&me, &e->s);
	e->set = 0;
	fb_sync_unlock(&me, &e->s);
	fb_caller_leave(&me);
	return 0;
}

/* It is locked, and not set: wait, unlock. */
static int wait_locked(struct fb_caller *me, struct fb_event *e,
		       uint64_t deadline)
{
	struct fb_node n;
	unsigned int state;

	if (e->reset == FIBER_RESET_MANUAL)
		return fb_sync_wait_all(me, &e->s.lock, &e->s.q, deadline,
					FB_WHY_EVENT);
	/* Taken out by a set whose claim failed: it went to another. */
	state = fb_sync_wait(me, &e->s.lock, &e->s.q, &n, deadline, FB_WHY_EVENT);
	if (state == FB_W_OBJECT)
		return 0;
	fb_sync_leave(&e->s.q, &n);
	fb_sync_unlock(me, &e->s);
	return fb_wait_error(state);
}

static int wait(fiber_event_t *event, uint64_t deadline)
{
	struct fb_event *e = (struct fb_event *)event;
	struct fb_caller me;
	int r;

	fb_caller_enter(&me);
	if (deadline && fb_cancelled(&me)) {
		r = -ECANCELED;
	} else {
		fb_sync_lock(&me, &e->s);
		if (!e->set && deadline) {
			r = wait_locked(&me, e, deadline);
		} else {
			r = e->set ? 0 : -EAGAIN;
			if (e->reset == FIBER_RESET_AUTO)
				e->set = 0;
			fb_sync_unlock(&me, &e->s);
		}
	}
	fb_caller_leave(&me);
	return r;
}

FB_EXPORT int fiber_event_wait(fiber_event_t *e)
{
	return wait(e, FB_NEVER);
}

FB_EXPORT int fiber_event_wait_until(fiber_event_t *e, uint64_t deadline)
{
	return fb_sync_over(wait(e, deadline), deadline);
}

FB_EXPORT int fiber_event_try_wait(fiber_event_t *e)
{
	return wait(e, 0);
}

FB_EXPORT int fiber_event_init(fiber_event_t *e, unsigned int reset)
{
	if (reset > FIBER_RESET_AUTO)
		return -EINVAL;
	*e = (fiber_event_t){ .word = reset };
	return 0;
}

FB_EXPORT int fiber_event_destroy(fiber_event_t *event)
{
	struct fb_event *e = (struct fb_event *)event;

	return fb_sync_destroy("fiber_event_destroy", e, &e->s);
}
