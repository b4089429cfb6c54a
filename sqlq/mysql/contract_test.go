package mysql

import (
	"context"
	"errors"
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

	for _, s := range both { // one after the other: the suite looks for goroutines that are left behind
		id := []any{"binary(16)", "(UUID_TO_BIN(UUID(), 1))"}
		if s == services.MariaDB {
			id = []any{"uuid", "(UUID())"}
		}
		shapes := []sqltest.Shape{sqltest.FIFO()}
		for name, f := range forms() {
			shapes = append(
				append(append(shapes, sqltest.Shapes(name, f)...), sqltest.Pairs(name, f)...),
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
		t.Run(string(s), func(t *testing.T) { broker.Contract(t, shapes) })
	}
}

// sever ends the other connections to the database, and returns when what they held is free.
func sever(ctx context.Context, db *sqlq.Database, _ string) error {
	conn, err := db.DB.Conn(ctx) // which stays
	if err != nil {
		return err
	}
	defer conn.Close()
	ids, err := numbers(ctx, conn, "SELECT ID FROM information_schema.PROCESSLIST WHERE DB = DATABASE() AND ID <> CONNECTION_ID()")
	for _, id := range ids {
		if _, kill := conn.Exec(ctx, fmt.Sprintf("KILL %d", id)); number(kill) != erNoThread { // gone by itself
			err = errors.Join(err, kill)
		}
	}
	for err == nil { // KILL does not wait; a thread outlives its place in MySQL's list of processes
		var left []any
		left, err = numbers(ctx, conn, "SELECT PROCESSLIST_ID FROM performance_schema.threads WHERE PROCESSLIST_ID IN ? UNION ALL SELECT ID FROM information_schema.PROCESSLIST WHERE ID IN ?", list(ids), list(ids))
		if len(left) == 0 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	return err
}

// erNoThread is the number of the error of a KILL that comes too late.
const erNoThread = 1094

// numbers returns what a query finds.
func numbers(ctx context.Context, db sqlq.Execer, text string, args ...any) ([]any, error) {
	rows, err := db.Query(ctx, text, args...)
	if err != nil {
		return nil, err
	}
	var all []any
	for rows.Next() {
		var n int64
		err = errors.Join(err, rows.Scan(&n))
		all = append(all, n)
	}
	return all, errors.Join(err, rows.Err(), rows.Close())
}
