// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* io.c - the rows of I/O for libfiber */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "fiber.h"

void bench_ours_echo(int fd);
void bench_ours_preads(long n);

/* As samples/echo. */
static int echo(int fd, void *arg)
{
	char buf[BENCH_ECHO_BUFFER];
	ssize_t n;

	while ((n = fiber_read(fd, buf, sizeof(buf))) > 0)
		if (fiber_write(fd, buf, (size_t)n) != n)
			break;
	return 0;
}

void bench_ours_echo(int fd)
{
	int r = fiber_serve(fd, 0, echo, NULL);

	fprintf(stderr, "fiber_serve: %s\n", strerror(-r));
}

void bench_ours_preads(long n)
{
	static char page[BENCH_PAGE];
	unsigned long seed = 1;
	long at;

	while (n--) {
		at = bench_offset(&seed);
		bench_page(page, at,
			   fiber_pread(bench_file, page, sizeof(page), at));
	}
}
