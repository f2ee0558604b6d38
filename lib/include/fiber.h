/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * fiber.h - goroutines for C
 *
 * Write plain blocking code in very many fibers. Conventions of every call:
 * the result is 0 or more, or a negative errno value; errno is never touched
 * and is kept per fiber. "fiber only" calls answer -EPERM elsewhere.
 * A call that may park or block can resume on another thread: do not keep the
 * address of a thread-local variable across it.
 *
 * errno is such a variable, and compilers keep its address: the C library says
 * that it never changes within a function. So this header includes <errno.h>
 * and makes errno ask anew each time; plain threads may use it as well. Code
 * that uses errno around calls of this library must include this header, or
 * read errno in a function of its own. To keep the C library's errno, define
 * FIBER_NO_ERRNO first.
 *
 * C++ exceptions are their fiber's own: it may switch while one is handled, or
 * in a destructor that one called. None may leave the function of a fiber.
 */
#ifndef FIBER_H
#define FIBER_H

#ifndef FIBER_NO_ERRNO
#include <errno.h>
#endif
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fiber fiber_t;
#include "fiber/pool.h"

/* fiber_errno_location - errno of the thread that runs this now. Any thread. */
int *fiber_errno_location(void);
#ifndef FIBER_NO_ERRNO
#undef errno
#define errno (*fiber_errno_location())
#endif

/* ---- the runtime ---- */

/*
 * struct fiber_config - how to start the runtime; zero means the default
 * FIBER_PROCESSORS, _QUANTUM_US, _GRACE_US, _COLD_MS and _SEED in the environment
 * win.
 * @size:        sizeof(struct fiber_config), for compatibility
 * @processors:  how many fibers may run at once, up to 1024; default: the CPUs
 *               this process may use, by its affinity and, rounded up, by
 *               cpu.max of its cgroup, also when those change while it runs:
 *               see fiber_set_processors
 * @max_carriers: cap on threads made for fibers; default 10000, at least
 *               max_processors + 1; the module may allow fewer
 * @stack_size:  default stack of a fiber, bytes; default 64 KiB, 16 KiB at
 *               least, 64 GiB at most, rounded up to pages. A guard page, the
 *               descriptor and the place it is shifted by take 4.2 to 6 KiB
 * @quantum_ns:  how long a fiber may run while others are ready; default 10 ms,
 *               50 us at least
 * @grace_ns:    how long a blocked fiber keeps its processor from spares;
 *               default 50 us, 10 ms at most; FIBER_GRACE_NONE: none
 * @seed:        not 0: one processor, a schedule drawn from this number and time
 *               that jumps, so that a run can be had again: fiber_seed(7)
 * @max_processors: how many there can be later, up to 1024; those at the start, at
 *               least. Each beyond those in use
 *               costs a thread. Default: if the number was given, that; else the
 *               machine's CPUs, but no more than 4 times those at the start
 * @cold_ns:     not 0: the stacks of fibers that have been parked for so long go to
 *               swap, but for what a wake-up touches first, and come back by page
 *               faults: 10 ms at least, 30 days at most. FIBER_FEATURE_COLD says
 *               whether it holds. Not those of small stacks, nor the program's own
 *               memory
 */
struct fiber_config {
	size_t size;
	unsigned int processors;
	unsigned int max_carriers;
	size_t stack_size;
	uint64_t quantum_ns;
	uint64_t grace_ns;
	uint64_t seed;
	unsigned int max_processors;
	uint64_t cold_ns;
};
#define FIBER_GRACE_NONE	UINT64_MAX

/*
 * fiber_run - start the runtime, run main(arg) as its first fiber, stop
 *
 * Any plain thread; not from a fiber. Returns what main returned, or a negative
 * errno value if the runtime could not start: of what is wrong with the
 * configuration, the environment or the device a line on stderr says more.
 *
 * If fibers are alive when main returns, or a plain thread is inside a call,
 * the runtime is not stopped but abandoned: fiber_run returns, they go on until
 * they end or the process does. It cannot be started again before all of them
 * have ended (-EBUSY). Until then plain threads cannot spawn, and nobody opens
 * a scope or starts a task (-EPERM); fibers may still spawn.
 *
 * Errors: -EINVAL: main is NULL, or a value in the environment is wrong.
 * -EBUSY: the caller is a fiber, or the runtime runs already. -EPERM: in the
 * child of a fork. -ENOMEM. -EAGAIN: no threads. With FIBER_BACKEND=kernel:
 * -ENODEV: there is no /dev/fiber. -EACCES: it may not be opened. -EPROTO: the
 * module is of another version. -EOPNOTSUPP: the program has a user shadow
 * stack.
 */
