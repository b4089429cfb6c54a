package settle

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime/debug"
)

// Handler processes one delivery and returns what is to become of it. Up to
// Options.Workers calls run at once. ctx ends when Options.Timeout passes, when
// the delivery's lease or session is lost, when the drain deadline passes, and when the
// handler returns; context.Cause tells which. A handler that outlives its context keeps its
// worker busy; its outcome still counts unless the delivery is no longer ours.
//
// A panic in a handler, or runtime.Goexit, is a [Retry] whose cause is a [*PanicError].
type Handler func(ctx context.Context, d *Delivery) Outcome

// BatchHandler processes several deliveries at once and returns an outcome for
// each, index for index. A result of another length, or a panic, is a retry of
// them all. ctx ends as a Handler's does; a lost lease of one delivery ends it.
type BatchHandler func(ctx context.Context, batch []*Delivery) []Outcome

// Middleware wraps a Handler with another: tracing, logging, deduplication.
type Middleware func(Handler) Handler

// chain applies the middleware so that the first of them is the outermost.
func chain(h Handler, mw []Middleware) (Handler, error) {
	for i := len(mw) - 1; i >= 0; i-- {
		if h = mw[i](h); h == nil {
			return nil, fmt.Errorf("middleware %d returned no handler", i)
		}
	}
	return h, nil
}

// JSON makes a Handler of a function that takes the body decoded from JSON. A body
// that is not JSON for a T is dead-lettered: a second try cannot decode it either.
// Fields that T does not know are ignored.
func JSON[T any](handle func(ctx context.Context, v T, d *Delivery) Outcome) Handler {
	if handle == nil {
		return nil
	}
	return func(ctx context.Context, d *Delivery) Outcome {
		var v T
		if err := json.Unmarshal(d.Body, &v); err != nil {
			return DeadLetter(fmt.Errorf("settle: the body is not JSON for %T: %w", v, err))
		}
		return handle(ctx, v, d)
	}
}

// FromError makes a Handler of a function that returns an error: nil is Ack, an
// error marked by [Permanent] is DeadLetter, any other is RetryAfter with the
// backoff's delay for the attempt.
func FromError(handle func(ctx context.Context, d *Delivery) error, backoff Backoff) Handler {
	if handle == nil {
		return nil
	}
	return func(ctx context.Context, d *Delivery) Outcome {
		switch err := handle(ctx, d); {
		case err == nil:
			return Ack()
		case IsPermanent(err):
			return DeadLetter(err)
		default:
			return RetryAfter(backoff.Delay(d.Attempt), err)
		}
	}
}

// guard runs call and turns a panic into an outcome by way of onPanic. Where
// the goroutine is leaving by Goexit, onPanic runs and guard does not return.
func guard(call func(), onPanic func(*PanicError)) {
	returned := false
	defer func() {
		if returned {
			return
		}
		v := recover()
		onPanic(&PanicError{Value: v, Stack: debug.Stack(), Goexit: v == nil})
	}()
	call()
	returned = true
}
