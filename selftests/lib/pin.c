// SPDX-License-Identifier: GPL-2.0-only
/*
 * A fiber that is locked to its thread: it runs there and nowhere else, and nobody
 * else does, whatever it calls and whoever wakes it.
 */
#include "common.h"

#define LOCKED	4
#define OTHERS	12
#define ROUNDS	40

/* Threads that a fiber has for itself; 0: none. */
static atomic_int kept[LOCKED];
static atomic_bool others_go;
static fiber_chan_t *calls, *answers;
static fiber_mutex_t mutex;
static fiber_sem_t wakes[LOCKED];

static int tid_now(void)
{
	return (int)syscall(SYS_gettid);
}

/* ---- each way to stop and go on ---- */

/* Not a thread that is kept: it would be while we run on it. */
static void check_free(void)
{
	int tid = tid_now();

	for (int i = 0; i < LOCKED; i++)
		check(atomic_load(&kept[i]) != tid);
}

static void *child(void *arg)
{
	check_free();
	fiber_yield();
	check_free();
	return arg;
}

/* Parks, yields, and takes from a channel what the locked ones call it for. */
static void *other(void *arg)
{
	int n = 0;

	while (fiber_chan_recv(calls, &n) == 0) {
		check_free();
		check_eq(0, fiber_mutex_lock(&mutex));
		fiber_yield();
		check_eq(0, fiber_mutex_unlock(&mutex));
		check_free();
		check_eq(0, fiber_chan_send(answers, &n));
		check_free();
	}
	return arg;
}

static void *spins(void *arg)
{
	while (atomic_load(&others_go)) {
		check_free();
		fiber_yield();
	}
	return arg;
}

/* Wakes from outside, again and again. */
static void *waker(void *arg)
{
	while (atomic_load(&others_go)) {
		for (int i = 0; i < LOCKED; i++)
			if (!fiber_sem_value(&wakes[i]))
				fiber_sem_post(&wakes[i]);
		block_ns(100 * US);
	}
	return arg;
}

static void one_round(int i, int round)
{
	int n = round, r;
	fiber_t *f;

	switch (round % 8) {
	case 0:
		fiber_yield();
		break;
	case 1:
		f = spawn(child, &n);
		check(join(f) == &n);
		break;
	case 2:
		check_eq(0, fiber_sleep(50 * US));
		break;
	case 3:
		check_eq(0, block_ns(100 * US));
		break;
	case 4:
		check_eq(0, fiber_mutex_lock(&mutex));
		fiber_yield();
		check_eq(0, fiber_mutex_unlock(&mutex));
		break;
	case 5:
		check_eq(0, fiber_sem_wait(&wakes[i]));
		break;
	case 6:
		r = fiber_sem_wait_until(&wakes[i], now_ns() + 50 * US);
		check(r == 0 || r == -ETIMEDOUT);
		break;
	default:
		check_eq(0, fiber_chan_send(calls, &n));
		check_eq(0, fiber_chan_recv(answers, &n));
	}
}

static void keep_on(int i)
{
	int tid = tid_now();

	atomic_store(&kept[i], tid);
	for (int round = 0; round < ROUNDS; round++) {
		one_round(i, round);
		check_eq(tid, tid_now());
	}
	atomic_store(&kept[i], 0);
}

static void *calls_lock(void *arg)
{
	check_eq(0, fiber_thread_lock());
	keep_on((int)(intptr_t)arg);
	check_eq(0, fiber_thread_unlock());
	return NULL;
}

/* It ends locked. */
static void *begins_locked(void *arg)
{
	keep_on((int)(intptr_t)arg);
	return NULL;
}

static fiber_t *start_locked(int i)
{
	struct fiber_attr attr = {
		.size = sizeof(attr),
		.sched_class = i & 1 ? FIBER_LATENCY : FIBER_NORMAL,
		.flags = i & 2 ? FIBER_ATTR_LOCK : 0,
	};
	fiber_t *f = NULL;

	if (i == LOCKED - 1)
		attr.flags |= FIBER_ATTR_TIMES;
	check_eq(0, fiber_spawn_attr(&f, &attr, i & 2 ? begins_locked : calls_lock,
				     (void *)(intptr_t)i));
	return f;
}

static void *among_others(void *arg)
{
	struct fiber_times times = { .size = sizeof(times) };
	fiber_t *f[LOCKED], *o[OTHERS];

	for (int i = 0; i < OTHERS; i++)
		o[i] = spawn(i & 1 ? spins : other, NULL);
	for (int i = 0; i < LOCKED; i++)
		f[i] = start_locked(i);
	for (int i = 0; i < LOCKED - 1; i++)
		join(f[i]);
	while (fiber_times(f[LOCKED - 1], &times) || !times.parked_ns)
		fiber_yield();
	join(f[LOCKED - 1]);
	atomic_store(&others_go, false);
	check_eq(0, fiber_chan_close(calls));
	for (int i = 0; i < OTHERS; i++)
		join(o[i]);
	return arg;
}

