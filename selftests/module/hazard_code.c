// SPDX-License-Identifier: GPL-2.0-only
/*
 * hazard_code.c - code that an upcall must leave alone: 32-bit code, an
 * instruction that a uprobe steps over, the vdso
 */
#include <elf.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "code32/code32.h"
#include "harness.h"
#include "mix.h"

/* A whole 32-bit program. */
asm(".pushsection .rodata\n"
    "code32: .incbin \"code32\"\n"
    "code32_end:\n"
    ".popsection\n");
extern const char code32[], code32_end[];

static unsigned int stop, go, taken;

static bool can_run_32_bit(void)
{
	return access("/proc/sys/abi/vsyscall32", F_OK) == 0;
}

/* Becomes the 32-bit program; argument: it uses the device itself. */
static void exec_code32(char *argument)
{
	char *argv[] = { "code32", argument, NULL }, *none[] = { NULL };
	int fd = memfd_create("code32", MFD_CLOEXEC);

	if (write(fd, code32, code32_end - code32) == code32_end - code32)
		fexecve(fd, argv, none);
	_exit(99);
}

/* --- exec ------------------------------------------------------------------ */

static void *spare(void *arg)
{
	uint32_t flags = FIBER_WAIT_SPARE;

	if (raw_attach())
		return NULL;
	while (!raw_wait(flags, 0, NULL)) {
		ADD(taken, 1);
		raw_sleep(3000);
		flags = FIBER_WAIT_SPARE | FIBER_WAIT_GIVE | FIBER_WAIT_SURE;
	}
	return NULL;
}

static void *exec_in_fiber(void *arg)
{
	if (raw_attach() || raw_own(FIBER_WAIT_READY))
		_exit(90);
	raw_takeover(FIBER_TAKEOVER_READY);
	raw_enter();
	raw_sleep(1000);
	exec_code32(NULL);
	return NULL;
}

/* The carrier comes back from exec as a 32-bit program. */
static void become_32_bit(bool leader)
{
	struct raw_options o = { .quantum_ns = 1000000, .preempt = true };

	if (raw_start(&o))
		_exit(80);
	raw_thread(spare, NULL);
	if (!RAW_UNTIL(raw_info->spares == 1))
		_exit(81);
	if (leader)
		exec_in_fiber(NULL);
	raw_thread(exec_in_fiber, NULL);
	for (;;)
		pause();
}

TEST(exec_into_32_bit_program)
{
	int base, i;
	pid_t pid;

	NEED_MODULE();
	if (!can_run_32_bit())
		SKIP(return, "the kernel runs no 32-bit programs");
	base = raw_base();
	for (i = 0; i < 4; i++) {
		pid = fork();
		if (!pid)
			become_32_bit(i & 1);
		EXPECT_EQ(CODE32_EXECUTED, raw_exit_code(pid));
	}
	EXPECT_TRUE(RAW_UNTIL(raw_refcnt() == base));
}

/* There is no trampoline for it. */
TEST(group_of_32_bit_program)
{
	int base;
	pid_t pid;

	NEED_MODULE();
	if (!can_run_32_bit())
		SKIP(return, "the kernel runs no 32-bit programs");
	base = raw_base();
	pid = fork();
	if (!pid)
		exec_code32("group");
	EXPECT_EQ(CODE32_REFUSED, raw_exit_code(pid));
	EXPECT_TRUE(RAW_UNTIL(raw_refcnt() == base));
}

/* --- 32-bit code of a 64-bit program ---------------------------------------- */

/*
 * call_32: runs code with 32-bit segments on a stack below 4 GiB. All of it is
 * within reach of 32 bits, since the program is static. The 32-bit parts are in
 * the text that may be preempted: only their mode says no.
 */
static uint8_t stack_32[16384] __attribute__((used, aligned(16)));
static uint64_t rsp_64 __attribute__((used));
static struct {
	uint32_t ip;
	uint16_t cs;
} far_32 __attribute__((used)) = { .cs = 0x23 };
static uint32_t nap_32[2] __attribute__((used)) = { 0, 20000000 };
static volatile uint32_t turns_32 __attribute__((used));

