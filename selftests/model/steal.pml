/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * steal.pml - the run queue of a processor and its thieves
 *
 * lib/runq.h and runq.c: the owner pushes, pops the newest and the oldest,
 * grows the ring and moves a batch out of it, in any order; thieves take the
 * oldest at any time.
 *
 * The whole point is what the owner leaves out: a barrier. So its plain stores
 * go through a store buffer, as on x86: to memory in their order, but at any
 * time later. Its own loads see them (it is the only writer of all but head, so
 * it has copies); a compare-exchange or an exchange waits until the buffer is
 * empty, and a membarrier of a thief is a moment at which it is. Each load of a
 * thief is a step of its own.
 *
 * Properties
 *   who takes something takes what was pushed	assert in took()
 *   nothing is taken twice			assert in took()
 *   nothing is lost				assert at the end
 *
 * FENCES: the way of many processors (runq.fenceless is false). Not modelled:
 * the slot `next`, an atomic exchange on both sides; that indexes wrap.
 *
 * Mutations
 *   NO_MEMBARRIER	a thief takes what is not public without one
 *   TAIL_FIRST		it loads tail before split
 *   RING_EARLY		it loads the ring before tail
 *   BATCH		it takes two by one compare-exchange
 *   NO_LOWER		the owner pops below split as above it
 *   NO_BARRIER		it lowers split (with FENCES: tail) by a plain store
 *   RING_FIRST		it tells of a new ring before the old one is copied
 *   NO_CAS		it takes the last entry without one
 */
#ifndef OPS
#define OPS 5			/* of the owner */
#endif
#ifndef THIEVES
#define THIEVES 1
#endif
#ifndef THEFTS
#define THEFTS 2		/* attempts of each */
#endif
#define KEEP 2			/* FB_RUNQ_KEEP */
#define FIRST 2			/* size of the first ring, half of the last */
#define LAST 4
#define BASE 2			/* the first index: split may be below it */
#define MOST (BASE + OPS)	/* indexes */
#define BUFFER 4

mtype = { TAIL, SPLIT, RING, SLOT };

/* Memory. Values count from 1; 0: never written. */
byte head = BASE, tail = BASE, split = BASE;
bool ring = 0;			/* which */
byte slot0[FIRST], slot1[LAST];
chan buffer = [BUFFER] of { mtype, byte, byte };	/* SLOT: ring and index */

bool taken[OPS + 1];
bool owner_ended = false;

#define SLOT_OF(r, i)	(r * 16 + i)

active proctype stores()
{
	mtype what;
	byte at, value;

end:	do
	:: atomic {
		buffer ? what(at, value);
		if
		:: what == TAIL -> tail = value
		:: what == SPLIT -> split = value
		:: what == RING -> ring = value
		:: what == SLOT && at >= 16 -> slot1[at - 16] = value
		:: what == SLOT && at < 16 -> slot0[at] = value
		fi;
		what = 0;
		at = 0;
		value = 0
	}
	od
}

inline took(v) {
	assert(v != 0);
	assert(!taken[v]);
	taken[v] = true
}

#define barrier		empty(buffer)
#define index_in(i, size)	((i) % (size))

/* ---- the owner: its copies of what it alone writes ---- */

byte my_tail = BASE, my_split = BASE, my_limit = BASE + FIRST, my_size = FIRST;
byte mine[MOST + 1];		/* by index */

inline set_tail(v) {
	my_tail = v;
	buffer ! TAIL(0, my_tail)
}

inline set_split(v) {
	my_split = v;
	buffer ! SPLIT(0, my_split)
}

inline copy_entries() {
	i = h;
	do
	:: i < my_tail -> buffer ! SLOT(SLOT_OF(1, index_in(i, LAST)), mine[i]); i++
	:: else -> break
	od;
	i = 0
}

/* fb_runq_room */
inline room() {
	h = head;
	if
	:: my_tail - h > (my_size - 1) / 2 && my_size < LAST ->
#ifdef RING_FIRST
		buffer ! RING(0, 1);
		copy_entries();
#else
		copy_entries();
		buffer ! RING(0, 1);
#endif
		my_size = LAST
	:: else
	fi;
	my_limit = h + my_size
}

