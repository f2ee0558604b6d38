// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * user.c - the user backend: /dev/fiber without a module
 *
 * wait, wake and keep mean what <linux/fiber.h> says; the group's state, its
 * lock and the proofs are in group.c. What is weaker than the module:
 *   - a block is noticed by the monitor (monitor.c), some tens of microseconds
 *     to about 2 ms late, or not at all while nobody could take over;
 *   - a carrier that comes back runs on without a processor until it enters the
 *     runtime or SIGURG (sigurg.c) stops it in preemptible code;
 *   - a SIGURG that hits just as its thread blocks can cause one EINTR in calls
 *     that SA_RESTART does not restart.
 */
#include <errno.h>
#include <limits.h>
#include <linux/membarrier.h>
#include <pthread.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fb.h"
#include "user.h"

#define G (&fb_user_group)

/* ---- operations ---- */

/*
 * Do ready fibers go before the first that waits? Not before one that is back
 * from a block; with preempted ones they take turns, a quantum each.
 */
static bool queue_first(struct fb_user_proc *p)
{
	return !G->returned && (!p->queue_turn ||
				fb_group_now() - p->turn < G->quantum);
}

/*
 * READY|GIVE by owner uc of p: to a spare if one is preferred and it is
 * the run queue's turn, else to the first that waits. True: uc waits now; false: it keeps p,
 * nobody was there.
 */
static bool give_turn(struct fb_user_carrier *uc, struct fb_user_proc *p,
		      bool to_spare, struct fb_group_todo *t)
{
	struct fb_user_carrier *to = NULL;

	if (to_spare && queue_first(p))
		to = fb_group_pop_spare(t);
	if (!to)
		to = fb_group_pop_ready();
	if (!to && to_spare)		/* nobody waits: the queue's turn after all */
		to = fb_group_pop_spare(t);
	if (!to)
		return false;
	fb_group_release(p, uc);
	fb_group_grant(p, to, FB_EVENT_GIVEN);
	t->granted = to;
	fb_group_push_ready(uc, false, t);
	return true;
}

/* After avail++. Pairs with the publisher's barrier: see group.c. */
static bool seen_work(bool sure)
{
	return sure ? fb_load_sc(&G->hint->work) : fb_group_any_ready();
}

/*
 * SPARE|GIVE by owner uc of p. True: uc is a spare now; false: it owns a
 * processor, *event says why: NONE its old one, because work was seen, IDLE
 * maybe another one, that a retake left without a spare.
 */
static bool give_idle(struct fb_user_carrier *uc, struct fb_user_proc *p,
		      bool sure, int *event, struct fb_group_todo *t)
{
	struct fb_user_carrier *to = fb_group_pop_ready();
	struct fb_user_proc *q = p;

	*event = FB_EVENT_NONE;
	fb_group_release(p, uc);
	if (to) {
		fb_group_grant(p, to, FB_EVENT_GIVEN);
		t->granted = to;
		fb_group_push_spare(uc);
		return true;
	}
	fb_group_enter_idle();
	if (!G->wanted && !seen_work(sure)) {
		if (fb_group_any_takeover())
			fb_group_kick(t);
		fb_group_push_spare(uc);
		return true;
	}
	if (G->wanted)
		q = fb_group_pick_idle();
	if (q != p)
		*event = FB_EVENT_IDLE;
	fb_group_leave_idle();
	fb_group_grant(q, uc, *event);
	return false;
}

/* uc owns nothing: an idle processor at once, or it queues. True: it queued. */
static bool queue_up(struct fb_user_carrier *uc, bool ready, bool returned,
		     struct fb_group_todo *t)
{
	if (G->info->idle &&
	    (ready || G->wanted || fb_group_any_ready())) {
		struct fb_user_proc *p = fb_group_pick_idle();

		fb_group_leave_idle();
		fb_group_grant(p, uc, FB_EVENT_IDLE);
		return false;
	}
	if (ready)
		fb_group_push_ready(uc, returned, t);
	else
		fb_group_push_spare(uc);
	return true;
}

/* A spare's deadline passed: it goes on as READY. True: it still waits. */
static bool spare_expired(struct fb_user_carrier *uc)
{
	struct fb_group_todo t = { 0 };
	bool waits = false;

	fb_group_lock();
	if (uc->state == FB_USER_SPARE && fb_load(&uc->word) == FB_WORD_SLEEP) {
		fb_group_unlink_spare(uc);
		waits = queue_up(uc, true, true, &t);
		fb_group_call_keeper(&t);
	}
	fb_group_unlock(&t);
	return waits;
}

static int sleep_until_granted(struct fb_user_carrier *uc, uint64_t deadline)
{
	if (fb_os_sleep(&uc->word, FB_WORD_SLEEP, deadline) == -ETIMEDOUT &&
	    spare_expired(uc))
		fb_os_sleep(&uc->word, FB_WORD_SLEEP, 0);
	/* Pairs with the releases in user_close and fb_group_grant. */
	if (__atomic_load_n(&uc->word, __ATOMIC_ACQUIRE) == FB_WORD_DEAD)
		return -ESHUTDOWN;
	return uc->event;	/* ours since the grant */
}

