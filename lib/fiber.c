// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * fiber.c - the life of a fiber, and how it begins
 *
 *   state    runs         owns its stack   found through        edge out
 *   NEW      -            -                queue (plain spawn)  dispatch
 *   RUNNING  on a carrier itself           carrier->cur         park, yield, end
 *   READY    -            -                a run queue          dispatch
 *   PARKED   -            -                its waiter word      fb_sched_ready
 *   BLOCKED  in the kernel its carrier     carrier->cur         the backend
 *   DEAD     -            -                join == DONE         join, detach
 *
 * Child first: fiber_spawn pushes the caller as the newest entry of the ring
 * and goes on as the child. When the child ends and the caller is still there,
 * it is taken back and gone on with: a spawn costs no more than a few stores.
 * A tree of fibers is so walked depth first, in one quantum after the other: it
 * counts as one turn, and only the end of the quantum, or a thief, goes on
 * elsewhere in it. (To let the oldest run every 61st time unfolds the tree
 * breadth first: a thousand cold stacks instead of thirty warm ones.)
 *
 * How it ends: see end.c. Who frees, and how a fiber is joined: see join.c.
 */
#include <string.h>

#include "held.h"
#include "pass.h"
#include "pool.h"
#include "scope.h"
#include "trace.h"

#define OWN_MIN		512
#define FLAGS		(FIBER_ATTR_TIMES | FIBER_ATTR_LOCK | FIBER_ATTR_CPU)

/* ---- the beginning ---- */

static inline void prepare(struct fiber *f, bool detached, void *(*fn)(void *),
			   void *arg)
{
	f->fn = fn;
	f->arg = arg;
	FB_WRITE(f->child, 0);		/* see take_parent */
	f->join = detached ? FB_JOIN_DETACHED : FB_JOIN_NONE;
	f->flags = f->canary;
	f->why = 0;
	f->shields = 0;			/* one store with the next */
	f->name[0] = f->name[1] = 0;
	fb_san_init(&f->ctx, f->base, fb_stack_high(f) - (char *)f->base);
}

static void set_name(struct fiber *f, const char *name)
{
	size_t n = strnlen(name, sizeof(f->name) - 1);

	memcpy(f->name, name, n);
	f->name[n] = 0;
}

static void set_attr(struct fiber *f, const struct fiber_attr *attr)
{
	if (attr->name)
		set_name(f, attr->name);
	if (attr->sched_class == FIBER_LATENCY)
		f->flags |= FB_F_LATENCY;
	if (attr->flags & FIBER_ATTR_LOCK)
		fb_pin_init(f, attr->flags, attr->cpu);
	if (attr->flags & FIBER_ATTR_TIMES)
		fb_times_init(f);
}

/* Where the stack of a new fiber begins. */
static void *stack_top(const struct fiber *f, const struct fiber_attr *attr)
{
	unsigned int flags = attr ? attr->flags : 0;

	return fb_stack_high(f) -
	       (flags & FIBER_ATTR_LOCK ? FB_TIMES_SIZE + FB_PIN_SIZE :
		flags & FIBER_ATTR_TIMES ? FB_TIMES_SIZE : 0);
}

/* Above all others: by a processor, then by plain threads. */
static uint64_t id_of_ours(struct fb_processor *p)
{
	const uint64_t step = fb_rt.proc->id_step;
	uint64_t n, at = step - 1;

	if (p && !p->pooled) {
		n = p->ours++;
		at = p->index;
	} else {
		n = __atomic_fetch_add(&fb_rt.plain_ours, 1, __ATOMIC_RELAXED);
	}
	return (1ULL << 63) + n * step + at;
}

struct fiber *fb_fiber_new(struct fb_processor *p, void *(*fn)(void *), void *arg)
{
	struct fiber *f = fb_stack_get(p, 0);
	const uint64_t nobody = 0;

	if (!f)
		return NULL;
	prepare(f, true, fn, arg);
	f->flags |= FB_F_OURS;
	f->in = NULL;
	f->id = id_of_ours(p);
	FB_PROBE(spawn, f->id, nobody, f->fn);
	f->err = 0;
	fb_ctx_init(&f->ctx, fb_stack_high(f));
	return f;
}

static struct fiber *block_for(struct fb_processor *p,
			       const struct fiber_attr *attr)
{
	if (attr && attr->stack)
		return fb_stack_own(p, attr->stack, attr->stack_size);
	return fb_stack_get(p, attr ? attr->stack_size : 0);
}

/* What a fiber of a scope does first, there; or no scope: NULL. */
struct in_scope {
	struct fb_scope *s;
	int (*fn)(void *);
};

