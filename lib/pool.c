// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * pool.c - groups: processors apart, with fibers of their own (fiber_pool_create)
 *
 * A group is what the backend knows: processors, and carriers that may own them. The
 * first, fb_rt.group, is the default pool; each pool of the program's is one more. A
 * fiber belongs to one (FB_F_POOL and .pool; without, to the default one), inherits
 * that of who spawned it, and keeps it. So do a processor and a carrier: nothing ever
 * goes from one group to another, but a fiber that is made ready.
 *
 * Invariant. Rings and global queue of a group hold fibers of that group alone. Then
 * whoever takes a fiber from there, by pick, theft, yield or end, need not ask. Who
 * puts one there asks, or knows:
 *
 *	ready, ready_last, ready_quietly	ready.c asks: the fiber's flags, or that the
 *		processor is pooled, lead to its slow side; another's goes by
 *	ready_global			to the global queue of the fiber's own group,
 *		which is woken. So do plain threads
 *	a yield, and fb_yield_into	push the caller, which runs there
 *	spawn, child first		pushes the caller; the child runs at once only
 *		if it is of the same group, else it is made ready
 *	make_room, hand_out, global_get	move what was there already
 *
 * And who switches straight to a fiber has taken it from its own queues, all of them:
 * park, quit and fb_pin_home (fb_pick), fiber_yield_to (looks in its processor's
 * queues alone: -EAGAIN for a fiber elsewhere), the end that goes on with the parent
 * (the newest of the ring), fb_park_sole, the root. Objects (channels, mutexes, joins)
 * hand over by ready only. The library's own fibers are of the default pool: functions
 * of timers are called there, and tasks run there.
 *
 * Each group looks after itself, or one whose processors are all taken by hogs would
 * hold up the others:
 *	timers		are watched, and fired, by their processor's group
 *	I/O		idle processors sleep in epoll while fibers of their group wait:
 *			those of a pool in a set of its own, in which is the common one
 *			(poller.c). Who is busy looks for all
 *	threads		a keeper each; on the user backend, a monitor each
 *	searcher, spares, carriers that wait to continue	of each group
 *
 * Common to all: stacks, names and numbers, traces, what looks for deadlocks: it counts
 * all groups.
 *
 * A pool ends (fiber_pool_destroy). Whoever reaches for one from outside is counted:
 *
 *	spawn into g			destroy
 *	g->came++			g->state = DECIDES
 *	full barrier			full barrier
 *	state is ON, or came--		alive(g), of which came is a part: back to ON
 *
 *	make f of g ready, elsewhere	destroy, no fiber of g is alive
 *	g->visitors++			state = ENDS
 *	queue f (it can end now), wake	until g->visitors is 0
 *	g->visitors--			end the threads, close
 *
 *   f is alive when it is counted, so who finds that it has ended finds the visitor.
 *
 *	look at pages of all groups	destroy
 *	fb_rt.looking++			state = ENDS, its carriers' page = NULL
 *	full barrier			full barrier
 *	state, page; fb_rt.looking--	until fb_rt.looking is 0; unmap
 *
 * struct fb_group, its carriers' structs and its processors stay, for the next pool:
 * so a handle that is used too late finds -EINVAL, and counters, from which the number
 * of fibers alive is computed, go on.
 *
 * With a seed one processor runs all: a pool is a name for fibers that the default
 * pool runs (.runs), which are counted by came and went.
 */
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "contention.h"
#include "coro.h"
#include "pass.h"
#include "pool.h"
#include "poller.h"
#include "stack.h"
#include "trace.h"
#include "user.h"

#define SPARES		2	/* beyond one a processor */
#define ID_BATCH	64

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;	/* who makes, ends */

/* Around locks, and what others spin for: a fiber is to keep its processor. */
static struct fb_carrier *enter(void)
{
	struct fb_carrier *c = fb_current();

	if (c)
		fb_enter(c);
	return c;
}

static void leave(struct fb_carrier *c)
{
	if (c)
		fb_leave(c);
}

/* ---- processors ---- */

