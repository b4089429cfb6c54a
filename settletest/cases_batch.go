package settletest

import (
	"context"
	"errors"
	"strings"

	"github.com/settlemq/settle"
)

// The cases of batch handlers.

// batchSize is that of the batch cases, and how many messages they publish.
const batchSize = 8

// fullBatch serves a batch handler that sees more than one delivery at once:
// its first call waits until as much is received as may be. See first.
func (c *trial) fullBatch(handler settle.BatchHandler) *service {
	c.Helper()
	wait := c.gate()
	options := c.options(1)
	options.Prefetch = batchSize
	s := c.serve(setup{options: options, batch: func(ctx context.Context, batch []*settle.Delivery) []settle.Outcome {
		wait.pass()
		return handler(ctx, batch)
	}})
	most := batchSize
	if t := s.traits(); t.Prefetch > 0 {
		most = min(most, t.Prefetch)
	}
	c.await(func() bool { return c.journal.unsettled() >= most }, "not %s were received", plural(most, "message"))
	wait.open()
	return s
}

func caseBatch(c *trial) {
	spec := c.counted()
	spec.Batch = batchSize
	if !c.fixture.gap(RuleDelay) {
		spec.Delay = c.fixture.Delay
	}
	c.open(spec)
	all := names(batchSize)
	c.publish(all...)
	// By the last figure of the name: 0 and 1 ack, 2 fails once, 3 waits once,
	// 4 decides nothing once, 5 is dead-lettered, 6 acks, 7 fails twice.
	outcome := func(name string, nth int) settle.Outcome {
		switch last := name[len(name)-1]; {
		case last == '2' && nth == 1, last == '7' && nth <= 2:
			return settle.Retry(errFault)
		case last == '3' && nth == 1:
			return settle.RetryAfter(spec.Delay, errFault)
		case last == '4' && nth == 1:
			return settle.Outcome{}
		case last == '5':
			return settle.DeadLetter(errFault)
		default:
			return settle.Ack()
		}
	}
	s := c.fullBatch(inBatch(c.plan(outcome)))
	c.await(func() bool { return c.journal.allEnded(all) }, "not every message of the batches has ended")
	s.stop()
	for i, want := range []int{1, 1, 2, 2, 2, 1, 1, 3} {
		c.times(want, all[i])
	}
	if !c.fixture.gap(RuleDelay) {
		c.notEarly(all[3], spec.Delay)
	}
	if spec.DeadLetter {
		c.deadLetters(all[5])
	}
	c.remains(0)
}

func caseBatchLength(c *trial) {
	for _, more := range []int{-1, 1} {
		c.batchFault(func(n int) []settle.Outcome {
			outcomes := make([]settle.Outcome, n+more)
			for i := range outcomes {
				outcomes[i] = settle.Ack()
			}
			return outcomes
		}, func(cause error) string {
			if cause == nil || !strings.Contains(cause.Error(), "outcomes") {
				return "does not say that the number of outcomes was wrong"
			}
			return ""
		})
	}
}

func caseBatchPanic(c *trial) {
	c.batchFault(func(int) []settle.Outcome { panic(errFault) }, func(cause error) string {
		var p *settle.PanicError
		if !errors.As(cause, &p) || !errors.Is(cause, errFault) {
			return "is not a PanicError with the panic's value"
		}
		return ""
	})
}

// batchFault sees that a batch handler's failure brings every message again
// that it had, with the right cause.
func (c *trial) batchFault(fail func(n int) []settle.Outcome, wrong func(cause error) string) {
	spec := c.counted()
	spec.Batch = batchSize
	c.open(spec)
	all := names(batchSize)
	c.publish(all...)
	seen := c.journal
	s := c.fullBatch(func(_ context.Context, batch []*settle.Delivery) []settle.Outcome {
		for _, d := range batch {
			if seen.handled(nameOf(d.Body)) == 1 {
				return fail(len(batch))
			}
		}
		return inBatch(ack)(context.Background(), batch)
	})
	c.await(func() bool { return c.journal.allEnded(all) }, "not every message was acknowledged after its batch failed")
	s.stop()
	for _, name := range all {
		ends := c.journal.settlementsOf(name)
		if len(ends) < 2 {
			c.halt("message %q was settled %s, though its first batch failed. %s", name, plural(len(ends), "time"), c.journal)
		}
		for _, end := range ends[:len(ends)-1] {
			if end.Verdict.Action != settle.ActionRetry {
				c.fail("a delivery of %q whose batch failed was settled by %v", name, end.Verdict.Action)
			}
			if text := wrong(end.Verdict.Cause); text != "" {
				c.fail("the cause %v %s", end.Verdict.Cause, text)
			}
		}
	}
	c.remains(0)
}
