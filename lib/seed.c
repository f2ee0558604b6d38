// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * seed.c - one run that can be had again: FIBER_SEED, fiber_config.seed
 *
 * With a seed every choice of the runtime comes from one generator, and nothing that
 * it does depends on how fast the machine is. The same seed and program then give
 * the same switches, as far as the program itself asks nobody else: no clock, no
 * address, no other thread or process.
 *
 *   processors   one, of the user backend
 *   who is next  any of the ready ones, and who yields among them; classes and the
 *		  order of arrival do not count
 *   where        at each wait, and at one of POINT calls into the library: they all
 *		  look at page->pending, which is never 0 while fiber code runs:
 *		  who parks writes 0, but then picks, which comes here; who yields
 *		  writes fb_rt.seeded. Of a spawn, parent or child goes on.
 *   select	  by the same generator, in the order of its cases
 *   time         stands still, but for TICK at each switch and at each look at it
 *		  by a fiber. When nobody is ready it jumps to the next timer
 *   blocking     page->no_preempt is never 0, so neither the monitor nor a signal
 *		  takes the processor: a fiber that blocks does so in place, and
 *		  nothing else runs meanwhile
 *
 * Fibers that wait for I/O (epoll, whatever FIBER_IO says) wait for the world, whose
 * time is real: while there are any, a timer is waited for as long as it says, before
 * time jumps. What is readable already is seen at once, before any time goes by. The
 * same holds while one naps between two looks at what nothing tells of (fb_io_nap),
 * and while a channel wants signals.
 *
 * Ready fibers are in the ring of the only processor, which no thief reads: any entry
 * may be exchanged with the oldest, and taken. The slot run-next and the global queue
 * (what plain threads made ready) are emptied into it first.
 *
 * All is the owner's, with in_fiber == 0, unless said otherwise. Without a seed it
 * costs nothing: fb_pick comes here by look_at, which is always 0 then, and calls by
 * page->pending.
 */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "pick.h"
#include "poller.h"

#define POINT	4			/* calls; one of them yields */
#define TICK	1000			/* ns */
#define BEGIN	1000000000ull		/* the clock's first; 0 has a meaning */
#define LOOKS	16			/* switches from one look at I/O to the next */

static struct {
	uint64_t seed;			/* while the runtime is off */
	uint64_t state;
	uint64_t now;			/* atomic: read by all */
	uint64_t switches, trace;	/* atomic, for who reports */
	bool yields;			/* the caller of the next pick is ready, too */
	uint64_t due, at;		/* that timer comes due at, by the kernel */
	int outside;			/* fibers that nap until the world has changed */
	pid_t pid;
	uint32_t said;			/* atomic */
} sd;

/* ---- chance ---- */

/* SplitMix64: any state is a good one. */
static uint64_t next(void)
{
	uint64_t z = sd.state += 0x9e3779b97f4a7c15ull;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ z >> 27) * 0x94d049bb133111ebull;
	return z ^ z >> 31;
}

uint32_t fb_seed_below(uint32_t n)
{
	return (uint32_t)((next() >> 32) * n >> 32);
}

void fb_seed_yields(void)
{
	sd.yields = true;
}

/* Not in a section without preemption: it is one more than attach() made it. */
void fb_seed_point(struct fb_carrier *c)
{
	if (c->page->no_preempt == 1 && !fb_seed_below(POINT))
		fiber_yield();
}

/* ---- time ---- */

uint64_t fb_seed_clock(void)
{
	return FB_READ(sd.now);
}

static void tick(void)
{
	FB_WRITE(sd.now, sd.now + TICK);
}

/* Plain threads sleep in the kernel: they have its clock. */
uint64_t fb_seed_now(void)
{
	struct fb_carrier *c = fb_current();

	if (!c)
		return fb_clock();
	if (FB_READ(c->page->in_fiber))
		tick();
	return sd.now;
}

void fb_seed_outside(int n)
{
	sd.outside += n;
}

/* Nobody is ready. Is it time for the timer that is due then? */
static bool may_jump(uint64_t due)
{
	if (due <= sd.now ||
	    (!fb_poller_wanted(&fb_rt.group) && !sd.outside && !fb_signal_wanted()))
		return true;
	if (sd.due != due) {
		sd.due = due;
		sd.at = fb_clock() + (due - sd.now);
	}
	return fb_clock() >= sd.at;
}

uint64_t fb_seed_wake_at(void)
{
	return fb_timer_earliest(&fb_rt.group) == FB_NEVER ? FB_NEVER : sd.at;
}

static void fire(struct fb_processor *p)
{
	if (fb_timer_fire(p, sd.now))
		fb_sched_watch(p);
}

struct fiber *fb_seed_idle(struct fb_processor *p)
{
	struct fiber *f = NULL;
	uint64_t due;

