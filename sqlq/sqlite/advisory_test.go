package sqlite

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/internal/sqltest"
	"github.com/settlemq/settle/sqlq"
)

// advisory is the standard table with locks of the given pattern.
func advisory(key string) sqlq.Table {
	t := sqlq.Standard("jobs", "main")
	t.LockedUntil, t.Form = "", sqlq.AdvisoryLock{Key: key}
	return t
}

func TestVerdictsOnALockedRow(t *testing.T) {
	for _, c := range []struct {
		name    string
		verdict settle.Verdict
		want    string
	}{
		{"ack", ack, ""},
		{"drop", drop, ""},
		{"retry", settle.Verdict{Action: settle.ActionRetry, Cause: assert.AnError}, "main 2 " + assert.AnError.Error()},
		{"release", release, "main 1 -"},
		{"dead-letter", settle.Verdict{Action: settle.ActionDeadLetter, Cause: assert.AnError}, "main.dead 2 " + assert.AnError.Error()},
	} {
		t.Run(c.name, func(t *testing.T) {
			db := openFile(t, Options{})
			q := newQueue(t, db, advisory("jobs-{id}"))
			sqltest.Publish(t, q, "a")
			consumer := sqltest.Open(t, q, settle.Registration{MaxAttempts: 5, DeadLetter: "main.dead"})
			d := sqltest.Receive(t, consumer, 1)[0]
			assert.Equal(t, 2, sqltest.One[int](t, &db.db, "SELECT attempt FROM jobs"))
			sqltest.Nothing(t, sqltest.Open(t, q, settle.Registration{}), "it is locked")
			require.NoError(t, sqltest.Settle(consumer, d, c.verdict))
			assert.Equal(t, c.want, sqltest.One[string](t, &db.db, "SELECT coalesce(group_concat(queue || ' ' || attempt || ' ' || coalesce(cause, '-')), '') FROM jobs"))
			require.ErrorIs(t, sqltest.Settle(consumer, d, c.verdict), settle.ErrLeaseLost)
			if c.name == "retry" || c.name == "release" {
				assert.Equal(t, "a", string(sqltest.Receive(t, sqltest.Open(t, q, settle.Registration{}), 1)[0].Body), "its lock is free again")
			}
		})
	}
}

// Rows whose locks have the same name go one at a time, in order; others beside them.
func TestRowsOfOneLockGoOneAtATime(t *testing.T) {
	db := openFile(t, Options{})
	q := newQueue(t, db, advisory("customer-{msg_key}"))
	publishKeyed(t, q, "a-1", "a-2", "b-1", "a-3", "b-2")
	c, other := sqltest.Open(t, q, settle.Registration{Workers: 9}), sqltest.Open(t, q, settle.Registration{Workers: 9})
	first := sqltest.Receive(t, c, 9)
	assert.Equal(t, []string{"a-1", "b-1"}, sqltest.Bodies(first))
	sqltest.Nothing(t, other, "both locks are held in this process")
	require.NoError(t, sqltest.Settle(c, first[0], ack))
	second := sqltest.Receive(t, other, 9)
	assert.Equal(t, []string{"a-2"}, sqltest.Bodies(second))
	require.NoError(t, sqltest.Settle(other, second[0], retry))
	assert.Equal(t, []string{"a-2"}, sqltest.Bodies(sqltest.Receive(t, c, 9)))
}

// A lock with more rows than a claim looks at must not hide the others.
func TestALockWithManyRowsDoesNotHideOthers(t *testing.T) {
	db := openFile(t, Options{})
	q := newQueue(t, db, advisory("{msg_key}"))
	many := make([]settle.Message, 300)
	for i := range many {
		many[i].Key = "many"
	}
	require.NoError(t, q.Publish(t.Context(), many...))
	publishKeyed(t, q, "b-1")
	c := sqltest.Open(t, q, settle.Registration{Workers: 9})
	require.Len(t, sqltest.Receive(t, c, 9), 1)
	assert.Equal(t, []string{"b-1"}, sqltest.Bodies(sqltest.Receive(t, c, 9)))
}

