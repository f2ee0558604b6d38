/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note */
/*
 * /dev/fiber: the right to run, handed from thread to thread by the kernel.
 *
 * A group (one open of /dev/fiber by one process) has N processors. A thread
 * that attaches becomes a carrier; a carrier runs fibers while it owns a
 * processor. When a carrier blocks in the kernel while "in fiber", and the
 * library says that somebody should take over, the module hands its processor
 * to another carrier; when it comes back, it does not reach user code before
 * it owns a processor again.
 *
 * Changelog
 *   1  first version
 *
 * Rules of this interface, now and later:
 *   - A struct never changes its size or a field its place: the size is part of
 *     the ioctl number. What grows takes reserved fields.
 *   - Reserved fields of arguments and unknown flags must be zero (-EINVAL), so
 *     that a program finds out whether the module knows what it asks for.
 *     Reserved words of the shared pages are zero, written by nobody, read by
 *     nobody.
 *   - A feature bit, once given, means the same for ever; an unknown one can be
 *     ignored. FIBER_API_VERSION grows only with a line in the changelog.
 *   - All fields have fixed sizes and the same layout for 32 and 64 bits.
 *   - Offsets for mmap come from FIBER_IOC_SETUP, the page size from
 *     FIBER_IOC_QUERY; neither is a constant of this header.
 *   - Every shared word names its writer. Words that user space can write are
 *     hints: the module reads each once and uses it only to decide about that
 *     process.
 *   - A command that fails leaves everything as it was, its struct as well,
 *     unless its comment says otherwise.
 *
 * Errors of open(): -EMFILE (the user has as many files of /dev/fiber open as
 * the parameter groups_per_user allows), -ENOMEM. Errors of mmap(): -EINVAL (not
 * MAP_SHARED, executable, beyond what exists), -EACCES (the info page writable).
 * Any command: -EPERM (the group belongs to another process), -ENXIO (no SETUP
 * yet), -ENOTTY, -EINTR (killed), -EOPNOTSUPP (a 32-bit program).
 *
 * The user that limits count for is the one who opened the file.
 */
#ifndef _UAPI_LINUX_FIBER_H
#define _UAPI_LINUX_FIBER_H

#include <linux/ioctl.h>
#include <linux/types.h>

#define FIBER_API_VERSION	1

/* fiber_query_args.features */
#define FIBER_FEAT_HANDOFF	(1ULL << 0)  /* blocks are detected, processors handed on */
#define FIBER_FEAT_RETURN	(1ULL << 1)  /* RETURN upcall at the user edge */
#define FIBER_FEAT_PREEMPT	(1ULL << 2)  /* PREEMPT upcall at the end of a quantum */
#define FIBER_FEAT_STACKS	(1ULL << 3)  /* stacks can be registered */

#define FIBER_NO_PROCESSOR	0xffffffffU
#define FIBER_NO_CARRIER	0xffffffffU
#define FIBER_SLOTS		4	     /* nested upcalls not yet entered */

/*
 * struct fiber_info_page - the group as the module sees it; read only
 *
 * Offset fiber_setup_args.off_info. Written by the module with single 32-bit
 * stores (avail: atomic adds); a snapshot of several fields is not consistent.
 *
 * @avail:    processors that FIBER_IOC_WAKE could hand out now: idle ones and
 *            ones kept by a carrier blocked in the kernel. A publisher of work
 *            stores the work, executes a full barrier, then reads this; the
 *            module adds to it, executes a full barrier, then reads
 *            fiber_hint_page.work.
 * @waiting:  carriers that wait to continue (in FIBER_IOC_ACQUIRE or WAIT_READY)
 * @spares:   carriers that sleep in FIBER_WAIT_SPARE
 * @idle:     processors that nobody owns
 * @carriers: attached carriers
 * @dead:     the file was closed; nothing is handed out any more
 * @turned:   of @waiting, those that gave their processor away (preempted)
 */
