/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * wait.h - to wait for objects: channels, locks, timers, cancellation
 *
 * An object (a channel, a mutex) has a lock and queues of nodes. A node says who
 * waits: a fiber, or a plain thread. One waiting call may queue nodes at many
 * objects, has perhaps a deadline, and the caller may be cancelled meanwhile. So
 * several may want to end the wait at once, and exactly one does:
 *
 *   waiter.word = ticket, state
 *	WAITING --CAS--> OBJECT, TIMEOUT or CANCEL	the claim: who wins makes it ready
 *   A ticket is used once, so a claim that comes late fails, whatever the waiter
 *   does by then; it never looks at the waiter's stack.
 *
 * A node that nobody but its object can end (one object, no deadline, not
 * cancellable) is `sole`: its object's lock decides, and the word is not used.
 *
 *	waiting fiber			object's side (its lock held)
 *	lock objects			lock
 *	nothing to be had: queue nodes	take a node out, claim it
 *	switch away, then, off stack:	  lost: next node
 *	  word = WAITING		  won: hand the value over
 *	  timer, then cancel? claim	unlock
 *	  unlock objects, woken = 1	ready the waiter
 *	... made ready: until woken is 1
 *	take the timer out; lock each
 *	object, take our node out if it
 *	is still queued
 *
 *   Objects stay locked until the fiber is off its stack, so nobody finds it
 *   before. But a timer or canceller may claim it while they are locked still,
 *   and an object that is unlocked before the others: it then runs again while
 *   the last steps of its switch are made elsewhere, with its frame. Those steps
 *   end with waiter.woken = 1, and it waits for that first.
 *
 *   A loser has taken the node out under the lock and lets go of it under the
 *   lock; the waiter takes that lock before it leaves its frame.
 *
 * selftests/model/wait.pml checks this for a select over two objects.
 *
 * Cancellation is a state of the fiber (scope.c); a call looks at it first, and
 * the canceller looks for a wait:
 *
 *	waiting fiber			canceller
 *	word = WAITING			cancel = 1
 *	full barrier			full barrier
 *	cancel: claim ourselves		word is WAITING: claim
 *
 * Solo. With one processor its owner is alone among the fibers, so objects need no
 * locked instruction; but plain threads use them too. So p->solo marks such a
 * section, and the first plain thread ends the age of solo for all:
 *
 *	owner, in_fiber == 0		plain thread, once
 *	p->solo = 1			fb_rt.solo = ENDS
 *	compiler's barrier		membarrier
 *	fb_rt.solo is SOLO? section.	while p->solo: wait
 *	else p->solo = 0, take the	fb_rt.solo = 0
 *	lock				from now on locks
 *
 * Who is no owner (back from a block, it has not entered yet) changes a mutex by an
 * exchange of its own only once it reads 0: while it is ENDS, a section of the owner,
 * whose stores are plain, may be under way.
 */
#ifndef FB_WAIT_H
#define FB_WAIT_H

#include "fb.h"

/* What a fiber waits for (fiber.why), for tools: names in debug.c. */
enum {
	FB_WHY_NONE, FB_WHY_SLEEP, FB_WHY_JOIN, FB_WHY_SEND, FB_WHY_RECV,
	FB_WHY_SELECT, FB_WHY_MUTEX, FB_WHY_RWLOCK, FB_WHY_COND, FB_WHY_SEM,
	FB_WHY_ONCE, FB_WHY_GROUP, FB_WHY_BARRIER, FB_WHY_EVENT, FB_WHY_FUTURE,
	FB_WHY_SCOPE, FB_WHY_TIMER, FB_WHY_TASK, FB_WHY_IO, FB_WHYS
};

/* ---- the claim ---- */

/* waiter.word: FB_W_ONE times a ticket, plus a state, maybe FB_W_CANCELS */
enum {
	FB_W_NONE, FB_W_WAITING, FB_W_OBJECT, FB_W_TIMEOUT, FB_W_CANCEL,
	FB_W_STATE = 7,
	FB_W_CANCELS = 8,	/* while it waits: may be cancelled */
	FB_W_ONE = 16,
};

