// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * scope.c - scopes, and cancellation as a state
 *
 * Scopes are a tree. Each fiber is a member of its innermost scope, the one it
 * opened last, or else the one it was started in:
 *
 *   scope.members	fibers whose innermost scope this is
 *   scope.inner	scopes opened by one of them
 *   scope.children	how many were started in it and have not ended, wherever
 *			they are members now; the deadline's fiber counts too
 *
 * Cancelling goes down the tree: members get .cancel = 1, and their wait is ended
 * (wait.h); inner scopes the same, but for those with a shield. It is never taken
 * back. A fiber that joins a cancelled scope begins so: each fiber's .cancel says
 * what its innermost scope says, and is written under that scope's lock.
 *
 *   lock order		scope, then the scopes inside it
 *   who outlives whom	A scope stands as long as its owner is inside and children
 *			is not 0. An inner scope's owner is a member, or child, of
 *			the outer one, so the outer one outlives it.
 *
 * The end of a fiber and the close of its scope:
 *
 *	ending fiber			owner
 *	leave members, errors
 *	off its stack, counted: lock	lock
 *	children--			children is 0: closed, else
 *	0: take the owner's node	queue a node, wait (unlocks)
 *	unlock: the last touch		woken: closed
 *	wake the owner
 *
 * Nobody can end the owner's wait but the last child (its node is sole): a fiber
 * never outlives its scope.
 *
 * A deadline is watched by a fiber of the scope's own that waits until then, or
 * until the owner has seen all others go. The wake-ups of one cancel are collected under the lock
 * in a list through fiber.link, which a claimed fiber does not need.
 */
#include <string.h>

#include "blocked.h"
#include "scope.h"

/* A fiber's place in a scope. */
struct fb_member {
	struct fb_member *next, *prev;	/* scope's lock */
	struct fiber *f;
	struct fb_scope *s;
	struct fb_member *outer;	/* f's place before; f alone */
};

struct fb_scope {
	fb_lock_t lock;			/* of all but the constants */
	bool dead;			/* cancelled */
	bool closing;			/* nobody is to watch the deadline */
	uint32_t watching;		/* of the children: watches the deadline */
	bool collect, shield;		/* constant */
	bool has_owner;			/* constant: a fiber opened it */
	uint16_t shields;		/* constant: of its owner, outside */
	int32_t error;			/* why, the first reason */
	uint32_t children;
	struct fb_member *members;
	struct fb_scope *inner, *next, *prev;	/* siblings: parent's lock */
	struct fb_scope *parent;	/* constant */
	struct fb_member owner;
	struct fb_waitq closer, watcher;
	uint64_t deadline;		/* constant: of all scopes around */
	int *errors;			/* constant */
	size_t max_errors, count;
	size_t *error_count;		/* constant */
};

_Static_assert(sizeof(struct fb_scope) <= sizeof(struct fiber_scope),
	       "fiber_scope.reserved");

static struct fb_scope *scope_of(const fiber_scope_t *s)
{
	return (struct fb_scope *)(uintptr_t)s;
}

/* ---- members; the scope's lock is held ---- */

static void member_add(struct fb_scope *s, struct fb_member *m)
{
	m->prev = NULL;
	m->next = s->members;
	if (m->next)
		m->next->prev = m;
	s->members = m;
	FB_WRITE(m->f->cancel, s->dead);
}

static void member_remove(struct fb_scope *s, struct fb_member *m)
{
	if (m->prev)
		m->prev->next = m->next;
	else
		s->members = m->next;
	if (m->next)
		m->next->prev = m->prev;
}

static void inner_add(struct fb_scope *s, struct fb_scope *t)
{
	t->prev = NULL;
	t->next = s->inner;
	if (t->next)
		t->next->prev = t;
	s->inner = t;
}

static void inner_remove(struct fb_scope *s, struct fb_scope *t)
{
	if (t->prev)
		t->prev->next = t->next;
	else
		s->inner = t->next;
	if (t->next)
		t->next->prev = t->prev;
}

/* Can f's waits be cancelled? f itself. */
static void set_flag(struct fiber *f)
{
	if (f->in && !f->shields)
		f->flags |= FB_F_CANCELS;
	else
		f->flags &= (uint16_t)~FB_F_CANCELS;
}

/* ---- cancel ---- */

