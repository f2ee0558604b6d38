// SPDX-License-Identifier: GPL-2.0-only
/*
 * Preemption: loops without calls share a processor, and nothing they use is
 * harmed. The quantum is 50 us with the module, 1 ms with signals.
 */
#include <arpa/inet.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/wait.h>

#include "common.h"
#include "regs.h"

static atomic_int stop;

static void *hog(void *arg)
{
	atomic_ulong *n = arg;
	unsigned long i = 0;

	while (!atomic_load_explicit(&stop, memory_order_relaxed))
		atomic_store_explicit(n, ++i, memory_order_relaxed);
	return NULL;
}

/* ---- shares ---- */

enum { TURNS = 4096 };

/* struct turns - how long each turn of a hog was, in time stamp counts */
struct turns {
	uint64_t v[TURNS];
	atomic_size_t n;		/* the hog alone writes */
};

static struct turns turns[2];
static atomic_int runner;	/* who counts now */

/*
 * A turn lasts from the hog's first look after another had it to its last. No
 * call, so that it may be preempted anywhere.
 */
static void *timed_hog(void *arg)
{
	struct turns *mine = arg;
	int me = (int)(mine - turns) + 1;
	uint64_t start = 0, last = 0, now;
	size_t n = 0;

	while (!atomic_load_explicit(&stop, memory_order_relaxed)) {
		now = __builtin_ia32_rdtsc();
		if (atomic_load_explicit(&runner, memory_order_relaxed) != me) {
			if (start && n < TURNS) {
				mine->v[n++] = last - start;
				atomic_store_explicit(&mine->n, n, memory_order_relaxed);
			}
			atomic_store(&runner, me);
			start = now;
		}
		last = now;
	}
	return NULL;
}

/*
 * Per cent, of turns that little disturbed: the shorter ones. Where another
 * process has the CPU, that counts as the time of the hog whose turn it is, and on
 * a busy machine that befalls most turns.
 */
static double share_of_two(void)
{
	uint64_t turn[2];
	fiber_t *f[2];

	turns[0].n = 0;
	turns[1].n = 0;
	atomic_store(&runner, 0);
	atomic_store(&stop, 0);
	for (int i = 0; i < 2; i++)
		f[i] = spawn(timed_hog, &turns[i]);
	block_ns(2 * SEC);
	check(until(turns[0].n > 20 && turns[1].n > 20));
	atomic_store(&stop, 1);
	for (int i = 0; i < 2; i++) {
		join(f[i]);
		turn[i] = percentile(turns[i].v, turns[i].n, 10);
	}
	return 100.0 * (double)turn[0] / (double)(turn[0] + turn[1]);
}

/* 45 to 55%; a monitor that is itself emulated comes too late for that. */
static void run_shares(struct __test_metadata *_metadata, uint64_t quantum)
{
	double share = 0, off;

	ASSERT_EQ(0, start(1, quantum));
	off = in_vm() && !on_kernel() ? 20 : 5;
	for (int try = 0; try < 15; try++) {
		share = share_of_two();
		figure("shares: quantum_us=%lu %.1f%% and %.1f%% of %zu turns, "
		       "%lu preemptions\n", quantum / US, share, 100 - share,
		       turns[0].n + turns[1].n, stats().preemptions);
		if (share >= 50 - off && share <= 50 + off)
			break;
	}
	ASSERT_EQ(0, fiber_fini());
	EXPECT_EQ(0, failures);
	EXPECT_LE(50 - off, share);
	EXPECT_GE(50 + off, share);
}

TEST(two_hogs_share_a_processor) { run_shares(_metadata, 10 * MS); }
TEST(two_hogs_share_at_1_ms) { run_shares(_metadata, 1 * MS); }

/* ---- nobody starves behind hogs ---- */

static atomic_int ran;

static void *runs_once(void *arg)
{
	atomic_fetch_add(&ran, 1);
	return NULL;
}

