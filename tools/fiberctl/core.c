// SPDX-License-Identifier: GPL-2.0-only
/*
 * core.c - a core file instead of a process
 *
 * What a core file lacks of the memory, namely the pages of files that nobody wrote
 * to, is taken from those files, by libdw: it finds them by what the dynamic linker
 * left in the memory, and takes none whose build id is another. A core file that is
 * cut short has segments that are said to be in it and are not: those cannot be read,
 * from whatever file.
 */
#include <elfutils/libdwelf.h>
#include <elfutils/libdwfl.h>
#include <errno.h>
#include <fcntl.h>
#include <gelf.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/procfs.h>
#include <sys/reg.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <linux/fiber.h>

#include "fiberctl.h"

struct segment {
	uint64_t addr, size, at;
};

struct core {
	const char *path, *program;
	int fd;
	Elf *elf;
	const char *image;
	uint64_t bytes, wants;		/* it has; it should have */
	Dwfl *files;
	struct segment *seg;
	size_t segs;
	struct elf_prstatus *thread;
	size_t threads;
	char command[17];
	pid_t pid;
	char missing[512];		/* the first file that is */
};

/* Any number may stand in a damaged file. */
static bool inside(uint64_t at, uint64_t n, uint64_t size)
{
	return at <= size && n <= size - at;
}

/* ---- opening ---- */

static char *no_path;
static const Dwfl_Callbacks callbacks = {
	.find_elf = dwfl_build_id_find_elf,
	.find_debuginfo = dwfl_standard_find_debuginfo,
	.debuginfo_path = &no_path,
};

Dwfl *core_report(const struct core *c)
{
	Dwfl *d = dwfl_begin(&callbacks);

	if (d && dwfl_core_file_report(d, c->elf, c->program) > 0 &&
	    !dwfl_report_end(d, NULL, NULL))
		return d;
	if (d)
		dwfl_end(d);
	return NULL;
}

Elf *core_elf(const struct core *c)
{
	return c->elf;
}

static int is_core(struct core *c)
{
	GElf_Ehdr eh;
	size_t size;

	if (elf_kind(c->elf) != ELF_K_ELF || !gelf_getehdr(c->elf, &eh))
		return target_fail(-ENOEXEC, "%s is no core file", c->path);
	if (eh.e_type != ET_CORE)
		return target_fail(-ENOEXEC, "%s is no core file, but a program or library",
				   c->path);
	if (eh.e_machine != EM_X86_64)
		return target_fail(-ENOEXEC, "%s is the core file of another kind of machine",
				   c->path);
	c->image = elf_rawfile(c->elf, &size);
	c->bytes = c->image ? size : 0;
	return 0;
}

static int open_elf(struct core *c)
{
	c->fd = open(c->path, O_RDONLY | O_CLOEXEC);
	if (c->fd < 0)
		return target_fail(-errno, "%s: %s", c->path, strerror(errno));
	c->elf = dwelf_elf_begin(c->fd);	/* unpacks, too */
	if (!c->elf)
		return target_fail(-ENOEXEC, "%s is no core file: %s", c->path,
				   elf_errmsg(-1));
	return is_core(c);
}

static void take_thread(struct core *c, const char *status)
{
	struct elf_prstatus *more = realloc(c->thread, (c->threads + 1) *
					    sizeof(*more));

	if (!more)
		return;
	c->thread = more;
	memcpy(&more[c->threads++], status, sizeof(*more));
}

static void take_note(struct core *c, const GElf_Nhdr *nh, const char *desc)
{
	const struct elf_prpsinfo *info = (const void *)desc;

	if (nh->n_type == NT_PRSTATUS &&
	    nh->n_descsz == sizeof(struct elf_prstatus)) {
		take_thread(c, desc);
	} else if (nh->n_type == NT_PRPSINFO &&
		   nh->n_descsz == sizeof(*info)) {
		memcpy(c->command, info->pr_fname, sizeof(info->pr_fname));
		printable(c->command);
		c->pid = info->pr_pid;
	}
}

