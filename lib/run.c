// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * run.c - start and stop of the runtime, and what it says of itself
 *
 *   OFF -> STARTING -> ON -> STOPPING -> OFF	fiber_init, fiber_fini
 *			ON -> ABANDONED		fiber_run with fibers alive
 *   any -> FORKED				in the child of a fork
 *
 * From STOPPING on carriers run no more fibers. ABANDONED goes back to OFF only
 * when the last fiber had ended after all. FORKED is final: a child may call
 * exec or _exit, and every call of this library answers -EPERM.
 */
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "blocked.h"
#include "cold.h"
#include "contention.h"
#include "held.h"
#include "pool.h"
#include "poller.h"
#include "ring.h"
#include "sync.h"
#include "task.h"
#include "trace.h"
#include "user.h"

#define DEFAULT_CARRIERS 10000
#define SPARES		6	/* beyond one a processor, for a burst of blocks */
#define DEFAULT_STACK	65536
#define NOT_SEEDED	(FIBER_FEATURE_HANDOFF | FIBER_FEATURE_EXACT | \
			 FIBER_FEATURE_PREEMPT)
#define MIN_STACK	16384
#define MAX_STACK	(1ull << 36)
#define DEFAULT_QUANTUM	10000000ULL
#define MIN_QUANTUM	50000ULL
#define DEFAULT_GRACE	50000ULL
#define MAX_GRACE	10000000ULL

struct fb_runtime fb_rt;

static char backend_line[320];
static uint32_t lines_said;		/* atomic */

/* ---- words to the user ---- */

static void say(const char *fmt, va_list ap)
{
	char buf[320];
	int n = snprintf(buf, sizeof(buf), "fiber: "), m, err = errno;

	m = vsnprintf(buf + n, sizeof(buf) - 1 - n, fmt, ap);
	n += m > 0 ? m : 0;
	if (n > (int)sizeof(buf) - 2)
		n = sizeof(buf) - 2;
	buf[n++] = '\n';
	__atomic_fetch_add(&lines_said, 1, __ATOMIC_RELAXED);
	fb_os_write(STDERR_FILENO, buf, (size_t)n);
	errno = err;			/* of snprintf */
}

void fb_say(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	say(fmt, ap);
	va_end(ap);
}

void fb_last_words(void)
{
	fb_trace_fatal();
	fb_contention_fatal();
}

_Noreturn void fb_die(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	say(fmt, ap);
	va_end(ap);
	fb_last_words();
	abort();
}

/* The holder is in a short section, but its thread may have been put off. */
void fb_lock_slow(fb_lock_t *l)
{
	int n = 0;

	do {
		while (FB_READ(l->held)) {
			if (++n % 128)
				fb_cpu_relax();
			else
				sched_yield();
		}
		/* Pairs with the release in fb_unlock. */
	} while (__atomic_exchange_n(&l->held, 1, __ATOMIC_ACQUIRE));
}

/* ---- configuration ---- */

int fb_env_number(const char *name, uint64_t min, uint64_t max, uint64_t *value)
{
	const char *s = secure_getenv(name);
	unsigned long long v;
	char *end;
	int err = errno;

	if (!s || !*s)
		return 0;
	errno = 0;
	v = strtoull(s, &end, 10);
	/* strtoull takes blanks and a minus. */
	if (errno || *end || *s < '0' || *s > '9' || v < min || v > max) {
		fb_say("%s=%s: a number from %llu to %llu is wanted", name, s,
		       (unsigned long long)min, (unsigned long long)max);
		errno = err;
		return -EINVAL;
	}
	errno = err;
	*value = v;
	return 1;
}

static int read_env(struct fiber_config *k)
{
	uint64_t n = k->processors, quantum = k->quantum_ns / 1000, grace = 0;
	uint64_t check = 0;
	int r;

	/* Heeded where something is misused (misuse.c); told here, if wrong. */
	r = fb_env_number("FIBER_CHECK", 0, 1, &check);
	if (r < 0)
		return r;
	fb_rt.checks = (uint32_t)check;
	r = fb_env_number("FIBER_PROCESSORS", 1, FB_MAX_PROCESSORS, &n);
	if (r < 0)
		return r;
	k->processors = (unsigned int)n;
	r = fb_env_number("FIBER_SEED", 0, UINT64_MAX, &k->seed);
	if (r < 0)
		return r;
	r = fb_env_number("FIBER_QUANTUM_US", MIN_QUANTUM / 1000, 10000000,
		       &quantum);
	if (r < 0)
		return r;
	if (r)
		k->quantum_ns = quantum * 1000;
	r = fb_env_number("FIBER_GRACE_US", 0, MAX_GRACE / 1000, &grace);
	if (r > 0)
		k->grace_ns = grace ? grace * 1000 : FIBER_GRACE_NONE;
	return r < 0 ? r : 0;
}

