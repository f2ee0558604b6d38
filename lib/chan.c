// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * chan.c - channels
 *
 * A ring of `cap` values, and two queues of waiters (wait.h). Under the lock:
 *
 *   receivers wait  =>  the ring is empty, and no sender waits that could be
 *                       claimed
 *   senders wait    =>  the ring is full, and no receiver waits ...
 *   closed          =>  nobody waits
 *
 * A value is copied once if a receiver waits: from the sender's memory straight
 * into the receiver's. A sender that waits keeps its value in its own memory; the
 * receiver that makes a place takes the oldest value from the ring and moves the
 * oldest sender's into it, so that order is kept.
 *
 * Who waits can be claimed by another (a deadline, another case of its select): a
 * queue may be not empty although nobody in it can be had. The claim decides,
 * before any value moves.
 */
#include <stdlib.h>
#include <string.h>

#include "chan.h"
#include "pick.h"
#include "sync.h"

/* ---- values ---- */

static inline void copy(const struct fiber_chan *ch, void *to, const void *from)
{
	if (ch->elem == 8)
		memcpy(to, from, 8);
	else if (ch->elem)
		memcpy(to, from, ch->elem);
}

static inline char *place(struct fiber_chan *ch, size_t i)
{
	i += ch->first;
	return ch->buf + (i < ch->cap ? i : i - ch->cap) * ch->elem;
}

static void push(struct fiber_chan *ch, const void *value)
{
	copy(ch, place(ch, ch->count), value);
	ch->count++;
}

static void pop(struct fiber_chan *ch, void *value)
{
	if (value)
		copy(ch, value, place(ch, 0));
	ch->first = ch->first + 1 < ch->cap ? ch->first + 1 : 0;
	ch->count--;
}

/* ---- what can be done at once ---- */

static inline __attribute__((always_inline)) int
send_now(struct fiber_chan *ch, const void *value, struct fb_node **woken)
{
	struct fb_node *n;

	*woken = NULL;
	if (ch->closed)
		return -EPIPE;
	n = fb_waitq_take(&ch->receivers);
	if (n) {
		if (n->value)
			copy(ch, n->value, value);
		n->result = 0;
		*woken = n;
		return 0;
	}
	if (ch->count == ch->cap)
		return -EAGAIN;
	push(ch, value);
	return 0;
}

static inline __attribute__((always_inline)) int
recv_now(struct fiber_chan *ch, void *value, struct fb_node **woken)
{
	struct fb_node *n;

	*woken = NULL;
	if (!ch->count && !ch->senders.head)
		return ch->closed ? -EPIPE : -EAGAIN;
	n = fb_waitq_take(&ch->senders);
	if (ch->count) {
		pop(ch, value);
		if (n)
			push(ch, n->value);
	} else if (!n) {
		return ch->closed ? -EPIPE : -EAGAIN;
	} else if (value) {
		copy(ch, value, n->value);
	}
	if (n)
		n->result = 0;
	*woken = n;
	return 0;
}

int fb_chan_send_now(struct fiber_chan *ch, const void *value,
		     struct fb_node **woken)
{
	return send_now(ch, value, woken);
}

int fb_chan_recv_now(struct fiber_chan *ch, void *value,
		     struct fb_node **woken)
{
	return recv_now(ch, value, woken);
}

/* ---- waiting ---- */

/* The channel is locked, and nothing can be done at once. */
static __attribute__((noinline)) int
wait_in(struct fb_caller *me, struct fiber_chan *ch, bool sends, void *value,
	uint64_t deadline)
{
	struct fb_waitq *q = fb_chan_queue(ch, sends);
	struct fb_node n;
	unsigned int state;

	n.value = value;
	state = fb_sync_wait(me, &ch->lock, q, &n, deadline,
			     sends ? FB_WHY_SEND : FB_WHY_RECV);
	if (state == FB_W_OBJECT)
		return n.result;
	fb_sync_leave(q, &n);
	fb_obj_unlock(me->p, &ch->lock);
	return fb_wait_error(state);
}

