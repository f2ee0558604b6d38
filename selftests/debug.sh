#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only
#
# Everything under a kernel that watches itself (selftests/vm/debug-kernel.sh).
#
#   debug.sh debug|kcsan [PART...]
#
# PART: detectors  planted bugs of every kind, each must fail a run
#       tests      all of selftests/module, and selftests/lib on the module
#       stress     module/stress on four processors
#       fuzz       the fuzzer, with the corpus of selftests/fuzz
#
# Without PART: all of them. FIBER_STRESS_SECONDS (60) and FIBER_FUZZ_SECONDS
# (120) say how long those two take. Any line of selftests/vm/splats in the
# kernel's log fails, also an object that kmemleak finds, before rmmod or after.
# Closes with "# TALLY passed failed skipped". Logs: build/debug/vm/NAME.*.

set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
TOP=$(cd "$HERE/.." && pwd)
SLOW=6		# by how much tests are slower there than on a stock kernel
BUILD=$TOP/build/debug
export BUILD VM_BUILD=$BUILD
passed=0 failed=0 skipped=0

usage() { sed -n '3,/^$/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2; exit 2; }

count() {
	passed=$((passed + $1)) failed=$((failed + $2)) skipped=$((skipped + $3))
}

# verdict COMMAND... -- TEXT: one case of this script's own
verdict() {
	local command=()
	while [ "$1" != -- ]; do command+=("$1"); shift; done
	shift
	if "${command[@]}"; then
		echo "  ok $*"
		count 1 0 0
	else
		echo "     not ok: $*"
		count 0 1 0
	fi
}

# vm PART OPTION... PROGRAM...: a boot; its log is build/debug/PART.log
vm() {
	local part=$1
	shift
	VM_START=400 VM_TAG=${VM_TAG:+$VM_TAG.}$part "$HERE/vm/run.sh" -m 2G \
		-append "kasan_multi_shot log_buf_len=8M" -e FIBER_ALLOWANCE=100 \
		"$@" >"$BUILD/$name.$part.log" 2>&1 </dev/null || true
}

# judged PART OPTION...: the same, and what it found is counted
judged() {
	local part=$1 log=$BUILD/$name.$1.log line
	echo "# $name: $part"
	vm "$@"
	grep -aE '^# KCSAN|^#  +[0-9]' "$BUILD/vm/$name.${VM_TAG:+$VM_TAG.}$part.tap" || true
	grep -a '^# [0-9]* \(programs\|edges\)' "$BUILD/vm/$name.${VM_TAG:+$VM_TAG.}$part.tap" || true
	grep -av '^# TALLY' "$log" || true
	line=$(grep -a '^# TALLY' "$log" | tail -n 1) || true
	# shellcheck disable=SC2086 # three numbers
	if [ -n "$line" ]; then
		count ${line#\# TALLY }
	else
		verdict false -- "$part ended early; see $log"
	fi
}

# --- detectors --------------------------------------------------------------

# kind, then what the run must have said of it
planted() {
	case $name in
	debug) printf '%s\n' 'lock possible circular locking' \
		'sleep sleeping function' 'object ODEBUG' 'shift UBSAN' \
		'kasan KASAN' 'leak unreferenced object' ;;
	kcsan) echo 'race KCSAN: data-race' ;;
	esac
}

plant_module() {
	local dir=$BUILD/modules/$name-plant
	mkdir -p "$dir"
	cp "$HERE"/vm/plant/* "$dir/"
	"$HERE/vm/kernels.sh" build "$name" "$dir" >&2
	echo "$dir/fiber_plant.ko"
}

# A program for the VM that plants one bug
plant_program() {
	local file=$BUILD/plant/$1
	mkdir -p "$BUILD/plant"
	printf '%s\n' '#!/bin/sh' "insmod /fiber_plant.ko kind=$1 && echo ok" \
		'rmmod fiber_plant' >"$file"
	chmod +x "$file"
	echo "$file"
}

# said KIND TEXT: a failed case that names both (a leak is found at the end)
said() {
	grep -a '^not ok' "$BUILD/vm/$name.${VM_TAG:+$VM_TAG.}detectors.tap" |
		grep -aE "plant/$1|kmemleak" | grep -aq "$2" ||
	{ [ "$1" != leak ] && awk -v run="# RUN plant/$1" '
		$0 == run { on = 1 } /^# DONE/ { on = 0 } /^not ok|^# log/ && on' \
		"$BUILD/vm/$name.${VM_TAG:+$VM_TAG.}detectors.tap" | grep -aq "$2"; }
}

detectors() {
	local module kind text programs=()
	module=$(plant_module)
	while read -r kind text; do
		programs+=("$(plant_program "$kind")")
	done < <(planted)
	echo "# $name: planted bugs"
	vm detectors -t 900 -T 120 -f "$module=/fiber_plant.ko" "$name" \
		"${programs[@]}"
	while read -r kind text; do
		verdict said "$kind" "$text" -- "a planted bug ($kind) is reported: $text"
	done < <(planted)
}

# --- the rest -----------------------------------------------------------------

programs() {
	local dir
	for dir in module lib; do
		find "$BUILD/selftests/$dir" -maxdepth 1 -type f -perm -100 \
			! -path '*/module/stress' | sort
	done
}

tests() {
	local list
	mapfile -t list < <(programs)
	judged tests -t 14000 -T 1800 -backends kernel "$name" "${list[@]}"
}

stress() {
	local seconds=${FIBER_STRESS_SECONDS:-60}
	judged stress -smp 4 -t $((seconds * 2 + 900)) -T $((seconds * 2 + 600)) \
		-e "FIBER_STRESS_SECONDS=$seconds" "$name" \
		"$BUILD/selftests/module/stress"
}

fuzz() {
	local seconds=${FIBER_FUZZ_SECONDS:-120}
	judged fuzz -t $((seconds * 2 + 900)) -T $((seconds * 2 + 600)) \
		-f "$HERE/fuzz/corpus=/corpus" -e FIBER_FUZZ_CORPUS=/corpus \
		-e "FIBER_FUZZ_SECONDS=$seconds" ${FIBER_FUZZ_SEED:+-e FIBER_FUZZ_SEED=$FIBER_FUZZ_SEED} \
		${FIBER_FUZZ_KEEP:+-e FIBER_FUZZ_KEEP=1} \
		"$name" "$BUILD/selftests/fuzz/fuzz"
}

case ${1:-} in debug|kcsan) ;; *) usage ;; esac
name=$1
shift
[ $# -gt 0 ] || set -- detectors tests stress fuzz
mkdir -p "$BUILD"
CPPFLAGS="-DFIBER_SLOW=$SLOW" make -s -j2 -C "$TOP" BUILD="$BUILD" lib tests
"$HERE/vm/module.sh" "$name"
"$HERE/vm/module.sh" -fault "$name"
for part; do
	case $part in
	detectors|tests|stress|fuzz) "$part" ;;
	*) usage ;;
	esac
done
echo "# TALLY $passed $failed $skipped"
[ "$failed" = 0 ]
