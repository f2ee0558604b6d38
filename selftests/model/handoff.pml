/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * handoff.pml - the protocol of kmod/handoff.c and kmod/wait.c, for spin
 *
 * NP processors, NC carriers. What happens under group->lock is one atomic
 * block, as in the code; what happens without it (the look before a carrier
 * keeps its processor, the compare-exchange of ->hold, the publisher's fence,
 * the user edge) is spelt out step by step. Each carrier blocks at most BLOCKS
 * times and then ends, so every run is finite: a run that stops with somebody
 * still waiting is an invalid end state, which is the property "nobody waits
 * for ever" and "a waiting carrier gets a processor".
 *
 * Safety, checked after every lock section: one owner per processor, an owner
 * owns one processor, owners + idle + in flight = NP. A carrier in user code
 * owns a processor.
 *
 * With -DFOREVER a block need not end: whoever waits must get the processor all
 * the same. With -DCLOSE the file is closed at any moment. With -DQUIET no signal
 * comes, so that more carriers and processors can be searched.
 *
 * Mutations, each of which must fail (selftests/model.sh):
 *   -DNO_RECHECK   a carrier keeps its processor without looking again
 *   -DNO_DISARM    the edge notifier stays on the CPU's list at sched_out
 *   -DPAGE_FLAG    the in-fiber flag lives in the processor's page
 *   -DNO_EDGE      a signal handler may start without a processor
 */

#ifndef NP
#define NP	1
#endif
#ifndef NC
#define NC	3
#endif
#ifndef BLOCKS
#define BLOCKS	2
#endif

#define NONE	255

mtype = { IDLE, OWNED, FLIGHT };		/* processors */
mtype = { NOT, READY, SPARE };			/* carrier.wait */
mtype = { RUNNING, KEEPING, ASIDE, LOST };		/* carrier.hold */

mtype pstate[NP];
byte owner[NP];
byte last[NP];
bool settle_queued[NP];
bool grace_armed[NP];
bool in_grace[NP];		/* the flight is younger than the grace time */

byte proc[NC];
mtype wait[NC];
mtype hold[NC];
bool need[NC];
bool armed[NC];
bool oncpu[NC];			/* is current on its CPU */
bool in_fiber[NC];
bool page_flag[NP];		/* PAGE_FLAG only */
bool signal[NC];
bool ended[NC];
byte nended;

byte fifo[NC];			/* group->ready, in order of arrival */
byte nfifo;
byte nspare;
byte avail;

bool takeover;			/* the library wants somebody to take over */
bool dead;

byte x_i, x_n, x_o;		/* scratch of atomic blocks */

inline check()
{
	d_step {
		x_i = 0;
		do
		:: x_i < NP ->
			assert((pstate[x_i] == OWNED) == (owner[x_i] != NONE));
			if
			:: owner[x_i] != NONE ->
				x_o = owner[x_i];
				assert(proc[x_o] == x_i);
				x_o = 0
			:: else
			fi;
			x_i++
		:: else -> break
		od;
		x_i = 0
	}
}

inline own(p, c)
{
	if
	:: pstate[p] == IDLE -> avail--
	:: else
	fi;
	pstate[p] = OWNED;
	owner[p] = c;
	proc[c] = p
}

inline take(p)
{
	x_o = owner[p];
	last[p] = x_o;
	proc[x_o] = NONE;
	owner[p] = NONE;
	x_o = 0;
	pstate[p] = FLIGHT
}

inline rest(p)
{
	if
	:: owner[p] != NONE ->
		x_o = owner[p];
		proc[x_o] = NONE;
		owner[p] = NONE;
		x_o = 0
	:: else
	fi;
	pstate[p] = IDLE;
	avail++
}

inline push_ready(c)
{
	wait[c] = READY;
	fifo[nfifo] = c;
	nfifo++
}

/* Take c off its list; x_n is scratch. */
inline dequeue(c)
{
	if
	:: wait[c] == READY ->
		x_i = 0;
		do
		:: fifo[x_i] != c -> x_i++
		:: else -> break
		od;
		do
		:: x_i + 1 < nfifo -> fifo[x_i] = fifo[x_i + 1]; x_i++
		:: else -> break
		od;
		nfifo--;
		fifo[nfifo] = 0
	:: wait[c] == SPARE -> nspare--
	:: else
	fi;
	wait[c] = NOT
}

/* x_n = a spare, or NONE. */
inline find_spare()
{
	x_n = 0;
	do
	:: x_n < NC && wait[x_n] != SPARE -> x_n++
	:: else -> break
	od;
	if
	:: x_n == NC -> x_n = NONE
	:: else
	fi
}

inline grant(p, c)
{
	own(p, c);
	dequeue(c)
}

