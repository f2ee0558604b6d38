// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* server.c - start, measure, stop */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "server.h"

void die(const char *format, ...)
{
	va_list ap;

	va_start(ap, format);
	vfprintf(stderr, format, ap);
	va_end(ap);
	fputc('\n', stderr);
	exit(1);
}

long long now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

long long load_ms(long long ms)
{
	const char *s = getenv("BENCH_LOAD_MS");

	return s && atoll(s) > 0 ? atoll(s) : ms;
}

/* ---- processors ---- */

static cpu_set_t all;

/* Once, before anybody is pinned. */
static void find_cpus(void)
{
	if (!CPU_COUNT(&all) && sched_getaffinity(0, sizeof(all), &all))
		die("sched_getaffinity: %s", strerror(errno));
	if (CPU_COUNT(&all) < 2)
		die("server and client need a CPU each");
}

static void pin(int cpu)
{
	cpu_set_t one;

	CPU_ZERO(&one);
	CPU_SET(cpu, &one);
	if (sched_setaffinity(0, sizeof(one), &one))
		die("sched_setaffinity: %s", strerror(errno));
}

void pin_load(void)
{
	int cpu = CPU_SETSIZE - 1;

	find_cpus();
	while (!CPU_ISSET(cpu, &all))
		cpu--;
	pin(cpu);
}

static void pin_server(void)
{
	int cpu = 0;

	while (!CPU_ISSET(cpu, &all))
		cpu++;
	pin(cpu);
}

/* ---- the server ---- */

static void become_server(char **argv, int listener, int listen_fd)
{
	pin_server();
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if ((listener >= 0 && dup2(listener, listen_fd) < 0) || dup2(2, 1) < 0)
		die("dup2: %s", strerror(errno));
	if (listener >= 0 && listener != listen_fd)
		close(listener);
	execvp(argv[0], argv);
	die("%s: %s", argv[0], strerror(errno));
}

pid_t server_start(char **argv, int listener, int listen_fd)
{
	pid_t pid;

	find_cpus();
	pid = fork();
	if (pid < 0)
		die("fork: %s", strerror(errno));
	if (!pid)
		become_server(argv, listener, listen_fd);
	if (listener >= 0)
		close(listener);
	return pid;
}

static long long cpu_of(pid_t pid)
{
	struct timespec t;
	clockid_t id;

	if (clock_getcpuclockid(pid, &id) || clock_gettime(id, &t))
		die("the server has gone");
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

long long server_cpu(pid_t pid)
{
	long long ns = cpu_of(pid);
	char path[64];
	FILE *file;
	int child;

	snprintf(path, sizeof(path), "/proc/%d/task/%d/children", pid, pid);
	file = fopen(path, "re");
	while (file && fscanf(file, "%d", &child) == 1)
		ns += cpu_of(child);
	if (file)
		fclose(file);
	return ns;
}

/* Masters tell their workers when they end by SIGTERM. */
int server_stop(pid_t pid)
{
	struct timespec rest = { .tv_nsec = 10000000 };
	int status;

	if (waitpid(pid, &status, WNOHANG) == pid)
		return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
	kill(pid, SIGTERM);
	for (int i = 0; i < 200; i++) {
		if (waitpid(pid, &status, WNOHANG) == pid)
			return 0;
		nanosleep(&rest, NULL);
	}
	kill(pid, SIGKILL);
	waitpid(pid, &status, 0);
	return 0;
}

/* ---- sockets ---- */

void need_files(unsigned long n)
{
	struct rlimit lim;

	if (getrlimit(RLIMIT_NOFILE, &lim))
		die("getrlimit: %s", strerror(errno));
	if (lim.rlim_cur < n && lim.rlim_max >= n) {
		lim.rlim_cur = n;
		setrlimit(RLIMIT_NOFILE, &lim);
	}
	if (lim.rlim_cur < n)
		die("needs %lu descriptors, may have %lu: ulimit -n %lu", n,
		    (unsigned long)lim.rlim_cur, n);
}

static struct sockaddr_in at_port(int port)
{
	struct sockaddr_in a = { .sin_family = AF_INET,
				 .sin_port = htons((unsigned short)port) };

	a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	return a;
}

int listen_anywhere(int *port)
{
	struct sockaddr_in a = at_port(0);
	socklen_t len = sizeof(a);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	if (fd < 0 || bind(fd, (struct sockaddr *)&a, len) ||
	    listen(fd, 4096) || getsockname(fd, (struct sockaddr *)&a, &len))
		die("cannot listen: %s", strerror(errno));
	*port = ntohs(a.sin_port);
	return fd;
}

int connect_to(int port)
{
	struct sockaddr_in a = at_port(port);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;

	if (fd < 0)
		die("socket: %s", strerror(errno));
	if (connect(fd, (struct sockaddr *)&a, sizeof(a))) {
		close(fd);
		return -1;
	}
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	return fd;
}
