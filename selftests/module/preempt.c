// SPDX-License-Identifier: GPL-2.0-only
/*
 * preempt.c - the end of a quantum: fair, invisible to the fiber, and refused
 * where it would do harm
 *
 * The raw interface has no fibers to switch between: a preempted carrier gives
 * its processor to the next one that waits and queues last.
 */
#include <linux/rseq.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/rseq.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "figures.h"
#include "harness.h"
#include "mix.h"

static unsigned int stop, running;

/* --- fair ------------------------------------------------------------------- */

enum { TURNS = 4096, ENOUGH = 31 };

/* struct turns - how long each turn of a loop was, in time stamp counts */
struct turns {
	uint64_t length[TURNS];
	unsigned int n;
};

struct loop {
	volatile uint64_t turns;
	uint64_t preempts;
	struct turns *timed;		/* NULL: it only counts */
	int err;
};

/* No call, nothing outside this section. */
RAW_TEXT static void count(struct loop *l, volatile unsigned int *end)
{
	while (!*end)
		l->turns++;
}

static volatile uintptr_t runner;	/* who counts now */

/* A turn lasts from the first look after another had it to the last one. */
RAW_TEXT static void count_turns(struct turns *mine, volatile unsigned int *end)
{
	uint64_t start = 0, last = 0, now;

	while (!*end) {
		now = __builtin_ia32_rdtsc();
		if (runner != (uintptr_t)mine) {
			if (start && mine->n < TURNS) {
				mine->length[mine->n] = last - start;
				STORE(mine->n, mine->n + 1);
			}
			runner = (uintptr_t)mine;
			start = now;
		}
		last = now;
	}
}

static void *loop(void *arg)
{
	struct loop *l = arg;

	l->err = raw_attach();
	l->err = l->err ?: raw_own(FIBER_WAIT_READY);
	if (l->err)
		return NULL;
	raw_takeover(FIBER_TAKEOVER_READY);
	ADD(running, 1);
	raw_enter();
	if (l->timed)
		count_turns(l->timed, &stop);
	else
		count(l, &stop);
	raw_exclude();
	raw_leave();
	l->preempts = raw_page->preempts;
	return NULL;
}

/* Of the shorter of both's next turns: what the first has of the sum, per cent. */
static double share_of_first(struct turns *t)
{
	unsigned int from[2] = { LOAD(t[0].n), LOAD(t[1].n) }, i;
	uint64_t next[ENOUGH], turn[2];

	if (!RAW_UNTIL(LOAD(t[0].n) >= from[0] + ENOUGH &&
		       LOAD(t[1].n) >= from[1] + ENOUGH))
		return 0;
	for (i = 0; i < 2; i++) {
		memcpy(next, &t[i].length[from[i]], sizeof(next));
		turn[i] = percentile(next, ENOUGH, 15);
	}
	return 100.0 * turn[0] / (turn[0] + turn[1]);
}

/*
 * Not the halves of the time: where the host stands still or runs something else,
 * that counts as the time of the one whose turn it is. On a busy host that befalls
 * most turns, and not both's alike; the shorter ones are a quantum each.
 */
TEST(two_loops_share)
{
	static struct turns turns[2];
	struct loop l[2] = { { .timed = &turns[0] }, { .timed = &turns[1] } };
	pthread_t t[2];
	double share;
	int i, tries = 0;

	START(.quantum_ns = 10000000, .preempt = true);
	for (i = 0; i < 2; i++)
		t[i] = raw_thread(loop, &l[i]);
	ASSERT_TRUE(RAW_UNTIL(LOAD(running) == 2));
	do
		share = share_of_first(turns);
	while ((share < 45 || share > 55) && ++tries < 15);
	STORE(stop, 1);
	for (i = 0; i < 2; i++)
		pthread_join(t[i], NULL);
	TH_LOG("%.1f%% and %.1f%%, %lu and %lu preemptions", share, 100 - share,
	       l[0].preempts, l[1].preempts);
	EXPECT_EQ(0, l[0].err | l[1].err);
	EXPECT_TRUE(share >= 45 && share <= 55);
	EXPECT_LT(5, l[0].preempts);
	EXPECT_LT(5, l[1].preempts);
	EXPECT_EXCLUSIVE();
}

