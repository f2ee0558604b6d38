// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * uring.c - the rows for io_uring by hand, through liburing
 *
 * echo: one ring; accept and receive are asked for once and complete again and
 * again; what comes is put into buffers of a ring that is shared with the kernel,
 * and sent from there; one system call submits all sends of a pass and waits.
 * pread: one read at a time, submitted and waited for, as one fiber would.
 */
#include <errno.h>
#include <liburing.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../bench.h"

#define ENTRIES	4096
#define BUFFERS	2048		/* a power of two; more than there are clients */
#define SIZE	256
#define GROUP	0

enum { ACCEPT, RECV, SEND };	/* user_data: kind | buffer << 8 | fd << 32 */

static struct io_uring ring;
static struct io_uring_buf_ring *shared;
static char buffer[BUFFERS][SIZE];

static void check(int r, const char *what)
{
	if (r < 0) {
		fprintf(stderr, "%s: %s\n", what, strerror(-r));
		exit(1);
	}
}

static struct io_uring_sqe *next(int kind, int fd, int buf)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);

	if (!sqe) {				/* full: make room */
		check(io_uring_submit(&ring), "io_uring_submit");
		sqe = io_uring_get_sqe(&ring);
	}
	sqe->user_data = (unsigned int)kind | (unsigned int)buf << 8 |
			 (unsigned long long)fd << 32;
	return sqe;
}

/* prep clears user_data in some versions of liburing, not in others. */
#define PREPARE(kind, fd, buf, prep, ...) do {				\
		struct io_uring_sqe *sqe = next(kind, fd, buf);		\
		unsigned long long data = sqe->user_data;		\
		prep(sqe, __VA_ARGS__);					\
		sqe->user_data = data;					\
		if ((kind) == RECV) {					\
			sqe->flags |= IOSQE_BUFFER_SELECT;		\
			sqe->buf_group = GROUP;				\
		}							\
	} while (0)

static void ask_accept(int fd)
{
	PREPARE(ACCEPT, fd, 0, io_uring_prep_multishot_accept, fd, NULL, NULL, 0);
}

static void ask_recv(int fd)
{
	PREPARE(RECV, fd, 0, io_uring_prep_recv_multishot, fd, NULL, 0, 0);
}

static void give_back(int buf)
{
	io_uring_buf_ring_add(shared, buffer[buf], SIZE, (unsigned short)buf,
			      io_uring_buf_ring_mask(BUFFERS), 0);
	io_uring_buf_ring_advance(shared, 1);
}

static void received(int fd, const struct io_uring_cqe *cqe)
{
	int buf = (int)(cqe->flags >> IORING_CQE_BUFFER_SHIFT);

	if (cqe->res > 0)		/* all of it, or an error */
		PREPARE(SEND, fd, buf, io_uring_prep_send, fd, buffer[buf],
			(size_t)cqe->res, MSG_NOSIGNAL | MSG_WAITALL);
	if (cqe->res <= 0 && cqe->res != -ENOBUFS)
		close(fd);
	else if (!(cqe->flags & IORING_CQE_F_MORE))
		ask_recv(fd);
}

static void completed(const struct io_uring_cqe *cqe)
{
	int kind = (int)(cqe->user_data & 255);
	int buf = (int)(cqe->user_data >> 8 & 0xffff);
	int fd = (int)(cqe->user_data >> 32);

	if (kind == RECV) {
		received(fd, cqe);
	} else if (kind == SEND) {
		if (cqe->res < 0)
			shutdown(fd, SHUT_RDWR);	/* its receive ends */
		give_back(buf);
	} else {
		check(cqe->res, "accept");
		ask_recv(cqe->res);
		if (!(cqe->flags & IORING_CQE_F_MORE))
			ask_accept(fd);
	}
}

static void open_ring(void)
{
	struct io_uring_params p = {
		.flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN |
			 IORING_SETUP_CQSIZE,
		.cq_entries = 4 * ENTRIES,
	};

	check(io_uring_queue_init_params(ENTRIES, &ring, &p), "io_uring");
	check(io_uring_register_ring_fd(&ring), "io_uring_register_ring_fd");
}

static void share_buffers(void)
{
	struct io_uring_buf_reg reg = {
		.ring_entries = BUFFERS, .bgid = GROUP,
	};
	void *at;

	if (posix_memalign(&at, 4096, BUFFERS * sizeof(struct io_uring_buf)))
		check(-ENOMEM, "buffers");
	shared = at;
	io_uring_buf_ring_init(shared);
	reg.ring_addr = (unsigned long)at;
	check(io_uring_register_buf_ring(&ring, &reg, 0), "buffers");
	for (int i = 0; i < BUFFERS; i++)
		give_back(i);
}

static void echo(int listener)
{
	struct io_uring_cqe *cqe;
	unsigned int head, n;
	int r;

	open_ring();
	share_buffers();
	ask_accept(listener);
	for (;;) {
		r = io_uring_submit_and_wait(&ring, 1);
		if (r != -EINTR)
			check(r, "io_uring_submit_and_wait");
		n = 0;
		io_uring_for_each_cqe(&ring, head, cqe) {
			completed(cqe);
			n++;
		}
		io_uring_cq_advance(&ring, n);
	}
}

static void preads(long n)
{
	static char page[BENCH_PAGE];
	struct io_uring_sqe *sqe;
	struct io_uring_cqe *cqe;
	unsigned long seed = 1;
	long at;

	if (!ring.ring_fd)
		open_ring();
	while (n--) {
		at = bench_offset(&seed);
		sqe = io_uring_get_sqe(&ring);
		io_uring_prep_read(sqe, bench_file, page, sizeof(page),
				   (unsigned long long)at);
		check(io_uring_submit_and_wait(&ring, 1), "io_uring");
		check(io_uring_wait_cqe(&ring, &cqe), "io_uring");
		bench_page(page, at, cqe->res);
		io_uring_cqe_seen(&ring, cqe);
	}
}

static const struct bench_ops ops = { .echo = echo, .preads = preads };

int main(int argc, char **argv)
{
	return bench_main(argc, argv, &ops);
}
