// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * join.c - the end of a fiber, and who waits for it
 *
 * Who frees. fiber.join is
 *   NONE      alive; nobody waits yet
 *   DETACHED  alive; nobody ever will: who ends frees
 *   a node    alive; of who waits (wait.h), a fiber or plain thread, which frees
 *   DONE      ended and off its stack: who joins or detaches frees
 *   GONE      freed; who still comes made a mistake, and is told so until the block
 *	       is another fiber's
 *
 * DONE is the bit that says "ended" to tools: no node and no other state has it.
 *
 *	ending fiber, off its stack	joiner
 *	old = exchange(join, DONE)	lock join_lock
 *	old is a node:			CAS(join, NONE, node)
 *	  lock join_lock		  failed: it is DONE, no wait
 *	  claim it, node.queued = 0	wait: off its stack, unlock
 *	  unlock, wake it		woken by a deadline or cancelled:
 *					  lock; CAS(join, node, NONE)
 *					  failed: unlock until node.queued is 0
 *
 * One of the two atomics is first, so exactly one side sees the other. The lock
 * says that the joiner is off its stack; and a joiner that gives up leaves its
 * frame only when the ending fiber is through with the node. If that one was
 * first after all, the join has succeeded.
 */
#include "scope.h"

/* ---- the end ---- */

/* f is off its stack: tell who waits, or leave it to who comes, or free it. */
void fb_join_bury(struct fb_carrier *c, void *arg)
{
	struct fb_processor *p = c->proc;
	struct fiber *f = arg;
	struct fb_node *n;
	struct fb_scope *s = f->flags & FB_F_OWNED ? f->in : NULL;
	uintptr_t old;
	bool won;

	if (s)
		f->in = NULL;		/* spawns do not reset it */
	if (fb_unlikely(f->coro != NULL)) {
		fb_coro_fiber_gone(f->coro);
		f->coro = NULL;
	}
	/* Pairs with the same word in join_wait, give_up and detach. */
	old = __atomic_exchange_n(&f->join, FB_JOIN_DONE, __ATOMIC_ACQ_REL);
	if (old == FB_JOIN_NONE)
		return;
	if (old == FB_JOIN_DETACHED) {
		FB_WRITE(f->join, FB_JOIN_GONE);
		fb_stack_put(p, f);
		if (s)
			fb_scope_gone(p, s);
		return;
	}
	n = (struct fb_node *)old;
	fb_lock(&f->join_lock);
	won = fb_claim(n);
	n->queued = false;
	fb_unlock(&f->join_lock);	/* unless won, the last touch */
	if (won)
		fb_wake(p, n->w);
}

_Static_assert(FB_JOIN_GONE == (FB_JOIN_DETACHED | FB_JOIN_DONE), "end_into()");

/* ---- join ---- */

static _Noreturn void die_twice(const struct fiber *f)
{
	fb_die_here("fiber %llu \"%s\" is joined or detached a second time",
		    (unsigned long long)f->id, f->name);
}

/* Ended, and the caller's to free. */
static void *take_result(struct fb_processor *p, struct fiber *f)
{
	void *value = f->result;

	FB_WRITE(f->join, FB_JOIN_GONE);
	if (p)
		fb_stack_put(p, f);
	else
		fb_stack_put_slow(NULL, f);
	return value;
}

static void unlock_join(struct fb_processor *p, void *object)
{
	(void)p;
	fb_unlock(&((struct fiber *)object)->join_lock);
}

