package pulsar

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	client "github.com/apache/pulsar-client-go/pulsar"
)

// This file is about messages that the broker refuses one by one: by the policy of
// their topic, such as its largest message or longest delay.
//
// The library tells of a refusal in its log and nowhere else, and does not say
// whose it is; the producer of the message then hears nothing any more, of no message.
// So when there is a refusal, each producer is watched that has sends without an
// answer. Where these stay so it is given up, and what it had not confirmed is sent by
// another, alone, one message after the other: what is refused there is refused for good.
// Should the library's words change, such a producer is given up after the operation timeout, and no more is known.

// refusedSend is the library's line about a refusal; its arguments are the
// broker's word and sentence.
const refusedSend = "Received send error from server: [%v] : [%s]"

// refusalWait is how long a producer may leave without an answer what it had
// before a refusal.
const refusalWait = 300 * time.Millisecond

// refusedError is the broker's refusal of a message; one of several, unless alone.
type refusedError struct {
	answer error // as the library writes the broker's answers
	alone  bool  // it is this message that was refused
}

func (e *refusedError) Error() string { return "the broker refuses it: " + e.answer.Error() }
func (e *refusedError) Unwrap() error { return e.answer }

// wasRefused reports whether a message is among those of which one was refused.
func wasRefused(err error) bool {
	var refused *refusedError
	return errors.As(err, &refused) && !refused.alone
}

// refused tells every producer of a refusal.
func (b *Broker) refused(word, sentence any) {
	err := fmt.Errorf("server error: %v: %v", word, sentence)
	b.mu.Lock()
	senders, pubs := slices.Collect(maps.Values(b.senders)), slices.Collect(maps.Keys(b.pubs))
	b.mu.Unlock()
	for _, s := range senders {
		s.suspect(err)
	}
	for _, p := range pubs {
		p.suspect(err)
	}
}

// suspect gives the producer up unless it answers what it has.
func (s *sender) suspect(answer error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.apart != nil {
		s.apart.suspect(answer)
	}
	i := s.now
	if i == nil || len(i.open) == 0 {
		return
	}
	asked := maps.Clone(i.open)
	time.AfterFunc(refusalWait, func() {
		s.mu.Lock()
		silent := false
		for c := range asked {
			if _, open := i.open[c]; open {
				silent = true
			}
		}
		if silent {
			i.refused = &refusedError{answer: answer}
		}
		s.mu.Unlock()
		if silent {
			s.discard(i)
		}
	})
}

// one sends a message of which it is not known whether it was refused, with no
// other beside it, and waits for the answer until ctx ends.
func (s *sender) one(ctx context.Context, m *client.ProducerMessage) error {
	apart := s.aside()
	select {
	case apart.turnOfOne <- struct{}{}:
		defer func() { <-apart.turnOfOne }()
	case <-ctx.Done():
		return fmt.Errorf("pulsar: topic %q: no turn in time: %w", s.topic(), context.Cause(ctx))
	}
	sent := apart.send(ctx, []*client.ProducerMessage{m})
	if !sent.wait(ctx) {
		apart.unanswered(sent)
		return fmt.Errorf("pulsar: topic %q: not confirmed in time: %w", s.topic(), context.Cause(ctx))
	}
	_, err := sent.answer(0)
	var refused *refusedError
	if errors.As(err, &refused) {
		return s.sendError(&refusedError{answer: refused.answer, alone: true})
	}
	return err
}

// aside is a sender to the same topic for one message at a time.
func (s *sender) aside() *sender {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.apart == nil {
		options := s.options
		options.DisableBatching, options.BatchingMaxMessages, options.BatcherBuilderType = true, 0, client.DefaultBatchBuilder
		s.apart = newSender(s.broker, options)
		s.apart.turnOfOne = make(chan struct{}, 1)
		s.apart.closed = s.closed
	}
	return s.apart
}
