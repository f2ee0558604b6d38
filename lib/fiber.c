// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * fiber.c - the life of a fiber: spawn, end, join, detach
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
 * Who frees. fiber.join is
 *   NONE      alive; nobody waits yet
 *   DETACHED  alive; nobody ever will: who ends frees
 *   waiter    alive; a parked fiber, or a plain thread (tag 1), which frees
 *   DONE      ended and off its stack: who joins or detaches frees
 *
 *	ending fiber, off its stack	joiner, off its stack
 *	old = exchange(join, DONE)	CAS(join, NONE, self)
 *	old is a waiter: ready it	failed: it is DONE, ready self
 *
 * One of the two atomics is first, so exactly one side sees the other.
 *
 * The common end needs neither: if the newest entry of our ring is a fiber
 * that is inside fiber_spawn of this child (its .child says so), and the child
 * never asked for its own handle (FB_F_SHARED), then nobody in the world has
 * the handle yet: fiber_spawn writes *out when its caller goes on. Plain
 * stores do then, even from the stack that is given up: whoever takes the
 * block from our pool needs this carrier to switch first.
 */
#include <linux/futex.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "fb.h"

#define PLAIN_TAG	1
#define ID_BATCH	256

/* A plain thread in fiber_join; on its stack. */
struct plain_wait {
	uint32_t done __attribute__((aligned(8)));
};

struct fiber_wait {
	struct fiber *of, *self;
};

static void futex(uint32_t *word, int op, uint32_t val)
{
	int err = errno;

	syscall(SYS_futex, word, op | FUTEX_PRIVATE_FLAG, val, NULL, NULL, 0);
	errno = err;
}

/* ---- the end ---- */

/* f is off its stack: tell who waits, or leave it to who comes, or free it. */
static void bury(struct fb_carrier *c, void *arg)
{
	struct fb_processor *p = c->proc;
	struct fiber *f = arg;
	struct plain_wait *w;
	uintptr_t old;

	old = __atomic_exchange_n(&f->join, FB_JOIN_DONE, __ATOMIC_ACQ_REL);
	if (old == FB_JOIN_NONE)
		return;
	if (old == FB_JOIN_DETACHED) {
		fb_stack_put(p, f);
	} else if (old & PLAIN_TAG) {
		w = (struct plain_wait *)(old - PLAIN_TAG);
		FB_RELEASE(w->done, 1);
		/* *w may be gone: a wake of nobody's word does no harm. */
		futex(&w->done, FUTEX_WAKE, 1);
	} else {
		fb_sched_ready(p, (struct fiber *)old);
	}
}

/* The fiber inside fiber_spawn of f, if it is our newest ready one; taken. */
static inline __attribute__((always_inline)) struct fiber *
take_parent(struct fb_processor *p, struct fiber *f)
{
	struct fb_runq *q = &p->q;
	struct fiber *parent;

	if (fb_unlikely(FB_READ(q->head) == q->tail))
		return NULL;
	/* May be stolen, even dead by now, but blocks stay mapped. */
	parent = q->ring[(q->tail - 1) & FB_RUNQ_MASK];
	if (fb_unlikely(FB_READ(parent->child) != f || f->flags || f->klass))
		return NULL;
	if (fb_unlikely(FB_READ(fb_rt.info->waiting)) && fb_sched_give_due(p))
		return NULL;
	return fb_likely(fb_runq_pop_newest(q)) ? parent : NULL;
}

/* Inline: see fb_arch_start about calls that never return. */
static inline __attribute__((always_inline, noreturn)) void
finish(void *result)
{
	struct fb_carrier *c = fb_current();
	struct fb_processor *p;
	struct fiber *f, *parent;

	if (fb_unlikely(!c))
		fb_die("a fiber ended in the child of a fork");
	p = fb_enter(c);
	f = c->cur;
	f->result = result;
	fb_sched_suspend(c, NULL);
	p->ended++;
	parent = FB_READ(c->page->pending) ? NULL : take_parent(p, f);
	if (fb_unlikely(!parent))
		fb_sched_quit(c, p, bury, f);

	if (f->join == FB_JOIN_DETACHED)
		fb_stack_put(p, f);
	else
		FB_RELEASE(f->join, FB_JOIN_DONE);
	c->cur = parent;
	p->switches++;
	fb_sched_publish(p);
	fb_switch_last(c, &parent->ctx);
}

