// Package server finds the RabbitMQ server that an example program runs on.
package server

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"io"
	"os"
	"time"

	"github.com/settlemq/settle/examples/internal/program"
	"github.com/settlemq/settle/rabbit"
)

// Rabbit is the main function of an example on RabbitMQ: it reads -url, runs
// the example and ends the process. Where no server answers it says in one
// line what to start.
func Rabbit(example string, run func(context.Context, *rabbit.Broker, io.Writer) error) {
	url := flag.String("url", cmp.Or(os.Getenv("SETTLE_RABBIT_URL"), "amqp://guest:guest@localhost:5672/"), "the server")
	const absent = "no RabbitMQ answers at %v: start one with `docker run -d -p 5672:5672 rabbitmq:4`, or name one with -url"
	program.Main(example, absent, func(ctx context.Context, out io.Writer) error {
		broker, err := rabbit.New(rabbit.Config{URLs: []string{*url}, Name: example})
		if err != nil {
			return err
		}
		err = run(ctx, broker, out)
		closing, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		return errors.Join(err, broker.Close(closing))
	})
}
