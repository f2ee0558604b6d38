// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * ready.c - publish a ready fiber, and wake who could run it
 *
 * Wake-ups. One searcher at most of a group, who holds its token, search:
 *
 *   NONE --CAS in fb_sched_wake_slow--> WOKEN --arrive()--> RUNS --drop--> NONE
 *   NONE --CAS in search()------------> RUNS
 *
 * While it is not NONE nobody else is woken: whoever holds it looks at every
 * queue, and wakes the next searcher if it leaves work behind. Which carrier
 * takes a WOKEN token does not matter, so no event can be lost with it. If there was
 * nobody to be woken, the publisher takes it back, and as others may have relied on
 * it meanwhile, looks at avail again.
 *
 *	publisher (any thread)		searcher, giving up
 *	queue = work			search = NONE
 *	full barrier			full barrier
 *	search != NONE: no wake		look at every queue once more
 *
 *	publisher			backend, processor becomes idle
 *	queue = work, takeover/hint	avail++
 *	full barrier			full barrier
 *	avail == 0: no wake		takeover/hint not 0: keep the processor
 *
 * selftests/model/wake.pml checks this.
 *
 * Carriers that are idle in epoll_wait are counted by fb_group.pollers, in place of
 * avail, and woken by fb_poller_kick: see io.c.
 *
 * The publisher's barrier is real for the global queue. For its own ring it
 * is left out (a spawn costs less than it): a miss needs the other side to look
 * within the few ns until the stores are out; the next pass or the end of the
 * quantum looks at avail again.
 */
#include "pass.h"
#include "poller.h"
#include "trace.h"
#include "user.h"

/* ---- the global queue ---- */

/* Append a list of n to `to`, of g; any thread, in_fiber == 0. */
static void global_put(struct fb_group *g, struct fb_list *to,
		       struct fiber *head, struct fiber *tail, uint32_t n)
{
	fb_lock(&g->lock);
	if (to->tail)
		to->tail->link = head;
	else
		to->head = head;
	to->tail = tail;
	FB_WRITE(g->global_count, g->global_count + n);
	FB_WRITE(g->hint->work, 1);
	fb_unlock(&g->lock);
	/* Pairs with the barriers of search() and of the backend: see above. */
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
}

/* The first of a list, or NULL; the lock is held. */
static struct fiber *global_take(struct fb_group *g, struct fb_list *from)
{
	struct fiber *f = from->head;

	if (!f)
		return NULL;
	from->head = f->link;
	if (!from->head)
		from->tail = NULL;
	FB_WRITE(g->global_count, g->global_count - 1);
	if (!g->global_count)
		FB_WRITE(g->hint->work, 0);
	return f;
}

/* Those of the latency class first, but not for ever; the lock is held. */
static struct fiber *global_first(struct fb_group *g)
{
	bool hurry = g->global[1].head &&
		     (!g->global[0].head || g->global_hurried < FB_HURRIED_MAX);

	g->global_hurried = hurry ? g->global_hurried + 1 : 0;
	return global_take(g, &g->global[hurry]);
}

/* One to return, the rest of a fair share into p's ring. Owner of p. */
struct fiber *fb_sched_global_get(struct fb_processor *p)
{
	struct fb_group *g = p->group;
	struct fiber *f, *more;
	uint32_t n;

	if (!FB_READ(g->global_count))
		return NULL;
	fb_lock(&g->lock);
	n = g->global_count / FB_READ(g->use);
	if (n > FB_RUNQ_BATCH)
		n = FB_RUNQ_BATCH;
	f = global_first(g);
	for (; n > 1 && !fb_runq_full(&p->q); n--) {
		more = global_take(g, &g->global[0]);
		if (!more)
			break;
		fb_runq_push(&p->q, more);
	}
	fb_unlock(&g->lock);
	if (f)
		fb_sched_turn(p);
	return f;
}

/* ---- ready ---- */

void fb_sched_make_room(struct fb_processor *p)
{
	struct fiber *head, *tail;
	uint32_t n;

	while (!fb_runq_room(&p->q)) {
		n = fb_runq_overflow(&p->q, &head, &tail);
		if (n)
			global_put(p->group, &p->group->global[0], head, tail, n);
	}
}

static void push_last(struct fb_processor *p, struct fiber *f)
{
	if (fb_unlikely(fb_runq_full(&p->q)))
		fb_sched_make_room(p);
	fb_runq_push(&p->q, f);
}

void fb_sched_put_global(struct fiber *f)
{
	struct fb_group *g = fb_group_of(f)->runs;

	f->link = NULL;
	global_put(g, &g->global[f->flags & FB_F_LATENCY ? 1 : 0], f, f, 1);
}

/* To its group, by anybody; why is 0. */
static void send_home(struct fiber *f)
{
	struct fb_group *g = fb_group_of(f)->runs;
	uint32_t pool = g->index != 0;

	if (f->flags & FB_F_TIMES)
		fb_times_ready(f);
	/* Until f can end. Pairs with until_alone in pool.c. */
	if (fb_unlikely(pool))
		__atomic_fetch_add(&g->visitors, 1, __ATOMIC_SEQ_CST);
	fb_sched_put_global(f);
	fb_sched_wake_group(g);
	/* The last touch of g. Pairs with the same. */
	if (fb_unlikely(pool))
		__atomic_fetch_sub(&g->visitors, 1, __ATOMIC_RELEASE);
}

