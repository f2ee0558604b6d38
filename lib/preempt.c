// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * preempt.c - where and when a fiber may be preempted
 *
 * A preempted fiber keeps its thread, so everything that is per thread stays
 * right. What must never be cut is code that holds a lock which the next fiber
 * on this processor needs too: malloc, stdio, the loader, this library. So
 * only text known to be harmless is preemptible: the main program's, and
 * objects that the program adds. Elsewhere the preemption is put off
 * (page->pending) and done at the next entry into this library.
 *
 * Statically linked, main's text contains what must be left out. This
 * library's own part is then the section fb_text (the Makefile renames .text
 * in libfiber.a), and is cut out; with libc inside too nothing is preemptible.
 */
#include <link.h>
#include <string.h>

#include "pool.h"
#include "poller.h"
#include "probe.h"
#include "trace.h"

#define RANGES		32

struct range {
	uintptr_t start, end;
};

static struct {
	fb_lock_t lock;
	uint32_t count;			/* atomic: entries below are complete */
	struct range range[RANGES];
} text;

extern const char __start_fb_text[] __attribute__((weak, visibility("hidden")));
extern const char __stop_fb_text[] __attribute__((weak, visibility("hidden")));

bool fb_preempt_text_ok(uintptr_t ip)
{
	/* Pairs with the release in add_range. */
	uint32_t n = FB_ACQUIRE(text.count);

	for (uint32_t i = 0; i < n; i++)
		if (ip >= text.range[i].start && ip < text.range[i].end)
			return true;
	return false;
}

/* ---- ranges ---- */

static int add_range(uintptr_t start, uintptr_t end)
{
	uint32_t n = text.count;
	int r;

	if (start >= end)
		return 0;
	for (uint32_t i = 0; i < n; i++)
		if (text.range[i].start == start && text.range[i].end == end)
			return 0;
	if (n == RANGES)
		return -ENOSPC;
	r = fb_pool_text(start, end);
	if (r)
		return r;
	text.range[n].start = start;
	text.range[n].end = end;
	FB_RELEASE(text.count, n + 1);	/* Pairs with fb_preempt_text_ok. */
	return 0;
}

static int tell(struct dl_phdr_info *o, size_t size, void *arg)
{
	uint32_t n = text.count;

	(void)o;
	(void)size;
	for (uint32_t i = 0; i < n; i++)
		fb_rt.backend->text(arg, text.range[i].start, text.range[i].end);
	return 1;
}

/* Under the loader's lock, as who adds one: so each is told of here, or there. */
void fb_preempt_tell(struct fb_group *g)
{
	dl_iterate_phdr(tell, g);
}

/* [start, end) without this library's own text. */
static int add_without_us(uintptr_t start, uintptr_t end)
{
	uintptr_t from = (uintptr_t)__start_fb_text;
	uintptr_t to = (uintptr_t)__stop_fb_text;
	int r;

	if (!from || from >= end || to <= start)
		return add_range(start, end);
	r = add_range(start, from);
	return r ? r : add_range(to, end);
}

static int add_object(const struct dl_phdr_info *o)
{
	const ElfW(Phdr) *ph;
	uintptr_t start;
	int r = 0;

	for (int i = 0; i < o->dlpi_phnum && !r; i++) {
		ph = &o->dlpi_phdr[i];
		if (ph->p_type != PT_LOAD || !(ph->p_flags & PF_X))
			continue;
		start = o->dlpi_addr + ph->p_vaddr;
		r = add_without_us(start, start + ph->p_memsz);
	}
	return r;
}

/* ---- objects ---- */

static bool object_has(const struct dl_phdr_info *o, uintptr_t addr)
{
	const ElfW(Phdr) *ph;

	for (int i = 0; i < o->dlpi_phnum; i++) {
		ph = &o->dlpi_phdr[i];
		if (ph->p_type == PT_LOAD &&
		    addr - o->dlpi_addr - ph->p_vaddr < ph->p_memsz)
			return true;
	}
	return false;
}

static bool object_dynamic(const struct dl_phdr_info *o)
{
	for (int i = 0; i < o->dlpi_phnum; i++)
		if (o->dlpi_phdr[i].p_type == PT_INTERP)
			return true;
	return false;
}

static bool has_us(const struct dl_phdr_info *o)
{
	return object_has(o, (uintptr_t)&fb_preempt_text_ok);
}

/* The first object is the main program. */
static int add_main(struct dl_phdr_info *o, size_t size, void *arg)
{
	(void)size;
	(void)arg;
	if (!object_dynamic(o))
		strcpy(fb_rt.text_note, "statically linked, so no preemption");
	else if (has_us(o) && !__start_fb_text)
		strcpy(fb_rt.text_note,
		       "libfiber's text is mixed with main's, so no preemption");
	else
		add_object(o);
	return 1;
}

