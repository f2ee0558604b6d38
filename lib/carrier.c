// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * carrier.c - the threads: carriers, and the keeper who makes them
 *
 * Creating a thread takes long and takes locks, so no carrier ever does it.
 * The keeper, a plain thread, sleeps in backend->keep until spares are
 * missing and makes them before they are needed, up to the cap.
 *
 * A carrier's life: attach, fb_sched_loop, detach. It ends only when the
 * runtime does: fb_carrier_stop wakes one spare after the other, each finds the
 * runtime stopping, leaves its processor to the next, and goes. By then no
 * fiber is alive, so none of them can be blocked anywhere else.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "poller.h"

#define THREAD_STACK	(256 * 1024)
#define RETRY_NS	10000000
#define POLL_NS		200000
#define BURST_NS	20000000
#define BATCH_MAX	64
#define FEW_CARRIERS	64		/* to look through for a hint */
#define CPU_BYTES	1024		/* of a set: the kernel's largest is so */

/* upcall.S */
_Static_assert(offsetof(struct fb_carrier, page) == 0, "C_PAGE");
_Static_assert(offsetof(struct fb_carrier, root.sp) == 8, "C_ROOT_SP");
_Static_assert(offsetof(struct fb_carrier, xsave) == 32 + FB_SAN_SIZE,
	       "C_XSAVE");
_Static_assert(offsetof(struct fb_carrier, errno_loc) == 56 + FB_SAN_SIZE,
	       "C_ERRNO_LOC");
_Static_assert(offsetof(struct fb_carrier, cur) == 40 + FB_SAN_SIZE, "C_CUR");
_Static_assert(offsetof(struct fb_carrier, returned) == 120 + FB_SAN_SIZE,
	       "C_RETURNED");
_Static_assert(offsetof(struct fb_carrier, returned_as) == 136 + FB_SAN_SIZE,
	       "C_RETURNED_AS");
_Static_assert(offsetof(struct fb_carrier, fd) == 184 + FB_SAN_SIZE, "C_FD");
_Static_assert(offsetof(struct fb_cpage, in_fiber) == 0, "P_IN_FIBER");
_Static_assert(offsetof(struct fb_cpage, depth) == 16, "P_DEPTH");
_Static_assert(offsetof(struct fb_cpage, slot) == 64, "P_SLOT");
_Static_assert(offsetof(struct fiber, ctx) == 0, "the ring stores &ctx");
_Static_assert(offsetof(struct fiber, fn) == 40 + FB_SAN_SIZE, "F_FN");
_Static_assert(offsetof(struct fiber, arg) == 48 + FB_SAN_SIZE, "F_ARG");

__thread struct fb_carrier *fb_self;

static void nap(long ns)
{
	struct timespec ts = { .tv_nsec = ns };

	nanosleep(&ts, NULL);
}

/* ---- one carrier ---- */

/*
 * A carrier's struct is in fb_rt.carriers for good, where others look at it: when its
 * thread has ended it waits, without a page or a fiber, for the next of any group.
 */
static fb_lock_t list_lock;		/* of what is added to the list, and of the dead */
static struct fb_carrier *dead;

/* A fiber that makes a pool comes here, too: it is to keep its processor. */
static struct fb_carrier *lock(void)
{
	struct fb_carrier *me = fb_current();

	if (me)
		fb_enter(me);
	fb_lock(&list_lock);
	return me;
}

static void unlock(struct fb_carrier *me)
{
	fb_unlock(&list_lock);
	if (me)
		fb_leave(me);
}

/* All but what is for good. */
static void carrier_init(struct fb_carrier *c, struct fb_group *g)
{
	void *xsave = c->xsave;

	memset(c, 0, offsetof(struct fb_carrier, next));
	memset(&c->next + 1, 0, sizeof(*c) - offsetof(struct fb_carrier, next) -
				sizeof(c->next));
	c->xsave = xsave;
	c->group = g;
	c->first = g->proc->index;
	c->proc_index = FB_NO_PROCESSOR - 1;	/* none of ours */
}

static void carrier_free(struct fb_carrier *c)
{
	free(c->xsave);
	free(c);
}

static struct fb_carrier *carrier_new(struct fb_group *g)
{
	struct fb_carrier *c = aligned_alloc(FB_LINE, sizeof(*c));

	if (!c)
		return NULL;
	memset(c, 0, sizeof(*c));
	carrier_init(c, g);
	if (!fb_rt.xsave_size)
		return c;
	c->xsave = aligned_alloc(64, fb_rt.xsave_size);
	if (!c->xsave) {
		free(c);
		return NULL;
	}
	memset(c->xsave, 0, fb_rt.xsave_size);
	return c;
}

static struct fb_carrier *carrier_get(struct fb_group *g, bool *again)
{
	struct fb_carrier *me = lock(), *c = dead;

