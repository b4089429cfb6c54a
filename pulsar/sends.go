package pulsar

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	client "github.com/apache/pulsar-client-go/pulsar"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/settlemq/settle"
)

// This file hands messages to a sender's producer, waits for their answers and
// says what these mean.

// sends are messages that were handed to the library together, and their answers.
type sends struct {
	done chan struct{} // closed when all have an answer
	at   time.Time
	by   *incarnation // nil: there was none

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

// set sets the answer of one, its first. It reports whether that was the last of all.
func (c *sends) set(i int, err error) (last bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.answered[i] {
		return false
	}
	c.answered[i], c.errs[i] = true, err
	if c.left--; c.left == 0 {
		close(c.done)
	}
	return c.left == 0
}

// fail answers all that have no answer.
func (c *sends) fail(err error) {
	for i := range c.answered {
		c.set(i, err)
	}
}

// wait waits until all have an answer, and reports false when ctx ended before.
func (c *sends) wait(ctx context.Context) bool {
	select {
	case <-c.done:
	case <-ctx.Done():
		select {
		case <-c.done: // both have come; what has an answer must not be kept as if it had none
		default:
			return false
		}
	}
	return true
}

// silent reports whether some have had no answer for so long.
func (c *sends) silent(most time.Duration) bool {
	select {
	case <-c.done:
		return false
	default:
		return time.Since(c.at) > most
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
	by, err := s.ready(ctx)
	switch {
	case err != nil:
		c.fail(err)
		return c
	case !s.enter(by, c):
		c.fail(s.sendError(errUnsent))
		return c
	}
	defer by.sending.Done()
	c.by = by
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(by.ctx, func() { cancel(errUnsent) })()
	for i, m := range msgs {
		if err := s.refusal(m); err != nil {
			if c.set(i, err) {
				s.leave(by, c)
			}
			continue
		}
		by.producer.SendAsync(ctx, m, func(_ client.MessageID, _ *client.ProducerMessage, err error) {
			if err != nil {
				if s.chunks(m) && ctx.Err() != nil {
					// The library keeps the room in its window that the chunks had.
					s.broker.start(func() { s.discard(by) })
				}
				err = s.sendError(orEnd(ctx, err))
			}
			if c.set(i, err) {
				s.leave(by, c)
			}
		})
	}
	return c
}

// orEnd is the cause of ctx's end where that is what err tells.
func orEnd(ctx context.Context, err error) error {
	if ctx.Err() != nil && (errors.Is(err, client.ErrContextExpired) || errors.Is(err, ctx.Err())) {
		return fmt.Errorf("no room to send in time: %w", context.Cause(ctx))
	}
	return err
}

// reconnectPause is between two attempts to go on after a connection broke.
const reconnectPause = 100 * time.Millisecond

// deliver sends messages and waits for their answers until ctx ends. What had
// none when the connection broke is sent again, in order, as soon as there is another. That the
// topic cannot be reached is an error at once where it never was.
func (s *sender) deliver(ctx context.Context, msgs []*client.ProducerMessage) []error {
	errs := make([]error, len(msgs))
	at := make([]int, len(msgs)) // of msgs in errs
	for i := range at {
		at[i] = i
	}
	for broken := s.began(); ; {
		sent := s.send(ctx, msgs)
		if !sent.wait(ctx) {
			s.unanswered(sent)
		}
		left := 0
		for j, i := range at {
			answered, err := sent.answer(j)
			if !answered {
				err = fmt.Errorf("pulsar: topic %q: not confirmed in time: %w", s.topic(), context.Cause(ctx))
			}
			if wasRefused(err) {
				err = s.one(ctx, msgs[j])
			}
			errs[i] = err
			broken = broken || errors.Is(err, errUnsent)
			if broken && passing(err) {
				msgs[left], at[left] = msgs[j], i
				left++
			}
		}
		if msgs, at = msgs[:left], at[:left]; left == 0 || !pause(ctx, reconnectPause) {
			return errs
		}
	}
}

// passing reports whether an error may be gone once there is a connection again.
func passing(err error) bool {
	if err == nil || ofMessage(err) || errors.Is(err, settle.ErrBlocked) {
		return false
	}
	var config *settle.ConfigError
	reason, _ := final(err, toProduce)
	return reason == "" && !errors.As(err, &config)
}

// pause waits, and reports false when ctx ended before.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// refusal is why a message is not handed to the library: where that is too
// large for a batch, it forgets other messages; where it sends chunks beside large properties, these are
// larger than a storage node need take, which then has the broker write one for ever.
func (s *sender) refusal(m *client.ProducerMessage) error {
	most := int(s.broker.mostMessage.Load())
	meta := metaSize(m)
	switch {
	case len(m.Payload)+meta <= most:
		return nil
	case !s.options.DisableBatching:
	case s.options.EnableChunking && most > mostChunk && meta > most-mostChunk:
	default:
		return nil // the library knows
	}
	return s.sendError(fmt.Errorf("%w: its properties and keys have %d bytes, its body %d, and the broker takes %d", client.ErrMessageTooLarge, meta, len(m.Payload), most))
}

// metaSize is how much a message has beside its body, in bytes, or a little more.
func metaSize(m *client.ProducerMessage) int {
	size := 256 + len(m.Key) + len(m.OrderingKey)
	for name, value := range m.Properties {
		size += 1 + protowire.SizeBytes(2+protowire.SizeBytes(len(name))+protowire.SizeBytes(len(value)))
	}
	return size
}

// chunks reports whether a message is sent in chunks.
func (s *sender) chunks(m *client.ProducerMessage) bool {
	return s.options.EnableChunking && len(m.Payload) > mostChunk
}

// ofMessage reports whether a send's error is about the message and not about
// the topic.
func ofMessage(err error) bool {
	for _, e := range []error{client.ErrMessageTooLarge, client.ErrMetaTooLarge, client.ErrInvalidMessage, client.ErrFailAddToBatch} {
		if errors.Is(err, e) {
			return true
		}
	}
	var refused *refusedError
	return errors.As(err, &refused) && refused.alone || strings.Contains(err.Error(), tooLarge)
}

// tooLarge is what the library says of a message, or a batch, whose body and
// properties together are larger than the broker takes.
const tooLarge = "exceeds MaxMessageSize"

// sendError says what became of a send, as publishers and sources tell it.
func (s *sender) sendError(err error) error {
	if errors.Is(err, client.ErrProducerClosed) {
		err = errUnsent
	}
	return fmt.Errorf("pulsar: topic %q: %w", s.topic(), err)
}
