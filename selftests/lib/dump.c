// SPDX-License-Identifier: GPL-2.0-only
/* All fibers as text: by a call, by a signal, while everything runs. */
#include <sys/mman.h>
#include <sys/wait.h>

#include "common.h"
#include "forbid.h"

static fiber_event_t gate = FIBER_EVENT_INIT;
static fiber_mutex_t mutex = FIBER_MUTEX_INIT;
static atomic_int arrived, stop;

/* Frames that the compiler keeps apart, and their names. */
#ifdef __clang__
#define KEPT	__attribute__((noinline))
#else
#define KEPT	__attribute__((noinline, noipa))
#endif

KEPT int waits_below(int n)
{
	volatile char frame[200];
	int r;

	frame[n] = (char)n;
	atomic_fetch_add(&arrived, 1);
	r = fiber_event_wait(&gate);
	return r + frame[n];
}

KEPT int waits_above(int n)
{
	return waits_below(n + 1) - 1;
}

KEPT void *waits_in_two(void *arg)
{
	fiber_set_name(fiber_self(), "in two");
	check_eq(0, waits_above(0));
	return NULL;
}

KEPT void *locks(void *arg)
{
	fiber_set_name(fiber_self(), "locks");
	atomic_fetch_add(&arrived, 1);
	check_eq(0, fiber_mutex_lock(&mutex));
	check_eq(0, fiber_mutex_unlock(&mutex));
	return NULL;
}

/* ---- what was written ---- */

static char text[1 << 20];

static void read_back(int fd)
{
	ssize_t n = pread(fd, text, sizeof(text) - 1, 0);

	check(n >= 0);
	text[n > 0 ? n : 0] = 0;
}

static const char *dumped(void)
{
	int fd = memfd_create("dump", MFD_CLOEXEC), r;

	(void)until((r = fiber_dump(fd)) != -EBUSY);
	check_eq(0, r);
	read_back(fd);
	close(fd);
	return text;
}

/* The paragraph of the fiber with this name. */
static const char *part(const char *all, const char *name)
{
	static char one[4096];
	char key[40];
	const char *from, *end;

	snprintf(key, sizeof(key), "\"%s\": ", name);
	from = strstr(all, key);
	if (!from)
		return "";
	end = strstr(from, "\nfiber");
	snprintf(one, sizeof(one), "%.*s", end ? (int)(end - from) : 4000, from);
	return one;
}

static bool in_order(const char *s, const char *a, const char *b)
{
	const char *at = strstr(s, a);

	return at && strstr(at, b);
}

static bool both_parked(void)
{
	const char *all = dumped();

	return strstr(part(all, "in two"), "parked (event)") &&
	       strstr(part(all, "locks"), "parked (mutex)");
}

/* ---- by a call ---- */

static void *dumps(void *arg)
{
	const char *all = dumped();

	if (!strstr(part(all, "dumps"), "running on thread"))
		failed(__FILE__, __LINE__, "it does not run: %s", all);
	return NULL;
}

static void *hold(void *arg)
{
	fiber_t *f;

	check_eq(0, fiber_mutex_lock(&mutex));
	f = spawn(locks, NULL);
	check_eq(0, fiber_event_wait(&gate));
	check_eq(0, fiber_mutex_unlock(&mutex));
	join(f);
	return NULL;
}

static void all_is_told(struct __test_metadata *_metadata)
{
	fiber_t *a, *b, *d;
	struct fiber_attr attr = { .size = sizeof(attr), .name = "dumps" };

	EXPECT_EQ(-EPERM, fiber_dump(2));
	ASSERT_EQ(0, start(2, 0));
	a = spawn(waits_in_two, NULL);
	b = spawn(hold, NULL);
	ASSERT_TRUE(until(atomic_load(&arrived) == 2));
	ASSERT_TRUE(until(both_parked()));
	EXPECT_TRUE(in_order(part(text, "in two"), "started with waits_in_two",
			     "waits_below"));
	EXPECT_TRUE(in_order(part(text, "in two"), "waits_below+", "waits_above+"));
	EXPECT_TRUE(in_order(part(text, "in two"), "waits_above+", "waits_in_two+"));
	EXPECT_TRUE(in_order(part(text, "in two"), ", stack ", " of "));
	EXPECT_TRUE(in_order(part(text, "locks"), "(mutex)", "    locks+"));
	EXPECT_TRUE(in_order(part(text, "locks"), " at 0x", ", held by fiber "));
	EXPECT_TRUE(in_order(text, "fiber: 3 fibers; ", "backend"));
	if (!__test_passed(_metadata))
		TH_LOG("the dump:\n%s", text);
	ASSERT_EQ(0, fiber_spawn_attr(&d, &attr, dumps, NULL));
	join(d);
	EXPECT_EQ(-EBADF, fiber_dump(-1));
	check_eq(0, fiber_event_set(&gate));
	join(a);
	join(b);
	EXPECT_EQ(0, fiber_fini());
	EXPECT_EQ(0, failures);
}