/* Others may look at its counters and at its timer_next. */
static void make_processor(struct fb_group *g, uint32_t place)
{
	struct fb_processor *p = &g->proc[place];
	uint32_t i = (uint32_t)(p - fb_rt.proc);
	const uint32_t step = fb_rt.group.nproc + 1;

	if (i >= fb_rt.nproc) {		/* else it goes on to count */
		memset(p, 0, sizeof(*p));
		p->index = i;
		p->id_next = p->seed = i + 1;
		p->id_step = step;
	}
	p->group = g;
	p->place = place;
	p->marks = 0;
	p->pooled = g->index != 0;
	p->trace = NULL;
	p->look_at = p->look_next = 0;
	p->look_every = 1;
	p->pool_max = FB_POOL_MAX;
	p->locked = p->hurry = p->hurried = p->watch = 0;
	fb_runq_init(&p->q, g->nproc);
	fb_runq_init(&p->soon, g->nproc);
	p->timer_lock.held = 0;
	fb_timer_init(p);
}

void fb_pool_make(struct fb_group *g, uint32_t first)
{
	g->proc = &fb_rt.proc[first];
	for (uint32_t i = 0; i < g->nproc; i++)
		make_processor(g, i);
	g->search = FB_SEARCH_NONE;
	g->wake_asked = 0;
	memset(g->global, 0, sizeof(g->global));
	g->global_count = 0;
	g->watched = FB_NEVER;
	g->locked = 0;
	g->pollers = g->waiting = 0;
	g->ends = 0;
	g->runs = g;
}

int fb_pool_setup(const struct fb_backend *b, struct fb_group *g,
		  uint64_t *features)
{
	struct fb_setup s = {
		.processors = g->nproc,
		.max_carriers = g->max_carriers,
		.min_spares = g->min_spares,
		.quantum_ns = fb_rt.quantum_ns,
		.grace_ns = fb_rt.grace_ns,
	};
	int r = b->setup(g, &s);

	if (r)
		return r;
	*features = s.features;
	g->nproc = s.processors;
	if (g->use > g->nproc)
		g->use = g->nproc;
	g->max_carriers = s.max_carriers;
	g->info = s.info;
	g->hint = s.hint;
	for (uint32_t i = 0; i < s.processors; i++) {
		g->proc[i].page = s.ppage[i];
		g->proc[i].info = s.info;
	}
	return 0;
}

/* No carrier is left. */
void fb_pool_unmake(struct fb_group *g)
{
	for (uint32_t i = 0; i < g->nproc; i++) {
		fb_runq_fini(&g->proc[i].q);
		fb_runq_fini(&g->proc[i].soon);
	}
}

/* ---- all groups ---- */

struct fb_group *fb_pool_next(const struct fb_group *g)
{
	uint32_t i = g ? g->index + 1 : 0;

	for (; i < FB_GROUPS; i++) {
		/* Pairs with the release in find_group. */
		struct fb_group *next = FB_ACQUIRE(fb_rt.pool[i]);
		/* Pairs with the releases of the state below. */
		uint32_t state = next ? FB_ACQUIRE(next->state) : 0;

		/* DECIDES: it may go on, and what it is not told now it never is. */
		if (next && (!i || state == FB_POOL_ON || state == FB_POOL_DECIDES))
			return next;
		if (!next)		/* they come in order */
			break;
	}
	return NULL;
}

void fb_pool_look(void)
{
	/* Pairs with the fence in until_alone. */
	__atomic_fetch_add(&fb_rt.looking, 1, __ATOMIC_SEQ_CST);
}

void fb_pool_looked(void)
{
	/* Pairs with the acquire in until_alone. */
	__atomic_fetch_sub(&fb_rt.looking, 1, __ATOMIC_RELEASE);
}

void fb_pool_stacks(const struct fb_arena *a)
{
	fb_pool_look();
	for (struct fb_group *g = fb_pool_next(NULL); g; g = fb_pool_next(g))
		fb_rt.backend->stacks(g, a);
	fb_pool_looked();
}

int fb_pool_text(uintptr_t start, uintptr_t end)
{
	int r = 0, r2;

	fb_pool_look();
	for (struct fb_group *g = fb_pool_next(NULL); g; g = fb_pool_next(g)) {
		r2 = fb_rt.backend->text(g, start, end);
		r = r ? r : r2;
	}
	fb_pool_looked();
	return r;
}

