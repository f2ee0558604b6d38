// SPDX-License-Identifier: GPL-2.0-only
/*
 * Where the network says no: a full queue of connections, no buffers, resets. The
 * call that it is meant for hears it as the plain one would; nothing is lost, nobody
 * waits for ever, and no call is made again and again meanwhile.
 *
 * See io_errors.c (which call hears what), io_many.c (very many connections), io_crowd.c (cancels), io_stream.c
 * (no descriptors).
 */
#include <linux/net_tstamp.h>
#include <linux/netlink.h>
#include <linux/pkt_sched.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <sys/ioctl.h>

#include "tcp.h"

FIXTURE(limits) {};
FIXTURE_VARIANT(limits) {
	const char *io;
	unsigned int processors;
};
FIXTURE_SETUP(limits)
{
	setenv("FIBER_IO", variant->io, 1);
}
FIXTURE_TEARDOWN(limits) {}
FIXTURE_VARIANT_ADD(limits, epoll) { "epoll", 1 };
FIXTURE_VARIANT_ADD(limits, uring) { "uring", 2 };
FIXTURE_VARIANT_ADD(limits, plain) { "plain", 2 };

#define RUN(fn) \
	ASSERT_EQ(0, with_runtime(variant->processors, 0, fn, NULL)); \
	EXPECT_EQ(0, failures)

/* ---- more connections than the listener's queue holds ---- */

enum { BACKLOG = 8, HELD = BACKLOG + 1, CLIENTS = HELD + 7 };

static atomic_int served;

/* How many the kernel has refused for want of room, in this network so far. */
static long overflows(void)
{
	char names[4096], values[4096], *n, *v, *a, *b;
	FILE *f = fopen("/proc/net/netstat", "re");
	long found = -1;

	while (f && found < 0 && fgets(names, sizeof(names), f) &&
	       fgets(values, sizeof(values), f)) {
		n = strtok_r(names, " \n", &a);
		v = strtok_r(values, " \n", &b);
		for (; n && v; n = strtok_r(NULL, " \n", &a),
			       v = strtok_r(NULL, " \n", &b))
			if (!strcmp(n, "ListenOverflows"))
				found = atol(v);
	}
	if (f)
		fclose(f);
	check(found >= 0);
	return found;
}

static int echo_one(int fd, void *arg)
{
	char c = 0;

	(void)arg;
	check_eq(1, fiber_read(fd, &c, 1));
	check_eq(1, fiber_write(fd, &c, 1));
	check_eq(0, fiber_read(fd, &c, 1));
	atomic_fetch_add(&served, 1);
	return 0;
}

static void *server(void *arg)
{
	check_eq(0, fiber_serve((int)(long)arg, 2, echo_one, NULL));
	return NULL;
}

static void *client(void *arg)
{
	char c = (char)(long)arg, d = 99;
	int fd = tcp();

	check_eq(0, connect_there(fd, FIBER_NEVER));
	check_eq(1, fiber_write(fd, &c, 1));
	check_eq(1, fiber_read(fd, &d, 1));
	check_eq(c, d);
	check_eq(0, fiber_close(fd));
	return NULL;
}

static int is_cancelled(void *arg)
{
	check_eq(-ECANCELED, connect_there(*(int *)arg, FIBER_NEVER));
	return 0;
}

/* No room comes while nobody accepts: these two give up. */
static void two_give_up(void)
{
	int late = tcp(), other = tcp();
	fiber_scope_t scope;
	long before = overflows();

	check_eq(-ETIMEDOUT, connect_there(late, fiber_now() + MS));
	check_eq(0, fiber_close(late));
	check_eq(0, fiber_scope_open(&scope, NULL));
	check_eq(0, fiber_scope_spawn(&scope, is_cancelled, &other));
	while (overflows() < before + 2)
		check_eq(0, fiber_sleep(MS));
	fiber_scope_cancel(&scope, 0);
	check_eq(-ECANCELED, fiber_scope_close(&scope));
	check_eq(0, fiber_close(other));
}

/*
 * Who is refused asks again after a second: there is nothing to do until then, and all
 * of this takes less CPU time than looking all the while would: that of one CPU. (On a
 * busy host the time that a virtual CPU does not run counts as ours.)
 */
