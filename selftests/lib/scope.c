// SPDX-License-Identifier: GPL-2.0-only
/* Scopes: who owns fibers, errors, cancellation, deadlines, shields. */
#include "common.h"

static fiber_chan_t *chan(size_t elem, size_t cap)
{
	fiber_chan_t *ch = NULL;

	check_eq(0, fiber_chan_create(&ch, elem, cap));
	return ch;
}

/* Both backends, and more processors than one. */
static void everywhere(void *(*fn)(void *), void *arg)
{
	check_eq(0, with_runtime(1, 0, fn, arg));
	check_eq(0, with_runtime(3, 200 * US, fn, arg));
}

static atomic_int ended;

static int ends_later(void *arg)
{
	check_eq(0, fiber_sleep(MS));
	atomic_fetch_add(&ended, 1);
	return (int)(intptr_t)arg;
}

static int waits_for_ever(void *arg)
{
	uint64_t v;
	int r = fiber_chan_recv(arg, &v);

	atomic_fetch_add(&ended, 1);
	check_eq(-ECANCELED, r);
	/* It is a state: again and again. */
	check_eq(-ECANCELED, fiber_chan_recv(arg, &v));
	check_eq(-ECANCELED, fiber_sleep(1));
	check_eq(-ECANCELED, fiber_sleep_until(1));
	check_eq(-ECANCELED, fiber_select(NULL, 0, FIBER_NEVER));
	check_eq(-ECANCELED, fiber_cancelled());
	check_eq(-EAGAIN, fiber_chan_try_recv(arg, &v));
	return r;
}

/* ---- who owns whom ---- */

static void *owns(void *arg)
{
	fiber_scope_t s;

	check_eq(0, fiber_scope_open(&s, NULL));
	check_eq(0, fiber_scope_close(&s));
	ended = 0;
	check_eq(0, fiber_scope_open(&s, NULL));
	for (int i = 0; i < 100; i++)
		check_eq(0, fiber_scope_spawn(&s, ends_later, NULL));
	check_eq(0, fiber_scope_close(&s));
	check_eq(100, ended);
	check_eq(0, fiber_cancelled());
	return arg;
}

TEST(close_waits_for_all)
{
	everywhere(owns, NULL);
	EXPECT_EQ(0, failures);
}

TEST(plain_thread_opens_one)
{
	fiber_scope_t s;

	ASSERT_EQ(-EPERM, fiber_scope_open(&s, NULL));
	ASSERT_EQ(0, start(2, 0));
	owns(NULL);
	ASSERT_EQ(0, fiber_fini());
	EXPECT_EQ(0, failures);
}

static int spawns_more(void *arg)
{
	fiber_scope_t *s = arg;

	for (int i = 0; i < 10; i++)
		check_eq(0, fiber_scope_spawn(s, ends_later, NULL));
	return 0;
}

static void *grows(void *arg)
{
	fiber_scope_t s;

	ended = 0;
	check_eq(0, fiber_scope_open(&s, NULL));
	for (int i = 0; i < 10; i++)
		check_eq(0, fiber_scope_spawn(&s, spawns_more, &s));
	check_eq(0, fiber_scope_close(&s));
	check_eq(100, ended);
	return arg;
}

TEST(its_fibers_spawn_into_it)
{
	everywhere(grows, NULL);
	EXPECT_EQ(0, failures);
}

static void *opens_its_own(void *arg)
{
	fiber_scope_t s;

	check_eq(0, fiber_cancelled());
	check_eq(0, fiber_sleep(1));
	check_eq(0, fiber_scope_open(&s, NULL));
	check_eq(0, fiber_scope_spawn(&s, ends_later, NULL));
	check_eq(0, fiber_scope_close(&s));
	return arg;
}

static int returns_at_once(void *arg)
{
	(void)arg;
	return 0;
}

