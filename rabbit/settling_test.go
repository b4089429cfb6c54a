package rabbit

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/internal/services"
)

// Settle under odd conditions: what it reports, whom it holds up, and that it
// never stands still.

// brittle is a network connection whose writes fail once it is broken.
type brittle struct {
	net.Conn
	broken *atomic.Bool
}

func (b *brittle) Write(p []byte) (int, error) {
	if b.broken.Load() {
		return 0, errors.New("the network is gone")
	}
	return b.Conn.Write(p)
}

// Settle reports success for frames that were written, and for no others,
// whether they go out one by one or together.
func TestSettleReportsWhatWasWritten(t *testing.T) {
	url := services.URL(t, services.Rabbit)
	for _, n := range []int{1, 3} {
		var broken atomic.Bool
		b, _ := testBroker(t, url, func(c *Config) {
			c.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
				conn, err := new(net.Dialer).DialContext(ctx, network, addr)
				return &brittle{conn, &broken}, err
			}
		})
		queue, ch := rawQueue(t, url, nil)
		c, err := (&ClassicQueue{Broker: b, Queue: queue}).Open(within(t), registration(0, ""))
		require.NoError(t, err)
		publishTo(t, ch, queue, make([]amqp.Publishing, 3)...)
		got := receive(t, c, 3)
		broken.Store(true)
		batch := make([]settle.Settlement, n)
		for i := range batch {
			batch[i] = settle.Settlement{Delivery: got[i], Verdict: settle.Verdict{Action: settle.ActionAck}}
		}
		c.Settle(within(t), batch)
		for i := range batch {
			assert.ErrorIs(t, batch[i].Err, settle.ErrSessionLost, "batch of %d", n)
		}
		_ = c.Close(within(t))
		eventually(t, func() bool { return ready(t, ch, queue) == 3 }, "all come back")
	}
}

// An observer that takes its time over a notice holds up nobody else's writes.
func TestSlowObserverHoldsUpNoOther(t *testing.T) {
	url := services.URL(t, services.Rabbit)
	b, _ := testBroker(t, url, nil)
	queue, ch := rawQueue(t, url, nil)
	hold, held := make(chan struct{}), make(chan struct{})
	r := registration(0, "")
	r.Notify = func(n settle.Notice) {
		if n.Kind == settle.NoticeWeakened {
			close(held)
			<-hold
		}
	}
	c, err := (&ClassicQueue{Broker: b, Queue: queue}).Open(within(t), r)
	require.NoError(t, err)
	publishTo(t, ch, queue, make([]amqp.Publishing, 2)...)
	got := receive(t, c, 2)
	settled := make(chan struct{})
	go func() {
		defer close(settled)
		c.Settle(context.Background(), []settle.Settlement{
			{Delivery: got[0], Verdict: settle.Verdict{Action: settle.ActionDeadLetter}}, // there is none: it is told
			{Delivery: got[1], Verdict: settle.Verdict{Action: settle.ActionAck}},
		})
	}()
	<-held
	other, err := (&ClassicQueue{Broker: b, Queue: queue}).Open(within(t), registration(0, ""))
	require.NoError(t, err)
	require.NoError(t, other.Close(within(t)))
	close(hold)
	<-settled
	require.NoError(t, c.Close(within(t)))
}

// A dead-letter queue that somebody deleted and declared again otherwise is
// taken as it is, as at the start.
func TestRecreatedDeadLetterQueueIsTakenAsItIs(t *testing.T) {
	eachServer(t, func(t *testing.T, url string) {
		b, _ := testBroker(t, url, nil)
		ch := rawChannel(t, url)
		queue, dead := unique(t, url, "q"), unique(t, url, "dead")
		c, err := (&QuorumQueue{Broker: b, Queue: queue, DeclareTopology: true}).Open(within(t), registration(5, dead))
		require.NoError(t, err)
		publishTo(t, ch, queue, amqp.Publishing{Body: []byte("m")})
		d := receive(t, c, 1)[0]
		_, err = ch.QueueDelete(dead, false, false, false)
		require.NoError(t, err)
		v := settle.Verdict{Action: settle.ActionDeadLetter, Cause: errFault}
		require.ErrorIs(t, settleOne(t, c, d, v), settle.ErrUnroutable)
		_, err = ch.QueueDeclare(dead, true, false, false, false, amqp.Table{"x-queue-type": "classic"})
		require.NoError(t, err)
		require.NoError(t, settleOne(t, c, d, v))
		assert.Equal(t, "m", string(drain(t, ch, dead, 1)[0].Body))
		require.NoError(t, c.Close(within(t)))
	})
}

