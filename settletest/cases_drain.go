package settletest

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/settlemq/settle"
)

// The cases of a drain: what was begun ends, what was not goes back.

func caseDrainInFlight(c *trial) {
	c.open(c.counted())
	c.publish("good", "bad")
	wait := c.gate()
	var early atomic.Bool
	options := c.options(2)
	s := c.serve(setup{options: options, handler: func(ctx context.Context, d *settle.Delivery) settle.Outcome {
		wait.pass()
		if ctx.Err() != nil {
			early.Store(true)
		}
		if nameOf(d.Body) == "bad" {
			return settle.Retry(errFault)
		}
		return settle.Ack()
	}})
	c.await(func() bool { return c.journal.working() == 2 }, "two handlers are not under way")
	s.drain()
	wait.open()
	s.stop()
	if early.Load() {
		c.fail("a handler's context ended when the drain began")
	}
	c.times(1, "good", "bad")
	for _, name := range []string{"good", "bad"} {
		for _, end := range c.journal.settlementsOf(name) {
			if end.Err != nil {
				c.fail("message %q was not settled: %v", name, end.Err)
			}
		}
	}
	if c.journal.ended("good") != 1 {
		c.fail("the message whose handler acknowledged it in the drain was not acknowledged. %s", c.journal)
	}
	c.remains(1)
	s = c.serve(setup{options: options, handler: ack})
	c.await(func() bool { return c.journal.ended("bad") > 0 }, "the message whose handler failed in the drain did not come again")
	s.stop()
	c.times(1, "good")
	if !c.fixture.gap(RuleAttempt) {
		c.attempts("bad", 1, 2)
	}
	c.remains(0)
}

func caseDrainUnstarted(c *trial) {
	for _, batch := range []int{1, 2} {
		c.times(1, c.unstarted(batch)...)
	}
}

// caseReleaseFree holds both ways a delivery goes back without its handler.
func caseReleaseFree(c *trial) {
	for _, batch := range []int{1, 2} {
		for _, name := range c.unstarted(batch) {
			c.attempts(name, 1)
		}
	}
	c.open(c.counted())
	c.publish("m00")
	s := c.session()
	for range 3 {
		d := s.receive(1)[0]
		if d.Attempt != 1 {
			c.fail("the message has attempt %d after it was released, and should have 1", d.Attempt)
		}
		s.settle(verdict(d, settle.ActionRelease))
	}
	s.end()
}

// unstarted drains while a handler, or a batch handler, is under way and other
// deliveries wait for it, then handles the rest. It returns the names of all messages.
func (c *trial) unstarted(batch int) []string {
	c.variant = "one by one"
	if batch > 1 {
		c.variant = "in batches"
	}
	spec := c.counted()
	spec.Batch = batch
	c.open(spec)
	all := names(10)
	c.publish(all...)
	wait := c.gate()
	with := setup{options: c.options(1)}
	with.options.Prefetch = len(all)
	if batch > 1 {
		with.batch = inBatch(func(context.Context, *settle.Delivery) settle.Outcome {
			wait.pass()
			return settle.Ack()
		})
	} else {
		with.handler = func(context.Context, *settle.Delivery) settle.Outcome {
			wait.pass()
			return settle.Ack()
		}
	}
	s := c.serve(with)
	most := len(all)
	if t := s.traits(); t.Prefetch > 0 {
		most = min(most, t.Prefetch)
	}
	if most <= batch {
		c.Logf("the source takes no more than its workers can use: nothing is unstarted here")
	}
	c.await(func() bool { return c.journal.unsettled() >= most && c.journal.working() > 0 }, "%d deliveries are not in work", most)
	s.drain()
	wait.open()
	s.stop()
	begun := c.journal.count()
	if begun > batch {
		c.halt("handlers began with %d messages, and only what was under way when the drain began should have. %s", begun, c.journal)
	}
	c.remains(len(all) - begun)
	s = c.serve(with)
	c.await(func() bool { return c.journal.allEnded(all) }, "what no handler had started did not come again after the drain")
	s.stop()
	c.remains(0)
	return all
}

// inBatch is a batch handler that calls a handler for each delivery.
func inBatch(handler settle.Handler) settle.BatchHandler {
	return func(ctx context.Context, batch []*settle.Delivery) []settle.Outcome {
		outcomes := make([]settle.Outcome, len(batch))
		for i, d := range batch {
			outcomes[i] = handler(ctx, d)
		}
		return outcomes
	}
}

func caseDrainOverstay(c *trial) {
	c.overstay()
	c.overstayBatch()
}

// overstay has one handler that stays after the deadline, and one that goes.
func (c *trial) overstay() {
	c.open(c.counted())
	c.publish("stays", "obeys")
	wait := c.gate()
	var cause, other atomic.Pointer[error]
	options := c.options(2)
	s := c.serve(setup{options: options, drain: 50 * time.Millisecond, handler: func(ctx context.Context, d *settle.Delivery) settle.Outcome {
		c.contextEnds(ctx)
		why := context.Cause(ctx)
		if nameOf(d.Body) == "obeys" {
			other.Store(&why)
			return settle.Retry(ctx.Err())
		}
		cause.Store(&why)
		wait.pass()
		return settle.Ack()
	}})
	c.await(func() bool { return c.journal.working() == 2 }, "two handlers are not under way")
	s.cancel()
	err := s.wait()
	var drain *settle.DrainError
	if !errors.As(err, &drain) || drain.Unfinished != 1 {
		c.halt("Run returned %v, and should return a DrainError with 1 unfinished", err)
	}
	for name, p := range map[string]*atomic.Pointer[error]{"stays": &cause, "obeys": &other} {
		if got := p.Load(); got == nil || !errors.Is(*got, settle.ErrDraining) {
			c.fail("the context of the handler of %q did not end with ErrDraining", name)
		}
	}
	c.remains(2)
	wait.open() // and its Ack, too late, settles nothing
	c.await(func() bool { return c.journal.working() == 0 }, "the handler did not return")
	c.remains(2)
	s = c.serve(setup{options: options, handler: ack})
	c.await(func() bool { return c.journal.allEnded([]string{"stays", "obeys"}) }, "what was unfinished at the drain deadline did not come again")
	s.stop()
	c.times(2, "stays", "obeys")
	c.remains(0)
}

// overstayBatch has a batch handler that stays after the deadline.
func (c *trial) overstayBatch() {
	c.variant = "in batches"
	spec := c.counted()
	spec.Batch = 4
	c.open(spec)
	all := names(4)
	c.publish(all...)
	wait := c.gate()
	handler := inBatch(func(context.Context, *settle.Delivery) settle.Outcome {
		wait.pass()
		return settle.Ack()
	})
	s := c.serve(setup{options: c.options(1), drain: 50 * time.Millisecond, batch: handler})
	c.await(func() bool { return c.journal.working() > 0 }, "the handler is not under way")
	s.cancel()
	err := s.wait()
	stay := c.journal.working()
	var drain *settle.DrainError
	if !errors.As(err, &drain) || drain.Unfinished != stay {
		c.halt("Run returned %v, and should return a DrainError with %d unfinished", err, stay)
	}
	c.remains(len(all))
	wait.open()
	c.await(func() bool { return c.journal.working() == 0 }, "the handler did not return")
	c.remains(len(all))
	s = c.serve(setup{options: c.options(1), batch: handler})
	c.await(func() bool { return c.journal.allEnded(all) }, "what was unfinished at the drain deadline did not come again")
	s.stop()
	c.remains(0)
}
