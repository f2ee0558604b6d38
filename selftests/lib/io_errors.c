// SPDX-License-Identifier: GPL-2.0-only
/*
 * What a call that has moved something leaves for the next one to tell; where the
 * kernel says no in the middle of it; what ends a call meanwhile. Plain calls say the
 * same. See io_limits.c for full queues and resets.
 */
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <linux/tcp.h>
#include <netinet/ip.h>
#include <netinet/ip_icmp.h>
#include <sys/prctl.h>

#include "tcp.h"

FIXTURE(errors) {};
FIXTURE_VARIANT(errors) {
	const char *io;
	unsigned int processors;
};
FIXTURE_SETUP(errors)
{
	setenv("FIBER_IO", variant->io, 1);
}
FIXTURE_TEARDOWN(errors) {}
FIXTURE_VARIANT_ADD(errors, epoll) { "epoll", 1 };
FIXTURE_VARIANT_ADD(errors, uring) { "uring", 2 };
FIXTURE_VARIANT_ADD(errors, plain) { "plain", 2 };

#define RUN(fn) \
	ASSERT_EQ(0, with_runtime(variant->processors, 0, fn, NULL)); \
	EXPECT_EQ(0, failures)

/* ---- an error that ends no connection ---- */

/* The number of the first byte that who has this port sends: seen in the network. */
static uint32_t first_of(int raw, in_port_t port)
{
	struct { struct iphdr ip; struct tcphdr tcp; char data[64]; } p;

	do
		check(recv(raw, &p, sizeof(p), 0) >= (ssize_t)(sizeof(p.ip) +
							       sizeof(p.tcp)));
	while (p.tcp.source != port);
	check_eq(1, p.tcp.syn);
	return ntohl(p.tcp.seq);
}

/* How many the other end has said that it has: the first is no byte of the program's. */
static uint32_t acknowledged(int fd)
{
	struct tcp_info info = { 0 };
	socklen_t len = sizeof(info);

	check_eq(0, getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len));
	return (uint32_t)info.tcpi_bytes_acked;
}

static uint16_t checksum(const void *what, size_t n)
{
	const uint16_t *w = what;
	uint32_t sum = 0;

	for (size_t i = 0; i < n / 2; i++)
		sum += w[i];
	sum = (sum >> 16) + (sum & 0xffff);
	return (uint16_t)~(sum + (sum >> 16));
}

/* A router says of what fd sent: the host cannot be reached. */
static void say_unreachable(int fd, uint32_t sequence)
{
	struct sockaddr_in from, to;
	struct { struct icmphdr icmp; struct iphdr ip; uint16_t port[2]; uint32_t seq; } p;
	int raw = socket(AF_INET, SOCK_RAW | SOCK_CLOEXEC, IPPROTO_ICMP);
	socklen_t len = sizeof(to);

	check_eq(0, getpeername(fd, (void *)&to, &len));
	check_eq(0, getsockname(fd, (void *)&from, &len));
	memset(&p, 0, sizeof(p));
	p.icmp.type = ICMP_DEST_UNREACH;
	p.icmp.code = ICMP_HOST_UNREACH;
	p.ip = (struct iphdr){ .version = 4, .ihl = 5, .ttl = 64,
			       .tot_len = htons(40), .protocol = IPPROTO_TCP,
			       .saddr = from.sin_addr.s_addr,
			       .daddr = to.sin_addr.s_addr };
	p.port[0] = from.sin_port;
	p.port[1] = to.sin_port;
	p.seq = htonl(sequence);
	p.icmp.checksum = checksum(&p, sizeof(p));
	check_eq(sizeof(p), sendto(raw, &p, sizeof(p), 0, (void *)&from, len));
	close(raw);
}

static int unreachable(void *arg)
{
	int fd = *(int *)arg;

	check_eq(-EHOSTUNREACH, fiber_write(fd, "x", 1));
	return 0;
}

static void *writes_some(void *arg)
{
	int file = much(), fd = *(int *)arg;
	char *p = mmap(NULL, MUCH, PROT_READ, MAP_SHARED, file, 0);
	ssize_t r = fiber_write(fd, p, MUCH);

	check(r > 0 && r < MUCH);
	unreachable(arg);
	munmap(p, MUCH);
	check_eq(0, fiber_close(file));
	return NULL;
}

static void *sends_some(void *arg)
{
	int file = much(), fd = *(int *)arg;
	char *p = mmap(NULL, MUCH, PROT_READ, MAP_SHARED, file, 0);
	ssize_t r = fiber_send(fd, p, MUCH, 0);

	check(r > 0 && r < MUCH);
	unreachable(arg);
	munmap(p, MUCH);
	check_eq(0, fiber_close(file));
	return NULL;
}

