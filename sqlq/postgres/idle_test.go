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

// An idle queue costs two queries a second, however many workers it has: one look each Poll of half a second.
func TestAnIdleQueueCostsOneLookAPoll(t *testing.T) {
	assert.Equal(t, 500*time.Millisecond, defaultPoll)
	eachForm(t, nil, func(t *testing.T, db *DB, q *Queue) {
		const poll = 50 * time.Millisecond
		theirs, sent := traced(t, db.Pool().Config().ConnString(), Options{Poll: poll})
		serve(t, func(rt *settle.Runtime) {
			rt.Handle(theirs.Queue(q.Table()), func(context.Context, *settle.Delivery) settle.Outcome { return settle.Ack() }, settle.Options{Workers: 16})
		})
		before := sent.sent.Load()
		require.Eventually(t, func() bool { // until it has come to rest
			was := before
			before = sent.sent.Load()
			return before > 0 && before-was <= 1
		}, deadline, poll)
		started := time.Now()
		time.Sleep(20 * poll)
		took := time.Since(started)
		assert.LessOrEqual(t, sent.sent.Load()-before, int64(took/poll)+1)
	})
}

// With a poll of an hour, what happens in this process wakes the consumer.
func TestAConsumerIsWokenByThisProcess(t *testing.T) {
	for _, c := range []struct {
		name string
		do   func(t *testing.T, db *DB, q *Queue, holder settle.Consumer, held *settle.Delivery)
	}{
		{"publish", func(t *testing.T, _ *DB, q *Queue, _ settle.Consumer, _ *settle.Delivery) { publish(t, q, "x") }},
		{"a row that becomes due", func(t *testing.T, _ *DB, q *Queue, _ settle.Consumer, _ *settle.Delivery) {
			require.NoError(t, q.Publish(t.Context(), settle.Message{Body: []byte("x"), Delay: 100 * time.Millisecond}))
		}},
		{"a retry", func(t *testing.T, _ *DB, _ *Queue, h settle.Consumer, d *settle.Delivery) {
			require.NoError(t, settleOne(h, d, retry))
		}},
		{"a delayed retry", func(t *testing.T, _ *DB, _ *Queue, h settle.Consumer, d *settle.Delivery) {
			require.NoError(t, settleOne(h, d, settle.Verdict{Action: settle.ActionRetry, Delay: 50 * time.Millisecond}))
		}},
		{"a release", func(t *testing.T, _ *DB, _ *Queue, h settle.Consumer, d *settle.Delivery) {
			require.NoError(t, settleOne(h, d, release))
		}},
		{"Wake", func(t *testing.T, db *DB, q *Queue, _ settle.Consumer, _ *settle.Delivery) {
			exec(t, db, "INSERT INTO jobs (queue, payload) VALUES ('main', 'x')")
			q.Wake()
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			eachForm(t, nil, func(t *testing.T, db *DB, q *Queue) {
				theirs, sent := traced(t, db.Pool().Config().ConnString(), Options{Poll: time.Hour})
				q = theirs.Queue(q.Table())
				publish(t, q, "held")
				holder := open(t, q, settle.Registration{})
				held := receive(t, holder, 1)[0]
				waiter := open(t, q, settle.Registration{})
				got := make(chan int, 1)
				ctx, cancel := context.WithTimeout(t.Context(), deadline)
				defer cancel()
				go func() {
					n, _ := waiter.Receive(ctx, make([]*settle.Delivery, 1))
					got <- n
				}()
				// It claims, looks, perhaps claims once more, and waits.
				last, still := int64(-1), 0
				require.Eventually(t, func() bool {
					now := sent.sent.Load()
					if still++; now != last {
						last, still = now, 0
					}
					return still > 5
				}, deadline, 10*time.Millisecond)
				c.do(t, theirs, q, holder, held)
				require.Equal(t, 1, <-got, "it was not woken")
			})
		})
	}
}

// TestRoundTrips is what a message costs: the fewest that its form can do with.
func TestRoundTrips(t *testing.T) {
	for _, f := range forms() {
		db := fresh(t, Options{})
		q := newQueue(t, db, in(killTable(f), f))
		publish(t, q, "a", "b")
		theirs, sent := traced(t, db.Pool().Config().ConnString(), Options{})
		c := open(t, theirs.Queue(q.Table()), settle.Registration{})
		d := receive(t, c, 1)[0] // which prepares statements
		require.NoError(t, settleOne(c, d, ack))
		before := sent.sent.Load()
		d = receive(t, c, 1)[0]
		require.NoError(t, settleOne(c, d, ack))
		want := map[string]int64{"sqlq.Lease": 2, "sqlq.RowLock": 2, "sqlq.AdvisoryLock": 3}
		name := fmt.Sprintf("%T", f)
		assert.Equal(t, want[name], sent.sent.Load()-before, name)
	}
}
