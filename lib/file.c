// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * file.c - calls on files
 *
 * What works on disks says nothing of when it would not block. So such a call is made
 *
 *   by the ring (ring.c)	while the fiber is parked; a deadline or a cancel of
 *				its wait has the kernel end the call
 *   or, without one,		as a blocking call, for which the backend gives the
 *				processor away. Nothing ends it but a signal of the
 *				kernel backend, which a fiber gets that is cancelled
 *				(blocked.c). So a deadline is that of a scope around
 *				the call: when it has come, the fiber is cancelled
 *				until it has left that.
 *
 * Only what a read finds in the page cache, and what some file systems write there, is
 * known not to wait (RWF_NOWAIT), and done at once.
 *
 * fiber_close waits for the calls that use its number, that of a folder too.
 */
#include <fcntl.h>
#include <sys/stat.h>

#include "iov.h"
#include "ring.h"

#ifndef RWF_NOWAIT
#define RWF_NOWAIT	8
#endif

/* ---- a call ---- */

static long blocking(const struct fb_call *k)
{
	long r;

	fiber_blocking_begin();
	r = fb_sys(k->nr, k->a, k->b, k->c, k->d, k->e);
	fiber_blocking_end();
	return r;
}

/* Both ways a call may end with -EINTR for nothing. */
static long again(const struct fb_call *k, uint64_t deadline)
{
	bool ring = fb_ring_on && fb_current();
	long r;

	do {
		if (fiber_cancelled())
			return -ECANCELED;
		r = ring ? fb_ring_call(k, deadline) : blocking(k);
	} while (r == -EINTR);
	return r;
}

/* Plain threads have no scopes where there is no runtime: they are not cancelled. */
static long in_scope(const struct fb_call *k, uint64_t deadline)
{
	struct fiber_scope_options o = { .size = sizeof(o),
					 .deadline = deadline };
	fiber_scope_t scope;
	long r;

	if (deadline == FB_NEVER || fb_ring_on || !fb_current())
		return again(k, deadline);
	r = fiber_scope_open(&scope, &o);
	if (r)
		return r == -EPERM ? again(k, deadline) : r;
	r = again(k, deadline);
	fiber_scope_close(&scope);
	return r != -ECANCELED || fiber_cancelled() ? r : -ETIMEDOUT;
}

static long begin(const struct fb_call *k, uint64_t deadline)
{
	if (fiber_cancelled())
		return -ECANCELED;
	if (deadline <= fiber_now())
		return -ETIMEDOUT;
	return in_scope(k, deadline);
}

/* The number is used meanwhile, if it is one. 0, or it is being closed: the error. */
static int hold(struct fb_fd **e, int fd, uint64_t deadline)
{
	fb_caller_heed();
	*e = fb_fd_get(fd);
	return *e ? fb_fd_hold(*e, deadline) : 0;
}

static long let_go(struct fb_fd *e, long r)
{
	if (e)
		fb_fd_release(e);
	return r;
}

static long call(long nr, long a, long b, long c, long d, long e,
		 uint64_t deadline)
{
	const struct fb_call k = { nr, a, b, c, d, e };
	struct fb_fd *held;
	int r = hold(&held, (int)a, deadline);

	return r ? r : let_go(held, begin(&k, deadline));
}

/* ---- read and write ---- */

/* What can be had at once, or that it is an error; -EAGAIN: it may wait. */
static long at_once(long nr, int fd, const void *buf, size_t n, off_t at)
{
	struct iovec v = { (void *)(uintptr_t)buf, n };
	long r;

	if (at < 0)			/* -1: at the file's own position */
		return -EINVAL;
	r = fb_sys(nr, fd, &v, 1, at, 0, RWF_NOWAIT);
	return r == -EOPNOTSUPP ? -EAGAIN : r;
}

