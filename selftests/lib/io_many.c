// SPDX-License-Identifier: GPL-2.0-only
/*
 * A server with very many connections, as fiber_serve makes them: a fiber each. They
 * come as fast as the other end can connect; then all are idle, which must cost no
 * CPU time; then all send at once and have their own bytes back; then half of them
 * say goodbye and the other half reset theirs. All are seen, and nothing is left.
 *
 * The clients are another process: plain blocking calls, one after the other.
 *
 * FIBER_CONNECTIONS: how many; 20,000 is what the issue asks for.
 */
#include <arpa/inet.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "common.h"

enum { SIZE = 64, ROUNDS = 3, ADDRESSES = 8 };

/* ---- the other end ---- */

/* What the parent asks for, and has back once it is done. */
struct order {
	enum { CONNECT, ECHO, END } what;
	int n;				/* CONNECT: up to so many; ECHO: rounds */
};

struct clients {
	int control;			/* orders come, and go back */
	in_port_t port;
	int *fd, n;
};

static void insist(bool ok, const char *what)
{
	if (ok)
		return;
	dprintf(STDERR_FILENO, "# client: %s: %s\n", what, strerror(errno));
	_exit(1);
}

/* Ports of this end are per address of the other: so it has a few. */
static void connect_one(struct clients *c)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = c->port };
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	a.sin_addr.s_addr = htonl(INADDR_LOOPBACK + c->n % ADDRESSES);
	insist(fd >= 0, "socket");
	insist(!connect(fd, (void *)&a, sizeof(a)), "connect");
	c->fd[c->n++] = fd;
}

static void text_of(char *text, int i, int round)
{
	for (int k = 0; k < SIZE; k++)
		text[k] = (char)(i * 7 + round * 31 + k);
}

/* All send before any looks for its answer. */
static void echo_all(struct clients *c, int round)
{
	char sent[SIZE], got[SIZE];

	for (int i = 0; i < c->n; i++) {
		text_of(sent, i, round);
		insist(send(c->fd[i], sent, SIZE, MSG_NOSIGNAL) == SIZE, "send");
	}
	for (int i = 0; i < c->n; i++) {
		text_of(sent, i, round);
		insist(recv(c->fd[i], got, SIZE, MSG_WAITALL) == SIZE, "recv");
		insist(!memcmp(sent, got, SIZE), "other bytes");
	}
}

static void end_all(struct clients *c)
{
	struct linger reset = { 1, 0 };
	char byte;

	for (int i = 0; i < c->n; i++) {
		if (i % 2)
			setsockopt(c->fd[i], SOL_SOCKET, SO_LINGER, &reset,
				   sizeof(reset));
		else
			shutdown(c->fd[i], SHUT_WR);
	}
	for (int i = 0; i < c->n; i++) {
		if (i % 2 == 0)
			insist(recv(c->fd[i], &byte, 1, 0) == 0, "end");
		close(c->fd[i]);
	}
	c->n = 0;
}

static void obey(struct clients *c, struct order *o)
{
	switch (o->what) {
	case CONNECT:
		while (c->n < o->n)
			connect_one(c);
		break;
	case ECHO:
		for (int i = 0; i < o->n; i++)
			echo_all(c, i);
		break;
	case END:
		end_all(c);
	}
}

/* A process, which ends with the test, however that ends. */
static pid_t run_clients(int most, in_port_t port, int *control)
{
	struct clients c = { .port = port };
	pid_t parent = getpid(), pid;
	struct order o;
	int s[2];

	check_eq(0, socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, s));
	pid = fork();
	*control = s[0];
	if (pid) {
		close(s[1]);
		return pid;
	}
	close(s[0]);
	c.control = s[1];
	c.fd = calloc((size_t)most, sizeof(*c.fd));
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	insist(getppid() == parent && c.fd, "start");
	while (read(c.control, &o, sizeof(o)) == sizeof(o)) {
		obey(&c, &o);
		insist(write(c.control, &o, sizeof(o)) == sizeof(o), "answer");
	}
	_exit(0);
}

static void order(int control, int what, int n)
{
	struct order o = { what, n };

	check_eq(sizeof(o), write(control, &o, sizeof(o)));
	check_eq(sizeof(o), read(control, &o, sizeof(o)));
}

/* ---- the server ---- */

static atomic_int begun, ended, resets;
static atomic_long bytes;
static int server_result;

static int echo(int fd, void *arg)
{
	char text[SIZE];
	ssize_t n;

	(void)arg;
	atomic_fetch_add(&begun, 1);
	while ((n = fiber_read(fd, text, sizeof(text))) > 0) {
		atomic_fetch_add(&bytes, n);
		check_eq(n, fiber_write(fd, text, (size_t)n));
	}
	if (n)
		check_eq(-ECONNRESET, n);
	atomic_fetch_add(&resets, n != 0);
	atomic_fetch_add(&ended, 1);
	return 0;
}

static void *server(void *arg)
{
	server_result = fiber_serve((int)(long)arg, 0, echo, NULL);
	return NULL;
}

