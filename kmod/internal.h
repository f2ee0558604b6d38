/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * internal.h - the objects of the module and who may touch their fields
 *
 * group      one open of /dev/fiber, set up by one process
 * processor  the right to run fibers; N per group, never freed before it
 * carrier    a thread that may own a processor
 *
 * Lock order: a runqueue lock -> group->lock, which is a leaf. It is a raw
 * spinlock under which nothing is woken, allocated, freed, armed or faulted in:
 * functions that choose a sleeper return its task, and the caller wakes it when
 * the lock is dropped, still under rcu_read_lock (a task_struct is freed by RCU).
 */
#ifndef FIBER_INTERNAL_H
#define FIBER_INTERNAL_H

#include <linux/fiber.h>
#include <linux/hrtimer.h>
#include <linux/idr.h>
#include <linux/irq_work.h>
#include <linux/kref.h>
#include <linux/ktime.h>
#include <linux/list.h>
#include <linux/mutex.h>
#include <linux/preempt.h>
#include <linux/rbtree_latch.h>
#include <linux/rcupdate.h>
#include <linux/sched.h>
#include <linux/sched/task.h>
#include <linux/sched/task_stack.h>
#include <linux/smp.h>
#include <linux/spinlock.h>
#include <linux/user-return-notifier.h>
#include <linux/workqueue.h>

#define FIBER_MAX_PROCESSORS	1024U
#define FIBER_MAX_GRACE_NS	(10 * NSEC_PER_MSEC)
#define FIBER_MIN_QUANTUM	(50 * NSEC_PER_USEC) /* whatever the parameter says */
#define FIBER_DEFAULT_QUANTUM	(10 * NSEC_PER_MSEC)
#define FIBER_RETRY_NS		(200 * NSEC_PER_USEC) /* after a refused preemption */
#define FIBER_MIN_RUN_NS	NSEC_PER_MSEC	/* before a quantum is cut short */
#define FIBER_MAX_TEXTS		64
#define FIBER_MAX_ARENAS	4096
#define FIBER_MAX_FRUITLESS	256	/* RETURN upcalls that lead to no ACQUIRE */
#define FIBER_PREEMPT_STACK	768	/* bytes the PREEMPT trampoline may use */

/*
 * Where a processor is. Each has exactly one state; the three counts of a group
 * add up to N whenever group->lock is free.
 */
enum fiber_processor_state {
	FIBER_IDLE,	/* on group->idle; counted in info->avail */
	FIBER_OWNED,	/* processor->owner runs, or is blocked and keeps it */
	FIBER_FLIGHT,	/* on group->flight: taken from ->last, not yet placed */
	FIBER_STATES
};

/* What a carrier waits for. */
enum fiber_wait {
	FIBER_WAITS_NOT,
	FIBER_WAITS_READY,	/* on group->ready or ->turned */
	FIBER_WAITS_SPARE,	/* on group->spares */
};

/* Why a preemption is put off: what of the place would make it do harm. */
enum fiber_refusal {
	FIBER_REFUSE_OUTSIDE,	 /* not in fiber */
	FIBER_REFUSE_NO_PREEMPT, /* page->no_preempt */
	FIBER_REFUSE_NESTED,	 /* an upcall not yet entered */
	FIBER_REFUSE_STEPPED,	 /* single-stepped */
	FIBER_REFUSE_TEXT,	 /* not in a registered text */
	FIBER_REFUSE_STACK,	 /* no registered stack, or no room on it */
	FIBER_REFUSE_RSEQ,	 /* in a restartable sequence */
	FIBER_REFUSE_NOT
};

/*
 * May somebody take the processor of this carrier? One atomic word:
 * RUNNING -> KEEPING  sched_out, the carrier blocked and nobody wanted it
 * RUNNING -> ASIDE    sched_out, another task pushed the carrier aside
 * KEEPING, ASIDE -> RUNNING  sched_in, the carrier is back
 * KEEPING, ASIDE -> LOST     under group->lock by whoever takes it
 * LOST    -> RUNNING  sched_in, which then sees that it needs a processor
 */
enum fiber_hold { FIBER_RUNNING, FIBER_KEEPING, FIBER_ASIDE, FIBER_LOST };

