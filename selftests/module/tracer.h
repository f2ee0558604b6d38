/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * tracer.h - a process that looks at the threads of another by ptrace
 */
#ifndef TRACER_H
#define TRACER_H

#include <sys/types.h>

#define TRACER_GONE	(-1)
#define TRACER_NOT_YET	(-2)

extern double tracer_patience;		/* seconds; a thread may sleep for long */

/* The nth of the threads of pid, round and round; -1: there is none. */
pid_t tracer_thread(pid_t pid, unsigned int nth);
/* The signal of the next stop of tid, or why there is none. */
int tracer_next(pid_t tid);
/*
 * Attach, go on n times by a PTRACE_* request, detach. A thread that sleeps for
 * long is left alone. Returns stops seen.
 */
unsigned int tracer_go(pid_t tid, int request, unsigned int n);

#endif
