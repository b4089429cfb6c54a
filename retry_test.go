package settle

import (
	"errors"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"pgregory.net/rapid"
)

// What an outcome asks for can be read back, by middleware and by tests of handlers.
func TestOutcomeAction(t *testing.T) {
	for _, c := range []struct {
		outcome Outcome
		want    Action
	}{
		{Outcome{}, ActionRetry},
		{Ack(), ActionAck},
		{Drop(nil), ActionDrop},
		{Retry(nil), ActionRetry},
		{RetryAfter(time.Second, nil), ActionRetry},
		{DeadLetter(nil), ActionDeadLetter},
		{Outcome{kind: outcomePanic}, ActionRetry},
	} {
		assert.Equal(t, c.want, c.outcome.Action(), c.outcome)
	}
}

// The table of the README, row by row and then its edges.
func TestDecide(t *testing.T) {
	cause := errors.New("cause")
	inProcess, bySource, never := Traits{}, Traits{Delay: DelayBySource}, Traits{Delay: NoDelay}
	short := Traits{LongestDelay: time.Minute}
	shortBySource := Traits{Delay: DelayBySource, LongestDelay: time.Minute}
	verdict := func(a Action, c error) decision { return decision{verdict: Verdict{Action: a, Cause: c}} }
	after := func(d time.Duration, c error) decision {
		return decision{verdict: Verdict{Action: ActionRetry, Delay: d, Cause: c}}
	}
	held := func(d time.Duration, c error) decision {
		return decision{verdict: Verdict{Action: ActionRetry, Cause: c}, hold: d}
	}
	tooLong := func(d time.Duration, problem error) decision {
		return decision{verdict: Verdict{Action: ActionRetry, Cause: cause}, tooLong: d, problem: problem}
	}
	panicked := Outcome{kind: outcomePanic, cause: cause}

	for _, c := range []struct {
		name           string
		outcome        Outcome
		attempt, limit int
		age            time.Duration
		traits         Traits
		want           decision
	}{
		{"ack below the cap", Ack(), 1, 3, 0, inProcess, verdict(ActionAck, nil)},
		{"ack at the cap", Ack(), 3, 3, 0, inProcess, verdict(ActionAck, nil)},
		{"drop below the cap", Drop(cause), 1, 3, 0, inProcess, verdict(ActionDrop, cause)},
		{"drop at the cap", Drop(cause), 3, 3, 0, inProcess, verdict(ActionDrop, cause)},
		{"dead-letter below the cap", DeadLetter(cause), 1, 3, 0, inProcess, verdict(ActionDeadLetter, cause)},
		{"dead-letter without a cap", DeadLetter(cause), 9, 0, 0, inProcess, verdict(ActionDeadLetter, cause)},
		{"retry below the cap", Retry(cause), 2, 3, 0, inProcess, verdict(ActionRetry, cause)},
		{"retry at the cap", Retry(cause), 3, 3, 0, inProcess, verdict(ActionDeadLetter, cause)},
		{"retry past the cap", Retry(cause), 4, 3, 0, inProcess, verdict(ActionDeadLetter, cause)},
		{"the first failure at a cap of 1", Retry(cause), 1, 1, 0, inProcess, verdict(ActionDeadLetter, cause)},
		{"retry without a cap", Retry(cause), math.MaxInt, 0, 0, inProcess, verdict(ActionRetry, cause)},
		{"retry_after where the source waits", RetryAfter(time.Second, cause), 1, 3, time.Hour, bySource, after(time.Second, cause)},
		{"retry_after where the runtime waits", RetryAfter(time.Second, cause), 1, 3, time.Hour, inProcess, held(time.Second, cause)},
		{"retry_after at the cap does not wait", RetryAfter(time.Second, cause), 3, 3, 0, inProcess, verdict(ActionDeadLetter, cause)},
		{"retry_after of nothing", RetryAfter(0, cause), 1, 3, 0, inProcess, verdict(ActionRetry, cause)},
		{"retry_after of less than nothing", RetryAfter(-time.Second, cause), 1, 3, 0, inProcess, verdict(ActionRetry, cause)},
		{"retry_after where nobody can wait", RetryAfter(time.Second, cause), 1, 3, 0, never, tooLong(time.Second, ErrNoDelay)},
		{"a delay at the longest", RetryAfter(time.Minute, cause), 1, 3, 0, shortBySource, tooLong(time.Minute, ErrDelayTooLong)},
		{"a delay just under the longest", RetryAfter(time.Minute-1, cause), 1, 3, time.Hour, shortBySource, after(time.Minute-1, cause)},
		{"an age that makes the delay too long", RetryAfter(40*time.Second, cause), 1, 3, 20 * time.Second, short, tooLong(40*time.Second, ErrDelayTooLong)},
		{"an age that does not", RetryAfter(40*time.Second, cause), 1, 3, 19 * time.Second, short, held(40*time.Second, cause)},
		{"a delay that overflows with its age", RetryAfter(math.MaxInt64, cause), 1, 3, time.Hour, short, tooLong(math.MaxInt64, ErrDelayTooLong)},
		{"no outcome below the cap", Outcome{}, 1, 3, 0, inProcess, verdict(ActionRetry, ErrNoOutcome)},
		{"no outcome at the cap", Outcome{}, 3, 3, 0, inProcess, verdict(ActionDeadLetter, ErrNoOutcome)},
		{"no outcome without a cap", Outcome{}, 1, 0, 0, inProcess, held(time.Second, ErrNoOutcome)},
		{"no outcome without a cap, the source waits", Outcome{}, 1, 0, 0, bySource, after(time.Second, ErrNoOutcome)},
		{"no outcome without a cap, nobody can wait", Outcome{}, 1, 0, 0, never, held(time.Second, ErrNoOutcome)},
		{"a panic below the cap", panicked, 1, 3, 0, inProcess, verdict(ActionRetry, cause)},
		{"a panic at the cap", panicked, 3, 3, 0, inProcess, verdict(ActionDeadLetter, cause)},
		{"a panic without a cap", panicked, 1, 0, 0, inProcess, held(time.Second, cause)},
		{"a panic where a second is too long", panicked, 1, 0, 0, Traits{LongestDelay: time.Second}, held(500*time.Millisecond, cause)},
		{"an unknown attempt without a cap", Retry(cause), 0, 0, 0, Traits{AttemptUnknown: true}, verdict(ActionRetry, cause)},
	} {
		t.Run(c.name, func(t *testing.T) {
			assert.Equal(t, c.want, decide(c.outcome, c.attempt, c.age, c.limit, c.traits))
		})
	}
}

