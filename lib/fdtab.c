// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * fdtab.c - a word for each descriptor number, and how one is closed
 *
 * The table has a part for each 1024 numbers, made when the first of them is used,
 * and kept. Numbers beyond it are waited for in plain blocking calls.
 *
 * A call holds its number from before its first system call to after its last.
 * fiber_close waits for all of them, so none can meet the file that gets the number
 * next:
 *
 *	a call				fiber_close
 *	holds++				holds |= CLOSING
 *	CLOSING: holds--, wait until	lock; take out all who wait, with -EBADF
 *	  it is gone, again		unlock, wake them
 *	...				holds is not CLOSING alone: wait at closer
 *	lock; CLOSING: -EBADF, else	the system's close
 *	  queue, unlock, wait		holds &= ~CLOSING
 *	...
 *	holds--: CLOSING alone is left:
 *	  it still is, under close_lock:
 *	  take and wake closer
 *
 * Either the waiter's look under the lock sees CLOSING, or the closer finds its
 * node. A call that comes while CLOSING is set waits, since its number may be the
 * next file's already: the system gives it away somewhere within close. One that
 * wants many numbers waits for none while it holds another: two such calls and two
 * closes would wait for each other. The call's deadline and its cancellation end such
 * a wait: a close that lingers may take as long as the peer likes.
 */
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "io.h"
#include "sync.h"

#define PART_BITS	10
#define PART		(1u << PART_BITS)
#define PARTS		1024u
#define PAUSE		20000		/* ns; doubled up to */
#define PAUSE_MOST	1000000

static struct fb_fd *part[PARTS];	/* atomic; set once */

static struct fb_fd *make_part(uint32_t i)
{
	size_t size = sizeof(struct fb_fd) * PART;
	struct fb_fd *none = NULL, *m;
	long r;

