/* SPDX-License-Identifier: GPL-2.0-only */
/* tcp.h - connections, for tests of what the network says */
#ifndef TCP_H
#define TCP_H

#include <arpa/inet.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "common.h"

/* Of the listener made last. */
static struct sockaddr_in where;

static inline int tcp(void)
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	check(fd >= 0);
	return fd;
}

static inline int door(int backlog)
{
	socklen_t len = sizeof(where);
	int fd;

	where = (struct sockaddr_in){ .sin_family = AF_INET };
	where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	fd = fiber_listen((void *)&where, len, backlog);
	check(fd >= 0);
	check_eq(0, getsockname(fd, (void *)&where, &len));
	return fd;
}

static inline int connect_there(int fd, uint64_t deadline)
{
	return fiber_connect_until(fd, (void *)&where, sizeof(where), deadline);
}

/* The two ends of a connection. */
static inline void connected(int *c, int *s)
{
	int fd = door(8);

	*c = tcp();
	check_eq(0, connect_there(*c, FIBER_NEVER));
	*s = fiber_accept(fd, NULL, NULL, SOCK_CLOEXEC);
	check(*s >= 0);
	check_eq(0, fiber_close(fd));
}

/* A network of our own, with nothing in it but lo. */
static inline bool have_network(void)
{
	struct ifreq up = { .ifr_name = "lo", .ifr_flags = IFF_UP };
	int fd, r;

	if (unshare(CLONE_NEWNET))
		return false;
	fd = socket(AF_INET, SOCK_DGRAM, 0);
	r = ioctl(fd, SIOCSIFFLAGS, &up);
	close(fd);
	return !r;
}

#define MUCH	(64L << 20)

/* A file of nothing but zeros. */
static inline int much(void)
{
	int fd = memfd_create("much", MFD_CLOEXEC);

	check_eq(0, ftruncate(fd, MUCH));
	return fd;
}

static inline int runs(const struct fiber_info *i, void *self)
{
	return is_under_way(i, self) && i->state != FIBER_BLOCKED;
}

/*
 * What was written waits there, there is no room for more, and who wrote it waits: a
 * reset in the middle of a try takes the error with it.
 */
static inline void wait_for_full(int fd)
{
	int now = 0, before;

	do {
		before = now;
		check_eq(0, fiber_sleep(10 * MS));
		check_eq(0, ioctl(fd, FIONREAD, &now));
	} while (!now || now != before || fiber_walk(runs, fiber_self()) > 0);
}

#endif
