package settletest

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/settlemq/settle"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// sideBySide is how many recorded runs go on at once: they mostly wait.
const sideBySide = 12

// record runs rules of several fixtures side by side. None can look for
// goroutines, because those of the others are there.
func record(t *testing.T, fixtures []Fixture, only func(i int) []Rule) []map[Rule]*recorder {
	results := make([]map[Rule]*recorder, len(fixtures))
	var all sync.WaitGroup
	room := make(chan struct{}, sideBySide)
	for i, f := range fixtures {
		f.Gaps = maps.Clone(f.Gaps)
		if f.Gaps == nil {
			f.Gaps = make(map[Rule]string)
		}
		f.Gaps[RuleGoroutines] = "others run beside it"
		all.Go(func() {
			room <- struct{}{}
			results[i] = recordRun(t, f, only(i)...)
			<-room
		})
	}
	all.Wait()
	return results
}

// How long the suite waits for what a mutant never does. On a machine that is
// so busy that a mutant fails for another reason it gets the patient one.
const (
	quick   = 2 * time.Second
	patient = 30 * time.Second
)

// Every rule's case can fail: a source with one thing wrong breaks it by name.
func TestABrokenSourceBreaksTheRule(t *testing.T) {
	fixtures := make([]Fixture, len(mutants))
	for i, m := range mutants {
		fixtures[i] = m.mutant.fixture(t, quick)
	}
	results := record(t, fixtures, func(i int) []Rule { return []Rule{mutants[i].rule} })
	for i, m := range mutants {
		t.Run(string(m.rule)+"/"+m.wrong, func(t *testing.T) {
			rule := fmt.Sprintf("broken rule %q: %s", m.rule, m.rule.Sentence())
			failures := results[i][m.rule].failures()
			if m.rule == RuleGoroutines { // which was a gap there
				failures = recordRun(t, m.mutant.fixture(t, quick), m.rule)[m.rule].failures()
			}
			if !strings.Contains(failures, rule) || !strings.Contains(failures, m.seen) {
				failures = recordRun(t, m.mutant.fixture(t, patient), m.rule)[m.rule].failures()
			}
			assert.Contains(t, failures, rule)
			assert.Contains(t, failures, m.seen)
		})
	}
}

func TestEveryRuleIsProvedByABrokenSource(t *testing.T) {
	proved := make(map[Rule]bool)
	for _, m := range mutants {
		proved[m.rule] = true
	}
	for _, r := range Rules() {
		assert.True(t, proved[r] != unbreakable[r], "rule %q", r)
	}
}

func TestEveryRuleHasACaseAndASentence(t *testing.T) {
	cases := cases()
	seen := make(map[Rule]bool)
	for _, r := range Rules() {
		assert.NotNil(t, cases[r], "rule %q has no case", r)
		assert.NotEmpty(t, r.Sentence(), "rule %q", r)
		assert.False(t, seen[r], "rule %q stands twice", r)
		seen[r] = true
	}
	assert.Len(t, cases, len(seen))
	assert.Empty(t, Rule("of thumb").Sentence())
}

// A source that is right passes on the recorder as it would without.
func TestAGoodSourcePasses(t *testing.T) {
	f := mutant{}.fixture(t, patient)
	for rule, r := range recordRun(t, f) {
		assert.False(t, r.Failed(), "rule %q: %s", rule, r.failures())
	}
}

// Sources of every shape pass, whatever their traits: the suite asks for
// nothing that the contract does not.
func TestGoodSourcesOfEveryShapePass(t *testing.T) {
	gap := func(reason string, rules ...Rule) map[Rule]string {
		gaps := make(map[Rule]string)
		for _, r := range rules {
			gaps[r] = reason
		}
		return gaps
	}
	shapes := []struct {
		name   string
		mutant mutant
		gaps   map[Rule]string
	}{
		{
			name: "a table that claims",
			mutant: mutant{delay: settle.DelayBySource, traits: func(m *mutated, t *settle.Traits) {
				t.Prefetch = m.registration.Workers * m.registration.Batch
			}},
			gaps: gap("nothing tells while every worker is busy", RuleSeverContext),
		},
		{
			name: "many receivers and settlers",
			mutant: mutant{traits: func(_ *mutated, t *settle.Traits) {
				t.Receivers, t.Settlers, t.MaxReceive, t.MaxSettle = 4, 4, 3, 2
			}},
		},
		{
			name: "a transaction a batch",
			mutant: mutant{delay: settle.DelayBySource, traits: func(m *mutated, t *settle.Traits) {
				t.Whole, t.MaxReceive, t.Receivers, t.Settlers = true, m.registration.Batch, 4, 4
			}},
		},
		{
			name:   "no delays",
			mutant: mutant{delay: settle.NoDelay},
			gaps:   gap("it cannot wait", RuleDelay, RuleDrainHolds),
		},
		{
			name: "no attempts",
			mutant: mutant{
				arrive: func(_ *mutated, d *settle.Delivery) { d.Attempt = 0 },
				traits: func(_ *mutated, t *settle.Traits) { t.AttemptUnknown = true },
				open: func(m *mutated, ctx context.Context, r settle.Registration) (settle.Consumer, error) {
					if r.MaxAttempts > 0 {
						return nil, &settle.ConfigError{Source: m.Name(), Setting: "MaxAttempts", Reason: "nothing counts", Fix: "leave it out"}
					}
					return m.openReal(ctx, r)
				},
			},
			gaps: gap("nothing counts", RuleAttempt, RuleFinal, RuleCap, RuleCapOne, RulePastCap, RuleDelayCap, RuleReleaseFree, RuleSeverAttempt),
		},
	}
	fixtures := make([]Fixture, len(shapes))
	for i, c := range shapes {
		fixtures[i] = c.mutant.fixture(t, patient)
		fixtures[i].Gaps = c.gaps
	}
	for i, result := range record(t, fixtures, func(int) []Rule { return nil }) {
		t.Run(shapes[i].name, func(t *testing.T) {
			for rule, r := range result {
				assert.False(t, r.Failed(), "rule %q: %s", rule, r.failures())
			}
		})
	}
}

