// Package pulsarserver finds the Pulsar server that an example program or its test runs on.
package pulsarserver

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/settlemq/settle/pulsar"
)

// Example is the body of an example: it runs on the broker and prints what happened.
type Example func(ctx context.Context, broker *pulsar.Broker, out io.Writer) error

// Main is the main function of an example: it reads -url and -token, runs the
// example and ends the process. Where no server answers it says in one line what to start.
func Main(name string, example Example) {
	url := flag.String("url", cmp.Or(os.Getenv("SETTLE_PULSAR_URL"), "pulsar://localhost:6650"), "the server")
	token := flag.String("token", os.Getenv("SETTLE_PULSAR_TOKEN"), "the token, where the server asks for one")
	verbose := flag.Bool("v", false, "log what happens to standard error")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	level := slog.LevelError
	if *verbose {
		level = slog.LevelDebug
	}
	slog.SetDefault(slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level})))

	broker, err := pulsar.New(pulsar.Config{URL: *url, Token: *token, Name: name})
	if err == nil {
		err = errors.Join(example(ctx, broker, os.Stdout), closeBroker(broker))
	}
	var unreachable *net.OpError
	switch {
	case errors.As(err, &unreachable):
		fmt.Fprintf(os.Stderr, "%s: no Pulsar answers at %v: start one with `docker run -d -p 6650:6650 apachepulsar/pulsar:4.0.7 bin/pulsar standalone`, or name one with -url\n", name, unreachable.Addr)
		os.Exit(1)
	case err != nil:
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		os.Exit(1)
	}
}

func closeBroker(broker *pulsar.Broker) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return broker.Close(ctx)
}