/* fb_runq_overflow, of a batch of two */
inline overflow() {
	h = head;
	if
	:: my_tail - h < 2
	:: else ->
		atomic {
			barrier;
			if
			:: head == h ->
				head = h + 2;
				took(mine[h]);
				took(mine[h + 1])
			:: else
			fi
		}
	fi
}

/* A yield publishes what it pushes, a spawn some. */
inline push() {
	if
	:: my_tail == my_limit -> room()
	:: else
	fi;
	if
	:: my_tail == my_limit -> overflow()
	:: else ->
		pushed++;
		if
		:: set_split(my_tail + 1)
		:: my_tail - my_split >= KEEP -> set_split(my_tail - KEEP / 2)
		:: my_tail < my_split + KEEP
		fi;
		mine[my_tail] = pushed;
		buffer ! SLOT(SLOT_OF((my_size == LAST), index_in(my_tail, my_size)),
			      pushed);
		set_tail(my_tail + 1)
	fi
}

inline pop_oldest() {
	h = head;
	do
	:: h == my_tail -> break
	:: else ->
		atomic {
			barrier;
			if
			:: head == h -> head = h + 1; took(mine[h]); break
			:: else -> h = head
			fi
		}
	od
}

inline pop_newest() {
	t = my_tail - 1;
#ifdef FENCES
	set_tail(t);
#ifndef NO_BARRIER
	barrier;
#endif
#else
#ifndef NO_LOWER
	if
	:: t < my_split ->
		set_split(t - KEEP / 2);
#ifndef NO_BARRIER
		barrier
#endif
	:: else
	fi;
#endif
	set_tail(t);
#endif
	h = head;
	if
	:: t > h -> took(mine[t])
	:: t == h ->
#ifdef NO_CAS
		took(mine[t]);
		head = t + 1;
#else
		atomic {
			barrier;
			if
			:: head == t -> head = t + 1; took(mine[t])
			:: else
			fi
		}
#endif
		set_tail(t + 1)
	:: t < h -> set_tail(t + 1)
	fi;
	t = 0
}

active proctype owner()
{
	byte h, t, i, n, pushed;

	do
	:: n < OPS ->
		n++;
		if
		:: push()
		:: my_tail != head -> pop_newest()
		:: pop_oldest()
		fi;
		h = 0
	:: n == OPS -> break
	od;
	/* Whoever is left runs. */
	do
	:: my_tail == head -> break
	:: else -> pop_oldest()
	od;
	owner_ended = true;
	d_step {
		h = 0;
		i = 1;
		do
		:: i <= pushed -> assert(taken[i]); i++
		:: else -> break
		od
	}
}

/* ---- thieves: steal_one ---- */

proctype thief()
{
	byte n, h, t, x, y;
	bool r, last;

	do
	:: n == THEFTS || owner_ended -> break
	:: n < THEFTS ->
		n++;
		h = head;
#ifdef TAIL_FIRST
		t = tail;
#endif
#ifdef RING_EARLY
		r = ring;
#endif
#ifndef FENCES
		if
		:: split > h
		:: else ->
			if
			:: last = true
			:: goto none
			fi;
#ifndef NO_MEMBARRIER
			barrier
#endif
		fi;
#endif
#ifndef TAIL_FIRST
		t = tail;
#endif
		if
		:: t <= h -> goto none
		:: else
		fi;
#ifndef RING_EARLY
		r = ring;
#endif
		x = (r -> slot1[index_in(h, LAST)] : slot0[index_in(h, FIRST)]);
#ifdef BATCH
		if
		:: t > h + 1 ->
			y = (r -> slot1[index_in(h + 1, LAST)] :
				  slot0[index_in(h + 1, FIRST)])
		:: else
		fi;
#endif
		atomic {
			if
			:: head == h ->
				took(x);
				head = h + 1;
				if
				:: y -> took(y); head = h + 2
				:: else
				fi
			:: else
			fi
		}
none:		skip;
		d_step {
			h = 0; t = 0; x = 0; y = 0; r = 0; last = false
		}
	od
}

init {
	byte i;

	atomic {
		do
		:: i < THIEVES -> run thief(); i++
		:: else -> break
		od
	}
}
