// SPDX-License-Identifier: GPL-2.0-only
/*
 * Fibers that wait for I/O: woken for what came, by whoever polls, or ended by a
 * deadline, a cancel, a close. Each test by epoll and in blocking calls.
 */
#include "common.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/un.h>
#include <sys/wait.h>

#define LONG_QUANTUM	SEC

FIXTURE(io) {};
FIXTURE_VARIANT(io) {
	const char *io;
	unsigned int processors;
	uint64_t quantum;
};
FIXTURE_SETUP(io)
{
	setenv("FIBER_IO", variant->io, 1);
}
FIXTURE_TEARDOWN(io) {}
FIXTURE_VARIANT_ADD(io, epoll) { "epoll", 1, 0 };
FIXTURE_VARIANT_ADD(io, uring_two) { "uring", 2, 100 * US };
FIXTURE_VARIANT_ADD(io, plain) { "plain", 2, 0 };

#define RUN(fn, arg) \
	ASSERT_EQ(0, with_runtime(variant->processors, variant->quantum, fn, arg)); \
	EXPECT_EQ(0, failures)

/* ---- what is used ---- */

static void pipe_of(int s[2])
{
	check_eq(0, pipe(s));
}

static void pair_of(int s[2])
{
	check_eq(0, socketpair(AF_UNIX, SOCK_STREAM, 0, s));
}

static socklen_t any_address(struct sockaddr_in *a, int fd)
{
	socklen_t n = sizeof(*a);

	*a = (struct sockaddr_in){ .sin_family = AF_INET };
	a->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	check_eq(0, bind(fd, (void *)a, n));
	check_eq(0, getsockname(fd, (void *)a, &n));
	return n;
}

static int listener(struct sockaddr_in *a)
{
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	any_address(a, fd);
	check_eq(0, listen(fd, 100));
	return fd;
}

static void tcp_of(int s[2])
{
	struct sockaddr_in a;
	int fd = listener(&a);

	s[0] = socket(AF_INET, SOCK_STREAM, 0);
	check_eq(0, fiber_connect(s[0], (void *)&a, sizeof(a)));
	s[1] = fiber_accept(fd, NULL, NULL, SOCK_CLOEXEC);
	check(s[1] >= 0);
	check_eq(0, fiber_close(fd));
}

static int bytes_in(int fd)
{
	int n = -1;

	check_eq(0, ioctl(fd, FIONREAD, &n));
	return n;
}

/* ---- ping-pong: every wake-up is needed ---- */

enum { ROUNDS = 400 };

static void *answers(void *arg)
{
	int *s = arg;
	char c;

	for (;;) {
		ssize_t n = fiber_read(s[1], &c, 1);

		if (n != 1) {
			check_eq(0, n);
			return NULL;
		}
		c++;
		check_eq(1, fiber_write(s[1], &c, 1));
	}
}

static void ping_pong(int s[2])
{
	fiber_t *f = spawn(answers, s);
	char c;

	for (int i = 0; i < ROUNDS; i++) {
		c = (char)i;
		check_eq(1, fiber_write(s[0], &c, 1));
		check_eq(1, fiber_read(s[0], &c, 1));
		check_eq((char)(i + 1), c);
	}
	check_eq(0, fiber_shutdown(s[0], SHUT_WR));
	join(f);
	close_both(s);
}

static void *plays(void *arg)
{
	int s[2];

	if (arg)
		tcp_of(s);
	else
		pair_of(s);
	ping_pong(s);
	return NULL;
}

static void *several_play(void *arg)
{
	fiber_t *f[6];

	for (long i = 0; i < 6; i++)
		f[i] = spawn(plays, (void *)(i % 2));
	for (int i = 0; i < 6; i++)
		join(f[i]);
	return arg;
}

TEST_F(io, who_waits_is_woken)
{
	RUN(several_play, NULL);
}

/* ---- a pipe too small for what is written ---- */

enum { MUCH = 1000000 };

struct stream {
	int s[2];
	size_t chunk;
	bool vectors;
};

static char letter(size_t i)
{
	return (char)(i * 31 + (i >> 12));
}

static void *writes_much(void *arg)
{
	struct stream *t = arg;
	char *b = malloc(MUCH);

	for (size_t i = 0; i < MUCH; i++)
		b[i] = letter(i);
	if (t->vectors) {
		struct iovec v[20];

		for (int i = 0; i < 20; i++)
			v[i] = (struct iovec){ b + i * (MUCH / 20), MUCH / 20 };
		check_eq(MUCH, fiber_writev(t->s[1], v, 20));
	} else {
		check_eq(MUCH, fiber_write(t->s[1], b, MUCH));
	}
	check_eq(0, fiber_close(t->s[1]));
	free(b);
	return NULL;
}

static void read_much(struct stream *t)
{
	fiber_t *f = spawn(writes_much, t);
	char *b = malloc(t->chunk);
	size_t at = 0;
	ssize_t n;

	while ((n = fiber_read(t->s[0], b, t->chunk)) > 0)
		for (ssize_t i = 0; i < n; i++, at++)
			if (b[i] != letter(at)) {
				check_eq(letter(at), b[i]);
				n = 0;
			}
	check_eq(0, n);
	check_eq(MUCH, at);
	join(f);
	free(b);
	check_eq(0, fiber_close(t->s[0]));
}

