package settletest

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/settlemq/settle"
)

// The cases of delays. Early is a failure; late is only told.

// clockSlack is how far two clocks of one machine may drift apart within a delay.
const clockSlack = time.Millisecond

// aLongTime is a delay that no case waits for.
const aLongTime = 10 * time.Minute

func caseDelay(c *trial, workers int) {
	spec := c.counted()
	spec.Delay = c.fixture.Delay
	c.open(spec)
	all := names(4)
	c.publish(all...)
	s := c.serve(setup{options: c.options(workers), handler: c.plan(func(name string, nth int) settle.Outcome {
		if name != all[0] && nth <= 2 {
			return settle.RetryAfter(spec.Delay, errFault)
		}
		return settle.Ack()
	})})
	c.await(func() bool { return c.journal.allEnded(all) }, "not every message was acknowledged after two delays of %v", spec.Delay)
	s.stop()
	c.times(1, all[0])
	c.times(3, all[1:]...)
	for _, name := range all[1:] {
		c.notEarly(name, spec.Delay)
		if !c.fixture.gap(RuleAttempt) {
			c.attempts(name, 1, 2, 3)
		}
	}
	c.remains(0)
}

// notEarly sees that each delivery of a message came a delay after the one
// before it had failed.
func (c *trial) notEarly(name string, delay time.Duration) {
	c.Helper()
	calls := c.journal.callsOf(name)
	var latest time.Duration
	for i := 1; i < len(calls); i++ {
		waited := calls[i].began.Sub(calls[i-1].ended)
		if waited < delay-clockSlack {
			c.fail("message %q came again after %v, and %v was asked", name, waited, delay)
		}
		latest = max(latest, waited-delay)
	}
	c.Logf("message %q came at most %v late", name, latest.Round(time.Millisecond))
}

func caseDelayCap(c *trial) {
	spec := c.capped(1)
	spec.Delay = aLongTime
	c.open(spec)
	c.publish("m00")
	s := c.serve(setup{handler: c.plan(func(string, int) settle.Outcome { return settle.RetryAfter(aLongTime, errFault) })})
	c.await(func() bool { return c.journal.ended("m00") > 0 }, "the message has not ended at its cap of 1")
	s.stop()
	c.times(1, "m00")
	c.deadLetters("m00")
	c.remains(0)
}

func caseDelayTooLong(c *trial) {
	spec := c.counted()
	spec.Delay = c.fixture.Delay
	c.open(spec)
	var asked atomic.Int64 // nanoseconds; set before the message is there
	s := c.serve(setup{handler: c.plan(func(_ string, nth int) settle.Outcome {
		if nth == 1 {
			return settle.RetryAfter(time.Duration(asked.Load()), errFault)
		}
		return settle.Ack()
	})})
	traits := s.traits()
	var delay time.Duration
	var want error
	switch {
	case traits.Delay == settle.NoDelay, traits.Whole && traits.Delay == settle.DelayInProcess:
		delay, want = aLongTime, settle.ErrNoDelay
	case traits.LongestDelay > 0:
		delay, want = traits.LongestDelay, settle.ErrDelayTooLong
	default:
		c.Logf("every delay can be waited here, so that none is too long")
		s.stop()
		return
	}
	asked.Store(int64(delay))
	c.publish("m00")
	c.await(func() bool { return c.journal.ended("m00") > 0 }, "the message did not come again at once after a delay of %v", delay)
	s.stop()
	c.times(2, "m00")
	notices := c.journal.noticesOf(settle.NoticeDelayTooLong)
	if len(notices) != 1 || notices[0].Delay != delay || !errors.Is(notices[0].Err, want) {
		c.fail("the notices of too long delays are %+v, and should be one of %v with %q", notices, delay, want)
	}
}

func caseDrainHolds(c *trial, workers int) {
	c.nearHold(workers)
	c.farHold(workers)
}

// nearHold drains while a message waits for a delay that ends before the drain must.
func (c *trial) nearHold(workers int) {
	spec := c.counted()
	spec.Delay = 4 * c.fixture.Delay
	c.open(spec)
	c.publish("m00", "m01")
	handler := c.plan(func(name string, nth int) settle.Outcome {
		if name == "m00" && nth == 1 {
			return settle.RetryAfter(spec.Delay, errFault)
		}
		return settle.Ack()
	})
	s := c.serve(setup{options: c.options(workers), handler: handler})
	c.await(func() bool {
		return c.journal.handled("m00") > 0 && c.journal.ended("m01") > 0 && c.journal.working() == 0
	},
		"beside a message that waits for its delay the other was not handled")
	s.stop()
	c.times(1, "m00", "m01")
	c.remains(1)
	s = c.serve(setup{options: c.options(workers), handler: handler})
	c.await(func() bool { return c.journal.ended("m00") > 0 }, "the message that waited for its delay did not come again after the drain")
	s.stop()
	c.times(2, "m00")
	c.notEarly("m00", spec.Delay)
	if !c.fixture.gap(RuleAttempt) {
		c.attempts("m00", 1, 2)
	}
	c.remains(0)
}

// farHold drains while a message waits for a delay that ends long after.
func (c *trial) farHold(workers int) {
	spec := c.counted()
	spec.Delay = aLongTime
	c.open(spec)
	var asked atomic.Int64 // nanoseconds; set before the message is there
	handler := c.plan(func(name string, nth int) settle.Outcome {
		if name == "m00" && nth == 1 {
			return settle.RetryAfter(time.Duration(asked.Load()), errFault)
		}
		return settle.Ack()
	})
	s := c.serve(setup{options: c.options(workers), handler: handler})
	traits := s.traits()
	asked.Store(int64(aLongTime))
	if longest := traits.LongestDelay; longest > 0 {
		asked.Store(int64(min(aLongTime, longest/2)))
	}
	c.publish("m00", "m01")
	c.await(func() bool {
		return c.journal.handled("m00") > 0 && c.journal.ended("m01") > 0 && c.journal.working() == 0
	},
		"beside a message that waits for its delay the other was not handled")
	s.stop()
	c.remains(1)
	if traits.Delay != settle.DelayInProcess {
		return // it waits in the broker, longer than the case does
	}
	s = c.serve(setup{options: c.options(workers), handler: handler})
	c.await(func() bool { return c.journal.ended("m00") > 0 }, "the message that waited for its delay did not come again after the drain")
	s.stop()
	if !c.fixture.gap(RuleAttempt) && !c.fixture.gap(RuleReleaseFree) {
		c.attempts("m00", 1, 1)
	}
	c.remains(0)
}
