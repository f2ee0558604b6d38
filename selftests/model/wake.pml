/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * wake.pml - work is published, and somebody runs it
 *
 * lib/ready.c and the root of lib/sched.c against the module's side of it
 * (kmod/handoff.c, wait.c): processors that rest, that are kept by a blocked
 * owner or are in flight; the search token; carriers that wait to continue.
 *
 * Two fibers run on two processors. The first may publish fibers in its own ring
 * (OWN_RING=1: 22 M states, and it holds as well); then each blocks, and comes back
 * only when all that was published has run. Plain threads publish in the global queue
 * at any time. So a wake-up that is lost is a state in which nobody can go on.
 *
 * Properties
 *   all that was published has run in the end	no invalid end state
 *   avail counts what nobody uses		asserts at the end
 *   nobody sleeps with the token		assert in wait_idle()
 *
 * Not modelled: own-ring publications without a barrier (see ready.c), timers, the
 * keeper (there are spares enough, see NC).
 *
 * Mutations: LEAK_TOKEN gives the processor away without putting the token down;
 * NO_RECHECK does not look at the hint and takeover words when a processor comes to
 * rest, NO_KEEP_RECHECK not after one is kept; NO_CANCEL leaves the token WOKEN when
 * nobody was woken; NO_RETRY does not look again after it took it back.
 * That the searcher looks once more when it has put the token down is not needed for
 * this, as the module looks too; it saves that call.
 */
#ifndef NC
#define NC 4			/* carriers */
#endif
#ifndef PLAIN
#define PLAIN 2			/* fibers that plain threads publish */
#endif
#ifndef OWN_RING
#define OWN_RING 0		/* fibers that the first one publishes */
#endif
#define NP 2
#define NOBODY 15

mtype = { RUNNING, KEEPING, LOST };		/* hold */
mtype = { IDLE, FLIGHT, OWNED };		/* processors */
mtype = { NOT, READY, SPARE };			/* wait */
mtype = { FREE, WOKEN, SEARCHES };		/* the token */

mtype hold[NC] = RUNNING, wait[NC] = NOT;
mtype pstate[NP] = IDLE;
byte owner[NP] = NOBODY, proc[NC] = NOBODY;
byte avail = 0, waiting = 0, spares = 0;

byte global = 0, ring[NP] = 0;
bool takeover[NP] = false;
mtype token = FREE;
byte has_token = NOBODY;	/* carrier.searching */
byte ran = 0;

#define TOTAL	(PLAIN + OWN_RING)
#define wanted(p) (global > 0 || takeover[p])

/* ---- the module: each of these under the group's lock ---- */

inline rest(p) {
	if
	:: pstate[p] == OWNED -> proc[owner[p]] = NOBODY; owner[p] = NOBODY
	:: else
	fi;
	pstate[p] = IDLE;
	avail++
}

inline own(p, c) {
	if
	:: pstate[p] == IDLE -> avail--
	:: else
	fi;
	pstate[p] = OWNED;
	owner[p] = c;
	proc[c] = p
}

inline dequeue(c) {
	if
	:: wait[c] == READY -> waiting--
	:: wait[c] == SPARE -> spares--
	:: else
	fi;
	wait[c] = NOT
}

inline first(kind, c) {
	c = 0;
	do
	:: c < NC && wait[c] != kind -> c++
	:: else -> break
	od;
	if
	:: c == NC -> c = NOBODY
	:: else
	fi
}

inline take(p) {
	proc[owner[p]] = NOBODY;
	owner[p] = NOBODY;
	pstate[p] = FLIGHT
}

/* p: idle, kept, or, for who comes to continue, in flight. NOBODY: none */
inline find_free(p, flying) {
	p = 0;
	do
	:: p == NP -> break
	:: p < NP && (pstate[p] == IDLE || (flying && pstate[p] == FLIGHT)) ->
		break
	:: p < NP && pstate[p] == OWNED && hold[owner[p]] == KEEPING ->
		hold[owner[p]] = LOST;
		avail--;
		take(p);
		break
	:: else -> p++
	od;
	if
	:: p == NP -> p = NOBODY
	:: else
	fi
}

