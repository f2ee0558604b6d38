// SPDX-License-Identifier: GPL-2.0-only
/* top.c - fiberctl top: processes with fibers, or the fibers of one, live */
#include <errno.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "screen.h"
#include "top.h"

struct options {
	bool batch, help;
	uint64_t delay_ns;
	unsigned long times;		/* 0: until it is ended */
	int sort;			/* or -1 */
};

static const struct {
	const char *name;
	int key;			/* as in top(1), where it has such */
} sorts[] = {
	[BY_CPU] = { "cpu", 'P' }, [BY_TIME] = { "time", 'T' },
	[BY_STACK] = { "stack", 'M' }, [BY_FOR] = { "for", 'F' },
	[BY_STATE] = { "state", 'S' }, [BY_ID] = { "id", 'N' },
	[BY_NAME] = { "name", 'C' }, [BY_FIBERS] = { "fibers", 'B' },
};
#define SORTS	((int)(sizeof(sorts) / sizeof(sorts[0])))

const char *top_sort_name(enum top_sort s)
{
	return sorts[s].name;
}

int top_compare(uint64_t a, uint64_t b)
{
	return (a > b) - (a < b);
}

void top_percent(char text[8], bool known, uint64_t used, uint64_t ns)
{
	if (known && ns)
		snprintf(text, 8, "%.1f", (double)used * 100 / (double)ns);
	else
		strcpy(text, "-");
}

/* ---- a file or a pipe ---- */

static void print_all(struct top *v)
{
	char heads[TOP_HEADS][TOP_WIDTH], text[TOP_WIDTH];

	v->table->heads(v, heads);
	for (int i = 0; i < TOP_HEADS; i++)
		puts(heads[i]);
	for (size_t i = 0; i < v->rows; i++) {
		v->table->row(v, i, text);
		puts(text);
	}
}

static int batch(struct top *v, const struct options *o)
{
	struct timespec delay = { .tv_sec = (time_t)(o->delay_ns / 1000000000),
				  .tv_nsec = (long)(o->delay_ns % 1000000000) };

	for (unsigned long n = 0; !o->times || n < o->times; n++) {
		if (n) {
			nanosleep(&delay, NULL);
			putchar('\n');
		}
		if (v->table->sample(v))
			return complain();
		v->table->order(v);
		print_all(v);
		if (fflush(stdout))
			return EXIT_FAILED;	/* main says why */
	}
	return EXIT_FINE;
}

/* ---- a terminal ---- */

struct view {
	struct top *v;
	const struct options *o;
	size_t first;			/* row that is shown on top */
	size_t page;			/* rows that fit */
	bool help;
};

static void show_help(struct top *v)
{
	char text[TOP_WIDTH];

	screen_line("fiberctl top", true);
	screen_line("", false);
	for (int i = 0; i < SORTS; i++) {
		if (!(v->table->sorts & 1u << i))
			continue;
		snprintf(text, sizeof(text), "  %c           sort by %s",
			 sorts[i].key, sorts[i].name);
		screen_line(text, false);
	}
	screen_line("  < >         sort by the one before, the next", false);
	screen_line("  R           the other way round", false);
	screen_line("  up, down, page up, page down, home, end", false);
	screen_line("  space       look again now", false);
	screen_line("  h ?         this, and back", false);
	screen_line("  q           end", false);
}

static bool show(struct view *w)
{
	char heads[TOP_HEADS][TOP_WIDTH], text[TOP_WIDTH];
	size_t last = w->v->rows;
	int rows, columns;

	screen_size(&rows, &columns);
	w->page = rows > TOP_HEADS ? (size_t)(rows - TOP_HEADS) : 1;
	if (w->first + w->page > last)
		w->first = last > w->page ? last - w->page : 0;
	screen_begin();
	if (w->help) {
		show_help(w->v);
		return screen_end();
	}
	w->v->table->heads(w->v, heads);
	for (int i = 0; i < TOP_HEADS; i++)
		screen_line(heads[i], i == TOP_HEADS - 1);
	for (size_t i = w->first; i < last && i < w->first + w->page; i++) {
		w->v->table->row(w->v, i, text);
		screen_line(text, false);
	}
	return screen_end();
}

static void sort_by(struct view *w, int sort)
{
	if (!(w->v->table->sorts & 1u << sort))
		return;
	w->v->sort = (enum top_sort)sort;
	w->v->table->order(w->v);
	w->first = 0;
}

static void sort_beside(struct view *w, int step)
{
	int sort = (int)w->v->sort;

	do
		sort = (sort + step + SORTS) % SORTS;
	while (!(w->v->table->sorts & 1u << sort));
	sort_by(w, sort);
}

