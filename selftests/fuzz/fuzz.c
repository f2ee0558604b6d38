// SPDX-License-Identifier: GPL-2.0-only
/*
 * fuzz.c - a coverage-guided fuzzer of /dev/fiber
 *
 * Environment:
 *	FIBER_FUZZ_SECONDS	how long (10)
 *	FIBER_FUZZ_SEED		which random numbers (1)
 *	FIBER_FUZZ_PROGRAMS	stop after so many programs (no limit)
 *	FIBER_FUZZ_CORPUS	folder of programs to begin with
 *	FIBER_FUZZ_REPEAT	a program file: run only this, until the end
 *	FIBER_FUZZ_KEEP		print every program that joins the corpus
 *
 * With KCOV (the debug kernel) a program that reaches an edge of the module
 * which none before did joins the corpus, and the next ones are made from it.
 * Without, programs are made up or changed blindly: number N of a seed is then
 * always the same program.
 *
 * Bad is: a line in the kernel's log that selftests/vm/splats would catch, a
 * violation that the module counted, a child that cannot be killed, and
 * references to the module that stay.
 */
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../module/raw.h"
#include "fuzz.h"

enum { MAX_CORPUS = 4096, TEXT = 8192, PATIENCE_US = 30000000 };

static struct program *corpus[MAX_CORPUS];
static unsigned int nr_corpus, nr_loaded;
static bool guided;
static int log_fd;
static unsigned long runs, bad_log, bad_state, stuck, crashed, killed;

static void show(const struct program *p, const char *prefix)
{
	char text[TEXT], *line, *rest = text;

	program_print(p, text, sizeof(text));
	while ((line = strsep(&rest, "\n")) && *line)
		printf("# %s%s\n", prefix, line);
}

static void blame(const struct program *p, const char *fmt, ...)
{
	va_list args;

	printf("# ");
	va_start(args, fmt);
	vprintf(fmt, args);
	va_end(args);
	printf("; program %lu:\n", runs);
	show(p, "  ");
}

/* ---- the kernel's log ---- */

static bool is_splat(const char *line)
{
	static const char * const words[] = {
		"BUG: ", "WARNING: ", "KASAN", "KCSAN", "UBSAN", "INFO: ",
		"Oops", "ODEBUG", "Call Trace", "sleeping function",
		"scheduling while atomic", "inconsistent lock", "refcount_t",
		"general protection", "unable to handle", "DEBUG_LOCKS",
	};

	for (size_t i = 0; i < sizeof(words) / sizeof(*words); i++)
		if (strstr(line, words[i]))
			return true;
	return false;
}

static void look_at_log(const struct program *p)
{
	char line[1024];
	ssize_t n;

	while ((n = read(log_fd, line, sizeof(line) - 1)) > 0) {
		line[n] = 0;
		line[strcspn(line, "\n")] = 0;
		if (is_splat(line) && ++bad_log == 1)
			blame(p, "log: %.200s", line);
	}
}

/* ---- one program ---- */

/* Until the child has ended or us have passed. */
static bool reap(pid_t child, int *status, unsigned int us)
{
	struct timespec t = { us / 1000000, us % 1000000 * 1000L };
	uint64_t end = raw_now() + us * 1000ULL;
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGCHLD);
	while (waitpid(child, status, WNOHANG) != child) {
		if (raw_now() >= end)
			return false;
		sigtimedwait(&set, NULL, &t);
	}
	return true;
}

static void judge(const struct program *p, int status)
{
	if (WIFEXITED(status) && WEXITSTATUS(status) == EXIT_VIOLATION &&
	    ++bad_state == 1)
		blame(p, "the module counted a violation");
	if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
		killed++;
	else if (WIFSIGNALED(status))
		crashed++;
}

static void run(const struct program *p, uint64_t seed)
{
	int status = 0;
	pid_t child;

	fflush(stdout);
	cover_reset();
	child = fork();
	if (!child) {
		sigset_t none;

		sigemptyset(&none);
		sigprocmask(SIG_SETMASK, &none, NULL);
		execute_program(p, seed);
	}
	if (!reap(child, &status, p->kill_us ?: 3000000)) {
		kill(child, SIGKILL);
		if (!reap(child, &status, PATIENCE_US) && ++stuck == 1)
			blame(p, "a killed child does not end");
	}
	judge(p, status);
	look_at_log(p);
	runs++;
}

/* ---- the corpus ---- */

static void keep(const struct program *p)
{
	struct program *copy;

	if (nr_corpus == MAX_CORPUS)
		return;
	copy = malloc(sizeof(*copy));
	*copy = *p;
	corpus[nr_corpus++] = copy;
}

static bool load_file(const char *path, struct program *p)
{
	char text[TEXT];
	FILE *f = fopen(path, "re");
	size_t n = f ? fread(text, 1, sizeof(text) - 1, f) : 0;

	if (f)
		fclose(f);
	text[n] = 0;
	return n && program_parse(p, text);
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
	return strcmp((*a)->d_name, (*b)->d_name);
}

static int visible(const struct dirent *e)
{
	return e->d_name[0] != '.';
}

