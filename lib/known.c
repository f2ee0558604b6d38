// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * known.c - wait to receive by what was known of a file, and verify it late
 *
 * A receive that waits needs to know three things that nobody tells us of, as a program,
 * or a library in it, may change them by plain calls: whether O_NONBLOCK is set, whether
 * SO_RCVTIMEO is, and whether the number still has the file that epoll watches. To ask
 * takes three system calls, more than all else a request of a server costs. So who
 * finds them known waits at once, and they are asked for once while it does, soon, by
 * whoever looks at timers:
 *
 *	a receive			poller			verifier
 *	seen = told
 *	try: nothing there
 *	known (no calls), park; then,
 *	lock the number			lock the number		lock the number
 *	told is not seen: epoll_ctl,	told++			of those marked, one has
 *	  which looks at the file	take out and claim who	  waited for a while: ask
 *	queue the node, marked		  waits for that	still so: no more marked
 *	list the number			unlock, make ready	not so: known no more; take
 *	unlock							  out and claim the marked
 *								unlock, make ready
 *	made ready: try again. If what was known is void, the next wait asks, and a
 *	time-out counts from the first wait of the call (k->since).
 *
 *   Nothing is lost: epoll tells of each change (EPOLLET). What comes after the try is
 *   told of after it, so either told has changed by the look under the lock, or the
 *   poller finds the node. Nobody takes away what another needs: told only counts, and
 *   who has been woken, of several that wait for the same, makes the kernel look again
 *   for the others (poller.c). What comes to a number that has another file by now is not
 *   told; the verifier's epoll_ctl finds that (ENOENT), which also makes the kernel look
 *   at the file: so whatever should have been told and was not comes then.
 *
 *   So a change behind our back is heeded late, not at once, by a wait that lasts: some
 *   ms, or as long as it takes until all that are listed have had their turn. A wait
 *   that is shorter than that goes by what was. By fiber_close, fiber_accept and the
 *   like we are told: void at once (fb_fd_void).
 *
 * When. TICK_NS after the first number was listed, and as often as long as one is,
 * by a timer in the wheel of who listed it: so it is looked at while processors are
 * idle, busy or blocked (timer.c). A node marked in one tick is due from the second on,
 * so that a busy connection, whose waits are short, is never asked about. Each tick a
 * part of the list has its turn, some numbers at least, and few enough to cost little
 * (about 0.8 us each) at most: with very many it takes longer, but each wait is
 * verified once, and with none left the timer is not set: who sleeps, sleeps.
 *
 *	e->listed	set by who queues a marked node, cleared by the verifier; both
 *			with e locked. In between the number is in the list, or in
 *			the verifier's hand, who looks at the queue after that.
 *	runs		list locked: the timer is armed, or a pass is under way. Who
 *			listed a number reads it afterwards; who ends a pass clears it
 *			only if the list is empty: one of both sees the other.
 *
 * When it is known (e->waits). A receive that asked, of a number that epoll knew, and
 * found that it may wait for ever. It is void when another file is found to have the
 * number, or the verifier finds it changed. (Who asked before a change, and notes it
 * after the verifier has voided that, does no harm: who waits by it is verified again.)
 *
 * Not so: who sends (it waits for room, seldom; and a Unix socket may be told to have
 * room when the one it sends to has none), other waits than receives, fibers of pools
 * (their wheels may end before it is verified), runs with a seed.
 *
 * Waiting first (io.c) needs more, as epoll_ctl does not look: nothing was left by the
 * last receive (it found nothing, or less than there was room for), and nothing has been
 * told since (e->dried is e->told). That a short receive leaves nothing holds of TCP,
 * with no end, error or urgent byte about (e->over).
 */
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>

#include "io.h"
#include "poller.h"

#define TICK_NS		2000000
#define LEAST		16		/* numbers looked at in a tick */
#define MOST		64
#define SHARE		64		/* a tick for one of so many */

