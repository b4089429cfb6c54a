package settletest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"

	"github.com/settlemq/settle"
)

// The cases of outcomes: each is made true, and nothing else happens.

func caseAck(c *trial, workers int) { c.ends(workers, settle.Ack()) }

func caseDrop(c *trial, workers int) { c.ends(workers, settle.Drop(errFault)) }

func caseDeadLetterNowhere(c *trial, workers int) { c.ends(workers, settle.DeadLetter(errFault)) }

// ends sees that an outcome ends messages at their first delivery, on a queue
// without cap and dead letter.
func (c *trial) ends(workers int, o settle.Outcome) {
	c.open(Spec{})
	all := names(20)
	c.publish(all...)
	s := c.serve(setup{options: c.options(workers), handler: c.plan(func(string, int) settle.Outcome { return o })})
	c.await(func() bool { return c.journal.allEnded(all) }, "not every message was handled and settled")
	s.stop()
	c.times(1, all...)
	c.remains(0)
}

func caseRetry(c *trial, workers int) {
	c.open(c.counted())
	all := names(10)
	c.publish(all...)
	s := c.serve(setup{options: c.options(workers), handler: c.plan(func(name string, nth int) settle.Outcome {
		if name == all[0] && nth <= 2 {
			return settle.Retry(errFault)
		}
		return settle.Ack()
	})})
	c.await(func() bool { return c.journal.allEnded(all) }, "not every message was acknowledged, %q after two retries", all[0])
	s.stop()
	c.times(3, all[0])
	c.times(1, all[1:]...)
	calls := c.journal.callsOf(all[0])
	for _, k := range calls[1:] {
		if k.delivery.ID != calls[0].delivery.ID {
			c.fail("message %q came with the ID %q and again with %q", all[0], calls[0].delivery.ID, k.delivery.ID)
		}
	}
	c.remains(0)
}

func caseNoOutcome(c *trial) {
	c.fault(func(context.Context) settle.Outcome { return settle.Outcome{} }, func(cause error) string {
		if !errors.Is(cause, settle.ErrNoOutcome) {
			return "is not ErrNoOutcome"
		}
		return ""
	})
}

func casePanic(c *trial, workers int) {
	c.fault(func(context.Context) settle.Outcome { panic(errFault) }, func(cause error) string {
		var p *settle.PanicError
		if !errors.As(cause, &p) || p.Goexit || !errors.Is(cause, errFault) {
			return "is not a PanicError with the panic's value"
		}
		return ""
	}, workers)
}

func caseGoexit(c *trial, workers int) {
	c.fault(func(context.Context) settle.Outcome { runtime.Goexit(); return settle.Ack() }, func(cause error) string {
		var p *settle.PanicError
		if !errors.As(cause, &p) || !p.Goexit {
			return "is not a PanicError of Goexit"
		}
		return ""
	}, workers)
}

// fault sees that a handler's failure of some kind brings its message again,
// with the right cause, and that the other messages go on.
func (c *trial) fault(fail func(context.Context) settle.Outcome, wrong func(cause error) string, workers ...int) {
	c.open(c.counted())
	all := names(6)
	c.publish(all...)
	seen := c.journal
	s := c.serve(setup{options: c.options(append(workers, 1)[0]), handler: func(ctx context.Context, d *settle.Delivery) settle.Outcome {
		if name := nameOf(d.Body); name == all[0] && seen.handled(name) == 1 {
			return fail(ctx)
		}
		return settle.Ack()
	}})
	c.await(func() bool { return c.journal.allEnded(all) }, "not every message was acknowledged, %q after its handler failed once", all[0])
	s.stop()
	c.times(2, all[0])
	c.times(1, all[1:]...)
	first := c.journal.settlementsOf(all[0])[0]
	if first.Verdict.Action != settle.ActionRetry {
		c.fail("the first delivery of %q was settled by %v", all[0], first.Verdict.Action)
	}
	if text := wrong(first.Verdict.Cause); text != "" {
		c.fail("the cause %q %s", first.Verdict.Cause, text)
	}
	c.remains(0)
}

// oddBodies are bodies that a careless source changes.
func oddBodies() [][]byte {
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	return [][]byte{{}, {0}, every, []byte("\"grün\" \U0001F600\r\n"), slices.Repeat(every, 256)}
}