/* False: a file there is no program. */
static bool load_corpus(const char *folder)
{
	struct dirent **entry;
	int n = scandir(folder, &entry, visible, by_name);
	struct program p;
	bool fine = n >= 0;

	for (int i = 0; i < n; i++) {
		char path[512];

		snprintf(path, sizeof(path), "%s/%s", folder, entry[i]->d_name);
		if (load_file(path, &p)) {
			keep(&p);
		} else {
			printf("# %s is no program\n", path);
			fine = false;
		}
		free(entry[i]);
	}
	nr_loaded = nr_corpus;
	return fine;
}

/* Without a call that is not needed for any of the edges it brought. */
static void trim(struct program *p, unsigned int found, uint64_t seed)
{
	struct program less;

	for (uint32_t i = p->nr; i-- > 0 && p->nr > 1;) {
		less = *p;
		less.nr--;
		memmove(&less.call[i], &less.call[i + 1],
			(less.nr - i) * sizeof(less.call[0]));
		run(&less, seed);
		if (cover_collect(false) >= found)
			*p = less;
	}
}

/* New edges are few once the corpus is good; then a try pays. */
static void consider(struct program *p, uint64_t seed)
{
	unsigned int found = cover_collect(false);

	if (!found)
		return;
	if (nr_corpus > 16)
		trim(p, found, seed);
	run(p, seed);
	cover_collect(true);
	keep(p);
	if (getenv("FIBER_FUZZ_KEEP")) {
		printf("# KEEP %016lx\n", program_hash(p));
		show(p, "KEPT ");
	}
}

static void next_program(struct program *p, uint64_t *state)
{
	uint64_t any = fuzz_random(state), from = fuzz_random(state);

	if (!nr_corpus || !(any % 4)) {
		program_generate(p, state);
		return;
	}
	*p = *corpus[from % nr_corpus];
	program_mutate(p, corpus[fuzz_random(state) % nr_corpus], state);
}

/* ---- the whole ---- */

static unsigned long setting(const char *name, unsigned long value)
{
	const char *s = getenv(name);

	return s && *s ? strtoul(s, NULL, 0) : value;
}

static void replay_corpus(uint64_t seed)
{
	for (unsigned int i = 0; i < nr_loaded; i++) {
		run(corpus[i], seed);
		cover_collect(true);
	}
}

static void fuzz(uint64_t seed, uint64_t end, unsigned long limit)
{
	uint64_t report = raw_now() + 10000000000ULL, state;
	struct program p;

	for (unsigned long i = 0; i < limit && raw_now() < end; i++) {
		state = seed << 32 ^ i;
		next_program(&p, &state);
		run(&p, state);
		if (guided)
			consider(&p, state);
		if (raw_now() < report)
			continue;
		printf("# program %lu, corpus %u, edges %u\n", i, nr_corpus,
		       cover_edges());
		report += 10000000000ULL;
	}
}

static void repeat(const char *path, uint64_t seed, uint64_t end)
{
	struct program p;

	if (!load_file(path, &p)) {
		printf("Bail out! %s is no program\n", path);
		exit(1);
	}
	while (raw_now() < end)
		run(&p, seed++);
}

static bool all_gone(void)
{
	return RAW_UNTIL(!raw_refcnt());
}

static int bad;

static void verdict(bool fine, const char *what)
{
	static int number;

	printf("%s %d %s\n", fine ? "ok" : "not ok", ++number, what);
	bad += !fine;
}

static void prepare(void)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGCHLD);
	sigprocmask(SIG_BLOCK, &set, NULL);
	signal(SIGPIPE, SIG_IGN);
	log_fd = open("/dev/kmsg", O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	lseek(log_fd, 0, SEEK_END);
	raw_parameter("check", "1");
	guided = cover_open();
}

int main(int argc, char **argv)
{
	uint64_t seed = setting("FIBER_FUZZ_SEED", 1), end;
	unsigned long limit = setting("FIBER_FUZZ_PROGRAMS", ~0UL);
	const char *folder = getenv("FIBER_FUZZ_CORPUS");
	const char *one = getenv("FIBER_FUZZ_REPEAT");
	bool loaded;

	if (raw_refcnt() < 0) {
		printf("1..0 # SKIP the module is not loaded\n");
		return 4;
	}
	prepare();
	printf("1..6\n");
	loaded = !folder || load_corpus(folder);
	end = raw_now() + setting("FIBER_FUZZ_SECONDS", 10) * 1000000000ULL;
	if (one) {
		repeat(one, seed, end);
	} else {
		replay_corpus(seed);
		fuzz(seed, end, limit);
	}
	printf("# %lu programs, seed %lu, corpus %u (%u at first), %s; %lu were "
	       "killed, %lu crashed\n", runs, seed, nr_corpus, nr_loaded,
	       guided ? "guided by KCOV" : "blind: no KCOV", killed, crashed);
	if (guided)
		printf("# %u edges\n", cover_edges());
	verdict(loaded, "the corpus is readable");
	verdict(runs >= 10, "programs ran");
	verdict(!bad_log, "no line in the kernel's log");
	verdict(!bad_state, "owners + idle + in flight = N");
	verdict(!stuck, "every child can be killed");
	verdict(all_gone(), "no reference to the module stays");
	return !!bad;
}
