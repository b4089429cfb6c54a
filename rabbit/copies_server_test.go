package rabbit

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/settlemq/settle"
)

// Copies as the server takes them and hands them out again.

// A message keeps its body, properties and header types over counted retries
// and waits, and a copy carries nothing of its past.
func TestCopiesKeepTheMessage(t *testing.T) {
	eachServer(t, func(t *testing.T, url string) {
		for name, delay := range map[string]Delay{"counted retries": nil, "waits": WaitQueue{}} {
			t.Run(name, func(t *testing.T) {
				b, _ := testBroker(t, url, nil)
				ch := rawChannel(t, url)
				queue, cc := unique(t, url, "q"), unique(t, url, "cc")
				remove(t, url, queue+".retry", queue+".dead")
				_, err := ch.QueueDeclare(cc, true, false, false, false, nil)
				require.NoError(t, err)
				native := make(chan amqp.Delivery, 10)
				s := serve(t, &ClassicQueue{Broker: b, Queue: queue, DeclareTopology: true, Delay: delay}, settle.Options{MaxAttempts: 9, DeadLetter: queue + ".dead"}, func(_ context.Context, d *settle.Delivery) settle.Outcome {
					var n amqp.Delivery
					assert.True(t, d.As(&n))
					native <- n
					switch {
					case d.Attempt == 5:
						return settle.Ack()
					case delay == nil:
						return settle.Retry(errFault)
					default:
						return settle.RetryAfter(time.Millisecond, errFault)
					}
				})
				s.opened(1)
				sent := amqp.Publishing{
					Headers: amqp.Table{
						"text": "t", "bytes": []byte{0, 1}, "bool": true, "void": nil, "when": time.Unix(1, 0),
						"int8": int8(-8), "uint8": uint8(8), "int16": int16(-16), "uint16": uint16(16), "int32": int32(-32), "uint32": uint32(32), "int64": int64(-64),
						"float32": float32(1.5), "float64": 2.5, "decimal": amqp.Decimal{Scale: 2, Value: 314},
						"list": []any{int8(1), "two", amqp.Table{"three": int16(3)}}, "table": amqp.Table{"n": int32(1)},
						"CC": []any{cc}, "x-delivery-count": int64(7), "x-acquired-count": int64(8),
					},
					ContentType: "application/json", ContentEncoding: "gzip", DeliveryMode: amqp.Persistent, Priority: 7,
					CorrelationId: "c1", ReplyTo: "replies", Expiration: "600000", MessageId: "m1", Timestamp: time.Unix(2, 0),
					Type: "order", UserId: "guest", AppId: "shop", Body: []byte(`{"id":1}`),
				}
				publishTo(t, ch, queue, sent)
				s.ended(5)
				s.stop()
				first := <-native
				for range 4 {
					again := <-native
					for name, v := range first.Headers {
						if stale(name) {
							assert.NotContains(t, again.Headers, name)
						} else {
							assert.Equal(t, v, again.Headers[name], name)
						}
					}
					assert.Empty(t, again.UserId)
					assert.Empty(t, again.Expiration)
					same := func(d amqp.Delivery) amqp.Delivery {
						return amqp.Delivery{
							ContentType: d.ContentType, ContentEncoding: d.ContentEncoding, DeliveryMode: d.DeliveryMode, Priority: d.Priority,
							CorrelationId: d.CorrelationId, ReplyTo: d.ReplyTo, MessageId: d.MessageId, Timestamp: d.Timestamp, Type: d.Type, AppId: d.AppId, Body: d.Body,
						}
					}
					assert.Equal(t, same(first), same(again))
				}
				assert.Equal(t, 1, ready(t, ch, cc), "the copies were routed to CC again")
			})
		}
	})
}

// remove deletes what a source declares beside its queue.
func remove(t testing.TB, url string, queues ...string) { dialServer(t, url).remove(queues...) }

