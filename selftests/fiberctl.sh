#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only
#
# tools/fiberctl on live processes: selftests/tools/parked.c, small and with 100,000
# fibers; and what it says when it cannot. TAP.

set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
TOP=$HERE/..
BUILD=$(cd "${BUILD:-$TOP/build}" && pwd)
CTL=$BUILD/tools/fiberctl
out=$BUILD/fiberctl
# shellcheck source-path=SCRIPTDIR source=cases.sh
. "$HERE/cases.sh"

# seen WORD... -- CHECK...: fiberctl WORD... says it, now or soon. A thread that is
# blocked may be awake for a moment.
seen() {
	local words=()
	while [ "$1" != -- ]; do words+=("$1"); shift; done
	shift
	for _ in $(seq 100); do
		ctl "${words[@]}"
		! "$@" || return 0
		sed 's/^/# not yet: /' "$out/said" "$out/error"
		sleep 0.1
	done
	return 1
}

said() { grep -qE -- "$1" "$out/said"; }

# refused STATUS WORDS: nothing else was said
refused() { [ "$status" = "$1" ] && grep -qE -- "$2" "$out/error"; }

# start NAME [N]: parked; its pid in $pid. It lives as long as descriptor 8 is open.
start() { start_as "$1" parked "${2:-3}"; }

# start_as NAME PROGRAM WORD
start_as() {
	rm -f "$out/$1.in" "$out/$1.out"
	mkfifo "$out/$1.in" "$out/$1.out"
	FIBER_BACKEND=user "$out/$2" "$3" <"$out/$1.in" >"$out/$1.out" &
	target=$!
	exec 8>"$out/$1.in" 7<"$out/$1.out"
	read -r pid <&7
}

stop() {
	exec 8>&-
	wait "$target" || true
}

listed() {
	[ "$status" = 0 ] && [ "$(wc -l <"$out/said")" = 7 ] &&
		said '^[0-9]+ +worker 0 +parked \(event\) +[0-9.]+ +[0-9]+ +- +- +- +waits_for_ever +worker$' &&
		said '^[0-9]+ +worker 2 +parked \(event\) .* [0-9]+! +waits_for_ever +worker$' &&
		said '^[0-9]+ +first, second +parked \(mutex\) .* crosses +first_second$' &&
		said '^[0-9]+ +reads +blocked +- +- +- +- +[0-9]+! +read +reads$'
}

# The CPU time of the one that spins grows, on one processor.
spinning() {
	local was
	said '^[0-9]+ +spins +running +- +- +[01] +[0-9.]+ +[0-9]+ +- +spins$' ||
		return 1
	was=$(awk '/ spins / { print $7 }' "$out/said")
	for _ in $(seq 500); do
		ctl ps "$pid"
		! awk -v was="$was" '/ spins / && $7 > was { grew = 1 }
			END { exit !grew }' "$out/said" || return 0
		sleep 0.01
	done
	return 1
}

in_order() { tr '\n' ' ' <"$out/said" | grep -qE -- "$1"; }

stacks() {
	[ "$status" = 0 ] &&
		in_order 'worker 1 [^#]*waits_for_ever[^#]* +worker \([^)]*parked.c:[0-9]+\)' &&
		in_order 'second, first [^#]* crosses [^#]*second_first ' &&
		in_order 'reads +blocked.* reads \([^)]*parked.c:[0-9]+\)'
}

in_pools() {
	[ "$status" = 0 ] &&
		said '^ID +NAME +POOL +STATE ' &&
		said '^[0-9]+ +computes +cpu +(running|ready) .* computes$' &&
		said '^[0-9]+ +waits there +cpu +parked \(event\) ' &&
		said '^[0-9]+ +sends +pool 2 +(parked|running|ready)' &&
		said '^[0-9]+ +receives +- +(parked|running|ready)' &&
		said '^[0-9]+ +waits here +- +parked \(event\) '
}

top_of_pools() {
	[ "$status" = 0 ] && said '%CPU +ID +NAME +POOL +STATE ' &&
		said ' computes +cpu +(running|ready) '
}

# Nothing is known at first; then some of it is used, sooner or later.
spins_in_top() {
	[ "$status" = 0 ] && [ "$(grep -c ' spins ' "$out/said")" = 5 ] &&
		said '^ +- +[0-9]+ +spins ' &&
		said '^ +([1-9][0-9]*\.[0-9]|0\.[1-9]) +[0-9]+ +spins ' &&
		said '^crash \([0-9]+\): 3 fibers, 1 running, 0 ready, 1 blocked, 1 parked, 0 new$'
}

