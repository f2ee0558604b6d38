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

int main(int argc, char **argv)
{
	int c;

	while ((c = getopt(argc, argv, "p:l:")) != -1) {
		if (c == 'p')
			port = (unsigned int)atoi(optarg);
		else if (c == 'l')
			limit = (unsigned int)atoi(optarg);
		else
			return 2;
	}
	return fiber_run(serve, NULL);
}
