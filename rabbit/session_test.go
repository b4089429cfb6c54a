package rabbit

import (
	"context"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/internal/faults"
	"github.com/settlemq/settle/internal/services"
)

// Sessions: how one ends, and that it takes its deliveries with it.

// A delivery received before a reconnect never settles one that came after it,
// though the server numbers them alike.
func TestStaleDelivery(t *testing.T) {
	eachServer(t, func(t *testing.T, url string) {
		for _, quorum := range []bool{false, true} {
			line := faults.Proxy(t, url)
			b, _ := testBroker(t, line.URL(), nil)
			queue, dead := unique(t, url, "q"), unique(t, url, "dead")
			source := profile{quorum: quorum}.source(b, queue)
			first, err := source.Open(within(t), registration(9, dead))
			require.NoError(t, err)
			ch := rawChannel(t, url)
			publishTo(t, ch, queue, amqp.Publishing{Body: []byte("1")}, amqp.Publishing{Body: []byte("2")})
			old := receive(t, first, 2)
			line.Sever()
			_, err = first.Receive(within(t), make([]*settle.Delivery, 1))
			require.ErrorIs(t, err, settle.ErrSessionLost)
			require.NoError(t, first.Close(within(t)))

			second, err := source.Open(within(t), registration(9, dead))
			require.NoError(t, err)
			now := receive(t, second, 2)
			for i := range now {
				assert.Equal(t, old[i].Native.(*delivery).native.DeliveryTag, now[i].Native.(*delivery).native.DeliveryTag, "the tags are the same")
			}
			for _, action := range []settle.Action{settle.ActionAck, settle.ActionDrop, settle.ActionRetry, settle.ActionDeadLetter, settle.ActionRelease} {
				for _, session := range []settle.Consumer{first, second} {
					assert.ErrorIs(t, settleOne(t, session, old[0], settle.Verdict{Action: action}), settle.ErrSessionLost)
				}
			}
			require.NoError(t, second.Close(within(t)))
			eventually(t, func() bool { return ready(t, ch, queue) == 2 }, "both messages are still there")
			assert.Zero(t, ready(t, ch, dead))
		}
	})
}

// Why the client's own recovery stays off: with it the same scenario loses a
// message in silence. If this test fails, a newer client does better.
func TestTheClientsOwnRecoverySettlesAnother(t *testing.T) {
	url := services.URL(t, services.Rabbit)
	line := faults.Proxy(t, url)
	queue, ch := rawQueue(t, url, nil)
	conn, err := amqp.DialConfig(line.URL(), amqp.Config{
		Recovery: &amqp.Recovery{ReconnectionConfig: &amqp.ReconnectionConfig{MaxRetryCount: 100, RetryInterval: 10 * time.Millisecond}},
	})
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	consuming, err := conn.Channel()
	require.NoError(t, err)
	require.NoError(t, consuming.Qos(2, 0, false))
	deliveries, err := consuming.Consume(queue, "", false, false, false, false, nil)
	require.NoError(t, err)
	publishTo(t, ch, queue, amqp.Publishing{Body: []byte("1")}, amqp.Publishing{Body: []byte("2")})
	one, two := <-deliveries, <-deliveries
	require.NoError(t, one.Ack(false))
	eventually(t, func() bool {
		q, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
		return err == nil && q.Consumers == 1
	}, "consumed")
	line.Sever()
	require.Equal(t, "2", string((<-deliveries).Body)) // its tag is 1 now
	publishTo(t, ch, queue, amqp.Publishing{Body: []byte("3")})
	require.Equal(t, "3", string((<-deliveries).Body)) // its tag is 2
	require.NoError(t, two.Ack(false), "the stale delivery's ack goes through")
	require.NoError(t, consuming.Close())
	require.NoError(t, conn.Close())
	left := drain(t, ch, queue, 1)
	assert.Equal(t, "2", string(left[0].Body), "message 3 is gone, and nobody handled it")
	assert.Zero(t, ready(t, ch, queue))
}

// captured is a source whose sessions a test can reach into.
type captured struct {
	settle.Source
	last atomic.Pointer[consumer]
}

