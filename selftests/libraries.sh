#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only
#
# Libraries that know nothing of fibers, in many fibers: selftests/libraries/ on
# this machine. Prints TAP; where a library is missing, that is a SKIP.
#
# PostgreSQL is the installed one, or one that is unpacked in the cache; its
# cluster is made in build/libraries.

set -uo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
BUILD=$(realpath "${BUILD:-$HERE/../build}")
OUT=$BUILD/libraries
PROGRAMS=$BUILD/selftests/libraries
cases=0 planned=0 failed=0
export FIBER_TEST_DIR=$OUT HTTPD=$BUILD/samples/httpd

case_() {
	cases=$((cases + 1))
	echo "$1 $cases - $2"
}

skip() {
	planned=$((planned + 1))
	case_ ok "$1 # SKIP $2"
}

# renumber WORDS: "ok N ..." of a program, as one of ours
renumber() {
	local verdict=ok
	[[ $1 = ok* ]] || { verdict='not ok'; failed=1; }
	cases=$((cases + 1))
	echo "$verdict $cases ${1#"$verdict" * }"
}

# run NAME PROGRAM: its cases, numbered on
run() {
	local rc=0 line before=$failed
	timeout -k 5 200 "$2" >"$OUT/$1.log" 2>&1 </dev/null || rc=$?
	while IFS= read -r line; do
		case $line in
		'TAP version'*) ;;
		1..*) planned=$((planned + ${line#1..})) ;;
		'ok '*|'not ok '*) renumber "$line" ;;
		*) echo "$line" ;;
		esac
	done <"$OUT/$1.log"
	[ $rc = 0 ] || [ $rc = 4 ] || [ "$failed" != "$before" ] ||
		{ planned=$((planned + 1)) failed=1
		  case_ 'not ok' "$1 ended with status $rc"; }
}

# program NAME [SCRIPT]
program() {
	if [ -x "$PROGRAMS/$1" ]; then
		run "$1" "${2:-$PROGRAMS/$1}"
	else
		skip "$1" "not built: pkg-config does not find it"
	fi
}

with_postgres() {
	local why="$OUT/postgres.err" tools=$HERE/libraries
	if ! POSTGRES=$("$tools/postgres.sh" server 2>"$why") ||
	   ! "$tools/postgres.sh" cluster "$OUT/cluster" 2>"$why"
	then
		skip libpq "no PostgreSQL: $(head -n 1 "$why")"
		return
	fi
	SERVER_LIBRARIES=$("$tools/postgres.sh" libraries)
	export POSTGRES SERVER_LIBRARIES CLUSTER=$OUT/cluster
	PROGRAM=$PROGRAMS/libpq program libpq "$tools/libpq.sh"
}

mkdir -p "$OUT"
echo "TAP version 13"
program getaddrinfo
program sqlite3
program libcurl
program fuse3
with_postgres
echo "1..$planned"
exit $failed
