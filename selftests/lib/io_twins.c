// SPDX-License-Identifier: GPL-2.0-only
/*
 * Each call of fiber/io.h beside its plain twin, in the same situation: the same
 * result, the same bytes, the same left over.
 */
#include "common.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>

/* Wrong arguments are what it is about. */
#ifndef __clang__
#pragma GCC diagnostic ignored "-Wstringop-overflow"
#pragma GCC diagnostic ignored "-Wstringop-overread"
#endif

enum { BUF = 4096, SMALL = 2304 };

/* Where a twin works: s[0] is what it is called for. */
struct place {
	int s[4];
	char buf[BUF] __attribute__((aligned(8))), more[BUF];
	struct iovec iov[3];
	struct sockaddr_storage addr;
	socklen_t len;
	struct msghdr msg;
	struct pollfd p[2];
};

/* ---- situations ---- */

static void nothing(struct place *e)
{
	(void)e;
}

static void bad_fd(struct place *e)
{
	e->s[0] = 9999;
}

static void pipe_empty(struct place *e)
{
	check_eq(0, pipe(e->s));
}

static void fill(int fd, size_t n)
{
	char b[BUF];

	memset(b, 'x', sizeof(b));
	b[0] = 'a';
	check_eq((long)n, write(fd, b, n));
}

static void pipe_10(struct place *e)
{
	pipe_empty(e);
	fill(e->s[1], 10);
}

static void pipe_eof(struct place *e)
{
	pipe_empty(e);
	close(e->s[1]);
	e->s[1] = -1;
}

static void swap(struct place *e)
{
	int t = e->s[0];

	e->s[0] = e->s[1];
	e->s[1] = t;
}

static void pipe_to(struct place *e)
{
	pipe_empty(e);
	swap(e);
}

static void pipe_broken(struct place *e)
{
	pipe_to(e);
	close(e->s[1]);
	e->s[1] = -1;
}

static void nonblock(int fd)
{
	check_eq(0, fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK));
}

static void pipe_empty_nonblock(struct place *e)
{
	pipe_empty(e);
	nonblock(e->s[0]);
}

static void until_full(int fd)
{
	char b[BUF] = { 0 };
	int flags = fcntl(fd, F_GETFL);

	nonblock(fd);
	while (write(fd, b, sizeof(b)) > 0)
		;
	check_eq(0, fcntl(fd, F_SETFL, flags));
}

static void pipe_full_nonblock(struct place *e)
{
	pipe_to(e);
	until_full(e->s[0]);
	nonblock(e->s[0]);
}

static void pair_of(struct place *e, int type)
{
	check_eq(0, socketpair(AF_UNIX, type, 0, e->s));
}

static void pair(struct place *e)
{
	pair_of(e, SOCK_STREAM);
}

static void pair_10(struct place *e)
{
	pair(e);
	fill(e->s[1], 10);
}

static void pair_10_eof(struct place *e)
{
	pair_10(e);
	close(e->s[1]);
	e->s[1] = -1;
}

static void pair_eof(struct place *e)
{
	pair(e);
	close(e->s[1]);
	e->s[1] = -1;
}

static void pair_nonblock(struct place *e)
{
	pair(e);
	nonblock(e->s[0]);
}

static void timeo(int fd, int which)
{
	struct timeval tv = { .tv_usec = 2000 };

	check_eq(0, setsockopt(fd, SOL_SOCKET, which, &tv, sizeof(tv)));
}

static void pair_timeo(struct place *e)
{
	pair(e);
	timeo(e->s[0], SO_RCVTIMEO);
}

static void pair_10_timeo(struct place *e)
{
	pair_10(e);
	timeo(e->s[0], SO_RCVTIMEO);
}

static void pair_full_timeo(struct place *e)
{
	pair(e);
	until_full(e->s[0]);
	timeo(e->s[0], SO_SNDTIMEO);
}

static void pair_full_nonblock(struct place *e)
{
	pair(e);
	until_full(e->s[0]);
	nonblock(e->s[0]);
}

static void packets(struct place *e)
{
	pair_of(e, SOCK_SEQPACKET);
	fill(e->s[1], 10);
	fill(e->s[1], 7);
}

static void packets_to(struct place *e)
{
	pair_of(e, SOCK_DGRAM);
}

static int bound(int type, struct place *e)
{
	struct sockaddr_in a = { .sin_family = AF_INET };
	int fd = socket(AF_INET, type, 0);

	a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	check_eq(0, bind(fd, (void *)&a, sizeof(a)));
	e->len = sizeof(e->addr);
	check_eq(0, getsockname(fd, (void *)&e->addr, &e->len));
	return fd;
}

