package postgres

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/internal/sqltest"
	"github.com/settlemq/settle/sqlq"
)

// This file kills other processes that work off a table.

// roles are what another process can be.
var roles = sqltest.KillRoles(forms(), func(dsn string, table sqlq.Table) (*sqlq.Queue, sqltest.Handle, error) {
	db, err := Open(dsn, Options{MaxConns: 30})
	if err != nil {
		return nil, nil, err
	}
	q := db.Queue(table)
	return q.Queue, handleKilled(q), nil
})

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

func TestKilledWorkersLoseNothingAndSettleNothingTwice(t *testing.T) {
	eachForm(t, nil, func(t *testing.T, db *DB, q *Queue) {
		sqltest.KilledWorkers(t, &db.db, q.Queue, handleKilled(q), sqltest.Spawner(t, "worker", db.Pool().Config().ConnString(), q.Queue))
	})
}

func TestARowThatKillsItsProcess(t *testing.T) {
	eachForm(t, nil, func(t *testing.T, db *DB, q *Queue) {
		sqltest.Poison(t, &db.db, q.Queue, sqltest.Spawner(t, "suicide", db.Pool().Config().ConnString(), q.Queue))
	})
}

func TestTwoProcessesShareATable(t *testing.T) {
	eachForm(t, nil, func(t *testing.T, db *DB, q *Queue) {
		sqltest.SharedTable(t, &db.db, q.Queue, sqltest.Spawner(t, "worker", db.Pool().Config().ConnString(), q.Queue))
	})
}