static int refuse(const char *field, const char *is, uint64_t limit)
{
	fb_say("fiber_config.%s is %s %llu", field, is,
	       (unsigned long long)limit);
	return -EINVAL;
}

static int check_config(const struct fiber_config *k)
{
	if (k->processors > FB_MAX_PROCESSORS)
		return refuse("processors", "more than", FB_MAX_PROCESSORS);
	if (k->max_processors > FB_MAX_PROCESSORS)
		return refuse("max_processors", "more than", FB_MAX_PROCESSORS);
	if (k->stack_size > MAX_STACK)
		return refuse("stack_size", "more than", MAX_STACK);
	if (k->quantum_ns && k->quantum_ns < MIN_QUANTUM)
		return refuse("quantum_ns", "less than", MIN_QUANTUM);
	if (k->grace_ns > MAX_GRACE && k->grace_ns != FIBER_GRACE_NONE)
		return refuse("grace_ns", "more than", MAX_GRACE);
	return 0;
}

/* How many processors there are, and can be. */
static void set_processors(const struct fiber_config *k)
{
	uint32_t n = k->seed ? 1 : k->processors, most = k->max_processors;

	fb_rt.follow = n ? 0 : FB_FOLLOW_CPUS;
	if (!n) {
		n = fb_cpus(0);
		if (!most)
			most = fb_follow_most(n);
		else if (n > most)
			n = most;
	}
	if (k->seed || most < n)
		most = n;
	fb_rt.group.use = n;
	fb_rt.group.nproc = most;
	if (most > n)
		fb_rt.follow |= FB_FOLLOW_SOON;
}

static int configure(const struct fiber_config *cfg)
{
	struct fb_group *g = &fb_rt.group;
	struct fiber_config k = { 0 };
	size_t page = sysconf(_SC_PAGESIZE);
	int r;

	if (cfg) {
		if (cfg->size < sizeof(cfg->size) || cfg->size > sizeof(k))
			return refuse("size", "not", sizeof(k));
		memcpy(&k, cfg, cfg->size);
	}
	r = read_env(&k);
	if (r)
		return r;
	r = check_config(&k);
	if (r)
		return r;
	fb_seed_start(k.seed);
	set_processors(&k);
	g->max_carriers = k.max_carriers ? k.max_carriers : DEFAULT_CARRIERS;
	if (g->max_carriers < g->nproc + 1)
		g->max_carriers = g->nproc + 1;
	g->min_spares = g->use + SPARES;
	if (g->min_spares > g->max_carriers - g->nproc)
		g->min_spares = g->max_carriers - g->nproc;
	if (!k.stack_size)
		k.stack_size = DEFAULT_STACK;
	if (k.stack_size < MIN_STACK)
		k.stack_size = MIN_STACK;
	k.stack_size *= FB_STACK_SCALE;
	fb_rt.stack_size = (k.stack_size + page - 1) & ~(page - 1);
	fb_rt.quantum_ns = k.quantum_ns ? k.quantum_ns : DEFAULT_QUANTUM;
	fb_rt.grace_ns = k.grace_ns == FIBER_GRACE_NONE ? 0 :
			 k.grace_ns ? k.grace_ns : DEFAULT_GRACE;
	return fb_cold_config(k.cold_ns);
}

/* ---- the backend ---- */

static int try_backend(const struct fb_backend *b)
{
	uint64_t features;
	int r;

	fb_rt.xsave_size = 0;
	r = fb_pool_setup(b, &fb_rt.group, &features);
	if (r)
		return r;
	fb_rt.backend = b;
	fb_rt.features = features;
	return 0;
}

static int say_no_kernel(int r)
{
	if (r == -ENOENT || r == -ENXIO || r == -ENODEV) {
		fb_say("FIBER_BACKEND=kernel, but there is no /dev/fiber: load the module (modprobe fiber)");
		return -ENODEV;
	}
	if (r == -EACCES || r == -EPERM) {
		fb_say("FIBER_BACKEND=kernel, but /dev/fiber may not be opened: see its mode and group (udev rule)");
		return -EACCES;
	}
	if (r == -EOPNOTSUPP)
		fb_say("FIBER_BACKEND=kernel, but this program runs with a user shadow stack, which the module does not support");
	else
		fb_say("FIBER_BACKEND=kernel, but /dev/fiber refuses: %s (does the module fit the library?)",
		       strerror(-r));
	return r;
}

