// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * http.c - the other end of the row http: http DIR PROGRAM
 *
 * Makes DIR/www/page, 4 KiB, and starts PROGRAM PORT DIR, which serves DIR/www there,
 * on a CPU of its own. When it serves the page, and rightly, wrk asks for it over 64
 * connections. Prints the server's CPU time for a request and the time it took, us.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "server.h"

#define BYTES		4096
#define CONNECTIONS	"64"

static char page[BYTES];
static pid_t server;

static void __attribute__((noreturn)) lost(const char *what)
{
	int status = server_stop(server);

	if (status == 77)
		exit(77);
	die("http: %s%s", what, status ? ", the server has ended" : "");
}

static void make_page(const char *dir)
{
	char path[4096];
	int fd;

	for (int i = 0; i < BYTES; i++)
		page[i] = (char)('a' + (i * 7 + i / 64) % 26);
	snprintf(path, sizeof(path), "%s/www", dir);
	if ((mkdir(dir, 0755) && errno != EEXIST) ||
	    (mkdir(path, 0755) && errno != EEXIST))
		die("%s: %s", path, strerror(errno));
	strcat(path, "/page");
	fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
	if (fd < 0 || write(fd, page, BYTES) != BYTES || close(fd))
		die("%s: %s", path, strerror(errno));
}

static int free_port(void)
{
	int port;

	close(listen_anywhere(&port));
	return port;
}

/* Is the page there as it should be? -1: nobody listens yet. */
static int serves(int port)
{
	static const char request[] =
		"GET /page HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
	static char text[BYTES + 4096];
	size_t len = 0;
	ssize_t n;
	int fd = connect_to(port);

	if (fd < 0)
		return -1;
	if (write(fd, request, sizeof(request) - 1) < 0)
		lost("no request could be sent");
	while (len < sizeof(text) &&
	       (n = read(fd, text + len, sizeof(text) - len)) > 0)
		len += (size_t)n;
	close(fd);
	return len > BYTES && !memcmp(text, "HTTP/1.1 200", 12) &&
	       !memcmp(text + len - BYTES, page, BYTES);
}

static int has_ended(void)
{
	siginfo_t info = { 0 };

	waitid(P_PID, (id_t)server, &info, WEXITED | WNOHANG | WNOWAIT);
	return info.si_pid != 0;
}

static void until_it_serves(int port)
{
	int r, i;

	for (i = 0; (r = serves(port)) < 0; i++) {
		if (i == 1000 || has_ended())
			lost("nobody listens");
		usleep(10000);
	}
	if (!r)
		lost("the page is not what it should be");
}

/* Starts wrk for so long; its standard output. */
static FILE *load(int port, long long ms, pid_t *pid)
{
	char url[64], time[32];
	int p[2];

	snprintf(url, sizeof(url), "http://127.0.0.1:%d/page", port);
	snprintf(time, sizeof(time), "%llds", (ms + 999) / 1000);
	if (pipe(p) || (*pid = fork()) < 0)
		die("fork: %s", strerror(errno));
	if (!*pid) {
		pin_load();
		dup2(p[1], 1);
		close(p[0]);
		close(p[1]);
		execlp("wrk", "wrk", "-t1", "-c" CONNECTIONS, "-d", time,
		       "--timeout", "10s", url, NULL);
		die("wrk: %s", strerror(errno));
	}
	close(p[1]);
	return fdopen(p[0], "r");
}

/* Requests; how many a second to *rate. */
static long run_load(int port, long long ms, double *rate)
{
	char line[256], error[256] = "";
	long requests = 0;
	pid_t pid;
	FILE *out = load(port, ms, &pid);
	int status;

	*rate = 0;
	while (fgets(line, sizeof(line), out)) {
		sscanf(line, " %ld requests in", &requests);
		sscanf(line, "Requests/sec: %lf", rate);
		if (strstr(line, "Socket errors") || strstr(line, "Non-2xx"))
			strcpy(error, line + strspn(line, " "));
	}
	fclose(out);
	waitpid(pid, &status, 0);
	error[strcspn(error, "\n")] = 0;
	if (status || !requests || !*rate || error[0])
		lost(error[0] ? error : "wrk failed");
	return requests;
}

int main(int argc, char **argv)
{
	long long ms = load_ms(3000), cpu;
	char number[16];
	int port = free_port();
	long requests;
	double rate;

	if (argc != 3)
		die("usage: http DIR PROGRAM");
	make_page(argv[1]);
	snprintf(number, sizeof(number), "%d", port);
	server = server_start((char *[]){ argv[2], number, argv[1], NULL }, -1,
			      -1);
	until_it_serves(port);
	run_load(port, ms / 3, &rate);
	cpu = server_cpu(server);
	requests = run_load(port, ms, &rate);
	cpu = server_cpu(server) - cpu;
	printf("http %.4f\nhttp-wall %.4f\n", (double)cpu / requests / 1e3,
	       1e6 / rate);
	if (getenv("BENCH_VERBOSE"))
		fprintf(stderr, "# %ld requests, the server is busy %.0f%%\n",
			requests, cpu / 10.0 / requests * rate / 1e6);
	server_stop(server);
	return 0;
}
