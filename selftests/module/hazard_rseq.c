// SPDX-License-Identifier: GPL-2.0-only
/*
 * hazard_rseq.c - restartable sequences: none commits after an upcall inside it
 *
 * A sequence promises that nobody else has run on this CPU between its start and
 * its commit. An upcall inside would let others run and then go on as if not; so
 * a preemption there is put off, and a return finds the sequence aborted.
 */
#include <linux/rseq.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/rseq.h>
#include <sys/syscall.h>

#include "harness.h"
#include "mix.h"

#define ABORTED	(-1L)

/*
 * The sequence reads *count, does its work, reads *count again, commits. The
 * difference is how often it was counted in between. It works by rcx turns of a
 * loop that look at *word each time.
 */
asm(".pushsection raw_text, \"ax\", @progbits\n"
    ".globl rseq_work, rseq_start, rseq_commit, rseq_abort\n"
    "rseq_work:\n"	/* rdi: &rseq_cs, rsi: &cs, rdx: count, rcx: turns, r8: word */
    "	mov	%rsi, (%rdi)\n"
    "rseq_start:\n"
    "	mov	(%rdx), %r9\n"
    "1:	mov	(%r8), %r10\n"
    "	sub	$1, %rcx\n"
    "	jnz	1b\n"
    "	mov	(%rdx), %rax\n"
    "	sub	%r9, %rax\n"
    "	incq	%fs:rseq_committed@tpoff\n"	/* the commit */
    "rseq_commit:\n"
    "	movq	$0, (%rdi)\n"
    "	ret\n"
    "	.long	0x53053053\n"			/* RSEQ_SIG */
    "rseq_abort:\n"
    "	movq	$0, (%rdi)\n"
    "	mov	$-1, %rax\n"
    "	ret\n"
    ".popsection\n");
extern char rseq_start[], rseq_commit[], rseq_abort[];
long rseq_work(volatile void *area, struct rseq_cs *cs,
	       volatile const uint64_t *count, uint64_t turns,
	       volatile const void *word);
__thread uint64_t rseq_committed;

static struct rseq_cs cs __attribute__((aligned(32)));

static volatile struct rseq *area(void)
{
	return (void *)((char *)__builtin_thread_pointer() + __rseq_offset);
}

static long sequence(uint64_t turns, volatile const uint64_t *count,
		     volatile const void *word)
{
	cs = (struct rseq_cs){
		.start_ip = (uintptr_t)rseq_start,
		.post_commit_offset = rseq_commit - rseq_start,
		.abort_ip = (uintptr_t)rseq_abort,
	};
	return rseq_work(&area()->rseq_cs, &cs, count, turns, word);
}

#define NEED_RSEQ() do {						\
	if (!__rseq_size)						\
		SKIP(return, "glibc has not registered rseq");		\
} while (0)

/* --- PREEMPT --------------------------------------------------------------- */

static unsigned int stop;

static void *hog(void *arg)
{
	if (raw_attach() || raw_own(FIBER_WAIT_READY))
		return NULL;
	raw_takeover(FIBER_TAKEOVER_READY);
	raw_enter();
	while (!LOAD(stop))
		mix_spin(1000);
	raw_leave();
	return NULL;
}

struct tally {
	unsigned int committed, aborted, upcalls_inside;
};

/* Sequences of about the length of a quantum. */
static void tally(struct tally *n, unsigned int sequences)
{
	uint64_t end = raw_now() + 10000000000ULL;
	uint64_t word = 0;
	long r;

	while (n->committed < sequences && raw_now() < end) {
		raw_page->pending = 0;
		raw_enter();
		r = sequence(20000, (void *)&raw_page->preempts, &word);
		mix_spin(2000);			/* here it may be preempted */
		raw_leave();
		if (r == ABORTED)
			n->aborted++;
		else
			n->committed++;
		n->upcalls_inside += r > 0;
	}
}

