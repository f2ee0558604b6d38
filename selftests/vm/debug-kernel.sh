#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only
#
# Builds a kernel that watches itself, from Debian's linux-source package.
#
#   debug-kernel.sh NAME      debug: KASAN, lockdep, kmemleak, UBSAN, fault
#                             injection, KCOV; kcsan: the data race detector
#
# kernels.sh calls this for those two names; the result lies in its cache like
# a fetched kernel: kernels/NAME/ with vmlinux, release, build -> header tree,
# and variables, what kbuild gets when it makes a module for that kernel. What
# it was made of (source version, configuration, compiler, this script) stands
# in key: as long as nothing of it changes, nothing is built.
#
# Ten minutes on two idle cores; half a minute when ccache knows the objects.
# An interrupted build goes on where it stopped.
#
# The sanitizers are in the module and in those parts of the kernel that it
# calls, or that call it; elsewhere they would double the time for nothing. A
# race needs only one side that is watched: KCSAN sees the value change.

set -euo pipefail

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
CACHE=${FIBER_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/fiber}
VERSION=${FIBER_DEBUG_SOURCE:-6.12}

say() { echo "# debug-kernel: $*" >&2; }
die() { echo "debug-kernel.sh: $*" >&2; exit 1; }

case ${1:-} in
debug)
	variables=KCOV_INSTRUMENT=y
	plain='net/% fs/% drivers/base/% drivers/tty/%' ;;
kcsan)
	variables=
	plain='net/% fs/% drivers/% init/% arch/% mm/% security/% crypto/%' ;;
*) sed -n '3,/^$/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2; exit 2 ;;
esac
name=$1
final=$CACHE/kernels/$name
out=$CACHE/build/$name

# The same words for the same input: objects come from ccache, and two builds
# are alike.
kbuild() {
	env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C \
		CCACHE_DIR="$CACHE/ccache" CCACHE_MAXSIZE=1G \
		KBUILD_BUILD_TIMESTAMP='Thu Jan  1 00:00:00 UTC 1970' \
		KBUILD_BUILD_USER=fiber KBUILD_BUILD_HOST=fiber \
		nice make -s -j2 -C "$source" "O=$out" \
		CC='ccache gcc' LOCALVERSION="-$name" FIBER_PLAIN="$plain" "$@"
}

# KVM alone selects these two: without it nobody could ask for them.
give_prompts() {
	local tree=$1
	sed -i '/^config PREEMPT_NOTIFIERS$/,/^$/s/^\tbool$/\tbool "Preempt notifiers"/' \
		"$tree/init/Kconfig"
	sed -i '/^config USER_RETURN_NOTIFIER$/,/^$/s/^\tbool$/\tbool "User return notifiers"/' \
		"$tree/arch/Kconfig"
}

# Folders that match a word of FIBER_PLAIN are built without sanitizers.
give_plain() {
	local file=$1/scripts/Makefile.lib
	! grep -q FIBER_PLAIN "$file" || return 0
	# shellcheck disable=SC2016 # make's variables
	sed -i '0,/^ifeq (\$(CONFIG_KASAN),y)$/s//ifneq ($(filter $(FIBER_PLAIN),$(obj)\/),)\nKASAN_SANITIZE := n\nUBSAN_SANITIZE := n\nKCSAN_SANITIZE := n\nendif\n\n&/' \
		"$file"
}

fragment() { cat "$HERE/guest.config" "$HERE/$name.config"; }

key() {
	cat "$CACHE/source/$VERSION/version"
	gcc --version | head -n 1
	fragment | sha256sum
	sha256sum <"${BASH_SOURCE[0]}"
}

# An option that depends on something absent would silently be dropped.
configure() {
	local line missing=()
	fragment >"$out/fragment"
	kbuild KCONFIG_ALLCONFIG="$out/fragment" allnoconfig >/dev/null
	while read -r line; do
		grep -qxF "$line" "$out/.config" || missing+=("$line")
	done < <(sed -n '/=n$/d; /^CONFIG_/p' "$out/fragment")
	[ ${#missing[@]} = 0 ] ||
		die "Kconfig did not take: ${missing[*]}"
}

# What modules need of the tree, and the kernel without its symbol table.
collect() {
	local tmp=$1
	( cd "$out" && srctree=$source SRCARCH=x86 CC=gcc HOSTCC=gcc MAKE=make \
		"$source/scripts/package/install-extmod-build" "$tmp/tree" )
	ln -s tree "$tmp/build"
	strip -s -o "$tmp/vmlinux" "$out/vmlinux"
	cp "$out/include/config/kernel.release" "$tmp/release"
	cp "$out/.config" "$tmp/config"
	printf '%s' "${variables:+$variables$'\n'}" >"$tmp/variables"
}

build() {
	local tmp=$CACHE/kernels/.$name.tmp
	[ "$(cat "$final/key" 2>/dev/null)" != "$key" ] || return 0
	say "building $name from Linux $(cat "$CACHE/source/$VERSION/version")" \
		"(ten minutes, once)"
	mkdir -p "$out" "$CACHE/ccache"
	give_prompts "$source"
	give_plain "$source"
	configure
	kbuild vmlinux modules >"$out/log" 2>&1 ||
		{ tail -n 30 "$out/log" >&2; die "the build failed: $out/log"; }
	rm -rf "$tmp"
	mkdir -p "$tmp"
	collect "$tmp"
	printf '%s\n' "$key" >"$tmp/key"
	rm -rf "$final"
	mv "$tmp" "$final"
	rm -rf "$out"
	say "built $name in $SECONDS s"
}

for tool in ccache flex bison bc gcc strip; do
	command -v "$tool" >/dev/null ||
		die "$tool is missing: run tools/deps.sh debug"
done
source=$("$HERE/kernels.sh" source "$VERSION")
key=$(key)
mkdir -p "$CACHE/locks"
( flock 9 && build ) 9>"$CACHE/locks/kernel-$name"
