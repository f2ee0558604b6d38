// SPDX-License-Identifier: GPL-2.0-only
/*
 * trace.c - fiberctl trace: have a running process record what runs where
 *
 * The protocol is in lib/trace_outside.c: a word that we write into the process asks
 * for it, and as long as it changes the library records. We read the rings meanwhile
 * and keep all that came since. If we are killed, the library stops by itself; only
 * the process that we found is written to: before each time we look whether it is.
 *
 * A processor takes part at its next look, and whose fiber never parks has none. So
 * who runs where is noted before and after: where it is the same one, without a pass in
 * between, it has run all the while.
 *
 * One at a time: we hold a lock on a file of it in /proc. If it records for itself
 * (FIBER_TRACE), nothing is written to it, and the same rings are read.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "fiberctl.h"
#include "../../lib/trace_event.h"

#define MS		1000000ull
#define POLL_NS		(10 * MS)
#define RENEW_NS	(300 * MS)
#define MAX_PROCESSORS	1024		/* of all pools */
#define MAX_EVENTS	(4u << 20)	/* of one processor, 64 bytes each */

struct lane {
	struct fb_trace_event *event;
	uint64_t count, room;
	uint64_t next;			/* of the ring: not read yet */
	uint64_t lost;
	char pool[16];
};

static struct trace {
	struct target t;
	struct names *names;
	int proc;			/* open, locked: its /proc/PID/stat */
	uint32_t epoch;
	uint32_t nproc;			/* of the default pool */
	uint32_t max;			/* lanes, at most: nproc is plain threads' */
	uint32_t runners;		/* processors that there were at first */
	uint32_t asked;			/* what we wrote last; 0: nothing */
	uint64_t asked_at, ended;
	const char *backend;
	uint64_t ring, cap;		/* 0: not there yet */
	struct lane *lane;		/* [max] */
	struct runner *runner;		/* [2][runners]: before and after */
	uint64_t began;
	const char *early;		/* why it ended before its time, or NULL */
} k;

static volatile sig_atomic_t stopped;

static void stop(int sig)
{
	(void)sig;
	stopped = 1;
}

static uint64_t clock_now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000 + (uint64_t)ts.tv_nsec;
}

/* ---- the process ---- */

static uint64_t at(uint32_t offset)
{
	return k.t.d.trace.at + offset;
}

static uint32_t of_runtime(uint32_t offset)
{
	return target_half(&k.t, k.t.d.runtime + offset);
}

/* The one that we found, with the same runtime; not one after exec, nor a new one. */
static bool still_there(void)
{
	char line[16], magic[sizeof(k.t.d.magic)];

	return pread(k.proc, line, sizeof(line), 0) > 0 &&
	       !target_read(&k.t, k.t.root, magic, sizeof(magic)) &&
	       !memcmp(magic, FIBER_DEBUG_MAGIC, sizeof(magic)) &&
	       of_runtime(k.t.d.runtime_at.state) == k.t.d.runtime_at.on &&
	       of_runtime(k.t.d.runtime_at.epoch) == k.epoch;
}

static int claim(void)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)k.t.pid);
	k.proc = open(path, O_RDONLY | O_CLOEXEC);
	if (k.proc < 0)
		return target_fail(-ESRCH, "there is no process %d", (int)k.t.pid);
	if (flock(k.proc, LOCK_EX | LOCK_NB))
		return target_fail(-EBUSY, "process %d is being traced by another fiberctl",
				   (int)k.t.pid);
	return 0;
}