func (c *captured) Open(ctx context.Context, r settle.Registration) (settle.Consumer, error) {
	made, err := c.Source.Open(ctx, r)
	if err == nil {
		c.last.Store(made.(*consumer))
	}
	return made, err
}

// A channel that the server closes, as for a tag that does not exist, is
// replaced, and the work goes on.
func TestChannelKilledByABadTag(t *testing.T) {
	eachServer(t, func(t *testing.T, url string) {
		b, _ := testBroker(t, url, nil)
		queue, ch := rawQueue(t, url, nil)
		source := &captured{Source: &ClassicQueue{Broker: b, Queue: queue}}
		other, _ := rawQueue(t, url, nil)
		beside := serve(t, &ClassicQueue{Broker: b, Queue: other}, settle.Options{}, acks)
		s := serve(t, source, settle.Options{}, acks)
		s.opened(1)
		beside.opened(1)
		require.NoError(t, source.last.Load().ch.Ack(4711, false), "the client cannot tell")
		s.opened(2)
		lost := s.notice(settle.NoticeLost)
		assert.ErrorIs(t, lost.Err, settle.ErrSessionLost)
		assert.ErrorContains(t, lost.Err, "unknown delivery tag")
		publishTo(t, ch, queue, amqp.Publishing{})
		assert.NoError(t, s.ended(1)[0].Err)
		s.stop()
		beside.stop()
		assert.Zero(t, beside.noticed(settle.NoticeLost), "the connection's other sessions go on")
	})
}

// A queue that is deleted ends the session, floods nobody, and is consumed again when it is there again:
// at once where the source declares it, else when somebody does.
func TestDeletedQueue(t *testing.T) {
	eachServer(t, func(t *testing.T, url string) {
		for _, declare := range []bool{false, true} {
			b, _ := testBroker(t, url, nil)
			queue, ch := rawQueue(t, url, amqp.Table{"x-queue-type": "classic"})
			var seen tries
			s := serve(t, &ClassicQueue{Broker: b, Queue: queue, DeclareTopology: declare}, settle.Options{}, func(_ context.Context, d *settle.Delivery) settle.Outcome {
				seen.next(d)
				return settle.Ack()
			})
			s.opened(1)
			publishTo(t, ch, queue, amqp.Publishing{Body: []byte("1")})
			s.ended(1)
			_, err := ch.QueueDelete(queue, false, false, false)
			require.NoError(t, err)
			if !declare {
				eventually(t, func() bool { return s.noticed(settle.NoticeReopening) > 1 }, "it tries to open again")
				_, err = ch.QueueDeclare(queue, true, false, false, false, nil)
				require.NoError(t, err)
			}
			s.opened(2)
			assert.ErrorIs(t, s.notice(settle.NoticeLost).Err, errCancelled)
			publishTo(t, ch, queue, amqp.Publishing{Body: []byte("2")})
			s.ended(2)
			s.stop()
			assert.Len(t, seen.deliveries(), 2)
		}
	})
}

// A delivery that stays unsettled for longer than the consumer timeout ends the
// session: on 4.3 by a basic.cancel. The message comes again, which costs it no
// attempt, and work goes on.
func TestConsumerTimeout(t *testing.T) {
	url := services.URL(t, services.Rabbit)
	b, _ := testBroker(t, url, nil)
	queue := unique(t, url, "q")
	var slow atomic.Bool
	s := serve(t, &QuorumQueue{Broker: b, Queue: queue, DeclareTopology: true, Settings: Queue{Arguments: map[string]any{"x-consumer-timeout": 1000}}},
		settle.Options{Workers: 2}, func(ctx context.Context, d *settle.Delivery) settle.Outcome {
			if string(d.Body) == "slow" && !slow.Swap(true) {
				select {
				case <-ctx.Done():
					assert.ErrorIs(t, context.Cause(ctx), settle.ErrSessionLost)
				case <-time.After(3 * time.Minute):
					assert.Fail(t, "the session was not lost")
				}
			}
			assert.Equal(t, 1, d.Attempt)
			return settle.Ack()
		})
	s.opened(1)
	ch := rawChannel(t, url)
	publishTo(t, ch, queue, amqp.Publishing{Body: []byte("slow")})
	require.Eventually(t, func() bool { return s.noticed(settle.NoticeOpened) == 2 }, 3*time.Minute, 50*time.Millisecond)
	assert.ErrorIs(t, s.notice(settle.NoticeLost).Err, settle.ErrSessionLost)
	publishTo(t, ch, queue, amqp.Publishing{Body: []byte("next")})
	s.ended(3)
	s.stop()
	assert.Zero(t, ready(t, ch, queue))
}

