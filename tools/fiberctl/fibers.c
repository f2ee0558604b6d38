// SPDX-License-Identifier: GPL-2.0-only
/*
 * fibers.c - every fiber of another process, from its memory
 *
 * The process runs on meanwhile: lib/debug.c says what may be stale. Descriptors are
 * read many at a time.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fiberctl.h"

#define BATCH	TARGET_BATCH
#define SLABS	1000000			/* more is a loop of stale pointers */
#define BLOCKS	(1 << 26)		/* more is nonsense, too */

struct carrier {
	uint64_t cur;
	int tid;
	uint64_t page;
	uint32_t first;			/* processor of its pool */
};

#define NO_PROCESSOR	UINT32_MAX

struct walk {
	struct target *t;
	struct carrier *c;
	size_t nc;
	char pool[256][32];		/* names of pools; "": not asked yet */
	int (*fn)(const struct seen *s, void *arg);
	void *arg;
	/* of this slab */
	bool own;
	uint64_t base[BATCH], f[BATCH];
	unsigned char *raw;
	size_t n, blocks;
};

const char *state_name(enum state s)
{
	static const char *const name[] = {
		"new", "ready", "running", "parked", "blocked",
	};

	return name[s];
}

/* ---- carriers ---- */

static int by_cur(const void *a, const void *b)
{
	const struct carrier *x = a, *y = b;

	return (x->cur > y->cur) - (x->cur < y->cur);
}

static int read_carriers(struct walk *w)
{
	const struct target *t = w->t;
	uint64_t at = target_word(t, t->d.runtime + t->d.runtime_at.carriers);
	size_t room = 0;

	for (; at && w->nc < 100000; at = target_word(t, at + t->d.carrier.next)) {
		if (w->nc == room) {
			room = room ? 2 * room : 64;
			w->c = realloc(w->c, room * sizeof(*w->c));
			if (!w->c)
				return target_fail(-ENOMEM, "no memory");
		}
		w->c[w->nc++] = (struct carrier){
			.cur = target_word(t, at + t->d.carrier.cur),
			.tid = (int)target_half(t, at + t->d.carrier.tid),
			.page = target_word(t, at + t->d.carrier.page),
			.first = t->d.pool.first ?
				 target_half(t, at + t->d.pool.first) : 0,
		};
	}
	if (w->nc)
		qsort(w->c, w->nc, sizeof(*w->c), by_cur);
	return 0;
}

/* The letter of /proc: does the thread sleep? */
static bool sleeps(pid_t pid, int tid)
{
	char path[64], text[512], *p;
	ssize_t n;
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/task/%d/stat", (int)pid, tid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	n = read(fd, text, sizeof(text) - 1);
	close(fd);
	text[n > 0 ? n : 0] = 0;
	p = strrchr(text, ')');
	return p && p[1] && (p[2] == 'S' || p[2] == 'D');
}

static enum state state_on(const struct walk *w, const struct carrier *c)
{
	const struct target *t = w->t;
	uint32_t in_fiber, proc;

	/* The module's pages are in no core file: the registers must do. */
	if (t->core && target_read(t, c->page + t->d.carrier_page.in_fiber,
				   &in_fiber, sizeof(in_fiber)))
		return core_thread_state(t->core, c->tid);
	in_fiber = target_half(t, c->page + t->d.carrier_page.in_fiber);
	proc = target_half(t, c->page + t->d.carrier_page.processor);
	if (!in_fiber)
		return proc == NO_PROCESSOR ? S_READY : S_RUNNING;
	if (t->core)
		return core_thread_state(t->core, c->tid);
	return sleeps(t->pid, c->tid) ? S_BLOCKED : S_RUNNING;
}

/* ---- one fiber ---- */

static uint64_t get(const unsigned char *raw, uint32_t at)
{
	uint64_t v;

	memcpy(&v, raw + at, sizeof(v));
	return v;
}

static uint64_t parked_for(const struct target *t, uint32_t since)
{
	const uint64_t all = UINT32_MAX >> 2;
	uint64_t ticks = (t->now - t->started) >> t->d.clock_shift;

	ticks = (ticks - (since >> 2)) & all;
	/* It has parked since we looked at the clock. */
	return ticks > all - 1000 ? 0 : ticks << t->d.clock_shift;
}

