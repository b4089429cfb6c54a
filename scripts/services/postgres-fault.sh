# A second PostgreSQL of the newest kind, for the tests that restart it and kill it: no other test is hurt.
variable=SETTLE_POSTGRES_FAULT_DSN suite=sid port=21528
source "$scripts/services/kinds/postgresql.sh"
