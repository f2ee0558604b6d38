// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * select.c - do one of many sends and receives, or see a descriptor ready
 *
 *   0  ask poll(2) which descriptors are ready (selectfd.c)
 *   1  lock all channels, in order of address (so that two selects never wait
 *      for each other), each once
 *   2  of what can be done, choose one at random and do it; unlock all
 *   3  or queue a node at each and wait: unlocked off our stack (wait.h), and the
 *      descriptors armed
 *   4  woken: lock each channel, each descriptor, and take our node out. By a
 *      descriptor: from 0 again
 *
 * All locks at once, as in Go's runtime: with one at a time two selects that fit
 * would have to claim each other and themselves in one step.
 *
 * The choice is fair: of the k that can be done, seen in turn, the i-th replaces
 * the choice so far with probability 1/i.
 */
#include "chan.h"
#include "select.h"
#include "sync.h"

#define MAX_CASES	65536

static uint32_t *at(const struct fb_select *s, uint32_t i)
{
	return &((struct fb_case *)(void *)s->cases[i].reserved)->at;
}

/* The i-th in lock order. */
static struct fiber_case *locked(const struct fb_select *s, uint32_t i)
{
	return &s->cases[*at(s, i)];
}

static bool sends(const struct fiber_case *c)
{
	return c->op == FIBER_CASE_SEND;
}

static bool counts(const struct fiber_case *c)
{
	return (sends(c) || c->op == FIBER_CASE_RECV) && c->chan;
}

static struct fb_waitq *queue(const struct fiber_case *c)
{
	return fb_chan_queue(c->chan, sends(c));
}

/* ---- lock order ---- */

static fiber_chan_t *chan_at(const struct fb_select *s, uint32_t i)
{
	return locked(s, i)->chan;
}

static void swap(const struct fb_select *s, uint32_t i, uint32_t j)
{
	uint32_t t = *at(s, i);

	*at(s, i) = *at(s, j);
	*at(s, j) = t;
}

static void sift(const struct fb_select *s, uint32_t i, uint32_t n)
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
static void sort(const struct fb_select *s)
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

static int prepare(struct fb_select *s)
{
	for (uint32_t i = 0; i < s->n; i++) {
		struct fiber_case *c = &s->cases[i];

		if (c->op > FIBER_CASE_FD)
			return -EINVAL;
		if (c->op == FIBER_CASE_FD)
			s->fds += c->fd >= 0;
		else if (counts(c))
			*at(s, s->live++) = i;
	}
	sort(s);
	return 0;
}

static void lock_all(struct fb_processor *p, const struct fb_select *s)
{
	if (!s->live || fb_solo_enter(p))
		return;
	for (uint32_t i = 0; i < s->live; i++)
		if (!i || chan_at(s, i) != chan_at(s, i - 1))
			fb_lock(&chan_at(s, i)->lock);
}

static void unlock_all(struct fb_processor *p, void *object)
{
	struct fb_select *s = object;

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

	if (p && fb_unlikely(fb_rt.seeded))
		return fb_seed_below(n);
	*seed = *seed * 1664525 + 1013904223;
	return (uint32_t)(((uint64_t)*seed * n) >> 32);
}

/* Of the descriptors that are ready, how many, and one of them. */
static uint32_t choose_fd(struct fb_processor *p, struct fb_select *s,
			  struct fiber_case **best)
{
	uint32_t ready = 0;

	for (uint32_t i = 0; s->fds && i < s->n; i++) {
		struct fiber_case *c = &s->cases[i];

		if (fb_case_is_fd(c) && fb_case_node(c)->result &&
		    (++ready == 1 || !random_below(p, ready)))
			*best = c;
	}
	return ready;
}

/*
 * All are locked. The index of the case that was done, or -EAGAIN. Here and in
 * queue_all they come as the program gave them: addresses decide nothing.
 */
static int choose(struct fb_processor *p, struct fb_select *s,
		  struct fb_node **woken)
{
	struct fiber_case *c, *best;
	uint32_t ready;

