package postgres

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/internal/faults"
	"github.com/settlemq/settle/internal/sqltest"
	"github.com/settlemq/settle/sqlq"
)

func rowLock(t *testing.T, o Options) (*DB, *Queue) {
	t.Helper()
	db := fresh(t, o)
	return db, newQueue(t, db, sqltest.In(sqlq.Standard("jobs", "main"), sqlq.RowLock{}))
}

// cut ends every connection that has rows of the table locked, as a crash of the
// network or an administrator does.
func cut(t *testing.T, db *DB) {
	t.Helper()
	n := sqltest.One[int](t, &db.db, `SELECT count(pg_terminate_backend(pid, 5000)) FROM (SELECT DISTINCT pid FROM pg_locks
		WHERE pid <> pg_backend_pid() AND relation = 'jobs'::regclass AND mode <> 'AccessShareLock') AS l`)
	require.NotZero(t, n, "nobody had a row locked")
}

func TestARowLockWritesNothingUntilItIsSettled(t *testing.T) {
	db, q := rowLock(t, Options{})
	sqltest.Publish(t, q, "a", "b", "c", "d", "e")
	c := sqltest.Open(t, q, settle.Registration{Workers: 5})
	for _, want := range []struct {
		verdict settle.Verdict
		row     string // the group, the attempt and whether it is due; empty: gone
	}{
		{ack, ""},
		{drop, ""},
		{retry, "main 2 true"},
		{settle.Verdict{Action: settle.ActionRetry, Delay: time.Hour}, "main 2 false"},
		{release, "main 1 true"},
	} {
		d := sqltest.Receive(t, c, 1)[0]
		const row = "SELECT coalesce((SELECT concat_ws(' ', queue, attempt, (retry_after <= now())::text) FROM jobs WHERE id = $1::text::bigint), '')"
		require.Equal(t, "main 1 true", sqltest.One[string](t, &db.db, row, d.ID))
		require.NoError(t, sqltest.Settle(c, d, want.verdict))
		require.Equal(t, want.row, sqltest.One[string](t, &db.db, row, d.ID), "%v", want.verdict)
		sqltest.Exec(t, &db.db, "DELETE FROM jobs WHERE id = $1::text::bigint", d.ID)
	}
}

func TestARowThatIsLockedLetsOthersReferToIt(t *testing.T) {
	db, q := rowLock(t, Options{})
	sqltest.Exec(t, &db.db, "CREATE TABLE results (job bigint REFERENCES jobs)")
	sqltest.Publish(t, q, "a")
	c := sqltest.Open(t, q, settle.Registration{})
	d := sqltest.Receive(t, c, 1)[0]
	sqltest.Exec(t, &db.db, "SET lock_timeout = '2s'; INSERT INTO results VALUES ("+d.ID+"); RESET lock_timeout")
	sqltest.Exec(t, &db.db, "DELETE FROM results")
	require.NoError(t, sqltest.Settle(c, d, ack))
}

// TestALostConnectionCountsTheAttempt: what the transaction could not count is counted afterwards.
func TestALostConnectionCountsTheAttempt(t *testing.T) {
	db, q := rowLock(t, Options{})
	sqltest.Publish(t, q, "a")
	c := sqltest.Open(t, q, settle.Registration{Workers: 2})
	d := sqltest.Receive(t, c, 1)[0]
	cut(t, db)
	require.ErrorIs(t, sqltest.Settle(c, d, retry), settle.ErrLeaseLost)
	require.Equal(t, 2, sqltest.One[int](t, &db.db, "SELECT attempt FROM jobs"))

	// Who has the row by then has counted by his settlement.
	d = sqltest.Receive(t, c, 1)[0]
	cut(t, db)
	again := sqltest.Receive(t, c, 1)[0]
	require.Equal(t, 2, again.Attempt)
	require.NoError(t, sqltest.Settle(c, again, retry))
	require.ErrorIs(t, sqltest.Settle(c, d, ack), settle.ErrLeaseLost)
	require.Equal(t, 3, sqltest.One[int](t, &db.db, "SELECT attempt FROM jobs"))
}

// TestAttemptsLostWhileOthersHaveTheRow: what cannot be counted because somebody has the row
// locked again is counted by him, or by the next.
func TestAttemptsLostWhileOthersHaveTheRow(t *testing.T) {
	const attempts = "SELECT coalesce(string_agg(concat_ws(' ', queue, attempt), ','), '') FROM jobs"
	for _, c := range []struct {
		name    string
		verdict settle.Verdict
		after   string
	}{
		{"retry", retry, "main 4"},
		{"delay", sqltest.RetryAfter(time.Hour), "main 4"},
		{"dead letter", toDead, "main.dead 4"},
		{"ack", ack, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			db, q := rowLock(t, Options{})
			sqltest.Publish(t, q, "a")
			consumer := sqltest.Open(t, q, settle.Registration{Workers: 4, MaxAttempts: 9, DeadLetter: "main.dead"})
			first := sqltest.Receive(t, consumer, 1)[0]
			cut(t, db)
			second := sqltest.Receive(t, consumer, 1)[0]
			require.Equal(t, 1, second.Attempt, "nobody could count the first yet")
			require.ErrorIs(t, sqltest.Settle(consumer, first, retry), settle.ErrLeaseLost)
			cut(t, db)
			third := sqltest.Receive(t, consumer, 1)[0]
			require.Equal(t, 2, third.Attempt)
			require.ErrorIs(t, sqltest.Settle(consumer, second, retry), settle.ErrLeaseLost)
			require.NoError(t, sqltest.Settle(consumer, third, release))
			require.Equal(t, "main 1", sqltest.One[string](t, &db.db, attempts), "given back at no cost, and what is owed is still owed")
			third = sqltest.Receive(t, consumer, 1)[0]
			require.Equal(t, 3, third.Attempt)
			require.NoError(t, sqltest.Settle(consumer, third, c.verdict))
			require.Equal(t, c.after, sqltest.One[string](t, &db.db, attempts))
		})
	}
}

