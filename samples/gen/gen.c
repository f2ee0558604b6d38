/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Words of a text, longest first, by generators: one walks the text, one filters
 * what that yields, and qsort's comparator yields as well, so that the sort can
 * be watched, or left. No runtime is needed.
 *
 *	gen [FILE]		default: standard input
 */
#include <fiber.h>
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WORDS	1000

static void close_file(void *file)
{
	fclose(file);
}

/* Yields each word of the file; the file is closed however the walk ends. */
static int words(void *arg, void **value)
{
	char word[64];

	(void)value;
	fiber_coro_defer(close_file, arg);
	while (fscanf(arg, "%63s", word) == 1)
		if (fiber_coro_yield(word, NULL))
			return 0;
	return 0;
}

/* Yields those of another generator that begin with a letter. */
static int only_letters(void *arg, void **value)
{
	fiber_coro_t *from FIBER_CORO_AUTO = arg;

	(void)value;
	fiber_coro_for_each(char *, word, from)
		if (isalpha((unsigned char)*word) &&
		    fiber_coro_yield(word, NULL))
			return 0;
	return 0;
}

static int by_length(const void *a, const void *b)
{
	const char *x = *(char *const *)a, *y = *(char *const *)b;

	if (fiber_coro_yield(NULL, NULL))	/* closed: leave qsort */
		fiber_coro_exit(-ECANCELED);
	return (int)strlen(y) - (int)strlen(x);
}

struct list {
	char *word[WORDS];
	size_t n;
};

static int sort(void *arg, void **value)
{
	struct list *l = arg;

	(void)value;
	qsort(l->word, l->n, sizeof(*l->word), by_length);
	return 0;
}

int main(int argc, char **argv)
{
	FILE *file = argc > 1 ? fopen(argv[1], "r") : stdin;
	fiber_coro_t *text, *sorting;
	static struct list l;
	long compared = 0;

	if (!file) {
		perror(argv[1]);
		return 1;
	}
	if (!(text = fiber_coro_wrap(words, file)) ||
	    !(text = fiber_coro_wrap(only_letters, text)))
		return 1;
	fiber_coro_for_each(char *, word, text)
		if (l.n == WORDS || !(l.word[l.n++] = strdup(word)))
			break;
	fiber_coro_destroy(text);

	if (!(sorting = fiber_coro_wrap(sort, &l)))
		return 1;
	while (fiber_coro_call(&sorting, NULL, NULL) == FIBER_CORO_YIELDED)
		compared++;
	printf("%zu words, %ld comparisons\n", l.n, compared);
	for (size_t i = 0; i < l.n; i++) {
		if (i < 5)
			puts(l.word[i]);
		free(l.word[i]);
	}
	return 0;
}
