// SPDX-License-Identifier: GPL-2.0-only
/* list.c - fibers for the reader, as lines or as JSON */
#include <stdlib.h>
#include <string.h>

#include "fiberctl.h"

int usage(const char *how)
{
	fprintf(stderr, "usage: fiberctl %s\n", how);
	return EXIT_USAGE;
}

void list_between(struct list *k)
{
	printf("%s", k->any ? ",\n " : "[");
	k->any = true;
}

void list_json(struct list *k, const struct seen *s, const char *where)
{
	printf("{\"id\": %llu, \"library\": %s, \"name\": ",
	       (unsigned long long)s->id, s->library ? "true" : "false");
	json_string(s->name);
	printf(", \"state\": \"%s\", \"why\": ", state_name(s->state));
	json_string(s->why);
	if (k->t->now)
		printf(", \"for_ns\": %llu", (unsigned long long)s->for_ns);
	printf(", \"stack\": %llu, \"tid\": %d, \"locked_tid\": %d",
	       (unsigned long long)s->stack, s->tid, s->locked_tid);
	if (*s->pool) {
		printf(", \"pool\": ");
		json_string(s->pool);
	}
	if (s->processor >= 0)
		printf(", \"processor\": %d", s->processor);
	if (s->timed)
		printf(", \"cpu_ns\": %llu", (unsigned long long)s->cpu_ns);
	printf(", \"where\": ");
	json_string(where);
	printf(", \"started\": ");
	json_string(names_function(k->n, s->entry));
}

#define LINE	"%-8s %-16s %s%-18s %9s %7s %3s %8s %8s  %-20s %s"

/* A column of those alone that have pools. */
static void pool_column(char text[48], const struct target *t, const char *pool)
{
	text[0] = 0;
	if (t->pools)
		snprintf(text, 48, "%-15s ", *pool ? pool : "-");
}

void list_head(char text[LIST_WIDTH], const struct target *t)
{
	char pool[48];

	pool_column(pool, t, "POOL");
	snprintf(text, LIST_WIDTH, LINE, "ID", "NAME", pool, "STATE", "FOR", "STACK",
		 "CPU", "TIME", "THREAD", "WHERE", "STARTED WITH");
}

static void numbers(char text[5][24], struct list *k, const struct seen *s)
{
	for (int i = 0; i < 5; i++)
		strcpy(text[i], "-");
	if (s->state == S_PARKED && k->t->now)
		snprintf(text[0], 24, "%.3f", (double)s->for_ns / 1e9);
	if (s->stack)
		snprintf(text[1], 24, "%llu", (unsigned long long)s->stack);
	if (s->processor >= 0)
		snprintf(text[2], 24, "%d", s->processor);
	if (s->timed)
		snprintf(text[3], 24, "%.3f", (double)s->cpu_ns / 1e9);
	if (s->tid)
		snprintf(text[4], 24, "%d", s->tid);
	if (s->locked_tid)
		snprintf(text[4], 24, "%d!", s->locked_tid);
}

void list_row(char text[LIST_WIDTH], struct list *k, const struct seen *s,
	      const char *where)
{
	char id[24], state[40], pool[48], n[5][24];

	snprintf(id, sizeof(id), "%s%llu", s->library ? "L" : "",
		 (unsigned long long)s->id);
	snprintf(state, sizeof(state), "%s%s%s%s", state_name(s->state),
		 *s->why ? " (" : "", s->why, *s->why ? ")" : "");
	numbers(n, k, s);
	pool_column(pool, k->t, s->pool);
	snprintf(text, LIST_WIDTH, LINE, id, *s->name ? s->name : "-", pool, state,
		 n[0], n[1], n[2], n[3], n[4], *where ? where : "-",
		 names_function(k->n, s->entry));
}

/* ---- stacks ---- */

int list_keep(const struct seen *s, void *arg)
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

static void show_frame(struct list *k, uint64_t pc, bool first)
{
	const char *line = names_line(k->n, pc);

	if (!k->json) {
		printf("    %s%s%s%s\n", names_function(k->n, pc),
		       *line ? " (" : "", line, *line ? ")" : "");
		return;
	}
	printf("%s{\"pc\": %llu, \"function\": ", first ? "" : ", ",
	       (unsigned long long)pc);
	json_string(names_function(k->n, pc));
	printf(", \"line\": ");
	json_string(line);
	printf("}");
}

static void show_stack(struct list *k, const struct seen *s)
{
	uint64_t pc[NAMES_FRAMES];
	int n = names_stack(k->n, k->t, s, pc);
	const char *where = names_where(k->n, k->t, pc, n);
	char text[LIST_WIDTH];

	if (k->json) {
		list_between(k);
		list_json(k, s, where);
		printf(", \"stack_frames\": [");
	} else {
		list_row(text, k, s, where);
		puts(text);
	}
	for (int i = 0; i < n; i++)
		show_frame(k, pc[i], !i);
	if (k->json)
		printf("]}");
	else
		printf("%s\n", !n ? "    (its stack cannot be read)\n" :
		       n == NAMES_FRAMES ? "    ...\n" : "");
}

void list_stacks(struct list *k)
{
	for (uint64_t i = 0; i < k->count; i++)
		show_stack(k, &k->seen[i]);
}
