package rabbit

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/internal/services"
)

// What becomes of a message by each verdict, as the server sees it.

var errFault = errors.New("this attempt fails")

// failing retries for ever.
func failing(seen *tries) settle.Handler {
	return func(_ context.Context, d *settle.Delivery) settle.Outcome {
		seen.next(d)
		return settle.Retry(errFault)
	}
}

// publishTo puts messages into a queue and returns when they are there.
func publishTo(t testing.TB, ch *amqp.Channel, queue string, msgs ...amqp.Publishing) {
	t.Helper()
	require.NoError(t, ch.Confirm(false))
	var last *amqp.DeferredConfirmation
	for _, m := range msgs {
		var err error
		last, err = ch.PublishWithDeferredConfirm("", queue, true, false, m)
		require.NoError(t, err)
	}
	eventually(t, last.Acked, "the messages are confirmed")
}

// The server moves a message at the cap, at least once, after MaxAttempts
// deliveries.
func TestQuorumCapIsTheServers(t *testing.T) {
	eachServer(t, func(t *testing.T, url string) {
		for _, limit := range []int{1, 5} {
			b, _ := testBroker(t, url, nil)
			ch := rawChannel(t, url)
			queue, dead := unique(t, url, "q"), unique(t, url, "dead")
			var seen tries
			s := serve(t, &QuorumQueue{Broker: b, Queue: queue, DeclareTopology: true}, settle.Options{MaxAttempts: limit, DeadLetter: dead}, failing(&seen))
			s.opened(1)
			publishTo(t, ch, queue, amqp.Publishing{Body: []byte("m"), Headers: amqp.Table{"mine": int16(7)}})
			d := drain(t, ch, dead, 1)[0]
			s.stop()
			var want []int
			for n := range limit {
				want = append(want, n+1)
			}
			assert.Equal(t, want, seen.attempts())
			deaths := Deaths(&settle.Delivery{Headers: settle.Headers(d.Headers)})
			require.Len(t, deaths, 1)
			assert.Equal(t, "delivery_limit", deaths[0].Reason)
			assert.Equal(t, queue, deaths[0].Queue)
			assert.Equal(t, int16(7), d.Headers["mine"])
			assert.Zero(t, ready(t, ch, queue)+ready(t, ch, dead))
		}
	})
}

// Without a cap DeclareTopology gives the queue no limit; a queue that was
// declared elsewhere has the server's own from 4.0 on, of which we warn.
func TestNoCapNoLimit(t *testing.T) {
	const most = 60
	eachServer(t, func(t *testing.T, url string) {
		version := dialServer(t, url).version
		run := func(declare bool, queue string) (int, *service) {
			b, _ := testBroker(t, url, nil)
			var seen tries
			ended := make(chan struct{})
			s := serve(t, &QuorumQueue{Broker: b, Queue: queue, DeclareTopology: declare}, settle.Options{}, func(_ context.Context, d *settle.Delivery) settle.Outcome {
				if string(d.Body) == "last" {
					close(ended)
					return settle.Ack()
				}
				if n := seen.next(d); n == most {
					return settle.Ack()
				}
				return settle.Retry(errFault)
			})
			s.opened(1)
			ch := rawChannel(t, url)
			publishTo(t, ch, queue, amqp.Publishing{Body: []byte("m")})
			eventually(t, func() bool {
				n := len(seen.attempts())
				return n == most || version.atLeast(4, 0) && !declare && n == 21 && ready(t, ch, queue) == 0
			}, "the message has ended")
			publishTo(t, ch, queue, amqp.Publishing{Body: []byte("last")})
			<-ended
			s.stop()
			return len(seen.attempts()), s
		}
		n, s := run(true, unique(t, url, "declared"))
		assert.Equal(t, most, n)
		assert.Zero(t, s.noticed(settle.NoticeWeakened))

		queue, _ := rawQueue(t, url, amqp.Table{"x-queue-type": "quorum"})
		n, s = run(false, queue)
		if version.atLeast(4, 0) {
			assert.Equal(t, 21, n, "the server's default of 20 failures")
			assert.Contains(t, s.notice(settle.NoticeWeakened).Err.Error(), "20 failures")
		} else {
			assert.Equal(t, most, n, "no default limit before 4.0")
			assert.Zero(t, s.noticed(settle.NoticeWeakened))
		}
		assert.Contains(t, s.log.String(), "unchecked")
	})
}

