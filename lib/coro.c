// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * coro.c - coroutines: resume, yield, transfer, end
 *
 *   state      runs            owns its stack   edges out
 *   SUSPENDED  -               who takes it     take -> RUNNING
 *   RUNNING    on its host     itself           resume -> NORMAL
 *                                               yield, transfer -> SUSPENDED
 *                                               end -> DEAD
 *   NORMAL     what it resumed that one         that yields, ends -> RUNNING
 *   DEAD       -               who destroys it  destroy -> FREED
 *
 * Host: a plain thread or a fiber. Its `current` is the coroutine that runs
 * there, or NULL. A suspended side is an fb_coro_frame on its own stack:
 * co->top of a coroutine that yielded, co->back of who resumed it. A frame says
 * whose it is, so that `current` is right when it goes on. A transfer hands
 * co->back over: the chain gets no longer.
 *
 *	host --resume--> A --resume--> B	current = B
 *	      A->back      B->back
 *
 * Who takes a coroutine has all of it; others are refused. The edges out of
 * RUNNING and NORMAL are plain stores of whoever runs it. Those that give it
 * away come last, when its stack is out of use (coro.S), and are releases: they
 * pair with the looks of fb_coro_take.
 *
 * To take is biased, since nearly always the same host does it, and a locked
 * instruction costs as much as all the rest. co->owner is the one host that
 * takes it by plain stores; or NULL: not yet resumed; or UNBIASED: everybody
 * takes it by compare-exchange, for ever. The first other host that comes ends
 * the bias:
 *
 *	owner				another
 *	taking = 1			owner = REVOKED (CAS: only one does)
 *	(compiler barrier)		membarrier: full barrier in all threads
 *	owner is me: state = RUNNING	taking: owner = the old one, -EBUSY
 *	taking = 0			else: owner = UNBIASED, and as everybody
 *
 * By the barrier one of the two sees the other's first store. If the revoker
 * sees taking == 0, then the owner has taken it, and the state says so, or it
 * will find the bias gone. If it sees 1, the owner takes it now, and is the one
 * that runs it; or it finds REVOKED, and both are refused. A host's name is the
 * address of its `current`: that comes back only when its thread or fiber is
 * gone.
 *
 * A fiber that parks inside a coroutine is suspended by the scheduler wherever
 * its stack pointer is, and takes the chain along: `current` is the fiber's. So
 * nothing here keeps what belongs to a thread across a switch: each call asks
 * anew at its start, and ends in assembly.
 *
 * What it is a function's duty to keep, errno and the control bits of the float
 * units, each frame keeps: the other side finds its own. So too what the C++
 * runtime has per thread, exceptions thrown or handled, if there is one. All is
 * read and written, for the side that goes on, before the switch.
 */
#include <stdlib.h>

#include "coro.h"

/* coro.S */
_Static_assert(offsetof(struct fb_coro_frame, self) == FB_CORO_FRAME_SELF,
	       "FB_CORO_FRAME_SELF");
_Static_assert(offsetof(struct fb_coro_frame, r15) == FB_CORO_FRAME_REGS,
	       "FB_CORO_FRAME_REGS");
#ifdef FB_SAN
_Static_assert(offsetof(struct fb_coro_frame, ctx) == FB_CORO_FRAME_CTX,
	       "FB_CORO_FRAME_CTX");
#endif
_Static_assert(sizeof(struct fb_coro_frame) % 16 == 0, "stacks are aligned");
_Static_assert(offsetof(struct fiber_coro, state) == FB_CORO_STATE,
	       "FB_CORO_STATE");
_Static_assert((int)FB_CORO_SUSPENDED == FB_CORO_ST_SUSPENDED &&
	       (int)FB_CORO_DEAD == FB_CORO_ST_DEAD, "states");

/* ---- who runs here ---- */

struct fb_coro_thread {
	struct fiber_coro *current;	/* of a plain thread */
	int *errno_loc;			/* NULL: not set up */
	struct fb_eh *eh;			/* NULL: no C++ runtime */
};

__thread struct fb_coro_thread fb_coro_here
	__attribute__((tls_model("initial-exec"), visibility("hidden")));

struct host {
	struct fb_coro_thread *thread;
	struct fb_carrier *carrier;	/* NULL: a plain thread */
	struct fiber_coro **current;
};

