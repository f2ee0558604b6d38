// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * retire.c - fewer or more processors while fibers run (fiber_set_processors)
 *
 * The backend has as many processors as there can be, nproc, for good. Those with an
 * index of fb_group.use or more are to be retired: each is held by a carrier that owns
 * it, in its root, with in_fiber == 0, asleep. So nobody else can have it, and no
 * backend needs to know of it: to both that is an owner inside the runtime.
 *
 *	state of i >= use	owner		left by
 *	busy			runs fibers	a slow look of its (park, end): its root
 *				on		yield, end of the quantum: to a spare
 *	idle, kept		none, or one	backend: its takeover word says READY, so
 *				that blocks	that somebody should have it: a spare
 *	held			sleeps in	use has changed, or the runtime stops
 *				fb_retire
 *
 * The words: fb_group.use is written by fiber_set_processors, or follows the CPUs (see
 * follow.c), under use_lock, and is the futex of the holders; p->held is written by the
 * holder; fb_rt.resting counts those asleep.
 *
 *	set				owner of i, or who gets it
 *	use = n (release)		looks at use (every 61 passes, in its root, when a
 *	takeover of i |= READY		  quantum ends): gives up, or holds
 *	wake spares			held = 1; sleep while use is what it was
 *
 * The takeover word is its owner's, who may write it anew at once, and go on with a
 * fiber that never stops: so a fiber of the library, the resizer of a call, says it
 * again until all are held. One is enough, however many calls come meanwhile: each
 * adds one to fb_rt.settling, and who found 0 there goes round again until the number
 * is what it was before its last round. A held one's word must not say READY: every
 * carrier that becomes idle would think that there is work.
 *
 *	resizer				holder
 *	takeover |= READY		held = 1
 *	full barrier			full barrier
 *	held? take it back		takeover = 0
 *
 * What a held processor has. Its ready fibers go to the global queue. Its timers stay:
 * everybody fires everybody's. Its free stacks stay, some 256. If its holder was woken
 * for work (it has the searcher's token), another is woken in its place. If nobody else
 * watches the timers its holder does, and if nobody sleeps in epoll_wait it looks now
 * and then: those who blocked before cannot know that it has stopped.
 */
#include "pass.h"
#include "poller.h"
#include "user.h"

#define NAP_MIN		1000000		/* ns, of the resizer and of who helps */
#define NAP_MAX		16000000

/* ---- to hold one ---- */

/* All that is ready here is for anybody. */
static void hand_out(struct fb_processor *p)
{
	struct fiber *f;
	bool any = false;

	while ((f = fb_runq_swap_next(&p->q, NULL)) || (f = fb_runq_pop(&p->q)) ||
	       (p->hurry && (f = fb_latency_pick(p)))) {
		fb_sched_put_global(f);
		any = true;
	}
	FB_WRITE(p->watch, 0);
	fb_sched_publish(p);
	/* For nothing, it would disturb whoever looks for a deadlock (all_quiet). */
	if (any)
		fb_sched_wake(p);
}

/* Until use is not what it was, or it is time to help. */
static void rest(struct fb_carrier *c, uint32_t use, uint64_t nap)
{
	uint64_t deadline = fb_sched_watching(c), until = deadline;
	uint64_t soon = fiber_now() + nap;

	if (fb_poller_missing(&fb_rt.group) && (!until || soon < until))
		until = soon;
	fb_deadlock_idle();
	__atomic_fetch_add(&fb_rt.resting, 1, __ATOMIC_RELAXED);
	fb_os_sleep(&fb_rt.group.use, use, until);
	__atomic_fetch_sub(&fb_rt.resting, 1, __ATOMIC_RELAXED);
	fb_sched_unwatch(c);
}

void fb_retire(struct fb_carrier *c, struct fb_processor *p)
{
	bool woken = c->searching;
	uint64_t nap = NAP_MIN;
	uint32_t use;

	if (woken)
		fb_search_end(c);
	/* Full barrier; pairs with the look at held in call_in. */
	__atomic_store_n(&p->held, 1, __ATOMIC_SEQ_CST);
	for (;;) {
		fb_timer_fire(p, fiber_now());
		fb_known_verify(p);
		if (fb_poller_missing(&fb_rt.group))
			fb_poller_look(p, FB_NEVER);
		hand_out(p);
		if (woken)		/* for work that this one does not do */
			fb_sched_wake(p);
		woken = false;
		use = FB_ACQUIRE(fb_rt.group.use);	/* Pairs with the release in set. */
		if (p->index < use || fb_group_ends(p->group))
			break;
		rest(c, use, nap);
		nap = nap < NAP_MAX ? nap * 2 : nap;
	}
	FB_WRITE(p->held, 0);
}

void fb_retire_stop(void)
{
	/* Pairs with the acquire in fb_retire: it looks at the state. */
	FB_RELEASE(fb_rt.group.use, fb_rt.group.nproc + 1);
	fb_os_wake(&fb_rt.group.use, INT32_MAX);
}

uint32_t fb_retired(void)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < fb_rt.group.nproc; i++)
		n += FB_READ(fb_rt.proc[i].held);
	return n;
}

