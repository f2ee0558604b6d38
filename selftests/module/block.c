// SPDX-License-Identifier: GPL-2.0-only
/*
 * block.c - a carrier blocks in fiber; who runs meanwhile, and how it comes back
 *
 * One processor. Carrier A runs "fiber" code that blocks in one call of a list.
 * Carrier B is the spare: it must get the processor, sees that A stays out of
 * user code while B owns it, makes A's call return, and gives the processor back.
 */
#include <linux/futex.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "harness.h"

static struct {
	/* what the calls use */
	int pipe[2], sock[2], epoll, file[2], uffd;
	uint32_t futex;
	uint64_t patience;
	pthread_mutex_t mutex;
	volatile char *fault_page;

	/* A says */
	int a_err;
	pid_t a_tid;
	long result;
	unsigned int inside, back, done;
	uint32_t processor_after;
	uint64_t blocks, handoffs, returns;
	uint32_t depth_after;

	/* B says */
	int b_err;
	unsigned int turns, ran_early;
	uint32_t first_event, first_processor, owner_seen;
} s;

static long call_read(void)
{
	char c = 0;

	return read(s.pipe[0], &c, 1) == 1 ? c : -errno;
}

static void end_read(void)
{
	(void)!write(s.pipe[1], "r", 1);
}

/*
 * A call that ends by itself may have ended before it had to sleep, where the
 * machine stands still: then again.
 */
static bool again(void)
{
	return !raw_page->blocks && raw_now() < s.patience;
}

static long call_nanosleep(void)
{
	struct timespec t = { 0, 30000000 };
	uint64_t start;
	long r;

	do {
		start = raw_now();
		r = nanosleep(&t, NULL) ? -errno : 0;
		r = r ?: raw_now() - start >= 30000000;
	} while (r == 1 && again());
	return r;
}

static long call_poll(void)
{
	struct pollfd p = { .fd = s.pipe[0], .events = POLLIN };
	int n = poll(&p, 1, -1);

	return n == 1 ? p.revents : -errno;
}

static long call_poll_timeout(void)
{
	struct pollfd p = { .fd = s.pipe[0], .events = POLLIN };
	int n;

	do
		n = poll(&p, 1, 30);
	while (!n && again());
	return n;
}

static long call_epoll(void)
{
	struct epoll_event e = {};
	int n = epoll_wait(s.epoll, &e, 1, -1);

	return n == 1 ? e.data.u32 : -errno;
}

static long call_futex(void)
{
	return syscall(SYS_futex, &s.futex, FUTEX_WAIT_PRIVATE, 5, NULL) ?
		-errno : LOAD(s.futex);
}

static void end_futex(void)
{
	STORE(s.futex, 6);
	syscall(SYS_futex, &s.futex, FUTEX_WAKE_PRIVATE, 1);
}

static long call_mutex(void)
{
	long r = -pthread_mutex_lock(&s.mutex);

	pthread_mutex_unlock(&s.mutex);
	return r;
}

static void before_mutex(void)
{
	pthread_mutex_lock(&s.mutex);
}

static void end_mutex(void)
{
	static bool once;

	if (!once)
		pthread_mutex_unlock(&s.mutex);
	once = true;
}

static long call_flock(void)
{
	return flock(s.file[0], LOCK_EX) ? -errno : 0;
}

static void before_flock(void)
{
	flock(s.file[1], LOCK_EX);
}

static void end_flock(void)
{
	flock(s.file[1], LOCK_UN);
}

static long call_fork_wait(void)
{
	int status = 0;
	char c;
	pid_t pid = fork();

	if (!pid) {
		(void)!read(s.pipe[0], &c, 1);
		_exit(7);
	}
	return waitpid(pid, &status, 0) == pid ? WEXITSTATUS(status) : -errno;
}

static long call_vfork(void)
{
	struct timespec t = { 0, 30000000 };
	int status = 0;
	pid_t pid = vfork();

	if (!pid) {
		syscall(SYS_nanosleep, &t, NULL);
		_exit(9);
	}
	return waitpid(pid, &status, 0) == pid ? WEXITSTATUS(status) : -errno;
}

