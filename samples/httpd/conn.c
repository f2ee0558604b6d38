/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * conn.c - one connection, one fiber, from accept to close
 *
 * Everything here blocks, and that is the point (or parks: -f). Limits that keep one client
 * from being a burden: srv.timeout seconds of silence between requests, as
 * many for a whole request head however it trickles in, HEAD_MAX bytes of it.
 */
#define _GNU_SOURCE 1
#include <errno.h>
#include <fiber/io.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "httpd.h"

enum { LINGER_S = 5 };

/*
 * As a plain call would say it. Not inlined: a fiber that waits may go on as another
 * thread, so errno must be looked up anew.
 */
static __attribute__((noinline)) ssize_t plainly(ssize_t r)
{
	if (r >= 0)
		return r;
	errno = (int)-r;
	return -1;
}

ssize_t sock_read(int fd, void *buf, size_t n)
{
	return srv.fiber_io ? plainly(fiber_read(fd, buf, n)) : read(fd, buf, n);
}

ssize_t sock_send(int fd, const void *buf, size_t n, int flags)
{
	return srv.fiber_io ? plainly(fiber_send(fd, buf, n, flags)) :
			      send(fd, buf, n, flags);
}

ssize_t sock_sendfile(int fd, int file, off_t *from, size_t n)
{
	return srv.fiber_io ? plainly(fiber_sendfile(fd, file, from, n)) :
			      sendfile(fd, file, from, n);
}

static time_t now_s(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec;
}

static void set_timeout(int fd, int option, time_t seconds)
{
	struct timeval tv = { .tv_sec = seconds };

	setsockopt(fd, SOL_SOCKET, option, &tv, sizeof(tv));
}

/* Bytes of the request head in buf with its empty line; 0: not all there. */
static size_t head_length(const struct conn *c)
{
	const char *at = c->buf, *end = c->buf + c->len;

	while ((at = memchr(at, '\n', (size_t)(end - at)))) {
		at++;
		if (end - at >= 1 && at[0] == '\n')
			return (size_t)(at + 1 - c->buf);
		if (end - at >= 2 && at[0] == '\r' && at[1] == '\n')
			return (size_t)(at + 2 - c->buf);
	}
	return 0;
}

void conn_relax(struct conn *c)
{
	if (c->rushed)
		set_timeout(c->fd, SO_RCVTIMEO, srv.timeout);
	c->rushed = false;
}

static void drop(struct conn *c, size_t n)
{
	memmove(c->buf, c->buf + n, c->len - n);
	c->len -= n;
}

/* Empty lines before a request are no request (RFC 9112, 2.2). */
static void drop_empty_lines(struct conn *c)
{
	size_t n = 0;

	while (n < c->len && (c->buf[n] == '\r' || c->buf[n] == '\n'))
		n++;
	drop(c, n);
}

/* More bytes. 0, or the status to close with, or -1: just close. */
static int fill(struct conn *c, time_t deadline)
{
	time_t left = deadline - now_s();
	ssize_t n;

	if (c->len == HEAD_MAX)
		return 431;
	if (c->len > 0 && left <= 0)
		return 408;
	if (c->len > 0) {
		set_timeout(c->fd, SO_RCVTIMEO, left);
		c->rushed = true;
	}
	n = sock_read(c->fd, c->buf + c->len, HEAD_MAX - c->len);
	if (n > 0) {
		c->len += (size_t)n;
		return 0;
	}
	if (n < 0 && errno == EINTR)
		return 0;
	return n < 0 && errno == EAGAIN && c->len > 0 ? 408 : -1;
}

/* Waits for a whole request head. Its length, or as fill() with a minus. */
static ssize_t read_head(struct conn *c)
{
	time_t deadline = now_s() + srv.timeout;
	size_t n;

	conn_relax(c);
	for (drop_empty_lines(c); !(n = head_length(c)); drop_empty_lines(c)) {
		bool first = c->len == 0;
		int status = fill(c, deadline);

		if (status)
			return status < 0 ? -1 : -status;
		if (first)	/* idle until now */
			deadline = now_s() + srv.timeout;
	}
	return (ssize_t)n;
}

static int refuse(struct conn *c, int status)
{
	struct reply why = { .status = status };

	return reply_error(c, &why);
}

/* One request. False: this connection is over. */
static bool answer_one(struct conn *c)
{
	ssize_t n = read_head(c);
	int status, r;

	if (n == -1)
		return false;
	atomic_fetch_add(&srv.busy, 1);
	if (n < 0) {
		memset(&c->rq, 0, offsetof(struct request, fields));
		r = refuse(c, (int)-n);
	} else {
		status = request_parse(&c->rq, c->buf, (size_t)n);
		c->taken = (size_t)n;
		r = status ? refuse(c, status) : serve(c);
		drop(c, c->taken);
	}
	atomic_fetch_add(&srv.served, 1);
	atomic_fetch_sub(&srv.busy, 1);
	return r == 0 && c->rq.keep_alive;
}

/*
 * Closing with bytes unread would reset the connection, and the client might
 * lose the answer: say we are done, then read what is still coming, for a
 * moment.
 */
static void linger(int fd)
{
	time_t deadline = now_s() + LINGER_S;
	char waste[4096];

	if (shutdown(fd, SHUT_WR) < 0)
		return;
	set_timeout(fd, SO_RCVTIMEO, 1);
	while (now_s() < deadline && sock_read(fd, waste, sizeof(waste)) > 0)
		;
}

void *conn_main(void *arg)
{
	int fd = (int)(intptr_t)arg, one = 1;
	struct conn *c = calloc(1, sizeof(*c));

	if (c) {
		c->fd = fd;
		set_timeout(fd, SO_RCVTIMEO, srv.timeout);
		set_timeout(fd, SO_SNDTIMEO, srv.timeout);
		setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
		while (answer_one(c))
			;
		linger(fd);
		free(c);
	}
	close(fd);
	atomic_fetch_sub(&srv.conns, 1);
	return NULL;
}
