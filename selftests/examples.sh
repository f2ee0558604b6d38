#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only
#
# The examples of the manual: each is compiled as a user would, and run.
#
#   examples.sh [PAGE...]     default: man/*.[37]
#
# An example stands between .EX and .EE below a line `.\" example`, and is a whole
# program. `.\" prints TEXT` lines above it say what it must print.

set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
TOP=$HERE/..
BUILD=${BUILD:-$TOP/build}
out=$BUILD/examples
tests=0 failed=0

# page -> the program; macros gone, \e and \- and so on as they print
program() {
	awk '/^\.\\" example/ { want = 1 }
	     /^\.EE/ { if (on) exit }
	     on { print }
	     want && /^\.EX/ { on = 1 }' "$1" |
		sed 's/\\-/-/g; s/\\&//g; s/\\(aq/'"'"'/g; s/\\e/\\/g'
}

wanted() {
	sed -n 's/^\.\\" prints //p' "$1"
}

try() {
	local page=$1 name=$2 flags
	read -ra flags <<<"${CFLAGS:--O2 -g}"
	program "$page" >"$out/$name.c"
	wanted "$page" >"$out/$name.wanted"
	gcc -std=gnu11 -Wall -Wextra -Werror -Wno-unused-parameter \
		"${flags[@]}" -I"$TOP/lib/include" -o "$out/$name" \
		"$out/$name.c" -L"$BUILD/lib" -Wl,-rpath,"$BUILD/lib" -lfiber \
		-lpthread &&
		timeout 60 "$out/$name" >"$out/$name.printed" &&
		diff "$out/$name.wanted" "$out/$name.printed"
}

mkdir -p "$out"
if [ $# -eq 0 ]; then
	mapfile -t pages < <(grep -l '^\.\\" example' "$TOP"/man/*.[37])
	set -- "${pages[@]}"
fi
echo "TAP version 13"
echo "1..$#"
for page; do
	name=$(basename "$page")
	tests=$((tests + 1))
	if try "$page" "$name" >"$out/$name.log" 2>&1; then
		echo "ok $tests - example of ${name%.*}(${name##*.})"
	else
		sed 's/^/# /' "$out/$name.log"
		echo "not ok $tests - example of ${name%.*}(${name##*.})"
		failed=1
	fi
done
exit $failed
