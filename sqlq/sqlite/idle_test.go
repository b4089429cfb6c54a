package sqlite

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/sqlq"
)

// counted counts what goes to the database.
type counted struct {
	sqlq.DB
	queries, begins *atomic.Int64
}

func (c counted) Query(ctx context.Context, sql string, args ...any) (sqlq.Rows, error) {
	if !strings.Contains(sql, "pragma") {
		c.queries.Add(1)
	}
	return c.DB.Query(ctx, sql, args...)
}

func (c counted) Conn(ctx context.Context) (sqlq.Conn, error) {
	conn, err := c.DB.Conn(ctx)
	return countedConn{conn, c.begins}, err
}

type countedConn struct {
	sqlq.Conn
	begins *atomic.Int64
}

func (c countedConn) Begin(ctx context.Context, first ...sqlq.Step) (sqlq.Tx, error) {
	c.begins.Add(1)
	return c.Conn.Begin(ctx, first...)
}

// An idle consumer claims once, looks once for the next row, and then only
// reads, once a Poll. With half a second a Poll that is two queries a second.
func TestAnIdleConsumerReadsOnceAPoll(t *testing.T) {
	assert.Equal(t, 500*time.Millisecond, defaultPoll)
	db := openFile(t, Options{Poll: 50 * time.Millisecond})
	q := newQueue(t, db, leased(time.Minute))
	var queries, begins atomic.Int64
	db.db.DB = counted{db.db.DB, &queries, &begins}
	c := open(t, q, settle.Registration{})
	queries.Store(0)
	begins.Store(0)
	done := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	started := time.Now()
	go func() {
		defer close(done)
		_, err := c.Receive(ctx, make([]*settle.Delivery, 8))
		assert.ErrorIs(t, err, context.Canceled)
	}()
	require.Eventually(t, func() bool { return queries.Load() >= 6 }, deadline, time.Millisecond, "it looks again")
	cancel()
	<-done
	assert.EqualValues(t, 1, begins.Load(), "it takes the right to write once, not for every look")
	assert.LessOrEqual(t, queries.Load(), int64(time.Since(started)/(50*time.Millisecond))+1, "no more than one look a Poll")
}

// With a poll of an hour, what happens in this process wakes the consumer.
func TestAConsumerIsWokenByThisProcess(t *testing.T) {
	for _, c := range []struct {
		name string
		do   func(t *testing.T, db *DB, q *Queue, holder settle.Consumer, held *settle.Delivery)
	}{
		{"publish", func(t *testing.T, _ *DB, q *Queue, _ settle.Consumer, _ *settle.Delivery) { publish(t, q, "x") }},
		{"publish through another handle", func(t *testing.T, db *DB, q *Queue, _ settle.Consumer, _ *settle.Delivery) {
			publish(t, openPath(t, one[string](t, db, "SELECT file FROM pragma_database_list"), Options{}).Queue(q.Table()), "x")
		}},
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
			execute(t, db, "INSERT INTO jobs (queue, payload) VALUES ('main', 'x')")
			q.Wake()
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			db := openFile(t, Options{Poll: time.Hour})
			q := newQueue(t, db, leased(time.Minute))
			publish(t, q, "held")
			holder := open(t, q, settle.Registration{})
			held := receive(t, holder, 1)[0]
			var queries, begins atomic.Int64
			db.db.DB = counted{db.db.DB, &queries, &begins}
			waiter := open(t, q, settle.Registration{})
			queries.Store(0)
			got := make(chan int, 1)
			ctx, cancel := context.WithTimeout(t.Context(), deadline)
			defer cancel()
			go func() {
				n, _ := waiter.Receive(ctx, make([]*settle.Delivery, 1))
				got <- n
			}()
			require.Eventually(t, func() bool { return queries.Load() > 0 }, deadline, time.Millisecond, "it looks for the next row, and then it waits")
			c.do(t, db, q, holder, held)
			require.Equal(t, 1, <-got, "it was not woken")
		})
	}
}

// A dead group is a queue like any other: its consumer is woken by a dead letter.
func TestAConsumerOfDeadLettersIsWoken(t *testing.T) {
	db := openFile(t, Options{Poll: time.Hour})
	q := newQueue(t, db, leased(time.Minute))
	deadTable := q.Table()
	deadTable.GroupValue = "main.dead"
	waiter := open(t, db.Queue(deadTable), settle.Registration{})
	got := make(chan []*settle.Delivery, 1)
	go func() { got <- receive(t, waiter, 1) }()
	publish(t, q, "x")
	c := open(t, q, settle.Registration{MaxAttempts: 2, DeadLetter: "main.dead"})
	require.NoError(t, settleOne(c, receive(t, c, 1)[0], bury))
	d := (<-got)[0]
	assert.Equal(t, "x", string(d.Body))
	assert.Equal(t, 2, d.Attempt, "a dead letter keeps its count")
}

func TestStopEndsAReceiveThatWaits(t *testing.T) {
	db := openFile(t, Options{Poll: time.Hour})
	q := newQueue(t, db, leased(time.Minute))
	c := open(t, q, settle.Registration{})
	done := make(chan error, 1)
	go func() {
		_, err := c.Receive(context.Background(), make([]*settle.Delivery, 1))
		done <- err
	}()
	require.NoError(t, c.Stop(t.Context()))
	require.Error(t, <-done)
	publish(t, q, "x")
	n, err := c.Receive(t.Context(), make([]*settle.Delivery, 1))
	require.Error(t, err)
	require.Zero(t, n, "nothing is claimed after Stop")
	assert.Equal(t, 1, one[int](t, db, "SELECT attempt FROM jobs"))
}