/* ---- fibers ---- */

uint64_t fb_pool_id(struct fb_processor *p)
{
	if (p->id_pool == p->id_end) {
		p->id_pool = __atomic_fetch_add(&fb_rt.plain_ids, ID_BATCH,
						__ATOMIC_RELAXED);
		p->id_end = p->id_pool + ID_BATCH;
	}
	return ++p->id_pool * p->id_step;
}

/* Ended is read first: never too few. */
static uint64_t balance(const struct fb_group *g)
{
	uint64_t ended = 0, spawned = 0;

	for (uint32_t i = 0; i < g->nproc; i++)
		ended += FB_READ(g->proc[i].ended);
	ended += FB_READ(g->went);
	/* Ended before spawned. Pairs with the order in which owners count. */
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	for (uint32_t i = 0; i < g->nproc; i++)
		spawned += fb_fiber_spawned(&g->proc[i]);
	return spawned + FB_READ(g->came) - ended;
}

static struct fb_group *group_of(const fiber_pool_t *pool)
{
	return pool == FIBER_POOL_DEFAULT ? &fb_rt.group :
					    (struct fb_group *)(uintptr_t)pool;
}

int fb_pool_enter(const fiber_pool_t *pool, struct fb_group **to)
{
	struct fb_group *g = *to = group_of(pool);
	uint32_t state;

	if (!g->index)
		return 0;
	/* Pairs with the exchange in may_end. */
	__atomic_fetch_add(&g->came, 1, __ATOMIC_SEQ_CST);
	while ((state = __atomic_load_n(&g->state, __ATOMIC_SEQ_CST)) ==
	       FB_POOL_DECIDES)
		sched_yield();
	if (state == FB_POOL_ON)
		return 0;
	fb_pool_leave(g);
	return -EINVAL;
}

void fb_pool_leave(struct fb_group *g)
{
	if (g->index)
		__atomic_fetch_sub(&g->came, 1, __ATOMIC_RELAXED);
}

/* With a seed no processor of g counts it. Before it can end. */
void fb_pool_inherits(struct fb_group *g)
{
	if (fb_unlikely(fb_rt.seeded))
		__atomic_fetch_add(&g->came, 1, __ATOMIC_RELAXED);
}

/*
 * The processors of the caller's pool count it as spawned there, though fb_pool_enter
 * has counted it, maybe elsewhere. Afterwards, or there would be one too few meanwhile.
 */
void fb_pool_counted_twice(void)
{
	struct fb_group *g = fb_group_of(fb_current()->cur);

	if (g->index && !fb_rt.seeded)
		fb_pool_left(g);
}

void fb_pool_left(struct fb_group *g)
{
	__atomic_fetch_add(&g->went, 1, __ATOMIC_RELAXED);
}

FB_EXPORT fiber_pool_t *fiber_pool_self(void)
{
	struct fb_carrier *c = fb_current();
	struct fb_group *g;

	if (!c)
		return NULL;
	g = fb_group_of(c->cur);
	return g->index ? (fiber_pool_t *)g : FIBER_POOL_DEFAULT;
}

/* ---- make ---- */

/* n processors one behind the other that no pool has; the lock is held. */
static int find_room(uint32_t n, uint32_t *first)
{
	uint32_t at = fb_rt.group.nproc;
	struct fb_group *g;
	bool moved;

	do {
		moved = false;
		for (uint32_t i = 1; i < FB_GROUPS && (g = fb_rt.pool[i]); i++) {
			uint32_t from;

			if (g->state == FB_POOL_FREE || !g->nproc)
				continue;
			from = (uint32_t)(g->proc - fb_rt.proc);
			if (at < from + g->nproc && from < at + n) {
				at = from + g->nproc;
				moved = true;
			}
		}
	} while (moved);
	*first = at;
	return at + n <= FB_MAX_PROCESSORS ? 0 : -EAGAIN;
}

/* One that no pool is; the lock is held. NULL: none, *r says why. */
static struct fb_group *find_group(int *r)
{
	struct fb_group *g;

