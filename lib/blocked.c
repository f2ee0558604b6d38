// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * blocked.c - end the system calls of cancelled fibers
 *
 * A fiber that is BLOCKED sleeps on its carrier, in the kernel. A signal with a
 * handler that does nothing, and without SA_RESTART, makes its call fail with
 * EINTR. It may come an instant too early, before the call sleeps, and a cancelled
 * fiber may begin a call later on: so a thread of our own goes round as long as a
 * cancelled scope is not closed, less and less often. It sends to sleeping threads
 * alone; who runs will find out by itself.
 *
 *	who cancels			the canceller
 *	dead_scopes++ (or quit)		seen = word
 *	word++, wake			quit: end. dead_scopes is 0: sleep while
 *					word is seen
 *
 * For the kernel backend only: in the user backend SIGURG means a preemption.
 */
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "blocked.h"
#include "fb.h"
#include "pool.h"

#define FIRST_NS	200000ULL
#define LAST_NS		50000000ULL

static struct {
	uint32_t word;			/* atomic; futex: look again */
	uint32_t dead_scopes;		/* atomic: cancelled and not closed */
	bool runs, quit;		/* lock; quit also by the thread */
	pthread_mutex_t lock;
	pthread_t thread;
} canceller = { .lock = PTHREAD_MUTEX_INITIALIZER };

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

static bool is_cancelled(const struct fb_carrier *c)
{
	/* A carrier's fiber may end meanwhile: its descriptor stays mapped. */
	const struct fiber *f = FB_READ(c->cur);
	const struct fb_cpage *page;
	bool in_fiber;

	fb_pool_look();
	page = FB_READ(c->page);
	in_fiber = page && FB_READ(page->in_fiber) == 1;
	fb_pool_looked();
	return f && in_fiber && (FB_READ(f->flags) & FB_F_CANCELS) &&
	       FB_READ(f->cancel);
}

static void look_at_all(void)
{
	struct fb_carrier *c;

	/* Pairs with carrier_make. */
	for (c = FB_ACQUIRE(fb_rt.carriers); c; c = c->next)
		if (is_cancelled(c) && fb_os_thread_state(c->tid) == 'S' &&
		    is_cancelled(c))
			syscall(SYS_tgkill, getpid(), c->tid, SIGURG);
}

static void *go_round(void *arg)
{
	uint64_t ns = FIRST_NS;

	pthread_setname_np(pthread_self(), "fiber-canceller");
	for (;;) {
		/* Before all else. Pairs with the add in notify. */
		uint32_t seen = FB_ACQUIRE(canceller.word);

		if (FB_READ(canceller.quit))
			return arg;
		if (!FB_READ(canceller.dead_scopes)) {
			fb_os_sleep(&canceller.word, seen, 0);
			ns = FIRST_NS;
			continue;
		}
		look_at_all();
		if (fb_os_sleep(&canceller.word, seen, fiber_now() + ns))
			ns = ns < LAST_NS ? ns * 2 : LAST_NS;
		else
			ns = FIRST_NS;
	}
}

/* The lock is held. Without a thread the calls are not interrupted. */
static void start(void)
{
	set_handler();
	FB_WRITE(canceller.quit, false);
	canceller.runs = !fb_os_thread(&canceller.thread, go_round, NULL);
	if (canceller.runs)
		__atomic_fetch_add(&fb_rt.helpers, 1, __ATOMIC_RELAXED);
	else
		fb_say("no thread to interrupt blocking calls of cancelled fibers");
}

static void notify(void)
{
	/* Pairs with the acquire in go_round. */
	__atomic_add_fetch(&canceller.word, 1, __ATOMIC_RELEASE);
	fb_os_wake(&canceller.word, 1);
}

void fb_blocked_count(int scopes)
{
	__atomic_add_fetch(&canceller.dead_scopes, (uint32_t)scopes,
			   __ATOMIC_RELAXED);
}

void fb_blocked_cancel(void)
{
	if (!(FB_READ(fb_rt.features) & FIBER_FEATURE_CANCEL_BLOCKED))
		return;
	pthread_mutex_lock(&canceller.lock);
	if (!canceller.runs)
		start();
	pthread_mutex_unlock(&canceller.lock);
	notify();
}

void fb_blocked_stop(void)
{
	if (!canceller.runs)
		return;
	FB_WRITE(canceller.quit, true);
	notify();
	pthread_join(canceller.thread, NULL);
	__atomic_fetch_sub(&fb_rt.helpers, 1, __ATOMIC_RELAXED);
	canceller.runs = false;
}
