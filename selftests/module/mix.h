/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * mix.h - a crowd of carriers that do everything at once, checked all the time
 */
#ifndef MIX_H
#define MIX_H

#include "raw.h"

struct mix_options {
	unsigned int seconds;		/* 0: until mix_stop is set */
	unsigned int workers;
	unsigned int steps;		/* longer until so many, with patience */
	bool signals, forks;
	bool execs;			/* of this program, with MIX_NOTHING */
	bool faults;			/* that a thread of ours serves, later */
};

#define MIX_NOTHING	"nothing"	/* as argument: main ends at once */

struct mix_result {
	uint64_t steps, signals, threads, faults, execs;
	uint64_t samples, bad_sums;	/* of owned + idle + flight */
	uint64_t lazy;			/* idle ones while carriers waited */
	unsigned int spares;
	bool stuck;			/* a worker did not end */
	struct raw_stats stats;		/* when all workers had ended */
};

extern unsigned int mix_stop;

/* The group must be set up, with preemption. 0 or -errno. */
int mix_run(const struct mix_options *o, struct mix_result *r);

/*
 * A crowd of this process's own, for somebody else to do things to: two
 * processors, six workers; for so long, or (0) until SIGTERM. Ends the process:
 * with MIX_WELL if nothing was wrong.
 */
#define MIX_WELL	7
_Noreturn void mix_child(unsigned int seconds);

/* Burns turns of a loop that may be preempted. */
void mix_spin(uint64_t turns);

#endif
