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
 * Asked at the start, and again while the program runs: follow.c. The program counts
 * on low descriptors meanwhile (close(0), then open), so the files stay open, with
 * high numbers, and open() is called only where something has come or changed:
 *
 *	what changes		seen by			then
 *	our cgroup		/proc/self/cgroup	others are opened
 *	a cpu.max comes		access(): its cgroup	it is opened
 *				has got the controller
 *	it goes			read: ENODEV		it is closed
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
#define LEVELS		64		/* that are looked at, from our own up */

/*
 * Not on the stack: follow.c asks from a fiber, whose stack may be of 12 KiB. Who holds
 * the lock is in short calls of the kernel, but for that nobody waits who has more to
 * do than to ask the same.
 */
static struct {
	fb_lock_t lock;
	bool open;			/* .cgroup was tried */
	bool unknown;			/* a limit is there, and not to be had */
	int cgroup;			/* /proc/self/cgroup */
	int level[LEVELS], levels;	/* cpu.max of .own and of those above; or -1 */
	char own[PATH_MAX];
	char path[PATH_MAX + 64], text[8192];
} kept;

static int open_high(const char *path)
{
	return fb_os_high(open(path, O_RDONLY | O_CLOEXEC));
}

/* What fits of a file, as text; false: none, errno 0 if it is empty. */
static bool read_text(int fd, char *buf, size_t size)
{
	size_t n = 0;
	ssize_t r = 0;

	errno = 0;
	while (n < size - 1 &&
	       (r = pread(fd, buf + n, size - 1 - n, (off_t)n)) > 0)
		n += (size_t)r;
	buf[n] = 0;
	return r >= 0 && n;
}

/* ---- the quota ---- */

/* "max 100000", "150000 100000": CPUs, rounded up. */
static unsigned int quota(const char *text)
{
	unsigned long long quota, period;

	if (sscanf(text, "%llu %llu", &quota, &period) != 2 || !period)
		return UINT_MAX;
	quota = quota / period + !!(quota % period);
	return quota < 1 ? 1 : quota > UINT_MAX ? UINT_MAX : (unsigned int)quota;
}

/* cpu.max of kept.path, once there is one; or -1. */
static int open_level(void)
{
	size_t n = strlen(kept.path);
	int fd = -1;

	strcpy(kept.path + n, "/cpu.max");
	if (!access(kept.path, F_OK)) {
		fd = open_high(kept.path);
		kept.unknown |= fd < 0;
	}
	kept.path[n] = 0;
	return fd;
}

/* Of the i-th level, which is kept.path. */
static unsigned int level_cpus(int i)
{
	int *fd = &kept.level[i];
	char text[64];

	if (*fd >= 0 && read_text(*fd, text, sizeof(text)))
		return quota(text);
	/* By any other error it is not ours any more. */
	if (*fd >= 0 && errno == ENODEV)
		close(*fd);
	*fd = open_level();
	return *fd >= 0 && read_text(*fd, text, sizeof(text)) ?
	       quota(text) : UINT_MAX;
}

static void close_levels(void)
{
	while (kept.levels)
		if (kept.level[--kept.levels] >= 0)
			close(kept.level[kept.levels]);
}

/* Of all from our own up to the root. */
static unsigned int least_quota(void)
{
	unsigned int n = UINT_MAX, here;
	char *last;

	snprintf(kept.path, sizeof(kept.path), CGROUPS "%s", kept.own);
	for (int i = 0; i < LEVELS; i++) {
		if (i == kept.levels)
			kept.level[kept.levels++] = -1;
		here = level_cpus(i);
		n = here < n ? here : n;
		last = strrchr(kept.path + strlen(CGROUPS), '/');
		if (!last)
			break;
		*last = 0;
	}
	return n;
}

/* ---- the cgroup ---- */

/* The path of ours, in kept.text; NULL: there is no v2. */
static const char *own_cgroup(void)
{
	char *line = kept.text, *end;

	if (!kept.open)
		kept.cgroup = open_high("/proc/self/cgroup");
	kept.open = true;
	if (kept.cgroup < 0 ||
	    !read_text(kept.cgroup, kept.text, sizeof(kept.text)))
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

/* 0: not known. */
static unsigned int cgroup_cpus(void)
{
	unsigned int n = UINT_MAX;
	const char *own;

	fb_lock(&kept.lock);
	own = own_cgroup();
	if (own && strcmp(own, kept.own)) {
		close_levels();
		strcpy(kept.own, own);
	}
	kept.unknown = false;
	if (own)
		n = least_quota();
	if (kept.unknown)
		n = 0;
	fb_unlock(&kept.lock);
	return n;
}

/* The runtime is off, or was not to be had: nobody asks. */
void fb_cpus_stop(void)
{
	close_levels();
	if (kept.open && kept.cgroup >= 0)
		close(kept.cgroup);
	kept.open = false;
	kept.own[0] = 0;
}

unsigned int fb_cpus(int tid)
{
	unsigned int most = cgroup_cpus();
	cpu_set_t set;
	int n = 0;

	if (!most && tid)
		return 0;
	if (!sched_getaffinity(tid, sizeof(set), &set))
		n = CPU_COUNT(&set);
	if (n < 1)
		n = (int)sysconf(_SC_NPROCESSORS_ONLN);
	if (n < 1)
		n = 1;
	return !most || (unsigned int)n < most ? (unsigned int)n : most;
}
