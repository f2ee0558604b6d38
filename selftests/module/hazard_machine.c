// SPDX-License-Identifier: GPL-2.0-only
/*
 * hazard_machine.c - what the machine and the kernel's configuration do to
 * carriers: CPUs that leave, suspend, tickless CPUs, other schedulers, other
 * ways into the kernel
 *
 * Many need something that emulation or Debian's kernels lack. Each of those
 * looks for it, says what is missing, and runs where it is there.
 */
#include <sched.h>

#include "harness.h"
#include "mix.h"

static bool long_run(void)
{
	return getenv("FIBER_LONG") != NULL;
}

static pid_t start_crowd(unsigned int seconds)
{
	pid_t pid = fork();

	if (!pid)
		mix_child(seconds);
	return pid;
}

static bool file_says(const char *path, const char *what)
{
	char text[4096] = "";

	return !raw_get(path, text, sizeof(text)) && strstr(text, what);
}

/* --- CPUs come and go ------------------------------------------------------------- */

#define CPU1	"/sys/devices/system/cpu/cpu1/online"

TEST(cpu_hotplug)
{
	unsigned int n = 0, seconds = long_run() ? 20 : 4;
	uint64_t end = raw_now() + (seconds - 1) * 1000000000ULL;
	pid_t pid;

	NEED_MODULE();
	if (access(CPU1, W_OK))
		SKIP(return, "no second CPU that could be taken offline");
	pid = start_crowd(seconds);
	while (raw_now() < end || n < 2) {
		if (!raw_put(CPU1, "0"))
			break;
		raw_sleep(100000);
		if (!raw_put(CPU1, "1"))
			break;
		raw_sleep(100000);
		n++;
	}
	raw_put(CPU1, "1");
	EXPECT_EQ(MIX_WELL, raw_exit_code(pid));
	TH_LOG("%u times off and on", n);
	EXPECT_LE(2, n);
}

/* --- suspend ----------------------------------------------------------------------- */

/*
 * The stages of a suspend, up to where pm_test ends it: all tasks frozen, then
 * also all devices, then also all CPUs but one.
 */
static bool suspend(const char *stage)
{
	return raw_put("/sys/power/pm_test", stage) &&
	       raw_put("/sys/power/state", "mem");
}

TEST(suspend_stages)
{
	static const char * const stage[] = { "freezer", "devices", "processors" };
	unsigned int n = long_run() ? 3 : 1, i;
	pid_t pid;

	NEED_MODULE();
	if (access("/sys/power/pm_test", W_OK))
		SKIP(return, "no /sys/power/pm_test");
	if (!file_says("/sys/power/state", "mem") &&
	    !file_says("/sys/power/state", "freeze"))
		SKIP(return, "this machine cannot suspend");
	raw_put("/sys/module/suspend/parameters/pm_test_delay", "1");
	if (!long_run())
		TH_LOG("only the freezer: FIBER_LONG=1 runs all stages");
	pid = start_crowd(4);
	raw_sleep(500000);
	for (i = 0; i < n; i++) {
		EXPECT_TRUE(suspend(stage[i]))
			TH_LOG("%s: %s", stage[i], strerror(errno));
		raw_sleep(200000);
	}
	raw_put("/sys/power/pm_test", "none");
	EXPECT_EQ(MIX_WELL, raw_exit_code(pid));
}

/* --- tickless CPUs -------------------------------------------------------------------- */

static unsigned int stop, running;

static void *hog(void *arg)
{
	if (raw_attach() || raw_own(FIBER_WAIT_READY))
		return NULL;
	raw_takeover(FIBER_TAKEOVER_READY);
	ADD(running, 1);
	raw_enter();
	while (!LOAD(stop))
		mix_spin(1000);
	raw_exclude();
	raw_leave();
	return NULL;
}

/* The first CPU of a list like 1-3,5; or -1. */
static int first_cpu(const char *path)
{
	char text[128] = "";

	if (raw_get(path, text, sizeof(text)) || text[0] < '0' || text[0] > '9')
		return -1;
	return atoi(text);
}

/* Two hogs on a CPU without tick: our own timer ends their quanta. */
TEST(no_hz_full)
{
	int cpu = first_cpu("/sys/devices/system/cpu/nohz_full");
	struct raw_stats st;
	pthread_t t[2];
	cpu_set_t set;
	int i;

	NEED_MODULE();
	if (cpu < 0)
		SKIP(return, "no tickless CPU: boot with nohz_full=1");
	START(.quantum_ns = 1000000, .preempt = true);
	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	ASSERT_EQ(0, sched_setaffinity(0, sizeof(set), &set));
	for (i = 0; i < 2; i++)
		t[i] = raw_thread(hog, NULL);
	sched_setaffinity(0, sizeof(set), &(cpu_set_t){ { 1 } });
	EXPECT_TRUE(RAW_UNTIL(!raw_stats(&st) && st.preempts > 50));
	STORE(stop, 1);
	for (i = 0; i < 2; i++)
		pthread_join(t[i], NULL);
	TH_LOG("%lu preemptions on CPU %d", st.preempts, cpu);
	EXPECT_EXCLUSIVE();
}

/* --- the quantum's timer, when its CPU leaves ------------------------------------------ */

static int letters[2];

static bool pin(pthread_t t, int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	return !pthread_setaffinity_np(t, sizeof(set), &set);
}

static bool more_preemptions(void)
{
	uint64_t before = raw_stat("preempts");

	return RAW_UNTIL(raw_stat("preempts") >= before + 20);
}

