// SPDX-License-Identifier: GPL-2.0-only
/*
 * getaddrinfo() in many fibers of one processor, against a name server that
 * answers none of them before all have asked, and another fiber has had its
 * turns meanwhile: with a call that held up the others all would time out.
 *
 * The server is a plain thread on port 53 of a network namespace of the test's
 * own; its resolv.conf and nsswitch.conf cover those of the machine in a mount
 * namespace. Where the test may not make those, it skips.
 */
#include <arpa/inet.h>
#include <net/if.h>
#include <netdb.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "libraries/crowd.h"

enum { ASKERS = 16, ROUNDS = 2, TURNS = 50 };

static char why[128];		/* there is no world of our own; "": there is */

/* ---- a world of our own ---- */

static bool give_up(const char *what)
{
	snprintf(why, sizeof(why), "%s: %s", what, strerror(errno));
	return false;
}

static bool write_file(const char *path, int flags, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC | flags, 0644);
	ssize_t n = (ssize_t)strlen(text);
	bool done = fd >= 0 && write(fd, text, (size_t)n) == n;

	if (fd >= 0)
		close(fd);
	return done || give_up(path);
}

/* As root without a user namespace: a container may forbid that. */
static bool unshare_all(void)
{
	const int flags = CLONE_NEWNS | CLONE_NEWNET;
	unsigned int uid = geteuid(), gid = getegid();
	char map[64];

	if (!unshare(flags))
		return true;
	if (unshare(flags | CLONE_NEWUSER))
		return give_up("namespaces");
	snprintf(map, sizeof(map), "0 %u 1", uid);
	if (!write_file("/proc/self/uid_map", 0, map) ||
	    !write_file("/proc/self/setgroups", 0, "deny"))
		return false;
	snprintf(map, sizeof(map), "0 %u 1", gid);
	return write_file("/proc/self/gid_map", 0, map);
}

static bool loopback_up(void)
{
	struct ifreq req = { .ifr_name = "lo", .ifr_flags = IFF_UP };
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	bool up = fd >= 0 && !ioctl(fd, SIOCSIFFLAGS, &req);

	close(fd);
	return up || give_up("loopback");
}

/* Of the VM all files are ours; this machine's are only covered. */
static bool cover(const char *path, const char *text)
{
	char mine[] = "/tmp/fiber-names-XXXXXX";
	int fd = mkstemp(mine);
	bool done;

	if (fd < 0)
		return give_up(mine);
	close(fd);
	if (in_vm() && access(path, F_OK))
		write_file(path, O_CREAT, "");
	done = write_file(mine, 0, text) && !chmod(mine, 0644) &&
	       (!mount(mine, path, NULL, MS_BIND, NULL) || give_up(path));
	unlink(mine);
	return done;
}

/* A daemon that answers for the C library is not asked if its socket is none. */
static bool make_world(void)
{
	static const char daemon[] = "/run/nscd/socket";

	if (!unshare_all() || !loopback_up())
		return false;
	if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL))
		return give_up("mounts");
	return cover("/etc/resolv.conf", "nameserver 127.0.0.1\n"
		     "options timeout:30 attempts:2\n") &&
	       cover("/etc/nsswitch.conf", "hosts: dns\n") &&
	       (access(daemon, F_OK) || cover(daemon, ""));
}

/* ---- the name server ---- */

struct query {
	struct sockaddr_in from;
	unsigned char text[512];
	ssize_t n;
};

static struct query query[ASKERS];
static int server_fd;
static atomic_int arrived;	/* queries of this round */
static atomic_int turns;	/* of the other fiber since all have arrived */

/* Names are "hN.test": N; -1: no name of ours */
static int number_of(const struct query *q)
{
	const unsigned char *name = q->text + 12;

	if (q->n < 24 || name[0] < 2 || name[0] > 5 || name[1] != 'h')
		return -1;
	return atoi((const char *)name + 2);
}