static void lock_and_run(struct __test_metadata *_metadata,
			 unsigned int processors)
{
	pthread_t t;

	atomic_store(&others_go, true);
	fiber_mutex_init(&mutex, 0);
	for (int i = 0; i < LOCKED; i++)
		fiber_sem_init(&wakes[i], 0);
	ASSERT_EQ(0, start(processors, 1 * MS));
	ASSERT_EQ(0, fiber_chan_create(&calls, sizeof(int), 2));
	ASSERT_EQ(0, fiber_chan_create(&answers, sizeof(int), 0));
	ASSERT_EQ(0, pthread_create(&t, NULL, waker, NULL));
	join(spawn(among_others, NULL));
	pthread_join(t, NULL);
	ASSERT_EQ(0, fini_soon());
	fiber_chan_destroy(calls);
	fiber_chan_destroy(answers);
	EXPECT_EQ(0, failures);
}

TEST(lock_one_processor)
{
	lock_and_run(_metadata, 1);
}

TEST(lock_three_processors)
{
	lock_and_run(_metadata, 3);
}

/* ---- its thread has no processor when it is made ready ---- */

static atomic_bool ran;
static fiber_sem_t go;

static void *locked_waits(void *arg)
{
	check_eq(0, fiber_thread_lock());
	check_eq(0, fiber_sem_wait(&go));
	atomic_store(&ran, true);
	return arg;
}

static void *hogs(void *arg)
{
	while (!atomic_load(&ran))
		;
	return arg;
}

static void *hog_and_locked(void *arg)
{
	fiber_t *l = spawn(locked_waits, NULL), *h;

	settle();
	check_eq(0, fiber_sem_post(&go));
	h = spawn(hogs, NULL);
	join(h);
	join(l);
	return arg;
}

TEST(lock_ready_beside_a_hog)
{
	fiber_sem_init(&go, 0);
	ASSERT_EQ(0, start(1, 1 * MS));
	if (!(fiber_features() & FIBER_FEATURE_PREEMPT))
		SKIP(return, "no preemption");
	join(spawn(hog_and_locked, NULL));
	ASSERT_EQ(0, fini_soon());
	EXPECT_EQ(0, failures);
}

/* ---- what it answers ---- */

static void *nests(void *arg)
{
	check_eq(-EINVAL, fiber_thread_unlock());
	check_eq(-EPERM, fiber_thread_pin(0));
	for (int i = 0; i < 3; i++)
		check_eq(0, fiber_thread_lock());
	for (int i = 0; i < 2; i++)
		check_eq(0, fiber_thread_unlock());
	check_eq(0, fiber_thread_pin(-1));
	check_eq(0, fiber_thread_unlock());
	check_eq(-EINVAL, fiber_thread_unlock());
	return arg;
}

static int wait_in_scope(void *arg)
{
	int tid;

	check_eq(0, fiber_thread_lock());
	tid = tid_now();
	check_eq(-ECANCELED, fiber_sem_wait(arg));
	check_eq(tid, tid_now());
	check_eq(-ECANCELED, fiber_sleep(1));
	check_eq(tid, tid_now());
	return 0;
}

static void *cancels(void *arg)
{
	fiber_scope_t s;
	fiber_sem_t never;

	fiber_sem_init(&never, 0);
	check_eq(0, fiber_scope_open(&s, NULL));
	check_eq(0, fiber_scope_spawn(&s, wait_in_scope, &never));
	settle();
	fiber_scope_cancel(&s, -ECANCELED);
	fiber_scope_close(&s);
	return arg;
}

/* Threads for two beyond the one processor: so many may be locked. */
static void *too_many(void *arg)
{
	struct fiber_attr attr = { .size = sizeof(attr),
				   .flags = FIBER_ATTR_LOCK };
	fiber_t *f[2], *g = NULL;

	for (int i = 0; i < 2; i++)
		check_eq(0, fiber_spawn_attr(&f[i], &attr, locked_waits, NULL));
	settle();
	check_eq(-EAGAIN, fiber_thread_lock());
	check_eq(-EAGAIN, fiber_spawn_attr(&g, &attr, locked_waits, NULL));
	check(!g);
	for (int i = 0; i < 2; i++)
		check_eq(0, fiber_sem_post(&go));
	for (int i = 0; i < 2; i++)
		join(f[i]);
	check_eq(0, fiber_thread_lock());
	check_eq(0, fiber_thread_unlock());
	return arg;
}

