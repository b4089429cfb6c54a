package settletest

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Every rule's case can fail: a source with one thing wrong breaks it by name.
func TestABrokenSourceBreaksTheRule(t *testing.T) {
	for _, m := range mutants {
		t.Run(string(m.rule)+"/"+m.wrong, func(t *testing.T) {
			f := m.mutant.fixture(t)
			f.Deadline, f.Delay = brokenDeadline, brokenDeadline/8
			result := recordRun(t, f, m.rule)[m.rule]
			assert.True(t, result.Failed(), "the suite passed")
			assert.Contains(t, result.failures(), fmt.Sprintf("broken rule %q: %s", m.rule, m.rule.Sentence()))
			assert.Contains(t, result.failures(), m.seen)
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

// The recorder changes nothing: a source that is right passes on it.
func TestAGoodSourcePasses(t *testing.T) {
	f := mutant{}.fixture(t)
	f.Delay = 50 * time.Millisecond
	for rule, r := range recordRun(t, f) {
		assert.False(t, r.Failed(), "rule %q: %s", rule, r.failures())
	}
}

func TestGapsAreToldNotRun(t *testing.T) {
	f := mutant{}.fixture(t)
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
		{func(f *Fixture) { f.Gaps = map[Rule]string{"of thumb": "why not"} }, `"of thumb", which does not exist`},
		{func(f *Fixture) { f.Gaps = map[Rule]string{RuleAck: " "} }, `"ack" without a reason`},
	} {
		f := mutant{}.fixture(t)
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
		f := mutant{}.fixture(t)
		whole := f.New
		f.New = func(t testing.TB, spec Spec) *Queue {
			q := whole(t, spec)
			lack(q)
			return q
		}
		result := recordRun(t, f, rule)[rule]
		assert.Contains(t, result.failures(), fmt.Sprintf("the rule %q needs Queue.", rule))
	}
	f := mutant{}.fixture(t)
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
		f := c.mutant.fixture(t)
		f.Deadline = brokenDeadline
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