/* p is traced, or pooled. True: f is of another group, and went there. */
static __attribute__((noinline)) bool odd(struct fb_processor *p, struct fiber *f)
{
	const uint32_t none = FB_NO_PROCESSOR;

	if (p->tracing)
		fb_trace_ready(p, f);
	if (!p->pooled || fb_group_of(f)->runs == p->group)
		return false;
	FB_PROBE(ready, f->id, none);
	FB_WRITE(f->why, 0);
	send_home(f);
	return true;
}

/* Where it is to go: as all others; it is of the latency class, or another group. */
enum place { PLAIN, SOON, GONE };

static __attribute__((noinline)) enum place special(struct fb_processor *p,
						    struct fiber *f)
{
	if (fb_group_of(f)->runs != p->group) {
		send_home(f);
		return GONE;
	}
	if (f->flags & FB_F_TIMES)
		fb_times_ready(f);
	return f->flags & FB_F_LATENCY && !fb_rt.seeded &&
	       fb_latency_push(p, f) ? SOON : PLAIN;
}

static inline enum place placed(struct fb_processor *p, struct fiber *f)
{
	return fb_unlikely(f->flags & (FB_F_LATENCY | FB_F_TIMES | FB_F_POOL)) ?
	       special(p, f) : PLAIN;
}

void fb_sched_ready_quietly(struct fb_processor *p, struct fiber *f)
{
	enum place at;

	if (fb_unlikely(p->odd) && odd(p, f))
		return;
	FB_PROBE(ready, f->id, p->index);
	FB_WRITE(f->why, 0);
	at = placed(p, f);
	if (fb_likely(at == PLAIN))
		push_last(p, f);
	else if (at == GONE)
		return;
	FB_WRITE(p->page->takeover, FB_TAKEOVER_READY | p->watch);
}

void fb_sched_ready_last(struct fb_processor *p, struct fiber *f)
{
	fb_sched_ready_quietly(p, f);
	fb_sched_wake(p);
}

void fb_sched_ready(struct fb_processor *p, struct fiber *f)
{
	enum place at;

	if (fb_unlikely(p->odd) && odd(p, f))
		return;
	FB_PROBE(ready, f->id, p->index);
	FB_WRITE(f->why, 0);		/* the last write but by who runs it */
	at = placed(p, f);
	if (fb_likely(at == PLAIN)) {
		f = fb_runq_swap_next(&p->q, f);
		if (f)
			push_last(p, f);
	} else if (at == GONE) {
		return;
	}
	FB_WRITE(p->page->takeover, FB_TAKEOVER_READY | p->watch);
	fb_sched_wake(p);
}

void fb_sched_ready_global(struct fiber *f)
{
	const uint32_t none = FB_NO_PROCESSOR;

	FB_PROBE(ready, f->id, none);
	FB_WRITE(f->why, 0);
	if (fb_unlikely(FB_READ(fb_tr.on)))
		fb_trace_ready_global(f);
	send_home(f);
}

/* False: nobody was woken, and somebody may have relied on our token. */
static bool wake_with_token(struct fb_group *g)
{
	uint32_t none = FB_SEARCH_NONE, woken = FB_SEARCH_WOKEN;

	/* Pairs with drop_token and arrive: see the head comment. */
	if (!__atomic_compare_exchange_n(&g->search, &none, FB_SEARCH_WOKEN,
					 false, __ATOMIC_SEQ_CST,
					 __ATOMIC_RELAXED))
		return true;
	/* Of those it counts one takes the token. Pairs with fb_poller_sleep. */
	if (__atomic_load_n(&g->pollers, __ATOMIC_SEQ_CST)) {
		fb_poller_kick(g);
		return true;
	}
	if (fb_unlikely(FB_READ(fb_tr.on)))
		FB_WRITE(fb_tr.wake_at[g->index], fb_clock());
	if (fb_rt.backend->wake(g) == 1)
		return true;
	/*
	 * Unless a carrier took it already. Full barrier; pairs with the
	 * publisher's: who did not wake because of it, we see the work of.
	 */
	__atomic_compare_exchange_n(&g->search, &woken, FB_SEARCH_NONE,
				    false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
	return false;
}

void fb_sched_wake_slow(struct fb_group *g)
{
	int err = errno;
	uint32_t avail, pollers;

	do {
		/* Pairs with the avail++ of the backend: see the head comment. */
		avail = FB_ACQUIRE(g->info->avail);
		if (avail & FB_AVAIL_MONITOR)
			fb_user_kick(g);
		pollers = FB_READ(g->pollers);
		if (!((avail & ~FB_AVAIL_MONITOR) | pollers) ||
		    FB_READ(g->search) != FB_SEARCH_NONE)
			break;
		/* No spare: the keeper is told once; the new one looks for itself. */
		if (!pollers && !FB_READ(g->info->spares) &&
		    __atomic_exchange_n(&g->wake_asked, 1, __ATOMIC_RELAXED))
			break;
	} while (!wake_with_token(g) && !FB_READ(g->info->dead));
	errno = err;
}

bool fb_sched_work(struct fb_processor *p)
{
	return !fb_sched_empty(p) || FB_READ(p->group->global_count);
}
