// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * ioask.c - what a descriptor is ready for now, without a wait
 *
 * poll(2) says POLLERR for two things: an error, which the next try takes from the
 * socket and tells; and a notice of the kernel (of time, of copies), which waits in
 * the error queue for recvmsg(MSG_ERRQUEUE), and which no try takes.
 *
 *	POLLERR and		is
 *	the end (POLLHUP)	an error, or was one: a socket is reset
 *	nothing else		a notice, if the program wants any; or, rarely, an
 *				error that ends nothing: IP_RECVERR asks for those
 *
 * To ask which (SO_ERROR) takes the error. A call that has moved something must leave
 * it to the next one, so it goes by what the program has asked for.
 */
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "io.h"

/* poll(2) that does not wait: yet a signal ends it. */
int fb_io_poll_all(struct pollfd *p, unsigned int n)
{
	int r;

	do {
		r = (int)fb_sys(SYS_poll, p, n, 0);
	} while (r == -EINTR);
	return r;
}

int fb_io_poll_now(int fd, uint32_t events)
{
	struct pollfd p = { .fd = fd, .events = (short)events };
	int r = fb_io_poll_all(&p, 1);

	return r < 0 ? r : p.revents;
}

/* Or nobody knows. */
static bool has_bytes(int fd)
{
	int bytes = 0;

	return fb_sys(SYS_ioctl, fd, FIONREAD, &bytes) || bytes;
}

/*
 * A reset sets the error first, and the end later, all with the socket locked: what
 * looks in between takes that lock, as FIONREAD does, and looks again.
 */
static int poll_whole(int fd, uint32_t events)
{
	int r = fb_io_poll_now(fd, events);

	if (r > 0 && (r & (POLLERR | POLLHUP)) == POLLERR) {
		has_bytes(fd);
		r = fb_io_poll_now(fd, events);
	}
	return r;
}

static bool is_set(int fd, int level, int option)
{
	unsigned int size = sizeof(int);
	int on = 0;

	return !fb_sys(SYS_getsockopt, fd, level, option, &on, &size) && on;
}

/* What POLLERR without an end means. */
static bool is_notice(int fd)
{
	return (is_set(fd, SOL_SOCKET, SO_TIMESTAMPING) ||
		is_set(fd, SOL_SOCKET, SO_ZEROCOPY)) &&
	       !is_set(fd, IPPROTO_IP, IP_RECVERR) &&
	       !is_set(fd, IPPROTO_IPV6, IPV6_RECVERR);
}

/* What poll said, POLLERR only if a try would tell it; -EPIPE: nothing but that. */
static int without_error(const struct fb_io *k, int r)
{
	if (r <= 0 || !(r & POLLERR))
		return r;
	return is_notice(k->fd) ? r & ~POLLERR : -EPIPE;
}

int fb_io_next(const struct fb_io *k)
{
	int r;

	if (k->events == POLLOUT) {
		r = poll_whole(k->fd, POLLOUT);
		return r > 0 && (r & POLLHUP) ? -EPIPE : without_error(k, r);
	}
	/* What has come before an error is received before it. */
	if (has_bytes(k->fd))
		return 1;
	r = poll_whole(k->fd, POLLIN | POLLRDHUP);
	if (r <= 0 || !(r & (POLLERR | POLLHUP | POLLRDHUP)))
		return r;
	/* So has what came between the two looks, the last of all with the end. */
	if (has_bytes(k->fd))
		return 1;
	return r & (POLLHUP | POLLRDHUP) ? -EPIPE : without_error(k, r);
}

int fb_io_error(int fd)
{
	unsigned int size = sizeof(int);
	int e = 0;

	if (fb_sys(SYS_getsockopt, fd, SOL_SOCKET, SO_ERROR, &e, &size))
		return POLLERR;		/* no socket */
	return -e;
}
