package pulsar

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	client "github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/backoff"

	"github.com/settlemq/settle"
)

const (
	leastPause = 50 * time.Millisecond // before the library connects again
	mostPause  = 500 * time.Millisecond
)

// mostChunk is how large a chunk of a message is, in bytes. The library makes them as large as the broker's limit, 5 MiB;
// a storage node that takes no frame above that, its own default, then has the broker write the same chunk for ever.
const mostChunk = 4 << 20

// pauses implements the library's backoff.Policy. The library's own goes up to a minute.
type pauses struct{ next time.Duration }

func (p *pauses) Next() time.Duration {
	p.next = min(max(2*p.next, leastPause), mostPause)
	return p.next
}

func (p *pauses) IsMaxBackoffReached() bool { return p.next >= mostPause }
func (p *pauses) Reset()                    { p.next = 0 }

// sender sends to one topic. Its producer is made when it is first needed, and
// another when the first is of no use any more: the library closes a producer for good
// when its topic is gone or terminated, and one whose sends are never answered
// is given up.
//
// The library's own timeout of a send is off, because it would leave a goroutine
// behind; each caller has a deadline instead. A send that was given up then is still the
// library's, and may arrive later.
type sender struct {
	broker  *Broker
	options client.ProducerOptions

	mu       sync.Mutex // guards what follows
	closed   bool
	producer client.Producer
	making   chan struct{} // closes when the attempt under way ends; nil: none
	err      error         // of the last attempt
	silent   time.Time     // since when sends have no answer; zero: they have
}

func newSender(b *Broker, options client.ProducerOptions) *sender {
	options.SendTimeout = -1
	options.BackOffPolicyFunc = func() backoff.Policy { return new(pauses) }
	return &sender{broker: b, options: options}
}

func (s *sender) topic() string { return s.options.Topic }

