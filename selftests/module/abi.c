// SPDX-License-Identifier: GPL-2.0-only
/*
 * abi.c - every command with every bad argument: the errno that the header
 * promises, and nothing changed
 */
#include <limits.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "harness.h"

#define POISON	0xa5
#define KERNEL	0xffffffff80000000ULL

struct bad {
	const char *what;
	size_t offset, size;
	uint64_t value;
};

#define BAD(type, field, v) \
	{ #field " = " #v, offsetof(struct type, field), \
	  sizeof(((struct type *)0)->field), (v) }

static void spoil(void *args, const struct bad *b)
{
	memcpy((char *)args + b->offset, &b->value, b->size);
}

/* Result of a command with one bad field, and whether the struct was written. */
static int try_bad(int fd, unsigned long command, const void *good, size_t size,
		   const struct bad *b, bool *written)
{
	char args[256], before[256];
	int err;

	memcpy(args, good, size);
	spoil(args, b);
	memcpy(before, args, size);
	err = raw_ioctl(fd, command, args);
	*written = memcmp(args, before, size) != 0;
	return err;
}

#define EXPECT_ALL_BAD(fd, command, good, list, errno_) do {		\
	for (size_t i_ = 0; i_ < ARRAY_SIZE(list); i_++) {		\
		bool written_ = true;					\
		int err_ = try_bad(fd, command, good, sizeof(*(good)),	\
				   &(list)[i_], &written_);		\
		EXPECT_EQ(-(errno_), err_)				\
			TH_LOG("with %s", (list)[i_].what);		\
		EXPECT_FALSE(written_)					\
			TH_LOG("with %s", (list)[i_].what);		\
	}								\
} while (0)

