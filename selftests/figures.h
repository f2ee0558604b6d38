/* SPDX-License-Identifier: GPL-2.0-only */
/* figures.h - of many measured lengths the one that says most */
#ifndef SELFTESTS_FIGURES_H
#define SELFTESTS_FIGURES_H

#include <stdint.h>
#include <stdlib.h>

static inline int compare_u64(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

/* Sorts v. */
static inline uint64_t percentile(uint64_t *v, size_t n, unsigned int p)
{
	qsort(v, n, sizeof(*v), compare_u64);
	return n ? v[(n - 1) * p / 100] : 0;
}

/*
 * Sorts v. Of exact counts the least may be that of a path that is rarely taken, and
 * a mean has all the paths in it.
 */
static inline uint64_t most_frequent(uint64_t *v, size_t n)
{
	size_t run = 0, most = 0;
	uint64_t mode = 0;

	qsort(v, n, sizeof(*v), compare_u64);
	for (size_t i = 0; i < n; i++) {
		run = i && v[i] == v[i - 1] ? run + 1 : 1;
		if (run > most) {
			most = run;
			mode = v[i];
		}
	}
	return mode;
}

#endif
