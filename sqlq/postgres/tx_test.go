package postgres

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/internal/sqltest"
	"github.com/settlemq/settle/sqlq"
)

type txHandler = func(context.Context, pgx.Tx, *settle.Delivery) settle.Outcome

// eachLedger runs a test in each form, on a queue whose handlers write to a table beside it.
func eachLedger(t *testing.T, test func(t *testing.T, db *DB, q *Queue)) {
	eachForm(t, nil, func(t *testing.T, db *DB, q *Queue) {
		sqltest.Exec(t, &db.db, "CREATE TABLE ledger (entry text)")
		test(t, db, q)
	})
}

// write is a handler that writes its body and returns what outcome says.
func write(outcome func(d *settle.Delivery) settle.Outcome) txHandler {
	return func(ctx context.Context, tx pgx.Tx, d *settle.Delivery) settle.Outcome {
		if _, err := tx.Exec(ctx, "INSERT INTO ledger VALUES ($1)", fmt.Sprintf("%s/%d", d.Body, d.Attempt)); err != nil {
			return settle.Retry(err)
		}
		return outcome(d)
	}
}

func ackIt(*settle.Delivery) settle.Outcome { return settle.Ack() }

func handleTx(t testing.TB, q *Queue, h txHandler, o settle.Options) (stop func() error) {
	return sqltest.Serve(t, func(rt *settle.Runtime) { HandleTx(rt, q, h, o) })
}

const entries = "SELECT coalesce(string_agg(entry, ' ' ORDER BY entry), '') FROM ledger"

// An ack commits what its handler wrote together with the settlement; everything else undoes it, and still settles.
func TestTransactionalOutcomes(t *testing.T) {
	boom := errors.New("boom")
	first := func(o settle.Outcome) func(*settle.Delivery) settle.Outcome {
		return func(d *settle.Delivery) settle.Outcome {
			if d.Attempt == 1 {
				return o
			}
			return settle.Ack()
		}
	}
	for _, c := range []struct {
		name    string
		handler txHandler
		entries string
		jobs    string
	}{
		{"ack", write(ackIt), "a/1", ""},
		{"drop", write(first(settle.Drop(boom))), "", ""},
		{"dead-letter", write(first(settle.DeadLetter(boom))), "", "main.dead 2 boom"},
		{"retry, then ack", write(first(settle.Retry(boom))), "a/2", ""},
		{"a delayed retry, then ack", write(first(settle.RetryAfter(10*time.Millisecond, boom))), "a/2", ""},
		{"retries up to the cap", write(func(*settle.Delivery) settle.Outcome { return settle.Retry(boom) }), "", "main.dead 4 boom"},
		{"a panic, then ack", write(func(d *settle.Delivery) settle.Outcome {
			if d.Attempt == 1 {
				panic("boom")
			}
			return settle.Ack()
		}), "a/2", ""},
		{"a statement that fails, then ack", func(ctx context.Context, tx pgx.Tx, d *settle.Delivery) settle.Outcome {
			if d.Attempt == 1 {
				_, err := tx.Exec(ctx, "SELECT 1/0")
				return settle.Retry(err)
			}
			return write(ackIt)(ctx, tx, d)
		}, "a/2", ""},
		{"an ack in a transaction that has failed", func(ctx context.Context, tx pgx.Tx, d *settle.Delivery) settle.Outcome {
			if d.Attempt == 1 {
				_, _ = tx.Exec(ctx, "SELECT 1/0")
				return settle.Ack() // which cannot commit what the handler wrote
			}
			return write(ackIt)(ctx, tx, d)
		}, "a/2", ""},
		{"savepoints of the handler's own", func(ctx context.Context, tx pgx.Tx, d *settle.Delivery) settle.Outcome {
			_ = pgx.BeginFunc(ctx, tx, func(nested pgx.Tx) error {
				_, err := nested.Exec(ctx, "INSERT INTO ledger VALUES (1/0)")
				return err
			})
			return write(ackIt)(ctx, tx, d)
		}, "a/1", ""},
		{"a commit that fails, then ack", func(ctx context.Context, tx pgx.Tx, d *settle.Delivery) settle.Outcome {
			if d.Attempt == 1 { // the key is looked at when the transaction commits
				_, err := tx.Exec(ctx, "INSERT INTO child VALUES (99)")
				if err != nil {
					return settle.DeadLetter(err)
				}
				return settle.Ack()
			}
			return write(ackIt)(ctx, tx, d)
		}, "a/2", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			eachLedger(t, func(t *testing.T, db *DB, q *Queue) {
				sqltest.Exec(t, &db.db, "CREATE TABLE parent (id int PRIMARY KEY); CREATE TABLE child (id int REFERENCES parent DEFERRABLE INITIALLY DEFERRED)")
				sqltest.Publish(t, q, "a")
				stop := handleTx(t, q, c.handler, settle.Options{Workers: 2, MaxAttempts: 3, DeadLetter: "main.dead"})
				sqltest.Eventually(t, &db.db, 0, sqltest.Queued)
				require.NoError(t, stop())
				assert.Equal(t, c.entries, sqltest.One[string](t, &db.db, entries))
				assert.Equal(t, c.jobs, sqltest.One[string](t, &db.db, "SELECT coalesce(string_agg(concat_ws(' ', queue, attempt, cause), ','), '') FROM jobs"))
			})
		})
	}
}

