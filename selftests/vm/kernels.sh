#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only
#
# Stock Debian kernels for tests: fetched and unpacked, never installed.
#
#   kernels.sh fetch NAME...        fetch into the cache (no-op when there)
#   kernels.sh path NAME            print the cache folder of a fetched kernel
#   kernels.sh build NAME DIR       build the external module in DIR
#   kernels.sh source VERSION       fetch Debian's source tree, print its folder
#   kernels.sh list                 what the cache holds
#
# NAME is VERSION[-FLAVOUR]: 6.1, 6.1-rt, 6.1-cloud, 6.12..., 7.3... or debug
# or kcsan, which debug-kernel.sh makes.
#
# The cache folder (FIBER_CACHE, default ~/.cache/fiber) holds
#   apt/             a private apt state; the host's own is only read
#   kernels/NAME/    vmlinux (uncompressed), release, build -> header tree; swap/
#                    and fuse/: the modules of zram and FUSE, in order of loading
#                    (where they are not built in)
#   trixie/          a small chroot: kbuild helpers of 7.x need its glibc
#   source/VERSION/  version, and the tree of linux-source-VERSION
#
# Whatever is made there is made under a temporary name and renamed, under one
# lock a thing: an interrupted run leaves nothing half done behind.

set -euo pipefail

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
CACHE=${FIBER_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/fiber}
APT=$CACHE/apt

say() { echo "# $*" >&2; }
die() { echo "kernels.sh: $*" >&2; exit 1; }

# with_lock NAME COMMAND...: one process at a time makes one thing
with_lock() {
	local lock=$CACHE/locks/$1
	shift
	mkdir -p "$CACHE/locks"
	( flock 9 && "$@" ) 9>"$lock"
}

# --- apt, with a state of its own -----------------------------------------

apt_options() {
	printf '%s\n' -o "Dir::Etc::sourcelist=$APT/sources.list" \
		-o Dir::Etc::sourceparts=/dev/null \
		-o Dir::Etc::preferences=/dev/null \
		-o Dir::Etc::preferencesparts=/dev/null \
		-o "Dir::State::lists=$APT/lists" \
		-o "Dir::Cache=$APT/cache" \
		-o APT::Sandbox::User=root \
		-o APT::Architecture=amd64
}

apt_run() {
	local tool=$1 opts
	shift
	mapfile -t opts < <(apt_options)
	"$tool" "${opts[@]}" "$@"
}

# mirror_of SUITE [APT_OPTION...]: where the host's apt gets that suite from
mirror_of() {
	local suite=$1
	shift
	# shellcheck disable=SC2016 # apt's variables, not the shell's
	apt-get "$@" indextargets --format '$(RELEASE) $(REPO_URI)' |
		awk -v s="$suite" '$1 == s { sub("/$", "", $2); print $2; exit }'
}

# debian_mirror SUITE: the same, also where the host never read its lists
debian_mirror() {
	local lists=$APT/host
	local own=(-o "Dir::State::lists=$lists" -o APT::Sandbox::User=root)
	mirror_of "$1" | grep . && return 0
	mkdir -p "$lists/partial"
	apt-get "${own[@]}" -qq update >&2 || true
	mirror_of "$1" "${own[@]}" | grep . || true
}

write_sources() {
	local main sec suite
	main=$(debian_mirror bookworm)
	sec=$(debian_mirror bookworm-security)
	[ -n "$main" ] || die "apt knows no mirror for bookworm:" \
		"is this a Debian 12 host with sources configured?"
	for suite in bookworm bookworm-updates bookworm-backports \
		     trixie trixie-backports; do
		echo "deb $main $suite main"
	done
	for suite in bookworm-security trixie-security; do
		echo "deb ${sec:-$main-security} $suite main"
	done
}

# The lists are refreshed at most once a day.
apt_ready() {
	[ -z "$(find "$APT/fresh" -mmin -1440 2>/dev/null)" ] || return 0
	mkdir -p "$APT/lists/partial" "$APT/cache/archives/partial"
	write_sources >"$APT/sources.list.new"
	mv "$APT/sources.list.new" "$APT/sources.list"
	say "kernels: reading package lists"
	apt_run apt-get -qq update >&2 || die "apt-get update failed (see above)"
	touch "$APT/fresh"
}

# --- names ----------------------------------------------------------------