static bool never(const struct dl_phdr_info *o)
{
	static const char *const names[] = {
		"libc.so", "libc-", "ld-linux", "ld-musl", "linux-vdso",
		"libpthread", "libdl.so", "libfiber.so",
	};
	const char *name = strrchr(o->dlpi_name, '/');

	name = name ? name + 1 : o->dlpi_name;
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (!strncmp(name, names[i], strlen(names[i])))
			return true;
	return has_us(o) && !__start_fb_text;
}

struct want {
	uintptr_t addr;
	int result;
};

static int add_wanted(struct dl_phdr_info *o, size_t size, void *arg)
{
	struct want *w = arg;

	(void)size;
	if (!object_has(o, w->addr))
		return 0;
	w->result = never(o) ? -EINVAL : add_object(o);
	return 1;
}

FB_EXPORT int fiber_preemptible(const void *addr)
{
	struct want w = { (uintptr_t)addr, -ENOENT };

	/* Pairs with the release in fiber_init. */
	if (FB_ACQUIRE(fb_rt.state) != FB_ON)
		return -EPERM;
	/* Under the loader's lock, which keeps two callers apart as well. */
	dl_iterate_phdr(add_wanted, &w);
	return w.result;
}

int fb_preempt_init(void)
{
	text.count = 0;
	fb_rt.text_note[0] = 0;
	dl_iterate_phdr(add_main, NULL);
	if (fb_rt.text_note[0])
		__atomic_fetch_and(&fb_rt.features, ~FIBER_FEATURE_PREEMPT,
				   __ATOMIC_RELAXED);
	return 0;
}

/* ---- the quantum is used up ---- */

void fb_preempted(struct fb_carrier *c)
{
	bool lost = FB_READ(c->page->processor) == FB_NO_PROCESSOR;
	struct fb_processor *p = fb_enter(c);
	uint64_t now = fiber_now();
	bool work;

	fb_sched_heed(c);
	fb_sched_clock(p);
	/*
	 * In fb_pin_wait, about to sleep: what it said there, that another is to look,
	 * holds of this processor, too.
	 */
	if (fb_unlikely(!c->cur)) {
		FB_WRITE(p->page->takeover,
			 FB_TAKEOVER_READY | FB_TAKEOVER_WATCH);
		return;
	}
	if (lost)		/* it has just waited for its turn */
		return;
	if (fb_timer_fire(p, now))
		fb_sched_watch(p);
	fb_known_verify(p);
	if (fb_poller_missing(p->group))
		fb_poller_look(p, now);
	fb_follow(p);
	work = fb_sched_work(p) || fb_sched_retired(p);
	if (!work && !FB_READ(p->info->waiting)) {
		fb_sched_watch(p);	/* READY for a timer, or a thief came */
		return;
	}
	/* The backend keeps the queue and those that wait from starving. */
	p->preemptions++;
	if (fb_unlikely(p->trace != NULL))
		fb_trace_preempt(p, c->cur);
	FB_PROBE(preempt, c->cur->id, p->index);
	fb_sched_give(c, p, work);
}

/* ---- sections ---- */

FB_EXPORT void fiber_no_preempt_begin(void)
{
	struct fb_carrier *c = fb_current();

	if (c)
		FB_WRITE(c->page->no_preempt, c->page->no_preempt + 1);
	fb_barrier();
}

FB_EXPORT void fiber_no_preempt_end(void)
{
	struct fb_carrier *c = fb_current();

	fb_barrier();
	if (!c)
		return;
	if (fb_unlikely(c->page->no_preempt == fb_rt.seeded))
		fb_die("fiber_no_preempt_end() without fiber_no_preempt_begin()");
	FB_WRITE(c->page->no_preempt, c->page->no_preempt - 1);
	if (!c->page->no_preempt && FB_READ(c->page->pending))
		fiber_yield();
}

FB_EXPORT void fiber_blocking_begin(void)
{
	struct fb_carrier *c = fb_current();

	if (c)
		FB_WRITE(c->page->blocking, c->page->blocking + 1);
}

FB_EXPORT void fiber_blocking_end(void)
{
	struct fb_carrier *c = fb_current();

	if (!c)
		return;
	if (fb_unlikely(!c->page->blocking))
		fb_die("fiber_blocking_end() without fiber_blocking_begin()");
	/* Pairs with fb_group_retake where there is no membarrier. */
	__atomic_fetch_sub(&c->page->blocking, 1, __ATOMIC_SEQ_CST);
	fb_enter(c);	/* waits here if the processor was handed on */
	fb_leave(c);
}
