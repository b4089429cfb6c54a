package sqlite

import (
	"context"
	"database/sql"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/sqlq"
)

func TestMain(m *testing.M) {
	if role := os.Getenv(childRole); role != "" {
		child(role)
		return
	}
	if os.Getenv(everything) == "" {
		_ = flag.Set("rapid.checks", "20")
	}
	goleak.VerifyTestMain(m)
}

// everything is the variable that has the long tests run too.
const everything = "SETTLE_TEST_ALL"

// long skips a test that takes long unless everything is to run.
func long(t testing.TB, why string) {
	t.Helper()
	if os.Getenv(everything) == "" {
		t.Skipf("%s; set %s=1 to run it", why, everything)
	}
}

// deadline bounds what must happen; no test that passes waits for it.
const deadline = 30 * time.Second

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

// publish puts bodies into q.
func publish(t testing.TB, q *Queue, bodies ...string) {
	t.Helper()
	msgs := make([]settle.Message, len(bodies))
	for i, b := range bodies {
		msgs[i].Body = []byte(b)
	}
	require.NoError(t, q.Publish(t.Context(), msgs...))
}

// serve runs a handler on a source until the returned function is called or the test ends.
func serve(t testing.TB, register func(*settle.Runtime)) (stop func() error) {
	t.Helper()
	rt := &settle.Runtime{Logger: quiet, DrainTimeout: 5 * time.Second}
	register(rt)
	done := make(chan error, 1)
	ctx, cancel := context.WithCancel(context.Background())
	go func() { done <- rt.Run(ctx) }()
	var result error
	stopped := false
	stop = func() error {
		if !stopped {
			stopped = true
			cancel()
			result = <-done
		}
		return result
	}
	t.Cleanup(func() { _ = stop() })
	return stop
}

// execute runs SQL of the test's own.
func execute(t testing.TB, db *DB, query string, args ...any) {
	t.Helper()
	_, err := db.SQL().ExecContext(t.Context(), query, args...)
	require.NoError(t, err, query)
}

// one returns the single value of a query.
func one[T any](t testing.TB, db *DB, query string, args ...any) T {
	t.Helper()
	var v T
	require.NoError(t, db.SQL().QueryRowContext(context.Background(), query, args...).Scan(&v), query)
	return v
}

// eventually waits until a query returns the value.
func eventually[T comparable](t testing.TB, db *DB, want T, query string, args ...any) {
	t.Helper()
	var got T
	require.Eventually(t, func() bool {
		var v sql.Null[T]
		if err := db.SQL().QueryRow(query, args...).Scan(&v); err != nil {
			return false
		}
		got = v.V
		return got == want
	}, deadline, 2*time.Millisecond, "%s: want %v", query, fmt.Sprint(want))
}

// open opens a consumer for a test that drives it directly.
func open(t testing.TB, q settle.Source, r settle.Registration) settle.Consumer {
	t.Helper()
	c, err := q.Open(t.Context(), registration(r))
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), deadline)
		defer cancel()
		require.NoError(t, c.Close(ctx))
	})
	return c
}

// registration fills in what the runtime would.
func registration(r settle.Registration) settle.Registration {
	r.Workers, r.Prefetch, r.Batch = max(r.Workers, 1), max(r.Prefetch, 1), max(r.Batch, 1)
	if r.Logger == nil {
		r.Logger = quiet
	}
	if r.Notify == nil {
		r.Notify = func(settle.Notice) {}
	}
	return r
}

// receive takes up to n deliveries, and at least one.
func receive(t testing.TB, c settle.Consumer, n int) []*settle.Delivery {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	buf := make([]*settle.Delivery, n)
	got, err := c.Receive(ctx, buf)
	require.NoError(t, err)
	require.NotZero(t, got, "nothing came within %v", deadline)
	return buf[:got]
}

// nothing checks that there is nothing to receive now.
func nothing(t testing.TB, c settle.Consumer, why string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	n, _ := c.Receive(ctx, make([]*settle.Delivery, 8))
	require.Zero(t, n, why)
}

// settleOne settles one delivery and returns its error.
func settleOne(c settle.Consumer, d *settle.Delivery, v settle.Verdict) error {
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	batch := []settle.Settlement{{Delivery: d, Verdict: v}}
	c.Settle(ctx, batch)
	return batch[0].Err
}

var (
	ack     = settle.Verdict{Action: settle.ActionAck}
	drop    = settle.Verdict{Action: settle.ActionDrop}
	retry   = settle.Verdict{Action: settle.ActionRetry}
	release = settle.Verdict{Action: settle.ActionRelease}
	bury    = settle.Verdict{Action: settle.ActionDeadLetter}
)

func bodies(ds []*settle.Delivery) []string {
	all := make([]string, len(ds))
	for i, d := range ds {
		all[i] = string(d.Body)
	}
	return all
}