/* False: host() first, or there is a put-off preemption. */
FB_INLINE bool host_fast(struct host *h)
{
	h->thread = fb_coro_thread();
	h->carrier = fb_current();
	h->current = h->carrier ? &h->carrier->cur->coro : &h->thread->current;
	return fb_likely(h->thread->errno_loc != NULL) &&
	       (!h->carrier || fb_likely(!FB_READ(h->carrier->page->pending)));
}

static __attribute__((noinline)) struct host host(void)
{
	struct host h;

	if (!host_fast(&h) && !h.thread->errno_loc) {
		h.thread->errno_loc = &errno;
		h.thread->eh = fb_thread_eh();
	}
	return h;
}

/* The current coroutine, if it may yield. */
FB_INLINE struct fiber_coro *yielder(const struct host *h)
{
	struct fiber_coro *self = *h->current;

	if (fb_unlikely(!self || self->flags & FB_CORO_ENDING))
		return NULL;
	return self;
}

/* Not on its own stack: a longjmp has left it, or a signal came. */
FB_INLINE bool astray(struct fiber_coro *self, const void *frame)
{
	return (uintptr_t)self - (uintptr_t)frame > self->room;
}

struct fiber_coro *fb_coro_self(void)
{
	struct host h = host();

	return yielder(&h);
}

/* ---- handing over ---- */

FB_INLINE void set_fpu(struct fb_fpu now, struct fb_fpu want)
{
	if (fb_unlikely((now.mxcsr ^ want.mxcsr) | (now.cw ^ want.cw)))
		fb_fpu_write(want);
}

/* Keep what belongs to the side that stops here. */
FB_INLINE struct fb_fpu save(const struct host *h, struct fb_coro_frame *f,
			     struct fiber_coro *self, void **value)
{
	struct fb_fpu fpu = fb_fpu_read();

	f->value = value;
	f->self = self;
	f->fpu = fpu;
#ifdef FB_SAN
	f->ctx.san.last = false;
#endif
	f->err = *h->thread->errno_loc;
	if (h->thread->eh) {
		f->eh_caught = h->thread->eh->caught;
		f->eh_uncaught = h->thread->eh->uncaught;
	}
	return fpu;
}

/* `to` goes on, with a value; `fpu` is what the units have now. */
FB_INLINE struct fb_coro_go go_on(const struct host *h, struct fb_fpu fpu,
				  struct fb_coro_frame *to, void *value,
				  long result)
{
	set_fpu(fpu, to->fpu);
	*h->thread->errno_loc = to->err;
	if (h->thread->eh) {
		h->thread->eh->caught = to->eh_caught;
		h->thread->eh->uncaught = to->eh_uncaught;
	}
	if (to->value)
		*to->value = value;
	*h->current = to->self;
	return (struct fb_coro_go) { to, result };
}

/* Whoever resumed us goes on; a coroutine is RUNNING again. */
FB_INLINE struct fb_coro_go go_back(const struct host *h, struct fb_fpu fpu,
				    struct fb_coro_frame *back, void *value,
				    long result)
{
	if (back->self)
		FB_WRITE(back->self->state, FB_CORO_RUNNING);
	return go_on(h, fpu, back, value, result);
}

static struct fb_coro_go refuse(long error)
{
	return (struct fb_coro_go) { NULL, error };
}

/* ---- to take a coroutine ---- */

/* Is co the caller, or one that waits for it? */
static bool in_chain(struct fiber_coro *co, struct fiber_coro *from)
{
	for (; from; from = from->back->self)
		if (from == co)
			return true;
	return false;
}

/*
 * The owner's way. False: not the owner, or in another state. Only the compiler
 * must keep the order: see the head comment.
 */
FB_INLINE bool take_fast(struct fiber_coro *co, struct fiber_coro **me,
			 uint32_t from, uint32_t to)
{
	bool ok;

	if (fb_unlikely(FB_READ(co->owner) != me))
		return false;
	FB_WRITE(co->taking, 1);
	fb_barrier();
	ok = FB_READ(co->owner) == me && FB_READ(co->state) == from;
	if (fb_likely(ok))
		FB_WRITE(co->state, to);
	/* The state is written. Pairs with the acquire in end_bias. */
	FB_RELEASE(co->taking, 0);
	return ok;
}

