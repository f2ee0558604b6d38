/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * An echo server: a fiber for each connection.
 *
 *	echo [-p PORT] [-l LIMIT]	default: a free port of 127.0.0.1, no limit
 *
 * It prints where it listens, and sends back what it gets, each connection until the
 * client ends it. With -l only so many are served at once; others wait.
 */
#include <fiber.h>
#include <arpa/inet.h>
#include <ctype.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static unsigned int port, limit;

static int echo(int fd, void *arg)
{
	char buf[16384];
	ssize_t n;

	(void)arg;
	while ((n = fiber_read(fd, buf, sizeof(buf))) > 0)
		if (fiber_write(fd, buf, (size_t)n) != n)
			break;
	return 0;
}

static int serve(void *arg)
{
	struct sockaddr_in a = { .sin_family = AF_INET,
				 .sin_port = htons((uint16_t)port) };
	socklen_t len = sizeof(a);
	int fd, r;

	(void)arg;
	a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	fd = fiber_listen((struct sockaddr *)&a, sizeof(a), 0);
	if (fd < 0 || getsockname(fd, (struct sockaddr *)&a, &len)) {
		fprintf(stderr, "echo: port %u: %s\n", port,
			fd < 0 ? strerror(-fd) : "no name");
		return 1;
	}
	printf("echo: 127.0.0.1:%u, %s\n", ntohs(a.sin_port), fiber_backend());
	fflush(stdout);
	r = fiber_serve(fd, limit, echo, NULL);
	fprintf(stderr, "echo: %s\n", strerror(-r));
	return 1;
}

static unsigned int number(const char *what, unsigned long most)
{
	char *end;
	unsigned long n = strtoul(optarg, &end, 10);

	if (!isdigit((unsigned char)*optarg) || *end || n > most) {
		fprintf(stderr, "echo: %s: %s is not a number from 0 to %lu\n",
			what, optarg, most);
		exit(2);
	}
	return (unsigned int)n;
}

int main(int argc, char **argv)
{
	int c;

	while ((c = getopt(argc, argv, "p:l:")) != -1) {
		if (c == 'p')
			port = number("port", 65535);
		else if (c == 'l')
			limit = number("limit", 1000000);
		else
			break;
	}
	if (c != -1 || optind < argc) {
		fprintf(stderr, "usage: echo [-p PORT] [-l LIMIT]\n");
		return 2;
	}
	return fiber_run(serve, NULL);
}
