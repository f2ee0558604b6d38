// SPDX-License-Identifier: GPL-2.0-only
/*
 * Waits to receive that rely on what was known of a descriptor (lib/known.c): they ask
 * for nothing again, nothing is lost by that, and what was changed behind the library's
 * back is heeded by and by, once for each wait.
 */
#include "tcp.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>

FIXTURE(known) {};
FIXTURE_VARIANT(known) {
	unsigned int processors;
	uint64_t quantum;
};
FIXTURE_SETUP(known)
{
	(void)variant;
	setenv("FIBER_IO", "epoll", 1);
}
FIXTURE_TEARDOWN(known) {}
FIXTURE_VARIANT_ADD(known, one) { 1, 0 };
FIXTURE_VARIANT_ADD(known, two) { 2, 0 };
FIXTURE_VARIANT_ADD(known, preempted) { 2, 100 * US };

#define RUN(fn) \
	ASSERT_EQ(0, with_runtime(variant->processors, variant->quantum, fn, NULL)); \
	EXPECT_EQ(0, failures)

/* By the past: it waits, but for no time. */
#define AT_ONCE		1
/* Who verifies lets a wait be for so long. */
#define VERIFIED	(2 * MS)

/* ---- what is used ---- */

static void pair_of(int s[2])
{
	check_eq(0, socketpair(AF_UNIX, SOCK_STREAM, 0, s));
}

static void pipe_of(int s[2])
{
	check_eq(0, pipe(s));
}

static void tcp_of(int s[2])
{
	connected(&s[0], &s[1]);
}

/* Receives from the second of tcp_of, and the first of the others. */
static void make_known(int fd)
{
	char c;

	for (int i = 0; i < 4; i++)
		check_eq(-ETIMEDOUT, fiber_read_until(fd, &c, 1, AT_ONCE));
}

/* ---- how many calls are made that a known wait does without ---- */

static atomic_long asked;
static int listener;

static void *counts(void *arg)
{
	struct seccomp_notif n;
	struct seccomp_notif_resp r;

	for (;;) {
		memset(&n, 0, sizeof(n));
		if (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &n))
			continue;
		atomic_fetch_add(&asked, 1);
		r = (struct seccomp_notif_resp){
			.id = n.id, .flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE,
		};
		ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &r);
	}
	return arg;
}

#define NOTIFY(nr, rest) \
	BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (nr), (rest), 0)

/* Before the runtime has threads. */
static bool count_calls(void)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		NOTIFY(SYS_epoll_ctl, 3),
		NOTIFY(SYS_fcntl, 2),
		NOTIFY(SYS_getsockopt, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
	};
	struct sock_fprog prog = { sizeof(code) / sizeof(code[0]), code };
	pthread_t t;

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
		return false;
	listener = (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER,
				SECCOMP_FILTER_FLAG_NEW_LISTENER, &prog);
	return listener >= 0 && !pthread_create(&t, NULL, counts, NULL);
}

#define COUNTED \
	if (!count_calls()) \
		SKIP(return, "seccomp cannot count: %s", strerror(errno))

enum { ROUNDS = 1000 };

static void *answers(void *arg)
{
	int fd = *(int *)arg;
	char c;

	while (fiber_read(fd, &c, 1) == 1)
		check_eq(1, fiber_write(fd, &c, 1));
	return NULL;
}

/* Each round is two receives. A wait that is slow, for others have the CPU, is asked for. */
static void play(int s[2])
{
	fiber_t *f = spawn(answers, &s[1]);
	long slow, begin = 0;
	uint64_t t = 0;
	char c = 0;

	for (int i = 0; i < ROUNDS + 20; i++) {
		if (i == 20) {		/* known by now */
			begin = atomic_load(&asked);
			t = now_ns();
		}
		check_eq(1, fiber_write(s[0], &c, 1));
		check_eq(1, fiber_read(s[0], &c, 1));
	}
	slow = (long)((now_ns() - t) / VERIFIED) * 2 * 3;
	begin = atomic_load(&asked) - begin;
	figure("known: %d rounds: %ld calls, slow: %ld\n", ROUNDS, begin, slow);
	check(begin <= slow + ROUNDS / 10);
	check_eq(0, fiber_shutdown(s[0], SHUT_WR));
	join(f);
	close_both(s);
}

static void *plays(void *arg)
{
	int s[2];

	tcp_of(s);
	play(s);
	pair_of(s);
	play(s);
	return arg;
}

TEST_F(known, who_is_busy_is_not_asked)
{
	COUNTED;
	RUN(plays);
}

