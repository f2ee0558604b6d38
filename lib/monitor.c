// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * monitor.c - a thread that watches owners of processors
 *
 * Each tick it looks at every owned processor whose fiber has not changed since
 * the last tick (fb_ppage.seq, grants) while somebody could use the processor:
 *
 *   the owner said so (fiber_blocking_begin)          retake
 *   ... or that it is idle (poller.c)                 retake for one that is back
 *   it used little CPU time and /proc says S or D     retake
 *   it runs for a quantum (1 ms if a carrier that
 *   came back from a block waits)                     SIGURG
 *
 * and, in turn, at carriers that lost their processor: one that runs again
 * gets SIGURG, so that it stops and waits. (/proc says T or t: stopped by
 * SIGSTOP or a debugger; it keeps its processor, as with the module.) The CPU
 * clock of the thread is asked first: it costs 0.2 us, /proc 5 us. SIGURG goes
 * only to a thread that /proc says is running: it must not interrupt a block.
 *
 * Tick: half the grace time (20 us at least) after something was done or the
 * monitor was woken, doubled at each tick without; at most 1 ms while somebody
 * could use a processor. After QUIET ticks with nothing to do it sleeps, and
 * sets FB_AVAIL_MONITOR so that the next publisher or waiter wakes it: without
 * timeout if no owner runs, else 20 ms.
 *
 *   monitor                              publisher into its own ring
 *   avail |= FB_AVAIL_MONITOR            takeover = READY
 *   membarrier                           (compiler barrier)
 *   look at takeover, hint, waiting      look at avail: kick
 *
 * One sees the other, by the argument of RETAKE in group.c. Without membarrier
 * it never sleeps longer than 20 ms.
 *
 * The thread has a descriptor table of its own (close_range with UNSHARE), so
 * that its short-lived /proc descriptors take no number the program waits for
 * and need no room in its limit.
 */
#include <errno.h>
#include <limits.h>
#include <linux/close_range.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "fb.h"
#include "user.h"

enum { QUIET = 10, AWAY_PER_TICK = 32 };
#define MS	1000000ULL
#define TICK_BUSY	(1 * MS)
#define TICK_IDLE	(20 * MS)

/* What a tick found. */
struct found {
	uint64_t now;
	bool work;		/* somebody, somewhere, could use a processor */
	bool acted;		/* something was retaken or preempted */
	bool need;		/* an owner is watched: keep ticking */
	bool runs;		/* an owner uses CPU time */
	uint64_t due;		/* the next quantum ends then; UINT64_MAX */
};

/* ---- what a thread does ---- */

/* CPU time it has used; 0: it is gone. */
static uint64_t cpu_time(struct fb_user_carrier *uc)
{
	clockid_t clock = (clockid_t)(~(uint32_t)fb_load(&uc->tid) << 3 | 6);
	struct timespec ts;

	if (clock_gettime(clock, &ts))
		return 0;
	return ts.tv_sec * 1000000000ULL + ts.tv_nsec;
}

/* CPU time since the last look at this thread; *passed: time since then. */
static uint64_t cpu_used(struct fb_user_carrier *uc, uint64_t now,
			 uint64_t *passed)
{
	uint64_t before = uc->cpu;

	*passed = now - uc->looked;
	uc->cpu = cpu_time(uc);
	uc->looked = now;
	return uc->cpu > before ? uc->cpu - before : 0;
}

/* Without an answer of /proc: nothing used, for 1 ms at least, is a block. */
static bool blocked(struct fb_user_carrier *uc, uint64_t used,
		    uint64_t same_for)
{
	char state = fb_os_thread_state((int)fb_load(&uc->tid));

	if (!state)
		return !used && same_for > MS;
	return state == 'S' || state == 'D';
}

/* ---- one processor ---- */

/* Did another fiber or carrier come since the last tick? Then note it. */
static bool changed(struct fb_user_proc *p, struct fb_user_carrier *uc,
		    uint64_t now)
{
	uint32_t seq = fb_load(&p->page.seq), grants = fb_load(&p->grants);

	if (p->seen_owner == uc && p->seen_seq == seq &&
	    p->seen_grants == grants)
		return false;
	p->seen_since = p->seen_grants == grants ? now : fb_load(&p->since);
	p->seen_owner = uc;
	p->seen_seq = seq;
	p->seen_grants = grants;
	return true;
}

/*
 * A signal would interrupt a call that blocks; and one that has just been woken
 * in the kernel, which runs too: so whoever used little CPU is let alone. (A
 * thread can still block between the look and the signal: one EINTR.)
 */
static bool may_signal(struct fb_user_group *g, struct fb_user_carrier *uc,
		       bool busy, uint64_t now)
{
	char state;

	if (!busy || fb_load(&uc->page.in_fiber) != 1)
		return false;
	if (fb_load(&uc->kicked) && now - uc->sent < g->quantum)
		return false;	/* the last one is on its way */
	state = fb_os_thread_state((int)fb_load(&uc->tid));
	return state == 'R' || !state;
}

