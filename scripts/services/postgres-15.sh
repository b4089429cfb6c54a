# PostgreSQL 15, of Debian 12: the oldest that is supported.
variable=SETTLE_POSTGRES15_DSN suite=bookworm port=21515
source "$scripts/services/kinds/postgresql.sh"
