// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * cold.c - stacks of fibers that are parked for long go to swap (FIBER_COLD_MS)
 *
 * A thread of its own goes round all blocks, as a walk does (debug.c: slabs stay
 * while the runtime is on, carved blocks stay readable), and asks the kernel to page
 * out the stack of each fiber that has been parked for so long.
 *
 *	base                          sp           + KEEP            descriptor
 *	| guard | it was deeper once | library's | the program's frames | top |
 *	        |--- out ------------|-- stays --|--- out --------------| stays
 *
 * What stays is what a wake-up touches while in_fiber is 0: in the top page the
 * descriptor and the words of times.c and pin.c, at sp the frame that the switch
 * returns to and the nodes that who wakes it writes to, under an object's lock. A fault
 * there that waits for a disk would hold a processor that nobody can take. All other
 * pages come back by faults in fiber code, which are blocks as any other. Packed blocks
 * (small classes) share their pages, and the program's own memory is its own: both
 * stay. Of a block with a canary the lowest page, which each switch looks at, stays.
 *
 * A racy look suffices. Nothing keeps a fiber parked: it may run meanwhile, or end, and
 * its block be another's. But MADV_PAGEOUT changes no content, and slabs are mapped:
 * the worst that a stale look costs are a few faults. For the same reason what lies
 * below sp, which nobody will read again, is paged out and not dropped (MADV_FREE): of
 * a fiber that runs by now it would be what it has just written.
 *
 * It writes nothing to a fiber. In out[] of a slab it notes, for each block, which park
 * it has dealt with, by the time of it, and how often: the kernel leaves pages that
 * another CPU has in hand, so each park has TRIES, in as many rounds.
 *
 * Why a thread: the monitor and the keeper must not wait for a disk, as this may, and
 * carriers have fibers to run. It is there only if it is asked for.
 *
 * A turn looks at LOOK blocks and pages OUT stacks out, at most; then it pauses for as
 * long as it took, so that it uses half a CPU at most. When all blocks were looked at
 * it sleeps until the first is due, for `period` at least. An idle program is left
 * alone: after two rounds without a pass of any processor, and nothing left to come,
 *
 *	this thread				carrier
 *	before = passes				its fiber parks: pass++
 *	a round				(compiler barrier)
 *	asleep = 1				fb_sched_clock: asleep?
 *	membarrier				  asleep = 0, word++, wake
 *	passes are before still: sleep
 *
 * One sees the other. fb_sched_clock is called when a processor becomes idle or is
 * given away, and every 61 passes. So who parks on one that goes on otherwise, and
 * makes fewer passes than that, is seen at its next look.
 */
#include <fcntl.h>
#include <linux/membarrier.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include "cold.h"
#include "stack.h"

#ifndef MADV_PAGEOUT
#define MADV_PAGEOUT	21
#endif

#define LOOK		1024		/* blocks of a turn */
#define OUT		64		/* stacks of a turn */
#define KEEP		1024		/* bytes above sp */
#define PROBES		64		/* pages */
#define TRIES		3u		/* at most 3: two bits */
#define TICK		(1ull << FB_CLOCK_SHIFT)	/* how exactly a park is known */
#define PERIOD_MIN	(4 * TICK)
#define MS		1000000ull
#define AFTER_MIN	(10 * MS)
#define AFTER_MAX	(30 * 86400000ull * MS)

struct fb_cold fb_cold;

static struct {
	uint64_t after, period;		/* ns; constant; 0: never */
	uint32_t word;			/* atomic; futex: look again */
	bool quit;			/* atomic */
	bool runs, barrier;
	pthread_t thread;
} cold;

/* A round under way. */
struct round {
	uint64_t now, due;		/* when the next one is; FB_NEVER: none is left */
	uint64_t turn;			/* it began then */
	uint32_t word;
	unsigned int looked, out;	/* in this turn */
};

/* ---- one stack ---- */

static void page_out(uintptr_t from, uintptr_t to)
{
	uintptr_t mask = fb_st.page - 1;

	from = (from + mask) & ~mask;
	to &= ~mask;
	if (from < to)
		madvise((void *)from, to - from, MADV_PAGEOUT);
}

