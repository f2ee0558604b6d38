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

/* ---- target.c: another process ---- */

struct target {
	pid_t pid;
	struct fiber_debug d;
	uint64_t now, started;		/* CLOCK_MONOTONIC ns */
	const char *why[64];		/* words; owned */
	size_t page;
};

/*
 * Find the library in a process. 0, or a negative errno value with the reason in
 * target_error(): -ESRCH (no such process, or it is gone), -EPERM, -ENOENT (it has
 * no fibers), -EPROTO (a library of another kind).
 */
int target_open(struct target *t, pid_t pid);
void target_close(struct target *t);
/* What the last failed call was about: a sentence, without a full stop. */
const char *target_error(void);
int target_fail(int r, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
/* Read n bytes at addr. 0, -EFAULT (not mapped), -ESRCH, -EPERM. */
int target_read(const struct target *t, uint64_t addr, void *to, size_t n);
/* Numbers of 8, 4 bytes in the struct at addr; 0 where nothing can be read. */
uint64_t target_word(const struct target *t, uint64_t addr);
uint32_t target_half(const struct target *t, uint64_t addr);

/* ---- fibers.c: its fibers ---- */

enum state { S_NEW, S_READY, S_RUNNING, S_PARKED, S_BLOCKED };

struct seen {
	uint64_t id;
	bool library;
	char name[32];
	enum state state;
	const char *why;		/* a word, or "" */
	uint64_t for_ns;
	uint64_t sp, bp, ip, high;	/* if it does not run */
	uint64_t stack;			/* bytes in use; 0: not known */
	uint64_t entry;
	int tid;			/* on that thread; or 0 */
	int locked_tid;			/* locked to that thread; or 0 */
};

/* fn for each live fiber; not 0: ends the walk, and is returned. */
int fibers_walk(struct target *t, int (*fn)(const struct seen *s, void *arg),
		void *arg);
const char *state_name(enum state s);

/* ---- names.c: addresses, by libdw ---- */
struct names;
struct names *names_open(pid_t pid);
void names_close(struct names *n);
/* "function" or "0x..."; valid until names_close. */
const char *names_function(struct names *n, uint64_t addr);
/* Calls fn for each frame of a fiber that does not run. 0, or it cannot. */
int names_stack(struct names *n, struct target *t, const struct seen *s,
		void (*fn)(struct names *n, uint64_t pc, bool first, void *arg),
		void *arg);
/* The same for a thread, which is stopped meanwhile. */
int names_thread(struct names *n, int tid,
		 void (*fn)(struct names *n, uint64_t pc, bool first, void *arg),
		 void *arg);
/* "file:line", or "". */
const char *names_line(struct names *n, uint64_t pc);

/* ---- json.c ---- */
void json_string(const char *s);

/* ---- commands; argv[0] is the command ---- */
int cmd_ps(int argc, char **argv, bool json);
int cmd_stack(int argc, char **argv, bool json);
int cmd_stats(int argc, char **argv, bool json);
int cmd_check(int argc, char **argv, bool json);
/* A pid, or -1 with a message. */
pid_t parse_pid(const char *s);
/* Say target_error(); EXIT_FAILED. */
int complain(void);

#endif