asm(".pushsection .text\n"
    "call_32:\n"
    "	push %rbx; push %rbp; push %r12; push %r13; push %r14; push %r15\n"
    "	mov %rsp, rsp_64(%rip)\n"
    "	mov turns_32(%rip), %ecx\n"
    "	mov $stack_32 + 16384, %esp\n"
    "	mov %edi, far_32(%rip)\n"
    "	ljmpl *far_32(%rip)\n"
    "back_64:\n"
    "	mov rsp_64(%rip), %rsp\n"
    "	pop %r15; pop %r14; pop %r13; pop %r12; pop %rbp; pop %rbx\n"
    "	ret\n"
    ".popsection\n"
    ".pushsection raw_text, \"ax\", @progbits\n"
    ".code32\n"
    "spin_32:\n"
    "1:	sub $1, %ecx\n"
    "	jnz 1b\n"
    "	ljmp $0x33, $back_64\n"
    "sleep_32:\n"
    "	mov $162, %eax\n"
    "	mov $nap_32, %ebx\n"
    "	xor %ecx, %ecx\n"
    "	int $0x80\n"
    "	ljmp $0x33, $back_64\n"
    ".code64\n"
    ".popsection\n");
void call_32(const char *code);
extern const char spin_32[], sleep_32[];

static void *impatient(void *arg)
{
	if (raw_attach())
		return NULL;
	RAW_UNTIL(LOAD(go));
	raw_own(FIBER_WAIT_READY);
	return NULL;
}

/* Main owns the processor, another carrier waits for it: a preemption is due. */
static void begin_due(struct __test_metadata *_metadata)
{
	raw_thread(impatient, NULL);
	ASSERT_TRUE(RAW_UNTIL(raw_info->carriers == 1));
	ASSERT_EQ(0, raw_attach());
	ASSERT_EQ(0, raw_own(FIBER_WAIT_READY));
	raw_takeover(FIBER_TAKEOVER_READY);
	STORE(go, 1);
	ASSERT_TRUE(RAW_UNTIL(raw_info->waiting == 1));
}

RAW_TEXT static void spin_64(const volatile uint64_t *until, uint64_t limit)
{
	while (!*until && --limit)
		asm volatile("");
}

TEST(preempt_in_32_bit_code_is_refused)
{
	uint64_t preempts, end;

	START(.quantum_ns = 1000000, .preempt = true);
	if (!can_run_32_bit())
		SKIP(return, "the kernel runs no 32-bit code");
	begin_due(_metadata);
	turns_32 = 1000000;
	raw_enter();
	end = raw_now() + 100000000;
	while (raw_now() < end)
		call_32(spin_32);
	preempts = raw_page->preempts;
	raw_leave();
	EXPECT_EQ(0, preempts);
	EXPECT_EQ(1, raw_info->waiting);
	EXPECT_EQ(0, raw_page->processor);

	/* It was only put off. */
	raw_enter();
	spin_64((const volatile uint64_t *)&raw_page->preempts, 2000000000);
	raw_leave();
	EXPECT_LE(1, raw_page->preempts);
	EXPECT_EQ(0, raw_info->waiting);
	EXPECT_EXCLUSIVE();
}

/*
 * No trampoline can be entered from 32-bit code. A call that blocked there comes
 * back without a processor, until the thread is in 64-bit code and enters the
 * kernel again.
 */
TEST(block_in_32_bit_code)
{
	unsigned int i, without = 0;

	START(0);
	if (!can_run_32_bit())
		SKIP(return, "the kernel runs no 32-bit code");
	raw_thread(spare, NULL);
	ASSERT_TRUE(RAW_UNTIL(raw_info->spares == 1));
	ASSERT_EQ(0, raw_attach());
	ASSERT_EQ(0, raw_own(FIBER_WAIT_READY));
	raw_takeover(FIBER_TAKEOVER_READY);
	raw_enter();
	for (i = 0; i < 10; i++) {
		call_32(sleep_32);
		without += raw_page->processor == FIBER_NO_PROCESSOR;
		syscall(SYS_getppid);
		raw_exclude();
	}
	raw_leave();
	raw_takeover(0);
	TH_LOG("%u calls, %u came back without a processor, spare ran %u times",
	       i, without, LOAD(taken));
	EXPECT_LE(1, LOAD(taken));
	EXPECT_EQ(0, raw_page->depth);
	EXPECT_EXCLUSIVE();
}

/* --- uprobes ------------------------------------------------------------------ */

#define EVENTS	"/sys/kernel/tracing/"

/* lea cannot be emulated: it is executed elsewhere, in a single step. */
asm(".pushsection raw_text, \"ax\", @progbits\n"
    ".type probed, @function\n"
    "probed:	lea 1(%rdi,%rdi), %rax\n"
    "		lea -1(%rax), %rax\n"
    "		ret\n"
    ".size probed, .-probed\n"
    ".popsection\n");
