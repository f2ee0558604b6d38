// SPDX-License-Identifier: GPL-2.0-only
/*
 * libcurl's easy handles, one a fiber, against samples/httpd on loopback; HTTPD
 * says where that program is.
 */
#include <curl/curl.h>
#include <sys/prctl.h>

#include "libraries/crowd.h"

static int port;

/* ---- the server ---- */

static void be_server(const char *program, int out)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	dup2(out, STDOUT_FILENO);
	execl(program, "httpd", "-p", "0", "-r", "/", NULL);
	_exit(127);
}

/* Its first line says "... at http://127.0.0.1:PORT/ ..."; 0: it did not. */
static int port_of(int in)
{
	FILE *file = fdopen(in, "r");
	char line[512] = "";
	char *at;

	if (!file || !fgets(line, sizeof(line), file))
		return 0;
	at = strstr(line, "127.0.0.1:");
	return at ? atoi(at + strlen("127.0.0.1:")) : 0;
}

static pid_t start_server(const char *program)
{
	int out[2];
	pid_t pid;

	if (pipe2(out, O_CLOEXEC))
		return -1;
	pid = fork();
	if (!pid)
		be_server(program, out[1]);
	close(out[1]);
	port = port_of(out[0]);
	return pid;
}

/* ---- the clients ---- */

struct answer {
	char text[64];
	size_t n;
};

static size_t take(char *data, size_t size, size_t n, void *arg)
{
	struct answer *a = arg;
	size_t room = sizeof(a->text) - 1 - a->n;

	size *= n;
	memcpy(a->text + a->n, data, size < room ? size : room);
	a->n += size < room ? size : room;
	return size;
}

/* Fetch what takes the server so many ms, and so is different for each. */
static void fetch(CURL *h, unsigned long ms)
{
	struct answer a = { "" };
	char url[64], want[64];
	long status = 0;
	CURLcode r;

	snprintf(url, sizeof(url), "http://127.0.0.1:%d/sleep?ms=%lu", port, ms);
	snprintf(want, sizeof(want), "slept %lu ms\n", ms);
	curl_easy_setopt(h, CURLOPT_URL, url);
	curl_easy_setopt(h, CURLOPT_WRITEDATA, &a);
	r = curl_easy_perform(h);
	curl_easy_getinfo(h, CURLINFO_RESPONSE_CODE, &status);
	if (r || status != 200 || strcmp(a.text, want))
		failed(__FILE__, __LINE__, "%s: %s, %ld, %s", url,
		       curl_easy_strerror(r), status, a.text);
}

/* The second time over the connection that it has. */
static void fetches(int i)
{
	CURL *h = curl_easy_init();
	long connects = -1;

	curl_easy_setopt(h, CURLOPT_NOSIGNAL, 1L);	/* as it asks of threads */
	curl_easy_setopt(h, CURLOPT_PROXY, "");
	curl_easy_setopt(h, CURLOPT_WRITEFUNCTION, take);
	fetch(h, 0);
	crowd_gather();
	crowd_enter(i);
	fetch(h, crowd.nap / MS + (unsigned long)i);
	crowd_leave(i);
	curl_easy_getinfo(h, CURLINFO_NUM_CONNECTS, &connects);
	check_eq(0, connects);
	curl_easy_cleanup(h);
}

TEST(forty_easy_handles)
{
	const char *program = getenv("HTTPD");
	int status = -1;
	pid_t server;

	if (!program)
		SKIP(return, "HTTPD does not say where samples/httpd is");
	ASSERT_EQ(0, curl_global_init(CURL_GLOBAL_DEFAULT));
	server = start_server(program);
	ASSERT_LT(0, server);
	ASSERT_LT(0, port);
	crowd = (struct crowd){ .work = fetches, .n = many(40), .processors = 2,
				.nap = nap(250 * MS) };
	crowd_run("curl_easy_perform");
	ASSERT_EQ(0, kill(server, SIGTERM));
	ASSERT_EQ(server, waitpid(server, &status, 0));
	EXPECT_EQ(0, status);
	curl_global_cleanup();
	EXPECT_EQ(0, failures);
}

TEST_HARNESS_MAIN
