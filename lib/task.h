/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* task.h - stackless tasks: see task.c, taskwait.c */
#ifndef FB_TASK_H
#define FB_TASK_H

#include "wait.h"

struct task {
	uint32_t line;
	int32_t result;
	int (*fn)(fiber_task_t *t);
	void (*done)(fiber_task_t *t);
	struct task *link;		/* tasks.lock */
	struct fb_waiter w;
	struct fb_node n;
	struct fb_timer timer;		/* .when FB_NEVER: not used */
	fb_lock_t *lock;		/* of the object that n waits for, */
	struct fb_waitq *q;		/* and where; or NULL, both */
};

_Static_assert(sizeof(struct task) <= sizeof(struct fiber_task) &&
	       offsetof(struct task, line) ==
	       offsetof(struct fiber_task, line) &&
	       offsetof(struct task, result) ==
	       offsetof(struct fiber_task, result) &&
	       sizeof(struct fiber_task) < 200, "fiber_task");

static inline struct task *fb_task_of(fiber_task_t *t)
{
	return (struct task *)t;
}

/* ---- task.c ---- */

/* t runs next but all others, and may be gone. p: ours, or NULL. */
void fb_task_put(struct fb_processor *p, struct task *t);
/* The same for timers, no lock: a fiber to be made ready, or NULL. */
struct fiber *fb_task_fired(struct task *t);
/* Before the runtime ends, by a plain thread: no task, no fiber of ours. */
void fb_task_settle(void);

/* ---- taskwait.c ---- */

/* The wait of a task is claimed: let it run. p: ours, or NULL. */
void fb_task_ready(struct fb_processor *p, struct fb_waiter *w);
/* By a runner: t was woken; what came of its wait goes to t->result. */
void fb_task_woken(struct task *t);
/*
 * t waits at q until taken from it, or for the deadline. `lock`, of q, is held
 * (fb_obj_lock), and given back. 1; t may run elsewhere, or be gone.
 */
int fb_task_wait(struct fb_caller *me, struct task *t, fb_lock_t *lock,
		 struct fb_waitq *q, void *value, uint64_t deadline);

#endif
