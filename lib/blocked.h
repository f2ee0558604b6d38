/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
#ifndef FB_BLOCKED_H
#define FB_BLOCKED_H

/*
 * Fibers have been cancelled: end the system calls of those that are BLOCKED.
 * Any thread, nothing locked, in_fiber == 1; may spawn a fiber.
 */
void fb_blocked_cancel(void);

#endif
