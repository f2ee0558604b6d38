// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * debug.c - see every fiber: from inside by a walk, from outside by fiber_debug_v1
 *
 * A walk goes through the slabs, newest first, and through the blocks of each that
 * were ever given out. Nothing is locked, nobody is stopped:
 *
 *   slabs	are added in front, complete (release), and never unmapped while the
 *		runtime is on: a fiber or a visitor (visit.c) keeps it so
 *   used	grows only; what lies below is mapped, and reads as zero until a block
 *		is carved there, or when its memory went back (depot.c)
 *   a fiber	has one block for all its life, so it is seen once
 *
 *   alive	id != 0 and join without the bit DONE. Written by spawn (join, then
 *		id) and by the end (join = DONE, or GONE of detached ones)
 *   why	written by the fiber before it parks, set to 0 by who makes it ready,
 *		before it can be found by who runs it
 *   carriers' cur	written by the carrier alone
 *
 * What may be stale. Each word was true when it was read, but a fiber may run on
 * meanwhile:
 *   - between spawn's two stores a new fiber has the id of the one before it
 *   - a fiber that is about to park has `why` set while it still runs, and its
 *     registers are those of the park before until the switch is made
 *   - carriers are asked first: who begins to run after that counts as ready, who
 *     stopped since as running
 * A reader outside has the same, and may besides find a slab that it follows gone,
 * if the runtime stops.
 *
 * Rejected: a list of live fibers (two stores and a lock at each spawn and end); a
 * state word (a store at each switch, for what who looks can find out by itself).
 */
#include <string.h>
#include <sys/mman.h>

#include "debug.h"
#include "pass.h"
#include "pool.h"
#include "stack.h"
#include "sync.h"
#include "times.h"
#include "trace.h"

/* ---- the root of all for tools ---- */

static const char *const why_name[FB_WHYS] = {
	"-", "sleep", "join", "send", "receive", "select", "mutex", "rwlock",
	"condition", "semaphore", "once", "wait group", "barrier", "event",
	"future", "scope", "timer", "tasks", "I/O",
};

const char *fb_why_name(unsigned int why)
{
	return why < FB_WHYS ? why_name[why] : "?";
}

#define AT(type, member)	(uint32_t)offsetof(struct type, member)