/* The stacks and descriptors of a scope's fibers are used again. */
static void *used_again(void *arg)
{
	fiber_t *f[20];
	fiber_scope_t s;

	for (int round = 0; round < 3; round++) {
		check_eq(0, fiber_scope_open(&s, NULL));
		for (int i = 0; i < 20; i++)
			check_eq(0, fiber_scope_spawn(&s, returns_at_once, NULL));
		if (round)
			fiber_scope_cancel(&s, 0);
		fiber_scope_close(&s);
		memset(&s, 0xee, sizeof(s));
		for (int i = 0; i < 20; i++)
			f[i] = spawn(opens_its_own, NULL);
		for (int i = 0; i < 20; i++)
			join(f[i]);
	}
	return arg;
}

TEST(what_a_scope_leaves_is_no_scope)
{
	everywhere(used_again, NULL);
	EXPECT_EQ(0, failures);
}

/* ---- errors ---- */

static void *fails(void *arg)
{
	fiber_chan_t *never = chan(8, 0);
	fiber_scope_t s;
	uint64_t v;

	ended = 0;
	check_eq(0, fiber_scope_open(&s, NULL));
	for (int i = 0; i < 20; i++)
		check_eq(0, fiber_scope_spawn(&s, waits_for_ever, never));
	check_eq(0, fiber_scope_spawn(&s, ends_later, (void *)-EIO));
	/* The owner is inside: it is cancelled like the others. */
	check_eq(-ECANCELED, fiber_chan_recv(never, &v));
	check_eq(-EIO, fiber_scope_cancelled(&s));
	check_eq(-ECANCELED, fiber_scope_spawn(&s, ends_later, NULL));
	check_eq(-EIO, fiber_scope_close(&s));
	check_eq(21, ended);
	check_eq(0, fiber_cancelled());
	check_eq(0, fiber_sleep(1));
	check_eq(0, fiber_chan_destroy(never));
	return arg;
}

TEST(first_error_cancels_the_rest)
{
	everywhere(fails, NULL);
	EXPECT_EQ(0, failures);
}

static void *collects(void *arg)
{
	int errors[3] = { 0 };
	size_t count = 0;
	struct fiber_scope_options opt = {
		.size = sizeof(opt), .flags = FIBER_SCOPE_COLLECT,
		.errors = errors, .max_errors = 3, .error_count = &count,
	};
	fiber_scope_t s;

	ended = 0;
	check_eq(0, fiber_scope_open(&s, &opt));
	for (intptr_t i = 0; i < 10; i++)
		check_eq(0, fiber_scope_spawn(&s, ends_later,
					      (void *)(i % 2 ? -i : 0)));
	check(fiber_scope_close(&s) < 0);
	check_eq(10, ended);
	check_eq(5, count);
	for (int i = 0; i < 3; i++)
		check(errors[i] < 0 && errors[i] % 2);
	return arg;
}

TEST(or_all_errors_are_collected)
{
	everywhere(collects, NULL);
	EXPECT_EQ(0, failures);
}

static int exits(void *arg)
{
	fiber_exit(arg);
}

static void *exit_counts(void *arg)
{
	fiber_scope_t s;

	check_eq(0, fiber_scope_open(&s, NULL));
	check_eq(0, fiber_scope_spawn(&s, exits, NULL));
	check_eq(0, fiber_scope_close(&s));
	check_eq(0, fiber_scope_open(&s, NULL));
	check_eq(0, fiber_scope_spawn(&s, exits, (void *)-EDOM));
	check_eq(-EDOM, fiber_scope_close(&s));
	return arg;
}

TEST(fiber_exit_is_an_end_like_another)
{
	everywhere(exit_counts, NULL);
	EXPECT_EQ(0, failures);
}

/* ---- nesting, shields ---- */

struct nest {
	fiber_chan_t *never;
	int depth;
	unsigned int flags;
};

