package settletest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/settlemq/settle"
)

// mutants are sources with one thing wrong each, and the rule that must fail
// for it, with a part of what must be seen.
var mutants = []struct {
	rule   Rule
	wrong  string
	seen   string
	mutant mutant
}{
	{RuleAck, "acks are forgotten", "20 messages are in the queue, and 0 should be", ignores(settle.ActionAck)},
	{RuleAck, "the first ack brings the message again", "", retriesFirst},
	{RuleDrop, "drops are forgotten", "20 messages are in the queue, and 0 should be", ignores(settle.ActionDrop)},
	{RuleDrop, "a drop is a retry at first", "", retriesFirst},
	{RuleRetry, "retries are lost", "after two retries", losesRetries},
	{RuleRetry, "each delivery has another ID", "came with the ID", mutant{arrive: func(_ *mutated, d *settle.Delivery) {
		d.ID = fmt.Sprintf("%p", d)
	}}},
	{RuleRetry, "a retry makes a second copy", "", copiesRetries},
	{RuleNoOutcome, "retries are lost", "after its handler failed once", losesRetries},
	{RuleBodies, "a body is made text", "handled as", mutant{arrive: func(_ *mutated, d *settle.Delivery) {
		d.Body = []byte(strings.ToValidUTF8(string(d.Body), "?"))
	}}},
	{RuleBodies, "a dead letter's body is made text", "dead-lettered as", deadCopies(1, func(d *settle.Delivery) settle.Message {
		return settle.Message{Body: []byte(strings.ToValidUTF8(string(d.Body), "?"))}
	})},
	{RuleHeaders, "header names are made lower case", `lacks the header "Mixed-Case"`, mutant{arrive: func(_ *mutated, d *settle.Delivery) {
		lower := make(settle.Headers)
		for k, v := range d.Headers {
			lower[strings.ToLower(k)] = v
		}
		d.Headers = lower
	}}},
	{RuleHeaders, "a retry cuts values short", `has the header "x-trace"`, mutant{arrive: func(_ *mutated, d *settle.Delivery) {
		if d.Attempt > 1 && d.Headers != nil {
			d.Headers = d.Headers.Clone()
			d.Headers["x-trace"] = "00"
		}
	}}},
	{RuleDeadLetter, "dead letters are lost", "the dead letters are []", losesDeadLetters},
	{RuleDeadLetter, "dead letters are made twice", `["first" "first" "second" "second"]`, deadCopies(2, whole)},
	{RuleDeadLetter, "the original stays", "messages are in the queue, and 0 should be", mutant{settle: func(m *mutated, ctx context.Context, batch []settle.Settlement) {
		for i := range batch {
			if d := batch[i].Delivery; batch[i].Verdict.Action == settle.ActionDeadLetter {
				m.publish(mutantDead, whole(d))
				continue
			}
			m.Consumer.Settle(ctx, batch[i:i+1])
		}
	}}},
	{RuleDeadLetterHeaders, "dead letters have no headers", "lacks the header", deadCopies(1, func(d *settle.Delivery) settle.Message {
		return settle.Message{Body: d.Body}
	})},
	{RuleDeadLetterNowhere, "without a dead letter it is released", "times, and should be 1 time", neverEnds},
	{RuleAttempt, "retries are not counted", "with the attempts [1 1 1 1 1]", neverCounts},
	{RuleAttempt, "the first attempt is 0", "and the first is 1", countsFromZero},
	{RuleFinal, "the attempt is one too high", "delivery 2 has Final true", countsFromTwo},
	{RuleCap, "retries are not counted", "at the cap of 3", neverCounts},
	{RuleCap, "the attempt is one too high", "handled 2 times, and should be 3 times", countsFromTwo},
	{RuleCap, "dead letters are lost", "the dead letters are []", losesDeadLetters},
	{RuleCapOne, "the first delivery is not counted", "handled 2 times, and should be 1 time", countsFromZero},
	{RulePastCap, "the attempt never passes the cap", "handled 1 time, and should be 0 times", attempts(func(m *mutated, n int) int {
		return min(n, max(m.registration.MaxAttempts, 1))
	})},
	{RuleCapNowhere, "without a dead letter it is released", "times, and should be 2 times", neverEnds},
	{RuleRefuse, "the refusal has no fix", "has no Fix", mutant{open: func(m *mutated, _ context.Context, _ settle.Registration) (settle.Consumer, error) {
		return nil, &settle.ConfigError{Source: m.Name(), Setting: "MaxAttempts", Reason: "no"}
	}}},
	{RuleRefuse, "nothing is refused", "Run does not return", mutant{open: func(m *mutated, ctx context.Context, r settle.Registration) (settle.Consumer, error) {
		r.DeadLetter = mutantDead
		return m.openReal(ctx, r)
	}}},
	{RuleDelay, "the broker comes early", "and 50ms was asked", mutant{delay: settle.DelayBySource, verdict: func(_ *mutated, s *settle.Settlement) {
		s.Verdict.Delay /= 2
	}}},
	{RuleDelay, "what the broker delays is not counted", "with the attempts [1 1 1]", mutant{delay: settle.DelayBySource, arrive: neverCounts.arrive}},
	{RuleDelay, "what the broker delays is lost", "after two delays", mutant{delay: settle.DelayBySource, verdict: losesRetries.verdict}},
	{RuleDelayCap, "dead letters are lost", "the dead letters are []", losesDeadLetters},
	{RuleDelayTooLong, "what cannot be delayed is lost", "did not come again at once", mutant{delay: settle.NoDelay, verdict: losesRetries.verdict}},
	{RuleDelayTooLong, "what is delayed too long is lost", "did not come again at once", mutant{longest: time.Hour, verdict: losesRetries.verdict}},
	{RuleBatch, "the first outcome settles all", "", mutant{settle: func(m *mutated, ctx context.Context, batch []settle.Settlement) {
		for i := range batch {
			batch[i].Verdict = batch[0].Verdict
		}
		m.Consumer.Settle(ctx, batch)
	}}},
	{RuleBatchLength, "retries are lost", "after its batch failed", losesRetries},
	{RuleBatchPanic, "retries are lost", "after its batch failed", losesRetries},
	{RulePanic, "retries are lost", "after its handler failed once", losesRetries},
	{RuleGoexit, "retries are lost", "after its handler failed once", losesRetries},
	{RuleTimeout, "acks are forgotten", "1 messages are in the queue, and 0 should be", ignores(settle.ActionAck)},
	{RuleOneSettlement, "an ack makes a second copy", "", copiesOneAck},
	{RuleOneSettlement, "retries are lost", "messages have ended", losesRetries},
	{RuleTwoConsumers, "an ack makes a second copy", "", copiesOneAck},
	{RuleWorkers, "one delivery at a time", "not 8 handlers run side by side", oneByOne},
	{RulePrefetch, "one delivery at a time", "5 deliveries are not in work", oneByOne},
	{RuleSlowHandler, "one delivery at a time", "the others do not go on", oneByOne},
	{RuleLanes, "one delivery at a time", "the other lanes do not go on", oneByOne},
	{RuleDrainInFlight, "Stop gives back what is in work", "was not settled", mutant{stop: func(m *mutated, ctx context.Context) error {
		return m.Consumer.Close(ctx)
	}}},
	{RuleDrainUnstarted, "what is released is lost", "0 messages are in the queue, and 9 should be", losesReleases},
	{RuleDrainHolds, "what is released is lost", "0 messages are in the queue, and 1 should be", losesReleases},
	{RuleDrainHolds, "what the broker delays comes early", "was asked", mutant{delay: settle.DelayBySource, verdict: func(_ *mutated, s *settle.Settlement) {
		s.Verdict.Delay /= 2
	}}},
	{RuleDrainOverstay, "what is released is lost", "0 messages are in the queue, and 2 should be", losesReleases},
	{RuleShutdownTwice, "Close hangs", "Shutdown returned context deadline exceeded", hangsOnClose},
	{RuleSever, "what is lost settles with nil", "the source settled a delivery that was lost", settlesStale},
	{RuleSever, "a lost session is not told", "not every message was acknowledged after the session was lost", mutant{open: deaf.open, receive: deaf.receive, settled: settlesStale.settled}},
	{RuleSeverContext, "a lost session is not told", "(with room for more)", deaf},
	{RuleSeverContext, "a lost session is told by Receive alone", "(with a full prefetch)", mute},
	{RuleSeverAttempt, "a new session counts from 1", "the attempts of the message were [1 2 3 1]", attempts(func(m *mutated, n int) int {
		if m.sessions.Load() > 1 {
			return 1
		}
		return n
	})},
	{RuleReopen, "there is no second session", "after the session was lost 1 time", mutant{open: func(m *mutated, ctx context.Context, r settle.Registration) (settle.Consumer, error) {
		if m.sessions.Load() > 0 {
			return nil, errors.New("no")
		}
		return m.openReal(ctx, r)
	}}},
	{RuleOpenEnds, "Open does not look at its context", "Open has not returned", mutant{open: func(m *mutated, _ context.Context, r settle.Registration) (settle.Consumer, error) {
		m.hang()
		return nil, m.over.Err()
	}}},
	{RuleReceiveEnds, "Receive does not look at its context", "Receive has not returned", mutant{receive: func(m *mutated, _ context.Context, buf []*settle.Delivery) (int, error) {
		return m.Consumer.Receive(m.over, buf)
	}}},
	{RuleReceiveEnds, "what came with the end of the context is lost", "its last error is", mutant{receive: func(m *mutated, ctx context.Context, buf []*settle.Delivery) (int, error) {
		n, err := m.Consumer.Receive(ctx, buf)
		if n > 0 && m.once.CompareAndSwap(false, true) {
			return 0, ctx.Err()
		}
		return n, err
	}}},
	{RuleReceiveRoom, "more is returned than was asked", "Receive returned 2 for a buffer of 1", mutant{receive: func(m *mutated, ctx context.Context, buf []*settle.Delivery) (int, error) {
		n, err := m.Consumer.Receive(ctx, buf)
		return n + 1, err
	}}},
	{RuleReceiveRoom, "nothing is returned", "Receive brought nothing and no error", mutant{receive: func(*mutated, context.Context, []*settle.Delivery) (int, error) {
		return 0, nil
	}}},
	{RuleReceiveRoom, "a nil is returned", "of them is nil", mutant{receive: func(m *mutated, ctx context.Context, buf []*settle.Delivery) (int, error) {
		return 1, nil
	}}},
	{RuleSettleEach, "an error is left as it was", "Settle did not set this error", mutant{settle: func(m *mutated, ctx context.Context, batch []settle.Settlement) {
		for i := range batch {
			if batch[i].Verdict.Action != settle.ActionRelease {
				batch[i].Err = nil
				m.Consumer.Settle(ctx, batch[i:i+1])
			}
		}
	}}},
	{RuleSettleEach, "releases count", "after a release message", countsReleases},
	{RuleSettleAgain, "a second settlement returns nil", "after an ack returned <nil>", settlesStale},
	{RuleSettleClosed, "a settlement after Close returns nil", "after Close returned <nil>", settlesStale},
	{RuleSettleForeign, "another session's delivery settles with nil", "of another session's delivery returned <nil>", settlesStale},
	{RuleRelease, "releases are ignored", "Receive brought 0 of 1 message", ignores(settle.ActionRelease)},
	{RuleReleaseFree, "releases count", "has attempt 2 after it was released", countsReleases},
	{RuleStop, "Stop is ignored", "after Stop", mutant{stop: func(*mutated, context.Context) error { return nil }}},
	{RuleStop, "Stop gives back what is in work", "did not settle after Stop", mutant{stop: func(m *mutated, ctx context.Context) error {
		return errors.Join(m.Consumer.Stop(ctx), m.Consumer.Close(ctx))
	}}},
	{RuleClose, "Close keeps what is unsettled", "Receive brought 1 of 3 messages", mutant{close: func(*mutated, context.Context) error { return nil }}},
	{RuleClose, "Close hangs", "Close has not returned", hangsOnClose},
	{RuleGoroutines, "Open leaves a goroutine", "are still there", mutant{open: func(m *mutated, ctx context.Context, r settle.Registration) (settle.Consumer, error) {
		go func() { <-m.after.Done() }()
		return m.openReal(ctx, r)
	}}},
}