// What a handler has not started goes back at the end without costing an
// attempt, though the server has handed it out.
func TestStopGivesBack(t *testing.T) {
	eachServer(t, func(t *testing.T, url string) {
		version := dialServer(t, url).version
		b, _ := testBroker(t, url, nil)
		queue, dead := unique(t, url, "q"), unique(t, url, "dead")
		source := &QuorumQueue{Broker: b, Queue: queue, DeclareTopology: true}
		started := make(chan struct{}, 10)
		finish := make(chan struct{})
		s := serve(t, source, settle.Options{MaxAttempts: 3, DeadLetter: dead, Prefetch: 10}, func(context.Context, *settle.Delivery) settle.Outcome {
			started <- struct{}{}
			<-finish
			return settle.Ack()
		})
		s.opened(1)
		ch := rawChannel(t, url)
		var msgs []amqp.Publishing
		for i := range 10 {
			msgs = append(msgs, amqp.Publishing{Body: []byte(strconv.Itoa(i))})
		}
		publishTo(t, ch, queue, msgs...)
		<-started
		eventually(t, func() bool { return ready(t, ch, queue) == 0 }, "the server has handed out all")
		s.cancel()
		eventually(t, func() bool { return ready(t, ch, queue) == 9 }, "what no handler has started is back")
		close(finish)
		s.stop()
		var seen tries
		s = serve(t, source, settle.Options{MaxAttempts: 3, DeadLetter: dead}, func(_ context.Context, d *settle.Delivery) settle.Outcome {
			seen.next(d)
			return settle.Ack()
		})
		s.ended(9)
		s.stop()
		for _, n := range seen.attempts() {
			if version.atLeast(4, 0) {
				assert.Equal(t, 1, n)
			} else {
				assert.GreaterOrEqual(t, n, 2, "every return counts before 4.0")
			}
		}
	})
}

// A broker that was closed is refused for good.
func TestOpenOnAClosedBroker(t *testing.T) {
	url := services.URL(t, services.Rabbit)
	queue, _ := rawQueue(t, url, nil)
	b, _ := testBroker(t, url, nil)
	require.NoError(t, b.Close(within(t)))
	s := serve(t, &ClassicQueue{Broker: b, Queue: queue}, settle.Options{}, acks)
	var config *settle.ConfigError
	require.ErrorAs(t, s.result(), &config)
	assert.Contains(t, config.Error(), "Close")
}

// Stop gives back at once what the server handed out and nobody received,
// while a delivery in work is still to settle.
func TestStopGivesBackTheUnreceived(t *testing.T) {
	eachServer(t, func(t *testing.T, url string) {
		b, _ := testBroker(t, url, nil)
		queue, dead := unique(t, url, "q"), unique(t, url, "dead")
		c, err := (&QuorumQueue{Broker: b, Queue: queue, DeclareTopology: true}).Open(within(t), registration(3, dead))
		require.NoError(t, err)
		ch := rawChannel(t, url)
		publishTo(t, ch, queue, make([]amqp.Publishing, 5)...)
		d := receive(t, c, 1)[0]
		eventually(t, func() bool { return ready(t, ch, queue) == 0 }, "the server has handed out all")
		require.NoError(t, c.Stop(within(t)))
		eventually(t, func() bool { return ready(t, ch, queue) == 4 }, "what nobody received is back")
		require.NoError(t, settleOne(t, c, d, settle.Verdict{Action: settle.ActionAck}))
		require.NoError(t, c.Close(within(t)))
		assert.Equal(t, 4, ready(t, ch, queue))
	})
}
