# PgBouncer, which pools transactions, before a PostgreSQL of its own, which listens on the next port. Its database
# "sessions" is pooled by sessions.
variable=SETTLE_PGBOUNCER_DSN suite=sid port=21536
source "$scripts/services/kinds/postgresql.sh"
source "$scripts/services/kinds/pgbouncer.sh"
