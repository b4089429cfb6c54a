package sqlite

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/settlemq/settle"
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
			publish(t, q, "a")
			consumer := open(t, q, settle.Registration{MaxAttempts: 5, DeadLetter: "main.dead"})
			d := receive(t, consumer, 1)[0]
			assert.Equal(t, 2, one[int](t, db, "SELECT attempt FROM jobs"))
			nothing(t, open(t, q, settle.Registration{}), "it is locked")
			require.NoError(t, settleOne(consumer, d, c.verdict))
			assert.Equal(t, c.want, one[string](t, db, "SELECT coalesce(group_concat(queue || ' ' || attempt || ' ' || coalesce(cause, '-')), '') FROM jobs"))
			require.ErrorIs(t, settleOne(consumer, d, c.verdict), settle.ErrLeaseLost)
			if c.name == "retry" || c.name == "release" {
				assert.Equal(t, "a", string(receive(t, open(t, q, settle.Registration{}), 1)[0].Body), "its lock is free again")
			}
		})
	}
}

// Rows whose locks have the same name go one at a time, in order; others beside them.
func TestRowsOfOneLockGoOneAtATime(t *testing.T) {
	db := openFile(t, Options{})
	q := newQueue(t, db, advisory("customer-{msg_key}"))
	publishKeyed(t, q, "a-1", "a-2", "b-1", "a-3", "b-2")
	c, other := open(t, q, settle.Registration{Workers: 9}), open(t, q, settle.Registration{Workers: 9})
	first := receive(t, c, 9)
	assert.Equal(t, []string{"a-1", "b-1"}, bodies(first))
	nothing(t, other, "both locks are held in this process")
	require.NoError(t, settleOne(c, first[0], ack))
	second := receive(t, other, 9)
	assert.Equal(t, []string{"a-2"}, bodies(second))
	require.NoError(t, settleOne(other, second[0], retry))
	assert.Equal(t, []string{"a-2"}, bodies(receive(t, c, 9)))
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
	c := open(t, q, settle.Registration{Workers: 9})
	require.Len(t, receive(t, c, 9), 1)
	assert.Equal(t, []string{"b-1"}, bodies(receive(t, c, 9)))
}

// A NULL in the pattern counts as empty, so such rows share a lock; other parts tell them apart.
func TestALockOverNULL(t *testing.T) {
	db := openFile(t, Options{})
	q := newQueue(t, db, advisory("{msg_key}/{id}"))
	publish(t, q, "a", "b")
	assert.Len(t, receive(t, open(t, q, settle.Registration{Workers: 9}), 9), 2)
}

// A row that is settled by somebody who knows nothing of locks is lost to its
// delivery, and its lock is free.
func TestALockedRowThatChangesIsLost(t *testing.T) {
	db := openFile(t, Options{})
	q := newQueue(t, db, advisory("{id}"))
	publish(t, q, "a")
	c := open(t, q, settle.Registration{})
	d := receive(t, c, 1)[0]
	execute(t, db, "UPDATE jobs SET attempt = 7")
	require.ErrorIs(t, settleOne(c, d, ack), settle.ErrLeaseLost)
	assert.Equal(t, 7, receive(t, c, 1)[0].Attempt)
}

// A statement that fails keeps the lock as long as the runtime asks again, and
// no longer than the session.
func TestAFailedStatementDoesNotKeepItsLock(t *testing.T) {
	db := openFile(t, Options{})
	table := advisory("{id}")
	q := newQueue(t, db, table)
	publish(t, q, "a")
	execute(t, db, "CREATE TRIGGER fail BEFORE DELETE ON jobs BEGIN SELECT RAISE(ABORT, 'no'); END")
	c, err := q.Open(t.Context(), registration(settle.Registration{}))
	require.NoError(t, err)
	d := receive(t, c, 1)[0]
	require.ErrorContains(t, settleOne(c, d, ack), "no")
	nothing(t, open(t, q, settle.Registration{}), "it is still this delivery's")
	require.NoError(t, c.Close(t.Context()))
	assert.Equal(t, 2, receive(t, open(t, q, settle.Registration{}), 1)[0].Attempt)
}

// A claim that fails keeps no lock.
func TestAFailedClaimKeepsNoLock(t *testing.T) {
	db := openFile(t, Options{})
	q := newQueue(t, db, advisory("{id}"))
	publish(t, q, "a", "b")
	execute(t, db, "CREATE TRIGGER fail BEFORE UPDATE ON jobs WHEN OLD.payload = 'b' BEGIN SELECT RAISE(ABORT, 'no'); END")
	c := open(t, q, settle.Registration{Workers: 9})
	_, err := c.Receive(t.Context(), make([]*settle.Delivery, 9))
	require.ErrorContains(t, err, "no")
	execute(t, db, "DROP TRIGGER fail")
	ds := receive(t, c, 9)
	require.Equal(t, []string{"a", "b"}, bodies(ds))
	assert.Equal(t, 1, ds[0].Attempt, "and counted nothing")
}

// The lock on the table goes with the last session that needs it.
func TestTheTablesLockIsGivenBack(t *testing.T) {
	db := openFile(t, Options{})
	q := newQueue(t, db, advisory("{id}"))
	for range 2 {
		var sessions [2]settle.Consumer
		for i := range sessions {
			c, err := q.Open(t.Context(), registration(settle.Registration{}))
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
	assert.Equal(t, "Statements", refusal(t, q, settle.Registration{}).Setting)
}
