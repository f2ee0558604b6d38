// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * unwind.c - the callers of a fiber that does not run
 *
 * Follows .eh_frame, as debuggers do, but in a signal handler too: it takes no lock
 * and no memory. _dl_find_object (glibc 2.35) finds the tables without the
 * loader's lock; without it there is the innermost frame only. The stack is read
 * by fb_os_peek into a window, since its fiber may run and end meanwhile, and
 * its memory be gone. What is found is then wrong, but bounded: each frame must
 * lie above the one before. Who looks at its own stack says so (u->own), and its
 * words are read where they are.
 *
 * Of DWARF's expressions only those are known that compilers make for frames whose
 * stack was aligned anew (a register, an offset, a load); any other ends the walk.
 */
#include <dlfcn.h>
#include <string.h>

#include "symbol.h"

enum { RBP = 6, RSP = 7, RA = 16, REGS = 17 };
enum { SAME, LOST, AT_CFA, IN_REG };	/* where the caller's register is */
#define DEPTH	4			/* of remembered rows */

#pragma weak _dl_find_object

struct row {
	uint8_t how[REGS];
	int64_t at[REGS];
	int cfa_reg;
	int64_t cfa_off;
	const uint8_t *expr, *expr_end;	/* in place of cfa_reg */
};

struct entry {
	const uint8_t *code, *code_end;	/* of the CIE */
	const uint8_t *own, *own_end;	/* of the FDE */
	uint64_t align;
	int64_t data_align;
	uintptr_t start;
};

/* ---- numbers ---- */

static uint64_t uleb(const uint8_t **p)
{
	uint64_t v = 0;
	unsigned int shift = 0;
	uint8_t b;

	do {
		b = *(*p)++;
		v |= shift < 64 ? (uint64_t)(b & 0x7f) << shift : 0;
		shift += 7;
	} while (b & 0x80);
	return v;
}

static int64_t sleb(const uint8_t **p)
{
	uint64_t v = 0;
	unsigned int shift = 0;
	uint8_t b;

	do {
		b = *(*p)++;
		v |= shift < 64 ? (uint64_t)(b & 0x7f) << shift : 0;
		shift += 7;
	} while (b & 0x80);
	if (shift < 64 && (b & 0x40))
		v |= ~(uint64_t)0 << shift;
	return (int64_t)v;
}

static uint64_t fixed(const uint8_t **p, unsigned int n)
{
	uint64_t v = 0;

	memcpy(&v, *p, n);
	*p += n;
	return v;
}

/* The only encodings that linkers make on x86-64: 32 bits to itself, or a pointer. */
static bool encoded(const uint8_t **p, unsigned int enc, uintptr_t *v)
{
	uintptr_t here = (uintptr_t)*p;

	if (enc == 0x1b)
		*v = here + (uintptr_t)(intptr_t)(int32_t)fixed(p, 4);
	else if (enc == 0x00)
		*v = fixed(p, 8);
	else
		return false;
	return true;
}

static size_t encoded_size(unsigned int enc)
{
	switch (enc & 7) {
	case 2: return 2;
	case 3: return 4;
	}
	return 8;
}

/* ---- finding the tables of an address ---- */

static bool read_cie(const uint8_t *p, struct entry *e, unsigned int *enc,
		     bool *has_z)
{
	const uint8_t *end, *aug;
	uint32_t n = (uint32_t)fixed(&p, 4);

	end = p + n;
	if (n == UINT32_MAX || fixed(&p, 4))
		return false;
	p++;				/* version: 1 or 3 differ not for RA 16 */
	aug = p;
	p += strlen((const char *)p) + 1;
	e->align = uleb(&p);
	e->data_align = sleb(&p);
	if (uleb(&p) != RA)
		return false;
	*enc = 0;
	*has_z = *aug == 'z';
	if (*has_z) {
		e->code = p;
		n = (uint32_t)uleb(&e->code);
		p = e->code;
		e->code += n;
		for (aug++; *aug; aug++) {
			if (*aug == 'R')
				*enc = *p++;
			else if (*aug == 'L')
				p++;
			else if (*aug == 'P')	/* a pointer */
				p += 1 + encoded_size(*p);
			else if (*aug != 'S' && *aug != 'B')
				return false;
		}
	} else {
		e->code = p;
	}
	e->code_end = end;
	return true;
}

