package rabbit

import (
	"context"
	"sync"

	amqp "github.com/rabbitmq/amqp091-go"
)

// call is what one caller sends on a pipe: the meeting point of the caller,
// who may go at any time, and the writer, who may be stuck.
type call struct {
	out  []outgoing
	from origin
	gone <-chan struct{} // closed when the caller's context has ended
	wake chan struct{}   // a token when there is news for the caller

	mu      sync.Mutex // guards what follows, and what the writer reads and sets in out
	written int        // how many of out the writer is done with
	ended   bool       // the writer takes no more of them
	left    bool       // the caller has gone: out is nobody's but the caller's
}

func newCall(ctx context.Context, out []outgoing, from origin) *call {
	return &call{out: out, from: from, gone: ctx.Done(), wake: make(chan struct{}, 1)}
}

// take returns message i to the writer, its body copied to scratch where the
// caller may change it. It reports false when the caller has gone.
func (c *call) take(i int, scratch *[]byte) (outgoing, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.left {
		return outgoing{}, false
	}
	o := c.out[i]
	if c.from == users && o.err == nil {
		*scratch = append((*scratch)[:0], o.msg.Body...)
		o.msg.Body = *scratch
	}
	return o, true
}

// wrote records what became of message i. It reports false when the caller has
// gone.
func (c *call) wrote(i int, confirm *amqp.DeferredConfirmation, err error) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.left {
		return false
	}
	o := &c.out[i]
	o.confirm, o.err = confirm, err
	c.written = i + 1
	c.tell()
	return true
}

// end records that the writer takes no more.
func (c *call) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
	c.tell()
}

func (c *call) tell() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// progress tells the caller how many messages the writer is done with, and
// whether it takes no more.
func (c *call) progress() (written int, ended bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.written, c.ended
}

// leave records that the caller has gone and returns how many messages the
// writer was done with.
func (c *call) leave() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.left = true
	return c.written
}
