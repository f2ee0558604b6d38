/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * http.c - one page over HTTP/1.1, by a stream
 *
 * Each call here that waits is a cancellation point: when the scope around is
 * cancelled, or its deadline has come, they answer -ECANCELED, and all that is to be
 * done is to close the socket.
 */
#include <fiber.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "crawl.h"

enum { BODY_MOST = 1 << 20, LINE_MOST = 8192, FIELDS_MOST = 200 };

struct answer {
	struct fiber_reader in;
	bool chunked;
	long long length;	/* -1: until the end */
	char buf[LINE_MOST];
};

static int connect_to(const char *site)
{
	struct addrinfo hints = { .ai_socktype = SOCK_STREAM }, *list;
	const char *colon = strchr(site, ':');
	char host[264];
	int fd = -1, r = -EHOSTUNREACH;

	snprintf(host, sizeof(host), "%.*s", (int)strcspn(site, ":"), site);
	/* It blocks, and that is all right. */
	if (getaddrinfo(host, colon ? colon + 1 : "80", &hints, &list))
		return r;
	for (struct addrinfo *a = list; a && r < 0 && r != -ECANCELED;
	     a = a->ai_next) {
		fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
		r = fd < 0 ? -errno :
			fiber_connect(fd, a->ai_addr, a->ai_addrlen);
		if (r < 0 && fd >= 0)
			fiber_close(fd);
	}
	freeaddrinfo(list);
	return r < 0 ? r : fd;
}

static int ask(int fd, const struct url *u)
{
	char text[PATH_MOST + 512];
	int n = snprintf(text, sizeof(text),
			 "GET %s HTTP/1.1\r\nHost: %s\r\nUser-Agent: crawl\r\n"
			 "Accept: text/html\r\nConnection: close\r\n\r\n",
			 u->path, u->site);
	ssize_t r = fiber_write(fd, text, (size_t)n);

	return r == n ? 0 : r < 0 ? (int)r : -EPIPE;
}

static void take_field(struct answer *a, struct page *page, const char *line)
{
	size_t n = strcspn(line, ":");
	const char *value = line + n + (line[n] == ':');

	value += strspn(value, " \t");
	if (n == 12 && !strncasecmp(line, "Content-Type", n))
		page->html = !strncasecmp(value, "text/html", 9);
	else if (n == 14 && !strncasecmp(line, "Content-Length", n))
		a->length = atoll(value);
	else if (n == 17 && !strncasecmp(line, "Transfer-Encoding", n))
		a->chunked = !strcasecmp(value, "chunked");
	else if (n == 8 && !strncasecmp(line, "Location", n) &&
		 strlen(value) < sizeof(page->location))
		strcpy(page->location, value);
}

/* The head: of the last answer, if there are interim ones. */
static int read_head(struct answer *a, struct page *page)
{
	char *line;
	ssize_t n;

	do {
		n = fiber_reader_line(&a->in, &line);
		if (n < 0)
			return (int)n;
		if (sscanf(line, "HTTP/1.%*d %d", &page->status) != 1)
			return -EPROTO;
		for (int i = 0; (n = fiber_reader_line(&a->in, &line)) > 0; i++) {
			if (i == FIELDS_MOST)
				return -EPROTO;
			take_field(a, page, line);
		}
	} while (n == 0 && page->status < 200);
	return (int)n;
}

/* n more bytes of the body, or all that come if n is negative. */
static int read_body(struct answer *a, struct page *page, long long n)
{
	bool to_end = n < 0;

	if (n > BODY_MOST)
		return -EFBIG;
	while (to_end || n > 0) {
		size_t room = BODY_MOST - page->len;
		ssize_t r;

		if (room == 0)
			return -EFBIG;
		if (!to_end && (size_t)n < room)
			room = (size_t)n;
		r = fiber_reader_read(&a->in, page->body + page->len, room);
		if (r <= 0)
			return r < 0 ? (int)r : to_end ? 0 : -ENODATA;
		page->len += (size_t)r;
		n -= r;
	}
	return 0;
}

static int read_chunks(struct answer *a, struct page *page)
{
	char *line, *end;
	long long n;
	int r;

	for (;;) {
		r = (int)fiber_reader_line(&a->in, &line);
		if (r < 0)
			return r;
		n = strtoll(line, &end, 16);
		if (end == line || n < 0)
			return -EPROTO;
		if (n == 0)	/* what may follow is of no interest */
			return 0;
		r = read_body(a, page, n);
		if (!r)
			r = (int)fiber_reader_line(&a->in, &line);
		if (r)
			return r < 0 ? r : -EPROTO;
	}
}

static int read_answer(int fd, struct page *page)
{
	struct answer a = { .length = -1 };
	int r;

	fiber_reader_init(&a.in, fd, a.buf, sizeof(a.buf));
	r = read_head(&a, page);
	if (r < 0)
		return r;
	if (page->status == 204 || page->status == 304)
		a.length = 0;
	page->body = malloc(BODY_MOST + 1);
	if (!page->body)
		return -ENOMEM;
	r = a.chunked ? read_chunks(&a, page) :
		read_body(&a, page, a.length);
	page->body[page->len] = '\0';
	return r;
}

int http_get(const struct url *u, struct page *page)
{
	int fd, r;

	memset(page, 0, sizeof(*page));
	fd = connect_to(u->site);
	if (fd < 0)
		return fd;
	r = ask(fd, u);
	if (!r)
		r = read_answer(fd, page);
	fiber_close(fd);
	return r;
}
