// Command rabbit-request asks for prices and answers: requests go through a
// queue, replies straight to the one who asked.
//
//	go run ./examples/rabbit-request
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

const prices = "settle-example.prices"

func main() { server.Rabbit("rabbit-request", run) }

func run(ctx context.Context, broker *rabbit.Broker, out io.Writer) error {
	// The example's queue goes by itself a minute after it has ended.
	queue := rabbit.Queue{Name: prices, Kind: rabbit.Classic, Expires: time.Minute}
	if err := broker.Declare(ctx, rabbit.Topology{Queues: []rabbit.Queue{queue}}); err != nil {
		return err
	}
	rt := &settle.Runtime{}
	rt.Handle(&rabbit.ClassicQueue{Broker: broker, Queue: prices}, func(ctx context.Context, d *settle.Delivery) settle.Outcome {
		price, known := map[string]string{"apples": "3.20", "pears": "4.10"}[string(d.Body)]
		if !known {
			return settle.Drop(errors.New("nobody sells it")) // no reply
		}
		if err := broker.Reply(ctx, d, settle.Message{Body: []byte(price)}); err != nil {
			return settle.Retry(err)
		}
		return settle.Ack()
	}, settle.Options{Workers: 4, Timeout: 5 * time.Second})
	running, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- rt.Run(running) }()

	requester := &rabbit.Requester{Broker: broker, RoutingKey: prices}
	ask := func(patience time.Duration, request settle.Message) (string, error) {
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		reply, err := requester.Request(ctx, request)
		return string(reply.Body), err
	}
	for _, item := range []string{"apples", "pears"} {
		price, err := ask(5*time.Second, settle.Message{Body: []byte(item)})
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "%s: %s\n", item, price)
	}
	if _, err := ask(200*time.Millisecond, settle.Message{Body: []byte("unicorns")}); errors.Is(err, context.DeadlineExceeded) {
		fmt.Fprintln(out, "unicorns: no reply in time")
	}
	if _, err := ask(5*time.Second, settle.Message{To: "settle-example.no-such-queue"}); errors.Is(err, settle.ErrUnroutable) {
		fmt.Fprintln(out, "a queue that does not exist: told at once")
	}
	stop()
	return <-ended
}