/* ---- who waits long is asked once ---- */

enum { IDLE = 40 };

static atomic_int woken;

static void *waits(void *arg)
{
	char c;

	check_eq(1, fiber_read((int)(long)arg, &c, 1));
	atomic_fetch_add(&woken, 1);
	return NULL;
}

static void *idles(void *arg)
{
	int s[IDLE][2];
	fiber_t *f[IDLE];
	long before;

	for (int i = 0; i < IDLE; i++) {
		(i % 2 ? pair_of : tcp_of)(s[i]);
		make_known(s[i][1]);
		f[i] = spawn(waits, (void *)(long)s[i][1]);
	}
	/* Until nothing is asked for any more. */
	do {
		before = atomic_load(&asked);
		check_eq(0, fiber_sleep(100 * MS));
	} while (atomic_load(&asked) != before);
	check_eq(0, fiber_sleep(300 * MS));
	check_eq(before, atomic_load(&asked));
	check_eq(0, atomic_load(&woken));
	for (int i = 0; i < IDLE; i++)
		check_eq(1, write(s[i][0], "x", 1));
	for (int i = 0; i < IDLE; i++) {
		join(f[i]);
		close_both(s[i]);
	}
	return arg;
}

TEST_F(known, who_is_idle_is_asked_once)
{
	COUNTED;
	RUN(idles);
}

/* ---- several that wait for the same ---- */

enum { READERS = 7 };

static void *one_edge_for_all(void *arg)
{
	void (*const of[])(int s[2]) = { tcp_of, pair_of };
	fiber_t *f[READERS];
	int s[2];

	for (int i = 0; i < 30; i++) {
		of[i % 2](s);
		make_known(s[1]);
		for (int n = 0; n < READERS; n++)
			f[n] = spawn(waits, (void *)(long)s[1]);
		/* Verified, or not yet. */
		check_eq(0, fiber_sleep(i % 3 ? 100 * US : 10 * MS));
		check_eq(READERS, write(s[0], "1234567", READERS));
		for (int n = 0; n < READERS; n++)
			join(f[n]);
		close_both(s);
	}
	return arg;
}

TEST_F(known, one_edge_wakes_all_it_is_for)
{
	RUN(one_edge_for_all);
}

/* ---- nothing is told twice, and nothing waits for who verifies ---- */

/*
 * What came is received before somebody has verified: mostly, for a busy CPU makes it late
 * at times, and now and then a receive tries first. One kind of such apart from others.
 */
static int quick[3], timed[3];

static void took(int kind, uint64_t ns)
{
	timed[kind]++;
	quick[kind] += ns < VERIFIED;
}

static void check_quick(int kinds)
{
	for (int i = 0; i < kinds; i++) {
		figure("known: %d of %d were quick\n", quick[i], timed[i]);
		check(timed[i] && (allowance() > 1 || quick[i] * 3 > timed[i] * 2));
	}
}

static _Atomic uint64_t told_at;

static void *sends_the_last(void *arg)
{
	int fd = (int)(long)arg;

	check_eq(0, fiber_sleep(500 * US));
	told_at = now_ns();
	check_eq(1, write(fd, "x", 1));
	check_eq(0, fiber_shutdown(fd, SHUT_WR));
	return NULL;
}

/* A byte and the end, which are told at once. */
static void *ends(void *arg)
{
	char b[8];
	int s[2];

	for (int i = 0; i < 30; i++) {
		tcp_of(s);
		make_known(s[1]);
		fiber_t *f = spawn(sends_the_last, (void *)(long)s[0]);
		check_eq(1, fiber_recv(s[1], b, sizeof(b), 0));
		check_eq(0, fiber_recv(s[1], b, sizeof(b), 0));
		took(0, now_ns() - told_at);
		join(f);
		close_both(s);
	}
	check_quick(1);
	return arg;
}

TEST_F(known, the_end_is_told_at_once)
{
	RUN(ends);
}

static void *sends_three(void *arg)
{
	check_eq(0, fiber_sleep(500 * US));
	told_at = now_ns();
	check_eq(3, write((int)(long)arg, "xyz", 3));
	return NULL;
}

