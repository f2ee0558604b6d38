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
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fb.h"
#include "user.h"

static struct fb_user_group *group_of(const struct fb_carrier *c)
{
	return c->group->backend;
}

/* ---- operations ---- */

/*
 * Do ready fibers go before the first that waits? Not before one that is back
 * from a block; with preempted ones they take turns, a quantum each.
 */
static bool queue_first(struct fb_user_group *g, struct fb_user_proc *p)
{
	return !g->returned && (!p->queue_turn ||
				fb_group_now() - p->turn < g->quantum);
}

/*
 * READY|GIVE by owner uc of p: to a spare if one is preferred and it is
 * the run queue's turn, else to the first that waits. True: uc waits now; false: it keeps p,
 * nobody was there.
 */
static bool give_turn(struct fb_user_group *g, struct fb_user_carrier *uc,
		      struct fb_user_proc *p,
		      bool to_spare, struct fb_group_todo *t)
{
	struct fb_user_carrier *to = NULL;

	if (to_spare && queue_first(g, p))
		to = fb_group_pop_spare(g, t);
	if (!to)
		to = fb_group_pop_ready(g);
	if (!to && to_spare)		/* nobody waits: the queue's turn after all */
		to = fb_group_pop_spare(g, t);
	if (!to)
		return false;
	fb_group_release(p, uc);
	fb_group_grant(g, p, to, FB_EVENT_GIVEN);
	t->granted = to;
	fb_group_push_ready(g, uc, false, t);
	return true;
}

/* After avail++. Pairs with the publisher's barrier: see group.c. */
static bool seen_work(struct fb_user_group *g, bool sure)
{
	return sure ? fb_load_sc(&g->hint->work) : fb_group_any_ready(g);
}

/*
 * SPARE|GIVE by owner uc of p. True: uc is a spare now; false: it owns a
 * processor, *event says why: NONE its old one, because work was seen, IDLE
 * maybe another one, that a retake left without a spare.
 */
static bool give_idle(struct fb_user_group *g, struct fb_user_carrier *uc,
		      struct fb_user_proc *p,
		      bool sure, int *event, struct fb_group_todo *t)
{
	struct fb_user_carrier *to = fb_group_pop_ready(g);
	struct fb_user_proc *q = p;

	*event = FB_EVENT_NONE;
	fb_group_release(p, uc);
	if (to) {
		fb_group_grant(g, p, to, FB_EVENT_GIVEN);
		t->granted = to;
		fb_group_push_spare(g, uc);
		return true;
	}
	fb_group_enter_idle(g);
	if (!g->wanted && !seen_work(g, sure)) {
		if (fb_group_any_takeover(g))
			fb_group_kick(g, t);
		fb_group_push_spare(g, uc);
		return true;
	}
	if (g->wanted)
		q = fb_group_pick_idle(g);
	if (q != p)
		*event = FB_EVENT_IDLE;
	fb_group_leave_idle(g);
	fb_group_grant(g, q, uc, *event);
	return false;
}

/* uc owns nothing: an idle processor at once, or it queues. True: it queued. */
static bool queue_up(struct fb_user_group *g, struct fb_user_carrier *uc,
		     bool ready, bool returned, struct fb_group_todo *t)
{
	if (g->info->idle &&
	    (ready || g->wanted || fb_group_any_ready(g))) {
		struct fb_user_proc *p = fb_group_pick_idle(g);

		fb_group_leave_idle(g);
		fb_group_grant(g, p, uc, FB_EVENT_IDLE);
		return false;
	}
	if (ready)
		fb_group_push_ready(g, uc, returned, t);
	else
		fb_group_push_spare(g, uc);
	return true;
}

