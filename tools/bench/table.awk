# SPDX-License-Identifier: GPL-2.0-only
#
# The table of medians for people: a line a row, the best peers first.

BEGIN {
	FS = "\t"
	printf "%-20s %10s %9s   %s\n", "row", "ours", "ours/best", "peers"
}

FNR == 1 { next }

function number(x) { return x == "-" ? x : sprintf(x < 100 ? "%.2f" : "%.0f", x) }

function ratio(x) { return sprintf(x < 0.1 ? "%.3f" : "%.2f", x) }

function show(    i, j, t, text) {
	if (row == "") return
	for (i = 2; i <= k; i++)
		for (j = i; j > 1 && figure[j - 1] > figure[j]; j--) {
			t = figure[j]; figure[j] = figure[j - 1]; figure[j - 1] = t
			t = who[j]; who[j] = who[j - 1]; who[j - 1] = t
		}
	for (i = 1; i <= k; i++)
		text = text (i > 1 ? ", " : "") who[i] " " number(figure[i])
	printf "%-20s %10s %9s   %s\n", row ", " unit, number(ours),
		k && ours != "-" ? ratio(ours / figure[1]) : "-", text
}

$1 != row { show(); row = $1; ours = $2; unit = $6; k = 0 }
$4 != "-" { who[++k] = $3; figure[k] = $4 + 0 }
END { show() }
