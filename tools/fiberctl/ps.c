// SPDX-License-Identifier: GPL-2.0-only
/* ps.c - fiberctl ps, stack, stats */
#include <ctype.h>
#include <dirent.h>
#include <stdlib.h>
#include <string.h>

#include "fiberctl.h"

static int usage(const char *how)
{
	fprintf(stderr, "usage: fiberctl %s\n", how);
	return EXIT_USAGE;
}

/* ---- the fibers of one process ---- */

struct list {
	struct names *n;
	struct target *t;
	bool json, any;
	uint64_t id;			/* only this one; 0: all */
	uint64_t count;
	struct seen *seen;		/* for stacks: all of them first */
	size_t room;
};

static void between(struct list *k)
{
	printf("%s", k->any ? ",\n " : "[");
	k->any = true;
}

static void json_fiber(struct list *k, const struct seen *s)
{
	printf("{\"id\": %llu, \"library\": %s, \"name\": ",
	       (unsigned long long)s->id, s->library ? "true" : "false");
	json_string(s->name);
	printf(", \"state\": \"%s\", \"why\": ", state_name(s->state));
	json_string(s->why);
	printf(", \"for_ns\": %llu, \"stack\": %llu, \"tid\": %d, \"locked_tid\": %d, \"started\": ",
	       (unsigned long long)s->for_ns, (unsigned long long)s->stack,
	       s->tid, s->locked_tid);
	json_string(names_function(k->n, s->entry));
}

static void text_fiber(struct list *k, const struct seen *s)
{
	char id[24], state[40], for_[24] = "-", stack[24] = "-", tid[24] = "-";

	snprintf(id, sizeof(id), "%s%llu", s->library ? "L" : "",
		 (unsigned long long)s->id);
	snprintf(state, sizeof(state), "%s%s%s%s", state_name(s->state),
		 *s->why ? " (" : "", s->why, *s->why ? ")" : "");
	if (s->state == S_PARKED)
		snprintf(for_, sizeof(for_), "%.3f", (double)s->for_ns / 1e9);
	if (s->stack)
		snprintf(stack, sizeof(stack), "%llu",
			 (unsigned long long)s->stack);
	if (s->tid)
		snprintf(tid, sizeof(tid), "%d", s->tid);
	if (s->locked_tid)
		snprintf(tid, sizeof(tid), "%d!", s->locked_tid);
	printf("%-8s %-16s %-22s %10s %7s %8s  %s\n", id,
	       *s->name ? s->name : "-", state, for_, stack, tid,
	       names_function(k->n, s->entry));
}

static int list_one(const struct seen *s, void *arg)
{
	struct list *k = arg;

	k->count++;
	if (k->json) {
		between(k);
		json_fiber(k, s);
		printf("}");
	} else {
		text_fiber(k, s);
	}
	return 0;
}

static int ps_one(pid_t pid, bool json)
{
	struct target t;
	struct list k = { .json = json, .t = &t };
	int r = target_open(&t, pid);

	if (r)
		return complain();
	k.n = names_open(pid);
	if (!json)
		printf("%-8s %-16s %-22s %10s %7s %8s  %s\n", "ID", "NAME",
		       "STATE", "FOR", "STACK", "THREAD", "STARTED WITH");
	r = fibers_walk(&t, list_one, &k);
	if (json)
		printf("%s]\n", k.any ? "" : "[");
	names_close(k.n);
	target_close(&t);
	return r ? complain() : EXIT_FINE;
}

/* ---- all processes ---- */

static int count_one(const struct seen *s, void *arg)
{
	(void)s;
	++*(uint64_t *)arg;
	return 0;
}

static void command_of(pid_t pid, char *text, size_t size)
{
	char path[64];
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/comm", (int)pid);
	f = fopen(path, "re");
	text[0] = 0;
	if (f && fgets(text, (int)size, f))
		text[strcspn(text, "\n")] = 0;
	if (f)
		fclose(f);
}

