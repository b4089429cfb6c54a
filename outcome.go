package settle

import (
	"fmt"
	"time"
)

// Outcome is what a handler decided about a delivery. Make one with [Ack],
// [Drop], [Retry], [RetryAfter] or [DeadLetter]. The zero Outcome decides
// nothing: it is retried as a failure with [ErrNoOutcome] as its cause, so a
// forgotten branch in a handler is counted and ends at the cap.
type Outcome struct {
	kind  outcomeKind
	delay time.Duration
	cause error
}

type outcomeKind uint8

const (
	outcomeNone outcomeKind = iota
	outcomeAck
	outcomeDrop
	outcomeRetry
	outcomeRetryAfter
	outcomeDeadLetter
	outcomePanic // the runtime's own: the handler panicked or left its goroutine
)

// Ack says the message was processed: it is settled and gone.
func Ack() Outcome { return Outcome{kind: outcomeAck} }

// Drop says the message is of no use and may go without a copy. On RabbitMQ a
// dropped message still follows the queue's own dead-letter exchange, if it
// has one. The cause is logged and observed; it may be nil.
func Drop(cause error) Outcome { return Outcome{kind: outcomeDrop, cause: cause} }

// Retry says that this attempt failed and the next may come at once. At the
// cap (see Options.MaxAttempts) the message is dead-lettered instead.
func Retry(cause error) Outcome { return Outcome{kind: outcomeRetry, cause: cause} }

// RetryAfter says that this attempt failed and the next should come after d,
// never earlier but for the exceptions that the package documentation lists. A d of
// zero or less is [Retry]. At the cap the message is dead-lettered instead,
// without the wait.
func RetryAfter(d time.Duration, cause error) Outcome {
	return Outcome{kind: outcomeRetryAfter, delay: max(d, 0), cause: cause}
}

// DeadLetter says that no further attempt can help: the message goes to the
// dead letter of its registration at once, whatever its attempt. Where the
// registration has no dead letter it is a drop. The cause reaches the log,
// the observer and, where the broker can carry it, the dead letter.
func DeadLetter(cause error) Outcome { return Outcome{kind: outcomeDeadLetter, cause: cause} }

// Action returns what the outcome asks for below the cap: [ActionAck], [ActionDrop],
// [ActionDeadLetter], or [ActionRetry] for a retry, with or without a delay, and for a handler that
// decided nothing. It is for middleware and for tests of handlers.
func (o Outcome) Action() Action {
	switch o.kind {
	case outcomeAck:
		return ActionAck
	case outcomeDrop:
		return ActionDrop
	case outcomeDeadLetter:
		return ActionDeadLetter
	default:
		return ActionRetry
	}
}

// Cause returns the error the outcome was made with, or nil.
func (o Outcome) Cause() error { return o.cause }

// sound panics here, where a panic is the handler's, and not in a settler if
// the cause is one of those errors, such as a nil pointer in an error, whose text panics.
func (o Outcome) sound() {
	if o.cause != nil {
		_ = o.cause.Error()
	}
}

// checked is o, or the failure that it is if its cause is not sound.
func (o Outcome) checked() (c Outcome) {
	guard(func() {
		o.sound()
		c = o
	}, func(p *PanicError) { c = Outcome{kind: outcomePanic, cause: p} })
	return c
}

// Delay returns the wait that RetryAfter asked for; zero for every other outcome.
func (o Outcome) Delay() time.Duration { return o.delay }

// String returns the outcome as a word for logs, with the cause if there is one.
func (o Outcome) String() string {
	var word string
	switch o.kind {
	case outcomeNone:
		word = "none"
	case outcomeAck:
		word = "ack"
	case outcomeDrop:
		word = "drop"
	case outcomeRetry:
		word = "retry"
	case outcomeRetryAfter:
		word = fmt.Sprintf("retry_after(%v)", o.delay)
	case outcomeDeadLetter:
		word = "dead-letter"
	case outcomePanic:
		word = "panic"
	}
	if o.cause != nil {
		return word + ": " + o.cause.Error()
	}
	return word
}
