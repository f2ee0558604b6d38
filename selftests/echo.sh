#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#
# Does samples/echo give back what it gets, to many, to slow ones, to a half-closed
# one, and serve on after clients that vanish?
#
#   echo.sh [PROGRAM]	default: build/samples/echo
#
# Runs natively, on the backend FIBER_BACKEND (default: user), with each FIBER_IO.
# Prints TAP; status 0: nothing failed. Clients are bash's own sockets.

set -u
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
ECHO=${1:-${BUILD:-$HERE/../build}/samples/echo}
export FIBER_BACKEND=${FIBER_BACKEND:-user}
# shellcheck source-path=SCRIPTDIR source=net/server.sh
. "$HERE/net/server.sh"

start() { serve 'echo: 127.0.0.1:\([0-9]*\),' "$ECHO" "$@"; }

# say TEXT: one line there and back
say() {
	local back=''
	exec {c}<>"/dev/tcp/127.0.0.1/$port" || return 1
	echo "$1" >&"$c"
	read -r -t 20 back <&"$c"
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

echo "TAP version 13"
for FIBER_IO in uring epoll plain; do
	export FIBER_IO
	start -l 5
	same "$FIBER_IO: a line" hello "$(say hello)"
	same "$FIBER_IO: 20 clients, 5 at once" 20 "$(many 20)"
	same "$FIBER_IO: 300000 bytes" 300000 "$(big)"
	vanish
	same "$FIBER_IO: after clients that vanish" again "$(say again)"
	stop
done
echo "1..$cases"
exit $failed
