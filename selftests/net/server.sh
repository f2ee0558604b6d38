# shellcheck shell=bash
# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#
# server.sh - for tests that start servers: sourced
#
# Sets DIR, a folder that goes at the end, as the servers do. Close with
# echo "1..$cases"; exit "$failed".

DIR=$(mktemp -d) || exit 1
cases=0 failed=0 servers=()

# All that were started.
stop() {
	[ ${#servers[@]} = 0 ] ||
		{ kill -9 "${servers[@]}"; wait "${servers[@]}"; } 2>/dev/null
	servers=()
}
trap 'stop; rm -rf "$DIR"' EXIT

# same NAME WANTED SEEN. way: what else all names begin with
same() {
	local name=${way:+$way: }$1
	cases=$((cases + 1))
	if [ "$2" = "$3" ]; then
		echo "ok $cases - $name"
	else
		failed=1
		printf '%.2000s\n' "wanted: $2" "seen: $3" | head -n 40 |
			sed 's/^/# /'
		echo "not ok $cases - $name"
	fi
}

# soon COMMAND...: until it succeeds, 60 s at most
soon() {
	local i
	for ((i = 0; i < 600; i++)); do
		! "$@" || return 0
		sleep 0.1
	done
	return 1
}

# serve REGEX PROGRAM OPTION...: sets port to what REGEX's group matches in what
# the program says, and server, its process id
serve() {
	local regex=$1
	shift
	: >"$DIR/log"			# not the port of the one before
	"$@" >"$DIR/log" 2>&1 &
	server=$!
	servers+=("$server")
	soon grep -q "$regex" "$DIR/log" || { cat "$DIR/log"; exit 1; }
	# shellcheck disable=SC2034 # the caller's
	port=$(sed -n "s|.*$regex.*|\1|p" "$DIR/log")
}
