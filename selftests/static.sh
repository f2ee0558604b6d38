#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only
#
# What sparse and checkpatch.pl say of the module's sources. TAP.
#
#   static.sh
#
# sparse         against the headers of Debian 12's kernel; what it says of those headers
#                themselves is not ours
# checkpatch.pl  of the kernel tree that "make check-debug" unpacks; skipped
#                without one

set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
TOP=$(cd "$HERE/.." && pwd)
BUILD=${BUILD:-$TOP/build}
KERNEL=6.1
# compat.h is there for the first two; lists of fields, as TRACE_EVENT takes them,
# are no expressions; fiber_may_fail() needs its failure with fault injection only.
IGNORE=LINUX_VERSION_CODE,CONSTANT_COMPARISON,COMPLEX_MACRO,MACRO_ARG_UNUSED

# shellcheck source-path=SCRIPTDIR source=result.sh
. "$HERE/result.sh"

# All sources anew, in a folder of their own: sparse reads what kbuild compiles.
run_sparse() {
	local dir=$BUILD/static
	rm -rf "$dir"
	mkdir -p "$dir"
	cp -r Kbuild dkms.conf kmod uapi "$dir"
	"$HERE/vm/kernels.sh" build "$KERNEL" "$dir" C=2 CHECK=sparse
}

sparse_says() {
	local log=$BUILD/static.log
	run_sparse >"$log" 2>&1 || echo "did not end well: see $log"
	grep -E "^$BUILD/static/.*: (warning|error):" "$log" || true
}

checkpatch_says() {
	perl "$1" --no-tree --terse --no-summary --ignore "$IGNORE" \
		-f kmod/*.[ch] uapi/linux/*.h 2>&1 || true
}

cd "$TOP"
"$HERE/vm/kernels.sh" fetch "$KERNEL"
result sparse < <(sparse_says)
checkpatch=$("$HERE/vm/kernels.sh" path debug)/tree/scripts/checkpatch.pl
if [ -e "$checkpatch" ]; then
	result checkpatch < <(checkpatch_says "$checkpatch")
else
	case_ ok "checkpatch # SKIP no kernel tree: make check-debug unpacks one"
fi
