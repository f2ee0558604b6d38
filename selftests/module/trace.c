// SPDX-License-Identifier: GPL-2.0-only
/*
 * trace.c - the tracepoints fiber:*, through tracefs and perf: each event is
 * seen, names the right thread, and there are as many as fdinfo counts
 */
#include <linux/perf_event.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>

#include "harness.h"

#define TRACEFS		"/sys/kernel/tracing"
#define INSTANCE	TRACEFS "/instances/fiber-test"

static pid_t main_tid, spare_tid;
static int pipe_fd[2];
static char text[4 << 20];

/* --- tracefs ----------------------------------------------------------------- */

static int put(const char *path, const char *value)
{
	int fd = open(path, O_WRONLY | O_TRUNC | O_CLOEXEC), err = 0;

	if (fd < 0 || write(fd, value, strlen(value)) < 0)
		err = -errno;
	if (fd >= 0)
		close(fd);
	return err;
}

static int get(const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n;
	size_t at = 0;

	if (fd < 0)
		return -errno;
	while ((n = read(fd, text + at, sizeof(text) - 1 - at)) > 0)
		at += n;
	close(fd);
	text[at] = 0;
	return n < 0 ? -errno : 0;
}

#define NEED_TRACEFS() do {						\
	NEED_MODULE();							\
	if (access(TRACEFS "/events/fiber", F_OK))			\
		SKIP(return, "no tracefs here: %s", strerror(errno));	\
	rmdir(INSTANCE);						\
	ASSERT_EQ(0, mkdir(INSTANCE, 0700));				\
	ASSERT_EQ(0, put(INSTANCE "/events/fiber/enable", "1"));	\
} while (0)

static void trace_end(struct __test_metadata *_metadata)
{
	ASSERT_EQ(0, put(INSTANCE "/events/fiber/enable", "0"));
	ASSERT_EQ(0, get(INSTANCE "/trace"));
	ASSERT_EQ(0, rmdir(INSTANCE));
}

/* How many events of this name of this process have this in their line. */
static unsigned int seen(const char *event, const char *what)
{
	char head[32], mine[32], line[512];
	const char *at = text, *end;
	unsigned int n = 0;

	snprintf(head, sizeof(head), ": %s: ", event);
	snprintf(mine, sizeof(mine), " tgid=%d ", getpid());
	for (; (end = strchr(at, '\n')); at = end + 1) {
		snprintf(line, sizeof(line), "%.*s ", (int)(end - at), at);
		n += strstr(line, head) && strstr(line, mine) &&
		     strstr(line, what);
	}
	return n;
}

static unsigned int seen_of(const char *event, pid_t tid, uint32_t carrier,
			    int processor, const char *what)
{
	char fields[160];

	snprintf(fields, sizeof(fields), "pid=%d carrier=%u processor=%d%s%s ",
		 tid, carrier, processor, *what ? " " : "", what);
	return seen(event, fields);
}

/* --- what happens ------------------------------------------------------------ */

static void begin(struct __test_metadata *_metadata)
{
	main_tid = syscall(SYS_gettid);
	ASSERT_EQ(0, pipe(pipe_fd));
	ASSERT_EQ(0, raw_attach());
	ASSERT_EQ(0, raw_own(FIBER_WAIT_READY));
}

/* Takes over, lets the blocked one go on, and gives the processor back to it. */
static void *spare(void *arg)
{
	STORE(spare_tid, (pid_t)syscall(SYS_gettid));
	if (raw_attach())
		return NULL;
	if (!raw_own(FIBER_WAIT_SPARE)) {
		if (write(pipe_fd[1], "x", 1) != 1)
			return NULL;
		RAW_UNTIL(raw_info->waiting == 1);
		raw_takeover(0);
		raw_wait(FIBER_WAIT_SPARE | FIBER_WAIT_GIVE, raw_now() + 1, NULL);
	}
	return NULL;			/* its thread ends: dead=1 */
}

