package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/internal/sqltest"
)

// This file is about handlers' transactions that end in other ways than by a
// settlement: rolled back by SQLite itself, too long, or in each other's way.

// SQLite rolls the whole transaction back when a writing statement is
// interrupted, and where a conflict says so. A handler that bears such an error
// and acknowledges must not be acknowledged without what it wrote before.
func TestATransactionThatSQLiteEndedSettlesNothing(t *testing.T) {
	for name, fail := range map[string]func(context.Context, *sql.Tx) error{
		"an interrupted statement": func(ctx context.Context, tx *sql.Tx) error {
			short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
			defer cancel()
			_, err := tx.ExecContext(short, "INSERT INTO ledger WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT 'more' FROM n LIMIT 100000000")
			return err
		},
		"a conflict that rolls back": func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, "INSERT OR ROLLBACK INTO seen VALUES ('x')")
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			db, q := ledger(t, Options{}, time.Minute)
			sqltest.Exec(t, &db.db, "CREATE TABLE seen (id TEXT PRIMARY KEY); INSERT INTO seen VALUES ('x')")
			sqltest.Publish(t, q, "a")
			stop := handleTx(t, q, func(ctx context.Context, tx *sql.Tx, d *settle.Delivery) settle.Outcome {
				out := write(func(*settle.Delivery) settle.Outcome { return settle.Ack() })(ctx, tx, d)
				if d.Attempt == 1 {
					assert.Error(t, fail(ctx, tx))
				}
				return out
			}, settle.Options{Timeout: 5 * time.Second})
			sqltest.Eventually(t, &db.db, 0, "SELECT count(*) FROM jobs")
			require.NoError(t, stop())
			assert.Equal(t, "a/2", sqltest.One[string](t, &db.db, entries), "it is acknowledged with what its handler wrote")
		})
	}
}

// Queues with transactions on one file wait for each other's handlers. That
// costs none of them its lease: the time of a row counts from its own transaction.
func TestTransactionsOfSeveralQueuesWaitForEachOther(t *testing.T) {
	const queues = 6
	db := openFile(t, Options{})
	var mu sync.Mutex
	var failed []error
	rt := &settle.Runtime{Logger: sqltest.Quiet, Observer: observerFunc(func(s settle.Settled) {
		mu.Lock()
		defer mu.Unlock()
		if s.Err != nil {
			failed = append(failed, s.Err)
		}
	})}
	for i := range queues {
		table := leased(1200 * time.Millisecond) // less than the others' handlers take together
		table.GroupValue = fmt.Sprint("queue", i)
		q := newQueue(t, db, table)
		sqltest.Publish(t, q, "a")
		HandleTx(rt, q, func(_ context.Context, _ *sql.Tx, d *settle.Delivery) settle.Outcome {
			time.Sleep(250 * time.Millisecond)
			if d.Attempt == 1 {
				return settle.Retry(errors.New("once more"))
			}
			return settle.Ack()
		}, settle.Options{Timeout: 590 * time.Millisecond, MaxAttempts: 20, DeadLetter: "dead"})
	}
	ctx, cancel := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	go func() { ran <- rt.Run(ctx) }()
	sqltest.Eventually(t, &db.db, 0, "SELECT count(*) FROM jobs")
	cancel()
	require.NoError(t, <-ran)
	assert.Empty(t, failed)
}

// A handler that hangs in its transaction keeps all writers of the file waiting
// no longer than its lease. Publish in place of PublishTx is the usual way to hang.
func TestAStuckHandlerKeepsOthersWaitingNoLongerThanItsLease(t *testing.T) {
	db, q := ledger(t, Options{}, 500*time.Millisecond)
	elsewhere := leased(time.Minute)
	elsewhere.GroupValue = "elsewhere"
	other := db.Queue(elsewhere)
	sqltest.Publish(t, q, "a")
	inside := make(chan struct{}, 10)
	lost := make(chan error, 10)
	rt := &settle.Runtime{Logger: sqltest.Quiet, Observer: observerFunc(func(s settle.Settled) { lost <- s.Err })}
	HandleTx(rt, q, func(context.Context, *sql.Tx, *settle.Delivery) settle.Outcome {
		inside <- struct{}{}
		ctx, cancel := context.WithTimeout(context.Background(), deadline)
		defer cancel()
		if err := other.Publish(ctx, settle.Message{Body: []byte("from the handler")}); err != nil {
			return settle.Drop(err)
		}
		return settle.Ack()
	}, settle.Options{Timeout: 200 * time.Millisecond})
	ctx, cancel := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	go func() { ran <- rt.Run(ctx) }()
	<-inside
	within, stop := context.WithTimeout(t.Context(), deadline/2)
	defer stop()
	require.NoError(t, other.Publish(within, settle.Message{Body: []byte("from outside")}), "it waits for the handler for ever")
	require.ErrorIs(t, <-lost, settle.ErrLeaseLost)
	cancel()
	<-ran
}

// What a caller has open is its own: publishing in it takes no second connection.
func TestPublishTxNeedsNoSecondConnection(t *testing.T) {
	db, q := ledger(t, Options{}, time.Minute)
	pool, err := sql.Open("sqlite", "file:"+sqltest.One[string](t, &db.db, "SELECT file FROM pragma_database_list"))
	require.NoError(t, err)
	defer pool.Close()
	pool.SetMaxOpenConns(1)
	narrow, err := Wrap(pool, Options{})
	require.NoError(t, err)
	tx, err := pool.Begin()
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	require.NoError(t, narrow.Queue(q.Table()).PublishTx(ctx, tx, settle.Message{Body: []byte("x")}))
	require.NoError(t, tx.Commit())
	assert.Equal(t, 1, sqltest.One[int](t, &db.db, "SELECT count(*) FROM jobs"))
}
