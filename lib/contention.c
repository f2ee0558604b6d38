// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * contention.c - where fibers and threads wait for others (FIBER_CONTENTION=file)
 *
 * A wait is counted from when its fiber parks until it goes on, under the stack it
 * goes on with, which is the one it parked with: so nothing but the time needs to be
 * kept meanwhile, and the stack is looked at by its own fiber.
 *
 * What it costs. Off: no instruction, as all hooks stand where a slow way is taken
 * already. On, each pass of the scheduler goes through fb_sched_pick_slow, because
 * look_at is 0 while p->profiling is set, and a fiber that waited through
 * fb_thread_in, because it has FB_F_WAITS:
 *
 *	parks: why is set		fb_contention_parks: FB_F_WAITS, since
 *	... made ready: why is 0
 *	goes on				fb_contention_waited: count, clear both
 *
 * Both are done by the fiber's own thread with in_fiber == 0, so its processor stays,
 * whose memory it unwinds with (a fiber's stack may be short). `since` stands in
 * fiber.child, which is 0 while a fiber is parked, unless it is locked to a carrier:
 * then in the carrier. It has the bit SINCE, which no id has, so that no spawned
 * fiber that ends takes this one, ready but not on yet, for its parent.
 *
 * Plain threads count around their sleep, under a lock, with memory of their own.
 *
 * Not counted: waits for time and for descriptors, fibers of the library, and the
 * thread in fiber_run, which waits for all the rest. What finds no room among the
 * places is counted in one last place without a stack, so that the sums are always
 * whole.
 *
 * Memory for the places is taken once, and stays: a plain thread may wake late.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "contention.h"
#include "pass.h"
#include "symbol.h"
#include "sync.h"

#define FRAMES		FIBER_CONTENTION_FRAMES
#define SINCE		(1ULL << 61)
#define WHY_SHIFT	55
#define TIME		((1ULL << WHY_SHIFT) - 1)	/* ns, modulo 417 days */
#define HEADROOM	1024		/* of a stack, to look at it */

_Static_assert(FB_WHYS <= 1u << 5, "struct fiber: child");

struct fb_contention fb_ct;

/* To unwind with: of each processor; of plain threads, one at a time. */
struct scratch {
	struct fb_unwind u;
	void *frame[FRAMES];
};

static struct scratch *of_proc;		/* [FB_MAX_PROCESSORS] */
static size_t of_proc_bytes;
static struct scratch of_threads;
static fb_lock_t threads_lock;
static uintptr_t us_low, us_high;	/* the library's text */

/* ---- the places ---- */

static size_t hash(const char *what, void *const *frame, unsigned int n)
{
	uint64_t h = (uintptr_t)what;

	for (unsigned int i = 0; i < n; i++)
		h = (h ^ (uintptr_t)frame[i]) * 0x9e3779b97f4a7c15ull;
	return h >> 40;
}

/* Locked. The last one if there is no room. */
static struct fiber_contention *place_of(const char *what, void *const *frame,
					 unsigned int n)
{
	size_t h = hash(what, frame, n), size = n * sizeof(*frame);
	struct fiber_contention *s;

	for (size_t i = 0; i < FB_PLACES; i++) {
		s = &fb_ct.place[(h + i) & (FB_PLACES - 1)];
		if (!s->count)
			break;
		if (s->what == what && s->frames == n &&
		    !memcmp(s->frame, frame, size))
			return s;
	}
	if (fb_ct.count == FB_PLACES_MAX)
		return &fb_ct.place[FB_PLACES];
	fb_ct.count++;
	s->what = what;
	s->frames = n;
	memcpy(s->frame, frame, size);
	return s;
}

static void count(unsigned int why, const struct scratch *k, unsigned int n,
		  uint64_t ns)
{
	struct fiber_contention *s;

	fb_lock(&fb_ct.lock);
	if (FB_READ(fb_ct.on)) {
		s = place_of(fb_why_name(why), k->frame, n);
		s->count++;
		s->total_ns += ns;
		if (ns > s->max_ns)
			s->max_ns = ns;
	}
	fb_unlock(&fb_ct.lock);
}

/* ---- stacks ---- */

static bool ours(const void *ip)
{
	return (uintptr_t)ip - us_low < us_high - us_low;
}

/* Of the library's own innermost frames only the call that was made. */
static unsigned int find_stack(struct scratch *k)
{
	unsigned int n = 0;
	void *ip;

	k->u.first = false;		/* it begins with a return address */
	do {
		ip = (void *)k->u.reg[16];
		if (n == 1 && ours(k->frame[0]) && ours(ip))
			n = 0;
		k->frame[n++] = ip;
	} while (n < FRAMES && fb_unwind_next(&k->u));
	return n;
}

/* The frame that calls the one whose __builtin_frame_address this is. */
static void begin(struct fb_unwind *u, void **frame, void *ip, const char *high)
{
	char *sp = (char *)(frame + 2);

	fb_unwind_begin(u, sp, frame[0], ip,
			high ? (size_t)(high - sp) : SIZE_MAX / 2);
	u->own = high != NULL;
}

/* ---- fibers ---- */

static bool counted(unsigned int why)
{
	return why != FB_WHY_NONE && why != FB_WHY_SLEEP && why != FB_WHY_TIMER &&
	       why != FB_WHY_IO;
}

static uint64_t *since_of(struct fb_carrier *c, struct fiber *f)
{
	return f->flags & FB_F_LOCKED ? &c->waits : &f->child;
}

void fb_contention_parks(struct fb_carrier *c)
{
	struct fiber *f = c->cur;

	if (!f || !counted(f->why) || (f->flags & FB_F_OURS))
		return;
	f->flags |= FB_F_WAITS;
	FB_WRITE(*since_of(c, f), SINCE | (uint64_t)f->why << WHY_SHIFT |
				  (fiber_now() & TIME));
}

__attribute__((noinline)) void
fb_contention_waited(struct fb_carrier *c, struct fiber *self)
{
	void **frame = __builtin_frame_address(0);
	struct scratch *k = &of_proc[c->proc->index];
	uint64_t *since = since_of(c, self), from = *since;
	uint64_t ns = (fiber_now() - from) & TIME;
	unsigned int n = 0;

	FB_WRITE(*since, 0);
	if (self->coro ||
	    (uintptr_t)frame - (uintptr_t)fb_stack_low(self) >= HEADROOM) {
		begin(&k->u, frame, __builtin_return_address(0),
		      self->coro ? NULL : fb_stack_high(self));
		n = find_stack(k);
	}
	count(from >> WHY_SHIFT & 31, k, n, ns);
}

/* ---- plain threads ---- */

uint64_t fb_contention_thread(unsigned int why)
{
	if (!FB_READ(fb_ct.on) || !counted(why) ||
	    FB_READ(fb_ct.runner) == &fb_thread_mark)
		return 0;
	return fiber_now();
}

__attribute__((noinline)) void
fb_contention_thread_waited(uint64_t since, unsigned int why)
{
	uint64_t ns = fiber_now() - since;
	int err = errno;
	unsigned int n;

	fb_lock(&threads_lock);
	begin(&of_threads.u, __builtin_frame_address(0),
	      __builtin_return_address(0), NULL);
	n = find_stack(&of_threads);
	count(why, &of_threads, n, ns);
	fb_unlock(&threads_lock);
	errno = err;
}

/* ---- asked ---- */

/* By insertion, with gaps that shrink. */
uint32_t fb_contention_sort(void)
{
	static const uint16_t gaps[] = { 701, 301, 132, 57, 23, 10, 4, 1 };
	const struct fiber_contention *s = fb_ct.place;
	uint16_t *o = fb_ct.order, v;
	uint32_t n = 0, j;

	for (uint32_t i = 0; i <= FB_PLACES; i++)
		if (s[i].count)
			o[n++] = (uint16_t)i;
	for (size_t g = 0; g < sizeof(gaps) / sizeof(gaps[0]); g++)
		for (uint32_t i = gaps[g]; i < n; i++) {
			v = o[i];
			for (j = i; j >= gaps[g] && s[o[j - gaps[g]]].total_ns <
						    s[v].total_ns; j -= gaps[g])
				o[j] = o[j - gaps[g]];
			o[j] = v;
		}
	return n;
}

FB_EXPORT int fiber_contention(struct fiber_contention *places, int max)
{
	struct fb_carrier *c = fb_current();
	int n;

	if (max < 0 || (max && !places))
		return -EINVAL;
	/* Pairs with the release in fiber_init. */
	if (FB_ACQUIRE(fb_rt.state) != FB_ON)
		return -EPERM;
	if (!FB_READ(fb_ct.on))
		return -EOPNOTSUPP;
	if (c)
		fb_enter(c);
	fb_lock(&fb_ct.lock);
	n = (int)fb_contention_sort();
	for (int i = 0; i < n && i < max; i++)
		places[i] = fb_ct.place[fb_ct.order[i]];
	fb_unlock(&fb_ct.lock);
	if (c)
		fb_leave(c);
	return n;
}

/* ---- start and end ---- */

static void *map(size_t bytes)
{
	void *m = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	return m == MAP_FAILED ? NULL : m;
}

static int take_memory(void)
{
	size_t bytes = (FB_PLACES + 1) * sizeof(*fb_ct.place);

	if (!fb_ct.place)
		fb_ct.place = map(bytes);
	else
		memset(fb_ct.place, 0, bytes);
	of_proc_bytes = FB_MAX_PROCESSORS * sizeof(*of_proc);
	of_proc = fb_ct.place ? map(of_proc_bytes) : NULL;
	if (!of_proc)
		return -ENOMEM;
	fb_ct.place[FB_PLACES].what = "";
	fb_ct.count = 0;
	return 0;
}

static void switch_on(void)
{
	fb_symbol_us(&us_low, &us_high);
	fb_ct.report.by = 0;
	fb_ct.pid = getpid();
	FB_WRITE(fb_ct.on, 1);
	for (uint32_t i = 0; i < fb_rt.nproc; i++) {
		fb_rt.proc[i].profiling = 1;
		fb_sched_look_at(&fb_rt.proc[i], fb_rt.proc[i].look_next);
	}
}

static void write_once(void)
{
	int r, err = errno;

	FB_WRITE(fb_ct.on, 0);
	if (!fb_os_report_begin(&fb_ct.report))
		return;
	r = fb_contention_write();
	if (r)
		fb_say("FIBER_CONTENTION: %s is not whole: %s", fb_ct.path,
		       strerror(-r));
	fb_os_report_end(&fb_ct.report);
	errno = err;
}

void fb_contention_fatal(void)
{
	if (fb_ct.pid == getpid())
		write_once();
}

static int start(const char *path)
{
	static bool watched;
	int r;

	fb_ct.path[0] = 0;
	r = strcmp(path, "1") ? fb_os_create(path, fb_ct.path) : 0;
	if (r) {
		fb_say("FIBER_CONTENTION=%s: 1, or a file that can be written is wanted: %s",
		       path, strerror(-r));
		return r;
	}
	r = take_memory();
	if (!r && !watched)
		r = -atexit(fb_contention_fatal);
	watched |= !r;
	if (!r)
		switch_on();
	return r;
}

int fb_contention_start(void)
{
	const char *path = secure_getenv("FIBER_CONTENTION");

	if (!path || !*path || !strcmp(path, "0"))
		return 0;
	return start(path);
}

void fb_contention_stop(void)
{
	if (!of_proc)
		return;
	write_once();
	munmap(of_proc, of_proc_bytes);
	of_proc = NULL;
}

void fb_contention_fork_child(void)
{
	FB_WRITE(fb_ct.on, 0);
}
