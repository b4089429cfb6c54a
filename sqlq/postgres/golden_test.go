package postgres

import (
	"testing"

	"github.com/settlemq/settle/internal/sqltest"
	"github.com/settlemq/settle/sqlq"
)

// goldens are the tables whose SQL is held fast.
func goldens() []sqltest.Golden {
	standard := sqlq.Standard("jobs", "main")
	full := standard
	full.Schema, full.Priority, full.ProcessedAt = "settle_golden", "priority", "processed_at"
	line := standard
	line.FIFO, line.Key = true, ""
	lines := standard
	lines.FIFO, lines.ProcessedAt = true, "processed_at"
	bare := sqlq.Table{Name: "jobs", ID: "id", Payload: "payload", LockedUntil: "locked_until"}
	own := sqlq.Table{
		Name: `own "jobs"`, ID: "uuid", Payload: "body", RetryAfter: "due", LockedUntil: "lock", Attempt: "try", Priority: "level", Group: "kind", GroupValue: "it's",
	}
	const ddl = `CREATE TABLE "own ""jobs""" (uuid uuid PRIMARY KEY, kind varchar(9), body jsonb, due timestamp(3), lock timestamptz(0), try smallint, level bigint)`
	return []sqltest.Golden{
		{Name: "lease", Table: sqltest.In(standard, sqlq.Lease{}), Dead: "main.dead"},
		{Name: "lease-full", Table: sqltest.In(full, sqlq.Lease{}), Dead: "table:jobs_dead"},
		{Name: "lease-bare", Table: sqltest.In(bare, sqlq.Lease{})},
		{Name: "lease-line", Table: line, Dead: "main.dead"},
		{Name: "lease-lines", Table: lines, Dead: "main.dead"},
		{Name: "lease-own", Table: sqltest.In(own, sqlq.Lease{}), DDL: ddl, Dead: "old"},
		{Name: "row-lock", Table: sqltest.In(standard, sqlq.RowLock{}), Dead: "main.dead"},
		{Name: "row-lock-full", Table: sqltest.In(full, sqlq.RowLock{}), Dead: "table:jobs_dead"},
		{Name: "row-lock-bare", Table: sqltest.In(bare, sqlq.RowLock{})},
		{Name: "row-lock-own", Table: sqltest.In(own, sqlq.RowLock{}), DDL: ddl, Dead: "old"},
		{Name: "advisory", Table: sqltest.In(standard, sqlq.AdvisoryLock{}), Dead: "main.dead"},
		{Name: "advisory-full", Table: sqltest.In(full, sqlq.AdvisoryLock{}), Dead: "table:jobs_dead"},
		{Name: "advisory-bare", Table: sqltest.In(bare, sqlq.AdvisoryLock{})},
		{Name: "advisory-own", Table: sqltest.In(own, sqlq.AdvisoryLock{}), DDL: ddl, Dead: "old"},
	}
}

// TestSQL holds the text of every statement against its golden file.
func TestSQL(t *testing.T) {
	for _, g := range goldens() {
		t.Run(g.Name, func(t *testing.T) {
			db := fresh(t, Options{})
			if g.Table.Schema != "" {
				sqltest.Exec(t, &db.db, "CREATE SCHEMA "+g.Table.Schema)
				t.Cleanup(func() {
					sqltest.Exec(t, &db.db, "SET client_min_messages = error; DROP SCHEMA "+g.Table.Schema+" CASCADE")
				})
			}
			g.Compare(t, &db.db)
		})
	}
}