/* A newcomer does not wait for the end of a long quantum: the best of some. */
TEST(newcomer_cuts_quantum)
{
	struct loop l = {};
	uint64_t start, least = ~0ULL;
	pthread_t t;
	int i;

	START(.quantum_ns = 1000000000, .preempt = true);
	t = raw_thread(loop, &l);
	ASSERT_TRUE(RAW_UNTIL(LOAD(running) == 1));
	ASSERT_EQ(0, raw_attach());
	for (i = 0; i < 5 && least >= 700000000; i++) {
		start = raw_now();
		ASSERT_EQ(0, raw_own(FIBER_WAIT_READY));
		start = raw_now() - start;
		least = start < least ? start : least;
		ASSERT_EQ(0, raw_detach());
		ASSERT_TRUE(RAW_UNTIL(raw_info->idle + raw_info->waiting == 0));
		ASSERT_TRUE(RAW_UNTIL(!raw_attach()));
	}
	TH_LOG("waited %lu us with a quantum of 1 s", least / 1000);
	EXPECT_GT(700000000, least);
	STORE(stop, 1);
	pthread_join(t, NULL);
	EXPECT_EXCLUSIVE();
}

/* Nothing is ready: a hog may go on. */
TEST(alone_is_not_preempted)
{
	struct loop l = {};
	struct raw_stats st;
	pthread_t t;

	START(.quantum_ns = 1000000, .preempt = true);
	t = raw_thread(loop, &l);
	ASSERT_TRUE(RAW_UNTIL(LOAD(running) == 1));
	raw_processor(0)->takeover = FIBER_TAKEOVER_WATCH;
	raw_sleep(10000);
	ASSERT_EQ(0, raw_stats(&st));
	raw_sleep(100000);
	STORE(stop, 1);
	pthread_join(t, NULL);
	EXPECT_GE(st.preempts + 1, l.preempts);
	EXPECT_EXCLUSIVE();
}

/* --- invisible -------------------------------------------------------------- */

struct checker {
	uint64_t seed, rounds, preempts;
	const char *differs;
	int err;
};

static void *check_registers(void *arg)
{
	struct checker *c = arg;
	struct raw_regs in, out;

	c->err = raw_attach();
	c->err = c->err ?: raw_own(FIBER_WAIT_READY);
	if (c->err)
		return NULL;
	raw_takeover(FIBER_TAKEOVER_READY);
	raw_enter();
	while (!LOAD(stop) && !c->differs) {
		raw_regs_fill(&in, c->seed + c->rounds++ * 2);
		in.rcx = 30000;
		memset(&out, 0x5a, sizeof(out));
		raw_regs_spin(&in, &out);
		in.rcx = 0;
		c->differs = raw_regs_differ(&in, &out);
		raw_exclude();
	}
	raw_leave();
	c->preempts = raw_page->preempts;
	return NULL;
}

/*
 * FIBER_PREEMPTIONS: how many; a check of several kernels needs all 50,000 on
 * one of them only.
 */
static unsigned long wanted(void)
{
	const char *s = getenv("FIBER_PREEMPTIONS");

	return s && atol(s) >= 2000 ? (unsigned long)atol(s) : 50000;
}

TEST(registers_survive)
{
	unsigned long most = wanted();
	struct checker c[3] = { { .seed = 1 }, { .seed = 1000000 },
				{ .seed = 2000001 } };
	uint64_t end, rounds = 0, preempts = 0;
	struct raw_stats st = {};
	pthread_t t[3];
	int i;

	START(.quantum_ns = 50000, .preempt = true);
	for (i = 0; i < 3; i++)
		t[i] = raw_thread(check_registers, &c[i]);
	end = raw_now() + 75000000000ULL;
	/* As many as there is time for, and as long as it takes for some. */
	while (st.preempts < most &&
	       (st.preempts <= 1000 || raw_now() < end)) {
		raw_sleep(20000);
		ASSERT_EQ(0, raw_stats(&st));
	}
	STORE(stop, 1);
	for (i = 0; i < 3; i++) {
		pthread_join(t[i], NULL);
		EXPECT_EQ(0, c[i].err);
		EXPECT_EQ(NULL, c[i].differs) TH_LOG("%s", c[i].differs);
		EXPECT_LT(0, c[i].preempts);
		rounds += c[i].rounds;
		preempts += c[i].preempts;
	}
	TH_LOG("%lu preemptions of %lu in %lu rounds%s, avx %d", preempts, most,
	       rounds, preempts < most ? " (stopped by time)" : "", raw_avx);
	EXPECT_LT(1000, preempts);
	EXPECT_EXCLUSIVE();
}

