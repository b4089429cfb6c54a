package settletest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/settlemq/settle"
)

// The cases of what runs beside what: workers, prefetch, lanes, timeouts, and
// the runtime's own calls.

func caseWorkers(c *trial, workers int) {
	c.open(Spec{})
	all := names(2 * workers)
	c.publish(all...)
	wait := c.gate()
	s := c.serve(setup{options: c.options(workers), handler: func(context.Context, *settle.Delivery) settle.Outcome {
		wait.pass()
		return settle.Ack()
	}})
	c.await(func() bool { return c.journal.working() >= workers }, "not %s run side by side", plural(workers, "handler"))
	wait.open()
	c.await(func() bool { return c.journal.allEnded(all) }, "not every message was acknowledged")
	s.stop()
	if peak := read(c.journal, func(j *journal) int { return j.peak }); peak != workers {
		c.fail("%s ran at once", plural(peak, "handler"))
	}
	c.times(1, all...)
}

func casePrefetch(c *trial) {
	c.open(Spec{})
	all := names(20)
	c.publish(all...)
	wait := c.gate()
	options := c.options(2)
	options.Prefetch = 5
	s := c.serve(setup{options: options, handler: func(context.Context, *settle.Delivery) settle.Outcome {
		wait.pass()
		return settle.Ack()
	}})
	most := options.Prefetch
	if t := s.traits(); t.Prefetch > 0 {
		most = min(most, t.Prefetch)
	}
	c.await(func() bool { return c.journal.unsettled() >= most }, "%d deliveries are not in work", most)
	wait.open()
	c.await(func() bool { return c.journal.allEnded(all) }, "not every message was acknowledged")
	s.stop()
	if most := read(c.journal, func(j *journal) int { return j.mostHand }); most > options.Prefetch {
		c.fail("%d deliveries waited for a worker or were with one, and the prefetch is %d", most, options.Prefetch)
	}
	c.times(1, all...)
}

func caseSlowHandler(c *trial) {
	c.open(Spec{})
	all := names(20)
	c.publish(all...)
	wait := c.gate()
	s := c.serve(setup{options: c.options(2), handler: func(_ context.Context, d *settle.Delivery) settle.Outcome {
		if nameOf(d.Body) == all[0] {
			wait.pass()
		}
		return settle.Ack()
	}})
	if s.traits().Whole {
		c.Logf("the source settles what it received together as one, so that only later deliveries can pass a slow one")
	}
	c.await(func() bool { return c.journal.allEnded(all[1:]) }, "while one handler is slow the others do not go on")
	if c.journal.ended(all[0]) > 0 {
		c.fail("the message of the slow handler was settled before its handler returned")
	}
	wait.open()
	s.stop()
	c.times(1, all...)
	c.remains(0)
}

func caseLanes(c *trial) {
	c.open(Spec{})
	// Lane "a" is short and slow; the others go on beside it. The messages of
	// all lanes come in turn.
	var all, others []string
	for i := range 10 {
		for _, lane := range []string{"a", "b", "c"} {
			if lane == "a" && i >= 3 {
				continue
			}
			all = append(all, fmt.Sprintf("%s-%d", lane, i))
			if lane != "a" {
				others = append(others, all[len(all)-1])
			}
		}
	}
	c.publish(all...)
	wait := c.gate()
	laneOf := func(name string) string { lane, _, _ := strings.Cut(name, "-"); return lane }
	options := c.options(8)
	options.Lane = func(d *settle.Delivery) string { return laneOf(nameOf(d.Body)) }
	s := c.serve(setup{options: options, handler: func(_ context.Context, d *settle.Delivery) settle.Outcome {
		if laneOf(nameOf(d.Body)) == "a" {
			wait.pass()
		}
		return settle.Ack()
	}})
	receivers := s.traits().Receivers
	c.await(func() bool { return c.journal.allEnded(others) }, "while one lane is slow the other lanes do not go on")
	wait.open()
	c.await(func() bool { return c.journal.allEnded(all) }, "not every message was acknowledged")
	s.stop()
	c.times(1, all...)
	arrived := read(c.journal, func(j *journal) []string { return slices.Clone(j.arrived) })
	for _, lane := range []string{"a", "b", "c"} {
		var calls []call
		for _, name := range arrived {
			if laneOf(name) == lane {
				calls = append(calls, c.journal.callsOf(name)...)
			}
		}
		if receivers > 1 { // no order of arrival to speak of
			slices.SortFunc(calls, func(a, b call) int { return a.began.Compare(b.began) })
		}
		for i := 1; i < len(calls); i++ {
			switch before, now := calls[i-1], calls[i]; {
			case now.began.Before(before.began):
				c.fail("message %q arrived before %q and was handled after it", before.name, now.name)
			case now.began.Before(before.ended):
				c.fail("messages %q and %q of one lane were with handlers at once", before.name, now.name)
			}
		}
	}
}

func caseTimeout(c *trial) {
	c.open(Spec{})
	c.publish("m00")
	type end struct{ err, cause error }
	ended := make(chan end, 1)
	options := c.options(1)
	options.Timeout = 50 * time.Millisecond
	s := c.serve(setup{options: options, handler: func(ctx context.Context, _ *settle.Delivery) settle.Outcome {
		if c.contextEnds(ctx) {
			ended <- end{ctx.Err(), context.Cause(ctx)}
		} else {
			ended <- end{}
		}
		return settle.Ack()
	}})
	c.await(func() bool { return c.journal.ended("m00") > 0 }, "the message was not acknowledged after its handler's timeout")
	s.stop()
	if got := <-ended; !errors.Is(got.err, context.DeadlineExceeded) || !errors.Is(got.cause, settle.ErrTimeout) {
		c.fail("the context's error is %v and its cause %v", got.err, got.cause)
	}
	c.times(1, "m00")
	c.remains(0)
}

// contextEnds waits in a handler until its context ends. It reports false at the
// deadline, and when the case is over.
func (c *trial) contextEnds(ctx context.Context) bool {
	timer := time.NewTimer(c.fixture.Deadline)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return true
	case <-timer.C:
	case <-c.over:
	}
	return false
}

func caseRunOnce(c *trial) {
	c.open(Spec{})
	s := c.serve(setup{handler: ack})
	s.opened()
	if err := s.runtime.Run(context.Background()); !errors.Is(err, settle.ErrRunning) {
		c.fail("a second Run beside the first returned %v", err)
	}
	s.stop()
	if err := s.runtime.Run(context.Background()); !errors.Is(err, settle.ErrRunning) {
		c.fail("a second Run after the first returned %v", err)
	}
}

func caseShutdownTwice(c *trial) {
	c.open(Spec{})
	all := names(5)
	c.publish(all...)
	s := c.serve(setup{handler: ack})
	c.await(func() bool { return c.journal.allEnded(all) }, "not every message was acknowledged")
	results := make(chan error, 2)
	for range 2 {
		go func() {
			ctx, cancel := c.soon()
			defer cancel()
			results <- s.runtime.Shutdown(ctx)
		}()
	}
	for range 2 {
		if err := <-results; err != nil {
			c.fail("one of two calls of Shutdown returned %v", err)
		}
	}
	if err := s.wait(); err != nil {
		c.fail("Run returned %v after Shutdown", err)
	}
	ctx, cancel := c.soon()
	defer cancel()
	if err := s.runtime.Shutdown(ctx); err != nil {
		c.fail("Shutdown after the end of Run returned %v", err)
	}
	c.remains(0)
}
