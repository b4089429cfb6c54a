package mysql

import (
	"testing"

	"github.com/settlemq/settle/internal/sqltest"
)

// An idle queue costs two queries a second, with half a second a Poll.
func TestAnIdleQueueCostsOneLookAPoll(t *testing.T) {
	eachForm(t, nil, func(t *testing.T, db *DB, q *Queue) { sqltest.IdleCost(t, &db.db, q.Queue) })
}
