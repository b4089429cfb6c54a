package pulsar

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	client "github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/backoff"

	"github.com/settlemq/settle"
)

// consumer is one session: one consumer of the client library, on the connections it was
// opened on. The library would connect it again by itself, and would then send what was acknowledged
// before on the new connection, where the message may be with somebody else. So that is off: when
// a connection or a topic goes, the session is over, and the runtime opens another.
type consumer struct {
	set    *settings
	broker *Broker
	name   string
	logger *slog.Logger
	notify func(settle.Notice)
	traits settle.Traits
	work   *work
	copier *copier

	native   client.Consumer
	messages chan client.ConsumerMessage

	arrived []*delivery        // of one Receive; the receiver's own
	strays  []client.MessageID // of one Receive: what is not ours to handle
	odd     sync.Once          // a count that is none was logged
	lone    sync.Once          // a dead letter without a place to go was told

	losing   sync.Once
	lost     chan struct{} // closed when the session is over
	why      error         // read after lost is closed
	stopOnce sync.Once
	stopping chan struct{} // closed by Stop
	shutting sync.Once
	gone     chan struct{} // closed when nothing is left

	mu     sync.Mutex     // guards what follows
	closed bool           // no more acknowledgements begin
	acking sync.WaitGroup // those under way
}

func newConsumer(set *settings, name string) *consumer {
	c := &consumer{
		set: set, broker: set.Broker, name: name,
		logger: set.reg.Logger, notify: set.reg.Notify, traits: set.traits(),
		messages: make(chan client.ConsumerMessage, min(set.reg.Prefetch, mostAhead)),
		lost:     make(chan struct{}), stopping: make(chan struct{}), gone: make(chan struct{}),
	}
	c.work = newWork(set.AckTimeout, c.expired)
	c.copier = newCopier(c)
	return c
}

// mostAhead bounds how many messages wait between the library and a Receive.
const mostAhead = 512

// Reasons why a session is over.
var (
	errCutOff        = errors.New("the connection is gone, or the broker closed the consumer, as it does when a topic is unloaded")
	errSessionClosed = errors.New("it was closed")
	errNoAnswer      = errors.New("the broker did not answer an acknowledgement")
)

// lose ends the session, once: nothing of it settles any more. It does not
// block, and anybody may call it.
func (c *consumer) lose(err error) {
	c.losing.Do(func() {
		c.why = fmt.Errorf("pulsar: %w: %w", settle.ErrSessionLost, err)
		close(c.lost)
		c.work.end()
	})
}

func (c *consumer) isLost() bool {
	select {
	case <-c.lost:
		return true
	default:
		return false
	}
}

// reconnect is what the library calls when it would connect again. It is told
// not to (MaxReconnectToBroker); this is how we know.
func (c *consumer) reconnect() backoff.Policy {
	c.lose(errCutOff)
	return new(pauses)
}

// BeforeConsume, OnAcknowledge and OnNegativeAcksSend implement the library's
// ConsumerInterceptor.
func (c *consumer) BeforeConsume(client.ConsumerMessage) {}

func (c *consumer) OnAcknowledge(client.Consumer, client.MessageID) {}

func (c *consumer) OnNegativeAcksSend(_ client.Consumer, ids []client.MessageID) {
	c.work.nacksSent(ids)
}

// Traits implements [settle.Consumer].
func (c *consumer) Traits() settle.Traits { return c.traits }

// Receive implements [settle.Consumer].
func (c *consumer) Receive(ctx context.Context, buf []*settle.Delivery) (int, error) {
	for {
		select {
		case <-c.lost:
			return 0, c.why
		case <-c.stopping:
			return 0, nil
		default:
		}
		c.arrived, c.strays = c.arrived[:0], c.strays[:0]
		select {
		case m := <-c.messages:
			c.arrive(m.Message)
		case <-c.lost:
			return 0, c.why
		case <-c.stopping:
			return 0, nil
		case <-ctx.Done():
			return 0, ctx.Err()
		}
		for more := true; more && len(c.arrived) < len(buf); {
			select {
			case m := <-c.messages:
				c.arrive(m.Message)
			default:
				more = false
			}
		}
		n, done := c.work.admit(c.arrived, buf)
		clear(c.arrived)
		if done = append(done, c.strays...); len(done) > 0 {
			c.ackAside(done)
		}
		if n > 0 {
			return n, nil
		}
	}
}

// arrive makes a delivery of a message.
func (c *consumer) arrive(m client.Message) {
	properties := m.Properties()
	if foreign(properties, c.set.SubscriptionName) {
		c.strays = append(c.strays, m.ID())
		return
	}
	attempt := 0
	if c.set.countsAttempts() {
		before, odd := countOf(properties)
		if odd != "" {
			c.odd.Do(func() {
				c.logger.Warn("pulsar: a message's count of attempts is not a whole number and counts as none",
					"property", PropertyAttempts, "value", odd, "id", messageID(m.ID()))
			})
		}
		attempt = before + int(m.RedeliveryCount()) + 1
	}
	d := &delivery{owner: c}
	d.read(m, attempt)
	c.arrived = append(c.arrived, d)
}

// expired tells of deliveries that AckTimeout has taken away.
func (c *consumer) expired(taken []*delivery, nacks []client.MessageID) {
	c.nack(nacks)
	err := fmt.Errorf("pulsar: %w: it was unsettled for %v (AckTimeout)", settle.ErrLeaseLost, c.set.AckTimeout)
	for _, d := range taken {
		c.notify(settle.Notice{Kind: settle.NoticeLeaseLost, Delivery: &d.Delivery, Err: err})
	}
}

// nack has the broker deliver entries again, after RetryDelay.
func (c *consumer) nack(ids []client.MessageID) {
	for _, id := range ids {
		c.native.NackID(id)
	}
}

// Stop implements [settle.Consumer]. The library cannot pause: what it has
// fetched ahead goes back when the session closes.
func (c *consumer) Stop(context.Context) error {
	c.stopOnce.Do(func() {
		c.work.stopping()
		close(c.stopping)
	})
	return nil
}

// Close implements [settle.Consumer]. A session that is lost is closed aside:
// the library waits for answers that will not come.
func (c *consumer) Close(ctx context.Context) error {
	live := !c.isLost()
	c.broker.start(func() { c.shut(live) }) // else the broker is closing it
	if !live {
		return nil
	}
	select {
	case <-c.gone:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("pulsar: the consumer did not close in time: %w", context.Cause(ctx))
	}
}

// shut ends the session and returns when nothing of it is left. Acknowledgements are joined first:
// the library never answers one that races with its close.
func (c *consumer) shut(live bool) {
	c.shutting.Do(func() {
		if live {
			c.work.waitNacks(3 * c.set.retryDelay())
		}
		c.lose(errSessionClosed)
		c.mu.Lock()
		c.closed = true
		c.mu.Unlock()
		c.acking.Wait()
		c.work.firing.Wait()
		c.native.Close()
		c.broker.words.forget(c)
		c.broker.forget(c)
		close(c.gone)
	})
	<-c.gone
}
