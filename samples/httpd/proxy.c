/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * proxy.c - have another server answer
 *
 * One connection to it for each request, with the path as it came. The body of a
 * request, if there is one, goes up in a fiber of its own while this one waits for
 * the answer: an upstream may answer before it has all, or while it reads. Fields
 * that concern one connection only are left out both ways (RFC 9110, 7.6.1), and a
 * body has one length: what announces two is refused, so that nobody behind us finds
 * a second request in it.
 *
 * Before anything of the answer has gone to the client: 502 if the upstream cannot
 * be reached, says nonsense or goes away, 504 if it takes srv.timeout for its head.
 * After that all we can do is to close the connection.
 */
#define _GNU_SOURCE 1
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "httpd.h"

struct exchange {
	struct conn *c;
	int fd;				/* to the upstream */
	struct fiber_reader client, server;
	struct framing up, down;
	bool sent;			/* the whole request */
	/* the answer's head */
	int status;
	int field_count;
	struct field fields[FIELDS_MAX];
	size_t head_len;
	char head[HEAD_MAX];
	char in[HEAD_MAX];		/* what is read ahead */
	char out[HEAD_MAX + 1024];
};

/* ---- at the start ---- */

const char *proxy_add(char *arg)
{
	struct upstream *u = &srv.upstreams[srv.upstream_count];
	struct addrinfo hints = { .ai_socktype = SOCK_STREAM }, *ai;
	char *name = strchr(arg, '='), *colon = strrchr(arg, ':');
	char host[256];
	int r;

	if (srv.upstream_count == UPSTREAMS_MAX)
		return "there are too many";
	if (*arg != '/' || !name || !colon || colon < name)
		return "want /PATH=HOST:PORT";
	u->prefix = arg;
	u->prefix_len = (size_t)(name - arg);
	while (u->prefix_len && arg[u->prefix_len - 1] == '/')
		u->prefix_len--;	/* "/": all */
	u->name = name + 1;
	snprintf(host, sizeof(host), "%.*s", (int)(colon - u->name), u->name);
	r = getaddrinfo(host, colon + 1, &hints, &ai);
	if (r)
		return gai_strerror(r);
	memcpy(&u->addr, ai->ai_addr, ai->ai_addrlen);
	u->addr_len = ai->ai_addrlen;
	freeaddrinfo(ai);
	srv.upstream_count++;
	return NULL;
}

/* The longest prefix that ends where a name does. */
const struct upstream *proxy_find(const char *path)
{
	const struct upstream *best = NULL;

	for (int i = 0; i < srv.upstream_count; i++) {
		const struct upstream *u = &srv.upstreams[i];
		char next = strncmp(path, u->prefix, u->prefix_len) ? 'x' :
			path[u->prefix_len];

		if ((next == '/' || !next) &&
		    (!best || u->prefix_len > best->prefix_len))
			best = u;
	}
	return best;
}

/* ---- heads ---- */

/* Takes the fields that say how long a body is. 0, or a status to refuse with. */
static int find_framing(struct framing *f, const struct field *fields, int count)
{
	int lengths = 0;

	for (int i = 0; i < count; i++) {
		const char *name = fields[i].name, *value = fields[i].value;

		if (!strcasecmp(name, "Transfer-Encoding")) {
			if (f->chunked || strcasecmp(value, "chunked"))
				return 501;
			f->chunked = true;
		} else if (!strcasecmp(name, "Content-Length")) {
			size_t n = strspn(value, "0123456789");

			if (lengths++ || !n || n > 18 || value[n])
				return 400;
			f->length = atoll(value);
		}
	}
	return f->chunked && lengths ? 400 : 0;
}

/* Is this field for us alone, or said in another way by us? */
static bool is_ours(const struct field *f, const struct field *fields, int count)
{
	static const char *const names[] = {
		"Connection", "Keep-Alive", "Proxy-Connection", "TE", "Trailer",
		"Transfer-Encoding", "Upgrade", "Content-Length", "Expect",
	};

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (!strcasecmp(f->name, names[i]))
			return true;
	for (int i = 0; i < count; i++)
		if (!strcasecmp(fields[i].name, "Connection") &&
		    list_has(fields[i].value, f->name))
			return true;
	return false;
}

