// SPDX-License-Identifier: GPL-2.0-only
/*
 * limits.c - how much one user may have: over each limit, beside another user,
 * and given back after close, exit and kill -9
 *
 * The limits are module parameters: root sets them, children with other uids try
 * them. A child says by its exit code what it saw.
 */
#include <signal.h>
#include <sys/wait.h>

#include "harness.h"

enum { USER_A = 12345, USER_B = 12346 };

/* Small enough to be reached, or as the module is loaded. */
static bool set_limits(const char *groups, const char *carriers,
		       const char *timers)
{
	bool set = raw_parameter("groups_per_user", groups ?: "1024");

	set &= raw_parameter("carriers_per_user", carriers ?: "32768");
	return raw_parameter("max_timers", timers ?: "131072") && set;
}

FIXTURE(limits) {
	bool module;
};

FIXTURE_SETUP(limits)
{
	self->module = !access("/dev/fiber", R_OK | W_OK);
	if (self->module)
		ASSERT_EQ(0, chmod("/dev/fiber", 0666));
}

FIXTURE_TEARDOWN(limits)
{
	if (self->module) {
		EXPECT_TRUE(set_limits(NULL, NULL, NULL));
		EXPECT_TRUE(raw_parameter("min_quantum_us", "50"));
		chmod("/dev/fiber", 0660);
	}
}

#define NEED_ROOT() do {						\
	NEED_MODULE();							\
	if (geteuid())							\
		SKIP(return, "needs root");				\
} while (0)

static int child_status(pid_t pid)
{
	int status = -1;

	waitpid(pid, &status, 0);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + status;
}

/* fn as that user; its result is the child's exit code. */
static pid_t start_as(uid_t uid, int (*fn)(void))
{
	pid_t pid = fork();

	if (!pid) {
		if (setresuid(uid, uid, uid))
			_exit(99);
		_exit(fn());
	}
	return pid;
}

static int run_as(uid_t uid, int (*fn)(void))
{
	return child_status(start_as(uid, fn));
}

/* --- groups ------------------------------------------------------------------ */

/* 0: exactly three can be open; what a dead process had may take a moment. */
static int three_groups(void)
{
	int fd[3], i, more;

	for (i = 0; i < 3; i++)
		if (!RAW_UNTIL((fd[i] = raw_open()) != -EMFILE) || fd[i] < 0)
			return 1;
	if (raw_open() != -EMFILE || raw_open() != -EMFILE)
		return 2;
	close(fd[1]);
	if (!RAW_UNTIL((more = raw_open()) != -EMFILE) || more < 0)
		return 3;
	return raw_open() == -EMFILE ? 0 : 4;
}

static int three_and_stay(void)
{
	int err = three_groups();

	if (err)
		return err;
	if (write(3000, "", 0) >= 0)
		return 9;
	pause();
	return 8;
}

TEST_F(limits, groups)
{
	NEED_ROOT();
	ASSERT_TRUE(set_limits("3", NULL, NULL));
	EXPECT_EQ(0, run_as(USER_A, three_groups));
	EXPECT_EQ(0, run_as(USER_A, three_groups));	/* after exit */
}

/* How many of the module's references the children hold: one an open file. */
static bool refs_are(int n)
{
	return RAW_UNTIL(raw_refcnt() == n);
}

/* When what dead processes had is taken apart: nobody else is here. */
static int settled_refcnt(void)
{
	refs_are(0);
	return raw_refcnt();
}

TEST_F(limits, groups_of_two_users)
{
	int before;
	pid_t a;

	NEED_ROOT();
	before = settled_refcnt();
	ASSERT_TRUE(set_limits("3", NULL, NULL));
	a = start_as(USER_A, three_and_stay);
	EXPECT_TRUE(refs_are(before + 3));
	EXPECT_EQ(0, run_as(USER_B, three_groups));
	EXPECT_TRUE(refs_are(before + 3));
	kill(a, SIGKILL);
	EXPECT_LE(1000, child_status(a));
	EXPECT_EQ(0, run_as(USER_A, three_groups));	/* after kill -9 */
	EXPECT_TRUE(refs_are(before));
}

