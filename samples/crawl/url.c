/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* url.c - addresses of pages: whole, relative to another, and where a page has them */
#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "crawl.h"

/* Removes "." and ".." before the query; above the root there is only the root. */
static void remove_dots(char *path)
{
	char *in = path, *out = path;

	while (*in == '/') {
		size_t n = 1 + strcspn(in + 1, "/?");	/* "/segment" */
		bool up = n == 3 && in[1] == '.' && in[2] == '.';

		if (up)
			while (out > path && *--out != '/')
				;
		if (up || (n == 2 && in[1] == '.')) {
			if (in[n] != '/')
				*out++ = '/';
		} else {
			memmove(out, in, n);
			out += n;
		}
		in += n;
	}
	memmove(out, in, strlen(in) + 1);
}

/* "name" or "name:80"; names are the same in any case. */
static bool take_site(struct url *u, const char *text, size_t len)
{
	size_t n = 0;

	if (len == 0 || len >= sizeof(u->site) || *text == ':')
		return false;
	while (n < len && (isalnum((unsigned char)text[n]) ||
			   strchr("-._", text[n])))
		n++;
	for (size_t i = n + 1; n < len && i < len; i++)
		if (text[n] != ':' || !isdigit((unsigned char)text[i]))
			return false;
	for (size_t i = 0; i < len; i++)
		u->site[i] = (char)tolower((unsigned char)text[i]);
	u->site[len] = '\0';
	if (!strcmp(u->site + n, ":80") || !strcmp(u->site + n, ":"))
		u->site[n] = '\0';
	return len - n <= 6;
}

/* How much of the base's path stays in front of a link. */
static size_t kept(const struct url *base, const char *link, size_t len)
{
	size_t n = strcspn(base->path, "?");

	if (len && *link == '/')
		return 0;
	while (len && *link != '?' && base->path[n - 1] != '/')
		n--;
	return n;
}

static bool has_scheme(const char *s, size_t len)
{
	size_t n = 0;

	while (n < len && (isalnum((unsigned char)s[n]) || strchr("+-.", s[n])))
		n++;
	return n && n < len && s[n] == ':';
}

bool url_parse(struct url *u, const char *text, size_t len,
	       const struct url *base)
{
	const char *hash = memchr(text, '#', len);
	size_t n = 0, keep = 0;

	len = hash ? (size_t)(hash - text) : len;
	for (size_t i = 0; i < len; i++)
		if ((unsigned char)text[i] <= ' ' || (unsigned char)text[i] >= 0x7f)
			return false;
	if (len > 7 && !strncasecmp(text, "http://", 7)) {
		n = 7;
	} else if (base && len > 2 && !memcmp(text, "//", 2)) {
		n = 2;
	} else if (base && !has_scheme(text, len)) {
		strcpy(u->site, base->site);
		keep = kept(base, text, len);
	} else {
		return false;
	}
	text += n, len -= n;
	if (n) {		/* it names a site */
		for (n = 0; n < len && !strchr("/?", text[n]); n++)
			;
		if (!take_site(u, text, n))
			return false;
		text += n, len -= n;
	}
	n = (size_t)snprintf(u->path, sizeof(u->path), "%.*s%s%.*s", (int)keep,
			     keep ? base->path : "",
			     keep || (len && *text == '/') ? "" : "/",
			     (int)len, text);
	remove_dots(u->path);
	return n < sizeof(u->path);
}

bool url_same(const struct url *a, const struct url *b)
{
	return !strcmp(a->site, b->site) && !strcmp(a->path, b->path);
}

/* href="..." with either quote, or none: enough of HTML for links. */
void url_find(const char *html, void (*fn)(const char *text, size_t len,
					   void *arg), void *arg)
{
	while ((html = strcasestr(html, "href"))) {
		const char *quote;
		size_t n;

		html += 4;
		html += strspn(html, " \t\r\n");
		if (*html != '=')
			continue;
		html++;
		html += strspn(html, " \t\r\n");
		quote = *html == '"' ? "\"" : *html == '\'' ? "'" : NULL;
		html += quote ? 1 : 0;
		n = strcspn(html, quote ? quote : " \t\r\n>");
		fn(html, n, arg);
		html += n;
	}
}