	r = fb_sys(SYS_mmap, 0, size, PROT_READ | PROT_WRITE,
		   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (r < 0 && r > -4096)
		return NULL;
	m = (struct fb_fd *)r;
	/* Pairs with the acquire in fb_fd_get. */
	if (__atomic_compare_exchange_n(&part[i], &none, m, false,
					__ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
		return m;
	fb_sys(SYS_munmap, m, size);
	return none;
}

struct fb_fd *fb_fd_get(int fd)
{
	uint32_t n = (uint32_t)fd;
	struct fb_fd *p;

	if (n >= PART * PARTS)
		return NULL;
	p = FB_ACQUIRE(part[n >> PART_BITS]);	/* pairs with make_part */
	if (fb_unlikely(!p))
		p = make_part(n >> PART_BITS);
	return p ? p + (n & (PART - 1)) : NULL;
}

/* ---- holding ---- */

/* A close is short, but for one that lingers. Cancelled, it does not park. */
static uint64_t pause_for(uint64_t ns, uint64_t deadline)
{
	uint64_t until = fiber_now() + ns;
	struct timespec ts = { .tv_nsec = (long)ns };

	if (fb_io_nap(until < deadline ? until : deadline) == -ECANCELED)
		fb_sys(SYS_nanosleep, &ts, NULL);
	return ns < PAUSE_MOST ? ns * 2 : ns;
}

int fb_fd_wait_closed(struct fb_fd *e, uint64_t deadline)
{
	uint64_t ns = PAUSE;

	/* Pairs with the release at the end of close_held. */
	while (FB_ACQUIRE(e->holds) & FB_FD_CLOSING) {
		if (deadline && fiber_cancelled())
			return -ECANCELED;
		if (fiber_now() >= deadline)
			return -ETIMEDOUT;
		ns = pause_for(ns, deadline);
	}
	return 0;
}

/* The same for a close, which nothing ends. */
static void wait_closed(struct fb_fd *e)
{
	uint64_t ns = PAUSE;

	/* Pairs with the release at the end of close_held. */
	while (FB_ACQUIRE(e->holds) & FB_FD_CLOSING)
		ns = pause_for(ns, FB_NEVER);
}

static __attribute__((noinline)) void last_released(struct fb_fd *e)
{
	struct fb_caller me;
	struct fb_node *n;

	fb_caller_enter_now(&me);
	fb_lock(&e->close_lock);
	/* Or that close is over. Pairs with the decrement in fb_fd_release. */
	n = FB_ACQUIRE(e->holds) == FB_FD_CLOSING ? fb_waitq_take(&e->closer) :
						    NULL;
	fb_unlock(&e->close_lock);
	if (n)
		fb_wake(me.p, n->w);
	fb_caller_leave(&me);
}

void fb_fd_release(struct fb_fd *e)
{
	/* Pairs with the acquire in drain. */
	if (fb_unlikely(__atomic_sub_fetch(&e->holds, 1, __ATOMIC_ACQ_REL) ==
			FB_FD_CLOSING))
		last_released(e);
}

bool fb_fd_try_hold(struct fb_fd *e)
{
	/* Pairs with the release of CLOSING in close_held. */
	if (fb_likely(!(__atomic_fetch_add(&e->holds, 1, __ATOMIC_ACQUIRE) &
			FB_FD_CLOSING)))
		return true;
	fb_fd_release(e);
	return false;
}

int fb_fd_hold(struct fb_fd *e, uint64_t deadline)
{
	int r;

	while (fb_unlikely(!fb_fd_try_hold(e)))
		if ((r = fb_fd_wait_closed(e, deadline)))
			return r;
	return 0;
}

void fb_fd_void(struct fb_fd *e)
{
	FB_WRITE(e->known, false);
	FB_WRITE(e->waits, false);
	FB_WRITE(e->no_socket, false);
	FB_WRITE(e->dry, 0);
}

void fb_fd_void_all(void)
{
	for (uint32_t i = 0; i < PARTS; i++)
		for (uint32_t n = 0; part[i] && n < PART; n++)
			fb_fd_void(&part[i][n]);
}

void fb_fd_born(int fd)
{
	struct fb_fd *e = fb_fd_get(fd);

	if (e)
		fb_fd_void(e);
}

void fb_fd_forget_all(void)
{
	for (uint32_t i = 0; i < PARTS; i++)
		part[i] = NULL;
}

/* ---- closing ---- */

/* CLOSING is set. All who wait are told. */
static void evict(struct fb_caller *me, struct fb_fd *e)
{
	struct fb_node *n, *list = NULL, **end = &list;

	fb_lock(&e->lock);
	e->gen++;
	while ((n = e->q.head)) {
		fb_waitq_remove(&e->q, n);
		n->result = -EBADF;
		if (!fb_claim(n))
			continue;
		n->next = NULL;
		*end = n;
		end = &n->next;
	}
	fb_unlock(&e->lock);
	fb_wake_all(me->p, list);
}

/* Until no call holds it. Its lock is not the poller's, who runs in our park. */
static void drain(struct fb_caller *me, struct fb_fd *e)
{
	fb_lock(&e->close_lock);
	/* Pairs with the decrement in fb_fd_release. */
	if (FB_ACQUIRE(e->holds) != FB_FD_CLOSING)
		fb_wait_taken(me, &e->close_lock, &e->closer, FB_WHY_IO);
	else
		fb_unlock(&e->close_lock);
}

static int close_held(struct fb_fd *e, int fd)
{
	struct fb_caller me;
	int r;

	fb_caller_enter_now(&me);
	evict(&me, e);
	drain(&me, e);
	fb_caller_leave(&me);
	fb_poller_forget(e, fd);
	/* Who has the number next may do so (fb_fd_born) before it can see this. */
	fb_fd_void(e);
	r = (int)fb_sys(SYS_close, fd);
	/* Pairs with the acquires of fb_fd_try_hold and fb_fd_wait_closed. */
	__atomic_fetch_and(&e->holds, ~FB_FD_CLOSING, __ATOMIC_RELEASE);
	return r;
}

FB_EXPORT int fiber_close(int fd)
{
	struct fb_fd *e = fb_fd_get(fd);
	int r;

	/* Pairs with the looks of who holds it, under the lock. */
	while (e && (__atomic_fetch_or(&e->holds, FB_FD_CLOSING,
				       __ATOMIC_ACQ_REL) & FB_FD_CLOSING))
		wait_closed(e);		/* ours may be the next file there */
	r = e ? close_held(e, fd) : (int)fb_sys(SYS_close, fd);
	return r == -EINTR ? 0 : r;	/* it is closed all the same */
}
