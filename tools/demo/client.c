/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * client - the clients of the demo that are not a load generator
 *
 *   client get PORT TARGET      the body of http://127.0.0.1:PORT/TARGET;
 *                               status 0 only if it came whole, with 200
 *   client hold PORT N TARGET   asks once on each of N connections, prints
 *                               "held N", keeps them open and silent; on
 *                               SIGTERM asks again on each, prints "alive K",
 *                               status 0 only if all answered
 */
#define _GNU_SOURCE 1
#include <arpa/inet.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

enum { HEAD_MAX = 4096, WAIT_SECONDS = 60 };

static int dial(int port)
{
	struct sockaddr_in to = {
		.sin_family = AF_INET,
		.sin_port = htons((uint16_t)port),
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK),
	};
	struct timeval tv = { .tv_sec = WAIT_SECONDS };
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof(tv));
	if (fd >= 0 && connect(fd, (struct sockaddr *)&to, sizeof(to)) == 0)
		return fd;
	if (fd >= 0)
		close(fd);
	return -1;
}

static int ask(int fd, const char *target)
{
	char text[HEAD_MAX];
	int n = snprintf(text, sizeof(text),
			 "GET %s HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", target);

	return n < (int)sizeof(text) &&
	       send(fd, text, (size_t)n, MSG_NOSIGNAL) == n ? 0 : -1;
}

/* Reads the head up to its empty line; the length it announces, or -1. */
static long long read_head(int fd)
{
	char head[HEAD_MAX], *field;
	size_t n = 0;

	while (n < 4 || memcmp(head + n - 4, "\r\n\r\n", 4)) {
		if (n + 1 == sizeof(head) || read(fd, head + n, 1) != 1)
			return -1;
		n++;
	}
	head[n] = '\0';
	field = strcasestr(head, "\r\nContent-Length:");
	if (strncmp(head, "HTTP/1.1 200 ", 13) || !field)
		return -1;
	return atoll(field + 17);
}

/* One whole answer with status 200; its body to out, if there is one. */
static int receive(int fd, FILE *out)
{
	long long left = read_head(fd);
	char buf[16384];

	if (left < 0)
		return -1;
	while (left > 0) {
		size_t want = left < (long long)sizeof(buf) ? (size_t)left
							    : sizeof(buf);
		ssize_t n = read(fd, buf, want);

		if (n <= 0)
			return -1;
		if (out && fwrite(buf, 1, (size_t)n, out) != (size_t)n)
			return -1;
		left -= n;
	}
	return 0;
}

static int get(int port, const char *target)
{
	int fd = dial(port);

	if (fd < 0 || ask(fd, target) || receive(fd, stdout))
		return 1;
	return fflush(stdout) ? 1 : 0;
}

/* How many of the connections answer. */
static int ask_all(const int *fd, int n, const char *target)
{
	int good = 0;

	for (int i = 0; i < n; i++)
		if (fd[i] >= 0)
			ask(fd[i], target);
	for (int i = 0; i < n; i++)
		good += fd[i] >= 0 && receive(fd[i], NULL) == 0;
	return good;
}

static int hold(int port, int n, const char *target)
{
	struct rlimit lim = { (rlim_t)n + 16, (rlim_t)n + 16 };
	int *fd = calloc((size_t)n, sizeof(*fd)), held, alive, sig;
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigprocmask(SIG_BLOCK, &set, NULL);
	setrlimit(RLIMIT_NOFILE, &lim);
	for (int i = 0; fd && i < n; i++)
		fd[i] = dial(port);
	held = fd ? ask_all(fd, n, target) : 0;
	printf("held %d\n", held);
	fflush(stdout);
	sigwait(&set, &sig);
	alive = fd ? ask_all(fd, n, target) : 0;
	printf("alive %d\n", alive);
	return held == n && alive == n ? 0 : 1;
}

int main(int argc, char **argv)
{
	if (argc == 4 && !strcmp(argv[1], "get"))
		return get(atoi(argv[2]), argv[3]);
	if (argc == 5 && !strcmp(argv[1], "hold") && atoi(argv[3]) > 0)
		return hold(atoi(argv[2]), atoi(argv[3]), argv[4]);
	fputs("usage: client get PORT TARGET | hold PORT N TARGET\n", stderr);
	return 2;
}
