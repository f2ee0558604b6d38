// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * cpus.c - how many CPUs the process may use
 *
 * Those of its affinity, but no more than cpu.max of its cgroup (v2), or of one
 * above, pays for, rounded up: with 1.5 CPUs two processors keep busy what one
 * could not, and with more than two all stand still for a part of each period.
 *
 * The cgroup is named by the line "0::PATH" of /proc/self/cgroup. In a namespace
 * PATH begins at its root, which is what the container has mounted; what lies
 * above is not seen. Where v2 is not mounted, or has no cpu controller, there is
 * no cpu.max and so no limit.
 *
 * Asked at the start, and again while the program runs: follow.c.
 */
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fb.h"

#define CGROUPS		"/sys/fs/cgroup"

/*
 * Not on the stack: follow.c asks from a fiber, whose stack may be of 12 KiB. Who holds
 * the lock is in short calls of the kernel, but for that nobody waits who has more to
 * do than to ask the same.
 */
static struct {
	fb_lock_t lock;
	char path[PATH_MAX + 64], file[PATH_MAX + 80], text[8192];
} room;

/* What fits of a file, as text; false: none. */
static bool read_text(const char *path, char *buf, size_t size)
{
	size_t n = 0;
	ssize_t r = 0;
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return false;
	while (n < size - 1 && (r = read(fd, buf + n, size - 1 - n)) > 0)
		n += (size_t)r;
	close(fd);
	buf[n] = 0;
	return r >= 0 && n;
}

/* "max 100000", "150000 100000": CPUs, rounded up. */
static unsigned int quota(const char *dir)
{
	unsigned long long quota, period;
	char text[64];

	snprintf(room.file, sizeof(room.file), "%s/cpu.max", dir);
	if (!read_text(room.file, text, sizeof(text)) ||
	    sscanf(text, "%llu %llu", &quota, &period) != 2 || !period)
		return UINT_MAX;
	quota = quota / period + !!(quota % period);
	return quota < 1 ? 1 : quota > UINT_MAX ? UINT_MAX : (unsigned int)quota;
}

/* The path of ours, in room.text; NULL: there is no v2. */
static const char *own_cgroup(void)
{
	char *line = room.text, *end;

	if (!read_text("/proc/self/cgroup", room.text, sizeof(room.text)))
		return NULL;
	for (; line; line = end ? end + 1 : NULL) {
		end = strchr(line, '\n');
		if (end)
			*end = 0;
		if (!strncmp(line, "0::/", 4))
			return strlen(line + 3) < PATH_MAX ? line + 3 : NULL;
	}
	return NULL;
}

/* Of all from our own up to the root. */
static unsigned int least_quota(const char *own)
{
	unsigned int n = UINT_MAX, here;
	char *last;

	snprintf(room.path, sizeof(room.path), CGROUPS "%s", own);
	do {
		here = quota(room.path);
		n = here < n ? here : n;
		last = strrchr(room.path + strlen(CGROUPS), '/');
		if (last)
			*last = 0;
	} while (last);
	return n;
}

static unsigned int cgroup_cpus(void)
{
	unsigned int n = UINT_MAX;
	const char *own;

	fb_lock(&room.lock);
	own = own_cgroup();
	if (own)
		n = least_quota(own);
	fb_unlock(&room.lock);
	return n;
}

unsigned int fb_cpus(int tid)
{
	unsigned int most = cgroup_cpus();
	cpu_set_t set;
	int n = 0;

	if (!sched_getaffinity(tid, sizeof(set), &set))
		n = CPU_COUNT(&set);
	if (n < 1)
		n = (int)sysconf(_SC_NPROCESSORS_ONLN);
	if (n < 1)
		n = 1;
	return (unsigned int)n < most ? (unsigned int)n : most;
}
