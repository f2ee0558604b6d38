// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * sock.c - what only sockets do
 *
 * Each try is the system call with MSG_DONTWAIT. accept has no such flag: poll and
 * call are one, under the mutex of the number, so that of many who accept there
 * none blocks in a call for what another took. connect is made with O_NONBLOCK.
 */
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/un.h>
#include <time.h>

#include "iov.h"

#define RETRY_NS	500000		/* a queue of a Unix socket is full */

/* ---- receive ---- */

/* Flags with which the plain call never waits, or we cannot. */
static bool plainly(int flags)
{
	return (flags & (MSG_DONTWAIT | MSG_OOB | MSG_ERRQUEUE)) ||
	       (flags & (MSG_PEEK | MSG_WAITALL)) == (MSG_PEEK | MSG_WAITALL);
}

static long receive_plainly(struct fb_io *k, struct msghdr *m, int flags)
{
	long r;

	do {
		fiber_blocking_begin();
		r = fb_sys(SYS_recvmsg, k->fd, m, flags);
		fiber_blocking_end();
		if (r == -EINTR && k->deadline && fiber_cancelled())
			return -ECANCELED;
	} while (r == -EINTR);
	return r;
}

/* A message; or bytes alone, which are less to copy. */
struct receipt {
	struct msghdr *m;
	void *buf;
	size_t n;
	int flags;
};

/* What is looked at is there still. */
static bool leaves_all(const struct receipt *t)
{
	return t->flags & MSG_PEEK;
}

static long message_once(struct fb_io *k, void *what, bool *full)
{
	struct receipt *t = what;
	long r = fb_sys(SYS_recvmsg, k->fd, t->m, t->flags | MSG_DONTWAIT);

	*full = r >= 0 && (leaves_all(t) || !t->m->msg_iovlen ||
			   r >= (long)t->m->msg_iov->iov_len);
	return r;
}

static long bytes_once(struct fb_io *k, void *what, bool *full)
{
	struct receipt *t = what;
	long r = fb_sys(SYS_recvfrom, k->fd, t->buf, t->n,
			t->flags | MSG_DONTWAIT, NULL, NULL);

	*full = r >= (long)t->n || (r >= 0 && leaves_all(t));
	return r;
}

static long receive(struct fb_io *k, struct msghdr *m, int flags)
{
	struct receipt t = { .m = m, .flags = flags };

	return fb_io_receive(k, message_once, &t);
}

/* The next byte is behind the urgent one, where each receive but the first ends. */
static bool at_mark(int fd)
{
	int at = 0;

	return !fb_sys(SYS_ioctl, fd, SIOCATMARK, &at) && at;
}

/*
 * More, if there is more: what else there is to tell the next call does. An urgent byte
 * that has come, with nothing before it: POLLPRI ends the wait.
 */
static long receive_next(struct fb_io *k, struct msghdr *m, int flags)
{
	long r;

	k->events = POLLIN | POLLPRI;
	do {
		if (at_mark(k->fd))
			return 0;
		r = fb_io_next(k);
		if (r < 0)
			return r;
		if (r)
			r = fb_sys(SYS_recvmsg, k->fd, m, flags | MSG_DONTWAIT);
		else
			r = -EAGAIN;
	} while (r == -EAGAIN && !(r = fb_io_wait(k)));
	return r;
}

/* MSG_WAITALL: the first part says who sent it; then more until all is full. */
static long receive_all(struct fb_io *k, struct msghdr *m, int flags)
{
	struct msghdr more = { 0 };
	long r, done = receive(k, m, flags);
	struct fb_iov v;

	if (done <= 0 || fb_iov_begin(&v, m->msg_iov, (int)m->msg_iovlen))
		return done;
	r = done;
	while (r > 0 && fb_iov_advance(&v, (size_t)r) &&
	       !(m->msg_flags & (MSG_EOR | MSG_TRUNC))) {
		if (k->deadline && fiber_cancelled())
			break;
		more.msg_iov = v.at;
		more.msg_iovlen = (size_t)v.n;
		r = receive_next(k, &more, flags);
		if (r > 0)
			done += r;
		k->vain = 0;
	}
	fb_iov_end(&v);
	return done;
}

