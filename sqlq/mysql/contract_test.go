package mysql

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/settlemq/settle/internal/services"
	"github.com/settlemq/settle/internal/sqltest"
	"github.com/settlemq/settle/sqlq"
)

// forms are the three, by name.
func forms() map[string]sqlq.Form {
	return map[string]sqlq.Form{
		"lease": sqlq.Lease{For: time.Second}, "row lock": sqlq.RowLock{}, "advisory lock": sqlq.AdvisoryLock{Key: "jobs-{id}"},
	}
}

// TestContract runs the suite on each form and server: on the recommended table every day, in
// make test-all on others too, of which some are the user's own.
func TestContract(t *testing.T) {
	own := sqlq.Table{
		Name: "my `jobs`; --", ID: "uuid", Payload: "Body", Attempt: "try", RetryAfter: "run at", LockedUntil: "lock'd", Headers: "meta", Cause: "why",
	}
	const ownColumns = "(uuid %s PRIMARY KEY DEFAULT %s, Body longtext NOT NULL, try smallint, `run at` datetime(3), `lock'd` datetime(1), meta json, why varchar(100), extra int DEFAULT 7, KEY (`run at`))"
	json := sqlq.Standard("jobs", "main")
	json.Headers = ""
	const jsonColumns = "(id varchar(40) CHARACTER SET latin1 PRIMARY KEY, queue varchar(10) NOT NULL, payload json NOT NULL, attempt bigint, retry_after timestamp(6) NULL, locked_until timestamp NULL, msg_key int, cause text, KEY (queue, retry_after))"

	eachServer(t, func(t *testing.T, s services.Service) {
		id := []any{"binary(16)", "(UUID_TO_BIN(UUID(), 1))"}
		if s == services.MariaDB {
			id = []any{"uuid", "(UUID())"}
		}
		shapes := []sqltest.Shape{sqltest.FIFO()}
		for name, f := range forms() {
			shapes = append(
				append(shapes, sqltest.Shapes(name, f)...),
				sqltest.Shape{Name: name + ", own table", Table: sqltest.In(own, f), DDL: fmt.Sprintf(ownColumns, id...), Dead: "dead `jobs`", Gaps: sqltest.TextOnly, Rare: true},
				sqltest.Shape{Name: name + ", text id and JSON", Table: sqltest.In(json, f), DDL: jsonColumns, Dead: "main.dead", Gaps: sqltest.JSONOnly, Rare: true},
			)
		}
		broker := sqltest.Broker{
			Home: func(t testing.TB) func() *sqlq.Database {
				h := newHome(t, s)
				return func() *sqlq.Database { return &h.open(t, Options{MaxConns: 40}).db }
			},
			Sever: sever,
		}
		broker.Contract(t, shapes)
	})
}

// sever ends the other connections to the database that are in a transaction or have advisory locks: all
// but the one that asks, as those that do nothing are connected again before anybody notices.
func sever(ctx context.Context, db *sqlq.Database, _ string) error {
	rows, err := db.DB.Query(ctx, "SELECT ID FROM information_schema.PROCESSLIST WHERE DB = DATABASE() AND ID <> CONNECTION_ID()")
	if err != nil {
		return err
	}
	var ids []int64
	for rows.Next() {
		var id int64
		if err := rows.Scan(&id); err != nil {
			return err
		}
		ids = append(ids, id)
	}
	if err := rows.Close(); err != nil {
		return err
	}
	for _, id := range ids {
		if _, err := db.DB.Exec(ctx, fmt.Sprintf("KILL %d", id)); err != nil && number(err) != 1094 { // gone by itself
			return err
		}
	}
	for { // KILL does not wait
		var left int
		rows, err := db.DB.Query(ctx, "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE ID IN ?", listOf(ids))
		if err != nil {
			return err
		}
		rows.Next()
		if err := rows.Scan(&left); err != nil {
			return err
		}
		if err := rows.Close(); err != nil || left == 0 {
			return err
		}
		time.Sleep(time.Millisecond)
	}
}

func listOf(ids []int64) list {
	var all list
	for _, id := range ids {
		all = append(all, id)
	}
	return all
}
