// SPDX-License-Identifier: GPL-2.0-only
/*
 * Blocks of other kinds, on one processor: a page fault, reads that signals
 * interrupt or restart, many reads at once. See block.c.
 */
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>

#include "scene.h"

/* ---- a page fault ---- */

struct fault {
	int fd;
	char *page;
	size_t size;
	atomic_int arrived, go;
};

static struct fault fault;

static void *serves_faults(void *arg)
{
	struct uffd_msg msg;
	struct uffdio_copy copy = { 0 };
	char *source = aligned_alloc(fault.size, fault.size);

	check_eq(sizeof(msg), read(fault.fd, &msg, sizeof(msg)));
	check_eq(UFFD_EVENT_PAGEFAULT, msg.event);
	atomic_store(&fault.arrived, 1);
	while (!atomic_load(&fault.go))
		block_ns(1 * MS);
	memset(source, 0x5a, fault.size);
	copy.dst = (uintptr_t)fault.page;
	copy.src = (uintptr_t)source;
	copy.len = fault.size;
	check_eq(0, ioctl(fault.fd, UFFDIO_COPY, &copy));
	free(source);
	return NULL;
}

static void block_fault(struct scene *s)
{
	check_eq(0x5a, *(volatile char *)(fault.page + 10));
}

/* The thread that serves it may come later than it blocks. */
static void wake_fault(struct scene *s)
{
	while (!atomic_load(&fault.arrived))
		fiber_yield();
	atomic_store(&fault.go, 1);
}

static int open_userfault(void)
{
	struct uffdio_api api = { .api = UFFD_API };
	struct uffdio_register reg = { .mode = UFFDIO_REGISTER_MODE_MISSING };
	int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);

	if (fd < 0)
		return -errno;
	fault.size = (size_t)sysconf(_SC_PAGESIZE);
	fault.page = mmap(NULL, fault.size, PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	reg.range.start = (uintptr_t)fault.page;
	reg.range.len = fault.size;
	if (ioctl(fd, UFFDIO_API, &api) || ioctl(fd, UFFDIO_REGISTER, &reg))
		return -errno;
	return fd;
}

TEST(block_in_a_page_fault)
{
	static struct scene s = { .block = block_fault, .wake = wake_fault };
	pthread_t thread;

	fault.fd = open_userfault();
	if (fault.fd < 0)
		SKIP(return, "userfaultfd: %s", strerror(-fault.fd));
	ASSERT_EQ(0, pthread_create(&thread, NULL, serves_faults, NULL));
	play(&s);
	ASSERT_EQ(0, pthread_join(thread, NULL));
	EXPECT_EQ(0, failures);
}

/* ---- signals that are meant: the handler runs where it should ---- */

static atomic_int handled_on;

static void on_signal(int sig)
{
	atomic_store(&handled_on, gettid());
}

static void install(int flags)
{
	struct sigaction act = { .sa_handler = on_signal, .sa_flags = flags };

	check_eq(0, sigaction(SIGUSR1, &act, NULL));
}

static void block_interrupted(struct scene *s)
{
	char byte;

	errno = 0;
	check_eq(-1, read(s->fd[0], &byte, 1));
	check_eq(EINTR, errno);
	check_eq(atomic_load(&s->tid), atomic_load(&handled_on));
}

/*
 * A thread that sleeps may also wait for its turn, still before its call: such a
 * signal would interrupt nothing.
 */
static void wake_signal(struct scene *s)
{
	while (atomic_load(&s->inside)) {
		check_eq(0, tgkill(getpid(), atomic_load(&s->tid), SIGUSR1));
		for (int i = 0; i < 1000 && atomic_load(&s->inside); i++)
			fiber_yield();
	}
}

TEST(block_interrupted_by_a_signal)
{
	install(0);
	play_pipe(_metadata, block_interrupted, wake_signal);
}

static void block_restarted(struct scene *s)
{
	block_read(s);
	check_eq(atomic_load(&s->tid), atomic_load(&handled_on));
}

static void wake_signal_then_pipe(struct scene *s)
{
	check_eq(0, tgkill(getpid(), atomic_load(&s->tid), SIGUSR1));
	while (!atomic_load(&handled_on))
		fiber_yield();
	for (int i = 0; i < 100; i++)
		fiber_yield();
	wake_pipe(s);
}

static atomic_int sleeper;

static void *sleeps_in_read(void *fd)
{
	char byte;

	atomic_store(&sleeper, gettid());
	check_eq(1, read(*(int *)fd, &byte, 1));
	return NULL;
}

/* ThreadSanitizer puts a handler off until read returns. False: so it is here. */
static bool handled_in_a_read(void)
{
	uint64_t end = now_ns() + 5 * SEC;
	bool handled;
	pthread_t t;
	int fd[2];

	check_eq(0, pipe(fd));
	check_eq(0, pthread_create(&t, NULL, sleeps_in_read, &fd[0]));
	check(until(atomic_load(&sleeper) &&
		    thread_state(atomic_load(&sleeper)) == 'S'));
	check_eq(0, pthread_kill(t, SIGUSR1));
	while (!(handled = atomic_load(&handled_on)) && now_ns() < end)
		block_ns(1 * MS);
	check_eq(1, write(fd[1], "x", 1));
	check_eq(0, pthread_join(t, NULL));
	atomic_store(&handled_on, 0);
	return handled;
}

TEST(block_restarted_after_a_signal)
{
	install(SA_RESTART);
	if (!handled_in_a_read())
		SKIP(return, "handlers are put off until the call returns");
	play_pipe(_metadata, block_restarted, wake_signal_then_pipe);
}

/* ---- many at once ---- */

enum { MANY = 64 };

static int many_fd[MANY][2];
static atomic_int many_in;

static void *reads_one(void *arg)
{
	int i = (int)(intptr_t)arg, tid = gettid();
	char byte = 0;

	for (int k = 0; k < 5; k++) {
		atomic_fetch_add(&many_in, 1);
		check_eq(1, read(many_fd[i][0], &byte, 1));
		check_eq(i, byte);
		check_eq(tid, gettid());
	}
	return NULL;
}

static void *many(void *arg)
{
	fiber_t *f[MANY];

	for (intptr_t i = 0; i < MANY; i++)
		f[i] = spawn(reads_one, (void *)i);
	for (int k = 1; k <= 5; k++) {
		while (atomic_load(&many_in) < k * MANY)
			check_eq(0, fiber_sleep(1 * MS));
		for (int i = MANY; i-- > 0; ) {
			char byte = (char)i;

			check_eq(1, write(many_fd[i][1], &byte, 1));
		}
	}
	for (int i = 0; i < MANY; i++)
		join(f[i]);
	return NULL;
}

TEST(block_in_64_reads)
{
	for (int i = 0; i < MANY; i++)
		ASSERT_EQ(0, pipe(many_fd[i]));
	ASSERT_EQ(0, with_runtime(1, 0, many, NULL));
	EXPECT_EQ(0, failures);
}

TEST_HARNESS_MAIN
