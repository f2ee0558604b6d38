/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * A chat server: who connects says a name, then every line goes to everybody.
 *
 *	chat --help
 *
 * Two fibers for each client. One reads lines and puts each into the queues of all
 * clients, under one lock, so that everybody sees them in the same order. A queue is
 * a channel of QUEUE lines, and nobody ever waits for room in it: one that is full
 * belongs to a client that does not read, and is closed. The other fiber of a client
 * writes what comes out of its queue. When the queue is closed, by whomever, it says
 * why, and the client is gone. That is all there is to ending: a client that leaves,
 * one that is too slow and a server that stops close queues, nothing else.
 */
#include <fiber.h>
#include <arpa/inet.h>
#include <ctype.h>
#include <getopt.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "chat.h"

#define SECOND	1000000000ull

enum {
	KERNEL_QUEUE = 65536,	/* bytes the kernel keeps for a slow client */
	HELLO = 30,		/* seconds to say a name */
	GRACE = 3,		/* seconds to write what is left, at the end */
};

static const char *address = "127.0.0.1";
static unsigned int port;
static unsigned int patience = 5;	/* seconds one line may take to be written */
static int listener;
static fiber_event_t all_gone;	/* and nobody is accepted any more */

/* ---- the reading side ---- */

/* Letters, digits, '-' and '_', and not too many of them. */
static bool is_name(const char *s)
{
	size_t n = strlen(s);

	while (isalnum((unsigned char)*s) || *s == '-' || *s == '_')
		s++;
	return n && n < NAME && !*s;
}

static void take_name(struct client *c, const char *name)
{
	if (!is_name(name)) {
		say(c, "* a name has 1 to %d letters, digits, - or _\n",
		    NAME - 1);
	} else if (!name_is_free(name)) {
		say(c, "* %s is taken, say another name\n", name);
	} else {
		strcpy(c->name, name);
		say(NULL, "* %s is here\n", name);
	}
}

static void take_line(struct client *c, char *text)
{
	for (char *s = text; *s; s++)	/* nobody's terminal is to be played with */
		if (iscntrl((unsigned char)*s) && *s != '\t')
			*s = '?';
	if (!*c->name)
		take_name(c, text);
	else if (!strcmp(text, "/who"))
		list(c);
	else if (!strcmp(text, "/quit"))
		drop(c, "bye");
	else if (*text == '/')
		say(c, "* there are /who and /quit\n");
	else if (*text)
		say(NULL, "%s: %s\n", c->name, text);
}

static int reader(void *arg)
{
	struct client *c = arg;
	uint64_t until = fiber_now() + HELLO * SECOND;
	struct fiber_reader in;
	char *text;
	ssize_t n;

	fiber_reader_init(&in, c->fd, c->buf, sizeof(c->buf));
	while ((n = fiber_reader_line_until(&in, &text, until)) >= 0) {
		lock();
		take_line(c, text);
		if (*c->name)
			until = FIBER_NEVER;
		unlock();
		fiber_yield();	/* others write before one says more */
	}
	lock();
	drop(c, n == -EMSGSIZE ? "that line is too long" :
		n == -ETIMEDOUT ? "you did not say who you are" : NULL);
	unlock();
	return 0;
}

/* ---- the writing side, which is the client's own fiber ---- */

static bool put(int fd, const char *text, size_t len)
{
	return fiber_write_until(fd, text, len, fiber_now() +
				 patience * SECOND) == (ssize_t)len;
}

static void writer(struct client *c)
{
	bool good = true;
	struct line *l;
	char last[80];

	while (good && fiber_chan_recv(c->queue, &l) == 0) {
		good = put(c->fd, l->text, l->len);
		let_go(l);
	}
	if (good && c->why) {	/* nobody writes it any more */
		snprintf(last, sizeof(last), "* %s\n", c->why);
		put(c->fd, last, strlen(last));
	}
}

/* To close with something unread would take back what we wrote last. */
static void read_rest(int fd)
{
	uint64_t until = fiber_now() + SECOND;
	char waste[4096];

	if (fiber_shutdown(fd, SHUT_WR) == 0)
		while (fiber_read_until(fd, waste, sizeof(waste), until) > 0)
			;
}

static int serve(int fd, void *arg)
{
	struct client c = { .fd = fd };
	const char *refused = enter(&c);
	int bytes = KERNEL_QUEUE;
	fiber_scope_t s;
	struct line *l;

	(void)arg;
	setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
	if (refused) {
		put(fd, refused, strlen(refused));
		return 0;
	}
	if (fiber_scope_open(&s, NULL) == 0) {
		if (fiber_scope_spawn(&s, reader, &c) == 0)
			writer(&c);
		fiber_scope_cancel(&s, 0);	/* the reader may wait still */
		fiber_scope_close(&s);
	}
	leave(&c);
	while (fiber_chan_try_recv(c.queue, &l) == 0)
		let_go(l);
	fiber_chan_destroy(c.queue);
	read_rest(fd);
	return 0;
}