/* Make `owner` the owner no more. False: it is taking it right now. */
static bool end_bias(struct fiber_coro *co, struct fiber_coro **owner)
{
	struct fiber_coro **seen = owner;

	/* With the barrier below: pairs with taking, then owner, in take_fast. */
	if (!__atomic_compare_exchange_n(&co->owner, &seen, FB_CORO_REVOKED,
					 false, __ATOMIC_SEQ_CST,
					 __ATOMIC_RELAXED))
		return true;		/* another was first */
	fb_costack_barrier();
	/* Pairs with the release in take_fast. */
	if (FB_ACQUIRE(co->taking)) {
		FB_WRITE(co->owner, owner);
		return false;
	}
	FB_WRITE(co->owner, FB_CORO_UNBIASED);
	return true;
}

/* 1: taken. 0: look again. -EBUSY: somebody else takes it. */
static int try_take(struct fiber_coro *co, struct fiber_coro **me,
		    uint32_t from, uint32_t to)
{
	struct fiber_coro **owner = FB_READ(co->owner);

	if (owner == FB_CORO_UNBIASED)
		/* Pairs with the releases in coro.S and colife.c. */
		return __atomic_compare_exchange_n(&co->state, &from, to, false,
						   __ATOMIC_ACQUIRE,
						   __ATOMIC_RELAXED);
	if (owner == me)
		return take_fast(co, me, from, to);
	/* Not to be waited for: it may be a fiber that wants our processor. */
	if (owner == FB_CORO_REVOKED)
		return -EBUSY;
	if (owner)
		return end_bias(co, owner) ? 0 : -EBUSY;
	__atomic_compare_exchange_n(&co->owner, &owner, me, false,
				    __ATOMIC_RELAXED, __ATOMIC_RELAXED);
	return 0;
}

__attribute__((noinline)) int fb_coro_take(struct fiber_coro *co, uint32_t from,
					   uint32_t to)
{
	struct fiber_coro **me = host().current;
	uint32_t seen;
	int r = 0;

	/* Pairs with the releases in coro.S and colife.c. */
	while ((seen = FB_ACQUIRE(co->state)) == from && !r)
		r = try_take(co, me, from, to);
	if (r)
		return r < 0 ? r : 0;
	if (seen >= FB_CORO_DEAD)
		return -ESRCH;
	return in_chain(co, *me) ? -EDEADLK : -EBUSY;
}

/* ---- the C parts of the calls in coro.S ---- */

#define FB_CORO_PART	__attribute__((visibility("hidden")))

FB_CORO_PART struct fb_coro_go
fb_coro_resume(struct fiber_coro *co, void *in, void **out,
	       struct fb_coro_frame *frame);
FB_CORO_PART struct fb_coro_go
fb_coro_yield(void *out, void **in, void *unused, struct fb_coro_frame *frame);
FB_CORO_PART struct fb_coro_go
fb_coro_transfer(struct fiber_coro *co, void *value, void **in,
		 struct fb_coro_frame *frame);
FB_CORO_PART struct fb_coro_go
fb_coro_kicked(struct fiber_coro *co, int error, void **out,
	       struct fb_coro_frame *frame);
FB_CORO_PART void fb_coro_main(struct fiber_coro *co);
FB_CORO_PART struct fb_coro_go fb_coro_finish(struct fiber_coro *co);

FB_INLINE struct fb_coro_go resume(const struct host *h, struct fiber_coro *co,
				   void *in, long result, void **out,
				   struct fb_coro_frame *frame)
{
	struct fiber_coro *self = *h->current;
	struct fb_fpu fpu = save(h, frame, self, out);

	if (self)
		FB_WRITE(self->state, FB_CORO_NORMAL);
	co->back = frame;
	return go_on(h, fpu, co->top, in, result);
}

/*
 * A put-off preemption: this is a good moment, if the fiber allows any. As any
 * preemption, and unlike fiber_yield, it keeps the thread.
 */
static void preempt(void)
{
	struct fb_carrier *c = fb_current();

	if (!c || !FB_READ(c->page->pending) || FB_READ(c->page->no_preempt))
		return;
	fb_preempted(c);
	fb_leave(c);
}

static __attribute__((noinline)) struct fb_coro_go
resume_slow(struct fiber_coro *co, void *in, void **out,
	    struct fb_coro_frame *frame)
{
	struct host h;
	int r;

	preempt();
	r = fb_coro_take(co, FB_CORO_SUSPENDED, FB_CORO_RUNNING);
	if (r)
		return refuse(r);
	h = host();
	return resume(&h, co, in, 0, out, frame);
}

struct fb_coro_go fb_coro_resume(struct fiber_coro *co, void *in, void **out,
				 struct fb_coro_frame *frame)
{
	struct host h;

