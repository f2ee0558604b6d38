// SPDX-License-Identifier: GPL-2.0-only
/* Files and children: what the table of io_twins.c does not show. */
#include "common.h"
#include "forbid.h"

#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>

FIXTURE(file) {};
FIXTURE_VARIANT(file) {
	const char *io;
	unsigned int processors;
	uint64_t quantum;
};
FIXTURE_SETUP(file)
{
	setenv("FIBER_IO", variant->io, 1);
}
FIXTURE_TEARDOWN(file) {}
FIXTURE_VARIANT_ADD(file, epoll) { "epoll", 1, 0 };
FIXTURE_VARIANT_ADD(file, plain) { "plain", 2, 0 };
FIXTURE_VARIANT_ADD(file, uring) { "uring", 1, 0 };
FIXTURE_VARIANT_ADD(file, uring_two) { "uring", 2, 100 * US };

#define RUN(fn, arg) \
	ASSERT_EQ(0, with_runtime(variant->processors, variant->quantum, fn, arg)); \
	EXPECT_EQ(0, failures)

/* ---- children ---- */

/* A child that ends when the pipe is closed, with code, or with its number. */
static pid_t child(int p[2], int code)
{
	pid_t pid = fork();
	char c;

	if (!pid) {
		close(p[1]);
		while (read(p[0], &c, 1) > 0)
			;
		_exit(code ? code : getpid() % 100);
	}
	check(pid > 0);
	return pid;
}

static atomic_int waited;

static int waits(void *arg)
{
	pid_t pid = (pid_t)(long)arg;
	int status = -1;

	check_eq(pid, fiber_waitpid(pid, &status, 0));
	check(WIFEXITED(status));
	check_eq(pid % 100, WEXITSTATUS(status));
	check_eq(-ECHILD, fiber_waitpid(pid, &status, 0));
	atomic_fetch_add(&waited, 1);
	return 0;
}

static int is_cancelled(void *arg)
{
	int status;

	check_eq(-ECANCELED, fiber_waitpid((pid_t)(long)arg, &status, 0));
	check_eq(-ECANCELED, fiber_waitpid(-1, &status, 0));
	return 0;
}

static void *children(void *arg)
{
	fiber_scope_t scope;
	int p[2], status;
	uint64_t t;
	pid_t pid;

	check_eq(0, pipe2(p, O_CLOEXEC));
	check_eq(0, fiber_scope_open(&scope, NULL));
	for (int i = 0; i < 5; i++) {
		pid = child(p, 0);
		check_eq(0, fiber_scope_spawn(&scope, waits,
					      (void *)(long)pid));
	}
	pid = child(p, 7);
	check_eq(0, fiber_waitpid(pid, &status, WNOHANG));
	t = fiber_now() + 2 * MS;
	check_eq(-ETIMEDOUT, fiber_waitpid_until(pid, &status, 0, t));
	check(fiber_now() >= t);
	check_eq(-ETIMEDOUT, fiber_waitpid_until(pid, &status, 0, 0));
	t = fiber_now() + 2 * MS;
	check_eq(-ETIMEDOUT, fiber_waitpid_until(-1, &status, 0, t));
	check(fiber_now() >= t);
	check_eq(0, waited);
	check_eq(0, fiber_close(p[1]));
	check_eq(0, fiber_scope_close(&scope));
	check_eq(5, waited);
	check_eq(pid, fiber_waitpid(-1, &status, 0));
	check_eq(7, WEXITSTATUS(status));
	check_eq(-ECHILD, fiber_waitpid(-1, &status, 0));
	check_eq(0, fiber_close(p[0]));
	return arg;
}

TEST_F(file, children_are_waited_for)
{
	RUN(children, NULL);
}