// Whatever comes in: a failure never passes the cap, and a delay is kept or reported.
func TestDecideEndsWhatFails(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := Outcome{
			kind:  outcomeKind(rapid.IntRange(int(outcomeNone), int(outcomePanic)).Draw(t, "kind")),
			delay: time.Duration(rapid.Int64Min(0).Draw(t, "delay")),
		}
		attempt := rapid.IntRange(0, 10).Draw(t, "attempt")
		limit := rapid.IntRange(0, 10).Draw(t, "limit")
		traits := Traits{
			Delay:        DelayPlace(rapid.IntRange(0, 2).Draw(t, "place")),
			LongestDelay: time.Duration(rapid.Int64Min(0).Draw(t, "longest")),
		}
		got := decide(o, attempt, time.Duration(rapid.Int64Min(0).Draw(t, "age")), limit, traits)
		if limit > 0 && attempt >= limit && got.verdict.Action == ActionRetry {
			t.Fatalf("attempt %d of %d is retried: %+v", attempt, limit, got)
		}
		if got.verdict.Action == ActionRetry && o.kind == outcomeRetryAfter && o.delay > 0 {
			if got.verdict.Delay != o.delay && got.hold != o.delay && got.problem == nil {
				t.Fatalf("the delay %v is neither kept nor reported: %+v", o.delay, got)
			}
		}
		if got.hold < 0 || got.verdict.Delay < 0 {
			t.Fatalf("a negative wait: %+v", got)
		}
	})
}

func TestPastCap(t *testing.T) {
	assert.False(t, pastCap(3, 3), "the attempt with the cap's number reaches its handler")
	assert.True(t, pastCap(4, 3), "the next one does not")
	assert.False(t, pastCap(1000, 0), "without a cap every attempt does")
	assert.True(t, final(3, 3))
	assert.False(t, final(2, 3))
	assert.False(t, final(2, 0))
}

func TestBackoffBounds(t *testing.T) {
	var zero Backoff
	for attempt, want := range map[int]time.Duration{
		-1: time.Second, 0: time.Second, 1: time.Second, 2: 2 * time.Second, 5: 16 * time.Second, 10: 5 * time.Minute, math.MaxInt: 5 * time.Minute,
	} {
		assert.Equal(t, want, zero.bound(attempt), "attempt %d", attempt)
	}
	b := Backoff{Base: 10 * time.Millisecond, Max: time.Second, Factor: 3}
	assert.Equal(t, 90*time.Millisecond, b.bound(3))
	assert.Equal(t, time.Second, b.bound(9))
	assert.Equal(t, time.Second, Backoff{Base: time.Hour, Max: time.Second}.bound(1), "a base over the maximum")
}

func TestBackoffDelay(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := Backoff{
			Base:   time.Duration(rapid.Int64().Draw(t, "base")),
			Max:    time.Duration(rapid.Int64().Draw(t, "max")),
			Min:    time.Duration(rapid.Int64().Draw(t, "min")),
			Factor: rapid.Float64().Draw(t, "factor"),
		}
		attempt := rapid.Int().Draw(t, "attempt")
		d := b.Delay(attempt)
		if d < 0 || d > b.bound(attempt) {
			t.Fatalf("%v is outside 0 to %v", d, b.bound(attempt))
		}
		if least := min(b.Min, b.bound(attempt)); d < least {
			t.Fatalf("%v is under the least wait %v", d, least)
		}
	})
}

// Full jitter: the lower half of the range is hit as often as the upper.
func TestBackoffJitterIsFull(t *testing.T) {
	b := Backoff{Base: time.Second}
	low := 0
	for range 2000 {
		if b.Delay(1) < 500*time.Millisecond {
			low++
		}
	}
	assert.InDelta(t, 1000, low, 250) // 11 standard deviations
}
