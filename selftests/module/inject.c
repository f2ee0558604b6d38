// SPDX-License-Identifier: GPL-2.0-only
/*
 * inject.c - every allocation, copy and lock of the module fails in turn, at
 * every door, and leaves what was there before
 *
 * For the test module (make modules FAULT=1; see kmod/fault.h). A walk makes
 * the n-th point fail, n = 1, 2, ..., until the call comes to none any more and
 * succeeds.
 */
#include <sys/ioctl.h>
#include <sys/mman.h>

#include "harness.h"

#define FAIL_NTH	"/sys/module/fiber/parameters/fail_nth"

enum { TOO_MANY = 2000 };

#define NEED_FAULTS() do {						\
	NEED_MODULE();							\
	if (access(FAIL_NTH, W_OK))					\
		SKIP(return, "not the test module: make modules FAULT=1"); \
	/* What the test before had is taken apart. */			\
	ASSERT_TRUE(RAW_UNTIL(raw_refcnt() == 0));			\
} while (0)

static void arm(int n)
{
	char number[16];

	snprintf(number, sizeof(number), "%d", n);
	if (!raw_parameter("fail_nth", number))
		exit(1);
}

/* Not positive: the n-th point was come to, and failed. */
static int left(void)
{
	char number[16] = {};
	int fd = open(FAIL_NTH, O_RDONLY | O_CLOEXEC);

	if (fd < 0 || read(fd, number, sizeof(number) - 1) <= 0)
		exit(1);
	close(fd);
	return atoi(number);
}

/* What anybody can see of the group. */
struct state {
	struct fiber_query_args query;
	uint32_t avail, waiting, spares, idle, carriers, dead, turned;
	uint64_t owned, flight, violations;
	int refcnt;
};

static struct state look(void)
{
	struct state s = { .refcnt = raw_refcnt() };
	struct raw_stats stats;

	if (raw_fd < 0)
		return s;
	raw_ioctl(raw_fd, FIBER_IOC_QUERY, &s.query);
	if (!raw_info || raw_stats(&stats))
		return s;
	s.avail = raw_info->avail;
	s.waiting = raw_info->waiting;
	s.spares = raw_info->spares;
	s.idle = raw_info->idle;
	s.carriers = raw_info->carriers;
	s.dead = raw_info->dead;
	s.turned = raw_info->turned;
	s.owned = stats.owned;
	s.flight = stats.flight;
	s.violations = stats.violations;
	return s;
}

/* What a failed ATTACH or WAIT takes back, a worker or an interrupt finishes. */
static bool same_again(const struct state *before)
{
	struct state now;

	return RAW_UNTIL((now = look(), !memcmp(&now, before, sizeof(now))));
}

struct door {
	const char *name;
	int (*call)(void *args);
	size_t size;			/* of its struct, at most 256 bytes */
	unsigned int points;		/* at least so many can fail */
};

/* Returns how many points there were; the last call, which succeeded, stands. */
static int walk(struct __test_metadata *_metadata, const struct door *d,
		const void *args)
{
	char mine[256];
	struct state before;
	int n, err, rest;

	for (n = 1; n < TOO_MANY; n++) {
		memcpy(mine, args, d->size);
		before = look();
		arm(n);
		err = d->call(mine);
		rest = left();
		arm(0);
		if (rest > 0)
			break;
		ASSERT_GT(0, err) TH_LOG("%s, point %d", d->name, n);
		EXPECT_TRUE(err == -ENOMEM || err == -EFAULT || err == -EINTR)
			TH_LOG("%s, point %d: %d", d->name, n, err);
		EXPECT_EQ(0, memcmp(mine, args, d->size))
			TH_LOG("%s, point %d has written", d->name, n);
		ASSERT_TRUE(same_again(&before))
			TH_LOG("%s, point %d", d->name, n);
	}
	ASSERT_LE(0, err) TH_LOG("%s without a fault", d->name);
	EXPECT_LE(d->points, n - 1) TH_LOG("%s", d->name);
	TH_LOG("%s: %d points", d->name, n - 1);
	return n - 1;
}