// ready returns the producer, made if need be. It waits until ctx ends.
func (s *sender) ready(ctx context.Context) (client.Producer, error) {
	s.mu.Lock()
	if p := s.producer; p != nil {
		s.mu.Unlock()
		return p, nil
	}
	making := s.making
	if making == nil {
		making = make(chan struct{})
		if s.closed || !s.broker.start(func() { s.make(making) }) {
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
	if s.producer == nil {
		return nil, s.err
	}
	return s.producer, nil
}

// make makes the producer. It is not bound to one caller's deadline: the next
// finds what it made.
func (s *sender) make(done chan struct{}) {
	var p client.Producer
	err := s.broker.reach(s.broker.ctx)
	if err == nil {
		p, err = s.broker.producing.CreateProducer(s.options)
	}
	s.mu.Lock()
	s.making = nil
	late := s.closed && p != nil
	if err != nil {
		s.err = fmt.Errorf("pulsar: topic %q: no producer: %w", s.topic(), err)
	} else if !late {
		s.producer, s.silent = p, time.Time{}
	}
	s.mu.Unlock()
	close(done)
	if late {
		p.Close()
	}
}

// discard has the next send make another producer, and closes p: what it has
// not sent is answered with an error.
func (s *sender) discard(p client.Producer) {
	s.mu.Lock()
	mine := p != nil && s.producer == p
	if mine {
		s.producer, s.silent = nil, time.Time{}
	}
	s.mu.Unlock()
	if mine {
		s.broker.start(p.Close)
	}
}

// close closes the producer; the broker is closing.
func (s *sender) close() {
	s.mu.Lock()
	s.closed = true
	p := s.producer
	s.producer, s.err = nil, closedError()
	s.mu.Unlock()
	if p != nil {
		p.Close()
	}
}

// sends are messages that were handed to the library together, and their answers.
type sends struct {
	done     chan struct{} // closed when all have an answer
	at       time.Time
	producer client.Producer // nil: there was none

	mu       sync.Mutex // guards what follows
	answered []bool
	errs     []error
	left     int
}

// answer is the state of one of them.
func (c *sends) answer(i int) (answered bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.answered[i], c.errs[i]
}

func (c *sends) set(i int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.answered[i] {
		return
	}
	c.answered[i], c.errs[i] = true, err
	if c.left--; c.left == 0 {
		close(c.done)
	}
}

// wait waits until all have an answer, and reports false when ctx ended before.
func (c *sends) wait(ctx context.Context) bool {
	select {
	case <-c.done:
		return true
	case <-ctx.Done():
		return false
	}
}

// send hands messages to the library, in order. It waits for a producer and for
// room in its window until ctx ends, and not for the answers.
func (s *sender) send(ctx context.Context, msgs []*client.ProducerMessage) *sends {
	c := &sends{
		done: make(chan struct{}), at: time.Now(),
		answered: make([]bool, len(msgs)), errs: make([]error, len(msgs)), left: len(msgs),
	}
	if len(msgs) == 0 {
		close(c.done)
		return c
	}
	s.dropSilent()
	p, err := s.ready(ctx)
	c.producer = p
	for i, m := range msgs {
		if err != nil {
			c.set(i, err)
			continue
		}
		s.hand(ctx, p, m, func(err error) { c.set(i, err) })
	}
	return c
}

// hand hands one message to the library. The library closes a producer while others use it, and
// panics then.
func (s *sender) hand(ctx context.Context, p client.Producer, m *client.ProducerMessage, answer func(error)) {
	defer func() {
		if v := recover(); v != nil {
			s.discard(p)
			answer(fmt.Errorf("pulsar: topic %q: the producer closed meanwhile: %v", s.topic(), v))
		}
	}()
	p.SendAsync(ctx, m, func(_ client.MessageID, _ *client.ProducerMessage, err error) {
		switch {
		case err == nil:
			s.heard()
		case ends(err):
			s.discard(p)
			fallthrough
		default:
			err = s.sendError(ctx, err)
		}
		answer(err)
	})
}

// heard says that the broker answers.
func (s *sender) heard() {
	s.mu.Lock()
	s.silent = time.Time{}
	s.mu.Unlock()
}

// unanswered says that a caller has given up on an answer.
func (s *sender) unanswered() {
	s.mu.Lock()
	if s.silent.IsZero() {
		s.silent = time.Now()
	}
	s.mu.Unlock()
}

// dropSilent discards a producer that has not answered for the operation
// timeout after a caller gave up on it: a topic that was terminated
// never answers, and what waits in the producer holds up all that follows.
func (s *sender) dropSilent() {
	s.mu.Lock()
	p := s.producer
	silent := p != nil && !s.silent.IsZero() && time.Since(s.silent) > s.broker.config.OperationTimeout
	s.mu.Unlock()
	if silent {
		s.discard(p)
	}
}

// ends reports whether a send's error is the end of its producer.
func ends(err error) bool {
	for _, end := range []error{client.ErrProducerClosed, client.ErrTopicNotfound, client.ErrTopicTerminated, client.ErrProducerFenced} {
		if errors.Is(err, end) {
			return true
		}
	}
	return false
}

// ofMessage reports whether a send's error is about the message and not about
// the topic.
func ofMessage(err error) bool {
	for _, e := range []error{client.ErrMessageTooLarge, client.ErrMetaTooLarge, client.ErrInvalidMessage, client.ErrFailAddToBatch} {
		if errors.Is(err, e) {
			return true
		}
	}
	return strings.Contains(err.Error(), tooLarge)
}

// tooLarge is what the library says of a message, or a batch, whose body and
// properties together are larger than the broker takes.
const tooLarge = "exceeds MaxMessageSize"

// sendError says what became of a send, as publishers and sources tell it.
func (s *sender) sendError(ctx context.Context, err error) error {
	wrap := func(err error) error { return fmt.Errorf("pulsar: topic %q: %w", s.topic(), err) }
	switch {
	case ctx.Err() != nil && errors.Is(err, client.ErrContextExpired):
		return wrap(fmt.Errorf("no room to send in time: %w", context.Cause(ctx)))
	case errors.Is(err, client.ErrProducerBlockedQuotaExceeded):
		return wrap(fmt.Errorf("%w: %w", settle.ErrBlocked, err))
	}
	return wrap(err)
}
