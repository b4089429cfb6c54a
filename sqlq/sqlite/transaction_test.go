package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/internal/sqltest"
)

// ledger is a queue whose handlers write to a table beside it.
func ledger(t testing.TB, o Options, lease time.Duration) (*DB, *Queue) {
	db := openFile(t, o)
	q := newQueue(t, db, leased(lease))
	sqltest.Exec(t, &db.db, "CREATE TABLE ledger (entry TEXT)")
	return db, q
}

type txHandler = func(context.Context, *sql.Tx, *settle.Delivery) settle.Outcome

// write is a handler that writes its body and returns what outcome says.
func write(outcome func(d *settle.Delivery) settle.Outcome) txHandler {
	return func(ctx context.Context, tx *sql.Tx, d *settle.Delivery) settle.Outcome {
		if _, err := tx.ExecContext(ctx, "INSERT INTO ledger VALUES (?)", fmt.Sprintf("%s/%d", d.Body, d.Attempt)); err != nil {
			return settle.Retry(err)
		}
		return outcome(d)
	}
}

func handleTx(t testing.TB, q *Queue, h txHandler, o settle.Options) (stop func() error) {
	if o.Timeout == 0 {
		o.Timeout = time.Second
	}
	return sqltest.Serve(t, func(rt *settle.Runtime) { HandleTx(rt, q, h, o) })
}

const entries = "SELECT coalesce(group_concat(entry), '') FROM ledger"

// An ack commits what its handler wrote together with the settlement; everything
// else undoes it, and still settles.
func TestTransactionalOutcomes(t *testing.T) {
	boom := errors.New("boom")
	for _, c := range []struct {
		name    string
		outcome func(d *settle.Delivery) settle.Outcome
		entries string
		jobs    string
	}{
		{"ack", func(*settle.Delivery) settle.Outcome { return settle.Ack() }, "a/1", ""},
		{"drop", func(*settle.Delivery) settle.Outcome { return settle.Drop(boom) }, "", ""},
		{"dead-letter", func(*settle.Delivery) settle.Outcome { return settle.DeadLetter(boom) }, "", "main.dead 2 boom"},
		{"retry, then ack", func(d *settle.Delivery) settle.Outcome {
			if d.Attempt == 1 {
				return settle.Retry(boom)
			}
			return settle.Ack()
		}, "a/2", ""},
		{"a delayed retry, then ack", func(d *settle.Delivery) settle.Outcome {
			if d.Attempt == 1 {
				return settle.RetryAfter(10*time.Millisecond, boom)
			}
			return settle.Ack()
		}, "a/2", ""},
		{"retries up to the cap", func(*settle.Delivery) settle.Outcome { return settle.Retry(boom) }, "", "main.dead 4 boom"},
		{"a panic, then ack", func(d *settle.Delivery) settle.Outcome {
			if d.Attempt == 1 {
				panic("boom")
			}
			return settle.Ack()
		}, "a/2", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			db, q := ledger(t, Options{}, 10*time.Second)
			sqltest.Publish(t, q, "a")
			stop := handleTx(t, q, write(c.outcome), settle.Options{MaxAttempts: 3, DeadLetter: "main.dead"})
			sqltest.Eventually(t, &db.db, 0, "SELECT count(*) FROM jobs WHERE queue = 'main'")
			require.NoError(t, stop())
			assert.Equal(t, c.entries, sqltest.One[string](t, &db.db, entries))
			assert.Equal(t, c.jobs, sqltest.One[string](t, &db.db, "SELECT coalesce(group_concat(queue || ' ' || attempt || ' ' || cause), '') FROM jobs"))
		})
	}
}

// txConsumer opens a transactional consumer that the test drives itself.
func txConsumer(t testing.TB, q *Queue, r settle.Registration) settle.Consumer {
	t.Helper()
	return sqltest.Open(t, txSource(q), r)
}

// txSource is the source that HandleTx registers.
func txSource(q *Queue) settle.Source {
	var source settle.Source
	source, _ = transactional(q, func(context.Context, *sql.Tx, *settle.Delivery) settle.Outcome { return settle.Ack() })
	return source
}

