#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only
#
# Kernels x preemption modes: builds the module without warnings, boots, runs
# the selftests, prints a table.
#
#   matrix.sh
#
# KERNELS  of 6.1, 6.12, 7.3, each also with -rt, -cloud (default: all nine)
# PREEMPT  of default, none, voluntary, full, lazy (default: all). A kernel says
#          itself which it has: the others are "n/a".
# TESTS    all, module (selftests/module), or names of module programs
# FIBER_PREEMPTIONS  of module/preempt (50000)
# TIME     seconds; cells that do not start within it are "not run"
#
# A cell is "passed/failed/skipped seconds". Logs are in build/check/matrix-*.
# Closes with "# TALLY passed failed skipped"; the status is 0 if none failed.

set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
BUILD=$(cd "$HERE/.." && pwd)/build
LOGS=$BUILD/check
read -ra kernels <<<"${KERNELS:-6.1 6.1-rt 6.1-cloud 6.12 6.12-rt 6.12-cloud \
	7.3 7.3-rt 7.3-cloud}"
read -ra modes <<<"${PREEMPT:-default none voluntary full lazy}"
declare -A cell
passed=0 failed=0 skipped=0

# The programs of TESTS, one a line; none: run.sh takes all.
programs() {
	local t
	case ${TESTS:-all} in
	all) ;;
	module) find "$BUILD/selftests/module" -maxdepth 1 -type f -perm -100 |
		sort ;;
	*) for t in $TESTS; do echo "$BUILD/selftests/module/$t"; done ;;
	esac
}

# has_mode KERNEL MODE: the default boot's log has the kernel's own list
has_mode() {
	local list
	list=$(grep -a '^# PREEMPT' "$BUILD/vm/$1.matrix-default.tap" || true)
	[[ " ${list//[()]/ } " = *" $2 "* ]]
}

# runs_in KERNEL MODE: did it boot into what was asked?
runs_in() {
	[ "$2" = default ] ||
		grep -aq "^# PREEMPT.*($2)" "$BUILD/vm/$1.matrix-$2.tap"
}

add() {
	passed=$((passed + $1)) failed=$((failed + $2)) skipped=$((skipped + $3))
}

# run_cell KERNEL MODE
run_cell() {
	local k=$1 mode=$2 log=$LOGS/matrix-$1-$2.log begin=$SECONDS words=() line
	[ "$mode" = default ] || words=(-append "preempt=$mode")
	mapfile -t tests < <(programs)
	VM_TAG=matrix-$mode "$HERE/vm/run.sh" -t 1500 "${words[@]}" \
		-e "FIBER_PREEMPTIONS=${FIBER_PREEMPTIONS:-}" "$k" \
		"${tests[@]}" >"$log" 2>&1 </dev/null || true
	line=$(grep '^# TALLY ' "$log" | tail -n 1) || true
	line=${line#\# TALLY }
	runs_in "$k" "$mode" || line="0 1 0"
	# shellcheck disable=SC2086 # three numbers
	add ${line:-0 1 0}
	line=${line:-0 1 0}
	cell[$k,$mode]="${line// //} $((SECONDS - begin))s"
	echo "== $k preempt=$mode: ${cell[$k,$mode]}"
	grep -aE 'FAIL|not ok|Expected|# (hung|tell|SPLAT): ' "$log" || true
}

late() { [ -n "${TIME:-}" ] && ((SECONDS > TIME)); }

run_kernel() {
	local k=$1 mode
	if ! "$HERE/vm/module.sh" "$k" >"$LOGS/matrix-$k-build.log" 2>&1; then
		tail -n 20 "$LOGS/matrix-$k-build.log"
		add 0 1 0
		cell[$k,default]="no module"
		return
	fi
	for mode in default "${modes[@]}"; do
		[ -z "${cell[$k,$mode]:-}" ] || continue
		if late; then
			cell[$k,$mode]="not run"
		elif [ "$mode" = default ] || has_mode "$k" "$mode"; then
			run_cell "$k" "$mode"
		else
			cell[$k,$mode]="n/a"
		fi
	done
}

table() {
	local k mode
	printf '\n%-12s' kernel
	for mode in "${modes[@]}"; do printf ' %-17s' "$mode"; done
	echo
	for k in "${kernels[@]}"; do
		printf '%-12s' "$k"
		for mode in "${modes[@]}"; do
			printf ' %-17s' "${cell[$k,$mode]:-not run}"
		done
		echo
	done
}

mkdir -p "$LOGS"
for k in "${kernels[@]}"; do run_kernel "$k"; done
table
echo "# TALLY $passed $failed $skipped"
[ "$failed" = 0 ]
