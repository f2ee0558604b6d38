/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* times.h - what times.c keeps of a fiber, FB_TIMES_SIZE below its stack's end */
#ifndef FB_TIMES_H
#define FB_TIMES_H

#include "fb.h"

enum {
	FB_TIMES_READY, FB_TIMES_RUN, FB_TIMES_PARKED, FB_TIMES_BLOCKED,
	FB_TIMES_STATES, FB_TIMES_ENDED = FB_TIMES_STATES,
};

struct fb_times {
	uint64_t ns[FB_TIMES_STATES];
	uint64_t since;			/* when the state began */
	uint64_t cpu;			/* RUN: of the thread, then */
	uint32_t state;
	uint32_t seq;			/* odd: it is being written */
	void *(*fn)(void *);
	void *arg;
} __attribute__((aligned(16)));

_Static_assert(sizeof(struct fb_times) <= FB_TIMES_SIZE, "FB_TIMES_SIZE");

#endif
