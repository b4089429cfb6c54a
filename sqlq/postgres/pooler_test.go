package postgres

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/internal/services"
	"github.com/settlemq/settle/internal/sqltest"
	"github.com/settlemq/settle/sqlq"
)

// behindPooler opens a database behind PgBouncer, which does not let search_path through, and returns
// a table in a schema of the test's own.
func behindPooler(t *testing.T, sessions bool, f sqlq.Form) (*DB, sqlq.Table) {
	t.Helper()
	url := services.URL(t, services.PgBouncer)
	if sessions {
		url = strings.Replace(url, "/settle?", "/sessions?", 1)
	}
	db := openURL(t, url, Options{MaxConns: 20})
	table := sqltest.In(sqlq.Standard("jobs", "main"), f)
	table.Schema = fmt.Sprintf("settle_%d", time.Now().UnixNano())
	sqltest.Exec(t, &db.db, "CREATE SCHEMA "+table.Schema)
	t.Cleanup(func() { sqltest.Exec(t, &db.db, "DROP SCHEMA "+table.Schema+" CASCADE") })
	return db, table
}

// Leases and row locks work behind a pooler of transactions: neither outlives one on the server.
func TestBehindAPoolerOfTransactions(t *testing.T) {
	for _, f := range []sqlq.Form{sqlq.Lease{For: time.Second}, sqlq.RowLock{}} {
		t.Run(fmt.Sprintf("%T", f), func(t *testing.T) {
			db, table := behindPooler(t, false, f)
			q := newQueue(t, db, table)
			sqltest.Publish(t, q, strings.Split(strings.Repeat("x", 200), "")...)
			stop := sqltest.Serve(t, func(rt *settle.Runtime) {
				rt.Handle(q, func(_ context.Context, d *settle.Delivery) settle.Outcome {
					if d.Attempt == 1 {
						return settle.Retry(nil)
					}
					return settle.Ack()
				}, settle.Options{Workers: 8})
			})
			sqltest.Eventually(t, &db.db, 0, "SELECT count(*) FROM "+table.Schema+".jobs")
			require.NoError(t, stop())
		})
	}
}

// The advisory locks of a session would stay with a connection that the pooler gives to others.
func TestAdvisoryLocksBehindAPooler(t *testing.T) {
	db, table := behindPooler(t, false, sqlq.AdvisoryLock{})
	q := newQueue(t, db, table)
	e := sqltest.Refusal(t, q, settle.Registration{})
	assert.Equal(t, "AdvisoryLock", e.Setting)
	assert.ErrorContains(t, e, "pooler")

	db, table = behindPooler(t, true, sqlq.AdvisoryLock{})
	q = newQueue(t, db, table)
	sqltest.Publish(t, q, "a", "b")
	c := sqltest.Open(t, q, settle.Registration{Workers: 2})
	assert.Equal(t, []string{"a", "b"}, sqltest.Drain(t, c, 2), "one of sessions is as good as the server")
}
