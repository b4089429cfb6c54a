package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wmamqp "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/rabbit"
)

// The body every contestant moves: 512 bytes of JSON.
var json512 = []byte(`{"order":1000,"amount":"12.50","note":"` + strings.Repeat("x", 512-41) + `"}`)

const rabbitPrefetch = 256

var rabbitPart = part{name: "rabbit", about: aboutRabbit, comparisons: rabbitComparisons}

// aboutRabbit says which server it is, as it presents itself to clients.
func aboutRabbit(context.Context) (string, error) {
	s, err := findRabbit()
	if err != nil {
		return "", err
	}
	conn, err := amqp.Dial(s.url)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	return fmt.Sprintf("RabbitMQ %v, %v", conn.Properties["version"], conn.Properties["platform"]), nil
}

func rabbitComparisons(context.Context) ([]comparison, error) {
	s, err := findRabbit()
	if err != nil {
		return nil, err
	}
	var all []comparison
	for _, kind := range []string{"classic", "quorum"} {
		all = append(all, comparison{
			part: "rabbit", name: "consume, " + kind, messages: 100000, base: "raw, ack each",
			work: fmt.Sprintf("Take 512 bytes of JSON from a %s queue, do nothing with it, acknowledge it; prefetch %d, one worker.", kind, rabbitPrefetch),
			contestants: []contestant{
				{name: "settle", settings: "acks in groups, as by default", done: "the ack's frame is written", prepare: s.consume(kind, s.settle(false))},
				{name: "settle, ack each", settings: "AckEach", done: "the ack's frame is written", prepare: s.consume(kind, s.settle(true))},
				{name: "raw, ack each", settings: "amqp091-go, one loop", done: "the ack's frame is written", prepare: s.consume(kind, s.raw(1))},
				{name: "raw, ack every 32", settings: "amqp091-go, one loop, ack with multiple", done: "the frame of an ack of 32 is written", prepare: s.consume(kind, s.raw(32))},
				{name: "watermill-amqp", settings: "NewDurableQueueConfig, prefetch as the others", done: "the ack's frame is written", prepare: s.consume(kind, s.watermill)},
			},
			bars: []bar{
				{"settle, ack each", "raw, ack each", 0.97, true},
				{"settle, ack each", "raw, ack each", 0.90, false},
				{"settle", "raw, ack each", 1.3, true},
				{"settle", "watermill-amqp", 1.5, true},
			},
			missed: "the server shares the two cores and is as busy as the client, so what grouping saves shows as far as the server lets it: compare the loop that acknowledges every 32, which does nothing else, " +
				"and the two rows of the loop that acknowledges each. The client's own part is CPU/message. watermill-amqp acknowledges each, too, so it is as far behind as its own CPU is above that loop's.",
		})
	}
	all = append(all,
		comparison{
			part: "rabbit", name: "publish", messages: 40000, base: "raw, pipelined confirms",
			work: "Publish 512 bytes of JSON to a classic queue, persistent, and have each confirmed.",
			contestants: []contestant{
				{name: "settle", settings: "Publish of 1,000 at a time, mandatory, window 512", done: "the server has confirmed and not returned it", prepare: s.publish(s.settlePublisher(1000))},
				{name: "raw, pipelined confirms", settings: "amqp091-go, deferred confirmations, 512 at once", done: "the server has confirmed it", prepare: s.publish(rawPipelined)},
				{name: "settle, one at a time", settings: "Publish of one message after another", done: "the server has confirmed and not returned it", prepare: slower(s.publish(s.settlePublisher(1)), 20)},
				{name: "raw, wait for each", settings: "amqp091-go, a confirm waited for after each publish", done: "the server has confirmed it", prepare: slower(s.publish(rawWaiting), 20)},
			},
			bars: []bar{{"settle", "raw, pipelined confirms", 0.9, true}, {"settle", "raw, wait for each", 10, true}},
		},
		comparison{
			part: "rabbit", name: "counted retries", messages: 20000, base: "raw",
			work: "Take a message from a classic queue, send a copy with a count to its end, confirmed, then acknowledge the original; acknowledge the copy.",
			contestants: []contestant{
				{name: "settle", settings: "MaxAttempts 3, Retry then Ack, 1 worker", done: "the copy is confirmed and not returned, and the ack's frame is written", prepare: s.consume("classic", s.settleRetries)},
				{name: "raw", settings: "amqp091-go, deferred confirmations, one loop, up to the prefetch at once", done: "the copy is confirmed and the ack's frame is written", prepare: s.consume("classic", s.rawRetries)},
			},
			bars: []bar{{"settle", "raw", 0.8, true}},
		},
	)
	return all, nil
}

// rabbitServer is where the contestants work, each on a queue of its own.
type rabbitServer struct{ url string }