static void *sends_some_of_a_file(void *arg)
{
	int file = much();
	ssize_t r = fiber_sendfile(*(int *)arg, file, NULL, MUCH);

	check(r > 0 && r < MUCH);
	unreachable(arg);
	check_eq(0, fiber_close(file));
	return NULL;
}

static void *receives_some(void *arg)
{
	char text[100];

	check_eq(10, fiber_recv(*(int *)arg, text, sizeof(text), MSG_WAITALL));
	check_eq(-EHOSTUNREACH, fiber_recv(*(int *)arg, text, 1, 0));
	return NULL;
}

static in_port_t port_of(int fd)
{
	struct sockaddr_in a;
	socklen_t len = sizeof(a);

	check_eq(0, getsockname(fd, (void *)&a, &len));
	return a.sin_port;
}

/* The call returns what it moved, the next one the error: as plain ones do. */
static void error_comes_to(void *(*fn)(void *), bool writes)
{
	int raw = socket(AF_INET, SOCK_RAW | SOCK_CLOEXEC, IPPROTO_TCP);
	int c, s, on = 1;
	uint32_t first;
	fiber_t *f;

	connected(&c, &s);
	first = first_of(raw, port_of(c));
	close(raw);
	check_eq(0, setsockopt(c, IPPROTO_IP, IP_RECVERR, &on, sizeof(on)));
	f = spawn(fn, &c);
	if (writes)
		wait_for_full(s);
	else
		check_eq(10, fiber_write(s, "ten bytes.", 10));
	check_eq(0, fiber_sleep(50 * MS));
	say_unreachable(c, first + acknowledged(c));
	join(f);
	check_eq(0, fiber_close(c));
	check_eq(0, fiber_close(s));
}

static void *unreachable_for_a_while(void *arg)
{
	error_comes_to(writes_some, true);
	error_comes_to(sends_some, true);
	error_comes_to(sends_some_of_a_file, true);
	error_comes_to(receives_some, false);
	return arg;
}

TEST_F(errors, an_error_is_kept_for_the_next_call)
{
	if (!have_network())
		SKIP(return, "no network namespace: %s", strerror(errno));
	RUN(unreachable_for_a_while);
}

/* ---- the urgent byte ---- */

static bool is_at_mark(int fd)
{
	int at = 0;

	check_eq(0, ioctl(fd, SIOCATMARK, &at));
	return at;
}

static void *takes_to_the_mark(void *arg)
{
	int fd = *(int *)arg;
	char text[10];

	check_eq(5, fiber_recv(fd, text, sizeof(text), MSG_WAITALL));
	check(is_at_mark(fd));
	check_eq(1, fiber_recv(fd, text, 1, MSG_OOB));
	check_eq('!', text[0]);
	check_eq(6, fiber_recv(fd, text, 6, MSG_WAITALL));
	check(!memcmp(text, "behind", 6));
	return NULL;
}

/* MSG_WAITALL ends there, whatever comes when: plain calls do so too. */
static void *urgent(void *arg)
{
	int c, s, on = 1;
	fiber_t *f;

	for (int step = 0; step < 4; step++) {
		connected(&c, &s);
		check_eq(0, setsockopt(c, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)));
		if (step != 3)
			f = spawn(takes_to_the_mark, &s);
		check_eq(5, fiber_send(c, "ahead", 5, 0));
		if (step == 1)
			check_eq(0, fiber_sleep(20 * MS));
		check_eq(1, send(c, "!", 1, MSG_OOB));
		if (step == 2)
			check_eq(0, fiber_sleep(20 * MS));
		check_eq(6, fiber_send(c, "behind", 6, 0));
		if (step == 3)
			f = spawn(takes_to_the_mark, &s);
		join(f);
		check_eq(0, fiber_close(c));
		check_eq(0, fiber_close(s));
	}
	return arg;
}

TEST_F(errors, all_that_is_waited_for_ends_at_the_urgent_byte)
{
	RUN(urgent);
}

/* ---- a number whose close takes its time ---- */

static void *closes(void *arg)
{
	check_eq(0, fiber_close(*(int *)arg));
	return NULL;
}

static int reads_while_closed(void *arg)
{
	char d;

	check_eq(-ECANCELED, fiber_read(*(int *)arg, &d, 1));
	return 0;
}