// A handler that outlives its lease is undone, though nobody can have taken the
// row while its transaction was open.
func TestAHandlerThatOutlivesItsLeaseIsUndone(t *testing.T) {
	db, q := ledger(t, Options{}, 200*time.Millisecond)
	sqltest.Publish(t, q, "a")
	done := make(chan error, 10)
	observer := observerFunc(func(s settle.Settled) { done <- s.Err })
	rt := &settle.Runtime{Logger: sqltest.Quiet, Observer: observer}
	HandleTx(rt, q, write(func(d *settle.Delivery) settle.Outcome {
		if d.Attempt == 1 {
			time.Sleep(300 * time.Millisecond) // whatever its context says
		}
		return settle.Ack()
	}), settle.Options{Timeout: 50 * time.Millisecond})
	ctx, cancel := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	go func() { ran <- rt.Run(ctx) }()
	require.ErrorIs(t, <-done, settle.ErrLeaseLost)
	require.NoError(t, <-done, "it comes again")
	cancel()
	require.NoError(t, <-ran)
	assert.Equal(t, "a/2", sqltest.One[string](t, &db.db, entries))
	assert.Zero(t, sqltest.One[int](t, &db.db, "SELECT count(*) FROM jobs"))
}

type observerFunc func(settle.Settled)

func (f observerFunc) Received(ctx context.Context, _ *settle.Delivery) context.Context { return ctx }
func (f observerFunc) Settled(_ context.Context, s settle.Settled)                      { f(s) }
func (f observerFunc) Noticed(settle.Notice)                                            {}

// A commit that fails undoes what the handler wrote, so the message must come
// again: it is not acknowledged by a second try.
func TestACommitThatFailsBringsTheMessageAgain(t *testing.T) {
	db, q := ledger(t, Options{}, time.Minute)
	sqltest.Exec(t, &db.db, "CREATE TABLE parent (id INTEGER PRIMARY KEY)")
	sqltest.Exec(t, &db.db, "CREATE TABLE child (id INTEGER REFERENCES parent DEFERRABLE INITIALLY DEFERRED)")
	sqltest.Publish(t, q, "a")
	results := make(chan error, 10)
	rt := &settle.Runtime{Logger: sqltest.Quiet, Observer: observerFunc(func(s settle.Settled) { results <- s.Err })}
	HandleTx(rt, q, func(ctx context.Context, tx *sql.Tx, d *settle.Delivery) settle.Outcome {
		if d.Attempt == 1 { // the foreign key is looked at when the transaction commits
			for _, query := range []string{"PRAGMA defer_foreign_keys = ON", "INSERT INTO child VALUES (99)"} {
				if _, err := tx.ExecContext(ctx, query); err != nil {
					return settle.DeadLetter(err)
				}
			}
		}
		return write(func(*settle.Delivery) settle.Outcome { return settle.Ack() })(ctx, tx, d)
	}, settle.Options{Timeout: time.Second})
	pool := db.pool
	_, err := pool.Exec("PRAGMA foreign_keys = ON")
	require.NoError(t, err)
	pool.SetMaxOpenConns(1) // the one connection that checks foreign keys
	ctx, cancel := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	go func() { ran <- rt.Run(ctx) }()
	err = <-results
	require.ErrorContains(t, err, "comes again")
	require.True(t, settle.IsPermanent(err), "the runtime must not ask for this ack once more: %v", err)
	require.NoError(t, <-results)
	cancel()
	require.NoError(t, <-ran)
	assert.Equal(t, "a/2", sqltest.One[string](t, &db.db, entries))
	assert.Zero(t, sqltest.One[int](t, &db.db, "SELECT count(*) FROM child"))
}

