/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * reply.c - write answers
 *
 * Plain blocking send and sendfile (-f: those of the library). A client that does not read stops them
 * for srv.timeout seconds at most (SO_SNDTIMEO), then the connection is given
 * up; one that reads a trickle is given up when it falls behind PACE.
 */
#define _GNU_SOURCE 1
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <unistd.h>

#include "httpd.h"

enum {
	PACE = 1024,		/* bytes per second a client must take */
	PIECE = 256 * 1024,	/* at most so much in one sendfile */
	SMALL = 8192,		/* a body that is copied */
	OUT_MAX = 4096,		/* the head of an answer */
};

const char *reply_reason(int status)
{
	static const struct {
		int status;
		const char *reason;
	} table[] = {
		{ 200, "OK" },
		{ 206, "Partial Content" },
		{ 301, "Moved Permanently" },
		{ 304, "Not Modified" },
		{ 400, "Bad Request" },
		{ 403, "Forbidden" },
		{ 404, "Not Found" },
		{ 405, "Method Not Allowed" },
		{ 408, "Request Timeout" },
		{ 414, "URI Too Long" },
		{ 416, "Range Not Satisfiable" },
		{ 431, "Request Header Fields Too Large" },
		{ 500, "Internal Server Error" },
		{ 501, "Not Implemented" },
		{ 502, "Bad Gateway" },
		{ 503, "Service Unavailable" },
		{ 504, "Gateway Timeout" },
		{ 505, "HTTP Version Not Supported" },
	};

	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++)
		if (table[i].status == status)
			return table[i].reason;
	return "Unknown";
}

void put(struct out *o, const char *format, ...)
{
	size_t room = o->size - o->len;
	va_list ap;
	int n;

	va_start(ap, format);
	n = vsnprintf(o->buf + o->len, room, format, ap);
	va_end(ap);
	if (n < 0 || (size_t)n >= room)
		o->full = true;
	else
		o->len += (size_t)n;
}

static void put_date(struct out *o, const char *name, time_t t)
{
	char text[64];
	struct tm tm;

	if (gmtime_r(&t, &tm) &&
	    strftime(text, sizeof(text), "%a, %d %b %Y %H:%M:%S GMT", &tm))
		put(o, "%s: %s\r\n", name, text);
}

static void put_range(struct out *o, const struct reply *r)
{
	if (r->status == 206)
		put(o, "Content-Range: bytes %lld-%lld/%lld\r\n",
		    (long long)r->from, (long long)(r->from + r->length - 1),
		    (long long)r->total);
	if (r->status == 416)
		put(o, "Content-Range: bytes */%lld\r\n", (long long)r->total);
}

static int send_all(int fd, const char *buf, size_t len, int flags)
{
	while (len > 0) {
		ssize_t n = sock_send(fd, buf, len, flags | MSG_NOSIGNAL);

		if (n <= 0)
			return -1;	/* gone, or SO_SNDTIMEO is over */
		buf += n;
		len -= (size_t)n;
	}
	return 0;
}

int reply_head(struct conn *c, const struct reply *r, bool more)
{
	char buf[OUT_MAX];
	struct out o = { .buf = buf, .size = sizeof(buf) };

	if (atomic_load(&srv.stopping))
		c->rq.keep_alive = false;
	put(&o, "HTTP/1.1 %d %s\r\n", r->status, reply_reason(r->status));
	put_date(&o, "Date", time(NULL));
	if (r->type)
		put(&o, "Content-Type: %s\r\n", r->type);
	if (r->status != 304)
		put(&o, "Content-Length: %lld\r\n", (long long)r->length);
	if (r->mtime) {
		put_date(&o, "Last-Modified", r->mtime);
		put(&o, "Accept-Ranges: bytes\r\n");
	}
	put_range(&o, r);
	if (r->location)
		put(&o, "Location: %s\r\n", r->location);
	if (r->status == 405)
		put(&o, "Allow: GET, HEAD\r\n");
	if (r->no_store)
		put(&o, "Cache-Control: no-store\r\n");
	put(&o, "Connection: %s\r\n\r\n",
	    c->rq.keep_alive ? "keep-alive" : "close");
	if (o.full)
		return -1;
	return send_all(c->fd, o.buf, o.len, more ? MSG_MORE : 0);
}

static int reply_body(struct conn *c, struct reply *r, const char *text)
{
	r->type = "text/plain; charset=utf-8";
	r->length = (off_t)strlen(text);
	if (c->rq.head)
		return reply_head(c, r, false);
	if (reply_head(c, r, true))
		return -1;
	return send_all(c->fd, text, strlen(text), 0);
}

int reply_text(struct conn *c, int status, const char *text)
{
	struct reply r = { .status = status, .no_store = true };

	return reply_body(c, &r, text);
}

int reply_error(struct conn *c, const struct reply *why)
{
	struct reply r = *why;
	char text[64];

	snprintf(text, sizeof(text), "%d %s\n", r.status, reply_reason(r.status));
	return reply_body(c, &r, text);
}

/* Two system calls; sendfile to a socket takes the library five. */
static int send_small(struct conn *c, int fd, off_t from, size_t length)
{
	char buf[SMALL];

	if (pread(fd, buf, length, from) != (ssize_t)length)
		return -1;		/* the file was cut off */
	return send_all(c->fd, buf, length, 0);
}

int reply_file(struct conn *c, int fd, off_t from, off_t length)
{
	time_t start = time(NULL);
	off_t end = from + length, begin = from;

	if (length <= SMALL)
		return send_small(c, fd, from, (size_t)length);
	while (from < end) {
		size_t piece = end - from < PIECE ? (size_t)(end - from) : PIECE;
		ssize_t n = sock_sendfile(c->fd, fd, &from, piece);
		time_t late = time(NULL) - start - srv.timeout;

		if (n <= 0)	/* gone, timed out, or the file was cut off */
			return -1;
		if (late > 0 && (from - begin) / PACE < late)
			return -1;
	}
	return 0;
}
