// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * trace_json.c - what was recorded, in the trace format of Chrome and Perfetto
 *
 * For the library, of what it recorded itself, and for fiberctl, of what it read.
 *
 * Process 1 has a lane for each processor, of all pools, with a slice for each turn of a
 * fiber, named after it, or after the function it began with; how the turn ended is in
 * its args. Process 2 has a lane for each thread that was taken its processor while it
 * was blocked. Times are in microseconds since the runtime started.
 *
 * No memory is taken and no lock waited for: a fatal report writes too. Whatever
 * stands in a ring is only printed, never followed.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "backend.h"
#include "trace_event.h"

#define NAMES		64		/* a power of two */
#define FN_MAX	128

/* The processor, as its events go by. */
struct lane {
	uint32_t index;
	bool gap;			/* no switch is recorded now */
	bool owned;
	bool on;			/* a slice has begun: */
	bool ended;			/* its fiber has */
	struct fb_trace_event e;
	uint64_t now;
};

static struct {
	const struct fb_trace_source *s;
	int fd, error;
	bool comma;
	size_t n;
	char text[32768];
	struct {
		uintptr_t fn;
		char text[FN_MAX];
	} name[NAMES];
} out;

/* ---- text ---- */

static void flush(void)
{
	size_t done = 0;
	long k;

	while (done < out.n && !out.error) {
		k = out.s->write(out.fd, out.text + done, out.n - done);
		if (k > 0)
			done += (size_t)k;
		else if (k != -EINTR)
			out.error = k ? (int)k : -EIO;
	}
	out.n = 0;
}

static __attribute__((format(printf, 1, 2))) void say(const char *fmt, ...)
{
	va_list ap;
	int n;

	if (out.n > sizeof(out.text) - 1024)
		flush();
	va_start(ap, fmt);
	n = vsnprintf(out.text + out.n, 1024, fmt, ap);
	va_end(ap);
	if (n > 0)
		out.n += n < 1024 ? (size_t)n : 1023;
}

/* How many bytes of s are one character of UTF-8; 0: they are none. */
static size_t character(const char *s, size_t max)
{
	const unsigned char *c = (const unsigned char *)s;
	size_t n = *c < 0x80 ? 1 : *c < 0xc2 ? 0 : *c < 0xe0 ? 2 :
		   *c < 0xf0 ? 3 : *c < 0xf5 ? 4 : 0;

	if (n > max)
		return 0;
	for (size_t i = 1; i < n; i++)		/* a 0 is none, too */
		if ((c[i] & 0xc0) != 0x80)
			return 0;
	if ((*c == 0xe0 && c[1] < 0xa0) || (*c == 0xed && c[1] > 0x9f) ||
	    (*c == 0xf0 && c[1] < 0x90) || (*c == 0xf4 && c[1] > 0x8f))
		return 0;
	return n;
}

/* The inside of a string. Names are cut after so many bytes, wherever that is. */
static void say_quoted(const char *s, size_t max)
{
	for (size_t n; *s && max; s += n, max -= n) {
		n = character(s, max);
		if (*s == '"' || *s == '\\')
			say("\\%c", *s);
		else if (n == 1 && *s < ' ')
			say("\\u%04x", *s);
		else if (n)
			say("%.*s", (int)n, s);
		else
			say("\\ufffd");
		n += !n;
	}
}

static const char *fn_name(uintptr_t fn)
{
	size_t i = fn * 0x9e3779b97f4a7c15ull >> 58 & (NAMES - 1);
	const char *s;

	if (out.name[i].fn != fn) {
		out.name[i].fn = fn;
		s = out.s->function(fn);
		snprintf(out.name[i].text, FN_MAX, "%.*s",
			 (int)strcspn(s, "+ "), s);
	}
	return out.name[i].text;
}

static void say_name(const struct fb_trace_event *e)
{
	char name[sizeof(e->name) + 1];

	memcpy(name, e->name, sizeof(e->name));
	name[sizeof(e->name)] = 0;
	if (name[0])
		say_quoted(name, sizeof(name));
	else
		say_quoted(e->fn ? fn_name(e->fn) : "fiber", FN_MAX);
}

static void say_us(uint64_t ns)
{
	say("%llu.%03u", (unsigned long long)(ns / 1000),
	    (unsigned int)(ns % 1000));
}

