// SPDX-License-Identifier: GPL-2.0-only
/*
 * One processor, plain blocking calls, no wrappers: while one fiber is blocked
 * in the kernel the others run; the call's result is right; the fiber goes on
 * on its own thread. Where the block needs somebody to end it, a fiber of the
 * same processor does: without a handoff the test would hang.
 */
#include <linux/futex.h>
#include <netdb.h>
#include <spawn.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/stat.h>

#include "scene.h"

extern char **environ;

/* ---- waits that another fiber ends ---- */

static void block_poll(struct scene *s)
{
	struct pollfd p = { .fd = s->fd[0], .events = POLLIN };

	check_eq(1, poll(&p, 1, -1));
	check_eq(POLLIN, p.revents);
	block_read(s);
}

static void block_select(struct scene *s)
{
	fd_set set;

	FD_ZERO(&set);
	FD_SET(s->fd[0], &set);
	check_eq(1, select(s->fd[0] + 1, &set, NULL, NULL, NULL));
	check(FD_ISSET(s->fd[0], &set));
	block_read(s);
}

static void block_epoll(struct scene *s)
{
	struct epoll_event e = { .events = EPOLLIN, .data.u32 = 5 };
	int fd = epoll_create1(EPOLL_CLOEXEC);

	check(fd >= 0);
	check_eq(0, epoll_ctl(fd, EPOLL_CTL_ADD, s->fd[0], &e));
	memset(&e, 0, sizeof(e));
	check_eq(1, epoll_wait(fd, &e, 1, -1));
	check_eq(5, e.data.u32);
	block_read(s);
	close(fd);
}

static void block_getline(struct scene *s)
{
	FILE *file = fdopen(dup(s->fd[0]), "r");
	char *line = NULL;
	size_t size = 0;

	check_eq(2, getline(&line, &size, file));
	check(!strcmp(line, "l\n"));
	free(line);
	fclose(file);
}

static void wake_getline(struct scene *s)
{
	check_eq(2, write(s->fd[1], "l\n", 2));
}

TEST(block_in_read) { play_pipe(_metadata, block_read, wake_pipe); }
TEST(block_in_poll) { play_pipe(_metadata, block_poll, wake_pipe); }
TEST(block_in_select) { play_pipe(_metadata, block_select, wake_pipe); }
TEST(block_in_epoll_wait) { play_pipe(_metadata, block_epoll, wake_pipe); }
TEST(block_in_getline) { play_pipe(_metadata, block_getline, wake_getline); }

static void block_marked(struct scene *s)
{
	fiber_blocking_begin();
	fiber_blocking_begin();
	fiber_blocking_end();
	block_read(s);
	fiber_blocking_end();
}

TEST(block_in_a_marked_read) { play_pipe(_metadata, block_marked, wake_pipe); }

static void block_write(struct scene *s)
{
	static char big[1 << 20];
	size_t done = 0;
	int parts = 0;

	while (done < sizeof(big)) {
		ssize_t n = write(s->fd[1], big + done, sizeof(big) - done);

		check(n > 0);
		if (n <= 0)
			return;
		done += (size_t)n;
		parts++;
	}
	/* SIGURG can cut a write in two; nothing else may. */
	if (on_kernel())
		check_eq(1, parts);
}

static void wake_write(struct scene *s)
{
	static char big[1 << 16];
	size_t left = 1 << 20;

	while (left > 0) {
		ssize_t n = read(s->fd[0], big, sizeof(big));

		check(n > 0);
		if (n <= 0)
			return;
		left -= (size_t)n;
	}
}

TEST(block_in_write) { play_pipe(_metadata, block_write, wake_write); }

static void block_futex(struct scene *s)
{
	while (!atomic_load(&s->word))
		check_eq(0, syscall(SYS_futex, &s->word, FUTEX_WAIT_PRIVATE, 0,
				    NULL, NULL, 0));
}

static void wake_futex(struct scene *s)
{
	atomic_store(&s->word, 1);
	check_eq(1, syscall(SYS_futex, &s->word, FUTEX_WAKE_PRIVATE, 1, NULL,
			    NULL, 0));
}

TEST(block_in_futex) { play_pipe(_metadata, block_futex, wake_futex); }

static void block_sem(struct scene *s)
{
	check_eq(0, sem_wait(&s->sem));
}

static void wake_sem(struct scene *s)
{
	check_eq(0, sem_post(&s->sem));
}

TEST(block_in_sem_wait) { play_pipe(_metadata, block_sem, wake_sem); }

static void block_cond(struct scene *s)
{
	check_eq(0, pthread_mutex_lock(&s->mutex));
	while (!s->word)
		check_eq(0, pthread_cond_wait(&s->cond, &s->mutex));
	check_eq(0, pthread_mutex_unlock(&s->mutex));
}