static struct {
	fb_lock_t lock;			/* taken with a number's held */
	struct fb_fd *head, *last;	/* lock, as the rest; by .next */
	uint32_t n;			/* read by all, as the next */
	bool runs;
	uint32_t tick;			/* atomic: passes so far */
	struct fb_timer timer;
} v;

uint32_t fb_known_due;			/* v.timer has fired */

void fb_known_reset(void)
{
	for (struct fb_fd *e = v.head; e; e = e->next)
		e->listed = false;
	v.lock = (fb_lock_t){ 0 };
	v.head = v.last = NULL;
	v.n = 0;
	v.runs = false;
	fb_known_due = 0;
}

/* ---- what is known ---- */

static bool is_certain(const struct fb_fd *e)
{
	return FB_READ(e->waits) && FB_READ(e->known);
}

/* Of what we may learn and rely on it. */
static bool may_know(const struct fb_io *k)
{
	struct fb_carrier *c = fb_current();

	return k->e && c && c->group == &fb_rt.group && !fb_rt.seeded &&
	       !(k->events & POLLOUT) && FB_READ(k->e->known) &&
	       fb_io_watches();
}

bool fb_known_holds(const struct fb_io *k)
{
	return k->e && FB_READ(k->e->waits) && may_know(k);
}

void fb_known_learn(struct fb_io *k)
{
	int protocol = 0;
	unsigned int size = sizeof(protocol);

	if (!may_know(k))
		return;
	fb_sys(SYS_getsockopt, k->fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &size);
	FB_WRITE(k->e->tcp, protocol == IPPROTO_TCP);
	FB_WRITE(k->e->waits, true);
}

/* ---- marks ---- */

void *fb_known_mark(uint32_t seen)
{
	return (void *)((uintptr_t)FB_READ(v.tick) << 32 | seen);
}

static uint32_t tick_of(const struct fb_node *n)
{
	return (uint32_t)((uintptr_t)n->value >> 32);
}

bool fb_known_armed(const struct fb_fd *e, const struct fb_node *n)
{
	return is_certain(e) && e->told == (uint32_t)(uintptr_t)n->value &&
	       !(n->events & FB_IO_POLL & ~(uint32_t)e->mask);
}

/* ---- the list ---- */

static void append(struct fb_fd *e)
{
	fb_lock(&v.lock);
	e->next = NULL;
	if (v.last)
		v.last->next = e;
	else
		v.head = e;
	v.last = e;
	FB_WRITE(v.n, v.n + 1);
	fb_unlock(&v.lock);
}

static struct fb_fd *take_first(void)
{
	struct fb_fd *e;

	fb_lock(&v.lock);
	e = v.head;
	if (e) {
		v.head = e->next;
		if (!v.head)
			v.last = NULL;
		FB_WRITE(v.n, v.n - 1);
	}
	fb_unlock(&v.lock);
	return e;
}

void fb_known_list(struct fb_fd *e, int fd)
{
	if (e->listed)
		return;
	e->listed = true;
	e->fd = fd;
	append(e);
}

/* ---- the timer ---- */

static struct fiber *fire(struct fb_timer *t)
{
	(void)t;
	/* Any may look at that. Pairs with the exchange in fb_known_pass. */
	FB_RELEASE(fb_known_due, 1);
	return NULL;
}

static void set_timer(struct fb_processor *p)
{
	v.timer.when = fb_clock() + TICK_NS;
	v.timer.fire = fire;
	if (fb_timer_add(p, &v.timer))
		fb_sched_watch(p);
}

/* There is something in the list, and it was not so that somebody comes. */
static bool begins_to_run(void)
{
	bool begins;

	fb_lock(&v.lock);
	begins = v.head && !v.runs;
	if (begins)
		FB_WRITE(v.runs, true);
	fb_unlock(&v.lock);
	return begins;
}

void fb_known_start(struct fb_processor *p)
{
	if (!FB_READ(v.runs) && begins_to_run())
		set_timer(p);
}

static bool ends_to_run(void)
{
	bool ends;

	fb_lock(&v.lock);
	ends = !v.head;
	if (ends)
		FB_WRITE(v.runs, false);
	fb_unlock(&v.lock);
	return ends;
}