_Noreturn void fb_fiber_main(struct fb_carrier *c)
{
	struct fiber *f = c->cur;

	*c->errno_loc = 0;
	fb_leave(c);
	finish(f->fn(f->arg));
}

FB_EXPORT _Noreturn void fiber_exit(void *result)
{
	if (!fb_current())
		fb_die("fiber_exit outside a fiber");
	finish(result);
}

/* ---- the beginning ---- */

static __attribute__((noinline)) void refill_ids(struct fb_processor *p)
{
	p->id_next = __atomic_fetch_add(&fb_rt.id_next, ID_BATCH,
					__ATOMIC_RELAXED);
	p->id_end = p->id_next + ID_BATCH;
}

static inline void prepare(struct fiber *f, bool detached, void *(*fn)(void *),
			   void *arg)
{
	f->fn = fn;
	f->arg = arg;
	f->child = NULL;
	f->join = detached ? FB_JOIN_DETACHED : FB_JOIN_NONE;
	f->flags = 0;
	f->name[0] = 0;
}

static void set_name(struct fiber *f, const char *name)
{
	size_t n = strnlen(name, sizeof(f->name) - 1);

	memcpy(f->name, name, n);
	f->name[n] = 0;
}

static int spawn_plain(fiber_t **out, const struct fiber_attr *attr,
		       void *(*fn)(void *), void *arg)
{
	struct fiber *f;

	if (FB_ACQUIRE(fb_rt.state) != FB_ON)
		return -EPERM;
	f = fb_stack_get(NULL, attr ? attr->stack_size : 0);
	if (!f)
		return -ENOMEM;
	prepare(f, !out, fn, arg);
	if (attr && attr->name)
		set_name(f, attr->name);
	f->id = __atomic_fetch_add(&fb_rt.id_next, 1, __ATOMIC_RELAXED);
	f->err = 0;
	fb_ctx_init(&f->ctx, f);
	__atomic_fetch_add(&fb_rt.plain_spawned, 1, __ATOMIC_RELAXED);
	if (out)
		*out = f;
	fb_sched_ready_global(f);
	return 0;
}

/* Go on as f, the caller being the newest ready fiber; later, as the caller. */
static inline __attribute__((always_inline)) void
run_child(struct fb_carrier *c, struct fb_processor *p, struct fiber *f)
{
	struct fiber *self = c->cur;
	uint32_t t;

	if (fb_unlikely(p->id_next == p->id_end))
		refill_ids(p);
	f->id = p->id_next++;
	if (fb_unlikely(--p->left <= 0))
		fb_sched_look(p);
	self->child = f;
	fb_sched_suspend(c, self);
	while (fb_unlikely(fb_runq_full(&p->q)))
		fb_sched_overflow(p);
	p->spawned++;
	p->switches++;
	FB_WRITE(p->page->takeover, FB_TAKEOVER_READY | p->watch);
	fb_sched_wake();
	c->cur = f;
	t = p->q.tail;
	c = fb_switch_new(c, &self->ctx, f, &p->q.ring[t & FB_RUNQ_MASK],
			  &p->q.tail, t + 1);
	FB_WRITE(self->child, NULL);
	fb_sched_resume(c, self);
}

static __attribute__((noinline)) int
spawn_slow(fiber_t **out, const struct fiber_attr *attr, void *(*fn)(void *),
	   void *arg)
{
	struct fb_carrier *c = fb_current();
	struct fb_processor *p;
	struct fiber *f;

	if (!fn)
		return -EINVAL;
	if (!c)
		return spawn_plain(out, attr, fn, arg);
	if (FB_READ(c->page->pending)) {	/* a put-off preemption */
		fiber_yield();
		c = fb_current();
	}
	p = fb_enter(c);
	f = fb_stack_get(p, attr ? attr->stack_size : 0);
	if (!f) {
		fb_leave(c);
		return -ENOMEM;
	}
	prepare(f, !out, fn, arg);
	if (attr && attr->name)
		set_name(f, attr->name);
	run_child(c, p, f);
	if (out)
		*out = f;
	return 0;
}

FB_EXPORT int fiber_spawn(fiber_t **out, void *(*fn)(void *), void *arg)
{
	struct fb_carrier *c = fb_current();
	struct fb_processor *p;
	struct fiber *f;

	if (fb_unlikely(!c || !fn || FB_READ(c->page->pending)))
		return spawn_slow(out, NULL, fn, arg);
	p = fb_enter(c);
	f = p->pool;
	if (fb_unlikely(!f))
		return spawn_slow(out, NULL, fn, arg);
	p->pool = f->link;
	p->pool_count--;
	prepare(f, !out, fn, arg);
	run_child(c, p, f);
	if (out)
		*out = f;
	return 0;
}