static int nests(void *arg)
{
	struct nest n = *(struct nest *)arg;
	struct fiber_scope_options opt = { .size = sizeof(opt),
					   .flags = n.flags };
	fiber_scope_t s;
	int r;

	if (!n.depth--)
		return waits_for_ever(n.never);
	check_eq(0, fiber_scope_open(&s, &opt));
	r = fiber_scope_spawn(&s, nests, &n);
	check(r == 0 || r == -ECANCELED);
	r = fiber_scope_close(&s);
	check_eq(-ECANCELED, r);
	check_eq(-ECANCELED, fiber_cancelled());
	return r;
}

static void *cancels_deep(void *arg)
{
	struct nest n = { chan(8, 0), 20, 0 };
	fiber_scope_t s;

	check_eq(0, fiber_scope_open(&s, NULL));
	for (int i = 0; i < 3; i++)
		check_eq(0, fiber_scope_spawn(&s, nests, &n));
	check_eq(0, fiber_sleep((uintptr_t)arg * US));
	fiber_scope_cancel(&s, -ENOLINK);
	fiber_scope_cancel(&s, -EIO);
	check_eq(-ENOLINK, fiber_scope_close(&s));
	check_eq(0, fiber_chan_destroy(n.never));
	return NULL;
}

TEST(cancel_goes_down_the_tree)
{
	for (uintptr_t us = 0; us < 400; us += 50)
		everywhere(cancels_deep, (void *)us);
	EXPECT_EQ(0, failures);
}

static int shielded(void *arg)
{
	fiber_scope_t s;
	uint64_t v = 0;

	check_eq(-ECANCELED, fiber_chan_recv(NULL, &v));
	fiber_shield_begin();
	check_eq(0, fiber_cancelled());
	check_eq(0, fiber_sleep(1));
	fiber_shield_begin();
	fiber_shield_end();
	/* Clean-up may use scopes and waits of its own. */
	check_eq(0, fiber_scope_open(&s, NULL));
	check_eq(0, fiber_scope_spawn(&s, ends_later, NULL));
	check_eq(0, fiber_chan_recv(arg, &v));
	check_eq(0, fiber_scope_close(&s));
	check_eq(0, fiber_cancelled());
	/* Its own scopes can be cancelled inside. */
	check_eq(0, fiber_scope_open(&s, NULL));
	fiber_scope_cancel(&s, 0);
	check_eq(-ECANCELED, fiber_sleep(SEC));
	check_eq(-ECANCELED, fiber_scope_close(&s));
	check_eq(0, fiber_cancelled());
	fiber_shield_end();
	check_eq(-ECANCELED, fiber_cancelled());
	return v == 9 ? 0 : -EIO;
}

static void *shields(void *arg)
{
	fiber_chan_t *ch = chan(8, 1);
	fiber_scope_t s;
	uint64_t v = 9;

	check_eq(0, fiber_scope_open(&s, NULL));
	check_eq(0, fiber_scope_spawn(&s, shielded, ch));
	fiber_scope_cancel(&s, -EINTR);
	check_eq(-ECANCELED, fiber_sleep(SEC));
	fiber_shield_begin();
	check_eq(0, fiber_sleep(MS));
	check_eq(0, fiber_chan_send(ch, &v));
	fiber_shield_end();
	check_eq(-EINTR, fiber_scope_close(&s));
	check_eq(0, fiber_chan_destroy(ch));
	return arg;
}

TEST(shield_keeps_cancellation_out)
{
	everywhere(shields, NULL);
	EXPECT_EQ(0, failures);
}

static void *shield_flag(void *arg)
{
	struct fiber_scope_options opt = { .size = sizeof(opt),
					   .flags = FIBER_SCOPE_SHIELD };
	fiber_scope_t s, t;

	check_eq(0, fiber_scope_open(&s, NULL));
	check_eq(0, fiber_scope_open(&t, &opt));
	fiber_scope_cancel(&s, 0);
	check_eq(0, fiber_sleep(1));
	ended = 0;
	check_eq(0, fiber_scope_spawn(&t, ends_later, NULL));
	check_eq(0, fiber_scope_close(&t));
	check_eq(1, ended);
	check_eq(-ECANCELED, fiber_sleep(1));
	/* Opened inside a cancelled one: cancelled from the start. */
	check_eq(0, fiber_scope_open(&t, NULL));
	check_eq(-ECANCELED, fiber_scope_spawn(&t, ends_later, NULL));
	check_eq(-ECANCELED, fiber_scope_close(&t));
	check_eq(-ECANCELED, fiber_scope_close(&s));
	return arg;
}

