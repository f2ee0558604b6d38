// SPDX-License-Identifier: GPL-2.0-only
/*
 * Very many fibers that wait for I/O, and are all cancelled at once, while some of
 * what they wait for comes: no byte is lost, nobody is left, no descriptor stays open.
 */
#include "common.h"

#include <dirent.h>
#include <sys/ioctl.h>

enum { MOST = 100 };			/* fibers that read of one socket */

FIXTURE(crowd) {};
FIXTURE_VARIANT(crowd) {
	const char *io;
	int sockets, each;
	unsigned int processors;
};
FIXTURE_SETUP(crowd)
{
	setenv("FIBER_IO", variant->io, 1);
}
FIXTURE_TEARDOWN(crowd) {}
/* In blocking calls each has a thread. */
FIXTURE_VARIANT_ADD(crowd, epoll) { "epoll", VERY_MANY / MOST, MOST, 2 };
FIXTURE_VARIANT_ADD(crowd, epoll_one) { "epoll", 10, MOST, 1 };
FIXTURE_VARIANT_ADD(crowd, plain) { "plain", 2, 20, 2 };

struct crowd {
	int n, each;			/* sockets, fibers that read of one */
	bool parks;
	atomic_int begun;
	struct pair {
		int s[2];
		atomic_int got, sent;
		atomic_bool told;		/* the last reader has seen the end */
	} *pair;
	atomic_int cancelled;
	fiber_scope_t scope;
};

static struct crowd all;

static int open_files(void)
{
	DIR *d = opendir("/proc/self/fd");
	int n = 0;

	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

/* The library has some open for a moment, now and then. */
static void wait_for_files(int n)
{
	for (int i = 0; i < 20000 && open_files() != n; i++)
		check_eq(0, fiber_sleep(MS));
	check_eq(n, open_files());
}

/* One of those that are cancelled: it has a byte, or -ECANCELED; never both. */
static int reads_one(void *arg)
{
	struct pair *p = arg;
	char c = 'n';
	ssize_t r;

	atomic_fetch_add(&all.begun, 1);
	while ((r = fiber_read(p->s[0], &c, 1)) == 1) {
		check_eq('x', c);
		c = 'n';
		atomic_fetch_add(&p->got, 1);
	}
	check_eq(-ECANCELED, r);
	check_eq('n', c);
	atomic_fetch_add(&all.cancelled, 1);
	return 0;
}

/* The last one of a socket stays: it gets what the others leave. */
static void *reads_rest(void *arg)
{
	struct pair *p = arg;
	char c;

	atomic_fetch_add(&all.begun, 1);
	while (fiber_read(p->s[0], &c, 1) == 1)
		atomic_fetch_add(&p->got, 1);
	atomic_store(&p->told, true);
	return NULL;
}

static int count_waiting(const struct fiber_info *i, void *arg)
{
	int *n = arg;

	*n += i->state == FIBER_PARKED;
	return 0;
}

/* So many wait: all but the caller. In blocking calls they look up now and then. */
static void wait_for_waiting(int n)
{
	int seen = 0;

	do {
		seen = all.parks ? 0 : all.begun;
		if (all.parks)
			check_eq(0, fiber_walk(count_waiting, &seen));
	} while (seen < n && !fiber_sleep(MS));
}

/* A byte for each socket. Every few of them others run: who has been woken, perhaps. */
static void send_to_all(int few)
{
	for (int i = 0; i < all.n; i++) {
		struct pair *p = &all.pair[i];

		atomic_fetch_add(&p->sent, 1);
		check_eq(1, send(p->s[1], "x", 1, MSG_NOSIGNAL));
		if (i % few == few - 1)
			fiber_yield();
	}
}

static void begin_all(fiber_t **last)
{
	for (int i = 0; i < all.n; i++) {
		struct pair *p = &all.pair[i];

		check_eq(0, socketpair(AF_UNIX, SOCK_STREAM, 0, p->s));
		for (int j = 1; j < all.each; j++)
			check_eq(0, fiber_scope_spawn(&all.scope, reads_one, p));
		last[i] = spawn(reads_rest, p);
	}
	wait_for_waiting(all.n * all.each);
}

/* Who was woken for a byte and is cancelled has not kept the news to itself. */
static void wait_for_rest(struct pair *p)
{
	for (int i = 0; i < 20000 && p->got < p->sent && !failures; i++)
		check_eq(0, fiber_sleep(MS));
	check_eq(p->sent, p->got);
}

static void end_all(fiber_t **last)
{
	for (int i = 0; i < all.n; i++) {
		struct pair *p = &all.pair[i];
		int left = -1;

		wait_for_rest(p);
		check_eq(0, fiber_shutdown(p->s[1], SHUT_WR));
		join(last[i]);
		check(p->told);
		check_eq(p->sent, p->got);
		check_eq(0, ioctl(p->s[0], FIONREAD, &left));
		check_eq(0, left);
		check_eq(0, fiber_close(p->s[0]));
		check_eq(0, fiber_close(p->s[1]));
	}
}

static void *cancelled_at_once(void *arg)
{
	fiber_t **last = calloc((size_t)all.n, sizeof(*last));
	int files;

	files = open_files();
	check_eq(0, fiber_scope_open(&all.scope, NULL));
	begin_all(last);
	send_to_all(all.n / 2);
	fiber_scope_cancel(&all.scope, 0);	/* some woken, none has run */
	send_to_all(7);
	check_eq(-ECANCELED, fiber_scope_close(&all.scope));
	check_eq(all.n * (all.each - 1), all.cancelled);
	end_all(last);
	free(last);
	wait_for_files(files + *(int *)arg);
	return NULL;
}

TEST_F(crowd, is_cancelled_at_once)
{
	struct fiber_config cfg = { .size = sizeof(cfg), .stack_size = 16384,
				    .processors = variant->processors };
	/* The set and what kicks who sleeps there stay until the end. */
	int kept = strcmp(variant->io, "plain") ? 2 : 0;
	fiber_t *f;

	all.parks = kept;
	all.each = variant->each;
	all.n = in_vm() && variant->sockets > 20 ? 20 : variant->sockets;
	all.pair = calloc((size_t)all.n, sizeof(*all.pair));
	cap_memory(RLIMIT_NOFILE, 1024);
	cap_memory(RLIMIT_AS, 1ULL << 30);
	clean_environment();
	ASSERT_EQ(0, fiber_init(&cfg));
	ASSERT_EQ(0, fiber_spawn(&f, cancelled_at_once, &kept));
	ASSERT_EQ(0, fiber_join(f, NULL));
	EXPECT_EQ(0, fini_soon());
	EXPECT_EQ(0, failures);
	free(all.pair);
}

TEST_HARNESS_MAIN