static bool ps_process(struct list *k, pid_t pid)
{
	const char *backend;
	char command[64];
	struct target t;
	uint64_t n = 0;
	uint32_t nproc;

	if (target_open(&t, pid))
		return false;
	if (fibers_walk(&t, count_one, &n)) {
		target_close(&t);
		return false;
	}
	command_of(pid, command, sizeof(command));
	nproc = target_half(&t, t.d.runtime + t.d.runtime_at.nproc);
	backend = target_word(&t, t.d.runtime + t.d.runtime_at.features) & 1 ?
		  "kernel" : "user";
	if (k->json) {
		between(k);
		printf("{\"pid\": %d, \"fibers\": %llu, \"processors\": %u, \"backend\": \"%s\", \"command\": ",
		       (int)pid, (unsigned long long)n, nproc, backend);
		json_string(command);
		printf("}");
	} else {
		printf("%-8d %10llu %10u  %-8s %s\n", (int)pid,
		       (unsigned long long)n, nproc, backend, command);
	}
	target_close(&t);
	return true;
}

static int ps_all(bool json)
{
	struct list k = { .json = json };
	DIR *dir = opendir("/proc");
	struct dirent *e;

	if (!dir) {
		target_fail(-1, "there is no /proc");
		return complain();
	}
	if (!json)
		printf("%-8s %10s %10s  %-8s %s\n", "PID", "FIBERS",
		       "PROCESSORS", "BACKEND", "COMMAND");
	while ((e = readdir(dir)))
		if (isdigit((unsigned char)e->d_name[0]))
			ps_process(&k, (pid_t)atoi(e->d_name));
	closedir(dir);
	if (json)
		printf("%s]\n", k.any ? "" : "[");
	return EXIT_FINE;
}

int cmd_ps(int argc, char **argv, bool json)
{
	pid_t pid;

	if (argc > 2)
		return usage("ps [--json] [PID]");
	if (argc == 1)
		return ps_all(json);
	pid = parse_pid(argv[1]);
	return pid < 0 ? EXIT_USAGE : ps_one(pid, json);
}

/* ---- stacks ---- */

static int keep_one(const struct seen *s, void *arg)
{
	struct list *k = arg;

	if (k->id && (s->library || s->id != k->id))
		return 0;
	if (k->count == k->room) {
		k->room = k->room ? 2 * k->room : 256;
		k->seen = realloc(k->seen, k->room * sizeof(*k->seen));
		if (!k->seen)
			return target_fail(-1, "no memory");
	}
	k->seen[k->count++] = *s;
	return 0;
}

static void show_frame(struct names *n, uint64_t pc, bool first, void *arg)
{
	struct list *k = arg;
	const char *line = names_line(n, pc);

	if (!k->json) {
		printf("    %s%s%s%s\n", names_function(n, pc), *line ? " (" : "",
		       line, *line ? ")" : "");
		return;
	}
	printf("%s{\"pc\": %llu, \"function\": ", first ? "" : ", ",
	       (unsigned long long)pc);
	json_string(names_function(n, pc));
	printf(", \"line\": ");
	json_string(line);
	printf("}");
}

static void show_stack(struct list *k, const struct seen *s)
{
	int r;

	if (k->json) {
		between(k);
		json_fiber(k, s);
		printf(", \"stack_frames\": [");
	} else {
		text_fiber(k, s);
	}
	r = s->tid ? names_thread(k->n, s->tid, show_frame, k) :
	    names_stack(k->n, k->t, s, show_frame, k);
	if (k->json)
		printf("]}");
	else
		printf("%s\n", r ? "    (its stack cannot be read)\n" : "");
}

