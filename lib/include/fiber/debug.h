/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * fiber/debug.h - see every fiber of this process; included by <fiber.h>
 */
#ifndef FIBER_DEBUG_H
#define FIBER_DEBUG_H

#include <stddef.h>
#include <stdint.h>

#include "pool.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
	FIBER_NEW,		/* has not run yet */
	FIBER_READY,		/* could run; waits for a processor */
	FIBER_RUNNING,
	FIBER_PARKED,		/* waits in user space */
	FIBER_BLOCKED,		/* its thread waits in the kernel */
};

/*
 * struct fiber_info - a look at one fiber
 * @size:     sizeof(struct fiber_info) of the library
 * @library:  1: a fiber of the library itself, which calls a timer's function
 * @state:    FIBER_NEW ...; @state_name: the same as a word, static
 * @why:      what a parked fiber waits for, a word ("mutex"); else "". Static
 * @for_ns:   how long it is parked, in ns, to 4 ms, or less: the clock is read
 *            every 61 switches of a processor, and when it becomes idle
 * @stack_used, @stack_bytes: now (0: not known, as it runs), and all there is
 * @entry:    the function it was started with
 * @sp, @bp, @ip: registers that a fiber goes on with which is not RUNNING or
 *            BLOCKED; else NULL
 * @tid:      thread that a fiber runs on, or is blocked in; else 0
 * @locked_tid: thread that it is locked to (fiber_thread_lock); else 0
 * @object:   the mutex or rwlock that it waits for, or the fiber that it joins; else
 *            NULL
 * @owner:    the id of the fiber that has it (of a rwlock: for writing), or is joined;
 *            0: not known; FIBER_OWNER_THREAD: a plain thread has it
 * @owner_name: the name of that fiber
 * @pool:     the pool that it belongs to, as fiber_pool_self() says it
 * @pool_name: the name of that; "" for the default pool
 */
#define FIBER_OWNER_THREAD	UINT64_MAX
struct fiber_info {
	size_t size;
	uint64_t id;
	char name[16];
	uint32_t library;
	uint32_t state;
	const char *state_name;
	const char *why;
	uint64_t for_ns;
	size_t stack_used, stack_bytes;
	void *(*entry)(void *);
	void *sp, *bp, *ip;
	int tid;
	int locked_tid;
	const void *object;
	uint64_t owner;
	char owner_name[16];
	fiber_pool_t *pool;
	char pool_name[16];
};

/*
 * fiber_walk - call fn(info, arg) for every fiber that is alive
 *
 * Nothing is stopped. A fiber that is alive from beginning to end is seen exactly
 * once; one that starts or ends meanwhile may be seen or not. What is said of a
 * fiber was true a moment ago, but perhaps not all of it at the same moment.
 * *info is fn's until it returns; fn returns 0 to go on, and else what fiber_walk
 * is to return. fn may call this library.
 * Any thread. Errors: -EINVAL, -ENOMEM, -EPERM (no runtime).
 */
int fiber_walk(int (*fn)(const struct fiber_info *info, void *arg), void *arg);

/*
 * fiber_dump - write all fibers to fd, as text: id, name, state, what each waits for
 * and for how long, how much stack it uses, what it was started with, its callers
 *
 * Any thread, in a signal handler too; a caller needs some 4 KiB of stack. The
 * callers are wrong, or few, where a fiber ran on meanwhile or was compiled without
 * unwind tables. No object must be unloaded (dlclose) meanwhile.
 * FIBER_DUMP_SIGNAL=QUIT in the environment makes a signal do it, to stderr.
 * Errors: -EBUSY (a dump is being written), -EPERM (no runtime, or it starts or
 * stops), -ENOMEM, or that of write(2).
 */
int fiber_dump(int fd);

#define FIBER_CONTENTION_FRAMES	32
/*
 * struct fiber_contention - a place where fibers and plain threads waited
 * @what:     for what: "mutex", "send" ..., as fiber_info.why; of the one place where
 *            all are counted that found no room among the others, ""
 * @count:    how often
 * @total_ns: how long in all, from when one parked until it went on
 * @max_ns:   the longest
 * @frames:   how many of frame[] there are
 * @frame:    return addresses, from the call that waited outwards
 */
struct fiber_contention {
	const char *what;
	uint64_t count, total_ns, max_ns;
	uint32_t frames, reserved;
	void *frame[FIBER_CONTENTION_FRAMES];
};
/*
 * fiber_contention - up to max of them into places[], the longest total first;
 * returns how many there are (at most 3073 are kept). Needs FIBER_CONTENTION in the
 * environment, which makes each wait slower. Waits for time and for descriptors are
 * not counted. Any thread. Errors: -EOPNOTSUPP (it was not set), -EINVAL, -EPERM (no
 * runtime).
 */
int fiber_contention(struct fiber_contention *places, int max);

#ifdef __cplusplus
}
#endif
#endif /* FIBER_DEBUG_H */