// The outcome ends the transaction, and nobody else.
func TestAHandlerDoesNotEndItsTransaction(t *testing.T) {
	eachLedger(t, func(t *testing.T, db *DB, q *Queue) {
		sqltest.Publish(t, q, "a")
		kept := make(chan pgx.Tx, 1)
		stop := handleTx(t, q, func(ctx context.Context, tx pgx.Tx, d *settle.Delivery) settle.Outcome {
			out := write(ackIt)(ctx, tx, d)
			if err := tx.Commit(ctx); !assert.ErrorContains(t, err, "return settle.Ack()") {
				return settle.DeadLetter(err)
			}
			assert.ErrorContains(t, tx.Rollback(ctx), "return settle.Ack()")
			kept <- tx
			return out
		}, settle.Options{})
		sqltest.Eventually(t, &db.db, 0, sqltest.Queued)
		require.NoError(t, stop())
		assert.Equal(t, "a/1", sqltest.One[string](t, &db.db, entries))
		_, err := (<-kept).Exec(t.Context(), "INSERT INTO ledger VALUES ('late')")
		require.ErrorIs(t, err, pgx.ErrTxClosed, "a transaction that somebody kept is over")
	})
}

// A handler's timeout cancels its query and leaves the transaction to be settled.
func TestATimeoutCancelsTheQueryOnly(t *testing.T) {
	eachLedger(t, func(t *testing.T, db *DB, q *Queue) {
		sqltest.Publish(t, q, "a")
		var backend atomic.Int64
		stop := handleTx(t, q, func(ctx context.Context, tx pgx.Tx, d *settle.Delivery) settle.Outcome {
			if d.Attempt == 1 {
				backend.Store(int64(tx.Conn().PgConn().PID()))
				_, err := tx.Exec(ctx, "SELECT pg_sleep(60)")
				return settle.Retry(err)
			}
			return settle.Ack()
		}, settle.Options{Timeout: 200 * time.Millisecond, MaxAttempts: 3, DeadLetter: "main.dead"})
		sqltest.Eventually(t, &db.db, 0, sqltest.Queued)
		require.NoError(t, stop())
		assert.Zero(t, sqltest.One[int](t, &db.db, "SELECT count(*) FROM jobs"))
		assert.Equal(t, 1, sqltest.One[int](t, &db.db, "SELECT count(*) FROM pg_stat_activity WHERE pid = $1", backend.Load()), "the connection was given up")
	})
}

// Who has lost the row by the time the handler returns has written nothing.
func TestAHandlerThatHasLostItsRowIsUndone(t *testing.T) {
	eachLedger(t, func(t *testing.T, db *DB, q *Queue) {
		sqltest.Publish(t, q, "a")
		settled := make(chan error, 10)
		started, goOn := make(chan struct{}, 10), make(chan struct{})
		rt := &settle.Runtime{Logger: sqltest.Quiet, Observer: observerFunc(func(s settle.Settled) { settled <- s.Err })}
		HandleTx(rt, q, func(ctx context.Context, tx pgx.Tx, d *settle.Delivery) settle.Outcome {
			out := write(ackIt)(ctx, tx, d)
			if d.Attempt == 1 {
				started <- struct{}{}
				<-goOn
			}
			return out
		}, settle.Options{Workers: 2})
		ctx, cancel := context.WithCancel(t.Context())
		ran := make(chan error, 1)
		go func() { ran <- rt.Run(ctx) }()
		<-started
		if q.Table().LockedUntil != "" {
			sqltest.Exec(t, &db.db, "UPDATE jobs SET locked_until = NULL")
			q.Wake()
			require.NoError(t, <-settled, "somebody else has it")
			close(goOn)
			require.ErrorIs(t, <-settled, settle.ErrLeaseLost)
		} else {
			sqltest.Exec(t, &db.db, `SELECT pg_terminate_backend(pid, 5000) FROM pg_locks WHERE relation = 'ledger'::regclass AND pid <> pg_backend_pid()`)
			close(goOn)
			var lost error
			for range 2 { // in whatever order
				lost = errors.Join(lost, <-settled)
			}
			require.ErrorIs(t, lost, settle.ErrLeaseLost)
		}
		cancel()
		require.NoError(t, <-ran)
		want := []string{"a/2"}
		if _, rows := q.Table().Form.(sqlq.RowLock); rows { // it may be locked again before the attempt is counted
			want = append(want, "a/1")
		}
		assert.Contains(t, want, sqltest.One[string](t, &db.db, entries))
		assert.Zero(t, sqltest.One[int](t, &db.db, "SELECT count(*) FROM jobs"))
	})
}

