// SPDX-License-Identifier: GPL-2.0-only
/*
 * FIBER_TRACE: what was recorded is whole and true, whatever ends the program. The
 * file has one event a line, which is what this reads.
 */
#include <sys/stat.h>
#include <sys/wait.h>

#include "../../lib/debug.h"
#include "common.h"

static char path[64];
static char *text;

static void trace_to_file(const char *events, const char *cost)
{
	snprintf(path, sizeof(path), "/tmp/fiber-trace.%d", (int)getpid());
	setenv("FIBER_TRACE", "/tmp/fiber-trace.%p", 1);
	setenv("FIBER_TRACE_EVENTS", events, 1);
	setenv("FIBER_TRACE_COST", cost, 1);
}

static long size_of(const char *file)
{
	struct stat st;

	return stat(file, &st) ? -1 : (long)st.st_size;
}

/* The file, and remove it. */
static bool read_file(const char *file)
{
	long n = size_of(file), got = 0, k = 1;
	int fd = open(file, O_RDONLY | O_CLOEXEC);

	unlink(file);
	free(text);
	text = calloc(1, n > 0 ? n + 1 : 1);
	while (fd >= 0 && got < n && k > 0) {
		k = read(fd, text + got, n - got);
		got += k > 0 ? k : 0;
	}
	close(fd);
	return got > 0 && got == n;
}

/* Line by line; the next, or NULL. */
static const char *next_line(const char *at)
{
	at = strchr(at, '\n');
	return at && at[1] ? at + 1 : NULL;
}

/* How many lines have both. */
static long count(const char *a, const char *b)
{
	char line[512];
	long n = 0;

	for (const char *at = text; at; at = next_line(at)) {
		snprintf(line, sizeof(line), "%.*s", (int)strcspn(at, "\n"), at);
		n += strstr(line, a) && strstr(line, b);
	}
	return n;
}

/* On each lane one slice after the other, none twice; or what is wrong. */
static const char *lanes_wrong(void)
{
	double end[64] = { 0 }, ts, dur;
	unsigned int tid;
	long slices = 0;

	for (const char *at = text; at; at = next_line(at)) {
		if (sscanf(at, "{\"ph\":\"X\",\"pid\":1,\"tid\":%u,\"ts\":%lf,\"dur\":%lf",
			   &tid, &ts, &dur) != 3)
			continue;
		if (tid >= 64 || dur < 0 || ts < end[tid] - 0.0015)
			return at;
		end[tid] = ts + dur;
		slices++;
	}
	return slices ? NULL : "no slices";
}

static bool whole(void)
{
	const char *wrong;

	if (!read_file(path) ||
	    strncmp(text, "{\"displayTimeUnit\":\"ns\",\n", 25) ||
	    !strstr(text, "\n],\n\"lostEvents\":") ||
	    strcmp(text + strlen(text) - 2, "}\n"))
		return false;
	wrong = lanes_wrong();
	if (wrong)
		fprintf(stderr, "# wrong: %.200s\n", wrong);
	return !wrong;
}

/* ---- what happened ---- */

static fiber_event_t gate = FIBER_EVENT_INIT;
static int pipes[2], reader_tid;
static atomic_int go;

static void *parks(void *arg)
{
	check_eq(0, fiber_event_wait(&gate));
	return NULL;
}

/* One processor: who writes runs because this has lost it. */
static void *reads(void *arg)
{
	char byte;

	reader_tid = (int)syscall(SYS_gettid);
	fiber_blocking_begin();
	check_eq(1, read(pipes[0], &byte, 1));
	fiber_blocking_end();
	return NULL;
}

static void *writes(void *arg)
{
	check_eq(1, write(pipes[1], "x", 1));
	return NULL;
}

/* The quantum ends before anybody sets it. */
static void *spins(void *arg)
{
	while (!atomic_load_explicit(&go, memory_order_relaxed))
		;
	return NULL;
}

static fiber_t *named(const char *name, void *(*fn)(void *))
{
	struct fiber_attr attr = { .size = sizeof(attr), .name = name };
	fiber_t *f = NULL;

	check_eq(0, fiber_spawn_attr(&f, &attr, fn, NULL));
	return f;
}