static void udp(struct place *e)
{
	e->s[1] = bound(SOCK_DGRAM, e);
	e->s[0] = bound(SOCK_DGRAM, e);
}

static void udp_10(struct place *e)
{
	udp(e);
	check_eq(10, sendto(e->s[1], "0123456789", 10, 0, (void *)&e->addr,
			    e->len));
	memset(&e->addr, 0, sizeof(e->addr));
}

static void udp_refused(struct place *e)
{
	udp(e);
	close(e->s[0]);
	e->s[0] = e->s[1];
	e->s[1] = -1;
	check_eq(0, connect(e->s[0], (void *)&e->addr, e->len));
	check_eq(1, send(e->s[0], "x", 1, 0));
}

static void tcp_alone(struct place *e)
{
	e->s[0] = socket(AF_INET, SOCK_STREAM, 0);
}

static void listener(struct place *e)
{
	e->s[0] = bound(SOCK_STREAM, e);
	check_eq(0, listen(e->s[0], 5));
}

static void listener_nonblock(struct place *e)
{
	listener(e);
	nonblock(e->s[0]);
}

static void listener_timeo(struct place *e)
{
	listener(e);
	timeo(e->s[0], SO_RCVTIMEO);
}

static void connecting(struct place *e)
{
	listener(e);
	e->s[1] = socket(AF_INET, SOCK_STREAM, 0);
	check_eq(0, connect(e->s[1], (void *)&e->addr, e->len));
}

static void to_listener(struct place *e)
{
	listener(e);
	e->s[1] = socket(AF_INET, SOCK_STREAM, 0);
	swap(e);
}

static void to_nobody(struct place *e)
{
	e->s[1] = bound(SOCK_STREAM, e);	/* listens not */
	e->s[0] = socket(AF_INET, SOCK_STREAM, 0);
}

static void connected(struct place *e)
{
	to_listener(e);
	check_eq(0, connect(e->s[0], (void *)&e->addr, e->len));
}

static void unix_to_full(struct place *e)
{
	struct sockaddr_un *a = (void *)&e->addr;
	static int n;

	a->sun_family = AF_UNIX;
	a->sun_path[0] = 0;
	e->len = (socklen_t)(sizeof(a->sun_family) + 1 +
		 (size_t)snprintf(a->sun_path + 1, 50, "fiber-io-%d-%d",
				  getpid(), ++n));
	e->s[1] = socket(AF_UNIX, SOCK_STREAM, 0);
	check_eq(0, bind(e->s[1], (void *)a, e->len));
	check_eq(0, listen(e->s[1], 0));
	e->s[2] = socket(AF_UNIX, SOCK_STREAM, 0);
	check_eq(0, connect(e->s[2], (void *)a, e->len));
	e->s[0] = socket(AF_UNIX, SOCK_STREAM, 0);
	timeo(e->s[0], SO_SNDTIMEO);
}

static void file_100(struct place *e)
{
	char name[] = "/tmp/fiber-io-XXXXXX";

	e->s[0] = mkstemp(name);
	check(e->s[0] >= 0);
	unlink(name);
	fill(e->s[0], 100);
	check_eq(0, lseek(e->s[0], 0, SEEK_SET));
}

static void file_end(struct place *e)
{
	file_100(e);
	check_eq(100, lseek(e->s[0], 0, SEEK_END));
}

static void folder(struct place *e)
{
	e->s[0] = open("/", O_RDONLY | O_DIRECTORY);
}

static void null(struct place *e)
{
	e->s[0] = open("/dev/null", O_RDWR);
}

static void full(struct place *e)
{
	e->s[0] = open("/dev/full", O_RDWR);
}

static void event_3(struct place *e)
{
	e->s[0] = eventfd(3, 0);
}

static void event_0_nonblock(struct place *e)
{
	e->s[0] = eventfd(0, EFD_NONBLOCK);
}

/* ---- from s[0] to s[2], whose other end is s[1] ---- */

static void to_pipe(struct place *e)
{
	int q[2];

	check_eq(0, pipe(q));
	e->s[1] = q[0];
	e->s[2] = q[1];
}

static void to_pair(struct place *e)
{
	int q[2];

	check_eq(0, socketpair(AF_UNIX, SOCK_STREAM, 0, q));
	e->s[1] = q[0];
	e->s[2] = q[1];
}

static void to_nowhere(struct place *e)
{
	close(e->s[1]);
	e->s[1] = -1;
}

static void from_pipe(struct place *e, size_t n)
{
	int q[2];

	check_eq(0, pipe(q));
	e->s[0] = q[0];
	e->s[3] = q[1];
	if (n)
		fill(e->s[3], n);
}

