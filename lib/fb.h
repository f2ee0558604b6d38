/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * fb.h - what the rooms of the library share
 *
 * The rule of the house, on a carrier: fb_enter() clears in_fiber and tells the
 * processor, which then stays ours until fb_leave() sets in_fiber again as the
 * last thing before fiber code goes on. Runtime locks are held only between
 * the two, and nothing between them may wait for a lock that fiber code takes
 * too (malloc, stdio): its holder may be waiting for our processor.
 *
 * A fiber changes its carrier only inside a switch (arch/.../switch.h), which
 * hands over the new carrier; no thread-local address lives across one.
 */
#ifndef FB_H
#define FB_H

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#define FIBER_NO_ERRNO		/* ours is read freshly where it must be */
#include "include/fiber.h"
#include "backend.h"
#include "os.h"
#include "runq.h"
#include "switch.h"
#include "wheel.h"

#define fb_likely(x)	__builtin_expect(!!(x), 1)
#define fb_unlikely(x)	__builtin_expect(!!(x), 0)
#define fb_barrier()	__asm__ volatile("" ::: "memory")
#define FB_READ(x)	__atomic_load_n(&(x), __ATOMIC_RELAXED)
#define FB_WRITE(x, v)	__atomic_store_n(&(x), (v), __ATOMIC_RELAXED)
#define FB_ACQUIRE(x)	__atomic_load_n(&(x), __ATOMIC_ACQUIRE)
#define FB_RELEASE(x, v) __atomic_store_n(&(x), (v), __ATOMIC_RELEASE)
/*
 * FB_READ, and one more by its only writer, in one instruction: gcc makes two or three
 * of an atomic access. Where a barrier stands on both sides, it cannot do otherwise.
 */
#ifdef FB_TSAN
#define FB_GLANCE(x)	FB_READ(x)
#define FB_COUNT(x)	FB_WRITE(x, FB_READ(x) + 1)
#else
#define FB_GLANCE(x)	(x)
#define FB_COUNT(x)	((void)++(x))
#endif
/* What its one writer may write plainly meanwhile, and who looks at it so. */
#define FB_SEE(x)	(*(const volatile __typeof__(x) *)&(x))
#define FB_LOOKS	__attribute__((no_sanitize("address"), \
				       no_sanitize("thread"), noinline))
#define FB_EXPORT	__attribute__((visibility("default")))
#define FB_NEVER	UINT64_MAX
#define FB_LINE		64

/* ---- locks of the runtime: short, held with in_fiber == 0 only ---- */
typedef struct { uint32_t held; } fb_lock_t;
void fb_lock_slow(fb_lock_t *l);

static inline void fb_lock(fb_lock_t *l)
{
	/* Pairs with the release in fb_unlock. */
	if (fb_unlikely(__atomic_exchange_n(&l->held, 1, __ATOMIC_ACQUIRE)))
		fb_lock_slow(l);
}

static inline void fb_unlock(fb_lock_t *l)
{
	FB_RELEASE(l->held, 0);		/* Pairs with the exchange in fb_lock. */
}

/* ---- fibers ---- */

/* fiber.join: see join.c for the protocol. Else a struct fb_node. */
enum { FB_JOIN_NONE, FB_JOIN_DETACHED, FB_JOIN_DONE, FB_JOIN_GONE };

/*
 * fiber.flags: fiber_self() was called; .fpu differs from fb_rt.fpu; waits of it
 * may be cancelled (it is in a scope, and not shielded); its end is more than the
 * end of its stack (it is in a scope); .in counts it until it is off its stack;
 * fb_fiber_new made it; it has slots (local.c); see guard.c; .caught, .uncaught
 * are to be put back (thread.c); it is of the latency class (latency.c); times.c;
 * pin.c; contention.c; held.c; it is of the pool .pool, not of the default one
 */
enum {
	FB_F_SHARED = 1, FB_F_FPU = 2, FB_F_CANCELS = 4, FB_F_ENDS = 8,
	FB_F_OWNED = 16, FB_F_OURS = 32, FB_F_LOCAL = 64, FB_F_CANARY = 128,
	FB_F_EH = 256, FB_F_LATENCY = 512, FB_F_TIMES = 1024,
	FB_F_LOCKED = 2048, FB_F_WAITS = 4096, FB_F_CHECKS = 8192,
	FB_F_POOL = 16384,
	/* More is to be done when it stops, goes on. */
	FB_F_STOPS = FB_F_CANARY | FB_F_TIMES,
	FB_F_RESUMES = FB_F_FPU | FB_F_EH | FB_F_TIMES | FB_F_LOCKED | FB_F_WAITS,
};

/* Who waits for an object; see wait.h. */
enum { FB_FIBER, FB_THREAD, FB_TASK, FB_KIND = 3, FB_COUNTED = 4 };
struct fb_node;
struct fb_waiter {
	uint64_t word;			/* atomic */
	union {
		struct fb_node *by;	/* the node that ended the wait */
		fb_lock_t *at;		/* before, if only one can: sync.c, join.c */
	};
	uint32_t kind;			/* & FB_KIND: constant. Above that, of a fiber: */
					/* its last park, fb_processor.clock; of a */
					/* thread, FB_COUNTED in fb_rt.plain_waits */
	uint32_t woken;			/* atomic; settled, or a thread's futex */
};

