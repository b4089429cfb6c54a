package pulsar

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"time"

	client "github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/backoff"
	"github.com/apache/pulsar-client-go/pulsar/crypto"

	"github.com/settlemq/settle"
)

// This file opens a session: it reaches the broker, makes what copies need, and
// subscribes.

// open opens a session.
func (s *settings) open(ctx context.Context) (settle.Consumer, error) {
	if err := s.Broker.reach(ctx); err != nil {
		return nil, s.openError("", err)
	}
	if err := s.readyCopies(ctx); err != nil {
		return nil, err
	}
	for tries := 1; ; tries++ {
		c, err := s.session(ctx)
		if err == nil {
			s.opened.Store(s.deadLetter, true)
			return c, nil
		}
		// Another registration's dead-letter subscription is of type Shared for the moment that it takes to make it.
		if !otherType(err) || tries == typeTries || !pause(ctx, typePause) {
			return nil, s.openError("", err)
		}
	}
}

const (
	typeTries = 4
	typePause = 250 * time.Millisecond
)

// session subscribes, once.
func (s *settings) session(ctx context.Context) (*consumer, error) {
	c := newConsumer(s, s.consumerName())
	s.Broker.words.listen(c)
	err := c.subscribe(ctx)
	if err == nil && !s.Broker.open(c) {
		err = closedError()
	}
	if err != nil {
		s.Broker.words.forget(c)
		closeAll(c.natives)
		return nil, err
	}
	s.Broker.call(func() { c.watchPartitions(partitionsEvery) })
	return c, nil
}

// subscribe subscribes to every topic, or returns the error of one.
func (c *consumer) subscribe(ctx context.Context) error {
	c.natives, c.parts = make([]client.Consumer, len(c.set.topics)), make([]int, len(c.set.topics))
	errs := make([]error, len(c.set.topics))
	var opening sync.WaitGroup
	for i, topic := range c.set.topics {
		opening.Go(func() {
			c.natives[i], errs[i] = c.set.subscribe(ctx, c.options(topic), func() (err error) {
				c.parts[i], err = c.set.partitions(topic) // before: what comes in between is noticed later
				return err
			})
		})
	}
	opening.Wait()
	return errors.Join(errs...)
}

// closeAll closes the library's consumers side by side; nil is none.
func closeAll(natives []client.Consumer) {
	var closing sync.WaitGroup
	for _, native := range natives {
		if native != nil {
			closing.Go(native.Close)
		}
	}
	closing.Wait()
}

// consumerName is different for each session: it is how we find the session again that
// the library speaks of.
func (s *settings) consumerName() string {
	if s.ConsumerName == "" {
		return rand.Text()
	}
	return s.ConsumerName + "-" + rand.Text()
}

// readyCopies makes the producers of copies, so that what may not be written is
// known at the start, and has the dead-letter topic keep what it is sent.
func (s *settings) readyCopies(ctx context.Context) error {
	if s.seen() {
		return nil // what cannot be written now is told by who would write; the rest goes on
	}
	if s.CountedCopies {
		for _, topic := range s.topics {
			if _, err := s.Broker.copies(topic).ready(ctx); err != nil {
				return s.openError("CountedCopies", err)
			}
		}
	}
	if s.deadLetter == "" {
		return nil
	}
	to := s.Broker.copies(s.deadLetter)
	if _, err := to.ready(ctx); err != nil {
		return s.openError("DeadLetter", err)
	}
	if s.NoDeadLetterSubscription {
		return nil
	}
	keeper := cmp.Or(s.DeadLetterSubscription, s.SubscriptionName)
	native, err := s.subscribe(ctx, keeping(s.deadLetter, keeper), func() error { return nil })
	switch {
	case err == nil:
		s.Broker.start(native.Close)
	case !busy(err):
		return s.openError("DeadLetterSubscription", err)
	}
	to.keptBy(keeper)
	return nil
}

// keeping is how a subscription is made on a dead-letter topic. Whoever reads
// the dead letters may do so by one of another type; it is there then, and busy, and
// that is all that is wanted.
func keeping(topic, keeper string) client.ConsumerOptions {
	none := uint(0)
	return client.ConsumerOptions{
		Topic: topic, SubscriptionName: keeper, Type: client.Shared,
		SubscriptionInitialPosition: client.SubscriptionPositionEarliest, ReceiverQueueSize: 1, MaxReconnectToBroker: &none,
	}
}

// options are those of the library for one topic of this session.
func (c *consumer) options(topic string) client.ConsumerOptions {
	s := c.set
	none, exact := uint(0), int64(0)
	from := client.SubscriptionPositionEarliest
	if s.FromNow {
		from = client.SubscriptionPositionLatest
	}
	return client.ConsumerOptions{
		Topic:                          topic,
		SubscriptionName:               s.SubscriptionName,
		Type:                           s.Type.native(),
		SubscriptionInitialPosition:    from,
		Name:                           c.name,
		MessageChannel:                 c.messages,
		ReceiverQueueSize:              s.receiverQueue(),
		NackRedeliveryDelay:            s.retryDelay(),
		NackPrecisionBit:               &exact, // else a retry comes too early
		AckWithResponse:                true,
		EnableBatchIndexAcknowledgment: true,
		ExpireTimeOfIncompleteChunk:    cmp.Or(s.ChunkWait, defaultChunkWait),
		// By default the library has an encrypted message come again for ever, in silence.
		Decryption:           &client.MessageDecryptionInfo{ConsumerCryptoFailureAction: crypto.ConsumerCryptoFailureActionConsume},
		MaxReconnectToBroker: &none,
		BackOffPolicyFunc:    func() backoff.Policy { return c.reconnect() },
		Interceptors:         client.ConsumerInterceptors{c},
		AutoDiscoveryPeriod:  never, // of partitions
		EventListener:        c,
	}
}

// never is as long as the library's tickers take.
const never = time.Duration(1 << 62)

// subscribe is the library's Subscribe, which takes no context: it runs aside, after first,
// and what comes too late is closed.
func (s *settings) subscribe(ctx context.Context, options client.ConsumerOptions, first func() error) (client.Consumer, error) {
	type result struct {
		native client.Consumer
		err    error
	}
	results := make(chan result)
	started := s.Broker.call(func() {
		err := first()
		var native client.Consumer
		if err == nil {
			native, err = s.Broker.consuming.Subscribe(options)
		}
		select {
		case results <- result{native, err}:
		case <-ctx.Done():
			if err == nil {
				native.Close()
			}
		}
	})
	if !started {
		return nil, closedError()
	}
	select {
	case r := <-results:
		return r.native, r.err
	case <-ctx.Done():
		return nil, fmt.Errorf("the broker did not answer in time: %w", context.Cause(ctx))
	}
}

// openError says what an error of opening means: a ConfigError where another try cannot
// help. Once a session was open nothing is beyond help: a topic may be made again,
// a right granted again.
func (s *settings) openError(setting string, err error) error {
	var config *settle.ConfigError
	if errors.As(err, &config) {
		return err
	}
	if !s.seen() {
		right := toConsume
		if setting == "DeadLetter" || setting == "CountedCopies" {
			right = toProduce
		}
		if reason, fix := final(err, right); reason != "" {
			return &settle.ConfigError{Source: s.Name(), Setting: setting, Reason: reason, Fix: fix, Err: err}
		}
	}
	return fmt.Errorf("%s: %w", s.Name(), err)
}