/* --- refused ---------------------------------------------------------------- */

static unsigned int waiting_go;

/* Somebody always waits, so that a preemption is always due. */
static void *impatient(void *arg)
{
	if (raw_attach())
		return NULL;
	while (!LOAD(waiting_go))
		raw_sleep(1000);
	raw_own(FIBER_WAIT_READY);
	return NULL;
}

static void spin_outside(volatile uint32_t *until)
{
	uint64_t end = raw_now() + RAW_PATIENCE * 1000000000ULL;

	while (!*until && raw_now() < end)
		;
}

RAW_TEXT static void spin_inside(volatile uint32_t *until, uint64_t limit)
{
	while (!*until && --limit)
		asm volatile("");
}

struct refusal {
	uint64_t preempts, refused;
	uint32_t pending, processor;
};

/* Main owns the processor and is due; how it spins decides. */
static void begin_due(struct __test_metadata *_metadata, uint32_t takeover)
{
	raw_thread(impatient, NULL);
	ASSERT_TRUE(RAW_UNTIL(raw_info->carriers == 1));
	ASSERT_EQ(0, raw_attach());
	ASSERT_EQ(0, raw_own(FIBER_WAIT_READY));
	raw_takeover(takeover);
	STORE(waiting_go, 1);
	ASSERT_TRUE(RAW_UNTIL(raw_info->waiting == 1));
}

static struct refusal end_due(void)
{
	struct refusal r;

	raw_leave();
	r.preempts = raw_page->preempts;
	r.refused = raw_page->refused;
	r.pending = raw_page->pending;
	r.processor = raw_page->processor;
	return r;
}

#define EXPECT_REFUSED(r) do {						\
	EXPECT_EQ(0, (r).preempts);					\
	EXPECT_LE(1, (r).refused);					\
	EXPECT_EQ(1, (r).pending);					\
	EXPECT_EQ(0, (r).processor);					\
	EXPECT_EQ(1, raw_info->waiting);				\
	EXPECT_EXCLUSIVE();						\
} while (0)

#define SPIN_LIMIT	2000000000ULL

TEST(refused_outside_text)
{
	struct refusal r;

	START(.quantum_ns = 1000000, .preempt = true);
	begin_due(_metadata, FIBER_TAKEOVER_READY);
	raw_enter();
	spin_outside(&raw_page->pending);
	r = end_due();
	EXPECT_REFUSED(r);

	/* As soon as it is in the text, it happens. */
	raw_page->pending = 0;
	raw_enter();
	spin_inside((volatile uint32_t *)&raw_page->preempts, SPIN_LIMIT);
	raw_leave();
	EXPECT_LE(1, raw_page->preempts);
	EXPECT_EQ(0, raw_info->waiting);
	EXPECT_EXCLUSIVE();
}

TEST(off_without_trampoline)
{
	struct refusal r;

	START(.quantum_ns = 1000000);		/* preempt_ip = 0 */
	begin_due(_metadata, FIBER_TAKEOVER_READY);
	raw_enter();
	spin_inside((volatile uint32_t *)&raw_page->pending, 20000000);
	r = end_due();
	EXPECT_EQ(0, r.preempts);
	EXPECT_EQ(0, r.processor);
	EXPECT_EQ(1, raw_info->waiting);
	EXPECT_EXCLUSIVE();
}

TEST(refused_by_no_preempt)
{
	struct refusal r;

	START(.quantum_ns = 1000000, .preempt = true);
	begin_due(_metadata, FIBER_TAKEOVER_READY);
	raw_page->no_preempt = 1;
	raw_enter();
	spin_inside(&raw_page->pending, SPIN_LIMIT);
	r = end_due();
	EXPECT_REFUSED(r);
}

TEST(refused_outside_fiber)
{
	struct refusal r;

	START(.quantum_ns = 1000000, .preempt = true);
	begin_due(_metadata, FIBER_TAKEOVER_READY);
	spin_inside(&raw_page->pending, 100000000);
	r = end_due();
	EXPECT_EQ(0, r.preempts);
	EXPECT_EQ(0, r.processor);
	EXPECT_EXCLUSIVE();
}

