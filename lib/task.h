/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* task.h - what others know of tasks; see task.c */
#ifndef FB_TASK_H
#define FB_TASK_H

#include "wait.h"

/* The wait of a task is claimed: let it run. p: ours, or NULL. */
void fb_task_ready(struct fb_processor *p, struct fb_waiter *w);
/* Before the runtime ends, by a plain thread: no task, no fiber of ours. */
void fb_task_settle(void);

#endif
