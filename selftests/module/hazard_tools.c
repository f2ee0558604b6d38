// SPDX-License-Identifier: GPL-2.0-only
/*
 * hazard_tools.c - gdb, strace, trace-cmd, core dumps and criu meet a busy group
 *
 * The programs are those of Debian, brought into the VM by vm/tools.sh; without
 * them the tests say so and skip.
 */
#include <elf.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "harness.h"
#include "mix.h"

#undef TEST_TIMEOUT_DEFAULT
#define TEST_TIMEOUT_DEFAULT	250	/* seconds; emulation is slow */

#define OUTPUT		"/tmp/fiber-tools"
#define TOOL_LIMIT	100	/* seconds */

static const char *find_tool(const char *name)
{
	static const char * const where[] = { "/usr/bin", "/usr/sbin", "/bin" };
	static char path[64];
	size_t i;

	for (i = 0; i < ARRAY_SIZE(where); i++) {
		snprintf(path, sizeof(path), "%s/%s", where[i], name);
		if (!access(path, X_OK))
			return path;
	}
	return NULL;
}

/* Runs a program; its output goes to OUTPUT. Status as raw_exit_code(). */
static int run(char * const argv[])
{
	pid_t pid = fork();
	int fd;

	if (!pid) {
		fd = open(OUTPUT, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
		dup2(fd, 1);
		dup2(fd, 2);
		alarm(TOOL_LIMIT);	/* outlives exec */
		execv(argv[0], argv);
		_exit(127);
	}
	return raw_exit_code(pid);
}

/* How many lines of a file have @what in them; the last one to *last. */
static unsigned int lines_with(const char *path, const char *what, char *last,
			       size_t size)
{
	char line[1024];
	unsigned int n = 0;
	FILE *f = fopen(path, "re");

	while (f && fgets(line, sizeof(line), f)) {
		if (!strstr(line, what))
			continue;
		n++;
		if (last)
			snprintf(last, size, "%.*s", (int)strcspn(line, "\n"), line);
	}
	if (f)
		fclose(f);
	return n;
}

static void show_output(void)
{
	char line[512];
	FILE *f = fopen(OUTPUT, "re");

	while (f && fgets(line, sizeof(line), f))
		printf("# out: %s", line);
	if (f)
		fclose(f);
}

static int threads_of(pid_t pid)
{
	char path[64], text[4096] = "";
	const char *at;

	snprintf(path, sizeof(path), "/proc/%d/status", pid);
	at = raw_get(path, text, sizeof(text)) ? NULL : strstr(text, "Threads:");
	return at ? atoi(at + 8) : 0;
}

/* All are there: main, keeper, sampler, a spare, six workers. */
static pid_t start_crowd(void)
{
	pid_t pid = fork();

	if (!pid)
		mix_child(0);
	RAW_UNTIL(threads_of(pid) >= 10);
	raw_sleep(500000);
	return pid;
}

static int end_crowd(pid_t pid)
{
	kill(pid, SIGTERM);
	return raw_exit_code(pid);
}

/* --- gdb ---------------------------------------------------------------------- */

static char *number(pid_t pid)
{
	static char text[16];

	snprintf(text, sizeof(text), "%d", pid);
	return text;
}

/*
 * Threads 1 to 3 are not carriers. A worker that ends while it is stepped makes
 * gdb complain and go on; so what counts is that gdb steps now and then, and
 * that it detaches always.
 */
TEST(gdb_attaches_steps_detaches)
{
	const char *gdb = find_tool("gdb");
	unsigned int stepped = 0;
	pid_t pid;
	int i;

	NEED_MODULE();
	if (!gdb)
		SKIP(return, "no gdb here");
	pid = start_crowd();
	for (i = 0; i < 2 && !_metadata->exit_code; i++) {
		char *argv[] = { (char *)gdb, "-nx", "-batch", "-p", number(pid),
			"-ex", "info threads", "-ex", "thread 5",
			"-ex", "stepi 20", "-ex", "printf \"stepped %lx\\n\", $pc",
			"-ex", "thread 7", "-ex", "stepi 20",
			"-ex", "printf \"stepped %lx\\n\", $pc",
			"-ex", "detach", NULL };

		run(argv);
		EXPECT_EQ(1, lines_with(OUTPUT, "detached", NULL, 0));
		/* main, two of the mix, six workers */
		EXPECT_LE(9, lines_with(OUTPUT, "LWP", NULL, 0));
		stepped += lines_with(OUTPUT, "stepped", NULL, 0);
		EXPECT_EQ(0, kill(pid, 0));
		if (_metadata->exit_code)
			show_output();
		raw_sleep(200000);
	}
	EXPECT_EQ(MIX_WELL, end_crowd(pid));
	TH_LOG("%u times 20 steps", stepped);
	EXPECT_LE(1, stepped);
}

/* --- strace --------------------------------------------------------------------- */

TEST(strace_follows_all_carriers)
{
	const char *strace = find_tool("strace");
	char *argv[] = { (char *)strace, "-f", "-q", "-o", "/tmp/fiber-strace",
		"-e", "trace=ioctl,nanosleep,clock_nanosleep,futex,read,exit",
		"/proc/self/exe", "--crowd", NULL };
	char self[256] = "";

	NEED_MODULE();
	if (!strace)
		SKIP(return, "no strace here");
	ASSERT_LT(0, readlink("/proc/self/exe", self, sizeof(self) - 1));
	argv[7] = self;
	EXPECT_EQ(MIX_WELL, run(argv));
	EXPECT_LE(10, lines_with("/tmp/fiber-strace", "ioctl(", NULL, 0));
	EXPECT_LE(1, lines_with("/tmp/fiber-strace", "+++ exited with 7 +++", NULL, 0));
	show_output();
	unlink("/tmp/fiber-strace");
}

/* --- core dump -------------------------------------------------------------------- */

enum { READY = 5, SPARES = 5, THREADS = READY + SPARES + 2 };

static int never[2];
static unsigned int inside;

static void *block_for_ever(void *arg)
{
	char c;

	if (raw_attach() || raw_own(FIBER_WAIT_READY))
		_exit(30);
	raw_takeover(FIBER_TAKEOVER_READY);
	raw_enter();
	STORE(inside, 1);
	(void)!read(never[0], &c, 1);
	return NULL;
}

static void *wait_for_ever(void *flags)
{
	if (raw_attach())
		_exit(31);
	raw_wait((uintptr_t)flags, 0, NULL);
	return NULL;
}

/* One is blocked in fiber, main owns the processor, ten wait; then it aborts. */
static void dump_core(void)
{
	struct raw_options o = {};
	struct rlimit r = { RLIM_INFINITY, RLIM_INFINITY };
	uintptr_t i;

	setrlimit(RLIMIT_CORE, &r);
	prctl(PR_SET_DUMPABLE, 1);
	if (raw_start(&o) || pipe(never))
		_exit(20);
	raw_thread(block_for_ever, NULL);
	if (!RAW_UNTIL(LOAD(inside) && raw_info->idle == 1))
		_exit(21);
	if (raw_attach() || raw_own(FIBER_WAIT_READY))
		_exit(22);
	for (i = 0; i < READY; i++)
		raw_thread(wait_for_ever, (void *)FIBER_WAIT_READY);
	for (i = 0; i < SPARES; i++)
		raw_thread(wait_for_ever, (void *)FIBER_WAIT_SPARE);
	if (!RAW_UNTIL(raw_info->waiting == READY && raw_info->spares == SPARES))
		_exit(23);
	raw_enter();
	abort();
}

/* Threads in the notes of a core file. */
static unsigned int threads_in(const char *path)
{
	Elf64_Ehdr eh;
	Elf64_Phdr ph;
	Elf64_Nhdr nh;
	unsigned int n = 0, i;
	off_t at, end;
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	if (fd < 0 || pread(fd, &eh, sizeof(eh), 0) != sizeof(eh))
		return 0;
	for (i = 0; i < eh.e_phnum; i++) {
		pread(fd, &ph, sizeof(ph), eh.e_phoff + i * sizeof(ph));
		if (ph.p_type != PT_NOTE)
			continue;
		for (at = ph.p_offset, end = at + ph.p_filesz; at < end;) {
			if (pread(fd, &nh, sizeof(nh), at) != sizeof(nh))
				break;
			n += nh.n_type == NT_PRSTATUS;
			at += sizeof(nh) + ((nh.n_namesz + 3) & ~3U) +
				((nh.n_descsz + 3) & ~3U);
		}
	}
	close(fd);
	return n;
}

TEST(core_dump_shows_all_carriers)
{
	const char *gdb = find_tool("gdb");
	char before[128] = "", core[64], self[256] = "";
	int base;
	pid_t pid;

	NEED_MODULE();
	base = raw_base();
	raw_get("/proc/sys/kernel/core_pattern", before, sizeof(before));
	raw_put("/proc/sys/kernel/core_uses_pid", "0");
	if (!raw_put("/proc/sys/kernel/core_pattern", "/tmp/fiber-core.%p"))
		SKIP(return, "core_pattern cannot be set: %s", strerror(errno));
	pid = fork();
	if (!pid)
		dump_core();
	EXPECT_EQ(1000 + SIGABRT, raw_exit_code(pid));
	raw_put("/proc/sys/kernel/core_pattern", before);
	EXPECT_TRUE(RAW_UNTIL(raw_refcnt() == base));
	snprintf(core, sizeof(core), "/tmp/fiber-core.%d", pid);
	EXPECT_EQ(THREADS, threads_in(core));
	if (gdb) {
		ASSERT_LT(0, readlink("/proc/self/exe", self, sizeof(self) - 1));
		char *argv[] = { (char *)gdb, "-nx", "-batch", self, core, "-ex",
			"thread apply all bt 2", NULL };

		EXPECT_EQ(0, run(argv));
		/* Each has a heading, and is inside a call it made itself. */
		EXPECT_EQ(THREADS, lines_with(OUTPUT, "Thread ", NULL, 0));
		EXPECT_LE(READY + SPARES, lines_with(OUTPUT, "ioctl", NULL, 0));
		if (_metadata->exit_code)
			show_output();
	} else {
		TH_LOG("no gdb here: only the notes were counted");
	}
	unlink(core);
}

/* --- trace-cmd ----------------------------------------------------------------- */

#define RECORDED	"/tmp/fiber-trace.dat"

/* The commands of fiber_probes(7). Events of the crowd: of one at least. */
static unsigned int record_and_report(const char *tool)
{
	char *record[] = { (char *)tool, "record", "-e", "fiber", "-o", RECORDED,
		"sleep", "1", NULL };
	char *report[] = { (char *)tool, "report", "-i", RECORDED, NULL };

	if (run(record) || run(report))
		return 0;
	unlink(RECORDED);
	return lines_with(OUTPUT, " how=", NULL, 0);
}

TEST(trace_cmd_records_and_reports)
{
	const char *tool = find_tool("trace-cmd");
	char last[256] = "";
	pid_t pid;

	NEED_MODULE();
	if (!tool)
		SKIP(return, "no trace-cmd here");
	pid = start_crowd();
	ASSERT_TRUE(RAW_UNTIL(record_and_report(tool)));
	EXPECT_LE(1, lines_with(OUTPUT, " kept=", last, sizeof(last)));
	EXPECT_NE(NULL, strstr(last, " block: ")) TH_LOG("%s", last);
	EXPECT_EQ(lines_with(OUTPUT, " how=", NULL, 0),
		  lines_with(OUTPUT, " how=grace", NULL, 0) +
		  lines_with(OUTPUT, " how=edge", NULL, 0) +
		  lines_with(OUTPUT, " how=upcall", NULL, 0));
	if (_metadata->exit_code)
		show_output();
	EXPECT_EQ(MIX_WELL, end_crowd(pid));
}

/* --- criu -------------------------------------------------------------------------- */

static int checkpoint(const char *criu, pid_t pid)
{
	char *argv[] = { (char *)criu, "dump", "-t", number(pid), "-D",
		"/tmp/fiber-criu", "--shell-job", "--leave-running", "-v4",
		"-o", "dump.log", NULL };

	mkdir("/tmp/fiber-criu", 0700);
	return run(argv);
}

/* criu knows no state of ours: it must say no, and leave the group running. */
TEST(criu_refuses_cleanly)
{
	const char *criu = find_tool("criu");
	char why[256] = "nothing said";
	pid_t plain, pid;
	int plain_said, said;

	NEED_MODULE();
	if (!criu)
		SKIP(return, "no criu here");
	plain = fork();
	if (!plain)
		for (;;)
			pause();
	plain_said = checkpoint(criu, plain);
	kill(plain, SIGKILL);
	raw_exit_code(plain);
	lines_with("/tmp/fiber-criu/dump.log", "Error", why, sizeof(why));
	if (plain_said)
		SKIP(return, "criu cannot dump a plain process here: %s", why);
	pid = start_crowd();
	said = checkpoint(criu, pid);
	lines_with("/tmp/fiber-criu/dump.log", "Error", why, sizeof(why));
	TH_LOG("criu says: %s", why);
	EXPECT_NE(0, said);
	EXPECT_EQ(MIX_WELL, end_crowd(pid));
}

int main(int argc, char **argv)
{
	if (argc == 2 && !strcmp(argv[1], "--crowd"))
		mix_child(3);
	return test_harness_run(argc, argv);
}
