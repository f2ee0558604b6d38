#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#
# Does samples/crawl find each page of a site once, with a cycle, a redirect, a
# missing page and one that does not answer in time, and end when it is told to?
#
#   crawl.sh [PROGRAM]	default: build/samples/crawl
#
# Runs natively, on the backend FIBER_BACKEND (default: user), with each FIBER_IO,
# against samples/httpd, and nc for what no good server says. Prints TAP; status 0:
# nothing failed.

set -u
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
BUILD=${BUILD:-$HERE/../build}
CRAWL=${1:-$BUILD/samples/crawl}
export FIBER_BACKEND=${FIBER_BACKEND:-user}
# shellcheck source-path=SCRIPTDIR source=net/server.sh
. "$HERE/net/server.sh"

# again: a new server
again() {
	stop
	serve 'http://[^ ]*:\([0-9]*\)/ ' "$BUILD/samples/httpd" -p 0 \
		-r "$DIR/root"
}

# crawl OPTION... PATH: output without the site, errors after it, then the status
crawl() {
	timeout 100 "$CRAWL" "${@:1:$#-1}" "http://127.0.0.1:$port${!#}" \
		>"$DIR/out" 2>"$DIR/err"
	echo "status $?" >>"$DIR/err"
	sed "s|http://127.0.0.1:$port||" "$DIR/out" "$DIR/err"
}

make_site() {
	local i
	mkdir -p "$DIR/root/sub" "$DIR/root/many"
	cat >"$DIR/root/index.html" <<-END
		<a href="a.html">a</a> <A HREF='sub'>redirect</A> <a href=none>404</a>
		<a href="./x/../a.html#part">again</a> <a href="?q=1">itself</a>
		<a href="https://127.0.0.1/">no</a> <a href="mailto:x@y">no</a>
		<a href="http://elsewhere.invalid/">not allowed</a>
	END
	echo '<a href="/b.html">b</a>' >"$DIR/root/a.html"
	echo '<a href="a.html">a</a> <a href="/">home</a> <a href="c.txt">' \
		>"$DIR/root/b.html"
	echo '<a href="hidden.html">' >"$DIR/root/c.txt"
	echo '<a href="../b.html">b</a>' >"$DIR/root/sub/index.html"
	for ((i = 0; i < 40; i++)); do
		echo "<a href=/sleep?ms=$((1000 + i))>"
	done >"$DIR/root/many/index.html"
	echo '<a href="/sleep?ms=60000">' >"$DIR/root/slow.html"
	echo '<a href=/sleep?ms=60000><a href=/sleep?ms=59999>' \
		>"$DIR/root/slower.html"
	echo '<a href="http://127.0.0.1:1/x">' >"$DIR/root/refused.html"
	head -c 1100000 /dev/zero | tr '\0' ' ' >"$DIR/root/large.html"
}

site='200     252 /
200     252 /?q=1
200      24 /a.html
200      61 /b.html
200      23 /c.txt
404      14 /none
301      22 /sub
200      26 /sub/
crawl: 8 pages, 1 of them not got, 2 links not followed
status 1'

waits() {	# the server has two requests that sleep, besides this one
	[ "$(curl -sS --max-time 20 "http://127.0.0.1:$port/stats" |
	     sed -n 's/^connections: //p')" = 3 ]
}

# ended SIGNAL: it prints what it has
ended() {
	local pid
	"$CRAWL" -t 100 "http://127.0.0.1:$port/slower.html" >"$DIR/out" 2>&1 &
	pid=$!
	soon waits
	kill -"$1" $pid
	wait $pid
	echo "status $?"
	sed "s|http://127.0.0.1:$port||" "$DIR/out"
}

