package pulsar

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	client "github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/backoff"
)

// mostChunk is how large a chunk of a message is, in bytes. The library makes them as large as the broker's limit, 5 MiB;
// a storage node that takes no frame above that, its own default, then has the broker write the same chunk for ever.
const mostChunk = 4 << 20

// sender sends to one topic. Its producer is made when it is first needed, and
// another when that is of no use any more.
//
// The library would connect a producer again by itself. That is off, as it is
// for consumers: a producer whose connection or topic went is closed, which
// answers what it had not sent with errUnsent, and whoever wants that sent sends it again. So a
// send that was given up does not arrive hours later, and a close joins all that is under way.
//
// The library's own timeout of a send is off too, because it would leave a
// goroutine behind; each caller has a deadline instead.
type sender struct {
	broker  *Broker
	options client.ProducerOptions
	turn    atomic.Uint32 // of the partition that takes the next message without a key

	mu     sync.Mutex // guards what follows
	closed bool
	now    *incarnation  // nil: there is none
	making chan struct{} // closes when the attempt under way ends; nil: none
	err    error         // of the last attempt
	made   bool          // there was one before
	// keepers are the subscriptions that keep what the topic is sent: they are
	// made again with each producer, as the topic may have been deleted meanwhile.
	keepers map[string]struct{}
	apart   *sender // for one message at a time; nil: never needed
	// turnOfOne is full while a message has its turn: where this is a sender apart.
	turnOfOne chan struct{}
}

// errUnsent is the answer of what was handed to a producer that has gone.
var errUnsent = errors.New("the connection is gone, or the broker closed the producer, before it was confirmed")

// incarnation is one producer of the library.
type incarnation struct {
	producer client.Producer
	ctx      context.Context // ends when it is closed
	cancel   context.CancelFunc
	sending  sync.WaitGroup // calls of its SendAsync: the library does not bear a Close beside them

	// The sender's lock guards what follows.
	cut     bool                // its connection or topic went
	gone    bool                // it is closed, or about to be
	open    map[*sends]struct{} // what was sent by it and has no answer yet
	given   []*sends            // those of them that a caller has given up on, and perhaps some that have answers now
	refused error               // why it hears nothing any more, where the broker has refused a message; else nil
}

func newSender(b *Broker, options client.ProducerOptions) *sender {
	none := uint(0)
	options.SendTimeout, options.MaxReconnectToBroker = -1, &none
	s := &sender{broker: b, options: options}
	if options.DisableBatching {
		s.options.MessageRouter = s.route
	}
	return s
}

// route picks the partition of a message that is published alone, as the library
// does: its own way races where several goroutines send.
func (s *sender) route(m *client.ProducerMessage, topic client.TopicMetadata) int {
	key := cmp.Or(m.OrderingKey, m.Key)
	if key == "" {
		return int(s.turn.Add(1) % topic.NumPartitions())
	}
	var hash uint32 // that of Java's String.hashCode, which clients of every language take by default
	for i := range len(key) {
		hash = 31*hash + uint32(key[i])
	}
	return int(hash % topic.NumPartitions())
}

func (s *sender) topic() string { return s.options.Topic }