static uint64_t since(uint64_t t)
{
	return t > out.s->started ? t - out.s->started : 0;
}

/* {"ph":"?","pid":,"tid":,"ts": */
static void begin(char ph, int pid, uint32_t tid, uint64_t t)
{
	say("%s{\"ph\":\"%c\",\"pid\":%d,\"tid\":%u,\"ts\":",
	    out.comma ? ",\n" : "\n", ph, pid, tid);
	out.comma = true;
	say_us(since(t));
}

static void label(int pid, uint32_t tid, const char *what, const char *value)
{
	begin('M', pid, tid, 0);
	say(",\"name\":\"%s\",\"args\":{\"name\":\"", what);
	say_quoted(value, 64);
	say("\"}}");
}

/* ---- slices ---- */

static void slice_end(struct lane *l, const char *how, const char *why)
{
	uint64_t ns = l->now - l->e.time;

	if (!l->on)
		return;
	l->on = false;
	begin('X', 1, l->index + 1, l->e.time);
	say(",\"dur\":");
	say_us(ns);
	if (!l->e.id) {
		say(",\"cat\":\"gap\",\"name\":\"not recorded\"}");
		return;
	}
	say(",\"cat\":\"fiber\",\"name\":\"");
	say_name(&l->e);
	say("\",\"args\":{\"id\":%llu,\"end\":\"%s%s%s\"}}",
	    (unsigned long long)(l->e.id & INT64_MAX), l->ended ? "ended" : how,
	    *why ? ": " : "", why);
}

static void slice_begin(struct lane *l, const struct fb_trace_event *e)
{
	l->e = *e;
	l->e.time = l->now;
	if (l->gap)
		l->e.id = 0;
	l->ended = false;
	l->on = l->gap || e->id;
}

static void slice_stop(struct lane *l, unsigned int why)
{
	if (why)
		slice_end(l, "parked", out.s->why(why));
	else
		slice_end(l, "yielded", "");
}

/* ---- marks ---- */

static void mark(const struct lane *l, const char *name,
		 const struct fb_trace_event *e)
{
	begin('i', 1, l->index + 1, l->now);
	say(",\"s\":\"t\",\"name\":\"%s\",\"args\":{\"id\":%llu,\"other\":%llu,\"thread\":%u}}",
	    name, (unsigned long long)(e->id & INT64_MAX),
	    (unsigned long long)(e->other & INT64_MAX), e->tid);
}

static void blocked(char ph, const struct lane *l, const struct fb_trace_event *e)
{
	if (!e->tid)
		return;
	begin(ph, 2, e->tid, l->now);
	say(",\"cat\":\"block\",\"name\":\"");
	say_name(e);
	say("\",\"args\":{\"id\":%llu}}", (unsigned long long)(e->id & INT64_MAX));
}

static void arrived(struct lane *l, const struct fb_trace_event *e)
{
	static const char *const name[] = {
		[FB_EVENT_IDLE] = "taken idle", [FB_EVENT_BLOCK] = "handoff",
		[FB_EVENT_GIVEN] = "given", [FB_EVENT_WAKE] = "woken",
		[FB_EVENT_EXIT] = "inherited",
	};

	if (e->why && e->why < sizeof(name) / sizeof(name[0]))
		mark(l, name[e->why], e);
	slice_begin(l, e);
}

/* ---- one event ---- */

static void switched(struct lane *l, const struct fb_trace_event *e)
{
	if (e->kind == FB_TRACE_SPAWN)
		slice_end(l, "spawned another", "");
	else
		slice_stop(l, e->why);
	slice_begin(l, e);
}

static void rare(struct lane *l, const struct fb_trace_event *e)
{
	switch (e->kind) {
	case FB_TRACE_PREEMPT:
		slice_end(l, "preempted", "");
		mark(l, "preempt", e);
		break;
	case FB_TRACE_BLOCK:
		slice_end(l, "blocked", "");
		mark(l, "block", e);
		blocked('B', l, e);
		break;
	case FB_TRACE_RETURN:
		slice_end(l, "replaced", "");
		mark(l, "return", e);
		blocked('E', l, e);
		slice_begin(l, e);
		break;
	case FB_TRACE_ARRIVE:
		slice_end(l, "replaced", "");
		arrived(l, e);
		break;
	case FB_TRACE_LEAVE:
		slice_end(l, "gave its processor away", "");
		break;
	}
}

