package sqlite

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/settlemq/settle/internal/sqltest"
	"github.com/settlemq/settle/sqlq"
)

func TestMain(m *testing.M) {
	if os.Getenv("SETTLE_TEST_ALL") != "1" {
		_ = flag.Set("rapid.checks", "20")
	}
	sqltest.Main(m, roles)
}

const deadline = sqltest.Deadline

var ack, drop, retry, release, bury = sqltest.Ack, sqltest.Drop, sqltest.Retry, sqltest.Release, sqltest.Bury

// openFile opens a fresh database for a test.
func openFile(t testing.TB, o Options) *DB {
	t.Helper()
	return openPath(t, filepath.Join(t.TempDir(), "q.db"), o)
}

func openPath(t testing.TB, path string, o Options) *DB {
	t.Helper()
	db, err := Open(path, o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return db
}

// newQueue makes the table and returns its queue.
func newQueue(t testing.TB, db *DB, table sqlq.Table) *Queue {
	t.Helper()
	q := db.Queue(table)
	require.NoError(t, q.CreateTable(t.Context()))
	return q
}
