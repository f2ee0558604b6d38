/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * sync.h - what mutex, semaphore and their kin share
 *
 * Each is a lock (wait.h), some words under it, and queues of who waits. Their
 * structs are laid over the public ones, which are in the program's memory:
 *
 *   When the lock is given back, somebody who comes by may have all it needs,
 *   and free the object: so it is the last touch, and what is woken after it
 *   was claimed before.
 *
 *   A node can be taken out by one whose claim failed (a deadline was first).
 *   If all at the queue go on anyway (barrier, event), fb_sync_all says so in
 *   node.result, and the waiter, finding itself taken out, believes that.
 */
#ifndef FB_SYNC_H
#define FB_SYNC_H

#include "wait.h"

/* The inner struct lies over the public one, the same memory. */
#define FB_OVERLAY	__attribute__((may_alias))
#define FB_FITS(inner, outer) \
	_Static_assert(sizeof(struct inner) <= sizeof(outer) && \
		       _Alignof(struct inner) <= _Alignof(outer), #outer)

/* ---- who the caller is, in owner words ---- */

/* Bits below it are free: see FB_ID_LOW. */
#define FB_ID_LOW	63ull
#define FB_ID_THREAD	32ull		/* a plain thread, no fiber */

_Static_assert(_Alignof(struct fiber) > FB_ID_LOW, "struct fiber");

/* Its address is the name of a plain thread. */
extern __thread char fb_thread_mark
	__attribute__((tls_model("initial-exec"), visibility("hidden")));

/*
 * In the child of a fork, of the thread that goes on there: the fiber that it was. What
 * that had locked it has, and may give back. Else NULL.
 */
extern __thread struct fiber *fb_forked_as
	__attribute__((tls_model("initial-exec"), visibility("hidden")));

static inline uint64_t fb_self_id(const struct fb_carrier *c)
{
	if (c)
		return (uintptr_t)c->cur;
	return fb_unlikely(fb_forked_as != NULL) ? (uintptr_t)fb_forked_as :
		(uintptr_t)&fb_thread_mark | FB_ID_THREAD;
}

/*
 * In the child of a fork. Who is in an object's queue is not here, nor who held the
 * object's lock just then. A mutex or rwlock, which its handlers give back, is used
 * there without either, and who must wait looks again and again. All others are taken
 * over by the first call on them there (fb_sync_lock): then nobody waits, nobody has
 * the lock, and what the words under it said holds: each is one store. Threads of the
 * child then use it as any. Channels, whose values may be half moved, are refused.
 */
static inline bool fb_is_forked(void)
{
	return fb_unlikely(FB_READ(fb_rt.state) == FB_FORKED);
}

/* There, instead of all objects' locks. */
extern fb_lock_t fb_forked_lock __attribute__((visibility("hidden")));
/* How many forks lie between the process that had the runtime and this one. */
extern uint32_t fb_forks __attribute__((visibility("hidden")));
/* fb_self_id of the thread that goes on there. */
extern uint64_t fb_forker __attribute__((visibility("hidden")));
/* There, between two looks: 0 or -ETIMEDOUT. */
int fb_forked_nap(uint64_t deadline);

/*
 * As fb_caller_enter; a preemption that was put off waits until the next call:
 * for those that give something back, which others may wait for.
 */
static inline __attribute__((always_inline)) void
fb_caller_enter_now(struct fb_caller *me)
{
	me->c = fb_current();
	if (fb_likely(me->c))
		me->p = fb_enter(me->c);
	else
		fb_plain_enter(me);
}

/* The object's own, of its struct. */
struct fb_sync {
	fb_lock_t lock;			/* of the object's words */
	uint32_t forks;			/* atomic: fb_forks of whose it is */
	struct fb_waitq q;
};

/* True: it was the parent's until now, and is ours. */
bool fb_sync_take_over(struct fb_sync *s);

/* Lock it. True: as above; what only the parent's threads could end is to be undone. */
static inline __attribute__((always_inline)) bool
fb_sync_lock(struct fb_caller *me, struct fb_sync *s)
{
	bool taken = false;

	if (fb_unlikely(!me->c))
		taken = fb_is_forked() && fb_sync_take_over(s);
	fb_obj_lock(me->p, &s->lock);
	return taken;
}

static inline __attribute__((always_inline)) void
fb_sync_unlock(struct fb_caller *me, struct fb_sync *s)
{
	fb_obj_unlock(me->p, &s->lock);
}

/* ---- waiting at one object ---- */

static inline void fb_waitq_push_first(struct fb_waitq *q, struct fb_node *n)
{
	n->prev = NULL;
	n->next = q->head;
	n->queued = true;
	if (q->head)
		q->head->prev = n;
	else
		q->tail = n;
	q->head = n;
}

/*
 * The object is locked and has nothing for us: queue n at its end, or in front,
 * and wait. n->value is the caller's to set. FB_W_OBJECT: n->result is set,
 * nothing is locked. Else the object is locked again: fb_sync_leave, unlock.
 */
unsigned int fb_sync_wait(struct fb_caller *me, fb_lock_t *lock,
			  struct fb_waitq *q, struct fb_node *n,
			  uint64_t deadline, unsigned int why);
unsigned int fb_sync_wait_first(struct fb_caller *me, fb_lock_t *lock,
				struct fb_waitq *q, struct fb_node *n,
				uint64_t deadline, unsigned int why);

/* Out of the queue; false: somebody took it out, whose claim failed. */
static inline bool fb_sync_leave(struct fb_waitq *q, struct fb_node *n)
{
	if (!n->queued)
		return false;
	fb_waitq_remove(q, n);
	return true;
}

/* The object is locked. Take all out with this result: whom to wake, a list. */
struct fb_node *fb_sync_all(struct fb_waitq *q, int result);

/*
 * The object is locked: wait at q for fb_sync_all, and unlock. What it said, or
 * -ETIMEDOUT, -ECANCELED.
 */
int fb_sync_wait_all(struct fb_caller *me, fb_lock_t *lock, struct fb_waitq *q,
		     uint64_t deadline, unsigned int why);

/* Of a call with deadline 0, which is long over: it tried once, but says so. */
static inline int fb_sync_over(int r, uint64_t deadline)
{
	return r == -EAGAIN && !deadline ? -ETIMEDOUT : r;
}

/* ---- misuse ---- */

struct fb_misuse {
	const char *call, *what;	/* "fiber_mutex_unlock", "is not ..." */
	const void *object;
	uint64_t owner;			/* fb_self_id; 0: none */
	const struct fb_waitq *q;	/* or NULL */
	const fb_lock_t *lock;		/* of q */
};

/*
 * r is the answer to a misuse. With FIBER_CHECK=1: say so and abort. From fiber
 * code, in_fiber == 1, or a plain thread.
 */
int fb_misuse(int r, const struct fb_misuse *what);

/* 0, or, misuse, -EBUSY: somebody waits for it. */
int fb_sync_destroy(const char *call, const void *object, struct fb_sync *s);

/* ---- rwlock.c ---- */

struct fb_rwlock {
	uint64_t writer;		/* lock; fb_self_id */
	fb_lock_t lock;			/* of all */
	uint32_t readers;
	struct fb_waitq to_read, to_write;	/* node.value: fb_self_id */
} FB_OVERLAY;

/* ---- mutex.c, for cond.c ---- */

#define FB_MUTEX_OWNER	(~31ull)	/* of the word */
struct fb_mutex {
	uint64_t word;			/* atomic */
	uint32_t kind;			/* constant: FIBER_MUTEX_* */
	uint32_t depth;			/* owner: locked so often more */
	fb_lock_t lock;			/* of q and of the word's flags */
	struct fb_waitq q;		/* node.value: fb_self_id */
} FB_OVERLAY;

/* node.result of who waited at a mutex */
enum { FB_MUTEX_WOKEN, FB_MUTEX_HANDED };

bool fb_mutex_owned(struct fb_mutex *m, uint64_t self);
/* Owner: how often it is locked more than once; then it is locked once. */
uint32_t fb_mutex_flatten(struct fb_mutex *m);
void fb_mutex_deepen(struct fb_mutex *m, uint32_t depth);
/*
 * Owner, locked once: unlock. Whom to wake, when nothing is locked, or NULL.
 * alone: in a solo section, no lock is needed.
 */
struct fb_node *fb_mutex_release(struct fb_mutex *m, bool alone);
/* Claimed nodes go to wait for the mutex. Whom to wake, as above. */
struct fb_node *fb_mutex_requeue(struct fb_mutex *m, struct fb_node *list,
				 bool alone);
/* Lock it, whatever may be; woken: by fb_mutex_requeue and after. */
void fb_mutex_relock(struct fb_caller *me, struct fb_mutex *m, bool woken);
/* The caller has it again, by a hand-over: its note, if there is one, is valid. */
void fb_mutex_noted(struct fb_caller *me, struct fb_mutex *m);

#endif
