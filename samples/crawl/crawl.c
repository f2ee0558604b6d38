/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * A crawler: follows the links of a site from one page on, a fiber for each page.
 *
 *	crawl --help
 *
 * Three scopes say who waits for whom, and what ends when:
 *
 *	all	the crawl, and a fiber that waits for Ctrl-C, which cancels the crawl
 *	crawl	a fiber for each page; it starts those of the links that it finds.
 *		Closing it waits for the last one. It may have a deadline
 *	page	around one request, with the deadline of that
 *
 * So no call in http.c has a deadline or looks for a signal, and whatever ends the
 * crawl, what is known by then is printed. A semaphore lets so many fetch at once;
 * the others wait there, and cost their stacks.
 */
#include <fiber.h>
#include <ctype.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "crawl.h"

#define SECOND	1000000000ull

/* A page that was found. Written by its own fiber, read when that has ended. */
struct found {
	struct url url;
	unsigned int depth;
	int status;		/* of HTTP, or a negative errno value; 0: not asked */
	size_t bytes;
};

static struct {
	const char *start;
	const char *allowed[64];	/* sites besides the first one's */
	unsigned int sites, at_once, depth, pages, timeout, time;
} opt = { .at_once = 8, .depth = 10, .pages = 1000, .timeout = 10 };

static fiber_scope_t crawl;
static fiber_sem_t slots;

static fiber_mutex_t lock = FIBER_MUTEX_INIT;	/* of what follows */
static struct found **found;
static unsigned int count, left_out;

static bool is_allowed(const struct url *u)
{
	if (!strcmp(u->site, found[0]->url.site))
		return true;
	for (unsigned int i = 0; i < opt.sites; i++)
		if (!strcasecmp(u->site, opt.allowed[i]))
			return true;
	return false;
}

static bool is_known(const struct url *u)
{
	for (unsigned int i = 0; i < count; i++)
		if (url_same(u, &found[i]->url))
			return true;
	return false;
}

static int visit(void *arg);

/* getaddrinfo needs more stack than others, with some of its modules. */
static int start_page(struct found *f)
{
	struct fiber_attr attr = { .size = sizeof(attr), .name = "page",
				   .stack_size = 128 * 1024 };

	return fiber_scope_spawn_attr(&crawl, &attr, visit, f);
}

/* Under the lock: it is known from now on, and nobody else visits it. */
static struct found *remember(const struct url *u, unsigned int depth)
{
	struct found *f = calloc(1, sizeof(*f));

	if (f) {
		f->url = *u;
		f->depth = depth;
		found[count++] = f;
	}
	return f;
}


static void follow(const char *text, size_t len, void *arg)
{
	const struct found *from = arg;
	struct found *f = NULL;
	struct url u;

	if (!url_parse(&u, text, len, &from->url) ||
	    fiber_mutex_lock(&lock) < 0)	/* cancelled: no more pages */
		return;
	if (!is_known(&u)) {
		if (is_allowed(&u) && from->depth < opt.depth &&
		    count < opt.pages)
			f = remember(&u, from->depth + 1);
		else
			left_out++;
	}
	fiber_mutex_unlock(&lock);
	if (f)
		start_page(f);		/* if cancelled, it stays "not asked" */
}

/* The request, with a deadline around all that it does. */
static int fetch(const struct url *u, struct page *page)
{
	struct fiber_scope_options o = {
		.size = sizeof(o),
		.deadline = fiber_now() + opt.timeout * SECOND,
	};
	fiber_scope_t s;
	int r = fiber_scope_open(&s, &o), why;

	if (r < 0)
		return r;
	r = http_get(u, page);
	why = fiber_scope_close(&s);
	return r == -ECANCELED && why < 0 ? why : r;
}

static int visit(void *arg)
{
	struct found *f = arg;
	struct page page = { 0 };
	int r = fiber_sem_wait(&slots);

	if (r < 0)
		return 0;		/* cancelled before its turn came */
	r = fetch(&f->url, &page);
	fiber_sem_post(&slots);
	f->status = r < 0 ? r : page.status;
	f->bytes = page.len;
	if (r == 0 && page.status == 200 && page.html)
		url_find(page.body, follow, f);
	else if (r == 0 && page.status >= 300 && page.status < 400)
		follow(page.location, strlen(page.location), f);
	free(page.body);
	return 0;
}

/* ---- the whole ---- */

static int by_url(const void *a, const void *b)
{
	const struct url *x = &(*(struct found *const *)a)->url;
	const struct url *y = &(*(struct found *const *)b)->url;
	int r = strcmp(x->site, y->site);

	return r ? r : strcmp(x->path, y->path);
}

/* Returns how many pages were not got. */
static unsigned int report(void)
{
	unsigned int bad = 0;

	qsort(found, count, sizeof(struct found *), by_url);
	for (unsigned int i = 0; i < count; i++) {
		const struct found *f = found[i];
		const char *what = f->status == 0 || f->status == -ECANCELED ?
			"not fetched" : f->status < 0 ? strerror(-f->status) : "";

		bad += f->status <= 0 || f->status >= 400;
		if (f->status > 0)
			printf("%3d", f->status);
		else
			printf("---");
		printf(" %7zu http://%s%s%s%s\n", f->bytes, f->url.site,
		       f->url.path, *what ? "  " : "", what);
	}
	fflush(stdout);
	fprintf(stderr, "crawl: %u pages, %u of them not got, %u links not "
		"followed\n", count, bad, left_out);
	return bad;
}

