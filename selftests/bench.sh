#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only
#
# tools/bench: rows that are quick, once each, with a peer that is not there; the table
# and the picture of made figures. How fast anything is does not matter here. TAP.

# shellcheck disable=SC2317 # called by name
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
TOP=$(cd "$HERE/.." && pwd)
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
# shellcheck source-path=SCRIPTDIR source=cases.sh
. "$HERE/cases.sh"

# All rows of PEERS.md, and so the names and units that readers of tables rely on.
NAMES='switch=ns yield=ns spawn=ns fib1=ns fib2=ns skynet1=ms skynet2=ms chan1=ns
chan2=ns buf1=ns buf2=ns mutex1=ns mutex2=ns parked-create=ms parked-bytes=bytes
parked-wake=ms timer-cpu=ns timer-p99=us echo=us blocked-entered=ms blocked-wake=us
http=us pread=ns skynet1-traced=ms parked-small-create=ms'

skip() {
	n=$((n + 1))
	echo "ok $n - $1 # SKIP $2"
}

# Programs as they are, without one that a peer needs.
without() {
	mkdir "$out/bin"
	ln -s /usr/bin/* /usr/sbin/* "$out/bin/" 2>/dev/null || true
	rm -f "$out/bin/$1"*
}

# bench ROW...: with the settings that are quick
bench() {
	PATH=$out/bin R=1 PEERS="pthread luajit epoll untraced" BENCH_LOAD_MS=200 \
		TSV=$out/run.tsv SVG=$out/run.svg \
		"$TOP/tools/bench/run.sh" "$@" >"$out/said" 2>"$out/error"
}

said() { grep -qxE -- "$1" "$out/said"; }

# line TSV ROW PEER UNIT: stands there once, with figures above 0 and their ratio
line() {
	awk -F'\t' -v r="$2" -v p="$3" -v u="$4" '
	NF != 6 { bad = 1 }
	$1 == r && $3 == p && $6 == u && $2 > 0 && $4 > 0 {
		n++
		d = $5 - $2 / $4
		if (d > 0.001 || d < -0.001) bad = 1
	}
	END { exit n != 1 || bad }' "$1"
}

# Each name with its unit, and no other line.
units() {
	local pair
	for pair in $NAMES; do
		[ "$(awk -F'\t' -v r="${pair%=*}" '$1 == r { print $6 }' "$1" |
			sort -u)" = "${pair#*=}" ] || { echo "# $pair"; return 1; }
	done
}

# Three rounds; the second peer has two, and every fifth row none.
make_raw() {
	local pair i=0
	for pair in $NAMES; do
		i=$((i + 1))
		printf '%s\tours\t%s\n' "${pair%=*}" $i "${pair%=*}" $((i * 3)) \
			"${pair%=*}" $((i * 2))
		[ $((i % 5)) = 0 ] || printf '%s\t%s\t%s\n' \
			"${pair%=*}" go $((i * 2000)) "${pair%=*}" go $((i * 1000)) \
			"${pair%=*}" go $((i * 9000)) \
			"${pair%=*}" myth "$i" "${pair%=*}" myth $((i * 2)) \
			"${pair%=*}" nobody-knows $((i * 2 + 1))
	done
}

# picture SVG TEXT...: well-formed, with these texts, and none over another
picture() {
	python3 - "$@" <<-'END'
	import re, sys, xml.etree.ElementTree as tree
	name = lambda e: e.tag.rpartition("}")[2]
	boxes = []
	for g in tree.parse(sys.argv[1]).getroot().iter():
	    at = re.match(r"translate\(([\d.]+),([\d.]+)\)", g.get("transform", ""))
	    for t in g if at else ():
	        if name(t) != "text":
	            continue
	        text = "".join(t.itertext()).strip()
	        wide = 7 * len(text)
	        x = float(at[1]) - wide * {"start": 0, "middle": .5, "end": 1}[g.get("text-anchor")]
	        boxes.append((x, float(at[2]), wide, text))
	texts = [b[3] for b in boxes]
	missing = [w for w in sys.argv[2:] if w not in texts]
	over = [(a, b) for i, a in enumerate(boxes) for b in boxes[:i]
	        if abs(a[1] - b[1]) < 11 and a[0] < b[0] + b[2] and b[0] < a[0] + a[2]]
	print("missing:", missing, "over another:", over)
	sys.exit(bool(missing or over))
	END
}

drawn() { picture "$@" >"$out/said" 2>"$out/error"; }
draw() { "$TOP/tools/bench/draw.sh" "$@" >"$out/said" 2>"$out/error"; }

# refused WORDS TSV: a line that says why, and no picture
refused() {
	! draw "$2" "$out/refused.svg" && grep -q -- "$1" "$out/error" &&
		[ ! -e "$out/refused.svg" ] && [ ! -e "$out/refused.svg.new" ]
}

echo 'TAP version 13'
without luajit
rows=(spawn pread coro)
[ "$(nproc)" -lt 2 ] || rows+=(echo)
case_ 'runs with a peer that is missing' bench "${rows[@]}"
case_ 'which is left out, with a line' \
	said '# luajit is not installed: tools/deps\.sh bench'
case_ 'a row of fibers beside threads' line "$out/run.tsv" spawn pthread ns
case_ 'a row of files beside threads' line "$out/run.tsv" pread pthread ns
case_ 'a row that no peer has' grep -qE "^coro	[0-9.]+	-	-	-	ns$" "$out/run.tsv"
if [ ${#rows[@]} = 4 ]; then
	case_ 'a server beside an event loop' line "$out/run.tsv" echo epoll us
else
	skip 'a server beside an event loop' 'one CPU'
fi
case_ 'no peer has what nobody has' test "$(wc -l <"$out/run.tsv")" = $((${#rows[@]} + 1))

make_raw >"$out/raw"
awk -f "$TOP/tools/bench/medians.awk" "$out/raw" >"$out/made.tsv"
case_ 'all names, with their units' units "$out/made.tsv"
case_ 'the median of three' \
	grep -q "^spawn	6.000	go	6000.000	0.001	ns$" "$out/made.tsv"
case_ 'the median of two' \
	grep -q "^spawn	6.000	myth	4.500	1.333	ns$" "$out/made.tsv"
awk -f "$TOP/tools/bench/table.awk" "$out/made.tsv" >"$out/said"
case_ 'a table for people' \
	said 'spawn, ns +6\.00 +1\.33   myth 4\.50, nobody-knows 7\.00, go 6000'
if command -v gnuplot >/dev/null && command -v python3 >/dev/null; then
	case_ 'the picture of what ran' drawn "$out/run.svg" spawn pread 'plain threads'
	case_ 'draws the table' draw "$out/made.tsv" "$out/made.svg"
	read -rd '' -a names <<<"$NAMES" || true
	case_ 'every row, and no text over another' drawn "$out/made.svg" \
		"${names[@]%=*}" MassiveThreads Go nobody-knows \
		'6.00 ns' '4.50 (×0.75)' '6000 (×1000)'
	case_ 'no table' refused 'no table of run.sh' "$out/raw"
	case_ 'an empty one' refused 'no rows' /dev/null
	case_ 'none there' refused 'no such table' "$out/none"
else
	skip 'pictures' 'gnuplot or python3 is missing'
fi
echo "1..$n"
exit $failed