/* A place in an object's queue; in the frame of the waiting call. */
struct fb_node {
	struct fb_node *next, *prev;	/* object's lock */
	struct fb_waiter *w;
	uint64_t claim;			/* w->word to claim; 0: sole */
	void *value;			/* where it is or goes */
	int32_t result;			/* by who claimed it */
	uint32_t events;		/* io.c: waited for */
	bool queued;			/* object's lock */
};

struct fb_waitq {
	struct fb_node *head, *tail;
};

static inline void fb_waitq_push(struct fb_waitq *q, struct fb_node *n)
{
	n->next = NULL;
	n->prev = q->tail;
	n->queued = true;
	if (q->tail)
		q->tail->next = n;
	else
		q->head = n;
	q->tail = n;
}

static inline void fb_waitq_remove(struct fb_waitq *q, struct fb_node *n)
{
	if (n->prev)
		n->prev->next = n->next;
	else
		q->head = n->next;
	if (n->next)
		n->next->prev = n->prev;
	else
		q->tail = n->prev;
	n->queued = false;
}

/* Is the wait ours to end, with this state? Any thread. */
static inline bool fb_claim_word(struct fb_waiter *w, uint64_t claim,
				 unsigned int state)
{
	/* Pairs with the load in fb_wait_why: what we wrote before is seen. */
	return __atomic_compare_exchange_n(&w->word, &claim,
					   (claim & ~(uint64_t)(FB_W_ONE - 1)) |
					   state, false, __ATOMIC_ACQ_REL,
					   __ATOMIC_RELAXED);
}

/* The object's lock is held and n taken out. */
static inline bool fb_claim(struct fb_node *n)
{
	if (n->claim && !fb_claim_word(n->w, n->claim, FB_W_OBJECT))
		return false;
	n->w->by = n;
	return true;
}

/* The first that can be claimed, taken out; or NULL. The object's lock is held. */
static inline struct fb_node *fb_waitq_take(struct fb_waitq *q)
{
	struct fb_node *n;

	while ((n = q->head)) {
		fb_waitq_remove(q, n);
		if (fb_claim(n))
			return n;
	}
	return NULL;
}

/* ---- who calls, and the lock of an object ---- */

/*
 * The caller of an operation. p: its processor, in_fiber == 0; NULL on a plain
 * thread.
 */
struct fb_caller {
	struct fb_carrier *c;
	struct fb_processor *p;
	bool visiting;			/* plain thread: the runtime stays */
};

void fb_plain_enter(struct fb_caller *me);
/* The same, for what relies on no solo section: fibers keep theirs. */
void fb_plain_visit(struct fb_caller *me);
void fb_plain_leave(struct fb_caller *me);
/* As fb_caller_enter_now (sync.h), by fb_plain_visit. False: there is no runtime. */
bool fb_caller_visit(struct fb_caller *me);
struct fb_carrier *fb_caller_pending(struct fb_carrier *c);

/*
 * Every call that need not enter begins so, or who makes such calls alone would never
 * stop: most of its time passes in the kernel, where nobody is preempted.
 */
static inline __attribute__((always_inline)) struct fb_carrier *fb_caller_heed(void)
{
	struct fb_carrier *c = fb_current();

	if (fb_unlikely(c && FB_READ(c->page->pending)))
		c = fb_caller_pending(c);
	return c;
}

static inline __attribute__((always_inline)) void fb_caller_enter(struct fb_caller *me)
{
	struct fb_carrier *c = fb_caller_heed();

	me->c = c;
	if (fb_likely(c))
		me->p = fb_enter(c);
	else
		fb_plain_enter(me);
}

static inline __attribute__((always_inline)) void fb_caller_leave(struct fb_caller *me)
{
	if (fb_likely(me->c))
		fb_leave(me->c);
	else
		fb_plain_leave(me);
}

/* fb_rt.solo; 0: no sections. ENDS: the last may be under way, none begins. */
enum { FB_SOLO = 1, FB_SOLO_ENDS };

