/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* poller.h - what the scheduler knows of I/O; the protocol stands in io.c */
#ifndef FB_POLLER_H
#define FB_POLLER_H

#include "io.h"

/* Somebody waits for I/O. Any context. */
static inline bool fb_poller_wanted(void)
{
	return fb_unlikely(FB_READ(fb_poller.waiting));
}

/* Somebody waits for I/O, and nobody sleeps until it comes. */
static inline bool fb_poller_missing(void)
{
	return fb_poller_wanted() && !FB_READ(fb_rt.pollers);
}

bool fb_poller_look(struct fb_processor *p, uint64_t now);
struct fb_processor *fb_poller_sleep(struct fb_carrier *c, uint64_t deadline);
void fb_poller_kick(void);

/* Before the runtime is on, and when it is off. */
int fb_poller_init(void);
void fb_poller_stop(void);
void fb_poller_fork_child(void);

#endif