// unbreakable are the rules that no source can break: the runtime alone keeps them.
var unbreakable = map[Rule]bool{RuleRunOnce: true}

// instead asks for another action than the one that was asked.
func instead(of, do settle.Action) mutant {
	return mutant{verdict: func(_ *mutated, s *settle.Settlement) {
		if s.Verdict.Action == of {
			s.Verdict.Action = do
		}
	}}
}

// ignores answers one action with nil and does nothing.
func ignores(a settle.Action) mutant {
	return mutant{settle: func(m *mutated, ctx context.Context, batch []settle.Settlement) {
		for i := range batch {
			batch[i].Err = nil
			if batch[i].Verdict.Action != a {
				m.Consumer.Settle(ctx, batch[i:i+1])
			}
		}
	}}
}

// deadCopies makes the dead letters itself, n of each.
func deadCopies(n int, letter func(*settle.Delivery) settle.Message) mutant {
	return mutant{verdict: func(m *mutated, s *settle.Settlement) {
		if s.Verdict.Action != settle.ActionDeadLetter {
			return
		}
		s.Verdict.Action = settle.ActionAck
		for range n {
			m.publish(mutantDead, letter(s.Delivery))
		}
	}}
}

// whole is a copy of a delivery's message.
func whole(d *settle.Delivery) settle.Message {
	return settle.Message{Body: d.Body, Headers: d.Headers}
}

