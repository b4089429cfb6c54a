package rabbit

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/settlemq/settle"
)

// returnHeader is on every mandatory message: a returned one is known by it.
const returnHeader = "x-settle-return"

// pipe is one channel in confirm mode. One goroutine writes, so that a write
// which is stuck in the socket holds up no caller past its deadline; each
// caller waits for its own confirms, so that a queue that does not confirm
// holds up no caller but its own.
//
// The window is a token for each message that was written and not answered. A
// caller that goes before its answer leaves its tokens behind; when half
// are gone that way the pipe retires: it takes no new callers and closes with
// its last.
type pipe struct {
	*channel
	window  chan struct{}
	serials atomic.Int64
	maxBody int // bytes, of users' messages

	// returns has room for the whole window, so the library never waits for us
	// to receive one.
	returns chan amqp.Return

	returnM  sync.Mutex       // guards returned, and is held from receiving a return until it stands there
	returned map[int64]string // why, by serial

	scratch []byte        // the writer's: the body it writes, where the caller may change his own
	more    chan struct{} // a token when calls is no longer empty

	mu      sync.Mutex // guards what follows
	callers int
	left    int // tokens that callers left behind
	retired bool
	calls   []*call // waiting for the writer
	over    bool    // the writer has gone
}

// mostScratch is how large a body's copy may be to be kept for the next.
const mostScratch = 1 << 20

// startPipe takes over a channel in confirm mode.
func startPipe(ch *channel, window, maxBody int) (*pipe, error) {
	p := &pipe{
		channel:  ch,
		more:     make(chan struct{}, 1),
		window:   make(chan struct{}, window),
		maxBody:  maxBody,
		returns:  ch.NotifyReturn(make(chan amqp.Return, window)),
		returned: make(map[int64]string),
	}
	if !ch.conn.broker.start(p.write) {
		return nil, closedError()
	}
	return p, nil
}

// gone and discard make a pipe a thing that is made on demand.
func (p *pipe) gone() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.retired || p.IsClosed()
}

func (p *pipe) discard() { p.conn.broker.start(func() { _ = p.Close() }) }

// enter reports whether a caller may send here; if so it leaves afterwards.
func (p *pipe) enter() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.retired || p.IsClosed() {
		return false
	}
	p.callers++
	return true
}

func (p *pipe) leave() {
	p.mu.Lock()
	p.callers--
	over := p.retired && p.callers == 0
	p.mu.Unlock()
	if over {
		p.discard()
	}
}

// leaveBehind takes note of tokens that nobody will put back.
func (p *pipe) leaveBehind(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.left += n
	p.retired = p.retired || p.left*2 >= cap(p.window)
}

// send writes the messages and waits for their answers until ctx ends. It
// returns how many it is done with; the others were not written, because the
// channel is gone.
func (p *pipe) send(ctx context.Context, out []outgoing, from origin) int {
	for i := range out {
		p.prepare(&out[i], from)
	}
	c := newCall(ctx, out, from)
	if !p.push(c) {
		return 0
	}
	for i, written := 0, 0; i < len(out); i++ {
		for i >= written {
			var ended bool
			if written, ended = c.progress(); i < written {
				break
			} else if ended {
				return i
			}
			select {
			case <-c.wake:
			case <-ctx.Done():
				p.giveUp(ctx, c, i)
				return len(out)
			}
		}
		if o := &out[i]; o.confirm != nil && !p.await(ctx, o) {
			p.giveUp(ctx, c, i)
			return len(out)
		}
	}
	return len(out)
}