/* As find_free, but only what somebody wants. */
inline find_wanted(p) {
	p = 0;
	do
	:: p == NP -> break
	:: p < NP && wanted(p) && pstate[p] == IDLE -> break
	:: p < NP && wanted(p) && pstate[p] == OWNED && hold[owner[p]] == KEEPING ->
		hold[owner[p]] = LOST;
		avail--;
		take(p);
		break
	:: else -> p++
	od;
	if
	:: p == NP -> p = NOBODY
	:: else
	fi
}

/* WAIT with SPARE and GIVE: of a root that found nothing. */
inline wait_idle(c, p, n) {
	atomic {
		p = proc[c];
		first(READY, n);
		if
		:: n != NOBODY ->
			take(p); own(p, n); dequeue(n)
		:: else ->
			rest(p);
			if
#ifndef NO_RECHECK
			:: wanted(p) || takeover[0] || takeover[1] -> own(p, c)
#endif
			:: else
			fi
		fi;
		if
		:: proc[c] != NOBODY
		:: else ->
#ifdef NO_RECHECK
			p = NOBODY;
#else
			find_wanted(p);
#endif
			if
			:: p != NOBODY -> own(p, c)
			:: else ->
				assert(has_token != c);
				wait[c] = SPARE;
				spares++
			fi
		fi;
		p = 0; n = 0
	}
}

/* The same without a processor, and the wait of who has a fiber to continue. */
inline wait_ready(c, p) {
	atomic {
		find_free(p, true);
		if
		:: p != NOBODY -> own(p, c)
		:: else -> wait[c] = READY; waiting++
		fi;
		p = 0
	}
}

inline asleep(c) { wait[c] == NOT }

/* An interrupt on the CPU where it flew. */
inline settle(p, n) {
	atomic {
		if
		:: pstate[p] == FLIGHT ->
			first(READY, n);
			if
			:: n != NOBODY -> own(p, n); dequeue(n)
			:: else ->
				first(SPARE, n);
				if
				:: wanted(p) && n != NOBODY ->
					own(p, n); dequeue(n)
				:: else -> rest(p)
				fi
			fi
		:: else
		fi;
		n = 0
	}
}

/* Blocks in the kernel; p, its processor, is kept or flies. */
inline block(c, p, n) {
	p = proc[c];
	if
	:: wanted(p) || waiting > 0 -> goto fly
	:: else
	fi;
	atomic { hold[c] = KEEPING; avail++ }
#ifndef NO_KEEP_RECHECK
	if
	:: wanted(p) || waiting > 0 ->
		atomic {
			if
			:: hold[c] == KEEPING ->
				hold[c] = RUNNING; avail--; goto fly
			:: else
			fi
		}
	:: else
	fi;
#endif
	goto blocked;
fly:
	atomic { take(p) }
	hold[c] = LOST;
	settle(p, n);
blocked:
	p = 0
}

/* Back from it, about to enter user mode. */
inline unblock(c, p) {
	atomic {
		if
		:: hold[c] == KEEPING -> hold[c] = RUNNING; avail--
		:: else -> hold[c] = RUNNING
		fi
	}
	if
	:: proc[c] == NOBODY -> wait_ready(c, p); asleep(c)
	:: else
	fi
}

/* ---- the library ---- */

/* backend->wake(): got = a spare was granted a processor */
inline wake_spare(p, n, got) {
	atomic {
		got = false;
		first(SPARE, n);
		if
		:: n != NOBODY ->
			find_free(p, false);
			if
			:: p != NOBODY -> own(p, n); dequeue(n); got = true
			:: else
			fi
		:: else
		fi;
		p = 0; n = 0
	}
}