int fiber_run(int (*main)(void *), void *arg);

/*
 * The embedding form, for programs that own main(): fiber_init starts the
 * runtime (cfg may be NULL), plain threads then spawn fibers and wait for them
 * with fiber_join; fiber_fini stops it. That ends the life of every fiber: a
 * handle that was neither joined nor detached before must not be used after.
 * fiber_init: any plain thread. Errors: as fiber_run; -EINVAL: a value of cfg.
 * fiber_fini: any plain thread. Errors: -EBUSY: fibers are alive, or a plain
 * thread is inside a call, or the caller is a fiber; it runs on, try again.
 * -EPERM: no runtime, or in the child of a fork.
 */
int fiber_init(const struct fiber_config *cfg);
int fiber_fini(void);

/* fiber_features(): what holds in this process now. Any thread; 0 before start. */
#define FIBER_FEATURE_KERNEL	  (1ULL << 0)	/* the module does it */
#define FIBER_FEATURE_HANDOFF	  (1ULL << 1)	/* any blocking call gives its processor away ... */
#define FIBER_FEATURE_EXACT	  (1ULL << 2)	/* ... at once and returns with one (else: within ms) */
#define FIBER_FEATURE_PREEMPT	  (1ULL << 3)	/* CPU hogs are preempted */
#define FIBER_FEATURE_NO_SIGNAL	  (1ULL << 4)	/* without signals: no EINTR because of us */
#define FIBER_FEATURE_GUARD	  (1ULL << 5)	/* stacks have a guard page (but see fiber_attr) */
#define FIBER_FEATURE_CANARY	  (1ULL << 6)	/* no more guard pages: some stacks are checked at each switch */
#define FIBER_FEATURE_IO_EPOLL	  (1ULL << 7)	/* waits for I/O by epoll (else: in blocking calls) */
#define FIBER_FEATURE_IO_URING	  (1ULL << 8)	/* calls on files by io_uring (else: blocking calls) */
#define FIBER_FEATURE_CANCEL_BLOCKED (1ULL << 16) /* cancelled: blocking calls fail with EINTR */
#define FIBER_FEATURE_SEEDED	  (1ULL << 17)	/* fiber_config.seed: the run can be had again */
#define FIBER_FEATURE_COLD	  (1ULL << 18)	/* fiber_config.cold_ns: stacks go to swap */
uint64_t fiber_features(void);
/* A printable line: backend, processors, what is weaker and why. Static. */
const char *fiber_backend(void);

/* ---- fibers ---- */

/*
 * struct fiber_attr - properties of a new fiber; zero means the default
 * @size: sizeof(struct fiber_attr)
 * @name: copied, at most 15 bytes are kept
 * @stack_size: usable bytes at least; 0: fiber_config.stack_size. Rounded up to
 *              the next of some sizes: 2, 4, 8 KiB, then 6.2 KiB less than 16,
 *              32, 64, 128 KiB and so on (where 64 is the default size), which
 *              is what it takes of the address space: to ask for 64 KiB costs
 *              128. Memory is committed by the page, when it is touched. Frames
 *              larger than a page can jump over the guard page unless compiled
 *              with -fstack-clash-protection (as fiber.pc says). The three
 *              smallest have no guard page: an overflow is found at the next
 *              switch, when it has done its harm. Link with -Wl,-z,now for
 *              them: the first call of a function by the dynamic linker needs
 *              more stack than 2 KiB
 * @stack:      the caller's own memory of stack_size bytes, 512 at least, in
 *              place of the library's; without a guard page too. It is the
 *              caller's again when fiber_join has returned: such a fiber cannot
 *              be detached from the start (-EINVAL). Started from a fiber it
 *              becomes ready and does not run at once
 * @sched_class: FIBER_NORMAL, FIBER_LATENCY: see fiber_set_class
 * @flags:      FIBER_ATTR_TIMES: see fiber_times; FIBER_ATTR_LOCK: it begins as if
 *              it called fiber_thread_lock; FIBER_ATTR_CPU, with that: and
 *              fiber_thread_pin(cpu). Such fibers become ready and do not run at
 *              once
 * @cpu:        with FIBER_ATTR_CPU
 * @pool:       the pool whose processors run it, see fiber_pool_create; NULL: that of
 *              the spawning fiber, of a plain thread the default one;
 *              FIBER_POOL_DEFAULT: the default one. In another pool than the spawning
 *              fiber's it becomes ready, and does not run at once
 */
