/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* ring.h - calls on files through io_uring; the protocol stands in ring.c */
#ifndef FB_RING_H
#define FB_RING_H

#include "fb.h"

/* A system call, by its number and arguments. */
struct fb_call {
	long nr;			/* SYS_pread64 and so on: see prepare() */
	long a, b, c, d, e;
};

/* Whether the ring is there. Constant while the runtime is on. */
extern bool fb_ring_on __attribute__((visibility("hidden")));

/*
 * Make the call by the ring, while the fiber is parked. In fiber code, in_fiber == 1,
 * with the ring on. The call's own result, or -ETIMEDOUT, -ECANCELED: it was ended
 * before it was done. -EINTR: try again.
 */
long fb_ring_call(const struct fb_call *call, uint64_t deadline);

/* Before the runtime is on: 0, or why there is none; and when fibers are no more. */
int fb_ring_start(void);
void fb_ring_stop(void);
void fb_ring_fork_child(void);

/* ---- ring_make.c ---- */
struct io_uring;
/*
 * By the thread that is to enter it: the ring, with one worker of each kind, and an
 * eventfd that it may write to. 0 or -errno, and there is none.
 */
int fb_ring_make(struct io_uring *ring, int kick);

#endif
