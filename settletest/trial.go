package settletest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/settlemq/settle"
)

// trial is one case under way: the rule it is about, the queue it uses now and
// what was seen of it. A case runs on the test's goroutine; handlers call only
// broken, and what has a lock of its own.
type trial struct {
	testing.TB
	fixture Fixture
	rule    Rule
	variant string // such as "8 workers"; for failures

	spec    Spec
	queue   *Queue
	journal *journal
	log     logText

	finished sync.Once
	over     chan struct{} // closed when the case has ended, well or not: handlers wait no longer
}

// try runs one case, and afterwards looks for goroutines that it left behind.
func try(t testing.TB, f Fixture, r Rule, run func(*trial)) {
	c := &trial{TB: t, fixture: f, rule: r, over: make(chan struct{})}
	before := goroutines()
	// Cleanups run last in, first out: after those of the case and its queue.
	t.Cleanup(func() {
		if f.gap(RuleGoroutines) || c.Failed() {
			return // a case that failed may have left its handlers waiting
		}
		if left := leftBehind(before, f.Deadline); left != "" {
			c.broken(RuleGoroutines, "after the case %q these are still there:\n%s", r, left)
		}
	})
	t.Cleanup(func() {
		if text := c.log.String(); c.Failed() && text != "" {
			c.Logf("the runtime's log, its end:\n%s", text)
		}
	})
	run(c)
}

// open makes the case a fresh queue and a fresh journal.
func (c *trial) open(spec Spec) {
	c.Helper()
	spec.Batch = max(spec.Batch, 1)
	c.spec = spec
	c.journal = newJournal()
	c.queue = c.fixture.New(c, spec)
	if c.queue == nil || c.queue.Source == nil || c.queue.Publish == nil {
		c.Fatalf("settletest: Fixture.New returned a queue without Source or Publish for %+v", spec)
	}
	if spec.DeadLetter && c.queue.DeadLetter == "" {
		c.Fatalf("settletest: Fixture.New returned no DeadLetter for %+v", spec)
	}
}

// finish lets go on what waits in handlers.
func (c *trial) finish() { c.finished.Do(func() { close(c.over) }) }

// needs ends the case when the queue lacks what the case is about and the
// fixture does not say so.
func (c *trial) needs(has bool, field string) {
	c.Helper()
	if !has {
		c.Fatalf("settletest: the rule %q needs Queue.%s: set it, or name the rule in Fixture.Gaps with the reason", c.rule, field)
	}
}

// capped is a Spec with a cap and its dead letter. Where the broker has no cap
// it asks for the dead letter alone.
func (c *trial) capped(attempts int) Spec {
	if c.fixture.gap(RuleCap) {
		return Spec{DeadLetter: true}
	}
	return Spec{MaxAttempts: attempts, DeadLetter: true}
}

// counted is a Spec for a case in which messages fail and end well: with a cap
// that they do not reach where the broker has caps, because that is where
// failures are counted on all of them.
func (c *trial) counted() Spec {
	if c.fixture.gap(RuleCap) || c.fixture.gap(RuleDeadLetter) {
		return Spec{}
	}
	return Spec{MaxAttempts: 20, DeadLetter: true}
}

// broken reports that a rule is broken, in words, and what was seen. The case
// goes on. Any goroutine may call it.
func (c *trial) broken(r Rule, format string, args ...any) {
	c.Helper()
	in := ""
	if c.variant != "" {
		in = " (" + c.variant + ")"
	}
	c.Errorf("broken rule %q: %s%s\n\tseen: %s", r, r.Sentence(), in, fmt.Sprintf(format, args...))
}

// fail is broken for the rule of the case.
func (c *trial) fail(format string, args ...any) {
	c.Helper()
	c.broken(c.rule, format, args...)
}

// halt is fail, and ends the case.
func (c *trial) halt(format string, args ...any) {
	c.Helper()
	c.broken(c.rule, format, args...)
	c.FailNow()
}

// await waits until cond holds. At the deadline it ends the case with what is missing.
func (c *trial) await(cond func() bool, missing string, args ...any) {
	c.Helper()
	if !c.within(cond) {
		c.halt("%s; waited %v. %s", fmt.Sprintf(missing, args...), c.fixture.Deadline, c.journal)
	}
}

// within reports whether cond came to hold before the deadline.
func (c *trial) within(cond func() bool) bool {
	deadline := time.Now().Add(c.fixture.Deadline)
	for pause := time.Millisecond; !cond(); pause = min(2*pause, 20*time.Millisecond) {
		if time.Now().After(deadline) {
			return cond()
		}
		time.Sleep(pause)
	}
	return true
}

