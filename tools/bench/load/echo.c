// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * echo.c - the other end of the row echo: echo PROGRAM echo
 *
 * Starts the server with a socket that listens (BENCH_LISTEN_FD), on a CPU of its
 * own; 1,000 connections ask 64 bytes at once each, and again when the answer has
 * come, which must be the same. After a time to warm up the server's CPU time and the
 * requests are counted. Prints the server's CPU time for one, in us.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../bench.h"
#include "server.h"

#define CONNECTIONS	1000
#define BYTES		64
#define MS		1000000LL
#define SILENCE_MS	5000

struct conn {
	int fd;
	unsigned int got;		/* bytes of the answer */
	unsigned long asked;
	char out[BYTES], in[BYTES];
};

static struct conn conn[CONNECTIONS];
static long answers;
static pid_t server;

/* It may have said why, or that it has no such row. */
static void __attribute__((noreturn)) lost(const char *what)
{
	int status;

	usleep(100000);			/* until it has ended, if it does */
	status = server_stop(server);
	if (status == 77)
		exit(77);
	die("echo: %s%s", what, status ? ", the server has ended" : "");
}

/* Each request differs from all others. */
static void ask(struct conn *c)
{
	unsigned long mark[2] = { (unsigned long)(c - conn), ++c->asked };

	memcpy(c->out, mark, sizeof(mark));
	c->got = 0;
	if (send(c->fd, c->out, BYTES, MSG_NOSIGNAL) != BYTES)
		lost("send failed");
}

static void answer(struct conn *c)
{
	ssize_t n = recv(c->fd, c->in + c->got, BYTES - c->got, MSG_DONTWAIT);

	if (n < 0 && errno == EAGAIN)
		return;
	if (n <= 0)
		lost("the server hangs up");
	c->got += (unsigned int)n;
	if (c->got < BYTES)
		return;
	if (memcmp(c->in, c->out, BYTES))
		lost("the answer differs");
	answers++;
	ask(c);
}

static void connect_all(int ep, int port)
{
	struct epoll_event e = { .events = EPOLLIN | EPOLLET };
	int i;

	for (i = 0; i < CONNECTIONS; i++) {
		conn[i].fd = connect_to(port);
		e.data.ptr = &conn[i];
		if (conn[i].fd < 0 ||
		    epoll_ctl(ep, EPOLL_CTL_ADD, conn[i].fd, &e))
			lost("no connection");
	}
	for (i = 0; i < CONNECTIONS; i++)
		ask(&conn[i]);
}

/* Until then. */
static void serve_until(int ep, long long end)
{
	static struct epoll_event e[CONNECTIONS];
	int i, n;

	while (now_ns() < end) {
		n = epoll_wait(ep, e, CONNECTIONS, SILENCE_MS);
		if (n <= 0)
			lost("the server says nothing");
		for (i = 0; i < n; i++)
			answer(e[i].data.ptr);
	}
}

int main(int argc, char **argv)
{
	long long ms = load_ms(2000), cpu, begin;
	int port, listener, ep;
	long before;

	if (argc < 2)
		die("usage: echo PROGRAM ARG...");
	need_files(CONNECTIONS + 200);
	listener = listen_anywhere(&port);
	server = server_start(argv + 1, listener, BENCH_LISTEN_FD);
	pin_load();
	ep = epoll_create1(EPOLL_CLOEXEC);
	connect_all(ep, port);
	serve_until(ep, now_ns() + ms * MS / 4);
	before = answers;
	begin = now_ns();
	cpu = server_cpu(server);
	serve_until(ep, begin + ms * MS);
	cpu = server_cpu(server) - cpu;
	before = answers - before;
	printf("echo %.4f\n", (double)cpu / before / 1e3);
	if (getenv("BENCH_VERBOSE"))
		fprintf(stderr, "# %ld requests, the server is busy %.0f%%\n",
			before, cpu * 100.0 / (now_ns() - begin));
	server_stop(server);
	return 0;
}