static void put_fields(struct out *o, const struct field *fields, int count)
{
	for (int i = 0; i < count; i++)
		if (!is_ours(&fields[i], fields, count))
			put(o, "%s: %s\r\n", fields[i].name, fields[i].value);
}

/* -1: there is none, or it goes on to the end. */
static void put_framing(struct out *o, const struct framing *f)
{
	if (f->chunked)
		put(o, "Transfer-Encoding: chunked\r\n");
	else if (f->length >= 0)
		put(o, "Content-Length: %lld\r\n", f->length);
}

static int send_out(int fd, const struct out *o)
{
	if (o->full)
		return -1;
	return fiber_write_until(fd, o->buf, o->len, relay_deadline()) ==
		(ssize_t)o->len ? 0 : -1;
}

/* ---- there ---- */

static void put_client(struct out *o, int fd)
{
	struct sockaddr_storage sa = { 0 };
	socklen_t len = sizeof(sa);
	char host[64];

	if (!getpeername(fd, (struct sockaddr *)&sa, &len) &&
	    !getnameinfo((struct sockaddr *)&sa, len, host, sizeof(host), NULL,
			 0, NI_NUMERICHOST))
		put(o, "X-Forwarded-For: %s\r\n", host);
}

/* An upstream that hears 1.0 sends no chunks, which such a client cannot read. */
static int send_request(struct exchange *x)
{
	const struct request *rq = &x->c->rq;
	struct out o = { .buf = x->out, .size = sizeof(x->out) };

	put(&o, "%s %.*s HTTP/1.%d\r\n", rq->method,
	    (int)strcspn(rq->target, "#"), rq->target, !rq->http10);
	put_fields(&o, rq->fields, rq->field_count);
	put_framing(&o, &x->up);
	put_client(&o, x->c->fd);
	put(&o, "Connection: close\r\n\r\n");
	return send_out(x->fd, &o);
}

/* A fiber of its own. If the client fails the answer is of no use either. */
static int upload(void *arg)
{
	struct exchange *x = arg;
	int r = relay(&x->client, x->fd, &x->up);

	x->sent = r == 0;
	if (r == RELAY_FROM && !fiber_cancelled())
		fiber_shutdown(x->fd, SHUT_RDWR);
	return 0;
}

/* A client that asks whether to send its body: yes. */
static int encourage(struct exchange *x)
{
	static const char text[] = "HTTP/1.1 100 Continue\r\n\r\n";
	const struct request *rq = &x->c->rq;

	for (int i = 0; i < rq->field_count; i++)
		if (!strcasecmp(rq->fields[i].name, "Expect") && !rq->http10 &&
		    x->client.from == x->client.to)
			return fiber_write_until(x->c->fd, text,
				sizeof(text) - 1, relay_deadline()) < 0 ? -1 : 0;
	return 0;
}

/* ---- and back ---- */

static int read_field(struct exchange *x, char *line, size_t n)
{
	char *copy = x->head + x->head_len, *colon, *value;

	if (strlen(line) != n || x->field_count == FIELDS_MAX ||
	    x->head_len + n + 1 > sizeof(x->head))
		return 502;
	memcpy(copy, line, n + 1);
	x->head_len += n + 1;
	colon = strchr(copy, ':');
	if (!colon)
		return 502;
	*colon = '\0';
	value = colon + 1 + strspn(colon + 1, " \t");
	if (!is_token(copy) || strpbrk(value, "\r"))
		return 502;
	x->fields[x->field_count++] = (struct field){ copy, value };
	return 0;
}

