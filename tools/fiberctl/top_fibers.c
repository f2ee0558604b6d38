// SPDX-License-Identifier: GPL-2.0-only
/* top_fibers.c - fiberctl top PID: the fibers of a process */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "top.h"

struct line {
	struct seen s;
	uint64_t used;			/* of CPU since the last look */
	bool known;			/* it was there then */
};

struct before {
	uint64_t id, cpu_ns;
};

struct fibers {
	struct target t;
	bool open;
	char command[64];
	uint64_t root;			/* names belong to that program */
	struct list list;
	struct line *line;
	size_t room, states[5];
	struct before *before;		/* by id */
	size_t nbefore;
	uint64_t now, ns;		/* of the last look; since the one before */
	uint64_t sum[SUMS], grew[SUMS];
	uint32_t nproc, idle, carriers, spares;
};

/* ---- looking ---- */

static int by_id(const void *a, const void *b)
{
	const struct before *x = a, *y = b;

	return (x->id > y->id) - (x->id < y->id);
}

/* What was used until now, of those that say it. */
static int keep_before(struct top *v, struct fibers *d)
{
	struct before *b = realloc(d->before, (v->rows + 1) * sizeof(*b));

	if (!b)
		return target_fail(-ENOMEM, "no memory");
	d->before = b;
	d->nbefore = 0;
	for (size_t i = 0; i < v->rows; i++)
		if (d->line[i].s.timed)
			b[d->nbefore++] = (struct before){ d->line[i].s.id,
							   d->line[i].s.cpu_ns };
	qsort(b, d->nbefore, sizeof(*b), by_id);
	return 0;
}

static int take(const struct seen *s, void *arg)
{
	struct top *v = arg;
	struct fibers *d = v->data;
	struct before key = { .id = s->id }, *b;
	struct line *l;

	if (v->rows == d->room) {
		size_t room = d->room ? 2 * d->room : 256;

		l = realloc(d->line, room * sizeof(*l));
		if (!l)
			return target_fail(-ENOMEM, "no memory");
		d->line = l;
		d->room = room;
	}
	l = &d->line[v->rows++];
	*l = (struct line){ .s = *s };
	d->states[s->state]++;
	b = s->timed ? bsearch(&key, d->before, d->nbefore, sizeof(*b), by_id) :
		       NULL;
	if (b && s->cpu_ns >= b->cpu_ns) {
		l->known = true;
		l->used = s->cpu_ns - b->cpu_ns;
	}
	return 0;
}

/* Another program, by exec, has other names. */
static void names_for(struct fibers *d)
{
	if (d->list.n && d->root == d->t.root)
		return;
	where_close(d->list.w);
	names_close(d->list.n);
	d->root = d->t.root;
	d->list.n = names_open(&d->t);
	d->list.w = where_open(d->list.n, &d->t);
	memset(d->sum, 0, sizeof(d->sum));
}

static void take_counters(struct fibers *d)
{
	const struct target *t = &d->t;
	uint64_t sum[SUMS] = { 0 };

	stats_sum(t, sum);
	for (int i = 0; i < SUMS; i++) {
		d->grew[i] = d->sum[SWITCHES] ? sum[i] - d->sum[i] : 0;
		d->sum[i] = sum[i];
	}
	d->nproc = target_processors(t);
	d->idle = target_info(t, t->d.info.idle);
	d->carriers = target_info(t, t->d.info.carriers);
	d->spares = target_info(t, t->d.info.spares);
}

static int open_again(struct top *v, struct fibers *d)
{
	int r;

	if (d->open)
		target_close(&d->t);
	r = target_open(&d->t, v->pid);
	d->open = !r;
	if (r)
		return r;
	d->list.t = &d->t;
	command_of(v->pid, d->command, sizeof(d->command));
	names_for(d);
	d->ns = d->now ? d->t.now - d->now : 0;
	d->now = d->t.now;
	return 0;
}

static int sample(struct top *v)
{
	struct fibers *d = v->data;
	int r;

	if (!d)
		d = v->data = calloc(1, sizeof(*d));
	if (!d)
		return target_fail(-ENOMEM, "no memory");
	r = keep_before(v, d);
	if (!r)
		r = open_again(v, d);
	if (r)
		return r;
	v->rows = 0;
	memset(d->states, 0, sizeof(d->states));
	take_counters(d);
	return fibers_walk(&d->t, take, v);
}