/* Fibers of a plain thread are in the global queue; preemption must look there. */
static void run_beside_hogs(struct __test_metadata *_metadata, int hogs)
{
	atomic_ulong n[3] = { 0 };
	fiber_t *f[3], *one;

	ASSERT_EQ(0, start(1, 1 * MS));
	for (int i = 0; i < hogs; i++)
		f[i] = spawn(hog, &n[i]);
	block_ns(50 * MS);
	for (int i = 1; i <= 10; i++) {
		one = spawn(runs_once, NULL);
		EXPECT_TRUE(until(atomic_load(&ran) == i));
		fiber_detach(one);
	}
	for (int i = 0; i < hogs; i++)
		EXPECT_TRUE(until(n[i]));
	atomic_store(&stop, 1);
	for (int i = 0; i < hogs; i++)
		join(f[i]);
	EXPECT_EQ(0, failures);
}

TEST(plain_spawn_beside_one_hog) { run_beside_hogs(_metadata, 1); }
TEST(plain_spawn_beside_three_hogs) { run_beside_hogs(_metadata, 3); }

/* ---- registers ---- */

static void *spins_with_registers(void *arg)
{
	uint64_t seed = (uint64_t)(uintptr_t)arg * 0x123456789abcdfULL;

	while (!atomic_load(&stop))
		check_eq(0, regs_spin(seed++, 20000));
	return NULL;
}

TEST(registers_are_kept)
{
	uint64_t enough = now_ns() + (in_vm() ? 25 : 8) * SEC;
	uint64_t want = 50000, seen = 0;
	fiber_t *f[3];

	__builtin_cpu_init();
	regs_avx = __builtin_cpu_supports("avx");
	ASSERT_EQ(0, regs_spin(0x1234567, 10));
	ASSERT_EQ(0, start(1, 50 * US));
	if (!on_kernel()) {
		ASSERT_EQ(0, fiber_fini());
		ASSERT_EQ(0, start(1, 1 * MS));
		want = 2000;
	}
	for (uintptr_t i = 0; i < 3; i++)
		f[i] = spawn(spins_with_registers, (void *)(i + 1));
	/* As many as there is time for, and as long as it takes for some. */
	while (seen < want && !failures &&
	       (seen <= want / 20 || now_ns() < enough)) {
		block_ns(50 * MS);
		seen = stats().preemptions;
	}
	atomic_store(&stop, 1);
	for (int i = 0; i < 3; i++)
		join(f[i]);
	figure("registers: %lu preemptions\n", seen);
	ASSERT_EQ(0, fiber_fini());
	EXPECT_LT(want / 20, seen);
	EXPECT_EQ(0, failures);
}

/* ---- malloc ---- */

static atomic_ulong allocations;

static void *allocates(void *arg)
{
	uint32_t seed = (uint32_t)(uintptr_t)arg + 1;
	unsigned char *held[64] = { 0 };
	size_t size[64] = { 0 };

	while (!atomic_load(&stop)) {
		unsigned int i = next_random(&seed) % 64;

		if (held[i])
			check(held[i][0] == i && held[i][size[i] - 1] == i);
		free(held[i]);
		size[i] = 1 + seed % 5000;
		held[i] = malloc(size[i]);
		held[i][0] = held[i][size[i] - 1] = (unsigned char)i;
		atomic_fetch_add(&allocations, 1);
	}
	for (int i = 0; i < 64; i++)
		free(held[i]);
	return NULL;
}

static void run_malloc(struct __test_metadata *_metadata, unsigned int n)
{
	unsigned long before = 0, now = 0;
	fiber_t *f[4];

	ASSERT_EQ(0, start(n, 1 * MS));
	for (uintptr_t i = 0; i < 4; i++)
		f[i] = spawn(allocates, (void *)i);
	for (int i = 0; i < 8; i++) {
		block_ns(500 * MS);
		EXPECT_TRUE(until(atomic_load(&allocations) != before));
		before = now = atomic_load(&allocations);
	}
	atomic_store(&stop, 1);
	for (int i = 0; i < 4; i++)
		join(f[i]);
	figure("malloc: processors=%u %lu allocations, %lu preemptions\n", n,
	       now, stats().preemptions);
	ASSERT_EQ(0, fiber_fini());
	EXPECT_EQ(0, failures);
}

