// SPDX-License-Identifier: GPL-2.0-only
/* Records, lines, and servers upon sockets and pipes. */
#include "common.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/resource.h>

FIXTURE(stream) {};
FIXTURE_VARIANT(stream) {
	const char *io;
	unsigned int processors;
	uint64_t quantum;
};
FIXTURE_SETUP(stream)
{
	setenv("FIBER_IO", variant->io, 1);
}
FIXTURE_TEARDOWN(stream) {}
FIXTURE_VARIANT_ADD(stream, epoll) { "epoll", 1, 0 };
FIXTURE_VARIANT_ADD(stream, uring_two) { "uring", 2, 100 * US };
FIXTURE_VARIANT_ADD(stream, plain) { "plain", 2, 0 };

#define RUN(fn, arg) \
	ASSERT_EQ(0, with_runtime(variant->processors, variant->quantum, fn, arg)); \
	EXPECT_EQ(0, failures)

static void put(int fd, const char *text)
{
	check_eq(strlen(text), fiber_write(fd, text, strlen(text)));
}

/* ---- exactly ---- */

static void *puts_slowly(void *arg)
{
	int fd = (int)(long)arg;

	for (int i = 0; i < 100; i++) {
		put(fd, "0123456");
		fiber_yield();
	}
	check_eq(0, fiber_close(fd));
	return NULL;
}

static void *exactly(void *arg)
{
	char b[700];
	fiber_t *f;
	int s[2];

	check_eq(0, pipe(s));
	f = spawn(puts_slowly, (void *)(long)s[1]);
	for (int i = 0; i < 2; i++) {
		check_eq(300, fiber_read_exactly(s[0], b, 300));
		for (int j = 0; j < 300; j++)
			check_eq('0' + (i * 300 + j) % 7, b[j]);
	}
	check_eq(-ENODATA, fiber_read_exactly(s[0], b, 300));
	check_eq(0, fiber_read_exactly(s[0], b, 300));
	check_eq(0, fiber_read_exactly(s[0], b, 0));
	check_eq(-EBADF, fiber_read_exactly(-1, b, 1));
	join(f);
	check_eq(0, fiber_close(s[0]));
	return arg;
}

TEST_F(stream, reads_exactly)
{
	RUN(exactly, NULL);
}

/* ---- lines ---- */

static void is_line(struct fiber_reader *r, const char *want)
{
	char *line = NULL;

	check_eq(strlen(want), fiber_reader_line(r, &line));
	check(line && !strcmp(want, line));
}

static void *lines(void *arg)
{
	struct fiber_reader r;
	char b[16], *at, few[20];
	uint64_t t;
	int s[2];

	check_eq(0, pipe(s));
	fiber_reader_init(&r, s[0], b, sizeof(b));
	put(s[1], "one\ntwo\r\n\n\r\nlonger line\nx;yz;");
	is_line(&r, "one");
	is_line(&r, "two");
	is_line(&r, "");
	is_line(&r, "");
	is_line(&r, "longer line");
	check_eq(2, fiber_reader_find(&r, ';', &at));
	check(!memcmp(at, "x;", 2));
	check_eq(1, fiber_reader_read(&r, few, 1));
	check_eq('y', few[0]);
	check_eq(1, fiber_reader_read(&r, few, sizeof(few)));
	check_eq('z', few[0]);		/* so much was read ahead */
	check_eq(1, fiber_reader_read(&r, few, sizeof(few)));
	check_eq(';', few[0]);
	/* Late: what came is there for the next call. */
	put(s[1], "half");
	t = fiber_now() + 2 * MS;
	check_eq(-ETIMEDOUT, fiber_reader_line_until(&r, &at, t));
	check(fiber_now() >= t);
	put(s[1], " and half\n");
	is_line(&r, "half and half");
	/* Too long: it can be had otherwise. */
	put(s[1], "0123456789abcdefgh\n");
	check_eq(-EMSGSIZE, fiber_reader_line(&r, &at));
	check_eq(-EMSGSIZE, fiber_reader_line(&r, &at));
	check_eq(16, fiber_reader_read(&r, few, sizeof(few)));
	check(!memcmp(few, "0123456789abcdef", 16));
	is_line(&r, "gh");
	/* The end, with and without room for its '\0'. */
	put(s[1], "end");
	check_eq(0, fiber_close(s[1]));
	is_line(&r, "end");
	check_eq(-ENODATA, fiber_reader_line(&r, &at));
	check_eq(0, fiber_reader_find(&r, 'x', &at));
	check_eq(0, fiber_close(s[0]));
	return arg;
}

TEST_F(stream, reads_lines)
{
	RUN(lines, NULL);
}

static void *last_line(void *arg)
{
	struct fiber_reader r;
	char b[4], *at;
	int s[2];

	check_eq(0, pipe(s));
	fiber_reader_init(&r, s[0], b, sizeof(b));
	put(s[1], "1234");
	check_eq(0, fiber_close(s[1]));
	check_eq(-EMSGSIZE, fiber_reader_line(&r, &at));
	check_eq(-EMSGSIZE, fiber_reader_find(&r, '\n', &at));
	check_eq(4, r.to - r.from);
	check_eq(0, fiber_close(s[0]));
	return arg;
}

TEST_F(stream, keeps_what_does_not_fit)
{
	RUN(last_line, NULL);
}

/* ---- a server ---- */

enum { CLIENTS = 40, LIMIT = 5 };

static struct sockaddr_in where;
static atomic_int now_served, most_served, all_served;
static int server_result;

static int door(void)
{
	socklen_t len = sizeof(where);
	int fd;

	where = (struct sockaddr_in){ .sin_family = AF_INET };
	where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	fd = fiber_listen((void *)&where, len, 0);
	check(fd >= 0);
	check_eq(0, getsockname(fd, (void *)&where, &len));
	return fd;
}

