// Command rabbit-delays retries messages after a delay that the server waits
// out, in a queue beside the consumed one: the wait outlives this process, and holds up no
// other message.
//
//	go run ./examples/rabbit-delays
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
	reminders = "settle-example.reminders"
	delay     = 300 * time.Millisecond
)

var errBusy = errors.New("the line is busy")

func main() { server.Rabbit("rabbit-delays", run) }

func run(ctx context.Context, broker *rabbit.Broker, out io.Writer) error {
	// The example's queues go by themselves some time after it has ended.
	queue := rabbit.Queue{Name: reminders, Kind: rabbit.Classic, Expires: time.Minute}
	if err := broker.Declare(ctx, rabbit.Topology{Queues: []rabbit.Queue{queue}}); err != nil {
		return err
	}
	publisher := &rabbit.Publisher{Broker: broker, RoutingKey: reminders}
	if err := publisher.Publish(ctx, settle.Message{ID: "ann"}, settle.Message{ID: "bob"}); err != nil {
		return err
	}

	ended := make(chan struct{})
	began := time.Now()
	rt := &settle.Runtime{}
	rt.Handle(&rabbit.ClassicQueue{
		Broker: broker, Queue: reminders, DeclareTopology: true, Settings: rabbit.Queue{Expires: queue.Expires},
		Delay: rabbit.WaitQueue{},
	}, func(_ context.Context, d *settle.Delivery) settle.Outcome {
		fmt.Fprintf(out, "%4d ms: call %s, attempt %d\n", time.Since(began).Milliseconds(), d.ID, d.Attempt)
		if d.ID == "ann" && d.Attempt < 3 {
			return settle.RetryAfter(delay, errBusy)
		}
		ended <- struct{}{}
		return settle.Ack()
	}, settle.Options{MaxAttempts: 5})

	ctx, stop := context.WithCancel(ctx)
	defer stop()
	running := make(chan error, 1)
	go func() { running <- rt.Run(ctx) }()
	for range 2 {
		select {
		case <-ended:
		case err := <-running:
			return err
		}
	}
	stop()
	return <-running
}