struct fiber_attr {
	size_t size;
	const char *name;
	size_t stack_size;
	void *stack;
	unsigned int sched_class;
	unsigned int flags;
	unsigned int cpu;
	fiber_pool_t *pool;
};
#define FIBER_ATTR_TIMES	1
#define FIBER_ATTR_LOCK		2
#define FIBER_ATTR_CPU		4

/* Classes of fibers. */
#define FIBER_NORMAL	0
#define FIBER_LATENCY	1

/*
 * fiber_spawn - start fn(arg) as a new fiber
 * @out:  receives the fiber, to be given to fiber_join or fiber_detach exactly
 *        once (a second time aborts the program, with a line on stderr, until
 *        its memory is another fiber's); NULL: detached from the start
 * @attr: may be NULL
 * Any thread (a plain thread needs fiber_init). From a fiber the child runs at
 * once and the caller's continuation becomes ready (it may move to another
 * processor). *out is written when fiber_spawn returns in the caller, so the
 * child may have run, or ended, before: it finds itself by fiber_self(), never
 * in *out. fn ends by returning or by fiber_exit, never by pthread_exit, which
 * would end the thread that other fibers need, and ends the program.
 * Errors, *out is then as it was: -ENOMEM. -EINVAL: fn is NULL, or a value of
 * attr. -EPERM: no runtime. -EAGAIN, -EOPNOTSUPP: as fiber_thread_lock.
 */
int fiber_spawn(fiber_t **out, void *(*fn)(void *), void *arg);
int fiber_spawn_attr(fiber_t **out, const struct fiber_attr *attr,
		     void *(*fn)(void *), void *arg);

/*
 * fiber_join - wait until f ended; *result (may be NULL) is what it returned
 * Any thread; a plain thread sleeps in the kernel. Ends the life of f, unless
 * an error is returned: then f is to be joined or detached still.
 * Errors: -EDEADLK: f is the caller. -EINVAL: f is NULL. -ECANCELED: the caller
 * is cancelled; f may have ended. -ETIMEDOUT: the deadline, CLOCK_MONOTONIC in
 * ns, has come (0: do not wait, this is no cancellation point). -EPERM: in the
 * child of a fork.
 */
int fiber_join(fiber_t *f, void **result);
int fiber_join_until(fiber_t *f, void **result, uint64_t deadline);
/*
 * fiber_detach - nobody will join f; it is freed when it ends. Any thread.
 * Errors: -EINVAL: f is NULL. -EPERM: in the child of a fork.
 */
int fiber_detach(fiber_t *f);
/* fiber_exit - end the calling fiber with this result. Elsewhere: abort. */
void fiber_exit(void *result) __attribute__((noreturn));

/* fiber_yield - let other ready fibers run first. No effect elsewhere. */
void fiber_yield(void);
/*
 * fiber_yield_to - yield, and f runs next, if it is ready and waits for its turn
 * on the same processor (among the next 256); it gets the rest of the quantum.
 * @f: not joined or detached yet, so that it is there; may have ended
 * -EAGAIN: it is not there, or it is time for others: then this was fiber_yield.
 * Fiber only (-EPERM). Errors: -EINVAL (f is NULL or the caller).
 */
int fiber_yield_to(fiber_t *f);
/*
 * fiber_set_class - the class of the calling fiber from now on: FIBER_NORMAL or
 * FIBER_LATENCY
 * Those of the latency class, when they become ready, run before all others of
 * their processor. They preempt nobody, and after a fiber_yield they wait their
 * turn. While others are ready, they get at most 8 of 9 turns on a processor.
 * Returns the class it had. Fiber only (-EPERM). Errors: -EINVAL.
 */