static void *streams(void *arg)
{
	for (int i = 0; i < 6; i++) {
		struct stream t = { .chunk = i % 2 ? 70000 : 1500,
				    .vectors = i >= 3 };

		(i % 3 == 0 ? pipe_of : i % 3 == 1 ? pair_of : tcp_of)(t.s);
		if (i % 3) {		/* they are alike, but read from 0 */
			int x = t.s[0];

			t.s[0] = t.s[1];
			t.s[1] = x;
		}
		read_much(&t);
	}
	return arg;
}

TEST_F(io, all_is_written)
{
	RUN(streams, NULL);
}

static void *sends_in_parts(void *arg)
{
	int *s = arg;

	for (int i = 0; i < 10; i++) {
		check_eq(100, fiber_send(s[1], "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789", 100, 0));
		fiber_yield();
	}
	return NULL;
}

static void *waits_for_all(void *arg)
{
	char b[1000];
	int s[2];
	fiber_t *f;

	tcp_of(s);
	f = spawn(sends_in_parts, s);
	check_eq(1000, fiber_recv(s[0], b, 1000, MSG_WAITALL));
	for (int i = 0; i < 1000; i++)
		check_eq('0' + i % 10, b[i]);
	join(f);
	close_both(s);
	return arg;
}

TEST_F(io, waitall_waits_for_all)
{
	RUN(waits_for_all, NULL);
}

/* ---- deadlines ---- */

static void late(long r, uint64_t deadline)
{
	check_eq(-ETIMEDOUT, r);
	check(fiber_now() >= deadline);
}

static void *deadlines(void *arg)
{
	struct sockaddr_in a;
	struct pollfd p;
	static char b[70000];
	uint64_t t;
	int s[2], q[2], fd = listener(&a);

	pair_of(s);
	pipe_of(q);
	for (int i = 0; i < 2; i++) {
		t = fiber_now() + 2 * MS;
		late(fiber_read_until(s[0], b, 1, t), t);
		late(fiber_recv_until(s[0], b, 1, 0, t), t);
		t = i ? 0 : fiber_now() + 2 * MS;
		late(fiber_read_until(q[0], b, 1, t), t);
		late(fiber_accept_until(fd, NULL, NULL, 0, t), t);
		t = i ? 0 : fiber_now() + 2 * MS;
		p = (struct pollfd){ q[0], POLLIN, 0 };
		late(fiber_poll_until(&p, 1, t), t);
		late(fiber_poll_until(NULL, 0, t), t);
	}
	/* What was moved before counts. */
	t = fiber_now() + 2 * MS;
	check_eq(65536, fiber_write_until(q[1], b, 70000, t));
	check(fiber_now() >= t);
	late(fiber_write_until(q[1], b, 1, t), t);
	check_eq(3, fiber_write(s[1], "abc", 3));
	t = fiber_now() + 2 * MS;
	check_eq(3, fiber_recv_until(s[0], b, 10, MSG_WAITALL, t));
	check(fiber_now() >= t);
	/* What is there is had, however late. */
	check_eq(3, fiber_write_until(s[1], "abc", 3, 0));
	check_eq(3, fiber_read_until(s[0], b, 9, 0));
	close_both(s);
	close_both(q);
	check_eq(0, fiber_close(fd));
	return arg;
}

TEST_F(io, deadlines_are_kept)
{
	RUN(deadlines, NULL);
}

/* ---- cancel ---- */

enum { MANY = 300 };

static atomic_int begun, ended;

static int read_cancelled(void *arg)
{
	int fd = (int)(long)arg;
	char c;

	atomic_fetch_add(&begun, 1);
	check_eq(-ECANCELED, fiber_read(fd, &c, 1));
	check_eq(-ECANCELED, fiber_read(fd, &c, 1));
	atomic_fetch_add(&ended, 1);
	return 0;
}

static int accept_cancelled(void *arg)
{
	struct pollfd p = { (int)(long)arg, POLLIN, 0 };

	atomic_fetch_add(&begun, 1);
	check_eq(-ECANCELED, fiber_accept((int)(long)arg, NULL, NULL, 0));
	check_eq(-ECANCELED, fiber_poll(&p, 1));
	atomic_fetch_add(&ended, 1);
	return 0;
}

static int write_cancelled(void *arg)
{
	static char b[70000];

	atomic_fetch_add(&begun, 1);
	check_eq(65536, fiber_write((int)(long)arg, b, 70000));
	check_eq(-ECANCELED, fiber_write((int)(long)arg, b, 1));
	atomic_fetch_add(&ended, 1);
	return 0;
}

static void *cancels(void *arg)
{
	int many = arg ? MANY : 30, s[2], q[2];
	struct sockaddr_in a;
	long fd = listener(&a);
	fiber_scope_t scope;
	char c;

	pair_of(s);
	pipe_of(q);
	atomic_store(&begun, 0);
	atomic_store(&ended, 0);
	check_eq(0, fiber_scope_open(&scope, NULL));
	for (int i = 0; i < many; i++)
		check_eq(0, fiber_scope_spawn(&scope, read_cancelled,
					      (void *)(long)s[0]));
	check_eq(0, fiber_scope_spawn(&scope, read_cancelled,
				      (void *)(long)q[0]));
	check_eq(0, fiber_scope_spawn(&scope, accept_cancelled, (void *)fd));
	check_eq(0, fiber_scope_spawn(&scope, accept_cancelled, (void *)fd));
	fiber_shield_begin();
	come_to(&begun, many + 3);
	fiber_shield_end();
	fiber_scope_cancel(&scope, -EIO);
	check_eq(-ECANCELED, fiber_read(s[0], &c, 1));
	check_eq(-EIO, fiber_scope_close(&scope));
	check_eq(many + 3, ended);
	/* Nobody took it. */
	check_eq(1, fiber_write(s[1], "x", 1));
	check_eq(1, fiber_read(s[0], &c, 1));
	check_eq(0, fiber_scope_open(&scope, NULL));
	check_eq(0, fiber_scope_spawn(&scope, write_cancelled,
				      (void *)(long)q[1]));
	while (bytes_in(q[0]) < 65536)
		check_eq(0, fiber_sleep(200 * US));
	fiber_scope_cancel(&scope, -EIO);
	check_eq(-EIO, fiber_scope_close(&scope));
	close_both(s);
	close_both(q);
	check_eq(0, fiber_close((int)fd));
	return NULL;
}

