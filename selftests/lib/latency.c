// SPDX-License-Identifier: GPL-2.0-only
/* The latency class jumps the queue, within its bound; fiber_yield_to. */
#include "common.h"

#define LONG_QUANTUM	SEC
#define TURNS_IN_A_ROW	8	/* of the latency class, as fiber.h says */

static fiber_t *spawn_class(unsigned int sched_class, void *(*fn)(void *),
			    void *arg)
{
	struct fiber_attr attr = {
		.size = sizeof(attr), .sched_class = sched_class,
	};
	fiber_t *f = NULL;

	check_eq(0, fiber_spawn_attr(&f, &attr, fn, arg));
	return f;
}

/* Again if somebody's turn was ended for him: then the order says nothing. */
static void undisturbed(struct __test_metadata *_metadata, void *(*fn)(void *))
{
	struct fiber_stats st;

	for (int try = 0; try < 10; try++) {
		ASSERT_EQ(0, start(1, LONG_QUANTUM));
		join(spawn(fn, NULL));
		st = stats();
		ASSERT_EQ(0, fiber_fini());
		if (!st.preemptions && !st.handoffs)
			return;
		figure("disturbed: %lu preemptions, %lu handoffs\n",
		       st.preemptions, st.handoffs);
	}
	SKIP(return, "disturbed each time");
}

/* ---- jumping ---- */

enum { CROWD = 30, JUMPS = 20 };

static int crowd_turns, jumped_after[JUMPS];
static bool crowd_goes;
static fiber_sem_t jump, decoy;

static void *crowd(void *arg)
{
	while (crowd_goes) {
		crowd_turns++;
		fiber_yield();
	}
	return NULL;
}

static void *jumper(void *arg)
{
	for (int i = 0; i < JUMPS; i++) {
		fiber_sem_wait(&jump);
		jumped_after[i] = crowd_turns;
	}
	return NULL;
}

/* Made ready later, it is the one that would run next. */
static void *decoys(void *arg)
{
	for (int i = 0; i < JUMPS; i++)
		fiber_sem_wait(&decoy);
	return NULL;
}

static void jumps(unsigned int sched_class)
{
	fiber_t *f[CROWD], *j, *d;

	crowd_goes = true;
	crowd_turns = 0;
	fiber_sem_init(&jump, 0);
	fiber_sem_init(&decoy, 0);
	j = spawn_class(sched_class, jumper, NULL);
	d = spawn(decoys, NULL);
	for (int i = 0; i < CROWD; i++)
		f[i] = spawn(crowd, NULL);
	for (int i = 0; i < JUMPS; i++) {
		int before = crowd_turns;

		fiber_sem_post(&jump);
		fiber_sem_post(&decoy);
		fiber_yield();
		jumped_after[i] -= before;
	}
	crowd_goes = false;
	join(j);
	join(d);
	for (int i = 0; i < CROWD; i++)
		join(f[i]);
}

static void *jumps_latency(void *arg)
{
	jumps(FIBER_LATENCY);
	return NULL;
}

static void *jumps_normal(void *arg)
{
	jumps(FIBER_NORMAL);
	return NULL;
}

/*
 * Made ready while thirty others wait: it runs before them, but for one that
 * the bound may let go first, and one by the slow look.
 */
TEST(latency_runs_before_all_that_wait)
{
	undisturbed(_metadata, jumps_latency);
	for (int i = 0; i < JUMPS; i++)
		EXPECT_GE(2, jumped_after[i]);
	EXPECT_EQ(0, failures);
}

TEST(normal_waits_for_all_that_wait)
{
	undisturbed(_metadata, jumps_normal);
	for (int i = 0; i < JUMPS; i++)
		EXPECT_LE(CROWD - 2, jumped_after[i]);
	EXPECT_EQ(0, failures);
}

/* ---- order among those readied one after the other ---- */

enum { MIXED = 12 };

static int order[MIXED], ordered;
static fiber_sem_t gates[MIXED];

