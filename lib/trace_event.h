/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * trace_event.h - what is recorded, for the library and for fiberctl
 *
 * Needs nothing of the library: trace_json.o is part of fiberctl too, which reads the
 * rings of another process. Whatever changes an event's meaning, or a ring's, gets
 * another FB_TRACE_FORMAT.
 */
#ifndef FB_TRACE_EVENT_H
#define FB_TRACE_EVENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FB_TRACE_FORMAT	1

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
	FB_TRACE_POOL,		/* it is processor `other` of pool `name` from here on */
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
_Static_assert(sizeof(struct fb_trace_event) == 64, "one cache line an event");

/* ---- trace_json.c ---- */

/* What one processor recorded: those of indexes [from, n), oldest first. */
struct fb_trace_lane {
	const struct fb_trace_event *event;
	uint64_t mask;			/* event i is event[i & mask] */
	uint64_t from, n;
	uint64_t lost;			/* older ones, that are not here any more */
	char pool[16];			/* of another than the default one: its name; */
					/* "": no pool had it */
};

struct fb_trace_source {
	uint32_t nproc;			/* of the default pool */
	uint32_t lanes;
	int pid;
	const char *backend;
	uint64_t started, ended;	/* CLOCK_MONOTONIC ns */
	/* Lane i of a processor; nproc: of plain threads; behind that, of pools. */
	void (*lane)(uint32_t i, struct fb_trace_lane *l);
	const char *(*function)(uintptr_t fn);
	const char *(*why)(unsigned int why);
	/* write(2), but -errno. */
	long (*write)(int fd, const void *buf, size_t n);
};

struct fb_trace_sum {
	uint64_t events, lost;
};

/*
 * To a file, as JSON: 0, or a negative errno value. Takes no memory and waits for no
 * lock: in a signal handler too, but one at a time.
 */
int fb_trace_format(int fd, const struct fb_trace_source *s,
		    struct fb_trace_sum *sum);

#endif
