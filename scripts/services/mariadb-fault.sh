# A second MariaDB, for the tests that restart it and kill it: no other test is hurt.
source "$scripts/services/mariadb.sh"
variable=SETTLE_MARIADB_FAULT_DSN port=21611
