package settletest

import (
	"context"
	"time"

	"github.com/settlemq/settle"
)

// session is one open Consumer that a case drives itself, as the runtime would.
type session struct {
	c *trial
	settle.Consumer
	traits settle.Traits
	closed bool
}

// registration is what the runtime would ask of the source for the case's queue.
func (c *trial) registration() settle.Registration {
	return settle.Registration{
		Workers: 8, Prefetch: 32, Batch: 1,
		MaxAttempts: c.spec.MaxAttempts, DeadLetter: c.queue.DeadLetter,
		Logger: c.logger(), Notify: c.journal.Noticed,
	}
}

// session opens the queue's source. A session that the case does not close ends
// with it.
func (c *trial) session() *session {
	c.Helper()
	ctx, cancel := c.soon()
	defer cancel()
	consumer, err := c.queue.Source.Open(ctx, c.registration())
	if err != nil {
		c.halt("Open returned %v", err)
	}
	s := &session{c: c, Consumer: consumer, traits: consumer.Traits()}
	c.Cleanup(func() {
		if !s.closed {
			ctx, cancel := c.soon()
			defer cancel()
			_ = s.Close(ctx)
		}
	})
	return s
}

// receive waits for n deliveries, one at a time.
func (s *session) receive(n int) []*settle.Delivery {
	s.c.Helper()
	all, err := s.tryReceive(n)
	if len(all) < n {
		s.c.halt("Receive brought %d of %s; its last error is %v", len(all), plural(n, "message"), err)
	}
	return all
}

// tryReceive is receive, but returns what came when the session is lost or the
// deadline passes, with the last error.
func (s *session) tryReceive(n int) (all []*settle.Delivery, err error) {
	s.c.Helper()
	ctx, cancel := s.c.soon()
	defer cancel()
	for len(all) < n && ctx.Err() == nil {
		var buf [1]*settle.Delivery
		var got int
		got, err = s.Receive(ctx, buf[:])
		all = append(all, checkReceived(s.c, s.traits, buf[:], got)...)
		if isLost(err) {
			break
		}
		if err != nil {
			time.Sleep(time.Millisecond) // a hiccup that the runtime would wait out, too
		}
	}
	return all, err
}

// buffer has room for n deliveries, or for as many as one Receive may be asked for.
func (s *session) buffer(n int) []*settle.Delivery {
	if most := s.traits.MaxReceive; most > 0 {
		n = min(n, most)
	}
	return make([]*settle.Delivery, n)
}

// receiveAside calls Receive on another goroutine; the result comes by the channel.
func (s *session) receiveAside(ctx context.Context, room int) <-chan []*settle.Delivery {
	result := make(chan []*settle.Delivery, 1)
	go func() {
		buf := s.buffer(room)
		n, _ := s.Receive(ctx, buf)
		result <- checkReceived(s.c, s.traits, buf, n)
	}()
	return result
}

// returned waits for what receiveAside brings.
func (s *session) returned(result <-chan []*settle.Delivery, when string) []*settle.Delivery {
	s.c.Helper()
	timer := time.NewTimer(s.c.fixture.Deadline)
	defer timer.Stop()
	select {
	case got := <-result:
		return got
	case <-timer.C:
		s.c.halt("Receive has not returned %v after %s", s.c.fixture.Deadline, when)
		return nil
	}
}

// settleAll settles a batch and returns it with its errors.
func (s *session) settleAll(batch ...settle.Settlement) []settle.Settlement {
	s.c.Helper()
	ctx, cancel := s.c.soon()
	defer cancel()
	s.Settle(ctx, batch)
	return batch
}

// settle is settleAll where every settlement must succeed.
func (s *session) settle(batch ...settle.Settlement) {
	s.c.Helper()
	for i, done := range s.settleAll(batch...) {
		if done.Err != nil {
			s.c.halt("settlement %d of %d failed, the %v of %q: %v", i+1, len(batch), done.Verdict.Action, nameOf(done.Delivery.Body), done.Err)
		}
	}
}

// outcome settles one delivery and returns the error.
func (s *session) outcome(d *settle.Delivery, a settle.Action) error {
	s.c.Helper()
	return s.settleAll(verdict(d, a))[0].Err
}

// verdict asks for an action on one delivery.
func verdict(d *settle.Delivery, a settle.Action) settle.Settlement {
	v := settle.Verdict{Action: a}
	if a != settle.ActionAck && a != settle.ActionRelease {
		v.Cause = errFault
	}
	return settle.Settlement{Delivery: d, Verdict: v}
}

// close closes the session, which must end by the deadline.
func (s *session) close() {
	s.c.Helper()
	s.closed = true
	ctx, cancel := s.c.soon()
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Close(ctx) // of a lost session it may fail
	}()
	timer := time.NewTimer(2 * s.c.fixture.Deadline)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
		s.c.broken(RuleClose, "Close has not returned %v after the end of its context", s.c.fixture.Deadline)
		s.c.FailNow()
	}
}

// stop ends intake.
func (s *session) stop() {
	s.c.Helper()
	ctx, cancel := s.c.soon()
	defer cancel()
	if err := s.Stop(ctx); err != nil {
		s.c.halt("Stop returned %v", err)
	}
}

// end stops and closes the session, as a drain does.
func (s *session) end() {
	s.c.Helper()
	s.stop()
	s.close()
}