/* It may be long in coming: a page fault is a block too. */
static int is_parked(const struct fiber_info *info, void *arg)
{
	return info->state == FIBER_PARKED && !strcmp(info->why, "event");
}

static void *all_kinds(void *arg)
{
	fiber_t *f[3];

	f[0] = named("park\"er\\", parks);
	f[1] = named("reader", reads);
	f[2] = spawn(writes, NULL);
	while (!fiber_walk(is_parked, NULL))
		fiber_yield();
	check_eq(0, fiber_event_set(&gate));
	for (int i = 0; i < 3; i++)
		join(f[i]);
	return NULL;
}

TEST(slices_and_marks)
{
	char key[64];

	ASSERT_EQ(0, pipe(pipes));
	trace_to_file("4096", "100");
	ASSERT_EQ(0, with_runtime(1, 1 * SEC, all_kinds, NULL));
	ASSERT_TRUE(whole());
	EXPECT_LE(1, count("\"name\":\"park\\\"er\\\\\"", "\"end\":\"parked: event\""));
	EXPECT_LE(1, count("\"name\":\"park\\\"er\\\\\"", "\"end\":\"ended\""));
	EXPECT_LE(1, count("\"name\":\"reader\"", "\"end\":\"blocked\""));
	EXPECT_LE(1, count("\"name\":\"reader\"", "\"end\":\"ended\""));
	EXPECT_LE(1, count("\"name\":\"writes\"", "\"end\":\"ended\""));
	EXPECT_LE(1, count("\"name\":\"ready\"", "\"ph\":\"i\""));
	/* Where no spare was left just then, who comes next takes it idle. */
	EXPECT_LE(1, count("\"name\":\"handoff\"", "\"ph\":\"i\"") +
		  count("\"name\":\"taken idle\"", "\"ph\":\"i\""));
	EXPECT_LE(1, count("\"name\":\"return\"", "\"ph\":\"i\""));
	snprintf(key, sizeof(key), "\"pid\":2,\"tid\":%d,", reader_tid);
	EXPECT_LE(1, count("\"ph\":\"B\"", key));
	EXPECT_LE(1, count("\"ph\":\"E\"", key));
	EXPECT_EQ(1, count("\"lostEvents\":0}", ""));
	EXPECT_EQ(0, count("not recorded", ""));
	EXPECT_EQ(0, failures);
}

static void *sees_a_preemption(void *arg)
{
	fiber_t *f = named("spinner", spins);

	while (!stats().preemptions)
		fiber_yield();
	atomic_store(&go, 1);
	join(f);
	return NULL;
}

TEST(preemption)
{
	trace_to_file("4096", "3");
	ASSERT_EQ(0, start(1, 1 * MS));
	if (!(fiber_features() & FIBER_FEATURE_PREEMPT))
		SKIP(return, "nothing is preempted here");
	join(spawn(sees_a_preemption, NULL));
	ASSERT_EQ(0, fini_soon());
	ASSERT_TRUE(whole());
	EXPECT_LE(1, count("\"ph\":\"X\"", "\"end\":\"preempted\""));
	EXPECT_LE(1, count("\"name\":\"preempt\"", "\"ph\":\"i\""));
	EXPECT_EQ(0, failures);
}

/* ---- limits ---- */

static void *yields(void *arg)
{
	for (long i = 0; i < (long)arg; i++)
		fiber_yield();
	return NULL;
}

static void *with_names(void *arg)
{
	join(named("\xc3\xa9t\xc3\xa9", yields));
	join(named("fourteen bytes\xc3\xa9", yields));
	join(named("\xff\xed\xa0\x80\t", yields));
	return NULL;
}

/* ---- pools ---- */

/*
 * Two take turns in one pool, as for each value one of both has to wait; another sends
 * to a plain thread, from a third.
 */
static fiber_chan_t *across, *inside;
enum { SENT = 500 };

static void *sends_inside(void *arg)
{
	for (int i = 0; i < SENT; i++)
		check_eq(0, fiber_chan_send(inside, &i));
	return arg;
}

