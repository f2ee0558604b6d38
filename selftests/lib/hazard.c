// SPDX-License-Identifier: GPL-2.0-only
/*
 * hazard.c - what a program may do to the library under its feet: use up its
 * threads, close or reuse its descriptor, use registers that few know of
 */
#include <grp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "common.h"
#include "forbid.h"

static int exit_code(pid_t pid)
{
	int status = -1;

	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

/* ---- threads ---- */

#define READERS	12

static int pipes[READERS][2];
static atomic_int got;

static void *read_one(void *arg)
{
	int *p = arg;
	char byte;

	check_eq(1, read(p[0], &byte, 1));
	atomic_fetch_add(&got, 1);
	return NULL;
}

/* A plain thread, so that somebody runs when all carriers are blocked. */
static void *feed(void *arg)
{
	for (int i = 0; i < READERS; i++) {
		block_ns(20 * MS);
		check_eq(1, write(pipes[i][1], "x", 1));
	}
	return NULL;
}

static void *many_readers(void *arg)
{
	fiber_t *f[READERS];

	for (int i = 0; i < READERS; i++)
		f[i] = spawn(read_one, pipes[i]);
	for (int i = 0; i < READERS; i++)
		join(f[i]);
	return NULL;
}

static bool become(uid_t uid)
{
	return !setgroups(0, NULL) && !setgid(uid) && !setuid(uid);
}

/* User @uid may have so few threads that there are fewer carriers than readers. */
static int run_short_of_threads(uid_t uid)
{
	pthread_t feeder;

	if (!become(uid))
		return 90;
	for (int i = 0; i < READERS; i++)
		if (pipe(pipes[i]))
			return 91;
	if (start(2, 0))
		return 92;
	pthread_create(&feeder, NULL, feed, NULL);
	cap_memory(RLIMIT_NPROC, 8);
	join(spawn(many_readers, NULL));
	pthread_join(feeder, NULL);
	return atomic_load(&got) == READERS && !failures && !fiber_fini() ? 7 : 93;
}

static void *uses_files(void *arg)
{
	int fd = fiber_open("/proc/self/exe", O_RDONLY, 0);
	struct statx st;

	check(fd >= 0);
	for (int i = 0; i < 3; i++) {
		check_eq(0, fiber_statx(fd, "", AT_EMPTY_PATH, STATX_SIZE, &st));
		check_eq(1, fiber_pread(fd, &st, 1, (off_t)st.stx_size - 1));
	}
	check_eq(0, fiber_close(fd));
	return arg;
}

/* Not one more, for what makes calls on files: no call has been made before. */
static int use_files_short_of_threads(uid_t uid)
{
	if (!become(uid))
		return 90;
	setenv("FIBER_IO", "uring", 1);
	if (start(2, 0))
		return 92;
	cap_memory(RLIMIT_NPROC, 1);
	join(spawn(uses_files, NULL));
	return !failures && !fiber_fini() ? 7 : 93;
}

static int (*const short_of_threads[])(uid_t uid) = {
	run_short_of_threads, use_files_short_of_threads,
};

static int code_as_user(int i)
{
	pid_t pid = fork();

	if (!pid) {
		alarm(50);
		_exit(short_of_threads[i](61234));
	}
	return exit_code(pid);
}

TEST(rlimit_nproc)
{
	struct stat st = {};
	int code = 7;

	if (getuid())
		SKIP(return, "only root can become another user");
	if (!stat("/dev/fiber", &st))
		chmod("/dev/fiber", 0666);
	for (int i = 0; i < 2 && code == 7; i++)
		code = code_as_user(i);
	if (st.st_mode)
		chmod("/dev/fiber", st.st_mode & 07777);
	if (code == 90)
		SKIP(return, "cannot become another user here");
	EXPECT_EQ(7, code);
}

/* ---- the descriptor ---- */

static atomic_int closed;

static void *close_low(void *arg)
{
	int low = *(int *)arg;

	close_range(low, ~0U, 0);
	atomic_store(&closed, 1);
	for (int i = 0; i < 20; i++) {
		block_ns(MS);
		fiber_yield();
	}
	return NULL;
}

static void *count_a_while(void *arg)
{
	for (int i = 0; i < 20; i++) {
		block_ns(MS);
		fiber_yield();
	}
	return NULL;
}

static int run_and_close(int from, int to)
{
	fiber_t *f;

	if (start(1, 0))
		return 92;
	f = spawn(count_a_while, NULL);
	if (to < 0)
		join(spawn(close_low, &from));
	else
		for (int fd = from; fd <= to; fd++)
			close(fd);
	join(spawn(count_a_while, NULL));
	join(f);
	return !failures && !fiber_fini() ? 7 : 93;
}

/* A daemon that closes what it did not open, up to the usual limit. */
TEST(program_closes_low_descriptors)
{
	pid_t pid = fork();

	if (!pid) {
		alarm(50);
		_exit(run_and_close(3, 255));
	}
	EXPECT_EQ(7, exit_code(pid));
}

/* All of them: with the module it is over, in one clear line, at once. */
TEST(program_closes_all_descriptors)
{
	int said[2];
	char text[512] = "";
	bool kernel;
	pid_t pid;
	int code;

	ASSERT_EQ(0, start(1, 0));
	kernel = on_kernel();
	ASSERT_EQ(0, fiber_fini());
	ASSERT_EQ(0, pipe(said));
	pid = fork();
	if (!pid) {
		dup2(said[1], 2);
		alarm(50);
		_exit(run_and_close(3, -1));
	}
	close(said[1]);
	code = exit_code(pid);
	(void)!read(said[0], text, sizeof(text) - 1);
	EXPECT_EQ(kernel ? 1000 + SIGABRT : 7, code);
	if (kernel)
		EXPECT_NE(NULL, strstr(text, "closed or replaced"))
			TH_LOG("it said: %s", text);
}

/* The number of this thread's descriptor for /dev/fiber; -1: it has none. */
static int device_fd(const char *process)
{
	char path[64], to[32];
	ssize_t n;

	for (int fd = 1023; fd > 2; fd--) {	/* the library moves its up */
		snprintf(path, sizeof(path), "/proc/%s/fd/%d", process, fd);
		n = readlink(path, to, sizeof(to) - 1);
		if (n > 0 && !strncmp(to, "/dev/fiber", (size_t)n))
			return fd;
	}
	return -1;
}

/* Of a process that runs fibers of its own. */
static int foreign_file(void)
{
	int pipe_[2], fd = -1;
	pid_t pid;

	if (pipe(pipe_))
		return -1;
	pid = fork();
	if (!pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		fd = start(1, 0) ? -1 : device_fd("self");
		(void)!write(pipe_[1], &fd, sizeof(fd));
		pause();
	}
	if (read(pipe_[0], &fd, sizeof(fd)) != sizeof(fd))
		return -1;
	return (int)syscall(SYS_pidfd_getfd, syscall(SYS_pidfd_open, pid, 0),
			    fd, 0);
}

static void *block_for_ever(void *arg)
{
	for (;;)
		block_ns(MS);
	return arg;
}

/*
 * In a table of its own, so that the group stays: only this thread's calls go
 * to another file, the first one that is to wake somebody. That is when the
 * processor is with the fiber that blocks.
 */
static void *publish_by_another_file(void *arg)
{
	int fd = device_fd("self");

	spawn(block_for_ever, NULL);
	if (unshare(CLONE_FILES) || dup2(*(int *)arg, fd) != fd)
		_exit(90);
	for (;;)
		join(spawn(count_a_while, NULL));
}

static _Noreturn void replace(bool foreign)
{
	int other = foreign ? foreign_file() : open("/dev/fiber", O_RDWR);
	pthread_t t;

	if (other < 0 || start(1, 0))
		_exit(91);
	pthread_create(&t, NULL, publish_by_another_file, &other);
	pthread_join(t, NULL);
	_exit(92);
}

/* It is told at once; nobody asks that file again and again to wake someone. */
TEST(descriptor_names_another_group)
{
	bool kernel;

	ASSERT_EQ(0, start(1, 0));
	kernel = on_kernel();
	ASSERT_EQ(0, fiber_fini());
	if (!kernel)
		SKIP(return, "no descriptor on the user backend");
	for (int foreign = 0; foreign < 2; foreign++) {
		char text[512] = "";
		int said[2];
		pid_t pid;

		ASSERT_EQ(0, pipe(said));
		pid = fork();
		if (!pid) {
			dup2(said[1], 2);
			alarm(50);
			replace(foreign);
		}
		close(said[1]);
		EXPECT_EQ(1000 + SIGABRT, exit_code(pid));
		(void)!read(said[0], text, sizeof(text) - 1);
		EXPECT_NE(NULL, strstr(text, "closed or replaced"))
			TH_LOG("it said: %s", text);
	}
}

/* ---- another clock ---- */

static bool write_offset(const char *offset)
{
	int fd = open("/proc/self/timens_offsets", O_WRONLY);
	bool ok = fd >= 0 && write(fd, offset, strlen(offset)) > 0;

	close(fd);
	return ok;
}

/* By CLOCK_MONOTONIC 20 ms pass, or many more in a loaded VM, but not 1000 s. */
static int sleep_in_namespace(const char *offset)
{
	pid_t pid;

	if (unshare(CLONE_NEWTIME) || !write_offset(offset))
		return 90;
	pid = fork();			/* only children are in it */
	if (!pid) {
		uint64_t t = now_ns();

		alarm(50);
		if (start(1, 0) || fiber_sleep(20 * MS) ||
		    now_ns() - t < 20 * MS)
			_exit(93);
		_exit(fiber_fini() ? 94 : 7);
	}
	return exit_code(pid);
}

static int in_a_namespace(const char *offset)
{
	pid_t pid = fork();

	if (!pid)
		_exit(sleep_in_namespace(offset));
	return exit_code(pid);
}

TEST(time_namespace)
{
	if (in_a_namespace("monotonic 0 0\n") == 90)
		SKIP(return, "no time namespaces, or no permission");
	EXPECT_EQ(7, in_a_namespace("monotonic 1000 0\n"));
	EXPECT_EQ(7, in_a_namespace("monotonic -1 0\n"));
}

/* ---- a child of fork ---- */

static fiber_chan_t *line;
static atomic_bool receiving;

static void *receives(void *arg)
{
	int value;

	receiving = true;
	check_eq(0, fiber_chan_recv(line, &value));
	check_eq(7, value);
	return arg;
}

/*
 * A handler of atfork may try: who waited is not there, the child is told so, and nothing
 * breaks, here or there.
 */
TEST(child_of_a_fork_cannot_send_to_a_waiting_fiber)
{
	int value = 7;
	fiber_t *f;
	pid_t pid;

	ASSERT_EQ(0, start(1, 0));
	ASSERT_EQ(0, fiber_chan_create(&line, sizeof(int), 0));
	f = spawn(receives, NULL);
	ASSERT_TRUE(until(receiving && stats().idle == 1));
	pid = fork();
	if (!pid) {
		alarm(50);
		_exit(fiber_chan_try_send(line, &value) == -EPERM ? 7 : 8);
	}
	EXPECT_EQ(7, exit_code(pid));
	ASSERT_EQ(0, fiber_chan_send(line, &value));
	join(f);
	ASSERT_EQ(0, fiber_chan_destroy(line));
	ASSERT_EQ(0, fiber_fini());
	EXPECT_EQ(0, failures);
}

/* ---- a filter that forbids to open files ---- */

/* Long enough for the deadlock report to look; it opens nothing by then. */
TEST(program_forbids_open)
{
	pid_t pid;
	int code;

	ASSERT_EQ(0, start(1, 0));
	code = on_kernel();
	ASSERT_EQ(0, fiber_fini());
	if (!code)
		SKIP(return, "the user backend's monitor looks at /proc");
	pid = fork();
	if (!pid) {
		alarm(50);
		if (start(1, 0) || fiber_chan_create(&line, sizeof(int), 0))
			_exit(92);
		spawn(receives, NULL);
		if (!forbid(SYS_openat, SECCOMP_RET_KILL_PROCESS))
			_exit(90);
		sleep(3);
		_exit(7);
	}
	EXPECT_EQ(7, exit_code(pid));
}

/* ---- wide registers ---- */

static bool cpu_flag(const char *name)
{
	char key[32], line[8192];
	FILE *f = fopen("/proc/cpuinfo", "re");
	bool found = false;

	snprintf(key, sizeof(key), " %s", name);
	while (f && !found && fgets(line, sizeof(line), f)) {
		char *at = strncmp(line, "flags", 5) ? NULL : strstr(line, key);
		char after = at ? at[strlen(key)] : 0;

		found = after == ' ' || after == '\n';
	}
	if (f)
		fclose(f);
	return found;
}

static atomic_int stop;

/* No libc inside: preemptible all the time. */
static __attribute__((noinline)) bool avx512_kept(uint64_t seed, uint64_t turns)
{
	uint64_t k1, z31, z0, out[8] __attribute__((aligned(64)));

	__asm__ volatile(
		"kmovq	%%rax, %%k1\n\t"
		"vpbroadcastq %%rax, %%zmm31\n\t"
		"vpbroadcastq %%rax, %%zmm0\n"
		"1:	sub	$1, %[turns]\n\t"
		"jnz	1b\n\t"
		"kmovq	%%k1, %%rdx\n\t"
		"vmovdqa64 %%zmm31, (%%rcx)\n\t"
		"mov	56(%%rcx), %%r8\n\t"
		"vmovdqa64 %%zmm0, (%%rcx)\n\t"
		"mov	56(%%rcx), %%r9\n\t"
		"vzeroupper\n\t"
		"mov	%%rdx, %[k1]\n\t"
		"mov	%%r8, %[z31]\n\t"
		"mov	%%r9, %[z0]\n\t"
		: [k1] "=&r"(k1), [z31] "=&r"(z31), [z0] "=&r"(z0),
		  [turns] "+r"(turns)
		: "a"(seed), "c"(out)
		: "rdx", "r8", "r9", "xmm0", "memory", "cc");
	return k1 == seed && z31 == seed && z0 == seed;
}

static void *check_avx512(void *arg)
{
	uint64_t seed = (uintptr_t)arg;

	while (!atomic_load(&stop)) {
		seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
		check(avx512_kept(seed, 200000));
	}
	return NULL;
}

struct tile_config {
	uint8_t palette, start_row, reserved[14];
	uint16_t colsb[16];
	uint8_t rows[16];
} __attribute__((aligned(64)));

static __attribute__((noinline)) void tile_kept(const void *in, void *out,
						uint64_t turns)
{
	__asm__ volatile(
		"tileloadd (%%rcx,%%rax,1), %%tmm0\n"
		"1:	sub	$1, %[turns]\n\t"
		"jnz	1b\n\t"
		"mov	%[out], %%rcx\n\t"
		"tilestored %%tmm0, (%%rcx,%%rax,1)\n\t"
		: [turns] "+r"(turns), "+c"(in)
		: "a"(64L), [out] "r"(out) : "memory", "cc");
}

static void *check_amx(void *arg)
{
	struct tile_config config = { .palette = 1, .colsb = { 64 }, .rows = { 16 } };
	uint8_t in[1024] __attribute__((aligned(64)));
	uint8_t out[1024] __attribute__((aligned(64)));
	uint8_t fill = (uintptr_t)arg;

	__asm__ volatile("ldtilecfg %0" : : "m"(config));
	while (!atomic_load(&stop)) {
		memset(in, fill, sizeof(in));
		memset(out, 0, sizeof(out));
		tile_kept(in, out, 200000);
		check_eq(0, memcmp(in, out, sizeof(in)));
		fill += 3;
	}
	__asm__ volatile("tilerelease");
	return NULL;
}

/* Two fibers of one processor, a preemption a millisecond. */
static void *two_of(void *fn)
{
	uint64_t before = stats().preemptions, t = now_ns();
	fiber_t *a = spawn((void *(*)(void *))(uintptr_t)fn, (void *)1);
	fiber_t *b = spawn((void *(*)(void *))(uintptr_t)fn, (void *)2);

	while (stats().preemptions < before + 40 && now_ns() - t < 20 * SEC)
		fiber_sleep(10 * MS);
	atomic_store(&stop, 1);
	join(a);
	join(b);
	check(stats().preemptions >= before + 20);
	return NULL;
}

TEST(avx512_state)
{
	if (!cpu_flag("avx512bw"))
		SKIP(return, "no AVX-512: the CPU lacks it");
	ASSERT_EQ(0, with_runtime(1, 1 * MS, two_of,
				  (void *)(uintptr_t)check_avx512));
	EXPECT_EQ(0, failures);
}

#define REQ_XCOMP	0x1023		/* ARCH_REQ_XCOMP_PERM */
#define TILEDATA	18

TEST(amx_state)
{
	if (!cpu_flag("amx_tile"))
		SKIP(return, "no AMX: the CPU lacks it");
	if (syscall(SYS_arch_prctl, REQ_XCOMP, TILEDATA))
		SKIP(return, "no permission for AMX: %s", strerror(errno));
	ASSERT_EQ(0, with_runtime(1, 1 * MS, two_of,
				  (void *)(uintptr_t)check_amx));
	EXPECT_EQ(0, failures);
}

/* ---- shadow stacks ---- */

#define SHSTK_ENABLE	0x5001		/* ARCH_SHSTK_ENABLE */
#define SHSTK_SHSTK	1

static void *nothing(void *arg)
{
	return arg;
}

/*
 * Nothing that was called before may return after this. The kernel backend goes
 * back by ret; so it is not taken, and start() says so or takes the other.
 */
static __attribute__((noinline)) void with_shadow_stack(void)
{
	long r;

	__asm__ volatile("syscall" : "=a"(r)
			 : "a"(SYS_arch_prctl), "D"(SHSTK_ENABLE), "S"(SHSTK_SHSTK)
			 : "rcx", "r11", "memory");
	if (r)
		_exit(5);
	unsetenv("FIBER_BACKEND");
	if (start(1, 0))
		_exit(8);
	if (on_kernel())
		_exit(9);
	join(spawn(nothing, NULL));
	_exit(7);
}

TEST(user_shadow_stack)
{
	pid_t pid;
	int code;

	if (!cpu_flag("user_shstk"))
		SKIP(return, "no user shadow stacks: the CPU or the kernel lacks them");
	pid = fork();
	if (!pid)
		with_shadow_stack();
	code = exit_code(pid);
	if (code == 5)
		SKIP(return, "the kernel enables no shadow stack for this program");
	EXPECT_TRUE(code == 7 || code == 8) TH_LOG("status %d", code);
}

TEST_HARNESS_MAIN
