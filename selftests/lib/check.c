// SPDX-License-Identifier: GPL-2.0-only
/*
 * What is said of a program that does something wrong: with FIBER_CHECK=1, and without
 * it where the program cannot go on. Each case is a child, whose stderr is read.
 */
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "common.h"

static char said[16384];

/* Lines of what is said begin so. */
#define LIBRARY	"fiber: "

static int status_of(pid_t pid)
{
	int status = -1;

	check_eq(pid, waitpid(pid, &status, 0));
	return status;
}

/* What body says on stderr is in `said` then; returns its status. */
static int hear(int (*body)(void))
{
	int fd = memfd_create("said", MFD_CLOEXEC), status;
	pid_t pid = fork();
	ssize_t n;

	if (!pid) {
		struct rlimit none = { 0, 0 };

		setrlimit(RLIMIT_CORE, &none);
		dup2(fd, STDERR_FILENO);
		clean_environment();
		setenv("FIBER_CHECK", "1", 1);
		_exit(body());
	}
	status = status_of(pid);
	n = pread(fd, said, sizeof(said) - 1, 0);
	said[n > 0 ? n : 0] = 0;
	close(fd);
	return status;
}

static bool aborts(int (*body)(void))
{
	int status = hear(body);

	return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

static int lines_said(void)
{
	int n = 0;

	for (const char *s = said; (s = strstr(s, LIBRARY)); s++)
		n++;
	return n;
}

static bool is_said(const char *words)
{
	if (strstr(said, words))
		return true;
	failed(__FILE__, __LINE__, "\"%s\" is not said, but: %s", words, said);
	return false;
}

/* ---- a second join ---- */

static void *returns(void *arg)
{
	return arg;
}

__attribute__((noinline)) static void joins_again(fiber_t *f)
{
	fiber_join(f, NULL);
	__asm__ volatile("");	/* no tail call */
}

static void *joins_twice(void *arg)
{
	fiber_t *f = spawn(returns, NULL);

	join(f);
	joins_again(f);
	return arg;
}

static int joins_twice_in_fiber(void)
{
	return with_runtime(1, 0, joins_twice, NULL);
}

static int joins_twice_in_thread(void)
{
	check_eq(0, start(1, 0));
	joins_twice(NULL);
	return 0;
}

TEST(second_join)
{
	EXPECT_TRUE(aborts(joins_twice_in_fiber));
	EXPECT_TRUE(is_said("is joined or detached a second time\n"));
	EXPECT_TRUE(is_said("    joins_again+0x"));
	EXPECT_TRUE(is_said("    joins_twice+0x"));
	EXPECT_TRUE(aborts(joins_twice_in_thread));
	EXPECT_TRUE(is_said("    joins_again+0x"));
	EXPECT_EQ(0, failures);
}

/* ---- what a fiber holds when it ends ---- */

static fiber_mutex_t mutex = FIBER_MUTEX_INIT;
static fiber_mutex_t recursive = FIBER_MUTEX_RECURSIVE_INIT;
static fiber_rwlock_t rwlock = FIBER_RWLOCK_INIT;
static fiber_cond_t cond = FIBER_COND_INIT;
static atomic_int arrived;

static void *forgets(void *arg)
{
	check_eq(0, ((int (*)(void))arg)());
	return NULL;
}

__attribute__((noinline)) static int locks(void)
{
	int r = fiber_mutex_lock(&mutex);

	__asm__ volatile("");	/* no tail call */
	return r;
}

__attribute__((noinline)) static int tries(void)
{
	int r = fiber_mutex_try_lock(&mutex);

	__asm__ volatile("");
	return r;
}

/* Handed over, or taken after a wait. */
__attribute__((noinline)) static int waits_and_locks(void)
{
	int r;

	atomic_fetch_add(&arrived, 1);
	r = fiber_mutex_lock_until(&mutex, now_ns() + 3600 * SEC);
	__asm__ volatile("");
	return r;
}

__attribute__((noinline)) static int once_too_often(void)
{
	int r = fiber_mutex_lock(&recursive);

	check_eq(0, fiber_mutex_lock(&recursive));
	check_eq(0, fiber_mutex_unlock(&recursive));
	return r;
}

__attribute__((noinline)) static int writes(void)
{
	int r = fiber_rwlock_wrlock(&rwlock);

	__asm__ volatile("");
	return r;
}

/* It has it again, and the note of where it locked it first. */
__attribute__((noinline)) static int locks_and_waits(void)
{
	int r = fiber_mutex_lock(&mutex);

	check_eq(-ETIMEDOUT, fiber_cond_wait_until(&cond, &mutex, 1));
	return r;
}

static int (*forgotten)(void);

static void *starts_named(void *arg)
{
	struct fiber_attr attr = { .size = sizeof(attr), .name = "forgetful" };
	fiber_t *f;

	if (forgotten == waits_and_locks)
		check_eq(0, fiber_mutex_lock(&mutex));
	check_eq(0, fiber_spawn_attr(&f, &attr, forgets, (void *)forgotten));
	if (forgotten == waits_and_locks) {
		while (!atomic_load(&arrived))
			fiber_yield();
		settle();
		check_eq(0, fiber_mutex_unlock(&mutex));
	}
	join(f);
	return arg;
}

static int forgets_it(void)
{
	return with_runtime(1, 0, starts_named, NULL);
}

TEST(fiber_ends_with_a_lock)
{
	static const struct {
		int (*fn)(void);
		const char *kind, *where;
	} ends[] = {
		{ locks, "mutex", "locked at locks+0x" },
		{ tries, "mutex", "locked at tries+0x" },
		{ waits_and_locks, "mutex", "locked at waits_and_locks+0x" },
		{ once_too_often, "mutex", "locked at once_too_often+0x" },
		{ locks_and_waits, "mutex", "locked at locks_and_waits+0x" },
		{ writes, "rwlock", "locked at writes+0x" },
	};
	char words[64];

	for (size_t i = 0; i < ARRAY_SIZE(ends); i++) {
		forgotten = ends[i].fn;
		EXPECT_TRUE(aborts(forgets_it));
		snprintf(words, sizeof(words), "'forgetful' has ended with the %s 0x",
			 ends[i].kind);
		EXPECT_TRUE(is_said(words));
		EXPECT_TRUE(is_said(ends[i].where));
		EXPECT_TRUE(is_said("started with forgets"));
	}
	EXPECT_EQ(0, failures);
}

/* ---- nothing wrong ---- */

enum { CAREFUL = 6, TURNS = 200 };

static int number, wanted;

static void *signals(void *arg)
{
	check_eq(0, fiber_mutex_lock(&mutex));
	wanted++;
	check_eq(0, fiber_cond_broadcast(&cond));
	check_eq(0, fiber_mutex_unlock(&mutex));
	return arg;
}

static void *gives_back(void *arg)
{
	check_eq(0, fiber_rwlock_unlock(&rwlock));
	return arg;
}

static void one_turn(void)
{
	fiber_t *f;

	check_eq(0, fiber_mutex_lock(&mutex));
	number++;
	f = spawn(signals, NULL);
	while (!wanted)
		check_eq(0, fiber_cond_wait(&cond, &mutex));
	wanted--;
	check_eq(0, fiber_mutex_unlock(&mutex));
	join(f);
	while (fiber_mutex_try_lock(&recursive))
		fiber_yield();
	check_eq(0, fiber_mutex_lock(&recursive));
	check_eq(0, fiber_mutex_unlock(&recursive));
	check_eq(0, fiber_mutex_unlock(&recursive));
	check_eq(0, fiber_rwlock_wrlock(&rwlock));
	fiber_yield();
	check_eq(0, fiber_rwlock_unlock(&rwlock));
	check_eq(0, fiber_rwlock_rdlock(&rwlock));
	join(spawn(gives_back, NULL));		/* allowed */
}

static void *is_careful(void *arg)
{
	fiber_no_preempt_begin();
	number += 0;
	fiber_no_preempt_end();
	for (int i = 0; i < TURNS; i++)
		one_turn();
	return arg;
}

static void *reads_until(void *event)
{
	check_eq(0, fiber_rwlock_rdlock(&rwlock));
	check_eq(0, fiber_event_wait(event));
	return NULL;
}

/* One by one they end, whoever's lock it was that was given back. */
static void others_give_back(void)
{
	fiber_event_t end[CAREFUL];
	fiber_t *f[CAREFUL];

	for (int i = 0; i < CAREFUL; i++) {
		check_eq(0, fiber_event_init(&end[i], 0));
		f[i] = spawn(reads_until, &end[i]);
	}
	settle();
	for (int i = 0; i < CAREFUL; i++) {
		join(spawn(gives_back, NULL));
		check_eq(0, fiber_event_set(&end[i]));
		join(f[i]);
	}
}

static void *is_handed_it(void *arg)
{
	check_eq(0, fiber_mutex_lock(&mutex));
	check_eq(0, fiber_cond_wait(&cond, &mutex));
	check_eq(0, fiber_mutex_unlock(&mutex));
	return arg;
}

static void *gives_up(void *arg)
{
	check_eq(-ETIMEDOUT, fiber_mutex_lock_until(&mutex, fiber_now() + 20 * MS));
	return arg;
}

/* Who waits for a condition gets the mutex from who unlocks it, as it starves. */
static void it_is_handed_over(void)
{
	fiber_t *f[2];

	f[0] = spawn(is_handed_it, NULL);
	settle();
	check_eq(0, fiber_mutex_lock(&mutex));
	f[1] = spawn(gives_up, NULL);
	check_eq(0, fiber_mutex_unlock(&mutex));
	check_eq(0, fiber_mutex_lock(&mutex));
	fiber_yield();
	check_eq(0, fiber_cond_signal(&cond));
	join(f[1]);
	check_eq(0, fiber_mutex_unlock(&mutex));
	join(f[0]);
}

static fiber_mutex_t reused;
static fiber_rwlock_t reused_too;

static void makes_them_anew(void)
{
	check_eq(0, fiber_mutex_init(&reused, FIBER_MUTEX_RECURSIVE));
	check_eq(0, fiber_rwlock_init(&reused_too));
	check_eq(0, fiber_mutex_lock(&reused));
	check_eq(0, fiber_rwlock_wrlock(&reused_too));
	check_eq(0, fiber_rwlock_unlock(&reused_too));
	check_eq(0, fiber_mutex_unlock(&reused));
}

static void *leaves_them_locked(void *event)
{
	check_eq(0, fiber_mutex_lock(&reused));
	check_eq(0, fiber_rwlock_wrlock(&reused_too));
	if (!event) {
		makes_them_anew();
		return NULL;
	}
	atomic_fetch_add(&arrived, 1);
	check_eq(0, fiber_event_wait(event));
	return NULL;
}

/* Memory that was a lock is another one, by the same fiber or a plain thread. */
static void memory_is_used_again(void)
{
	fiber_event_t end;
	fiber_t *f;

	check_eq(0, fiber_event_init(&end, 0));
	makes_them_anew();
	join(spawn(leaves_them_locked, NULL));
	atomic_store(&arrived, 0);
	f = spawn(leaves_them_locked, &end);
	check(until(arrived));
	makes_them_anew();
	check_eq(0, fiber_event_set(&end));
	join(f);
}

static void *main_is_careful(void *arg)
{
	if (arg)
		it_is_handed_over();
	fiber_t *f[CAREFUL];

	others_give_back();
	for (int i = 0; i < CAREFUL; i++)
		f[i] = spawn(is_careful, NULL);
	for (int i = 0; i < CAREFUL; i++)
		join(f[i]);
	return arg;
}

static int all_are_careful(void)
{

	for (unsigned int processors = 1; processors <= 2; processors++) {
		check_eq(0, start(processors, 1 * MS));
		join(spawn(main_is_careful, processors == 1 ? &mutex : NULL));
		memory_is_used_again();
		check_eq(0, fiber_mutex_destroy(&mutex));
		check_eq(0, fiber_mutex_destroy(&recursive));
		check_eq(0, fiber_rwlock_destroy(&rwlock));
		check_eq(0, fini_soon());
	}
	check_eq(2 * CAREFUL * TURNS, number);
	return failures;
}

TEST(nothing_is_told_of_the_careful)
{
	EXPECT_EQ(0, hear(all_are_careful));
	EXPECT_STREQ("", said);
}

/* ---- inside fiber_no_preempt_begin ---- */

static void parks(void)
{
	fiber_sleep(MS);
}

static void waits_in_queue(void)
{
	check_eq(0, fiber_mutex_lock(&mutex));
	fiber_no_preempt_end();
	spawn(forgets, (void *)locks);		/* it waits */
	fiber_no_preempt_begin();
	check_eq(0, fiber_cond_wait(&cond, &mutex));
}

static void spawns(void)
{
	spawn(returns, NULL);
}

static void (*inside)(void);

static void *goes_wrong(void *arg)
{
	fiber_set_name(fiber_self(), "critical");
	fiber_no_preempt_begin();
	inside();
	fiber_no_preempt_end();
	return arg;
}

static int goes_wrong_inside(void)
{
	return with_runtime(1, 0, goes_wrong, NULL);
}

TEST(parks_inside_no_preempt)
{
	static const struct {
		void (*fn)(void);
		const char *where;
	} wrongs[] = {
		{ parks, "goes_wrong+0x" }, { fiber_yield, "goes_wrong+0x" },
		{ waits_in_queue, "waits_in_queue+0x" }, { spawns, "spawns+0x" },
	};

	for (size_t i = 0; i < ARRAY_SIZE(wrongs); i++) {
		inside = wrongs[i].fn;
		EXPECT_TRUE(aborts(goes_wrong_inside));
		EXPECT_TRUE(is_said("'critical' parks, yields or spawns inside fiber_no_preempt_begin"));
		EXPECT_TRUE(is_said(wrongs[i].where));
	}
	EXPECT_EQ(0, failures);
}

/* How: */
enum { RETURNS, EXITS, DESTROYS, ENDS };
static int how;
static fiber_key_t slot;

static void begins(void *value)
{
	(void)value;
	fiber_no_preempt_begin();
}

static void *ends_inside(void *arg)
{
	fiber_set_name(fiber_self(), "critical");
	if (how == DESTROYS) {
		check_eq(0, fiber_local_create(&slot, begins));
		check_eq(0, fiber_local_set(slot, &slot));
		return arg;
	}
	fiber_no_preempt_begin();
	if (how == EXITS)
		fiber_exit(NULL);
	return arg;
}

static int one_ends_inside(void)
{
	return with_runtime(1, 0, ends_inside, NULL);
}

TEST(ends_inside_no_preempt)
{
	for (how = 0; how < ENDS; how++) {
		EXPECT_TRUE(aborts(one_ends_inside));
		EXPECT_TRUE(is_said("'critical' has ended inside fiber_no_preempt_begin"));
		EXPECT_TRUE(is_said("started with ends_inside"));
		EXPECT_EQ(NULL, strstr(said, "parks"));
	}
	EXPECT_EQ(0, failures);
}

/* ---- handlers of fork ---- */

static void locks_mutex(void)
{
	check_eq(0, fiber_mutex_lock(&mutex));
}

static void unlocks_mutex(void)
{
	check_eq(0, fiber_mutex_unlock(&mutex));
}

static void locks_the_others(void)
{
	check_eq(0, fiber_mutex_lock(&recursive));
	check_eq(0, fiber_mutex_lock(&recursive));
	check_eq(0, fiber_rwlock_wrlock(&rwlock));
}

static void unlocks_the_others(void)
{
	check_eq(0, fiber_rwlock_unlock(&rwlock));
	check_eq(0, fiber_mutex_unlock(&recursive));
	check_eq(0, fiber_mutex_unlock(&recursive));
}

/* The child has what the parent had locked, and its child, too. */
static void *forks(void *depth)
{
	pid_t pid = fork();

	if (!pid) {
		locks_mutex();
		unlocks_mutex();
		if (depth)
			forks(NULL);
		_exit(failures);
	}
	check_eq(0, status_of(pid));
	return NULL;
}

/* Handlers from before the start and after it, in a fiber and in a plain thread. */
static int forks_with_locks(void)
{
	pthread_atfork(locks_mutex, unlocks_mutex, unlocks_mutex);
	check_eq(0, start(2, 0));
	pthread_atfork(locks_the_others, unlocks_the_others, unlocks_the_others);
	join(spawn(forks, &mutex));
	forks(&mutex);
	check_eq(0, fini_soon());
	return failures;
}

TEST(nothing_is_told_of_handlers_of_fork)
{
	EXPECT_EQ(0, hear(forks_with_locks));
	EXPECT_STREQ("", said);
}

static void *waits_for_mutex(void *arg)
{
	locks_mutex();
	unlocks_mutex();
	return arg;
}

static void *waits_for_rwlock(void *arg)
{
	check_eq(0, fiber_rwlock_wrlock(&rwlock));
	check_eq(0, fiber_rwlock_unlock(&rwlock));
	return arg;
}

/* Those who wait are the parent's: nothing is handed to them in the child. */
static void *forks_with_waiters(void *arg)
{
	uint64_t soon = 10 * SEC;
	fiber_t *f[2];
	pid_t pid;

	locks_mutex();
	check_eq(0, fiber_rwlock_wrlock(&rwlock));
	f[0] = spawn(waits_for_mutex, NULL);
	f[1] = spawn(waits_for_rwlock, NULL);
	settle();
	pid = fork();
	if (!pid) {
		soon += fiber_now();
		for (int i = 0; i < 2; i++) {
			unlocks_mutex();
			check_eq(0, fiber_rwlock_unlock(&rwlock));
			check_eq(0, fiber_mutex_lock_until(&mutex, soon));
			check_eq(0, fiber_rwlock_wrlock_until(&rwlock, soon));
		}
		_exit(failures);
	}
	check_eq(0, status_of(pid));
	unlocks_mutex();
	check_eq(0, fiber_rwlock_unlock(&rwlock));
	join(f[0]);
	join(f[1]);
	return arg;
}

TEST(children_have_none_of_those_who_wait)
{
	ASSERT_EQ(0, with_runtime(1, 0, forks_with_waiters, NULL));
	EXPECT_EQ(0, failures);
}

/* ---- SIGURG ---- */

static void on_urgent(int sig)
{
	(void)sig;
}

static atomic_int stop;

static void *spins(void *arg)
{
	while (!atomic_load_explicit(&stop, memory_order_relaxed))
		;
	return arg;
}

static int takes_sigurg(void)
{
	check_eq(0, start(1, 1 * MS));
	if (on_kernel())		/* it is the program's there */
		dprintf(STDERR_FILENO, "no signal\n");
	signal(SIGURG, on_urgent);
	check_eq(0, fini_soon());
	return failures;
}

/* It is missed, and said, while somebody waits for a hog. */
static int takes_sigurg_and_spins(void)
{
	struct stat st = { 0 };
	fiber_t *hog, *other;

	check_eq(0, start(1, 1 * MS));
	if (on_kernel()) {
		dprintf(STDERR_FILENO, "no signal\n");
		return fini_soon();
	}
	signal(SIGURG, on_urgent);
	hog = spawn(spins, NULL);
	other = spawn(returns, NULL);
	check(until(!fstat(STDERR_FILENO, &st) && st.st_size > 0));
	atomic_store(&stop, 1);
	join(hog);
	join(other);
	check_eq(0, fini_soon());
	return failures;
}

static void *nothing_wrong(void *arg)
{
	struct sigaction sa;

	check_eq(0, sigaction(SIGURG, NULL, &sa));
	return arg;
}

static int leaves_sigurg(void)
{
	return with_runtime(2, 1 * MS, nothing_wrong, NULL) + failures;
}

TEST(sigurg_is_taken)
{
	static int (*const takes[])(void) = {
		takes_sigurg, takes_sigurg_and_spins,
	};

	for (int i = 0; i < 2; i++) {
		EXPECT_EQ(0, hear(takes[i]));
		if (strstr(said, "no signal"))
			SKIP(return, "with the module no signal is used");
		EXPECT_TRUE(is_said("the program has taken SIGURG"));
		EXPECT_EQ(1, lines_said());
	}
	EXPECT_EQ(0, hear(leaves_sigurg));
	EXPECT_EQ(0, lines_said());
	EXPECT_EQ(0, failures);
}

/* ---- wrong settings ---- */

static const char * const wrong[][2] = {
	{ "FIBER_CHECK", "yes" }, { "FIBER_CHECK", "2" },
	{ "FIBER_STACK_MARKS", "x" }, { "FIBER_STACK_GUARD", "foo" },
	{ "FIBER_PROCESSORS", "0" }, { "FIBER_PROCESSORS", "1025" },
	{ "FIBER_QUANTUM_US", "1" }, { "FIBER_GRACE_US", "x" },
	{ "FIBER_SEED", "-1" }, { "FIBER_IO", "foo" }, { "FIBER_BACKEND", "foo" },
	{ "FIBER_DEADLOCK", "foo" }, { "FIBER_DUMP_SIGNAL", "foo" },
	{ "FIBER_CONTENTION", "/nowhere/file" }, { "FIBER_TRACE", "/nowhere/file" },
	{ "FIBER_COLD_MS", "9" }, { "FIBER_COLD_MS", "x" },
};

static int which;

static int starts_wrong(void)
{
	setenv(wrong[which][0], wrong[which][1], 1);
	return fiber_init(NULL) < 0 ? 0 : 1;
}

/* One line each, that begins with the setting and says what is wanted. */
TEST(wrong_settings_say_one_line)
{
	char line[64];

	for (which = 0; which < (int)ARRAY_SIZE(wrong); which++) {
		EXPECT_EQ(0, hear(starts_wrong));
		snprintf(line, sizeof(line), LIBRARY "%s=%s: ", wrong[which][0],
			 wrong[which][1]);
		EXPECT_TRUE(is_said(line));
		EXPECT_EQ(1, lines_said());
	}
	EXPECT_EQ(0, failures);
}

static int wants_cold_stacks_with_a_seed(void)
{
	setenv("FIBER_COLD_MS", "100", 1);
	setenv("FIBER_SEED", "1", 1);
	check_eq(0, fiber_init(NULL));
	check_eq(0, fiber_features() & FIBER_FEATURE_COLD);
	check_eq(0, fini_soon());
	return failures;
}

/* It is granted, but for that, and one line says so. */
TEST(settings_that_exclude_each_other)
{
	EXPECT_EQ(0, hear(wants_cold_stacks_with_a_seed));
	EXPECT_TRUE(is_said("stay in memory: with a seed"));
	EXPECT_EQ(1, lines_said());
	EXPECT_EQ(0, failures);
}

TEST_HARNESS_MAIN