static void *receives_inside(void *arg)
{
	int v;

	for (int i = 0; i < SENT; i++)
		check_eq(0, fiber_chan_recv(inside, &v));
	return arg;
}

static void *ends_at_once(void *arg)
{
	return arg;
}

static void *sends_across(void *arg)
{
	for (int i = 0; i < SENT; i++)
		check_eq(0, fiber_chan_send(across, &i));
	return arg;
}

static fiber_pool_t *make_pool(const char *name)
{
	struct fiber_pool_attr a = { .size = sizeof(a), .name = name };
	fiber_pool_t *pool = NULL;

	check_eq(0, fiber_pool_create(&pool, &a));
	return pool;
}

static fiber_t *named_in(fiber_pool_t *pool, const char *name,
			 void *(*fn)(void *))
{
	struct fiber_attr a = { .size = sizeof(a), .name = name, .pool = pool };
	fiber_t *f = NULL;

	check_eq(0, fiber_spawn_attr(&f, &a, fn, NULL));
	return f;
}

static void destroy_soon(fiber_pool_t *pool)
{
	int r = 0;

	check(until((r = fiber_pool_destroy(pool)) != -EBUSY));
	check_eq(0, r);
}

/* By a plain thread. */
static void run_pools(void)
{
	fiber_pool_t *cpu, *io;
	fiber_t *f[4];
	int v;

	check_eq(0, start(1, 1 * SEC));
	check_eq(0, fiber_chan_create(&across, sizeof(int), 0));
	check_eq(0, fiber_chan_create(&inside, sizeof(int), 0));
	cpu = make_pool("c\"pu");
	io = make_pool("io");
	f[0] = named_in(cpu, "turns", sends_inside);
	f[1] = named_in(cpu, "turns", receives_inside);
	f[2] = named_in(io, "sends", sends_across);
	f[3] = named_in(FIBER_POOL_DEFAULT, "here", ends_at_once);
	for (int i = 0; i < SENT; i++)
		check_eq(0, fiber_chan_recv(across, &v));
	for (int i = 0; i < 4; i++)
		join(f[i]);
	/* Another has its processor, and its lane. */
	destroy_soon(io);
	io = make_pool("later");
	join(named_in(io, "last", ends_at_once));
	destroy_soon(io);
	destroy_soon(cpu);
	check_eq(0, fini_soon());
}

/* How many slices of that name there are on the lane so labelled; of others. */
static long slices_on(const char *label, const char *name, long *elsewhere)
{
	char key[80], slice[64];
	const char *at;
	unsigned int tid = 0;
	long n;

	snprintf(key, sizeof(key), "\"name\":\"%s\"}", label);
	snprintf(slice, sizeof(slice), "\"name\":\"%s\"", name);
	at = strstr(text, key);
	while (at && at > text && at[-1] != '\n')
		at--;
	if (!at || sscanf(at, "{\"ph\":\"M\",\"pid\":1,\"tid\":%u", &tid) != 1)
		return -1;
	snprintf(key, sizeof(key), "{\"ph\":\"X\",\"pid\":1,\"tid\":%u,", tid);
	n = count(key, slice);
	*elsewhere = count("{\"ph\":\"X\",", slice) - n;
	return n;
}

TEST(pools_have_lanes)
{
	long elsewhere = -1;

	trace_to_file("8192", "100");
	run_pools();
	ASSERT_TRUE(whole());
	EXPECT_EQ(1, count("\"processors\":\"3\"", ""));
	EXPECT_LE(SENT, slices_on("processor 1 (c\\\"pu)", "turns", &elsewhere));
	EXPECT_EQ(0, elsewhere);
	EXPECT_LE(1, slices_on("processor 2 (later)", "sends", &elsewhere));
	EXPECT_EQ(0, elsewhere);
	EXPECT_LE(1, slices_on("processor 2 (later)", "last", &elsewhere));
	EXPECT_EQ(0, elsewhere);
	EXPECT_LE(1, slices_on("processor 0", "here", &elsewhere));
	EXPECT_EQ(0, elsewhere);
	EXPECT_EQ(1, count("\"name\":\"begins\"", "\"pool\":\"c\\\"pu\""));
	EXPECT_EQ(1, count("\"name\":\"begins\"", "\"pool\":\"io\""));
	EXPECT_EQ(1, count("\"name\":\"begins\"", "\"pool\":\"later\""));
	EXPECT_EQ(1, count("\"lostEvents\":0}", ""));
	EXPECT_EQ(0, failures);
}

