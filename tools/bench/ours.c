// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* ours.c - the rows for libfiber */
#include <stdio.h>
#include <stdlib.h>

#include "../../lib/arch/x86_64/switch.h"
#include "bench.h"
#include "fiber.h"

/* ---- bare switches: no runtime ---- */

static struct fb_ctx here, there;
static char stack[16384] __attribute__((aligned(64)));

static void bounce(void)
{
	for (;;)
		fb_switch(NULL, &there, &here);
}

static void switches(long n)
{
	there = (struct fb_ctx) {
		.sp = stack + sizeof(stack) - 8,
		.ip = (void *)bounce,
	};
	for (n /= 2; n > 0; n--)
		fb_switch(NULL, &here, &there);
}

/* What a function call that keeps the ABI's registers costs instead. */
void bench_switch(void **from_sp, void **to_sp);
__asm__(".text\n.type bench_switch, @function\nbench_switch:\n\t"
	"pushq %rbp\n\tpushq %rbx\n\tpushq %r12\n\tpushq %r13\n\t"
	"pushq %r14\n\tpushq %r15\n\t"
	"movq %rsp, (%rdi)\n\tmovq (%rsi), %rsp\n\t"
	"popq %r15\n\tpopq %r14\n\tpopq %r13\n\tpopq %r12\n\t"
	"popq %rbx\n\tpopq %rbp\n\tpopq %rcx\n\tjmpq *%rcx\n"
	".size bench_switch, . - bench_switch\n");

static void *here_sp, *there_sp;

static void bounce_called(void)
{
	for (;;)
		bench_switch(&there_sp, &here_sp);
}

static void switches_called(long n)
{
	void **sp = (void **)(stack + sizeof(stack) - 8);

	*--sp = (void *)bounce_called;
	there_sp = sp - 6;
	for (n /= 2; n > 0; n--)
		bench_switch(&here_sp, &there_sp);
}

/* ---- fibers ---- */

static fiber_t *start(void *(*fn)(void *), void *arg)
{
	fiber_t *f;
	int r = fiber_spawn(&f, fn, arg);

	if (r) {
		fprintf(stderr, "fiber_spawn: %d\n", r);
		exit(1);
	}
	return f;
}

static void *nothing(void *arg)
{
	return arg;
}

static void spawn(long n)
{
	while (n--)
		fiber_join(start(nothing, NULL), NULL);
}

struct yielders {
	struct bench_yield *y;
	long started;
	fiber_t **f;
};

/*
 * Each starts the next one: a child runs at once, so with one spawner, which
 * has its turn once a round, n yielders would be ready after n^2 / 2 yields.
 */
static void *yielder(void *arg)
{
	struct yielders *all = arg;
	long next = ++all->started;

	if (next < all->y->fibers)
		all->f[next] = start(yielder, all);
	bench_yielder(all->y, fiber_yield);
	return NULL;
}

static void yields(struct bench_yield *y)
{
	struct yielders all = { y, 0, calloc(y->fibers, sizeof(*all.f)) };
	long i;

	all.f[0] = start(yielder, &all);
	for (i = 0; i < y->fibers; i++)
		fiber_join(all.f[i], NULL);
	free(all.f);
}

static void *fib(void *arg)
{
	long n = (long)arg;
	fiber_t *x, *y;
	void *a, *b;

	if (n < 2)
		return arg;
	x = start(fib, (void *)(n - 1));
	y = start(fib, (void *)(n - 2));
	fiber_join(x, &a);
	fiber_join(y, &b);
	return (void *)((long)a + (long)b);
}

static void *skynet(void *arg)
{
	struct bench_node *node = arg, child[10];
	fiber_t *f[10];
	long sum = 0;
	void *part;
	int i;

	if (node->size == 1)
		return (void *)node->first;
	for (i = 0; i < 10; i++) {
		child[i].size = node->size / 10;
		child[i].first = node->first + i * child[i].size;
		f[i] = start(skynet, &child[i]);
	}
	for (i = 0; i < 10; i++) {
		fiber_join(f[i], &part);
		sum += (long)part;
	}
	return (void *)sum;
}

/* ---- channels and mutexes ---- */

struct flow {
	fiber_chan_t *ch;
	long n;
};

static void *receiver(void *arg)
{
	struct flow *w = arg;
	long i, v;

	for (i = 0; i < w->n; i++)
		if (fiber_chan_recv(w->ch, &v) || v != i)
			abort();
	return NULL;
}

static void flow(long n, size_t slots)
{
	struct flow w = { NULL, n };
	fiber_t *f;
	long i;

	if (fiber_chan_create(&w.ch, sizeof(long), slots))
		abort();
	f = start(receiver, &w);
	for (i = 0; i < n; i++)
		if (fiber_chan_send(w.ch, &i))
			abort();
	fiber_join(f, NULL);
	fiber_chan_destroy(w.ch);
}

