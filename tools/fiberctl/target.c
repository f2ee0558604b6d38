// SPDX-License-Identifier: GPL-2.0-only
/* target.c - find libfiber in another process, or a core file; read its memory */
#include <errno.h>
#include <fcntl.h>
#include <libelf.h>
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "fiberctl.h"

/* ---- memory ---- */

static int gone_or_not(const struct target *t, int err)
{
	if (err == ESRCH)
		return target_fail(-ESRCH, "%s is gone", t->what);
	if (err == EPERM)
		return target_fail(-EPERM, "no permission to read %s: it is another user's, or ptrace is restricted (kernel.yama.ptrace_scope); try as root",
				   t->what);
	return target_fail(-EFAULT, "%s: its memory cannot be read where fibers should be: %s",
			   t->what, strerror(err));
}

/* Some kernels lack process_vm_readv, some containers forbid it. */
static ssize_t read_file(pid_t pid, uint64_t addr, void *to, size_t n)
{
	char name[40];
	ssize_t got;
	int fd;

	snprintf(name, sizeof(name), "/proc/%d/mem", (int)pid);
	fd = open(name, O_RDONLY | O_CLOEXEC);
	if (fd < 0) {
		errno = errno == EACCES ? EPERM : errno == ENOENT ? ESRCH : errno;
		return -1;
	}
	got = pread(fd, to, n, (off_t)addr);
	if (got < 0 && errno == EIO)
		errno = EFAULT;
	close(fd);
	return got;
}

static ssize_t read_memory(pid_t pid, uint64_t addr, void *to, size_t n)
{
	struct iovec local = { to, n }, remote = { (void *)addr, n };
	ssize_t got = process_vm_readv(pid, &local, 1, &remote, 1, 0);

	if (got < 0 && (errno == ENOSYS || errno == EPERM))
		got = read_file(pid, addr, to, n);
	return got;
}

int target_read(const struct target *t, uint64_t addr, void *to, size_t n)
{
	ssize_t got;

	if (t->core)
		return core_read(t->core, addr, to, n) ?
		       target_fail(-EFAULT, "%s lacks memory that has its fibers", t->what) :
		       0;
	got = read_memory(t->pid, addr, to, n);
	if (got == (ssize_t)n)
		return 0;
	return gone_or_not(t, got < 0 ? errno : EFAULT);
}

int target_gather(const struct target *t, const uint64_t *addr, size_t n,
		  void *to, size_t size)
{
	struct iovec local[TARGET_BATCH], remote[TARGET_BATCH];
	char *at = to;
	int r;

	memset(to, 0, n * size);
	for (size_t i = 0; i < n; i++) {
		local[i] = (struct iovec){ at + i * size, size };
		remote[i] = (struct iovec){ (void *)addr[i], size };
		if (t->core)
			core_read(t->core, addr[i], at + i * size, size);
	}
	for (size_t done = t->core ? n : 0; done < n;) {
		ssize_t got = process_vm_readv(t->pid, local + done, n - done,
					       remote + done, n - done, 0);

		if (got < 0 && errno != EFAULT) {
			r = target_read(t, addr[done], local[done].iov_base,
					size);
			if (r && r != -EFAULT)
				return r;
			got = r ? 0 : (ssize_t)size;
		}
		/* The one that it stopped at cannot be read. */
		if (got < (ssize_t)size)
			done++;
		else
			done += (size_t)got / size;
	}
	return 0;
}

uint64_t target_word(const struct target *t, uint64_t addr)
{
	uint64_t v;

	return target_read(t, addr, &v, sizeof(v)) ? 0 : v;
}

uint32_t target_half(const struct target *t, uint64_t addr)
{
	uint32_t v;

	return target_read(t, addr, &v, sizeof(v)) ? 0 : v;
}

/* ---- the symbol ---- */

