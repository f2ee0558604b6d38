/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* stats.c - the server's counters and the library's, as text */
#define _GNU_SOURCE 1
#include <fcntl.h>
#include <fiber.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "httpd.h"

static int threads(void)
{
	char text[512], *p = NULL;
	int fd = open("/proc/self/stat", O_RDONLY | O_CLOEXEC), n = -1;
	ssize_t len = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);

	if (len > 0) {
		text[len] = '\0';
		p = strrchr(text, ')');
	}
	/* state is field 3, num_threads field 20 */
	if (p)
		sscanf(p + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u"
		       " %*u %*u %*d %*d %*d %*d %d", &n);
	if (fd >= 0)
		close(fd);
	return n;
}

size_t stats_print(char *buf, size_t size)
{
	struct fiber_stats st = { .size = sizeof(st) };
	int n;

	fiber_get_stats(&st);
	n = snprintf(buf, size,
		     "backend: %s\nserved: %llu\nconnections: %d\n"
		     "accepted: %llu\nhandoffs: %llu\npreemptions: %llu\n"
		     "returns: %llu\nswitches: %llu\nprocessors: %u\n"
		     "carriers: %u\nthreads: %d\n",
		     fiber_backend(),
		     atomic_load(&srv.served), atomic_load(&srv.conns),
		     atomic_load(&srv.accepted),
		     (unsigned long long)st.handoffs,
		     (unsigned long long)st.preemptions,
		     (unsigned long long)st.returns,
		     (unsigned long long)st.switches,
		     st.processors, st.carriers, threads());
	return n < 0 ? 0 : (size_t)n;
}
