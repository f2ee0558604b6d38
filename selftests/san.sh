#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only
#
# Library tests under sanitizers and valgrind, on this machine (user backend).
#
#   san.sh [KIND...]      address undefined thread valgrind (default: all)
#
# CC=clang: another compiler. PROGRAMS="order block": those only.
# SAN_LIMIT: seconds for one program (300). Prints TAP, as native.sh; a case
# that cannot run under a kind is a SKIP that says why.

set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
TOP=$(cd "$HERE/.." && pwd)
CC=${CC:-cc}
limit=${SAN_LIMIT:-300}

export FIBER_BACKEND=user FIBER_ALLOWANCE=${FIBER_ALLOWANCE:-20}
export ASAN_OPTIONS=detect_stack_use_after_return=1:allocator_may_return_null=1
export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
# threads of a runtime that was abandoned are no leak
TSAN_OPTIONS=halt_on_error=0:second_deadlock_stack=1:allocator_may_return_null=1
export TSAN_OPTIONS=$TSAN_OPTIONS:report_thread_leaks=0

# cannot KIND: lines "PROGRAM CASE REASON"
cannot() {
	case $1 in
	address|thread) cat <<-END
		corouse coro_has_the_stack_it_asked_for its frames are larger
		corouse coro_overflow_hits_the_guard the sanitizer reports it, not a signal
		corouse coro_stands_in_a_hundred_thousand the shadow counts as memory
		idle all_blocked_in_read its interceptors and its own thread wake up
		kill fault_in_a_fiber the sanitizer reports it, not a signal
		preempt sleeper_wakes_while_hogs_spin it is too slow for a bound of time
		spawn many_in_waves_with_little_memory the shadow counts as memory
		spawn out_of_memory_is_an_error the shadow counts as memory
		stack a_sent_signal_has_its_default_action the sanitizer catches it
		stack canary_of_a_small_stack the stack is four times as large
		stack canary_that_is_jumped_over the sanitizer reports it
		stack canary_takes_no_page the shadow counts as memory
		stack classes_give_what_was_asked_for it fills what red zones lie in
		stack hundred_thousand_in_capped_memory the shadow counts as memory
		stack hundred_thousand_small_in_capped_memory the shadow counts as memory
		stack hundred_thousand_without_guard_install the shadow counts as memory
		stack marks_of_entry_functions its frames are larger
		stack memory_goes_back_after_a_burst the shadow counts as memory
		stack other_faults_are_not_called_overflow the sanitizer reports it, not a signal
		stack overflow_by_alloca_into_the_guard the sanitizer reports it
		stack overflow_by_alloca_with_probes the sanitizer reports it
		stack overflow_is_reported the sanitizer reports it
		stack overflow_is_reported_for_each_guarded_class the sanitizer reports it
		stack the_handler_goes_with_the_runtime the sanitizer keeps the signal
		stack the_programs_handler_gets_what_is_not_ours the sanitizer keeps the signal
		trace written_when_the_library_ends_it the sanitizer reports the overflow
		state overflow_hits_the_guard the sanitizer reports it, not a signal
		END
		;;&
	undefined) cat <<-END
		corouse coro_has_the_stack_it_asked_for its frames are larger
		stack other_faults_are_not_called_overflow the sanitizer reports it, not a signal
		stack the_programs_handler_gets_what_is_not_ours the sanitizer reports it, not a signal
		END
		;;
	thread) cat <<-END
		chan join_by_a_plain_thread_ends_no_solo for it objects are always locked
		corofiber coro_goes_on_in_the_child_of_a_fork it forgets what contexts did before
		corouse coro_left_by_longjmp_cannot_yield it takes the other stack's calls for ours
		corouse coro_resumes_nest_deeply it counts no more than 8000 contexts
		idle all_but_one_in_join its own thread wakes up
		idle all_in_a_long_sleep its own thread wakes up
		idle no_wakeup_to_follow_the_cpus its own thread wakes up
		kill threads_end_with_the_runtime its own thread counts
		runtime init_and_fini_again_and_again its own thread counts
		spawn fib_on_one_processor its fibers take 0.1 ms each
		spawn fib_on_two_processors its fibers take 0.1 ms each
		spawn fib_on_four_processors its fibers take 0.1 ms each
		spawn pthread_exit_in_a_fiber its pthread_exit fails outside of a thread's own context
		sync_fork others_were_inside_of_calls it allows no threads after a fork beside threads
		sync_fork those_who_wait_are_the_parents it allows no threads after a fork beside threads
		timer no_wake_up_without_need its own thread wakes up
		timer very_many the shadow counts as memory
		END
		;;
	valgrind) cat <<-END
		kill fault_in_a_fiber valgrind reports the fault, and counts it
		order spawn_and_join_in_a_loop_starve_nobody its threads take turns
		runtime fork_in_a_fiber too slow for its limit
		spawn fib_on_one_processor too slow for its limit
		spawn fib_on_two_processors too slow for its limit
		spawn fib_on_four_processors too slow for its limit
		spawn many_in_waves_with_little_memory valgrind's own memory counts
		spawn out_of_memory_is_an_error valgrind's own memory counts
		stack hundred_thousand_in_capped_memory valgrind's own memory counts
		stack hundred_thousand_small_in_capped_memory valgrind's own memory counts
		stack hundred_thousand_without_guard_install too slow for its limit
		stack memory_goes_back_after_a_burst valgrind's own memory counts
		state deep_recursion_within_the_stack it takes the first large frame after a change of threads for another stack
		END
		;;
	esac
}