/* One by one; and looked at, but left. */
static void *leaves_some(void *arg)
{
	char b[8];
	int s[2];

	for (int i = 0; i < 60; i++) {
		tcp_of(s);
		make_known(s[1]);
		fiber_t *f = spawn(sends_three, (void *)(long)s[0]);
		if (i % 3 == 2) {	/* urgent: a receive ends before it */
			join(f);
			check_eq(3, fiber_recv(s[1], b, sizeof(b), 0));
			make_known(s[1]);
			told_at = now_ns();
			check_eq(2, send(s[0], "ab", 2, MSG_OOB));
			check_eq(1, write(s[0], "c", 1));
			check_eq(1, fiber_recv(s[1], b, sizeof(b), 0));
			check_eq(1, fiber_recv(s[1], b, sizeof(b), 0));
			check_eq('c', b[0]);
		} else {
			for (int n = 0; n < 3; n++)
				check_eq(i % 3 ? 3 : 1,
					 fiber_recv(s[1], b, i % 3 ? 8 : 1,
						    i % 3 ? MSG_PEEK : 0));
			join(f);
		}
		took(i % 3, now_ns() - told_at);
		close_both(s);
	}
	check_quick(3);
	return arg;
}

TEST_F(known, what_is_left_is_had_at_once)
{
	RUN(leaves_some);
}

static void *waits_elsewhere(void *arg)
{
	char c;

	check_eq(0, fiber_read(*(int *)arg, &c, 1));
	return NULL;
}

/* Of n messages that have come one by one, while nobody waited, all are there. */
static void told_in_vain(int s[2], int n, int kind)
{
	uint64_t t;
	char b[64];

	for (int m = 0; m < n; m++) {
		check_eq(1, write(s[0], "x", 1));
		check_eq(0, fiber_sleep(200 * US));
	}
	t = now_ns();
	for (; n > 0; n -= (int)fiber_recv(s[1], b, 64, 0))
		;
	took(kind, now_ns() - t);
	check_eq(0, n);
}

/* Messages that nobody waits for make epoll tell less: not for ever. */
static void *unheeded(void *arg)
{
	void (*const of[])(int s[2]) = { tcp_of, pair_of };
	int s[2], q[2];
	fiber_t *other, *f;
	char b[64];

	/* Somebody polls. */
	pipe_of(q);
	other = spawn(waits_elsewhere, &q[0]);
	for (int i = 0; i < 30; i++) {
		of[i % 2](s);
		make_known(s[1]);
		/* Which is more than epoll tells of in vain, or less. */
		told_in_vain(s, i % 4 < 2 ? 2 : 12, i % 4 == 0);
		f = spawn(sends_three, (void *)(long)s[0]);
		check_eq(3, fiber_recv(s[1], b, 64, 0));
		took(2, now_ns() - told_at);
		join(f);
		close_both(s);
	}
	check_quick(3);
	check_eq(0, fiber_close(q[1]));
	join(other);
	check_eq(0, fiber_close(q[0]));
	return arg;
}

TEST_F(known, what_nobody_heeds_does_no_harm)
{
	RUN(unheeded);
}

/* Bytes and waits in any order, with many at one socket: none is left. */
enum { STORM = 4000, STORMERS = 3 };

static void *storms(void *arg)
{
	int fd = (int)(long)arg;
	char b[3];
	long r;

	while ((r = fiber_recv(fd, b, sizeof(b), 0)) > 0)
		atomic_fetch_add(&woken, (int)r);
	check_eq(0, r);
	return NULL;
}

static void *storm(void *arg)
{
	void (*const of[])(int s[2]) = { tcp_of, pair_of };
	uint32_t seed = 9;
	int s[2];

	for (int i = 0; i < 2; i++) {
		fiber_t *f[STORMERS];
		int sent = 0, n;

		atomic_store(&woken, 0);
		of[i](s);
		make_known(s[1]);
		for (n = 0; n < STORMERS; n++)
			f[n] = spawn(storms, (void *)(long)s[1]);
		while (sent < STORM) {
			n = 1 + (int)(next_random(&seed) % 4);
			check_eq(n, fiber_send(s[0], "abcd", (size_t)n, 0));
			sent += n;
			if (next_random(&seed) % 8 == 0)
				come_to(&woken, sent);
			else if (next_random(&seed) % 2)
				fiber_yield();
		}
		come_to(&woken, sent);
		check_eq(0, fiber_shutdown(s[0], SHUT_WR));
		for (n = 0; n < STORMERS; n++)
			join(f[n]);
		close_both(s);
	}
	return arg;
}

TEST_F(known, a_storm_is_received)
{
	RUN(storm);
}

/* ---- behind our back ---- */

