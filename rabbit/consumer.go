package rabbit

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/settlemq/settle"
)

// openGrace bounds the clean-up after an Open that failed.
const openGrace = 2 * time.Second

// consumer is one session: one channel with one consumer on it. Its deliveries
// are settled on that channel or not at all; after a loss the runtime opens
// another, and the tags of this one die with it.
//
// The client's own recovery is never on: it would reopen this channel under the same value
// and begin its tags anew, so that an ack of an old delivery settles another.
type consumer struct {
	policy    policy
	traits    settle.Traits
	publisher copyPublisher
	queues    *onTheFly
	logger    *slog.Logger
	notify    func(settle.Notice)

	ch         *channel
	deliveries <-chan amqp.Delivery
	cancelled  <-chan string // a token when the server has ended the consumer

	open  openDeliveries
	each  bool          // no ack with multiple
	turn  chan struct{} // holds a token while a Settle call acks
	spare *delivery     // for the next delivery; the receiver's own
	got   []*delivery   // of one Receive; the receiver's own
	odd   sync.Once     // a count header that is none was logged
	lone  sync.Once     // a dead letter without a place to go was told

	blocked  atomic.Bool // told that copies cannot be sent
	stopOnce sync.Once
	stopping chan struct{} // closed by Stop

	closeOnce sync.Once
	closing   chan struct{} // closed by Close
	watched   chan struct{} // closed when watch has returned
	lost      chan struct{} // closed when the session was lost
	lostErr   error         // why; read after lost is closed
}

func newConsumer(s *settings, ch *channel) *consumer {
	return &consumer{
		policy:    s.policy(),
		traits:    s.traits(),
		publisher: s.publisher(),
		queues:    newOnTheFly(s),
		logger:    s.reg.Logger,
		notify:    s.reg.Notify,
		ch:        ch,
		each:      s.ackEach,
		turn:      make(chan struct{}, 1),
		stopping:  make(chan struct{}),
		closing:   make(chan struct{}),
		watched:   make(chan struct{}),
		lost:      make(chan struct{}),
	}
}

// Traits implements [settle.Consumer].
func (c *consumer) Traits() settle.Traits { return c.traits }

// errStopped ends a Receive during Stop.
var errStopped = errors.New("rabbit: the consumer was stopped")

// Receive implements [settle.Consumer].
func (c *consumer) Receive(ctx context.Context, buf []*settle.Delivery) (n int, err error) {
	c.got = c.got[:0]
	for len(c.got) < len(buf) {
		if c.spare == nil {
			c.spare = new(delivery)
		}
		open := false
		if len(c.got) == 0 {
			select {
			case c.spare.native, open = <-c.deliveries:
			case <-c.stopping:
			case <-ctx.Done():
				return 0, ctx.Err()
			}
		} else {
			select {
			case c.spare.native, open = <-c.deliveries:
			default:
				return c.hand(buf), nil
			}
		}
		if !open {
			return c.hand(buf), c.ended()
		}
		c.got = append(c.got, c.spare)
		c.spare = nil
	}
	return c.hand(buf), nil
}

// hand fills buf with what was received.
func (c *consumer) hand(buf []*settle.Delivery) int {
	for i, d := range c.got {
		c.read(d)
		buf[i] = &d.Delivery
	}
	c.open.add(c.got)
	n := len(c.got)
	clear(c.got)
	return n
}

// read fills in what the runtime and the handler see of a delivery.
func (c *consumer) read(d *delivery) {
	native := &d.native
	d.owner = c
	var odd any
	d.counts, odd = countsOf(native, c.policy.queue, c.policy.countHeader, c.policy.quorum, c.policy.limit)
	if odd != nil {
		c.odd.Do(func() {
			c.logger.Warn("rabbit: a message's count of attempts is not a whole number and counts as none",
				"header", c.policy.countHeader, "type", fmt.Sprintf("%T", odd), "id", native.MessageId)
		})
	}
	d.ID = native.MessageId
	d.Key = c.policy.key(native)
	d.Body = native.Body
	d.Headers = settle.Headers(native.Headers)
	d.Attempt = d.counts.attempt()
	d.Published = native.Timestamp
	d.Native = d
}

// ended says why there are no more deliveries.
func (c *consumer) ended() error {
	select {
	case <-c.stopping:
		return errStopped
	default:
	}
	timer := time.NewTimer(openGrace)
	defer timer.Stop()
	select {
	case <-c.lost:
		return c.lostErr
	case <-timer.C:
		return fmt.Errorf("rabbit: %w: the deliveries ended", settle.ErrSessionLost)
	}
}

// watch waits for the end of the session and tells of it: while the prefetch is full
// no Receive is under way that could.
func (c *consumer) watch() {
	defer close(c.watched)
	for cancelled := c.cancelled; c.lostErr == nil; {
		select {
		case <-c.ch.done:
			c.lostErr = c.ch.lost()
		case _, byServer := <-cancelled:
			if byServer {
				c.lostErr = errCancelled
			}
			cancelled = nil // it closes with the channel
		case <-c.closing:
			return
		}
	}
	close(c.lost)
	c.notify(settle.Notice{Kind: settle.NoticeLost, Err: c.lostErr})
}

// errCancelled is the end of a session by basic.cancel. The channel still lives then, but
// the server sends nothing more on it.
var errCancelled = fmt.Errorf("rabbit: %w: the server cancelled the consumer, because the queue was deleted or moved to another node, or a delivery stayed unsettled for longer than the consumer timeout", settle.ErrSessionLost)

// Stop implements [settle.Consumer].
func (c *consumer) Stop(ctx context.Context) error {
	if err := c.cancel(ctx); err != nil {
		return err
	}
	// What came in between the last Receive and the end goes back by nack, which is no failure.
	for {
		select {
		case d, open := <-c.deliveries:
			if !open {
				return nil
			}
			if err := c.ch.Nack(d.DeliveryTag, false, true); err != nil {
				return writeError(err)
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// cancel ends intake: when it returns nil the server sends no more.
func (c *consumer) cancel(ctx context.Context) (err error) {
	c.stopOnce.Do(func() {
		close(c.stopping)
		err = c.ch.do(ctx, func(ch *amqp.Channel) error { return ch.Cancel(consumerTag, false) })
	})
	return err
}

// Close implements [settle.Consumer].
func (c *consumer) Close(ctx context.Context) error {
	ended := c.over()
	c.closeOnce.Do(func() { close(c.closing) })
	<-c.watched
	if ended {
		return nil
	}
	// A channel that closes with unsettled deliveries counts a failure of each
	// from 4.3 on; giving them all back first does not.
	if err := c.cancel(ctx); err == nil {
		_ = c.ch.Nack(0, true, true) // 0: all that there are
	}
	return c.ch.close(ctx)
}

// over reports whether the session has ended: a copy made for it now would be
// one too many.
func (c *consumer) over() bool {
	select {
	case <-c.closing:
		return true
	default:
		return c.ch.IsClosed()
	}
}