// attempts changes the attempt of each delivery.
func attempts(change func(m *mutated, attempt int) int) mutant {
	return mutant{arrive: func(m *mutated, d *settle.Delivery) { d.Attempt = change(m, d.Attempt) }}
}

var (
	losesRetries     = instead(settle.ActionRetry, settle.ActionAck)
	countsReleases   = instead(settle.ActionRelease, settle.ActionRetry)
	losesReleases    = instead(settle.ActionRelease, settle.ActionAck)
	losesDeadLetters = instead(settle.ActionDeadLetter, settle.ActionAck)
	neverEnds        = instead(settle.ActionDeadLetter, settle.ActionRelease)

	neverCounts = attempts(func(*mutated, int) int {
		time.Sleep(time.Millisecond) // it turns for ever: not too fast
		return 1
	})
	countsFromZero = attempts(func(_ *mutated, n int) int { return n - 1 })
	countsFromTwo  = attempts(func(_ *mutated, n int) int { return n + 1 })

	retriesFirst = mutant{verdict: func(_ *mutated, s *settle.Settlement) {
		if s.Delivery.Attempt == 1 {
			s.Verdict.Action = settle.ActionRetry
		}
	}}
	copiesRetries = mutant{verdict: func(m *mutated, s *settle.Settlement) {
		if s.Verdict.Action == settle.ActionRetry && s.Delivery.Attempt == 1 {
			m.publish(mutantQueue, whole(s.Delivery))
		}
	}}
	copiesOneAck = mutant{verdict: func(m *mutated, s *settle.Settlement) {
		if s.Verdict.Action == settle.ActionAck && m.once.CompareAndSwap(false, true) {
			m.publish(mutantQueue, whole(s.Delivery))
		}
	}}
	settlesStale = mutant{settled: func(_ *mutated, s *settle.Settlement) {
		if isLost(s.Err) {
			s.Err = nil
		}
	}}
	oneByOne = mutant{receive: func(m *mutated, ctx context.Context, buf []*settle.Delivery) (int, error) {
		for ctx.Err() == nil {
			if m.unsettled.Load() == 0 {
				return m.Consumer.Receive(ctx, buf[:1])
			}
			time.Sleep(time.Millisecond)
		}
		return 0, ctx.Err()
	}}
	// deaf does not say that its session is lost.
	deaf = mutant{
		open: func(m *mutated, ctx context.Context, r settle.Registration) (settle.Consumer, error) {
			tell := r.Notify
			r.Notify = func(n settle.Notice) {
				if n.Kind != settle.NoticeLost {
					tell(n)
				}
			}
			return m.openReal(ctx, r)
		},
		receive: func(m *mutated, ctx context.Context, buf []*settle.Delivery) (int, error) {
			n, err := m.Consumer.Receive(ctx, buf)
			if isLost(err) {
				<-ctx.Done()
				return 0, ctx.Err()
			}
			return n, err
		},
	}
	// mute says it by Receive alone.
	mute         = mutant{open: deaf.open}
	hangsOnClose = mutant{close: func(m *mutated, _ context.Context) error {
		m.hang()
		return m.Consumer.Close(context.Background())
	}}
)