/* A new fiber, of g. */
static void be_of(struct fiber *f, struct fb_group *g)
{
	if (g->index) {
		f->flags |= FB_F_POOL;
		f->pool = (uint8_t)g->index;
	}
}

static int spawn_visiting(fiber_t **out, const struct fiber_attr *attr,
			  void *(*fn)(void *), void *arg, struct in_scope in,
			  struct fb_group *to)
{
	const uint64_t nobody = 0;
	struct fiber *f;
	uint64_t n;

	f = block_for(NULL, attr);
	if (!f)
		return -ENOMEM;
	prepare(f, !out, fn, arg);
	f->in = in.s;
	f->scoped = in.fn;
	if (attr)
		set_attr(f, attr);
	if (to)
		be_of(f, to);
	if (fb_rt.checks)
		f->flags |= FB_F_CHECKS;
	__atomic_fetch_add(&fb_rt.plain_spawned, 1, __ATOMIC_RELAXED);
	n = __atomic_add_fetch(&fb_rt.plain_ids, 1, __ATOMIC_RELAXED);
	f->id = n * fb_rt.proc->id_step;	/* processors: the numbers between */
	FB_PROBE(spawn, f->id, nobody, f->fn);
	f->err = 0;
	fb_ctx_init(&f->ctx, stack_top(f, attr));
	if (out)
		*out = f;
	fb_sched_ready_global(f);
	return 0;
}

static int spawn_plain(fiber_t **out, const struct fiber_attr *attr,
		       void *(*fn)(void *), void *arg, struct in_scope in,
		       struct fb_group *to)
{
	int r;

	if (!fb_visit())
		return -EPERM;
	r = spawn_visiting(out, attr, fn, arg, in, to);
	fb_visit_end();
	return r;
}

static __attribute__((noinline)) void spawn_look(struct fb_processor *p,
						 struct fiber *f)
{
	fb_sched_look(p);
	if (p->checking) {
		f->flags |= FB_F_CHECKS;
		fb_held_pass(fb_current());
	}
	if (p->tracing)
		fb_trace_spawn(p, f);
}

/* Its number; it counts. */
static inline uint64_t next_id(struct fb_processor *p)
{
	uint64_t id = p->id_next;

	FB_WRITE(p->id_next, id + p->id_step);
	return fb_unlikely(p->pooled) ? fb_pool_id(p) : id;
}

/*
 * Its stack does not begin at its descriptor, the caller is locked to its carrier, or
 * it is of another pool: it begins as any ready fiber.
 */
static __attribute__((noinline)) void
ready_child(struct fb_carrier *c, struct fb_processor *p, struct fiber *f,
	    const struct fiber_attr *attr)
{
	p->idle_passes += !attr;	/* run_child counted a switch */
	f->id = next_id(p);
	FB_PROBE(spawn, f->id, c->cur->id, f->fn);
	f->err = 0;
	if (p->checking) {
		f->flags |= FB_F_CHECKS;
		fb_held_pass(c);
	}
	fb_ctx_init(&f->ctx, stack_top(f, attr));
	fb_sched_ready(p, f);
	fb_leave(c);
}

/*
 * The child f goes on, its parent self, which is saved, is the newest of p's ring. When
 * that goes on, perhaps on another carrier: the one returned.
 */
static inline __attribute__((always_inline)) struct fb_carrier *
switch_to_child(struct fb_carrier *c, struct fb_processor *p,
		struct fiber **self, struct fiber *f)
{
	struct fb_ctx *me = &(*self)->ctx;

	FB_PROBE(switch, (*self)->id, f->id, p->index);
	c->cur = f;
	fb_runq_publish_some(&p->q);
	c = fb_switch_new(c, &me, &f->ctx, fb_sched_push(p));
	*self = (struct fiber *)me;
	FB_WRITE((*self)->child, 0);
	return c;
}

/* Go on as f, the caller being the newest ready fiber; later, as the caller. */
static inline __attribute__((always_inline)) void
run_child(struct fb_carrier *c, struct fb_processor *p, struct fiber *f)
{
	struct fiber *self = c->cur;
	bool slow = fb_unlikely(++p->pass >= p->look_at);

	if (slow && c->locked) {
		ready_child(c, p, f, NULL);
		return;
	}
	f->id = next_id(p);
	if (slow)
		spawn_look(p, f);
	FB_PROBE(spawn, f->id, self->id, f->fn);
	FB_WRITE(self->child, f->id);	/* take_parent may look */
	fb_sched_suspend(c, self);
	if (fb_unlikely(fb_runq_full(&p->q)))
		fb_sched_make_room(p);
	fb_sched_wake(p);
	c = switch_to_child(c, p, &self, f);
	fb_sched_resume(c, self);
}