/* Of packets one is received, however much is wanted. */
static bool is_stream(int fd)
{
	int type = 0;
	unsigned int size = sizeof(type);

	return fb_sys(SYS_getsockopt, fd, SOL_SOCKET, SO_TYPE, &type, &size) ||
	       type == SOCK_STREAM;
}

FB_EXPORT ssize_t fiber_recvmsg_until(int fd, struct msghdr *m, int flags,
				      uint64_t deadline)
{
	struct fb_io k;
	long r = fb_io_begin(&k, fd, POLLIN, deadline);

	if (r)
		return r;
	if (plainly(flags))
		r = receive_plainly(&k, m, flags);
	else if ((flags & MSG_WAITALL) && is_stream(fd))
		r = receive_all(&k, m, flags);
	else
		r = receive(&k, m, flags);
	return fb_io_end(&k, r);
}

FB_EXPORT ssize_t fiber_recvmsg(int fd, struct msghdr *m, int flags)
{
	return fiber_recvmsg_until(fd, m, flags, FB_NEVER);
}

static ssize_t recv_bytes(int fd, void *buf, size_t n, int flags,
			  uint64_t deadline)
{
	struct receipt t = { .buf = buf, .n = n, .flags = flags };
	struct fb_io k;
	long r = fb_io_begin(&k, fd, POLLIN, deadline);

	return r ? r : fb_io_end(&k, fb_io_receive(&k, bytes_once, &t));
}

FB_EXPORT ssize_t fiber_recvfrom_until(int fd, void *buf, size_t n, int flags,
				       struct sockaddr *addr, socklen_t *len,
				       uint64_t deadline)
{
	struct iovec v = { buf, n };
	struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1 };
	ssize_t r;

	if (addr && len) {
		m.msg_name = addr;
		m.msg_namelen = *len;
	}
	r = fiber_recvmsg_until(fd, &m, flags, deadline);
	if (r >= 0 && addr && len)
		*len = m.msg_namelen;
	return r;
}

FB_EXPORT ssize_t fiber_recvfrom(int fd, void *buf, size_t n, int flags,
				 struct sockaddr *addr, socklen_t *len)
{
	return fiber_recvfrom_until(fd, buf, n, flags, addr, len, FB_NEVER);
}

FB_EXPORT ssize_t fiber_recv_until(int fd, void *buf, size_t n, int flags,
				   uint64_t deadline)
{
	if (!plainly(flags) && !(flags & MSG_WAITALL))
		return recv_bytes(fd, buf, n, flags, deadline);
	return fiber_recvfrom_until(fd, buf, n, flags, NULL, NULL, deadline);
}

FB_EXPORT ssize_t fiber_recv(int fd, void *buf, size_t n, int flags)
{
	return fiber_recv_until(fd, buf, n, flags, FB_NEVER);
}

/* ---- send ---- */

/* A Unix socket's queue is full, and nothing tells when it is not. */
static long wait_for_room(struct fb_io *k)
{
	uint64_t now = fiber_now(), until = now + RETRY_NS;
	long r = k->looked ? 0 : fb_io_look(k);

	if (r)
		return r;
	if (now >= k->timeo)
		return -EAGAIN;
	if (now >= k->deadline)
		return -ETIMEDOUT;
	if (until > k->timeo)
		until = k->timeo;
	return fb_io_nap(until < k->deadline ? until : k->deadline);
}

/*
 * Until more can be sent. poll(2) says that a Unix socket may send although the
 * queue of the one it sends to, without a connection, is full.
 */
static long wait_to_send(struct fb_io *k, int again)
{
	return again > 1 ? wait_for_room(k) : fb_io_wait(k);
}