static void *overrun(void *arg)
{
	long fd = door(BACKLOG), before = overflows();
	fiber_t *c[CLIENTS], *s;
	uint64_t t, cpu;

	for (long i = 0; i < CLIENTS; i++)
		c[i] = spawn(client, (void *)i);
	while (overflows() < before + CLIENTS - HELD)
		check_eq(0, fiber_sleep(MS));
	two_give_up();
	t = now_ns();
	cpu = cpu_ns();
	s = spawn(server, (void *)fd);
	for (int i = 0; i < CLIENTS; i++)
		join(c[i]);
	cpu = cpu_ns() - cpu;
	t = now_ns() - t;
	figure("backlog: %lu of %lu ms of CPU time\n", (unsigned long)(cpu / MS),
	       (unsigned long)(t / MS));
	check(cpu < t / 5 * 4);
	check_eq(0, fiber_close((int)fd));
	join(s);
	check_eq(CLIENTS, served);
	return arg;
}

TEST_F(limits, a_full_backlog_loses_nobody)
{
	RUN(overrun);
}

/* ---- no buffers ---- */

/* lo's queue, as by "tc qdisc replace dev lo root pfifo limit N". 0, or an error. */
static int set_queue(unsigned int limit)
{
	struct {
		struct nlmsghdr h;
		struct tcmsg t;
		struct rtattr kind;
		char name[8];
		struct rtattr options;
		struct tc_fifo_qopt fifo;
	} m = {
		.h = { .nlmsg_len = sizeof(m), .nlmsg_type = RTM_NEWQDISC,
		       .nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE |
				      NLM_F_REPLACE },
		.t = { .tcm_ifindex = (int)if_nametoindex("lo"),
		       .tcm_parent = TC_H_ROOT, .tcm_handle = 1 << 16 },
		.kind = { RTA_LENGTH(sizeof(m.name)), TCA_KIND },
		.name = "pfifo",
		.options = { RTA_LENGTH(sizeof(m.fifo)), TCA_OPTIONS },
		.fifo = { limit },
	};
	struct { struct nlmsghdr h; struct nlmsgerr e; } answer = { 0 };
	int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);

	check_eq(sizeof(m), send(fd, &m, sizeof(m), 0));
	check(recv(fd, &answer, sizeof(answer), 0) > 0);
	close(fd);
	check_eq(NLMSG_ERROR, answer.h.nlmsg_type);
	return answer.e.error;
}

static int udp(void)
{
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	socklen_t len = sizeof(where);

	where = (struct sockaddr_in){ .sin_family = AF_INET };
	where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	check_eq(0, bind(fd, (void *)&where, len));
	check_eq(0, getsockname(fd, (void *)&where, &len));
	return fd;
}

static void packet_passes(int from, int to, char c)
{
	char d = 0;

	check_eq(1, fiber_send(from, &c, 1, 0));
	check_eq(1, fiber_recv(to, &d, 1, 0));
	check_eq(c, d);
}

/*
 * lo's queue has no room, then it has. IP_RECVERR: such an error is told. The last
 * calls are as many as made it: none of those refused comes late.
 */
static void *no_room(void *arg)
{
	int to = udp(), from = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), on = 1;
	struct iovec v = { "x", 1 };
	struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1 };
	char c;

	check_eq(0, setsockopt(from, IPPROTO_IP, IP_RECVERR, &on, sizeof(on)));
	check_eq(0, fiber_connect(from, (void *)&where, sizeof(where)));
	packet_passes(from, to, 'a');
	check_eq(0, set_queue(0));
	check_eq(-1, send(from, "x", 1, 0));
	check_eq(ENOBUFS, errno);
	check_eq(-ENOBUFS, fiber_send(from, "x", 1, 0));
	check_eq(-ENOBUFS, fiber_write(from, "x", 1));
	check_eq(-ENOBUFS, fiber_sendmsg(from, &m, 0));
	check_eq(-ENOBUFS, fiber_sendmsg_until(from, &m, 0, 0));
	check_eq(0, set_queue(10));
	packet_passes(from, to, 'b');
	check_eq(-EAGAIN, fiber_recv(to, &c, 1, MSG_DONTWAIT));
	check_eq(0, fiber_close(from));
	check_eq(0, fiber_close(to));
	return arg;
}

TEST_F(limits, a_full_device_is_told)
{
	if (!have_network())
		SKIP(return, "no network namespace: %s", strerror(errno));
	RUN(no_room);
}

/* More ancillary data than a socket may have: any socket, any user. */
static void *no_memory(void *arg)
{
	struct iovec v = { "x", 1 };
	size_t n = 64 << 20;
	char *control = mmap(NULL, n, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1, .msg_control = control,
			    .msg_controllen = n };
	int s[2];
	char c;

	check_eq(0, socketpair(AF_UNIX, SOCK_STREAM, 0, s));
	check_eq(-1, sendmsg(s[0], &m, 0));
	check_eq(ENOBUFS, errno);
	check_eq(-ENOBUFS, fiber_sendmsg(s[0], &m, 0));
	packet_passes(s[0], s[1], 'x');
	check_eq(-EAGAIN, fiber_recv(s[1], &c, 1, MSG_DONTWAIT));
	check_eq(0, fiber_close(s[0]));
	check_eq(0, fiber_close(s[1]));
	munmap(control, n);
	return arg;
}