static void *through_gate(void *arg)
{
	long i = (long)arg;

	fiber_sem_wait(&gates[i]);
	order[ordered++] = (int)i;
	return NULL;
}

static void *mixed(void *arg)
{
	fiber_t *f[MIXED];

	ordered = 0;
	for (long i = 0; i < MIXED; i++) {
		fiber_sem_init(&gates[i], 0);
		f[i] = spawn_class(i % 2 ? FIBER_LATENCY : FIBER_NORMAL,
				   through_gate, (void *)i);
	}
	for (int i = 0; i < MIXED; i++)
		fiber_sem_post(&gates[i]);
	for (int i = 0; i < MIXED; i++)
		join(f[i]);
	return NULL;
}

/* Among themselves: first in, first out. */
TEST(latency_is_first_in_first_out)
{
	undisturbed(_metadata, mixed);
	ASSERT_EQ(MIXED, ordered);
	for (int i = 0; i < MIXED / 2; i++)
		EXPECT_EQ(2 * i + 1, order[i]);
	for (int i = MIXED / 2; i < MIXED; i++)
		EXPECT_EQ(0, order[i] % 2);
	EXPECT_EQ(0, failures);
}

/* ---- the bound ---- */

enum { PAIRS = 3, NORMALS = 4, NORMAL_TURNS = 500 };

static atomic_long hurried_turns, normal_turns;
static atomic_bool bound_ends;
static fiber_sem_t ping[PAIRS][2];

/* Two that make each other ready, once a turn: one of them always is. */
static void *never_idle(void *arg)
{
	long i = (long)arg;
	bool begins = i % 2 == 0;

	do {
		if (!begins)
			fiber_sem_wait(&ping[i / 2][i % 2]);
		begins = false;
		hurried_turns++;
		fiber_sem_post(&ping[i / 2][!(i % 2)]);
	} while (!bound_ends);
	/* The other may have looked before it was so. */
	fiber_sem_post(&ping[i / 2][!(i % 2)]);
	return NULL;
}

static long hurried_most;

static void *progresses(void *arg)
{
	for (int i = 0; i < NORMAL_TURNS; i++) {
		long before = hurried_turns, n = normal_turns++;

		fiber_yield();
		/* Between two of mine, each of the others has at most one. */
		if (normal_turns - n <= NORMALS &&
		    hurried_turns - before > hurried_most)
			hurried_most = hurried_turns - before;
	}
	return NULL;
}

static void *bound(void *arg)
{
	fiber_t *f[2 * PAIRS], *g[NORMALS];

	hurried_turns = normal_turns = 0;
	hurried_most = 0;
	bound_ends = false;
	for (long i = 0; i < 2 * PAIRS; i++)
		fiber_sem_init(&ping[i / 2][i % 2], 0);
	for (long i = 0; i < 2 * PAIRS; i++)
		f[i] = spawn_class(FIBER_LATENCY, never_idle, (void *)i);
	for (int i = 0; i < NORMALS; i++)
		g[i] = spawn(progresses, NULL);
	for (int i = 0; i < NORMALS; i++)
		join(g[i]);
	bound_ends = true;
	for (int i = 0; i < 2 * PAIRS; i++)
		join(f[i]);
	return NULL;
}

/* The others go on, at least each ninth turn, and not much more often. */
TEST(latency_starves_nobody)
{
	undisturbed(_metadata, bound);
	figure("latency: %ld turns beside %ld, most between two %ld\n",
	       (long)hurried_turns, (long)normal_turns, hurried_most);
	EXPECT_EQ(NORMALS * NORMAL_TURNS, normal_turns);
	/* The one that waits for the others is normal, too. */
	EXPECT_GE((NORMALS + 1) * TURNS_IN_A_ROW, hurried_most);
	EXPECT_LE(normal_turns * TURNS_IN_A_ROW / 2, hurried_turns);
	EXPECT_EQ(0, failures);
}