TEST(scope_with_a_shield)
{
	everywhere(shield_flag, NULL);
	EXPECT_EQ(0, failures);
}

/* ---- deadlines ---- */

/*
 * A scope whose deadline passes soon, with a fiber that waits inside. Where the
 * machine stands still it is too late to spawn one: again, with more time.
 */
static void open_for_a_moment(fiber_scope_t *s, int (*fn)(void *), void *arg)
{
	struct fiber_scope_options opt = { .size = sizeof(opt) };
	int r = -ECANCELED;

	for (uint64_t ns = 3 * MS; r && ns < 100 * SEC; ns *= 4) {
		opt.deadline = fiber_now() + ns;
		check_eq(0, fiber_scope_open(s, &opt));
		r = fiber_scope_spawn(s, fn, arg);
		if (!r)
			return;
		check_eq(-ECANCELED, r);
		check(fiber_now() >= opt.deadline);
		check_eq(-ETIMEDOUT, fiber_scope_close(s));
	}
	check_eq(0, r);
}

/* What fiber_deadline says: there, and in a fiber of a scope inside. */
static int tells_deadline(void *arg)
{
	*(uint64_t *)arg = fiber_deadline();
	return 0;
}

static uint64_t deadline_inside(const struct fiber_scope_options *opt)
{
	fiber_scope_t s;
	uint64_t told = 0;

	check_eq(0, fiber_scope_open(&s, opt));
	check_eq(0, fiber_scope_spawn(&s, tells_deadline, &told));
	check_eq(0, fiber_scope_close(&s));
	return told;
}

static void deadlines_are_told(void)
{
	struct fiber_scope_options opt = { .size = sizeof(opt) };
	uint64_t soon = fiber_now() + 1000 * SEC, late = soon + 1000 * SEC;
	fiber_scope_t s;

	check(fiber_deadline() == FIBER_NEVER);
	check(deadline_inside(NULL) == FIBER_NEVER);
	opt.deadline = soon;
	check_eq(0, fiber_scope_open(&s, &opt));
	check(fiber_deadline() == soon);
	check(deadline_inside(NULL) == soon);
	opt.deadline = late;
	check(deadline_inside(&opt) == soon);
	opt.deadline = soon - 1;
	check(deadline_inside(&opt) == soon - 1);
	fiber_shield_begin();
	check(fiber_deadline() == FIBER_NEVER);
	fiber_shield_end();
	opt.flags = FIBER_SCOPE_SHIELD;
	opt.deadline = late;
	check(deadline_inside(&opt) == late);
	check(fiber_deadline() == soon);
	check_eq(0, fiber_scope_close(&s));
	check(fiber_deadline() == FIBER_NEVER);
}

