#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only
#
# samples/httpd under load, in one table.
#
#   demo.sh            in a VM with the module: kernel backend, user backend
#   demo.sh user       natively, user backend
#
# It leaves a picture of a short time for each backend: build/demo/BACKEND.svg, and
# the trace it is drawn from, BACKEND.json.
#
# What is measured is in tools/demo/drive.sh, with its settings (PHASE=8 ...).
# KERNEL picks the VM's kernel (6.1); BACKENDS what runs there. Status 0: the
# table is whole and no request failed. Logs: build/demo/.

set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=lib.sh disable=SC2034
. "$HERE/lib.sh"

DEMO=$VM_TOP/tools/demo
OUT=$VM_BUILD/demo
HTTPD=$VM_BUILD/samples/httpd
KERNEL=${KERNEL:-6.1}
export PHASE=${PHASE:-8} READERS=${READERS:-200} SPINNERS=${SPINNERS:-2}
export PROCESSORS=${PROCESSORS:-2} CLIENTS=${CLIENTS:-8}

say() { echo "demo: $*"; }

# Files that every Debian has, and some of ours, with an index
make_site() {
	local site=$1 file
	rm -rf "$site"
	mkdir -p "$site"
	cp /usr/share/common-licenses/GPL-2 "$site/GPL-2.txt"
	cp /usr/share/common-licenses/GPL-3 "$site/GPL-3.txt"
	cp "$VM_TOP/lib/include/fiber.h" "$VM_TOP/samples/hello/hello.c" "$site/"
	cp "$HTTPD" "$site/httpd.bin"
	for file in /usr/share/pixmaps/debian-logo.png "$VM_TOP/README.md"; do
		[ ! -e "$file" ] || cp -L "$file" "$site/"
	done
	{
		echo '<!doctype html><title>fiber demo</title><ul>'
		for file in "$site"/*; do
			file=${file##*/}
			echo "<li><a href=\"$file\">$file</a>"
		done
		echo '</ul>'
	} >"$OUT/index.html"
	mv "$OUT/index.html" "$site/"
}

make_client() {
	gcc -std=gnu11 -O2 -static -o "$OUT/client" "$DEMO/client.c"
}

run_native() {
	say "natively, on this machine's $(nproc) CPUs, for about $((2 * PHASE + 10)) s"
	HTTPD=$HTTPD CLIENT=$OUT/client WRK=$(command -v wrk) ROOT=$OUT/site \
		LUA=$DEMO/load.lua PORT=${PORT:-8080} \
		"$DEMO/drive.sh" "$@" >"$OUT/tap" 2>&1 </dev/null || true
}

make_image() {
	local root=$1
	shift
	vm_root "$root"
	vm_limit "$root" "${VM_TIMEOUT:-300}"
	[ -z "$module" ] || vm_add_module "$root" "$module"
	vm_add_program "$root" "$HTTPD" /demo/httpd
	vm_add_program "$root" "$OUT/client" /demo/client
	vm_add_program "$root" "$(command -v wrk)" /demo/wrk
	cp "$DEMO/drive.sh" "$DEMO/load.lua" "$root/demo/"
	cp -a "$OUT/site" "$root/demo/site"
	vm_environment "$root" PATH=/bin:/usr/bin HTTPD=/demo/httpd \
		CLIENT=/demo/client WRK=/demo/wrk LUA=/demo/load.lua \
		ROOT=/demo/site PHASE="$PHASE" READERS="$READERS" \
		SPINNERS="$SPINNERS" PROCESSORS="$PROCESSORS" CLIENTS="$CLIENTS"
	vm_add_test "$root" demo /demo/drive.sh "$@"
	vm_pack "$root" "$root.img"
}

# Emulation may hang where the kernel patches its code: at boot, at insmod.
hung_early() { ! grep -qE '^(# RUN|not ok)' "$OUT/tap"; }

boot() {
	local kernel=$1 try
	for try in 1 2 3; do
		! vm_boot "$kernel" "$OUT/root.img" "$OUT/console" "$OUT/tap" ||
			return 0
		hung_early && ! grep -q 'Kernel panic' "$OUT/console" || return 0
		say "the VM did not come up (try $try of 3)"
	done
}

run_vm() {
	local kernel how
	"$HERE/kernels.sh" fetch "$KERNEL"
	kernel=$("$HERE/kernels.sh" path "$KERNEL")
	module=''
	if [[ " $* " = *" kernel "* ]]; then
		"$HERE/module.sh" "$KERNEL"
		module=$VM_BUILD/modules/$KERNEL/fiber.ko
	fi
	make_image "$OUT/root" "$@"
	how='emulated (no KVM here): all is many times slower than on real CPUs'
	! vm_have_kvm "$kernel" || how='by KVM'
	say "Linux $(cat "$kernel/release") in QEMU, $VM_SMP CPUs, $how"
	say "$# backends, 2 phases of $PHASE s each; about $((30 + $# * (2 * PHASE + 20))) s"
	boot "$kernel"
	rm -rf "$OUT/root" "$OUT/root.img"
}