uint64_t probed(uint64_t x);

__attribute__((noinline, noclone)) static int probed_block(void)
{
	struct timespec t = { 0, 300000 };

	return nanosleep(&t, NULL);
}

/* Where in its file the program keeps the code at @p. */
static unsigned long file_offset(const void *p)
{
	const Elf64_Phdr *h = (void *)getauxval(AT_PHDR);
	unsigned long at = (uintptr_t)p, i;

	for (i = 0; i < getauxval(AT_PHNUM); i++)
		if (h[i].p_type == PT_LOAD && at >= h[i].p_vaddr &&
		    at < h[i].p_vaddr + h[i].p_filesz)
			return at - h[i].p_vaddr + h[i].p_offset;
	return 0;
}

static bool add_probe(const char *kind, const char *name, const void *p)
{
	char self[256], text[512];
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);

	if (n < 0)
		return false;
	self[n] = 0;
	snprintf(text, sizeof(text), "%s:fiberhazard/%s %s:0x%lx\n", kind, name,
		 self, file_offset(p));
	return raw_put(EVENTS "uprobe_events", text);
}

static bool add_probes(void)
{
	return add_probe("p", "step", (void *)probed) &&
	       add_probe("p", "block", (void *)probed_block) &&
	       add_probe("r", "ret", (void *)probed_block) &&
	       raw_put(EVENTS "events/fiberhazard/enable", "1");
}

static void remove_probes(void)
{
	int fd;

	raw_put(EVENTS "events/fiberhazard/enable", "0");
	/* Opening for writing empties it. */
	fd = open(EVENTS "uprobe_events", O_WRONLY | O_TRUNC | O_CLOEXEC);
	if (fd >= 0)
		close(fd);
}

RAW_TEXT static uint64_t step_over(uint64_t n)
{
	uint64_t i, wrong = 0;

	for (i = 0; i < n; i++)
		wrong += probed(i) != 2 * i;
	return wrong;
}

static unsigned int rounds, wrong;

static void *run_probed(void *arg)
{
	if (raw_attach() || raw_own(FIBER_WAIT_READY))
		return NULL;
	raw_takeover(FIBER_TAKEOVER_READY);
	raw_enter();
	while (!LOAD(stop)) {
		ADD(wrong, step_over(100));
		ADD(wrong, probed_block() != 0);
		raw_exclude();
		ADD(rounds, 1);
	}
	raw_leave();
	raw_detach();
	return NULL;
}

/* Three fibers in probed code on one processor, preempted every 50 us. */
TEST(uprobes_in_flight)
{
	struct raw_stats st;
	pthread_t t[3];
	int i;

	START(.quantum_ns = 50000, .preempt = true);
	if (!add_probes()) {
		remove_probes();
		SKIP(return, "no uprobe_events: %s", strerror(errno));
	}
	for (i = 0; i < 3; i++)
		t[i] = raw_thread(run_probed, NULL);
	raw_sleep(1500000);
	RAW_UNTIL(LOAD(rounds) >= 30);
	STORE(stop, 1);
	for (i = 0; i < 3; i++)
		pthread_join(t[i], NULL);
	remove_probes();
	ASSERT_EQ(0, raw_stats(&st));
	TH_LOG("%u rounds of 100 steps, %lu preempts, %lu refused, %lu returns",
	       LOAD(rounds), st.preempts, st.refused, st.returns);
	EXPECT_LE(30, LOAD(rounds));
	EXPECT_EQ(0, LOAD(wrong));
	EXPECT_LE(1, st.preempts);
	EXPECT_EQ(0, raw_acquire_errors);
	EXPECT_EXCLUSIVE();
}

/* --- the vdso ------------------------------------------------------------------ */

/* Time is read there; 7.x kernels recover robust futexes there, by ip. */
TEST(vdso_is_not_preempted)
{
	uint64_t end, most;

	START(.quantum_ns = 1000000, .preempt = true);
	if (!getauxval(AT_SYSINFO_EHDR))
		SKIP(return, "no vdso");
	begin_due(_metadata);
	end = raw_now() + 100000000;
	most = raw_now() + RAW_PATIENCE * 1000000000ULL;
	raw_enter();
	while (raw_now() < end || (!raw_page->refused && raw_now() < most))
		;
	raw_leave();
	EXPECT_EQ(0, raw_page->preempts);
	EXPECT_LE(1, raw_page->refused);
	EXPECT_EQ(1, raw_info->waiting);
	EXPECT_EXCLUSIVE();
}

TEST_HARNESS_MAIN