/* Twice, for now and then one tries first. */
static void *changed(void *arg)
{
	void (*const of[])(int s[2]) = { tcp_of, pair_of };
	/* In whole ticks of the kernel, whatever they are. */
	struct timeval tv = { .tv_usec = 40000 }, none = { 0 };
	uint64_t t;
	int s[2];
	char c;

	for (int i = 0; i < 10; i++) {
		of[i % 2](s);
		make_known(s[1]);
		check_eq(0, fcntl(s[1], F_SETFL, O_NONBLOCK));
		check_eq(-EAGAIN, fiber_read(s[1], &c, 1));
		check_eq(-EAGAIN, fiber_recv(s[1], &c, 1, 0));
		check_eq(0, fcntl(s[1], F_SETFL, 0));
		make_known(s[1]);
		check_eq(0, setsockopt(s[1], SOL_SOCKET, SO_RCVTIMEO, &tv,
				       sizeof(tv)));
		t = fiber_now();
		check_eq(-EAGAIN, fiber_read(s[1], &c, 1));
		t = fiber_now() - t;
		check(t >= 40 * MS);
		took(0, t - 40 * MS);
		check_eq(0, setsockopt(s[1], SOL_SOCKET, SO_RCVTIMEO, &none,
				       sizeof(none)));
		make_known(s[1]);
		t = fiber_now() + 20 * MS;
		check_eq(-ETIMEDOUT, fiber_read_until(s[1], &c, 1, t));
		check(fiber_now() >= t);
		close_both(s);
	}
	/* It counts from the beginning, not from when it was seen. */
	check_quick(1);
	return arg;
}

TEST_F(known, a_changed_socket_is_heeded)
{
	RUN(changed);
}

/* The number has another file, of the same kind: what comes there is received. */
static void *another_file(void *arg)
{
	void (*const of[])(int s[2]) = { tcp_of, pair_of, pipe_of };
	int s[2], q[2], in, out;
	fiber_t *f;

	for (int i = 0; i < 12; i++) {
		in = i % 3 == 2 ? 0 : 1;	/* a pipe is read from 0 */
		out = !in;
		of[i % 3](s);
		of[i % 3](q);
		make_known(s[in]);
		check_eq(s[in], dup2(q[in], s[in]));
		atomic_store(&woken, 0);
		f = spawn(waits, (void *)(long)s[in]);
		check_eq(0, fiber_sleep(i % 2 ? 100 * US : 10 * MS));
		check_eq(0, woken);
		check_eq(1, write(q[out], "x", 1));
		join(f);
		close_both(s);
		close_both(q);
	}
	return arg;
}

TEST_F(known, another_file_is_found)
{
	RUN(another_file);
}

/* One file under two numbers: each has waits of its own. */
static void *two_numbers(void *arg)
{
	fiber_t *f[2];
	int s[2], d;

	for (int i = 0; i < 6; i++) {
		tcp_of(s);
		d = dup(s[1]);
		make_known(s[1]);
		make_known(d);
		for (int n = 0; n < 2; n++)
			f[n] = spawn(waits, (void *)(long)(n ? d : s[1]));
		check_eq(0, fiber_sleep(i % 2 ? 100 * US : 10 * MS));
		check_eq(2, write(s[0], "xy", 2));
		join(f[0]);
		join(f[1]);
		/* The one is closed, the file is not. */
		make_known(d);
		check_eq(0, fiber_close(s[1]));
		f[0] = spawn(waits, (void *)(long)d);
		check_eq(0, fiber_sleep(i % 2 ? 100 * US : 10 * MS));
		check_eq(1, write(s[0], "z", 1));
		join(f[0]);
		check_eq(0, fiber_close(d));
		check_eq(0, fiber_close(s[0]));
	}
	return arg;
}

TEST_F(known, one_file_has_two_numbers)
{
	RUN(two_numbers);
}

/* fiber_connect sets O_NONBLOCK for a moment: that ends no wait. */
static atomic_bool over;

static void *connects(void *arg)
{
	struct sockaddr_in a;
	socklen_t n = sizeof(a);
	int fd = *(int *)arg;

	check_eq(0, getpeername(fd, (void *)&a, &n));
	while (!atomic_load(&over))
		check_eq(0, fiber_connect(fd, (void *)&a, n));
	return NULL;
}

static void udp_of(int s[2])
{
	socklen_t n = sizeof(where);

	for (int i = 0; i < 2; i++) {
		where = (struct sockaddr_in){ .sin_family = AF_INET };
		where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
		s[i] = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
		check_eq(0, bind(s[i], (void *)&where, n));
	}
	check_eq(0, getsockname(s[1], (void *)&where, &n));
	check_eq(0, connect(s[0], (void *)&where, n));
	check_eq(0, getsockname(s[0], (void *)&where, &n));
	check_eq(0, connect(s[1], (void *)&where, n));
}

