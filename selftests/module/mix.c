// SPDX-License-Identifier: GPL-2.0-only
/*
 * mix.c - see mix.h
 *
 * Workers are carriers with a fiber to run: each does some random steps and ends
 * in one of several ways; the main thread replaces it. Spares take over when
 * workers block; a keeper makes them as the module asks. A bomber sends signals, a
 * sampler adds up fdinfo. All of it goes on while raw_exclude() looks.
 *
 * A worker may hold a lock of libc when it loses its processor, and may own one
 * out of fiber, which nobody takes from it: if it then waited for that lock, it
 * would do so for ever. So none takes such a lock there: they neither allocate nor
 * free, fork by _Fork, and are joined by the main thread, which is no carrier.
 */
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "mix.h"

#define AREA_PAGES	16
#define MAX_SPARES	24
#define MAX_WORKERS	64

unsigned int mix_stop;
extern char **environ;

static const struct mix_options *opt;
static unsigned int alive, spares, sampling, serving;
static uint64_t steps, signals, threads, samples, bad_sums, lazy, seed;
static uint64_t faults, execs;
static pid_t tids[MAX_WORKERS];		/* -1: has ended, or none was made */
static int uffd = -1;
static char *served;			/* a page for each worker */
static int tokens[2];
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static struct worker {
	uint64_t random;
	char *area;
	unsigned int place;
	pthread_t thread;		/* while area is not NULL */
} workers[MAX_WORKERS];

static unsigned int pick(uint64_t *random, unsigned int n)
{
	*random ^= *random << 13;
	*random ^= *random >> 7;
	*random ^= *random << 17;
	return *random % n;
}

RAW_TEXT void mix_spin(uint64_t turns)
{
	while (turns--)
		asm volatile("");
}

static void step_token(struct worker *w)
{
	char c;

	if (read(tokens[0], &c, 1) != 1)
		return;
	raw_exclude();
	if (pick(&w->random, 2))
		raw_sleep(100);
	while (write(tokens[1], &c, 1) != 1)
		;
}

static void step_mutex(struct worker *w)
{
	pthread_mutex_lock(&mutex);
	raw_exclude();
	if (pick(&w->random, 2))
		raw_sleep(50);
	pthread_mutex_unlock(&mutex);
}

static void step_sleep(struct worker *w)
{
	raw_sleep(pick(&w->random, 500));
}

static void step_faults(struct worker *w)
{
	int i;

	madvise(w->area, AREA_PAGES * RAW_PAGE, MADV_DONTNEED);
	for (i = 0; i < AREA_PAGES; i++)
		w->area[i * RAW_PAGE]++;
}

static void step_spin(struct worker *w)
{
	mix_spin(1000 << pick(&w->random, 8));
}

/* Another fiber's turn; this one goes on when it is its turn again. */
static void step_turn(struct worker *w)
{
	uint32_t flags = FIBER_WAIT_READY | FIBER_WAIT_GIVE;

	if (pick(&w->random, 2))
		flags |= FIBER_WAIT_TO_SPARE;
	raw_leave();
	raw_processor(raw_page->processor)->seq++;
	if (!raw_own(flags))
		raw_takeover(pick(&w->random, 4) ? FIBER_TAKEOVER_READY : 0);
	raw_enter();
}

/* Nothing to run for a while. */
static void step_idle(struct worker *w)
{
	uint64_t until = raw_now() + pick(&w->random, 300000);
	uint32_t flags = FIBER_WAIT_SPARE | FIBER_WAIT_GIVE;
	int err;

	if (pick(&w->random, 2))
		flags |= FIBER_WAIT_SURE;
	raw_leave();
	raw_takeover(0);
	err = raw_wait(flags, until, NULL);
	if (err == -EINTR)
		err = raw_own(FIBER_WAIT_READY);
	if (!err)
		raw_takeover(pick(&w->random, 4) ? FIBER_TAKEOVER_READY : 0);
	raw_enter();
}

static void step_poll(struct worker *w)
{
	poll(NULL, 0, pick(&w->random, 2));
}

static void step_yield(struct worker *w)
{
	sched_yield();
	syscall(SYS_getppid);
}

static void step_no_preempt(struct worker *w)
{
	uint32_t before, after;

	raw_page->no_preempt = 1;
	asm volatile("" ::: "memory");
	before = raw_page->processor;
	raw_sleep(50);
	after = raw_page->processor;
	asm volatile("" ::: "memory");
	raw_page->no_preempt = 0;
	if (before != after && !raw_info->dead)
		ADD(raw_violations, 1);
}

static void step_wake(struct worker *w)
{
	raw_ioctl(raw_fd, FIBER_IOC_WAKE, NULL);
}

static void step_hint(struct worker *w)
{
	raw_hint->work = pick(&w->random, 2);
}

static void step_fork(struct worker *w)
{
	pid_t pid;

	if (!opt->forks || pick(&w->random, 40))
		return;
	pid = _Fork();			/* takes no lock of libc's */
	if (!pid)
		_exit(0);
	while (pid > 0 && waitpid(pid, NULL, 0) < 0 && errno == EINTR)
		;
}

