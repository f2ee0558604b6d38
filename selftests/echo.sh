#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#
# Does samples/echo give back what it gets, to many, to slow ones, to half-closed
# ones, and serve on after clients that vanish or reset? With far more of them than it
# has descriptors for, or serves at once, is none lost, and does it rest meanwhile?
#
#   echo.sh [PROGRAM]	default: build/samples/echo
#
# Runs natively, on the backend FIBER_BACKEND (default: user), with each FIBER_IO.
# Prints TAP; status 0: nothing failed. Clients are bash's own sockets, selftests/net/
# peer and nc.

set -u
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
BUILD=${BUILD:-$HERE/../build}
ECHO=${1:-$BUILD/samples/echo}
PEER=$BUILD/selftests/net/peer
export FIBER_BACKEND=${FIBER_BACKEND:-user}
# shellcheck source-path=SCRIPTDIR source=net/server.sh
. "$HERE/net/server.sh"

start() { serve 'echo: 127.0.0.1:\([0-9]*\),' "$@"; }

# say TEXT: one line there and back
say() {
	local back=''
	exec {c}<>"/dev/tcp/127.0.0.1/$port" || return 1
	echo "$1" >&"$c"
	read -r -t 60 back <&"$c"
	exec {c}>&-
	echo "$back"
}

# many N: so many clients at once; prints how many were served well
many() {
	local i pids=() good=0
	for ((i = 0; i < $1; i++)); do
		{ [ "$(say "client $i")" = "client $i" ]; } &
		pids+=($!)
	done
	for i in "${pids[@]}"; do wait "$i" && good=$((good + 1)); done
	echo "$good"
}

# A big text, written by one process and read by another.
big() {
	exec {c}<>"/dev/tcp/127.0.0.1/$port" || return 1
	head -c 300000 /dev/zero | tr '\0' x >&"$c" &
	head -c 300000 <&"$c" | wc -c
	wait $!
	exec {c}>&-
}

# Clients that say half a word and go.
vanish() {
	local i
	for ((i = 0; i < 20; i++)); do
		exec {c}<>"/dev/tcp/127.0.0.1/$port"
		printf 'hal' >&"$c"
		exec {c}>&-
	done
}

# CPU time in ticks of 10 ms, and how often a thread went to sleep, so far
used() { sed 's/.*) //' "/proc/$server/stat" | awk '{ print $12 + $13 }'; }
slept() { awk '/ctxt/ { n += $2 } END { print n }' "/proc/$server"/task/*/status; }

# within_second N COMMAND: a second in which COMMAND grew by N at most, one of 30:
# what watches for a deadlock looks now and then
within_second() {
	local before i
	for ((i = 0; i < 30; i++)); do
		before=$($2)
		sleep 1
		[ $(($($2) - before)) -gt "$1" ] || { echo yes; return; }
	done
	echo no
}

# Nobody says anything: by epoll no thread runs; by blocking calls each looks for
# a close or a cancel, ten times a second.
rests() {
	same "idle, it uses no CPU" yes "$(within_second 2 used)"
	[ "$way" != epoll ] ||
		same "idle, it does not even wake up" yes \
			"$(within_second 0 slept)"
}

# ask COMMAND OPTION...: a peer that says when it holds its connections: held. answer:
# it goes on; heard is what it says then
ask() {
	coproc HOLD { exec "$PEER" "$@"; }
	hold_in=${HOLD[1]} hold_out=${HOLD[0]} hold_pid=$HOLD_PID
	read -r -t 100 held <&"$hold_out"
}
answer() {
	exec {hold_in}>&-
	read -r -t 100 heard <&"$hold_out"
	wait "$hold_pid"
}

# Clients that say a byte now and then.
drips() {
	ask drip "$port" 60
	same "60 have said half a line" held "$held"
	same "others are served beside them" 20 "$(many 20)"
	answer
	same "they get all that they say" 60 "$heard"
}

# 300 come where 5 are served at once; half of them reset, some of these in the queue.
overload() {
	ask hold "$port" 300
	same "300 connect where 5 are served at once" held "$held"
	answer
	same "half of them reset, the others are served" 150 "$heard"
	same "and then others" on "$(say on)"
}

# 40 connections at a server that has room for about 10: none is lost, the rest is
# served when the first ones go, and until then it tries now and then, not all the time.
no_descriptors() {
	# shellcheck disable=SC2016 # for the shell within
	start bash -c 'ulimit -n 20; exec "$0"' "$ECHO"
	ask hold "$port" 40
	same "40 connect where there is room for 10" held "$held"
	same "without descriptors it does not spin" yes "$(within_second 15 used)"
	answer
	same "half of them go, the others are served" 20 "$heard"
	same "and it serves on" on "$(say on)"
	stop
}

# What sockets do is the same with uring and epoll.
hard() {
	"$PEER" reset "$port" 50
	same "after 50 that reset" again "$(say again)"
	same "a half-closed client hears all" all "$("$PEER" half "$port" all)"
	same "nc, half-closed" "$(seq 20000 | md5sum)" \
		"$(seq 20000 | timeout 60 nc -N 127.0.0.1 "$port" | md5sum)"
	overload
	stop
	start "$ECHO"
	drips
	exec {c}<>"/dev/tcp/127.0.0.1/$port"	# one that says nothing
	rests
	exec {c}>&-
	stop
	no_descriptors
}

if [ ! -x "$PEER" ] || ! command -v nc >/dev/null; then
	echo "1..0 # SKIP no selftests/net/peer, or no nc"
	exit 4
fi
echo "TAP version 13"
for way in uring epoll plain; do
	export FIBER_IO=$way
	start "$ECHO" -l 5
	same "a line" hello "$(say hello)"
	same "20 clients, 5 at once" 20 "$(many 20)"
	same "300000 bytes" 300000 "$(big)"
	vanish
	same "after clients that vanish" again "$(say again)"
	[ "$way" = uring ] || hard
	stop
done
echo "1..$cases"
exit $failed
