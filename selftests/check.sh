#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only
#
# Runs test suites, goes on after failures, counts cases.
#
#   check.sh SUITE...        native, vm, cost, imports, dkms, model, docs,
#                            stress, flavours, matrix, kselftest, fuzz, san,
#                            debug, static
#
# KERNELS picks the kernels (of matrix: see there). Logs are in build/check/. The
# last line is "N passed, N failed, N skipped"; the status is 0 when none failed.

set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
TOP=$(cd "$HERE/.." && pwd)
export BUILD=$TOP/build
LOGS=$BUILD/check
read -ra kernels <<<"${KERNELS:-6.1 6.12 7.3}"
passed=0 failed=0 skipped=0

has() { [[ " $suites " = *" $1 "* ]]; }

needs_kernels() {
	has vm || has cost || has imports || has dkms || has kselftest ||
		has fuzz || has stress || has static
}

say() { printf '\n== %s (%ds)\n' "$*" "$SECONDS"; }

count() {
	passed=$((passed + $1)) failed=$((failed + $2)) skipped=$((skipped + $3))
}

broken() {
	echo "     not ok: $*" | tee -a "$LOGS/failed"
	count 0 1 0
}

# tally LOG: add the last TALLY line of a suite; none of it is a failure
tally() {
	local line
	grep -aE '^(FAIL| +(not ok|again|# ))' "$1" |
		sed "s,^,$(basename "$1" .log): ," >>"$LOGS/failed" || true
	line=$(grep '^# TALLY ' "$1" | tail -n 1) || true
	# shellcheck disable=SC2086 # three numbers
	if [ -n "$line" ]; then
		count ${line#\# TALLY }
	else
		broken "$(basename "$1" .log) ended early; see $1"
	fi
}

# tap_of NAME COMMAND...: a command that prints TAP, into its log
tap_of() {
	local name=$1 log=$LOGS/$1
	shift
	"$@" >"$log.tap" 2>"$log.err" </dev/null ||
		echo "not ok - $name ended with an error" >>"$log.tap"
}

report() {
	local log=$LOGS/$1
	if grep -q '^not ok .* ended with an error' "$log.tap"; then
		cat "$log.err"
	fi
	awk -f "$HERE/tap.awk" "$log.tap" >"$log.log"
	grep -v '^# TALLY' "$log.log" || true
	tally "$log.log"
}

suite() {
	say "$1"
	tap_of "$@"
	report "$1"
}

# beside NAME COMMAND...: a suite of one processor, while others run that nothing
# beside them can disturb, or that sleep a lot; until report_beside NAME
beside() {
	tap_of "$@" &
	beside=$!
}

report_beside() {
	say "$1"
	wait "$beside" || true
	report "$1"
}

# Compilers have no place in the counts, but what does not build has failed.
make_it() {
	say "$1"
	shift
	make --no-print-directory -C "$TOP" -k -j2 "$@" >"$LOGS/build.log" 2>&1 ||
		{ tail -n 40 "$LOGS/build.log"; broken "make $*"; }
}

# In the background, while other tests run: fetch kernels, build for each.
modules() {
	local k
	for k in "${kernels[@]}"; do
		if { "$HERE/vm/module.sh" "$k" &&
		     "$HERE/vm/module.sh" -fault "$k"; } \
			>"$LOGS/module-$k.log" 2>&1 </dev/null
		then
			touch "$LOGS/module-$k.ok"
		else
			touch "$LOGS/module-$k.bad"
		fi
	done
}

module_ready() {
	while [ ! -e "$LOGS/module-$1.ok" ]; do
		if [ -e "$LOGS/module-$1.bad" ]; then
			tail -n 30 "$LOGS/module-$1.log"
			return 1
		fi
		sleep 0.5
	done
}

# in_vm NAME KERNEL OPTION... [-- PROGRAM...]: the suite NAME, a boot of it
in_vm() {
	local log=$LOGS/$1.log k=$2 options=()
	shift 2
	module_ready "$k" || { broken "no module for kernel $k"; return 0; }
	while [ $# -gt 0 ] && [ "$1" != -- ]; do options+=("$1"); shift; done
	"$HERE/vm/run.sh" -t "${VM_TIMEOUT:-1800}" "${options[@]}" "$k" \
		"${@:2}" >"$log" 2>&1 </dev/null || true
	grep -v '^# TALLY' "$log" || true
	tally "$log"
}

# vm_suite KERNEL PREEMPTIONS: of module/preempt. The long stress is a suite of
# its own.
vm_suite() {
	say "vm $1, $2 preemptions"
	in_vm "vm-$1" "$1" -tools -backends kernel -e FIBER_STRESS_SECONDS=5 \
		-e "FIBER_PREEMPTIONS=$2"
}

# What the user backend asks of a kernel, and what is skipped natively for want of
# swap or of cgroups of our own. All the rest is native's.
user_suite() {
	local lib=$BUILD/selftests/lib
	say "vm $1, the user backend"
	VM_TAG=user in_vm "user-$1" "$1" -backends user -- \
		"$lib"/{block,cold,cpus,io}
}

# Unmodified libraries, PostgreSQL among them.
libraries_suite() {
	local k=$1 log=$LOGS/libraries-$1.log
	say "libraries $k, and on no other kernel"
	module_ready "$k" || { broken "no module for kernel $k"; return 0; }
	"$HERE/vm/libraries.sh" "$k" >"$log" 2>&1 </dev/null || true
	grep -aE '^# .* took|^# getaddrinfo|^# no |^ +(ok|not ok|FAIL|skip)' "$log" || true
	tally "$log"
}

# What blocks and preemption cost, in exact instruction counts.
cost_suite() {
	local k=$1 log=$LOGS/cost-$1.log
	say "cost $k"
	module_ready "$k" || { broken "no module for kernel $k"; return 0; }
	VM_TAG=cost "$HERE/vm/run.sh" -icount -v -e FIBER_ICOUNT=1 \
		-backends kernel "$k" "$BUILD/selftests/lib/keepcost" \
		"$BUILD/selftests/module/cost" \
		"$BUILD/selftests/module/others" \
		"$BUILD/selftests/module/quality" >"$log" 2>&1 </dev/null || true
	grep -aE '^# cost|^ok |^not ok|^ +(ok|FAIL|skip)' "$log" || true
	tally "$log"
}

# Linux's own selftests, without the module and beside a busy group.
kselftest_suite() {
	local k=$1 log=$LOGS/kselftest-$1.log
	say "kselftest $k"
	module_ready "$k" || { broken "no module for kernel $k"; return 0; }
	"$HERE/linux.sh" "$k" >"$log" 2>&1 </dev/null || true
	grep -aE '^# (without|busy|not run)|^ +(ok|not ok|FAIL|skip)' "$log" || true
	tally "$log"
}

# The fuzzer, blind where the kernel has no KCOV.
fuzz_suite() {
	local k=$1 log=$LOGS/fuzz-$1.log seconds=${FIBER_FUZZ_SECONDS:-30}
	say "fuzz $k"
	module_ready "$k" || { broken "no module for kernel $k"; return 0; }
	VM_TAG=fuzz "$HERE/vm/run.sh" -v -t $((seconds * 2 + 300)) \
		-T $((seconds * 2 + 200)) -f "$HERE/fuzz/corpus=/corpus" \
		-e FIBER_FUZZ_CORPUS=/corpus -e "FIBER_FUZZ_SECONDS=$seconds" \
		-e "FIBER_FUZZ_SEED=${FIBER_FUZZ_SEED:-1}" "$k" \
		"$BUILD/selftests/fuzz/fuzz" >"$log" 2>&1 </dev/null || true
	grep -aE '^# [0-9]+ (programs|edges)|^#   |^ +(ok|not ok|FAIL|skip)' \
		"$log" || true
	tally "$log"
}

# All of it again under kernels that watch themselves.
debug_suite() {
	local k=$1 log=$LOGS/debug-$1.log
	say "debug $k"
	"$HERE/debug.sh" "$k" 2>&1 </dev/null | tee "$log" | grep -v '^# TALLY' || true
	tally "$log"
}

stress_one() {
	local s=$2
	VM_TAG=stress "$HERE/vm/run.sh" -v -smp 4 -t $((3 * s + 600)) \
		-T $((3 * s + 500)) -e "FIBER_STRESS_SECONDS=$s" "$1" \
		"$BUILD/selftests/module/stress" \
		>"$LOGS/stress-$1.log" 2>&1 </dev/null || true
}

# still PID...: how many of them run
still() {
	local pid n=0
	for pid; do ! kill -0 "$pid" 2>/dev/null || n=$((n + 1)); done
	echo $n
}

# The mixed stress of the module on 4 emulated CPUs, three kernels at a time.
stress_suite() {
	local k s=${FIBER_STRESS_SECONDS:-180} log
	local -A pid=()
	say "stress $*, $s s each, three at a time"
	for k; do
		module_ready "$k" || { broken "no module for kernel $k"; continue; }
		while (($(still "${pid[@]}") >= 3)); do sleep 1; done
		stress_one "$k" "$s" &
		pid[$k]=$!
	done
	for k in "${!pid[@]}"; do
		wait "${pid[$k]}" || true
		log=$LOGS/stress-$k.log
		grep -aE '^# .*(groups:|seed)|^not ok|^ +(ok|FAIL|skip)' "$log" || true
		tally "$log"
	done
}

# What -rt and -cloud kernels get in every check; the rest is check-matrix's.
flavours_suite() {
	local log=$LOGS/flavours.log list=(6.1-rt 6.12-rt 7.3-rt 7.3-cloud)
	say "flavours ${list[*]}"
	KERNELS=${list[*]} PREEMPT=default TESTS="abi block handoff preempt" \
		FIBER_PREEMPTIONS=10000 "$HERE/matrix.sh" >"$log" 2>&1 </dev/null || true
	grep -v '^# TALLY' "$log" || true
	echo "not run here: 6.1-cloud, 6.12-cloud, other programs, preempt=" \
		"modes: make check-matrix"
	tally "$log"
}

matrix_suite() {
	local log=$LOGS/matrix.log
	say matrix
	"$HERE/matrix.sh" 2>&1 </dev/null | tee "$log" || true
	tally "$log"
}

# ready_kernels: those whose module was built
ready_kernels() {
	local k
	for k in "${kernels[@]}"; do
		if module_ready "$k" >/dev/null; then echo "$k"; fi
	done
}

deps() {
	local purposes=(build)
	if has native; then purposes+=(native); fi
	if has native || has vm; then purposes+=(libraries); fi
	if needs_kernels || has flavours || has matrix; then purposes+=(vm); fi
	if has model; then purposes+=(model); fi
	if has kselftest; then purposes+=(kselftest); fi
	if has san; then purposes+=(san); fi
	if has debug; then purposes+=(vm debug); fi
	if has dkms; then purposes+=(dkms); fi
	if has static; then purposes+=(static); fi
	"$TOP/tools/deps.sh" "${purposes[@]}" ||
		broken "packages are missing (see above)"
}

# In full, then in short: who keeps only the end of all this has it there.
what_failed() {
	say "what failed"
	tail -n 200 "$LOGS/failed"
	say "in short"
	grep -avE ': +# (hung|tell)' "$LOGS/failed" | tail -n 16 | cut -c 1-160
}

finish() {
	[ -z "${background:-}" ] || wait "$background" || true
	[ "$failed" = 0 ] || what_failed
	printf '\nlogs: %s\n' "$LOGS"
	echo "$passed passed, $failed failed, $skipped skipped"
	[ "$failed" = 0 ]
}

[ $# -ge 1 ] || { echo "usage: check.sh SUITE..." >&2; exit 2; }
suites=$*
rm -rf "$LOGS"
mkdir -p "$LOGS"
deps
if needs_kernels; then
	modules &
	background=$!
fi
if has native || has vm || has cost || has stress || has flavours ||
   has matrix || has kselftest || has fuzz
then
	make_it "library, samples and tests" all tests
fi
if has native; then
	suite native "$HERE/native.sh"
	suite syzkaller "$HERE/fuzz/syzkaller.sh"
fi
# Registers are one matter for all kernels: in full on the first one only.
if has vm; then
	preemptions=50000
	for k in "${kernels[@]}"; do
		vm_suite "$k" "$preemptions"
		preemptions=10000
	done
	user_suite "${kernels[0]}"
	libraries_suite "${kernels[0]}"
fi
if has model; then beside model "$HERE/model.sh"; fi
if has cost; then
	for k in "${kernels[@]}"; do cost_suite "$k"; done
	say "costs, beside the prototype's"
	logs=("${kernels[@]/#/$LOGS/cost-}")
	awk -f "$HERE/costs.awk" "${logs[@]/%/.log}" || true
fi
if has kselftest; then
	for k in "${kernels[@]}"; do kselftest_suite "$k"; done
fi
if has fuzz; then
	for k in "${kernels[@]}"; do fuzz_suite "$k"; done
fi
if has flavours; then flavours_suite; fi
if has stress; then stress_suite "${kernels[@]}"; fi
if has matrix; then matrix_suite; fi
if has docs; then suite docs "$HERE/docs.sh"; fi
if has static; then suite static "$HERE/static.sh"; fi
if has debug; then
	for k in ${DEBUG_KERNELS:-debug kcsan}; do debug_suite "$k"; done
fi
if has model; then report_beside model; fi
if has san; then suite san "$HERE/san.sh"; fi
if has imports || has dkms; then
	mapfile -t ready < <(ready_kernels)
	[ ${#ready[@]} -gt 0 ] || broken "no module was built"
fi
if has imports && [ ${#ready[@]} -gt 0 ]; then
	suite imports "$HERE/imports.sh" "${ready[@]}"
fi
if has dkms && [ ${#ready[@]} -gt 0 ]; then
	suite dkms "$HERE/dkms.sh" "${ready[@]}"
fi
finish