static int stacks(pid_t pid, uint64_t id, bool json)
{
	struct target t;
	struct list k = { .json = json, .t = &t, .id = id };
	int r = target_open(&t, pid);

	if (r)
		return complain();
	k.n = names_open(pid);
	r = fibers_walk(&t, keep_one, &k);
	if (!r && id && !k.count)
		r = target_fail(-1, "process %d has no fiber %llu", (int)pid,
				(unsigned long long)id);
	for (uint64_t i = 0; !r && i < k.count; i++)
		show_stack(&k, &k.seen[i]);
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

/* ---- stats ---- */

struct number {
	const char *name;
	uint64_t value;
};

static void show(const struct number *v, size_t n, bool json)
{
	for (size_t i = 0; i < n; i++)
		if (json)
			printf("%s\"%s\": %llu", i ? ", " : "{", v[i].name,
			       (unsigned long long)v[i].value);
		else
			printf("%-12s %llu\n", v[i].name,
			       (unsigned long long)v[i].value);
	if (json)
		puts("}");
}

/* Sums over processors and carriers. */
enum { SPAWNED, ENDED, SWITCHES, STEALS, PREEMPTIONS, HANDOFFS, RETURNS, SUMS };

static void sum_processors(const struct target *t, uint64_t *sum, uint32_t n)
{
	uint64_t p = target_word(t, t->d.runtime + t->d.runtime_at.processors);

	for (uint32_t i = 0; i < n; i++, p += t->d.processor.size) {
		uint64_t ended = target_word(t, p + t->d.processor.ended);
		uint32_t step = target_half(t, p + t->d.processor.id_step);

		sum[ENDED] += ended;
		if (step)
			sum[SPAWNED] += (target_word(t, p + t->d.processor.id_next) -
					 i - 1) / step;
		sum[SWITCHES] += target_word(t, p + t->d.processor.pass) + ended -
				 target_word(t, p + t->d.processor.idle_passes);
		sum[STEALS] += target_word(t, p + t->d.processor.steals);
		sum[PREEMPTIONS] +=
			target_word(t, p + t->d.processor.preemptions);
	}
}

static void sum_carriers(const struct target *t, uint64_t *sum)
{
	uint64_t c = target_word(t, t->d.runtime + t->d.runtime_at.carriers);

	for (int n = 0; c && n < 100000; n++) {
		uint64_t page = target_word(t, c + t->d.carrier.page);

		sum[HANDOFFS] += target_word(t, page + t->d.carrier_page.handoffs);
		sum[RETURNS] += target_word(t, page + t->d.carrier_page.returns);
		c = target_word(t, c + t->d.carrier.next);
	}
}

static int stats(pid_t pid, bool json)
{
	uint64_t sum[SUMS] = { 0 }, alive = 0, rt, info;
	struct target t;
	uint32_t nproc;

	if (target_open(&t, pid) || fibers_walk(&t, count_one, &alive))
		return complain();
	rt = t.d.runtime;
	nproc = target_half(&t, rt + t.d.runtime_at.nproc);
	info = target_word(&t, rt + t.d.runtime_at.info);
	sum[SPAWNED] = target_word(&t, rt + t.d.runtime_at.plain_spawned);
	sum_processors(&t, sum, nproc);
	sum_carriers(&t, sum);
	show((struct number[]){
		{ "fibers", alive },
		{ "processors", nproc },
		{ "carriers", target_half(&t, info + t.d.info.carriers) },
		{ "spares", target_half(&t, info + t.d.info.spares) },
		{ "idle", target_half(&t, info + t.d.info.idle) },
		{ "waiting", target_half(&t, info + t.d.info.waiting) },
		{ "spawned", sum[SPAWNED] }, { "ended", sum[ENDED] },
		{ "switches", sum[SWITCHES] }, { "steals", sum[STEALS] },
		{ "preemptions", sum[PREEMPTIONS] },
		{ "handoffs", sum[HANDOFFS] }, { "returns", sum[RETURNS] },
		{ "quantum_ns",
		  target_word(&t, rt + t.d.runtime_at.quantum_ns) },
	}, 14, json);
	target_close(&t);
	return EXIT_FINE;
}

int cmd_stats(int argc, char **argv, bool json)
{
	pid_t pid;

	if (argc != 2)
		return usage("stats [--json] PID");
	pid = parse_pid(argv[1]);
	return pid < 0 ? EXIT_USAGE : stats(pid, json);
}
