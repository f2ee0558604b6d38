// SPDX-License-Identifier: GPL-2.0-only
/*
 * Signals as values: each comes, in order, to each channel that wants it and to none
 * after it stopped; what a signal did before it does again then; nobody's mask is
 * changed, no child is touched.
 */
#include "common.h"

#include <dirent.h>
#include <spawn.h>
#include <sys/wait.h>

extern char **environ;

FIXTURE(sig) {};
FIXTURE_VARIANT(sig) {
	const char *io;
	unsigned int processors;
};

/* Our thread alone takes that signal: then they come in order. */
static bool in_order;

FIXTURE_SETUP(sig)
{
	sigset_t set;

	setenv("FIBER_IO", variant->io, 1);
	in_order = variant->processors == 1;
	sigemptyset(&set);
	sigaddset(&set, SIGRTMIN + 1);
	if (in_order)
		pthread_sigmask(SIG_BLOCK, &set, NULL);
}
FIXTURE_TEARDOWN(sig) {}
FIXTURE_VARIANT_ADD(sig, epoll_one) { "epoll", 1 };
FIXTURE_VARIANT_ADD(sig, plain_two) { "plain", 2 };

#define RUN(fn, arg) \
	ASSERT_EQ(0, with_runtime(variant->processors, 0, fn, arg)); \
	EXPECT_EQ(0, failures)

/* ---- what is used ---- */

static fiber_chan_t *channel(size_t capacity)
{
	fiber_chan_t *ch = NULL;

	check_eq(0, fiber_chan_create(&ch, sizeof(struct fiber_signal), capacity));
	return ch;
}

static fiber_chan_t *wanting(size_t capacity, int sig)
{
	fiber_chan_t *ch = channel(capacity);

	check_eq(0, fiber_signal_notify(ch, sig));
	return ch;
}

static void done_with(fiber_chan_t *ch)
{
	check_eq(0, fiber_signal_stop(ch));
	check_eq(0, fiber_chan_destroy(ch));
}

static void queue(int sig, int value)
{
	while (sigqueue(getpid(), sig, (union sigval){ .sival_int = value })) {
		check_eq(EAGAIN, errno);	/* so many are pending */
		sched_yield();
	}
}

static struct fiber_signal next_of(fiber_chan_t *ch)
{
	struct fiber_signal s;

	memset(&s, 0x55, sizeof(s));
	check_eq(0, fiber_chan_recv(ch, &s));
	return s;
}

/* -1: any */
static void expect_value(fiber_chan_t *ch, int sig, int value)
{
	struct fiber_signal s = next_of(ch);

	if (value < 0)
		value = (int)s.value;
	check_eq(sig, s.signo);
	check_eq(SI_QUEUE, s.code);
	check_eq(value, s.value);
	check_eq(getpid(), s.pid);
	check_eq(getuid(), s.uid);
	check_eq(0, s.reserved);
}

static atomic_int handled;

static void handler(int sig)
{
	atomic_fetch_add(&handled, sig);
}

/*
 * ThreadSanitizer calls handlers later, and of each signal it keeps but one till
 * then. False: so it is here.
 */
static bool queued_ones_come(void)
{
	int sig = SIGRTMIN + 2, before = atomic_load(&handled);
	sigset_t set, old;

	signal(sig, handler);
	sigemptyset(&set);
	sigaddset(&set, sig);
	pthread_sigmask(SIG_BLOCK, &set, &old);
	for (int i = 0; i < 4; i++)
		queue(sig, i);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	poll(NULL, 0, 1);		/* where it calls what it has kept */
	return atomic_load(&handled) == before + 4 * sig;
}

#define NEEDS_QUEUED_ONES() do { \
	if (!queued_ones_come()) \
		SKIP(return, "handlers are called once for many queued signals"); \
} while (0)

