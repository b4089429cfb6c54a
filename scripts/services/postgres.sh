# PostgreSQL, the newest in Debian sid: 18 when this was written.
variable=SETTLE_POSTGRES_DSN suite=sid port=21518
source "$scripts/services/kinds/postgresql.sh"
