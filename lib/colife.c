// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * colife.c - the life of a coroutine: create, handlers, close, destroy
 *
 * To close one is to resume it with -ECANCELED in place of a value. It ends
 * like any other: the body returns, then its handlers run, newest first. One
 * that has not begun begins with FB_CORO_ENDING, so that its body never runs.
 * One that yields instead stays suspended; to destroy it all the same, its
 * frame is made to go on behind the body (fb_coro_cut): the handlers run, on
 * its own stack below the frames that will never return, so these are intact.
 */
#include <stdlib.h>
#include <string.h>

#include "coro.h"

#define STACK_MIN	4096

/* ---- create ---- */

/* In the caller's memory, as in a block: the descriptor at the top. */
static struct fiber_coro *place(char *stack, size_t size)
{
	uintptr_t top = (uintptr_t)stack + size;
	struct fiber_coro *co;

	co = (struct fiber_coro *)(top & ~(uintptr_t)(FB_LINE - 1)) - 1;
	co->base = NULL;
	co->room = (size_t)((char *)co - stack);
	return co;
}

static void prepare(struct fiber_coro *co, fiber_coro_fn fn, void *arg)
{
	struct fb_coro_frame *f;

	f = fb_coro_frame_new(co, (char *)co - co->room, co);
	f->value = &co->value;
	f->fpu = fb_fpu_read();
	f->err = 0;
	f->eh_caught = NULL;
	f->eh_uncaught = 0;
	co->top = f;
	co->taking = 0;
	co->owner = fb_costack_biased() ? NULL : FB_CORO_UNBIASED;
	co->defers = NULL;
	co->value = NULL;
	co->result = 0;
	co->flags = 0;
	co->fn = fn;
	co->arg = arg;
	/* Pairs with fb_coro_take. */
	FB_RELEASE(co->state, FB_CORO_SUSPENDED);
}

FB_EXPORT int fiber_coro_create(fiber_coro_t **out, fiber_coro_fn fn, void *arg)
{
	if (!out || !fn)
		return -EINVAL;
	*out = fb_costack_get(0);
	if (!*out)
		return -ENOMEM;
	prepare(*out, fn, arg);
	return 0;
}

FB_EXPORT int fiber_coro_create_attr(fiber_coro_t **out,
				     const struct fiber_coro_attr *attr,
				     fiber_coro_fn fn, void *arg)
{
	struct fiber_coro_attr a;

	if (!attr)
		return fiber_coro_create(out, fn, arg);
	if (!out || !fn || fb_read_sized(&a, sizeof(a), attr) ||
	    (a.stack && a.stack_size < STACK_MIN))
		return -EINVAL;
	*out = a.stack ? place(a.stack, a.stack_size) :
			 fb_costack_get(a.stack_size);
	if (!*out)
		return -ENOMEM;
	prepare(*out, fn, arg);
	return 0;
}

/* ---- handlers ---- */

FB_EXPORT int fiber_coro_defer(void (*fn)(void *), void *arg)
{
	struct fiber_coro *self = fb_coro_self();
	struct fb_coro_defer *d;
	int err = errno;

	if (!self)
		return -EPERM;
	if (!fn)
		return -EINVAL;
	d = malloc(sizeof(*d));
	if (!d) {
		errno = err;
		return -ENOMEM;
	}
	*d = (struct fb_coro_defer) { self->defers, fn, arg };
	self->defers = d;
	return 0;
}

FB_EXPORT int fiber_coro_undefer(int run)
{
	struct fiber_coro *self = fb_coro_self();
	struct fb_coro_defer d;

	if (!self)
		return -EPERM;
	if (!self->defers)
		return -ENOENT;
	d = *self->defers;
	free(self->defers);
	self->defers = d.next;
	if (run)
		d.fn(d.arg);
	return 0;
}

/* ---- throw, close, destroy ---- */

/* We have taken it. */
static int throw(struct fiber_coro *co, int error, void **out)
{
	if (!(co->flags & FB_CORO_BEGUN)) {
		co->flags |= FB_CORO_ENDING;
		co->result = error;
	}
	return fb_coro_kick(co, error, out);
}

FB_EXPORT int fiber_coro_throw(fiber_coro_t *co, int error, void **out)
{
	int r;

	if (error >= 0)
		return -EINVAL;
	r = fb_coro_take(co, FB_CORO_SUSPENDED, FB_CORO_RUNNING);
	return r ? r : throw(co, error, out);
}

FB_EXPORT int fiber_coro_close(fiber_coro_t *co)
{
	int r = fb_coro_take(co, FB_CORO_SUSPENDED, FB_CORO_RUNNING);

	if (r)
		return FB_READ(co->state) == FB_CORO_DEAD ? 0 : r;
	throw(co, -ECANCELED, NULL);
	/* Pairs with the store of DEAD in coro.S. */
	if (FB_ACQUIRE(co->state) != FB_CORO_DEAD)
		return -EAGAIN;
	return co->result == -ECANCELED ? 0 : co->result;
}

/* We have taken it: it goes no further, but for its handlers. */
static void cut(struct fiber_coro *co)
{
	co->result = -ECANCELED;
	fb_coro_frame_cut(co->top);
	fb_coro_kick(co, 0, NULL);
}

FB_EXPORT int fiber_coro_destroy(fiber_coro_t *co)
{
	int r, busy;

	if (!co)
		return 0;
	r = fiber_coro_close(co);
	if (r == -EAGAIN &&
	    !fb_coro_take(co, FB_CORO_SUSPENDED, FB_CORO_RUNNING))
		cut(co);
	/* Only one frees it. */
	busy = fb_coro_take(co, FB_CORO_DEAD, FB_CORO_FREED);
	if (busy)
		return busy;
	if (co->base)
		fb_costack_put(co);
	return r;
}

/* ---- questions ---- */

FB_EXPORT enum fiber_coro_status fiber_coro_status(const fiber_coro_t *co)
{
	uint32_t state = FB_READ(co->state);

	return (enum fiber_coro_status)(state > FB_CORO_DEAD ? FB_CORO_DEAD :
					state);
}

FB_EXPORT int fiber_coro_result(const fiber_coro_t *co, void **value)
{
	/* Pairs with the store of DEAD in coro.S. */
	if (FB_ACQUIRE(co->state) != FB_CORO_DEAD)
		return -EAGAIN;
	if (value)
		*value = co->value;
	return co->result;
}

FB_EXPORT fiber_coro_t *fiber_coro_self(void)
{
	return fb_coro_self();
}

/* ---- generators ---- */

FB_EXPORT fiber_coro_t *fiber_coro_wrap(fiber_coro_fn fn, void *arg)
{
	fiber_coro_t *co;

	return fiber_coro_create(&co, fn, arg) ? NULL : co;
}

FB_EXPORT int fiber_coro_call(fiber_coro_t **co, void *in, void **out)
{
	int r;

	if (!*co)
		return -ESRCH;
	r = fiber_coro_resume(*co, in, out);
	if (r != FIBER_CORO_YIELDED &&
	    fiber_coro_status(*co) == FIBER_CORO_DEAD) {
		fiber_coro_destroy(*co);
		*co = NULL;
	}
	return r;
}
