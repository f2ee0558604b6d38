// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * mutex.c - mutexes
 *
 * One word, owner and flags; owner 0: free. Lock and unlock are one
 * compare-exchange each while nobody waits. Not plain stores in a solo section, as
 * other objects have them: a section costs more than two locked instructions, and
 * without one a carrier that has lost its processor (user backend) may be at the word.
 *
 *   WAITERS   the queue may be not empty: who unlocks must look
 *   WOKEN     one was woken to compete, and is on its way: no other is needed
 *   STARVING  the first in the queue has come too late too long: who unlocks
 *             hands the mutex over to it. Then not WOKEN
 *   RECURSED  depth is not 0: unlock must look
 *   CHECKED   there is a note of its owner: unlock must look (held.c)
 *
 * Invariant: free and the queue not empty => WOKEN.
 *
 *   who         with the lock   step
 *   comer       -               free: owner = self, flags stay (barging)
 *               held            not free: |= WAITERS, queue as the last
 *   woken       -               free: owner = self, &= ~WOKEN
 *               held            not free: &= ~WOKEN, |= WAITERS (or STARVING),
 *                               queue as the first
 *   owner       -               no WAITERS, or WOKEN: owner = 0, flags stay
 *               held            WAITERS: take the first out; owner = 0, WOKEN;
 *                               or STARVING: owner = the first
 *   leaver      held            the queue is empty: &= ~(WAITERS | STARVING)
 *
 * So a comer's flag is there before its node is, and the owner, who frees with
 * a compare-exchange of the whole word, either sees WAITERS and waits for the
 * lock, or the comer's compare-exchange fails, and it finds the word free.
 * Flags change under the lock, but for WOKEN, which is cleared by the one that
 * it speaks of.
 *
 * Why not always hand over: while the new owner is on its way nobody works, and
 * all who come meanwhile queue up and are handed it one by one, a switch for
 * each (a convoy that never ends). Why not never: a hog takes it again before
 * anybody that it woke can run. With one processor, one that was woken and came
 * too late was so because an owner parked, or was preempted, inside: it is
 * handed the next. With more, only if that goes on for STARVE_NS.
 *
 * The owner's last touch is the word, or the lock if somebody waits, who must
 * pass the lock before it leaves: so whoever locks and finds that nobody else
 * uses the mutex may free it. For this a leaver clears WAITERS, and who finds
 * the queue empty gives the lock back before the word.
 *
 * Who finds it taken spins if the owner runs on another processor.
 */
#include "held.h"
#include "sync.h"

#define WAITERS		1ull
#define WOKEN		2ull
#define STARVING	4ull
#define RECURSED	8ull
#define CHECKED		16ull
#define FLAGS		15ull		/* that stay when it is unlocked */
#define OWNER		FB_MUTEX_OWNER

#define STARVE_NS	1000000
#define SPIN_FIRST	16	/* pauses; in all some 3 us */
#define SPIN_LAST	128

FB_FITS(fb_mutex, fiber_mutex_t);
_Static_assert(OWNER == ~(FLAGS | CHECKED), "fb_mutex.word");
_Static_assert(offsetof(struct fb_mutex, kind) ==
	       offsetof(fiber_mutex_t, kind), "FIBER_MUTEX_INIT");

/* ---- the word ---- */

