package settle

import (
	"errors"
	"fmt"
	"strings"
)

var (
	// ErrNoOutcome is the cause of a retry whose handler returned the zero Outcome.
	ErrNoOutcome = errors.New("settle: the handler returned no outcome")

	// ErrTooManyAttempts is the cause of a dead letter that was past its cap
	// when it arrived, so that no handler saw it.
	ErrTooManyAttempts = errors.New("settle: the message is past its maximum of attempts")

	// ErrDelayTooLong says that a wait was at or over the longest its place
	// allows, so that the message was retried without it.
	ErrDelayTooLong = errors.New("settle: the delay is longer than this place can wait")

	// ErrNoDelay says that the place cannot wait at all, so that the message
	// was retried at once.
	ErrNoDelay = errors.New("settle: this place cannot wait")

	// ErrLeaseLost says that a delivery is no longer this consumer's: its lease
	// or lock ended or was taken over. Nothing was settled.
	ErrLeaseLost = errors.New("settle: the lease of this delivery is lost")

	// ErrSessionLost says that the session a delivery came from is gone. Nothing
	// was settled; the broker delivers the message again.
	ErrSessionLost = errors.New("settle: the session of this delivery is lost")

	// ErrDraining is the cause of a handler's context that ended because the
	// runtime's DrainTimeout passed.
	ErrDraining = errors.New("settle: the drain deadline passed")

	// ErrTimeout is the cause of a handler's context that ended because
	// Options.Timeout passed. ctx.Err() is context.DeadlineExceeded.
	ErrTimeout = errors.New("settle: the handler's timeout passed")

	// ErrUnroutable says that a message reached no queue. It is permanent.
	ErrUnroutable = errors.New("settle: the message could not be routed")

	// ErrBlocked says that the broker takes no messages now (an alarm, a full
	// disk) and the caller's deadline passed meanwhile.
	ErrBlocked = errors.New("settle: the broker is blocked")

	// ErrRunning says that Run was called on a runtime that runs or has run.
	ErrRunning = errors.New("settle: the runtime runs already or has run")
)

// ConfigError says that a setting cannot be kept. It is final: the same
// settings fail again, so the runtime does not try again.
type ConfigError struct {
	Source  string // the source or thing that was configured, such as `sqlq: table "jobs"`
	Setting string // the setting at fault, such as "MaxAttempts"
	Reason  string // why it cannot be kept
	Fix     string // what to do about it
	Err     error  // the error below, if there is one
}

func (e *ConfigError) Error() string {
	var b strings.Builder
	b.WriteString(e.Source)
	if e.Setting != "" {
		b.WriteString(": ")
		b.WriteString(e.Setting)
	}
	b.WriteString(": ")
	b.WriteString(e.Reason)
	if e.Err != nil {
		b.WriteString(": ")
		b.WriteString(e.Err.Error())
	}
	if e.Fix != "" {
		b.WriteString("; ")
		b.WriteString(e.Fix)
	}
	return b.String()
}

func (e *ConfigError) Unwrap() error { return e.Err }

// DrainError says that Run ended before all work did.
type DrainError struct {
	// Unfinished is how many deliveries were given back because their handler
	// or their settlement had not ended by the drain deadline.
	Unfinished int
}

func (e *DrainError) Error() string {
	return fmt.Sprintf("settle: %d deliveries were unfinished at the drain deadline and are given back", e.Unfinished)
}

// PanicError is the cause of a retry whose handler panicked or ended its
// goroutine with runtime.Goexit.
type PanicError struct {
	Value any    // what panic was called with; nil for Goexit
	Stack []byte // the stack of the handler's goroutine; the log shows it, Error does not
	// Goexit is true when the handler called runtime.Goexit (as t.FailNow does).
	Goexit bool
}

func (e *PanicError) Error() string {
	if e.Goexit {
		return "settle: the handler called runtime.Goexit"
	}
	return fmt.Sprintf("settle: the handler panicked: %v", e.Value)
}

// Unwrap returns the panic's value where it is an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// Permanent marks err as one that no second try can cure. [FromError]
// dead-letters it; a publisher or settler that returns it will refuse the same
// message again. Permanent(nil) is nil.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return &permanentError{err}
}

// IsPermanent reports whether err, or an error it wraps, is marked by [Permanent].
func IsPermanent(err error) bool {
	var p *permanentError
	return errors.As(err, &p)
}

type permanentError struct{ error }

func (e *permanentError) Unwrap() error { return e.error }