static long send_part(struct fb_io *k, const struct msghdr *m, int flags)
{
	if (m->msg_iovlen != 1 || m->msg_name || m->msg_control)
		return fb_sys(SYS_sendmsg, k->fd, m, flags);
	/* Less to copy. */
	return fb_sys(SYS_sendto, k->fd, m->msg_iov->iov_base,
		      m->msg_iov->iov_len, flags, NULL, 0);
}

/* All of a stream, one packet; the address and the like go with the first part. */
static long send_all(struct fb_io *k, struct msghdr *m, struct fb_iov *v,
		     int flags)
{
	long r, done = 0;
	int again = 0;

	for (;; again++) {
		r = done ? fb_io_next(k) : 1;
		if (r < 0)
			return done;
		m->msg_iov = v->at;
		m->msg_iovlen = (size_t)v->n;
		r = r ? send_part(k, m, flags | MSG_DONTWAIT | MSG_NOSIGNAL) :
			-EAGAIN;
		if (r >= 0) {
			done += r;
			k->vain = 0;
			if (!fb_iov_advance(v, (size_t)r) ||
			    (flags & MSG_DONTWAIT) ||
			    (k->deadline && fiber_cancelled()))
				return done;
			m->msg_control = NULL;
			m->msg_controllen = 0;
			again = -1;
		} else if (r != -EAGAIN || (flags & MSG_DONTWAIT) ||
			   (r = wait_to_send(k, again))) {
			return done ? done : r;
		}
	}
}

FB_EXPORT ssize_t fiber_sendmsg_until(int fd, const struct msghdr *msg,
				      int flags, uint64_t deadline)
{
	struct msghdr m = *msg;
	struct fb_iov v;
	struct fb_io k;
	long r;

	if (m.msg_iovlen > INT32_MAX)
		return -EMSGSIZE;
	r = fb_iov_begin(&v, m.msg_iov, (int)m.msg_iovlen);
	if (r)
		return r == -EINVAL ? -EMSGSIZE : r;
	r = fb_io_begin(&k, fd, POLLOUT, deadline);
	if (!r)
		r = fb_io_end(&k, send_all(&k, &m, &v, flags));
	fb_iov_end(&v);
	return r;
}

FB_EXPORT ssize_t fiber_sendmsg(int fd, const struct msghdr *msg, int flags)
{
	return fiber_sendmsg_until(fd, msg, flags, FB_NEVER);
}

FB_EXPORT ssize_t fiber_sendto_until(int fd, const void *buf, size_t n,
				     int flags, const struct sockaddr *addr,
				     socklen_t len, uint64_t deadline)
{
	struct iovec v = { (void *)(uintptr_t)buf, n };
	struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1 };

	m.msg_name = (void *)(uintptr_t)addr;
	m.msg_namelen = addr ? len : 0;
	return fiber_sendmsg_until(fd, &m, flags, deadline);
}

FB_EXPORT ssize_t fiber_sendto(int fd, const void *buf, size_t n, int flags,
			       const struct sockaddr *addr, socklen_t len)
{
	return fiber_sendto_until(fd, buf, n, flags, addr, len, FB_NEVER);
}

FB_EXPORT ssize_t fiber_send_until(int fd, const void *buf, size_t n, int flags,
				   uint64_t deadline)
{
	return fiber_sendto_until(fd, buf, n, flags, NULL, 0, deadline);
}

FB_EXPORT ssize_t fiber_send(int fd, const void *buf, size_t n, int flags)
{
	return fiber_send_until(fd, buf, n, flags, FB_NEVER);
}

/* ---- accept ---- */

static bool listens(int fd)
{
	int on = 0;
	unsigned int size = sizeof(on);

	return !fb_sys(SYS_getsockopt, fd, SOL_SOCKET, SO_ACCEPTCONN, &on,
		       &size) && on;
}

