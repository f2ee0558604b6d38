// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * visit.c - plain threads inside a call of the library
 *
 * fiber_fini must not take the runtime away meanwhile.
 *
 *	visit				fiber_fini
 *	visitors++			closing = 1
 *	full barrier			full barrier
 *	closing: leave, try again	visitors: closing = 0, -EBUSY
 */
#include <sched.h>

#include "fb.h"

void fb_visit_end(void)
{
	/* Our last touch. Pairs with the look at visitors in fiber_fini. */
	__atomic_sub_fetch(&fb_rt.visitors, 1, __ATOMIC_RELEASE);
}

/* False too while fiber_fini decides: this waits for nobody. */
bool fb_visit_now(void)
{
	/* Pairs with the exchange of closing in fiber_fini. */
	__atomic_add_fetch(&fb_rt.visitors, 1, __ATOMIC_SEQ_CST);
	/* The state: pairs with the release in fiber_init. */
	if (!__atomic_load_n(&fb_rt.closing, __ATOMIC_SEQ_CST) &&
	    FB_ACQUIRE(fb_rt.state) == FB_ON)
		return true;
	fb_visit_end();
	return false;
}

/* False: there is no runtime (any more). */
bool fb_visit(void)
{
	while (!fb_visit_now()) {
		/* Pairs with the releases of the state. */
		if (FB_ACQUIRE(fb_rt.state) != FB_ON)
			return false;
		sched_yield();
	}
	return true;
}
