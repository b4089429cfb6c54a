package rabbit

import (
	"context"
	"sync"
)

// onDemand keeps one thing that is made when it is first needed and again when
// it is gone. Those who need it while it is being made share the attempt; an
// attempt that nobody waits for any more is called off.
type onDemand[T thing] struct {
	broker *Broker
	make   func(ctx context.Context) (T, error) // never runs twice at once

	mu      sync.Mutex // guards what follows
	made    T          // the newest
	has     bool       // made is set
	attempt *attempt[T]
	last    <-chan struct{} // closed when the newest attempt has ended; nil: there was none
}

// thing is what can be made on demand.
type thing interface {
	gone() bool // it is of no use any more
	discard()   // ends what nobody has used yet, without waiting
}

// attempt is one call of make and those who wait for it.
type attempt[T thing] struct {
	waiters int // guarded by onDemand.mu
	cancel  context.CancelFunc
	done    chan struct{} // closed when made and err are set
	made    T
	err     error
}

// current returns the thing if it is there and of use.
func (o *onDemand[T]) current() (made T, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.has && !o.made.gone() {
		return o.made, true
	}
	return made, false
}

// get returns the thing, made if need be in one attempt. When ctx ends first
// it returns the cause of that.
func (o *onDemand[T]) get(ctx context.Context) (none T, err error) {
	if made, ok := o.current(); ok {
		return made, nil
	}
	if ctx.Err() != nil {
		return none, context.Cause(ctx)
	}
	a, err := o.join()
	if err != nil {
		return none, err
	}
	select {
	case <-a.done:
		return a.made, a.err
	case <-ctx.Done():
		o.mu.Lock()
		defer o.mu.Unlock()
		if a.waiters--; a.waiters == 0 && o.attempt == a {
			o.attempt = nil
			a.cancel()
		}
		return none, context.Cause(ctx)
	}
}

// join returns the attempt under way, or begins one.
func (o *onDemand[T]) join() (*attempt[T], error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.has && !o.made.gone() { // made a moment ago
		done := make(chan struct{})
		close(done)
		return &attempt[T]{made: o.made, done: done}, nil
	}
	if o.attempt == nil {
		a := &attempt[T]{done: make(chan struct{})}
		ctx, cancel := context.WithCancel(o.broker.ctx)
		a.cancel = cancel
		before := o.last
		if !o.broker.start(func() { o.run(ctx, a, before) }) {
			cancel()
			return nil, closedError()
		}
		o.attempt, o.last = a, a.done
	}
	o.attempt.waiters++
	return o.attempt, nil
}

// run makes the thing once the attempt before has ended.
func (o *onDemand[T]) run(ctx context.Context, a *attempt[T], before <-chan struct{}) {
	defer close(a.done)
	defer a.cancel()
	if before != nil {
		<-before
	}
	made, err := o.make(ctx)
	if err != nil && o.broker.ctx.Err() != nil {
		err = closedError()
	}

	o.mu.Lock()
	wanted := o.attempt == a
	if wanted {
		o.attempt = nil
		if err == nil {
			o.made, o.has = made, true
		}
	}
	o.mu.Unlock()

	switch {
	case wanted || err != nil:
		a.made, a.err = made, err
	default:
		made.discard()
		a.err = context.Canceled
	}
}
