package settle

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Message is what a [Publisher] takes. Only Body is needed; a publisher refuses
// with a permanent error what its broker cannot carry.
type Message struct {
	// ID identifies the message to its consumers: message-id on RabbitMQ, a
	// property on Pulsar; where the broker makes its own identity, a header.
	ID string
	// To is where the message goes: a routing key, a topic, a group. Empty means
	// the publisher's own destination.
	To string
	// Key groups messages whose order matters: the message key on Pulsar, the
	// column with the Key role in a queue table.
	Key string
	// Body is the payload. The publisher does not keep it after it returns.
	Body []byte
	// Headers travel with the message. Text values travel everywhere.
	Headers Headers
	// Delay keeps the message from consumers for this long. Zero: none.
	Delay time.Duration
	// Priority is higher for a message that should go first, where the
	// destination has priorities. One that has none refuses it, or takes the message
	// without it, as its package says.
	Priority int
}

// Headers that a dead letter carries beside its own where this library makes the
// copy. A row of a queue table has a Cause column in their place, and where a quorum
// queue reaches its limit the server moves the message as it is (see rabbit.Deaths).
const (
	HeaderDeadCause   = "x-settle-cause"   // the text of the outcome's cause
	HeaderDeadAttempt = "x-settle-attempt" // the number of the last attempt
	HeaderDeadSource  = "x-settle-source"  // the Name of the source it came from
)

// Publisher sends messages. Publish returns nil when every message is safe at
// the broker (confirmed, or committed). Where some are and some are not it
// returns a [*PublishError] that names those that are not; any other error
// speaks of all of them. An error marked by [Permanent] will come again for the
// same message; any other may pass. After an error a message may still have
// arrived: sending it again can make a duplicate, never a loss.
//
// Publish may be called by several goroutines at once.
type Publisher interface {
	Publish(ctx context.Context, msgs ...Message) error
}

// PublishError names the messages of one Publish that are not known to be safe.
type PublishError struct {
	Failed []FailedMessage // in the order of Index
	Total  int             // how many messages the call had
}

// FailedMessage is one message that is not known to be safe.
type FailedMessage struct {
	Index int // into the call's messages
	Err   error
}

func (e *PublishError) Error() string {
	if len(e.Failed) == 0 {
		return "settle: publish failed"
	}
	first := e.Failed[0]
	return fmt.Sprintf("settle: %d of %d messages were not published; message %d: %v", len(e.Failed), e.Total, first.Index, first.Err)
}

// Unwrap returns the error of each failed message, for errors.Is and errors.As.
func (e *PublishError) Unwrap() []error {
	errs := make([]error, len(e.Failed))
	for i, f := range e.Failed {
		errs[i] = f.Err
	}
	return errs
}

// PublishErrors spreads the error of a Publish over its total messages: the
// result is as long as that, nil at each message that is safe.
func PublishErrors(err error, total int) []error {
	errs := make([]error, total)
	var p *PublishError
	switch {
	case err == nil:
	case errors.As(err, &p):
		for _, f := range p.Failed {
			if f.Index >= 0 && f.Index < total {
				errs[f.Index] = f.Err
			}
		}
	default:
		for i := range errs {
			errs[i] = err
		}
	}
	return errs
}
