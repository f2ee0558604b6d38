/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * fuzz.h - a fuzzer of /dev/fiber: ioctl, mmap, and what shares its pages
 *
 * program.c  a program is a short list of calls for a few threads; as text it
 *            is a file of the corpus
 * calls.c    what each call does; any argument is valid, most make sense
 * execute.c  runs one program in a process of its own, with a hostile writer
 * cover.c    KCOV: which edges of the module a program has reached
 * fuzz.c     picks programs, keeps those that reach something new, judges
 */
#ifndef FUZZ_H
#define FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { MAX_CALLS = 40, THREADS = 4, FILES = 4, MAPS = 12 };

/* How a child tells its parent what it found. */
enum { EXIT_FINE, EXIT_VIOLATION = 77 };

struct call {
	uint8_t thread, op, fd;
	uint32_t a, b, c;
};

struct program {
	uint32_t writer;	/* 0: none, 1: flags and counters, 2: every word */
	uint32_t together;	/* 1: threads do not wait for each other */
	uint32_t kill_us;	/* SIGKILL then; 0: never */
	uint32_t nr;
	struct call call[MAX_CALLS];
};

/* program.c */
uint64_t fuzz_random(uint64_t *state);
void program_generate(struct program *p, uint64_t *state);
void program_mutate(struct program *p, const struct program *other,
		    uint64_t *state);
size_t program_print(const struct program *p, char *text, size_t size);
bool program_parse(struct program *p, const char *text);
uint64_t program_hash(const struct program *p);

/* calls.c */
struct op {
	const char *name;
	void (*run)(const struct call *c);
	unsigned int weight;	/* how often it is generated */
};
extern const struct op fuzz_op[];
extern const unsigned int fuzz_ops;
int fuzz_op_find(const char *name);
struct fuzz_map {
	volatile uint32_t *base;
	uint32_t pages;
	uint32_t kind;		/* MAP_* below */
};
enum { MAP_INFO, MAP_HINT, MAP_PROCESSORS, MAP_CARRIERS, MAP_KINDS };
extern struct fuzz_map fuzz_map[MAPS];
extern int fuzz_file[FILES];
extern int fuzz_tid[THREADS];
uint64_t fuzz_value(uint32_t which);

/* execute.c */
void execute_program(const struct program *p, uint64_t seed)
	__attribute__((noreturn));
bool execute_try(void (*fn)(const void *), const void *arg);

/* cover.c */
bool cover_open(void);
void cover_begin(unsigned int thread);
void cover_reset(void);
unsigned int cover_collect(bool keep);
unsigned int cover_edges(void);

#endif