/* x_n = a processor c may have now, or NONE: FLIGHT, IDLE, kept. */
inline find(c)
{
	x_n = NONE;
	x_i = 0;
	do
	:: x_i < NP && pstate[x_i] == FLIGHT -> x_n = x_i; break
	:: x_i < NP && pstate[x_i] != FLIGHT -> x_i++
	:: else -> break
	od;
	x_i = 0;
	do
	:: x_n == NONE && x_i < NP && pstate[x_i] == IDLE -> x_n = x_i
	:: x_n == NONE && x_i < NP && pstate[x_i] != IDLE -> x_i++
	:: else -> break
	od;
	x_i = 0;
	do
	:: x_n == NONE && x_i < NP ->
		if
		:: pstate[x_i] == OWNED ->
			x_o = owner[x_i];
			if
			:: hold[x_o] == KEEPING ->
				hold[x_o] = LOST;
				avail--;
				take(x_i);
				x_n = x_i
			:: hold[x_o] == ASIDE ->	/* on this CPU */
				hold[x_o] = LOST;
				take(x_i);
				x_n = x_i
			:: hold[x_o] == ASIDE -> x_i++	/* on another */
			:: else -> x_i++
			fi;
			x_o = 0
		:: else -> x_i++
		fi
	:: else -> break
	od
}

inline place(p)
{
	if
	:: nfifo > 0 && !dead -> x_n = fifo[0]; grant(p, x_n)
	:: else ->
		if
		:: dead || !takeover -> rest(p)
		:: !dead && takeover && in_grace[p] ->
			grace_armed[p] = true
		:: else ->
			find_spare();
			if
			:: x_n != NONE -> grant(p, x_n)
			:: else -> rest(p)
			fi
		fi
	fi
}

/* irq_work of a processor, and its grace timer. */
proctype settler(byte p)
{
end:	do
	:: atomic { settle_queued[p] ->
		settle_queued[p] = false;
		if
		:: pstate[p] == FLIGHT -> place(p)
		:: else
		fi;
		x_n = 0; x_i = 0 };
		check()
	:: atomic { grace_armed[p] ->
		grace_armed[p] = false;
		/* Younger flights than the one it was armed for re-arm it. */
		if
		:: in_grace[p] = false
		:: skip
		fi;
		if
		:: pstate[p] == FLIGHT -> place(p)
		:: else
		fi;
		x_n = 0; x_i = 0 };
		check()
	od
}

inline fly(c)
{
	atomic {
		x_n = proc[c];
		in_grace[x_n] = takeover && !ended[c];
		take(x_n);
		if
		:: !grace_armed[x_n] || !in_grace[x_n] || nfifo > 0 ->
			settle_queued[x_n] = true
		:: else
		fi;
		x_n = 0
	};
	check()
}

/* sched_out of a carrier that blocks in fiber and owns a processor. */
inline block(c)
{
	bool wanted;

	wanted = takeover || nfifo > 0;
	if
	:: !wanted ->
		hold[c] = KEEPING;
		avail++;
		/* full barrier */
#ifdef NO_RECHECK
		wanted = false;
#else
		wanted = takeover || nfifo > 0;
#endif
		if
		:: wanted ->
			atomic {
				if
				:: hold[c] == KEEPING ->
					hold[c] = RUNNING;
					avail--
				:: else -> wanted = false
				fi
			}
		:: else
		fi
	:: else
	fi;
	if
	:: wanted -> need[c] = true; fly(c)
	:: else
	fi;
	wanted = false
}

/* sched_in */
inline unblock(c)
{
	atomic {
		if
		:: hold[c] == ASIDE -> hold[c] = RUNNING
		:: hold[c] == KEEPING -> hold[c] = RUNNING; avail--
		:: hold[c] == LOST -> hold[c] = RUNNING; need[c] = true
		:: else
		fi
	}
	if
	:: need[c] -> armed[c] = true
	:: else
	fi
}

/* ACQUIRE, and READY without GIVE: until granted or interrupted. */
inline acquire(c)
{
	atomic {
		if
		:: dead || proc[c] != NONE -> skip
		:: else ->
			push_ready(c);
			if
			:: fifo[0] == c ->
				find(c);
				if
				:: x_n != NONE -> grant(x_n, c)
				:: else
				fi
			:: else
			fi
		fi;
		x_n = 0; x_i = 0
	};
	check();
#ifndef NO_DISARM
	armed[c] = false;
#endif
	oncpu[c] = false;
	if
	:: wait[c] == NOT -> skip
	:: signal[c] ->
		atomic {
			signal[c] = false;
			if
			:: wait[c] == NOT -> skip
			:: else -> dequeue(c); need[c] = true
			fi;
			x_i = 0
		}
	fi;
	oncpu[c] = true;
	if
	:: proc[c] != NONE || dead -> need[c] = false
	:: else -> armed[c] = true	/* need_at_edge() */
	fi
}

/* The way to user mode; a signal handler may start on it. */
inline edge(c)
{
	do
	:: !need[c] -> break
	:: need[c] ->
#ifdef NO_EDGE
		if
		:: true -> break	/* a handler's frame, and off it goes */
		:: true -> skip
		fi;
#endif
		atomic {
			if
			:: dead || proc[c] != NONE -> need[c] = false
			:: !dead && proc[c] == NONE && nfifo == 0 ->
				find(c);
				if
				:: x_n != NONE -> own(x_n, c); need[c] = false
				:: else
				fi
			:: else
			fi;
			x_n = 0; x_i = 0
		};
		check();
		if
		:: need[c] -> acquire(c)
		:: else
		fi
	od;
	armed[c] = false
}