// A handler that ends the transaction itself is settled as it said, on its own.
func TestAHandlerThatEndsItsTransactionItself(t *testing.T) {
	for _, end := range []string{"commit", "rollback"} {
		t.Run(end, func(t *testing.T) {
			db, q := ledger(t, Options{}, time.Minute)
			sqltest.Publish(t, q, "a")
			stop := handleTx(t, q, func(ctx context.Context, tx *sql.Tx, d *settle.Delivery) settle.Outcome {
				out := write(func(*settle.Delivery) settle.Outcome { return settle.Ack() })(ctx, tx, d)
				if end == "commit" {
					_ = tx.Commit()
				} else {
					_ = tx.Rollback()
				}
				return out
			}, settle.Options{})
			sqltest.Eventually(t, &db.db, 0, "SELECT count(*) FROM jobs")
			require.NoError(t, stop())
			assert.Equal(t, map[string]string{"commit": "a/1", "rollback": ""}[end], sqltest.One[string](t, &db.db, entries))
		})
	}
}

func TestTransactionalRegistrationsThatAreRefused(t *testing.T) {
	_, q := ledger(t, Options{}, time.Second)
	for _, c := range []struct {
		r       settle.Registration
		setting string
	}{
		{settle.Registration{}, "Timeout"},
		{settle.Registration{Timeout: 500 * time.Millisecond}, "Timeout"},
		{settle.Registration{Timeout: time.Hour}, "Timeout"},
		{settle.Registration{Timeout: 100 * time.Millisecond, Workers: 2}, "Workers"},
		{settle.Registration{Timeout: 100 * time.Millisecond, Batch: 2}, "BatchSize"},
	} {
		assert.Equal(t, c.setting, sqltest.Refusal(t, txSource(q), c.r).Setting)
	}
	sqltest.Open(t, txSource(q), settle.Registration{Timeout: 499 * time.Millisecond})

	var rt settle.Runtime
	HandleTx(&rt, q, nil, settle.Options{Timeout: 100 * time.Millisecond})
	var config *settle.ConfigError
	require.ErrorAs(t, rt.Run(t.Context()), &config)
	assert.Equal(t, "Handler", config.Setting)
}

// A settlement that failed and is asked for again while another handler has its transaction does not
// wait for that, which the runtime could then never settle: it says so and is asked again.
func TestASettlementBesideAnOpenTransactionDoesNotWait(t *testing.T) {
	db, q := ledger(t, Options{}, time.Minute)
	sqltest.Exec(t, &db.db, "CREATE TABLE broken (yes INTEGER); INSERT INTO broken VALUES (1)")
	sqltest.Exec(t, &db.db, "CREATE TRIGGER fail BEFORE UPDATE OF cause ON jobs WHEN (SELECT yes FROM broken) BEGIN SELECT RAISE(ABORT, 'broken for now'); END")
	sqltest.Publish(t, q, "a", "b")
	c := txConsumer(t, q, settle.Registration{Timeout: time.Second})
	assert.Equal(t, 1, c.Traits().Prefetch, "one at a time")
	a := sqltest.Receive(t, c, 1)[0]
	require.ErrorContains(t, sqltest.Settle(c, a, retry), "broken for now")
	b := sqltest.Receive(t, c, 1)[0]
	require.ErrorContains(t, sqltest.Settle(c, a, retry), "has its transaction open")
	require.NoError(t, sqltest.Settle(c, b, ack))
	sqltest.Exec(t, &db.db, "UPDATE broken SET yes = 0")
	require.NoError(t, sqltest.Settle(c, a, retry))
	assert.Equal(t, "a 2 free", sqltest.One[string](t, &db.db, "SELECT payload || ' ' || attempt || iif(locked_until IS NULL, ' free', ' held') FROM jobs"))
}

