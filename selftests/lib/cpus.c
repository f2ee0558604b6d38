// SPDX-License-Identifier: GPL-2.0-only
/* How many processors there are if nobody says: affinity, and the cgroup's quota. */
#include <dirent.h>
#include <limits.h>
#include <linux/fiber.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "common.h"

#define ROOT	"/sys/fs/cgroup"
#define OUTER	ROOT "/fiber-cpus"
#define INNER	OUTER "/inner"

static bool put(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : write(fd, text, strlen(text));

	if (fd >= 0)
		close(fd);
	return n == (ssize_t)strlen(text);
}

static unsigned int affine(void)
{
	cpu_set_t set;

	return sched_getaffinity(0, sizeof(set), &set) ? 0 :
	       (unsigned int)CPU_COUNT(&set);
}

static unsigned int at_start(unsigned int processors)
{
	unsigned int n;

	if (start(processors, 0))
		return 0;
	n = stats().processors;
	return fiber_fini() ? 0 : n;
}

static cpu_set_t first_of(const cpu_set_t *set)
{
	unsigned int first = 0;
	cpu_set_t one;

	while (!CPU_ISSET(first, set))
		first++;
	CPU_ZERO(&one);
	CPU_SET(first, &one);
	return one;
}

TEST(one_for_each_cpu_of_the_affinity)
{
	unsigned int n = affine();
	cpu_set_t set;

	/* Nobody knows what this machine's cgroup says, but no more than that. */
	EXPECT_GE(n, at_start(0));
	EXPECT_LE(1, at_start(0));
	ASSERT_EQ(0, sched_getaffinity(0, sizeof(set), &set));
	set = first_of(&set);
	ASSERT_EQ(0, sched_setaffinity(0, sizeof(set), &set));
	EXPECT_EQ(1, at_start(0));
	EXPECT_EQ(3, at_start(3));
	EXPECT_EQ(0, failures);
}

/* ---- while it runs ---- */

enum { WORKERS = 3, AHEAD = 4 };

static atomic_int stop;
static atomic_long turns;

static void *works(void *arg)
{
	while (!atomic_load(&stop)) {
		atomic_fetch_add(&turns, 1);
		fiber_yield();
	}
	return arg;
}

static void start_workers(fiber_t *f[WORKERS])
{
	atomic_store(&stop, 0);
	for (int i = 0; i < WORKERS; i++)
		f[i] = spawn(works, NULL);
}

static void end_workers(fiber_t *f[WORKERS])
{
	atomic_store(&stop, 1);
	for (int i = 0; i < WORKERS; i++)
		join(f[i]);
}

/* As taskset -a: all threads of the process. */
static void move_all(const cpu_set_t *set)
{
	DIR *dir = opendir("/proc/self/task");
	struct dirent *e;

	check(dir != NULL);
	while (dir && (e = readdir(dir)))
		if (atoi(e->d_name) > 0)	/* it may have ended */
			sched_setaffinity(atoi(e->d_name), sizeof(*set), set);
	if (dir)
		closedir(dir);
}

/* So many are in use by now, of `most`, and the workers get on. */
static bool follows(unsigned int n, unsigned int most)
{
	long from;

	if (!until(stats().processors == n && stats().retired == most - n))
		return false;
	from = turns;
	return until(turns > from + 100);
}

/* How many there can be when it started with one. */
static unsigned int ahead_of_one(void)
{
	long online = sysconf(_SC_NPROCESSORS_ONLN);

	return online < AHEAD ? (unsigned int)online : AHEAD;
}

TEST(follows_the_affinity)
{
	unsigned int all, most = ahead_of_one();
	fiber_t *f[WORKERS];
	cpu_set_t set, one;

	ASSERT_EQ(0, sched_getaffinity(0, sizeof(set), &set));
	all = at_start(0);
	all = all < most ? all : most;
	if (all < 2)
		SKIP(return, "one CPU for this process");
	one = first_of(&set);
	move_all(&one);
	ASSERT_EQ(0, start(0, 1 * MS));
	start_workers(f);
	EXPECT_TRUE(follows(1, most));
	for (int i = 0; i < 2; i++) {
		move_all(&set);
		EXPECT_TRUE(follows(all, most));
		move_all(&one);
		EXPECT_TRUE(follows(1, most));
	}
	/* A number is a number, until it is taken back. */
	EXPECT_EQ(0, fiber_set_processors(most));
	block_ns(1500 * MS);
	EXPECT_TRUE(follows(most, most));
	EXPECT_EQ(0, fiber_set_processors(0));
	EXPECT_TRUE(follows(1, most));
	EXPECT_EQ(-EINVAL, fiber_set_processors(most + 1));
	end_workers(f);
	EXPECT_EQ(0, fini_soon());
	EXPECT_EQ(0, failures);
}

