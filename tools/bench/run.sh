#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only
#
# Ours and the peers, in one paired run: for each row R rounds, in each round
# every program once, in turn; medians. Lower is better in every row.
#
#   run.sh [ROW...]           default: all rows
#   R=5                       rounds
#   PEERS="go boost ..."      default: all
#   TSV=build/bench/bench.tsv row, ours, peer, peer's figure, ours / peer, unit
#   SVG=build/bench/bench.svg that table as a picture: draw.sh
#   CPU=0                     where the rows of one processor run
#   MEMORY=12582912           KiB of address space for each program
#   LIMIT=60                  seconds for each program
#   NICE=0                    e.g. -15 on a machine that is busy otherwise
#   BENCH_LOAD_MS=            how long servers are measured (echo 2000, http 3000)
#
# One-processor rows are CPU time, the others wall time: those need a quiet
# machine. Servers (echo, http) have CPU 0, their clients CPU 1; the figure is the
# server's CPU time for a request, and in http-wall the time itself.
# The programs: ours and peer_*; what is not installed is left out, and a line
# says so. Rows that end in -traced are of FIBER_TRACE, beside ours without
# (untraced); in -uring FIBER_IO=uring.

set -euo pipefail
cd "$(dirname "$0")/../.."

here=tools/bench
out=build/bench
rounds=${R:-5}
read -ra wanted <<<"${PEERS:-go boost myth st pthread luajit lua uring epoll nginx untraced}"
rows=("$@")
[ $# -gt 0 ] || rows=(switch switch-called yield yield-10 yield-1000
	yield-100000 spawn fib1 fib2 skynet1 skynet2 skynet1-traced chan1 chan2
	buf1 buf2 mutex1 mutex2 mutex-yield mutex-yield2 timer parked
	parked-small blocked coro coro-create echo http pread pread-uring)
flags=(-O2 -g -D_GNU_SOURCE)
limit=${LIMIT:-60}
TSV=${TSV:-$out/bench.tsv}
SVG=${SVG:-$out/bench.svg}

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
		go build -o "$OLDPWD/$out/go" ./*.go)
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

build_st() { c_program $out/st $here/peer_st/st.c -lst; }
build_pthread() { c_program $out/pthread $here/peer_pthread/pthread.c; }
build_uring() { c_program $out/uring $here/peer_uring/uring.c -luring; }
build_epoll() { c_program $out/epoll $here/peer_epoll/epoll.c; }

# Nothing to build: a script that starts the interpreter.
build_luajit() { script luajit luajit "$PWD/$here/peer_lua/coro.lua"; }
build_lua() { script lua lua5.4 "$PWD/$here/peer_lua/coro.lua"; }

build_nginx() {
	local nginx
	nginx=$(PATH=$PATH:/usr/sbin command -v nginx) ||
		{ $here/peer_nginx/fetch.sh $out/nginx-debian &&
		  nginx=$PWD/$out/nginx-debian/usr/sbin/nginx; } || return 1
	script nginx env NGINX="$nginx" "$PWD/$here/peer_nginx/nginx.sh"
}

build_untraced() { script untraced "$PWD/build/tools/bench"; }

# script NAME WORD...: a program of that name that is this command
script() {
	local name=$1
	shift
	{ echo '#!/bin/sh'; echo "exec $(printf '%q ' "$@")\"\$@\""; } >$out/"$name"
	chmod +x $out/"$name"
}

has() {
	case $1 in
	go) command -v go ;;
	boost) [ -e /usr/include/boost/fiber/all.hpp ] && command -v g++ ;;
	luajit) command -v luajit ;;
	lua) command -v lua5.4 ;;
	st) [ -e /usr/include/st.h ] ;;
	uring) [ -e /usr/include/liburing.h ] ;;
	myth|pthread|epoll|nginx|untraced) true ;;
	*) echo "run.sh: no peer '$1'" >&2; exit 2 ;;
	esac >/dev/null
}

build_loads() {
	local name
	gcc -std=gnu11 "${flags[@]}" -o $out/pipes $here/pipes/pipes.c
	for name in echo http; do
		gcc -std=gnu11 "${flags[@]}" -o $out/load-$name \
			$here/load/$name.c $here/load/server.c
	done
}

build() {
	local peer
	mkdir -p $out
	make --no-print-directory -s build/tools/bench build/samples/httpd
	build_loads
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

declare -A failed

# Rows of few programs, that need not be asked.
lacks() {
	case $1/$2 in
	yield-100000/pthread) true ;;		# too many threads
	http/ours|http/nginx|*-traced/ours|*-traced/untraced) false ;;
	http/*|*/nginx|*-traced/*|*/untraced) true ;;
	*) false ;;
	esac
}