/* It becomes ready, and does not run at once. */
static bool child_waits(const struct fiber_attr *attr, bool out)
{
	if (attr && (attr->flags || (out && attr->stack)))
		return true;
	return fb_rt.seeded && fb_seed_below(2);
}

/*
 * self, of a pool or not, spawns f into `to`, which counts it already; NULL: its own
 * pool. True: it is to run elsewhere.
 */
static bool choose_pool(const struct fiber *self, struct fiber *f,
			struct fb_group *to)
{
	struct fb_group *from = fb_group_of(self);

	be_of(f, to ? to : from);
	if (from->index && !to)
		fb_pool_inherits(from);
	return to && from->runs != to->runs;
}

/* to: the group that is to run it, which counts it already; NULL: the caller's */
static __attribute__((noinline)) int
spawn_slow(fiber_t **out, const struct fiber_attr *attr, void *(*fn)(void *),
	   void *arg, struct in_scope in, struct fb_group *to)
{
	struct fb_carrier *c = fb_current();
	struct fb_processor *p;
	struct fiber *f;
	bool apart;

	if (!fn)
		return -EINVAL;
	if (!c)
		return spawn_plain(out, attr, fn, arg, in, to);
	if (FB_READ(c->page->pending))
		c = fb_caller_pending(c);
	p = fb_enter(c);
	f = block_for(p, attr);
	if (!f) {
		fb_leave(c);
		return -ENOMEM;
	}
	prepare(f, !out, fn, arg);
	f->in = in.s;
	f->scoped = in.fn;
	if (attr)
		set_attr(f, attr);
	apart = choose_pool(c->cur, f, to);
	if (child_waits(attr, out) || apart) {
		if (out)
			*out = f;
		ready_child(c, p, f, attr);
	} else {
		run_child(c, p, f);
		if (out)
			*out = f;
	}
	if (fb_unlikely(to != NULL))
		fb_pool_counted_twice();
	return 0;
}

/* For fiber_spawn, which needs no frame for so few arguments. */
static __attribute__((noinline)) int spawn_any(fiber_t **out, void *(*fn)(void *),
					       void *arg)
{
	return spawn_slow(out, NULL, fn, arg, (struct in_scope){ 0 }, NULL);
}

/* May the child not simply be gone on with? As in yield.c. */
static inline __attribute__((always_inline)) bool
rare(const struct fb_carrier *c, const struct fb_processor *p)
{
	return fb_unlikely(!p->pool || p->pass + 1 >= p->look_at ||
			   FB_READ(p->info->either) |
			   FB_READ(fb_rt.pollers) ||
			   c->cur->flags & (FB_F_STOPS | FB_F_POOL) ||
			   fb_runq_full(&p->q) ||
			   fb_thread_changed(c));
}

/* The caller goes on, with something of its own to put back. */
static __attribute__((noinline)) int
resume_any(struct fb_carrier *c, struct fiber *self, fiber_t **out, fiber_t *f)
{
	fb_sched_resume(c, self);
	if (out)
		*out = f;
	return 0;
}

/* run_child, and what comes before and after, when nothing is rare. */
static inline __attribute__((always_inline)) int
spawn_fast(struct fb_carrier *c, struct fb_processor *p, fiber_t **out,
	   void *(*fn)(void *), void *arg)
{
	struct fiber *self = c->cur, *f = p->pool;
	uint64_t id = p->id_next;

	p->pool = f->link;
	p->pool_count--;
	prepare(f, !out, fn, arg);
	p->pass++;
	f->id = id;
	FB_WRITE(p->id_next, id + p->id_step);
	FB_PROBE(spawn, f->id, self->id, f->fn);
	FB_WRITE(self->child, id);	/* take_parent may look */
	self->err = *c->errno_loc;
	c = switch_to_child(c, p, &self, f);
	if (fb_unlikely(self->flags & FB_F_RESUMES))
		return resume_any(c, self, out, f);
	fb_sched_resume_plain(c, self);
	if (out)
		*out = f;
	return 0;
}

FB_EXPORT int fiber_spawn(fiber_t **out, void *(*fn)(void *), void *arg)
{
	struct fb_carrier *c = fb_current();
	struct fb_cpage *page;

	if (fb_unlikely(!c || !fn))
		return spawn_any(out, fn, arg);
	page = c->page;
	FB_WRITE(page->in_fiber, 0);
	fb_barrier();		/* Pairs with the backend: see fb_cpage. */
	if (fb_calm(c, page)) {
		fb_san_acquire(c->proc);
		if (!rare(c, c->proc))
			return spawn_fast(c, c->proc, out, fn, arg);
	}
	/* It enters anew. */
	return spawn_any(out, fn, arg);
}

