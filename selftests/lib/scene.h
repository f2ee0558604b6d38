/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * scene.h - one fiber blocks in the kernel, another of the same processor runs
 * meanwhile and, where the block needs somebody to end it, ends it
 */
#ifndef SELFTESTS_LIB_SCENE_H
#define SELFTESTS_LIB_SCENE_H

#include <semaphore.h>

#include "common.h"

/*
 * struct scene - a fiber that blocks and one that ends it
 * @block:  the blocking call of the one; checks its result
 * @wake:   what ends it; NULL: it ends by itself
 * @tid:    thread of the blocking fiber; set before it blocks
 * @inside: it is about to block, or blocks
 * @over:   it did, maybe before the other one had its first turn
 * @nap:    how long a block lasts that ends by itself
 * @counts: turns of the other fiber while it saw the first one asleep
 */
struct scene {
	void (*block)(struct scene *s);
	void (*wake)(struct scene *s);
	atomic_int tid, inside, over;
	uint64_t nap;
	unsigned long counts;
	int fd[2];
	pthread_mutex_t mutex;
	pthread_cond_t cond;
	sem_t sem;
	atomic_int word;
	char path[64];
};

static void *blocker(void *arg)
{
	struct scene *s = arg;

	atomic_store(&s->tid, gettid());
	atomic_store(&s->inside, 1);
	s->block(s);
	atomic_store(&s->over, 1);
	atomic_store(&s->inside, 0);
	check_eq(atomic_load(&s->tid), gettid());
	return NULL;
}

/*
 * Counts while the blocker sleeps, for at least 200 turns where it is for us to
 * wake it.
 */
static void *counter(void *arg)
{
	struct scene *s = arg;

	while (!atomic_load(&s->inside) && !atomic_load(&s->over))
		fiber_yield();
	while (atomic_load(&s->inside)) {
		char state = thread_state(atomic_load(&s->tid));

		s->counts += state == 'S' || state == 'D';
		if (s->counts >= 200 && s->wake) {
			s->wake(s);
			break;
		}
		fiber_yield();
	}
	return NULL;
}

static void *both(void *arg)
{
	fiber_t *b, *c;

	atomic_store(&((struct scene *)arg)->over, 0);
	b = spawn(blocker, arg);
	c = spawn(counter, arg);
	join(b);
	join(c);
	return NULL;
}

/*
 * A block that ends by itself may end before the other could have had a turn,
 * if the host is busy: then again, with more time.
 */
static void play(struct scene *s)
{
	for (s->nap = 100 * MS; s->nap < 10 * SEC; s->nap *= 4) {
		s->counts = 0;
		check_eq(0, with_runtime(1, 0, both, s));
		if (s->counts || s->wake)
			break;
	}
	check(s->counts >= (s->wake ? 200 : 1));
}

/* ---- the commonest scene: a pipe ---- */

helper void wake_pipe(struct scene *s)
{
	check_eq(1, write(s->fd[1], "x", 1));
}

helper void block_read(struct scene *s)
{
	char byte = 0;

	check_eq(1, read(s->fd[0], &byte, 1));
	check_eq('x', byte);
}

helper void play_pipe(struct __test_metadata *_metadata,
		      void (*block)(struct scene *),
		      void (*wake)(struct scene *))
{
	static struct scene s;

	s.block = block;
	s.wake = wake;
	ASSERT_EQ(0, pipe(s.fd));
	play(&s);
	EXPECT_EQ(0, failures);
}

#endif
