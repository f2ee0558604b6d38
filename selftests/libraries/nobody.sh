#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
#
# For programs that refuse to be root, such as PostgreSQL. Also in the VM: plain sh.
#
#   nobody.sh PROGRAM WORD...       run it as another user, if we are root
#   nobody.sh -own FOLDER PROGRAM   FOLDER is to be that user's who may run PROGRAM
#
# That is nobody, or, where nobody comes to PROGRAM (below /root), root with another
# number, in a user namespace.

folder=
[ "$1" != -own ] || { folder=$2; shift 2; }

# Not busybox's.
setpriv="/usr/bin/setpriv --reuid=65534 --regid=65534 --clear-groups"

if [ "$(id -u)" != 0 ]; then
	[ -n "$folder" ] || exec "$@"
elif $setpriv test -x "$(command -v "$1")"; then
	[ -n "$folder" ] || exec $setpriv "$@"
	chown -R 65534:65534 "$folder"
else
	[ -n "$folder" ] || exec unshare --user --map-user=65534 \
		--map-group=65534 "$@"
fi
