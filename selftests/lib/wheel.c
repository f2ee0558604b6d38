// SPDX-License-Identifier: GPL-2.0-only
/*
 * The timing wheel against a plain list: nothing is early, late, lost, doubled
 * or out of order, whatever was added and deleted, at whatever time.
 */
#include "common.h"
#include "../../lib/wheel.h"

#define TICK		(1ULL << FB_WHEEL_SHIFT)
#define LAST		(UINT64_MAX >> FB_WHEEL_SHIFT)

enum { TIMERS = 200, PLENTY = 1 << 20, DIGITS = 9 };	/* of 6 bits */

struct item {
	struct fb_timer t;
	bool armed, late;	/* late: it was due when it was added */
};

static struct fb_wheel wheel;
static struct item item[TIMERS];
static uint32_t seed;
static uint64_t now;
static unsigned long added, deleted, taken;

static uint64_t tick_of(uint64_t when)
{
	uint64_t tick = when / TICK;

	return tick < LAST && when % TICK ? tick + 1 : tick;
}

static bool before(const struct item *a, const struct item *b)
{
	if (a->late || b->late)		/* among themselves, as they came */
		return a->late && b->late && a->t.seq < b->t.seq;
	return a->t.when < b->t.when ||
	       (a->t.when == b->t.when && a->t.seq < b->t.seq);
}

/* ---- random operations ---- */

static uint64_t random64(void)
{
	return (uint64_t)next_random(&seed) << 32 | next_random(&seed);
}

/* Of any size, the small ones as often as the large. */
static uint64_t random_span(void)
{
	return random64() >> next_random(&seed) % 64;
}

static uint64_t random_when(void)
{
	uint64_t span = random_span(), when = now + span;

	switch (next_random(&seed) % 8) {
	case 0:				/* the edge of a slot of some level */
		span = TICK << next_random(&seed) % 9 * 6;	/* or 64 near ones */
		when = (now / span + next_random(&seed) % 64) * span +
		       next_random(&seed) % 3 - 1;
		break;
	case 1:
		return now - span < now ? now - span : 0;
	case 2:				/* the very same as another */
		return item[next_random(&seed) % TIMERS].t.when;
	case 3:
		return next_random(&seed) % 16 ? now : UINT64_MAX;
	}
	return when < now ? UINT64_MAX : when;
}

static void add(struct item *i)
{
	i->t.when = random_when();
	i->late = tick_of(i->t.when) <= wheel.base;
	i->armed = true;
	fb_wheel_add(&wheel, &i->t);
	added++;
}

static void delete(struct item *i)
{
	check(fb_wheel_holds(&i->t));
	fb_wheel_del(&wheel, &i->t);
	check(!fb_wheel_holds(&i->t));
	i->armed = false;
	deleted++;
}

/* Right to be taken now, and nobody else sooner? */
static void check_taken(struct item *i)
{
	check(i->armed);
	check(tick_of(i->t.when) <= now / TICK);
	check(i->t.when <= now || tick_of(i->t.when) == LAST);
	for (struct item *k = item; k < item + TIMERS; k++)
		if (k != i && k->armed)
			check(!before(k, i));
	i->armed = false;
	taken++;
}

static void check_none_due(void)
{
	for (struct item *k = item; k < item + TIMERS; k++)
		if (k->armed)
			check(!k->late && tick_of(k->t.when) > now / TICK);
}

/* True: nothing is due any more. */
static bool take_some(int work)
{
	struct fb_timer *t;
	int n = work;

	while ((t = fb_wheel_take(&wheel, now, &n)))
		check_taken((struct item *)t);
	if (n <= 0)
		return false;
	check_none_due();
	check(fb_wheel_next(&wheel) > now || fb_wheel_empty(&wheel));
	return true;
}

/* The earliest tick of all, as a time; UINT64_MAX: there is none. */
static uint64_t earliest(void)
{
	uint64_t tick = UINT64_MAX;

	for (struct item *k = item; k < item + TIMERS; k++)
		if (k->armed && tick_of(k->t.when) < tick)
			tick = tick_of(k->t.when);
	return tick == UINT64_MAX ? tick : tick * TICK;
}

static void advance(void)
{
	uint64_t next = fb_wheel_next(&wheel), then = now + random_span();

	if (next != UINT64_MAX && next > now && next_random(&seed) % 2)
		then = next + next_random(&seed) % 2 * TICK;
	if (then > now)
		now = then;
}

static void operate(bool deletions)
{
	struct item *i = &item[next_random(&seed) % TIMERS];

	switch (next_random(&seed) % 32) {
	case 0:
		advance();
		/* fall through */
	case 1:
		take_some(next_random(&seed) % 2 ? PLENTY :
			  (int)(next_random(&seed) % 8));
		break;
	case 2 ... 17:
		if (!i->armed)
			add(i);
		break;
	default:
		if (i->armed && deletions)
			delete(i);
	}
}

static void check_next(bool exact)
{
	uint64_t next = fb_wheel_next(&wheel), first = earliest();

	if (first == UINT64_MAX)
		check(next == UINT64_MAX);
	else if (fb_wheel_busy(&wheel))
		check(next <= (now | 1));
	else if (exact)
		check(next == first);
	else
		check(next <= first);
}

static void random_run(uint64_t at, uint32_t with, bool deletions)
{
	seed = with;
	now = at;
	memset(item, 0, sizeof(item));
	fb_wheel_init(&wheel, now);
	for (int n = 0; n < 30000; n++) {
		operate(deletions);
		check_next(!deletions);
	}
	now = UINT64_MAX;
	while (!take_some(100))
		;
	for (struct item *k = item; k < item + TIMERS; k++)
		check(!k->armed && !fb_wheel_holds(&k->t));
	check(fb_wheel_next(&wheel) == UINT64_MAX);
	check_eq(added, deleted + taken);
}