static uint64_t in_file(pid_t pid, const char *path, uint64_t *first)
{
	char name[4200];
	uint64_t at = 0;
	Elf *elf;
	int fd;

	snprintf(name, sizeof(name), "/proc/%d/root%s", (int)pid, path);
	fd = open(name, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return 0;
	elf = elf_begin(fd, ELF_C_READ_MMAP, NULL);
	if (elf) {
		at = symbol_in_elf(elf, first);
		elf_end(elf);
	}
	close(fd);
	return at;
}

/* Is it worth a look? Files whose first page is mapped, ours first. */
static uint64_t look(FILE *maps, pid_t pid, bool ours)
{
	char line[4400], path[4097], last[4097] = "";
	unsigned long long start, off, at, first = 0;

	rewind(maps);
	while (fgets(line, sizeof(line), maps)) {
		if (sscanf(line, "%llx-%*x %*s %llx %*s %*s %4096[^\n]",
			   &start, &off, path) != 3 || off || *path != '/' ||
		    !strcmp(path, last) ||
		    !strstr(path, "libfiber.so") == ours)
			continue;
		strcpy(last, path);
		at = in_file(pid, path, (uint64_t *)&first);
		if (at)
			return start + at - first;
	}
	return 0;
}

/* One that ends has none any more, long before it is gone. */
static bool has_memory(pid_t pid)
{
	char path[64];
	FILE *maps;
	bool any;

	snprintf(path, sizeof(path), "/proc/%d/maps", (int)pid);
	maps = fopen(path, "re");
	any = maps && fgetc(maps) != EOF;
	if (maps)
		fclose(maps);
	return any;
}

static int find_symbol(struct target *t, uint64_t *addr)
{
	char path[64];
	FILE *maps;

	snprintf(path, sizeof(path), "/proc/%d/maps", (int)t->pid);
	maps = fopen(path, "re");
	if (!maps && errno == ENOENT)
		return target_fail(-ESRCH, "there is no process %d", (int)t->pid);
	if (!maps)
		return gone_or_not(t, EPERM);
	*addr = look(maps, t->pid, true);
	if (!*addr)
		*addr = look(maps, t->pid, false);
	if (ferror(maps)) {		/* EACCES comes with the first read */
		fclose(maps);
		return gone_or_not(t, kill(t->pid, 0) && errno == ESRCH ?
				      ESRCH : EPERM);
	}
	fclose(maps);
	if (!*addr && !has_memory(t->pid))
		return target_fail(-ESRCH, "process %d has no memory: it has ended, or is the kernel's",
				   (int)t->pid);
	return *addr ? 0 :
	       target_fail(-ENOENT, "%s has no fibers: it does not use libfiber",
			   t->what);
}

/* ---- open ---- */

static void read_whys(struct target *t)
{
	char word[32];

	for (uint32_t i = 0; i < t->d.why_count && i < 64; i++) {
		memset(word, 0, sizeof(word));
		target_read(t, target_word(t, t->d.whys + 8 * i), word,
			    sizeof(word) - 1);
		printable(word);
		t->why[i] = strdup(word);
	}
}

static uint64_t now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000 + (uint64_t)ts.tv_nsec;
}

/* Offsets into a descriptor that lie in it: it may be anything, we may be root. */
static bool sane(const struct fiber_debug *d)
{
	const uint32_t at[] = {
		d->fiber.sp, d->fiber.bp, d->fiber.ip, d->fiber.join,
		d->fiber.fn, d->fiber.why, d->fiber.base, d->fiber.id,
		d->fiber.since, d->fiber.canary,
	};

	if (d->fiber.size < 8 || d->fiber.size > 1 << 16 || d->clock_shift > 63)
		return false;
	for (size_t i = 0; i < sizeof(at) / sizeof(at[0]); i++)
		if (at[i] > d->fiber.size - 8)
			return false;
	return d->fiber.name <= d->fiber.size &&
	       d->fiber.name_size <= d->fiber.size - d->fiber.name &&
	       d->lock.home <= d->fiber.size - 8;
}

static bool sane_times(const struct fiber_debug *d)
{
	const uint32_t at[] = {
		d->times.ns, d->times.cpu, d->times.state, d->times.seq,
	};

	if (d->times.below < 8 || d->times.below > TARGET_TIMES ||
	    d->times.flags > d->fiber.size - 2)
		return false;
	for (size_t i = 0; i < sizeof(at) / sizeof(at[0]); i++)
		if (at[i] > d->times.below - 8)
			return false;
	return true;
}

uint32_t target_all_processors(const struct target *t)
{
	return target_half(t, t->d.runtime + (t->d.pool.nproc ?
					      t->d.pool.nproc :
					      t->d.runtime_at.nproc));
}

/* The next pool behind the default one, from *i on; 0: no more. */
static uint64_t next_pool(const struct target *t, uint32_t *i)
{
	uint64_t at, g;

	while (t->d.pool.pools && ++*i < t->d.pool.max && *i < 65536) {
		at = t->d.runtime + t->d.pool.pools + (uint64_t)*i * 8;
		g = target_word(t, at);
		if (!g)
			break;
		if (target_half(t, g + t->d.pool.state) == t->d.pool.on)
			return g;
	}
	return 0;
}

uint32_t target_info(const struct target *t, uint32_t member)
{
	uint64_t rt = t->d.runtime, g;
	uint32_t i = 0, n;

	n = target_half(t, target_word(t, rt + t->d.runtime_at.info) + member);
	while ((g = next_pool(t, &i)))
		if (target_half(t, g + t->d.pool.nproc_of))
			n += target_half(t, target_word(t, g + t->d.pool.info) +
					    member);
	return n;
}

