package rabbit

import (
	"context"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/settlemq/settle"
)

// channel is one AMQP channel, with an end that can be waited for. One request
// that the server answers at a time; Ack, Nack, Reject and Publish may go
// beside it.
type channel struct {
	*amqp.Channel
	conn   *conn
	server version

	done  chan struct{} // closed when the channel or its connection is gone
	cause error         // why; nil after a close of our own. Read after done is closed.
}

// consumeChannel opens a channel on the consuming connection, which it dials
// if need be. A *settle.ConfigError is final; any other error may pass.
func (b *Broker) consumeChannel(ctx context.Context) (*channel, error) {
	return b.consuming.channel(ctx)
}

func (l *link) channel(ctx context.Context) (*channel, error) {
	c, err := l.get(ctx)
	if err != nil {
		return nil, err
	}
	return c.channel(ctx)
}

// channel opens a channel on this connection.
func (c *conn) channel(ctx context.Context) (*channel, error) {
	type opened struct {
		ch  *amqp.Channel
		err error
	}
	result := make(chan opened)
	started := c.broker.start(func() {
		ch, err := c.Channel()
		select {
		case result <- opened{ch, err}:
		case <-ctx.Done():
			if err == nil {
				_ = ch.Close() // nobody waits for it any more
			}
		}
	})
	if !started {
		return nil, closedError()
	}
	var o opened
	select {
	case o = <-result:
	case <-ctx.Done():
		return nil, fmt.Errorf("rabbit: no channel from %s in time: %w", c.addr, context.Cause(ctx))
	}
	if o.err != nil {
		return nil, fmt.Errorf("rabbit: cannot open a channel on %s: %w", c.addr, o.err)
	}
	ch := &channel{Channel: o.ch, conn: c, server: c.server, done: make(chan struct{})}
	closes := o.ch.NotifyClose(make(chan *amqp.Error, 1))
	if !c.broker.start(func() { ch.watch(closes) }) {
		return nil, closedError()
	}
	return ch, nil
}

func (ch *channel) watch(closes <-chan *amqp.Error) {
	if err := <-closes; err != nil {
		ch.cause = err
	}
	close(ch.done)
}

// err says why the channel is gone: an *amqp.Error, or nil after a close of our own or while it lives.
func (ch *channel) err() error {
	select {
	case <-ch.done:
		return ch.cause
	default:
		return nil
	}
}

// lost is the error of what was under way on this channel when it ended.
// It wraps settle.ErrSessionLost.
func (ch *channel) lost() error {
	if err := ch.err(); err != nil {
		return fmt.Errorf("rabbit: channel lost: %w: %w", settle.ErrSessionLost, err)
	}
	return fmt.Errorf("rabbit: channel closed: %w", settle.ErrSessionLost)
}

// do runs a request on the channel and waits for it until ctx ends. Then the
// channel is given up: it closes as soon as the request has returned.
func (ch *channel) do(ctx context.Context, request func(*amqp.Channel) error) error {
	result := make(chan error, 1)
	if !ch.conn.broker.start(func() { result <- request(ch.Channel) }) {
		return closedError()
	}
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
		ch.conn.broker.start(func() {
			<-result
			_ = ch.Close()
		})
		return fmt.Errorf("rabbit: no answer from %s in time: %w", ch.conn.addr, context.Cause(ctx))
	}
}

// close closes the channel and waits for that until ctx ends.
func (ch *channel) close(ctx context.Context) error {
	return ch.do(ctx, (*amqp.Channel).Close)
}