static void bound_on(struct __test_metadata *_metadata, unsigned int processors)
{
	ASSERT_EQ(0, start(processors, 0));
	join(spawn(bound, NULL));
	ASSERT_EQ(0, fini_soon());
	EXPECT_EQ(NORMALS * NORMAL_TURNS, normal_turns);
	EXPECT_EQ(0, failures);
}

TEST(latency_starves_nobody_on_two)
{
	bound_on(_metadata, 2);
}

TEST(latency_starves_nobody_on_four)
{
	bound_on(_metadata, 4);
}

/* ---- nothing is lost ---- */

enum { SENDERS = 40, MESSAGES = 100 };

static fiber_chan_t *pipe_of[4];
static atomic_long received;

static void *sends(void *arg)
{
	long i = (long)arg;

	for (int k = 0; k < MESSAGES; k++) {
		if (k % 16 == 15)	/* as it goes */
			check(fiber_set_class((unsigned int)(k / 16 % 2)) >= 0);
		check_eq(0, fiber_chan_send(pipe_of[(i + k) % 4], &i));
	}
	return NULL;
}

static void *receives(void *arg)
{
	long value, n = 0;

	while (!fiber_chan_recv(arg, &value))
		n++;
	received += n;
	return NULL;
}

static void *traffic(void *arg)
{
	fiber_t *s[SENDERS], *r[8];

	received = 0;
	for (int i = 0; i < 4; i++)
		check_eq(0, fiber_chan_create(&pipe_of[i], sizeof(long), i));
	for (int i = 0; i < 8; i++)
		r[i] = spawn_class(i < 4 ? FIBER_LATENCY : FIBER_NORMAL, receives,
				   pipe_of[i % 4]);
	for (long i = 0; i < SENDERS; i++)
		s[i] = spawn_class(i % 2 ? FIBER_LATENCY : FIBER_NORMAL, sends,
				   (void *)i);
	for (int i = 0; i < SENDERS; i++)
		join(s[i]);
	for (int i = 0; i < 4; i++)
		fiber_chan_close(pipe_of[i]);
	for (int i = 0; i < 8; i++)
		join(r[i]);
	for (int i = 0; i < 4; i++)
		fiber_chan_destroy(pipe_of[i]);
	return NULL;
}

static void traffic_on(struct __test_metadata *_metadata,
		       unsigned int processors)
{
	ASSERT_EQ(0, start(processors, 0));
	join(spawn(traffic, NULL));
	ASSERT_EQ(0, fini_soon());
	EXPECT_EQ(SENDERS * MESSAGES, received);
	EXPECT_EQ(0, failures);
}

TEST(latency_loses_nobody_on_one)
{
	traffic_on(_metadata, 1);
}

TEST(latency_loses_nobody_on_two)
{
	traffic_on(_metadata, 2);
}

TEST(latency_loses_nobody_on_four)
{
	traffic_on(_metadata, 4);
}

/* ---- made ready by the clock, while nobody else is there ---- */

static void *naps(void *arg)
{
	for (int i = 0; i < 100; i++) {
		check_eq(0, fiber_sleep(((uintptr_t)arg + (uintptr_t)i % 7) *
					20 * US));
		if (i % 10 == 9)
			fiber_yield();
	}
	return NULL;
}

/* A carrier that has looked for work in vain must not sleep with one of them. */
TEST(latency_wakes_up_alone)
{
	fiber_t *f[5];

	for (unsigned int processors = 1; processors <= 4; processors *= 2) {
		ASSERT_EQ(0, start(processors, 0));
		for (uintptr_t i = 0; i < ARRAY_SIZE(f); i++)
			f[i] = spawn_class(FIBER_LATENCY, naps, (void *)i);
		for (size_t i = 0; i < ARRAY_SIZE(f); i++)
			join(f[i]);
		ASSERT_EQ(0, fini_soon());
	}
	EXPECT_EQ(0, failures);
}

/* ---- from plain threads ---- */

enum { KNOCKS = 300 };

static fiber_sem_t knock[2], answer;