/* One head within the deadline. 0, or the status to answer with. */
static int read_head(struct exchange *x, uint64_t deadline)
{
	char *line;
	ssize_t n = fiber_reader_line_until(&x->server, &line, deadline);
	int r;

	if (n < 0)
		return n == -ETIMEDOUT ? 504 : 502;
	if (sscanf(line, "HTTP/1.%*1[01] %3d", &x->status) != 1 ||
	    x->status < 100)
		return 502;
	x->head_len = 0;
	x->field_count = 0;
	while ((n = fiber_reader_line_until(&x->server, &line, deadline)) > 0) {
		r = read_field(x, line, (size_t)n);
		if (r)
			return r;
	}
	return n == 0 ? 0 : n == -ETIMEDOUT ? 504 : 502;
}

/* The last head, not one of those that only say that there is progress. */
static int read_answer(struct exchange *x)
{
	uint64_t deadline = relay_deadline();
	int r;

	do
		r = read_head(x, deadline);
	while (!r && x->status < 200 && x->status != 101);
	if (r || x->status == 101)
		return r ? r : 502;
	if (find_framing(&x->down, x->fields, x->field_count) ||
	    (x->down.chunked && x->c->rq.http10))
		return 502;
	return 0;
}

static int send_answer(struct exchange *x)
{
	struct out o = { .buf = x->out, .size = sizeof(x->out) };
	struct request *rq = &x->c->rq;
	bool none = rq->head || x->status == 204 || x->status == 304;
	int r;

	if (atomic_load(&srv.stopping) ||
	    (!none && !x->down.chunked && x->down.length < 0))
		rq->keep_alive = false;
	put(&o, "HTTP/1.1 %d %s\r\n", x->status, reply_reason(x->status));
	put_fields(&o, x->fields, x->field_count);
	put_framing(&o, &x->down);
	put(&o, "Connection: %s\r\n\r\n", rq->keep_alive ? "keep-alive" : "close");
	r = send_out(x->c->fd, &o);
	if (r || none)
		return r;
	return relay(&x->server, x->c->fd, &x->down);
}

static int refuse(struct conn *c, int status)
{
	struct reply why = { .status = status };

	if (c->rq.body)		/* it is there still, or half of it */
		c->rq.keep_alive = false;
	return reply_error(c, &why);
}

static int download(struct exchange *x)
{
	int status = read_answer(x);

	return status ? refuse(x->c, status) : send_answer(x);
}

/* ---- the whole ---- */

static int exchange(struct exchange *x)
{
	struct conn *c = x->c;
	fiber_scope_t s;
	int r;

	if (send_request(x))
		return refuse(c, 502);
	x->sent = !c->rq.body;
	if (x->sent)
		return download(x);
	if (encourage(x) || fiber_scope_open(&s, NULL))
		return -1;
	r = fiber_scope_spawn(&s, upload, x) ? refuse(c, 503) : download(x);
	fiber_scope_cancel(&s, 0);	/* who has answered needs no more of it */
	fiber_scope_close(&s);
	if (!x->sent)
		c->rq.keep_alive = false;
	return r;
}

static int connect_upstream(const struct upstream *u)
{
	int fd = socket(u->addr.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0), r;

	if (fd < 0)
		return -errno;
	r = fiber_connect_until(fd, (const struct sockaddr *)&u->addr,
				u->addr_len, relay_deadline());
	if (r < 0)
		fiber_close(fd);
	return r < 0 ? r : fd;
}

int proxy(struct conn *c)
{
	struct exchange *x = malloc(sizeof(*x));
	int r;

	if (!x)
		return refuse(c, 503);
	x->c = c;
	x->up = (struct framing){ .length = -1 };
	x->down = (struct framing){ .length = -1 };
	r = find_framing(&x->up, c->rq.fields, c->rq.field_count);
	x->fd = r ? -1 : connect_upstream(c->rq.upstream);
	if (r || x->fd < 0) {
		r = refuse(c, r ? r : x->fd == -ETIMEDOUT ? 504 : 502);
	} else {
		conn_relax(c);
		fiber_reader_init(&x->server, x->fd, x->in, sizeof(x->in));
		fiber_reader_init(&x->client, c->fd, c->buf, HEAD_MAX);
		x->client.from = c->taken;
		x->client.to = c->len;
		r = exchange(x);
		c->taken = x->client.from;
		c->len = x->client.to;
		fiber_close(x->fd);
	}
	free(x);
	return r;
}