static ssize_t write_by_file(uint64_t addr, const void *from, size_t n)
{
	char name[40];
	ssize_t done;
	int fd;

	snprintf(name, sizeof(name), "/proc/%d/mem", (int)k.t.pid);
	fd = open(name, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return errno == ENOENT ? -ESRCH : -errno;
	done = pwrite(fd, from, n, (off_t)addr);
	if (done < 0)
		done = -errno;
	close(fd);
	return done ? done : -ESRCH;	/* its memory is gone */
}

/* As with process_vm_readv: some kernels lack it, some containers forbid it. */
static int write_word(uint64_t addr, uint32_t value)
{
	struct iovec local = { &value, sizeof(value) };
	struct iovec remote = { (void *)(uintptr_t)addr, sizeof(value) };
	ssize_t done = process_vm_writev(k.t.pid, &local, 1, &remote, 1, 0);

	if (done < 0)
		done = -errno;
	if (done == -ENOSYS || done == -EPERM)
		done = write_by_file(addr, &value, sizeof(value));
	if (done < 0)
		return (int)done;
	return done == (ssize_t)sizeof(value) ? 0 : -EFAULT;
}

static int put(uint32_t value)
{
	int r = still_there() ? write_word(at(k.t.d.trace.asked), value) : -ESRCH;

	if (r == -ESRCH)
		return r;
	if (r)
		return target_fail(r, "process %d may be read, but not made to record: %s",
				   (int)k.t.pid, strerror(-r));
	k.asked = value;
	k.asked_at = clock_now();
	return 0;
}

/* Another number than it was; 0 is none. */
static int ask(void)
{
	uint32_t value = target_half(&k.t, at(k.t.d.trace.asked)) + 1;

	return put(value ? value : 1);
}

static int not_asked(void)
{
	return k.asked ? put(0) : 0;
}

/* ---- what it recorded ---- */

static bool make_room(struct lane *l, uint64_t n)
{
	uint64_t room = l->room ? l->room : 4096;
	void *p;

	while (room < l->count + n)
		room *= 2;
	if (room == l->room)
		return true;
	p = room > MAX_EVENTS ? NULL : realloc(l->event, room * sizeof(*l->event));
	if (!p)
		return false;
	l->event = p;
	l->room = room;
	return true;
}

/* Indexes [from, to) of the ring, which starts again at its end, behind what we have. */
static int copy(struct lane *l, uint64_t events, uint64_t from, uint64_t to)
{
	const size_t size = sizeof(*l->event);
	uint64_t i = from & (k.cap - 1), n = to - from;
	uint64_t first = n < k.cap - i ? n : k.cap - i;
	int r = target_read(&k.t, events + i * size, l->event + l->count,
			    first * size);

	if (!r && n > first)
		r = target_read(&k.t, events, l->event + l->count + first,
				(n - first) * size);
	return r;
}

/* The oldest that could not be written over while we read. */
static void keep(struct lane *l, uint64_t from, uint64_t to, uint64_t now)
{
	uint64_t whole = now + 1 > k.cap ? now + 1 - k.cap : 0;
	uint64_t gone = whole <= from ? 0 : whole < to ? whole - from : to - from;

	memmove(l->event + l->count, l->event + l->count + gone,
		(to - from - gone) * sizeof(*l->event));
	l->count += to - from - gone;
	l->lost += gone;
	l->next = to;
}

static void drain_one(uint32_t i)
{
	uint64_t ring = k.ring + (uint64_t)i * k.t.d.trace.ring_size;
	uint64_t to = target_word(&k.t, ring + k.t.d.trace.n), from;
	struct lane *l = &k.lane[i];

	from = to > k.cap && l->next < to - k.cap ? to - k.cap : l->next;
	if (to <= from)
		return;
	if (!make_room(l, to - from)) {
		k.early = "there is no more room for events";
		return;
	}
	if (copy(l, target_word(&k.t, ring + k.t.d.trace.events), from, to))
		return;
	l->lost += from - l->next;
	keep(l, from, to, target_word(&k.t, ring + k.t.d.trace.n));
}

/* Pools may come meanwhile. */
static uint32_t lanes(void)
{
	uint32_t n = target_all_processors(&k.t) + 1;

	return n < k.max ? n : k.max;
}

static void drain(void)
{
	uint32_t n = lanes();

	for (uint32_t i = 0; k.ring && i < n; i++)
		drain_one(i);
}

/* Which pools have those behind plain threads'. */
static void name_lanes(void)
{
	uint32_t n = lanes(), size = k.t.d.lanes.pool_size;

	if (size > sizeof(k.lane->pool))
		size = sizeof(k.lane->pool);
	for (uint32_t i = k.nproc + 1; k.ring && i < n; i++)
		target_read(&k.t, k.ring + k.t.d.lanes.pool +
			    (uint64_t)i * k.t.d.trace.ring_size,
			    k.lane[i].pool, size);
}

/* The rings may be there since an earlier time: only what is new counts. */
static void find_rings(bool before)
{
	uint32_t mask = target_half(&k.t, at(k.t.d.trace.mask));

	k.cap = (uint64_t)mask + 1;
	k.ring = mask && !(k.cap & mask) ?
		 target_word(&k.t, at(k.t.d.trace.ring)) : 0;
	for (uint32_t i = 0; before && k.ring && i < k.max; i++)
		k.lane[i].next = target_word(&k.t, k.ring + k.t.d.trace.n +
				(uint64_t)i * k.t.d.trace.ring_size);
}

/* ---- who never parks ---- */

static void open_slice(struct lane *l, const struct seen *s)
{
	struct fb_trace_event *e = l->event;

	memset(e, 0, sizeof(*e));
	e->time = k.began;
	e->kind = FB_TRACE_OPEN;
	e->id = s->id | (uint64_t)s->library << 63;
	e->fn = (uintptr_t)s->entry;
	memcpy(e->name, s->name, sizeof(e->name) - 1);
	e->tid = (uint32_t)s->tid;
	l->count = 1;
}

static void open_slices(void)
{
	struct lane *l;

	for (uint32_t i = 0; i < k.runners; i++) {
		l = &k.lane[i < k.nproc ? i : i + 1];
		if (!l->count &&
		    runner_stayed(&k.runner[i], &k.runner[k.runners + i]) &&
		    make_room(l, 1)) {
			open_slice(l, &k.runner[i].s);
			snprintf(l->pool, sizeof(l->pool), "%.15s",
				 k.runner[i].s.pool);
		}
	}
}

/* ---- meanwhile ---- */

/* Zero: we were late, and it takes us for dead; or it cannot. */
static bool still_asked(void)
{
	uint32_t value = target_half(&k.t, at(k.t.d.trace.asked));

	if (value == k.asked ||
	    (!value && clock_now() - k.asked_at > k.t.d.trace.lease_ms * MS / 2))
		return true;
	k.early = value ? "somebody else traces it too" :
		  "it has no memory for that";
	return false;
}

static int go_on(void)
{
	if (!still_there()) {
		k.early = "the process, or its runtime, ended";
		return 0;
	}
	if (!k.asked || clock_now() - k.asked_at < RENEW_NS)
		return 0;
	return still_asked() ? ask() : 0;
}

static int record(uint64_t ns)
{
	const struct timespec nap = { .tv_nsec = POLL_NS };
	uint64_t until = clock_now() + ns;
	int r = 0;

	/* Who records for itself has `on`, and not outside_on. */
	find_rings(true);
	k.began = clock_now();
	r = runners_note(&k.t, k.runner, k.runners);
	if (r)
		return r;
	if (!(target_half(&k.t, at(k.t.d.trace.on)) & 0xff) ||
	    target_half(&k.t, at(k.t.d.trace.outside)) == k.t.d.trace.outside_on)
		r = ask();
	while (!r && !stopped && !k.early && clock_now() < until) {
		nanosleep(&nap, NULL);
		if (!k.ring)
			find_rings(false);
		drain();
		name_lanes();
		r = go_on();
	}
	k.ended = clock_now();
	if (!r && !k.early) {
		drain();
		name_lanes();
		if (!runners_note(&k.t, k.runner + k.runners, k.runners))
			open_slices();
		r = not_asked();
	}
	return r == -ESRCH ? 0 : r;
}

/* ---- the file ---- */

static void lane_of(uint32_t i, struct fb_trace_lane *l)
{
	l->event = k.lane[i].event;
	l->mask = UINT64_MAX;
	l->n = k.lane[i].count;
	l->lost = k.lane[i].lost;
	memcpy(l->pool, k.lane[i].pool, sizeof(l->pool));
}

static const char *function(uintptr_t fn)
{
	return names_function(k.names, fn);
}

static const char *why(unsigned int number)
{
	return number < k.t.d.why_count && number < 64 && k.t.why[number] ?
	       k.t.why[number] : "?";
}

static long put_out(int fd, const void *buf, size_t n)
{
	ssize_t done = write(fd, buf, n);

	return done < 0 ? -errno : done;
}

static int write_file(int fd, const char *path)
{
	const struct fb_trace_source s = {
		.nproc = k.nproc,
		.lanes = k.max,
		.pid = (int)k.t.pid,
		.backend = k.backend,
		.started = k.t.started,
		.ended = k.ended,
		.lane = lane_of,
		.function = function,
		.why = why,
		.write = put_out,
	};
	struct fb_trace_sum sum;
	int r;

	if (ftruncate(fd, 0) && errno != EINVAL)
		return target_fail(-errno, "%s: %s", path, strerror(errno));
	r = fb_trace_format(fd, &s, &sum);
	if (r)
		return target_fail(r, "%s: %s", path, strerror(-r));
	if (sum.lost)
		fprintf(stderr, "fiberctl: %llu events came faster than they could be read, and are not in %s\n",
			(unsigned long long)sum.lost, path);
	return 0;
}

/* ---- the command ---- */

/* A library of before records the default pool alone. */
static void count_lanes(void)
{
	k.max = k.runners = k.nproc;
	if (k.t.d.lanes.pool_size && target_all_processors(&k.t) <= MAX_PROCESSORS) {
		k.max = MAX_PROCESSORS;
		k.runners = target_all_processors(&k.t);
	}
	k.max++;
}

static int prepare(pid_t pid)
{
	int r = target_open(&k.t, pid);

	if (r)
		return r;
	if (k.t.d.trace.format != FB_TRACE_FORMAT ||
	    k.t.d.trace.event_size != sizeof(struct fb_trace_event))
		return target_fail(-EPROTO, "process %d uses a libfiber that records in another way than this fiberctl reads",
				   (int)pid);
	k.nproc = of_runtime(k.t.d.runtime_at.nproc);
	k.epoch = of_runtime(k.t.d.runtime_at.epoch);
	k.backend = of_runtime(k.t.d.runtime_at.features) & 1 ? "kernel" : "user";
	k.names = names_open(&k.t);
	count_lanes();
	k.lane = calloc(k.max, sizeof(*k.lane));
	k.runner = calloc((size_t)k.runners * 2, sizeof(*k.runner));
	return k.lane && k.runner ? claim() : target_fail(-ENOMEM, "no memory");
}

static int catch_signals(void)
{
	struct sigaction sa = { .sa_handler = stop };

	sigaction(SIGINT, &sa, NULL);
	sigaction(SIGTERM, &sa, NULL);
	return sigaction(SIGHUP, &sa, NULL);
}

static int trace(int fd, const char *path, uint64_t ns)
{
	uint64_t events = 0;
	int r;

	catch_signals();
	r = record(ns);
	for (uint32_t i = 0; !r && i < k.max; i++)
		events += k.lane[i].count;
	if (!r && k.early)
		fprintf(stderr, "fiberctl: the trace ended early: %s\n",
			k.early);
	if (!r && !events)
		r = target_fail(-ENODATA, "process %d: nothing happened to its fibers meanwhile",
				(int)k.t.pid);
	return r ? r : write_file(fd, path);
}

#define USAGE	"trace PID -o FILE [-d SECONDS]"

static bool read_seconds(const char *s, uint64_t *ns)
{
	char *end;
	double v = strtod(s, &end);

	*ns = v > 0 && v <= 1e6 ? (uint64_t)(v * 1e9) : 0;
	return *s && !*end && *ns;
}

/* -1: it was said. Not cut to nothing before there is something to write. */
static int open_file(const char *path, bool *ours)
{
	int fd;

	*ours = access(path, F_OK) != 0;
	fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
	if (fd < 0)
		target_fail(-errno, "%s: %s", path, strerror(errno));
	return fd;
}

int cmd_trace(int argc, char **argv, bool json)
{
	const char *path = NULL;
	uint64_t ns = 1000 * MS;
	bool ours;
	pid_t pid;
	int c, fd, r;

	(void)json;
	while ((c = getopt(argc, argv, "o:d:")) != -1)
		if (c == 'o')
			path = optarg;
		else if (c != 'd' || !read_seconds(optarg, &ns))
			return usage(USAGE);
	if (!path || optind + 1 != argc)
		return usage(USAGE);
	pid = parse_pid(argv[optind]);
	if (pid < 0)
		return EXIT_USAGE;
	if (prepare(pid))
		return complain();
	fd = open_file(path, &ours);
	if (fd < 0)
		return complain();
	r = trace(fd, path, ns);
	if (close(fd) && !r)
		r = target_fail(-errno, "%s: %s", path, strerror(errno));
	if (r && ours)
		unlink(path);
	return r ? complain() : EXIT_FINE;
}
