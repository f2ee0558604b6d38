/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* poller.h - what the scheduler knows of I/O; the protocol stands in io.c */
#ifndef FB_POLLER_H
#define FB_POLLER_H

#include "io.h"

/* A fiber of g waits for I/O (of the default pool: a plain thread, too). Any context. */
static inline bool fb_poller_wanted(const struct fb_group *g)
{
	return fb_unlikely(FB_READ(g->waiting));
}

/* One waits for I/O, and none of g sleeps until it comes. */
static inline bool fb_poller_missing(const struct fb_group *g)
{
	return fb_poller_wanted(g) && !FB_READ(g->pollers);
}

bool fb_poller_look(struct fb_processor *p, uint64_t now);
/* Can its idle processors sleep in epoll? If not, they look now and then. */
bool fb_poller_ready(struct fb_group *g);
struct fb_processor *fb_poller_sleep(struct fb_carrier *c, uint64_t deadline);
void fb_poller_kick(struct fb_group *g);
/* The pool g has ended. */
void fb_poller_close(struct fb_group *g);

/* ---- known.c ---- */

extern uint32_t fb_known_due __attribute__((visibility("hidden")));	/* atomic */
bool fb_known_pass(struct fb_processor *p);
/*
 * After timers were fired, always. Owner of p, in_fiber == 0. True: fibers are ready.
 * Not by pools, in whose wheels the timer would be set next, and end with them.
 */
static inline bool fb_known_verify(struct fb_processor *p)
{
	return fb_unlikely(FB_READ(fb_known_due)) && !p->pooled &&
	       fb_known_pass(p);
}
/* No carrier runs. */
void fb_known_reset(void);

/* Before the runtime is on, and when it is off. */
int fb_poller_init(void);
void fb_poller_stop(void);
void fb_poller_fork_child(void);

#endif
