// SPDX-License-Identifier: GPL-2.0-only
/*
 * hazard_process.c - processes that share memory or files with a group, and
 * limits of memory
 *
 * fork, posix_spawn, exec (by leader, by another thread) and kill are in
 * lifetime.c, vfork and fork + waitpid as blocking calls in block.c, a foreign
 * child and receiver in abi.c, RLIMIT_NPROC in lib/hazard.c.
 */
#include <sched.h>
#include <signal.h>
#include <sys/klog.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "harness.h"
#include "mix.h"

/* --- a process that shares the memory (vfork, clone) ---------------------------- */

static unsigned int taken;

static void *spare(void *arg)
{
	uint32_t flags = FIBER_WAIT_SPARE;

	if (raw_attach())
		return NULL;
	while (!raw_wait(flags, 0, NULL)) {
		ADD(taken, 1);
		raw_exclude();
		raw_leave();
		raw_sleep(1000);
		flags = FIBER_WAIT_SPARE | FIBER_WAIT_GIVE | FIBER_WAIT_SURE;
	}
	return NULL;
}

enum ending { DETACH, EXIT_IN_FIBER, KILLED_IN_FIBER, EXEC_IN_FIBER, ENDINGS };

/* Runs in the child, on the parent's memory; the parent sleeps meanwhile. */
static int live_in_group(void *arg)
{
	char *argv[] = { "hazard_process", "--nothing", NULL }, *none[] = { NULL };
	enum ending how = (uintptr_t)arg;
	int i;

	if (raw_attach() || raw_own(FIBER_WAIT_READY))
		_exit(1);
	raw_takeover(FIBER_TAKEOVER_READY);
	raw_enter();
	for (i = 0; i < 3; i++) {
		raw_sleep(2000);
		raw_exclude();
	}
	if (how == KILLED_IN_FIBER)
		kill(getpid(), SIGKILL);
	if (how == EXEC_IN_FIBER)
		execve("/proc/self/exe", argv, none);
	if (how == EXIT_IN_FIBER)
		_exit(7);
	raw_leave();
	raw_takeover(0);
	_exit(raw_detach() ? 2 : 7);
}

/* A child of clone(CLONE_VM) has the same mm: it may be a carrier. */
TEST(clone_that_shares_memory)
{
	static char stack[64 << 10] __attribute__((aligned(16)));
	static const int want[ENDINGS] = { 7, 7, 1000 + SIGKILL, 7 };
	uintptr_t how;
	pid_t pid;

	START(.max_carriers = 16);
	raw_thread(spare, NULL);
	ASSERT_TRUE(RAW_UNTIL(raw_info->spares == 1));
	for (how = 0; how < ENDINGS; how++) {
		pid = clone(live_in_group, stack + sizeof(stack),
			    CLONE_VM | CLONE_VFORK | SIGCHLD, (void *)how);
		ASSERT_LT(0, pid);
		EXPECT_EQ(want[how], raw_exit_code(pid)) TH_LOG("case %lu", how);
		/* Nothing of it is left, and the group lives. */
		EXPECT_TRUE(RAW_UNTIL(raw_info->carriers == 1));
		raw_processor(0)->takeover = 0;
		EXPECT_TRUE(RAW_UNTIL(raw_info->idle == 1));
		EXPECT_EQ(0, raw_info->dead);
	}
	EXPECT_LE(1, LOAD(taken));
	EXPECT_EQ(0, raw_acquire_errors);
	EXPECT_EXCLUSIVE();
}

/* --- descriptors that travel ------------------------------------------------------ */

static void send_fd(int sock, int fd)
{
	char byte = 'x', control[CMSG_SPACE(sizeof(int))] = {};
	struct iovec iov = { &byte, 1 };
	struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1,
		.msg_control = control, .msg_controllen = sizeof(control) };
	struct cmsghdr *c = CMSG_FIRSTHDR(&m);

	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(c), &fd, sizeof(fd));
	if (sendmsg(sock, &m, 0) != 1)
		_exit(30);
}

static int receive_fd(int sock)
{
	char byte, control[CMSG_SPACE(sizeof(int))] = {};
	struct iovec iov = { &byte, 1 };
	struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1,
		.msg_control = control, .msg_controllen = sizeof(control) };
	struct cmsghdr *c;
	int fd = -1;

	if (recvmsg(sock, &m, 0) == 1 && (c = CMSG_FIRSTHDR(&m)))
		memcpy(&fd, CMSG_DATA(c), sizeof(fd));
	return fd;
}

