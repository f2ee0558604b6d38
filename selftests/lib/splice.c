// SPDX-License-Identifier: GPL-2.0-only
/*
 * Bytes moved by splice and sendfile through what is too small for them, while the
 * other end is slow; and how such a call is ended. What each call says otherwise:
 * io_twins.
 */
#include "common.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

enum { MUCH = 3000000 };

FIXTURE(splice) {};
FIXTURE_VARIANT(splice) {
	const char *io;
	unsigned int processors;
};
FIXTURE_SETUP(splice)
{
	setenv("FIBER_IO", variant->io, 1);
}
FIXTURE_TEARDOWN(splice) {}
FIXTURE_VARIANT_ADD(splice, epoll) { "epoll", 1 };
FIXTURE_VARIANT_ADD(splice, plain) { "plain", 2 };

#define RUN(fn, arg) \
	ASSERT_EQ(0, with_runtime(variant->processors, 0, fn, arg)); \
	EXPECT_EQ(0, failures)

static char letter(size_t i)
{
	return (char)(i * 31 + (i >> 12));
}

static int file_of(size_t n)
{
	int fd = fileno(tmpfile());
	char *b = malloc(n);

	for (size_t i = 0; i < n; i++)
		b[i] = letter(i);
	check_eq((long)n, pwrite(fd, b, n, 0));
	free(b);
	return fd;
}

/* A connection; what it keeps on its way is small. */
static void tcp_of(int s[2])
{
	struct sockaddr_in a = { .sin_family = AF_INET };
	socklen_t len = sizeof(a);
	int fd, size = 16384, on = 1;

	a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	fd = fiber_listen((void *)&a, sizeof(a), 0);
	check_eq(0, getsockname(fd, (void *)&a, &len));
	s[0] = socket(AF_INET, SOCK_STREAM, 0);
	check_eq(0, setsockopt(s[0], SOL_SOCKET, SO_SNDBUF, &size, sizeof(size)));
	check_eq(0, setsockopt(s[0], IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)));
	check_eq(0, fiber_connect(s[0], (void *)&a, len));
	s[1] = fiber_accept(fd, NULL, NULL, SOCK_CLOEXEC);
	check_eq(0, fiber_close(fd));
}

static void pair_of(int s[2])
{
	check_eq(0, socketpair(AF_UNIX, SOCK_STREAM, 0, s));
}

/* All of it comes out of fd, in pieces of odd size. */
static void *reads_all(void *arg)
{
	int fd = (int)(long)arg;
	static char b[7001];
	size_t at = 0;
	ssize_t n;

	while ((n = fiber_read(fd, b, sizeof(b))) > 0)
		for (ssize_t i = 0; i < n; i++, at++)
			if (b[i] != letter(at)) {
				check_eq(letter(at), b[i]);
				return NULL;
			}
	check_eq(0, n);
	check_eq(MUCH, at);
	return NULL;
}

/* From in to out by way of a pipe, as a proxy does, until the end. */
struct relay {
	int in, out;
};

static void *relays(void *arg)
{
	struct relay *r = arg;
	ssize_t n, some, all = 0;
	int p[2];

	check_eq(0, pipe(p));
	while ((n = fiber_splice(r->in, NULL, p[1], NULL, 1 << 20, 0)) > 0)
		for (all += n; n > 0; n -= some) {
			some = fiber_splice(p[0], NULL, r->out, NULL, (size_t)n,
					    0);
			check(some > 0);
			if (some <= 0)
				return NULL;
		}
	check_eq(0, n);
	check_eq(MUCH, all);
	check_eq(0, fiber_shutdown(r->out, SHUT_WR));
	close_both(p);
	return NULL;
}

static void *moves(void *arg)
{
	void (*make)(int s[2]) = arg ? tcp_of : pair_of;
	int a[2], b[2], file = file_of(MUCH);
	struct relay r;
	fiber_t *f[2];
	off_t at = 0;

	make(a);
	make(b);
	r = (struct relay){ a[1], b[0] };
	f[0] = spawn(relays, &r);
	f[1] = spawn(reads_all, (void *)(long)b[1]);
	check_eq(MUCH, fiber_sendfile(a[0], file, &at, MUCH + 10));
	check_eq(MUCH, at);
	check_eq(0, fiber_sendfile(a[0], file, &at, 10));
	check_eq(0, fiber_shutdown(a[0], SHUT_WR));
	join(f[0]);
	join(f[1]);
	close_both(a);
	close_both(b);
	check_eq(0, fiber_close(file));
	return NULL;
}