static void scroll(struct view *w, int key)
{
	size_t page = w->page, back = w->first < page ? w->first : page;

	switch (key) {
	case KEY_UP:
		w->first -= w->first > 0;
		break;
	case KEY_DOWN:
		w->first++;
		break;
	case KEY_PAGE_UP:
		w->first -= back;
		break;
	case KEY_PAGE_DOWN:
		w->first += page;
		break;
	case KEY_HOME:
		w->first = 0;
		break;
	case KEY_END:
		w->first = w->v->rows;	/* show() makes it the last page */
		break;
	}
}

/* What changes the picture. */
static void press(struct view *w, int key)
{
	for (int i = 0; i < SORTS; i++)
		if (key == sorts[i].key)
			sort_by(w, i);
	if (key == 'R') {
		w->v->reverse = !w->v->reverse;
		sort_by(w, (int)w->v->sort);
	} else if (key == '<' || key == '>') {
		sort_beside(w, key == '<' ? -1 : 1);
	} else if (key == 'h' || key == '?') {
		w->help = !w->help;
	} else {
		scroll(w, key);
	}
}

static uint64_t now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000 + (uint64_t)ts.tv_nsec;
}

/* Until it is time to look again: true. */
static bool keys_until(struct view *w, uint64_t then)
{
	for (uint64_t t = now(); t < then; t = now()) {
		uint64_t ms = (then - t) / 1000000 + 1;
		int key = screen_wait(ms > 60000 ? 60000 : (int)ms);

		if (key == 'q' || key == 'Q' || key == KEY_GONE)
			return false;
		if (key == ' ')
			return true;
		if (key == KEY_NONE)
			continue;
		press(w, key);
		if (!show(w))
			return false;
	}
	return true;
}

static int live(struct top *v, const struct options *o)
{
	struct view w = { .v = v, .o = o };
	int r = 0;

	if (!screen_open())
		return EXIT_USAGE;
	for (unsigned long n = 0;; n++) {
		r = v->table->sample(v);
		if (r)
			break;
		v->table->order(v);
		if (!show(&w) || n + 1 == o->times ||
		    !keys_until(&w, now() + o->delay_ns))
			break;
	}
	screen_close();
	return r ? complain() : EXIT_FINE;
}

/* ---- the command ---- */

static int top_usage(void)
{
	return usage("top [-b] [-n TIMES] [-d SECONDS] [-s COLUMN] [PID]");
}

static bool number(const char *s, double least, double most, double *to)
{
	char *end;

	*to = strtod(s, &end);
	return *s && !*end && *to >= least && *to <= most;
}

static int no_column(const char *name)
{
	fprintf(stderr, "fiberctl: no column '%s':", name);
	for (int i = 0; i < SORTS; i++)
		fprintf(stderr, "%s %s", i ? "," : "", sorts[i].name);
	fputc('\n', stderr);
	return EXIT_USAGE;
}

static int sort_of(const char *name)
{
	for (int i = 0; i < SORTS; i++)
		if (!strcmp(name, sorts[i].name))
			return i;
	return -1;
}

static int take(struct options *o, int c)
{
	double n;

	switch (c) {
	case 'b':
		o->batch = true;
		return EXIT_FINE;
	case 'n':
		if (!number(optarg, 1, 1e9, &n))
			return top_usage();
		o->times = (unsigned long)n;
		return EXIT_FINE;
	case 'd':
		if (!number(optarg, 0.01, 1e6, &n))
			return top_usage();
		o->delay_ns = (uint64_t)(n * 1e9);
		return EXIT_FINE;
	case 's':
		o->sort = sort_of(optarg);
		return o->sort < 0 ? no_column(optarg) : EXIT_FINE;
	default:
		return top_usage();
	}
}

int cmd_top(int argc, char **argv, bool json)
{
	struct options o = { .delay_ns = 2000000000, .sort = -1 };
	struct top v = { 0 };
	int c, r;

	while ((c = getopt(argc, argv, "bn:d:s:")) != -1)
		if (take(&o, c) != EXIT_FINE)
			return EXIT_USAGE;
	if (argc - optind > 1)
		return top_usage();
	if (json) {
		fprintf(stderr, "fiberctl: top has no --json; ps and stats have\n");
		return EXIT_USAGE;
	}
	if (optind < argc && (v.pid = parse_pid(argv[optind])) < 0)
		return EXIT_USAGE;
	v.table = v.pid ? &top_fibers : &top_processes;
	v.sort = o.sort < 0 ? v.table->sort : (enum top_sort)o.sort;
	if (!(v.table->sorts & 1u << v.sort)) {
		fprintf(stderr, "fiberctl: there is no '%s' to sort by here\n",
			top_sort_name(v.sort));
		return EXIT_USAGE;
	}
	r = o.batch ? batch(&v, &o) : live(&v, &o);
	v.table->close(&v);
	return r;
}
