// Package server finds the servers that the example programs run on.
package server

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

	"github.com/settlemq/settle/rabbit"
)

// Rabbit is the main function of an example on RabbitMQ: it reads -url, runs
// the example and ends the process. Where no server answers it says in one
// line what to start.
func Rabbit(example string, run func(context.Context, *rabbit.Broker, io.Writer) error) {
	url := flag.String("url", cmp.Or(os.Getenv("SETTLE_RABBIT_URL"), "amqp://guest:guest@localhost:5672/"), "the server")
	verbose := flag.Bool("v", false, "log what happens to standard error")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	level := slog.LevelError
	if *verbose {
		level = slog.LevelDebug
	}
	slog.SetDefault(slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level})))

	broker, err := rabbit.New(rabbit.Config{URLs: []string{*url}, Name: example})
	if err == nil {
		err = run(ctx, broker, os.Stdout)
		closing, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		err = errors.Join(err, broker.Close(closing))
	}
	var unreachable *net.OpError
	switch {
	case errors.As(err, &unreachable):
		fmt.Fprintf(os.Stderr, "%s: no RabbitMQ answers at %v: start one with `docker run -d -p 5672:5672 rabbitmq:4`, or name one with -url\n", example, unreachable.Addr)
		os.Exit(1)
	case err != nil:
		fmt.Fprintf(os.Stderr, "%s: %v\n", example, err)
		os.Exit(1)
	}
}
