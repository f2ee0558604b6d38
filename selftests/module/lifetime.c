// SPDX-License-Identifier: GPL-2.0-only
/*
 * lifetime.c - threads, processes, files and the module come and go; whoever
 * dies loses nothing of anyone else's, and nothing stays behind
 */
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "harness.h"

extern char **environ;

static int exit_code(pid_t pid)
{
	int status = -1;

	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

/* References that are not this test's; earlier ones may be on their way out. */
static int others(void)
{
	RAW_UNTIL(raw_refcnt() == 0);
	return raw_refcnt();
}

/* --- after exec: this same program again ------------------------------------ */

/* The old group's file, if it is still open, is foreign; a new one works. */
static int after_exec(const char *fd_text)
{
	int fd = atoi(fd_text), err;
	struct raw_options o = {};

	if (fd >= 0 && raw_ioctl(fd, FIBER_IOC_WAKE, NULL) != -EPERM)
		return 20;
	err = raw_start(&o);
	if (err)
		return 30;
	err = raw_attach();
	if (err) {
		printf("# attach after exec: %d\n", err);
		return 40;
	}
	if (raw_own(FIBER_WAIT_READY))
		return 50;
	raw_enter();
	raw_sleep(1000);
	raw_exclude();
	raw_leave();
	return raw_violations ? 60 : 7;
}

static void exec_again(bool keep_file)
{
	char fd[16];
	char *argv[] = { "lifetime", "after-exec", fd, NULL };

	if (keep_file)
		fcntl(raw_fd, F_SETFD, 0);
	snprintf(fd, sizeof(fd), "%d", keep_file ? raw_fd : -1);
	execve("/proc/self/exe", argv, environ);
	_exit(99);
}

/* --- carriers that end ------------------------------------------------------- */

enum ending { WITHOUT, OWNER, OWNER_IN_FIBER, DETACHED, DETACHED_OWNER };

/* Numbers come back when the reaper has run. */
static int attach_soon(void)
{
	int err = 0;

	RAW_UNTIL((err = raw_attach()) != -ENOSPC);
	return err;
}

static void *end_like(void *how)
{
	enum ending ending = (uintptr_t)how;

	if (attach_soon()) {
		ADD(raw_violations, 1);
		return NULL;
	}
	if (ending != WITHOUT && ending != DETACHED && raw_own(FIBER_WAIT_READY))
		ADD(raw_violations, 1);
	if (ending == OWNER_IN_FIBER) {
		raw_takeover(FIBER_TAKEOVER_READY);
		raw_enter();
		raw_exclude();
	}
	if (ending == DETACHED || ending == DETACHED_OWNER)
		if (raw_detach())
			ADD(raw_violations, 1);
	return NULL;
}

TEST(thread_ends_any_way)
{
	uintptr_t how;

	START(.max_carriers = 8);
	for (how = WITHOUT; how <= DETACHED_OWNER; how++) {
		pthread_join(raw_thread(end_like, (void *)how), NULL);
		EXPECT_TRUE(RAW_UNTIL(raw_info->carriers == 0));
		EXPECT_TRUE(RAW_UNTIL(raw_info->idle == 1));
		EXPECT_EQ(FIBER_NO_CARRIER, raw_processor(0)->owner);
		raw_processor(0)->takeover = 0;
	}
	EXPECT_EXCLUSIVE();
}

TEST(thread_ends_100_times)
{
	int i;

	START(.processors = 2, .max_carriers = 64);
	for (i = 0; i < 100; i++)
		pthread_join(raw_thread(end_like, (void *)(uintptr_t)(i % 5)), NULL);
	EXPECT_TRUE(RAW_UNTIL(raw_info->carriers == 0));
	EXPECT_TRUE(RAW_UNTIL(raw_info->idle == 2));
	EXPECT_EQ(2, raw_info->avail);
	EXPECT_EXCLUSIVE();
}

TEST(attach_detach_100_times)
{
	int i, err = 0;

	START(.max_carriers = 4);
	for (i = 0; i < 100 && !err; i++) {
		err = attach_soon() ?: raw_own(FIBER_WAIT_READY);
		err = err ?: raw_detach();
	}
	EXPECT_EQ(0, err);
	EXPECT_TRUE(RAW_UNTIL(raw_info->carriers == 0));
	EXPECT_TRUE(RAW_UNTIL(raw_info->idle == 1));
	EXPECT_EXCLUSIVE();
}

static unsigned int stop;

RAW_TEXT static void spin(uint64_t turns)
{
	while (turns--)
		asm volatile("");
}

static void *detach_when_due(void *count)
{
	while (!LOAD(stop)) {
		if (raw_attach() || raw_own(FIBER_WAIT_READY))
			continue;
		raw_takeover(FIBER_TAKEOVER_READY);
		raw_enter();
		spin(20000);
		raw_leave();
		if (raw_detach())
			ADD(raw_violations, 1);
		ADD(*(unsigned int *)count, 1);
	}
	return NULL;
}

/*
 * A quantum may end in the very moment of the detach: the thread must not keep
 * an armed edge (which would fire in another thread; the log would say so).
 */
TEST(detach_when_quantum_ends)
{
	unsigned int count = 0, i;
	pthread_t t[4];

	START(.quantum_ns = 50000, .preempt = true, .max_carriers = 256);
	for (i = 0; i < 4; i++)
		t[i] = raw_thread(detach_when_due, &count);
	raw_sleep(4000000);
	EXPECT_TRUE(RAW_UNTIL(LOAD(count) > 10));
	STORE(stop, 1);
	for (i = 0; i < 4; i++)
		pthread_join(t[i], NULL);
	TH_LOG("%u times", LOAD(count));
	EXPECT_TRUE(RAW_UNTIL(raw_info->carriers == 0));
	EXPECT_EXCLUSIVE();
}

static void leave_thread(int signal)
{
	if (raw_page->in_fiber)
		raw_exclude();
	syscall(SYS_exit, 0);
}

static void catch_and_leave(void)
{
	struct sigaction a = { .sa_handler = leave_thread };

	sigaction(SIGUSR1, &a, NULL);
}

static int blocked_pipe[2];
static unsigned int inside;

static void *wait_ready(void *arg)
{
	if (!raw_attach())
		raw_own(FIBER_WAIT_READY);
	return NULL;
}

static void *wait_spare(void *arg)
{
	if (!raw_attach())
		raw_wait(FIBER_WAIT_SPARE, 0, NULL);
	return NULL;
}

static void *block_in_read(void *takeover)
{
	char c;

	if (raw_attach() || raw_own(FIBER_WAIT_READY))
		return NULL;
	raw_takeover((uintptr_t)takeover);
	raw_enter();
	STORE(inside, 1);
	(void)!read(blocked_pipe[0], &c, 1);
	raw_exclude();
	raw_leave();
	return NULL;
}

/*
 * A thread that waits leaves by a signal handler. WAIT_READY restarts: the
 * handler runs when it is its turn.
 */
TEST(thread_ends_while_waiting)
{
	pthread_t ready, spare;

	START(0);
	catch_and_leave();
	ASSERT_EQ(0, raw_attach());
	ASSERT_EQ(0, raw_own(FIBER_WAIT_READY));
	ready = raw_thread(wait_ready, NULL);
	ASSERT_TRUE(RAW_UNTIL(raw_info->waiting == 1));
	spare = raw_thread(wait_spare, NULL);
	ASSERT_TRUE(RAW_UNTIL(raw_info->spares == 1));
	pthread_kill(spare, SIGUSR1);
	pthread_join(spare, NULL);
	EXPECT_TRUE(RAW_UNTIL(raw_info->carriers == 2));
	EXPECT_EQ(0, raw_info->spares);
	pthread_kill(ready, SIGUSR1);
	raw_sleep(20000);
	EXPECT_TRUE(RAW_UNTIL(raw_info->waiting == 1));
	EXPECT_EQ(0, raw_page->processor);
	ASSERT_EQ(0, raw_own(FIBER_WAIT_READY | FIBER_WAIT_GIVE));
	pthread_join(ready, NULL);
	EXPECT_TRUE(RAW_UNTIL(raw_info->carriers == 1));
	EXPECT_EQ(0, raw_page->processor);
	EXPECT_EXCLUSIVE();
}

TEST(thread_ends_while_blocked)
{
	uint32_t takeover[] = { 0, FIBER_TAKEOVER_READY };
	pthread_t t;
	size_t i;

	START(0);
	catch_and_leave();
	ASSERT_EQ(0, pipe(blocked_pipe));
	for (i = 0; i < 2; i++) {
		STORE(inside, 0);
		t = raw_thread(block_in_read, (void *)(uintptr_t)takeover[i]);
		ASSERT_TRUE(RAW_UNTIL(LOAD(inside) && raw_info->avail == 1));
		raw_sleep(10000);
		pthread_kill(t, SIGUSR1);
		pthread_join(t, NULL);
		EXPECT_TRUE(RAW_UNTIL(raw_info->carriers == 0));
		EXPECT_TRUE(RAW_UNTIL(raw_info->idle == 1));
		raw_processor(0)->takeover = 0;
	}
	EXPECT_EXCLUSIVE();
}

static void *own_in_read(void *arg)
{
	char c;

	if (raw_attach() || raw_own(FIBER_WAIT_READY))
		return NULL;
	STORE(inside, 1);
	(void)!read(blocked_pipe[0], &c, 1);
	return NULL;
}

static void *leave_soon(void *thread)
{
	RAW_UNTIL(raw_info->waiting == 1);
	pthread_kill(*(pthread_t *)thread, SIGUSR1);
	return NULL;
}

/* An owner that nobody can take the processor from dies: the next continues. */
TEST(owner_dies_next_continues)
{
	pthread_t owner, killer;
	uint32_t event;

	START(0);
	catch_and_leave();
	ASSERT_EQ(0, pipe(blocked_pipe));
	owner = raw_thread(own_in_read, NULL);
	ASSERT_TRUE(RAW_UNTIL(LOAD(inside)));
	ASSERT_EQ(0, raw_attach());
	killer = raw_thread(leave_soon, &owner);
	ASSERT_EQ(0, raw_wait(FIBER_WAIT_READY, 0, &event));
	EXPECT_EQ(FIBER_EVENT_EXIT, event);
	EXPECT_EQ(0, raw_page->processor);
	EXPECT_EQ(raw_index, raw_processor(0)->owner);
	pthread_join(owner, NULL);
	pthread_join(killer, NULL);
	EXPECT_EXCLUSIVE();
}

/* --- the file is closed -------------------------------------------------------- */

static int close_said[12];

static void *wait_until_closed(void *arg)
{
	uintptr_t i = (uintptr_t)arg;

	close_said[i] = raw_attach() ?:
		raw_wait(i & 1 ? FIBER_WAIT_SPARE : FIBER_WAIT_READY, 0, NULL);
	return NULL;
}

TEST(close_ends_all_waits)
{
	pthread_t t[12], blocked;
	uintptr_t i;

	START(0);
	ASSERT_EQ(0, pipe(blocked_pipe));
	blocked = raw_thread(block_in_read, (void *)FIBER_TAKEOVER_READY);
	ASSERT_TRUE(RAW_UNTIL(LOAD(inside) && raw_info->idle == 1));
	ASSERT_EQ(0, raw_attach());
	ASSERT_EQ(0, raw_own(FIBER_WAIT_READY));
	for (i = 0; i < 12; i++) {
		close_said[i] = 1;
		t[i] = raw_thread(wait_until_closed, (void *)i);
	}
	ASSERT_TRUE(RAW_UNTIL(raw_info->waiting == 6 && raw_info->spares == 6));
	ASSERT_EQ(0, close(raw_fd));
	EXPECT_EQ(1, raw_info->dead);
	for (i = 0; i < 12; i++) {
		pthread_join(t[i], NULL);
		EXPECT_EQ(-ESHUTDOWN, close_said[i]);
	}
	EXPECT_EQ(0, raw_info->waiting + raw_info->spares);
	/* What was blocked in fiber runs on as a plain thread. */
	ASSERT_EQ(1, write(blocked_pipe[1], "x", 1));
	pthread_join(blocked, NULL);
	EXPECT_EQ(0, raw_acquire_errors);
}

/* In the RETURN trampoline when the file goes: the error reaches it. */
TEST(close_while_returning)
{
	pthread_t blocked;

	START(0);
	ASSERT_EQ(0, pipe(blocked_pipe));
	blocked = raw_thread(block_in_read, (void *)FIBER_TAKEOVER_READY);
	ASSERT_TRUE(RAW_UNTIL(LOAD(inside) && raw_info->idle == 1));
	ASSERT_EQ(0, raw_attach());
	ASSERT_EQ(0, raw_own(FIBER_WAIT_READY));
	ASSERT_EQ(1, write(blocked_pipe[1], "x", 1));
	ASSERT_TRUE(RAW_UNTIL(raw_info->waiting == 1));
	ASSERT_EQ(0, close(raw_fd));
	pthread_join(blocked, NULL);
	EXPECT_EQ(1, raw_acquire_errors);
	EXPECT_EQ(-ESHUTDOWN, raw_acquire_error);
}

static int pipe_of_blocked[2];
static unsigned int taken_over, back_again;

static void *blocks_in_fiber(void *arg)
{
	char byte;

	raw_attach();
	raw_own(FIBER_WAIT_READY);
	raw_takeover(FIBER_TAKEOVER_READY);
	raw_enter();
	if (read(pipe_of_blocked[0], &byte, 1) == 1)
		STORE(back_again, 1);
	return NULL;
}

static void *takes_over(void *arg)
{
	raw_attach();
	STORE(taken_over, !raw_wait(FIBER_WAIT_SPARE, 0, NULL));
	RAW_UNTIL(LOAD(back_again));
	return NULL;
}

/* It comes back without a processor, and with a quantum to look after. */
TEST(close_while_blocked)
{
	pthread_t t[2];

	START(.quantum_ns = 1000000, .preempt = true);
	ASSERT_EQ(0, pipe(pipe_of_blocked));
	t[0] = raw_thread(takes_over, NULL);
	ASSERT_TRUE(RAW_UNTIL(raw_info->spares == 1));
	t[1] = raw_thread(blocks_in_fiber, NULL);
	ASSERT_TRUE(RAW_UNTIL(LOAD(taken_over)));
	raw_sleep(20000);
	EXPECT_EQ(0, close(raw_fd));
	ASSERT_EQ(1, write(pipe_of_blocked[1], "x", 1));
	EXPECT_TRUE(RAW_UNTIL(LOAD(back_again)));
	pthread_join(t[0], NULL);
	pthread_join(t[1], NULL);
}

static void *set_up(void *args)
{
	return (void *)(long)raw_ioctl(raw_fd, FIBER_IOC_SETUP, args);
}

/* A page that is missing until fill() gives it. */
static int missing_page(void **page)
{
	struct uffdio_api api = { .api = UFFD_API };
	struct uffdio_register reg = { .mode = UFFDIO_REGISTER_MODE_MISSING };
	int uffd = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);

	*page = mmap(NULL, RAW_PAGE, PROT_READ | PROT_WRITE,
		     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	reg.range.start = (uintptr_t)*page;
	reg.range.len = RAW_PAGE;
	if (uffd < 0 || ioctl(uffd, UFFDIO_API, &api) ||
	    ioctl(uffd, UFFDIO_REGISTER, &reg))
		return -1;
	return uffd;
}

static bool fill(int uffd, void *page, const void *content)
{
	struct uffdio_copy copy = { .dst = (uintptr_t)page,
		.src = (uintptr_t)content, .len = RAW_PAGE };

	return !ioctl(uffd, UFFDIO_COPY, &copy);
}

/*
 * SETUP sleeps in a fault while another thread closes the descriptor: the group
 * ends as it would have a moment later. A child has the file still.
 */
TEST(close_during_setup)
{
	static char content[RAW_PAGE] __attribute__((aligned(RAW_PAGE)));
	struct raw_options o = {};
	int uffd, other, fd;
	void *page, *said;
	pthread_t t;
	pid_t pid;

	NEED_MODULE();
	uffd = missing_page(&page);
	if (uffd < 0)
		SKIP(return, "no userfaultfd: %s", strerror(errno));
	raw_fd = raw_open();
	ASSERT_LE(0, raw_fd);
	pid = fork();
	if (!pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		pause();
		_exit(1);
	}
	other = syscall(SYS_pidfd_open, pid, 0);
	ASSERT_LE(0, other);
	raw_good_setup((struct fiber_setup_args *)content, &o);
	t = raw_thread(set_up, page);
	ASSERT_EQ(1, poll(&(struct pollfd){ uffd, POLLIN }, 1, RAW_PATIENCE * 1000));
	ASSERT_EQ(0, close(raw_fd));
	ASSERT_TRUE(fill(uffd, page, content));
	pthread_join(t, &said);
	EXPECT_EQ(NULL, said);
	fd = syscall(SYS_pidfd_getfd, other, raw_fd, 0);
	ASSERT_LE(0, fd);
	EXPECT_EQ(-ESHUTDOWN, raw_ioctl(fd, FIBER_IOC_ATTACH,
					&(struct fiber_attach_args){}));
	kill(pid, SIGKILL);
	EXPECT_EQ(1000 + SIGKILL, exit_code(pid));
}

TEST(close_then_commands)
{
	struct fiber_attach_args a = {};
	struct raw_options o = {};
	struct fiber_setup_args setup;
	int copy;

	START(0);
	copy = dup(raw_fd);
	ASSERT_LE(0, copy);
	ASSERT_EQ(0, raw_attach());
	ASSERT_EQ(0, close(raw_fd));		/* any descriptor of it */
	raw_fd = copy;
	EXPECT_EQ(1, raw_info->dead);
	EXPECT_EQ(-ESHUTDOWN, raw_wait(FIBER_WAIT_READY, 0, NULL));
	EXPECT_EQ(-ESHUTDOWN, raw_ioctl(raw_fd, FIBER_IOC_ACQUIRE, NULL));
	EXPECT_EQ(0, raw_ioctl(raw_fd, FIBER_IOC_WAKE, NULL));
	EXPECT_EQ(0, raw_detach());
	EXPECT_EQ(-ESHUTDOWN, raw_ioctl(raw_fd, FIBER_IOC_ATTACH, &a));
	EXPECT_EQ(-ESHUTDOWN, raw_ioctl(raw_fd, FIBER_IOC_KEEP, NULL));
	raw_good_setup(&setup, &o);
	EXPECT_EQ(-EBUSY, raw_ioctl(raw_fd, FIBER_IOC_SETUP, &setup));
}

/* --- fork, vfork, spawn, exec --------------------------------------------------- */

TEST(fork_leaves_parent_alone)
{
	int i;

	START(0);
	ASSERT_EQ(0, raw_attach());
	ASSERT_EQ(0, raw_own(FIBER_WAIT_READY));
	raw_takeover(FIBER_TAKEOVER_READY);
	raw_enter();
	for (i = 0; i < 10; i++) {
		pid_t pid = fork();

		if (!pid) {
			close(raw_fd);		/* its own descriptor */
			_exit(5);
		}
		EXPECT_EQ(5, exit_code(pid));
		raw_exclude();
	}
	raw_leave();
	EXPECT_EQ(0, raw_info->dead);
	EXPECT_EQ(1, raw_info->carriers);
	EXPECT_EXCLUSIVE();
}

/* A child of fork makes a group of its own with a new file. */
TEST(fork_child_has_its_own)
{
	struct raw_options o = {};
	pid_t pid;

	START(0);
	ASSERT_EQ(0, raw_attach());
	pid = fork();
	if (!pid) {
		close(raw_fd);
		if (raw_start(&o) || raw_attach() || raw_own(FIBER_WAIT_READY))
			_exit(1);
		raw_enter();
		raw_sleep(1000);
		raw_exclude();
		_exit(raw_violations ? 2 : 7);
	}
	EXPECT_EQ(7, exit_code(pid));
	EXPECT_EQ(0, raw_own(FIBER_WAIT_READY));
	EXPECT_EXCLUSIVE();
}

TEST(spawn_in_fiber)
{
	char *argv[] = { "lifetime", "after-exec", "-1", NULL };
	pid_t pid;
	int i;

	START(0);
	ASSERT_EQ(0, raw_attach());
	ASSERT_EQ(0, raw_own(FIBER_WAIT_READY));
	raw_takeover(FIBER_TAKEOVER_READY);
	raw_enter();
	for (i = 0; i < 3; i++) {
		ASSERT_EQ(0, posix_spawn(&pid, "/proc/self/exe", NULL, NULL,
					 argv, environ));
		raw_exclude();
		EXPECT_EQ(7, exit_code(pid));
		raw_exclude();
	}
	raw_leave();
	EXPECT_EQ(0, raw_info->dead);
	EXPECT_EXCLUSIVE();
}

FIXTURE(exec)
{
	int unused;
};

FIXTURE_VARIANT(exec)
{
	bool other_thread, owner, in_fiber, keep_file;
};

FIXTURE_VARIANT_ADD(exec, leader) { .other_thread = false };
FIXTURE_VARIANT_ADD(exec, leader_owner) { .owner = true };
FIXTURE_VARIANT_ADD(exec, leader_in_fiber) { .owner = true, .in_fiber = true };
FIXTURE_VARIANT_ADD(exec, leader_keeps_file) {
	.owner = true, .in_fiber = true, .keep_file = true };
FIXTURE_VARIANT_ADD(exec, thread) { .other_thread = true };
FIXTURE_VARIANT_ADD(exec, thread_owner) { .other_thread = true, .owner = true };
FIXTURE_VARIANT_ADD(exec, thread_in_fiber) {
	.other_thread = true, .owner = true, .in_fiber = true };
FIXTURE_VARIANT_ADD(exec, thread_keeps_file) {
	.other_thread = true, .owner = true, .in_fiber = true, .keep_file = true };

FIXTURE_SETUP(exec)
{
	NEED_MODULE();
}

FIXTURE_TEARDOWN(exec)
{
}

static void *become_and_exec(void *arg)
{
	const struct _fixture_variant_exec *v = arg;

	if (raw_attach())
		_exit(90);
	if (v->owner) {
		if (raw_own(FIBER_WAIT_READY))
			_exit(91);
		raw_takeover(FIBER_TAKEOVER_READY);
	}
	if (v->in_fiber)
		raw_enter();
	exec_again(v->keep_file);
	return NULL;
}

static void run_exec(const struct _fixture_variant_exec *v)
{
	struct raw_options o = { .quantum_ns = 1000000, .preempt = true };
	int i;

	if (raw_start(&o))
		_exit(80);
	for (i = 0; i < 3; i++)
		raw_thread(wait_spare, NULL);
	if (!RAW_UNTIL(raw_info->spares == 3))
		_exit(81);
	if (!v->other_thread)
		become_and_exec((void *)v);
	raw_thread(become_and_exec, (void *)v);
	pause();
}

TEST_F(exec, group_ends)
{
	int base = others();
	pid_t pid;

	pid = fork();
	if (!pid) {
		run_exec(variant);
		_exit(98);
	}
	EXPECT_EQ(7, exit_code(pid));
	EXPECT_TRUE(RAW_UNTIL(raw_refcnt() == base));
}

/* --- processes that are killed --------------------------------------------------- */

static int told[2];

static void *forever(void *arg)
{
	int err = raw_attach();

	if (err) {
		dprintf(2, "# attach: %d\n", err);
		_exit(1);
	}
	raw_own(arg ? FIBER_WAIT_SPARE : FIBER_WAIT_READY);
	for (;;)
		pause();
}

/* One owner, half of the rest wait as ready, half as spares. */
static void crowd(unsigned int n)
{
	struct raw_options o = { .max_carriers = n };
	unsigned int i;

	if (raw_start(&o))
		_exit(1);
	for (i = 0; i < n; i++)
		raw_thread(forever, (void *)(uintptr_t)(i > n / 2));
	if (!RAW_UNTIL(raw_info->waiting + raw_info->spares == n - 1))
		_exit(2);
	(void)!write(told[1], "r", 1);
	for (;;)
		pause();
}

static bool child_is_ready(void)
{
	struct pollfd p = { .fd = told[0], .events = POLLIN };
	char c;

	return poll(&p, 1, 120000 * FIBER_SLOW) == 1 && read(told[0], &c, 1) == 1;
}

TEST(kill_600_waiters)
{
	int base = others();
	uint64_t start;
	pid_t pid;

	NEED_MODULE();
	ASSERT_EQ(0, pipe(told));
	pid = fork();
	if (!pid)
		crowd(600);
	ASSERT_TRUE(child_is_ready());
	EXPECT_LT(base + 599, raw_refcnt());
	start = raw_now();
	kill(pid, SIGKILL);
	EXPECT_EQ(1000 + SIGKILL, exit_code(pid));
	EXPECT_TRUE(RAW_UNTIL(raw_refcnt() == base));
	TH_LOG("600 carriers reaped in %lu ms", (raw_now() - start) / 1000000);
}

/* The same by exit_group, twenty times, small. */
TEST(exit_with_waiters)
{
	int base = others(), i;
	pid_t pid;

	NEED_MODULE();
	ASSERT_EQ(0, pipe(told));
	for (i = 0; i < 20; i++) {
		pid = fork();
		if (!pid)
			crowd(8);
		ASSERT_TRUE(child_is_ready());
		kill(pid, i & 1 ? SIGKILL : SIGTERM);
		EXPECT_LE(1000, exit_code(pid));
	}
	EXPECT_TRUE(RAW_UNTIL(raw_refcnt() == base));
}

static int delete_module(void)
{
	return syscall(SYS_delete_module, "fiber", O_NONBLOCK) ? -errno : 0;
}

TEST(unload_refused_while_used)
{
	START(0);
	if (raw_refcnt() < 0)
		SKIP(return, "the module cannot be unloaded here");
	/* -EWOULDBLOCK is how the kernel says "in use"; rmmod says it in words. */
	EXPECT_EQ(-EWOULDBLOCK, delete_module());
	ASSERT_EQ(0, raw_attach());
	EXPECT_EQ(-EWOULDBLOCK, delete_module());
	ASSERT_EQ(0, raw_own(FIBER_WAIT_READY));
	raw_enter();
	raw_sleep(1000);
	raw_exclude();
	raw_leave();
	EXPECT_EXCLUSIVE();
}

/* A carrier outlives its file and its mapping: it still pins the module. */
TEST(unload_refused_while_attached)
{
	int base = others();

	START(0);
	if (raw_refcnt() < 0)
		SKIP(return, "the module cannot be unloaded here");
	ASSERT_EQ(0, raw_attach());
	ASSERT_EQ(0, close(raw_fd));
	munmap((void *)raw_info, RAW_PAGE);
	munmap((void *)raw_hint, RAW_PAGE);
	munmap((void *)raw_processor(0), RAW_PAGE);
	munmap((void *)raw_carrier(0), 64 * RAW_PAGE);
	raw_sleep(20000);
	EXPECT_LT(base, raw_refcnt());
	EXPECT_EQ(-EWOULDBLOCK, delete_module());
}

static void *end_in_group(void *arg)
{
	(void)arg;
	raw_attach();
	return NULL;
}

/* A hundred processes, each with a carrier that ends as the process does. */
TEST(process_ends_100_times)
{
	int base = others(), i;
	struct raw_options o = {};
	pid_t pid;

	NEED_MODULE();
	for (i = 0; i < 100; i++) {
		pid = fork();
		if (!pid) {
			if (raw_start(&o))
				_exit(1);
			raw_thread(end_in_group, NULL);
			raw_thread(end_in_group, NULL);
			_exit(raw_attach());
		}
		EXPECT_EQ(0, exit_code(pid));
	}
	EXPECT_TRUE(RAW_UNTIL(raw_refcnt() == base));
}

int main(int argc, char **argv)
{
	if (argc == 3 && !strcmp(argv[1], "after-exec"))
		return after_exec(argv[2]);
	return test_harness_run(argc, argv);
}