static void *deadlines(void *arg)
{
	struct fiber_scope_options opt = { .size = sizeof(opt) };
	fiber_chan_t *never = chan(8, 0);
	fiber_scope_t s, t;

	deadlines_are_told();
	/* It passes. */
	opt.deadline = fiber_now() + 3 * MS;
	check_eq(0, fiber_scope_open(&s, &opt));
	check_eq(-ECANCELED, fiber_sleep(100 * SEC));
	check(fiber_now() >= opt.deadline);
	check_eq(-ETIMEDOUT, fiber_scope_close(&s));
	open_for_a_moment(&s, waits_for_ever, never);
	check_eq(-ECANCELED, fiber_sleep(100 * SEC));
	check_eq(-ETIMEDOUT, fiber_scope_close(&s));
	/* It passes while the owner closes already. */
	open_for_a_moment(&s, waits_for_ever, never);
	check_eq(-ETIMEDOUT, fiber_scope_close(&s));
	/* It does not: closing does not wait for it. */
	opt.deadline = fiber_now() + 1000 * SEC;
	check_eq(0, fiber_scope_open(&s, &opt));
	check_eq(0, fiber_scope_close(&s));
	check_eq(0, fiber_scope_open(&s, &opt));
	ended = 0;
	check_eq(0, fiber_scope_spawn(&s, ends_later, NULL));
	check_eq(0, fiber_scope_close(&s));
	check_eq(1, ended);
	/* The nearest wins, inside or outside. */
	opt.deadline = fiber_now() + 3 * MS;
	check_eq(0, fiber_scope_open(&s, &opt));
	opt.deadline += 500 * SEC;
	check_eq(0, fiber_scope_open(&t, &opt));
	check_eq(-ECANCELED, fiber_sleep(100 * SEC));
	check_eq(-ECANCELED, fiber_scope_close(&t));
	check_eq(-ETIMEDOUT, fiber_scope_close(&s));
	check_eq(0, fiber_scope_open(&s, &opt));
	opt.deadline = fiber_now() + 3 * MS;
	check_eq(0, fiber_scope_open(&t, &opt));
	check_eq(-ECANCELED, fiber_sleep(100 * SEC));
	check_eq(-ETIMEDOUT, fiber_scope_close(&t));
	check_eq(0, fiber_sleep(1));
	check_eq(0, fiber_scope_close(&s));
	/* Long over: everything in it is cancelled at once. */
	opt.deadline = 1;
	check_eq(0, fiber_scope_open(&s, &opt));
	check_eq(-ECANCELED, fiber_sleep(100 * SEC));
	check_eq(-ETIMEDOUT, fiber_scope_close(&s));
	check_eq(0, fiber_chan_destroy(never));
	return arg;
}

TEST(nearest_deadline_wins)
{
	everywhere(deadlines, NULL);
	EXPECT_EQ(0, failures);
}

/* ---- misuse ---- */

static fiber_scope_t shared_scope;

static void *closes_anothers(void *arg)
{
	check_eq(-EPERM, fiber_scope_close(&shared_scope));
	return arg;
}

static void *misuses(void *arg)
{
	struct fiber_scope_options opt = { .size = sizeof(opt), .flags = 64 };
	fiber_scope_t s;

	check_eq(-EINVAL, fiber_scope_open(NULL, NULL));
	check_eq(-EINVAL, fiber_scope_open(&s, &opt));
	opt.flags = 0;
	opt.size = 1;
	check_eq(-EINVAL, fiber_scope_open(&s, &opt));
	opt.size = sizeof(opt);
	opt.max_errors = 1;
	check_eq(-EINVAL, fiber_scope_open(&s, &opt));
	check_eq(0, fiber_scope_open(&shared_scope, NULL));
	check_eq(-EINVAL, fiber_scope_spawn(&shared_scope, NULL, NULL));
	join(spawn(closes_anothers, NULL));
	check_eq(0, fiber_scope_open(&s, NULL));
	check_eq(-EINVAL, fiber_scope_close(&shared_scope));
	check_eq(0, fiber_scope_close(&s));
	check_eq(0, fiber_scope_close(&shared_scope));
	fiber_shield_end();		/* without a begin: nothing */
	check_eq(0, fiber_sleep(1));
	return arg;
}

TEST(misuse_is_refused)
{
	everywhere(misuses, NULL);
	EXPECT_EQ(0, failures);
}

static void *forgets_to_close(void *arg)
{
	fiber_scope_open(&shared_scope, NULL);
	return arg;
}

TEST(fiber_that_forgets_to_close_is_told)
{
	int status = 0;
	pid_t pid = fork();

	if (!pid) {
		with_runtime(1, 0, forgets_to_close, NULL);
		_exit(0);
	}
	ASSERT_EQ(pid, waitpid(pid, &status, 0));
	ASSERT_TRUE(WIFSIGNALED(status));
	EXPECT_EQ(SIGABRT, WTERMSIG(status));
}

