/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* pool.h - groups of processors; the protocol stands in pool.c */
#ifndef FB_POOL_H
#define FB_POOL_H

#include "fb.h"

/* fb_group.state, of pools */
enum { FB_POOL_FREE, FB_POOL_ON, FB_POOL_DECIDES, FB_POOL_ENDS };

/* ---- to make one ---- */
/* g->nproc processors from that index on, without what the backend gives them. */
void fb_pool_make(struct fb_group *g, uint32_t first);
int fb_pool_setup(const struct fb_backend *b, struct fb_group *g,
		  uint64_t *features);
void fb_pool_unmake(struct fb_group *g);
void fb_pool_stop_all(void);
void fb_pool_abandon(void);
void fb_pool_fork_child(void);

/* ---- all of them ---- */
/* The next of those that are on, NULL: the default pool; NULL: no more. */
struct fb_group *fb_pool_next(const struct fb_group *g);
/* In between the pages of groups that are on, and of their carriers, stay. */
void fb_pool_look(void);
void fb_pool_looked(void);
/* To the backend, for each. Any thread. */
void fb_pool_stacks(const struct fb_arena *a);
int fb_pool_text(uintptr_t start, uintptr_t end);

/* ---- fibers that come and go ---- */
/* A fiber is to be spawned into *to; in fiber code. 0, or -EINVAL: it is no pool. */
int fb_pool_enter(const fiber_pool_t *pool, struct fb_group **to);
/* It was not. */
void fb_pool_leave(struct fb_group *g);
/* A fiber of g is about to spawn one that is of g, too. */
void fb_pool_inherits(struct fb_group *g);
/* The calling fiber has spawned one for which fb_pool_enter was called. */
void fb_pool_counted_twice(void);
/* With a seed: a fiber of g has ended. */
void fb_pool_left(struct fb_group *g);
/* Owner of p, which is pooled: the number of a new fiber. */
uint64_t fb_pool_id(struct fb_processor *p);

#endif
