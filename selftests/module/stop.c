// SPDX-License-Identifier: GPL-2.0-only
/*
 * stop.c - SIGSTOP, ptrace and the freezer look at carriers; nobody gets a
 * second owner by it, and no call comes back wrong
 */
#include <linux/futex.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "harness.h"
#include "mix.h"
#include "tracer.h"

#define FREEZER	"/sys/fs/cgroup/fiber-test"

static int exit_code(pid_t pid)
{
	int status = -1;

	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

/* --- children --------------------------------------------------------------- */

/*
 * Shared with the child: it may come to an end. How long either of them takes says
 * nothing about the other, and a tracer would take the status of a child that
 * ended under it.
 */
static uint32_t *enough;

static void *end_crowd(void *arg)
{
	while (!LOAD(*enough))
		raw_sleep(2000);
	STORE(mix_stop, 1);
	return NULL;
}

static void crowd(void)
{
	raw_thread(end_crowd, NULL);
	mix_child(0);
}

static uint32_t taken;

static void *spare(void *arg)
{
	uint32_t flags = FIBER_WAIT_SPARE;
	int err;

	if (raw_attach())
		return NULL;
	do {
		err = raw_wait(flags, 0, NULL);
		flags = FIBER_WAIT_SPARE;
		if (!err) {
			ADD(taken, 1);
			raw_sleep(1000);
			flags |= FIBER_WAIT_GIVE | FIBER_WAIT_SURE;
		}
	} while (!err || err == -EINTR);
	return NULL;
}

static void become_owner(void)
{
	struct raw_options o = {};

	if (raw_start(&o))
		_exit(20);
	raw_thread(spare, NULL);
	if (!RAW_UNTIL(raw_info->spares == 1))
		_exit(21);
	if (raw_attach() || raw_own(FIBER_WAIT_READY))
		_exit(22);
	raw_takeover(FIBER_TAKEOVER_READY);
	raw_enter();
}

#define NAP_MS	400

/* Calls with a timeout, restarted by restart_block after each stop. */
static void timed_round(void)
{
	struct timespec t = { 0, NAP_MS * 1000000L };
	uint32_t word = 1;
	uint64_t start;

	start = raw_now();
	if (nanosleep(&t, NULL))
		_exit(30);
	raw_exclude();
	if (raw_now() - start < NAP_MS * 1000000ULL)
		_exit(31);
	start = raw_now();
	if (poll(NULL, 0, NAP_MS))
		_exit(32);
	raw_exclude();
	if (raw_now() - start < NAP_MS * 1000000ULL)
		_exit(33);
	start = raw_now();
	if (syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 1, &t) != -1 ||
	    errno != ETIMEDOUT)
		_exit(34);
	raw_exclude();
	if (raw_now() - start < NAP_MS * 1000000ULL)
		_exit(35);
}

static void timed_calls(void)
{
	become_owner();
	do
		timed_round();
	while (!LOAD(*enough));
	raw_leave();
	if (raw_violations)
		_exit(36);
	_exit(raw_acquire_errors ? 37 : 7);
}

/* Runs in user mode only; whoever stops it does not move its processor. */
static void busy(void)
{
	become_owner();
	while (!LOAD(*enough))
		;
	raw_exclude();
	raw_leave();
	if (raw_violations)
		_exit(40);
	/* A page fault may block; a stop must not. */
	_exit(LOAD(taken) > 2 ? 41 : 7);
}

