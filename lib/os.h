/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* os.h - what the library asks of the system, with errno left alone */
#ifndef FB_OS_H
#define FB_OS_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

/* Until *word differs from val, or the deadline (CLOCK_MONOTONIC ns; 0: none): -ETIMEDOUT. */
int fb_os_sleep(uint32_t *word, uint32_t val, uint64_t deadline);
void fb_os_wake(uint32_t *word, int n);
int fb_os_membarrier(int cmd);
/* The letter of /proc/self/task/TID/stat; 0: no answer. In a signal handler too. */
char fb_os_thread_state(int tid);
/*
 * Memory of ours that may be gone meanwhile: how many bytes, or -errno. By
 * /proc/self/mem where process_vm_readv(2) is missing or forbidden. In a signal
 * handler too.
 */
long fb_os_peek(void *to, uintptr_t from, size_t n);
/* fd, moved out of the way of the numbers a program counts on, if there is room. */
int fb_os_high(int fd);
/* A thread of ours, with all signals blocked: fn(arg). 0 or -errno. */
int fb_os_thread(pthread_t *t, void *(*fn)(void *), void *arg);
/*
 * Around what may raise sig for its own thread: it is kept from it, and taken back if
 * it came. One that was there before stays. In a signal handler too.
 */
struct fb_os_quiet {
	uint64_t sig, old, pending;	/* sets of signals */
};
void fb_os_quiet_begin(struct fb_os_quiet *q, int sig);
void fb_os_quiet_end(const struct fb_os_quiet *q, bool came);
/*
 * pwritev2(2) at the file's own position (flags: RWF_*), and write(2); without
 * SIGPIPE; -errno. In a signal handler too.
 */
long fb_os_writev(int fd, const struct iovec *iov, int n, int flags);
long fb_os_write(int fd, const void *buf, size_t n);
/* All of it; 0 or -errno. */
int fb_os_write_all(int fd, const char *text, size_t n);
/*
 * Open the file for writing and close it; %p in its name is the pid. path: its full
 * name, 4096 bytes. 0 or -errno.
 */
int fb_os_create(const char *name, char *path);
/* Later, for writing from its beginning: a descriptor or -errno. */
int fb_os_report_open(const char *path);

/*
 * What is written once, at the end, by whoever comes first: fiber_fini, exit, a signal.
 * Who comes later waits until it is written, but for the writer itself. Meanwhile no
 * RLIMIT_FSIZE kills the process. In a signal handler too.
 */
struct fb_report {
	uint32_t by;			/* atomic, futex: its writer's tid; 0: not yet */
	struct fb_os_quiet quiet;	/* the writer's */
};
bool fb_os_report_begin(struct fb_report *r);
void fb_os_report_end(struct fb_report *r);
/* For fb_os_threads, out of the way of low numbers; -1: there is no /proc. */
int fb_os_open_stat(void);
/* Threads of this process; 0: not known. */
uint32_t fb_os_threads(int fd);
/* Those among them that the kernel has made for io_uring. */
uint32_t fb_os_uring_threads(void);

#endif
