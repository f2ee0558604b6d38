/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * httpd - a static file server, and a reverse proxy, as one would first write it
 *
 * One fiber accepts; each connection is a fiber that reads, opens and sends
 * with plain blocking calls. There is no event loop and no wrapper: what makes
 * that scale is libfiber underneath. (-f: by calls that park the fiber.) main() is a plain thread that waits for a
 * signal to stop.
 */
#define _GNU_SOURCE 1
#include <errno.h>
#include <fcntl.h>
#include <fiber.h>
#include <getopt.h>
#include <netdb.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "httpd.h"

struct server srv = { .timeout = 30, .max_conns = 4096 };

struct options {
	const char *address, *port, *root;
	unsigned int processors;
};

static const char usage[] =
"usage: httpd [options]\n"
"Serves the files of a directory over HTTP, one fiber per connection.\n"
"  -r, --root DIR        what to serve (default: .)\n"
"  -b, --bind ADDR       numeric address to listen on (default: 127.0.0.1)\n"
"  -p, --port PORT       0: any free one (default: 8080)\n"
"  -n, --processors N    fibers that run at once (default: CPUs;\n"
"                        FIBER_PROCESSORS in the environment wins)\n"
"  -c, --connections N   at most so many at once (default: 4096)\n"
"  -t, --timeout SECONDS for a silent or slow client (default: 30)\n"
"  -f, --fiber-io        read and send by fiber_read, fiber_send, fiber_sendfile:\n"
"                        less work where the module is not there\n"
"  -w, --walk            resolve paths without openat2\n"
"  -x, --proxy /PATH=HOST:PORT  what is beneath that path is asked for there\n"
"                        by the same path\n"
"  -h, --help\n"
"Also answers /stats, /spin?ms=N (a loop without calls) and /sleep?ms=N.\n"
"SIGTERM or SIGINT ends it. FIBER_BACKEND=kernel or user chooses a backend.\n";

__attribute__((format(printf, 1, 2), noreturn))
static void die(const char *format, ...)
{
	va_list ap;

	va_start(ap, format);
	fputs("httpd: ", stderr);
	vfprintf(stderr, format, ap);
	fputc('\n', stderr);
	va_end(ap);
	exit(1);
}

static int number(const char *what, const char *s, long least, long most)
{
	char *end;
	long n;

	errno = 0;
	n = strtol(s, &end, 10);
	if (errno || end == s || *end || n < least || n > most)
		die("%s: %s is not a number from %ld to %ld", what, s, least,
		    most);
	return (int)n;
}

static void add_proxy(char *arg)
{
	const char *wrong = proxy_add(arg);

	if (wrong)
		die("proxy %s: %s", arg, wrong);
}

static void parse_options(struct options *o, int argc, char **argv)
{
	static const struct option longs[] = {
		{ "root", required_argument, NULL, 'r' },
		{ "bind", required_argument, NULL, 'b' },
		{ "port", required_argument, NULL, 'p' },
		{ "processors", required_argument, NULL, 'n' },
		{ "connections", required_argument, NULL, 'c' },
		{ "timeout", required_argument, NULL, 't' },
		{ "proxy", required_argument, NULL, 'x' },
		{ "fiber-io", no_argument, NULL, 'f' },
		{ "walk", no_argument, NULL, 'w' },
		{ "help", no_argument, NULL, 'h' },
		{ 0 },
	};
	int opt;

	while ((opt = getopt_long(argc, argv, "r:b:p:n:c:t:x:fwh", longs,
				  NULL)) != -1) {
		switch (opt) {
		case 'r': o->root = optarg; break;
		case 'b': o->address = optarg; break;
		case 'p': number("port", optarg, 0, 65535);
			  o->port = optarg; break;
		case 'n': o->processors = (unsigned int)
			  number("processors", optarg, 1, 1024); break;
		case 'c': srv.max_conns =
			  number("connections", optarg, 1, 1000000); break;
		case 't': srv.timeout =
			  number("timeout", optarg, 1, 86400); break;
		case 'x': add_proxy(optarg); break;
		case 'f': srv.fiber_io = true; break;
		case 'w': srv.walk = true; break;
		case 'h': fputs(usage, stdout); exit(0);
		default: fputs("try httpd --help\n", stderr); exit(2);
		}
	}
	if (optind < argc)
		die("%s: no such argument, try --help", argv[optind]);
}

static void open_root(const char *path)
{
	srv.root = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (srv.root < 0)
		die("root %s: %s", path, strerror(errno));
	if (!beneath_has_openat2())
		srv.walk = true;
}

