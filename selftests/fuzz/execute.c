// SPDX-License-Identifier: GPL-2.0-only
/*
 * execute.c - one program, in a process that is thrown away
 *
 * Each thread has its calls in order. Unless the program says "together", call
 * i + 1 starts when call i has ended or has taken LATE_US (it is blocked): most
 * of a program then repeats. A writer thread meanwhile stores into every shared
 * word it finds mapped. Faults of user memory end the call, not the process.
 */
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "../module/raw.h"
#include "fuzz.h"

enum { LATE_US = 1000, LINGER_US = 8000 };

static const struct program *program;
static sem_t turn[THREADS];		/* one up for each call that may start */
static unsigned int ended;		/* calls that have ended, or never will */
static uint64_t writer_seed;

static __thread sigjmp_buf escape;
static __thread volatile bool can_escape;

/* ---- faults ---- */

static void on_fault(int sig)
{
	if (!can_escape)
		_exit(EXIT_FINE);
	siglongjmp(escape, 1);
}

static void on_kick(int sig)
{
	struct timespec t = { .tv_nsec = 50000 };

	if (sig == SIGUSR2)
		nanosleep(&t, NULL);
}

static void handle(int sig, void (*fn)(int), int flags)
{
	struct sigaction sa = { .sa_handler = fn, .sa_flags = flags };

	sigaction(sig, &sa, NULL);
}

/* Run fn(arg); false: it touched memory that is not there. */
bool execute_try(void (*fn)(const void *), const void *arg)
{
	sigjmp_buf outer;
	bool nested = can_escape, fine;

	memcpy(&outer, &escape, sizeof(outer));
	can_escape = true;
	fine = !sigsetjmp(escape, 1);
	if (fine)
		fn(arg);
	memcpy(&escape, &outer, sizeof(outer));
	can_escape = nested;
	return fine;
}

/* ---- the hostile writer ---- */

struct shot {
	volatile uint32_t *word;
	uint32_t value;
};

static void shoot(const void *arg)
{
	const struct shot *s = arg;

	*s->word = s->value;
}

/* depth and slots lead a carrier astray at its next upcall: only if asked to */
static bool spared(uint32_t kind, uint32_t word)
{
	return program->writer < 2 && kind == MAP_CARRIERS &&
	       (word == 4 || (word >= 16 && word < 16 + 2 * FIBER_SLOTS));
}

static void aim(struct shot *s, uint64_t *state)
{
	struct fuzz_map *m = &fuzz_map[fuzz_random(state) % MAPS];
	volatile uint32_t *base = __atomic_load_n(&m->base, __ATOMIC_ACQUIRE);
	uint32_t word = (uint32_t)(fuzz_random(state) % 48);

	s->word = NULL;
	if (!base || !m->pages || m->kind == MAP_INFO || spared(m->kind, word))
		return;
	s->word = base + fuzz_random(state) % m->pages % 16 * 1024 + word;
	s->value = (uint32_t)fuzz_random(state);
	if (fuzz_random(state) % 3)
		s->value %= 2;
}

static void *writes(void *arg)
{
	uint64_t state = writer_seed;
	struct shot s;

	for (;;) {
		aim(&s, &state);
		if (s.word)
			execute_try(shoot, &s);
		if (!(fuzz_random(&state) % 64))
			raw_sleep(50);
	}
	return NULL;
}

/* ---- the threads ---- */

static void run_call(const void *arg)
{
	const struct call *c = arg;

	fuzz_op[c->op].run(c);
}

static void *runs(void *arg)
{
	unsigned int t = (unsigned int)(uintptr_t)arg;

	STORE(fuzz_tid[t], (int)syscall(SYS_gettid));
	cover_begin(t);
	for (uint32_t i = 0; i < program->nr; i++) {
		if (program->call[i].thread != t)
			continue;
		while (sem_wait(&turn[t]))
			;
		execute_try(run_call, &program->call[i]);
		ADD(ended, 1);
	}
	return NULL;
}

/* True: as many calls have ended in time. */
static bool wait_ended(unsigned int calls, unsigned int us)
{
	uint64_t end = raw_now() + us * 1000ULL;

	while (LOAD(ended) < calls) {
		if (raw_now() > end)
			return false;
		raw_sleep(50);
	}
	return true;
}

static void run_all(void)
{
	unsigned int lost = 0;		/* blocked, or behind a blocked one */

	for (uint32_t i = 0; i < program->nr; i++) {
		sem_post(&turn[program->call[i].thread]);
		if (!program->together && !wait_ended(i + 1 - lost, LATE_US))
			lost++;
	}
	wait_ended(program->nr, LINGER_US);
}

/* What the module's own check() has counted (parameter check=1). */
static bool violated(int fd)
{
	char path[64], text[2048];
	const char *at;
	ssize_t n;

	snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", fd);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	n = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);
	close(fd);
	if (n <= 0)
		return false;
	text[n] = 0;
	at = strstr(text, "fiber-violations:");
	return at && strtoull(at + 17, NULL, 10);
}

static void signals(void)
{
	handle(SIGSEGV, on_fault, SA_NODEFER);
	handle(SIGBUS, on_fault, SA_NODEFER);
	handle(SIGILL, on_fault, SA_NODEFER);
	handle(SIGFPE, on_fault, SA_NODEFER);
	handle(SIGTRAP, on_fault, SA_NODEFER);
	handle(SIGUSR1, on_kick, 0);
	handle(SIGUSR2, on_kick, SA_RESTART);
	handle(SIGCHLD, SIG_DFL, 0);
}

void execute_program(const struct program *p, uint64_t seed)
{
	program = p;
	writer_seed = seed;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	signals();
	for (unsigned int t = 0; t < THREADS; t++)
		sem_init(&turn[t], 0, 0);
	for (unsigned int t = 0; t < THREADS; t++)
		raw_thread(runs, (void *)(uintptr_t)t);
	if (p->writer)
		raw_thread(writes, NULL);
	run_all();
	for (int i = 0; i < FILES; i++)
		if (violated(fuzz_file[i]))
			_exit(EXIT_VIOLATION);
	_exit(EXIT_FINE);
}