/*
 * A sequence that starts at 1 and commits at 2; "pending" ends its loop. Only
 * there no_preempt is 0, and the code for an abort is no preemptible text.
 */
asm(".pushsection raw_text, \"ax\", @progbits\n"
    ".globl rseq_loop, rseq_start, rseq_commit, rseq_abort\n"
    "rseq_loop:\n"			/* rdi: &rseq_cs, rsi: &cs, rdx: until */
    "	mov %rcx, %rax\n"		/* rcx: limit, r8: &no_preempt */
    "	mov %rsi, (%rdi)\n"
    "rseq_start:\n"
    "	movl $0, (%rdx)\n"
    "	movl $0, (%r8)\n"
    "1:	cmpl $0, (%rdx)\n"
    "	jne 2f\n"
    "	sub $1, %rax\n"
    "	jnz 1b\n"
    "2:	movl $1, (%r8)\n"
    "rseq_commit:\n"
    "	movq $0, (%rdi)\n"
    "	xor %eax, %eax\n"
    "	ret\n"
    ".popsection\n"
    ".pushsection .text\n"
    "	.long 0x53053053\n"		/* RSEQ_SIG */
    "rseq_abort:\n"
    "	movl $1, (%r8)\n"
    "	movq $0, (%rdi)\n"
    "	mov $1, %eax\n"
    "	ret\n"
    ".popsection\n");
extern char rseq_start[], rseq_commit[], rseq_abort[];
int rseq_loop(volatile void *area, struct rseq_cs *cs, volatile void *until,
	      uint64_t limit, volatile void *no_preempt);

TEST(refused_in_rseq)
{
	static struct rseq_cs cs __attribute__((aligned(32)));
	struct rseq *area = (void *)((char *)__builtin_thread_pointer() +
				     __rseq_offset);
	struct refusal r;
	int tries, aborted = 1;

	if (!__rseq_size)
		SKIP(return, "glibc has not registered rseq");
	cs = (struct rseq_cs){
		.start_ip = (uintptr_t)rseq_start,
		.post_commit_offset = rseq_commit - rseq_start,
		.abort_ip = (uintptr_t)rseq_abort,
	};
	START(.quantum_ns = 1000000, .preempt = true);
	begin_due(_metadata, FIBER_TAKEOVER_READY);
	/* The scheduler aborts it now and then; no upcall may, nor pass by. */
	raw_page->no_preempt = 1;
	for (tries = 0; aborted && tries < 10000; tries++) {
		raw_enter();
		aborted = rseq_loop(&area->rseq_cs, &cs, &raw_page->pending,
				    SPIN_LIMIT, &raw_page->no_preempt);
		raw_leave();
	}
	r = end_due();
	raw_page->no_preempt = 0;
	TH_LOG("%d tries, aborted %d, refused %lu, preempted %lu", tries,
	       aborted, r.refused, r.preempts);
	EXPECT_EQ(0, aborted);
	EXPECT_REFUSED(r);
}

/* Enter the text on a stack of a registered arena, with @room bytes below. */
RAW_TEXT static void spin_on(char *stack, volatile uint32_t *until,
			     uint64_t limit)
{
	asm volatile(
		"mov	%%rsp, %%rbx\n\t"
		"mov	%0, %%rsp\n"
		"1:	cmpl	$0, (%1)\n\t"
		"jne	2f\n\t"
		"sub	$1, %2\n\t"
		"jnz	1b\n"
		"2:	mov	%%rbx, %%rsp\n"
		: : "r"(stack), "r"(until), "r"(limit) : "rbx", "memory", "cc");
}

#define STACK	(64 << 10)

