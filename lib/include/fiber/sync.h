/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * fiber/sync.h - locks, conditions, futures; included by <fiber.h>
 *
 * All of these lie in the program's own memory (a global, a member of a
 * struct), as those of pthreads do. A static initialiser or the init call makes
 * one; of most, memory that is all zero is one, too. They are not to be copied
 * or moved. Fibers and plain threads may use all of them, together; a plain
 * thread sleeps in the kernel. A fiber that waits parks.
 *
 * Forms. Every call that waits has
 *   ..._until   a deadline (CLOCK_MONOTONIC in ns, as fiber_now() counts;
 *               FIBER_NEVER: none): -ETIMEDOUT if it comes first. What can be
 *               had at once is had, even if it is over.
 *   try_...     never waits: -EAGAIN
 * Who waits is served in order of arrival, unless said otherwise.
 *
 * Cancellation. The waiting calls and their _until forms are cancellation
 * points where it says so: in a cancelled fiber they return -ECANCELED, and did
 * nothing, even if they need not have waited. No other call is one: try forms,
 * and all that unlocks, signals, posts, sets or counts, work in a cancelled
 * fiber as in any other. So clean-up may always give back what it holds; to
 * take a lock there, shield it (fiber_shield_begin).
 *
 * Misuse is answered by -EPERM, -EDEADLK, -EBUSY, -EINVAL or -EOVERFLOW as each
 * call says, and nothing is changed. With FIBER_CHECK=1 in the environment the
 * program also says what was wrong, who owns the object and who waits for it,
 * prints the caller's stack, and aborts.
 *
 * The destroy calls free nothing, there is nothing to be freed; they say -EBUSY
 * if the object is held or waited for. Memory may be freed without them. As
 * soon as one that was let go on by a call has returned, it may free the
 * object, even if that call has not returned yet; but not one of fiber_once.
 *
 * In the child of a fork of a process with a runtime all of them work, among the
 * threads of the child: nobody of the parent waits at them there, has come to a barrier
 * or runs the function of a fiber_once, whatever was under way. What was locked, posted,
 * set, counted or completed is so. The fiber that forked owns there what it had locked.
 */
#include <fiber.h>

#ifndef FIBER_SYNC_H
#define FIBER_SYNC_H

/* ---- mutex ---- */

/*
 * Locked by one at a time, its owner, who alone can unlock it. Not strictly in
 * order of arrival: who finds it free takes it, ahead of one that was woken for
 * it. Who loses so for long is handed it.
 */
typedef struct {
	uint64_t word, kind, reserved[4];
} fiber_mutex_t;

enum { FIBER_MUTEX_PLAIN, FIBER_MUTEX_RECURSIVE };

#define FIBER_MUTEX_INIT		{ 0, FIBER_MUTEX_PLAIN, { 0 } }
#define FIBER_MUTEX_RECURSIVE_INIT	{ 0, FIBER_MUTEX_RECURSIVE, { 0 } }

/* kind: FIBER_MUTEX_*; the owner may lock a recursive one again. -EINVAL. */
int fiber_mutex_init(fiber_mutex_t *m, unsigned int kind);
int fiber_mutex_destroy(fiber_mutex_t *m);
/*
 * fiber_mutex_lock - cancellation points: lock, lock_until
 * Errors: -EDEADLK: the caller owns it, and it is not recursive (-EAGAIN from
 * try_lock). -EOVERFLOW: locked again 2^32 times.
 */
int fiber_mutex_lock(fiber_mutex_t *m);
int fiber_mutex_lock_until(fiber_mutex_t *m, uint64_t deadline);
int fiber_mutex_try_lock(fiber_mutex_t *m);
/* Errors: -EPERM: the caller is not its owner. */
int fiber_mutex_unlock(fiber_mutex_t *m);

/* ---- readers and writers ---- */

/*
 * Many readers or one writer. Who comes to read while a writer waits, waits
 * behind it; when a writer unlocks, all readers that wait then go first. So
 * neither side starves. To lock for reading twice can deadlock with a writer
 * between.
 */
typedef struct {
	uint64_t word, reserved[7];
} fiber_rwlock_t;

#define FIBER_RWLOCK_INIT	{ 0, { 0 } }

int fiber_rwlock_init(fiber_rwlock_t *l);
int fiber_rwlock_destroy(fiber_rwlock_t *l);
/*
 * Cancellation points: rdlock, wrlock and their _until forms.
 * Errors: -EDEADLK: the caller has it for writing.
 */
