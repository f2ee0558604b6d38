/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * user.h - what the four files of the user backend share
 *
 * user.c     the backend's operations
 * group.c    the group: who owns a processor, who waits, who sleeps as spare
 * monitor.c  the thread that retakes processors of blocked carriers and says
 *            when a quantum is used up
 * sigurg.c   preemption by SIGURG, on the carrier itself
 *
 * Direction: user -> group, monitor, sigurg; monitor -> group, sigurg. The core
 * includes this header for FB_AVAIL_MONITOR and fb_user_kick only.
 */
#ifndef FB_USER_H
#define FB_USER_H

#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "backend.h"

/*
 * Set in fb_info.avail while the monitor sleeps without need to look. Whoever
 * makes a takeover word or hint->work non-zero then loads avail and, if this
 * bit is set, calls fb_user_kick(), whether or not a searcher is about.
 * Never set by the kernel backend.
 */
#define FB_AVAIL_MONITOR	(1U << 31)
void fb_user_kick(struct fb_group *g);
/* In the child of a fork: nothing is handed out any more. */
void fb_user_fork_child(struct fb_group *g);

/*
 * State of a carrier; every change is made under the group lock.
 *
 *   state   runs            owns   queue   left by
 *   FREE    -               -      -       attach
 *   AWAY    its fiber, or   no     -       wait
 *           its thread's start
 *   OWNER   runtime, fiber  yes    -       wait(GIVE), fb_group_retake, detach
 *   READY   sleeps          no     ready   grant
 *   SPARE   sleeps          no     spares  grant, its deadline (to READY)
 */
enum fb_user_state {
	FB_USER_FREE, FB_USER_AWAY, FB_USER_OWNER, FB_USER_READY, FB_USER_SPARE
};

/* One per carrier, in a table that stays mapped until the next setup. */
struct fb_user_carrier {
	struct fb_cpage page;		/* fb_carrier.page points here */
	/* under the group lock; state is also read by the monitor without */
	struct fb_user_carrier *next, *prev;
	uint32_t state;			/* enum fb_user_state */
	uint32_t event;
	bool returned;			/* waits since a block: is urgent */
	/* futex: 0 it sleeps or is about to, 1 it was granted a processor */
	uint32_t word;
	/* set at attach */
	pid_t tid;
	uint32_t index;
	void *altstack;
	stack_t old_altstack;
	/* monitor only: its last look (CPU time used till then), last SIGURG */
	uint64_t cpu, looked, sent, preempts;
	/* set by the monitor before SIGURG, taken by the handler */
	uint32_t kicked;
	struct fb_user_group *group;	/* constant */
} __attribute__((aligned(64)));

struct fb_user_proc {
	struct fb_ppage page;
	/* under the group lock; also read by the monitor without */
	struct fb_user_carrier *owner;	/* NULL: idle */
	bool queue_turn;		/* granted to a spare, for ready fibers */
	uint32_t grants;		/* changes of owner */
	uint64_t since;			/* when it was granted */
	uint64_t turn;			/* the same, but over blocks: see hand_on */
	bool cut;			/* it came too early: quantum of 1 ms */
	/* monitor only: what it saw at its last look */
	struct fb_user_carrier *seen_owner;
	uint32_t seen_seq, seen_grants;
	uint64_t seen_since, seen_cpu;
} __attribute__((aligned(64)));

struct fb_user_group {
	/* fixed after setup */
	struct fb_info *info;
	struct fb_hint *hint;
	struct fb_user_proc *proc;
	struct fb_user_carrier *carrier;
	uint32_t nproc, max_carriers, min_spares;
	uint64_t quantum, grace;
	bool membarrier;		/* without: only marked blocks are retaken */
	pid_t pid;
	void *memory;
	size_t memory_size;
	struct fb_ppage **ppage;

	/* the group lock and what it guards */
	uint32_t lock __attribute__((aligned(64)));
	struct fb_user_carrier *ready, *ready_tail;	/* in order of arrival */
	struct fb_user_carrier *spares;			/* last in, first out */
	struct fb_user_carrier *free;
	uint32_t used;			/* carrier[0 .. used) were attached once */
	bool wanted;			/* an idle processor lacks a spare */
	uint32_t returned;		/* urgent ones among ready */
	bool asleep;			/* FB_AVAIL_MONITOR is set */