TEST(lock_answers)
{
	struct fiber_config cfg = {
		.size = sizeof(cfg), .processors = 1, .max_carriers = 3,
	};

	EXPECT_EQ(-EPERM, fiber_thread_lock());
	EXPECT_EQ(-EPERM, fiber_thread_unlock());
	EXPECT_EQ(-EPERM, fiber_thread_pin(0));
	clean_environment();
	fiber_sem_init(&go, 0);
	ASSERT_EQ(0, fiber_init(&cfg));
	join(spawn(nests, NULL));
	join(spawn(cancels, NULL));
	join(spawn(too_many, NULL));
	ASSERT_EQ(0, fini_soon());
	EXPECT_EQ(0, failures);
}

/* ---- CPUs ---- */

static cpu_set_t ours;

static bool runs_on(int cpu)
{
	cpu_set_t set;

	check_eq(0, sched_getaffinity(0, sizeof(set), &set));
	if (cpu < 0)
		return CPU_EQUAL(&set, &ours);
	return CPU_COUNT(&set) == 1 && CPU_ISSET(cpu, &set) &&
	       sched_getcpu() == cpu;
}

static int last_cpu(void)
{
	int cpu = CPU_SETSIZE - 1;

	while (!CPU_ISSET(cpu, &ours))
		cpu--;
	return cpu;
}

static void *begins_pinned(void *arg)
{
	check(runs_on((int)(intptr_t)arg));
	fiber_yield();
	check(runs_on((int)(intptr_t)arg));
	return NULL;
}

static void *pins(void *arg)
{
	int cpu = (int)(intptr_t)arg;

	check_eq(0, fiber_thread_lock());
	check_eq(0, fiber_thread_pin(cpu));
	check(runs_on(cpu));
	check_eq(0, fiber_sleep(10 * US));
	check(runs_on(cpu));
	check_eq(0, fiber_thread_pin(-1));
	check(runs_on(-1));
	check_eq(-EINVAL, fiber_thread_pin(8191));
	check_eq(-EINVAL, fiber_thread_pin(1 << 20));
	check_eq(-EINVAL, fiber_thread_pin(-2));
	check(runs_on(-1));
	check_eq(0, fiber_thread_pin(cpu));
	check_eq(0, fiber_thread_unlock());
	check(runs_on(-1));
	return arg;
}

static void *cpus(void *arg)
{
	struct fiber_attr attr = {
		.size = sizeof(attr),
		.flags = FIBER_ATTR_LOCK | FIBER_ATTR_CPU,
		.cpu = (unsigned int)last_cpu(),
	};
	fiber_t *f = NULL;

	for (int i = 0; i < 10; i++) {
		check_eq(0, fiber_spawn_attr(&f, &attr, begins_pinned,
					     (void *)(intptr_t)last_cpu()));
		join(f);
		check(runs_on(-1));
		join(spawn(pins, (void *)(intptr_t)last_cpu()));
		check(runs_on(-1));
	}
	attr.cpu = 8191;
	check_eq(-EINVAL, fiber_spawn_attr(&f, &attr, begins_pinned, NULL));
	attr.cpu = 0;
	attr.flags = FIBER_ATTR_CPU;
	check_eq(-EINVAL, fiber_spawn_attr(&f, &attr, begins_pinned, NULL));
	return arg;
}

TEST(lock_pins_to_a_cpu)
{
	ASSERT_EQ(0, sched_getaffinity(0, sizeof(ours), &ours));
	ASSERT_EQ(0, with_runtime(2, 0, cpus, NULL));
	EXPECT_EQ(0, failures);
}

/* ---- it is seen ---- */

static struct fiber_info seen;

static int note(const struct fiber_info *i, void *id)
{
	if (i->id == *(uint64_t *)id)
		seen = *i;
	return 0;
}

static void *looks(void *arg)
{
	fiber_t *l = spawn(locked_waits, NULL);
	uint64_t id = fiber_id(l);

	do {
		check_eq(0, fiber_walk(note, &id));
		fiber_yield();
	} while (seen.state != FIBER_PARKED);
	check(seen.locked_tid > 0 && seen.locked_tid != tid_now());
	check_eq(0, seen.tid);
	id = fiber_id(fiber_self());
	check_eq(0, fiber_walk(note, &id));
	check_eq(0, seen.locked_tid);
	check_eq(0, fiber_sem_post(&go));
	join(l);
	return arg;
}

TEST(lock_is_seen)
{
	fiber_sem_init(&go, 0);
	ASSERT_EQ(0, with_runtime(1, 0, looks, NULL));
	EXPECT_EQ(0, failures);
}

TEST_HARNESS_MAIN
