#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only
#
# MassiveThreads where Debian has no package of it (12 has none, 13 has):
# fetches the source of Debian 13's through apt, with lists of its own so that
# nothing of the system changes, and builds it.
#
#   massivethreads.sh DIR     leaves DIR/include and DIR/lib/libmyth.so

set -euo pipefail

dir=$(mkdir -p "$1" && cd "$1" && pwd)
key=/usr/share/keyrings/debian-archive-keyring.gpg
[ ! -e "$dir/lib/libmyth.so" ] || exit 0
[ "${DEPS:-yes}" != no ] || { echo "massivethreads.sh: DEPS=no" >&2; exit 1; }

echo "# MassiveThreads: building Debian 13's source" >&2
rm -rf "$dir/apt" "$dir/src"
mkdir -p "$dir"/{apt/lists/partial,apt/cache/archives/partial,src,lib}
echo "deb-src [signed-by=$key] http://deb.debian.org/debian trixie main" \
	>"$dir/apt/sources.list"
apt() {
	apt-get -qq -o Dir::Etc::sourcelist="$dir/apt/sources.list" \
		-o Dir::Etc::sourceparts=- -o Dir::State::lists="$dir/apt/lists" \
		-o Dir::Cache="$dir/apt/cache" -o APT::Sandbox::User=root "$@"
}
apt update
(cd "$dir/src" && apt source --tar-only --download-only massivethreads)
rm -rf "$dir/apt"
tar -C "$dir/src" --strip-components=1 -xf "$dir"/src/*.orig.tar.*
(cd "$dir/src" && CFLAGS=-O2 ./configure && make -C src libmyth.la) \
	>"$dir/log" 2>&1 || { tail "$dir/log" >&2; exit 1; }
cp -r "$dir/src/include" "$dir/"
cp "$dir"/src/src/.libs/libmyth.so* "$dir/lib/"
rm -rf "$dir/src"
