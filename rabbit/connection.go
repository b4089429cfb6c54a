package rabbit

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// leastRedial is the least time from one connection to the next, so that a
// server that accepts and hangs up is not dialled in a tight loop.
const leastRedial = 50 * time.Millisecond

// link is one of the broker's two connections over time. Whoever needs it
// dials it, and after a loss the next who needs it dials again. Attempts that
// fail are spread out.
type link struct {
	broker *Broker
	role   string // "consuming" or "publishing"
	conns  onDemand[*conn]

	failed atomic.Pointer[error] // why the latest attempt failed; nil: it did not

	// These are dial's own; it never runs twice at once.
	failures int       // attempts that failed since the last that did not
	next     time.Time // no attempt before this
}

func newLink(b *Broker, role string) *link {
	l := &link{broker: b, role: role}
	l.conns = onDemand[*conn]{broker: b, make: l.dial}
	return l
}

// get returns the live connection. Without one it makes one attempt to dial.
func (l *link) get(ctx context.Context) (*conn, error) {
	c, err := l.conns.get(ctx)
	if err != nil && ctx.Err() != nil {
		return nil, l.late(ctx)
	}
	return c, err
}

// late is the error of who waited for a connection when ctx ended.
func (l *link) late(ctx context.Context) error {
	if failed := l.failed.Load(); failed != nil {
		return fmt.Errorf("rabbit: no %s connection in time: %w: %w", l.role, context.Cause(ctx), *failed)
	}
	return fmt.Errorf("rabbit: no %s connection in time: %w", l.role, context.Cause(ctx))
}

// dial makes one attempt: each node once, beginning at a random one.
func (l *link) dial(ctx context.Context) (*conn, error) {
	if !sleepUntil(ctx, l.next) {
		return nil, ctx.Err()
	}
	c, err := l.tryNodes(ctx)
	switch {
	case err == nil:
		l.failures = 0
		l.failed.Store(nil)
		l.next = time.Now().Add(leastRedial)
	case ctx.Err() == nil:
		l.failures++
		l.failed.Store(&err)
		l.next = time.Now().Add(pause(l.failures))
		if l.failures == 1 {
			l.broker.logger.Warn("rabbit: cannot connect; trying on while somebody needs it", "connection", l.role, "error", err)
		}
	}
	return c, err
}

func (l *link) tryNodes(ctx context.Context) (*conn, error) {
	nodes := l.broker.nodes
	first := rand.IntN(len(nodes))
	var errs []error
	for i := range nodes {
		n := nodes[(first+i)%len(nodes)]
		client, raw, err := l.broker.dialNode(ctx, n, l.broker.config.Name+" ("+l.role+")")
		if err == nil {
			return l.adopt(n, client, raw)
		}
		errs = append(errs, err)
		if ctx.Err() != nil {
			break
		}
	}
	return nil, errors.Join(errs...)
}

// adopt watches over a connection that was just made.
func (l *link) adopt(n node, client *amqp.Connection, raw *corkable) (*conn, error) {
	c := &conn{
		Connection: client,
		broker:     l.broker,
		role:       l.role,
		addr:       n.addr,
		raw:        raw,
		server:     parseVersion(client.Properties["version"]),
		frameMax:   client.Config.FrameSize,
		done:       make(chan struct{}),
	}
	closes := client.NotifyClose(make(chan *amqp.Error, 1))
	blocks := client.NotifyBlocked(make(chan amqp.Blocking, 16))
	if !l.broker.start(func() { c.watch(closes, blocks) }) {
		raw.Close()
		return nil, closedError()
	}
	return c, nil
}

// close ends the connection in good order, and by force when ctx ends.
func (l *link) close(ctx context.Context) {
	c, ok := l.conns.current()
	if !ok {
		return
	}
	stop := context.AfterFunc(ctx, func() { c.raw.Close() })
	defer stop()
	deadline, ok := ctx.Deadline()
	if !ok {
		deadline = time.Now().Add(mostFarewell)
	}
	_ = c.CloseDeadline(deadline) // closed whatever it says
}

// conn is one open connection.
type conn struct {
	*amqp.Connection
	broker   *Broker
	role     string
	addr     string
	raw      *corkable
	server   version
	frameMax int // bytes of a frame, 0: no limit

	// blockade is set while the server takes no messages.
	blockade atomic.Pointer[blockade]

	done  chan struct{} // closed when the connection is gone
	cause error         // why; nil after Close. Read after done is closed.
}

// blockade is one time in which the server takes no messages.
type blockade struct {
	reason string
	over   chan struct{} // closed when it takes them again, or the connection is gone
}

func (c *conn) discard() { c.raw.Close() }

func (c *conn) gone() bool {
	select {
	case <-c.done:
		return true
	default:
		return c.IsClosed()
	}
}

// watch follows the connection until it is gone. The library must always find
// its notifications received, or it stops reading.
func (c *conn) watch(closes <-chan *amqp.Error, blocks <-chan amqp.Blocking) {
	logger := c.broker.logger.With("connection", c.role, "node", c.addr)
	for {
		select {
		case b, open := <-blocks:
			if !open {
				blocks = nil
				continue
			}
			c.block(b.Active, b.Reason)
			if b.Active {
				logger.Warn("rabbit: the server takes no messages for now", "reason", b.Reason)
			} else {
				logger.Info("rabbit: the server takes messages again")
			}
		case err := <-closes:
			// A write that is stuck in the socket holds what the library needs
			// to close itself; closing the socket frees it.
			c.raw.Close()
			c.block(false, "")
			if err != nil {
				c.cause = err
				logger.Warn("rabbit: connection lost", "error", err)
			}
			close(c.done)
			return
		}
	}
}

func (c *conn) block(active bool, reason string) {
	old := c.blockade.Load()
	if !active {
		c.blockade.Store(nil)
	} else {
		c.blockade.Store(&blockade{reason: reason, over: make(chan struct{})})
	}
	if old != nil {
		close(old.over)
	}
}

// sleepUntil waits until the given time and reports whether ctx lived that long.
func sleepUntil(ctx context.Context, at time.Time) bool {
	wait := time.Until(at)
	if wait <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