static void from_pair(struct place *e, size_t n)
{
	int q[2];

	check_eq(0, socketpair(AF_UNIX, SOCK_STREAM, 0, q));
	e->s[0] = q[0];
	e->s[3] = q[1];
	if (n)
		fill(e->s[3], n);
	else
		shutdown(e->s[3], SHUT_WR);
}

#define WAY(name, from, to) \
static void name(struct place *e) { from; to(e); }
WAY(pipe_10_pipe, from_pipe(e, 10), to_pipe)
WAY(pipe_10_pair, from_pipe(e, 10), to_pair)
WAY(pipe_0_pipe, from_pipe(e, 0), to_pipe)
WAY(pair_10_pipe, from_pair(e, 10), to_pipe)
WAY(pair_10_pair, from_pair(e, 10), to_pair)
WAY(pair_eof_pipe, from_pair(e, 0), to_pipe)
WAY(file_pipe, file_100(e), to_pipe)
WAY(file_pair, file_100(e), to_pair)
WAY(file_file, (file_100(e), e->s[2] = e->s[0]), file_100)
WAY(folder_pair, folder(e), to_pair)
#define LIKE(name, like, and) \
static void name(struct place *e) { like(e); and; }
LIKE(pipe_eof_pipe, pipe_0_pipe, (close(e->s[3]), e->s[3] = -1))
LIKE(pipe_0_pipe_in_nb, pipe_0_pipe, nonblock(e->s[0]))
LIKE(pipe_0_pipe_out_nb, pipe_0_pipe, nonblock(e->s[2]))
LIKE(pipe_10_pipe_full_nb, pipe_10_pipe, (until_full(e->s[2]), nonblock(e->s[2])))
LIKE(pipe_10_pipe_full, pipe_10_pipe, until_full(e->s[2]))
LIKE(pipe_10_pipe_broken, pipe_10_pipe, to_nowhere(e))
LIKE(pipe_10_pair_broken, pipe_10_pair, to_nowhere(e))
LIKE(pipe_10_pair_full_nb, pipe_10_pair, (until_full(e->s[2]), nonblock(e->s[2])))
LIKE(pipe_10_pair_full_timeo, pipe_10_pair, (until_full(e->s[2]), timeo(e->s[2], SO_SNDTIMEO)))
LIKE(pipe_0_append, pipe_0_pipe, check_eq(0, fcntl(e->s[2], F_SETFL, O_APPEND | O_WRONLY)))
LIKE(pair_pipe_nb, pair_10_pipe, (fill(e->s[3], 1), read(e->s[0], e->buf, 11), nonblock(e->s[0])))
LIKE(pair_pipe_timeo, pair_10_pipe, (read(e->s[0], e->buf, 10), timeo(e->s[0], SO_RCVTIMEO)))
LIKE(file_pair_full_nb, file_pair, (until_full(e->s[2]), nonblock(e->s[2])))
LIKE(file_pair_full_timeo, file_pair, (until_full(e->s[2]), timeo(e->s[2], SO_SNDTIMEO)))
LIKE(file_pair_broken, file_pair, to_nowhere(e))
LIKE(file_pipe_full_nb, file_pipe, (until_full(e->s[2]), nonblock(e->s[2])))

static void pipe_10_file(struct place *e)
{
	file_100(e);
	e->s[2] = dup(e->s[0]);
	e->s[1] = e->s[0];
	from_pipe(e, 10);
}

/* ---- twins ---- */

static void vectors(struct place *e)
{
	e->iov[0] = (struct iovec){ e->buf, 3 };
	e->iov[1] = (struct iovec){ e->buf + 3, 0 };
	e->iov[2] = (struct iovec){ e->buf + 3, 20 };
}

static void message(struct place *e)
{
	vectors(e);
	e->msg = (struct msghdr){ .msg_iov = e->iov, .msg_iovlen = 3 };
}

static long plain(long r)
{
	return r < 0 ? -errno : r;
}

struct twin {
	const char *name;
	void (*make)(struct place *e);
	long (*plain)(struct place *e);
	long (*ours)(struct place *e);
	bool opens;			/* a new descriptor is the result */
};

#define TWIN(id, situation, call, ...)					\
static long id##_plain(struct place *e)				\
{									\
	return plain(call(__VA_ARGS__));				\
}									\
static long id##_ours(struct place *e)					\
{									\
	return fiber_##call(__VA_ARGS__);				\
}
/* Compilers would warn of them. */
static char *volatile nowhere = (char *)8;
static volatile int minus_one = -1, too_many = 1025;

