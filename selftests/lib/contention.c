// SPDX-License-Identifier: GPL-2.0-only
/*
 * FIBER_CONTENTION: where fibers and threads waited, and how often, exactly.
 *
 * How often they wait does not depend on who comes first: of an unbuffered channel
 * one of both sides waits for each value, at a barrier all but one of each round. How
 * long: no fiber waits at two places at once, nor longer than the test lasts.
 */
#include <fiber/coro.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "common.h"

#define PLACES	4000			/* more than are kept */
#define NOINLINE static __attribute__((noinline, noclone))

static struct fiber_contention place[PLACES];

/* All places; how many. */
static int look(void)
{
	int n = fiber_contention(place, PLACES);

	check(n >= 0 && n <= PLACES);
	return n;
}

/* How often for this; "": where there was no room. */
static uint64_t how_often(int n, const char *what)
{
	uint64_t count = 0;

	for (int i = 0; i < n; i++)
		count += strcmp(place[i].what, what) ? 0 : place[i].count;
	return count;
}

static uint64_t how_long(int n, const char *what)
{
	uint64_t ns = 0;

	for (int i = 0; i < n; i++)
		ns += strcmp(place[i].what, what) ? 0 : place[i].total_ns;
	return ns;
}

/* Whatever was measured. */
static void check_places(int n)
{
	for (int i = 0; i < n; i++) {
		check(place[i].count > 0);
		check(place[i].max_ns <= place[i].total_ns);
		check(place[i].total_ns / place[i].count <= place[i].max_ns);
		check(!i || place[i - 1].total_ns >= place[i].total_ns);
		check(place[i].frames <= FIBER_CONTENTION_FRAMES);
		for (int j = 0; j < i; j++)	/* none twice */
			check(strcmp(place[i].what, place[j].what) ||
			      place[i].frames != place[j].frames ||
			      memcmp(place[i].frame, place[j].frame,
				     place[i].frames * sizeof(void *)));
	}
}

static bool has_frame(const struct fiber_contention *p, const void *ip)
{
	for (uint32_t i = 0; i < p->frames; i++)
		if (p->frame[i] == ip)
			return true;
	return false;
}

static int profiled(unsigned int processors, void *(*fn)(void *), void *arg)
{
	setenv("FIBER_CONTENTION", "1", 1);
	return with_runtime(processors, 0, fn, arg);
}

/* ---- the place that costs most ---- */

#define GATED	8
#define VALUES	200

static fiber_event_t gate = FIBER_EVENT_INIT;
static fiber_chan_t *chan;
static void *gated_at, *received_at;

NOINLINE void waits_at_gate(void)
{
	gated_at = __builtin_return_address(0);
	check_eq(0, fiber_event_wait(&gate));
}

static void *gated(void *arg)
{
	waits_at_gate();
	return arg;
}

NOINLINE void receives_one(void)
{
	long v;

	received_at = __builtin_return_address(0);
	check_eq(0, fiber_chan_recv(chan, &v));
}

static void *receives(void *arg)
{
	for (int i = 0; i < VALUES; i++)
		receives_one();
	return arg;
}

static int is_parked(const struct fiber_info *i, void *arg)
{
	*(int *)arg += !strcmp(i->why, "event");
	return 0;
}

static int parked_at_events(void)
{
	int n = 0;

	check_eq(0, fiber_walk(is_parked, &n));
	return n;
}

static void *knows_the_worst(void *arg)
{
	uint64_t begin = now_ns(), parked, opened;
	fiber_t *f[GATED + 1];
	int n;

	for (int i = 0; i < GATED; i++)
		f[i] = spawn(gated, NULL);
	while (parked_at_events() < GATED)
		fiber_yield();
	parked = now_ns();
	f[GATED] = spawn(receives, NULL);
	for (long i = 0; i < VALUES; i++)
		check_eq(0, fiber_chan_send(chan, &i));
	opened = now_ns();
	check_eq(0, fiber_event_set(&gate));
	for (int i = 0; i <= GATED; i++)
		join(f[i]);
	n = look();
	check_places(n);
	check_eq(0, strcmp("event", place[0].what));
	check_eq(GATED, place[0].count);
	check(has_frame(&place[0], gated_at));
	check(place[0].total_ns >= GATED * (opened - parked));
	check(place[0].max_ns <= now_ns() - begin);
	check_eq(GATED, how_often(n, "event"));
	check_eq(VALUES, how_often(n, "send") + how_often(n, "receive"));
	check(how_long(n, "send") <= now_ns() - begin);
	check(how_long(n, "receive") <= now_ns() - begin);
	for (int i = 0; i < n; i++)
		check(has_frame(&place[i], received_at) ==
		      !strcmp(place[i].what, "receive"));
	return arg;
}