/* ---- the server ---- */

static int serve_all(void *arg)
{
	int r = fiber_serve(listener, 0, serve, NULL);

	(void)arg;
	fiber_event_set(&all_gone);
	return r;
}

static int listen_at(void)
{
	struct sockaddr_in a = { .sin_family = AF_INET,
				 .sin_port = htons((uint16_t)port) };
	socklen_t len = sizeof(a);

	listener = inet_aton(address, &a.sin_addr) ?
		fiber_listen((struct sockaddr *)&a, sizeof(a), 0) : -EINVAL;
	if (listener < 0 || getsockname(listener, (struct sockaddr *)&a, &len)) {
		fprintf(stderr, "chat: %s port %u: %s\n", address, port,
			strerror(listener < 0 ? -listener : errno));
		return -1;
	}
	printf("chat: %s:%u, %s\n", address, ntohs(a.sin_port),
	       fiber_backend());
	fflush(stdout);
	return 0;
}

/* Whoever is still written to after GRACE seconds reads too slowly. */
static void stop(fiber_scope_t *s)
{
	lock();
	hub.stopping = true;
	for (struct client *c = hub.clients; c; c = c->next)
		drop(c, "the server stops");
	unlock();
	fiber_close(listener);
	fiber_event_wait_until(&all_gone, fiber_now() + GRACE * SECOND);
	fiber_scope_cancel(s, 0);
}

/* Until a signal comes. */
static int chat(void *arg)
{
	fiber_chan_t *stoppers;
	fiber_scope_t s;
	bool stopped;
	int r;

	(void)arg;
	r = fiber_chan_create(&stoppers, sizeof(struct fiber_signal), 1);
	if (!r)
		r = fiber_signal_notify(stoppers, SIGINT);
	if (!r)
		r = fiber_signal_notify(stoppers, SIGTERM);
	if (r) {
		fprintf(stderr, "chat: signals: %s\n", strerror(-r));
		return 1;
	}
	if (listen_at() || fiber_scope_open(&s, NULL))
		return 1;
	stopped = fiber_scope_spawn(&s, serve_all, NULL) == 0 &&
		fiber_chan_recv(stoppers, NULL) == 0;
	if (stopped)
		stop(&s);
	r = fiber_scope_close(&s);
	fiber_signal_stop(stoppers);
	fiber_chan_destroy(stoppers);
	if (stopped)
		return 0;
	fprintf(stderr, "chat: cannot accept: %s\n", strerror(-r));
	return 1;
}

static const char usage[] =
"usage: chat [options]\n"
"What one client says goes to all. A client first says who it is.\n"
"  -b, --bind ADDR      IPv4 address to listen on (default: 127.0.0.1)\n"
"  -p, --port PORT      0: any free one (default)\n"
"  -c, --clients N      at most so many at once (default: 1000)\n"
"  -q, --queue N        lines that wait for a slow client before it is dropped\n"
"                       (default: 1024)\n"
"  -t, --patience N     seconds that a line may take to be written (default: 5)\n"
"  -h, --help\n"
"SIGINT or SIGTERM ends it. Try: nc 127.0.0.1 PORT\n";

static unsigned int number(const char *what, unsigned long least,
			   unsigned long most)
{
	char *end;
	unsigned long n = strtoul(optarg, &end, 10);

	if (!isdigit((unsigned char)*optarg) || *end || n < least || n > most) {
		fprintf(stderr, "chat: %s: %s is not a number from %lu to %lu\n",
			what, optarg, least, most);
		exit(2);
	}
	return (unsigned int)n;
}

static void parse_options(int argc, char **argv)
{
	static const struct option longs[] = {
		{ "bind", required_argument, NULL, 'b' },
		{ "port", required_argument, NULL, 'p' },
		{ "clients", required_argument, NULL, 'c' },
		{ "queue", required_argument, NULL, 'q' },
		{ "patience", required_argument, NULL, 't' },
		{ "help", no_argument, NULL, 'h' },
		{ 0 },
	};
	int opt;

	while ((opt = getopt_long(argc, argv, "b:p:c:q:t:h", longs, NULL)) != -1) {
		switch (opt) {
		case 'b': address = optarg; break;
		case 'p': port = number("port", 0, 65535); break;
		case 'c': hub.limit = number("clients", 1, 1000000); break;
		case 'q': hub.queue = number("queue", 1, 65536); break;
		case 't': patience = number("patience", 1, 86400); break;
		case 'h': fputs(usage, stdout); exit(0);
		default: fputs("try chat --help\n", stderr); exit(2);
		}
	}
	if (optind < argc) {
		fprintf(stderr, "chat: %s: no such argument, try --help\n",
			argv[optind]);
		exit(2);
	}
}

int main(int argc, char **argv)
{
	parse_options(argc, argv);
	return fiber_run(chat, NULL) ? 1 : 0;
}
