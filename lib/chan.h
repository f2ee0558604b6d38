/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* chan.h - what select.c and task.c know of a channel; the protocol stands in chan.c */
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

static inline __attribute__((always_inline)) int
fb_chan_now(struct fiber_chan *ch, bool sends, void *value,
	    struct fb_node **woken)
{
	return sends ? fb_chan_send_now(ch, value, woken) :
		       fb_chan_recv_now(ch, value, woken);
}

/* Could it be done now? The lock is held. */
static inline bool fb_chan_can(const struct fiber_chan *ch, bool sends)
{
	return ch->closed || (sends ? ch->count < ch->cap || ch->receivers.head :
				      ch->count || ch->senders.head);
}

/* Where those wait who send, or receive. */
static inline struct fb_waitq *fb_chan_queue(struct fiber_chan *ch, bool sends)
{
	return sends ? &ch->senders : &ch->receivers;
}

#endif