static int door(in_port_t *port)
{
	struct sockaddr_in a = { .sin_family = AF_INET };
	socklen_t len = sizeof(a);
	int fd;

	fd = fiber_listen((void *)&a, len, 0);
	check(fd >= 0);
	check_eq(0, getsockname(fd, (void *)&a, &len));
	*port = a.sin_port;
	return fd;
}

/* ---- what is seen ---- */

static int count_parked(const struct fiber_info *i, void *arg)
{
	int *n = arg;

	*n += !i->library && i->state == FIBER_PARKED;
	return 0;
}

/* So many connections wait for what comes, and the server for more of them. */
static bool all_wait(int n)
{
	int parked = 0;

	return atomic_load(&begun) == n &&
	       !fiber_walk(count_parked, &parked) && parked == n + 1;
}

/* Bytes: its pages, and the page tables for them. */
static long memory(void)
{
	return (proc_number("/proc/self/status", "RssAnon:") +
		proc_number("/proc/self/status", "VmPTE:")) * 1024;
}

/* Of the whole machine. */
static long slabs(void)
{
	return proc_number("/proc/meminfo", "Slab:") * 1024;
}

static long switches(void)
{
	struct rusage use;

	check_eq(0, getrusage(RUSAGE_SELF, &use));
	return use.ru_nvcsw + use.ru_nivcsw;
}

/* One time of five, for others disturb; who ticks does it all the time. */
static bool costs_nothing(void)
{
	uint64_t cpu = 0, most = 2 * MS * allowance();
	long n = 0;

	for (int i = 0; i < 5; i++) {
		n = switches();
		cpu = cpu_ns();
		block_ns(300 * MS);
		cpu = cpu_ns() - cpu;
		n = switches() - n;
		if (cpu < most && n <= 20)
			break;
	}
	figure("connections: idle for 300 ms: cpu_us=%lu switches=%ld\n",
	       cpu / US, n);
	return cpu < most && n <= 20;
}

static int how_many(void)
{
	const char *s = getenv("FIBER_CONNECTIONS");

	return s && atoi(s) > 1 ? atoi(s) : in_vm() ? 500 : 2000;
}

static bool may_open(int n)
{
	struct rlimit l = { (rlim_t)n + 100, (rlim_t)n + 100 }, now;

	if (!getrlimit(RLIMIT_NOFILE, &now) && now.rlim_max >= l.rlim_max)
		l.rlim_max = now.rlim_max;
	return !setrlimit(RLIMIT_NOFILE, &l);
}

FIXTURE(many) {
	int n, control, fd;
	pid_t clients;
	fiber_t *server;
};

FIXTURE_SETUP(many)
{
	in_port_t port;

	self->n = how_many();
	if (!may_open(self->n))
		SKIP(return, "%d open files are not allowed", self->n + 100);
	self->fd = door(&port);
	self->clients = run_clients(self->n, port, &self->control);
	ASSERT_GT(self->clients, 0);
	ASSERT_EQ(0, start(2, 0));
	self->server = spawn(server, (void *)(long)self->fd);
}

FIXTURE_TEARDOWN(many) {}

static void connect_all(struct __test_metadata *_metadata, int control, int n)
{
	long was, kernel;
	uint64_t t;

	order(control, CONNECT, 1);
	ASSERT_TRUE(until(all_wait(1)));
	was = memory();
	kernel = slabs();
	t = now_ns();
	order(control, CONNECT, n);
	ASSERT_TRUE(until(all_wait(n)));
	t = now_ns() - t;
	was = (memory() - was) / (n - 1);
	figure("connections: %d in %lu ms, %ld bytes each when idle (%s)\n",
	       n, t / MS, was, fiber_backend());
	if (in_vm())
		figure("connections: and %ld in the kernel, with the other end's\n",
		       (slabs() - kernel) / (n - 1));
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
	/* A page of a stack, and what the library and malloc know of it. */
	EXPECT_GT(2 * 4096, was);
#endif
}

static void echo_rounds(int control, int n)
{
	uint64_t t = now_ns(), cpu = cpu_ns();
	uint64_t calls = (uint64_t)n * ROUNDS;

	order(control, ECHO, ROUNDS);
	t = now_ns() - t;
	cpu = cpu_ns() - cpu;
	figure("connections: %lu echoes of %d bytes in %lu ms: %lu ns of the server's CPUs each\n",
	       calls, SIZE, t / MS, cpu / calls);
	check_eq(calls * SIZE, bytes);
}

TEST_F_TIMEOUT(many, connections_are_served, 500 * FIBER_SLOW)
{
	int status = -1, n = self->n;

	connect_all(_metadata, self->control, n);
	EXPECT_TRUE(costs_nothing());
	echo_rounds(self->control, n);
	order(self->control, END, 0);
	ASSERT_TRUE(until(atomic_load(&ended) == n));
	EXPECT_EQ(n / 2, resets);
	EXPECT_EQ(0, fiber_close(self->fd));
	join(self->server);
	EXPECT_EQ(0, server_result);
	EXPECT_EQ(0, fini_soon());
	close(self->control);
	EXPECT_EQ(self->clients, waitpid(self->clients, &status, 0));
	EXPECT_EQ(0, status);
	EXPECT_EQ(0, failures);
}

TEST_HARNESS_MAIN