static void group_in_the_mail(int sock)
{
	struct raw_options o = {};

	if (raw_start(&o))
		_exit(20);
	raw_thread(spare, NULL);
	if (!RAW_UNTIL(raw_info->spares == 1) || raw_attach() ||
	    raw_own(FIBER_WAIT_READY))
		_exit(21);
	raw_enter();
	send_fd(sock, raw_fd);
	for (;;)
		pause();
}

/* The process of the group dies while its file is in a socket's queue. */
TEST(scm_rights_outlives_the_process)
{
	int sock[2], fd, base;
	pid_t pid;

	NEED_MODULE();
	base = raw_base();
	ASSERT_EQ(0, socketpair(AF_UNIX, SOCK_STREAM, 0, sock));
	pid = fork();
	if (!pid)
		group_in_the_mail(sock[1]);
	ASSERT_TRUE(RAW_UNTIL(raw_refcnt() == base + 3));
	raw_sleep(20000);
	kill(pid, SIGKILL);
	EXPECT_EQ(1000 + SIGKILL, raw_exit_code(pid));
	/* The carriers are gone; the file is not. */
	EXPECT_TRUE(RAW_UNTIL(raw_refcnt() == base + 1));
	fd = receive_fd(sock[0]);
	ASSERT_LE(0, fd);
	EXPECT_EQ(-EPERM, raw_ioctl(fd, FIBER_IOC_WAKE, NULL));
	EXPECT_EQ(-EPERM, raw_ioctl(fd, FIBER_IOC_DETACH, NULL));
	EXPECT_EQ(0, close(fd));
	EXPECT_TRUE(RAW_UNTIL(raw_refcnt() == base));
}

/* A file that nobody but a cycle of sockets holds: the kernel collects it. */
TEST(scm_rights_in_a_cycle)
{
	int sock[2], base;
	pid_t pid;

	NEED_MODULE();
	base = raw_base();
	pid = fork();
	if (!pid) {
		struct raw_options o = {};

		if (raw_start(&o) || raw_attach() ||
		    socketpair(AF_UNIX, SOCK_STREAM, 0, sock))
			_exit(1);
		send_fd(sock[0], raw_fd);
		send_fd(sock[0], sock[1]);
		_exit(7);
	}
	EXPECT_EQ(7, raw_exit_code(pid));
	/* Closing any unix socket starts the collection. */
	EXPECT_TRUE(RAW_UNTIL(socketpair(AF_UNIX, SOCK_STREAM, 0, sock) ||
			      close(sock[0]) || close(sock[1]) ||
			      raw_refcnt() == base));
}

/*
 * The number of the closed file is another file now: what a trampoline says to
 * that is refused, and the carrier, of a dead group, goes on.
 */
static int gate[2];
static unsigned int inside, back;

static void *block_in_fiber(void *arg)
{
	char c;

	if (raw_attach() || raw_own(FIBER_WAIT_READY))
		return NULL;
	raw_takeover(FIBER_TAKEOVER_READY);
	raw_enter();
	STORE(inside, 1);
	if (read(gate[0], &c, 1) == 1)
		STORE(back, 1);
	return NULL;
}

TEST(fd_number_reused_while_blocked)
{
	pthread_t t;

	START(0);
	ASSERT_EQ(0, pipe(gate));
	raw_thread(spare, NULL);
	ASSERT_TRUE(RAW_UNTIL(raw_info->spares == 1));
	t = raw_thread(block_in_fiber, NULL);
	ASSERT_TRUE(RAW_UNTIL(LOAD(inside) && LOAD(taken)));
	ASSERT_EQ(raw_fd, dup2(gate[0], raw_fd));	/* closes, and reuses */
	EXPECT_EQ(1, raw_info->dead);
	ASSERT_EQ(1, write(gate[1], "x", 1));
	pthread_join(t, NULL);
	EXPECT_EQ(1, LOAD(back));
	EXPECT_EQ(-ENOTTY, raw_ioctl(raw_fd, FIBER_IOC_ACQUIRE, NULL));
	EXPECT_EQ(-ENOTTY, raw_ioctl(raw_fd, FIBER_IOC_WAKE, NULL));
}

/* --- memory ------------------------------------------------------------------------ */