/* ---- join ---- */

static void *sleeps_long(void *arg)
{
	fiber_sleep((uintptr_t)arg);
	return (void *)77;
}

static atomic_bool may_end;

static void *ends_when_told(void *arg)
{
	while (!may_end)
		fiber_sleep(100 * US);
	return arg;
}

static int joins(void *arg)
{
	void *result = NULL;

	check_eq(-ECANCELED, fiber_join(arg, &result));
	return 0;
}

static void *ends(void *arg)
{
	atomic_store(&ended, 1);
	return (void *)77;
}

/* f may have ended: a cancelled one is told that it is cancelled all the same. */
static void *join_of_one_that_has_ended(void *arg)
{
	void *result = NULL;
	fiber_scope_t s;
	fiber_t *f;

	atomic_store(&ended, 0);
	f = spawn(ends, NULL);
	while (!atomic_load(&ended))
		fiber_yield();
	check_eq(0, fiber_scope_open(&s, NULL));
	fiber_scope_cancel(&s, 0);
	check_eq(-ECANCELED, fiber_join(f, &result));
	check_eq(-ECANCELED, fiber_join_until(f, &result, FIBER_NEVER));
	check_eq(0, (uintptr_t)result);
	check_eq(-ECANCELED, fiber_scope_close(&s));
	check_eq(0, fiber_join(f, &result));
	check_eq(77, (uintptr_t)result);
	return arg;
}

TEST(cancelled_join_says_so)
{
	everywhere(join_of_one_that_has_ended, NULL);
	EXPECT_EQ(0, failures);
}

static void *join_ends_early(void *arg)
{
	void *result = NULL;
	fiber_scope_t s;
	fiber_t *f;

	may_end = false;
	f = spawn(ends_when_told, (void *)77);
	check_eq(-ETIMEDOUT, fiber_join_until(f, &result, 0));
	check_eq(-ETIMEDOUT, fiber_join_until(f, &result, fiber_now() + MS));
	check_eq(0, fiber_scope_open(&s, NULL));
	check_eq(0, fiber_scope_spawn(&s, joins, f));
	fiber_scope_cancel(&s, 0);
	check_eq(-ECANCELED, fiber_join(f, &result));
	check_eq(-ECANCELED, fiber_scope_close(&s));
	may_end = true;
	check_eq(0, fiber_join_until(f, &result, FIBER_NEVER));
	check_eq(77, (uintptr_t)result);
	return arg;
}

TEST(join_can_be_given_up)
{
	everywhere(join_ends_early, NULL);
	EXPECT_EQ(0, failures);
}

/* Deadline and end at the same time, again and again: exactly one wins. */
static void *join_races(void *arg)
{
	void *result;
	fiber_t *f;
	int r, late = 0;

	for (int i = 0; i < 3000; i++) {
		uint64_t ns = 20 * US + (uint64_t)i * 7919 % (40 * US);

		f = spawn(sleeps_long, (void *)(40 * US));
		result = NULL;
		r = fiber_join_until(f, &result, fiber_now() + ns);
		if (r == -ETIMEDOUT) {
			late++;
			r = fiber_join(f, &result);
		}
		check_eq(0, r);
		check_eq(77, (uintptr_t)result);
	}
	figure("join: the deadline won %d times of 3000\n", late);
	return arg;
}

TEST(join_against_deadline)
{
	everywhere(join_races, NULL);
	EXPECT_EQ(0, failures);
}

static void *ends_soon(void *arg)
{
	fiber_sleep((uintptr_t)arg);
	return (void *)78;
}

