package mysql

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/settlemq/settle/internal/services"
	"github.com/settlemq/settle/internal/sqltest"
	"github.com/settlemq/settle/sqlq"
)

func TestMain(m *testing.M) { sqltest.Main(m, roles) }

const deadline = sqltest.Deadline

var ack, drop, retry, release, toDead = sqltest.Ack, sqltest.Drop, sqltest.Retry, sqltest.Release, sqltest.Bury

// both are the servers that each test runs on, unless it is about one of them.
var both = []services.Service{services.MySQL, services.MariaDB}

// eachServer runs a test on both, side by side: most of a test is waiting.
func eachServer(t *testing.T, test func(t *testing.T, s services.Service)) {
	for _, s := range both {
		t.Run(string(s), func(t *testing.T) {
			t.Parallel()
			test(t, s)
		})
	}
}

// home is a database that a test has to itself, on one server.
type home struct{ dsn, name string }

var homes atomic.Int64

// newHome makes a database, which goes with the test.
func newHome(t testing.TB, service services.Service) home {
	t.Helper()
	dsn := services.URL(t, service)
	h := home{name: fmt.Sprintf("settle_%d_%d", os.Getpid(), homes.Add(1))}
	at := strings.LastIndexByte(dsn, '/')
	h.dsn = dsn[:at+1] + h.name
	admin := func(text string) {
		db, err := sql.Open("mysql", dsn)
		require.NoError(t, err)
		defer db.Close()
		_, err = db.ExecContext(context.Background(), text)
		require.NoError(t, err, text)
	}
	admin("CREATE DATABASE " + h.name)
	t.Cleanup(func() { admin("DROP DATABASE " + h.name) })
	return h
}

// with adds a parameter to a DSN.
func with(dsn, name, value string) string {
	sep := "?"
	if strings.Contains(dsn, "?") {
		sep = "&"
	}
	return dsn + sep + name + "=" + value
}

// open opens a database at home.
func (h home) open(t testing.TB, o Options) *DB {
	t.Helper()
	return openDSN(t, h.dsn, o)
}

func openDSN(t testing.TB, dsn string, o Options) *DB {
	t.Helper()
	db, err := Open(dsn, o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return db
}

// fresh opens a database of its own on the server.
func fresh(t testing.TB, s services.Service, o Options) *DB {
	t.Helper()
	return newHome(t, s).open(t, o)
}

// newQueue makes the table and returns its queue.
func newQueue(t testing.TB, db *DB, table sqlq.Table) *Queue {
	t.Helper()
	q := db.Queue(table)
	require.NoError(t, q.CreateTable(context.Background()))
	return q
}

// eachForm runs a test on the recommended table in each form, on both servers.
func eachForm(t *testing.T, change func(*sqlq.Table), test func(t *testing.T, db *DB, q *Queue)) {
	eachHome(t, func(t *testing.T, _ home, db *DB, q *Queue) { test(t, db, q) }, change)
}

// eachHome is eachForm for a test that opens the database again.
func eachHome(t *testing.T, test func(t *testing.T, h home, db *DB, q *Queue), change ...func(*sqlq.Table)) {
	eachServer(t, func(t *testing.T, s services.Service) {
		for name, f := range forms() {
			t.Run(name, func(t *testing.T) {
				table := sqltest.In(sqlq.Standard("jobs", "main"), f)
				for _, c := range change {
					if c != nil {
						c(&table)
					}
				}
				h := newHome(t, s)
				db := h.open(t, Options{})
				test(t, h, db, newQueue(t, db, table))
			})
		}
	})
}