static int wait_for_signal(void *signals)
{
	if (fiber_chan_recv(signals, NULL) == 0)
		fiber_scope_cancel(&crawl, -EINTR);
	return 0;
}

static int run(void *arg)
{
	struct fiber_scope_options o = { .size = sizeof(o) };
	fiber_chan_t *signals;
	fiber_scope_t all;
	int r;

	(void)arg;
	r = fiber_chan_create(&signals, sizeof(struct fiber_signal), 1);
	if (r == 0)
		r = fiber_signal_notify(signals, SIGINT);
	if (r == 0)
		r = fiber_signal_notify(signals, SIGTERM);
	if (r < 0)
		return r;
	if (opt.time)
		o.deadline = fiber_now() + opt.time * SECOND;
	fiber_sem_init(&slots, opt.at_once);
	r = fiber_scope_open(&all, NULL);
	if (r < 0)
		return r;
	r = fiber_scope_open(&crawl, &o);
	if (r == 0) {
		r = fiber_scope_spawn(&all, wait_for_signal, signals);
		if (r == 0)
			r = start_page(found[0]);
		if (r < 0)
			fiber_scope_cancel(&crawl, r);
		r = fiber_scope_close(&crawl);
	}
	fiber_scope_cancel(&all, 0);	/* nobody need wait for Ctrl-C now */
	fiber_scope_close(&all);
	fiber_signal_stop(signals);
	fiber_chan_destroy(signals);
	return r;
}

static const char usage[] =
"usage: crawl [options] URL\n"
"Fetches a page and those that it links to, on the same site, and so on. Prints\n"
"the status, size and address of each. Only http, no https.\n"
"  -a, --allow HOST[:PORT]  another site whose pages are fetched too\n"
"  -j, --jobs N         requests at once (default: 8)\n"
"  -d, --depth N        links to follow from the first page on (default: 10)\n"
"  -m, --max N          pages at most (default: 1000)\n"
"  -t, --timeout SECONDS  for one page (default: 10)\n"
"  -T, --time SECONDS   for all of it (default: no end)\n"
"  -h, --help\n"
"Ctrl-C ends it, and it prints what it has. Status: 0 all were got; 1 some were\n"
"not, or it was ended; 2 wrong usage.\n";

static unsigned int number(const char *what, unsigned long least,
			   unsigned long most)
{
	char *end;
	unsigned long n = strtoul(optarg, &end, 10);

	if (!isdigit((unsigned char)*optarg) || *end || n < least || n > most) {
		fprintf(stderr, "crawl: %s: %s is not a number from %lu to %lu\n",
			what, optarg, least, most);
		exit(2);
	}
	return (unsigned int)n;
}

static void allow(void)
{
	if (opt.sites == sizeof(opt.allowed) / sizeof(opt.allowed[0])) {
		fprintf(stderr, "crawl: allow: too many\n");
		exit(2);
	}
	opt.allowed[opt.sites++] = optarg;
}

static void parse_options(int argc, char **argv)
{
	static const struct option longs[] = {
		{ "allow", required_argument, NULL, 'a' },
		{ "jobs", required_argument, NULL, 'j' },
		{ "depth", required_argument, NULL, 'd' },
		{ "max", required_argument, NULL, 'm' },
		{ "timeout", required_argument, NULL, 't' },
		{ "time", required_argument, NULL, 'T' },
		{ "help", no_argument, NULL, 'h' },
		{ 0 },
	};
	int c;

	while ((c = getopt_long(argc, argv, "a:j:d:m:t:T:h", longs, NULL)) != -1) {
		switch (c) {
		case 'a': allow(); break;
		case 'j': opt.at_once = number("jobs", 1, 10000); break;
		case 'd': opt.depth = number("depth", 0, 1000); break;
		case 'm': opt.pages = number("max", 1, 10000); break;
		case 't': opt.timeout = number("timeout", 1, 86400); break;
		case 'T': opt.time = number("time", 1, 86400); break;
		case 'h': fputs(usage, stdout); exit(0);
		default: fputs("try crawl --help\n", stderr); exit(2);
		}
	}
	if (optind + 1 != argc) {
		fputs(optind < argc ? "crawl: one URL only\n" :
		      "crawl: which URL? Try --help\n", stderr);
		exit(2);
	}
	opt.start = argv[optind];
}

int main(int argc, char **argv)
{
	struct url first;
	int r;

	parse_options(argc, argv);
	if (!url_parse(&first, opt.start, strlen(opt.start), NULL)) {
		fprintf(stderr, "crawl: %s: not an http:// URL\n", opt.start);
		return 2;
	}
	found = calloc(opt.pages, sizeof(struct found *));
	if (!found || !remember(&first, 0)) {
		perror("crawl");
		return 1;
	}
	r = fiber_run(run, NULL);
	if (r < 0)
		fprintf(stderr, "crawl: %s\n", r == -EINTR ? "interrupted" :
			r == -ETIMEDOUT ? "its time is up" : strerror(-r));
	return report() || r < 0 ? 1 : 0;
}