static void step_exec(struct worker *w)
{
	char *argv[] = { "mix", MIX_NOTHING, NULL };
	int status;
	pid_t pid;

	if (!opt->execs || pick(&w->random, 40) ||
	    posix_spawn(&pid, "/proc/self/exe", NULL, NULL, argv, environ))
		return;
	raw_exclude();
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	ADD(execs, 1);
}

/* Blocks in a page fault until the server thread copies the page. */
static void step_served_fault(struct worker *w)
{
	volatile char *page = served + w->place * RAW_PAGE;

	if (uffd < 0)
		return;
	madvise((char *)page, RAW_PAGE, MADV_DONTNEED);
	if (page[17] != 'p') {
		ADD(raw_violations, 1);
		return;
	}
	ADD(faults, 1);
}

static void (* const step[])(struct worker *) = {
	step_exec, step_served_fault, step_token, step_mutex, step_sleep, step_faults, step_spin, step_turn,
	step_idle, step_poll, step_yield, step_no_preempt, step_wake, step_hint,
	step_fork, step_token, step_turn, step_spin,
};

static void run_fiber(struct worker *w)
{
	unsigned int n = 20 + pick(&w->random, 200);

	raw_enter();
	while (n-- && !LOAD(mix_stop)) {
		step[pick(&w->random, sizeof(step) / sizeof(*step))](w);
		raw_exclude();
		ADD(steps, 1);
	}
}

/* Ends properly, or as a thread that just goes, in fiber or not. */
static void end_carrier(struct worker *w)
{
	unsigned int how = pick(&w->random, 3);

	if (how == 0)
		return;			/* in fiber, owner */
	raw_leave();
	raw_takeover(0);
	if (how == 1)
		raw_detach();
}

static void *worker(void *arg)
{
	struct worker *w = arg;

	STORE(tids[w->place], (pid_t)syscall(SYS_gettid));
	if (!raw_attach() && !raw_own(FIBER_WAIT_READY)) {
		raw_takeover(FIBER_TAKEOVER_READY);
		run_fiber(w);
		STORE(tids[w->place], 0);
		end_carrier(w);
	}
	STORE(tids[w->place], -1);
	ADD(alive, -1);
	return NULL;
}

/* The one that was there has ended. */
static void end_worker(struct worker *w)
{
	if (!w->area)
		return;
	pthread_join(w->thread, NULL);
	munmap(w->area, AREA_PAGES * RAW_PAGE);
	w->area = NULL;
}