/*
 * The common wait: of a fiber that no deadline or cancellation can end, so that
 * the lock alone decides. Inline, see pick.h.
 */
static inline __attribute__((always_inline)) int
wait_sole(struct fb_carrier *c, struct fb_processor *p, struct fiber_chan *ch,
	  bool sends, void *value)
{
	struct fb_node n;

	n.w = &c->cur->w;
	n.claim = 0;
	n.value = value;
	fb_waitq_push(fb_chan_queue(ch, sends), &n);
	fb_park_sole(c, p, &ch->lock, sends ? FB_WHY_SEND : FB_WHY_RECV);
	return n.result;
}

/* ---- send and receive; deadline 0: do not wait ---- */

static __attribute__((noinline)) int
use(struct fiber_chan *ch, bool sends, void *value, uint64_t deadline)
{
	struct fb_caller me;
	struct fb_node *n;
	int r;

	fb_caller_enter(&me);
	if (fb_unlikely(!me.c) && fb_is_forked()) {
		r = -EPERM;
	} else if (deadline && fb_cancelled(&me)) {
		r = -ECANCELED;
	} else if (fb_unlikely(!ch)) {
		r = deadline ? fb_wait_never(&me, deadline, sends ?
					     FB_WHY_SEND : FB_WHY_RECV) :
			       -EAGAIN;
	} else {
		fb_obj_lock(me.p, &ch->lock);
		r = fb_chan_now(ch, sends, value, &n);
		if (r == -EAGAIN && deadline) {
			r = wait_in(&me, ch, sends, value, deadline);
		} else {
			fb_obj_unlock(me.p, &ch->lock);
			if (n)
				fb_wake(me.p, n->w);
		}
	}
	fb_caller_leave(&me);
	return r;
}

/* Without a deadline, and nothing to look at first; inline, see pick.h. */
static inline __attribute__((always_inline)) int
use_plain(struct fiber_chan *ch, bool sends, void *value)
{
	struct fb_carrier *c = fb_current();
	struct fb_processor *p;
	struct fb_cpage *page;
	struct fb_node *n;
	int r;

	if (fb_unlikely(!c || !ch || c->cur->flags & FB_F_CANCELS))
		return use(ch, sends, value, FB_NEVER);
	page = c->page;
	FB_WRITE(page->in_fiber, 0);
	fb_barrier();		/* Pairs with the backend: see fb_cpage. */
	if (!fb_calm(c, page))	/* it enters anew */
		return use(ch, sends, value, FB_NEVER);
	p = c->proc;
	fb_san_acquire(p);
	fb_obj_lock(p, &ch->lock);
	r = sends ? send_now(ch, value, &n) : recv_now(ch, value, &n);
	if (r == -EAGAIN)
		return wait_sole(c, p, ch, sends, value);
	fb_obj_unlock(p, &ch->lock);
	if (n && (n->w->kind & FB_KIND) == FB_FIBER)
		fb_sched_ready(p, fb_waiter_fiber(n->w));
	else if (n)
		fb_wake(p, n->w);
	fb_leave(c);
	return r;
}

FB_EXPORT int fiber_chan_send(fiber_chan_t *ch, const void *value)
{
	return use_plain(ch, true, (void *)value);
}

FB_EXPORT int fiber_chan_send_until(fiber_chan_t *ch, const void *value,
				    uint64_t deadline)
{
	return fb_sync_over(use(ch, true, (void *)value, deadline), deadline);
}

FB_EXPORT int fiber_chan_try_send(fiber_chan_t *ch, const void *value)
{
	return use(ch, true, (void *)value, 0);
}

FB_EXPORT int fiber_chan_recv(fiber_chan_t *ch, void *value)
{
	return use_plain(ch, false, value);
}

