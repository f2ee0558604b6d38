/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * stack.h - what stack.c, guard.c and mark.c share
 *
 * Classes of blocks, by number (fiber.klass):
 *   0          the default size (64 KiB), a guard page; the fast paths know it
 *   1 ...      the default size, doubled each time
 *   SMALL ...  2, 4, 8 KiB usable: packed, no guard page but a canary
 *   MIDDLE ... pages of 16 KiB doubled up to below the default size
 *   OWN        the program's memory: the block is the descriptor alone, so
 *              that it stays readable like all others when the memory is gone
 */
#ifndef FB_STACK_H
#define FB_STACK_H

#include "fb.h"

enum {
	FB_KLASS_LARGE = 1,
	FB_KLASS_SMALL = 16,
	FB_KLASS_MIDDLE = 20,
	FB_KLASS_OWN = FB_KLASSES - 1,
};

/*
 * At the end of its memory, which begins with the blocks. Debuggers follow the list
 * and read what is constant before they can see the slab: see debug.c.
 */
struct fb_slab {
	struct fb_slab *next;		/* constant */
	size_t bytes;			/* constant: with this struct */
	size_t stride;			/* constant */
	size_t at;			/* constant: a descriptor in its block, less its colour */
	uint32_t colours;		/* constant */
	size_t used;			/* atomic: bytes that may hold blocks; grows */
	uint32_t *out;			/* cold.c */
};

struct fb_klass {
	size_t stride;			/* 0: no such class; constant */
	uint32_t move;			/* blocks of a batch; constant */
	size_t at;			/* see struct fb_slab; constant */
	/* under st.lock */
	struct fb_slab *slab;		/* of .fresh */
	struct fiber *newest, *oldest;
	size_t free;			/* blocks in batches */
	char *fresh, *fresh_end;
	size_t slab_bytes;		/* of the next slab */
	char **cold;			/* with pages, but without memory */
	size_t ncold, cold_max;
};

#define FB_COLOUR_SIZE	256

struct fb_stacks {
	size_t page;
	fb_lock_t lock;
	struct fb_klass k[FB_KLASSES];
	struct fb_slab *slabs;		/* atomic; newest first; added under lock */
	struct fb_timer timer;		/* of the wake-up for cold blocks */
	uint32_t timed;			/* atomic: it is armed */
};
extern struct fb_stacks fb_st __attribute__((visibility("hidden")));

static inline bool fb_klass_small(unsigned int k)
{
	return k >= FB_KLASS_SMALL && k < FB_KLASS_MIDDLE;
}

static inline bool fb_klass_packed(unsigned int k)
{
	return fb_klass_small(k) || k == FB_KLASS_OWN;
}

/* ---- stack.c ---- */
/* Private memory, kept out of the commit limit; NULL: none. */
void *fb_stack_map(size_t bytes, int flags);
/* Is it the descriptor of a block? Any thread. */
bool fb_stack_is_fiber(const struct fiber *f);
/* Is it in a block? Any thread. */
bool fb_stack_is_block(const char *at);
/* A block never used, or cold: then its guard page is there still. */
struct fiber *fb_stack_carve(char *base, unsigned int k, bool cold);

/* The descriptor of the block at base. */
static inline struct fiber *fb_slab_fiber(const struct fb_slab *s, char *base)
{
	size_t colour = (uintptr_t)base / s->stride % s->colours;

	return (struct fiber *)(base + s->at - colour * FB_COLOUR_SIZE);
}

/* ---- depot.c ---- */
/* The newest batch of class k, a list; NULL: there is none. Any thread. */
struct fiber *fb_depot_get(unsigned int k);
/* n free blocks, linked. Any thread. */
void fb_depot_put(unsigned int k, struct fiber *first, size_t n);
/* A cold block, carved anew; or NULL. Any thread. */
struct fiber *fb_depot_get_cold(unsigned int k);
/* Give a few blocks back to the kernel, if some of class k are cold. */
bool fb_depot_trim(unsigned int k, uint64_t now);

/* The timer that wakes for them is not one of g's, which has ended, any more. */
void fb_depot_forget(struct fb_group *g);

/* ---- guard.c ---- */
int fb_guard_init(size_t page);
/* Protect the lowest page of a new block, or else begin to watch it. */
void fb_guard_block(struct fiber *f);
/* Watch f by a canary at `low`, 16-aligned. */
void fb_guard_canary(struct fiber *f, void *low);
#define FB_CANARY_SIZE	64

/* ---- mark.c ---- */
int fb_mark_init(void);
/* f has ended, its stack is out of use: note how deep it went, clean it. */
void fb_mark_ended(struct fiber *f);
extern bool fb_mark_on __attribute__((visibility("hidden")));

#endif
