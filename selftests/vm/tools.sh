#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only
#
# Debian's gdb, strace, trace-cmd and criu for the VM: fetched and unpacked, not installed.
#
#   tools.sh        fetch into the cache (no-op when there); print the programs
#
# Of what they depend on, packages that this machine has installed are not
# fetched; their libraries are taken from here. gdb-minimal, because the other
# one wants all of Python. What cannot be fetched is not printed: the tests that
# need it skip.

set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$HERE/lib.sh"

TOOLS=$VM_CACHE/tools
WANTED=(gdb-minimal strace trace-cmd criu)

say() { echo "# $*" >&2; }

installed() {
	dpkg-query -W -f '${db:Status-Abbrev} ${Package}\n' |
		sed -n 's/^ii *//p' | sort -u
}

# Everything the wanted packages need, themselves included, but what is installed
needs() {
	{
		apt-cache depends --recurse --no-recommends --no-suggests \
			--no-conflicts --no-breaks --no-replaces --no-enhances \
			"${WANTED[@]}" | grep -E '^[a-z0-9]' | sed 's/:.*//' |
			sort -u | comm -23 - <(installed)
		printf '%s\n' "${WANTED[@]}"
	} | sort -u
}

# Virtual packages have nothing to download.
fetch() {
	local dir=$TOOLS.new package deb
	rm -rf "$dir"
	mkdir -p "$dir/debs"
	cd "$dir/debs"
	needs | while read -r package; do
		apt-get -qq -o APT::Sandbox::User=root download "$package" \
			>/dev/null 2>&1 || say "no package $package"
	done
	for deb in *.deb; do [ ! -e "$deb" ] || dpkg -x "$deb" "$dir"; done
	cd /
	rm -rf "$dir/debs" "$dir/usr/share" "$TOOLS"
	mv "$dir" "$TOOLS"
}

mkdir -p "$VM_CACHE/locks"
exec 9>"$VM_CACHE/locks/tools"
flock 9
programs=(usr/bin/gdb usr/bin/strace usr/bin/trace-cmd usr/sbin/criu)
for program in "${programs[@]}"; do
	[ ! -x "$TOOLS/$program" ] || continue
	say "fetching ${WANTED[*]}"
	fetch
	break
done
for program in "${programs[@]}"; do
	[ ! -x "$TOOLS/$program" ] || echo "$TOOLS/$program"
done
