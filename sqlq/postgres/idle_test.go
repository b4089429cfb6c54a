package postgres

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/internal/sqltest"
	"github.com/settlemq/settle/sqlq"
)

// counter counts what is sent to the server, a batch as one.
type counter struct{ sent atomic.Int64 }

func (c *counter) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	c.sent.Add(1)
	return ctx
}

func (c *counter) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (c *counter) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	c.sent.Add(1)
	return ctx
}
func (c *counter) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}
func (c *counter) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData)     {}

// traced opens a database whose round trips are counted.
func traced(t *testing.T, url string, o Options) (*DB, *counter) {
	t.Helper()
	var c counter
	config, err := pgxpool.ParseConfig(url)
	require.NoError(t, err)
	config.MaxConns = 40
	config.ConnConfig.Tracer = &c
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	db, err := Wrap(pool, o)
	require.NoError(t, err)
	t.Cleanup(func() { _ = db.Close() })
	return db, &c
}

// An idle queue costs two queries a second, with half a second a Poll.
func TestAnIdleQueueCostsOneLookAPoll(t *testing.T) {
	assert.Equal(t, 500*time.Millisecond, defaultPoll)
	eachForm(t, nil, func(t *testing.T, db *DB, q *Queue) { sqltest.IdleCost(t, &db.db, q.Queue) })
}

// With a poll of an hour, what happens in this process wakes the consumer.
func TestAConsumerIsWokenByThisProcess(t *testing.T) {
	for name, do := range sqltest.Wakes() {
		t.Run(name, func(t *testing.T) {
			eachForm(t, func(table *sqlq.Table) {
				if table.LockedUntil != "" {
					table.Form = sqlq.Lease{For: time.Minute} // whose end would wake it too
				}
			}, func(t *testing.T, db *DB, q *Queue) { sqltest.Woken(t, &db.db, q.Queue, do) })
		})
	}
}

// TestRoundTrips is what a message costs: the fewest that its form can do with.
func TestRoundTrips(t *testing.T) {
	for _, f := range forms() {
		db := fresh(t, Options{})
		q := newQueue(t, db, sqltest.KillTable(f))
		sqltest.Publish(t, q, "a", "b")
		theirs, sent := traced(t, db.Pool().Config().ConnString(), Options{})
		c := sqltest.Open(t, theirs.Queue(q.Table()), settle.Registration{})
		d := sqltest.Receive(t, c, 1)[0] // which prepares statements
		require.NoError(t, sqltest.Settle(c, d, ack))
		before := sent.sent.Load()
		d = sqltest.Receive(t, c, 1)[0]
		require.NoError(t, sqltest.Settle(c, d, ack))
		want := map[string]int64{"sqlq.Lease": 2, "sqlq.RowLock": 2, "sqlq.AdvisoryLock": 3}
		name := fmt.Sprintf("%T", f)
		assert.Equal(t, want[name], sent.sent.Load()-before, name)
	}
}
