package sqlite

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/sqlq"
)

var update = flag.Bool("update", false, "write the golden files")

// plans are the tables whose SQL and whose query plans are held fast.
func plans() []plan {
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
	return []plan{
		{"grouped", grouped, "", "main.dead"},
		{"alone", alone, "", "jobs_dead"},
		{"full", full, "", "table:jobs_dead"},
		{"bare", bare, "", ""},
		{"line", line, "", "main.dead"},
		{"lines", lines, "", "main.dead"},
		{"advisory", advisory, "", "main.dead"},
		{"advisory-bare", advisoryBare, "", ""},
		{"own", own, ddl + `; CREATE INDEX own_claim ON "own jobs" (due, uuid)`, ""},
		{"own-priority", ownPriority, ddl + `; CREATE INDEX own_claim ON "own jobs" (level DESC, due, uuid)`, ""},
	}
}

type plan struct {
	name  string
	table sqlq.Table
	ddl   string
	dead  string
}

func (p *plan) options() settle.Options {
	if p.dead == "" {
		return settle.Options{}
	}
	return settle.Options{MaxAttempts: 5, DeadLetter: p.dead}
}

// queue makes the plan's table, and its dead table.
func (p *plan) queue(t testing.TB, db *DB) *Queue {
	t.Helper()
	if p.ddl != "" {
		execute(t, db, p.ddl)
		return db.Queue(p.table)
	}
	dead := p.table
	dead.Name = "jobs_dead"
	newQueue(t, db, dead)
	return newQueue(t, db, p.table)
}

// TestSQL holds the text of every statement against its golden file.
func TestSQL(t *testing.T) {
	for _, p := range plans() {
		t.Run(p.name, func(t *testing.T) {
			db := openFile(t, Options{})
			q := p.queue(t, db)
			text, err := q.SQL(t.Context(), p.options())
			require.NoError(t, err)
			if p.ddl == "" {
				text = q.Schema() + "\n" + text
			}
			file := filepath.Join("testdata", p.name+".sql")
			if *update {
				require.NoError(t, os.MkdirAll("testdata", 0o755))
				require.NoError(t, os.WriteFile(file, []byte(text), 0o644))
			}
			golden, err := os.ReadFile(file)
			require.NoError(t, err, "run go test with -update to write it")
			assert.Equal(t, string(golden), text)
		})
	}
}

// block returns the statement of a name out of what SQL returned, with
// arguments for it.
func block(t testing.TB, text, name string, args map[string]any) (string, []any) {
	t.Helper()
	_, rest, ok := strings.Cut("\n"+text, "\n-- "+name+" :")
	require.True(t, ok, "no statement %q", name)
	head, rest, _ := strings.Cut(rest, "\n")
	query, _, _ := strings.Cut(rest, ";\n\n")
	var all []any
	for _, p := range strings.Split(head, " :") {
		all = append(all, args[p])
	}
	return query, all
}
