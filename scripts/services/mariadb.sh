# MariaDB 10.11, of Debian 12.
variable=SETTLE_MARIADB_DSN suite=bookworm port=21511
package=mariadb-server server=mariadbd client=mariadb options=''
source "$scripts/services/kinds/mysql.sh"

make_files() {
  enter "$suite" mariadb-install-db --no-defaults --user=mysql --datadir=/srv/database \
    --auth-root-authentication-method=normal --skip-test-db
}