// prepare refuses what cannot be sent and marks what must be known again.
func (p *pipe) prepare(o *outgoing, from origin) {
	o.on, o.confirm, o.err = p, nil, nil
	if o.mandatory {
		if o.msg.Headers == nil {
			o.msg.Headers = make(amqp.Table, 1)
		}
		o.serial = p.serials.Add(1)
		o.msg.Headers[returnHeader] = o.serial
	}
	frameMax := p.conn.frameMax
	if from == users && frameMax > 0 {
		frameMax -= headroom
	}
	err := checkFrames(o, frameMax)
	if n := len(o.msg.Body); err == nil && from == users && n > p.maxBody {
		err = fmt.Errorf("rabbit: the body has %d bytes and the server takes %d at most: send less, or raise the server's max_message_size and MaxBody", n, p.maxBody)
	}
	if err != nil {
		o.err = settle.Permanent(err)
	}
}

// await waits for the answer to a message that was written, and reports
// whether there was one before ctx ended.
func (p *pipe) await(ctx context.Context, o *outgoing) bool {
	select {
	case <-o.confirm.Done():
	default:
		select {
		case <-o.confirm.Done():
		case <-p.done:
		case <-ctx.Done():
			return false
		}
	}
	p.answer(o)
	return true
}

// answer sets the error of a message that is answered, by the server or by the
// end of the channel, and gives its token back.
func (p *pipe) answer(o *outgoing) {
	<-p.window
	switch {
	case o.confirm.Acked():
		if reason, returned := p.wasReturned(o.serial); returned {
			why := "no binding of the exchange takes it"
			if o.exchange == "" {
				why = "the default exchange leads to the queue of that name, and there is none"
			}
			o.err = fmt.Errorf("rabbit: exchange %q, key %q: %w (%s): %s", o.exchange, o.key, settle.ErrUnroutable, reason, why)
		}
	case p.IsClosed():
		o.err = p.ended("confirm, so the message may or may not have arrived")
		if m := saysMissing.FindStringSubmatch(o.err.Error()); m != nil && m[1] == "exchange" && m[2] == o.exchange {
			o.err = &settle.ConfigError{
				Source: "rabbit: publishing", Setting: "Exchange", Reason: fmt.Sprintf("the server has no exchange %q in vhost %q", m[2], m[3]),
				Fix: "declare it, by Broker.Declare for one, or correct the name", Err: p.err(),
			}
		}
	default:
		o.err = fmt.Errorf("rabbit: exchange %q, key %q: %w", o.exchange, o.key, errNack)
	}
}

// errNack says that the server refused a message, as a full queue does.
var errNack = errors.New("the server did not take the message (nack)")

// ended is the error of what still waited for something when the channel ended.
func (p *pipe) ended(before string) error {
	<-p.done
	if err := p.err(); err != nil {
		return fmt.Errorf("rabbit: %w: the channel ended before the %s: %w", settle.ErrSessionLost, before, err)
	}
	return fmt.Errorf("rabbit: %w: the channel was closed before the %s", settle.ErrSessionLost, before)
}

// wasReturned reports whether the message came back, and why. The server
// returns a message before it confirms it on the same channel, so the return of one
// that is confirmed is in p.returned, or in p.returns.
func (p *pipe) wasReturned(serial int64) (reason string, returned bool) {
	if serial == 0 {
		return "", false
	}
	p.returnM.Lock()
	defer p.returnM.Unlock()
	for {
		select {
		case r, open := <-p.returns:
			if open {
				if of, ok := r.Headers[returnHeader].(int64); ok {
					p.returned[of] = r.ReplyText
				}
				continue
			}
		default:
		}
		break
	}
	reason, returned = p.returned[serial]
	delete(p.returned, serial)
	return reason, returned
}

// giveUp ends a call early, at its message i: what is answered by now is, and
// the rest is late.
func (p *pipe) giveUp(ctx context.Context, c *call, i int) {
	written := c.leave()
	behind := 0
	for j := i; j < len(c.out); j++ {
		o := &c.out[j]
		switch {
		case o.err != nil:
		case j >= written:
			o.err = p.conn.late(ctx)
		default:
			select {
			case <-o.confirm.Done():
				p.answer(o)
			default:
				behind++
				o.err = p.conn.late(ctx)
			}
		}
	}
	p.leaveBehind(behind)
}
