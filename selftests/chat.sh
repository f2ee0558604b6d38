#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#
# Does samples/chat bring every line to everybody once and in order, with a client
# that does not read beside them, and does it end well?
#
#   chat.sh [PROGRAM]	default: build/samples/chat
#
# Runs natively, on the backend FIBER_BACKEND (default: user), with each FIBER_IO.
# Prints TAP; status 0: nothing failed. Clients are bash's own sockets, and nc.

set -u
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
CHAT=${1:-${BUILD:-$HERE/../build}/samples/chat}
export FIBER_BACKEND=${FIBER_BACKEND:-user}
# shellcheck source-path=SCRIPTDIR source=net/server.sh
. "$HERE/net/server.sh"
CLIENTS=50 LINES_EACH=20

start() { serve 'chat: 127.0.0.1:\([0-9]*\),' "$CHAT" "$@"; }

# until_line FD TEXT: read up to that line; false: it did not come
until_line() {
	local seen
	while read -r -t 30 seen <&"$1"; do
		[ "$seen" != "$2" ] || return 0
	done
	return 1
}

# enter NAME: a client that has a name; sets fd
enter() {
	exec {fd}<>"/dev/tcp/127.0.0.1/$port" || return 1
	echo "$1" >&"$fd"
	until_line "$fd" "* $1 is here"
}

all_heard() {	# all_heard N REGEX: everybody heard N such lines
	for ((i = 1; i <= CLIENTS; i++)); do
		[ "$(grep -c "$2" "$DIR/heard.$i")" = "$1" ] || return 1
	done
}
here() {
	for ((i = 1; i <= CLIENTS; i++)); do
		grep -qx "\* c$i is here" "$DIR/heard.$i" || return 1
	done
}

# What each of many hears is in heard.N: all say all their lines at once.
many() {
	local i fds=() cats=()
	for ((i = 1; i <= CLIENTS; i++)); do
		exec {fd}<>"/dev/tcp/127.0.0.1/$port" || return 1
		fds[i]=$fd
		cat <&"$fd" >"$DIR/heard.$i" & cats+=($!)
		echo "c$i" >&"$fd"
	done
	soon here
	for ((i = 1; i <= CLIENTS; i++)); do
		seq "$LINES_EACH" >&"${fds[i]}" &
	done
	soon all_heard $((CLIENTS * LINES_EACH)) '^c'
	for fd in "${fds[@]}"; do echo /quit >&"$fd"; done
	wait "${cats[@]}"
	for fd in "${fds[@]}"; do exec {fd}>&-; done
}

# Each heard all, each sender's in its order, and all of them the same.
judge() {
	local i
	for ((i = 1; i <= CLIENTS; i++)); do
		grep '^c' "$DIR/heard.$i" | awk -F': ' -v "lines=$LINES_EACH" '
			$2 != ++last[$1] { wrong++ }
			END { for (c in last) if (last[c] == lines) whole++
			      print whole + 0, wrong + 0 }'
	done | sort | uniq -c | sed 's/^ *//'
}

# loud_heard N TEXT: N times, of itself
loud_heard() {
	local tries
	for ((tries = 0; tries < 3000; tries++)); do
		[ "$(grep -cx "loud: $2" "$DIR/loud")" != "$1" ] || return 0
		sleep 0.01
	done
	return 1
}

told() { grep -qx '\* mute is gone' "$DIR/loud"; }

# A client that reads nothing while another is heard 4000 times. When it is dropped
# depends on what the kernel keeps for it; the other is told in between.
slow() {
	local i mute last text lines reader
	text=$(printf 'x%.0s' {1..480})
	lines=$(for i in {1..50}; do echo "$text"; done)
	enter mute; mute=$fd
	enter loud
	cat <&"$fd" >"$DIR/loud" &
	reader=$!
	for ((i = 0; i < 4000; i += 50)); do
		echo "$lines" >&"$fd"
		loud_heard $((i + 50)) "$text" || break
	done
	same "$FIBER_IO: who reads hears all, beside one that does not" 4000 $i
	last=$(timeout 60 tail -n 1 <&"$mute")
	same "$FIBER_IO: who does not is told, and gone" \
		"* you do not read what the others say" "$last"
	exec {mute}>&-
	same "$FIBER_IO: the others see that" yes "$(soon told && echo yes)"
	exec {fd}>&-
	{ kill "$reader"; wait "$reader"; } 2>/dev/null
}

