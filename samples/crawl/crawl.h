/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * crawl.h - crawl.c decides what is fetched when; http.c fetches one page; url.c
 * takes addresses apart and finds them in pages
 */
#ifndef CRAWL_H
#define CRAWL_H

#include <fiber.h>
#include <stdbool.h>

enum { PATH_MOST = 1024 };

struct url {
	char site[264];		/* "host", or "host:port" if that is not 80 */
	char path[PATH_MOST];	/* with the query, from the '/' */
};

/*
 * Takes text apart, as a link in the page at base (may be NULL). Without "#...",
 * without dot segments. False: it is no address of a page over http.
 */
bool url_parse(struct url *u, const char *text, size_t len,
	       const struct url *base);
bool url_same(const struct url *a, const struct url *b);
/* Calls fn for each link in the page. */
void url_find(const char *html, void (*fn)(const char *text, size_t len,
					   void *arg), void *arg);

struct page {
	int status;
	bool html;
	char location[PATH_MOST];	/* of a redirect, or "" */
	char *body;			/* the caller's to free; ends with '\0' */
	size_t len;
};

/*
 * One page over HTTP/1.1, of at most 1 MiB. Returns 0, or a negative errno value
 * (-EPROTO: that is no HTTP; -ENODATA: it ended too early; -EFBIG; -EHOSTUNREACH:
 * no such host). Waits as long as the server does: callers open a scope with a
 * deadline around it.
 */
int http_get(const struct url *u, struct page *page);

#endif
