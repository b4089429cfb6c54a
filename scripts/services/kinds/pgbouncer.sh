# PgBouncer before a PostgreSQL server. The service's file sets: suite, port; it reads kinds/postgresql.sh first, whose
# functions work on the server behind it.

eval "behind_$(declare -f service_start)" # the same under another name

service_install() { chroot_packages "$suite" postgresql pgbouncer; }

service_start() {
  running server pooler && return 0
  local port=$((port + 1)) pooler=$port
  behind_service_start
  free "$pooler"
  echo '"settle" "settle"' >"$home/users"
  cat >"$home/pgbouncer.ini" <<EOT
[databases]
settle = host=127.0.0.1 port=$port
sessions = host=127.0.0.1 port=$port dbname=settle pool_mode=session
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = $pooler
unix_socket_dir =
auth_type = scram-sha-256
auth_file = /srv/users
pool_mode = transaction
max_prepared_statements = 200
ignore_startup_parameters = extra_float_digits
EOT
  chown -R --reference="$home/database" "$home/users" "$home/pgbouncer.ini"
  inside "$suite"
  spawn pooler "${inside[@]}" "${as_postgres[@]}" PGUSER= /usr/sbin/pgbouncer /srv/pgbouncer.ini
  wait_for 30 pooler connects "$pooler"
}

service_runs() { running server pooler; }

service_stop() { halt pooler INT 10 && halt server INT 30; }

service_restart() { service_stop && service_start; }

service_kill() { kill_hard pooler && kill_hard server; }
