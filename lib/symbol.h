/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * symbol.h - stacks and names, in a signal handler too
 *
 * Names: one caller at a time, who has fb_symbol_take().
 */
#ifndef FB_SYMBOL_H
#define FB_SYMBOL_H

#include "fb.h"

/* ---- unwind.c ---- */
#define FB_UNWIND_MACHINE	1216
struct fb_unwind {
	uint64_t reg[17];		/* DWARF's numbers; [16]: where it goes on */
	uint32_t known;			/* bit: that register is */
	uintptr_t low, high;		/* of the stack in use */
	uintptr_t window_at;
	size_t window_n;
	bool first;
	bool own;			/* it is the caller's, and all there */
	char window[512];
	uint64_t machine[FB_UNWIND_MACHINE / 8];
};
/* `used` bytes from sp up are the stack. */
void fb_unwind_begin(struct fb_unwind *u, void *sp, void *bp, void *ip,
		     size_t used);
/* To the caller: u->reg[16] is an address in it. False: there is none. */
bool fb_unwind_next(struct fb_unwind *u);

/* ---- symbol.c ---- */
#define FB_SYMBOL_MAX	128
/* "name+0x1f (object)" of the code at ip; valid until the next call. */
const char *fb_symbol(uintptr_t ip);
/* Is the code at ip in this library (and the library an object of its own)? */
bool fb_symbol_ours(uintptr_t ip);
/* Where the library's code is. */
void fb_symbol_us(uintptr_t *low, uintptr_t *high);
/* One at a time asks; false: another does. dump.c */
bool fb_symbol_take(void);
void fb_symbol_give(void);
/* No names are wanted any more. */
void fb_symbol_end(void);

#endif
