package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/internal/services"
	"github.com/settlemq/settle/internal/sqltest"
	"github.com/settlemq/settle/sqlq"
)

type txHandler = func(context.Context, *sql.Tx, *settle.Delivery) settle.Outcome

// eachLedger runs a test in each form, on a queue whose handlers write to a table beside it.
func eachLedger(t *testing.T, test func(t *testing.T, db *DB, q *Queue)) {
	eachForm(t, nil, func(t *testing.T, db *DB, q *Queue) {
		sqltest.Exec(t, &db.db, "CREATE TABLE ledger (entry VARCHAR(40) PRIMARY KEY)")
		test(t, db, q)
	})
}

// write is a handler that writes its body and returns what outcome says.
func write(outcome func(d *settle.Delivery) settle.Outcome) txHandler {
	return func(ctx context.Context, tx *sql.Tx, d *settle.Delivery) settle.Outcome {
		if _, err := tx.ExecContext(ctx, "INSERT INTO ledger VALUES (?)", fmt.Sprintf("%s/%d", d.Body, d.Attempt)); err != nil {
			return settle.Retry(err)
		}
		return outcome(d)
	}
}

func ackIt(*settle.Delivery) settle.Outcome { return settle.Ack() }

func handleTx(t testing.TB, q *Queue, h txHandler, o settle.Options) (stop func() error) {
	return sqltest.Serve(t, func(rt *settle.Runtime) { HandleTx(rt, q, h, o) })
}

const (
	entries = "SELECT COALESCE(GROUP_CONCAT(entry ORDER BY entry SEPARATOR ' '), '') FROM ledger"
	rest    = "SELECT COALESCE(GROUP_CONCAT(CONCAT_WS(' ', queue, attempt, cause)), '') FROM jobs"
)

// once returns an outcome at the first attempt, and an ack afterwards.
func once(o settle.Outcome) func(*settle.Delivery) settle.Outcome {
	return func(d *settle.Delivery) settle.Outcome {
		if d.Attempt == 1 {
			return o
		}
		return settle.Ack()
	}
}

// An ack commits what its handler wrote together with the settlement; everything else undoes it, and still settles.
func TestTransactionalOutcomes(t *testing.T) {
	boom := errors.New("boom")
	first := func(do func(context.Context, *sql.Tx) error) txHandler {
		return func(ctx context.Context, tx *sql.Tx, d *settle.Delivery) settle.Outcome {
			if d.Attempt == 1 {
				_ = write(ackIt)(ctx, tx, d)
				if err := do(ctx, tx); err != nil {
					return settle.Retry(err)
				}
				return settle.Ack()
			}
			return write(ackIt)(ctx, tx, d)
		}
	}
	for _, c := range []struct {
		name    string
		handler txHandler
		entries string
		jobs    string
	}{
		{"ack", write(ackIt), "a/1", ""},
		{"drop", write(once(settle.Drop(boom))), "", ""},
		{"dead-letter", write(once(settle.DeadLetter(boom))), "", "main.dead 2 boom"},
		{"retry, then ack", write(once(settle.Retry(boom))), "a/2", ""},
		{"a delayed retry, then ack", write(once(settle.RetryAfter(10*time.Millisecond, boom))), "a/2", ""},
		{"retries up to the cap", write(func(*settle.Delivery) settle.Outcome { return settle.Retry(boom) }), "", "main.dead 4 boom"},
		{"a statement that fails, then ack", first(func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, "INSERT INTO ledger VALUES ('a/1')")
			return err
		}), "a/2", ""},
		{"a rollback of the handler's own", first(func(_ context.Context, tx *sql.Tx) error { return tx.Rollback() }), "a/2", ""},
		{"a context that ends in a statement", first(func(ctx context.Context, tx *sql.Tx) error {
			ctx, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
			defer cancel()
			_, err := tx.ExecContext(ctx, "DO SLEEP(10)")
			return err
		}), "a/2", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			eachLedger(t, func(t *testing.T, db *DB, q *Queue) {
				sqltest.Publish(t, q.Queue, "a")
				stop := handleTx(t, q, c.handler, settle.Options{MaxAttempts: 3, DeadLetter: "main.dead"})
				sqltest.Eventually(t, &db.db, 0, sqltest.Queued)
				require.NoError(t, stop())
				assert.Equal(t, c.entries, sqltest.One[string](t, &db.db, entries))
				assert.Equal(t, c.jobs, sqltest.One[string](t, &db.db, rest))
			})
		})
	}
}