static void take_notes(struct core *c, const GElf_Phdr *ph)
{
	Elf_Data *data = elf_getdata_rawchunk(c->elf, (int64_t)ph->p_offset,
					      ph->p_filesz, ELF_T_NHDR);
	size_t at = 0, name, desc;
	GElf_Nhdr nh;

	while (data && (at = gelf_getnote(data, at, &nh, &name, &desc)))
		if (!strncmp((char *)data->d_buf + name, "CORE", nh.n_namesz))
			take_note(c, &nh, (char *)data->d_buf + desc);
}

static int by_addr(const void *a, const void *b)
{
	const struct segment *x = a, *y = b;

	return (x->addr > y->addr) - (x->addr < y->addr);
}

static int take_segments(struct core *c)
{
	GElf_Phdr ph;
	size_t n;

	if (elf_getphdrnum(c->elf, &n) ||
	    !(c->seg = calloc(n + 1, sizeof(*c->seg))))
		return target_fail(-EIO, "%s is cut short, or damaged: it has no list of its contents",
				   c->path);
	for (size_t i = 0; i < n; i++) {
		if (!gelf_getphdr(c->elf, (int)i, &ph)) {
			c->wants = UINT64_MAX;
			break;
		}
		if (!inside(ph.p_offset, ph.p_filesz, c->wants))
			c->wants = ph.p_offset + ph.p_filesz;
		if (ph.p_type == PT_NOTE)
			take_notes(c, &ph);
		if (ph.p_type == PT_LOAD && ph.p_filesz)
			c->seg[c->segs++] = (struct segment){
				ph.p_vaddr, ph.p_filesz, ph.p_offset };
	}
	qsort(c->seg, c->segs, sizeof(*c->seg), by_addr);
	return 0;
}

/* A program that was named is taken as it is: it may be another. */
static bool same_file(Dwfl_Module *m)
{
	unsigned char was[64];
	const unsigned char *id;
	const void *is;
	GElf_Addr at;
	int n = dwfl_module_build_id(m, &id, &at);
	Elf *elf;

	if (n > (int)sizeof(was))
		n = 0;
	if (n > 0)
		memcpy(was, id, (size_t)n);
	elf = dwfl_module_getelf(m, &at);	/* its id is the file's from now */
	if (!elf || n <= 0)
		return elf;
	return dwelf_elf_gnu_build_id(elf, &is) == n &&
	       !memcmp(was, is, (size_t)n);
}

static int look_for_file(Dwfl_Module *m, void **user, const char *name,
			 Dwarf_Addr start, void *arg)
{
	struct core *c = arg;

	(void)user;
	(void)start;
	if (!same_file(m) && !*c->missing)
		snprintf(c->missing, sizeof(c->missing), "%s", name);
	printable(c->missing);
	return DWARF_CB_OK;
}

struct core *core_open(const char *path, const char *program)
{
	struct core *c = calloc(1, sizeof(*c));

	if (!c) {
		target_fail(-ENOMEM, "no memory");
		return NULL;
	}
	c->path = path;
	c->program = program;
	unsetenv("DEBUGINFOD_URLS");	/* nothing is fetched */
	elf_version(EV_CURRENT);
	if (open_elf(c) || take_segments(c)) {
		core_close(c);
		return NULL;
	}
	c->files = core_report(c);
	if (c->files)
		dwfl_getmodules(c->files, look_for_file, c, 0);
	return c;
}

void core_close(struct core *c)
{
	if (c->files)
		dwfl_end(c->files);
	if (c->elf)
		elf_end(c->elf);
	if (c->fd >= 0)
		close(c->fd);
	free(c->thread);
	free(c->seg);
	free(c);
}

/* ---- memory ---- */

static const struct segment *segment_of(const struct core *c, uint64_t addr)
{
	size_t low = 0, high = c->segs;

	while (low < high) {
		size_t i = (low + high) / 2;

		if (c->seg[i].addr <= addr)
			low = i + 1;
		else
			high = i;
	}
	if (!low || addr - c->seg[low - 1].addr >= c->seg[low - 1].size)
		return NULL;
	return &c->seg[low - 1];
}