/* The system's close waits, 10 s at most, for the other end to take what was sent. */
static void *lingers(void *arg)
{
	struct linger l = { 1, 10 };
	uint64_t t, soon = 50 * MS;
	int c, s, pair[2];
	fiber_scope_t scope;
	fiber_t *f;
	char d;

	connected(&c, &s);
	check_eq(0, pipe(pair));
	check_eq(0, setsockopt(c, SOL_SOCKET, SO_LINGER, &l, sizeof(l)));
	while (send(c, where.sin_zero, sizeof(where.sin_zero), MSG_DONTWAIT) > 0)
		;
	f = spawn(closes, &c);
	check_eq(0, fiber_sleep(20 * MS));
	t = fiber_now();
	check_eq(-ETIMEDOUT, fiber_read_until(c, &d, 1, fiber_now() + soon));
	check_eq(-ETIMEDOUT, fiber_read_until(c, &d, 1, 0));
	check_eq(-ETIMEDOUT, fiber_send_until(c, &d, 1, 0, fiber_now() + soon));
	check_eq(-ETIMEDOUT, fiber_pread_until(c, &d, 1, 0, fiber_now() + soon));
	check_eq(-ETIMEDOUT, fiber_fsync_until(c, fiber_now() + soon));
	check_eq(-ETIMEDOUT, fiber_splice_until(pair[0], NULL, c, NULL, 1, 0,
						fiber_now() + soon));
	check_eq(0, fiber_scope_open(&scope, NULL));
	check_eq(0, fiber_scope_spawn(&scope, reads_while_closed, &c));
	check_eq(0, fiber_sleep(20 * MS));
	fiber_scope_cancel(&scope, 0);
	check_eq(-ECANCELED, fiber_scope_close(&scope));
	check(in_vm() || fiber_now() - t < 5 * SEC);
	check_eq(0, fiber_close(s));
	join(f);
	close(pair[0]);
	close(pair[1]);
	return arg;
}

TEST_F(errors, a_slow_close_ends_no_later_than_the_deadline)
{
	RUN(lingers);
}

#define LOTS	(MUCH / 4)

/* ---- what the kernel answers, as we like ---- */