func TestGapsAreToldNotRun(t *testing.T) {
	f := mutant{}.fixture(t, patient)
	f.Gaps = map[Rule]string{RuleAck: "it forgets", RuleSever: "it cannot be severed"}
	all := recordRun(t, f, RuleAck, RuleDrop)
	assert.False(t, all[""].Failed())
	require.Len(t, all[RuleAck].skips, 1)
	assert.Contains(t, all[RuleAck].skips[0], "it forgets")
	assert.Empty(t, all[RuleDrop].skips)
	require.Len(t, all[""].logs, 1)
	assert.Contains(t, all[""].logs[0], "2 gaps")
	assert.Contains(t, all[""].logs[0], `gap "sever"`)
	assert.Contains(t, all[""].logs[0], "it cannot be severed")
}

func TestAFixtureThatIsWrongRunsNothing(t *testing.T) {
	for _, c := range []struct {
		change func(*Fixture)
		want   string
	}{
		{func(f *Fixture) { f.New = nil }, "Fixture.New is nil"},
		{func(f *Fixture) { f.Deadline = -1 }, "Fixture.Deadline is -1ns"},
		{func(f *Fixture) { f.Delay = time.Hour }, "too near to a Delay of 1h0m0s"},
		{func(f *Fixture) { f.Gaps = map[Rule]string{"of thumb": "why not"} }, `"of thumb", which does not exist`},
		{func(f *Fixture) { f.Gaps = map[Rule]string{RuleAck: " "} }, `"ack" without a reason`},
	} {
		f := mutant{}.fixture(t, patient)
		c.change(&f)
		all := recordRun(t, f, RuleAck)
		assert.Contains(t, all[""].failures(), c.want)
		assert.Len(t, all, 1, "a case ran")
	}
}

// What the queue lacks and the fixture does not name as a gap is a failure.
func TestAQueueThatLacksSomethingFails(t *testing.T) {
	for rule, lack := range map[Rule]func(*Queue){
		RuleSever:        func(q *Queue) { q.Sever = nil },
		RulePastCap:      func(q *Queue) { q.PublishAttempt = nil },
		RuleTwoConsumers: func(q *Queue) { q.Second = nil },
		RuleDeadLetter:   func(q *Queue) { q.DeadLetters = nil },
	} {
		f := mutant{}.fixture(t, patient)
		whole := f.New
		f.New = func(t testing.TB, spec Spec) *Queue {
			q := whole(t, spec)
			lack(q)
			return q
		}
		result := recordRun(t, f, rule)[rule]
		assert.Contains(t, result.failures(), fmt.Sprintf("the rule %q needs Queue.", rule))
	}
	f := mutant{}.fixture(t, patient)
	f.Refused = nil
	assert.Contains(t, recordRun(t, f, RuleRefuse)[RuleRefuse].failures(), "needs Fixture.Refused")
}

// A queue that cannot count is looked into with a last message.
func TestAQueueThatCannotCount(t *testing.T) {
	for name, c := range map[string]struct {
		mutant mutant
		broken bool
	}{
		"right":            {mutant: mutant{}},
		"acks are ignored": {mutant: mutants[0].mutant, broken: true},
	} {
		f := c.mutant.fixture(t, quick)
		whole := f.New
		f.New = func(t testing.TB, spec Spec) *Queue {
			q := whole(t, spec)
			q.Remaining = nil
			return q
		}
		result := recordRun(t, f, RuleAck)[RuleAck]
		assert.Equal(t, c.broken, result.Failed(), "%s: %s", name, result.failures())
	}
}
