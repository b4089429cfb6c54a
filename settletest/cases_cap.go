package settletest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"

	"github.com/settlemq/settle"
)

// The cases of attempts and their cap.

func caseAttempt(c *trial, workers int) {
	c.open(c.counted())
	all := names(3)
	c.publish(all...)
	s := c.serve(setup{options: c.options(workers), handler: c.plan(func(_ string, nth int) settle.Outcome {
		if nth < 5 {
			return settle.Retry(errFault)
		}
		return settle.Ack()
	})})
	c.await(func() bool { return c.journal.allEnded(all) }, "not every message was acknowledged after four failures")
	s.stop()
	for _, name := range all {
		c.attempts(name, 1, 2, 3, 4, 5)
	}
}

// attempts sees with which attempts a message was handled.
func (c *trial) attempts(name string, want ...int) {
	c.Helper()
	if got := c.journal.attempts(name); !slices.Equal(got, want) {
		c.fail("message %q was handled with the attempts %v, and should be with %v", name, got, want)
	}
}

func caseFinal(c *trial) {
	for _, spec := range []Spec{c.capped(3), {}} {
		c.open(spec)
		c.publish("m00")
		s := c.serve(setup{handler: c.plan(func(_ string, nth int) settle.Outcome {
			if nth < 3 {
				return settle.Retry(errFault)
			}
			return settle.Ack()
		})})
		c.await(func() bool { return c.journal.ended("m00") > 0 }, "the message was not acknowledged after two failures")
		s.stop()
		for i, k := range c.journal.callsOf("m00") {
			if last := spec.MaxAttempts == i+1; k.delivery.Final != last {
				c.fail("with MaxAttempts %d delivery %d has Final %t", spec.MaxAttempts, i+1, k.delivery.Final)
			}
		}
	}
}

func caseCap(c *trial, workers int) {
	c.failing(workers, 3)
}

func caseCapOne(c *trial, workers int) {
	c.failing(workers, 1)
}

// failing sees that messages which fail in every way end at the cap.
func (c *trial) failing(workers, limit int) {
	spec := c.capped(limit)
	ways := map[string]func() settle.Outcome{
		"retry":  func() settle.Outcome { return settle.Retry(errFault) },
		"none":   func() settle.Outcome { return settle.Outcome{} },
		"panic":  func() settle.Outcome { panic(errFault) },
		"goexit": func() settle.Outcome { runtime.Goexit(); return settle.Ack() },
	}
	if !c.fixture.gap(RuleDelay) {
		spec.Delay = c.fixture.Delay
		ways["later"] = func() settle.Outcome { return settle.RetryAfter(spec.Delay, errFault) }
	}
	var bad []string
	for name := range ways {
		bad = append(bad, name)
	}
	c.open(spec)
	all := append([]string{"fine"}, bad...)
	c.publish(all...)
	s := c.serve(setup{options: c.options(workers), handler: c.plan(func(name string, _ int) settle.Outcome {
		if way := ways[name]; way != nil {
			return way()
		}
		return settle.Ack()
	})})
	c.await(func() bool { return c.journal.allEnded(all) }, "not every failing message has ended at the cap of %d", limit)
	s.stop()
	c.times(1, "fine")
	c.times(limit, bad...)
	for name, d := range c.deadLetters(bad...) {
		if d.Attempt != 0 && d.Attempt != limit {
			c.fail("the dead letter %q carries attempt %d, and failed at %d", name, d.Attempt, limit)
		}
	}
	c.remains(0)
}

func casePastCap(c *trial) {
	for _, batch := range []int{1, 8} {
		c.variant = "one by one"
		if batch > 1 {
			c.variant = "in batches"
		}
		c.pastCap(batch)
	}
}