/* Two hogs share a processor on CPU 1, then on another, then on CPU 1 again. */
TEST(quantum_after_hotplug)
{
	pthread_t t[2];
	int i;

	NEED_MODULE();
	if (access(CPU1, W_OK))
		SKIP(return, "no second CPU that could be taken offline");
	START(.quantum_ns = 1000000, .preempt = true);
	for (i = 0; i < 2; i++) {
		t[i] = raw_thread(hog, NULL);
		EXPECT_TRUE(pin(t[i], 1));
	}
	EXPECT_TRUE(more_preemptions());
	EXPECT_TRUE(raw_put(CPU1, "0"));
	EXPECT_TRUE(more_preemptions());
	EXPECT_TRUE(raw_put(CPU1, "1"));
	for (i = 0; i < 2; i++)
		EXPECT_TRUE(pin(t[i], 1));
	EXPECT_TRUE(more_preemptions());
	STORE(stop, 1);
	for (i = 0; i < 2; i++)
		pthread_join(t[i], NULL);
	EXPECT_EQ(0, raw_acquire_errors);
	EXPECT_EXCLUSIVE();
}

/* Blocked, it keeps its processor; then it is alone, then others are ready. */
static void *sleeps_then_hogs(void *arg)
{
	char c;

	if (raw_attach() || raw_own(FIBER_WAIT_READY))
		return NULL;
	raw_enter();
	ADD(running, 1);
	(void)!read(letters[0], &c, 1);
	raw_takeover(FIBER_TAKEOVER_READY);
	while (!LOAD(stop))
		mix_spin(1000);
	raw_exclude();
	raw_leave();
	return NULL;
}

/*
 * It slept on CPU 1 while that went and came: its timer went to another CPU and
 * is queued there, which looks like a timer that needs nothing.
 */
TEST(quantum_after_hotplug_asleep)
{
	pthread_t t;

	NEED_MODULE();
	if (access(CPU1, W_OK))
		SKIP(return, "no second CPU that could be taken offline");
	START(.quantum_ns = 1000000000, .preempt = true);
	ASSERT_EQ(0, pipe(letters));
	EXPECT_TRUE(pin(pthread_self(), 1));
	t = raw_thread(sleeps_then_hogs, NULL);
	EXPECT_TRUE(pin(pthread_self(), 0));
	ASSERT_TRUE(RAW_UNTIL(LOAD(running)));
	EXPECT_TRUE(raw_put(CPU1, "0"));
	EXPECT_TRUE(raw_put(CPU1, "1"));
	EXPECT_TRUE(pin(t, 1));
	ASSERT_EQ(1, write(letters[1], "h", 1));
	EXPECT_TRUE(RAW_UNTIL(raw_stat("preempts") >= 1));
	STORE(stop, 1);
	pthread_join(t, NULL);
	EXPECT_EXCLUSIVE();
}

/* --- other schedulers ------------------------------------------------------------------- */

TEST(sched_ext)
{
	pid_t pid;

	NEED_MODULE();
	if (access("/sys/kernel/sched_ext/state", R_OK))
		SKIP(return, "this kernel has no sched_ext");
	if (!file_says("/sys/kernel/sched_ext/state", "enabled"))
		SKIP(return, "no sched_ext scheduler is loaded (Debian has none)");
	pid = start_crowd(4);
	EXPECT_EQ(MIX_WELL, raw_exit_code(pid));
}

/* Tasks blocked on a mutex of the kernel stay runnable: no handoff, no harm. */
TEST(sched_proxy_exec)
{
	pid_t pid;

	NEED_MODULE();
	if (!file_says("/proc/cmdline", "sched_proxy_exec"))
		SKIP(return, "not booted with sched_proxy_exec (CONFIG_SCHED_PROXY_EXEC)");
	pid = start_crowd(4);
	EXPECT_EQ(MIX_WELL, raw_exit_code(pid));
}

/* Real-time threads as carriers, beside others: the order is the module's. */
static void *fifo_hog(void *arg)
{
	struct sched_param p = { .sched_priority = 10 };
	uint64_t end = raw_now() + 700000000;

	if (pthread_setschedparam(pthread_self(), SCHED_FIFO, &p))
		ADD(raw_violations, 1);
	if (raw_attach() || raw_own(FIBER_WAIT_READY))
		return NULL;
	raw_takeover(FIBER_TAKEOVER_READY);
	raw_enter();
	while (raw_now() < end) {
		mix_spin(20000);
		raw_exclude();
		raw_sleep(100);
		raw_exclude();
	}
	raw_leave();
	ADD(running, raw_page->preempts > 0);
	raw_detach();
	return NULL;
}

TEST(realtime_carriers)
{
	pthread_t t[3];
	int i;

	START(.quantum_ns = 1000000, .preempt = true);
	t[0] = raw_thread(hog, NULL);
	for (i = 1; i < 3; i++)
		t[i] = raw_thread(fifo_hog, NULL);
	pthread_join(t[1], NULL);
	pthread_join(t[2], NULL);
	STORE(stop, 1);
	pthread_join(t[0], NULL);
	EXPECT_EQ(0, raw_acquire_errors);
	EXPECT_EXCLUSIVE();
}

/* --- ways in and out of the kernel ---------------------------------------------------------- */

TEST(fred)
{
	pid_t pid;

	NEED_MODULE();
	if (!raw_cpu_flag("fred"))
		SKIP(return, "no FRED: the CPU or the kernel lacks it");
	pid = start_crowd(6);
	EXPECT_EQ(MIX_WELL, raw_exit_code(pid));
}

TEST(bare_metal)
{
	pid_t pid;

	NEED_MODULE();
	if (raw_cpu_flag("hypervisor") || getenv("FIBER_VM"))
		SKIP(return, "this is a virtual machine");
	pid = start_crowd(10);
	EXPECT_EQ(MIX_WELL, raw_exit_code(pid));
}

TEST_HARNESS_MAIN