proctype carrier(byte c)
{
	byte blocks = 0;
	byte mine = NONE;

	oncpu[c] = true;
	acquire(c);		/* a newcomer waits as ready */
	edge(c);
	in_fiber[c] = true;
	do
	:: blocks < BLOCKS ->
		blocks++;
		/* User code of a fiber. */
		assert(dead || proc[c] != NONE);
		/* The library comes by: clear the flag, find the processor. */
#ifdef PAGE_FLAG
		mine = proc[c];
		if
		:: proc[c] != NONE && takeover ->	/* a page fault just here */
			oncpu[c] = false;
			block(c);
			oncpu[c] = true;
			unblock(c);
			edge(c)
		:: else
		fi;
#else
		in_fiber[c] = false;
		mine = proc[c];
#endif
		assert(dead || proc[c] == mine);
		mine = NONE;
		in_fiber[c] = true;
		/* Another task runs instead, or a blocking system call. */
		if
		:: proc[c] != NONE ->
			armed[c] = false;
			oncpu[c] = false;
			hold[c] = ASIDE
		:: proc[c] != NONE ->
#ifndef NO_DISARM
			armed[c] = false;
#endif
			oncpu[c] = false;
			block(c)
		:: else
		fi;
#ifdef FOREVER
		if
		:: hold[c] != ASIDE -> endf: (false)	/* it never returns */
		:: true
		fi;
#endif
		/* ... and back. */
		oncpu[c] = true;
		unblock(c);
		edge(c)
	:: true -> break
	od;
	/* Preempted or idle carriers give their processor away and come back. */
	if
	:: dead || proc[c] == NONE -> skip
	:: !dead && proc[c] != NONE ->
		in_fiber[c] = false;
		atomic {
			if
			:: dead || proc[c] == NONE -> skip
			:: !dead && proc[c] != NONE && nfifo > 0 ->
				mine = proc[c];
				take(mine);
				x_n = fifo[0];
				grant(mine, x_n)
			:: else -> mine = proc[c]; rest(mine)
			fi;
			mine = NONE;
			x_n = 0; x_i = 0;
			if
			:: !dead -> wait[c] = SPARE; nspare++
			:: else
			fi
		};
		check();
		oncpu[c] = false;
		/* A spare sleeps until it is given one, or the process ends. */
ends:		if
		:: wait[c] == NOT -> skip
		:: nended + nspare >= NC && wait[c] == SPARE ->
			atomic { if :: wait[c] == SPARE -> dequeue(c) :: else fi; x_i = 0 }
		:: dead -> atomic { dequeue(c); x_i = 0 }
		fi;
		oncpu[c] = true
	:: true -> skip
	fi;
	/* The thread ends. */
	ended[c] = true;
	armed[c] = false;
	oncpu[c] = false;
	if
	:: proc[c] != NONE -> fly(c)
	:: else
	fi;
	nended++
}

/* The notifier list of a CPU fires for whoever returns to user mode there. */
proctype others()
{
end:	do
	:: atomic { (armed[0] && !oncpu[0]) || (armed[1] && !oncpu[1]) ||
		 (armed[NC - 1] && !oncpu[NC - 1]) -> assert(false) }
	od
}

/* A thread that publishes work, and takes it back when somebody looked. */
proctype publisher()
{
	takeover = true;
	/* full barrier */
	if
	:: avail > 0 ->
		atomic {
			find_spare();
			if
			:: x_n != NONE && !dead ->
				byte s = x_n;
				find(s);
				if
				:: x_n != NONE -> grant(x_n, s)
				:: else
				fi
			:: else
			fi;
			x_n = 0; x_i = 0
		};
		check()
	:: else
	fi;
	takeover = false
}

proctype signals()
{
	byte c = 0;

	do
	:: c < NC -> signal[c] = true; c++
	:: c < NC -> c++
	:: c == NC -> break
	od
}

#ifdef CLOSE
proctype closer()
{
	byte c = 0;

	atomic {
		dead = true;
		do
		:: c < NC ->
			if
			:: wait[c] != NOT -> dequeue(c)
			:: else
			fi;
			c++
		:: else -> break
		od;
		x_i = 0
	}
}
#endif

init {
	byte i = 0;

	atomic {
		do
		:: i < NP -> pstate[i] = IDLE; owner[i] = NONE; last[i] = NONE;
			avail++; run settler(i); i++
		:: else -> break
		od;
		i = 0;
		do
		:: i < NC -> proc[i] = NONE; wait[i] = NOT; hold[i] = RUNNING; i++
		:: else -> break
		od;
		i = 0;
		do
		:: i < NC -> run carrier(i); i++
		:: else -> break
		od;
		run publisher();
#ifndef QUIET
		run signals();
#endif
		run others();
#ifdef CLOSE
		run closer();
#endif
	}
}
