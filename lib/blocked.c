// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * blocked.c - end the system calls of cancelled fibers
 *
 * A fiber that is BLOCKED sleeps on its carrier, in the kernel. A signal with a
 * handler that does nothing, and without SA_RESTART, makes its call fail with
 * EINTR. It may come an instant too early, before the call sleeps, and then does
 * nothing: so one fiber, the poker, goes round until no cancelled fiber sleeps in
 * a call any more, less and less often. It sends to sleeping threads alone; who
 * runs will find out by itself.
 *
 * For the kernel backend only: in the user backend SIGURG means a preemption.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "blocked.h"
#include "fb.h"

#define FIRST_NS	200000ULL
#define LAST_NS		50000000ULL

static struct {
	fb_lock_t lock;			/* in_fiber == 0 */
	bool runs;			/* there is a poker */
	bool asked;			/* cancelled again since it looked */
} poker;

static void on_signal(int sig)
{
	(void)sig;
}

/* A program's own handler stays; then it decides what a call does. */
static void set_handler(void)
{
	struct sigaction old, sa = { .sa_handler = on_signal,
				     .sa_flags = SA_ONSTACK };

	if (!sigaction(SIGURG, NULL, &old) && old.sa_handler == SIG_DFL)
		sigaction(SIGURG, &sa, NULL);
}

/* The letter of /proc/self/task/TID/stat: 'S' sleeps and can be interrupted. */
static char thread_state(int tid)
{
	char path[48], text[64], *p;
	ssize_t n;
	int fd;

	snprintf(path, sizeof(path), "/proc/self/task/%d/stat", tid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return 0;
	n = read(fd, text, sizeof(text) - 1);
	close(fd);
	if (n <= 0)
		return 0;
	text[n] = 0;
	p = strrchr(text, ')');
	return p && p[1] ? p[2] : 0;
}

static bool is_cancelled(const struct fb_carrier *c)
{
	/* A carrier's fiber may end meanwhile: its descriptor stays mapped. */
	const struct fiber *f = FB_READ(c->cur);

	return f && FB_READ(c->page) && FB_READ(c->page->in_fiber) == 1 &&
	       (FB_READ(f->flags) & FB_F_CANCELS) && FB_READ(f->cancel);
}

/* One round; how many cancelled fibers are outside the library. */
static unsigned int poke_all(void)
{
	struct fb_carrier *c;
	unsigned int n = 0;

	/* Pairs with carrier_make. */
	for (c = FB_ACQUIRE(fb_rt.carriers); c; c = c->next) {
		if (!is_cancelled(c))
			continue;
		n++;
		if (thread_state(c->tid) == 'S' && is_cancelled(c))
			syscall(SYS_tgkill, getpid(), c->tid, SIGURG);
	}
	return n;
}

static void lock_poker(void)
{
	struct fb_carrier *c = fb_current();

	if (c)
		fb_enter(c);
	fb_lock(&poker.lock);
}

static void unlock_poker(void)
{
	struct fb_carrier *c = fb_current();

	fb_unlock(&poker.lock);
	if (c)
		fb_leave(c);
}

static bool rest(void)
{
	bool done;

	lock_poker();
	done = !poker.asked;
	poker.asked = false;
	if (done)
		poker.runs = false;
	unlock_poker();
	return done;
}

static void *pokes(void *arg)
{
	uint64_t ns = FIRST_NS;

	set_handler();
	do {
		while (poke_all()) {
			fiber_sleep(ns);
			ns = ns < LAST_NS ? ns * 2 : LAST_NS;
		}
	} while (!rest());
	return arg;
}

void fb_blocked_cancel(void)
{
	struct fiber_attr attr = { .size = sizeof(attr), .name = "canceller" };
	bool start;

	if (!(FB_READ(fb_rt.features) & FIBER_FEATURE_CANCEL_BLOCKED))
		return;
	lock_poker();
	poker.asked = true;
	start = !poker.runs;
	poker.runs = true;
	unlock_poker();
	if (start && fiber_spawn_attr(NULL, &attr, pokes, NULL)) {
		lock_poker();
		poker.runs = false;
		unlock_poker();
		poke_all();		/* no memory: once is better than never */
	}
}
