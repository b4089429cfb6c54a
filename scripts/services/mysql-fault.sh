# A second MySQL, for the tests that restart it and kill it: no other test is hurt.
source "$scripts/services/mysql.sh"
variable=SETTLE_MYSQL_FAULT_DSN port=21607
