#!/bin/sh
# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#
# Runs samples/httpd with each backend named, measures it in two phases, and
# prints a line for each of them; then some requests with FIBER_TRACE. In the
# demo's VM (busybox) and natively.
#
#   HTTPD= CLIENT= WRK= LUA= ROOT= PORT= drive.sh BACKEND...
#
# Settings: PHASE seconds of load (8), PROCESSORS (2), SPINNERS (2), READERS
# that keep a connection and say nothing (200), CLIENTS of wrk (8). Prints TAP,
# and per phase, tab separated:
#   ROW backend load requests errors rate p50 p99 handoffs preemptions returns threads
# and per backend a trace, gzip in base64:
#   TRACE backend line

: "${PHASE:=8}" "${PROCESSORS:=2}" "${SPINNERS:=2}" "${READERS:=200}"
: "${CLIENTS:=8}" "${PORT:=8080}"
TMP=$(mktemp -d) || exit 1
trap 'stop_all; rm -rf "$TMP"' EXIT
server='' holder='' wrk='' spinners='' failed=0

ok() { echo "ok - $*"; }
not_ok() { echo "not ok - $*"; failed=1; }

stop_all() {
	for pid in $server $holder $wrk $spinners; do kill -9 "$pid" 2>/dev/null; done
}

get() { "$CLIENT" get "$PORT" "$1"; }

# wait_for REGEX FILE: at most 60 s
wait_for() {
	tries=0
	until grep -q "$1" "$2" 2>/dev/null; do
		tries=$((tries + 1))
		[ $tries -lt 600 ] || return 1
		sleep 0.1
	done
}

# start BACKEND
start() {
	rm -f "$TMP/httpd"
	FIBER_BACKEND=$1 "$HTTPD" -r "$ROOT" -p "$PORT" -n "$PROCESSORS" \
		-t 300 >"$TMP/httpd" 2>&1 &
	server=$!
	if wait_for '^httpd: ' "$TMP/httpd" && grep -q http: "$TMP/httpd"; then
		sed "s/^/# $1: /" "$TMP/httpd"
	else
		not_ok "$1: httpd starts: $(cat "$TMP/httpd")"
		return 1
	fi
}

# Apart from what is measured, and short: it is for a picture.
traced() {
	FIBER_TRACE=$TMP/trace FIBER_TRACE_EVENTS=4096
	export FIBER_TRACE FIBER_TRACE_EVENTS
	start "$1"
	rc=$?
	unset FIBER_TRACE FIBER_TRACE_EVENTS
	[ $rc = 0 ] || return 0
	i=0 spinners=''
	while [ $i -lt "$SPINNERS" ]; do
		get "/spin?ms=1000" >"$TMP/spun$i" &
		spinners="$spinners $!"
		i=$((i + 1))
	done
	for path in $(paths) $(paths) $(paths); do
		get "$path" >/dev/null || not_ok "$1: $path while it is traced"
	done
	for pid in $spinners; do wait "$pid"; done
	spinners=''
	kill -TERM "$server"
	wait "$server" || not_ok "$1: httpd ends with status $? when it is traced"
	server=''
	if [ -s "$TMP/trace" ]; then
		gzip -c "$TMP/trace" | base64 | sed "s/^/TRACE	$1	/"
		ok "$1: a trace of $(wc -c <"$TMP/trace") bytes"
	else
		not_ok "$1: no trace"
	fi
}

# Every file, compared with the one on disk
compare_files() {
	bad=0 n=0
	for file in "$ROOT"/*; do
		n=$((n + 1))
		get "/${file##*/}" >"$TMP/got" && cmp -s "$TMP/got" "$file" ||
			bad=$((bad + 1))
	done
	if [ $bad = 0 ]; then
		ok "$1: $n files arrive as they are on disk"
	else
		not_ok "$1: $bad of $n files arrive wrong"
	fi
}

paths() { for file in "$ROOT"/*; do echo "/${file##*/}"; done; }

