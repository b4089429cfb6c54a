package rabbit

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/settlemq/settle"
)

// settling is the work of one Settle call.
type settling struct {
	batch  []settle.Settlement
	acks   []int            // index in the batch of what is to be acknowledged
	copied []int            // and of what needs a copy first
	group  []*delivery      // of acks; scratch
	done   []*delivery      // whose frame was written
	lone   *settle.Delivery // the session's first dead letter without a place to go; nil: none
}

var settlings = sync.Pool{New: func() any { return new(settling) }}

func (s *settling) recycle() {
	clear(s.group[:cap(s.group)])
	clear(s.done[:cap(s.done)])
	*s = settling{acks: s.acks[:0], copied: s.copied[:0], group: s.group[:0], done: s.done[:0]}
	settlings.Put(s)
}

// delivery is our record of the one at i, which was claimed.
func (s *settling) delivery(i int) *delivery { return s.batch[i].Delivery.Native.(*delivery) }

// Settle implements [settle.Consumer].
func (c *consumer) Settle(ctx context.Context, batch []settle.Settlement) {
	if c.over() {
		err := c.ch.lost()
		for i := range batch {
			batch[i].Err = err
		}
		return
	}
	s := settlings.Get().(*settling)
	defer s.recycle()
	s.batch = batch
	c.frames(s)
	// Told with the cork out: the observer behind it may take its time.
	if s.lone != nil {
		c.notify(settle.Notice{Kind: settle.NoticeWeakened, Delivery: s.lone, Err: errNoDeadLetter})
	}
	if len(s.copied) > 0 {
		c.copy(ctx, s)
		c.leave(s)
		c.acknowledge(s)
		if err := c.ch.conn.raw.uncork(); err != nil {
			s.unwritten(s.copied, err)
		}
	}
}

// unwritten sets the error of those at the given places of the batch that have none: their
// frames may still have been kept back, by this call's cork or another's, when the
// connection broke.
func (s *settling) unwritten(at []int, err error) {
	for _, i := range at {
		if s.batch[i].Err == nil {
			s.batch[i].Err = writeError(err)
		}
	}
}

// frames writes the frame of all that needs no copy.
func (c *consumer) frames(s *settling) {
	if len(s.batch) > 1 {
		c.ch.conn.raw.cork() // to go out in one write
	}
	defer func() {
		if err := c.ch.conn.raw.uncork(); err != nil {
			for i := range s.batch {
				if s.batch[i].Err == nil {
					s.batch[i].Err = writeError(err)
				}
			}
			s.copied = s.copied[:0] // they are lost with the session
		}
	}()
	for i := range s.batch {
		b := &s.batch[i]
		var d *delivery
		if d, b.Err = c.claim(b.Delivery); b.Err != nil {
			continue
		}
		switch f := c.policy.frame(b.Verdict, d); f {
		case frameAck:
			s.acks = append(s.acks, i)
		case frameCopy:
			s.copied = append(s.copied, i)
		default:
			if b.Err = c.write(s, f, b.Verdict, d); b.Err != nil {
				c.open.putBack(d)
				continue
			}
			s.done = append(s.done, d)
		}
	}
	// What was rejected leaves first, so that it stands in no group's way.
	c.leave(s)
	c.acknowledge(s)
}

// claim returns our record of a delivery that this session may settle.
func (c *consumer) claim(from *settle.Delivery) (*delivery, error) {
	d, ok := from.Native.(*delivery)
	if !ok || d.owner != c {
		return nil, fmt.Errorf("rabbit: %w: it came from another", settle.ErrSessionLost)
	}
	if !c.open.claim(d) {
		return nil, fmt.Errorf("rabbit: %w: it is settled already", settle.ErrLeaseLost)
	}
	return d, nil
}

// leave takes out of the open deliveries what was written.
func (c *consumer) leave(s *settling) {
	if len(s.done) > 0 {
		c.open.leave(s.done)
		s.done = s.done[:0]
	}
}

// write writes the frame of one delivery.
func (c *consumer) write(s *settling, f frame, v settle.Verdict, d *delivery) error {
	tag := d.native.DeliveryTag
	var err error
	switch f {
	case frameReject:
		if v.Action == settle.ActionDeadLetter {
			c.lone.Do(func() { s.lone = &d.Delivery })
		}
		err = c.ch.Reject(tag, false)
	case frameRequeue:
		err = c.ch.Reject(tag, true)
	case frameRelease:
		err = c.ch.Nack(tag, false, true)
	default:
		return settle.Permanent(fmt.Errorf("rabbit: there is no %v", v.Action))
	}
	if err != nil {
		return writeError(err)
	}
	return nil
}

var errNoDeadLetter = errors.New("rabbit: a message is dead-lettered and there is no DeadLetter: it follows the queue's own dead-letter exchange if it has one, else it is dropped")

// writeError is what became of a frame that could not be written: the channel
// or its connection is gone, so the server has or will have the delivery again.
func writeError(err error) error { return fmt.Errorf("rabbit: %w: %w", settle.ErrSessionLost, err) }

// acknowledge acknowledges s.acks: those before all that is open with one
// frame, the others each with its own.
func (c *consumer) acknowledge(s *settling) {
	if len(s.acks) == 0 {
		return
	}
	// One call acks at a time, so that each finds the group of the one before
	// it gone and begins at the first open delivery. It waits no longer than
	// for frames that it would wait for in the client, which writes one at a time.
	c.turn <- struct{}{}
	defer func() { <-c.turn }()
	for _, i := range s.acks {
		s.group = append(s.group, s.delivery(i))
	}
	var upTo uint64
	var groupErr error
	if last := c.open.group(s.group); last != nil && !c.each {
		upTo = last.native.DeliveryTag
		groupErr = c.ch.Ack(upTo, true)
	}
	for j, d := range s.group {
		err := groupErr
		if tag := d.native.DeliveryTag; tag > upTo {
			err = c.ch.Ack(tag, false)
		}
		if err != nil {
			s.batch[s.acks[j]].Err = writeError(err)
			c.open.putBack(d)
			continue
		}
		s.done = append(s.done, d)
	}
	c.leave(s)
	s.acks, s.group = s.acks[:0], s.group[:0]
}