static void start_worker(unsigned int place)
{
	struct worker *w = &workers[place];

	end_worker(w);
	w->area = mmap(NULL, AREA_PAGES * RAW_PAGE, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	w->random = ++seed * 0x9e3779b97f4a7c15ULL;
	w->place = place;
	threads++;
	ADD(alive, 1);
	STORE(tids[place], 0);
	w->thread = raw_thread(worker, w);
}

static void *spare(void *arg)
{
	uint32_t flags = FIBER_WAIT_SPARE;
	int err;

	if (raw_attach())
		return NULL;
	do {
		err = raw_wait(flags, 0, NULL);
		flags = FIBER_WAIT_SPARE;
		if (!err) {
			raw_enter();
			raw_exclude();
			mix_spin(2000);
			raw_exclude();
			raw_leave();
			raw_takeover(0);
			flags |= FIBER_WAIT_GIVE | FIBER_WAIT_SURE;
		}
	} while (!err || err == -EINTR);
	return NULL;
}

static void *keeper(void *arg)
{
	int missing;

	while ((missing = raw_ioctl(raw_fd, FIBER_IOC_KEEP, NULL)) >= 0) {
		if (LOAD(mix_stop))
			raw_sleep(10000);
		for (; missing-- > 0 && spares < MAX_SPARES; spares++)
			pthread_detach(raw_thread(spare, NULL));
		raw_sleep(1000);
	}
	return NULL;
}

static void *bomber(void *arg)
{
	uint64_t random = 4711;
	pid_t tid;

	while (!LOAD(mix_stop)) {
		tid = LOAD(tids[pick(&random, opt->workers)]);
		if (tid > 0)
			syscall(SYS_tgkill, getpid(), tid,
				pick(&random, 2) ? SIGUSR1 : SIGUSR2);
		raw_sleep(200);
	}
	return NULL;
}

static void *sampler(void *arg)
{
	struct raw_stats st;

	while (LOAD(sampling)) {
		if (!raw_stats(&st)) {
			samples++;
			bad_sums += st.owned + st.idle + st.flight !=
				raw_args.processors;
			lazy += st.idle && st.waiting;
		}
		raw_sleep(3000);
	}
	return NULL;
}

/* --- page faults that last -------------------------------------------------- */

static bool open_faults(void)
{
	struct uffdio_api api = { .api = UFFD_API };
	struct uffdio_register reg = { .mode = UFFDIO_REGISTER_MODE_MISSING };
	int fd = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);

	served = mmap(NULL, MAX_WORKERS * RAW_PAGE, PROT_READ | PROT_WRITE,
		      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	reg.range.start = (uintptr_t)served;
	reg.range.len = MAX_WORKERS * RAW_PAGE;
	if (fd < 0 || ioctl(fd, UFFDIO_API, &api) ||
	    ioctl(fd, UFFDIO_REGISTER, &reg))
		return false;
	uffd = fd;
	return true;
}

/* Serves until nobody is left who could fault. */
static void *serves_faults(void *arg)
{
	static char page[RAW_PAGE] __attribute__((aligned(RAW_PAGE)));
	struct pollfd p = { .fd = uffd, .events = POLLIN };
	struct uffdio_copy copy = { .src = (uintptr_t)page, .len = RAW_PAGE };
	uint64_t random = 815;
	struct uffd_msg msg;

	memset(page, 'p', sizeof(page));
	while (LOAD(serving)) {
		if (poll(&p, 1, 10) != 1 ||
		    read(uffd, &msg, sizeof(msg)) != sizeof(msg))
			continue;
		if (pick(&random, 2))
			raw_sleep(pick(&random, 2000));
		copy.dst = msg.arg.pagefault.address & -RAW_PAGE;
		ioctl(uffd, UFFDIO_COPY, &copy);
	}
	return NULL;
}

/* In fiber the handler owns a processor like any fiber code. */
static void on_signal(int signal)
{
	int saved = errno;

	ADD(signals, 1);
	if (raw_page && raw_page->in_fiber)
		raw_exclude();
	errno = saved;
}

static void catch_signals(void)
{
	struct sigaction a = { .sa_handler = on_signal };

	sigaction(SIGUSR2, &a, NULL);
	a.sa_flags = SA_RESTART;
	sigaction(SIGUSR1, &a, NULL);
}

/* On a machine that is busy with others a second may pass without a step. */
static bool goes_on(uint64_t end)
{
	uint64_t now = raw_now();

	return !end || now < end ||
	       (LOAD(steps) < opt->steps &&
		now < end + RAW_PATIENCE * 1000000000ULL);
}

static void go_on(uint64_t end)
{
	unsigned int i;

	while (!LOAD(mix_stop) && goes_on(end)) {
		for (i = 0; i < opt->workers; i++)
			if (LOAD(tids[i]) == -1)
				start_worker(i);
		raw_sleep(2000);
	}
	STORE(mix_stop, 1);
}

int mix_run(const struct mix_options *o, struct mix_result *r)
{
	uint64_t end = o->seconds ? raw_now() + o->seconds * 1000000000ULL : 0;
	pthread_t keep, bomb = 0, sample, serve = 0;
	unsigned int i;
	int err;

	opt = o;
	raw_parameter("check", "1");
	if (pipe(tokens) || write(tokens[1], "abcd", 4) != 4)
		return -errno;
	catch_signals();
	keep = raw_thread(keeper, NULL);
	sampling = 1;
	sample = raw_thread(sampler, NULL);
	for (i = 0; i < o->workers; i++)
		tids[i] = -1;
	serving = o->faults && open_faults();
	if (serving)
		serve = raw_thread(serves_faults, NULL);
	if (o->signals)
		bomb = raw_thread(bomber, NULL);
	go_on(end);
	r->stuck = !RAW_UNTIL(!LOAD(alive));
	if (r->stuck)
		raw_tell();
	for (i = 0; i < o->workers && !r->stuck; i++)
		end_worker(&workers[i]);
	if (o->signals)
		pthread_join(bomb, NULL);
	STORE(sampling, 0);
	pthread_join(sample, NULL);
	if (LOAD(serving)) {
		STORE(serving, 0);
		pthread_join(serve, NULL);
	}
	err = raw_stats(&r->stats);
	close(raw_fd);			/* ends the spares and the keeper */
	pthread_join(keep, NULL);
	r->steps = steps;
	r->signals = signals;
	r->threads = threads;
	r->faults = faults;
	r->execs = execs;
	r->samples = samples;
	r->bad_sums = bad_sums;
	r->lazy = lazy;
	r->spares = spares;
	return err;
}

static void end_mix(int signal)
{
	STORE(mix_stop, 1);
}

_Noreturn void mix_child(unsigned int seconds)
{
	struct raw_options s = { .processors = 2, .quantum_ns = 1000000,
		.grace_ns = 50000, .preempt = true, .max_carriers = 128,
		.min_spares = 1 };
	struct mix_options o = { .seconds = seconds, .workers = 6, .steps = 11 };
	struct mix_result r = {};

	signal(SIGTERM, end_mix);
	if (raw_start(&s) || mix_run(&o, &r))
		_exit(1);
	printf("# child: %lu steps, %lu handoffs, %lu preempts, violations %u %lu %s\n",
	       r.steps, r.stats.handoffs, r.stats.preempts, raw_violations,
	       r.stats.violations, raw_violation);
	fflush(stdout);
	if (r.stuck)
		_exit(2);
	if (raw_violations || r.stats.violations || r.bad_sums || r.lazy)
		_exit(3);
	_exit(r.steps > 10 ? MIX_WELL : 4);
}
