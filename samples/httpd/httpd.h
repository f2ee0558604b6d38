/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * httpd.h - what the files of the sample server share
 *
 * httpd.c starts and accepts; conn.c reads requests off one connection;
 * request.c understands them; reply.c writes answers; serve.c decides what
 * they are; beneath.c opens files and never leaves the root; stats.c counts.
 * proxy.c passes requests on to other servers, relay.c their bodies.
 */
#ifndef HTTPD_H
#define HTTPD_H

#include <fiber.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

enum {
	HEAD_MAX = 8192,	/* request line and header fields together */
	LINE_MAX_LEN = 4096,	/* request line */
	FIELDS_MAX = 100,
	UPSTREAMS_MAX = 16,
};

/* Where requests for paths beneath prefix go. */
struct upstream {
	const char *prefix, *name;
	size_t prefix_len;
	struct sockaddr_storage addr;
	socklen_t addr_len;
};

struct server {
	/* set before the first connection */
	int root;		/* directory descriptor */
	int listener;
	int timeout;		/* seconds a client may take for anything */
	int max_conns;
	bool walk;		/* resolve paths without openat2 */
	bool fiber_io;		/* by fiber_read and its kin */
	uint64_t ticks_per_ms;	/* of the CPU's counter, see spin() */
	struct upstream upstreams[UPSTREAMS_MAX];
	int upstream_count;

	/* written by any fiber */
	atomic_bool stopping;
	atomic_int conns;	/* connections that are open */
	atomic_int busy;	/* requests being answered */
	atomic_ullong served;	/* requests answered, whatever the status */
	atomic_ullong accepted;
};
extern struct server srv;

struct field {
	const char *name, *value;
};

/* A request; every pointer leads into the connection's buffer. */
struct request {
	bool head;		/* HEAD: as GET, without the body */
	bool keep_alive;
	bool http10;
	char *path;		/* decoded, no dot segments, starts with '/' */
	const char *query;	/* after '?', or "" */
	const char *range, *if_range, *if_modified_since;
	bool if_none_match;
	int hosts;
	bool body;		/* one is announced */
	const char *method;
	const struct upstream *upstream;	/* NULL: it is ours to answer */
	int field_count;
	struct field fields[FIELDS_MAX];
	char target[LINE_MAX_LEN + 1];		/* as it came, if upstream is set */
};

struct conn {
	int fd;
	struct request rq;
	size_t len;		/* bytes in buf */
	size_t taken;		/* of them, of the request being answered */
	bool rushed;		/* SO_RCVTIMEO is less than srv.timeout */
	char buf[HEAD_MAX + 1];
};

/*
 * An answer's head. A field that is zero is left out, but length is always
 * sent (except with 304).
 */
struct reply {
	int status;
	const char *type;
	off_t length;
	time_t mtime;
	const char *location;
	off_t from, total;	/* 206: first byte, whole size; 416: whole size */
	bool no_store;
};

/* conn.c: a fiber's whole life; arg is the descriptor, as a pointer */
void *conn_main(void *arg);
/* Before a body is read, after a head that may have come in a rush. */
void conn_relax(struct conn *c);

/* request.c: 0 or the HTTP status that refuses it; head is changed in place */
int request_parse(struct request *rq, char *head, size_t len);
bool is_token(const char *s);
/* Is the word in a list with commas? */
bool list_has(const char *list, const char *word);
/* Seconds since 1970 of an HTTP date; -1: not one */
time_t http_date_parse(const char *s);

/* beneath.c: descriptor for reading or negative errno; path as in a request */
int beneath_open(const char *path);
/* Does this kernel have openat2, and are we allowed to call it? */
bool beneath_has_openat2(void);

/* Text that grows in a buffer; full: there was more than fits. */
struct out {
	char *buf;
	size_t size, len;
	bool full;
};
void put(struct out *o, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

/*
 * conn.c: read, send and sendfile on a client's socket; with srv.fiber_io by the
 * library's, which park the fiber. Results and errno as those of the plain calls.
 */
ssize_t sock_read(int fd, void *buf, size_t n);
ssize_t sock_send(int fd, const void *buf, size_t n, int flags);
ssize_t sock_sendfile(int fd, int file, off_t *from, size_t n);

/* reply.c: what a status is called */
const char *reply_reason(int status);
/* 0 or -1: the connection is of no use any more */
int reply_head(struct conn *c, const struct reply *r, bool more);
int reply_text(struct conn *c, int status, const char *text);
/* As reply_head, and a line that says the status. */
int reply_error(struct conn *c, const struct reply *why);
int reply_file(struct conn *c, int fd, off_t from, off_t length);

/* serve.c: answers c->rq; 0 or -1 as above */
int serve(struct conn *c);
void spin_calibrate(void);

/* proxy.c: "/prefix=host:port", at the start; 0, or what is wrong with it */
const char *proxy_add(char *arg);
/* Whose path this is, or NULL */
const struct upstream *proxy_find(const char *path);
/* Has the upstream answer c->rq; 0 or -1 as above */
int proxy(struct conn *c);

/* relay.c: how long a body is */
struct framing {
	bool chunked;
	long long length;	/* -1: to the end, else bytes */
};
/* Copies a body; 0, or which side failed. No side may be silent for srv.timeout. */
enum { RELAY_FROM = -1, RELAY_TO = -2 };
int relay(struct fiber_reader *from, int to, const struct framing *f);
uint64_t relay_deadline(void);

/* stats.c: counters as "name: value" lines; how many bytes */
size_t stats_print(char *buf, size_t size);

#endif
