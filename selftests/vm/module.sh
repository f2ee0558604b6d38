#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only
#
# Builds the module outside the source tree.
#
#   module.sh NAME...        build/modules/NAME/fiber.ko for cached kernels
#   module.sh -fault NAME... build/modules/NAME.fault/fiber.ko, in which what can
#                            fail does so on demand (kmod/fault.h)
#   module.sh -k KDIR NAME   the same folder, for the header tree KDIR
#
# kbuild writes beside the sources, so each kernel gets a copy of them.

set -euo pipefail

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
TOP=$(cd "$HERE/../.." && pwd)
BUILD=${BUILD:-$TOP/build}

die() { echo "module.sh: $*" >&2; exit 1; }

# update FILE COPY: an unchanged file keeps its date, so that kbuild skips it
update() { cmp -s "$1" "$2" || cp "$1" "$2"; }

stage() {
	local dir=$1 file
	mkdir -p "$dir/kmod" "$dir/uapi/linux"
	for file in "$dir"/kmod/*.[chS]; do
		[ -e "$TOP/${file#"$dir"/}" ] || [[ $file = *.mod.c ]] ||
			rm -f "$file"
	done
	for file in Kbuild dkms.conf uapi/linux/*.h kmod/*.[chS]; do
		[ ! -e "$TOP/$file" ] || update "$TOP/$file" "$dir/$file"
	done
}

build_cached() {
	local name=${1%.fault} dir=$BUILD/modules/$1 fault=
	[ "$name" = "$1" ] || fault=FIBER_FAULT=y
	"$HERE/kernels.sh" fetch "$name"
	stage "$dir"
	"$HERE/kernels.sh" build "$name" "$dir" FIBER_WERROR=y $fault
}

build_tree() {
	local kdir=$1 dir=$BUILD/modules/$2
	[ -e "$kdir/Makefile" ] || die "$kdir is no kernel header tree:" \
		"install linux-headers-$(uname -r), or say KDIR=, or KERNEL=6.1"
	stage "$dir"
	env -i PATH="$PATH" make -s -C "$kdir" "M=$dir" W=1 FIBER_WERROR=y modules
}

# Two builds in one folder take turns.
locked() {
	local name=$1
	shift
	mkdir -p "$BUILD/modules"
	( flock 9 && "$@" ) 9>"$BUILD/modules/.$name.lock"
	echo "built $BUILD/modules/$name/fiber.ko"
}

cd "$TOP"
if [ "${1:-}" = -k ]; then
	[ $# = 3 ] || die "usage: module.sh -k KDIR NAME"
	locked "$3" build_tree "$2" "$3"
	exit
fi
suffix=
if [ "${1:-}" = -fault ]; then
	suffix=.fault
	shift
fi
[ $# -ge 1 ] || die "usage: module.sh [-fault] KERNEL...  or  module.sh -k KDIR NAME"
for name; do
	locked "$name$suffix" build_cached "$name$suffix"
done