/* The FDE at p, if it covers pc. */
static bool read_fde(const uint8_t *p, uintptr_t pc, struct entry *e)
{
	uint32_t n = (uint32_t)fixed(&p, 4);
	const uint8_t *end = p + n, *cie = p;
	uintptr_t range;
	unsigned int enc;
	bool has_z;

	if (!n || n == UINT32_MAX)
		return false;
	cie -= (uint32_t)fixed(&p, 4);
	if (!read_cie(cie, e, &enc, &has_z) || !encoded(&p, enc, &e->start))
		return false;
	range = fixed(&p, enc ? 4 : 8);
	if (has_z) {
		n = (uint32_t)uleb(&p);
		p += n;
	}
	e->own = p;
	e->own_end = end;
	return pc - e->start < range;
}

/* By the sorted table of .eh_frame_hdr. */
static bool find_entry(uintptr_t pc, struct entry *e)
{
	struct dl_find_object o;
	const uint8_t *p, *hdr;
	uintptr_t frames;
	uint32_t n, low = 0, high;
	const int32_t *table;

	if (!_dl_find_object || _dl_find_object((void *)pc, &o) ||
	    !o.dlfo_eh_frame)
		return false;
	hdr = o.dlfo_eh_frame;
	p = hdr + 4;
	if (hdr[0] != 1 || hdr[2] != 0x03 || hdr[3] != 0x3b ||
	    !encoded(&p, hdr[1], &frames))
		return false;
	n = (uint32_t)fixed(&p, 4);
	table = (const int32_t *)p;
	for (high = n; low < high;) {
		uint32_t mid = (low + high) / 2;

		if ((uintptr_t)hdr + (uintptr_t)(intptr_t)table[2 * mid] <= pc)
			low = mid + 1;
		else
			high = mid;
	}
	return low && read_fde(hdr + table[2 * low - 1], pc, e);
}

/* ---- the program of a frame ---- */

static void set(struct row *r, uint64_t reg, unsigned int how, int64_t at)
{
	if (reg < REGS) {
		r->how[reg] = (uint8_t)how;
		r->at[reg] = at;
	}
}

/* One instruction beyond the commonest; false: not known. */
static bool rare(struct row *r, unsigned int op, const uint8_t **p,
		 const struct entry *e)
{
	uint64_t reg, n;

	switch (op) {
	case 0x05:			/* offset_extended */
		reg = uleb(p);
		set(r, reg, AT_CFA, (int64_t)uleb(p) * e->data_align);
		return true;
	case 0x07:			/* undefined */
		set(r, uleb(p), LOST, 0);
		return true;
	case 0x06: case 0x08:		/* restore_extended, same_value */
		set(r, uleb(p), SAME, 0);
		return true;
	case 0x09:			/* register */
		reg = uleb(p);
		set(r, reg, IN_REG, (int64_t)uleb(p));
		return true;
	case 0x0f:			/* def_cfa_expression */
		n = uleb(p);
		r->expr = *p;
		r->expr_end = *p += n;
		return true;
	case 0x10: case 0x16:		/* expression, val_expression */
		set(r, uleb(p), LOST, 0);
		n = uleb(p);
		*p += n;
		return true;
	case 0x2e:			/* GNU_args_size */
		uleb(p);
		return true;
	}
	return false;
}

struct machine {
	struct row row, first, saved[DEPTH];
	unsigned int depth;
	uintptr_t loc;
};
_Static_assert(sizeof(struct machine) <= FB_UNWIND_MACHINE, "struct fb_unwind");

/* Until the row that holds at pc. */
static bool execute(struct machine *m, const struct entry *e,
		    const uint8_t *p, const uint8_t *end, uintptr_t pc)
{
	struct row *r = &m->row;

	while (p < end && m->loc <= pc) {
		unsigned int op = *p++, low = op & 0x3f;

		switch (op >> 6) {
		case 1: m->loc += low * e->align; continue;
		case 2: set(r, low, AT_CFA, (int64_t)uleb(&p) * e->data_align);
			continue;
		case 3: set(r, low, m->first.how[low % REGS],
			    m->first.at[low % REGS]);
			continue;
		}
		switch (op) {
		case 0x00: break;
		case 0x01: m->loc = fixed(&p, 8); break;
		case 0x02: m->loc += fixed(&p, 1) * e->align; break;
		case 0x03: m->loc += fixed(&p, 2) * e->align; break;
		case 0x04: m->loc += fixed(&p, 4) * e->align; break;
		case 0x0a:
			if (m->depth == DEPTH)
				return false;
			m->saved[m->depth++] = *r;
			break;
		case 0x0b:
			if (!m->depth)
				return false;
			*r = m->saved[--m->depth];
			break;
		case 0x0c:		/* def_cfa */
			r->cfa_reg = (int)uleb(&p);
			r->cfa_off = (int64_t)uleb(&p);
			r->expr = NULL;
			break;
		case 0x0d: r->cfa_reg = (int)uleb(&p); r->expr = NULL; break;
		case 0x0e: r->cfa_off = (int64_t)uleb(&p); break;
		default:
			if (!rare(r, op, &p, e))
				return false;
		}
	}
	return true;
}