TEST(names_states_stacks)
{
	all_is_told(_metadata);
}

/* Some kernels lack it, some containers forbid it. */
TEST(without_process_vm_readv)
{
	if (!forbid(SYS_process_vm_readv, SECCOMP_RET_ERRNO | ENOSYS))
		SKIP(return, "no filters of system calls, as under valgrind");
	all_is_told(_metadata);
}

/* ---- by a signal, while all runs ---- */

static void *nothing(void *arg)
{
	return NULL;
}

static void *churns(void *arg)
{
	while (!atomic_load(&stop)) {
		fiber_t *f[4];

		for (int i = 0; i < 4; i++)
			f[i] = spawn(nothing, NULL);
		check_eq(0, fiber_mutex_lock(&mutex));
		fiber_yield();
		check_eq(0, fiber_mutex_unlock(&mutex));
		for (int i = 0; i < 4; i++)
			join(f[i]);
	}
	return NULL;
}

static int stderr_to_file(void)
{
	int fd = memfd_create("stderr", MFD_CLOEXEC);

	check_eq(STDERR_FILENO, dup2(fd, STDERR_FILENO));
	return fd;
}

static int count(const char *s, const char *word)
{
	int n = 0;

	for (; (s = strstr(s, word)); s += strlen(word))
		n++;
	return n;
}

/* How often it was dumped, to the end. */
static int dumps_in(int fd)
{
	read_back(fd);
	return count(text, " backend, ");
}

enum { SIGNALS = 30 };

/* One is refused while another is being written, by whatever thread. */
static bool signal_one(int fd, int before)
{
	check_eq(0, kill(getpid(), SIGUSR2));
	return dumps_in(fd) > before;
}

static void signal_all(int fd)
{
	for (int n = 0; n < SIGNALS; n = dumps_in(fd))
		check(until(signal_one(fd, n)));
}

TEST(signals_while_all_run)
{
	int fd, keep = dup(STDERR_FILENO), n;
	fiber_t *f[4], *a;

	fd = stderr_to_file();
	clean_environment();
	setenv("FIBER_DUMP_SIGNAL", "SIGUSR2", 1);
	ASSERT_EQ(0, start(2, 0));
	a = spawn(waits_in_two, NULL);
	ASSERT_TRUE(until(atomic_load(&arrived) == 1));
	for (int i = 0; i < 4; i++)
		f[i] = spawn(churns, NULL);
	signal_all(fd);
	atomic_store(&stop, 1);
	for (int i = 0; i < 4; i++)
		join(f[i]);
	check_eq(0, fiber_event_set(&gate));
	join(a);
	n = dumps_in(fd);
	dup2(keep, STDERR_FILENO);
	EXPECT_LE(SIGNALS, n);
	EXPECT_LE(SIGNALS, count(text, "\"in two\": "));
	ASSERT_EQ(0, fini_soon());
	EXPECT_EQ(0, failures);
}

/* Nobody reads what is told: no signal comes of it, at once or later. */
TEST(pipe_without_reader)
{
	int p[2], keep = dup(STDERR_FILENO);
	sigset_t pending;

	ASSERT_EQ(0, pipe(p));
	close(p[0]);
	ASSERT_EQ(STDERR_FILENO, dup2(p[1], STDERR_FILENO));
	setenv("FIBER_DUMP_SIGNAL", "NOSUCH", 1);
	EXPECT_EQ(-EINVAL, start(1, 0));
	setenv("FIBER_DUMP_SIGNAL", "USR1", 1);
	EXPECT_EQ(0, start(1, 0));
	EXPECT_EQ(-EPIPE, fiber_dump(STDERR_FILENO));
	EXPECT_EQ(0, raise(SIGUSR1));
	dup2(keep, STDERR_FILENO);
	EXPECT_EQ(0, sigpending(&pending));
	EXPECT_EQ(0, sigismember(&pending, SIGPIPE));
	EXPECT_EQ(0, fini_soon());
}

TEST_SIGNAL(handler_goes_with_the_runtime, SIGUSR1)
{
	setenv("FIBER_DUMP_SIGNAL", "USR1", 1);
	ASSERT_EQ(0, start(1, 0));
	ASSERT_EQ(0, raise(SIGUSR1));	/* does not kill us */
	ASSERT_EQ(0, fiber_fini());
	raise(SIGUSR1);
}

TEST(not_a_signal)
{
	setenv("FIBER_DUMP_SIGNAL", "NOSUCH", 1);
	EXPECT_EQ(-EINVAL, start(1, 0));
	setenv("FIBER_DUMP_SIGNAL", "9", 1);
	EXPECT_EQ(-EINVAL, start(1, 0));
	setenv("FIBER_DUMP_SIGNAL", "", 1);
	ASSERT_EQ(0, start(1, 0));
	EXPECT_EQ(0, fiber_fini());
}

TEST_HARNESS_MAIN
