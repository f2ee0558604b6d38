// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* os.c - system calls that the rooms share; errno is kept */
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "fb.h"
#include "sys.h"

#define HIGH_FD		512

static int futex(uint32_t *word, int op, uint32_t val, struct timespec *ts)
{
	int saved = errno;
	long r = syscall(SYS_futex, word, op | FUTEX_PRIVATE_FLAG, val, ts, NULL,
			 FUTEX_BITSET_MATCH_ANY);

	if (r < 0)
		r = -errno;
	errno = saved;
	return (int)r;
}

void fb_os_wake(uint32_t *word, int n)
{
	futex(word, FUTEX_WAKE, (uint32_t)n, NULL);
}

int fb_os_sleep(uint32_t *word, uint32_t val, uint64_t deadline)
{
	/* Pairs with the release of whoever changed the word. */
	while (FB_ACQUIRE(*word) == val) {
		uint64_t until = fb_san_until(deadline);
		struct timespec ts = {
			.tv_sec = (time_t)(until / 1000000000),
			.tv_nsec = (long)(until % 1000000000),
		};
		int r = futex(word, FUTEX_WAIT_BITSET, val, until ? &ts : NULL);

		fb_san_slept();
		if (r == -ETIMEDOUT && until == deadline)
			return r;
	}
	return 0;
}

int fb_os_membarrier(int cmd)
{
	int saved = errno;
	int r = (int)syscall(SYS_membarrier, cmd, 0, 0);

	errno = saved;
	return r;
}

/* What follows the name in a stat file of /proc; NULL: no answer. */
static const char *stat_of(int fd, char *text, size_t size)
{
	int err = errno;
	ssize_t n = fd < 0 ? -1 : pread(fd, text, size - 1, 0);
	char *p;

	errno = err;
	if (n <= 0)
		return NULL;
	text[n] = 0;
	p = strrchr(text, ')');
	return p && p[1] ? p + 2 : NULL;
}