// A transaction that the server ended by itself is not committed statement by statement, and its message comes again: after a
// deadlock that the handler passes over, what it writes then is undone too.
func TestAHandlerWhoseTransactionEndedByADeadlock(t *testing.T) {
	eachLedger(t, func(t *testing.T, db *DB, q *Queue) {
		sqltest.Exec(t, &db.db, "CREATE TABLE account (id INT PRIMARY KEY, v INT)")
		sqltest.Exec(t, &db.db, "INSERT INTO account VALUES (1, 0), (2, 0)")
		sqltest.Publish(t, q.Queue, "a")
		var deadlocks atomic.Int64
		stop := handleTx(t, q, func(ctx context.Context, tx *sql.Tx, d *settle.Delivery) settle.Outcome {
			if d.Attempt > 1 {
				return write(ackIt)(ctx, tx, d)
			}
			_, err := tx.ExecContext(ctx, "UPDATE account SET v = v + 1 WHERE id = 1")
			if err != nil {
				return settle.DeadLetter(err)
			}
			other, err := db.SQL().BeginTx(ctx, nil)
			if err != nil {
				return settle.DeadLetter(err)
			}
			defer other.Rollback()
			for range 20 { // the server undoes the transaction that wrote less
				if _, err := other.ExecContext(ctx, "INSERT INTO ledger VALUES (UUID())"); err != nil {
					return settle.DeadLetter(err)
				}
			}
			_, err = other.ExecContext(ctx, "UPDATE account SET v = v + 100 WHERE id = 2")
			if err != nil {
				return settle.DeadLetter(err)
			}
			waited := make(chan error, 1)
			go func() {
				_, err := other.ExecContext(ctx, "UPDATE account SET v = v + 100 WHERE id = 1")
				waited <- err
			}()
			_, err = tx.ExecContext(ctx, "UPDATE account SET v = v + 1 WHERE id = 2")
			if number(err) == erDeadlock {
				deadlocks.Add(1)
			}
			if err := <-waited; err != nil {
				return settle.DeadLetter(err)
			}
			_ = other.Rollback()
			_, _ = tx.ExecContext(ctx, "INSERT INTO ledger VALUES ('after the deadlock')")
			return settle.Ack()
		}, settle.Options{MaxAttempts: 3, DeadLetter: "main.dead"})
		sqltest.Eventually(t, &db.db, 0, sqltest.Queued)
		require.NoError(t, stop())
		assert.EqualValues(t, 1, deadlocks.Load())
		assert.Equal(t, "a/2", sqltest.One[string](t, &db.db, entries))
		assert.Equal(t, 0, sqltest.One[int](t, &db.db, "SELECT SUM(v) FROM account"))
		assert.Empty(t, sqltest.One[string](t, &db.db, rest))
	})
}

// A query that is cut off by its handler's timeout ends at the server too, so that the row does not wait for it.
func TestAHandlersQueryThatIsCutOffEndsAtTheServer(t *testing.T) {
	eachLedger(t, func(t *testing.T, db *DB, q *Queue) {
		sqltest.Publish(t, q.Queue, "a")
		stop := handleTx(t, q, func(ctx context.Context, tx *sql.Tx, d *settle.Delivery) settle.Outcome {
			if d.Attempt > 1 {
				return write(ackIt)(ctx, tx, d)
			}
			_, err := tx.ExecContext(ctx, "DO SLEEP(600)") // longer than the test waits
			return settle.Retry(err)
		}, settle.Options{MaxAttempts: 3, DeadLetter: "main.dead", Timeout: 50 * time.Millisecond})
		sqltest.Eventually(t, &db.db, 0, sqltest.Queued)
		require.NoError(t, stop())
		assert.Regexp(t, "^a/[23]$", sqltest.One[string](t, &db.db, entries), "with a row lock it may be here again before its attempt is counted")
		sqltest.Eventually(t, &db.db, 0, "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE DB = DATABASE() AND INFO LIKE 'DO SLEEP%'")
	})
}