TEST_F(io, cancelled_calls_end)
{
	RUN(cancels, strcmp(variant->io, "plain") ? (void *)1 : NULL);
}

/* ---- close ---- */

static void *read_closed(void *arg)
{
	char c = 'n';

	atomic_fetch_add(&begun, 1);
	check_eq(-EBADF, fiber_read((int)(long)arg, &c, 1));
	check_eq('n', c);
	atomic_fetch_add(&ended, 1);
	return NULL;
}

static void *poll_closed(void *arg)
{
	struct pollfd p[2] = { { -1, 0, 0 }, { (int)(long)arg, POLLIN, 0 } };

	atomic_fetch_add(&begun, 1);
	check_eq(1, fiber_poll(p, 2));
	check_eq(POLLNVAL, p[1].revents);
	atomic_fetch_add(&ended, 1);
	return NULL;
}

static void *closes(void *arg)
{
	fiber_t *f[9];
	int s[2];
	char c;

	for (int round = 0; round < 6; round++) {
		atomic_store(&begun, 0);
		atomic_store(&ended, 0);
		(round % 2 ? pair_of : pipe_of)(s);
		for (int i = 0; i < 8; i++)
			f[i] = spawn(read_closed, (void *)(long)s[0]);
		come_to(&begun, 8);
		check_eq(0, fiber_close(s[0]));
		for (int i = 0; i < 8; i++)
			join(f[i]);
		check_eq(8, ended);
		check_eq(0, fiber_close(s[1]));
		check_eq(-EBADF, fiber_close(s[1]));
		check_eq(-EBADF, fiber_read(s[1], &c, 1));
	}
	return arg;
}

TEST_F(io, close_ends_who_waits)
{
	RUN(closes, NULL);
}

/* It has taken a byte: so it is inside, and waits for one more. */
static void *wants_two(void *arg)
{
	char b[2] = "nn";

	check_eq(1, fiber_recv((int)(long)arg, b, 2, MSG_WAITALL));
	check_eq('1', b[0]);
	check_eq('n', b[1]);
	return NULL;
}

/* The number is somebody else's at once, with bytes that are not for them. */
static void *closes_and_reuses(void *arg)
{
	int s[2], q[2];
	fiber_t *f;
	char c;

	for (int round = 0; round < 10; round++) {
		pair_of(s);
		f = spawn(wants_two, (void *)(long)s[0]);
		check_eq(1, write(s[1], "1", 1));
		while (bytes_in(s[0]))
			check_eq(0, fiber_sleep(200 * US));
		check_eq(0, fiber_close(s[0]));
		pair_of(q);
		check_eq(s[0], q[0]);
		check_eq(1, write(q[1], "x", 1));
		join(f);
		check_eq(1, fiber_read(q[0], &c, 1));
		check_eq('x', c);
		check_eq(0, fiber_close(s[1]));
		close_both(q);
	}
	return arg;
}

TEST_F(io, close_spares_the_next_user)
{
	RUN(closes_and_reuses, NULL);
}

static void *closes_polled(void *arg)
{
	fiber_t *f;
	int s[2];

	pipe_of(s);
	atomic_store(&begun, 0);
	f = spawn(poll_closed, (void *)(long)s[0]);
	come_to(&begun, 1);
	check_eq(0, fiber_close(s[0]));
	join(f);
	check_eq(0, fiber_close(s[1]));
	return arg;
}

TEST_F(io, close_ends_who_polls)
{
	RUN(closes_polled, NULL);
}

/* Closed and used again behind the library's back: new waits are none the worse. */
static void *reuses(void *arg)
{
	int s[2], was = -1;
	char c;

	for (int i = 0; i < 20; i++) {
		(i % 2 ? pair_of : pipe_of)(s);
		check(was < 0 || was == s[0]);
		was = s[0];
		check_eq(-ETIMEDOUT, fiber_read_until(s[0], &c, 1,
						      fiber_now() + MS));
		check_eq(1, write(s[1], "x", 1));
		check_eq(1, fiber_read(s[0], &c, 1));
		close(s[0]);
		close(s[1]);
	}
	return arg;
}

TEST_F(io, close_elsewhere_does_no_harm)
{
	RUN(reuses, NULL);
}

/* ---- a receive that waits first: the last ones have found nothing ---- */

/* By the past: it tries, and does not wait. */
#define AT_ONCE		1

static void run_dry(int fd)
{
	char b[8];

	for (int i = 0; i < 4; i++)
		check_eq(-ETIMEDOUT, fiber_recv_until(fd, b, sizeof(b), 0, AT_ONCE));
}

