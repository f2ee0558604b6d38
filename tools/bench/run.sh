#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only
#
# Ours and the peers, in one paired run: for each row R rounds, in each round
# every program once, in turn; medians. Lower is better in every row.
#
#   run.sh [ROW...]           default: all rows
#   R=5                       rounds
#   PEERS="go boost myth pthread luajit lua"
#   TSV=file                  also: row, ours, peer, peer's figure, ours / peer
#   CPU=0                     where the rows of one processor run
#   MEMORY=12582912           KiB of address space for each program
#   LIMIT=60                  seconds for each program
#   NICE=0                    e.g. -15 on a machine that is busy otherwise
#
# One-processor rows are CPU time, the others wall time: those need a quiet
# machine. The programs: ours.c and peer_*; a peer that is not installed is
# left out, and a line says so.

set -euo pipefail
cd "$(dirname "$0")/../.."

here=tools/bench
out=build/bench
rounds=${R:-5}
read -ra wanted <<<"${PEERS:-go boost myth pthread luajit lua}"
rows=("$@")
[ $# -gt 0 ] || rows=(switch switch-called yield yield-10 yield-1000
	yield-100000 spawn fib1 fib2 skynet1 skynet2 chan1 chan2 buf1 buf2
	mutex1 mutex2 mutex-yield mutex-yield2 timer parked parked-small
	blocked coro coro-create)
flags=(-O2 -g -D_GNU_SOURCE)
limit=${LIMIT:-60}

unit() {
	case $1 in
	*-bytes) echo bytes ;;
	skynet*|blocked-entered|parked*) echo ms ;;
	blocked*|timer-p*) echo us ;;
	*) echo ns ;;
	esac
}

# --- building ----------------------------------------------------------------

stale() {
	[ ! -e "$1" ] || [ -n "$(find $here -newer "$1" -print -quit)" ]
}

c_program() {
	local program=$1 source=$2
	shift 2
	gcc -std=gnu11 "${flags[@]}" -o "$program" "$source" $here/bench.c "$@" \
		-lpthread
}

build_go() {
	(cd $here/peer_go && GO111MODULE=off GOCACHE="$OLDPWD/$out/gocache" \
		go build -o "$OLDPWD/$out/go" main.go)
}

build_boost() {
	gcc -std=gnu11 "${flags[@]}" -c -o $out/bench.o $here/bench.c
	g++ -std=gnu++17 "${flags[@]}" -o $out/boost $here/peer_boost/boost.cpp \
		$out/bench.o -lboost_fiber -lboost_context -lpthread
}

build_myth() {
	local dir=$PWD/$out/massivethreads
	if [ -e /usr/include/myth/myth.h ]; then
		c_program $out/myth $here/peer_myth/myth.c -lmyth
		return
	fi
	$here/massivethreads.sh "$dir"
	c_program $out/myth $here/peer_myth/myth.c -I"$dir/include" \
		-L"$dir/lib" -Wl,-rpath,"$dir/lib" -lmyth
}

build_pthread() {
	c_program $out/pthread $here/peer_pthread/pthread.c
}

# Nothing to build: a script that starts the interpreter.
build_luajit() { lua_script luajit luajit; }
build_lua() { lua_script lua lua5.4; }

lua_script() {
	printf '#!/bin/sh\nexec %s %s "$@"\n' "$2" "$PWD/$here/peer_lua/coro.lua" \
		>$out/"$1"
	chmod +x $out/"$1"
}

has() {
	case $1 in
	go) command -v go ;;
	boost) [ -e /usr/include/boost/fiber/all.hpp ] && command -v g++ ;;
	luajit) command -v luajit ;;
	lua) command -v lua5.4 ;;
	myth|pthread) true ;;
	*) echo "run.sh: no peer '$1'" >&2; exit 2 ;;
	esac >/dev/null
}

build() {
	local peer
	mkdir -p $out
	make --no-print-directory -s build/tools/bench
	gcc -std=gnu11 "${flags[@]}" -o $out/pipes $here/pipes/pipes.c
	peers=()
	for peer in "${wanted[@]}"; do
		if ! has "$peer"; then
			echo "# $peer is not installed: tools/deps.sh bench"
		elif ! stale "$out/$peer" || (build_"$peer"); then
			peers+=("$peer")
		else
			echo "# $peer does not build: left out"
		fi
	done
}

# --- running -----------------------------------------------------------------

# program of ours or a peer
program() {
	case $1 in
	ours) echo build/tools/bench ;;
	*) echo $out/"$1" ;;
	esac
}

declare -A failed