static int choose_backend(void)
{
	const char *want = secure_getenv("FIBER_BACKEND");
	int r = -ENODEV;

	if (want && !*want)
		want = NULL;
	if (want && strcmp(want, "kernel") && strcmp(want, "user")) {
		fb_say("FIBER_BACKEND=%s: kernel or user is wanted", want);
		return -EINVAL;
	}
	if (fb_rt.seeded)		/* nothing is handed on or preempted */
		want = "user";
	if (!want || !strcmp(want, "kernel"))
		r = try_backend(&fb_kern);
	if (r && want && !strcmp(want, "kernel"))
		return say_no_kernel(r);
	return r ? try_backend(&fb_user) : 0;
}

static void describe(void)
{
	uint32_t use = fb_rt.group.use, nproc = fb_rt.group.nproc;
	uint64_t f = fb_rt.features;
	char seed[32] = "", most[32] = "";

	if (nproc > use)
		snprintf(most, sizeof(most), " of %u", nproc);
	if (fb_rt.seeded)
		snprintf(seed, sizeof(seed), "; seed %llu",
			 (unsigned long long)fb_seed_number());
	snprintf(backend_line, sizeof(backend_line),
		 "%s backend, %u%s processor%s, quantum %llu us, I/O by %s%s%s%s%s%s%s%s%s%s",
		 fb_rt.backend->name, use, most,
		 nproc == 1 ? "" : "s",
		 (unsigned long long)fb_rt.quantum_ns / 1000,
		 f & FIBER_FEATURE_IO_EPOLL ? "epoll" : "blocking calls",
		 f & FIBER_FEATURE_IO_URING ? ", of files by io_uring" : "",
		 f & (FIBER_FEATURE_EXACT | FIBER_FEATURE_SEEDED) ? "" :
		 "; blocking calls are noticed within milliseconds, not at once",
		 f & FIBER_FEATURE_HANDOFF ? "" : "; no handoff",
		 f & FIBER_FEATURE_NO_SIGNAL ? "" : "; uses SIGURG",
		 f & FIBER_FEATURE_PREEMPT ? "" : "; no preemption",
		 fb_rt.text_note[0] ? ": " : "", fb_rt.text_note,
		 f & FIBER_FEATURE_COLD ? "; pages out cold stacks" : "", seed);
}

/* ---- start and stop ---- */

static size_t proc_bytes(void)
{
	return sizeof(struct fb_processor) * FB_MAX_PROCESSORS;
}

static int make_processors(void)
{
	/* For any number: never unmapped, a few pages are touched. */
	if (!fb_rt.proc) {
		void *m = mmap(NULL, proc_bytes(), PROT_READ | PROT_WRITE,
			       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
			       -1, 0);
		if (m == MAP_FAILED)
			return -ENOMEM;
		fb_rt.proc = m;
	}
	fb_rt.nproc = 0;
	fb_pool_make(&fb_rt.group, 0);
	fb_rt.pool[0] = &fb_rt.group;
	fb_rt.nproc = fb_rt.group.nproc;
	fb_rt.epoch++;
	fb_rt.plain_spawned = fb_rt.plain_ours = fb_rt.plain_ids = 0;
	fb_rt.started = fb_clock();
	fb_rt.follow_at = 0;	/* the first fiber looks */
	fb_rt.settling = 0;
	fb_rt.looks = FB_NEVER;
	return 0;
}

static void fork_child(void)
{
	if (FB_READ(fb_rt.state) == FB_OFF)
		return;
	fb_coro_fork_child();
	if (fb_self)		/* NULL: a plain thread's, or a child of the child */
		fb_forked_as = fb_self->cur;
	fb_self = NULL;
	fb_rt.seeded = 0;
	fb_rt.solo = 0;		/* whose section it was is not here to end it */
	fb_rt.state = FB_FORKED;
	fb_forked_lock = (fb_lock_t){ 0 };
	fb_forks++;
	fb_forker = fb_self_id(NULL);
	fb_poller_fork_child();
	fb_signal_fork_child();
	fb_contention_fork_child();
	fb_deadlock_stop();
	fb_pool_fork_child();
}

/*
 * Before the program, so that its own handlers, which go on in this order in the child,
 * find what holds there, and no page of a carrier, which is not there.
 */