TEST(no_commit_across_a_preemption)
{
	struct tally n = {};
	pthread_t t;

	START(.quantum_ns = 50000, .preempt = true);
	NEED_RSEQ();
	t = raw_thread(hog, NULL);
	ASSERT_TRUE(RAW_UNTIL(raw_info->idle == 0));
	ASSERT_EQ(0, raw_attach());
	ASSERT_EQ(0, raw_own(FIBER_WAIT_READY));
	raw_takeover(FIBER_TAKEOVER_READY);
	tally(&n, 400);
	TH_LOG("%u committed, %u aborted; %lu preemptions, %lu refused",
	       n.committed, n.aborted, (unsigned long)raw_page->preempts,
	       (unsigned long)raw_page->refused);
	STORE(stop, 1);
	raw_detach();
	pthread_join(t, NULL);
	EXPECT_LT(10, n.committed);
	EXPECT_LE(1, raw_page->preempts + raw_page->refused);
	EXPECT_EQ(n.committed, rseq_committed);
	EXPECT_EQ(0, n.upcalls_inside);
	EXPECT_EXCLUSIVE();
}

/* --- RETURN ---------------------------------------------------------------- */

static int uffd;
static volatile char *page;
static unsigned int faulting, taken;

static bool can_fault(void)
{
	struct uffdio_api api = { .api = UFFD_API };
	struct uffdio_register reg = { .mode = UFFDIO_REGISTER_MODE_MISSING };

	uffd = syscall(SYS_userfaultfd, O_CLOEXEC);
	if (uffd < 0 || ioctl(uffd, UFFDIO_API, &api))
		return false;
	page = mmap(NULL, RAW_PAGE, PROT_READ | PROT_WRITE,
		    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	reg.range.start = (uintptr_t)page;
	reg.range.len = RAW_PAGE;
	return !ioctl(uffd, UFFDIO_REGISTER, &reg);
}

static void resolve_fault(void)
{
	struct uffdio_zeropage zero = {
		.range = { (uintptr_t)page, RAW_PAGE },
	};
	struct uffd_msg msg;

	if (read(uffd, &msg, sizeof(msg)) == sizeof(msg))
		ioctl(uffd, UFFDIO_ZEROPAGE, &zero);
}

/* Takes the processor over, ends the fault, and holds on for a while. */
static void *fault_server(void *arg)
{
	uint32_t flags = FIBER_WAIT_SPARE;

	if (raw_attach())
		return NULL;
	while (!raw_wait(flags, 0, NULL)) {
		flags = FIBER_WAIT_SPARE | FIBER_WAIT_GIVE | FIBER_WAIT_SURE;
		if (!LOAD(faulting))
			continue;
		STORE(faulting, 0);
		ADD(taken, 1);
		resolve_fault();
		RAW_UNTIL(raw_info->waiting);
	}
	return NULL;
}

TEST(no_commit_across_a_return)
{
	unsigned int i, aborted = 0;
	uint64_t returns;

	START(0);
	NEED_RSEQ();
	if (!can_fault())
		SKIP(return, "no userfaultfd: %s", strerror(errno));
	raw_thread(fault_server, NULL);
	ASSERT_TRUE(RAW_UNTIL(raw_info->spares == 1));
	ASSERT_EQ(0, raw_attach());
	ASSERT_EQ(0, raw_own(FIBER_WAIT_READY));
	raw_takeover(FIBER_TAKEOVER_READY);
	raw_enter();
	for (i = 0; i < 60; i++) {
		madvise((void *)page, RAW_PAGE, MADV_DONTNEED);
		STORE(faulting, 1);
		aborted += sequence(1, (void *)&raw_page->returns, page) == ABORTED;
		raw_exclude();
	}
	raw_leave();
	raw_takeover(0);
	returns = raw_page->returns;
	TH_LOG("%u sequences with a fault inside, %u aborted, %lu returns, %u taken over",
	       i, aborted, returns, LOAD(taken));
	EXPECT_EQ(i, aborted);
	EXPECT_EQ(0, rseq_committed);
	EXPECT_LE(i / 2, returns);
	EXPECT_EQ(0, raw_acquire_errors);
	EXPECT_EXCLUSIVE();
}

/* A sequence that never was announced properly: refused, not believed. */
TEST(preemption_with_a_wild_rseq_cs)
{
	static const uint64_t wild[] = { 8, 0x7ffffffff000, 1ULL << 63, UINT64_MAX - 31 };
	pthread_t t;
	size_t i;

	START(.quantum_ns = 1000000, .preempt = true);
	NEED_RSEQ();
	/* The kernel kills whoever enters it with such a pointer: read only here. */
	t = raw_thread(hog, NULL);
	ASSERT_TRUE(RAW_UNTIL(raw_info->idle == 0));
	for (i = 0; i < ARRAY_SIZE(wild); i++) {
		pid_t pid = fork();

		if (!pid) {
			struct raw_options o = { .quantum_ns = 50000, .preempt = true };

			close(raw_fd);
			if (raw_start(&o) || raw_attach() ||
			    raw_own(FIBER_WAIT_READY))
				_exit(1);
			raw_processor(0)->takeover = FIBER_TAKEOVER_READY;
			raw_enter();
			area()->rseq_cs = wild[i];
			mix_spin(20000000);
			area()->rseq_cs = 0;
			raw_leave();
			_exit(7);
		}
		/* By SIGSEGV, unless it was never scheduled out in between. */
		int code = raw_exit_code(pid);

		EXPECT_TRUE(code == 1000 + SIGSEGV || code == 7)
			TH_LOG("%lx: status %d", wild[i], code);
	}
	STORE(stop, 1);
	pthread_join(t, NULL);
	EXPECT_EXCLUSIVE();
}

/* --- time slice extension (7.x, CONFIG_RSEQ_SLICE_EXTENSION) ------------------ */

#define SLICE_PRCTL	79	/* PR_RSEQ_SLICE_EXTENSION */
#define SLICE_SET	2
#define SLICE_ENABLE	1
#define SLICE_REQUEST	28	/* offsets in struct rseq */
#define SLICE_GRANTED	29

/* Preemptions while the kernel had granted more time; *granted: how often it had. */
RAW_TEXT static uint64_t spin_with_slices(volatile uint8_t *a,
					  volatile uint64_t *preempts,
					  uint64_t turns, uint64_t *granted)
{
	uint64_t bad = 0, before;
	unsigned int i;

	while (turns--) {
		a[SLICE_REQUEST] = 1;
		for (i = 0; i < 2000 && !a[SLICE_GRANTED]; i++)
			asm volatile("pause");
		before = *preempts;
		if (a[SLICE_GRANTED]) {
			++*granted;
			for (i = 0; i < 2000; i++)
				asm volatile("pause");
			bad += a[SLICE_GRANTED] && *preempts != before;
		}
		a[SLICE_REQUEST] = 0;
	}
	return bad;
}

TEST(granted_time_slice_is_not_preempted)
{
	uint64_t granted = 0, bad;
	pthread_t t;

	START(.quantum_ns = 50000, .preempt = true);
	NEED_RSEQ();
	if (prctl(SLICE_PRCTL, SLICE_SET, SLICE_ENABLE, 0, 0))
		SKIP(return, "no rseq time slice extension in this kernel: %s",
		     strerror(errno));
	t = raw_thread(hog, NULL);
	ASSERT_TRUE(RAW_UNTIL(raw_info->idle == 0));
	ASSERT_EQ(0, raw_attach());
	ASSERT_EQ(0, raw_own(FIBER_WAIT_READY));
	raw_takeover(FIBER_TAKEOVER_READY);
	raw_enter();
	bad = spin_with_slices((void *)area(), (void *)&raw_page->preempts,
			       20000, &granted);
	raw_leave();
	STORE(stop, 1);
	raw_detach();
	pthread_join(t, NULL);
	TH_LOG("%lu slices granted", granted);
	if (!granted)
		SKIP(return, "the kernel granted none");
	EXPECT_EQ(0, bad);
	EXPECT_EXCLUSIVE();
}

TEST_HARNESS_MAIN