/* All of it is UTF-8, however a name was cut. */
TEST(names_are_characters)
{
	trace_to_file("4096", "100");
	ASSERT_EQ(0, with_runtime(1, 1 * SEC, with_names, NULL));
	ASSERT_TRUE(whole());
	EXPECT_LE(1, count("\"name\":\"\xc3\xa9t\xc3\xa9\"", "\"ph\":\"X\""));
	EXPECT_LE(1, count("\"name\":\"fourteen bytes\\ufffd\"", ""));
	EXPECT_LE(1, count("\"name\":\"\\ufffd\\ufffd\\ufffd\\ufffd\\u0009\"", ""));
	EXPECT_EQ(0, failures);
}

static void *two_yield(void *arg)
{
	fiber_t *f = spawn(yields, arg);

	yields(arg);
	join(f);
	overtaken = stats().handoffs + stats().preemptions;
	return NULL;
}

/* A full ring keeps the newest; what it costs has a bound. */
TEST(newest_are_kept)
{
	const char *lost;

	overtaken = 1;
	trace_to_file("1024", "100");
	for (int try = 0; try < 10 && overtaken; try++)
		ASSERT_EQ(0, with_runtime(1, SEC, two_yield, (void *)5000));
	ASSERT_TRUE(whole());
	EXPECT_LE(900, count("\"ph\":\"X\"", "\"name\":\""));
	EXPECT_GE(1024, count("\"ph\":\"X\"", "\"name\":\""));
	EXPECT_EQ(1, count("\"name\":\"two_yield\"", "\"end\":\"ended\""));
	lost = strstr(text, "\"lostEvents\":");
	EXPECT_LE(8000, atol(lost + 13));
	EXPECT_EQ(0, failures);
}

static int values = 100000;

/* Who parks switches, whichever thread it is on; who yields may not. */
static void *sends(void *ch)
{
	for (int i = 0; i < values; i++)
		check_eq(0, fiber_chan_send(ch, &i));
	return NULL;
}

static void *receives(void *arg)
{
	fiber_chan_t *ch;
	fiber_t *f;
	int v;

	check_eq(0, fiber_chan_create(&ch, sizeof(v), 0));
	f = spawn(sends, ch);
	for (int i = 0; i < values; i++)
		check_eq(0, fiber_chan_recv(ch, &v));
	join(f);
	check_eq(0, fiber_chan_destroy(ch));
	return NULL;
}

TEST(cost_is_bounded)
{
	long n;

	trace_to_file("65536", "1");
	ASSERT_EQ(0, with_runtime(1, 1 * SEC, receives, NULL));
	ASSERT_TRUE(whole());
	EXPECT_LE(1, count("\"name\":\"not recorded\"", "\"ph\":\"X\""));
	n = count("\"ph\":\"X\"", "");
	EXPECT_LE(1, n);
	EXPECT_GE(90000, n);
	EXPECT_EQ(0, failures);
}

TEST(what_is_wrong_is_told_at_the_start)
{
	setenv("FIBER_TRACE", "/nowhere/at/all", 1);
	EXPECT_EQ(-ENOENT, fiber_init(NULL));
	setenv("FIBER_TRACE", "/", 1);
	EXPECT_EQ(-EISDIR, fiber_init(NULL));
	trace_to_file("4096", "0");
	EXPECT_EQ(-EINVAL, fiber_init(NULL));
	trace_to_file("7", "3");
	EXPECT_EQ(-EINVAL, fiber_init(NULL));
	setenv("FIBER_TRACE", "", 1);
	EXPECT_EQ(0, fiber_init(NULL));
	EXPECT_EQ(0, fini_soon());
	EXPECT_EQ(-1, size_of(path));
}