/* Twice, for now and then one tries first all the same. */
static void tells_what_there_is(int s[2])
{
	char b[8];

	for (int i = 0; i < 2; i++) {
		check_eq(1, write(s[0], "x", 1));
		while (!bytes_in(s[1]))
			check_eq(0, fiber_sleep(200 * US));
		check_eq(1, fiber_recv_until(s[1], b, sizeof(b), 0, AT_ONCE));
		check_eq('x', b[0]);
	}
	run_dry(s[1]);
	for (int i = 0; i < 2; i++)
		check_eq(-EAGAIN, fiber_recv(s[1], b, sizeof(b), MSG_DONTWAIT));
}

static void heeds_the_socket(int s[2])
{
	struct timeval tv = { .tv_usec = 2000 };
	char b[8];

	for (int i = 0; i < 2; i++) {
		run_dry(s[1]);
		check_eq(0, setsockopt(s[1], SOL_SOCKET, SO_RCVTIMEO, &tv,
				       sizeof(tv)));
		check_eq(-EAGAIN, fiber_read(s[1], b, sizeof(b)));
		check_eq(-EAGAIN, fiber_recvmsg(s[1], &(struct msghdr){
			.msg_iov = &(struct iovec){ b, sizeof(b) },
			.msg_iovlen = 1 }, 0));
		tv.tv_usec = 0;
		check_eq(0, setsockopt(s[1], SOL_SOCKET, SO_RCVTIMEO, &tv,
				       sizeof(tv)));
		tv.tv_usec = 2000;
	}
	for (int i = 0; i < 2; i++) {
		run_dry(s[1]);
		check_eq(0, fcntl(s[1], F_SETFL, O_NONBLOCK));
		check_eq(-EAGAIN, fiber_read(s[1], b, sizeof(b)));
		check_eq(0, fcntl(s[1], F_SETFL, 0));
	}
}

/* By dup2(2), what never is ready, since it does not receive at all. */
static void meets_another_file(int s[2])
{
	struct sockaddr_in a;
	int fd = listener(&a), q[2];
	char b[8];

	pipe_of(q);
	for (int i = 0; i < 2; i++) {
		run_dry(s[1]);
		check_eq(s[1], dup2(fd, s[1]));
		check_eq(-ENOTCONN, fiber_recv(s[1], b, sizeof(b), 0));
		close_both(s);
		pair_of(s);
		run_dry(s[1]);
		check_eq(s[1], dup2(q[1], s[1]));
		check_eq(-EBADF, fiber_read(s[1], b, sizeof(b)));
		close_both(s);
		tcp_of(s);
	}
	close_both(q);
	check_eq(0, fiber_close(fd));
}

static int recv_cancelled(void *arg)
{
	char b[8];

	atomic_fetch_add(&begun, 1);
	check_eq(-ECANCELED, fiber_recv((int)(long)arg, b, sizeof(b), 0));
	return 0;
}

static void is_ended(int s[2])
{
	fiber_scope_t scope;
	fiber_t *f[2];
	char b[8];

	for (int i = 0; i < 2; i++) {
		run_dry(s[1]);
		atomic_store(&begun, 0);
		check_eq(0, fiber_scope_open(&scope, NULL));
		for (int n = 0; n < 3; n++)
			check_eq(0, fiber_scope_spawn(&scope, recv_cancelled,
						      (void *)(long)s[1]));
		fiber_shield_begin();
		come_to(&begun, 3);
		fiber_shield_end();
		fiber_scope_cancel(&scope, -EIO);
		check_eq(-EIO, fiber_scope_close(&scope));
	}
	/* Nobody took it. */
	check_eq(1, fiber_send(s[0], "x", 1, 0));
	check_eq(1, fiber_recv(s[1], b, sizeof(b), 0));
	run_dry(s[1]);
	for (int i = 0; i < 2; i++)
		f[i] = spawn(read_closed, (void *)(long)s[1]);
	come_to(&begun, 5);
	check_eq(0, fiber_close(s[1]));
	for (int i = 0; i < 2; i++)
		join(f[i]);
	check_eq(0, fiber_close(s[0]));
}

static void *takes_one(void *arg)
{
	char c;

	check_eq(1, fiber_recv((int)(long)arg, &c, 1, 0));
	return NULL;
}

/* Each byte is for one, and each gets one. */
static void wakes_each_once(int s[2])
{
	fiber_t *f[4];

	run_dry(s[1]);
	for (int i = 0; i < 4; i++)
		f[i] = spawn(takes_one, (void *)(long)s[1]);
	check_eq(0, fiber_sleep(200 * US));
	for (int i = 0; i < 4; i++) {
		check_eq(1, fiber_send(s[0], "x", 1, 0));
		while (bytes_in(s[1]))
			check_eq(0, fiber_sleep(200 * US));
	}
	for (int i = 0; i < 4; i++)
		join(f[i]);
}

static void *waits_first(void *arg)
{
	void (*const of[])(int s[2]) = { tcp_of, pair_of };
	int s[2];

	for (int i = 0; i < 2; i++) {
		of[i](s);
		run_dry(s[1]);
		tells_what_there_is(s);
		heeds_the_socket(s);
		wakes_each_once(s);
		meets_another_file(s);
		run_dry(s[1]);
		check_eq(0, fiber_shutdown(s[0], SHUT_WR));
		check_eq(0, fiber_recv(s[1], s, 1, 0));
		close_both(s);
		of[i](s);
		is_ended(s);
	}
	return arg;
}

