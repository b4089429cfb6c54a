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
	nacks  nacks
	again  *again
	copier *copier

	// natives are the library's consumers, one for each topic. Its own consumer
	// of several topics acknowledges no message in chunks, and says that it did.
	natives  []client.Consumer
	parts    []int // how many partitions each topic had when it was opened
	messages chan client.ConsumerMessage

	// The receiver's own.
	origins map[string]*origin // by topic
	arrived []*delivery        // of one Receive
	strays  acks               // of one Receive: copies for others

	odd       sync.Once // a count that is none was logged
	encrypted sync.Once // and so was a message that cannot be read
	lone      sync.Once // a dead letter without a place to go was told

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
		origins:  make(map[string]*origin),
		lost:     make(chan struct{}), stopping: make(chan struct{}), gone: make(chan struct{}),
	}
	c.work = newWork(set.AckTimeout, c.expired)
	c.again = newAgain(set.retryDelay())
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

var errEncrypted = errors.New("a message is encrypted and stays unacknowledged")

// lose ends the session, once, and tells: nothing of it settles any more. It
// does not block, and anybody may call it.
func (c *consumer) lose(err error) {
	if c.end(err) {
		c.notify(settle.Notice{Kind: settle.NoticeLost, Err: c.why})
	}
}

// end is lose without telling. It reports whether the session lived until now.
func (c *consumer) end(err error) (lived bool) {
	c.losing.Do(func() {
		lived = true
		c.why = fmt.Errorf("pulsar: %w: %w", settle.ErrSessionLost, err)
		close(c.lost)
		c.work.end()
		c.again.end()
	})
	return lived
}

// isStopping reports whether Stop was called.
func (c *consumer) isStopping() bool {
	select {
	case <-c.stopping:
		return true
	default:
		return false
	}
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
	return noBackoff{}
}

// BeforeConsume, OnAcknowledge and OnNegativeAcksSend implement the library's
// ConsumerInterceptor.
func (c *consumer) BeforeConsume(client.ConsumerMessage) {}

func (c *consumer) OnAcknowledge(client.Consumer, client.MessageID) {}

func (c *consumer) OnNegativeAcksSend(_ client.Consumer, ids []client.MessageID) { c.nacks.sent(ids) }

// BecameActive and BecameInactive implement the library's ConsumerEventListener.
func (c *consumer) BecameActive(_ client.Consumer, topic string, _ int32) { c.work.regain(topic) }

// BecameInactive takes away all that is in work of a topic that a Failover subscription has
// given to another consumer: the broker delivers it again, there.
func (c *consumer) BecameInactive(_ client.Consumer, topic string, _ int32) {
	taken := c.work.forfeit(topic)
	c.again.forfeit(topic)
	c.takenAway(taken, "another consumer of the Failover subscription has the topic now")
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
		if c.arrived = c.again.take(c.arrived[:0], len(buf)); len(c.arrived) == 0 {
			select {
			case m := <-c.messages:
				c.arrive(m)
			case <-c.again.due:
				continue
			case <-c.lost:
				return 0, c.why
			case <-c.stopping:
				return 0, nil
			case <-ctx.Done():
				return 0, ctx.Err()
			}
		}
		for more := true; more && len(c.arrived) < len(buf); {
			select {
			case m := <-c.messages:
				c.arrive(m)
			default:
				more = false
			}
		}
		if len(c.strays) > 0 {
			c.ackAside(c.strays)
			c.strays = nil
		}
		if n := c.hand(buf); n > 0 {
			return n, nil
		}
	}
}

// hand fills buf with what has arrived.
func (c *consumer) hand(buf []*settle.Delivery) int {
	if len(c.arrived) == 0 {
		return 0
	}
	in, taken := c.work.admit(c.arrived)
	for i, d := range in {
		buf[i] = &d.Delivery
	}
	clear(c.arrived)
	c.takenAway(taken, "the broker delivered the message again")
	return len(in)
}

// arrive makes a delivery of a message.
func (c *consumer) arrive(m client.ConsumerMessage) {
	properties, from := m.Properties(), c.origin(m)
	run := from.runOf(m.ID())
	switch {
	case from.mark.another(properties):
		c.strays = append(c.strays, toAck{id: m.ID(), from: m.Consumer, run: run})
		return
	case m.GetEncryptionContext() != nil:
		c.encrypted.Do(func() {
			c.logger.Error("pulsar: a message is encrypted, which cannot be read here, nor copied: it stays unacknowledged; publish without encryption, or consume the topic with the client library",
				"id", messageID(m.ID()))
		})
		c.notify(settle.Notice{Kind: settle.NoticeWeakened, Err: errEncrypted})
		return
	}
	attempt := 0
	if c.set.countsAttempts() {
		before, odd := 0, ""
		if from.mark.on(properties) {
			before, odd = countOf(properties)
		}
		if odd != "" {
			c.odd.Do(func() {
				c.logger.Warn("pulsar: a message's count of attempts is not a whole number and counts as none",
					"property", PropertyAttempts, "value", odd, "id", messageID(m.ID()))
			})
		}
		attempt = before + int(m.RedeliveryCount()) + 1
	}
	d := &delivery{from: from, run: run}
	d.read(m.Message, attempt)
	c.arrived = append(c.arrived, d)
}

// origin is where a message came from.
func (c *consumer) origin(m client.ConsumerMessage) *origin {
	topic := m.Topic()
	o := c.origins[topic]
	if o == nil {
		o = &origin{
			owner: c, topic: topic, number: int32(len(c.origins)), native: m.Consumer,
			copies: c.set.copyTopic(topic), mark: markOf(c.set.SubscriptionName, topic),
		}
		c.origins[topic] = o
	}
	return o
}

// expired gives back deliveries that are unsettled for AckTimeout.
func (c *consumer) expired(taken []*delivery) {
	c.giveBack(taken, true)
	c.takenAway(taken, fmt.Sprintf("it was unsettled for %v (AckTimeout)", c.set.AckTimeout))
}

// takenAway tells of deliveries that are not the session's any more.
func (c *consumer) takenAway(taken []*delivery, why string) {
	for _, d := range taken {
		c.notify(settle.Notice{
			Kind: settle.NoticeLeaseLost, Delivery: &d.Delivery, Err: fmt.Errorf("pulsar: %w: %s", settle.ErrLeaseLost, why),
		})
	}
}

// Stop implements [settle.Consumer]. The library cannot pause: what it has
// fetched ahead, and what waits to be handed out again, goes back when the
// session closes.
func (c *consumer) Stop(context.Context) error {
	c.stopOnce.Do(func() {
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
			c.nacks.wait(3 * c.set.retryDelay())
		}
		c.end(errSessionClosed)
		c.mu.Lock()
		c.closed = true
		c.mu.Unlock()
		c.acking.Wait()
		c.work.firing.Wait()
		closeAll(c.natives)
		c.broker.words.forget(c)
		c.broker.forget(c)
		close(c.gone)
	})
	<-c.gone
}
