/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * relay.c - the body of a request or an answer, from one connection to another
 *
 * Piece by piece, as it comes: what the one side does not take, the other is not
 * asked for. Chunks are read and written anew, so that both sides see the same ones:
 * extensions and trailers are left out.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "httpd.h"

enum { PIECE = 8192 };

uint64_t relay_deadline(void)
{
	return fiber_now() + (uint64_t)srv.timeout * 1000000000u;
}

static int pass(int to, const char *buf, size_t n)
{
	return fiber_write_until(to, buf, n, relay_deadline()) == (ssize_t)n ?
		0 : RELAY_TO;
}

/* n bytes, or (n < 0) all until the end. */
static int relay_bytes(struct fiber_reader *from, int to, long long n)
{
	bool to_end = n < 0;
	char piece[PIECE];
	int r = 0;

	while (!r && (to_end || n > 0)) {
		size_t most = to_end || n > PIECE ? PIECE : (size_t)n;
		ssize_t got = fiber_reader_read_until(from, piece, most,
						      relay_deadline());

		if (got <= 0)
			return got == 0 && to_end ? 0 : RELAY_FROM;
		r = pass(to, piece, (size_t)got);
		n -= got;
	}
	return r;
}

static ssize_t next_line(struct fiber_reader *from, char **line)
{
	return fiber_reader_line_until(from, line, relay_deadline());
}

/* The length of the next chunk, or -1. */
static long long chunk_length(struct fiber_reader *from)
{
	char *line;
	size_t digits;

	if (next_line(from, &line) <= 0)
		return -1;
	digits = strspn(line, "0123456789abcdefABCDEF");
	if (!digits || digits > 15 || !strchr("; \t", line[digits]))
		return -1;
	return strtoll(line, NULL, 16);
}

static int relay_chunks(struct fiber_reader *from, int to)
{
	long long n;
	char text[24], *line;
	int r;

	while ((n = chunk_length(from)) > 0) {
		r = pass(to, text, (size_t)sprintf(text, "%llx\r\n", n));
		if (!r)
			r = relay_bytes(from, to, n);
		if (!r && next_line(from, &line) != 0)
			r = RELAY_FROM;
		if (!r)
			r = pass(to, "\r\n", 2);
		if (r)
			return r;
	}
	for (int i = 0; n == 0 && i < FIELDS_MAX; i++) {
		ssize_t len = next_line(from, &line);

		if (len == 0)
			return pass(to, "0\r\n\r\n", 5);
		if (len < 0)
			break;
	}
	return RELAY_FROM;
}

int relay(struct fiber_reader *from, int to, const struct framing *f)
{
	return f->chunked ? relay_chunks(from, to) :
		relay_bytes(from, to, f->length);
}