/*
 * struct fiber - lives at the top of its own stack block
 * While it runs only its carrier writes it; while it is ready or parked, who
 * takes it out of its queue or waiter word.
 */
struct fiber {
	struct fb_ctx ctx;		/* first: the run queue stores &ctx */
	uint64_t child;			/* inside fiber_spawn of the one with this id; or 0; */
					/* with FB_F_LOCKED: fb_home(); else */
					/* with FB_F_WAITS: contention.c */
	uintptr_t join;			/* atomic */
	void *(*fn)(void *);
	union {
		void *arg;		/* until it runs */
		void *result;		/* when it has ended */
		void *caught;		/* with FB_F_EH, in between */
	};
	int err;			/* errno while it does not run */
	union {
		struct {
			uint16_t flags;
			uint8_t why;	/* FB_WHY_*: what it waits for */
			uint8_t klass;	/* stack.h */
		};
		uint32_t looks;		/* of them, in one look: see end.c */
	};
	struct fb_fpu fpu;		/* with FB_F_FPU, while it does not run */
	struct fiber *link;		/* pool or global queue */
	void *base;			/* lowest byte of the block */
	struct fb_once_run *once;	/* once.c; never reset: NULL at its end */
	uint64_t id;
	uint32_t valgrind;		/* its number of this stack */
	uint8_t canary;			/* FB_F_CANARY or 0: guard.c */
	uint8_t pool;			/* with FB_F_POOL: fb_group.index */
	uint16_t shields;		/* scope.c; beside the name: prepare() */
	char name[16];
	struct fb_waiter w;		/* never reset: tickets go on */
	uint16_t cancel;		/* atomic; with FB_F_CANCELS: cancelled */
	uint16_t uncaught;		/* with FB_F_EH */
	fb_lock_t join_lock;		/* join.c */
	void *in;			/* scope.c; NULL: in no scope */
	struct fb_local *local;		/* local.c; with FB_F_LOCAL */
	int (*scoped)(void *);		/* what a fiber of a scope does */
	struct fiber_coro *coro;	/* it runs inside; NULL: none. coro.c */
} __attribute__((aligned(64)));

/* Free blocks of one class, and blocks never used yet. */
#define FB_KLASSES	32
struct fb_pool {
	struct fiber *list;
	uint32_t count;
	char *fresh, *fresh_end;
};

/* ---- processors: the owner alone writes, unless said otherwise ---- */
/*
 * Few counters on the fast path. `pass` counts schedule passes and spawns: a
 * switch each, but for `idle_passes`; an end that goes straight on with its
 * parent is a switch that only `ended` counts. Ids go in steps of id_step, which is
 * more than there are processors, so that they say how many were spawned here.
 */
struct fb_processor {
	struct fb_ppage *page;
	uint64_t pass;
	uint64_t look_at;		/* pass of the next slow look; 0: .hurry, .recording */
	struct fiber *pool;		/* free blocks of the default class */
	uint32_t pool_count;
	uint32_t watch;			/* part of takeover: see fb_sched_watch */
	uint64_t id_next;		/* index + 1, index + 1 + id_step, ... */
	uint64_t ended;
	uint32_t id_step;		/* constant, the same of all */
	uint32_t pool_max;		/* FB_POOL_MAX; 0: ends are recorded */
	struct fb_info *info;		/* constant: of .group */

	uint64_t look_every;		/* passes between looks, with timers */
	uint64_t looked_at;
	uint32_t looks;
	uint32_t seed;			/* of the search order */
	uint64_t given_at;		/* when it was last given to another carrier */
	uint64_t idle_passes, steals, preemptions;
	uint64_t polled_at;		/* poller.c: last look while busy */
	uint32_t solo;			/* atomic: see wait.h */
	uint32_t clock;			/* see fb_sched_clock; & FB_KIND is FB_FIBER */
	uint32_t hurry, hurried;	/* latency.c */
	uint64_t look_next;		/* what look_at is without those */
	uint32_t index;			/* constant; in fb_rt.proc */
	union {
		struct {
			/* Every pass is a slow one: */
			uint8_t profiling;	/* contention.c */
			uint8_t checking;	/* held.c */
			uint8_t tracing;	/* trace.c: switches are recorded */
			uint8_t pooled;	/* constant; not of the default pool: pool.c */
		};
		struct {
			uint16_t beside;
			uint16_t odd;	/* tracing, pooled: see ready.c */
		};
		uint32_t marks;
#define FB_RECORDING	0x00ffffffu	/* of marks: any but pooled */
	};
	struct fb_tring *trace;		/* constant; NULL: nothing is */
	struct fb_group *group;		/* constant */
	uint32_t locked;		/* pin.c */
	uint32_t held;			/* retire.c; read by all */
	uint32_t fired;			/* timers, since given_at */
	uint64_t ours;			/* fibers of the library made here */
	uint64_t id_pool, id_end;	/* of pools, in place of id_next: some of plain_ids */
	uint32_t place;			/* constant; in .group */

	struct fb_runq q;
	struct fb_runq soon;		/* latency.c; never its .next */
	struct fb_pool other[FB_KLASSES];	/* [0]: .fresh alone */

