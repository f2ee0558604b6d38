// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * follow.c - as many processors as CPUs, also when those change while it runs
 *
 * If nobody said how many there are to be, fb_rt.use follows what fb_cpus says: of
 * the keeper's affinity, as new carriers inherit that and nobody pins it, and of
 * cpu.max. No thread is there for it, and none wakes: the owner of a processor sees
 * at its slow look, while a fiber runs there, that EVERY has passed, and makes a
 * fiber of the library that asks the kernel (some ten short reads). What does not run
 * needs no other number of processors.
 *
 *	fb_rt.follow			set by			cleared by
 *	FB_FOLLOW_CPUS	use is ours	start,			fiber_set_processors(n)
 *					fiber_set_processors(0)
 *	FB_FOLLOW_SOON	look at once	start			who makes the fiber
 *
 * The look is not made beside the root: who only wakes to see whether all is stuck
 * (deadlock.c) must leave no trace.
 *
 * The kernel is asked with in_fiber == 0: the fiber holds its processor meanwhile, so
 * none of the library is in a system call when the runtime stops.
 *
 * Of several processors one makes the fiber: a compare-exchange of follow_at. A number
 * read before fiber_set_processors(n) must not come after it: retire.c, under a lock,
 * asks for CPUS again.
 *
 * At the start SOON alone is set if there are more processors than are used: the
 * fiber sees to it that the others are held.
 */
#include <unistd.h>

#include "pass.h"

#define AHEAD		4		/* of those at the start */

/* In units of fb_processor.clock. */
#define EVERY		((uint32_t)(1000000000ull >> FB_CLOCK_SHIFT) << 2)

void *fb_follow_cpus(void *arg)
{
	struct fb_carrier *c = fb_current();
	uint32_t n;

	if (FB_READ(fb_rt.follow) & FB_FOLLOW_CPUS) {
		fb_enter(c);
		n = fb_cpus(fb_carrier_keeper());
		fb_retire_follow(n);
		fb_leave(c);
	}
	fb_retire_settle();
	return arg;
}

/* Not due: between one unit and EVERY from now. */
static bool due(uint32_t at, uint32_t now)
{
	return at - now - 1 >= EVERY;
}

void fb_follow_slow(struct fb_processor *p)
{
	uint32_t at = FB_READ(fb_rt.follow_at), follow = FB_READ(fb_rt.follow);
	struct fiber *f;

	if (!fb_current()->cur || p->pooled)
		return;
	if (follow & FB_FOLLOW_SOON)
		__atomic_fetch_and(&fb_rt.follow, ~(uint32_t)FB_FOLLOW_SOON,
				   __ATOMIC_RELAXED);
	else if (!due(at, p->clock))
		return;
	if (!__atomic_compare_exchange_n(&fb_rt.follow_at, &at, p->clock + EVERY,
					 false, __ATOMIC_RELAXED,
					 __ATOMIC_RELAXED))
		return;			/* another does it */
	f = fb_fiber_new(p, fb_follow_cpus, NULL);
	if (f)
		fb_sched_ready_last(p, f);
	else if (follow & FB_FOLLOW_SOON)
		__atomic_fetch_or(&fb_rt.follow, FB_FOLLOW_SOON,
				  __ATOMIC_RELAXED);
}

/*
 * How many processors there can ever be, with `use` at the start. Each beyond costs a
 * thread: so not all CPUs of a large machine for a container that pays for one.
 */
uint32_t fb_follow_most(uint32_t use)
{
	long online = sysconf(_SC_NPROCESSORS_ONLN);
	uint64_t most = (uint64_t)use * AHEAD;

	if (online < 1 || (uint64_t)online < most)
		most = online < 1 ? 1 : (uint64_t)online;
	if (most > FB_MAX_PROCESSORS)
		most = FB_MAX_PROCESSORS;
	return most < use ? use : (uint32_t)most;
}
