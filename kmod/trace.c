// SPDX-License-Identifier: GPL-2.0-only
/*
 * trace.c - the bodies of the tracepoints of trace.h
 */
#include "internal.h"

#define CREATE_TRACE_POINTS
#include "trace.h"
