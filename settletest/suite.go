package settletest

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

const (
	defaultDeadline = 15 * time.Second
	defaultDelay    = 250 * time.Millisecond
)

// Run holds the fixture's source to every rule, each in a subtest with the
// rule's name. It looks for goroutines that stay behind, so nothing else of
// the test binary may run beside it: no t.Parallel around it.
func Run(t *testing.T, f Fixture) {
	t.Helper()
	run(t, f, func(name string, fn func(testing.TB)) {
		t.Run(name, func(t *testing.T) { fn(t) })
	})
}

// run is Run by way of sub, which runs one subtest: the suite's own test has
// one that records failures.
func run(t testing.TB, f Fixture, sub func(name string, fn func(testing.TB))) {
	t.Helper()
	if !f.ready(t) {
		return
	}
	cases := cases()
	for _, r := range Rules() {
		sub(string(r), func(t testing.TB) {
			if reason, ok := f.Gaps[r]; ok {
				t.Skipf("gap: %s: %s", r.Sentence(), reason)
			}
			try(t, f, r, cases[r])
		})
	}
	t.Log(f.summary())
}

// ready fills in the defaults and reports, with an error each, what is wrong
// with the fixture.
func (f *Fixture) ready(t testing.TB) bool {
	t.Helper()
	if f.Deadline == 0 {
		f.Deadline = defaultDeadline
	}
	if f.Delay == 0 {
		f.Delay = defaultDelay
	}
	ok := true
	refuse := func(format string, args ...any) {
		t.Helper()
		t.Errorf("settletest: "+format, args...)
		ok = false
	}
	if f.New == nil {
		refuse("Fixture.New is nil: set the function that makes a queue for a case")
	}
	if f.Deadline < 0 || f.Delay < 0 {
		refuse("Fixture.Deadline is %v and Fixture.Delay %v: use positive durations, or zero for the defaults", f.Deadline, f.Delay)
	}
	if f.Deadline > 0 && f.Deadline < 8*f.Delay {
		refuse("Fixture.Deadline is %v, too near to a Delay of %v: the cases wait for several delays; raise it to eight times Delay", f.Deadline, f.Delay)
	}
	for r, reason := range f.Gaps {
		switch {
		case r.Sentence() == "":
			refuse("Fixture.Gaps names the rule %q, which does not exist: use one of the Rule constants", r)
		case strings.TrimSpace(reason) == "":
			refuse("Fixture.Gaps has the rule %q without a reason: say why the broker cannot keep it", r)
		}
	}
	return ok
}

// gap reports whether the fixture says that the broker cannot keep r.
func (f *Fixture) gap(r Rule) bool {
	_, ok := f.Gaps[r]
	return ok
}

// summary lists the gaps, in the order of the rules.
func (f *Fixture) summary() string {
	var b strings.Builder
	fmt.Fprintf(&b, "settletest: %d of %d rules were run; %d gaps", len(rules)-len(f.Gaps), len(rules), len(f.Gaps))
	for _, r := range Rules() {
		if reason, ok := f.Gaps[r]; ok {
			fmt.Fprintf(&b, "\n\tgap %q (%s): %s", r, r.Sentence(), reason)
		}
	}
	return b.String()
}
