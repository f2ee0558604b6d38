/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * trace.h - tracepoints of the fiber system (perf, trace-cmd, tracefs)
 *
 * Context: as where they stand, up to "runqueue lock and group->lock held, irqs
 * off": a probe may do what one of sched_switch may. The thread an event is
 * about need not be current, so each names it: tgid and pid as the kernel
 * counts them, carrier and processor as in the shared pages (-1: none).
 *
 *   attach   a thread became a carrier
 *   exit     it is none any more; dead: because the thread ended
 *   block    it blocked in fiber and owned a processor; kept: nobody wanted that
 *   handoff  a waiting carrier was given a processor; event: FIBER_EVENT_*;
 *            spare: it waited as spare, else to continue
 *   return   a carrier that lost its processor comes back to user code; how:
 *            grace (nobody took its own), edge (a free one), upcall (it must
 *            ask and perhaps wait)
 *   preempt  its quantum was over: the library is entered instead of user code
 *   refuse   ... but not here and now; reason: why
 */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM fiber

#if !defined(FIBER_TRACE_H) || defined(TRACE_HEADER_MULTI_READ)
#define FIBER_TRACE_H

#include <linux/tracepoint.h>

#include "internal.h"

/* The processor a carrier owns, for events: index or -1. */
#ifndef FIBER_TRACE_PROCESSOR
#define FIBER_TRACE_PROCESSOR
static inline int fiber_trace_processor(const struct fiber_carrier *c)
{
	const struct fiber_processor *p = READ_ONCE(c->processor);

	return p ? (int)p->index : -1;
}
#endif

#define fiber_show_event(event) __print_symbolic(event,		\
	{ FIBER_EVENT_NONE, "none" }, { FIBER_EVENT_IDLE, "idle" },	\
	{ FIBER_EVENT_BLOCK, "block" }, { FIBER_EVENT_GIVEN, "given" },	\
	{ FIBER_EVENT_WAKE, "wake" }, { FIBER_EVENT_EXIT, "exit" })

#define fiber_show_how(how) __print_symbolic(how,			\
	{ FIBER_BACK_GRACE, "grace" }, { FIBER_BACK_EDGE, "edge" },	\
	{ FIBER_BACK_UPCALL, "upcall" })

#define fiber_show_reason(reason) __print_symbolic(reason,		\
	{ FIBER_REFUSE_OUTSIDE, "outside" },				\
	{ FIBER_REFUSE_NO_PREEMPT, "no-preempt" },			\
	{ FIBER_REFUSE_NESTED, "nested" },				\
	{ FIBER_REFUSE_STEPPED, "stepped" },				\
	{ FIBER_REFUSE_TEXT, "text" },					\
	{ FIBER_REFUSE_STACK, "stack" }, { FIBER_REFUSE_RSEQ, "rseq" })

/* Tools read the formats, and know no enum of ours. */
TRACE_DEFINE_ENUM(FIBER_BACK_GRACE);
TRACE_DEFINE_ENUM(FIBER_BACK_EDGE);
TRACE_DEFINE_ENUM(FIBER_BACK_UPCALL);
TRACE_DEFINE_ENUM(FIBER_REFUSE_OUTSIDE);
TRACE_DEFINE_ENUM(FIBER_REFUSE_NO_PREEMPT);
TRACE_DEFINE_ENUM(FIBER_REFUSE_NESTED);
TRACE_DEFINE_ENUM(FIBER_REFUSE_STEPPED);
TRACE_DEFINE_ENUM(FIBER_REFUSE_TEXT);
TRACE_DEFINE_ENUM(FIBER_REFUSE_STACK);
TRACE_DEFINE_ENUM(FIBER_REFUSE_RSEQ);

#define FIBER_TRACE_WHO							\
	__field(pid_t, tgid)						\
	__field(pid_t, pid)						\
	__field(u32, carrier)						\
	__field(int, processor)

#define FIBER_TRACE_ASSIGN(c) do {					\
	__entry->tgid = (c)->group->tgid;				\
	__entry->pid = (c)->task->pid;					\
	__entry->carrier = (c)->index;					\
	__entry->processor = fiber_trace_processor(c);			\
} while (0)

