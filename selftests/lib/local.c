// SPDX-License-Identifier: GPL-2.0-only
/* Storage of a fiber's own: keys, destructors, and who waits for them. */
#include "common.h"

static fiber_key_t key;
static atomic_int destroyed;

static void counts_up(void *value)
{
	check(fiber_local_get(key) == NULL);
	fiber_yield();
	fiber_sleep(100 * US);
	atomic_fetch_add(&destroyed, (int)(uintptr_t)value);
}

static void *keeps_its_own(void *arg)
{
	check(fiber_local_get(key) == NULL);
	check_eq(0, fiber_local_set(key, arg));
	for (int i = 0; i < 50; i++) {
		fiber_yield();
		check(fiber_local_get(key) == arg);
		if (i % 10 == 0)
			block_ns(10 * US);
	}
	return NULL;
}

static void *many(void *arg)
{
	fiber_t *f[200];

	destroyed = 0;
	check_eq(0, fiber_local_create(&key, counts_up));
	for (uintptr_t i = 0; i < 200; i++)
		f[i] = spawn(keeps_its_own, (void *)(i + 1));
	for (int i = 0; i < 200; i++)
		join(f[i]);
	check_eq(200 * 201 / 2, destroyed);
	check_eq(0, fiber_local_delete(key));
	return arg;
}

TEST(each_fiber_has_its_own)
{
	ASSERT_EQ(0, with_runtime(1, 0, many, NULL));
	ASSERT_EQ(0, with_runtime(3, 200 * US, many, NULL));
	EXPECT_EQ(0, failures);
}

TEST(threads_have_their_own)
{
	pthread_t t[8];

	destroyed = 0;
	ASSERT_EQ(0, fiber_local_create(&key, counts_up));
	for (uintptr_t i = 0; i < 8; i++)
		ASSERT_EQ(0, pthread_create(&t[i], NULL, keeps_its_own,
					    (void *)(i + 1)));
	for (int i = 0; i < 8; i++)
		pthread_join(t[i], NULL);
	EXPECT_EQ(36, destroyed);
	EXPECT_EQ(0, fiber_local_delete(key));
	EXPECT_EQ(0, failures);
}

static int in_scope(void *arg)
{
	check_eq(0, fiber_local_set(key, arg));
	return 0;
}

static int in_scope_exits(void *arg)
{
	check_eq(0, fiber_local_set(key, arg));
	fiber_exit(NULL);
}

static void *scope_waits(void *arg)
{
	fiber_scope_t s;

	destroyed = 0;
	check_eq(0, fiber_local_create(&key, counts_up));
	check_eq(0, fiber_scope_open(&s, NULL));
	for (int i = 0; i < 20; i++)
		check_eq(0, fiber_scope_spawn(&s, i % 2 ? in_scope :
					      in_scope_exits, (void *)1));
	check_eq(0, fiber_scope_close(&s));
	check_eq(20, destroyed);
	check_eq(0, fiber_local_delete(key));
	return arg;
}

TEST(scope_waits_for_destructors)
{
	ASSERT_EQ(0, with_runtime(1, 0, scope_waits, NULL));
	ASSERT_EQ(0, with_runtime(2, 0, scope_waits, NULL));
	EXPECT_EQ(0, failures);
}

/* ---- a destructor blocks ---- */

static int pipe_fd[2];

/* The only processor is handed on meanwhile, or nobody would write. */
static void blocks(void *value)
{
	struct pollfd p = { .fd = pipe_fd[0], .events = POLLIN };
	uint64_t end = now_ns() + PATIENCE * SEC;
	int r;

	do {
		r = poll(&p, 1, PATIENCE * 1000);
	} while (r < 0 && errno == EINTR && now_ns() < end);
	check_eq(1, r);
	atomic_fetch_add(&destroyed, (int)(uintptr_t)value);
}

static void *returns(void *arg)
{
	check_eq(0, fiber_local_set(key, arg));
	return NULL;
}

static void *exits(void *arg)
{
	check_eq(0, fiber_local_set(key, arg));
	fiber_exit(NULL);
}

static void *feeds(void *arg)
{
	check_eq(1, write(pipe_fd[1], "x", 1));
	return arg;
}

/* Both are ready before the first of them ends. */
static void *blocks_at_the_end(void *arg)
{
	static void *(*const ways[])(void *) = { returns, exits };
	char byte;

	destroyed = 0;
	check_eq(0, pipe2(pipe_fd, O_CLOEXEC));
	check_eq(0, fiber_local_create(&key, blocks));
	for (size_t i = 0; i < ARRAY_SIZE(ways); i++) {
		fiber_t *f = spawn(ways[i], (void *)1), *g = spawn(feeds, NULL);

		join(f);
		join(g);
		check_eq(1, read(pipe_fd[0], &byte, 1));
	}
	check_eq(2, destroyed);
	check_eq(0, fiber_local_delete(key));
	return arg;
}

TEST(others_run_while_a_destructor_blocks)
{
	ASSERT_EQ(0, with_runtime(1, 0, blocks_at_the_end, NULL));
	EXPECT_EQ(0, failures);
}

/* ---- keys ---- */

static int rounds;

static void sets_again(void *value)
{
	rounds++;
	check_eq(0, fiber_local_set(key, value));
}

static void *sets_one(void *arg)
{
	check_eq(0, fiber_local_set(key, arg));
	return NULL;
}

static void *key_rules(void *arg)
{
	fiber_key_t k[129], old;
	int n = 0;

	/* A destructor that sets again: four rounds, then enough. */
	check_eq(0, fiber_local_create(&key, sets_again));
	join(spawn(sets_one, &rounds));
	check_eq(4, rounds);
	check_eq(0, fiber_local_delete(key));
	rounds = 0;

	while (n < 129 && !fiber_local_create(&k[n], NULL))
		n++;
	check_eq(128, n);
	check_eq(-EAGAIN, fiber_local_create(&k[128], NULL));
	for (int i = 0; i < n; i++) {
		check(!fiber_local_get(k[i]));
		check_eq(0, fiber_local_set(k[i], &k[i]));
	}
	for (int i = 0; i < n; i++)
		check(fiber_local_get(k[i]) == &k[i]);
	/* What was under a deleted key is no value of the next. */
	old = k[5];
	check_eq(0, fiber_local_delete(old));
	check_eq(-EINVAL, fiber_local_delete(old));
	check_eq(-EINVAL, fiber_local_set(old, &n));
	check(!fiber_local_get(old));
	check_eq(0, fiber_local_create(&k[5], NULL));
	check_eq(old.index, k[5].index);
	check(!fiber_local_get(k[5]));
	check(!fiber_local_get(old));
	for (int i = 0; i < n; i++)
		check_eq(0, fiber_local_delete(k[i]));
	check_eq(-EINVAL, fiber_local_create(NULL, NULL));
	check_eq(-EINVAL, fiber_local_delete((fiber_key_t){ 500, 1 }));
	check(!fiber_local_get((fiber_key_t){ 0, 0 }));
	return arg;
}

TEST(keys_are_used_again)
{
	ASSERT_EQ(0, with_runtime(1, 0, key_rules, NULL));
	ASSERT_EQ(0, start(1, 0));
	key_rules(NULL);		/* in a plain thread */
	ASSERT_EQ(0, fiber_fini());
	EXPECT_EQ(0, failures);
}

TEST_HARNESS_MAIN
