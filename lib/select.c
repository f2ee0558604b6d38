// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * select.c - do one of many sends and receives
 *
 *   1  lock all channels, in order of address (so that two selects never wait
 *      for each other), each once
 *   2  of what can be done, choose one at random and do it; unlock all
 *   3  or queue a node at each and wait: unlocked off our stack (wait.h)
 *   4  woken: lock each channel and take our node out
 *
 * All locks at once, as in Go's runtime: with one at a time two selects that fit
 * would have to claim each other and themselves in one step.
 *
 * The choice is fair: of the k that can be done, seen in turn, the i-th replaces
 * the choice so far with probability 1/i.
 */
#include <stdlib.h>

#include "chan.h"

#define MAX_CASES	65536

_Static_assert(sizeof(struct fb_node) <=
	       sizeof(((struct fiber_case *)0)->reserved), "fiber_case.reserved");

struct select {
	struct fiber_case *cases;
	uint32_t n;
	uint32_t live;			/* cases with a channel, in lock order */
};

static struct fb_node *node(struct fiber_case *c)
{
	return (struct fb_node *)(void *)c->reserved;
}

/* The i-th in lock order. */
static struct fiber_case *locked(const struct select *s, uint32_t i)
{
	return &s->cases[node(&s->cases[i])->order];
}

static bool sends(const struct fiber_case *c)
{
	return c->op == FIBER_CASE_SEND;
}

static struct fb_waitq *queue(const struct fiber_case *c)
{
	return fb_chan_queue(c->chan, sends(c));
}

/* ---- lock order ---- */

static fiber_chan_t *chan_at(const struct select *s, uint32_t i)
{
	return locked(s, i)->chan;
}

static void swap(const struct select *s, uint32_t i, uint32_t j)
{
	struct fb_node *a = node(&s->cases[i]), *b = node(&s->cases[j]);
	uint32_t t = a->order;

	a->order = b->order;
	b->order = t;
}

static void sift(const struct select *s, uint32_t i, uint32_t n)
{
	uint32_t j;

	while ((j = 2 * i + 1) < n) {
		if (j + 1 < n && chan_at(s, j) < chan_at(s, j + 1))
			j++;
		if (chan_at(s, i) >= chan_at(s, j))
			return;
		swap(s, i, j);
		i = j;
	}
}

/* Few: insertion; many: heap sort. Neither needs memory. */
static void sort(const struct select *s)
{
	uint32_t n = s->live;

	if (n <= 16) {
		for (uint32_t i = 1; i < n; i++)
			for (uint32_t j = i; j && chan_at(s, j - 1) >
					     chan_at(s, j); j--)
				swap(s, j - 1, j);
		return;
	}
	for (uint32_t i = n / 2; i--; )
		sift(s, i, n);
	while (n > 1) {
		swap(s, 0, --n);
		sift(s, 0, n);
	}
}

static int prepare(struct select *s)
{
	for (uint32_t i = 0; i < s->n; i++) {
		struct fiber_case *c = &s->cases[i];

		if (c->op > FIBER_CASE_RECV)
			return -EINVAL;
		if (c->op != FIBER_CASE_NONE && c->chan)
			node(&s->cases[s->live++])->order = i;
	}
	sort(s);
	return 0;
}

static void lock_all(struct fb_processor *p, const struct select *s)
{
	if (!s->live || fb_solo_enter(p))
		return;
	for (uint32_t i = 0; i < s->live; i++)
		if (!i || chan_at(s, i) != chan_at(s, i - 1))
			fb_lock(&chan_at(s, i)->lock);
}

static void unlock_all(struct fb_processor *p, void *object)
{
	struct select *s = object;

	if (!s->live)
		return;
	if (p && p->solo) {
		fb_solo_leave(p);
		return;
	}
	for (uint32_t i = 0; i < s->live; i++)
		if (!i || chan_at(s, i) != chan_at(s, i - 1))
			fb_unlock(&chan_at(s, i)->lock);
}

