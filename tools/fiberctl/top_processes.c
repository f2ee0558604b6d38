// SPDX-License-Identifier: GPL-2.0-only
/* top_processes.c - fiberctl top: the processes that have fibers */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "top.h"

struct line {
	pid_t pid;
	char command[64];
	const char *backend;
	uint32_t nproc;
	uint64_t fibers, states[5];
	uint64_t cpu_ns, used;
	bool known;
};

struct processes {
	struct line *line, *before;
	size_t room, nbefore;
	uint64_t now, ns, fibers;
};

/* ---- looking ---- */

static int count_one(const struct seen *s, void *arg)
{
	struct line *l = arg;

	l->fibers++;
	l->states[s->state]++;
	return 0;
}

/* Of all threads: the words 14 and 15 of stat, and what comes before is in (). */
static uint64_t cpu_of(pid_t pid)
{
	unsigned long long user = 0, kernel = 0;
	char path[64], text[512] = "", *at;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	f = fopen(path, "re");
	if (f && !fgets(text, sizeof(text), f))
		*text = 0;
	if (f)
		fclose(f);
	at = strrchr(text, ')');
	if (!at || sscanf(at + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %llu %llu",
			  &user, &kernel) != 2)
		return 0;
	return (user + kernel) * (1000000000 / (uint64_t)sysconf(_SC_CLK_TCK));
}

static bool look(struct line *l, pid_t pid)
{
	struct target t;
	bool seen;

	*l = (struct line){ .pid = pid };
	if (target_open(&t, pid))
		return false;
	seen = !fibers_walk(&t, count_one, l);
	command_of(pid, l->command, sizeof(l->command));
	l->nproc = target_processors(&t);
	l->backend = target_backend(&t);
	l->cpu_ns = cpu_of(pid);
	target_close(&t);
	return seen;
}

static void since_before(const struct processes *d, struct line *l)
{
	for (size_t i = 0; i < d->nbefore; i++)
		if (d->before[i].pid == l->pid &&
		    d->before[i].cpu_ns <= l->cpu_ns) {
			l->known = true;
			l->used = l->cpu_ns - d->before[i].cpu_ns;
		}
}

static int take(struct top *v, struct processes *d, pid_t pid)
{
	struct line l, *more;

	if (!look(&l, pid))
		return 0;
	if (v->rows == d->room) {
		more = realloc(d->line, (d->room + 64) * sizeof(*more));
		if (!more)
			return target_fail(-ENOMEM, "no memory");
		d->line = more;
		d->room += 64;
	}
	since_before(d, &l);
	d->fibers += l.fibers;
	d->line[v->rows++] = l;
	return 0;
}

static int begin(struct top *v, struct processes *d)
{
	struct timespec ts;
	uint64_t now;

	free(d->before);
	d->before = d->line;
	d->nbefore = v->rows;
	d->line = NULL;
	d->room = v->rows = 0;
	clock_gettime(CLOCK_MONOTONIC, &ts);
	now = (uint64_t)ts.tv_sec * 1000000000 + (uint64_t)ts.tv_nsec;
	d->ns = d->now ? now - d->now : 0;
	d->now = now;
	d->fibers = 0;
	return 0;
}

static int sample(struct top *v)
{
	struct dirent *e;
	int r = 0;
	DIR *dir;

	if (!v->data)
		v->data = calloc(1, sizeof(struct processes));
	if (!v->data)
		return target_fail(-ENOMEM, "no memory");
	dir = opendir("/proc");
	if (!dir)
		return target_fail(-ENOENT, "there is no /proc");
	r = begin(v, v->data);
	while (!r && (e = readdir(dir)))
		if (isdigit((unsigned char)e->d_name[0]))
			r = take(v, v->data, (pid_t)atoi(e->d_name));
	closedir(dir);
	return r;
}

static void close_it(struct top *v)
{
	struct processes *d = v->data;

	if (d) {
		free(d->line);
		free(d->before);
	}
	free(d);
}

/* ---- showing ---- */

#define LINE	"%-8s %6s %9s %10s %8s %8s %8s %10s %5s  %-7s %s"

static void heads(struct top *v, char text[TOP_HEADS][TOP_WIDTH])
{
	struct processes *d = v->data;

	snprintf(text[0], TOP_WIDTH,
		 "%zu process%s with fibers that may be read: %llu fiber%s",
		 v->rows, v->rows == 1 ? "" : "es",
		 (unsigned long long)d->fibers, d->fibers == 1 ? "" : "s");
	snprintf(text[1], TOP_WIDTH, "sorted by %s%s", top_sort_name(v->sort),
		 v->reverse ? ", reversed" : "");
	text[2][0] = 0;
	snprintf(text[3], TOP_WIDTH, LINE, "PID", "%CPU", "TIME", "FIBERS",
		 "RUNNING", "READY", "BLOCKED", "PARKED", "PROC", "BACKEND",
		 "COMMAND");
}

static const struct top *sorted;

static uint64_t weight(const struct line *l)
{
	switch (sorted->sort) {
	case BY_CPU:
		return l->known ? l->used + 1 : 0;
	case BY_TIME:
		return l->cpu_ns;
	default:
		return l->fibers;
	}
}

static int compare(const void *a, const void *b)
{
	const struct line *x = a, *y = b;
	int r = 0;

	if (sorted->sort == BY_NAME)
		r = strcmp(x->command, y->command);
	else if (sorted->sort != BY_ID)
		r = -top_compare(weight(x), weight(y));
	if (!r)
		r = top_compare((uint64_t)x->pid, (uint64_t)y->pid);
	return sorted->reverse ? -r : r;
}

static void order(struct top *v)
{
	struct processes *d = v->data;

	sorted = v;
	if (v->rows)
		qsort(d->line, v->rows, sizeof(*d->line), compare);
}

static void row(struct top *v, size_t i, char text[TOP_WIDTH])
{
	struct processes *d = v->data;
	const struct line *l = &d->line[i];
	char pid[16], percent[8], time[24], n[5][24], nproc[16];
	static const enum state shown[] = {
		S_RUNNING, S_READY, S_BLOCKED, S_PARKED,
	};

	snprintf(pid, sizeof(pid), "%d", (int)l->pid);
	top_percent(percent, l->known && d->ns, l->used, d->ns);
	snprintf(time, sizeof(time), "%.2f", (double)l->cpu_ns / 1e9);
	snprintf(n[4], sizeof(n[4]), "%llu", (unsigned long long)l->fibers);
	for (int k = 0; k < 4; k++)
		snprintf(n[k], sizeof(n[k]), "%llu",
			 (unsigned long long)l->states[shown[k]]);
	snprintf(nproc, sizeof(nproc), "%u", l->nproc);
	snprintf(text, TOP_WIDTH, LINE, pid, percent, time, n[4], n[0], n[1],
		 n[2], n[3], nproc, l->backend, l->command);
}

const struct top_table top_processes = {
	.sort = BY_CPU,
	.sorts = 1 << BY_CPU | 1 << BY_TIME | 1 << BY_ID | 1 << BY_NAME |
		 1 << BY_FIBERS,
	.sample = sample,
	.heads = heads,
	.order = order,
	.row = row,
	.close = close_it,
};