#define B e->buf
#define S e->s[0]
#define T e->s[2]
#define OFFSET(at) (*(off_t *)B = (at), (off_t *)B)
#define A ((struct sockaddr *)&e->addr)
#define L (&e->len)
#define accept(fd, a, l) accept4(fd, a, l, 0)
#define fiber_accept4 fiber_accept
#define poll2(n) poll(e->p, n, 3)
#define fiber_poll2(n) ({						\
	int r_ = fiber_poll_until(e->p, n, fiber_now() + 3 * MS);	\
	r_ == -ETIMEDOUT ? 0 : r_; })

#define ALL(X) \
X(read_bad, bad_fd, read, S, B, 4) \
X(read_negative, nothing, read, -1, B, 4) \
X(read_less, pipe_10, read, S, B, 4) \
X(read_more, pipe_10, read, S, B, 40) \
X(read_none, pipe_10, read, S, B, 0) \
X(read_none_of_none, pipe_empty, read, S, B, 0) \
X(read_none_socket, pair, read, S, B, 0) \
X(read_eof, pipe_eof, read, S, B, 4) \
X(read_again, pipe_empty_nonblock, read, S, B, 4) \
X(read_wrong_end, pipe_to, read, S, B, 4) \
X(read_fault, pipe_10, read, S, nowhere, 4) \
X(read_fault_socket, pair_10, read, S, nowhere, 4) \
X(read_pair, pair_10, read, S, B, 40) \
X(read_pair_eof, pair_eof, read, S, B, 40) \
X(read_pair_again, pair_nonblock, read, S, B, 40) \
X(read_timeo, pair_timeo, read, S, B, 40) \
X(read_timeo_ready, pair_10_timeo, read, S, B, 40) \
X(read_packet, packets, read, S, B, 4) \
X(read_unconnected, tcp_alone, read, S, B, 4) \
X(read_listener, listener, read, S, B, 4) \
X(read_refused, udp_refused, read, S, B, 4) \
X(read_file, file_100, read, S, B, 4) \
X(read_file_all, file_100, read, S, B, 400) \
X(read_file_end, file_end, read, S, B, 4) \
X(read_folder, folder, read, S, B, 4) \
X(read_folder_none, folder, read, S, B, 0) \
X(read_null, null, read, S, B, 4) \
X(read_event, event_3, read, S, B, 8) \
X(read_event_short, event_3, read, S, B, 4) \
X(read_event_again, event_0_nonblock, read, S, B, 8) \
X(readv_some, pipe_10, readv, S, (vectors(e), e->iov), 3) \
X(readv_pair, pair_10, readv, S, (vectors(e), e->iov), 3) \
X(readv_none, pipe_10, readv, S, e->iov, 0) \
X(readv_too_many, pipe_10, readv, S, e->iov, too_many) \
X(readv_negative, pipe_10, readv, S, e->iov, minus_one) \
X(write_bad, bad_fd, write, S, B, 4) \
X(write_pipe, pipe_to, write, S, B, 4) \
X(write_none, pipe_to, write, S, B, 0) \
X(write_wrong_end, pipe_empty, write, S, B, 4) \
X(write_broken, pipe_broken, write, S, B, 4) \
X(write_broken_none, pipe_broken, write, S, B, 0) \
X(write_full, pipe_full_nonblock, write, S, B, 4) \
X(write_fault, pipe_to, write, S, nowhere, 4) \
X(write_pair, pair, write, S, B, 100) \
X(write_pair_broken, pair_eof, write, S, B, 4) \
X(write_pair_full, pair_full_nonblock, write, S, B, 4) \
X(write_timeo, pair_full_timeo, write, S, B, 4) \
X(write_packet_none, packets_to, write, S, B, 0) \
X(write_unconnected, tcp_alone, write, S, B, 4) \
X(write_file, file_100, write, S, B, 40) \
X(write_null, null, write, S, B, 4000) \
X(write_device_full, full, write, S, B, 40) \
X(write_event, event_3, write, S, "\1\0\0\0\0\0\0", 8) \
X(write_event_short, event_3, write, S, B, 4) \
X(writev_some, pipe_to, writev, S, (vectors(e), e->iov), 3) \
X(writev_pair, pair, writev, S, (vectors(e), e->iov), 3) \
X(writev_none, packets_to, writev, S, e->iov, 0) \
X(writev_negative, pair, writev, S, e->iov, minus_one) \
X(recv_no_socket, pipe_10, recv, S, B, 4, 0) \
X(recv_some, pair_10, recv, S, B, 4, 0) \
X(recv_peek, pair_10, recv, S, B, 4, MSG_PEEK) \
X(recv_peek_all, pair_10, recv, S, B, 9, MSG_PEEK | MSG_WAITALL) \
X(recv_all, pair_10, recv, S, B, 10, MSG_WAITALL) \
X(recv_all_eof, pair_10_eof, recv, S, B, 40, MSG_WAITALL) \
X(recv_all_timeo, pair_10_timeo, recv, S, B, 40, MSG_WAITALL) \
X(recv_all_packet, packets, recv, S, B, 40, MSG_WAITALL) \
X(recv_dontwait, pair, recv, S, B, 4, MSG_DONTWAIT) \
X(recv_oob, connected, recv, S, B, 4, MSG_OOB) \
X(recv_errors, udp, recv, S, B, 4, MSG_ERRQUEUE) \
X(recv_timeo, pair_timeo, recv, S, B, 40, 0) \
X(recv_packet_trunc, packets, recv, S, B, 4, MSG_TRUNC) \
X(recvfrom_udp, udp_10, recvfrom, S, B, 40, 0, A, L) \
X(recvfrom_short, udp_10, recvfrom, S, B, 4, 0, A, (e->len = 5, L)) \
X(recvfrom_again, pair_nonblock, recvfrom, S, B, 4, 0, A, L) \
X(recvmsg_some, packets, recvmsg, S, (message(e), &e->msg), 0) \
X(recvmsg_again, pair_nonblock, recvmsg, S, (message(e), &e->msg), 0) \
X(send_some, pair, send, S, B, 9, 0) \
X(send_broken, pair_eof, send, S, B, 9, 0) \
X(send_no_socket, pipe_to, send, S, B, 9, 0) \
X(send_full, pair_full_nonblock, send, S, B, 9, 0) \
X(send_dontwait, pair_full_timeo, send, S, B, 9, MSG_DONTWAIT) \
X(send_timeo, pair_full_timeo, send, S, B, 9, 0) \
X(send_too_long, udp, send, S, B, 100000, 0) \
X(sendto_udp, udp, sendto, e->s[1], B, 9, 0, A, e->len) \
X(sendto_none, udp, sendto, e->s[1], B, 0, 0, A, e->len) \
X(sendto_stream, pair, sendto, S, B, 9, 0, A, 0) \
X(sendmsg_some, pair, sendmsg, S, (message(e), &e->msg), 0) \
X(sendmsg_packet, packets_to, sendmsg, S, (message(e), &e->msg), 0) \
X(shutdown_read, pair, shutdown, S, SHUT_RD) \
X(shutdown_bad, pair, shutdown, S, 77) \
X(shutdown_alone, tcp_alone, shutdown, S, SHUT_WR) \
X(connect_tcp, to_listener, connect, S, A, e->len) \
X(connect_refused, to_nobody, connect, S, A, e->len) \
X(connect_again, connected, connect, S, A, e->len) \
X(connect_short, to_listener, connect, S, A, 1) \
X(connect_no_socket, pipe_empty, connect, S, A, 16) \
X(connect_udp, udp, connect, S, A, e->len) \
X(connect_full, unix_to_full, connect, S, A, e->len) \
X(poll_one, pipe_10, poll2, (e->p[0] = (struct pollfd){ S, POLLIN, 0 }, 1)) \
X(poll_late, pipe_empty, poll2, (e->p[0] = (struct pollfd){ S, POLLIN, 0 }, 1)) \
X(poll_bad, bad_fd, poll2, (e->p[0] = (struct pollfd){ S, POLLIN, 0 }, 1)) \
X(poll_none, nothing, poll2, 0) \
X(poll_ignored, nothing, poll2, (e->p[0] = (struct pollfd){ -1, POLLIN, 0 }, 1)) \
X(poll_hup, pipe_eof, poll2, (e->p[0] = (struct pollfd){ S, 0, 0 }, 1)) \
X(poll_two, pair_10, poll2, (e->p[0] = (struct pollfd){ S, POLLIN | POLLOUT, 0 }, \
			     e->p[1] = (struct pollfd){ e->s[1], POLLIN, 0 }, 2)) \
