package postgres

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/internal/services"
	"github.com/settlemq/settle/sqlq"
)

func TestMain(m *testing.M) {
	if role := os.Getenv(childRole); role != "" {
		child(role)
		return
	}
	goleak.VerifyTestMain(m)
}

// deadline bounds what must happen; no test that passes waits for it.
const deadline = 30 * time.Second

var quiet = slog.New(slog.DiscardHandler)

// home is a schema that a test has to itself, on one server.
type home struct {
	url    string // of connections that look there first
	schema string
}

var homes atomic.Int64

// newHome makes a schema, which goes with the test.
func newHome(t testing.TB, service services.Service) home {
	t.Helper()
	url := services.URL(t, service)
	h := home{schema: fmt.Sprintf("settle_%d_%d", os.Getpid(), homes.Add(1))}
	h.url = with(url, "search_path", h.schema)
	admin := func(sql string) {
		c, err := pgx.Connect(context.Background(), url)
		require.NoError(t, err)
		defer c.Close(context.Background())
		_, err = c.Exec(context.Background(), sql)
		require.NoError(t, err, sql)
	}
	admin("CREATE SCHEMA " + h.schema)
	t.Cleanup(func() { admin("SET client_min_messages = error; DROP SCHEMA " + h.schema + " CASCADE") })
	return h
}

// with adds a parameter to a URL.
func with(url, name, value string) string {
	sep := "?"
	if strings.Contains(url, "?") {
		sep = "&"
	}
	return url + sep + name + "=" + value
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

// publish puts bodies into q.
func publish(t testing.TB, q *Queue, bodies ...string) {
	t.Helper()
	msgs := make([]settle.Message, len(bodies))
	for i, b := range bodies {
		msgs[i].Body = []byte(b)
	}
	require.NoError(t, q.Publish(t.Context(), msgs...))
}

// serve runs what register registers until the returned function is called or the test ends.
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

// exec runs SQL of the test's own.
func exec(t testing.TB, db *DB, sql string, args ...any) {
	t.Helper()
	_, err := db.Pool().Exec(context.Background(), sql, args...)
	require.NoError(t, err, sql)
}

// one returns the single value of a query.
func one[T any](t testing.TB, db *DB, sql string, args ...any) T {
	t.Helper()
	var v T
	require.NoError(t, db.Pool().QueryRow(context.Background(), sql, args...).Scan(&v), sql)
	return v
}

// eventually waits until a query returns the value.
func eventually[T comparable](t testing.TB, db *DB, want T, sql string, args ...any) {
	t.Helper()
	var got T
	require.Eventually(t, func() bool {
		err := db.Pool().QueryRow(context.Background(), sql, args...).Scan(&got)
		return err == nil && got == want
	}, deadline, 5*time.Millisecond, "%s: want %v", sql, want)
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
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	n, _ := c.Receive(ctx, make([]*settle.Delivery, 8))
	require.Zero(t, n, why)
}

// settleOne settles one delivery and returns its error.
func settleOne(c settle.Consumer, d *settle.Delivery, v settle.Verdict) error {
	return settleAll(c, v, d)[0]
}

// settleAll settles deliveries in one call and returns their errors.
func settleAll(c settle.Consumer, v settle.Verdict, ds ...*settle.Delivery) []error {
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	batch := make([]settle.Settlement, len(ds))
	for i, d := range ds {
		batch[i] = settle.Settlement{Delivery: d, Verdict: v}
	}
	c.Settle(ctx, batch)
	errs := make([]error, len(ds))
	for i := range batch {
		errs[i] = batch[i].Err
	}
	return errs
}

var (
	ack     = settle.Verdict{Action: settle.ActionAck}
	drop    = settle.Verdict{Action: settle.ActionDrop}
	retry   = settle.Verdict{Action: settle.ActionRetry}
	release = settle.Verdict{Action: settle.ActionRelease}
	toDead  = settle.Verdict{Action: settle.ActionDeadLetter}
)

func bodies(ds []*settle.Delivery) []string {
	all := make([]string, len(ds))
	for i, d := range ds {
		all[i] = string(d.Body)
	}
	return all
}
