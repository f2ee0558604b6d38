#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only
#
# Checks what is written about the code. TAP.
#
#   Documentation/*.rst   each test it names as ``program:name`` (of
#                         selftests/module or selftests/lib) exists, each rule
#                         of protocol.rst and abi.rst names one
#   kmod, lib             each barrier says "Pairs with ..." within the eight
#                         lines above it or beside it

set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
TOP=$(cd "$HERE/.." && pwd)
cd "$TOP"
# shellcheck source-path=SCRIPTDIR source=result.sh
. "$HERE/result.sh"

# test_exists PROGRAM NAME: PROGRAM is module/x, lib/x or model/x
test_exists() {
	local program=$1 name=$2 file
	case $program in
	model/*) grep -q "^\(holds\|breaks\) $name " selftests/model.sh; return ;;
	esac
	file=selftests/$program.c
	[ -e "$file" ] || return 1
	grep -qE "^(TEST|TEST_SIGNAL)\($name[,)]|^TEST_F\(${name%%.*}, ${name#*.}\)|^TEST_F\([a-z_]+, $name\)" "$file"
}

missing_tests() {
	local word program
	grep -ohE '``(module|lib|model)/[a-z_]+:[A-Za-z0-9_.-]+``' "$@" |
		tr -d '`' | sort -u | while read -r word; do
		program=${word%%:*}
		test_exists "$program" "${word#*:}" ||
			echo "no test $word"
	done
}

# Rules are the bullets with a number, such as "* R7. ..."; up to the next.
rules_without_test() {
	awk '
	function done_() { if (rule != "" && !named) print FILENAME ": " rule }
	FNR == 1 { done_(); rule = "" }
	/^(\* )?\*\*[A-Z][0-9]+\.\*\*/ { done_(); rule = $0; named = 0 }
	/^[=~-]+$/ { done_(); rule = "" }
	/``(module|lib|model)\/[a-z_]+:/ { named = 1 }
	/no test here:/ { named = 1 }
	END { done_() }' "$@"
}

unpaired_barriers() {
	awk '
	FNR == 1 { split("", near) }
	{ near[FNR % 10] = tolower($0) }
	held != "" {
		if (tolower($0) !~ /pairs with/) print held
		held = ""
	}
	/^[ \t]*(\*|\/\/|\/\*|#)/ { next }
	/(^|[^a-z_])(smp_(mb|rmb|wmb|store_release|load_acquire|store_mb)|atomic_set_release|atomic_read_acquire|(__)?atomic_thread_fence)|__ATOMIC_(RELEASE|ACQUIRE|ACQ_REL|SEQ_CST)|(^|[^a-z_])(FB_ACQUIRE|FB_RELEASE|fb_load_acq|fb_store_rel)\(/ {
		for (i = 0; i <= 8; i++)
			if (near[(FNR - i + 10) % 10] ~ /pairs with/ && FNR > i) next
		held = FILENAME ":" FNR ": " $0
	}
	END { if (held != "") print held }' "$@"
}

echo 'TAP version 13'
mapfile -t rst < <(find Documentation -name '*.rst' | sort)
result 'tests that Documentation names exist' < <(missing_tests "${rst[@]}")
result 'each rule names the test that guards it' < <(rules_without_test \
	Documentation/protocol.rst Documentation/abi.rst)
result 'each barrier says what it pairs with' < <(unpaired_barriers \
	kmod/*.[ch] lib/*.[ch])
# The test of the tests: what is planted must be found.
printf 'f()\n{\n\tsmp_mb();\n}\n' >"${TMPDIR:-/tmp}/fiber-docs.$$.c"
[ -n "$(unpaired_barriers "${TMPDIR:-/tmp}/fiber-docs.$$.c")" ] &&
	! test_exists module/abi no_such_test && test_exists module/abi setup_bad
# shellcheck disable=SC2181 # of the list above
[ $? = 0 ] && case_ ok 'planted faults are found' ||
	case_ 'not ok' 'planted faults are found'
rm -f "${TMPDIR:-/tmp}/fiber-docs.$$.c"
echo "1..$n"
