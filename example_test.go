package settle_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/settlemem"
)

type email struct{ To string }

var errBad = errors.New("no such mailbox")

func deliver(_ context.Context, e email) error {
	if e.To == "nobody" {
		return errBad
	}
	return nil
}

// A service with one queue. The broker in memory stands in for a real one.
func Example() {
	var broker settlemem.Broker
	queue := broker.Queue("emails")
	backoff := settle.Backoff{Base: time.Second}

	rt := &settle.Runtime{Logger: slog.New(slog.DiscardHandler)}
	rt.Handle(queue, settle.JSON(func(ctx context.Context, e email, d *settle.Delivery) settle.Outcome {
		switch err := deliver(ctx, e); {
		case err == nil:
			return settle.Ack()
		case errors.Is(err, errBad):
			return settle.DeadLetter(err)
		default:
			return settle.RetryAfter(backoff.Delay(d.Attempt), err)
		}
	}), settle.Options{Workers: 8, MaxAttempts: 5, DeadLetter: "emails.dead"})

	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- rt.Run(ctx) }()

	_ = queue.Publish(ctx, settle.Message{Body: []byte(`{"To": "ann"}`)}, settle.Message{Body: []byte(`{"To": "nobody"}`)})
	_ = queue.WaitEmpty(ctx)
	for _, m := range broker.Queue("emails.dead").Messages() {
		fmt.Printf("dead: %s, because: %s\n", m.Body, m.Headers.Get(settle.HeaderDeadCause))
	}
	stop() // a service would use signal.NotifyContext
	fmt.Println("drained:", <-done)
	// Output:
	// dead: {"To": "nobody"}, because: no such mailbox
	// drained: <nil>
}

// FromError suits handlers that return an error.
func ExampleFromError() {
	handler := settle.FromError(func(context.Context, *settle.Delivery) error {
		return settle.Permanent(errBad)
	}, settle.Backoff{})
	fmt.Println(handler(context.Background(), &settle.Delivery{Attempt: 1}))
	// Output: dead-letter: no such mailbox
}

// A batch handler returns an outcome for each delivery.
func ExampleRuntime_HandleBatch() {
	var broker settlemem.Broker
	queue := broker.Queue("events")
	ctx, stop := context.WithCancel(context.Background())
	_ = queue.Publish(ctx, settle.Message{Body: []byte("a")}, settle.Message{Body: []byte("b")})

	rt := &settle.Runtime{Logger: slog.New(slog.DiscardHandler)}
	rt.HandleBatch(queue, func(_ context.Context, batch []*settle.Delivery) []settle.Outcome {
		outcomes := make([]settle.Outcome, len(batch))
		for i, d := range batch {
			fmt.Printf("%s\n", d.Body)
			outcomes[i] = settle.Ack()
		}
		return outcomes
	}, settle.Options{BatchSize: 100})
	go func() {
		_ = queue.WaitEmpty(ctx)
		stop()
	}()
	fmt.Println(rt.Run(ctx))
	// Output:
	// a
	// b
	// <nil>
}

// Middleware wraps a handler.
func ExampleMiddleware() {
	timed := func(next settle.Handler) settle.Handler {
		return func(ctx context.Context, d *settle.Delivery) settle.Outcome {
			start := time.Now()
			o := next(ctx, d)
			slog.DebugContext(ctx, "handled", "id", d.ID, "outcome", o.String(), "took", time.Since(start))
			return o
		}
	}
	_ = settle.Options{Middleware: []settle.Middleware{timed}}
}