TEST(trace_handoff)
{
	struct raw_stats s;
	pthread_t t;
	char byte;

	NEED_TRACEFS();
	START(0);
	begin(_metadata);
	t = raw_thread(spare, NULL);
	ASSERT_TRUE(RAW_UNTIL(raw_info->spares == 1));
	raw_takeover(FIBER_TAKEOVER_READY);
	raw_enter();
	EXPECT_EQ(1, read(pipe_fd[0], &byte, 1));
	raw_exclude();
	raw_leave();
	raw_takeover(0);
	ASSERT_TRUE(RAW_UNTIL(raw_info->waiting == 1));
	ASSERT_EQ(0, raw_own(FIBER_WAIT_READY | FIBER_WAIT_GIVE));
	pthread_join(t, NULL);
	ASSERT_TRUE(RAW_UNTIL(raw_info->carriers == 1));
	ASSERT_EQ(0, raw_stats(&s));
	ASSERT_EQ(0, raw_detach());
	trace_end(_metadata);

	EXPECT_EQ(1, seen_of("attach", main_tid, 0, -1, ""));
	EXPECT_EQ(1, seen_of("attach", spare_tid, 1, -1, ""));
	EXPECT_LE(1, seen_of("block", main_tid, 0, 0, "kept=0"));
	EXPECT_EQ(s.blocks, seen("block", ""));
	EXPECT_EQ(1, seen_of("handoff", spare_tid, 1, 0, "event=block spare=1"));
	EXPECT_EQ(1, seen_of("return", main_tid, 0, -1, "how=upcall"));
	EXPECT_EQ(1, seen_of("handoff", main_tid, 0, 0, "event=given spare=0"));
	EXPECT_EQ(s.returns, seen("return", "how=upcall"));
	EXPECT_EQ(1, seen_of("exit", spare_tid, 1, 0, "dead=1"));
	EXPECT_EQ(1, seen_of("exit", main_tid, 0, 0, "dead=0"));
	EXPECT_EQ(0, seen("handoff", "event=0x"));
	if (!__test_passed(_metadata))
		fputs(text, stdout);
}

TEST(trace_keep_and_grace)
{
	struct raw_stats s;
	int i;

	NEED_TRACEFS();
	START(.grace_ns = 10000000);
	begin(_metadata);
	raw_enter();
	for (i = 0; i < 10; i++)
		raw_sleep(1000);
	raw_leave();
	raw_takeover(FIBER_TAKEOVER_READY);
	raw_enter();
	for (i = 0; i < 10; i++)
		raw_sleep(1000);
	raw_leave();
	raw_takeover(0);
	ASSERT_EQ(0, raw_stats(&s));
	trace_end(_metadata);
	EXPECT_LE(1, seen_of("block", main_tid, 0, 0, "kept=1"));
	EXPECT_LE(1, seen_of("block", main_tid, 0, 0, "kept=0"));
	EXPECT_EQ(s.blocks, seen("block", ""));
	EXPECT_EQ(s.grace_returns, seen_of("return", main_tid, 0, 0, "how=grace"));
	EXPECT_EQ(s.edge_returns, seen("return", "how=edge"));
	EXPECT_LE(1, s.grace_returns + s.edge_returns);
	if (!__test_passed(_metadata))
		fputs(text, stdout);
}

RAW_TEXT static void spin(volatile uint64_t *count, uint64_t limit)
{
	uint64_t first = *count;

	while (*count == first && limit--)
		asm volatile("");
}

static void spin_outside(volatile uint64_t *count, uint64_t limit)
{
	uint64_t first = *count;

	while (*count == first && limit--)
		asm volatile("");
}

#define LIMIT	4000000000ULL

TEST(trace_preempt_and_refuse)
{
	struct raw_stats s;

	NEED_TRACEFS();
	START(.quantum_ns = 1000000, .preempt = true);
	begin(_metadata);
	raw_takeover(FIBER_TAKEOVER_READY);
	raw_enter();
	spin((volatile uint64_t *)&raw_page->preempts, LIMIT);
	raw_page->no_preempt = 1;
	spin((volatile uint64_t *)&raw_page->refused, LIMIT);
	raw_page->no_preempt = 0;
	spin_outside((volatile uint64_t *)&raw_page->refused, LIMIT);
	raw_leave();
	raw_takeover(0);
	ASSERT_EQ(0, raw_stats(&s));
	EXPECT_LE(1, raw_stat("refused-text"));
	EXPECT_LE(1, raw_stat("refused-no-preempt"));
	EXPECT_EQ(s.refused, raw_stat("refused-outside") +
		  raw_stat("refused-no-preempt") + raw_stat("refused-nested") +
		  raw_stat("refused-stepped") + raw_stat("refused-text") +
		  raw_stat("refused-stack") + raw_stat("refused-rseq"));
	trace_end(_metadata);
	EXPECT_EQ(s.preempts, seen("preempt", " ip=0x"));
	EXPECT_EQ(s.refused, seen("refuse", ""));
	EXPECT_LE(1, seen("refuse", " reason=no-preempt "));
	EXPECT_LE(1, seen("refuse", " reason=text "));
	EXPECT_EQ(0, seen("refuse", " reason=0x"));
	if (!__test_passed(_metadata))
		fputs(text, stdout);
}