static int user_wait(struct fb_carrier *c, unsigned int flags, uint64_t deadline)
{
	struct fb_user_carrier *uc = c->backend;
	bool ready = flags & FB_WAIT_READY, sleeps = false;
	struct fb_group_todo t = { 0 };
	int event = FB_EVENT_NONE;

	fb_group_lock();
	if (G->info->dead) {
		fb_group_unlock(NULL);
		return -ESHUTDOWN;
	}
	if (uc->state != FB_USER_OWNER) {
		uc->page.returns += ready;
		sleeps = queue_up(uc, ready, true, &t);
		event = FB_EVENT_IDLE;
	} else if (flags & FB_WAIT_GIVE) {
		if (ready)
			sleeps = give_turn(uc, fb_group_proc_of(uc),
					   flags & FB_WAIT_TO_SPARE, &t);
		else
			sleeps = give_idle(uc, fb_group_proc_of(uc),
					   flags & FB_WAIT_SURE, &event, &t);
	}
	fb_group_unlock(&t);
	return sleeps ? sleep_until_granted(uc, ready ? 0 : deadline) : event;
}

static void user_leave(struct fb_carrier *c)
{
	struct fb_user_carrier *uc = c->backend;
	struct fb_group_todo t = { 0 };
	struct fb_user_proc *p;

	fb_group_lock();
	p = fb_group_proc_of(uc);
	if (p && !G->info->dead) {
		fb_group_release(p, uc);
		fb_group_hand_on(p, FB_EVENT_GIVEN, true, &t);
	}
	fb_group_unlock(&t);
}

static int user_wake(void)
{
	struct fb_user_carrier *uc = NULL;
	struct fb_group_todo t = { 0 };

	fb_group_lock();
	if (G->info->dead) {
		fb_group_unlock(NULL);
		return 0;
	}
	if (!G->info->idle) {
		fb_group_kick(&t);
	} else if ((uc = fb_group_pop_spare(&t))) {
		struct fb_user_proc *p = fb_group_pick_idle();

		fb_group_leave_idle();
		fb_group_grant(p, uc, FB_EVENT_WAKE);
		t.granted = uc;
	} else {
		G->wanted = true;
		fb_group_call_keeper(&t);
	}
	fb_group_unlock(&t);
	return uc != NULL;
}

void fb_user_kick(void)
{
	struct fb_group_todo t = { 0 };

	if (!fb_load(&G->monitor_word))
		return;
	fb_group_lock();
	fb_group_kick(&t);
	fb_group_unlock(&t);
}

static int user_keep(void)
{
	for (;;) {
		uint32_t word, n;
		bool dead;

		fb_group_lock();
		n = fb_group_missing();
		dead = G->info->dead;
		word = fb_load(&G->keep_word);	/* stirred without the lock */
		fb_group_unlock(NULL);
		if (dead)
			return -ESHUTDOWN;
		if (n)
			return n;
		fb_os_sleep(&G->keep_word, word, 0);
		fb_sigurg_tell();
	}
}

/* ---- attach, detach ---- */

static int user_attach(struct fb_carrier *c)
{
	struct fb_user_carrier *uc;
	int r;

	fb_group_lock();
	uc = G->info->dead ? NULL : G->free;
	if (uc)
		G->free = uc->next;
	else if (!G->info->dead && G->used < G->max_carriers) {
		uc = &G->carrier[G->used];
		/* Pairs with the acquire in look_at_aways. */
		fb_store_rel(&G->used, G->used + 1);
	}
	r = G->info->dead ? -ESHUTDOWN : -ENOSPC;
	if (uc)
		fb_store(&G->info->carriers, G->info->carriers + 1);
	fb_group_unlock(NULL);
	if (!uc)
		return r;
	uc->index = uc - G->carrier;
	memset(&uc->page, 0, sizeof(uc->page));
	fb_store(&uc->page.processor, FB_NO_PROCESSOR);
	fb_store(&uc->tid, gettid());
	r = fb_sigurg_attach(uc);
	fb_group_lock();
	if (r) {
		uc->next = G->free;
		G->free = uc;
		fb_store(&G->info->carriers, G->info->carriers - 1);
	} else {
		/* Pairs with the acquire in look_at_away. */
		fb_store_rel(&uc->state, FB_USER_AWAY);
		c->backend = uc;
		FB_RELEASE(c->page, &uc->page);	/* Pairs with fiber_get_stats. */
		c->index = uc->index;
	}
	fb_group_unlock(NULL);
	return r;
}

