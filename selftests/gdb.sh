#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only
#
# tools/gdb/libfiber-gdb.py on a live process and on core files: selftests/tools/
# parked.c, of which it must find every fiber, and where each is. TAP.

set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
TOP=$HERE/..
BUILD=$(cd "${BUILD:-$TOP/build}" && pwd)
out=$BUILD/gdb
# shellcheck source-path=SCRIPTDIR source=cases.sh
. "$HERE/cases.sh"

# in_gdb WORD... -- COMMAND...: gdb's output into $out/said
in_gdb() {
	local words=() commands=()
	while [ "$1" != -- ]; do words+=("$1"); shift; done
	shift
	for c; do commands+=(-ex "$c"); done
	timeout 100 gdb -batch -nx -iex 'set auto-load safe-path /' \
		-iex 'set debuginfod enabled off' "${words[@]}" \
		"${commands[@]}" >"$out/said" 2>&1 </dev/null || true
}

said() { grep -qE -- "$1" "$out/said"; }

# part TITLE: what was said of one fiber
part() { awk -v t="$1" 'index($0, t) { on = 1; next } /^$/ { on = 0 } on' "$out/said"; }

has() { part "$1" | grep -qE -- "$2"; }

listed() {
	local parked='[0-9]+ +waits_for_ever +worker$'
	said '^6 fibers$' && said " worker 0  .*parked \\(event\\) +$parked" &&
		said " worker 2  .*parked \\(event\\), locked to LWP [0-9]+ +$parked" &&
		said ' first, second  .*parked \(mutex\) .* crosses +first_second$' &&
		said ' second, first  .*parked \(mutex\) .* crosses +second_first$' &&
		said ' reads  .*on LWP [0-9]+, locked .*read +reads$'
}

stacks() {
	has '"worker 1" (parked' 'waits_for_ever \(number=1\)' &&
		has '"worker 1" (parked' '^#[0-9]+ .* worker \(' &&
		has '"worker 1" (parked' 'fb_arch_start' &&
		has '"worker 2" (parked' 'waits_for_ever \(number=2\)' &&
		has '"first, second" (parked' ' crosses \(' &&
		has '"second, first" (parked' ' second_first \(' &&
		has '"reads" (on LWP' ' reads \('
}

# No frame of the thread that gdb had selected (main, in read)
only_its_own() { ! has '"worker 1" (parked' ' main \(' && ! said 'corrupt stack'; }

one_fiber() {
	said '^\[Fiber [0-9]+ "worker 1", parked \(event\)\]$' &&
		said '^number is 1$' && said '^after: 3$'
}

id_of() { awk -v name="$1" 'index($0, name) { print $1; exit }' "$out/said"; }

in_pools() {
	said '^ +Id +Name +Pool +State ' &&
		said '[0-9]+ +computes +cpu +(on LWP|ready)' &&
		said '[0-9]+ +waits there +cpu +parked \(event\)' &&
		said '[0-9]+ +sends +pool 2 ' && said '[0-9]+ +waits here +- +parked'
}

# start NAME. Its standard input stays open, at 8, as long as it is to live. gdb's own core files
# have nothing of a mapping behind the first page that it cannot read, such as the
# guards that Linux 6.13 installs: so here the guards are mappings of their own.
start() {
	rm -f "$out/in" "$out/out"
	mkfifo "$out/in" "$out/out"
	FIBER_BACKEND=user FIBER_STACK_GUARD=mprotect "$out/$1" \
		<"$out/in" >"$out/out" &
	target=$!
	exec 8>"$out/in" 7<"$out/out"
	read -r pid <&7
}

# The kernel's own, if cores are files here
crash() {
	local dir=$out/core.d
	rm -rf "$dir"
	mkdir -p "$dir"
	(cd "$dir" && ulimit -c unlimited &&
		echo abort | FIBER_BACKEND=user "$out/parked" >/dev/null) \
		2>/dev/null || true
	find "$dir" -type f | head -n 1
}

rm -rf "$out"
mkdir -p "$out/lib"
echo 'TAP version 13'
if ! command -v gdb >/dev/null; then
	echo '1..0 # SKIP gdb is not installed'
	exit 0
fi
# The library beside its script, as gdb loads them.
cp "$BUILD/lib/libfiber.so.0" "$out/lib/"
cp "$TOP/tools/gdb/libfiber-gdb.py" "$out/lib/libfiber.so.0-gdb.py"
gcc -std=gnu11 -O2 -g -I"$TOP/lib/include" -o "$out/parked" \
	"$HERE/tools/parked.c" "$out/lib/libfiber.so.0" \
	-Wl,-rpath,"$out/lib" -lpthread

start parked
in_gdb -p "$pid" -- 'info fibers' 'fiber apply all bt' \
	"generate-core-file $out/core"
case_ 'info fibers lists each, and its state' listed
case_ 'fiber apply all bt shows where each is' stacks
case_ 'and no frame of a thread' only_its_own
in_gdb -p "$pid" -- 'info fibers'
id=$(id_of 'worker 1')
in_gdb -p "$pid" -- "fiber $id" 'frame function waits_for_ever' 'info fibers' \
	'printf "number is %d\n", number' 'fiber off' 'frame function main' \
	'printf "after: %d\n", n' 'fiber 987654321' 'fiber x'
case_ 'fiber ID, its variables, and back to the thread' one_fiber
case_ 'an id that is none is refused' said '^there is no fiber 987654321$'
case_ 'and a word' said "^'x' is no fiber's id"
exec 8>&-
wait "$target" || true

in_gdb "$out/parked" "$out/core" -- 'info fibers' 'fiber apply all bt'
case_ 'a core file that gdb made: list' listed
case_ 'a core file that gdb made: stacks' stacks
core=$(crash)
if [ -n "$core" ]; then
	in_gdb "$out/parked" "$core" -- 'info fibers' 'fiber apply all bt'
	case_ 'a core file of the kernel: list' listed
	case_ 'a core file of the kernel: stacks' stacks
else
	n=$((n + 1))
	echo "ok $n - # SKIP core files do not come here: core_pattern"
fi
gcc -std=gnu11 -O2 -g -I"$TOP/lib/include" -o "$out/pools" \
	"$HERE/tools/pools.c" "$out/lib/libfiber.so.0" -Wl,-rpath,"$out/lib"
start pools
in_gdb -p "$pid" -- 'info fibers'
case_ 'info fibers says of which pool each is' in_pools
exec 8>&-
wait "$target" || true
in_gdb /bin/true -- "source $out/lib/libfiber.so.0-gdb.py" 'info fibers'
case_ 'a program without fibers is told so' said '^no fiber_debug_v1: '
echo "1..$n"
