// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * group.c - the state of a group among threads: who owns which processor
 *
 * The user backend keeps here what the module keeps in the kernel. One lock
 * guards it; it is held for some instructions (in a retake: and a membarrier),
 * and never around a futex call: what is to be woken is noted in a struct
 * fb_group_todo and done after unlock. Nothing here allocates.
 *
 * Invariants, whenever the lock is free:
 *   1. proc[i].owner == uc  <=>  uc->state == OWNER and uc->page.processor == i
 *      (a granted carrier owns before it is awake: nothing is ever in flight)
 *   2. a processor is idle only if no carrier is READY
 *   3. info->avail == info->idle, plus bit 31 while the monitor sleeps
 *
 * No work is lost (idle):
 *
 *   wait(SPARE|GIVE)                    publisher
 *   owner = NULL; avail++ (xchg)        takeover = READY / hint->work = 1
 *   look at every takeover and hint     full barrier; look at avail
 *   nothing: sleep                      not 0: wake()
 *
 * One of the two sees the other. Publishers into their own ring leave out the
 * barrier; then both can miss, and the monitor heals it (fb_group_heal): it is
 * awake, because to go to sleep it makes up for their barrier by membarrier(2).
 *
 * RETAKE - taking a processor from a carrier that does not take part. The
 * monitor holds the lock; membarrier makes every running thread of the process
 * pass a full barrier, so one column needs none:
 *
 *   monitor (fb_group_retake)           carrier (any runtime entry)
 *   a  processor := NONE (xchg)         1  in_fiber := 0
 *   b  membarrier                          (compiler barrier only)
 *   c  look at in_fiber, no_preempt     2  look at processor
 *
 *   If the barrier of b falls before 1, then 2 comes after it and sees NONE:
 *   the carrier comes to wait(READY), which needs the lock. If it falls after
 *   1, then c sees in_fiber == 0 and the monitor puts the index back. Between
 *   1 and 2 is both: the carrier finds its processor again under the lock, and
 *   wait returns at once. So whoever saw an index at 2 keeps it, and a carrier
 *   whose processor was taken sees NONE at 2. A thread that is not running
 *   passes full barriers when it is scheduled. no_preempt goes as in_fiber.
 *   in_fiber := 1 is a release store and c an acquire load: the next owner sees
 *   all that this one did to the queues.
 *
 *   Without membarrier only carriers inside fiber_blocking_begin/end are
 *   retaken; for those c looks at blocking, and 1 is fiber_blocking_end's
 *   exchange (seq_cst) of that word.
 *
 * Rejected: a signal to the blocked thread (EINTR); a seq_cst store at each
 * runtime entry (16 ns, for a thing that is rare); one futex word for all
 * sleepers (thundering herd, no order).
 */
#include <errno.h>
#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "fb.h"
#include "user.h"

#define TURN_RETURNED	250000	/* ns */

/* ---- system calls; errno is kept ---- */

uint64_t fb_group_now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * 1000000000ULL + ts.tv_nsec;
}

/* ---- the group lock: 0 free, 1 held, 2 held and somebody sleeps ---- */