/* ---- verify: a number is locked, and waited for, so not closed by us ---- */

/* Neither O_NONBLOCK nor SO_RCVTIMEO. */
static bool may_wait(int fd)
{
	struct timeval tv = { 0 };
	unsigned int size = sizeof(tv);
	long r = fb_sys(SYS_fcntl, fd, F_GETFL);

	if (r < 0 || (r & O_NONBLOCK))
		return false;
	r = fb_sys(SYS_getsockopt, fd, SOL_SOCKET, SO_RCVTIMEO, &tv, &size);
	return r || !(tv.tv_sec || tv.tv_usec);
}

static bool is_watched(struct fb_fd *e)
{
	return FB_READ(e->known) && !fb_poller_check(e, e->fd);
}

/* Of those that are marked. */
enum { NONE, YOUNG, OLD };

static int oldest(const struct fb_fd *e)
{
	int found = NONE;

	for (struct fb_node *n = e->q.head; n; n = n->next) {
		if (!(n->events & FB_IO_KNOWN))
			continue;
		found = YOUNG;
		if (FB_READ(v.tick) - tick_of(n) > 1)
			return OLD;
	}
	return found;
}

static void unmark(struct fb_fd *e)
{
	for (struct fb_node *n = e->q.head; n; n = n->next)
		n->events &= ~FB_IO_KNOWN;
}

/* Those that are marked out of the queue, and claimed, to *end. The new end. */
static struct fb_node **claim_marked(struct fb_fd *e, struct fb_node **end)
{
	struct fb_node *n, *next;

	for (n = e->q.head; n; n = next) {
		next = n->next;
		if (!(n->events & FB_IO_KNOWN))
			continue;
		fb_waitq_remove(&e->q, n);
		if (!fb_claim(n))
			continue;
		n->next = NULL;
		*end = n;
		end = &n->next;
	}
	return end;
}

/*
 * It does not hold, unless that was for a moment: fiber_connect sets O_NONBLOCK. False:
 * then it is to be verified again.
 */
static bool is_refuted(const struct fb_fd *e, uint8_t connects)
{
	/* Pairs with connect_quickly, as the first look. */
	return !(connects & 1) && FB_ACQUIRE(e->connects) == connects;
}

static struct fb_node **verify_old(struct fb_fd *e, struct fb_node **end)
{
	uint8_t connects = FB_ACQUIRE(e->connects);
	bool watched = is_watched(e);

	if (watched && FB_READ(e->waits) && may_wait(e->fd)) {
		unmark(e);
		return end;
	}
	if (watched && !is_refuted(e, connects)) {
		fb_known_list(e, e->fd);
		return end;
	}
	if (watched)
		FB_WRITE(e->waits, false);
	else
		fb_fd_void(e);
	return claim_marked(e, end);
}

static struct fb_node **verify(struct fb_fd *e, struct fb_node **end)
{
	int age;

	fb_lock(&e->lock);
	e->listed = false;
	age = oldest(e);
	if (age == YOUNG)
		fb_known_list(e, e->fd);
	else if (age == OLD)
		end = verify_old(e, end);
	fb_unlock(&e->lock);
	return end;
}

/* How many of n have their turn. */
static uint32_t share(uint32_t n)
{
	uint32_t some = n / SHARE;

	some = some < LEAST ? LEAST : some > MOST ? MOST : some;
	return some < n ? some : n;
}

bool fb_known_pass(struct fb_processor *p)
{
	struct fb_node *list = NULL, **end = &list;
	struct fb_fd *e;

	/* Then the timer is ours. Pairs with the release in fire. */
	if (!__atomic_exchange_n(&fb_known_due, 0, __ATOMIC_ACQUIRE))
		return false;
	FB_WRITE(v.tick, FB_READ(v.tick) + 1);
	for (uint32_t n = share(FB_READ(v.n)); n; n--) {
		e = take_first();
		if (!e)
			break;
		end = verify(e, end);
	}
	fb_wake_all(p, list);
	if (!ends_to_run())
		set_timer(p);
	return list;
}