/* The wait has ended without f: 0 if f has ended after all. */
static int give_up(struct fiber *f, struct fb_node *n, int r)
{
	uintptr_t old = (uintptr_t)n;

	fb_lock(&f->join_lock);
	/* Pairs with the exchange in fb_join_bury(). */
	if (__atomic_compare_exchange_n(&f->join, &old, FB_JOIN_NONE, false,
					__ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
		fb_unlock(&f->join_lock);
		return r;
	}
	while (n->queued) {		/* fb_join_bury() is about to take the lock */
		fb_unlock(&f->join_lock);
		fb_cpu_relax();
		fb_lock(&f->join_lock);
	}
	fb_unlock(&f->join_lock);
	return 0;
}

/* Until f has ended: 0, -ETIMEDOUT, -ECANCELED. */
static int join_wait(struct fb_caller *me, struct fiber *f, uint64_t deadline)
{
	uintptr_t old = FB_JOIN_NONE;
	struct fb_wait k;
	struct fb_node n;
	unsigned int state;

	fb_wait_begin(me, &k, deadline, false);
	k.unlock = unlock_join;
	k.object = f;
	n.w = k.w;
	n.w->at = &f->join_lock;
	n.claim = k.claim;
	n.queued = true;
	fb_lock(&f->join_lock);
	/* Pairs with the exchange in fb_join_bury(). */
	if (!__atomic_compare_exchange_n(&f->join, &old, (uintptr_t)&n, false,
					 __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
		fb_unlock(&f->join_lock);
		if (old != FB_JOIN_DONE)
			die_twice(f);
		return 0;
	}
	state = fb_wait(me, &k, FB_WHY_JOIN);
	return state == FB_W_OBJECT ? 0 :
	       give_up(f, &n, fb_wait_error(state));
}

static int join_visiting(struct fb_caller *me, fiber_t *f, void **result,
			 uint64_t deadline)
{
	uintptr_t word;
	void *value;
	int r = 0;

	if (me->c && f == me->c->cur)
		return -EDEADLK;
	if (deadline && fb_cancelled(me))
		return -ECANCELED;
	/* Pairs with the release or exchange of DONE at its end. */
	word = FB_ACQUIRE(f->join);
	if (word == FB_JOIN_GONE)
		die_twice(f);
	if (word != FB_JOIN_DONE)
		r = deadline ? join_wait(me, f, deadline) : -ETIMEDOUT;
	if (r)
		return r;
	value = take_result(me->p, f);
	if (result)
		*result = value;
	return 0;
}

/*
 * join_lock is always locked, so a plain thread that joins, as the first of most
 * programs does in fiber_run, leaves the age of solo (wait.h) as it is.
 */
static void enter(struct fb_caller *me)
{
	if (fb_current()) {
		fb_caller_enter(me);
	} else {
		me->c = NULL;
		fb_plain_visit(me);
	}
}

static __attribute__((noinline)) int join_slow(fiber_t *f, void **result,
					       uint64_t deadline)
{
	struct fb_caller me;
	int r;

	if (!f)
		return -EINVAL;
	if (FB_READ(fb_rt.state) == FB_FORKED)
		return -EPERM;
	enter(&me);
	r = join_visiting(&me, f, result, deadline);
	fb_caller_leave(&me);
	return r;
}

FB_EXPORT int fiber_join_until(fiber_t *f, void **result, uint64_t deadline)
{
	return join_slow(f, result, deadline);
}

/* It must say so, also where there is nothing to wait for. */
static inline bool cancels(const struct fiber *self)
{
	return fb_unlikely(self->flags & FB_F_CANCELS) && FB_READ(self->cancel);
}

/* The common case alone: no call, so nothing needs to be pushed. */
FB_EXPORT int fiber_join(fiber_t *f, void **result)
{
	struct fb_carrier *c = fb_current();
	struct fb_cpage *page;
	struct fb_processor *p;
	void *value;

	/* Pairs with the release or exchange of DONE at its end. */
	if (fb_unlikely(!c || !f || FB_ACQUIRE(f->join) != FB_JOIN_DONE ||
			f->klass || cancels(c->cur)))
		return join_slow(f, result, FB_NEVER);
	value = f->result;
	page = c->page;
	FB_WRITE(page->in_fiber, 0);
	fb_barrier();		/* As fb_enter, without a way to wait. */
	p = c->proc;
	if (fb_unlikely(FB_READ(page->processor) != c->proc_index ||
			p->pool_count >= FB_POOL_MAX))
		return join_slow(f, result, FB_NEVER);
	FB_WRITE(f->join, FB_JOIN_GONE);
	fb_stack_put_fast(p, f);
	fb_leave(c);
	if (result)
		*result = value;
	return 0;
}

/* ---- detach ---- */

static int detach(struct fb_carrier *c, fiber_t *f)
{
	uintptr_t old = FB_JOIN_NONE;

	/* Pairs with the exchange in fb_join_bury(). */
	if (__atomic_compare_exchange_n(&f->join, &old, FB_JOIN_DETACHED, false,
					__ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
		return 0;
	if (old != FB_JOIN_DONE)
		die_twice(f);
	take_result(c ? fb_enter(c) : NULL, f);
	if (c)
		fb_leave(c);
	return 0;
}

FB_EXPORT int fiber_detach(fiber_t *f)
{
	struct fb_carrier *c = fb_current();
	bool visiting;

	if (!f)
		return -EINVAL;
	if (c)
		return detach(c, f);
	if (FB_READ(fb_rt.state) == FB_FORKED)
		return -EPERM;
	visiting = fb_visit();	/* no: the runtime was abandoned */
	detach(NULL, f);
	if (visiting)
		fb_visit_end();
	return 0;
}