enum fiber_stat {
	FIBER_STAT_BLOCKS,	/* blocked in fiber, owning a processor */
	FIBER_STAT_HANDOFFS,	/* ... and it was taken */
	FIBER_STAT_GRACE,	/* got its own back at the edge, untouched */
	FIBER_STAT_EDGE,	/* got a free one at the edge, no upcall */
	FIBER_STAT_RETURNS,	/* RETURN upcalls */
	FIBER_STAT_PREEMPTS,	/* PREEMPT upcalls */
	FIBER_STAT_REFUSED,	/* preemptions put off: the sum of ... */
	FIBER_STAT_REASON,	/* ... one for each enum fiber_refusal */
	FIBER_STATS = FIBER_STAT_REASON + FIBER_REFUSE_NOT
};

/* How a carrier that lost its processor came back to user code. */
enum fiber_back {
	FIBER_BACK_GRACE,	/* with its own: nobody took it */
	FIBER_BACK_EDGE,	/* with a free one */
	FIBER_BACK_UPCALL,	/* by the RETURN trampoline */
};

/* Counters of a group, under group->lock. */
enum fiber_count {
	FIBER_COUNT_WAKES,	/* FIBER_IOC_WAKE that found a spare */
	FIBER_COUNT_TO_SPARE,	/* a processor went to a spare: it was woken */
	FIBER_COUNT_TO_READY,	/* ... to a carrier that waited to continue */
	FIBER_COUNT_KEEPER,	/* the keeper was told that spares are missing */
	FIBER_COUNT_HURRIES,	/* a quantum was to be cut short */
	FIBER_COUNT_STRAYS,	/* carriers detached: no ACQUIRE in 256 upcalls */
	FIBER_COUNT_VIOLATIONS,	/* parameter check: a broken invariant */
	FIBER_COUNTS
};

struct fiber_group;
struct fiber_carrier;

struct fiber_processor {
	struct fiber_group *group;
	struct fiber_processor_page *page;
	u32 index;

	/* under group->lock */
	enum fiber_processor_state state;
	struct fiber_carrier *owner;	/* OWNED */
	struct fiber_carrier *last;	/* FLIGHT: compared only, never followed */
	struct list_head node;		/* IDLE, FLIGHT */
	u64 since;			/* FLIGHT: when it was taken; 0: no grace */
	u32 why;			/* FIBER_EVENT_* for the next owner */
	bool grace_armed;
	bool short_of_spares;		/* a turned carrier runs for want of one */
	bool queue_turn;		/* ready fibers have their turn ... */
	u64 turn_since;			/* ... since then, ns */

	/* under group->lock, or the owner's CPU while the owner is current */
	u32 seq;			/* the page's, at the last look */
	u64 fiber_since;		/* ns; the quantum of that fiber began */

	struct irq_work settle;		/* places a processor taken in sched_out */
	struct hrtimer grace;
	call_single_data_t hurry;	/* runs where the owner runs */
	atomic_t hurrying;		/* it is queued or runs */
};

/* The stacks of a carrier when an upcall slot was filled; see upcall.c. */
struct fiber_slot {
	unsigned long sp;		/* 0: it never was */
	unsigned long alt_sp;		/* what sigaltstack had set */
	size_t alt_size;
	unsigned int alt_flags;
};

struct fiber_carrier {
	struct preempt_notifier sched;
	struct user_return_notifier edge;
	struct task_struct *task;
	struct fiber_group *group;
	struct fiber_carrier_page *page;
	u32 index;

	/*
	 * under group->lock; the carrier itself reads processor without it,
	 * preemption off: while it runs, nobody else changes it.
	 */
	struct fiber_processor *processor;
	enum fiber_wait wait;
	u32 event;
	bool turned;			/* READY: it gave its processor away */
	u64 rank;			/* READY: place in the queue, ns */
	struct list_head node;		/* group->ready, ->turned or ->spares */
	struct list_head all;		/* group->carriers, under ->members */

	atomic_t hold;			/* enum fiber_hold */