static void *connected_meanwhile(void *arg)
{
	fiber_t *f;
	int s[2];
	char c;

	udp_of(s);
	make_known(s[1]);
	atomic_store(&over, false);
	f = spawn(connects, &s[1]);
	for (int i = 0; i < 20; i++)
		check_eq(-ETIMEDOUT, fiber_read_until(s[1], &c, 1,
						      fiber_now() + 6 * MS));
	atomic_store(&over, true);
	join(f);
	check_eq(1, write(s[0], "x", 1));
	check_eq(1, fiber_read(s[1], &c, 1));
	close_both(s);
	return arg;
}

TEST_F(known, a_connect_ends_no_wait)
{
	RUN(connected_meanwhile);
}

/* ---- a socket that outlives the runtime, which has another set then ---- */

static int kept[2];

static void *opens(void *arg)
{
	tcp_of(kept);
	make_known(kept[1]);
	return arg;
}

static void *finds(void *arg)
{
	char c;

	fiber_t *f = spawn(sends_three, (void *)(long)kept[0]);
	check_eq(1, fiber_recv(kept[1], &c, 1, 0));
	took(0, now_ns() - told_at);
	join(f);
	check_eq(1, fiber_recv(kept[1], &c, 1, 0));
	check_eq(1, fiber_recv(kept[1], &c, 1, 0));
	make_known(kept[1]);
	/* One waits by that to the end. */
	check_eq(-ETIMEDOUT, fiber_recv_until(kept[1], &c, 1, 0,
					      fiber_now() + 100 * US));
	return arg;
}

TEST_F(known, another_runtime_knows_nothing)
{
	ASSERT_EQ(0, with_runtime(variant->processors, 0, opens, NULL));
	for (int i = 0; i < 8; i++)
		ASSERT_EQ(0, with_runtime(variant->processors, 0, finds, NULL));
	check_quick(1);
	EXPECT_EQ(0, failures);
}

/* ---- pools: some of the pool wait, some not of it ---- */

static void *pooled(void *arg)
{
	struct fiber_pool_attr pa = { .size = sizeof(pa), .processors = 1 };
	fiber_pool_t *pool = NULL;
	struct fiber_attr a = { .size = sizeof(a) };
	fiber_t *f[4];
	int s[2], r = 0;

	check_eq(0, fiber_pool_create(&pool, &pa));
	a.pool = pool;
	for (int i = 0; i < 6; i++) {
		tcp_of(s);
		make_known(s[1]);
		for (int n = 0; n < 4; n++)
			check_eq(0, fiber_spawn_attr(&f[n], n % 2 ? &a : NULL,
						     waits, (void *)(long)s[1]));
		check_eq(0, fiber_sleep(i % 2 ? 100 * US : 10 * MS));
		check_eq(4, write(s[0], "wxyz", 4));
		for (int n = 0; n < 4; n++)
			join(f[n]);
		close_both(s);
	}
	check(until((r = fiber_pool_destroy(pool)) != -EBUSY));
	check_eq(0, r);
	return arg;
}

TEST_F(known, pools_wait_with_it)
{
	RUN(pooled);
}

/* ---- pools that end while waits are to be verified: that goes on ---- */

static void *keeps_waiting(void *arg)
{
	char c;

	while (!atomic_load(&over))
		check_eq(-ETIMEDOUT, fiber_read_until((int)(long)arg, &c, 1,
						      fiber_now() + MS));
	return NULL;
}

static void *naps(void *arg)
{
	for (int i = 0; i < 10; i++)
		check_eq(0, fiber_sleep(300 * US));
	return arg;
}

static void *pools_end(void *arg)
{
	struct fiber_attr a = { .size = sizeof(a) };
	fiber_pool_t *pool = NULL;
	fiber_t *f, *k;
	int s[2], r = 0;

	tcp_of(s);
	make_known(s[1]);
	atomic_store(&over, false);
	k = spawn(keeps_waiting, (void *)(long)s[1]);
	for (int i = 0; i < 60; i++) {
		check_eq(0, fiber_pool_create(&pool, NULL));
		a.pool = pool;
		check_eq(0, fiber_spawn_attr(&f, &a, naps, NULL));
		join(f);
		check(until((r = fiber_pool_destroy(pool)) != -EBUSY));
		check_eq(0, r);
	}
	atomic_store(&over, true);
	join(k);
	close_both(s);
	return another_file(arg);
}

TEST_F(known, pools_end_meanwhile)
{
	RUN(pools_end);
}

TEST_HARNESS_MAIN