int fiber_set_class(unsigned int sched_class);
/*
 * fiber_thread_lock - the calling fiber keeps its thread, and has it alone, until it
 * has called fiber_thread_unlock as often, or ends
 * For libraries whose state belongs to a thread (OpenGL contexts, credentials,
 * namespaces, signal masks). It may park, block, yield and spawn as ever: another
 * thread runs the others meanwhile. Its own switches cost as much as those of threads.
 * What it leaves in the thread stays there for others when it ends or unlocks it.
 * Fiber only. Errors: -EPERM (no fiber), -EAGAIN: so many are locked that, of
 * fiber_config.max_carriers threads, not one for each processor would be left;
 * -EOPNOTSUPP: there is a seed (fiber_seed(7)), so one thread runs all fibers; of
 * unlock -EINVAL: it is not locked.
 */
int fiber_thread_lock(void);
int fiber_thread_unlock(void);
/*
 * fiber_thread_pin - the thread that the calling fiber is locked to runs on this CPU
 * alone, until the last fiber_thread_unlock; -1: on all it could before
 * Errors: -EPERM (not locked), -ENOMEM, -EINVAL: no CPU that this process may use.
 */
int fiber_thread_pin(int cpu);
/*
 * fiber_sleep - park for at least ns nanoseconds; fiber_sleep_until: until
 * CLOCK_MONOTONIC reads deadline. A plain thread sleeps in the kernel.
 * Errors: -ECANCELED: the calling fiber is cancelled; it may be too early.
 */
int fiber_sleep(uint64_t ns);
int fiber_sleep_until(uint64_t deadline);
/* fiber_now - CLOCK_MONOTONIC in ns; with a seed, in fibers, a clock of its own */
uint64_t fiber_now(void);

fiber_t *fiber_self(void);		/* NULL outside fibers */
/* Unique in a run, no order; of NULL: 0. */
uint64_t fiber_id(const fiber_t *f);
/*
 * Names: at most 15 bytes are kept. The pointer lives as long as f; of NULL: "".
 * Errors: -EINVAL: f is NULL.
 */
const char *fiber_name(const fiber_t *f);
int fiber_set_name(fiber_t *f, const char *name);

/* ---- how a fiber spent its time ---- */

/*
 * struct fiber_times - of one fiber, since it was started, in nanoseconds
 * @size:       in: sizeof(struct fiber_times)
 * @run_ns:     it ran: CPU time of its threads
 * @ready_ns:   it waited for a processor
 * @parked_ns:  it waited for something, in a call of this library
 * @blocked_ns: it had its turn, but no CPU: it was in a system call or page fault
 *              that waits, waited for a processor after that, or the kernel ran
 *              something else there
 */
struct fiber_times {
	size_t size;
	uint64_t run_ns, ready_ns, parked_ns, blocked_ns;
};
/*
 * fiber_times - how f, started with FIBER_ATTR_TIMES, spent its time so far
 * f must not be joined or detached yet, or be the caller; it may have ended. Of one
 * that runs elsewhere, the turn it has is not in it yet. Counting costs such a
 * fiber four looks at clocks for each time it stops and goes on. Any thread.
 * Errors: -EINVAL, -EOPNOTSUPP (it was started without).
 */
int fiber_times(const fiber_t *f, struct fiber_times *t);

/* ---- how much stack fibers use ---- */

/*
 * struct fiber_stack - the stack of one fiber, in bytes
 * @size:    in: sizeof(struct fiber_stack)
 * @low:     lowest usable byte
 * @bytes:   usable from there up
 * @used:    now, by the caller itself or by a fiber that is parked; 0: not known
 * @deepest: the most used so far; with FIBER_STACK_MARKS=1 in the environment
 *           by this fiber, else perhaps by one that had the stack before
 */
struct fiber_stack {
	size_t size;
	void *low;
	size_t bytes, used, deepest;
};
/* Any thread; f must not be joined or detached yet. Errors: -EINVAL. */
int fiber_stack_info(const fiber_t *f, struct fiber_stack *st);

/*
 * struct fiber_stack_mark - of the fibers of one entry function that have ended
 * and were joined or detached; not of those on a stack of the program's own
 * @fn:         the function; of fibers of scopes it is the library's own
 * @ended:      how many
 * @deepest:    the most stack that one used, bytes
 * @stack_size: what the last of them could use, bytes
 */