/* One processor, so that who is seen parked has been counted as that. */
TEST(dearest_place_is_first)
{
	ASSERT_EQ(0, fiber_chan_create(&chan, sizeof(long), 0));
	ASSERT_EQ(0, profiled(1, knows_the_worst, NULL));
	EXPECT_EQ(0, fiber_chan_destroy(chan));
	EXPECT_EQ(0, failures);
}

/* ---- all kinds of callers ---- */

#define ROUNDS	50

static fiber_barrier_t barrier;

static void *meets(void *arg)
{
	for (int i = 0; i < ROUNDS; i++)
		check(fiber_barrier_wait(&barrier) >= 0);
	return arg;
}

static int meets_in_coro(void *arg, void **value)
{
	*value = meets(arg);
	return 0;
}

static void *meets_by_coro(void *arg)
{
	fiber_coro_t *co;
	void *out;

	check_eq(0, fiber_coro_create(&co, meets_in_coro, NULL));
	check_eq(0, fiber_coro_resume(co, NULL, &out));
	check_eq(0, fiber_coro_destroy(co));
	return arg;
}

static fiber_t *meets_with(struct fiber_attr attr)
{
	fiber_t *f = NULL;

	attr.size = sizeof(attr);
	check_eq(0, fiber_spawn_attr(&f, &attr, meets, NULL));
	return f;
}

/* Fibers of all kinds, and threads. */
static void *all_meet(void *arg)
{
	fiber_t *f[5] = {
		spawn(meets, NULL), spawn(meets_by_coro, NULL),
		meets_with((struct fiber_attr){ .flags = FIBER_ATTR_LOCK }),
		meets_with((struct fiber_attr){ .flags = FIBER_ATTR_TIMES }),
		meets_with((struct fiber_attr){ .sched_class = FIBER_LATENCY }),
	};

	for (int i = 0; i < 5; i++)
		join(f[i]);
	return arg;
}

TEST(fibers_and_threads_are_counted)
{
	pthread_t t[3];
	int n;

	setenv("FIBER_CONTENTION", "1", 1);
	for (unsigned int processors = 1; processors <= 2; processors++) {
		ASSERT_EQ(0, fiber_barrier_init(&barrier, 5 + 3));
		ASSERT_EQ(0, start(processors, 0));
		for (int i = 0; i < 3; i++)
			ASSERT_EQ(0, pthread_create(&t[i], NULL, meets, NULL));
		join(spawn(all_meet, NULL));
		for (int i = 0; i < 3; i++)
			ASSERT_EQ(0, pthread_join(t[i], NULL));
		n = look();
		check_places(n);
		EXPECT_EQ(ROUNDS * (5 + 3 - 1), how_often(n, "barrier"));
		ASSERT_EQ(0, fini_soon());
	}
	EXPECT_EQ(0, failures);
}

/* ---- all kinds of objects ---- */

static fiber_mutex_t mutex = FIBER_MUTEX_INIT, of_cond = FIBER_MUTEX_INIT;
static fiber_rwlock_t rwlock = FIBER_RWLOCK_INIT;
static fiber_cond_t cond = FIBER_COND_INIT;
static fiber_sem_t sem = FIBER_SEM_INIT(0);
static fiber_waitgroup_t group = FIBER_WAITGROUP_INIT;
static fiber_future_t future = FIBER_FUTURE_INIT;

static void *at_mutex(void *arg)
{
	check_eq(0, fiber_mutex_lock(&mutex));
	check_eq(0, fiber_mutex_unlock(&mutex));
	return arg;
}

static void *at_rwlock(void *arg)
{
	check_eq(0, fiber_rwlock_rdlock(&rwlock));
	check_eq(0, fiber_rwlock_unlock(&rwlock));
	return arg;
}

static void *at_cond(void *arg)
{
	check_eq(0, fiber_mutex_lock(&of_cond));
	check_eq(0, fiber_cond_wait(&cond, &of_cond));
	check_eq(0, fiber_mutex_unlock(&of_cond));
	return arg;
}

static void *at_sem(void *arg)
{
	check_eq(0, fiber_sem_wait(&sem));
	return arg;
}

static void *at_group(void *arg)
{
	check_eq(0, fiber_waitgroup_wait(&group));
	return arg;
}

static void *at_future(void *arg)
{
	check_eq(0, fiber_future_wait(&future));
	return arg;
}

