package pulsar

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	client "github.com/apache/pulsar-client-go/pulsar"

	"github.com/settlemq/settle"
)

// This file makes verdicts true: what ends is acknowledged, in one round trip
// for the whole group, what failed is given back, and what needs a copy waits for that first.

// errNoDeadLetter is told once a session.
var errNoDeadLetter = errors.New("a message is dead-lettered and there is no DeadLetter: it is dropped")

// settling is the work of one Settle call. Its parts go index for index with one another.
type settling struct {
	batch  []settle.Settlement
	acks   []int              // into batch: to be acknowledged
	ids    []client.MessageID // by which
	rounds []int              // of which
	copies []int              // into batch: to be copied first
	nacks  []client.MessageID
	done   []client.MessageID // copies to acknowledge too
}

var settlings = sync.Pool{New: func() any { return new(settling) }}

func (s *settling) recycle() {
	clear(s.ids[:cap(s.ids)])
	clear(s.nacks)
	clear(s.done)
	s.batch, s.acks, s.ids, s.rounds, s.copies, s.nacks, s.done = nil, s.acks[:0], s.ids[:0], s.rounds[:0], s.copies[:0], s.nacks[:0], s.done[:0]
	settlings.Put(s)
}

// delivery is our record of a settlement's delivery.
func (s *settling) delivery(i int) *delivery { return s.batch[i].Delivery.Native.(*delivery) }

// Settle implements [settle.Consumer].
func (c *consumer) Settle(ctx context.Context, batch []settle.Settlement) {
	if c.isLost() {
		for i := range batch {
			batch[i].Err = c.why
		}
		return
	}
	s := settlings.Get().(*settling)
	defer s.recycle()
	s.batch = batch
	c.claim(s)
	c.nack(s.nacks)
	c.acknowledge(ctx, s)
	if len(s.copies) > 0 {
		c.copier.copy(ctx, s)
		c.acknowledge(ctx, s)
	}
}

// claim takes every delivery of the batch in hand and divides them by what is
// to be done. What is given back is done with here.
func (c *consumer) claim(s *settling) {
	lone := -1 // a dead letter without a place to go
	c.work.mu.Lock()
	for i := range s.batch {
		b := &s.batch[i]
		d, ok := b.Delivery.Native.(*delivery)
		if !ok || d.owner != c {
			b.Err = fmt.Errorf("pulsar: %w: it came from another", settle.ErrSessionLost)
			continue
		}
		if b.Err = c.work.claim(d); b.Err != nil {
			continue
		}
		var nack client.MessageID
		switch v := b.Verdict; v.Action {
		case settle.ActionAck, settle.ActionDrop:
			s.ack(i, d)
		case settle.ActionDeadLetter:
			if c.set.deadLetter != "" {
				s.copies = append(s.copies, i)
				break
			}
			lone = i
			s.ack(i, d)
		case settle.ActionRetry:
			if c.set.CountedCopies {
				s.copies = append(s.copies, i)
				break
			}
			nack = c.work.giveBack(d)
		case settle.ActionRelease:
			nack = c.work.release(d)
		default:
			d.state = inWork
			b.Err = settle.Permanent(fmt.Errorf("pulsar: there is no %v", v.Action))
		}
		if nack != nil {
			s.nacks = append(s.nacks, nack)
		}
	}
	c.work.mu.Unlock()
	if lone >= 0 {
		c.lone.Do(func() {
			c.notify(settle.Notice{Kind: settle.NoticeWeakened, Delivery: s.batch[lone].Delivery, Err: errNoDeadLetter})
		})
	}
}

// ack adds a delivery in hand to what is to be acknowledged. The caller holds
// the lock of work.
func (s *settling) ack(i int, d *delivery) {
	s.acks, s.ids, s.rounds = append(s.acks, i), append(s.ids, d.id), append(s.rounds, d.round)
}