// Waiting again and again is no cycle to the server, and x-death does not grow.
func TestManyWaits(t *testing.T) {
	eachServer(t, func(t *testing.T, url string) {
		for _, quorum := range []bool{false, true} {
			b, _ := testBroker(t, url, nil)
			queue := unique(t, url, "q")
			remove(t, url, queue+".retry")
			var seen tries
			s := serve(t, profile{quorum: quorum, delay: WaitQueue{}}.source(b, queue), settle.Options{}, func(_ context.Context, d *settle.Delivery) settle.Outcome {
				if seen.next(d) == 8 {
					return settle.Ack()
				}
				return settle.RetryAfter(time.Millisecond, errFault)
			})
			s.opened(1)
			publishTo(t, rawChannel(t, url), queue, amqp.Publishing{Body: []byte("m")})
			s.ended(8)
			s.stop()
			assert.Equal(t, []int{1, 2, 3, 4, 5, 6, 7, 8}, seen.attempts())
			for _, d := range seen.deliveries() {
				assert.LessOrEqual(t, len(Deaths(d)), 1)
			}
		}
	})
}

// Waits and plain retries of one message count together, on a quorum queue too,
// where the server counts the one and the copies the other.
func TestWaitsAndRetriesCountTogether(t *testing.T) {
	eachServer(t, func(t *testing.T, url string) {
		for _, quorum := range []bool{false, true} {
			b, _ := testBroker(t, url, nil)
			ch := rawChannel(t, url)
			queue, dead := unique(t, url, "q"), unique(t, url, "dead")
			remove(t, url, queue+".retry")
			var seen tries
			s := serve(t, profile{quorum: quorum, delay: WaitQueue{}}.source(b, queue), settle.Options{MaxAttempts: 6, DeadLetter: dead}, func(_ context.Context, d *settle.Delivery) settle.Outcome {
				if seen.next(d)%2 == 0 {
					return settle.Retry(errFault)
				}
				return settle.RetryAfter(time.Millisecond, errFault)
			})
			s.opened(1)
			publishTo(t, ch, queue, amqp.Publishing{Body: []byte("m")})
			d := drain(t, ch, dead, 1)[0]
			s.stop()
			assert.Equal(t, []int{1, 2, 3, 4, 5, 6}, seen.attempts())
			assert.EqualValues(t, 6, d.Headers[settle.HeaderDeadAttempt])
			assert.Zero(t, ready(t, ch, queue)+ready(t, ch, queue+".retry"))
		}
	})
}

// In one wait queue a long wait holds up a short one; with PerDelay it does not.
func TestHeadOfTheWaitQueue(t *testing.T) {
	eachServer(t, func(t *testing.T, url string) {
		for _, perDelay := range []bool{false, true} {
			b, _ := testBroker(t, url, nil)
			queue := unique(t, url, "q")
			remove(t, url, queue+".retry", queue+".retry.1500", queue+".retry.10")
			var order []string // the handler's own: there is one worker
			s := serve(t, &ClassicQueue{Broker: b, Queue: queue, DeclareTopology: true, Delay: WaitQueue{PerDelay: perDelay}}, settle.Options{Workers: 1}, func(_ context.Context, d *settle.Delivery) settle.Outcome {
				body := string(d.Body)
				switch {
				case d.Attempt > 1:
					order = append(order, body)
					return settle.Ack()
				case body == "long":
					return settle.RetryAfter(1500*time.Millisecond, errFault)
				default:
					return settle.RetryAfter(10*time.Millisecond, errFault)
				}
			})
			s.opened(1)
			ch := rawChannel(t, url)
			publishTo(t, ch, queue, amqp.Publishing{Body: []byte("long")})
			s.ended(1)
			publishTo(t, ch, queue, amqp.Publishing{Body: []byte("short")})
			s.ended(4)
			s.stop()
			if perDelay {
				assert.Equal(t, []string{"short", "long"}, order)
			} else {
				assert.Equal(t, []string{"long", "short"}, order)
			}
		}
	})
}