#define GROUP	"/sys/fs/cgroup/fiber-memory"

static bool have_memcg(void)
{
	raw_put("/sys/fs/cgroup/cgroup.subtree_control", "+memory");
	mkdir(GROUP, 0755);
	return access(GROUP "/memory.max", W_OK) == 0;
}

static uint64_t charged(void)
{
	char text[32] = "";

	raw_get(GROUP "/memory.current", text, sizeof(text));
	return strtoull(text, NULL, 10);
}

static bool set_limit(uint64_t bytes)
{
	char text[32];

	snprintf(text, sizeof(text), "%lu", bytes);
	return raw_put(GROUP "/memory.max", text);
}

/* 1024 processor pages; in the cgroup of the caller. */
static int open_large(void)
{
	struct raw_options o = { .processors = 1024, .max_carriers = 1024 };
	struct fiber_setup_args a;
	int fd = raw_open(), err;

	raw_good_setup(&a, &o);
	err = fd < 0 ? fd : raw_ioctl(fd, FIBER_IOC_SETUP, &a);
	if (err && fd >= 0)
		close(fd);
	return err ?: fd;
}

/* 7: what a large group needs was charged, and came back. */
static int count_charges(void)
{
	uint64_t before = charged(), with, most = 1 << 20;
	int fd = open_large();

	if (fd < 0)
		return 2;
	with = charged();
	if (with < before + 1024 * RAW_PAGE)
		return 3;
	close(fd);
	return RAW_UNTIL(charged() < before + most) ? 7 : 4;
}

/* Until there is no more: by ENOMEM, or killed. */
static int take_all(void)
{
	int fd = 0, n;

	for (n = 0; fd >= 0 && n < 100; n++)
		fd = open_large();
	return fd == -ENOMEM ? 8 : fd == -EMFILE ? 3 : 4;
}

static pid_t in_memcg(int (*fn)(void))
{
	pid_t pid = fork();

	if (!pid) {
		if (!raw_put(GROUP "/cgroup.procs", "0"))
			_exit(5);
		_exit(fn());
	}
	return pid;
}

TEST(memory_is_charged)
{
	NEED_MODULE();
	if (!have_memcg())
		SKIP(return, "no memory controller of cgroup v2");
	ASSERT_TRUE(raw_put(GROUP "/memory.max", "max"));
	EXPECT_EQ(7, raw_exit_code(in_memcg(count_charges)));
	rmdir(GROUP);
}

/* How often @what is in the kernel's log since it was cleared last. */
static unsigned int log_counts(const char *what)
{
	static char text[1 << 18];
	int n = klogctl(3, text, sizeof(text) - 1);
	unsigned int count = 0;
	const char *at = text;

	text[n < 0 ? 0 : n] = 0;
	while ((at = strstr(at, what))) {
		at += strlen(what);
		count++;
	}
	return count;
}

/*
 * The kernel reports the killing with a call trace. That is no fault, and is
 * taken from the log; nothing else may be there.
 */
TEST(memcg_limit)
{
	static const uint64_t limits[] = { 3 << 20, 9 << 20, 20 << 20 };
	int base, code;
	size_t i;

	NEED_MODULE();
	if (!have_memcg())
		SKIP(return, "no memory controller of cgroup v2");
	if (log_counts("Call Trace"))
		SKIP(return, "the kernel's log is not clean");
	base = raw_base();
	for (i = 0; i < ARRAY_SIZE(limits); i++) {
		ASSERT_TRUE(set_limit(limits[i]));
		code = raw_exit_code(in_memcg(take_all));
		EXPECT_TRUE(code == 8 || code == 1000 + SIGKILL)
			TH_LOG("%lu bytes: status %d", limits[i], code);
		EXPECT_TRUE(RAW_UNTIL(raw_refcnt() == base));
	}
	EXPECT_EQ(log_counts("invoked oom-killer"), log_counts("Call Trace"));
	EXPECT_EQ(0, log_counts("BUG:") + log_counts("WARNING:"));
	if (log_counts("invoked oom-killer"))
		klogctl(5, NULL, 0);
	EXPECT_TRUE(RAW_UNTIL(!rmdir(GROUP)));
}

int main(int argc, char **argv)
{
	if (argc == 2 && !strcmp(argv[1], "--nothing"))
		return 7;
	return test_harness_run(argc, argv);
}