static int call_open(void *args)
{
	int fd = raw_open();

	if (fd >= 0)
		close(fd);
	return fd < 0 ? fd : 0;
}

TEST(inject_open)
{
	static const struct door d = { "open", call_open, 0, 2 };
	int fd;

	NEED_FAULTS();
	ASSERT_TRUE(raw_parameter("groups_per_user", "1"));
	walk(_metadata, &d, "");
	/* Nothing of the failed ones counts. */
	EXPECT_TRUE(RAW_UNTIL((fd = raw_open()) != -EMFILE));
	EXPECT_LE(0, fd);
	ASSERT_TRUE(raw_parameter("groups_per_user", "1024"));
}

#define CALL(name, command)						\
static int call_##name(void *args)					\
{									\
	return raw_ioctl(raw_fd, command, args);			\
}

CALL(query, FIBER_IOC_QUERY)
CALL(setup, FIBER_IOC_SETUP)
CALL(attach, FIBER_IOC_ATTACH)
CALL(wait, FIBER_IOC_WAIT)
CALL(stacks, FIBER_IOC_STACKS)
CALL(text, FIBER_IOC_TEXT)
CALL(acquire, FIBER_IOC_ACQUIRE)
CALL(wake, FIBER_IOC_WAKE)
CALL(detach, FIBER_IOC_DETACH)

TEST(inject_query)
{
	static const struct door d = { "QUERY", call_query,
		sizeof(struct fiber_query_args), 2 };
	struct fiber_query_args args = {};

	NEED_FAULTS();
	START(0);
	walk(_metadata, &d, &args);
}

/* Everything allocated before the last point, freed: else memory runs out. */
TEST(inject_setup)
{
	static const struct door d = { "SETUP", call_setup,
		sizeof(struct fiber_setup_args), 8 + 16 };
	struct raw_options o = { .processors = 16 };
	struct fiber_setup_args args;
	int n, i;

	NEED_FAULTS();
	raw_fd = raw_open();
	ASSERT_LE(0, raw_fd);
	raw_good_setup(&args, &o);
	n = walk(_metadata, &d, &args);
	EXPECT_EQ(-EBUSY, raw_ioctl(raw_fd, FIBER_IOC_SETUP, &args));
	close(raw_fd);
	raw_fd = raw_open();
	ASSERT_LE(0, raw_fd);
	o.processors = 1024;
	n += 1024 - 16;
	for (i = 0; i < 150; i++) {	/* more than 512 MB */
		raw_good_setup(&args, &o);
		arm(n - i % 4);
		EXPECT_GT(0, raw_ioctl(raw_fd, FIBER_IOC_SETUP, &args));
	}
	arm(0);
	raw_good_setup(&args, &o);
	EXPECT_EQ(0, raw_ioctl(raw_fd, FIBER_IOC_SETUP, &args));
}

static int call_mmap(void *args)
{
	void *p = mmap(NULL, RAW_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED,
		       raw_fd, raw_args.off_carriers);

	if (p == MAP_FAILED)
		return -errno;
	*(volatile uint32_t *)p = 0;		/* and a fault */
	munmap(p, RAW_PAGE);
	return 0;
}

TEST(inject_mmap)
{
	static const struct door d = { "mmap", call_mmap, 0, 0 };

	NEED_FAULTS();
	START(0);
	ASSERT_EQ(0, raw_attach());
	walk(_metadata, &d, "");
}

