/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * fiber/pool.h - pools: fibers with processors of their own; included by <fiber.h>
 */
#ifndef FIBER_POOL_H
#define FIBER_POOL_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fiber_pool fiber_pool_t;
#define FIBER_POOL_DEFAULT	((fiber_pool_t *)1)

/*
 * A pool is a set of processors. Its fibers run on these and on no others, and no
 * other fiber runs on them: hogs, or fibers that block, in one pool take nothing from
 * another. All else knows no pools: fibers of any, and plain threads, share channels,
 * locks, scopes, timers, futures, descriptors, and join and cancel each other.
 *
 * A fiber belongs to the pool that fiber_attr.pool says; without that, to that of the
 * fiber that spawned it, or, spawned by a plain thread or fiber_run, to the default
 * pool, which is what the runtime starts with. It never changes. A fiber that spawns
 * into another pool goes on at once: the child becomes ready there.
 *
 * The functions of timers (fiber_timer) are called, and tasks (fiber_task) run, in the
 * default pool. fiber_set_processors is about the default pool. With a seed
 * (fiber_seed(7)) pools have no processors of their own: the one that there is runs all
 * fibers.
 */

/*
 * struct fiber_pool_attr - a new pool; zero means the default
 * @size:         sizeof(struct fiber_pool_attr)
 * @processors:   how many of its fibers may run at once; default 1. Those of all pools
 *                together, with fiber_config.max_processors of the default one, are
 *                1024 at most
 * @max_carriers: cap on threads made for its fibers, one for each that is blocked;
 *                default: as in the default pool; at least processors + 1
 * @name:         for people; copied, at most 15 bytes are kept; default: "pool" and a
 *                number
 */
struct fiber_pool_attr {
	size_t size;
	unsigned int processors;
	unsigned int max_carriers;
	const char *name;
};

/*
 * fiber_pool_create - make a pool; returns when it can run fibers
 * @pool: receives it: the caller's, to be given to fiber_pool_destroy, or to be ended
 *        by fiber_fini
 * @attr: may be NULL
 * It costs a thread for each processor and some more that sleep, and with the kernel
 * backend a descriptor. It makes threads: a fiber that calls it needs some 16 KiB of
 * stack, and blocks meanwhile. Any thread.
 * Errors, nothing is left behind then: -EINVAL: pool is NULL, or a value of attr.
 * -EAGAIN: no threads; more than 255 pools; or not so many processors are left.
 * -ENOMEM. -EMFILE, -ENFILE, -EACCES: /dev/fiber cannot be opened once more. -EPERM:
 * no runtime.
 */
int fiber_pool_create(fiber_pool_t **pool, const struct fiber_pool_attr *attr);

/*
 * fiber_pool_destroy - end a pool of which no fiber is alive: its threads and its
 * descriptor. Waits for them. NULL: nothing is done. Any thread, and fibers of other
 * pools.
 * Errors, it goes on then: -EBUSY: fibers of it are alive (who was joined is not; of a
 * detached one only fiber_stats or this call tell). -EINVAL: it is FIBER_POOL_DEFAULT,
 * or no pool. -EPERM: no runtime.
 */
int fiber_pool_destroy(fiber_pool_t *pool);

/*
 * fiber_pool_self - the pool of the calling fiber, FIBER_POOL_DEFAULT if that is the
 * one; NULL outside fibers
 */
fiber_pool_t *fiber_pool_self(void);

#ifdef __cplusplus
}
#endif
#endif /* FIBER_POOL_H */
