# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0-only
#
# Building blocks for test VMs; to be sourced. A caller makes a root folder,
# puts programs and files in, packs it and boots it:
#
#   vm_root DIR                      the bare system: busybox, init, libraries
#   vm_add_module DIR FIBER_KO       the module that init inserts
#   vm_add_fault_module DIR FIBER_KO the one with FAULT=1, and its tests
#   vm_add_swap DIR FOLDER           zram's modules, and a script that makes swap of it
#   vm_add_fuse DIR FOLDER           FUSE's module
#   vm_add_program DIR FILE [PATH]   a program with the libraries it needs
#   vm_add_path DIR PATH[=TO]        a file or folder, at its own path, or at TO
#   vm_add_test DIR LABEL COMMAND    a line for init's list
#   vm_environment DIR NAME=VALUE    a variable for all that runs there
#   vm_pack DIR IMAGE                make the initramfs
#   vm_boot KERNEL IMAGE CONSOLE TAP boot it; see VM_* below
#
# Settings of vm_boot: VM_SMP, VM_MEMORY, VM_APPEND, VM_TIMEOUT (seconds),
# VM_MODE (multi, single, icount), VM_ARGS (array of further QEMU arguments).

VM_HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
VM_TOP=$(cd "$VM_HERE/../.." && pwd)
VM_BUILD=${VM_BUILD:-$VM_TOP/build}
VM_CACHE=${FIBER_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/fiber}

: "${VM_START:=90}" # CPU seconds of the guest until the module is in
: "${VM_SMP:=2}" "${VM_MEMORY:=512M}" "${VM_APPEND:=}" "${VM_TIMEOUT:=300}"
: "${VM_MODE:=multi}"
[ -n "${VM_ARGS+set}" ] || VM_ARGS=()

VM_LIBDIR=lib/x86_64-linux-gnu

vm_die() { echo "vm: $*" >&2; exit 1; }

vm_need() {
	local tool
	for tool; do
		command -v "$tool" >/dev/null ||
			vm_die "$tool is missing: run tools/deps.sh vm"
	done
}

# --- the image ------------------------------------------------------------

vm_guest_exit() {
	local out=$VM_BUILD/vm/guest-exit
	if [ ! -x "$out" ] || [ "$VM_HERE/guest-exit.c" -nt "$out" ]; then
		mkdir -p "$VM_BUILD/vm"
		gcc -O2 -static -o "$out.$$" "$VM_HERE/guest-exit.c" &&
			mv "$out.$$" "$out"
	fi
	echo "$out"
}

# getaddrinfo() and friends load these by name
vm_name_service() {
	local lib
	printf 'root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n' >"$1/etc/passwd"
	printf 'root:x:0:\nnogroup:x:65534:\n' >"$1/etc/group"
	printf '127.0.0.1 localhost fiber-vm\n::1 localhost\n' >"$1/etc/hosts"
	printf 'passwd: files\ngroup: files\nhosts: files\n' >"$1/etc/nsswitch.conf"
	for lib in libnss_files.so.2 libnss_dns.so.2 libresolv.so.2; do
		[ ! -e "/$VM_LIBDIR/$lib" ] ||
			cp -L "/$VM_LIBDIR/$lib" "$1/$VM_LIBDIR/"
	done
}

vm_root() {
	local root=$1 applet
	rm -rf "$root"
	mkdir -p "$root"/{bin,dev,etc,proc,root,sys,tmp,usr/bin,vm,$VM_LIBDIR,lib64}
	ln -s bin "$root/sbin"
	cp "$(command -v busybox)" "$root/bin/busybox"
	for applet in $(busybox --list); do
		[ "$applet" = busybox ] || ln -s busybox "$root/bin/$applet"
	done
	vm_name_service "$root"
	cp "$VM_HERE/init" "$root/init"
	cp "$VM_HERE/hung" "$root/vm/hung"
	cp "$(vm_guest_exit)" "$root/vm/guest-exit"
	sed '/^#/d' "$VM_HERE/splats" >"$root/vm/splats"
	cp "$VM_HERE/kcsan.awk" "$root/vm/kcsan.awk"
	: >"$root/vm/tests"
	echo "LIMIT=120" >"$root/vm/environment"
}

vm_add_module() { cp "$2" "$1/vm/fiber.ko"; }