int fiber_rwlock_rdlock(fiber_rwlock_t *l);
int fiber_rwlock_rdlock_until(fiber_rwlock_t *l, uint64_t deadline);
int fiber_rwlock_try_rdlock(fiber_rwlock_t *l);
int fiber_rwlock_wrlock(fiber_rwlock_t *l);
int fiber_rwlock_wrlock_until(fiber_rwlock_t *l, uint64_t deadline);
int fiber_rwlock_try_wrlock(fiber_rwlock_t *l);
/* Of either kind. Errors: -EPERM: another writes, or nobody has it. */
int fiber_rwlock_unlock(fiber_rwlock_t *l);

/* ---- condition variable ---- */

typedef struct {
	uint64_t word, reserved[5];
} fiber_cond_t;

#define FIBER_COND_INIT		{ 0, { 0 } }

int fiber_cond_init(fiber_cond_t *c);
int fiber_cond_destroy(fiber_cond_t *c);
/*
 * fiber_cond_wait - unlock m, wait for a signal, lock m again
 * The caller owns m, before and after, whatever is returned: to lock it again
 * is no cancellation point and has no deadline. A signal comes to one whose
 * call returns 0: -ETIMEDOUT and -ECANCELED mean that none was used up. It
 * never returns 0 without a signal. Cancellation points. A recursive m is
 * unlocked whole, and locked as deep again.
 * Errors: -EPERM: the caller does not own m. -EINVAL: others wait with another
 * mutex.
 */
int fiber_cond_wait(fiber_cond_t *c, fiber_mutex_t *m);
int fiber_cond_wait_until(fiber_cond_t *c, fiber_mutex_t *m, uint64_t deadline);
/* Wake the one that waits longest; all. With or without the mutex. */
int fiber_cond_signal(fiber_cond_t *c);
int fiber_cond_broadcast(fiber_cond_t *c);

/* ---- semaphore ---- */

typedef struct {
	uint64_t value, reserved[5];
} fiber_sem_t;

#define FIBER_SEM_INIT(n)	{ (n), { 0 } }

int fiber_sem_init(fiber_sem_t *s, uint64_t value);
int fiber_sem_destroy(fiber_sem_t *s);
/* Take one, in order of arrival. Cancellation points: wait, wait_until. */
int fiber_sem_wait(fiber_sem_t *s);
int fiber_sem_wait_until(fiber_sem_t *s, uint64_t deadline);
int fiber_sem_try_wait(fiber_sem_t *s);
/* Give one. Errors: -EOVERFLOW: there are 2^64 - 1. */
int fiber_sem_post(fiber_sem_t *s);
/* How many there are now: a snapshot. */
uint64_t fiber_sem_value(fiber_sem_t *s);

/* ---- once ---- */

typedef struct {
	uint64_t word, reserved[5];
} fiber_once_t;

#define FIBER_ONCE_INIT		{ 0, { 0 } }

/*
 * fiber_once - fn(arg), unless it was done; wait while another does it
 * If fn returns 0 it is done, for good, and all return 0. If it returns
 * anything else, that is returned to who called fn, and it is not done: the
 * next that waits calls its own fn. The same if fn never returns, by fiber_exit
 * (or pthread_exit, in a plain thread), or throws a C++ exception: so one that
 * is cancelled holds nobody up. To leave fn by longjmp is not allowed.
 * Cancellation points, unless it is done: fiber_once, fiber_once_until. While
 * fn runs the deadline means nothing.
 * Errors: -EDEADLK: called inside fn.
 */
int fiber_once(fiber_once_t *o, int (*fn)(void *), void *arg);
int fiber_once_until(fiber_once_t *o, int (*fn)(void *), void *arg,
		     uint64_t deadline);
/* -EAGAIN: another does it now. */
int fiber_try_once(fiber_once_t *o, int (*fn)(void *), void *arg);

/* ---- wait group ---- */

typedef struct {
	int64_t count;
	uint64_t reserved[5];
} fiber_waitgroup_t;

#define FIBER_WAITGROUP_INIT	{ 0, { 0 } }

int fiber_waitgroup_init(fiber_waitgroup_t *g);
int fiber_waitgroup_destroy(fiber_waitgroup_t *g);
/*
 * Add n, which may be negative, to the counter. At 0 all who wait go on. Add
 * before whoever may wait can: not in the fiber that is counted.
 * Errors: -EINVAL: it would be below 0. -EOVERFLOW.
 */
int fiber_waitgroup_add(fiber_waitgroup_t *g, int64_t n);
int fiber_waitgroup_done(fiber_waitgroup_t *g);		/* add -1 */
/* Until the counter is 0. Cancellation points: wait, wait_until. */
int fiber_waitgroup_wait(fiber_waitgroup_t *g);
int fiber_waitgroup_wait_until(fiber_waitgroup_t *g, uint64_t deadline);
int fiber_waitgroup_try_wait(fiber_waitgroup_t *g);

/* ---- barrier ---- */

typedef struct {
	uint64_t parties, reserved[5];
} fiber_barrier_t;

