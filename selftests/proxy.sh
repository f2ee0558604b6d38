#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#
# Does samples/httpd pass requests on, with their bodies, both ways at once, and
# answer well when the other server does not?
#
#   proxy.sh [PROGRAM]	default: build/samples/httpd
#
# Runs natively, on the backend FIBER_BACKEND (default: user), with each FIBER_IO.
# Prints TAP; status 0: nothing failed, 4: could not run (SKIP). Upstreams are
# another httpd and selftests/net/peer.
# shellcheck disable=SC2059 # requests are formats: they hold \r\n

set -u
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
BUILD=${BUILD:-$HERE/../build}
HTTPD=${1:-$BUILD/samples/httpd}
PEER=$BUILD/selftests/net/peer
export FIBER_BACKEND=${FIBER_BACKEND:-user}
# shellcheck source-path=SCRIPTDIR source=net/server.sh
. "$HERE/net/server.sh"
ROOT=$DIR/root

httpd() { serve 'http://[^ ]*:\([0-9]*\)/ ' "$HTTPD" -p 0 -n 2 "$@"; }

# get TARGET [CURL OPTION...]
get() {
	local target=$1
	shift
	curl -sS --max-time 60 --path-as-is "$@" "http://127.0.0.1:$port$target"
}
status() { get "$@" -o /dev/null -w '%{http_code}' 2>&1; }

raw() {
	local fd
	exec {fd}<>"/dev/tcp/127.0.0.1/$port" || return 1
	printf "$1" >&"$fd"
	timeout 60 cat <&"$fd" 2>/dev/null | tr -d '\r'
	exec {fd}>&-
}
raw_status() { raw "$1" | awk 'NR == 1 { print $2 }'; }

files_cases() {
	same "a file" abcdefghi "$(get /files/a.txt)"
	same "3 MB" "$(md5sum <"$ROOT/big.bin")" "$(get /files/big.bin | md5sum)"
	same "a range" '206 cde' "$(get /files/a.txt -r 2-4 -w ' %{http_code}' |
		awk '{ print $2, $1 }')"
	same "HEAD" 9 "$(get /files/a.txt -I | tr -d '\r' |
		sed -n 's/^Content-Length: //p')"
	same "404 from there" 404 "$(status /files/none)"
	same "a redirect from there" "301 /files/sub/" "$(get /files/sub -o /dev/null \
		-D - | tr -d '\r' | awk 'NR == 1 { s = $2 }
			$1 == "Location:" { print s, $2 }')"
	same "the path as it came" abcdefghi "$(get '/x/../files/%61.txt?q')"
	same "a name that begins alike is ours" ours "$(get /filesystem.txt)"
	same "a path that climbs out is ours" 404 "$(status /files/../a.txt)"
	same "one connection, three requests" '1 0 0 ' "$(get '/files/a.txt' \
		-o /dev/null -o /dev/null -o /dev/null -w '%{num_connects} ' \
		"http://127.0.0.1:$port/files/none" "http://127.0.0.1:$port/")"
}

# What one half of a body brings back, before the other half is sent.
duplex() {
	local fd line
	exec {fd}<>"/dev/tcp/127.0.0.1/$port"
	printf 'POST /up/echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 6\r\n\r\nabc' >&"$fd"
	while read -r -t 30 line <&"$fd" && [ "$line" != $'abc\r' ]; do :; done
	printf '%s' "${line%$'\r'} "
	printf 'def' >&"$fd"
	timeout 30 cat <&"$fd" | tr -d '\r' | tr '\n' ' '
	exec {fd}>&-
}

