// SPDX-License-Identifier: GPL-2.0-only
/*
 * Runs programs of Linux's own selftests beside a busy group of fibers, and
 * asks for the results that they have without the module.
 *
 *	beside			the tests (in a VM, see ../linux.sh)
 *	beside exec PROGRAM...	becomes a carrier, then executes PROGRAM
 *
 * Environment:
 *	LINUX_TESTS	folder of the programs; its file "list" names them, with
 *			their arguments, a line a test
 *	LINUX_RESULTS	file of "result" lines to compare with. Without it the
 *			programs run alone and the lines are printed.
 *
 * A result is: exit status, then how many lines said [OK] and [FAIL].
 */
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <fiber.h>

enum { MAX_TESTS = 64, MAX_WORDS = 16, LIMIT = 120 /* seconds for one */ };

struct test {
	char line[256];
	char expected[64];
	char got[64];
};

static struct test tests[MAX_TESTS];
static int nr_tests;
static const char *folder;
static const char *myself;
static atomic_bool over;
static atomic_bool all_fine = true;

static void say(const char *fmt, ...)
{
	char text[512];
	va_list args;
	int n;

	va_start(args, fmt);
	n = vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	if (write(STDOUT_FILENO, text, (size_t)n) != n)
		_exit(1);
}

/* ---- the busy group ---- */

/* Two fibers and a pipe each way: they block all the time. */
static void *pong(void *arg)
{
	int *fd = arg;
	char c;

	while (read(fd[0], &c, 1) == 1 && write(fd[3], &c, 1) == 1)
		;
	return NULL;
}

static void *ping(void *arg)
{
	int fd[4];
	char c = 'x';
	fiber_t *f;

	if (pipe2(fd, O_CLOEXEC) || pipe2(fd + 2, O_CLOEXEC) ||
	    fiber_spawn(&f, pong, fd))
		abort();
	while (!over && write(fd[1], &c, 1) == 1 && read(fd[2], &c, 1) == 1)
		;
	close(fd[1]);
	fiber_join(f, NULL);
	return NULL;
}

/* Is preempted, since it never enters the library. */
static void *hog(void *arg)
{
	while (!over)
		for (volatile int i = 0; i < 1000; i++)
			;
	return NULL;
}

static void *sleeper(void *arg)
{
	struct timespec ts = { .tv_nsec = 300000 };

	while (!over)
		nanosleep(&ts, NULL);
	return NULL;
}

static void *(*const busy[])(void *) = { ping, hog, sleeper, ping, hog, sleeper };
enum { BUSY = sizeof(busy) / sizeof(busy[0]) };

static void start_busy(fiber_t **f)
{
	struct fiber_config cfg = {
		.size = sizeof(cfg),
		.processors = 2,
		.quantum_ns = 500000,
	};
	int err = fiber_init(&cfg);

	if (err || !(fiber_features() & FIBER_FEATURE_KERNEL)) {
		say("not ok - the runtime runs with the module (%d)\n", err);
		exit(1);
	}
	for (int i = 0; i < BUSY; i++)
		if (fiber_spawn(&f[i], busy[i], NULL))
			abort();
}

/* ---- one program ---- */

static char **words(const char *line)
{
	static __thread char copy[512], *v[MAX_WORDS + 3];
	int n = 0;

	snprintf(copy, sizeof(copy), "%s/%s", folder, line);
	for (char *w = strtok(copy, " "); w && n < MAX_WORDS; w = strtok(NULL, " "))
		v[n++] = w;
	v[n] = NULL;
	return v;
}

/* In the child. @through: as "beside exec", which becomes a carrier first. */
static void execute(char **v, int out, bool through)
{
	char *with[MAX_WORDS + 3] = { (char *)myself, "exec" };

	dup2(out, STDOUT_FILENO);
	dup2(out, STDERR_FILENO);
	alarm(LIMIT);
	for (int i = 0; through && i <= MAX_WORDS; i++)
		with[i + 2] = v[i];
	execv(through ? myself : v[0], through ? with : v);
	_exit(126);
}

static void count(FILE *out, int *ok, int *bad)
{
	char line[512];

	*ok = *bad = 0;
	while (fgets(line, sizeof(line), out)) {
		*ok += !!strstr(line, "[OK]") || !strncmp(line, "ok ", 3);
		*bad += !!strstr(line, "[FAIL]") || !strncmp(line, "not ok ", 7);
	}
}

/* Tests print what went wrong; so shall we. */
static void show(FILE *out)
{
	char line[400];

	rewind(out);
	while (fgets(line, sizeof(line), out))
		say("# | %s%s", line, strchr(line, '\n') ? "" : "\n");
}

static void run(const char *line, bool through, char *result, size_t size, FILE *out)
{
	char **v = words(line);
	int status, ok, bad;
	pid_t child = fork();

	if (!child)
		execute(v, fileno(out), through);
	if (child < 0 || waitpid(child, &status, 0) != child) {
		snprintf(result, size, "did not run");
		return;
	}
	rewind(out);
	count(out, &ok, &bad);
	snprintf(result, size, "%s %d ok %d fail %d",
		 WIFEXITED(status) ? "status" : "signal",
		 WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status),
		 ok, bad);
}