	/* own thread, or an interrupt on its CPU while it is current */
	bool armed;			/* edge is on this CPU's list */
	bool need;			/* lost its processor in fiber */
	bool want_preempt;
	bool waiting;			/* inside fiber_handoff_wait() */
	bool gone;			/* detached; hooks do nothing */
	bool early;			/* one is back from a block: cut the quantum short */
	u32 fruitless;			/* RETURN upcalls since it last asked us */
	int tick_cpu;			/* where it wants its timer; others read it */
	struct fiber_slot slot[FIBER_SLOTS];
	u64 run_since;			/* ns; it owns a processor since then */
	u64 stat[FIBER_STATS];

	struct hrtimer quantum;
	struct irq_work end;
	struct work_struct reap;
	struct rcu_head rcu;
};

/* By c itself, or, while it is held, under group->lock; fdinfo reads it any time. */
static inline u64 fiber_count(struct fiber_carrier *c, unsigned int stat)
{
	u64 n = c->stat[stat] + 1;

	WRITE_ONCE(c->stat[stat], n);
	return n;
}

struct fiber_text {
	unsigned long start, end;
};

struct fiber_arena {
	unsigned long base, stride, guard, end;
	struct latch_tree_node node;	/* of group->arenas */
	struct fiber_arena *next;	/* of group->last_arena */
};

struct fiber_group {
	struct kref ref;		/* the file; each carrier */
	struct mm_struct *mm;		/* pinned by mmgrab, compared only */
	void *files;			/* where SETUP found the file, compared only */
	struct mutex setup;		/* SETUP, ATTACH, STACKS, TEXT; killable */

	/* constant after SETUP */
	u32 nr_processors, max_carriers, min_spares;
	u64 quantum_ns, grace_ns;
	unsigned long return_ip, return_end, preempt_ip;
	pid_t tgid;			/* for tracepoints */
	struct fiber_info_page *info;
	struct fiber_hint_page *hint;
	struct fiber_processor *processor;
	struct page **carrier_page;	/* [max_carriers], NULL or allocated once */
	bool ready_to_use;		/* release/acquire: SETUP is complete */

	struct mutex members;		/* carriers, gone_stat */
	struct list_head carriers;
	u64 gone_stat[FIBER_STATS];	/* of carriers that ended */

	raw_spinlock_t lock;
	struct list_head ready;		/* back from a block, oldest first */
	struct list_head turned;	/* gave their processor away, oldest first */
	struct list_head spares;	/* last in, first out: warm caches */
	struct list_head idle;
	struct list_head flight;	/* oldest first */
	u32 nr[FIBER_STATES];
	struct task_struct *keeper;	/* sleeps in FIBER_IOC_KEEP */
	bool dead;
	u64 count[FIBER_COUNTS];

	struct fiber_user *user;	/* constant after open; see limit.c */
	struct ida ids;

	/* grow only, under ->setup; the user edge reads them any time */
	struct latch_tree_root arenas;
	struct fiber_arena *last_arena;
	unsigned int nr_arenas;
	unsigned int nr_texts;		/* release/acquire: [0, nr) are complete */
	struct fiber_text *text;
};

/* Is anybody interested in p if its owner leaves? Any context. */
static inline bool fiber_wanted(const struct fiber_processor *p)
{
	return READ_ONCE(p->page->takeover) || READ_ONCE(p->group->hint->work);
}

/* Are fibers ready that p could run? Any context. */
static inline bool fiber_ready_work(const struct fiber_processor *p)
{
	return (READ_ONCE(p->page->takeover) & FIBER_TAKEOVER_READY) ||
	       READ_ONCE(p->group->hint->work);
}

/* Are fibers or carriers ready to run on p instead of its owner? Any context. */
static inline bool fiber_contended(const struct fiber_processor *p)
{
	return fiber_ready_work(p) || READ_ONCE(p->group->info->waiting);
}

/* page.c - process context */
void *fiber_page_table(size_t n, size_t size);
int fiber_page_setup(struct fiber_group *g);
void fiber_page_free(struct fiber_group *g);
struct fiber_carrier_page *fiber_page_carrier(struct fiber_group *g, u32 index);
int fiber_page_mmap(struct fiber_group *g, struct vm_area_struct *vma);
#define FIBER_OFF_INFO		0UL
#define FIBER_OFF_HINT		1UL
#define FIBER_OFF_PROCESSORS	0x100UL
#define FIBER_OFF_CARRIERS	0x10000UL