TEST_F(splice, moves_all_by_tcp)
{
	RUN(moves, (void *)1);
}

TEST_F(splice, moves_all_by_unix_sockets)
{
	RUN(moves, NULL);
}

/* ---- one that does not read ---- */

static int file;

static void *sends_until_closed(void *arg)
{
	int *s = arg;
	ssize_t n = fiber_sendfile(s[0], file, NULL, MUCH);

	check(n > 0 && n < MUCH);
	check_eq(-EBADF, fiber_sendfile(s[0], file, NULL, MUCH));
	return NULL;
}

static int splices_for_ever(void *arg)
{
	int *s = arg, p[2];
	ssize_t n;

	check_eq(0, pipe(p));
	do
		n = fiber_splice(s[1], NULL, p[1], NULL, 100, 0);
	while (n > 0);
	close_both(p);
	return (int)n;
}

static void *splices_until_closed(void *arg)
{
	struct relay *r = arg;
	ssize_t n;

	do
		n = fiber_splice(r->in, NULL, r->out, NULL, 100, 0);
	while (n > 0);
	check_eq(-EBADF, n);
	return NULL;
}

static void *ends(void *arg)
{
	uint64_t t = fiber_now() + 3 * MS;
	fiber_scope_t scope;
	off_t at = 0;
	struct relay r;
	fiber_t *f;
	int s[2], p[2];
	char b[5];
	ssize_t n;

	file = file_of(MUCH);
	(arg ? tcp_of : pair_of)(s);
	/* A deadline: what was moved counts, then nothing is. */
	n = fiber_sendfile_until(s[0], file, &at, MUCH, t);
	check(n > 0 && n < MUCH);
	check_eq(n, at);
	check(fiber_now() >= t);
	while ((n = fiber_sendfile_until(s[0], file, &at, MUCH, t)) > 0)
		;			/* the other end has taken some in */
	check_eq(-ETIMEDOUT, n);
	check_eq(-ETIMEDOUT, fiber_splice_until(s[0], NULL, s[0], NULL, 1, 0, 0) ==
		 -EINVAL ? -ETIMEDOUT : 0);	/* no pipe: it is told at once */
	close_both(s);
	/* A close. */
	(arg ? tcp_of : pair_of)(s);
	f = spawn(sends_until_closed, s);
	n = 0;
	do {				/* it has sent, so it is inside */
		n = recv(s[1], &n, 1, MSG_PEEK | MSG_DONTWAIT);
		check_eq(0, fiber_sleep(MS));
	} while (n != 1);
	check_eq(0, fiber_close(s[0]));
	join(f);
	check_eq(0, fiber_close(s[1]));
	/* A close of the end that it does not wait for. */
	(arg ? tcp_of : pair_of)(s);
	check_eq(0, pipe(p));
	r = (struct relay){ s[1], p[1] };
	f = spawn(splices_until_closed, &r);
	check_eq(5, fiber_write(s[0], "hello", 5));
	check_eq(5, fiber_read(p[0], b, 5));	/* so it waits for more, or will */
	check_eq(0, fiber_close(p[1]));
	join(f);
	check_eq(0, fiber_close(p[0]));
	close_both(s);
	/* A cancel. */
	(arg ? tcp_of : pair_of)(s);
	check_eq(0, fiber_scope_open(&scope, NULL));
	check_eq(0, fiber_scope_spawn(&scope, splices_for_ever, s));
	check_eq(5, fiber_write(s[0], "hello", 5));
	check_eq(0, fiber_sleep(MS));
	fiber_scope_cancel(&scope, 0);
	check_eq(-ECANCELED, fiber_scope_close(&scope));
	close_both(s);
	check_eq(0, fiber_close(file));
	return NULL;
}

TEST_F(splice, is_ended_with_tcp)
{
	RUN(ends, (void *)1);
}

TEST_F(splice, is_ended_with_unix_sockets)
{
	RUN(ends, NULL);
}

TEST_HARNESS_MAIN