// At the drain deadline a handler that goes on loses its transaction, and with it
// what it wrote; the row comes again at no cost.
func TestADrainTakesTheTransactionAway(t *testing.T) {
	db, q := ledger(t, Options{}, time.Minute)
	sqltest.Publish(t, q, "a")
	started, goOn, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	rt := &settle.Runtime{Logger: sqltest.Quiet, DrainTimeout: 50 * time.Millisecond}
	HandleTx(rt, q, func(_ context.Context, tx *sql.Tx, d *settle.Delivery) settle.Outcome {
		_, err := tx.Exec("INSERT INTO ledger VALUES ('early')")
		assert.NoError(t, err)
		close(started)
		<-goOn
		_, err = tx.Exec("INSERT INTO ledger VALUES ('late')")
		ended <- err
		return settle.Ack()
	}, settle.Options{Timeout: 10 * time.Second})
	ctx, cancel := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	go func() { ran <- rt.Run(ctx) }()
	<-started
	cancel()
	var drain *settle.DrainError
	require.ErrorAs(t, <-ran, &drain)
	close(goOn)
	require.ErrorIs(t, <-ended, sql.ErrTxDone)
	assert.Empty(t, sqltest.One[string](t, &db.db, entries))
	assert.Equal(t, "1 free", sqltest.One[string](t, &db.db, "SELECT attempt || iif(locked_until IS NULL, ' free', ' held') FROM jobs"))
}

// Publishing in the handler's transaction is part of it.
func TestPublishInTheHandlersTransaction(t *testing.T) {
	db, q := ledger(t, Options{}, time.Minute)
	sqltest.Publish(t, q, "a")
	stop := handleTx(t, q, func(ctx context.Context, tx *sql.Tx, d *settle.Delivery) settle.Outcome {
		if err := q.PublishTx(ctx, tx, settle.Message{Body: fmt.Appendf(nil, "of attempt %d", d.Attempt), To: "next"}); err != nil {
			return settle.DeadLetter(err)
		}
		if d.Attempt == 1 {
			return settle.Retry(nil)
		}
		return settle.Ack()
	}, settle.Options{})
	sqltest.Eventually(t, &db.db, 0, "SELECT count(*) FROM jobs WHERE queue = 'main'")
	require.NoError(t, stop())
	assert.Equal(t, "of attempt 2", sqltest.One[string](t, &db.db, "SELECT group_concat(payload) FROM jobs WHERE queue = 'next'"))
}

// A past cap delivery has no handler, and its transaction does not stay open.
func TestPastTheCapWithTransactions(t *testing.T) {
	db, q := ledger(t, Options{}, time.Minute)
	sqltest.Publish(t, q, "a", "b")
	sqltest.Exec(t, &db.db, "UPDATE jobs SET attempt = 9 WHERE payload = 'a'")
	stop := handleTx(t, q, write(func(*settle.Delivery) settle.Outcome { return settle.Ack() }), settle.Options{MaxAttempts: 3, DeadLetter: "main.dead"})
	sqltest.Eventually(t, &db.db, 0, "SELECT count(*) FROM jobs WHERE queue = 'main'")
	require.NoError(t, stop())
	assert.Equal(t, "b/1", sqltest.One[string](t, &db.db, entries))
	assert.Equal(t, "a", sqltest.One[string](t, &db.db, "SELECT group_concat(payload) FROM jobs"))
}

// A wrapped database whose transactions begin as readers: the handler's takes the right to
// write before it reads anything, so that it cannot fail by that later.
func TestTransactionsOfAWrappedDatabase(t *testing.T) {
	inner := openFile(t, Options{BusyTimeout: 20 * time.Millisecond})
	newQueue(t, inner, leased(time.Minute))
	pool, err := sql.Open("sqlite", "file:"+sqltest.One[string](t, &inner.db, "SELECT file FROM pragma_database_list")+"?_pragma=busy_timeout(1000)")
	require.NoError(t, err)
	defer pool.Close()
	db, err := Wrap(pool, Options{})
	require.NoError(t, err)
	q := db.Queue(leased(time.Minute))
	sqltest.Publish(t, q, "a")
	c := txConsumer(t, q, settle.Registration{Timeout: time.Second})
	d := sqltest.Receive(t, c, 1)[0]
	_, err = inner.db.DB.Exec(context.Background(), "DELETE FROM jobs WHERE 0") // through a pool that waits 100 ms at a time
	require.Error(t, err, "nobody else may write now")
	require.NoError(t, sqltest.Settle(c, d, ack))
}
