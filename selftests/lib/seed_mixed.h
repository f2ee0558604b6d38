/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * seed_mixed.h - a program of all kinds of waits
 *
 * What it does is the order in which its fibers take their steps, as one number.
 */
#ifndef SELFTESTS_LIB_SEED_MIXED_H
#define SELFTESTS_LIB_SEED_MIXED_H

#include <sys/mman.h>

#include "common.h"
#include <fiber/task.h>

#define HOUR	(3600 * SEC)

/* ---- steps ---- */

static uint64_t trail;

static void step(unsigned int who)
{
	trail = (trail ^ who) * 0x100000001b3ull;
}

/* ---- all kinds of waits ---- */

static fiber_mutex_t lock = FIBER_MUTEX_INIT;
static fiber_sem_t sem;
static fiber_chan_t *chan[3], *news;
static fiber_timer_t *timer;
static int pipe_fd[2], news_fd[2];
static fiber_task_t task;
static fiber_future_t result;

/* So often that a trace of it would have gaps, were it not for the seed. */
static void *locks(void *arg)
{
	for (int i = 0; i < 250; i++) {
		check_eq(0, fiber_mutex_lock(&lock));
		step(1 + (unsigned int)(uintptr_t)arg);
		fiber_yield();
		check_eq(0, fiber_mutex_unlock(&lock));
	}
	return NULL;
}

static void *sends(void *arg)
{
	int v = (int)(uintptr_t)arg;

	for (int i = 0; i < 10; i++) {
		step(20 + (unsigned int)v);
		check_eq(0, fiber_chan_send(chan[v], &v));
		if (i % 4 == v)
			check_eq(0, fiber_sleep((uint64_t)(v + 1) * HOUR));
	}
	return NULL;
}

static void *selects(void *arg)
{
	int v, n;

	for (int i = 0; i < 30; i++) {
		struct fiber_case c[3];

		memset(c, 0, sizeof(c));
		for (n = 0; n < 3; n++) {
			c[n].op = FIBER_CASE_RECV;
			c[n].chan = chan[n];
			c[n].value = &v;
		}
		n = fiber_select(c, 3, FIBER_NEVER);
		check(n >= 0 && c[n].result == 0 && v == n);
		step(30 + (unsigned int)n);
	}
	return NULL;
}

static void *waits(void *arg)
{
	int r;

	for (int i = 0; i < 6; i++) {
		r = fiber_sem_wait_until(&sem, fiber_now() + HOUR / 2);
		check(r == 0 || r == -ETIMEDOUT);
		step(r ? 40 : 41);
		fiber_sem_post(&sem);
	}
	return NULL;
}

static void *reads(void *arg)
{
	char c;

	for (int i = 0; i < 5; i++) {
		check_eq(1, fiber_read(pipe_fd[0], &c, 1));
		step((unsigned int)c);
	}
	return NULL;
}

static void *writes(void *arg)
{
	for (char c = 50; c < 55; c++) {
		check_eq(1, fiber_write(pipe_fd[1], &c, 1));
		step(60);
	}
	return NULL;
}

/* A descriptor and a channel, of which both may be ready. */
static void *watches(void *arg)
{
	char c;
	int n;

	for (int i = 0; i < 8; i++) {
		struct fiber_case k[2] = {
			{ .op = FIBER_CASE_RECV, .chan = news, .value = &n },
			{ .op = FIBER_CASE_FD, .fd = news_fd[0],
			  .events = POLLIN },
		};

		n = fiber_select(k, 2, FIBER_NEVER);
		check(n == 1 ? k[1].result == POLLIN : k[0].result == 0);
		if (n == 1)
			check_eq(1, read(news_fd[0], &c, 1));
		step(100 + (unsigned int)n);
	}
	return NULL;
}

static void *feeds(void *arg)
{
	for (int i = 0; i < 4; i++) {
		check_eq(1, write(news_fd[1], "x", 1));
		check_eq(0, fiber_chan_send(news, &i));
	}
	return NULL;
}

/* Nothing else runs during a call. */
static void *uses_file(void *arg)
{
	int fd = memfd_create("seed", MFD_CLOEXEC);
	char c = 0;

	check_eq(1, fiber_pwrite(fd, "x", 1, 0));
	check_eq(0, fiber_fsync(fd));
	check_eq(1, fiber_pread(fd, &c, 1, 0));
	step(110 + (unsigned int)c);
	close(fd);
	return NULL;
}

static int naps(fiber_task_t *t)
{
	FIBER_TASK_BEGIN(t);
	FIBER_TASK_AWAIT(t, fiber_task_yield(t));
	step(120);
	FIBER_TASK_AWAIT(t, fiber_task_sleep(t, HOUR));
	step(121);
	FIBER_TASK_AWAIT(t, fiber_task_future_wait(t, &result));
	step(122);
	FIBER_TASK_END(t);
}

static void *gives(void *arg)
{
	check_eq(0, fiber_sleep(HOUR + HOUR / 2));
	check_eq(0, fiber_future_set(&result, arg));
	return NULL;
}

static void on_timer(void *arg, uint64_t ticks)
{
	step(70);
}

static void *leaf(void *arg)
{
	step(80 + (unsigned int)(uintptr_t)arg);
	return NULL;
}

static void make_objects(void)
{
	trail = 14695981039346656037ull;
	for (int i = 0; i < 3; i++)
		check_eq(0, fiber_chan_create(&chan[i], sizeof(int), i));
	check_eq(0, fiber_sem_init(&sem, 1));
	check_eq(0, fiber_timer_create(&timer, on_timer, NULL));
	check_eq(0, fiber_timer_start(timer, fiber_now() + HOUR / 3, HOUR / 3));
	check_eq(0, pipe(pipe_fd));
	check_eq(0, fiber_chan_create(&news, sizeof(int), 0));
	check_eq(0, pipe(news_fd));
	check_eq(0, fiber_future_init(&result));
	check_eq(0, fiber_task_start(&task, naps, NULL));
}

static char backend[320];

static void end_objects(void)
{
	snprintf(backend, sizeof(backend), "%s", fiber_backend());
	for (int i = 0; i < 3; i++)
		check_eq(0, fiber_chan_destroy(chan[i]));
	check_eq(0, fiber_timer_destroy(timer));
	check_eq(0, fiber_chan_destroy(news));
	check_eq(0, fiber_future_destroy(&result));
	for (int i = 0; i < 2; i++) {
		close(pipe_fd[i]);
		close(news_fd[i]);
	}
}

static int mixed(void *arg)
{
	enum { KINDS = 11 };
	static void *(*const of[KINDS])(void *) = {
		locks, locks, selects, waits, waits, reads, writes, watches,
		feeds, uses_file, gives,
	};
	fiber_t *f[KINDS + 3], *g;
	unsigned int n = 0;

	make_objects();
	for (; n < KINDS; n++)
		f[n] = spawn(of[n], (void *)(uintptr_t)n);
	for (uintptr_t v = 0; v < 3; v++)
		f[n++] = spawn(sends, (void *)v);
	for (uintptr_t i = 0; i < 8; i++) {
		g = spawn(leaf, (void *)i);
		step(90);
		join(g);
	}
	while (n)
		join(f[--n]);
	step((unsigned int)(fiber_now() >> 10));
	end_objects();
	return failures;
}

#endif
