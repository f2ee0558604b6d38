// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * times.c - how long a fiber ran, was ready, parked, blocked
 *
 * Only of those that were started with FIBER_ATTR_TIMES: a switch looks at their
 * flag together with others, so that nobody else pays. The block lies at the top
 * of the stack, where such a fiber does not begin at once, but by times_main().
 *
 *	state		left by			adds to
 *	READY		who runs it: itself	ready
 *	RUN		itself			the thread's CPU time to run, the
 *						rest to blocked
 *	PARKED		who makes it ready	parked
 *
 *	ENDED
 *
 * Whoever leaves a state has the fiber, so one writes at a time, and what the one
 * before wrote is seen by the way the fiber came. Readers look at any time:
 *
 *	writer				reader
 *	seq = odd			s = load_acquire(seq), even
 *	fence				all the rest
 *	all the rest			fence
 *	store_release(seq, even)	seq is s still: they belong together
 *
 * A fiber that gives its processor away, being preempted, is ready meanwhile: that
 * time is taken out of the turn by moving its start.
 */
#include <sched.h>
#include <string.h>
#include <time.h>

#include "fb.h"
#include "times.h"

static struct fb_times *of(const struct fiber *f)
{
	return (struct fb_times *)(fb_stack_high(f) - FB_TIMES_SIZE);
}

/* Of the calling thread: the time it had a CPU. */
static uint64_t cpu_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static void add(struct fb_times *t, unsigned int state, uint64_t ns)
{
	FB_WRITE(t->ns[state], t->ns[state] + ns);
}

static void enter(struct fb_times *t, unsigned int state, uint64_t now)
{
	FB_WRITE(t->state, state);
	FB_WRITE(t->since, now);
}

static struct fb_times *begin(struct fiber *f)
{
	struct fb_times *t = of(f);

	FB_WRITE(t->seq, t->seq + 1);
	/* Pairs with the acquire of seq in look(). */
	__atomic_thread_fence(__ATOMIC_RELEASE);
	return t;
}

static void end(struct fb_times *t)
{
	FB_RELEASE(t->seq, t->seq + 1);	/* Pairs with the acquire in look(). */
}

/* The part of a turn in which its thread had a CPU; clocks differ a little. */
static uint64_t ran(const struct fb_times *t, uint64_t turn)
{
	uint64_t cpu = cpu_now() - t->cpu;

	return cpu < turn ? cpu : turn;
}

/* ---- the edges ---- */

void fb_times_run(struct fiber *f)
{
	struct fb_times *t = begin(f);
	uint64_t now = fb_clock();

	add(t, t->state, now - t->since);
	t->cpu = cpu_now();
	enter(t, FB_TIMES_RUN, now);
	end(t);
}

static void leave(struct fiber *f, unsigned int state)
{
	struct fb_times *t = begin(f);
	uint64_t now = fb_clock(), turn = now - t->since, cpu = ran(t, turn);

	add(t, FB_TIMES_RUN, cpu);
	add(t, FB_TIMES_BLOCKED, turn - cpu);
	enter(t, state, now);
	end(t);
}

void fb_times_stop(struct fiber *f)
{
	leave(f, f->why ? FB_TIMES_PARKED : FB_TIMES_READY);
}

void fb_times_end(struct fiber *f)
{
	leave(f, FB_TIMES_ENDED);
}

void fb_times_ready(struct fiber *f)
{
	struct fb_times *t = of(f);
	uint64_t now;

	if (t->state != FB_TIMES_PARKED)	/* it is new */
		return;
	begin(f);
	now = fb_clock();
	add(t, FB_TIMES_PARKED, now - t->since);
	enter(t, FB_TIMES_READY, now);
	end(t);
}

void fb_times_waited(struct fiber *f, uint64_t ns)
{
	struct fb_times *t = begin(f);

	add(t, FB_TIMES_READY, ns);
	FB_WRITE(t->since, t->since + ns);
	end(t);
}

/* ---- the beginning ---- */

static void *times_main(void *arg)
{
	struct fiber *f = arg;
	struct fb_times *t = of(f);

	FB_WRITE(f->fn, t->fn);		/* as tools know it */
	fb_times_run(f);
	return t->fn(t->arg);
}

void fb_times_init(struct fiber *f)
{
	struct fb_times *t = of(f);

	memset(t, 0, sizeof(*t));
	t->fn = f->fn;
	t->arg = f->arg;
	enter(t, FB_TIMES_READY, fb_clock());
	f->fn = times_main;
	f->arg = f;
	f->flags |= FB_F_TIMES;
}

/* ---- who asks ---- */

/* Set before anybody knew it, among bits that change. */
FB_LOOKS static bool timed(const struct fiber *f)
{
	return FB_SEE(f->flags) & FB_F_TIMES;
}

/* Until they belong together: the state, and for how long. */
static uint32_t look(const struct fb_times *t, uint64_t *ns, uint64_t *turn)
{
	uint32_t seq, state;

	do {
		/* Pairs with the release in end(). */
		while ((seq = FB_ACQUIRE(t->seq)) & 1)
			sched_yield();
		for (int i = 0; i < FB_TIMES_STATES; i++)
			ns[i] = FB_READ(t->ns[i]);
		state = FB_READ(t->state);
		*turn = fb_clock() - FB_READ(t->since);
		/* Pairs with the fence in begin(). */
		__atomic_thread_fence(__ATOMIC_ACQUIRE);
	} while (FB_READ(t->seq) != seq);
	return state;
}

/* The time since then, for the state it is in. */
static void add_rest(const struct fiber *f, uint64_t *ns, uint32_t state,
		     uint64_t turn)
{
	struct fb_carrier *c = fb_current();
	uint64_t cpu;

	if (state == FB_TIMES_RUN && c && c->cur == f) {
		cpu = ran(of(f), turn);
		ns[FB_TIMES_RUN] += cpu;
		ns[FB_TIMES_BLOCKED] += turn - cpu;
	} else if (state == FB_TIMES_READY || state == FB_TIMES_PARKED) {
		ns[state] += turn;
	}
}

FB_EXPORT int fiber_times(const fiber_t *f, struct fiber_times *out)
{
	struct fiber_times r = { 0 };
	uint64_t ns[FB_TIMES_STATES], turn;
	uint32_t state;

	if (!f || !out || out->size < sizeof(out->size))
		return -EINVAL;
	if (!timed(f))
		return -EOPNOTSUPP;
	state = look(of(f), ns, &turn);
	add_rest(f, ns, state, turn);
	r.size = out->size < sizeof(r) ? out->size : sizeof(r);
	r.run_ns = ns[FB_TIMES_RUN];
	r.ready_ns = ns[FB_TIMES_READY];
	r.parked_ns = ns[FB_TIMES_PARKED];
	r.blocked_ns = ns[FB_TIMES_BLOCKED];
	memcpy(out, &r, r.size);
	return 0;
}