static long call_recv(void)
{
	char c = 0;

	return recv(s.sock[0], &c, 1, 0) == 1 ? c : -errno;
}

static void end_recv(void)
{
	(void)!send(s.sock[1], "s", 1, 0);
}

/* Fills the pipe's buffer, then writes what does not fit. */
static long call_write(void)
{
	static char big[1 << 16];
	long n = 0;

	n += write(s.pipe[1], big, sizeof(big));
	n += write(s.pipe[1], big, 4096);
	return n;
}

/* Not if A has not come so far yet: B would wait for it. */
static void end_write(void)
{
	struct pollfd p = { .fd = s.pipe[0], .events = POLLIN };
	static char big[1 << 16];

	if (poll(&p, 1, 0) == 1)
		(void)!read(s.pipe[0], big, 8192);
}

static long call_fault(void)
{
	return s.fault_page[123];
}

static void end_fault(void)
{
	static char from[RAW_PAGE] __attribute__((aligned(RAW_PAGE)));
	struct uffdio_copy copy = {
		.dst = (uintptr_t)s.fault_page, .src = (uintptr_t)from,
		.len = RAW_PAGE,
	};

	from[123] = 'f';
	ioctl(s.uffd, UFFDIO_COPY, &copy);
}

static bool can_fault(void)
{
	struct uffdio_api api = { .api = UFFD_API };
	struct uffdio_register reg = { .mode = UFFDIO_REGISTER_MODE_MISSING };

	s.uffd = syscall(SYS_userfaultfd, O_CLOEXEC);
	if (s.uffd < 0 || ioctl(s.uffd, UFFDIO_API, &api))
		return false;
	s.fault_page = mmap(NULL, RAW_PAGE, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	reg.range.start = (uintptr_t)s.fault_page;
	reg.range.len = RAW_PAGE;
	return !ioctl(s.uffd, UFFDIO_REGISTER, &reg);
}

/* read(2) by a bare system call between known registers. */
static long call_registers(void)
{
	static char buffer[8];
	struct raw_regs in, out, want;
	const char *differs;
	unsigned int i;

	for (i = 0; i < 2; i++) {
		raw_regs_fill(&in, 77 + i);
		in.rax = SYS_read;
		in.rdi = s.pipe[0];
		in.rsi = (uintptr_t)buffer;
		in.rdx = 1;
		memset(&out, 0x5a, sizeof(out));
		raw_regs_syscall(&in, &out);
		want = in;
		want.rax = 1;
		want.rcx = (uintptr_t)raw_regs_syscall_end;
		want.r11 = out.r11;	/* flags, see below */
		differs = raw_regs_differ(&want, &out);
		if (differs) {
			printf("# registers: %s differs\n", differs);
			return -1000 - i;
		}
		if ((out.r11 ^ in.flags) & RAW_FLAGS)
			return -2000 - i;
	}
	return buffer[0];
}

static void before_nothing(void)
{
}

static bool can_anything(void)
{
	return true;
}

FIXTURE(block)
{
	pthread_t a, b;
};

FIXTURE_VARIANT(block)
{
	long (*call)(void);
	void (*before)(void);		/* B, before A starts */
	void (*end)(void);		/* B, while A is blocked; again each time */
	bool (*can)(void);
	long want;
};

#define VARIANT(name_, call_, before_, end_, can_, want_)		\
	FIXTURE_VARIANT_ADD(block, name_) {				\
		.call = call_, .before = before_, .end = end_,		\
		.can = can_, .want = want_,				\
	}

VARIANT(read, call_read, before_nothing, end_read, can_anything, 'r');
VARIANT(nanosleep, call_nanosleep, before_nothing, before_nothing, can_anything, 1);
VARIANT(poll, call_poll, before_nothing, end_read, can_anything, POLLIN);
VARIANT(poll_timeout, call_poll_timeout, before_nothing, before_nothing,
	can_anything, 0);
VARIANT(epoll_wait, call_epoll, before_nothing, end_read, can_anything, 99);
VARIANT(futex, call_futex, before_nothing, end_futex, can_anything, 6);
VARIANT(mutex, call_mutex, before_mutex, end_mutex, can_anything, 0);
VARIANT(flock, call_flock, before_flock, end_flock, can_anything, 0);
VARIANT(fork_waitpid, call_fork_wait, before_nothing, end_read, can_anything, 7);
VARIANT(vfork_waitpid, call_vfork, before_nothing, before_nothing, can_anything, 9);
VARIANT(recv, call_recv, before_nothing, end_recv, can_anything, 's');
VARIANT(write, call_write, before_nothing, end_write, can_anything,
	(1 << 16) + 4096);
VARIANT(page_fault, call_fault, before_nothing, end_fault, can_fault, 'f');
VARIANT(registers, call_registers, before_nothing, end_read, can_anything, 'r');

static void open_all(void)
{
	struct epoll_event e = { .events = EPOLLIN, .data.u32 = 99 };

	memset(&s, 0, sizeof(s));
	s.result = s.a_err = s.b_err = -9999;
	s.futex = 5;
	s.patience = raw_now() + RAW_PATIENCE * 1000000000ULL;
	pthread_mutex_init(&s.mutex, NULL);
	(void)!pipe(s.pipe);
	(void)!socketpair(AF_UNIX, SOCK_STREAM, 0, s.sock);
	s.epoll = epoll_create1(0);
	epoll_ctl(s.epoll, EPOLL_CTL_ADD, s.pipe[0], &e);
	s.file[0] = open("/tmp/fiber-block", O_RDWR | O_CREAT, 0600);
	s.file[1] = open("/tmp/fiber-block", O_RDWR);
}

FIXTURE_SETUP(block)
{
	START(.grace_ns = 0);
	open_all();
}

FIXTURE_TEARDOWN(block)
{
}

static uint32_t a_takeover;
static const struct _fixture_variant_block *now;

static void *thread_a(void *arg)
{
	s.a_err = raw_attach() ?: raw_own(FIBER_WAIT_READY);
	if (s.a_err) {
		STORE(s.done, 1);
		return NULL;
	}
	raw_takeover(a_takeover);
	raw_enter();
	STORE(s.a_tid, raw_tid());
	STORE(s.inside, 1);
	s.result = now->call();
	STORE(s.back, 1);
	raw_exclude();
	raw_leave();
	s.processor_after = raw_page->processor;
	s.depth_after = raw_page->depth;
	s.blocks = raw_page->blocks;
	s.handoffs = raw_page->handoffs;
	s.returns = raw_page->returns;
	raw_takeover(0);
	STORE(s.done, 1);
	s.a_err = raw_detach();
	return NULL;
}

/* B owns the processor while A is blocked: A's call ends, A does not run. */
static void b_turn(void)
{
	unsigned int i;

	s.turns++;
	now->end();
	if (!RAW_UNTIL(raw_info->waiting == 1 || LOAD(s.done)))
		s.b_err = -ETIMEDOUT;
	for (i = 0; i < 20; i++) {
		raw_sleep(500);
		if (LOAD(s.back))
			s.ran_early++;
	}
}

static void *thread_b(void *arg)
{
	uint32_t event, flags = FIBER_WAIT_SPARE;
	int err;

	s.b_err = raw_attach();
	now->before();
	while (!s.b_err && !LOAD(s.done)) {
		err = raw_wait(flags, raw_now() + 1000000000, &event);
		if (err) {
			s.b_err = err;
			break;
		}
		flags = FIBER_WAIT_SPARE | FIBER_WAIT_GIVE | FIBER_WAIT_SURE;
		if (event != FIBER_EVENT_BLOCK)
			continue;
		if (!s.turns) {
			s.first_event = event;
			s.first_processor = raw_page->processor;
			s.owner_seen = raw_processor(0)->owner == raw_index;
		}
		b_turn();
	}
	raw_detach();
	return NULL;
}

/* In fiber, wanted: the spare runs meanwhile, the call's result is right. */
TEST_F(block, handed_off)
{
	if (!variant->can())
		SKIP(return, "this kernel cannot: %s", strerror(errno));
	now = variant;
	a_takeover = FIBER_TAKEOVER_READY;
	self->b = raw_thread(thread_b, NULL);
	ASSERT_TRUE(RAW_UNTIL(raw_info->spares == 1 || s.b_err > 0));
	self->a = raw_thread(thread_a, NULL);
	ASSERT_TRUE(RAW_UNTIL(LOAD(s.done)));
	pthread_join(self->a, NULL);
	pthread_join(self->b, NULL);

	EXPECT_EQ(variant->want, s.result);
	EXPECT_EQ(0, s.a_err);
	EXPECT_EQ(0, s.b_err);
	EXPECT_EQ(FIBER_EVENT_BLOCK, s.first_event);
	EXPECT_EQ(0, s.first_processor);
	EXPECT_EQ(1, s.owner_seen);
	EXPECT_EQ(0, s.ran_early);
	EXPECT_EQ(0, s.processor_after);
	EXPECT_EQ(0, s.depth_after);
	EXPECT_LE(1, s.blocks);
	EXPECT_LE(1, s.handoffs);
	EXPECT_LE(1, s.returns);
	EXPECT_EQ(0, raw_acquire_errors);
	EXPECT_EXCLUSIVE();
}

static void *thread_end(void *arg)
{
	raw_sleep(50000);
	now->end();
	return NULL;
}

/* In fiber, nobody wants to take over: it keeps its processor. */
TEST_F(block, kept)
{
	pthread_t t;

	if (!variant->can())
		SKIP(return, "this kernel cannot: %s", strerror(errno));
	now = variant;
	a_takeover = 0;
	if (variant->end == end_flock || variant->end == end_mutex)
		variant->before();
	self->a = raw_thread(thread_a, NULL);
	do {
		ASSERT_TRUE(RAW_UNTIL(LOAD(s.inside)));
		if (variant->end == end_mutex || variant->end == end_flock) {
			raw_sleep(50000);
			variant->end();
			break;
		}
		t = raw_thread(thread_end, NULL);
		pthread_join(t, NULL);
	} while (!LOAD(s.done));
	pthread_join(self->a, NULL);

	EXPECT_EQ(variant->want, s.result);
	EXPECT_EQ(0, s.a_err);
	EXPECT_EQ(0, s.processor_after);
	EXPECT_EQ(0, s.handoffs);
	EXPECT_EQ(0, s.returns);
	EXPECT_EXCLUSIVE();
}

/* --- single questions ------------------------------------------------------ */

static unsigned int stop;
static uint32_t b_events[8], b_count;

/*
 * A spare that reports its events and gives the processor back at once; with the
 * takeover word it found, it would get it at once again.
 */
static void *plain_spare(void *arg)
{
	uint32_t event, flags = FIBER_WAIT_SPARE;

	if (raw_attach())
		return NULL;
	while (!LOAD(stop)) {
		if (raw_wait(flags, 0, &event))
			break;
		if (b_count < 8)
			b_events[b_count] = event;
		raw_takeover(0);
		ADD(b_count, 1);
		flags = FIBER_WAIT_SPARE | FIBER_WAIT_GIVE | FIBER_WAIT_SURE;
	}
	raw_detach();
	return NULL;
}

/* Main, which owns the processor, sleeps in fiber, and is back. */
static void sleep_in_fiber(uint32_t takeover, unsigned int us)
{
	raw_takeover(takeover);
	raw_enter();
	raw_sleep(us);
	raw_exclude();
	raw_leave();
}

/* So late that it did not have to sleep? Again, until the spare has run. */
static void sleep_until_taken(uint32_t takeover, unsigned int us)
{
	uint64_t end = raw_now() + RAW_PATIENCE * 1000000000ULL;

	do
		sleep_in_fiber(takeover, us);
	while (!LOAD(b_count) && raw_now() < end);
}

static void own_in_main(struct __test_metadata *_metadata, uint32_t takeover)
{
	ASSERT_EQ(0, raw_attach());
	ASSERT_EQ(0, raw_own(FIBER_WAIT_READY));
	raw_takeover(takeover);
}

TEST(keep_wake_takes_it)
{
	pthread_t b;
	struct raw_stats st;

	START(0);
	open_all();
	now = &(struct _fixture_variant_block){ .call = call_read };
	a_takeover = 0;
	b = raw_thread(thread_a, NULL);
	ASSERT_TRUE(RAW_UNTIL(raw_asleep_in(LOAD(s.a_tid), SYS_read)));
	EXPECT_EQ(1, raw_info->avail);
	EXPECT_EQ(0, raw_info->idle);
	EXPECT_EQ(0, raw_ioctl(raw_fd, FIBER_IOC_WAKE, NULL));	/* no spare */
	raw_thread(plain_spare, NULL);
	ASSERT_TRUE(RAW_UNTIL(raw_info->spares == 1));
	EXPECT_EQ(1, raw_info->avail);
	EXPECT_EQ(1, raw_ioctl(raw_fd, FIBER_IOC_WAKE, NULL));
	ASSERT_TRUE(RAW_UNTIL(LOAD(b_count) == 1));
	EXPECT_EQ(FIBER_EVENT_WAKE, b_events[0]);
	ASSERT_TRUE(RAW_UNTIL(raw_info->spares == 1 && raw_info->idle == 1));
	EXPECT_EQ(1, raw_info->avail);
	end_read();
	pthread_join(b, NULL);
	EXPECT_EQ('r', s.result);
	EXPECT_EQ(0, s.processor_after);
	ASSERT_EQ(0, raw_stats(&st));
	EXPECT_EQ(1, st.handoffs);
	EXPECT_EQ(1, s.handoffs);		/* the page says the same */
	EXPECT_EQ(1, st.wakes);
	EXPECT_EXCLUSIVE();
}

TEST(keep_ready_newcomer_takes_it)
{
	pthread_t a;
	uint32_t event;

	START(0);
	open_all();
	now = &(struct _fixture_variant_block){ .call = call_read };
	a_takeover = 0;
	a = raw_thread(thread_a, NULL);
	ASSERT_TRUE(RAW_UNTIL(raw_asleep_in(LOAD(s.a_tid), SYS_read)));
	EXPECT_EQ(1, raw_info->avail);
	ASSERT_EQ(0, raw_attach());
	ASSERT_EQ(0, raw_wait(FIBER_WAIT_READY, 0, &event));
	EXPECT_EQ(FIBER_EVENT_IDLE, event);
	EXPECT_EQ(0, raw_info->avail);
	end_read();
	ASSERT_TRUE(RAW_UNTIL(raw_info->waiting == 1));
	raw_sleep(10000);
	EXPECT_EQ(0, LOAD(s.back));
	ASSERT_EQ(0, raw_detach());
	pthread_join(a, NULL);
	EXPECT_EQ('r', s.result);
	EXPECT_EQ(1, s.returns);
	EXPECT_EXCLUSIVE();
}

/* A publisher of work sets the hint: whoever blocks then gives up. */
TEST(hint_work_hands_off)
{
	START(0);
	open_all();
	raw_thread(plain_spare, NULL);
	ASSERT_TRUE(RAW_UNTIL(raw_info->spares == 1));
	own_in_main(_metadata, 0);
	raw_hint->work = 1;
	sleep_until_taken(0, 50000);
	raw_hint->work = 0;
	EXPECT_LE(1, LOAD(b_count));
	EXPECT_EQ(FIBER_EVENT_BLOCK, b_events[0]);
	EXPECT_EXCLUSIVE();
}

struct keep_case {
	const char *what;
	bool in_fiber, no_preempt;
};

TEST(no_handoff_outside_fiber)
{
	static const struct keep_case list[] = {
		{ "in_fiber = 0", false, false },
		{ "no_preempt = 1", true, true },
		{ "in_fiber = 0, no_preempt = 1", false, true },
	};
	size_t i;

	START(0);
	raw_thread(plain_spare, NULL);
	ASSERT_TRUE(RAW_UNTIL(raw_info->spares == 1));
	own_in_main(_metadata, FIBER_TAKEOVER_READY | FIBER_TAKEOVER_WATCH);
	for (i = 0; i < ARRAY_SIZE(list); i++) {
		raw_page->no_preempt = list[i].no_preempt;
		raw_page->in_fiber = list[i].in_fiber;
		raw_sleep(20000);
		raw_page->in_fiber = 0;
		raw_page->no_preempt = 0;
		EXPECT_EQ(0, raw_page->processor) TH_LOG("%s", list[i].what);
		EXPECT_EQ(0, raw_page->handoffs) TH_LOG("%s", list[i].what);
		EXPECT_EQ(0, raw_info->avail) TH_LOG("%s", list[i].what);
	}
	EXPECT_EQ(0, LOAD(b_count));
	EXPECT_EXCLUSIVE();
}

/*
 * Grace: short blocks come back before anybody is woken. How many, depends on
 * the machine; but each handoff ends in exactly one of three ways, and the spare
 * runs only for those that did not come back in time.
 */
TEST(grace_short_blocks)
{
	uint64_t end = raw_now() + RAW_PATIENCE * 1000000000ULL;
	struct raw_stats st = {};
	int i;

	START(.grace_ns = 10000000);
	raw_thread(plain_spare, NULL);
	ASSERT_TRUE(RAW_UNTIL(raw_info->spares == 1));
	own_in_main(_metadata, 0);
	for (i = 0; i < 200 || (!st.grace_returns && raw_now() < end); i++) {
		sleep_in_fiber(FIBER_TAKEOVER_READY, 100);
		ASSERT_EQ(0, raw_stats(&st));
	}
	TH_LOG("%lu blocks, %lu came back in time, spare ran %u times",
	       st.blocks, st.grace_returns, LOAD(b_count));
	EXPECT_LE(1, st.grace_returns);
	EXPECT_EQ(st.handoffs, st.grace_returns + st.edge_returns + st.returns);
	EXPECT_LE(LOAD(b_count), st.handoffs - st.grace_returns);
	EXPECT_EXCLUSIVE();
}

TEST(grace_long_block)
{
	START(.grace_ns = 5000000);
	raw_thread(plain_spare, NULL);
	ASSERT_TRUE(RAW_UNTIL(raw_info->spares == 1));
	own_in_main(_metadata, 0);
	sleep_until_taken(FIBER_TAKEOVER_READY, 200000);
	EXPECT_LE(1, LOAD(b_count));
	EXPECT_EQ(FIBER_EVENT_BLOCK, b_events[0]);
	EXPECT_EXCLUSIVE();
}

/* Counters of the page and of fdinfo agree when nothing is under way. */
TEST(counters_agree)
{
	struct raw_stats st;

	START(0);
	raw_thread(plain_spare, NULL);
	ASSERT_TRUE(RAW_UNTIL(raw_info->spares == 1));
	own_in_main(_metadata, 0);
	sleep_in_fiber(FIBER_TAKEOVER_READY, 20000);
	sleep_in_fiber(FIBER_TAKEOVER_READY, 20000);
	ASSERT_TRUE(RAW_UNTIL(raw_info->spares == 1));
	ASSERT_EQ(0, raw_stats(&st));
	EXPECT_EQ(st.blocks, raw_page->blocks);
	EXPECT_EQ(st.handoffs, raw_page->handoffs);
	EXPECT_EQ(st.returns, raw_page->returns);
	EXPECT_LE(st.handoffs, st.blocks);
	EXPECT_EQ(2, st.carriers);
	EXPECT_EXCLUSIVE();
}

/* Work came, WAKE found no spare; the one that is made then takes the kept one. */
TEST(keep_late_spare_takes_it)
{
	pthread_t a;

	START(0);
	open_all();
	now = &(struct _fixture_variant_block){ .call = call_read };
	a_takeover = 0;
	a = raw_thread(thread_a, NULL);
	ASSERT_TRUE(RAW_UNTIL(raw_asleep_in(LOAD(s.a_tid), SYS_read)));
	raw_hint->work = 1;
	EXPECT_EQ(0, raw_ioctl(raw_fd, FIBER_IOC_WAKE, NULL));
	raw_thread(plain_spare, NULL);
	EXPECT_TRUE(RAW_UNTIL(LOAD(b_count) >= 1));
	raw_hint->work = 0;
	end_read();
	pthread_join(a, NULL);
	EXPECT_EQ('r', s.result);
}

TEST_HARNESS_MAIN