static void window(struct lane *l, const struct fb_trace_event *e, bool open)
{
	slice_end(l, "not recorded any more", "");
	l->gap = !open;
	slice_begin(l, e);
}

static void pool_begins(struct lane *l, const struct fb_trace_event *e)
{
	slice_end(l, "replaced", "");
	begin('i', 1, l->index + 1, l->now);
	say(",\"s\":\"t\",\"name\":\"begins\",\"args\":{\"pool\":\"");
	say_quoted(e->name, sizeof(e->name));
	say("\"}}");
}

static void event_json(struct lane *l, const struct fb_trace_event *e)
{
	if (e->time > l->now)
		l->now = e->time;
	switch (e->kind) {
	case FB_TRACE_SWITCH:
	case FB_TRACE_SPAWN:
		switched(l, e);
		break;
	case FB_TRACE_END:
		l->ended = true;
		break;
	case FB_TRACE_REST:
		slice_stop(l, e->why);
		break;
	case FB_TRACE_READY:
		mark(l, "ready", e);
		break;
	case FB_TRACE_STEAL:
		mark(l, "steal", e);
		break;
	case FB_TRACE_OPEN:
	case FB_TRACE_CLOSE:
		window(l, e, e->kind == FB_TRACE_OPEN);
		break;
	case FB_TRACE_POOL:
		pool_begins(l, e);
		break;
	default:
		rare(l, e);
	}
}

/* ---- all ---- */

/* False: it is of a pool that there never was. */
static bool find_lane(uint32_t i, struct fb_trace_lane *k)
{
	memset(k, 0, sizeof(*k));
	out.s->lane(i, k);
	return i <= out.s->nproc || k->pool[0];
}

static void lane_label(uint32_t i, const struct fb_trace_lane *k)
{
	char name[48];

	if (i < out.s->nproc)
		snprintf(name, sizeof(name), "processor %u", i);
	else if (i == out.s->nproc)
		snprintf(name, sizeof(name), "plain threads");
	else
		snprintf(name, sizeof(name), "processor %u (%.*s)", i - 1,
			 (int)strnlen(k->pool, sizeof(k->pool)), k->pool);
	label(1, i + 1, "thread_name", name);
}

static void lane_json(uint32_t i, struct fb_trace_sum *sum)
{
	struct lane l = { .index = i };
	struct fb_trace_lane k;

	if (!find_lane(i, &k))
		return;
	sum->lost += k.lost;
	sum->events += k.n - k.from;
	lane_label(i, &k);
	for (; k.from < k.n; k.from++)
		event_json(&l, &k.event[k.from & k.mask]);
	if (out.s->ended > l.now)
		l.now = out.s->ended;
	slice_end(&l, "the trace ends here", "");
}

static uint32_t processors(void)
{
	uint32_t n = out.s->nproc;
	struct fb_trace_lane k;

	for (uint32_t i = out.s->nproc + 1; i < out.s->lanes; i++)
		n += find_lane(i, &k);
	return n;
}

static void head(void)
{
	say("{\"displayTimeUnit\":\"ns\",\n\"otherData\":{\"producer\":\"libfiber\",\"backend\":\"");
	say_quoted(out.s->backend, 16);
	say("\",\"processors\":\"%u\",\"pid\":\"%d\"},\n\"traceEvents\":[",
	    processors(), out.s->pid);
	label(1, 0, "process_name", "processors");
	label(2, 0, "process_name", "threads of blocked fibers");
}

int fb_trace_format(int fd, const struct fb_trace_source *s,
		    struct fb_trace_sum *sum)
{
	*sum = (struct fb_trace_sum){ 0 };
	out.s = s;
	out.fd = fd;
	out.error = 0;
	out.n = 0;
	out.comma = false;
	memset(out.name, 0, sizeof(out.name));
	head();
	for (uint32_t i = 0; i < s->lanes; i++)
		lane_json(i, sum);
	say("\n],\n\"lostEvents\":%llu}\n", (unsigned long long)sum->lost);
	flush();
	return out.error;
}