# release_pattern NAME: ERE of the kernel releases that NAME may mean
release_pattern() {
	local version=${1%%-*} flavour=amd64
	case $1 in
	*-rt) flavour=rt-amd64 ;;
	*-cloud) flavour=cloud-amd64 ;;
	esac
	case $version in
	6.1) echo "6\\.1\\.0-[0-9]+-$flavour" ;;
	6.*) echo "${version//./\\.}\\.[0-9]+\\+deb12(\\.[0-9]+)?-$flavour" ;;
	7.*) echo "${version//./\\.}\\.[0-9]+\\+deb13(\\.[0-9]+)?-$flavour" ;;
	*) return 1 ;;
	esac
}

known() { apt_run apt-cache show --no-all-versions "$@" >/dev/null 2>&1; }

# newest_release PATTERN: newest with both image and headers
newest_release() {
	local r
	for r in $(apt_run apt-cache pkgnames linux-headers- |
		   sed 's/^linux-headers-//' | grep -xE "$1" | sort -Vr); do
		if known "linux-headers-$r" && known "$(image_package "$r")"
		then
			echo "$r"
			return 0
		fi
	done
	return 1
}

# 7.x has split packages: linux-image-* only depends on the others.
image_package() {
	case $1 in
	7.*) echo "linux-binary-$1" ;;
	*) echo "linux-image-$1" ;;
	esac
}

modules_package() {
	case $1 in
	7.*) echo "linux-modules-$1" ;;
	*) image_package "$1" ;;
	esac
}

resolve() {
	local pattern r any
	pattern=$(release_pattern "$1") ||
		die "unknown kernel '$1': say 6.1, 6.12 or 7.3, or with -rt, -cloud"
	if r=$(newest_release "$pattern"); then
		echo "$r"
		return 0
	fi
	any=$(release_pattern "7.9${1#7.?}" | sed 's/^7\\.9/7\\.[0-9]+/')
	case $1 in 7.*) r=$(newest_release "$any") ;; esac
	[ -n "$r" ] || die "no package for kernel '$1' (pattern $pattern)"
	say "kernels: no $1 in the archive, $r takes its place"
	echo "$r"
}

# header_packages RELEASE: the flavour's headers, the common ones, kbuild
header_packages() {
	echo "linux-headers-$1"
	apt_run apt-cache show --no-all-versions "linux-headers-$1" |
		sed -n 's/^Depends: //p' | tr ',' '\n' |
		awk '$1 ~ /^linux-headers-.*-common|^linux-kbuild-/ { print $1 }'
}

# --- unpacking ------------------------------------------------------------

# The trees name each other by absolute path in their Makefiles alone. Without
# their vmlinux (type data) modules are built without BTF, so without pahole.
relocate_headers() {
	local root=$1 final=$2
	sed -i "s@/usr/src/@$final/usr/src/@" "$root"/usr/src/linux-headers-*/Makefile
	rm -f "$root"/usr/src/linux-headers-*/vmlinux
}

is_elf() { [ "$(head -c 4 "$1" | tail -c 3)" = ELF ]; }

# payload FILE OUT MAGIC COMMAND...: the ELF file that COMMAND unpacks from FILE
# at an occurrence of MAGIC (whatever follows the payload makes COMMAND fail)
payload() {
	local file=$1 out=$2 magic=$3 at
	shift 3
	while read -r at; do
		tail -c "+$((at + 1))" "$file" | "$@" >"$out" 2>/dev/null || true
		! is_elf "$out" || return 0
	done < <(LC_ALL=C grep -aboP "$magic" "$file" | cut -d: -f1)
	return 1
}

# extract_vmlinux VMLINUZ OUT: the uncompressed kernel boots faster
extract_vmlinux() {
	payload "$1" "$2" '\xfd7zXZ\x00' xz -dc --single-stream ||
	payload "$1" "$2" '\x28\xb5\x2f\xfd' zstd -dc ||
	payload "$1" "$2" '\x02\x21\x4c\x18' lz4 -dc ||
		die "$(basename "$1") is neither XZ, ZSTD nor LZ4 inside"
}