X(pread_some, file_100, pread, S, B, 4, 10) \
X(pread_more, file_100, pread, S, B, 400, 10) \
X(pread_end, file_100, pread, S, B, 4, 100) \
X(pread_none, file_100, pread, S, B, 0, 10) \
X(pread_negative, file_100, pread, S, B, 4, -1) \
X(pread_fault, file_100, pread, S, nowhere, 4, 0) \
X(pread_bad, bad_fd, pread, S, B, 4, 0) \
X(pread_pipe, pipe_10, pread, S, B, 4, 0) \
X(pread_pair, pair_10, pread, S, B, 4, 0) \
X(pread_folder, folder, pread, S, B, 4, 0) \
X(pread_null, null, pread, S, B, 4, 7) \
X(pread_full, full, pread, S, B, 4, 7) \
X(pwrite_some, file_100, pwrite, S, B, 40, 90) \
X(pwrite_hole, file_100, pwrite, S, B, 4, 5000) \
X(pwrite_none, file_100, pwrite, S, B, 0, 5000) \
X(pwrite_negative, file_100, pwrite, S, B, 4, -1) \
X(pwrite_fault, file_100, pwrite, S, nowhere, 4, 0) \
X(pwrite_read_only, folder, pwrite, S, B, 4, 0) \
X(pwrite_pipe, pipe_to, pwrite, S, B, 4, 0) \
X(pwrite_full, full, pwrite, S, B, 4, 0) \
X(splice_pipes, pipe_10_pipe, splice, S, NULL, T, NULL, 40, 0) \
X(splice_some, pipe_10_pipe, splice, S, NULL, T, NULL, 4, SPLICE_F_MOVE) \
X(splice_none, pipe_0_pipe, splice, S, NULL, T, NULL, 0, 0) \
X(splice_eof, pipe_eof_pipe, splice, S, NULL, T, NULL, 4, 0) \
X(splice_in_again, pipe_0_pipe_in_nb, splice, S, NULL, T, NULL, 4, 0) \
X(splice_out_again, pipe_0_pipe_out_nb, splice, S, NULL, T, NULL, 4, 0) \
X(splice_flag_again, pipe_0_pipe, splice, S, NULL, T, NULL, 4, SPLICE_F_NONBLOCK) \
X(splice_full_again, pipe_10_pipe_full_nb, splice, S, NULL, T, NULL, 4, 0) \
X(splice_full_flag, pipe_10_pipe_full, splice, S, NULL, T, NULL, 4, SPLICE_F_NONBLOCK) \
X(splice_broken, pipe_10_pipe_broken, splice, S, NULL, T, NULL, 4, 0) \
X(splice_to_socket, pipe_10_pair, splice, S, NULL, T, NULL, 40, 0) \
X(splice_to_broken, pipe_10_pair_broken, splice, S, NULL, T, NULL, 40, 0) \
X(splice_to_full, pipe_10_pair_full_nb, splice, S, NULL, T, NULL, 40, 0) \
X(splice_to_full_timeo, pipe_10_pair_full_timeo, splice, S, NULL, T, NULL, 40, 0) \
X(splice_from_socket, pair_10_pipe, splice, S, NULL, T, NULL, 40, 0) \
X(splice_from_eof, pair_eof_pipe, splice, S, NULL, T, NULL, 40, 0) \
X(splice_from_again, pair_pipe_nb, splice, S, NULL, T, NULL, 40, 0) \
X(splice_from_timeo, pair_pipe_timeo, splice, S, NULL, T, NULL, 40, 0) \
X(splice_from_file, file_pipe, splice, S, NULL, T, NULL, 40, 0) \
X(splice_from_file_at, file_pipe, splice, S, OFFSET(90), T, NULL, 40, 0) \
X(splice_from_file_end, file_pipe, splice, S, OFFSET(100), T, NULL, 40, 0) \
X(splice_to_file, pipe_10_file, splice, S, NULL, T, NULL, 40, 0) \
X(splice_to_file_at, pipe_10_file, splice, S, NULL, T, OFFSET(200), 40, 0) \
X(splice_no_pipe, pair_10_pair, splice, S, NULL, T, NULL, 4, 0) \
X(splice_bad_flags, pipe_0_pipe, splice, S, NULL, T, NULL, 4, 0x100) \
X(splice_bad_in, bad_fd, splice, S, NULL, 1, NULL, 4, 0) \
X(splice_bad_out, pipe_10, splice, S, NULL, 9999, NULL, 4, 0) \
X(splice_wrong_end, pipe_0_pipe, splice, e->s[3], NULL, T, NULL, 4, 0) \
X(splice_pipe_offset, pipe_0_pipe, splice, S, OFFSET(0), T, NULL, 4, 0) \
X(splice_append, pipe_0_append, splice, S, NULL, T, NULL, 4, SPLICE_F_NONBLOCK) \
X(splice_itself, pipe_10, splice, S, NULL, e->s[1], NULL, 4, 0) \
X(sendfile_socket, file_pair, sendfile, T, S, NULL, 40) \
X(sendfile_at, file_pair, sendfile, T, S, OFFSET(90), 40) \
X(sendfile_end, file_pair, sendfile, T, S, OFFSET(100), 40) \
X(sendfile_none, file_pair, sendfile, T, S, NULL, 0) \
X(sendfile_pipe, file_pipe, sendfile, T, S, NULL, 400) \
X(sendfile_file, file_file, sendfile, T, S, NULL, 400) \
X(sendfile_broken, file_pair_broken, sendfile, T, S, NULL, 40) \
X(sendfile_to_full, file_pair_full_nb, sendfile, T, S, NULL, 40) \
X(sendfile_to_full_timeo, file_pair_full_timeo, sendfile, T, S, NULL, 40) \
X(sendfile_pipe_full, file_pipe_full_nb, sendfile, T, S, NULL, 40) \
X(sendfile_of_socket, pair_10_pair, sendfile, T, S, NULL, 4) \
X(sendfile_of_folder, folder_pair, sendfile, T, S, NULL, 4) \
X(sendfile_bad, bad_fd, sendfile, 1, S, NULL, 4) \
X(sendfile_bad_out, file_100, sendfile, 9999, S, NULL, 4) \
X(sendfile_wrong_end, file_pipe, sendfile, e->s[1], S, NULL, 4) \
X(sendfile_negative, file_pair, sendfile, T, S, OFFSET(-1), 4) \
X(fsync_file, file_100, fsync, S) \
X(fsync_pipe, pipe_to, fsync, S) \
X(fsync_bad, bad_fd, fsync, S) \
X(fdatasync_file, file_100, fdatasync, S) \
X(fdatasync_pipe, pipe_to, fdatasync, S) \
X(statx_null, nothing, statx, AT_FDCWD, "/dev/null", 0, STATX_MODE, (void *)B) \
X(statx_open, null, statx, S, "", AT_EMPTY_PATH, STATX_MODE, (void *)B) \
X(statx_empty, null, statx, S, "", 0, STATX_MODE, (void *)B) \
X(statx_missing, nothing, statx, AT_FDCWD, "/none", 0, 0, (void *)B) \
X(statx_flags, nothing, statx, AT_FDCWD, "/", minus_one, 0, (void *)B) \
X(statx_no_folder, null, statx, S, "x", 0, 0, (void *)B) \
X(wait_none, nothing, waitpid, -1, NULL, 0) \
X(wait_other, nothing, waitpid, 1, NULL, 0) \
X(wait_options, nothing, waitpid, -1, NULL, 0x100000) \
X(wait_now, nothing, waitpid, -1, NULL, WNOHANG) \
X(close_bad, bad_fd, close, S) \
X(close_negative, nothing, close, -1)