/* --- carriers ---------------------------------------------------------------- */

static unsigned int stay = 1, attached;

/* The result of ATTACH, tried while others' remains are taken apart. */
static int attach_soon(void)
{
	int err = 0;

	RAW_UNTIL((err = raw_attach()) != -EAGAIN);
	return err;
}

static void *carrier(void *arg)
{
	if (attach_soon())
		return NULL;
	ADD(attached, 1);
	while (LOAD(stay))
		raw_sleep(1000);
	return NULL;
}

static int start_group(void)
{
	struct raw_options o = { 0 };

	return raw_start(&o);
}

/* 0: exactly three, whatever group; given back by detach and by exit. */
static int three_carriers(void)
{
	pthread_t t[2];
	int i;

	if (start_group() || attach_soon())
		return 1;
	for (i = 0; i < 2; i++) {
		t[i] = raw_thread(carrier, NULL);
		if (!RAW_UNTIL(LOAD(attached) == i + 1U))
			return 8;
	}
	if (raw_detach() || attach_soon())
		return 2;
	if (raw_detach() || start_group())	/* another group, same user */
		return 3;
	if (attach_soon())
		return 4;
	for (i = 0; i < 20; i++)
		if (pthread_kill(t[0], 0))
			return 5;
	return 0;
}

static void *one_more(void *err)
{
	*(int *)err = raw_attach();
	return NULL;
}

static int fourth_is_refused(void)
{
	int err = three_carriers(), fourth = 0;

	if (err)
		return err;
	pthread_join(raw_thread(one_more, &fourth), NULL);
	if (fourth != -EAGAIN)
		return 6;
	STORE(stay, 0);				/* two end */
	for (err = -EAGAIN; err == -EAGAIN; raw_sleep(500))
		pthread_join(raw_thread(one_more, &err), NULL);
	return err ? 7 : 0;
}

static int fourth_and_stay(void)
{
	int err = three_carriers();

	if (!err)
		pause();
	return err;
}

TEST_F(limits, carriers)
{
	int before;
	pid_t a;

	NEED_ROOT();
	ASSERT_TRUE(set_limits(NULL, "3", NULL));
	EXPECT_EQ(0, run_as(USER_A, fourth_is_refused));
	EXPECT_EQ(0, run_as(USER_A, fourth_is_refused));	/* after exit */
	before = settled_refcnt();
	a = start_as(USER_A, fourth_and_stay);
	EXPECT_TRUE(refs_are(before + 2 + 3));		/* files, carriers */
	EXPECT_EQ(0, run_as(USER_B, fourth_is_refused));
	kill(a, SIGKILL);
	EXPECT_LE(1000, child_status(a));
	EXPECT_EQ(0, run_as(USER_A, fourth_is_refused));	/* kill -9 */
}

/* --- timers ------------------------------------------------------------------ */

static int setup_soon(int fd, uint32_t processors)
{
	struct raw_options o = { .processors = processors };
	struct fiber_setup_args a;
	int err = 0;

	raw_good_setup(&a, &o);
	RAW_UNTIL((err = raw_ioctl(fd, FIBER_IOC_SETUP, &a)) != -EAGAIN);
	return err;
}

/* Of four timers: one a processor, one a carrier. */
static int four_timers(void)
{
	struct raw_options o = { .processors = 5 };
	struct fiber_setup_args a;
	int fd = raw_open(), err = 0;

	raw_good_setup(&a, &o);
	if (raw_ioctl(fd, FIBER_IOC_SETUP, &a) != -EAGAIN)
		return 1;
	if (setup_soon(fd, 4))			/* the same file, nothing lost */
		return 2;
	close(fd);
	fd = raw_open();
	if (setup_soon(fd, 3))
		return 3;
	raw_fd = fd;
	o.processors = 1;
	raw_good_setup(&a, &o);
	fd = raw_open();
	if (raw_ioctl(raw_fd, FIBER_IOC_ATTACH, &(struct fiber_attach_args){}))
		return 4;
	if (raw_ioctl(fd, FIBER_IOC_SETUP, &a) != -EAGAIN)
		return 5;
	if (raw_detach() || setup_soon(fd, 1))
		return 6;
	err = raw_ioctl(raw_fd, FIBER_IOC_ATTACH, &(struct fiber_attach_args){});
	return err == -EAGAIN ? 0 : 7;
}

