# shellcheck shell=bash disable=SC2034,SC2154 # theirs to give and to take
# SPDX-License-Identifier: GPL-2.0-only
#
# For scripts that print TAP, to be sourced: they set $out, a folder, where what
# they look at leaves $out/said and, if it has one, $out/error; for ctl also $CTL.

n=0 failed=0

# case_ NAME COMMAND...: it must succeed
case_() {
	local name=$1
	n=$((n + 1))
	shift
	if "$@"; then
		echo "ok $n - $name"
	else
		tail -n 90 "$out/said" "$out/error" 2>/dev/null | sed 's/^/# /' || true
		echo "not ok $n - $name"
		failed=1
	fi
}

# ctl WORD...: fiberctl; its exit status in $status. Where system calls are missing, if
# without says so: tools/without.c and its words.
without=()
ctl() {
	status=0
	timeout 60 "${without[@]}" "$CTL" "$@" >"$out/said" 2>"$out/error" </dev/null ||
		status=$?
}
