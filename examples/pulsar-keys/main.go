// Command pulsar-keys follows parcels through a KeyShared subscription. Two
// registrations share the work, as two processes would; the events of a parcel go to one of
// them, and a lane there handles them one at a time and in order.
//
//	go run ./examples/pulsar-keys
package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/examples/internal/pulsarserver"
	"github.com/settlemq/settle/pulsar"
)

const events = "settle-example-parcels"

var (
	parcels = []string{"anchor", "book", "candle", "drum", "easel", "fan"}
	steps   = []string{"packed", "sent", "delivered"}
)

func main() { pulsarserver.Main("pulsar-keys", run) }

func run(ctx context.Context, broker *pulsar.Broker, out io.Writer) error {
	log := &journeys{steps: make(map[string][]string), out: out, done: make(chan struct{})}
	rt := &settle.Runtime{}
	for _, clerk := range []string{"Ada", "Ben"} {
		rt.Handle(&pulsar.Subscription{Broker: broker, Topic: events, SubscriptionName: "tracking", Type: pulsar.KeyShared},
			func(_ context.Context, d *settle.Delivery) settle.Outcome {
				log.note(clerk, d.Key, string(d.Body))
				return settle.Ack()
			},
			settle.Options{Workers: 4, Lane: func(d *settle.Delivery) string { return d.Key }})
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	running := make(chan error, 1)
	go func() { running <- rt.Run(ctx) }()

	var msgs []settle.Message
	for _, step := range steps {
		for _, parcel := range parcels {
			msgs = append(msgs, settle.Message{Key: parcel, Body: []byte(step)})
		}
	}
	// BatchByKey keeps the messages of different keys out of one entry, which goes to one consumer as a whole.
	publisher := &pulsar.Publisher{Broker: broker, Topic: events, Batch: 10, BatchByKey: true}
	if err := publisher.Publish(ctx, msgs...); err != nil {
		return err
	}
	select {
	case <-log.done:
	case err := <-running:
		return err
	}
	stop()
	if err := <-running; err != nil {
		return err
	}
	for _, parcel := range parcels {
		fmt.Fprintf(out, "%s: %s\n", parcel, strings.Join(log.steps[parcel], ", "))
	}
	return nil
}

// journeys are the steps of each parcel as they came.
type journeys struct {
	out  io.Writer
	done chan struct{} // closed when all have come

	mu    sync.Mutex // guards what follows
	steps map[string][]string
	came  int
}

func (j *journeys) note(clerk, parcel, step string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	fmt.Fprintf(j.out, "%s: the %s is %s\n", clerk, parcel, step)
	if slices.Contains(j.steps[parcel], step) {
		return // a message may come twice
	}
	j.steps[parcel] = append(j.steps[parcel], step)
	if j.came++; j.came == len(parcels)*len(steps) {
		close(j.done)
	}
}