	if (fb_likely(host_fast(&h) &&
		      take_fast(co, h.current, FB_CORO_SUSPENDED,
				FB_CORO_RUNNING)))
		return resume(&h, co, in, 0, out, frame);
	return resume_slow(co, in, out, frame);
}

/* The caller has taken it. */
struct fb_coro_go fb_coro_kicked(struct fiber_coro *co, int error, void **out,
				 struct fb_coro_frame *frame)
{
	struct host h = host();

	return resume(&h, co, NULL, error, out, frame);
}

FB_INLINE struct fb_coro_go yield(const struct host *h, void *out, void **in,
				  struct fb_coro_frame *frame)
{
	struct fiber_coro *self = yielder(h);
	struct fb_fpu fpu;

	if (fb_unlikely(!self || astray(self, frame)))
		return refuse(-EPERM);
	fpu = save(h, frame, self, in);
	self->top = frame;
	return go_back(h, fpu, self->back, out, FIBER_CORO_YIELDED);
}

/* A fiber that has come to a thread where nobody was in a coroutine before. */
static __attribute__((noinline)) struct fb_coro_go
yield_slow(void *out, void **in, struct fb_coro_frame *frame)
{
	struct host h = host();

	return yield(&h, out, in, frame);
}

struct fb_coro_go fb_coro_yield(void *out, void **in, void *unused,
				struct fb_coro_frame *frame)
{
	struct host h;

	if (fb_likely(host_fast(&h)))
		return yield(&h, out, in, frame);
	return yield_slow(out, in, frame);
}

struct fb_coro_go fb_coro_transfer(struct fiber_coro *co, void *value,
				   void **in, struct fb_coro_frame *frame)
{
	struct fiber_coro *self;
	struct fb_fpu fpu;
	struct host h;
	int r;

	preempt();
	h = host();
	self = yielder(&h);
	if (!self || astray(self, frame))
		return refuse(-EPERM);
	if (!take_fast(co, h.current, FB_CORO_SUSPENDED, FB_CORO_RUNNING)) {
		r = fb_coro_take(co, FB_CORO_SUSPENDED, FB_CORO_RUNNING);
		if (r)
			return refuse(r);
	}
	fpu = save(&h, frame, self, in);
	self->top = frame;
	co->back = self->back;
	return go_on(&h, fpu, co->top, value, 0);
}

/* ---- the body, and the end ---- */

void fb_coro_main(struct fiber_coro *co)
{
	int r;

	if (co->flags & FB_CORO_ENDING)		/* thrown at before it began */
		return;
	co->flags |= FB_CORO_BEGUN;
	r = co->fn(co->arg, &co->value);
	co->result = r > 0 ? -EINVAL : r;
}

void fb_coro_run_defers(struct fiber_coro *co)
{
	struct fb_coro_defer d;

	co->flags |= FB_CORO_ENDING;
	while (co->defers) {
		d = *co->defers;
		free(co->defers);
		co->defers = d.next;
		d.fn(d.arg);
	}
}

struct fb_coro_go fb_coro_finish(struct fiber_coro *co)
{
	struct host h;

	fb_coro_run_defers(co);
	h = host();
	return go_back(&h, fb_fpu_read(), co->back, co->value, co->result);
}

FB_EXPORT _Noreturn void fiber_coro_exit(int result)
{
	struct fiber_coro *self = *host().current;

	if (!self || astray(self, __builtin_frame_address(0)))
		fb_die("fiber_coro_exit outside a coroutine");
	self->result = result > 0 ? -EINVAL : result;
	fb_coro_end(self);
}

/* ---- hosts that end, or change ---- */

/* The fiber inside co ends here and now, on this stack: all handlers. */
void fb_coro_fiber_exit(struct fiber_coro *co)
{
	for (; co; co = co->back->self)
		fb_coro_run_defers(co);
}

/* It is off its stack: nobody comes back to these. */
void fb_coro_fiber_gone(struct fiber_coro *co)
{
	struct fiber_coro *next;

	for (; co; co = next) {
		next = co->back->self;
		co->result = -ECANCELED;
		/* Pairs with fb_coro_take. */
		FB_RELEASE(co->state, FB_CORO_DEAD);
	}
}

/* The child of a fork goes on as a plain thread; the carrier's page is gone. */
void fb_coro_fork_child(void)
{
	struct fb_carrier *c = fb_current();

	if (c)
		fb_coro_thread()->current = c->cur->coro;
}
