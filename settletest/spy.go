package settletest

import (
	"context"
	"sync/atomic"

	"github.com/settlemq/settle"
)

// spy stands between the runtime and the source of a case. It records what
// passes and holds every call to the rules that can be seen from there.
type spy struct {
	settle.Source
	c       *trial
	journal *journal
	traits  atomic.Pointer[settle.Traits] // of the last session; nil: none was opened
	stopped atomic.Bool                   // Stop was called
}

func (s *spy) Open(ctx context.Context, r settle.Registration) (settle.Consumer, error) {
	consumer, err := s.Source.Open(ctx, r)
	if err != nil {
		return nil, err
	}
	t := consumer.Traits()
	s.traits.Store(&t)
	return &spyConsumer{Consumer: consumer, spy: s, traits: t}, nil
}

type spyConsumer struct {
	settle.Consumer
	spy    *spy
	traits settle.Traits
}

func (s *spyConsumer) Receive(ctx context.Context, buf []*settle.Delivery) (int, error) {
	n, err := s.Consumer.Receive(ctx, buf)
	if n == 0 && err == nil && ctx.Err() == nil && !s.spy.stopped.Load() {
		s.spy.c.broken(RuleReceiveRoom, "Receive returned 0 and no error, and neither had its context ended nor was Stop called")
	}
	got := checkReceived(s.spy.c, s.traits, buf, n)
	s.spy.journal.received(got)
	return len(got), err
}

// checkReceived holds what a Receive returned to the contract. It returns the
// deliveries, at the start of buf, without what is none.
func checkReceived(c *trial, t settle.Traits, buf []*settle.Delivery, n int) []*settle.Delivery {
	if n < 0 || n > len(buf) {
		c.broken(RuleReceiveRoom, "Receive returned %d for a buffer of %d", n, len(buf))
	}
	got := buf[:0]
	for i, d := range buf[:max(0, min(n, len(buf)))] {
		switch {
		case d == nil:
			c.broken(RuleReceiveRoom, "Receive returned %d deliveries, and number %d of them is nil", n, i+1)
			continue
		case t.AttemptUnknown && d.Attempt != 0:
			c.broken(RuleAttempt, "message %q has attempt %d, and the traits say that the attempt is unknown", nameOf(d.Body), d.Attempt)
		case !t.AttemptUnknown && d.Attempt < 1:
			c.broken(RuleAttempt, "message %q has attempt %d, and the first is 1", nameOf(d.Body), d.Attempt)
		}
		got = append(got, d)
	}
	return got
}

func (s *spyConsumer) Settle(ctx context.Context, batch []settle.Settlement) {
	for i := range batch {
		if a := batch[i].Verdict.Action; a < settle.ActionAck || a > settle.ActionRelease {
			s.spy.c.Errorf("settletest: a defect of the runtime: it asked for %v on message %q", a, nameOf(batch[i].Delivery.Body))
		}
	}
	s.Consumer.Settle(ctx, batch)
	over := 0
	for i := range batch {
		if err := batch[i].Err; err == nil || isLost(err) || settle.IsPermanent(err) {
			over++
		}
	}
	s.spy.journal.left(over)
}

func (s *spyConsumer) Stop(ctx context.Context) error {
	s.spy.stopped.Store(true)
	return s.Consumer.Stop(ctx)
}