func findRabbit() (rabbitServer, error) {
	s := rabbitServer{url: os.Getenv("SETTLE_RABBIT_URL")}
	if s.url == "" {
		return s, noServiceError{"SETTLE_RABBIT_URL names no server"}
	}
	return s, nil
}

var rabbitQueues atomic.Int64

// declare makes a new queue and returns a channel and what takes both away.
func (s rabbitServer) declare(kind string) (queue string, ch *amqp.Channel, end func(), err error) {
	conn, err := amqp.Dial(s.url)
	if err != nil {
		return "", nil, nil, err
	}
	if ch, err = conn.Channel(); err != nil {
		conn.Close()
		return "", nil, nil, err
	}
	queue = fmt.Sprintf("bench-%d-%d", time.Now().UnixNano(), rabbitQueues.Add(1))
	arguments := amqp.Table{amqp.QueueTypeArg: kind}
	if kind == "quorum" {
		arguments["x-delivery-limit"] = -1
	}
	if _, err = ch.QueueDeclare(queue, true, false, false, false, arguments); err != nil {
		conn.Close()
		return "", nil, nil, err
	}
	return queue, ch, func() {
		_, _ = ch.QueueDelete(queue, false, false, false)
		conn.Close()
	}, nil
}

// consume prepares a full queue for a contestant that empties it.
func (s rabbitServer) consume(kind string, contestant func(queue string, n int) run) func(context.Context, int) (run, error) {
	return func(ctx context.Context, n int) (run, error) {
		queue, ch, end, err := s.declare(kind)
		if err != nil {
			return run{}, err
		}
		if err := rawPipelined(ctx, ch, queue, n); err != nil {
			end()
			return run{}, err
		}
		r := contestant(queue, n)
		r.end = end
		return r, nil
	}
}

func (s rabbitServer) settle(each bool) func(queue string, n int) run {
	return func(queue string, n int) run {
		return s.withBroker(func(b *rabbit.Broker) run {
			q := &rabbit.ClassicQueue{Broker: b, Queue: queue, AckEach: each}
			return plainRun(n, q, settle.Options{Workers: 1, Prefetch: rabbitPrefetch}, nil)
		})
	}
}

