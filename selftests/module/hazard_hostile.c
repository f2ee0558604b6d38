// SPDX-License-Identifier: GPL-2.0-only
/*
 * hazard_hostile.c - a program that lies and breaks its own pages
 *
 * It may hurt itself in any way. What must hold: the kernel's own counts stay
 * whole, the process can be killed, and nothing of it stays behind.
 *
 * Bad arguments, unknown flags, a quantum of 1 us, a thread attached twice and
 * addresses of the kernel are in abi.c; thousands of carriers in abuse.c.
 */
#include <linux/userfaultfd.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "harness.h"
#include "mix.h"

static uint64_t random_state;

static uint64_t random_word(void)
{
	static const uint64_t nasty[] = { 0, 1, 2, 4, 5, 0x7fffffff, 0x80000000,
		0xffffffff, 0xfffffffe, 0x7fffffffffff, 0x800000000000,
		0xffffffff80000000, UINT64_MAX };

	random_state ^= random_state << 13;
	random_state ^= random_state >> 7;
	random_state ^= random_state << 17;
	return random_state & 3 ? nasty[(random_state >> 8) % ARRAY_SIZE(nasty)]
				: random_state;
}

/* Dies of whatever comes. 7: alive at the end, and the module's counts whole. */
static int verdict(void)
{
	struct raw_stats st;

	if (raw_stats(&st))
		return 2;
	if (st.violations)
		return 3;
	return st.owned + st.idle + st.flight == raw_args.processors ? 7 : 4;
}

/*
 * Run @fn in a child. It may end by verdict(), or by a signal of its own doing;
 * within the time, and without traces.
 */
static void run_hostile(struct __test_metadata *_metadata, int (*fn)(void),
			uint64_t seed)
{
	int base = raw_base(), code;
	pid_t pid = fork();

	if (!pid) {
		random_state = seed * 0x9e3779b97f4a7c15ULL + 1;
		raw_parameter("check", "1");
		alarm(2 * RAW_PATIENCE);
		_exit(fn());
	}
	code = raw_exit_code(pid);
	EXPECT_TRUE(code == 7 || code == 1000 + SIGSEGV || code == 1000 + SIGBUS ||
		    code == 1000 + SIGILL || code == 1000 + SIGTRAP ||
		    code == 1000 + SIGFPE || code == 1000 + SIGKILL)
		TH_LOG("seed %lu: status %d", seed, code);
	EXPECT_TRUE(RAW_UNTIL(raw_refcnt() == base));
}

static int start_group(void)
{
	struct raw_options o = { .processors = 2, .quantum_ns = 50000,
		.grace_ns = 50000, .preempt = true, .max_carriers = 16,
		.min_spares = 2 };

	return raw_start(&o);
}

/* --- any value in any shared word -------------------------------------------------- */

static void *honest(void *arg)
{
	uintptr_t kind = (uintptr_t)arg;

	if (raw_attach())
		return NULL;
	for (;;) {
		if (kind == 0)
			raw_wait(FIBER_WAIT_SPARE | FIBER_WAIT_GIVE,
				 raw_now() + 2000000, NULL);
		else
			raw_wait(FIBER_WAIT_READY, 0, NULL);
		raw_enter();
		mix_spin(3000);
		raw_sleep(50);
		mix_spin(3000);
		raw_leave();
		if (kind == 2)
			raw_wait(FIBER_WAIT_READY | FIBER_WAIT_GIVE |
				 FIBER_WAIT_TO_SPARE, 0, NULL);
		raw_ioctl(raw_fd, FIBER_IOC_WAKE, NULL);
	}
	return NULL;
}

static void scribble(volatile void *at, size_t words)
{
	volatile uint32_t *word = at;

	word[random_word() % words] = random_word();
}

/* depth and slot stay right in half of the runs, so that it lives longer. */
static void scribble_carrier(volatile struct fiber_carrier_page *page, bool mild)
{
	if (mild)
		scribble(page, 4);	/* in_fiber ... pending */
	else
		scribble(page, sizeof(*page) / 4);
}

