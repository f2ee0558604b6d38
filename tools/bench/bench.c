// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * bench.c - the rows, around the operations of ours or a peer
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "bench.h"

#define MS 1000000LL

static clockid_t clock_id = CLOCK_MONOTONIC;

static long long now_on(clockid_t id)
{
	struct timespec ts;

	clock_gettime(id, &ts);
	return ts.tv_sec * 1000 * MS + ts.tv_nsec;
}

long long bench_now(void)
{
	return now_on(clock_id);
}

long long bench_monotonic(void)
{
	return now_on(CLOCK_MONOTONIC);
}

int bench_processors(int argc, char **argv)
{
	const char *row = argc > 1 ? argv[1] : "";
	size_t n = strlen(row);

	return !strcmp(row, "blocked") || (n && row[n - 1] == '2') ? 2 : 1;
}

static long long timed(void (*run)(long), long n)
{
	long long t = bench_now();

	run(n);
	return bench_now() - t;
}

/* Warms up, finds a count that takes 0.4 s, and measures that. */
static int row_loop(const char *row, void (*run)(long))
{
	long n = 64;
	long long ns;

	while ((ns = timed(run, n)) < 40 * MS)
		n *= 2;
	n = n * (400.0 * MS / ns) + 1;
	printf("%s %.3f\n", row, (double)timed(run, n) / n);
	return 0;
}

static int row_yield(const char *row, void (*run)(struct bench_yield *))
{
	struct bench_yield warm = { .fibers = row[5] ? atol(row + 6) : 2 };
	struct bench_yield y = warm;

	warm.rounds = 300000 / warm.fibers + 1;
	run(&warm);
	y.rounds = warm.rounds * (400.0 * MS / (warm.end - warm.begin + 1)) + 1;
	run(&y);
	printf("%s %.3f\n", row,
	       (double)(y.end - y.begin) / y.rounds / y.fibers);
	return 0;
}

/* fib(n) is called 2 fib(n + 1) - 1 times. */
static int row_fib(const char *row, long (*fib)(long), long n)
{
	long a = 0, b = 1, i, r;
	long long t;

	for (i = 0; i < n; i++) {
		b += a;
		a = b - a;
	}
	fib(n < 20 ? n : 20);
	t = bench_now();
	r = fib(n);
	t = bench_now() - t;
	if (r != a) {
		fprintf(stderr, "fib(%ld) = %ld, not %ld\n", n, r, a);
		return 1;
	}
	printf("%s %.3f\n", row, (double)t / (2 * b - 1));
	return 0;
}

static int row_skynet(const char *row, long (*skynet)(long))
{
	long long t;
	long r;

	skynet(10000);
	t = bench_now();
	r = skynet(1000000);
	t = bench_now() - t;
	if (r != 499999500000) {
		fprintf(stderr, "skynet = %ld\n", r);
		return 1;
	}
	printf("%s %.3f\n", row, (double)t / MS);
	return 0;
}

void bench_lockers_end(struct bench_lock *b)
{
	if (b->count != (b->n / BENCH_LOCKERS + 1) * BENCH_LOCKERS) {
		fprintf(stderr, "%ld of %ld were counted\n", b->count, b->n);
		exit(1);
	}
}

/* ---- parked ---- */

/* Resident, and what the kernel needs to know where. */
long long bench_memory(void)
{
	FILE *file = fopen("/proc/self/status", "re");
	long long kib = 0, n;
	char line[128];

	while (file && fgets(line, sizeof(line), file))
		if (sscanf(line, "VmRSS: %lld", &n) == 1 ||
		    sscanf(line, "VmPTE: %lld", &n) == 1)
			kib += n;
	if (file)
		fclose(file);
	return kib * 1024;
}

static int row_parked(const char *row, void (*run)(struct bench_parked *))
{
	struct bench_parked b = { .fibers = 1000000, .small = row[6] != 0 };

	run(&b);
	printf("%s-create %.3f\n%s-wake %.3f\n%s-bytes %ld\n", row,
	       (double)b.create / MS, row, (double)b.wake / MS, row, b.bytes);
	return 0;
}

/* ---- blocked readers ---- */

static long entered, ended;		/* atomic */
static long long began, wake[BENCH_READERS];

/* The last one to enter tells the writer; each message is its own time. */
void bench_read(long i)
{
	long long sent, t;

	if (__atomic_add_fetch(&entered, 1, __ATOMIC_SEQ_CST) == BENCH_READERS) {
		t = bench_now() - began;
		if (write(BENCH_ENTERED_FD, &t, sizeof(t)) != sizeof(t))
			abort();
	}
	if (read(BENCH_READ_FD + i, &sent, sizeof(sent)) != sizeof(sent))
		abort();
	wake[i] = bench_now() - sent;
	__atomic_add_fetch(&ended, 1, __ATOMIC_SEQ_CST);
}

void bench_spin(void)
{
	while (__atomic_load_n(&ended, __ATOMIC_RELAXED) < BENCH_READERS)
		;
}

static int by_value(const void *a, const void *b)
{
	long long x = *(const long long *)a, y = *(const long long *)b;

	return (x > y) - (x < y);
}

/* pipes.c prints blocked-entered. */
static int row_blocked(void (*blocked)(void))
{
	began = bench_now();
	blocked();
	qsort(wake, BENCH_READERS, sizeof(*wake), by_value);
	printf("blocked-wake %.3f\nblocked-wake-p99 %.3f\n",
	       wake[BENCH_READERS / 2] / 1e3,
	       wake[BENCH_READERS * 99 / 100] / 1e3);
	return 0;
}

