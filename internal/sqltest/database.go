package sqltest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/sqlq"
)

// This file runs SQL of a test's own. It names parameters as the database does.

// Exec runs a statement.
func Exec(t testing.TB, db *sqlq.Database, sql string, args ...any) {
	t.Helper()
	_, err := db.DB.Exec(context.Background(), sql, args...)
	require.NoError(t, err, sql)
}

// One returns the single value of a query.
func One[T any](t testing.TB, db *sqlq.Database, sql string, args ...any) T {
	t.Helper()
	var v T
	require.NoError(t, scan(db, &v, sql, args), sql)
	return v
}

// Eventually waits until a query returns the value.
func Eventually[T comparable](t testing.TB, db *sqlq.Database, want T, sql string, args ...any) {
	t.Helper()
	var got *T // NULL is no value that is waited for
	require.Eventually(t, func() bool {
		return scan(db, &got, sql, args) == nil && got != nil && *got == want
	}, Deadline, 5*time.Millisecond, "%s: want %v", sql, want)
}

var errNoRow = errors.New("there is no row")

func scan(db *sqlq.Database, into any, sql string, args []any) error {
	rows, err := db.DB.Query(context.Background(), sql, args...)
	if err != nil {
		return err
	}
	if rows.Next() {
		err = rows.Scan(into)
	} else {
		err = errNoRow
	}
	return errors.Join(rows.Err(), err, rows.Close())
}

// Publish puts bodies into a queue.
func Publish(t testing.TB, q settle.Publisher, bodies ...string) {
	t.Helper()
	msgs := make([]settle.Message, len(bodies))
	for i, b := range bodies {
		msgs[i].Body = []byte(b)
	}
	require.NoError(t, q.Publish(context.Background(), msgs...))
}

// Create makes a queue's table.
func Create(t testing.TB, db *sqlq.Database, table sqlq.Table) *sqlq.Queue {
	t.Helper()
	q := sqlq.NewQueue(db, table)
	require.NoError(t, q.CreateTable(context.Background()))
	return q
}

// In returns the table in another form.
func In(t sqlq.Table, f sqlq.Form) sqlq.Table {
	t.Form = f
	if _, lease := f.(sqlq.Lease); !lease {
		t.LockedUntil = ""
	}
	if _, advisory := f.(sqlq.AdvisoryLock); advisory {
		t.Form = sqlq.AdvisoryLock{Key: "jobs-{" + t.ID + "}"}
	}
	return t
}
