package sqlite

import (
	"testing"

	"github.com/settlemq/settle/internal/sqltest"
	"github.com/settlemq/settle/sqlq"
)

// plans are the tables whose SQL and whose query plans are held fast.
func plans() []sqltest.Golden {
	grouped := sqlq.Standard("jobs", "main")
	alone := sqlq.Standard("jobs", "")
	full := sqlq.Standard("jobs", "main")
	full.Priority, full.ProcessedAt = "priority", "processed_at"
	bare := sqlq.Table{Name: "jobs", ID: "id", Payload: "payload", LockedUntil: "locked_until"}
	line := sqlq.Standard("jobs", "main")
	line.FIFO, line.Key = true, ""
	lines := sqlq.Standard("jobs", "main")
	lines.FIFO, lines.ProcessedAt = true, "processed_at"
	advisory := sqlq.Standard("jobs", "main")
	advisory.LockedUntil, advisory.Form = "", sqlq.AdvisoryLock{Key: "it's {msg_key}/{id}"}
	advisoryBare := sqlq.Table{Name: "jobs", ID: "id", Payload: "payload", Form: sqlq.AdvisoryLock{Key: "{id}"}}
	own := sqlq.Table{Name: "own jobs", ID: "uuid", Payload: "body", RetryAfter: "due", LockedUntil: "lock", Attempt: "try"}
	ownPriority := own
	ownPriority.Priority = "level"
	const ddl = `CREATE TABLE "own jobs" (uuid TEXT PRIMARY KEY NOT NULL, body, due INTEGER, lock INTEGER, try INTEGER, level INTEGER)`
	return []sqltest.Golden{
		{Name: "grouped", Table: grouped, Dead: "main.dead"},
		{Name: "alone", Table: alone, Dead: "jobs_dead"},
		{Name: "full", Table: full, Dead: "table:jobs_dead"},
		{Name: "bare", Table: bare},
		{Name: "line", Table: line, Dead: "main.dead"},
		{Name: "lines", Table: lines, Dead: "main.dead"},
		{Name: "advisory", Table: advisory, Dead: "main.dead"},
		{Name: "advisory-bare", Table: advisoryBare},
		{Name: "own", Table: own, DDL: ddl + `; CREATE INDEX own_claim ON "own jobs" (due, uuid)`},
		{Name: "own-priority", Table: ownPriority, DDL: ddl + `; CREATE INDEX own_claim ON "own jobs" (level DESC, due, uuid)`},
	}
}

// TestSQL holds the text of every statement against its golden file.
func TestSQL(t *testing.T) {
	for _, p := range plans() {
		t.Run(p.Name, func(t *testing.T) { p.Compare(t, &openFile(t, Options{}).db) })
	}
}