#define FIBER_TRACE_FORMAT	"tgid=%d pid=%d carrier=%u processor=%d"
#define FIBER_TRACE_VALUES						\
	__entry->tgid, __entry->pid, __entry->carrier, __entry->processor

TRACE_EVENT(attach,
	TP_PROTO(const struct fiber_carrier *c),
	TP_ARGS(c),
	TP_STRUCT__entry(FIBER_TRACE_WHO),
	TP_fast_assign(FIBER_TRACE_ASSIGN(c);),
	TP_printk(FIBER_TRACE_FORMAT, FIBER_TRACE_VALUES)
);

TRACE_EVENT(exit,
	TP_PROTO(const struct fiber_carrier *c, bool dead),
	TP_ARGS(c, dead),
	TP_STRUCT__entry(FIBER_TRACE_WHO __field(bool, dead)),
	TP_fast_assign(FIBER_TRACE_ASSIGN(c); __entry->dead = dead;),
	TP_printk(FIBER_TRACE_FORMAT " dead=%d", FIBER_TRACE_VALUES,
		  __entry->dead)
);

TRACE_EVENT(block,
	TP_PROTO(const struct fiber_carrier *c, bool kept),
	TP_ARGS(c, kept),
	TP_STRUCT__entry(FIBER_TRACE_WHO __field(bool, kept)),
	TP_fast_assign(FIBER_TRACE_ASSIGN(c); __entry->kept = kept;),
	TP_printk(FIBER_TRACE_FORMAT " kept=%d", FIBER_TRACE_VALUES,
		  __entry->kept)
);

TRACE_EVENT(handoff,
	TP_PROTO(const struct fiber_carrier *c, u32 event, bool spare),
	TP_ARGS(c, event, spare),
	TP_STRUCT__entry(
		FIBER_TRACE_WHO
		__field(u32, event)
		__field(bool, spare)
	),
	TP_fast_assign(
		FIBER_TRACE_ASSIGN(c);
		__entry->event = event;
		__entry->spare = spare;
	),
	TP_printk(FIBER_TRACE_FORMAT " event=%s spare=%d", FIBER_TRACE_VALUES,
		  fiber_show_event(__entry->event), __entry->spare)
);

TRACE_EVENT(return,
	TP_PROTO(const struct fiber_carrier *c, u32 how),
	TP_ARGS(c, how),
	TP_STRUCT__entry(FIBER_TRACE_WHO __field(u32, how)),
	TP_fast_assign(FIBER_TRACE_ASSIGN(c); __entry->how = how;),
	TP_printk(FIBER_TRACE_FORMAT " how=%s", FIBER_TRACE_VALUES,
		  fiber_show_how(__entry->how))
);

TRACE_EVENT(preempt,
	TP_PROTO(const struct fiber_carrier *c, unsigned long ip),
	TP_ARGS(c, ip),
	TP_STRUCT__entry(FIBER_TRACE_WHO __field(unsigned long, ip)),
	TP_fast_assign(FIBER_TRACE_ASSIGN(c); __entry->ip = ip;),
	TP_printk(FIBER_TRACE_FORMAT " ip=0x%lx", FIBER_TRACE_VALUES,
		  __entry->ip)
);

TRACE_EVENT(refuse,
	TP_PROTO(const struct fiber_carrier *c, unsigned long ip, u32 reason),
	TP_ARGS(c, ip, reason),
	TP_STRUCT__entry(
		FIBER_TRACE_WHO
		__field(unsigned long, ip)
		__field(u32, reason)
	),
	TP_fast_assign(
		FIBER_TRACE_ASSIGN(c);
		__entry->ip = ip;
		__entry->reason = reason;
	),
	TP_printk(FIBER_TRACE_FORMAT " ip=0x%lx reason=%s", FIBER_TRACE_VALUES,
		  __entry->ip, fiber_show_reason(__entry->reason))
);

#endif

#undef TRACE_INCLUDE_PATH
#undef TRACE_INCLUDE_FILE
#define TRACE_INCLUDE_PATH .
#define TRACE_INCLUDE_FILE trace
#include <trace/define_trace.h>
