// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * ring_make.c - to make the ring of ring.c, or to find that it cannot be had
 *
 * Workers. The kernel makes them as they are wanted, and where it can make none
 * (RLIMIT_NPROC, pids.max) what is queued waits without an end, seen on Linux 6.18:
 * nobody hears of it. But of each kind it keeps the last one, however long that is
 * idle. So one of each is made here, by a call that has nothing to wait for, and a
 * ring that gets none is not used. From then on calls are made, one after the other
 * at the worst, as where no more carriers can be made.
 *
 *	bounded		calls on files, and all that have no file
 *	unbound		reads and writes of what is neither file nor disk
 */
#include "ring.h"
#include "sys.h"

#ifdef FB_URING
#include <liburing.h>
#include <string.h>

#define ENTRIES		64		/* submitted at a time; no limit of what runs */
#define KINDS		2		/* of workers */
#define MOST_S		10		/* for the first of each */

/* What the ring must know to do. */
static bool knows_all(struct io_uring *ring)
{
	static const int ops[] = {
		IORING_OP_READ, IORING_OP_WRITE, IORING_OP_FSYNC,
		IORING_OP_OPENAT, IORING_OP_STATX, IORING_OP_ASYNC_CANCEL,
	};
	struct io_uring_probe *p = io_uring_get_probe_ring(ring);
	bool all = p;

	for (size_t i = 0; all && i < sizeof(ops) / sizeof(ops[0]); i++)
		all = io_uring_opcode_supported(p, ops[i]);
	if (p)
		io_uring_free_probe(p);
	return all;
}

/* Out of the way of low numbers. */
static void move_up(struct io_uring *ring)
{
	int fd = fb_os_high(ring->ring_fd);

	ring->ring_fd = ring->enter_ring_fd = fd;
}

/* Nobody but we enter the ring: say so, where that is known (Linux 6.1). */
static int set_up(struct io_uring *ring, unsigned int *features)
{
	struct io_uring_params p = {
		.flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN,
	};
	int e = io_uring_queue_init_params(ENTRIES, ring, &p);

	if (e == -EINVAL) {
		memset(&p, 0, sizeof(p));
		e = io_uring_queue_init_params(ENTRIES, ring, &p);
	}
	*features = p.features;
	return e;
}

/* A write that the ring's own read of the eventfd will take for a kick. */
static int employ(struct io_uring *ring, int kick)
{
	static const uint64_t one = 1;
	struct __kernel_timespec most = { .tv_sec = MOST_S };
	struct io_uring_sqe *s = io_uring_get_sqe(ring);
	struct io_uring_cqe *cqe;
	int e;

	io_uring_prep_nop(s);
	io_uring_sqe_set_flags(s, IOSQE_ASYNC);
	s = io_uring_get_sqe(ring);
	io_uring_prep_write(s, kick, &one, sizeof(one), 0);
	io_uring_sqe_set_flags(s, IOSQE_ASYNC);
	e = io_uring_submit(ring);
	while (e >= 0 && io_uring_cq_ready(ring) < KINDS) {
		e = io_uring_wait_cqes(ring, &cqe, KINDS, &most, NULL);
		if (e == -EINTR)
			e = 0;
	}
	if (e < 0)
		return e;
	io_uring_cq_advance(ring, KINDS);
	return 0;
}

/*
 * As many workers as carriers, or calls that wait for each other (both ends of a
 * FIFO) could be too many for each other. No room in what completes is no loss
 * (NODROP), and to wait for so long takes no request (EXT_ARG).
 */
int fb_ring_make(struct io_uring *ring, int kick)
{
	unsigned int workers[2] = { fb_rt.group.max_carriers,
				    fb_rt.group.max_carriers };
	unsigned int features;
	int e = set_up(ring, &features);

	if (e)
		return e;
	move_up(ring);
	if (~features & (IORING_FEAT_NODROP | IORING_FEAT_EXT_ARG) ||
	    !knows_all(ring))
		e = -EOPNOTSUPP;
	if (!e)
		e = io_uring_register_iowq_max_workers(ring, workers);
	if (!e)
		e = io_uring_ring_dontfork(ring);
	if (!e)
		e = employ(ring, kick);
	if (e)
		io_uring_queue_exit(ring);
	return e;
}
#endif
