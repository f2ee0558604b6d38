// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * serve.c - a fiber for each connection
 *
 * The connections are fibers of one scope, and each holds one of `limit` permits of
 * a semaphore that the accepting fiber takes before it accepts: so what is above the
 * limit waits in the listener's queue. When descriptors or memory are short, the
 * listener stays ready and an accept would fail at once, again and again: it waits
 * for the end of a connection, which gives a permit of `freed`, or for a while.
 */
#include <stdlib.h>

#include "fb.h"
#include "sys.h"

#define SHORT_NS	10000000ULL	/* out of something */

struct server {
	fiber_scope_t scope;
	fiber_sem_t room, freed;
	bool limited;
	int (*fn)(int fd, void *arg);
	void *arg;
};

struct connection {
	struct server *s;
	int fd;
};

/* Its result would cancel the others. */
static int connection_main(void *arg)
{
	struct connection *c = arg;
	struct server *s = c->s;

	s->fn(c->fd, s->arg);
	fiber_close(c->fd);
	free(c);
	if (s->limited)
		fiber_sem_post(&s->room);
	if (!fiber_sem_value(&s->freed))
		fiber_sem_post(&s->freed);
	return 0;
}

static int start(struct server *s, int fd)
{
	int err = errno, r = -ENOMEM;
	struct connection *c = malloc(sizeof(*c));

	errno = err;
	if (c) {
		*c = (struct connection){ s, fd };
		r = fiber_scope_spawn(&s->scope, connection_main, c);
		if (!r)
			return 0;
	}
	free(c);
	fiber_close(fd);
	return r;
}

/* Not the listener's fault: the next accept may do. */
static bool passes(int r)
{
	switch (-r) {
	case EMFILE: case ENFILE: case ENOBUFS: case ENOMEM:
	case ECONNABORTED: case EPROTO: case EPERM:
	case ENETDOWN: case ENETUNREACH: case EHOSTDOWN: case EHOSTUNREACH:
	case ENONET: case ENOPROTOOPT:
		return true;
	}
	return false;
}

/* After such an error, or of a listener that has O_NONBLOCK. 0, or it ends. */
static int get_over(struct server *s, int fd, int error)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };
	int r;

	if (error == -EAGAIN)
		r = fiber_poll(&p, 1);
	else if (passes(error))
		r = fiber_sem_wait_until(&s->freed, fiber_now() + SHORT_NS);
	else
		return error;
	return r > 0 || r == -ETIMEDOUT ? 0 : r;
}

/* One connection more. 0, or it ends. */
static int serve_one(struct server *s, int fd)
{
	int r = s->limited ? fiber_sem_wait(&s->room) : 0, c;

	if (r)
		return r;
	c = fiber_accept(fd, NULL, NULL, SOCK_CLOEXEC);
	r = c < 0 ? c : start(s, c);
	if (r && s->limited)
		fiber_sem_post(&s->room);
	return r ? get_over(s, fd, r) : 0;
}

FB_EXPORT int fiber_serve(int fd, unsigned int limit,
			  int (*fn)(int fd, void *arg), void *arg)
{
	struct server s = { .limited = limit, .fn = fn, .arg = arg };
	int r;

	if (!fn)
		return -EINVAL;
	if (!fb_current())
		return -EPERM;
	fiber_sem_init(&s.room, limit);
	fiber_sem_init(&s.freed, 0);
	r = fiber_scope_open(&s.scope, NULL);
	if (r)
		return r;
	do {
		r = serve_one(&s, fd);
	} while (!r);
	fiber_scope_close(&s.scope);
	return r == -EBADF ? 0 : r;
}

/* ---- listen ---- */

static int listen_at(int fd, const struct sockaddr *addr, socklen_t len,
		     int backlog)
{
	int on = 1;
	long r;

	r = fb_sys(SYS_setsockopt, fd, SOL_SOCKET, SO_REUSEADDR, &on,
		   sizeof(on));
	if (!r)
		r = fb_sys(SYS_bind, fd, addr, len);
	if (!r)
		r = fb_sys(SYS_listen, fd, backlog > 0 ? backlog : INT32_MAX);
	return (int)r;
}

FB_EXPORT int fiber_listen(const struct sockaddr *addr, socklen_t len,
			   int backlog)
{
	int fd, r;

	if (!addr || len < sizeof(addr->sa_family))
		return -EINVAL;
	fd = (int)fb_sys(SYS_socket, addr->sa_family,
			 SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return fd;
	r = listen_at(fd, addr, len, backlog);
	if (!r)
		return fd;
	fiber_close(fd);
	return r;
}