FB_LOOKS static void stack_out(const struct fiber *f)
{
	uintptr_t low = (uintptr_t)FB_SEE(f->base) + fb_st.page;
	uintptr_t high = (uintptr_t)f - FB_TIMES_SIZE - FB_PIN_SIZE;
	uintptr_t sp = (uintptr_t)FB_SEE(f->ctx.sp);

	/* Elsewhere: in a coroutine. */
	if (sp < low || sp >= high) {
		page_out(low, high);
		return;
	}
	page_out(low, sp);
	page_out(sp + KEEP, high);
}

/* It is to be tried now; *due: when next. */
FB_LOOKS static bool is_cold(const struct fiber *f, uint32_t *out, uint64_t now,
			     uint64_t *due)
{
	uint32_t since = FB_SEE(f->w.kind) >> 2, first = since << 2 | 1;
	uint64_t ns, at;

	if (!FB_SEE(f->id) || (FB_SEE(f->join) & FB_JOIN_DONE) || !FB_SEE(f->why) ||
	    *out == first + TRIES - 1)
		return false;
	ns = fb_clock_since(since, now);
	at = ns < cold.after ? now + cold.after - ns : now;
	if (at <= now) {
		*out = *out >= first && *out < first + TRIES ? *out + 1 : first;
		if (*out == first + TRIES - 1)
			return true;
	}
	if (at < *due)
		*due = at;
	return at <= now;
}

/* ---- all of them ---- */

/* What a fiber that parks has added to. */
FB_LOOKS static uint64_t passes(void)
{
	uint64_t n = 0;

	for (uint32_t i = 0; i < fb_processors(); i++)
		n += FB_SEE(fb_rt.proc[i].pass) + FB_SEE(fb_rt.proc[i].ended);
	return n;
}

/* The turn is over: pause. False: it is the end. */
static bool next_turn(struct round *r)
{
	uint64_t now = fb_clock(), took = now - r->turn;

	fb_os_sleep(&cold.word, r->word,
		    now + (took > MS ? took : MS));
	r->now = r->turn = fb_clock();
	r->looked = r->out = 0;
	return !FB_READ(cold.quit);
}

static bool look_at_slab(struct fb_slab *s, struct round *r)
{
	char *base = (char *)(s + 1) - s->bytes;
	size_t n = FB_READ(s->used) / s->stride;

	if (!s->out)
		s->out = fb_stack_map(s->bytes / s->stride * sizeof(*s->out), 0);
	for (size_t i = 0; s->out && i < n; i++, base += s->stride) {
		struct fiber *f = fb_slab_fiber(s, base);

		if (is_cold(f, &s->out[i], r->now, &r->due)) {
			stack_out(f);
			r->out++;
		}
		if ((++r->looked >= LOOK || r->out >= OUT) && !next_turn(r))
			return false;
	}
	return true;
}

static bool look_at_all(struct round *r)
{
	struct fb_slab *s;

	r->now = r->turn = fb_clock();
	r->due = FB_NEVER;
	r->looked = r->out = 0;
	/* Pairs with the release in slab_map. */
	for (s = FB_ACQUIRE(fb_st.slabs); s; s = s->next)
		if (s->colours > 1 && !look_at_slab(s, r))
			return false;
	return true;
}

/* ---- the thread ---- */

void fb_cold_wake(void)
{
	if (!__atomic_exchange_n(&fb_cold.asleep, 0, __ATOMIC_RELAXED))
		return;
	/* Pairs with the acquire in go_round. */
	__atomic_add_fetch(&cold.word, 1, __ATOMIC_RELEASE);
	fb_os_wake(&cold.word, 1);
}

/* Nothing has run since `before`, and all is done: until something does. */
static void sleep_long(uint32_t word, uint64_t before)
{
	uint64_t until = cold.barrier ? 0 : fb_clock() + cold.after;

	FB_WRITE(fb_cold.asleep, 1);
	if (cold.barrier)
		fb_os_membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED);
	if (passes() == before)
		fb_os_sleep(&cold.word, word, until);
	FB_WRITE(fb_cold.asleep, 0);
}

static void *go_round(void *arg)
{
	uint64_t before, until;
	unsigned int quiet = 0;
	struct round r;

	pthread_setname_np(pthread_self(), "fiber-cold");
	for (;;) {
		/* Before all else. Pairs with the adds in fb_cold_wake and _stop. */
		r.word = FB_ACQUIRE(cold.word);
		if (FB_READ(cold.quit))
			return arg;
		before = passes();
		if (!look_at_all(&r))
			continue;
		quiet = r.due == FB_NEVER && passes() == before ? quiet + 1 : 0;
		if (quiet > 1) {
			sleep_long(r.word, before);
			quiet = 0;
			continue;
		}
		until = fb_clock() + cold.period;
		if (passes() == before && r.due != FB_NEVER && r.due > until)
			until = r.due;
		fb_os_sleep(&cold.word, r.word, until);
	}
}