static void preempt(struct fb_user_group *g, struct fb_user_carrier *uc,
		    struct found *f)
{
	uc->sent = f->now;
	fb_sigurg_send(g, uc);
	f->acted = true;
}

/* uc has run since p->seen_since: is its quantum over? */
static void check_quantum(struct fb_user_group *g, struct fb_user_proc *p,
			  struct fb_user_carrier *uc, struct found *f)
{
	uint64_t quantum = g->quantum, preempts = fb_load(&uc->page.preempts);
	uint64_t again, due;
	bool busy;

	if (uc->preempts != preempts) {	/* it was, and found nobody else */
		uc->preempts = preempts;
		p->seen_since = f->now;
	}
	if ((fb_load(&g->returned) || fb_load(&p->cut)) && quantum > MS)
		quantum = MS;
	again = quantum / 8 > MS ? quantum / 8 : MS;
	due = p->seen_since + quantum;
	if (uc->sent >= p->seen_since && due < uc->sent + again)
		due = uc->sent + again;
	if (f->now >= due) {
		busy = uc->cpu - p->seen_cpu >= (quantum < MS ? quantum : MS) / 2;
		if (fb_load(&uc->page.no_preempt))
			fb_store(&uc->page.pending, 1);
		else if (may_signal(g, uc, busy, f->now))
			preempt(g, uc, f);
		due = f->now + MS;
	}
	if (due < f->due)
		f->due = due;
}

/*
 * Its owner sleeps in epoll_wait, and is woken for what is ready. Who came back
 * from a block may have the processor; nobody else: each time another would sleep
 * there in place of the first, which stays.
 */
static void look_at_idle(struct fb_user_group *g, struct fb_user_proc *p,
			 struct fb_user_carrier *uc, struct found *f)
{
	if (!fb_load(&g->info->waiting))
		return;
	f->need = true;
	f->acted |= fb_group_retake(g, p, uc, p->seen_seq, false);
}

static void look_at(struct fb_user_group *g, struct fb_user_proc *p,
		    struct found *f)
{
	/* Pairs with the release in set_owner. */
	struct fb_user_carrier *uc = fb_load_acq(&p->owner);
	uint32_t takeover = fb_load(&p->page.takeover);
	uint64_t used, passed, same_for;

	if (!uc)
		return;
	if (changed(p, uc, f->now)) {
		f->need |= f->work;
		f->runs = true;
		cpu_used(uc, f->now, &passed);
		p->seen_cpu = uc->cpu;
		return;
	}
	if (fb_load(&uc->page.blocking) == FB_BLOCKING_IDLE) {
		look_at_idle(g, p, uc, f);
		return;
	}
	used = cpu_used(uc, f->now, &passed);
	f->runs |= used > 0;
	if (!takeover && !f->work)
		return;
	f->need = true;
	same_for = f->now - p->seen_since;
	if (fb_load(&uc->page.in_fiber) != 1)
		return;
	if (!fb_load(&uc->page.no_preempt) &&
	    (fb_load(&uc->page.blocking) ||
	     ((used < passed / 2 || same_for >= g->quantum) &&
	      blocked(uc, used, same_for)))) {
		f->acted |= fb_group_retake(g, p, uc, p->seen_seq, true);
		return;
	}
	if ((takeover & FB_TAKEOVER_READY) || fb_load(&g->hint->work) ||
	    fb_load(&g->info->waiting))
		check_quantum(g, p, uc, f);
}

/* ---- carriers that lost their processor ---- */

static void look_at_away(struct fb_user_group *g, struct fb_user_carrier *uc,
			 struct found *f)
{
	uint64_t used, passed;

	/* Pairs with the release in user_attach. */
	if (fb_load_acq(&uc->state) != FB_USER_AWAY ||
	    fb_load(&uc->page.in_fiber) != 1 ||
	    fb_load(&uc->page.processor) != FB_NO_PROCESSOR)
		return;
	used = cpu_used(uc, f->now, &passed);
	if (!used)
		return;
	f->need = true;
	if (may_signal(g, uc, used >= MS / 5, f->now))
		preempt(g, uc, f);
}

/* A few at a time, once in a millisecond at most. */
static void look_at_aways(struct fb_user_group *g, struct found *f)
{
	/* Pairs with the release in user_attach. */
	uint32_t used = fb_load_acq(&g->used);

	if (f->now < g->away_at + MS)
		return;
	g->away_at = f->now;
	for (uint32_t i = 0; i < AWAY_PER_TICK && i < used; i++) {
		if (g->away_next >= used)
			g->away_next = 0;
		look_at_away(g, &g->carrier[g->away_next++], f);
	}
}

/* ---- the thread ---- */

static void tick(struct fb_user_group *g, struct found *f)
{
	*f = (struct found){ .now = fb_group_now(), .due = UINT64_MAX };
	f->work = fb_load(&g->info->waiting) || fb_group_any_ready(g);
	for (uint32_t i = 0; i < g->nproc; i++)
		look_at(g, &g->proc[i], f);
	look_at_aways(g, f);
}

