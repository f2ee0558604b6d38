#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
#
# Starts a PostgreSQL for libpq.c, runs that, stops it. Also in the VM: plain sh.
#
# Environment: PROGRAM, the test; POSTGRES, the server; SERVER_LIBRARIES of it, if
# elsewhere; CLUSTER, a new one; NOBODY, nobody.sh. (postgres.sh finds and makes
# them.) The server runs on a copy of CLUSTER and listens on a Unix socket beside it
# alone: nothing outside that folder is touched.

PROGRAM=${PROGRAM:-libpq}
NOBODY=${NOBODY:-$(dirname "$0")/nobody.sh}
work=$(mktemp -d /tmp/fiber-libpq.XXXXXX) || exit 1
server=

# shellcheck disable=SC2317 # by trap
stop() {
	if [ -n "$server" ]; then
		kill -INT "$server"	# without waiting for clients
		wait "$server"
	fi 2>/dev/null
	rm -rf "$work"
}
trap stop EXIT
trap 'exit 1' INT TERM HUP

serve() {
	[ -z "${SERVER_LIBRARIES:-}" ] ||
		export LD_LIBRARY_PATH="$SERVER_LIBRARIES"
	exec "$NOBODY" "$POSTGRES" -D "$work/data" -k "$work" -h '' \
		-c max_connections=120 -c shared_buffers=16MB -c fsync=off \
		-c wal_level=minimal -c max_wal_senders=0 -c autovacuum=off >"$work/log" 2>&1
}

not_ok() {
	echo "1..1"
	sed 's/^/# /' "$work/log"
	echo "not ok 1 - $*"
	exit 1
}

# Its last line says so.
ready() { grep -q '^ready' "$work/data/postmaster.pid" 2>/dev/null; }

start() {
	cp -a "$CLUSTER" "$work/data" || not_ok "no cluster $CLUSTER"
	"$NOBODY" -own "$work" "$POSTGRES" || not_ok "no user for the server"
	serve &
	server=$!
	until ready; do
		kill -0 "$server" 2>/dev/null || not_ok "the server ended"
		sleep 0.1
	done
}

: >"$work/log"
start
export PGHOST="$work" PGUSER=fiber PGDATABASE=postgres
"$PROGRAM"
rc=$?
# What a client did wrong stands there.
[ $rc = 0 ] || [ $rc = 4 ] || tail -n 20 "$work/log" | sed 's/^/# server: /'
exit $rc
