// SPDX-License-Identifier: GPL-2.0-only
/*
 * tracer.c - see tracer.h
 */
#include <dirent.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

#include "raw.h"
#include "tracer.h"

pid_t tracer_thread(pid_t pid, unsigned int nth)
{
	char path[64];
	struct dirent *e;
	pid_t tids[128], tid;
	unsigned int n = 0;
	DIR *d;

	snprintf(path, sizeof(path), "/proc/%d/task", pid);
	d = opendir(path);
	while (d && (e = readdir(d)) && n < 128)
		if ((tid = atoi(e->d_name)) > 0)
			tids[n++] = tid;
	if (d)
		closedir(d);
	return n ? tids[nth % n] : -1;
}

double tracer_patience = 0.05;

int tracer_next(pid_t tid)
{
	int status, r = 0;

	if (!RAW_UNTIL_FOR(tracer_patience, (r = waitpid(tid, &status, __WALL | WNOHANG))))
		return TRACER_NOT_YET;
	return r == tid && WIFSTOPPED(status) ? WSTOPSIG(status) : TRACER_GONE;
}

/*
 * Whatever it does by now, it is ours no longer: it goes on, or is dead and reaped.
 * A call of ptrace fails where it is about to die; if nobody reaped it, its process
 * would never end, and if it was not dead after all, it would never go on.
 */
static void let_go(pid_t tid)
{
	int status;
	pid_t r;

	while (ptrace(PTRACE_DETACH, tid, 0, 0)) {
		r = waitpid(tid, &status, __WALL | WNOHANG);
		if (r < 0 || (r == tid && !WIFSTOPPED(status)))
			return;
		if (!r) {
			ptrace(PTRACE_INTERRUPT, tid, 0, 0);
			raw_sleep(100);
		}
	}
}

/* Stop it wherever it is. */
static int stop_now(pid_t tid)
{
	int signal;

	if (ptrace(PTRACE_INTERRUPT, tid, 0, 0)) {
		let_go(tid);
		return TRACER_GONE;
	}
	do
		signal = tracer_next(tid);
	while (signal == TRACER_NOT_YET);
	return signal;
}

/*
 * Interrupted while it was stepped: the SIGTRAP of the step may be queued behind
 * the stop that was reported, and would kill the thread once detached.
 */
static bool trap_queued(pid_t tid)
{
	struct __ptrace_peeksiginfo_args args = { .nr = 32 };
	siginfo_t info[32];
	long n = ptrace(PTRACE_PEEKSIGINFO, tid, &args, info);

	while (n-- > 0)
		if (info[n].si_signo == SIGTRAP)
			return true;
	return false;
}

/* Other signals may stand before it. */
static int collect_trap(pid_t tid)
{
	int signal = 0;

	for (int i = 0; i < 64 && signal >= 0 && trap_queued(tid); i++) {
		if (ptrace(PTRACE_CONT, tid, 0, 0))
			break;
		do
			signal = tracer_next(tid);
		while (signal == TRACER_NOT_YET);
	}
	return signal;
}

unsigned int tracer_go(pid_t tid, int request, unsigned int n)
{
	unsigned int seen = 0;
	int signal;

	if (ptrace(PTRACE_SEIZE, tid, 0, 0))
		return 0;
	signal = stop_now(tid);
	while (signal >= 0 && seen < n) {
		if (ptrace(request, tid, 0, signal == SIGTRAP ? 0 : signal)) {
			let_go(tid);
			return seen;
		}
		signal = tracer_next(tid);
		seen += signal >= 0;
	}
	if (signal == TRACER_NOT_YET) {
		signal = stop_now(tid);
		if (signal >= 0)
			signal = collect_trap(tid);
	}
	if (signal >= 0)
		let_go(tid);
	return seen;
}