char fb_os_thread_state(int tid)
{
	char path[48], text[128];
	int fd, err = errno;
	const char *p;

	snprintf(path, sizeof(path), "/proc/self/task/%d/stat", tid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	p = stat_of(fd, text, sizeof(text));
	if (fd >= 0)
		close(fd);
	errno = err;
	return p ? *p : 0;
}

int fb_os_high(int fd)
{
	int r;

	if (fd < 0)
		return fd;
	r = (int)fb_sys(SYS_fcntl, fd, F_DUPFD_CLOEXEC, HIGH_FD);
	if (r < 0)			/* RLIMIT_NOFILE */
		r = (int)fb_sys(SYS_fcntl, fd, F_DUPFD_CLOEXEC, HIGH_FD / 8);
	if (r < 0)
		return fd;
	fb_sys(SYS_close, fd);
	return r;
}

int fb_os_thread(pthread_t *t, void *(*fn)(void *), void *arg)
{
	sigset_t all, old;
	int r;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	r = pthread_create(t, NULL, fn, arg);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return -r;
}

void fb_os_quiet_begin(struct fb_os_quiet *q, int sig)
{
	q->sig = 1ull << (sig - 1);
	q->pending = 0;
	fb_sys(SYS_rt_sigprocmask, SIG_BLOCK, &q->sig, &q->old, 8);
	if (q->old & q->sig)
		fb_sys(SYS_rt_sigpending, &q->pending, 8);
}

void fb_os_quiet_end(const struct fb_os_quiet *q, bool came)
{
	struct timespec none = { 0 };

	if (came && !(q->pending & q->sig))
		fb_sys(SYS_rt_sigtimedwait, &q->sig, NULL, &none, 8);
	fb_sys(SYS_rt_sigprocmask, SIG_SETMASK, &q->old, NULL, 8);
}

/* Without flags it is a call that every seccomp filter knows. */
long fb_os_writev(int fd, const struct iovec *iov, int n, int flags)
{
	struct fb_os_quiet q;
	long r;

	fb_os_quiet_begin(&q, SIGPIPE);
	r = flags ? fb_sys(SYS_pwritev2, fd, iov, n, -1, -1, flags) :
	    fb_sys(SYS_writev, fd, iov, n);
	fb_os_quiet_end(&q, r == -EPIPE);
	return r;
}

long fb_os_write(int fd, const void *buf, size_t n)
{
	struct iovec v = { (void *)(uintptr_t)buf, n };

	return fb_os_writev(fd, &v, 1, 0);
}

int fb_os_write_all(int fd, const char *text, size_t n)
{
	long k;

	while (n) {
		k = fb_os_write(fd, text, n);
		if (k == -EINTR)
			continue;
		if (k <= 0)
			return k ? (int)k : -EIO;
		text += k;
		n -= (size_t)k;
	}
	return 0;
}

static long peek_file(void *to, uintptr_t from, size_t n)
{
	int fd = (int)fb_sys(SYS_open, "/proc/self/mem", O_RDONLY | O_CLOEXEC);
	long r;

	if (fd < 0)
		return fd;
	r = fb_sys(SYS_pread64, fd, to, n, from);
	fb_sys(SYS_close, fd);
	return r;
}

long fb_os_peek(void *to, uintptr_t from, size_t n)
{
	struct iovec local = { to, n }, remote = { (void *)from, n };
	long r = fb_sys(SYS_process_vm_readv, getpid(), &local, 1, &remote, 1, 0);

	return r == -ENOSYS || r == -EPERM ? peek_file(to, from, n) : r;
}

int fb_os_open_stat(void)
{
	int fd = (int)fb_sys(SYS_open, "/proc/self/stat", O_RDONLY | O_CLOEXEC);

	return fd < 0 ? -1 : fb_os_high(fd);
}

uint32_t fb_os_threads(int fd)
{
	char text[512];
	const char *p = stat_of(fd, text, sizeof(text));
	uint32_t n = 0;

	/* Is it still that file? */
	if (p && strtol(text, NULL, 10) != getpid())
		return 0;
	/* The 18th word from the state on. */
	for (int i = 0; p && i < 17; i++) {
		p = strchr(p, ' ');
		p = p ? p + 1 : NULL;
	}
	for (; p && *p >= '0' && *p <= '9'; p++)
		n = n * 10 + (uint32_t)(*p - '0');
	return n;
}

static bool is_uring_thread(const char *tid)
{
	char path[48], name[8];
	long n;
	int fd;

	snprintf(path, sizeof(path), "/proc/self/task/%.20s/comm", tid);
	fd = (int)fb_sys(SYS_open, path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	n = fb_sys(SYS_read, fd, name, sizeof(name));
	fb_sys(SYS_close, fd);
	return n == sizeof(name) && !memcmp(name, "iou-wrk-", sizeof(name));
}

/* No opendir, which calls malloc: see fb.h. */
uint32_t fb_os_uring_threads(void)
{
	_Alignas(8) char buf[2048];
	int fd = (int)fb_sys(SYS_open, "/proc/self/task",
			     O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	const struct dirent64 *d;
	uint32_t n = 0;
	long size;

	if (fd < 0)
		return 0;
	while ((size = fb_sys(SYS_getdents64, fd, buf, sizeof(buf))) > 0)
		for (long at = 0; at < size; at += d->d_reclen) {
			d = (const struct dirent64 *)(buf + at);
			n += is_uring_thread(d->d_name);
		}
	fb_sys(SYS_close, fd);
	return n;
}

/* ---- what is written when others' processes end ---- */

/* Nobody waits for a reader of a FIFO, then as little as now. */
static int open_report(const char *path, int flags)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOCTTY |
		      O_NONBLOCK | flags, 0666);
	struct stat st;

	if (fd < 0)
		return -errno;
	if (fstat(fd, &st) || S_ISFIFO(st.st_mode)) {
		close(fd);
		return -ESPIPE;
	}
	fcntl(fd, F_SETFL, 0);
	return fd;
}

int fb_os_report_open(const char *path)
{
	int err = errno, fd = open_report(path, O_TRUNC);

	errno = err;
	return fd;
}

#define REPORTED	UINT32_MAX

bool fb_os_report_begin(struct fb_report *r)
{
	uint32_t by = 0, self = (uint32_t)fb_sys(SYS_gettid, 0);

	/* Pairs with the release in fb_os_report_end. */
	if (__atomic_compare_exchange_n(&r->by, &by, self, false,
					__ATOMIC_ACQUIRE, __ATOMIC_ACQUIRE)) {
		fb_os_quiet_begin(&r->quiet, SIGXFSZ);
		return true;
	}
	/* Itself: it dies of what it does. Pairs as above. */
	for (; by != REPORTED && by != self; by = FB_ACQUIRE(r->by))
		fb_os_sleep(&r->by, by, 0);
	return false;
}

void fb_os_report_end(struct fb_report *r)
{
	fb_os_quiet_end(&r->quiet, true);
	/* Pairs with the acquire in fb_os_report_begin. */
	FB_RELEASE(r->by, REPORTED);
	fb_os_wake(&r->by, INT_MAX);
}

static int create(const char *s, char *path)
{
	char name[PATH_MAX];
	size_t n = 0;
	int fd;

	for (; *s && n < sizeof(name) - 12; s++)
		if (s[0] == '%' && s[1] == 'p') {
			n += (size_t)sprintf(name + n, "%d", (int)getpid());
			s++;
		} else {
			name[n++] = *s;
		}
	name[n] = 0;
	if (*s)
		return -ENAMETOOLONG;
	fd = open_report(name, 0);
	if (fd < 0)
		return fd;
	close(fd);
	return realpath(name, path) ? 0 : -errno;
}

int fb_os_create(const char *name, char *path)
{
	int err = errno, r = create(name, path);

	errno = err;
	return r;
}