struct fiber_info_page {
	__u32 avail;
	__u32 waiting;
	__u32 spares;
	__u32 idle;
	__u32 carriers;
	__u32 dead;
	__u32 turned;
	__u32 reserved[9];
};

/*
 * struct fiber_hint_page - what the library says of the whole group
 *
 * Offset fiber_setup_args.off_hint. Writer: any thread of the process.
 * @work: not zero while ready fibers wait that no processor page announces
 *        (a global queue). A carrier that blocks then gives up its processor.
 */
struct fiber_hint_page {
	__u32 work;
	__u32 reserved[15];
};

/* fiber_processor_page.takeover */
#define FIBER_TAKEOVER_READY	(1U << 0)    /* fibers are ready: hand off, preempt */
#define FIBER_TAKEOVER_WATCH	(1U << 1)    /* timers or I/O nobody watches: hand off */

/*
 * struct fiber_processor_page - one per processor, offset
 * fiber_setup_args.off_processors + index * page size
 *
 * @takeover: writer: the owner (and a thief that took all it announced, by
 *            compare-exchange). FIBER_TAKEOVER_* bits: why someone should take
 *            this processor over if its owner blocks or has used its quantum.
 * @seq:      writer: the owner, each time another fiber starts to run here. The
 *            module compares: unchanged for a quantum means one fiber ran.
 * @owner:    writer: the module. Carrier index or FIBER_NO_CARRIER.
 */
struct fiber_processor_page {
	__u32 takeover;
	__u32 seq;
	__u32 reserved0[14];
	__u32 owner;
	__u32 reserved1[15];
};

/*
 * struct fiber_carrier_page - one per carrier, offset
 * fiber_setup_args.off_carriers + index * page size
 *
 * @in_fiber:   writer: the carrier. 1 while it runs fiber code. While 0 the
 *              processor is never taken away and no PREEMPT happens. Clear it,
 *              then read @processor: that order makes the value stable.
 * @no_preempt: writer: the carrier. While not 0 as if @in_fiber were 0.
 * @processor:  writer: the module. Index or FIBER_NO_PROCESSOR.
 * @pending:    set by the module when a preemption was due and could not be
 *              done here and now; cleared by the carrier.
 * @depth:      number of @slot entries in use; incremented by the module,
 *              decremented by the trampoline that has taken its entry.
 * @slot:       where an upcall interrupted the carrier (user ip)
 * @blocks ...: counters, written by the module
 */
struct fiber_carrier_page {
	__u32 in_fiber;
	__u32 no_preempt;
	__u32 processor;
	__u32 pending;
	__u32 depth;
	__u32 reserved0[11];
	__u64 slot[FIBER_SLOTS];
	__u64 blocks;		/* times it blocked in fiber, owning a processor */
	__u64 handoffs;		/* times its processor was taken meanwhile */
	__u64 returns;		/* RETURN upcalls */
	__u64 preempts;		/* PREEMPT upcalls */
	__u64 refused;		/* preemptions put off */
	__u64 reserved1[7];
};

/* FIBER_IOC_QUERY: what this module can do. Needs no group. */
struct fiber_query_args {
	__u32 api;		/* out: FIBER_API_VERSION */
	__u32 page_size;	/* out: stride of the mapped pages, bytes */
	__u64 features;		/* out: FIBER_FEAT_* */
	__u32 max_processors;	/* out */
	__u32 max_carriers;	/* out: per group */
	__u64 min_quantum_ns;	/* out */
	__u64 reserved[4];	/* zero */
};