static void wake_cond(struct scene *s)
{
	check_eq(0, pthread_mutex_lock(&s->mutex));
	s->word = 1;
	check_eq(0, pthread_cond_signal(&s->cond));
	check_eq(0, pthread_mutex_unlock(&s->mutex));
}

TEST(block_in_pthread_cond_wait) { play_pipe(_metadata, block_cond, wake_cond); }

static void block_accept(struct scene *s)
{
	int fd = accept(s->fd[0], NULL, NULL);
	char byte;

	check(fd >= 0);
	check_eq(1, recv(fd, &byte, 1, 0));	/* blocks again */
	close(fd);
}

static void wake_accept(struct scene *s)
{
	struct sockaddr_storage name;
	socklen_t len = sizeof(name);
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	check_eq(0, getsockname(s->fd[0], (struct sockaddr *)&name, &len));
	check_eq(0, connect(fd, (struct sockaddr *)&name, len));
	for (int i = 0; i < 100; i++)
		fiber_yield();
	check_eq(1, send(fd, "y", 1, 0));
	close(fd);
}

TEST(block_in_accept_and_recv)
{
	static struct scene s = { .block = block_accept, .wake = wake_accept };
	struct sockaddr_un name = { .sun_family = AF_UNIX };

	s.fd[0] = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	/* The family alone: the kernel chooses a name. */
	ASSERT_EQ(0, bind(s.fd[0], (struct sockaddr *)&name, sizeof(sa_family_t)));
	ASSERT_EQ(0, listen(s.fd[0], 1));
	play(&s);
	EXPECT_EQ(0, failures);
}

static void block_fifo(struct scene *s)
{
	int fd = open(s->path, O_RDONLY | O_CLOEXEC);

	check(fd >= 0);
	close(fd);
}

static void wake_fifo(struct scene *s)
{
	int fd = open(s->path, O_WRONLY | O_CLOEXEC);

	check(fd >= 0);
	close(fd);
}

TEST(block_in_open_of_a_fifo)
{
	static struct scene s = { .block = block_fifo, .wake = wake_fifo };

	snprintf(s.path, sizeof(s.path), "/tmp/fiber-fifo-%d", getpid());
	ASSERT_EQ(0, mkfifo(s.path, 0600));
	play(&s);
	unlink(s.path);
	EXPECT_EQ(0, failures);
}

/* ---- locks ---- */

static void block_flock(struct scene *s)
{
	check_eq(0, flock(s->fd[0], LOCK_EX));
}

static void wake_flock(struct scene *s)
{
	check_eq(0, flock(s->fd[1], LOCK_UN));
}

