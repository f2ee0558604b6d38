/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* held.h - with FIBER_CHECK=1: locks that fibers hold, and what they must not do */
#ifndef FB_HELD_H
#define FB_HELD_H

#include "fb.h"

/* Owner of a processor: f, with FB_F_CHECKS, has locked it, at ip. False: no room. */
bool fb_held_add(const struct fiber *f, const void *object, const char *kind,
		 void *ip);
/* The same: f gives it back. */
void fb_held_drop(const struct fiber *f, const void *object);
/* Fiber or thread: the object is made anew, whoever had locked what was there. */
void fb_held_forget(const void *object);
/* The calling fiber, with FB_F_CHECKS, ends: before its destructors, and after. */
void fb_held_ends(struct fb_carrier *c);
void fb_held_end(struct fb_carrier *c);
/* Owner of a processor, with .checking: c's fiber stops, or begins another. */
void fb_held_pass(struct fb_carrier *c);
int fb_held_start(void);
void fb_held_stop(void);

/* misuse.c: the calling fiber ends, in_fiber == 1, inside such a section; has it still. */
_Noreturn void fb_misuse_inside(const struct fiber *f);
_Noreturn void fb_misuse_held(const struct fiber *f, const char *kind,
			      const void *object, void *ip);

#endif