// A copy that reaches no queue leaves its original where it is: nothing is
// acknowledged, others go on, and it goes its way when the queue is there.
func TestUnroutableCopyKeepsTheOriginal(t *testing.T) {
	eachServer(t, func(t *testing.T, url string) {
		b, _ := testBroker(t, url, nil)
		queue, ch := rawQueue(t, url, nil)
		dead := unique(t, url, "dead")
		declare := func() {
			_, err := ch.QueueDeclare(dead, true, false, false, false, nil)
			require.NoError(t, err)
		}
		declare()
		s := serve(t, &ClassicQueue{Broker: b, Queue: queue}, settle.Options{DeadLetter: dead}, func(_ context.Context, d *settle.Delivery) settle.Outcome {
			if string(d.Body) == "bad" {
				return settle.DeadLetter(errFault)
			}
			return settle.Ack()
		})
		s.opened(1)
		_, err := ch.QueueDelete(dead, false, false, false)
		require.NoError(t, err)
		publishTo(t, ch, queue, amqp.Publishing{Body: []byte("bad")})
		eventually(t, func() bool { return s.noticed(settle.NoticeSettleFailed) > 1 }, "it is tried again")
		assert.ErrorIs(t, s.notice(settle.NoticeSettleFailed).Err, settle.ErrUnroutable)
		publishTo(t, ch, queue, amqp.Publishing{Body: []byte("good")})
		assert.NoError(t, s.ended(1)[0].Err)
		declare()
		assert.Equal(t, "bad", string(drain(t, ch, dead, 1)[0].Body))
		s.ended(2)
		s.stop()
		assert.Zero(t, ready(t, ch, queue))
	})
}

// With DeclareTopology a queue that copies go to and that somebody deleted is
// declared again.
func TestDeletedTargetComesBack(t *testing.T) {
	eachServer(t, func(t *testing.T, url string) {
		for name, delay := range map[string]WaitQueue{"wait queue": {}, "per delay": {PerDelay: true}} {
			t.Run(name, func(t *testing.T) {
				b, _ := testBroker(t, url, nil)
				ch := rawChannel(t, url)
				queue, dead := unique(t, url, "q"), unique(t, url, "dead")
				waiting := delay.name(queue, 10*time.Millisecond)
				remove(t, url, waiting)
				s := serve(t, &QuorumQueue{Broker: b, Queue: queue, DeclareTopology: true, Delay: delay}, settle.Options{DeadLetter: dead, MaxAttempts: 3}, func(_ context.Context, d *settle.Delivery) settle.Outcome {
					if d.Attempt == 1 {
						return settle.RetryAfter(10*time.Millisecond, errFault)
					}
					return settle.DeadLetter(errFault)
				})
				s.opened(1)
				for n := range 2 {
					publishTo(t, ch, queue, amqp.Publishing{})
					s.ended(2 * (n + 1))
					drain(t, ch, dead, 1)
					for _, name := range []string{waiting, dead} {
						_, err := ch.QueueDelete(name, false, false, false)
						require.NoError(t, err)
					}
				}
				s.stop()
				require.NotZero(t, s.noticed(settle.NoticeSettleFailed))
			})
		}
	})
}

// A message that nearly fills a frame has no room for the headers of a copy. Its copy goes
// without those that are not needed; where not even the count fits the message is dead-lettered as it
// was. Nothing is lost, nothing stands still, and each is told.
func TestCopyTooLargeForAFrame(t *testing.T) {
	eachServer(t, func(t *testing.T, url string) {
		b, _ := testBroker(t, url, nil)
		queue, ch := rawQueue(t, url, nil)
		dead := unique(t, url, "dead")
		_, err := ch.QueueDeclare(dead, true, false, false, false, nil)
		require.NoError(t, err)
		// The frame is 131072 bytes. The first leaves room for the count alone, the second for nothing.
		counted := amqp.Publishing{Body: []byte("counted"), Headers: amqp.Table{"h": strings.Repeat("x", 131_000)}}
		full := amqp.Publishing{Body: []byte("full"), Headers: amqp.Table{"h": strings.Repeat("x", 131_025)}}
		publishTo(t, ch, queue, full, full, full, full, counted, amqp.Publishing{Body: []byte("good")})
		var seen tries
		s := serve(t, &ClassicQueue{Broker: b, Queue: queue}, settle.Options{Prefetch: 2, MaxAttempts: 3, DeadLetter: dead}, func(_ context.Context, d *settle.Delivery) settle.Outcome {
			if seen.next(d); string(d.Body) == "good" {
				return settle.Ack()
			}
			return settle.Retry(errFault)
		})
		got := make(map[string]int)
		for _, d := range drain(t, ch, dead, 5) {
			assert.NotContains(t, d.Headers, CountHeader)
			got[string(d.Body)]++
		}
		s.ended(8)
		s.stop()
		assert.Equal(t, map[string]int{"full": 4, "counted": 1}, got)
		assert.Equal(t, map[string]int{"full": 4, "counted": 3, "good": 1}, seen.count)
		assert.NotZero(t, s.noticed(settle.NoticeWeakened))
		assert.Zero(t, ready(t, ch, queue)+ready(t, ch, dead))
	})
}

