// SPDX-License-Identifier: GPL-2.0-only
/*
 * others.c - what threads that have nothing to do with the module pay for it, in
 * guest instructions a context switch
 *
 *   not loaded           the measure
 *   loaded, no group     0 more: the scheduler's hooks are not even patched in
 *   a group elsewhere    at most MOST more
 *   ... and gone again   0 more, a while after
 *
 * Two plain threads send a byte to and fro through two pipes on one CPU, which
 * is two switches a round trip. A scheduler takes one of several ways each time:
 * the most frequent length counts. Exact only where the time stamp counter
 * counts instructions: as cost.c. It unloads and loads the module itself.
 */
#include <math.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <x86intrin.h>

#include "figures.h"
#include "harness.h"

enum { ROUNDS = 4000, TRIES = 4, MOST = 30 };

static int there[2], back[2];

static void *answer(void *arg)
{
	char byte;

	while (read(there[0], &byte, 1) == 1 && byte != 'q')
		if (write(back[1], &byte, 1) != 1)
			break;
	return NULL;
}

/* Of two plain threads: instructions a context switch. */
static double try_switch(void)
{
	static uint64_t length[ROUNDS];
	pthread_t other = raw_thread(answer, NULL);
	char byte = 'p';
	uint64_t t;
	int i;

	raw_sleep(1000000);		/* what the kernel has to do is done */
	for (i = 0; i < ROUNDS; i++) {
		t = __rdtsc();
		if (write(there[1], &byte, 1) != 1 ||
		    read(back[0], &byte, 1) != 1)
			exit(1);
		length[i] = __rdtsc() - t;
	}
	byte = 'q';
	if (write(there[1], &byte, 1) != 1)
		exit(1);
	pthread_join(other, NULL);
	return most_frequent(length, ROUNDS) / 2.0;
}

struct cost {
	double a_switch[TRIES];
};

static struct cost measure(void)
{
	struct cost c;
	int i;

	for (i = 0; i < TRIES; i++)
		c.a_switch[i] = try_switch();
	return c;
}

/*
 * How much more b costs than a. A scheduler can go one of several ways with two
 * threads, each with a price of its own (7.3: 7,738 or 7,734, rarely 6,242), so the
 * closest two of all tries are compared: the same way, twice.
 */
static double more(const struct cost *a, const struct cost *b)
{
	double least = 1e9, d;
	int i, j;

	for (i = 0; i < TRIES; i++) {
		for (j = 0; j < TRIES; j++) {
			d = b->a_switch[i] - a->a_switch[j];
			if (fabs(d) < fabs(least))
				least = d;
		}
	}
	return least;
}

static int load(void)
{
	int fd = open("/vm/fiber.ko", O_RDONLY | O_CLOEXEC), err;

	if (fd < 0)
		return -errno;
	err = syscall(SYS_finit_module, fd, "", 0) ? -errno : 0;
	close(fd);
	return err;
}

static int unload(void)
{
	return syscall(SYS_delete_module, "fiber", O_NONBLOCK) ? -errno : 0;
}

/* Another process with a group, a carrier in fiber, and a spare. */
static void *spare(void *arg)
{
	if (!raw_attach())
		raw_wait(FIBER_WAIT_SPARE, 0, NULL);
	return NULL;
}

static void elsewhere(void)
{
	struct raw_options o = { .quantum_ns = 50000, .preempt = true };

	if (raw_start(&o) || raw_attach() || raw_own(FIBER_WAIT_READY))
		_exit(1);
	raw_thread(spare, NULL);
	raw_enter();
	pause();
	_exit(0);
}

TEST(cost_for_others)
{
	struct cost without, idle, beside, after;
	int status, err;
	pid_t pid;

	NEED_MODULE();
	if (!getenv("FIBER_ICOUNT"))
		SKIP(return, "needs exact counts: FIBER_ICOUNT=1, -icount");
	ASSERT_EQ(0, pipe(there));
	ASSERT_EQ(0, pipe(back));
	ASSERT_TRUE(RAW_UNTIL(!(err = unload())))
		TH_LOG("unload: %s", strerror(-err));
	without = measure();
	ASSERT_EQ(0, load());
	idle = measure();
	pid = fork();
	if (!pid)
		elsewhere();
	raw_sleep(1000000);
	EXPECT_EQ(0, waitpid(pid, &status, WNOHANG));
	beside = measure();
	kill(pid, SIGKILL);
	waitpid(pid, &status, 0);
	raw_sleep(15000000);		/* the hooks linger for ten seconds */
	after = measure();
	printf("# cost for others, a context switch: not loaded %.1f, no group %+.1f, a group elsewhere %+.1f, gone again %+.1f\n",
	       without.a_switch[0], more(&without, &idle),
	       more(&without, &beside), more(&without, &after));
	EXPECT_GE(0.5, fabs(more(&without, &idle)));
	EXPECT_GE(MOST, more(&without, &beside));
	EXPECT_LT(0, more(&without, &beside));
	EXPECT_GE(0.5, fabs(more(&without, &after)));
}

TEST_HARNESS_MAIN
