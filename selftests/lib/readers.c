// SPDX-License-Identifier: GPL-2.0-only
/*
 * Two processors, two fibers that spin without a call, a hundred fibers each in
 * a raw read(2) on its own pipe. How long until all have entered the read, and
 * how long from a write until its reader runs again? The same for plain threads.
 *
 * A reader sets its mark just before the call, so "entered" means: all marks
 * are set. Three rounds of writes: all at once; one every millisecond, twice.
 * On a busy host the bounds grow with what the plain threads needed.
 */
#include "common.h"

enum { READERS = 100, HOGS = 2, ROUNDS = 3 };

struct reader {
	int fd[2];
	atomic_int entered;
	_Atomic uint64_t sent;
	uint64_t latency[ROUNDS];
	int rounds;
};

static struct reader reader[READERS];
static atomic_int stop, entered_count, woken_count;
static _Atomic uint64_t last_entered;

static void *hog(void *arg)
{
	volatile unsigned long *n = arg;

	while (!atomic_load_explicit(&stop, memory_order_relaxed))
		++*n;
	return NULL;
}

static void *reads(void *arg)
{
	struct reader *r = arg;
	char byte;

	for (r->rounds = 0; r->rounds < ROUNDS; r->rounds++) {
		if (!r->rounds) {
			atomic_store(&r->entered, 1);
			if (atomic_fetch_add(&entered_count, 1) == READERS - 1)
				atomic_store(&last_entered, now_ns());
		}
		if (read(r->fd[0], &byte, 1) != 1) {
			check(!"read");
			break;
		}
		r->latency[r->rounds] = now_ns() - atomic_load(&r->sent);
		atomic_fetch_add(&woken_count, 1);
	}
	return NULL;
}

/* ---- how to start a body: as a fiber, or as a thread ---- */

struct kind {
	const char *name;
	bool hogs_first;
	bool threads;
};

static unsigned long spins[HOGS];
static fiber_t *fibers[READERS + HOGS];
static pthread_t threads[READERS + HOGS];

static void begin(const struct kind *k, int i, void *(*fn)(void *), void *arg)
{
	if (k->threads)
		check_eq(0, pthread_create(&threads[i], NULL, fn, arg));
	else
		check_eq(0, fiber_spawn(&fibers[i], fn, arg));
}

static void *begin_all(void *arg)
{
	const struct kind *k = arg;

	for (int i = 0; k->hogs_first && i < HOGS; i++)
		begin(k, READERS + i, hog, &spins[i]);
	for (int i = 0; i < READERS; i++)
		begin(k, i, reads, &reader[i]);
	for (int i = 0; !k->hogs_first && i < HOGS; i++)
		begin(k, READERS + i, hog, &spins[i]);
	return NULL;
}

static void end_all(const struct kind *k)
{
	for (int i = 0; i < READERS + HOGS; i++) {
		if (k->threads)
			check_eq(0, pthread_join(threads[i], NULL));
		else
			check_eq(0, fiber_join(fibers[i], NULL));
	}
}

/* ---- measuring, from the test's own thread ---- */

static bool wait_for(atomic_int *n, int want)
{
	uint64_t until = now_ns() + PATIENCE * SEC;

	while (atomic_load(n) < want && now_ns() < until)
		block_ns(200 * US);
	return atomic_load(n) >= want;
}

static void write_all(int round, uint64_t gap_ns)
{
	for (int i = 0; i < READERS; i++) {
		atomic_store(&reader[i].sent, now_ns());
		check_eq(1, write(reader[i].fd[1], "w", 1));
		if (gap_ns)
			block_ns(gap_ns);
	}
	check(wait_for(&woken_count, READERS * (round + 1)));
}

struct result {
	uint64_t entered, quanta, burst_p50, burst_p99, p50, p99;
};

