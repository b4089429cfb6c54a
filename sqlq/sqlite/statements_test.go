package sqlite

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/internal/sqltest"
	"github.com/settlemq/settle/sqlq"
)

// The user's own statements run in the place of the library's, with their
// parameters, in one transaction, and are fenced by their first.
func TestStatementsOfTheUsers(t *testing.T) {
	const fence = " WHERE id = :id AND try = :attempt AND lock = :token"
	table := ownTable()
	table.Statements = sqlq.Statements{
		Claim: `UPDATE own SET try = coalesce(try, 1) + 1, lock = :now + :lease, text = 'claimed'
			WHERE id IN (SELECT id FROM own WHERE text IS NOT 'done' AND (lock IS NULL OR lock <= :now) LIMIT :limit) RETURNING id, body, try, lock, 0`,
		Ack:        []string{"UPDATE own SET text = 'done'" + fence, "INSERT INTO log SELECT 'ack ' || :id || ' ' || (:attempt - 1)"},
		Drop:       []string{"UPDATE own SET text = 'done', head = :cause" + fence},
		Retry:      []string{"UPDATE own SET lock = NULL, text = ':token', head = :cause" + fence},
		RetryAfter: []string{"UPDATE own SET lock = :now + :delay, text = 'later'" + fence},
		DeadLetter: []string{"UPDATE own SET text = 'done', key = :dead" + fence, "INSERT INTO log VALUES ('dead ' || :cause)"},
		Release:    []string{"UPDATE own SET lock = NULL, try = :attempt - 1, text = 'released'" + fence},
		Renew:      "UPDATE own SET lock = :next_token" + fence,
	}
	const row = "SELECT coalesce(text, '') || ' ' || try || ' ' || coalesce(head, '') || coalesce(key, '') FROM own"
	for _, c := range []struct {
		name    string
		verdict settle.Verdict
		row     string
		log     string
	}{
		{"ack", ack, "done 2 ", "ack 1 1"},
		{"drop", settle.Verdict{Action: settle.ActionDrop, Cause: errors.New("why")}, "done 2 why", ""},
		{"retry", settle.Verdict{Action: settle.ActionRetry, Cause: errors.New("why")}, ":token 2 why", ""},
		{"retry after", settle.Verdict{Action: settle.ActionRetry, Delay: time.Hour}, "later 2 ", ""},
		{"dead-letter", settle.Verdict{Action: settle.ActionDeadLetter, Cause: errors.New("why")}, "done 2 grave", "dead why"},
		{"release", release, "released 1 ", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			db := openFile(t, Options{})
			sqltest.Exec(t, &db.db, ownDDL)
			sqltest.Exec(t, &db.db, "CREATE TABLE log (line TEXT)")
			sqltest.Exec(t, &db.db, "INSERT INTO own (body) VALUES ('x')")
			consumer := sqltest.Open(t, db.Queue(table), settle.Registration{MaxAttempts: 5, DeadLetter: "table:grave"})
			d := sqltest.Receive(t, consumer, 1)[0]
			assert.Equal(t, "claimed 2 ", sqltest.One[string](t, &db.db, row))
			require.NoError(t, sqltest.Settle(consumer, d, c.verdict))
			assert.Equal(t, c.row, sqltest.One[string](t, &db.db, row))
			assert.Equal(t, c.log, sqltest.One[string](t, &db.db, "SELECT coalesce(group_concat(line), '') FROM log"))
		})
	}

	t.Run("a lost lease", func(t *testing.T) {
		db := openFile(t, Options{})
		sqltest.Exec(t, &db.db, ownDDL)
		sqltest.Exec(t, &db.db, "CREATE TABLE log (line TEXT)")
		sqltest.Exec(t, &db.db, "INSERT INTO own (body) VALUES ('x')")
		consumer := sqltest.Open(t, db.Queue(table), settle.Registration{})
		d := sqltest.Receive(t, consumer, 1)[0]
		sqltest.Exec(t, &db.db, "UPDATE own SET lock = lock + 1")
		require.ErrorIs(t, sqltest.Settle(consumer, d, ack), settle.ErrLeaseLost)
		assert.Zero(t, sqltest.One[int](t, &db.db, "SELECT count(*) FROM log"), "none of the statements counts then")
	})

	t.Run("renewed", func(t *testing.T) {
		db := openFile(t, Options{})
		sqltest.Exec(t, &db.db, ownDDL)
		sqltest.Exec(t, &db.db, "CREATE TABLE log (line TEXT)")
		sqltest.Exec(t, &db.db, "INSERT INTO own (body) VALUES ('x')")
		table := table
		table.Form = sqlq.Lease{For: 200 * time.Millisecond}
		consumer := sqltest.Open(t, db.Queue(table), settle.Registration{})
		d := sqltest.Receive(t, consumer, 1)[0]
		first := sqltest.One[int64](t, &db.db, "SELECT lock FROM own")
		require.Eventually(t, func() bool { return sqltest.One[int64](t, &db.db, "SELECT lock FROM own") > first+500_000 }, deadline, 10*time.Millisecond)
		require.NoError(t, sqltest.Settle(consumer, d, ack))
	})
}