inline wake(p, n, got) {
	do
	:: avail > 0 && token == FREE && spares > 0 ->
		atomic {
			got = (token == FREE);
			if
			:: got -> token = WOKEN
			:: else
			fi
		}
		if
		:: !got -> break
		:: else
		fi;
		wake_spare(p, n, got);
		if
		:: got -> break
		:: else
		fi;
#ifndef NO_CANCEL
		atomic {
			if
			:: token == WOKEN -> token = FREE
			:: else
			fi
		}
#endif
#ifdef NO_RETRY
		break
#endif
	:: else -> break
	od;
	got = false
}

inline arrive(c) {
	atomic {
		if
		:: token == WOKEN -> token = SEARCHES; has_token = c
		:: else
		fi
	}
}

inline drop(c) {
	has_token = NOBODY;
	token = FREE
}

inline get_global(f) {
	atomic {
		if
		:: global > 0 -> global--; f = true
		:: else
		fi
	}
}

inline get_ring(p, f) {
	atomic {
		if
		:: ring[p] > 0 -> ring[p]--; f = true
		:: else
		fi
	}
}

/* One look at all queues; f: got one. */
inline search(c, f) {
	atomic {
		if
		:: has_token != c && token == FREE ->
			token = SEARCHES; has_token = c
		:: else
		fi
	}
	if
	:: has_token != c ->
		get_ring(1 - proc[c], f)
	:: else ->
		get_ring(1 - proc[c], f);
		if
		:: !f -> get_global(f)
		:: else
		fi;
		if
		:: !f ->
			drop(c);
			get_global(f);
			if
			:: !f -> get_ring(1 - proc[c], f)
			:: else
			fi
		:: else
		fi
	fi
}

/* f: it has one. `due`: those that wait to continue are due the processor. */
inline find(c, p, n, f, got) {
	if
	:: waiting > 0 -> goto put_down		/* due */
	:: true
	fi;
	get_ring(proc[c], f);
	if
	:: !f -> get_global(f)
	:: else
	fi;
	if
	:: !f && waiting == 0 -> search(c, f)
	:: else
	fi;
#ifndef LEAK_TOKEN
put_down:
#endif
	if
	:: has_token == c ->
		drop(c);
		if
		:: ring[proc[c]] > 0 || global > 0 -> wake(p, n, got)
		:: else
		fi
	:: else
	fi;
#ifdef LEAK_TOKEN
put_down:
#endif
	skip
}

/* It runs to its end, and the carrier goes on in its root. */
inline publish_takeover(c) { takeover[proc[c]] = (ring[proc[c]] > 0) }

proctype Carrier(byte c)
{
	byte p = 0, n = 0;
	bool f = false, got = false;

	if
	:: c >= NP -> goto end
	:: c == 0 && OWN_RING > 0 ->
		ring[proc[c]] = ring[proc[c]] + OWN_RING;
		takeover[proc[c]] = true;
		wake(p, n, got)
	:: else
	fi;
	block(c, p, n);
	ran == TOTAL;
	unblock(c, p);
root:
	do
	:: f = false;
	   find(c, p, n, f, got);
	   if
	   :: f ->
		publish_takeover(c);
		ran++;
		publish_takeover(c)
	   :: else ->
		takeover[proc[c]] = false;
		if
		:: ring[proc[c]] > 0 -> takeover[proc[c]] = true
		:: else
		fi;
		wait_idle(c, p, n);
end:		asleep(c);
		arrive(c);
		publish_takeover(c)
	   fi
	od
}

proctype Plain()
{
	byte p = 0, n = 0;
	bool got = false;

	global++;
	wake(p, n, got)
}

init {
	byte i;

	atomic {
		own(0, 0); own(1, 1); avail = 0;
		i = 2;
		do
		:: i < NC -> wait[i] = SPARE; spares++; i++
		:: else -> break
		od;
		i = 0;
		do
		:: i < NC -> run Carrier(i); i++
		:: else -> break
		od;
		i = 0;
		do
		:: i < PLAIN -> run Plain(); i++
		:: else -> break
		od;
		i = 0
	}
	timeout;
	assert(ran == TOTAL);
	assert(token == FREE && avail == NP && waiting == 0)
}