/* ---- start and end ---- */

/* Is the page at addr in swap? -1: nobody says. */
static int in_swap(int pagemap, uintptr_t addr)
{
	uint64_t entry;

	if (pagemap < 0 || pread(pagemap, &entry, sizeof(entry),
				 (off_t)(addr / fb_st.page * sizeof(entry))) !=
			   sizeof(entry))
		return -1;
	return entry >> 62 & 1;
}

/* Some of n pages at m, which were paged out, are. */
static bool some_in_swap(const char *m, size_t n)
{
	int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC), r = 0;
	struct sysinfo info;

	for (size_t i = 0; !r && i < n; i++)
		r = in_swap(fd, (uintptr_t)m + i * fb_st.page);
	if (fd >= 0)
		close(fd);
	if (r < 0)
		r = !sysinfo(&info) && info.totalswap;
	return r;
}

/* Try it: the kernel may be too old, or have no swap, or not for us. */
static bool holds(void)
{
	size_t bytes = PROBES * fb_st.page;
	char *m = fb_stack_map(bytes, MAP_STACK);
	bool r;

	if (!m)
		return false;
	memset(m, 0xa5, bytes);
	r = !madvise(m, bytes, MADV_PAGEOUT) && some_in_swap(m, PROBES);
	munmap(m, bytes);
	return r;
}

static bool is_wrong(uint64_t ns)
{
	return ns && (ns < AFTER_MIN || ns > AFTER_MAX);
}

int fb_cold_config(uint64_t ns)
{
	uint64_t ms;
	int r;

	if (is_wrong(ns)) {
		fb_say("fiber_config.cold_ns is not from %llu to %llu",
		       AFTER_MIN, AFTER_MAX);
		return -EINVAL;
	}
	r = fb_env_number("FIBER_COLD_MS", 0, AFTER_MAX / MS, &ms);
	if (r > 0 && is_wrong(ms * MS)) {
		fb_say("FIBER_COLD_MS=%llu: 0 or a number from %llu to %llu is wanted",
		       (unsigned long long)ms, AFTER_MIN / MS, AFTER_MAX / MS);
		return -EINVAL;
	}
	cold.after = r > 0 ? ms * MS : ns;
	return r < 0 ? r : 0;
}

static void say_why_not(const char *why)
{
	fb_say("stacks of fibers parked for long stay in memory: %s", why);
}

void fb_cold_start(void)
{
	int err = errno;
	bool can;

	if (!cold.after)
		return;
	if (fb_rt.seeded) {
		say_why_not("with a seed time goes as it likes");
		return;
	}
	can = holds();
	cold.period = cold.after / 2 > PERIOD_MIN ? cold.after / 2 : PERIOD_MIN;
	cold.word = 0;
	cold.quit = false;
	cold.barrier = !fb_os_membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED);
	cold.runs = can && !fb_os_thread(&cold.thread, go_round, NULL);
	errno = err;
	if (!cold.runs) {
		say_why_not(can ? "no thread for it" :
			    "nothing can be paged out here (no swap, or Linux before 5.4)");
		return;
	}
	__atomic_fetch_add(&fb_rt.helpers, 1, __ATOMIC_RELAXED);
	__atomic_fetch_or(&fb_rt.features, FIBER_FEATURE_COLD, __ATOMIC_RELAXED);
}

void fb_cold_stop(void)
{
	struct fb_slab *s;

	if (!cold.runs)
		return;
	FB_WRITE(cold.quit, true);
	/* Pairs with the acquire in go_round. */
	__atomic_add_fetch(&cold.word, 1, __ATOMIC_RELEASE);
	fb_os_wake(&cold.word, 1);
	pthread_join(cold.thread, NULL);
	__atomic_fetch_sub(&fb_rt.helpers, 1, __ATOMIC_RELAXED);
	cold.runs = false;
	for (s = fb_st.slabs; s; s = s->next)
		if (s->out)
			munmap(s->out, s->bytes / s->stride * sizeof(*s->out));
}