func (c *trial) pastCap(batch int) {
	spec := c.capped(2)
	spec.Batch = batch
	c.open(spec)
	c.needs(c.queue.PublishAttempt != nil, "PublishAttempt")
	c.publish("first")
	for name, attempt := range map[string]int{"at": 2, "past": 3, "far": 9} {
		ctx, cancel := c.soon()
		if err := c.queue.PublishAttempt(ctx, attempt, settle.Message{Body: body(name)}); err != nil {
			c.Fatalf("settletest: Queue.PublishAttempt failed: %v", err)
		}
		cancel()
	}
	c.publish("last")
	with := setup{options: c.options(1), handler: c.plan(func(name string, _ int) settle.Outcome {
		if name == "at" {
			return settle.Retry(errFault)
		}
		return settle.Ack()
	})}
	if batch > 1 {
		with.batch = inBatch(with.handler)
	}
	s := c.serve(with)
	c.await(func() bool { return c.journal.allEnded([]string{"first", "at", "past", "far", "last"}) }, "not every message has ended")
	s.stop()
	c.times(1, "first", "at", "last")
	c.times(0, "past", "far")
	c.attempts("at", 2)
	for _, name := range []string{"past", "far"} {
		for _, end := range c.journal.settlementsOf(name) {
			if !errors.Is(end.Verdict.Cause, settle.ErrTooManyAttempts) {
				c.fail("the cause of %q is %v, and should be ErrTooManyAttempts", name, end.Verdict.Cause)
			}
		}
	}
	c.deadLetters("at", "past", "far")
	c.remains(0)
}

func caseCapNowhere(c *trial) {
	c.open(Spec{MaxAttempts: 2})
	c.publish("m00")
	s := c.serve(setup{handler: c.plan(func(string, int) settle.Outcome { return settle.Retry(errFault) })})
	ended := func() bool {
		select {
		case <-s.done:
			return true
		default:
			return c.journal.ended("m00") > 0
		}
	}
	c.await(ended, "the source has neither refused the registration nor ended the message at the cap")
	select {
	case <-s.done:
		c.isConfigError(s.err)
		c.times(0, "m00")
		c.remains(1)
	default:
		s.stop()
		c.times(2, "m00")
		c.remains(0)
	}
}

func caseRefuse(c *trial) {
	if c.fixture.Refused == nil {
		c.Fatalf("settletest: the rule %q needs Fixture.Refused: set it, or name the rule in Fixture.Gaps with the reason", c.rule)
	}
	source, options := c.fixture.Refused(c)
	c.journal = newJournal()
	c.queue, c.spec = &Queue{Source: source, DeadLetter: options.DeadLetter}, Spec{MaxAttempts: options.MaxAttempts}
	s := c.serve(setup{options: options, handler: ack})
	c.isConfigError(s.wait())
}

// isConfigError sees that err says what cannot be kept, why, and what to do.
func (c *trial) isConfigError(err error) {
	c.Helper()
	var config *settle.ConfigError
	if !errors.As(err, &config) {
		c.halt("Run returned %v, and should return a ConfigError", err)
	}
	for field, value := range map[string]string{
		"Source": config.Source, "Setting": config.Setting, "Reason": config.Reason, "Fix": config.Fix,
	} {
		if value == "" {
			c.fail("the ConfigError %q has no %s", config, field)
		}
	}
}

// times sees how often the messages were handled.
func (c *trial) times(want int, names ...string) {
	c.Helper()
	for _, name := range names {
		if got := c.journal.handled(name); got != want {
			c.halt("message %q was handled %s, and should be %s. %s", name, plural(got, "time"), plural(want, "time"), c.journal)
		}
	}
}

// plan makes a handler that goes by the message's name and by how often the
// message was handled, this time included.
func (c *trial) plan(outcome func(name string, nth int) settle.Outcome) settle.Handler {
	seen := c.journal
	return func(_ context.Context, d *settle.Delivery) settle.Outcome {
		name := nameOf(d.Body)
		return outcome(name, seen.handled(name))
	}
}

func plural(n int, word string) string {
	if n == 1 {
		return "1 " + word
	}
	return fmt.Sprintf("%d %ss", n, word)
}