// RetryPublisher sends the copies, and has a window of its own.
func TestRetryPublisher(t *testing.T) {
	eachServer(t, func(t *testing.T, url string) {
		b, _ := testBroker(t, url, nil)
		other, _ := testBroker(t, url, nil)
		queue, dead := unique(t, url, "q"), unique(t, url, "dead")
		p := &Publisher{Broker: other, Window: 2}
		var seen tries
		s := serve(t, &ClassicQueue{Broker: b, Queue: queue, DeclareTopology: true, RetryPublisher: p}, settle.Options{MaxAttempts: 3, DeadLetter: dead, Prefetch: 50}, failing(&seen))
		s.opened(1)
		ch := rawChannel(t, url)
		const n = 50
		for i := range n {
			publishTo(t, ch, queue, amqp.Publishing{Body: fmt.Append(nil, i)})
		}
		drain(t, ch, dead, n)
		s.stop()
		assert.Len(t, seen.deliveries(), 3*n)
		_, used := b.publishing.conns.current()
		assert.False(t, used, "the source's own broker published")
	})
}

// A copy goes to the delayed exchange with its delay and count, and not
// mandatory. The plugin is not to be had here: in its place stands a direct exchange, which
// routes at once what the plugin would hold back.
func TestDelayedExchange(t *testing.T) {
	eachServer(t, func(t *testing.T, url string) {
		b, _ := testBroker(t, url, nil)
		queue, ch := rawQueue(t, url, nil)
		require.NoError(t, ch.ExchangeDeclare(queue+".delay", "direct", true, false, false, false, nil))
		t.Cleanup(func() {
			_ = dialServer(t, url).on(func(ch *amqp.Channel) error { return ch.ExchangeDelete(queue+".delay", false, false) })
		})
		var seen tries
		s := serve(t, &ClassicQueue{Broker: b, Queue: queue, Delay: DelayedExchange{}}, settle.Options{}, func(_ context.Context, d *settle.Delivery) settle.Outcome {
			if seen.next(d) < 3 {
				return settle.RetryAfter(1500*time.Millisecond, errFault)
			}
			return settle.Ack()
		})
		s.opened(1)
		publishTo(t, ch, queue, amqp.Publishing{Body: []byte("m")})
		s.ended(3)
		s.stop()
		assert.Equal(t, []int{1, 2, 3}, seen.attempts())
		for _, d := range seen.deliveries()[1:] {
			assert.EqualValues(t, 1501, d.Headers[delayHeader])
			assert.NotContains(t, d.Headers, returnHeader)
			assert.Equal(t, queue, d.Key)
		}
	})
}

// The native delivery is there to look at; the outcome settles it, not its methods.
func TestNativeDelivery(t *testing.T) {
	eachServer(t, func(t *testing.T, url string) {
		b, _ := testBroker(t, url, nil)
		queue, ch := rawQueue(t, url, nil)
		errs := make(chan error, 3)
		s := serve(t, &ClassicQueue{Broker: b, Queue: queue}, settle.Options{}, func(_ context.Context, d *settle.Delivery) settle.Outcome {
			var n amqp.Delivery
			var other int
			assert.False(t, d.As(&other))
			assert.True(t, d.As(&n))
			assert.Equal(t, "text/plain", n.ContentType)
			assert.Equal(t, "id", d.ID)
			assert.Equal(t, time.Unix(2, 0), d.Published)
			errs <- n.Ack(true)
			errs <- n.Nack(true, true)
			errs <- n.Reject(true)
			return settle.Ack()
		})
		s.opened(1)
		publishTo(t, ch, queue, amqp.Publishing{ContentType: "text/plain", MessageId: "id", Timestamp: time.Unix(2, 0)})
		assert.NoError(t, s.ended(1)[0].Err)
		s.stop()
		for range 3 {
			assert.ErrorContains(t, <-errs, "outcome")
		}
		assert.Zero(t, ready(t, ch, queue))
	})
}

