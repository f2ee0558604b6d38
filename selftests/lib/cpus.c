// SPDX-License-Identifier: GPL-2.0-only
/* How many processors there are if nobody says: affinity, and the cgroup's quota. */
#include <limits.h>
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

TEST(one_for_each_cpu_of_the_affinity)
{
	unsigned int n = affine(), first = 0;
	cpu_set_t set;

	/* Nobody knows what this machine's cgroup says, but no more than that. */
	EXPECT_GE(n, at_start(0));
	EXPECT_LE(1, at_start(0));
	ASSERT_EQ(0, sched_getaffinity(0, sizeof(set), &set));
	while (!CPU_ISSET(first, &set))
		first++;
	CPU_ZERO(&set);
	CPU_SET(first, &set);
	ASSERT_EQ(0, sched_setaffinity(0, sizeof(set), &set));
	EXPECT_EQ(1, at_start(0));
	EXPECT_EQ(3, at_start(3));
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
	remove_groups();
	EXPECT_EQ(0, failures);
}

TEST_HARNESS_MAIN
