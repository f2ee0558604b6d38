/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* cold.h - stacks of fibers that are parked for long go to swap; see cold.c */
#ifndef FB_COLD_H
#define FB_COLD_H

#include "fb.h"

struct fb_cold {
	uint32_t asleep;		/* atomic: wake it, something runs */
};
extern struct fb_cold fb_cold __attribute__((visibility("hidden")));

/* Fibers parked for so long are cold; 0: never. FIBER_COLD_MS wins. 0 or -EINVAL. */
int fb_cold_config(uint64_t ns);
/* Carriers are there. */
void fb_cold_start(void);
/* No fiber is alive, but their slabs are there. */
void fb_cold_stop(void);
/* Any thread. */
void fb_cold_wake(void);

#endif
