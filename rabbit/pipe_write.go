package rabbit

import (
	"errors"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"
)

// This file is the writing half of a pipe: the queue of calls and the one
// goroutine that writes them.

// push hands a call to the writer. It reports false when the writer has gone.
func (p *pipe) push(c *call) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over {
		return false
	}
	p.calls = append(p.calls, c)
	select {
	case p.more <- struct{}{}:
	default:
	}
	return true
}

// pull waits for calls and returns them, in place of the list of the last ones.
// It returns nil when the pipe is gone and no call is left.
func (p *pipe) pull(last []*call) []*call {
	for first := true; ; first = false {
		p.mu.Lock()
		calls := p.calls
		if len(calls) > 0 {
			p.calls = last[:0]
		} else if p.IsClosed() {
			p.over = true
		}
		over := p.over
		p.mu.Unlock()
		if len(calls) > 0 {
			return calls
		}
		if first {
			_ = p.conn.raw.uncork() // where it fails the connection ends
		}
		if over {
			return nil
		}
		select {
		case <-p.more:
		case <-p.done:
		}
	}
}

// write is the writer's loop. What it writes for calls that follow each other
// goes out together; it pulls the cork before it waits.
func (p *pipe) write() {
	var calls []*call
	for {
		calls = p.pull(calls)
		if calls == nil {
			return
		}
		p.conn.raw.cork()
		for _, c := range calls {
			for i := range c.out {
				if !p.writeNext(c, i) {
					break
				}
			}
			c.end()
		}
		clear(calls)
	}
}

// writeNext writes message i of a call, once it may. It reports whether the
// call goes on.
func (p *pipe) writeNext(c *call, i int) bool {
	if b := p.conn.blockade.Load(); b != nil {
		_ = p.conn.raw.uncork() // where it fails the connection ends
		select {
		case <-b.over:
		case <-p.done:
			return false
		case <-c.gone:
			return false
		}
	}
	select {
	case p.window <- struct{}{}:
	default:
		_ = p.conn.raw.uncork() // where it fails the connection ends
		select {
		case p.window <- struct{}{}:
			p.conn.raw.cork()
		case <-p.done:
			return false
		case <-c.gone:
			return false
		}
	}
	o, ok := c.take(i, &p.scratch)
	if !ok || o.err != nil {
		<-p.window
		if ok {
			c.wrote(i, nil, o.err)
		}
		return ok
	}
	confirm, err := p.PublishWithDeferredConfirm(o.exchange, o.key, o.mandatory, false, o.msg)
	if err != nil {
		<-p.window
		if errors.Is(err, amqp.ErrClosed) {
			return false // nothing was written
		}
		err = fmt.Errorf("rabbit: exchange %q, key %q: the write failed, so the message may or may not have arrived: %w", o.exchange, o.key, err)
	}
	if cap(p.scratch) > mostScratch {
		p.scratch = nil
	}
	if !c.wrote(i, confirm, err) {
		if confirm != nil {
			p.leaveBehind(1)
		}
		return false
	}
	return true
}
