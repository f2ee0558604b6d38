/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * wait.pml - a select over two objects, against all that can end it
 *
 * lib/wait.h and lib/select.c: a fiber waits at the objects A and B with a deadline
 * and may be cancelled; a sender comes to each. It does so ROUNDS times, and what
 * lives in its frame (nodes, the timer) is gone in between. The part that runs off
 * its stack, after it has switched away, is a process of its own: once the fiber is
 * claimed and ready, both run at the same time.
 *
 * Properties
 *   nobody touches the frame when it is gone	FRAME
 *   a wait ends once				ready is never set twice
 *   a value is handed over if, and only if, the wait ends by that object
 *   nobody waits for ever			no invalid end state
 *
 * Mutations: NO_SETTLE does not wait until that part has run, before it takes the
 * timer out; NO_TICKET claims by the state alone; NO_CANCEL_CHECK does not look at cancel after the word is set;
 * NO_TIMER_DEL leaves the timer armed; EARLY_WORD sets the word before the fiber is
 * off its stack.
 */
#ifndef ROUNDS
#define ROUNDS 2
#endif

#define FRAME	assert(frame)

mtype = { NONE, WAITING, OBJECT, TIMEOUT, CANCEL };

mtype state = NONE;		/* waiter.word: the state, */
byte ticket = 0;		/* and the ticket */

bool frame = false;		/* the fiber is inside the call */
bool parked = false;		/* off its stack */
bool ready = false;		/* claimed, and made ready */

bool lock[2] = false;		/* of A and B */
bool queued[2] = false;		/* the node; object's lock */
byte claim = 0;			/* the ticket in the nodes */
bool have[2] = false;		/* a sender left its value in the ring */
byte given = 0;			/* values handed to the waiter in this round */
byte by = 9;			/* the object that ended the wait */

bool timer_lock = false, armed = false;
byte timer_claim;
bool cancel = false;
bool cancels;			/* this wait can be cancelled: round 1 */
bool timed;			/* and has a deadline: round 2 always */

bool commit = false;		/* the switch is made: the other part runs */
bool settled = false;		/* waiter.woken: it has run */

inline acquire(l) { atomic { !l -> l = true } }
inline release(l) { l = false }

/* Compare-exchange of the word: mine is true if it was ours. */
inline claim_word(t, new, mine) {
	atomic {
#ifdef NO_TICKET
		mine = (state == WAITING);
#else
		mine = (state == WAITING && ticket == t);
#endif
		if
		:: mine -> state = new
		:: else
		fi
	}
}

inline make_ready() {
	atomic {
		assert(!ready);
		assert(parked);
		ready = true
	}
}

/* One look at the object, as often as there are rounds. */
proctype Sender(byte o)
{
	byte n = 0;
	bool mine;

	do
	:: n < ROUNDS ->
		n++;
		acquire(lock[o]);
		mine = false;
		if
		:: queued[o] ->
			FRAME;			/* the node is read */
			queued[o] = false;
			claim_word(claim, OBJECT, mine);
			if
			:: mine ->
				FRAME;		/* the value is copied there */
				given++;
				by = o
			:: else
			fi
		:: else -> have[o] = true	/* into the ring */
		fi;
		if
		:: !mine && !have[o] -> have[o] = true
		:: else
		fi;
		release(lock[o]);
		if
		:: mine -> make_ready()
		:: else
		fi
	:: break			/* or less often */
	od
}

/* Fires whenever it is armed: at any time. */
proctype Timer()
{
	bool mine, due;

end:	do
	:: armed ->
		acquire(timer_lock);
		mine = false;
		due = armed;
		if
		:: due ->
			armed = false;
			FRAME;			/* struct fb_timer */
			claim_word(timer_claim, TIMEOUT, mine)
		:: else
		fi;
		release(timer_lock);
		if
		:: mine -> make_ready()
		:: else
		fi
	od
}

proctype Canceller()
{
	byte seen;
	bool mine = false;

	cancel = true;
	/* full barrier */
	atomic { seen = ticket; mine = (state == WAITING && cancels) }
	if
	:: mine ->
		claim_word(seen, CANCEL, mine);
		if
		:: mine -> make_ready()
		:: else
		fi
	:: else
	fi
}

/* wait_commit(), and select's unlock_all(): off the fiber's stack. */
proctype Commit()
{
	byte t;
	bool mine, c;

end:	do
	:: commit ->
		commit = false;
		mine = false;
		FRAME;
		t = claim;			/* copied before anybody knows */
		c = cancels;
#ifndef EARLY_WORD
		atomic { ticket = t; state = WAITING };
#endif
		if
		:: timed ->
			acquire(timer_lock);
			timer_claim = t;
			armed = true;
			release(timer_lock)
		:: else
		fi;
		/* full barrier */
#ifndef NO_CANCEL_CHECK
		if
		:: cancel && c -> claim_word(t, CANCEL, mine)
		:: else
		fi;
#endif
		FRAME;				/* cases, in lock order */
		release(lock[0]);
		FRAME;				/* the next one is read */
		release(lock[1]);
		settled = true;
		if
		:: mine -> make_ready()
		:: else
		fi
	od
}

inline unqueue(o) {
	acquire(lock[o]);
	queued[o] = false;
	release(lock[o])
}

proctype Waiter()
{
	byte round = 0;
	bool done;

	do
	:: round < ROUNDS ->
		round++;
		cancels = (round == 1);
		if
		:: timed = true
		:: cancels -> timed = false
		fi;
		done = false;
		frame = true;
		given = 0;
		by = 9;
		acquire(lock[0]);
		acquire(lock[1]);
		if
		:: have[0] -> have[0] = false; done = true
		:: have[1] -> have[1] = false; done = true
		:: else ->
			claim = round;
			queued[0] = true;
			queued[1] = true;
			ready = false;
			settled = false;
#ifdef EARLY_WORD
			atomic { ticket = claim; state = WAITING };
#endif
			parked = true;
			commit = true		/* the switch */
		fi;
		if
		:: done ->
			release(lock[1]);
			release(lock[0])
		:: else ->
			ready;			/* somebody claimed us */
			parked = false;
#ifndef NO_SETTLE
			settled;
#endif
#ifndef NO_TIMER_DEL
			acquire(timer_lock);
			armed = false;
			release(timer_lock);
#endif
			unqueue(0);
			unqueue(1);
			assert(state != WAITING);
			assert(state != CANCEL || cancels);
			assert(state != TIMEOUT || timed);
			assert((state == OBJECT) == (given == 1));
			assert((state == OBJECT) == (by != 9));
			assert(given <= 1)
		fi;
		frame = false
	:: else -> break
	od
}

init
{
	atomic {
		run Waiter();
		run Commit();
		run Sender(0);
		run Sender(1);
		run Timer();
		run Canceller()
	}
}