type observerFunc func(settle.Settled)

func (f observerFunc) Received(ctx context.Context, _ *settle.Delivery) context.Context { return ctx }
func (f observerFunc) Settled(_ context.Context, s settle.Settled)                      { f(s) }
func (f observerFunc) Noticed(settle.Notice)                                            {}

// A lease is renewed while the handler has its transaction.
func TestALeaseIsRenewedDuringATransaction(t *testing.T) {
	db := fresh(t, Options{})
	sqltest.Exec(t, &db.db, "CREATE TABLE ledger (entry text)")
	q := newQueue(t, db, sqltest.In(sqlq.Standard("jobs", "main"), sqlq.Lease{For: 300 * time.Millisecond}))
	sqltest.Publish(t, q, "a")
	stop := handleTx(t, q, func(ctx context.Context, tx pgx.Tx, d *settle.Delivery) settle.Outcome {
		if _, err := tx.Exec(ctx, "SELECT pg_sleep(1)"); err != nil {
			return settle.DeadLetter(err)
		}
		return write(ackIt)(ctx, tx, d)
	}, settle.Options{Workers: 2})
	sqltest.Eventually(t, &db.db, 0, sqltest.Queued)
	require.NoError(t, stop())
	assert.Equal(t, "a/1", sqltest.One[string](t, &db.db, entries))
}

// At the drain deadline a handler that goes on loses its transaction, and with it
// what it wrote; the row comes again at no cost in attempts.
func TestADrainTakesTheTransactionAway(t *testing.T) {
	eachLedger(t, func(t *testing.T, db *DB, q *Queue) {
		sqltest.Publish(t, q, "a")
		started, goOn, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
		rt := &settle.Runtime{Logger: sqltest.Quiet, DrainTimeout: 50 * time.Millisecond}
		HandleTx(rt, q, func(_ context.Context, tx pgx.Tx, d *settle.Delivery) settle.Outcome {
			_, err := tx.Exec(context.Background(), "INSERT INTO ledger VALUES ('early')")
			assert.NoError(t, err)
			close(started)
			<-goOn
			_, err = tx.Exec(context.Background(), "INSERT INTO ledger VALUES ('late')")
			ended <- err
			return settle.Ack()
		}, settle.Options{})
		ctx, cancel := context.WithCancel(t.Context())
		ran := make(chan error, 1)
		go func() { ran <- rt.Run(ctx) }()
		<-started
		cancel()
		var drain *settle.DrainError
		require.ErrorAs(t, <-ran, &drain)
		sqltest.Eventually(t, &db.db, "1 free", "SELECT attempt || CASE WHEN "+isHeld(q)+" THEN ' held' ELSE ' free' END FROM jobs")
		close(goOn)
		require.Error(t, <-ended)
		assert.Empty(t, sqltest.One[string](t, &db.db, entries))
	})
}

// isHeld is the condition that somebody has the row of jobs.
func isHeld(q *Queue) string {
	if q.Table().LockedUntil != "" {
		return "locked_until IS NOT NULL"
	}
	return "EXISTS (SELECT FROM pg_stat_activity WHERE state = 'idle in transaction' AND pid IN (SELECT pid FROM pg_locks WHERE relation = 'ledger'::regclass))"
}

// Publishing in the handler's transaction is part of it.
func TestPublishInTheHandlersTransaction(t *testing.T) {
	eachForm(t, nil, func(t *testing.T, db *DB, q *Queue) {
		sqltest.Publish(t, q, "a")
		stop := handleTx(t, q, func(ctx context.Context, tx pgx.Tx, d *settle.Delivery) settle.Outcome {
			if err := q.PublishTx(ctx, tx, settle.Message{Body: fmt.Appendf(nil, "of attempt %d", d.Attempt), To: "next"}); err != nil {
				return settle.DeadLetter(err)
			}
			if d.Attempt == 1 {
				return settle.Retry(nil)
			}
			return settle.Ack()
		}, settle.Options{})
		sqltest.Eventually(t, &db.db, 0, sqltest.Queued)
		require.NoError(t, stop())
		assert.Equal(t, "of attempt 2", sqltest.One[string](t, &db.db, "SELECT string_agg(convert_from(payload, 'UTF8'), ',') FROM jobs WHERE queue = 'next'"))
	})
}

