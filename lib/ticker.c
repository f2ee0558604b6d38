// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * ticker.c - timers whose ticks are values of a channel
 *
 * The channel has place for one value: how many ticks fell due since the value
 * before. A tick that finds the place taken is kept here, and told with the next.
 * Only the timer's function touches `kept`, and it never runs twice at once.
 */
#include <stdlib.h>

#include "fb.h"

struct fiber_ticker {
	fiber_timer_t *timer;		/* constant, as ch */
	fiber_chan_t *ch;
	uint64_t kept;
};

static void tick(void *arg, uint64_t ticks)
{
	struct fiber_ticker *t = arg;

	t->kept += ticks;
	if (!fiber_chan_try_send(t->ch, &t->kept))
		t->kept = 0;
}

static int make(struct fiber_ticker *t, uint64_t deadline, uint64_t period)
{
	int r = fiber_chan_create(&t->ch, sizeof(t->kept), 1);

	if (r)
		return r;
	r = fiber_timer_create(&t->timer, tick, t);
	if (!r)
		r = fiber_timer_start(t->timer, deadline, period);
	if (r) {
		fiber_timer_destroy(t->timer);
		fiber_chan_destroy(t->ch);
	}
	return r;
}

FB_EXPORT int fiber_ticker_create(fiber_ticker_t **out, uint64_t deadline,
				  uint64_t period)
{
	struct fiber_ticker *t;
	int r;

	if (!out)
		return -EINVAL;
	t = calloc(1, sizeof(*t));
	if (!t)
		return -ENOMEM;
	r = make(t, deadline, period);
	if (r)
		free(t);
	else
		*out = t;
	return r;
}

FB_EXPORT int fiber_after(fiber_ticker_t **out, uint64_t deadline)
{
	return fiber_ticker_create(out, deadline, 0);
}

FB_EXPORT fiber_chan_t *fiber_ticker_chan(const fiber_ticker_t *t)
{
	return t ? t->ch : NULL;
}

FB_EXPORT int fiber_ticker_reset(fiber_ticker_t *t, uint64_t deadline,
				 uint64_t period)
{
	return t ? fiber_timer_reset(t->timer, deadline, period) : -EINVAL;
}

FB_EXPORT int fiber_ticker_stop(fiber_ticker_t *t)
{
	return t ? fiber_timer_stop_wait(t->timer) : -EINVAL;
}

FB_EXPORT int fiber_ticker_destroy(fiber_ticker_t *t)
{
	int r;

	if (!t)
		return 0;
	if (t->timer) {
		r = fiber_timer_destroy(t->timer);
		if (r)
			return r;
		t->timer = NULL;
	}
	r = fiber_chan_destroy(t->ch);
	if (!r)
		free(t);
	return r;
}