TEST_F(limits, no_memory_is_told)
{
	RUN(no_memory);
}

/* ---- a receiver that is too slow ---- */

enum { GROUP = 1, FLOOD = 500 };

static int netlink(unsigned int groups)
{
	struct sockaddr_nl a = { .nl_family = AF_NETLINK, .nl_groups = groups };
	int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_USERSOCK);
	int size = 1;			/* the least that is allowed */

	check(fd >= 0);
	if (groups)
		check_eq(0, setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &size,
				       sizeof(size)));
	check_eq(0, bind(fd, (void *)&a, sizeof(a)));
	return fd;
}

struct received {
	int fd;
	atomic_int messages, overruns;
};

/* Until it is cancelled. */
static int receives(void *arg)
{
	struct received *r = arg;
	ssize_t n;
	int word;

	while ((n = fiber_recv(r->fd, &word, sizeof(word), 0)) != -ECANCELED) {
		check(n == sizeof(word) || n == -ENOBUFS);
		atomic_fetch_add(n < 0 ? &r->overruns : &r->messages, 1);
	}
	return 0;
}

/* To the group; and to the kernel, which does not listen there. */
static void send_word(int fd, int word)
{
	struct sockaddr_nl to = { .nl_family = AF_NETLINK, .nl_groups = GROUP };

	check_eq(-ECONNREFUSED, fiber_sendto(fd, &word, sizeof(word), 0,
					     (void *)&to, sizeof(to)));
}

/*
 * That messages were lost is told, by an error that ends no wait but this; what was
 * not lost comes, and so does what is sent later.
 */
static void *overwhelmed(void *arg)
{
	struct received r = { .fd = netlink(GROUP) };
	int from = netlink(0), seen;
	fiber_scope_t scope;

	check_eq(0, fiber_scope_open(&scope, NULL));
	check_eq(0, fiber_scope_spawn(&scope, receives, &r));
	fiber_sleep(MS);
	while (!atomic_load(&r.overruns)) {
		for (int i = 0; i < FLOOD; i++)
			send_word(from, i);
		fiber_sleep(MS);
	}
	for (int i = 0; i < 3; i++) {
		seen = atomic_load(&r.messages);
		while (atomic_load(&r.messages) == seen) {
			send_word(from, i);
			check_eq(0, fiber_sleep(MS));
		}
	}
	fiber_scope_cancel(&scope, 0);
	check_eq(-ECANCELED, fiber_scope_close(&scope));
	check(r.overruns > 0);
	check_eq(0, fiber_close(from));
	check_eq(0, fiber_close(r.fd));
	return arg;
}

TEST_F(limits, what_is_lost_is_told)
{
	if (!have_network())
		SKIP(return, "no network namespace: %s", strerror(errno));
	RUN(overwhelmed);
}

/* ---- resets ---- */

static void reset(int fd)
{
	struct linger l = { 1, 0 };

	check_eq(0, setsockopt(fd, SOL_SOCKET, SO_LINGER, &l, sizeof(l)));
	check_eq(0, fiber_close(fd));
}

/*
 * Some goes, or the reset is there first; then it is told once. `taken`: the kernel's
 * own call, when it waits inside, returns what went and takes the error with it.
 */
static void ends_reset(int fd, ssize_t r, bool taken)
{
	ssize_t again = fiber_write(fd, "x", 1);

	check((r > 0 && r < MUCH &&
	       (again == -ECONNRESET || (taken && again == -EPIPE))) ||
	      (r == -ECONNRESET && again == -EPIPE));
	check_eq(-EPIPE, fiber_write(fd, "x", 1));
}

static void *sends_file(void *arg)
{
	int file = much(), fd = *(int *)arg;

	ends_reset(fd, fiber_sendfile(fd, file, NULL, MUCH), true);
	check_eq(0, fiber_close(file));
	return NULL;
}

static void put_much(int fd, bool send)
{
	int file = much();
	char *p = mmap(NULL, MUCH, PROT_READ, MAP_SHARED, file, 0);

	ends_reset(fd, send ? fiber_send(fd, p, MUCH, 0) :
		       fiber_write(fd, p, MUCH), false);
	munmap(p, MUCH);
	check_eq(0, fiber_close(file));
}

static void *sends(void *arg)
{
	put_much(*(int *)arg, true);
	return NULL;
}

static void *writes(void *arg)
{
	put_much(*(int *)arg, false);
	return NULL;
}

