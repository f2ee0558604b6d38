/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * coro.h - coroutines
 *
 * coro.c    resume, yield, transfer
 * colife.c  create, clean-up, close, destroy
 * costack.c their stacks
 */
#ifndef FB_CORO_H
#define FB_CORO_H

#include "fb.h"
#include "arch/x86_64/coro.h"

/* fiber_coro.state; the first four are those of fiber_coro_status. */
enum {
	FB_CORO_SUSPENDED = FIBER_CORO_SUSPENDED,
	FB_CORO_RUNNING = FIBER_CORO_RUNNING,
	FB_CORO_NORMAL = FIBER_CORO_NORMAL,
	FB_CORO_DEAD = FIBER_CORO_DEAD,
	FB_CORO_FREED,
};

/* fiber_coro.flags: the body was entered; it is over, or never will run */
enum { FB_CORO_BEGUN = 1, FB_CORO_ENDING = 2 };

/* fiber_coro.owner, if it is nobody's: see coro.c. */
#define FB_CORO_UNBIASED	((struct fiber_coro **)1)
#define FB_CORO_REVOKED		((struct fiber_coro **)2)

struct fb_coro_defer {
	struct fb_coro_defer *next;
	void (*fn)(void *);
	void *arg;
};

/*
 * struct fiber_coro - lives at the top of its own stack
 * Who has taken it writes it (see coro.c), but for the atomics.
 */
struct fiber_coro {
	struct fb_coro_frame *top;	/* SUSPENDED: its own */
	uint32_t state;			/* atomic */
	uint32_t taking;		/* atomic: the owner takes it */
	struct fiber_coro **owner;	/* atomic: the host it is biased to */
	struct fb_coro_frame *back;	/* RUNNING, NORMAL: of who resumed it */
	size_t room;			/* bytes below, guard and all */
	struct fb_coro_defer *defers;	/* newest first */
	void *value;			/* first in, last out */
	int result;
	uint8_t flags, klass;
	fiber_coro_fn fn;
	void *arg;
	struct fiber_coro *link;	/* costack.c: pool */
	void *base;			/* lowest byte; NULL: the user's */
} __attribute__((aligned(FB_LINE)));

/* ---- coro.c ---- */
/* 0: `state` went from `from` to `to`, by us. Else why not: see the header. */
int fb_coro_take(struct fiber_coro *co, uint32_t from, uint32_t to);
/* The coroutine that runs the caller and may yield, or NULL. */
struct fiber_coro *fb_coro_self(void);
void fb_coro_run_defers(struct fiber_coro *co);

/* ---- costack.c ---- */
/* A block for `usable` bytes (0: default); NULL: no memory. Any thread. */
struct fiber_coro *fb_costack_get(size_t usable);
void fb_costack_put(struct fiber_coro *co);
/* Can there be a barrier in all threads at once? This is one. */
bool fb_costack_biased(void);
void fb_costack_barrier(void);

#endif
