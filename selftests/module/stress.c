// SPDX-License-Identifier: GPL-2.0-only
/*
 * stress.c - groups that do everything at once, while another process stops,
 * traces and kills them and tries to unload the module
 *
 * FIBER_STRESS_SECONDS (20) long. Three places, in each a child with a group of
 * its own: blocks, page faults that a thread serves late, preemption at 50 us,
 * signals, forks, execs, threads that come and go. A child lives some seconds
 * and looks at its invariants, or is killed before; the next takes its place.
 * At the end nothing refers to the module any more.
 *
 * HAZARDS.md, "Interactions to test": this is the mixture of them.
 */
#include <signal.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "harness.h"
#include "mix.h"
#include "tracer.h"

#undef TEST_TIMEOUT_DEFAULT
#define TEST_TIMEOUT_DEFAULT	7200

#define PLACES	3
#define PASSED	7

static uint64_t seed;

static unsigned int pick(unsigned int n)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return seed % n;
}

/* --- a child ------------------------------------------------------------------ */

static bool whole(const struct mix_result *r)
{
	const struct raw_stats *s = &r->stats;

	return !r->stuck && r->steps && !r->bad_sums && !r->lazy &&
	       !s->violations && !LOAD(raw_violations) &&
	       s->owned + s->idle + s->flight == raw_args.processors;
}

/* One line that says it all; the parent only hears whether it was well. */
static void say(const struct raw_options *s, const struct mix_options *o,
		const struct mix_result *r)
{
	printf("# group: %u processors, %u workers, quantum %lu us, grace %lu us, %u s: %lu steps, %lu threads, %lu blocks, %lu handoffs, %lu returns, %lu preempts, %lu signals, %lu faults, %lu execs; stuck %d, sums %lu of %lu, lazy %lu, violations %lu %u %s\n",
	       s->processors, o->workers, s->quantum_ns / 1000,
	       s->grace_ns / 1000, o->seconds, r->steps, r->threads,
	       r->stats.blocks, r->stats.handoffs, r->stats.returns,
	       r->stats.preempts, r->signals, r->faults, r->execs, r->stuck,
	       r->bad_sums, r->samples, r->lazy, r->stats.violations,
	       LOAD(raw_violations), raw_violation);
	fflush(stdout);
}

static void child(void)
{
	static const uint64_t quantum[] = { 50000, 50000, 200000, 1000000 };
	static const uint64_t grace[] = { 0, 50000, 2000000 };
	struct raw_options s = {
		.processors = 1 + pick(4), .quantum_ns = quantum[pick(4)],
		.grace_ns = grace[pick(3)], .preempt = true,
		.max_carriers = 512, .min_spares = pick(4),
	};
	struct mix_options o = {
		.seconds = 1 + pick(5), .workers = 3 + pick(12), .steps = 1,
		.signals = true, .forks = true, .execs = true, .faults = true,
	};
	struct mix_result r = {};

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (raw_start(&s) || mix_run(&o, &r))
		_exit(1);
	say(&s, &o, &r);
	_exit(whole(&r) ? PASSED : 2);
}

/* --- who disturbs --------------------------------------------------------------- */

static struct {
	unsigned int started, passed, killed, stops, traces, unloads;
} did;

struct place {
	pid_t pid;
	bool killed;
};

static void start(struct place *p)
{
	pick(2);			/* another child, other options */
	p->killed = false;
	p->pid = fork();
	if (!p->pid)
		child();
	did.started++;
}

static void stop_for_a_while(struct place *p)
{
	kill(p->pid, SIGSTOP);
	raw_sleep(pick(20000));
	kill(p->pid, SIGCONT);
	did.stops++;
}

/* Not its first thread: to wait for that would take the child's status. */
static void look_at_a_thread(struct place *p)
{
	pid_t tid = tracer_thread(p->pid, pick(64));

	if (tid <= 0 || tid == p->pid)
		return;
	did.traces += tracer_go(tid, pick(2) ? PTRACE_SINGLESTEP
					     : PTRACE_SYSCALL, 1 + pick(20));
}

static void kill_it(struct place *p)
{
	if (pick(8))
		return;
	kill(p->pid, SIGKILL);
	p->killed = true;
}

/* Not while we have a file of it: always -EWOULDBLOCK. */
static void try_to_unload(struct __test_metadata *_metadata)
{
	EXPECT_EQ(-1, syscall(SYS_delete_module, "fiber", O_NONBLOCK));
	EXPECT_EQ(EWOULDBLOCK, errno);
	did.unloads++;
}

static void disturb(struct __test_metadata *_metadata, struct place *p)
{
	switch (pick(10)) {
	case 0 ... 3:
		stop_for_a_while(p);
		break;
	case 4 ... 6:
		look_at_a_thread(p);
		break;
	case 7:
		kill_it(p);
		break;
	case 8:
		try_to_unload(_metadata);
		break;
	default:
		raw_sleep(pick(50000));
	}
}

/* Has the child of this place ended, and as it should? */
static bool ended(struct __test_metadata *_metadata, struct place *p, int flags)
{
	int status = -1;

	if (waitpid(p->pid, &status, flags) != p->pid)
		return false;
	if (p->killed && WIFSIGNALED(status)) {
		EXPECT_EQ(SIGKILL, WTERMSIG(status));
		did.killed++;
	} else {
		EXPECT_TRUE(WIFEXITED(status)) TH_LOG("status %x", status);
		EXPECT_EQ(PASSED, WEXITSTATUS(status));
		did.passed++;
	}
	p->pid = 0;
	return true;
}

static unsigned int seconds(void)
{
	const char *s = getenv("FIBER_STRESS_SECONDS");

	return s && atoi(s) > 0 ? atoi(s) : 20;
}

TEST(mixed)
{
	struct place place[PLACES] = {};
	uint64_t end;
	int fd, base, i;

	NEED_MODULE();
	base = raw_refcnt();
	fd = raw_open();
	ASSERT_LE(0, fd);
	seed = raw_now() | 1;
	TH_LOG("%u s from seed %lu", seconds(), seed);
	raw_parameter("check", "1");
	end = raw_now() + seconds() * 1000000000ULL;
	while (raw_now() < end && _metadata->exit_code != KSFT_FAIL) {
		i = pick(PLACES);
		if (!place[i].pid || ended(_metadata, &place[i], WNOHANG))
			start(&place[i]);
		else
			disturb(_metadata, &place[i]);
		raw_sleep(pick(10000));
	}
	for (i = 0; i < PLACES; i++)
		if (place[i].pid)
			EXPECT_TRUE(ended(_metadata, &place[i], 0));
	close(fd);
	TH_LOG("%u groups: %u ended well, %u were killed; %u stops, %u traced stops, %u times not unloaded",
	       did.started, did.passed, did.killed, did.stops, did.traces,
	       did.unloads);
	EXPECT_LE(1, did.passed);
	EXPECT_TRUE(RAW_UNTIL(raw_refcnt() <= base))
		TH_LOG("%d references are left", raw_refcnt());
}

int main(int argc, char **argv)
{
	if (argc == 2 && !strcmp(argv[1], MIX_NOTHING))
		return 0;
	return test_harness_run(argc, argv);
}
