# A PostgreSQL server from a chroot. The service's file sets: suite, port.

service_install() { chroot_packages "$suite" postgresql; }

service_start() {
  running server && return 0
  free "$port"
  as_postgres
  [[ -e $home/database/PG_VERSION ]] || make_database >"$home/initdb.log" 2>&1 || die "$name: initdb failed; see $home/initdb.log"
  inside "$suite"
  spawn server "${inside[@]}" "${as_postgres[@]}" postgres -D /srv/database -p "$port" -c listen_addresses=127.0.0.1 \
    -c unix_socket_directories=/srv/database -c max_connections=300 -c timezone=UTC
  wait_for 60 server answers_sql postgres
  answers_sql settle || enter "$suite" "${as_postgres[@]}" createdb -h 127.0.0.1 -p "$port" settle || die "$name: the database \"settle\" could not be made"
}

# as_postgres puts into the array of that name what every program of the server runs with: its user, and the newest
# version in the chroot first on the path.
as_postgres() {
  local versions=("$cache/$suite"/usr/lib/postgresql/*) newest
  newest=$(printf '%s\n' "${versions[@]##*/}" | sort -V | tail -n 1)
  as_postgres=(setpriv --reuid=postgres --regid=postgres --init-groups env -i LANG=C.UTF-8
    PATH="/usr/lib/postgresql/$newest/bin:/usr/bin:/bin" PGUSER=settle PGPASSWORD=settle)
}

# make_database makes the files of a new server; one that was left half made is thrown away.
make_database() {
  rm -rf "$home/database" && echo settle >"$home/password" &&
    enter "$suite" install -d -o postgres -g postgres -m 700 /srv/database &&
    enter "$suite" "${as_postgres[@]}" initdb -D /srv/database -U settle -A scram-sha-256 --pwfile=/srv/password -E UTF8 --locale=C.UTF-8
}

answers_sql() { enter "$suite" "${as_postgres[@]}" psql -h 127.0.0.1 -p "$port" -d "$1" -Atc 'SELECT 1' >/dev/null 2>&1; }

service_runs() { running server; }

# A fast shutdown: sessions that are open are cut, nothing that was committed is lost.
service_stop() { halt server INT 30; }

service_restart() { service_stop && service_start; }

service_kill() { kill_hard server; }

# service_ctl ARGUMENT... runs psql on the server.
service_ctl() {
  as_postgres
  enter "$suite" "${as_postgres[@]}" psql -h 127.0.0.1 -p "$port" -d settle -At "$@"
}

service_env() { echo "$variable=postgres://settle:settle@127.0.0.1:$port/settle?sslmode=disable"; }
