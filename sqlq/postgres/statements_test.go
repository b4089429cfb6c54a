package postgres

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/internal/sqltest"
	"github.com/settlemq/settle/sqlq"
)

// ownStatements is table own with a statement of the user's for every event, in a form.
func ownStatements(f sqlq.Form) sqlq.Table {
	table := sqltest.In(ownTable(), f)
	fence, count := " WHERE id = :id", "try"
	switch f.(type) {
	case sqlq.Lease:
		fence += " AND try = :attempt AND lock = :token"
	case sqlq.AdvisoryLock:
		fence += " AND try = :attempt"
	case sqlq.RowLock: // whose claim counts nothing
		count = "try + 1"
	}
	free := ""
	if table.LockedUntil != "" {
		free = ", lock = NULL"
	}
	retry := func(word, more string) []string {
		return []string{"UPDATE own SET key = '" + word + "', try = " + count + free + more + fence}
	}
	table.Statements = sqlq.Statements{
		Ack:        []string{"UPDATE own SET key = 'done', due = 'infinity'" + free + fence, "INSERT INTO log VALUES (concat('ack ', CAST(:id AS bigint)))"},
		Drop:       []string{"UPDATE own SET key = CAST(:cause AS text), due = 'infinity'" + free + fence},
		Retry:      retry(":token", ", grp = CAST(:cause AS text)"),
		RetryAfter: retry("later", ", due = now() + CAST(:delay AS bigint) * interval '1 microsecond'"),
		DeadLetter: []string{"UPDATE own SET key = CAST(:dead AS text), due = 'infinity'" + free + fence, "INSERT INTO log VALUES (concat('dead ', CAST(:cause AS text)))"},
		Release:    []string{"UPDATE own SET key = 'released', try = 1" + free + fence},
	}
	if table.LockedUntil != "" {
		table.Statements.Claim = `UPDATE own SET try = coalesce(try, 1) + 1, lock = now() + CAST(:lease AS bigint) * interval '1 microsecond', grp = 'claimed'
			WHERE id = ANY(ARRAY(SELECT id FROM own WHERE due <= now() AND (lock IS NULL OR lock <= now()) ORDER BY due LIMIT CAST(:limit AS bigint) FOR UPDATE SKIP LOCKED))
			RETURNING id, CAST(body AS bytea), CAST(try AS bigint), lock, CAST(0 AS bigint)`
		table.Statements.Renew = "UPDATE own SET lock = CAST(:next_token AS timestamptz)" + fence
	}
	return table
}

func openOwn(t *testing.T) *DB {
	t.Helper()
	db := fresh(t, Options{})
	sqltest.Exec(t, &db.db, ownDDL)
	sqltest.Exec(t, &db.db, "CREATE TABLE log (line text)")
	sqltest.Exec(t, &db.db, "INSERT INTO own (body, due, try) VALUES ('x', now(), 1)")
	return db
}

// The user's own statements run in the place of the library's, with their
// parameters, in one transaction, and are fenced by their first.
func TestStatementsOfTheUsers(t *testing.T) {
	why := errors.New("why")
	for _, c := range []struct {
		name    string
		verdict settle.Verdict
		key     string
		try     int
		log     string
	}{
		{"ack", ack, "done", 0, "ack 1"},
		{"drop", settle.Verdict{Action: settle.ActionDrop, Cause: why}, "why", 0, ""},
		{"retry", settle.Verdict{Action: settle.ActionRetry, Cause: why}, ":token", 2, ""},
		{"retry after", sqltest.RetryAfter(time.Hour), "later", 2, ""},
		{"dead-letter", settle.Verdict{Action: settle.ActionDeadLetter, Cause: why}, "grave", 0, "dead why"},
		{"release", release, "released", 1, ""},
	} {
		for _, f := range forms() {
			t.Run(fmt.Sprintf("%s %T", c.name, f), func(t *testing.T) {
				beside(t, f)
				db := openOwn(t)
				consumer := sqltest.Open(t, db.Queue(ownStatements(f)), settle.Registration{MaxAttempts: 5, DeadLetter: "table:grave"})
				d := sqltest.Receive(t, consumer, 1)[0]
				assert.Equal(t, 1, d.Attempt)
				require.NoError(t, sqltest.Settle(consumer, d, c.verdict))
				assert.Equal(t, c.key, sqltest.One[string](t, &db.db, "SELECT key FROM own"))
				if c.try > 0 {
					assert.Equal(t, c.try, sqltest.One[int](t, &db.db, "SELECT try FROM own"))
				}
				assert.Equal(t, c.log, sqltest.One[string](t, &db.db, "SELECT coalesce(string_agg(line, ','), '') FROM log"))
				if c.verdict.Action == settle.ActionRetry && c.verdict.Delay == 0 {
					require.NoError(t, sqltest.Settle(consumer, sqltest.Receive(t, consumer, 1)[0], ack), "and it comes again")
				}
			})
		}
	}
}

