// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * contention_text.c - where fibers and threads waited, as text
 *
 * On stderr the places that cost most, with names. In the file all of them, in the
 * format that pprof and gperftools know ("contention"): a line for each place, its
 * time and how often, and the return addresses; then the memory map, by which pprof
 * finds the names.
 *
 * No memory is taken and no lock waited for: the process may be about to die.
 */
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "contention.h"
#include "symbol.h"

#define TOLD	10			/* places */
#define STACK	8			/* frames of each */

/* ---- in words ---- */

struct sums {
	uint64_t count, ns;
};

static struct sums sum_up(uint32_t n)
{
	struct sums all = { 0, 0 };

	for (uint32_t i = 0; i < n; i++) {
		all.count += fb_ct.place[fb_ct.order[i]].count;
		all.ns += fb_ct.place[fb_ct.order[i]].total_ns;
	}
	return all;
}

static void tell_place(const struct fiber_contention *s, bool names)
{
	uint32_t n = s->frames < STACK ? s->frames : STACK;

	fb_say("%12llu us %10llu us %10llu us %10llu  %s",
	       (unsigned long long)(s->total_ns / 1000),
	       (unsigned long long)(s->total_ns / s->count / 1000),
	       (unsigned long long)(s->max_ns / 1000),
	       (unsigned long long)s->count,
	       *s->what ? s->what : "at places that found no room");
	for (uint32_t i = 0; i < n; i++)
		if (names)
			fb_say("    %s", fb_symbol((uintptr_t)s->frame[i] - 1));
		else
			fb_say("    %p", s->frame[i]);
}

static void tell(uint32_t n)
{
	struct sums all = sum_up(n);
	bool names;

	fb_say("contention: %llu waits, %llu us, at %u places",
	       (unsigned long long)all.count, (unsigned long long)all.ns / 1000, n);
	if (!n)
		return;
	names = fb_symbol_take();
	fb_say("%15s %13s %13s %10s  %s", "in all", "mean", "longest", "waits",
	       "for");
	for (uint32_t i = 0; i < n && i < TOLD; i++)
		tell_place(&fb_ct.place[fb_ct.order[i]], names);
	if (n > TOLD)
		fb_say("    ... and %u more", n - TOLD);
	if (names)
		fb_symbol_give();
}

/* ---- the file ---- */

static int put_place(int fd, const struct fiber_contention *s)
{
	char line[64 + 20 * FIBER_CONTENTION_FRAMES];
	int n;

	n = snprintf(line, sizeof(line), "%llu %llu @",
		     (unsigned long long)s->total_ns,
		     (unsigned long long)s->count);
	for (uint32_t i = 0; i < s->frames; i++)
		n += snprintf(line + n, sizeof(line) - (size_t)n, " %p",
			      s->frame[i]);
	line[n++] = '\n';
	return fb_os_write_all(fd, line, (size_t)n);
}

static int put_map(int fd)
{
	int maps = open("/proc/self/maps", O_RDONLY | O_CLOEXEC), r = 0;
	static char text[4096];
	ssize_t n = 0;

	while (maps >= 0 && !r && (n = read(maps, text, sizeof(text))) > 0)
		r = fb_os_write_all(fd, text, (size_t)n);
	if (maps < 0 || n < 0)
		r = r ? r : -errno;
	if (maps >= 0)
		close(maps);
	return r;
}

static int put_all(int fd, uint32_t n)
{
	static const char head[] =
		"--- contention:\ncycles/second = 1000000000\n"
		"sampling period = 1\n";
	static const char map[] = "\n--- Memory map: ---\n";
	int r = fb_os_write_all(fd, head, sizeof(head) - 1);

	for (uint32_t i = 0; i < n && !r; i++)
		r = put_place(fd, &fb_ct.place[fb_ct.order[i]]);
	if (!r)
		r = fb_os_write_all(fd, map, sizeof(map) - 1);
	return r ? r : put_map(fd);
}

int fb_contention_write(void)
{
	uint32_t n = fb_contention_sort();
	int fd, r;

	tell(n);
	if (!fb_ct.path[0])
		return 0;
	fd = fb_os_report_open(fb_ct.path);
	if (fd < 0)
		return fd;
	r = put_all(fd, n);
	if (close(fd) && !r)
		r = -errno;
	return r;
}
