package rabbit

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/settlemq/settle"
)

// copyTimeout bounds the wait for the confirms of copies. A copy that is
// confirmed later was made twice.
const copyTimeout = 10 * time.Second

// settling is the work of one Settle call.
type settling struct {
	acks   []*delivery // to be acknowledged
	done   []*delivery // whose frame was written
	at     []int       // index in the batch of each of acks
	copied []int       // index in the batch of each copy
}

var settlings = sync.Pool{New: func() any { return new(settling) }}

func (s *settling) recycle() {
	clear(s.acks[:cap(s.acks)])
	clear(s.done[:cap(s.done)])
	s.acks, s.done, s.at, s.copied = s.acks[:0], s.done[:0], s.at[:0], s.copied[:0]
	settlings.Put(s)
}

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
	for i := range batch {
		b := &batch[i]
		d, err := c.claim(s, b.Delivery)
		if err != nil {
			b.Err = err
			continue
		}
		switch f := c.policy.frame(b.Verdict, d); f {
		case frameAck:
			s.acks, s.at = append(s.acks, d), append(s.at, i)
		case frameCopy:
			s.copied = append(s.copied, i)
		default:
			if b.Err = c.write(f, b.Verdict, d); b.Err != nil {
				c.open.putBack(d)
				continue
			}
			s.done = append(s.done, d)
		}
	}
	// What was rejected leaves first, so that it stands in no group's way.
	c.leave(s)
	c.acknowledge(s, batch)
	if len(s.copied) > 0 {
		c.copy(ctx, s, batch)
		c.acknowledge(s, batch)
	}
}

// claim returns our record of a delivery that this session may settle.
func (c *consumer) claim(s *settling, from *settle.Delivery) (*delivery, error) {
	d, ok := from.Native.(*delivery)
	if !ok || d.owner != c {
		return nil, fmt.Errorf("rabbit: %w: it came from another", settle.ErrSessionLost)
	}
	if !c.open.claim(s, d) {
		return nil, fmt.Errorf("rabbit: %w: it is settled already", settle.ErrLeaseLost)
	}
	return d, nil
}

func (c *consumer) leave(s *settling) {
	if len(s.done) > 0 {
		c.open.leave(s.done)
		s.done = s.done[:0]
	}
}

// write writes the frame of one delivery.
func (c *consumer) write(f frame, v settle.Verdict, d *delivery) error {
	tag := d.native.DeliveryTag
	var err error
	switch f {
	case frameReject:
		if v.Action == settle.ActionDeadLetter {
			c.lone.Do(func() {
				c.notify(settle.Notice{Kind: settle.NoticeWeakened, Delivery: &d.Delivery, Err: errNoDeadLetter})
			})
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

var errNoDeadLetter = errors.New("a message is dead-lettered and there is no DeadLetter: it follows the queue's own dead-letter exchange if it has one, else it is dropped")

// writeError is what became of a frame that could not be written: the channel
// or its connection is gone, so the server has or will have the delivery again.
func writeError(err error) error { return fmt.Errorf("rabbit: %w: %w", settle.ErrSessionLost, err) }

// acknowledge acknowledges s.acks: those before all that is open with one
// frame, the others each with its own.
func (c *consumer) acknowledge(s *settling, batch []settle.Settlement) {
	if len(s.acks) == 0 {
		return
	}
	var upTo uint64
	var groupErr error
	if last := c.open.group(s, s.acks); last != nil {
		upTo = last.native.DeliveryTag
		groupErr = c.ch.Ack(upTo, true)
	}
	for j, d := range s.acks {
		err := groupErr
		if tag := d.native.DeliveryTag; tag > upTo {
			err = c.ch.Ack(tag, false)
		}
		b := &batch[s.at[j]]
		if err != nil {
			b.Err = writeError(err)
			c.open.putBack(d)
			continue
		}
		b.Err = nil
		s.done = append(s.done, d)
	}
	c.leave(s)
	s.acks, s.at = s.acks[:0], s.at[:0]
}

// copy publishes the copies of one Settle together. Those that are safe become
// acks; the others get their error.
func (c *consumer) copy(ctx context.Context, s *settling, batch []settle.Settlement) {
	ctx, cancel := context.WithTimeout(ctx, copyTimeout)
	defer cancel()
	fail := func(i int, err error) {
		batch[i].Err = copyError(err)
		c.open.putBack(batch[i].Delivery.Native.(*delivery))
	}
	if c.publisher.broker.blocked() {
		if c.blocked.CompareAndSwap(false, true) {
			c.notify(settle.Notice{Kind: settle.NoticeBlocked, Err: settle.ErrBlocked})
		}
		for _, i := range s.copied {
			fail(i, fmt.Errorf("rabbit: %w, so no copy can be made", settle.ErrBlocked))
		}
		return
	}
	// The slice goes to the publisher, which may still write from it after its deadline.
	out := make([]outgoing, 0, len(s.copied))
	ready := s.copied[:0]
	for _, i := range s.copied {
		d := batch[i].Delivery.Native.(*delivery)
		o := c.policy.copy(batch[i].Verdict, d)
		if err := c.queues.ready(ctx, o.key, batch[i].Verdict); err != nil {
			fail(i, err)
			continue
		}
		out, ready = append(out, o), append(ready, i)
	}
	errs := c.publisher.publish(ctx, out)
	for j, i := range ready {
		if errs != nil && errs[j] != nil {
			if errors.Is(errs[j], settle.ErrUnroutable) {
				c.queues.forget(out[j].key)
			}
			fail(i, errs[j])
			continue
		}
		s.acks, s.at = append(s.acks, batch[i].Delivery.Native.(*delivery)), append(s.at, i)
	}
	if len(s.acks) > 0 && c.blocked.CompareAndSwap(true, false) {
		c.notify(settle.Notice{Kind: settle.NoticeUnblocked})
	}
}

// copyPublisher sends copies.
type copyPublisher struct {
	broker  *Broker // whose publishing connection it uses
	publish func(context.Context, []outgoing) []error
}

// copyError is the error of a copy that is not known to be safe. It says
// nothing of the delivery's own session, even where the connection that copies go by
// was lost: the delivery is still ours, and the copy is tried again.
func copyError(err error) error {
	if errors.Is(err, settle.ErrSessionLost) || errors.Is(err, settle.ErrLeaseLost) {
		return errors.New(err.Error())
	}
	return err
}
