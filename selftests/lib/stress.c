// SPDX-License-Identifier: GPL-2.0-only
/*
 * Everything at once, on 1 to 3 processors: yields, children, sleeps, pipes,
 * mutexes, page faults, malloc, forks, loops without calls, and signals to the
 * process and to single threads. Every result is checked; at the end the sums
 * must be right. FIBER_LIB_STRESS_SECONDS (10) is for all three together.
 *
 * "At most N run": the fibers that are at one moment between the two points of
 * runs_alone(), where none may be preempted or blocked. Exact with the module;
 * the user backend lets a fiber run on for a moment after a block.
 */
#include "common.h"

enum { WORKERS = 40, PAGE = 4096 };

struct worker {
	int fd[2];
	atomic_int tid;
	uint32_t seed;
	unsigned long locked, ops;
	unsigned char *page;
	pthread_t feeder;
};

static struct worker worker[WORKERS];
static atomic_int stop, done, signals, running, most;
static atomic_ulong over, total;
static unsigned int processors;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static unsigned long locked;	/* mutex */

static void busy(unsigned int n)
{
	for (volatile unsigned int i = 0; i < n; i++)
		;
}

/* ---- operations ---- */

static void yields(struct worker *w)
{
	fiber_yield();
}

static void *squares(void *arg)
{
	uintptr_t n = (uintptr_t)arg;

	if (n % 3 == 0)
		fiber_yield();
	if (n % 7 == 0)
		fiber_sleep(n % 200 * US);
	return (void *)(n * n);
}

static void has_children(struct worker *w)
{
	uintptr_t n = next_random(&w->seed) % 1000;
	fiber_t *a = spawn(squares, (void *)n);
	fiber_t *b = spawn(squares, (void *)(n + 1));

	check_eq((n + 1) * (n + 1), (uintptr_t)join(b));
	check_eq(n * n, (uintptr_t)join(a));
	check_eq(0, fiber_spawn(NULL, squares, (void *)n));
}

static void sleeps(struct worker *w)
{
	check_eq(0, fiber_sleep(next_random(&w->seed) % (500 * US)));
}

static void reads_pipe(struct worker *w)
{
	unsigned char byte = 0;
	ssize_t n;

	do
		n = read(w->fd[0], &byte, 1);
	while (n < 0 && errno == EINTR);
	check_eq(1, n);
	check_eq(w - worker, byte);
}

static void locks(struct worker *w)
{
	unsigned long seen;

	check_eq(0, pthread_mutex_lock(&mutex));
	seen = locked;
	busy(next_random(&w->seed) % 500);
	if (next_random(&w->seed) % 16 == 0)
		block_ns(50 * US);
	locked = seen + 1;
	check_eq(0, pthread_mutex_unlock(&mutex));
	w->locked++;
}

static void faults(struct worker *w)
{
	volatile unsigned char *p = w->page;

	for (int i = 0; i < 4; i++)
		p[i * PAGE] = 0x77;
	busy(next_random(&w->seed) % 1000);
	for (int i = 0; i < 4; i++)
		check_eq(0x77, p[i * PAGE]);
	check_eq(0, madvise(w->page, 4 * PAGE, MADV_DONTNEED));
	for (int i = 0; i < 4; i++)
		check_eq(0, p[i * PAGE]);
}

static void allocates(struct worker *w)
{
	size_t n = 1 + next_random(&w->seed) % 3000;
	unsigned char *p = malloc(n);

	memset(p, 0x33, n);
	fiber_yield();
	for (size_t i = 0; i < n; i++)
		if (p[i] != 0x33)
			check(!"what malloc gave changed");
	free(p);
}

static void blocks(struct worker *w)
{
	block_ns(next_random(&w->seed) % (300 * US));
}

static void spins(struct worker *w)
{
	busy(next_random(&w->seed) % 200000);
}

static void forks(struct worker *w)
{
	int status = -1;
	pid_t pid, r;

	if (next_random(&w->seed) % 32)
		return;
	pid = fork();
	if (!pid)
		_exit(fiber_spawn(NULL, squares, NULL) == -EPERM ? 5 : 1);
	check(pid > 0);
	do
		r = waitpid(pid, &status, 0);
	while (r < 0 && errno == EINTR);
	check_eq(pid, r);
	check_eq(5, WEXITSTATUS(status));
}

static void runs_alone(struct worker *w)
{
	unsigned int n = next_random(&w->seed) % 2000;
	int now, old;

	fiber_no_preempt_begin();
	now = atomic_fetch_add(&running, 1) + 1;
	busy(n);
	atomic_fetch_sub(&running, 1);
	fiber_no_preempt_end();
	if (now > (int)processors)
		atomic_fetch_add(&over, 1);
	old = atomic_load(&most);
	while (now > old && !atomic_compare_exchange_weak(&most, &old, now))
		;
}