TEST(plain_thread_gives_up_a_join)
{
	void *result;
	fiber_t *f;
	int r;

	ASSERT_EQ(0, start(2, 0));
	for (uintptr_t i = 0; i < 500; i++) {
		f = spawn(ends_soon, (void *)(60 * US));
		r = fiber_join_until(f, &result, fiber_now() + i % 100 * US);
		if (r == -ETIMEDOUT)
			r = fiber_join(f, &result);
		ASSERT_EQ(0, r);
		ASSERT_EQ(78, (uintptr_t)result);
	}
	ASSERT_EQ(0, fiber_fini());
	EXPECT_EQ(0, failures);
}

/* ---- the value handed over at the moment of cancellation ---- */

struct race {
	fiber_chan_t *ch;
	uint64_t got, lost;
};

static int receives_until_cancelled(void *arg)
{
	struct race *w = arg;
	uint64_t v;

	while (fiber_chan_recv(w->ch, &v) == 0)
		w->got++;
	return 0;
}

static int sends_until_cancelled(void *arg)
{
	struct race *w = arg;
	uint64_t v = 1;

	while (fiber_chan_send(w->ch, &v) == 0)
		w->got++;
	return 0;
}

static void *cancel_races(void *arg)
{
	uint64_t total = 0, v;

	for (int i = 0; i < 300; i++) {
		struct race in = { chan(8, (size_t)arg) }, out = { in.ch };
		fiber_scope_t s, t;

		check_eq(0, fiber_scope_open(&s, NULL));
		check_eq(0, fiber_scope_open(&t, NULL));
		check_eq(0, fiber_scope_spawn(&s, receives_until_cancelled, &out));
		check_eq(0, fiber_scope_spawn(&t, sends_until_cancelled, &in));
		fiber_sleep((uint64_t)(i % 50) * 2 * US);
		fiber_scope_cancel(i % 2 ? &s : &t, 0);
		check(fiber_scope_close(&t) < 0 || !(i % 2));
		fiber_scope_cancel(&s, 0);
		check_eq(-ECANCELED, fiber_scope_close(&s));
		while (!fiber_chan_try_recv(in.ch, &v))
			out.got++;
		check_eq(in.got, out.got);
		total += in.got;
		check_eq(0, fiber_chan_destroy(in.ch));
	}
	figure("%llu values passed\n", (unsigned long long)total);
	return NULL;
}

TEST(value_at_the_moment_of_cancellation)
{
	everywhere(cancel_races, (void *)0);
	everywhere(cancel_races, (void *)3);
	EXPECT_EQ(0, failures);
}

/* ---- a plain system call ---- */

static int reads_a_pipe(void *arg)
{
	int *fd = arg;
	char c;
	ssize_t n = read(fd[0], &c, 1);

	check_eq(-1, n);
	check_eq(EINTR, errno);
	check_eq(-ECANCELED, fiber_cancelled());
	return 0;
}

static void *cancels_a_read(void *arg)
{
	fiber_scope_t s;
	int fd[2];

	check_eq(0, pipe(fd));
	check_eq(0, fiber_scope_open(&s, NULL));
	for (int i = 0; i < 5; i++)
		check_eq(0, fiber_scope_spawn(&s, reads_a_pipe, fd));
	fiber_sleep((uintptr_t)arg * US);
	fiber_scope_cancel(&s, 0);
	check_eq(-ECANCELED, fiber_scope_close(&s));
	open_for_a_moment(&s, reads_a_pipe, fd);
	check_eq(-ETIMEDOUT, fiber_scope_close(&s));
	close(fd[0]);
	close(fd[1]);
	return NULL;
}

TEST(blocked_call_is_interrupted)
{
	ASSERT_EQ(0, start(1, 0));
	if (!(fiber_features() & FIBER_FEATURE_CANCEL_BLOCKED))
		SKIP(return, "the user backend cannot: it says so");
	ASSERT_EQ(0, fiber_fini());
	for (uintptr_t us = 0; us < 1000; us += 250)
		everywhere(cancels_a_read, (void *)us);
	EXPECT_EQ(0, failures);
}

TEST_HARNESS_MAIN