/* Who reads it now may be gone at the end, and the program would wait for another. */
TEST(no_fifo)
{
	int fd;

	snprintf(path, sizeof(path), "/tmp/fiber-trace.%d", (int)getpid());
	ASSERT_EQ(0, mkfifo(path, 0600));
	setenv("FIBER_TRACE", path, 1);
	EXPECT_EQ(-ENXIO, fiber_init(NULL));
	fd = open(path, O_RDONLY | O_NONBLOCK);
	EXPECT_EQ(-ESPIPE, fiber_init(NULL));
	unsetenv("FIBER_TRACE");
	setenv("FIBER_CONTENTION", path, 1);
	EXPECT_EQ(-ESPIPE, fiber_init(NULL));
	close(fd);
	unlink(path);
}

/* ---- counts ---- */

static void *both(void *arg)
{
	receives(arg);
	if (fiber_features() & FIBER_FEATURE_PREEMPT)
		sees_a_preemption(arg);
	return NULL;
}

/* The number behind this word; -1: it is not there. */
static long said(const char *word)
{
	const char *at = strstr(text, word);

	return at ? atol(at + strlen(word)) : -1;
}

static void run_both(void)
{
	check_eq(0, with_runtime(1, 1 * MS, both, NULL));
}

/* A process ran that with FIBER_STATS, well; what it said at its end is the text. */
static bool counted(void (*run)(void))
{
	int status = 0;
	pid_t pid;

	snprintf(path, sizeof(path), "/tmp/fiber-stats.%d", (int)getpid());
	pid = fork();
	if (!pid) {
		setenv("FIBER_STATS", "1", 1);
		if (!freopen(path, "w", stderr))
			_exit(9);
		run();
		_exit(failures ? 8 : 7);
	}
	return pid == waitpid(pid, &status, 0) && WIFEXITED(status) &&
	       WEXITSTATUS(status) == 7 && read_file(path);
}

TEST(how_long_the_scheduler_lets_wait)
{
	ASSERT_TRUE(counted(run_both));
	EXPECT_LE(500, said("fiber: ready to run: "));
	EXPECT_LE(1, said(" seen, half below "));
	EXPECT_NE(NULL, strstr(text, "fiber: wake: "));
	EXPECT_NE(NULL, strstr(text, "fiber: handoff: "));
	setenv("FIBER_STATS", "maybe", 1);
	EXPECT_EQ(-EINVAL, fiber_init(NULL));
	EXPECT_EQ(0, failures);
}

TEST(how_long_pools_let_wait)
{
	setenv("FIBER_TRACE_COST", "100", 1);
	ASSERT_TRUE(counted(run_pools));
	EXPECT_LE(0, said("fiber: ready to run: "));
	EXPECT_LE(SENT, said("fiber: pool c\"pu: ready to run: "));
	EXPECT_LE(1, said("fiber: pool later: wake: "));
	/* What "io" did is not told of who has its processor now. */
	EXPECT_EQ(-1, said("fiber: pool io: "));
	EXPECT_LE(1, said("fiber: ended pools: ready to run: "));
	EXPECT_EQ(0, failures);
}

/* ---- another process asks, as fiberctl trace does ---- */

extern const struct fiber_debug fiber_debug_v1;

static uint32_t *trace_word(uint32_t offset)
{
	return (uint32_t *)(uintptr_t)(fiber_debug_v1.trace.at + offset);
}

static bool recording(void)
{
	return __atomic_load_n(trace_word(fiber_debug_v1.trace.outside),
			       __ATOMIC_ACQUIRE) ==
	       fiber_debug_v1.trace.outside_on;
}

static uint32_t asked(void)
{
	return __atomic_load_n(trace_word(fiber_debug_v1.trace.asked),
			       __ATOMIC_RELAXED);
}

static void ask(uint32_t value)
{
	__atomic_store_n(trace_word(fiber_debug_v1.trace.asked), value,
			 __ATOMIC_RELAXED);
}

