package sqltest

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/sqlq"
)

// Rest waits until a consumer that found nothing has come to rest: it claims,
// looks, perhaps does so once more, and then sends nothing for a while.
func Rest(t testing.TB, c *Counter) {
	t.Helper()
	last, still := int64(-1), 0
	require.Eventually(t, func() bool {
		now := c.Calls.Load()
		if still++; now != last {
			last, still = now, 0
		}
		return now > 0 && still > 5
	}, Deadline, 10*time.Millisecond, "it does not come to rest")
}

// IdleCost is what an idle queue costs: one look each Poll, which only reads,
// however many workers it has. It sets the database's Poll.
func IdleCost(t *testing.T, db *sqlq.Database, q *sqlq.Queue) {
	const poll = 50 * time.Millisecond
	db.Poll = poll
	sent := Count(db)
	Serve(t, func(rt *settle.Runtime) {
		rt.Handle(q, func(context.Context, *settle.Delivery) settle.Outcome { return settle.Ack() }, settle.Options{Workers: 8})
	})
	for began, claims := time.Now(), int64(-1); claims != sent.Begins.Load(); { // each receiver claims once at the start
		require.Less(t, time.Since(began), Deadline, "it goes on claiming")
		looks := sent.Queries.Load()
		claims = sent.Begins.Load()
		require.Eventually(t, func() bool { return sent.Queries.Load() >= looks+4 }, Deadline, time.Millisecond, "it looks again")
	}
	calls, begins := sent.Calls.Load(), sent.Begins.Load()
	started := time.Now()
	require.Eventually(t, func() bool { return sent.Calls.Load() >= calls+10 }, Deadline, time.Millisecond, "it looks again")
	assert.LessOrEqual(t, sent.Calls.Load()-calls, int64(time.Since(started)/poll)+1, "no more than one look a Poll")
	assert.Equal(t, begins, sent.Begins.Load(), "no look takes the right to write")
}

// Wakes are what happens in a process that wakes its consumers.
func Wakes() map[string]func(t *testing.T, db *sqlq.Database, q *sqlq.Queue, holder settle.Consumer, held *settle.Delivery) {
	type wake = func(t *testing.T, db *sqlq.Database, q *sqlq.Queue, holder settle.Consumer, held *settle.Delivery)
	settled := func(v settle.Verdict) wake {
		return func(t *testing.T, _ *sqlq.Database, _ *sqlq.Queue, holder settle.Consumer, held *settle.Delivery) {
			require.NoError(t, Settle(holder, held, v))
		}
	}
	published := func(delay time.Duration) wake {
		return func(t *testing.T, _ *sqlq.Database, q *sqlq.Queue, _ settle.Consumer, _ *settle.Delivery) {
			require.NoError(t, q.Publish(t.Context(), settle.Message{Body: []byte("x"), Delay: delay}))
		}
	}
	return map[string]wake{
		"publish":                published(0),
		"a row that becomes due": published(100 * time.Millisecond),
		"a retry":                settled(Retry),
		"a delayed retry":        settled(RetryAfter(50 * time.Millisecond)),
		"a release":              settled(Release),
		"Wake": func(t *testing.T, db *sqlq.Database, q *sqlq.Queue, _ settle.Consumer, _ *settle.Delivery) {
			Exec(t, db, "INSERT INTO jobs (queue, payload) VALUES ('main', 'x')")
			q.Wake()
		},
	}
}

// Woken has a consumer with a poll of an hour woken by what happens in its
// process. The queue is empty, and group "main" of the standard table jobs.
func Woken(t *testing.T, db *sqlq.Database, q *sqlq.Queue, do func(*testing.T, *sqlq.Database, *sqlq.Queue, settle.Consumer, *settle.Delivery)) {
	db.Poll = time.Hour
	Publish(t, q, "held")
	holder := Open(t, q, settle.Registration{})
	held := Receive(t, holder, 1)[0]
	sent := Count(db)
	waiter := Open(t, q, settle.Registration{})
	got := make(chan int, 1)
	ctx, cancel := context.WithTimeout(t.Context(), Deadline)
	defer cancel()
	go func() {
		n, _ := waiter.Receive(ctx, make([]*settle.Delivery, 1))
		got <- n
	}()
	Rest(t, sent)
	do(t, db, q, holder, held)
	require.Equal(t, 1, <-got, "it was not woken")
}
