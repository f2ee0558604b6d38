// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * selectfd.c - descriptors among the cases of a select
 *
 * A case is a node in the queue of its number, as that of any call that waits for
 * I/O (io.c), and it claims the waiter as a channel's does. Its result is
 *
 *	before the wait		what poll(2) said
 *	armed			0; -EBADF by fiber_close; why it cannot be watched
 *
 * Ready is what poll(2) says: epoll only says when to ask again. All are watched by
 * epoll, FIBER_IO=plain or not: a blocking poll(2) hears of no channel.
 */
#include "io.h"
#include "select.h"

/* ---- hold ---- */

void fb_select_release(struct fb_select *s)
{
	for (uint32_t i = 0; i < s->n; i++) {
		struct fb_node *n = fb_case_node(&s->cases[i]);

		if (!fb_case_is_fd(&s->cases[i]) || !n->value)
			continue;
		fb_fd_release(n->value);
		n->value = NULL;
	}
	s->held = false;
}

/* NULL: all are held. Else one that is being closed, and none is. */
static struct fb_fd *hold_those_open(struct fb_select *s)
{
	struct fb_fd *e;

	s->held = true;
	for (uint32_t i = 0; i < s->n; i++) {
		if (!fb_case_is_fd(&s->cases[i]))
			continue;
		e = fb_fd_get(s->cases[i].fd);
		if (!fb_fd_try_hold(e)) {
			fb_select_release(s);
			return e;
		}
		fb_case_node(&s->cases[i])->value = e;
	}
	return NULL;
}

static bool in_table(struct fb_select *s)
{
	for (uint32_t i = 0; i < s->n; i++)
		if (fb_case_is_fd(&s->cases[i])) {
			fb_case_node(&s->cases[i])->value = NULL;
			if (!fb_fd_get(s->cases[i].fd))
				return false;
		}
	return true;
}

static int hold_all(struct fb_select *s, uint64_t deadline)
{
	struct fb_fd *closed;
	int r;

	if (FB_ACQUIRE(fb_rt.state) != FB_ON)	/* pairs with fiber_init */
		return -EPERM;
	if (!in_table(s))
		return -ENOMEM;
	r = fb_poller_start();
	while (!r && (closed = hold_those_open(s)))
		r = fb_fd_wait_closed(closed, deadline);
	return r;
}

/* ---- ask ---- */

static int ask(struct fb_select *s, bool *ready)
{
	int r;

	for (uint32_t i = 0; i < s->n; i++) {
		struct fiber_case *c = &s->cases[i];

		if (!fb_case_is_fd(c))
			continue;
		r = fb_io_poll_now(c->fd, c->events);
		if (r < 0)
			return r;
		fb_case_node(c)->result = r;
		fb_case_node(c)->queued = false;
		*ready |= r > 0;
	}
	return 0;
}

int fb_select_ask(struct fb_select *s, uint64_t deadline)
{
	bool ready = false;
	int r = ask(s, &ready);

	return r || ready || !deadline ? r : hold_all(s, deadline);
}

/* ---- wait ---- */

/* Its wait is over: it is closed, or cannot be watched. */
static void give_up(struct fb_processor *p, struct fb_wait *k,
		    struct fb_node *n, int error)
{
	n->w = k->w;
	n->claim = k->claim;
	n->result = error;
	if (fb_claim(n))
		fb_wake(p, k->w);
}

void fb_select_arm(struct fb_processor *p, struct fb_select *s)
{
	struct fb_wait *k = s->k;
	int r = 0;

	fb_io_waits(p, (int)s->fds);
	for (uint32_t i = 0; i < s->n && !r; i++) {
		struct fiber_case *c = &s->cases[i];
		struct fb_node *n = fb_case_node(c);

		if (!fb_case_is_fd(c))
			continue;
		n->events = (uint16_t)c->events;
		r = fb_io_arm(n->value, c->fd, n, k);
		if (r)
			give_up(p, k, n, r);
	}
	fb_io_somebody_looks(p);
}

void fb_select_leave(struct fb_processor *p, struct fb_select *s)
{
	for (uint32_t i = 0; i < s->n; i++)
		if (fb_case_is_fd(&s->cases[i]))
			fb_io_leave(fb_case_node(&s->cases[i])->value,
				    fb_case_node(&s->cases[i]));
	fb_io_waits(p, -(int)s->fds);
}

int fb_select_fd_woke(struct fb_select *s, struct fiber_case *c)
{
	int r = fb_case_node(c)->result;

	if (r != -EBADF)
		return r ? r : -EAGAIN;
	c->result = POLLNVAL;
	return (int)(c - s->cases);
}