/* done: at_once; the rest by the call proper. A read of nothing is the end. */
static long finish(long nr, long done, int fd, const void *buf, size_t n,
		   off_t at, uint64_t deadline)
{
	struct fb_call k = { .nr = nr, .a = fd };
	long r;

	if (done != -EAGAIN && (done <= 0 || done == (long)n))
		return done;
	if (done < 0)
		done = 0;
	k.b = (long)buf + done;
	k.c = (long)n - done;
	k.d = at + done;
	r = begin(&k, deadline);
	return !done ? r : r < 0 ? done : done + r;
}

FB_EXPORT ssize_t fiber_pread_until(int fd, void *buf, size_t n, off_t at,
				    uint64_t deadline)
{
	struct fb_fd *held;
	long r;

	if (deadline && fiber_cancelled())
		return -ECANCELED;
	if (n > FB_IO_MOST)
		n = FB_IO_MOST;
	r = hold(&held, fd, deadline);
	if (r)
		return r;
	r = at_once(SYS_preadv2, fd, buf, n, at);
	return let_go(held, finish(SYS_pread64, r, fd, buf, n, at, deadline));
}

FB_EXPORT ssize_t fiber_pread(int fd, void *buf, size_t n, off_t at)
{
	return fiber_pread_until(fd, buf, n, at, FB_NEVER);
}

FB_EXPORT ssize_t fiber_pwrite_until(int fd, const void *buf, size_t n, off_t at,
				     uint64_t deadline)
{
	struct fb_fd *held;
	long r;

	if (fiber_cancelled())
		return -ECANCELED;
	if (n > FB_IO_MOST)
		n = FB_IO_MOST;
	r = hold(&held, fd, deadline);
	if (r)
		return r;
	r = -EAGAIN;
	/* The ring takes no notice of at where there are no positions. */
	if (fb_ring_on && deadline > fiber_now())
		r = at_once(SYS_pwritev2, fd, buf, n, at);
	return let_go(held, finish(SYS_pwrite64, r, fd, buf, n, at, deadline));
}

FB_EXPORT ssize_t fiber_pwrite(int fd, const void *buf, size_t n, off_t at)
{
	return fiber_pwrite_until(fd, buf, n, at, FB_NEVER);
}

/* ---- the rest ---- */

FB_EXPORT int fiber_fsync_until(int fd, uint64_t deadline)
{
	return (int)call(SYS_fsync, fd, 0, 0, 0, 0, deadline);
}

FB_EXPORT int fiber_fsync(int fd)
{
	return fiber_fsync_until(fd, FB_NEVER);
}

FB_EXPORT int fiber_fdatasync_until(int fd, uint64_t deadline)
{
	return (int)call(SYS_fdatasync, fd, 0, 0, 0, 0, deadline);
}

FB_EXPORT int fiber_fdatasync(int fd)
{
	return fiber_fdatasync_until(fd, FB_NEVER);
}

FB_EXPORT int fiber_statx_until(int dir, const char *path, int flags,
				unsigned int mask, struct statx *st,
				uint64_t deadline)
{
	return (int)call(SYS_statx, dir, (long)path, flags, mask, (long)st,
			 deadline);
}

FB_EXPORT int fiber_statx(int dir, const char *path, int flags,
			  unsigned int mask, struct statx *st)
{
	return fiber_statx_until(dir, path, flags, mask, st, FB_NEVER);
}

FB_EXPORT int fiber_openat_until(int dir, const char *path, int flags,
				 mode_t mode, uint64_t deadline)
{
	int fd = (int)call(SYS_openat, dir, (long)path, flags, mode, 0,
			   deadline);

	if (fd >= 0)
		fb_fd_born(fd);
	return fd;
}

FB_EXPORT int fiber_openat(int dir, const char *path, int flags, mode_t mode)
{
	return fiber_openat_until(dir, path, flags, mode, FB_NEVER);
}

FB_EXPORT int fiber_open_until(const char *path, int flags, mode_t mode,
			       uint64_t deadline)
{
	return fiber_openat_until(AT_FDCWD, path, flags, mode, deadline);
}

FB_EXPORT int fiber_open(const char *path, int flags, mode_t mode)
{
	return fiber_openat_until(AT_FDCWD, path, flags, mode, FB_NEVER);
}
