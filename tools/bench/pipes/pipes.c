// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * pipes.c - the other end of the row `blocked`: pipes PROGRAM ARG...
 *
 * Runs the program with the read ends of 100 pipes; when it says that all its
 * readers have entered, writes the time to one pipe after the other, 3 ms
 * apart, from this process. Prints blocked-entered.
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../bench.h"

#define WRITE_FD 300

static void make_pipe(int read_fd, int write_fd)
{
	int fd[2];

	if (pipe(fd) || dup2(fd[0], read_fd) < 0 || dup2(fd[1], write_fd) < 0) {
		perror("pipes: pipe");
		exit(1);
	}
	close(fd[0]);
	close(fd[1]);
}

static void write_times(void)
{
	struct timespec gap = { .tv_nsec = 3000000 }, now;
	long long t;
	int i;

	for (i = 0; i < BENCH_READERS; i++) {
		nanosleep(&gap, NULL);
		clock_gettime(CLOCK_MONOTONIC, &now);
		t = now.tv_sec * 1000000000LL + now.tv_nsec;
		if (write(WRITE_FD + i, &t, sizeof(t)) != sizeof(t))
			exit(1);
	}
}

static void run(char **argv)
{
	int i;

	for (i = 0; i < BENCH_READERS; i++)
		close(WRITE_FD + i);
	close(WRITE_FD - 1);
	execvp(argv[0], argv);
	perror(argv[0]);
	_exit(127);
}

int main(int argc, char **argv)
{
	long long entered;
	int i, status;
	pid_t pid;

	if (argc < 2)
		return 2;
	make_pipe(WRITE_FD - 1, BENCH_ENTERED_FD);
	for (i = 0; i < BENCH_READERS; i++)
		make_pipe(BENCH_READ_FD + i, WRITE_FD + i);
	pid = fork();
	if (!pid)
		run(argv + 1);
	close(BENCH_ENTERED_FD);
	if (read(WRITE_FD - 1, &entered, sizeof(entered)) == sizeof(entered)) {
		printf("blocked-entered %.3f\n", entered / 1e6);
		fflush(stdout);
		write_times();
	}
	if (pid < 0 || waitpid(pid, &status, 0) < 0 || !WIFEXITED(status))
		return 1;
	return WEXITSTATUS(status);
}
