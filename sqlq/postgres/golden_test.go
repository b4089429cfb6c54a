package postgres

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/sqlq"
)

var update = flag.Bool("update", false, "write the golden files")

// goldens are the tables whose SQL is held fast.
func goldens() []golden {
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
	return []golden{
		{"lease", in(standard, sqlq.Lease{}), "", "main.dead"},
		{"lease-full", in(full, sqlq.Lease{}), "", "table:jobs_dead"},
		{"lease-bare", in(bare, sqlq.Lease{}), "", ""},
		{"lease-line", line, "", "main.dead"},
		{"lease-lines", lines, "", "main.dead"},
		{"lease-own", in(own, sqlq.Lease{}), ddl, "old"},
		{"row-lock", in(standard, sqlq.RowLock{}), "", "main.dead"},
		{"row-lock-full", in(full, sqlq.RowLock{}), "", "table:jobs_dead"},
		{"row-lock-bare", in(bare, sqlq.RowLock{}), "", ""},
		{"row-lock-own", in(own, sqlq.RowLock{}), ddl, "old"},
		{"advisory", in(standard, sqlq.AdvisoryLock{}), "", "main.dead"},
		{"advisory-full", in(full, sqlq.AdvisoryLock{}), "", "table:jobs_dead"},
		{"advisory-bare", in(bare, sqlq.AdvisoryLock{}), "", ""},
		{"advisory-own", in(own, sqlq.AdvisoryLock{}), ddl, "old"},
	}
}

type golden struct {
	name  string
	table sqlq.Table
	ddl   string
	dead  string
}

// queue makes the table, and its dead table.
func (g *golden) queue(t testing.TB, db *DB) *Queue {
	t.Helper()
	if g.ddl != "" {
		exec(t, db, g.ddl)
		return db.Queue(g.table)
	}
	dead := g.table
	dead.Name = "jobs_dead"
	newQueue(t, db, dead)
	return newQueue(t, db, g.table)
}

// TestSQL holds the text of every statement against its golden file.
func TestSQL(t *testing.T) {
	for _, g := range goldens() {
		t.Run(g.name, func(t *testing.T) {
			db := fresh(t, Options{})
			if g.table.Schema != "" {
				exec(t, db, "CREATE SCHEMA "+g.table.Schema)
				t.Cleanup(func() { exec(t, db, "DROP SCHEMA "+g.table.Schema+" CASCADE") })
			}
			q := g.queue(t, db)
			o := settle.Options{}
			if g.dead != "" {
				o = settle.Options{MaxAttempts: 5, DeadLetter: g.dead}
			}
			text, err := q.SQL(t.Context(), o)
			require.NoError(t, err)
			if g.ddl == "" {
				text = q.Schema() + "\n" + text
			}
			file := filepath.Join("testdata", g.name+".sql")
			if *update {
				require.NoError(t, os.MkdirAll("testdata", 0o755))
				require.NoError(t, os.WriteFile(file, []byte(text), 0o644))
			}
			held, err := os.ReadFile(file)
			require.NoError(t, err, "run go test with -update to write it")
			assert.Equal(t, string(held), text)
		})
	}
}
