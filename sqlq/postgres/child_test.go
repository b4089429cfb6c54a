package postgres

import (
	"context"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/internal/sqltest"
	"github.com/settlemq/settle/sqlq"
)

// This file kills other processes that work off a table.

// roles are what another process can be; its arguments are the database's URL and the form.
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

// acknowledge writes down that it saw the row, in its transaction, so that a row which is acknowledged twice shows.
func acknowledge(ctx context.Context, tx pgx.Tx, d *settle.Delivery) settle.Outcome {
	if _, err := tx.Exec(ctx, "INSERT INTO acked VALUES ($1::text::bigint)", d.ID); err != nil {
		return settle.Retry(err)
	}
	return settle.Ack()
}

func handleKilled(q *Queue) sqltest.Handle {
	return func(rt *settle.Runtime, told func(*settle.Delivery), o settle.Options) {
		HandleTx(rt, q, func(ctx context.Context, tx pgx.Tx, d *settle.Delivery) settle.Outcome {
			defer told(d)
			return acknowledge(ctx, tx, d)
		}, o)
	}
}

// spawner starts processes in a role on a queue.
func spawner(t *testing.T, role string, db *DB, q *Queue) func() *sqltest.Process {
	return func() *sqltest.Process {
		return sqltest.Spawn(t, role, db.Pool().Config().ConnString(), fmt.Sprintf("%T", q.Table().Form))
	}
}

func TestKilledWorkersLoseNothingAndSettleNothingTwice(t *testing.T) {
	eachForm(t, nil, func(t *testing.T, db *DB, q *Queue) {
		sqltest.KilledWorkers(t, &db.db, q.Queue, handleKilled(q), spawner(t, "worker", db, q))
	})
}

func TestARowThatKillsItsProcess(t *testing.T) {
	eachForm(t, nil, func(t *testing.T, db *DB, q *Queue) {
		sqltest.Poison(t, &db.db, q.Queue, spawner(t, "suicide", db, q))
	})
}

func TestTwoProcessesShareATable(t *testing.T) {
	eachForm(t, nil, func(t *testing.T, db *DB, q *Queue) {
		sqltest.SharedTable(t, &db.db, q.Queue, spawner(t, "worker", db, q))
	})
}