	_Alignas(FB_LINE) uint64_t timer_next;	/* timer_lock; read by all: see timer.c */
	_Alignas(FB_LINE) fb_lock_t timer_lock;
	struct fb_wheel wheel;		/* timer_lock */
} __attribute__((aligned(128)));

/* ---- carriers: the thread itself alone writes ---- */
/* What the C++ ABI calls __cxa_eh_globals: thrown and handled by a thread. */
struct fb_eh {
	void *caught;
	unsigned int uncaught;
};

/* upcall.S knows the first fields: see fb_carrier_offsets in carrier.c. */
struct fb_carrier {
	struct fb_cpage *page;		/* set by backend->attach */
	struct fb_ctx root;		/* its own stack; suspended while a fiber runs */
	void *xsave;			/* 64-aligned, fb_rt.xsave_size; may be NULL */
	struct fiber *cur;		/* NULL: the root runs */
	struct fb_processor *proc;	/* ours since fb_enter or wait */
	int *errno_loc;
	union {
		struct {
			uint32_t proc_index;	/* proc->index */
			uint32_t not_pending;	/* constant: 0 */
		};
		uint64_t calm;		/* what page->calm is then: fb_calm */
	};
	uint32_t index;			/* backend's number, set by attach */
	bool searching;			/* holds the searcher's token */
	bool kept;			/* went to sleep and was told of work */
	struct fb_eh *eh;		/* constant; NULL: no C++ runtime */
	pthread_t thread;
	struct fb_carrier *next;	/* of fb_rt.carriers; constant */
	void *backend;			/* private to the backend */
	void *altstack;			/* ours, see guard.c; or NULL */
	struct timespec returned;	/* by upcall.S, see trace.c; 0: not */
	struct fiber *returned_as;	/* .cur then */
	struct fiber *locked;		/* pin.c; NULL: it runs any */
	uint32_t locks;			/* how often, by .locked */
	uint32_t home;			/* atomic: .locked is to go on here */
	void *cpus;			/* of the thread before it was pinned; or NULL */
	uint64_t waits;			/* contention.c; of .locked with FB_F_WAITS */
	int tid;
	uint32_t listed;		/* atomic, futex; 1: it is in fb_rt.carriers */
	int fd;				/* kern.c: of .group, for upcall.S */
	uint32_t first;			/* of .group, which is constant while it lives: */
	struct fb_group *group;		/* the index of its first processor */
	struct fb_carrier *mate;	/* carrier.c: the next of .group, or of the dead */
	uint64_t watches, looks;	/* sched.c; FB_NEVER: does not */
} __attribute__((aligned(FB_LINE)));

/* Initial-exec TLS: NULL on plain threads. */
extern __thread struct fb_carrier *fb_self
	__attribute__((tls_model("initial-exec"), visibility("hidden")));

/* Fibers by .link. */
struct fb_list {
	struct fiber *head, *tail;
};

enum fb_state { FB_OFF, FB_STARTING, FB_ON, FB_STOPPING, FB_ABANDONED, FB_FORKED };

/* The searcher's token: see sched.c. */
enum { FB_SEARCH_NONE, FB_SEARCH_WOKEN, FB_SEARCH_RUNS };

/*
 * struct fb_group - processors, and the threads that may own them
 * To the backend: one open of /dev/fiber, or what does that without. The first, of
 * index 0, is the default pool; the others are pools of the program's: pool.c.
 */
#define FB_GROUPS	256
struct fb_poll_set {
	int fd, kick;			/* epoll; eventfd. Once `on` */
	uint32_t on;			/* atomic */
};

struct fb_group {
	/* constant while it is on */
	struct fb_processor *proc;	/* [nproc], a part of fb_rt.proc */
	uint32_t nproc;
	uint32_t index;			/* in fb_rt.group; for good */
	struct fb_info *info;
	struct fb_hint *hint;
	void *backend;			/* private to the backend */
	int fd;				/* kern.c */
	uint32_t max_carriers, min_spares;

	struct fb_group *runs;		/* its fibers: itself, but for pool.c */
	char name[16];

	uint32_t use;			/* atomic: beyond, they are retired: retire.c */
	uint32_t ends;			/* atomic: its carriers are to end */
	uint32_t state;			/* atomic, of pools: pool.c */

	_Alignas(FB_LINE) uint32_t search;	/* atomic: FB_SEARCH_* */
	uint32_t wake_asked;		/* atomic: no spare was there, keeper told */
	uint32_t pollers;		/* atomic: idle, in epoll_wait */

	_Alignas(FB_LINE) uint32_t visitors;	/* atomic: pool.c */
	uint64_t came, went;		/* atomic: the same */
	_Alignas(FB_LINE) uint32_t waiting;	/* atomic: slots that wait, io.c */
	struct fb_poll_set set;		/* poller.c: of pools */

	_Alignas(FB_LINE) fb_lock_t lock;	/* of the global queue: */
	struct fb_list global[2];	/* lock; [1]: of the latency class */
	uint32_t global_count;		/* lock; read by all */
	uint32_t global_hurried;	/* lock: see latency.c */