// A delivery past its cap has no handler, and its transaction does not stay open.
func TestPastTheCapWithTransactions(t *testing.T) {
	eachLedger(t, func(t *testing.T, db *DB, q *Queue) {
		sqltest.Publish(t, q, "a", "b")
		sqltest.Exec(t, &db.db, "UPDATE jobs SET attempt = 9 WHERE payload = 'a'")
		stop := handleTx(t, q, write(ackIt), settle.Options{MaxAttempts: 3, DeadLetter: "main.dead"})
		sqltest.Eventually(t, &db.db, 0, sqltest.Queued)
		require.NoError(t, stop())
		assert.Equal(t, "b/1", sqltest.One[string](t, &db.db, entries))
		assert.Equal(t, "a", sqltest.One[string](t, &db.db, "SELECT convert_from(payload, 'UTF8') FROM jobs"))
	})
}

// What a handler reads is READ COMMITTED, whatever the database's default.
func TestTransactionsAreReadCommitted(t *testing.T) {
	h := newHome(t, "postgres")
	db := openURL(t, with(h.url, "default_transaction_isolation", "serializable"), Options{})
	levels := make(chan string, 1)
	for i, f := range forms() {
		q := newQueue(t, db, sqltest.In(sqlq.Standard(fmt.Sprint("jobs", i), "main"), f))
		sqltest.Publish(t, q, "a")
		stop := handleTx(t, q, func(ctx context.Context, tx pgx.Tx, d *settle.Delivery) settle.Outcome {
			var level string
			if err := tx.QueryRow(ctx, "SHOW transaction_isolation").Scan(&level); err != nil {
				return settle.DeadLetter(err)
			}
			levels <- level
			return settle.Ack()
		}, settle.Options{})
		assert.Equal(t, "read committed", <-levels, "%T", f)
		require.NoError(t, stop())
	}
}

func TestTransactionalRegistrationsThatAreRefused(t *testing.T) {
	db := fresh(t, Options{MaxConns: 6})
	q := newQueue(t, db, sqltest.In(sqlq.Standard("jobs", "main"), sqlq.Lease{}))
	source, _ := sqlq.Transactional(q.Queue, sqlq.TxRules{}, nil, write(ackIt))
	assert.Equal(t, "BatchSize", sqltest.Refusal(t, source, settle.Registration{Batch: 2}).Setting)
	assert.Equal(t, "Workers", sqltest.Refusal(t, source, settle.Registration{Workers: 5}).Setting)
	first := sqltest.Open(t, source, settle.Registration{Workers: 4})
	e := sqltest.Refusal(t, source, settle.Registration{Workers: 1})
	assert.ErrorContains(t, e, "beside 4 of other queues")
	require.NoError(t, first.Close(t.Context()))
	sqltest.Open(t, source, settle.Registration{Workers: 1})

	var rt settle.Runtime
	HandleTx(&rt, q, nil, settle.Options{})
	var config *settle.ConfigError
	require.ErrorAs(t, rt.Run(t.Context()), &config)
	assert.Equal(t, "Handler", config.Setting)
}

// A lease that is lost while its handler has a transaction gives its connection back, so that the
// worker goes on, and nothing is left behind at the end.
func TestALostLeaseGivesItsConnectionBack(t *testing.T) {
	look := fresh(t, Options{})
	db, err := Open(look.Pool().Config().ConnString(), Options{})
	require.NoError(t, err)
	q := newQueue(t, db, sqltest.In(sqlq.Standard("jobs", "main"), sqlq.Lease{For: time.Second}))
	sqltest.Publish(t, q, "a", "b")
	working, handled := make(chan struct{}, 2), make(chan string, 2)
	stop := sqltest.Serve(t, func(rt *settle.Runtime) {
		HandleTx(rt, q, func(ctx context.Context, _ pgx.Tx, d *settle.Delivery) settle.Outcome {
			if string(d.Body) == "a" {
				working <- struct{}{}
				<-ctx.Done() // the renewal finds the lease lost
				return settle.Retry(context.Cause(ctx))
			}
			handled <- string(d.Body)
			return settle.Ack()
		}, settle.Options{Workers: 1})
	})
	<-working
	sqltest.Exec(t, &look.db, "DELETE FROM jobs WHERE payload = 'a'")
	select {
	case body := <-handled:
		assert.Equal(t, "b", body)
	case <-time.After(30 * time.Second):
		assert.Fail(t, "the only worker is stuck")
	}
	require.NoError(t, stop())
	closed := make(chan error, 1)
	go func() { closed <- db.Close() }()
	select {
	case err := <-closed:
		require.NoError(t, err)
	case <-time.After(30 * time.Second):
		require.Fail(t, "a connection is still taken")
	}
}