/* A spare's deadline passed: it goes on as READY. True: it still waits. */
static bool spare_expired(struct fb_user_group *g, struct fb_user_carrier *uc)
{
	struct fb_group_todo t = { 0 };
	bool waits = false;

	fb_group_lock(g);
	if (uc->state == FB_USER_SPARE && fb_load(&uc->word) == FB_WORD_SLEEP) {
		fb_group_unlink_spare(g, uc);
		waits = queue_up(g, uc, true, true, &t);
		fb_group_call_keeper(g, &t);
	}
	fb_group_unlock(g, &t);
	return waits;
}

static int sleep_until_granted(struct fb_user_group *g,
			       struct fb_user_carrier *uc, uint64_t deadline)
{
	if (fb_os_sleep(&uc->word, FB_WORD_SLEEP, deadline) == -ETIMEDOUT &&
	    spare_expired(g, uc))
		fb_os_sleep(&uc->word, FB_WORD_SLEEP, 0);
	/* Pairs with the releases in user_close and fb_group_grant. */
	if (__atomic_load_n(&uc->word, __ATOMIC_ACQUIRE) == FB_WORD_DEAD)
		return -ESHUTDOWN;
	return uc->event;	/* ours since the grant */
}

static int user_wait(struct fb_carrier *c, unsigned int flags,
		     uint64_t deadline)
{
	struct fb_user_group *g = group_of(c);
	struct fb_user_carrier *uc = c->backend;
	bool ready = flags & FB_WAIT_READY, sleeps = false;
	struct fb_group_todo t = { 0 };
	int event = FB_EVENT_NONE;

	fb_group_lock(g);
	if (g->info->dead) {
		fb_group_unlock(g, NULL);
		return -ESHUTDOWN;
	}
	if (uc->state != FB_USER_OWNER) {
		uc->page.returns += ready;
		sleeps = queue_up(g, uc, ready, true, &t);
		event = FB_EVENT_IDLE;
	} else if (flags & FB_WAIT_GIVE) {
		if (ready)
			sleeps = give_turn(g, uc, fb_group_proc_of(g, uc),
					   flags & FB_WAIT_TO_SPARE, &t);
		else
			sleeps = give_idle(g, uc, fb_group_proc_of(g, uc),
					   flags & FB_WAIT_SURE, &event, &t);
	}
	fb_group_unlock(g, &t);
	return sleeps ? sleep_until_granted(g, uc,
					    ready ? 0 : deadline) : event;
}

static void user_leave(struct fb_carrier *c)
{
	struct fb_user_group *g = group_of(c);
	struct fb_user_carrier *uc = c->backend;
	struct fb_group_todo t = { 0 };
	struct fb_user_proc *p;

	fb_group_lock(g);
	p = fb_group_proc_of(g, uc);
	if (p && !g->info->dead) {
		fb_group_release(p, uc);
		fb_group_hand_on(g, p, FB_EVENT_GIVEN, true, &t);
	}
	fb_group_unlock(g, &t);
}

static int user_wake(struct fb_group *group)
{
	struct fb_user_group *g = group->backend;
	struct fb_user_carrier *uc = NULL;
	struct fb_group_todo t = { 0 };

	fb_group_lock(g);
	if (g->info->dead) {
		fb_group_unlock(g, NULL);
		return 0;
	}
	if (!g->info->idle) {
		fb_group_kick(g, &t);
	} else if ((uc = fb_group_pop_spare(g, &t))) {
		struct fb_user_proc *p = fb_group_pick_idle(g);

		fb_group_leave_idle(g);
		fb_group_grant(g, p, uc, FB_EVENT_WAKE);
		t.granted = uc;
	} else {
		g->wanted = true;
		fb_group_call_keeper(g, &t);
	}
	fb_group_unlock(g, &t);
	return uc != NULL;
}

void fb_user_kick(struct fb_group *group)
{
	struct fb_user_group *g = group->backend;
	struct fb_group_todo t = { 0 };

	if (!fb_load(&g->monitor_word))
		return;
	fb_group_lock(g);
	fb_group_kick(g, &t);
	fb_group_unlock(g, &t);
}

