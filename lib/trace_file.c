// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * trace_file.c - the file of FIBER_TRACE
 *
 * No memory is taken and no lock waited for when it is written: a fatal report does
 * so too. Whatever stands in a ring is only printed, never followed.
 */
#include <string.h>
#include <unistd.h>

#include "symbol.h"
#include "trace.h"

static bool symbols;

static const char *function(uintptr_t fn)
{
	return symbols ? fb_symbol(fn) : "fiber";
}

/* What is kept of a ring. */
static void lane(uint32_t i, struct fb_trace_lane *l)
{
	const struct fb_tring *r = &fb_tr.ring[i];
	uint64_t kept = (uint64_t)fb_tr.mask + 1;

	l->event = r->event;
	l->mask = fb_tr.mask;
	l->n = FB_ACQUIRE(r->n);	/* Pairs with the release in put. */
	l->from = l->lost = l->n > kept ? l->n - kept : 0;
	memcpy(l->pool, r->pool, sizeof(l->pool));
}

int fb_trace_write(void)
{
	const struct fb_trace_source s = {
		.nproc = fb_rt.group.nproc,
		.lanes = fb_trace_lanes(),
		.pid = fb_tr.pid,
		.backend = fb_rt.backend->name,
		.started = fb_rt.started,
		.ended = fb_tr.ended,
		.lane = lane,
		.function = function,
		.why = fb_why_name,
		.write = fb_os_write,
	};
	struct fb_trace_sum sum;
	int fd, r;

	fd = fb_os_report_open(fb_tr.path);
	if (fd < 0)
		return fd;
	symbols = fb_symbol_take();
	r = fb_trace_format(fd, &s, &sum);
	if (symbols)
		fb_symbol_give();
	if (close(fd) && !r)
		r = -errno;
	if (sum.lost && !r)
		fb_say("FIBER_TRACE: %s has the newest %llu events; %llu before them were lost (FIBER_TRACE_EVENTS keeps more)",
		       fb_tr.path, (unsigned long long)sum.events,
		       (unsigned long long)sum.lost);
	return r;
}
