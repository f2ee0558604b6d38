/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * fiber/chan.h - channels and select; included by <fiber.h>
 *
 * Values go from one fiber or plain thread to another, by copy, in order. Any
 * number of them may send and receive; all calls are for any thread, and a fiber
 * and a plain thread may share a channel.
 *
 * Every waiting call has a form with a deadline (CLOCK_MONOTONIC, ns, as
 * fiber_now() counts; FIBER_NEVER: none) and is a cancellation point:
 *   -ETIMEDOUT  the deadline came first
 *   -ECANCELED  the calling fiber is cancelled; nothing was sent or received
 * The try forms never wait: -EAGAIN.
 *
 * In the child of a fork all of them, fiber_chan_close and a select among channels
 * say -EPERM: a value may have been on its way. fiber_chan_destroy frees.
 */
#include <fiber.h>

#ifndef FIBER_CHAN_H
#define FIBER_CHAN_H

#define FIBER_NEVER	UINT64_MAX

typedef struct fiber_chan fiber_chan_t;

/*
 * fiber_chan_create - make a channel
 * @out:       the channel, to be destroyed by fiber_chan_destroy
 * @elem_size: bytes of a value; may be 0, to send bare signals
 * @capacity:  how many values it keeps; 0: a sender waits for a receiver
 * Errors: -EINVAL, -ENOMEM.
 */
int fiber_chan_create(fiber_chan_t **out, size_t elem_size, size_t capacity);
/*
 * fiber_chan_destroy - free it and the values in it. Nobody may use it any more:
 * -EBUSY, and nothing is freed, if somebody waits on it. NULL: nothing to do.
 */
int fiber_chan_destroy(fiber_chan_t *ch);

/*
 * fiber_chan_send - send a copy of *value (elem_size bytes)
 * Waits until a receiver or a free place takes it. A channel that is NULL takes
 * nothing, ever. Errors: -EPIPE: it is closed.
 */
int fiber_chan_send(fiber_chan_t *ch, const void *value);
int fiber_chan_send_until(fiber_chan_t *ch, const void *value, uint64_t deadline);
int fiber_chan_try_send(fiber_chan_t *ch, const void *value);

/*
 * fiber_chan_recv - receive into *value (may be NULL: it is dropped)
 * A channel that is NULL has nothing, ever. Errors: -EPIPE: it is closed and
 * empty; *value is as it was.
 */
int fiber_chan_recv(fiber_chan_t *ch, void *value);
int fiber_chan_recv_until(fiber_chan_t *ch, void *value, uint64_t deadline);
int fiber_chan_try_recv(fiber_chan_t *ch, void *value);

/*
 * fiber_chan_close - no more values will be sent
 * Who waits to send gets -EPIPE; who receives gets what is left, then -EPIPE.
 * Errors: -EPIPE: it was closed already. -EINVAL: NULL.
 */
int fiber_chan_close(fiber_chan_t *ch);

/* How many values it keeps now (a snapshot), and can keep. NULL: 0. */
size_t fiber_chan_len(fiber_chan_t *ch);
size_t fiber_chan_cap(const fiber_chan_t *ch);

/* ---- select ---- */

enum {
	FIBER_CASE_NONE,	/* never ready */
	FIBER_CASE_SEND,
	FIBER_CASE_RECV,
	FIBER_CASE_FD,
};

/*
 * struct fiber_case - one thing that fiber_select may do
 * @op:     FIBER_CASE_*
 * @result: out, of the chosen case alone: 0, or -EPIPE as fiber_chan_send or
 *          fiber_chan_recv would say (a closed channel is ready); of a descriptor
 *          what poll(2) calls revents, POLLNVAL too if fiber_close closed it
 * @chan:   NULL: never ready
 * @value:  as for fiber_chan_send and fiber_chan_recv
 * @fd:     that it is ready is all: nothing is read or written. < 0: never ready
 * @events: as for poll(2): POLLIN, POLLOUT and so on
 */
struct fiber_case {
	uint32_t op;
	int32_t result;
	union {
		fiber_chan_t *chan;	/* SEND, RECV */
		int fd;			/* FD */
	};
	union {
		void *value;		/* SEND, RECV */
		uint32_t events;	/* FD */
	};
	uint64_t reserved[8];	/* the library's, during the call */
};

#define FIBER_SEND(ch, ptr) \
	((struct fiber_case){ .op = FIBER_CASE_SEND, .chan = (ch), \
			      .value = (void *)(ptr) })
#define FIBER_RECV(ch, ptr) \
	((struct fiber_case){ .op = FIBER_CASE_RECV, .chan = (ch), \
			      .value = (ptr) })
#define FIBER_FD(number, what) \
	((struct fiber_case){ .op = FIBER_CASE_FD, .fd = (number), \
			      .events = (what) })

/*
 * fiber_select - do exactly one of n cases, the first that can be done
 * If several can be done, each has the same chance. Waits until one can be done
 * or the deadline; the try form does not wait.
 * Returns the index of the case that was done (look at its .result), or
 * -ETIMEDOUT, -ECANCELED, -EAGAIN (try), -EINVAL (an op that does not exist; n
 * over 65536), -EPERM (to wait for a descriptor needs a runtime), -ENOMEM.
 */
int fiber_select(struct fiber_case *cases, size_t n, uint64_t deadline);
int fiber_try_select(struct fiber_case *cases, size_t n);

#endif