static size_t from_file(const struct core *c, uint64_t addr, void *to, size_t n)
{
	Dwfl_Module *m = c->files ? dwfl_addrmodule(c->files, addr) : NULL;
	GElf_Addr bias;
	Elf *elf = m ? dwfl_module_getelf(m, &bias) : NULL;
	size_t size, count = 0;
	const char *raw = elf ? elf_rawfile(elf, &size) : NULL;
	GElf_Phdr ph;

	if (!raw || elf_getphdrnum(elf, &count))
		return 0;
	for (size_t i = 0; i < count; i++) {
		if (!gelf_getphdr(elf, (int)i, &ph) || ph.p_type != PT_LOAD ||
		    addr - bias - ph.p_vaddr >= ph.p_filesz)
			continue;
		addr -= bias + ph.p_vaddr;
		if (n > ph.p_filesz - addr)
			n = ph.p_filesz - addr;
		if (!inside(ph.p_offset, addr + n, size))
			return 0;
		memcpy(to, raw + ph.p_offset + addr, n);
		return n;
	}
	return 0;
}

int core_read(const struct core *c, uint64_t addr, void *to, size_t n)
{
	while (n) {
		const struct segment *s = segment_of(c, addr);
		size_t part = n;

		if (!s) {
			part = from_file(c, addr, to, n);
		} else {
			uint64_t into = addr - s->addr;

			if (part > s->size - into)
				part = s->size - into;
			if (!inside(s->at, into + part, c->bytes))
				part = 0;
			memcpy(to, c->image + s->at + into, part);
		}
		if (!part)
			return -EFAULT;
		addr += part;
		to = (char *)to + part;
		n -= part;
	}
	return 0;
}

/* ---- what is in it ---- */

static int look_for_symbol(Dwfl_Module *m, void **user, const char *name,
			   Dwarf_Addr start, void *arg)
{
	uint64_t *found = arg, first;
	GElf_Addr bias;
	Elf *elf = dwfl_module_getelf(m, &bias);

	(void)user;
	(void)name;
	(void)start;
	*found = elf ? symbol_in_elf(elf, &first) : 0;
	if (*found)
		*found += bias;
	return *found ? DWARF_CB_ABORT : DWARF_CB_OK;
}

uint64_t core_symbol(const struct core *c)
{
	uint64_t at = 0;

	if (c->files)
		dwfl_getmodules(c->files, look_for_symbol, &at, 0);
	return at;
}

const char *core_missing(const struct core *c)
{
	return *c->missing ? c->missing : NULL;
}

const char *core_cut(const struct core *c)
{
	static char text[64];

	if (c->wants <= c->bytes)
		return NULL;
	snprintf(text, sizeof(text), "%llu of %llu bytes",
		 (unsigned long long)c->bytes, (unsigned long long)c->wants);
	return text;
}

const char *core_command(const struct core *c)
{
	return c->command;
}

pid_t core_pid(const struct core *c)
{
	return c->pid;
}

/* The first thread is the one that the signal came to. */
int core_signal(const struct core *c, int *tid)
{
	*tid = c->threads ? c->thread[0].pr_pid : 0;
	return c->threads ? c->thread[0].pr_cursig : 0;
}

/*
 * A system call that did not wait has its result by now. One that did was ended by
 * the death of the process: with EINTR, or as one that is to be made again.
 */
static bool waited(const struct elf_prstatus *p)
{
	long result = (long)p->pr_reg[RAX];

	return (long)p->pr_reg[ORIG_RAX] >= 0 &&
	       (result == -EINTR || (result <= -512 && result >= -516));
}

/* Of the module: a carrier that waits for a processor. */
static bool waited_for_processor(const struct elf_prstatus *p)
{
	return p->pr_reg[ORIG_RAX] == SYS_ioctl &&
	       _IOC_TYPE(p->pr_reg[RSI]) == _IOC_TYPE(FIBER_IOC_ACQUIRE);
}

enum state core_thread_state(const struct core *c, int tid)
{
	for (size_t i = 0; i < c->threads; i++)
		if (c->thread[i].pr_pid == tid && waited(&c->thread[i]))
			return waited_for_processor(&c->thread[i]) ? S_READY :
								     S_BLOCKED;
	return S_RUNNING;
}
