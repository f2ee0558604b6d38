/* SPDX-License-Identifier: GPL-2.0-only */
/* How code32 ends. */
#ifndef CODE32_H
#define CODE32_H

#define CODE32_EXECUTED	42
#define CODE32_REFUSED	44

#endif
