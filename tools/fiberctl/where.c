// SPDX-License-Identifier: GPL-2.0-only
/*
 * where.c - the innermost function with a name that is not libfiber's, of very many
 *
 * names_stack() finds it too, in 30 us and more; ps of 100,000 fibers has 10 us for
 * each. But fibers wait in few places. What the call frame information says of one
 * return address is asked from libdw once, and kept as a rule:
 *
 *	frame's end = sp or bp, + offset
 *	return address: in the word below the end
 *	caller's sp = the end; its bp = bp, or what stands at the end + offset
 *
 * With those a stack is walked by additions and reads of a copy of its top, taken at
 * once. A frame with another kind of rule ends that, and names_stack() is asked.
 */
#include <dwarf.h>
#include <elfutils/libdw.h>
#include <elfutils/libdwfl.h>
#include <stdlib.h>
#include <string.h>

#include "fiberctl.h"

#define RULES	4096			/* a power of two */
#define WINDOW	1024
#define DEPTH	64

enum { BP = 6, SP = 7, RA = 16 };	/* in DWARF */

enum kind { NONE, NAMED, STEP, LAST, OTHER };

struct rule {
	uint64_t pc;
	enum kind kind;
	bool by_bp, keeps_bp;
	int64_t end, bp;		/* offsets: of the end, from the end */
	char *name;			/* NAMED */
};

struct where {
	struct names *n;
	struct target *t;
	struct rule rule[RULES];
	unsigned char top[WINDOW];	/* of the stack that is looked at */
	uint64_t top_at, top_size;
};

struct where *where_open(struct names *n, struct target *t)
{
	struct where *w = calloc(1, sizeof(*w));

	if (w) {
		w->n = n;
		w->t = t;
	}
	return w;
}

void where_close(struct where *w)
{
	for (int i = 0; w && i < RULES; i++)
		free(w->rule[i].name);
	free(w);
}

/* ---- rules ---- */

enum kept { UNKNOWN, LOST, SAME, SAVED };

/* SAVED: in the word at the frame's end + *offset. */
static enum kept kept(Dwarf_Frame *f, int r, int64_t *offset)
{
	Dwarf_Op mem[3], *op;
	size_t n;

	if (dwarf_frame_register(f, r, mem, &op, &n))
		return UNKNOWN;
	if (!n)
		return op ? LOST : SAME;
	*offset = n == 2 ? (int64_t)op[1].number : 0;
	if (op[0].atom != DW_OP_call_frame_cfa || n > 2 ||
	    (n == 2 && op[1].atom != DW_OP_plus_uconst))
		return UNKNOWN;
	return SAVED;
}

static bool frame_end(struct rule *r, Dwarf_Frame *f)
{
	Dwarf_Op *op;
	size_t n;

	if (dwarf_frame_cfa(f, &op, &n) || n != 1 ||
	    op->atom != DW_OP_bregx || (op->number != BP && op->number != SP))
		return false;
	r->by_bp = op->number == BP;
	r->end = (int64_t)op->number2;
	return true;
}

static enum kind read_rule(struct rule *r, Dwarf_Frame *f)
{
	int64_t at = 0;
	enum kept ra = kept(f, RA, &at), bp = kept(f, BP, &r->bp);

	if (ra == LOST)
		return LAST;
	r->keeps_bp = bp == SAME;
	return ra == SAVED && at == -8 && (bp == SAME || bp == SAVED) &&
	       frame_end(r, f) ? STEP : OTHER;
}

static void find_rule(struct where *w, struct rule *r, uint64_t pc)
{
	const char *name = names_where(w->n, w->t, &pc, 1);
	Dwarf_Frame *f;
	Dwarf_Addr bias;
	Dwarf_CFI *cfi;
	Dwfl_Module *m;

	free(r->name);
	*r = (struct rule){ .pc = pc, .kind = OTHER };
	if (*name) {
		r->name = strdup(name);
		r->kind = r->name ? NAMED : OTHER;
		return;
	}
	m = names_module(w->n, pc);
	cfi = m ? dwfl_module_eh_cfi(m, &bias) : NULL;
	if (!cfi || dwarf_cfi_addrframe(cfi, pc - bias, &f))
		return;
	r->kind = read_rule(r, f);
	free(f);
}

static const struct rule *rule_of(struct where *w, uint64_t pc)
{
	struct rule *r = &w->rule[(pc ^ pc >> 12) % RULES];

	if (r->kind == NONE || r->pc != pc)
		find_rule(w, r, pc);
	return r;
}

/* ---- one stack ---- */

static void take_top(struct where *w, const struct seen *s)
{
	w->top_at = s->sp;
	w->top_size = s->high - s->sp < WINDOW ? s->high - s->sp : WINDOW;
	if (target_read(w->t, w->top_at, w->top, w->top_size))
		w->top_size = 0;
}

static uint64_t word_at(const struct where *w, uint64_t addr)
{
	uint64_t v;

	if (addr - w->top_at > w->top_size || w->top_size < sizeof(v) ||
	    addr - w->top_at > w->top_size - sizeof(v))
		return target_word(w->t, addr);
	memcpy(&v, w->top + (addr - w->top_at), sizeof(v));
	return v;
}

static const char *all_frames(struct where *w, const struct seen *s)
{
	static uint64_t pc[NAMES_FRAMES];
	int n = names_stack(w->n, w->t, s, pc);

	return names_where(w->n, w->t, pc, n);
}

/* Where a blocked thread has entered the kernel; bp is not told. */
static bool entered(const struct where *w, struct seen *s)
{
	unsigned long long sp, ip;
	char path[64], text[256];
	const char *at;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/task/%d/syscall",
		 (int)w->t->pid, s->tid);
	f = fopen(path, "re");
	if (!f || !fgets(text, sizeof(text), f))
		*text = 0;
	if (f)
		fclose(f);
	/* The last two words */
	at = strrchr(text, ' ');
	if (!at || sscanf(at, "%llx", &ip) != 1)
		return false;
	while (at > text && *--at != ' ')
		;
	if (sscanf(at, "%llx", &sp) != 1)
		return false;
	s->sp = sp;
	s->ip = ip;
	s->bp = 0;
	return true;
}

static const char *walk(struct where *w, const struct seen *s)
{
	uint64_t sp = s->sp, bp = s->bp, pc = s->ip, end;

	for (int i = 0; i < DEPTH && pc; i++) {
		const struct rule *r = rule_of(w, i ? pc - 1 : pc);

		if (r->kind == NAMED)
			return r->name;
		if (r->kind == LAST)
			return "";
		end = (r->by_bp ? bp : sp) + (uint64_t)r->end;
		if (r->kind == OTHER || end <= sp || end > s->high)
			return s->tid ? "" : all_frames(w, s);
		if (!r->keeps_bp)
			bp = word_at(w, end + (uint64_t)r->bp);
		pc = word_at(w, end - 8);
		sp = end;
	}
	return "";
}

const char *where_is(struct where *w, const struct seen *s)
{
	struct seen at = *s;

	if (!w || s->state == S_RUNNING || (s->tid && !entered(w, &at)) ||
	    !at.ip || at.sp >= at.high)
		return "";
	take_top(w, &at);
	return walk(w, &at);
}