/* A child ends with this, of its own or in a program. */
static int ends_with(pid_t pid)
{
	int status = -1;

	check_eq(pid, fiber_waitpid(pid, &status, 0));
	return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

/* ---- values ---- */

static void *values(void *arg)
{
	fiber_chan_t *ch = wanting(8, SIGUSR1), *rt = wanting(1, SIGRTMIN + 1);
	struct fiber_signal s;
	struct fiber_case c[2] = { FIBER_RECV(ch, &s), FIBER_RECV(rt, &s) };
	fiber_scope_t scope;

	check_eq(0, fiber_signal_notify(ch, SIGUSR2));
	check_eq(0, kill(getpid(), SIGUSR1));
	s = next_of(ch);
	check_eq(SIGUSR1, s.signo);
	check_eq(SI_USER, s.code);
	check_eq(getpid(), s.pid);
	check_eq(0, s.value);
	queue(SIGUSR2, 42);
	expect_value(ch, SIGUSR2, 42);
	/* It is a channel as any other. */
	check_eq(-ETIMEDOUT, fiber_chan_recv_until(ch, &s, fiber_now() + MS));
	raise(SIGUSR1);
	check_eq(0, fiber_select(c, 2, FIBER_NEVER));
	check_eq(SI_TKILL, s.code);
	check_eq(0, fiber_scope_open(&scope, NULL));
	fiber_scope_cancel(&scope, 0);
	check_eq(-ECANCELED, fiber_chan_recv(ch, &s));
	done_with(rt);			/* cancelled or not */
	check_eq(-ECANCELED, fiber_scope_close(&scope));
	done_with(ch);
	return arg;
}

TEST_F(sig, comes_as_a_value)
{
	RUN(values, NULL);
}

static void *queued(void *arg)
{
	fiber_chan_t *ch = wanting(64, SIGRTMIN + 1);

	for (int i = 0; i < 64; i++)
		queue(SIGRTMIN + 1, i);
	for (int i = 0; i < 64; i++)
		expect_value(ch, SIGRTMIN + 1, in_order ? i : -1);
	done_with(ch);
	return arg;
}

TEST_F(sig, queued_ones_come_one_by_one)
{
	NEEDS_QUEUED_ONES();
	RUN(queued, NULL);
}

static void *children(void *arg)
{
	fiber_chan_t *ch = wanting(8, SIGCHLD);
	struct fiber_signal s;
	pid_t pid = fork();

	if (!pid)
		_exit(7);
	do
		s = next_of(ch);
	while (s.code != CLD_EXITED);
	check_eq(pid, s.pid);
	check_eq(7, s.status);
	check_eq(7, ends_with(pid));
	done_with(ch);
	return arg;
}

TEST_F(sig, tells_of_a_child)
{
	RUN(children, NULL);
}

/* ---- many channels, full ones ---- */

static void *shared(void *arg)
{
	fiber_chan_t *a = wanting(16, SIGRTMIN + 1), *b = wanting(1, SIGRTMIN + 1);
	fiber_chan_t *none = wanting(0, SIGRTMIN + 1);

	check_eq(0, fiber_signal_notify(a, SIGRTMIN + 1));	/* twice is once */
	for (int i = 0; i < 5; i++)
		queue(SIGRTMIN + 1, i);
	for (int i = 0; i < 5; i++)
		expect_value(a, SIGRTMIN + 1, in_order ? i : -1);
	check_eq(0, fiber_signal_stop(none));	/* all have been sent */
	check_eq(0, fiber_chan_len(a));
	check_eq(1, fiber_chan_len(b));
	check_eq(-EAGAIN, fiber_chan_try_recv(none, NULL));
	expect_value(b, SIGRTMIN + 1, in_order ? 0 : -1);
	done_with(b);
	queue(SIGRTMIN + 1, 9);
	expect_value(a, SIGRTMIN + 1, 9);
	done_with(a);
	check_eq(0, fiber_chan_destroy(none));
	return arg;
}

TEST_F(sig, comes_to_each_and_is_dropped_by_full_ones)
{
	NEEDS_QUEUED_ONES();
	RUN(shared, NULL);
}

/* All are told of, one by one; or, when a pipe was full, once for what it had no room for. */
enum { MANY = 6000 };

static struct storm {
	int n, bare, last;
} told;

static void tell(const struct fiber_signal *s)
{
	check_eq(SIGRTMIN + 1, s->signo);
	if (s->code != SI_QUEUE) {
		check_eq(0, s->code);
		told.bare++;
		return;
	}
	check((int)s->value > told.last || !in_order);
	told.last = (int)s->value;
	told.n++;
}

static void *storm(void *arg)
{
	fiber_chan_t *ch = wanting(MANY, SIGRTMIN + 1);
	struct fiber_signal s;

	told.last = -1;
	for (int i = 0; i < MANY; i++)
		queue(SIGRTMIN + 1, i);
	/* They may be pending still. */
	for (int i = 0; i < 4000 && told.n < MANY && !told.bare; i++)
		while (!fiber_chan_recv_until(ch, &s, fiber_now() + 10 * MS))
			tell(&s);
	check(told.n == MANY || told.bare);
	check(told.n + told.bare <= MANY);
	check(told.n >= 15 * 128);	/* a pipe: 16 pages, one of them in part */
	done_with(ch);
	return arg;
}

TEST_F(sig, storms_lose_none_unnoticed)
{
	NEEDS_QUEUED_ONES();
	signal(SIGRTMIN + 1, SIG_IGN);	/* those that come later */
	RUN(storm, NULL);
}

/* Its time does not jump over what comes from outside. */
TEST(seeded_runs_wait_for_them)
{
	const char *backend = getenv("FIBER_BACKEND");

	if (backend && !strcmp(backend, "kernel"))
		SKIP(return, "of the user backend");
	NEEDS_QUEUED_ONES();
	signal(SIGRTMIN + 1, SIG_IGN);
	setenv("FIBER_SEED", "7", 1);
	ASSERT_EQ(0, with_runtime(1, 0, storm, NULL));
	EXPECT_EQ(0, failures);
}

/* ---- stop ---- */

static void *stops(void *arg)
{
	fiber_chan_t *a = wanting(4, SIGUSR1), *b = wanting(4, SIGUSR1);

	check_eq(0, fiber_signal_notify(a, SIGUSR2));
	raise(SIGUSR1);
	check_eq(SIGUSR1, next_of(a).signo);
	check_eq(SIGUSR1, next_of(b).signo);
	check_eq(0, handled);
	done_with(a);
	raise(SIGUSR2);			/* ignored, as before */
	raise(SIGUSR1);
	check_eq(SIGUSR1, next_of(b).signo);
	check_eq(0, fiber_signal_reset(SIGUSR1));
	raise(SIGUSR1);
	check_eq(SIGUSR1, handled);
	check_eq(0, fiber_signal_notify(b, SIGUSR1));
	check_eq(0, fiber_signal_reset(0));
	raise(SIGUSR1);
	check_eq(2 * SIGUSR1, handled);
	check_eq(0, fiber_chan_len(b));
	/* The program's handler, put in place meanwhile, stays. */
	check_eq(0, fiber_signal_notify(b, SIGUSR2));
	check(signal(SIGUSR2, handler) != SIG_ERR);
	done_with(b);
	raise(SIGUSR2);
	check_eq(2 * SIGUSR1 + SIGUSR2, handled);
	/* fiber_fini ends what is left. */
	b = wanting(1, SIGUSR1);
	raise(SIGUSR1);
	check_eq(2 * SIGUSR1 + SIGUSR2, handled);
	*(fiber_chan_t **)arg = b;
	return NULL;
}

TEST_F(sig, does_what_it_did_before)
{
	fiber_chan_t *left = NULL;

	signal(SIGUSR1, handler);
	signal(SIGUSR2, SIG_IGN);
	for (int i = 0; i < 2; i++) {
		handled = 0;
		signal(SIGUSR2, SIG_IGN);
		RUN(stops, &left);
		handled = 0;
		raise(SIGUSR1);
		EXPECT_EQ(SIGUSR1, handled);
		EXPECT_EQ(0, fiber_chan_destroy(left));
	}
}

/* Signals come all the time while channels want them and do not. */
static atomic_bool over;

static void *sends(void *arg)
{
	while (!atomic_load(&over)) {
		kill(getpid(), SIGUSR1);
		queue(SIGRTMIN + 1, 1);
		block_ns(1 * MS);	/* no flood: other threads are to run */
	}
	return arg;
}

static void *comes_and_goes(void *arg)
{
	for (int i = 0; i < 15; i++) {
		fiber_chan_t *ch = wanting(2, SIGUSR1);

		check_eq(0, fiber_signal_notify(ch, SIGRTMIN + 1));
		check(next_of(ch).signo != 0);
		done_with(ch);
	}
	return arg;
}

static void *come_and_go(void *arg)
{
	fiber_t *f[3];
	pthread_t t;

	check_eq(0, pthread_create(&t, NULL, sends, NULL));
	for (int i = 0; i < 3; i++)
		f[i] = spawn(comes_and_goes, NULL);
	for (int i = 0; i < 3; i++)
		join(f[i]);
	atomic_store(&over, true);
	fiber_blocking_begin();
	pthread_join(t, NULL);
	fiber_blocking_end();
	return arg;
}

TEST_F(sig, comes_while_channels_come_and_go)
{
	signal(SIGUSR1, SIG_IGN);
	signal(SIGRTMIN + 1, SIG_IGN);
	RUN(come_and_go, NULL);
}

/* fiber_fini comes while values are being sent. */
enum { LEFT = 16 };

static void *floods(void *arg)
{
	while (!atomic_load(&over))
		kill(getpid(), SIGUSR1);
	return arg;
}

static void *leaves_many(void *arg)
{
	fiber_chan_t **left = arg;

	for (int i = 0; i < LEFT; i++)
		left[i] = wanting(1, SIGUSR1);
	next_of(left[0]);
	return NULL;
}

TEST_F(sig, comes_while_the_runtime_ends)
{
	fiber_chan_t *left[LEFT] = { NULL };
	pthread_t t;

	signal(SIGUSR1, SIG_IGN);
	ASSERT_EQ(0, pthread_create(&t, NULL, floods, NULL));
	for (int i = 0; i < 20; i++) {
		RUN(leaves_many, left);
		for (int k = 0; k < LEFT; k++)
			EXPECT_EQ(0, fiber_chan_destroy(left[k]));
	}
	atomic_store(&over, true);
	EXPECT_EQ(0, pthread_join(t, NULL));
}

/* ---- masks and children ---- */

static void *blocked(void *arg)
{
	fiber_chan_t *ch = wanting(4, SIGUSR1);
	sigset_t set;

	check_eq(0, kill(getpid(), SIGUSR1));
	check_eq(SIGUSR1, next_of(ch).signo);
	check_eq(0, fiber_signal_stop(ch));
	check_eq(0, kill(getpid(), SIGUSR1));	/* its default would end us */
	check_eq(0, sigpending(&set));
	check_eq(1, sigismember(&set, SIGUSR1));
	check_eq(0, fiber_signal_notify(ch, SIGUSR1));
	check_eq(SIGUSR1, next_of(ch).signo);
	done_with(ch);
	return arg;
}

TEST_F(sig, comes_though_all_threads_block_it)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	pthread_sigmask(SIG_BLOCK, &set, NULL);
	RUN(blocked, NULL);
}

