package rabbit

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/settlemq/settle"
)

// This file publishes the copies of one Settle call, and says what becomes of
// a delivery whose copy cannot be made.

// copyTimeout bounds the wait for the confirms of copies. A copy that is
// confirmed later was made twice.
const copyTimeout = 10 * time.Second

// copy publishes the copies of one Settle together. What is safe is to be
// acknowledged then; the others get their error.
func (c *consumer) copy(ctx context.Context, s *settling) {
	ctx, cancel := context.WithTimeout(ctx, copyTimeout)
	defer cancel()
	fail := func(i int, err error) {
		s.batch[i].Err = copyError(err)
		c.open.putBack(s.delivery(i))
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
		v := s.batch[i].Verdict
		o := c.policy.copy(v, s.delivery(i))
		if err := c.queues.ready(ctx, o.key, v); err != nil {
			fail(i, err)
			continue
		}
		out, ready = append(out, o), append(ready, i)
	}
	errs := c.publisher.publish(ctx, out)
	for j, i := range ready {
		var err error
		if errs != nil {
			err = errs[j]
		}
		v, d := s.batch[i].Verdict, s.delivery(i)
		if settle.IsPermanent(err) {
			err = c.copyLeaner(ctx, v, d, err)
		}
		switch {
		case err == nil:
			s.acks = append(s.acks, i)
		case c.giveUpCopy(err, v, d):
			c.backAsItIs(s, i, err)
		default:
			if errors.Is(err, settle.ErrUnroutable) {
				c.queues.forget(out[j].key)
			}
			fail(i, err)
		}
	}
	if len(s.acks) > 0 && c.blocked.CompareAndSwap(true, false) {
		c.notify(settle.Notice{Kind: settle.NoticeUnblocked})
	}
}

// copyLeaner makes a copy that no frame can carry again, with fewer headers of
// ours each time, until one is carried. Without any it is no larger than the message
// was. What cannot even carry its count ends as a dead letter.
func (c *consumer) copyLeaner(ctx context.Context, v settle.Verdict, d *delivery, why error) error {
	for _, o := range c.policy.leaner(v, d) {
		if o.key == c.policy.deadLetter && !o.mandatory {
			// Nothing would tell that it is not there.
			if err := c.queues.deadLetter(ctx); err != nil {
				return err
			}
		}
		errs := c.publisher.publish(ctx, []outgoing{o})
		if errs == nil || errs[0] == nil {
			told := "without some of the headers that a copy has"
			if v.Action == settle.ActionRetry && o.key == c.policy.deadLetter {
				told = "to the dead letter, as its count cannot be carried"
			}
			c.notify(settle.Notice{Kind: settle.NoticeWeakened, Delivery: &d.Delivery, Err: fmt.Errorf("rabbit: a message is copied %s: %w", told, why)})
			return nil
		}
		if !settle.IsPermanent(errs[0]) {
			return errs[0]
		}
	}
	return why
}

// backAsItIs requeues the delivery at i whose retry copy was given up.
func (c *consumer) backAsItIs(s *settling, i int, why error) {
	d := s.delivery(i)
	if s.batch[i].Err = c.write(s, frameRequeue, s.batch[i].Verdict, d); s.batch[i].Err != nil {
		c.open.putBack(d)
		return
	}
	s.done = append(s.done, d)
	c.notify(settle.Notice{Kind: settle.NoticeWeakened, Delivery: &d.Delivery, Err: fmt.Errorf("rabbit: a retry goes back to the queue as it is, without its count and its delay: %w", why)})
}

// mostRefused is how often the copy of a retry is tried that the queue itself
// refuses: for a second or so.
const mostRefused = 4

// giveUpCopy reports whether a retry whose copy failed goes back by basic.reject
// with requeue. A full queue refuses our copies while we keep its messages:
// were all that we may have such retries, nobody would ever make room. What no
// frame can carry would keep its place in the prefetch until the session ends.
// Where the queue has a limit the server counts it, and moves it at the cap.
func (c *consumer) giveUpCopy(err error, v settle.Verdict, d *delivery) bool {
	switch {
	case settle.IsPermanent(err):
		return c.policy.limit >= 0 || v.Action == settle.ActionRetry
	case v.Action == settle.ActionRetry && errors.Is(err, errNack):
		d.refused++
		return d.refused >= mostRefused
	}
	return false
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
