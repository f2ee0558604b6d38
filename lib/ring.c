// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * ring.c - calls on files through io_uring
 *
 * One ring, of one thread of our own. It alone enters the ring: it submits what
 * fibers ask for, waits, and makes ready whose call is done. The calls themselves are
 * made by the kernel's workers (IOSQE_ASYNC), so whatever one of them waits for, a
 * disk, a FIFO, a page of its buffer, holds up neither a carrier nor the ring.
 *
 *	fiber				thread of the ring
 *	off its stack: queue its node,	take all that is asked for, prepare it
 *	  ask (push), kick if asleep	asleep = 1, full barrier
 *	parked				anything asked for? asleep = 0, submit
 *					  else submit and wait: a completion, a kick
 *					call done: lock it, its node is taken out,
 *	made ready			  claimed; unlock, make ready
 *
 *	push				asleep = 1
 *	full barrier			full barrier
 *	asleep (exchange): kick		look at what is pushed
 *
 *   A kick is a write to an eventfd, which the ring reads again and again.
 *
 * Who owns what. The call, with all it needs, is in the frame of its fiber, and its
 * buffer belongs to it until it is done. So a fiber whose wait ends early (deadline,
 * cancelled) asks for the call to be cancelled, and waits on, now for nothing else,
 * until both the call and the request to cancel it have been answered (call.due is 0,
 * under call.lock). What was done in spite of that is the result.
 *
 * Why carriers do not submit. What a request completes by runs as work of the thread
 * that submitted it. A carrier may be in any system call of the program then: it would
 * be woken from it, and epoll_wait(2), seen on Linux 6.18, fails with EINTR. With
 * DEFER_TASKRUN it is not woken, and the completion waits until it comes back. And
 * when a thread exits, its requests are cancelled. This thread waits for nothing but
 * the ring, and ends when no fiber is left that could wait for it.
 *
 * What it costs. Four switches between threads for a call: measured with 64 fibers, a
 * flush (fdatasync) takes 0.6 to 0.9 of the CPU time of blocking calls on the user
 * backend, and half the time; a call that would not have waited (statx) up to 40 times
 * that of the call. So it is for those who ask for it (FIBER_IO=uring), and reads and
 * writes first take what does not wait (file.c).
 *
 * That is also why sockets and pipes are waited for by epoll in any case: its events
 * belong to no thread, while here each would cost two switches between threads.
 */
#include <string.h>
#include <sys/syscall.h>

#include "ring.h"
#include "sys.h"
#include "wait.h"

bool fb_ring_on;

#ifdef FB_URING
#include <liburing.h>
#include <sys/eventfd.h>

/* In the list of what is asked for. */
struct request {
	struct request *next;
	struct call *call;
	bool cancel;
};

/* One call of a fiber, in its frame. */
struct call {
	const struct fb_call *what;
	struct request begin, end;
	fb_lock_t lock;			/* of the rest */
	uint32_t due;			/* answers of the ring to come */
	int result;
	struct fb_waitq q;		/* its fiber */
	struct fb_node node;
	struct fb_wait k;
};

static struct {
	struct request *asked;		/* atomic: newest first */
	uint32_t asleep;		/* atomic: kick it */
	uint32_t quit;			/* atomic */
	int kick;			/* eventfd; constant */
	pthread_t thread;
	uint32_t started;		/* atomic, futex: 1: see error */
	int error;
	/* its thread's own */
	struct io_uring ring;
	uint64_t kicks;			/* what is read of the eventfd */
	bool listens;			/* that read is under way */
} r;

/* ---- ask: any thread ---- */

static void ask(struct request *q)
{
	uint64_t one = 1;

	q->next = FB_READ(r.asked);
	/* Pairs with the exchange in take_asked. */
	while (!__atomic_compare_exchange_n(&r.asked, &q->next, q, true,
					    __ATOMIC_SEQ_CST,
					    __ATOMIC_RELAXED))
		;
	/* *q may be gone. Full barrier; pairs with the store in rest(). */
	if (__atomic_load_n(&r.asleep, __ATOMIC_SEQ_CST) &&
	    __atomic_exchange_n(&r.asleep, 0, __ATOMIC_SEQ_CST))
		fb_sys(SYS_write, r.kick, &one, sizeof(one));
}

/* ---- the thread of the ring ---- */

/* All that is asked for, oldest first. */
static struct request *take_asked(void)
{
	struct request *q, *next, *list = NULL;