void target_pool_name(const struct target *t, unsigned int i, char *name,
		      size_t size)
{
	uint64_t g = i ? target_word(t, t->d.runtime + t->d.pool.pools +
					(uint64_t)i * 8) : 0;
	size_t n = t->d.pool.name_size < size ? t->d.pool.name_size : size;

	memset(name, 0, size);
	if (g && n && !target_read(t, g + t->d.pool.name, name, n))
		name[n - 1] = 0;
	else
		name[0] = 0;
	printable(name);
}

static uint32_t of_default(const struct target *t)
{
	uint64_t rt = t->d.runtime;
	uint32_t nproc = target_half(t, rt + t->d.runtime_at.nproc);
	uint32_t use = t->d.follow.use ?
		       target_half(t, rt + t->d.follow.use) : nproc;

	return use < nproc ? use : nproc;
}

uint32_t target_processors(const struct target *t)
{
	uint32_t n = of_default(t), i = 0;
	uint64_t g;

	while ((g = next_pool(t, &i)))
		n += target_half(t, g + t->d.pool.use);
	return n;
}

static bool sane_pools(const struct fiber_debug *d)
{
	return d->pool.flags <= d->fiber.size - 2 &&
	       d->pool.of <= d->fiber.size - 1;
}

static bool any_pool(const struct target *t)
{
	uint32_t i = 0;

	return t->d.pool.flag && next_pool(t, &i);
}

/* The library's root is at t->root. */
static int open_root(struct target *t)
{
	size_t oldest = offsetof(struct fiber_debug, lock);
	uint32_t state;
	int r = target_read(t, t->root, &t->d, oldest);

	if (r)
		return r;
	if (memcmp(t->d.magic, FIBER_DEBUG_MAGIC, sizeof(t->d.magic)) ||
	    t->d.version != 1 || t->d.size < oldest)
		return target_fail(-EPROTO, "%s uses a libfiber that this fiberctl does not know",
				   t->what);
	/* What a library of before does not say stays 0. */
	r = target_read(t, t->root, &t->d, t->d.size < sizeof(t->d) ?
					   t->d.size : sizeof(t->d));
	if (r)
		return r;
	if (!sane(&t->d))
		return target_fail(-EPROTO, "%s uses a libfiber that makes no sense: is it damaged?",
				   t->what);
	if (!sane_times(&t->d))
		t->d.times.flag = 0;
	if (!sane_pools(&t->d))
		t->d.pool.flag = 0;
	r = target_read(t, t->d.runtime + t->d.runtime_at.state, &state,
			sizeof(state));
	if (r)
		return r;
	if (state < t->d.runtime_at.on)
		return target_fail(-ENOENT, "%s has no fibers: its runtime has not been started, or has ended",
				   t->what);
	t->started = target_word(t, t->d.runtime + t->d.runtime_at.started);
	t->pools = any_pool(t);
	read_whys(t);
	return 0;
}

int target_open(struct target *t, pid_t pid)
{
	int r;

	memset(t, 0, sizeof(*t));
	t->pid = pid;
	snprintf(t->what, sizeof(t->what), "process %d", (int)pid);
	elf_version(EV_CURRENT);
	r = find_symbol(t, &t->root);
	t->now = now();
	return r ? r : open_root(t);
}

static int find_in_core(struct target *t)
{
	const char *missing = core_missing(t->core);

	t->root = core_symbol(t->core);
	if (t->root)
		return 0;
	if (core_cut(t->core))
		return target_fail(-EIO, "%s is cut short (%s): what says where its fibers are is not in it",
				   t->what, core_cut(t->core));
	if (missing)
		return target_fail(-ENOENT, "%s has no fibers that could be found: %s is not there, or not as it was then; give the program as a second argument",
				   t->what, missing);
	return target_fail(-ENOENT, "%s has no fibers: its program does not use libfiber",
			   t->what);
}

int target_open_core(struct target *t, const char *path, const char *program)
{
	int r;

	memset(t, 0, sizeof(*t));
	snprintf(t->what, sizeof(t->what), "core file %s", path);
	t->core = core_open(path, program);
	if (!t->core)
		return -EIO;
	t->pid = core_pid(t->core);
	r = find_in_core(t);
	if (!r)
		r = open_root(t);
	if (r)
		target_close(t);
	return r;
}

void target_close(struct target *t)
{
	if (t->core)
		core_close(t->core);
	for (int i = 0; i < 64; i++)
		free((void *)t->why[i]);
}

const char *target_backend(const struct target *t)
{
	return target_word(t, t->d.runtime + t->d.runtime_at.features) & 1 ?
	       "kernel" : "user";
}

void command_of(pid_t pid, char *text, size_t size)
{
	char path[64];
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/comm", (int)pid);
	f = fopen(path, "re");
	text[0] = 0;
	if (f && fgets(text, (int)size, f))
		text[strcspn(text, "\n")] = 0;
	printable(text);
	if (f)
		fclose(f);
}