# unpack_modules FOLDER TO NAME...: those that are there, numbered; FUSE is built in
# from 6.12 on, and ever more of zram's
unpack_modules() {
	local from=$1 to=$2 m file n=0
	shift 2
	mkdir -p "$to"
	for m; do
		file=$(find "$from" -name "$m.ko*" -type f)
		case $file in
		'') continue ;;
		*.xz) xz -dc "$file" >"$to/$n-$m.ko" ;;
		*) cp "$file" "$to/$n-$m.ko" ;;
		esac
		n=$((n + 1))
	done
}

unpack_image() {
	local deb=$1 root=$2 z
	mkdir -p "$root/image"
	dpkg-deb --fsys-tarfile "$deb" |
		tar -x -C "$root/image" --wildcards --wildcards-match-slash \
			'*/vmlinuz*'
	z=$(find "$root/image" -name 'vmlinuz*' -type f)
	[ -n "$z" ] || die "$(basename "$deb") holds no vmlinuz"
	extract_vmlinux "$z" "$root/vmlinux"
	rm -rf "$root/image"
}

# has_modules FOLDER: is all there that guest_modules puts there?
has_modules() { [ -d "$1/fuse" ] && compgen -G "$1/swap/*-zram.ko" >/dev/null; }

# guest_modules DEB FOLDER: its swap/ and fuse/
guest_modules() {
	local deb=$1 root=$2
	mkdir -p "$root/modules"
	dpkg-deb --fsys-tarfile "$deb" |
		tar -x -C "$root/modules" --wildcards --wildcards-match-slash \
			'*/zram.ko*' '*/zsmalloc.ko*' \
			'*/lz4_compress.ko*' '*/lz4hc_compress.ko*' \
			'*/fuse.ko*' 2>/dev/null ||
		true			# not every pattern is there
	unpack_modules "$root/modules" "$root/swap" \
		zsmalloc lz4_compress lz4hc_compress zram
	unpack_modules "$root/modules" "$root/fuse" fuse
	rm -rf "$root/modules"
	has_modules "$root" || die "$(basename "$deb") holds no zram"
}

download() {
	local dir=$1
	shift
	mkdir -p "$dir"
	( cd "$dir" && apt_run apt-get -qq download "$@" >&2 ) ||
		die "download failed: $*"
}

# package DIR NAME: its file, of those downloaded there
package() { find "$1" -name "$2_*"; }

# complete NAME PACKAGE: what an older version of this script fetched lacks modules
complete() {
	local final=$CACHE/kernels/$1 tmp=$CACHE/kernels/.$1.tmp deb=$2
	say "kernels: $1 lacks modules: fetching $deb"
	rm -rf "$tmp"
	download "$tmp/debs" "$deb"
	guest_modules "$(package "$tmp/debs" "$deb")" "$tmp"
	rm -rf "$final/swap" "$final/fuse"
	mv "$tmp/fuse" "$tmp/swap" "$final/"
	rm -rf "$tmp"
}

fetch_locked() {
	local final=$CACHE/kernels/$1 modules=''
	[ ! -e "$final/release" ] || ! has_modules "$final" || return 0
	with_lock apt apt_ready
	[ ! -e "$final/release" ] ||
		modules=$(modules_package "$(cat "$final/release")")
	if [ -n "$modules" ] && known "$modules"; then
		complete "$1" "$modules"
	else
		fetch_whole "$1"	# the archive may have it no more
	fi
}

fetch_whole() {
	local name=$1 final=$CACHE/kernels/$1 tmp=$CACHE/kernels/.$1.tmp
	local release image modules deb debs
	release=$(resolve "$name")
	say "kernels: fetching $release as $name"
	rm -rf "$tmp"
	image=$(image_package "$release")
	modules=$(modules_package "$release")
	mapfile -t debs < <(header_packages "$release")
	[ "$modules" = "$image" ] || debs+=("$modules")
	download "$tmp/debs" "${debs[@]}" "$image"
	for deb in "$tmp"/debs/linux-headers-* "$tmp"/debs/linux-kbuild-*; do
		dpkg -x "$deb" "$tmp"
	done
	unpack_image "$(package "$tmp/debs" "$image")" "$tmp"
	guest_modules "$(package "$tmp/debs" "$modules")" "$tmp"
	relocate_headers "$tmp" "$final"
	rm -rf "${tmp:?}/debs" "${tmp:?}/usr/share"
	ln -s "usr/src/linux-headers-$release" "$tmp/build"
	echo "$release" >"$tmp/release"
	rm -rf "$final"
	mv "$tmp" "$final"
}