	_Alignas(FB_LINE) uint64_t watched;	/* atomic: a spare wakes then */
	uint32_t ncarriers;		/* atomic: threads that live */
	uint32_t locked;		/* atomic: carriers kept for one fiber */

	/* carrier.c */
	struct fb_carrier *mine;	/* who makes and ends its carriers alone; by .mate */
	pthread_t keeper;
	uint32_t made, ready;		/* atomic: carriers created; attached or failed */
	int keeper_tid;			/* atomic; the keeper's own */
	bool cap_said, error_said;	/* keeper only, as what follows */
	int batch;
	uint64_t made_at;
};

struct fb_runtime {
	/* constant once the runtime is on */
	struct fb_processor *proc;	/* [FB_MAX_PROCESSORS] */
	const struct fb_backend *backend;
	uint32_t nproc;			/* atomic: those from here on never were any */
	uint32_t follow, follow_at;	/* atomic: follow.c */
	uint32_t settling;		/* atomic: resizers that came: retire.c */
	size_t stack_size;		/* stride of the default class */
	uint64_t quantum_ns, grace_ns;
	uint32_t solo;			/* atomic: see wait.h */
	uint32_t seeded;		/* 1: see seed.c; else 0 */
	uint32_t checks;		/* FIBER_CHECK=1 */
	uint32_t xsave_size;
	struct fb_fpu fpu;		/* every fiber begins with */
	sigset_t sigmask;		/* of the thread that started the runtime */

	uint64_t started;		/* CLOCK_MONOTONIC ns */

	uint32_t state;			/* enum fb_state, atomic */
	uint32_t epoch;			/* how often it was started; while it is off */
	uint64_t features;		/* atomic */
	char text_note[80];		/* why main is not preemptible, or "" */

	_Alignas(FB_LINE) uint32_t pollers;	/* atomic: of all groups; a hint */

	_Alignas(FB_LINE)
	uint64_t plain_spawned, plain_ours;	/* atomic */
	uint64_t plain_ids;		/* atomic: multiples of id_step given out */
	uint32_t visitors;		/* atomic: plain threads inside a call */
	uint32_t plain_waits;		/* atomic: those that wait, without deadline */
	uint32_t helpers;		/* atomic: threads of ours that are no carriers */
	uint32_t closing;		/* atomic: fiber_fini decides */
	uint32_t resting;		/* atomic: retire.c: holders asleep */
	uint64_t looks;			/* atomic: one wakes then for deadlock.c */

	struct fb_carrier *carriers;	/* atomic; keepers add in front */

	uint32_t ncarriers;		/* atomic: how many are in there */

	struct fb_group group;		/* the default pool */
	struct fb_group *pool[FB_GROUPS];	/* atomic; each to stay; in order */
	uint32_t pools;			/* atomic: those that run */
	uint32_t looking;		/* atomic: pool.c */
};

extern struct fb_runtime fb_rt __attribute__((visibility("hidden")));

/* Those from here on were never used. Any thread. */
static inline uint32_t fb_processors(void)
{
	return FB_ACQUIRE(fb_rt.nproc);	/* Pairs with the release in pool.c. */
}

/* Whose f is. */
static inline struct fb_group *fb_group_of(const struct fiber *f)
{
	return fb_unlikely(f->flags & FB_F_POOL) ? fb_rt.pool[f->pool] :
						   &fb_rt.group;
}

/* The carriers of g are to end: they run no more fibers. Any thread. */
static inline bool fb_group_ends(const struct fb_group *g)
{
	return FB_READ(g->ends);
}

/* ---- enter and leave ---- */
struct fb_processor *fb_sched_moved(struct fb_carrier *c, uint32_t i);

/*
 * Stop being a fiber for the backend. The word is read once: the processor
 * read is ours until fb_leave, but the user backend, trying to take it, may set
 * the word to none for a moment before it sees that in_fiber is 0.
 */
static inline __attribute__((always_inline)) struct fb_processor *
fb_enter(struct fb_carrier *c)
{
	struct fb_cpage *page = c->page;
	uint32_t i;

	FB_WRITE(page->in_fiber, 0);
	fb_barrier();		/* Pairs with the backend: see fb_cpage. */
	i = FB_READ(page->processor);
	/* None, or another than last time: where it is needs no multiplication. */
	if (fb_unlikely(i != c->proc_index))
		return fb_sched_moved(c, i);
	fb_san_acquire(c->proc);
	return c->proc;
}

/*
 * in_fiber is 0: is the processor c->proc, as fb_enter would find, and no preemption
 * put off? In one load of two words: so who sets pending to 0 looks first whether it
 * is, or the load would wait until that store is out.
 */
static inline __attribute__((always_inline)) bool
fb_calm(const struct fb_carrier *c, const struct fb_cpage *page)
{
	return fb_likely(FB_READ(page->calm) == c->calm);
}

static inline __attribute__((always_inline)) void fb_leave(struct fb_carrier *c)
{
	fb_barrier();
	fb_san_release(c->proc);
	FB_WRITE(c->page->in_fiber, 1);
}

