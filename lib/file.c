// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * file.c - calls on files
 *
 * What works on disks says nothing of when it would not block: these are blocking
 * calls, for which the backend gives the processor away. Only what a read finds in
 * the page cache is known not to wait (RWF_NOWAIT).
 *
 * Nothing ends such a call but a signal of the kernel backend, which a fiber gets
 * that is cancelled (blocked.c). So a deadline is that of a scope around the call:
 * when it has come, the fiber is cancelled until it has left that.
 *
 * fiber_close waits for the calls that use its number, that of a folder too.
 */
#include <fcntl.h>
#include <sys/stat.h>

#include "iov.h"

#ifndef RWF_NOWAIT
#define RWF_NOWAIT	8
#endif

static long blocking(long nr, long a, long b, long c, long d, long e)
{
	long r;

	do {
		if (fiber_cancelled())
			return -ECANCELED;
		fiber_blocking_begin();
		r = fb_sys(nr, a, b, c, d, e);
		fiber_blocking_end();
	} while (r == -EINTR);
	return r;
}

/* The number a is used meanwhile, if it is one. */
static long blocking_held(long nr, long a, long b, long c, long d, long e)
{
	struct fb_fd *held = fb_fd_get((int)a);
	long r;

	if (held)
		fb_fd_hold(held);
	r = blocking(nr, a, b, c, d, e);
	if (held)
		fb_fd_release(held);
	return r;
}

/* Plain threads have no scopes where there is no runtime: they are not cancelled. */
static long call(long nr, long a, long b, long c, long d, long e,
		 uint64_t deadline)
{
	struct fiber_scope_options o = { .size = sizeof(o),
					 .deadline = deadline };
	fiber_scope_t scope;
	long r;

	if (fiber_cancelled())
		return -ECANCELED;
	if (deadline == FB_NEVER)
		return blocking_held(nr, a, b, c, d, e);
	if (deadline <= fiber_now())
		return -ETIMEDOUT;
	r = fb_current() ? fiber_scope_open(&scope, &o) : -EPERM;
	if (r == -EPERM)
		return blocking_held(nr, a, b, c, d, e);
	if (r)
		return r;
	r = blocking_held(nr, a, b, c, d, e);
	fiber_scope_close(&scope);
	return r != -ECANCELED || fiber_cancelled() ? r : -ETIMEDOUT;
}

/* ---- read and write ---- */

/* What is in the page cache. < 0: nothing, or the call itself says why. */
static long pread_cached(int fd, void *buf, size_t n, off_t at)
{
	struct iovec v = { buf, n < FB_IO_MOST ? n : FB_IO_MOST };
	struct fb_fd *e = fb_fd_get(fd);
	long r;

	if (at < 0 || !n)		/* -1: at the file's own position */
		return -EINVAL;
	if (e)
		fb_fd_hold(e);
	r = fb_sys(SYS_preadv2, fd, &v, 1, at, 0, RWF_NOWAIT);
	if (e)
		fb_fd_release(e);
	return r;
}

FB_EXPORT ssize_t fiber_pread_until(int fd, void *buf, size_t n, off_t at,
				    uint64_t deadline)
{
	long r, rest;

	if (deadline && fiber_cancelled())
		return -ECANCELED;
	r = pread_cached(fd, buf, n, at);
	if (r == 0 || r == (long)n)
		return r;
	if (r < 0)
		r = 0;
	rest = call(SYS_pread64, fd, (long)buf + r, (long)n - r, at + r, 0,
		    deadline);
	return !r ? rest : rest < 0 ? r : r + rest;
}

FB_EXPORT ssize_t fiber_pread(int fd, void *buf, size_t n, off_t at)
{
	return fiber_pread_until(fd, buf, n, at, FB_NEVER);
}

FB_EXPORT ssize_t fiber_pwrite_until(int fd, const void *buf, size_t n, off_t at,
				     uint64_t deadline)
{
	return call(SYS_pwrite64, fd, (long)buf, (long)n, at, 0, deadline);
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