// What could not be published says nothing of the delivery's own session.
func TestCopyErrorIsNotALostSession(t *testing.T) {
	err := copyError(fmt.Errorf("the publishing connection: %w", settle.ErrSessionLost))
	assert.NotErrorIs(t, err, settle.ErrSessionLost)
	assert.ErrorContains(t, err, "publishing connection")
	assert.ErrorIs(t, copyError(settle.ErrUnroutable), settle.ErrUnroutable)
	assert.True(t, settle.IsPermanent(copyError(settle.Permanent(errors.New("too large")))))
}

// The key of a delivery is the one it was first published with, over retries,
// waits and publishers.
func TestKeyStays(t *testing.T) {
	eachServer(t, func(t *testing.T, url string) {
		b, _ := testBroker(t, url, nil)
		queue, exchange := unique(t, url, "q"), unique(t, url, "x")
		remove(t, url, queue+".retry")
		ch := rawChannel(t, url)
		require.NoError(t, ch.ExchangeDeclare(exchange, "topic", true, false, false, false, nil))
		keys := make(chan string, 10)
		s := serve(t, &ClassicQueue{Broker: b, Queue: queue, DeclareTopology: true, Delay: WaitQueue{}, Bindings: []Binding{{Exchange: exchange, Key: "orders.#"}}},
			settle.Options{MaxAttempts: 9, DeadLetter: queue + ".dead"}, func(_ context.Context, d *settle.Delivery) settle.Outcome {
				keys <- d.Key
				switch d.Attempt {
				case 1:
					return settle.Retry(errFault)
				case 2:
					return settle.RetryAfter(time.Millisecond, errFault)
				default:
					return settle.Ack()
				}
			})
		remove(t, url, queue+".dead")
		s.opened(1)
		require.NoError(t, ch.Publish(exchange, "orders.eu.new", true, false, amqp.Publishing{}))
		for range 3 {
			assert.Equal(t, "orders.eu.new", <-keys)
		}
		s.ended(3)
		require.NoError(t, (&Publisher{Broker: b, Exchange: exchange}).Publish(within(t), settle.Message{To: "orders.us.new", Key: "customer 7"}))
		for range 3 {
			assert.Equal(t, "customer 7", <-keys)
		}
		s.ended(6)
		s.stop()
	})
}

// The count travels in the header that the queue names, and in no other.
func TestCountHeaderOfOnesOwn(t *testing.T) {
	eachServer(t, func(t *testing.T, url string) {
		b, _ := testBroker(t, url, nil)
		queue := unique(t, url, "q")
		remove(t, url, queue+".dead")
		var seen tries
		s := serve(t, &ClassicQueue{Broker: b, Queue: queue, DeclareTopology: true, CountHeader: "x-tries"}, settle.Options{MaxAttempts: 9, DeadLetter: queue + ".dead"}, func(_ context.Context, d *settle.Delivery) settle.Outcome {
			if seen.next(d) < 3 {
				return settle.Retry(errFault)
			}
			return settle.Ack()
		})
		s.opened(1)
		publishTo(t, rawChannel(t, url), queue, amqp.Publishing{Headers: amqp.Table{CountHeader: int64(5)}})
		s.ended(3)
		s.stop()
		assert.Equal(t, []int{1, 2, 3}, seen.attempts())
		assert.EqualValues(t, 2, seen.deliveries()[2].Headers["x-tries"])
	})
}

// A body of many frames is copied like any other.
func TestLargeBodyIsCopied(t *testing.T) {
	eachServer(t, func(t *testing.T, url string) {
		b, _ := testBroker(t, url, nil)
		ch := rawChannel(t, url)
		queue, dead := unique(t, url, "q"), unique(t, url, "dead")
		var seen tries
		s := serve(t, &ClassicQueue{Broker: b, Queue: queue, DeclareTopology: true}, settle.Options{MaxAttempts: 2, DeadLetter: dead}, failing(&seen))
		s.opened(1)
		body := []byte(strings.Repeat("0123456789abcdef", 10<<16)) // 10 MiB
		publishTo(t, ch, queue, amqp.Publishing{Body: body})
		got := drain(t, ch, dead, 1)[0].Body
		s.stop()
		assert.True(t, string(body) == string(got), "the body has changed")
		assert.Equal(t, []int{1, 2}, seen.attempts())
	})
}
