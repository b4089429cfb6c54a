# MySQL, the newest in Debian sid: 9.7 when this was written.
variable=SETTLE_MYSQL_DSN suite=sid port=21597
package=mysql-server server=mysqld client=mysql options='--mysqlx=OFF'
source "$scripts/services/kinds/mysql.sh"

make_files() { enter "$suite" mysqld --no-defaults --initialize-insecure --user=mysql --datadir=/srv/database; }