#define FIBER_BARRIER_INIT(n)	{ (n), { 0 } }

/* Errors: -EINVAL: parties is 0 or over 2^32 - 1. */
int fiber_barrier_init(fiber_barrier_t *b, uint64_t parties);
int fiber_barrier_destroy(fiber_barrier_t *b);
/*
 * fiber_barrier_wait - wait until `parties` have come
 * Returns 1 to one of them, the last to come, and 0 to the others; then it
 * begins anew. One that leaves (-ETIMEDOUT, -ECANCELED) is not counted any
 * more.
 * Cancellation points: wait, wait_until. The try form is for who would be the
 * last: 1 or -EAGAIN.
 */
int fiber_barrier_wait(fiber_barrier_t *b);
int fiber_barrier_wait_until(fiber_barrier_t *b, uint64_t deadline);
int fiber_barrier_try_wait(fiber_barrier_t *b);

/* ---- event ---- */

typedef struct {
	uint64_t word, reserved[5];
} fiber_event_t;

enum { FIBER_RESET_MANUAL, FIBER_RESET_AUTO };

#define FIBER_EVENT_INIT	{ FIBER_RESET_MANUAL, { 0 } }
#define FIBER_EVENT_AUTO_INIT	{ FIBER_RESET_AUTO, { 0 } }

/*
 * reset: FIBER_RESET_MANUAL: once set it stays so, and all waits end at once,
 * until it is reset. FIBER_RESET_AUTO: each set ends one wait, which resets it;
 * more sets before that wait are as one. Errors: -EINVAL.
 */
int fiber_event_init(fiber_event_t *e, unsigned int reset);
int fiber_event_destroy(fiber_event_t *e);
int fiber_event_set(fiber_event_t *e);
int fiber_event_reset(fiber_event_t *e);
/* Cancellation points: wait, wait_until. */
int fiber_event_wait(fiber_event_t *e);
int fiber_event_wait_until(fiber_event_t *e, uint64_t deadline);
int fiber_event_try_wait(fiber_event_t *e);

/* ---- latch ---- */

typedef struct {
	uint64_t count, reserved[5];
} fiber_latch_t;

#define FIBER_LATCH_INIT(n)	{ (n), { 0 } }

int fiber_latch_init(fiber_latch_t *l, uint64_t count);
int fiber_latch_destroy(fiber_latch_t *l);
/* Take n from the count. Errors: -EINVAL: it is less than n. */
int fiber_latch_count_down(fiber_latch_t *l, uint64_t n);
/* Until the count is 0; it stays so. Cancellation points: wait, wait_until. */
int fiber_latch_wait(fiber_latch_t *l);
int fiber_latch_wait_until(fiber_latch_t *l, uint64_t deadline);
int fiber_latch_try_wait(fiber_latch_t *l);
uint64_t fiber_latch_count(fiber_latch_t *l);		/* a snapshot */

/* ---- future ---- */

/* A value, or an error, that comes once: promised by one, had by many. */
typedef struct {
	uint64_t word, reserved[7];
} fiber_future_t;

#define FIBER_FUTURE_INIT	{ 0, { 0 } }

int fiber_future_init(fiber_future_t *f);
int fiber_future_destroy(fiber_future_t *f);
/*
 * Complete it. Errors: -EALREADY: it is completed; nothing is changed. -EINVAL:
 * error is not a negative errno value.
 */
int fiber_future_set(fiber_future_t *f, void *value);
int fiber_future_fail(fiber_future_t *f, int error);
/* Until it is completed: 0, whatever it holds. Cancellation points. */
int fiber_future_wait(fiber_future_t *f);
int fiber_future_wait_until(fiber_future_t *f, uint64_t deadline);
int fiber_future_try_wait(fiber_future_t *f);
/*
 * fiber_future_get - what it holds: 0 and *value (may be NULL), or its error
 * Waits first, as fiber_future_wait does; an error may so be the wait's or the
 * future's. fiber_future_try_get never waits: -EAGAIN.
 */
int fiber_future_get(fiber_future_t *f, void **value);
int fiber_future_get_until(fiber_future_t *f, void **value, uint64_t deadline);
int fiber_future_try_get(fiber_future_t *f, void **value);
/*
 * fiber_future_wait_any - until one of n is completed
 * Returns the lowest index of those that are. NULL in the array: never
 * completed. With deadline 0 it does not wait. Cancellation point. Errors:
 * -EINVAL: n is over 2^20. -ENOMEM: more than 16 need memory.
 */
int fiber_future_wait_any(fiber_future_t *const *f, size_t n,
			  uint64_t deadline);
/* Until all are; NULL in the array is passed over. Cancellation point. */
int fiber_future_wait_all(fiber_future_t *const *f, size_t n,
			  uint64_t deadline);

#endif