	for (uint32_t i = 1; i < FB_GROUPS; i++) {
		g = fb_rt.pool[i];
		if (g && g->state == FB_POOL_FREE)
			return g;
		if (g)
			continue;
		g = aligned_alloc(FB_LINE, sizeof(*g));
		*r = g ? 0 : -ENOMEM;
		if (!g)
			return NULL;
		memset(g, 0, sizeof(*g));
		g->index = i;
		g->fd = -1;
		/* Pairs with the acquire in fb_pool_next. */
		FB_RELEASE(fb_rt.pool[i], g);
		return g;
	}
	*r = -EAGAIN;
	return NULL;
}

/* What is told at a start, or by who has it, of all that was there before. */
static void tell(struct fb_group *g)
{
	/* The state is ON. Pairs with the fences of who adds to them. */
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	fb_stack_tell(g);
	fb_costack_tell();
	fb_preempt_tell(g);
}

static void mark_processors(struct fb_group *g)
{
	for (uint32_t i = 0; i < g->nproc; i++) {
		struct fb_processor *p = &g->proc[i];

		if (fb_mark_on)
			p->pool_count = FB_POOL_MAX;
		p->checking = fb_rt.checks != 0;
		p->profiling = FB_READ(fb_ct.on) != 0;
		fb_sched_look_at(p, 0);
	}
}

/* Wait until nobody is there any more who found it ON. */
static void until_alone(struct fb_group *g)
{
	/* Pairs with fb_pool_look, and fb_sched_ready_global. */
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	/* Pairs with the release in fb_pool_looked, and in ready.c. */
	while (FB_ACQUIRE(g->visitors) || FB_ACQUIRE(fb_rt.looking))
		usleep(50);
}

static void close_group(struct fb_group *g)
{
	struct fb_carrier *c;

	until_alone(g);
	fb_poller_close(g);
	fb_rt.backend->close(g);
	c = enter();
	fb_stack_flush(g);
	leave(c);
	fb_pool_unmake(g);
	FB_WRITE(g->state, FB_POOL_FREE);
}

/* The lock is held; g is of no use yet. */
static int start(struct fb_group *g, uint32_t n)
{
	struct fb_carrier *c;
	uint64_t ignored;
	uint32_t first;
	int r = find_room(n, &first);

	if (r)
		return r;
	g->nproc = g->use = n;
	fb_pool_make(g, first);
	r = fb_pool_setup(fb_rt.backend, g, &ignored);
	if (r) {
		fb_pool_unmake(g);
		return r;
	}
	g->came = g->went = 0;
	g->came = -balance(g);
	mark_processors(g);
	c = enter();
	fb_solo_stop();
	leave(c);
	if (first + n > fb_rt.nproc)
		/* Pairs with the looks at all processors. */
		FB_RELEASE(fb_rt.nproc, first + n);
	fb_trace_pool(g);
	FB_WRITE(g->visitors, 0);
	/* Pairs with the acquire in fb_pool_next. */
	FB_RELEASE(g->state, FB_POOL_ON);
	tell(g);
	r = fb_carrier_start(g);
	if (!r) {
		__atomic_fetch_add(&fb_rt.pools, 1, __ATOMIC_RELAXED);
		return 0;
	}
	/* Pairs with the same. */
	FB_RELEASE(g->state, FB_POOL_ENDS);
	close_group(g);
	return r;
}

static int start_seeded(struct fb_group *g)
{
	g->nproc = g->use = 0;
	g->came = g->went = 0;
	g->runs = &fb_rt.group;
	FB_RELEASE(g->state, FB_POOL_ON);	/* Pairs with fb_pool_enter. */
	return 0;
}

static void set_name(struct fb_group *g, const char *name)
{
	memset(g->name, 0, sizeof(g->name));
	if (name && *name)
		memcpy(g->name, name, strnlen(name, sizeof(g->name) - 1));
	else
		snprintf(g->name, sizeof(g->name), "pool %u", g->index & 0xff);
}

static void set_limits(struct fb_group *g, const struct fiber_pool_attr *a,
		       uint32_t n)
{
	g->max_carriers = a->max_carriers ? a->max_carriers :
					    fb_rt.group.max_carriers;
	if (g->max_carriers < n + 1)
		g->max_carriers = n + 1;
	g->min_spares = n + SPARES;
	if (g->min_spares > g->max_carriers - n)
		g->min_spares = g->max_carriers - n;
}

