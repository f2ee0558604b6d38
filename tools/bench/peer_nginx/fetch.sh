#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only
#
# Debian's nginx, fetched and unpacked but not installed: the package would start a
# server on port 80.
#
#   fetch.sh DIR     leaves DIR/usr/sbin/nginx

set -euo pipefail

dir=$(mkdir -p "$1" && cd "$1" && pwd)
[ ! -x "$dir/usr/sbin/nginx" ] || exit 0
[ "${DEPS:-yes}" != no ] || { echo "nginx is not installed, DEPS=no" >&2; exit 1; }
echo "# nginx: fetching Debian's package" >&2
rm -rf "$dir/new"
mkdir "$dir/new"
(cd "$dir/new" && apt-get -qq -o APT::Sandbox::User=root download nginx >/dev/null)
dpkg -x "$dir"/new/nginx_*.deb "$dir"
rm -rf "$dir/new"
"$dir/usr/sbin/nginx" -v 2>/dev/null || {
	echo "nginx does not run here: a library is missing" >&2
	rm -rf "${dir:?}/usr"
	exit 1
}