# Names, commands, limits, by netcat's manners: all at once, then half-closed.
talk() {
	exec {fd}<>"/dev/tcp/127.0.0.1/$port"
	printf "$1" >&"$fd"
	timeout 30 cat <&"$fd" | grep -v '^\* who are you'
	exec {fd}>&-
}

manners() {
	local other
	enter tom; other=$fd
	same "$FIBER_IO: a name that is taken" "* tom is taken, say another name" \
		"$(talk 'tom\n/quit\nann\n/quit\n' | head -n 1)"
	same "$FIBER_IO: no name" "* a name has 1 to 15 letters, digits, - or _" \
		"$(talk 'a b\nann\n/quit\n' | head -n 1)"
	same "$FIBER_IO: /who" "* 2 are here: eve tom" \
		"$(talk 'eve\n/who\n/quit\n' | grep here: )"
	same "$FIBER_IO: a long line" "* that line is too long" \
		"$(talk "bob\n$(printf 'y%.0s' {1..9000})" | tail -n 1)"
	same "$FIBER_IO: control characters" "joe: ?[2Jhi" \
		"$(talk 'joe\n\033[2Jhi\n/quit\n' | grep hi)"
	exec {other}>&-
}

# Two netcats: one is there while the other says something, by its input's end.
netcats() {
	local seen
	coproc AMY { exec timeout 60 nc -N 127.0.0.1 "$port"; }
	local in=${AMY[1]} out=${AMY[0]} pid=$AMY_PID
	echo amy >&"$in"
	until_line "$out" "* amy is here"
	seen=$(printf 'bob\nhello\n' | timeout 60 nc -N 127.0.0.1 "$port")
	same "$FIBER_IO: nc says something, and hears it" "bob: hello" \
		"$(grep hello <<<"$seen")"
	same "$FIBER_IO: another nc hears it, and that it went" yes \
		"$(until_line "$out" "bob: hello" &&
		   until_line "$out" "* bob is gone" && echo yes)"
	exec {in}>&-
	wait "$pid"
	same "$FIBER_IO: nc ends when it is half-closed" 0 $?
}

ending() {
	local a b first
	enter one; a=$fd
	exec {b}<>"/dev/tcp/127.0.0.1/$port"
	read -r -t 30 first <&"$b"	# it came to the list, without a name
	kill -"$1" "$server"
	wait "$server"
	same "$FIBER_IO: SIG$1: status 0" 0 $?
	servers=()
	same "$FIBER_IO: and everybody is told" "* the server stops/* the server stops" \
		"$(timeout 30 tail -n 1 <&"$a")/$(timeout 30 tail -n 1 <&"$b")"
	exec {a}>&- {b}>&-
}

# refuses NAME REGEX OPTION...
refuses() {
	local name=$1 regex=$2 seen rc
	shift 2
	seen=$(timeout 30 "$CHAT" "$@" 2>&1 >/dev/null)
	rc=$?
	[[ $rc != 0 && $rc != 124 && $seen =~ $regex ]] || rc="$rc, $seen"
	same "$name" "${rc%%,*}" "$rc"
}

command -v nc >/dev/null || { echo "1..0 # SKIP no nc"; exit 4; }
echo "TAP version 13"
for FIBER_IO in epoll plain; do
	export FIBER_IO
	start -t 100 -q 4000
	many
	same "$FIBER_IO: $CLIENTS clients hear each line of $CLIENTS once, in order" \
		"$CLIENTS $CLIENTS 0" "$(judge)"
	same "$FIBER_IO: all in the same order" 1 \
		"$(for f in "$DIR"/heard.*; do grep '^c' "$f" | md5sum; done |
		   sort -u | wc -l)"
	manners
	netcats
	stop
	start -t 100 -q 60
	slow
	ending TERM
done
start -c 2
enter first; first=$fd
enter second
same "one more than -c" "* there are too many here" "$(talk '' | head -n 1)"
exec {first}>&-
until_line "$fd" "* first is gone"
exec {fd}>&-
nobody() { [ "$(talk 'x\n/who\n/quit\n' | grep -c ' 1 are')" = 1 ]; }
soon nobody
ending INT
same "--help" "usage: chat [options]" "$("$CHAT" --help | head -n 1)"
refuses "bad port" '^chat: port: 70000 is not a number' -p 70000
refuses "bad address" '^chat: nowhere port 0: Invalid' -b nowhere
refuses "extra argument" '^chat: x: no such argument' x
echo "1..$cases"
exit $failed