/* New carriers get other pages while the old ones are taken apart. */
TEST(inject_attach)
{
	static const struct door d = { "ATTACH", call_attach,
		sizeof(struct fiber_attach_args), 5 };
	struct fiber_attach_args args = { .carrier = 4711 };
	struct state before;
	int n, i;

	NEED_FAULTS();
	START(.max_carriers = 64);
	ASSERT_TRUE(raw_parameter("carriers_per_user", "1"));
	before = look();
	n = walk(_metadata, &d, &args);
	EXPECT_EQ(-EBUSY, raw_attach());
	ASSERT_EQ(0, raw_detach());
	ASSERT_TRUE(same_again(&before));
	for (i = 0; i < 500; i++) {	/* more than there are indices */
		arm(1 + i % n);
		if (raw_attach())
			continue;
		/* A page of before serves again: one point fewer. */
		EXPECT_LT(0, left());
		EXPECT_EQ(0, raw_detach());
	}
	arm(0);
	ASSERT_TRUE(same_again(&before));
	EXPECT_TRUE(RAW_UNTIL((i = raw_attach()) != -EAGAIN));
	EXPECT_EQ(0, i);
	ASSERT_TRUE(raw_parameter("carriers_per_user", "32768"));
}

/* A carrier that owns nothing, when the one before is quite gone. */
static void attach_anew(struct __test_metadata *_metadata)
{
	ASSERT_EQ(0, raw_detach());
	ASSERT_TRUE(RAW_UNTIL(raw_info->idle == 2 && !raw_info->carriers &&
			      raw_refcnt() == 1));	/* the file */
	ASSERT_EQ(0, raw_attach());
}

TEST(inject_wait)
{
	static const struct door d = { "WAIT", call_wait,
		sizeof(struct fiber_wait_args), 2 };
	struct fiber_wait_args args = { .flags = FIBER_WAIT_READY,
		.processor = 77, .event = 77 };

	NEED_FAULTS();
	START(.processors = 2);
	ASSERT_EQ(0, raw_attach());
	ASSERT_EQ(0, raw_wait(FIBER_WAIT_READY, 0, NULL));
	walk(_metadata, &d, &args);	/* it owns one */
	args.flags = FIBER_WAIT_READY | FIBER_WAIT_GIVE;
	walk(_metadata, &d, &args);	/* gives it, and gets one */
	attach_anew(_metadata);
	args.flags = FIBER_WAIT_READY;
	walk(_metadata, &d, &args);	/* it owned none */
	EXPECT_EQ(1, raw_info->idle);
	attach_anew(_metadata);
	args.flags = FIBER_WAIT_SPARE;
	args.deadline_ns = 1;		/* long past: it goes on as READY */
	walk(_metadata, &d, &args);
	EXPECT_EQ(1, raw_info->idle);
	EXPECT_EXCLUSIVE();
}

TEST(inject_tables)
{
	static const struct door stacks = { "STACKS", call_stacks,
		sizeof(struct fiber_stacks_args), 3 };
	static const struct door text = { "TEXT", call_text,
		sizeof(struct fiber_text_args), 2 };
	struct fiber_stacks_args a = { .base = 1 << 20, .stride = 8192,
		.count = 2, .guard = 4096 };
	struct fiber_text_args t = { .start = 0x1000, .end = 0x5000 };
	int i, err = 0;

	NEED_FAULTS();
	START(0);
	walk(_metadata, &stacks, &a);
	EXPECT_EQ(-EEXIST, raw_ioctl(raw_fd, FIBER_IOC_STACKS, &a));
	walk(_metadata, &text, &t);
	/* One text is there, of 64, and none from a failed call. */
	for (i = 1; !err && i < 1000; i++)
		err = raw_ioctl(raw_fd, FIBER_IOC_TEXT, &t);
	EXPECT_EQ(-ENOSPC, err);
	EXPECT_EQ(65, i);
}

/* These have nothing that can fail. */
TEST(inject_nothing)
{
	static const struct door list[] = {
		{ "ACQUIRE", call_acquire }, { "WAKE", call_wake },
		{ "DETACH", call_detach },
	};
	unsigned int i;

	NEED_FAULTS();
	START(0);
	ASSERT_EQ(0, raw_attach());
	for (i = 0; i < ARRAY_SIZE(list); i++)
		EXPECT_EQ(0, walk(_metadata, &list[i], ""));
}

TEST_HARNESS_MAIN
