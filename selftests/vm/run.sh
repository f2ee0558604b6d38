#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only
#
# Boots a kernel in QEMU, inserts the module, runs test programs, judges.
#
#   run.sh [options] KERNEL [PROGRAM...]
#
#   -smp N            processors (2)
#   -m SIZE           memory (512M)
#   -append WORDS     more kernel command line
#   -single           single-threaded emulation
#   -icount           exact instruction counts (one processor, slow)
#   -e NAME=VALUE     environment of the tests; may be repeated
#   -p PROGRAM        a program to bring along, with the libraries it needs
#   -tools            gdb, strace, trace-cmd, criu (vm/tools.sh)
#   -f PATH[=TO]      a file or folder to bring along; may be repeated
#   -t SECONDS        limit for the whole run (300)
#   -T SECONDS        limit for one program (300)
#   -backends LIST    run programs of selftests/lib and selftests/libraries once
#                     for each ("kernel user")
#   -module FILE      another module than build/modules/KERNEL/fiber.ko
#   -no-module        insert none
#   -shell            an interactive shell in place of the tests
#   -v                show all that the tests print
#
# selftests/module/inject runs with build/modules/KERNEL.fault/fiber.ko, if there
# is one (make modules FAULT=1).
#
# Without PROGRAM: all of build/selftests/module and build/selftests/lib, and
# build/selftests/libraries/fuse3.
# The whole output is in build/vm/KERNEL.tap afterwards, the kernel's in
# KERNEL.log (KERNEL.TAG.tap with VM_TAG=TAG); runs may go on at the same time.
# Closes with "# TALLY passed failed skipped"; status 0 when nothing failed.

set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source-path=SCRIPTDIR source=lib.sh
# shellcheck disable=SC2034 # VM_* are read in lib.sh
. "$HERE/lib.sh"

environment=() files=() tools=() backends="kernel user" module=default limit=300
shell='' verbose=''

usage() {
	sed -n '3,/^$/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
	exit 2
}

# Sets the global "shifted" to the number of words it took.
option() {
	shifted=2
	case $1 in
	-smp) VM_SMP=$2 ;;
	-m) VM_MEMORY=$2 ;;
	-append) VM_APPEND="$VM_APPEND $2" ;;
	-e) environment+=("$2") ;;
	-f) files+=("$2") ;;
	-p) tools+=("$2") ;;
	-t) VM_TIMEOUT=$2 ;;
	-T) limit=$2 ;;
	-backends) backends=$2 ;;
	-module) module=$2 ;;
	*) shifted=1; flag "$1" ;;
	esac
}

flag() {
	case $1 in
	-single) VM_MODE=single ;;
	-icount) VM_MODE=icount ;;
	-no-module) module='' ;;
	-shell) shell=1 ;;
	-v) verbose=1 ;;
	-tools) mapfile -O ${#tools[@]} -t tools < <("$HERE/tools.sh") ;;
	*) usage ;;
	esac
}

# add_one ROOT PROGRAM: library tests run once for each backend
add_one() {
	local root=$1 program=$2 name backend
	name=$(basename "$(dirname "$program")")/$(basename "$program")
	vm_add_program "$root" "$program" "/tests/$name"
	case $program in
	*/selftests/lib/* | */selftests/libraries/*)
		for backend in $backends; do
			vm_add_test "$root" "${name}[$backend]" \
				"FIBER_BACKEND=$backend" "/tests/$name"
		done ;;
	*/selftests/module/inject)
		if [ -e "$fault" ]; then
			vm_add_fault_module "$root" "$fault"
			vm_add_fault_test "$root" "$name" "/tests/$name"
		else
			vm_add_test "$root" "$name" "/tests/$name"
		fi ;;
	*)
		vm_add_test "$root" "$name" "/tests/$name" ;;
	esac
}

# No kernel has a part in what seed tests: natively is enough. FUSE needs no world of
# its own as other libraries do (vm/libraries.sh).
default_programs() {
	find "$VM_BUILD/selftests/module" "$VM_BUILD/selftests/lib" \
		"$VM_BUILD/selftests/libraries/fuse3" -maxdepth 1 \
		-type f -perm -100 ! -name seed 2>/dev/null | sort
}

make_image() {
	local root=$1 program path
	shift
	vm_root "$root"
	vm_limit "$root" "$limit"
	vm_environment "$root" FIBER_VM=1 PATH=/bin:/usr/bin HOME=/root \
		"${environment[@]}"
	[ "$VM_MODE" != multi ] || vm_have_kvm "$kernel" ||
		vm_environment "$root" FIBER_VM_EMULATED=1
	[ -z "$module" ] || vm_add_module "$root" "$module"
	[ ! -d "$kernel/swap" ] || vm_add_swap "$root" "$kernel/swap"
	[ ! -d "$kernel/fuse" ] || vm_add_fuse "$root" "$kernel/fuse"
	for path in "${files[@]}"; do vm_add_path "$root" "$path"; done
	for path in "${tools[@]}"; do vm_add_program "$root" "$path"; done
	for program; do add_one "$root" "$program"; done
	[ -z "$shell" ] || : >"$root/vm/shell"
	vm_pack "$root" "$root.img"
}