# from_nc TEXT: crawl of a server that says that, whatever it is asked, and no more
from_nc() {
	local pid
	: >"$DIR/nc"
	printf "$1" | timeout 60 nc -v -N -l 127.0.0.1 0 >/dev/null 2>"$DIR/nc" &
	pid=$!
	soon grep -q Listening "$DIR/nc"
	port=$(sed -n 's/^Listening.* //p' "$DIR/nc")
	crawl /
	wait $pid
}

if [ ! -x "$BUILD/samples/httpd" ] || ! command -v curl >/dev/null ||
   ! command -v nc >/dev/null; then
	echo "1..0 # SKIP no samples/httpd, curl or nc"
	exit 4
fi
unset http_proxy https_proxy all_proxy
make_site
echo "TAP version 13"
for FIBER_IO in epoll plain; do
	export FIBER_IO
	again
	same "$FIBER_IO: each page once" "$site" "$(crawl /)"
	same "$FIBER_IO: one at a time" "$site" "$(crawl -j 1 /)"
	SECONDS=0
	same "$FIBER_IO: 40 that take a second each" 40/0 "$(crawl -j 40 -t 60 \
		/many/ | grep -c ' 200 \|^200.*sleep')/$(grep -c ' -- ' "$DIR/out")"
	same "$FIBER_IO: at once" yes "$([ $SECONDS -lt 20 ] && echo yes)"
	for sig in INT TERM; do
		again		# nobody sleeps there yet
		same "$FIBER_IO: SIG$sig: prints what it has" 'status 1
crawl: interrupted
---       0 /sleep?ms=59999  not fetched
---       0 /sleep?ms=60000  not fetched
200      49 /slower.html
crawl: 3 pages, 2 of them not got, 0 links not followed' "$(ended $sig)"
	done
done
again
same "a deadline for a page" '---       0 /sleep?ms=60000  Connection timed out
200      27 /slow.html
crawl: 2 pages, 1 of them not got, 0 links not followed
status 1' "$(crawl -t 4 /slow.html)"
same "a deadline for all" '---       0 /sleep?ms=60000  not fetched
200      27 /slow.html
crawl: its time is up
crawl: 2 pages, 1 of them not got, 0 links not followed
status 1' "$(crawl -T 4 /slow.html)"
same "depth" '200     252 /
crawl: 1 pages, 0 of them not got, 6 links not followed
status 0' "$(crawl -d 0 /)"
same "most pages" 3 "$(crawl -m 3 / | grep -c '^[0-9]')"
same "a site that is allowed, and refuses" \
	'---       0 http://127.0.0.1:1/x  Connection refused' \
	"$(crawl -a 127.0.0.1:1 /refused.html | grep :1/)"
same "a page that is too large" '---       0 /large.html  File too large' \
	"$(crawl /large.html | sed -n 's/^---  *[0-9]* /---       0 /p')"
ok='HTTP/1.1 200 OK\r\nContent-'
same "a page of nc" '200       5 /' "$(from_nc "${ok}Length: 5\r\n\r\nhello" | grep ' /$')"
same "of one that says no length" '200       5 /' \
	"$(from_nc "${ok}Type: text/html\r\n\r\nhello" | grep ' /$')"
same "half of what it promised is no page" '---' \
	"$(from_nc "${ok}Length: 50\r\n\r\nhello" | sed -n 's/ .* \/ .*//p')"
same "nothing is no page" '---' "$(from_nc '' | sed -n 's/ .* \/ .*//p')"
same "no HTTP is no page" '---' \
	"$(from_nc '220 mail\r\n' | sed -n 's/ .* \/ .*//p')"
same "--help" "usage: crawl [options] URL" "$("$CRAWL" --help | head -n 1)"
same "no http" "crawl: ftp://x/: not an http:// URL" "$("$CRAWL" ftp://x/ 2>&1)"
same "no URL" "crawl: which URL? Try --help" "$("$CRAWL" 2>&1)"
same "a number" "crawl: jobs: none is not a number from 1 to 10000" \
	"$("$CRAWL" -j none http://x/ 2>&1)"
echo "1..$cases"
exit $failed
