// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * thread.c - what belongs to a thread, but follows the fiber
 *
 * The control bits of the float units, and what the C++ runtime knows of the
 * exceptions that a thread throws and handles: two words, which have no values
 * but these while nothing is thrown or handled, so that a switch looks at them,
 * and no more (fb_thread_changed):
 *
 *	a fiber stops			a fiber goes on
 *	all as it began: switch		no FB_F_FPU, FB_F_EH: all is as it began
 *	else keep it in the fiber,	else put it back
 *	and make it so
 *
 * Only the thread itself touches its words: c->eh is found once, on that thread.
 * A fiber that is preempted or blocked keeps its thread, and so its words.
 *
 * caught lies where arg was: who can throw has begun. uncaught is short: each
 * one thrown stands in a destructor that the one before has called.
 */
#include "contention.h"

extern struct fb_eh *__cxa_get_globals(void) __attribute__((weak));

struct fb_eh *fb_thread_eh(void)
{
	return __cxa_get_globals ? __cxa_get_globals() : NULL;
}

void fb_thread_init(struct fb_carrier *c)
{
	fb_fpu_write(fb_rt.fpu);
	c->errno_loc = &errno;
	c->eh = fb_thread_eh();
}

static void fpu_out(struct fiber *self)
{
	if (!fb_fpu_changed())
		return;
	if (self) {
		self->fpu = fb_fpu_read();
		self->flags |= FB_F_FPU;
	}
	fb_fpu_write(fb_rt.fpu);
}

static void eh_out(struct fb_eh *eh, struct fiber *self)
{
	if (!eh || (!eh->caught && !eh->uncaught))
		return;
	if (eh->uncaught > UINT16_MAX)
		fb_die("%u exceptions at once", eh->uncaught);
	if (self) {
		self->caught = eh->caught;
		self->uncaught = (uint16_t)eh->uncaught;
		self->flags |= FB_F_EH;
	}
	eh->caught = NULL;
	eh->uncaught = 0;
}

void fb_sched_stopping(struct fiber *self)
{
	if (self->flags & FB_F_CANARY)
		fb_guard_check(self);
	if (self->flags & FB_F_TIMES)
		fb_times_stop(self);
}

void fb_thread_out(struct fb_carrier *c, struct fiber *self)
{
	fpu_out(self);
	eh_out(c->eh, self);
}

struct fb_carrier *fb_thread_in(struct fb_carrier *c, struct fiber *self)
{
	if (self->flags & FB_F_LOCKED)
		c = fb_pin_home(c, self);
	if (self->flags & FB_F_FPU)
		fb_fpu_write(self->fpu);
	if (self->flags & FB_F_EH) {
		c->eh->caught = self->caught;
		c->eh->uncaught = self->uncaught;
	}
	if (self->flags & FB_F_WAITS)
		fb_contention_waited(c, self);
	self->flags &= (uint16_t)~(FB_F_FPU | FB_F_EH | FB_F_WAITS);
	if (self->flags & FB_F_TIMES)
		fb_times_run(self);
	return c;
}

/* ---- for fiber.h's errno ---- */

#if __has_attribute(noipa)
#define UNKNOWN	__attribute__((noipa))
#else			/* clang learns nothing from one that it does not inline */
#define UNKNOWN	__attribute__((noinline))
#endif

/* A plain function that no compiler knows: see fiber.h. */
FB_EXPORT UNKNOWN int *fiber_errno_location(void)
{
	return &errno;
}