struct fiber_stack_mark {
	void *(*fn)(void *);
	uint64_t ended;
	size_t deepest, stack_size;
};
/*
 * fiber_stack_marks - up to max of them into marks[]; returns how many there
 * are (at most 768 are kept). Needs FIBER_STACK_MARKS=1 in the environment,
 * which makes spawns slower. Any thread. Errors: -EOPNOTSUPP (it was not set),
 * -EINVAL, -EPERM (no runtime).
 */
int fiber_stack_marks(struct fiber_stack_mark *marks, int max);

/* ---- critical sections and blocking ---- */

/*
 * Between begin and end (they nest) the fiber is not preempted and keeps its
 * processor even if it blocks: for spinlocks of the program. Fiber only; no
 * effect elsewhere. Must not park, yield or spawn inside.
 */
void fiber_no_preempt_begin(void);
void fiber_no_preempt_end(void);

/*
 * Around a call known to block for long: the user backend then hands the
 * processor on soon instead of guessing. Never needed, never harmful, and free
 * with the kernel backend. Must not park inside.
 */
void fiber_blocking_begin(void);
void fiber_blocking_end(void);

/*
 * fiber_preemptible - code of the loaded object that contains addr may be
 * preempted (the main program may from the start; libc, ld.so, the vdso and
 * libfiber never). Any thread. Errors: -EPERM: no runtime. -ENOENT: no object
 * contains it. -ENOSPC: too many. -EINVAL: an object that must not be.
 */
int fiber_preemptible(const void *addr);

/* ---- counters ---- */

/*
 * struct fiber_stats - of the runtime, since it was started
 * @size:        in: sizeof(struct fiber_stats)
 * @spawned, @ended: fibers of the program
 * @switches:    from one fiber to another, on all processors
 * @steals:      times a processor took fibers from the queue of another
 * @handoffs:    times a fiber was blocked and its processor was handed on
 * @preemptions: turns that were ended because the quantum was used up
 * @returns:     times a fiber came back from a block without its processor
 * @processors:  fibers that may run at once: see fiber_set_processors
 * @carriers:    threads there are for fibers now
 * @spares:      of them, those that wait for a processor to be handed to them
 * @idle:        processors that run no fiber now, and could
 * @retired:     processors that run no fiber, because of fiber_set_processors
 */
struct fiber_stats {
	size_t size;		/* in: sizeof(struct fiber_stats) */
	uint64_t spawned, ended;
	uint64_t switches, steals;
	uint64_t handoffs, preemptions, returns;
	uint32_t processors, carriers, spares, idle;
	uint32_t retired, reserved;
};
/*
 * fiber_get_stats - a snapshot, not consistent. Any thread.
 * Errors: -EINVAL, -EPERM (no runtime).
 */
int fiber_get_stats(struct fiber_stats *st);
/*
 * fiber_set_processors - let n fibers run at once from now on, but no more than
 * fiber_config.max_processors; 0: as many as the CPUs that the process may use
 *
 * With 0, or if nobody ever said a number, it follows the CPUs: the affinity (of the
 * thread that started the runtime, then; later that of the thread "fiber-keeper",
 * which `taskset -a` and cpusets change as all others) and cpu.max of the cgroup are
 * looked at about once in a second while fibers run. An idle program does not wake for
 * it. A number ends that.
 * With fewer, the fibers that run on those that are given up go on elsewhere when they
 * park or yield, or when their quantum is over: fiber_stats.retired tells how many are
 * given up by now. Of several callers the last one's number holds.
 * Any thread. Errors: -EINVAL, -ENOMEM, -EPERM (no runtime).
 */
int fiber_set_processors(unsigned int n);

#include "fiber/chan.h"
#include "fiber/scope.h"
#include "fiber/local.h"
#include "fiber/sync.h"
#include "fiber/task.h"
#include "fiber/timer.h"
#include "fiber/signal.h"
#include "fiber/coro.h"
#include "fiber/debug.h"
#include "fiber/io.h"
#include "fiber/file.h"
#include "fiber/stream.h"

#ifdef __cplusplus
}
#endif
#endif /* FIBER_H */