void fb_group_lock(struct fb_user_group *g)
{
	for (int i = 0; i < 100; i++) {
		uint32_t free = 0;

		/*
		 * Pairs with the release in fb_group_unlock, as the exchange
		 * below.
		 */
		if (__atomic_compare_exchange_n(&g->lock, &free, 1, false,
						__ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
			return;
		fb_cpu_relax();
	}
	while (__atomic_exchange_n(&g->lock, 2, __ATOMIC_ACQUIRE))
		fb_os_sleep(&g->lock, 2, 0);
}

void fb_group_unlock(struct fb_user_group *g, struct fb_group_todo *t)
{
	/* Pairs with the acquires in fb_group_lock. */
	if (__atomic_exchange_n(&g->lock, 0, __ATOMIC_RELEASE) == 2)
		fb_os_wake(&g->lock, 1);
	if (!t)
		return;
	if (t->granted)
		fb_os_wake(&t->granted->word, 1);
	if (t->keeper)
		fb_os_wake(&g->keep_word, 1);
	if (t->monitor)
		fb_os_wake(&g->monitor_word, 1);
}

/* ---- lists and counts; the lock is held ---- */

/* xchg: a full barrier. Pairs with the publisher's, see the head comment. */
void fb_group_set_avail(struct fb_user_group *g)
{
	uint32_t v = g->info->idle | (g->asleep ? FB_AVAIL_MONITOR : 0);

	__atomic_exchange_n(&g->info->avail, v, __ATOMIC_SEQ_CST);
}

/* The monitor must look: if it sleeps, it is woken. */
void fb_group_kick(struct fb_user_group *g, struct fb_group_todo *t)
{
	if (!g->asleep)
		return;
	g->asleep = false;
	fb_group_set_avail(g);
	/* Pairs with the acquire in fb_group_sleep. */
	fb_store_rel(&g->monitor_word, 0);
	t->monitor = true;
}

uint32_t fb_group_missing(struct fb_user_group *g)
{
	uint32_t have = g->info->spares, need = g->min_spares;

	if (g->wanted && !need)
		need = 1;
	return have < need ? need - have : 0;
}

void fb_group_call_keeper(struct fb_user_group *g, struct fb_group_todo *t)
{
	if (!fb_group_missing(g))
		return;
	/* Pairs with the acquire in fb_group_sleep. */
	__atomic_fetch_add(&g->keep_word, 1, __ATOMIC_RELEASE);
	t->keeper = true;
}

/* Somebody waits: the monitor must look. */
void fb_group_push_ready(struct fb_user_group *g, struct fb_user_carrier *uc,
			 bool returned, struct fb_group_todo *t)
{
	fb_store(&uc->state, FB_USER_READY);
	fb_store(&uc->word, FB_WORD_SLEEP);
	uc->returned = returned;
	uc->next = NULL;
	if (g->ready)
		g->ready_tail->next = uc;
	else
		g->ready = uc;
	g->ready_tail = uc;
	fb_store(&g->returned, g->returned + returned);
	fb_store(&g->info->waiting, g->info->waiting + 1);
	fb_store(&g->info->turned, g->info->waiting - g->returned);
	fb_group_kick(g, t);
}

struct fb_user_carrier *fb_group_pop_ready(struct fb_user_group *g)
{
	struct fb_user_carrier *uc = g->ready;

	if (!uc)
		return NULL;
	g->ready = uc->next;
	fb_store(&g->returned, g->returned - uc->returned);
	fb_store(&g->info->waiting, g->info->waiting - 1);
	fb_store(&g->info->turned, g->info->waiting - g->returned);
	return uc;
}

void fb_group_push_spare(struct fb_user_group *g, struct fb_user_carrier *uc)
{
	fb_store(&uc->state, FB_USER_SPARE);
	fb_store(&uc->word, FB_WORD_SLEEP);
	uc->prev = NULL;
	uc->next = g->spares;
	if (g->spares)
		g->spares->prev = uc;
	g->spares = uc;
	fb_store(&g->info->spares, g->info->spares + 1);
}

void fb_group_unlink_spare(struct fb_user_group *g, struct fb_user_carrier *uc)
{
	if (uc->prev)
		uc->prev->next = uc->next;
	else
		g->spares = uc->next;
	if (uc->next)
		uc->next->prev = uc->prev;
	fb_store(&g->info->spares, g->info->spares - 1);
}

struct fb_user_carrier *fb_group_pop_spare(struct fb_user_group *g,
					   struct fb_group_todo *t)
{
	struct fb_user_carrier *uc = g->spares;

	if (uc)
		fb_group_unlink_spare(g, uc);
	fb_group_call_keeper(g, t);
	return uc;
}

/* ---- processors; the lock is held ---- */

static uint32_t index_of(struct fb_user_group *g, struct fb_user_proc *p)
{
	return p - g->proc;
}

struct fb_user_proc *fb_group_proc_of(struct fb_user_group *g,
				      struct fb_user_carrier *uc)
{
	return uc->state == FB_USER_OWNER ? &g->proc[fb_load(&uc->page.processor)]
					  : NULL;
}

static void set_owner(struct fb_user_proc *p, struct fb_user_carrier *uc)
{
	/* Pairs with the acquires of the monitor. */
	fb_store_rel(&p->owner, uc);
	fb_store(&p->page.owner, uc ? uc->index : UINT32_MAX);
	fb_store(&p->grants, p->grants + 1);
}

/* p has no owner and is not counted as idle. */
void fb_group_grant(struct fb_user_group *g, struct fb_user_proc *p,
		    struct fb_user_carrier *uc, int event)
{
	if (fb_load(&uc->state) == FB_USER_SPARE)
		p->queue_turn = true;
	else if (!uc->returned)		/* who is back takes no turn */
		p->queue_turn = false;
	p->turn = fb_group_now();
	fb_store(&p->since, p->turn);
	fb_store(&p->cut, false);
	set_owner(p, uc);
	uc->event = event;
	fb_store(&uc->state, FB_USER_OWNER);
	/*
	 * Event and queues are complete. Pairs with the acquire in
	 * fb_group_sleep.
	 */
	fb_store_rel(&uc->page.processor, index_of(g, p));
	fb_store_rel(&uc->word, FB_WORD_GRANTED);
}

/* Take p from its owner; what becomes of both is the caller's to say. */
void fb_group_release(struct fb_user_proc *p, struct fb_user_carrier *uc)
{
	/* Pairs with fb_enter: whoever sees none comes to wait. */
	fb_store_rel(&uc->page.processor, FB_NO_PROCESSOR);
	fb_store(&uc->state, FB_USER_AWAY);
	set_owner(p, NULL);
}

/* One without an owner is idle now. xchg: see set_avail. */
void fb_group_enter_idle(struct fb_user_group *g)
{
	fb_store(&g->info->idle, g->info->idle + 1);
	fb_group_set_avail(g);
}

/* An idle processor, one with something to do first; info->idle is not 0. */
struct fb_user_proc *fb_group_pick_idle(struct fb_user_group *g)
{
	struct fb_user_proc *best = NULL;

	for (uint32_t i = 0; i < g->nproc; i++) {
		struct fb_user_proc *p = &g->proc[i];

		if (p->owner)
			continue;
		if (fb_load(&p->page.takeover))
			return p;
		if (!best)
			best = p;
	}
	return best;
}

/* One that was idle is about to be granted. */
void fb_group_leave_idle(struct fb_user_group *g)
{
	fb_store(&g->info->idle, g->info->idle - 1);
	g->wanted = false;
	fb_group_set_avail(g);
}

/* Work for anybody? Pairs with its publishers: see the head comment. */
bool fb_group_any_ready(struct fb_user_group *g)
{
	for (uint32_t i = 0; i < g->nproc; i++)
		if (fb_load_sc(&g->proc[i].page.takeover) & FB_TAKEOVER_READY)
			return true;
	return fb_load_sc(&g->hint->work);
}

bool fb_group_any_takeover(struct fb_user_group *g)
{
	for (uint32_t i = 0; i < g->nproc; i++)
		if (fb_load(&g->proc[i].owner) &&
		    fb_load(&g->proc[i].page.takeover))
			return true;
	return false;
}

/*
 * Whose is p, whose owner blocked? A turn is a quantum for the run queue as it
 * is for a preempted carrier: were p given to the first that waits at each
 * block, a queue of fibers that block soon would get one fiber through in a
 * quantum of each hog (100 readers beside 2 hogs entered in 1.7 s). So the
 * queue keeps it until its turn is over; for those that came back from a block
 * it waits less.
 */
static bool queue_turn(struct fb_user_group *g, struct fb_user_proc *p)
{
	uint64_t turn = g->returned ? TURN_RETURNED : g->quantum;

	return (fb_load(&p->page.takeover) & FB_TAKEOVER_READY) &&
	       fb_group_now() - p->turn < turn;
}

/* p has no owner: pass it on, or let it idle and ask for a spare. */
void fb_group_hand_on(struct fb_user_group *g, struct fb_user_proc *p,
		      int event, bool work, struct fb_group_todo *t)
{
	bool queue = work && queue_turn(g, p);
	struct fb_user_carrier *to = queue ? fb_group_pop_spare(g, t) : NULL;
	uint64_t turn = p->turn;

	if (to) {
		fb_group_grant(g, p, to, event);
		p->turn = turn;
		t->granted = to;
		return;
	}
	to = fb_group_pop_ready(g);
	if (!to && work)
		to = fb_group_pop_spare(g, t);
	if (to) {
		fb_group_grant(g, p, to, event);
		fb_store(&p->cut, queue);	/* until there are spares */
		t->granted = to;
		return;
	}
	fb_group_enter_idle(g);
	if (work) {
		g->wanted = true;
		fb_group_call_keeper(g, t);
	}
}

/* ---- for the monitor ---- */

void fb_group_stir_keeper(struct fb_user_group *g)
{
	/* Pairs with the acquire in fb_os_sleep. */
	__atomic_fetch_add(&g->keep_word, 1, __ATOMIC_RELEASE);
	fb_os_wake(&g->keep_word, 1);
}

/*
 * Take p from uc, which blocks, for those that wait and, if it is said so, for work.
 * False: it does not block, any more.
 */
bool fb_group_retake(struct fb_user_group *g, struct fb_user_proc *p,
		     struct fb_user_carrier *uc, uint32_t seq, bool work)
{
	struct fb_cpage *page = &uc->page;
	struct fb_group_todo t = { 0 };
	bool ours = false;

	fb_group_lock(g);
	if (g->info->dead || p->owner != uc || fb_load(&p->page.seq) != seq)
		goto out;
	/* Pairs with fb_enter: steps a and 2 of RETAKE. */
	__atomic_exchange_n(&page->processor, FB_NO_PROCESSOR,
			    __ATOMIC_SEQ_CST);
	if (g->membarrier)
		fb_os_membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED);
	/* Pairs with each runtime entry of the carrier: see RETAKE above. */
	ours = fb_load_acq(&page->in_fiber) == 1 &&
	       !fb_load_acq(&page->no_preempt) &&
	       (g->membarrier || fb_load_sc(&page->blocking));
	if (!ours) {
		fb_store_rel(&page->processor, index_of(g, p));
		goto out;
	}
	page->blocks++;
	page->handoffs++;
	fb_group_release(p, uc);
	fb_group_hand_on(g, p, FB_EVENT_BLOCK, work, &t);
out:
	fb_group_unlock(g, &t);
	return ours;
}

/* Work is there, a processor idles, and no publisher saw it: give it a spare. */
void fb_group_heal(struct fb_user_group *g)
{
	struct fb_user_carrier *uc;
	struct fb_group_todo t = { 0 };

	fb_group_lock(g);
	if (!g->info->dead && g->info->idle && fb_group_any_ready(g) &&
	    (uc = fb_group_pop_spare(g, &t))) {
		struct fb_user_proc *p = fb_group_pick_idle(g);

		fb_group_leave_idle(g);
		fb_group_grant(g, p, uc, FB_EVENT_IDLE);
		t.granted = uc;
	}
	fb_group_unlock(g, &t);
}

/*
 * The barrier that publishers into their own ring leave out: after it either
 * the caller sees their takeover word or they see FB_AVAIL_MONITOR.
 */
void fb_group_set_asleep(struct fb_user_group *g, bool asleep)
{
	fb_group_lock(g);
	g->asleep = asleep;
	fb_group_set_avail(g);
	/* Pairs with the acquire in fb_group_sleep. */
	fb_store_rel(&g->monitor_word, asleep);
	fb_group_unlock(g, NULL);
	if (asleep && g->membarrier)
		fb_os_membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED);
}