static int user_keep(struct fb_group *group)
{
	struct fb_user_group *g = group->backend;

	for (;;) {
		uint32_t word, n;
		bool dead;

		fb_group_lock(g);
		n = fb_group_missing(g);
		dead = g->info->dead;
		word = fb_load(&g->keep_word);	/* stirred without the lock */
		fb_group_unlock(g, NULL);
		if (dead)
			return -ESHUTDOWN;
		if (n)
			return n;
		fb_os_sleep(&g->keep_word, word, 0);
		fb_sigurg_tell();
	}
}

/* ---- attach, detach ---- */

static int user_attach(struct fb_carrier *c)
{
	struct fb_user_group *g = group_of(c);
	struct fb_user_carrier *uc;
	int r;

	fb_group_lock(g);
	uc = g->info->dead ? NULL : g->free;
	if (uc)
		g->free = uc->next;
	else if (!g->info->dead && g->used < g->max_carriers) {
		uc = &g->carrier[g->used];
		/* Pairs with the acquire in look_at_aways. */
		fb_store_rel(&g->used, g->used + 1);
	}
	r = g->info->dead ? -ESHUTDOWN : -ENOSPC;
	if (uc)
		fb_store(&g->info->carriers, g->info->carriers + 1);
	fb_group_unlock(g, NULL);
	if (!uc)
		return r;
	uc->index = uc - g->carrier;
	uc->group = g;
	memset(&uc->page, 0, sizeof(uc->page));
	fb_store(&uc->page.processor, FB_NO_PROCESSOR);
	fb_store(&uc->tid, gettid());
	r = fb_sigurg_attach(uc);
	fb_group_lock(g);
	if (r) {
		uc->next = g->free;
		g->free = uc;
		fb_store(&g->info->carriers, g->info->carriers - 1);
	} else {
		/* Pairs with the acquire in look_at_away. */
		fb_store_rel(&uc->state, FB_USER_AWAY);
		c->backend = uc;
		FB_RELEASE(c->page,
			   &uc->page);	/* Pairs with fiber_get_stats. */
		c->index = uc->index;
	}
	fb_group_unlock(g, NULL);
	return r;
}

static void user_detach(struct fb_carrier *c)
{
	struct fb_user_group *g = group_of(c);
	struct fb_user_carrier *uc = c->backend;
	struct fb_user_proc *p;
	struct fb_group_todo t = { 0 };

	fb_sigurg_detach(uc);
	fb_group_lock(g);
	p = fb_group_proc_of(g, uc);
	if (p) {
		fb_group_release(p, uc);
		fb_group_hand_on(g, p, FB_EVENT_EXIT,
				 fb_load(&p->page.takeover) ||
			fb_group_any_ready(g), &t);
	}
	fb_store(&uc->state, FB_USER_FREE);
	uc->next = g->free;
	g->free = uc;
	fb_store(&g->info->carriers, g->info->carriers - 1);
	fb_group_unlock(g, &t);
	c->backend = NULL;
}

/* ---- setup, close ---- */

static size_t align64(size_t n)
{
	return (n + 63) & ~(size_t)63;
}

