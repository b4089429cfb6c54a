package sqltest

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

// Golden is a table whose SQL is held fast in testdata/NAME.sql. go test with -update writes the files.
type Golden struct {
	Name  string
	Table sqlq.Table
	DDL   string // statements that make a table of the user's own; empty: CreateTable, and table jobs_dead too
	Dead  string // Options.DeadLetter
}

// Options are those of a registration.
func (g *Golden) Options() settle.Options {
	if g.Dead == "" {
		return settle.Options{}
	}
	return settle.Options{MaxAttempts: 5, DeadLetter: g.Dead}
}

// Create makes the table, and its dead table.
func (g *Golden) Create(t testing.TB, db *sqlq.Database) *sqlq.Queue {
	t.Helper()
	if g.DDL != "" {
		Exec(t, db, g.DDL)
		return sqlq.NewQueue(db, g.Table)
	}
	dead := g.Table
	dead.Name = "jobs_dead"
	Create(t, db, dead)
	return Create(t, db, g.Table)
}

// Compare holds the text of every statement against the golden file.
func (g *Golden) Compare(t testing.TB, db *sqlq.Database) {
	t.Helper()
	q := g.Create(t, db)
	text, err := q.SQL(t.Context(), g.Options())
	require.NoError(t, err)
	if g.DDL == "" {
		text = q.Schema() + "\n" + text
	}
	file := filepath.Join("testdata", g.Name+".sql")
	if *update {
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile(file, []byte(text), 0o644))
	}
	held, err := os.ReadFile(file)
	require.NoError(t, err, "run go test with -update to write it")
	if was, is := firstDifference(string(held), text); was != is {
		assert.Fail(t, "the SQL is not what "+file+" has; run go test with -update and look at the change", "was: %s\nis:  %s", was, is)
	}
}

// firstDifference returns the first line that is not the same in both texts.
func firstDifference(a, b string) (string, string) {
	was, is := strings.Split(a, "\n"), strings.Split(b, "\n")
	for i := range max(len(was), len(is)) {
		switch {
		case i >= len(was):
			return "(nothing)", is[i]
		case i >= len(is):
			return was[i], "(nothing)"
		case was[i] != is[i]:
			return was[i], is[i]
		}
	}
	return "", ""
}

// Statement returns the statement of a name out of what Queue.SQL returned, with
// arguments for it by the names of its parameters.
func Statement(t testing.TB, text, name string, args map[string]any) (string, []any) {
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