/* What tools print a recorded event by says all: no name that the kernel alone knows. */
TEST(trace_formats)
{
	static const char *const event[] = {
		"attach", "exit", "block", "handoff", "return", "preempt",
		"refuse",
	};
	char path[128];

	NEED_MODULE();
	if (access(TRACEFS "/events/fiber", F_OK))
		SKIP(return, "no tracefs here: %s", strerror(errno));
	for (size_t i = 0; i < ARRAY_SIZE(event); i++) {
		snprintf(path, sizeof(path), TRACEFS "/events/fiber/%s/format",
			 event[i]);
		ASSERT_EQ(0, get(path));
		EXPECT_NE(NULL, strstr(text, "print fmt: \"tgid=%d pid=%d "));
		EXPECT_EQ(NULL, strstr(text, "FIBER_"))
			TH_LOG("%s", strstr(text, "print fmt"));
	}
}

/* --- perf -------------------------------------------------------------------- */

static int perf_counter(const char *event)
{
	struct perf_event_attr attr = { .type = PERF_TYPE_TRACEPOINT,
					.size = sizeof(attr) };
	char path[128];
	int err;

	snprintf(path, sizeof(path), TRACEFS "/events/fiber/%s/id", event);
	err = get(path);
	if (err)
		return err;
	attr.config = atoi(text);
	err = syscall(SYS_perf_event_open, &attr, 0, -1, -1, 0);
	return err < 0 ? -errno : err;
}

TEST(trace_perf)
{
	uint64_t n[2] = {};
	int fd[2];

	NEED_MODULE();
	if (access(TRACEFS "/events/fiber", F_OK))
		SKIP(return, "no tracefs here: %s", strerror(errno));
	fd[0] = perf_counter("attach");
	fd[1] = perf_counter("exit");
	if (fd[0] == -ENOSYS || fd[0] == -EACCES || fd[0] == -EPERM)
		SKIP(return, "no perf here: %s", strerror(-fd[0]));
	ASSERT_LE(0, fd[0]);
	ASSERT_LE(0, fd[1]);
	START(0);
	ASSERT_EQ(0, raw_attach());
	ASSERT_EQ(0, raw_detach());
	ASSERT_EQ(0, raw_attach());
	ASSERT_EQ(8, read(fd[0], &n[0], 8));
	ASSERT_EQ(8, read(fd[1], &n[1], 8));
	EXPECT_EQ(2, n[0]);
	EXPECT_EQ(1, n[1]);
}

/* --- the log ----------------------------------------------------------------- */

/* All the mistakes a user can make that reach far into the module. */
static void mistakes(int fd)
{
	unsigned long command;
	unsigned int nr;

	for (nr = 0; nr < 16; nr++) {
		for (command = 0; command < 4; command++) {
			raw_ioctl(fd, _IOC(command, FIBER_IOC_MAGIC, nr, 64),
				  (void *)8);
			raw_ioctl(fd, _IOC(command, FIBER_IOC_MAGIC, nr, 96),
				  text);
		}
	}
	raw_ioctl(fd, FIBER_IOC_ATTACH, NULL);
	raw_ioctl(fd, FIBER_IOC_SETUP, (void *)~0UL);
	raw_ioctl(fd, FIBER_IOC_WAIT, text);
	raw_ioctl(fd, FIBER_IOC_WAKE, text);
	if (read(fd, text, 1) > 0 || write(fd, text, 1) > 0)
		printf("# /dev/fiber can be read or written\n");
}

TEST(log_keeps_quiet)
{
	char line[2048];
	int log, fd;
	ssize_t n;

	NEED_MODULE();
	log = open("/dev/kmsg", O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	if (log < 0)
		SKIP(return, "no /dev/kmsg: %s", strerror(errno));
	lseek(log, 0, SEEK_END);
	memset(text, 0xff, 4096);
	fd = raw_open();
	ASSERT_LE(0, fd);
	mistakes(fd);
	START(.quantum_ns = 50000, .preempt = true);
	mistakes(raw_fd);
	ASSERT_EQ(0, raw_attach());
	mistakes(raw_fd);
	memset((void *)raw_page, 0xff, 64);
	memset((void *)raw_processor(0), 0xff, 64);
	raw_sleep(10000);
	close(raw_fd);
	while ((n = read(log, line, sizeof(line) - 1)) > 0) {
		line[n] = 0;
		if (strstr(line, "hogged CPU"))	/* of a host that stands still */
			continue;
		EXPECT_EQ(NULL, strstr(line, "fiber")) TH_LOG("%s", line);
	}
}

TEST_HARNESS_MAIN
