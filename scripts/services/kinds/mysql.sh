# A MySQL or MariaDB server from a chroot. The service's file sets: suite, port, package, server (the program), and
# make_files, which makes the files of a new server in /srv/database. What both servers take stands here.

service_install() { chroot_packages "$suite" "$package"; }

service_start() {
  running server && return 0
  free "$port"
  if [[ ! -e $home/made ]]; then
    rm -rf "$home/database" && enter "$suite" install -d -o mysql -g mysql -m 700 /srv/database &&
      make_files >"$home/make.log" 2>&1 && touch "$home/made" || die "$name: the files of a new server could not be made; see $home/make.log"
  fi
  cat >"$home/accounts.sql" <<'SQL'
CREATE USER IF NOT EXISTS 'settle'@'%' IDENTIFIED BY 'settle';
GRANT ALL PRIVILEGES ON *.* TO 'settle'@'%' WITH GRANT OPTION;
CREATE DATABASE IF NOT EXISTS settle;
SQL
  inside "$suite"
  spawn server "${inside[@]}" "$server" --no-defaults --user=mysql --datadir=/srv/database --init-file=/srv/accounts.sql \
    --bind-address=127.0.0.1 --port="$port" --socket=/srv/database/socket --pid-file=/srv/database/pid \
    --character-set-server=utf8mb4 --max-connections=300 $options
  wait_for 60 server answers_sql
}

answers_sql() { service_ctl -e 'SELECT 1'; }

service_runs() { running server; }

service_stop() { halt server TERM 30; }

service_restart() { service_stop && service_start; }

service_kill() { kill_hard server; }

# service_ctl ARGUMENT... runs the command-line client on the server.
service_ctl() { enter "$suite" env MYSQL_PWD=settle "$client" --no-defaults --protocol=TCP -h 127.0.0.1 -P "$port" -u settle -D settle -sN "$@"; }

service_env() { echo "$variable=settle:settle@tcp(127.0.0.1:$port)/settle"; }
