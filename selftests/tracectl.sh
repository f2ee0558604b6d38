#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only
#
# fiberctl trace of selftests/tools/{busy,hog}.c, of samples/httpd under load, of a process
# that parks; what it leaves behind, and what it says when it cannot. TAP.

# shellcheck disable=SC2317,SC2016 # called by name; a program in python
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
TOP=$HERE/..
BUILD=$(cd "${BUILD:-$TOP/build}" && pwd)
CTL=$BUILD/tools/fiberctl
out=$BUILD/tracectl
# shellcheck source-path=SCRIPTDIR source=cases.sh
. "$HERE/cases.sh"
export FIBER_BACKEND=user

# refused STATUS WORDS [FILE]: said so, and left no file
refused() {
	[ "$status" = "$1" ] && grep -qE -- "$2" "$out/error" &&
		[ ! -e "${3:-$out/none.json}" ]
}

# start NAME [VARIABLE...]: its pid in $pid; it lives until stop
start() {
	rm -f "$out/in" "$out/out"
	mkfifo "$out/in" "$out/out"
	env "${@:2}" "$out/$1" <"$out/in" >"$out/out" &
	target=$!
	exec 8>"$out/in" 7<"$out/out"
	read -r pid <&7
}

stop() {
	exec 8>&-
	wait "$target" || true
}

# ---- the file ----

# A trace in which no lane has two slices at once, and for which all is true, of
# slices, marks, ends (their names) and other
true_of() {
	python3 - "$@" >>"$out/error" 2>&1 <<-'END'
	import json, sys
	trace = json.load(open(sys.argv[1]))
	events, other = trace["traceEvents"], trace["otherData"]
	named = lambda ph: {e["name"] for e in events if e["ph"] == ph}
	slices, marks, threads = named("X"), named("i"), named("B")
	ends = {e["args"]["end"] for e in events if e["ph"] == "X" and "args" in e}
	lane = {e["tid"]: e["args"]["name"] for e in events
	        if e["ph"] == "M" and e["pid"] == 1 and e["name"] == "thread_name"}
	until = {}
	for e in events:
	    if e["ph"] == "X" and e["pid"] == 1:
	        assert e["ts"] >= until.get(e["tid"], 0) - 0.0015, e
	        until[e["tid"]] = e["ts"] + e["dur"]
	wrong = [c for c in sys.argv[2:] if not eval(c)]
	if wrong:
	    sys.exit(f"not true: {wrong} of {slices} {marks} {ends} {threads}")
	END
}

# traced PID CONDITION...: it may take several tries until a short trace has all that
# can be.
traced() {
	local i
	for ((i = 0; i < 60; i++)); do
		ctl trace "$1" -d 0.3 -o "$out/busy.json"
		[ "$status" = 0 ] || grep -q 'nothing happened' "$out/error" ||
			return 1
		[ "$status" != 0 ] || ! true_of "$out/busy.json" "${@:2}" ||
			return 0
	done
	return 1
}

shows_all() {
	traced "$pid" '{"sends", "receives", "spins", "blocks"} <= slices' \
		'{"ready", "preempt", "block", "return"} <= marks' \
		'{"handoff", "given", "taken idle"} & marks' \
		'{"preempted", "blocked", "parked: sleep"} <= ends' \
		'"blocks" in threads and not "run_main" in slices' \
		'other["backend"] == "user" and other["processors"] == "1"'
}

# As shows_pools, of a process that records already: there, who goes on with nobody
# to yield to leaves no trace.
shows_who_parks() {
	traced "$pid" '{"sends", "receives"} <= slices' \
		'{(e["name"], lane[e["tid"]]) for e in events if e["ph"] == "X" and "args" in e and e["name"] in ("sends", "receives")} == {("sends", "processor 2 (pool 2)"), ("receives", "processor 0")}' \
		'other["processors"] == "3"'
}

