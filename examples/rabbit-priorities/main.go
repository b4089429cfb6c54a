// Command rabbit-priorities lets urgent messages overtake others in a classic
// queue, and catches what no binding wants in an alternate exchange.
//
//	go run ./examples/rabbit-priorities
package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/examples/internal/server"
	"github.com/settlemq/settle/rabbit"
)

const (
	alerts   = "settle-example.alerts"
	rest     = "settle-example.alerts.rest"
	minute   = time.Minute // the example's queues go by themselves that long after it has ended
	expected = 4
)

func main() { server.Rabbit("rabbit-priorities", run) }

func run(ctx context.Context, broker *rabbit.Broker, out io.Writer) error {
	err := broker.Declare(ctx, rabbit.Topology{
		Exchanges: []rabbit.Exchange{
			{Name: alerts, Kind: rabbit.Direct, Alternate: rest},
			{Name: rest, Kind: rabbit.Fanout},
		},
		Queues: []rabbit.Queue{
			{Name: alerts, Kind: rabbit.Classic, MaxPriority: 5, Expires: minute},
			{Name: rest, Kind: rabbit.Classic, Expires: minute},
		},
		Bindings: []rabbit.Binding{
			{Exchange: alerts, Queue: alerts, Key: "alert"},
			{Exchange: rest, Queue: rest},
		},
	})
	if err != nil {
		return err
	}

	// Nothing that is published here is unroutable, so the publisher does not ask to be told.
	publisher := &rabbit.Publisher{Broker: broker, Exchange: alerts, DropUnroutable: true}
	err = publisher.Publish(ctx,
		settle.Message{To: "alert", ID: "disk is getting full", Priority: 1},
		settle.Message{To: "alert", ID: "somebody sneezed"},
		settle.Message{To: "alert", ID: "the house is on fire", Priority: 5},
		settle.Message{To: "misspelt", ID: "a message nobody asked for"},
	)
	if err != nil {
		return err
	}

	ended := make(chan struct{}, expected)
	rt := &settle.Runtime{}
	handle := func(queue string) {
		rt.Handle(&rabbit.ClassicQueue{Broker: broker, Queue: queue}, func(_ context.Context, d *settle.Delivery) settle.Outcome {
			fmt.Fprintf(out, "%s: %s\n", queue, d.ID)
			ended <- struct{}{}
			return settle.Ack()
		}, settle.Options{Prefetch: 1}) // what is prefetched cannot be overtaken
	}
	handle(alerts)
	handle(rest)
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	running := make(chan error, 1)
	go func() { running <- rt.Run(ctx) }()
	for range expected {
		select {
		case <-ended:
		case err := <-running:
			return err
		}
	}
	stop()
	return <-running
}
