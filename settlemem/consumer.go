package settlemem

import (
	"context"
	"fmt"

	"github.com/settlemq/settle"
)

// consumer is one session on a queue. The queue's lock guards it.
type consumer struct {
	queue        *Queue
	registration settle.Registration
	unsettled    links // the ring of deliveries that are this session's
	stopped      bool
	over         bool
}

// delivery is a settle.Delivery with what the broker knows of it: one
// allocation a message.
type delivery struct {
	settle.Delivery
	links
	message *message
	session *consumer // nil once it is settled or lost
}

// links chains the unsettled deliveries of a session without an allocation.
type links struct {
	next, prev *links
	of         *delivery
}

func (l *links) insertBefore(at *links) {
	l.prev, l.next = at.prev, at
	l.prev.next, at.prev = l, l
}

func (l *links) remove() {
	l.prev.next, l.next.prev = l.next, l.prev
	l.next, l.prev = nil, nil
}

func (c *consumer) Traits() settle.Traits {
	return settle.Traits{
		Receivers:    1,
		Settlers:     1,
		Delay:        c.queue.broker.Delay,
		LongestDelay: c.queue.broker.LongestDelay,
	}
}

func (c *consumer) Receive(ctx context.Context, buf []*settle.Delivery) (int, error) {
	q := c.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	if n, err := c.take(buf); n > 0 || err != nil {
		return n, err
	}
	wake := context.AfterFunc(ctx, func() {
		q.mu.Lock()
		q.ready.Broadcast()
		q.mu.Unlock()
	})
	defer wake()
	for ctx.Err() == nil {
		q.waiting++
		q.ready.Wait()
		q.waiting--
		if n, err := c.take(buf); n > 0 || err != nil {
			return n, err
		}
	}
	q.wake() // the signal may have been for another receiver
	return 0, ctx.Err()
}

// take delivers what is ready. The caller holds the queue's lock.
func (c *consumer) take(buf []*settle.Delivery) (int, error) {
	switch {
	case c.over:
		return 0, fmt.Errorf("%s: %w", c.queue.Name(), settle.ErrSessionLost)
	case c.stopped:
		return 0, fmt.Errorf("%s: intake has ended: %w", c.queue.Name(), settle.ErrSessionLost)
	}
	n := 0
	for n < len(buf) {
		m := c.queue.pop()
		if m == nil {
			break
		}
		m.attempts++
		d := &delivery{message: m, session: c}
		d.of = d
		d.ID, d.Key, d.Body, d.Headers = m.ID, m.Key, m.Body, m.Headers
		d.Attempt, d.Published, d.Native = m.attempts, m.published, d
		d.insertBefore(&c.unsettled)
		buf[n] = &d.Delivery
		n++
	}
	return n, nil
}

func (c *consumer) Settle(_ context.Context, batch []settle.Settlement) {
	q := c.queue
	var dead []*message
	for i := range batch {
		batch[i].Err = nil
		if fail := q.broker.FailSettle; fail != nil {
			batch[i].Err = fail(batch[i].Delivery, batch[i].Verdict)
		}
	}
	q.mu.Lock()
	for i := range batch {
		s := &batch[i]
		if s.Err != nil {
			continue
		}
		d, ok := s.Delivery.Native.(*delivery)
		if !ok || d.session != c {
			s.Err = fmt.Errorf("%s: %w", q.Name(), settle.ErrSessionLost)
			continue
		}
		if s.Verdict.Action < settle.ActionAck || s.Verdict.Action > settle.ActionRelease {
			s.Err = settle.Permanent(fmt.Errorf("%s: there is no %v", q.Name(), s.Verdict.Action))
			continue
		}
		d.session = nil
		d.remove()
		if letter := c.settle(d, s.Verdict); letter != nil {
			dead = append(dead, letter)
		}
	}
	q.mu.Unlock()
	if len(dead) > 0 {
		to := q.broker.Queue(c.registration.DeadLetter)
		for _, m := range dead {
			to.add(m, 0)
		}
		q.mu.Lock()
		for range dead {
			q.gone()
		}
		q.mu.Unlock()
	}
}

// settle makes one verdict true and returns the copy for the dead-letter queue,
// if there is one. The caller holds the queue's lock.
func (c *consumer) settle(d *delivery, v settle.Verdict) *message {
	q := c.queue
	switch v.Action {
	case settle.ActionRetry:
		q.put(d.message, v.Delay)
	case settle.ActionRelease:
		d.message.attempts--
		q.putBack(d.message)
	case settle.ActionDeadLetter:
		if c.registration.DeadLetter != "" {
			return deadLetter(q.Name(), d, v.Cause)
		}
		q.gone()
	default:
		q.gone()
	}
	return nil
}

// Stop ends intake. Nothing is fetched ahead, so there is nothing to give back.
func (c *consumer) Stop(context.Context) error {
	c.queue.mu.Lock()
	defer c.queue.mu.Unlock()
	c.stopped = true
	c.queue.ready.Broadcast()
	return nil
}

func (c *consumer) Close(context.Context) error {
	c.queue.mu.Lock()
	defer c.queue.mu.Unlock()
	c.end()
	return nil
}

// end ends the session: what is unsettled is ready again, in its order, before
// what came later. The caller holds the queue's lock.
func (c *consumer) end() {
	if c.over {
		return
	}
	c.over = true
	delete(c.queue.sessions, c)
	for c.unsettled.prev != &c.unsettled {
		d := c.unsettled.prev.of
		d.remove()
		d.session = nil
		c.queue.putBack(d.message)
	}
	c.queue.ready.Broadcast()
}
