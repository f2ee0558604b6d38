// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * pin.c - a fiber that keeps its carrier, and a carrier that runs one fiber alone
 *
 * The fiber L is locked to its home, the carrier C (C->locked is L, L->child says
 * C). In all else L is a fiber as any other: it waits, is made ready, queued, stolen
 * and picked as such, by code that knows nothing of locks. Two edges are different:
 *
 *   C never switches to another. Where it would, the pick finds nothing
 *	(p->locked, set whenever C enters the runtime, makes each pick a slow one),
 *	so C goes to its root, gives the processor away, and sleeps on C->home. A
 *	yield gives the processor away as a preemption does; a child of L becomes
 *	ready, and does not run at once.
 *   L never runs on another. Who picks it, D, switches to it, and L, before the
 *	first instruction of the program's, sees that D is not C: it leaves D
 *	again and has C woken (fb_pin_home). C waits to continue, as one that is
 *	back from a block, so it gets a processor in order of arrival.
 *
 *	D, off L's stack		C's root
 *	L is saved			processor given away
 *	home = 1 (release)		until home (acquire): sleep on it
 *	wake				home = 0; wait for a processor; go on as L
 *
 *   state of L	C			home	left by
 *   RUNNING	runs L, or blocks in it	0	park, end, unlock
 *   yields	READY: waits to continue	0	backend
 *   PARKED	asleep in its root	0	who makes L ready
 *   READY	asleep in its root	0	who picks L: D
 *   READY	waits to continue	1	backend
 *
 * Writers: C->locked, ->locks, L->child, FB_F_LOCKED: L itself, running on C.
 * C->home: who delivers L, then C; L is in one place at a time, so they take turns.
 * p->locked: who owns p; it may be stale when p has gone to another, which finds
 * that out at its first pick (fb_pin_holds). While C->locked is set C->proc_index is
 * that of no processor, so all that looks at it takes the slow way by fb_sched_moved.
 *
 * Nothing is stuck: L on its way home is READY to who looks for a deadlock; when C
 * leaves, its processor goes to a spare, who looks at queues and timers, or becomes
 * idle by the rules; and of the carriers, one for each processor is never locked.
 *
 * To give the processor away: the user backend does it at once (leave). The module
 * needs to be told nothing: C blocks with in_fiber set, so that it takes the
 * processor after the grace time, and not if L is back before. Until it blocks it may
 * be preempted, in its root: fb_preempted says the same again.
 *
 * Rejected: to look at each pick whose turn it is (what nobody uses would cost all);
 * to let L wait as a plain thread (no cancellation, no state that tools could see).
 */
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "pass.h"
#include "trace.h"

#define CPU_BYTES	1024		/* of a set: the kernel's largest is so */
#define NO_INDEX	(FB_NO_PROCESSOR - 1)

/* What a fiber that begins locked is started with; at the top of its stack. */
struct start {
	void *(*fn)(void *);
	void *arg;
	unsigned int flags, cpu;
} __attribute__((aligned(16)));

_Static_assert(sizeof(struct start) <= FB_PIN_SIZE, "FB_PIN_SIZE");

static struct start *start_of(const struct fiber *f)
{
	return (struct start *)(fb_stack_high(f) - FB_TIMES_SIZE - FB_PIN_SIZE);
}

/* ---- how many ---- */

static int reserve(struct fb_group *g)
{
	uint32_t most = g->max_carriers - g->nproc;

	if (__atomic_add_fetch(&g->locked, 1, __ATOMIC_RELAXED) <= most)
		return 0;
	__atomic_fetch_sub(&g->locked, 1, __ATOMIC_RELAXED);
	return -EAGAIN;
}

static void unreserve(struct fb_group *g)
{
	__atomic_fetch_sub(&g->locked, 1, __ATOMIC_RELAXED);
}

/* ---- for the scheduler ---- */

void fb_pin_entered(struct fb_carrier *c, struct fb_processor *p)
{
	c->proc_index = NO_INDEX;
	p->locked = 1;
	p->look_at = 0;
}

bool fb_pin_holds(struct fb_processor *p)
{
	if (fb_current()->locked)
		return true;
	p->locked = 0;
	fb_sched_look_at(p, p->look_next);
	return false;
}

void fb_pin_yield(struct fb_carrier *c, struct fb_processor *p)
{
	fb_sched_look(p);
	if (fb_sched_work(p) || FB_READ(p->info->waiting))
		fb_sched_give(c, p, true);
}

/* A switch function: f is off its stack, which was on another than its home. */
static void deliver(struct fb_carrier *c, void *f)
{
	struct fb_carrier *home = fb_home(((struct fiber *)f)->child);

	(void)c;
	FB_RELEASE(home->home, 1);	/* Pairs with the acquire in fb_pin_wait. */
	fb_os_wake(&home->home, 1);
}

struct fb_carrier *fb_pin_home(struct fb_carrier *c, struct fiber *self)
{
	struct fb_processor *p;
	struct fb_ctx *to;

	while (fb_unlikely(fb_home(self->child) != c)) {
		p = c->proc;
		FB_WRITE(c->page->pending, 0);
		to = fb_dispatch(c, p, self, fb_pick(p));
		fb_sched_publish(p);
		c = fb_switch_call(c, &self->ctx, to, deliver, self);
	}
	return c;
}

