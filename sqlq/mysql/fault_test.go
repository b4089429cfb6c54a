package mysql

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

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
	sqltest.Publish(t, q.Queue, make([]string, rows)...)
	var done atomic.Int64
	stop := sqltest.Serve(t, func(rt *settle.Runtime) {
		handleKilled(q)(rt, func(*settle.Delivery) { done.Add(1) }, settle.Options{Workers: 6, MaxAttempts: 1000, DeadLetter: "main.dead"})
	})
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
func through(t *testing.T, h home, q *Queue) (*Queue, *faults.Line) {
	t.Helper()
	l := faults.Proxy(t, h.dsn)
	return openDSN(t, l.URL(), Options{}).Queue(q.Table()), l
}

func TestConnectionsAreSevered(t *testing.T) {
	eachHome(t, func(t *testing.T, h home, db *DB, q *Queue) {
		theirs, line := through(t, h, q)
		work(t, db, theirs, 400, func(done func() int) {
			for i := range 4 {
				reach(t, done, 60*(i+1))
				line.Sever()
			}
		})
	})
}

// A server that is restarted in the middle, by force too.
func TestTheServerIsRestarted(t *testing.T) {
	services.TestAll(t)
	for _, s := range []services.Service{services.MySQLFault, services.MariaDBFault} {
		for how, again := range map[string]func(testing.TB, services.Service){
			"restart": services.Restart,
			"kill": func(t testing.TB, s services.Service) {
				services.Kill(t, s)
				services.Start(t, s)
			},
		} {
			for name, f := range forms() {
				t.Run(fmt.Sprintf("%s %s %s", s, how, name), func(t *testing.T) {
					db := fresh(t, s, Options{})
					q := newQueue(t, db, sqltest.In(sqlq.Standard("jobs", "main"), f))
					work(t, db, q, 400, func(done func() int) {
						reach(t, done, 150)
						again(t, s)
					})
				})
			}
		}
	}
}

// The address moves to another place, as a failover behind a proxy does, and back.
func TestTheAddressMoves(t *testing.T) {
	services.TestAll(t)
	eachHome(t, func(t *testing.T, h home, db *DB, q *Queue) {
		theirs, line := through(t, h, q)
		work(t, db, theirs, 300, func(done func() int) {
			for i := range 2 {
				reach(t, done, 60*(i+1))
				line.Refuse()
				line.Sever()
				time.Sleep(200 * time.Millisecond)
				line.Restore()
			}
		})
	})
}

func TestConnectionsAreKilled(t *testing.T) {
	services.TestAll(t)
	eachForm(t, nil, func(t *testing.T, db *DB, q *Queue) {
		work(t, db, q, 400, func(done func() int) {
			for i := range 4 {
				reach(t, done, 60*(i+1))
				require.NoError(t, sever(t.Context(), &db.db, ""))
			}
		})
	})
}

// Statements that take too long, because somebody keeps the table locked, are ended by the server.
func TestStatementsTimeOut(t *testing.T) {
	services.TestAll(t)
	eachHome(t, func(t *testing.T, h home, db *DB, q *Queue) {
		setting, value := "lock_wait_timeout", "1"
		theirs := openDSN(t, with(with(h.dsn, setting, value), "innodb_lock_wait_timeout", "1"), Options{}).Queue(q.Table())
		work(t, db, theirs, 300, func(done func() int) {
			reach(t, done, 100)
			conn, err := db.SQL().Conn(t.Context())
			require.NoError(t, err)
			defer conn.Close()
			_, err = conn.ExecContext(t.Context(), "LOCK TABLES jobs WRITE")
			require.NoError(t, err)
			time.Sleep(1500 * time.Millisecond)
			_, err = conn.ExecContext(t.Context(), "UNLOCK TABLES")
			require.NoError(t, err)
		})
	})
}

// Deadlocks with transactions of others', that lock rows in another order, are tried again.
func TestDeadlocksWithOthers(t *testing.T) {
	eachForm(t, nil, func(t *testing.T, db *DB, q *Queue) {
		work(t, db, q, 400, func(done func() int) {
			for done() < 300 {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				tx, err := db.SQL().BeginTx(ctx, nil)
				require.NoError(t, err)
				_, err = tx.ExecContext(ctx, "UPDATE jobs SET msg_key = 'x' ORDER BY id DESC LIMIT 20")
				if err == nil {
					_, _ = tx.ExecContext(ctx, "UPDATE jobs SET msg_key = 'y' ORDER BY id LIMIT 20")
				}
				_ = tx.Rollback()
				cancel()
			}
		})
	})
}

// A server that becomes read-only and comes back: nothing is lost, and work goes on.
func TestTheServerTakesNoWritesForAWhile(t *testing.T) {
	services.TestAll(t)
	eachHome(t, func(t *testing.T, h home, db *DB, q *Queue) {
		user := h.name
		sqltest.Exec(t, &db.db, fmt.Sprintf("CREATE USER %s IDENTIFIED BY 'settle'", user))
		t.Cleanup(func() { sqltest.Exec(t, &db.db, "DROP USER "+user) })
		grant := func(what, on string) {
			sqltest.Exec(t, &db.db, fmt.Sprintf("%s ON %s.jobs %s %s", what, h.name, on, user))
		}
		sqltest.CreateAcked(t, &db.db)
		sqltest.Exec(t, &db.db, fmt.Sprintf("GRANT INSERT, SELECT ON %s.acked TO %s", h.name, user))
		grant("GRANT SELECT, UPDATE, DELETE, INSERT", "TO")
		theirs := openDSN(t, asUser(h.dsn, user), Options{}).Queue(q.Table())
		var done atomic.Int64
		sqltest.Publish(t, q.Queue, make([]string, 200)...)
		stop := sqltest.Serve(t, func(rt *settle.Runtime) {
			handleKilled(theirs)(rt, func(*settle.Delivery) { done.Add(1) }, settle.Options{Workers: 4, MaxAttempts: 1000, DeadLetter: "main.dead"})
		})
		reach(t, func() int { return int(done.Load()) }, 50)
		grant("REVOKE UPDATE, DELETE", "FROM") // read_only is the whole server's: this is the same for one user
		time.Sleep(300 * time.Millisecond)
		grant("GRANT UPDATE, DELETE", "TO")
		sqltest.Eventually(t, &db.db, 0, sqltest.Queued)
		require.NoError(t, stop())
		sqltest.AckedOnce(t, &db.db, 200)
	})
}