TEST(malloc_under_preemption_on_one) { run_malloc(_metadata, 1); }
TEST(malloc_under_preemption_on_two) { run_malloc(_metadata, 2); }

/* ---- EINTR ---- */

static int pipe_fd[2];
static atomic_ulong eintr, calls;

static void note(long r)
{
	atomic_fetch_add(&calls, 1);
	if (r >= 0)
		return;
	if (errno == EINTR)
		atomic_fetch_add(&eintr, 1);
	else
		failed(__FILE__, __LINE__, "%s", strerror(errno));
}

static void *makes_calls(void *arg)
{
	struct epoll_event e;
	int fd = epoll_create1(EPOLL_CLOEXEC);
	char byte;

	while (!atomic_load(&stop)) {
		note(block_ns(200 * US));
		note(epoll_wait(fd, &e, 1, 1));
		note(read(pipe_fd[0], &byte, 1));
		note(poll(NULL, 0, 1));
	}
	close(fd);
	return NULL;
}

static void *feeds(void *arg)
{
	while (!atomic_load((atomic_int *)arg)) {
		if (write(pipe_fd[1], "f", 1) != 1)
			check_eq(EAGAIN, errno);	/* full */
		block_ns(500 * US);
	}
	return NULL;
}

TEST(no_call_returns_eintr)
{
	static atomic_int end;
	atomic_ulong n[2] = { 0 };
	pthread_t thread;
	fiber_t *f[4];
	bool kernel;

	ASSERT_EQ(0, pipe(pipe_fd));
	ASSERT_EQ(0, fcntl(pipe_fd[1], F_SETFL, O_NONBLOCK));
	ASSERT_EQ(0, start(1, 1 * MS));
	kernel = on_kernel();
	ASSERT_EQ(0, pthread_create(&thread, NULL, feeds, &end));
	for (int i = 0; i < 2; i++)
		f[i] = spawn(hog, &n[i]);
	for (int i = 2; i < 4; i++)
		f[i] = spawn(makes_calls, NULL);
	block_ns(3 * SEC);
	EXPECT_TRUE(until(atomic_load(&calls) > 20));
	atomic_store(&stop, 1);
	for (int i = 0; i < 4; i++)
		join(f[i]);
	atomic_store(&end, 1);
	ASSERT_EQ(0, pthread_join(thread, NULL));
	figure("eintr: %lu of %lu calls, %lu preemptions\n", eintr, calls,
	       stats().preemptions);
	ASSERT_EQ(0, fiber_fini());
	EXPECT_EQ(0, failures);
	if (kernel)
		EXPECT_EQ(0, eintr);
}

/* ---- no_preempt ---- */

static volatile unsigned long left, right;
static atomic_ulong torn, sections;

static void *guards(void *arg)
{
	while (!atomic_load(&stop)) {
		fiber_no_preempt_begin();
		fiber_no_preempt_begin();
		fiber_no_preempt_end();
		if (left != right)
			atomic_fetch_add(&torn, 1);
		++left;
		for (volatile int i = 0; i < 2000; i++)
			;
		++right;
		fiber_no_preempt_end();
		atomic_fetch_add(&sections, 1);
	}
	return NULL;
}