static void *reads_reset(void *arg)
{
	char c;

	check_eq(-ECONNRESET, fiber_read(*(int *)arg, &c, 1));
	check_eq(0, fiber_read(*(int *)arg, &c, 1));
	return NULL;
}

/* Ten bytes of a hundred come. */
static void *reads_some(void *arg)
{
	int fd = *(int *)arg;
	char text[100];

	check_eq(10, fiber_recv(fd, text, sizeof(text), MSG_WAITALL));
	return reads_reset(arg);
}

enum { READS, READS_SOME, WRITES, SENDS, SENDS_FILE, LATE, ALL };

/* Who reads, who writes, and one that nobody has accepted yet. */
static void *all_reset(void *arg)
{
	static void *(* const fn[ALL])(void *) = {
		reads_reset, reads_some, writes, sends, sends_file, reads_reset,
	};
	int fd = door(0), c[ALL], s[ALL];
	fiber_t *f[ALL];

	for (int i = 0; i < ALL; i++) {
		c[i] = tcp();
		check_eq(0, connect_there(c[i], FIBER_NEVER));
	}
	check_eq(10, fiber_write(c[READS_SOME], "ten bytes.", 10));
	reset(c[LATE]);
	for (int i = 0; i < ALL; i++) {
		s[i] = fiber_accept(fd, NULL, NULL, SOCK_CLOEXEC);
		check(s[i] >= 0);
		f[i] = spawn(fn[i], &s[i]);
	}
	for (int i = WRITES; i <= SENDS_FILE; i++)
		wait_for_full(c[i]);
	for (int i = 0; i < LATE; i++)
		reset(c[i]);
	for (int i = 0; i < ALL; i++) {
		join(f[i]);
		check_eq(0, fiber_close(s[i]));
	}
	check_eq(0, fiber_close(fd));
	return arg;
}

TEST_F(limits, resets_are_told)
{
	RUN(all_reset);
}

/* ---- notices of the kernel, which poll reports as errors ---- */

/* When something was sent: waits in the socket until somebody asks for it. */
static void get_notices(int fd)
{
	int flags = SOF_TIMESTAMPING_TX_SOFTWARE | SOF_TIMESTAMPING_SOFTWARE |
		    SOF_TIMESTAMPING_OPT_TSONLY;
	struct pollfd p = { .fd = fd };

	check_eq(0, setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPING, &flags,
			       sizeof(flags)));
	check_eq(1, fiber_write(fd, "x", 1));
	while (!(p.revents & POLLERR))
		check(poll(&p, 1, 0) >= 0);
}

#define LOTS	(MUCH / 4)

static void *receives_all(void *arg)
{
	char *buf = malloc(LOTS);

	check_eq(1, fiber_read(*(int *)arg, buf, 1));
	check_eq(LOTS, fiber_recv(*(int *)arg, buf, LOTS, MSG_WAITALL));
	free(buf);
	return NULL;
}

static void *noticed(void *arg)
{
	int c, s, file = much();
	char *p = mmap(NULL, LOTS, PROT_READ, MAP_SHARED, file, 0);
	fiber_t *f;

	connected(&c, &s);
	get_notices(c);
	get_notices(s);
	f = spawn(receives_all, &s);
	check_eq(LOTS, fiber_write(c, p, LOTS));
	join(f);
	f = spawn(receives_all, &c);
	check_eq(LOTS, fiber_send(s, p, LOTS, 0));
	join(f);
	munmap(p, LOTS);
	check_eq(0, fiber_close(file));
	check_eq(0, fiber_close(c));
	check_eq(0, fiber_close(s));
	return arg;
}

TEST_F(limits, notices_end_no_call)
{
	RUN(noticed);
}

/* Nor do they keep one from waiting. */
static void *noticed_alone(void *arg)
{
	int c, s, file = much();
	uint64_t t, cpu;
	char text[10];
	off_t at = 0;
	ssize_t r;

	connected(&c, &s);
	get_notices(s);
	t = now_ns();
	cpu = cpu_ns();
	check_eq(-ETIMEDOUT, fiber_recv_until(s, text, 10, 0, fiber_now() + 300 * MS));
	cpu = cpu_ns() - cpu;
	t = now_ns() - t;
	check(in_vm() || cpu < t / 2);
	/* Nobody receives: first as much as there is room for, then nothing. */
	do {
		r = fiber_sendfile_until(s, file, &at, MUCH, fiber_now() + 100 * MS);
	} while (r > 0);
	check_eq(-ETIMEDOUT, r);
	check(at > 0);
	check_eq(0, fiber_close(file));
	check_eq(0, fiber_close(c));
	check_eq(0, fiber_close(s));
	return arg;
}

TEST_F(limits, notices_are_waited_with)
{
	RUN(noticed_alone);
}

TEST_HARNESS_MAIN
