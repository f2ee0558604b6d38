// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * What httpd.sh and echo.sh need at the other end, and no common tool does.
 *
 *	peer upstream		an HTTP server on a free port, which it prints; what it
 *				does is the last part of the path: see serve()
 *	peer half PORT TEXT	says TEXT, then half-closes, prints all that comes
 *	peer reset PORT N	N clients that say something and reset the connection
 *	peer hold PORT N	N connections, each says "x"; then it waits for the end
 *				of its input, resets the first half, and prints how
 *				many of the others then hear "x" back
 *	peer drip PORT N	N connections say a line, a byte each in turn, and wait
 *				for each byte to come back; half-way it waits for the
 *				end of its input; prints how many heard it all
 *
 * No fibers here: plain blocking calls, a thread for each connection.
 */
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static void say(int fd, const char *text)
{
	send(fd, text, strlen(text), MSG_NOSIGNAL);
}

static void reset(int fd)
{
	struct linger l = { .l_onoff = 1 };

	setsockopt(fd, SOL_SOCKET, SO_LINGER, &l, sizeof(l));
	close(fd);
}

/* ---- upstream ---- */

/* The head, byte by byte, so that the body is still to come. */
static size_t read_head(int fd, char *head, size_t size)
{
	size_t n = 0;

	while (n + 1 < size && read(fd, head + n, 1) == 1) {
		head[++n] = '\0';
		if (n >= 4 && !strcmp(head + n - 4, "\r\n\r\n"))
			return n;
	}
	return 0;
}

static void say_chunk(int fd, const char *buf, size_t n)
{
	char text[32];

	snprintf(text, sizeof(text), "%zx;ext=1\r\n", n);
	say(fd, text);
	send(fd, buf, n, MSG_NOSIGNAL);
	say(fd, "\r\n");
}