# One run: appends "ROW who FIGURE" lines to raw, or none without that row.
run() {
	local row=$1 who=$2 cpus=${CPU:-0} status=0
	local command=("$(program "$who")" "$row")
	case $row in
	*2) cpus=0,1 ;;
	blocked) cpus=0,1 command=($out/pipes "${command[@]}") ;;
	esac
	# A million stacks of 64 KiB: address space, of which a page each is used.
	local memory=${MEMORY:-12582912}
	case $row in parked) memory=$((memory + 70000000)) ;; esac
	{ (
		ulimit -v "$memory"
		export GOGC=off GOMEMLIMIT=2GiB
		exec nice -n "${NICE:-0}" timeout "$limit" \
			taskset -c "$cpus" "${command[@]}" >$out/figures
	) || status=$?; } 2>$out/errors
	case $status in
	0) sed "s/^\([^ ]*\) /\1\t$who\t/" $out/figures >>$out/raw ;;
	77) failed[$row-$who]=1 ;;
	*)
		failed[$row-$who]=1
		[ $status != 124 ] || status="stopped after $limit s"
		echo "# $who $row: left out, $status: $(tail -1 $out/errors)"
	esac
}

measure() {
	local row round who
	# 10^5 threads are too many.
	failed[yield-100000-pthread]=1
	: >$out/raw
	for row in "${rows[@]}"; do
		for ((round = 0; round < rounds; round++)); do
			for who in ours "${peers[@]}"; do
				[ "${failed[$row-$who]:-}" ] || run "$row" "$who"
			done
		done
	done
}

# raw lines -> row, who, median; in order of first appearance
medians() {
	awk -F'\t' '
	{
		key = $1 FS $2
		if (!(key in n)) order[++keys] = key
		value[key, ++n[key]] = $3 + 0
	}
	END {
		for (k = 1; k <= keys; k++) {
			key = order[k]
			for (i = 2; i <= n[key]; i++)	# insertion sort
				for (j = i; j > 1 && value[key, j - 1] > value[key, j]; j--) {
					t = value[key, j]
					value[key, j] = value[key, j - 1]
					value[key, j - 1] = t
				}
			m = int((n[key] + 1) / 2)
			x = n[key] % 2 ? value[key, m] : (value[key, m] + value[key, m + 1]) / 2
			printf "%s\t%.3f\n", key, x
		}
	}'
}

# --- printing ----------------------------------------------------------------

number() {
	awk -v x="$1" 'BEGIN {
		if (x == "") print "-"
		else printf x < 100 ? "%.2f\n" : "%.0f\n", x
	}'
}

tsv() {
	awk -F'\t' -v OFS='\t' '
	$2 == "ours" { ours[$1] = $3; next }
	{ line[++lines] = $0 }
	END {
		print "row", "ours", "peer", "figure", "ratio"
		for (i = 1; i <= lines; i++) {
			split(line[i], f, FS)
			if (f[1] in ours)
				print f[1], ours[f[1]], f[2], f[3], \
					sprintf("%.3f", ours[f[1]] / f[3])
		}
	}'
}

table() {
	local row who x ours best name cells
	printf '%-20s %10s' row ours
	printf ' %10s' "${peers[@]}"
	printf '  %-9s %s\n' best ours/best
	while read -r row; do
		ours='' best='' name='-' cells=''
		for who in ours "${peers[@]}"; do
			x=$(awk -F'\t' -v r="$row" -v w="$who" \
				'$1 == r && $2 == w { print $3 }' $out/medians)
			cells+=$(printf ' %10s' "$(number "$x")")
			if [ "$who" = ours ]; then
				ours=$x
			elif [ -n "$x" ] && awk "BEGIN { exit !(\"$best\" == \"\" || $x < \"$best\" + 0) }"; then
				best=$x name=$who
			fi
		done
		printf '%-20s%s  %-9s %s\n' "$row, $(unit "$row")" "$cells" "$name" \
			"$(awk -v a="$ours" -v b="$best" 'BEGIN {
				print a == "" || b == "" ? "-" : sprintf("%.2f", a / b) }')"
	done < <(cut -f1 $out/medians | awk '!seen[$0]++')
}

main() {
	build
	echo "# $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1)," \
		"$(nproc) CPUs, load $(cut -d' ' -f1 /proc/loadavg)," \
		"$rounds rounds"
	measure
	medians <$out/raw >$out/medians
	table
	echo "# load afterwards $(cut -d' ' -f1 /proc/loadavg)"
	[ -z "${TSV:-}" ] || tsv <$out/medians >"$TSV"
}

main
exit