TEST_F(io, who_waits_first_gets_the_same)
{
	RUN(waits_first, NULL);
}

/* Everybody at the same few numbers; what is read was written by a player. */
enum { CHURN = 300 };
static int churn_fd[4];
static atomic_int churned;

static void *churns(void *arg)
{
	uint32_t seed = 77 + (uint32_t)(long)arg;
	char c;
	long r;

	for (int i = 0; i < CHURN; i++) {
		int fd = churn_fd[next_random(&seed) % 4];

		r = fiber_read_until(fd, &c, 1, fiber_now() + 300 * US);
		check(r == 1 || r == 0 || r == -ETIMEDOUT || r == -EBADF);
		check(r != 1 || c == 'p');
	}
	atomic_fetch_add(&churned, 1);
	return NULL;
}

static void *churn(void *arg)
{
	int s[4][2], q[2];
	uint32_t seed = 5;
	fiber_t *f[8];

	atomic_store(&churned, 0);
	for (int i = 0; i < 4; i++) {
		pair_of(s[i]);
		churn_fd[i] = s[i][0];
	}
	for (long i = 0; i < 8; i++)
		f[i] = spawn(churns, (void *)i);
	while (atomic_load(&churned) < 8) {
		int i = (int)(next_random(&seed) % 4);

		check_eq(1, fiber_send(s[i][1], "p", 1, 0));
		if (next_random(&seed) % 4 == 0) {
			check_eq(0, fiber_close(s[i][0]));
			check_eq(0, fiber_close(s[i][1]));
			/* Not for them: closed again before they may have it. */
			pair_of(q);
			check(churn_fd[i] == q[0] || churn_fd[i] == q[1]);
			s[i][0] = churn_fd[i];
			s[i][1] = q[0] == churn_fd[i] ? q[1] : q[0];
		}
		fiber_yield();
	}
	for (int i = 0; i < 8; i++)
		join(f[i]);
	for (int i = 0; i < 4; i++)
		close_both(s[i]);
	return arg;
}

TEST_F(io, closes_and_reads_at_once)
{
	RUN(churn, NULL);
}

/* ---- accept and connect ---- */

enum { ACCEPTORS = 5, CALLERS = 60 };

static int door;
static struct sockaddr_in door_addr;
static atomic_int let_in;

static void *accepts(void *arg)
{
	int fd;

	while ((fd = fiber_accept(door, NULL, NULL, SOCK_CLOEXEC)) >= 0) {
		char c = 0;

		check_eq(1, fiber_read(fd, &c, 1));
		check_eq(1, fiber_write(fd, &c, 1));
		atomic_fetch_add(&let_in, 1);
		check_eq(0, fiber_close(fd));
	}
	check_eq(-EBADF, fd);
	return arg;
}

static void *calls(void *arg)
{
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	char c = (char)(long)arg, d = 0;

	check_eq(0, fiber_connect(fd, (void *)&door_addr, sizeof(door_addr)));
	check_eq(1, fiber_write(fd, &c, 1));
	check_eq(1, fiber_read(fd, &d, 1));
	check_eq(c, d);
	check_eq(0, fiber_read(fd, &d, 1));
	check_eq(0, fiber_close(fd));
	return NULL;
}

static void *many_call(void *arg)
{
	fiber_t *a[ACCEPTORS], *c[CALLERS];

	door = listener(&door_addr);
	atomic_store(&let_in, 0);
	for (int i = 0; i < ACCEPTORS; i++)
		a[i] = spawn(accepts, NULL);
	for (long i = 0; i < CALLERS; i++)
		c[i] = spawn(calls, (void *)i);
	for (int i = 0; i < CALLERS; i++)
		join(c[i]);
	check_eq(CALLERS, let_in);
	check_eq(0, fiber_close(door));
	for (int i = 0; i < ACCEPTORS; i++)
		join(a[i]);
	return arg;
}

TEST_F(io, each_connection_is_accepted_once)
{
	RUN(many_call, NULL);
}

/* A Unix socket whose queue is full: the connect waits for room. */
static void *accepts_soon(void *arg)
{
	int fd;

	fiber_sleep(2 * MS);
	fd = fiber_accept((int)(long)arg, NULL, NULL, 0);
	check(fd >= 0);
	check_eq(0, fiber_close(fd));
	return NULL;
}

static void *connects_late(void *arg)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	long l = socket(AF_UNIX, SOCK_STREAM, 0);
	int s[2];
	socklen_t n;
	uint64_t t;
	fiber_t *f;

	n = (socklen_t)(sizeof(a.sun_family) + 1 +
	    (size_t)snprintf(a.sun_path + 1, 60, "fiber-io-%d", getpid()));
	check_eq(0, bind((int)l, (void *)&a, n));
	check_eq(0, listen((int)l, 0));
	for (int i = 0; i < 2; i++)
		s[i] = socket(AF_UNIX, SOCK_STREAM, 0);
	check_eq(0, fiber_connect(s[0], (void *)&a, n));
	t = fiber_now() + 2 * MS;
	late(fiber_connect_until(s[1], (void *)&a, n, t), t);
	f = spawn(accepts_soon, (void *)l);
	check_eq(0, fiber_connect(s[1], (void *)&a, n));
	join(f);
	close_both(s);
	check_eq(0, fiber_close((int)l));
	return arg;
}

TEST_F(io, connect_waits_for_room)
{
	RUN(connects_late, NULL);
}

