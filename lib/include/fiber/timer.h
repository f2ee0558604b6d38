/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * fiber/timer.h - call a function at a time, once or again and again
 *
 * Included by <fiber.h>. A timer calls its function in a fiber of its own, which
 * it takes when it is due: so a timer that waits costs no stack, and the function
 * may park, block and spawn as any fiber does. It must return (no fiber_exit).
 * One timer's function never runs twice at once: what falls due meanwhile is
 * counted, and told to the next call.
 *
 * Times are CLOCK_MONOTONIC in ns (fiber_now()). A timer is never early; late by
 * tens of microseconds when processors are free, and when all are busy with
 * fibers that do not yield, by a quantum or two.
 *
 * Calls: any thread. None waits, but for the two that say so, and a plain thread in
 * start and reset until a processor has taken notice. None is a cancellation point.
 * Errors of all: -EPERM (no runtime, or the child of a fork), -EINVAL.
 */
#include <fiber.h>

#ifndef FIBER_TIMER_H
#define FIBER_TIMER_H

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fiber_timer fiber_timer_t;

/*
 * fiber_timer_create - make a timer that is not armed
 * @fn:  called with arg and how often the timer fell due since the last call: 1,
 *       or more if a periodic one missed ticks
 * The timer is the caller's to destroy. It outlives fiber_fini, which disarms all
 * timers. Errors: -ENOMEM, -EINVAL.
 */
int fiber_timer_create(fiber_timer_t **out,
		       void (*fn)(void *arg, uint64_t ticks), void *arg);
/*
 * fiber_timer_start - arm it: it falls due at deadline, and if period (ns) is not
 * 0, at deadline + period, deadline + 2 period and so on, without drift
 * A deadline that is over is due at once; UINT64_MAX: never. May be called in the
 * function itself. Errors: -EBUSY (it is armed), -ENOMEM (plain threads only).
 */
int fiber_timer_start(fiber_timer_t *t, uint64_t deadline, uint64_t period);
/*
 * fiber_timer_reset - the same, armed or not
 * Returns as fiber_timer_stop does: of the deadline that it had.
 */
int fiber_timer_reset(fiber_timer_t *t, uint64_t deadline, uint64_t period);
/*
 * fiber_timer_stop - disarm it
 * Returns 1: it was armed, and the function will not be called for that; 0: it was
 * not: the call was begun before (and may run still), or it was stopped or never
 * started. Of one start of a one-shot timer either the function runs, or one stop
 * or reset says 1.
 */
int fiber_timer_stop(fiber_timer_t *t);
/*
 * fiber_timer_stop_wait - the same, and wait until no call of the function runs
 * What is started meanwhile, in the function or elsewhere, is stopped too: returns
 * how many starts were stopped. Errors: -EDEADLK (called in the function; nothing
 * is done).
 */
int fiber_timer_stop_wait(fiber_timer_t *t);
/*
 * fiber_timer_destroy - stop it, wait as fiber_timer_stop_wait does, free it
 * In its own function: does not wait; freed when the function returns. Nobody may
 * use t any more. NULL: nothing to do.
 */
int fiber_timer_destroy(fiber_timer_t *t);

/* ---- tickers: a timer on a channel, for fiber_select and the like ---- */

typedef struct fiber_ticker fiber_ticker_t;

/*
 * fiber_ticker_create - a channel that receives at deadline, and each period (0:
 * never again) after it
 * Its values are uint64_t: how many ticks fell due since the value before. It keeps
 * one; who comes late is told of all that it missed. Errors: -ENOMEM, -EINVAL,
 * -EPERM. fiber_after: at the deadline, once.
 */
int fiber_ticker_create(fiber_ticker_t **out, uint64_t deadline, uint64_t period);
int fiber_after(fiber_ticker_t **out, uint64_t deadline);
/* Its channel: not to be closed or destroyed by itself. NULL for NULL. */
fiber_chan_t *fiber_ticker_chan(const fiber_ticker_t *t);
/*
 * As fiber_timer_reset, and as fiber_timer_stop_wait: nothing is sent after. A value
 * that the channel has already stays there.
 */
int fiber_ticker_reset(fiber_ticker_t *t, uint64_t deadline, uint64_t period);
int fiber_ticker_stop(fiber_ticker_t *t);
/*
 * fiber_ticker_destroy - stop it, free it and its channel. NULL: nothing to do.
 * Errors: -EBUSY (somebody waits on the channel: it is stopped; destroy it later).
 */
int fiber_ticker_destroy(fiber_ticker_t *t);

#ifdef __cplusplus
}
#endif
#endif
