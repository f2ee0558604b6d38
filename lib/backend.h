/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * backend.h - the door between the library and whatever moves processors
 *
 * Two rooms stand behind it: kern.c (/dev/fiber; the only file that knows
 * <linux/fiber.h>) and user.c (the same protocol among threads, with a
 * monitor). The words below have the layout of the uapi pages (kern.c proves
 * it at compile time), so the fast path does not know which one it runs on.
 */
#ifndef FB_BACKEND_H
#define FB_BACKEND_H

#include <stddef.h>
#include <stdint.h>

#define FB_NO_PROCESSOR	UINT32_MAX
#define FB_SLOTS	4

struct fb_info {		/* written by the backend, read by all */
	union {
		struct {
			uint32_t avail;	/* processors wake() could hand out now */
			uint32_t waiting;	/* carriers that wait to continue */
		};
		uint64_t either;	/* of both, in one look */
	};
	uint32_t spares, idle, carriers, dead;
	uint32_t turned;	/* of waiting: those that were preempted */
	uint32_t reserved[9];
};

struct fb_hint {		/* written by any thread */
	uint32_t work;		/* the global queue is not empty */
	uint32_t reserved[15];
};

enum { FB_TAKEOVER_READY = 1, FB_TAKEOVER_WATCH = 2 };

struct fb_ppage {		/* takeover, seq: written by the owner */
	uint32_t takeover;
	uint32_t seq;
	uint32_t reserved0[14];
	uint32_t owner;		/* written by the backend */
	uint32_t reserved1[15];
};

/*
 * in_fiber, no_preempt: written by the carrier only. The backend takes a
 * processor away, or preempts, only while in_fiber == 1 and no_preempt == 0.
 * The carrier clears in_fiber first and reads processor then; from there to
 * setting in_fiber again the value is stable. Only the compiler must keep that
 * order: the module looks from the carrier's own thread, the user backend
 * issues membarrier(2) between its claim and its look.
 */
struct fb_cpage {
	uint32_t in_fiber;
	uint32_t no_preempt;
	union {
		struct {
			uint32_t processor;	/* written by the backend: index */
						/* or FB_NO_PROCESSOR */
			uint32_t pending;	/* a preemption was put off; */
						/* cleared by the carrier */
		};
		uint64_t calm;		/* both: see fb_calm */
	};
	uint32_t depth;
	uint32_t blocking;	/* user backend: inside fiber_blocking_begin/end, or */
#define FB_BLOCKING_IDLE 0x80000000u	/* idle: for carriers that come back alone */
	uint32_t reserved0[10];
	uint64_t slot[FB_SLOTS];
	uint64_t blocks, handoffs, returns, preempts, refused;
	uint64_t reserved1[7];
};

/* flags and events of wait(): the same numbers as FIBER_WAIT_*, FIBER_EVENT_* */
enum { FB_WAIT_READY = 1, FB_WAIT_SPARE = 2, FB_WAIT_GIVE = 4, FB_WAIT_TO_SPARE = 8,
       FB_WAIT_SURE = 16 };
enum { FB_EVENT_NONE, FB_EVENT_IDLE, FB_EVENT_BLOCK, FB_EVENT_GIVEN, FB_EVENT_WAKE,
       FB_EVENT_EXIT };

struct fb_setup {
	uint32_t processors, max_carriers, min_spares;
	uint64_t quantum_ns, grace_ns;
	/* out */
	struct fb_info *info;
	struct fb_hint *hint;
	struct fb_ppage **ppage;	/* [processors] */
	uint64_t features;		/* FIBER_FEATURE_* */
};

struct fb_carrier;
struct fb_group;

/* Stacks of one size, one behind the other. */
struct fb_arena {
	void *base;
	size_t stride, count, guard;
};

/* All return 0 or a negative errno value unless said otherwise. */
struct fb_backend {
	const char *name;
	/* What is the backend's of g is g->backend from here on, to close. */
	int (*setup)(struct fb_group *g, struct fb_setup *s);
	/* The calling thread becomes carrier c of c->group, without a processor; */
	/* sets c->page. */
	int (*attach)(struct fb_carrier *c);
	void (*detach)(struct fb_carrier *c);
	/*
	 * Called by carrier c with in_fiber == 0. Sleeps until c owns a processor
	 * (see fiber_wait_args in the uapi header for the exact meaning of flags;
	 * both backends obey that text). deadline: CLOCK_MONOTONIC ns or 0.
	 * Returns an FB_EVENT_* or a negative errno; -EINTR: look at
	 * page->processor and call again if it is FB_NO_PROCESSOR.
	 */
	int (*wait)(struct fb_carrier *c, unsigned int flags, uint64_t deadline);
	/*
	 * Owner, in_fiber == 0: give the processor away, to who waits, or to a spare,
	 * and own none. NULL: carriers that block with in_fiber == 1 lose theirs as
	 * soon as that.
	 */
	void (*leave)(struct fb_carrier *c);
	/* Hand an available processor to a spare. Any thread. 1: done, 0: none. */
	int (*wake)(struct fb_group *g);
	/* Sleep until spares are missing; returns how many. The keeper thread only. */
	int (*keep)(struct fb_group *g);
	int (*stacks)(struct fb_group *g, const struct fb_arena *a);
	int (*text)(struct fb_group *g, uintptr_t start, uintptr_t end);
	/* No carrier is attached any more, and none of the others asks for it. */
	void (*close)(struct fb_group *g);
};

extern const struct fb_backend fb_kern, fb_user;

#endif