	/* futex words */
	uint32_t keep_word __attribute__((aligned(64)));
	uint32_t monitor_word;		/* 1: the monitor sleeps */

	/* monitor only */
	pthread_t monitor;
	uint32_t away_next;		/* where the round of the away ones goes on */
	uint64_t away_at, heal_at;
};

#define fb_load(p)	__atomic_load_n(p, __ATOMIC_RELAXED)
#define fb_load_acq(p)	__atomic_load_n(p, __ATOMIC_ACQUIRE)
#define fb_load_sc(p)	__atomic_load_n(p, __ATOMIC_SEQ_CST)
#define fb_store(p, v)	__atomic_store_n(p, v, __ATOMIC_RELAXED)
#define fb_store_rel(p, v) __atomic_store_n(p, v, __ATOMIC_RELEASE)

/* fb_user_carrier.word */
enum { FB_WORD_SLEEP, FB_WORD_GRANTED, FB_WORD_DEAD };

/* What is to be done after unlock; one operation grants at most once. */
struct fb_group_todo {
	struct fb_user_carrier *granted;
	bool keeper, monitor;
};

/* ---- group.c: any context ---- */
uint64_t fb_group_now(void);
void fb_group_lock(struct fb_user_group *g);
void fb_group_unlock(struct fb_user_group *g,
		     struct fb_group_todo *t);	/* t may be NULL */

/* ---- group.c: the lock is held ---- */
void fb_group_set_avail(struct fb_user_group *g);
void fb_group_kick(struct fb_user_group *g, struct fb_group_todo *t);
uint32_t fb_group_missing(struct fb_user_group *g);
void fb_group_call_keeper(struct fb_user_group *g, struct fb_group_todo *t);
void fb_group_push_ready(struct fb_user_group *g, struct fb_user_carrier *uc,
			 bool returned, struct fb_group_todo *t);
struct fb_user_carrier *fb_group_pop_ready(struct fb_user_group *g);
void fb_group_push_spare(struct fb_user_group *g, struct fb_user_carrier *uc);
void fb_group_unlink_spare(struct fb_user_group *g, struct fb_user_carrier *uc);
struct fb_user_carrier *fb_group_pop_spare(struct fb_user_group *g,
					   struct fb_group_todo *t);
struct fb_user_proc *fb_group_proc_of(struct fb_user_group *g,
				      struct fb_user_carrier *uc);
void fb_group_grant(struct fb_user_group *g, struct fb_user_proc *p,
		    struct fb_user_carrier *uc, int event);
void fb_group_release(struct fb_user_proc *p, struct fb_user_carrier *uc);
void fb_group_enter_idle(struct fb_user_group *g);
struct fb_user_proc *fb_group_pick_idle(struct fb_user_group *g);
void fb_group_leave_idle(struct fb_user_group *g);
bool fb_group_any_ready(struct fb_user_group *g);
bool fb_group_any_takeover(struct fb_user_group *g);
void fb_group_hand_on(struct fb_user_group *g, struct fb_user_proc *p,
		      int event, bool work, struct fb_group_todo *t);

/* ---- group.c: the monitor only ---- */
/* The keeper goes round once: it has something to say. */
void fb_group_stir_keeper(struct fb_user_group *g);
bool fb_group_retake(struct fb_user_group *g, struct fb_user_proc *p,
		     struct fb_user_carrier *uc, uint32_t seq, bool work);
void fb_group_heal(struct fb_user_group *g);
void fb_group_set_asleep(struct fb_user_group *g, bool asleep);

/* monitor.c */
int fb_monitor_start(struct fb_user_group *g);
void fb_monitor_stop(struct fb_user_group *g);

/* sigurg.c */
int fb_sigurg_setup(void);
void fb_sigurg_close(void);
int fb_sigurg_attach(struct fb_user_carrier *uc);
void fb_sigurg_detach(struct fb_user_carrier *uc);
void fb_sigurg_send(struct fb_user_group *g, struct fb_user_carrier *uc);
/* Any thread with descriptors: with FIBER_CHECK=1, once, if SIGURG was taken. */
void fb_sigurg_tell(void);

#endif
