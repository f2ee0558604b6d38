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
#define FRAMES	256

struct names {
	Dwfl *fibers, *threads;		/* threads: NULL until wanted */
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

static Dwfl *report(pid_t pid)
{
	Dwfl *d = dwfl_begin(&callbacks);

	if (d && !dwfl_linux_proc_report(d, pid) &&
	    !dwfl_report_end(d, NULL, NULL))
		return d;
	if (d)
		dwfl_end(d);
	return NULL;
}

struct names *names_open(pid_t pid)
{
	struct names *n = calloc(1, sizeof(*n));

	unsetenv("DEBUGINFOD_URLS");	/* nothing is fetched */
	if (n) {
		n->pid = pid;
		n->fibers = report(pid);
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

static char *find_name(struct names *n, uint64_t addr)
{
	Dwfl_Module *m = n->fibers ? dwfl_addrmodule(n->fibers, addr) : NULL;
	const char *name = m ? dwfl_module_addrname(m, addr) : NULL;
	char text[32];

	if (name)
		return strdup(name);
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
	Dwfl_Module *m = n->fibers ? dwfl_addrmodule(n->fibers, pc) : NULL;
	Dwfl_Line *line = m ? dwfl_module_getsrc(m, pc) : NULL;
	static char text[512];
	const char *file;
	int number = 0;

	file = line ? dwfl_lineinfo(line, NULL, &number, NULL, NULL, NULL) : NULL;
	if (!file)
		return "";
	snprintf(text, sizeof(text), "%s:%d", file, number);
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
	struct names *n;
	void (*fn)(struct names *n, uint64_t pc, bool first, void *arg);
	void *arg;
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
	k->fn(k->n, pc - !(activation || !k->count), !k->count, k->arg);
	return ++k->count < FRAMES ? DWARF_CB_OK : DWARF_CB_ABORT;
}

static int walk(Dwfl *d, pid_t tid, struct frames *k)
{
	dwfl_getthread_frames(d, tid, frame, k);
	return k->count ? 0 : -1;
}

int names_stack(struct names *n, struct target *t, const struct seen *s,
		void (*fn)(struct names *n, uint64_t pc, bool first, void *arg),
		void *arg)
{
	struct frames k = { n, fn, arg, 0 };

	n->t = t;
	n->s = s;
	if (!n->fibers)
		return -1;
	if (!n->attached &&
	    !dwfl_attach_state(n->fibers, NULL, n->pid, &fiber_callbacks, n))
		return -1;
	n->attached = true;
	return walk(n->fibers, n->pid, &k);
}

int names_thread(struct names *n, int tid,
		 void (*fn)(struct names *n, uint64_t pc, bool first, void *arg),
		 void *arg)
{
	struct frames k = { n, fn, arg, 0 };

	if (!n->threads) {
		n->threads = report(n->pid);
		if (!n->threads ||
		    dwfl_linux_proc_attach(n->threads, n->pid, false))
			return -1;
	}
	return walk(n->threads, tid, &k);
}
