// Command pulsar-retries charges payments from a Shared subscription. A payment
// that fails is tried again after a backoff, which waits in this process while the message stays unacknowledged; what
// cannot be charged ends in a topic of dead letters, where it can be seen why.
//
//	go run ./examples/pulsar-retries
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/settlemq/settle"
	"github.com/settlemq/settle/examples/internal/pulsarserver"
	"github.com/settlemq/settle/pulsar"
)

const (
	payments     = "settle-example-payments"
	deadPayments = "settle-example-payments-dead"
	attempts     = 3
)

type payment struct {
	ID   int
	Card string
}

func main() { pulsarserver.Main("pulsar-retries", run) }

func run(ctx context.Context, broker *pulsar.Broker, out io.Writer) error {
	publisher := &pulsar.Publisher{Broker: broker, Topic: payments}
	var msgs []settle.Message
	open := make(map[string]bool) // by ID: a message may come twice
	for _, body := range []string{
		`{"ID":1,"Card":"good"}`, `{"ID":2,"Card":"slow"}`, `{"ID":3,"Card":"broken"}`, `{"ID":4,"Card":"stolen"}`, `not json`,
	} {
		id := fmt.Sprint("order ", len(msgs)+1)
		open[id] = true
		msgs = append(msgs, settle.Message{ID: id, Body: []byte(body)})
	}
	if err := publisher.Publish(ctx, msgs...); err != nil {
		return err
	}

	ctx, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan string)
	end := func(id string) {
		select {
		case ended <- id:
		case <-ctx.Done():
		}
	}
	rt := &settle.Runtime{}
	rt.Handle(&pulsar.Subscription{Broker: broker, Topic: payments, SubscriptionName: "charging", DeadLetterSubscription: "complaints"},
		settle.JSON(func(_ context.Context, p payment, d *settle.Delivery) settle.Outcome {
			outcome := charge(p, d.Attempt)
			fmt.Fprintf(out, "payment %d (%s), attempt %d: %s\n", p.ID, p.Card, d.Attempt, said(outcome))
			if outcome.Cause() == nil {
				end(d.ID)
			}
			return outcome
		}),
		settle.Options{Workers: 4, MaxAttempts: attempts, DeadLetter: deadPayments})
	rt.Handle(&pulsar.Subscription{Broker: broker, Topic: deadPayments, SubscriptionName: "complaints"},
		func(_ context.Context, d *settle.Delivery) settle.Outcome {
			fmt.Fprintf(out, "dead letter %s after attempt %s, because: %s\n",
				d.Body, d.Headers.Get(settle.HeaderDeadAttempt), d.Headers.Get(settle.HeaderDeadCause))
			end(d.ID)
			return settle.Ack()
		}, settle.Options{})

	running := make(chan error, 1)
	go func() { running <- rt.Run(ctx) }()
	for len(open) > 0 {
		select {
		case id := <-ended:
			delete(open, id)
		case err := <-running:
			return err
		}
	}
	stop()
	return <-running
}

var (
	errNoAnswer = errors.New("the bank does not answer")
	errStolen   = errors.New("the card is stolen")
)

// backoff is short, so that the example is.
var backoff = settle.Backoff{Base: 200 * time.Millisecond, Max: time.Second}

// charge is what a service does for its living.
func charge(p payment, attempt int) settle.Outcome {
	switch {
	case p.Card == "stolen":
		return settle.DeadLetter(errStolen) // another attempt cannot help
	case p.Card == "broken", p.Card == "slow" && attempt < attempts:
		return settle.RetryAfter(backoff.Delay(attempt), errNoAnswer)
	default:
		return settle.Ack()
	}
}

// said is an outcome in words, without the delay, which is random.
func said(o settle.Outcome) string {
	if o.Cause() == nil {
		return "charged"
	}
	return o.Cause().Error()
}