# Each fiber of pools.c is seen on the lane of its pool alone
shows_pools() {
	traced "$pid" '{"computes", "sends", "receives"} <= slices' \
		'{(e["name"], lane[e["tid"]]) for e in events if e["ph"] == "X" and "args" in e and e["name"] in ("computes", "sends", "receives")} == {("computes", "processor 1 (cpu)"), ("sends", "processor 2 (pool 2)"), ("receives", "processor 0")}' \
		'other["processors"] == "3"'
}

drawn_pools() {
	drawn && python3 - "$out/busy.svg" <<-'END'
	import sys, xml.etree.ElementTree as tree
	text = [e.text for e in tree.parse(sys.argv[1]).getroot().iter()
	        if e.tag.endswith("text")]
	for word in ("processor 0", "processor 1", "cpu", "processor 2", "pool 2"):
	    assert text.count(word) == 1, (word, text)
	END
}

drawn() { "$TOP/tools/timeline/fiber-timeline" -o "$out/busy.svg" "$out/busy.json"; }

# ---- more than one ----

holds() {
	local fd
	for fd in "/proc/$1/fd/"*; do
		[ "$(readlink "$fd")" != "/proc/$2/stat" ] || return 0
	done
	return 1
}

# until_ COMMAND...
until_() {
	local i
	for ((i = 0; i < 600; i++)); do
		! "$@" 2>/dev/null || return 0
		sleep 0.1
	done
	return 1
}

# in_background SECONDS: fiberctl that holds $pid; its own in $first
in_background() {
	rm -f "$out/first.json"
	"$CTL" trace "$pid" -d "$1" -o "$out/first.json" \
		2>"$out/first.error" 8>&- 7<&- &
	first=$!
	until_ holds "$first" "$pid"
}

# ended SIGNAL: it wrote what there was, and says that all is well
ended() {
	kill "-$1" "$first"
	status=0
	wait "$first" || status=$?
	[ "$status" = 0 ] && true_of "$out/first.json" '"sends" in slices'
}

# Of a process that ends meanwhile there is what it did until then.
until_it_ended() {
	status=0
	wait "$first" || status=$?
	[ "$status" = 0 ] && grep -q 'early: the process' "$out/first.error" &&
		true_of "$out/first.json" '"sends" in slices'
}

switches() {
	ctl stats "$pid"
	awk '$1 == "switches" { print $2 }' "$out/said"
}

naps() { awk '/^voluntary/ { print $2 }' "/proc/$first/status"; }

more_than() { [ "$("$1")" -gt "$2" ]; }

# It has done something since it was asked, and then that was read.
begun() {
	until_ more_than switches $(($(switches) + 500)) &&
		until_ more_than naps $(($(naps) + 3))
}

after_a_killed_one() {
	in_background 100 && begun
	kill -KILL "$first"
	wait "$first" 2>/dev/null || true
	traced "$pid" '"sends" in slices'
}

# Threads come and go for a while after it began.
does_nothing() {
	rm -f "$out/none.json"
	ctl trace "$pid" -d 0.1 -o "$out/none.json"
	refused 1 'nothing happened to its fibers'
}

# ---- a sample ----

httpd_serves() { curl -sf -o /dev/null "http://127.0.0.1:$port/page"; }

load() {
	while :; do httpd_serves || true; done
}

httpd_traced() {
	local server loader r=0
	mkdir -p "$out/www"
	head -c 100000 /dev/zero >"$out/www/page"
	port=$((20000 + $$ % 10000))
	"$BUILD/samples/httpd" -p "$port" -r "$out/www" >"$out/httpd.log" 2>&1 &
	server=$!
	until_ httpd_serves || r=1
	load &
	loader=$!
	if [ "$r" = 0 ]; then
		traced "$server" '"conn_main" in slices' \
			'"block" in marks' '"ended" in ends' || r=1
	fi
	kill "$loader" "$server"
	wait "$loader" "$server" 2>/dev/null || true
	return "$r"
}

