// SPDX-License-Identifier: GPL-2.0-only
/*
 * A file system by libfuse, in another process, whose files are read in fibers of one
 * processor: half of them by read(2), half by page faults of a mapping. It gives no
 * page before all have asked for theirs, and another fiber has had its turns
 * meanwhile: a fault that held up the others would hold up all for ever.
 *
 * It is mounted in a mount namespace of the test's own. Where the test may not make
 * that, or there is no /dev/fuse, it skips.
 */
#define FUSE_USE_VERSION 31
#include <fuse_lowlevel.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>

#include "libraries/crowd.h"

enum { READERS = 16, TURNS = 50, PAGE = 4096 };

/* Of both processes. */
static struct shared {
	atomic_int arrived;		/* pages asked for */
	atomic_int turns;		/* of the other fiber since all have */
} *shared;

/* ---- the file system: files 0 to READERS - 1, each a page of its number ---- */

static struct stat stat_of(fuse_ino_t ino)
{
	struct stat st = { .st_ino = ino, .st_nlink = 1, .st_mode = S_IFREG | 0444,
			   .st_size = PAGE };

	if (ino == FUSE_ROOT_ID)
		st.st_mode = S_IFDIR | 0555;
	return st;
}

static void fs_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct fuse_entry_param e = { .ino = (fuse_ino_t)atoi(name) + 2,
				      .attr_timeout = 1000, .entry_timeout = 1000 };

	(void)parent;
	e.attr = stat_of(e.ino);
	fuse_reply_entry(req, &e);
}

static void fs_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct stat st = stat_of(ino);

	(void)fi;
	fuse_reply_attr(req, &st, 1000);
}

static void fs_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	(void)ino;
	fuse_reply_open(req, fi);
}

static void give(fuse_req_t req, fuse_ino_t ino)
{
	char page[PAGE];

	memset(page, (int)(ino - 2), sizeof(page));
	fuse_reply_buf(req, page, sizeof(page));
}

static void fs_read(fuse_req_t req, fuse_ino_t ino, size_t n, off_t at,
		    struct fuse_file_info *fi)
{
	static fuse_req_t kept[READERS];
	static fuse_ino_t of[READERS];
	int i = atomic_load(&shared->arrived);

	(void)fi;
	if (at || n < PAGE || i == READERS) {
		fuse_reply_err(req, EIO);
		return;
	}
	kept[i] = req;
	of[i] = ino;
	if (atomic_fetch_add(&shared->arrived, 1) + 1 < READERS)
		return;
	while (atomic_load(&shared->turns) < TURNS)
		block_ns(MS);
	for (i = 0; i < READERS; i++)
		give(kept[i], of[i]);
}

static const struct fuse_lowlevel_ops ops = {
	.lookup = fs_lookup, .getattr = fs_getattr, .open = fs_open,
	.read = fs_read,
};

/* Ends with the test, however that ends. */
static pid_t serve(struct fuse_session *se)
{
	pid_t parent = getpid(), pid = fork();

	if (pid)
		return pid;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() == parent)
		fuse_session_loop(se);
	_exit(0);
}

/* ---- the fibers ---- */

static int file_of(int i)
{
	char name[64];
	int fd;

	snprintf(name, sizeof(name), "/tmp/%d", i);
	fd = open(name, O_RDONLY | O_CLOEXEC);
	check(fd >= 0);
	return fd;
}

static void *reads(void *arg)
{
	int i = (int)(intptr_t)arg, fd = file_of(i), tid = gettid();
	char page[PAGE] = { 99 };
	const char *map;

	if (i % 2) {
		check_eq(PAGE, read(fd, page, sizeof(page)));
	} else {
		map = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, 0);
		check(map != MAP_FAILED);
		memcpy(page, map, sizeof(page));	/* here */
		munmap((void *)(uintptr_t)map, PAGE);
	}
	check_eq(i, page[0]);
	check_eq(i, page[PAGE - 1]);
	check_eq(tid, gettid());
	close(fd);
	atomic_fetch_sub(&crowd.inside, 1);
	return NULL;
}

static void *goes_on(void *arg)
{
	while (atomic_load(&crowd.inside)) {
		if (atomic_load(&shared->arrived) == READERS)
			atomic_fetch_add(&shared->turns, 1);
		fiber_yield();
	}
	return arg;
}

static void *read_all(void *arg)
{
	fiber_t *f[READERS], *other;

	atomic_store(&crowd.inside, READERS);
	other = spawn(goes_on, NULL);
	for (int i = 0; i < READERS; i++)
		f[i] = spawn(reads, (void *)(intptr_t)i);
	for (int i = 0; i < READERS; i++)
		join(f[i]);
	join(other);
	check(stats().carriers >= READERS);
	/* Each asked before any had an answer: so each handed its processor over. */
	check(!on_kernel() || stats().handoffs >= READERS);
	figure("fuse3: %d fibers of one processor in read and page faults at once (%s)\n",
	       READERS, fiber_backend());
	return arg;
}

/* ---- the mount ---- */

#define MODULE "/vm/fuse/0-fuse.ko"	/* of the VM's kernel: vm/run.sh */

/* False, with the reason in *why. */
static bool have_fuse(const char **why)
{
	*why = in_vm() ? "no /dev/fuse; this kernel's module was not fetched with it" :
	       "no /dev/fuse";
	if (access("/dev/fuse", F_OK) && !access(MODULE, R_OK) &&
	    system("insmod " MODULE))
		*why = "insmod " MODULE " failed";
	return !access("/dev/fuse", R_OK | W_OK);
}

static struct fuse_session *mount_it(const char **why)
{
	char *argv[] = { "fuse3", NULL };
	struct fuse_args args = FUSE_ARGS_INIT(1, argv);
	struct fuse_session *se;

	if (!have_fuse(why))
		return NULL;
	*why = "no mount namespace";
	if (unshare(CLONE_NEWNS) ||
	    mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL))
		return NULL;
	*why = "cannot mount";
	se = fuse_session_new(&args, &ops, sizeof(ops), NULL);
	return se && !fuse_session_mount(se, "/tmp") ? se : NULL;
}

TEST(fuse_files_hold_up_nobody)
{
	struct fuse_session *se;
	const char *why;
	pid_t pid;

	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE,
		      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ASSERT_NE(MAP_FAILED, shared);
	se = mount_it(&why);
	if (!se)
		SKIP(return, "%s: %s", why, strerror(errno));
	pid = serve(se);
	ASSERT_GT(pid, 0);
	close(fuse_session_fd(se));	/* so that the file system ends with it */
	ASSERT_EQ(0, with_runtime(1, 0, read_all, NULL));
	EXPECT_EQ(0, failures);
	EXPECT_EQ(READERS, atomic_load(&shared->arrived));
	umount2("/tmp", MNT_DETACH);
	kill(pid, SIGKILL);
	EXPECT_EQ(pid, waitpid(pid, NULL, 0));
}

TEST_HARNESS_MAIN