/* From now on this thread, and those that it makes, ask us at these two calls. */
static int stop_at(unsigned int nr, unsigned int other)
{
	struct sock_filter f[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, nr, 1, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, other, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog p = { sizeof(f) / sizeof(*f), f };

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
		return -1;
	return (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER,
			    SECCOMP_FILTER_FLAG_NEW_LISTENER, &p);
}

static atomic_int notices = -1;
/* The error that the call ends with; 0: it is made. */
static int (*decide)(int nr);

/* Is not stopped itself: it began before. */
static void *answers(void *arg)
{
	struct seccomp_notif_resp resp;
	struct seccomp_notif n;
	int error;

	while (notices < 0)
		sched_yield();
	for (;;) {
		memset(&n, 0, sizeof(n));
		if (ioctl(notices, SECCOMP_IOCTL_NOTIF_RECV, &n))
			continue;
		error = decide(n.data.nr);
		resp = (struct seccomp_notif_resp){ .id = n.id, .error = -error,
			.flags = error ? 0 : SECCOMP_USER_NOTIF_FLAG_CONTINUE };
		ioctl(notices, SECCOMP_IOCTL_NOTIF_SEND, &resp);
	}
	return arg;
}

static bool ask_us(unsigned int nr, unsigned int other, int (*fn)(int nr))
{
	pthread_t t;
	int fd;

	decide = fn;
	if (pthread_create(&t, NULL, answers, NULL))
		return false;
	fd = stop_at(nr, other);
	notices = fd;
	return fd >= 0;
}

#define ASK_US(nr, other, fn) \
	if (!ask_us(nr, other, fn)) \
		SKIP(exit(KSFT_SKIP), "no seccomp that tells: %s", strerror(errno))

/* ---- the last bytes and the end come between two looks ---- */

static atomic_int peer = -1;

static int comes_between(int nr)
{
	int fd = atomic_exchange(&peer, -1);

	(void)nr;
	if (fd >= 0) {
		check_eq(3, send(fd, "two", 3, MSG_MORE));
		check_eq(0, close(fd));
	}
	return 0;
}

static void *takes_all(void *arg)
{
	int c, s;
	char text[6];

	connected(&c, &s);
	check_eq(3, fiber_write(c, "one", 3));
	peer = c;
	check_eq(6, fiber_recv(s, text, 6, MSG_WAITALL));
	check(!memcmp(text, "onetwo", 6));
	check_eq(0, fiber_read(s, text, 1));
	check_eq(0, fiber_close(s));
	return arg;
}

TEST_F(errors, the_last_bytes_come_with_the_end)
{
	ASK_US(SYS_poll, SYS_poll, comes_between);
	RUN(takes_all);
	EXPECT_EQ(-1, peer);
}

/* ---- a signal ends a look ---- */

static atomic_int plain_waits, interrupts;

static int interrupts_looks(int nr)
{
	if (nr == SYS_ppoll)
		plain_waits++;
	else if (interrupts && interrupts--)
		return EINTR;
	return 0;
}

static void *polls(void *arg)
{
	struct pollfd p = { .fd = *(int *)arg, .events = POLLIN };

	check_eq(1, fiber_poll(&p, 1));
	check_eq(POLLIN, p.revents);
	return NULL;
}

static void *interrupted(void *arg)
{
	fiber_t *f;
	int c, s;

	connected(&c, &s);
	f = spawn(polls, &s);
	check_eq(0, fiber_sleep(20 * MS));
	interrupts = 3;
	check_eq(1, fiber_write(c, "x", 1));
	join(f);
	check_eq(0, interrupts);
	check_eq(0, plain_waits);
	check_eq(0, fiber_close(c));
	check_eq(0, fiber_close(s));
	return arg;
}

TEST_F(errors, a_look_that_a_signal_ends_is_made_again)
{
	if (!strcmp(variant->io, "plain"))
		SKIP(return, "there is but the plain wait");
	ASK_US(SYS_poll, SYS_ppoll, interrupts_looks);
	RUN(interrupted);
}

/* ---- too little memory to send ---- */

/* For so long, from the first one on. */
static _Atomic uint64_t refuses_for, refused_since;
static atomic_int refused, refuses;

static int refuses_for_a_while(int nr)
{
	(void)nr;
	if (!refused_since)
		refused_since = now_ns();
	if (now_ns() - refused_since >= refuses_for)
		return 0;
	refused++;
	return EAGAIN;
}

/* The socket could send, but for memory: poll says that it is ready. */
static void *waits_for_memory(void *arg)
{
	int c, s;

	connected(&c, &s);
	for (int i = 0; i < 2; i++) {
		refused = 0;
		refuses_for = 300 * MS;
		refused_since = 0;
		check_eq(1, i ? fiber_send(c, "x", 1, 0) : fiber_write(c, "x", 1));
		check(refused > 0 && refused < 1000);
		refuses_for = 100 * SEC;
		refused_since = 0;
		check_eq(-ETIMEDOUT, fiber_write_until(c, "x", 1,
						       fiber_now() + 10 * MS));
		refuses_for = 0;
	}
	check_eq(0, fiber_close(c));
	check_eq(0, fiber_close(s));
	return arg;
}

TEST_F(errors, memory_is_waited_for_without_haste)
{
	ASK_US(SYS_sendto, SYS_sendmsg, refuses_for_a_while);
	RUN(waits_for_memory);
}

static int refuses_some(int nr)
{
	(void)nr;
	return refuses && !--refuses ? ENOMEM : 0;
}

static void *reads_to_the_end(void *arg)
{
	static char buf[65536];
	long *sum = arg, r;

	while ((r = fiber_read((int)*sum, buf, sizeof(buf))) > 0)
		sum[1] += r;
	check_eq(0, r);
	return NULL;
}

static void *no_memory_to_send(void *arg)
{
	int c, s, file = much();
	char *p = mmap(NULL, LOTS, PROT_READ, MAP_SHARED, file, 0);
	long sum[2] = { 0 }, r, sent = 0;
	fiber_t *f;

	connected(&c, &s);
	sum[0] = s;
	refuses = 1;
	check_eq(-ENOMEM, fiber_write(c, "x", 1));
	refuses = 1;
	check_eq(-ENOMEM, fiber_send(c, "x", 1, 0));
	for (int i = 0; i < 2; i++) {
		refuses = 2;		/* the second part of it */
		if (!i)
			f = spawn(reads_to_the_end, sum);
		r = i ? fiber_send(c, p, LOTS, 0) : fiber_write(c, p, LOTS);
		check(r > 0 && r <= LOTS);
		sent += r;
	}
	refuses = 0;
	sent += fiber_write(c, "x", 1);
	check_eq(0, fiber_close(c));
	join(f);
	check_eq(sent, sum[1]);
	munmap(p, LOTS);
	check_eq(0, fiber_close(file));
	check_eq(0, fiber_close(s));
	return arg;
}

TEST_F(errors, what_went_before_memory_ran_out_is_told)
{
	ASK_US(SYS_sendto, SYS_sendmsg, refuses_some);
	RUN(no_memory_to_send);
}

TEST_HARNESS_MAIN