static void compare(struct test *t, const char *how, bool through)
{
	FILE *out = tmpfile();
	bool same;

	if (!out)
		abort();
	run(t->line, through, t->got, sizeof(t->got), out);
	same = !strcmp(t->got, t->expected);
	say("%s - %s, %s: %s\n", same ? "ok" : "not ok", t->line, how, t->got);
	if (!same) {
		say("# Expected %s, as without the module\n", t->expected);
		show(out);
		all_fine = false;
	}
	fclose(out);
}

/* ---- all of them ---- */

static void load_list(void)
{
	char path[256];
	FILE *f;

	snprintf(path, sizeof(path), "%s/list", folder);
	f = fopen(path, "re");
	while (f && nr_tests < MAX_TESTS &&
	       fgets(tests[nr_tests].line, sizeof(tests[0].line), f)) {
		tests[nr_tests].line[strcspn(tests[nr_tests].line, "\n")] = 0;
		nr_tests++;
	}
	if (!nr_tests) {
		say("not ok - %s names tests\n", path);
		exit(1);
	}
	fclose(f);
}

/* Lines are: "# result: STATUS: TEST" */
static void load_results(const char *path)
{
	char line[512], *name;
	FILE *f = fopen(path, "re");

	while (f && fgets(line, sizeof(line), f)) {
		line[strcspn(line, "\r\n")] = 0;
		name = strstr(line + 10, ": ");
		for (int i = 0; name && i < nr_tests; i++)
			if (!strcmp(tests[i].line, name + 2))
				snprintf(tests[i].expected,
					 sizeof(tests[i].expected), "%.*s",
					 (int)(name - line - 10), line + 10);
	}
	if (f)
		fclose(f);
}

/* They need not pass here, but they must have run. */
static int alone(void)
{
	for (int i = 0; i < nr_tests; i++) {
		struct test *t = &tests[i];
		FILE *out = tmpfile();
		bool ran;

		if (!out)
			abort();
		run(t->line, false, t->got, sizeof(t->got), out);
		ran = strncmp(t->got, "status 126", 10) &&
		      strncmp(t->got, "did not run", 11);
		say("# result: %s: %s\n", t->got, t->line);
		say("%s - %s, alone\n", ran ? "ok" : "not ok", t->line);
		all_fine = all_fine && ran;
		fclose(out);
	}
	return !all_fine;
}

/* From a fiber: the child begins as the copy of a carrier. */
static void *from_fiber(void *arg)
{
	for (int i = 0; i < nr_tests; i++)
		compare(&tests[i], "child of a carrier", false);
	return NULL;
}

static int beside(void)
{
	struct fiber_stats st = { .size = sizeof(st) };
	fiber_t *f[BUSY], *runner;

	start_busy(f);
	for (int i = 0; i < nr_tests; i++) {
		compare(&tests[i], "beside a busy group", false);
		compare(&tests[i], "executed by a carrier", true);
	}
	if (fiber_spawn(&runner, from_fiber, NULL))
		abort();
	fiber_join(runner, NULL);
	fiber_get_stats(&st);
	over = true;
	for (int i = 0; i < BUSY; i++)
		fiber_join(f[i], NULL);
	say("# busy meanwhile: %lu handoffs, %lu preemptions, %lu returns\n",
	    st.handoffs, st.preemptions, st.returns);
	say("%s - the group was busy\n",
	    st.handoffs > 100 && st.preemptions > 10 ? "ok" : "not ok");
	say("%s - fiber_fini\n", fiber_fini() ? "not ok" : "ok");
	return !all_fine || st.handoffs <= 100 || st.preemptions <= 10;
}

/* ---- exec by a carrier ---- */

static void *become(void *arg)
{
	struct timespec ts = { .tv_nsec = 2000000 };

	for (int i = 0; i < 5; i++)
		nanosleep(&ts, NULL);		/* handed off, and back */
	execv(((char **)arg)[0], arg);
	_exit(127);
}

static int exec_as_carrier(char **v)
{
	fiber_t *f[BUSY], *last;

	start_busy(f);
	if (fiber_spawn(&last, become, v))
		return 1;
	fiber_join(last, NULL);
	return 1;
}

int main(int argc, char **argv)
{
	const char *results = getenv("LINUX_RESULTS");

	myself = "/proc/self/exe";
	if (argc > 2 && !strcmp(argv[1], "exec"))
		return exec_as_carrier(argv + 2);
	folder = getenv("LINUX_TESTS");
	if (!folder) {
		say("1..0 # SKIP run by selftests/linux.sh\n");
		return 4;
	}
	load_list();
	say("1..%d\n", results ? 3 * nr_tests + 2 : nr_tests);
	if (!results)
		return alone();
	load_results(results);
	return beside();
}
