package postgres

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/internal/faults"
	"github.com/settlemq/settle/internal/services"
	"github.com/settlemq/settle/internal/sqltest"
	"github.com/settlemq/settle/sqlq"
)

// work runs consumers of a queue whose handlers write down what they acknowledge, each
// in its transaction, while fault does its worst. In the end each row is
// acknowledged exactly once.
func work(t *testing.T, db *DB, q *Queue, rows int, fault func(done func() int)) {
	t.Helper()
	sqltest.CreateAcked(t, &db.db)
	sqltest.Exec(t, &db.db, "INSERT INTO jobs (queue, payload) SELECT 'main', '' FROM generate_series(1, $1)", rows)
	var done atomic.Int64
	stop := handleTx(t, q, func(ctx context.Context, tx pgx.Tx, d *settle.Delivery) settle.Outcome {
		defer done.Add(1)
		return acknowledge(ctx, tx, d)
	}, settle.Options{Workers: 6, MaxAttempts: 1000, DeadLetter: "main.dead"})
	fault(func() int { return int(done.Load()) })
	sqltest.Eventually(t, &db.db, 0, sqltest.Queued)
	require.NoError(t, stop())
	sqltest.AckedOnce(t, &db.db, rows)
}

// reach waits until so many handlers have returned.
func reach(t *testing.T, done func() int, n int) {
	t.Helper()
	require.Eventually(t, func() bool { return done() >= n }, deadline, time.Millisecond)
}

// through opens the queue over a network that can fail.
func through(t *testing.T, db *DB, q *Queue) (theirs *Queue, line interface {
	Sever() int
	Blackhole()
	Restore()
	Refuse()
},
) {
	t.Helper()
	l := faults.Proxy(t, db.Pool().Config().ConnString())
	return openURL(t, l.URL(), Options{}).Queue(q.Table()), l
}

func TestConnectionsAreSevered(t *testing.T) {
	cuts := many(2, 8)
	eachForm(t, nil, func(t *testing.T, db *DB, q *Queue) {
		theirs, line := through(t, db, q)
		work(t, db, theirs, 100*(cuts+2), func(done func() int) {
			for i := range cuts {
				reach(t, done, 100*(i+1))
				line.Sever()
			}
		})
	})
}

func TestTheNetworkIsPartedForAWhile(t *testing.T) {
	services.TestAll(t)
	eachForm(t, nil, func(t *testing.T, db *DB, q *Queue) {
		theirs, line := through(t, db, q)
		work(t, db, theirs, 500, func(done func() int) {
			for i := range 2 {
				reach(t, done, 100*(i+1))
				line.Blackhole()
				time.Sleep(2 * time.Second) // as long as the leases hold, and longer
				line.Restore()
			}
			reach(t, done, 300)
			line.Blackhole()
			line.Refuse()
			line.Sever() // what was on its way is gone for good
			line.Restore()
		})
	})
}

func TestBackendsAreTerminated(t *testing.T) {
	cuts := many(2, 8)
	eachForm(t, nil, func(t *testing.T, db *DB, q *Queue) {
		victim := "victim_" + sqltest.One[string](t, &db.db, "SELECT current_schema()")
		theirs := openURL(t, with(db.Pool().Config().ConnString(), "application_name", victim), Options{}).Queue(q.Table())
		work(t, db, theirs, 100*(cuts+2), func(done func() int) {
			for i := range cuts {
				reach(t, done, 100*(i+1))
				sqltest.Exec(t, &db.db, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = $1", victim)
			}
		})
	})
}

func TestStatementsTimeOut(t *testing.T) {
	eachForm(t, nil, func(t *testing.T, db *DB, q *Queue) {
		theirs := openURL(t, with(db.Pool().Config().ConnString(), "statement_timeout", "150"), Options{}).Queue(q.Table())
		work(t, db, theirs, 300, func(done func() int) {
			for i := range 2 {
				reach(t, done, 100*(i+1))
				// Whoever keeps the table locked has every statement on it time out.
				tx, err := db.Pool().Begin(t.Context())
				require.NoError(t, err)
				_, err = tx.Exec(t.Context(), "LOCK TABLE jobs IN ACCESS EXCLUSIVE MODE")
				require.NoError(t, err)
				time.Sleep(400 * time.Millisecond)
				require.NoError(t, tx.Rollback(t.Context()))
			}
		})
	})
}

// Where sessions are SERIALIZABLE by default, ours are not, and others' are in nobody's way.
func TestOthersAreSerializable(t *testing.T) {
	eachForm(t, nil, func(t *testing.T, db *DB, q *Queue) {
		theirs := openURL(t, with(db.Pool().Config().ConnString(), "default_transaction_isolation", "serializable"), Options{}).Queue(q.Table())
		work(t, db, theirs, 400, func(done func() int) {
			for done() < 300 { // a transaction that reads all and writes some: it may fail, and ours may not
				tx, err := db.Pool().BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.Serializable})
				require.NoError(t, err)
				_, err = tx.Exec(t.Context(), "SELECT count(*) FROM jobs; UPDATE jobs SET msg_key = 'seen' WHERE id = (SELECT max(id) FROM jobs)")
				if err == nil {
					err = tx.Commit(t.Context())
				}
				_ = tx.Rollback(t.Context())
				_ = err
			}
		})
	})
}

// Deadlocks with transactions of others', that lock rows in another order, are tried again.
func TestDeadlocksWithOthers(t *testing.T) {
	eachForm(t, nil, func(t *testing.T, db *DB, q *Queue) {
		theirs := openURL(t, with(db.Pool().Config().ConnString(), "deadlock_timeout", "20"), Options{}).Queue(q.Table())
		work(t, db, theirs, 400, func(done func() int) {
			for done() < 300 {
				tx, err := db.Pool().Begin(t.Context())
				require.NoError(t, err)
				_, err = tx.Exec(t.Context(), "SET LOCAL deadlock_timeout = '20ms'; UPDATE jobs SET msg_key = 'x' WHERE id IN (SELECT id FROM jobs ORDER BY id DESC LIMIT 20)")
				if err == nil {
					_, _ = tx.Exec(t.Context(), "UPDATE jobs SET msg_key = 'y' WHERE id IN (SELECT id FROM jobs ORDER BY id LIMIT 20)")
				}
				_ = tx.Rollback(t.Context())
			}
		})
	})
}

// A server that is restarted in the middle, by force too.
func TestTheServerIsRestarted(t *testing.T) {
	services.TestAll(t)
	for _, how := range []string{"restart", "kill"} {
		for _, f := range forms() {
			t.Run(fmt.Sprintf("%s %T", how, f), func(t *testing.T) {
				db := newHome(t, services.PostgresFault).open(t, Options{MaxConns: 20})
				q := newQueue(t, db, sqltest.In(sqlq.Standard("jobs", "main"), f))
				work(t, db, q, 600, func(done func() int) {
					reach(t, done, 200)
					if how == "restart" {
						services.Restart(t, services.PostgresFault)
					} else {
						services.Kill(t, services.PostgresFault)
						services.Start(t, services.PostgresFault)
					}
				})
			})
		}
	}
}

// The address moves to another place, as a failover behind a proxy does, and back.
func TestTheAddressMoves(t *testing.T) {
	eachForm(t, nil, func(t *testing.T, db *DB, q *Queue) {
		theirs, line := through(t, db, q)
		work(t, db, theirs, 400, func(done func() int) {
			for i := range 2 {
				reach(t, done, 100*(i+1))
				line.Refuse()
				line.Sever()
				time.Sleep(200 * time.Millisecond)
				line.Restore()
			}
		})
	})
}