/* ---- seed.c: with fb_rt.seeded ---- */
/* Before the runtime is made: from this seed; 0: not. */
void fb_seed_start(uint64_t seed);
/* c is attached. */
void fb_seed_attach(struct fb_carrier *c);
/* Owner of p: the next fiber, or NULL: none, or it is the turn of who yields. */
struct fiber *fb_seed_pick(struct fb_processor *p);
/* Owner of the processor: the caller is ready, too, for the next pick. */
void fb_seed_yields(void);
/* The calling fiber is at a call: it yields, or not. */
void fb_seed_point(struct fb_carrier *c);
/* Uniform below n. Owner of the processor. */
uint32_t fb_seed_below(uint32_t n);
/* Owner of p, nothing is ready: go on in time. NULL: it is to sleep. */
struct fiber *fb_seed_idle(struct fb_processor *p);
/* A fiber begins (1) or ends (-1) to wait for the world by a timer. */
void fb_seed_outside(int n);
/* When the timers come due, by the kernel's clock: FB_NEVER. */
uint64_t fb_seed_wake_at(void);
/* The time of the program, and of the wheels. Any thread. */
uint64_t fb_seed_now(void);
uint64_t fb_seed_clock(void);
/* How to replay what went wrong: once. In a signal handler too. */
void fb_seed_say(void);
/* For fiber_backend. */
uint64_t fb_seed_number(void);

/* ---- sched.c, ready.c ---- */
/*
 * The calling carrier's fiber stops: a preemption that was put off is done. Where it
 * costs nothing to look: who parks uses fb_sched_unpend.
 */
static inline __attribute__((always_inline)) void
fb_sched_heed(struct fb_carrier *c)
{
	/* With a seed it is never done: each call of the library looks. */
	FB_WRITE(c->page->pending, fb_rt.seeded);
}

/* It parks or ends: before the pick, since with a seed that writes 1 again. */
static inline __attribute__((always_inline)) void
fb_sched_unpend(struct fb_carrier *c)
{
	if (fb_unlikely(FB_GLANCE(c->page->pending)))	/* as fb_calm wants it */
		FB_WRITE(c->page->pending, 0);
}

/*
 * Park the calling fiber: fn(c, arg) runs when it is off its stack, and makes
 * it findable to whoever readies it. From fiber code, in_fiber == 0; returns
 * with in_fiber == 1, on whatever carrier.
 */
void fb_sched_park(struct fb_carrier *c, struct fb_processor *p,
		   fb_switch_fn fn, void *arg);
/* End the calling fiber's turn for good; fn(c, arg) frees what it leaves. */
_Noreturn void fb_sched_quit(struct fb_carrier *c, struct fb_processor *p,
			     fb_switch_fn fn, void *arg);
/* Owner of p, in_fiber == 0: f runs next here, or after all that is ready. */
void fb_sched_ready(struct fb_processor *p, struct fiber *f);
void fb_sched_ready_last(struct fb_processor *p, struct fiber *f);
/* The same, and nobody is woken for it. */
void fb_sched_ready_quietly(struct fb_processor *p, struct fiber *f);
/* Owner of p: make room in a ring that seems full. */
void fb_sched_make_room(struct fb_processor *p);
/* Any thread without a processor. */
void fb_sched_ready_global(struct fiber *f);
/* Owner of p: a share of the global queue, one returned; NULL: it is empty. */
struct fiber *fb_sched_global_get(struct fb_processor *p);
/*
 * Give the processor away as preempted; the fiber keeps its carrier and comes
 * back in order of arrival. In and out with in_fiber == 0.
 */
void fb_sched_give(struct fb_carrier *c, struct fb_processor *p, bool to_spare);
/* Owner of p: should the carriers that wait to continue have it now? */
bool fb_sched_give_due(struct fb_processor *p);
/* Owner of p, when p->pass has come to p->look_at. */
void fb_sched_look(struct fb_processor *p);
/*
 * Owner of p. To read a clock at each park costs more than the park, so fibers note
 * p->clock, in units of 1 << FB_CLOCK_SHIFT ns since the start, times 4, which is as
 * old as the last look, or newer: at most 61 passes. It is read when p becomes idle
 * too, so the time of the last fiber that parked is right.
 */
#define FB_CLOCK_SHIFT	22
void fb_sched_clock(struct fb_processor *p);
/* ns since a fiber noted so many units, without the 2 bits below; 0: after now. */
static inline uint64_t fb_clock_since(uint32_t units, uint64_t now)
{
	const uint32_t all = UINT32_MAX >> 2;
	uint64_t n = (((now - fb_rt.started) >> FB_CLOCK_SHIFT) - units) & all;

	return n > all - 1000 ? 0 : n << FB_CLOCK_SHIFT;
}
/* Owner of p: c->cur stops, and the root goes on. */
void fb_sched_rest(struct fb_carrier *c, struct fb_processor *p);
/* Any thread; a hint: nobody waits in p's rings. */
static inline bool fb_sched_empty(const struct fb_processor *p)
{
	return fb_runq_empty(&p->q) && fb_runq_empty(&p->soon);
}
/* Is anything ready that p's owner could run? */
bool fb_sched_work(struct fb_processor *p);
/* Owner of p, after timers changed: does somebody watch the earliest? */
void fb_sched_watch(struct fb_processor *p);
/* The body of a carrier's thread; returns when the runtime ends. */
void fb_sched_loop(struct fb_carrier *c);