# After the tests init takes it in place of the other, for vm_add_fault_test.
vm_add_fault_module() { cp "$2" "$1/vm/fault.ko"; : >>"$1/vm/tests.fault"; }

vm_add_fault_test() {
	local root=$1 label=$2
	shift 2
	printf '%s\t%s\n' "$label" "$*" >>"$root/vm/tests.fault"
}

vm_add_swap() {
	mkdir -p "$1/vm/swap"
	cp "$2"/*.ko "$1/vm/swap/" 2>/dev/null || return 0
	cp "$VM_HERE/swap-on" "$1/vm/swap/on"
}

vm_add_fuse() {
	mkdir -p "$1/vm/fuse"
	cp "$2"/*.ko "$1/vm/fuse/" 2>/dev/null || true	# built in
}

# Shared libraries go where the guest's loader looks first.
vm_add_libraries() {
	local root=$1 file=$2 needs lib
	needs=$(LD_LIBRARY_PATH=$VM_CACHE/tools/usr/$VM_LIBDIR:${VM_LIBRARIES:-} \
		ldd "$file" 2>/dev/null) || return 0	# static
	case $needs in
	*'not found'*) vm_die "libraries missing for $file: $needs" ;;
	esac
	grep -oE '/[^ ]+' <<<"$needs" | while read -r lib; do
		case $lib in
		*/ld-linux*) cp -uL "$lib" "$root/lib64/" ;;
		*) cp -uL "$lib" "$root/$VM_LIBDIR/" ;;
		esac
	done
}

vm_add_program() {
	local root=$1 file=$2 path=${3:-/usr/bin/$(basename "$2")}
	[ -x "$file" ] || vm_die "no program $file: run make first"
	mkdir -p "$root$(dirname "$path")"
	cp -L "$file" "$root$path"
	vm_add_libraries "$root" "$file"
}

# What lies under /tmp is hidden there by a mount: say where else it should be.
vm_add_path() {
	local root=$1 path to
	path=$(realpath "${2%%=*}")
	to=$path
	case $2 in *=*) to=${2#*=} ;; esac
	mkdir -p "$root$(dirname "$to")"
	cp -a "$path" "$root$to"
}

vm_add_test() {
	local root=$1 label=$2
	shift 2
	printf '%s\t%s\n' "$label" "$*" >>"$root/vm/tests"
}

vm_environment() {
	local root=$1 pair
	shift
	for pair; do
		printf 'export %s=%q\n' "${pair%%=*}" "${pair#*=}"
	done >>"$root/vm/environment"
}

# vm_limit DIR SECONDS: how long one program may run
vm_limit() { echo "LIMIT=$2" >>"$1/vm/environment"; }

vm_pack() {
	( cd "$1" && find . | cpio -o -H newc --quiet | gzip -1 ) >"$2"
}

# --- booting --------------------------------------------------------------

# vm_machine: the part of QEMU's command line that never changes, a word a line
vm_machine() {
	printf '%s\n' qemu-system-x86_64 -M q35 -nodefaults -no-user-config \
		-display none -no-reboot -m "$VM_MEMORY" \
		-device isa-debug-exit,iobase=0xf4,iosize=4
}

vm_append() {
	echo "console=ttyS0 panic=-1 oops=panic no_timer_check tsc=reliable" \
		"random.trust_cpu=on loglevel=5 $VM_APPEND"
}

# Emulated unless a short boot under KVM works: /dev/kvm may open and yet hang.
vm_kvm_works() {
	local kernel=$1 dir=$VM_BUILD/vm/probe.$$ rc=0 qemu
	[ -w /dev/kvm ] || return 1
	vm_root "$dir"
	printf '#!/bin/sh\n/vm/guest-exit 42\n' >"$dir/init"
	vm_pack "$dir" "$dir.img"
	mapfile -t qemu < <(vm_machine)
	timeout 10 "${qemu[@]}" -accel kvm -cpu host \
		-kernel "$kernel/vmlinux" -initrd "$dir.img" \
		-append "$(vm_append)" </dev/null >/dev/null 2>&1 || rc=$?
	rm -rf "$dir" "$dir.img"
	[ $rc = 85 ]
}

