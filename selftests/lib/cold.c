// SPDX-License-Identifier: GPL-2.0-only
/*
 * Stacks of fibers that are parked for long go to swap, and come back whole.
 *
 * The VM has swap of its own, compressed memory (vm/swap-on); elsewhere it is for the
 * machine to have some.
 */
#include <dirent.h>

#include "common.h"

/* Very many take longer, where a processor is emulated: see how_many. */
#undef TEST_TIMEOUT_DEFAULT
#define TEST_TIMEOUT_DEFAULT	(600 * FIBER_SLOW)
#undef PATIENCE
#define PATIENCE	patience
static unsigned int patience = 40;

#define KIB	1024UL
#define DEEP	(32 * KIB)		/* bytes of each stack that are touched */
#define PAGE	4096UL
#define DEEP_PAGES (DEEP / PAGE)
#define AFTER	(100 * MS)
#define MAKE_SWAP "/vm/swap/on"

/* ---- swap ---- */

static char no_swap[200];

/* False, with the reason in no_swap. */
static bool have_swap(void)
{
	FILE *out;

	if (proc_number("/proc/meminfo", "SwapFree:") > 0)
		return true;
	if (access(MAKE_SWAP, R_OK)) {
		snprintf(no_swap, sizeof(no_swap), "no swap here%s", in_vm() ?
			 ": this kernel's zram was not fetched with it" : "");
		return false;
	}
	out = popen("sh " MAKE_SWAP, "re");
	if (!out || !fgets(no_swap, sizeof(no_swap), out))
		no_swap[0] = 0;
	if (out)
		pclose(out);
	no_swap[strcspn(no_swap, "\n")] = 0;
	return proc_number("/proc/meminfo", "SwapFree:") > 0;
}

static void drop_swap(void)
{
	if (!access(MAKE_SWAP, R_OK) && system("swapoff /dev/zram0"))
		failed(__FILE__, __LINE__, "swapoff");
}

/* Of n pages from addr on, how many are in memory, and in swap. */
static void count_pages(uintptr_t addr, size_t n, long *memory, long *swap)
{
	int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	uint64_t entry[n];
	ssize_t got = pread(fd, entry, sizeof(entry), (off_t)(addr / PAGE * 8));

	check_eq(sizeof(entry), got);
	close(fd);
	for (size_t i = 0; got > 0 && i < (size_t)got / 8; i++) {
		*memory += entry[i] >> 63;
		*swap += entry[i] >> 62 & 1;
	}
}

static int start_cold(unsigned int processors, uint64_t after)
{
	struct fiber_config cfg = {
		.size = sizeof(cfg), .processors = processors, .cold_ns = after,
	};

	clean_environment();
	return fiber_init(&cfg);
}

/* ---- the thread ---- */

/* Its number, by its name; 0: there is none. */
static int cold_thread(void)
{
	DIR *d = opendir("/proc/self/task");
	struct dirent *e;
	char path[300], name[20];
	int tid = 0;
	FILE *f;

	while (d && !tid && (e = readdir(d))) {
		snprintf(path, sizeof(path), "/proc/self/task/%s/comm", e->d_name);
		f = fopen(path, "re");
		if (f && fgets(name, sizeof(name), f) && !strcmp(name, "fiber-cold\n"))
			tid = atoi(e->d_name);
		if (f)
			fclose(f);
	}
	if (d)
		closedir(d);
	return tid;
}

static long sleeps_of(int tid)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/self/task/%d/status", tid);
	return proc_number(path, "voluntary_ctxt_switches:");
}

/* It does nothing for ten times as long as makes a fiber cold. */
static bool left_alone(int tid)
{
	long before = sleeps_of(tid);

	block_ns(10 * AFTER);
	return sleeps_of(tid) == before && thread_state(tid) == 'S';
}

/* ---- fibers that wait deep down ---- */

#define MOST_FIBERS 5000

static uintptr_t words_at[MOST_FIBERS];
static fiber_event_t go[2] = { FIBER_EVENT_INIT, FIBER_EVENT_INIT };
static atomic_int arrived[3];

/* Different words everywhere, which compress all the same. */
static uint32_t word_of(long id, size_t i)
{
	return (uint32_t)id * 64 + (uint32_t)i / 128;
}

static void check_words(const volatile uint32_t *w, long id)
{
	size_t bad = 0;

	for (size_t i = 0; i < DEEP / sizeof(*w); i++)
		bad += w[i] != word_of(id, i);
	check_eq(0, bad);
}

static void *waits_deep(void *arg)
{
	volatile uint32_t w[DEEP / sizeof(uint32_t)];

	words_at[(long)arg] = (uintptr_t)w;
	for (size_t i = 0; i < DEEP / sizeof(*w); i++)
		w[i] = word_of((long)arg, i);
	for (int k = 0; k < 2; k++) {
		atomic_fetch_add(&arrived[k], 1);
		check_eq(0, fiber_event_wait(&go[k]));
		check_words(w, (long)arg);
	}
	atomic_fetch_add(&arrived[2], 1);
	return NULL;
}

/*
 * An emulated processor takes half a millisecond to page one page out, and of one
 * processor the thread takes half.
 */
static int how_many(void)
{
	const char *s = getenv("FIBER_COLD_FIBERS");
	int n = s ? atoi(s) : in_vm() ? 100 : MOST_FIBERS;

	if (n < 1 || n > MOST_FIBERS)
		n = MOST_FIBERS;
	patience += (unsigned int)n / 25;
	return n;
}