// withBroker has a run use a broker that is closed at its end.
func (s rabbitServer) withBroker(make func(*rabbit.Broker) run) run {
	return run{do: func(ctx context.Context) error {
		b, err := rabbit.New(rabbit.Config{URLs: []string{s.url}, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			return err
		}
		err = make(b).do(ctx)
		return errors.Join(err, b.Close(context.WithoutCancel(ctx)))
	}}
}

// raw is the loop one writes oneself: it acknowledges so many at once.
func (s rabbitServer) raw(multiple int) func(queue string, n int) run {
	return func(queue string, n int) run {
		return run{do: func(ctx context.Context) error {
			return s.receive(ctx, queue, func(_ *amqp.Channel, in <-chan amqp.Delivery) error {
				for i := 1; i <= n; i++ {
					d, ok := <-in
					if !ok {
						return errors.New("the channel closed")
					}
					if i%multiple == 0 || i == n {
						if err := d.Ack(multiple > 1); err != nil {
							return err
						}
					}
				}
				return nil
			})
		}}
	}
}

// receive consumes a queue on a connection of its own.
func (s rabbitServer) receive(_ context.Context, queue string, loop func(*amqp.Channel, <-chan amqp.Delivery) error) error {
	conn, err := amqp.Dial(s.url)
	if err != nil {
		return err
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	if err := ch.Qos(rabbitPrefetch, 0, false); err != nil {
		return err
	}
	in, err := ch.Consume(queue, "", false, false, false, false, nil)
	if err != nil {
		return err
	}
	return loop(ch, in)
}

func (s rabbitServer) watermill(queue string, n int) run {
	return run{do: func(ctx context.Context) error {
		config := wmamqp.NewDurableQueueConfig(s.url)
		config.Consume.Qos.PrefetchCount = rabbitPrefetch
		config.Queue.Arguments = amqp.Table{amqp.QueueTypeArg: "classic"}
		config.TopologyBuilder = &existing{}
		sub, err := wmamqp.NewSubscriber(config, watermill.NopLogger{})
		if err != nil {
			return err
		}
		defer sub.Close()
		in, err := sub.Subscribe(ctx, queue)
		if err != nil {
			return err
		}
		for range n {
			m, ok := <-in
			if !ok {
				return errors.New("the subscription closed")
			}
			m.Ack()
		}
		return nil
	}}
}

// existing has watermill use the queue as it is.
type existing struct{ wmamqp.DefaultTopologyBuilder }

func (existing) BuildTopology(*amqp.Channel, wmamqp.BuildTopologyParams, wmamqp.Config, watermill.LoggerAdapter) error {
	return nil
}

// publish prepares an empty queue for a contestant that fills it.
func (s rabbitServer) publish(fill func(ctx context.Context, ch *amqp.Channel, queue string, n int) error) func(context.Context, int) (run, error) {
	return func(_ context.Context, n int) (run, error) {
		queue, ch, end, err := s.declare("classic")
		if err != nil {
			return run{}, err
		}
		return run{do: func(ctx context.Context) error { return fill(ctx, ch, queue, n) }, end: end}, nil
	}
}

func (s rabbitServer) settlePublisher(at int) func(ctx context.Context, ch *amqp.Channel, queue string, n int) error {
	return func(ctx context.Context, _ *amqp.Channel, queue string, n int) error {
		return s.withBroker(func(b *rabbit.Broker) run {
			return run{do: func(ctx context.Context) error {
				p := &rabbit.Publisher{Broker: b, RoutingKey: queue, ContentType: "application/json"}
				batch := make([]settle.Message, at)
				for i := range batch {
					batch[i].Body = json512
				}
				for left := n; left > 0; left -= at {
					if err := p.Publish(ctx, batch[:min(at, left)]...); err != nil {
						return err
					}
				}
				return nil
			}}
		}).do(ctx)
	}
}

var persistent = amqp.Publishing{DeliveryMode: amqp.Persistent, ContentType: "application/json", Body: json512}

const window = 512

func rawPipelined(ctx context.Context, ch *amqp.Channel, queue string, n int) error {
	if err := ch.Confirm(false); err != nil {
		return err
	}
	pending := make(chan *amqp.DeferredConfirmation, window)
	failed := make(chan error, 1)
	go func() {
		defer close(failed)
		for c := range pending {
			ok, err := c.WaitContext(ctx)
			if err == nil && !ok {
				err = errors.New("the server refused a message")
			}
			if err != nil {
				failed <- err
				for range pending {
				}
				return
			}
		}
	}()
	for range n {
		c, err := ch.PublishWithDeferredConfirmWithContext(ctx, "", queue, false, false, persistent)
		if err != nil {
			close(pending)
			return err
		}
		pending <- c
	}
	close(pending)
	return <-failed
}

func rawWaiting(ctx context.Context, ch *amqp.Channel, queue string, n int) error {
	if err := ch.Confirm(false); err != nil {
		return err
	}
	for range n {
		c, err := ch.PublishWithDeferredConfirmWithContext(ctx, "", queue, false, false, persistent)
		if err != nil {
			return err
		}
		if ok, err := c.WaitContext(ctx); err != nil || !ok {
			return errors.Join(err, errors.New("a message was not confirmed"))
		}
	}
	return nil
}

func (s rabbitServer) settleRetries(queue string, n int) run {
	return s.withBroker(func(b *rabbit.Broker) run {
		q := &rabbit.ClassicQueue{Broker: b, Queue: queue}
		o := settle.Options{Workers: 1, Prefetch: rabbitPrefetch, MaxAttempts: 3}
		return handlerRun(n, q, func(_ context.Context, d *settle.Delivery) settle.Outcome {
			if d.Attempt == 1 {
				return settle.Retry(nil)
			}
			return settle.Ack()
		}, o, nil)
	})
}

func (s rabbitServer) rawRetries(queue string, n int) run {
	const header = "x-count"
	type copied struct {
		original amqp.Delivery
		confirm  *amqp.DeferredConfirmation
	}
	return run{do: func(ctx context.Context) error {
		return s.receive(ctx, queue, func(ch *amqp.Channel, in <-chan amqp.Delivery) error {
			if err := ch.Confirm(false); err != nil {
				return err
			}
			pending := make(chan copied, rabbitPrefetch)
			failed := make(chan error, 1)
			go func() {
				defer close(failed)
				for c := range pending {
					ok, err := c.confirm.WaitContext(ctx)
					if err == nil && ok {
						err = c.original.Ack(false)
					}
					if err != nil || !ok {
						failed <- errors.Join(err, errors.New("a copy was not confirmed"))
						for range pending {
						}
						return
					}
				}
			}()
			for done := 0; done < n; {
				d, ok := <-in
				if !ok {
					return errors.New("the channel closed")
				}
				if d.Headers[header] != nil {
					if err := d.Ack(false); err != nil {
						return err
					}
					done++
					continue
				}
				c, err := ch.PublishWithDeferredConfirmWithContext(ctx, "", queue, true, false, amqp.Publishing{
					DeliveryMode: d.DeliveryMode, ContentType: d.ContentType, Body: d.Body, Headers: amqp.Table{header: int32(1)},
				})
				if err != nil {
					return err
				}
				pending <- copied{d, c}
			}
			close(pending)
			return <-failed
		})
	}}
}
