// Command rabbit-publish sends with confirms: Publish returns when the server
// has every message safe, and says which it has not.
//
//	go run ./examples/rabbit-publish
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
	events = "settle-example.events"
	paid   = "settle-example.events.paid"
)

func main() { server.Rabbit("rabbit-publish", run) }

func run(ctx context.Context, broker *rabbit.Broker, out io.Writer) error {
	err := broker.Declare(ctx, rabbit.Topology{
		Exchanges: []rabbit.Exchange{{Name: events, Kind: rabbit.Topic}},
		// The example's queue goes by itself a minute after it has ended.
		Queues:   []rabbit.Queue{{Name: paid, Expires: time.Minute}},
		Bindings: []rabbit.Binding{{Exchange: events, Queue: paid, Key: "*.paid"}},
	})
	if err != nil {
		return err
	}
	// Without a deadline Publish would wait for a server that is down or blocked as long as that lasts.
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	publisher := &rabbit.Publisher{Broker: broker, Exchange: events}

	// Many in one call go out without waiting between them.
	batch := make([]settle.Message, 1000)
	for i := range batch {
		batch[i] = settle.Message{To: "invoice.paid", Body: fmt.Append(nil, i)}
	}
	if err := publisher.Publish(ctx, batch...); err != nil {
		return err
	}
	fmt.Fprintf(out, "%d messages are safe\n", len(batch))

	// Nothing is bound for the second: it comes back, and the others are safe.
	three := []settle.Message{
		{ID: "first", To: "order.paid"}, {ID: "second", To: "order.cancelled"}, {ID: "third", To: "order.paid"},
	}
	for i, err := range settle.PublishErrors(publisher.Publish(ctx, three...), len(three)) {
		switch {
		case err == nil:
			fmt.Fprintf(out, "%s is safe\n", three[i].ID)
		case errors.Is(err, settle.ErrUnroutable):
			fmt.Fprintf(out, "%s reached no queue\n", three[i].ID)
		default:
			return err
		}
	}

	// Where that is meant, say so.
	optional := &rabbit.Publisher{Broker: broker, Exchange: events, DropUnroutable: true}
	if err := optional.Publish(ctx, settle.Message{ID: "fourth", To: "order.cancelled"}); err != nil {
		return err
	}
	fmt.Fprintln(out, "fourth may be dropped, and was")
	return nil
}