static void user_detach(struct fb_carrier *c)
{
	struct fb_user_carrier *uc = c->backend;
	struct fb_user_proc *p;
	struct fb_group_todo t = { 0 };

	fb_sigurg_detach(uc);
	fb_group_lock();
	p = fb_group_proc_of(uc);
	if (p) {
		fb_group_release(p, uc);
		fb_group_hand_on(p, FB_EVENT_EXIT, fb_load(&p->page.takeover) ||
			fb_group_any_ready(), &t);
	}
	fb_store(&uc->state, FB_USER_FREE);
	uc->next = G->free;
	G->free = uc;
	fb_store(&G->info->carriers, G->info->carriers - 1);
	fb_group_unlock(&t);
	FB_WRITE(c->page, NULL);
	c->backend = NULL;
}

/* ---- setup, close ---- */

static size_t align64(size_t n)
{
	return (n + 63) & ~(size_t)63;
}

/* One mapping: info, hint, processors, carriers; touched as they are used. */
static int map_group(struct fb_setup *s)
{
	size_t procs = s->processors * sizeof(struct fb_user_proc);
	size_t ptrs = align64(s->processors * sizeof(struct fb_ppage *));
	size_t size = 128 + procs + ptrs +
		      (size_t)s->max_carriers * sizeof(struct fb_user_carrier);
	char *m = mmap(NULL, size, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (m == MAP_FAILED)
		return -ENOMEM;
	if (G->memory)
		munmap(G->memory, G->memory_size);
	memset(G, 0, sizeof(*G));
	G->memory = m;
	G->memory_size = size;
	G->info = (void *)m;
	G->hint = (void *)(m + 64);
	G->proc = (void *)(m + 128);
	G->ppage = (void *)(m + 128 + procs);
	G->carrier = (void *)(m + 128 + procs + ptrs);
	return 0;
}

/* The memory is a copy; who held the lock does not exist here. */
void fb_user_fork_child(void)
{
	if (!G->info)
		return;
	G->lock = 0;
	G->info->dead = 1;
	G->info->avail = 0;
	G->monitor_word = 0;
}

static int at_fork(void)
{
	static bool done;
	int r = done ? 0 : pthread_atfork(NULL, NULL, fb_user_fork_child);

	done |= !r;
	return -r;
}

static int user_setup(struct fb_setup *s)
{
	int r;

	if (!s->processors || !s->max_carriers)
		return -EINVAL;
	r = map_group(s);
	if (r)
		return r;
	G->nproc = s->processors;
	G->max_carriers = s->max_carriers;
	G->min_spares = s->min_spares;
	G->quantum = s->quantum_ns ? s->quantum_ns : 10000000;
	G->grace = s->grace_ns;
	G->pid = getpid();
	G->membarrier =
		!fb_os_membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED);
	for (uint32_t i = 0; i < G->nproc; i++) {
		G->ppage[i] = &G->proc[i].page;
		G->proc[i].page.owner = UINT32_MAX;
	}
	G->info->idle = G->nproc;
	fb_group_set_avail();
	s->info = G->info;
	s->hint = G->hint;
	s->ppage = G->ppage;
	s->features = FIBER_FEATURE_PREEMPT |
		      (G->membarrier ? FIBER_FEATURE_HANDOFF : 0);
	r = at_fork();
	if (!r)
		r = fb_sigurg_setup();
	if (r)
		return r;
	r = fb_monitor_start();
	if (r)
		fb_sigurg_close();
	return r;
}

/* Sleepers leave with -ESHUTDOWN; the memory stays for them till next setup. */
static void user_close(void)
{
	uint32_t used;

	fb_group_lock();
	fb_store(&G->info->dead, 1);
	used = G->used;
	for (uint32_t i = 0; i < used; i++)
		if (G->carrier[i].state == FB_USER_READY ||
		    G->carrier[i].state == FB_USER_SPARE)
			/* Pairs with the acquires in sleep_until_granted. */
			fb_store_rel(&G->carrier[i].word, FB_WORD_DEAD);
	/* Pairs with the acquire in fb_group_sleep. */
	__atomic_fetch_add(&G->keep_word, 1, __ATOMIC_RELEASE);
	fb_group_unlock(NULL);
	for (uint32_t i = 0; i < used; i++)
		fb_os_wake(&G->carrier[i].word, 1);
	fb_os_wake(&G->keep_word, INT_MAX);
	fb_monitor_stop();
	fb_sigurg_close();
}

static int user_stacks(void *base, size_t stride, size_t count, size_t guard)
{
	(void)base, (void)stride, (void)count, (void)guard;
	return 0;
}

static int user_text(uintptr_t start, uintptr_t end)
{
	(void)start, (void)end;
	return 0;
}

const struct fb_backend fb_user = {
	.name = "user",
	.setup = user_setup,
	.attach = user_attach,
	.detach = user_detach,
	.wait = user_wait,
	.leave = user_leave,
	.wake = user_wake,
	.keep = user_keep,
	.stacks = user_stacks,
	.text = user_text,
	.close = user_close,
};