	if (c)
		dead = c->mate;
	unlock(me);
	*again = c != NULL;
	if (!c)
		return carrier_new(g);
	carrier_init(c, g);
	return c;
}

static void carrier_bury(struct fb_carrier *c)
{
	struct fb_carrier *me = lock();

	c->group = NULL;
	c->mate = dead;
	dead = c;
	unlock(me);
}

static void carrier_list(struct fb_carrier *c)
{
	struct fb_carrier *me = lock();

	c->next = fb_rt.carriers;
	FB_RELEASE(fb_rt.carriers, c);	/* Pairs with fiber_get_stats. */
	FB_WRITE(fb_rt.ncarriers, fb_rt.ncarriers + 1);
	unlock(me);
}

/* Runs at the end of a carrier's thread, if that did not come from its loop. */
static void ends_by_itself(void *arg)
{
	struct fb_carrier *c = arg;
	struct fiber *f = c->cur;

	fb_die("fiber %llu \"%s\" has called pthread_exit: it ends by fiber_exit, or by returning",
	       f ? (unsigned long long)f->id : 0, f ? f->name : "");
}

static pthread_key_t end_key;		/* for good, however often we start */
static int end_key_error;

static void make_key(void)
{
	end_key_error = pthread_key_create(&end_key, ends_by_itself);
}

/* Without it the end of a thread would take a processor along, in silence. */
static void mind_the_end(struct fb_carrier *c)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, make_key);
	if (!end_key_error)
		pthread_setspecific(end_key, c);
}

int fb_carrier_keeper(void)
{
	return FB_READ(fb_rt.group.keeper_tid);
}

/* Of pools: not where the fiber is bound to, or the thread, that makes it. */
static void use_all_cpus(const struct fb_group *g)
{
	unsigned char set[CPU_BYTES];

	if (g->index &&
	    syscall(SYS_sched_getaffinity, fb_carrier_keeper(), sizeof(set),
		    set) > 0)
		syscall(SYS_sched_setaffinity, 0, sizeof(set), set);
}

static void *carrier_main(void *arg)
{
	struct fb_carrier *c = arg;
	struct fb_group *g = c->group;
	int r;

	pthread_sigmask(SIG_SETMASK, &fb_rt.sigmask, NULL);
	pthread_setname_np(pthread_self(), "fiber-carrier");
	use_all_cpus(g);
	fb_thread_init(c);
	c->tid = (int)syscall(SYS_gettid);
	r = fb_rt.backend->attach(c);
	if (!r)
		fb_guard_attach(c);
	if (!r && fb_rt.seeded)
		fb_seed_attach(c);
	/* Attached. Pairs with the acquire of who made it. */
	__atomic_fetch_add(&g->ready, 1, __ATOMIC_RELEASE);
	if (r) {
		fb_say("a thread could not become a carrier: %s", strerror(-r));
	} else {
		/* Who looks for what runs must find us. Pairs with carrier_make. */
		fb_os_sleep(&c->listed, 0, 0);
		fb_self = c;
		mind_the_end(c);
		fb_sched_loop(c);
		mind_the_end(NULL);
		fb_self = NULL;
		fb_guard_detach(c);
		fb_rt.backend->detach(c);
		/* It ends: deadlock.c must not take it for ours. */
		FB_WRITE(c->page, NULL);
	}
	/* Our last touch. Pairs with the acquire in end_carriers. */
	__atomic_fetch_sub(&g->ncarriers, 1, __ATOMIC_RELEASE);
	return NULL;
}

static int carrier_make(struct fb_group *g)
{
	bool again;
	struct fb_carrier *c = carrier_get(g, &again);
	pthread_attr_t attr;
	int r;

	if (!c)
		return -ENOMEM;
	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, THREAD_STACK);
	__atomic_fetch_add(&g->ncarriers, 1, __ATOMIC_RELAXED);
	r = pthread_create(&c->thread, &attr, carrier_main, c);
	pthread_attr_destroy(&attr);
	if (r) {
		__atomic_fetch_sub(&g->ncarriers, 1, __ATOMIC_RELAXED);
		if (again)
			carrier_bury(c);
		else
			carrier_free(c);
	} else {
		if (!again)
			carrier_list(c);
		c->mate = g->mine;
		g->mine = c;
		FB_RELEASE(c->listed, 1);	/* Pairs with fb_os_sleep. */
		fb_os_wake(&c->listed, 1);
		g->made++;
	}
	return -r;
}

/* ---- the keeper ---- */