	/* Pairs with the exchange in ask. */
	q = __atomic_exchange_n(&r.asked, NULL, __ATOMIC_ACQUIRE);
	for (; q; q = next) {
		next = q->next;
		q->next = list;
		list = q;
	}
	return list;
}

/* user_data: the call; the request that cancels it has bit 0; 0: the eventfd. */
static void answered(const struct io_uring_cqe *cqe)
{
	struct call *k = (struct call *)(uintptr_t)(cqe->user_data & ~1ull);
	struct fb_node *n = NULL;

	if (!k) {
		r.listens = false;
		return;
	}
	fb_lock(&k->lock);
	if (!(cqe->user_data & 1))
		k->result = cqe->res;
	if (!--k->due)
		n = fb_waitq_take(&k->q);
	fb_unlock(&k->lock);
	if (n)				/* or it has seen that, and *k is gone */
		fb_wake(NULL, n->w);
}

static void reap(void)
{
	struct io_uring_cqe *cqe;
	unsigned int head, n = 0;

	io_uring_for_each_cqe(&r.ring, head, cqe) {
		answered(cqe);
		n++;
	}
	io_uring_cq_advance(&r.ring, n);
}

/* Where too much has completed, nothing is submitted before that is taken. */
static struct io_uring_sqe *get_sqe(void)
{
	struct io_uring_sqe *s;

	while (!(s = io_uring_get_sqe(&r.ring))) {
		if (io_uring_submit(&r.ring) >= 0)
			continue;
		io_uring_get_events(&r.ring);
		reap();
	}
	return s;
}

static void prepare(struct io_uring_sqe *s, const struct fb_call *w)
{
	int fd = (int)w->a;

	switch (w->nr) {
	case SYS_pread64:
		io_uring_prep_read(s, fd, (void *)w->b, (unsigned int)w->c,
				   (uint64_t)w->d);
		break;
	case SYS_pwrite64:
		io_uring_prep_write(s, fd, (void *)w->b, (unsigned int)w->c,
				    (uint64_t)w->d);
		break;
	case SYS_fsync:
		io_uring_prep_fsync(s, fd, 0);
		break;
	case SYS_fdatasync:
		io_uring_prep_fsync(s, fd, IORING_FSYNC_DATASYNC);
		break;
	case SYS_statx:
		io_uring_prep_statx(s, fd, (const char *)w->b, (int)w->c,
				    (unsigned int)w->d, (struct statx *)w->e);
		break;
	case SYS_openat:
		io_uring_prep_openat(s, fd, (const char *)w->b, (int)w->c,
				     (mode_t)w->d);
		break;
	default:
		fb_die("system call %ld by io_uring", w->nr);
	}
	io_uring_sqe_set_flags(s, IOSQE_ASYNC);
}

static void prepare_asked(void)
{
	struct request *q, *next;
	struct io_uring_sqe *s;

	for (q = take_asked(); q; q = next) {
		next = q->next;
		s = get_sqe();
		if (q->cancel)
			io_uring_prep_cancel(s, q->call, 0);
		else
			prepare(s, q->call->what);
		io_uring_sqe_set_data64(s, (uintptr_t)q->call | q->cancel);
	}
	if (!r.listens) {
		s = get_sqe();
		io_uring_prep_read(s, r.kick, &r.kicks, sizeof(r.kicks), 0);
		io_uring_sqe_set_data64(s, 0);
		r.listens = true;
	}
}

/* Submit, and wait for something, unless there is more to submit. */
static void rest(void)
{
	int e;

	/* Full barrier; pairs with ask(). */
	__atomic_store_n(&r.asleep, 1, __ATOMIC_SEQ_CST);
	if (__atomic_load_n(&r.asked, __ATOMIC_SEQ_CST) || FB_READ(r.quit)) {
		FB_WRITE(r.asleep, 0);
		e = io_uring_submit(&r.ring);
	} else {
		e = io_uring_submit_and_wait(&r.ring, 1);
		FB_WRITE(r.asleep, 0);
	}
	/* What passes: a signal, no memory, too much completed at once. */
	if (e < 0 && e != -EINTR && e != -EAGAIN && e != -EBUSY && e != -ENOMEM)
		fb_die("io_uring_enter: %s", strerror(-e));
}

static void go_round(void)
{
	/* No fiber is left when we are to quit. Pairs with fb_ring_stop. */
	while (!FB_ACQUIRE(r.quit)) {
		prepare_asked();
		rest();
		reap();
	}
}