static void *answers(void *arg)
{
	for (int i = 0; i < KNOCKS; i++) {
		fiber_sem_wait(arg);
		fiber_sem_post(&answer);
	}
	return NULL;
}

/* The global queue has both; the first fibers come from there, too. */
TEST(latency_by_a_plain_thread)
{
	fiber_t *f[2];

	ASSERT_EQ(0, start(2, 0));
	fiber_sem_init(&answer, 0);
	for (unsigned int i = 0; i < 2; i++) {
		fiber_sem_init(&knock[i], 0);
		f[i] = spawn_class(i ? FIBER_LATENCY : FIBER_NORMAL, answers,
				   &knock[i]);
	}
	for (int i = 0; i < KNOCKS; i++) {
		fiber_sem_post(&knock[0]);
		fiber_sem_post(&knock[1]);
		if (i % 2) {
			fiber_sem_wait(&answer);
			fiber_sem_wait(&answer);
		}
	}
	join(f[0]);
	join(f[1]);
	ASSERT_EQ(0, fini_soon());
	EXPECT_EQ(0, failures);
}

/* ---- misuse ---- */

static void *classes(void *arg)
{
	check_eq(FIBER_NORMAL, fiber_set_class(FIBER_LATENCY));
	check_eq(FIBER_LATENCY, fiber_set_class(FIBER_LATENCY));
	check_eq(-EINVAL, fiber_set_class(2));
	check_eq(FIBER_LATENCY, fiber_set_class(FIBER_NORMAL));
	check_eq(FIBER_NORMAL, fiber_set_class(FIBER_NORMAL));
	return NULL;
}

static void *is_latency(void *arg)
{
	check_eq(FIBER_LATENCY, fiber_set_class(FIBER_LATENCY));
	return NULL;
}

TEST(classes_are_told)
{
	struct fiber_attr attr = { .size = sizeof(attr), .sched_class = 2 };
	fiber_t *f;

	EXPECT_EQ(-EPERM, fiber_set_class(FIBER_LATENCY));
	ASSERT_EQ(0, start(1, 0));
	EXPECT_EQ(-EPERM, fiber_set_class(FIBER_LATENCY));
	EXPECT_EQ(-EINVAL, fiber_spawn_attr(&f, &attr, classes, NULL));
	attr.sched_class = FIBER_NORMAL;
	attr.flags = 1u << 31;
	EXPECT_EQ(-EINVAL, fiber_spawn_attr(&f, &attr, classes, NULL));
	join(spawn(classes, NULL));
	join(spawn_class(FIBER_LATENCY, is_latency, NULL));
	ASSERT_EQ(0, fini_soon());
	EXPECT_EQ(0, failures);
}

/* ---- fiber_yield_to ---- */

enum { LINE = 12, MIDDLE = 5 };

static fiber_t *line[LINE];
static int yielded;

static void *stands(void *arg)
{
	fiber_sem_wait(&jump);
	order[ordered++] = (int)(long)arg;
	return NULL;
}

/* All are ready, in order; the last runs next. */
static void line_up(void)
{
	ordered = 0;
	fiber_sem_init(&jump, 0);
	for (long i = 0; i < LINE; i++)
		line[i] = spawn(stands, (void *)i);
	for (int i = 0; i < LINE; i++)
		fiber_sem_post(&jump);
}

/* -EAGAIN is allowed when it is time for a slow look. */
static void *to_the_middle(void *arg)
{
	for (int try = 0; try < 10; try++) {
		line_up();
		yielded = fiber_yield_to(line[MIDDLE]);
		while (ordered < LINE)
			fiber_yield();
		check_eq(-EAGAIN, fiber_yield_to(line[MIDDLE])); /* has ended */
		for (int i = 0; i < LINE; i++)
			join(line[i]);
		if (!yielded)
			break;
	}
	return NULL;
}

static bool in_order(int from, int to)
{
	int last = from - 1;

	for (int i = 0; i < LINE; i++) {
		if (order[i] < from || order[i] > to)
			continue;
		if (order[i] != last + 1)
			return false;
		last = order[i];
	}
	return last == to;
}