FB_EXPORT int fiber_chan_recv_until(fiber_chan_t *ch, void *value,
				    uint64_t deadline)
{
	return fb_sync_over(use(ch, false, value, deadline), deadline);
}

FB_EXPORT int fiber_chan_try_recv(fiber_chan_t *ch, void *value)
{
	return use(ch, false, value, 0);
}

/* ---- close ---- */

/*
 * Claim all of q for `result`. Fibers are made ready at once, while the lines of each
 * are at hand: there may be a million, and to come by again costs all those misses
 * anew. Whoever is woken by other means is put at the list's end; returns its end.
 */
static struct fb_node **end_all(struct fb_processor *p, struct fb_waitq *q,
				int result, struct fb_node **end)
{
	struct fb_node *n;

	while ((n = fb_waitq_take(q))) {
		n->result = result;
		if (p && (n->w->kind & FB_KIND) == FB_FIBER) {
			/* It may run, and need the channel: until we unlock. */
			fb_sched_ready_last(p, fb_waiter_fiber(n->w));
			continue;
		}
		n->next = NULL;
		*end = n;
		end = &n->next;
	}
	return end;
}

FB_EXPORT int fiber_chan_close(fiber_chan_t *ch)
{
	struct fb_node *list = NULL, **end = &list;
	struct fb_caller me;
	int r = -EPIPE;

	if (!ch)
		return -EINVAL;
	if (fb_is_forked())
		return -EPERM;
	fb_caller_enter(&me);
	fb_obj_lock(me.p, &ch->lock);
	if (!ch->closed) {
		ch->closed = true;
		end = end_all(me.p, &ch->receivers, -EPIPE, end);
		end_all(me.p, &ch->senders, -EPIPE, end);
		r = 0;
	}
	fb_obj_unlock(me.p, &ch->lock);
	fb_wake_all(me.p, list);
	fb_caller_leave(&me);
	return r;
}

/* ---- the rest ---- */

FB_EXPORT int fiber_chan_create(fiber_chan_t **out, size_t elem_size,
				size_t capacity)
{
	struct fiber_chan *ch;
	size_t bytes;

	if (!out || elem_size > INT32_MAX ||
	    __builtin_mul_overflow(elem_size, capacity, &bytes) ||
	    __builtin_add_overflow(bytes, sizeof(*ch), &bytes))
		return -EINVAL;
	/* On lines of its own: the first is what two processors pass on. */
	if (__builtin_add_overflow(bytes, FB_LINE - 1, &bytes))
		return -EINVAL;
	ch = aligned_alloc(FB_LINE, bytes & ~(size_t)(FB_LINE - 1));
	if (!ch)
		return -ENOMEM;
	memset(ch, 0, sizeof(*ch));
	ch->elem = (uint32_t)elem_size;
	ch->cap = capacity;
	*out = ch;
	return 0;
}

static bool is_waited_at(struct fiber_chan *ch)
{
	struct fb_caller me;
	bool is;

	fb_caller_enter(&me);
	fb_obj_lock(me.p, &ch->lock);
	is = ch->senders.head || ch->receivers.head;
	fb_obj_unlock(me.p, &ch->lock);
	fb_caller_leave(&me);
	return is;
}

FB_EXPORT int fiber_chan_destroy(fiber_chan_t *ch)
{
	if (!ch)
		return 0;
	/* In the child of a fork nobody can be. */
	if (!fb_is_forked() && is_waited_at(ch))
		return -EBUSY;
	free(ch);
	return 0;
}

/* Whoever has it locked counts meanwhile, plainly. */
FB_LOOKS static size_t count_of(const struct fiber_chan *ch)
{
	return FB_SEE(ch->count);
}

FB_EXPORT size_t fiber_chan_len(fiber_chan_t *ch)
{
	return ch ? count_of(ch) : 0;
}

FB_EXPORT size_t fiber_chan_cap(const fiber_chan_t *ch)
{
	return ch ? ch->cap : 0;
}
