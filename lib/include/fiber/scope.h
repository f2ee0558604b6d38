/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * fiber/scope.h - structured concurrency; included by <fiber.h>
 *
 * A scope owns the fibers that are started in it: who opened it closes it, and
 * closing waits until all of them have ended. When one fails, the others are
 * cancelled, and so is whoever opened it.
 *
 *	fiber_scope_t s;
 *	int r = fiber_scope_open(&s, NULL);
 *
 *	for (int i = 0; i < n && !r; i++)
 *		r = fiber_scope_spawn(&s, fetch, &url[i]);
 *	r = fiber_scope_close(&s);
 *
 * Cancellation is a state, not an event: from then on every waiting call of a
 * cancelled fiber answers -ECANCELED (a try form does not wait and never does),
 * until it has left the scope or is inside a shield. It is found out by those
 * calls and by fiber_cancelled(); nothing is interrupted that runs, except that a
 * plain system call of a BLOCKED fiber fails with EINTR where fiber_features()
 * has FIBER_FEATURE_CANCEL_BLOCKED.
 *
 * Scopes nest: a scope opened inside another is cancelled with it. So do
 * deadlines: a scope ends no later than the one around it.
 */
#include <fiber.h>

#ifndef FIBER_SCOPE_H
#define FIBER_SCOPE_H

/* A scope; its fields are the library's. Lives where its owner puts it. */
typedef struct fiber_scope {
	uint64_t reserved[32];
} fiber_scope_t;

/* fiber_scope_options.flags */
#define FIBER_SCOPE_COLLECT	1u	/* an error cancels nobody */
#define FIBER_SCOPE_SHIELD	2u	/* not cancelled from outside */

/*
 * struct fiber_scope_options - zero means the default
 * @size:        sizeof(struct fiber_scope_options)
 * @flags:       FIBER_SCOPE_*
 * @deadline:    CLOCK_MONOTONIC, ns: it is cancelled then, for -ETIMEDOUT; 0: never
 * @errors:      where the errors of its fibers go, in the order they come, while
 *               there is room; may be NULL
 * @max_errors:  room in errors
 * @error_count: how many came, set by fiber_scope_close; may be NULL
 */
struct fiber_scope_options {
	size_t size;
	unsigned int flags;
	uint64_t deadline;
	int *errors;
	size_t max_errors;
	size_t *error_count;
};

/*
 * fiber_scope_open - open a scope; the caller is inside until fiber_scope_close
 * @s:   uninitialised; must stay where it is until it is closed
 * @opt: may be NULL
 * Any thread. A fiber's scopes close in reverse order, before it ends. Errors:
 * -EINVAL, -EPERM (no runtime), -ENOMEM.
 */
int fiber_scope_open(fiber_scope_t *s, const struct fiber_scope_options *opt);

/*
 * fiber_scope_spawn - start fn(arg) as a fiber that s owns
 * fn returns 0, or a negative errno value: an error. So does fiber_exit, by its
 * pointer as an integer. Who is inside s may call it, and any thread that knows
 * that s stays open. attr may be NULL.
 * Errors: -ECANCELED: s is cancelled, and nothing was started. -EINVAL, -ENOMEM,
 * -EPERM.
 */
int fiber_scope_spawn(fiber_scope_t *s, int (*fn)(void *), void *arg);
int fiber_scope_spawn_attr(fiber_scope_t *s, const struct fiber_attr *attr,
			   int (*fn)(void *), void *arg);

/*
 * fiber_scope_cancel - cancel everything inside s, now and later
 * @error: the reason, a negative errno value; 0: -ECANCELED
 * Any thread that knows that s stays open. Never waits. Once only: another reason
 * than the first is forgotten.
 */
void fiber_scope_cancel(fiber_scope_t *s, int error);

/* Why s is cancelled, itself or from outside: a negative errno value; or 0. */
int fiber_scope_cancelled(const fiber_scope_t *s);

/*
 * fiber_scope_close - wait until every fiber of s has ended
 * By who opened it. It is not ended by cancellation: what s owns is cancelled
 * too, and ends. Returns 0, or why it failed, what came first of: the error of
 * one of its fibers; the reason of fiber_scope_cancel; -ETIMEDOUT, its deadline;
 * -ECANCELED, from outside.
 * Errors: -EPERM: another has opened it. -EINVAL: not the innermost.
 */
int fiber_scope_close(fiber_scope_t *s);

/* fiber_cancelled - -ECANCELED if the calling fiber is cancelled, or 0. */
int fiber_cancelled(void);

/*
 * fiber_deadline - when the calling fiber will be cancelled at the latest: the nearest
 * deadline of the scopes that it is in, CLOCK_MONOTONIC in ns; FIBER_NEVER: none, or it
 * is shielded from them. To hand on how much time is left, to a server, say: this
 * library's own calls heed it anyway. Any thread; a plain thread has none.
 */
uint64_t fiber_deadline(void);

/*
 * Between begin and end (they nest) the calling fiber is not cancelled, so that it
 * can clean up. A scope opened inside is not cancelled from outside either. No
 * effect on plain threads.
 */
void fiber_shield_begin(void);
void fiber_shield_end(void);

#endif
