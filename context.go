package settle

import (
	"context"
	"sync"
	"time"
)

// lazyContext is a context that costs nothing until somebody asks it for more
// than its deadline: only then does it make a real one below its parent. It
// stands inside the delivery it belongs to, so that a handler that never looks
// at its context has no allocation for it.
//
// Once end was called it has ended, made or not.
type lazyContext struct {
	parent   context.Context
	deadline time.Time // zero: none; its cause is ErrTimeout

	mu    sync.Mutex // guards what follows
	ended bool
	made  *madeContext
}

// madeContext is the real context of a lazyContext that somebody has looked at,
// or the cause it ended with before that.
type madeContext struct {
	ctx     context.Context // nil: nobody has looked yet
	cancel  context.CancelCauseFunc
	release context.CancelFunc // of the deadline; nil without one
	cause   error
}

// begin readies c for use under parent. Only end may have been called before.
func (c *lazyContext) begin(parent context.Context, deadline time.Time) {
	c.parent, c.deadline = parent, deadline
}

// end ends the context with the given cause; nil means context.Canceled. A
// second call does nothing.
func (c *lazyContext) end(cause error) {
	c.mu.Lock()
	if c.ended {
		c.mu.Unlock()
		return
	}
	c.ended = true
	made := c.made
	if made == nil && cause != nil {
		c.made = &madeContext{cause: cause}
	}
	c.mu.Unlock()
	if made != nil {
		made.end(cause) // runs each AfterFunc in a goroutine of its own, never here
	}
}

func (m *madeContext) end(cause error) {
	m.cancel(cause)
	if m.release != nil {
		m.release()
	}
}

// used reports whether a real context was made.
func (c *lazyContext) used() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.made != nil
}

// hasEnded reports whether end was called.
func (c *lazyContext) hasEnded() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ended
}

// real returns the context that stands for c, made at the first call.
func (c *lazyContext) real() context.Context {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.made
	if m == nil {
		m = &madeContext{}
		c.made = m
	}
	if m.ctx == nil {
		m.ctx, m.cancel = context.WithCancelCause(c.parent)
		if !c.deadline.IsZero() {
			m.ctx, m.release = context.WithDeadlineCause(m.ctx, c.deadline, ErrTimeout)
		}
		if c.ended {
			m.end(m.cause)
		}
	}
	return m.ctx
}

// Deadline implements context.Context.
func (c *lazyContext) Deadline() (time.Time, bool) {
	at, ok := c.parent.Deadline()
	if !c.deadline.IsZero() && (!ok || c.deadline.Before(at)) {
		return c.deadline, true
	}
	return at, ok
}

// Done, Err and Value implement context.Context. Each makes the real context:
// package context finds its own way to it through Value.
func (c *lazyContext) Done() <-chan struct{} { return c.real().Done() }

func (c *lazyContext) Err() error { return c.real().Err() }

func (c *lazyContext) Value(key any) any { return c.real().Value(key) }

// endedContext stands in where a delivery has no context any more.
var endedContext = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()
