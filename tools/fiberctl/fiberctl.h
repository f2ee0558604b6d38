/* SPDX-License-Identifier: GPL-2.0-only */
/* fiberctl.h - what the files of fiberctl share */
#ifndef FIBERCTL_H
#define FIBERCTL_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

#include "../../lib/debug.h"

enum { EXIT_FINE, EXIT_FAILED, EXIT_USAGE };

/* ---- say.c ---- */
/* What the last failed call was about: a sentence, without a full stop. */
const char *target_error(void);
int target_fail(int r, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
/* What another process says may go to a terminal: no control characters. */
void printable(char *s);

/* ---- symbol.c ---- */
/* Where a file would have the root; *first: where its first page would be. */
struct Elf;
uint64_t symbol_in_elf(struct Elf *elf, uint64_t *first);

/* ---- target.c: another process, or a core file ---- */

#define TARGET_BATCH	512
#define TARGET_TIMES	256		/* bytes of fiber_debug.times, at most */

struct core;

struct target {
	pid_t pid;
	char what[300];			/* it, in messages */
	struct core *core;		/* NULL: a process */
	uint64_t root;			/* address of d in it */
	struct fiber_debug d;
	uint64_t now, started;		/* CLOCK_MONOTONIC ns; now 0: not known */
	const char *why[64];		/* words; owned */
	bool holes;			/* some memory with fibers is missing */
	bool pools;			/* it has some, beside the default one */
};

/*
 * Find the library in a process. 0, or a negative errno value with the reason in
 * target_error(): -ESRCH (no such process, or it is gone), -EPERM, -ENOENT (it has
 * no fibers), -EPROTO (a library of another kind).
 */
int target_open(struct target *t, pid_t pid);
/* The same in a core file; program: NULL, or where its program is now. */
int target_open_core(struct target *t, const char *path, const char *program);
void target_close(struct target *t);
/* A word for its backend. */
const char *target_backend(const struct target *t);
/* The name of a process; "": it has none, or is gone. */
void command_of(pid_t pid, char *text, size_t size);
/* Read n bytes at addr. 0, -EFAULT (not mapped), -ESRCH, -EPERM. */
int target_read(const struct target *t, uint64_t addr, void *to, size_t n);
/* size bytes at each of n addresses, up to TARGET_BATCH; 0 for what is not there. */
int target_gather(const struct target *t, const uint64_t *addr, size_t n,
		  void *to, size_t size);
/* Numbers of 8, 4 bytes in the struct at addr; 0 where nothing can be read. */
uint64_t target_word(const struct target *t, uint64_t addr);
uint32_t target_half(const struct target *t, uint64_t addr);
/* How many are in use. */
uint32_t target_processors(const struct target *t);
/* Those that have counters: of all pools, and of some that have ended. */
uint32_t target_all_processors(const struct target *t);
/* The name of a pool by its number: "", 0: the default one. */
void target_pool_name(const struct target *t, unsigned int i, char *name,
		      size_t size);
/* A word of the info pages of all pools, added up. */
uint32_t target_info(const struct target *t, uint32_t member);

/* ---- fibers.c: its fibers ---- */

enum state { S_NEW, S_READY, S_RUNNING, S_PARKED, S_BLOCKED };

struct seen {
	uint64_t id;
	bool library;
	char name[32];
	char pool[32];			/* "": the default one */
	enum state state;
	const char *why;		/* a word, or "" */
	uint64_t for_ns;
	uint64_t high;			/* end of its stack */
	uint64_t sp, bp, ip;		/* if it is on no thread */
	uint64_t stack;			/* bytes in use; 0: not known */
	uint64_t entry;
	int tid;			/* on that thread; or 0 */
	int locked_tid;			/* locked to that thread; or 0 */
	int processor;			/* it runs on; or -1 */
	bool timed;
	uint64_t cpu_ns;		/* it used; if timed */
};

/* fn for each live fiber; not 0: ends the walk, and is returned. */
int fibers_walk(struct target *t, int (*fn)(const struct seen *s, void *arg),
		void *arg);
/* The same for those that carriers stand in; nothing is known of their stacks. */
int fibers_on_carriers(struct target *t,
		       int (*fn)(const struct seen *s, void *arg), void *arg);
const char *state_name(enum state s);

/* ---- runners.c ---- */
struct runner {				/* on one processor */
	uint64_t pass;
	struct seen s;			/* id 0: nobody that is seen */
};
/* Who runs on each of so many processors. 0, or a negative errno value. */
int runners_note(struct target *t, struct runner *r, uint32_t nproc);
/* The same one, and no other in between. */
bool runner_stayed(const struct runner *before, const struct runner *after);

/* ---- core.c: a core file; owned by the target ---- */
struct core *core_open(const char *path, const char *program);
void core_close(struct core *c);
/* 0, or -EFAULT: it is not there. */
int core_read(const struct core *c, uint64_t addr, void *to, size_t n);
/* Address of the root; or 0. */
uint64_t core_symbol(const struct core *c);
struct Elf *core_elf(const struct core *c);
/* For libdw: the files of the program; the caller's, or NULL. */
struct Dwfl *core_report(const struct core *c);
/* A file that is not there, or is another than it was; or NULL. */
const char *core_missing(const struct core *c);
/* "so many of so many bytes"; NULL: it is whole. */
const char *core_cut(const struct core *c);
const char *core_command(const struct core *c);
pid_t core_pid(const struct core *c);
/* The signal that ended it, or 0; *tid: the thread that got it. */
int core_signal(const struct core *c, int *tid);
/* S_BLOCKED, S_RUNNING; S_READY: it waited for a processor. */
enum state core_thread_state(const struct core *c, int tid);

/* ---- names.c: addresses and stacks, by libdw ---- */
#define NAMES_FRAMES	256
struct names;
struct names *names_open(const struct target *t);
void names_close(struct names *n);
/* "function" or "0x..."; valid until the next call. */
const char *names_function(struct names *n, uint64_t addr);
/*
 * The frames of a fiber, the innermost first: how many, 0: it cannot be read. A
 * thread that it is on is stopped meanwhile.
 */
int names_stack(struct names *n, struct target *t, const struct seen *s,
		uint64_t pc[NAMES_FRAMES]);
/* The innermost function that has a name and is not libfiber's; or "". */
const char *names_where(struct names *n, const struct target *t,
			const uint64_t *pc, int count);
/* "file:line", or ""; valid until the next call. */
const char *names_line(struct names *n, uint64_t pc);

/* A module of libdw; or NULL. */
struct Dwfl_Module *names_module(struct names *n, uint64_t pc);

/* ---- where.c: what names_where() says, of very many ---- */
struct where;
struct where *where_open(struct names *n, struct target *t);
void where_close(struct where *w);
/*
 * Of a fiber that is parked, ready or blocked; else "". Stops nothing: of one that is
 * blocked it is where its thread has entered the kernel. Valid until the next call.
 */
const char *where_is(struct where *w, const struct seen *s);

/* ---- list.c: fibers for the reader ---- */
struct list {
	struct names *n;
	struct where *w;
	struct target *t;
	bool json, any;
	uint64_t id;			/* only this one; 0: all */
	uint64_t count;
	struct seen *seen;		/* for stacks: all of them first */
	size_t room;
};

int usage(const char *how);
void list_between(struct list *k);
/* Without the closing brace: more may follow. */
void list_json(struct list *k, const struct seen *s, const char *where);
/* A line for each fiber, and the one above them. */
#define LIST_WIDTH	300
void list_head(char text[LIST_WIDTH], const struct target *t);
void list_row(char text[LIST_WIDTH], struct list *k, const struct seen *s,
	      const char *where);
/* A callback of fibers_walk for k: keeps those that are wanted. */
int list_keep(const struct seen *s, void *k);
/* Those kept, with where they are. */
void list_stacks(struct list *k);

/* ---- stats.c ---- */
/* Sums over processors and carriers. */
enum { SPAWNED, ENDED, SWITCHES, STEALS, PREEMPTIONS, HANDOFFS, RETURNS, SUMS };
void stats_sum(const struct target *t, uint64_t sum[SUMS]);

/* ---- json.c ---- */
void json_string(const char *s);

/* ---- commands; argv[0] is the command ---- */
int cmd_ps(int argc, char **argv, bool json);
int cmd_top(int argc, char **argv, bool json);
int cmd_stack(int argc, char **argv, bool json);
int cmd_dump(int argc, char **argv, bool json);
int cmd_stats(int argc, char **argv, bool json);
int cmd_check(int argc, char **argv, bool json);
int cmd_trace(int argc, char **argv, bool json);
/* A pid, or -1 with a message. */
pid_t parse_pid(const char *s);
/* Say target_error(); EXIT_FAILED. */
int complain(void);

#endif