/* A full packet queue of one that is not connected: nothing tells of room there. */
static void *sends_packets(void *arg)
{
	struct sockaddr_un *a = arg;
	socklen_t n = sizeof(a->sun_family) + 1 + strlen(a->sun_path + 1);
	int fd = socket(AF_UNIX, SOCK_DGRAM, 0);

	for (int i = 0; i < 60; i++)
		check_eq(1, fiber_sendto(fd, "x", 1, 0, (void *)a, n));
	check_eq(0, fiber_close(fd));
	return NULL;
}

static void *packets(void *arg)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_DGRAM, 0), n;
	fiber_t *f;
	char c;

	n = snprintf(a.sun_path + 1, 60, "fiber-io-packets-%d", getpid());
	check_eq(0, bind(fd, (void *)&a,
			 sizeof(a.sun_family) + 1 + (socklen_t)n));
	f = spawn(sends_packets, &a);
	for (int i = 0; i < 60; i++) {
		check_eq(1, fiber_recv(fd, &c, 1, 0));
		if (i % 20 == 0)
			fiber_sleep(MS);
	}
	join(f);
	check_eq(0, fiber_close(fd));
	return arg;
}

TEST_F(io, packets_wait_for_room)
{
	RUN(packets, NULL);
}

/* ---- descriptors by message ---- */

static void *sends_fd(void *arg)
{
	union { struct cmsghdr h; char b[CMSG_SPACE(sizeof(int))]; } u = { 0 };
	struct iovec v = { "f", 1 };
	struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1, .msg_control = &u,
			    .msg_controllen = sizeof(u) };
	int *s = arg, q[2];

	pipe_of(q);
	u.h.cmsg_len = CMSG_LEN(sizeof(int));
	u.h.cmsg_level = SOL_SOCKET;
	u.h.cmsg_type = SCM_RIGHTS;
	memcpy(CMSG_DATA(&u.h), &q[1], sizeof(int));
	check_eq(1, fiber_sendmsg(s[1], &m, 0));
	check_eq(0, fiber_close(q[1]));
	check_eq(1, fiber_read(q[0], &u, 1));
	check_eq('w', u.b[0]);
	check_eq(0, fiber_close(q[0]));
	return NULL;
}

static void *takes_fd(void *arg)
{
	union { struct cmsghdr h; char b[CMSG_SPACE(sizeof(int))]; } u = { 0 };
	char c;
	struct iovec v = { &c, 1 };
	struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1, .msg_control = &u,
			    .msg_controllen = sizeof(u) };
	int s[2], fd = -1;
	fiber_t *f;

	pair_of(s);
	f = spawn(sends_fd, s);
	check_eq(1, fiber_recvmsg(s[0], &m, 0));
	memcpy(&fd, CMSG_DATA(&u.h), sizeof(int));
	check_eq(1, fiber_write(fd, "w", 1));
	check_eq(0, fiber_close(fd));
	join(f);
	close_both(s);
	return arg;
}

TEST_F(io, descriptors_travel)
{
	RUN(takes_fd, NULL);
}

/* ---- poll ---- */

static void *wakes_each(void *arg)
{
	int *fd = arg;

	for (int i = 0; i < 40; i++) {
		fiber_yield();
		check_eq(1, fiber_write(fd[i % 20], "x", 1));
	}
	return NULL;
}

static void *polls(void *arg)
{
	struct pollfd p[23] = { 0 };
	int s[20][2], w[20], seen = 0, ep = epoll_create1(0);
	struct epoll_event ev = { .events = EPOLLIN };
	fiber_t *f;
	char c;

	for (int i = 0; i < 20; i++) {
		(i % 2 ? pair_of : pipe_of)(s[i]);
		p[i] = (struct pollfd){ s[i][0], POLLIN, 0 };
		w[i] = s[i][1];
	}
	p[20] = (struct pollfd){ -1, POLLIN, 0 };
	check_eq(0, epoll_ctl(ep, EPOLL_CTL_ADD, s[0][0], &ev));
	p[21] = (struct pollfd){ ep, POLLIN, 0 };	/* as the first */
	p[22] = (struct pollfd){ s[1][0], POLLIN, 0 };	/* twice */
	for (int i = 0; i < 2; i++)
		check_eq(1, write(s[i][1], "x", 1));
	check_eq(4, fiber_poll(p, 23));
	check(p[0].revents && p[1].revents && p[21].revents && p[22].revents);
	for (int i = 0; i < 2; i++)
		check_eq(1, read(s[i][0], &c, 1));
	f = spawn(wakes_each, w);
	while (seen < 40) {
		int n = fiber_poll(p, 23), set = 0;

		for (int i = 0; i < 23; i++)
			set += p[i].revents != 0;
		check(n > 0);
		check_eq(n, set);
		for (int i = 0; i < 20; i++)
			if (p[i].revents) {
				check_eq(1, fiber_read(p[i].fd, &c, 1));
				seen++;
			}
	}
	join(f);
	for (int i = 0; i < 20; i++)
		close_both(s[i]);
	check_eq(0, fiber_close(ep));
	return arg;
}

TEST_F(io, poll_sees_any_of_many)
{
	RUN(polls, NULL);
}

/* ---- who polls ---- */

static atomic_int stop, served;

static void *plain_client(void *arg)
{
	int fd = (int)(long)arg;
	char c;

	for (int i = 0; i < 20; i++) {
		check_eq(1, write(fd, "x", 1));
		check_eq(1, read(fd, &c, 1));
	}
	atomic_store(&stop, 1);
	return NULL;
}