// TestAHandlerThatCostsItsConnectionEnds: it comes to its cap, however many workers take the row at once.
func TestAHandlerThatCostsItsConnectionEnds(t *testing.T) {
	db, q := rowLock(t, Options{})
	sqltest.Publish(t, q, "poison")
	var calls atomic.Int64
	handleTx(t, q, func(ctx context.Context, tx pgx.Tx, d *settle.Delivery) settle.Outcome {
		calls.Add(1)
		_, err := tx.Exec(ctx, "SELECT pg_terminate_backend(pg_backend_pid())")
		return settle.Retry(err)
	}, settle.Options{Workers: 6, MaxAttempts: 3, DeadLetter: "main.dead"})
	sqltest.Eventually(t, &db.db, "main.dead", "SELECT queue FROM jobs")
	assert.Less(t, calls.Load(), int64(50), "workers take it before others have counted, but not for ever")
}

// refuseBad has the database delete no row whose payload is "bad", until allow is called.
func refuseBad(t *testing.T, db *DB) (allow func()) {
	t.Helper()
	sqltest.Exec(t, &db.db, "CREATE TABLE refusing AS SELECT 1")
	sqltest.Exec(t, &db.db, `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		IF OLD.payload = 'bad' AND EXISTS (SELECT FROM refusing) THEN RAISE EXCEPTION 'not this one'; END IF;
		RETURN OLD; END $$`)
	sqltest.Exec(t, &db.db, "CREATE TRIGGER refuse BEFORE DELETE ON jobs FOR EACH ROW EXECUTE FUNCTION refuse()")
	return func() { sqltest.Exec(t, &db.db, "DELETE FROM refusing") }
}

// TestARefusedSettlementKeepsTheRow: the row stays locked, and settling it again works when the
// database does; the others of its transaction do not wait for that.
func TestARefusedSettlementKeepsTheRow(t *testing.T) {
	eachForm(t, nil, func(t *testing.T, db *DB, q *Queue) {
		sqltest.Publish(t, q, "a", "bad", "c")
		allow := refuseBad(t, db)
		c := sqltest.Open(t, q, settle.Registration{Workers: 2, Batch: 3})
		ds := sqltest.Receive(t, c, 3)
		require.Len(t, ds, 3)
		errs := sqltest.SettleAll(c, ack, ds...)
		require.NoError(t, errs[0])
		require.ErrorContains(t, errs[1], "not this one")
		require.NoError(t, errs[2])
		for _, lost := range []error{settle.ErrLeaseLost, settle.ErrSessionLost} {
			require.NotErrorIs(t, errs[1], lost)
		}
		require.Equal(t, "bad", sqltest.One[string](t, &db.db, "SELECT string_agg(convert_from(payload, 'UTF8'), ' ') FROM jobs"))
		sqltest.Nothing(t, c, "a row that is still in work")
		require.ErrorContains(t, sqltest.Settle(c, ds[1], ack), "not this one")
		allow()
		require.NoError(t, sqltest.Settle(c, ds[1], ack))
		require.Zero(t, sqltest.One[int](t, &db.db, "SELECT count(*) FROM jobs"))
	})
}

// TestACommitThatIsNotAnswered: what the server says of the transaction is what counts.
func TestACommitThatIsNotAnswered(t *testing.T) {
	for _, arrives := range []bool{true, false} {
		t.Run(fmt.Sprint("arrives ", arrives), func(t *testing.T) {
			h := newHome(t, "postgres")
			direct := h.open(t, Options{})
			table := sqltest.In(sqlq.Standard("jobs", "main"), sqlq.RowLock{})
			sqltest.Publish(t, newQueue(t, direct, table), "a")
			line := faults.Proxy(t, h.url)
			c := sqltest.Open(t, openURL(t, line.URL(), Options{}).Queue(table), settle.Registration{})
			d := sqltest.Receive(t, c, 1)[0]

			line.Blackhole() // what is sent now is kept, and goes on its way later
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			batch := []settle.Settlement{{Delivery: d, Verdict: ack}}
			c.Settle(ctx, batch)
			require.Error(t, batch[0].Err)
			require.NotErrorIs(t, batch[0].Err, settle.ErrLeaseLost, "nobody knows yet")
			if !arrives {
				line.Sever()
			}
			line.Restore()
			var err error
			require.Eventually(t, func() bool {
				err = sqltest.Settle(c, d, ack)
				return err == nil || errors.Is(err, settle.ErrLeaseLost)
			}, deadline, 20*time.Millisecond, "%v", err)
			left := sqltest.One[int](t, &direct.db, "SELECT count(*) FROM jobs")
			if err == nil {
				assert.Zero(t, left, "it is settled, and the row is there")
			} else {
				assert.Equal(t, 1, left, "it is lost, and the row is not there")
				assert.Equal(t, 2, sqltest.One[int](t, &direct.db, "SELECT attempt FROM jobs"))
			}
		})
	}
}