/* ---- its life ---- */

static void *ring_main(void *arg)
{
	pthread_setname_np(pthread_self(), "fiber-ring");
	r.error = fb_ring_make(&r.ring, r.kick);
	/* Pairs with the acquire in fb_os_sleep. */
	FB_RELEASE(r.started, 1);
	fb_os_wake(&r.started, 1);
	if (r.error)
		return NULL;
	go_round();
	io_uring_queue_exit(&r.ring);
	return arg;
}

static int start_thread(void)
{
	int e = fb_os_thread(&r.thread, ring_main, NULL);

	if (e)
		return e;
	fb_os_sleep(&r.started, 0, 0);
	if (r.error)
		pthread_join(r.thread, NULL);
	return r.error;
}

int fb_ring_start(void)
{
	int e;

	memset(&r, 0, sizeof(r));
	r.kick = fb_os_high((int)fb_sys(SYS_eventfd2, 0, EFD_CLOEXEC));
	if (r.kick < 0)
		return r.kick;
	e = start_thread();
	if (e) {
		fb_sys(SYS_close, r.kick);
		return e;
	}
	__atomic_fetch_add(&fb_rt.helpers, 1, __ATOMIC_RELAXED);
	fb_ring_on = true;
	return 0;
}

/* No fiber is left. */
void fb_ring_stop(void)
{
	uint64_t one = 1;

	if (!fb_ring_on)
		return;
	/* Pairs with the look in go_round. */
	FB_RELEASE(r.quit, 1);
	fb_sys(SYS_write, r.kick, &one, sizeof(one));
	pthread_join(r.thread, NULL);
	fb_sys(SYS_close, r.kick);
	__atomic_fetch_sub(&fb_rt.helpers, 1, __ATOMIC_RELAXED);
	fb_ring_on = false;
}

/* ---- a call ---- */

/* fb_wait.unlock: off the waiter's stack. */
static void begin(struct fb_processor *p, void *object)
{
	struct call *k = object;

	(void)p;
	fb_lock(&k->lock);
	k->node.w = k->k.w;
	k->node.claim = k->k.claim;
	fb_waitq_push(&k->q, &k->node);
	fb_unlock(&k->lock);
	ask(&k->begin);
}

/* Its wait has ended. False: before the call. */
static bool leave(struct call *k)
{
	bool done;

	fb_lock(&k->lock);
	if (k->node.queued)
		fb_waitq_remove(&k->q, &k->node);
	done = !k->due;
	if (!done)
		k->due++;		/* for the answer to k->end */
	fb_unlock(&k->lock);
	return done;
}

/* Until nothing of it is under way. */
static void cancel(struct fb_caller *me, struct call *k)
{
	ask(&k->end);
	fb_lock(&k->lock);
	if (k->due)
		fb_wait_taken(me, &k->lock, &k->q, FB_WHY_IO);
	else
		fb_unlock(&k->lock);
}

/* The kernel's own ERESTART* get through here. */
static bool is_interrupted(int r)
{
	return r == -EINTR || r == -ECANCELED || (r <= -512 && r >= -516);
}

long fb_ring_call(const struct fb_call *what, uint64_t deadline)
{
	struct call k = { .what = what, .due = 1 };
	struct fb_caller me;
	unsigned int state;
	bool done;

	k.begin.call = k.end.call = &k;
	k.end.cancel = true;
	fb_caller_enter(&me);
	fb_wait_begin(&me, &k.k, deadline, true);
	k.k.unlock = begin;
	k.k.object = &k;
	state = fb_wait(&me, &k.k, FB_WHY_IO);
	done = leave(&k);
	if (!done)
		cancel(&me, &k);
	fb_caller_leave(&me);
	if (!is_interrupted(k.result))
		return k.result;
	return done ? -EINTR : fb_wait_error(state);
}

/* ---- others ---- */

/* The ring is the parent's, and its thread too. */
void fb_ring_fork_child(void)
{
	fb_ring_on = false;
}

#else /* built where liburing was not */

int fb_ring_start(void)
{
	return -ENOSYS;
}

long fb_ring_call(const struct fb_call *what, uint64_t deadline)
{
	(void)what;
	(void)deadline;
	return -ENOSYS;
}

void fb_ring_stop(void)
{
}

void fb_ring_fork_child(void)
{
}
#endif
