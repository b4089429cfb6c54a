package postgres

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/settlemq/settle/internal/services"
	"github.com/settlemq/settle/internal/sqltest"
	"github.com/settlemq/settle/sqlq"
)

func TestMain(m *testing.M) {
	sqltest.Main(m, roles)
}

const deadline = sqltest.Deadline

var ack, drop, retry, release, toDead = sqltest.Ack, sqltest.Drop, sqltest.Retry, sqltest.Release, sqltest.Bury

// home is a schema that a test has to itself, on one server; its connections have the name of the schema.
type home struct {
	url    string // of connections that look there first
	schema string
}

var homes atomic.Int64

// newHome makes a schema, which goes with the test.
func newHome(t testing.TB, service services.Service) home {
	t.Helper()
	server := services.URL(t, service)
	h := home{schema: fmt.Sprintf("settle_%d_%d", os.Getpid(), homes.Add(1))}
	h.url = with(with(server, "search_path", h.schema), "application_name", h.schema)
	admin := func(sql string) {
		c, err := pgx.Connect(context.Background(), server)
		require.NoError(t, err)
		defer c.Close(context.Background())
		_, err = c.Exec(context.Background(), sql)
		require.NoError(t, err, sql)
	}
	admin("CREATE SCHEMA " + h.schema)
	t.Cleanup(func() { admin("SET client_min_messages = error; DROP SCHEMA " + h.schema + " CASCADE") })
	return h
}

// with sets a parameter of a URL.
func with(address, name, value string) string {
	u, err := url.Parse(address)
	if err != nil {
		panic(err)
	}
	q := u.Query()
	q.Set(name, value)
	u.RawQuery = q.Encode()
	return u.String()
}

// open opens a database at home.
func (h home) open(t testing.TB, o Options) *DB {
	t.Helper()
	return openURL(t, h.url, o)
}

func openURL(t testing.TB, url string, o Options) *DB {
	t.Helper()
	db, err := Open(url, o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return db
}

// fresh opens a database in a schema of its own.
func fresh(t testing.TB, o Options) *DB {
	t.Helper()
	return newHome(t, services.Postgres).open(t, o)
}

// newQueue makes the table and returns its queue.
func newQueue(t testing.TB, db *DB, table sqlq.Table) *Queue {
	t.Helper()
	q := db.Queue(table)
	require.NoError(t, q.CreateTable(context.Background()))
	return q
}

// forms are the three, on the table that this package recommends.
func forms() []sqlq.Form {
	return []sqlq.Form{sqlq.Lease{For: time.Second}, sqlq.RowLock{}, sqlq.AdvisoryLock{Key: "jobs-{id}"}}
}

// beside runs a test of a form beside others, unless it takes advisory locks: those are of the
// database, by names that all tests have.
func beside(t *testing.T, f sqlq.Form) {
	if _, advisory := f.(sqlq.AdvisoryLock); !advisory {
		t.Parallel()
	}
}

// eachForm runs a test on the recommended table in each form.
func eachForm(t *testing.T, change func(*sqlq.Table), test func(t *testing.T, db *DB, q *Queue)) {
	for _, f := range forms() {
		t.Run(strings.TrimPrefix(fmt.Sprintf("%T", f), "sqlq."), func(t *testing.T) {
			beside(t, f)
			inForm(t, f, change, test)
		})
	}
}

// inForm runs a test on the recommended table in one form.
func inForm(t *testing.T, f sqlq.Form, change func(*sqlq.Table), test func(t *testing.T, db *DB, q *Queue)) {
	t.Helper()
	table := sqltest.In(sqlq.Standard("jobs", "main"), f)
	if change != nil {
		change(&table)
	}
	db := fresh(t, Options{})
	test(t, db, newQueue(t, db, table))
}
