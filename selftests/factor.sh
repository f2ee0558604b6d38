#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only
#
# samples/factor: right factors; and short answers do not wait for long ones. TAP.

set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
TOP=$HERE/..
BUILD=$(cd "${BUILD:-$TOP/build}" && pwd)
out=$BUILD/factor
# shellcheck source-path=SCRIPTDIR source=cases.sh
. "$HERE/cases.sh"

rm -rf "$out"
mkdir -p "$out"

factor() { timeout 100 "$BUILD/samples/factor" >"$out/said" 2>"$out/error"; }

# As many as a channel holds many times, and what coreutils' factor says of them
as_the_other() {
	seq 1 3000 | factor &&
		sort -n "$out/said" | cmp - <(seq 1 3000 | command factor)
}

# The long one is asked first, and is told last.
short_ones_first() {
	{ echo 9223372036854775783; seq 2 20; } | factor &&
		[ "$(wc -l <"$out/said")" = 20 ] &&
		[ "$(tail -n 1 "$out/said")" = '9223372036854775783: 9223372036854775783' ]
}

nothing() { factor </dev/null && [ ! -s "$out/said" ]; }

echo 'TAP version 13'
case_ 'factors of 3000 numbers' as_the_other
case_ 'short answers do not wait for a long one' short_ones_first
case_ 'no numbers' nothing
echo "1..$n"
exit $failed