static void *cancels(void *arg)
{
	fiber_scope_t scope;
	int p[2], status;
	pid_t pid;

	check_eq(0, pipe2(p, O_CLOEXEC));
	pid = child(p, 7);
	check_eq(0, fiber_scope_open(&scope, NULL));
	check_eq(0, fiber_scope_spawn(&scope, is_cancelled, (void *)(long)pid));
	check_eq(0, fiber_sleep(2 * MS));
	fiber_scope_cancel(&scope, -EIO);
	check_eq(-EIO, fiber_scope_close(&scope));
	check_eq(0, fiber_close(p[1]));
	check_eq(pid, fiber_waitpid(pid, &status, 0));
	check_eq(7, WEXITSTATUS(status));
	check_eq(0, fiber_close(p[0]));
	return arg;
}

TEST_F(file, waiting_for_a_child_is_cancelled)
{
	RUN(cancels, NULL);
}

static void *stops(void *arg)
{
	int p[2], status = 0;
	pid_t pid;

	check_eq(0, pipe2(p, O_CLOEXEC));
	pid = child(p, 7);
	check_eq(0, kill(pid, SIGSTOP));
	check_eq(pid, fiber_waitpid(pid, &status, WUNTRACED));
	check(WIFSTOPPED(status));
	check_eq(0, kill(pid, SIGKILL));
	check_eq(pid, fiber_waitpid(pid, &status, WUNTRACED));
	check(WIFSIGNALED(status));
	check_eq(0, fiber_close(p[0]));
	check_eq(0, fiber_close(p[1]));
	return arg;
}

TEST_F(file, children_that_stop_are_seen)
{
	RUN(stops, NULL);
}

/* ---- files ---- */

enum { BLOCKS = 64, BLOCK = 512 };

static int file;

static void *rewrites(void *arg)
{
	long n = (long)arg;
	char b[BLOCK], c[BLOCK];

	for (int i = 0; i < 20; i++) {
		memset(b, (int)(n + i), sizeof(b));
		check_eq(BLOCK, fiber_pwrite(file, b, BLOCK, n * BLOCK));
		if (i == 10 && n % 8 < 2)
			check_eq(0, n % 8 ? fiber_fsync(file) :
				 fiber_fdatasync(file));
		check_eq(BLOCK, fiber_pread(file, c, BLOCK, n * BLOCK));
		check(!memcmp(b, c, BLOCK));
		fiber_yield();
	}
	return NULL;
}