/* The lock is held. */
static int create(fiber_pool_t **pool, const struct fiber_pool_attr *a)
{
	uint32_t n = a->processors ? a->processors : 1;
	struct fb_group *g;
	int r;

	g = find_group(&r);
	if (!g)
		return r;
	set_name(g, a->name);
	set_limits(g, a, n);
	r = fb_rt.seeded ? start_seeded(g) : start(g, n);
	if (!r)
		*pool = (fiber_pool_t *)g;
	return r;
}

static int read_attr(struct fiber_pool_attr *a,
		     const struct fiber_pool_attr *attr)
{
	int r;

	memset(a, 0, sizeof(*a));
	if (!attr)
		return 0;
	r = fb_read_sized(a, sizeof(*a), attr);
	return !r && a->processors > FB_MAX_PROCESSORS ? -EINVAL : r;
}

FB_EXPORT int fiber_pool_create(fiber_pool_t **pool,
				const struct fiber_pool_attr *attr)
{
	struct fiber_pool_attr a;
	int r, err = errno;

	if (!pool)
		return -EINVAL;
	r = read_attr(&a, attr);
	if (r)
		return r;
	if (!fb_visit())
		return -EPERM;
	pthread_mutex_lock(&lock);
	r = create(pool, &a);
	pthread_mutex_unlock(&lock);
	fb_visit_end();
	errno = err;
	return r;
}

/* ---- end ---- */

/* No fiber of it is alive, and none comes any more. */
static bool may_end(struct fb_group *g)
{
	struct fb_carrier *c = enter();
	bool may;

	/* Pairs with the add in fb_pool_enter. */
	__atomic_exchange_n(&g->state, FB_POOL_DECIDES, __ATOMIC_SEQ_CST);
	may = !balance(g);
	FB_RELEASE(g->state, may ? FB_POOL_ENDS : FB_POOL_ON);	/* Pairs with it. */
	leave(c);
	return may;
}

static void end(struct fb_group *g)
{
	if (g->runs == g) {
		__atomic_fetch_sub(&fb_rt.pools, 1, __ATOMIC_RELAXED);
		fb_carrier_stop(g);
		close_group(g);
	} else {
		FB_WRITE(g->state, FB_POOL_FREE);
	}
}

static bool is_pool(const struct fb_group *g)
{
	for (uint32_t i = 1; i < FB_GROUPS && fb_rt.pool[i]; i++)
		if (fb_rt.pool[i] == g)
			return g->state == FB_POOL_ON;
	return false;
}

FB_EXPORT int fiber_pool_destroy(fiber_pool_t *pool)
{
	struct fb_group *g = (struct fb_group *)pool;
	int r = 0, err = errno;

	if (!pool)
		return 0;
	if (!fb_visit())
		return -EPERM;
	pthread_mutex_lock(&lock);
	if (!is_pool(g))
		r = -EINVAL;
	else if (!may_end(g))
		r = -EBUSY;
	else
		end(g);
	pthread_mutex_unlock(&lock);
	fb_visit_end();
	errno = err;
	return r;
}

/* The runtime stops: no fiber is alive. */
void fb_pool_stop_all(void)
{
	struct fb_group *g;

	for (uint32_t i = 1; i < FB_GROUPS && (g = fb_rt.pool[i]); i++) {
		if (g->state != FB_POOL_ON)
			continue;
		FB_RELEASE(g->state, FB_POOL_ENDS);	/* Pairs with may_end's. */
		end(g);
	}
}

/* The runtime is abandoned: carriers of all end when they have a look. */
void fb_pool_abandon(void)
{
	struct fb_group *g;

	for (g = fb_pool_next(NULL); g; g = fb_pool_next(g))
		FB_WRITE(g->ends, 1);
}

/* Whatever state they were in. */
void fb_pool_fork_child(void)
{
	struct fb_group *g;

	for (uint32_t i = 0; i < FB_GROUPS && (g = fb_rt.pool[i]); i++)
		if (fb_rt.backend == &fb_kern)
			fb_kern_fork_child(g);
		else if (g->backend)
			fb_user_fork_child(g);
}