# command_of ROW WHO: into command, and cpus
command_of() {
	local program=$out/$2
	[ "$2" != ours ] || program=build/tools/bench
	command=("$program" "$1")
	cpus=${CPU:-0}
	case $1 in
	blocked) cpus=0,1 command=("$out/pipes" "${command[@]}") ;;
	echo*) cpus=0,1 command=("$out/load-echo" "${command[@]}") ;;
	http)
		[ "$2" != ours ] || program=$here/load/httpd.sh
		cpus=0,1 command=("$out/load-http" "$PWD/$out/http-$2" "$program")
		;;
	*2) cpus=0,1 ;;
	esac
}

# The environment of one program; with a million stacks of 64 KiB each: address
# space, of which a page each is used.
settings() {
	local memory=${MEMORY:-12582912}
	case $1 in parked) memory=$((memory + 70000000)) ;; esac
	ulimit -v "$memory"
	export GOGC=off GOMEMLIMIT=2GiB BENCH_DIR=$out
	case $1/$2 in
	*-traced/ours) export FIBER_TRACE=$out/trace.json ;;
	*-uring/ours) export FIBER_IO=uring ;;
	esac
}

# One run: appends "ROW who FIGURE" lines to raw, or none without that row.
run() {
	local row=$1 who=$2 status=0 cpus command why
	command_of "$row" "$who"
	{ (
		settings "$row" "$who"
		exec nice -n "${NICE:-0}" timeout "$limit" \
			taskset -c "$cpus" "${command[@]}" >$out/figures
	) || status=$?; } 2>$out/errors
	case $status in
	0) sed "s/^\([^ ]*\) /\1\t$who\t/" $out/figures >>$out/raw ;;
	77) failed[$row-$who]=1 ;;
	*)
		failed[$row-$who]=1
		[ $status != 124 ] || status="stopped after $limit s"
		why=$(tail -n 1 $out/errors)
		echo "# $who $row: left out, $status${why:+: $why}"
	esac
}

can_run() {
	[ "$1" != http ] || command -v wrk >/dev/null ||
		{ echo "# http: left out, wrk is not installed: tools/deps.sh bench"
		  return 1; }
}

measure() {
	local row round who
	: >$out/raw
	for row in "${rows[@]}"; do
		can_run "$row" || continue
		for ((round = 0; round < rounds; round++)); do
			for who in ours "${peers[@]}"; do
				lacks "$row" "$who" ||
					[ "${failed[$row-$who]:-}" ] ||
					run "$row" "$who"
			done
		done
	done
}

main() {
	build
	echo "# $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)," \
		"$(nproc) CPUs, load $(cut -d' ' -f1 /proc/loadavg)," \
		"$rounds rounds"
	measure
	awk -f $here/medians.awk $out/raw >"$TSV"
	awk -f $here/table.awk "$TSV"
	echo "# load afterwards $(cut -d' ' -f1 /proc/loadavg)"
	echo "# table: $TSV"
	if ! command -v gnuplot >/dev/null; then
		echo "# no picture, gnuplot is not installed: tools/deps.sh bench"
	elif $here/draw.sh "$TSV" "$SVG"; then
		echo "# picture: $SVG"
	fi
}

main
exit