// soon returns a context that ends at the deadline.
func (c *trial) soon() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), c.fixture.Deadline)
}

// publish puts messages of those names into the queue. The name of a message is
// what its body says; see body.
func (c *trial) publish(names ...string) {
	c.Helper()
	msgs := make([]settle.Message, len(names))
	for i, name := range names {
		msgs[i] = settle.Message{Body: body(name)}
	}
	c.send(msgs...)
}

func (c *trial) send(msgs ...settle.Message) {
	c.Helper()
	ctx, cancel := c.soon()
	defer cancel()
	if err := c.queue.Publish(ctx, msgs...); err != nil {
		c.Fatalf("settletest: Queue.Publish of %d messages failed: %v", len(msgs), err)
	}
}

// body is the message of that name: JSON, for tables that take no other.
func body(name string) []byte { return []byte(`"` + name + `"`) }

// nameOf is the name of a message by its body.
func nameOf(body []byte) string { return strings.Trim(string(body), `"`) }

// names returns n names: m00, m01, ...
func names(n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf("m%02d", i)
	}
	return all
}

// remains waits until that many messages are in the queue. No consumer may be open.
func (c *trial) remains(want int) {
	c.Helper()
	if c.queue.Remaining == nil {
		if want == 0 {
			c.nothingBefore("last")
		}
		return
	}
	var got int
	var err error
	ok := c.within(func() bool {
		ctx, cancel := c.soon()
		defer cancel()
		got, err = c.queue.Remaining(ctx)
		return err == nil && got == want
	})
	switch {
	case err != nil:
		c.Fatalf("settletest: Queue.Remaining failed: %v", err)
	case !ok:
		c.halt("%d messages are in the queue, and %d should be. %s", got, want, c.journal)
	}
}

// nothingBefore sends a last message through a queue that cannot count, and
// fails when another comes before it.
func (c *trial) nothingBefore(name string) {
	c.Helper()
	c.publish(name)
	s := c.serve(setup{handler: func(context.Context, *settle.Delivery) settle.Outcome { return settle.Ack() }})
	earlier := c.journal.count()
	c.await(func() bool { return c.journal.ended(name) > 0 }, "the last message %q did not come", name)
	s.stop()
	if n := c.journal.count() - earlier; n > 1 {
		c.halt("%d messages were left in the queue. %s", n-1, c.journal)
	}
}

// deadLetters waits until the dead letters are those of the given names, each
// once, and returns them by name. The services must have stopped.
func (c *trial) deadLetters(want ...string) map[string]DeadLetter {
	c.Helper()
	want = slices.Sorted(slices.Values(want))
	var got []string
	var all []DeadLetter
	c.within(func() bool {
		all, got = c.readDeadLetters(), nil
		for _, d := range all {
			got = append(got, nameOf(d.Body))
		}
		slices.Sort(got)
		return len(got) >= len(want)
	})
	if !slices.Equal(got, want) {
		c.halt("the dead letters are %q, and should be %q. %s", got, want, c.journal)
	}
	byName := make(map[string]DeadLetter)
	for _, d := range all {
		byName[nameOf(d.Body)] = d
	}
	return byName
}

func (c *trial) readDeadLetters() []DeadLetter {
	c.Helper()
	c.needs(c.queue.DeadLetters != nil, "DeadLetters")
	ctx, cancel := c.soon()
	defer cancel()
	all, err := c.queue.DeadLetters(ctx)
	if err != nil {
		c.Fatalf("settletest: Queue.DeadLetters failed: %v", err)
	}
	return all
}

// logger returns a logger whose last lines are shown when the case fails.
func (c *trial) logger() *slog.Logger { return slog.New(slog.NewTextHandler(&c.log, nil)) }

// logText keeps the end of a log.
type logText struct {
	mu   sync.Mutex // guards text
	text bytes.Buffer
}

const mostLog = 8 << 10

func (l *logText) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n, err := l.text.Write(p)
	if over := l.text.Len() - mostLog; over > 0 {
		l.text.Next(over)
	}
	return n, err
}

func (l *logText) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// isLost reports whether err says that a delivery is no longer its session's.
func isLost(err error) bool {
	return errors.Is(err, settle.ErrSessionLost) || errors.Is(err, settle.ErrLeaseLost)
}