static void make_some(struct fb_group *g, int n)
{
	int r = 0;

	for (; n > 0 && !r; n--) {
		if (FB_READ(g->ncarriers) >= g->max_carriers) {
			if (!g->cap_said)
				fb_say("%u threads for fibers are the cap (max_carriers): more blocked fibers have to wait",
				       g->max_carriers);
			g->cap_said = true;
			r = -EAGAIN;
		} else {
			r = carrier_make(g);
			if (r && !g->error_said)
				fb_say("cannot create a thread: %s",
				       strerror(-r));
			g->error_said |= r != 0;
		}
	}
	if (r)
		nap(RETRY_NS);
	/*
	 * They are no spares yet; do not make them twice. Pairs with the release
	 * in carrier_main.
	 */
	while (FB_ACQUIRE(g->ready) != g->made)
		nap(POLL_NS);
}

/*
 * A burst of blocks uses up spares faster than one thread makes them by twos:
 * while the demand goes on, each batch is twice the one before.
 */
static int batch(struct fb_group *g, int missing)
{
	uint64_t now = fiber_now();

	g->batch = now - g->made_at < BURST_NS ? g->batch * 2 : missing;
	if (g->batch > BATCH_MAX)
		g->batch = BATCH_MAX;
	return g->batch > missing ? g->batch : missing;
}

static void *keeper_main(void *arg)
{
	struct fb_group *g = arg;
	int n;

	use_all_cpus(g);
	FB_WRITE(g->keeper_tid, (int)syscall(SYS_gettid));
	pthread_setname_np(pthread_self(), "fiber-keeper");
	while (!fb_group_ends(g)) {
		n = fb_rt.backend->keep(g);
		if (n < 0 && n != -EINTR)
			break;
		if (n > 0 && !fb_group_ends(g)) {
			make_some(g, batch(g, n));
			g->made_at = fiber_now();
		}
	}
	return NULL;
}

bool fb_carrier_runs(uintptr_t f)
{
#ifndef FB_TSAN			/* c->cur is its carrier's alone */
	struct fb_carrier *c;

	if (FB_READ(fb_rt.ncarriers) > FEW_CARRIERS)
		return true;
	/* Pairs with the release of the keeper, who adds in front. */
	for (c = FB_ACQUIRE(fb_rt.carriers); c; c = c->next)
		if ((uintptr_t)FB_READ(c->cur) == f)
			return true;
#endif
	return false;
}

/* ---- start and stop ---- */

/* Their threads have ended, or are about to. */
static void join_carriers(struct fb_group *g)
{
	struct fb_carrier *c;

	while ((c = g->mine)) {
		g->mine = c->mate;
		pthread_join(c->thread, NULL);
		carrier_bury(c);
	}
}

static void free_carriers(void)
{
	struct fb_carrier *c, *next;

	for (c = fb_rt.carriers; c; c = next) {
		next = c->next;
		carrier_free(c);
	}
	fb_rt.carriers = NULL;
	fb_rt.ncarriers = 0;
	dead = NULL;
}

static void end_carriers(struct fb_group *g)
{
	/* Pairs with the looks at the state of plain threads. */
	if (!g->index)
		FB_RELEASE(fb_rt.state, FB_STOPPING);
	FB_WRITE(g->ends, 1);
	/* Pairs with the last touch in carrier_main. */
	while (FB_ACQUIRE(g->ncarriers)) {
		if (!g->index)
			fb_retire_stop();
		if (FB_READ(g->pollers))
			fb_poller_kick(g);
		fb_rt.backend->wake(g);
		nap(POLL_NS);
	}
}

int fb_carrier_start(struct fb_group *g)
{
	int r = 0;

	g->made = g->ready = 0;
	g->keeper_tid = 0;
	g->cap_said = g->error_said = false;
	g->batch = 0;
	g->made_at = 0;
	if (!g->index)
		pthread_sigmask(SIG_SETMASK, NULL, &fb_rt.sigmask);
	/* Enough to begin with; the keeper makes the rest. */
	for (uint32_t i = 0; !r && i <= g->nproc; i++)
		r = carrier_make(g);
	/* Pairs with the release in carrier_main. */
	while (FB_ACQUIRE(g->ready) != g->made)
		nap(POLL_NS);
	if (!r && FB_ACQUIRE(g->ncarriers) == 0)
		r = -EAGAIN;	/* none could attach */
	if (!r)
		r = fb_os_thread(&g->keeper, keeper_main, g);
	if (!r) {
		__atomic_fetch_add(&fb_rt.helpers, 1, __ATOMIC_RELAXED);
		return 0;
	}
	end_carriers(g);
	join_carriers(g);
	if (!g->index)
		free_carriers();
	return r;
}

void fb_carrier_stop(struct fb_group *g)
{
	/* Before any of them ends: deadlock.c must not count who is not there. */
	__atomic_fetch_sub(&fb_rt.helpers, 1, __ATOMIC_RELAXED);
	end_carriers(g);
	pthread_join(g->keeper, NULL);
	/* It may have made some while we looked away. */
	end_carriers(g);
	join_carriers(g);
	if (!g->index)
		free_carriers();
}