static int pipes(void)
{
	DIR *d = opendir("/proc/self/fd");
	char kind[5] = "";
	struct dirent *e;
	int n = 0;

	while ((e = readdir(d)))
		n += readlinkat(dirfd(d), e->d_name, kind, 4) == 4 &&
		     !strcmp(kind, "pipe");
	closedir(d);
	return n;
}

static void *in_children(void *arg)
{
	char *argv[] = { "/proc/self/exe", "ends_by_signal", NULL };
	int before = pipes();
	fiber_chan_t *ch = wanting(4, SIGUSR1);
	pid_t pid = fork();

	if (!pid) {			/* before exec too */
		if (fiber_signal_stop(ch) != -EPERM ||
		    fiber_signal_notify(ch, SIGUSR1) != -EPERM)
			_exit(1);
		if (pipes() != before)
			_exit(3);
		raise(SIGUSR1);
		_exit(2);
	}
	check_eq(-SIGUSR1, ends_with(pid));
	check_eq(0, posix_spawn(&pid, argv[0], NULL, NULL, argv, environ));
	check_eq(-SIGUSR1, ends_with(pid));
	raise(SIGUSR1);
	check_eq(getpid(), next_of(ch).pid);
	check_eq(0, fiber_chan_len(ch));
	done_with(ch);
	return arg;
}

