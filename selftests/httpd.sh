#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#
# Does samples/httpd speak HTTP, stay in its root and survive bad clients?
#
#   httpd.sh [PROGRAM]	default: build/samples/httpd
#
# Runs natively, on the backend FIBER_BACKEND (default: user). Prints TAP;
# status 0: nothing failed, 1: something did, 4: could not run (SKIP).
# shellcheck disable=SC2059 # requests are formats: they hold \r\n

set -u
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
HTTPD=${1:-${HTTPD:-${BUILD:-$HERE/../build}/samples/httpd}}
export FIBER_BACKEND=${FIBER_BACKEND:-user}

cases=0 failed=0 pids=()
DIR=$(mktemp -d) || exit 1
ROOT=$DIR/root

cleanup() {
	if [ ${#pids[@]} != 0 ]; then
		kill -9 "${pids[@]}"
		wait "${pids[@]}"
	fi 2>/dev/null
	rm -rf "$DIR"
}
trap cleanup EXIT

skip_all() { echo "1..0 # SKIP $*"; exit 4; }

# --- verdicts ---------------------------------------------------------------

ok() { cases=$((cases + 1)); echo "ok $cases - $1"; }

# fail NAME WHAT...: what was seen instead, as comments
fail() {
	cases=$((cases + 1)) failed=$((failed + 1))
	echo "not ok $cases - $1"
	shift
	printf '%s\n' "$@" | head -n 20 | tr -d '\r' | sed 's/^/# /'
}

# same NAME WANTED SEEN
same() { if [ "$2" = "$3" ]; then ok "$1"; else fail "$1" "wanted: $2" "seen: $3"; fi; }

# like NAME REGEX SEEN: an extended regular expression; CR is left out of SEEN
like() {
	local seen=${3//$'\r'/}
	if [[ $seen =~ $2 ]]; then ok "$1"; else fail "$1" "wanted: $2" "seen: $seen"; fi
}

# --- a server and two clients ------------------------------------------------

# start NAME OPTION...: a server on a free port; sets port, server
start() {
	local log=$DIR/$1.log i
	shift
	: >"$log"
	"$HTTPD" -p 0 -r "$ROOT" -n 2 "$@" >"$log" 2>&1 &
	server=$!
	pids+=("$server")
	for i in {1..400}; do
		port=$(sed -n 's|.*http://[^ ]*:\([0-9]*\)/ .*|\1|p' "$log")
		[ -z "$port" ] || return 0
		kill -0 "$server" 2>/dev/null || break
		sleep 0.05
	done
	fail "$1: the server starts" "$(cat "$log")"
	echo "1..$cases"
	exit 1
}

# get TARGET [CURL OPTION...]: the body to stdout, the rest where -o, -D say
get() {
	local target=$1
	shift
	curl -sS --max-time 20 --path-as-is "$@" "http://127.0.0.1:$port$target"
}

# status NAME WANTED TARGET [CURL OPTION...]: status, then one further field
# when WANTED is "206 bytes 0-4/26" or so (Content-Range, Location, Allow)
status() {
	local name=$1 wanted=$2 target=$3 seen
	shift 3
	seen=$(get "$target" -o /dev/null -D - "$@" 2>&1 | tr -d '\r' |
		awk 'NR == 1 { s = $2 }
		     tolower($1) ~ /^(content-range|location|allow):$/ {
			$1 = ""; s = s $0 }
		     END { print s }')
	same "$name" "$wanted" "$seen"
}

# header NAME WANTED FIELD TARGET [CURL OPTION...]
header() {
	local name=$1 wanted=$2 field=$3 target=$4
	shift 4
	same "$name" "$wanted" "$(get "$target" -o /dev/null -D - "$@" |
		tr -d '\r' | sed -n "s/^$field: //Ip")"
}

# raw FORMAT: send that, print all that comes until the server closes
raw() {
	local fd
	exec {fd}<>"/dev/tcp/127.0.0.1/$port" || return 1
	printf "$1" 1>&"$fd" 2>/dev/null
	timeout 20 cat <&"$fd" 2>/dev/null | tr -d '\0'
	exec {fd}>&-
}

# raw_like NAME REGEX FORMAT
raw_like() { like "$1" "$2" "$(raw "$3")"; }

stat_of() { get /stats | sed -n "s/^$1: //p"; }

# soon COMMAND...: it succeeds within 20 seconds
soon() {
	local i
	for i in {1..200}; do
		! "$@" || return 0
		sleep 0.1
	done
	return 1
}

# --- what is served ----------------------------------------------------------

make_files() {
	mkdir -p "$ROOT"/{sub/deep,"a dir",empty,.hidden} "$DIR/outside"
	echo '<p>index</p>' >"$ROOT/index.html"
	echo '<p>sub</p>' >"$ROOT/sub/index.html"
	echo '<p>space</p>' >"$ROOT/a dir/index.html"
	printf 'abcdefghijklmnopqrstuvwxyz' >"$ROOT/a.txt"
	: >"$ROOT/zero.txt"
	touch -d '2020-02-02 02:02:02 UTC' "$ROOT/a.txt"
	head -c 3000000 /dev/urandom >"$ROOT/big.bin"
	echo png >"$ROOT/p.PNG"
	echo none >"$ROOT/noext"
	echo space >"$ROOT/a b+c.txt"
	echo utf8 >"$ROOT/ü.txt"
	echo percent >"$ROOT/100%.txt"
	echo secret >"$DIR/outside/secret.txt"
	ln -s a.txt "$ROOT/link.txt"
	ln -s ../a.txt "$ROOT/sub/up.txt"
	ln -s ../../root/a.txt "$ROOT/sub/around.txt"
	ln -s sub "$ROOT/dirlink"
	ln -s ../outside/secret.txt "$ROOT/out.txt"
	ln -s "$ROOT/a.txt" "$ROOT/absolute.txt"
	ln -s ../outside "$ROOT/outdir"
	ln -s loop "$ROOT/loop"
	ln -s nothing "$ROOT/dangling"
	mkfifo "$ROOT/fifo"
}

# --- cases -------------------------------------------------------------------

files_cases() {
	same "index of the root" '<p>index</p>' "$(get /)"
	same "a file" abcdefghijklmnopqrstuvwxyz "$(get /a.txt)"
	same "query is no part of the name" abc "$(get '/a.txt?x=/../y' | head -c 3)"
	same "fragment is no part of the name" abc "$(raw 'GET /a.txt#x HTTP/1.0\r\n\r\n' | tail -n 1 | head -c 3)"
	same "a space and a plus" space "$(get '/a%20b+c.txt')"
	same "UTF-8 name" utf8 "$(get /%C3%BC.txt)"
	same "percent sign" percent "$(get /100%25.txt)"
	same "lower-case escapes" abc "$(get /%61%2e%74xt | head -c 3)"
	same "3 MB arrive whole" "$(md5sum <"$ROOT/big.bin")" "$(get /big.bin | md5sum)"
	same "empty file" '200 0' "$(get /zero.txt -o /dev/null -w '%{http_code} %{size_download}')"
	header "HEAD tells the length" 26 Content-Length /a.txt -I
	same "HEAD sends no body" 'Connection: close' \
		"$(raw 'HEAD /a.txt HTTP/1.0\r\n\r\n' | tr -d '\r' | tail -n 2 | sed '/^$/d')"
	header "type of html" 'text/html; charset=utf-8' Content-Type /
	header "type of txt" 'text/plain; charset=utf-8' Content-Type /a.txt
	header "type of PNG, upper case" image/png Content-Type /p.PNG
	header "type of no suffix" application/octet-stream Content-Type /noext
	status "missing file" 404 /none
	status "missing directory" 404 /none/
	status "a file is no directory" 404 /a.txt/
	status "nor is it above another" 404 /a.txt/b
	status "directory without index" 403 /empty/
	status "directory without slash" '301 /sub/' /sub
	status "the query moves along" '301 /sub/?a=b' '/sub?a=b'
	status "a redirect is encoded" '301 /a%20dir/' /a%20dir
	status "a redirect stays on this host" '301 /sub/' //sub
	status "name of 255 and more bytes" 404 "/$(printf 'n%.0s' {1..300})"
	header "Date of a file" 'Sun, 02 Feb 2020 02:02:02 GMT' Last-Modified /a.txt
}

# Once for each way of resolving paths; $1 is its name.
beneath_cases() {
	status "$1: link to a file" 200 /link.txt
	status "$1: link up inside the root" 200 /sub/up.txt
	status "$1: link to a directory" 200 /dirlink/
	status "$1: file through a directory link" 200 /dirlink/up.txt
	status "$1: link that leaves and returns" 403 /sub/around.txt
	status "$1: link out" 403 /out.txt
	status "$1: absolute link" 403 /absolute.txt
	status "$1: through a directory link out" 403 /outdir/secret.txt
	status "$1: link loop" 403 /loop
	status "$1: dangling link" 404 /dangling
	status "$1: FIFO does not block" 403 /fifo
	status "$1: climbs above the root" 403 /../outside/secret.txt
	status "$1: climbs in escapes" 403 /%2e%2e/outside/secret.txt
	status "$1: climbs with escaped slashes" 403 /..%2foutside%2fsecret.txt
	status "$1: climbs from below" 403 /sub/../../outside/secret.txt
	status "$1: dots that stay inside" 200 /sub/./../a.txt
	status "$1: dots end in a directory" 200 /sub/deep/..
	status "$1: deep directory" 403 /sub/deep/
	status "$1: double slashes" 200 //sub///up.txt
	status "$1: missing" 404 /sub/deep/none
	status "$1: a file is no directory" 404 /a.txt/x
	status "$1: backslashes are names" 404 '/..\outside'
}

range_cases() {
	status "first bytes" '206 bytes 0-4/26' /a.txt -r 0-4
	same "and they are those" abcde "$(get /a.txt -r 0-4)"
	status "from the middle" '206 bytes 20-25/26' /a.txt -r 20-
	same "to the end" uvwxyz "$(get /a.txt -r 20-)"
	status "the last bytes" '206 bytes 23-25/26' /a.txt -r -3
	same "suffix content" xyz "$(get /a.txt -r -3)"
	status "suffix longer than the file" '206 bytes 0-25/26' /a.txt -r -99
	status "one byte" '206 bytes 25-25/26' /a.txt -r 25-25
	status "end beyond the file" '206 bytes 10-25/26' /a.txt -r 10-999
	status "start beyond the file" '416 bytes */26' /a.txt -r 26-
	status "empty suffix" '416 bytes */26' /a.txt -H 'Range: bytes=-0'
	status "range of an empty file" '416 bytes */0' /zero.txt -r 0-
	status "number too large" '416 bytes */26' /a.txt -r 99999999999999999999999-
	status "several ranges: whole file" 200 /a.txt -r 0-1,4-5
	status "backwards: ignored" 200 /a.txt -H 'Range: bytes=5-2'
	status "no numbers: ignored" 200 /a.txt -H 'Range: bytes=-'
	status "other unit: ignored" 200 /a.txt -H 'Range: lines=0-1'
	status "garbage: ignored" 200 /a.txt -H 'Range: bytes=1-2x'
	status "HEAD has no ranges" 200 /a.txt -I -H 'Range: bytes=0-4'
	status "If-Range holds" '206 bytes 0-4/26' /a.txt -r 0-4 \
		-H 'If-Range: Sun, 02 Feb 2020 02:02:02 GMT'
	status "If-Range does not" 200 /a.txt -r 0-4 \
		-H 'If-Range: Sun, 02 Feb 2020 02:02:01 GMT'
	status "If-Range with a tag" 200 /a.txt -r 0-4 -H 'If-Range: "tag"'
	same "a download goes on in the middle" "$(md5sum <"$ROOT/big.bin")" \
		"$( (get /big.bin -r 0-1234566; get /big.bin -r 1234567-) | md5sum)"
	status "not modified" 304 /a.txt -H 'If-Modified-Since: Sun, 02 Feb 2020 02:02:02 GMT'
	status "modified" 200 /a.txt -H 'If-Modified-Since: Sun, 02 Feb 2020 02:02:01 GMT'
	status "broken date" 200 /a.txt -H 'If-Modified-Since: yesterday'
	status "tags go before dates" 200 /a.txt -H 'If-None-Match: "x"' \
		-H 'If-Modified-Since: Sun, 02 Feb 2020 02:02:02 GMT'
}

H='Host: x\r\n'
E='Connection: close\r\n\r\n'

request_cases() {
	status "POST" '405 GET, HEAD' / -X POST
	status "POST with a body" '405 GET, HEAD' / -d data
	status "DELETE" '405 GET, HEAD' / -X DELETE
	status "unknown method" 501 / -X BREW
	raw_like "no request at all" ' 400 ' 'hello\r\n\r\n'
	raw_like "no version" ' 400 ' 'GET /\r\n\r\n'
	raw_like "broken version" ' 400 ' "GET / HTTP/one\r\n$H\r\n"
	raw_like "HTTP/2.0" ' 505 ' "GET / HTTP/2.0\r\n$H\r\n"
	raw_like "two spaces" ' 400 ' "GET  / HTTP/1.1\r\n$H\r\n"
	raw_like "space in the target" ' 400 ' "GET /a b HTTP/1.1\r\n$H\r\n"
	raw_like "target without slash" ' 400 ' "GET a.txt HTTP/1.1\r\n$H\r\n"
	raw_like "asterisk" ' 400 ' "GET * HTTP/1.1\r\n$H\r\n"
	raw_like "control character" ' 400 ' "GET /\x01 HTTP/1.1\r\n$H\r\n"
	raw_like "raw 8-bit character" ' 400 ' "GET /\xfc HTTP/1.1\r\n$H\r\n"
	raw_like "broken escape" ' 400 ' "GET /%%zz HTTP/1.1\r\n$H\r\n"
	raw_like "cut escape" ' 400 ' "GET /%%4 HTTP/1.1\r\n$H\r\n"
	raw_like "escaped NUL" ' 400 ' "GET /a.txt%%00.html HTTP/1.1\r\n$H\r\n"
	raw_like "NUL" ' 400 ' "GET /a.txt\0 HTTP/1.1\r\n$H\r\n"
	raw_like "1.1 without Host" ' 400 ' 'GET / HTTP/1.1\r\n\r\n'
	raw_like "two Hosts" ' 400 ' "GET / HTTP/1.1\r\n$H$H\r\n"
	raw_like "space before the colon" ' 400 ' "GET / HTTP/1.1\r\n${H}A : b\r\n\r\n"
	raw_like "folded line" ' 400 ' "GET / HTTP/1.1\r\n${H}A: b\r\n c\r\n\r\n"
	raw_like "line without colon" ' 400 ' "GET / HTTP/1.1\r\n${H}A\r\n\r\n"
	raw_like "length that is no number" ' 400 ' "GET / HTTP/1.1\r\n${H}Content-Length: 1x\r\n\r\n"
	raw_like "absolute target" ' 200 ' "GET http://x/a.txt HTTP/1.1\r\n$H$E"
	raw_like "absolute target without path" ' 400 ' "GET http://x HTTP/1.1\r\n$H$E"
	raw_like "line feeds alone" ' 200 ' 'GET /a.txt HTTP/1.1\nHost: x\nConnection: close\n\n'
	raw_like "empty lines first" ' 200 ' "\r\n\r\nGET /a.txt HTTP/1.1\r\n$H$E"
	raw_like "field names in any case" ' 206 ' "GET /a.txt HTTP/1.1\r\nhOST:x\r\nrAnGe:   bytes=0-0  \r\n$E"
	status "long request line" 414 "/$(head -c 5000 /dev/zero | tr '\0' a)"
	status "large field" 431 / -H "X: $(head -c 9000 /dev/zero | tr '\0' a)"
	raw_like "too many fields" ' 431 ' "GET / HTTP/1.1\r\n$H$(printf 'A: b\\r\\n%.0s' {1..101})\r\n"
	raw_like "a head that never ends" ' 431 ' "GET / HTTP/1.1\r\nA: $(head -c 20000 /dev/zero | tr '\0' a)"
}

# how many answers with 200 standard input holds
count_status() { grep -ao 'HTTP/1.1 200' | wc -l; }

connection_cases() {
	local r3 fd answer
	same "keep-alive: one connection, three requests" '1 0 0 ' \
		"$(curl -sS --path-as-is -w '%{num_connects} ' -o /dev/null -o /dev/null \
		   -o /dev/null "http://127.0.0.1:$port/"{,a.txt,p.PNG})"
	r3="GET /a.txt HTTP/1.1\r\n$H\r\n"
	same "pipelined requests" 3 "$(raw "$r3${r3}GET /sub/ HTTP/1.1\r\n$H$E" | count_status)"
	like "answers keep their order" $'z(HTTP|\n).*<p>sub' "$(raw "$r3${r3}GET /sub/ HTTP/1.1\r\n$H$E")"
	same "200 pipelined requests" 200 \
		"$(raw "$(printf 'GET /a.txt HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n%.0s' {1..199})GET / HTTP/1.1\r\n$H$E" | count_status)"
	same "errors keep the connection" 2 "$(raw "GET /none HTTP/1.1\r\n$H\r\nGET /none HTTP/1.1\r\n$H$E" | grep -c ' 404 ')"
	raw_like "HTTP/1.0 closes" 'Connection: close' 'GET /a.txt HTTP/1.0\r\n\r\n'
	same "HTTP/1.0 keep-alive" 2 "$(raw 'GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\nGET / HTTP/1.0\r\n\r\n' | count_status)"
	same "Connection: close is obeyed" 1 "$(raw "GET / HTTP/1.1\r\n$H$E${r3}" | count_status)"
	same "a body is no second request" 1 "$(raw "GET / HTTP/1.1\r\n${H}Content-Length: 40\r\n\r\n$r3" | grep -c '^HTTP/1.1')"
	same "nor in chunks" 1 "$(raw "GET / HTTP/1.1\r\n${H}Transfer-Encoding: chunked\r\n\r\n$r3" | grep -c '^HTTP/1.1')"
	exec {fd}<>"/dev/tcp/127.0.0.1/$port"
	for answer in G ET ' /a' '.txt HTTP/1.1\r' '\nHost: x\r\nConn' 'ection: close\r\n\r' '\n'; do
		printf "$answer" >&"$fd"
		sleep 0.05
	done
	like "a request in pieces" ' 200 OK' "$(timeout 10 cat <&"$fd")"
	exec {fd}>&-
	exec {fd}<>"/dev/tcp/127.0.0.1/$port"
	printf 'GET /a.txt HT' >&"$fd"
	exec {fd}>&-
	status "half a request, then gone" 200 /a.txt
}

# The server has -t 1 here.
slow_cases() {
	local fd answer i base vanished=()
	base=$SECONDS
	raw_like "half a request: 408" ' 408 ' "GET /a.txt HTTP/1.1\r\nHo"
	same "silence is closed without a word" '' "$(raw '')"
	exec {fd}<>"/dev/tcp/127.0.0.1/$port"
	# longer than anybody waits for the answer
	for i in {1..100}; do printf 'A' 1>&"$fd" 2>/dev/null; sleep 0.2; done &
	answer=$(timeout 15 cat <&"$fd")
	kill $!
	wait $! 2>/dev/null
	exec {fd}>&-
	like "a trickle: 408 as well" ' 408 ' "$answer"
	if [ $((SECONDS - base)) -le 15 ]; then
		ok "all three within the limit"
	else
		fail "all three within the limit" "$((SECONDS - base)) s"
	fi
	for i in {1..30}; do
		exec {fd}<>"/dev/tcp/127.0.0.1/$port"
		printf "GET /big.bin HTTP/1.1\r\n$H\r\n" >&"$fd"
		if [ "$i" -le 10 ]; then vanished+=("$fd"); else exec {fd}>&-; fi
	done
	status "20 vanished in a download, 10 do not read" 200 /a.txt
	only_us() { [ "$(stat_of connections)" = 1 ]; }
	if soon only_us; then
		ok "all of them are given up"
	else
		fail "all of them are given up" "$(get /stats)"
	fi
	for fd in "${vanished[@]}"; do exec {fd}>&-; done
}

# seconds COMMAND...: how long it took, in milliseconds
milliseconds() {
	local t0 t1
	t0=$(date +%s%N)
	"$@" >/dev/null
	t1=$(date +%s%N)
	echo $(((t1 - t0) / 1000000))
}

hog_cases() {
	local ms spinners=() fds=() fd i
	for i in 1 2 3 4; do			# the machine may be busy
		ms=$(milliseconds get '/sleep?ms=300')
		[ "$ms" -ge 1300 ] || break
	done
	if [ "$ms" -ge 300 ] && [ "$ms" -lt 1300 ]; then
		ok "/sleep takes its time"
	else
		fail "/sleep takes its time" "$ms ms for 300"
	fi
	same "/sleep says so" 'slept 20 ms' "$(get '/sleep?ms=20')"
	same "/spin says so" 'spun 20 ms' "$(get '/spin?ms=20')"
	for i in /spin '/spin?ms=' '/spin?ms=x' '/sleep?ms=60001' '/sleep?ms=-1'; do
		status "$i is refused" 400 "$i"
	done
	for i in {1..100}; do
		exec {fd}<>"/dev/tcp/127.0.0.1/$port"
		fds+=("$fd")
	done
	for i in 1 2; do
		get "/spin?ms=5000" >/dev/null & spinners+=($!)
	done
	both_spin() { kill -0 "${spinners[0]}" && kill -0 "${spinners[1]}"; } 2>/dev/null
	sleep 0.3
	ms=$(milliseconds get /a.txt)
	# not by the clock: the machine may be busy
	if both_spin; then
		ok "a file while 2 of 2 processors spin and 100 connections wait ($ms ms)"
	else
		fail "a file while 2 of 2 processors spin and 100 connections wait" "$ms ms"
	fi
	for fd in "${fds[@]}"; do printf "GET /a.txt HTTP/1.1\r\n$H$E" >&"$fd"; done
	for fd in "${fds[@]}"; do timeout 15 cat <&"$fd"; exec {fd}>&-; done >"$DIR/answers"
	same "all 100 are answered then" 100 "$(count_status <"$DIR/answers")"
	wait "${spinners[@]}"
	same "both spinners end" 0 $?
	like "/stats shows them" 'served: [0-9]+.*handoffs: [0-9]+.*preemptions: [0-9]+.*returns: [0-9]+.*threads: [0-9]+' "$(get /stats)"
}

limit_cases() {
	local fd fds=() i
	start few -c 4
	for i in 1 2 3 4; do exec {fd}<>"/dev/tcp/127.0.0.1/$port"; fds+=("$fd"); done
	all_four() { raw '' | grep -q ' 503 '; }
	if soon all_four; then
		ok "one connection more than -c: 503"
	else
		fail "one connection more than -c: 503"
	fi
	for fd in "${fds[@]}"; do exec {fd}>&-; done
	served() { get /a.txt 2>/dev/null | grep -q abc; }
	if soon served; then ok "room again"; else fail "room again" "$(get /stats 2>&1)"; fi

	ulimit -Sn 256
	( ulimit -n 40; exec "$HTTPD" -p 0 -r "$ROOT" -n 2 -t 60 ) >"$DIR/emfile.log" 2>&1 &
	server=$!
	pids+=("$server")
	soon grep -q http: "$DIR/emfile.log"
	port=$(sed -n 's|.*:\([0-9]*\)/ .*|\1|p' "$DIR/emfile.log")
	fds=()
	for i in {1..60}; do exec {fd}<>"/dev/tcp/127.0.0.1/$port"; fds+=("$fd"); done
	sleep 0.3
	for fd in "${fds[@]}"; do exec {fd}>&-; done
	if soon served; then ok "serves again after EMFILE"; else fail "serves again after EMFILE" "$(cat "$DIR/emfile.log")"; fi
}

# refuses NAME REGEX OPTION...: a line on stderr, and a status that is not 0
refuses() {
	local name=$1 regex=$2 seen rc
	shift 2
	seen=$(timeout 20 "$HTTPD" "$@" 2>&1 >/dev/null)
	rc=$?
	if [ $rc = 0 ] || [ $rc = 124 ]; then
		fail "$name" "status $rc" "$seen"
	else
		like "$name" "$regex" "$seen"
	fi
}

program_cases() {
	local pid answer
	like "--help" '^usage: httpd' "$("$HTTPD" --help)"
	refuses "unknown option" 'try httpd --help' -x
	refuses "extra argument" 'no such argument' x
	refuses "bad port" '^httpd: port: 99999 is not' -p 99999
	refuses "bad processors" '^httpd: processors: two is not' -n two
	refuses "bad root" '^httpd: root /nowhere: No such file' -r /nowhere
	refuses "root that is a file" 'Not a directory' -r "$ROOT/a.txt"
	refuses "bad address" '^httpd: address nobody: ' -b nobody
	refuses "port in use" '^httpd: cannot listen on .*Address already in use' -p "$port"

	get '/sleep?ms=1500' >"$DIR/late" & pid=$!
	asleep() { [ "$(stat_of connections)" = 2 ]; }
	soon asleep
	sleep 0.2
	kill -TERM "$server"
	wait "$server"
	same "SIGTERM: status 0" 0 $?
	wait $pid
	same "a request that is being answered is finished" 'slept 1500 ms' "$(cat "$DIR/late")"
	like "last words" 'served: [0-9]+,.*handoffs: [0-9]+,preemptions: [0-9]+,.*carriers: [0-9]+' "$(tail -n 1 "$DIR/main.log")"
	start interrupt
	kill -INT "$server"
	wait "$server"
	same "SIGINT: status 0" 0 $?
}

[ -x "$HTTPD" ] || skip_all "no $HTTPD: run make first"
command -v curl >/dev/null || skip_all "curl is missing: run tools/deps.sh"
unset http_proxy https_proxy all_proxy
make_files

start main
main_port=$port main_server=$server
files_cases
beneath_cases openat2
start walk -w
beneath_cases walk
port=$main_port
range_cases
request_cases
connection_cases
hog_cases
start fiber-io -f
range_cases
request_cases
connection_cases
start slow -t 1
slow_cases
limit_cases
port=$main_port server=$main_server
program_cases

echo "1..$cases"
echo "# $cases cases, $failed failed, backend $FIBER_BACKEND"
[ "$failed" = 0 ]