static void *echoes(void *arg)
{
	int fd = (int)(long)arg;
	char c;

	while (fiber_read(fd, &c, 1) == 1) {
		atomic_fetch_add(&served, 1);
		check_eq(1, fiber_write(fd, &c, 1));
	}
	return NULL;
}

static void *yields(void *arg)
{
	while (!atomic_load(&stop))
		fiber_yield();
	return arg;
}

static void *hogs(void *arg)
{
	while (!atomic_load(&stop))
		;
	return arg;
}

static void *sleeps(void *arg)
{
	while (!atomic_load(&stop))
		block_ns(300 * US);
	return arg;
}

static void *serves(void *arg)
{
	void *(*busy)(void *) = (void *(*)(void *))arg;
	pthread_t t;
	int s[2];
	fiber_t *f, *b[4];

	atomic_store(&stop, 0);
	atomic_store(&served, 0);
	pair_of(s);
	f = spawn(echoes, (void *)(long)s[0]);
	for (int i = 0; busy && i < 4; i++)
		b[i] = spawn(busy, NULL);
	check_eq(0, pthread_create(&t, NULL, plain_client, (void *)(long)s[1]));
	for (int i = 0; busy && i < 4; i++)
		join(b[i]);
	fiber_blocking_begin();
	pthread_join(t, NULL);
	fiber_blocking_end();
	check_eq(20, served);
	check_eq(0, fiber_shutdown(s[1], SHUT_RDWR));
	join(f);
	close_both(s);
	return NULL;
}

TEST_F(io, served_while_idle)
{
	RUN(serves, NULL);
}

TEST_F(io, served_while_others_yield)
{
	RUN(serves, yields);
}

TEST_F(io, served_while_others_block)
{
	RUN(serves, sleeps);
}

TEST_F(io, served_while_others_hog)
{
	RUN(serves, hogs);
}

/* Idle carriers in the poller are woken for other work too: none is lost. */
static fiber_chan_t *posts, *replies;

static void *plain_poster(void *arg)
{
	for (int i = 0, v; i < 1500; i++) {
		check_eq(0, fiber_chan_send(posts, &i));
		check_eq(0, fiber_chan_recv(replies, &v));
		check_eq(i, v);
	}
	return arg;
}

static void *replies_to_posts(void *arg)
{
	for (int i = 0, v; i < 1500; i++) {
		check_eq(0, fiber_chan_recv(posts, &v));
		check_eq(0, fiber_chan_send(replies, &v));
	}
	return arg;
}

static void *posted(void *arg)
{
	pthread_t t;
	fiber_t *f, *r;
	int s[2];

	check_eq(0, fiber_chan_create(&posts, sizeof(int), 0));
	check_eq(0, fiber_chan_create(&replies, sizeof(int), 0));
	pair_of(s);
	atomic_store(&served, 0);
	f = spawn(echoes, (void *)(long)s[0]);	/* waits all the time */
	r = spawn(replies_to_posts, NULL);
	check_eq(0, pthread_create(&t, NULL, plain_poster, NULL));
	join(r);
	fiber_blocking_begin();
	pthread_join(t, NULL);
	fiber_blocking_end();
	check_eq(0, fiber_shutdown(s[0], SHUT_RDWR));
	join(f);
	close_both(s);
	check_eq(0, fiber_chan_destroy(posts));
	check_eq(0, fiber_chan_destroy(replies));
	return arg;
}

TEST_F(io, other_work_wakes_the_poller)
{
	RUN(posted, NULL);
}

/* Fibers that block in the kernel come back while processors sleep in the poller. */
static void *blocks_often(void *arg)
{
	for (int i = 0; i < 30; i++)
		block_ns(200 * US);
	return arg;
}

static void *blockers(void *arg)
{
	fiber_t *f, *b[8];
	int s[2];

	pair_of(s);
	f = spawn(echoes, (void *)(long)s[0]);
	for (int i = 0; i < 8; i++)
		b[i] = spawn(blocks_often, NULL);
	for (int i = 0; i < 8; i++)
		join(b[i]);
	check_eq(0, fiber_shutdown(s[0], SHUT_RDWR));
	join(f);
	close_both(s);
	return arg;
}

TEST_F(io, blocked_fibers_come_back)
{
	RUN(blockers, NULL);
}

/* Timers fire while the processors sleep in the poller. */
static void *sleeper(void *arg)
{
	for (int i = 0; i < 20; i++)
		check_eq(0, fiber_sleep(500 * US));
	return arg;
}

static void *sleepers(void *arg)
{
	fiber_t *f, *b[5];
	int s[2];

	pair_of(s);
	f = spawn(echoes, (void *)(long)s[0]);
	for (int i = 0; i < 5; i++)
		b[i] = spawn(sleeper, NULL);
	for (int i = 0; i < 5; i++)
		join(b[i]);
	check_eq(0, fiber_shutdown(s[0], SHUT_RDWR));
	join(f);
	close_both(s);
	return arg;
}

TEST_F(io, timers_fire_beside_it)
{
	RUN(sleepers, NULL);
}

/*
 * Nothing blocks but those that poll, and no one of them takes the place of another:
 * else there is one more of them each time, and a new carrier for it.
 */