/* One mapping: info, hint, processors, carriers; touched as they are used. */
static int map_group(struct fb_user_group *g, struct fb_setup *s)
{
	size_t procs = s->processors * sizeof(struct fb_user_proc);
	size_t ptrs = align64(s->processors * sizeof(struct fb_ppage *));
	size_t size = 128 + procs + ptrs +
		      (size_t)s->max_carriers * sizeof(struct fb_user_carrier);
	char *m = mmap(NULL, size, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (m == MAP_FAILED)
		return -ENOMEM;
	if (g->memory)
		munmap(g->memory, g->memory_size);
	memset(g, 0, sizeof(*g));
	g->memory = m;
	g->memory_size = size;
	g->info = (void *)m;
	g->hint = (void *)(m + 64);
	g->proc = (void *)(m + 128);
	g->ppage = (void *)(m + 128 + procs);
	g->carrier = (void *)(m + 128 + procs + ptrs);
	return 0;
}

/* The memory is a copy; who held the lock does not exist here. */
void fb_user_fork_child(struct fb_group *group)
{
	struct fb_user_group *g = group->backend;

	g->lock = 0;
	g->info->dead = 1;
	g->info->avail = 0;
	g->monitor_word = 0;
}

/* One for each group that there ever was: its memory stays, see user_close. */
static struct fb_user_group *memory_for(const struct fb_group *group)
{
	static struct fb_user_group first, *more[FB_GROUPS];

	if (!group->index)
		return &first;
	if (!more[group->index])
		more[group->index] = aligned_alloc(64, sizeof(first));
	else
		return more[group->index];
	if (more[group->index])
		memset(more[group->index], 0, sizeof(first));
	return more[group->index];
}

static int user_setup(struct fb_group *group, struct fb_setup *s)
{
	struct fb_user_group *g = memory_for(group);
	int r;

	if (!s->processors || !s->max_carriers)
		return -EINVAL;
	r = g ? map_group(g, s) : -ENOMEM;
	if (r)
		return r;
	group->backend = g;
	g->nproc = s->processors;
	g->max_carriers = s->max_carriers;
	g->min_spares = s->min_spares;
	g->quantum = s->quantum_ns ? s->quantum_ns : 10000000;
	g->grace = s->grace_ns;
	g->pid = getpid();
	g->membarrier =
		!fb_os_membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED);
	for (uint32_t i = 0; i < g->nproc; i++) {
		g->ppage[i] = &g->proc[i].page;
		g->proc[i].page.owner = UINT32_MAX;
	}
	g->info->idle = g->nproc;
	fb_group_set_avail(g);
	s->info = g->info;
	s->hint = g->hint;
	s->ppage = g->ppage;
	s->features = FIBER_FEATURE_PREEMPT |
		      (g->membarrier ? FIBER_FEATURE_HANDOFF : 0);
	/* One handler for all of them: the first stays to the end. */
	r = group->index ? 0 : fb_sigurg_setup();
	if (r)
		return r;
	r = fb_monitor_start(g);
	if (r && !group->index)
		fb_sigurg_close();
	return r;
}

/* Sleepers leave with -ESHUTDOWN; the memory stays for them till next setup. */
static void user_close(struct fb_group *group)
{
	struct fb_user_group *g = group->backend;
	uint32_t used;

	/* The monitor, which ends now: deadlock.c must not count it as ours. */
	__atomic_fetch_sub(&fb_rt.helpers, 1, __ATOMIC_RELAXED);
	fb_group_lock(g);
	fb_store(&g->info->dead, 1);
	used = g->used;
	for (uint32_t i = 0; i < used; i++)
		if (g->carrier[i].state == FB_USER_READY ||
		    g->carrier[i].state == FB_USER_SPARE)
			/* Pairs with the acquires in sleep_until_granted. */
			fb_store_rel(&g->carrier[i].word, FB_WORD_DEAD);
	/* Pairs with the acquire in fb_group_sleep. */
	__atomic_fetch_add(&g->keep_word, 1, __ATOMIC_RELEASE);
	fb_group_unlock(g, NULL);
	for (uint32_t i = 0; i < used; i++)
		fb_os_wake(&g->carrier[i].word, 1);
	fb_os_wake(&g->keep_word, INT_MAX);
	fb_monitor_stop(g);
	if (!group->index)
		fb_sigurg_close();
}

static int user_stacks(struct fb_group *g, const struct fb_arena *a)
{
	(void)g, (void)a;
	return 0;
}

static int user_text(struct fb_group *g, uintptr_t start, uintptr_t end)
{
	(void)g, (void)start, (void)end;
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