/*
 * After work was published: wake a searcher if a processor is available and
 * nobody searches. Any thread; fb_sched_wake: the owner of p, for its group.
 */
void fb_sched_wake_slow(struct fb_group *g);
static inline void fb_sched_wake(struct fb_processor *p)
{
	if (fb_unlikely(FB_READ(p->info->avail) | FB_READ(fb_rt.pollers)))
		fb_sched_wake_slow(p->group);
}
static inline void fb_sched_wake_group(struct fb_group *g)
{
	if (fb_unlikely(FB_READ(g->info->avail) | FB_READ(fb_rt.pollers)))
		fb_sched_wake_slow(g);
}

/* Owner of p, at each switch: why someone should take over. */
static inline __attribute__((always_inline)) void
fb_sched_publish(struct fb_processor *p)
{
	uint32_t ready = fb_runq_empty(&p->q) ? 0 : FB_TAKEOVER_READY;

	FB_WRITE(p->page->takeover, ready | p->watch);
}

/*
 * Owner of p: the caller becomes the newest of the ring, by a switch. That there
 * is somebody ready is said after the push, never before: a thief that finds the
 * ring empty in between would take the word back (unannounce). t: q.tail.
 */
static inline __attribute__((always_inline)) struct fb_push
fb_sched_push_at(struct fb_processor *p, uint32_t t)
{
	return (struct fb_push){
		.slot = fb_runq_slot(&p->q, t),
		.tail = &p->q.tail,
		.t = t + 1,
		.word = &p->page->takeover,
		.value = FB_TAKEOVER_READY | p->watch,
	};
}

static inline __attribute__((always_inline)) struct fb_push
fb_sched_push(struct fb_processor *p)
{
	return fb_sched_push_at(p, p->q.tail);
}

/* Owner of p, at each switch to a fiber with a quantum of its own. */
static inline __attribute__((always_inline)) void
fb_sched_turn(struct fb_processor *p)
{
	FB_COUNT(p->page->seq);
}

FB_INLINE uint32_t fb_fpu_changed(void)
{
	struct fb_fpu v = fb_fpu_read();

	return (v.mxcsr ^ fb_rt.fpu.mxcsr) | (v.cw ^ fb_rt.fpu.cw);
}

/* Is anything of what fb_thread_out keeps other than a fiber begins with? */
FB_INLINE bool fb_thread_changed(const struct fb_carrier *c)
{
	const struct fb_eh *eh = c->eh;

	if (fb_likely(!eh))
		return fb_fpu_changed();
	return fb_fpu_changed() | eh->uncaught | (uintptr_t)eh->caught;
}

void fb_guard_check(const struct fiber *f);
void fb_sched_stopping(struct fiber *self);

/* ---- thread.c ---- */
/* c is the calling thread's, new. */
void fb_thread_init(struct fb_carrier *c);
/* Of the calling thread; NULL: there is no C++ runtime. */
struct fb_eh *fb_thread_eh(void);
/* self (NULL: nobody) stops: keep what changed, and make it as it began. */
void fb_thread_out(struct fb_carrier *c, struct fiber *self);
/* self goes on; where. */
struct fb_carrier *fb_thread_in(struct fb_carrier *c, struct fiber *self);

/* The first steps when a fiber stops; self NULL: for good. */
static inline __attribute__((always_inline)) void
fb_sched_suspend(struct fb_carrier *c, struct fiber *self)
{
	if (fb_unlikely(fb_thread_changed(c)))
		fb_thread_out(c, self);
	if (self && fb_unlikely(self->flags & FB_F_STOPS))
		fb_sched_stopping(self);
	if (self)
		self->err = *c->errno_loc;
}

/* The last steps before a fiber's code goes on; _plain: without FB_F_RESUMES. */
static inline __attribute__((always_inline)) void
fb_sched_resume_plain(struct fb_carrier *c, struct fiber *self)
{
	*c->errno_loc = self->err;
	fb_leave(c);
}

static inline __attribute__((always_inline)) void
fb_sched_resume(struct fb_carrier *c, struct fiber *self)
{
	if (fb_unlikely(self->flags & FB_F_RESUMES))
		c = fb_thread_in(c, self);
	fb_sched_resume_plain(c, self);
}

/* ---- pin.c ---- */
#define FB_PIN_SIZE	32		/* of the stack, below FB_TIMES_SIZE */
/* A fiber to begin with these flags of fiber_attr, on that CPU, can be started in g. */
int fb_pin_reserve(struct fb_group *g, unsigned int flags, unsigned int cpu);
void fb_pin_unreserve(struct fb_group *g, unsigned int flags);
/* f is new, and was reserved. */
void fb_pin_init(struct fiber *f, unsigned int flags, unsigned int cpu);
/* self, which is locked, goes on at c, elsewhere than it should: until it does. */
struct fb_carrier *fb_pin_home(struct fb_carrier *c, struct fiber *self);
/* The calling fiber, which is locked, ends. */
void fb_pin_end(struct fb_carrier *c);

