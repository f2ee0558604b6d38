/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * server.h - a server to be measured: on a CPU of its own, and what it uses
 *
 * The first CPU that this process may use is the server's, the last one ours.
 */
#ifndef LOAD_SERVER_H
#define LOAD_SERVER_H

#include <sys/types.h>

/* Ends the program with that line on stderr. */
__attribute__((noreturn, format(printf, 1, 2)))
void die(const char *format, ...);

/* We, or the child that is about to become the load. Two CPUs, or die. */
void pin_load(void);

/*
 * It is killed when we die; what it says goes to stderr. listener, unless -1, becomes its descriptor listen_fd,
 * and is closed here.
 */
pid_t server_start(char **argv, int listener, int listen_fd);

/* ns of CPU that it and its children have used. */
long long server_cpu(pid_t pid);

/*
 * Kills it, if it runs: 0, or what it had ended with before (77: it has no such row).
 */
int server_stop(pid_t pid);

/* So many descriptors, or die with a line that says what to do. */
void need_files(unsigned long n);

long long now_ns(void);
/* Milliseconds that environment variable BENCH_LOAD_MS says, or ms. */
long long load_ms(long long ms);

/* A stream socket at 127.0.0.1, a free port; its port number to *port. */
int listen_anywhere(int *port);
/* -1: nobody listens. */
int connect_to(int port);

#endif
