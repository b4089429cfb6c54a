package postgres

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/internal/sqltest"
	"github.com/settlemq/settle/sqlq"
)

// This file is about handlers that do to their transaction what they should not: each comes to its end all the same.

// A handler that ends the transaction by SQL has its message again: what it wrote and its
// settlement were not one.
func TestAHandlerThatEndsItsTransactionBySQL(t *testing.T) {
	eachLedger(t, func(t *testing.T, db *DB, q *Queue) {
		sqltest.Publish(t, q, "a")
		stop := handleTx(t, q, func(ctx context.Context, tx pgx.Tx, d *settle.Delivery) settle.Outcome {
			out := write(ackIt)(ctx, tx, d)
			if d.Attempt == 1 {
				_, err := tx.Exec(ctx, "COMMIT")
				assert.NoError(t, err)
			}
			return out
		}, settle.Options{Workers: 1}) // with its COMMIT a lock is gone, and another worker could be there before the attempt is counted
		sqltest.Eventually(t, &db.db, 0, sqltest.Queued)
		require.NoError(t, stop())
		assert.Equal(t, "a/1 a/2", sqltest.One[string](t, &db.db, entries))
	})
}

// On a pool of the caller's a timeout may cost the connection; the attempt counts all the
// same. A delivery whose lock is gone with that cannot be buried: the next one is, past the cap.
func TestATimeoutThatCostsTheConnectionCounts(t *testing.T) {
	h := newHome(t, "postgres")
	pool, err := pgxpool.New(t.Context(), with(h.url, "pool_max_conns", "8"))
	require.NoError(t, err)
	defer pool.Close()
	db, err := Wrap(pool, Options{})
	require.NoError(t, err)
	defer db.Close()
	for i, f := range forms() {
		table := sqltest.In(sqlq.Standard(fmt.Sprint("jobs", i), "main"), f)
		q := newQueue(t, db, table)
		sqltest.Publish(t, q, "a")
		stop := handleTx(t, q, func(ctx context.Context, tx pgx.Tx, d *settle.Delivery) settle.Outcome {
			_, err := tx.Exec(ctx, "SELECT pg_sleep(60)")
			return settle.Retry(err)
		}, settle.Options{Timeout: 100 * time.Millisecond, MaxAttempts: 3, DeadLetter: "main.dead"})
		sqltest.Eventually(t, &db.db, "main.dead", "SELECT queue FROM "+table.Name)
		require.NoError(t, stop())
		got := sqltest.One[int](t, &db.db, "SELECT attempt FROM "+table.Name)
		switch f.(type) {
		case sqlq.Lease:
			assert.Equal(t, 4, got)
		case sqlq.AdvisoryLock:
			assert.Equal(t, 5, got)
		default: // another worker may have taken the row before its attempt was counted
			assert.GreaterOrEqual(t, got, 5)
			assert.LessOrEqual(t, got, 20)
		}
	}
}

// A handler whose statement fails has its attempt counted by the settlement, on whatever
// connection, so that it is called as often as its cap says.
func TestAStatementThatFailsIsCountedOnce(t *testing.T) {
	eachLedger(t, func(t *testing.T, db *DB, q *Queue) {
		const rows = 20
		sqltest.Publish(t, q, make([]string, rows)...)
		var calls atomic.Int64
		var failed atomic.Value
		rt := &settle.Runtime{Logger: sqltest.Quiet, Observer: observerFunc(func(s settle.Settled) {
			if s.Err != nil {
				failed.Store(s.Err)
			}
		})}
		HandleTx(rt, q, func(ctx context.Context, tx pgx.Tx, d *settle.Delivery) settle.Outcome {
			calls.Add(1)
			_, err := tx.Exec(ctx, "SELECT 1/0")
			if d.Attempt == 2 {
				return settle.RetryAfter(time.Millisecond, err)
			}
			return settle.Retry(err)
		}, settle.Options{Workers: 4, MaxAttempts: 3, DeadLetter: "main.dead"})
		ctx, cancel := context.WithCancel(t.Context())
		ran := make(chan error, 1)
		go func() { ran <- rt.Run(ctx) }()
		sqltest.Eventually(t, &db.db, 0, sqltest.Queued)
		cancel()
		require.NoError(t, <-ran)
		assert.Equal(t, int64(3*rows), calls.Load())
		assert.Nil(t, failed.Load(), "a settlement failed")
		assert.Equal(t, rows, sqltest.One[int](t, &db.db, "SELECT count(*) FROM jobs WHERE queue = 'main.dead' AND attempt = 4"))
	})
}