body_cases() {
	local sum head
	sum=$(md5sum <"$ROOT/big.bin")
	same "POST, 3 MB there and back" "$sum" \
		"$(get /up/echo --data-binary "@$ROOT/big.bin" | md5sum)"
	same "PUT, in chunks" "$sum" "$(get /up/echo -T - -H 'Expect:' \
		<"$ROOT/big.bin" | md5sum)"
	same "both ways at once" 'abc 3 def 0  ' "$(duplex)"
	same "two POSTs, one connection" '1 0 ' "$(get /up/echo -d one -o /dev/null \
		-o /dev/null -w '%{num_connects} ' "http://127.0.0.1:$port/up/echo")"
	same "an answer before the body is there" 413 \
		"$(status /up/early --data-binary "@$ROOT/big.bin")"
	head=$(get /up/head -H 'Connection: X-Mine' -H 'X-Mine: 1' -H 'X-Our: 2' \
		-H 'TE: x' -D "$DIR/answer" | tr -d '\r')
	same "fields that go there" 'X-Our: 2/X-Forwarded-For: 127.0.0.1/Connection: close/' \
		"$(grep -E '^(X-|TE|Connection)' <<<"$head" | tr '\n' /)"
	same "fields that come back" 'X-Keep: 2/Connection: close/' \
		"$(tr -d '\r' <"$DIR/answer" | grep -E '^(X-|Conn|Keep)' | tr '\n' /)"
}

error_cases() {
	local h='Host: x\r\nConnection: close\r\n'
	same "nobody listens: 502" 502 "$(status /dead/x)"
	same "nonsense: 502" 502 "$(status /up/nonsense)"
	same "a reset: 502" 502 "$(status /up/reset)"
	same "two lengths: 502" 502 "$(status /up/two)"
	same "chunks for HTTP/1.0: 502" 502 "$(raw_status 'GET /up/chunks HTTP/1.0\r\n\r\n')"
	same "half an answer is not taken for one" 18 \
		"$(get /up/half >/dev/null 2>&1; echo $?)"
	same "nor are broken chunks" 56 "$(get /up/chunks >/dev/null 2>&1
		r=$?; [ $r = 18 ] && r=56; echo $r)"
	same "a length and chunks: 400" 400 "$(raw_status "POST /up/echo HTTP/1.1\r\n${h}Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n")"
	same "two lengths: 400" 400 "$(raw_status "POST /up/echo HTTP/1.1\r\n${h}Content-Length: 3\r\nContent-Length: 4\r\n\r\n")"
	same "another encoding: 501" 501 "$(raw_status "POST /up/echo HTTP/1.1\r\n${h}Transfer-Encoding: gzip\r\n\r\n")"
	same "TRACE stays here: 405" 405 "$(status /up/head -X TRACE)"
	same "POST to our own: 405" 405 "$(status /a.txt -d x)"
	"$PEER" reset "$port" 20
	same "after 20 that reset" abcdefghi "$(get /files/a.txt)"
	only_us() { [ "$(get /stats | sed -n 's/^connections: //p')" = 1 ]; }
	same "nobody is left" yes "$(soon only_us && echo yes)"
}

# refuses NAME WANTED OPTION...
refuses() {
	local name=$1 wanted=$2
	shift 2
	same "$name" "$wanted" "$(timeout 60 "$HTTPD" -p 0 "$@" 2>&1 | head -n 1)"
}

[ -x "$HTTPD" ] && [ -x "$PEER" ] && command -v curl >/dev/null ||
	{ echo "1..0 # SKIP no samples/httpd, selftests/net/peer or curl"; exit 4; }
unset http_proxy https_proxy all_proxy
mkdir -p "$ROOT/files/sub" "$DIR/ours"
printf abcdefghi >"$ROOT/files/a.txt"
printf ours >"$DIR/ours/filesystem.txt"
head -c 3000000 /dev/urandom >"$ROOT/big.bin"
cp "$ROOT/big.bin" "$ROOT/files/"
echo "TAP version 13"
for FIBER_IO in epoll plain; do
	export FIBER_IO way=$FIBER_IO
	serve 'upstream: \([0-9]*\)' "$PEER" upstream; up=$port
	httpd -r "$ROOT"; files=$port
	httpd -r "$DIR/ours" -x "/up=127.0.0.1:$up" -x "/files=127.0.0.1:$files" \
		-x /dead/=127.0.0.1:1
	files_cases
	body_cases
	error_cases
	httpd -r "$DIR/ours" -x "/=127.0.0.1:$up" -t 1
	same "silence: 504" 504 "$(status /none)"
done
refuses "no such form" 'httpd: proxy /up: want /PATH=HOST:PORT' -x /up
refuses "no such port" 'httpd: proxy /up=127.0.0.1:no-port: Servname not supported for ai_socktype' \
	-x /up=127.0.0.1:no-port
echo "1..$cases"
exit $failed
