# SPDX-License-Identifier: GPL-2.0-only
#
# Reads TAP with the markers of vm/init, prints one line a program and every
# failed case, and closes with "# TALLY passed failed skipped".
# -v vm=1: the log is a VM's, and must have an END line.

function flush_program() {
	if (label == "")
		return
	if (plan > p + f + s)
		fail("planned " plan " cases, saw " p + f + s)
	printf "%s %s: %d ok", f ? "FAIL" : "  ok", label, p
	if (f) printf ", %d not ok", f
	if (s) printf ", %d skipped", s
	if (took >= 5) printf ", %d s", took
	printf "\n"
	add_up()
	label = ""
	took = 0
}

function add_up() {
	P += p; F += f; S += s
	p = f = s = plan = 0
}

function fail(why) {
	print "     not ok: " why
	f++
}

{ sub(/\r$/, "") }

/^# RUN / {
	add_up()
	label = substr($0, 7)
	next
}

/^# AGAIN / {
	print "     again, for the machine stood still meanwhile: " substr($0, 9)
	p = f = s = plan = 0
	next
}

/^# DONE / {
	rc = $NF
	sub(/^rc=/, "", rc)
	if ($(NF - 1) ~ /^[0-9]+s$/)
		took = $(NF - 1) + 0
	if (rc != 0 && rc != 4 && !f)
		fail("ended with status " rc)
	if (p + f + s == 0)
		fail("reported no test case")
	flush_program()
	next
}

/^# START / { print "     booted " $3; next }
/^# END /   { ended = 1; next }

/^1\.\.[0-9]+/ {
	plan = substr($1, 4) + 0
	if ($0 ~ /# SKIP/ && plan == 0) {
		s++
		print "     skip: " $0
	}
	next
}

/^ok .*# SKIP/     { s++; print "     skip: " $0; next }
/^ok( |$)/         { p++; next }
/^not ok( |$)/     { fail(substr($0, 8)); next }
/^# (log|SPLAT|hung|tell): / { print "     " $0; next }
/^# [^ ]+\.(c|cc|h):[0-9]+: / { print "     " $0; next }
/^# .*(Expected|terminated|Timeout|timed out)/ { print "     " $0; next }

END {
	if (label != "") {
		fail("did not end")
		flush_program()
	}
	add_up()
	if (vm && !ended) {
		print "     not ok: the VM crashed, hung or ran out of time"
		F++
	}
	print "# TALLY " P, F, S
}