TEST_F(sig, is_none_of_the_childrens)
{
	RUN(in_children, NULL);
}

/* ---- beside the rest of the library ---- */

static void *alarmed(void *arg)
{
	fiber_chan_t *ch = wanting(1, SIGALRM);

	alarm(2);			/* the first look comes after a second */
	check_eq(SIGALRM, next_of(ch).signo);
	done_with(ch);
	return arg;
}

TEST_F(sig, to_wait_for_one_is_no_deadlock)
{
	if (!in_order)
		SKIP(return, "the same");
	setenv("FIBER_DEADLOCK", "abort,alone", 1);
	RUN(alarmed, NULL);
}

static void *dumped(void *arg)
{
	fiber_chan_t *ch = wanting(1, SIGUSR1);
	int out = dup(2), file = fileno(tmpfile());
	char text[4096] = "";

	check_eq(2, dup2(file, 2));
	raise(SIGUSR1);
	check_eq(SIGUSR1, next_of(ch).signo);
	check_eq(2, dup2(out, 2));
	check(pread(file, text, sizeof(text) - 1, 0) > 0);
	check(strstr(text, " backend, ") != NULL);
	done_with(ch);
	return arg;
}

TEST_F(sig, dumps_too)
{
	setenv("FIBER_DUMP_SIGNAL", "USR1", 1);
	RUN(dumped, NULL);
}

