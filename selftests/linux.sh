#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only
#
# Linux's own selftests of what our hooks touch (signal frames, FS and GS, the
# extended state, single stepping, restartable sequences): the same results with
# the module and a busy group as without.
#
#   linux.sh KERNEL...
#
# The programs come from Debian's linux-source package, static. They run alone
# in a VM without the module, then in one with it: beside a busy group, as
# children of a carrier, and executed by a carrier. Prints what run.sh prints.
#
# Not run: tests of the 32-bit kernel entry alone (vm86, vdso_32, FCMOV), which
# share nothing with our hooks; of iopl, ioperm and ldt_gdt, the same; rseq's
# whole run_param_test.sh, which takes hours in emulation (see list below).

set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
TOP=$(cd "$HERE/.." && pwd)
BUILD=${BUILD:-$TOP/build}
VERSION=${FIBER_DEBUG_SOURCE:-6.12}
OUT=$BUILD/selftests/linux/programs

x86_both="sigreturn sigaltstack fsgsbase_restore single_step_syscall sigtrap_loop
	  syscall_arg_fault"
x86_64="fsgsbase corrupt_xstate_header amx sysret_rip"

# compile OUTPUT WORD...: what the kernel's own Makefiles say, and static
compile() {
	local out=$1
	shift
	gcc -O2 -g -std=gnu99 -pthread -w -static -no-pie -o "$out" "$@"
}

rseq() {
	local name=$1
	shift
	compile "$OUT/$name" "$@" -std=gnu11 -I"$tree/tools/include" \
		-I"$tests/rseq" "$tests/rseq/rseq.c" "$tests/rseq/param_test.c" -ldl
}

# helper NAME BITS: what that program needs beside its own file
helper() {
	case $1_$2 in
	fsgsbase_restore_*|sysret_rip_*) echo "$tests/x86/clang_helpers_$2.S" ;;
	esac
}

build() {
	local name
	mkdir -p "$OUT"
	for name in $x86_both $x86_64; do
		# shellcheck disable=SC2046 # none or one word
		compile "$OUT/${name}_64" "$tests/x86/$name.c" \
			$(helper "$name" 64)
	done
	for name in $x86_both; do
		# shellcheck disable=SC2046 # none or one word
		compile "$OUT/${name}_32" -m32 -I/usr/include/x86_64-linux-gnu \
			"$tests/x86/$name.c" $(helper "$name" 32)
	done
	rseq param_test
	rseq param_test_compare_twice -DRSEQ_COMPARE_TWICE
	rseq param_test_mm_cid -DBUILDOPT_RSEQ_PERCPU_MM_CID
}

# The list of beside.c. What rseq's own script would do takes hours when
# emulated: each kind once, and each way of losing the processor once.
list() {
	local kind
	for name in $x86_both $x86_64; do echo "${name}_64"; done
	for name in $x86_both; do echo "${name}_32"; done
	for kind in s l b m i; do echo "param_test -T $kind -r 100 -t 4"; done
	echo "param_test -T r -r 20 -t 4"
	echo "param_test -T s -r 100 -t 4 -7 -1 -m 2 -y"
	echo "param_test -T s -r 20 -t 4 -8 -1 -m 2 -k"
	echo "param_test -T s -r 20 -t 4 -9 -1 -m 4 -s 1"
	echo "param_test_compare_twice -T s -r 100 -t 4"
	echo "param_test_mm_cid -T s -r 100 -t 4"
}

# vm KERNEL TAG OPTION...: one boot
vm() {
	local kernel=$1 tag=$2
	shift 2
	VM_TAG=$tag "$HERE/vm/run.sh" -v -t 1800 -T 1700 -e LINUX_TESTS=/linux \
		-f "$OUT=/linux" "$@" "$kernel" \
		"$BUILD/selftests/linux/beside"
}

both() {
	local kernel=$1 tag=${VM_TAG:+$VM_TAG.}linux results=$OUT/results
	echo "# on $kernel, alone"
	vm "$kernel" "$tag.alone" -no-module
	grep -a '^# result: ' "$BUILD/vm/$kernel.$tag.alone.tap" >"$results"
	sed -n 's/^# result: //p' "$results" | grep -v '^status 0.* fail 0:' |
		sed 's/^/# without the module: /' || true
	echo "# not run: 32-bit-only tests, iopl, ioperm, ldt_gdt (share no code with" \
		"our hooks); most of rseq's 400 runs (hours when emulated)"
	echo "# on $kernel, with the module"
	vm "$kernel" "$tag" -e LINUX_RESULTS=/linux/results
}

[ $# -ge 1 ] || { sed -n '3,/^$/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2; exit 2; }
tree=$("$HERE/vm/kernels.sh" source "$VERSION")
tests=$tree/tools/testing/selftests
build
list >"$OUT/list"
rc=0
for kernel; do both "$kernel" || rc=1; done
exit $rc