/* s and what is in it; s is locked. Those whose wait ends: in *list. */
static void cancel_locked(struct fb_scope *s, int error, struct fiber **list)
{
	struct fb_member *m;
	struct fb_scope *t;

	if (s->dead)
		return;
	s->dead = true;
	s->error = error;
	fb_blocked_count(1);
	for (m = s->members; m; m = m->next) {
		FB_WRITE(m->f->cancel, 1);
		if (fb_wait_cancel(m->f)) {
			m->f->link = *list;
			*list = m->f;
		}
	}
	for (t = s->inner; t; t = t->next) {
		if (t->shield)
			continue;
		fb_lock(&t->lock);
		cancel_locked(t, -ECANCELED, list);
		fb_unlock(&t->lock);
	}
}

/* Nothing is locked. In the order in which they came. */
static void wake_list(struct fb_processor *p, struct fiber *list)
{
	struct fiber *f, *turned = NULL;

	while ((f = list)) {
		list = f->link;
		f->link = turned;
		turned = f;
	}
	while ((f = turned)) {
		turned = f->link;
		if (p)
			fb_sched_ready_last(p, f);
		else
			fb_sched_ready_global(f);
	}
}

FB_EXPORT void fiber_scope_cancel(fiber_scope_t *scope, int error)
{
	struct fb_scope *s = scope_of(scope);
	struct fiber *list = NULL;
	struct fb_caller me;
	bool first;

	fb_caller_enter(&me);
	fb_lock(&s->lock);
	first = !s->dead;
	cancel_locked(s, error < 0 ? error : -ECANCELED, &list);
	fb_unlock(&s->lock);
	wake_list(me.p, list);
	fb_caller_leave(&me);
	if (first)
		fb_blocked_cancel();
}

FB_EXPORT int fiber_scope_cancelled(const fiber_scope_t *s)
{
	return FB_READ(scope_of(s)->error);
}

FB_EXPORT int fiber_cancelled(void)
{
	struct fb_carrier *c = fb_current();
	struct fiber *f = c ? c->cur : NULL;

	return f && (f->flags & FB_F_CANCELS) && FB_READ(f->cancel) ?
	       -ECANCELED : 0;
}

FB_EXPORT uint64_t fiber_deadline(void)
{
	struct fb_carrier *c = fb_current();
	const struct fb_member *in;

	/* In no scope, or shielded from it. */
	if (!c || !(c->cur->flags & FB_F_CANCELS))
		return FB_NEVER;
	in = c->cur->in;
	return in->s->deadline;
}

FB_EXPORT void fiber_shield_begin(void)
{
	struct fb_carrier *c = fb_current();

	if (c) {
		c->cur->shields++;
		set_flag(c->cur);
	}
}

FB_EXPORT void fiber_shield_end(void)
{
	struct fb_carrier *c = fb_current();

	if (c && c->cur->shields) {
		c->cur->shields--;
		set_flag(c->cur);
	}
}

/* ---- the life of a scope's fiber ---- */

/* One error of a fiber; s is locked. */
static void take_error(struct fb_scope *s, int error, struct fiber **list)
{
	/* It obeyed: no error of its own. */
	if (s->dead && error == -ECANCELED)
		return;
	if (s->count < s->max_errors)
		s->errors[s->count] = error;
	s->count++;
	if (!s->collect)
		cancel_locked(s, error, list);
	else if (!s->error)
		FB_WRITE(s->error, error);
}

/* One of s is gone, or was never there. */
void fb_scope_gone(struct fb_processor *p, struct fb_scope *s)
{
	struct fb_node *owner = NULL;

	fb_lock(&s->lock);
	if (--s->children <= s->watching)
		owner = fb_waitq_take(&s->closer);
	fb_unlock(&s->lock);		/* the last touch of s */
	if (owner)
		fb_wake(p, owner->w);
}

void fb_scope_end(struct fiber *f, void *result)
{
	struct fb_member *m = f->in;
	struct fb_scope *s;
	struct fiber *list = NULL;
	struct fb_caller me;
	int error = (int)(intptr_t)result;
	bool cancels;

	if (m == &m->s->owner)
		fb_die("fiber %llu \"%s\" ended inside a scope that it opened: fiber_scope_close is missing",
		       (unsigned long long)f->id, f->name);
	s = m->s;
	fb_caller_enter(&me);
	f->in = s;
	f->flags = (uint16_t)((f->flags & ~(FB_F_ENDS | FB_F_CANCELS)) |
			      FB_F_OWNED);
	fb_lock(&s->lock);
	member_remove(s, m);
	cancels = !s->dead;
	if (error < 0)
		take_error(s, error, &list);
	cancels = cancels && s->dead;
	fb_unlock(&s->lock);
	wake_list(me.p, list);
	fb_caller_leave(&me);
	if (cancels)
		fb_blocked_cancel();
}