/* It is next; the others keep their order. */
TEST(yield_to_one_of_the_queue)
{
	undisturbed(_metadata, to_the_middle);
	EXPECT_EQ(0, yielded);
	EXPECT_EQ(MIDDLE, order[0]);
	EXPECT_TRUE(in_order(0, MIDDLE - 1));
	EXPECT_TRUE(in_order(MIDDLE + 1, LINE - 2));
	EXPECT_EQ(0, failures);
}

static void *to_the_last(void *arg)
{
	for (int try = 0; try < 10; try++) {
		line_up();
		yielded = fiber_yield_to(line[LINE - 1 - *(int *)arg]);
		while (ordered < LINE)
			fiber_yield();
		for (int i = 0; i < LINE; i++)
			join(line[i]);
		if (!yielded)
			break;
	}
	return NULL;
}

static int before_last;

static void *to_one_of_the_last(void *arg)
{
	return to_the_last(&before_last);
}

/* In the run-next slot, and the newest of the ring. */
TEST(yield_to_the_newest)
{
	for (before_last = 0; before_last < 2; before_last++) {
		undisturbed(_metadata, to_one_of_the_last);
		EXPECT_EQ(0, yielded);
		EXPECT_EQ(LINE - 1 - before_last, order[0]);
		EXPECT_TRUE(in_order(0, LINE - 3));
	}
	EXPECT_EQ(0, failures);
}

static atomic_long other_turns, talks;
static atomic_bool talk_ends;
static atomic_int talking;

static void *other(void *arg)
{
	while (!talk_ends) {
		other_turns++;
		fiber_yield();
	}
	return NULL;
}

static _Atomic(fiber_t *) talkers[2];

/* They give the processor only to each other. */
static void *talker(void *arg)
{
	fiber_t *peer;

	while (!talk_ends) {
		peer = talkers[(long)arg];
		if (peer)
			fiber_yield_to(peer);
		else
			fiber_yield();
		talks++;
	}
	talking--;
	return NULL;
}

static void *talk(void *arg)
{
	fiber_t *o = spawn(other, NULL);
	uint64_t end = now_ns() + PATIENCE * SEC;

	talkers[1] = spawn(talker, (void *)0L);
	talkers[0] = spawn(talker, (void *)1L);
	while (other_turns < 100 && now_ns() < end)
		fiber_yield();
	talk_ends = true;
	while (talking)
		fiber_yield();
	join(o);
	join(talkers[0]);
	join(talkers[1]);
	return NULL;
}

TEST(yield_to_starves_nobody)
{
	for (unsigned int processors = 1; processors <= 4; processors *= 2) {
		talk_ends = false;
		talking = 2;
		other_turns = talks = 0;
		talkers[0] = talkers[1] = NULL;
		ASSERT_EQ(0, start(processors, 0));
		join(spawn(talk, NULL));
		ASSERT_EQ(0, fini_soon());
		EXPECT_LE(100, other_turns);
		EXPECT_LT(0, talks);
	}
	EXPECT_EQ(0, failures);
}

static void *parks(void *arg)
{
	fiber_sem_wait(arg);
	return NULL;
}

static void *to_nobody(void *arg)
{
	fiber_t *f;
	fiber_sem_t s;

	fiber_sem_init(&s, 0);
	f = spawn(parks, &s);
	check_eq(-EINVAL, fiber_yield_to(NULL));
	check_eq(-EINVAL, fiber_yield_to(fiber_self()));
	check_eq(-EAGAIN, fiber_yield_to(f));
	fiber_sem_post(&s);
	join(f);
	return NULL;
}

TEST(yield_to_nobody)
{
	EXPECT_EQ(-EPERM, fiber_yield_to(NULL));
	ASSERT_EQ(0, start(1, LONG_QUANTUM));
	join(spawn(to_nobody, NULL));
	ASSERT_EQ(0, fini_soon());
	EXPECT_EQ(0, failures);
}

TEST_HARNESS_MAIN