/* ---- the resizer ---- */

/* Somebody should have p, to hold it. True: it is held. */
static bool call_in(struct fb_processor *p)
{
	if (FB_READ(p->held))
		return true;
	/* Full barrier; pairs with the store of held in fb_retire. */
	__atomic_fetch_or(&p->page->takeover, FB_TAKEOVER_READY, __ATOMIC_SEQ_CST);
	if (!__atomic_load_n(&p->held, __ATOMIC_SEQ_CST))
		return false;
	__atomic_fetch_and(&p->page->takeover, ~(uint32_t)FB_TAKEOVER_READY,
			   __ATOMIC_SEQ_CST);
	/* In use again, and perhaps with work: said once too often. */
	if (!FB_READ(p->held))
		__atomic_fetch_or(&p->page->takeover, FB_TAKEOVER_READY,
				  __ATOMIC_RELAXED);
	return true;
}

static bool all_held(void)
{
	bool all = true;

	for (uint32_t i = FB_READ(fb_rt.group.use); i < fb_rt.group.nproc; i++)
		all &= call_in(&fb_rt.proc[i]);
	return all;
}

/* One round; false: it is done. Another may do the same, no matter. */
static bool resize(void)
{
	struct fb_carrier *c = fb_current();
	bool more;

	fb_enter(c);
	more = !all_held();
	if (more)
		fb_rt.backend->wake(&fb_rt.group);
	if (FB_READ(fb_rt.group.info->avail) & FB_AVAIL_MONITOR)
		fb_user_kick(&fb_rt.group);
	fb_leave(c);
	return more;
}

static void until_resized(void)
{
	uint64_t nap = NAP_MIN;

	while (resize()) {
		fiber_sleep(nap);
		nap = nap < NAP_MAX ? nap * 2 : nap;
	}
}

/* A round of its own, at once; then one goes on for all that came to that. */
static void *resizer(void *arg)
{
	uint32_t n;

	/* Pairs with the exchange below: who goes on sees the use that we saw. */
	if (!resize() ||
	    __atomic_fetch_add(&fb_rt.settling, 1, __ATOMIC_ACQ_REL))
		return arg;
	n = 1;
	do {
		until_resized();
	} while (!__atomic_compare_exchange_n(&fb_rt.settling, &n, 0, false,
					      __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE));
	return arg;
}

void fb_retire_settle(void)
{
	resizer(NULL);
}

/* ---- how many ---- */

static fb_lock_t use_lock;		/* of use, and of FB_FOLLOW_CPUS */

static void set_use(uint32_t n)
{
	if (n == FB_READ(fb_rt.group.use))
		return;
	/* Pairs with the acquire in fb_retire. */
	FB_RELEASE(fb_rt.group.use, n);
	fb_os_wake(&fb_rt.group.use, INT32_MAX);
}

void fb_retire_follow(uint32_t n)
{
	fb_lock(&use_lock);
	if (n && FB_READ(fb_rt.follow) & FB_FOLLOW_CPUS)
		set_use(n < fb_rt.group.nproc ? n : fb_rt.group.nproc);
	fb_unlock(&use_lock);
}

/* The caller's number; 0: as many as CPUs, from the next look on. */
static void say_use(uint32_t n)
{
	fb_lock(&use_lock);
	if (n) {
		__atomic_fetch_and(&fb_rt.follow, ~(uint32_t)FB_FOLLOW_CPUS,
				   __ATOMIC_RELAXED);
		set_use(n);
	} else {
		__atomic_fetch_or(&fb_rt.follow, FB_FOLLOW_CPUS,
				  __ATOMIC_RELAXED);
	}
	fb_unlock(&use_lock);
}

/* ---- the call ---- */

/* p: the caller's; NULL: a plain thread, which visits. */
static int set(struct fb_processor *p, uint32_t n)
{
	struct fiber *f;

	if (n > fb_rt.group.nproc)
		return -EINVAL;
	if (!n && fb_rt.seeded)
		return 0;
	f = fb_fiber_new(p, n ? resizer : fb_follow_cpus, NULL);
	if (!f)
		return -ENOMEM;
	say_use(n);
	if (p)
		fb_sched_ready_last(p, f);
	else
		fb_sched_ready_global(f);
	return 0;
}

FB_EXPORT int fiber_set_processors(unsigned int n)
{
	struct fb_caller me;
	int r = fb_caller_visit(&me) ? set(me.p, n) : -EPERM;

	fb_caller_leave(&me);
	return r;
}