// A release is no failure: from 4.0 on the server does not count it.
func TestReleaseIsNotCounted(t *testing.T) {
	eachServer(t, func(t *testing.T, url string) {
		version := dialServer(t, url).version
		b, _ := testBroker(t, url, nil)
		queue, dead := unique(t, url, "q"), unique(t, url, "dead")
		c, err := (&QuorumQueue{Broker: b, Queue: queue, DeclareTopology: true}).Open(within(t), registration(4, dead))
		require.NoError(t, err)
		ch := rawChannel(t, url)
		publishTo(t, ch, queue, amqp.Publishing{Body: []byte("m")})
		releases := 3
		if version.atLeast(4, 0) {
			releases = 50 // far over the limit
		}
		for i := range releases {
			d := receive(t, c, 1)[0]
			acquired, told := d.Headers["x-acquired-count"]
			if version.atLeast(4, 0) {
				assert.Equal(t, 1, d.Attempt)
				assert.Equal(t, i > 0, told)
				if told {
					assert.EqualValues(t, i, acquired)
				}
			} else {
				assert.Equal(t, i+1, d.Attempt, "every return counts before 4.0")
				assert.False(t, told)
			}
			require.NoError(t, settleOne(t, c, d, settle.Verdict{Action: settle.ActionRelease}))
		}
		require.NoError(t, c.Close(within(t)))
	})
}

// A crash of the consumer is one failure of everything it had; the same session
// that ends in good order costs nothing.
func TestCrashIsOneFailure(t *testing.T) {
	eachServer(t, func(t *testing.T, url string) {
		queue, dead := unique(t, url, "q"), unique(t, url, "dead")
		ch := rawChannel(t, url)
		open := func() (settle.Consumer, *Broker) {
			b, _ := testBroker(t, url, nil)
			c, err := (&QuorumQueue{Broker: b, Queue: queue, DeclareTopology: true}).Open(within(t), registration(9, dead))
			require.NoError(t, err)
			return c, b
		}
		c, b := open()
		publishTo(t, ch, queue, amqp.Publishing{Body: []byte("m")})
		require.Equal(t, 1, receive(t, c, 1)[0].Attempt)
		conn, _ := b.consuming.conns.current()
		require.NoError(t, conn.raw.Close()) // as a crash does
		_, err := c.Receive(within(t), make([]*settle.Delivery, 1))
		require.ErrorIs(t, err, settle.ErrSessionLost)

		c, _ = open()
		d := receive(t, c, 1)[0]
		assert.Equal(t, 2, d.Attempt)
		require.NoError(t, c.Close(within(t)))
		c, _ = open()
		d = receive(t, c, 1)[0]
		if dialServer(t, url).version.atLeast(4, 0) {
			assert.Equal(t, 2, d.Attempt, "Close gives back what it has by nack")
		} else {
			assert.Equal(t, 3, d.Attempt)
		}
		require.NoError(t, settleOne(t, c, d, settle.Verdict{Action: settle.ActionAck}))
		require.NoError(t, c.Close(within(t)))
	})
}