static pid_t start(void (*fn)(void))
{
	pid_t pid;

	enough = mmap(NULL, RAW_PAGE, PROT_READ | PROT_WRITE,
		      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	*enough = 0;
	pid = fork();
	if (!pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		fn();
		_exit(99);
	}
	return pid;
}

/* Its exit code, or 1000 + a signal. */
static int finish(pid_t pid)
{
	STORE(*enough, 1);
	return exit_code(pid);
}

/* --- SIGSTOP ------------------------------------------------------------------ */

static unsigned int storm(pid_t pid, uint64_t ns, unsigned int us)
{
	uint64_t end = raw_now() + ns;
	unsigned int n = 0;

	while (raw_now() < end) {
		kill(pid, SIGSTOP);
		raw_sleep(us);
		kill(pid, SIGCONT);
		raw_sleep(us);
		n++;
	}
	return n;
}

TEST(stop_storm)
{
	unsigned int n;
	pid_t pid;

	NEED_MODULE();
	pid = start(crowd);
	raw_sleep(300000);
	n = storm(pid, 3000000000ULL, 8000);
	EXPECT_EQ(7, finish(pid));
	TH_LOG("%u stops", n);
}

TEST(stop_timed_calls)
{
	unsigned int n;
	pid_t pid;

	NEED_MODULE();
	pid = start(timed_calls);
	raw_sleep(200000);
	n = storm(pid, 1200000000ULL, 20000);
	EXPECT_EQ(7, finish(pid));
	TH_LOG("%u stops", n);
}

TEST(stop_keeps_processor)
{
	pid_t pid;

	NEED_MODULE();
	pid = start(busy);
	raw_sleep(300000);
	storm(pid, 1000000000ULL, 20000);
	EXPECT_EQ(7, finish(pid));
}

/* --- ptrace -------------------------------------------------------------------- */

/*
 * For a while, and as long as it takes to see some stops: where the machine is slow
 * a thread that steps looks like one that sleeps, and is left alone.
 */
static unsigned int trace_crowd(pid_t pid, int request, unsigned int n)
{
	uint64_t end = raw_now() + 2500000000ULL;
	uint64_t most = end + RAW_PATIENCE * 1000000000ULL;
	unsigned int seen = 0, i = 0;

	while (raw_now() < end || (seen <= 10 && raw_now() < most))
		seen += tracer_go(tracer_thread(pid, i++), request, n);
	return seen;
}

TEST(ptrace_steps)
{
	unsigned int n;
	pid_t pid;

	NEED_MODULE();
	pid = start(crowd);
	raw_sleep(300000);
	n = trace_crowd(pid, PTRACE_SINGLESTEP, 40);
	EXPECT_EQ(7, finish(pid));
	TH_LOG("%u steps", n);
	EXPECT_LT(10, n);
}

TEST(ptrace_system_calls)
{
	unsigned int n;
	pid_t pid;

	NEED_MODULE();
	pid = start(crowd);
	raw_sleep(300000);
	n = trace_crowd(pid, PTRACE_SYSCALL, 10);
	EXPECT_EQ(7, finish(pid));
	TH_LOG("%u stops", n);
	EXPECT_LT(5, n);
}

TEST(ptrace_attach_detach)
{
	unsigned int n = 0, i;
	uint64_t end, most;
	pid_t pid, tid;
	int signal;

	NEED_MODULE();
	pid = start(crowd);
	raw_sleep(300000);
	end = raw_now() + 2500000000ULL;
	most = end + RAW_PATIENCE * 1000000000ULL;
	for (i = 0; raw_now() < end || (n <= 3 && raw_now() < most); i++) {
		tid = tracer_thread(pid, i);
		if (ptrace(PTRACE_ATTACH, tid, 0, 0))
			continue;
		while ((signal = tracer_next(tid)) == TRACER_NOT_YET)
			;
		if (signal < 0)
			continue;
		raw_sleep(2000);
		n += !ptrace(PTRACE_DETACH, tid, 0,
			     signal == SIGSTOP ? 0 : signal);
	}
	EXPECT_EQ(7, finish(pid));
	TH_LOG("%u times", n);
	EXPECT_LT(3, n);
}

/* The whole of a blocked call and of its return, one step at a time. */
TEST(ptrace_steps_through_block)
{
	unsigned int n;
	pid_t pid;

	NEED_MODULE();
	pid = start(timed_calls);
	raw_sleep(300000);
	tracer_patience = RAW_PATIENCE;
	n = tracer_go(pid, PTRACE_SINGLESTEP, 300);
	EXPECT_EQ(7, finish(pid));
	TH_LOG("%u steps", n);
	EXPECT_EQ(300, n);
}

TEST(ptrace_keeps_processor)
{
	uint64_t end;
	pid_t pid;

	NEED_MODULE();
	pid = start(busy);
	raw_sleep(500000);
	end = raw_now() + 500000000;
	while (raw_now() < end)
		tracer_go(pid, PTRACE_SINGLESTEP, 5);
	EXPECT_EQ(7, finish(pid));
}

/* --- freezer ------------------------------------------------------------------- */

static bool put(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	bool ok = fd >= 0 && write(fd, text, strlen(text)) > 0;

	if (fd >= 0)
		close(fd);
	return ok;
}

static bool frozen(void)
{
	char text[128] = "";
	int fd = open(FREEZER "/cgroup.events", O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return false;
	(void)!read(fd, text, sizeof(text) - 1);
	close(fd);
	return strstr(text, "frozen 1");
}

static bool have_freezer(void)
{
	mkdir(FREEZER, 0755);
	return !access(FREEZER "/cgroup.freeze", W_OK);
}

static void freeze_child(struct __test_metadata *_metadata, void (*fn)(void),
			 uint64_t ns)
{
	unsigned int n = 0;
	char text[16];
	uint64_t end;
	pid_t pid;

	pid = start(fn);
	raw_sleep(300000);
	snprintf(text, sizeof(text), "%d", pid);
	ASSERT_TRUE(put(FREEZER "/cgroup.procs", text));
	end = raw_now() + ns;
	while (raw_now() < end) {
		ASSERT_TRUE(put(FREEZER "/cgroup.freeze", "1"));
		ASSERT_TRUE(RAW_UNTIL(frozen()));
		raw_sleep(5000);
		ASSERT_TRUE(put(FREEZER "/cgroup.freeze", "0"));
		raw_sleep(20000);
		n++;
	}
	EXPECT_EQ(7, finish(pid));
	TH_LOG("frozen %u times", n);
	EXPECT_LE(1, n);
}

TEST(freezer_crowd)
{
	NEED_MODULE();
	if (!have_freezer())
		SKIP(return, "no cgroup v2 at /sys/fs/cgroup");
	freeze_child(_metadata, crowd, 3000000000ULL);
	rmdir(FREEZER);
}

TEST(freezer_timed_calls)
{
	NEED_MODULE();
	if (!have_freezer())
		SKIP(return, "no cgroup v2 at /sys/fs/cgroup");
	freeze_child(_metadata, timed_calls, 1000000000ULL);
	rmdir(FREEZER);
}

TEST_HARNESS_MAIN
