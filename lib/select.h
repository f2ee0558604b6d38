/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* select.h - what select.c and selectfd.c share */
#ifndef FB_SELECT_H
#define FB_SELECT_H

#include "wait.h"

struct fb_select {
	struct fiber_case *cases;
	uint32_t n;
	uint32_t live;			/* cases with a channel, in lock order */
	uint32_t fds;			/* cases with a descriptor */
	bool held;			/* their numbers */
	struct fb_wait *k;		/* while it waits */
};

/* fiber_case.reserved */
struct fb_case {
	struct fb_node n;
	uint32_t at;			/* of the i-th case: the i-th in lock order */
};

_Static_assert(sizeof(struct fb_case) <=
	       sizeof(((struct fiber_case *)0)->reserved), "fiber_case.reserved");

static inline struct fb_node *fb_case_node(struct fiber_case *c)
{
	return (struct fb_node *)(void *)c->reserved;
}

static inline bool fb_case_is_fd(const struct fiber_case *c)
{
	return c->op == FIBER_CASE_FD && c->fd >= 0;
}

/*
 * In fiber code, or any thread. Which are ready goes to their nodes' result: what
 * poll says. If none is, and it may wait, their numbers are held. 0, or an error.
 */
int fb_select_ask(struct fb_select *s, uint64_t deadline);
void fb_select_release(struct fb_select *s);
/* Off the waiter's stack, channels unlocked: watch them. */
void fb_select_arm(struct fb_processor *p, struct fb_select *s);
void fb_select_leave(struct fb_processor *p, struct fb_select *s);
/* This one ended the wait. Its index if it was closed, -EAGAIN to ask again. */
int fb_select_fd_woke(struct fb_select *s, struct fiber_case *c);

#endif