static void read_name(struct seen *s, const struct target *t,
		      const unsigned char *raw)
{
	uint32_t n = t->d.fiber.name_size;

	if (n > sizeof(s->name) - 1)
		n = sizeof(s->name) - 1;
	memcpy(s->name, raw + t->d.fiber.name, n);
	s->name[n] = 0;
	printable(s->name);
}

static void read_context(struct seen *s, const struct target *t,
			 const unsigned char *raw)
{
	s->sp = get(raw, t->d.fiber.sp);
	s->bp = get(raw, t->d.fiber.bp);
	s->ip = get(raw, t->d.fiber.ip);
	if (s->sp <= s->high && s->sp >= get(raw, t->d.fiber.base))
		s->stack = s->high - s->sp;
	if (s->ip == t->d.start_ip && s->state == S_READY)
		s->state = S_NEW;
}

/* A library of before says nothing: the mark is 0 then. */
static int locked_to(const struct target *t, const unsigned char *raw)
{
	uint64_t home;

	if (!t->d.lock.mark)
		return 0;
	home = get(raw, (uint32_t)t->d.lock.home);
	if (!(home & t->d.lock.mark))
		return 0;
	return (int)target_half(t, (home & ~t->d.lock.mark) + t->d.carrier.tid);
}

/* Nanoseconds of CPU of a thread; 0: not known. */
static uint64_t thread_cpu(pid_t pid, int tid)
{
	unsigned long long ns = 0;
	char path[64];
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/task/%d/schedstat", (int)pid, tid);
	f = fopen(path, "re");
	if (f && fscanf(f, "%llu", &ns) != 1)
		ns = 0;
	if (f)
		fclose(f);
	return ns;
}

/* Twice, as it may be written meanwhile: see lib/debug.h. */
static bool take_times(const struct target *t, uint64_t at, unsigned char *raw)
{
	uint32_t seq, again;

	if (target_read(t, at, raw, t->d.times.below))
		return false;
	memcpy(&seq, raw + t->d.times.seq, sizeof(seq));
	again = target_half(t, at + t->d.times.seq);
	return !(seq & 1) && again == seq;
}

static void read_times(struct seen *s, const struct target *t,
		       const unsigned char *raw)
{
	unsigned char times[TARGET_TIMES];
	uint32_t state;
	uint16_t flags;
	uint64_t cpu;

	if (!t->d.times.flag)
		return;
	memcpy(&flags, raw + t->d.times.flags, sizeof(flags));
	if (!(flags & t->d.times.flag))
		return;
	for (int i = 0; i < 10 && !s->timed; i++)
		s->timed = take_times(t, s->high - t->d.times.below, times);
	if (!s->timed)
		return;
	s->cpu_ns = get(times, t->d.times.ns);
	memcpy(&state, times + t->d.times.state, sizeof(state));
	if (!s->tid || t->core || state != t->d.times.running)
		return;
	cpu = thread_cpu(t->pid, s->tid);
	if (cpu > get(times, t->d.times.cpu))
		s->cpu_ns += cpu - get(times, t->d.times.cpu);
}

static void read_pool(struct walk *w, struct seen *s, const unsigned char *raw)
{
	const struct target *t = w->t;
	char *name = w->pool[raw[t->d.pool.of]];
	uint16_t flags;

	memcpy(&flags, raw + t->d.pool.flags, sizeof(flags));
	if (!(flags & t->d.pool.flag))
		return;
	if (!*name)
		target_pool_name(t, raw[t->d.pool.of], name, sizeof(s->pool));
	memcpy(s->pool, name, sizeof(s->pool));
}

static int processor_of(const struct target *t, const struct carrier *c)
{
	uint32_t proc;

	if (!c || target_read(t, c->page + t->d.carrier_page.processor, &proc,
			      sizeof(proc)) || proc == NO_PROCESSOR)
		return -1;
	return (int)(c->first + proc);
}