#define OPENS(X) \
X(open_null, nothing, open, "/dev/null", O_RDWR, 0) \
X(open_cloexec, nothing, open, "/", O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0) \
X(open_missing, nothing, open, "/none", O_RDONLY, 0) \
X(open_empty, nothing, open, "", O_RDONLY, 0) \
X(open_no_path, nothing, open, nowhere, O_RDONLY, 0) \
X(open_existing, nothing, open, "/dev/null", O_RDWR | O_CREAT | O_EXCL, 0600) \
X(open_folder, nothing, open, "/", O_RDWR, 0) \
X(open_no_folder, nothing, open, "/dev/null", O_DIRECTORY, 0) \
X(open_at, folder, openat, S, "dev/null", O_RDONLY | O_NONBLOCK, 0) \
X(open_at_bad, bad_fd, openat, S, "dev/null", O_RDONLY, 0) \
X(open_at_pipe, pipe_10, openat, S, "dev/null", O_RDONLY, 0) \
X(accept_one, connecting, accept4, S, A, L, 0) \
X(accept_cloexec, connecting, accept4, S, A, L, SOCK_CLOEXEC | SOCK_NONBLOCK) \
X(accept_no_addr, connecting, accept4, S, NULL, NULL, 0) \
X(accept_flags, connecting, accept4, S, A, L, 77) \
X(accept_again, listener_nonblock, accept4, S, A, L, 0) \
X(accept_timeo, listener_timeo, accept4, S, A, L, 0) \
X(accept_bad, bad_fd, accept4, S, A, L, 0) \
X(accept_no_socket, pipe_empty, accept4, S, A, L, 0) \
X(accept_udp, udp, accept4, S, A, L, 0) \
X(accept_deaf, to_nobody, accept4, e->s[1], A, L, 0)

