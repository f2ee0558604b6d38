#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
#
# Our server for load/http.c, with one processor: httpd.sh PORT DIR

FIBER_PROCESSORS=1 exec build/samples/httpd -f -r "$2/www" -p "$1"