static void *at_select(void *arg)
{
	long v;
	struct fiber_case k[] = { FIBER_RECV(chan, &v) };

	check_eq(0, fiber_select(k, 1, UINT64_MAX));
	return arg;
}

static void *sleeps(void *arg)
{
	check_eq(0, fiber_sleep(1 * MS));
	return arg;
}

static struct {
	const char *what;
	void *(*fn)(void *);
} kinds[] = {
	{ "mutex", at_mutex }, { "rwlock", at_rwlock }, { "semaphore", at_sem },
	{ "wait group", at_group }, { "future", at_future },
	{ "select", at_select }, { "condition", at_cond },
};
#define KINDS	(sizeof(kinds) / sizeof(kinds[0]))

static int parked_for(const struct fiber_info *i, void *arg)
{
	int *seen = arg;

	for (size_t k = 0; k < KINDS; k++)
		seen[k] += !strcmp(i->why, kinds[k].what);
	return 0;
}

/* Each of them waits, and nobody has what it waits for. */
static bool all_wait(void)
{
	int seen[KINDS] = { 0 };

	check_eq(0, fiber_walk(parked_for, seen));
	for (size_t k = 0; k < KINDS; k++)
		if (seen[k] != 1)
			return false;
	return true;
}

static void let_all_go(void)
{
	long v = 1;

	check_eq(0, fiber_mutex_unlock(&mutex));
	check_eq(0, fiber_rwlock_unlock(&rwlock));
	check_eq(0, fiber_sem_post(&sem));
	check_eq(0, fiber_waitgroup_done(&group));
	check_eq(0, fiber_future_set(&future, NULL));
	check_eq(0, fiber_cond_signal(&cond));
	check_eq(0, fiber_chan_send(chan, &v));
}

static void *wait_each_once(void *arg)
{
	fiber_t *f[KINDS];
	int n;

	check_eq(0, fiber_mutex_lock(&mutex));
	check_eq(0, fiber_rwlock_wrlock(&rwlock));
	check_eq(0, fiber_waitgroup_add(&group, 1));
	for (size_t k = 0; k < KINDS; k++)
		f[k] = spawn(kinds[k].fn, NULL);
	while (!all_wait())
		fiber_yield();
	let_all_go();
	for (size_t k = 0; k < KINDS; k++)
		join(f[k]);
	join(spawn(sleeps, NULL));
	n = look();
	check_places(n);
	for (size_t k = 0; k < KINDS; k++)
		check_eq(1, how_often(n, kinds[k].what));
	check_eq(0, how_often(n, "sleep"));
	check_eq(1, how_often(n, "join") > 0);	/* for who sleeps */
	return arg;
}

TEST(objects_are_told_apart)
{
	ASSERT_EQ(0, fiber_chan_create(&chan, sizeof(long), 0));
	ASSERT_EQ(0, profiled(1, wait_each_once, NULL));
	EXPECT_EQ(0, fiber_chan_destroy(chan));
	EXPECT_EQ(0, failures);
}

/* ---- more places than there is room for ---- */

#define DEPTH	12			/* 2^12 ways to call each side */

static int way(uint32_t path, int depth, bool sends);

NOINLINE int left(uint32_t path, int depth, bool sends)
{
	return way(path, depth, sends) + 1;
}

NOINLINE int right(uint32_t path, int depth, bool sends)
{
	return way(path, depth, sends) + 2;
}

static __attribute__((noinline, noclone)) int way(uint32_t path, int depth,
						  bool sends)
{
	long v = path;

	if (depth)
		return (path & 1 ? left : right)(path >> 1, depth - 1, sends);
	return sends ? fiber_chan_send(chan, &v) : fiber_chan_recv(chan, &v);
}

static atomic_int all_received;

static void *receives_in_ways(void *arg)
{
	for (uint32_t i = 0; i < 1u << DEPTH; i++)
		check(way(i, DEPTH, false) >= DEPTH);
	atomic_store(&all_received, 1);
	return arg;
}

static void *sends_in_ways(void *arg)
{
	fiber_t *f = spawn(receives_in_ways, NULL);
	int n;

	for (uint32_t i = 0; i < 1u << DEPTH; i++)
		check(way(i, DEPTH, true) >= DEPTH);
	while (!atomic_load(&all_received))	/* a join might be counted */
		fiber_yield();
	n = look();
	join(f);
	check_eq(3072 + 1, n);
	check_eq(1u << DEPTH, how_often(n, "send") + how_often(n, "receive") +
			      how_often(n, ""));
	check(how_often(n, "") >= (1u << DEPTH) - 3072);
	return arg;
}

