/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * fiber/task.h - stackless tasks; included by <fiber.h>
 *
 * For the very many: a task has no stack, just this struct, which its owner puts
 * first into one of its own. Its function is called again and again, by fibers of
 * the runtime, and goes on where it waited last; whatever lives longer than that
 * belongs into the struct, not into local variables.
 *
 *	struct sum { fiber_task_t task; fiber_chan_t *in; long v, sum; };
 *
 *	static int add_up(fiber_task_t *t)
 *	{
 *		struct sum *s = (struct sum *)t;
 *
 *		FIBER_TASK_BEGIN(t);
 *		for (;;) {
 *			FIBER_TASK_AWAIT(t, fiber_task_recv(t, s->in, &s->v));
 *			if (t->result)
 *				break;
 *			s->sum += s->v;
 *		}
 *		FIBER_TASK_END(t);
 *	}
 *
 * Not a second await on one line, and none inside a switch of the function's own.
 * A task may call what blocks or parks, but keeps one of the few fibers that run
 * tasks (one a processor) from the others meanwhile. Tasks are in no scope.
 */
#include <fiber.h>

#ifndef FIBER_TASK_H
#define FIBER_TASK_H

/*
 * @line:   where it goes on; the macros use it
 * @result: of the last await: 0 or a negative errno value
 */
typedef struct fiber_task {
	uint32_t line;
	int32_t result;
	uint64_t reserved[21];	/* the library's */
} fiber_task_t;

#define FIBER_TASK_WAITS	1

#define FIBER_TASK_BEGIN(t)	switch ((t)->line) { case 0:
#define FIBER_TASK_AWAIT(t, call) \
	do { \
		(t)->line = __LINE__; \
		if (call) \
			return FIBER_TASK_WAITS; \
		__attribute__((fallthrough)); \
	case __LINE__:; \
	} while (0)
/* The end; fiber_task_t.result is 0. To end earlier, or with an error: return it. */
#define FIBER_TASK_END(t)	} return 0

/*
 * fiber_task_start - let the runtime call fn(t) until it has ended
 * @t:    not in use; stays where it is until `done` is called
 * @fn:   returns FIBER_TASK_WAITS after an await that waits; else it has ended, with
 *        0 or a negative errno value, which goes to t->result
 * @done: called at the end, in the fiber that ran it; may free t or start it anew.
 *        May be NULL: the task tells by other means that *t is not used any more
 * Any thread. Errors: -EPERM (no runtime), -ENOMEM, -EINVAL.
 */
int fiber_task_start(fiber_task_t *t, int (*fn)(fiber_task_t *t),
		     void (*done)(fiber_task_t *t));

/*
 * What a task awaits; only inside FIBER_TASK_AWAIT, by the task itself. t->result
 * afterwards is what the call of the same name, for fibers, returns. deadline:
 * CLOCK_MONOTONIC, ns, or FIBER_NEVER.
 */
int fiber_task_send(fiber_task_t *t, fiber_chan_t *ch, const void *value);
int fiber_task_send_until(fiber_task_t *t, fiber_chan_t *ch, const void *value,
			  uint64_t deadline);
int fiber_task_recv(fiber_task_t *t, fiber_chan_t *ch, void *value);
int fiber_task_recv_until(fiber_task_t *t, fiber_chan_t *ch, void *value,
			  uint64_t deadline);
/* Then fiber_future_try_get() has its value, unless the deadline came first. */
int fiber_task_future_wait(fiber_task_t *t, fiber_future_t *f);
int fiber_task_future_wait_until(fiber_task_t *t, fiber_future_t *f,
				 uint64_t deadline);
int fiber_task_sleep(fiber_task_t *t, uint64_t ns);
int fiber_task_sleep_until(fiber_task_t *t, uint64_t deadline);
/* Let other tasks, and fibers, run first. */
int fiber_task_yield(fiber_task_t *t);

#endif
