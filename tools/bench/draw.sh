#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only
#
# A table of run.sh as a picture: draw.sh TSV OUT.svg
#
# Each row has its own scale, of which ours is 1: a bar to the right is a peer that
# takes so many times as long, one to the left a peer that is ahead of us.

set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

[ $# = 2 ] || { echo "usage: draw.sh TSV OUT.svg" >&2; exit 2; }
command -v gnuplot >/dev/null ||
	{ echo "draw.sh: gnuplot is not installed: tools/deps.sh bench" >&2; exit 1; }
[ -r "$1" ] || { echo "draw.sh: $1: no such table" >&2; exit 1; }
plot=$(awk -f "$here/draw.awk" "$1")
# In place as one whole, or not at all.
if ! gnuplot - <<<"$plot" >"$2.new"; then
	rm -f "$2.new"
	exit 1
fi
mv "$2.new" "$2"
