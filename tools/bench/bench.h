/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * bench.h - what ours and the peers in C and C++ share
 *
 * `PROGRAM ROW` runs one row and prints `ROW FIGURE`, or ends with 77 if it
 * does not have that row. Rows whose names end in 2, and `blocked`, use two
 * processors, the others one. Rows of one processor are timed by the CPU time
 * of the whole process, so that other programs on the machine matter less.
 * `echo` prints nothing: it serves, and load/echo.c measures.
 */
#ifndef BENCH_H
#define BENCH_H

#ifdef __cplusplus
extern "C" {
#endif

#define BENCH_READERS	100
#define BENCH_READ_FD	100	/* 100 ... 199: pipes of pipes/pipes.c */
#define BENCH_ENTERED_FD 99	/* where it hears that all have entered */

#define BENCH_LISTEN_FD	98	/* of load/echo.c: the socket that listens */
#define BENCH_ECHO_BUFFER 16384

#define BENCH_PAGE	4096
#define BENCH_FILE	(64 << 20)	/* bytes */

#define BENCH_SLOTS	128
#define BENCH_LOCKERS	8

/* One row of yields: so many fibers yield so often each. */
struct bench_yield {
	long fibers, rounds;
	long started, ended;		/* atomic */
	long long begin, end;
};

struct bench_node {
	long first, size;
};

/* Very many fibers, of a small stack if there is a choice, parked and woken. */
struct bench_parked {
	long fibers;
	int small;
	/* out */
	long long create, wake;		/* ns: all of them */
	long bytes;			/* each, page tables too */
};

/* A row without its function is one the peer does not have. */
struct bench_ops {
	void (*switches)(long n);	/* n switches */
	void (*switches_called)(long n);
	void (*spawn)(long n);		/* n times spawn, run, join */
	void (*yields)(struct bench_yield *y);	/* bench_yielder in each fiber */
	long (*fib)(long n);		/* each call in a fiber of its own */
	long fib_n;			/* 0: 30 */
	long (*skynet)(long leaves);	/* the sum of their numbers */
	void (*hop)(long n);		/* n values from one to another, no buffer */
	void (*buffered)(long n);	/* the same with BENCH_SLOTS */
	void (*mutex)(long n);		/* BENCH_LOCKERS lock and unlock, n in all */
	void (*mutex_yield)(long n);	/* the same, each holder yields */
	void (*parked)(struct bench_parked *b);
	void (*blocked)(void);		/* 2 bench_spin, 100 bench_read */
	void (*sleepers)(long n);	/* bench_sleeper in each of n fibers */
	void (*coro)(long n);		/* n times resume, yield, with a value */
	void (*coro_create)(long n);	/* n times create, run to the end, free */
	void (*echo)(int fd);		/* serve who comes to fd, until killed */
	void (*preads)(long n);		/* n pages of bench_file, in random order */
};

int bench_processors(int argc, char **argv);
int bench_main(int argc, char **argv, const struct bench_ops *ops);
long long bench_now(void);		/* on the clock of this row */
long long bench_monotonic(void);	/* CLOCK_MONOTONIC ns */
long long bench_memory(void);		/* bytes of this process */
void bench_read(long i);
void bench_spin(void);
void bench_sleeper(long i, void (*sleep_until)(long long ns));

extern int bench_file;			/* BENCH_FILE bytes, in the page cache */

/* Where the next page is to be read. */
static inline long bench_offset(unsigned long *seed)
{
	*seed = *seed * 6364136223846793005u + 1442695040888963407u;
	return (long)(*seed >> 33) % (BENCH_FILE / BENCH_PAGE) * BENCH_PAGE;
}

/* That page was read, with result r: is it the right one? */
void bench_page(const char *page, long at, long r);

/*
 * The body of a yielding fiber: all wait until all have started; the first to
 * see it reads the clock, and so does the last to end.
 */
static inline __attribute__((always_inline)) void
bench_yielder(struct bench_yield *y, void (*yield)(void))
{
	long round;

	__atomic_fetch_add(&y->started, 1, __ATOMIC_RELAXED);
	while (__atomic_load_n(&y->started, __ATOMIC_RELAXED) < y->fibers)
		yield();
	if (!y->begin)
		y->begin = bench_now();
	for (round = 0; round < y->rounds; round++)
		yield();
	if (__atomic_add_fetch(&y->ended, 1, __ATOMIC_RELAXED) == y->fibers)
		y->end = bench_now();
}

/* Lockers: n times in all, once all have started. */
struct bench_lock {
	long n, started;		/* started: atomic */
	long count;			/* under the lock */
};

/* How often each is to lock, when all have started. */
static inline __attribute__((always_inline)) long
bench_lockers_ready(struct bench_lock *b, void (*yield)(void))
{
	__atomic_fetch_add(&b->started, 1, __ATOMIC_RELAXED);
	while (__atomic_load_n(&b->started, __ATOMIC_RELAXED) < BENCH_LOCKERS)
		yield();
	return b->n / BENCH_LOCKERS + 1;
}

void bench_lockers_end(struct bench_lock *b);

#ifdef __cplusplus
}
#endif
#endif
