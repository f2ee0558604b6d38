# SPDX-License-Identifier: GPL-2.0-only
#
# Lines of ROW, who, figure, of many rounds -> the table of medians: row, ours, peer,
# peer's figure, ours / peer, unit; a row that no peer has, or we have not, with "-".

BEGIN { FS = OFS = "\t" }

{
	key = $1 FS $2
	if (!(key in n)) {
		if (!($1 in peers)) row[++rows] = $1
		peers[$1] = peers[$1] ($2 == "ours" ? "" : FS $2)
	}
	value[key, ++n[key]] = $3 + 0
}

function unit(row) {
	if (row ~ /-bytes$/) return "bytes"
	if (row ~ /^(skynet|parked|blocked-entered)/) return "ms"
	if (row ~ /^(blocked|timer-p|echo|http)/) return "us"
	return "ns"
}

function median(key,    i, j, t, m) {
	if (!(key in n)) return "-"
	for (i = 2; i <= n[key]; i++)
		for (j = i; j > 1 && value[key, j - 1] > value[key, j]; j--) {
			t = value[key, j]
			value[key, j] = value[key, j - 1]
			value[key, j - 1] = t
		}
	m = int((n[key] + 1) / 2)
	t = value[key, m]
	if (n[key] % 2 == 0) t = (t + value[key, m + 1]) / 2
	return sprintf("%.3f", t)
}

function ratio(a, b) { return a == "-" || b + 0 == 0 ? "-" : sprintf("%.3f", a / b) }

END {
	print "row", "ours", "peer", "figure", "ratio", "unit"
	for (r = 1; r <= rows; r++) {
		ours = median(row[r] FS "ours")
		if (peers[row[r]] == "")
			print row[r], ours, "-", "-", "-", unit(row[r])
		k = split(substr(peers[row[r]], 2), who, FS)
		for (i = 1; i <= k; i++) {
			x = median(row[r] FS who[i])
			print row[r], ours, who[i], x, ratio(ours, x), unit(row[r])
		}
	}
}