/* Its frame holds its place until it ends, here or in fiber_exit. */
void *fb_scope_main(void *arg)
{
	struct fb_member m = { 0 };
	struct fb_caller me;

	fb_caller_enter(&me);
	m.f = me.c->cur;
	m.s = m.f->in;
	m.f->in = &m;
	m.f->flags |= FB_F_ENDS;
	fb_lock(&m.s->lock);
	member_add(m.s, &m);
	fb_unlock(&m.s->lock);
	set_flag(m.f);
	fb_caller_leave(&me);
	arg = (void *)(intptr_t)m.f->scoped(arg);
	if (m.f->flags & FB_F_LOCAL)
		fb_local_end();
	fb_scope_end(m.f, arg);		/* while m is there */
	return arg;
}

/* ---- spawn ---- */

static int spawn(struct fb_scope *s, const struct fiber_attr *attr,
		 int (*fn)(void *), void *arg)
{
	struct fb_caller me;
	int r = 0;

	if (!fn)
		return -EINVAL;
	fb_caller_enter(&me);
	fb_lock(&s->lock);
	if (s->dead)
		r = -ECANCELED;
	else
		s->children++;
	fb_unlock(&s->lock);
	fb_caller_leave(&me);
	if (r)
		return r;
	r = fb_fiber_spawn_scoped(s, attr, fn, arg);
	if (r) {
		fb_caller_enter(&me);
		fb_scope_gone(me.p, s);
		fb_caller_leave(&me);
	}
	return r;
}

FB_EXPORT int fiber_scope_spawn(fiber_scope_t *s, int (*fn)(void *), void *arg)
{
	return spawn(scope_of(s), NULL, fn, arg);
}

FB_EXPORT int fiber_scope_spawn_attr(fiber_scope_t *s,
				     const struct fiber_attr *attr,
				     int (*fn)(void *), void *arg)
{
	return spawn(scope_of(s), attr, fn, arg);
}

/* ---- the deadline ---- */

static void unlock_scope(struct fb_processor *p, void *object)
{
	(void)p;
	fb_unlock(&((struct fb_scope *)object)->lock);
}

/* Waits until the deadline, or until the owner closes: then watched is false. */
static int watch_deadline(void *arg)
{
	struct fb_scope *s = arg;
	struct fb_caller me;
	struct fb_wait k;
	struct fb_node n;
	unsigned int state = FB_W_OBJECT;

	fiber_shield_begin();
	fb_caller_enter(&me);
	fb_lock(&s->lock);
	if (s->closing) {
		s->watching = 0;
		fb_unlock(&s->lock);
		goto out;
	}
	fb_wait_begin(&me, &k, s->deadline, false);
	k.unlock = unlock_scope;
	k.object = s;
	n.w = k.w;
	n.claim = k.claim;
	fb_waitq_push(&s->watcher, &n);
	state = fb_wait(&me, &k, FB_WHY_TIMER);
	fb_lock(&s->lock);
	if (n.queued)
		fb_waitq_remove(&s->watcher, &n);
	s->watching = 0;		/* one like the others, soon gone */
	fb_unlock(&s->lock);
out:
	fb_caller_leave(&me);
	if (state == FB_W_TIMEOUT)
		fiber_scope_cancel((fiber_scope_t *)s, -ETIMEDOUT);
	return 0;
}

static int start_watching(struct fb_scope *s)
{
	struct fiber_attr attr = { .size = sizeof(attr), .name = "deadline" };

	int r;

	s->watching = 1;
	r = spawn(s, &attr, watch_deadline, s);
	if (r)
		s->watching = 0;
	return r;
}

/* ---- open and close ---- */

/* The owner goes in: out of its scope's members, into ours. */
static void go_in(struct fb_scope *s, struct fiber *f)
{
	struct fb_member *out = f->in;
	struct fb_scope *outer = out ? out->s : NULL;

	s->parent = outer;
	s->shield = s->shield || f->shields;
	s->shields = f->shields;
	s->owner.f = f;
	s->owner.s = s;
	s->owner.outer = out;
	if (outer) {
		fb_lock(&outer->lock);
		member_remove(outer, out);
		inner_add(outer, s);
		if (outer->dead && !s->shield) {
			s->dead = true;
			s->error = -ECANCELED;
			fb_blocked_count(1);
		}
	}
	member_add(s, &s->owner);	/* nobody else knows s, or we lock outer */
	if (outer)
		fb_unlock(&outer->lock);
	f->in = &s->owner;
	f->shields = 0;
	f->flags |= FB_F_ENDS;
	set_flag(f);
}

