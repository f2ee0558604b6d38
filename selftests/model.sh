#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only
#
# Checks selftests/model/*.pml with spin: handoff.pml, the module's protocol, and
# wait.pml, how the library's fibers wait for objects, wake.pml, how ready ones find a
# processor, and steal.pml, how they are stolen from its queue. TAP.
#
# FIBER_LONG=1: also what takes more than a minute (LIMIT: seconds of one, 1200).
#
# The model must hold as it is, and each mutation of it must fail: a property
# that no mutation breaks is no property.

set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
BUILD=${BUILD:-$HERE/../build}/model
# shellcheck source-path=SCRIPTDIR source=result.sh
. "$HERE/result.sh"

die() {
	echo "1..0 # SKIP $*"
	exit 4
}

# run NAME FLAG...: prints what the checker found
run() {
	local dir=$BUILD/$1
	shift
	rm -rf "$dir"
	mkdir -p "$dir"
	(
		cd "$dir"
		spin -a "$@" "$HERE/model/$model.pml" >spin.log
		${CC:-cc} -O2 -w -DSAFETY -DCOLLAPSE -DVECTORSZ=2048 \
			-DMEMLIM=6000 -o pan pan.c
		timeout --foreground "${LIMIT:-1200}" ./pan -m300000 -w24 >pan.log 2>&1 || true
		cat pan.log
	)
}

# holds NAME FLAG...: searched to the end, no error
holds() {
	local out
	out=$(run "$@")
	if grep -q 'errors: 0' <<<"$out" &&
	   ! grep -qE 'max search depth|out of memory|not completed' <<<"$out"
	then
		echo "# $1: $(grep -m1 'states, stored' <<<"$out" | tr -s ' ')"
		case_ ok "$1 holds"
	else
		tail -n 20 <<<"$out" | sed 's/^/# /'
		case_ 'not ok' "$1 holds"
	fi
}

# breaks NAME FLAG...: the checker must find something
breaks() {
	local out
	out=$(run "$@")
	if grep -qE 'errors: [1-9]' <<<"$out"; then
		echo "# $1: $(grep -m1 'pan:1' <<<"$out")"
		case_ ok "$1 is found"
	else
		case_ 'not ok' "$1 is found"
	fi
}

command -v spin >/dev/null || die "spin is not installed: tools/deps.sh model"
echo 'TAP version 13'
model=handoff
holds handoff -DNC=2 -DBLOCKS=1
holds blocks-that-never-end -DNC=2 -DBLOCKS=1 -DFOREVER
holds file-closed -DNC=2 -DBLOCKS=1 -DCLOSE
holds two-processors -DNC=2 -DNP=2 -DBLOCKS=1 -DQUIET
[ -z "${FIBER_LONG:-}" ] || holds three-carriers -DNC=3 -DBLOCKS=1 -DQUIET
breaks no-recheck -DNC=2 -DBLOCKS=1 -DFOREVER -DNO_RECHECK
breaks no-disarm -DNC=2 -DBLOCKS=1 -DNO_DISARM
breaks flag-in-processor-page -DNC=2 -DNP=2 -DBLOCKS=1 -DPAGE_FLAG
breaks no-edge-for-signal-handlers -DNC=2 -DBLOCKS=1 -DNO_EDGE

model=wait
holds wait
breaks wait-no-settle -DNO_SETTLE
breaks wait-no-ticket -DNO_TICKET
breaks wait-no-cancel-check -DNO_CANCEL_CHECK
breaks wait-no-timer-del -DNO_TIMER_DEL
breaks wait-early-word -DEARLY_WORD

model=wake
holds wake
breaks wake-leak-token -DLEAK_TOKEN
breaks wake-no-recheck -DNO_RECHECK
breaks wake-no-keep-recheck -DNO_KEEP_RECHECK
breaks wake-no-cancel -DNO_CANCEL
breaks wake-no-retry -DNO_RETRY

model=steal
holds steal
holds steal-two-thieves -DTHIEVES=2 -DTHEFTS=1 -DOPS=4
holds steal-fences -DFENCES
breaks steal-no-membarrier -DNO_MEMBARRIER
breaks steal-no-lower -DNO_LOWER
breaks steal-no-barrier -DNO_BARRIER
breaks steal-fences-no-barrier -DFENCES -DNO_BARRIER
breaks steal-tail-first -DTAIL_FIRST
breaks steal-ring-early -DRING_EARLY
breaks steal-ring-first -DRING_FIRST
breaks steal-batch -DBATCH
breaks steal-no-cas -DNO_CAS
echo "1..$n"
