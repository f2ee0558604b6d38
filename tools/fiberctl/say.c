// SPDX-License-Identifier: GPL-2.0-only
/* say.c - what went wrong, in words; and words of others */
#include <stdarg.h>
#include <stdio.h>

#include "fiberctl.h"

static char said[512];

const char *target_error(void)
{
	return said;
}

int target_fail(int r, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(said, sizeof(said), fmt, ap);
	va_end(ap);
	return r;
}

/* C2 80 to C2 9F are control characters as well, in UTF-8. */
void printable(char *s)
{
	for (; *s; s++) {
		unsigned char c = (unsigned char)*s, next = (unsigned char)s[1];

		if (c == 0xc2 && next && next < 0xa0)
			s[1] = *s = '?';
		else if (c < ' ' || c == 127)
			*s = '?';
	}
}
