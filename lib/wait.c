// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* wait.c - fibers and plain threads wait; the protocol stands in wait.h */
#include <linux/membarrier.h>
#include <sched.h>

#include "contention.h"
#include "pick.h"
#include "task.h"

/* ---- the end of solo ---- */

static fb_lock_t solo_lock;		/* plain threads only */
static uint32_t plain_seen;		/* atomic: one has used an object */

/* No runtime runs: the only call that sets fb_rt.solo. */
void fb_wait_init(void)
{
	fb_rt.solo = 0;
#ifdef __SANITIZE_THREAD__
	return;			/* it knows locks, not processors */
#endif
	if (fb_rt.group.nproc > 1 ||
	    fb_os_membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED))
		return;
	/* Pairs with the exchange in solo_end(): one sees the other's word. */
	__atomic_exchange_n(&fb_rt.solo, FB_SOLO, __ATOMIC_SEQ_CST);
	if (__atomic_load_n(&plain_seen, __ATOMIC_SEQ_CST))
		FB_WRITE(fb_rt.solo, 0);
}

void fb_solo_stop(void)
{
	fb_lock(&solo_lock);
	if (FB_READ(fb_rt.solo)) {
		FB_WRITE(fb_rt.solo, FB_SOLO_ENDS);
		/* Pairs with the barrier of fb_solo_enter(). */
		fb_os_membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED);
		/* Pairs with the release in fb_solo_leave(). */
		while (FB_ACQUIRE(fb_rt.proc[0].solo))
			sched_yield();
		/* Pairs with the looks at it here and in mutex.c: all is done. */
		FB_RELEASE(fb_rt.solo, 0);
	}
	fb_unlock(&solo_lock);
}

/* Before a plain thread's first lock. */
static void solo_end(void)
{
	/* Pairs with the exchange of solo above: one sees the other's word. */
	if (!FB_READ(plain_seen))
		__atomic_exchange_n(&plain_seen, 1, __ATOMIC_SEQ_CST);
	if (__atomic_load_n(&fb_rt.solo, __ATOMIC_SEQ_CST))
		fb_solo_stop();
}

/* ---- callers ---- */

void fb_plain_visit(struct fb_caller *me)
{
	me->p = NULL;
	me->visiting = fb_visit();
}

void fb_plain_enter(struct fb_caller *me)
{
	fb_plain_visit(me);
	solo_end();
}

void fb_plain_leave(struct fb_caller *me)
{
	if (me->visiting)
		fb_visit_end();
}

bool fb_caller_visit(struct fb_caller *me)
{
	me->c = fb_current();
	if (!me->c) {
		fb_plain_visit(me);
		return me->visiting;
	}
	me->p = fb_enter(me->c);
	return true;
}

/* A preemption was put off: now is the time. With a seed, always. */
struct fb_carrier *fb_caller_pending(struct fb_carrier *c)
{
	if (fb_rt.seeded)
		fb_seed_point(c);
	else if (!c->page->no_preempt)	/* else fiber_no_preempt_end() does it */
		fiber_yield();
	return fb_current();
}

/* ---- waiting ---- */

void fb_wait_begin(struct fb_caller *me, struct fb_wait *k, uint64_t deadline,
		   bool many)
{
	struct fiber *f;
	uint64_t ticket;

	k->deadline = deadline;
	k->unlock = NULL;
	k->claim = 0;
	if (!me->c) {
		k->w = &k->plain;
		*k->w = (struct fb_waiter){ .kind = FB_THREAD |
			(deadline == FB_NEVER ? FB_COUNTED : 0) };
		if (many || deadline != FB_NEVER)
			k->claim = FB_W_ONE | FB_W_WAITING;
		return;
	}
	f = me->c->cur;
	k->w = &f->w;
	if (fb_likely(!many && deadline == FB_NEVER &&
		      !(f->flags & FB_F_CANCELS)))
		return;
	ticket = (FB_READ(f->w.word) & ~(uint64_t)(FB_W_ONE - 1)) + FB_W_ONE;
	k->claim = ticket | FB_W_WAITING |
		   (f->flags & FB_F_CANCELS ? FB_W_CANCELS : 0);
}

/* Under the timer's lock: it may claim, and what it returns is made ready. */
static struct fiber *time_out(struct fb_timer *t)
{
	struct fb_wait *k = (struct fb_wait *)
		((char *)t - offsetof(struct fb_wait, timer));

	return fb_claim_word(k->w, k->claim, FB_W_TIMEOUT) ?
	       fb_waiter_fiber(k->w) : NULL;
}

/*
 * Off the waiter's stack. From the word on it may be claimed and run elsewhere; its
 * frame stays until we have settled, or, if it is sole, until we unlock.
 */
static void wait_commit(struct fb_carrier *c, void *arg)
{
	struct fb_wait *k = arg;
	struct fb_processor *p = c->proc;
	void (*unlock)(struct fb_processor *p, void *object) = k->unlock;
	void *object = k->object;
	uint64_t claim = k->claim;
	struct fiber *f = fb_waiter_fiber(k->w);
	bool timed = k->deadline != FB_NEVER, cancelled = false, watch = false;

	if (claim) {
		/* Pairs with fb_claim_word. */
		FB_RELEASE(f->w.word, claim);
		if (timed)
			watch = fb_timer_add(p, &k->timer);
		if (claim & FB_W_CANCELS) {
			/* Pairs with the fence in fb_wait_cancel. */
			__atomic_thread_fence(__ATOMIC_SEQ_CST);
			cancelled = FB_READ(f->cancel) &&
				    fb_claim_word(&f->w, claim, FB_W_CANCEL);
		}
	}
	if (unlock)
		unlock(p, object);
	if (claim)			/* pairs with settle() */
		FB_RELEASE(f->w.woken, 1);
	if (watch)
		fb_sched_watch(p);
	if (cancelled)
		fb_sched_ready(p, f);
}

