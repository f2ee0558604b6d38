/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* chan.h - what select.c knows of a channel; the protocol stands in chan.c */
#ifndef FB_CHAN_H
#define FB_CHAN_H

#include "wait.h"

struct fiber_chan {
	fb_lock_t lock;			/* of all below */
	uint32_t elem : 31;		/* constant */
	uint32_t closed : 1;
	size_t cap;			/* constant */
	size_t count, first;		/* of the values in buf; place of the oldest */
	struct fb_waitq senders, receivers;
	char buf[] __attribute__((aligned(FB_LINE)));
};
_Static_assert(offsetof(struct fiber_chan, buf) == FB_LINE, "struct fiber_chan");

/*
 * The channel's lock is held. Send or receive now: 0, -EPIPE, or -EAGAIN. *woken:
 * whom to wake when nothing is locked, or NULL.
 */
int fb_chan_send_now(struct fiber_chan *ch, const void *value,
		     struct fb_node **woken);
int fb_chan_recv_now(struct fiber_chan *ch, void *value,
		     struct fb_node **woken);

/* Nothing is locked: n is not queued at ch any more. */
void fb_chan_leave(struct fb_caller *me, struct fiber_chan *ch,
		   struct fb_node *n);

/* Could it be done now? The lock is held. */
static inline bool fb_chan_can_send(const struct fiber_chan *ch)
{
	return ch->closed || ch->count < ch->cap || ch->receivers.head;
}

static inline bool fb_chan_can_recv(const struct fiber_chan *ch)
{
	return ch->count || ch->senders.head || ch->closed;
}

#endif