static void *misused(void *arg)
{
	static const int never[] = { -1, 0, SIGKILL, SIGSTOP, SIGURG, SIGSEGV,
				     SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS,
				     32, 33, 65 };
	fiber_chan_t *ch = channel(1), *small;

	for (size_t i = 0; i < sizeof(never) / sizeof(never[0]); i++) {
		check_eq(-EINVAL, fiber_signal_notify(ch, never[i]));
		if (never[i] && never[i] != 32 && never[i] != 33)
			check_eq(-EINVAL, fiber_signal_reset(never[i]));
	}
	check_eq(0, fiber_chan_create(&small, sizeof(int), 1));
	check_eq(-EINVAL, fiber_signal_notify(small, SIGUSR1));
	check_eq(-EINVAL, fiber_signal_notify(NULL, SIGUSR1));
	check_eq(-EINVAL, fiber_signal_stop(NULL));
	check_eq(0, fiber_signal_stop(small));	/* it wants none */
	check_eq(0, fiber_chan_destroy(small));
	check_eq(0, fiber_chan_destroy(ch));
	return arg;
}

TEST_F(sig, misuse_is_answered)
{
	fiber_chan_t *ch = channel(1);

	EXPECT_EQ(-EPERM, fiber_signal_notify(ch, SIGUSR1));
	EXPECT_EQ(-EPERM, fiber_signal_stop(ch));
	EXPECT_EQ(-EPERM, fiber_signal_reset(SIGUSR1));
	EXPECT_EQ(0, fiber_chan_destroy(ch));
	RUN(misused, NULL);
}

static void __attribute__((constructor)) as_a_child(int argc, char **argv)
{
	if (argc == 2 && !strcmp(argv[1], "ends_by_signal")) {
		raise(SIGUSR1);		/* not blocked, not caught */
		_exit(3);
	}
}

TEST_HARNESS_MAIN