TEST(random_operations)
{
	static const uint64_t begin[] = {
		0, 1, TICK, SEC, 3600 * SEC, 12345678901234567, 1ULL << 60,
		INT64_MAX, UINT64_MAX - SEC,
	};

	for (size_t i = 0; i < ARRAY_SIZE(begin); i++) {
		for (uint32_t s = 1; s <= 6; s++) {
			random_run(begin[i], s * 2654435761U, s % 3);
			ASSERT_EQ(0, failures);
		}
	}
	figure("wheel: %lu added, %lu deleted, %lu taken\n", added, deleted,
	       taken);
	EXPECT_LT(100000, deleted);
	EXPECT_LT(100000, taken);
}

/* ---- every edge of every level ---- */

static size_t edges(uint64_t *v)
{
	size_t n = 0;

	for (int l = 0; l < DIGITS; l++)
		for (uint64_t s = 1; s < 64; s += s < 3 ? 1 : 12)
			for (int d = -1; d <= 1; d++)
				v[n++] = (s * TICK << l * 6) + (uint64_t)d;
	v[n++] = 0;
	v[n++] = UINT64_MAX - 1;
	v[n++] = UINT64_MAX;
	return n;
}

static void one_alone(uint64_t from, uint64_t when)
{
	uint64_t tick = tick_of(when);
	struct fb_timer t = { .when = when };
	int work = PLENTY;

	wheel.base = from / TICK;	/* it is empty: 80 KB need not be cleared */
	fb_wheel_add(&wheel, &t);
	check(fb_wheel_next(&wheel) == (tick * TICK > from ? tick * TICK :
					from / TICK * TICK | 1));
	if (tick > from / TICK) {
		check(!fb_wheel_take(&wheel, from, &work));
		check(!fb_wheel_take(&wheel, tick * TICK - 1, &work));
	}
	check(fb_wheel_take(&wheel, tick * TICK > from ? tick * TICK : from,
			    &work) == &t);
	check(fb_wheel_next(&wheel) == UINT64_MAX);
	check(fb_wheel_empty(&wheel));
	check(PLENTY - work <= 2 * FB_WHEEL_LEVELS + 6);
}

TEST(every_edge_of_every_level)
{
	static uint64_t v[DIGITS * 63 * 3 + 3];
	size_t n = edges(v);

	fb_wheel_init(&wheel, 0);
	for (size_t i = 0; i < n; i++)
		for (size_t k = 0; k < n; k++)
			one_alone(v[i], v[k]);
	figure("wheel: %zu pairs\n", n * n);
	EXPECT_EQ(0, failures);
}

/* ---- order among many of one slot, and of one deadline ---- */

enum { MANY = 100000 };

static void check_order(struct fb_timer *t, uint64_t end)
{
	struct fb_timer *a = NULL, *b;
	int work, n = 0;

	for (int i = 0; i < MANY; i++)
		fb_wheel_add(&wheel, &t[i]);
	while (fb_wheel_next(&wheel) <= end) {
		work = 64;
		while ((b = fb_wheel_take(&wheel, end, &work))) {
			check(!a || a->when < b->when ||
			      (a->when == b->when && a < b));
			a = b;
			n++;
		}
	}
	check_eq(MANY, n);
}

TEST(many_of_one_slot_come_in_order)
{
	static struct fb_timer t[MANY];

	seed = 1;
	for (int kind = 0; kind < 6; kind++) {
		for (uint64_t i = 0; i < MANY; i++) {
			uint64_t r = next_random(&seed);
			const uint64_t offset[] = {
				0, i % TICK, TICK - 1 - i % TICK, r % TICK,
				r % (60 * SEC), i / 3 * TICK,
			};

			t[i].when = 1000 * SEC + offset[kind];
		}
		fb_wheel_init(&wheel, 1);
		check_order(t, 2000 * SEC);
	}
	EXPECT_EQ(0, failures);
}

/* ---- nobody waits until a slot with very many is dealt ---- */

/*
 * MANY timers within `within`; time goes on by `step`. How many steps of work one look
 * took at most, beyond those that were due then.
 */
static int most_work(struct fb_timer *t, uint64_t within, uint64_t step)
{
	const uint64_t begin = 1000 * SEC;
	int most = 0, work, n, left = MANY;

	seed = 7;
	fb_wheel_init(&wheel, begin);
	for (int i = 0; i < MANY; i++) {
		t[i].when = begin + step + random64() % within;
		fb_wheel_add(&wheel, &t[i]);
	}
	for (uint64_t at = begin; left; at += step) {
		work = PLENTY;
		for (n = 0; fb_wheel_take(&wheel, at, &work); n++)
			left--;
		if (PLENTY - work - n > most)
			most = PLENTY - work - n;
	}
	return most;
}

TEST(many_of_a_far_slot_are_dealt_ahead)
{
	static struct fb_timer t[MANY];
	static const uint64_t within[] = { SEC, 60 * SEC, 3600 * SEC };

	/* A slot of a far level has up to 7,000 of them. */
	for (int i = 0; i < 3; i++) {
		int most = most_work(t, within[i], within[i] / 50000);

		figure("wheel: %d steps at most, %d timers in %lu s\n", most,
		       MANY, (unsigned long)(within[i] / SEC));
		EXPECT_GT(100, most);
	}
}

TEST_HARNESS_MAIN
