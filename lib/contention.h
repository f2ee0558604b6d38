/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* contention.h - what other rooms call of the profile; the protocol is in contention.c */
#ifndef FB_CONTENTION_H
#define FB_CONTENTION_H

#include "fb.h"

#define FB_PLACES	4096		/* a power of two */
#define FB_PLACES_MAX	(FB_PLACES / 4 * 3)

struct fb_contention {
	uint32_t on;			/* atomic: waits are counted */
	struct fb_report report;
	int pid;			/* 0: never on */
	const char *runner;		/* atomic: fb_thread_mark of fiber_run's thread */
	fb_lock_t lock;			/* of all below */
	uint32_t count;			/* of the places in use */
	struct fiber_contention *place;	/* [FB_PLACES + 1]; the last: no room */
	uint16_t order[FB_PLACES + 1];	/* see fb_contention_sort */
	char path[4096];		/* empty: the table alone */
};

extern struct fb_contention fb_ct __attribute__((visibility("hidden")));

/* ---- contention.c ---- */
/* Owner of a processor, with .profiling: its fiber stops; perhaps it waits. */
void fb_contention_parks(struct fb_carrier *c);
/* self, with FB_F_WAITS, goes on. */
void fb_contention_waited(struct fb_carrier *c, struct fiber *self);
/* A plain thread begins to wait; since when, for when it has; 0: not counted. */
uint64_t fb_contention_thread(unsigned int why);
void fb_contention_thread_waited(uint64_t since, unsigned int why);
/*
 * How many places there are, order[] beginning with the longest. Locked, but when all
 * is over: whoever dies may have died with the lock.
 */
uint32_t fb_contention_sort(void);
int fb_contention_start(void);
/* No carrier runs any more: tell. */
void fb_contention_stop(void);
/* The process is about to end: tell how it stands. */
void fb_contention_fatal(void);
/* Another thread may have held the lock when this process began. */
void fb_contention_fork_child(void);

/* ---- contention_text.c ---- */
/* Few places in words on stderr; all, for pprof, to the file. 0 or -errno. */
int fb_contention_write(void);

#endif