// A claim that returns more than it was asked for claims nothing.
func TestAClaimOfTheUsersThatTakesTooMuch(t *testing.T) {
	db := openFile(t, Options{})
	sqltest.Exec(t, &db.db, ownDDL)
	sqltest.Exec(t, &db.db, "INSERT INTO own (body) VALUES ('x'), ('y')")
	table := ownTable()
	table.Statements.Claim = "UPDATE own SET lock = :now + :lease RETURNING id, body, 2, lock, 0"
	c := sqltest.Open(t, db.Queue(table), settle.Registration{})
	_, err := c.Receive(t.Context(), make([]*settle.Delivery, 1))
	require.ErrorContains(t, err, ":limit was 1")
	assert.Equal(t, 2, sqltest.One[int](t, &db.db, "SELECT count(*) FROM own WHERE lock IS NULL"))

	table.Statements.Claim = "UPDATE own SET lock = :now + :lease RETURNING id, body"
	c = sqltest.Open(t, db.Queue(table), settle.Registration{})
	_, err = c.Receive(t.Context(), make([]*settle.Delivery, 9))
	require.ErrorContains(t, err, "reading a claimed row")
	assert.Equal(t, 2, sqltest.One[int](t, &db.db, "SELECT count(*) FROM own WHERE lock IS NULL"))
}

// A settlement that the database refuses does not keep those beside it from
// going through, and can be asked for again.
func TestASettlementThatFailsIsAloneInThat(t *testing.T) {
	db := openFile(t, Options{})
	table := leased(time.Minute)
	q := newQueue(t, db, table)
	deadTable := table
	deadTable.Name = "jobs_dead"
	newQueue(t, db, deadTable)
	sqltest.Publish(t, q, "a", "b", "c", "d")
	sqltest.Exec(t, &db.db, "CREATE TRIGGER no BEFORE INSERT ON jobs_dead WHEN NEW.payload = 'b' BEGIN SELECT RAISE(ABORT, 'no b here'); END")
	c := sqltest.Open(t, q, settle.Registration{Workers: 4, MaxAttempts: 2, DeadLetter: "table:jobs_dead"})
	ds := sqltest.Receive(t, c, 4)
	batch := []settle.Settlement{{Delivery: ds[0], Verdict: bury}, {Delivery: ds[1], Verdict: bury}, {Delivery: ds[2], Verdict: ack}, {Delivery: ds[3], Verdict: retry}}
	c.Settle(t.Context(), batch)
	assert.NoError(t, batch[0].Err)
	require.Error(t, batch[1].Err)
	assert.ErrorContains(t, batch[1].Err, "row 2")
	assert.ErrorContains(t, batch[1].Err, "no b here")
	assert.NotErrorIs(t, batch[1].Err, settle.ErrLeaseLost)
	assert.NoError(t, batch[2].Err)
	assert.NoError(t, batch[3].Err)
	assert.Equal(t, "b,d", sqltest.One[string](t, &db.db, "SELECT group_concat(payload ORDER BY id) FROM jobs"), "nothing is lost")
	sqltest.Exec(t, &db.db, "DROP TRIGGER no")
	require.NoError(t, sqltest.Settle(c, ds[1], bury))
	assert.Equal(t, "a,b", sqltest.One[string](t, &db.db, "SELECT group_concat(payload ORDER BY id) FROM jobs_dead"))
}