static int one(struct walk *w, const unsigned char *raw, uint64_t f)
{
	const struct target *t = w->t;
	struct carrier key = { .cur = f }, *c;
	struct seen s = { .id = get(raw, t->d.fiber.id), .why = "" };
	unsigned int why = raw[t->d.fiber.why];
	uint32_t since;

	if (!s.id || get(raw, t->d.fiber.join) & t->d.join_done)
		return 0;
	c = bsearch(&key, w->c, w->nc, sizeof(key), by_cur);
	s.library = s.id >> 63;
	s.id &= INT64_MAX;
	s.entry = get(raw, t->d.fiber.fn);
	read_name(&s, t, raw);
	read_pool(w, &s, raw);
	s.state = why ? S_PARKED : c ? state_on(w, c) : S_READY;
	if (why) {
		s.why = why < 64 && t->why[why] ? t->why[why] : "?";
		memcpy(&since, raw + t->d.fiber.since, sizeof(since));
		s.for_ns = t->now ? parked_for(t, since) : 0;
	} else if (c) {
		s.tid = c->tid;
	}
	s.locked_tid = locked_to(t, raw);
	s.high = w->own ? target_word(t, f + t->d.fiber.size) : f;
	if (!s.tid)
		read_context(&s, t, raw);
	s.processor = -1;
	if (s.state == S_RUNNING)
		s.processor = processor_of(t, c);
	read_times(&s, t, raw);
	return w->fn(&s, w->arg);
}

/* ---- slabs ---- */

/* Those collected; a page that is not there holds no fiber. */
static int flush(struct walk *w)
{
	size_t size = w->t->d.fiber.size;
	int r = target_gather(w->t, w->f, w->n, w->raw, size);

	for (size_t i = 0; i < w->n && !r; i++)
		r = one(w, w->raw + i * size, w->f[i]);
	w->n = 0;
	return r;
}

static int walk_slab(struct walk *w, uint64_t slab)
{
	struct target *t = w->t;
	uint64_t bytes = target_word(t, slab + t->d.slab.bytes);
	uint64_t used = target_word(t, slab + t->d.slab.used);
	uint64_t stride = target_word(t, slab + t->d.slab.stride);
	uint64_t at = target_word(t, slab + t->d.slab.at);
	uint64_t base = slab + t->d.slab.size - bytes, end = base + used;
	uint32_t colours = target_half(t, slab + t->d.slab.colours);
	int r = 0;

	if (!stride || !colours || used > bytes) {
		t->holes = true;
		return 0;
	}
	w->own = !at;
	for (; base < end && !r; base += stride) {
		w->f[w->n++] = base + at - base / stride % colours *
			       t->d.colour_size;
		if (w->n == BATCH)
			r = flush(w);
		if (++w->blocks > BLOCKS)
			return target_fail(-EPROTO, "%s has too many fibers to be true",
					   t->what);
	}
	return r ? r : flush(w);
}

static int begin(struct walk *w)
{
	int r = read_carriers(w);

	w->raw = malloc(BATCH * w->t->d.fiber.size);
	return r || w->raw ? r : target_fail(-ENOMEM, "no memory");
}

static int end(struct walk *w, int r)
{
	free(w->raw);
	free(w->c);
	return r;
}

int fibers_walk(struct target *t, int (*fn)(const struct seen *s, void *arg),
		void *arg)
{
	struct walk w = { .t = t, .fn = fn, .arg = arg };
	uint64_t slab;
	int r = begin(&w), n = 0;

	if (!r)
		r = target_read(t, t->d.slabs, &slab, sizeof(slab));
	while (!r && slab && n++ < SLABS) {
		r = walk_slab(&w, slab);
		if (!r)
			r = target_read(t, slab + t->d.slab.next, &slab,
					sizeof(slab));
	}
	return end(&w, r);
}

int fibers_on_carriers(struct target *t,
		       int (*fn)(const struct seen *s, void *arg), void *arg)
{
	struct walk w = { .t = t, .fn = fn, .arg = arg };
	int r = begin(&w);

	for (size_t i = 0; !r && i < w.nc; i++) {
		if (w.c[i].cur)
			w.f[w.n++] = w.c[i].cur;
		if (w.n == BATCH)
			r = flush(&w);
	}
	return end(&w, r ? r : flush(&w));
}
