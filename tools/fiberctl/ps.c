// SPDX-License-Identifier: GPL-2.0-only
/* ps.c - fiberctl ps: processes with fibers, or the fibers of one */
#include <ctype.h>
#include <dirent.h>
#include <stdlib.h>
#include <string.h>

#include "fiberctl.h"

static int list_one(const struct seen *s, void *arg)
{
	struct list *k = arg;
	char text[LIST_WIDTH];

	k->count++;
	if (k->json) {
		list_between(k);
		list_json(k, s, where_is(k->w, s));
		printf("}");
	} else {
		list_row(text, k, s, where_is(k->w, s));
		puts(text);
	}
	return 0;
}

static int ps_one(pid_t pid, bool json)
{
	struct target t;
	struct list k = { .json = json, .t = &t };
	char head[LIST_WIDTH];
	int r = target_open(&t, pid);

	if (r)
		return complain();
	k.n = names_open(&t);
	k.w = where_open(k.n, &t);
	list_head(head, &t);
	if (!json)
		puts(head);
	r = fibers_walk(&t, list_one, &k);
	if (json)
		printf("%s]\n", k.any ? "" : "[");
	where_close(k.w);
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
	nproc = target_processors(&t);
	backend = target_backend(&t);
	if (k->json) {
		list_between(k);
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