TEST(block_in_flock)
{
	static struct scene s = { .block = block_flock, .wake = wake_flock };

	snprintf(s.path, sizeof(s.path), "/tmp/fiber-flock-%d", getpid());
	s.fd[0] = open(s.path, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
	s.fd[1] = open(s.path, O_RDWR | O_CLOEXEC);
	unlink(s.path);
	ASSERT_LE(0, s.fd[0]);
	ASSERT_LE(0, s.fd[1]);
	ASSERT_EQ(0, flock(s.fd[1], LOCK_EX));
	play(&s);
	EXPECT_EQ(0, failures);
}

/* The other process holds the lock until it reads a byte. */
static void hold_flock(const char *path, int ready, int until)
{
	int fd = open(path, O_RDWR | O_CLOEXEC);
	char byte;

	if (flock(fd, LOCK_EX) || write(ready, "r", 1) != 1)
		_exit(1);
	_exit(read(until, &byte, 1) == 1 ? 0 : 2);
}

TEST(block_in_flock_of_another_process)
{
	static struct scene s = { .block = block_flock, .wake = wake_pipe };
	int ready[2], go[2], status;
	char byte;
	pid_t pid;

	snprintf(s.path, sizeof(s.path), "/tmp/fiber-flock-%d", getpid());
	s.fd[0] = open(s.path, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
	ASSERT_LE(0, s.fd[0]);
	ASSERT_EQ(0, pipe(ready));
	ASSERT_EQ(0, pipe(go));
	pid = fork();
	if (!pid)
		hold_flock(s.path, ready[1], go[0]);
	ASSERT_EQ(1, read(ready[0], &byte, 1));
	s.fd[1] = go[1];
	play(&s);
	unlink(s.path);
	ASSERT_EQ(pid, waitpid(pid, &status, 0));
	EXPECT_EQ(0, status);
	EXPECT_EQ(0, failures);
}

/*
 * The holder is blocked with the mutex; another waits for it; a third counts,
 * then ends the holder's block.
 */
static pthread_mutex_t held = PTHREAD_MUTEX_INITIALIZER;
static atomic_int holds;

static void *holds_mutex(void *arg)
{
	int tid = gettid();

	check_eq(0, pthread_mutex_lock(&held));
	atomic_store(&holds, 1);
	block_read(arg);
	atomic_store(&holds, 0);
	check_eq(0, pthread_mutex_unlock(&held));
	check_eq(tid, gettid());
	return NULL;
}

static void block_mutex(struct scene *s)
{
	check_eq(1, atomic_load(&holds));
	check_eq(0, pthread_mutex_lock(&held));
	check_eq(0, atomic_load(&holds));
	check_eq(0, pthread_mutex_unlock(&held));
}

static void *three(void *arg)
{
	fiber_t *f = spawn(holds_mutex, arg);

	while (!atomic_load(&holds))
		fiber_yield();
	both(arg);
	join(f);
	return NULL;
}

TEST(block_in_a_contended_mutex)
{
	static struct scene s = { .block = block_mutex, .wake = wake_pipe };

	ASSERT_EQ(0, pipe(s.fd));
	ASSERT_EQ(0, with_runtime(1, 0, three, &s));
	EXPECT_LE(200, s.counts);
	EXPECT_EQ(0, failures);
}

/* ---- waits that end by themselves ---- */

static void block_nanosleep(struct scene *s)
{
	uint64_t t = now_ns();

	check_eq(0, block_ns(s->nap));
	check(now_ns() - t >= s->nap);
}

TEST(block_in_nanosleep) { play_pipe(_metadata, block_nanosleep, NULL); }

static void block_timeouts(struct scene *s)
{
	struct pollfd p = { .fd = s->fd[0], .events = POLLIN };
	uint64_t t = now_ns();

	check_eq(0, poll(&p, 1, (int)(s->nap / MS)));
	check(now_ns() - t >= s->nap);
}

TEST(block_in_poll_with_timeout) { play_pipe(_metadata, block_timeouts, NULL); }

/* ---- child processes, each of which reads a line of the pipe and ends ---- */

static void block_waitpid(struct scene *s)
{
	int status = 0;
	pid_t pid = fork();
	char byte;

	if (!pid)
		_exit(read(s->fd[0], &byte, 1) == 1 ? 3 : 1);
	check(pid > 0);
	check_eq(pid, waitpid(pid, &status, 0));
	check_eq(3, WEXITSTATUS(status));
}

TEST(block_in_fork_and_waitpid)
{
	play_pipe(_metadata, block_waitpid, wake_pipe);
}

static void block_spawn(struct scene *s)
{
	char script[64];
	char *argv[] = { "sh", "-c", script, NULL };
	int status = 0;
	pid_t pid;

	snprintf(script, sizeof(script), "read line <&%d; exit 5", s->fd[0]);
	check_eq(0, posix_spawn(&pid, "/bin/sh", NULL, NULL, argv, environ));
	check_eq(pid, waitpid(pid, &status, 0));
	check_eq(5, WEXITSTATUS(status));
}

TEST(block_in_posix_spawn)
{
	play_pipe(_metadata, block_spawn, wake_getline);
}

static void block_system(struct scene *s)
{
	char script[64];

	snprintf(script, sizeof(script), "read line <&%d; exit 6", s->fd[0]);
	check_eq(256 * 6, system(script));
}

TEST(block_in_system) { play_pipe(_metadata, block_system, wake_getline); }

/* ---- names ---- */

static atomic_int resolved, unknown;

static void *resolves(void *arg)
{
	for (int i = 0; i < 10; i++) {
		struct addrinfo hints = { .ai_family = AF_INET }, *list = NULL;
		int r = getaddrinfo(i % 2 ? "127.0.0.1" : "localhost", "80",
				    &hints, &list);

		if (!r) {
			check_eq(AF_INET, list->ai_family);
			atomic_fetch_add(&resolved, 1);
			freeaddrinfo(list);
		} else {
			check(!(i % 2));
			atomic_fetch_add(&unknown, 1);
		}
	}
	return NULL;
}

static void *resolve_all(void *arg)
{
	fiber_t *f[4];

	for (int i = 0; i < 4; i++)
		f[i] = spawn(resolves, NULL);
	for (int i = 0; i < 4; i++)
		join(f[i]);
	return NULL;
}

TEST(getaddrinfo_in_four_fibers)
{
	ASSERT_EQ(0, with_runtime(1, 0, resolve_all, NULL));
	EXPECT_EQ(40, resolved + unknown);
	EXPECT_EQ(0, failures);
	if (unknown)
		SKIP(return, "localhost has no address here");
}

TEST_HARNESS_MAIN