static void *read_only_page(void)
{
	return mmap(NULL, RAW_PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

/* A struct of which only the first half is mapped. */
static void *half_mapped(size_t size)
{
	char *p = mmap(NULL, 2 * RAW_PAGE, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	munmap(p + RAW_PAGE, RAW_PAGE);
	return p + RAW_PAGE - size / 2;
}

/* What dkms and "fiberctl check" show is what was built. */
TEST(module_version)
{
	char text[32] = "";

	NEED_MODULE();
	ASSERT_EQ(0, raw_get("/sys/module/fiber/version", text, sizeof(text)));
	text[strcspn(text, "\n")] = 0;
	EXPECT_STREQ(FIBER_VERSION, text);
}

TEST(query_fields)
{
	struct fiber_query_args a;
	int fd;

	NEED_MODULE();
	fd = raw_open();
	ASSERT_LE(0, fd);
	memset(&a, POISON, sizeof(a));
	memset(a.reserved, 0, sizeof(a.reserved));
	ASSERT_EQ(0, raw_ioctl(fd, FIBER_IOC_QUERY, &a));
	EXPECT_EQ(FIBER_API_VERSION, a.api);
	EXPECT_EQ(sysconf(_SC_PAGESIZE), a.page_size);
	EXPECT_EQ(FIBER_FEAT_HANDOFF | FIBER_FEAT_RETURN | FIBER_FEAT_PREEMPT |
		  FIBER_FEAT_STACKS, a.features);
	EXPECT_EQ(1024, a.max_processors);
	EXPECT_LE(1024, a.max_carriers);
	EXPECT_GT(1 << 20, a.max_carriers);
	EXPECT_EQ(50000, a.min_quantum_ns);
	EXPECT_EQ(0, a.reserved[0] | a.reserved[3]);
}

TEST(query_bad)
{
	static const struct bad list[] = {
		BAD(fiber_query_args, reserved[0], 1),
		BAD(fiber_query_args, reserved[3], 1ULL << 63),
	};
	struct fiber_query_args good = {};
	int fd;

	NEED_MODULE();
	fd = raw_open();
	ASSERT_LE(0, fd);
	EXPECT_ALL_BAD(fd, FIBER_IOC_QUERY, &good, list, EINVAL);
	EXPECT_EQ(-EFAULT, raw_ioctl(fd, FIBER_IOC_QUERY, NULL));
	EXPECT_EQ(-EFAULT, raw_ioctl(fd, FIBER_IOC_QUERY, (void *)KERNEL));
	EXPECT_EQ(-EFAULT, raw_ioctl(fd, FIBER_IOC_QUERY, read_only_page()));
	EXPECT_EQ(-EFAULT, raw_ioctl(fd, FIBER_IOC_QUERY,
				     half_mapped(sizeof(good))));
	EXPECT_EQ(0, raw_ioctl(fd, FIBER_IOC_QUERY, &good));
}

TEST(command_unknown)
{
	static const unsigned long list[] = {
		_IO(FIBER_IOC_MAGIC, 0x0a), _IO(FIBER_IOC_MAGIC, 0x3f),
		_IO(FIBER_IOC_MAGIC, 0xff), _IO(FIBER_IOC_MAGIC, 0x00),
		_IO(0xfa, 0x03), _IOW(FIBER_IOC_MAGIC, 0x03, int),
		_IOWR(FIBER_IOC_MAGIC, 0x01, char[200]), 0, ~0U,
		_IOR(FIBER_IOC_MAGIC, 0x05, struct fiber_wait_args),
	};
	size_t i;
	int fd;

	NEED_MODULE();
	fd = raw_open();
	ASSERT_LE(0, fd);
	for (i = 0; i < ARRAY_SIZE(list); i++)
		EXPECT_EQ(-ENOTTY, raw_ioctl(fd, list[i], NULL))
			TH_LOG("command %lx before SETUP", list[i]);
	close(fd);
	START(0);
	for (i = 0; i < ARRAY_SIZE(list); i++)
		EXPECT_EQ(-ENOTTY, raw_ioctl(raw_fd, list[i], NULL))
			TH_LOG("command %lx", list[i]);
	EXPECT_EQ(-1, read(raw_fd, &fd, 1));
	EXPECT_EQ(EINVAL, errno);
	EXPECT_EQ(-1, write(raw_fd, &fd, 1));
	EXPECT_EQ(EINVAL, errno);
}

TEST(setup_bad)
{
	static const struct bad list[] = {
		BAD(fiber_setup_args, flags, 1),
		BAD(fiber_setup_args, flags, 1U << 31),
		BAD(fiber_setup_args, processors, 0),
		BAD(fiber_setup_args, processors, 1025),
		BAD(fiber_setup_args, processors, UINT_MAX),
		BAD(fiber_setup_args, quantum_ns, 1),
		BAD(fiber_setup_args, quantum_ns, 49999),
		BAD(fiber_setup_args, quantum_ns, 1000000001),
		BAD(fiber_setup_args, quantum_ns, UINT64_MAX),
		BAD(fiber_setup_args, grace_ns, 10000001),
		BAD(fiber_setup_args, grace_ns, UINT64_MAX),
		BAD(fiber_setup_args, return_ip, 0),
		BAD(fiber_setup_args, return_ip, KERNEL),
		BAD(fiber_setup_args, return_ip, 0x10),	/* window too long */
		BAD(fiber_setup_args, return_end, 0),
		BAD(fiber_setup_args, return_end, KERNEL),
		BAD(fiber_setup_args, return_end, 0x800000000000),
		BAD(fiber_setup_args, preempt_ip, KERNEL),
		BAD(fiber_setup_args, preempt_ip, 0x800000000000),
		BAD(fiber_setup_args, max_carriers, UINT_MAX),
		BAD(fiber_setup_args, min_spares, 65),
		BAD(fiber_setup_args, min_spares, UINT_MAX),
		BAD(fiber_setup_args, reserved[0], 1),
		BAD(fiber_setup_args, reserved[3], 1ULL << 63),
	};
	struct raw_options o = {};
	struct fiber_setup_args good;
	int fd;

	NEED_MODULE();
	fd = raw_open();
	ASSERT_LE(0, fd);
	raw_good_setup(&good, &o);
	EXPECT_ALL_BAD(fd, FIBER_IOC_SETUP, &good, list, EINVAL);
	good.return_end = good.return_ip;
	EXPECT_EQ(-EINVAL, raw_ioctl(fd, FIBER_IOC_SETUP, &good));
	EXPECT_EQ(-EFAULT, raw_ioctl(fd, FIBER_IOC_SETUP, NULL));
	EXPECT_EQ(-EFAULT, raw_ioctl(fd, FIBER_IOC_SETUP, (void *)KERNEL));
	EXPECT_EQ(-EFAULT, raw_ioctl(fd, FIBER_IOC_SETUP,
				     half_mapped(sizeof(good))));

	/* None of it has set anything up. */
	EXPECT_EQ(-ENXIO, raw_ioctl(fd, FIBER_IOC_WAKE, NULL));
	raw_good_setup(&good, &o);
	EXPECT_EQ(0, raw_ioctl(fd, FIBER_IOC_SETUP, &good));
	EXPECT_EQ(0, raw_ioctl(fd, FIBER_IOC_WAKE, NULL));
}

TEST(setup_read_only_struct)
{
	struct fiber_setup_args *a = mmap(NULL, RAW_PAGE, PROT_READ | PROT_WRITE,
					  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct raw_options o = {};
	int fd;

	NEED_MODULE();
	fd = raw_open();
	ASSERT_LE(0, fd);
	raw_good_setup(a, &o);
	ASSERT_EQ(0, mprotect(a, RAW_PAGE, PROT_READ));
	EXPECT_EQ(-EFAULT, raw_ioctl(fd, FIBER_IOC_SETUP, a));
	EXPECT_EQ(-ENXIO, raw_ioctl(fd, FIBER_IOC_WAKE, NULL));
	ASSERT_EQ(0, mprotect(a, RAW_PAGE, PROT_READ | PROT_WRITE));
	EXPECT_EQ(0, raw_ioctl(fd, FIBER_IOC_SETUP, a));
}

TEST(setup_outputs)
{
	struct raw_options o = { .processors = 3 };
	struct fiber_setup_args a;
	int fd;

	NEED_MODULE();
	fd = raw_open();
	ASSERT_LE(0, fd);
	raw_good_setup(&a, &o);
	a.max_carriers = 0;
	a.off_info = a.off_hint = a.off_processors = a.off_carriers = ~0ULL;
	ASSERT_EQ(0, raw_ioctl(fd, FIBER_IOC_SETUP, &a));
	EXPECT_EQ(10000000, a.quantum_ns);
	EXPECT_LE(1024, a.max_carriers);
	EXPECT_EQ(0, (a.off_info | a.off_hint | a.off_processors |
		      a.off_carriers) % RAW_PAGE);
	EXPECT_NE(a.off_info, a.off_hint);
	EXPECT_LE(a.off_processors + 3 * RAW_PAGE, a.off_carriers);
	EXPECT_EQ(-EBUSY, raw_ioctl(fd, FIBER_IOC_SETUP, &a));
	a.processors = 0;
	EXPECT_EQ(-EINVAL, raw_ioctl(fd, FIBER_IOC_SETUP, &a));
}

TEST(setup_extremes)
{
	struct raw_options o = { .processors = 1024, .max_carriers = 1024,
		.quantum_ns = 50000, .grace_ns = 10000000, .min_spares = 1024 };

	NEED_MODULE();
	ASSERT_EQ(0, raw_start(&o));
	EXPECT_EQ(1024, raw_info->avail);
	EXPECT_EQ(1024, raw_info->idle);
	EXPECT_EQ(FIBER_NO_CARRIER, raw_processor(0)->owner);
	EXPECT_EQ(FIBER_NO_CARRIER, raw_processor(1023)->owner);
	EXPECT_EXCLUSIVE();
}

TEST(commands_before_setup)
{
	struct fiber_attach_args attach = {};
	struct fiber_wait_args wait = { .flags = FIBER_WAIT_READY };
	struct fiber_stacks_args stacks = { .base = 1 << 20, .stride = 4096,
					    .count = 1 };
	struct fiber_text_args text = { .start = 1, .end = 2 };
	int fd;

	NEED_MODULE();
	fd = raw_open();
	ASSERT_LE(0, fd);
	EXPECT_EQ(-ENXIO, raw_ioctl(fd, FIBER_IOC_ATTACH, &attach));
	EXPECT_EQ(-ENXIO, raw_ioctl(fd, FIBER_IOC_DETACH, NULL));
	EXPECT_EQ(-ENXIO, raw_ioctl(fd, FIBER_IOC_ACQUIRE, NULL));
	EXPECT_EQ(-ENXIO, raw_ioctl(fd, FIBER_IOC_WAIT, &wait));
	EXPECT_EQ(-ENXIO, raw_ioctl(fd, FIBER_IOC_WAKE, NULL));
	EXPECT_EQ(-ENXIO, raw_ioctl(fd, FIBER_IOC_STACKS, &stacks));
	EXPECT_EQ(-ENXIO, raw_ioctl(fd, FIBER_IOC_TEXT, &text));
	EXPECT_EQ(-ENXIO, raw_ioctl(fd, FIBER_IOC_KEEP, NULL));
	EXPECT_EQ(MAP_FAILED, mmap(NULL, RAW_PAGE, PROT_READ, MAP_SHARED, fd, 0));
	EXPECT_EQ(ENXIO, errno);
}

TEST(attach_bad)
{
	static const struct bad list[] = {
		BAD(fiber_attach_args, flags, 1),
		BAD(fiber_attach_args, flags, 1U << 31),
		BAD(fiber_attach_args, reserved[0], 1),
		BAD(fiber_attach_args, reserved[1], 1ULL << 63),
	};
	struct fiber_attach_args good = { .carrier = 77 };

	START(0);
	EXPECT_ALL_BAD(raw_fd, FIBER_IOC_ATTACH, &good, list, EINVAL);
	EXPECT_EQ(-EFAULT, raw_ioctl(raw_fd, FIBER_IOC_ATTACH, NULL));
	EXPECT_EQ(0, raw_info->carriers);
	/* Attached, could not say so, detached again. */
	EXPECT_EQ(-EFAULT, raw_ioctl(raw_fd, FIBER_IOC_ATTACH, read_only_page()));
	EXPECT_TRUE(RAW_UNTIL(raw_info->carriers == 0));
	EXPECT_EQ(-ESRCH, raw_detach());
	EXPECT_EQ(0, raw_attach());
	EXPECT_EQ(1, raw_info->carriers);
}

TEST(attach_twice)
{
	struct fiber_attach_args a = { .carrier = 77 };
	struct fiber_setup_args setup;
	struct raw_options o = {};
	int other;

	START(0);
	ASSERT_EQ(0, raw_attach());
	EXPECT_EQ(FIBER_NO_PROCESSOR, raw_page->processor);
	EXPECT_EQ(0, raw_page->in_fiber | raw_page->depth | raw_page->pending);
	EXPECT_EQ(-EBUSY, raw_ioctl(raw_fd, FIBER_IOC_ATTACH, &a));
	EXPECT_EQ(77, a.carrier);

	/* A carrier of one group is none of another, nor can it become one. */
	other = raw_open();
	ASSERT_LE(0, other);
	raw_good_setup(&setup, &o);
	ASSERT_EQ(0, raw_ioctl(other, FIBER_IOC_SETUP, &setup));
	EXPECT_EQ(-EBUSY, raw_ioctl(other, FIBER_IOC_ATTACH, &a));
	EXPECT_EQ(-ESRCH, raw_ioctl(other, FIBER_IOC_DETACH, NULL));
	EXPECT_EQ(-ESRCH, raw_ioctl(other, FIBER_IOC_ACQUIRE, NULL));
	EXPECT_EQ(0, raw_detach());
	EXPECT_EQ(0, raw_ioctl(other, FIBER_IOC_ATTACH, &a));
	EXPECT_EQ(-EBUSY, raw_attach());
	EXPECT_EQ(0, raw_ioctl(other, FIBER_IOC_DETACH, NULL));
	EXPECT_EQ(0, raw_attach());
	EXPECT_EQ(0, raw_detach());
	EXPECT_EQ(-ESRCH, raw_detach());
}

static unsigned int go_on;

static void *attach_and_stay(void *err)
{
	STORE(*(int *)err, raw_attach());
	while (!*(int *)err && !LOAD(go_on))
		raw_sleep(1000);
	return NULL;
}

TEST(attach_too_many)
{
	int err[2] = { 1, 1 }, last;
	pthread_t t[2];

	START(.max_carriers = 2);
	t[0] = raw_thread(attach_and_stay, &err[0]);
	t[1] = raw_thread(attach_and_stay, &err[1]);
	ASSERT_TRUE(RAW_UNTIL(!LOAD(err[0]) && !LOAD(err[1])));
	EXPECT_EQ(2, raw_info->carriers);
	EXPECT_EQ(-ENOSPC, raw_attach());
	EXPECT_EQ(2, raw_info->carriers);
	STORE(go_on, 1);
	pthread_join(t[0], NULL);
	pthread_join(t[1], NULL);
	EXPECT_TRUE(RAW_UNTIL((last = raw_attach()) != -ENOSPC));
	EXPECT_EQ(0, last);
	EXPECT_TRUE(RAW_UNTIL(raw_info->carriers == 1));
}

TEST(wait_bad)
{
	static const struct bad list[] = {
		BAD(fiber_wait_args, flags, 0),
		BAD(fiber_wait_args, flags, FIBER_WAIT_READY | FIBER_WAIT_SPARE),
		BAD(fiber_wait_args, flags, FIBER_WAIT_GIVE),
		BAD(fiber_wait_args, flags, FIBER_WAIT_READY | 1U << 5),
		BAD(fiber_wait_args, flags, FIBER_WAIT_SPARE | 1U << 31),
		BAD(fiber_wait_args, flags, FIBER_WAIT_READY | FIBER_WAIT_TO_SPARE),
		BAD(fiber_wait_args, flags, FIBER_WAIT_SPARE | FIBER_WAIT_GIVE |
		    FIBER_WAIT_TO_SPARE),
		BAD(fiber_wait_args, flags, FIBER_WAIT_READY | FIBER_WAIT_SURE),
		BAD(fiber_wait_args, flags, FIBER_WAIT_READY | FIBER_WAIT_GIVE |
		    FIBER_WAIT_SURE),
		BAD(fiber_wait_args, deadline_ns, 1),		/* with READY */
		BAD(fiber_wait_args, reserved0, 1),
		BAD(fiber_wait_args, reserved[0], 1),
		BAD(fiber_wait_args, reserved[1], 1ULL << 63),
	};
	struct fiber_wait_args good = { .flags = FIBER_WAIT_READY,
		.processor = 77, .event = 77 };

	START(0);
	EXPECT_EQ(-ESRCH, raw_ioctl(raw_fd, FIBER_IOC_WAIT, &good));
	EXPECT_EQ(-ESRCH, raw_ioctl(raw_fd, FIBER_IOC_ACQUIRE, NULL));
	EXPECT_EQ(-ESRCH, raw_ioctl(raw_fd, FIBER_IOC_DETACH, NULL));
	ASSERT_EQ(0, raw_attach());
	EXPECT_ALL_BAD(raw_fd, FIBER_IOC_WAIT, &good, list, EINVAL);
	good.flags = FIBER_WAIT_SPARE;
	good.deadline_ns = 1ULL << 63;
	EXPECT_EQ(-EINVAL, raw_ioctl(raw_fd, FIBER_IOC_WAIT, &good));
	EXPECT_EQ(-EFAULT, raw_ioctl(raw_fd, FIBER_IOC_WAIT, NULL));
	EXPECT_EQ(-EFAULT, raw_ioctl(raw_fd, FIBER_IOC_WAIT, (void *)KERNEL));
	EXPECT_EQ(1, raw_info->idle);
	EXPECT_EQ(0, raw_info->waiting);
	EXPECT_EQ(FIBER_NO_PROCESSOR, raw_page->processor);

	good.flags = FIBER_WAIT_READY;
	good.deadline_ns = 0;
	EXPECT_EQ(0, raw_ioctl(raw_fd, FIBER_IOC_WAIT, &good));
	EXPECT_EQ(0, good.processor);
	EXPECT_EQ(FIBER_EVENT_IDLE, good.event);
	EXPECT_EQ(0, raw_ioctl(raw_fd, FIBER_IOC_WAIT, &good));
	EXPECT_EQ(FIBER_EVENT_NONE, good.event);
	EXPECT_EQ(0, raw_ioctl(raw_fd, FIBER_IOC_ACQUIRE, NULL));
	EXPECT_EQ(-EBUSY, raw_ioctl(raw_fd, FIBER_IOC_KEEP, NULL));
	EXPECT_EQ(0, raw_info->idle);
	EXPECT_EQ(raw_index, raw_processor(0)->owner);
	EXPECT_EQ(0, raw_detach());
	EXPECT_TRUE(RAW_UNTIL(raw_info->idle == 1));
	EXPECT_EQ(FIBER_NO_CARRIER, raw_processor(0)->owner);
	EXPECT_EXCLUSIVE();
}

TEST(stacks_bad)
{
	static const struct bad list[] = {
		BAD(fiber_stacks_args, flags, 1),
		BAD(fiber_stacks_args, base, 0),
		BAD(fiber_stacks_args, base, KERNEL),
		BAD(fiber_stacks_args, base, UINT64_MAX),
		BAD(fiber_stacks_args, stride, 0),
		BAD(fiber_stacks_args, stride, UINT64_MAX),
		BAD(fiber_stacks_args, stride, 1ULL << 47),
		BAD(fiber_stacks_args, count, 0),
		BAD(fiber_stacks_args, count, UINT64_MAX),
		BAD(fiber_stacks_args, count, 1ULL << 52),
		BAD(fiber_stacks_args, guard, 8192),
		BAD(fiber_stacks_args, guard, UINT64_MAX),
		BAD(fiber_stacks_args, contexts, KERNEL),
		BAD(fiber_stacks_args, context_size, 0),
		BAD(fiber_stacks_args, reserved[0], 1),
		BAD(fiber_stacks_args, reserved[1], 1),
	};
	struct fiber_stacks_args good = { .base = 1 << 20, .stride = 8192,
		.count = 2, .guard = 4096, .contexts = 1 << 16,
		.context_size = 128 };
	int i, err = 0;

	START(0);
	EXPECT_ALL_BAD(raw_fd, FIBER_IOC_STACKS, &good, list, EINVAL);
	EXPECT_EQ(-EFAULT, raw_ioctl(raw_fd, FIBER_IOC_STACKS, NULL));
	EXPECT_EQ(0, raw_ioctl(raw_fd, FIBER_IOC_STACKS, &good));
	EXPECT_EQ(-EEXIST, raw_ioctl(raw_fd, FIBER_IOC_STACKS, &good));
	good.base -= 8192;
	EXPECT_EQ(-EEXIST, raw_ioctl(raw_fd, FIBER_IOC_STACKS, &good));
	good.base += 8192 * 3;
	for (i = 1; !err && i < 100000; i++, good.base += 8192 * 2)
		err = raw_ioctl(raw_fd, FIBER_IOC_STACKS, &good);
	EXPECT_EQ(-ENOSPC, err);
	EXPECT_LE(1024, i);
}

/* In no order; each in a gap of its own, and none over another, however it lies. */
TEST(stacks_many)
{
	enum { MANY = 300, SIZE = 8192, APART = 2 * SIZE, BASE = 1 << 20 };
	static const struct { int from, size; } over[] = {
		{ 0, SIZE }, { -4096, SIZE }, { 4096, SIZE }, { -SIZE, 2 * APART },
		{ 4096, 1 }, { -1, 2 }, { SIZE - 1, 2 },
	};
	struct fiber_stacks_args a = { .count = 1 };
	unsigned int i, j;

	START(0);
	for (i = 0; i < MANY; i++) {
		a.base = BASE + i * 77 % MANY * APART;
		a.stride = SIZE;
		ASSERT_EQ(0, raw_ioctl(raw_fd, FIBER_IOC_STACKS, &a)) TH_LOG("%u", i);
	}
	for (i = 0; i < MANY; i++) {
		for (j = 0; j < ARRAY_SIZE(over); j++) {
			a.base = BASE + i * APART + over[j].from;
			a.stride = over[j].size;
			EXPECT_EQ(-EEXIST, raw_ioctl(raw_fd, FIBER_IOC_STACKS, &a))
				TH_LOG("%u, over %u", i, j);
		}
	}
	a.stride = SIZE;
	for (i = 0; i < MANY; i++) {
		a.base = BASE + i * APART + SIZE;
		EXPECT_EQ(0, raw_ioctl(raw_fd, FIBER_IOC_STACKS, &a)) TH_LOG("%u", i);
	}
}

TEST(text_bad)
{
	static const struct bad list[] = {
		BAD(fiber_text_args, start, 0),
		BAD(fiber_text_args, start, 0x5000),
		BAD(fiber_text_args, start, KERNEL),
		BAD(fiber_text_args, end, 0x1000),
		BAD(fiber_text_args, end, 0),
		BAD(fiber_text_args, end, KERNEL),
		BAD(fiber_text_args, reserved[0], 1),
		BAD(fiber_text_args, reserved[1], 1),
	};
	struct fiber_text_args good = { .start = 0x1000, .end = 0x5000 };
	int i, err = 0;

	START(0);
	EXPECT_ALL_BAD(raw_fd, FIBER_IOC_TEXT, &good, list, EINVAL);
	EXPECT_EQ(-EFAULT, raw_ioctl(raw_fd, FIBER_IOC_TEXT, NULL));
	for (i = 0; !err && i < 100000; i++)
		err = raw_ioctl(raw_fd, FIBER_IOC_TEXT, &good);
	EXPECT_EQ(-ENOSPC, err);
	EXPECT_LE(16, i);
}

/* The first command that does not say -EPERM to this process, or 0. */
static unsigned long not_refused(int fd)
{
	static char args[256];
	static const unsigned long list[] = {
		FIBER_IOC_SETUP, FIBER_IOC_ATTACH, FIBER_IOC_DETACH,
		FIBER_IOC_ACQUIRE, FIBER_IOC_WAIT, FIBER_IOC_WAKE,
		FIBER_IOC_STACKS, FIBER_IOC_TEXT, FIBER_IOC_KEEP,
	};
	size_t i;

	for (i = 0; i < ARRAY_SIZE(list); i++)
		if (raw_ioctl(fd, list[i], args) != -EPERM)
			return list[i];
	if (mmap(NULL, RAW_PAGE, PROT_READ, MAP_SHARED, fd, 0) != MAP_FAILED ||
	    errno != EPERM)
		return 1;
	return 0;
}

static int exit_code(pid_t pid)
{
	int status = -1;

	waitpid(pid, &status, 0);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + status;
}

TEST(foreign_child)
{
	pid_t pid;

	START(0);
	ASSERT_EQ(0, raw_attach());
	pid = fork();
	if (!pid)
		_exit(not_refused(raw_fd) ? 1 : 7);
	EXPECT_EQ(7, exit_code(pid));
	EXPECT_EQ(1, raw_info->carriers);
	EXPECT_EQ(0, raw_info->dead);
	EXPECT_EQ(0, raw_own(FIBER_WAIT_READY));
}

static void send_fd(int sock, int fd)
{
	char byte = 'x', control[CMSG_SPACE(sizeof(int))] = {};
	struct iovec iov = { &byte, 1 };
	struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1,
		.msg_control = control, .msg_controllen = sizeof(control) };
	struct cmsghdr *c = CMSG_FIRSTHDR(&m);

	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(c), &fd, sizeof(fd));
	sendmsg(sock, &m, 0);
}

static int receive_fd(int sock)
{
	char byte, control[CMSG_SPACE(sizeof(int))] = {};
	struct iovec iov = { &byte, 1 };
	struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1,
		.msg_control = control, .msg_controllen = sizeof(control) };
	struct cmsghdr *c;
	int fd = -1;

	if (recvmsg(sock, &m, 0) == 1 && (c = CMSG_FIRSTHDR(&m)))
		memcpy(&fd, CMSG_DATA(c), sizeof(fd));
	return fd;
}

TEST(foreign_receiver)
{
	int sock[2], fd;
	pid_t pid;

	NEED_MODULE();
	ASSERT_EQ(0, socketpair(AF_UNIX, SOCK_STREAM, 0, sock));
	pid = fork();
	if (!pid) {		/* before the group exists */
		fd = receive_fd(sock[1]);
		if (fd < 0)
			_exit(2);
		_exit(not_refused(fd) ? 1 : 7);
	}
	START(0);
	send_fd(sock[0], raw_fd);
	EXPECT_EQ(7, exit_code(pid));
	EXPECT_EQ(0, raw_info->dead);
	EXPECT_EQ(0, raw_attach());
}

/* What mmap says: 0 or errno. */
static int map_says(uint64_t off, size_t pages, int prot, int flags)
{
	void *p = mmap(NULL, pages * RAW_PAGE, prot, flags, raw_fd, off);

	if (p == MAP_FAILED)
		return errno;
	munmap(p, pages * RAW_PAGE);
	return 0;
}

TEST(mmap_bad)
{
	const int rw = PROT_READ | PROT_WRITE;
	const struct fiber_setup_args *s = &raw_args;

	START(.processors = 2, .max_carriers = 4);
	EXPECT_EQ(0, map_says(s->off_info, 1, PROT_READ, MAP_SHARED));
	EXPECT_EQ(EACCES, map_says(s->off_info, 1, rw, MAP_SHARED));
	EXPECT_EQ(EINVAL, map_says(s->off_info, 2, PROT_READ, MAP_SHARED));
	EXPECT_EQ(EINVAL, map_says(s->off_hint, 2, rw, MAP_SHARED));
	EXPECT_EQ(EINVAL, map_says(s->off_hint, 1, rw, MAP_PRIVATE));
	EXPECT_EQ(EINVAL, map_says(s->off_info, 1, PROT_READ, MAP_PRIVATE));
	EXPECT_EQ(EINVAL, map_says(s->off_hint, 1, PROT_READ | PROT_EXEC,
				   MAP_SHARED));
	EXPECT_EQ(EINVAL, map_says(s->off_processors, 3, rw, MAP_SHARED));
	EXPECT_EQ(EINVAL, map_says(s->off_processors + 2 * RAW_PAGE, 1, rw,
				   MAP_SHARED));
	EXPECT_EQ(EINVAL, map_says(s->off_carriers, 5, rw, MAP_SHARED));
	EXPECT_EQ(EINVAL, map_says(s->off_carriers + 4 * RAW_PAGE, 1, rw,
				   MAP_SHARED));
	EXPECT_EQ(EINVAL, map_says(2 * RAW_PAGE, 1, rw, MAP_SHARED));
	EXPECT_EQ(EINVAL, map_says(1ULL << 40, 1, rw, MAP_SHARED));
	EXPECT_EQ(0, map_says(s->off_processors + RAW_PAGE, 1, rw, MAP_SHARED));
	EXPECT_EQ(0, map_says(s->off_carriers + 3 * RAW_PAGE, 1, rw, MAP_SHARED));
}

TEST(mmap_changes)
{
	void *info, *hint;

	START(.processors = 2);
	info = (void *)raw_info;
	hint = (void *)raw_hint;
	EXPECT_EQ(-1, mprotect(info, RAW_PAGE, PROT_READ | PROT_WRITE));
	EXPECT_EQ(EACCES, errno);
	EXPECT_EQ(-1, mprotect(hint, RAW_PAGE, PROT_READ | PROT_EXEC));
	EXPECT_EQ(EACCES, errno);
	EXPECT_EQ(MAP_FAILED, mremap(hint, RAW_PAGE, 2 * RAW_PAGE, MREMAP_MAYMOVE));
	EXPECT_EQ(EFAULT, errno);
	EXPECT_EQ(MAP_FAILED, mremap(hint, 0, RAW_PAGE, MREMAP_MAYMOVE));

	/* Growing is refused, moving is harmless. */
	raw_hint->work = 42;
	hint = mremap(hint, RAW_PAGE, RAW_PAGE, MREMAP_MAYMOVE | MREMAP_FIXED,
		      mmap(NULL, RAW_PAGE, PROT_NONE,
			   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
	ASSERT_NE(MAP_FAILED, hint);
	EXPECT_EQ(42, *(uint32_t *)hint);
}

/* Does the kernel reach one byte there? 0 or errno. */
static int readable(volatile const void *at)
{
	int p[2], err;

	if (pipe(p))
		return -1;
	err = write(p[1], (const void *)at, 1) == 1 ? 0 : errno;
	close(p[0]);
	close(p[1]);
	return err;
}

TEST_SIGNAL(mmap_unattached_page, SIGBUS)
{
	if (access("/dev/fiber", R_OK)) {
		raise(SIGBUS);
		return;
	}
	START(.max_carriers = 4);
	ASSERT_EQ(EFAULT, readable(raw_carrier(0)));
	ASSERT_EQ(0, raw_attach());
	ASSERT_EQ(0, raw_index);
	ASSERT_EQ(0, readable(raw_carrier(0)));
	raw_carrier(1)->in_fiber = 1;
}

TEST(mmap_child_has_none)
{
	pid_t pid;

	START(0);
	ASSERT_EQ(0, raw_attach());
	ASSERT_EQ(0, readable(raw_info));
	pid = fork();
	if (!pid)
		_exit(readable(raw_info) == EFAULT &&
		      readable(raw_hint) == EFAULT &&
		      readable(raw_processor(0)) == EFAULT &&
		      readable(raw_page) == EFAULT ? 7 : 1);
	EXPECT_EQ(7, exit_code(pid));
	EXPECT_EQ(0, readable(raw_page));
}

/* The first word of a page that looks like a kernel address, or 0. */
static uint64_t kernel_word(volatile void *page)
{
	volatile uint64_t *word = page;
	size_t i;

	for (i = 0; i < RAW_PAGE / sizeof(*word); i++)
		if (word[i] >> 47 == 0x1ffff && word[i] != UINT64_MAX)
			return word[i];
	return 0;
}

TEST(pages_leak_nothing)
{

	START(.processors = 1);
	ASSERT_EQ(0, raw_attach());
	ASSERT_EQ(0, raw_own(FIBER_WAIT_READY));
	EXPECT_EQ(0, kernel_word(raw_info));
	EXPECT_EQ(0, kernel_word(raw_hint));
	EXPECT_EQ(0, kernel_word(raw_processor(0)));
	EXPECT_EQ(0, kernel_word(raw_page));
}

/* The mapping outlives the descriptor; the group is dead then. */
TEST(mmap_after_close)
{
	START(0);
	ASSERT_EQ(0, raw_attach());
	ASSERT_EQ(0, close(raw_fd));
	EXPECT_EQ(1, raw_info->dead);
	raw_page->in_fiber = 0;
	EXPECT_EQ(0, raw_hint->work);
}

TEST_HARNESS_MAIN
