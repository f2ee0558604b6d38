#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only
#
# make install, as those see it who use what it installed; make uninstall. TAP.

# shellcheck disable=SC2317,SC2016 # called by name; patterns
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
TOP=$HERE/..
out=${BUILD:-$TOP/build}/install
root=$out/root
tests=0 failed=0

make_() {
	make --no-print-directory -s -C "$TOP" DESTDIR="$root" "$@"
}

flags() {
	PKG_CONFIG_SYSROOT_DIR=$root PKG_CONFIG_PATH=$libdir/pkgconfig \
		PKG_CONFIG_ALLOW_SYSTEM_CFLAGS=1 pkg-config "$@" fiber
}

# The first program that a reader meets
readme() {
	sed -n '/^```c$/,/^```$/p' "$TOP/README.md" | sed '/^```/d'
}

# builds NAME COMPILER WORD...: what README's program prints, built so
builds() {
	local name=$1
	shift
	"$@" && LD_LIBRARY_PATH=$libdir timeout 60 "$out/$name" >"$out/$name.out" &&
		grep -q "^a fiber read 'x'" "$out/$name.out"
}

shared() {
	# shellcheck disable=SC2046 # flags are words
	builds shared gcc -o "$out/shared" "$out/readme.c" $(flags --cflags --libs)
}

archive() {
	# shellcheck disable=SC2046
	builds archive gcc -o "$out/archive" "$out/readme.c" $(flags --cflags) \
		"$libdir/libfiber.a" $(flags --libs --static) &&
		! ldd "$out/archive" | grep libfiber
}

# Handlers and destructors of the library are called after a dlclose, too
plugin() {
	cat >"$out/plugin.c" <<-'END'
		#include <dlfcn.h>
		#include <stddef.h>
		static int run(void *arg) { return arg != NULL; }
		int main(void)
		{
			void *lib = dlopen("libfiber.so.0", RTLD_NOW);
			int (*start)(int (*)(void *), void *) =
				lib ? dlsym(lib, "fiber_run") : NULL;

			return !start || start(run, NULL) || dlclose(lib) ? 1 : 7;
		}
	END
	gcc -o "$out/plugin" "$out/plugin.c" -ldl || return 1
	FIBER_SEED=1 LD_LIBRARY_PATH=$libdir timeout 60 "$out/plugin"
	[ $? = 7 ]
}

cplusplus() {
	# shellcheck disable=SC2046
	builds cplusplus g++ -x c++ -o "$out/cplusplus" "$out/readme.c" \
		$(flags --cflags --libs)
}

headers_alone() {
	local header
	(cd "$root/usr/local/include" && find . -name '*.h' -path '*fiber*') |
		while read -r header; do
			echo "#include <${header#./}>" >"$out/header.c"
			# shellcheck disable=SC2046
			gcc -Wall -Wextra -Werror -std=gnu11 -c -o /dev/null \
				"$out/header.c" $(flags --cflags) &&
			g++ -Wall -Wextra -Werror -x c++ -c -o /dev/null \
				"$out/header.c" $(flags --cflags) || return 1
		done
}

# What README's program did, as a picture
tools() {
	FIBER_TRACE=$out/trace.json LD_LIBRARY_PATH=$libdir "$out/shared" &&
		"$bindir/fiber-timeline" "$out/trace.json" >"$out/trace.svg" &&
		grep -q '<svg' "$out/trace.svg" &&
		{ [ ! -e "$bindir/fiberctl" ] || "$bindir/fiberctl" --help; }
}

ran() {
	"$@" >"$out/ran" && grep -q "^a fiber read 'x'" "$out/ran"
}

# Who starts a program with more rights than his own configures nothing in it
setuid_program() {
	local rights word nobody bad=(BACKEND=x PROCESSORS=x QUANTUM_US=x
		GRACE_US=x SEED=x IO=x DUMP_SIGNAL=x DEADLOCK=x STATS=x
		TRACE=/none/x CONTENTION=/none/x)

	! nm -D --undefined-only "$libdir/libfiber.so" | grep -w getenv || return 1
	nobody=(setpriv --reuid 65534 --regid 65534 --clear-groups)
	rights=$(mktemp -d) && chmod 755 "$rights" || return 1
	install -m 4755 "$(command -v id)" "$out/archive" "$rights" || return 1
	if [ "$("${nobody[@]}" "$rights/id" -u)" = 0 ]; then
		for word in "${bad[@]}"; do
			! ran env "FIBER_$word" "$out/archive" || return 1
		done
		ran env "${bad[@]/#/FIBER_}" "${nobody[@]}" "$rights/archive" ||
			return 1
	fi
	rm -r "$rights"
}

nothing_left() {
	make_ uninstall && ! find "$root" ! -type d | grep .
}

case_() {
	tests=$((tests + 1))
	if "$1" >"$out/log" 2>&1; then
		echo "ok $tests - ${1//_/ }"
	else
		sed 's/^/# /' "$out/log"
		echo "not ok $tests - ${1//_/ }"
		failed=1
	fi
}

echo "TAP version 13"
echo "1..9"
rm -rf "$out"
mkdir -p "$out"
readme >"$out/readme.c"
installs() { make_ install; }
case_ installs
libdir=$(dirname "$(find "$root" -name libfiber.a)")
case_ shared
case_ archive
case_ setuid_program
case_ plugin
case_ cplusplus
case_ headers_alone
bindir=$root/usr/local/bin
case_ tools
case_ nothing_left
exit "$failed"
