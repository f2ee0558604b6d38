#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only
#
# Library tests on this machine, with the user backend.
#
#   native.sh [PROGRAM...]    default: build/selftests/lib, httpd.sh, echo.sh,
#                             chat.sh, crawl.sh, factor.sh, proxy.sh, examples.sh, gdb.sh,
#                             fiberctl.sh, install.sh, timeline.sh,
#                             probes.sh, tracectl.sh, bench.sh, libraries.sh
#
# FIBER_TEST_LIMIT: seconds for one program (300); FIBER_TEST_MEMORY: address
# space of one in KiB (16 GiB). Prints TAP with the markers of vm/init.

set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
BUILD=${BUILD:-$HERE/../build}
limit=${FIBER_TEST_LIMIT:-300}

run_one() {
	local label rc=0 began=$SECONDS
	label=native/$(basename "$1" .sh)
	echo "# RUN $label"
	(
		ulimit -v "${FIBER_TEST_MEMORY:-16777216}"
		FIBER_BACKEND=user timeout -k 5 "$limit" "$1" </dev/null 2>&1
	) || rc=$?
	case $rc in
	124|137) echo "not ok - $label: timeout after $limit s" ;;
	esac
	echo "# DONE $label $((SECONDS - began))s rc=$rc"
}

if [ $# -eq 0 ]; then
	mapfile -t programs < <(find "$BUILD/selftests/lib" "$HERE/httpd.sh" \
		"$HERE/echo.sh" "$HERE/chat.sh" "$HERE/crawl.sh" "$HERE/factor.sh" \
		"$HERE/proxy.sh" \
		"$HERE/examples.sh" "$HERE/gdb.sh" \
		"$HERE/fiberctl.sh" "$HERE/install.sh" \
		"$HERE/timeline.sh" "$HERE/probes.sh" \
		"$HERE/tracectl.sh" "$HERE/bench.sh" \
		"$HERE/libraries.sh" -maxdepth 1 -type f -perm -100 2>/dev/null | sort)
	set -- "${programs[@]}"
fi
for program; do run_one "$program"; done