extern const struct fiber_debug fiber_debug_v1;
FB_EXPORT const struct fiber_debug fiber_debug_v1 = {
	.magic = { 'f', 'i', 'b', 'e', 'r', 'd', 'b', 'g' },
	.version = 1,
	.size = sizeof(struct fiber_debug),
	.slabs = (uintptr_t)&fb_st.slabs,
	.runtime = (uintptr_t)&fb_rt,
	.whys = (uintptr_t)why_name,
	.start_ip = (uintptr_t)fb_arch_start,
	.why_count = FB_WHYS,
	.clock_shift = FB_CLOCK_SHIFT,
	.canary_size = FB_CANARY_SIZE,
	.colour_size = FB_COLOUR_SIZE,
	.join_done = FB_JOIN_DONE,
	.slab = {
		.size = sizeof(struct fb_slab),
		.next = AT(fb_slab, next),
		.bytes = AT(fb_slab, bytes),
		.used = AT(fb_slab, used),
		.stride = AT(fb_slab, stride),
		.at = AT(fb_slab, at),
		.colours = AT(fb_slab, colours),
	},
	.fiber = {
		.size = sizeof(struct fiber),
		.sp = AT(fiber, ctx.sp),
		.bp = AT(fiber, ctx.bp),
		.ip = AT(fiber, ctx.ip),
		.join = AT(fiber, join),
		.fn = AT(fiber, fn),
		.why = AT(fiber, why),
		.base = AT(fiber, base),
		.id = AT(fiber, id),
		.canary = AT(fiber, canary),
		.name = AT(fiber, name),
		.name_size = sizeof(((struct fiber *)0)->name),
		.since = AT(fiber, w.kind),
	},
	.runtime_at = {
		.state = AT(fb_runtime, state),
		.started = AT(fb_runtime, started),
		.epoch = AT(fb_runtime, epoch),
		.features = AT(fb_runtime, features),
		.processors = AT(fb_runtime, proc),
		.nproc = AT(fb_runtime, group.nproc),
		.carriers = AT(fb_runtime, carriers),
		.info = AT(fb_runtime, group.info),
		.plain_spawned = AT(fb_runtime, plain_spawned),
		.global_count = AT(fb_runtime, group.global_count),
		.quantum_ns = AT(fb_runtime, quantum_ns),
		.on = FB_ON,
	},
	.processor = {
		.size = sizeof(struct fb_processor),
		.pass = AT(fb_processor, pass),
		.ended = AT(fb_processor, ended),
		.idle_passes = AT(fb_processor, idle_passes),
		.steals = AT(fb_processor, steals),
		.preemptions = AT(fb_processor, preemptions),
		.id_next = AT(fb_processor, id_next),
		.id_step = AT(fb_processor, id_step),
		.index = AT(fb_processor, index),
		.head = AT(fb_processor, q.head),
		.tail = AT(fb_processor, q.tail),
		.page = AT(fb_processor, page),
	},
	.carrier = {
		.next = AT(fb_carrier, next),
		.cur = AT(fb_carrier, cur),
		.page = AT(fb_carrier, page),
		.tid = AT(fb_carrier, tid),
		.index = AT(fb_carrier, index),
	},
	.carrier_page = {
		.in_fiber = AT(fb_cpage, in_fiber),
		.processor = AT(fb_cpage, processor),
		.blocks = AT(fb_cpage, blocks),
		.handoffs = AT(fb_cpage, handoffs),
		.returns = AT(fb_cpage, returns),
	},
	.info = {
		.waiting = AT(fb_info, waiting),
		.spares = AT(fb_info, spares),
		.idle = AT(fb_info, idle),
		.carriers = AT(fb_info, carriers),
	},
	.lock = {
		.home = AT(fiber, child),
		.mark = FB_HOME,
	},
	.times = {
		.flags = AT(fiber, flags),
		.flag = FB_F_TIMES,
		.below = FB_TIMES_SIZE,
		.ns = AT(fb_times, ns[FB_TIMES_RUN]),
		.cpu = AT(fb_times, cpu),
		.state = AT(fb_times, state),
		.seq = AT(fb_times, seq),
		.running = FB_TIMES_RUN,
	},
	.trace = {
		.at = (uintptr_t)&fb_tr,
		.on = AT(fb_trace, on),
		.asked = AT(fb_trace, asked),
		.outside = AT(fb_trace, outside),
		.mask = AT(fb_trace, mask),
		.ring = AT(fb_trace, ring),
		.began = AT(fb_trace, began),
		.outside_on = FB_OUTSIDE_ON,
		.lease_ms = FB_OUTSIDE_LEASE_MS,
		.format = FB_TRACE_FORMAT,
		.event_size = sizeof(struct fb_trace_event),
		.ring_size = sizeof(struct fb_tring),
		.events = AT(fb_tring, event),
		.n = AT(fb_tring, n),
	},
	.follow = {
		.use = AT(fb_runtime, group.use),
	},
	.pool = {
		.nproc = AT(fb_runtime, nproc),
		.pools = AT(fb_runtime, pool),
		.max = FB_GROUPS,
		.state = AT(fb_group, state),
		.processors = AT(fb_group, proc),
		.nproc_of = AT(fb_group, nproc),
		.use = AT(fb_group, use),
		.info = AT(fb_group, info),
		.on = FB_POOL_ON,
		.first = AT(fb_carrier, first),
		.name = AT(fb_group, name),
		.name_size = sizeof(((struct fb_group *)0)->name),
		.flags = AT(fiber, flags),
		.flag = FB_F_POOL,
		.of = AT(fiber, pool),
	},
	.lanes = {
		.pool = AT(fb_tring, pool),
		.pool_size = sizeof(((struct fb_tring *)0)->pool),
	},
};

/* The script for gdb knows these by heart. */
_Static_assert(offsetof(struct fiber_debug, pool.first) == 456, "POOL_FIRST_AT");
_Static_assert(offsetof(struct fiber_debug, pool.pools) == 424, "POOL_POOLS_AT");
_Static_assert(offsetof(struct fiber_debug, pool.name) == 460, "POOL_NAME_AT");

/* ---- who runs: a table of the carriers' fibers ---- */

struct seat {
	const struct fiber *f;
	const struct fb_carrier *c;
};

struct seats {
	struct seat *seat;
	size_t bytes, mask;
};

static struct seat *seat_of(const struct seats *s, const struct fiber *f)
{
	size_t i = ((uintptr_t)f >> 6) * 0x9e3779b97f4a7c15ull >> 32 & s->mask;

	while (s->seat[i].f && s->seat[i].f != f)
		i = (i + 1) & s->mask;
	return &s->seat[i];
}

