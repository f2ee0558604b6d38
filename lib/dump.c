// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * dump.c - all fibers with their stacks, as text
 *
 * For people: after a signal (FIBER_DUMP_SIGNAL), by a call, and when all is stuck
 * (deadlock.c). It may run in a signal handler on any thread, at any moment: it
 * takes no lock and no memory of the C library, only of the kernel; formats with
 * snprintf (integers and strings, for which glibc's needs neither); and enters the
 * runtime only if that needs no wait. One dump at a time; a second one is refused.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "symbol.h"
#include "wait.h"

#define FRAMES	48			/* of a stack */
#define MS	1000000

static struct {
	uint32_t busy;			/* atomic: somebody writes */
	int fd;
	int error;
	size_t n;
	uint64_t fibers;
	struct fb_unwind u;
	uintptr_t frame[FRAMES];
	char text[4096];
} out;

static struct {
	int sig;			/* 0: none */
	struct sigaction previous;
} on;

/* ---- text ---- */

static void flush(void)
{
	if (!out.error)
		out.error = fb_os_write_all(out.fd, out.text, out.n);
	out.n = 0;
}

static __attribute__((format(printf, 1, 2))) void say(const char *fmt, ...)
{
	va_list ap;
	int n;

	if (out.n > sizeof(out.text) - 512)
		flush();
	va_start(ap, fmt);
	n = vsnprintf(out.text + out.n, sizeof(out.text) - out.n, fmt, ap);
	va_end(ap);
	if (n > 0)
		out.n += (size_t)n < sizeof(out.text) - out.n ? (size_t)n :
			 sizeof(out.text) - out.n - 1;
}

/* ---- one fiber ---- */

static void say_owner(const struct fiber_info *i)
{
	bool joins = i->why == fb_why_name(FB_WHY_JOIN);

	if (i->object && !joins)
		say(" at %p", i->object);
	if (i->owner == FIBER_OWNER_THREAD)
		say(", held by a plain thread");
	else if (i->owner)
		say("%sfiber %llu%s%s%s", joins ? " of " : ", held by ",
		    (unsigned long long)(i->owner & INT64_MAX),
		    i->owner_name[0] ? " \"" : "", i->owner_name,
		    i->owner_name[0] ? "\"" : "");
}

/* Who called whom, the innermost first. Behind a call may be another function. */
static int find_stack(const struct fiber_info *i)
{
	int n = 0;

	fb_unwind_begin(&out.u, i->sp, i->bp, i->ip, i->stack_used);
	do {
		out.frame[n] = out.u.reg[16] - !!n;
		n++;
	} while (n < FRAMES && fb_unwind_next(&out.u));
	return n;
}

/* Of the library's own frames only the call that waits. */
static void say_stack(const struct fiber_info *i)
{
	int n = find_stack(i), k = 0;

	while (k + 1 < n && fb_symbol_ours(out.frame[k + 1]))
		k++;
	if (k + 1 == n || !fb_symbol_ours(out.frame[k]))
		k = 0;
	for (; k < n; k++)
		say("    %s\n", fb_symbol(out.frame[k]));
	if (n == FRAMES)
		say("    ...\n");
}

static void say_head(const struct fiber_info *i)
{
	say("fiber %llu", (unsigned long long)(i->id & INT64_MAX));
	if (i->library)
		say(" of the library");
	if (i->name[0])
		say(" \"%s\"", i->name);
	if (i->pool_name[0])
		say(" in pool \"%s\"", i->pool_name);
	say(": %s", i->state_name);
	if (i->why[0])
		say(" (%s) for %llu.%03u s", i->why,
		    (unsigned long long)(i->for_ns / (1000ull * MS)),
		    (unsigned int)(i->for_ns / MS % 1000));
	say_owner(i);
	if (i->tid)
		say(" on thread %d", i->tid);
	if (i->locked_tid)
		say(", locked to thread %d", i->locked_tid);
	if (i->stack_used)
		say(", stack %zu of %zu", i->stack_used, i->stack_bytes);
	say(", started with %s\n", fb_symbol((uintptr_t)i->entry));
}

static int say_fiber(const struct fiber_info *i, void *arg)
{
	(void)arg;
	say_head(i);
	if (i->ip && i->state != FIBER_NEW)
		say_stack(i);
	out.fibers++;
	return out.error;
}

/* ---- all ---- */

bool fb_symbol_take(void)
{
	/* Pairs with the release below. */
	return !__atomic_exchange_n(&out.busy, 1, __ATOMIC_ACQUIRE);
}

void fb_symbol_give(void)
{
	fb_symbol_end();
	FB_RELEASE(out.busy, 0);	/* Pairs with the exchange above. */
}

static int dump(int fd)
{
	int r;

	out.fd = fd;
	out.error = 0;
	out.n = out.fibers = 0;
	say("fiber: all fibers of process %d\n", (int)getpid());
	r = fb_debug_walk(say_fiber, NULL);
	say("fiber: %llu fiber%s; %s\n", (unsigned long long)out.fibers,
	    out.fibers == 1 ? "" : "s", fiber_backend());
	flush();
	return r ? r : out.error;
}

int fb_dump(int fd)
{
	int r;

	if (!fb_symbol_take())
		return -EBUSY;
	r = dump(fd);
	fb_symbol_give();
	return r;
}

FB_EXPORT int fiber_dump(int fd)
{
	int r, err = errno;

	if (!fb_visit_now())
		return -EPERM;
	r = fb_dump(fd);
	fb_visit_end();
	errno = err;
	return r;
}

/* ---- by a signal ---- */

static void on_signal(int sig)
{
	int r = fiber_dump(STDERR_FILENO);

	(void)sig;
	if (r == -EPERM)
		fb_say("no dump: the runtime starts or stops");
}

void fb_dump_signalled(int sig)
{
	if (sig == on.sig)
		on_signal(sig);
}

static int signal_number(const char *s)
{
	static const struct { const char *name; int sig; } known[] = {
		{ "QUIT", SIGQUIT }, { "USR1", SIGUSR1 }, { "USR2", SIGUSR2 },
		{ "HUP", SIGHUP }, { "WINCH", SIGWINCH },
	};
	char *end;
	long n = strtol(s, &end, 10);

	if (*s && !*end)
		return n > 0 && n < NSIG ? (int)n : -1;
	if (!strncasecmp(s, "SIG", 3))
		s += 3;
	for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
		if (!strcasecmp(s, known[i].name))
			return known[i].sig;
	return -1;
}

int fb_dump_start(void)
{
	struct sigaction sa = { .sa_handler = on_signal,
				.sa_flags = SA_RESTART | SA_ONSTACK };
	const char *want = secure_getenv("FIBER_DUMP_SIGNAL");
	int err = errno;

	on.sig = 0;
	if (!want || !*want)
		return 0;
	on.sig = signal_number(want);
	if (on.sig < 0 || sigaction(on.sig, &sa, &on.previous)) {
		on.sig = 0;
		errno = err;
		fb_say("FIBER_DUMP_SIGNAL=%s: QUIT, USR1, USR2, HUP, WINCH or a number is wanted",
		       want);
		return -EINVAL;
	}
	errno = err;
	return 0;
}

/* A handler that the program installed after ours stays. */
void fb_dump_stop(void)
{
	struct sigaction now;

	if (on.sig && !sigaction(on.sig, NULL, &now) &&
	    now.sa_handler == on_signal)
		sigaction(on.sig, &on.previous, NULL);
	on.sig = 0;
}
