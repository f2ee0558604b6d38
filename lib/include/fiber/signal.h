/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * fiber/signal.h - signals as values of channels
 *
 * Included by <fiber.h>. While a channel wants a signal, the library has a handler for
 * it, and what was to happen before does not. The channel gets a value for each, as
 * soon as a thread of the library's own has taken it: to receive, with a deadline, in
 * a fiber_select, or cancelled, is the channel's matter.
 *
 * Whether a signal interrupts a call is as with any handler (SA_RESTART): it runs on a
 * thread in which the signal is not blocked, mostly the main one. Where all threads
 * block it, the library's own takes it, and no call is interrupted. No mask of any
 * other thread is touched; children get the signal's default, as after any exec.
 *
 * Any thread, with a runtime on; no call is a cancellation point. fiber_fini ends all.
 */
#include <fiber.h>

#ifndef FIBER_SIGNAL_H
#define FIBER_SIGNAL_H

#ifdef __cplusplus
extern "C" {
#endif

/*
 * struct fiber_signal - one signal that came: the value of such a channel
 * @signo:  its number
 * @code:   SI_USER, SI_QUEUE, CLD_EXITED and so on: see sigaction(2)
 * @pid, @uid: who sent it; of SIGCHLD: the child; else 0
 * @status: of SIGCHLD: exit status or signal; else 0
 * @value:  of sigqueue(3), timers and the like; else 0
 */
struct fiber_signal {
	int32_t signo, code;
	int32_t pid;
	uint32_t uid;
	int32_t status;
	uint32_t reserved;
	uint64_t value;
};

/*
 * fiber_signal_notify - ch gets a value for each such signal from now on
 * @ch:  with values of sizeof(struct fiber_signal) bytes; stays the caller's. Nobody
 *       waits for it to have room: a signal that finds it full (or, without capacity,
 *       nobody who receives) is dropped for this channel
 * @sig: one more that ch wants. Many channels may want one signal: each gets it
 * In order, as far as one thread took them. When more come at once than a pipe keeps
 * (some 1900), there is at least one value for each number, with nothing but that.
 * Twice the same is once. Errors: -EINVAL: ch; a signal that cannot be caught, is the
 * library's (SIGURG), or tells of a fault (SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP,
 * SIGSYS). -EPERM: no runtime. -ENOMEM. -EAGAIN: no thread. -EMFILE, -ENFILE.
 */
int fiber_signal_notify(fiber_chan_t *ch, int sig);
/*
 * fiber_signal_stop - ch wants no signals any more
 * It has all that came before, and gets none after: it may be destroyed. A signal that
 * no channel wants any more does again what it did before. Must come before
 * fiber_chan_destroy. Errors: -EINVAL: NULL. -EPERM.
 */
int fiber_signal_stop(fiber_chan_t *ch);
/*
 * fiber_signal_reset - no channel wants sig any more (0: any signal)
 * As fiber_signal_stop for it. Errors: -EINVAL, -EPERM.
 */
int fiber_signal_reset(int sig);

#ifdef __cplusplus
}
#endif
#endif
