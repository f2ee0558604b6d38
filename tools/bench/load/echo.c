// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * echo.c - the other end of the row echo: echo PROGRAM echo
 *
 * Starts the server with a socket that listens (BENCH_LISTEN_FD), on a CPU of its
 * own; 1,000 connections ask 64 bytes at once each, and again when the answer has
 * come, which must be the same. After a time to warm up the server's CPU time and the
 * requests are counted. Prints the server's CPU time for one, in us.
 *
 * The client asks one after the other for its answer and never sleeps, so that it is
 * as quick as can be, and no server has to wake it: a real one is on another machine.
 * BENCH_VERBOSE: how busy the server was is told, too; a server that is not waits
 * and is woken more often.
 */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../bench.h"
#include "server.h"

#define CONNECTIONS	1000
#define BYTES		64
#define MS		1000000LL
#define SILENCE		(5000 * MS)
#define LOOKS		1024		/* for an answer, until a look at the clock */

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

/* False: not yet. */
static bool answered(struct conn *c)
{
	ssize_t n = recv(c->fd, c->in + c->got, BYTES - c->got, MSG_DONTWAIT);

	if (n < 0 && errno == EAGAIN)
		return false;
	if (n <= 0)
		lost("the server hangs up");
	c->got += (unsigned int)n;
	if (c->got < BYTES)
		return false;
	if (memcmp(c->in, c->out, BYTES))
		lost("the answer differs");
	answers++;
	return true;
}

static void wait_for(struct conn *c)
{
	long long end = 0;
	int i;

	for (;;) {
		for (i = 0; i < LOOKS; i++)
			if (answered(c))
				return;
		if (!end)
			end = now_ns() + SILENCE;
		if (now_ns() > end)
			lost("the server says nothing");
	}
}

static void connect_all(int port)
{
	int i;

	for (i = 0; i < CONNECTIONS; i++) {
		conn[i].fd = connect_to(port);
		if (conn[i].fd < 0)
			lost("no connection");
	}
	for (i = 0; i < CONNECTIONS; i++)
		ask(&conn[i]);
}

/* Until then. */
static void ask_until(long long end)
{
	static int next;
	int i;

	while (now_ns() < end)
		for (i = 0; i < 100; i++, next = (next + 1) % CONNECTIONS) {
			wait_for(&conn[next]);
			ask(&conn[next]);
		}
}

int main(int argc, char **argv)
{
	long long ms = load_ms(2000), cpu, begin;
	int port, listener;
	long before;

	if (argc < 2)
		die("usage: echo PROGRAM ARG...");
	need_files(CONNECTIONS + 200);
	listener = listen_anywhere(&port);
	server = server_start(argv + 1, listener, BENCH_LISTEN_FD);
	pin_load();
	connect_all(port);
	ask_until(now_ns() + ms * MS / 4);
	before = answers;
	begin = now_ns();
	cpu = server_cpu(server);
	ask_until(begin + ms * MS);
	cpu = server_cpu(server) - cpu;
	before = answers - before;
	printf("echo %.4f\n", (double)cpu / before / 1e3);
	if (getenv("BENCH_VERBOSE"))
		fprintf(stderr, "# %ld requests, the server is busy %.0f%%\n",
			before, cpu * 100.0 / (now_ns() - begin));
	server_stop(server);
	return 0;
}
