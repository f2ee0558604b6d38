// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * epoll.c - the row echo for an event loop by hand: epoll, edge triggered
 *
 * A read that does not fill the buffer has read all there was, so each request is
 * two system calls and its share of an epoll_wait. Its clients read what they are
 * sent before they send more: a reply always fits into the socket.
 */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../bench.h"

#define EVENTS	1024

static int ep;

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static void watch(int fd, unsigned int events)
{
	struct epoll_event e = { .events = events, .data.fd = fd };

	if (epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e))
		die("epoll_ctl");
}

static void take_all(int listener)
{
	int fd;

	while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0)
		watch(fd, EPOLLIN | EPOLLRDHUP | EPOLLET);
	if (errno != EAGAIN)
		die("accept4");
}

/* False: the connection has ended. */
static bool answer(int fd, unsigned int events)
{
	char buf[BENCH_ECHO_BUFFER];
	ssize_t n;

	do {
		n = recv(fd, buf, sizeof(buf), 0);
		if (n > 0 && send(fd, buf, (size_t)n, MSG_NOSIGNAL) != n)
			return false;
	} while (n == sizeof(buf) || (n > 0 && events & EPOLLRDHUP));
	return n > 0 || (n < 0 && errno == EAGAIN);
}

static void echo(int listener)
{
	static struct epoll_event e[EVENTS];
	int i, n;

	ep = epoll_create1(0);
	watch(listener, EPOLLIN | EPOLLET);
	take_all(listener);
	for (;;) {
		n = epoll_wait(ep, e, EVENTS, -1);
		if (n < 0)
			die("epoll_wait");
		for (i = 0; i < n; i++) {
			if (e[i].data.fd == listener)
				take_all(listener);
			else if (!answer(e[i].data.fd, e[i].events))
				close(e[i].data.fd);
		}
	}
}

static const struct bench_ops ops = { .echo = echo };

int main(int argc, char **argv)
{
	return bench_main(argc, argv, &ops);
}
