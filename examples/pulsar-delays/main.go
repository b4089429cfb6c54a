// Command pulsar-delays publishes reminders that the broker keeps until they
// are due: the wait is the broker's, and outlives every process.
//
//	go run ./examples/pulsar-delays
package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/examples/internal/pulsarserver"
	"github.com/settlemq/settle/pulsar"
)

const reminders = "settle-example-reminders"

func main() { pulsarserver.Main("pulsar-delays", run) }

func run(ctx context.Context, broker *pulsar.Broker, out io.Writer) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	came := make(chan string)
	began := time.Now()
	rt := &settle.Runtime{}
	// Delays are kept for Shared and KeyShared, and those of less than a second not at all.
	rt.Handle(&pulsar.Subscription{Broker: broker, Topic: reminders, SubscriptionName: "calling"},
		func(_ context.Context, d *settle.Delivery) settle.Outcome {
			fmt.Fprintf(out, "after %v: remind %s\n", time.Since(began).Round(100*time.Millisecond), d.ID)
			select {
			case came <- d.ID:
			case <-ctx.Done():
			}
			return settle.Ack()
		}, settle.Options{})
	running := make(chan error, 1)
	go func() { running <- rt.Run(ctx) }()

	publisher := &pulsar.Publisher{Broker: broker, Topic: reminders}
	// send publishes and waits until all of it has come.
	send := func(msgs ...pulsar.Message) error {
		if err := publisher.Send(ctx, msgs...); err != nil {
			return err
		}
		open := make(map[string]bool) // by ID: a message may come twice
		for _, m := range msgs {
			open[m.ID] = true
		}
		for len(open) > 0 {
			select {
			case id := <-came:
				delete(open, id)
			case err := <-running:
				return err
			}
		}
		return nil
	}
	// Once the first has come the subscription is open: what is due while nobody is there comes late.
	if err := send(pulsar.Message{Message: settle.Message{ID: "Abe, now"}}); err != nil {
		return err
	}
	err := send(
		pulsar.Message{Message: settle.Message{ID: "Cid, in four seconds", Delay: 4 * time.Second}},
		pulsar.Message{Message: settle.Message{ID: "Bea, at a time of the day"}, DeliverAt: time.Now().Add(2 * time.Second)},
	)
	if err != nil {
		return err
	}
	stop()
	return <-running
}