static int echo(int fd, void *arg)
{
	int n = atomic_fetch_add(&now_served, 1) + 1;
	char c;

	if (n > most_served)
		most_served = n;
	check(arg == &where);
	while (fiber_read(fd, &c, 1) == 1) {
		fiber_yield();
		if (fiber_write(fd, &c, 1) != 1)
			break;
	}
	atomic_fetch_sub(&now_served, 1);
	atomic_fetch_add(&all_served, 1);
	return -EIO;			/* nobody's affair */
}

static void *server(void *arg)
{
	server_result = fiber_serve((int)(long)arg, LIMIT, echo, &where);
	return NULL;
}

static void *client(void *arg)
{
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	char c = (char)(long)arg, d = 0;

	check_eq(0, fiber_connect(fd, (void *)&where, sizeof(where)));
	for (int i = 0; i < 5; i++) {
		check_eq(1, fiber_write(fd, &c, 1));
		check_eq(1, fiber_read(fd, &d, 1));
		check_eq(c, d);
	}
	check_eq(0, fiber_close(fd));
	return NULL;
}

static void *serves(void *arg)
{
	fiber_t *s, *c[CLIENTS];
	long fd = door();

	s = spawn(server, (void *)fd);
	for (long i = 0; i < CLIENTS; i++)
		c[i] = spawn(client, (void *)i);
	for (int i = 0; i < CLIENTS; i++)
		join(c[i]);
	check_eq(0, fiber_close((int)fd));
	join(s);
	check_eq(0, server_result);
	check_eq(CLIENTS, all_served);
	check_eq(0, now_served);
	check(most_served <= LIMIT);
	return arg;
}

TEST_F(stream, serves_up_to_a_limit)
{
	RUN(serves, NULL);
}

static int serve_scoped(void *arg)
{
	return fiber_serve((int)(long)arg, 0, echo, &where);
}

/* Its connections are cancelled with it. */
static void *cancelled(void *arg)
{
	int c = socket(AF_INET, SOCK_STREAM, 0);
	fiber_scope_t scope;
	long fd = door();
	char x = 'x';

	check_eq(0, fiber_scope_open(&scope, NULL));
	check_eq(0, fiber_scope_spawn(&scope, serve_scoped, (void *)fd));
	check_eq(0, fiber_connect(c, (void *)&where, sizeof(where)));
	check_eq(1, fiber_write(c, &x, 1));
	check_eq(1, fiber_read(c, &x, 1));
	fiber_scope_cancel(&scope, -EIO);
	check_eq(-EIO, fiber_scope_close(&scope));
	check_eq(1, all_served);
	check_eq(0, fiber_read(c, &x, 1));
	check_eq(0, fiber_close(c));
	check_eq(0, fiber_close((int)fd));
	return arg;
}

TEST_F(stream, is_cancelled_with_its_connections)
{
	RUN(cancelled, NULL);
}

/* Nothing is to be had for 100 ms: does that take less than a spin would? */
static bool calm(int fd)
{
	uint64_t cpu = cpu_ns(), t = now_ns();
	char c;

	check_eq(-ETIMEDOUT, fiber_read_until(fd, &c, 1,
					      fiber_now() + 100 * MS));
	return cpu_ns() - cpu < (now_ns() - t) * 3 / 4;
}

/* No descriptor is left: it goes on when there is one, and does not spin. */
static void *starved(void *arg)
{
	struct rlimit was, few;
	int c = socket(AF_INET, SOCK_STREAM, 0);
	long fd = door();
	fiber_t *s;
	bool is_calm = false;
	char x = 'x';

	check_eq(0, getrlimit(RLIMIT_NOFILE, &was));
	s = spawn(server, (void *)fd);
	check_eq(-ETIMEDOUT, fiber_poll_until(NULL, 0, fiber_now() + MS));
	few = was;
	few.rlim_cur = 3;		/* all of them are taken */
	check_eq(0, setrlimit(RLIMIT_NOFILE, &few));
	check_eq(0, fiber_connect(c, (void *)&where, sizeof(where)));
	check_eq(1, fiber_write(c, &x, 1));
	for (int i = 0; i < 5 && !is_calm; i++)
		is_calm = calm(c);
	check(is_calm);
	check_eq(0, setrlimit(RLIMIT_NOFILE, &was));
	check_eq(1, fiber_read(c, &x, 1));
	check_eq(0, fiber_close(c));
	check_eq(0, fiber_close((int)fd));
	join(s);
	check_eq(0, server_result);
	return arg;
}

TEST_F(stream, survives_without_descriptors)
{
	RUN(starved, NULL);
}

static void *answers(void *arg)
{
	struct sockaddr_in a = where;
	int fd = door();

	check_eq(-EINVAL, fiber_serve(fd, 0, NULL, NULL));
	check_eq(-EINVAL, fiber_listen(NULL, 0, 0));
	check_eq(-EADDRINUSE, fiber_listen((void *)&where, sizeof(where), 0));
	a.sin_family = 9999;
	check_eq(-EAFNOSUPPORT, fiber_listen((void *)&a, sizeof(a), 0));
	check_eq(0, fiber_close(fd));
	check_eq(0, fiber_serve(fd, 0, echo, NULL));	/* closed */
	fd = socket(AF_INET, SOCK_DGRAM, 0);
	check_eq(-EOPNOTSUPP, fiber_serve(fd, 0, echo, NULL));
	check_eq(0, fiber_close(fd));
	return arg;
}

TEST_F(stream, answers_misuse)
{
	ASSERT_EQ(-EPERM, fiber_serve(0, 0, echo, NULL));
	RUN(answers, NULL);
}

TEST_HARNESS_MAIN