static void hop(long n)
{
	flow(n, 0);
}

static void buffered(long n)
{
	flow(n, BENCH_SLOTS);
}

static fiber_mutex_t mutex = FIBER_MUTEX_INIT;

static void *locker(void *arg)
{
	struct bench_lock *b = arg;
	long n = bench_lockers_ready(b, fiber_yield);

	while (n--) {
		fiber_mutex_lock(&mutex);
		b->count++;
		fiber_mutex_unlock(&mutex);
	}
	return NULL;
}

static void *yielding_locker(void *arg)
{
	struct bench_lock *b = arg;
	long n = bench_lockers_ready(b, fiber_yield);

	while (n--) {
		fiber_mutex_lock(&mutex);
		b->count++;
		fiber_yield();
		fiber_mutex_unlock(&mutex);
	}
	return NULL;
}

static void lockers(long n, void *(*fn)(void *))
{
	struct bench_lock b = { .n = n };
	fiber_t *f[BENCH_LOCKERS];
	int i;

	for (i = 0; i < BENCH_LOCKERS; i++)
		f[i] = start(fn, &b);
	for (i = 0; i < BENCH_LOCKERS; i++)
		fiber_join(f[i], NULL);
	bench_lockers_end(&b);
}

static void run_mutex(long n)
{
	lockers(n, locker);
}

static void run_mutex_yield(long n)
{
	lockers(n, yielding_locker);
}

static long run_fib(long n)
{
	return (long)fib((void *)n);
}

static long run_skynet(long leaves)
{
	struct bench_node root = { .size = leaves };

	return (long)skynet(&root);
}

static void *reader(void *arg)
{
	bench_read((long)arg);
	return NULL;
}

static void *spinner(void *arg)
{
	bench_spin();
	return NULL;
}

static void blocked(void)
{
	fiber_t *f[2 + BENCH_READERS];
	long i;

	for (i = 0; i < 2; i++)
		f[i] = start(spinner, NULL);
	for (i = 0; i < BENCH_READERS; i++)
		f[2 + i] = start(reader, (void *)i);
	for (i = 0; i < 2 + BENCH_READERS; i++)
		fiber_join(f[i], NULL);
}

static void sleep_until(long long ns)
{
	fiber_sleep_until((uint64_t)ns);
}

static void *sleeper(void *arg)
{
	bench_sleeper((long)arg, sleep_until);
	return NULL;
}

static void sleepers(long n)
{
	fiber_t **f = calloc(n, sizeof(*f));
	long i;

	for (i = 0; i < n; i++)
		f[i] = start(sleeper, (void *)i);
	for (i = 0; i < n; i++)
		fiber_join(f[i], NULL);
	free(f);
}

void bench_ours_parked(struct bench_parked *b);	/* parked.c */
void bench_ours_echo(int fd);			/* io.c */
void bench_ours_preads(long n);

/* ---- coroutines ---- */

static int echo(void *arg, void **value)
{
	void *v = *value;

	while (!fiber_coro_yield(v, &v))
		;
	return 0;
}

static int ends(void *arg, void **value)
{
	return 0;
}

static fiber_coro_t *create(fiber_coro_fn fn)
{
	fiber_coro_t *co;
	int r = fiber_coro_create(&co, fn, NULL);

	if (r) {
		fprintf(stderr, "fiber_coro_create: %d\n", r);
		exit(1);
	}
	return co;
}

static void coro(long n)
{
	fiber_coro_t *co = create(echo);
	void *v;

	while (n--)
		fiber_coro_resume(co, (void *)n, &v);
	fiber_coro_destroy(co);
}

static void coro_create(long n)
{
	fiber_coro_t *co;

	while (n--) {
		co = create(ends);
		fiber_coro_resume(co, NULL, NULL);
		fiber_coro_destroy(co);
	}
}

static const struct bench_ops ops = {
	.switches = switches,
	.switches_called = switches_called,
	.spawn = spawn,
	.yields = yields,
	.fib = run_fib,
	.skynet = run_skynet,
	.hop = hop,
	.buffered = buffered,
	.mutex = run_mutex,
	.mutex_yield = run_mutex_yield,
	.parked = bench_ours_parked,
	.blocked = blocked,
	.sleepers = sleepers,
	.coro = coro,
	.coro_create = coro_create,
	.echo = bench_ours_echo,
	.preads = bench_ours_preads,
};

struct args {
	int argc;
	char **argv;
};

static int fibers_main(void *arg)
{
	struct args *a = arg;

	return bench_main(a->argc, a->argv, &ops);
}

int main(int argc, char **argv)
{
	struct args a = { argc, argv };

	setenv("FIBER_PROCESSORS", bench_processors(argc, argv) == 2 ? "2" : "1",
	       1);
	return fiber_run(fibers_main, &a);
}
