package settle

import (
	"errors"
	"math"
	"math/rand/v2"
	"time"
)

// Backoff turns the number of an attempt into the wait before the next one:
// exponential, capped, with full jitter, so that messages that failed together do not come
// back together. The zero value waits up to 1 s after the first attempt, doubles, and stops at 5 min.
type Backoff struct {
	Base   time.Duration // the upper bound after attempt 1; 0: 1 s
	Max    time.Duration // the upper bound at most; 0: 5 min
	Factor float64       // what the bound grows by with each attempt; 0: 2
	// Min is the least wait: jitter falls between Min and the bound. 0: none.
	Min time.Duration
}

// Delay returns the wait after the given attempt failed: random, evenly
// spread between Min and min(Max, Base·Factor^(attempt-1)). An attempt under 1
// counts as 1. Settings that make no sense are bent, not refused: a negative
// duration counts as 0, a factor under 1 as 1.
func (b Backoff) Delay(attempt int) time.Duration {
	bound := b.bound(attempt)
	least := min(max(b.Min, 0), bound)
	return least + time.Duration(rand.Uint64N(uint64(bound-least)+1))
}

// bound returns the longest wait after the given attempt.
func (b Backoff) bound(attempt int) time.Duration {
	base, limit, factor := b.Base, b.Max, b.Factor
	if base == 0 {
		base = time.Second
	}
	if limit == 0 {
		limit = 5 * time.Minute
	}
	if factor == 0 {
		factor = 2
	}
	base, limit, factor = max(base, 0), max(limit, 0), max(factor, 1)
	grown := float64(base) * math.Pow(factor, float64(max(attempt, 1)-1))
	if !(grown < float64(limit)) { // also when it overflowed or is not a number
		return limit
	}
	return time.Duration(grown)
}

// faultPause is how long a message whose handler panicked or decided nothing is
// kept back where no cap would end it.
const faultPause = time.Second

// decision is what decide makes of an outcome.
type decision struct {
	verdict Verdict
	hold    time.Duration // held by the runtime for this long first
	tooLong time.Duration // the delay that the place could not wait; 0: none
	problem error         // ErrDelayTooLong or ErrNoDelay, with tooLong
}

// decide is the rule from an outcome to a verdict: the cap first, then who
// waits. age is how long ago the delivery was received.
func decide(o Outcome, attempt int, age time.Duration, limit int, t Traits) decision {
	switch o.kind {
	case outcomeAck:
		return decision{verdict: Verdict{Action: ActionAck}}
	case outcomeDrop:
		return decision{verdict: Verdict{Action: ActionDrop, Cause: o.cause}}
	case outcomeDeadLetter:
		return decision{verdict: Verdict{Action: ActionDeadLetter, Cause: o.cause}}
	}

	// A failure: retry, retry_after, a panic, or nothing decided.
	cause, delay := o.cause, o.delay
	if o.kind == outcomeNone {
		cause = ErrNoOutcome
	}
	if limit > 0 && attempt >= limit {
		return decision{verdict: Verdict{Action: ActionDeadLetter, Cause: cause}}
	}
	retry := decision{verdict: Verdict{Action: ActionRetry, Cause: cause}}
	if limit == 0 && (o.kind == outcomeNone || o.kind == outcomePanic) {
		// Nothing else would slow it down, so it is held even where the place
		// cannot wait.
		retry.hold = faultPause
		if t.Delay == DelayBySource {
			retry.hold, retry.verdict.Delay = 0, faultPause
		} else if t.LongestDelay > 0 {
			retry.hold = min(faultPause, max(0, t.LongestDelay-age)/2)
		}
		return retry
	}
	if delay <= 0 {
		return retry
	}
	waited := delay
	if t.Delay == DelayInProcess {
		waited = saturatingAdd(delay, age)
	}
	switch {
	case t.Delay == NoDelay:
		retry.tooLong, retry.problem = delay, ErrNoDelay
	case t.LongestDelay > 0 && waited >= t.LongestDelay:
		retry.tooLong, retry.problem = delay, ErrDelayTooLong
	case t.Delay == DelayBySource:
		retry.verdict.Delay = delay
	default:
		retry.hold = delay
	}
	return retry
}

// pastCap reports whether a delivery that has just arrived is past its cap, so
// that it is dead-lettered without its handler.
func pastCap(attempt, limit int) bool { return limit > 0 && attempt > limit }

// final reports whether a failure of this attempt dead-letters the message.
func final(attempt, limit int) bool { return limit > 0 && attempt >= limit }

func saturatingAdd(a, b time.Duration) time.Duration {
	if sum := a + b; sum >= a || b < 0 {
		return sum
	}
	return math.MaxInt64
}

// lost reports whether err says that a delivery is no longer this session's.
func lost(err error) bool {
	return errors.Is(err, ErrLeaseLost) || errors.Is(err, ErrSessionLost)
}