/* Memory from the kernel, as a signal handler may be who asks. */
FB_LOOKS static int seats_take(struct seats *s)
{
	const struct fb_carrier *c, *first;
	const struct fiber *f;
	size_t n = 1;

	/* Pairs with carrier_make. */
	first = FB_ACQUIRE(fb_rt.carriers);
	for (c = first; c; c = c->next)
		n++;
	for (s->mask = 15; s->mask < 2 * n; s->mask = 2 * s->mask + 1)
		;
	s->bytes = (s->mask + 1) * sizeof(struct seat);
	s->seat = fb_stack_map(s->bytes, 0);
	if (!s->seat)
		return -ENOMEM;
	for (c = first; c; c = c->next) {
		f = FB_SEE(c->cur);
		if (f)
			*seat_of(s, f) = (struct seat){ f, c };
	}
	return 0;
}

/* The carrier waits for a processor, in the kernel, or runs. */
FB_LOOKS static unsigned int state_on(const struct fb_carrier *c)
{
	const struct fb_cpage *page;
	bool in_fiber = false, owner = true;
	char letter;

	fb_pool_look();
	page = FB_SEE(c->page);
	if (page) {
		in_fiber = FB_SEE(page->in_fiber);
		owner = FB_SEE(page->processor) != FB_NO_PROCESSOR;
	}
	fb_pool_looked();
	if (!in_fiber)
		return owner ? FIBER_RUNNING : FIBER_READY;
	letter = fb_os_thread_state(c->tid);
	return letter == 'S' || letter == 'D' ? FIBER_BLOCKED : FIBER_RUNNING;
}

/* ---- one fiber ---- */

static const char *state_name(unsigned int state)
{
	static const char *const name[] = {
		"new", "ready", "running", "parked", "blocked",
	};

	return name[state];
}

FB_LOOKS static const char *see_high(const struct fiber *f)
{
	if (FB_SEE(f->klass) != FB_KLASS_OWN)
		return (const char *)f;
	return FB_SEE(*(const char *const *)(f + 1));
}

FB_LOOKS static size_t see_bytes(const struct fiber *f)
{
	size_t guard = FB_SEE(f->canary) ? FB_CANARY_SIZE : fb_st.page;

	return (size_t)(see_high(f) - (const char *)FB_SEE(f->base)) - guard;
}

FB_LOOKS static void see_context(struct fiber_info *i, const struct fiber *f)
{
	const char *high = see_high(f);
	size_t used;

	i->sp = FB_SEE(f->ctx.sp);
	i->bp = FB_SEE(f->ctx.bp);
	i->ip = FB_SEE(f->ctx.ip);
	if (i->ip == (void *)fb_arch_start && i->state == FIBER_READY)
		i->state = FIBER_NEW;
	used = (size_t)(high - (const char *)i->sp);
	if (used <= i->stack_bytes)
		i->stack_used = used;
}

/* The thread that it is locked to; carriers stay while the runtime is on. */
FB_LOOKS static int see_lock(const struct fiber *f)
{
	uint64_t child = FB_SEE(f->child);

	return child & FB_HOME ? fb_home(child)->tid : 0;
}

FB_LOOKS static void see_name(char name[16], const struct fiber *f)
{
	for (size_t k = 0; k < sizeof(f->name); k++)
		name[k] = FB_SEE(f->name[k]);
	name[sizeof(f->name) - 1] = 0;
}

/* Its pool stays while the runtime is on; another may have it by now. */
FB_LOOKS static void see_pool(struct fiber_info *i, const struct fiber *f)
{
	const struct fb_group *g = NULL;

	if (FB_SEE(f->flags) & FB_F_POOL)
		/* Pairs with the release in find_group. */
		g = FB_ACQUIRE(fb_rt.pool[FB_SEE(f->pool)]);
	i->pool = g ? (fiber_pool_t *)(uintptr_t)g : FIBER_POOL_DEFAULT;
	memset(i->pool_name, 0, sizeof(i->pool_name));
	for (size_t k = 0; g && k < sizeof(g->name) - 1; k++)
		i->pool_name[k] = FB_SEE(g->name[k]);
}

/* An owner word: fb_self_id. It may say anything, if its object is gone. */
FB_LOOKS static void see_owner(struct fiber_info *i, uint64_t owner)
{
	const struct fiber *f = (const struct fiber *)(owner & ~FB_ID_LOW);

	if (owner & FB_ID_THREAD) {
		i->owner = FIBER_OWNER_THREAD;
	} else if (f && fb_stack_is_fiber(f)) {
		i->owner = FB_SEE(f->id);
		see_name(i->owner_name, f);
	}
}