TEST(no_preempt_is_not_preempted)
{
	fiber_t *f[3];
	struct fiber_stats st;

	ASSERT_EQ(0, start(1, 1 * MS));
	for (int i = 0; i < 3; i++)
		f[i] = spawn(guards, NULL);
	block_ns(2 * SEC);
	EXPECT_TRUE(until(stats().preemptions + stats().switches > 10));
	atomic_store(&stop, 1);
	for (int i = 0; i < 3; i++)
		join(f[i]);
	st = stats();
	figure("no_preempt: %lu sections, %lu torn, %lu preemptions, "
	       "%lu switches\n", sections, torn, st.preemptions, st.switches);
	ASSERT_EQ(0, fiber_fini());
	EXPECT_EQ(0, torn);
	EXPECT_EQ(left, right);
	EXPECT_EQ(sections, left);
	EXPECT_EQ(0, failures);
}

static atomic_int in_section;

static void *blocks_in_section(void *arg)
{
	fiber_no_preempt_begin();
	atomic_store(&in_section, 1);
	check_eq(0, block_ns(50 * MS));
	atomic_store(&in_section, 0);
	fiber_no_preempt_end();
	return NULL;
}

static void *watches_section(void *arg)
{
	while (!atomic_load(&stop)) {
		check_eq(0, atomic_load(&in_section));
		fiber_yield();
	}
	return NULL;
}

TEST(no_preempt_keeps_the_processor_over_a_block)
{
	fiber_t *f;

	ASSERT_EQ(0, start(1, 1 * MS));
	f = spawn(watches_section, NULL);
	for (int i = 0; i < 10; i++)
		join(spawn(blocks_in_section, NULL));
	atomic_store(&stop, 1);
	join(f);
	ASSERT_EQ(0, fiber_fini());
	EXPECT_EQ(0, failures);
}

/* What does not park does not yield either, long after the quantum's end. */

enum { SECTIONS = 10 };

static fiber_chan_t *chan;
static fiber_sem_t sem;
static fiber_mutex_t mutex;
static atomic_ulong looks;

static void *looks_on(void *arg)
{
	while (!atomic_load(&stop)) {
		check_eq(0, atomic_load(&in_section));
		atomic_fetch_add(&looks, 1);
		fiber_yield();
	}
	return arg;
}

static void spin_ns(uint64_t ns)
{
	uint64_t end = now_ns() + ns;

	while (now_ns() < end)
		;
}

static void calls_in_section(int i)
{
	char byte = (char)i;

	spin_ns(20 * MS);
	check_eq(0, fiber_chan_try_send(chan, &byte));
	check_eq(0, fiber_chan_try_recv(chan, &byte));
	check_eq(0, fiber_sem_post(&sem));
	check_eq(0, fiber_mutex_lock(&mutex));
	check_eq(0, fiber_mutex_unlock(&mutex));
}

static void *calls_in_sections(void *arg)
{
	uint64_t before;

	for (int i = 0; i < SECTIONS; i++) {
		before = looks;
		fiber_no_preempt_begin();
		atomic_store(&in_section, 1);
		calls_in_section(i);
		atomic_store(&in_section, 0);
		fiber_no_preempt_end();
		/* Put off, not forgotten. */
		while (looks == before)
			fiber_yield();
	}
	return arg;
}

TEST(no_preempt_holds_in_calls_that_do_not_park)
{
	fiber_t *f;

	ASSERT_EQ(0, start(1, 1 * MS));
	ASSERT_EQ(0, fiber_chan_create(&chan, 1, 1));
	ASSERT_EQ(0, fiber_sem_init(&sem, 0));
	ASSERT_EQ(0, fiber_mutex_init(&mutex, 0));
	f = spawn(looks_on, NULL);
	join(spawn(calls_in_sections, NULL));
	atomic_store(&stop, 1);
	join(f);
	ASSERT_EQ(0, fiber_chan_destroy(chan));
	ASSERT_EQ(0, fiber_fini());
	EXPECT_EQ(0, failures);
}

/* ---- a sleeper among hogs ---- */

static uint64_t late[50];