func TestALostLeaseUndoesTheUsersStatements(t *testing.T) {
	db := openOwn(t)
	consumer := sqltest.Open(t, db.Queue(ownStatements(sqlq.Lease{For: time.Minute})), settle.Registration{})
	d := sqltest.Receive(t, consumer, 1)[0]
	assert.Equal(t, "claimed", sqltest.One[string](t, &db.db, "SELECT grp FROM own"))
	sqltest.Exec(t, &db.db, "UPDATE own SET lock = lock + interval '1 microsecond'")
	require.ErrorIs(t, sqltest.Settle(consumer, d, ack), settle.ErrLeaseLost)
	assert.Zero(t, sqltest.One[int](t, &db.db, "SELECT count(*) FROM log"), "none of the statements counts then")
}

func TestALeaseIsRenewedByTheUsersStatement(t *testing.T) {
	db := openOwn(t)
	consumer := sqltest.Open(t, db.Queue(ownStatements(sqlq.Lease{For: 300 * time.Millisecond})), settle.Registration{})
	d := sqltest.Receive(t, consumer, 1)[0]
	first := sqltest.One[time.Time](t, &db.db, "SELECT lock FROM own")
	sqltest.Eventually(t, &db.db, true, "SELECT lock > $1::timestamptz + interval '600 milliseconds' FROM own", first)
	require.NoError(t, sqltest.Settle(consumer, d, ack))
}

// A claim that returns more than it was asked for, or not what it has to, claims nothing.
func TestAClaimOfTheUsersThatTakesTooMuch(t *testing.T) {
	db := openOwn(t)
	sqltest.Exec(t, &db.db, "INSERT INTO own (body, due) VALUES ('y', now())")
	for returning, says := range map[string]string{
		"id, CAST(body AS bytea), CAST(2 AS bigint), lock, CAST(0 AS bigint)": ":limit was 1",
		"id, body": "got 2 and 5",
	} {
		table := ownTable()
		table.Statements.Claim = "UPDATE own SET lock = now() + CAST(:lease AS bigint) * interval '1 microsecond' RETURNING " + returning
		c := sqltest.Open(t, db.Queue(table), settle.Registration{})
		_, err := c.Receive(t.Context(), make([]*settle.Delivery, 1))
		require.ErrorContains(t, err, says)
		assert.Equal(t, 2, sqltest.One[int](t, &db.db, "SELECT count(*) FROM own WHERE lock IS NULL"))
	}
}

// The user's statements run in the transaction of the handler where it has one.
func TestStatementsOfTheUsersInATransaction(t *testing.T) {
	for _, f := range forms() {
		t.Run(fmt.Sprintf("%T", f), func(t *testing.T) {
			db := openOwn(t)
			stop := handleTx(t, db.Queue(ownStatements(f)), func(ctx context.Context, tx pgx.Tx, d *settle.Delivery) settle.Outcome {
				if _, err := tx.Exec(ctx, "INSERT INTO log VALUES ($1)", fmt.Sprint("handler ", d.Attempt)); err != nil {
					return settle.Drop(err)
				}
				if d.Attempt == 1 {
					return settle.Retry(nil)
				}
				return settle.Ack()
			}, settle.Options{Workers: 2})
			sqltest.Eventually(t, &db.db, "ack 1,handler 2", "SELECT string_agg(line, ',' ORDER BY line) FROM log")
			require.NoError(t, stop())
		})
	}
}