/* The question once more, and one address: 10.0.0.N */
static void answer(struct query *q)
{
	int n = number_of(q);
	unsigned char record[] = { 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4,
				   10, 0, 0, (unsigned char)n };
	size_t end = 12;

	while (q->text[end])
		end += q->text[end] + 1U;
	end += 5;			/* the last length, type and class */
	q->text[2] = 0x81;		/* an answer, recursion was wanted */
	q->text[3] = 0x80;		/* and is to be had; no error */
	memset(q->text + 6, 0, 6);
	q->text[7] = 1;			/* one answer, nothing else */
	memcpy(q->text + end, record, sizeof(record));
	end += sizeof(record);
	check_eq(end, sendto(server_fd, q->text, end, 0,
			     (struct sockaddr *)&q->from, sizeof(q->from)));
}

/* One that was asked again, since time has passed, is the same query. */
static bool is_new(const struct query *q, int have)
{
	for (int i = 0; i < have; i++)
		if (number_of(&query[i]) == number_of(q))
			return false;
	return true;
}

static void take_queries(void)
{
	for (int n = 0; n < ASKERS;) {
		struct query *q = &query[n];
		socklen_t len = sizeof(q->from);

		q->n = recvfrom(server_fd, q->text,
				sizeof(q->text) - sizeof(q->from), 0,
				(struct sockaddr *)&q->from, &len);
		if (number_of(q) < 0 || !is_new(q, n))
			continue;
		atomic_store(&arrived, ++n);
	}
}

static void *serve(void *arg)
{
	for (int round = 0; round < ROUNDS; round++) {
		atomic_store(&turns, 0);
		take_queries();
		check(until(atomic_load(&turns) >= TURNS));
		atomic_store(&arrived, 0);
		for (int i = 0; i < ASKERS; i++)
			answer(&query[i]);
	}
	return NULL;
}

static bool serve_names(pthread_t *thread)
{
	struct sockaddr_in at = { .sin_family = AF_INET,
				  .sin_port = htons(53) };

	at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	server_fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	return !bind(server_fd, (struct sockaddr *)&at, sizeof(at)) &&
	       !pthread_create(thread, NULL, serve, NULL);
}

/* ---- the fibers ---- */

static atomic_int asking;

static void ask(int i)
{
	struct addrinfo hints = { .ai_family = AF_INET,
				  .ai_socktype = SOCK_STREAM };
	struct addrinfo *list = NULL;
	char name[16];
	int r;

	snprintf(name, sizeof(name), "h%d.test", i);
	r = getaddrinfo(name, "80", &hints, &list);
	if (r) {
		failed(__FILE__, __LINE__, "%s: %s", name, gai_strerror(r));
		return;
	}
	check_eq(0x0a000000 + i, ntohl(((struct sockaddr_in *)
				list->ai_addr)->sin_addr.s_addr));
	freeaddrinfo(list);
}

static void *asks(void *arg)
{
	int i = (int)(intptr_t)arg, tid;

	for (int round = 0; round < ROUNDS; round++) {
		tid = gettid();
		ask(i);
		check_eq(tid, gettid());
	}
	atomic_fetch_sub(&asking, 1);
	return NULL;
}

/* It counts while all of them are blocked. */
static void *goes_on(void *arg)
{
	while (atomic_load(&asking)) {
		if (atomic_load(&arrived) == ASKERS)
			atomic_fetch_add(&turns, 1);
		fiber_yield();
	}
	return NULL;
}

static void *ask_all(void *arg)
{
	fiber_t *f[ASKERS], *other;

	atomic_store(&asking, ASKERS);
	other = spawn(goes_on, NULL);
	for (int i = 0; i < ASKERS; i++)
		f[i] = spawn(asks, (void *)(intptr_t)i);
	for (int i = 0; i < ASKERS; i++)
		join(f[i]);
	join(other);
	check(stats().carriers >= ASKERS);
	figure("getaddrinfo: %d fibers of one processor at once, %d times (%s)\n",
	       ASKERS, ROUNDS, fiber_backend());
	return NULL;
}

TEST(a_resolver_that_answers_when_all_have_asked)
{
	pthread_t thread;

	if (!make_world())
		SKIP(return, "no resolver of our own: %s", why);
	ASSERT_TRUE(serve_names(&thread));
	ASSERT_EQ(0, with_runtime(1, 0, ask_all, NULL));
	ASSERT_EQ(0, pthread_join(thread, NULL));
	EXPECT_EQ(0, failures);
}

TEST_HARNESS_MAIN
