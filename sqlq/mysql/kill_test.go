package mysql

import (
	"context"
	"database/sql"
	"fmt"
	"testing"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/internal/sqltest"
	"github.com/settlemq/settle/sqlq"
)

// This file kills other processes that work off a table.

// roles are what another process can be; its arguments are the DSN and the form.
var roles = map[string]func(args []string) error{
	"worker":  role(func(q *Queue) error { return sqltest.Worker(handleKilled(q)) }),
	"suicide": role(func(q *Queue) error { return sqltest.Suicide(q.Queue) }),
}

func role(play func(*Queue) error) func(args []string) error {
	return func(args []string) error {
		db, err := Open(args[0], Options{MaxConns: 30})
		if err != nil {
			return err
		}
		for _, f := range forms() {
			if fmt.Sprintf("%T", f) == args[1] {
				return play(db.Queue(killTable(f)))
			}
		}
		return fmt.Errorf("no form %q", args[1])
	}
}

func killTable(f sqlq.Form) sqlq.Table { return sqltest.In(sqlq.Standard("jobs", "main"), f) }

// handleKilled writes down that it saw the row, in its transaction, so that a row which is acknowledged twice shows.
func handleKilled(q *Queue) sqltest.Handle {
	return func(rt *settle.Runtime, told func(*settle.Delivery), o settle.Options) {
		HandleTx(rt, q, func(ctx context.Context, tx *sql.Tx, d *settle.Delivery) settle.Outcome {
			defer told(d)
			if _, err := tx.ExecContext(ctx, "INSERT INTO acked VALUES (?)", d.ID); err != nil {
				return settle.Retry(err)
			}
			return settle.Ack()
		}, o)
	}
}

// spawner starts processes in a role on a queue.
func spawner(t *testing.T, role, dsn string, q *Queue) func() *sqltest.Process {
	return func() *sqltest.Process {
		return sqltest.Spawn(t, role, dsn, fmt.Sprintf("%T", q.Table().Form))
	}
}

func TestKilledWorkersLoseNothingAndSettleNothingTwice(t *testing.T) {
	eachHome(t, func(t *testing.T, h home, db *DB, q *Queue) {
		sqltest.KilledWorkers(t, &db.db, q.Queue, handleKilled(q), spawner(t, "worker", h.dsn, q))
	})
}

func TestARowThatKillsItsProcess(t *testing.T) {
	eachHome(t, func(t *testing.T, h home, db *DB, q *Queue) {
		sqltest.Poison(t, &db.db, q.Queue, spawner(t, "suicide", h.dsn, q))
	})
}

func TestTwoProcessesShareATable(t *testing.T) {
	eachHome(t, func(t *testing.T, h home, db *DB, q *Queue) {
		sqltest.SharedTable(t, &db.db, q.Queue, spawner(t, "worker", h.dsn, q))
	})
}