	if (fb_poller_wanted(&fb_rt.group) && fb_poller_look(p, FB_NEVER))
		f = fb_seed_pick(p);
	while (!f && (due = fb_timer_earliest(&fb_rt.group)) != FB_NEVER && may_jump(due)) {
		if (due > sd.now)
			FB_WRITE(sd.now, due);
		fire(p);
		f = fb_seed_pick(p);
	}
	return f;
}

/* ---- who is next ---- */

static void push(struct fb_processor *p, struct fiber *f)
{
	if (fb_runq_full(&p->q))
		fb_sched_make_room(p);
	fb_runq_push(&p->q, f);
}

/* Whoever is ready into the ring. */
static void gather(struct fb_processor *p)
{
	struct fiber *f = fb_runq_swap_next(&p->q, NULL);

	if (f)
		push(p, f);
	while (!fb_runq_full(&p->q) && (f = fb_sched_global_get(p)))
		push(p, f);
}

/* What else happens at a switch: time goes on, and the world. */
static void look(struct fb_processor *p)
{
	if (FB_READ(p->timer_next) <= sd.now)
		fire(p);
	if (sd.switches % LOOKS == 0 && fb_poller_wanted(&fb_rt.group))
		fb_poller_look(p, FB_NEVER);
}

static void note(const struct fiber *f)
{
	FB_WRITE(sd.switches, sd.switches + 1);
	FB_WRITE(sd.trace, (sd.trace ^ f->id) * 0x100000001b3ull);
	tick();
}

struct fiber *fb_seed_pick(struct fb_processor *p)
{
	struct fb_carrier *c = fb_current();
	bool self = sd.yields;
	struct fiber **k, **oldest, *f;
	uint32_t n, i;

	sd.yields = false;
	FB_WRITE(c->page->pending, 1);
	if (fb_group_ends(p->group))
		return NULL;
	look(p);
	gather(p);
	n = p->q.tail - p->q.head;
	if (!n)
		return NULL;
	i = fb_seed_below(n + self);
	if (i == n)			/* who yields goes on */
		return NULL;
	k = fb_runq_slot(&p->q, p->q.head + i);
	oldest = fb_runq_slot(&p->q, p->q.head);
	f = *k;
	*k = *oldest;
	*oldest = f;
	fb_sched_turn(p);
	note(f);
	return fb_runq_pop(&p->q);
}

/* ---- what went wrong ---- */

void fb_seed_say(void)
{
	if (!sd.seed || getpid() != sd.pid ||
	    __atomic_exchange_n(&sd.said, 1, __ATOMIC_RELAXED))
		return;
	fb_say("FIBER_SEED=%llu in the environment replays this run of %s: %llu switches, trace %016llx",
	       (unsigned long long)sd.seed, program_invocation_name,
	       (unsigned long long)FB_READ(sd.switches),
	       (unsigned long long)FB_READ(sd.trace));
}

static void at_exit(int status, void *arg)
{
	(void)arg;
	if (status)
		fb_seed_say();
}

/* A fault happens again by itself, a signal that was sent does not. */
static void on_signal(int sig, siginfo_t *si, void *context)
{
	struct sigaction sa = { .sa_handler = SIG_DFL };
	int err = errno;

	(void)context;
	fb_seed_say();
	sigaction(sig, &sa, NULL);
	if (si->si_code <= 0 && sig != SIGABRT)
		syscall(SYS_tgkill, getpid(), syscall(SYS_gettid), sig);
	errno = err;
}

/*
 * They stay when the runtime stops: what a run has done wrong, the program may find
 * out later. Handlers of the program's own are left alone.
 */
static void watch_end(void)
{
	static const int fatal[] = { SIGABRT, SIGSEGV, SIGBUS, SIGILL, SIGFPE };
	struct sigaction old, sa = { .sa_sigaction = on_signal,
				     .sa_flags = SA_SIGINFO | SA_ONSTACK };
	static bool watched;

	if (watched)
		return;
	watched = true;
	on_exit(at_exit, NULL);
	for (size_t i = 0; i < sizeof(fatal) / sizeof(fatal[0]); i++)
		if (!sigaction(fatal[i], NULL, &old) &&
		    !(old.sa_flags & SA_SIGINFO) && old.sa_handler == SIG_DFL)
			sigaction(fatal[i], &sa, NULL);
}

/* ---- start ---- */

void fb_seed_start(uint64_t seed)
{
	int err = errno;

	memset(&sd, 0, sizeof(sd));
	sd.seed = sd.state = seed;
	sd.now = BEGIN;
	sd.pid = getpid();
	fb_rt.seeded = seed != 0;
	if (seed)
		watch_end();
	errno = err;
}

uint64_t fb_seed_number(void)
{
	return sd.seed;
}

void fb_seed_attach(struct fb_carrier *c)
{
	FB_WRITE(c->page->no_preempt, 1);
}