/* ---- times.c: with FB_F_TIMES ---- */
#define FB_TIMES_SIZE	96		/* of the stack */
/* f is new: begin to count; sets the flag. */
void fb_times_init(struct fiber *f);
/* The calling fiber goes on, stops, ends; f is made ready. */
void fb_times_run(struct fiber *f);
void fb_times_stop(struct fiber *f);
void fb_times_end(struct fiber *f);
void fb_times_ready(struct fiber *f);
/* The calling fiber has waited for a processor as one that is ready. */
void fb_times_waited(struct fiber *f, uint64_t ns);

/* ---- timer.c ---- */
/* CLOCK_MONOTONIC ns, of the kernel's. Any thread. */
uint64_t fb_clock(void);
/* The same, but for seed.c: the clock of timers. Any thread. */
static inline uint64_t fb_timer_now(void)
{
	return fb_unlikely(fb_rt.seeded) ? fb_seed_clock() : fb_clock();
}
void fb_timer_init(struct fb_processor *p);
/*
 * Owner of p; t is in no wheel. It may fire, elsewhere, before this returns.
 * True: p's earliest timer is earlier now, so fb_sched_watch(p) must follow.
 */
bool fb_timer_add(struct fb_processor *p, struct fb_timer *t);
/*
 * Owner of any processor, in_fiber == 0; t was added. True: it was armed and
 * will not fire. False: fire() was called and has returned. Nothing touches *t
 * after, unless it is added again.
 */
bool fb_timer_del(struct fb_timer *t);
/* The same, if p has it: another may be adding it elsewhere. */
bool fb_timer_take(struct fb_processor *p, struct fb_timer *t);
unsigned int fb_timer_fire(struct fb_processor *to, uint64_t now);
uint64_t fb_timer_earliest(const struct fb_group *g);

/* ---- callback.c ---- */
unsigned int fb_callback_due(struct fb_processor *to, struct fb_timer *t);

/* ---- stack.c ---- */
/* Sanitizers surround each local by a red zone: stacks are so much larger. */
#ifdef FB_SAN
#define FB_STACK_SCALE	4
#else
#define FB_STACK_SCALE	1
#endif
int fb_stack_init(void);
void fb_stack_fini(void);
/* A block for `size` bytes (0: default). p: ours, or NULL on plain threads. */
struct fiber *fb_stack_get(struct fb_processor *p, size_t size);
/* Its usable bytes: [low, high). Any thread. */
char *fb_stack_low(const struct fiber *f);
char *fb_stack_high(const struct fiber *f);
/* A descriptor whose stack is the program's own memory. */
struct fiber *fb_stack_own(struct fb_processor *p, void *stack, size_t size);
void fb_stack_put_slow(struct fb_processor *p, struct fiber *f);
/* g is new: tell the backend of the stacks that there are. */
void fb_stack_tell(struct fb_group *g);
/* g has ended: its free stacks are for all. */
void fb_stack_flush(struct fb_group *g);
bool fb_stack_idle(struct fb_processor *p);
#define FB_POOL_MAX	256

/*
 * Owner of p. f may be the stack we stand on: it stays in our pool until then.
 * _fast: it is of class 0, and the pool not full.
 */
FB_INLINE void fb_stack_put_fast(struct fb_processor *p, struct fiber *f)
{
	f->link = p->pool;
	p->pool = f;
	p->pool_count++;
}

FB_INLINE void fb_stack_put(struct fb_processor *p, struct fiber *f)
{
	if (fb_unlikely(f->klass || p->pool_count >= FB_POOL_MAX))
		fb_stack_put_slow(p, f);
	else
		fb_stack_put_fast(p, f);
}

/* ---- guard.c ---- */
/* The calling carrier's alternate stack, where an overflow is reported. */
int fb_guard_attach(struct fb_carrier *c);
void fb_guard_detach(struct fb_carrier *c);
void fb_guard_fini(void);

/* ---- fiber.c ---- */
/*
 * Owner of p, or, NULL, a plain thread that visits: a new, detached fiber to be made
 * ready, which is not counted among those spawned and alive: fiber_fini does not wait
 * for it. NULL: no memory.
 */
struct fiber *fb_fiber_new(struct fb_processor *p, void *(*fn)(void *), void *arg);
uint64_t fb_fiber_alive(void);

/* ---- join.c ---- */
/* A switch function: the fiber arg has ended and is off its stack. */
void fb_join_bury(struct fb_carrier *c, void *arg);

/* ---- end.c ---- */
/* The end of the calling fiber; fb_arch_start goes on here. */
_Noreturn void fb_fiber_end(void *result) __attribute__((visibility("hidden")));

/* ---- fiber.c ---- */
/* A struct that begins with its size, of which `known` bytes are; -EINVAL. */
int fb_read_sized(void *to, size_t known, const void *from);
uint64_t fb_fiber_spawned(const struct fb_processor *p);

/* ---- once.c ---- */
/* The calling fiber ends inside functions of fiber_once: they failed. */
void fb_once_exit(struct fiber *f);

/* ---- retire.c ---- */
/* Owner of p: is it to run no more fibers? */
static inline bool fb_sched_retired(const struct fb_processor *p)
{
	return fb_unlikely(p->place >= FB_READ(p->group->use));
}
/* The carrier's root, owner of p, which is retired: hold it until it is not. */
void fb_retire(struct fb_carrier *c, struct fb_processor *p);
/* The runtime stops: all that hold one go on. */
void fb_retire_stop(void);
/* How many are held. */
uint32_t fb_retired(void);