// acknowledge acknowledges s.acks together and sets their errors.
func (c *consumer) acknowledge(ctx context.Context, s *settling) {
	if len(s.acks) == 0 {
		return
	}
	s.nacks, s.done = s.nacks[:0], s.done[:0]
	errs := c.ack(ctx, s.ids, s.rounds)
	c.work.mu.Lock()
	for j, i := range s.acks {
		d := s.delivery(i)
		err := errs.of(s.ids[j])
		s.batch[i].Err = err
		if err != nil {
			d.state = inWork
			continue
		}
		nack, done := c.work.acknowledged(d, s.ids[j])
		if nack != nil {
			s.nacks = append(s.nacks, nack)
		}
		if done != nil {
			s.done = append(s.done, done)
		}
	}
	c.work.mu.Unlock()
	c.nack(s.nacks)
	if len(s.done) > 0 {
		c.ackAside(slices.Clone(s.done))
	}
	clear(s.ids)
	s.acks, s.ids, s.rounds = s.acks[:0], s.ids[:0], s.rounds[:0]
}

// ackErrors are the errors of one group: one for all, or those of single ids.
type ackErrors struct {
	all    error
	single map[client.MessageID]error
}

func (e ackErrors) of(id client.MessageID) error {
	if e.all != nil {
		return e.all
	}
	return e.single[id]
}

// ack has the broker acknowledge the ids and waits for its answer, until ctx
// ends or the session is over. An answer that does not come is the end of the session: what became of
// the messages is not known, and the broker delivers again what is not settled.
func (c *consumer) ack(ctx context.Context, ids []client.MessageID, rounds []int) ackErrors {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return ackErrors{all: c.why}
	}
	c.acking.Add(1)
	c.mu.Unlock()
	answer := make(chan error, 1)
	groups := c.work.apart(slices.Clone(ids), rounds) // the goroutine may outlive this call
	go func() {
		defer c.acking.Done()
		var err error
		for _, group := range groups {
			err = joinAckErrors(err, c.native.AckIDList(group))
		}
		answer <- err
	}()
	select {
	case err := <-answer:
		return c.ackErrors(err)
	case <-c.lost:
	case <-ctx.Done():
		c.lose(errNoAnswer)
	}
	return ackErrors{all: c.why}
}

// ackAside acknowledges what nobody waits for: copies of settled messages, and
// other subscriptions' copies. One that fails comes again.
func (c *consumer) ackAside(ids []client.MessageID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	c.acking.Go(func() {
		for _, id := range ids {
			if err := c.native.AckIDList([]client.MessageID{id}); err != nil {
				c.logger.Debug("pulsar: a copy was not acknowledged and comes again", "error", err)
				return
			}
		}
	})
}

// joinAckErrors makes one error of two answers of the library.
func joinAckErrors(a, b error) error {
	var into, from client.AckError
	if !errors.As(a, &into) || !errors.As(b, &from) {
		return errors.Join(a, b)
	}
	for id, err := range from {
		into[id] = err
	}
	return into
}

// ackErrors reads the library's answer to an acknowledgement.
func (c *consumer) ackErrors(err error) ackErrors {
	var failed client.AckError
	switch {
	case err == nil:
		return ackErrors{}
	case !errors.As(err, &failed):
		c.lose(err)
		return ackErrors{all: c.why}
	}
	errs := ackErrors{single: failed}
	for id, err := range failed {
		if !refused(err) {
			c.lose(fmt.Errorf("an acknowledgement failed: %w", err))
		}
		if c.isLost() {
			err = c.why
		} else {
			err = fmt.Errorf("pulsar: the broker does not acknowledge now: %w", err)
		}
		failed[id] = err
	}
	return errs
}

// refused reports whether an acknowledgement's error is the broker's answer. Any
// other is the end of the connection, or no answer in time.
func refused(err error) bool { return strings.HasPrefix(err.Error(), "ack response error: ") }
