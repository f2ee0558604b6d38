/* SPDX-License-Identifier: GPL-2.0-only */
/* top.h - the two tables of fiberctl top, for its loop */
#ifndef TOP_H
#define TOP_H

#include "fiberctl.h"

#define TOP_WIDTH	400
#define TOP_HEADS	4

/* By what lines are sorted. */
enum top_sort {
	BY_CPU, BY_TIME, BY_STACK, BY_FOR, BY_STATE, BY_ID, BY_NAME, BY_FIBERS,
};

struct top {
	pid_t pid;			/* 0: all processes */
	const struct top_table *table;
	enum top_sort sort;
	bool reverse;
	void *data;			/* the table's */
	size_t rows;
};

struct top_table {
	enum top_sort sort;		/* at first */
	unsigned int sorts;		/* those it has: bits */
	/* Look again; a negative errno value with target_error(). */
	int (*sample)(struct top *v);
	/* Lines above the table, the last one with its columns. */
	void (*heads)(struct top *v, char text[TOP_HEADS][TOP_WIDTH]);
	void (*order)(struct top *v);
	void (*row)(struct top *v, size_t i, char text[TOP_WIDTH]);
	void (*close)(struct top *v);
};

extern const struct top_table top_fibers, top_processes;
const char *top_sort_name(enum top_sort s);
/* CPU of each hundred: ns of it used in so many ns; "-": nothing is known of it. */
void top_percent(char text[8], bool known, uint64_t used, uint64_t ns);
/* For qsort; then what v says of the direction. */
int top_compare(uint64_t a, uint64_t b);

#endif