# counter FILE NAME
counter() { sed -n "s/^$2: //p" "$1"; }

# grown NAME: by how much between the two looks
grown() {
	echo $(($(counter "$TMP/after" "$1") - $(counter "$TMP/before" "$1")))
}

# measure BACKEND LOAD: one phase of load by wrk
measure() {
	get /stats >"$TMP/before" || not_ok "$1, $2: /stats before"
	# shellcheck disable=SC2046 # words on purpose
	"$WRK" -t 1 -c "$CLIENTS" -d "${PHASE}s" --timeout 5s -s "$LUA" \
		"http://127.0.0.1:$PORT/" -- $(paths) >"$TMP/wrk" 2>&1 &
	wrk=$!
	sleep $((PHASE / 2))
	get /stats >"$TMP/during" || not_ok "$1, $2: /stats during"
	wait $wrk
	wrk=''
	get /stats >"$TMP/after" || not_ok "$1, $2: /stats after"
	read -r word requests errors rate p50 p99 <<END
$(grep '^WRK ' "$TMP/wrk")
END
	if [ "$word" != WRK ] || [ "$requests" = 0 ]; then
		not_ok "$1, $2: no answers: $(tail -n 3 "$TMP/wrk")"
		return 1
	fi
	printf 'ROW\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n' "$1" "$2" \
		"$requests" "$errors" "$rate" "$p50" "$p99" \
		"$(grown handoffs)" "$(grown preemptions)" \
		"$(grown returns)" "$(counter "$TMP/during" threads)"
	if [ "$errors" != 0 ]; then
		not_ok "$1, $2: $errors requests failed"
		grep -i error "$TMP/wrk" | sed 's/^/# /'
	elif [ "$(grown served)" -lt "$requests" ]; then
		not_ok "$1, $2: the server counts only $(grown served) requests"
	else
		ok "$1, $2: $requests requests, none failed"
	fi
}

# Requests that hold a CPU for longer than a phase should take; on a slow
# machine another follows, for as long as the file "spin" is there.
spin() {
	while [ -e "$TMP/spin" ]; do
		get "/spin?ms=$(((PHASE + 6) * 1000))" || return 1
	done
}

start_spinners() {
	spinners='' i=0
	: >"$TMP/spin"
	while [ $i -lt "$SPINNERS" ]; do
		spin >"$TMP/spun$i" &
		spinners="$spinners $!"
		i=$((i + 1))
	done
}

start_readers() {
	rm -f "$TMP/hold"
	"$CLIENT" hold "$PORT" "$READERS" /index.html >"$TMP/hold" 2>&1 &
	holder=$!
	wait_for '^held ' "$TMP/hold"
}

# Whatever the load was, it ends well too.
end_load() {
	rm -f "$TMP/spin"
	bad=0
	for pid in $spinners; do wait "$pid" || bad=$((bad + 1)); done
	spinners=''
	if [ $bad = 0 ]; then
		ok "$1: $SPINNERS spinning requests are answered in the end"
	else
		not_ok "$1: $bad of $SPINNERS spinning requests failed"
	fi
	kill -TERM "$holder"
	if wait "$holder"; then
		ok "$1: all $READERS silent connections answer again"
	else
		not_ok "$1: of $READERS silent connections: $(tr '\n' ' ' <"$TMP/hold")"
	fi
	holder=''
}

loaded() {
	start_readers
	start_spinners
	sleep 1
	measure "$1" "$SPINNERS spinners + $READERS blocked readers"
	end_load "$1"
}

# one BACKEND
one() {
	start "$1" || return 0
	compare_files "$1"
	measure "$1" quiet
	loaded "$1"
	kill -TERM "$server"
	if wait "$server"; then
		ok "$1: httpd ends"
	else
		not_ok "$1: httpd ends with status $?: $(tail -n 3 "$TMP/httpd")"
	fi
	server=''
}

for backend; do one "$backend"; traced "$backend"; done
exit $failed