// The server paces the retries of a queue with DelayedRetry: min times the
// failures so far, and at most max.
func TestDelayedRetryPaces(t *testing.T) {
	url := services.URL(t, services.Rabbit)
	b, _ := testBroker(t, url, nil)
	queue := unique(t, url, "q")
	pace := DelayedRetry{Min: 100 * time.Millisecond, Max: 250 * time.Millisecond}
	at := make(chan time.Time, 5)
	s := serve(t, &QuorumQueue{Broker: b, Queue: queue, DeclareTopology: true, DelayedRetry: pace}, settle.Options{}, func(_ context.Context, d *settle.Delivery) settle.Outcome {
		at <- time.Now()
		if len(at) < cap(at) {
			return settle.Retry(errFault)
		}
		return settle.Ack()
	})
	s.opened(1)
	publishTo(t, rawChannel(t, url), queue, amqp.Publishing{})
	s.ended(cap(at))
	s.stop()
	last := <-at
	for i, least := range []time.Duration{100, 200, 250, 250} {
		now := <-at
		assert.GreaterOrEqual(t, now.Sub(last), (least-2)*time.Millisecond, "before delivery %d", i+2)
		last = now
	}
}

// A dead letter before the limit is a copy with the reason, and the original is gone.
func TestDeadLetterIsACopy(t *testing.T) {
	eachServer(t, func(t *testing.T, url string) {
		for _, quorum := range []bool{false, true} {
			b, _ := testBroker(t, url, nil)
			ch := rawChannel(t, url)
			queue, dead := unique(t, url, "q"), unique(t, url, "dead")
			s := serve(t, profile{quorum: quorum}.source(b, queue), settle.Options{MaxAttempts: 5, DeadLetter: dead}, func(_ context.Context, d *settle.Delivery) settle.Outcome {
				if d.Attempt == 2 {
					return settle.DeadLetter(errors.New("no such customer"))
				}
				return settle.Retry(errFault)
			})
			s.opened(1)
			publishTo(t, ch, queue, amqp.Publishing{Body: []byte("m"), MessageId: "id", Headers: amqp.Table{"mine": int16(7)}})
			d := drain(t, ch, dead, 1)[0]
			s.stop()
			assert.Equal(t, "m", string(d.Body))
			assert.Equal(t, "id", d.MessageId)
			assert.Equal(t, int16(7), d.Headers["mine"])
			assert.Equal(t, "no such customer", d.Headers[settle.HeaderDeadCause])
			assert.EqualValues(t, 2, d.Headers[settle.HeaderDeadAttempt])
			assert.Equal(t, `rabbit: queue "`+queue+`"`, d.Headers[settle.HeaderDeadSource])
			assert.NotContains(t, d.Headers, CountHeader)
			assert.NotContains(t, d.Headers, "x-death")
			assert.Zero(t, ready(t, ch, queue)+ready(t, ch, dead))
		}
	})
}

// A drop follows the queue's own dead-letter exchange. So does a dead letter
// that has nowhere to go, of which we warn once.
func TestDropFollowsTheQueuesOwnExchange(t *testing.T) {
	eachServer(t, func(t *testing.T, url string) {
		b, _ := testBroker(t, url, nil)
		ch := rawChannel(t, url)
		queue, dropped := unique(t, url, "q"), unique(t, url, "dropped")
		_, err := ch.QueueDeclare(dropped, true, false, false, false, nil)
		require.NoError(t, err)
		source := &ClassicQueue{Broker: b, Queue: queue, DeclareTopology: true, Settings: Queue{DeadLetter: &DeadLetterRoute{Key: dropped}}}
		s := serve(t, source, settle.Options{}, func(_ context.Context, d *settle.Delivery) settle.Outcome {
			if string(d.Body) == "drop" {
				return settle.Drop(errFault)
			}
			return settle.DeadLetter(errFault)
		})
		s.opened(1)
		publishTo(t, ch, queue, amqp.Publishing{Body: []byte("drop")}, amqp.Publishing{Body: []byte("dead")}, amqp.Publishing{Body: []byte("dead")})
		for _, d := range drain(t, ch, dropped, 3) {
			deaths := Deaths(&settle.Delivery{Headers: settle.Headers(d.Headers)})
			require.Len(t, deaths, 1)
			assert.Equal(t, "rejected", deaths[0].Reason)
		}
		s.stop()
		assert.Equal(t, 1, s.noticed(settle.NoticeWeakened))
		assert.Contains(t, s.notice(settle.NoticeWeakened).Err.Error(), "DeadLetter")
	})
}

