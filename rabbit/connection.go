package rabbit

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/settlemq/settle"
)

// leastRedial is the least time from one connection to the next, so that a
// server that accepts and hangs up is not dialled in a tight loop.
const leastRedial = 50 * time.Millisecond

// link is one of the broker's two connections over time: whoever needs it
// dials it, those who come meanwhile share the attempt, and after a loss the
// next who needs it dials again. Attempts that fail are spread out.
type link struct {
	broker *Broker
	role   string // "consuming" or "publishing"

	mu       sync.Mutex // guards what follows
	conn     *conn      // the newest; nil before the first
	dialling *dialling  // nil: no attempt is under way
	failures int        // attempts that failed since the last that did not
	next     time.Time  // no attempt before this
}

// dialling is one attempt and those who wait for it.
type dialling struct {
	waiters int // guarded by link.mu
	cancel  context.CancelFunc
	done    chan struct{} // closed when conn and err are set
	conn    *conn
	err     error
}

// current returns the live connection, or nil.
func (l *link) current() *conn {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn == nil || l.conn.gone() {
		return nil
	}
	return l.conn
}

// get returns the live connection; without one it makes one attempt to dial,
// or joins the one under way. An attempt ends when nobody waits for it any more.
func (l *link) get(ctx context.Context) (*conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("rabbit: no %s connection: %w", l.role, context.Cause(ctx))
	}
	l.mu.Lock()
	if l.conn != nil && !l.conn.gone() {
		c := l.conn
		l.mu.Unlock()
		return c, nil
	}
	d := l.dialling
	if d == nil {
		d = &dialling{done: make(chan struct{})}
		var dialCtx context.Context
		dialCtx, d.cancel = context.WithCancel(l.broker.ctx)
		if !l.broker.start(func() { l.dial(dialCtx, d) }) {
			l.mu.Unlock()
			d.cancel()
			return nil, closedError()
		}
		l.dialling = d
	}
	d.waiters++
	l.mu.Unlock()

	select {
	case <-d.done:
		return d.conn, d.err
	case <-ctx.Done():
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if d.waiters--; d.waiters == 0 && l.dialling == d {
		l.dialling = nil
		d.cancel()
	}
	return nil, fmt.Errorf("rabbit: no %s connection in time: %w", l.role, context.Cause(ctx))
}

// dial makes one attempt: each node once, beginning at a random one.
func (l *link) dial(ctx context.Context, d *dialling) {
	defer d.cancel()
	l.mu.Lock()
	wait := time.Until(l.next)
	l.mu.Unlock()
	c, err := l.try(ctx, wait)

	l.mu.Lock()
	switch {
	case l.dialling != d:
		// Everybody who waited has gone.
		if err == nil {
			err = context.Canceled
		}
	case err != nil:
		l.dialling = nil
		l.failures++
		l.next = time.Now().Add(pause(l.failures))
	default:
		l.dialling = nil
		l.failures = 0
		l.next = time.Now().Add(leastRedial)
		l.conn = c
	}
	first := l.failures == 1
	l.mu.Unlock()

	if err != nil {
		if c != nil {
			c.raw.Close()
			c = nil
		}
		if first && ctx.Err() == nil {
			l.broker.logger.Warn("rabbit: cannot connect; trying on while somebody needs it", "connection", l.role, "error", err)
		}
		if l.broker.ctx.Err() != nil {
			err = closedError()
		}
	}
	d.conn, d.err = c, err
	close(d.done)
}

func (l *link) try(ctx context.Context, wait time.Duration) (*conn, error) {
	if wait > 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
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
func (l *link) adopt(n node, client *amqp.Connection, raw net.Conn) (*conn, error) {
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
	c := l.current()
	if c == nil {
		return
	}
	stop := context.AfterFunc(ctx, func() { c.raw.Close() })
	defer stop()
	deadline, ok := ctx.Deadline()
	if !ok {
		deadline = time.Now().Add(defaultDialTimeout)
	}
	if c.blockade.Load() != nil {
		// The server reads nothing from this connection now, so it would not
		// answer.
		c.raw.Close()
		return
	}
	_ = c.CloseDeadline(deadline) // closed whatever it says
}

// conn is one open connection.
type conn struct {
	*amqp.Connection
	broker   *Broker
	role     string
	addr     string
	raw      net.Conn
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

// lostError is the error of what was under way on a connection or channel that
// ended with cause.
func lostError(what string, cause error) error {
	if cause == nil {
		return fmt.Errorf("rabbit: %s closed: %w", what, settle.ErrSessionLost)
	}
	return fmt.Errorf("rabbit: %s lost: %w: %w", what, settle.ErrSessionLost, cause)
}
