#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only
#
# The probes of the library: what the manual says of them, by readelf, and what gdb,
# perf and bpftrace see of selftests/tools/probed.c, by the commands of the manual. TAP.

# shellcheck disable=SC2317,SC2016,SC2013 # called by name; patterns; numbers
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
TOP=$HERE/..
BUILD=$(cd "${BUILD:-$TOP/build}" && pwd)
PAGE=$TOP/man/fiber_probes.7
LIB=$BUILD/lib/libfiber.so.0
out=$BUILD/probes
# shellcheck source-path=SCRIPTDIR source=cases.sh
. "$HERE/cases.sh"
looks_on=

skip() {
	n=$((n + 1))
	echo "ok $n - # SKIP $*"
}

said() { grep -qE -- "$1" "$out/said"; }

# ---- what the manual says ----

# "name arguments" a line
in_page() {
	sed -n 's/^\.BI fiber:\([a-z]*\)(/\1 /p' "$PAGE" |
		awk '{ print $1, gsub(/,/, "") + 1 }' | sort
}

# The same of a file, each place that a probe stands at
in_file() {
	readelf -nW "$1" | awk '
	/Provider: / { ours = $NF == "fiber" }
	$1 == "Name:" { name = $2 }
	$1 == "Arguments:" && ours { print name, NF - 1 }' | sort
}

arguments() { readelf -nW "$1" | sed -n 's/^ *Arguments: *//p'; }

as_in_page() { diff <(in_page) <(in_file "$1" | uniq) >"$out/said"; }

# The size of each, by place, is one: else perf refuses; as it does with constants.
same_everywhere() {
	arguments "$1" >"$out/said"
	! grep -q '@\$' "$out/said" || return 1
	readelf -nW "$1" | awk '
	$1 == "Name:" { name = $2 }
	$1 == "Arguments:" {
		gsub(/@[^ ]*/, "")
		if (name in seen && seen[name] != $0) bad = 1
		seen[name] = $0
	}
	END { exit bad }'
}

# A program with a static library has them all too.
static_too() {
	diff <(in_file "$LIB") <(in_file "$out/static") >"$out/said"
}

whys_in_page() {
	sed -n '/^\.\\" whys/,/\.$/p' "$PAGE" | sed 1d | tr '\n' ' ' |
		sed 's/\. *$/\n/; s/, */\n/g' | sed 's/^[0-9]* //'
}

whys_in_library() {
	sed -n '/why_name\[FB_WHYS\] = {/,/};/p' "$TOP/lib/debug.c" |
		grep -o '"[^"]*"' | tr -d '"' | sed 1d
}

whys() { diff <(whys_in_page) <(whys_in_library) >"$out/said"; }

# example NAME: as it is to be typed, for the library under test
example() {
	awk -v want=".\\\\\" runs $1" '
	$0 == want { on = 1 }
	on && /^\.EE/ { exit }
	on == 2 { print }
	on && /^\.EX/ { on = 2 }' "$PAGE" |
		sed "s/\\\\-/-/g; s,/usr/local/lib/libfiber.so.0,$LIB,g;
		     s,\\./program,$out/probed,"
}

# ---- gdb ----

# probe NAME FORMAT: prints its arguments, goes on
probe() {
	printf 'break -probe-stap fiber:%s\ncommands\nsilent\n' "$1"
	printf 'printf "%s %s"' "$1" "$2"
	for ((i = 0; i < $(tr -cd % <<<"$2" | wc -c); i++)); do
		printf ', $_probe_arg%d' $i
	done
	printf '\n%scontinue\nend\n' "${3:-}"
}

write_script() {
	printf 'set pagination off\nhandle SIGURG nostop noprint pass\n'
	printf 'break main\nrun\n'
	probe spawn '%lu %lu ' $'info symbol $_probe_arg2\n'
	probe exit '%lu\n'
	probe switch '%lu %lu %u\n'
	probe park '%lu %u\n'
	probe ready '%lu %u\n'
	probe steal '%lu %u %u\n'
	probe preempt '%lu %u\n'
	probe handoff '%lu %u %u\n'
	printf 'continue\n'
}