int fb_read_sized(void *to, size_t known, const void *from)
{
	const char *extra = from;
	size_t size;

	memcpy(&size, from, sizeof(size));
	memset(to, 0, known);
	if (size < sizeof(size))
		return -EINVAL;
	/* Made for a newer library: what we do not know must be unused. */
	for (size_t i = known; i < size; i++)
		if (extra[i])
			return -EINVAL;
	memcpy(to, from, size < known ? size : known);
	return 0;
}

static int read_attr(struct fiber_attr *a, const struct fiber_attr *attr)
{
	int r = fb_read_sized(a, sizeof(*a), attr);

	if (r)
		return r;
	if (a->stack && (a->stack_size < OWN_MIN ||
			 (uintptr_t)a->stack + a->stack_size < a->stack_size))
		return -EINVAL;
	return a->sched_class > FIBER_LATENCY || a->flags & ~FLAGS ? -EINVAL : 0;
}

/* The group that is to run it, which then counts it. */
static int spawn_into(fiber_t **out, const struct fiber_attr *attr,
		      void *(*fn)(void *), void *arg, struct in_scope in,
		      struct fb_group *to)
{
	struct fb_carrier *c = fb_current();
	struct fb_group *g = to ? to : c ? fb_group_of(c->cur) : &fb_rt.group;
	int r = fb_pin_reserve(g, attr->flags, attr->cpu);

	if (r)
		return r;
	r = spawn_slow(out, attr, fn, arg, in, to);
	if (r)
		fb_pin_unreserve(g, attr->flags);
	return r;
}

static int spawn_attr(fiber_t **out, const struct fiber_attr *attr,
		      void *(*fn)(void *), void *arg, struct in_scope in)
{
	struct fb_group *to = NULL;
	int r = attr->pool ? fb_pool_enter(attr->pool, &to) : 0;

	if (r)
		return r;
	r = spawn_into(out, attr, fn, arg, in, to);
	if (r && to)
		fb_pool_leave(to);
	return r;
}

FB_EXPORT int fiber_spawn_attr(fiber_t **out, const struct fiber_attr *attr,
			       void *(*fn)(void *), void *arg)
{
	struct fiber_attr a;
	int r;

	if (!attr)
		return fiber_spawn(out, fn, arg);
	r = read_attr(&a, attr);
	if (!r && a.stack && !out)
		r = -EINVAL;
	return r ? r : spawn_attr(out, &a, fn, arg, (struct in_scope){ 0 });
}

int fb_fiber_spawn_scoped(struct fb_scope *s, const struct fiber_attr *attr,
			  int (*fn)(void *), void *arg)
{
	struct fiber_attr a = { 0 };
	int r = attr ? read_attr(&a, attr) : 0;

	if (a.stack)	/* nobody would say when it is the program's again */
		return -EINVAL;
	return r ? r : spawn_attr(NULL, &a, fb_scope_main, arg,
				  (struct in_scope){ s, fn });
}

/* ---- what a fiber is called ---- */

FB_EXPORT fiber_t *fiber_self(void)
{
	struct fb_carrier *c = fb_current();

	if (!c)
		return NULL;
	c->cur->flags |= FB_F_SHARED;	/* someone else may join it: see finish */
	return c->cur;
}

FB_EXPORT uint64_t fiber_id(const fiber_t *f)
{
	return f ? f->id : 0;
}

FB_EXPORT const char *fiber_name(const fiber_t *f)
{
	return f ? f->name : "";
}

FB_EXPORT int fiber_set_name(fiber_t *f, const char *name)
{
	if (!f)
		return -EINVAL;
	set_name(f, name ? name : "");
	return 0;
}

/* By fibers on p; plain threads count in fb_rt.plain_spawned. Any thread. */
uint64_t fb_fiber_spawned(const struct fb_processor *p)
{
	return (FB_READ(p->id_next) - p->index - 1) / p->id_step;
}

/* Ended is read first: never too few. */
uint64_t fb_fiber_alive(void)
{
	uint64_t ended = 0, spawned = 0;

	for (uint32_t i = 0; i < fb_processors(); i++)
		ended += FB_READ(fb_rt.proc[i].ended);
	/* Ended before spawned. Pairs with the order in which owners count. */
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	for (uint32_t i = 0; i < fb_processors(); i++)
		spawned += fb_fiber_spawned(&fb_rt.proc[i]);
	return spawned + FB_READ(fb_rt.plain_spawned) - ended;
}