/* ---- choose ---- */

/* Uniform below n. */
static uint32_t random_below(struct fb_processor *p, uint32_t n)
{
	static __thread uint32_t seed_of_thread;
	uint32_t *seed = p ? &p->seed : &seed_of_thread;

	*seed = *seed * 1664525 + 1013904223;
	return (uint32_t)(((uint64_t)*seed * n) >> 32);
}

/* All are locked. The index of the case that was done, or -EAGAIN. */
static int choose(struct fb_processor *p, struct select *s,
		  struct fb_node **woken)
{
	struct fiber_case *c, *best;
	uint32_t ready;

	for (;;) {
		best = NULL;
		ready = 0;
		for (uint32_t i = 0; i < s->live; i++) {
			c = locked(s, i);
			if (fb_chan_can(c->chan, sends(c)) &&
			    (++ready == 1 || !random_below(p, ready)))
				best = c;
		}
		if (!best)
			return -EAGAIN;
		best->result = fb_chan_now(best->chan, sends(best), best->value,
					   woken);
		/* Else all who waited there were claimed by others: again. */
		if (best->result != -EAGAIN)
			return (int)(best - s->cases);
	}
}

/* ---- wait ---- */

static void queue_all(struct select *s, struct fb_wait *k)
{
	for (uint32_t i = 0; i < s->live; i++) {
		struct fiber_case *c = locked(s, i);
		struct fb_node *n = node(c);

		n->w = k->w;
		n->claim = k->claim;
		n->value = c->value;
		fb_waitq_push(queue(c), n);
	}
}

static void unqueue_all(struct fb_processor *p, struct select *s)
{
	for (uint32_t i = 0; i < s->live; i++) {
		struct fiber_case *c = locked(s, i);

		fb_obj_lock(p, &c->chan->lock);
		if (node(c)->queued)
			fb_waitq_remove(queue(c), node(c));
		fb_obj_unlock(p, &c->chan->lock);
	}
}

/* All are locked, and nothing can be done. */
static int wait_any(struct fb_caller *me, struct select *s, uint64_t deadline)
{
	struct fb_wait k;
	unsigned int state;
	struct fiber_case *c;

	fb_wait_begin(me, &k, deadline, true);
	k.unlock = s->live ? unlock_all : NULL;
	k.object = s;
	queue_all(s, &k);
	state = fb_wait(me, &k, FB_WHY_SELECT);
	unqueue_all(me->p, s);
	if (state != FB_W_OBJECT)
		return fb_wait_error(state);
	c = (struct fiber_case *)(void *)
		((char *)k.w->by - offsetof(struct fiber_case, reserved));
	c->result = k.w->by->result;
	return (int)(c - s->cases);
}

static int select_cases(struct fiber_case *cases, size_t n, uint64_t deadline)
{
	struct select s = { .cases = cases, .n = (uint32_t)n };
	struct fb_node *woken = NULL;
	struct fb_caller me;
	int r;

	if (n > MAX_CASES || (n && !cases))
		return -EINVAL;
	r = prepare(&s);
	if (r)
		return r;
	fb_caller_enter(&me);
	if (deadline && fb_cancelled(&me)) {
		r = -ECANCELED;
	} else {
		lock_all(me.p, &s);
		r = choose(me.p, &s, &woken);
		if (r == -EAGAIN && deadline) {
			r = wait_any(&me, &s, deadline);
		} else {
			unlock_all(me.p, &s);
			if (woken)
				fb_wake(me.p, woken->w);
		}
	}
	fb_caller_leave(&me);
	return r;
}

FB_EXPORT int fiber_select(struct fiber_case *cases, size_t n, uint64_t deadline)
{
	int r = select_cases(cases, n, deadline);

	return r == -EAGAIN ? -ETIMEDOUT : r;
}

FB_EXPORT int fiber_try_select(struct fiber_case *cases, size_t n)
{
	return select_cases(cases, n, 0);
}