	for (;;) {
		best = NULL;
		ready = choose_fd(p, s, &best);
		for (uint32_t i = 0; i < s->n; i++) {
			c = &s->cases[i];
			if (counts(c) && fb_chan_can(c->chan, sends(c)) &&
			    (++ready == 1 || !random_below(p, ready)))
				best = c;
		}
		if (!best)
			return -EAGAIN;
		best->result = fb_case_is_fd(best) ? fb_case_node(best)->result :
			       fb_chan_now(best->chan, sends(best), best->value,
					   woken);
		/* Else all who waited there were claimed by others: again. */
		if (best->result != -EAGAIN)
			return (int)(best - s->cases);
	}
}

/* ---- wait ---- */

static void queue_all(struct fb_select *s, struct fb_wait *k)
{
	for (uint32_t i = 0; i < s->n; i++) {
		struct fiber_case *c = &s->cases[i];
		struct fb_node *n = fb_case_node(c);

		if (!counts(c))
			continue;
		n->w = k->w;
		n->claim = k->claim;
		n->value = c->value;
		fb_waitq_push(queue(c), n);
	}
}

static void unqueue_all(struct fb_processor *p, struct fb_select *s)
{
	for (uint32_t i = 0; i < s->live; i++) {
		struct fiber_case *c = locked(s, i);

		fb_obj_lock(p, &c->chan->lock);
		if (fb_case_node(c)->queued)
			fb_waitq_remove(queue(c), fb_case_node(c));
		fb_obj_unlock(p, &c->chan->lock);
	}
}

/* fb_wait.unlock */
static void go(struct fb_processor *p, void *object)
{
	struct fb_select *s = object;

	unlock_all(p, s);
	if (s->fds)
		fb_select_arm(p, s);
}

/*
 * All are locked, and nothing can be done. -EAGAIN: a descriptor may be ready; it
 * is asked again.
 */
static int wait_any(struct fb_caller *me, struct fb_select *s, uint64_t deadline)
{
	struct fb_wait k;
	unsigned int state;
	struct fiber_case *c;

	fb_wait_begin(me, &k, deadline, true);
	k.unlock = s->live || s->fds ? go : NULL;
	k.object = s;
	s->k = &k;
	queue_all(s, &k);
	if (s->fds)
		k.w->kind &= ~(uint32_t)FB_COUNTED;	/* others may wake us */
	state = fb_wait(me, &k, s->fds ? FB_WHY_IO : FB_WHY_SELECT);
	unqueue_all(me->p, s);
	if (s->fds)
		fb_select_leave(me->p, s);
	if (state != FB_W_OBJECT)
		return fb_wait_error(state);
	c = (struct fiber_case *)(void *)
		((char *)k.w->by - offsetof(struct fiber_case, reserved));
	if (fb_case_is_fd(c))
		return fb_select_fd_woke(s, c);
	c->result = k.w->by->result;
	return (int)(c - s->cases);
}

/* The descriptors were asked. -EAGAIN: wait, which the deadline 0 forbids. */
static int once(struct fb_caller *me, struct fb_select *s, uint64_t deadline)
{
	struct fb_node *woken = NULL;
	int r;

	lock_all(me->p, s);
	r = choose(me->p, s, &woken);
	if (r == -EAGAIN && deadline)
		return wait_any(me, s, deadline);
	unlock_all(me->p, s);
	if (woken)
		fb_wake(me->p, woken->w);
	return r;
}

static int select_cases(struct fiber_case *cases, size_t n, uint64_t deadline)
{
	struct fb_select s = { .cases = cases, .n = (uint32_t)n };
	struct fb_caller me;
	int r;

	if (n > MAX_CASES || (n && !cases))
		return -EINVAL;
	r = prepare(&s);
	if (r)
		return r;
	if (s.live && fb_is_forked())
		return -EPERM;
	do {
		if (s.fds && (r = fb_select_ask(&s, deadline)))
			return r;
		fb_caller_enter(&me);
		if (deadline && fb_cancelled(&me))
			r = -ECANCELED;
		else
			r = once(&me, &s, deadline);
		fb_caller_leave(&me);
		if (s.held)
			fb_select_release(&s);
	} while (r == -EAGAIN && deadline);
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
