/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * trace.h - record who ran where: what the other rooms call
 *
 * The protocol is in trace.c. Hooks are called by the owner of p, in_fiber == 0,
 * and only where p->trace or p->tracing say so.
 */
#ifndef FB_TRACE_H
#define FB_TRACE_H

#include "fb.h"
#include "trace_event.h"

/* What FIBER_STATS counts, by powers of two ns: see trace_stats.c. */
enum { FB_HIST_READY, FB_HIST_WAKE, FB_HIST_HANDOFF, FB_HISTS };
#define FB_BUCKETS	40

/* What one processor recorded; or what plain threads did. */
struct fb_tring {
	struct fb_trace_event *event;	/* NULL: no processor ever needed it */
	uint64_t n;			/* ever recorded; the newest are kept */
	uint64_t opened, resume;	/* when the window began, the next may */
	uint32_t left;			/* of the window */
	uint32_t clock;			/* p->clock at the last look */
	struct fb_carrier *owner;	/* who arrived last */
	uint64_t left_at;		/* when one left it; 0: it is owned */
	uint64_t hist[FB_HISTS][FB_BUCKETS];
	char pool[16];			/* whose it is, or was last; "": the default one */
	uint32_t group;			/* the same: fb_group.index */
};

/* As many as there can be processors, and plain threads' */
#define FB_TRACE_RINGS	(FB_MAX_PROCESSORS + 1)

struct fb_trace {
	bool on;			/* atomic */
	bool stats;
	uint32_t mask;			/* events a ring keeps, minus 1 */
	uint64_t pace;			/* ns from one event to the next, at least */
	struct fb_tring *ring;		/* [FB_TRACE_RINGS]: see trace.c */
	fb_lock_t lock;			/* that of plain threads */
	int pid;
	uint32_t stopped;		/* atomic: nothing is recorded any more */
	struct fb_report report;
	uint64_t ended;			/* when it was stopped */
	uint64_t wake_at[FB_GROUPS];	/* atomic: a spare is woken; or 0 */
	uint64_t ended_hist[FB_HISTS][FB_BUCKETS];	/* of pools that are no more */
	uint64_t began;			/* when it was switched on */
	uint32_t asked;			/* atomic; another process writes it */
	uint32_t seen, seen_at;		/* atomic: trace_outside.c */
	uint32_t outside;		/* atomic: enum fb_outside */
	char path[4096];		/* empty: FIBER_STATS alone, or outside */
};

/* Recording for another process; else it is on for our own reasons, or off. */
enum fb_outside { FB_OUTSIDE_OFF, FB_OUTSIDE_BUSY, FB_OUTSIDE_ON };
#define FB_OUTSIDE_LEASE_MS	2000

extern struct fb_trace fb_tr __attribute__((visibility("hidden")));
/* upcall.S: note when a carrier comes back. */
extern uint32_t fb_upcall_trace __attribute__((visibility("hidden")));

/* ---- trace.c ---- */
int fb_trace_start(void);
/* Rings for so many events, in fb_tr; pace for that cost. 0, or -ENOMEM. */
int fb_trace_rings(uint64_t events, uint64_t cost);
/* The memory of the events goes back; the rings stay. */
void fb_trace_forget(void);
/* Owner of p, or nobody owns it yet: its events are recorded. No memory: they are not. */
void fb_trace_join(struct fb_processor *p, struct fb_carrier *owner);
/* A pool is about to be on. */
void fb_trace_pool(struct fb_group *g);
/* All that may have been used: in order of processors, but for that of plain threads. */
static inline uint32_t fb_trace_lanes(void)
{
	return fb_processors() + 1;
}
/* No carrier runs any more: write it. */
void fb_trace_stop(void);
/* The process is about to end by a signal: write it as it stands. */
void fb_trace_fatal(void);

/* Owner of p: c->cur stops, f goes on; f NULL: the root. */
void fb_trace_switch(struct fb_processor *p, struct fiber *f);
void fb_trace_spawn(struct fb_processor *p, struct fiber *f);
void fb_trace_end(struct fb_processor *p, struct fiber *f);
void fb_trace_ready(struct fb_processor *p, struct fiber *f);
void fb_trace_steal(struct fb_processor *p, struct fiber *f, uint64_t from);
void fb_trace_preempt(struct fb_processor *p, struct fiber *f);
/* Owner of p, at a look, if this says so: may a window begin? Is it to be off? */
void fb_trace_look(struct fb_processor *p);
static inline bool fb_trace_due(const struct fb_processor *p)
{
	return fb_unlikely(p->trace != NULL || FB_READ(fb_tr.asked));
}
/*
 * Carrier c is about to wait for a processor; has got one (an FB_EVENT_*), maybe
 * being back from a block.
 */
void fb_trace_leave(struct fb_carrier *c);
void fb_trace_arrive(struct fb_carrier *c, int event, bool back);
/* c came back from a block by the RETURN upcall, with another processor. */
void fb_trace_moved(struct fb_carrier *c);
/* Any thread. */
void fb_trace_ready_global(struct fiber *f);

/* ---- trace_outside.c ---- */
/* Owner of p: begin, join, leave, end, as another process asks. */
void fb_outside_look(struct fb_processor *p);

/* ---- trace_stats.c ---- */
void fb_stats_start(void);
/* Whoever writes r. */
void fb_stats_event(struct fb_tring *r, const struct fb_trace_event *e);
void fb_stats_print(void);

/* ---- trace_file.c ---- */
/* To fb_tr.path: 0, or the error. Takes no memory; in a signal handler too. */
int fb_trace_write(void);

#endif