stacks_or_why() {
	stacks || { said 'its fibers cannot be told$' &&
		refused 1 'lacks stacks: .* FIBER_STACK_GUARD=mprotect$'; }
}

# crash PROGRAM WORD [INPUT]: its core file, as $core, if such files come here
crash() {
	rm -rf "$out/core.d"
	mkdir "$out/core.d"
	(cd "$out/core.d" && ulimit -c unlimited &&
		echo "${3:-}" | FIBER_BACKEND=user "$out/$1" "$2" >/dev/null) \
		2>/dev/null || true
	core=$(find "$out/core.d" -type f | head -n 1)
}

# dumped WORD SIGNAL FUNCTION: a core file of crash.c
dumped() {
	[ "$status" = 0 ] && said "^crash, process [0-9]+, ended by $2: 4 fibers$" &&
		in_order " waits +parked \(event\) [^#]* waits \([^)]*crash.c:" &&
		in_order " reads +blocked [^#]* reads \([^)]*crash.c:" &&
		in_order " spins +running [^#]* spins \([^)]*crash.c:" &&
		in_order " ends +running \($2\) [^#]* $3 \([^)]*crash.c:"
}

json_ok() { [ "$status" = 0 ] && python3 -c "$1" <"$out/said"; }

# A fiber's place as stack --json told it is that of ps.
same() {
	cp "$out/said" "$out/stack.json"
	ctl ps --json "$pid"
	json_ok 'import json, sys
stack = json.load(open("'"$out"'/stack.json"))
assert [(f["id"], f["where"]) for f in stack] == \
    [(f["id"], f["where"]) for f in json.load(sys.stdin)]'
}

cpu_seconds() { awk '{ s += $2 } END { print s }' "$out/times"; }

under_a_second() {
	echo "# ps of 100,000 fibers: $(cpu_seconds) s of CPU"
	awk -v s="$(cpu_seconds)" 'BEGIN { exit !(s < 1) }'
}

rm -rf "$out"
mkdir -p "$out"
echo 'TAP version 13'
if [ ! -x "$CTL" ]; then
	echo '1..0 # SKIP fiberctl was not built: libdw-dev'
	exit 0
fi
gcc -std=gnu11 -O2 -g -I"$TOP/lib/include" -o "$out/parked" \
	"$HERE/tools/parked.c" -L"$BUILD/lib" -Wl,-rpath,"$BUILD/lib" \
	-lfiber -lpthread

gcc -std=gnu11 -Wall -Wextra -o "$out/without" "$HERE/tools/without.c"

start small
case_ 'ps lists each fiber' seen ps "$pid" -- listed
id=$(awk '/ worker 1 / { print $1 }' "$out/said")
without=("$out/without" process_vm_readv --)
case_ 'and without process_vm_readv' seen ps "$pid" -- listed
case_ 'stacks, too' seen stack "$pid" -- stacks
without=()
ctl ps
case_ 'ps without a pid lists the process' said "^$pid +6 +[0-9]+ +user +parked$"
case_ 'stack shows parked and blocked ones' seen stack "$pid" -- stacks
ctl stack "$pid" "$id"
case_ 'stack of one' in_order "^$id +worker 1 .* waits_for_ever "
case_ 'and of no other' [ "$(grep -c '^[0-9]' "$out/said")" = 1 ]
ctl stack "$pid" 987654321
case_ 'an id that is none' refused 1 'has no fiber 987654321$'
ctl stats "$pid"
case_ 'stats count' said '^fibers +6$'
case_ 'and spawned ones' said '^spawned +6$'
if command -v python3 >/dev/null; then
	case_ 'ps --json' seen ps --json "$pid" -- json_ok 'import json, sys
v = json.load(sys.stdin)
assert sorted(f["name"] for f in v) == ["first, second", "reads",
    "second, first", "worker 0", "worker 1", "worker 2"], v
assert {f["state"] for f in v} == {"parked", "blocked"}, v
w = {f["name"]: f["where"] for f in v}
assert w["worker 1"] == "waits_for_ever" and w["reads"] == "read", w'
	case_ 'and the whole stacks say the same' seen stack --json "$pid" -- same
	ctl stack --json "$pid" "$id"
	case_ 'stack --json' json_ok 'import json, sys
(f,) = json.load(sys.stdin)
assert [g["function"] for g in f["stack_frames"]].count("waits_for_ever") == 1'
	ctl stats --json "$pid"
	case_ 'stats --json' json_ok 'import json, sys
assert json.load(sys.stdin)["fibers"] == 6'
	ctl check --json
	[ "$status" = 0 ] || status=$((status - 1))	# 1: no module here
	case_ 'check --json' json_ok 'import json, sys