rm -rf "$out"
mkdir -p "$out"
echo 'TAP version 13'
if [ ! -x "$CTL" ] || ! command -v python3 >/dev/null; then
	echo '1..0 # SKIP fiberctl was not built (libdw-dev), or no python3'
	exit 0
fi
for program in busy hog parked pools; do
	gcc -std=gnu11 -O2 -g -I"$TOP/lib/include" -o "$out/$program" \
		"$HERE/tools/$program.c" -L"$BUILD/lib" \
		-Wl,-rpath,"$BUILD/lib" -lfiber -lpthread
done

gcc -std=gnu11 -Wall -Wextra -o "$out/without" "$HERE/tools/without.c"

start busy FIBER_PROCESSORS=1 FIBER_QUANTUM_US=2000
case_ 'slices, blocks, handoffs, preemptions' shows_all
case_ 'fiber-timeline draws it' drawn
without=("$out/without" process_vm_readv process_vm_writev --)
case_ 'by /proc/PID/mem, where the calls are missing' traced "$pid" '"sends" in slices'
without=("$out/without" -p process_vm_readv process_vm_writev --)
case_ 'or are forbidden' traced "$pid" '"sends" in slices'
without=("$out/without" process_vm_writev pwrite64 --)
ctl trace "$pid" -o "$out/none.json"
case_ 'where neither can write' refused 1 \
	"^fiberctl: process $pid may be read, but not made to record: Function not implemented$"
case_ 'that alone is said' [ "$(wc -l <"$out/error")" = 1 ]
without=()
in_background 100
ctl trace "$pid" -o "$out/none.json"
case_ 'one at a time' refused 1 'being traced by another fiberctl$'
begun
case_ 'Ctrl-C ends it, and it is written' ended INT
case_ 'after one that was killed' after_a_killed_one
ctl trace "$pid" -o /nowhere/at/all.json
case_ 'a file that cannot be' refused 1 'No such file'
in_background 100
begun
stop
case_ 'a process that ends' until_it_ended
ctl trace "$pid" -o "$out/none.json"
case_ 'one that has ended' refused 1 "^fiberctl: there is no process $pid$"

start pools FIBER_PROCESSORS=1
case_ 'a lane for each processor of pools' shows_pools
case_ 'and the picture has them' drawn_pools
stop
start pools FIBER_PROCESSORS=1 FIBER_TRACE="$out/own.json"
case_ 'if it has FIBER_TRACE, too' shows_who_parks
stop
start busy FIBER_PROCESSORS=1 FIBER_TRACE="$out/own.json"
case_ 'one that has FIBER_TRACE' traced "$pid" '"sends" in slices'
stop
start hog FIBER_PROCESSORS=2
case_ 'one that never parks' traced "$pid" 'slices == {"hogs"}' \
	'[e["dur"] > 250000 for e in events if e["ph"] == "X"] == [True]'
stop
start parked
case_ 'one that does nothing' until_ does_nothing
if [ "$(id -u)" = 0 ] && command -v setpriv >/dev/null; then
	install -m 755 "$CTL" /tmp/fiberctl.$$
	status=0
	setpriv --reuid 65534 --regid 65534 --clear-groups /tmp/fiberctl.$$ \
		trace "$pid" -o /dev/null >"$out/said" 2>"$out/error" || status=$?
	rm -f /tmp/fiberctl.$$
	case_ "another user's" refused 1 '^fiberctl: no permission to read process'
fi
stop
ctl trace $$ -o "$out/none.json"
case_ 'one without fibers' refused 1 ' has no fibers: it does not use libfiber$'
ctl trace $$
case_ 'no file' refused 2 '^usage: fiberctl trace '
ctl trace -o "$out/none.json" x
case_ 'no pid' refused 2 "'x' is no process id"
ctl trace $$ -o "$out/none.json" -d never
case_ 'no time' refused 2 '^usage: fiberctl trace '
if command -v curl >/dev/null; then
	case_ 'httpd under load' httpd_traced
fi
echo "1..$n"
exit $failed
