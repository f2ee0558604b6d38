// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* sleep.c - wait for nothing but time */
#include <time.h>

#include "wait.h"

int fb_wait_never(struct fb_caller *me, uint64_t deadline, unsigned int why)
{
	struct fb_wait k;

	fb_wait_begin(me, &k, deadline, true);
	return fb_wait_error(fb_wait(me, &k, why));
}

static int sleep_thread(uint64_t deadline)
{
	struct timespec ts = {
		.tv_sec = (time_t)(deadline / 1000000000),
		.tv_nsec = (long)(deadline % 1000000000),
	};

	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &ts, NULL) ==
	       EINTR)
		;
	return 0;
}

static int sleep_fiber(uint64_t deadline)
{
	struct fb_caller me;
	int r;

	fb_caller_enter(&me);
	if (fb_cancelled(&me))
		r = -ECANCELED;
	else
		r = fb_wait_never(&me, deadline, FB_WHY_SLEEP);
	fb_caller_leave(&me);
	return r == -ETIMEDOUT ? 0 : r;
}

FB_EXPORT int fiber_sleep_until(uint64_t deadline)
{
	/* Beyond what the kernel's clock can say: as good as never. */
	if (deadline > INT64_MAX)
		deadline = INT64_MAX;
	if (!fb_current())
		return sleep_thread(deadline);
	if (deadline > fiber_now())
		return sleep_fiber(deadline);
	if (fiber_cancelled())
		return -ECANCELED;
	fiber_yield();
	return 0;
}

FB_EXPORT int fiber_sleep(uint64_t ns)
{
	uint64_t now = fiber_now();

	return fiber_sleep_until(now + ns < now ? FB_NEVER : now + ns);
}