/* The other way; s has no children. */
static void go_out(struct fb_scope *s, struct fiber *f)
{
	struct fb_member *out = s->owner.outer;
	struct fb_scope *outer = s->parent;

	if (outer) {
		fb_lock(&outer->lock);
		inner_remove(outer, s);
		member_add(outer, out);
		fb_unlock(&outer->lock);
	} else {
		FB_WRITE(f->cancel, 0);
		f->flags &= (uint16_t)~FB_F_ENDS;
	}
	f->in = out;
	f->shields = s->shields;
	set_flag(f);
}

static int read_options(struct fb_scope *s,
			const struct fiber_scope_options *opt)
{
	struct fiber_scope_options o = { 0 };

	s->deadline = FB_NEVER;
	if (!opt)
		return 0;
	if (opt->size < sizeof(opt->size) || opt->size > sizeof(o))
		return -EINVAL;
	memcpy(&o, opt, opt->size);
	if ((o.flags & ~(FIBER_SCOPE_COLLECT | FIBER_SCOPE_SHIELD)) ||
	    (o.max_errors && !o.errors))
		return -EINVAL;
	s->collect = o.flags & FIBER_SCOPE_COLLECT;
	s->shield = o.flags & FIBER_SCOPE_SHIELD;
	if (o.deadline)
		s->deadline = o.deadline;
	s->errors = o.errors;
	s->max_errors = o.max_errors;
	s->error_count = o.error_count;
	return 0;
}

void fb_scope_init(fiber_scope_t *scope)
{
	memset(scope, 0, sizeof(*scope));
	scope_of(scope)->deadline = FB_NEVER;
}

FB_EXPORT int fiber_scope_open(fiber_scope_t *scope,
			       const struct fiber_scope_options *opt)
{
	struct fb_scope *s = scope_of(scope);
	struct fb_caller me;
	uint64_t own;
	int r;

	if (!scope)
		return -EINVAL;
	if (FB_ACQUIRE(fb_rt.state) != FB_ON)	/* pairs with fiber_init */
		return -EPERM;
	memset(s, 0, sizeof(*s));
	r = read_options(s, opt);
	if (r)
		return r;
	own = s->deadline;
	fb_caller_enter(&me);
	if (me.c) {
		s->has_owner = true;
		go_in(s, me.c->cur);
	}
	fb_caller_leave(&me);
	/* One around it that ends earlier cancels us as well. */
	if (s->parent && !s->shield && s->parent->deadline <= own)
		s->deadline = s->parent->deadline;
	else if (own != FB_NEVER && !s->dead)
		r = start_watching(s);
	if (r)
		fiber_scope_close(scope);
	return r == -ECANCELED ? 0 : r;
}

/* The one who watches the deadline has nothing to do any more. */
static void end_watching(struct fb_caller *me, struct fb_scope *s)
{
	struct fb_node *watcher;

	fb_lock(&s->lock);
	s->closing = true;
	s->watching = 0;
	watcher = fb_waitq_take(&s->watcher);
	fb_unlock(&s->lock);
	if (watcher)
		fb_wake(me->p, watcher->w);
}

/* Until none is left, but for who watches the deadline. */
static void wait_children(struct fb_caller *me, struct fb_scope *s)
{
	fb_lock(&s->lock);
	if (s->children > s->watching)
		fb_wait_taken(me, &s->lock, &s->closer, FB_WHY_SCOPE);
	else
		fb_unlock(&s->lock);
}

FB_EXPORT int fiber_scope_close(fiber_scope_t *scope)
{
	struct fb_scope *s = scope_of(scope);
	struct fb_caller me;
	int r = 0;

	fb_caller_enter(&me);
	if (s->has_owner && (!me.c || me.c->cur != s->owner.f))
		r = -EPERM;
	else if (me.c && s->has_owner && me.c->cur->in != &s->owner)
		r = -EINVAL;
	if (!r) {
		wait_children(&me, s);
		end_watching(&me, s);
		wait_children(&me, s);
		if (s->has_owner)
			go_out(s, me.c->cur);
		if (s->dead)
			fb_blocked_count(-1);
		if (s->error_count)
			*s->error_count = s->count;
		r = s->error;
	}
	fb_caller_leave(&me);
	return r;
}