FB_EXPORT int fiber_spawn_attr(fiber_t **out, const struct fiber_attr *attr,
			       void *(*fn)(void *), void *arg)
{
	struct fiber_attr a = { .size = sizeof(a) };
	const char *extra = (const char *)attr;

	if (!attr)
		return fiber_spawn(out, fn, arg);
	if (attr->size < sizeof(attr->size))
		return -EINVAL;
	/* Made for a newer library: what we do not know must be unused. */
	for (size_t i = sizeof(a); i < attr->size; i++)
		if (extra[i])
			return -EINVAL;
	memcpy(&a, attr, attr->size < sizeof(a) ? attr->size : sizeof(a));
	return spawn_slow(out, &a, fn, arg);
}

/* ---- join and detach ---- */

static void join_commit(struct fb_carrier *c, void *arg)
{
	struct fiber_wait *w = arg;
	struct fiber *f = w->of, *self = w->self;
	uintptr_t old = FB_JOIN_NONE;

	/* Pairs with the exchange in bury(); from here on *w may be gone. */
	if (__atomic_compare_exchange_n(&f->join, &old, (uintptr_t)self, false,
					__ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
		return;
	if (old != FB_JOIN_DONE)
		fb_die("a fiber is joined twice, or joined and detached");
	fb_sched_ready(c->proc, self);
}

static int join_plain(fiber_t *f, void **result)
{
	struct plain_wait w = { 0 };
	uintptr_t old = FB_JOIN_NONE;
	void *value;

	if (FB_READ(fb_rt.state) == FB_FORKED)
		return -EPERM;
	if (__atomic_compare_exchange_n(&f->join, &old,
					(uintptr_t)&w + PLAIN_TAG, false,
					__ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
		while (!FB_ACQUIRE(w.done))
			futex(&w.done, FUTEX_WAIT, 0);
	else if (old != FB_JOIN_DONE)
		fb_die("a fiber is joined twice, or joined and detached");
	value = f->result;
	fb_stack_put_slow(NULL, f);
	if (result)
		*result = value;
	return 0;
}

FB_EXPORT int fiber_join(fiber_t *f, void **result)
{
	struct fb_carrier *c = fb_current();
	struct fb_processor *p;
	struct fiber_wait w;
	void *value;

	if (fb_unlikely(!c))
		return join_plain(f, result);
	/* Pairs with the release or exchange of DONE at its end. */
	if (fb_unlikely(FB_ACQUIRE(f->join) != FB_JOIN_DONE)) {
		if (f == c->cur)
			return -EDEADLK;
		p = fb_enter(c);
		w.of = f;
		w.self = c->cur;
		fb_sched_park(c, p, join_commit, &w);
		c = fb_current();
	}
	p = fb_enter(c);
	value = f->result;
	fb_stack_put(p, f);
	fb_leave(c);
	if (result)
		*result = value;
	return 0;
}

FB_EXPORT int fiber_detach(fiber_t *f)
{
	struct fb_carrier *c = fb_current();
	uintptr_t old = FB_JOIN_NONE;

	if (!c && FB_READ(fb_rt.state) == FB_FORKED)
		return -EPERM;
	if (__atomic_compare_exchange_n(&f->join, &old, FB_JOIN_DETACHED, false,
					__ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
		return 0;
	if (old != FB_JOIN_DONE)
		fb_die("a fiber is joined and detached, or detached twice");
	if (c) {
		fb_stack_put(fb_enter(c), f);
		fb_leave(c);
	} else {
		fb_stack_put_slow(NULL, f);
	}
	return 0;
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
	return f->id;
}

FB_EXPORT const char *fiber_name(const fiber_t *f)
{
	return f->name;
}

FB_EXPORT int fiber_set_name(fiber_t *f, const char *name)
{
	set_name(f, name ? name : "");
	return 0;
}

/* Ended is read first: never too few. */
uint64_t fb_fiber_alive(void)
{
	uint64_t ended = 0, spawned = 0;

	for (uint32_t i = 0; i < fb_rt.nproc; i++)
		ended += FB_READ(fb_rt.proc[i].ended);
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	for (uint32_t i = 0; i < fb_rt.nproc; i++)
		spawned += FB_READ(fb_rt.proc[i].spawned);
	return spawned + FB_READ(fb_rt.plain_spawned) - ended;
}