// A count of failures that a publisher put on a message counts neither on its
// first delivery nor after a release, and the server's own counts from then on.
func TestPublishedDeliveryCountIsNoCount(t *testing.T) {
	eachServer(t, func(t *testing.T, url string) {
		b, _ := testBroker(t, url, nil)
		ch := rawChannel(t, url)
		queue, dead := unique(t, url, "q"), unique(t, url, "dead")
		c, err := (&QuorumQueue{Broker: b, Queue: queue, DeclareTopology: true}).Open(within(t), registration(5, dead))
		require.NoError(t, err)
		publishTo(t, ch, queue, amqp.Publishing{Headers: amqp.Table{"x-delivery-count": int64(7), "x-acquired-count": int64(9)}})
		released := 1
		if !dialServer(t, url).version.atLeast(4, 0) {
			released = 2 // every return counts before 4.0
		}
		for _, step := range []struct {
			attempt int
			then    settle.Action
		}{{1, settle.ActionRelease}, {released, settle.ActionRetry}, {released + 1, settle.ActionAck}} {
			d := receive(t, c, 1)[0]
			assert.Equal(t, step.attempt, d.Attempt)
			require.NoError(t, settleOne(t, c, d, settle.Verdict{Action: step.then}))
		}
		require.NoError(t, c.Close(within(t)))
	})
}

// A full queue that refuses the copies of retries does not stand still: after
// some tries the originals go back as they are, and work goes on.
func TestFullQueueGoesOn(t *testing.T) {
	eachServer(t, func(t *testing.T, url string) {
		b, _ := testBroker(t, url, nil)
		ch := rawChannel(t, url)
		queue, dead := unique(t, url, "q"), unique(t, url, "dead")
		var down atomic.Bool
		down.Store(true)
		source := &ClassicQueue{Broker: b, Queue: queue, DeclareTopology: true, MaxHeld: 1, Settings: Queue{MaxLength: 3, Overflow: RejectPublish}}
		s := serve(t, source, settle.Options{Workers: 2, Prefetch: 2, MaxAttempts: 1000, DeadLetter: dead}, func(context.Context, *settle.Delivery) settle.Outcome {
			if down.Load() {
				return settle.Retry(errFault)
			}
			return settle.Ack()
		})
		s.opened(1)
		// Three are in work or held, and three fill the queue, whatever is retried meanwhile.
		require.NoError(t, ch.Confirm(false))
		accepted := 0
		eventually(t, func() bool {
			c, err := ch.PublishWithDeferredConfirm("", queue, true, false, amqp.Publishing{})
			require.NoError(t, err)
			if ok, err := c.WaitContext(within(t)); err == nil && ok {
				accepted++
			}
			return s.noticed(settle.NoticeWeakened) > 0
		}, "a retry went back as it is")
		assert.ErrorIs(t, s.notice(settle.NoticeWeakened).Err, errNack)
		down.Store(false)
		eventually(t, func() bool { return ended(s) >= accepted }, "everything is handled")
		s.stop()
		assert.Zero(t, ready(t, ch, queue)+ready(t, ch, dead))
	})
}

// ended counts the messages that were acknowledged.
func ended(s *service) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.settled {
		if e.Err == nil && e.Verdict.Action == settle.ActionAck {
			n++
		}
	}
	return n
}

// A quorum queue keeps every message on disk; so its dead letters are
// persistent, wherever they go.
func TestDeadLettersOfQuorumQueuesArePersistent(t *testing.T) {
	eachServer(t, func(t *testing.T, url string) {
		b, _ := testBroker(t, url, nil)
		ch := rawChannel(t, url)
		dead, _ := rawQueue(t, url, amqp.Table{"x-queue-type": "classic"})
		queue := unique(t, url, "q")
		s := serve(t, &QuorumQueue{Broker: b, Queue: queue, DeclareTopology: true}, settle.Options{DeadLetter: dead}, func(context.Context, *settle.Delivery) settle.Outcome {
			return settle.DeadLetter(errFault)
		})
		s.opened(1)
		publishTo(t, ch, queue, amqp.Publishing{})
		assert.Equal(t, amqp.Persistent, drain(t, ch, dead, 1)[0].DeliveryMode)
		s.stop()
	})
}

// A counted copy that expires in its queue and lands in another that is
// consumed too begins at the first attempt there.
func TestCountIsForOneQueue(t *testing.T) {
	eachServer(t, func(t *testing.T, url string) {
		b, _ := testBroker(t, url, nil)
		ch := rawChannel(t, url)
		second, _ := rawQueue(t, url, nil)
		first, dead := unique(t, url, "first"), unique(t, url, "dead")
		source := &ClassicQueue{Broker: b, Queue: first, DeclareTopology: true, Settings: Queue{TTL: 200 * time.Millisecond, DeadLetter: &DeadLetterRoute{Key: second}}}
		c, err := source.Open(within(t), registration(5, dead))
		require.NoError(t, err)
		publishTo(t, ch, first, amqp.Publishing{Body: []byte("m")})
		for range 2 {
			require.NoError(t, settleOne(t, c, receive(t, c, 1)[0], settle.Verdict{Action: settle.ActionRetry}))
		}
		d := receive(t, c, 1)[0]
		assert.Equal(t, 3, d.Attempt)
		require.NoError(t, c.Stop(within(t)))
		require.NoError(t, settleOne(t, c, d, settle.Verdict{Action: settle.ActionRetry}))
		require.NoError(t, c.Close(within(t)))
		var seen tries
		s := serve(t, &ClassicQueue{Broker: b, Queue: second}, settle.Options{}, func(_ context.Context, d *settle.Delivery) settle.Outcome {
			seen.next(d)
			return settle.Ack()
		})
		s.ended(1)
		s.stop()
		assert.Equal(t, []int{1}, seen.attempts())
	})
}
