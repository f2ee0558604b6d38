// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * search.c - an idle processor looks for work at the others
 *
 * Who searches, and who is woken to, stands in ready.c.
 */
#include "pass.h"
#include "trace.h"

#define SPIN_NS		15000

/*
 * A thief has emptied v's queue. Its owner may run on for long without a pass,
 * and its word would say READY all the time: each block of it would fly, each
 * quantum end for nothing. Only the word as it was seen is changed, and if the
 * owner has pushed since, the second look sees that:
 *
 *	owner				thief
 *	push (release)			CAS(takeover, seen, watch)
 *	takeover = READY (after it)	full barrier
 *					queue not empty: takeover |= READY
 */
static void unannounce(struct fb_processor *v)
{
	/* Pairs with the owner's stores: a push before the word we see. */
	uint32_t seen = FB_ACQUIRE(v->page->takeover), watch = FB_READ(v->watch);

	if (!(seen & FB_TAKEOVER_READY) || seen == watch || !fb_sched_empty(v))
		return;
	/* Pairs with fb_runq_publish and the tail store of fb_runq_push. */
	if (__atomic_compare_exchange_n(&v->page->takeover, &seen, watch, false,
					__ATOMIC_SEQ_CST, __ATOMIC_RELAXED) &&
	    !fb_sched_empty(v))
		__atomic_fetch_or(&v->page->takeover, FB_TAKEOVER_READY,
				  __ATOMIC_SEQ_CST);
}

static struct fiber *steal(struct fb_processor *p, bool all)
{
	struct fb_processor *proc = p->group->proc;
	uint32_t n = p->group->nproc, at;
	struct fiber *f;

	p->seed = p->seed * 1664525 + 1013904223;
	at = (p->seed >> 16) % n;
	for (uint32_t i = 0; i < n; i++, at = at + 1 < n ? at + 1 : 0) {
		if (&proc[at] == p)
			continue;
		f = fb_runq_steal_oldest(&proc[at].soon);
		if (!f)
			f = fb_runq_steal(&p->q, &proc[at].q, all);
		if (f) {
			unannounce(&proc[at]);
			p->steals++;
			if (fb_unlikely(p->tracing))
				fb_trace_steal(p, f, proc[at].index);
			FB_PROBE(steal, f->id, p->index, proc[at].index);
			return f;
		}
	}
	return NULL;
}

void fb_search_end(struct fb_carrier *c)
{
	c->searching = false;
	/* Full barrier; pairs with the publisher's: see the head comment. */
	__atomic_exchange_n(&c->group->search, FB_SEARCH_NONE, __ATOMIC_SEQ_CST);
}

/* Spin for a while as the only searcher; then one last look without the token. */
struct fiber *fb_search(struct fb_carrier *c, struct fb_processor *p)
{
	uint32_t none = FB_SEARCH_NONE;
	struct fiber *f = NULL;
	uint64_t end;

	if (p->group->nproc == 1 && !c->searching)
		return NULL;
	/* Pairs with fb_search_end: one searcher sees what the one before did. */
	if (!c->searching &&
	    !__atomic_compare_exchange_n(&p->group->search, &none, FB_SEARCH_RUNS,
					 false, __ATOMIC_SEQ_CST,
					 __ATOMIC_RELAXED))
		return steal(p, true);
	c->searching = true;
	end = fb_clock() + SPIN_NS;
	do {
		f = steal(p, false);
		if (!f)
			f = fb_sched_global_get(p);
		for (int i = 0; !f && i < 32; i++)
			fb_cpu_relax();
	} while (!f && fb_clock() < end && !FB_READ(p->info->waiting));
	if (f)
		return f;
	fb_search_end(c);
	f = fb_sched_global_get(p);
	return f ? f : steal(p, true);
}
