#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only
#
# tools/timeline on a trace of samples/hello, on a made one of 100,000 events, and on
# what is none. TAP.

set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
TOP=$HERE/..
BUILD=$(cd "${BUILD:-$TOP/build}" && pwd)
TOOL=$TOP/tools/timeline/fiber-timeline
n=0 failed=0
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

# case_ NAME COMMAND...: it must succeed
case_() {
	local name=$1
	n=$((n + 1))
	shift
	if "$@" >"$out/said" 2>&1; then
		echo "ok $n - $name"
	else
		head -n 20 "$out/said" | sed 's/^/# /'
		echo "not ok $n - $name"
		failed=1
	fi
}

# refused WORDS ARG...: status 1 or 2, with one line that says why
refused() {
	local words=$1
	shift
	! "$TOOL" "$@" >"$out/svg" 2>"$out/error" &&
		grep -qE -- "$words" "$out/error" &&
		! grep -q Traceback "$out/error" && [ ! -s "$out/svg" ]
}

# Two processors: turns of 9 us each 10 us, a block and a preemption now and then
make_trace() {
	python3 - "$out/many.json" <<-'END'
	import json, sys
	e = [{"ph": "M", "pid": 1, "tid": t, "ts": 0, "name": "thread_name",
	      "args": {"name": f"processor {t - 1}"}} for t in (1, 2)]
	for i in range(50000):
	    for t in (1, 2):
	        e.append({"ph": "X", "pid": 1, "tid": t, "ts": 10.0 * i, "dur": 9.0,
	                  "cat": "fiber", "name": f"<work> {i // 10000}",
	                  "args": {"id": i % 50 + t, "end": "yielded"}})
	    if i % 1000 == 0:
	        for name in ("block", "preempt"):
	            e.append({"ph": "i", "pid": 1, "tid": 1, "ts": 10.0 * i,
	                      "s": "t", "name": name, "args": {}})
	        e.append({"ph": "B", "pid": 2, "tid": 7, "ts": 10.0 * i, "name": "x"})
	        e.append({"ph": "E", "pid": 2, "tid": 7, "ts": 10.0 * i + 500, "name": "x"})
	json.dump({"traceEvents": e, "lostEvents": 17,
	           "otherData": {"backend": "kernel"}}, open(sys.argv[1], "w"))
	END
}

# shows FILE CONDITION...: an SVG for which all are true (text, marks, ids)
shows() {
	python3 - "$@" <<-'END'
	import sys, xml.etree.ElementTree as tree
	svg = tree.parse(sys.argv[1]).getroot()
	name = lambda e: e.tag.rpartition("}")[2]
	text = [e.text for e in svg.iter() if name(e) == "text"]
	marks = [e.get("class") for e in svg.iter() if name(e) == "path"]
	ids = [e.get("id") for e in svg.iter()]
	wrong = [c for c in sys.argv[2:] if not eval(c)]
	print("not true:", wrong, text, set(marks))
	sys.exit(bool(wrong))
	END
}

small() { [ "$(wc -c <"$1")" -lt 400000 ]; }

echo 'TAP version 13'
if ! command -v python3 >/dev/null; then
	echo '1..0 # SKIP python3 is missing'
	exit 0
fi
make_trace
case_ 'a picture of 100,000 events' "$TOOL" -o "$out/many.svg" "$out/many.json"
case_ 'is small' small "$out/many.svg"
# a row a processor, a time axis, marks that are drawn together where they are many,
# those that are blocked, names as they are, what was lost
case_ 'has all that a reader needs' shows "$out/many.svg" \
	'text.count("processor 0") == text.count("processor 1") == 1' \
	'"0 µs" in text and "100 ms" in text and "450 ms" in text' \
	'45 <= marks.count("block") <= 50 and marks.count("preempt") >= 45' \
	'"blocked" in ids and "blocked: 1" in text' \
	'any(t.startswith("<work> 4: 51 fibers, 20000 turns, 180 ms") for t in text)' \
	'text[0].endswith("17 older ones lost")'
case_ 'a part of the time' "$TOOL" --from 100 --to 100.2 --width 800 \
	-o "$out/part.svg" "$out/many.json"
case_ 'is drawn alone' shows "$out/part.svg" '"200 µs" in text and "blocked: 1" in text'
case_ 'a trace of a program' env FIBER_BACKEND=user FIBER_TRACE="$out/hello.json" \
	FIBER_PROCESSORS=2 "$BUILD/samples/hello"
case_ 'is drawn' "$TOOL" -o "$out/hello.svg" "$out/hello.json"
case_ 'with its fibers' shows "$out/hello.svg" 'any("nap: 10 fibers" in t for t in text)' \
	'"blocked" in ids and marks.count("block")'
echo '{"traceEvents": 3}' >"$out/three.json"
case_ 'no trace' refused 'no trace that FIBER_TRACE' "$out/three.json"
case_ 'no JSON' refused 'no trace that FIBER_TRACE' "$TOOL"
: >"$out/empty.json"
case_ 'nothing yet' refused 'empty.json is empty: the program has not ended, ' \
	"$out/empty.json"
case_ 'no file' refused 'No such file' "$out/none.json"
case_ 'no time' refused 'nothing happened in that time' --from 99000 "$out/hello.json"
case_ 'no place to write' refused 'No such file' -o "$out/no/where" "$out/hello.json"
echo "1..$n"
exit $failed