static void open_listener(const struct options *o)
{
	struct addrinfo hints = {
		.ai_socktype = SOCK_STREAM,
		.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | AI_PASSIVE,
	};
	struct addrinfo *ai;
	int one = 1, r;

	r = getaddrinfo(o->address, o->port, &hints, &ai);
	if (r)
		die("address %s: %s", o->address, gai_strerror(r));
	srv.listener = socket(ai->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (srv.listener < 0)
		die("socket: %s", strerror(errno));
	setsockopt(srv.listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (bind(srv.listener, ai->ai_addr, ai->ai_addrlen) < 0 ||
	    listen(srv.listener, SOMAXCONN) < 0)
		die("cannot listen on %s port %s: %s", o->address, o->port,
		    strerror(errno));
	freeaddrinfo(ai);
}

static void print_banner(const char *root)
{
	struct sockaddr_storage sa = { 0 };
	socklen_t len = sizeof(sa);
	char host[64] = "?", port[16] = "?";
	bool v6;

	getsockname(srv.listener, (struct sockaddr *)&sa, &len);
	getnameinfo((struct sockaddr *)&sa, len, host, sizeof(host), port,
		    sizeof(port), NI_NUMERICHOST | NI_NUMERICSERV);
	v6 = sa.ss_family == AF_INET6;
	printf("httpd: serving %s at http://%s%s%s:%s/ (%s)\n", root,
	       v6 ? "[" : "", host, v6 ? "]" : "", port, fiber_backend());
	fflush(stdout);
}

/* A connection costs up to two descriptors: ask for what we may have. */
static void raise_limits(void)
{
	struct rlimit lim;

	if (getrlimit(RLIMIT_NOFILE, &lim) == 0 && lim.rlim_cur < lim.rlim_max) {
		lim.rlim_cur = lim.rlim_max;
		setrlimit(RLIMIT_NOFILE, &lim);
	}
}

/*
 * The next connection, or -1: the server stops. Not inlined, as its caller
 * spawns fibers and may go on as another thread: errno must be looked up anew.
 */
static __attribute__((noinline)) int accept_next(void)
{
	struct timespec rest = { .tv_nsec = 50000000 };
	int fd;

	while ((fd = accept4(srv.listener, NULL, NULL, SOCK_CLOEXEC)) < 0) {
		if (atomic_load(&srv.stopping))
			return -1;
		switch (errno) {
		case EMFILE:	/* until somebody hangs up */
		case ENFILE:
		case ENOBUFS:
		case ENOMEM:
			nanosleep(&rest, NULL);
			break;
		case EBADF:
		case EINVAL:
		case ENOTSOCK:
			return -1;
		}		/* else that one client has gone already */
	}
	return fd;
}

/* Too many: one line, without waiting for a request or for the client. */
static void turn_away(int fd)
{
	static const char text[] =
		"HTTP/1.1 503 Service Unavailable\r\n"
		"Content-Length: 0\r\nRetry-After: 1\r\n"
		"Connection: close\r\n\r\n";

	send(fd, text, sizeof(text) - 1, MSG_NOSIGNAL | MSG_DONTWAIT);
	close(fd);
}

static void *accept_main(void *arg)
{
	int fd;

	(void)arg;
	while ((fd = accept_next()) >= 0) {
		atomic_fetch_add(&srv.accepted, 1);
		if (atomic_fetch_add(&srv.conns, 1) >= srv.max_conns ||
		    fiber_spawn(NULL, conn_main, (void *)(intptr_t)fd) < 0) {
			atomic_fetch_sub(&srv.conns, 1);
			turn_away(fd);
		}
	}
	return NULL;
}

/* Lets requests that are being answered finish, for two seconds. */
static void stop(void)
{
	char text[1024];

	atomic_store(&srv.stopping, true);
	shutdown(srv.listener, SHUT_RDWR);
	for (int i = 0; i < 200 && atomic_load(&srv.busy) > 0; i++)
		usleep(10000);
	stats_print(text, sizeof(text));
	for (char *s = text; *s; s++)
		if (*s == '\n')
			*s = s[1] ? ',' : '\0';
	printf("httpd: %s\n", text);
	fflush(stdout);
}

int main(int argc, char **argv)
{
	struct options o = {
		.address = "127.0.0.1", .port = "8080", .root = ".",
	};
	struct fiber_config config = { .size = sizeof(config) };
	sigset_t stoppers;
	int r, sig;

	parse_options(&o, argc, argv);
	open_root(o.root);
	open_listener(&o);
	raise_limits();
	spin_calibrate();
	signal(SIGPIPE, SIG_IGN);
	sigemptyset(&stoppers);
	sigaddset(&stoppers, SIGTERM);
	sigaddset(&stoppers, SIGINT);
	pthread_sigmask(SIG_BLOCK, &stoppers, NULL);	/* all threads do */

	config.processors = o.processors;
	r = fiber_init(&config);
	if (r < 0)
		die("fiber_init: %s", strerror(-r));
	r = fiber_spawn(NULL, accept_main, NULL);
	if (r < 0)
		die("fiber_spawn: %s", strerror(-r));
	print_banner(o.root);
	sigwait(&stoppers, &sig);
	stop();
	/* Connections that are still open end with the process. */
	return 0;
}
