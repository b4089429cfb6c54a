package pulsar

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	client "github.com/apache/pulsar-client-go/pulsar"

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
	s.acks.clear()
	clear(s.failed[:cap(s.failed)])
	clear(s.released[:cap(s.released)])
	*s = settling{acked: s.acked[:0], acks: s.acks, copies: s.copies[:0], failed: s.failed[:0], released: s.released[:0]}
	settlings.Put(s)
}

// delivery is our record of a settlement's delivery.
func (s *settling) delivery(i int) *delivery { return s.batch[i].Delivery.Native.(*delivery) }

// ack adds a delivery in hand to what is to be acknowledged.
func (s *settling) ack(i int) {
	d := s.delivery(i)
	s.acked = append(s.acked, i)
	s.acks.add(d.native.ID(), d.from.native)
}

// acks are ids to acknowledge, and at which of the library's consumers; index for index.
type acks struct {
	ids  []client.MessageID
	from []client.Consumer
}

func (a *acks) add(id client.MessageID, from client.Consumer) {
	a.ids, a.from = append(a.ids, id), append(a.from, from)
}

func (a *acks) clear() {
	clear(a.ids[:cap(a.ids)])
	clear(a.from[:cap(a.from)])
	a.ids, a.from = a.ids[:0], a.from[:0]
}

// send has the library acknowledge them and waits for every answer. It is one
// round trip, whatever the number of topics and partitions.
func (a acks) send() error {
	groups := make(map[client.Consumer][]client.MessageID)
	for i, id := range a.ids {
		groups[a.from[i]] = append(groups[a.from[i]], id)
	}
	if len(groups) == 1 {
		return a.from[0].AckIDList(a.ids)
	}
	answers := make(chan error, len(groups))
	for from, ids := range groups {
		go func() { answers <- from.AckIDList(ids) }()
	}
	all := make(client.AckError)
	for range groups {
		err := <-answers
		var failed client.AckError
		if err != nil && !errors.As(err, &failed) {
			return err
		}
		maps.Copy(all, failed)
	}
	if len(all) == 0 {
		return nil
	}
	return all
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
		err := errs.of(s.acks.ids[j])
		s.batch[i].Err = err
		if d := s.delivery(i); err == nil {
			c.work.leave(d)
		} else {
			c.work.putBack(d)
		}
	}
	c.work.mu.Unlock()
	s.acked = s.acked[:0]
	s.acks.clear()
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

// answerGrace is how long an answer is waited for that may be on its way while
// the session ends.
const answerGrace = 200 * time.Millisecond

// ack has the broker acknowledge and waits for its answer, until ctx
// ends or the session is over. An answer that does not come is the end of the
// session: the broker delivers again what is not settled.
//
// One that was under way when the session ended counts as settled: the broker was told, as far as
// can be known. Where it did not hear, the message comes again.
func (c *consumer) ack(ctx context.Context, all acks) ackErrors {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return ackErrors{all: c.why}
	}
	c.acking.Add(1)
	c.mu.Unlock()
	answer := make(chan error, 1)
	// The goroutine may outlive this call.
	all = acks{slices.Clone(all.ids), slices.Clone(all.from)}
	go func() {
		defer c.acking.Done()
		answer <- all.send()
	}()
	select {
	case err := <-answer:
		return c.ackErrors(err)
	case <-ctx.Done():
		c.lose(errNoAnswer)
		return ackErrors{all: c.why}
	case <-c.lost:
	}
	timer := time.NewTimer(answerGrace)
	defer timer.Stop()
	select {
	case err := <-answer:
		return c.ackErrors(err)
	case <-timer.C:
		return ackErrors{}
	}
}

// ackAside acknowledges what nobody waits for: other subscriptions' copies. One
// that fails comes again.
func (c *consumer) ackAside(all acks) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	c.acking.Go(func() {
		if err := all.send(); err != nil {
			c.logger.Debug("pulsar: another subscription's copy was not acknowledged and comes again", "error", err)
		}
	})
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
	for id, err := range failed {
		switch {
		case answered(err):
			failed[id] = fmt.Errorf("pulsar: the broker does not acknowledge now: %w", err)
			continue
		case cutOff(err):
			delete(failed, id)
			c.lose(errCutOff)
			continue
		}
		c.lose(fmt.Errorf("%w: %w", errNoAnswer, err))
		failed[id] = c.why
	}
	return ackErrors{single: failed}
}

// answered reports whether an acknowledgement's error is the broker's answer.
func answered(err error) bool { return strings.HasPrefix(err.Error(), "ack response error: ") }

// cutOff reports whether the connection broke before the answer came.
func cutOff(err error) bool { return err.Error() == "connection closed" }
