package mysql

import (
	"context"
	"database/sql"
	"maps"
	"slices"
	"testing"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/internal/sqltest"
	"github.com/settlemq/settle/sqlq"
)

// This file kills other processes that work off a table.

// roles are what another process can be.
var roles = sqltest.KillRoles(slices.Collect(maps.Values(forms())), func(dsn string, table sqlq.Table) (*sqlq.Queue, sqltest.Handle, error) {
	db, err := Open(dsn, Options{MaxConns: 30})
	if err != nil {
		return nil, nil, err
	}
	q := db.Queue(table)
	return q.Queue, handleKilled(q), nil
})

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

func TestKilledWorkersLoseNothingAndSettleNothingTwice(t *testing.T) {
	eachHome(t, func(t *testing.T, h home, db *DB, q *Queue) {
		sqltest.KilledWorkers(t, &db.db, q.Queue, handleKilled(q), sqltest.Spawner(t, "worker", h.dsn, q.Queue))
	})
}

func TestARowThatKillsItsProcess(t *testing.T) {
	eachHome(t, func(t *testing.T, h home, db *DB, q *Queue) {
		sqltest.Poison(t, &db.db, q.Queue, sqltest.Spawner(t, "suicide", h.dsn, q.Queue))
	})
}

func TestTwoProcessesShareATable(t *testing.T) {
	eachHome(t, func(t *testing.T, h home, db *DB, q *Queue) {
		sqltest.SharedTable(t, &db.db, q.Queue, sqltest.Spawner(t, "worker", h.dsn, q.Queue))
	})
}