static void *naps(void *arg)
{
	uint32_t before = 0;
	fiber_t *f;
	int s[2];

	pair_of(s);
	f = spawn(echoes, (void *)(long)s[0]);
	for (int i = 0; i < 120; i++) {
		check_eq(0, fiber_sleep(2 * MS));
		if (i == 20)
			before = stats().carriers;
	}
	check(stats().carriers < before + 40);
	check_eq(0, fiber_shutdown(s[0], SHUT_RDWR));
	join(f);
	close_both(s);
	return arg;
}

TEST_F(io, naps_beside_it_need_no_carriers)
{
	RUN(naps, NULL);
}

/* Who waits uses no CPU time; one time of five, for others disturb. */
static bool idle_once(int fd)
{
	uint64_t cpu = cpu_ns(), t = now_ns();
	char c;

	check_eq(-ETIMEDOUT, fiber_read_until(fd, &c, 1,
					      fiber_now() + 100 * MS));
	return cpu_ns() - cpu < (now_ns() - t) / 2;
}

static void *idles(void *arg)
{
	fiber_t *f[20];
	bool idle = false;
	int s[2];

	pair_of(s);
	atomic_store(&begun, 0);
	for (int i = 0; i < 20; i++)
		f[i] = spawn(read_closed, (void *)(long)s[0]);
	come_to(&begun, 20);
	for (int i = 0; i < 5 && !idle; i++)
		idle = idle_once(s[0]);
	check(idle);
	check_eq(0, fiber_close(s[0]));
	for (int i = 0; i < 20; i++)
		join(f[i]);
	check_eq(0, fiber_close(s[1]));
	return arg;
}

TEST_F(io, idle_is_idle)
{
	if (!strcmp(variant->io, "plain"))
		SKIP(return, "blocking calls look now and then");
	RUN(idles, NULL);
}

/* ---- plain threads, no runtime, forks ---- */

static void *thread_reads(void *arg)
{
	int *s = arg;
	char c = 0;

	check_eq(1, fiber_read(s[0], &c, 1));
	check_eq('t', c);
	check_eq(-EBADF, fiber_read(s[0], &c, 1));
	return NULL;
}

static void with_a_thread(void)
{
	pthread_t t;
	int s[2];
	char c;

	pair_of(s);
	check_eq(0, pthread_create(&t, NULL, thread_reads, s));
	block_ns(1 * MS);
	check_eq(1, fiber_write(s[1], "t", 1));
	while (recv(s[0], &c, 1, MSG_PEEK | MSG_DONTWAIT) == 1)
		block_ns(1 * MS);
	block_ns(1 * MS);
	check_eq(0, fiber_close(s[0]));
	pthread_join(t, NULL);
	check_eq(0, fiber_close(s[1]));
}

TEST_F(io, threads_wait_too)
{
	with_a_thread();		/* no runtime yet */
	ASSERT_EQ(0, start(variant->processors, variant->quantum));
	with_a_thread();
	ASSERT_EQ(0, fini_soon());
	with_a_thread();
	EXPECT_EQ(0, failures);
}

static void *forks(void *arg)
{
	int s[2], status = -1;
	fiber_t *f;
	pid_t pid;
	char c;

	pair_of(s);
	atomic_store(&begun, 0);
	f = spawn(echoes, (void *)(long)s[0]);
	check_eq(1, fiber_write(s[1], "x", 1));
	check_eq(1, fiber_read(s[1], &c, 1));
	pid = fork();
	if (!pid) {
		/* Its waits are its own; it takes nothing from the parent. */
		int q[2];

		alarm(20);
		if (pipe(q) || fiber_write(q[1], "q", 1) != 1 ||
		    fiber_read(q[0], &c, 1) != 1 || c != 'q' ||
		    fiber_read_until(q[0], &c, 1, fiber_now() + MS) !=
		    -ETIMEDOUT || fiber_close(s[0]) || fiber_close(s[1]))
			_exit(1);
		_exit(0);
	}
	check_eq(pid, waitpid(pid, &status, 0));
	check_eq(0, status);
	for (int i = 0; i < 5; i++) {
		check_eq(1, fiber_write(s[1], "x", 1));
		check_eq(1, fiber_read(s[1], &c, 1));
	}
	check_eq(0, fiber_shutdown(s[1], SHUT_RDWR));
	join(f);
	close_both(s);
	return arg;
}

TEST_F(io, a_child_takes_nothing)
{
	RUN(forks, NULL);
}

TEST_F(io, starts_again)
{
	for (int i = 0; i < 3; i++) {
		atomic_store(&served, 0);
		RUN(serves, NULL);
	}
}

static void *feature(void *arg)
{
	check_eq(!!arg, !!(fiber_features() & FIBER_FEATURE_IO_EPOLL));
	check(strstr(fiber_backend(), arg ? "I/O by epoll" :
		     "I/O by blocking calls"));
	return NULL;
}

TEST(features_say_how)
{
	setenv("FIBER_IO", "epoll", 1);
	ASSERT_EQ(0, with_runtime(1, 0, feature, (void *)1));
	setenv("FIBER_IO", "", 1);
	ASSERT_EQ(0, with_runtime(1, 0, feature, (void *)1));
	setenv("FIBER_IO", "plain", 1);
	ASSERT_EQ(0, with_runtime(1, 0, feature, NULL));
	setenv("FIBER_IO", "pigeons", 1);
	ASSERT_EQ(-EINVAL, start(1, 0));
	EXPECT_EQ(0, failures);
}

TEST_HARNESS_MAIN
