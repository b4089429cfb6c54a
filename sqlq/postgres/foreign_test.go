package postgres

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/internal/sqltest"
	"github.com/settlemq/settle/sqlq"
)

// inWork has rows in work on leases, whose ends are counted, and a transaction of somebody else's
// that has the row 3 locked.
func inWork(t *testing.T, rows int, span time.Duration) (db *DB, c settle.Consumer, ds []*settle.Delivery, lost *atomic.Int64, foreign pgx.Tx) {
	t.Helper()
	db = fresh(t, Options{})
	q := newQueue(t, db, sqltest.In(sqlq.Standard("jobs", "main"), sqlq.Lease{For: span}))
	for i := range rows {
		sqltest.Publish(t, q, fmt.Sprint(i+1))
	}
	lost = &atomic.Int64{}
	c = sqltest.Open(t, q, settle.Registration{Workers: rows, Notify: func(n settle.Notice) {
		if n.Kind == settle.NoticeLeaseLost {
			lost.Add(1)
		}
	}})
	ds = sqltest.Receive(t, c, rows)
	require.Len(t, ds, rows)
	foreign, err := db.Pool().Begin(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { _ = foreign.Rollback(t.Context()) })
	_, err = foreign.Exec(t.Context(), "SELECT FROM jobs WHERE id = 3 FOR UPDATE")
	require.NoError(t, err)
	return db, c, ds, lost, foreign
}

// A row that somebody else has locked keeps no other from being settled, and is settled once it is free.
func TestARowThatSomebodyElseHasLockedWaitsAlone(t *testing.T) {
	db, c, ds, _, foreign := inWork(t, 8, time.Minute)
	for i, err := range sqltest.SettleAll(c, ack, ds...) {
		if i == 2 {
			require.ErrorContains(t, err, "somebody else")
			require.False(t, errors.Is(err, settle.ErrLeaseLost) || settle.IsPermanent(err), "%v", err)
			continue
		}
		require.NoError(t, err, i)
	}
	require.Error(t, sqltest.Settle(c, ds[2], ack), "alone it does not wait for ever either")
	require.NoError(t, foreign.Rollback(t.Context()))
	require.NoError(t, sqltest.Settle(c, ds[2], ack))
	assert.Zero(t, sqltest.One[int](t, &db.db, "SELECT count(*) FROM jobs"))
}

// Nor does it keep the leases of the others from being renewed.
func TestARowThatSomebodyElseHasLockedLosesItsLeaseAlone(t *testing.T) {
	db, c, ds, lost, _ := inWork(t, 8, 1500*time.Millisecond)
	require.Eventually(t, func() bool { return lost.Load() > 0 }, deadline, 10*time.Millisecond)
	assert.Equal(t, 7, sqltest.One[int](t, &db.db, "SELECT count(*) FROM jobs WHERE locked_until > now()"))
	for i, d := range ds {
		if i != 2 {
			require.NoError(t, sqltest.Settle(c, d, ack), i)
		}
	}
	assert.EqualValues(t, 1, lost.Load())
}

// A row whose renewal the database refuses loses its lease alone.
func TestARowThatCannotBeRenewedLosesItsLeaseAlone(t *testing.T) {
	db, c, ds, lost, foreign := inWork(t, 4, time.Second)
	require.NoError(t, foreign.Rollback(t.Context()))
	sqltest.Exec(t, &db.db, `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF OLD.id = 3 THEN RAISE EXCEPTION 'not this one'; END IF; RETURN NEW; END $$`)
	sqltest.Exec(t, &db.db, "CREATE TRIGGER refuse BEFORE UPDATE ON jobs FOR EACH ROW EXECUTE FUNCTION refuse()")
	require.Eventually(t, func() bool { return lost.Load() > 0 }, deadline, 10*time.Millisecond)
	for i, d := range ds {
		if i != 2 {
			require.NoError(t, sqltest.Settle(c, d, ack), i)
		}
	}
	assert.EqualValues(t, 1, lost.Load())
	sqltest.Exec(t, &db.db, "DROP TRIGGER refuse ON jobs")
	require.NoError(t, sqltest.Settle(c, ds[2], ack), "nobody has taken it meanwhile")
}