# The guest's watchdogs cannot tell a hang from a machine that was paused.
host_stood_still() {
	local log=$1 tap=$2
	[ -e "$tap.frozen" ] || return 1
	grep -qE 'soft lockup|detected stalls|hung_task|workqueue lockup' \
		"$log" || return 1
	echo "     this machine stood still for $(tr '\n' ' ' <"$tap.frozen")s"
}

# Where the host stood still just then, the kernel measured its time stamp counter
# wrong, and says so at boot: its clock runs 20 times too fast.
clock_runs_wild() {
	grep -q 'tsc: PIT calibration deviates from' "$1" || return 1
	echo "     this kernel's clock is wrong"
}

# An oops with bits in EFLAGS that are 0 in every x86 (3, 5, 15, 22-31), which no
# program can set: the emulator has lost the flags that it computes when they are
# asked for. Seen once, with the direction flag: memset went backwards over its own
# return address.
flags_no_cpu_has() {
	local flags
	flags=$(sed -n 's/.* EFLAGS: \([0-9a-f]\{8\}\).*/\1/p' "$1" | head -n 1)
	[ -n "$flags" ] && ((0x$flags & 0xffc08028)) || return 1
	echo "     EFLAGS of the oops: $flags, which no processor can have"
}

# Emulated processors can meet the breakpoint of a kernel that patches its own
# code: an int3 oops, or a hang. Stock kernels do so while they boot, with no
# module of ours. A second boot hides no defect when the first one died before
# insmod, hung in it, or died of int3, which nothing in the module can raise.
emulator_fault() {
	local log=$1 tap=$2
	! host_stood_still "$log" "$tap" || return 0
	! clock_runs_wild "$log" || return 0
	! flags_no_cpu_has "$log" || return 0
	! grep -q '^not ok' "$tap" || return 1
	! grep -q 'int3: 0000' "$log" || return 0
	! grep -qE '^# (INSERTED|RUN|END)' "$tap" || return 1
	! grep -q '^# INSERT' "$tap" || ! grep -q 'Kernel panic' "$log"
}

boot() {
	local kernel=$1 work=$2 try
	for try in 1 2 3; do
		! vm_boot "$kernel" "$work.img" "$work.log" "$work.tap" ||
			return 0
		emulator_fault "$work.log" "$work.tap" || return 0
		echo "     the emulator lost its way (try $try of 3)"
	done
}

# judge WORK BASE: keep the logs, print what happened; last comes the tally
judge() {
	local work=$1 base=$2
	mv "$work.tap" "$base.tap"
	mv "$work.log" "$base.log"
	[ -z "$verbose" ] || cat "$base.tap"
	if ! grep -q '^# END' "$base.tap"; then
		echo "     last lines of the console ($base.log):"
		tail -n 40 "$base.log" | sed 's/\r$//; s/^/     | /'
	fi
	awk -v vm=1 -f "$HERE/../tap.awk" "$base.tap" | tee "$work.verdict"
}

while [ $# -gt 0 ] && [ "${1#-}" != "$1" ]; do
	option "$1" "${2:-}"
	shift "$shifted" || usage
done
[ $# -ge 1 ] || usage
name=$1
shift
vm_need qemu-system-x86_64 busybox cpio gzip gcc

kernel=$("$HERE/kernels.sh" path "$name")
[ "$module" != default ] || module=$VM_BUILD/modules/$name/fiber.ko
fault=$VM_BUILD/modules/$name.fault/fiber.ko
[ -z "$module" ] || [ -e "$module" ] ||
	vm_die "no $module: run 'make modules KERNEL=$name'"
[ $# -gt 0 ] || [ -n "$shell" ] || mapfile -t programs < <(default_programs)
[ $# -eq 0 ] || programs=("$@")

mkdir -p "$VM_BUILD/vm"
base=$VM_BUILD/vm/$name${VM_TAG:+.$VM_TAG}
work=$base.$$
trap 'rm -rf "$work" "$work".*' EXIT
make_image "$work" "${programs[@]}"
if [ -n "$shell" ]; then
	vm_boot "$kernel" "$work.img" - "$work.tap" || true
	exit 0
fi
boot "$kernel" "$work"
judge "$work" "$base"
grep -q '^# TALLY [0-9]* 0 ' "$work.verdict"
