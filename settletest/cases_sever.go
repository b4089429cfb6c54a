package settletest

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/settlemq/settle"
)

// The cases of a session or lease that is lost.

// sever takes what is in work away from the consumer.
func (c *trial) sever() {
	c.Helper()
	c.needs(c.queue.Sever != nil, "Sever")
	ctx, cancel := c.soon()
	defer cancel()
	if err := c.queue.Sever(ctx); err != nil {
		c.Fatalf("settletest: Queue.Sever failed: %v", err)
	}
}

func caseSever(c *trial, workers int) {
	c.severedHandler(workers)
	c.severedSettle()
}

// severedHandler loses a delivery while its handler is under way.
func (c *trial) severedHandler(workers int) {
	c.open(c.counted())
	all := names(5)
	c.publish(all[0])
	wait := c.gate()
	var lost atomic.Bool
	seen := c.journal
	s := c.serve(setup{options: c.options(workers), handler: func(ctx context.Context, d *settle.Delivery) settle.Outcome {
		if nameOf(d.Body) == all[0] && seen.handled(all[0]) == 1 {
			wait.pass()
			// A source that tells must be heard first: what is written into a
			// connection before its end is noticed counts as settled.
			if !c.fixture.gap(RuleSeverContext) {
				c.contextEnds(ctx)
				lost.Store(isLost(context.Cause(ctx)))
			}
		}
		return settle.Ack()
	}})
	c.await(func() bool { return c.journal.working() == 1 }, "the handler is not under way")
	c.sever()
	c.publish(all[1:]...)
	wait.open()
	c.await(func() bool { return c.journal.allEnded(all) }, "not every message was acknowledged after the session was lost")
	s.stop()
	first := c.journal.settlementsOf(all[0])[0]
	if !isLost(first.Err) {
		c.fail("the delivery that was lost settled with the error %v. %s", first.Err, c.journal)
	}
	if n := c.journal.handled(all[0]); n < 2 {
		c.fail("the message whose delivery was lost did not come again")
	}
	c.remains(0)
}

// severedSettle loses a delivery and settles it on the source itself.
func (c *trial) severedSettle() {
	c.open(c.counted())
	c.publish("m00")
	s := c.session()
	d := s.receive(1)[0]
	c.sever()
	// Either the session says that it is lost, or the message comes again on it.
	again, err := s.tryReceive(1)
	if err != nil && !isLost(err) {
		c.halt("after the session was lost Receive returned %v", err)
	}
	if got := s.outcome(d, settle.ActionAck); !isLost(got) {
		c.fail("the source settled a delivery that was lost, with the error %v", got)
	}
	if len(again) > 0 {
		s.settle(settle.Settlement{Delivery: again[0], Verdict: settle.Verdict{Action: settle.ActionRelease}})
	}
	s.close()
	c.remains(1)
	s = c.session()
	d = s.receive(1)[0]
	if err := s.outcome(d, settle.ActionAck); err != nil {
		c.fail("the message that came again was not settled: %v", err)
	}
	s.end()
	c.remains(0)
}

func caseSeverContext(c *trial) {
	c.variant = "with room for more"
	c.severedContext(0)
	// Now no Receive is under way that could tell.
	c.variant = "with a full prefetch"
	c.severedContext(1)
}

func (c *trial) severedContext(prefetch int) {
	c.open(c.counted())
	c.publish("m00")
	type end struct{ err, cause error }
	ended := make(chan end, 1)
	options := c.options(1)
	options.Prefetch = prefetch
	seen := c.journal
	s := c.serve(setup{options: options, handler: func(ctx context.Context, _ *settle.Delivery) settle.Outcome {
		if seen.handled("m00") == 1 {
			c.contextEnds(ctx)
			ended <- end{ctx.Err(), context.Cause(ctx)}
		}
		return settle.Ack()
	}})
	c.await(func() bool { return c.journal.working() == 1 }, "the handler is not under way")
	c.sever()
	got := <-ended
	if !errors.Is(got.err, context.Canceled) || !isLost(got.cause) {
		c.halt("the error of the handler's context is %v and its cause %v", got.err, got.cause)
	}
	c.await(func() bool { return c.journal.ended("m00") > 0 }, "the message did not come again")
	s.stop()
}

func caseSeverAttempt(c *trial) {
	c.open(c.counted())
	c.publish("m00")
	wait := c.gate()
	seen := c.journal
	s := c.serve(setup{handler: func(ctx context.Context, _ *settle.Delivery) settle.Outcome {
		switch seen.handled("m00") {
		case 1, 2:
			return settle.Retry(errFault)
		case 3:
			wait.pass()
			if !c.fixture.gap(RuleSeverContext) {
				c.contextEnds(ctx)
			}
		}
		return settle.Ack()
	}})
	c.await(func() bool { return c.journal.handled("m00") == 3 }, "the message was not handled a third time")
	c.sever()
	wait.open()
	c.await(func() bool { return c.journal.ended("m00") > 0 }, "the message was not acknowledged after the session was lost")
	s.stop()
	got := c.journal.attempts("m00")
	for i := 1; i < len(got); i++ {
		if got[i] < got[i-1] {
			c.fail("the attempts of the message were %v; the session was lost in the third", got)
		}
	}
}

func caseReopen(c *trial, workers int) {
	c.open(c.counted())
	all := names(40)
	s := c.serve(setup{options: c.options(workers), handler: ack})
	s.opened()
	for i := range 4 {
		part := all[10*i : 10*i+10]
		c.publish(part...)
		if i%2 == 1 { // with work under way; else idle
			c.await(func() bool { return c.endedOf(part) > 0 }, "no message was acknowledged after the session was lost %s", plural(i, "time"))
		} else {
			c.await(func() bool { return c.journal.allEnded(part) }, "not every message was acknowledged after the session was lost %s", plural(i, "time"))
		}
		c.sever()
	}
	c.await(func() bool { return c.journal.allEnded(all) }, "not every message was acknowledged in the end")
	s.stop() // what an ack did not reach in time may be in the queue again
}