# in_gdb PROCESSORS WORD...
in_gdb() {
	local processors=$1
	shift
	FIBER_BACKEND=user FIBER_PROCESSORS=$processors FIBER_QUANTUM_US=2000 \
		timeout 100 gdb -batch -nx -iex 'set debuginfod enabled off' \
		"$@" >"$out/said" 2>&1 </dev/null || true
}

# The id under which the program's fiber said that it is there
id() { awk -v name="$1" '$1 == name { print $2; exit }' "$out/said"; }

# in_order PATTERN...: lines that match follow one another, others between them
in_order() {
	grep -nE -e "$(IFS='|'; echo "^($*)")" "$out/said" | cut -d: -f2- |
		awk -v all="$(printf '%s\n' "$@")" '
		BEGIN { n = split(all, want, "\n"); at = 1 }
		at <= n && $0 ~ "^" want[at] { at++ }
		END { exit at <= n }'
}

begins() {
	local m
	m=$(id main)
	in_order "spawn $m 0 run_main" "ready $m 4294967295\$" "switch 0 $m 0\$" \
		"exit $m\$" && said '^handoff 0 0 [0-5]$'
}

waits() {
	local m w
	m=$(id main) w=$(id waits)
	in_order "spawn $w $m waits" "switch $m $w 0\$" "park $w 13\$" \
		"switch $w $m 0\$" "ready $w 0\$" "park $m 2\$" \
		"switch ($m|0) $w 0\$" "exit $w\$" "ready $m 0\$" \
		"switch ($w|0) $m 0\$"
}

preempts() {
	local s
	for s in $(awk '$1 == "spins" { print $2 }' "$out/said"); do
		! in_order "preempt $s 0\$" "handoff $s 0 [0-5]\$" "exit $s\$" ||
			return 0
	done
	return 1
}

blocks() {
	local r
	r=$(id reads)
	in_order "switch [0-9]+ $r 0\$" 'handoff 0 0 2$' "exit $r\$"
}

# steal ID TO FROM: who is stolen then goes on there
steals() {
	local line
	line=$(grep -E -m 1 '^steal [0-9]+ (0 1|1 0)$' "$out/said") || return 1
	# shellcheck disable=SC2086 # words
	set -- $line
	in_order "$line" "switch [0-9]+ $2 $3"
}

stops_there() {
	said "^\\\$1 = $(id waits)\$" && said '^\$2 = 13$'
}

with_gdb() {
	local command words=()
	write_script >"$out/script"
	in_gdb 1 "$out/probed" -ex 'break main' -ex run -ex 'info probes stap fiber'
	case_ 'gdb: info probes' [ "$(grep -c '^stap  *fiber ' "$out/said")" = \
		"$(in_file "$LIB" | wc -l)" ]
	in_gdb 1 -x "$out/script" "$out/probed"
	case_ 'gdb: how it begins and ends' begins
	case_ 'gdb: spawn, park, ready, switch, exit' waits
	case_ 'gdb: preempt' preempts
	case_ 'gdb: handoff' blocks
	in_gdb 2 -x "$out/script" --args "$out/probed" steal
	case_ 'gdb: steal' steals
	while read -r command; do
		words+=(-ex "${command#(gdb) }")
	done < <(example gdb)
	in_gdb 1 "$out/probed" -ex 'handle SIGURG nostop noprint pass' \
		-ex 'break main' -ex run "${words[@]}"
	case_ 'gdb: the commands of the manual' stops_there
}

# ---- perf ----

# run NAME: the commands of the manual, in the folder
run() {
	(cd "$out" && example "$1" >"$1.sh" &&
		FIBER_BACKEND=user FIBER_PROCESSORS=1 FIBER_QUANTUM_US=2000 \
		timeout 100 bash -e "$1.sh") >"$out/said" 2>&1 </dev/null
}

perf_forgets() {
	[ -z "$looks_on" ] || perf probe -q -d 'sdt_fiber:*' >/dev/null 2>&1 || true
	looks_on=
}

