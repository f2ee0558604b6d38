// SPDX-License-Identifier: GPL-2.0-only
/* runners.c - who runs on each processor, and whether it is the same as before */
#include "fiberctl.h"

struct notes {
	struct runner *r;
	uint32_t nproc;
};

static int note(const struct seen *s, void *arg)
{
	const struct notes *n = arg;

	if (s->state == S_RUNNING && s->processor >= 0 &&
	    (uint32_t)s->processor < n->nproc)
		n->r[s->processor].s = *s;
	return 0;
}

int runners_note(struct target *t, struct runner *r, uint32_t nproc)
{
	uint64_t all = target_word(t, t->d.runtime + t->d.runtime_at.processors);
	struct notes n = { r, nproc };

	for (uint32_t i = 0; i < nproc; i++)
		r[i].pass = target_word(t, all + t->d.processor.pass +
					(uint64_t)i * t->d.processor.size);
	return fibers_on_carriers(t, note, &n);
}

/* Every switch is a pass. */
bool runner_stayed(const struct runner *before, const struct runner *after)
{
	return before->s.id && before->s.id == after->s.id &&
	       before->pass == after->pass;
}
