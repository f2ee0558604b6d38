#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
#
# nginx for load/http.c, with one worker: nginx.sh PORT DIR
#
# NGINX: the program (nginx). It says what it is asked only if it fails.

cat >"$2/nginx.conf" <<END
daemon off;
worker_processes 1;
pid $2/nginx.pid;
$([ "$(id -u)" != 0 ] || echo "user $(id -un) $(id -gn);")
events { worker_connections 1024; }
http {
	access_log off;
	default_type application/octet-stream;
	sendfile on;
	tcp_nopush on;
	keepalive_requests 1000000000;
	client_body_temp_path $2/tmp;
	proxy_temp_path $2/tmp;
	fastcgi_temp_path $2/tmp;
	uwsgi_temp_path $2/tmp;
	scgi_temp_path $2/tmp;
	server {
		listen 127.0.0.1:$1;
		root $2/www;
	}
}
END
exec "${NGINX:-nginx}" -p "$2" -e "$2/error.log" -c "$2/nginx.conf"