static __attribute__((constructor)) void watch_fork(void)
{
	pthread_atfork(NULL, NULL, fork_child);
}

/* What start() made, but for carriers. */
static void take_down(void)
{
	fb_cpus_stop();
	fb_trace_stop();
	fb_contention_stop();
	fb_held_stop();
	fb_poller_stop();
	fb_rt.backend->close(&fb_rt.group);
	fb_dump_stop();
	fb_deadlock_stop();
	fb_guard_fini();
	fb_stack_fini();
	fb_pool_unmake(&fb_rt.group);
}

/* Up to where there is something to take down. */
static int begin(const struct fiber_config *cfg)
{
	int r;

	fb_rt.fpu = fb_fpu_read();
	r = configure(cfg);
	if (!r)
		r = make_processors();
	if (!r)
		r = choose_backend();
	if (r)
		fb_cpus_stop();
	return r;
}

static int make_rest(void)
{
	int r;

	fb_wait_init();
	r = fb_poller_init();
	if (!r)
		r = fb_stack_init();
	if (!r)
		r = fb_preempt_init();
	if (!r && fb_rt.seeded)
		fb_rt.features = (fb_rt.features & ~NOT_SEEDED) |
				 FIBER_FEATURE_SEEDED;
	if (!r)
		r = fb_dump_start();
	if (!r)
		r = fb_deadlock_start();
	if (!r)
		r = fb_trace_start();
	if (!r)
		r = fb_contention_start();
	if (!r)
		r = fb_held_start();
	return r ? r : fb_carrier_start(&fb_rt.group);
}

/* What is wrong is said once: by who found it, if that is more than a word. */
static int start(const struct fiber_config *cfg)
{
	uint32_t lines = FB_READ(lines_said);
	int r = begin(cfg), r2 = r ? r : make_rest();

	if (r2 && FB_READ(lines_said) == lines)
		fb_say("cannot start: %s", strerror(-r2));
	if (!r2) {
		fb_cold_start();
		describe();
	} else if (!r) {
		take_down();
	}
	return r2;
}

static void stop(void)
{
	fb_signal_stop();
	fb_blocked_stop();
	fb_ring_stop();
	fb_pool_stop_all();
	fb_carrier_stop(&fb_rt.group);
	fb_cold_stop();
	take_down();
	fb_rt.features = 0;
	/* Pairs with the exchange of the next fiber_init. */
	FB_RELEASE(fb_rt.state, FB_OFF);
}

FB_EXPORT int fiber_init(const struct fiber_config *cfg)
{
	uint32_t state = FB_ABANDONED;
	int r, err = errno;

	if (FB_READ(fb_rt.state) == FB_FORKED)
		return -EPERM;
	/* Pairs with the releases in stop and fiber_run; one caller wins. */
	if (FB_READ(fb_rt.state) == FB_ABANDONED && !fb_fiber_alive() &&
	    !FB_READ(fb_rt.visitors) &&
	    __atomic_compare_exchange_n(&fb_rt.state, &state, FB_STOPPING,
					false, __ATOMIC_ACQ_REL,
					__ATOMIC_RELAXED))
		stop();
	state = FB_OFF;
	/* Pairs with the release in stop; one caller wins. */
	if (!__atomic_compare_exchange_n(&fb_rt.state, &state, FB_STARTING,
					 false, __ATOMIC_ACQ_REL,
					 __ATOMIC_RELAXED))
		return -EBUSY;
	r = start(cfg);
	errno = err;
	/* Pairs with all looks at the state. */
	FB_RELEASE(fb_rt.state, r ? FB_OFF : FB_ON);
	if (!r)
		fb_costack_tell();
	return r;
}

/* Nobody is alive and no plain thread is inside a call; none comes any more. */
static bool may_close(void)
{
	/* Pairs with visit.c. One decides at a time. */
	if (__atomic_exchange_n(&fb_rt.closing, 1, __ATOMIC_SEQ_CST))
		return false;
	if (!__atomic_load_n(&fb_rt.visitors, __ATOMIC_SEQ_CST) &&
	    !fb_fiber_alive())
		return true;
	/* Pairs with visit.c. */
	FB_RELEASE(fb_rt.closing, 0);
	return false;
}