// A handler that outlives its lease is undone, and told so; its worker goes on to the next message.
func TestAHandlerThatLosesItsLease(t *testing.T) {
	eachServer(t, func(t *testing.T, s services.Service) {
		db := fresh(t, s, Options{})
		q := newQueue(t, db, sqltest.In(sqlq.Standard("jobs", "main"), sqlq.Lease{For: 200 * time.Millisecond}))
		sqltest.Exec(t, &db.db, "CREATE TABLE ledger (entry VARCHAR(40) PRIMARY KEY)")
		sqltest.Publish(t, q.Queue, "a", "b", "c")
		var lost atomic.Int64
		stop := handleTx(t, q, func(ctx context.Context, tx *sql.Tx, d *settle.Delivery) settle.Outcome {
			out := write(ackIt)(ctx, tx, d)
			if d.Attempt == 1 {
				sqltest.Exec(t, &db.db, "UPDATE jobs SET locked_until = NULL, attempt = attempt + 1 WHERE id = "+d.ID)
				<-ctx.Done()
				if errors.Is(context.Cause(ctx), settle.ErrLeaseLost) {
					lost.Add(1)
				}
			}
			return out
		}, settle.Options{MaxAttempts: 9, DeadLetter: "main.dead"})
		sqltest.Eventually(t, &db.db, 0, sqltest.Queued)
		require.NoError(t, stop())
		assert.EqualValues(t, 3, lost.Load())
		assert.Equal(t, "a/3 b/3 c/3", sqltest.One[string](t, &db.db, entries), "what they wrote before is undone")
		assert.Zero(t, db.SQL().Stats().InUse, "no connection is left behind")
	})
}

// What is published in a transaction is there once that commits, and not before.
func TestPublishInATransaction(t *testing.T) {
	eachForm(t, nil, func(t *testing.T, db *DB, q *Queue) {
		for _, commit := range []bool{false, true} {
			tx, err := db.SQL().BeginTx(t.Context(), nil)
			require.NoError(t, err)
			require.NoError(t, q.PublishTx(t.Context(), tx, settle.Message{Body: []byte("a?b'; --"), Key: "k", Headers: settle.Headers{"n": int64(1)}}))
			assert.Zero(t, sqltest.One[int](t, &db.db, sqltest.Queued))
			if !commit {
				require.NoError(t, tx.Rollback())
				continue
			}
			require.NoError(t, tx.Commit())
			q.Wake()
		}
		c := sqltest.Open(t, q, settle.Registration{})
		d := sqltest.Receive(t, c, 1)[0]
		assert.Equal(t, "a?b'; --", string(d.Body))
		assert.Equal(t, "k", d.Key)
		assert.Equal(t, settle.Headers{"n": int64(1)}, d.Headers)
		require.NoError(t, sqltest.Settle(c, d, ack))
	})
}

// The transaction of a handler goes on after a query of it was cut off, so that it may still be acknowledged.
func TestTheTransactionGoesOnAfterAQueryThatWasCutOff(t *testing.T) {
	eachLedger(t, func(t *testing.T, db *DB, q *Queue) {
		sqltest.Publish(t, q.Queue, "a")
		stop := handleTx(t, q, func(ctx context.Context, tx *sql.Tx, d *settle.Delivery) settle.Outcome {
			out := write(ackIt)(ctx, tx, d)
			for _, args := range [][]any{nil, {600}} { // as text and prepared
				query := "DO SLEEP(600)"
				if args != nil {
					query = "DO SLEEP(?)"
				}
				short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
				_, err := tx.ExecContext(short, query, args...)
				cancel()
				if !errors.Is(err, context.DeadlineExceeded) {
					return settle.DeadLetter(fmt.Errorf("the error is %w", err))
				}
			}
			return out
		}, settle.Options{MaxAttempts: 3, DeadLetter: "main.dead"})
		sqltest.Eventually(t, &db.db, 0, sqltest.Queued)
		require.NoError(t, stop())
		assert.Equal(t, "a/1", sqltest.One[string](t, &db.db, entries))
		assert.Empty(t, sqltest.One[string](t, &db.db, rest))
	})
}