static void (*const operations[])(struct worker *) = {
	yields, has_children, sleeps, reads_pipe, locks, faults, allocates,
	blocks, spins, forks, runs_alone, runs_alone,
};

/* ---- workers and those who disturb them ---- */

static void *works(void *arg)
{
	struct worker *w = arg;

	while (!atomic_load(&stop)) {
		atomic_store(&w->tid, gettid());
		operations[next_random(&w->seed) % ARRAY_SIZE(operations)](w);
		w->ops++;
	}
	atomic_store(&w->tid, 0);
	atomic_fetch_add(&total, w->ops);
	atomic_fetch_add(&done, 1);
	return NULL;
}

static void on_signal(int sig)
{
	atomic_fetch_add(&signals, 1);
}

/* Feeds the pipes; signals the process and a worker's thread in turn. */
static void *disturbs(void *arg)
{
	uint32_t seed = 99;

	for (unsigned int i = 0; atomic_load(&done) < WORKERS; i++) {
		unsigned int k = next_random(&seed) % WORKERS;
		unsigned char byte;
		int tid = atomic_load(&worker[k].tid);

		for (byte = 0; byte < WORKERS; byte++)
			(void)!write(worker[byte].fd[1], &byte, 1);
		if (i % 2 && tid)
			tgkill(getpid(), tid, SIGUSR1);
		else
			kill(getpid(), SIGUSR1);
		block_ns(1 * MS);
	}
	return NULL;
}

static void prepare(struct worker *w, uint32_t seed)
{
	check_eq(0, pipe2(w->fd, O_CLOEXEC));
	check_eq(0, fcntl(w->fd[1], F_SETFL, O_NONBLOCK));
	w->seed = seed;
	w->page = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	check(w->page != MAP_FAILED);
}

static uint64_t seconds(void)
{
	const char *s = getenv("FIBER_LIB_STRESS_SECONDS");

	return s && atoi(s) > 0 ? (uint64_t)atoi(s) : 10;
}

static int start_with_short_quantum(unsigned int n)
{
	int r = start(n, 200 * US);

	if (r || on_kernel())
		return r;
	fiber_fini();
	return start(n, 1 * MS);
}

static void wait_while_working(struct __test_metadata *_metadata)
{
	uint64_t until = now_ns() + seconds() * SEC / 3;

	while (now_ns() < until) {
		struct fiber_stats st = stats();

		EXPECT_GE(processors, st.idle);
		EXPECT_GE(st.carriers, st.spares);
		block_ns(10 * MS);
	}
}

static void stress(struct __test_metadata *_metadata, unsigned int n)
{
	struct sigaction act = { .sa_handler = on_signal,
				 .sa_flags = SA_RESTART };
	fiber_t *f[WORKERS];
	struct fiber_stats st;
	unsigned long sum = 0;
	pthread_t thread;
	bool kernel;

	processors = n;
	ASSERT_EQ(0, sigaction(SIGUSR1, &act, NULL));
	ASSERT_EQ(0, start_with_short_quantum(n));
	kernel = on_kernel();
	for (int i = 0; i < WORKERS; i++)
		prepare(&worker[i], (uint32_t)i + 1);
	for (int i = 0; i < WORKERS; i++)
		f[i] = spawn(works, &worker[i]);
	ASSERT_EQ(0, pthread_create(&thread, NULL, disturbs, NULL));
	wait_while_working(_metadata);
	atomic_store(&stop, 1);
	for (int i = 0; i < WORKERS; i++) {
		join(f[i]);
		sum += worker[i].locked;
	}
	ASSERT_EQ(0, pthread_join(thread, NULL));
	st = stats();
	figure("stress: processors=%u %lu operations, %d signals, %lu "
	       "handoffs, %lu preemptions, %u carriers, at most %d at once\n",
	       n, total, signals, st.handoffs, st.preemptions, st.carriers,
	       most);
	EXPECT_EQ(sum, locked);
	EXPECT_LT(WORKERS, total);
	EXPECT_LT(0, signals);
	EXPECT_EQ(0, failures);
	if (kernel)
		EXPECT_EQ(0, over);
	ASSERT_EQ(0, fini_soon());	/* detached children */
	EXPECT_EQ(-EPERM, fiber_spawn(NULL, squares, NULL));
}

TEST(stress_one_processor) { stress(_metadata, 1); }
TEST(stress_two_processors) { stress(_metadata, 2); }
TEST(stress_three_processors) { stress(_metadata, 3); }

TEST_HARNESS_MAIN