/* Somebody else is to look at the queues, and at what there is to watch. */
static void leave(struct fb_carrier *c, struct fb_processor *p)
{
	p->locked = 0;
	fb_sched_look_at(p, p->look_next);
	fb_sched_clock(p);
	FB_WRITE(p->page->takeover, FB_TAKEOVER_READY | FB_TAKEOVER_WATCH);
	if (fb_unlikely(FB_READ(fb_tr.on)))
		fb_trace_leave(c);
	if (fb_rt.backend->leave) {
		fb_san_release(p);
		fb_rt.backend->leave(c);
	} else {
		fb_leave(c);
	}
}

struct fiber *fb_pin_wait(struct fb_carrier *c)
{
	struct fiber *f = c->locked;

	/* Pairs with the release in deliver. */
	if (!FB_ACQUIRE(c->home)) {
		leave(c, c->proc);
		do
			fb_os_sleep(&c->home, 0, 0);
		while (!FB_ACQUIRE(c->home));	/* The same: pairs with deliver. */
	}
	FB_WRITE(c->home, 0);
	fb_enter(c);
	return f;
}

/* ---- lock and unlock ---- */

static void lock(struct fb_carrier *c, struct fiber *f)
{
	FB_WRITE(f->child, FB_HOME | (uintptr_t)c);
	f->flags |= FB_F_LOCKED;
	c->locked = f;
	c->proc_index = NO_INDEX;
}

/* Of the calling thread. */
static void give_cpus_back(struct fb_carrier *c)
{
	if (!c->cpus)
		return;
	syscall(SYS_sched_setaffinity, 0, CPU_BYTES, c->cpus);
	free(c->cpus);
	c->cpus = NULL;
}

static void unlock(struct fb_carrier *c)
{
	int err = errno;

	give_cpus_back(c);
	c->locks = 0;
	c->cur->flags &= (uint16_t)~FB_F_LOCKED;
	FB_WRITE(c->cur->child, 0);
	c->locked = NULL;
	unreserve(c->group);
	errno = err;
}

void fb_pin_end(struct fb_carrier *c)
{
	unlock(c);
}

FB_EXPORT int fiber_thread_lock(void)
{
	struct fb_carrier *c = fb_current();
	int r;

	if (!c)
		return -EPERM;
	if (fb_rt.seeded)		/* one carrier runs all of them */
		return -EOPNOTSUPP;
	if (!c->locked) {
		r = reserve(c->group);
		if (r)
			return r;
		lock(c, c->cur);
	}
	c->locks++;
	return 0;
}

FB_EXPORT int fiber_thread_unlock(void)
{
	struct fb_carrier *c = fb_current();

	if (!c)
		return -EPERM;
	if (!c->locked)
		return -EINVAL;
	if (!--c->locks)
		unlock(c);
	return 0;
}

/* ---- CPUs ---- */

/* Not on the stack: it may be a small one. */
static unsigned char *no_cpus(void)
{
	return calloc(1, CPU_BYTES);
}

static int pin(struct fb_carrier *c, unsigned int cpu)
{
	unsigned char *set = no_cpus(), *before = c->cpus ? c->cpus : no_cpus();
	int r = -EINVAL;

	if (!set || !before) {
		r = -ENOMEM;
	} else if (cpu < CPU_BYTES * 8 &&
		   (c->cpus || syscall(SYS_sched_getaffinity, 0, CPU_BYTES,
				       before) > 0)) {
		set[cpu / 8] = (unsigned char)(1u << cpu % 8);
		if (!syscall(SYS_sched_setaffinity, 0, CPU_BYTES, set))
			r = 0;
	}
	free(set);
	if (!r)
		c->cpus = before;
	else if (!c->cpus)
		free(before);
	return r;
}

FB_EXPORT int fiber_thread_pin(int cpu)
{
	struct fb_carrier *c = fb_current();
	int r = 0, err = errno;

	if (!c || !c->locked)
		return -EPERM;
	if (cpu < -1)
		return -EINVAL;
	if (cpu < 0)
		give_cpus_back(c);
	else
		r = pin(c, (unsigned int)cpu);
	errno = err;
	return r;
}

/* ---- fibers that begin so ---- */

/* May the process use it? Its first thread's set: carriers may be pinned. */
static bool cpu_is_ours(unsigned int cpu)
{
	unsigned char *set = no_cpus();
	int err = errno;
	bool ok = set && cpu < CPU_BYTES * 8 &&
		  syscall(SYS_sched_getaffinity, getpid(), CPU_BYTES, set) > 0 &&
		  set[cpu / 8] & 1u << cpu % 8;

	free(set);
	errno = err;
	return ok;
}

int fb_pin_reserve(struct fb_group *g, unsigned int flags, unsigned int cpu)
{
	if (flags & FIBER_ATTR_CPU &&
	    (!(flags & FIBER_ATTR_LOCK) || !cpu_is_ours(cpu)))
		return -EINVAL;
	if (flags & FIBER_ATTR_LOCK)
		return fb_rt.seeded ? -EOPNOTSUPP : reserve(g);
	return 0;
}

void fb_pin_unreserve(struct fb_group *g, unsigned int flags)
{
	if (flags & FIBER_ATTR_LOCK)
		unreserve(g);
}

static void *locked_main(void *arg)
{
	struct fb_carrier *c = fb_current();
	struct fiber *f = arg;
	struct start *s = start_of(f);
	int err = errno;

	FB_WRITE(f->fn, s->fn);		/* as tools know it */
	lock(c, f);
	c->locks = 1;
	if (s->flags & FIBER_ATTR_CPU)
		pin(c, s->cpu);
	errno = err;
	return s->fn(s->arg);
}

void fb_pin_init(struct fiber *f, unsigned int flags, unsigned int cpu)
{
	*start_of(f) = (struct start){ f->fn, f->arg, flags, cpu };
	f->fn = locked_main;
	f->arg = f;
}