static void *files(void *arg)
{
	char name[64];
	fiber_t *f[BLOCKS];
	struct statx st;

	snprintf(name, sizeof(name), "/tmp/fiber-io-file-%d", getpid());
	file = fiber_open(name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	check(file >= 0);
	check_eq(-EEXIST, fiber_open(name, O_RDWR | O_CREAT | O_EXCL, 0600));
	for (long i = 0; i < BLOCKS; i++)
		f[i] = spawn(rewrites, (void *)i);
	for (int i = 0; i < BLOCKS; i++)
		join(f[i]);
	check_eq(0, fiber_statx(AT_FDCWD, name, 0, STATX_SIZE | STATX_MODE, &st));
	check_eq(BLOCKS * BLOCK, st.stx_size);
	check_eq(0600, st.stx_mode & 0777);
	check_eq(0, unlink(name));
	check_eq(-ENOENT, fiber_statx(AT_FDCWD, name, 0, STATX_SIZE, &st));
	check_eq(0, fiber_close(file));
	check_eq(-EBADF, fiber_pread(file, name, 1, 0));
	return arg;
}

TEST_F(file, blocks_are_written_and_read)
{
	RUN(files, NULL);
}

/* ---- calls that last: the open of a FIFO, until its other end is opened ---- */

enum { MANY = 24 };		/* more than workers by default */

static char folder[] = "/tmp/fiber-io-file-XXXXXX";
static int dir = -1;
static atomic_int opened, closed;

static void make_fifo(void)
{
	check(mkdtemp(folder) != NULL);
	dir = fiber_open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
	check(dir >= 0);
	check_eq(0, mkfifoat(dir, "fifo", 0600));
}

static void remove_fifo(void)
{
	char name[64];

	snprintf(name, sizeof(name), "%s/fifo", folder);
	check_eq(0, unlink(name));
	check_eq(0, rmdir(folder));
}

static void *opens_to_read(void *arg)
{
	int fd = fiber_openat(dir, "fifo", O_RDONLY, 0);
	char c;

	atomic_store(&opened, 1);
	check(fd >= 0);
	check_eq(1, fiber_read(fd, &c, 1));
	check_eq(0, fiber_read(fd, &c, 1));
	check_eq(0, fiber_close(fd));
	return arg;
}

static void *closes_the_folder(void *arg)
{
	check_eq(0, fiber_close(dir));
	atomic_store(&closed, 1);
	return arg;
}

static void *fifo(void *arg)
{
	fiber_t *f, *g;
	char name[64];
	int fd;

	make_fifo();
	snprintf(name, sizeof(name), "%s/fifo", folder);
	f = spawn(opens_to_read, NULL);
	while ((fd = open(name, O_WRONLY | O_NONBLOCK)) < 0)
		check_eq(0, fiber_sleep(200 * US));
	check_eq(1, fiber_write(fd, "x", 1));
	check_eq(0, fiber_close(fd));
	join(f);
	opened = 0;
	f = spawn(opens_to_read, NULL);
	g = spawn(closes_the_folder, NULL);
	check_eq(0, fiber_sleep(2 * MS));
	check_eq(0, opened);
	check_eq(0, closed);		/* it waits for the call */
	fd = fiber_open(name, O_WRONLY, 0);
	check(fd >= 0);
	check_eq(1, fiber_write(fd, "x", 1));
	check_eq(0, fiber_close(fd));
	join(f);
	join(g);
	check_eq(-EBADF, fiber_openat(dir, "fifo", O_RDONLY, 0));
	remove_fifo();
	return arg;
}

TEST_F(file, open_blocks_one_fiber)
{
	RUN(fifo, NULL);
}

/* ---- both ends of many: no call keeps the one it waits for from being made ---- */

static void *opens_one(void *arg)
{
	long i = (long)arg;
	char name[32], c = (char)i;
	int fd;

	snprintf(name, sizeof(name), "%ld", i / 2);
	fd = fiber_openat(dir, name, i % 2 ? O_WRONLY : O_RDONLY, 0);
	check(fd >= 0);
	if (i % 2)
		check_eq(1, fiber_write(fd, &c, 1));
	else
		check_eq(1, fiber_read(fd, &c, 1));
	check_eq(i | 1, c);
	check_eq(0, fiber_close(fd));
	return arg;
}

static void *all_ends(void *arg)
{
	fiber_t *f[2 * MANY];
	char name[64];

	make_fifo();
	for (int i = 0; i < MANY; i++) {
		snprintf(name, sizeof(name), "%d", i);
		check_eq(0, mkfifoat(dir, name, 0600));
		f[i] = spawn(opens_one, (void *)(2L * i));
	}
	for (int i = 0; i < MANY; i++)
		f[MANY + i] = spawn(opens_one, (void *)(2L * i + 1));
	for (int i = 0; i < 2 * MANY; i++)
		join(f[i]);
	for (int i = 0; i < MANY; i++) {
		snprintf(name, sizeof(name), "%d", i);
		check_eq(0, unlinkat(dir, name, 0));
	}
	check_eq(0, fiber_close(dir));
	remove_fifo();
	return arg;
}

TEST_F(file, both_ends_of_many_are_opened)
{
	RUN(all_ends, NULL);
}

static int opens_in_vain(void *arg)
{
	check_eq(-ECANCELED, fiber_openat(dir, "fifo", O_RDONLY, 0));
	return 0;
}

/* Where the kernel can be told. */
static void *opens_end(void *arg)
{
	uint64_t t = fiber_now() + 2 * MS;
	fiber_scope_t scope;

	make_fifo();
	check_eq(-ETIMEDOUT, fiber_openat_until(dir, "fifo", O_RDONLY, 0, t));
	check(fiber_now() >= t);
	check_eq(0, fiber_cancelled());
	check_eq(0, fiber_scope_open(&scope, NULL));
	for (int i = 0; i < MANY; i++)
		check_eq(0, fiber_scope_spawn(&scope, opens_in_vain, NULL));
	check_eq(0, fiber_sleep(MS));
	fiber_scope_cancel(&scope, -EIO);
	check_eq(-EIO, fiber_scope_close(&scope));
	check_eq(0, fiber_close(dir));
	remove_fifo();
	return arg;
}

static void *opens_end_if(void *arg)
{
	if (fiber_features() &
	    (FIBER_FEATURE_CANCEL_BLOCKED | FIBER_FEATURE_IO_URING))
		return opens_end(arg);
	printf("# nothing ends the open of a FIFO here\n");
	return arg;
}

TEST_F(file, deadline_and_cancel_end_an_open)
{
	RUN(opens_end_if, NULL);
}

/* ---- while carriers are blocked ---- */

static void *blocks(void *arg)
{
	char c;

	while (read(((int *)arg)[0], &c, 1) < 0 && errno == EINTR)
		;
	return NULL;
}

static int make_file(void)
{
	char name[] = "/tmp/fiber-io-XXXXXX";
	int fd = mkstemp(name);

	check(fd >= 0);
	check_eq(0, unlink(name));
	return fd;
}

static void *beside_blocked(void *arg)
{
	fiber_t *f[4];
	struct statx st;
	int p[2], fd = make_file();
	char b[4] = "abc";

	check_eq(0, pipe(p));
	for (int i = 0; i < 4; i++)
		f[i] = spawn(blocks, p);
	for (int i = 0; i < 10; i++) {
		check_eq(4, fiber_pwrite(fd, b, 4, i));
		check_eq(0, fiber_fdatasync(fd));
		check_eq(0, fiber_statx(fd, "", AT_EMPTY_PATH, STATX_SIZE, &st));
		check_eq(4 + i, st.stx_size);
	}
	check_eq(4, write(p[1], b, 4));
	for (int i = 0; i < 4; i++)
		join(f[i]);
	close(p[0]);
	close(p[1]);
	check_eq(0, fiber_close(fd));
	return arg;
}

TEST_F(file, done_while_carriers_are_blocked)
{
	RUN(beside_blocked, NULL);
}

/* ---- a buffer is the caller's when a call has returned ---- */

static void *in_no_time(void *arg)
{
	int fd = make_file(), late = 0;
	char b[64], all[64 * 64];
	long r;

	for (int i = 0; i < 200; i++) {
		memset(b, 1, sizeof(b));
		r = fiber_pwrite_until(fd, b, sizeof(b), i % 64 * 64,
				       fiber_now() + (uint64_t)i % 50 * 4 * US);
		memset(b, 2, sizeof(b));
		if (r == -ETIMEDOUT)
			late++;
		else
			check_eq(64, r);
		r = fiber_fdatasync_until(fd, fiber_now() + (uint64_t)i % 20 * US);
		check(r == 0 || r == -ETIMEDOUT);
	}
	check_eq(0, fiber_fsync(fd));
	r = fiber_pread(fd, all, sizeof(all), 0);
	check(r >= 0);
	check(!memchr(all, 2, (size_t)r));
	printf("# %d of 200 too late\n", late);
	check_eq(0, fiber_close(fd));
	return arg;
}

TEST_F(file, buffers_are_let_go)
{
	RUN(in_no_time, NULL);
}

/* ---- cancelled, too late ---- */

static int cancelled_calls(void *arg)
{
	struct statx st;
	char c;

	check_eq(-ECANCELED, fiber_open("/dev/null", O_RDONLY, 0));
	check_eq(-ECANCELED, fiber_pread(0, &c, 1, 0));
	check_eq(-ECANCELED, fiber_pwrite(0, "x", 1, 0));
	check_eq(-ECANCELED, fiber_fsync(0));
	check_eq(-ECANCELED, fiber_fdatasync(0));
	check_eq(-ECANCELED, fiber_waitpid(-1, NULL, 0));
	check_eq(-ECANCELED, fiber_statx(0, "/", 0, 0, &st));
	return 0;
}

static int waits_to_be_cancelled(void *arg)
{
	check_eq(-ECANCELED, fiber_sleep(100 * SEC));
	return cancelled_calls(arg);
}

static void *cancelled(void *arg)
{
	fiber_scope_t scope;

	check_eq(0, fiber_scope_open(&scope, NULL));
	check_eq(0, fiber_scope_spawn(&scope, waits_to_be_cancelled, NULL));
	fiber_scope_cancel(&scope, -EIO);
	check_eq(-EIO, fiber_scope_close(&scope));
	return arg;
}

static void *too_late(void *arg)
{
	struct statx st = { 0 };
	uint64_t past = fiber_now();
	char name[64], c = 0;

	snprintf(name, sizeof(name), "/tmp/fiber-io-late-%d", getpid());
	check_eq(-ETIMEDOUT, fiber_open_until(name, O_CREAT, 0600, past));
	check_eq(-ENOENT, fiber_open_until(name, 0, 0, past + 1000 * SEC));
	check_eq(-ETIMEDOUT, fiber_openat_until(0, name, O_CREAT, 0600, 0));
	check_eq(-ETIMEDOUT, fiber_statx_until(0, "/", 0, 0, &st, past));
	check_eq(0, st.stx_mask);
	check_eq(0, fiber_statx_until(0, "/", 0, STATX_MODE, &st, past + 1000 * SEC));
	check_eq(-ETIMEDOUT, fiber_pwrite_until(9999, &c, 1, 0, past));
	check_eq(-EBADF, fiber_pread_until(9999, &c, 1, 0, past));
	check_eq(-EBADF, fiber_pread_until(9999, &c, 1, 0, past + 1000 * SEC));
	check_eq(-ETIMEDOUT, fiber_fsync_until(9999, past));
	check_eq(-ETIMEDOUT, fiber_fdatasync_until(9999, 0));
	return arg;
}

TEST_F(file, cancelled_fibers_do_nothing)
{
	RUN(cancelled, NULL);
}

TEST_F(file, too_late_is_not_begun)
{
	RUN(too_late, NULL);
	too_late(NULL);			/* a plain thread */
	EXPECT_EQ(0, failures);
}

/* ---- which way ---- */

static bool there_is_a_ring(void)
{
	char params[120] = { 0 };
	long fd = syscall(SYS_io_uring_setup, 1, params);

	if (fd >= 0)
		close((int)fd);
	return fd >= 0;
}

/* A child of a fork has no part in the ring, and needs none. */
static void *in_a_child(void *arg)
{
	struct statx st;
	int fd = make_file(), status;
	pid_t pid;

	check_eq(1, fiber_pwrite(fd, "x", 1, 0));
	pid = fork();
	if (!pid)
		_exit(fiber_pwrite(fd, "yz", 2, 1) == 2 && !fiber_fsync(fd) &&
		      !fiber_statx(fd, "", AT_EMPTY_PATH, STATX_SIZE, &st) &&
		      st.stx_size == 3 ? 0 : 1);
	check_eq(pid, fiber_waitpid(pid, &status, 0));
	check_eq(0, status);
	check_eq(0, fiber_close(fd));
	return arg;
}

static void *shows(void *arg)
{
	bool on = fiber_features() & FIBER_FEATURE_IO_URING;

	check_eq((long)arg, on);
	check_eq((long)arg, strstr(fiber_backend(), "io_uring") != NULL);
	return in_a_child(NULL);
}

TEST_F(file, says_which_way)
{
	bool ring = there_is_a_ring() && !strcmp(variant->io, "uring");

#if __has_include(<liburing.h>)
	RUN(shows, (void *)(long)ring);
#else
	(void)ring;
	RUN(shows, NULL);
#endif
}

TEST(a_forbidden_ring_is_done_without)
{
	setenv("FIBER_IO", "uring", 1);
	ASSERT_TRUE(forbid(SYS_io_uring_setup, SECCOMP_RET_ERRNO | EPERM));
	ASSERT_EQ(0, with_runtime(2, 0, shows, NULL));
	ASSERT_EQ(0, with_runtime(2, 0, files, NULL));
	EXPECT_EQ(0, failures);
}

TEST_HARNESS_MAIN