func caseBodies(c *trial) {
	c.open(c.capped(20))
	bodies := oddBodies()
	msgs := make([]settle.Message, len(bodies))
	var once, twice []string
	for i, b := range bodies {
		msgs[i].Body = slices.Clone(b)
		once, twice = append(once, string(b)), append(twice, string(b), string(b))
	}
	c.send(msgs...)
	s := c.serve(setup{handler: c.plan(func(_ string, nth int) settle.Outcome {
		if nth == 1 {
			return settle.Retry(errFault)
		}
		return settle.DeadLetter(errFault)
	})})
	c.await(func() bool {
		return read(c.journal, func(j *journal) bool { return len(j.settled) >= len(twice) })
	}, "not every body came twice and was dead-lettered")
	s.stop()
	c.sameBodies("handled", read(c.journal, func(j *journal) []string {
		var all []string
		for _, k := range j.calls {
			all = append(all, string(k.delivery.Body))
		}
		return all
	}), twice)
	c.await(func() bool { return len(c.readDeadLetters()) >= len(once) }, "not every body is a dead letter")
	var dead []string
	for _, d := range c.readDeadLetters() {
		dead = append(dead, string(d.Body))
	}
	c.sameBodies("dead-lettered", dead, once)
}

// sameBodies compares two lists of bodies, in whatever order.
func (c *trial) sameBodies(what string, got, want []string) {
	c.Helper()
	slices.Sort(got)
	slices.Sort(want)
	for i := range max(len(got), len(want)) {
		switch {
		case i >= len(got) || i >= len(want):
			c.halt("%d bodies were %s, and should be %d", len(got), what, len(want))
		case got[i] != want[i]:
			c.halt("a body was %s as %s, and should be %s", what, short(got[i]), short(want[i]))
		}
	}
}

func short(s string) string {
	if len(s) > 64 {
		return fmt.Sprintf("%q and so on, %d bytes", s[:64], len(s))
	}
	return fmt.Sprintf("%q", s)
}

// someHeaders are headers that every broker carries.
func someHeaders() settle.Headers {
	return settle.Headers{"x-trace": "00-4bf92f-01", "tenant": "Zürich; \"north\"", "Mixed-Case": "kept", "empty": ""}
}

// sameHeaders sees that got has all that was published.
func (c *trial) sameHeaders(where string, got settle.Headers) {
	c.Helper()
	for key, want := range someHeaders() {
		if _, there := got[key]; !there {
			c.fail("%s lacks the header %q", where, key)
		} else if got.Get(key) != want {
			c.fail("%s has the header %q as %q, and should have %q", where, key, got.Get(key), want)
		}
	}
}

func caseHeaders(c *trial) {
	c.open(c.counted())
	c.send(settle.Message{Body: body("m00"), Headers: someHeaders()}, settle.Message{Body: body("m01")})
	s := c.serve(setup{handler: c.plan(func(_ string, nth int) settle.Outcome {
		if nth < 3 {
			return settle.Retry(errFault)
		}
		return settle.Ack()
	})})
	c.await(func() bool { return c.journal.allEnded(names(2)) }, "the messages were not acknowledged after two retries")
	s.stop()
	for i, k := range c.journal.callsOf("m00") {
		c.sameHeaders(fmt.Sprintf("delivery %d", i+1), k.delivery.Headers)
	}
	for _, k := range c.journal.callsOf("m01") {
		for key := range someHeaders() {
			if _, there := k.delivery.Headers[key]; there {
				c.fail("a message without headers came with the header %q of another", key)
			}
		}
	}
}

func caseDeadLetter(c *trial, workers int) {
	c.open(c.capped(5))
	c.publish("first", "second", "fine")
	s := c.serve(setup{options: c.options(workers), handler: c.plan(func(name string, nth int) settle.Outcome {
		switch {
		case name == "first", name == "second" && nth == 2:
			return settle.DeadLetter(errFault)
		case name == "second":
			return settle.Retry(errFault)
		}
		return settle.Ack()
	})})
	c.await(func() bool { return c.journal.allEnded([]string{"first", "second", "fine"}) }, "not every message was settled")
	s.stop()
	c.times(1, "first", "fine")
	c.times(2, "second")
	dead := c.deadLetters("first", "second")
	for name, attempt := range map[string]int{"first": 1, "second": 2} {
		if got := dead[name].Attempt; got != 0 && got != attempt {
			c.fail("the dead letter %q carries attempt %d, and failed at %d", name, got, attempt)
		}
		if got := dead[name].Cause; got != "" && !strings.Contains(got, errFault.Error()) {
			c.fail("the dead letter %q carries the cause %q, and the handler gave %q", name, got, errFault)
		}
	}
	c.remains(0)
}

func caseDeadLetterHeaders(c *trial) {
	c.open(c.capped(2))
	c.send(settle.Message{Body: body("now"), Headers: someHeaders()}, settle.Message{Body: body("end"), Headers: someHeaders()})
	s := c.serve(setup{handler: c.plan(func(name string, nth int) settle.Outcome {
		if name == "end" && nth == 1 {
			return settle.Retry(errFault)
		}
		return settle.DeadLetter(errFault)
	})})
	c.await(func() bool { return c.journal.allEnded([]string{"now", "end"}) }, "the messages were not dead-lettered")
	s.stop()
	for name, d := range c.deadLetters("now", "end") {
		c.sameHeaders(fmt.Sprintf("the dead letter %q", name), d.Headers)
	}
}