/* Events ever recorded. */
static uint64_t recorded(unsigned int processors)
{
	char *ring = *(char **)trace_word(fiber_debug_v1.trace.ring);
	uint64_t n = 0;

	for (unsigned int i = 0; ring && i < processors; i++)
		n += __atomic_load_n((uint64_t *)(ring +
				i * fiber_debug_v1.trace.ring_size +
				fiber_debug_v1.trace.n), __ATOMIC_ACQUIRE);
	return n;
}

/* Until c is so; the fiber that waits keeps its processor switching. */
#define yield_until(c)	do {						\
	while (!(c))							\
		fiber_yield();						\
} while (0)

static atomic_ulong yielded;

static void *yields_on(void *arg)
{
	yield_until(atomic_load(&go) || !atomic_fetch_add(&yielded, 1));
	return NULL;
}

static void *is_asked(void *arg)
{
	fiber_t *f[3];
	uint64_t n;

	atomic_store(&yielded, 1);
	for (int i = 0; i < 3; i++)	/* more than processors: they switch */
		f[i] = spawn(yields_on, NULL);
	ask(1);
	yield_until(recording() && recorded(2) > 500);
	ask(0);
	yield_until(!recording());
	yield_until(!asked());		/* a moment later */
	/* Each looks once more; then it is as it was before. */
	atomic_store(&yielded, 1);
	yield_until(atomic_load(&yielded) > 1000);
	n = recorded(2);
	yield_until(atomic_load(&yielded) > 20000);
	check(recorded(2) - n <= 2);	/* of who was about to */
	/* Who asked says no more: it ends by itself. */
	ask(77);
	yield_until(recording() && recorded(2) > n);
	yield_until(!recording());
	yield_until(!asked());		/* a moment later */
	atomic_store(&go, 1);
	for (int i = 0; i < 3; i++)
		join(f[i]);
	return NULL;
}

TEST(another_process_asks)
{
	atomic_store(&go, 0);
	ASSERT_EQ(0, with_runtime(2, 1 * SEC, is_asked, NULL));
	EXPECT_EQ(NULL, *(void **)trace_word(fiber_debug_v1.trace.ring));
	/* It began while another asked, and ends so. */
	ASSERT_EQ(0, start(2, 0));
	ask(1);
	join(spawn(yields, (void *)1000));
	ASSERT_EQ(0, fini_soon());
	EXPECT_EQ(0, asked());
	EXPECT_FALSE(recording());
	EXPECT_EQ(0, failures);
}

/* ---- ends ---- */

static void *exits(void *arg)
{
	exit(3);
}

static void *dies(void *arg)
{
	fiber_no_preempt_end();
	return NULL;
}

/* In a process of its own; its wait status. The file is whole. */
static int ends_by(void *(*fn)(void *))
{
	int status = 0;
	pid_t pid = fork();

	if (!pid) {
		trace_to_file("4096", "100");
		if (!freopen("/dev/null", "w", stderr))
			_exit(9);
		_exit(with_runtime(2, 1 * SEC, fn, NULL) ? 8 : 7);
	}
	check_eq(pid, waitpid(pid, &status, 0));
	snprintf(path, sizeof(path), "/tmp/fiber-trace.%d", (int)pid);
	check(whole());
	return status;
}

TEST(written_whatever_ends_it)
{
	int status = ends_by(exits);

	EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 3);
	EXPECT_LE(1, count("\"name\":\"exits\"", "\"end\":\"the trace ends here\""));
	status = ends_by(dies);
	EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
	EXPECT_LE(1, count("\"name\":\"dies\"", "\"end\":\"the trace ends here\""));
	EXPECT_EQ(0, failures);
}

static void *exits_soon(void *when_written)
{
	while (when_written && size_of(path) <= 0)
		sched_yield();
	exit(3);
}

/* exit and fiber_fini at once: the second waits until the first has written. */
static void *two_ends(void *exit_last)
{
	pthread_t t;

	values = 4000;
	if (start(2, 1 * SEC))
		_exit(9);
	join(spawn(receives, NULL));
	pthread_create(&t, NULL, exits_soon, exit_last);
	while (!exit_last && size_of(path) <= 0)
		sched_yield();
	fini_soon();
	for (;;)
		pause();
}

