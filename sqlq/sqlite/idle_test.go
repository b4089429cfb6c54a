package sqlite

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/internal/sqltest"
	"github.com/settlemq/settle/sqlq"
)

// With half a second a Poll that is two queries a second.
func TestAnIdleConsumerReadsOnceAPoll(t *testing.T) {
	assert.Equal(t, 500*time.Millisecond, defaultPoll)
	db := openFile(t, Options{})
	sqltest.IdleCost(t, &db.db, newQueue(t, db, leased(time.Minute)).Queue)
}

// With a poll of an hour, what happens in this process wakes the consumer.
func TestAConsumerIsWokenByThisProcess(t *testing.T) {
	wakes := sqltest.Wakes()
	wakes["publish through another handle"] = func(t *testing.T, db *sqlq.Database, q *sqlq.Queue, _ settle.Consumer, _ *settle.Delivery) {
		path := sqltest.One[string](t, db, "SELECT file FROM pragma_database_list")
		sqltest.Publish(t, openPath(t, path, Options{}).Queue(q.Table()), "x")
	}
	for name, do := range wakes {
		t.Run(name, func(t *testing.T) {
			db := openFile(t, Options{})
			sqltest.Woken(t, &db.db, newQueue(t, db, leased(time.Minute)).Queue, do)
		})
	}
}

// A dead group is a queue like any other: its consumer is woken by a dead letter.
func TestAConsumerOfDeadLettersIsWoken(t *testing.T) {
	db := openFile(t, Options{Poll: time.Hour})
	q := newQueue(t, db, leased(time.Minute))
	deadTable := q.Table()
	deadTable.GroupValue = "main.dead"
	waiter := sqltest.Open(t, db.Queue(deadTable), settle.Registration{})
	got := make(chan []*settle.Delivery, 1)
	go func() { got <- sqltest.Receive(t, waiter, 1) }()
	sqltest.Publish(t, q, "x")
	c := sqltest.Open(t, q, settle.Registration{MaxAttempts: 2, DeadLetter: "main.dead"})
	require.NoError(t, sqltest.Settle(c, sqltest.Receive(t, c, 1)[0], bury))
	d := (<-got)[0]
	assert.Equal(t, "x", string(d.Body))
	assert.Equal(t, 2, d.Attempt, "a dead letter keeps its count")
}

func TestStopEndsAReceiveThatWaits(t *testing.T) {
	db := openFile(t, Options{Poll: time.Hour})
	q := newQueue(t, db, leased(time.Minute))
	c := sqltest.Open(t, q, settle.Registration{})
	done := make(chan error, 1)
	go func() {
		_, err := c.Receive(context.Background(), make([]*settle.Delivery, 1))
		done <- err
	}()
	require.NoError(t, c.Stop(t.Context()))
	require.Error(t, <-done)
	sqltest.Publish(t, q, "x")
	n, err := c.Receive(t.Context(), make([]*settle.Delivery, 1))
	require.Error(t, err)
	require.Zero(t, n, "nothing is claimed after Stop")
	assert.Equal(t, 1, sqltest.One[int](t, &db.db, "SELECT attempt FROM jobs"))
}
