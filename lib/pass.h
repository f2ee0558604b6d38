/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* pass.h - what the files of the scheduler alone share */
#ifndef FB_PASS_H
#define FB_PASS_H

#include "pick.h"

/* ---- sched.c ---- */
/* Owner of p: the next slow look is at this pass; with those four, at each. */
static inline void fb_sched_look_at(struct fb_processor *p, uint64_t pass)
{
	p->look_next = pass;
	p->look_at = p->hurry | (p->marks & FB_RECORDING) | p->locked |
		     fb_rt.seeded ? 0 : pass;
}

/* Going to sleep: until when, to watch timers; 0: another does. Then awake again. */
uint64_t fb_sched_watching(struct fb_carrier *c);
void fb_sched_unwatch(struct fb_carrier *c);

/* ---- ready.c ---- */
/* f, taken out of a ring, is ready for any processor. */
void fb_sched_put_global(struct fiber *f);

/* ---- search.c ---- */
/* Spin for a while as the only searcher; then one last look without the token. */
struct fiber *fb_search(struct fb_carrier *c, struct fb_processor *p);
/* Give the searcher's token back. */
void fb_search_end(struct fb_carrier *c);

/* ---- latency.c ---- */
/* How many turns in a row, while others are ready. */
#define FB_HURRIED_MAX	8
/* Owner of p: f, which is ready, runs before those of q. False: no room. */
bool fb_latency_push(struct fb_processor *p, struct fiber *f);
/* Owner of p, with p->hurry: one of them, or NULL: it is the turn of q. */
struct fiber *fb_latency_pick(struct fb_processor *p);

/* ---- pin.c ---- */
/* What .child of a locked fiber says: no id has this bit. */
#define FB_HOME		(1ULL << 62)
static inline struct fb_carrier *fb_home(uint64_t child)
{
	return (struct fb_carrier *)(uintptr_t)(child & ~FB_HOME);
}
/* c, which is locked to a fiber, has come to own p, or to enter it. */
void fb_pin_entered(struct fb_carrier *c, struct fb_processor *p);
/* With p->locked. Is it the calling carrier, owner of p, who is? */
bool fb_pin_holds(struct fb_processor *p);
/* The calling fiber, locked, yields: in and out with in_fiber == 0. */
void fb_pin_yield(struct fb_carrier *c, struct fb_processor *p);
/* The root of a locked carrier: its fiber, when it is to go on here. */
struct fiber *fb_pin_wait(struct fb_carrier *c);

#endif