/* wait_commit() looks at our frame no more; it is short, but may be put off. */
static void settle(struct fiber *f)
{
	int n = 0;

	/* Pairs with the release in wait_commit. */
	while (!FB_ACQUIRE(f->w.woken)) {
		if (++n % 128)
			fb_cpu_relax();
		else
			sched_yield();
	}
}

static unsigned int wait_thread(struct fb_wait *k)
{
	struct fb_waiter *w = k->w;

	/* Before somebody can find us: see deadlock.c. */
	if (w->kind & FB_COUNTED)
		__atomic_fetch_add(&fb_rt.plain_waits, 1, __ATOMIC_RELAXED);
	/* Pairs with fb_claim_word. */
	FB_RELEASE(w->word, k->claim);
	if (k->unlock)
		k->unlock(NULL, k->object);
	if (fb_os_sleep(&w->woken, 0, k->deadline == FB_NEVER ? 0 : k->deadline)
	    == -ETIMEDOUT) {
		if (fb_claim_word(w, k->claim, FB_W_TIMEOUT))
			return FB_W_TIMEOUT;
		fb_os_sleep(&w->woken, 0, 0);	/* a claimer is on its way */
	}
	return FB_W_OBJECT;
}

static unsigned int wait_counted(struct fb_wait *k, unsigned int why)
{
	uint64_t since = fb_contention_thread(why);
	unsigned int state = wait_thread(k);

	if (since)
		fb_contention_thread_waited(since, why);
	return state;
}

unsigned int fb_wait(struct fb_caller *me, struct fb_wait *k, unsigned int why)
{
	struct fiber *f;
	unsigned int state;

	if (!me->c)
		return wait_counted(k, why);
	f = me->c->cur;
	FB_WRITE(f->why, (uint8_t)why);
	f->w.woken = 0;
	k->timer.when = k->deadline;
	k->timer.fire = time_out;
	fb_sched_park(me->c, me->p, wait_commit, k);
	me->c = fb_current();
	me->p = fb_enter(me->c);
	if (!k->claim)
		return FB_W_OBJECT;
	settle(f);
	/* Pairs with fb_claim_word. */
	state = FB_ACQUIRE(f->w.word) & FB_W_STATE;
	if (k->deadline != FB_NEVER && state != FB_W_TIMEOUT)
		fb_timer_del(&k->timer);
	return state;
}

static void unlock_plainly(struct fb_processor *p, void *lock)
{
	(void)p;
	fb_unlock(lock);
}

void fb_wait_taken(struct fb_caller *me, fb_lock_t *lock, struct fb_waitq *q,
		   unsigned int why)
{
	struct fb_wait k;
	struct fb_node n;

	fb_wait_begin(me, &k, FB_NEVER, false);
	k.claim = 0;			/* sole, cancellable or not */
	k.unlock = unlock_plainly;
	k.object = lock;
	n.w = k.w;
	n.claim = 0;
	fb_waitq_push(q, &n);
	fb_wait(me, &k, why);
}

/* For fb_park_sole. */
void fb_unlock_off_stack(struct fb_carrier *c, void *lock)
{
	(void)c;
	fb_unlock(lock);
}

/* ---- waking ---- */

static void wake_thread(struct fb_waiter *w)
{
	uint32_t *word = &w->woken;

	if (w->kind & FB_COUNTED)
		__atomic_fetch_sub(&fb_rt.plain_waits, 1, __ATOMIC_RELAXED);
	/* Pairs with the acquire in fb_os_sleep. */
	FB_RELEASE(*word, 1);
	/* *w may be gone: a wake of nobody's word does no harm. */
	fb_os_wake(word, 1);
}

void fb_wake(struct fb_processor *p, struct fb_waiter *w)
{
	uint32_t kind = w->kind & FB_KIND;

	if (kind == FB_THREAD)
		wake_thread(w);
	else if (fb_unlikely(!p && FB_READ(fb_rt.state) == FB_FORKED))
		;	/* the child of a fork has what they look like, not them */
	else if (kind == FB_TASK)
		fb_task_ready(p, w);
	else if (p)
		fb_sched_ready(p, fb_waiter_fiber(w));
	else
		fb_sched_ready_global(fb_waiter_fiber(w));
}

void fb_wake_all(struct fb_processor *p, struct fb_node *list)
{
	struct fb_node *n, *next;

	for (n = list; n; n = next) {
		next = n->next;		/* *n is gone once its waiter runs */
		if ((n->w->kind & FB_KIND) == FB_FIBER && p)
			fb_sched_ready_last(p, fb_waiter_fiber(n->w));
		else
			fb_wake(p, n->w);
	}
}

bool fb_wait_cancel(struct fiber *f)
{
	uint64_t word;

	/* f->cancel is set. Pairs with the fence in wait_commit. */
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	word = FB_ACQUIRE(f->w.word);
	return (word & FB_W_STATE) == FB_W_WAITING && (word & FB_W_CANCELS) &&
	       fb_claim_word(&f->w, word, FB_W_CANCEL);
}
