// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* stream.c - whole records and lines, read ahead or not */
#include <string.h>

#include "fb.h"

FB_EXPORT ssize_t fiber_read_exactly_until(int fd, void *buf, size_t n,
					   uint64_t deadline)
{
	size_t done = 0;
	ssize_t r;

	while (done < n) {
		r = fiber_read_until(fd, (char *)buf + done, n - done, deadline);
		if (r < 0)
			return r;
		if (!r)
			return done ? -ENODATA : 0;
		done += (size_t)r;
	}
	return (ssize_t)done;
}

FB_EXPORT ssize_t fiber_read_exactly(int fd, void *buf, size_t n)
{
	return fiber_read_exactly_until(fd, buf, n, FB_NEVER);
}

/* ---- readers ---- */

FB_EXPORT void fiber_reader_init(struct fiber_reader *r, int fd, void *buf,
				 size_t size)
{
	*r = (struct fiber_reader){ .fd = fd, .buf = buf, .size = size };
}

FB_EXPORT ssize_t fiber_reader_read_until(struct fiber_reader *r, void *buf,
					  size_t n, uint64_t deadline)
{
	size_t have = r->to - r->from;

	if (!have)
		return fiber_read_until(r->fd, buf, n, deadline);
	if (n > have)
		n = have;
	memcpy(buf, r->buf + r->from, n);
	r->from += n;
	return (ssize_t)n;
}

FB_EXPORT ssize_t fiber_reader_read(struct fiber_reader *r, void *buf, size_t n)
{
	return fiber_reader_read_until(r, buf, n, FB_NEVER);
}

/* More into the buffer: how many bytes, 0 at the end, or an error. */
static ssize_t more(struct fiber_reader *r, uint64_t deadline)
{
	ssize_t n;

	if (r->from) {
		memmove(r->buf, r->buf + r->from, r->to - r->from);
		r->to -= r->from;
		r->from = 0;
	}
	if (r->to == r->size)
		return -EMSGSIZE;
	n = fiber_read_until(r->fd, r->buf + r->to, r->size - r->to, deadline);
	if (n > 0)
		r->to += (size_t)n;
	return n;
}

FB_EXPORT ssize_t fiber_reader_find_until(struct fiber_reader *r, char end,
					  char **at, uint64_t deadline)
{
	size_t seen = 0, n;
	ssize_t got = 1;
	char *hit;

	for (;;) {
		hit = memchr(r->buf + r->from + seen, end,
			     r->to - r->from - seen);
		if (hit || !got)
			break;
		seen = r->to - r->from;
		got = more(r, deadline);
		if (got < 0)
			return got;
	}
	*at = r->buf + r->from;
	n = hit ? (size_t)(hit + 1 - *at) : r->to - r->from;
	r->from += n;
	return (ssize_t)n;
}

FB_EXPORT ssize_t fiber_reader_find(struct fiber_reader *r, char end, char **at)
{
	return fiber_reader_find_until(r, end, at, FB_NEVER);
}

FB_EXPORT ssize_t fiber_reader_line_until(struct fiber_reader *r, char **line,
					  uint64_t deadline)
{
	ssize_t n = fiber_reader_find_until(r, '\n', line, deadline);

	if (n <= 0)
		return n ? n : -ENODATA;
	if ((*line)[n - 1] == '\n') {
		n--;
		if (n && (*line)[n - 1] == '\r')
			n--;
	} else if (*line + n == r->buf + r->size) {
		r->from -= (size_t)n;
		return -EMSGSIZE;
	}
	(*line)[n] = 0;
	return n;
}

FB_EXPORT ssize_t fiber_reader_line(struct fiber_reader *r, char **line)
{
	return fiber_reader_line_until(r, line, FB_NEVER);
}