/* In a process of its own, in a child of the caller. */
static int ends_twice(void *exit_last)
{
	int status = 0;
	pid_t pid = fork();

	if (!pid) {
		alarm(50);
		trace_to_file("4096", "100");
		two_ends(exit_last);
	}
	check_eq(pid, waitpid(pid, &status, 0));
	snprintf(path, sizeof(path), "/tmp/fiber-trace.%d", (int)pid);
	check(whole());
	return status;
}

TEST(two_ends_at_once)
{
	for (int i = 0; i < 4; i++)
		EXPECT_EQ(3 << 8, ends_twice(i % 2 ? path : NULL));
	EXPECT_EQ(0, failures);
}

/* It does not kill the program, and is not left for later. */
TEST(limit_of_a_file)
{
	struct rlimit before, limit;
	int keep = dup(2), null = open("/dev/null", O_WRONLY), r;
	sigset_t pending;

	ASSERT_EQ(0, getrlimit(RLIMIT_FSIZE, &before));
	limit = before;
	limit.rlim_cur = 4096;
	trace_to_file("4096", "100");
	values = 4000;
	dup2(null, 2);			/* it may be a file */
	setrlimit(RLIMIT_FSIZE, &limit);
	r = with_runtime(2, 1 * SEC, receives, NULL);
	setrlimit(RLIMIT_FSIZE, &before);
	dup2(keep, 2);
	EXPECT_EQ(0, r);
	EXPECT_EQ(4096, size_of(path));
	unlink(path);
	EXPECT_EQ(0, sigpending(&pending));
	EXPECT_EQ(0, sigismember(&pending, SIGXFSZ));
	EXPECT_EQ(0, failures);
}

static fiber_mutex_t nobodys = FIBER_MUTEX_INIT;

static void *misuses(void *arg)
{
	fiber_mutex_unlock(&nobodys);
	return NULL;
}

static void *waits_for_ever(void *arg)
{
	fiber_event_t never = FIBER_EVENT_INIT;

	fiber_event_wait(&never);
	return NULL;
}

/* For ever, but the compiler cannot know. */
static volatile long depth_wanted = -1;

static __attribute__((noinline)) long deeper(long n)
{
	volatile char here[256];

	here[n % 256] = (char)n;
	return n == depth_wanted ? n : deeper(n + 1) + here[n % 256];
}

static void *overflows(void *arg)
{
	return (void *)deeper(0);
}

/* Of what the library reports, the last slice is that of who did it. */
TEST(written_when_the_library_ends_it)
{
	int status;

	setenv("FIBER_CHECK", "1", 1);
	setenv("FIBER_DEADLOCK", "abort", 1);
	status = ends_by(misuses);
	EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
	EXPECT_LE(1, count("\"name\":\"misuses\"", "\"end\":\"the trace ends here\""));
	status = ends_by(waits_for_ever);
	EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
	EXPECT_LE(1, count("\"name\":\"waits_for_ever\"", "\"end\":\"parked: event\""));
	EXPECT_EQ(0, count("\"name\":\"waits_for_ever\"", "ends here"));
	status = ends_by(overflows);
	EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
	EXPECT_LE(1, count("\"name\":\"overflows\"", "\"end\":\"the trace ends here\""));
	EXPECT_EQ(0, failures);
}

TEST(child_of_a_fork_writes_none)
{
	int status = 0;
	pid_t pid;

	trace_to_file("4096", "3");
	ASSERT_EQ(0, start(2, 0));
	EXPECT_EQ(0, size_of(path));
	pid = fork();
	if (!pid)
		exit(0);
	ASSERT_EQ(pid, waitpid(pid, &status, 0));
	EXPECT_EQ(0, status);
	EXPECT_EQ(0, size_of(path));
	join(spawn(yields, (void *)10));
	ASSERT_EQ(0, fini_soon());
	EXPECT_TRUE(whole());
	EXPECT_EQ(0, failures);
}

TEST_HARNESS_MAIN