static int scribble_all(void)
{
	uint64_t end = raw_now() + 700000000;
	bool mild = random_state & 1;
	uintptr_t i;

	if (start_group())
		return 1;
	for (i = 0; i < 9; i++)
		raw_thread(honest, (void *)(i % 3));
	RAW_UNTIL(raw_info->carriers == 9);
	while (raw_now() < end) {
		scribble(raw_hint, 16);
		for (i = 0; i < 2; i++)
			scribble(raw_processor(i), 32);
		for (i = 0; i < 9; i++)
			scribble_carrier(raw_carrier(i), mild);
		raw_sleep(50);
	}
	return verdict();
}

TEST(any_value_in_any_shared_word)
{
	uint64_t seed;

	NEED_MODULE();
	for (seed = 1; seed <= 6; seed++)
		run_hostile(_metadata, scribble_all, seed);
}

/* --- pages that go away -------------------------------------------------------------- */

static int unmap_under_carriers(void)
{
	uintptr_t i;

	if (start_group())
		return 1;
	for (i = 0; i < 6; i++)
		raw_thread(honest, (void *)(i % 3));
	RAW_UNTIL(raw_info->carriers == 6);
	raw_sleep(20000);
	switch (random_word() % 4) {
	case 0:
		munmap((void *)raw_carrier(0), 3 * RAW_PAGE);
		break;
	case 1:
		munmap((void *)raw_processor(0), 2 * RAW_PAGE);
		break;
	case 2:
		munmap((void *)raw_hint, RAW_PAGE);
		break;
	default:
		mremap((void *)raw_carrier(0), RAW_PAGE, RAW_PAGE,
		       MREMAP_MAYMOVE | MREMAP_FIXED,
		       mmap(NULL, RAW_PAGE, PROT_NONE,
			    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
	}
	raw_sleep(100000);
	return verdict();
}

TEST(munmap_and_mremap_of_our_pages)
{
	uint64_t seed;

	NEED_MODULE();
	for (seed = 1; seed <= 8; seed++)
		run_hostile(_metadata, unmap_under_carriers, seed);
}

/* --- trampolines that are none --------------------------------------------------------- */

static int pipe_of_sleeper[2];
static unsigned int asleep;

static void *sleep_in_fiber(void *arg)
{
	char c;

	if (raw_attach() || raw_own(FIBER_WAIT_READY))
		_exit(30);
	raw_takeover(FIBER_TAKEOVER_READY);
	raw_enter();
	STORE(asleep, 1);
	(void)!read(pipe_of_sleeper[0], &c, 1);
	mix_spin(100000000);
	return NULL;
}

/* Addresses in user space where nothing is, or nothing that fits. */
static int wild_trampoline(void)
{
	struct raw_options o = { .quantum_ns = 50000, .preempt = true };
	struct fiber_text_args text = { .start = 1, .end = 0x7fffffffe000 };
	uint64_t at;

	do
		at = random_word() & 0x7fffffffffff;
	while (at < 2 || at > 0x7fffffff0000);
	raw_fd = raw_open();
	raw_good_setup(&raw_args, &o);
	raw_args.return_ip = raw_args.preempt_ip = at;
	raw_args.return_end = at + 16;
	if (raw_ioctl(raw_fd, FIBER_IOC_SETUP, &raw_args) ||
	    raw_ioctl(raw_fd, FIBER_IOC_TEXT, &text) || pipe(pipe_of_sleeper))
		return 1;
	raw_map();
	raw_thread(sleep_in_fiber, NULL);
	if (!RAW_UNTIL(LOAD(asleep) && raw_info->idle == 1))
		return 6;
	/* Somebody owns the processor when the sleeper comes back. */
	if (raw_attach() || raw_own(FIBER_WAIT_READY))
		return 8;
	(void)!write(pipe_of_sleeper[1], "x", 1);
	RAW_UNTIL(raw_carrier(0)->returns);
	raw_sleep(30000);
	return verdict();
}

TEST(wild_trampolines)
{
	uint64_t seed;

	NEED_MODULE();
	for (seed = 1; seed <= 8; seed++)
		run_hostile(_metadata, wild_trampoline, seed);
}

/* A trampoline that never asks for a processor: it is a thread like any other. */
static volatile unsigned int strays;

asm(".pushsection .text\n"
    "stray: lock incl strays(%rip)\n"
    "1:	pause\n"
    "	jmp 1b\n"
    "stray_end: .popsection\n");
extern char stray[], stray_end[];

static int never_return(void)
{
	struct raw_options o = {};
	int i;

	raw_fd = raw_open();
	raw_good_setup(&raw_args, &o);
	raw_args.return_ip = (uintptr_t)stray;
	raw_args.return_end = (uintptr_t)stray_end;
	if (raw_ioctl(raw_fd, FIBER_IOC_SETUP, &raw_args) || pipe(pipe_of_sleeper))
		return 1;
	raw_map();
	raw_thread(sleep_in_fiber, NULL);
	if (!RAW_UNTIL(LOAD(asleep) && raw_info->idle == 1))
		return 6;
	if (raw_attach() || raw_own(FIBER_WAIT_READY))
		return 8;
	(void)!write(pipe_of_sleeper[1], "x", 1);
	if (!RAW_UNTIL(strays))
		return 9;
	/* The rest of the group is not impressed. */
	for (i = 0; i < 20; i++) {
		raw_sleep(1000);
		if (raw_own(FIBER_WAIT_READY | FIBER_WAIT_GIVE) ||
		    raw_page->processor != 0)
			return 10;
	}
	return verdict();
}

TEST(trampoline_never_returns)
{
	NEED_MODULE();
	run_hostile(_metadata, never_return, 1);
}

/* --- stacks that are not there -------------------------------------------------------- */

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

/* Loop with the stack pointer at @sp until *count moves. */
RAW_TEXT static void spin_on(char *sp, volatile uint64_t *count, uint64_t limit)
{
	asm volatile(
		"mov	%%rsp, %%rbx\n\t"
		"mov	%0, %%rsp\n\t"
		"mov	(%1), %%rcx\n"
		"1:	cmp	(%1), %%rcx\n\t"
		"jne	2f\n\t"
		"sub	$1, %2\n\t"
		"jnz	1b\n"
		"2:	mov	%%rbx, %%rsp\n"
		: "+r"(sp), "+r"(count), "+r"(limit)
		: : "rbx", "rcx", "memory", "cc");
}

static int uffd = -1;

static bool watch(char *at, size_t size)
{
	struct uffdio_api api = { .api = UFFD_API };
	struct uffdio_register reg = { .mode = UFFDIO_REGISTER_MODE_MISSING,
		.range = { (uintptr_t)at, size } };

	uffd = syscall(SYS_userfaultfd, O_CLOEXEC);
	return uffd >= 0 && !ioctl(uffd, UFFDIO_API, &api) &&
	       !ioctl(uffd, UFFDIO_REGISTER, &reg);
}

/* A plain thread: answers faults after a while. */
static void *answer_faults(void *arg)
{
	struct uffd_msg msg;

	while (read(uffd, &msg, sizeof(msg)) == sizeof(msg)) {
		struct uffdio_zeropage zero = { .range = {
			msg.arg.pagefault.address & ~(RAW_PAGE - 1), RAW_PAGE } };

		raw_sleep(2000);
		ioctl(uffd, UFFDIO_ZEROPAGE, &zero);
		ADD(strays, 1);
	}
	return NULL;
}

/*
 * The pages below the stack pointer are absent, or shared copy on write with a
 * child. The upcall itself writes nothing there; the trampoline's first push
 * faults, blocks in fiber and comes back through the other trampoline.
 */
TEST(preempt_on_a_stack_that_is_absent)
{
	size_t size = 64 * RAW_PAGE;
	unsigned int i;
	pthread_t t;
	char *stack;
	pid_t pid;

	START(.quantum_ns = 200000, .preempt = true);
	stack = mmap(NULL, size, PROT_READ | PROT_WRITE,
		     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	ASSERT_NE(MAP_FAILED, stack);
	if (!watch(stack, size))
		SKIP(return, "no userfaultfd: %s", strerror(errno));
	raw_thread(answer_faults, NULL);
	t = raw_thread(hog, NULL);
	ASSERT_TRUE(RAW_UNTIL(raw_info->idle == 0));
	ASSERT_EQ(0, raw_attach());
	ASSERT_EQ(0, raw_own(FIBER_WAIT_READY));
	raw_takeover(FIBER_TAKEOVER_READY);
	for (i = 1; i <= 10; i++) {
		madvise(stack, size, MADV_DONTNEED);
		raw_enter();
		spin_on(stack + size - i * 3 * RAW_PAGE,
			(volatile uint64_t *)&raw_page->preempts, 2000000000);
		raw_exclude();
		raw_leave();
		EXPECT_EQ(0, raw_page->depth);
	}
	EXPECT_LE(10, raw_page->preempts);
	EXPECT_TRUE(RAW_UNTIL(LOAD(strays) >= 10));

	pid = fork();			/* all pages are shared now */
	if (!pid)
		for (;;)
			pause();
	raw_enter();
	for (i = 0; i < 5; i++)
		spin_on(stack + size - 16, (volatile uint64_t *)&raw_page->preempts,
			2000000000);
	raw_exclude();
	raw_leave();
	kill(pid, SIGKILL);
	raw_exit_code(pid);
	STORE(stop, 1);
	raw_detach();
	pthread_join(t, NULL);
	EXPECT_EQ(0, raw_acquire_errors);
	EXPECT_EXCLUSIVE();
}

/* --- two groups in one process ----------------------------------------------------------- */

struct other {
	int fd, err;
	uint32_t processor;
	unsigned int rounds;
};

/* A carrier of the second group; its waits do not touch the first. */
static void *live_in_other(void *arg)
{
	struct fiber_attach_args a = {};
	struct other *o = arg;

	o->err = raw_ioctl(o->fd, FIBER_IOC_ATTACH, &a);
	while (!o->err && !LOAD(stop)) {
		struct fiber_wait_args w = { .flags = FIBER_WAIT_READY |
			(o->rounds ? FIBER_WAIT_GIVE : 0) };

		o->err = raw_ioctl(o->fd, FIBER_IOC_WAIT, &w);
		o->processor = w.processor;
		ADD(o->rounds, 1);
		raw_sleep(300);
	}
	raw_ioctl(o->fd, FIBER_IOC_DETACH, NULL);
	return NULL;
}

TEST(two_groups_in_one_process)
{
	struct fiber_setup_args setup;
	struct raw_options o = {};
	struct other other = {};
	unsigned int i;
	pthread_t t;

	START(0);
	other.fd = raw_open();
	ASSERT_LE(0, other.fd);
	raw_good_setup(&setup, &o);
	ASSERT_EQ(0, raw_ioctl(other.fd, FIBER_IOC_SETUP, &setup));
	t = raw_thread(live_in_other, &other);
	ASSERT_EQ(0, raw_attach());
	ASSERT_EQ(0, raw_own(FIBER_WAIT_READY));
	raw_takeover(FIBER_TAKEOVER_READY);
	raw_enter();
	for (i = 0; i < 50 || LOAD(other.rounds) < 50; i++) {
		raw_sleep(200);
		raw_exclude();
	}
	raw_leave();
	EXPECT_EQ(1, raw_info->carriers);
	/* The end of one is not the end of the other. */
	ASSERT_EQ(0, close(raw_fd));
	raw_fd = other.fd;
	i = LOAD(other.rounds);
	EXPECT_TRUE(RAW_UNTIL(LOAD(other.rounds) > i + 5));
	STORE(stop, 1);
	pthread_join(t, NULL);
	EXPECT_EQ(0, other.err);
	EXPECT_EQ(0, other.processor);
	EXPECT_EQ(0, LOAD(raw_violations));
}

TEST_HARNESS_MAIN
