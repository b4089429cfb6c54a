package rabbit

import (
	"context"
	"errors"

	amqp "github.com/rabbitmq/amqp091-go"
)

// outgoing is one message to publish. Its body and headers belong to the
// sender from then on.
type outgoing struct {
	exchange, key string
	mandatory     bool
	msg           amqp.Publishing
}

// sender publishes with confirms.
type sender struct {
	broker *Broker
}

// publish sends the copies of a source that has no publisher of its own.
func (b *Broker) publish(ctx context.Context, out []outgoing) []error {
	return b.copies.publish(ctx, out)
}

// publish is under construction.
func (s *sender) publish(ctx context.Context, out []outgoing) []error {
	errs := make([]error, len(out))
	for i := range errs {
		errs[i] = errors.New("rabbit: publishing is not built yet")
	}
	return errs
}
