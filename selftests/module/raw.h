/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * raw.h - /dev/fiber without libfiber, for the module's own tests
 *
 * One group a process. A carrier is a thread that called raw_attach(); its
 * "fiber" is the code it runs between raw_enter() and raw_leave(). There are no
 * context switches: who waits, waits in the module.
 *
 * Exclusion: raw_exclude() may be called anywhere in fiber code. It looks which
 * processor the carrier owns and holds that processor's word for a moment. A
 * fiber that runs without a processor, or two with one, are counted.
 */
#ifndef RAW_H
#define RAW_H

#include <errno.h>
#include <linux/fiber.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#define RAW_PAGE	4096UL
#ifndef FIBER_SLOW
#define FIBER_SLOW	1	/* by how much a debug kernel is slower: debug.sh */
#endif
#define RAW_PATIENCE	(20 * FIBER_SLOW) /* s; emulation is slow, a hang is longer */

/* Code in this section may be preempted. It calls nothing outside. */
#define RAW_TEXT	__attribute__((section("raw_text"), noinline, noclone))

#define LOAD(x)		__atomic_load_n(&(x), __ATOMIC_SEQ_CST)
#define STORE(x, v)	__atomic_store_n(&(x), (v), __ATOMIC_SEQ_CST)
#define ADD(x, v)	__atomic_add_fetch(&(x), (v), __ATOMIC_SEQ_CST)

/* Wait until cond holds; false if it does not for RAW_PATIENCE seconds. */
#define RAW_UNTIL(cond)	RAW_UNTIL_FOR(RAW_PATIENCE, cond)
#define RAW_UNTIL_FOR(seconds, cond) ({					\
	uint64_t raw_end = raw_now() + (seconds) * 1000000000ULL;	\
	bool raw_met;							\
									\
	while (!(raw_met = (cond)) && raw_now() < raw_end)		\
		raw_sleep(500);						\
	raw_met;							\
})

struct raw_options {
	uint32_t processors;		/* 0: 1 */
	uint64_t quantum_ns, grace_ns;
	bool preempt;
	const void *preempt_entry;	/* NULL: raw_preempt */
	const void *return_entry, *return_end;	/* NULL: raw_return */
	uint32_t max_carriers;		/* 0: 64 */
	uint32_t min_spares;
};

/* From one look under the module's lock. */
struct raw_stats {
	uint64_t owned, idle, flight, carriers, waiting, spares;
	uint64_t blocks, handoffs, grace_returns, edge_returns, returns;
	uint64_t preempts, refused, wakes, violations;
};

extern int raw_fd;
extern struct fiber_setup_args raw_args;
extern volatile struct fiber_info_page *raw_info;
extern volatile struct fiber_hint_page *raw_hint;
extern __thread volatile struct fiber_carrier_page *raw_page;
extern __thread uint32_t raw_index;

/* Whoever broke the exclusion, and how; 0 is what every test wants. */
extern unsigned int raw_violations;
extern char raw_violation[128];
extern unsigned int raw_acquire_errors;	/* RETURN trampolines that failed */
extern int raw_acquire_error;

uint64_t raw_now(void);
void raw_sleep(unsigned int us);
int raw_open(void);
int raw_ioctl(int fd, unsigned long command, void *arg);
void raw_good_setup(struct fiber_setup_args *a, const struct raw_options *o);
int raw_start(const struct raw_options *o);
void raw_map(void);
volatile struct fiber_processor_page *raw_processor(uint32_t i);
volatile struct fiber_carrier_page *raw_carrier(uint32_t i);

int raw_attach(void);
int raw_detach(void);
int raw_wait(uint32_t flags, uint64_t deadline, uint32_t *event);
int raw_own(uint32_t flags);
void raw_enter(void);
void raw_leave(void);
void raw_takeover(uint32_t bits);
void raw_exclude(void);

int raw_stats(struct raw_stats *s);
/* One counter of fdinfo, without "fiber-"; ~0: there is none. */
uint64_t raw_stat(const char *name);
/* Prints where the processors and all threads are: for a test that hangs. */
void raw_tell(void);
int raw_refcnt(void);
bool raw_parameter(const char *name, const char *value);
pthread_t raw_thread(void *(*fn)(void *), void *arg);
/* Is that thread of ours asleep in system call nr? 0 is no thread. */
bool raw_asleep_in(pid_t tid, long nr);
pid_t raw_tid(void);
/* Waits for a child: its exit status, or 1000 + the signal that ended it. */
int raw_exit_code(pid_t pid);
/* Writes a word to a file of /sys or /proc. */
bool raw_put(const char *path, const char *text);
/* Reads the start of such a file; 0 or -errno. */
int raw_get(const char *path, char *text, size_t size);
/* Does /proc/cpuinfo have it? */
bool raw_cpu_flag(const char *name);
/* References to the module once earlier tests are gone. */
int raw_base(void);

/* raw.S: the trampolines */
extern char raw_return[], raw_return_end[], raw_preempt[];
/* The first, where a signal comes before it has taken its slot, so many times. */
extern char raw_return_trapped[];
extern unsigned int raw_traps;

/* raw.S: what a system call or a loop finds in its registers afterwards */
struct raw_regs {
	uint64_t rax, rbx, rcx, rdx, rsi, rdi, rbp, r8;
	uint64_t r9, r10, r11, r12, r13, r14, r15, flags;
	uint32_t mxcsr, cw;
	uint64_t rsp_moved;			/* out: 0 */
	uint64_t zone[16];			/* red zone */
	uint8_t vector[16][32] __attribute__((aligned(32)));
};
#define RAW_FLAGS	0xcd5UL			/* CF PF AF ZF SF DF OF */

/* One system call, flags and registers as in *in; *out: as it came back. */
void raw_regs_syscall(const struct raw_regs *in, struct raw_regs *out);
/* The same around in->rcx turns of an empty loop; preemptible. */
void raw_regs_spin(const struct raw_regs *in, struct raw_regs *out);
extern char raw_regs_syscall_end[];
extern int raw_avx;
void raw_regs_fill(struct raw_regs *r, uint64_t seed);
/* NULL, or the name of the first thing that differs. */
const char *raw_regs_differ(const struct raw_regs *a, const struct raw_regs *b);

#endif