// A classic queue counts nothing, and without a cap nobody does.
func TestClassicRetryWithoutCapIsUncounted(t *testing.T) {
	eachServer(t, func(t *testing.T, url string) {
		b, _ := testBroker(t, url, nil)
		queue := unique(t, url, "q")
		var seen tries
		s := serve(t, &ClassicQueue{Broker: b, Queue: queue, DeclareTopology: true}, settle.Options{}, func(_ context.Context, d *settle.Delivery) settle.Outcome {
			if seen.next(d) < 4 {
				return settle.Retry(errFault)
			}
			return settle.Ack()
		})
		s.opened(1)
		publishTo(t, rawChannel(t, url), queue, amqp.Publishing{})
		s.ended(4)
		s.stop()
		assert.Equal(t, []int{1, 1, 1, 1}, seen.attempts())
	})
}

// The counter is read from an integer of any AMQP type that a client wrote; any
// other type counts as none and is logged, and the message is handled all the same.
func TestCounterOfAnyType(t *testing.T) {
	eachServer(t, func(t *testing.T, url string) {
		for _, quorum := range []bool{false, true} {
			b, _ := testBroker(t, url, nil)
			queue, dead := unique(t, url, "q"), unique(t, url, "dead")
			var seen tries
			s := serve(t, profile{quorum: quorum}.source(b, queue), settle.Options{MaxAttempts: 9, DeadLetter: dead, Prefetch: 100}, func(_ context.Context, d *settle.Delivery) settle.Outcome {
				seen.next(d)
				return settle.Ack()
			})
			s.opened(1)
			values := []any{
				int8(2), uint8(2), int16(2), uint16(2), int32(2), uint32(2), int64(2),
				"2", []byte("2"), 2.0, float32(2), true,
				amqp.Decimal{Value: 2},
				time.Unix(2, 0),
				amqp.Table{"n": int64(2)},
				[]any{int64(2)},
				nil, int64(-2),
			}
			ch := rawChannel(t, url)
			for i, v := range values {
				publishTo(t, ch, queue, amqp.Publishing{Body: []byte(strconv.Itoa(i)), Headers: amqp.Table{CountHeader: v}})
			}
			s.ended(len(values))
			s.stop()
			for _, d := range seen.deliveries() {
				i, _ := strconv.Atoi(string(d.Body))
				want := 1
				if i < 7 {
					want = 3
				}
				assert.Equal(t, want, d.Attempt, "%T", values[i])
			}
			assert.Contains(t, s.log.String(), "not a whole number")
		}
	})
}

// The server hands out as much as may be in work and held, and no more.
func TestPrefetchIsBounded(t *testing.T) {
	url := services.URL(t, services.Rabbit)
	for _, c := range []struct {
		source func(b *Broker, queue string) settle.Source
		want   int
	}{
		{func(b *Broker, q string) settle.Source {
			return &ClassicQueue{Broker: b, Queue: q, DeclareTopology: true, MaxHeld: 5}
		}, 15},
		{func(b *Broker, q string) settle.Source {
			return &QuorumQueue{Broker: b, Queue: q, DeclareTopology: true}
		}, 20},
		{func(b *Broker, q string) settle.Source {
			return &QuorumQueue{Broker: b, Queue: q, DeclareTopology: true, Delay: WaitQueue{}}
		}, 10},
	} {
		b, _ := testBroker(t, url, nil)
		queue := unique(t, url, "q")
		wait := make(chan struct{})
		s := serve(t, c.source(b, queue), settle.Options{Prefetch: 10}, func(context.Context, *settle.Delivery) settle.Outcome {
			<-wait
			return settle.Ack()
		})
		s.opened(1)
		ch := rawChannel(t, url)
		publishTo(t, ch, queue, make([]amqp.Publishing, 50)...)
		eventually(t, func() bool { return ready(t, ch, queue) <= 50-c.want }, "the server has handed out what it may")
		assert.Equal(t, 50-c.want, ready(t, ch, queue))
		close(wait)
		s.ended(50)
		s.stop()
		_, _ = ch.QueueDelete(queue+".retry", false, false, false)
	}
}