/*
 * Not fiber_set_processors, but the CPUs say how many there are to be: unless that was
 * called meanwhile. 0: not known, so as before. Owner of a processor.
 */
void fb_retire_follow(uint32_t n);
/* The calling fiber, of the library: until all that are to be retired are held. */
void fb_retire_settle(void);

/* ---- cpus.c ---- */
/*
 * CPUs that the thread (0: the caller) may use: affinity, cpu.max. At least 1; 0 (of a
 * thread): there is a cpu.max that cannot be read now, for want of descriptors.
 */
unsigned int fb_cpus(int tid);
/* Nobody asks any more: close what is kept open. */
void fb_cpus_stop(void);

/* ---- follow.c ---- */
#define FB_MAX_PROCESSORS	1024
enum { FB_FOLLOW_CPUS = 1, FB_FOLLOW_SOON = 2 };	/* fb_rt.follow */
void fb_follow_slow(struct fb_processor *p);
/* A fiber of the library: look, and see to it that those beyond are held. */
void *fb_follow_cpus(void *arg);
/* Owner of p, beside a fiber, when p->clock was read: is it time to look? */
static inline void fb_follow(struct fb_processor *p)
{
	if (fb_unlikely(FB_READ(fb_rt.follow)))
		fb_follow_slow(p);
}
/* How many processors are to be had later, with `use` at the start. */
uint32_t fb_follow_most(uint32_t use);

/* ---- carrier.c ---- */
int fb_carrier_start(struct fb_group *g);	/* keeper and first spares */
void fb_carrier_stop(struct fb_group *g);	/* no fiber is alive: end all threads */
/* Is this fiber, its address, on a carrier now? A hint. Any thread. */
bool fb_carrier_runs(uintptr_t f);
int fb_carrier_keeper(void);	/* its tid; 0: it has not begun yet */

/* ---- preempt.c ---- */
/*
 * The calling carrier's fiber has used its quantum. Called by the PREEMPT
 * trampoline, or by the user backend's signal handler, while in_fiber == 1;
 * sets in_fiber = 0, clears pending, keeps errno. Returns, owning a processor,
 * with in_fiber == 0: THE CALLER sets page->in_fiber = 1 last.
 */
void fb_preempted(struct fb_carrier *c) __attribute__((visibility("hidden")));
/* May the code at ip be preempted? Async-signal-safe. */
bool fb_preempt_text_ok(uintptr_t ip);
int fb_preempt_init(void);
/* g is new: tell the backend of the texts that there are. */
void fb_preempt_tell(struct fb_group *g);

/* ---- visit.c: plain threads inside a call ---- */
bool fb_visit(void);
bool fb_visit_now(void);
void fb_visit_end(void);

/* ---- debug.c ---- */
/* fiber_walk, by a visitor or a fiber. */
int fb_debug_walk(int (*fn)(const struct fiber_info *info, void *arg), void *arg);
/* What a fiber waits for, a word. */
const char *fb_why_name(unsigned int why);

/* ---- dump.c ---- */
/* fiber_dump, by a visitor or while no fiber can end. */
int fb_dump(int fd);
int fb_dump_start(void);
void fb_dump_stop(void);

/* In another handler of that signal: dump, if it is the one for that. */
void fb_dump_signalled(int sig);

/* ---- signal.c ---- */
/* Around a look whether anybody uses the runtime: its thread does not meanwhile. */
void fb_signal_hold(void);
void fb_signal_let_go(void);
/* A channel waits for signals. */
bool fb_signal_wanted(void);
void fb_signal_stop(void);
void fb_signal_fork_child(void);

/* ---- deadlock.c ---- */
int fb_deadlock_start(void);
void fb_deadlock_stop(void);
/* Owner of a processor with nothing to do: look, if it is time. */
void fb_deadlock_idle(void);
/* When an idle carrier is to wake and look; FB_NEVER. */
uint64_t fb_deadlock_at(void);

/* ---- local.c ---- */
/* The calling fiber ends, or thread: call the destructors of its slots. */
void fb_local_end(void);

/* ---- coro.c, costack.c ---- */
/* The calling fiber ends inside co; then, off its stack. */
void fb_coro_fiber_exit(struct fiber_coro *co);
void fb_coro_fiber_gone(struct fiber_coro *co);
/* In the child of a fork, while fb_self is still set. */
void fb_coro_fork_child(void);
/* The runtime is on. */
void fb_costack_tell(void);

/* ---- kern.c ---- */
void fb_kern_fork_child(struct fb_group *g);

/* ---- run.c ---- */
/* A number in the environment; 1: set, 0: not, or -EINVAL, which was told. */
int fb_env_number(const char *name, uint64_t min, uint64_t max, uint64_t *value);
/* One line on stderr, "fiber: ...". Takes no lock of stdio. */
void fb_say(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* The process is about to end: write what was recorded, as it stands. */
void fb_last_words(void);
_Noreturn void fb_die(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* ---- misuse.c ---- */
/* The same, with the stack of the calling fiber or thread, which was wrong. */
_Noreturn void fb_die_here(const char *fmt, ...)
	__attribute__((format(printf, 1, 2), cold));

#endif
