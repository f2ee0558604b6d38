/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * serve.c - what a request is answered with
 *
 * What belongs to another server, files beneath the root, and three paths of our own: /stats, and /spin?ms=N
 * and /sleep?ms=N, which do to this server what careless code does to any:
 * hold a CPU, and block. Both are written as carelessly as that code.
 */
#define _GNU_SOURCE 1
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "httpd.h"

enum { MS_MAX = 60000 };

static inline uint64_t ticks(void)
{
#if defined(__x86_64__)
	return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
	uint64_t t;

	__asm__ volatile("mrs %0, cntvct_el0" : "=r"(t));
	return t;
#else
#error "spin() needs a counter that is read without a call"
#endif
}

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

void spin_calibrate(void)
{
	uint64_t t0 = now_ns(), c0 = ticks(), ns;

	nanosleep(&(struct timespec){ .tv_nsec = 50000000 }, NULL);
	ns = now_ns() - t0;
	srv.ticks_per_ms = (uint64_t)((double)(ticks() - c0) * 1e6 / (double)ns);
}

/* A loop without a single call: only preemption takes the processor from it. */
static __attribute__((noinline)) void spin(uint64_t ms)
{
	uint64_t start = ticks(), n = ms * srv.ticks_per_ms;

	while (ticks() - start < n)
		;
}

static void block(uint64_t ms)
{
	struct timespec t = {
		.tv_sec = (time_t)(ms / 1000),
		.tv_nsec = (long)(ms % 1000) * 1000000,
	};

	while (nanosleep(&t, &t) < 0 && errno == EINTR)
		;
}

/* Serves /spin and /sleep: act(N), where the query is "ms=N". */
static int serve_ms(struct conn *c, void (*act)(uint64_t))
{
	const char *q = c->rq.query;
	char text[64];
	long ms;

	if (strncmp(q, "ms=", 3) || !q[3] ||
	    q[3 + strspn(q + 3, "0123456789")] || strlen(q) > 8 ||
	    (ms = atol(q + 3)) > MS_MAX)
		return reply_text(c, 400, "want ?ms=N, N from 0 to 60000\n");
	act((uint64_t)ms);
	snprintf(text, sizeof(text), "%s %ld ms\n",
		 act == spin ? "spun" : "slept", ms);
	return reply_text(c, 200, text);
}

static int serve_stats(struct conn *c)
{
	char text[1024];

	stats_print(text, sizeof(text));
	return reply_text(c, 200, text);
}

static const char *mime_type(const char *path)
{
	static const struct {
		const char *suffix, *type;
	} table[] = {
		{ "html", "text/html; charset=utf-8" },
		{ "htm", "text/html; charset=utf-8" },
		{ "txt", "text/plain; charset=utf-8" },
		{ "md", "text/markdown; charset=utf-8" },
		{ "css", "text/css; charset=utf-8" },
		{ "csv", "text/csv; charset=utf-8" },
		{ "js", "text/javascript; charset=utf-8" },
		{ "mjs", "text/javascript; charset=utf-8" },
		{ "json", "application/json" },
		{ "xml", "application/xml" },
		{ "pdf", "application/pdf" },
		{ "wasm", "application/wasm" },
		{ "gz", "application/gzip" },
		{ "zip", "application/zip" },
		{ "png", "image/png" },
		{ "jpg", "image/jpeg" },
		{ "jpeg", "image/jpeg" },
		{ "gif", "image/gif" },
		{ "svg", "image/svg+xml" },
		{ "webp", "image/webp" },
		{ "ico", "image/x-icon" },
		{ "woff2", "font/woff2" },
		{ "mp3", "audio/mpeg" },
		{ "mp4", "video/mp4" },
		{ "webm", "video/webm" },
	};
	const char *name = strrchr(path, '/'), *dot = strrchr(name, '.');

	for (size_t i = 0; dot && i < sizeof(table) / sizeof(table[0]); i++)
		if (!strcasecmp(dot + 1, table[i].suffix))
			return table[i].type;
	return "application/octet-stream";
}

static int status_of(int error)
{
	switch (error) {
	case -ENOENT:
	case -ENOTDIR:
	case -ENAMETOOLONG:
		return 404;
	case -EACCES:
	case -EPERM:
	case -EXDEV:	/* it would lead out of the root */
	case -ELOOP:
	case -ENXIO:	/* a socket */
		return 403;
	case -EMFILE:
	case -ENFILE:
	case -ENOMEM:
		return 503;
	default:
		return 500;
	}
}

