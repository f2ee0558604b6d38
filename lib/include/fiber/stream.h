/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * fiber/stream.h - whole records, lines, and servers, upon fiber/io.h
 *
 * Included by <fiber.h>. What fiber/io.h says of errors, deadlines, cancellation
 * and threads holds here too. A deadline is that of the whole call.
 */
#include <fiber.h>

#ifndef FIBER_STREAM_H
#define FIBER_STREAM_H

#ifdef __cplusplus
extern "C" {
#endif

/*
 * fiber_read_exactly - n bytes, not less
 * Returns n; 0: the end came before the first byte; -ENODATA: in between. After
 * an error the bytes read so far are lost to the caller: buf has an unknown part.
 */
ssize_t fiber_read_exactly(int fd, void *buf, size_t n);
ssize_t fiber_read_exactly_until(int fd, void *buf, size_t n, uint64_t deadline);

/* ---- a buffer in front of a descriptor ---- */

/*
 * A reader reads ahead into memory of the caller, which must stay as long as it is
 * used. One fiber at a time. Nothing is to be freed; what was read ahead and not
 * taken stays in [buf + from, buf + to).
 */
struct fiber_reader {
	int fd;
	char *buf;
	size_t size, from, to;
};
void fiber_reader_init(struct fiber_reader *r, int fd, void *buf, size_t size);
/* As fiber_read: what is in the buffer first. */
ssize_t fiber_reader_read(struct fiber_reader *r, void *buf, size_t n);
ssize_t fiber_reader_read_until(struct fiber_reader *r, void *buf, size_t n,
				uint64_t deadline);
/*
 * fiber_reader_find - up to and with the next byte `end`
 * *at points into the buffer, until the next call. Returns how many bytes; they are
 * taken. At the end of the file: what is left, without `end`, then 0. -EMSGSIZE: the
 * buffer is full and has none; nothing is taken, as with any other error, so that
 * the call can be made again.
 */
ssize_t fiber_reader_find(struct fiber_reader *r, char end, char **at);
ssize_t fiber_reader_find_until(struct fiber_reader *r, char end, char **at,
				uint64_t deadline);
/*
 * fiber_reader_line - the same with '\n', which, with a '\r' before it, is replaced
 * by '\0' and not counted. The end of the file: -ENODATA, or a last line without
 * '\n' if there is room for the '\0' (else -EMSGSIZE).
 */
ssize_t fiber_reader_line(struct fiber_reader *r, char **line);
ssize_t fiber_reader_line_until(struct fiber_reader *r, char **line,
				uint64_t deadline);

/* ---- servers ---- */

/*
 * fiber_listen - a stream socket that listens at addr, with SO_REUSEADDR and
 * CLOEXEC; backlog 0: the system's most. Returns it.
 */
int fiber_listen(const struct sockaddr *addr, socklen_t len, int backlog);
/*
 * fiber_serve - a fiber for each connection that comes to fd
 * @limit: connections at once; more wait in the socket's queue. 0: no limit
 * @fn:    called in the new fiber; the connection is closed when it returns, and an
 *         error that it returns (< 0) is its own affair
 * Goes on until fd is closed (fiber_close: returns 0), accept fails for good (its
 * error), or the caller is cancelled (-ECANCELED: the connections are too); then
 * waits for the connections' fibers. Without descriptors or memory it waits until a
 * connection ends, or 10 ms. Fiber only (-EPERM).
 */
int fiber_serve(int fd, unsigned int limit, int (*fn)(int fd, void *arg),
		void *arg);

#ifdef __cplusplus
}
#endif
#endif
