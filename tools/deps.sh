#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only
#
# Debian packages by purpose: says which are missing, then installs those.
#
#   deps.sh PURPOSE...     build, native, libraries, vm, model, san, kselftest,
#                          debug, demo, dkms, static, bench
#
# DEPS=no: install nothing.

set -euo pipefail

packages() {
	case $1 in
	build) echo gcc g++ libc6-dev make libdw-dev liburing-dev \
		systemtap-sdt-dev ;;
	native) echo curl gdb gnuplot-nox netcat-openbsd pkgconf python3 ;;
	libraries) echo libcurl4-openssl-dev libfuse3-dev libpq-dev libsqlite3-dev pkgconf ;;
	vm) echo qemu-system-x86 busybox-static cpio gzip gcc-12 make libc6-dev \
		xz-utils zstd lz4 binutils mmdebstrap util-linux ;;
	model) echo spin ;;
	debug) echo ccache flex bison bc libelf-dev ;;
	kselftest) echo lib32gcc-12-dev libc6-dev-i386 ;;
	san) echo valgrind libclang-rt-dev clang ;;
	demo) echo wrk python3 ;;
	dkms) echo dkms kmod ;;
	static) echo sparse perl ;;
	bench) echo golang-go gnuplot-nox g++ libboost-context-dev \
		libboost-fiber-dev libst-dev liburing-dev wrk \
		luajit lua5.4 xz-utils ;;
	*) echo "deps.sh: no purpose '$1': build, native, libraries, vm, model, san, kselftest, debug, demo, dkms, static, bench" >&2
	   return 1 ;;
	esac
}

installed() {
	dpkg-query -W -f '${db:Status-Abbrev}\n' "$1" 2>/dev/null |
		grep -q '^ii'
}

missing() {
	local purpose package list
	for purpose; do
		list=$(packages "$purpose")
		for package in $list; do
			installed "$package" || echo "$package"
		done
	done | sort -u
}

# INITRD=No: no package may rebuild the host's initramfs.
apt() {
	DEBIAN_FRONTEND=noninteractive INITRD=No apt-get -qq -o Dpkg::Use-Pty=0 "$@" </dev/null >/dev/null
}

[ $# -ge 1 ] || { echo "usage: deps.sh PURPOSE..." >&2; exit 2; }
[ "${DEPS:-yes}" != no ] || exit 0
for purpose; do packages "$purpose" >/dev/null; done
mapfile -t wanted < <(missing "$@")
[ ${#wanted[@]} -gt 0 ] || exit 0
echo "# installing Debian packages: ${wanted[*]}" >&2
if [ "$(id -u)" != 0 ]; then
	echo "deps.sh: not root: run 'apt-get install ${wanted[*]}' yourself," \
		"or say DEPS=no" >&2
	exit 1
fi
apt update
apt install --no-install-recommends "${wanted[@]}"