# --- the table ----------------------------------------------------------------

table() {
	awk -F '\t' '
	/^ROW/ {
		printf "%-8s %-34s %9s %7s %8s %9s %9s %9s %12s %8s %8s\n",
			$2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12
	}' <(printf 'ROW\tbackend\tload\trequests\terrors\treq/s\tp50 ms\tp99 ms\thandoffs\tpreemptions\treturns\tthreads\n'
	     tr -d '\r' <"$OUT/tap")
}

# Only what the rows say, in words
remarks() {
	tr -d '\r' <"$OUT/tap" | awk -F '\t' -v n="$PROCESSORS" -v s="$SPINNERS" '
	/^ROW/ { name[++rows] = $2; rate[rows] = $6; p50[rows] = $7; p99[rows] = $8
		 gsub(/ .*/, "", $3); calm[rows] = $3 == "quiet" }
	END {
		print "What to look at: the second row of a backend against its first. There " s
		print "requests hold " n " processors in a loop without calls, all the time, and yet:"
		for (i = 1; i <= rows; i++)
			if (!calm[i])
				printf "  %s backend: %s requests a second, half within %s ms, 99%% within %s ms\n",
					name[i], rate[i], p50[i], p99[i]
	}'
	cat <<-END
	A handoff passes a blocked fiber's processor on. The kernel backend knows of
	a block as it happens. The user backend finds some when its monitor looks, and
	a fiber that comes back from one runs on there until it can be stopped: more
	than $PROCESSORS may run at once, which takes time from the spinners.
	Load generator, server and spinners share the CPUs: the rates do not tell what
	the server could do alone. Other load on this machine blurs them: its load average was $1 when the demo began.
	END
}

# pictures BACKEND...: processors by time; false: one is missing
pictures() {
	local backend bad=0
	for backend; do
		if tr -d '\r' <"$OUT/tap" | awk -F '\t' -v b="$backend" \
			'$1 == "TRACE" && $2 == b { print $3 }' |
			base64 -d | gzip -dc >"$OUT/$backend.json" &&
			"$VM_TOP/tools/timeline/fiber-timeline" --title "$backend backend" \
				-o "$OUT/$backend.svg" "$OUT/$backend.json"; then
			say "what ran where, while a few requests were served: $OUT/$backend.svg"
		else
			say "FAILED: no picture of the $backend backend"
			bad=1
		fi
	done
	return $bad
}

# verdict BACKEND...: a row for each phase of each, and nothing failed
verdict() {
	local backend bad=0
	for backend; do
		[ "$(grep -c "^ROW.$backend." "$OUT/tap")" = 2 ] || {
			say "FAILED: the table lacks a row of the $backend backend"
			bad=1
		}
	done
	! grep -E '^not ok|^# (log|SPLAT)' "$OUT/tap" || bad=1
	if [ "$where" = vm ] && ! grep -q '^# END rc=0' "$OUT/tap"; then
		say "FAILED: a request failed, or the VM did not end well; see $OUT/console"
		bad=1
	fi
	[ $bad = 0 ] || say "FAILED; the whole log: $OUT/tap"
	return $bad
}

case ${1:-} in
user) where=native backends=(user) ;;
kernel) where=vm backends=(kernel) ;;
'') where=vm; read -ra backends <<<"${BACKENDS:-kernel user}" ;;
*) echo "usage: demo.sh [user|kernel]" >&2; exit 2 ;;
esac
vm_need wrk gcc python3
[ "$where" = native ] || vm_need qemu-system-x86_64 busybox cpio gzip
[ -x "$HTTPD" ] || vm_die "no $HTTPD: run make first"
read -r load _ </proc/loadavg
mkdir -p "$OUT"
rm -f "$OUT/tap" "$OUT/console" "$OUT"/*.svg "$OUT"/*.json
make_site "$OUT/site"
make_client
if [ "$where" = vm ]; then run_vm "${backends[@]}"; else run_native "${backends[@]}"; fi
grep '^# [a-z]*: httpd: serving' "$OUT/tap" | sed 's/^# //' || true
echo
table
echo
remarks "$load"
bad=0
pictures "${backends[@]}" || bad=1
verdict "${backends[@]}" && [ $bad = 0 ]