/* ---- the look itself ---- */

enum { LOOKS = 20, LOW = 64 };

static atomic_int opened;

/* Instead of the C library's, for libfiber too. */
int open(const char *path, int flags, ...)
{
	mode_t mode;
	va_list args;

	va_start(args, flags);
	mode = flags & O_CREAT ? va_arg(args, mode_t) : 0;
	va_end(args);
	if (!strcmp(path, "/proc/self/cgroup") || strstr(path, "/cpu.max"))
		atomic_fetch_add(&opened, 1);
	return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

static int is_library(const struct fiber_info *i, void *arg)
{
	(void)arg;
	return i->library;
}

/* As fiber_set_processors(0) asks for one each time. */
static void *looks_often(void *arg)
{
	for (int i = 0; i < LOOKS; i++)
		check_eq(0, fiber_set_processors(0));
	return arg;
}

static void *yields(void *arg)
{
	for (int i = 0; i < 2000; i++)
		fiber_yield();
	looks_often(NULL);
	return arg;
}

/* The look is a fiber's, of the default size. */
TEST(looks_with_the_smallest_stack)
{
	struct fiber_config cfg = { .size = sizeof(cfg), .stack_size = 16384 };

	clean_environment();
	ASSERT_EQ(0, fiber_init(&cfg));
	join(spawn(yields, NULL));
	EXPECT_TRUE(until(!fiber_walk(is_library, NULL)));
	EXPECT_EQ(0, fini_soon());
	EXPECT_EQ(0, failures);
}

/* Of those from LOW on, how many a program inherits. */
static int inherited;

/* The open ones below LOW, as bits; all in *n. */
static uint64_t low_ones(int *n)
{
	DIR *dir = opendir("/proc/self/fd");
	uint64_t low = 0;
	struct dirent *e;
	int fd;

	*n = inherited = 0;
	while (dir && (e = readdir(dir))) {
		fd = atoi(e->d_name);
		if (*e->d_name == '.' || fd == dirfd(dir))
			continue;
		++*n;
		if (fd < LOW)
			low |= 1ull << fd;
		else
			inherited += !(fcntl(fd, F_GETFD) & FD_CLOEXEC);
	}
	if (dir)
		closedir(dir);
	return low;
}

/* The program counts on low descriptors, and on those that it has not opened. */
TEST(looks_take_no_descriptor)
{
	int before, started, now, at_start;
	uint64_t low = low_ones(&before);
	int leaks = inherited;
	const char *backend = getenv("FIBER_BACKEND");

	/* So late that cpus.c has asked. */
	setenv("FIBER_BACKEND", "neither", 1);
	EXPECT_EQ(-EINVAL, start(0, 0));
	EXPECT_EQ(low, low_ones(&now));
	EXPECT_EQ(before, now);
	backend ? setenv("FIBER_BACKEND", backend, 1) :
		  unsetenv("FIBER_BACKEND");
	ASSERT_EQ(0, start(0, 0));
	low_ones(&started);
	EXPECT_EQ(leaks, inherited);
	at_start = opened;
	EXPECT_LT(0, at_start);
	looks_often(NULL);
	EXPECT_TRUE(until(!fiber_walk(is_library, NULL)));
	EXPECT_EQ(at_start, opened);
	low_ones(&now);
	EXPECT_EQ(started, now);
	EXPECT_EQ(0, fini_soon());
	EXPECT_EQ(low, low_ones(&now));
	EXPECT_EQ(before, now);
	EXPECT_EQ(0, failures);
}

static unsigned int with_most(unsigned int most)
{
	struct fiber_config cfg = {
		.size = sizeof(cfg), .max_processors = most,
	};
	unsigned int n;

	clean_environment();
	if (fiber_init(&cfg))
		return 0;
	n = stats().processors;
	check_eq(-EINVAL, fiber_set_processors(most + 1));
	check_eq(0, fiber_set_processors(most));
	return fini_soon() ? 0 : n;
}

TEST(no_more_than_the_program_says)
{
	unsigned int all = at_start(0);

	EXPECT_EQ(1, with_most(1));
	EXPECT_EQ(all < 3 ? all : 3, with_most(3));
	EXPECT_EQ(0, with_most(1025));	/* refused */
	EXPECT_EQ(0, failures);
}

/* ---- a module that gives fewer than were asked for ---- */

enum { ASKED = 7, GIVEN = 2, EACH = 50 };

static atomic_uint given;		/* 0: what it says is true */

/* Instead of the C library's, for libfiber too. */
int ioctl(int fd, unsigned long request, ...)
{
	va_list args;
	void *arg;
	int r;

	va_start(args, request);
	arg = va_arg(args, void *);
	va_end(args);
	r = (int)syscall(SYS_ioctl, fd, request, arg);
	if (!r && request == FIBER_IOC_QUERY && given)
		((struct fiber_query_args *)arg)->max_processors = given;
	return r;
}

static void *returns(void *arg)
{
	return arg;
}

static fiber_t *by_fiber[EACH], *by_thread[EACH];

static void *spawns(void *arg)
{
	for (int i = 0; i < EACH; i++)
		by_fiber[i] = spawn(returns, NULL);
	return arg;
}

static int same_ids(void)
{
	int n = 0;

	for (int i = 0; i < EACH; i++)
		for (int k = 0; k < EACH; k++)
			n += fiber_id(by_fiber[i]) == fiber_id(by_thread[k]);
	return n;
}

TEST(fewer_than_asked_for_have_ids_of_their_own)
{
	given = GIVEN;
	ASSERT_EQ(0, start(ASKED, 0));
	if (!on_kernel())
		SKIP(return, "the user backend gives what is asked for");
	EXPECT_EQ(GIVEN, stats().processors);
	join(spawn(spawns, NULL));
	for (int i = 0; i < EACH; i++)
		by_thread[i] = spawn(returns, NULL);
	EXPECT_EQ(0, same_ids());
	EXPECT_EQ(2 * EACH + 1, stats().spawned);
	for (int i = 0; i < EACH; i++) {
		join(by_fiber[i]);
		join(by_thread[i]);
	}
	EXPECT_EQ(0, fini_soon());
	EXPECT_EQ(0, failures);
}

/* ---- the quota ---- */

static const struct {
	const char *outer, *inner;
	unsigned int processors;	/* at most */
} quotas[] = {
	{ "max 100000", "max 100000", UINT_MAX },
	{ "max 100000", "50000 100000", 1 },
	{ "max 100000", "100000 100000", 1 },
	{ "max 100000", "100001 100000", 2 },
	{ "max 100000", "2000 10000", 1 },
	{ "100000 100000", "max 100000", 1 },	/* of the one above */
	{ "150000 100000", "900000 100000", 2 },
	{ "900000 100000", "10000 20000", 1 },
};

static void remove_groups(void)
{
	put(ROOT "/cgroup.procs", "0");
	rmdir(INNER);
	rmdir(OUTER);
}

/* NULL, or why not. */
static const char *make_groups(void)
{
	if (access(ROOT "/cgroup.subtree_control", W_OK))
		return "no cgroup v2 of ours";
	put(ROOT "/cgroup.subtree_control", "+cpu");
	mkdir(OUTER, 0755);
	put(OUTER "/cgroup.subtree_control", "+cpu");
	mkdir(INNER, 0755);
	return access(INNER "/cpu.max", W_OK) ?
	       "no cpu controller of cgroup v2" : NULL;
}

/* In the inner group, with a runtime that nobody said a number to. */
static void follow_the_quota(struct __test_metadata *_metadata)
{
	unsigned int all = affine();
	fiber_t *f[WORKERS];

	put(OUTER "/cpu.max", "max 100000");
	put(INNER "/cpu.max", "max 100000");
	ASSERT_EQ(0, start(0, 1 * MS));
	start_workers(f);
	for (int i = 0; i < 2; i++) {
		EXPECT_TRUE(put(INNER "/cpu.max", "100000 100000"));
		EXPECT_TRUE(until(stats().processors == 1));
		EXPECT_TRUE(put(INNER "/cpu.max", "max 100000"));
		EXPECT_TRUE(until(stats().processors == all));
	}
	end_workers(f);
	EXPECT_EQ(0, fini_soon());
}

TEST(no_more_than_the_quota_pays_for)
{
	const char *why = make_groups();
	unsigned int n = affine(), want;

	if (why) {
		remove_groups();
		SKIP(return, "%s", why);
	}
	ASSERT_TRUE(put(INNER "/cgroup.procs", "0"));
	for (size_t i = 0; i < ARRAY_SIZE(quotas); i++) {
		want = n < quotas[i].processors ? n : quotas[i].processors;
		EXPECT_TRUE(put(OUTER "/cpu.max", quotas[i].outer));
		EXPECT_TRUE(put(INNER "/cpu.max", quotas[i].inner));
		EXPECT_EQ(want, at_start(0));
	}
	EXPECT_EQ(4, at_start(4));
	setenv("FIBER_PROCESSORS", "5", 1);
	ASSERT_EQ(0, fiber_init(NULL));
	EXPECT_EQ(5, stats().processors);
	EXPECT_EQ(0, fiber_fini());
	follow_the_quota(_metadata);
	remove_groups();
	EXPECT_EQ(0, failures);
}

TEST_HARNESS_MAIN
