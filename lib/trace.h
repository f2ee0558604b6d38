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

enum fb_trace_kind {
	FB_TRACE_SWITCH = 1,	/* other stops (why; 0: yields), id goes on */
	FB_TRACE_SPAWN,		/* other spawns id, which goes on */
	FB_TRACE_END,		/* id has ended */
	FB_TRACE_READY,		/* id becomes ready */
	FB_TRACE_REST,		/* id stops (why): the root goes on */
	FB_TRACE_STEAL,		/* id is taken from processor `other` */
	FB_TRACE_PREEMPT,	/* id's turn is over, it keeps its thread */
	FB_TRACE_BLOCK,		/* id blocked on thread tid: taken over */
	FB_TRACE_ARRIVE,	/* thread tid owns it now (event `why`), goes on as id */
	FB_TRACE_LEAVE,		/* thread tid gives it away or sleeps with it */
	FB_TRACE_RETURN,	/* thread tid is back from its block and runs id */
	FB_TRACE_OPEN,		/* switches are recorded from here on; id runs */
	FB_TRACE_CLOSE,		/* no more, until OPEN: they cost too much */
	FB_TRACE_KINDS
};

struct fb_trace_event {
	uint64_t time;		/* CLOCK_MONOTONIC ns */
	uint64_t id;		/* of a fiber, or 0 */
	uint64_t other;
	uintptr_t fn;		/* of id */
	char name[16];		/* of id */
	uint32_t tid;
	uint8_t kind, why;
	uint8_t reserved[10];
};
_Static_assert(sizeof(struct fb_trace_event) == FB_LINE, "one line an event");

/* What FIBER_STATS counts, by powers of two ns: see trace_stats.c. */
enum { FB_HIST_READY, FB_HIST_WAKE, FB_HIST_HANDOFF, FB_HISTS };
#define FB_BUCKETS	40

/* What one processor recorded; [nproc]: what plain threads did. */
struct fb_tring {
	struct fb_trace_event *event;
	uint64_t n;			/* ever recorded; the newest are kept */
	uint64_t opened, resume;	/* when the window began, the next may */
	uint32_t left;			/* of the window */
	uint32_t clock;			/* p->clock at the last look */
	struct fb_carrier *owner;	/* who arrived last */
	uint64_t left_at;		/* when one left it; 0: it is owned */
	uint64_t hist[FB_HISTS][FB_BUCKETS];
};

struct fb_trace {
	bool on, stats;
	uint32_t mask;			/* events a ring keeps, minus 1 */
	uint64_t pace;			/* ns from one event to the next, at least */
	struct fb_tring *ring;		/* [nproc + 1] */
	fb_lock_t lock;			/* ring[nproc] */
	size_t bytes;
	int pid;
	uint32_t stopped;		/* atomic: nothing is recorded any more */
	struct fb_report report;
	uint64_t ended;			/* when it was stopped */
	uint64_t wake_at;		/* atomic: a spare is woken; or 0 */
	char path[4096];		/* empty: FIBER_STATS alone */
};

extern struct fb_trace fb_tr __attribute__((visibility("hidden")));
/* upcall.S: note when a carrier comes back. */
extern uint32_t fb_upcall_trace __attribute__((visibility("hidden")));

/* ---- trace.c ---- */
int fb_trace_start(void);
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
/* Owner of p, at a look: may a window begin? */
void fb_trace_look(struct fb_processor *p);
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

/* ---- trace_stats.c ---- */
void fb_stats_start(void);
/* Whoever writes r. */
void fb_stats_event(struct fb_tring *r, const struct fb_trace_event *e);
void fb_stats_print(void);

/* ---- trace_json.c ---- */
/* To fb_tr.path: 0, or the error. Takes no memory; in a signal handler too. */
int fb_trace_write(void);

#endif
