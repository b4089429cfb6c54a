package postgres

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/internal/sqltest"
	"github.com/settlemq/settle/sqlq"
)

// Claims begin where earlier ones ended. These tests are about the rows that
// stand before that all the same.

// What somebody put below the floor is found, also after a claim that was held up.
func TestARowBelowTheFloorIsFoundAfterAClaimThatWaited(t *testing.T) {
	db := fresh(t, Options{})
	q := newQueue(t, db, sqltest.In(sqlq.Standard("jobs", "main"), sqlq.Lease{For: 20 * time.Second}))
	sqltest.Publish(t, q, "a")
	locker, err := db.Pool().Begin(context.Background())
	require.NoError(t, err)
	c := sqltest.Open(t, q, settle.Registration{Workers: 1})
	_, err = locker.Exec(context.Background(), "LOCK TABLE jobs IN ACCESS EXCLUSIVE MODE")
	require.NoError(t, err)
	unlocked := make(chan error, 1)
	time.AfterFunc(2*time.Second, func() { unlocked <- locker.Rollback(context.Background()) })
	require.NoError(t, sqltest.Settle(c, sqltest.Receive(t, c, 1)[0], ack))
	require.NoError(t, <-unlocked)
	sqltest.Exec(t, &db.db, "INSERT INTO jobs (queue, payload, retry_after) VALUES ('main', 'late', now() - interval '1 minute')")
	within, cancel := context.WithTimeout(context.Background(), 15*time.Second) // it took forty before the bound
	defer cancel()
	buf := make([]*settle.Delivery, 1)
	n, err := c.Receive(within, buf)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	assert.Equal(t, "late", string(buf[0].Body))
}

// The next row of a line is found as soon as the one before it is settled, however many rows
// of other lines claims have come past since.
func TestTheNextOfALineDoesNotWaitForOthers(t *testing.T) {
	for name, form := range map[string]func(*sqlq.Table){
		"advisory lock": func(t *sqlq.Table) { t.Form, t.LockedUntil = sqlq.AdvisoryLock{Key: "key-{msg_key}"}, "" },
		"FIFO":          func(t *sqlq.Table) { t.Form, t.FIFO = sqlq.Lease{For: 20 * time.Second}, true },
	} {
		t.Run(name, func(t *testing.T) {
			table := sqlq.Standard("jobs", "main")
			form(&table)
			db := fresh(t, Options{})
			q := newQueue(t, db, table)
			const first, others = 40, 20_000
			sqltest.Exec(t, &db.db, "INSERT INTO jobs (queue, payload, msg_key) SELECT 'main', 'first', 'first' FROM generate_series(1, $1)", first)
			sqltest.Exec(t, &db.db, "INSERT INTO jobs (queue, payload, msg_key) SELECT 'main', 'other', 'other' || (i % 500) FROM generate_series(1, $1) AS i", others)
			var left, passed atomic.Int64
			left.Store(first)
			done := make(chan struct{})
			stop := sqltest.Serve(t, func(rt *settle.Runtime) {
				rt.Handle(q, func(_ context.Context, d *settle.Delivery) settle.Outcome {
					if string(d.Body) == "other" {
						passed.Add(1)
					} else if left.Add(-1) == 0 {
						close(done)
					}
					return settle.Ack()
				}, settle.Options{Workers: 4})
			})
			select {
			case <-done:
			case <-time.After(time.Minute):
			}
			assert.Zero(t, left.Load())
			assert.Less(t, passed.Load(), int64(others/4), "rows of other lines that went first")
			require.NoError(t, stop())
		})
	}
}

// Rows that are due since ever are taken like others.
func TestRowsDueSinceEverAreTaken(t *testing.T) {
	db := fresh(t, Options{})
	q := newQueue(t, db, sqltest.In(sqlq.Standard("jobs", "main"), sqlq.Lease{For: 20 * time.Second}))
	sqltest.Exec(t, &db.db, "INSERT INTO jobs (queue, payload, retry_after) SELECT 'main', '', '-infinity' FROM generate_series(1, 100)")
	c := sqltest.Open(t, q, settle.Registration{Workers: 1, Batch: 1})
	started := time.Now()
	for range 100 {
		require.NoError(t, sqltest.Settle(c, sqltest.Receive(t, c, 1)[0], ack))
	}
	assert.Less(t, time.Since(started), 25*time.Second, "claims go on from the last and do not wait for a look at all rows each")
}

// A row of a priority higher than all before goes first while others are in work.
func TestAHigherPriorityGoesFirstAtOnce(t *testing.T) {
	table := sqltest.In(sqlq.Standard("jobs", "main"), sqlq.Lease{For: 20 * time.Second})
	table.Priority = "priority"
	db := fresh(t, Options{})
	q := newQueue(t, db, table)
	sqltest.Exec(t, &db.db, "INSERT INTO jobs (queue, payload, priority) SELECT 'main', 'low', 1 FROM generate_series(1, 100)")
	c := sqltest.Open(t, q, settle.Registration{Workers: 1, Batch: 1})
	require.NoError(t, sqltest.Settle(c, sqltest.Receive(t, c, 1)[0], ack))
	sqltest.Exec(t, &db.db, "INSERT INTO jobs (queue, payload, priority) VALUES ('main', 'high', 7)")
	assert.Equal(t, "high", string(sqltest.Receive(t, c, 1)[0].Body))
}

// A queue in which each row has a priority of its own is worked off like any other.
func TestEachRowAPriorityOfItsOwn(t *testing.T) {
	table := sqltest.In(sqlq.Standard("jobs", "main"), sqlq.Lease{For: 20 * time.Second})
	table.Priority = "priority"
	db := fresh(t, Options{})
	q := newQueue(t, db, table)
	const rows = 2000
	sqltest.Exec(t, &db.db, "INSERT INTO jobs (queue, payload, priority) SELECT 'main', '', i FROM generate_series(1, $1) AS i", rows)
	c := sqltest.Open(t, q, settle.Registration{Workers: 8, Batch: 1})
	for taken := 0; taken < rows; {
		started := time.Now()
		all := sqltest.Receive(t, c, 8)
		assert.Less(t, time.Since(started), 10*time.Second)
		for _, err := range sqltest.SettleAll(c, ack, all...) {
			require.NoError(t, err)
		}
		taken += len(all)
	}
}
