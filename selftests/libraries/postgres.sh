#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only
#
# A PostgreSQL server for tests: the installed one, or Debian's, fetched into the
# cache and unpacked there, not installed; and a new cluster.
#
#   postgres.sh server           print the path of the program
#   postgres.sh libraries        the folder of libraries that came with it, or ''
#   postgres.sh cluster FOLDER   make one there, unless it is there
#
# Status 1, with a line on stderr: there is none.

set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
CACHE=${FIBER_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/fiber}
OURS=$CACHE/postgresql

die() { echo "postgres.sh: $*" >&2; exit 1; }

# newest FOLDER: that has one below it
newest() {
	find "$1/usr/lib/postgresql" -path '*/bin/postgres' 2>/dev/null |
		sort -V | tail -n 1
}

installed() {
	dpkg-query -W -f '${db:Status-Abbrev} ${Package}\n' |
		sed -n 's/^ii *//p' | sort -u
}

# depends OPTION PACKAGE...
depends() {
	apt-cache depends --no-recommends --no-suggests --no-conflicts \
		--no-breaks --no-replaces --no-enhances "$@"
}

# The server and its libraries that this machine has not. It works without the
# compiler that it could load (LLVM).
packages() {
	local server first
	server=$(apt-cache depends postgresql |
		sed -n 's/.*Depends: \(postgresql-[0-9]*\)$/\1/p' | head -n 1)
	[ -n "$server" ] || return 1
	echo "$server"
	first=$(depends "$server" | sed -n 's/.*Depends: \(lib.*\)/\1/p' |
		grep -v libllvm)
	# shellcheck disable=SC2086 # words
	depends --recurse $first | grep -E '^lib[^:]*$' | sort -u |
		comm -23 - <(installed)
}

# In place as one whole, or not at all.
fetch() {
	local new=$OURS.new list package deb
	mapfile -t list < <(packages)
	[ ${#list[@]} -gt 0 ] || die "apt knows no postgresql"
	rm -rf "$new"
	mkdir -p "$new/debs"
	cd "$new/debs"
	for package in "${list[@]}"; do
		apt-get -qq -o APT::Sandbox::User=root download "$package" \
			>/dev/null 2>&1 || true
	done
	for deb in *.deb; do [ ! -e "$deb" ] || dpkg -x "$deb" "$new"; done
	cd /
	rm -rf "$new/debs" "$OURS"
	[ -n "$(newest "$new")" ] || { rm -rf "$new"; die "cannot be fetched"; }
	chmod -R a+rX "$new"
	mv "$new" "$OURS"
}

server() {
	local found
	found=$([ -n "${FIBER_POSTGRES_FETCH:-}" ] || newest "")
	if [ -z "$found" ]; then
		mkdir -p "$CACHE/locks"
		exec 9>"$CACHE/locks/postgresql"
		flock 9
		[ -n "$(newest "$OURS")" ] || fetch
		found=$(newest "$OURS")
	fi
	echo "$found"
}

libraries() {
	case $(server) in
	"$OURS"/*) echo "$OURS/usr/lib/x86_64-linux-gnu" ;;
	esac
}

# GMT: the one time that needs no files. In a folder that its user can come to, moved when it is whole.
cluster() {
	local to=$1 work bin
	[ ! -e "$to/PG_VERSION" ] || return 0
	bin=$(dirname "$(server)")
	work=$(mktemp -d /tmp/fiber-cluster.XXXXXX)
	# shellcheck disable=SC2064 # this one
	trap "rm -rf '$work'" EXIT
	"$HERE/nobody.sh" -own "$work" "$bin/initdb"
	TZ=GMT LD_LIBRARY_PATH=$(libraries) "$HERE/nobody.sh" "$bin/initdb" -D "$work/data" \
		-U fiber -A trust -E UTF8 --no-locale --no-sync \
		--wal-segsize=1 >"$work/log" 2>&1 ||
		{ cat "$work/log" >&2; die "initdb failed"; }
	mkdir -p "$(dirname "$to")"
	rm -rf "$to" "$to.new"
	cp -a "$work/data" "$to.new"
	mv "$to.new" "$to"
}

case ${1:-} in
server) server ;;
libraries) libraries ;;
cluster) cluster "${2:?FOLDER}" ;;
*) sed -n '3,/^$/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2; exit 2 ;;
esac
