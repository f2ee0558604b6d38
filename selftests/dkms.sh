#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only
#
# A whole DKMS cycle for cached kernels, in temporary folders: the host's own
# DKMS tree, sources and modules are not touched.
#
#   dkms.sh KERNEL...

set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
TOP=$(cd "$HERE/.." && pwd)

# setting NAME: a quoted value of dkms.conf
setting() { sed -n "s/^$1=\"\(.*\)\"\$/\1/p" "$TOP/dkms.conf"; }

name=$(setting PACKAGE_NAME)
version=$(setting PACKAGE_VERSION)

prepare() {
	local root=$1 source=$1/src/$name-$version
	mkdir -p "$root/tree" "$source/uapi" "$root/modules"
	cp -r "$TOP"/{Kbuild,dkms.conf,kmod} "$source/"
	cp -r "$TOP/uapi/linux" "$source/uapi/"
}

# run_dkms ROOT ACTION [ARGUMENT...]
run_dkms() {
	local root=$1 action=$2
	shift 2
	env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL dkms "$action" \
		"$name/$version" --dkmstree "$root/tree" \
		--sourcetree "$root/src" --installtree "$root/modules" "$@" \
		</dev/null
}

# step LABEL COMMAND...: one test case; its output only when it fails
step() {
	local label=$1 log=$root/log
	shift
	if "$@" >"$log" 2>&1; then
		echo "ok - $label"
		return 0
	fi
	echo "not ok - $label"
	sed 's/^/# /' "$log" "$root"/tree/*/*/build/make.log 2>/dev/null || true
	return 1
}

modinfo_fits() {
	local ko
	ko=$(find "$1/modules" -name "$name.ko*" | head -n 1)
	[ -n "$ko" ] || { echo "no module installed"; return 1; }
	modinfo -F vermagic "$ko" | grep "^$2 " &&
		modinfo -F version "$ko" | grep -xF "$version"
}

gone() { [ -z "$(find "$1/modules" -name "$name.ko*")" ]; }

cycle() {
	local label=dkms/$1 root=$2 kernel release of
	kernel=$("$HERE/vm/kernels.sh" path "$1")
	release=$(cat "$kernel/release")
	of=(-k "$release" --kernelsourcedir "$kernel/build")
	prepare "$root"
	mkdir "$root/modules/$release"
	step "$label: add" run_dkms "$root" add &&
	step "$label: build" run_dkms "$root" build "${of[@]}" &&
	step "$label: install" run_dkms "$root" install "${of[@]}" --no-depmod &&
	step "$label: modinfo" modinfo_fits "$root" "$release" &&
	step "$label: remove" run_dkms "$root" remove --all --no-depmod &&
	step "$label: nothing stays" gone "$root"
}

skip_reason() {
	if ! command -v dkms >/dev/null; then
		echo "dkms is not installed"
	elif [ "$(id -u)" != 0 ]; then
		echo "dkms wants root"
	elif grep -q '+deb13' "$("$HERE/vm/kernels.sh" path "$1")/release"; then
		echo "its kbuild helpers need a newer C library than this host's"
	fi
}

test_kernel() {
	local why temp
	why=$(skip_reason "$1")
	if [ -n "$why" ]; then
		echo "ok - dkms/$1 # SKIP $why"
		return 0
	fi
	temp=$(mktemp -d)
	( cycle "$1" "$temp" ) || true
	rm -rf "$temp"
}

[ $# -ge 1 ] || { echo "usage: dkms.sh KERNEL..." >&2; exit 2; }
for k; do test_kernel "$k"; done
