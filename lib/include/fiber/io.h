/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * fiber/io.h - read, write and their kin, for fibers
 *
 * Included by <fiber.h>. Each call does what the system call of its name does, and
 * returns what that returns, but for this:
 *
 *   - an error is a negative errno value, and errno is not touched
 *   - a fiber that would block parks, and its processor runs others
 *   - _until: -ETIMEDOUT when deadline has come (CLOCK_MONOTONIC in ns, as
 *     fiber_now(); 0: try once, do not wait)
 *   - -ECANCELED: the calling fiber is cancelled. Each is a cancellation point, but
 *     fiber_close and fiber_shutdown
 *   - -EBADF: fiber_close was called for fd while the call waited
 *   - SIGPIPE is never raised
 *   - no -EINTR
 *
 * A call that has moved some bytes when one of these ends it returns how many, as
 * with a signal: the reason comes with the next call. O_NONBLOCK (-EAGAIN at once)
 * and SO_RCVTIMEO, SO_SNDTIMEO (-EAGAIN then) hold as they do for the plain calls.
 * Nothing is under way when a call has returned: its buffers are the caller's.
 *
 * Any thread; a plain thread blocks, with or without a runtime. Any descriptor: what
 * cannot be waited for (files on disk) is read and written in a blocking call, which
 * the kernel backend gives the processor away for. Many fibers may use one
 * descriptor at once.
 *
 * Close what fibers may be waiting for by fiber_close: close(2) wakes nobody.
 */
#include <fiber.h>

#ifndef FIBER_IO_H
#define FIBER_IO_H

#include <poll.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

#ifdef __cplusplus
extern "C" {
#endif

ssize_t fiber_read(int fd, void *buf, size_t n);
ssize_t fiber_read_until(int fd, void *buf, size_t n, uint64_t deadline);
ssize_t fiber_readv(int fd, const struct iovec *iov, int iovcnt);
ssize_t fiber_readv_until(int fd, const struct iovec *iov, int iovcnt,
			  uint64_t deadline);
/* As the plain calls on blocking descriptors they write all, unless ended. */
ssize_t fiber_write(int fd, const void *buf, size_t n);
ssize_t fiber_write_until(int fd, const void *buf, size_t n, uint64_t deadline);
ssize_t fiber_writev(int fd, const struct iovec *iov, int iovcnt);
ssize_t fiber_writev_until(int fd, const struct iovec *iov, int iovcnt,
			   uint64_t deadline);

ssize_t fiber_recv(int fd, void *buf, size_t n, int flags);
ssize_t fiber_recv_until(int fd, void *buf, size_t n, int flags,
			 uint64_t deadline);
ssize_t fiber_recvfrom(int fd, void *buf, size_t n, int flags,
		       struct sockaddr *addr, socklen_t *len);
ssize_t fiber_recvfrom_until(int fd, void *buf, size_t n, int flags,
			     struct sockaddr *addr, socklen_t *len,
			     uint64_t deadline);
ssize_t fiber_recvmsg(int fd, struct msghdr *msg, int flags);
ssize_t fiber_recvmsg_until(int fd, struct msghdr *msg, int flags,
			    uint64_t deadline);
ssize_t fiber_send(int fd, const void *buf, size_t n, int flags);
ssize_t fiber_send_until(int fd, const void *buf, size_t n, int flags,
			 uint64_t deadline);
ssize_t fiber_sendto(int fd, const void *buf, size_t n, int flags,
		     const struct sockaddr *addr, socklen_t len);
ssize_t fiber_sendto_until(int fd, const void *buf, size_t n, int flags,
			   const struct sockaddr *addr, socklen_t len,
			   uint64_t deadline);
ssize_t fiber_sendmsg(int fd, const struct msghdr *msg, int flags);
ssize_t fiber_sendmsg_until(int fd, const struct msghdr *msg, int flags,
			    uint64_t deadline);

/* accept4(2): flags are SOCK_CLOEXEC and SOCK_NONBLOCK. Returns the new one. */
int fiber_accept(int fd, struct sockaddr *addr, socklen_t *len, int flags);
int fiber_accept_until(int fd, struct sockaddr *addr, socklen_t *len, int flags,
		       uint64_t deadline);
/*
 * The descriptor has O_NONBLOCK for an instant: nobody else may use it before it is
 * connected. After -ETIMEDOUT or -ECANCELED the connection may come about all the
 * same: close it.
 */
int fiber_connect(int fd, const struct sockaddr *addr, socklen_t len);
int fiber_connect_until(int fd, const struct sockaddr *addr, socklen_t len,
			uint64_t deadline);
int fiber_shutdown(int fd, int how);
/*
 * fiber_close - close fd; calls of other fibers that wait for it end with -EBADF,
 * and none of them can meet the next file of that number
 * Waits for blocking calls on files that are under way, and for another close of
 * this number, whose next file may be meant. Errors: -EBADF, -EIO and so on as
 * close(2), which has closed it then.
 */
int fiber_close(int fd);

/*
 * splice(2) and sendfile(2): offsets are off_t. They wait for the ends, not for a disk,
 * which they are blocked by as fiber_pread is. fiber_sendfile moves all of n, unless
 * ended; fiber_splice what there is. _until, cancellation and fiber_close end a wait
 * for either end.
 */
ssize_t fiber_splice(int in, off_t *in_at, int out, off_t *out_at, size_t n,
		     unsigned int flags);
ssize_t fiber_splice_until(int in, off_t *in_at, int out, off_t *out_at, size_t n,
			   unsigned int flags, uint64_t deadline);
ssize_t fiber_sendfile(int out, int in, off_t *at, size_t n);
ssize_t fiber_sendfile_until(int out, int in, off_t *at, size_t n,
			     uint64_t deadline);

/* poll(2) without a timeout; -ETIMEDOUT in place of 0. */
int fiber_poll(struct pollfd *fds, nfds_t n);
int fiber_poll_until(struct pollfd *fds, nfds_t n, uint64_t deadline);

#ifdef __cplusplus
}
#endif
#endif
