/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * debug.h - what debuggers must know to find every fiber in the memory of a process
 *
 * The one exported object fiber_debug_v1 says where things are, in this build of the
 * library: tools need neither its headers nor its DWARF, and a core file has it all.
 * A tool takes the object's address from the symbol table, reads `magic`, `version`
 * and `size`, and then as much of this struct as it knows: members are only ever
 * added at the end. Whatever changes its meaning gets another symbol.
 *
 *   slabs -> slab -> slab.next ... NULL
 *     its memory begins at the slab's address + slab.size - slab.bytes; block i at
 *     that + i * stride, while i * stride < used. Its descriptor stands
 *     at - (address of the block / stride % colours) * colour_size behind that.
 *   A descriptor is a live fiber's if id is not 0 and join has not the bit join_done.
 *     why != 0: it is parked; whys[why] is the address of a word. If it is the `cur`
 *     of a carrier, it runs there, or blocks. Else it is ready.
 *     The stack is [base + guard, the descriptor), where guard is canary_size if
 *     canary is not 0, else one page; of a slab whose `at` is 0 the end is the word
 *     behind the descriptor.
 *     The word at lock.home, if it has the bit lock.mark: without that, the address of
 *     the carrier that it is locked to.
 *     If its flags have times.flag: times.below bytes below the end of the stack are
 *     ns (of CPU, before this turn), cpu (of the thread, when the turn began, if state
 *     is `running`), seq (odd: they are being written; the same: they belong together).
 *     since >> 2: how many 2^clock_shift ns after `started` it parked.
 *   runtime: carriers -> carrier.next ... NULL, [processors] struct fb_processor
 *
 * What runs while it is read may be stale, see debug.c: a tool must bear any value.
 */
#ifndef FB_DEBUG_H
#define FB_DEBUG_H

#include <stdint.h>

#define FIBER_DEBUG_MAGIC	"fiberdbg"

/* All numbers are offsets, in bytes, into the thing that the member is called. */
struct fiber_debug {
	char magic[8];
	uint32_t version, size;		/* 1; sizeof(struct fiber_debug) */
	uint64_t slabs;			/* address of the pointer to the newest */
	uint64_t runtime;		/* address */
	uint64_t whys;			/* address of char *[why_count] */
	uint64_t start_ip;		/* where a fiber begins that never ran */
	uint32_t why_count;
	uint32_t clock_shift, canary_size, colour_size;
	uint64_t join_done;
	struct {
		uint32_t size, next, bytes, used, stride, at, colours;
	} slab;
	struct {
		uint32_t size, sp, bp, ip, join, fn, why, base, id, canary,
			 name, name_size, since;
	} fiber;
	struct {
		uint32_t state, started, epoch, features, processors, nproc,
			 carriers, info, plain_spawned, global_count,
			 quantum_ns, on;	/* the value of state */
	} runtime_at;
	struct {
		uint32_t size, pass, ended, idle_passes, steals, preemptions,
			 id_next, id_step, index, head, tail, page;
	} processor;
	struct {
		uint32_t next, cur, page, tid, index;
	} carrier;
	struct {
		uint32_t in_fiber, processor, blocks, handoffs, returns;
	} carrier_page;
	struct {
		uint32_t waiting, spares, idle, carriers;
	} info;
	struct {
		uint64_t home, mark;	/* of a fiber; a bit */
	} lock;
	struct {
		uint32_t flags, flag;	/* of a fiber, 16 bits; one of them */
		uint32_t below, ns, cpu, state, seq, running;
	} times;
	struct {
		uint64_t at;		/* address of the next six: trace_outside.c */
		uint32_t on, asked, outside, mask, ring, began,
			 outside_on,	/* the value of outside */
			 lease_ms, format, event_size,
			 ring_size, events, n;	/* of a ring */
	} trace;
	struct {
		uint32_t use;	/* of the runtime: how many of nproc are in use */
	} follow;
	struct {
		/* of the runtime, whose nproc, info, use are the default pool's: */
		uint32_t nproc;		/* processors of all pools, and of some that were */
		uint32_t pools, max;	/* where pointers to pools are, up to NULL, or so many */
		/* of such a pool: */
		uint32_t state, processors, nproc_of, use, info, on;
		/* of a carrier: added to the processor of its page, the index */
		uint32_t first;
		uint32_t name, name_size;	/* of such a pool, too */
		/* of a fiber: if its flags (16 bits) have flag, it is of pools[of] */
		/* (8 bits), else of the default one */
		uint32_t flags, flag, of;
	} pool;
	struct {
		/* of a ring: the name of its pool, "": the default one. Behind the */
		/* ring of plain threads there is one for each processor of pools */
		uint32_t pool, pool_size;	/* 0: a library of before */
	} lanes;
};

#endif
