// SPDX-License-Identifier: GPL-2.0-only
/* stack.c - fiberctl stack, dump: where fibers are, in a process or a core file */
#include <stdlib.h>
#include <string.h>

#include "fiberctl.h"

static int stacks(pid_t pid, uint64_t id, bool json)
{
	struct target t;
	struct list k = { .json = json, .t = &t, .id = id };
	int r = target_open(&t, pid);

	if (r)
		return complain();
	k.n = names_open(&t);
	r = fibers_walk(&t, list_keep, &k);
	if (!r && id && !k.count)
		r = target_fail(-1, "process %d has no fiber %llu", (int)pid,
				(unsigned long long)id);
	if (!r)
		list_stacks(&k);
	if (json)
		printf("%s]\n", k.any ? "" : "[");
	free(k.seen);
	names_close(k.n);
	target_close(&t);
	return r ? complain() : EXIT_FINE;
}

int cmd_stack(int argc, char **argv, bool json)
{
	uint64_t id = 0;
	pid_t pid;
	char *end;

	if (argc < 2 || argc > 3)
		return usage("stack [--json] PID [ID]");
	pid = parse_pid(argv[1]);
	if (pid < 0)
		return EXIT_USAGE;
	if (argc == 3) {
		id = strtoull(argv[2], &end, 10);
		if (!id || *end) {
			fprintf(stderr, "fiberctl: '%s' is no fiber's id\n",
				argv[2]);
			return EXIT_USAGE;
		}
	}
	return stacks(pid, id, json);
}

/* ---- a core file ---- */

static const char *signal_word(int sig)
{
	static char word[16];
	const char *name = sig ? sigabbrev_np(sig) : NULL;

	if (!sig)
		return "";
	if (name)
		snprintf(word, sizeof(word), "SIG%s", name);
	else
		snprintf(word, sizeof(word), "signal %d", sig);
	return word;
}

/* The fiber that the signal came to was running. */
static int keep_with_signal(const struct seen *s, void *arg)
{
	struct list *k = arg;
	struct seen of = *s;
	int tid, sig = core_signal(k->t->core, &tid);

	if (sig && s->tid == tid && s->state == S_RUNNING)
		of.why = signal_word(sig);
	return list_keep(&of, arg);
}

/* @whole: all that there are were found. */
static void dump_head(struct list *k, bool whole)
{
	const struct core *c = k->t->core;
	int tid, sig = core_signal(c, &tid);

	if (!k->json) {
		printf("%s, process %d%s%s: ", core_command(c),
		       (int)core_pid(c), sig ? ", ended by " : "",
		       signal_word(sig));
		if (k->count || whole)
			printf("%llu fiber%s\n\n", (unsigned long long)k->count,
			       k->count == 1 ? "" : "s");
		else
			printf("its fibers cannot be told\n");
		return;
	}
	printf("{\"command\": ");
	json_string(core_command(c));
	printf(", \"pid\": %d, \"signal\": \"%s\", \"tid\": %d, \"fibers\":\n",
	       (int)core_pid(c), signal_word(sig), tid);
}

/* What was said is not all there was: each reason; true: there is one. */
static bool dump_lacks(const struct target *t)
{
	const char *missing = core_missing(t->core), *cut = core_cut(t->core);

	fflush(stdout);
	if (cut)
		fprintf(stderr, "fiberctl: %s is cut short (%s): fibers and stacks may be missing\n",
			t->what, cut);
	else if (t->holes)
		fprintf(stderr, "fiberctl: %s lacks stacks: gdb's generate-core-file leaves out what lies behind guard pages; the kernel's core files are whole; or start the program with FIBER_STACK_GUARD=mprotect\n",
			t->what);
	if (missing)
		fprintf(stderr, "fiberctl: %s is not there, or not as it was then: functions and stacks may be missing; the program can be given as a second argument\n",
			missing);
	return cut || t->holes || missing;
}

static int dump(const char *path, const char *program, bool json)
{
	struct target t;
	struct list k = { .json = json, .t = &t };
	bool lacks;
	int r;

	if (target_open_core(&t, path, program))
		return complain();
	k.n = names_open(&t);
	r = fibers_walk(&t, keep_with_signal, &k);
	dump_head(&k, !r && !t.holes);
	list_stacks(&k);
	if (json)
		printf("%s]}\n", k.any ? "" : "[");
	lacks = dump_lacks(&t);
	free(k.seen);
	names_close(k.n);
	target_close(&t);
	if (r)
		return complain();
	return lacks ? EXIT_FAILED : EXIT_FINE;
}

int cmd_dump(int argc, char **argv, bool json)
{
	if (argc < 2 || argc > 3)
		return usage("dump [--json] CORE [PROGRAM]");
	return dump(argv[1], argc == 3 ? argv[2] : NULL, json);
}