# skips KIND PROGRAM: the options that leave cases out; says SKIP to stdout
skips() {
	local program name reason
	options=()
	while read -r program name reason; do
		[ "$program" = "$2" ] || continue
		options+=(-T "$name")
		echo "ok 0 $2.$name # SKIP $1: $reason"
	done < <(cannot "$1")
}

# plus N: the cases left out belong to the plan
plus() {
	awk -v n="$1" '/^1\.\.[0-9]+$/ { $0 = "1.." substr($0, 4) + n }
		{ print; fflush() }'
}

# end_rest SESSION: what a program left behind would hold our output, and processors
end_rest() {
	pkill -KILL -s "$1" 2>/dev/null || return 0
	echo "# tell: it left processes behind, which were ended"
}

run_one() {
	local kind=$1 program=$2 name rc=0 options tool=()
	name=$(basename "$program")
	echo "# RUN $kind/$name"
	skips "$kind" "$name"
	if [ "$kind" = valgrind ]; then
		tool=(valgrind -q --error-exitcode=99 --fair-sched=yes
		      --trace-children=no --max-threads=2000
		      --suppressions="$HERE/valgrind.supp")
	fi
	# to a file: whoever is left of it would keep a pipe open
	setsid timeout -k 5 "$limit" "${tool[@]}" "$program" "${options[@]}" \
		</dev/null >"$out" 2>&1 &
	wait $! || rc=$?
	plus $((${#options[@]} / 2)) <"$out"
	end_rest $!
	case $rc in
	124|137) echo "not ok - $kind/$name: timeout after $limit s" ;;
	esac
	echo "# DONE $kind/$name rc=$rc"
}

folder() {
	case $1 in
	valgrind) echo "$TOP/build" ;;
	*) echo "$TOP/build/san/$1-$(basename "$CC")" ;;
	esac
}

build() {
	local kind=$1 san=SAN=$1
	[ "$kind" != valgrind ] || san=
	make --no-print-directory -s -j2 -C "$TOP" CC="$CC" $san lib tests >&2
}

out=$(mktemp)
trap 'rm -f "$out"' EXIT
[ $# -gt 0 ] || set -- address undefined thread valgrind
for kind; do
	if [ "$kind" = valgrind ] && ! command -v valgrind >/dev/null; then
		echo "# RUN valgrind"
		echo "ok 1 valgrind # SKIP valgrind is not installed"
		echo "# DONE valgrind rc=0"
		continue
	fi
	build "$kind" || { echo "not ok - make SAN=$kind"; continue; }
	mapfile -t programs < <(find "$(folder "$kind")/selftests/lib" \
		-maxdepth 1 -type f -perm -100 | sort)
	for program in "${programs[@]}"; do
		[[ " ${PROGRAMS:-$(basename "$program")} " = \
			*" $(basename "$program") "* ]] || continue
		run_one "$kind" "$program"
	done
done
