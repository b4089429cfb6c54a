package sqlite

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/settlemq/settle/internal/sqltest"
	"github.com/settlemq/settle/sqlq"
)

// TestContract runs the suite on both forms. Nothing can take a lock of this process away.
func TestContract(t *testing.T) {
	lease := sqlq.Lease{For: time.Second}
	own := sqlq.Table{
		Name: `my "jobs"; --`, ID: "uuid", Payload: "Body", Attempt: "try", RetryAfter: "run at", LockedUntil: "lock'd", Headers: "meta", Cause: "why", Form: lease,
	}
	var shapes []sqltest.Shape
	for name, f := range map[string]sqlq.Form{"lease": lease, "advisory lock": sqlq.AdvisoryLock{}} {
		shapes = append(append(shapes, sqltest.Shapes(name, f)...), sqltest.Pairs(name, f)...)
	}
	shapes = append(
		shapes, sqltest.FIFO(),
		sqltest.Shape{
			Name: "lease, own table", Table: own, Dead: `dead "jobs"`, Rare: true,
			DDL: `(uuid TEXT PRIMARY KEY, Body, try INT, "run at" BIGINT, "lock'd" INTEGER, meta JSON, why VARCHAR(99), extra DEFAULT 7)`,
		},
	)
	broker := sqltest.Broker{Home: func(t testing.TB) func() *sqlq.Database {
		path := filepath.Join(t.TempDir(), "q.db")
		return func() *sqlq.Database { return &openPath(t, path, Options{}).db }
	}}
	broker.Contract(t, shapes)
}