FB_EXPORT int fiber_fini(void)
{
	/* Pairs with the releases of the state. */
	uint32_t state = FB_ACQUIRE(fb_rt.state);
	int err = errno;
	bool may;

	if (state == FB_FORKED)
		return -EPERM;
	if (fb_current() || (state == FB_ABANDONED && fb_fiber_alive()))
		return -EBUSY;
	if (state != FB_ON)
		return -EPERM;
	fb_task_settle();
	fb_signal_hold();
	may = may_close();
	if (may)
		/* Pairs with visit() and with the looks at the state. */
		FB_RELEASE(fb_rt.state, FB_STOPPING);
	fb_signal_let_go();
	if (!may)
		return -EBUSY;
	stop();
	FB_RELEASE(fb_rt.closing, 0);
	errno = err;
	return 0;
}

/* ---- fiber_run ---- */

struct main_call {
	int (*main)(void *);
	void *arg;
	int result;
};

static void *run_main(void *arg)
{
	struct main_call *m = arg;

	m->result = m->main(m->arg);
	return NULL;
}

static void abandon(void)
{
	/* Pairs with the exchange in fiber_init. */
	FB_RELEASE(fb_rt.state, FB_ABANDONED);
	fb_pool_abandon();
}

FB_EXPORT int fiber_run(int (*main)(void *), void *arg)
{
	const struct fiber_attr attr = { .size = sizeof(attr), .name = "main" };
	struct main_call m = { main, arg, 0 };
	fiber_t *f;
	int r;

	if (!main) {
		fb_say("fiber_run: there is no function to run");
		return -EINVAL;
	}
	if (fb_current())
		return -EBUSY;
	r = fiber_init(NULL);
	if (r)
		return r;
	FB_WRITE(fb_ct.runner, &fb_thread_mark);
	r = fiber_spawn_attr(&f, &attr, run_main, &m);
	if (!r)
		r = fiber_join(f, NULL);
	FB_WRITE(fb_ct.runner, NULL);
	/* Fibers are alive, or a plain thread is inside a call. */
	if (fiber_fini())
		abandon();
	return r ? r : m.result;
}

/* ---- what holds ---- */

FB_EXPORT uint64_t fiber_features(void)
{
	return FB_READ(fb_rt.features);
}

FB_EXPORT const char *fiber_backend(void)
{
	/* Pairs with the release in fiber_init. */
	return FB_ACQUIRE(fb_rt.state) < FB_ON ? "not started" : backend_line;
}

/* Its owner counts meanwhile, plainly. */
FB_LOOKS static void add_counters(struct fiber_stats *s,
				  const struct fb_processor *p)
{
	s->ended += FB_SEE(p->ended);
	s->switches += FB_SEE(p->pass) + FB_SEE(p->ended) -
		       FB_SEE(p->idle_passes);
	s->steals += FB_SEE(p->steals);
	s->preemptions += FB_SEE(p->preemptions);
}

/* The same: the backend's. */
FB_LOOKS static void add_returns(struct fiber_stats *s,
				 const struct fb_cpage *page)
{
	s->handoffs += FB_SEE(page->handoffs);
	s->returns += FB_SEE(page->returns);
}

static void add_group(struct fiber_stats *s, const struct fb_group *g)
{
	s->processors += FB_READ(g->use);
	s->carriers += FB_READ(g->info->carriers);
	s->spares += FB_READ(g->info->spares);
	s->idle += FB_READ(g->info->idle) + FB_READ(g->pollers);
}

FB_EXPORT int fiber_get_stats(struct fiber_stats *st)
{
	struct fiber_stats s = { 0 };
	struct fb_carrier *c;

	if (!st || st->size < sizeof(st->size))
		return -EINVAL;
	/* Pairs with the release in fiber_init. */
	if (FB_ACQUIRE(fb_rt.state) != FB_ON)
		return -EPERM;
	s.size = st->size < sizeof(s) ? st->size : sizeof(s);
	s.spawned = FB_READ(fb_rt.plain_spawned);
	for (uint32_t i = 0; i < fb_processors(); i++) {
		s.spawned += fb_fiber_spawned(&fb_rt.proc[i]);
		add_counters(&s, &fb_rt.proc[i]);
	}
	fb_pool_look();
	/* Pairs with carrier_make. */
	for (c = FB_ACQUIRE(fb_rt.carriers); c; c = c->next) {
		/* Pairs with the release in attach. */
		const struct fb_cpage *page = FB_ACQUIRE(c->page);

		if (page)		/* else not attached yet, or gone */
			add_returns(&s, page);
	}
	for (struct fb_group *g = fb_pool_next(NULL); g; g = fb_pool_next(g))
		if (g->runs == g)
			add_group(&s, g);
	fb_pool_looked();
	s.retired = fb_retired();
	memcpy(st, &s, s.size);
	return 0;
}