ALL(TWIN)
OPENS(TWIN)

#define ROW(id, situation, ...) { #id, situation, id##_plain, id##_ours, false },
#define ROW_OPENS(id, situation, ...) { #id, situation, id##_plain, id##_ours, true },

static const struct twin twins[] = { ALL(ROW) OPENS(ROW_OPENS) };

/* ---- compare ---- */

struct outcome {
	long r;
	char buf[BUF];
	int left[2], fd_flags, file_flags, revents[2];
	socklen_t len;
	int family, msg_flags;
};

static int bytes_left(int fd)
{
	int n = -1;

	if (fd < 0 || ioctl(fd, FIONREAD, &n))
		return -1;
	return n;
}

static void let_go(struct place *e)
{
	for (int i = 0; i < 4; i++)
		if (e->s[i] >= 0 && e->s[i] != 9999)
			close(e->s[i]);
}

static void play(const struct twin *t, long (*fn)(struct place *e),
		 struct outcome *o)
{
	static struct place e;		/* a fiber's stack is small */

	memset(&e, 0, sizeof(e));
	memset(e.buf, 'b', sizeof(e.buf));
	memset(e.s, -1, sizeof(e.s));
	memset(o, 0, sizeof(*o));
	t->make(&e);
	o->r = fn(&e);
	memcpy(o->buf, e.buf, BUF);
	o->left[0] = bytes_left(e.s[0]);
	o->left[1] = bytes_left(e.s[1]);
	o->len = e.len;
	o->family = e.addr.ss_family;
	o->msg_flags = e.msg.msg_flags;
	o->revents[0] = e.p[0].revents;
	o->revents[1] = e.p[1].revents;
	if (e.s[0] >= 0)
		o->file_flags = fcntl(e.s[0], F_GETFL);
	if (t->opens && o->r >= 0) {
		o->fd_flags = fcntl((int)o->r, F_GETFD);
		o->file_flags = fcntl((int)o->r, F_GETFL);
		close((int)o->r);
		o->r = 0;
	}
	let_go(&e);
}