/* "/a dir" -> "/a%20dir/"; 0 or -1: too long. Never starts with "//". */
static int encode_dir(char *out, size_t size, const char *path,
		      const char *query)
{
	size_t n = 0;

	for (; *path && n + 4 < size; path++) {
		unsigned char ch = (unsigned char)*path;
		bool plain = isalnum(ch) || strchr("/-._~", ch);

		n += (size_t)snprintf(out + n, 4, plain ? "%c" : "%%%02X", ch);
	}
	if (*path)
		return -1;
	n += (size_t)snprintf(out + n, size - n, "/%s%s", *query ? "?" : "",
			      query);
	return n < size ? 0 : -1;
}

static int redirect(struct conn *c)
{
	char location[2048];
	struct reply r = { .status = 301, .location = location };

	if (encode_dir(location, sizeof(location), c->rq.path, c->rq.query))
		r = (struct reply){ .status = 414 };
	return reply_error(c, &r);
}

/* Digits, saturating; advances *s. -1: there are none. */
static off_t number(const char **s)
{
	const off_t most = (off_t)INT64_MAX / 16;
	off_t n = 0;

	if (**s < '0' || **s > '9')
		return -1;
	for (; **s >= '0' && **s <= '9'; ++*s)
		n = n > most ? n : n * 10 + (**s - '0');
	return n;
}

/*
 * Narrows [r->from, r->from + r->length) to the Range field, and the status
 * with it. A field that is broken, has another unit or several ranges is
 * ignored, as RFC 9110 allows: the whole file is sent.
 */
static void apply_range(struct reply *r, const char *s, off_t size)
{
	off_t first, last;

	if (strncasecmp(s, "bytes=", 6))
		return;
	s += 6;
	first = number(&s);
	if (*s++ != '-')
		return;
	last = number(&s);
	if (*s || (first < 0 && last < 0) ||
	    (first >= 0 && last >= 0 && last < first))
		return;
	if (first < 0) {	/* the last bytes */
		first = last < size ? size - last : 0;
		last = last ? size - 1 : -1;
	} else if (last < 0 || last >= size) {
		last = size - 1;
	}
	r->total = size;
	r->status = last < 0 || first >= size ? 416 : 206;
	r->from = first;
	r->length = last - first + 1;
}

/* If-Range: only if the file is still the one the client has a part of. */
static bool range_wanted(const struct request *rq, time_t mtime)
{
	if (!rq->range || rq->head)
		return false;
	return !rq->if_range || http_date_parse(rq->if_range) == mtime;
}

static int serve_regular(struct conn *c, int fd, const char *path,
			 const struct stat *st)
{
	const struct request *rq = &c->rq;
	struct reply r = {
		.status = 200,
		.type = mime_type(path),
		.length = st->st_size,
		.mtime = st->st_mtime,
	};

	if (rq->if_modified_since && !rq->if_none_match &&
	    http_date_parse(rq->if_modified_since) >= st->st_mtime) {
		r = (struct reply){ .status = 304, .mtime = st->st_mtime };
		return reply_head(c, &r, false);
	}
	if (range_wanted(rq, st->st_mtime))
		apply_range(&r, rq->range, st->st_size);
	if (r.status == 416) {
		r = (struct reply){ .status = 416, .total = st->st_size };
		return reply_error(c, &r);
	}
	if (rq->head || r.length == 0)
		return reply_head(c, &r, false);
	if (reply_head(c, &r, true))
		return -1;
	return reply_file(c, fd, r.from, r.length);
}

static int serve_open(struct conn *c, int fd, const char *path, bool index)
{
	struct reply forbidden = { .status = 403 };
	struct stat st = { 0 };

	if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode))
		return serve_regular(c, fd, path, &st);
	if (S_ISDIR(st.st_mode) && !index)
		return redirect(c);
	return reply_error(c, &forbidden);
}

static int serve_path(struct conn *c)
{
	char indexed[HEAD_MAX + 16];
	const char *path = c->rq.path;
	bool index = path[strlen(path) - 1] == '/';
	int fd, r;

	if (index) {
		snprintf(indexed, sizeof(indexed), "%sindex.html", path);
		path = indexed;
	}
	fd = beneath_open(path);
	if (fd == -ENOENT && index)	/* a directory that has no index? */
		fd = beneath_open(c->rq.path);
	if (fd < 0) {
		struct reply why = { .status = status_of(fd) };

		return reply_error(c, &why);
	}
	r = serve_open(c, fd, path, index);
	close(fd);
	return r;
}

int serve(struct conn *c)
{
	const char *path = c->rq.path;

	if (c->rq.upstream)
		return proxy(c);
	if (!strcmp(path, "/stats"))
		return serve_stats(c);
	if (!strcmp(path, "/spin"))
		return serve_ms(c, spin);
	if (!strcmp(path, "/sleep"))
		return serve_ms(c, block);
	return serve_path(c);
}