static void *naps(void *arg)
{
	for (size_t i = 0; i < ARRAY_SIZE(late); i++) {
		uint64_t t = fiber_now();

		check_eq(0, fiber_sleep(20 * MS));
		late[i] = fiber_now() - t - 20 * MS;
	}
	return NULL;
}

/* The best of some tries: what another process takes of the CPU is no fault. */
TEST(sleeper_wakes_while_hogs_spin)
{
	uint64_t slow = in_vm() ? 4 : 1, p50 = SEC * slow, p99 = 0;
	atomic_ulong n[3] = { 0 };
	fiber_t *f[3];

	ASSERT_EQ(0, start(1, 10 * MS));
	for (int i = 0; i < 3; i++)
		f[i] = spawn(hog, &n[i]);
	for (int try = 0; try < 4; try++) {
		join(spawn(naps, NULL));
		p50 = percentile(late, ARRAY_SIZE(late), 50);
		p99 = percentile(late, ARRAY_SIZE(late), 99);
		figure("sleeper: late p50_us=%lu p99_us=%lu\n", p50 / US,
		       p99 / US);
		if (p50 < 40 * MS * slow && p99 < SEC * slow)
			break;
	}
	atomic_store(&stop, 1);
	for (int i = 0; i < 3; i++)
		join(f[i]);
	ASSERT_EQ(0, fiber_fini());
	EXPECT_GT(40 * MS * slow, p50);
	EXPECT_GT(SEC * slow, p99);
	EXPECT_EQ(0, failures);
}

/* ---- calls of the library that never wait: nearly all their time is the kernel's ---- */

static int datagrams, zero, file;

static void connects(void)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons(9) };

	a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	check_eq(0, fiber_connect(datagrams, (void *)&a, sizeof(a)));
}

static void reads(void)
{
	char c[16];

	check_eq(16, fiber_read(zero, c, 16));
}

static void reads_at(void)
{
	char c[16];

	check_eq(16, fiber_pread(file, c, 16, 0));
}

static void tries(void)
{
	char c;

	check_eq(-ETIMEDOUT, fiber_recv_until(datagrams, &c, 1, 0, 0));
}

static void polls(void)
{
	struct pollfd p = { .fd = zero, .events = POLLIN };

	check_eq(1, fiber_poll(&p, 1));
}

static void looks_for_a_child(void)
{
	check_eq(-ECHILD, fiber_waitpid(-1, NULL, WNOHANG));
}

static atomic_int napped;

static void *calls_on(void *arg)
{
	void (*call)(void) = (void (*)(void))(uintptr_t)arg;

	while (!atomic_load(&stop))
		call();
	return NULL;
}

static void *naps_a_few_times(void *arg)
{
	for (int i = 0; i < 5; i++)
		check_eq(0, fiber_sleep(2 * MS));
	atomic_store(&napped, 1);
	return arg;
}

TEST(who_calls_and_never_waits_is_preempted)
{
	void (*call[])(void) = { connects, reads, reads_at, tries, polls,
				 looks_for_a_child };

	ASSERT_LE(0, datagrams = socket(AF_INET, SOCK_DGRAM, 0));
	ASSERT_LE(0, zero = open("/dev/zero", O_RDONLY));
	ASSERT_LE(0, file = open("/proc/self/exe", O_RDONLY));
	ASSERT_EQ(0, start(1, 1 * MS));
	for (size_t i = 0; i < ARRAY_SIZE(call); i++) {
		fiber_t *f[2];

		atomic_store(&stop, 0);
		atomic_store(&napped, 0);
		f[0] = spawn(calls_on, (void *)(uintptr_t)call[i]);
		f[1] = spawn(naps_a_few_times, NULL);
		EXPECT_TRUE(until(atomic_load(&napped)))
			TH_LOG("beside call %zu nobody else runs", i);
		atomic_store(&stop, 1);
		join(f[0]);
		join(f[1]);
	}
	ASSERT_EQ(0, fiber_fini());
	EXPECT_EQ(0, failures);
}

TEST_HARNESS_MAIN