static const char *at = "-";

static void says_where(int sig)
{
	dprintf(STDERR_FILENO, "# %s does not end\n", at);
	_exit(1 + sig);
}

/* Linux before 6.5 gives a Unix socket a page more than it has room for. */
static bool too_much(const struct twin *t, long plain, long ours)
{
	return strstr(t->name, "_to_full") && plain > 0 && ours == -EAGAIN;
}

static void *compare(void *arg)
{
	static struct outcome plain, ours;

	signal(SIGALRM, says_where);
	for (size_t i = 0; i < sizeof(twins) / sizeof(twins[0]); i++) {
		at = twins[i].name;
		alarm(20);
		signal(SIGPIPE, SIG_IGN);
		do {	/* EINTR: SIGURG of the user backend */
			play(&twins[i], twins[i].plain, &plain);
		} while (plain.r == -EINTR);
		signal(SIGPIPE, SIG_DFL);
		play(&twins[i], twins[i].ours, &ours);
		if (too_much(&twins[i], plain.r, ours.r))
			continue;
		if (plain.r != ours.r)
			failed(__FILE__, __LINE__, "%s: %ld, not %ld",
			       twins[i].name, ours.r, plain.r);
		else if (memcmp(&plain, &ours, sizeof(plain)))
			failed(__FILE__, __LINE__, "%s: something differs: left %d %d, %d %d; len %u %u; flags %x %x; family %d %d; revents %x %x",
			       twins[i].name, plain.left[0], plain.left[1],
			       ours.left[0], ours.left[1], plain.len, ours.len,
			       plain.file_flags, ours.file_flags, plain.family,
			       ours.family, plain.revents[0], ours.revents[0]);
	}
	alarm(0);
	return arg;
}

FIXTURE(twin) {};
FIXTURE_SETUP(twin) {}
FIXTURE_TEARDOWN(twin) {}
FIXTURE_VARIANT(twin) {
	const char *io;
	unsigned int processors;
};
FIXTURE_VARIANT_ADD(twin, epoll) { "epoll", 1 };
FIXTURE_VARIANT_ADD(twin, plain) { "plain", 1 };
FIXTURE_VARIANT_ADD(twin, uring_two) { "uring", 2 };
FIXTURE_VARIANT_ADD(twin, thread) { "epoll", 0 };

TEST_F(twin, does_what_the_plain_call_does)
{
	setenv("FIBER_IO", variant->io, 1);
	if (variant->processors) {
		ASSERT_EQ(0, with_runtime(variant->processors, 0, compare, NULL));
	} else {
		compare(NULL);
	}
	EXPECT_EQ(0, failures);
}

TEST_HARNESS_MAIN