/*
 * FIBER_IOC_SETUP: make this file a group of the calling process; once.
 *
 * Trampolines: @return_ip is entered instead of user code when the carrier
 * lost its processor; it must call FIBER_IOC_ACQUIRE with a system call
 * instruction that ends at @return_end, without touching what it interrupted.
 * @preempt_ip is entered when a quantum is used up. Both find the interrupted
 * ip in fiber_carrier_page.slot[depth - 1].
 *
 * A carrier that gets FIBER_MAX_FRUITLESS (256) RETURN upcalls and never comes
 * to ACQUIRE or WAIT is detached and runs on as a plain thread.
 *
 * Errors: -EINVAL (a field out of range, reserved not zero), -EBUSY (already
 * set up), -EAGAIN (with so many processors there would be more timers than the
 * parameter max_timers allows), -EFAULT, -ENOMEM, -EPERM.
 */
struct fiber_setup_args {
	__u32 flags;		/* zero */
	__u32 processors;	/* 1 ... max_processors */
	__u64 quantum_ns;	/* 0: 10 ms; at least min_quantum_ns */
	__u64 grace_ns;		/* before a spare is woken; 0 ... 10 ms */
	__u64 return_ip;
	__u64 return_end;
	__u64 preempt_ip;	/* 0: no preemption */
	__u32 max_carriers;	/* 0: the module's limit */
	__u32 min_spares;	/* FIBER_IOC_KEEP returns when fewer wait */
	__u64 off_info;		/* out: mmap offsets; info is read only */
	__u64 off_hint;		/* out */
	__u64 off_processors;	/* out */
	__u64 off_carriers;	/* out: map max_carriers pages, touch attached ones */
	__u64 reserved[4];	/* zero */
};

/*
 * FIBER_IOC_ATTACH: the calling thread becomes a carrier, without a processor.
 * Errors: -EBUSY (already a carrier, of whatever group), -ENOSPC (the group has
 * max_carriers), -EAGAIN (the user has carriers_per_user, or all users together
 * max_timers), -ENOMEM, -EINVAL, -EFAULT, -EPERM, -ESHUTDOWN, -ENXIO.
 */
struct fiber_attach_args {
	__u32 flags;		/* zero */
	__u32 carrier;		/* out: index of the carrier page */
	__u64 reserved[2];	/* zero */
};

/* fiber_wait_args.flags: exactly one of READY and SPARE */
#define FIBER_WAIT_READY	(1U << 0)    /* has a fiber to continue: in order of arrival */
#define FIBER_WAIT_SPARE	(1U << 1)    /* sleeps until someone should take over */
#define FIBER_WAIT_GIVE		(1U << 2)    /* give my processor away first */
#define FIBER_WAIT_TO_SPARE	(1U << 3)    /* with READY|GIVE: to a spare before preempted carriers */
#define FIBER_WAIT_SURE		(1U << 4)    /* with SPARE: takeover words are known to be stale */

/* fiber_wait_args.event: why this carrier got its processor */
#define FIBER_EVENT_NONE	0	     /* it owned one all the time */
#define FIBER_EVENT_IDLE	1	     /* it was idle */
#define FIBER_EVENT_BLOCK	2	     /* its owner blocked */
#define FIBER_EVENT_GIVEN	3	     /* its owner gave it away */
#define FIBER_EVENT_WAKE	4	     /* FIBER_IOC_WAKE */
#define FIBER_EVENT_EXIT	5	     /* its owner's thread ended */

/*
 * FIBER_IOC_WAIT: sleep until the caller owns a processor.
 *
 * Carriers that wait get one in order of arrival, where one that gives its
 * processor away (READY|GIVE: preempted) arrives a quantum later. Until then a
 * spare that runs ready fibers goes before it, if there are any.
 *
 * A spare whose deadline passes goes on waiting as READY, so that it gets a
 * processor even if all are busy. With SPARE|GIVE the processor becomes idle
 * unless a carrier waits for it; if any processor page or the hint page says
 * FIBER_TAKEOVER_READY / work at that moment, the caller keeps it instead (so a
 * publisher that saw avail == 0 is not lost). A takeover word can be stale (a
 * thief took what it announced): a caller that has searched in vain since it
 * was told so passes SURE, and only the hint page counts.
 *
 * Errors: -EINTR (a signal; READY without GIVE restarts instead. The caller may
 * own a processor all the same: look at the carrier page), -ESHUTDOWN, -EINVAL,
 * -ESRCH (not a carrier of this group), -EFAULT (the caller owns a processor
 * afterwards if it did before, perhaps another one), -EPERM.
 */