v = json.load(sys.stdin)
assert {"kernel", "module", "device"} <= {f["what"] for f in v}, v'
fi
stop
ctl ps "$pid"
case_ 'a process that has ended' refused 1 "^fiberctl: there is no process $pid$"
ctl ps 2
case_ 'one of the kernel' refused 1 '^fiberctl: (process 2 has no memory|there is no process 2)'
ctl ps $$
case_ 'a process without fibers' refused 1 ' has no fibers: it does not use libfiber$'
colour=$'a\e[31mb\xc2\x9b1m'		# what no terminal may get
cp "$out/parked" "$out/$colour"
start_as coloured "$colour" 1
case_ 'a name with control characters' seen ps -- \
	grep -q "^$pid .* user  *a?\[31mb??1m$" "$out/said"
stop
printf '#include <unistd.h>
#include "debug.h"
struct fiber_debug fiber_debug_v1 = { .magic = "fiberdbg", .version = 1,
	.size = sizeof(fiber_debug_v1),
	.fiber = { .size = 64, .id = 0x7ffffff0 } };
int main(void)
{
	char byte;
	write(1, "1\\n", 2);
	return (int)read(0, &byte, 1);
}
' | gcc -x c -w -I"$TOP/lib" -o "$out/liar" -
start_as liar liar ''
ctl ps "$target"
case_ 'a process that tells nonsense' refused 1 'process [0-9]+ uses a libfiber that makes no sense'
stop
ctl ps 0
case_ 'no pid' refused 2 "'0' is no process id$"
ctl ps --often
case_ 'no option' refused 2 "no option '--often'"
ctl fly
case_ 'no command' refused 2 "no command 'fly'"
ctl
case_ 'nothing' refused 2 '^usage: fiberctl '
ctl --help
case_ 'help' said '^ +stats '
if [ "$(id -u)" = 0 ] && command -v setpriv >/dev/null; then
	start other
	install -m 755 "$CTL" /tmp/fiberctl.$$
	status=0
	setpriv --reuid 65534 --regid 65534 --clear-groups /tmp/fiberctl.$$ \
		ps "$pid" >"$out/said" 2>"$out/error" || status=$?
	rm -f /tmp/fiberctl.$$
	case_ "another user's process" refused 1 '^fiberctl: no permission to read process'
	stop
fi

gcc -std=gnu11 -O2 -g -I"$TOP/lib/include" -o "$out/crash" \
	"$HERE/tools/crash.c" -L"$BUILD/lib" -Wl,-rpath,"$BUILD/lib" -lfiber
gcc -std=gnu11 -O2 -g -I"$TOP/lib/include" -o "$out/pools" \
	"$HERE/tools/pools.c" -L"$BUILD/lib" -Wl,-rpath,"$BUILD/lib" -lfiber
start_as pooled pools ''
case_ 'ps says of which pool each is' seen ps "$pid" -- in_pools
case_ 'top does' seen top -b -n 1 "$pid" -- top_of_pools
if command -v python3 >/dev/null; then
	case_ 'ps --json, too' seen ps --json "$pid" -- json_ok 'import json, sys
v = {f["name"]: f.get("pool") for f in json.load(sys.stdin)}
assert v == {"computes": "cpu", "waits there": "cpu", "sends": "pool 2",
             "receives": None, "waits here": None}, v'
fi
stop
start_as spin crash stay
case_ 'processor and CPU time of one that runs' seen ps "$pid" -- spinning
if command -v python3 >/dev/null; then
	case_ 'the same in --json' seen ps --json "$pid" -- json_ok 'import json, sys
v = {f["name"]: f for f in json.load(sys.stdin)}
assert v["spins"]["processor"] in (0, 1) and v["spins"]["cpu_ns"] > 0, v
assert not {"processor", "cpu_ns"} & set(v["waits"]), v'
fi
case_ 'top -b, in how much of a CPU one spins' \
	seen top -b -n 5 -d 0.1 "$pid" -- spins_in_top
case_ 'top -b of all processes' seen top -b -n 1 -s id -- said "^$pid +- +[0-9.]+ +3 +1 +0 +1 +1 +2 +user +crash$"
ctl top "$pid"
case_ 'top without a terminal' refused 2 'top needs a terminal; .* top -b$'
stop
ctl top -b "$pid"
case_ 'top of a process that has ended' refused 1 "^fiberctl: there is no process $pid$"
ctl top -b -s blue
case_ 'a column that is none' refused 2 \
	"^fiberctl: no column 'blue': cpu, time, stack, for, state, id, name, fibers$"
