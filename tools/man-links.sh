#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only
#
# man-links.sh FOLDER PAGE...: a page for each further name in a NAME section.

set -euo pipefail
folder=$1
shift
for page; do
	own=$(basename "$page" .3)
	names=$(sed -n '/^\.SH NAME/,/^\.SH SYN/p' "$page" | tr -d '\n' |
		sed 's/.*NAME//; s/ *\\-.*//; s/,/ /g')
	for name in $names; do
		[ "$name" = "$own" ] ||
			echo ".so man3/$own.3" >"$folder/$name.3"
	done
done