struct fiber_wait_args {
	__u32 flags;		/* FIBER_WAIT_* */
	__u32 processor;	/* out */
	__u64 deadline_ns;	/* SPARE: absolute CLOCK_MONOTONIC, as the caller sees it; 0: none */
	__u32 event;		/* out: FIBER_EVENT_* */
	__u32 reserved0;	/* zero */
	__u64 reserved[2];	/* zero */
};

/*
 * FIBER_IOC_STACKS: register an arena of @count stacks of @stride bytes from
 * @base up; the lowest @guard bytes of each are never used. With arenas
 * registered, PREEMPT happens only on a stack of an arena with room to spare.
 * @contexts / @context_size: the table of fiber contexts beside it (for tools).
 * Errors: -EINVAL, -ENOSPC (4096 arenas), -EEXIST (overlaps one), -ENOMEM.
 */
struct fiber_stacks_args {
	__u32 flags;		/* zero */
	__u32 context_size;
	__u64 base;
	__u64 stride;
	__u64 count;
	__u64 guard;
	__u64 contexts;		/* 0: none */
	__u64 reserved[2];	/* zero */
};

/*
 * FIBER_IOC_TEXT: code in [start, end) may be preempted. Without any range no
 * PREEMPT happens. Errors: -EINVAL, -ENOSPC.
 */
struct fiber_text_args {
	__u64 start;
	__u64 end;
	__u64 reserved[2];	/* zero */
};

#define FIBER_IOC_MAGIC		0xFB

#define FIBER_IOC_QUERY		_IOWR(FIBER_IOC_MAGIC, 0x00, struct fiber_query_args)
#define FIBER_IOC_SETUP		_IOWR(FIBER_IOC_MAGIC, 0x01, struct fiber_setup_args)
#define FIBER_IOC_ATTACH	_IOWR(FIBER_IOC_MAGIC, 0x02, struct fiber_attach_args)
/* The calling carrier gives its processor away and is a plain thread again. */
#define FIBER_IOC_DETACH	_IO(FIBER_IOC_MAGIC, 0x03)
/* FIBER_WAIT_READY for the trampoline: restarts after signals, no argument. */
#define FIBER_IOC_ACQUIRE	_IO(FIBER_IOC_MAGIC, 0x04)
#define FIBER_IOC_WAIT		_IOWR(FIBER_IOC_MAGIC, 0x05, struct fiber_wait_args)
/*
 * Hand one available processor (idle, or kept by a blocked carrier) to a spare.
 * Any thread of the process. Returns 1 if a spare got one; 0 if none is
 * available, or if there is no spare yet: then FIBER_IOC_KEEP returns and the
 * next carrier that waits as spare takes the processor at once.
 */
#define FIBER_IOC_WAKE		_IO(FIBER_IOC_MAGIC, 0x06)
#define FIBER_IOC_STACKS	_IOW(FIBER_IOC_MAGIC, 0x07, struct fiber_stacks_args)
#define FIBER_IOC_TEXT		_IOW(FIBER_IOC_MAGIC, 0x08, struct fiber_text_args)
/*
 * Sleep until fewer than min_spares spares wait; returns how many are missing.
 * For one thread that makes spares; not for carriers (-EBUSY).
 * Restarts after signals; -ESHUTDOWN when the group ends.
 */
#define FIBER_IOC_KEEP		_IO(FIBER_IOC_MAGIC, 0x09)

#endif /* _UAPI_LINUX_FIBER_H */
