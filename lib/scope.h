/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* scope.h - what fiber.c knows of scopes; the protocol stands in scope.c */
#ifndef FB_SCOPE_H
#define FB_SCOPE_H

#include "wait.h"

struct fb_scope;

/* fiber.in is a struct fb_member, or, until the fiber runs, its struct fb_scope. */

/* The first steps of a fiber of a scope, in its own context. */
void *fb_scope_main(void *arg);
/* The calling fiber ends with this result: leave its scope. */
void fb_scope_end(struct fiber *f, void *result);

/*
 * A fiber of s (fiber.in, FB_F_OWNED) is off its stack for good. Owner of p, or p
 * is NULL on a plain thread; in_fiber == 0.
 */
void fb_scope_gone(struct fb_processor *p, struct fb_scope *s);

/* A scope that nobody opened; any thread may close it. */
void fb_scope_init(fiber_scope_t *s);

/* fiber.c: spawn into a scope, which counts it already */
int fb_fiber_spawn_scoped(struct fb_scope *s, const struct fiber_attr *attr,
			  int (*fn)(void *), void *arg);

#endif
