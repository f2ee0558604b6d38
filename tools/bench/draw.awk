# SPDX-License-Identifier: GPL-2.0-only
#
# A table of run.sh -> what gnuplot is to do. Every row is a heading with our figure
# and a line for each peer, best first; the lines stand in COLUMNS columns.

BEGIN {
	FS = "\t"
	COLUMNS = 3
	LINE = 15		# pixels
	WIDTH = 470		# of a column
	split("go=Go boost=Boost myth=MassiveThreads st=State_Threads " \
	      "pthread=plain_threads luajit=LuaJIT lua=Lua uring=liburing " \
	      "epoll=epoll nginx=nginx untraced=untraced", pair, " ")
	split("0x0f8fb3 0x7b5ea7 0x2e8b57 0xc77d0a 0x7f7f7f 0x9a6fb0 0xb59bc9 " \
	      "0x3465a4 0x5b92cf 0x5f9e3f 0xaaaaaa", hue, " ")
	for (i in pair) {
		split(pair[i], p, "=")
		gsub("_", " ", p[2])
		name[p[1]] = p[2]
		colour[p[1]] = hue[i]
	}
}

FNR == 1 {
	if ($1 != "row" || $6 != "unit") bad("no table of run.sh")
	next
}

function bad(why) {
	print FILENAME ": " why > "/dev/stderr"
	failed = 1
	exit 1
}

function number(x) {
	return sprintf(x < 9.995 ? "%.2f" : x < 99.95 ? "%.1f" : "%.0f", x)
}

# ---- reading: the heading and the peers of each row ----

$1 != last {
	last = $1
	row[++rows] = $1; ours[rows] = $2; unit[rows] = $6
	peers[rows] = 0
}

$4 != "-" {
	k = ++peers[rows]
	who[rows, k] = $3; figure[rows, k] = $4 + 0
	if (ours[rows] > 0 && $4 > 0) {
		x = $4 / ours[rows]
		if (x > most) most = x
		if (!least || x < least) least = x
	}
}

function swap(r, a, b,    t) {
	t = who[r, a]; who[r, a] = who[r, b]; who[r, b] = t
	t = figure[r, a]; figure[r, a] = figure[r, b]; figure[r, b] = t
}

function sort_peers(r,    i, j) {
	for (i = 2; i <= peers[r]; i++)
		for (j = i; j > 1 && figure[r, j - 1] > figure[r, j]; j--)
			swap(r, j, j - 1)
}

# ---- the lines of a column, downwards from y = 0 ----

# tics, bars and labels are text of the present column.
function tic(text) { tics = tics (tics ? ", " : "") sprintf("\"%s\" %g", text, y) }

# to the right of x
function label(x, text, rgb) {
	labels = labels sprintf("set label \"%s\" at %g,%g left offset 1,0 tc rgb %s\n",
		text, x, y, rgb)
}

function bar(x, rgb) {
	bars = bars sprintf("%g %g %g %g %g %g %s\n", 1, y, x < 1 ? x : 1,
		x < 1 ? 1 : x, y - 0.36, y + 0.36, rgb)
}

function peer(r, i,    x, text) {
	x = figure[r, i] / ours[r]
	text = number(figure[r, i]) " (×" number(x) ")"
	tic(who[r, i] in name ? name[who[r, i]] : who[r, i])
	bar(x, who[r, i] in colour ? colour[who[r, i]] : "0x444444")
	if (x < 1) label(1, text, "0xb00020")
	else label(x, text, "0x333333")
	y--
}

function one_row(r,    i) {
	sort_peers(r)
	tic("{/:Bold " row[r] "}")
	if (ours[r] > 0) {
		dots = dots sprintf("1 %g\n", y)
		label(1, "{/:Bold " number(ours[r]) " " unit[r] "}", "0x000000")
	} else {
		label(1, "none of ours", "0xb00020")
	}
	y--
	for (i = 1; i <= peers[r]; i++)
		if (ours[r] > 0) peer(r, i)
	y -= 0.5
}

function lines_of(r) { return 1.5 + (ours[r] > 0 ? peers[r] : 0) }

# ---- the picture ----

function head(lines,    height) {
	height = int(lines * LINE + 120)
	printf "set terminal svg size %d,%d enhanced font 'DejaVu Sans,11' " \
		"background '#ffffff'\n", COLUMNS * WIDTH, height
	print "set encoding utf8"
	printf "set multiplot layout 1,%d title \"libfiber is 1 (●) in each row: a bar " \
		"to the right is a peer that takes so many times as long, one to " \
		"the left a peer that is ahead\"\n", COLUMNS
	print "set logscale x; unset key; set border 1; set format x '%g'"
	print "set tics nomirror scale 0.3; set grid x lc rgb '#dddddd' lt 1"
	print "set ytics textcolor rgb '#333333'; set xlabel 'times libfiber'"
	print "set lmargin 18; set rmargin 2; set tmargin 3; set style fill solid"
	# room for the label of the longest bar
	span = log(most) - log(least)
	printf "set xrange [%g:%g]\n", exp(log(least) - 0.05 * span),
		exp(log(most) + 0.5 * span)
	printf "set yrange [%g:1]\n", -lines
}

function column() {
	if (tics == "") return
	printf "unset label\n%s", labels
	printf "set ytics (%s)\n", tics
	printf "$bars << END\n%sEND\n$dots << END\n%sEND\n", bars, dots
	print "set arrow 1 from 1, graph 0 to 1, graph 1 nohead lc rgb '#000000' back"
	# a plot of no points is an error
	printf "plot %s$dots using 1:2 with points pt 7 ps 0.6 lc rgb '#000000'\n",
		bars != "" ? "$bars using 1:2:3:4:5:6:7 with boxxyerror lc rgb variable, " : ""
	tics = labels = bars = dots = ""
	y = 0
}

END {
	if (failed) exit 1
	if (!rows) bad("no rows")
	if (!most || most < 10) most = 10
	if (!least || least > 1) least = 1
	for (r = 1; r <= rows; r++) {
		total += lines_of(r)
		if (lines_of(r) > longest) longest = lines_of(r)
	}
	if (rows < COLUMNS) COLUMNS = rows
	each = total / COLUMNS
	if (each < longest) each = longest
	# a column ends before the row that would go past its share by more than half
	for (r = 1; r <= rows; r++) {
		if (used && c < COLUMNS - 1 && used + lines_of(r) / 2 > each * (c + 1)) {
			c++
			start[c] = used
		}
		col[r] = c + 0
		used += lines_of(r)
		if (used - start[c] > deepest) deepest = used - start[c]
	}
	COLUMNS = c + 1
	head(deepest)
	for (r = 1; r <= rows; r++) {
		if (r > 1 && col[r] != col[r - 1]) column()
		one_row(r)
	}
	column()
	print "unset multiplot"
}
