// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* sync.c - what mutex, semaphore and their kin share; see sync.h */
#include "pick.h"
#include "sync.h"

__thread char fb_thread_mark __attribute__((aligned(FB_ID_LOW + 1)));
__thread struct fiber *fb_forked_as;
fb_lock_t fb_forked_lock;
uint32_t fb_forks;
uint64_t fb_forker;

#define FORKED_NS	1000000

int fb_forked_nap(uint64_t deadline)
{
	uint64_t now = fiber_now(), until = now + FORKED_NS;
	uint32_t never = 0;

	if (now >= deadline)
		return -ETIMEDOUT;
	fb_os_sleep(&never, 0, until < deadline ? until : deadline);
	return 0;
}

bool fb_sync_take_over(struct fb_sync *s)
{
	bool ours;

	/* Pairs with the release below. */
	if (FB_ACQUIRE(s->forks) == fb_forks)
		return false;
	fb_lock(&fb_forked_lock);
	ours = FB_READ(s->forks) == fb_forks;
	if (!ours) {
		s->lock = (fb_lock_t){ 0 };
		s->q = (struct fb_waitq){ NULL, NULL };
		/* Pairs with the acquire above. */
		FB_RELEASE(s->forks, fb_forks);
	}
	fb_unlock(&fb_forked_lock);
	return !ours;
}

/* ---- waiting at one object ---- */

static void unlock_object(struct fb_processor *p, void *lock)
{
	fb_obj_unlock(p, lock);
}

static inline void push(struct fb_waitq *q, struct fb_node *n, bool first)
{
	if (first)
		fb_waitq_push_first(q, n);
	else
		fb_waitq_push(q, n);
}

/* Of a fiber that nothing else can end: as fb_wait, in one frame. */
static inline __attribute__((always_inline)) unsigned int
wait_sole(struct fb_caller *me, fb_lock_t *lock, struct fb_waitq *q,
	  struct fb_node *n, unsigned int why, bool first)
{
	n->w = &me->c->cur->w;
	n->w->at = lock;
	n->claim = 0;
	push(q, n, first);
	fb_park_sole(me->c, me->p, lock, why);
	me->c = fb_current();
	me->p = fb_enter(me->c);
	return FB_W_OBJECT;
}

static inline __attribute__((always_inline)) unsigned int
wait_at(struct fb_caller *me, fb_lock_t *lock, struct fb_waitq *q,
	struct fb_node *n, uint64_t deadline, unsigned int why, bool first)
{
	struct fb_wait k;
	unsigned int state;

	if (me->c && deadline == FB_NEVER &&
	    !(me->c->cur->flags & FB_F_CANCELS))
		return wait_sole(me, lock, q, n, why, first);
	fb_wait_begin(me, &k, deadline, false);
	k.unlock = unlock_object;
	k.object = lock;
	n->w = k.w;
	n->w->at = lock;
	n->claim = k.claim;
	push(q, n, first);
	state = fb_wait(me, &k, why);
	if (state != FB_W_OBJECT)
		fb_obj_lock(me->p, lock);
	return state;
}

unsigned int fb_sync_wait(struct fb_caller *me, fb_lock_t *lock,
			  struct fb_waitq *q, struct fb_node *n,
			  uint64_t deadline, unsigned int why)
{
	return wait_at(me, lock, q, n, deadline, why, false);
}

unsigned int fb_sync_wait_first(struct fb_caller *me, fb_lock_t *lock,
				struct fb_waitq *q, struct fb_node *n,
				uint64_t deadline, unsigned int why)
{
	return wait_at(me, lock, q, n, deadline, why, true);
}

struct fb_node *fb_sync_all(struct fb_waitq *q, int result)
{
	struct fb_node *list = NULL, **end = &list, *n;

	while ((n = q->head)) {
		fb_waitq_remove(q, n);
		n->result = result;
		if (!fb_claim(n))
			continue;	/* it finds itself taken out */
		n->next = NULL;
		*end = n;
		end = &n->next;
	}
	return list;
}

int fb_sync_wait_all(struct fb_caller *me, fb_lock_t *lock, struct fb_waitq *q,
		     uint64_t deadline, unsigned int why)
{
	struct fb_node n;
	unsigned int state = fb_sync_wait(me, lock, q, &n, deadline, why);
	int r;

	if (state == FB_W_OBJECT)
		return n.result;
	r = fb_sync_leave(q, &n) ? fb_wait_error(state) : n.result;
	fb_obj_unlock(me->p, lock);
	return r;
}

int fb_sync_destroy(const char *call, const void *object, struct fb_sync *s)
{
	struct fb_caller me;
	bool used;

	fb_caller_enter_now(&me);
	fb_sync_lock(&me, s);
	used = s->q.head;
	fb_sync_unlock(&me, s);
	fb_caller_leave(&me);
	if (!used)
		return 0;
	return fb_misuse(-EBUSY, &(struct fb_misuse){
		call, "it is in use", object, 0, &s->q, &s->lock });
}
