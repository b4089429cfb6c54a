// Command rabbit-orders works on orders from a quorum queue. An order that
// fails is tried three times; what cannot be worked on goes to the dead letters, where
// it can be seen why.
//
//	go run ./examples/rabbit-orders
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/examples/internal/server"
	"github.com/settlemq/settle/rabbit"
)

const (
	orders     = "settle-example.orders"
	deadOrders = "settle-example.orders.dead"
	attempts   = 3
)

type order struct {
	ID   int
	Item string
}

func main() { server.Rabbit("rabbit-orders", run) }

func run(ctx context.Context, broker *rabbit.Broker, out io.Writer) error {
	// The example's queues go by themselves a minute after it has ended.
	shortLived := rabbit.Queue{Name: deadOrders, Expires: time.Minute}
	if err := broker.Declare(ctx, rabbit.Topology{Queues: []rabbit.Queue{shortLived}}); err != nil {
		return err
	}
	ended := make(chan struct{})

	rt := &settle.Runtime{}
	// The cap becomes the delivery limit of the queue, so the queue must be declared by its consumer.
	rt.Handle(&rabbit.QuorumQueue{Broker: broker, Queue: orders, DeclareTopology: true, Settings: rabbit.Queue{Expires: time.Minute}},
		settle.JSON(func(_ context.Context, o order, d *settle.Delivery) settle.Outcome {
			outcome := work(o, d.Attempt)
			fmt.Fprintf(out, "order %d (%s), attempt %d: %v\n", o.ID, o.Item, d.Attempt, outcome)
			if outcome.Cause() == nil {
				ended <- struct{}{}
			}
			return outcome
		}),
		settle.Options{MaxAttempts: attempts, DeadLetter: deadOrders})
	rt.Handle(&rabbit.QuorumQueue{Broker: broker, Queue: deadOrders},
		func(_ context.Context, d *settle.Delivery) settle.Outcome {
			fmt.Fprintf(out, "dead letter %s, because: %s\n", d.Body, why(d))
			ended <- struct{}{}
			return settle.Ack()
		}, settle.Options{})

	ctx, stop := context.WithCancel(ctx)
	defer stop()
	running := make(chan error, 1)
	go func() { running <- rt.Run(ctx) }()

	publisher := &rabbit.Publisher{Broker: broker, RoutingKey: orders, ContentType: "application/json"}
	bodies := []string{
		`{"ID":1,"Item":"book"}`, `{"ID":2,"Item":"flaky"}`, `{"ID":3,"Item":"broken"}`, `{"ID":4,"Item":"unicorn"}`, `not json`,
	}
	for _, body := range bodies {
		if err := publish(ctx, publisher, settle.Message{Body: []byte(body)}); err != nil {
			return err
		}
	}
	for range bodies {
		select {
		case <-ended:
		case err := <-running:
			return err
		}
	}
	stop()
	return <-running
}

// publish waits until the consumer above has declared the queue.
func publish(ctx context.Context, p *rabbit.Publisher, m settle.Message) error {
	for {
		err := p.Publish(ctx, m)
		if !errors.Is(err, settle.ErrUnroutable) {
			return err
		}
		time.Sleep(50 * time.Millisecond)
	}
}

var (
	errDown    = errors.New("the warehouse does not answer")
	errUnknown = errors.New("there is no such item")
)

// work is what a service does for its living.
func work(o order, attempt int) settle.Outcome {
	switch {
	case o.Item == "unicorn":
		return settle.DeadLetter(errUnknown) // another attempt cannot help
	case o.Item == "broken", o.Item == "flaky" && attempt < attempts:
		return settle.Retry(errDown)
	default:
		return settle.Ack()
	}
}

// why reads the cause that the library wrote into a dead letter; one that the
// server moved at the queue's limit has the server's own record.
func why(d *settle.Delivery) string {
	if cause := d.Headers.Get(settle.HeaderDeadCause); cause != "" {
		return cause
	}
	for _, death := range rabbit.Deaths(d) {
		return fmt.Sprintf("%s in %s", death.Reason, death.Queue)
	}
	return "nobody wrote it down"
}
