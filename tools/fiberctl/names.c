// SPDX-License-Identifier: GPL-2.0-only
/*
 * names.c - functions, lines and stacks, by elfutils' libdw
 *
 * A fiber that does not run is shown to libdw as a thread with the registers that it
 * goes on with. Threads are stopped (ptrace) one at a time, while they are read.
 */
#include <elfutils/libdwfl.h>
#include <stdlib.h>
#include <string.h>

#include "fiberctl.h"

#define CACHED	4096			/* a power of two */

struct names {
	Dwfl *fibers, *threads;		/* threads: NULL until wanted */
	const struct core *core;
	pid_t pid;
	bool attached;
	struct target *t;		/* of the fiber that is looked at */
	const struct seen *s;
	struct {
		uint64_t addr;
		char *name;
	} cache[CACHED];
};

static char *no_path;
static const Dwfl_Callbacks callbacks = {
	.find_elf = dwfl_linux_proc_find_elf,
	.find_debuginfo = dwfl_standard_find_debuginfo,
	.debuginfo_path = &no_path,
};

static Dwfl *report(const struct names *n)
{
	Dwfl *d = n->core ? NULL : dwfl_begin(&callbacks);

	if (n->core)
		return core_report(n->core);
	if (d && !dwfl_linux_proc_report(d, n->pid) &&
	    !dwfl_report_end(d, NULL, NULL))
		return d;
	if (d)
		dwfl_end(d);
	return NULL;
}

struct names *names_open(const struct target *t)
{
	struct names *n = calloc(1, sizeof(*n));

	unsetenv("DEBUGINFOD_URLS");	/* nothing is fetched */
	if (n) {
		n->core = t->core;
		n->pid = t->pid;
		n->fibers = report(n);
	}
	return n;
}

void names_close(struct names *n)
{
	if (!n)
		return;
	if (n->fibers)
		dwfl_end(n->fibers);
	if (n->threads)
		dwfl_end(n->threads);
	for (int i = 0; i < CACHED; i++)
		free(n->cache[i].name);
	free(n);
}

/* ---- names ---- */

Dwfl_Module *names_module(struct names *n, uint64_t pc)
{
	return n->fibers ? dwfl_addrmodule(n->fibers, pc) : NULL;
}

static char *find_name(struct names *n, uint64_t addr)
{
	Dwfl_Module *m = names_module(n, addr);
	const char *name = m ? dwfl_module_addrname(m, addr) : NULL;
	char text[32], *copy = name ? strdup(name) : NULL;

	if (copy)
		printable(copy);
	if (name)
		return copy;
	snprintf(text, sizeof(text), "0x%llx", (unsigned long long)addr);
	return strdup(text);
}

const char *names_function(struct names *n, uint64_t addr)
{
	size_t i = (addr ^ addr >> 12) % CACHED;

	if (!n->cache[i].name || n->cache[i].addr != addr) {
		free(n->cache[i].name);
		n->cache[i].addr = addr;
		n->cache[i].name = find_name(n, addr);
	}
	return n->cache[i].name ? n->cache[i].name : "?";
}

const char *names_line(struct names *n, uint64_t pc)
{
	Dwfl_Module *m = names_module(n, pc);
	Dwfl_Line *line = m ? dwfl_module_getsrc(m, pc) : NULL;
	static char text[512];
	const char *file;
	int number = 0;

	file = line ? dwfl_lineinfo(line, NULL, &number, NULL, NULL, NULL) : NULL;
	if (!file)
		return "";
	snprintf(text, sizeof(text), "%s:%d", file, number);
	printable(text);
	return text;
}

/* ---- stacks ---- */

static pid_t next_thread(Dwfl *d, void *arg, void **thread)
{
	struct names *n = arg;

	(void)d;
	if (*thread)
		return 0;
	*thread = n;
	return n->pid;
}

static bool get_thread(Dwfl *d, pid_t tid, void *arg, void **thread)
{
	(void)d;
	(void)tid;
	*thread = arg;
	return true;
}

static bool read_word(Dwfl *d, Dwarf_Addr addr, Dwarf_Word *v, void *arg)
{
	struct names *n = arg;
	uint64_t word;

	(void)d;
	/* The stack alone: what lies elsewhere is not the fiber's. */
	if (addr < n->s->sp || addr + 8 > n->s->high ||
	    target_read(n->t, addr, &word, sizeof(word)))
		return false;
	*v = word;
	return true;
}

static bool set_registers(Dwfl_Thread *thread, void *arg)
{
	struct names *n = arg;
	const Dwarf_Word bp_sp[2] = { n->s->bp, n->s->sp };

	if (!dwfl_thread_state_registers(thread, 6, 2, bp_sp))
		return false;
	dwfl_thread_state_register_pc(thread, n->s->ip);
	return true;
}

static const Dwfl_Thread_Callbacks fiber_callbacks = {
	.next_thread = next_thread,
	.get_thread = get_thread,
	.memory_read = read_word,
	.set_initial_registers = set_registers,
};

struct frames {
	uint64_t *pc;
	int count;
};

static int frame(Dwfl_Frame *f, void *arg)
{
	struct frames *k = arg;
	bool activation;
	Dwarf_Addr pc;

	if (!dwfl_frame_pc(f, &pc, &activation) || !pc)
		return DWARF_CB_ABORT;
	/* Behind a call may be another function. */
	k->pc[k->count] = pc - !(activation || !k->count);
	return ++k->count < NAMES_FRAMES ? DWARF_CB_OK : DWARF_CB_ABORT;
}

static bool attach_fibers(struct names *n)
{
	if (n->fibers && !n->attached)
		n->attached = dwfl_attach_state(n->fibers, NULL, n->pid,
						&fiber_callbacks, n);
	return n->attached;
}

static bool attach_threads(struct names *n)
{
	if (n->threads)
		return true;
	n->threads = report(n);
	if (!n->threads)
		return false;
	return n->core ? dwfl_core_file_attach(n->threads,
					       core_elf(n->core)) >= 0 :
			 !dwfl_linux_proc_attach(n->threads, n->pid, false);
}

int names_stack(struct names *n, struct target *t, const struct seen *s,
		uint64_t pc[NAMES_FRAMES])
{
	struct frames k = { pc, 0 };

	n->t = t;
	n->s = s;
	if (s->tid && attach_threads(n))
		dwfl_getthread_frames(n->threads, s->tid, frame, &k);
	if (!s->tid && attach_fibers(n))
		dwfl_getthread_frames(n->fibers, n->pid, frame, &k);
	return k.count;
}

/* A library that is linked statically is told by the names of its functions. */
static bool is_library(struct names *n, const struct target *t, uint64_t pc,
		       const char *name)
{
	Dwfl_Module *m = names_module(n, pc);
	const char *file;

	if (!m || m != names_module(n, t->root))
		return false;
	file = dwfl_module_info(m, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
	return (file && strstr(file, "libfiber.so")) ||
	       !strncmp(name, "fb_", 3) || !strncmp(name, "fiber_", 6);
}

const char *names_where(struct names *n, const struct target *t,
			const uint64_t *pc, int count)
{
	for (int i = 0; i < count; i++) {
		const char *name = names_function(n, pc[i]);

		if (strncmp(name, "0x", 2) && !is_library(n, t, pc[i], name))
			return name;
	}
	return "";
}
