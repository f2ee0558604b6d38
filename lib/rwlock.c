// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * rwlock.c - readers and writers
 *
 * Under the lock:
 *
 *   writer != 0        =>  readers == 0
 *   a writer waits     =>  it is locked, by a writer or by readers
 *   a reader waits     =>  a writer has it, or waits
 *
 *   step                        who goes on
 *   the last reader unlocks     the first writer; or, if none can be had, all
 *                               readers that wait
 *   the writer unlocks          all readers that wait; or, if none can be had,
 *                               the first writer
 *   a writer leaves the queue   if no writer has it nor waits now: all readers
 *                               that wait
 *
 * So readers wait for one writer at most, and a writer for the readers that
 * were there, and those that one writer before it let in. What is handed over
 * is taken in the name of who is woken.
 */
#include "held.h"
#include "sync.h"

FB_FITS(fb_rwlock, fiber_rwlock_t);

/* ---- who goes on; the lock is held; a list of whom to wake ---- */

static struct fb_node *let_readers(struct fb_rwlock *l)
{
	struct fb_node *list = NULL, **end = &list, *n;

	while ((n = fb_waitq_take(&l->to_read))) {
		l->readers++;
		n->next = NULL;
		*end = n;
		end = &n->next;
	}
	return list;
}

static struct fb_node *let_writer(struct fb_rwlock *l)
{
	struct fb_node *n = fb_waitq_take(&l->to_write);

	if (n) {
		l->writer = (uintptr_t)n->value;
		n->next = NULL;
	}
	return n;
}

/* A writer that waited does so no more. */
static struct fb_node *writer_left(struct fb_rwlock *l)
{
	return l->writer || l->to_write.head ? NULL : let_readers(l);
}

static struct fb_node *unlock_read(struct fb_rwlock *l)
{
	struct fb_node *list;

	if (--l->readers)
		return NULL;
	list = let_writer(l);
	return list ? list : let_readers(l);
}

static struct fb_node *unlock_write(struct fb_rwlock *l)
{
	struct fb_node *list;

	l->writer = 0;
	list = let_readers(l);
	return list ? list : let_writer(l);
}

/* In the child of a fork those who wait are the parent's. */
static void lock_inside(struct fb_caller *me, struct fb_rwlock *l)
{
	if (fb_is_forked()) {
		fb_lock(&fb_forked_lock);
		l->to_read = l->to_write = (struct fb_waitq){ NULL, NULL };
	} else {
		fb_obj_lock(me->p, &l->lock);
	}
}

static void unlock_inside(struct fb_caller *me, struct fb_rwlock *l)
{
	if (fb_is_forked())
		fb_unlock(&fb_forked_lock);
	else
		fb_obj_unlock(me->p, &l->lock);
}

/* ---- lock ---- */

static bool take(struct fb_rwlock *l, uint64_t self, bool write)
{
	if (l->writer || l->to_write.head || (write && l->readers))
		return false;
	if (write)
		l->writer = self;
	else
		l->readers++;
	return true;
}

/* It is locked and not to be had: wait, unlock. */
static int lock_wait(struct fb_caller *me, struct fb_rwlock *l, uint64_t self,
		     bool write, uint64_t deadline)
{
	struct fb_waitq *q = write ? &l->to_write : &l->to_read;
	struct fb_node n = { .value = (void *)(uintptr_t)self }, *list = NULL;
	unsigned int state;

	state = fb_sync_wait(me, &l->lock, q, &n, deadline, FB_WHY_RWLOCK);
	if (state == FB_W_OBJECT)
		return 0;
	fb_sync_leave(q, &n);
	if (write)
		list = writer_left(l);
	fb_obj_unlock(me->p, &l->lock);
	fb_wake_all(me->p, list);
	return fb_wait_error(state);
}

static bool take_forked(struct fb_caller *me, struct fb_rwlock *l, uint64_t self,
			bool write)
{
	bool taken;

	lock_inside(me, l);
	taken = take(l, self, write);
	unlock_inside(me, l);
	return taken;
}

static int lock_forked(struct fb_caller *me, struct fb_rwlock *l, uint64_t self,
		       bool write, uint64_t deadline)
{
	int r = 0;

	while (!r && !take_forked(me, l, self, write))
		r = !deadline ? -EAGAIN :
		    FB_READ(l->writer) == self ? -EDEADLK :
		    fb_forked_nap(deadline);
	return r;
}

