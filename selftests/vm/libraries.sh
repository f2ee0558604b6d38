#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only
#
# selftests/libraries/ in a VM with the module, with PostgreSQL and samples/httpd.
#
#   libraries.sh KERNEL [OPTION...]     of run.sh
#
# On the kernel backend alone, unless -backends says another. What is not there is
# not run, and said. The output is run.sh's.

set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$HERE/lib.sh"
LIBRARIES=$VM_TOP/selftests/libraries
PROGRAMS=$VM_BUILD/selftests/libraries
args=(-m 1G -backends kernel -p "$VM_BUILD/samples/httpd" -e HTTPD=/usr/bin/httpd
	-e FIBER_TEST_DIR=/tmp)
run=()

say() { echo "# no $*"; }

# What the server wants to see when it starts; from /usr/bin it looks for its own
# libraries in /usr/lib. Time zones Debian's takes from elsewhere.
share_of() {
	local top=${1%/lib/postgresql/*}
	echo "$top/share/postgresql/$(basename "$(dirname "${1%/*}")")"
}

postgres() {
	local server share cluster=$VM_BUILD/libraries/cluster
	if ! server=$("$LIBRARIES/postgres.sh" server) ||
	   ! "$LIBRARIES/postgres.sh" cluster "$cluster"
	then
		say "PostgreSQL"
		return 0
	fi
	share=$(share_of "$server")
	args+=(-p "$server" -p "$PROGRAMS/libpq" -p "$LIBRARIES/nobody.sh"
		-p "$(command -v setpriv)"
		-e POSTGRES=/usr/bin/postgres -e CLUSTER=/vm/cluster
		-e NOBODY=/usr/bin/nobody.sh -f "$cluster=/vm/cluster"
		-f "${server%/bin/*}/lib/plpgsql.so=/usr/lib/plpgsql.so"
		-f "$share/timezonesets=/usr/share/postgresql/${share##*/}/timezonesets")
	export VM_LIBRARIES
	VM_LIBRARIES=$("$LIBRARIES/postgres.sh" libraries)
	run+=("$LIBRARIES/libpq.sh")
}

kernel=${1:?KERNEL}
shift
for name in getaddrinfo sqlite3 libcurl; do
	if [ -x "$PROGRAMS/$name" ]; then
		run+=("$PROGRAMS/$name")
	else
		say "$name: not built"
	fi
done
if [ -x "$PROGRAMS/libpq" ]; then postgres; else say "libpq: not built"; fi
VM_TAG=${VM_TAG:-libraries} "$HERE/run.sh" -v -t 600 "${args[@]}" "$@" "$kernel" \
	"${run[@]}"