/* One that does not listen says so at once. */
static long try_accept(struct fb_io *k, struct sockaddr *addr, socklen_t *len,
		       int flags)
{
	long r = fb_io_turn(k);

	if (r)
		return r;
	if (!fb_io_poll_now(k->fd, POLLIN) && listens(k->fd))
		r = -EAGAIN;
	else
		r = fb_sys(SYS_accept4, k->fd, addr, len, flags);
	return fb_io_turn_end(k, r);
}

FB_EXPORT int fiber_accept_until(int fd, struct sockaddr *addr, socklen_t *len,
				 int flags, uint64_t deadline)
{
	struct fb_io k;
	long r = fb_io_begin(&k, fd, POLLIN, deadline);

	if (r)
		return (int)r;
	do {
		r = try_accept(&k, addr, len, flags);
	} while (r == -EAGAIN && !(r = fb_io_wait(&k)));
	if (r >= 0)
		fb_fd_born((int)r);
	return (int)fb_io_end(&k, r);
}

FB_EXPORT int fiber_accept(int fd, struct sockaddr *addr, socklen_t *len,
			   int flags)
{
	return fiber_accept_until(fd, addr, len, flags, FB_NEVER);
}

/* ---- connect ---- */

/* O_NONBLOCK for this call alone: what is known of the file (known.c) stays. */
static long connect_quickly(const struct fb_io *k, const struct sockaddr *addr,
			    socklen_t len, long flags)
{
	long r;

	if (k->e)			/* pairs with the acquires in verify */
		__atomic_fetch_add(&k->e->connects, 1, __ATOMIC_SEQ_CST);
	fb_sys(SYS_fcntl, k->fd, F_SETFL, flags | O_NONBLOCK);
	r = fb_sys(SYS_connect, k->fd, addr, len);
	fb_sys(SYS_fcntl, k->fd, F_SETFL, flags);
	if (k->e)
		__atomic_fetch_add(&k->e->connects, 1, __ATOMIC_SEQ_CST);
	return r;
}

static long connect_now(const struct fb_io *k, const struct sockaddr *addr,
			socklen_t len, long flags)
{
	return flags & O_NONBLOCK ? fb_sys(SYS_connect, k->fd, addr, len) :
				    connect_quickly(k, addr, len, flags);
}

/* Its connect is under way. */
static long wait_connected(struct fb_io *k)
{
	int error = 0;
	unsigned int size = sizeof(error);
	long r;

	while (!(r = fb_io_poll_now(k->fd, POLLOUT)))
		if ((r = fb_io_wait(k)))
			return r == -EAGAIN ? -EINPROGRESS : r;
	if (r > 0)
		r = fb_sys(SYS_getsockopt, k->fd, SOL_SOCKET, SO_ERROR, &error,
			   &size);
	return r ? r : -error;
}

static long connect_held(struct fb_io *k, const struct sockaddr *addr,
			 socklen_t len)
{
	long flags = fb_sys(SYS_fcntl, k->fd, F_GETFL), r;

	if (flags < 0)
		return flags;
	do {
		r = connect_now(k, addr, len, flags);
	} while (r == -EAGAIN && !(flags & O_NONBLOCK) &&
		 len >= sizeof(addr->sa_family) && addr->sa_family == AF_UNIX &&
		 !(r = wait_for_room(k)));
	if (r == -EINPROGRESS && !(flags & O_NONBLOCK))
		r = wait_connected(k);
	return r;
}

FB_EXPORT int fiber_connect_until(int fd, const struct sockaddr *addr,
				  socklen_t len, uint64_t deadline)
{
	struct fb_io k;
	long r = fb_io_begin(&k, fd, POLLOUT, deadline);

	return (int)(r ? r : fb_io_end(&k, connect_held(&k, addr, len)));
}

FB_EXPORT int fiber_connect(int fd, const struct sockaddr *addr, socklen_t len)
{
	return fiber_connect_until(fd, addr, len, FB_NEVER);
}

FB_EXPORT int fiber_shutdown(int fd, int how)
{
	return (int)fb_sys(SYS_shutdown, fd, how);
}