# The answer holds until this machine boots again.
vm_have_kvm() {
	local id note
	id=$(cat /proc/sys/kernel/random/boot_id)
	note=$VM_CACHE/kvm-$id
	if [ ! -s "$note" ]; then
		mkdir -p "$VM_CACHE"
		if vm_kvm_works "$1"; then echo yes; else echo no; fi >"$note.$$"
		mv "$note.$$" "$note"
	fi
	[ "$(cat "$note")" = yes ]
}

# vm_accel KERNEL: QEMU's arguments for VM_MODE, one word a line
vm_accel() {
	case $VM_MODE in
	icount)
		printf '%s\n' -accel tcg,thread=single \
			-icount shift=0,sleep=off -smp 1 -cpu max
		return ;;
	single)
		printf '%s\n' -accel tcg,thread=single -cpu max ;;
	multi)
		if vm_have_kvm "$1"; then
			printf '%s\n' -accel kvm -cpu host
		else
			printf '%s\n' -accel tcg,thread=multi -cpu "${VM_CPU:-max}"
		fi ;;
	*)
		vm_die "VM_MODE is '$VM_MODE': say multi, single or icount" ;;
	esac
	printf '%s\n' -smp "$VM_SMP"
}

vm_input() { [ -t 0 ] && tty || echo /dev/null; }

# vm_cpu PID: CPU seconds that it and its child (timeout, qemu) have used
vm_cpu() {
	local pid hz sum=0 fields
	hz=$(getconf CLK_TCK)
	for pid in "$1" $(cat "/proc/$1/task/$1/children" 2>/dev/null); do
		fields=$(sed 's/.*) //' "/proc/$pid/stat" 2>/dev/null) || continue
		# shellcheck disable=SC2086 # words on purpose
		set -- $fields
		sum=$((sum + ${12:-0} + ${13:-0}))
	done
	echo $((sum / hz))
}

# vm_late PID SECONDS: has it had the time to start? On a busy host a guest that
# is well has used little by then; one that hangs asleep uses none.
vm_late() {
	(($2 > VM_START)) &&
		{ (($(vm_cpu "$1") > VM_START)) || (($2 > 5 * VM_START)); }
}

# vm_watch PID TAP: a guest that has not come past insmod in time never will.
# And if this machine itself stood still (a paused host: the clock jumps), the
# guest's watchdogs will blame the guest; TAP.frozen says for how many seconds.
vm_watch() {
	local guest=$1 tap=$2 begin=$SECONDS before=$SECONDS
	rm -f "$tap.frozen"
	while sleep 1 && kill -0 "$guest" 2>/dev/null; do
		((SECONDS - before < 8)) ||
			echo $((SECONDS - before)) >>"$tap.frozen"
		before=$SECONDS
		vm_late "$guest" $((SECONDS - begin)) || continue
		! grep -qE '^# (INSERTED|RUN|END)' "$tap" || continue
		[ "$console" != mon:stdio ] || continue
		echo "     no sign of life after $((SECONDS - begin)) s"
		kill "$guest" 2>/dev/null || true
		return
	done
}

# vm_boot KERNEL IMAGE CONSOLE TAP: 0 when the guest said it passed. KERNEL is
# a folder of kernels.sh; CONSOLE is a file, or - for this terminal.
vm_boot() {
	local kernel=$1 image=$2 console=$3 tap=$4 qemu rc=0 append
	append=$(vm_append)
	[ "$VM_MODE" != icount ] ||
		append+=" mitigations=off nokaslr init_on_alloc=0"
	mapfile -t qemu < <(vm_machine; vm_accel "$kernel")
	: >"$tap"
	case $console in
	-) console=mon:stdio ;;
	*) : >"$console"; console=file:$console ;;
	esac
	timeout -k 5 "$VM_TIMEOUT" "${qemu[@]}" "${VM_ARGS[@]}" \
		-kernel "$kernel/vmlinux" -initrd "$image" -append "$append" \
		-serial "$console" -serial "file:$tap" <"$(vm_input)" &
	local guest=$!
	vm_watch "$guest" "$tap" &
	local watch=$!
	wait "$guest" || rc=$?
	kill "$watch" 2>/dev/null || true
	wait "$watch" 2>/dev/null || true
	[ $rc = 1 ] && grep -q '^# END rc=0' "$tap"
}