// A handler that acknowledges although a statement of its failed comes to its end as well.
func TestAnAckBehindAFailedStatementIsCountedOnce(t *testing.T) {
	eachLedger(t, func(t *testing.T, db *DB, q *Queue) {
		const rows = 10
		sqltest.Publish(t, q, make([]string, rows)...)
		var calls atomic.Int64
		stop := handleTx(t, q, func(ctx context.Context, tx pgx.Tx, _ *settle.Delivery) settle.Outcome {
			calls.Add(1)
			_, _ = tx.Exec(ctx, "SELECT 1/0")
			return settle.Ack()
		}, settle.Options{Workers: 4, MaxAttempts: 3, DeadLetter: "main.dead"})
		sqltest.Eventually(t, &db.db, 0, sqltest.Queued)
		require.NoError(t, stop())
		assert.Equal(t, int64(3*rows), calls.Load())
	})
}

// A handler that takes its own row away and acknowledges it has settled nothing. What it wrote
// is undone, and it comes to its end as any that fails.
func TestAHandlerThatDeletesItsOwnRowEnds(t *testing.T) {
	eachLedger(t, func(t *testing.T, db *DB, q *Queue) {
		sqltest.Publish(t, q, "a")
		var calls atomic.Int64
		stop := handleTx(t, q, func(ctx context.Context, tx pgx.Tx, d *settle.Delivery) settle.Outcome {
			calls.Add(1)
			if _, err := tx.Exec(ctx, "DELETE FROM jobs"); err != nil {
				return settle.Retry(err)
			}
			return write(ackIt)(ctx, tx, d)
		}, settle.Options{Workers: 2, MaxAttempts: 3, DeadLetter: "main.dead"})
		sqltest.Eventually(t, &db.db, "main.dead", "SELECT queue FROM jobs")
		require.NoError(t, stop())
		assert.Empty(t, sqltest.One[string](t, &db.db, entries))
		assert.EqualValues(t, 3, calls.Load())
	})
}

// A handler that never returns keeps neither its connection nor the end of the database.
func TestAHandlerThatNeverReturnsKeepsNothing(t *testing.T) {
	eachForm(t, nil, func(t *testing.T, db *DB, q *Queue) {
		theirs, err := Open(db.Pool().Config().ConnString(), Options{})
		require.NoError(t, err)
		sqltest.Publish(t, q, "a")
		started, goOn, returned := make(chan struct{}), make(chan struct{}), make(chan struct{})
		rt := &settle.Runtime{Logger: sqltest.Quiet, DrainTimeout: 50 * time.Millisecond}
		HandleTx(rt, theirs.Queue(q.Table()), func(context.Context, pgx.Tx, *settle.Delivery) settle.Outcome {
			defer close(returned)
			close(started)
			<-goOn
			return settle.Ack()
		}, settle.Options{})
		ctx, cancel := context.WithCancel(t.Context())
		ran := make(chan error, 1)
		go func() { ran <- rt.Run(ctx) }()
		<-started
		cancel()
		require.Error(t, <-ran)
		closed := make(chan error, 1)
		go func() { closed <- theirs.Close() }()
		select {
		case err := <-closed:
			assert.NoError(t, err)
		case <-time.After(deadline):
			t.Error("Close waits for the handler")
		}
		close(goOn)
		<-returned
		c := sqltest.Open(t, q, settle.Registration{})
		require.Equal(t, []string{"a"}, sqltest.Bodies(sqltest.Receive(t, c, 1)))
	})
}