/* True: alone with every object, no lock needed, until fb_solo_leave. */
static inline __attribute__((always_inline)) bool fb_solo_enter(struct fb_processor *p)
{
	if (!p || FB_READ(fb_rt.solo) != FB_SOLO)
		return false;
	FB_WRITE(p->solo, 1);
	fb_barrier();		/* Pairs with the membarrier of solo_end(). */
	if (fb_likely(FB_READ(fb_rt.solo) == FB_SOLO))
		return true;
	FB_RELEASE(p->solo, 0);	/* Pairs with the wait in solo_end(). */
	return false;
}

static inline void fb_solo_leave(struct fb_processor *p)
{
	FB_RELEASE(p->solo, 0);	/* Pairs with the wait in solo_end(). */
}

static inline __attribute__((always_inline)) void
fb_obj_lock(struct fb_processor *p, fb_lock_t *l)
{
	if (!fb_solo_enter(p))
		fb_lock(l);
}

static inline __attribute__((always_inline)) void
fb_obj_unlock(struct fb_processor *p, fb_lock_t *l)
{
	if (p && p->solo)
		fb_solo_leave(p);
	else
		fb_unlock(l);
}

/* ---- a waiting call ---- */

struct fb_wait {
	struct fb_waiter *w;
	uint64_t claim;			/* for nodes; 0: sole */
	uint64_t deadline;		/* CLOCK_MONOTONIC ns; FB_NEVER */
	/* Unlocks every object; NULL: none. Runs off the waiter's stack. */
	void (*unlock)(struct fb_processor *p, void *object);
	void *object;
	struct fb_timer timer;
	struct fb_waiter plain;		/* of a plain thread */
};

/*
 * Begin to wait: fill k and say what its nodes' claim is. `many`: nodes at more
 * than one object, or the caller itself may claim.
 */
void fb_wait_begin(struct fb_caller *me, struct fb_wait *k, uint64_t deadline,
		   bool many);
/*
 * Wait: unlocks the objects. Returns FB_W_OBJECT, _TIMEOUT or _CANCEL with the
 * caller entered again, on whatever carrier. why: FB_WHY_*, for tools.
 */
unsigned int fb_wait(struct fb_caller *me, struct fb_wait *k, unsigned int why);
static inline struct fiber *fb_waiter_fiber(struct fb_waiter *w)
{
	return (struct fiber *)((char *)w - offsetof(struct fiber, w));
}

/*
 * Wait at q until taken from it: no deadline or cancellation ends that. `lock`, which
 * is locked (fb_lock, never solo), is given back.
 */
void fb_wait_taken(struct fb_caller *me, fb_lock_t *lock, struct fb_waitq *q,
		   unsigned int why);
/*
 * Wait for nothing but the deadline and cancellation: -ETIMEDOUT, -ECANCELED.
 * sleep.c
 */
int fb_wait_never(struct fb_caller *me, uint64_t deadline, unsigned int why);
/* Make w run, whose wait we have claimed; no object is locked. */
void fb_wake(struct fb_processor *p, struct fb_waiter *w);
/* The same for a list of nodes, in order. */
void fb_wake_all(struct fb_processor *p, struct fb_node *list);

/* Cancelled, and not shielded: what every waiting call looks at first. */
static inline bool fb_cancelled(struct fb_caller *me)
{
	struct fiber *f;

	if (!me->c)
		return false;
	f = me->c->cur;
	return fb_unlikely(f->flags & FB_F_CANCELS) && FB_READ(f->cancel);
}

static inline int fb_wait_error(unsigned int state)
{
	return state == FB_W_TIMEOUT ? -ETIMEDOUT :
	       state == FB_W_CANCEL ? -ECANCELED : 0;
}

/*
 * f is cancelled now (f->cancel is set), and cannot end meanwhile. True: its wait
 * has ended by that, and the caller makes it ready.
 */
bool fb_wait_cancel(struct fiber *f);
/* Before the runtime is on. */
void fb_wait_init(void);
/* There are more processors from now on. */
void fb_solo_stop(void);
#endif