/* From *w to next; else *w is what it is. The failure order is relaxed. */
static inline bool change(struct fb_mutex *m, uint64_t *w, uint64_t next)
{
	/*
	 * Acquire: pairs with the release of the owner before, which is this
	 * same exchange, or a release store in fb_mutex_release.
	 */
	return __atomic_compare_exchange_n(&m->word, w, next, true,
					   __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
}

/*
 * Take it if it is free; else, if asked to, set these flags. `drop`: WOKEN, if
 * it speaks of us, or 0.
 */
static inline bool take(struct fb_mutex *m, uint64_t self, uint64_t drop,
			uint64_t set)
{
	uint64_t w = FB_READ(m->word), next;

	for (;;) {
		if (!(w & OWNER)) {
			if (change(m, &w, self | (w & ~drop)))
				return true;
			continue;
		}
		next = (w & ~drop) | set;
		if (!set || next == w || change(m, &w, next))
			return false;
	}
}

/* ---- unlock ---- */

/* Locked, WAITERS set, WOKEN not. Nobody to be had: NULL, and no flags. */
static struct fb_node *pass_on(struct fb_mutex *m, uint64_t w)
{
	struct fb_node *n = fb_waitq_take(&m->q);
	uint64_t rest = m->q.head ? WAITERS : 0;

	/* Owned, and locked: nobody else may change the word. */
	if (!n) {
		FB_WRITE(m->word, w & ~FLAGS);
		return NULL;
	}
	if (w & STARVING) {
		n->result = FB_MUTEX_HANDED;
		rest |= (uintptr_t)n->value;
	} else {
		n->result = FB_MUTEX_WOKEN;
		rest |= WOKEN;
	}
	/* Pairs with the acquire in change(). */
	FB_RELEASE(m->word, rest);
	return n;
}

struct fb_node *fb_mutex_release(struct fb_mutex *m, bool alone)
{
	uint64_t w = FB_READ(m->word);
	struct fb_node *n;

	if (fb_is_forked()) {
		/* Pairs with the acquire in change(). */
		FB_RELEASE(m->word, 0);
		return NULL;
	}
	for (;;) {
		if (!(w & WAITERS) || (w & WOKEN)) {
			if (change(m, &w, w & FLAGS))
				return NULL;
			continue;
		}
		if (!alone)
			fb_lock(&m->lock);
		w = FB_READ(m->word);
		n = w & WAITERS ? pass_on(m, w) : NULL;
		if (!alone)
			fb_unlock(&m->lock);
		if (n)
			return n;
		w = FB_READ(m->word);
	}
}

uint32_t fb_mutex_flatten(struct fb_mutex *m)
{
	uint32_t depth = m->depth;

	if (depth) {
		m->depth = 0;
		__atomic_fetch_and(&m->word, ~RECURSED, __ATOMIC_RELAXED);
	}
	return depth;
}

void fb_mutex_deepen(struct fb_mutex *m, uint32_t depth)
{
	if (!depth)
		return;
	m->depth = depth;
	__atomic_fetch_or(&m->word, RECURSED, __ATOMIC_RELAXED);
}

bool fb_mutex_owned(struct fb_mutex *m, uint64_t self)
{
	return (FB_READ(m->word) & OWNER) == self;
}

static __attribute__((noinline)) int unlock_slow(struct fb_mutex *m)
{
	struct fb_node *n = NULL;
	struct fb_caller me;
	uint64_t owner;
	bool alone;

	fb_caller_enter_now(&me);
	owner = FB_READ(m->word) & OWNER;
	if (owner != fb_self_id(me.c)) {
		fb_caller_leave(&me);
		return fb_misuse(-EPERM, &(struct fb_misuse){
			"fiber_mutex_unlock", "the caller does not own it", m,
			owner, &m->q, &m->lock });
	}
	if (m->depth) {
		fb_mutex_deepen(m, fb_mutex_flatten(m) - 1);
	} else {
		if (fb_unlikely(FB_READ(m->word) & CHECKED) && me.c)
			fb_held_drop(me.c->cur, m);
		alone = fb_solo_enter(me.p);
		n = fb_mutex_release(m, alone);
		if (alone)
			fb_solo_leave(me.p);
	}
	if (n)
		fb_wake(me.p, n->w);
	fb_caller_leave(&me);
	return 0;
}

/* The word is self's, locked once, and nobody waits or one is on its way. */
static inline bool is_simple(uint64_t w, uint64_t self)
{
	w ^= self;
	return fb_likely(!w) || (w & ~WAITERS) == WOKEN;
}

FB_EXPORT int fiber_mutex_unlock(fiber_mutex_t *mutex)
{
	struct fb_mutex *m = (struct fb_mutex *)mutex;
	struct fb_carrier *c = fb_current();
	uint64_t w, self;

	if (fb_likely(c)) {
		self = (uintptr_t)c->cur;
		w = FB_READ(m->word);
		/* Pairs with the acquire in change(). */
		if (fb_likely(is_simple(w, self) &&
			      __atomic_compare_exchange_n(&m->word, &w, w ^ self,
					false, __ATOMIC_RELEASE,
					__ATOMIC_RELAXED)))
			return 0;
	}
	return unlock_slow(m);
}

/* ---- lock ---- */

/* There is one processor, in one pool. */
static bool alone(void)
{
	return FB_READ(fb_rt.group.use) < 2 && !FB_READ(fb_rt.pools);
}

/*
 * While its owner runs, on another processor. Each look takes the word's cache line
 * from the owner, so there are few, and longer and longer pauses between.
 */
static bool spin(struct fb_mutex *m, uint64_t self, uint64_t drop)
{
	uint64_t owner;

	if (alone())
		return false;
	for (int n = SPIN_FIRST; n <= SPIN_LAST; n *= 2) {
		owner = FB_READ(m->word) & OWNER;
		if (!owner ? take(m, self, drop, 0) :
			     !fb_carrier_runs(owner))
			return !owner;
		for (int i = 0; i < n; i++)
			fb_cpu_relax();
	}
	return !(FB_READ(m->word) & OWNER) && take(m, self, drop, 0);
}

/* We were woken and came too late, first at *late (0: now): hand it over? */
static bool starves(uint64_t *late)
{
	uint64_t now;

	if (alone())
		return true;
	now = fiber_now();
	if (!*late)
		*late = now;
	return now - *late >= STARVE_NS;
}

/* Locked, and not to be had: out of the queue, and perhaps the last. */
static void leave(struct fb_mutex *m, struct fb_node *n)
{
	fb_sync_leave(&m->q, n);
	if (!m->q.head)
		__atomic_fetch_and(&m->word, ~(WAITERS | STARVING),
				   __ATOMIC_RELAXED);
}

static int lock_forked(struct fb_mutex *m, uint64_t self, uint64_t deadline)
{
	int r = 0;

	while (!r && !take(m, self, 0, 0))
		r = fb_forked_nap(deadline);
	return r;
}

/* drop: WOKEN, if we are the one on its way, or 0. */
static int lock_wait(struct fb_caller *me, struct fb_mutex *m, uint64_t drop,
		     uint64_t deadline)
{
	uint64_t self = fb_self_id(me->c), late = 0, set;
	struct fb_node n = { .value = (void *)(uintptr_t)self };
	unsigned int state;

	if (fb_is_forked())
		return lock_forked(m, self, deadline);
	for (;;) {
		if (spin(m, self, drop))
			return 0;
		set = WAITERS | (drop && starves(&late) ? STARVING : 0);
		fb_obj_lock(me->p, &m->lock);
		if (take(m, self, drop, set)) {
			fb_obj_unlock(me->p, &m->lock);
			return 0;
		}
		state = (drop ? fb_sync_wait_first : fb_sync_wait)
			(me, &m->lock, &m->q, &n, deadline, FB_WHY_MUTEX);
		if (state != FB_W_OBJECT) {
			leave(m, &n);
			fb_obj_unlock(me->p, &m->lock);
			return fb_wait_error(state);
		}
		if (n.result == FB_MUTEX_HANDED)
			return 0;
		drop = WOKEN;
	}
}

static int lock_entered(struct fb_caller *me, struct fb_mutex *m,
			uint64_t deadline)
{
	uint64_t self = fb_self_id(me->c);

	if (deadline && fb_cancelled(me))
		return -ECANCELED;
	if (fb_mutex_owned(m, self)) {
		if (m->kind != FIBER_MUTEX_RECURSIVE)
			return deadline ? -EDEADLK : -EAGAIN;
		if (m->depth == UINT32_MAX)
			return -EOVERFLOW;
		fb_mutex_deepen(m, m->depth + 1);
		return 0;
	}
	if (take(m, self, 0, 0))
		return 0;
	return deadline ? lock_wait(me, m, 0, deadline) : -EAGAIN;
}

/* With a note of it; without, if there is no room. */
static void note(struct fiber *f, struct fb_mutex *m, void *ip)
{
	if (!m->depth && (!ip || fb_held_add(f, m, "mutex", ip)))
		__atomic_fetch_or(&m->word, CHECKED, __ATOMIC_RELAXED);
}

static __attribute__((noinline)) int lock_slow(struct fb_mutex *m,
					       uint64_t deadline, void *ip)
{
	struct fb_caller me;
	int r;

	fb_caller_enter(&me);
	r = lock_entered(&me, m, deadline);
	if (!r && me.c && fb_unlikely(me.c->cur->flags & FB_F_CHECKS))
		note(me.c->cur, m, ip);
	fb_caller_leave(&me);
	if (r == -EDEADLK)
		fb_misuse(r, &(struct fb_misuse){
			"fiber_mutex_lock", "the caller owns it already", m, 0,
			NULL, NULL });
	return r;
}

/* Free, and nothing else to do. A fiber, or NULL. */
static inline __attribute__((always_inline)) bool
lock_fast(struct fb_carrier *c, struct fb_mutex *m, bool cancels)
{
	struct fiber *f;
	uint64_t w = 0;

	if (fb_unlikely(!c || FB_READ(c->page->pending)))
		return false;
	f = c->cur;
	if (fb_unlikely(f->flags & (FB_F_CHECKS | FB_F_CANCELS)) &&
	    (f->flags & FB_F_CHECKS || (cancels && FB_READ(f->cancel))))
		return false;
	/* Pairs with the release of the owner before: see change(). */
	return __atomic_compare_exchange_n(&m->word, &w, (uintptr_t)f, false,
					   __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
}

FB_EXPORT int fiber_mutex_lock(fiber_mutex_t *mutex)
{
	struct fb_mutex *m = (struct fb_mutex *)mutex;

	if (fb_likely(lock_fast(fb_current(), m, true)))
		return 0;
	return lock_slow(m, FB_NEVER, __builtin_return_address(0));
}

FB_EXPORT int fiber_mutex_lock_until(fiber_mutex_t *mutex, uint64_t deadline)
{
	struct fb_mutex *m = (struct fb_mutex *)mutex;

	if (fb_likely(lock_fast(fb_current(), m, deadline)))
		return 0;
	return fb_sync_over(lock_slow(m, deadline, __builtin_return_address(0)),
			    deadline);
}

FB_EXPORT int fiber_mutex_try_lock(fiber_mutex_t *mutex)
{
	struct fb_mutex *m = (struct fb_mutex *)mutex;

	if (fb_likely(lock_fast(fb_current(), m, false)))
		return 0;
	return lock_slow(m, 0, __builtin_return_address(0));
}

/* ---- for cond.c ---- */

struct fb_node *fb_mutex_requeue(struct fb_mutex *m, struct fb_node *list,
				 bool alone)
{
	uint64_t w, add;
	struct fb_node *n, *first = NULL;

	if (!alone)
		fb_lock(&m->lock);
	while ((n = list)) {
		list = n->next;
		n->claim = 0;			/* ours for good */
		fb_waitq_push(&m->q, n);
	}
	w = FB_READ(m->word);
	do	/* Free, and nobody on its way: the first is, now. */
		add = w & (OWNER | WOKEN) ? WAITERS : WAITERS | WOKEN;
	while (!change(m, &w, w | add));
	if (add & WOKEN) {
		first = fb_waitq_take(&m->q);
		first->result = FB_MUTEX_WOKEN;
	}
	if (!alone)
		fb_unlock(&m->lock);
	return first;
}

void fb_mutex_relock(struct fb_caller *me, struct fb_mutex *m, bool woken)
{
	struct fiber *f = me->c ? me->c->cur : NULL;
	uint16_t cancels = f ? f->flags & FB_F_CANCELS : 0;
	uint64_t drop = woken ? WOKEN : 0;

	if (f)
		f->flags &= (uint16_t)~cancels;
	if (!take(m, fb_self_id(me->c), drop, 0))
		lock_wait(me, m, drop, FB_NEVER);
	if (f)
		f->flags |= cancels;
	fb_mutex_noted(me, m);
}

void fb_mutex_noted(struct fb_caller *me, struct fb_mutex *m)
{
	struct fiber *f = me->c ? me->c->cur : NULL;

	if (f && fb_unlikely(f->flags & FB_F_CHECKS))
		note(f, m, NULL);	/* it has one, or never had */
}

/* ---- the rest ---- */

FB_EXPORT int fiber_mutex_init(fiber_mutex_t *m, unsigned int kind)
{
	if (kind > FIBER_MUTEX_RECURSIVE)
		return -EINVAL;
	if (fb_unlikely(fb_rt.checks))
		fb_held_forget(m);
	*m = (fiber_mutex_t){ .kind = kind };
	return 0;
}

FB_EXPORT int fiber_mutex_destroy(fiber_mutex_t *mutex)
{
	struct fb_mutex *m = (struct fb_mutex *)mutex;
	/* Pairs with the release of the last unlock. */
	uint64_t w = FB_ACQUIRE(m->word);

	if (w)
		return fb_misuse(-EBUSY, &(struct fb_misuse){
			"fiber_mutex_destroy", "it is in use", m, w & OWNER,
			&m->q, &m->lock });
	return 0;
}
