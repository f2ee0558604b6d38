# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0-only
#
# For scripts that print TAP of what others say, to be sourced.

n=0

# case_ ok|'not ok' NAME
case_() {
	n=$((n + 1))
	echo "$1 $n - $2"
}

# result NAME: standard input has one complaint a line
result() {
	local text
	text=$(cat)
	if [ -z "$text" ]; then
		case_ ok "$1"
	else
		# shellcheck disable=SC2001 # each line
		sed 's/^/# /' <<<"$text"
		case_ 'not ok' "$1: $(wc -l <<<"$text")"
	fi
}