TEST(what_finds_no_room_is_counted)
{
	ASSERT_EQ(0, fiber_chan_create(&chan, sizeof(long), 0));
	ASSERT_EQ(0, profiled(2, sends_in_ways, NULL));
	EXPECT_EQ(0, fiber_chan_destroy(chan));
	EXPECT_EQ(0, failures);
}

/* ---- what is written ---- */

static char path[64], text[1 << 16];

static bool read_file(const char *name)
{
	int fd = open(name, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);

	close(fd);
	unlink(name);
	text[n > 0 ? n : 0] = 0;
	return n > 0;
}

static void *exits_after_waits(void *arg)
{
	fiber_t *f = spawn(receives, NULL);

	for (long i = 0; i < VALUES; i++)
		check_eq(0, fiber_chan_send(chan, &i));
	while (fiber_join(f, NULL))
		;
	if (arg)
		exit(failures);
	return arg;
}

/* In a process of its own, whose words go to a file: its pid, when it has ended. */
static int write_profile(const char *to, void *exits)
{
	int status = 0;
	pid_t pid = fork();

	if (!pid) {
		setenv("FIBER_CONTENTION", to, 1);
		if (!freopen(path, "w", stderr) ||
		    fiber_chan_create(&chan, sizeof(long), 0) ||
		    with_runtime(1, 0, exits_after_waits, exits))
			_exit(99);
		_exit(failures);
	}
	if (waitpid(pid, &status, 0) != pid || status)
		return -1;
	return (int)pid;
}

/* The sums of the lines "ns count @ address..."; the longest is first. */
static bool profile_is_whole(void)
{
	static const char head[] = "--- contention:\ncycles/second = 1000000000\n"
				   "sampling period = 1\n";
	uint64_t ns, n, before = UINT64_MAX, sum = 0;
	const char *at = text + sizeof(head) - 1;
	int lines = 0;

	if (strncmp(text, head, sizeof(head) - 1))
		return false;
	for (; *at != '\n'; at = strchr(at, '\n') + 1, lines++) {
		if (sscanf(at, "%lu %lu @ 0x", &ns, &n) != 2 || ns > before)
			return false;
		before = ns;
		sum += n;
	}
	return lines >= 2 && sum >= VALUES && sum <= VALUES + 3 &&
	       !strncmp(at, "\n--- Memory map: ---\n", 21) &&
	       strstr(at, "/contention\n");
}

TEST(profile_is_written)
{
	char name[80];
	int pid;

	snprintf(path, sizeof(path), "/tmp/fiber-contention.%d", (int)getpid());
	for (int exits = 0; exits < 2; exits++) {
		snprintf(name, sizeof(name), "%s.%%p", path);
		pid = write_profile(name, exits ? path : NULL);
		ASSERT_LT(0, pid);
		snprintf(name, sizeof(name), "%s.%d", path, pid);
		ASSERT_TRUE(read_file(name));
		EXPECT_TRUE(profile_is_whole());
		ASSERT_TRUE(read_file(path));	/* the table */
		EXPECT_NE(NULL, strstr(text, "fiber: contention: 20"));
		EXPECT_NE(NULL, strstr(text, "\nfiber:     receives_one+0x"));
		EXPECT_NE(NULL, strstr(text, "\nfiber:     fiber_chan_recv+0x"));
	}
	EXPECT_EQ(0, failures);
}

/* ---- mistakes ---- */

TEST(what_cannot_be_is_refused)
{
	EXPECT_EQ(-EPERM, fiber_contention(place, 1));
	setenv("FIBER_CONTENTION", "/nowhere/at/all", 1);
	EXPECT_EQ(-ENOENT, start(1, 0));
	setenv("FIBER_CONTENTION", "/", 1);
	EXPECT_EQ(-EISDIR, start(1, 0));
	setenv("FIBER_CONTENTION", "0", 1);
	ASSERT_EQ(0, start(1, 0));
	EXPECT_EQ(-EOPNOTSUPP, fiber_contention(place, 1));
	EXPECT_EQ(-EINVAL, fiber_contention(place, -1));
	EXPECT_EQ(-EINVAL, fiber_contention(NULL, 1));
	ASSERT_EQ(0, fini_soon());
	ASSERT_EQ(0, profiled(1, sleeps, NULL));
	setenv("FIBER_CONTENTION", "1", 1);
	ASSERT_EQ(0, start(1, 0));
	EXPECT_EQ(0, fiber_contention(NULL, 0));
	ASSERT_EQ(0, fini_soon());
}

TEST_HARNESS_MAIN
