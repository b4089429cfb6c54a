package postgres

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/settlemq/settle/internal/services"
	"github.com/settlemq/settle/internal/sqltest"
	"github.com/settlemq/settle/sqlq"
)

// TestContract runs the suite on each form: on the recommended table every day, in make test-all
// on others too, of which some are the user's own.
func TestContract(t *testing.T) {
	own := sqlq.Table{
		Name: `my "jobs"; --`, ID: "uuid", Payload: "Body", Attempt: "try", RetryAfter: "run at", LockedUntil: "lock'd", Headers: "meta", Cause: "why",
	}
	const ownColumns = `(uuid uuid PRIMARY KEY DEFAULT gen_random_uuid(), "Body" text NOT NULL, try smallint, "run at" timestamp(3), "lock'd" timestamptz(0), meta json, why varchar(2000), extra int DEFAULT 7)`
	structured := sqlq.Standard("jobs", "main")
	structured.Headers = ""
	const jsonColumns = `(id text PRIMARY KEY, queue varchar(10) NOT NULL, payload jsonb NOT NULL, attempt bigint, retry_after timestamptz, locked_until timestamp, msg_key int, cause text)`

	shapes := []sqltest.Shape{sqltest.FIFO()}
	for name, f := range map[string]sqlq.Form{"lease": sqlq.Lease{For: time.Second}, "row lock": sqlq.RowLock{}, "advisory lock": sqlq.AdvisoryLock{}} {
		shapes = append(
			append(append(shapes, sqltest.Shapes(name, f)...), sqltest.Pairs(name, f)...),
			sqltest.Shape{Name: name + ", own table", Table: sqltest.In(own, f), DDL: ownColumns, Dead: `dead "jobs"`, Gaps: sqltest.TextOnly, Rare: true},
			sqltest.Shape{Name: name + ", text id and JSON", Table: sqltest.In(structured, f), DDL: jsonColumns, Dead: "main.dead", Gaps: sqltest.JSONOnly, Rare: true},
		)
	}
	broker := sqltest.Broker{
		Home: func(t testing.TB) func() *sqlq.Database {
			h := newHome(t, services.Postgres)
			return func() *sqlq.Database { return &h.open(t, Options{MaxConns: 40}).db }
		},
		Text:  func(column string) string { return column + "::text" },
		Sever: sever,
	}
	broker.Contract(t, shapes)
}

// sever ends the connections that have rows of the table locked, or advisory locks and work on the table.
func sever(ctx context.Context, db *sqlq.Database, table string) error {
	_, err := db.DB.Exec(ctx, fmt.Sprintf(`SELECT pg_terminate_backend(l.pid, 5000) FROM (SELECT DISTINCT pid FROM pg_locks
		WHERE pid <> pg_backend_pid() AND (relation = to_regclass(%s) OR locktype = 'advisory'
			AND pid IN (SELECT pid FROM pg_stat_activity WHERE application_name = current_schema()))) AS l`, db.Dialect.Literal(db.Dialect.Quote(table))))
	// Those that were back in the pool by then are not for the suite to stumble over.
	for _, c := range db.DB.(*pool).p.AcquireAllIdle(ctx) {
		_ = c.Ping(ctx)
		c.Release()
	}
	return err
}
