// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * misuse.c - FIBER_CHECK=1: say what was wrong with a call, and abort
 *
 * The calls find misuse in any case, where they must look anyway, and answer
 * with an errno value. This says more: names, ids, what the others wait for,
 * the caller's stack. It runs as fiber code, so it may use the C library.
 */
#include <execinfo.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "held.h"
#include "symbol.h"
#include "sync.h"
#include "trace.h"

#define FRAMES		32
#define SHOWN		16		/* waiters */

/* Of a waiter or an owner, copied while nobody can end. */
struct who {
	bool thread;
	uint64_t id;
	char name[16];
	unsigned int why;
};

/* In the child of a fork nothing is left to be misused: it has the answer. */
static bool checks(void)
{
	const char *s = secure_getenv("FIBER_CHECK");

	return s && *s && strcmp(s, "0") && FB_READ(fb_rt.state) != FB_FORKED;
}

static void of_fiber(struct who *w, const struct fiber *f)
{
	w->thread = false;
	w->id = f->id;
	w->why = f->why;
	memcpy(w->name, f->name, sizeof(w->name));
	w->name[sizeof(w->name) - 1] = 0;
}

static void of_owner(struct who *w, uint64_t owner)
{
	memset(w, 0, sizeof(*w));
	w->thread = owner & FB_ID_THREAD;
	if (!w->thread)		/* blocks stay mapped, whoever it is now */
		of_fiber(w, (const struct fiber *)(owner & ~FB_ID_LOW));
}

static void of_waiter(struct who *w, const struct fb_waiter *of)
{
	memset(w, 0, sizeof(*w));
	w->thread = (of->kind & FB_KIND) != FB_FIBER;
	if (!w->thread)
		of_fiber(w, (const struct fiber *)
			    ((const char *)of - offsetof(struct fiber, w)));
}

static void say_who(const char *role, const struct who *w)
{
	if (w->thread)
		fb_say("  %s: a plain thread", role);
	else
		fb_say("  %s: fiber %llu '%s'%s%s", role,
		       (unsigned long long)w->id, w->name,
		       w->why ? ", waits: " : "",
		       w->why ? fb_why_name(w->why) : "");
}

/* Those in m's queue, copied under the lock; how many there are. */
static unsigned int waiters(const struct fb_misuse *m, struct who *w)
{
	struct fb_caller me;
	unsigned int n = 0;

	fb_caller_enter(&me);
	fb_obj_lock(me.p, (fb_lock_t *)m->lock);
	for (struct fb_node *k = m->q->head; k; k = k->next, n++)
		if (n < SHOWN && k->w)
			of_waiter(&w[n], k->w);
	fb_obj_unlock(me.p, (fb_lock_t *)m->lock);
	fb_caller_leave(&me);
	return n;
}

static void say_waiters(const struct fb_misuse *m)
{
	struct who w[SHOWN];
	unsigned int n;

	memset(w, 0, sizeof(w));
	n = waiters(m, w);
	for (unsigned int i = 0; i < n && i < SHOWN; i++)
		say_who("waits", &w[i]);
	if (n > SHOWN)
		fb_say("  and %u more wait", n - SHOWN);
}

static void say_stack(void)
{
	void *frame[FRAMES];
	int n = backtrace(frame, FRAMES), k = 0;

	/* Of the library's own frames only the call that was wrong. */
	while (k + 1 < n && fb_symbol_ours((uintptr_t)frame[k + 1] - 1))
		k++;
	if (k + 1 >= n)
		k = 0;
	fb_say("  called from:");
	while (!fb_symbol_take())	/* a dump is being written */
		sched_yield();
	for (; k < n; k++)
		fb_say("    %s", fb_symbol((uintptr_t)frame[k] - 1));
	fb_symbol_give();
}

/* As fiber code: where the caller was matters no more. */
_Noreturn void fb_die_here(const char *fmt, ...)
{
	struct fb_carrier *c = fb_current();
	char text[256];
	va_list ap;

	if (c)
		fb_leave(c);
	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	fb_say("%s", text);
	say_stack();
	fb_last_words();
	abort();
}

static void say_place(const char *role, uintptr_t ip)
{
	while (!fb_symbol_take())	/* a dump is being written */
		sched_yield();
	fb_say("  %s %s", role, fb_symbol(ip));
	fb_symbol_give();
}

static _Noreturn void die_at_end(const struct fiber *f)
{
	say_place("started with", (uintptr_t)f->fn);
	fb_last_words();
	abort();
}

_Noreturn void fb_misuse_inside(const struct fiber *f)
{
	fb_say("fiber %llu '%s' has ended inside fiber_no_preempt_begin",
	       (unsigned long long)f->id, f->name);
	die_at_end(f);
}

_Noreturn void fb_misuse_held(const struct fiber *f, const char *kind,
			      const void *object, void *ip)
{
	fb_say("fiber %llu '%s' has ended with the %s %p locked",
	       (unsigned long long)f->id, f->name, kind, object);
	say_place("locked at", (uintptr_t)ip - 1);
	die_at_end(f);
}

static __attribute__((noinline, cold)) void tell(int r,
						 const struct fb_misuse *m)
{
	struct fb_carrier *c = fb_current();
	struct who w;

	fb_say("%s(%p): %s: %s", m->call, m->object, m->what, strerror(-r));
	of_owner(&w, fb_self_id(c));
	say_who("caller", &w);
	if (m->owner) {
		of_owner(&w, m->owner);
		say_who("owner", &w);
	}
	if (m->q)
		say_waiters(m);
	say_stack();
	fb_last_words();
	abort();
}

int fb_misuse(int r, const struct fb_misuse *m)
{
	if (checks())
		tell(r, m);
	return r;
}