// A NULL in the pattern counts as empty, so such rows share a lock; other parts tell them apart.
func TestALockOverNULL(t *testing.T) {
	db := openFile(t, Options{})
	q := newQueue(t, db, advisory("{msg_key}/{id}"))
	sqltest.Publish(t, q, "a", "b")
	assert.Len(t, sqltest.Receive(t, sqltest.Open(t, q, settle.Registration{Workers: 9}), 9), 2)
}

// A row that is settled by somebody who knows nothing of locks is lost to its
// delivery, and its lock is free.
func TestALockedRowThatChangesIsLost(t *testing.T) {
	db := openFile(t, Options{})
	q := newQueue(t, db, advisory("{id}"))
	sqltest.Publish(t, q, "a")
	c := sqltest.Open(t, q, settle.Registration{})
	d := sqltest.Receive(t, c, 1)[0]
	sqltest.Exec(t, &db.db, "UPDATE jobs SET attempt = 7")
	require.ErrorIs(t, sqltest.Settle(c, d, ack), settle.ErrLeaseLost)
	assert.Equal(t, 7, sqltest.Receive(t, c, 1)[0].Attempt)
}

// A statement that fails keeps the lock as long as the runtime asks again, and
// no longer than the session.
func TestAFailedStatementDoesNotKeepItsLock(t *testing.T) {
	db := openFile(t, Options{})
	table := advisory("{id}")
	q := newQueue(t, db, table)
	sqltest.Publish(t, q, "a")
	sqltest.Exec(t, &db.db, "CREATE TRIGGER fail BEFORE DELETE ON jobs BEGIN SELECT RAISE(ABORT, 'no'); END")
	c, err := q.Open(t.Context(), sqltest.Registration(settle.Registration{}))
	require.NoError(t, err)
	d := sqltest.Receive(t, c, 1)[0]
	require.ErrorContains(t, sqltest.Settle(c, d, ack), "no")
	sqltest.Nothing(t, sqltest.Open(t, q, settle.Registration{}), "it is still this delivery's")
	require.NoError(t, c.Close(t.Context()))
	assert.Equal(t, 2, sqltest.Receive(t, sqltest.Open(t, q, settle.Registration{}), 1)[0].Attempt)
}

// A claim that fails keeps no lock.
func TestAFailedClaimKeepsNoLock(t *testing.T) {
	db := openFile(t, Options{})
	q := newQueue(t, db, advisory("{id}"))
	sqltest.Publish(t, q, "a", "b")
	sqltest.Exec(t, &db.db, "CREATE TRIGGER fail BEFORE UPDATE ON jobs WHEN OLD.payload = 'b' BEGIN SELECT RAISE(ABORT, 'no'); END")
	c := sqltest.Open(t, q, settle.Registration{Workers: 9})
	_, err := c.Receive(t.Context(), make([]*settle.Delivery, 9))
	require.ErrorContains(t, err, "no")
	sqltest.Exec(t, &db.db, "DROP TRIGGER fail")
	ds := sqltest.Receive(t, c, 9)
	require.Equal(t, []string{"a", "b"}, sqltest.Bodies(ds))
	assert.Equal(t, 1, ds[0].Attempt, "and counted nothing")
}

// The lock on the table goes with the last session that needs it.
func TestTheTablesLockIsGivenBack(t *testing.T) {
	db := openFile(t, Options{})
	q := newQueue(t, db, advisory("{id}"))
	for range 2 {
		var sessions [2]settle.Consumer
		for i := range sessions {
			c, err := q.Open(t.Context(), sqltest.Registration(settle.Registration{}))
			require.NoError(t, err)
			sessions[i] = c
		}
		for _, c := range sessions {
			require.NoError(t, c.Close(t.Context()))
		}
	}
}

func TestWhatAnAdvisoryLockRefuses(t *testing.T) {
	db := openFile(t, Options{})
	table := advisory("{id}")
	table.Statements.Claim = "SELECT 1"
	q := newQueue(t, db, table)
	assert.Equal(t, "Statements", sqltest.Refusal(t, q, settle.Registration{}).Setting)
}
