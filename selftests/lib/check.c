// SPDX-License-Identifier: GPL-2.0-only
/*
 * What is said of a program that does something wrong: with FIBER_CHECK=1, and without
 * it where the program cannot go on. Each case is a child, whose stderr is read.
 */
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "common.h"

static char said[16384];

/* Lines of what is said begin so. */
#define LIBRARY	"fiber: "

static int status_of(pid_t pid)
{
	int status = -1;

	check_eq(pid, waitpid(pid, &status, 0));
	return status;
}

/* What body says on stderr is in `said` then; returns its status. */
static int hear(int (*body)(void))
{
	int fd = memfd_create("said", MFD_CLOEXEC), status;
	pid_t pid = fork();
	ssize_t n;

	if (!pid) {
		struct rlimit none = { 0, 0 };

		setrlimit(RLIMIT_CORE, &none);
		dup2(fd, STDERR_FILENO);
		clean_environment();
		setenv("FIBER_CHECK", "1", 1);
		_exit(body());
	}
	status = status_of(pid);
	n = pread(fd, said, sizeof(said) - 1, 0);
	said[n > 0 ? n : 0] = 0;
	close(fd);
	return status;
}

static bool aborts(int (*body)(void))
{
	int status = hear(body);

	return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

static int lines_said(void)
{
	int n = 0;

	for (const char *s = said; (s = strstr(s, LIBRARY)); s++)
		n++;
	return n;
}

static bool is_said(const char *words)
{
	if (strstr(said, words))
		return true;
	failed(__FILE__, __LINE__, "\"%s\" is not said, but: %s", words, said);
	return false;
}

/* ---- a second join ---- */

static void *returns(void *arg)
{
	return arg;
}

__attribute__((noinline)) static void joins_again(fiber_t *f)
{
	fiber_join(f, NULL);
	__asm__ volatile("");	/* no tail call */
}

static void *joins_twice(void *arg)
{
	fiber_t *f = spawn(returns, NULL);

	join(f);
	joins_again(f);
	return arg;
}

static int joins_twice_in_fiber(void)
{
	return with_runtime(1, 0, joins_twice, NULL);
}

static int joins_twice_in_thread(void)
{
	check_eq(0, start(1, 0));
	joins_twice(NULL);
	return 0;
}

TEST(second_join)
{
	EXPECT_TRUE(aborts(joins_twice_in_fiber));
	EXPECT_TRUE(is_said("is joined or detached a second time\n"));
	EXPECT_TRUE(is_said("    joins_again+0x"));
	EXPECT_TRUE(is_said("    joins_twice+0x"));
	EXPECT_TRUE(aborts(joins_twice_in_thread));
	EXPECT_TRUE(is_said("    joins_again+0x"));
	EXPECT_EQ(0, failures);
}

/* ---- SIGURG ---- */

static void on_urgent(int sig)
{
	(void)sig;
}

static atomic_int stop;

static void *spins(void *arg)
{
	while (!atomic_load_explicit(&stop, memory_order_relaxed))
		;
	return arg;
}

static int takes_sigurg(void)
{
	check_eq(0, start(1, 1 * MS));
	if (on_kernel())		/* it is the program's there */
		dprintf(STDERR_FILENO, "no signal\n");
	signal(SIGURG, on_urgent);
	check_eq(0, fini_soon());
	return failures;
}

/* It is missed, and said, while somebody waits for a hog. */
static int takes_sigurg_and_spins(void)
{
	struct stat st = { 0 };
	fiber_t *hog, *other;

	check_eq(0, start(1, 1 * MS));
	if (on_kernel()) {
		dprintf(STDERR_FILENO, "no signal\n");
		return fini_soon();
	}
	signal(SIGURG, on_urgent);
	hog = spawn(spins, NULL);
	other = spawn(returns, NULL);
	check(until(!fstat(STDERR_FILENO, &st) && st.st_size > 0));
	atomic_store(&stop, 1);
	join(hog);
	join(other);
	check_eq(0, fini_soon());
	return failures;
}

static void *nothing_wrong(void *arg)
{
	struct sigaction sa;

	check_eq(0, sigaction(SIGURG, NULL, &sa));
	return arg;
}

static int leaves_sigurg(void)
{
	return with_runtime(2, 1 * MS, nothing_wrong, NULL) + failures;
}

TEST(sigurg_is_taken)
{
	static int (*const takes[])(void) = {
		takes_sigurg, takes_sigurg_and_spins,
	};

	for (int i = 0; i < 2; i++) {
		EXPECT_EQ(0, hear(takes[i]));
		if (strstr(said, "no signal"))
			SKIP(return, "with the module no signal is used");
		EXPECT_TRUE(is_said("the program has taken SIGURG"));
		EXPECT_EQ(1, lines_said());
	}
	EXPECT_EQ(0, hear(leaves_sigurg));
	EXPECT_EQ(0, lines_said());
	EXPECT_EQ(0, failures);
}

/* ---- wrong settings ---- */

static const char * const wrong[][2] = {
	{ "FIBER_CHECK", "yes" }, { "FIBER_CHECK", "2" },
	{ "FIBER_STACK_MARKS", "x" }, { "FIBER_STACK_GUARD", "foo" },
	{ "FIBER_PROCESSORS", "0" }, { "FIBER_PROCESSORS", "1025" },
	{ "FIBER_QUANTUM_US", "1" }, { "FIBER_GRACE_US", "x" },
	{ "FIBER_SEED", "-1" }, { "FIBER_IO", "foo" }, { "FIBER_BACKEND", "foo" },
	{ "FIBER_DEADLOCK", "foo" }, { "FIBER_DUMP_SIGNAL", "foo" },
	{ "FIBER_CONTENTION", "/nowhere/file" }, { "FIBER_TRACE", "/nowhere/file" },
};

static int which;

static int starts_wrong(void)
{
	setenv(wrong[which][0], wrong[which][1], 1);
	return fiber_init(NULL) < 0 ? 0 : 1;
}

/* One line each, that begins with the setting and says what is wanted. */
TEST(wrong_settings_say_one_line)
{
	char line[64];

	for (which = 0; which < (int)ARRAY_SIZE(wrong); which++) {
		EXPECT_EQ(0, hear(starts_wrong));
		snprintf(line, sizeof(line), LIBRARY "%s=%s: ", wrong[which][0],
			 wrong[which][1]);
		EXPECT_TRUE(is_said(line));
		EXPECT_EQ(1, lines_said());
	}
	EXPECT_EQ(0, failures);
}

TEST_HARNESS_MAIN
