#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only
#
# The module may import only what mainline exports to every GPL module.
#
#   imports.sh KERNEL...
#
# For each built module (build/modules/KERNEL/fiber.ko): each import stands in
# imports.list, and is exported by that kernel itself (Module.symvers).

set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
BUILD=${BUILD:-$HERE/../build}
LIST=$HERE/imports.list

imports() { nm -u "$1" | awk '$1 == "U" { print $2 }' | sort -u; }

# list_patterns !|'': forbidden or allowed names, one a line
list_patterns() {
	sed 's/#.*//' "$LIST" | awk -v no="$1" '
		NF && (no == "!") == (/^!/) { sub(/^!/, "", $1); print $1 }'
}

# matches NAME PATTERN...: shell patterns
matches() {
	local name=$1 pattern
	shift
	for pattern; do
		# shellcheck disable=SC2053 # a pattern on purpose
		[[ $name != $pattern ]] || return 0
	done
	return 1
}

verdict() {
	if [ -z "$2" ]; then echo "ok - $1"; else echo "not ok - $1:$2"; fi
}

check_list() {
	local kernel=$1 ko=$2 name bad=''
	while read -r name; do
		if matches "$name" "${forbidden[@]}"; then
			bad+=" $name (not exported by mainline)"
		elif ! matches "$name" "${allowed[@]}"; then
			bad+=" $name (not in selftests/imports.list)"
		fi
	done < <(imports "$ko")
	verdict "imports/$kernel: allowed" "$bad"
}

check_exports() {
	local kernel=$1 ko=$2 symvers=$3 bad
	bad=$(awk 'NR == FNR { if ($3 == "vmlinux") exported[$2] = 1; next }
		   !($1 in exported) { printf " %s (not exported by vmlinux)", $1 }
		' "$symvers" <(imports "$ko"))
	verdict "imports/$kernel: exported" "$bad"
}

check_kernel() {
	local kernel=$1 ko=$BUILD/modules/$1/fiber.ko tree
	if [ ! -e "$ko" ]; then
		echo "not ok - imports/$kernel: no $ko: run 'make modules KERNEL=$kernel'"
		return 0
	fi
	tree=$("$HERE/vm/kernels.sh" path "$kernel")/build
	check_list "$kernel" "$ko"
	check_exports "$kernel" "$ko" "$tree/Module.symvers"
}

[ $# -ge 1 ] || { echo "usage: imports.sh KERNEL..." >&2; exit 2; }
mapfile -t allowed < <(list_patterns '')
mapfile -t forbidden < <(list_patterns '!')
for k; do check_kernel "$k"; done
