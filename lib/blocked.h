/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* blocked.h - end the system calls of cancelled fibers; see blocked.c */
#ifndef FB_BLOCKED_H
#define FB_BLOCKED_H

/* So many more scopes are cancelled and not closed. Any context. */
void fb_blocked_count(int scopes);
/* Some have been cancelled. Any thread, nothing locked, in_fiber == 1. */
void fb_blocked_cancel(void);
/* No fiber is alive. */
void fb_blocked_stop(void);

#endif