// Who consumes a dead-letter queue sees every message in it. What copies
// counted for the other queue does not count here. What the server counted does, from
// 4.0 on and from one quorum queue to another: past the cap such a message has one attempt, its last.
func TestDeadLettersAreHandledAnew(t *testing.T) {
	eachServer(t, func(t *testing.T, url string) {
		for _, quorum := range []bool{false, true} {
			b, _ := testBroker(t, url, nil)
			ch := rawChannel(t, url)
			queue, dead, last := unique(t, url, "q"), unique(t, url, "dead"), unique(t, url, "last")
			remove(t, url, queue+".retry")
			var seen tries
			second := serve(t, profile{quorum: quorum}.source(b, dead), settle.Options{MaxAttempts: 2, DeadLetter: last}, failing(&seen))
			second.opened(1)
			// This one counts by copies and by the server both before it gives up.
			first := serve(t, profile{quorum: true, delay: WaitQueue{}}.source(b, queue), settle.Options{MaxAttempts: 5, DeadLetter: dead}, func(_ context.Context, d *settle.Delivery) settle.Outcome {
				if d.Attempt < 2 && string(d.Body) == "both" {
					return settle.RetryAfter(time.Millisecond, errFault)
				}
				return settle.Retry(errFault)
			})
			first.opened(1)
			publishTo(t, ch, queue, amqp.Publishing{Body: []byte("server")}, amqp.Publishing{Body: []byte("both")})
			drain(t, ch, last, 2)
			first.stop()
			second.stop()
			count := map[string]int{}
			for _, d := range seen.deliveries() {
				count[string(d.Body)]++
				assert.LessOrEqual(t, d.Attempt, 2)
			}
			want := map[string]int{"server": 2, "both": 2}
			if quorum && dialServer(t, url).version.atLeast(4, 0) {
				want["server"] = 1
			}
			assert.Equal(t, want, count)
		}
	})
}

// Whatever the verdicts, a settled delivery is none of the session's any more:
// else no ack could be grouped past it.
func TestSettledDeliveriesLeave(t *testing.T) {
	url := services.URL(t, services.Rabbit)
	b, _ := testBroker(t, url, nil)
	queue, dead := unique(t, url, "q"), unique(t, url, "dead")
	made, err := (&ClassicQueue{Broker: b, Queue: queue, DeclareTopology: true}).Open(within(t), registration(9, dead))
	require.NoError(t, err)
	c := made.(*consumer)
	ch := rawChannel(t, url)
	for _, actions := range [][]settle.Action{
		{settle.ActionAck, settle.ActionAck},
		{settle.ActionDrop, settle.ActionDrop},
		{settle.ActionDrop, settle.ActionAck, settle.ActionDeadLetter, settle.ActionAck},
		{settle.ActionDeadLetter, settle.ActionDeadLetter},
	} {
		publishTo(t, ch, queue, make([]amqp.Publishing, len(actions))...)
		batch := make([]settle.Settlement, len(actions))
		for i, d := range receive(t, c, len(actions)) {
			batch[i] = settle.Settlement{Delivery: d, Verdict: settle.Verdict{Action: actions[i]}}
		}
		assert.Equal(t, len(actions), c.open.n)
		c.Settle(within(t), batch)
		for _, s := range batch {
			assert.NoError(t, s.Err)
		}
		assert.Zero(t, c.open.n, actions)
	}
	require.NoError(t, c.Close(within(t)))
	assert.Zero(t, ready(t, ch, queue))
}