/* Of none: refused whatever is taken apart meanwhile, at the first time. */
static int no_timer(void)
{
	struct raw_options o = { .processors = 1 };
	struct fiber_setup_args a;

	raw_good_setup(&a, &o);
	return raw_ioctl(raw_open(), FIBER_IOC_SETUP, &a) == -EAGAIN ? 0 : 1;
}

TEST_F(limits, timers)
{
	NEED_ROOT();
	ASSERT_TRUE(set_limits(NULL, NULL, "4"));
	EXPECT_EQ(0, run_as(USER_A, four_timers));
	EXPECT_EQ(0, run_as(USER_B, four_timers));
	ASSERT_TRUE(set_limits(NULL, NULL, "0"));
	EXPECT_EQ(0, run_as(USER_A, no_timer));
}

/* --- the shortest quantum ------------------------------------------------------ */

static uint64_t shortest_quantum(void)
{
	struct fiber_query_args a = {};
	int fd = raw_open();

	raw_ioctl(fd, FIBER_IOC_QUERY, &a);
	close(fd);
	return a.min_quantum_ns;
}

static int setup_with(uint64_t quantum_ns)
{
	struct raw_options o = { .quantum_ns = quantum_ns };
	struct fiber_setup_args a;
	int fd = raw_open(), err;

	raw_good_setup(&a, &o);
	err = raw_ioctl(fd, FIBER_IOC_SETUP, &a);
	close(fd);
	return err;
}

TEST_F(limits, quantum)
{
	NEED_ROOT();
	ASSERT_TRUE(raw_parameter("min_quantum_us", "200"));
	EXPECT_EQ(200000, shortest_quantum());
	EXPECT_EQ(-EINVAL, setup_with(199999));
	EXPECT_EQ(0, setup_with(200000));
	/* No parameter makes it shorter than this. */
	ASSERT_TRUE(raw_parameter("min_quantum_us", "1"));
	EXPECT_EQ(50000, shortest_quantum());
	EXPECT_EQ(-EINVAL, setup_with(49999));
	EXPECT_EQ(0, setup_with(50000));
}

/* --- memory ------------------------------------------------------------------ */

#define CGROUP	"/sys/fs/cgroup"
#define MINE	CGROUP "/fiber-limits"

static bool put(const char *path, const char *value)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	bool ok = fd >= 0 && write(fd, value, strlen(value)) > 0;

	if (fd >= 0)
		close(fd);
	return ok;
}

static uint64_t charged(void)
{
	char text[32] = {};
	int fd = open(MINE "/memory.current", O_RDONLY | O_CLOEXEC);

	if (fd < 0 || read(fd, text, sizeof(text) - 1) <= 0)
		return 0;
	close(fd);
	return strtoull(text, NULL, 10);
}

/* A page a processor and a page a carrier, at least. */
static int memory_is_charged(void)
{
	struct raw_options o = { .processors = 1024, .max_carriers = 1024 };
	uint64_t before;

	if (!put(MINE "/cgroup.procs", "0"))
		return 1;
	before = charged();
	if (raw_start(&o))
		return 2;
	return charged() >= before + 1024 * RAW_PAGE ? 0 : 3;
}

TEST_F(limits, memory)
{
	pid_t pid;

	NEED_ROOT();
	put(CGROUP "/cgroup.subtree_control", "+memory");
	rmdir(MINE);
	if (mkdir(MINE, 0755) || !charged()) {
		put(MINE "/memory.max", "max");
		if (access(MINE "/memory.current", R_OK)) {
			rmdir(MINE);
			SKIP(return, "no memory cgroup here");
		}
	}
	pid = fork();
	if (!pid)
		_exit(memory_is_charged());
	EXPECT_EQ(0, child_status(pid));
	/* Given back with the group. */
	EXPECT_TRUE(RAW_UNTIL(charged() < 1024 * RAW_PAGE));
	EXPECT_EQ(0, rmdir(MINE));
}

TEST_HARNESS_MAIN
