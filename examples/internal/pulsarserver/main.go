// Package pulsarserver finds the Pulsar server that an example program runs on.
package pulsarserver

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"io"
	"os"
	"time"

	"github.com/settlemq/settle/examples/internal/program"
	"github.com/settlemq/settle/pulsar"
)

// Example is the body of an example: it runs on the broker and prints what happened.
type Example func(ctx context.Context, broker *pulsar.Broker, out io.Writer) error

// Main is the main function of an example: it reads -url and -token, runs the
// example and ends the process. Where no server answers it says in one line what to start.
func Main(name string, example Example) {
	url := flag.String("url", cmp.Or(os.Getenv("SETTLE_PULSAR_URL"), "pulsar://localhost:6650"), "the server")
	token := flag.String("token", os.Getenv("SETTLE_PULSAR_TOKEN"), "the token, where the server asks for one")
	const absent = "no Pulsar answers at %v: start one with `docker run -d -p 6650:6650 apachepulsar/pulsar:4.0.7 bin/pulsar standalone`, or name one with -url"
	program.Main(name, absent, func(ctx context.Context, out io.Writer) error {
		broker, err := pulsar.New(pulsar.Config{URL: *url, Token: *token, Name: name})
		if err != nil {
			return err
		}
		err = example(ctx, broker, out)
		closing, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		return errors.Join(err, broker.Close(closing))
	})
}
