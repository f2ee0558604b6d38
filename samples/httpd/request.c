/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * request.c - from bytes to a request
 *
 * Strict where leniency has been used to smuggle requests: no folded lines, no
 * space before a colon, no control characters, one Host, and a request that
 * announces a body is the last one of its connection (bodies are never read, but
 * by proxy.c).
 */
#define _GNU_SOURCE 1
#include <ctype.h>
#include <string.h>
#include <strings.h>

#include "httpd.h"

bool is_token(const char *s)
{
	if (!*s)
		return false;
	for (; *s; s++)
		if (!isalnum((unsigned char)*s) && !strchr("!#$%&'*+-.^_`|~", *s))
			return false;
	return true;
}

static int hex(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	c |= 0x20;
	return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Decodes in place. False: a broken escape or a NUL. */
static bool percent_decode(char *s)
{
	char *out = s;

	for (; *s; s++) {
		if (*s == '%') {
			int hi = hex(s[1]), lo = hi < 0 ? -1 : hex(s[2]);

			if (lo < 0 || hi + lo == 0)
				return false;
			*out++ = (char)(hi << 4 | lo);
			s += 2;
		} else {
			*out++ = *s;
		}
	}
	*out = '\0';
	return true;
}

/*
 * Removes "", "." and ".." segments in place; a path that ends with one of
 * them names a directory and keeps its slash. False: it climbs above the root.
 */
static bool normalize(char *path)
{
	char *in = path, *out = path;

	while (*in) {
		char *seg = in + strspn(in, "/");
		size_t n = strcspn(seg, "/");

		in = seg + n;
		if (n == 0 || (n == 1 && seg[0] == '.')) {
			if (!*in)
				*out++ = '/';
		} else if (n == 2 && seg[0] == '.' && seg[1] == '.') {
			if (out == path)
				return false;
			while (*--out != '/')
				;
			if (!*in)
				*out++ = '/';
		} else {
			*out++ = '/';
			memmove(out, seg, n);
			out += n;
		}
	}
	*out = '\0';
	return true;
}

/* "/path?query" or "http://host/path?query" */
static int parse_target(struct request *rq, char *target)
{
	char *mark;

	if (!strncasecmp(target, "http://", 7))
		target += 7 + strcspn(target + 7, "/?");
	if (*target != '/')
		return 400;
	for (const char *s = target; *s; s++)
		if ((unsigned char)*s <= ' ' || (unsigned char)*s >= 0x7f)
			return 400;
	if (srv.upstream_count)
		strcpy(rq->target, target);	/* a line is no longer */
	rq->query = "";
	mark = strpbrk(target, "?#");
	if (mark) {
		if (*mark == '?')
			rq->query = mark + 1;
		*mark = '\0';
	}
	if (!percent_decode(target))
		return 400;
	rq->path = target;
	if (!normalize(target))
		return 403;
	rq->upstream = proxy_find(target);
	return 0;
}

static int parse_method(struct request *rq, const char *m)
{
	static const char *const known[] = {
		"POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "CONNECT",
	};

	rq->head = !strcmp(m, "HEAD");
	if (rq->head || !strcmp(m, "GET"))
		return 0;
	for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
		if (!strcmp(m, known[i]))
			return 405;
	return is_token(m) ? 501 : 400;
}

static int parse_version(struct request *rq, const char *v)
{
	if (strncmp(v, "HTTP/", 5) || !isdigit((unsigned char)v[5]) ||
	    v[6] != '.' || !isdigit((unsigned char)v[7]) || v[8])
		return 400;
	if (v[5] != '1')
		return 505;
	rq->http10 = v[7] == '0';
	rq->keep_alive = !rq->http10;
	return 0;
}

static int parse_request_line(struct request *rq, char *line)
{
	char *target, *version;
	int status, method;

	if (strlen(line) > LINE_MAX_LEN)
		return 414;
	target = strchr(line, ' ');
	version = target ? strchr(target + 1, ' ') : NULL;
	if (!version)
		return 400;
	*target++ = '\0';
	*version++ = '\0';
	status = parse_version(rq, version);
	if (status)
		return status;
	rq->method = line;
	method = parse_method(rq, line);
	status = parse_target(rq, target);
	if (!status && rq->upstream && method != 400 &&
	    strcmp(line, "TRACE") && strcmp(line, "CONNECT"))
		return 0;	/* others know more methods than we do */
	return method ? method : status;
}

bool list_has(const char *list, const char *word)
{
	size_t n = strlen(word);

	while (*list) {
		list += strspn(list, ", \t");
		if (!strncasecmp(list, word, n) && strchr(", \t", list[n]))
			return true;
		list += strcspn(list, ",");
	}
	return false;
}

static int take_field(struct request *rq, const char *name, const char *value)
{
	if (!strcasecmp(name, "Host")) {
		rq->hosts++;
	} else if (!strcasecmp(name, "Connection")) {
		if (list_has(value, "close"))
			rq->keep_alive = false;
		else if (rq->http10 && list_has(value, "keep-alive"))
			rq->keep_alive = true;
	} else if (!strcasecmp(name, "Content-Length")) {
		if (!*value || value[strspn(value, "0123456789")])
			return 400;
		if (value[strspn(value, "0")])
			rq->body = true;
	} else if (!strcasecmp(name, "Transfer-Encoding")) {
		rq->body = true;
	} else if (!strcasecmp(name, "Range")) {
		rq->range = value;
	} else if (!strcasecmp(name, "If-Range")) {
		rq->if_range = value;
	} else if (!strcasecmp(name, "If-Modified-Since")) {
		rq->if_modified_since = value;
	} else if (!strcasecmp(name, "If-None-Match")) {
		rq->if_none_match = true;
	}
	return 0;
}

static int parse_field(struct request *rq, char *line)
{
	char *colon = strchr(line, ':'), *value, *end;

	if (!colon)
		return 400;
	*colon = '\0';
	if (!is_token(line))	/* also refuses folded lines, "Name :" */
		return 400;
	value = colon + 1 + strspn(colon + 1, " \t");
	end = value + strlen(value);
	while (end > value && (end[-1] == ' ' || end[-1] == '\t'))
		end--;
	*end = '\0';
	for (const char *s = value; *s; s++)
		if (((unsigned char)*s < ' ' && *s != '\t') || *s == 0x7f)
			return 400;
	rq->fields[rq->field_count++] = (struct field){ line, value };
	return take_field(rq, line, value);
}

/* Cuts the next line off; CR LF or a bare LF ends it. NULL: a stray NUL. */
static char *next_line(char **at)
{
	char *line = *at, *end = strchr(line, '\n');

	if (!end)
		return NULL;
	*at = end + 1;
	if (end > line && end[-1] == '\r')
		end--;
	*end = '\0';
	return line;
}

int request_parse(struct request *rq, char *head, size_t len)
{
	char *at = head, *line;
	int status, fields = 0;

	memset(rq, 0, offsetof(struct request, fields));
	if (memchr(head, '\0', len))
		return 400;
	line = next_line(&at);
	if (!line)
		return 400;
	status = parse_request_line(rq, line);
	while ((line = next_line(&at)) && *line) {
		int bad = ++fields > FIELDS_MAX ? 431 : parse_field(rq, line);

		if (bad && !status)
			status = bad;
	}
	if (!status && (rq->hosts > 1 || (!rq->hosts && !rq->http10)))
		status = 400;
	if ((status && status != 403) || (rq->body && !rq->upstream))
		rq->keep_alive = false;
	return status;
}

time_t http_date_parse(const char *s)
{
	struct tm tm = { 0 };
	const char *end = strptime(s, "%a, %d %b %Y %H:%M:%S GMT", &tm);

	return end && !*end ? timegm(&tm) : -1;
}