// ready returns the producer, made if need be. It waits until ctx ends.
func (s *sender) ready(ctx context.Context) (*incarnation, error) {
	s.mu.Lock()
	if now := s.now; now != nil {
		s.mu.Unlock()
		return now, nil
	}
	making := s.making
	if making == nil {
		making = make(chan struct{})
		if s.closed || !s.broker.call(func() { s.make(making) }) {
			s.mu.Unlock()
			return nil, closedError()
		}
		s.making = making
	}
	s.mu.Unlock()
	select {
	case <-making:
	case <-ctx.Done():
		return nil, fmt.Errorf("pulsar: topic %q: no producer in time: %w", s.topic(), context.Cause(ctx))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.now == nil {
		return nil, s.err
	}
	return s.now, nil
}

// make makes the producer. It is not bound to one caller's deadline: the next
// finds what it made.
func (s *sender) make(done chan struct{}) {
	made := &incarnation{open: make(map[*sends]struct{})}
	made.ctx, made.cancel = context.WithCancel(context.Background())
	options := s.options
	options.BackOffPolicyFunc = func() backoff.Policy { // where the library would connect again
		s.cutOff(made)
		return noBackoff{}
	}
	err := s.broker.reach(s.broker.ctx)
	if err == nil {
		err = s.keep()
	}
	if err == nil {
		made.producer, err = s.broker.producing.CreateProducer(options)
	}
	s.mu.Lock()
	s.making = nil
	late := err == nil && (s.closed || made.cut)
	switch {
	case err != nil:
		s.err = fmt.Errorf("pulsar: topic %q: no producer: %w", s.topic(), blockedOr(err))
	case late:
		s.err = fmt.Errorf("pulsar: topic %q: no producer: %w", s.topic(), errUnsent)
	default:
		s.now, s.made = made, true
	}
	s.mu.Unlock()
	close(done)
	if late {
		s.shut(made)
	}
}

// keptBy notes a subscription that keeps what the topic is sent.
func (s *sender) keptBy(keeper string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.keepers == nil {
		s.keepers = make(map[string]struct{})
	}
	s.keepers[keeper] = struct{}{}
}

// keep makes the subscriptions that keep what the topic is sent.
func (s *sender) keep() error {
	s.mu.Lock()
	keepers := slices.Collect(maps.Keys(s.keepers))
	s.mu.Unlock()
	for _, keeper := range keepers {
		native, err := s.broker.consuming.Subscribe(keeping(s.topic(), keeper))
		switch {
		case err == nil:
			native.Close()
		case !busy(err):
			return fmt.Errorf("its subscription %q: %w", keeper, err)
		}
	}
	return nil
}

// cutOff closes a producer whose connection or topic went.
func (s *sender) cutOff(i *incarnation) {
	s.mu.Lock()
	i.cut = true
	s.mu.Unlock()
	s.discard(i)
}

// discard has the next send make another producer, and closes this one: what it has
// not sent is answered with errUnsent.
func (s *sender) discard(i *incarnation) {
	s.mu.Lock()
	mine := i != nil && s.now == i
	if mine {
		s.now, s.err = nil, s.sendError(errUnsent)
	}
	s.mu.Unlock()
	if mine && !s.broker.start(func() { s.shut(i) }) {
		s.shut(i) // the broker is closing, and does not know of it any more
	}
}

// shut closes a producer. What has no answer by then will have none that can be
// relied on: it is told so before the library's Close, which may wait for a
// broker that does not answer.
func (s *sender) shut(i *incarnation) {
	s.mu.Lock()
	i.gone = true
	s.mu.Unlock()
	i.cancel()
	i.sending.Wait()
	s.mu.Lock()
	left, why := i.open, cmp.Or(i.refused, errUnsent)
	i.open = nil
	s.mu.Unlock()
	for c := range left {
		c.fail(s.sendError(why))
	}
	i.producer.Close()
}

// enter notes that sends go to i, which is not closed before exit is called. It
// reports false where it is closed already.
func (s *sender) enter(i *incarnation, c *sends) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i.gone {
		return false
	}
	i.open[c] = struct{}{}
	i.sending.Add(1)
	return true
}

// leave says that all of the sends have an answer.
func (s *sender) leave(i *incarnation, c *sends) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(i.open, c)
}

// close closes the producer; the broker is closing.
func (s *sender) close() {
	s.mu.Lock()
	s.closed = true
	now, apart := s.now, s.apart
	s.now, s.err = nil, closedError()
	s.mu.Unlock()
	if apart != nil {
		apart.close()
	}
	if now != nil {
		s.shut(now)
	}
}

// began reports whether there was a producer before.
func (s *sender) began() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.made
}

// unanswered says that a caller has given up on answers.
func (s *sender) unanswered(c *sends) {
	if c.by == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	c.by.given = append(c.by.given, c)
}

// dropSilent discards a producer that has not answered for the operation
// timeout what a caller gave up on: what waits in it holds up all that follows.
func (s *sender) dropSilent() {
	s.mu.Lock()
	now, silent := s.now, false
	for now != nil && len(now.given) > 0 && !silent {
		if _, open := now.open[now.given[0]]; !open {
			now.given = now.given[1:]
			continue
		}
		if silent = time.Since(now.given[0].at) > s.broker.config.OperationTimeout; !silent {
			break
		}
	}
	s.mu.Unlock()
	if silent {
		s.discard(now)
	}
}

// noBackoff implements the library's backoff.Policy where it is not to connect again.
type noBackoff struct{}

func (noBackoff) Next() time.Duration       { return 0 }
func (noBackoff) IsMaxBackoffReached() bool { return true }
func (noBackoff) Reset()                    {}
