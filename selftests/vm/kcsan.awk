# SPDX-License-Identifier: GPL-2.0-only
#
# A kernel log without the data races that lie wholly outside the module: its
# name stands neither in the title nor, where the title names a helper that is
# called with the address to use, in the frame below. -v dropped=FILE gets the
# titles of those left out. All other lines pass.

BEGIN { printf "" >dropped }

{ line = $0; sub(/^\[ *[0-9.]+\](\[ *[TC][0-9]+\])? /, "", line) }

function is_helper(frame) {
	return frame ~ /^ *(__list|list_|mem(cpy|set|cmp|chr)|__mem|copy_|_copy)/
}

function finish() {
	if (title ~ /KCSAN/ && !ours)
		print title >dropped
	else
		printf "%s", block
	block = title = ""
	inside = ours = after_helper = 0
}

line ~ /^=+$/ && length(line) > 60 {
	if (inside && title ~ /KCSAN/) {
		block = block $0 "\n"
		finish()
		next
	}
	if (inside)
		finish()
	inside = 1
}

inside {
	block = block $0 "\n"
	if (title == "" && line ~ /^(BUG|WARNING)/) {
		title = line
		ours = line ~ /\[fiber/
	}
	if (after_helper && line ~ /\[fiber/)
		ours = 1
	after_helper = is_helper(line)
	if (title != "" && title !~ /KCSAN/)
		finish()
	next
}

{ print }

END { finish() }
