// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * rw.c - read and write what may be no socket
 *
 * Sockets receive and send without waiting. Others: preadv2(RWF_NOWAIT) at the
 * file's own position. In newer kernels pipes and others know it; files on disk do
 * if the page is cached. Who does not (EOPNOTSUPP; or EAGAIN, a page not cached) is
 * asked by poll(2) whether it is ready, and then read as usual:
 *
 *   files, directories, block devices	are always ready; the call blocks
 *   others (pipes before Linux 6.5,	poll and call are one: under a mutex, so
 *   terminals, timers ...)		that no other fiber takes what poll saw. Then
 *					the call does not block, unless another
 *					process does.
 *
 * A write: the same, without SIGPIPE; where poll must say it, as many bytes as
 * fit for certain: PIPE_BUF.
 */
#include <limits.h>
#include <sys/stat.h>

#include "iov.h"

#ifndef RWF_NOWAIT
#define RWF_NOWAIT	8
#endif

static bool on_disk(mode_t mode)
{
	return S_ISREG(mode) || S_ISBLK(mode) || S_ISDIR(mode);
}

/* ---- the call itself, one way or the other ---- */

static long transfer(struct fb_io *k, const struct iovec *iov, int n, int flags)
{
	if (k->events == POLLOUT)
		return fb_os_writev(k->fd, iov, n, flags);
	return fb_sys(SYS_preadv2, k->fd, iov, n, -1, -1, flags);
}

/* It may block: a signal of ours can end it. */
static long transfer_blocking(struct fb_io *k, const struct iovec *iov, int n)
{
	long r;

	do {
		fiber_blocking_begin();
		r = transfer(k, iov, n, 0);
		fiber_blocking_end();
		if (r == -EINTR && k->deadline && fiber_cancelled())
			return -ECANCELED;
	} while (r == -EINTR);
	return r;
}

/* ---- try ---- */

/* As many as go for certain, when poll says that some do. */
static int cut(const struct iovec *iov, int n, struct iovec *some)
{
	size_t left = PIPE_BUF;
	int i;

	for (i = 0; i < n && i < FB_IOV && left; i++) {
		some[i] = iov[i];
		if (some[i].iov_len > left)
			some[i].iov_len = left;
		left -= some[i].iov_len;
	}
	return i;
}

static long poll_and_transfer(struct fb_io *k, const struct iovec *iov, int n)
{
	struct iovec some[FB_IOV];
	int ready = fb_io_poll_now(k->fd, k->events);

	if (ready <= 0)
		return ready ? ready : -EAGAIN;
	if (k->events == POLLOUT) {
		n = cut(iov, n, some);
		iov = some;
	}
	return transfer(k, iov, n, 0);
}

static long take_turn(struct fb_io *k, const struct iovec *iov, int n)
{
	long r = fb_io_turn(k);

	if (r)
		return r;
	r = poll_and_transfer(k, iov, n);
	return fb_io_turn_end(k, r);
}

static long try_socket(struct fb_io *k, const struct iovec *iov, int n)
{
	struct msghdr m = { .msg_iov = (struct iovec *)(uintptr_t)iov,
			    .msg_iovlen = (size_t)n };
	bool out = k->events == POLLOUT;
	int flags = out ? MSG_DONTWAIT | MSG_NOSIGNAL : MSG_DONTWAIT;

	if (n == 1)			/* less to copy */
		return fb_sys(out ? SYS_sendto : SYS_recvfrom, k->fd,
			      iov->iov_base, iov->iov_len, flags, NULL, NULL);
	return fb_sys(out ? SYS_sendmsg : SYS_recvmsg, k->fd, &m, flags);
}

static long try_others(struct fb_io *k, const struct iovec *iov, int n)
{
	long r = transfer(k, iov, n, RWF_NOWAIT), err;
	struct stat st;

	if (r != -EAGAIN && r != -EOPNOTSUPP)
		return r;
	err = fb_sys(SYS_fstat, k->fd, &st);
	if (err)
		return err;
	if (on_disk(st.st_mode))
		return transfer_blocking(k, iov, n);
	if (S_ISSOCK(st.st_mode)) {	/* the hint was of another file */
		if (k->e)
			FB_WRITE(k->e->no_socket, false);
		return try_socket(k, iov, n);
	}
	return r == -EAGAIN ? r : take_turn(k, iov, n);
}