/* ---- sleepers ---- */

enum { SLEEPERS = 10000, SLEEPS_MAX = 1 << 20 };
#define SLEEP_FOR (3000 * MS)

static long asleep, sleeps;			/* atomic */
static long long sleep_end, cpu_begin, cpu_end, late[SLEEPS_MAX];

static void note_sleep(long long ns)
{
	long n = __atomic_fetch_add(&sleeps, 1, __ATOMIC_RELAXED);

	if (n < SLEEPS_MAX)
		late[n] = ns;
}

/*
 * Sleeps for 1 to 200 ms, over and over; for SLEEP_FOR after the last one has
 * begun, sleeps are counted. The clock is read once for each.
 */
void bench_sleeper(long i, void (*sleep_until)(long long ns))
{
	unsigned long seed = (unsigned long)i * 2654435761u + 1;
	long long t, now = now_on(CLOCK_MONOTONIC), end = 0;

	if (__atomic_add_fetch(&asleep, 1, __ATOMIC_RELAXED) == SLEEPERS) {
		cpu_begin = bench_now();
		__atomic_store_n(&sleep_end, now + SLEEP_FOR, __ATOMIC_RELEASE);
	}
	while (!end || now < end) {
		seed = seed * 6364136223846793005u + 1442695040888963407u;
		t = now + MS + (long long)((seed >> 33) % (199 * MS));
		sleep_until(t);
		now = now_on(CLOCK_MONOTONIC);
		if (end && now < end)
			note_sleep(now - t);
		end = __atomic_load_n(&sleep_end, __ATOMIC_ACQUIRE);
	}
	if (!cpu_end)		/* the first */
		cpu_end = bench_now();
}

static int row_timer(void (*sleepers)(long n))
{
	long n;

	sleepers(SLEEPERS);
	n = sleeps < SLEEPS_MAX ? sleeps : SLEEPS_MAX;
	qsort(late, n, sizeof(*late), by_value);
	printf("timer-cpu %.3f\ntimer-p50 %.3f\ntimer-p99 %.3f\n",
	       (double)(cpu_end - cpu_begin) / sleeps, late[n / 2] / 1e3,
	       late[n * 99 / 100] / 1e3);
	return 0;
}

/* ---- files ---- */

int bench_file = -1;

/* Each page begins with where it is. It is gone when the process is. */
static void make_file(void)
{
	const char *dir = getenv("BENCH_DIR");
	static long page[BENCH_PAGE / sizeof(long)];
	char path[4096];

	snprintf(path, sizeof(path), "%s/pages-XXXXXX", dir ? dir : "/tmp");
	bench_file = mkstemp(path);
	if (bench_file >= 0)
		unlink(path);
	for (; page[0] < BENCH_FILE && bench_file >= 0; page[0] += BENCH_PAGE)
		if (write(bench_file, page, BENCH_PAGE) != BENCH_PAGE)
			break;
	if (page[0] < BENCH_FILE) {
		perror(path);
		exit(1);
	}
}

void bench_page(const char *page, long at, long r)
{
	long is;

	memcpy(&is, page, sizeof(is));
	if (r != BENCH_PAGE || is != at) {
		fprintf(stderr, "page %ld: result %ld, page %ld\n", at, r, is);
		exit(1);
	}
}

static int row_pread(const char *row, void (*preads)(long))
{
	make_file();
	return row_loop(row, preads);
}

int bench_main(int argc, char **argv, const struct bench_ops *ops)
{
	const char *row = argc > 1 ? argv[1] : "";

	if (bench_processors(argc, argv) == 1)
		clock_id = CLOCK_PROCESS_CPUTIME_ID;
	if (!strcmp(row, "switch") && ops->switches)
		return row_loop(row, ops->switches);
	if (!strcmp(row, "switch-called") && ops->switches_called)
		return row_loop(row, ops->switches_called);
	if (!strncmp(row, "chan", 4) && ops->hop)
		return row_loop(row, ops->hop);
	if (!strncmp(row, "buf", 3) && ops->buffered)
		return row_loop(row, ops->buffered);
	if (!strncmp(row, "mutex-yield", 11))
		return ops->mutex_yield ? row_loop(row, ops->mutex_yield) : 77;
	if (!strncmp(row, "mutex", 5) && ops->mutex)
		return row_loop(row, ops->mutex);
	if (!strcmp(row, "spawn") && ops->spawn)
		return row_loop(row, ops->spawn);
	if (!strncmp(row, "yield", 5) && ops->yields)
		return row_yield(row, ops->yields);
	if (!strncmp(row, "fib", 3) && ops->fib)
		return row_fib(row, ops->fib, ops->fib_n ? ops->fib_n : 30);
	if (!strncmp(row, "skynet", 6) && ops->skynet)
		return row_skynet(row, ops->skynet);
	if (!strncmp(row, "parked", 6) && ops->parked)
		return row_parked(row, ops->parked);
	if (!strcmp(row, "coro") && ops->coro)
		return row_loop(row, ops->coro);
	if (!strcmp(row, "coro-create") && ops->coro_create)
		return row_loop(row, ops->coro_create);
	if (!strcmp(row, "blocked") && ops->blocked)
		return row_blocked(ops->blocked);
	if (!strcmp(row, "timer") && ops->sleepers)
		return row_timer(ops->sleepers);
	if (!strncmp(row, "pread", 5) && ops->preads)
		return row_pread(row, ops->preads);
	if (!strncmp(row, "echo", 4) && ops->echo) {
		ops->echo(BENCH_LISTEN_FD);
		return 1;		/* it should not have returned */
	}
	return 77;
}
