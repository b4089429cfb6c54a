package settletest

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/settlemq/settle"
)

// The cases that let much happen at once and count afterwards.

// fate is what is to become of one message: how its handler fails first, and
// how it ends.
type fate struct {
	fails []func() settle.Outcome
	end   settle.Outcome
}

// fates draws one for each name, and says which end as dead letters.
func (c *trial) fates(names []string) (map[string]fate, []string) {
	seed := rand.Uint64()
	c.Logf("the fates are those of seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	ways := []func() settle.Outcome{
		func() settle.Outcome { return settle.Retry(errFault) },
	}
	if !c.fixture.gap(RuleDelay) {
		ways = append(ways, func() settle.Outcome { return settle.RetryAfter(c.fixture.Delay, errFault) })
	}
	if c.spec.MaxAttempts > 0 { // without a cap these are held back for a second
		ways = append(ways, func() settle.Outcome { return settle.Outcome{} }, func() settle.Outcome { panic(errFault) })
	}
	all := make(map[string]fate, len(names))
	var dead []string
	for _, name := range names {
		f := fate{end: settle.Ack()}
		for range r.IntN(3) {
			f.fails = append(f.fails, ways[r.IntN(len(ways))])
		}
		switch {
		case r.IntN(4) > 0:
		case c.spec.DeadLetter:
			f.end = settle.DeadLetter(errFault)
			dead = append(dead, name)
		default:
			f.end = settle.Drop(errFault)
		}
		all[name] = f
	}
	return all, dead
}

// work is the handler that makes fates true, taking a little time over each.
func (c *trial) work(fates map[string]fate) settle.Handler {
	return c.plan(func(name string, nth int) settle.Outcome {
		time.Sleep(rand.N(time.Millisecond))
		f := fates[name]
		if nth <= len(f.fails) {
			return f.fails[nth-1]()
		}
		return f.end
	})
}

// endedOf is how many of the messages have ended.
func (c *trial) endedOf(names []string) int {
	n := 0
	for _, name := range names {
		n += min(c.journal.ended(name), 1)
	}
	return n
}

// exactly sees that each message was handled as often as its fate says, never
// twice at once, and was ended once.
func (c *trial) exactly(fates map[string]fate) {
	c.Helper()
	for name, f := range fates {
		if n := c.journal.ended(name); n != 1 {
			c.halt("message %q was ended by %s", name, plural(n, "settlement"))
		}
		calls := c.journal.callsOf(name)
		if want := len(f.fails) + 1; len(calls) != want {
			c.halt("message %q was handled %s, and should be %s", name, plural(len(calls), "time"), plural(want, "time"))
		}
		slices.SortFunc(calls, func(a, b call) int { return a.began.Compare(b.began) })
		for i := 1; i < len(calls); i++ {
			if calls[i].began.Before(calls[i-1].ended) {
				c.halt("message %q was with two handlers at once", name)
			}
		}
	}
}

func caseOneSettlement(c *trial) {
	spec := c.counted()
	spec.Delay = c.fixture.Delay
	for _, spec := range []Spec{spec, {Delay: spec.Delay}} {
		c.variant = "without a cap"
		if spec.MaxAttempts > 0 {
			c.variant = "with a cap"
		}
		c.open(spec)
		all := names(200)
		c.publish(all...)
		fates, dead := c.fates(all)
		for _, part := range []int{len(all) / 3, len(all)} {
			s := c.serve(setup{options: c.options(8), handler: c.work(fates)})
			c.await(func() bool { return c.endedOf(all) >= part }, "only %d of %d messages have ended", c.endedOf(all), len(all))
			s.stop()
		}
		c.exactly(fates)
		if spec.DeadLetter {
			c.deadLetters(dead...)
		}
		c.remains(0)
	}
}

func caseTwoConsumers(c *trial) {
	spec := c.counted()
	spec.Delay = c.fixture.Delay
	c.open(spec)
	c.needs(c.queue.Second != nil, "Second")
	all := names(150)
	c.publish(all...)
	fates, dead := c.fates(all)
	first := c.serve(setup{options: c.options(4), handler: c.work(fates)})
	second := c.serve(setup{source: c.queue.Second, options: c.options(4), handler: c.work(fates)})
	c.await(func() bool { return c.endedOf(all) >= len(all)/2 }, "half of the messages have not ended")
	first.stop()
	c.await(func() bool { return c.journal.allEnded(all) }, "not every message has ended; the first consumer has stopped")
	second.stop()
	c.exactly(fates)
	if spec.DeadLetter {
		c.deadLetters(dead...)
	}
	c.remains(0)
}

// caseGoroutines goes through all that a session can see; what it left behind
// is looked for afterwards, as after every case.
func caseGoroutines(c *trial) {
	spec := c.counted()
	spec.Delay = c.fixture.Delay
	c.open(spec)
	for round := range 3 {
		all := names(20 * (round + 1))[20*round:]
		fates, _ := c.fates(all)
		c.publish(all...)
		s := c.serve(setup{options: c.options(8), handler: c.work(fates)})
		c.await(func() bool { return c.endedOf(all) >= len(all)/2 }, "half of the messages have not ended")
		if c.queue.Sever != nil {
			c.sever()
		}
		c.await(func() bool { return c.journal.allEnded(all) }, "not every message has ended")
		s.stop()
	}
}