/* The body back as it comes, in chunks: with no chunk before the client's first. */
static void echo_body(int fd, const char *head)
{
	const char *field = strcasestr(head, "\r\nContent-Length: ");
	size_t left = field ? (size_t)atoll(field + 18) : 0;
	const int chunks = !!strcasestr(head, "\r\nTransfer-Encoding: chunked");
	int more = chunks;
	char buf[5000], *end;
	ssize_t n;

	say(fd, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
	do {
		if (chunks) {
			for (end = buf; read(fd, end, 1) == 1 && *end != '\n'; end++)
				;
			left = strtoul(buf, NULL, 16);
			more = left > 0;
		}
		for (; left > 0; left -= (size_t)n) {
			n = read(fd, buf, left < sizeof(buf) ? left : sizeof(buf));
			if (n <= 0)
				return;
			say_chunk(fd, buf, (size_t)n);
		}
		/* all of it: to close with something unread would be a reset */
		if (chunks && recv(fd, buf, 2, MSG_WAITALL) != 2)
			return;
	} while (more);
	say(fd, "0\r\nTrailer: x\r\n\r\n");
}

static void wait_for_end(int fd)
{
	char waste[256];

	while (read(fd, waste, sizeof(waste)) > 0)
		;
}

static void *serve(void *arg)
{
	int fd = (int)(long)arg;
	char head[16384], line[16384], *path;

	if (!read_head(fd, head, sizeof(head)) ||
	    sscanf(head, "%*s %16383[^? ]", line) != 1 ||
	    !(path = strrchr(line, '/')))
		goto out;
	if (!strncmp(path, "/echo", 5)) {
		echo_body(fd, head);
	} else if (!strncmp(path, "/head", 5)) {
		say(fd, "HTTP/1.1 100 Continue\r\nA: b\r\n\r\nHTTP/1.1 200 OK\r\n"
		    "Connection: X-Drop\r\nX-Drop: 1\r\nX-Keep: 2\r\n"
		    "Keep-Alive: timeout=1\r\n\r\n");
		say(fd, head);	/* up to the end */
	} else if (!strncmp(path, "/half", 5)) {
		say(fd, "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf");
	} else if (!strncmp(path, "/two", 4)) {
		say(fd, "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n"
		    "Content-Length: 2\r\n\r\nab");
	} else if (!strncmp(path, "/none", 5)) {
		wait_for_end(fd);
	} else if (!strncmp(path, "/early", 6)) {
		say(fd, "HTTP/1.1 413 Payload Too Large\r\n"
		    "Content-Length: 4\r\n\r\nmuch");
		shutdown(fd, SHUT_WR);
		wait_for_end(fd);
	} else if (!strncmp(path, "/reset", 6)) {
		reset(fd);
		return NULL;
	} else if (!strncmp(path, "/chunks", 7)) {
		say(fd, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
		    "3\r\nabc\r\nxyz\r\n");
	} else {
		say(fd, "nonsense\r\n\r\n");
	}
out:
	shutdown(fd, SHUT_WR);
	close(fd);
	return NULL;
}

static int upstream(void)
{
	struct sockaddr_in a = { .sin_family = AF_INET };
	socklen_t len = sizeof(a);
	int l = socket(AF_INET, SOCK_STREAM, 0), fd;
	pthread_t t;

	a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (l < 0 || bind(l, (struct sockaddr *)&a, len) || listen(l, 100) ||
	    getsockname(l, (struct sockaddr *)&a, &len))
		die("listen");
	printf("upstream: %d\n", ntohs(a.sin_port));
	fflush(stdout);
	while ((fd = accept(l, NULL, NULL)) >= 0) {
		if (pthread_create(&t, NULL, serve, (void *)(long)fd))
			die("thread");
		pthread_detach(t);
	}
	return 1;
}

/* ---- clients ---- */

static int connect_to(const char *port)
{
	struct sockaddr_in a = { .sin_family = AF_INET,
				 .sin_port = htons((unsigned short)atoi(port)) };
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (fd < 0 || connect(fd, (struct sockaddr *)&a, sizeof(a)))
		die("connect");
	return fd;
}

static int half(const char *port, const char *text)
{
	int fd = connect_to(port);
	char buf[4096];
	ssize_t n;

	say(fd, text);
	shutdown(fd, SHUT_WR);
	while ((n = read(fd, buf, sizeof(buf))) > 0)
		fwrite(buf, 1, (size_t)n, stdout);
	return n < 0;
}

static int resets(const char *port, int n)
{
	while (n-- > 0) {
		int fd = connect_to(port);

		say(fd, "GET /big.bin HTTP/1.1\r\nHost: x\r\n\r\n");
		reset(fd);
	}
	return 0;
}

/* So many; none waits for ever. */
static int *connections(const char *port, int n)
{
	int *fd = calloc((size_t)n, sizeof(*fd));
	struct timeval limit = { .tv_sec = 60 };

	for (int i = 0; i < n; i++) {
		fd[i] = connect_to(port);
		setsockopt(fd[i], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
	}
	return fd;
}

static void wait_until_told(void)
{
	char c;

	puts("held");
	fflush(stdout);
	while (read(0, &c, 1) > 0)
		;
}

static int hold(const char *port, int n)
{
	int *fd = connections(port, n), good = 0;
	char c;

	for (int i = 0; i < n; i++)
		say(fd[i], "x");
	wait_until_told();
	for (int i = 0; i < n / 2; i++)
		reset(fd[i]);
	for (int i = n / 2; i < n; i++) {
		good += read(fd[i], &c, 1) == 1 && c == 'x';
		close(fd[i]);	/* room for the next one */
	}
	printf("%d\n", good);
	return 0;
}

static int drip(const char *port, int n)
{
	const char line[] = "a byte at a time\n";
	int *fd = connections(port, n), good = 0;
	int *heard = calloc((size_t)n, sizeof(*heard));
	char c;

	for (size_t at = 0; line[at]; at++) {
		if (at == sizeof(line) / 2)
			wait_until_told();
		for (int i = 0; i < n; i++)
			send(fd[i], line + at, 1, MSG_NOSIGNAL);
		for (int i = 0; i < n; i++)
			heard[i] += read(fd[i], &c, 1) == 1 && c == line[at];
	}
	for (int i = 0; i < n; i++)
		good += heard[i] == (int)strlen(line);
	printf("%d\n", good);
	return 0;
}

int main(int argc, char **argv)
{
	signal(SIGPIPE, SIG_IGN);
	if (argc == 2 && !strcmp(argv[1], "upstream"))
		return upstream();
	if (argc == 4 && !strcmp(argv[1], "half"))
		return half(argv[2], argv[3]);
	if (argc == 4 && !strcmp(argv[1], "reset"))
		return resets(argv[2], atoi(argv[3]));
	if (argc == 4 && !strcmp(argv[1], "hold"))
		return hold(argv[2], atoi(argv[3]));
	if (argc == 4 && !strcmp(argv[1], "drip"))
		return drip(argv[2], atoi(argv[3]));
	fprintf(stderr, "usage: peer upstream | half PORT TEXT | reset PORT N | "
		"hold PORT N | drip PORT N\n");
	return 2;
}
