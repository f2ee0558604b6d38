/* SPDX-License-Identifier: GPL-2.0-only */
/* screen.h - the terminal of fiberctl top */
#ifndef SCREEN_H
#define SCREEN_H

#include <stdbool.h>

enum {
	KEY_NONE, KEY_RESIZED, KEY_GONE,
	KEY_UP = 256, KEY_DOWN, KEY_PAGE_UP, KEY_PAGE_DOWN, KEY_HOME, KEY_END,
};

/* False, with a message: there is no terminal that can do it. */
bool screen_open(void);
/* As it was before. Any number of times. */
void screen_close(void);
void screen_size(int *rows, int *columns);
/* A picture: begin, lines from the top, end, which shows it. False: it cannot. */
void screen_begin(void);
void screen_line(const char *text, bool bright);
bool screen_end(void);
/*
 * A key; KEY_NONE after so many ms, KEY_RESIZED: draw it again, KEY_GONE: the terminal
 * is. SIGINT is the key q; of another signal that ends us it does not return.
 */
int screen_wait(int ms);

#endif