static uint64_t larger(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

static void collect(struct result *r)
{
	static uint64_t v[2 * READERS];

	for (int i = 0; i < READERS; i++)
		v[i] = reader[i].latency[0];
	r->burst_p50 = percentile(v, READERS, 50);
	r->burst_p99 = percentile(v, READERS, 99);
	for (int i = 0; i < READERS; i++) {
		v[i] = reader[i].latency[1];
		v[READERS + i] = reader[i].latency[2];
	}
	r->p50 = percentile(v, ARRAY_SIZE(v), 50);
	r->p99 = percentile(v, ARRAY_SIZE(v), 99);
}

static void print(const struct kind *k, const struct result *r)
{
	struct fiber_stats st = { .size = sizeof(st) };

	if (!k->threads)
		st = stats();
	figure("readers: %s entered_ms=%.1f quanta=%lu wake_p50_us=%lu wake_p99_us=%lu "
	       "burst_p50_us=%lu burst_p99_us=%lu handoffs=%lu "
	       "preemptions=%lu carriers=%u\n", k->name,
	       (double)r->entered / 1e6, r->quanta, r->p50 / US, r->p99 / US,
	       r->burst_p50 / US, r->burst_p99 / US, st.handoffs,
	       st.preemptions, st.carriers);
}

static struct result measure(const struct kind *k)
{
	struct result r = { 0 };
	fiber_t *first;
	uint64_t t = now_ns();

	if (k->threads)
		begin_all((void *)k);
	else
		check_eq(0, fiber_spawn(&first, begin_all, (void *)k));
	check(wait_for(&entered_count, READERS));
	check(until(atomic_load(&last_entered)));	/* counted, then noted */
	r.entered = atomic_load(&last_entered) - t;
	r.quanta = k->threads ? 0 : stats().preemptions;
	block_ns(100 * MS);
	for (int round = 0; round < ROUNDS && !failures; round++)
		write_all(round, round ? 1 * MS : 0);
	collect(&r);
	print(k, &r);
	atomic_store(&stop, 1);
	for (int i = 0; i < READERS; i++)	/* also ends late ones */
		close(reader[i].fd[1]);
	if (!k->threads)
		check_eq(0, fiber_join(first, NULL));
	end_all(k);
	return r;
}

/* As if nothing had been before. */
static void begin_anew(void)
{
	atomic_store(&stop, 0);
	atomic_store(&entered_count, 0);
	atomic_store(&last_entered, 0);
	atomic_store(&woken_count, 0);
	for (int i = 0; i < READERS; i++)
		check_eq(0, pipe2(reader[i].fd, O_CLOEXEC));
}

static void close_all(void)
{
	for (int i = 0; i < READERS; i++)
		close(reader[i].fd[0]);
}

/* The machine itself: what threads do when the CPUs are shared out fairly. */
static struct result measure_threads(void)
{
	struct kind k = { "threads", true, true };
	struct result r;

	begin_anew();
	r = measure(&k);
	close_all();
	return r;
}

static struct result measure_fibers(const struct kind *k, bool *kernel)
{
	struct result r;

	begin_anew();
	check_eq(0, start(2, 0));
	*kernel = on_kernel();
	r = measure(k);
	check_eq(0, fiber_fini());
	close_all();
	return r;
}

/*
 * Beside threads at about the same time, and the best of some tries, since what
 * the host does may change in between. Where it has other work, the hogs' quanta
 * are the clock.
 */
static void run_fibers(struct __test_metadata *_metadata, const struct kind *k)
{
	struct result threads, r = { 0 };
	uint64_t entered = 0, p50 = 0;
	bool kernel = true;

	for (int try = 0; try < 4 && !failures; try++) {
		threads = measure_threads();
		r = measure_fibers(k, &kernel);
		entered = larger(50 * MS * allowance(), 3 * threads.entered);
		p50 = larger(20 * MS * (in_vm() ? 2 : 1), 3 * threads.p99);
		if (!kernel || ((r.quanta <= READERS / 2 ||
				 r.entered <= entered) && r.p50 <= p50))
			break;
	}
	EXPECT_EQ(0, failures);
	if (!kernel)
		return;
	if (r.quanta > READERS / 2)
		EXPECT_GE(entered, r.entered);
	EXPECT_GE(p50, r.p50);
}

TEST(fibers_readers_first)
{
	struct kind k = { "fibers-readers-first", false, false };

	run_fibers(_metadata, &k);
}

TEST(fibers_hogs_first)
{
	struct kind k = { "fibers-hogs-first", true, false };

	run_fibers(_metadata, &k);
}

TEST_HARNESS_MAIN
