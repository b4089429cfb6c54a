package rabbit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/settlemq/settle"
)

// defaultWindow is how many messages a sender has unconfirmed at most.
const defaultWindow = 512

// defaultMaxBody is the largest body, in bytes, that a server with default
// settings takes: its max_message_size, as measured on 4.3 and 3.10.
func defaultMaxBody(server version) int {
	if server.atLeast(4, 0) {
		return 16 << 20
	}
	return 128 << 20
}

// outgoing is one message to publish. Once handed over it belongs to the
// sender, headers and body included: a write may be under way even after
// publish has returned with an error.
type outgoing struct {
	exchange, key string
	mandatory     bool
	msg           amqp.Publishing

	on      *pipe                      // where it was sent; nil before
	serial  int64                      // what a return of it is matched by; 0: not mandatory
	confirm *amqp.DeferredConfirmation // set when it was written
	err     error                      // nil when it is confirmed, or has no answer yet
}

// origin says whose messages are published.
type origin bool

const (
	// copies are made from deliveries by a source, which tries again by
	// itself. Nobody changes their bodies, and the server has taken bodies that large before.
	copies origin = false
	// users' messages wait for the server to come back, may be changed as soon
	// as publish has returned, and may be larger than the server takes.
	users origin = true
)

// sender publishes with confirms on a channel of its own, which it opens when
// it is first needed and again when it was lost.
type sender struct {
	broker *Broker
	window int
	// maxBody bounds the bodies that users publish; 0: the server's default.
	maxBody int
	// setUp is called with each new channel before anything is published on it; may be nil.
	setUp func(*amqp.Channel) error
	pipes onDemand[*pipe]

	next time.Time // no channel before this; open's own, which never runs twice at once
}

func newSender(b *Broker, window int) *sender {
	s := &sender{broker: b, window: window}
	s.pipes = onDemand[*pipe]{broker: b, make: s.open}
	return s
}

// publish sends the copies of a source that has no publisher of its own.
func (b *Broker) publish(ctx context.Context, out []outgoing) []error {
	return b.copies.publish(ctx, out, copies)
}

// publish writes the messages one after the other, without waiting in between,
// and returns when each is answered or ctx has ended: nil when all are
// confirmed and none came back, else an error or nil for each. A message that
// was not written yet when its channel died is written on the next one; one
// that was is answered with an error, as it may have arrived.
//
// Where the server cannot be reached it gives up after one attempt with
// copies, and when ctx ends with a user's messages. Only errors about the
// message itself are marked permanent.
func (s *sender) publish(ctx context.Context, out []outgoing, from origin) []error {
	for rest := out; len(rest) > 0; {
		p, err := s.enter(ctx)
		if err == nil {
			rest = rest[p.send(ctx, rest, from):]
			p.leave()
			continue
		}
		var config *settle.ConfigError
		if from == users && ctx.Err() == nil && !errors.As(err, &config) {
			continue // the link keeps its attempts apart
		}
		for i := range rest {
			rest[i].err = err
		}
		break
	}
	var errs []error
	for i := range out {
		if out[i].err != nil {
			if errs == nil {
				errs = make([]error, len(out))
			}
			errs[i] = out[i].err
		}
	}
	return errs
}

// enter returns a pipe to send on; the caller leaves it afterwards.
func (s *sender) enter(ctx context.Context) (*pipe, error) {
	for {
		if ctx.Err() != nil {
			return nil, s.late(ctx)
		}
		p, err := s.pipes.get(ctx)
		switch {
		case err == nil && p.enter():
			return p, nil
		case err == nil: // it ended in between
		case ctx.Err() != nil:
			return nil, s.late(ctx)
		default:
			return nil, err
		}
	}
}

// open opens a pipe. Where the server takes no messages it would not answer,
// so open waits for that to be over.
func (s *sender) open(ctx context.Context) (*pipe, error) {
	if !sleepUntil(ctx, s.next) {
		return nil, ctx.Err()
	}
	s.next = time.Now().Add(leastRedial)
	c, err := s.broker.publishing.get(ctx)
	if err != nil {
		return nil, err
	}
	if b := c.blockade.Load(); b != nil {
		select {
		case <-b.over:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	ch, err := c.channel(ctx)
	if err != nil {
		return nil, err
	}
	err = ch.do(ctx, func(ch *amqp.Channel) error {
		if s.setUp != nil {
			if err := s.setUp(ch); err != nil {
				return err
			}
		}
		return ch.Confirm(false)
	})
	if err != nil {
		s.broker.start(func() { _ = ch.Close() })
		return nil, fmt.Errorf("rabbit: cannot publish on %s: %w", c.addr, err)
	}
	return startPipe(ch, s.window, cmp.Or(s.maxBody, defaultMaxBody(c.server)))
}

// late is the error of what had no answer when ctx ended.
func (s *sender) late(ctx context.Context) error {
	if c, ok := s.broker.publishing.conns.current(); ok {
		return c.late(ctx)
	}
	return s.broker.publishing.late(ctx)
}

func (c *conn) late(ctx context.Context) error {
	if b := c.blockade.Load(); b != nil {
		return fmt.Errorf("rabbit: %s: %w (%s): %w", c.addr, settle.ErrBlocked, b.reason, context.Cause(ctx))
	}
	return fmt.Errorf("rabbit: %s: not confirmed in time: %w", c.addr, context.Cause(ctx))
}