/* handoff.c - up to sched_out, irqs off; wait.c - process context */
void fiber_handoff_init(struct fiber_group *g, struct fiber_processor *p);
void fiber_handoff_block(struct fiber_carrier *c);
void fiber_handoff_aside(struct fiber_carrier *c);
void fiber_handoff_unblock(struct fiber_carrier *c);
void fiber_handoff_leave(struct fiber_carrier *c, u32 why);
bool fiber_handoff_edge(struct fiber_carrier *c);
int fiber_handoff_acquire(struct fiber_carrier *c);
int fiber_handoff_wait(struct fiber_carrier *c, u32 flags, u64 deadline);
int fiber_handoff_wake(struct fiber_group *g);
int fiber_handoff_keep(struct fiber_group *g);
void fiber_handoff_kill(struct fiber_group *g);

/* quantum.c */
void fiber_quantum_init(struct fiber_carrier *c);
void fiber_quantum_start(struct fiber_carrier *c);
void fiber_quantum_resume(struct fiber_carrier *c);
void fiber_quantum_retry(struct fiber_carrier *c);
void fiber_quantum_hurry_init(struct fiber_processor *p);
bool fiber_quantum_hurry(struct fiber_processor *p, int cpu);
void fiber_quantum_hurry_sync(struct fiber_processor *p);

/* Does the timer run, here, so that there is nothing to do? Preemption off. */
static inline bool fiber_quantum_ticks(struct fiber_carrier *c)
{
	if (!c->group->preempt_ip)
		return true;
	return !READ_ONCE(c->early) && READ_ONCE(c->tick_cpu) == smp_processor_id() &&
	       hrtimer_is_queued(&c->quantum);
}

/* upcall.c - irqs off, on the carrier's CPU */
void fiber_upcall_init(struct fiber_carrier *c);
void fiber_upcall_arm(struct fiber_carrier *c);
void fiber_upcall_disarm(struct fiber_carrier *c);

/* hook.c */
void fiber_hook_init(struct fiber_carrier *c);
bool fiber_hook_is(const struct preempt_notifier *n);

/* carrier.c - process context, except fiber_carrier_end */
int fiber_carrier_start(void);
void fiber_carrier_stop(void);
void fiber_carrier_hooks_get(void);
void fiber_carrier_hooks_put(void);
struct fiber_carrier *fiber_carrier_current(struct fiber_group *g);
int fiber_carrier_attach(struct fiber_group *g, u32 *index);
void fiber_carrier_detach(struct fiber_carrier *c);
void fiber_carrier_stray(struct fiber_carrier *c);
void fiber_carrier_end(struct fiber_carrier *c);

/* limit.c - process context */
int fiber_limit_open(struct fiber_group *g);
void fiber_limit_close(struct fiber_group *g);
int fiber_limit_timers(unsigned int n);
void fiber_limit_untimers(unsigned int n);
int fiber_limit_attach(struct fiber_group *g);
void fiber_limit_detach(struct fiber_group *g);

/* group.c - process context */
extern const struct file_operations fiber_group_fops;
void fiber_group_put(struct fiber_group *g);

/* ioctl.c - process context, except the question of the user edge */
long fiber_ioctl(struct file *file, unsigned int cmd, unsigned long arg);
bool fiber_text_ok(struct fiber_group *g, unsigned long ip);

/* arena.c - process context, except the two questions of the user edge */
int fiber_arena_add(struct fiber_group *g, const struct fiber_arena *new);
void fiber_arena_free(struct fiber_group *g);
bool fiber_stack_ok(struct fiber_group *g, unsigned long sp);
bool fiber_stack_same(struct fiber_group *g, unsigned long a, unsigned long b);

/* main.c: parameters */
extern unsigned int fiber_max_carriers;
extern unsigned int fiber_user_groups;
extern unsigned int fiber_user_carriers;
extern unsigned int fiber_max_timers;
extern unsigned int fiber_min_quantum_us;
extern bool fiber_check;
extern bool fiber_hooks;

#endif
