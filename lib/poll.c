// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * poll.c - wait until one of many descriptors is ready
 *
 * What is ready is always asked of poll(2); epoll only says when to ask again.
 */
#include <stdlib.h>

#include "io.h"

#define FEW		4		/* without malloc */

/* Those of a call, held. */
struct many {
	struct fb_io_slot few[FEW], *slot;
	int n;				/* of slot */
};

static void release(struct many *m)
{
	for (int i = 0; i < m->n; i++)
		fb_fd_release(m->slot[i].e);
}

static void let_go(struct many *m)
{
	if (m->slot != m->few)
		free(m->slot);
}

/* 0; or -EAGAIN: *closed is being closed; -ENOSYS: epoll cannot watch them all. */
static int hold_once(struct many *m, const struct pollfd *fds, nfds_t n,
		     struct fb_fd **closed)
{
	m->n = 0;
	for (nfds_t i = 0; i < n; i++) {
		struct fb_io_slot *s = &m->slot[m->n];

		if (fds[i].fd < 0)
			continue;
		s->e = fb_fd_get(fds[i].fd);
		if (!s->e)
			return -ENOSYS;
		if (!fb_fd_try_hold(s->e)) {
			*closed = s->e;
			return -EAGAIN;
		}
		s->fd = fds[i].fd;
		s->node.events = (uint16_t)fds[i].events;
		m->n++;
	}
	return 0;
}

static int hold(struct many *m, const struct pollfd *fds, nfds_t n,
		uint64_t deadline)
{
	struct fb_fd *closed = NULL;
	int err = errno, r;

	m->slot = m->few;
	if (n > FEW) {
		m->slot = malloc(sizeof(*m->slot) * n);
		errno = err;
	}
	if (!m->slot)
		return -ENOSYS;
	while ((r = hold_once(m, fds, n, &closed))) {
		release(m);
		if (r != -EAGAIN || (r = fb_fd_wait_closed(closed, deadline)))
			break;
	}
	if (r)
		let_go(m);
	return r;
}

/* One has been closed while we waited. */
static int say_closed(const struct many *m, struct pollfd *fds, nfds_t n)
{
	int closed = 0;

	for (int i = 0; i < m->n; i++) {
		if (m->slot[i].node.result != -EBADF)
			continue;
		for (nfds_t j = 0; j < n; j++)
			if (fds[j].fd == m->slot[i].fd && !fds[j].revents) {
				fds[j].revents = POLLNVAL;
				closed++;
			}
	}
	return closed;
}

static int wait_many(struct pollfd *fds, nfds_t n, uint64_t deadline)
{
	struct many m;
	int r = fb_io_watches() ? hold(&m, fds, n, deadline) : -ENOSYS;

	if (!r) {
		while ((r = fb_io_wait_slots(m.slot, m.n, deadline)) == 0 &&
		       (r = fb_io_poll_all(fds, (unsigned int)n)) == 0)
			;
		if (r == -EBADF)
			r = say_closed(&m, fds, n);
		release(&m);
		let_go(&m);
	}
	if (r > 0 || r == -ETIMEDOUT || r == -ECANCELED)
		return r;
	return fb_io_wait_plainly(fds, (unsigned int)n, NULL, deadline);
}

FB_EXPORT int fiber_poll_until(struct pollfd *fds, nfds_t n, uint64_t deadline)
{
	int r;

	fb_caller_heed();
	if (deadline && fiber_cancelled())
		return -ECANCELED;
	r = fb_io_poll_all(fds, (unsigned int)n);
	if (r)
		return r;
	return deadline ? wait_many(fds, n, deadline) : -ETIMEDOUT;
}

FB_EXPORT int fiber_poll(struct pollfd *fds, nfds_t n)
{
	return fiber_poll_until(fds, n, FB_NEVER);
}