/* Of eight pages or nine, one or two at sp stay. One of `step` fibers is looked at. */
static bool are_out(int n, int step)
{
	long memory = 0, swap = 0, seen = 0;

	for (int i = 0; i < n; i += step, seen++)
		count_pages(words_at[i], DEEP_PAGES, &memory, &swap);
	return swap >= seen * (long)DEEP_PAGES * 5 / 8;
}

/* All are looked at once that is likely to be the end of it. */
static bool most_are_out(int n)
{
	return are_out(n, n / 50 + 1) && are_out(n, 1);
}

TEST(stacks_go_to_swap_and_come_back_whole)
{
	const int N = how_many();
	long memory = 0, swap = 0;
	uint64_t from;
	int tid;

	if (!have_swap())
		SKIP(return, "%s", no_swap);
	ASSERT_EQ(0, start_cold(2, AFTER));
	ASSERT_TRUE(fiber_features() & FIBER_FEATURE_COLD);
	EXPECT_NE(NULL, strstr(fiber_backend(), "pages out cold stacks"));
	ASSERT_TRUE(until(tid = cold_thread()));
	for (long i = 0; i < N; i++)
		ASSERT_EQ(0, fiber_spawn(NULL, waits_deep, (void *)i));
	ASSERT_TRUE(until(arrived[0] == N));
	from = now_ns();
	ASSERT_TRUE(until(most_are_out(N)));
	figure("cold: %d fibers, most out after %lu ms\n", N,
	       (now_ns() - from) / MS);
	ASSERT_TRUE(until(left_alone(tid)));
	for (int i = 0; i < N; i++)
		count_pages(words_at[i], DEEP_PAGES, &memory, &swap);
	figure("cold: of %lu bytes each: %lu in memory, %lu in swap\n", DEEP,
	       memory * PAGE / N, swap * PAGE / N);
	/* They run, look at all of it, and wait anew. */
	fiber_event_set(&go[0]);
	ASSERT_TRUE(until(arrived[1] == N));
	EXPECT_EQ(0, failures);
	ASSERT_TRUE(until(most_are_out(N)));
	fiber_event_set(&go[1]);
	ASSERT_TRUE(until(arrived[2] == N));
	EXPECT_EQ(0, fini_soon());
	EXPECT_EQ(0, cold_thread());
	drop_swap();
	EXPECT_EQ(0, failures);
}

/* ---- looks that come too late ---- */

static atomic_bool enough;

/* Parks for about as long as makes it cold, and writes all the time. */
static void *comes_and_goes(void *arg)
{
	volatile uint32_t w[DEEP / sizeof(uint32_t)];
	uint32_t seed = (uint32_t)(long)arg + 1;

	for (long round = (long)arg; !enough; round += 1000) {
		for (size_t i = 0; i < DEEP / sizeof(*w); i++)
			w[i] = word_of(round, i);
		fiber_sleep(next_random(&seed) % 80 * MS);
		check_words(w, round);
	}
	atomic_fetch_add(&arrived[0], 1);
	return NULL;
}

TEST(who_runs_meanwhile_loses_nothing)
{
	const int N = 20;
	long before;

	if (!have_swap())
		SKIP(return, "%s", no_swap);
	before = proc_number("/proc/vmstat", "pswpout ");
	ASSERT_EQ(0, start_cold(2, 10 * MS));
	for (long i = 0; i < N; i++)
		ASSERT_EQ(0, fiber_spawn(NULL, comes_and_goes, (void *)i));
	/* As often as if most of each had gone out five times. */
	EXPECT_TRUE(until(proc_number("/proc/vmstat", "pswpout ") - before >
			  N * (long)(DEEP / KIB) / 8 * 5));
	enough = true;
	ASSERT_TRUE(until(arrived[0] == N));
	EXPECT_EQ(0, fini_soon());
	drop_swap();
	EXPECT_EQ(0, failures);
}

/* ---- what is said ---- */

TEST(off_unless_asked_for)
{
	ASSERT_EQ(0, start(1, 0));
	EXPECT_EQ(0, fiber_features() & FIBER_FEATURE_COLD);
	EXPECT_EQ(0, cold_thread());
	EXPECT_EQ(NULL, strstr(fiber_backend(), "cold"));
	EXPECT_EQ(0, fiber_fini());
}

TEST(without_swap_it_does_not_hold)
{
	if (proc_number("/proc/meminfo", "SwapTotal:"))
		SKIP(return, "this machine has swap");
	ASSERT_EQ(0, start_cold(1, AFTER));	/* says so on stderr */
	EXPECT_EQ(0, fiber_features() & FIBER_FEATURE_COLD);
	EXPECT_EQ(0, cold_thread());
	EXPECT_EQ(0, fiber_fini());
}

TEST(wrong_times)
{
	static const char * const wrong[] = { "9", "x", "-1", "2592000001" };

	EXPECT_EQ(-EINVAL, start_cold(1, 10 * MS - 1));
	EXPECT_EQ(-EINVAL, start_cold(1, 31 * 86400 * SEC));
	for (unsigned int i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
		setenv("FIBER_COLD_MS", wrong[i], 1);
		EXPECT_EQ(-EINVAL, start_cold(1, 0));
	}
	setenv("FIBER_COLD_MS", "60000", 1);	/* wins */
	EXPECT_EQ(0, start_cold(1, AFTER));
	EXPECT_EQ(0, fiber_fini());
	setenv("FIBER_COLD_MS", "0", 1);	/* off */
	EXPECT_EQ(0, start_cold(1, AFTER));
	EXPECT_EQ(0, fiber_features() & FIBER_FEATURE_COLD);
	EXPECT_EQ(0, cold_thread());
	EXPECT_EQ(0, fiber_fini());
}

TEST_HARNESS_MAIN