TEST(refused_without_stack)
{
	struct fiber_stacks_args arena = { .stride = STACK, .count = 2,
					   .guard = 4096 };
	struct refusal r;
	char *base, elsewhere[4096];
	uint64_t before;
	long i;

	START(.quantum_ns = 1000000, .preempt = true);
	base = mmap(NULL, 2 * STACK, PROT_READ | PROT_WRITE,
		    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	ASSERT_NE(MAP_FAILED, base);
	memset(base, 0, 2 * STACK);
	memset(elsewhere, 0, sizeof(elsewhere));
	for (i = 0; i < 100; i++) {	/* others, below and above */
		arena.base = (i & 1 ? 1UL << 20 : 1UL << 46) + i * 4 * STACK;
		ASSERT_EQ(0, raw_ioctl(raw_fd, FIBER_IOC_STACKS, &arena));
	}
	arena.base = (uintptr_t)base;
	ASSERT_EQ(0, raw_ioctl(raw_fd, FIBER_IOC_STACKS, &arena));
	begin_due(_metadata, FIBER_TAKEOVER_READY);
	raw_enter();
	/* The thread's own stack is none of the arena. */
	spin_inside(&raw_page->pending, SPIN_LIMIT);
	r = end_due();
	EXPECT_REFUSED(r);

	/* In the guard, and just above it. */
	raw_page->pending = 0;
	raw_enter();
	spin_on(base + STACK + 4096 + 256, &raw_page->pending, SPIN_LIMIT);
	r = end_due();
	EXPECT_REFUSED(r);

	/* With room: the upcall, on that stack. */
	raw_page->pending = 0;
	before = raw_page->preempts;
	raw_enter();
	spin_on(base + 2 * STACK, (volatile uint32_t *)&raw_page->preempts,
		SPIN_LIMIT);
	raw_leave();
	EXPECT_LT(before, raw_page->preempts);
	EXPECT_EQ(0, raw_info->waiting);
	EXPECT_EXCLUSIVE();
}

/* --- single steps ------------------------------------------------------------ */

static void stepped_child(void)
{
	struct raw_options o = { .quantum_ns = 1000000, .preempt = true };

	if (raw_start(&o))
		_exit(1);
	raw_thread(impatient, NULL);
	if (raw_attach() || raw_own(FIBER_WAIT_READY))
		_exit(2);
	raw_takeover(FIBER_TAKEOVER_READY);
	STORE(waiting_go, 1);
	if (!RAW_UNTIL(raw_info->waiting == 1))
		_exit(3);
	ptrace(PTRACE_TRACEME, 0, 0, 0);
	raw_enter();
	raise(SIGSTOP);
	mix_spin(20000000);
	RAW_UNTIL((mix_spin(1000000), raw_page->preempts));
	raw_exclude();
	raw_leave();
	if (raw_violations)
		_exit(4);
	/* Stepped it was refused, detached it happened. */
	_exit(raw_page->preempts ? 7 : 6);
}

TEST(refused_single_stepped)
{
	uint64_t end = raw_now() + 10000000000ULL;
	int status, i, steps = 0;
	pid_t pid;

	NEED_MODULE();
	pid = fork();
	if (!pid)
		stepped_child();
	ASSERT_EQ(pid, waitpid(pid, &status, __WALL));
	ASSERT_TRUE(WIFSTOPPED(status));
	for (i = 0; i < 300 || (i < 3000 && raw_now() < end); i++) {
		ASSERT_EQ(0, ptrace(PTRACE_SINGLESTEP, pid, 0, 0));
		ASSERT_EQ(pid, waitpid(pid, &status, __WALL));
		if (!WIFSTOPPED(status) || WSTOPSIG(status) != SIGTRAP)
			break;
		steps++;
	}
	EXPECT_EQ(i, steps);
	EXPECT_LE(300, steps);
	if (WIFSTOPPED(status))
		ASSERT_EQ(0, ptrace(PTRACE_DETACH, pid, 0, 0));
	ASSERT_EQ(pid, waitpid(pid, &status, 0));
	EXPECT_TRUE(WIFEXITED(status)) TH_LOG("status %x", status);
	EXPECT_EQ(7, WEXITSTATUS(status));
}

/* A slot that was left behind (a longjmp) is found out and taken back. */
TEST(stale_depth)
{
	START(.quantum_ns = 1000000, .preempt = true);
	begin_due(_metadata, FIBER_TAKEOVER_READY);
	raw_page->depth = 1;
	raw_enter();
	spin_inside((volatile uint32_t *)&raw_page->preempts, SPIN_LIMIT);
	raw_leave();
	EXPECT_LE(1, raw_page->preempts);
	EXPECT_EQ(0, raw_page->depth);
	EXPECT_EXCLUSIVE();
}

TEST_HARNESS_MAIN