ctl top -b -s stack
case_ 'or is not in that table' refused 2 "no 'stack' to sort by here$"
if command -v python3 >/dev/null; then
	FIBER_BACKEND=user timeout 200 python3 "$HERE/tools/top.py" "$CTL" \
		"$out/crash" stay >"$out/said" 2>"$out/error" || true
	case_ 'each case in a terminal was tried' \
		[ "$(grep -cE '^(not )?ok ' "$out/said")" = 9 ]
	while read -r result name; do
		case_ "top: $name" [ "$result" = ok ]
	done <"$out/said"
fi
crash crash overflow
if [ -n "$core" ]; then
	ctl dump "$core"
	case_ 'dump after a stack overflow' dumped overflow SIGSEGV deeper
	crash crash abort
	ctl dump "$core"
	case_ 'dump after an abort' dumped abort SIGABRT aborts
	if command -v python3 >/dev/null; then
		ctl dump --json "$core"
		case_ 'dump --json' json_ok 'import json, sys
v = json.load(sys.stdin)
assert v["command"] == "crash" and v["signal"] == "SIGABRT", v
w = {f["name"]: (f["state"], f["why"], f["where"]) for f in v["fibers"]}
assert w["waits"] == ("parked", "event", "waits"), w
assert w["reads"] == ("blocked", "", "read"), w
assert w["spins"] == ("running", "", "spins"), w
assert w["ends"][:2] == ("running", "SIGABRT"), w
(f,) = [f for f in v["fibers"] if f["name"] == "ends"]
assert "aborts" in [g["function"] for g in f["stack_frames"]], f'
	fi
	head -c 5000 "$core" >"$out/cut"
	ctl dump "$out/cut"
	case_ 'dump of a core file cut short' refused 1 \
		"core file $out/cut is cut short \(5000 of [0-9]+ bytes\)"
	head -c -1 "$core" >"$out/cut"
	ctl dump "$out/cut"
	case_ 'by a byte: the rest is told' said 'ended by SIGABRT: 4 fibers$'
	case_ 'and what lacks' refused 1 'is cut short .*may be missing$'
	mv "$out/crash" "$out/moved"
	ctl dump "$core"
	case_ 'without the program: the rest is told' in_order \
		' waits +parked \(event\) [^#]* fb_sync_wait '
	case_ 'and what lacks' refused 1 "^fiberctl: $out/crash is not there, "
	ctl dump "$core" "$out/parked"
	case_ 'another program' refused 1 "^fiberctl: $out/crash is not there, "
	ctl dump "$core" "$out/moved"
	case_ 'the program from elsewhere' dumped abort SIGABRT aborts
else
	n=$((n + 1))
	echo "ok $n - # SKIP core files do not come here: core_pattern"
fi
printf '#include <stdlib.h>\nint main(void) { abort(); }\n' |
	gcc -x c - -o "$out/plain"
crash plain ''
if [ -n "$core" ]; then
	ctl dump "$core"
	case_ 'a core file without fibers' refused 1 \
		"core file $core has no fibers: its program does not use libfiber"
fi
ctl dump "$out/parked"
case_ 'a program is no core file' refused 1 'parked is no core file, but a program'
ctl dump "$0"
case_ 'nor is a script' refused 1 'is no core file$'
ctl dump "$out/nothing"
case_ 'nor what is not there' refused 1 'nothing: No such file or directory$'
ctl dump
case_ 'dump of nothing' refused 2 '^usage: fiberctl dump '
if command -v gcore >/dev/null; then
	export FIBER_STACK_GUARD=mprotect	# gcore ends at the others
	start small
	unset FIBER_STACK_GUARD
	gcore -o "$out/gcore" "$pid" >"$out/said" 2>&1 || true
	stop
	ctl dump "$out/gcore.$pid"
	case_ "gdb's own core file" stacks
	start small
	gcore -o "$out/gcore" "$pid" >"$out/said" 2>&1 || true
	stop
	ctl dump "$out/gcore.$pid"
	case_ 'without the stacks, if guard pages are those of Linux 6.13' \
		stacks_or_why
fi

start many 100000
{ TIMEFORMAT='cpu %U
cpu %S'; time ctl ps "$pid"; } 2>"$out/times"
case_ '100,000 fibers are all listed' [ "$(grep -c ' worker ' "$out/said")" = 100000 ]
case_ 'in less than a second' under_a_second
case_ 'with where each is' [ "$(grep -c ' waits_for_ever  *worker$' "$out/said")" = 100000 ]
stop
echo "1..$n"
exit $failed