static void close_it(struct top *v)
{
	struct fibers *d = v->data;

	if (!d)
		return;
	where_close(d->list.w);
	names_close(d->list.n);
	if (d->open)
		target_close(&d->t);
	free(d->line);
	free(d->before);
	free(d);
}

/* ---- showing ---- */

static double a_second(const struct fibers *d, int sum)
{
	return d->ns ? (double)d->grew[sum] * 1e9 / (double)d->ns : 0;
}

static void heads(struct top *v, char text[TOP_HEADS][TOP_WIDTH])
{
	struct fibers *d = v->data;
	char columns[LIST_WIDTH];

	snprintf(text[0], TOP_WIDTH,
		 "%s (%d): %zu fiber%s, %zu running, %zu ready, %zu blocked, %zu parked, %zu new",
		 d->command, (int)v->pid, v->rows, v->rows == 1 ? "" : "s",
		 d->states[S_RUNNING],
		 d->states[S_READY], d->states[S_BLOCKED],
		 d->states[S_PARKED], d->states[S_NEW]);
	snprintf(text[1], TOP_WIDTH,
		 "%u processor%s, %u idle, %u threads, %u spare; sorted by %s%s",
		 d->nproc, d->nproc == 1 ? "" : "s", d->idle, d->carriers, d->spares,
		 top_sort_name(v->sort), v->reverse ? ", reversed" : "");
	snprintf(text[2], TOP_WIDTH,
		 "a second: %.0f switches, %.0f spawned, %.0f ended, %.0f steals, %.0f preemptions, %.0f handoffs",
		 a_second(d, SWITCHES), a_second(d, SPAWNED), a_second(d, ENDED),
		 a_second(d, STEALS), a_second(d, PREEMPTIONS),
		 a_second(d, HANDOFFS));
	list_head(columns, &d->t);
	snprintf(text[3], TOP_WIDTH, "%6s  %s", "%CPU", columns);
}

static uint64_t weight(const struct line *l, enum top_sort sort)
{
	/* running, ready, blocked, new, parked */
	static const unsigned char rank[] = { 1, 3, 4, 0, 2 };

	switch (sort) {
	case BY_CPU:
		return l->known ? l->used + 1 : 0;
	case BY_TIME:
		return l->s.timed ? l->s.cpu_ns + 1 : 0;
	case BY_STACK:
		return l->s.stack;
	case BY_FOR:
		return l->s.for_ns;
	default:
		return rank[l->s.state];
	}
}

static const struct top *sorted;

static int compare(const void *a, const void *b)
{
	const struct line *x = a, *y = b;
	int r = 0;

	if (sorted->sort == BY_NAME)
		r = strcmp(x->s.name, y->s.name);
	else if (sorted->sort != BY_ID)
		r = -top_compare(weight(x, sorted->sort),
				 weight(y, sorted->sort));
	if (!r)
		r = top_compare(x->s.id, y->s.id);
	return sorted->reverse ? -r : r;
}

static void order(struct top *v)
{
	struct fibers *d = v->data;

	sorted = v;
	qsort(d->line, v->rows, sizeof(*d->line), compare);
}

static void row(struct top *v, size_t i, char text[TOP_WIDTH])
{
	struct fibers *d = v->data;
	const struct line *l = &d->line[i];
	char rest[LIST_WIDTH], percent[8];

	top_percent(percent, l->known && d->ns, l->used, d->ns);
	list_row(rest, &d->list, &l->s, where_is(d->list.w, &l->s));
	snprintf(text, TOP_WIDTH, "%6s  %s", percent, rest);
}

const struct top_table top_fibers = {
	.sort = BY_STATE,
	.sorts = 1 << BY_CPU | 1 << BY_TIME | 1 << BY_STACK | 1 << BY_FOR |
		 1 << BY_STATE | 1 << BY_ID | 1 << BY_NAME,
	.sample = sample,
	.heads = heads,
	.order = order,
	.row = row,
	.close = close_it,
};