# Fields are in hexadecimal or not, as perf likes.
perf_saw() {
	local w
	w=$(id waits)
	said "sdt_fiber:spawn: .* arg1=$w arg2=[0-9]+ arg3=(0x)?[0-9a-f]+" &&
		said "sdt_fiber:park: .* arg1=$w arg2=13" &&
		said "sdt_fiber:ready: .* arg1=$w arg2=0" &&
		said "sdt_fiber:switch: .* arg1=[0-9]+ arg2=$w arg3=0" &&
		said "sdt_fiber:preempt: .* arg1=$(id spins) arg2=0" &&
		said "sdt_fiber:handoff: .* arg1=0 arg2=0 arg3=2" &&
		said "sdt_fiber:exit: .* arg1=$w"
}

# Other events of that name are not ours to remove.
with_perf() {
	if ! command -v perf >/dev/null; then
		skip 'perf is not installed'
	elif [ -n "$(perf probe -l 'sdt_fiber:*' 2>/dev/null)" ]; then
		skip 'perf has been told of sdt_fiber:* already'
	elif ! run perf-add; then
		skip "perf can set no probe here: $(grep -m 1 . "$out/said")"
	else
		looks_on=1
		case_ 'perf record' run perf-record
		case_ 'perf script' perf_saw
		case_ 'perf probe -d' run perf-del
		looks_on=
	fi
}

# ---- bpftrace ----

# What it prints comes when all is attached.
looks() {
	for ((i = 0; i < 600; i++)); do
		! grep -qs '^looks$' "$out/$1.said" || return 0
		kill -0 "$2" 2>/dev/null || return 1
		sleep 0.1
	done
	return 1
}

# bpf NAME: the command of the manual, while the program runs
bpf() {
	local pid
	example "bpftrace-$1" >"$out/$1.sh"
	sed -i "s/bpftrace -e '/exec bpftrace -B line -e 'interval:ms:100 { printf(\"looks\\\\n\"); } /" \
		"$out/$1.sh"
	bash "$out/$1.sh" >"$out/$1.said" 2>&1 </dev/null &
	pid=$!
	if looks "$1" $pid; then
		FIBER_BACKEND=user FIBER_PROCESSORS=1 FIBER_QUANTUM_US=2000 \
			"$out/probed" >"$out/said"
		kill -INT $pid
		wait $pid || true
		grep -v '^looks' "$out/$1.said" >>"$out/said"
	else
		kill $pid 2>/dev/null || true
		wait $pid || true
		cp "$out/$1.said" "$out/said"
		return 1
	fi
}

with_bpftrace() {
	if ! command -v bpftrace >/dev/null; then
		skip 'bpftrace is not installed'
	elif ! bpf park; then
		skip "bpftrace cannot look here: $(grep -m 1 ERROR "$out/said")"
	else
		case_ 'bpftrace: what fibers wait for' said '^@\[13\]: 1$'
		case_ 'bpftrace: histogram' bpf ready
		case_ 'bpftrace: of how long they are ready' said '\[.*\) +[0-9]+ \|'
		case_ 'bpftrace: time' bpf switch
		case_ 'bpftrace: of each fiber' said "^@ns\[$(id waits)\]: [0-9]+"
	fi
}

build() {
	gcc -std=gnu11 -O2 -g -I"$TOP/lib/include" -o "$out/$1" \
		"$HERE/tools/probed.c" "${@:2}" -lpthread
}

rm -rf "$out"
mkdir -p "$out"
echo 'TAP version 13'
if [ -z "$(in_file "$LIB")" ]; then
	echo '1..0 # SKIP the library was built without systemtap-sdt-dev'
	exit 0
fi
trap perf_forgets EXIT
build probed -L"$BUILD/lib" -Wl,-rpath,"$BUILD/lib" -lfiber
read -ra uring < <(sed -n 's/^Libs.private: //p' "$BUILD/lib/fiber.pc")
build static "$BUILD/lib/libfiber.a" "${uring[@]}"
case_ 'the probes are those of the manual' as_in_page "$LIB"
case_ 'with arguments of one kind at each place' same_everywhere "$LIB"
case_ 'a static library has them too' static_too
case_ 'what fibers wait for is as in the manual' whys
if command -v gdb >/dev/null; then with_gdb; else skip 'gdb is not installed'; fi
with_perf
with_bpftrace
echo "1..$n"
exit $failed
