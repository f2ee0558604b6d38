# SPDX-License-Identifier: GPL-2.0-only
#
# awk -f costs.awk cost-6.1.log cost-6.12.log ...: what the logs of check.sh's cost
# suite say, in guest instructions, each beside the figure of the prototype that
# this module's recipe comes from ("-": it had none, or the kernel is another).

function prototype(row, a, b, c)
{
	was[row, "6.1"] = a; was[row, "6.12"] = b; was[row, "7.3"] = c
}

function note(row, value)
{
	if (!(row in known)) {
		known[row] = 1
		order[++rows] = row
	}
	is[row, kernel] = value
}

# the number that follows a word
function after(word,	rest)
{
	rest = substr($0, index($0, word) + length(word))
	match(rest, /-?[0-9.]+/)
	return substr(rest, RSTART, RLENGTH)
}

BEGIN {
	call = "getppid()"
	plain = "pipe hop there and back, two plain threads"
	alone = "the same, two carriers of one processor"
	pair = "pipe ping-pong, two plain threads"
	fibers = "the same, fibers, nobody ready"
	grace = "the same, another ready, grace 50 us"
	every = "the same, another ready, no grace"
	tick = "timer tick that does nothing"
	upcall = "PREEMPT upcall, beyond the tick"
	sigurg = "SIGURG, handler, sigreturn, beyond the tick"
	others = "a switch of an unrelated task"
	prototype(call, 337, 336, 364)
	prototype(pair, 11736, 11787, 15729)
	prototype(fibers, 11874, 11907, 15850)
	prototype(grace, "15700-18000", 24297, 18305)
	prototype(every, 26596, 37883, 37042)
	prototype(tick, "1006-1040", 1081, "1144-1194")
	prototype(upcall, 460, "-", 505)
	prototype(sigurg, 3153, 3149, 3412)
}

FNR == 1 {
	kernel = FILENAME
	sub(/^.*cost-/, "", kernel)
	sub(/\.log$/, "", kernel)
	kernels[++n] = kernel
}
/^# cost getppid:/ { note(call, after("fiber ")) }
/^# cost hop, nobody ready:/ {
	note(plain, after("threads "))
	note(alone, after("carriers "))
}
/^# cost pingpong nobody ready, settled:/ {
	note(pair, after("threads "))
	note(fibers, after("fibers "))
}
/^# cost hop, another ready, grace/ { note(grace, after("carriers ")) }
/^# cost hop, another ready, no grace/ { note(every, after("carriers ")) }
/^# cost tick / {
	bare = after("tick ")
	note(tick, bare)
	note(upcall, after("beyond the tick "))
}
/^# cost timer with SIGURG/ { note(sigurg, after("sigreturn ") - bare) }
/^# cost for others/ { note(others, "+" after("a group elsewhere +")) }

END {
	printf "%-46s", "instructions (prototype's)"
	for (k = 1; k <= n; k++)
		printf " %21s", kernels[k]
	printf "\n"
	for (r = 1; r <= rows; r++) {
		printf "%-46s", order[r]
		for (k = 1; k <= n; k++) {
			at = order[r] SUBSEP kernels[k]
			printf " %8s %-12s", at in is ? is[at] : "-",
				"(" (at in was ? was[at] : "-") ")"
		}
		printf "\n"
	}
}