/* f waits until the fiber with this lock has ended. */
FB_LOOKS static void see_joined(struct fiber_info *i, const struct fiber *f,
				const char *lock)
{
	const struct fiber *of = (const struct fiber *)
				 (lock - offsetof(struct fiber, join_lock));

	if (!fb_stack_is_fiber(of))
		return;
	see_owner(i, (uintptr_t)of);
	if ((const char *)FB_SEE(f->w.at) == lock && FB_SEE(f->why) == FB_WHY_JOIN)
		i->object = of;
	else
		i->owner = 0;
}

/* What a fiber that is parked waits for, and who has it. */
FB_LOOKS static void see_object(struct fiber_info *i, const struct fiber *f,
				unsigned int why)
{
	const char *lock = (const char *)FB_SEE(f->w.at), *object;
	size_t word = 0;
	uint64_t owner;

	i->object = NULL;
	i->owner = 0;
	i->owner_name[0] = 0;
	if (why == FB_WHY_JOIN) {
		see_joined(i, f, lock);
		return;
	}
	if (why == FB_WHY_MUTEX) {
		object = lock - offsetof(struct fb_mutex, lock);
		word = offsetof(struct fb_mutex, word);
	} else if (why == FB_WHY_RWLOCK) {
		object = lock - offsetof(struct fb_rwlock, lock);
		word = offsetof(struct fb_rwlock, writer);
	} else {
		return;
	}
	if (fb_os_peek(&owner, (uintptr_t)object + word, sizeof(owner)) !=
	    (long)sizeof(owner) ||
	    (const char *)FB_SEE(f->w.at) != lock || FB_SEE(f->why) != why)
		return;
	i->object = object;
	see_owner(i, why == FB_WHY_MUTEX ? owner & FB_MUTEX_OWNER : owner);
}

/* False: there is no live fiber here. */
FB_LOOKS static bool see(struct fiber_info *i, const struct fiber *f,
			const struct seats *s, uint64_t now)
{
	const struct fb_carrier *c = seat_of(s, f)->c;
	unsigned int why = FB_SEE(f->why);

	i->id = FB_SEE(f->id);
	if (!i->id || (FB_SEE(f->join) & FB_JOIN_DONE))
		return false;
	see_name(i->name, f);
	i->library = i->id >> 63;
	i->stack_bytes = see_bytes(f);
	i->entry = FB_SEE(f->fn);
	i->why = why ? fb_why_name(why) : "";
	i->state = why ? FIBER_PARKED : c ? state_on(c) : FIBER_READY;
	i->for_ns = why ? fb_clock_since(FB_SEE(f->w.kind) >> 2, now) : 0;
	i->tid = c && !why ? c->tid : 0;
	i->locked_tid = see_lock(f);
	see_object(i, f, why);
	see_pool(i, f);
	i->sp = i->bp = i->ip = NULL;
	i->stack_used = 0;
	if (!i->tid)
		see_context(i, f);
	i->state_name = state_name(i->state);
	/* Another took the block meanwhile: it has begun since. */
	return FB_SEE(f->id) == i->id && !(FB_SEE(f->join) & FB_JOIN_DONE);
}

/* ---- the walk ---- */

int fb_debug_walk(int (*fn)(const struct fiber_info *info, void *arg), void *arg)
{
	struct fiber_info i = { .size = sizeof(i) };
	uint64_t now = fb_clock();
	struct fb_slab *s;
	struct seats who;
	int r = seats_take(&who);

	if (r)
		return r;
	/* Pairs with the release in slab_map. */
	for (s = FB_ACQUIRE(fb_st.slabs); s && !r; s = s->next) {
		char *base = (char *)(s + 1) - s->bytes;
		char *end = base + FB_READ(s->used);

		for (; base < end && !r; base += s->stride)
			if (see(&i, fb_slab_fiber(s, base), &who, now))
				r = fn(&i, arg);
	}
	munmap(who.seat, who.bytes);
	return r;
}

FB_EXPORT int fiber_walk(int (*fn)(const struct fiber_info *info, void *arg),
			 void *arg)
{
	int r, err = errno;

	if (!fn)
		return -EINVAL;
	if (!fb_visit())
		return -EPERM;
	r = fb_debug_walk(fn, arg);
	fb_visit_end();
	errno = err;
	return r;
}