static bool any_owner_runs(struct fb_user_group *g)
{
	for (uint32_t i = 0; i < g->nproc; i++) {
		/* Pairs with the release in set_owner. */
		struct fb_user_carrier *uc = fb_load_acq(&g->proc[i].owner);

		if (uc && fb_os_thread_state((int)fb_load(&uc->tid)) == 'R')
			return true;
	}
	return false;
}

/* At the cap of carriers, all blocked, work is there and nobody for it. */
static bool something_to_do(struct fb_user_group *g)
{
	uint32_t idle = fb_load(&g->info->idle);

	if (fb_load(&g->info->dead) || fb_load(&g->info->waiting) ||
	    fb_group_any_takeover(g))
		return true;
	return fb_group_any_ready(g) &&
	       (idle < g->nproc || fb_load(&g->info->spares));
}

/*
 * After QUIET ticks: let publishers wake us, and look once more. True: there
 * is something to do; false: the timeout passed.
 */
static bool sleep_long(struct fb_user_group *g, bool runs)
{
	uint64_t until = 0;
	int r = 0;

	if (runs || any_owner_runs(g) || !g->membarrier)
		until = fb_group_now() + TICK_IDLE;
	fb_group_set_asleep(g, true);
	if (!something_to_do(g))
		r = fb_os_sleep(&g->monitor_word, 1, until);
	fb_group_set_asleep(g, false);
	return r == 0;
}

/* Work, and a processor idles: no publisher saw it? Once in a millisecond. */
static void heal(struct fb_user_group *g, struct found *f)
{
	if (!f->work || !fb_load(&g->info->idle)) {
		g->heal_at = f->now + MS;
	} else if (f->now >= g->heal_at) {
		g->heal_at = f->now + MS;
		fb_group_heal(g);
	}
}

/*
 * A short slice lets it run soon after it wakes (EEVDF, from Linux 6.12); it
 * needs no privilege. Older kernels ignore the value.
 */
static void short_slice(void)
{
	struct {
		uint32_t size, policy;
		uint64_t flags;
		int32_t nice;
		uint32_t priority;
		uint64_t runtime, deadline, period;
	} a = { .size = sizeof(a) };

	if (syscall(SYS_sched_getattr, 0, &a, sizeof(a), 0) ||
	    (a.policy != SCHED_OTHER && a.policy != SCHED_BATCH))
		return;
	a.runtime = 100000;
	syscall(SYS_sched_setattr, 0, &a, 0);
}

static void own_descriptors(void)
{
	const char *preload = secure_getenv("LD_PRELOAD");

	/* valgrind's own descriptors must stay reachable in every thread */
	if (preload && strstr(preload, "vgpreload"))
		return;
	syscall(SYS_close_range, 0, UINT_MAX, CLOSE_RANGE_UNSHARE);
}

static void *monitor(void *arg)
{
	struct fb_user_group *g = arg;
	uint64_t min = g->grace / 2, step, until;
	unsigned int quiet = 0;
	struct found f;
	uint32_t never = 0;

	min = min < 20000 ? 20000 : min > TICK_BUSY ? TICK_BUSY : min;
	step = min;
	prctl(PR_SET_NAME, "fiber-monitor");
	prctl(PR_SET_TIMERSLACK, 1UL);
	short_slice();
	own_descriptors();
	/* Pairs with the unlock in user_close. */
	while (!fb_load_acq(&g->info->dead)) {
		tick(g, &f);
		heal(g, &f);
		quiet = f.acted || f.need ? 0 : quiet + 1;
		if (quiet >= QUIET) {
			if (sleep_long(g, f.runs))
				quiet = 0;
			step = min;
			continue;
		}
		until = f.now + step;
		fb_os_sleep(&never, 0, f.due < until ? f.due : until);
		step = f.acted ? min : step * 2 < TICK_BUSY ? step * 2 : TICK_BUSY;
	}
	return NULL;
}

static int create(struct fb_user_group *g, const pthread_attr_t *attr)
{
	return -pthread_create(&g->monitor, attr, monitor, g);
}

int fb_monitor_start(struct fb_user_group *g)
{
	pthread_attr_t attr;
	sigset_t all, old;
	int r;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, sysconf(_SC_THREAD_STACK_MIN) + 65536);
	r = create(g, &attr);
	if (r == -EINVAL)	/* thread-local storage needs more */
		r = create(g, NULL);
	pthread_attr_destroy(&attr);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (!r)
		__atomic_fetch_add(&fb_rt.helpers, 1, __ATOMIC_RELAXED);
	return r;
}

/* info->dead is set. */
void fb_monitor_stop(struct fb_user_group *g)
{
	/* Pairs with the acquire in fb_group_sleep. */
	fb_store_rel(&g->monitor_word, 0);
	fb_os_wake(&g->monitor_word, 1);
	pthread_join(g->monitor, NULL);
}
