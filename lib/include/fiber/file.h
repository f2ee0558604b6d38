/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * fiber/file.h - files on disk, and children
 *
 * Included by <fiber.h>. Each call does what the system call of its name does; the
 * result is a negative errno value for an error. What a disk is asked for ends when
 * the kernel lets it end: so a call that is cancelled (-ECANCELED) or whose deadline
 * has come (-ETIMEDOUT; CLOCK_MONOTONIC in ns) before it began does nothing, and one
 * that is under way is interrupted where fiber_features() has FIBER_FEATURE_IO_URING
 * or FIBER_FEATURE_CANCEL_BLOCKED and the file system allows it (a FIFO, a network),
 * and else goes on. No -EINTR. Any thread; a plain thread's call has no deadline once it
 * has begun. Buffers are the caller's again when a call has returned.
 */
#include <fiber.h>

#ifndef FIBER_FILE_H
#define FIBER_FILE_H

#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

struct statx;

/* mode: as open(2), with O_CREAT or O_TMPFILE; else 0. Returns the new descriptor. */
int fiber_open(const char *path, int flags, mode_t mode);
int fiber_open_until(const char *path, int flags, mode_t mode, uint64_t deadline);
int fiber_openat(int dir, const char *path, int flags, mode_t mode);
int fiber_openat_until(int dir, const char *path, int flags, mode_t mode,
		       uint64_t deadline);
/* What is in the page cache is read without giving the processor away. */
ssize_t fiber_pread(int fd, void *buf, size_t n, off_t at);
ssize_t fiber_pread_until(int fd, void *buf, size_t n, off_t at,
			  uint64_t deadline);
ssize_t fiber_pwrite(int fd, const void *buf, size_t n, off_t at);
ssize_t fiber_pwrite_until(int fd, const void *buf, size_t n, off_t at,
			   uint64_t deadline);
int fiber_fsync(int fd);
int fiber_fsync_until(int fd, uint64_t deadline);
int fiber_fdatasync(int fd);
int fiber_fdatasync_until(int fd, uint64_t deadline);
int fiber_statx(int dir, const char *path, int flags, unsigned int mask,
		struct statx *st);
int fiber_statx_until(int dir, const char *path, int flags, unsigned int mask,
		      struct statx *st, uint64_t deadline);

/*
 * fiber_waitpid - waitpid(2), while the fiber is parked
 * One child: woken when it ends. Any of many (pid is 0 or less), or with WUNTRACED
 * or WCONTINUED: it looks now and then, each 20 ms at least. -ETIMEDOUT: deadline
 * has come (0: look once; not a cancellation point then). -ECANCELED. Any thread.
 */
pid_t fiber_waitpid(pid_t pid, int *status, int options);
pid_t fiber_waitpid_until(pid_t pid, int *status, int options,
			  uint64_t deadline);

#ifdef __cplusplus
}
#endif
#endif