/* ---- memory ---- */

/* Of the stack [low, high), the words at addr. */
FB_LOOKS static bool peek(struct fb_unwind *u, uintptr_t addr, uint64_t *v)
{
	size_t want;
	long n;

	if (addr < u->low || addr + 8 > u->high || addr + 8 < addr)
		return false;
	if (u->own) {
		*v = *(const volatile uint64_t *)addr;
		return true;
	}
	if (addr < u->window_at || addr + 8 > u->window_at + u->window_n) {
		want = u->high - addr < sizeof(u->window) ?
		       u->high - addr : sizeof(u->window);
		u->window_n = 0;
		n = fb_os_peek(u->window, addr, want);
		if (n < 8)
			return false;
		u->window_at = addr;
		u->window_n = (size_t)n;
	}
	memcpy(v, u->window + (addr - u->window_at), 8);
	return true;
}

/* breg, deref, plus_uconst: see the head comment. */
static bool evaluate(struct fb_unwind *u, const struct row *r, uint64_t *v)
{
	const uint8_t *p = r->expr;
	bool some = false;

	while (p < r->expr_end) {
		unsigned int op = *p++;

		if (op >= 0x70 && op <= 0x7f && !some &&
		    (u->known & 1u << (op - 0x70)))
			*v = u->reg[op - 0x70] + (uint64_t)sleb(&p);
		else if (op == 0x06 && some && peek(u, *v, v))
			;
		else if (op == 0x23 && some)
			*v += uleb(&p);
		else
			return false;
		some = true;
	}
	return some;
}

/* ---- one frame ---- */

static bool frame_address(struct fb_unwind *u, const struct row *r, uint64_t *cfa)
{
	if (r->expr)
		return evaluate(u, r, cfa);
	if (r->cfa_reg < 0 || r->cfa_reg >= RA ||
	    !(u->known & 1u << r->cfa_reg))
		return false;
	*cfa = u->reg[r->cfa_reg] + (uint64_t)r->cfa_off;
	return true;
}

/* Registers as the caller has them. */
static bool restore(struct fb_unwind *u, const struct row *r, uint64_t cfa)
{
	uint64_t reg[REGS], v;
	uint32_t known = 0;

	for (int i = 0; i < REGS; i++) {
		if (r->how[i] == SAME && (u->known & 1u << i))
			v = u->reg[i];
		else if (r->how[i] != AT_CFA ||
			 !peek(u, cfa + (uint64_t)r->at[i], &v))
			continue;
		reg[i] = v;
		known |= 1u << i;
	}
	if (r->how[RA] != AT_CFA || !(known & 1u << RA) ||
	    cfa <= u->reg[RSP] || cfa > u->high)
		return false;
	memcpy(u->reg, reg, sizeof(reg));
	u->reg[RSP] = cfa;
	u->known = known | 1u << RSP;
	return true;
}

void fb_unwind_begin(struct fb_unwind *u, void *sp, void *bp, void *ip,
		     size_t used)
{
	u->low = (uintptr_t)sp;
	u->high = u->low + used;
	u->window_n = 0;
	u->window_at = 0;
	u->reg[RSP] = u->low;
	u->reg[RBP] = (uintptr_t)bp;
	u->reg[RA] = (uintptr_t)ip;
	u->known = 1u << RSP | 1u << RBP | 1u << RA;
	u->first = true;
	u->own = false;
}

FB_LOOKS bool fb_unwind_next(struct fb_unwind *u)
{
	/* Behind a call there may be another function. */
	uintptr_t pc = u->reg[RA] - !u->first;
	struct machine *m = (struct machine *)(void *)u->machine;
	struct entry e;
	uint64_t cfa;

	memset(m, 0, sizeof(*m));
	m->row.cfa_reg = -1;
	u->first = false;
	if (!find_entry(pc, &e))
		return false;
	m->loc = e.start;
	if (!execute(m, &e, e.code, e.code_end, UINTPTR_MAX))
		return false;
	m->first = m->row;
	m->loc = e.start;
	return execute(m, &e, e.own, e.own_end, pc) &&
	       frame_address(u, &m->row, &cfa) && restore(u, &m->row, cfa) &&
	       u->reg[RA];
}