/* As far as is known. */
static bool is_socket(const struct fb_io *k)
{
	return !k->e || !FB_READ(k->e->no_socket);
}

/* Without waiting; a file on disk may block. */
static long try(struct fb_io *k, const struct iovec *iov, int n)
{
	long r;

	if (is_socket(k)) {
		r = try_socket(k, iov, n);
		if (r != -ENOTSOCK)
			return r;
		if (k->e)
			FB_WRITE(k->e->no_socket, true);
	}
	return try_others(k, iov, n);
}

/* ---- read ---- */

struct vector {
	const struct iovec *at;
	int n;
};

static long read_once(struct fb_io *k, void *what, bool *full)
{
	struct vector *v = what;
	long r = try(k, v->at, v->n);

	*full = r >= (long)v->at->iov_len;
	return r;
}

FB_EXPORT ssize_t fiber_readv_until(int fd, const struct iovec *iov, int n,
				    uint64_t deadline)
{
	struct vector v = { iov, n };
	struct fb_io k;
	long r;

	if (!fb_iov_bytes(iov, n))	/* or too many of them */
		return fb_sys(SYS_readv, fd, iov, n);
	r = fb_io_begin(&k, fd, POLLIN, deadline);
	return r ? r : fb_io_end(&k, fb_io_receive(&k, read_once, &v));
}

FB_EXPORT ssize_t fiber_readv(int fd, const struct iovec *iov, int n)
{
	return fiber_readv_until(fd, iov, n, FB_NEVER);
}

FB_EXPORT ssize_t fiber_read_until(int fd, void *buf, size_t n,
				   uint64_t deadline)
{
	struct iovec v = { buf, n < FB_IO_MOST ? n : FB_IO_MOST };

	if (!n)
		return fb_sys(SYS_read, fd, buf, 0);
	return fiber_readv_until(fd, &v, 1, deadline);
}

FB_EXPORT ssize_t fiber_read(int fd, void *buf, size_t n)
{
	return fiber_read_until(fd, buf, n, FB_NEVER);
}

/* ---- write ---- */

/* All of it, as far as it goes. */
static long write_all(struct fb_io *k, struct fb_iov *v)
{
	long r, done = 0;

	for (;;) {
		r = done && is_socket(k) ? fb_io_next(k) : 1;
		if (r < 0)
			return done;
		r = r ? try(k, v->at, v->n) : -EAGAIN;
		if (r >= 0) {
			done += r;
			k->vain = 0;
			if (!fb_iov_advance(v, (size_t)r))
				return done;
			if (k->deadline && fiber_cancelled())
				return done;
		} else if (r != -EAGAIN || (r = fb_io_wait(k))) {
			return done ? done : r;
		}
	}
}

static ssize_t write_vector(int fd, const struct iovec *iov, int n,
			    uint64_t deadline)
{
	struct fb_iov v;
	struct fb_io k;
	long r;

	r = fb_iov_begin(&v, iov, n);
	if (r)
		return r;
	r = fb_io_begin(&k, fd, POLLOUT, deadline);
	if (!r)
		r = fb_io_end(&k, write_all(&k, &v));
	fb_iov_end(&v);
	return r;
}

FB_EXPORT ssize_t fiber_writev_until(int fd, const struct iovec *iov, int n,
				     uint64_t deadline)
{
	/* Nothing: no packet of no bytes either. Or too many of them. */
	if (!fb_iov_bytes(iov, n))
		return fb_sys(SYS_writev, fd, iov, n);
	return write_vector(fd, iov, n, deadline);
}

FB_EXPORT ssize_t fiber_writev(int fd, const struct iovec *iov, int n)
{
	return fiber_writev_until(fd, iov, n, FB_NEVER);
}

FB_EXPORT ssize_t fiber_write_until(int fd, const void *buf, size_t n,
				    uint64_t deadline)
{
	struct iovec v = { (void *)(uintptr_t)buf,
			   n < FB_IO_MOST ? n : FB_IO_MOST };

	return write_vector(fd, &v, 1, deadline);
}

FB_EXPORT ssize_t fiber_write(int fd, const void *buf, size_t n)
{
	return fiber_write_until(fd, buf, n, FB_NEVER);
}
