package pulsar

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/settlemq/settle"
)

// This file makes verdicts true: what ends is acknowledged, in one round trip
// for the whole group, what failed is given back, and what needs a copy waits for that first.

// errNoDeadLetter is told once a session.
var errNoDeadLetter = errors.New("a message is dead-lettered and there is no DeadLetter: it is dropped")

// settling is the work of one Settle call.
type settling struct {
	batch    []settle.Settlement
	acked    []int       // into batch: to be acknowledged
	acks     acks        // how; index for index
	copies   []int       // into batch: to be copied first
	failed   []*delivery // to come again, counted
	released []*delivery // to come again, not counted
}

var settlings = sync.Pool{New: func() any { return new(settling) }}

func (s *settling) recycle() {
	clear(s.acks[:cap(s.acks)])
	clear(s.failed[:cap(s.failed)])
	clear(s.released[:cap(s.released)])
	*s = settling{acked: s.acked[:0], acks: s.acks[:0], copies: s.copies[:0], failed: s.failed[:0], released: s.released[:0]}
	settlings.Put(s)
}

// delivery is our record of a settlement's delivery.
func (s *settling) delivery(i int) *delivery { return s.batch[i].Delivery.Native.(*delivery) }

// ack adds a delivery in hand to what is to be acknowledged.
func (s *settling) ack(i int) {
	d := s.delivery(i)
	s.acked = append(s.acked, i)
	s.acks = append(s.acks, toAck{id: d.native.ID(), from: d.from.native, run: d.run, again: d.tried})
	d.tried = true
}

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
	c.giveBack(s.failed, true)
	c.giveBack(s.released, false)
	c.acknowledge(ctx, s)
	if len(s.copies) > 0 {
		c.copier.copy(ctx, s)
		c.acknowledge(ctx, s)
	}
}

// claim takes every delivery of the batch in hand and divides them by what is
// to be done.
func (c *consumer) claim(s *settling) {
	nowhere := -1 // a dead letter without a place to go
	c.work.mu.Lock()
	for i := range s.batch {
		b := &s.batch[i]
		d, ok := b.Delivery.Native.(*delivery)
		if !ok || d.from.owner != c {
			b.Err = fmt.Errorf("pulsar: %w: it came from another", settle.ErrSessionLost)
			continue
		}
		if b.Err = c.work.claim(d); b.Err != nil {
			continue
		}
		switch v := b.Verdict; {
		case v.Action == settle.ActionAck, v.Action == settle.ActionDrop:
			s.ack(i)
		case v.Action == settle.ActionRelease && d.isCopied():
			s.ack(i) // it was to be acknowledged, and that was refused before
		case v.Action == settle.ActionDeadLetter && c.set.deadLetter == "":
			nowhere = i
			s.ack(i)
		case v.Action == settle.ActionDeadLetter, v.Action == settle.ActionRetry && c.set.CountedCopies:
			s.copies = append(s.copies, i)
		case v.Action == settle.ActionRetry:
			c.work.leave(d)
			s.failed = append(s.failed, d)
		case v.Action == settle.ActionRelease:
			c.work.leave(d)
			if !c.isStopping() { // else it goes back with the end of the session, which costs no attempt
				s.released = append(s.released, d)
			}
		default:
			c.work.putBack(d)
			b.Err = settle.Permanent(fmt.Errorf("pulsar: there is no %v", v.Action))
		}
	}
	c.work.mu.Unlock()
	if nowhere >= 0 {
		c.lone.Do(func() {
			c.notify(settle.Notice{Kind: settle.NoticeWeakened, Delivery: s.batch[nowhere].Delivery, Err: errNoDeadLetter})
		})
	}
}

// acknowledge acknowledges s.acks together and sets their errors.
func (c *consumer) acknowledge(ctx context.Context, s *settling) {
	if len(s.acked) == 0 {
		return
	}
	errs := c.ack(ctx, s.acks)
	c.work.mu.Lock()
	for j, i := range s.acked {
		err := errs.of(s.acks[j].id)
		s.batch[i].Err = err
		if d := s.delivery(i); err == nil {
			c.work.leave(d)
		} else {
			c.work.putBack(d)
		}
	}
	c.work.mu.Unlock()
	s.acked, s.acks = s.acked[:0], s.acks[:0]
}
