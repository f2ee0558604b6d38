// SPDX-License-Identifier: GPL-2.0-only
/*
 * hazard_io_uring.c - a carrier waits in a ring: the wait loop of the kernel runs
 * task work, so it may block several times for one wait
 */
#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "harness.h"

static unsigned int stop;

#define RING	8

static struct {
	int fd, pipe[2];
	uint8_t *sq, *cq;
	struct io_uring_params p;
	struct io_uring_sqe *sqe;
} ring;

static bool open_ring(void)
{
	ring.fd = syscall(SYS_io_uring_setup, RING, &ring.p);
	if (ring.fd < 0)
		return false;
	ring.sq = mmap(NULL, 1 << 14, PROT_READ | PROT_WRITE, MAP_SHARED,
		       ring.fd, IORING_OFF_SQ_RING);
	ring.cq = mmap(NULL, 1 << 14, PROT_READ | PROT_WRITE, MAP_SHARED,
		       ring.fd, IORING_OFF_CQ_RING);
	ring.sqe = mmap(NULL, RING * sizeof(*ring.sqe), PROT_READ | PROT_WRITE,
			MAP_SHARED, ring.fd, IORING_OFF_SQES);
	return ring.sq != MAP_FAILED && ring.cq != MAP_FAILED &&
	       ring.sqe != MAP_FAILED;
}

static uint32_t *word(uint8_t *ring_base, uint32_t offset)
{
	return (uint32_t *)(ring_base + offset);
}

/* One read, and wait for its end. What the read returned, or -errno. */
static int ring_read(int fd, void *to, unsigned int size)
{
	uint32_t *tail = word(ring.sq, ring.p.sq_off.tail), head;
	uint32_t i = *tail & (ring.p.sq_entries - 1);
	struct io_uring_cqe *cqe;
	int r;

	memset(&ring.sqe[i], 0, sizeof(ring.sqe[i]));
	ring.sqe[i].opcode = IORING_OP_READ;
	ring.sqe[i].fd = fd;
	ring.sqe[i].addr = (uintptr_t)to;
	ring.sqe[i].len = size;
	word(ring.sq, ring.p.sq_off.array)[i] = i;
	__atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
	r = syscall(SYS_io_uring_enter, ring.fd, 1, 1, IORING_ENTER_GETEVENTS,
		    NULL, 0);
	if (r < 0)
		return -errno;
	head = *word(ring.cq, ring.p.cq_off.head);
	if (head == __atomic_load_n(word(ring.cq, ring.p.cq_off.tail),
				    __ATOMIC_ACQUIRE))
		return -EAGAIN;
	cqe = (struct io_uring_cqe *)(ring.cq + ring.p.cq_off.cqes) +
		(head & (ring.p.cq_entries - 1));
	r = cqe->res;
	__atomic_store_n(word(ring.cq, ring.p.cq_off.head), head + 1,
			 __ATOMIC_RELEASE);
	return r;
}

static void *feed(void *arg)
{
	while (!LOAD(stop)) {
		raw_sleep(3000);
		(void)!write(ring.pipe[1], "u", 1);
	}
	return NULL;
}

static unsigned int taken;

static void *spare(void *arg)
{
	uint32_t flags = FIBER_WAIT_SPARE;

	if (raw_attach())
		return NULL;
	while (!raw_wait(flags, 0, NULL)) {
		ADD(taken, 1);
		raw_exclude();
		raw_leave();
		raw_sleep(500);
		flags = FIBER_WAIT_SPARE | FIBER_WAIT_GIVE | FIBER_WAIT_SURE;
	}
	return NULL;
}

TEST(io_uring_waits)
{
	unsigned int i;
	pthread_t t;
	char c;

	START(0);
	if (!open_ring())
		SKIP(return, "no io_uring: %s", strerror(errno));
	ASSERT_EQ(0, pipe(ring.pipe));
	raw_thread(spare, NULL);
	ASSERT_TRUE(RAW_UNTIL(raw_info->spares == 1));
	t = raw_thread(feed, NULL);
	ASSERT_EQ(0, raw_attach());
	ASSERT_EQ(0, raw_own(FIBER_WAIT_READY));
	raw_takeover(FIBER_TAKEOVER_READY);
	raw_enter();
	for (i = 0; i < 20; i++) {
		c = 0;
		EXPECT_EQ(1, ring_read(ring.pipe[0], &c, 1));
		raw_exclude();
		EXPECT_EQ('u', c);
	}
	raw_leave();
	STORE(stop, 1);
	pthread_join(t, NULL);
	TH_LOG("20 waits, %lu handoffs, taken over %u times",
	       (unsigned long)raw_page->handoffs, LOAD(taken));
	EXPECT_LE(1, raw_page->handoffs);
	EXPECT_LE(1, LOAD(taken));
	EXPECT_EQ(0, raw_acquire_errors);
	EXPECT_EXCLUSIVE();
}

TEST_HARNESS_MAIN