chroot_locked() {
	local tmp=$CACHE/.trixie.tmp main
	[ ! -d "$CACHE/trixie" ] || return 0
	main=$(debian_mirror bookworm)
	[ -n "$main" ] || die "apt knows no mirror for bookworm"
	say "kernels: making the trixie chroot for building 7.x modules"
	rm -rf "$tmp"
	mmdebstrap --quiet --variant=apt --mode=root \
		--include=gcc-14,make,libc6-dev,libelf1t64 \
		trixie "$tmp" "deb $main trixie main" >&2 ||
		die "mmdebstrap failed (see above)"
	mv "$tmp" "$CACHE/trixie"
}

# needs_chroot NAME: do its kbuild helpers need a newer glibc than ours?
needs_chroot() { case $(cat "$(path "$1")/release") in *+deb13*) ;; *) false ;; esac; }

source_locked() {
	local final=$CACHE/source/$1 tmp=$CACHE/source/.$1.tmp deb
	[ ! -e "$final/version" ] || return 0
	with_lock apt apt_ready
	say "kernels: fetching the source of Linux $1"
	rm -rf "$tmp"
	download "$tmp/debs" "linux-source-$1"
	deb=$(find "$tmp/debs" -name '*.deb')
	dpkg-deb --fsys-tarfile "$deb" |
		tar -xO "./usr/src/linux-source-$1.tar.xz" | tar -xJ -C "$tmp"
	dpkg-deb -f "$deb" Version >"$tmp/version"
	rm -rf "${tmp:?}/debs" "$final"
	mv "$tmp" "$final"
}

source() {
	with_lock "source-$1" source_locked "$1"
	echo "$CACHE/source/$1/linux-source-$1"
}

fetch() {
	local name
	for name; do
		case $name in
		debug|kcsan) "$HERE/debug-kernel.sh" "$name"; continue ;;
		esac
		release_pattern "$name" >/dev/null ||
			die "unknown kernel '$name': say 6.1, 6.12 or 7.3, or with -rt, -cloud"
		with_lock "kernel-$name" fetch_locked "$name"
		! needs_chroot "$name" || with_lock trixie chroot_locked
	done
}

path() {
	[ -e "$CACHE/kernels/$1/release" ] ||
		die "kernel $1 is not fetched: run '$HERE/kernels.sh fetch $1'"
	echo "$CACHE/kernels/$1"
}

# --- building ---------------------------------------------------------------

# in_chroot ROOT DIR... -- COMMAND: run it there, with DIRs at their own paths
in_chroot() {
	local root=$1 dirs=() mounts
	shift
	while [ "$1" != -- ]; do dirs+=("$1"); shift; done
	shift
	# shellcheck disable=SC2016 # for the inner shell
	mounts='root=$1; shift
		while [ "$1" != -- ]; do
			mkdir -p "$root$1"; mount --rbind "$1" "$root$1"; shift
		done; shift
		exec chroot "$root" "$@"'
	unshare -m sh -ec "$mounts" sh "$root" /proc /dev "${dirs[@]}" -- "$@"
}

# build NAME DIR [VAR=VALUE...]: kbuild in DIR; make's own variables that
# were meant for user space do not reach it
build() {
	local name=$1 dir kernel cmd wrap=() variables=()
	kernel=$(path "$name")
	[ ! -s "$kernel/variables" ] || mapfile -t variables <"$kernel/variables"
	dir=$(cd "$2" && pwd)
	shift 2
	! needs_chroot "$name" ||
		wrap=(in_chroot "$CACHE/trixie" "$CACHE/kernels" "$dir" --)
	cmd=(env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C
	     make -s -j2 -C "$kernel/build" "M=$dir" W=1 \
	     CONFIG_DEBUG_INFO_BTF_MODULES= CONFIG_PAHOLE_VERSION=0 \
	     "${variables[@]}" "$@" modules)
	"${wrap[@]}" "${cmd[@]}"
}

list() {
	local r
	for r in "$CACHE"/kernels/*/release; do
		[ ! -e "$r" ] || echo "$(basename "$(dirname "$r")") $(cat "$r")"
	done
}

usage() {
	sed -n '3,/^$/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
	exit 2
}

[ $# -ge 1 ] || usage
command=$1
shift
case $command in
fetch|path|build|source|list) "$command" "$@" ;;
*) usage ;;
esac