static int lock_entered(struct fb_caller *me, struct fb_rwlock *l, bool write,
			uint64_t deadline)
{
	uint64_t self = fb_self_id(me->c);
	int r = 0;

	if (fb_is_forked())
		return lock_forked(me, l, self, write, deadline);
	if (deadline && fb_cancelled(me))
		return -ECANCELED;
	fb_obj_lock(me->p, &l->lock);
	if (take(l, self, write))
		r = 0;
	else if (!deadline)
		r = -EAGAIN;
	else if (l->writer == self)
		r = -EDEADLK;
	else
		return lock_wait(me, l, self, write, deadline);
	fb_obj_unlock(me->p, &l->lock);
	return r;
}

static int lock(fiber_rwlock_t *rwlock, bool write, uint64_t deadline, void *ip)
{
	struct fb_rwlock *l = (struct fb_rwlock *)rwlock;
	struct fb_caller me;
	int r;

	fb_caller_enter(&me);
	r = lock_entered(&me, l, write, deadline);
	if (!r && write && me.c &&
	    fb_unlikely(me.c->cur->flags & FB_F_CHECKS))
		fb_held_add(me.c->cur, l, "rwlock", ip);
	fb_caller_leave(&me);
	if (r == -EDEADLK)
		fb_misuse(r, &(struct fb_misuse){
			write ? "fiber_rwlock_wrlock" : "fiber_rwlock_rdlock",
			"the caller has it for writing", l, 0, NULL, NULL });
	return r;
}

FB_EXPORT int fiber_rwlock_rdlock(fiber_rwlock_t *l)
{
	return lock(l, false, FB_NEVER, __builtin_return_address(0));
}

FB_EXPORT int fiber_rwlock_rdlock_until(fiber_rwlock_t *l, uint64_t deadline)
{
	return fb_sync_over(lock(l, false, deadline,
				 __builtin_return_address(0)), deadline);
}

FB_EXPORT int fiber_rwlock_try_rdlock(fiber_rwlock_t *l)
{
	return lock(l, false, 0, __builtin_return_address(0));
}

FB_EXPORT int fiber_rwlock_wrlock(fiber_rwlock_t *l)
{
	return lock(l, true, FB_NEVER, __builtin_return_address(0));
}

FB_EXPORT int fiber_rwlock_wrlock_until(fiber_rwlock_t *l, uint64_t deadline)
{
	return fb_sync_over(lock(l, true, deadline,
				 __builtin_return_address(0)), deadline);
}

FB_EXPORT int fiber_rwlock_try_wrlock(fiber_rwlock_t *l)
{
	return lock(l, true, 0, __builtin_return_address(0));
}

/* ---- unlock ---- */

FB_EXPORT int fiber_rwlock_unlock(fiber_rwlock_t *rwlock)
{
	struct fb_rwlock *l = (struct fb_rwlock *)rwlock;
	struct fb_node *list = NULL;
	struct fb_caller me;
	uint64_t owner;
	int r = 0;

	fb_caller_enter_now(&me);
	lock_inside(&me, l);
	owner = l->writer;
	if (owner == fb_self_id(me.c))
		list = unlock_write(l);
	else if (!owner && l->readers)
		list = unlock_read(l);
	else
		r = -EPERM;
	unlock_inside(&me, l);
	if (fb_unlikely(fb_rt.checks) && !r && owner && me.c)
		fb_held_drop(me.c->cur, l);
	fb_wake_all(me.p, list);
	fb_caller_leave(&me);
	if (r)
		fb_misuse(r, &(struct fb_misuse){
			"fiber_rwlock_unlock", "the caller does not have it",
			l, owner, &l->to_write, &l->lock });
	return r;
}

/* ---- the rest ---- */

FB_EXPORT int fiber_rwlock_init(fiber_rwlock_t *l)
{
	if (fb_unlikely(fb_rt.checks))
		fb_held_forget(l);
	*l = (fiber_rwlock_t)FIBER_RWLOCK_INIT;
	return 0;
}

FB_EXPORT int fiber_rwlock_destroy(fiber_rwlock_t *rwlock)
{
	struct fb_rwlock *l = (struct fb_rwlock *)rwlock;
	struct fb_caller me;
	bool used;

	fb_caller_enter_now(&me);
	lock_inside(&me, l);
	used = l->writer || l->readers || l->to_read.head || l->to_write.head;
	unlock_inside(&me, l);
	fb_caller_leave(&me);
	if (!used)
		return 0;
	return fb_misuse(-EBUSY, &(struct fb_misuse){
		"fiber_rwlock_destroy", "it is in use", l, 0, &l->to_write,
		&l->lock });
}
